// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A connection belongs to the process that opened it, and so does its shared memory.

mod common;

use common::{eventually, own_directory, DEVICE, TSG};
use core::sync::atomic::{AtomicU64, Ordering};
use gct_core::mask::TpcMask;
use gct_core::rmapi::escape;
use gctd::testing::{alloc, greeted, Daemon};
use gctd_ipc::board::Pulse;
use gctd_ipc::message::{Ioctl, Reply, Request};
use gctd_ipc::page::Page;
use gctd_ipc::shared::Shared;
use gctd_ipc::socket;
use gctd_ipc::versions::VERSIONS;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{fcntl_setfd, Errno, FdFlags};
use rustix::net::SendFlags;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Environment variables: the descriptor that a helper inherits, the socket that it connects to.
const HEIR: &str = "GCTD_TEST_HEIR";
const PARENT: &str = "GCTD_TEST_PARENT";

fn connect(path: &std::path::Path) -> OwnedFd {
    socket::connect(path, Duration::from_secs(20)).unwrap()
}

fn ask(socket: &OwnedFd, request: &Request) -> (Reply, Vec<OwnedFd>) {
    socket::send(socket.as_fd(), request, &[], SendFlags::empty()).unwrap();
    socket::receive(socket.as_fd()).unwrap()
}

fn hello(socket: &OwnedFd) -> Reply {
    let hello = Request::Hello {
        versions: VERSIONS,
        tenant: true,
    };
    socket::greet(socket.as_fd(), &hello).unwrap()
}

/// Returns the command that runs one of the helpers below as a process.
fn helper(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    command
}

/// Connects, leaves the socket to a child, and exits. It is a helper of other tests.
#[test]
#[expect(clippy::zombie_processes, reason = "this process ends first")]
fn parent() {
    let Some(path) = std::env::var_os(PARENT) else {
        return;
    };
    let socket = connect(path.as_ref());
    fcntl_setfd(&socket, FdFlags::empty()).unwrap();
    let mut heir = helper("heir");
    heir.env(HEIR, socket.as_raw_fd().to_string());
    heir.stdin(Stdio::inherit()).spawn().unwrap();
}

/// Greets on request, as the child. It is a helper of other tests.
#[test]
fn heir() {
    let Ok(fd) = std::env::var(HEIR) else {
        return;
    };
    // SAFETY: the parent left the descriptor to this process, and nothing else owns it here.
    let socket = unsafe { OwnedFd::from_raw_fd(fd.parse().unwrap()) };
    std::io::stdin().read_line(&mut String::new()).unwrap();
    println!("answer {:?}", hello(&socket));
}

