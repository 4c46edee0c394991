// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Clients that do not behave: the daemon and the others go on.

mod common;

use common::{eventually, member, own, Tenant, DEVICE, TSG};
use gct_core::rmapi::escape;
use gctd::testing::{alloc, free, Daemon};
use gctd_ipc::doors::Doors;
use gctd_ipc::message::{encode, Ioctl, Managed, Reply, Request};
use gctd_ipc::{socket, VERSION};
use proptest::prelude::*;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::SendFlags;
use rustix::process::{getrlimit, kill_process, prlimit, Pid, Resource, Rlimit, Signal};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const MEMORY: u32 = 0x5c00_0040;

fn connect(daemon: &Daemon) -> OwnedFd {
    socket::connect(&daemon.socket(), Duration::from_secs(20)).unwrap()
}

fn hello(socket: &OwnedFd, version: u32, tenant: bool) {
    let hello = Request::Hello { version, tenant };
    socket::send(socket.as_fd(), &hello, &[], SendFlags::empty()).unwrap();
}

fn manage(number: u64, bytes: u64) -> Request {
    Request::Manage(Managed { number, bytes })
}

/// Whether the daemon still answers.
fn lives(daemon: &Daemon) -> bool {
    daemon.client().read("version").is_ok()
}

#[test]
fn a_stranger_is_sent_away() {
    let daemon = Daemon::new("stranger", 1);
    let other = connect(&daemon);
    hello(&other, VERSION + 1, true);
    let answer = socket::receive::<Reply>(other.as_fd()).unwrap().0;
    assert_eq!(answer, Reply::Hello { version: VERSION });
    assert!(socket::receive::<Reply>(other.as_fd()).is_err());
    // Who does not greet, and who greets twice.
    let mute = connect(&daemon);
    socket::send(mute.as_fd(), &Request::More, &[], SendFlags::empty()).unwrap();
    assert!(socket::receive::<Reply>(mute.as_fd()).is_err());
    let twice = connect(&daemon);
    hello(&twice, VERSION, false);
    hello(&twice, VERSION, false);
    assert!(socket::receive::<Reply>(twice.as_fd()).is_ok());
    assert!(socket::receive::<Reply>(twice.as_fd()).is_err());
    assert!(lives(&daemon));
}

#[test]
fn a_tenant_writes_nothing_whatever_its_user() {
    let daemon = Daemon::new("doors", 1);
    let admin = daemon.client();
    admin.write("control", "create web").unwrap();
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    // Root, if these tests are root's.
    let reader = daemon.reader();
    assert_eq!(reader.read("web/0/tpc.mask"), Ok("all\n".into()));
    for (file, text) in [
        ("control", "create mine"),
        ("control", "remove web"),
        ("web/0/compute.freeze", "1"),
        (&own("tpc.mask"), "0-3"),
        ("web/group.procs", "0"),
    ] {
        assert_eq!(reader.write(file, text), Err(libc::EACCES), "{file}");
    }
    assert_eq!(admin.read("web/group.procs"), Ok(String::new()));
    assert_eq!(admin.read(&own("tpc.mask")), Ok("all\n".into()));
    // Nor are an administrator's messages a tenant's.
    let doors = Doors::of(&daemon.directory);
    let both = socket::connect(&doors.admin, Duration::from_secs(20)).unwrap();
    hello(&both, VERSION, true);
    let answer = socket::receive::<Reply>(both.as_fd()).unwrap().0;
    let errno = libc::ESRCH;
    assert_eq!(answer, Reply::Error { errno });
    assert!(socket::receive::<Reply>(both.as_fd()).is_err());
}

#[test]
fn the_administrators_door_opens_for_its_user_only() {
    let daemon = Daemon::new("admin-door", 1);
    let doors = Doors::of(&daemon.directory);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&doors.admin), mode(&doors.tenants)), (0o600, 0o666));
    if !rustix::process::geteuid().is_root() {
        return eprintln!("only root can try it as somebody else");
    }
    let stranger = std::thread::spawn(move || {
        // SAFETY: the credentials of this thread alone change, and no other code runs on it.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(changed, 0);
        let reached = |path| socket::connect(path, Duration::from_secs(20));
        assert!(reached(&doors.tenants).is_ok());
        // Were the mode another, the user would still be.
        let refused = reached(&doors.admin).map(|_| ());
        assert_eq!(refused, Err(rustix::io::Errno::ACCESS));
        doors
    });
    let doors = stranger.join().unwrap();
    std::fs::set_permissions(&doors.admin, PermissionsExt::from_mode(0o666)).unwrap();
    let stranger = std::thread::spawn(move || {
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        let socket = socket::connect(&doors.admin, Duration::from_secs(20)).unwrap();
        socket::receive::<Reply>(socket.as_fd()).unwrap().0
    });
    let errno = libc::EACCES;
    assert_eq!(stranger.join().unwrap(), Reply::Error { errno });
}

