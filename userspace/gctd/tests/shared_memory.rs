// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory of another process, as CUDA IPC opens it: RM keeps it until the last one has freed it.

mod common;

use common::{eventually, member, Tenant, DEVICE, TSG};
use gct_core::rmapi::escape;
use gctd::testing::{Client, Daemon};

const MEMORY: u32 = 0x5c00_0040;
const OPENED: u32 = 0x5c00_0050;
const BYTES: u64 = 1 << 20;

/// Makes a process with an RM client of its own.
fn process(daemon: &Daemon, client: u32) -> Tenant {
    let mut process = Tenant::of(daemon);
    process.client = client;
    process.cuda(0);
    process
}

/// Opens an object of another RM client, which the driver allows.
fn opens(process: &mut Tenant, source_client: u32, source: u32) {
    let words = [process.client, DEVICE, OPENED, source_client, source, 0, 0];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    process.ioctl(escape::DUP_OBJECT, &bytes, None, 0);
}

fn has(client: &Client, file: &str, bytes: u64) {
    eventually(&Ok(format!("{bytes}\n")), || client.read(file));
}

/// A program cannot leave its limit by processes that make memory, share it and end.
#[test]
fn memory_that_outlives_its_maker_stays_charged_to_the_group() {
    let daemon = Daemon::new("makers", 1);
    let client = member(&daemon);
    client.write("web/0/gmem.limit", "2M").unwrap();
    let mut user = process(&daemon, 0xc1d1_0000);
    let mut maker = process(&daemon, 0xc1d1_0001);
    assert!(maker.memory(MEMORY, BYTES));
    opens(&mut user, maker.client, MEMORY);
    has(&client, "web/0/gmem.current", BYTES);
    drop(maker);
    let ended = || {
        let stat = client.read("web/0/compute.stat").unwrap();
        stat.contains("channel_groups 1\n")
    };
    eventually(&true, ended);
    has(&client, "web/0/gmem.current", BYTES);
    assert!(!user.memory(MEMORY, BYTES + 1) && user.memory(MEMORY, BYTES));
    user.free(OPENED);
    has(&client, "web/0/gmem.current", BYTES);
    let events = client.read("events").unwrap();
    assert!(events.contains("\nclient 0\n"), "{events}");
}

/// Only memory is shared, whatever a process says.
#[test]
fn other_objects_of_the_group_are_not_named() {
    let daemon = Daemon::new("namers", 1);
    let client = member(&daemon);
    let mut user = process(&daemon, 0xc1d1_0000);
    let maker = process(&daemon, 0xc1d1_0001);
    opens(&mut user, maker.client, TSG);
    let refused = || client.read("events").unwrap().contains("\nclient 2\n");
    eventually(&true, refused);
}
