// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the driver's hooks: open, ioctl and close of /dev/nvidiactl, by processes that exit
//! cleanly and by others.

use crate::rm;
use crate::sys::{self, reap, Child};
use crate::tree::{eventually, refuses, repetitions, Group};
use gct_core::error::Error;
use gct_core::rmapi::escape;
use gct_ktap::{holds, same, During, Outcome, Stop, Test};
use std::os::fd::AsRawFd;
use std::thread::sleep;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("driver.client", client),
    ("driver.many_clients", many_clients),
    ("driver.close_frees_clients", close_frees),
    ("driver.open_file_holds_its_group", holds_group),
    ("driver.fork_with_open_client", fork),
    ("driver.descriptor_passed_on", passed),
    ("driver.dup", dup),
    ("driver.kill_with_open_clients", kill),
    ("driver.odd_ioctls", odd),
];

fn client() -> Outcome {
    let control = rm::open()?;
    let client = rm::alloc_client(&control).during("NV01_ROOT")?;
    holds("a handle", client != 0)?;
    rm::free_client(&control, client).during("free")?;
    holds("it is gone", rm::free_client(&control, client).is_err())
}

fn many_clients() -> Outcome {
    let control = rm::open()?;
    for _ in 0..repetitions(20) {
        let clients: std::io::Result<Vec<u32>> =
            (0..16).map(|_| rm::alloc_client(&control)).collect();
        for client in clients? {
            rm::free_client(&control, client)?;
        }
    }
    Ok(())
}

fn close_frees() -> Outcome {
    for _ in 0..repetitions(50) {
        let control = rm::open()?;
        rm::alloc_client(&control)?;
    }
    Ok(())
}

/// Forks a child into the group. It has /dev/nvidiactl open, with a client.
fn holder(group: &Group) -> Result<Child, Stop> {
    let (go, tell_go) = sys::pipe()?;
    let (ready, tell_ready) = sys::pipe()?;
    let child = Child::fork(|| {
        sys::wait_for(&go);
        match rm::open().and_then(|control| rm::alloc_client(&control).map(|_| control)) {
            Ok(control) => {
                let _ = sys::tell(&tell_ready);
                sleep(Duration::from_secs(3600));
                drop(control);
                0
            }
            Err(error) => sys::errno(&error).max(1),
        }
    })?;
    group.add(child.0)?;
    sys::tell(&tell_go)?;
    drop(tell_ready);
    sys::wait_for(&ready);
    Ok(child)
}

/// Checks that a group with an open driver cannot be removed:
/// ```text
/// d/ <- a, which has the driver open
/// ```
fn holds_group() -> Outcome {
    let group = Group::new("d")?;
    let child = holder(&group)?;
    let members = group.pids();
    let busy = refuses("control", "remove d", Error::Busy);
    let expected = vec![child.0];
    reap(vec![child]);
    same("members", members?, expected)?;
    busy?;
    group.remove().during("remove after its death")
}

/// Checks that a child may use an inherited file. Its exit leaves the parent's client alone.
fn fork() -> Outcome {
    let control = rm::open()?;
    let client = rm::alloc_client(&control)?;
    let child = Child::fork(|| match rm::alloc_client(&control) {
        Ok(own) => i32::from(rm::free_client(&control, own).is_err()),
        Err(error) => sys::errno(&error).max(1),
    })?;
    same("the child", child.wait()?, 0)?;
    rm::free_client(&control, client).during("the parent's client is still there")
}

/// Checks that a descriptor taken from a process that is then killed keeps its clients.
fn passed() -> Outcome {
    let group = Group::new("d")?;
    let (ready, tell_ready) = sys::pipe()?;
    let (number, tell_number) = sys::pipe()?;
    let child = Child::fork(|| {
        let Ok(control) = rm::open() else {
            return 1;
        };
        let descriptor = control.as_raw_fd();
        let _ = sys::tell_number(&tell_number, descriptor);
        let _ = sys::tell(&tell_ready);
        sleep(Duration::from_secs(3600));
        0
    })?;
    drop((tell_ready, tell_number));
    group.add(child.0)?;
    sys::wait_for(&ready);
    let descriptor = sys::read_number(&number)?;
    let taken = sys::take_fd(child.0, descriptor);
    reap(vec![child]);
    let control = std::fs::File::from(taken.during("pidfd_getfd")?);
    let client = rm::alloc_client(&control).during("NV01_ROOT through the copy")?;
    rm::free_client(&control, client)?;
    drop(control);
    eventually("the group is free", || {
        crate::tree::write("control", "remove d").is_ok()
    })?;
    // It is already removed, so `drop` has nothing to do.
    std::mem::forget(group);
    Ok(())
}

/// Checks that closing one of two descriptors of one file frees nothing.
fn dup() -> Outcome {
    let control = rm::open()?;
    let other = control.try_clone()?;
    let client = rm::alloc_client(&control)?;
    drop(control);
    rm::free_client(&other, client).during("free through the other descriptor")
}

fn kill() -> Outcome {
    let group = Group::new("d")?;
    for _ in 0..repetitions(20) {
        let children: Result<Vec<Child>, Stop> = (0..4).map(|_| holder(&group)).collect();
        reap(children?);
    }
    eventually("the group is free", || {
        group.pids().is_ok_and(|pids| pids.is_empty())
    })?;
    group.remove().during("remove")
}

/// Sizes and contents that no ioctl has. The driver may accept or refuse them. A client can be
/// allocated afterwards, so the hooks still work.
fn odd() -> Outcome {
    let control = rm::open()?;
    for number in [
        escape::ALLOC,
        escape::FREE,
        escape::DUP_OBJECT,
        escape::VID_HEAP_CONTROL,
        escape::ALLOC_MEMORY,
    ] {
        for size in [0, 1, 15, 16, 28, 31, 32, 33, 48, 56, 184, 255] {
            for fill in [0, 0xff, 0x5a] {
                rm::nonsense(&control, number.into(), size, fill);
            }
        }
    }
    client()
}