#[test]
fn a_second_daemon_leaves_the_first_its_doors() {
    let mut daemon = Daemon::new("second", 1);
    let doors = Doors::of(&daemon.directory);
    let options = gctd::Options {
        directory: daemon.directory.clone(),
        gpus: daemon.directory.join("gpus"),
        existing: None,
    };
    let refused = gctd::Server::bind(&options).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse);
    assert!(lives(&daemon));
    daemon.stop();
    assert!(!doors.admin.exists() && !doors.tenants.exists());
    // What a daemon that was killed left is replaced; a folder of others is not trusted.
    std::fs::write(&doors.admin, "").unwrap();
    daemon.restart();
    assert!(lives(&daemon));
    daemon.stop();
    let folder = doors.tenants.parent().unwrap();
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap();
    let refused = gctd::Server::bind(&options).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).unwrap();
    daemon.restart();
}

#[test]
fn one_process_cannot_take_all_connections() {
    let daemon = Daemon::new("flood", 1);
    let (version, tenant) = (VERSION, false);
    let greeted = || {
        let next = connect(&daemon);
        let answer = socket::greet(next.as_fd(), &Request::Hello { version, tenant });
        (next, answer.unwrap())
    };
    let mut flood: Vec<OwnedFd> = Vec::new();
    let refused = loop {
        match greeted() {
            (next, Reply::Hello { .. }) => flood.push(next),
            (_, other) => break other,
        }
        assert!(flood.len() < 1000);
    };
    let errno = libc::ENOSPC;
    assert_eq!(refused, Reply::Error { errno });
    assert!(lives(&daemon), "administrators have their own");
    flood.pop();
    eventually(&Reply::Hello { version }, || greeted().1);
}

