// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that the tree shows the objects that one process allocates and frees.

use crate::gpus::{me, need_two, session, session_of, ENGINE};
use crate::tree::{self, expect, expect_gone};
use gct_ktap::{failed, same, skipped, During, Outcome, Stop, Test};
use rm_client::{numbers, Client, Error, Gpu, Handle, Memory, Release, Session};
use std::process;
use std::thread;

pub(crate) const TESTS: &[Test] = &[
    ("group_makes_and_takes_directory", groups),
    ("channels_are_counted", channels),
    ("channels_200", many_channels),
    ("free_group_with_channels", free_group),
    ("free_device", free_device),
    ("free_client", free_client),
    ("close_control_file", close_control),
    ("close_device_file_keeps_objects", close_device),
    ("refused_group_leaves_nothing", refused),
    ("handle_is_used_again", handle_again),
    ("refused_free_changes_nothing", refused_free),
    ("two_clients", two_clients),
    ("two_gpus", two_gpus),
    ("second_device_of_one_gpu", two_devices),
    ("dup_of_group_freed_first", dup_freed),
    ("dup_of_group_keeps_directory", dup_kept),
    ("dup_of_group_takes_channels", dup_channel),
    ("threads", threads),
];

/// Checks that the directory appears with the first channel group and disappears with the last.
fn groups() -> Outcome {
    let session = session(0)?;
    let client = session.gpu().client().clone();
    expect(&me(), 0, None)?;
    let first = session.group(ENGINE).during("group")?;
    expect(&me(), 0, Some((1, 0)))?;
    let second = session.group(ENGINE)?;
    expect(&me(), 0, Some((2, 0)))?;
    client.free(first)?;
    expect(&me(), 0, Some((1, 0)))?;
    client.free(second)?;
    expect_gone(process::id())
}

fn channels() -> Outcome {
    let session = session(0)?;
    let client = session.gpu().client().clone();
    let group = session.group(ENGINE)?;
    let first = session.channel(group, ENGINE).during("channel")?;
    let second = session.channel(group, ENGINE)?;
    expect(&me(), 0, Some((1, 2)))?;
    client.free(first)?;
    expect(&me(), 0, Some((1, 1)))?;
    client.free(second)?;
    expect(&me(), 0, Some((1, 0)))?;
    client.free(group)?;
    expect_gone(process::id())
}

/// Allocates 200 channels in two groups, since RM allows 128 per group.
fn many_channels() -> Outcome {
    const OF_A_GROUP: u64 = 128;
    const REST: u64 = 72;
    let session = session(0)?;
    let client = session.gpu().client();
    let (full, other) = (session.group(ENGINE)?, session.group(ENGINE)?);
    for _ in 0..OF_A_GROUP {
        session.channel(full, ENGINE)?;
    }
    let one_more = session.channel(full, ENGINE);
    same("one more is refused", one_more.is_err(), true)?;
    expect(&me(), 0, Some((2, OF_A_GROUP)))?;
    for _ in 0..REST {
        session.channel(other, ENGINE)?;
    }
    expect(&me(), 0, Some((2, OF_A_GROUP + REST)))?;
    client.free(full)?;
    expect(&me(), 0, Some((1, REST)))?;
    client.free(other)?;
    expect_gone(process::id())
}

/// Frees `top` of a session with two groups and their channels, and checks what is left.
fn free_with_all_below(top: impl Fn(&Session) -> Result<(), Error>) -> Outcome {
    let session = session(0)?;
    for _ in 0..2 {
        let group = session.group(ENGINE)?;
        session.channel(group, ENGINE)?;
    }
    expect(&me(), 0, Some((2, 2)))?;
    top(&session).during("free")?;
    expect_gone(process::id())
}

fn free_group() -> Outcome {
    let session = session(0)?;
    let group = session.group(ENGINE)?;
    for _ in 0..3 {
        session.channel(group, ENGINE)?;
    }
    expect(&me(), 0, Some((1, 3)))?;
    session.gpu().client().free(group)?;
    expect_gone(process::id())
}

