// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Only administrators write, and no tenant exhausts the descriptors.

mod common;

use common::{as_user, connect, eventually, hello, lives, own, Tenant};
use gctd::testing::{greeted, Daemon};
use gctd_ipc::message::{Reply, Request};
use gctd_ipc::paths::SocketPaths;
use gctd_ipc::socket;
use gctd_ipc::versions::VERSIONS;
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{getrlimit, kill_process, prlimit, Pid, Resource, Rlimit, Signal};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn the_tenants_socket_refuses_writes_even_of_root() {
    let daemon = Daemon::new("sockets", 1);
    let admin = daemon.client();
    admin.write("control", "create web").unwrap();
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    // This client is root if the tests run as root.
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
    // The administrators' socket refuses sessions of tenants.
    let paths = SocketPaths::of(&daemon.directory);
    let both = socket::connect(&paths.admin, Duration::from_secs(20)).unwrap();
    hello(&both, VERSIONS, true);
    let answer = socket::receive::<Reply>(both.as_fd()).unwrap().0;
    let errno = libc::ESRCH;
    assert_eq!(answer, Reply::Error { errno });
    assert!(socket::receive::<Reply>(both.as_fd()).is_err());
}

#[test]
fn the_administrators_socket_refuses_other_users() {
    let daemon = Daemon::new("admin-socket", 1);
    let paths = SocketPaths::of(&daemon.directory);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&paths.admin), mode(&paths.tenants)), (0o660, 0o666));
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can change its user");
    }
    let stranger = as_user(65534, move || {
        let reached = |path| socket::connect(path, Duration::from_secs(20));
        assert!(reached(&paths.tenants).is_ok());
        let refused = reached(&paths.admin).map(|_| ());
        assert_eq!(refused, Err(rustix::io::Errno::ACCESS));
        paths
    });
    // With a mode that lets everybody connect, the daemon itself refuses.
    let paths = stranger.join().unwrap();
    std::fs::set_permissions(&paths.admin, PermissionsExt::from_mode(0o666)).unwrap();
    let stranger = as_user(65534, move || {
        let socket = socket::connect(&paths.admin, Duration::from_secs(20)).unwrap();
        socket::receive::<Reply>(socket.as_fd()).unwrap().0
    });
    let errno = libc::EACCES;
    assert_eq!(stranger.join().unwrap(), Reply::Error { errno });
}

#[test]
fn a_second_daemon_is_refused() {
    let mut daemon = Daemon::new("second", 1);
    let paths = SocketPaths::of(&daemon.directory);
    let options = gctd::Options {
        directory: daemon.directory.clone(),
        gpus: daemon.directory.join("gpus"),
        selftests: daemon.directory.join("selftest"),
        clocks: false,
        driver_limits: false,
        cgroups: daemon.directory.join("cgroups"),
        tpcs: None,
        memory: None,
        ask: gctd_ipc::driver::ask,
    };
    let refused = gctd::Server::bind(&options).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse);
    assert!(lives(&daemon));
    daemon.stop();
    assert!(!paths.admin.exists() && !paths.tenants.exists());
    // Sockets of a killed daemon are replaced. A directory that others can write is refused, be
    // they users of its group.
    std::fs::write(&paths.admin, "").unwrap();
    daemon.restart();
    assert!(lives(&daemon));
    daemon.stop();
    let folder = paths.tenants.parent().unwrap();
    for mode in [0o777, 0o775, 0o757] {
        std::fs::set_permissions(folder, PermissionsExt::from_mode(mode)).unwrap();
        let refused = gctd::Server::bind(&options).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    }
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).unwrap();
    daemon.restart();
}

#[test]
fn connections_of_a_process_are_limited() {
    let daemon = Daemon::new("flood", 1);
    let (versions, tenant) = (VERSIONS, false);
    let greet = || {
        let next = connect(&daemon);
        let answer = socket::greet(next.as_fd(), &Request::Hello { versions, tenant });
        (next, answer.unwrap())
    };
    let mut flood: Vec<OwnedFd> = Vec::new();
    let refused = loop {
        match greet() {
            (next, Reply::Hello { .. }) => flood.push(next),
            (_, other) => break other,
        }
        assert!(flood.len() < 1000);
    };
    let errno = libc::ENOSPC;
    assert_eq!(refused, Reply::Error { errno });
    assert!(
        lives(&daemon),
        "administrators have descriptors of their own"
    );
    flood.pop();
    eventually(&greeted(), || greet().1);
}

/// Returns the CPU time of a process in clock ticks.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_ascii_whitespace();
    let times = fields.skip(11).take(2);
    times.map(|field| field.parse::<u64>().unwrap()).sum()
}

#[test]
fn without_descriptors_the_daemon_does_not_spin() {
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
    // The next descriptor of the daemon is the lowest that is free.
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
    let paths = SocketPaths::of(&directory);
    let waiting = socket::connect(&paths.tenants, Duration::from_secs(20)).unwrap();
    hello(&waiting, VERSIONS, false);
    let before = ticks(child.id());
    std::thread::sleep(Duration::from_millis(700));
    let worked = ticks(child.id()) - before;
    limit(Some(next + 10));
    let answer = socket::receive::<Reply>(waiting.as_fd()).unwrap().0;
    kill_process(pid, Signal::TERM).unwrap();
    child.wait().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(answer, greeted());
    assert!(worked < 20, "used {worked} of some 70 ticks");
}

/// With another mode the usual socket does not exist for a program of another user, which so runs
/// without its limits.
#[test]
fn everybody_reaches_a_daemon_that_was_started_under_any_umask() {
    let directory = std::env::temp_dir().join(format!("gctd-umask-{}", std::process::id()));
    let child = Command::new("sh")
        .args(["-c", "umask 077; exec \"$@\"", "sh"])
        .args([env!("CARGO_BIN_EXE_gctd"), "--gpus", "/nowhere", "--dir"])
        .arg(directory.join("below"))
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let paths = SocketPaths::of(&directory.join("below"));
    let tenants = paths.tenants.parent().unwrap();
    let modes = [tenants.parent().unwrap(), tenants, &paths.tenants].map(mode);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    child.wait().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let shown = modes.map(|mode| format!("{mode:o}"));
    assert_eq!(shown, ["755", "755", "666"]);
}
