// SPDX-License-Identifier: GPL-2.0 OR MIT

//! No tenant takes the descriptors of others, whatever it does to be many, nor their turns.

mod common;

use common::{connect, eventually, hello, Tenant};
use gct_core::rmapi::{escape, Action, Call};
use gctd::testing::{alloc, Daemon};
use gctd_ipc::message::{Reply, Request};
use gctd_ipc::paths::SocketPaths;
use gctd_ipc::socket;
use gctd_ipc::tenant;
use gctd_ipc::versions::{Versions, VERSIONS};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{kill_process, setrlimit, Pid, Resource, Rlimit, Signal};
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Environment variables of a [`Hoarder`]: the socket and its user.
const SOCKET: &str = "GCTD_TEST_SOCKET";
const USER: &str = "GCTD_TEST_USER";

/// More connections than one process may have.
const MANY: usize = 17;

/// Creates a socket of a client, not connected yet.
fn unconnected() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// Lets a forked child connect these sockets, and waits for its end.
fn connect_by_child(path: &Path, sockets: &[OwnedFd]) {
    // SAFETY: all zero is a valid address.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap();
    for (to, from) in address.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
        *to = libc::c_char::try_from(*from).unwrap();
    }
    let length = libc::socklen_t::try_from(size_of_val(&address)).unwrap();
    // SAFETY: the child makes system calls alone, with memory that exists.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for socket in sockets {
            // SAFETY: as above.
            unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
        }
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: it is this thread's child.
    let ended = unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) };
    assert_eq!(ended, child);
}

