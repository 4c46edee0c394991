// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests who may open `/dev/gctgroup`, and what for.

use crate::device::{self, ask, open, put, DEVICE};
use crate::door::code;
use crate::sys::{self, Child};
use gct_core::iface::door::Operation;
use gct_ktap::{same, During, Outcome, Stop, Test};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;

pub(crate) const TESTS: &[Test] = &[
    ("door.is_root's_alone", node),
    ("door.rights_are_those_of_the_opener", rights),
    ("door.refuses_users_and_namespaces", strangers),
    ("door.an_administrator_may_let_others_read", readers),
];

fn node() -> Outcome {
    let mode = fs::metadata(DEVICE).during(DEVICE)?.permissions().mode() & 0o7777;
    same("mode", mode, 0o600)
}

/// Runs `work` in a child and returns the errno that it ends with.
fn in_child(work: impl FnOnce() -> io::Result<()>) -> Result<i32, Stop> {
    Ok(Child::fork(|| code(work()))?.wait()?)
}

/// Checks that a device that is open for reading does not write, and the other way round, and that
/// it may be handed to others, as an open file of debugfs.
fn rights() -> Outcome {
    let (reader, writer) = (open(true, false)?, open(false, true)?);
    same(
        "writing",
        code(put(&reader, "control", b"create x")),
        libc::EBADF,
    )?;
    let read = |device: &File| ask(device, Operation::Read, "version", 64);
    same("reading", code(read(&writer)), libc::EBADF)?;
    same(
        "listing",
        code(ask(&writer, Operation::List, "", 64)),
        libc::EBADF,
    )?;
    let found = in_child(|| {
        sys::become_nobody()?;
        read(&reader)?;
        put(&writer, "control", b"create handed")?;
        put(&writer, "control", b"remove handed")
    })?;
    same("a user to whom root gave it", found, 0)
}

/// Tries to open the device, for reading and for writing, and returns both errnos.
fn opens(prepare: fn() -> io::Result<()>) -> Result<(i32, i32), Stop> {
    let reading = in_child(|| prepare().and_then(|()| open(true, false)).map(drop))?;
    let writing = in_child(|| prepare().and_then(|()| open(true, true)).map(drop))?;
    let only_writing = in_child(|| prepare().and_then(|()| open(false, true)).map(drop))?;
    same("writing alone is as both", only_writing, writing)?;
    Ok((reading, writing))
}

fn strangers() -> Outcome {
    let found = opens(sys::become_nobody)?;
    same("a user", found, (libc::EACCES, libc::EACCES))?;
    let found = opens(sys::unshare_users)?;
    same(
        "root of another namespace",
        found,
        (libc::EPERM, libc::EPERM),
    )?;
    let found = opens(sys::drop_admin)?;
    same("root without CAP_SYS_ADMIN", found, (0, libc::EPERM))
}

/// Sets the mode of the node until it is dropped.
struct Shared;

impl Shared {
    fn new() -> io::Result<Self> {
        fs::set_permissions(DEVICE, Permissions::from_mode(0o666)).map(|()| Self)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = fs::set_permissions(DEVICE, Permissions::from_mode(0o600));
    }
}

/// Checks that the node's mode lets users read, and never write.
fn readers() -> Outcome {
    let _shared = Shared::new()?;
    same("a user", opens(sys::become_nobody)?, (0, libc::EPERM))?;
    let found = opens(|| {
        sys::become_nobody()?;
        // SAFETY: the argument is a number.
        match unsafe { libc::unshare(libc::CLONE_NEWUSER) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    })?;
    same("a user's own namespace", found, (libc::EPERM, libc::EPERM))?;
    let found = in_child(|| {
        sys::become_nobody()?;
        device::list("").and(device::read("events")).map(drop)
    })?;
    same("what a user reads", found, 0)
}
