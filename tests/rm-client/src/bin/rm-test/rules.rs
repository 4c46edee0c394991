// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that a governed tenant has no control over rings, pages and debuggers, nor an accomplice
//! of its, and that others have what the driver gives them.

use crate::gpus::{session, ENGINE};
use crate::limits::{path, set};
use crate::owned::{as_member, count, join, no_worker, NAME, OWNED};
use crate::process::{Child, Parent};
use crate::strangers::{leave, left};
use crate::submit::{queue, release};
use crate::tree::{self, Group};
use gct_core::rmapi::allow::{self, Rule};
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::{numbers as n, open_controls, Engine, Error, Queue, Session, PTE_WORDS};

pub(crate) const TESTS: &[Test] = &[
    ("owned_hostile_moves_its_ring", moves_ring),
    ("owned_hostile_writes_page_tables", writes_pages),
    ("owned_hostile_debugs_itself", debugs),
    ("owned_hostile_waits_for_idle", waits_for_idle),
    ("owned_hostile_allocates_what_acts_later", allocates),
    ("owned_hostile_serializes_its_parameters", serializes),
    ("owned_hostile_writes_keys", writes_keys),
    ("owned_hostile_waits_for_its_work", waits_for_its_work),
    ("owned_hostile_accomplice_without_limits", accomplice),
    ("owned_hostile_sends_every_open_control", every_control),
    ("owned_rules_bind_nobody_else", nobody_else),
];

/// The status of what a rule refuses.
const REFUSED: u32 = n::INSUFFICIENT_PERMISSIONS;

/// Returns a count of the group.
fn stat(key: &str) -> Result<u64, Stop> {
    tree::stat(&path(NAME, "compute.stat")?, key)
}

/// Returns the status of an outcome.
fn status<T>(outcome: Result<T, Error>) -> Result<u32, Stop> {
    match outcome {
        Ok(_) => Ok(n::OK),
        Err(Error::Status(status)) => Ok(status),
        Err(error) => Err(error.into()),
    }
}

/// Runs `attack` in a process whose channels are the driver's, then checks that so many refusals of
/// a rule were counted.
fn refused_by(rule: &str, times: u64, attack: impl FnOnce(&mut Parent) -> Outcome) -> Outcome {
    let key = format!("forbidden.{rule}");
    as_member(|parent| {
        attack(parent)?;
        same(&key, stat(&key)?, times)
    })
}

/// A ring whose entries all release another semaphore, in place of that which the driver fills.
fn moves_ring() -> Outcome {
    refused_by("ring", 1, |_| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        let other = session.ring_memory()?;
        let moved = session.set_ring(queue.channel(), other, 512)?;
        same("SET_GPFIFO", moved, REFUSED)?;
        release(&mut queue, 0, 2)
    })
}

/// An entry of its own page, which RM would write as it would the driver's.
fn writes_pages() -> Outcome {
    refused_by("tables", 2, |_| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        let page = queue.ring_address();
        let mut words = [0; PTE_WORDS];
        let read = session.page_entry(n::GET_PTE, page, &mut words)?;
        same("GET_PTE_INFO", read, REFUSED)?;
        same(
            "SET_PTE_INFO",
            session.page_entry(n::SET_PTE, page, &mut words)?,
            REFUSED,
        )?;
        release(&mut queue, 0, 2)
    })
}

/// libcuda makes a debugger of its own channel, and sets which exceptions it hears of.
fn debugs() -> Outcome {
    refused_by("debugger", 2, |_| {
        let session = session(0)?;
        let group = session.group(Engine::Compute)?;
        let mut queue = session.queue(group, Engine::Compute)?;
        let client = session.gpu().client();
        let object = client.alloc_bare(queue.channel(), n::COMPUTE)?;
        session.schedule(group, true)?;
        let debugger = session
            .debugger(client.handle(), object)
            .during("debugger")?;
        let mask = client.send(debugger, n::EXCEPTION_MASK, &mut [0x3a])?;
        if mask == REFUSED {
            return Err(failed("the mask of exceptions is refused"));
        }
        let page = queue.ring_address();
        let mut words = [0x1337; 16];
        let written = session.surface(debugger, n::WRITE_SURFACE, page + 0xf000, &mut words)?;
        same("WRITE_SURFACE", written, REFUSED)?;
        same("payload", queue.payload(0), 0)?;
        let read = session.surface(debugger, n::READ_SURFACE, page, &mut words)?;
        same("READ_SURFACE", read, REFUSED)?;
        release(&mut queue, 0, 1)
    })
}

