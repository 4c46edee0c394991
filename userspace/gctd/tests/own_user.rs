// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A daemon with a user of its own serves root, and takes over from a daemon of root.

mod common;

use common::process::Process as Daemon;
use gctd_ipc::message::{Reply, Request};
use gctd_ipc::socket;
use gctd_ipc::versions::VERSIONS;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Returns whether only root can run these tests, and this is not root.
fn is_not_root() -> bool {
    let skipped = !rustix::process::geteuid().is_root();
    if skipped {
        eprintln!("skipped: only root can start a daemon as another user");
    }
    skipped
}

/// Greets a daemon in a thread with this user and group, and without a capability.
fn greet_as(user: u32, group: u32, path: PathBuf) -> Result<Reply, Errno> {
    let of_thread = std::thread::spawn(move || {
        let groups: [libc::gid_t; 1] = [group];
        // Version 3, for this thread; all of its capabilities are 0.
        let (header, none) = ([0x2008_0522u32, 0], [0u32; 6]);
        // SAFETY: each call changes the credentials of this thread only, which runs nothing else.
        // The pointers are to what the kernel reads.
        let changed = unsafe {
            libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr())
                + libc::syscall(libc::SYS_setresgid, 65534, 65534, 65534)
                + libc::syscall(libc::SYS_setresuid, user, user, user)
                + libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr())
        };
        assert_eq!(changed, 0);
        let socket = socket::connect(&path, Duration::from_secs(20))?;
        let (versions, tenant) = (VERSIONS, false);
        socket::greet(socket.as_fd(), &Request::Hello { versions, tenant })
    });
    of_thread.join().unwrap()
}

#[test]
fn root_needs_the_daemons_group_or_a_capability() {
    if is_not_root() {
        return;
    }
    let daemon = Daemon::start("group", 1);
    let greet = |user, group| greet_as(user, group, daemon.paths().admin);
    // Units of root without a capability have the group.
    let served = greet(0, daemon.user).unwrap();
    assert!(matches!(served, Reply::Hello { .. }), "{served:?}");
    assert_eq!(greet(0, 65534), Err(Errno::ACCESS));
    // The group alone makes nobody an administrator.
    let errno = libc::EACCES;
    assert_eq!(greet(65534, daemon.user), Ok(Reply::Error { errno }));
    assert_eq!(greet(65534, 65534), Err(Errno::ACCESS));
}

#[test]
fn a_daemon_of_root_and_one_of_its_own_user_follow_each_other() {
    if is_not_root() {
        return;
    }
    let mut daemon = Daemon::start("changes", 1);
    let own = daemon.user;
    let me = format!("{}\n", std::process::id());
    let owner = |path: &Path| fs::metadata(path).unwrap().uid();
    let first = daemon.client();
    first.write("control", "create web").unwrap();
    first.write("web/group.procs", "0").unwrap();
    for (user, limit) in [(0, "1\n"), (own, "2\n"), (0, "3\n"), (own, "4\n")] {
        daemon.user = user;
        daemon.restart();
        let client = daemon.client();
        assert_eq!(client.read("web/group.procs"), Ok(me.clone()));
        client.write("web/0/tpc.quota", limit).unwrap();
        assert_eq!(owner(&daemon.kept()), user);
        daemon.restart();
        assert_eq!(daemon.client().read("web/0/tpc.quota"), Ok(limit.into()));
    }
}
