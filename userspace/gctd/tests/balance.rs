// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory of an owner with `gmem.low` gives way to others, and comes back.

mod common;

use common::{eventually, member, Tenant};
use gctd::testing::{Client, Daemon, MEMORY};
use gctd_ipc::message::Paged;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Memory of the GPU that is divided.
const ROOM: u64 = (MEMORY.get() - MEMORY.get() / 32) / MIB;

fn on_gpu(mib: u64) -> Paged {
    Paged {
        device: mib * MIB,
        host: 0,
    }
}

/// Has so many MiB on the GPU as each line says. It is the program of [`Other`], not a test.
#[test]
fn other() {
    let Some(path) = std::env::var_os("GCTD_TEST_OTHER") else {
        return;
    };
    let mut tenant = Tenant::new(path.as_ref());
    tenant.cuda(0);
    for line in std::io::stdin().lines() {
        let memory = on_gpu(line.unwrap().parse().unwrap());
        assert_eq!(tenant.link.repage(0, memory, 0, false), Ok(()));
        println!("done");
    }
}

/// A process in the group `other`. Dropping it kills it.
struct Other(Child);

impl Other {
    fn start(daemon: &Daemon, client: &Client) -> Self {
        // It waits until it is in its group.
        let child = Command::new("sh")
            .args(["-c", "read go; exec \"$@\"", "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "other", "--nocapture"])
            .env("GCTD_TEST_OTHER", daemon.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        client.write("control", "create other").unwrap();
        let pid = child.id().to_string();
        client.write("other/group.procs", pid).unwrap();
        writeln!(child.stdin.as_mut().unwrap(), "go").unwrap();
        Self(child)
    }

    fn has(&mut self, mib: u64) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{mib}").unwrap();
        let output = BufReader::new(self.0.stdout.as_mut().unwrap());
        let mut lines = output.lines().map(Result::unwrap);
        assert!(lines.any(|line| line.ends_with("done")));
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn memory_gives_way_down_to_what_is_kept_and_comes_back() {
    let daemon = Daemon::with_memory("balance", 1);
    let client = member(&daemon);
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    let stat = || client.read("web/0/gmem.stat").unwrap();
    for (file, text) in [("pageable", "1"), ("limit", "200M"), ("low", "70M")] {
        client.write(&format!("web/0/gmem.{file}"), text).unwrap();
    }
    assert_eq!(client.read("web/0/gmem.low"), Ok("73400320\n".into()));
    assert_eq!(tenant.link.repage(0, on_gpu(170), 0, false), Ok(()));
    let mut room = || {
        tenant
            .link
            .pageable_room(0, 0)
            .map(|room| room.device / MIB)
    };
    let mut other = Other::start(&daemon, &client);
    other.has(150);
    eventually(&Some(ROOM - 150), &mut room);
    let allowed = format!("allowed {}\n", (ROOM - 150) * MIB);
    assert!(stat().ends_with(&allowed), "{}", stat());
    other.has(240);
    eventually(&Some(70), &mut room);
    assert_eq!(client.read("web/0/gmem.limit"), Ok("209715200\n".into()));
    // What came and went would have moved memory twice.
    other.has(20);
    let left = Instant::now();
    while room() == Some(70) {
        assert!(left.elapsed() < Duration::from_secs(20), "nothing is back");
        std::thread::sleep(Duration::from_millis(20));
    }
    let waited = left.elapsed();
    assert!(waited > Duration::from_secs(3), "{waited:?}");
    eventually(&Some(200), &mut room);
    other.has(230);
    eventually(&Some(70), &mut room);
    client.write("web/0/gmem.low", "max").unwrap();
    assert_eq!(room(), Some(200));
    assert!(!stat().contains("allowed"), "{}", stat());
}
