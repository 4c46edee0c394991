// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the changes that a process on two GPUs learns from its daemon.

use super::*;
use gct_core::mask::TpcMask;
use gct_core::rmapi::escape;
use gctd::testing::{self, Daemon};
use gctd_ipc::message::{Reply, Request};
use gctd_ipc::{socket, tenant};
use rustix::fd::AsFd;

/// Connects a process that has made a client.
fn process(daemon: &Daemon, client: u32) -> Connected {
    let mut connected = Connected::new(std::process::id(), Link::new(daemon.socket()));
    connected.link.maintain(1);
    alloc(&mut connected, [0, 0, client, 0x41], None);
    connected
}

/// Allocates an object: client, parent, handle, class.
fn alloc(process: &mut Connected, words: [u32; 4], hint: Option<u64>) -> Call {
    let [client, parent, object, class] = words;
    let bytes = testing::alloc(client, parent, object, class);
    let (ioctl, call) = tenant::decode(escape::ALLOC, &bytes, |_| hint).unwrap();
    let verdict = process.link.enter(&ioctl, &call);
    process.link.leave(ioctl, &call, verdict);
    call
}

/// Makes a device and a channel group on a GPU.
fn open(process: &mut Connected, client: u32, gpu: u32) {
    let device = 10 + gpu;
    let bus = u64::from(gpu) << 8;
    alloc(process, [client, client, device, 0x80], Some(bus));
    let group = alloc(process, [client, device, 20 + gpu, 0xa06c], None);
    process.slices.made(&group, None, -1, &mut process.link);
}

/// Returns the changes, by kind and GPU.
fn news(process: &mut Connected) -> Vec<(&'static str, u32)> {
    let what = |news: &News| match news {
        News::Gpu(gpu, _) => ("gpu", *gpu),
        News::Peers(gpu, _) => ("peers", *gpu),
    };
    process.attend().iter().map(what).collect()
}

#[test]
fn each_gpu_has_its_page_and_its_neighbours() {
    let mut daemon = Daemon::new("neighbours", 2);
    let mut process = self::process(&daemon, 1);
    assert_eq!(news(&mut process), []);
    open(&mut process, 1, 0);
    assert_eq!(news(&mut process), [("gpu", 0)]);
    open(&mut process, 1, 1);
    assert_eq!(news(&mut process), [("gpu", 1)]);
    assert_eq!(news(&mut process), []);

    let mut neighbour = self::process(&daemon, 2);
    open(&mut neighbour, 2, 1);
    assert_eq!(news(&mut process), [("peers", 1)]);

    daemon.restart();
    // The link reconnects at most once a second.
    std::thread::sleep(Duration::from_millis(1100));
    let both = [("gpu", 0), ("gpu", 1)];
    assert_eq!(news(&mut process), both, "another daemon has other pages");
}

#[test]
fn a_page_that_does_not_come_is_asked_for_again() {
    let daemon = Daemon::new("again", 2);
    let mut process = self::process(&daemon, 1);
    open(&mut process, 1, 0);
    alloc(&mut process, [1, 1, 11, 0x80], Some(1 << 8));
    // The daemon does not know this channel group yet.
    let bytes = testing::alloc(1, 11, 21, 0xa06c);
    let (ioctl, call) = tenant::decode(escape::ALLOC, &bytes, |_| None).unwrap();
    process.slices.made(&call, None, -1, &mut process.link);
    assert_eq!(news(&mut process), [("gpu", 0)]);
    let verdict = process.link.enter(&ioctl, &call);
    process.link.leave(ioctl, &call, verdict);
    assert_eq!(news(&mut process), [("gpu", 1)]);
}

#[test]
fn a_new_daemon_is_heard_whatever_has_gone_meanwhile() {
    let mut daemon = Daemon::new("renewed", 1);
    let mut process = self::process(&daemon, 1);
    open(&mut process, 1, 0);
    let young = alloc(&mut process, [1, 10, 30, 0xa06c], None);
    process.slices.made(&young, None, -1, &mut process.link);
    assert_eq!(news(&mut process), [("gpu", 0)]);
    let bytes = testing::free(1, young.object);
    let (ioctl, call) = tenant::decode(escape::FREE, &bytes, |_| None).unwrap();
    process.slices.freed(1, young.object, &mut process.link);
    let verdict = process.link.enter(&ioctl, &call);
    process.link.leave(ioctl, &call, verdict);

    daemon.restart();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(news(&mut process), [("gpu", 0)]);
    let file = format!("{}/0/tpc.mask", std::process::id());
    assert_eq!(daemon.client().write(&file, "0-3"), Ok(()));
    let (_, limits) = process.link.gpus()[0].page.limits().unwrap();
    assert_eq!(limits.launches.tpcs, Some(TpcMask::first(4)));
}

