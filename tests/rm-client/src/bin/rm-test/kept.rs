// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that memory is charged for as long as anything keeps it: mappings of nvidia-uvm, channels,
//! and what the driver takes for objects.

use crate::gmem::{current, events, LIMIT};
use crate::gpus::{me, refused, session, strange, ENGINE};
use crate::limits::{path, set};
use crate::managed::{self, uvm};
use crate::owned::as_member;
use crate::process::{take_descriptor, Child, Parent};
use crate::submit::{queue, release};
use crate::tree::{self, eventually, expect, Group};
use gct_ktap::{failed, holds, same, During, Outcome, Stop, Test};
use rm_client::{numbers, Client, Engine, Error, Gpu, Memory, Session};
use std::fs::{self, File};

pub(crate) const TESTS: &[Test] = &[
    ("hostile_uvm_keeps_what_is_freed", mapped),
    ("hostile_uvm_keeps_parts_of_what_is_freed", mapped_in_parts),
    ("hostile_uvm_maps_by_another_file", || {
        strange(mapped_by_another)
    }),
    ("hostile_uvm_keeps_what_a_killed_process_had", killed),
    ("hostile_channel_keeps_what_is_freed", positions),
    ("hostile_owned_channel_keeps_its_ring", ring),
    ("costs_cover_what_the_driver_takes", costs),
    ("hostile_crowd_of_channels_and_spaces", || refused(crowd)),
    ("hostile_tenant_fills_no_gpu", fills),
];

const MEGABYTE: u64 = 1 << 20;
const SIZE: u64 = 32 * MEGABYTE;
/// Where the tests map.
const AT: u64 = 0x3_0000_0000;

/// Returns what `gmem.current` has of the resource manager's memory: without nvidia-uvm's page
/// tables, whose root comes and goes with the address space.
fn pinned(owner: &str) -> Result<u64, Stop> {
    tree::stat(&path(owner, "gmem.stat")?, "pinned")
}

/// Opens a session whose address space is nvidia-uvm's, with a directory.
fn with_uvm() -> Result<(Session, u64), Stop> {
    let session = managed::session()?;
    let before = pinned(&me())?;
    Ok((session, before))
}

/// Maps new memory and frees its handle. Checks that it is charged.
fn map_and_free(session: &Session, before: u64) -> Outcome {
    let gpu = session.gpu();
    let memory = gpu.alloc_memory(Memory::Device, SIZE)?;
    uvm(session)?
        .map(gpu, memory, AT, SIZE)
        .during("external mapping")?;
    same("mapped", pinned(&me())?, before + SIZE)?;
    gpu.client().free(memory)?;
    same("freed", pinned(&me())?, before + SIZE)
}

/// Memory that only nvidia-uvm maps stays charged until it maps it no more, in each way.
fn mapped() -> Outcome {
    let (mut session, before) = with_uvm()?;
    map_and_free(&session, before)?;
    uvm(&session)?.unmap(AT, SIZE)?;
    same("unmapped", pinned(&me())?, before)?;
    uvm(&session)?.free(AT, SIZE)?;
    map_and_free(&session, before)?;
    uvm(&session)?.free(AT, SIZE)?;
    same("range freed", pinned(&me())?, before)?;
    map_and_free(&session, before)?;
    uvm(&session)?.unregister_space()?;
    same("space given back", pinned(&me())?, before)?;
    drop(session);
    let (again, before) = with_uvm()?;
    session = again;
    map_and_free(&session, before)?;
    // Memory that cannot be mapped is not kept.
    let gpu = session.gpu();
    let memory = gpu.alloc_memory(Memory::Device, SIZE)?;
    let nowhere = uvm(&session)?.map_reserved(gpu, memory, AT + (1 << 32), SIZE);
    holds("nowhere", nowhere.is_err())?;
    gpu.client().free(memory)?;
    same("not mapped", pinned(&me())?, before + SIZE)?;
    session.close_uvm();
    eventually("file closed", &true, || Ok(pinned(&me())? < before + SIZE))
}

/// Of memory that is unmapped in parts, the last part keeps all. A mapping over another takes its
/// place.
fn mapped_in_parts() -> Outcome {
    let (session, before) = with_uvm()?;
    let space = uvm(&session)?;
    map_and_free(&session, before)?;
    for part in [1, 0, 3, 5, 7, 6] {
        space
            .unmap(AT + part * SIZE / 8, SIZE / 8)
            .during(format!("part {part}"))?;
        same("a part", pinned(&me())?, before + SIZE)?;
    }
    // Over the end of part 2 and the beginning of part 4.
    let other = session.gpu().alloc_memory(Memory::Device, SIZE)?;
    space
        .map_reserved(session.gpu(), other, AT + 5 * SIZE / 16, SIZE / 4)
        .during("over both")?;
    session.gpu().client().free(other)?;
    same("over both", pinned(&me())?, before + 2 * SIZE)?;
    space.unmap(AT + 2 * SIZE / 8, SIZE / 16)?;
    same("the one's end is left", pinned(&me())?, before + 2 * SIZE)?;
    space.unmap(AT + 9 * SIZE / 16, SIZE / 16)?;
    same("the other is left", pinned(&me())?, before + SIZE)?;
    space.free(AT, SIZE)?;
    same("nothing is left", pinned(&me())?, before)
}