fn free_device() -> Outcome {
    free_with_all_below(|session| session.gpu().client().free(session.gpu().device()))
}

fn free_client() -> Outcome {
    free_with_all_below(|session| session.gpu().client().free_all())
}

fn close_control() -> Outcome {
    let session = session(0)?;
    let group = session.group(ENGINE)?;
    session.channel(group, ENGINE)?;
    expect(&me(), 0, Some((1, 1)))?;
    drop(session);
    expect_gone(process::id())
}

/// Objects belong to the control file. The device's file only keeps the GPU initialised.
fn close_device() -> Outcome {
    let session = session(0)?;
    let client = session.gpu().client().clone();
    let group = session.group(ENGINE)?;
    drop(session);
    expect(&me(), 0, Some((1, 0)))?;
    client.free(group)?;
    expect_gone(process::id())
}

/// Checks that an object that RM refuses is not charged.
fn refused() -> Outcome {
    let session = session(0)?;
    let client = session.gpu().client();
    // An address space that does not exist.
    let group = session.group_in(0xdead_0001, ENGINE);
    same("is refused", group.is_err(), true)?;
    same("directory", tree::at(&me()).exists(), false)?;
    // A handle that is in use.
    let group = session.group(ENGINE)?;
    client.choose_next(group);
    match session.group(ENGINE) {
        Err(Error::Status(numbers::INSERT_DUPLICATE_NAME)) => {}
        other => return Err(failed(format!("a taken handle gave {other:?}"))),
    }
    expect(&me(), 0, Some((1, 0)))?;
    client.free(group)?;
    expect_gone(process::id())
}

/// Checks that a handle may be reused at once, also for an object of another class.
fn handle_again() -> Outcome {
    let session = session(0)?;
    let client = session.gpu().client();
    let group = session.group(ENGINE)?;
    for _ in 0..20 {
        client.free(group)?;
        client.choose_next(group);
        let memory = session.gpu().alloc_memory(Memory::Device, 0x1_0000)?;
        same("handle", memory, group)?;
        client.free(memory)?;
        client.choose_next(group);
        same("handle", session.group(ENGINE)?, group)?;
    }
    expect(&me(), 0, Some((1, 0)))?;
    client.free(group)?;
    expect_gone(process::id())
}

/// Checks that refused frees, and frees of objects that do not exist, change nothing.
fn refused_free() -> Outcome {
    let session = session(0)?;
    let client = session.gpu().client();
    let group = session.group(ENGINE)?;
    // A client may be used only through the file by which it was allocated.
    let other = Client::open()?;
    let stranger = client.through(other.control_file().clone());
    for object in [group, session.gpu().device(), client.handle()] {
        match stranger.free(object) {
            Err(Error::Status(numbers::INVALID_CLIENT)) => {}
            outcome => return Err(failed(format!("through another file: {outcome:?}"))),
        }
    }
    // The driver reports success for some of these.
    for (client, absent) in [(client, 0xdead_0001), (client, 0), (&other, group)] {
        let _ = client.free(absent);
    }
    expect(&me(), 0, Some((1, 0)))?;
    session.group_number(group).during("use after all that")?;
    client.free(group)?;
    let _ = client.free(group);
    expect_gone(process::id())
}

/// Checks that two clients through one file and one through another share one directory.
fn two_clients() -> Outcome {
    let first = session(0)?;
    let same_file = Client::new(first.gpu().client().control_file().clone())?;
    let second = session_of(&same_file, 0)?;
    let third = session(0)?;
    let mut groups = Vec::new();
    for (number, session) in (1..).zip([&first, &second, &third]) {
        groups.push((session, session.group(ENGINE)?));
        expect(&me(), 0, Some((number, 0)))?;
    }
    same_file.free_all()?;
    expect(&me(), 0, Some((2, 0)))?;
    for (session, group) in [groups[0], groups[2]] {
        session.gpu().client().free(group)?;
    }
    expect_gone(process::id())
}

