// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A daemon and a library of different versions work together, or learn why they cannot.

mod common;

use common::{connect, member, Tenant, DEVICE, TSG};
use gct_core::rmapi::escape;
use gctd::testing::{alloc, greeted, Daemon};
use gctd_ipc::greeting::Failure;
use gctd_ipc::message::{encode, Ioctl, Reply, Request};
use gctd_ipc::page::Page;
use gctd_ipc::shared::Shared;
use gctd_ipc::socket;
use gctd_ipc::tenant::{Link, Verdict};
use gctd_ipc::versions::{Versions, VERSIONS};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::Mode;
use rustix::net::{acceptfrom, shutdown, Shutdown};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

const CLIENT: u32 = 0xc1d0_0019;
const MEMORY: u32 = 0x5c00_0040;

fn range(lowest: u32, highest: u32) -> Versions {
    Versions::from(lowest << 16 | highest)
}

/// Returns the highest version of this build, and the next.
fn next() -> Versions {
    let highest = u32::from(VERSIONS) & 0xffff;
    range(highest, highest + 1)
}

/// Sends a packet.
fn send(socket: &OwnedFd, packet: &[u8]) {
    assert_eq!(rustix::io::write(socket, packet), Ok(packet.len()));
}

/// Receives the bytes of the next packet; none if the other side has closed the connection.
fn receive(socket: &OwnedFd) -> Vec<u8> {
    let mut packet = vec![0; 4096];
    let bytes = rustix::io::read(socket, &mut packet).unwrap_or(0);
    packet.truncate(bytes);
    packet
}

/// Makes a channel group and allocates a page of device memory, as the library does. `behind` is
/// behind each message. Returns the answer to the allocation and the limits of the page.
fn use_gpu(socket: &OwnedFd, behind: &[u8]) -> (Vec<u8>, Shared<Page>) {
    let send = |request: &Request| send(socket, &[&encode(request), behind].concat());
    let ioctl = |bytes, hint| Ioctl {
        escape: escape::ALLOC,
        bytes,
        hint,
    };
    for bytes in [
        alloc(0, 0, CLIENT, 0x41),
        alloc(CLIENT, CLIENT, DEVICE, 0x80),
        alloc(CLIENT, DEVICE, TSG, 0xa06c),
    ] {
        send(&Request::Leave {
            ioctl: ioctl(bytes, Some(0)),
            granted: None,
        });
    }
    let (client, object) = (CLIENT, TSG);
    send(&Request::OpenPage { client, object });
    let (reply, fds) = socket::receive::<Reply>(socket.as_fd()).unwrap();
    assert!(matches!(reply, Reply::Page { minor: 0, .. }), "{reply:?}");
    let page = Shared::open(fds.first().unwrap().as_fd()).unwrap();
    send(&Request::PageMapped { minor: 0 });
    assert_eq!(receive(socket), [1], "done");
    let memory = alloc(CLIENT, DEVICE, MEMORY, 0x40);
    send(&Request::Charge(ioctl(memory, Some(4096))));
    (receive(socket), page)
}

/// Checks that a library is served after this greeting, which gets this answer.
fn is_served(test: &str, hello: &[u8], answer: &[u8], behind: &[u8]) {
    let daemon = Daemon::new(test, 1);
    let client = member(&daemon);
    client.write("web/0/gmem.limit", "8192").unwrap();
    let library = connect(&daemon);
    send(&library, hello);
    assert_eq!(receive(&library), answer);
    let (granted, page) = use_gpu(&library, behind);
    assert_eq!(granted.first(), Some(&2), "{granted:?}");
    assert_eq!(page.limits().unwrap().1.gmem_limit, 8192);
    page.fault(31);
    let events = client.read("web/0/compute.events").unwrap();
    assert!(events.contains("last_xid 31\n"), "{events}");
}

#[test]
fn a_library_of_version_18_is_served() {
    is_served("older", &[0, 18, 1], &[0, 18], &[]);
}

#[test]
fn a_library_of_the_next_version_is_served() {
    let hello = encode(&Request::Hello {
        versions: next(),
        tenant: true,
    });
    is_served("newer", &hello, &encode(&greeted()), &[7, 0xff, 0xff]);
}

/// Checks that refused greetings are counted, whoever sends them.
#[test]
fn a_library_of_other_versions_is_counted() {
    let daemon = Daemon::new("counted", 1);
    let version = || {
        let events = daemon.client().read("events").unwrap();
        let line = events
            .lines()
            .find_map(|line| line.strip_prefix("version "));
        line.unwrap().to_owned()
    };
    assert_eq!(version(), "0");
    let hello = |versions, tenant| encode(&Request::Hello { versions, tenant });
    for packet in [
        vec![0, 17, 1],
        hello(range(1000, 1001), true),
        hello(range(1000, 1001), false),
        hello(range(u16::MAX.into(), 0), true),
    ] {
        let other = connect(&daemon);
        send(&other, &packet);
        let versions = VERSIONS;
        assert_eq!(receive(&other), encode(&Reply::Hello { versions }));
        assert_eq!(receive(&other), [] as [u8; 0], "it is closed");
    }
    assert_eq!(version(), "4");
}