#[test]
fn a_daemon_that_has_gone_is_awaited_once() {
    let mut daemon = Daemon::new("gone", 1);
    let mut process = self::process(&daemon, 1);
    let at_once = Duration::ZERO;
    assert_eq!(process.awaits(at_once), Some(false), "none has gone");
    for _ in 0..2 {
        daemon.stop();
        process.maintain();
        assert_eq!(process.awaits(at_once), None);
        daemon.restart();
        assert_eq!(process.awaits(at_once), Some(true));
    }
    daemon.stop();
    process.maintain();
    assert_eq!(process.awaits(RESTART), Some(false));
    assert_eq!(process.awaits(at_once), Some(false), "in vain");
}

#[test]
fn the_bell_is_heard_for_every_gpu() {
    let daemon = Daemon::new("bell", 2);
    let mut process = self::process(&daemon, 1);
    for gpu in 0..2 {
        open(&mut process, 1, gpu);
    }
    for (gpu, value) in [(1, "50"), (0, "50"), (1, "60")] {
        let (at, rung) = process.bell().unwrap();
        let file = format!("{}/{gpu}/compute.timeslice", std::process::id());
        let writing = daemon.write(file, value);
        let started = Instant::now();
        at.page.wait(rung, Duration::from_secs(20));
        process.bell();
        assert_eq!(writing.join().unwrap(), Ok(()), "GPU {gpu}");
        // A write waits a second for a process that does not answer.
        assert!(started.elapsed() < Duration::from_millis(900), "GPU {gpu}");
    }
}

/// The versions of a daemon of another release.
fn others() -> Versions {
    Versions::from(1000 << 16 | 1001)
}

/// Puts a daemon of another release in the place of one.
fn replace(daemon: &mut Daemon) {
    daemon.stop();
    let listener = socket::listen(&daemon.socket(), rustix::fs::Mode::RWXU).unwrap();
    std::thread::spawn(move || {
        while let Ok(client) = rustix::net::accept(&listener) {
            let _: (Request, _) = socket::receive(client.as_fd()).unwrap();
            let versions = others();
            let flags = rustix::net::SendFlags::empty();
            socket::send(client.as_fd(), &Reply::Hello { versions }, &[], flags).unwrap();
        }
    });
}

/// Checks that an upgrade of the daemon alone is told once, and leaves the limits in force.
#[test]
fn a_daemon_of_another_release_leaves_the_last_limits() {
    let mut daemon = Daemon::new("release", 1);
    let mut process = self::process(&daemon, 1);
    open(&mut process, 1, 0);
    let file = format!("{}/0/gmem.limit", std::process::id());
    daemon.client().write(&file, "1G").unwrap();
    assert_eq!(
        (news(&mut process), process.other_release()),
        (vec![("gpu", 0)], None)
    );

    replace(&mut daemon);
    assert_eq!(news(&mut process), []);
    let told = process.other_release().unwrap();
    assert!(
        told.contains(" 1000 to 1001: install the same release"),
        "{told}"
    );
    assert_eq!(process.other_release(), None);
    let (_, limits) = process.link.gpus()[0].page.limits().unwrap();
    assert_eq!(limits.gmem_limit, 1 << 30);
    process.link = Link::new(daemon.socket());
    process.told = None;
    assert!(!process.link.maintain(1));
    assert_eq!(process.other_release(), None, "it was told at its start");
}

/// Checks that a program is told of it again if it has had a daemon of its release since.
#[test]
fn another_release_is_told_again_after_one_of_its_own() {
    let mut daemon = Daemon::new("again", 1);
    let mut process = self::process(&daemon, 1);
    process.told = Some(others());
    process.link = Link::new(daemon.socket());
    process.maintain();
    replace(&mut daemon);
    // It connects once a second at most.
    std::thread::sleep(LOOK);
    process.maintain();
    assert!(process.other_release().is_some());
    assert_eq!(process.other_release(), None);
}