/// Returns whether the daemon has closed a connection.
fn is_closed(socket: &OwnedFd) -> bool {
    loop {
        match rustix::net::recv(socket, &mut [0; 64][..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return true,
            Ok(_) | Err(Errno::CONNRESET | Errno::INTR) => {}
            Err(Errno::AGAIN) => return false,
            Err(_) => return true,
        }
    }
}

/// Waits up to a time until the daemon has closed all connections. Returns how many it has not.
fn open_after(sockets: &[OwnedFd], time: Duration) -> usize {
    let started = Instant::now();
    loop {
        let open = sockets.iter().filter(|socket| !is_closed(socket)).count();
        if open == 0 || started.elapsed() > time {
            return open;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_connection_ends_with_the_process_that_made_it() {
    let daemon = Daemon::new("orphans", 1);
    let mut orphans = Vec::new();
    for _ in 0..5 {
        let sockets: Vec<_> = (0..16).map(|_| unconnected()).collect();
        connect_by_child(&daemon.socket(), &sockets);
        for socket in &sockets {
            let (versions, tenant) = (VERSIONS, false);
            // Fails for those that are closed already.
            let hello = Request::Hello { versions, tenant };
            let _ = socket::send(socket.as_fd(), &hello, &[], SendFlags::DONTWAIT);
        }
        orphans.extend(sockets);
    }
    assert_eq!(open_after(&orphans, Duration::from_secs(5)), 0);
}

#[test]
fn a_connection_that_never_greets_is_closed() {
    let daemon = Daemon::new("mute", 1);
    let greeted = connect(&daemon);
    hello(&greeted, VERSIONS, false);
    let mute = [connect(&daemon), connect(&daemon)];
    std::thread::sleep(Duration::from_secs(1));
    assert!(!mute.iter().any(is_closed), "there is time to greet");
    assert_eq!(open_after(&mute, Duration::from_secs(15)), 0);
    assert!(!is_closed(&greeted));
    let later = [connect(&daemon)];
    assert_eq!(open_after(&later, Duration::from_secs(15)), 0);
}

/// A daemon in a process of its own, with 1024 descriptors.
struct Small {
    child: Child,
    directory: std::path::PathBuf,
}

impl Small {
    fn start(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("gctd-{name}-{}", std::process::id()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_gctd"));
        command
            .args(["--gpus", "/nowhere", "--dir"])
            .arg(&directory)
            .stdout(Stdio::piped());
        let limited = || {
            let all = Some(1024);
            let limit = Rlimit {
                current: all,
                maximum: all,
            };
            Ok(setrlimit(Resource::Nofile, limit)?)
        };
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(limited) };
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut String::new()).unwrap();
        Self { child, directory }
    }

    fn socket(&self) -> std::path::PathBuf {
        SocketPaths::of(&self.directory).tenants
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Connects as a user until it is refused, and returns the connections with the last answer.
fn take_all(path: &Path, user: u32) -> (Vec<OwnedFd>, Reply) {
    // SAFETY: changes the credentials of this thread only, and no other code runs on it.
    let changed = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
    assert_eq!(changed, 0);
    let mut taken = Vec::new();
    loop {
        let next = socket::connect(path, Duration::from_secs(20)).unwrap();
        let (versions, tenant) = (VERSIONS, true);
        let answer = socket::greet(next.as_fd(), &Request::Hello { versions, tenant }).unwrap();
        match answer {
            Reply::Hello { .. } if taken.len() < MANY => taken.push(next),
            other => return (taken, other),
        }
    }
}

/// Takes all connections that it gets, and holds them until its input ends. It is the program of
/// other tests.
#[test]
fn hoarder() {
    let Some(path) = std::env::var_os(SOCKET) else {
        return;
    };
    let user = std::env::var(USER).unwrap().parse().unwrap();
    let hoard = std::thread::spawn(move || take_all(path.as_ref(), user));
    let (taken, _) = hoard.join().unwrap();
    println!("taken {}", taken.len());
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// A process that holds what it got. Dropping it ends it.
struct Hoarder {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Drop for Hoarder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.said.by_ref().for_each(drop);
        let _ = self.child.wait();
    }
}

/// Starts a hoarder. Returns it and how many connections it got.
fn hoard(path: &Path, user: u32) -> (Hoarder, usize) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hoarder", "--nocapture"])
        .env(SOCKET, path)
        .env(USER, user.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let count = |line: std::io::Result<String>| {
        let line = line.unwrap();
        line.split_once("taken ")?.1.trim().parse().ok()
    };
    let taken = said.by_ref().find_map(count).unwrap();
    (Hoarder { child, said }, taken)
}

#[test]
fn many_users_and_processes_leave_descriptors_for_another() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can change its user");
    }
    let daemon = Small::start("many");
    let (mut hoarders, mut held) = (Vec::new(), Vec::new());
    for user in 20_001..20_005 {
        let mut of_user = 0;
        loop {
            let (hoarder, taken) = hoard(&daemon.socket(), user);
            hoarders.push(hoarder);
            of_user += taken;
            assert!(taken <= 16, "{taken} connections of one process");
            if taken < 16 {
                break;
            }
        }
        held.push(of_user);
    }
    let path = daemon.socket();
    let other = std::thread::spawn(move || take_all(&path, 30_000).0.len());
    let served = other.join().unwrap();
    drop(hoarders);
    assert!(served > 1, "the users before it hold {held:?}");
}

fn send(socket: &OwnedFd, request: &Request) {
    socket::send(socket.as_fd(), request, &[], SendFlags::DONTWAIT).unwrap();
}

/// Connects to a socket of a daemon.
fn greeted(path: &Path) -> OwnedFd {
    let next = socket::connect(path, Duration::from_secs(20)).unwrap();
    let (versions, tenant) = (VERSIONS, false);
    assert!(socket::greet(next.as_fd(), &Request::Hello { versions, tenant }).is_ok());
    next
}

/// Stops a daemon while something is done.
fn while_stopped<T>(daemon: &Small, then: impl FnOnce() -> T) -> T {
    let pid = Pid::from_child(&daemon.child);
    kill_process(pid, Signal::STOP).unwrap();
    let status = format!("/proc/{}/status", daemon.child.id());
    let stopped = || std::fs::read_to_string(&status).map(|text| text.contains("T (stopped)"));
    eventually(&true, || stopped().unwrap());
    let done = then();
    kill_process(pid, Signal::CONT).unwrap();
    done
}

/// Asks and asks on many connections. What another sends last is served after some messages of all.
#[test]
fn many_connections_have_no_more_turns_than_one() {
    const EACH: usize = 8;
    let daemon = Small::start("turns");
    let paths = SocketPaths::of(&daemon.directory);
    let flood: Vec<_> = (0..16).map(|_| greeted(&paths.tenants)).collect();
    let admin = greeted(&paths.admin);
    // The daemon looks for more at the end of its turn.
    std::thread::sleep(Duration::from_millis(200));
    while_stopped(&daemon, || {
        let path = String::new();
        for socket in &flood {
            (0..EACH).for_each(|_| send(socket, &Request::List { path: path.clone() }));
        }
        let (path, bytes) = ("control".into(), b"create web".to_vec());
        send(&admin, &Request::Write { path, bytes });
    });
    let answer = socket::receive::<Reply>(admin.as_fd()).unwrap().0;
    assert_eq!(answer, Reply::Done);
    // What was answered before the write does not know the group.
    let before = |socket: &OwnedFd| {
        let answers = (0..EACH).map(|_| socket::receive::<Reply>(socket.as_fd()).unwrap().0);
        let knows = |answer: &Reply| match answer {
            Reply::Text { bytes, .. } => bytes.windows(4).any(|name| name == b"web/"),
            other => panic!("{other:?}"),
        };
        answers.filter(|answer| !knows(answer)).count()
    };
    let before: Vec<_> = flood.iter().map(before).collect();
    assert!(before.iter().sum::<usize>() < 8, "{before:?}");
}

/// Connects and leaves again and again. Who connects behind it is accepted after some messages of
/// all.
#[test]
fn peers_that_have_gone_delay_no_connection() {
    const GONE: usize = 900;
    const ASKED: usize = 100;
    let daemon = Small::start("gone");
    let paths = SocketPaths::of(&daemon.directory);
    let admin = greeted(&paths.admin);
    let connect = || socket::connect(&paths.tenants, Duration::from_secs(20)).unwrap();
    let path = String::from("events");
    let late = while_stopped(&daemon, || {
        (0..GONE).for_each(|_| drop(connect()));
        let late = connect();
        let (versions, tenant) = (Versions::only(1), false);
        send(&late, &Request::Hello { versions, tenant });
        (0..ASKED).for_each(|_| send(&admin, &Request::Read { path: path.clone() }));
        late
    });
    let answers = (0..ASKED).map(|_| socket::receive::<Reply>(admin.as_fd()).unwrap().0);
    // What was answered before the other one was heard does not know its version.
    let knows = |answer: &Reply| match answer {
        Reply::Text { bytes, .. } => String::from_utf8_lossy(bytes).contains("\nversion 1\n"),
        other => panic!("{other:?}"),
    };
    let before = answers.filter(|answer| !knows(answer)).count();
    assert!(before < ASKED / 2, "{before}");
    drop(late);
}

/// Keeps the rest of long texts, which is memory of the daemon.
#[test]
fn texts_that_nobody_asks_for_are_bounded() {
    const GROUPS: usize = 700;
    let daemon = Small::start("texts");
    let paths = SocketPaths::of(&daemon.directory);
    let admin = greeted(&paths.admin);
    for number in 0..GROUPS {
        let (path, bytes) = (
            "control".into(),
            format!("create g{number:050}").into_bytes(),
        );
        send(&admin, &Request::Write { path, bytes });
        let answer = socket::receive::<Reply>(admin.as_fd()).unwrap().0;
        assert_eq!(answer, Reply::Done);
    }
    let ask = |socket: &OwnedFd, request: &Request| {
        send(socket, request);
        socket::receive::<Reply>(socket.as_fd()).unwrap().0
    };
    let list = Request::List {
        path: String::new(),
    };
    let holders: Vec<_> = (0..16).map(|_| greeted(&paths.tenants)).collect();
    let has_rest = |socket: &&OwnedFd| match ask(socket, &list) {
        Reply::Text { more, .. } => more,
        Reply::Error { errno } => {
            assert_eq!(errno, Errno::NOSPC.raw_os_error());
            false
        }
        other => panic!("{other:?}"),
    };
    let held = holders.iter().filter(has_rest).count();
    assert!(
        (1..12).contains(&held),
        "{held} texts of {} bytes",
        GROUPS * 53
    );
    // Who reads a text to its end has room for another one.
    let first = &holders[0];
    while matches!(ask(first, &Request::More), Reply::Text { more: true, .. }) {}
    assert!(has_rest(&&holders[15]));
    // Administrators read all.
    assert!(has_rest(&&admin));
}

/// Announces controls, which the library does not: for an import the core takes room for 128
/// objects.
#[test]
fn announced_controls_take_no_memory() {
    const IMPORT_OBJECTS_FROM_FD: u32 = 0x3d0c;
    let daemon = Small::start("controls");
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id()));
        let status = status.unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.unwrap().trim().strip_suffix(" kB").unwrap();
        kib.parse::<u64>().unwrap() >> 10
    };
    let before = memory();
    let mut tenants: Vec<_> = (0..16).map(|_| Tenant::new(&daemon.socket())).collect();
    for tenant in &mut tenants {
        let root = alloc(0, 0, tenant.client, 0x41);
        tenant.ioctl(escape::ALLOC, &root, None, 0);
        let (own, params) = (tenant.client, 1);
        let words = [own, own, IMPORT_OBJECTS_FROM_FD, 0, params, 0, 2128, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (ioctl, call) = tenant::decode(escape::CONTROL, &bytes, |_| None).unwrap();
        // The library would not send it.
        let free = Call {
            action: Action::Free,
            ..call
        };
        for _ in 0..1000 {
            tenant.link.enter(&ioctl, &free);
        }
        // Its answer follows what was sent before.
        assert_eq!(tenant.link.memory_view(own, own), None);
    }
    let more = memory() - before;
    assert!(more < 16, "{more} MiB for {} connections", tenants.len());
}