/// Uses two GPUs through one client. Each directory lives as long as its own groups.
fn two_gpus() -> Outcome {
    need_two()?;
    let first = session(0)?;
    let client = first.gpu().client().clone();
    let second = session_of(&client, 1)?;
    let on_second = second.group(ENGINE)?;
    expect(&me(), 1, Some((1, 0)))?;
    expect(&me(), 0, None)?;
    let on_first = first.group(ENGINE)?;
    first.channel(on_first, ENGINE)?;
    expect(&me(), 0, Some((1, 1)))?;
    client.free(on_second)?;
    expect(&me(), 1, None)?;
    expect(&me(), 0, Some((1, 1)))?;
    client.free(on_first)?;
    expect_gone(process::id())
}

/// Checks that a client has one device per GPU. A refused second one changes nothing.
fn two_devices() -> Outcome {
    let session = session(0)?;
    let client = session.gpu().client().clone();
    let group = session.group(ENGINE)?;
    // 580 gives a client several devices of a GPU.
    let refused = client.control_file().release() < Release::R580;
    same("second device", Gpu::open(&client, 0).is_err(), refused)?;
    expect(&me(), 0, Some((1, 0)))?;
    client.free(group)?;
    expect_gone(process::id())
}

/// Returns a group, and a second name of it in another client of this process.
fn shared_group() -> Result<(Session, Session, Handle, Handle), Stop> {
    let (first, second) = (session(0)?, session(0)?);
    let group = first.group(ENGINE)?;
    let parent = second.gpu().device();
    let name = second
        .gpu()
        .client()
        .dup(parent, first.gpu().client(), group)
        .map_err(|error| skipped(format!("the driver does not share channel groups: {error}")))?;
    expect(&me(), 0, Some((1, 0)))?;
    Ok((first, second, group, name))
}

/// Checks that freeing a second name leaves the first.
fn dup_freed() -> Outcome {
    let (first, second, group, name) = shared_group()?;
    second.gpu().client().free(name)?;
    expect(&me(), 0, Some((1, 0)))?;
    first.gpu().client().free(group)?;
    expect_gone(process::id())
}

/// Checks that a channel group lives as long as it has a name, and so does its directory.
fn dup_kept() -> Outcome {
    let (first, second, group, name) = shared_group()?;
    first.gpu().client().free(group)?;
    // The remaining name is usable.
    second.group_number(name).during("GET_INFO")?;
    second.set_timeslice(name, 2000).during("SET_TIMESLICE")?;
    expect(&me(), 0, Some((1, 0))).during("with the second name only")?;
    second.gpu().client().free(name)?;
    expect_gone(process::id())
}

/// Checks that a channel below the second name runs in the group.
fn dup_channel() -> Outcome {
    let (first, second, group, name) = shared_group()?;
    let channel = second.channel(name, ENGINE).during("channel")?;
    expect(&me(), 0, Some((1, 1)))?;
    first.gpu().client().free(group)?;
    second.work_token(channel, ENGINE).during("use of it")?;
    expect(&me(), 0, Some((1, 1))).during("with the second name only")?;
    second.gpu().client().free(name)?;
    expect_gone(process::id())
}

/// Threads allocate and free groups, through clients of their own and a shared one.
fn threads() -> Outcome {
    const THREADS: usize = 4;
    const ROUNDS: usize = 10;
    let shared = session(0)?;
    let keeper = shared.group(ENGINE)?;
    let work = |own: &Session| -> Outcome {
        for _ in 0..ROUNDS {
            let mut made = Vec::new();
            for session in [own, &shared] {
                let group = session.group(ENGINE)?;
                session.channel(group, ENGINE)?;
                made.push((session, group));
            }
            for (session, group) in made {
                session.gpu().client().free(group)?;
            }
        }
        Ok(())
    };
    let sessions: Result<Vec<Session>, Stop> = (0..THREADS).map(|_| session(0)).collect();
    let sessions = sessions?;
    let outcome: Outcome = thread::scope(|scope| {
        let threads: Vec<_> = sessions
            .iter()
            .map(|session| scope.spawn(|| work(session)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| failed("a thread panicked"))?)
    });
    outcome?;
    expect(&me(), 0, Some((1, 0)))?;
    shared.gpu().client().free(keeper)?;
    expect_gone(process::id())
}
