// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The daemon and its tenants survive clients that break the protocol.

mod common;

use common::{connect, eventually, hello, lives, member, own, Tenant, DEVICE, TSG};
use gct_core::limits::OBJECTS_OF_PROC_MAX;
use gct_core::rmapi::escape;
use gctd::testing::{alloc, free, Daemon};
use gctd_ipc::message::{encode, Ioctl, Managed, Reply, Request};
use gctd_ipc::socket;
use gctd_ipc::versions::{Versions, VERSIONS};
use proptest::prelude::*;
use rustix::fd::AsFd;
use rustix::net::SendFlags;
use std::time::Duration;

const MEMORY: u32 = 0x5c00_0040;

fn manage(number: u64, bytes: u64) -> Request {
    Request::ChargeManaged(Managed { number, bytes })
}

#[test]
fn wrong_greetings_close_the_connection() {
    let daemon = Daemon::new("stranger", 1);
    let other = connect(&daemon);
    hello(&other, Versions::from(u32::MAX), true);
    let answer = socket::receive::<Reply>(other.as_fd()).unwrap().0;
    let versions = VERSIONS;
    assert_eq!(answer, Reply::Hello { versions });
    assert!(socket::receive::<Reply>(other.as_fd()).is_err());
    // No greeting, then two.
    let mute = connect(&daemon);
    socket::send(mute.as_fd(), &Request::More, &[], SendFlags::empty()).unwrap();
    assert!(socket::receive::<Reply>(mute.as_fd()).is_err());
    let twice = connect(&daemon);
    hello(&twice, VERSIONS, false);
    hello(&twice, VERSIONS, false);
    assert!(socket::receive::<Reply>(twice.as_fd()).is_ok());
    assert!(socket::receive::<Reply>(twice.as_fd()).is_err());
    assert!(lives(&daemon));
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let daemon = Daemon::new("deaf", 1);
    let deaf = connect(&daemon);
    hello(&deaf, VERSIONS, false);
    let list = Request::List {
        path: String::new(),
    };
    let mut sent = 0;
    while sent < 100_000 && socket::send(deaf.as_fd(), &list, &[], SendFlags::empty()).is_ok() {
        sent += 1;
    }
    assert!(sent < 100_000, "the daemon has not disconnected it");
    // What it has not read is memory of the daemon.
    let unread = std::iter::from_fn(|| socket::receive::<Reply>(deaf.as_fd()).ok());
    let unread = unread.count();
    assert!(unread < 40, "{unread}");
    assert!(lives(&daemon));
}

#[test]
fn objects_of_another_process_are_refused() {
    let daemon = Daemon::new("foreign", 1);
    let client = daemon.client();
    let mut victim = Tenant::of(&daemon);
    victim.cuda(0);
    assert!(victim.memory(MEMORY, 4096));
    let mut other = Tenant::of(&daemon);
    // It has an RM client of its own, but names the victim's.
    let own_client = 0xc1d0_0099;
    let root = alloc(0, 0, own_client, 0x41);
    other.ioctl(escape::ALLOC, &root, None, 0);
    assert!(other.memory(MEMORY + 1, 1 << 40));
    other.free(MEMORY);
    other.free(TSG);
    other.free(victim.client);
    assert!(other.link.gpu_of(victim.client, TSG).is_none());
    let current = || client.read(&own("gmem.current")).unwrap();
    eventually(&"4096\n".to_owned(), current);
    let events = client.read("events").unwrap();
    // One for `Ask`, one for its `Leave`, two for each of three frees.
    assert!(events.contains("\nclient 8\n"), "{events}");
    drop(other);
    assert_eq!(current(), "4096\n");
}

#[test]
fn managed_memory_of_any_size_is_survived() {
    let daemon = Daemon::new("managed", 1);
    let client = daemon.client();
    // Without a greeting.
    let mute = connect(&daemon);
    socket::send(mute.as_fd(), &manage(1, 1), &[], SendFlags::empty()).unwrap();
    assert!(socket::receive::<Reply>(mute.as_fd()).is_err());
    // Without a session.
    let reader = connect(&daemon);
    hello(&reader, VERSIONS, false);
    socket::receive::<Reply>(reader.as_fd()).unwrap();
    socket::send(reader.as_fd(), &manage(1, 1), &[], SendFlags::empty()).unwrap();
    assert!(socket::receive::<Reply>(reader.as_fd()).is_err());
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    tenant.link.uncharge_managed(u64::MAX);
    let huge = tenant.charge_managed(u64::MAX).unwrap();
    let current = || client.read(&own("gmem.current")).unwrap();
    assert_eq!(current(), format!("{}\n", u64::MAX));
    // The sum exceeds 64 bits: the range is granted, counted as an event, and not charged.
    let second = tenant.charge_managed(u64::MAX).unwrap();
    tenant.link.uncharge_managed(second);
    assert!(client.read("events").unwrap().contains("\ncharge 1\n"));
    client.write(&own("gmem.limit"), "max").unwrap();
    tenant.link.uncharge_managed(huge);
    tenant.link.uncharge_managed(huge);
    eventually(&"0\n".to_owned(), current);
    assert!(lives(&daemon));
}

