// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests that a process reports press the others while its group has a goal, and give owners of
//! its rank short time slices whose requests are longer.

mod common;

use common::{eventually, own, Tenant};
use gct_core::units::Ns;
use gctd::testing::{Client, Daemon};
use gctd_ipc::page::Limits;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a service's slow requests take, and its others.
const SLOW: Ns = Ns(5_000_000);
const FAST: Ns = Ns(100_000);

/// Reports requests, slow ones until a file appears. It is the program of [`Service`], not a test.
#[test]
fn service() {
    let Some(path) = std::env::var_os("GCTD_TEST_SERVICE") else {
        return;
    };
    let mut tenant = Tenant::new(path.as_ref());
    let gpu = tenant.cuda(0);
    let calm = std::env::var_os("GCTD_TEST_CALM").unwrap();
    for _ in 0..600 {
        // So many fast ones pay for the slow ones within a second.
        let (count, time) = match PathBuf::from(&calm).exists() {
            true => (20_000, FAST),
            false => (40, SLOW),
        };
        (0..count).for_each(|_| gpu.page.count_request(time));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A child process in the group `web`. Dropping it kills the child.
struct Service {
    child: Child,
    calm: PathBuf,
}

impl Service {
    fn start(daemon: &Daemon, client: &Client) -> Self {
        let program = std::env::current_exe().unwrap();
        let calm = daemon.socket().with_extension("calm");
        let child = Command::new("sh")
            .args(["-c", "read go; exec \"$@\"", "sh"])
            .arg(program)
            .args(["--exact", "service", "--nocapture"])
            .env("GCTD_TEST_SERVICE", daemon.socket())
            .env("GCTD_TEST_CALM", &calm)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut service = Self {
            child: child.unwrap(),
            calm,
        };
        client.write("control", "create web").unwrap();
        let pid = service.child.id().to_string();
        client.write("web/group.procs", pid).unwrap();
        drop(service.child.stdin.take());
        service
    }

    /// Has it report fast requests from now on.
    fn calm_down(&self) {
        std::fs::write(&self.calm, "").unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.calm);
    }
}

/// Returns a number of the service's `slo.stat`.
fn stat(client: &Client, key: &str) -> u64 {
    let text = client.read("web/0/slo.stat").unwrap();
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find(|(name, _)| *name == key);
    found.unwrap().1.parse().unwrap()
}

#[track_caller]
fn within(seconds: u64, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(
            started.elapsed() < Duration::from_secs(seconds),
            "it does not"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
fn stays(seconds: u64, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(seconds) {
        assert!(holds(), "it does not stay");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn others_are_pressed_while_requests_are_slow_and_get_everything_back() {
    let daemon = Daemon::new("goals", 1);
    let client = daemon.client();
    let service = Service::start(&daemon, &client);
    let mut batch = Tenant::of(&daemon);
    let gpu = batch.cuda(0);
    let limits = || gpu.page.limits().map_or(Limits::NONE, |(_, limits)| limits);
    let free = limits();
    assert_eq!(client.write("web/0/slo.p99", "1ms"), Ok(()));
    within(20, || limits().launches.pressed);
    assert!(limits().launches.rank.best_effort && limits().launches.tpcs.is_none());
    let slots = gpu.board.slots().map(|(_, slot)| slot);
    let orders: Vec<bool> = slots.map(|slot| slot.best_effort).collect();
    assert_eq!(
        orders.iter().filter(|order| **order).count(),
        1,
        "{orders:?}"
    );
    assert_eq!(client.read(&own("tpc.quota")), Ok("none\n".into()));
    within(20, || limits().launches.taken > 0);
    assert_eq!(limits().launches.tpcs, None, "what was written stays");
    assert_eq!(
        (stat(&client, "met"), stat(&client, "p99_usec") / 1_000),
        (0, 5)
    );
    service.calm_down();
    within(20, || stat(&client, "met") == 1);
    let level = stat(&client, "level");
    assert!(level > 0 && stat(&client, "requests") > 200);
    within(40, || stat(&client, "level") < level);
    assert_eq!(client.write("web/0/slo.p99", "max"), Ok(()));
    assert_eq!(limits(), free, "at once");
    assert_eq!(stat(&client, "requests"), 0);
}

#[test]
fn a_goal_goes_with_its_group() {
    let daemon = Daemon::new("goals-go", 1);
    let client = daemon.client();
    let service = Service::start(&daemon, &client);
    let mut batch = Tenant::of(&daemon);
    let gpu = batch.cuda(0);
    let pressed = || {
        gpu.page
            .limits()
            .is_some_and(|(_, limits)| limits.launches.pressed)
    };
    assert_eq!(client.write("web/0/slo.p99", "1ms"), Ok(()));
    within(20, pressed);
    // An owner with a goal of its own is left alone.
    assert_eq!(client.write(&own("slo.p99"), "1s"), Ok(()));
    eventually(&false, pressed);
    assert_eq!(client.write(&own("slo.p99"), "max"), Ok(()));
    eventually(&true, pressed);
    drop(service);
    within(10, || client.write("control", "remove web").is_ok());
    within(10, || !pressed());
}

#[test]
fn the_longer_requests_of_a_rank_yield() {
    let daemon = Daemon::new("lengths", 1);
    let client = daemon.client();
    let service = Service::start(&daemon, &client);
    let mut batch = Tenant::of(&daemon);
    let gpu = batch.cuda(0);
    let slice = || {
        // Between those that the service reports before and after.
        (0..10).for_each(|_| gpu.page.count_request(Ns(1_000_000)));
        let limits = gpu.page.limits().map_or(Limits::NONE, |(_, limits)| limits);
        (limits.timeslice_us, limits.yields)
    };
    for path in ["web/0/compute.priority", &own("compute.priority")] {
        assert_eq!(client.write(path, "3"), Ok(()));
    }
    // The service's take five times as long.
    stays(3, || slice() == (0, false));
    service.calm_down();
    within(20, || slice() == (500, true));
    assert_eq!(
        client.read(&own("compute.timeslice")),
        Ok("default\n".into())
    );
    assert_eq!(client.write(&own("compute.timeslice"), "3ms"), Ok(()));
    stays(2, || slice() == (3_000, false));
    assert_eq!(client.write(&own("compute.timeslice"), "default"), Ok(()));
    within(20, || slice() == (500, true));
    assert_eq!(client.write(&own("compute.priority"), "4"), Ok(()));
    within(20, || slice() == (0, false));
    assert_eq!(client.write(&own("compute.priority"), "3"), Ok(()));
    within(20, || slice() == (500, true));
    drop(service);
    within(40, || slice() == (0, false));
}