/// What a daemon answers to a packet, and whether it then closes the connection.
type Answer = fn(&[u8]) -> (Vec<u8>, bool);

/// A daemon that answers by a function.
struct Fake {
    path: PathBuf,
    listener: Arc<OwnedFd>,
}

impl Fake {
    fn new(test: &str, answer: Answer) -> Self {
        let name = format!("gctd-fake-{test}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // One of an earlier process with this number.
        let _ = std::fs::remove_file(&path);
        let listener = Arc::new(socket::listen(&path, Mode::RWXU).unwrap());
        let accepting = listener.clone();
        std::thread::spawn(move || {
            while let Ok(connection) = acceptfrom(&*accepting).map(|(socket, _)| socket) {
                loop {
                    let packet = receive(&connection);
                    let (reply, closes) = answer(&packet);
                    if !reply.is_empty() {
                        send(&connection, &reply);
                    }
                    if packet.is_empty() || closes {
                        break;
                    }
                }
            }
        });
        Self { path, listener }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = shutdown(&*self.listener, Shutdown::Both);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Charges an allocation of device memory.
fn charge(tenant: &mut Tenant) -> Verdict {
    let structure = alloc(tenant.client, DEVICE, MEMORY, 0x40);
    tenant.ioctl(escape::ALLOC, &structure, Some(4096), 0)
}

/// Version 18 takes its own number alone, and no longer messages.
#[test]
fn a_daemon_of_version_18_is_used() {
    let fake = Fake::new("18", |packet| match packet {
        [0, 18, 1] => (vec![0, 18], false),
        [0, ..] => (vec![0, 18], true),
        [2, ..] => (vec![2, 7], false),
        _ => (vec![], false),
    });
    let mut tenant = Tenant::new(&fake.path);
    assert_eq!(tenant.link.failure(), None);
    assert_eq!(charge(&mut tenant), Verdict::Granted(7));
    assert!(tenant.link.connected());
}

#[test]
fn a_daemon_of_the_next_version_is_used() {
    let fake = Fake::new("20", |packet| match packet {
        [0, ..] => ([encode(&greeted()), vec![7, 7]].concat(), false),
        [2, ..] => (vec![2, 7, 7, 0xff], false),
        _ => (vec![], false),
    });
    let mut tenant = Tenant::new(&fake.path);
    assert_eq!(tenant.link.failure(), None);
    assert_eq!(charge(&mut tenant), Verdict::Granted(7));
    assert!(tenant.link.connected());
}

#[test]
fn a_daemon_of_other_versions_is_named_and_asked_ever_more_seldom() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    const SECOND: u64 = 1_000_000_000;
    let answer: Answer = |packet| {
        ASKED.fetch_add(usize::from(!packet.is_empty()), Ordering::SeqCst);
        let versions = range(1000, 1001);
        (encode(&Reply::Hello { versions }), true)
    };
    let fake = Fake::new("1000", answer);
    let mut tenant = Tenant::new(&fake.path);
    let failure = tenant.link.failure();
    assert_eq!(failure, Some(Failure::Versions(range(1000, 1001))));
    assert_eq!(charge(&mut tenant), Verdict::NotAsked, "it is granted");
    let mut link = Link::new(&fake.path);
    let mut asks = |second: &u64| {
        let before = ASKED.load(Ordering::SeqCst);
        assert!(!link.maintain(second * SECOND));
        ASKED.load(Ordering::SeqCst) > before
    };
    let asked: Vec<u64> = (0..170).filter(&mut asks).collect();
    assert_eq!(asked, [0, 3, 9, 21, 45, 93, 153]);
}

/// A daemon that always says 18 could keep a library busy.
#[test]
fn a_daemon_that_lies_is_left() {
    let closes: Answer = |_| (vec![0, 18], true);
    let fake = Fake::new("liar", closes);
    let mut tenant = Tenant::new(&fake.path);
    assert_eq!(charge(&mut tenant), Verdict::NotAsked);
    assert!(!tenant.link.connected());
    // Lengths that no packet has.
    let long: Answer = |packet| match packet {
        [0, ..] => (encode(&greeted()), false),
        _ => (vec![5, 0xff, 0xff, 0xff, 0xff, 0x0f], false),
    };
    let fake = Fake::new("long", long);
    let mut tenant = Tenant::new(&fake.path);
    assert!(tenant.link.connected());
    assert!(tenant.link.peers(0).is_none());
    assert!(!tenant.link.connected());
}
