// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that what a tenant sends, and its end, cost gctd time in proportion: a neighbour that
//! charges memory meanwhile waits for its turn.

mod common;

use common::{connect, hello, Tenant, DEVICE, TSG};
use gct_core::rmapi::escape;
use gctd::testing::{alloc, free, Daemon};
use gctd_ipc::message::{Ioctl, Paged, Reply, Request};
use gctd_ipc::socket;
use gctd_ipc::versions::VERSIONS;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::SendFlags;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The connections that a process may have.
const PAGES: usize = 16;
const CLIENT: u32 = 0xc1d0_0019;
const OBJECT: u32 = 0x5d00_0000;

/// Sends so many messages of a kind, or returns so many processes, whose end is looked at instead.
type Flood = fn(&Daemon, usize) -> Vec<Child>;

/// Returns the numbers of objects.
fn objects(count: usize) -> impl Iterator<Item = u32> {
    (OBJECT..).take(count)
}

/// Makes as many pages as a process may have. It is the program of [`pages`], not a test.
#[test]
fn process() {
    let Some(path) = std::env::var_os("GCTD_TEST_TENANT") else {
        return;
    };
    let tenants = [(); PAGES].map(|()| {
        let mut tenant = Tenant::new(path.as_ref());
        tenant.cuda(0);
        tenant
    });
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    drop(tenants);
}

/// Starts processes with [`PAGES`] pages each, which are to end.
fn pages(daemon: &Daemon, processes: usize) -> Vec<Child> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "process", "--nocapture"])
        .env("GCTD_TEST_TENANT", daemon.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let start = || command.spawn().unwrap();
    let mut children: Vec<Child> = std::iter::repeat_with(start).take(processes).collect();
    for child in &mut children {
        let output = BufReader::new(child.stdout.as_mut().unwrap());
        assert!(output.lines().any(|line| line.unwrap().ends_with("ready")));
    }
    children
}

fn connections(daemon: &Daemon, count: usize) -> Vec<Child> {
    (0..count).for_each(|_| drop(Tenant::of(daemon)));
    vec![]
}

/// A connection with a device, which sends without looking at what it has sent before.
struct Raw(OwnedFd);

impl Raw {
    fn of(daemon: &Daemon) -> Self {
        let raw = Self(connect(daemon));
        hello(&raw.0, VERSIONS, true);
        socket::receive::<Reply>(raw.0.as_fd()).unwrap();
        raw.alloc([0, 0, CLIENT, 0x41]);
        raw.alloc([CLIENT, CLIENT, DEVICE, 0x80]);
        raw
    }

    fn send(&self, request: &Request) {
        socket::send(self.0.as_fd(), request, &[], SendFlags::empty()).unwrap();
    }

    /// Makes an object: client, parent, handle, class.
    fn alloc(&self, [client, parent, object, class]: [u32; 4]) {
        let bytes = alloc(client, parent, object, class);
        let (escape, hint) = (escape::ALLOC, Some(0));
        let ioctl = Ioctl {
            escape,
            bytes,
            hint,
        };
        self.send(&Request::Leave {
            ioctl,
            granted: None,
        });
    }

    fn free(&self, object: u32) {
        let (escape, bytes, hint) = (escape::FREE, free(CLIENT, object), None);
        let ioctl = Ioctl {
            escape,
            bytes,
            hint,
        };
        self.send(&Request::Enter(ioctl.clone()));
        self.send(&Request::Leave {
            ioctl,
            granted: None,
        });
    }
}

fn objects_beside_each_other(daemon: &Daemon, count: usize) -> Vec<Child> {
    let raw = Raw::of(daemon);
    objects(count).for_each(|object| raw.alloc([CLIENT, DEVICE, object, 0xa06c]));
    objects(count).for_each(|object| raw.free(object));
    vec![]
}

fn objects_below_each_other(daemon: &Daemon, count: usize) -> Vec<Child> {
    let raw = Raw::of(daemon);
    let mut parent = DEVICE;
    for object in objects(count) {
        raw.alloc([CLIENT, parent, object, 0xa06c]);
        parent = object;
    }
    raw.free(DEVICE);
    vec![]
}

fn clients(daemon: &Daemon, count: usize) -> Vec<Child> {
    let raw = Raw::of(daemon);
    objects(count).for_each(|client| raw.alloc([0, 0, client, 0x41]));
    vec![]
}

fn charges(daemon: &Daemon, count: usize) -> Vec<Child> {
    let mut tenant = Tenant::of(daemon);
    tenant.cuda(0);
    assert!(objects(count).all(|object| tenant.memory(object, 4096)));
    vec![]
}

fn ranges(daemon: &Daemon, count: usize) -> Vec<Child> {
    let mut tenant = Tenant::of(daemon);
    tenant.cuda(0);
    assert!((0..count).all(|_| tenant.charge_managed(4096).is_some()));
    vec![]
}