/// Ticks of the clock that a process has worked for.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_ascii_whitespace();
    let times = fields.skip(11).take(2);
    times.map(|field| field.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_daemon_without_a_descriptor_left_waits_for_one() {
    let directory = std::env::temp_dir().join(format!("gctd-emfile-{}", std::process::id()));
    let child = Command::new(env!("CARGO_BIN_EXE_gctd"))
        .args(["--gpus", "/nowhere", "--dir"])
        .arg(&directory)
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    let pid = Pid::from_child(&child);
    // It may have been started with others open; the next is the first that is not.
    let is_free = |fd: &u64| {
        let path = format!("/proc/{}/fd/{fd}", child.id());
        std::fs::symlink_metadata(path).is_err()
    };
    let next = (0..).find(is_free).unwrap();
    let limit = |current| {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit { current, maximum };
        prlimit(Some(pid), Resource::Nofile, limit).unwrap();
    };
    limit(Some(next));
    let doors = Doors::of(&directory);
    let waiting = socket::connect(&doors.tenants, Duration::from_secs(20)).unwrap();
    hello(&waiting, VERSION, false);
    let before = ticks(child.id());
    std::thread::sleep(Duration::from_millis(700));
    let worked = ticks(child.id()) - before;
    limit(Some(next + 10));
    let answer = socket::receive::<Reply>(waiting.as_fd()).unwrap().0;
    kill_process(pid, Signal::TERM).unwrap();
    child.wait().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(answer, Reply::Hello { version: VERSION });
    assert!(worked < 20, "it worked for {worked} of some 70 ticks");
}

#[test]
fn who_does_not_read_answers_is_dropped() {
    let daemon = Daemon::new("deaf", 1);
    let deaf = connect(&daemon);
    hello(&deaf, VERSION, false);
    let list = Request::List {
        path: String::new(),
    };
    let mut sent = 0;
    while sent < 100_000 && socket::send(deaf.as_fd(), &list, &[], SendFlags::empty()).is_ok() {
        sent += 1;
    }
    assert!(sent < 100_000, "the daemon still listens");
    assert!(lives(&daemon));
}

#[test]
fn one_process_cannot_speak_of_anothers_objects() {
    let daemon = Daemon::new("foreign", 1);
    let client = daemon.client();
    let mut victim = Tenant::of(&daemon);
    victim.cuda(0);
    assert!(victim.memory(MEMORY, 4096));
    let mut other = Tenant::of(&daemon);
    // Its own client has another handle; it names the victim's.
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
    // One for asking, one for having it, and two for each free.
    assert!(events.contains("\nclient 8\n"), "{events}");
    drop(other);
    assert_eq!(current(), "4096\n");
}

#[test]
fn managed_memory_of_any_size_and_number_is_harmless() {
    let daemon = Daemon::new("managed", 1);
    let client = daemon.client();
    // Before it has greeted.
    let mute = connect(&daemon);
    socket::send(mute.as_fd(), &manage(1, 1), &[], SendFlags::empty()).unwrap();
    assert!(socket::receive::<Reply>(mute.as_fd()).is_err());
    // Who has come to read only.
    let reader = connect(&daemon);
    hello(&reader, VERSION, false);
    socket::receive::<Reply>(reader.as_fd()).unwrap();
    socket::send(reader.as_fd(), &manage(1, 1), &[], SendFlags::empty()).unwrap();
    assert!(socket::receive::<Reply>(reader.as_fd()).is_err());
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    tenant.link.managed_gone(u64::MAX);
    let huge = tenant.link.manage(u64::MAX).unwrap();
    let current = || client.read(&own("gmem.current")).unwrap();
    assert_eq!(current(), format!("{}\n", u64::MAX));
    // It does not fit 64 bits: it is granted, counted, and not charged.
    let second = tenant.link.manage(u64::MAX).unwrap();
    tenant.link.managed_gone(second);
    assert!(client.read("events").unwrap().contains("\ncharge 1\n"));
    client.write(&own("gmem.limit"), "max").unwrap();
    tenant.link.managed_gone(huge);
    tenant.link.managed_gone(huge);
    eventually(&"0\n".to_owned(), current);
    assert!(lives(&daemon));
}

#[test]
fn a_number_that_is_given_twice_means_the_second() {
    let daemon = Daemon::new("managed-twice", 1);
    let client = member(&daemon);
    let mut victim = Tenant::of(&daemon);
    victim.cuda(0);
    assert!(victim.link.manage(4096).is_some());
    let tenant = connect(&daemon);
    hello(&tenant, VERSION, true);
    let told = |request| socket::send(tenant.as_fd(), &request, &[], SendFlags::empty()).unwrap();
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
        told(Request::Leave { ioctl, granted });
    }
    told(Request::Page {
        client: 0xc1d0_0077,
        object: TSG,
    });
    told(Request::Managed(Managed {
        number: 7,
        bytes: 1 << 20,
    }));
    told(manage(7, 1 << 18));
    for (number, bytes) in [(7, 1 << 16), (1, 1 << 12)] {
        told(Request::Managed(Managed { number, bytes }));
    }
    let current = || client.read("web/0/gmem.current").unwrap();
    eventually(&format!("{}\n", (1 << 16) + 2 * 4096), current);
    // A number means nothing to another connection.
    for number in [7, 7, 1, 2] {
        told(Request::ManagedGone { number });
    }
    eventually(&"4096\n".to_owned(), current);
    let events = client.read("events").unwrap();
    assert!(events.contains("\ncharge 0\n"), "{events}");
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let daemon = Daemon::new("fds", 1);
    let sender = connect(&daemon);
    hello(&sender, VERSION, false);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let list = Request::List {
        path: "gpus".into(),
    };
    let before = open();
    for _ in 0..50 {
        let fds = [sender.as_fd(); 20];
        socket::send(sender.as_fd(), &list, &fds, SendFlags::empty()).unwrap();
    }
    assert!(lives(&daemon));
    assert!(open() < before + 100, "daemon and test are one process");
}

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
    // Few numbers, which meet, and sizes of which sixty fit 64 bits.
    let number = prop_oneof![0u64..4, any::<u64>()];
    let managed = (number.clone(), 0u64..1 << 57);
    let managed = managed.prop_map(|(number, bytes)| Managed { number, bytes });
    let request = prop_oneof![
        ioctl.clone().prop_map(Request::Enter),
        ioctl.clone().prop_map(Request::Ask),
        (ioctl, granted).prop_map(|(ioctl, granted)| Request::Leave { ioctl, granted }),
        (object.clone(), object).prop_map(|(client, object)| Request::Page { client, object }),
        managed.clone().prop_map(Request::Manage),
        managed.prop_map(Request::Managed),
        number.prop_map(|number| Request::ManagedGone { number }),
        (0u32..3).prop_map(|minor| Request::Peers { minor }),
        (0u32..3).prop_map(|minor| Request::Mapped { minor }),
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

    /// Whatever a tenant sends, the daemon lives, and when the tenant is gone all of it is.
    #[test]
    fn any_sequence_is_survived(packets in prop::collection::vec(requests(), 0..60)) {
        let daemon = Daemon::new("any", 1);
        let client = member(&daemon);
        let tenant = connect(&daemon);
        hello(&tenant, VERSION, true);
        for packet in packets {
            // Once it is dropped it cannot send.
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