/// Starts a process with a given pid, if the kernel allows to choose it.
fn stranger(pid: u32) -> Option<Child> {
    for _ in 0..100 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        if child.id() == pid {
            return Some(child);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    None
}

#[test]
fn a_socket_of_an_ended_process_is_refused_after_pid_reuse() {
    let daemon = Daemon::new("heir", 1);
    let parent = helper("parent")
        .env(PARENT, daemon.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut parent = parent.unwrap();
    let (pid, go) = (parent.id(), parent.stdin.take());
    // The parent is reaped: the kernel may reuse its pid.
    parent.wait().unwrap();
    let stranger = stranger(pid);
    if stranger.is_none() {
        eprintln!("only root can give the pid to another; here it is nobody's");
    }
    drop(go);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut parent.stdout.take().unwrap(), &mut text).unwrap();
    if let Some(mut stranger) = stranger {
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
    let errno = libc::ESRCH;
    let refused = format!("answer {:?}", Reply::Error { errno });
    assert!(text.contains(&refused), "{text}");
}

/// Connects a tenant without the library. Returns its socket and the descriptors of its page.
fn raw_tenant(daemon: &Daemon, client: u32) -> (OwnedFd, Vec<OwnedFd>) {
    let socket = connect(&daemon.socket());
    let fds = open_page(&socket, client);
    (socket, fds)
}

/// Greets, makes a channel group and returns the descriptors of its page.
fn open_page(socket: &OwnedFd, client: u32) -> Vec<OwnedFd> {
    assert_eq!(hello(socket), greeted());
    for bytes in [
        alloc(0, 0, client, 0x41),
        alloc(client, client, DEVICE, 0x80),
        alloc(client, DEVICE, TSG, 0xa06c),
    ] {
        let ioctl = Ioctl {
            escape: escape::ALLOC,
            bytes,
            hint: Some(0),
        };
        let leave = Request::Leave {
            ioctl,
            granted: None,
        };
        socket::send(socket.as_fd(), &leave, &[], SendFlags::empty()).unwrap();
    }
    let object = TSG;
    let (reply, fds) = ask(socket, &Request::OpenPage { client, object });
    assert!(matches!(reply, Reply::Page { minor: 0, .. }), "{reply:?}");
    fds
}

/// Returns whether a writable mapping is possible, through a descriptor or after root reopened it.
fn can_be_written(fd: BorrowedFd<'_>) -> bool {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let anew = rustix::fs::open(path, OFlags::RDWR, Mode::empty());
    let maps = |fd: BorrowedFd<'_>| Shared::<Pulse>::open(fd).is_ok();
    maps(fd) || anew.is_ok_and(|anew| maps(anew.as_fd()) || rustix::io::write(&anew, &[1]).is_ok())
}

#[test]
fn only_its_process_can_write_a_pulse() {
    let daemon = Daemon::new("pulse", 1);
    // The last connection of a process has its slot.
    let (earlier, _fds) = raw_tenant(&daemon, 0xc1d0_0078);
    let (socket, fds) = raw_tenant(&daemon, 0xc1d0_0077);
    let [page, pulse, board] = fds.as_slice() else {
        panic!("{fds:?}");
    };
    let mine = Shared::<Pulse>::open(pulse.as_fd()).unwrap();
    let limits = Shared::<Page>::open(page.as_fd()).unwrap();
    assert!(!can_be_written(board.as_fd()));
    let neighbours = || ask(&earlier, &Request::Peers { minor: 0 }).1;
    assert!(neighbours().is_empty(), "only what is sealed is shown");
    let minor = 0;
    assert_eq!(ask(&socket, &Request::PageMapped { minor }).0, Reply::Done);
    assert_eq!(ask(&socket, &Request::PageMapped { minor }).0, Reply::Done);
    let seen = neighbours();
    assert_eq!(seen.len(), 1);
    for fd in seen.iter().chain(&fds) {
        assert!(!can_be_written(fd.as_fd()));
    }
    // Existing mappings keep working.
    mine.busy(7);
    let reads = |fd: &OwnedFd| rustix::io::pread(fd, &mut [0u8; 8], 0).is_ok_and(|n| n == 8);
    assert!(seen.iter().all(reads));
    assert!(limits.limits().is_some());
    let path = format!("{}/tpc.mask", own_directory());
    daemon.client().write(&path, "0-3").unwrap();
    eventually(&true, || {
        limits
            .limits()
            .is_some_and(|(_, limits)| limits.launches.tpcs == Some(TpcMask::first(4)))
    });
    // The descriptors of a page are sent once.
    let client = 0xc1d0_0077;
    let again = ask(
        &socket,
        &Request::OpenPage {
            client,
            object: TSG,
        },
    );
    assert!(again.1.is_empty(), "{again:?}");
}

#[test]
fn a_page_with_other_seals_is_not_shared() {
    let daemon = Daemon::new("sealed", 1);
    let (socket, fds) = raw_tenant(&daemon, 0xc1d0_0077);
    let seal = rustix::fs::SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fds[1], seal).unwrap();
    let mapped = ask(&socket, &Request::PageMapped { minor: 0 }).0;
    assert_eq!(
        mapped,
        Reply::Error {
            errno: Errno::ACCESS.raw_os_error()
        }
    );
    let (other, _) = raw_tenant(&daemon, 0xc1d0_0078);
    assert!(ask(&other, &Request::Peers { minor: 0 }).1.is_empty());
    // Without a page there is nothing to seal.
    let mapped = ask(&other, &Request::PageMapped { minor: 3 }).0;
    assert!(matches!(mapped, Reply::Error { .. }));
}

/// Writes anything into a process's page, all the time. Its neighbour keeps its numbers, and the
/// daemon serves everybody.
#[test]
fn lies_in_a_page_move_no_neighbour() {
    let daemon = Daemon::new("liar", 1);
    let admin = daemon.client();
    let read = |path: &str| admin.read(path).unwrap();
    // The neighbour is another process, and has counted and taken memory.
    let mut honest = helper("namesake")
        .env(PARENT, daemon.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let directory = format!("{}/0", honest.id());
    eventually(&true, || {
        admin.read(&format!("{directory}/gmem.current")).is_ok()
    });
    let files = ["compute.stat", "compute.events", "gmem.current"];
    let numbers = || files.map(|file| read(&format!("{directory}/{file}")));
    let before = numbers();
    let (socket, fds) = raw_tenant(&daemon, 0xc1d0_0077);
    let page = Shared::<Page>::open(fds[0].as_fd()).unwrap();
    let pulse = Shared::<Pulse>::open(fds[1].as_fd()).unwrap();
    assert_eq!(
        ask(&socket, &Request::PageMapped { minor: 0 }).0,
        Reply::Done
    );
    // SAFETY: both are atomics throughout, and every pattern is allowed there.
    let words = unsafe {
        let page = core::ptr::from_ref(&*page).cast::<AtomicU64>();
        let pulse = core::ptr::from_ref(&*pulse).cast::<AtomicU64>();
        [
            core::slice::from_raw_parts(page, size_of::<Page>() / 8),
            core::slice::from_raw_parts(pulse, size_of::<Pulse>() / 8),
        ]
    };
    let own = own_directory();
    for round in 0..60u64 {
        for (at, word) in words.iter().flat_map(|words| words.iter().enumerate()) {
            let value = match round % 4 {
                0 => u64::MAX,
                1 => 0,
                2 => 1 << (at % 64),
                // Anything.
                _ => (round ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            };
            word.store(value, Ordering::SeqCst);
        }
        for file in files {
            read(&format!("{own}/{file}"));
        }
        let mask = if round % 2 == 0 { "0-3" } else { "all" };
        admin.write(&format!("{own}/tpc.mask"), mask).unwrap();
        assert_eq!(numbers(), before, "round {round}");
    }
    drop(socket);
    eventually(&false, || admin.read(&format!("{own}/tpc.mask")).is_ok());
    assert_eq!(numbers(), before);
    drop(honest.stdin.take());
    assert!(honest.wait().unwrap().success());
}

/// Connects and waits until its input ends. It is a helper of other tests.
#[test]
fn namesake() {
    let Some(path) = std::env::var_os(PARENT) else {
        return;
    };
    let socket = connect(path.as_ref());
    let _page = open_page(&socket, 0xc1d0_0055);
    println!("pid {}", std::process::id());
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Checks that in namespaces of its own a process is pid 1 and root, and has neither another's
/// directory nor a right more.
#[test]
fn a_process_in_namespaces_of_its_own_is_itself() {
    let daemon = Daemon::new("namespaces", 1);
    let admin = daemon.client();
    let mut inside = Command::new("unshare");
    inside.args([
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
    ]);
    inside.arg(std::env::current_exe().unwrap());
    inside.args(["--exact", "namesake", "--nocapture"]);
    inside.env(PARENT, daemon.socket());
    let mut inside = inside
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let tenants = || {
        let names = admin.list("").unwrap().into_iter();
        names
            .filter_map(|name| name.trim_end_matches('/').parse::<u32>().ok())
            .collect::<Vec<_>>()
    };
    let gone = std::cell::Cell::new(false);
    eventually(&true, || {
        gone.set(inside.try_wait().unwrap().is_some());
        gone.get() || tenants().len() == 1
    });
    if gone.get() {
        eprintln!("skipped: no user namespaces here");
        return;
    }
    let pid = tenants()[0];
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let inner = status.lines().find(|line| line.starts_with("NSpid:"));
    assert!(inner.unwrap().ends_with("\t1"), "{status}");
    // Its pid there names nobody here.
    assert!(admin.read("1/0/tpc.mask").is_err());
    admin.write(&format!("{pid}/0/tpc.mask"), "0-3").unwrap();
    let mask = admin.read(&format!("{pid}/0/tpc.mask"));
    assert_eq!(mask.unwrap(), "0-3\n");
    drop(inside.stdin.take());
    assert!(inside.wait().unwrap().success());
    eventually(&0, || tenants().len());
}
