// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Usage: tenant [--exit] MIB...
//!
//! Says to gctd what the preload library of a CUDA program would, without a GPU: a channel on the
//! first GPU whose node it has, and allocations of so many MiB. Prints the daemon's answers. Then
//! it exits, or stays connected and prints each change of its mask; 0 TPCs are no mask. It runs in
//! containers of the job `kubernetes`, and as a service in the job `packages`.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gct_core::rmapi::{self, escape};
use gctd::testing::alloc;
use gctd_ipc::tenant::{self, Gpu, Link, Verdict};

const CLIENT: u32 = 0xc1d0_0019;
const DEVICE: u32 = 0x5c00_0002;
const GROUP: u32 = 0x5c00_0015;
const CHANNEL: u32 = 0x5c00_001c;
const MEMORY: u32 = 0x5c00_0040;

/// Returns the bus of the first GPU whose node there is. That of GPU N is N + 1.
fn bus() -> u64 {
    let has_node = |n: &u64| Path::new(&format!("/dev/nvidia{n}")).exists();
    (0..16).find(has_node).expect("a GPU's node") + 1
}

/// Allocates an object. Returns whether it was granted.
fn allocate(link: &mut Link, parent: u32, object: u32, class: u32, hint: Option<u64>) -> bool {
    let client = if parent == 0 { 0 } else { CLIENT };
    let mut bytes = alloc(client, parent, object, class);
    let (ioctl, call) = tenant::decode(escape::ALLOC, &bytes, |_| hint).expect("an allocation");
    let verdict = link.enter(&ioctl, &call);
    if verdict == Verdict::Refused {
        return false;
    }
    assert!(rmapi::set_status(escape::ALLOC, &mut bytes, 0));
    let (ioctl, call) = tenant::decode(escape::ALLOC, &bytes, |_| hint).expect("an allocation");
    link.leave(ioctl, &call, verdict);
    true
}

fn main() {
    let started = Instant::now();
    let now = || started.elapsed().as_nanos() as u64 + 1;
    let mut link = Link::from_environment();
    assert!(link.maintain(now()), "no daemon: {:?}", link.failure());
    allocate(&mut link, 0, CLIENT, 0x41, None);
    allocate(&mut link, CLIENT, DEVICE, 0x80, Some(bus() << 8));
    allocate(&mut link, DEVICE, GROUP, 0xa06c, None);
    allocate(&mut link, GROUP, CHANNEL, 0xc86f, None);
    let mut gpu = link.gpu_of(CLIENT, GROUP).expect("a page");
    let tpcs = link.dependable_tpcs(gpu.minor).expect("TPCs");
    let count: u32 = tpcs.iter().map(|word| word.count_ones()).sum();
    println!("can count on {count} TPCs");
    let mut sizes: Vec<String> = std::env::args().skip(1).collect();
    let exits = sizes.first().is_some_and(|first| first == "--exit");
    for (number, mib) in (0..).zip(sizes.drain(usize::from(exits)..)) {
        let bytes = mib.parse::<u64>().expect("a number of MiB") << 20;
        let granted = allocate(&mut link, DEVICE, MEMORY + number, 0x40, Some(bytes));
        println!("{mib} MiB {}", if granted { "granted" } else { "refused" });
    }
    if exits {
        return;
    }
    let mask = |gpu: &Gpu| {
        gpu.page
            .limits()
            .and_then(|(_, limits)| limits.launches.tpcs)
    };
    let mut last = mask(&gpu);
    loop {
        sleep(Duration::from_millis(20));
        link.maintain(now());
        // Without a daemon the last page stays.
        gpu = link.gpu_of(CLIENT, GROUP).unwrap_or(gpu);
        let now = mask(&gpu);
        if now != last {
            println!("may use {} TPCs", now.map_or(0, |tpcs| tpcs.count()));
            last = now;
        }
    }
}
