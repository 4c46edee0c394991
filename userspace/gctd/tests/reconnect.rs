// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tenants outlive their daemon, and no daemon blocks them.

mod common;

use common::process::Process;
use common::{eventually, member, own, Tenant, DEVICE, TSG};
use gct_core::mask::TpcMask;
use gctd::testing::Daemon;
use gctd_ipc::greeting::Failure;
use gctd_ipc::tenant::{Link, ManagedCharge};
use rustix::io::Errno;
use rustix::process::{kill_process, Signal};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MEMORY: u32 = 0x5c00_0040;

#[test]
fn a_new_daemon_learns_the_living_objects() {
    let mut daemon = Daemon::new("restart", 1);
    let mut tenant = Tenant::of(&daemon);
    let old = tenant.cuda(0);
    assert!(tenant.memory(MEMORY, 4096));
    assert!(tenant.memory(MEMORY + 1, 8192));
    tenant.free(MEMORY + 1);
    daemon.client().write(&own("tpc.mask"), "0-3").unwrap();
    daemon.stop();
    assert!(!tenant.maintain(), "no daemon runs");
    assert!(tenant.memory(MEMORY + 2, 1), "no limit binds its memory");
    let (_, limits) = old.page.limits().unwrap();
    assert_eq!(
        limits.launches.tpcs,
        Some(TpcMask::first(4)),
        "the last limits stay in force"
    );
    daemon.restart();
    assert!(tenant.maintain(), "connects to the new daemon");
    assert_eq!(tenant.link.lost(), 1);
    let client = daemon.client();
    // The objects arrive in turns with the requests of others.
    eventually(&Ok("4097\n".into()), || client.read(&own("gmem.current")));
    client.write(&own("tpc.mask"), "0-1").unwrap();
    let new = tenant.link.gpu_of(tenant.client, TSG).unwrap();
    assert_eq!(
        new.page.limits().unwrap().1.launches.tpcs,
        Some(TpcMask::first(2))
    );
}

/// Checks that a limit lets nobody have more than the daemon had granted when it went: not a
/// process, none of its forks, and not one that a new daemon has given no page.
#[test]
fn without_a_daemon_a_limit_grants_what_it_had_granted() {
    let mut daemon = Daemon::new("held", 1);
    let client = member(&daemon);
    client.write("web/0/gmem.limit", "64K").unwrap();
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    assert!(tenant.memory(MEMORY, 4096) && tenant.memory(MEMORY + 1, 8192));
    let range = tenant.charge_managed(2048).unwrap();
    for _ in 0..2 {
        daemon.stop();
        assert!(!tenant.memory(MEMORY + 2, 1), "the first one is refused");
        assert!(!tenant.maintain() && tenant.charge_managed(1).is_none());
        tenant.free(MEMORY);
        assert!(!tenant.memory(MEMORY, 4097) && tenant.memory(MEMORY, 4095));
        assert!(tenant.memory(MEMORY + 2, 1) && !tenant.memory(MEMORY + 3, 1));
        tenant.free(MEMORY + 2);
        tenant.free(MEMORY);
        assert!(tenant.memory(MEMORY, 4096));
        assert_eq!(
            tenant.link.of_child().charge_managed(1),
            ManagedCharge::Refused
        );
        daemon.restart();
        assert!(tenant.maintain());
    }
    assert!(tenant.memory(MEMORY + 2, 4096));
    daemon.stop();
    tenant.link.uncharge_managed(range);
    let range = tenant.charge_managed(2048).unwrap();
    assert_eq!(tenant.charge_managed(1), None);
    daemon.restart();
    assert!(tenant.maintain() && tenant.charge_managed(1).is_some());
    tenant.link.uncharge_managed(range);
    daemon.stop();
    let optional = core::mem::replace(&mut tenant.link, Link::new(daemon.socket()));
    tenant.link = optional.optional(true);
    assert!(tenant.memory(MEMORY + 3, 1 << 40));
}

#[test]
fn every_object_leads_to_the_page_of_its_gpu() {
    let mut daemon = Daemon::new("each", 1);
    let mut tenant = Tenant::of(&daemon);
    let first = tenant.cuda(0);
    tenant.alloc(DEVICE, TSG + 1, 0xa06c, None);
    let client = tenant.client;
    let again = tenant.link.gpu_of(client, TSG + 1).unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &again));
    tenant.free(TSG);
    daemon.restart();
    assert!(tenant.maintain() && tenant.link.gpus().is_empty());
    assert!(tenant.link.gpu_of(client, TSG).is_none());
    assert!(tenant.link.gpu_of(client, TSG + 1).is_some());
}

#[test]
fn a_hung_daemon_is_waited_for_once() {
    let daemon = Daemon::new("hung", 0);
    let path = daemon.directory.join("hung.sock");
    let _hung = gctd_ipc::socket::listen(&path, rustix::fs::Mode::RWXU).unwrap();
    let started = std::time::Instant::now();
    let mut tenant = Tenant::new(&path);
    assert!(
        started.elapsed().as_millis() >= 900,
        "the first connect waits for the timeout"
    );
    let started = std::time::Instant::now();
    assert!(!tenant.maintain() && !tenant.link.connected());
    assert!(tenant.memory(MEMORY, 1 << 40));
    assert!(
        started.elapsed().as_millis() < 900,
        "the next call does not wait"
    );
}