#[test]
fn a_reused_number_replaces_its_range() {
    let daemon = Daemon::new("managed-twice", 1);
    let client = member(&daemon);
    let mut victim = Tenant::of(&daemon);
    victim.cuda(0);
    assert!(victim.charge_managed(4096).is_some());
    let tenant = connect(&daemon);
    hello(&tenant, VERSIONS, true);
    socket::receive::<Reply>(tenant.as_fd()).unwrap();
    let send = |request| socket::send(tenant.as_fd(), &request, &[], SendFlags::empty()).unwrap();
    for object in [
        alloc(0, 0, 0xc1d0_0077, 0x41),
        alloc(0xc1d0_0077, 0xc1d0_0077, DEVICE, 0x80),
        alloc(0xc1d0_0077, DEVICE, TSG, 0xa06c),
    ] {
        let ioctl = Ioctl {
            escape: escape::ALLOC,
            bytes: object,
            hint: Some(0),
        };
        let granted = None;
        send(Request::Leave { ioctl, granted });
    }
    send(Request::OpenPage {
        client: 0xc1d0_0077,
        object: TSG,
    });
    send(Request::AddManaged(Managed {
        number: 7,
        bytes: 1 << 20,
    }));
    send(manage(7, 1 << 18));
    for (number, bytes) in [(7, 1 << 16), (1, 1 << 12)] {
        send(Request::AddManaged(Managed { number, bytes }));
    }
    let current = || client.read("web/0/gmem.current").unwrap();
    eventually(&format!("{}\n", (1 << 16) + 2 * 4096), current);
    // Numbers of one connection do not affect another.
    for number in [7, 7, 1, 2] {
        send(Request::UnchargeManaged { number });
    }
    eventually(&"4096\n".to_owned(), current);
    let events = client.read("events").unwrap();
    assert!(events.contains("\ncharge 0\n"), "{events}");
}

/// Checks that ranges of sessions without a page count as objects of their process.
#[test]
fn ranges_without_a_page_are_bounded() {
    let daemon = Daemon::new("ranges", 1);
    let client = member(&daemon);
    let limited = || {
        let events = client.read("events").unwrap();
        let line = events.lines().find_map(|line| line.strip_prefix("limit "));
        line.unwrap().parse::<usize>().unwrap()
    };
    // The files of the sessions have objects, too.
    let ranges = OBJECTS_OF_PROC_MAX / 4 - 100;
    let sessions: Vec<_> = (0..5)
        .map(|_| {
            let tenant = connect(&daemon);
            hello(&tenant, VERSIONS, true);
            socket::receive::<Reply>(tenant.as_fd()).unwrap();
            tenant
        })
        .collect();
    for (at, tenant) in sessions.iter().enumerate() {
        assert_eq!(limited(), 0, "{at} sessions");
        for number in (0..).take(ranges) {
            let add = Request::AddManaged(Managed { number, bytes: 1 });
            socket::send(tenant.as_fd(), &add, &[], SendFlags::empty()).unwrap();
        }
        // Its answer follows what was sent before.
        let read = Request::Read {
            path: "version".into(),
        };
        socket::send(tenant.as_fd(), &read, &[], SendFlags::empty()).unwrap();
        socket::receive::<Reply>(tenant.as_fd()).unwrap();
    }
    let refused = limited();
    assert!((ranges - 500..ranges).contains(&refused), "{refused}");
    // What was tracked goes with its session, once the daemon has seen the end of that.
    drop(sessions);
    let tenants = std::iter::repeat_with(|| {
        let mut tenant = Tenant::of(&daemon);
        let gpu = tenant.try_cuda(0);
        std::thread::sleep(Duration::from_millis(20));
        gpu.map(|_| tenant)
    });
    let mut tenant = tenants.take(500).find_map(|tenant| tenant).unwrap();
    let refused = limited();
    assert!(tenant.charge_managed(4096).is_some());
    let current = || client.read(&own("gmem.current")).unwrap();
    eventually(&"4096\n".to_owned(), current);
    assert_eq!(limited(), refused);
}