/// A context that is switched when it is idle keeps the GPU over its slice.
fn waits_for_idle() -> Outcome {
    refused_by("checked", 1, |_| {
        let session = session(0)?;
        let group = session.group(Engine::Compute)?;
        session.queue(group, Engine::Compute)?;
        let (client, on) = (session.gpu().client(), session.gpu().subdevice());
        // The flags say that the mode of compute is set; 0 is wait-for-idle, 2 what libcuda sets.
        let mode = |mode| client.send(on, n::PREEMPTION_MODE, &mut [1, group, 0, mode, 0, 0, 0, 0]);
        same("wait-for-idle", mode(0)?, REFUSED)?;
        match mode(2)? {
            REFUSED => Err(failed("preemption between instructions is refused")),
            _ => Ok(()),
        }
    })
}

/// Objects whose methods the firmware or RM carries out, the GPU's registers, memory whose address
/// of the GPU's the caller names, and memory that an array in the kernel names.
fn allocates() -> Outcome {
    /// `NV01_MEMORY_FLA`, which 595 has no more.
    const BY_ADDRESS: u32 = 0xf3;
    as_member(|_| {
        let session = session(0)?;
        let queue = queue(&session)?;
        let (client, device) = (session.gpu().client(), session.gpu().device());
        let alloc = |parent, class| status(client.alloc_bare(parent, class));
        same(
            "deferred API",
            alloc(queue.channel(), n::DEFERRED_API)?,
            REFUSED,
        )?;
        same("registers", alloc(device, n::REGISTERS)?, REFUSED)?;
        same("memory by address", alloc(device, BY_ADDRESS)?, REFUSED)?;
        same("an array", alloc(device, n::OS_DESCRIPTOR)?, REFUSED)?;
        let counts = [
            stat("forbidden")?,
            stat("forbidden.deferred")?,
            stat("forbidden.tables")?,
            stat("forbidden.machine")?,
        ];
        same("refusals", counts, [4, 1, 2, 1])
    })
}

/// Parameters in a form that gctgroup does not read.
fn serializes() -> Outcome {
    refused_by("serialized", 1, |_| {
        let session = session(0)?;
        let queue = queue(&session)?;
        let client = session.gpu().client();
        let on = session.gpu().subdevice();
        let mut list = [0; 134];
        [list[1], list[6], list[70]] = [1, client.handle(), queue.channel()];
        let command = n::DISABLE_CHANNELS;
        let sent = client.send_flagged(on, command, &mut list, n::SERIALIZED)?;
        same("FIFO_DISABLE_CHANNELS", sent, REFUSED)
    })
}

/// The keys of RM, which it reads and writes with all of its locks.
fn writes_keys() -> Outcome {
    refused_by("machine", 1, |_| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        let written = session.gpu().client().write_key(b"k\0")?;
        same("ACCESS_REGISTRY", written, REFUSED)?;
        release(&mut queue, 0, 1)
    })
}

/// A wait of RM's for the tenant's own work, with a lock that a write of limits needs.
fn waits_for_its_work() -> Outcome {
    refused_by("schedule", 1, |_| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        let gpu = session.gpu();
        let waited = gpu.client().idle(gpu.device(), queue.channel(), 1000)?;
        same("IDLE_CHANNELS", waited, REFUSED)?;
        release(&mut queue, 0, 2)
    })
}