fn acknowledgements(daemon: &Daemon, count: usize) -> Vec<Child> {
    let mut tenant = Tenant::of(daemon);
    tenant.cuda(0);
    (1..)
        .take(count)
        .for_each(|at| tenant.link.ack(0, at, None));
    vec![]
}

fn questions(daemon: &Daemon, count: usize) -> Vec<Child> {
    let mut tenant = Tenant::of(daemon);
    tenant.cuda(0);
    for host in (1..).take(count) {
        let paged = Paged { host, device: 0 };
        let _ = tenant.link.repage(0, paged, 0, false);
        tenant.link.memory_view(tenant.client, DEVICE);
        tenant.link.dependable_tpcs(0);
        tenant.link.peers(0);
    }
    vec![]
}

fn mapped(daemon: &Daemon, count: usize) -> Vec<Child> {
    let raw = Raw::of(daemon);
    raw.alloc([CLIENT, DEVICE, TSG, 0xa06c]);
    let (client, object) = (CLIENT, TSG);
    raw.send(&Request::OpenPage { client, object });
    socket::receive::<Reply>(raw.0.as_fd()).unwrap();
    for _ in 0..count {
        raw.send(&Request::PageMapped { minor: 0 });
        socket::receive::<Reply>(raw.0.as_fd()).unwrap();
    }
    vec![]
}

fn reads(daemon: &Daemon, count: usize) -> Vec<Child> {
    let mut tenant = Tenant::of(daemon);
    tenant.cuda(0);
    let reader = daemon.reader();
    let file = common::own("compute.stat");
    assert!((0..count).all(|_| reader.read(&file).is_ok()));
    vec![]
}

/// Waits until a daemon rests: for three looks in a row, since others may have the processors in
/// one. Returns how long it has computed.
fn rests(daemon: &Daemon) -> Duration {
    let (mut since, mut quiet) = (daemon.busy(), 0);
    while quiet < 3 {
        std::thread::sleep(Duration::from_millis(50));
        let now = daemon.busy();
        quiet = match now - since < Duration::from_micros(200) {
            true => quiet + 1,
            false => 0,
        };
        since = now;
    }
    since
}

/// Returns how long a new daemon computes for a flood, or for the end of the processes that it
/// returns.
fn cost(name: &str, flood: Flood, count: usize) -> Duration {
    let daemon = Daemon::new(name, 1);
    let mut before = rests(&daemon);
    let mut children = flood(&daemon, count);
    if !children.is_empty() {
        before = rests(&daemon);
    }
    children.iter_mut().for_each(|child| child.kill().unwrap());
    children.iter_mut().for_each(|child| _ = child.wait());
    rests(&daemon) - before
}

/// Returns what a flood costs beside so many processes with [`PAGES`] pages each, all of them in a
/// group under a limit of memory.
fn cost_beside(name: &str, flood: Flood, count: usize, others: usize) -> Duration {
    let daemon = Daemon::new(&format!("crowd-{name}"), 1);
    let admin = common::member(&daemon);
    admin.write("web/0/gmem.limit", "100G").unwrap();
    let mut crowd = pages(&daemon, others);
    let before = rests(&daemon);
    flood(&daemon, count);
    let cost = rests(&daemon) - before;
    crowd.iter_mut().for_each(|child| child.kill().unwrap());
    crowd.iter_mut().for_each(|child| _ = child.wait());
    cost
}

/// What a tenant sends costs some more beside many, who have to be told. Beside eight times as many
/// it may cost three times as much.
#[test]
fn what_a_tenant_sends_costs_no_more_beside_a_crowd() {
    for (name, flood, count) in [
        ("connections", connections as Flood, 200),
        ("beside", objects_beside_each_other, 2000),
        ("charges", charges, 2000),
        ("acknowledgements", acknowledgements, 4000),
        ("mapped", mapped, 2000),
        ("reads", reads, 500),
    ] {
        let [few, many] = [5, 40].map(|others| cost_beside(name, flood, count, others));
        println!("{name}: {few:?}, then {many:?}");
        assert!(many < 3 * few, "{name}: {few:?}, then {many:?}");
    }
}

/// Four times as much may cost eight times as much. In quadratic time it costs sixteen times.
#[test]
fn a_tenant_costs_what_it_sends() {
    for (name, flood, count) in [
        ("ends", pages as Flood, 10),
        ("connections", connections, 200),
        ("beside", objects_beside_each_other, 2000),
        ("below", objects_below_each_other, 2000),
        ("clients", clients, 2000),
        ("charges", charges, 2000),
        ("ranges", ranges, 2000),
        ("acknowledgements", acknowledgements, 2000),
        ("questions", questions, 500),
        ("reads", reads, 200),
    ] {
        let [few, many] = [count, 4 * count].map(|count| cost(name, flood, count));
        println!("{name}: {few:?}, then {many:?}");
        assert!(many < 8 * few, "{name}: {few:?}, then {many:?}");
    }
}