#[test]
fn unexpected_descriptors_are_closed() {
    let daemon = Daemon::new("fds", 1);
    let sender = connect(&daemon);
    hello(&sender, VERSIONS, false);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let list = Request::List {
        path: "gpus".into(),
    };
    let before = open();
    let send = |_: &u32| {
        let fds = [sender.as_fd(); 20];
        socket::send(sender.as_fd(), &list, &fds, SendFlags::empty()).is_ok()
    };
    // Who reads no answer is disconnected in the end.
    assert!((0..50).take_while(send).count() > 5);
    assert!(lives(&daemon));
    assert!(
        open() < before + 100,
        "the daemon, in this process, closes them"
    );
}

/// Generates packets: most are requests, some are random bytes.
fn requests() -> impl Strategy<Value = Vec<u8>> {
    let object = prop_oneof![
        Just(0xc1d0_0019u32),
        Just(DEVICE),
        Just(TSG),
        Just(MEMORY),
        any::<u32>()
    ];
    let class = prop_oneof![
        Just(0x41u32),
        Just(0x80),
        Just(0xa06c),
        Just(0xc86f),
        Just(0x40),
        any::<u32>()
    ];
    let structure = (
        object.clone(),
        object.clone(),
        object.clone(),
        class,
        any::<bool>(),
    );
    let structure = structure.prop_map(|(client, parent, object, class, is_free)| {
        if is_free {
            free(client, object)
        } else {
            alloc(client, parent, object, class)
        }
    });
    let ioctl = (structure, prop::option::of(any::<u64>()));
    let ioctl = ioctl.prop_map(|(bytes, hint)| Ioctl {
        escape: if bytes.len() == 16 {
            escape::FREE
        } else {
            escape::ALLOC
        },
        bytes,
        hint,
    });
    let granted = prop::option::of(0u32..4);
    // Few numbers, so that they collide, and sizes of which sixty fit into 64 bits.
    let number = prop_oneof![0u64..4, any::<u64>()];
    let managed = (number.clone(), 0u64..1 << 57);
    let managed = managed.prop_map(|(number, bytes)| Managed { number, bytes });
    let request = prop_oneof![
        ioctl.clone().prop_map(Request::Enter),
        ioctl.clone().prop_map(Request::Charge),
        (ioctl, granted).prop_map(|(ioctl, granted)| Request::Leave { ioctl, granted }),
        (object.clone(), object.clone())
            .prop_map(|(client, object)| Request::MemoryView { client, object }),
        (object.clone(), object).prop_map(|(client, object)| Request::OpenPage { client, object }),
        managed.clone().prop_map(Request::ChargeManaged),
        managed.prop_map(Request::AddManaged),
        number.prop_map(|number| Request::UnchargeManaged { number }),
        (0u32..3).prop_map(|minor| Request::Peers { minor }),
        (0u32..3).prop_map(|minor| Request::PageMapped { minor }),
        ".{0,20}".prop_map(|path| Request::Read { path }),
        Just(Request::More),
    ];
    prop_oneof![
        4 => request.prop_map(|request| encode(&request)),
        1 => prop::collection::vec(any::<u8>(), 1..200),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Checks that any sequence of packets leaves the daemon alive and nothing behind after the
    /// disconnect.
    #[test]
    fn any_sequence_is_survived(packets in prop::collection::vec(requests(), 0..60)) {
        let daemon = Daemon::new("any", 1);
        let client = member(&daemon);
        let tenant = connect(&daemon);
        hello(&tenant, VERSIONS, true);
        for packet in packets {
            // Fails after the daemon has closed the connection.
            let _ = rustix::net::send(&tenant, &packet, SendFlags::NOSIGNAL);
            let mut answer = [0; 1 << 16];
            let _ = rustix::net::recv(&tenant, &mut answer[..], rustix::net::RecvFlags::DONTWAIT);
        }
        drop(tenant);
        let pid = std::process::id().to_string();
        eventually(&Err(libc::ENOENT), || client.list(&pid));
        eventually(&Ok("0\n".into()), || client.read("web/0/gmem.current"));
        let events = client.read("events").unwrap();
        prop_assert!(events.contains("charge 0\n"), "{}", events);
    }
}
