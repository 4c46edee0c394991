// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `gctd --clocks` with a library in place of NVML: what is called, in which order, and that the
//! highest clock is given back. No GPU is touched.

mod common;

use common::nvml::{until, Daemon, Library};
use common::{copy_program, Tenant};
use gct_core::policy::clock::kernels::Sums;
use gct_core::policy::clock::Clock;
use gct_core::units::Ns;
use gctd::testing::Client;
use gctd_ipc::page::Limits;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

const EOPNOTSUPP: i32 = 95;

/// Work that is reported: so many thousandths of it depend on the clock.
struct Work {
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Reports work on a GPU ten times a second.
fn report(gpu: &gctd_ipc::tenant::Gpu, part: u64, done: u64) {
    let mut time = gct_core::gpu_time::GpuTime::ZERO;
    time.used = Ns(done);
    gpu.page.set_time(&time, 0);
    gpu.page.set_clock_sums(&Sums {
        base: Ns(done),
        sensitive: Ns(done * part / 1000),
        fresh: Ns(0),
    });
}

impl Work {
    fn new(gpu: Arc<gctd_ipc::tenant::Gpu>, part: u64) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let end = ends.clone();
        let thread = std::thread::spawn(move || {
            let mut done = 0;
            while !end.load(Ordering::Relaxed) {
                done += 50_000_000;
                report(&gpu, part, done);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Self {
            ends,
            thread: Some(thread),
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Creates a group with a slip and this process in it, once the daemon can.
fn slipping(daemon: &Daemon, slip: &str) -> Client {
    let client = daemon.client();
    client.write("control", "create web").unwrap();
    client.write("web/group.procs", "0").unwrap();
    until(|| client.read("gpus/0/clock.stat").is_ok());
    client.write("web/0/slip.power", slip).unwrap();
    client
}

fn stat(client: &Client, path: &str, key: &str) -> u64 {
    let text = client.read(path).unwrap();
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find(|(name, _)| *name == key);
    found
        .unwrap_or_else(|| panic!("{key} in {text}"))
        .1
        .parse()
        .unwrap()
}

fn locked(daemon: &Daemon) -> Vec<String> {
    let log = daemon.log();
    log.into_iter()
        .filter(|call| call.starts_with("lock"))
        .collect()
}

/// Returns the last lock or reset.
fn last(daemon: &Daemon) -> String {
    let log = daemon.log();
    let mut clocks = log
        .iter()
        .filter(|call| call.starts_with("lock") || *call == "reset");
    clocks.next_back().cloned().unwrap_or_default()
}

fn limits(gpu: &gctd_ipc::tenant::Gpu) -> Limits {
    gpu.page.limits().map_or(Limits::NONE, |(_, limits)| limits)
}

/// Checks the clocks of a program half of whose time is the cores': 1 / 1.1 first, as if all were,
/// then lower, to 1 / (1 + 0.1 / 0.5) and no further. SIGTERM gives the highest one back.
#[test]
fn the_clock_follows_the_slip_and_is_given_back_at_the_end() {
    let mut daemon = Daemon::new("follows", &["--clocks"]);
    let client = slipping(&daemon, "10");
    let mut tenant = Tenant::new(&daemon.socket());
    let gpu = tenant.cuda(0);
    assert_eq!(
        daemon.log(),
        ["init", "reset"],
        "nothing before there is work"
    );
    let work = Work::new(gpu.clone(), 500);
    until(|| limits(&gpu).launches.clock == Some(Clock::FULL));
    until(|| limits(&gpu).launches.clock.is_none());
    until(|| locked(&daemon) == ["lock 200 1820"]);
    until(|| limits(&gpu).launches.clock == Clock::new(910));
    assert_eq!(stat(&client, "gpus/0/clock.stat", "mhz"), 1820);
    assert_eq!(stat(&client, "gpus/0/clock.stat", "highest_mhz"), 2000);
    // 1680 MHz would be within the slip, and too large a step: 1 / 1.1 of what it is slower now.
    until(|| last(&daemon) == "lock 200 1700");
    until(|| stat(&client, "gpus/0/clock.stat", "mhz") == 1700);
    let locks = locked(&daemon);
    until(|| stat(&client, "web/0/compute.stat", "clock_sensitivity") == 500);
    let asks = stat(&client, "web/0/compute.stat", "clock_mhz");
    assert!((1680..=1700).contains(&asks), "{asks}");
    let changes = stat(&client, "gpus/0/clock.stat", "changes");
    assert_eq!(changes, locks.len() as u64);
    drop(work);
    let text = daemon.end();
    let log = daemon.log();
    assert_eq!(
        log[log.len() - 3..],
        ["lock 200 1700", "reset", "shutdown"],
        "{text}"
    );
}

/// Checks that a stranger's context, a neighbour's work, and the end of the slip give the highest
/// clock back.
#[test]
fn who_tolerates_no_lower_clock_has_the_highest_one() {
    let daemon = Daemon::new("others", &["--clocks"]);
    let client = slipping(&daemon, "20");
    let mut tenant = Tenant::new(&daemon.socket());
    let gpu = tenant.cuda(0);
    let _work = Work::new(gpu.clone(), 1000);
    let low = "lock 200 1680";
    until(|| last(&daemon) == low);
    // The server of MPS has a context and no work of its own.
    let server = Server::start(&daemon);
    daemon.has_contexts(&[std::process::id(), server.0.id()]);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(last(&daemon), low);
    daemon.has_contexts(&[std::process::id(), 1]);
    until(|| last(&daemon) == "reset");
    daemon.has_contexts(&[std::process::id()]);
    until(|| last(&daemon) == low);
    let neighbour = Neighbour::start(&daemon);
    daemon.has_contexts(&[std::process::id(), neighbour.0.id()]);
    // It has its parent's group. Its own file says that it tolerates nothing.
    let own = format!("{}/0/slip.power", neighbour.0.id());
    until(|| client.write(&own, "0").is_ok());
    until(|| last(&daemon) == "reset");
    let path = format!("{}/0/compute.stat", neighbour.0.id());
    until(|| stat(&client, &path, "clock_mhz") == 2000);
    drop(neighbour);
    daemon.has_contexts(&[std::process::id()]);
    until(|| last(&daemon) == low);
    // Channels that the library does not manage, such as those of Vulkan.
    gpu.page.set_unmanaged([1].into_iter());
    until(|| last(&daemon) == "reset");
    gpu.page.set_unmanaged([0].into_iter());
    until(|| last(&daemon) == low);
    client.write("web/0/slip.power", "0").unwrap();
    until(|| last(&daemon) == "reset");
    until(|| stat(&client, "gpus/0/clock.stat", "mhz") == 2000);
}

/// A process that has the name of the server of MPS.
struct Server(Child);

impl Server {
    fn start(daemon: &Daemon) -> Self {
        let program = daemon.directory.join("nvidia-cuda-mps-server");
        copy_program("/bin/sleep", &program);
        let child = Command::new(program).arg("600").spawn();
        Self(child.unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process without a slip that works.
struct Neighbour(Child);

impl Neighbour {
    fn start(daemon: &Daemon) -> Self {
        let program = std::env::current_exe().unwrap();
        let child = Command::new(program)
            .args(["--exact", "neighbour", "--nocapture"])
            .env("GCTD_TEST_NEIGHBOUR", daemon.socket())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Works for a minute. It is the program of [`Neighbour`], not a test.
#[test]
fn neighbour() {
    let Some(path) = std::env::var_os("GCTD_TEST_NEIGHBOUR") else {
        return;
    };
    let mut tenant = Tenant::new(path.as_ref());
    let _work = Work::new(tenant.cuda(0), 0);
    std::thread::sleep(Duration::from_secs(60));
}

/// Checks that a refused change is said, and leaves the limit and the highest clock.
#[test]
fn a_refused_change_is_said() {
    let mut daemon = Daemon::new("refused", &["--clocks"]);
    std::fs::write(daemon.directory.join("fails"), "").unwrap();
    let client = slipping(&daemon, "20");
    let mut tenant = Tenant::new(&daemon.socket());
    let gpu = tenant.cuda(0);
    let _work = Work::new(gpu.clone(), 1000);
    until(|| locked(&daemon).len() == 1);
    until(|| last(&daemon) == "reset");
    until(|| stat(&client, "gpus/0/clock.stat", "errors") == 1);
    assert_eq!(stat(&client, "gpus/0/clock.stat", "mhz"), 2000);
    until(|| limits(&gpu).launches.clock == Some(Clock::FULL));
    assert_eq!(client.read("web/0/slip.power"), Ok("20\n".into()));
    let text = daemon.end();
    assert!(text.contains("cannot change the clock: NVML: "), "{text}");
    assert_eq!(locked(&daemon).len(), 1, "it rests");
}

#[test]
fn without_the_option_or_the_library_no_clock_is_touched() {
    let refused = |daemon: &Daemon| {
        let client = daemon.client();
        client.write("control", "create web").unwrap();
        let gpu = client.read("gpus/0/features").unwrap();
        assert!(!gpu.contains("slip.power"), "{gpu}");
        assert_eq!(client.write("web/0/slip.power", "5"), Err(EOPNOTSUPP));
        assert_eq!(client.read("gpus/0/clock.stat"), Err(EOPNOTSUPP));
    };
    let daemon = Daemon::new("without", &[]);
    refused(&daemon);
    assert_eq!(daemon.log(), [""; 0]);
    let mut daemon = Daemon::with_library("bare", &["--clocks"], Library::Broken);
    std::thread::sleep(Duration::from_secs(2));
    refused(&daemon);
    let text = daemon.end();
    assert!(text.contains("cannot change clocks: NVML: "), "{text}");
}