/// A tenant under a limit maps nothing that cannot be followed: the descriptor is not that of the
/// client's file.
fn mapped_by_another() -> Outcome {
    let (session, before) = with_uvm()?;
    let counted = tree::stat("events", "client")?;
    let memory = session.gpu().alloc_memory(Memory::Device, SIZE)?;
    let other = Client::open()?;
    set(&me(), LIMIT, &(before + 2 * SIZE).to_string())?;
    let space = uvm(&session)?;
    let by_another = space.map_by(&other, session.gpu(), memory, AT, SIZE);
    same(
        "status",
        by_another.map_err(status),
        Err(Some(numbers::INSUFFICIENT_PERMISSIONS)),
    )?;
    same("counted", tree::stat("events", "client")?, counted + 1)?;
    session.gpu().client().free(memory)?;
    same("nothing is kept", pinned(&me())?, before)
}

fn status(error: Error) -> Option<u32> {
    match error {
        Error::Status(status) => Some(status),
        _ => None,
    }
}

/// Takes the open files of nvidia-uvm that a process has.
fn files_of_uvm(pid: u32) -> Result<Vec<File>, Stop> {
    let mut files = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        if fs::read_link(entry.path())?.ends_with("nvidia-uvm") {
            let name = entry.file_name();
            let descriptor = name.to_str().and_then(|name| name.parse().ok());
            let descriptor = descriptor.ok_or_else(|| failed("no number"))?;
            files.push(take_descriptor(pid, descriptor)?);
        }
    }
    Ok(files)
}

/// Memory that a process's address space maps stays charged to its group when the process is
/// killed and another has the file of nvidia-uvm.
fn killed() -> Outcome {
    let group = Group::new("rm")?;
    let mut child = Child::fork(|parent: &mut Parent| {
        parent.step()?;
        let (session, before) = with_uvm()?;
        map_and_free(&session, before)?;
        parent.step()?;
        parent.step()
    })?;
    child.at_step()?;
    group.add(child.pid())?;
    child.next().during("its mapping")?;
    let charged = pinned("rm")?;
    let files = files_of_uvm(child.pid())?;
    holds("a file of nvidia-uvm", !files.is_empty())?;
    child.kill();
    // What else it had goes.
    eventually("killed", &true, || Ok(pinned("rm")? < charged))?;
    eventually("kept", &SIZE, || pinned("rm"))?;
    drop(files);
    eventually("given back", &0, || current("rm"))
}

/// Memory with the positions or the notifier of a channel stays charged until the channel goes.
fn positions() -> Outcome {
    let session = session(0)?;
    let (gpu, client) = (session.gpu(), session.gpu().client());
    let group = session.group(ENGINE)?;
    expect(&me(), 0, Some((1, 0)))?;
    for notifies in [false, true] {
        let before = current(&me())?;
        let (memory, positions) = (gpu.alloc_memory(Memory::Device, SIZE)?, session.positions());
        let channel = match notifies {
            true => session.channel_on(group, ENGINE, positions, Some(memory))?,
            false => session.channel_on(group, ENGINE, memory, None)?,
        };
        let with_channel = current(&me())?;
        holds("charged", with_channel >= before + SIZE)?;
        client.free(memory)?;
        same("freed", current(&me())?, with_channel)?;
        client.free(channel)?;
        same("channel freed", current(&me())?, before)?;
    }
    Ok(())
}

/// The ring and the positions of an owned channel, which the driver reads, stay charged until the
/// channel goes.
fn ring() -> Outcome {
    /// Of a `Queue`, and of the positions of a session's channels.
    const BYTES: u64 = 0x1_0000 + 0x8_0000;
    as_member(|_| {
        let session = session(0)?.with_rings_on_device();
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        let (client, charged) = (session.gpu().client(), pinned(&me())?);
        for memory in [queue.memory(), session.positions()] {
            client.free(memory).during("free")?;
        }
        same("freed", pinned(&me())?, charged)?;
        client.free(queue.channel())?;
        eventually("channel freed", &true, || {
            Ok(pinned(&me())? + BYTES <= charged)
        })
    })
}

/// Returns the bytes that the resource manager has of GPU 0's memory for new objects.
fn free_bytes(gpu: &Gpu) -> Result<u64, Stop> {
    let [free] = gpu.memory_facts([numbers::HEAP_FREE])?;
    Ok(u64::from(free) << 10)
}