/// A process without limits that has a name of a member's address space, and a debugger of its
/// channel.
fn accomplice() -> Outcome {
    let group = Group::new(NAME)?;
    set(NAME, OWNED, "1")?;
    let mut tenant = join(&group, |parent| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        let client = session.gpu().client();
        client.share_with_all(session.space()).during("SHARE")?;
        leave([client.handle(), session.space()])?;
        parent.step()?;
        release(&mut queue, 0, 2)
    })?;
    tenant.next()?;
    let mut other = Child::fork(|_| {
        let (client, space) = left()?;
        let session = session(0)?;
        sets_page(&session, false).during("before")?;
        let gpu = session.gpu();
        gpu.client()
            .dup_of(gpu.device(), client, space)
            .during("DUP")?;
        sets_page(&session, true).during("with a name of another's")
    })?;
    other.finish()?;
    tenant.go()?;
    tenant.finish()?;
    no_worker()
}

/// Sends a SET_PTE_INFO, and checks whether a rule refuses it.
fn sets_page(session: &Session, refused: bool) -> Outcome {
    let mut words = [0; PTE_WORDS];
    let sent = session.page_entry(n::SET_PTE, 0x1000_0000, &mut words)?;
    same("a rule refuses SET_PTE_INFO", sent == REFUSED, refused)
}

/// Controls that end their caller's own channel, as they may.
fn ends_channels(command: u32) -> bool {
    matches!(command & 0x00ff_ffff, 0x6f_0102 | 0x6f_0105)
}

/// Sends a control about a channel, to the object of its class, if the tenant has one.
fn send_one(
    session: &Session,
    queue: &Queue,
    group: u32,
    (command, bytes): (u32, usize),
    first: u32,
) -> Result<u32, Stop> {
    let gpu = session.gpu();
    let object = match command >> 16 {
        0x0000 => gpu.client().handle(),
        0x0080 => gpu.device(),
        0x2080 => gpu.subdevice(),
        0xa06c => group,
        0x0041 => queue.memory(),
        0x90f1 => session.space(),
        _ => queue.channel(),
    };
    // A word more where the size is no multiple of one.
    let mut words = vec![0u32; bytes.div_ceil(4)];
    if let Some(word) = words.first_mut() {
        *word = first;
    }
    let client = gpu.client();
    match client.send_bytes(object, command, &mut words, bytes) {
        // Some are for the system interface, which takes no such parameters.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(n::INVALID_ARGUMENT),
        sent => Ok(sent?),
    }
}

/// Sends each open control, with zeros and with the channel's handle as its first word. What a rule
/// refuses does not reach the driver, all of it is counted, and the channel is as before.
fn every_control() -> Outcome {
    as_member(|_| {
        let session = session(0)?;
        let group = session.group(ENGINE)?;
        let mut queue = session.queue(group, ENGINE)?;
        session.schedule(group, true)?;
        release(&mut queue, 0, 1)?;
        let (mut refused, mut passed) = (0, 0);
        for first in [0, queue.channel()] {
            for control in open_controls().filter(|(command, _)| !ends_channels(*command)) {
                let rule = allow::control(control.0);
                let status = send_one(&session, &queue, group, control, first)?;
                match rule {
                    Rule::Unknown => return Err(failed(format!("{:#x} has no rule", control.0))),
                    rule if rule.refuses() => {
                        same(&format!("{:#x}", control.0), status, REFUSED)?;
                        refused += 1;
                    }
                    // What is checked may be refused by its parameters.
                    Rule::Checked if status == REFUSED => refused += 1,
                    _ => passed += 1,
                }
            }
        }
        same("forbidden", stat("forbidden")?, refused)?;
        same("some pass", passed > 500, true)?;
        // Zeros take the group off the runlist.
        session.schedule(group, true)?;
        release(&mut queue, 0, 2)?;
        same("owned, native", (count("owned")?, count("native")?), (1, 0))
    })
}

/// While a member is governed, others are not; and nobody is without members.
fn nobody_else() -> Outcome {
    let moves = || {
        let session = session(0)?;
        let queue = queue(&session)?;
        let other = session.ring_memory()?;
        let moved = session.set_ring(queue.channel(), other, 512)?;
        same("SET_GPFIFO", moved, n::OK)
    };
    moves().during("without members")?;
    let group = Group::new(NAME)?;
    let mut member = join(&group, |parent| parent.step())?;
    member.next()?;
    moves().during("beside a member")?;
    member.go()?;
    member.finish()
}