/// Signals this thread every 20 ms until it is dropped, for a minute at most.
struct Signals {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Signals {
    fn start() -> Self {
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: all zero is a valid `sigaction`: no flags, so that calls are interrupted.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = nothing as *const () as usize;
        // SAFETY: `action` is valid, and its function may run at any moment.
        let set = unsafe { libc::sigaction(libc::SIGUSR1, &action, core::ptr::null_mut()) };
        assert_eq!(set, 0);
        let pid = rustix::process::getpid();
        let (own, (stop, stopped)) = (rustix::thread::gettid(), channel());
        let thread = std::thread::spawn(move || {
            for _ in 0..3000 {
                if stopped.recv_timeout(Duration::from_millis(20)) != Err(RecvTimeoutError::Timeout)
                {
                    return;
                }
                let (pid, own) = (pid.as_raw_nonzero().get(), own.as_raw_nonzero().get());
                // SAFETY: the signal has a handler, and goes to a thread of this process.
                unsafe { libc::syscall(libc::SYS_tgkill, pid, own, libc::SIGUSR1) };
            }
        });
        Self { stop, thread }
    }

    fn stop(self) {
        drop(self.stop);
        self.thread.join().unwrap();
    }
}

/// Profilers signal every few milliseconds.
#[test]
fn signals_do_not_prolong_the_wait_for_a_hung_daemon() {
    let daemon = Daemon::new("signals", 0);
    let path = daemon.directory.join("hung.sock");
    let _hung = gctd_ipc::socket::listen(&path, rustix::fs::Mode::RWXU).unwrap();
    let signals = Signals::start();
    let started = Instant::now();
    let tenant = Tenant::new(&path);
    let waited = started.elapsed();
    signals.stop();
    assert!(!tenant.link.connected());
    assert_eq!(tenant.link.failure(), Some(Failure::Absent(Errno::AGAIN)));
    assert!(waited < Duration::from_secs(30), "{waited:?}");
}

#[test]
fn a_full_backlog_does_not_block_a_tenant() {
    let daemon = Daemon::new("full", 0);
    let path = daemon.directory.join("full.sock");
    let listener = gctd_ipc::socket::listen(&path, rustix::fs::Mode::RWXU).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let connect = || gctd_ipc::socket::connect(&path, Duration::from_millis(50));
    let waiting: Vec<_> = std::iter::from_fn(|| connect().ok()).take(64).collect();
    assert!(waiting.len() < 64, "the backlog is full");
    let started = Instant::now();
    let mut tenant = Tenant::new(&path);
    assert!(!tenant.link.connected() && started.elapsed() < Duration::from_secs(3));
    let started = Instant::now();
    assert!(tenant.memory(MEMORY, 1 << 40), "no limit binds its memory");
    assert!(
        started.elapsed() < Duration::from_millis(900),
        "without waiting"
    );
    // It is left alone for three seconds, then for six, then for twelve.
    let tries = [4, 6, 11, 13, 24, 26].map(|second| {
        let started = Instant::now();
        assert!(!tenant.link.maintain(second * 1_000_000_000));
        started.elapsed() > Duration::from_millis(500)
    });
    assert_eq!(tries, [false, true, false, true, false, true]);
}

/// Checks that a tenant waits once for a daemon that hangs, however long it does, and connects as
/// soon as it answers, or a new one has its place.
#[test]
fn a_daemon_that_hung_is_known_to_serve_again_at_once() {
    const SECOND: u64 = 1_000_000_000;
    let daemon = Process::start("unhung", 1);
    let mut links = [(); 2].map(|()| Link::new(daemon.paths().tenants));
    kill_process(daemon.pid(), Signal::STOP).unwrap();
    let waits = |link: &mut Link, second: u64| {
        let started = Instant::now();
        assert!(!link.maintain(second * SECOND));
        started.elapsed() > Duration::from_millis(900)
    };
    for link in &mut links {
        let waited: Vec<u64> = (1..40).filter(|at| waits(link, *at)).collect();
        assert_eq!(waited, [1]);
        assert_eq!(link.failure(), Some(Failure::Absent(Errno::AGAIN)));
    }
    let [one, other] = &mut links;
    kill_process(daemon.pid(), Signal::CONT).unwrap();
    eventually(&true, || one.maintain(40 * SECOND));
    assert!(other.maintain(40 * SECOND));
}

#[test]
fn the_successor_of_a_daemon_that_hung_is_found_within_a_second() {
    const SECOND: u64 = 1_000_000_000;
    let mut daemon = Process::start("unhung-new", 1);
    let mut link = Link::new(daemon.paths().tenants);
    kill_process(daemon.pid(), Signal::STOP).unwrap();
    (1..40).for_each(|second| assert!(!link.maintain(second * SECOND)));
    daemon.restart();
    let found = (40..).take(2).find(|second| link.maintain(second * SECOND));
    assert!(found.is_some(), "{:?}", link.failure());
}