/// What the driver takes for objects is not more than what is charged for them, by the resource
/// manager's own count of free memory.
fn costs() -> Outcome {
    /// Pools are taken 2 MiB at a time, for all of a kind.
    const SLACK: u64 = 4 * MEGABYTE;
    const COUNT: usize = 16;
    let looker = session(0)?;
    let session = session(0)?;
    session.group(ENGINE)?;
    expect(&me(), 0, Some((1, 0)))?;
    let graphics = Engine::Compute;
    let (group, sharing) = (session.group(graphics)?, session.group(graphics)?);
    type Make<'a> = &'a dyn Fn() -> Result<(), Error>;
    let made: [(&str, Make<'_>); 5] = [
        ("spaces", &|| session.another_space_of_rm().map(drop)),
        ("compute groups", &|| session.group(graphics).map(drop)),
        ("copy groups", &|| session.group(ENGINE).map(drop)),
        ("context shares", &|| {
            session.context_share(sharing).map(drop)
        }),
        ("channels", &|| session.channel(group, graphics).map(drop)),
    ];
    let mut lacking = Vec::new();
    for (name, make) in made {
        let (charged, free) = (current(&me())?, free_bytes(looker.gpu())?);
        for number in 0..COUNT {
            make().during(format!("{name} {number}"))?;
        }
        let charged = current(&me())? - charged;
        let taken = free.saturating_sub(free_bytes(looker.gpu())?);
        println!("# {COUNT} {name}: {taken} bytes taken, {charged} charged");
        if taken > charged + SLACK {
            lacking.push(name);
        }
    }
    same("charged too little", lacking, Vec::<&str>::new())
}

/// An owner under a limit has no more channels and address spaces than it may have.
fn crowd() -> Outcome {
    const SPACES: usize = 512;
    let session = session(0)?;
    session.group(ENGINE)?;
    expect(&me(), 0, Some((1, 0)))?;
    set(&me(), LIMIT, &(1u64 << 50).to_string())?;
    let mut spaces = Vec::new();
    let last = loop {
        match session.another_space_of_rm() {
            Ok(space) => spaces.push(space),
            Err(error) => break status(error),
        }
    };
    same("status", last, Some(numbers::INSUFFICIENT_RESOURCES))?;
    // That of the session is one.
    same("spaces", spaces.len(), SPACES - 1)?;
    session.gpu().client().free(spaces[0])?;
    session.another_space_of_rm().during("one for another")?;
    Ok(())
}

/// Something that a tenant tries with a number.
type Attempt<'a> = Box<dyn FnMut(u64) -> Result<(), Error> + 'a>;

/// What a tenant tries, one after the other, until it is refused or has done it often.
fn attempts(session: &Session) -> Vec<(&'static str, Attempt<'_>)> {
    const CHUNK: u64 = 8 * MEGABYTE;
    let (gpu, client) = (session.gpu(), session.gpu().client());
    let group = session.group(ENGINE);
    let of_group = move || match &group {
        Ok(group) => Ok(*group),
        Err(_) => Err(Error::Status(numbers::NO_MEMORY)),
    };
    let memory = move || gpu.alloc_memory(Memory::Device, CHUNK);
    vec![
        (
            "mappings",
            Box::new(move |number| {
                let memory = memory()?;
                let space = session.uvm().ok_or(Error::Status(0))?;
                let mapped = space.map(gpu, memory, AT + number * CHUNK, CHUNK);
                client.free(memory)?;
                mapped
            }),
        ),
        (
            "channels",
            Box::new(move |_| {
                let memory = memory()?;
                let channel = session.channel_on(of_group()?, ENGINE, memory, None);
                client.free(memory)?;
                channel.map(drop)
            }),
        ),
        (
            "spaces",
            Box::new(move |_| session.another_space_of_rm().map(drop)),
        ),
        (
            "groups",
            Box::new(move |_| session.group(Engine::Compute).map(drop)),
        ),
        ("memory", Box::new(move |_| memory().map(drop))),
    ]
}

/// A tenant under a limit that tries all of it takes no more of the GPU than its limit, by the
/// resource manager's own count.
fn fills() -> Outcome {
    /// What the driver takes for the tenant's files and devices, and for pools of its own.
    const SLACK: u64 = 32 * MEGABYTE;
    const ROOM: u64 = 256 * MEGABYTE;
    let group = Group::new("rm")?;
    let looker = session(0)?;
    for only in 0..5 {
        let free = free_bytes(looker.gpu())?;
        let mut child = Child::fork(|parent: &mut Parent| {
            parent.step()?;
            let session = managed::session()?;
            parent.step()?;
            // Each alone, and then all.
            let mut attempts = attempts(&session);
            attempts.rotate_left(only);
            for (name, mut attempt) in attempts {
                let mut number = 0;
                while number < 4000 && attempt(number).is_ok() {
                    number += 1;
                }
                println!("# {number} {name}");
                holds(name, number < 4000)?;
            }
            parent.step()
        })?;
        child.at_step()?;
        group.add(child.pid())?;
        child.next().during("its session")?;
        let limit = current("rm")? + ROOM;
        set("rm", LIMIT, &limit.to_string())?;
        child.next().during("its attempts")?;
        let taken = free.saturating_sub(free_bytes(looker.gpu())?);
        println!("# limit {limit}, taken {taken}, charged {}", current("rm")?);
        holds("within the limit", taken <= limit + SLACK)?;
        holds("refused", events("rm", "limit")? > 0)?;
        child.go()?;
        child.finish()?;
        eventually("given back", &0, || current("rm"))?;
        set("rm", LIMIT, "max")?;
    }
    Ok(())
}
