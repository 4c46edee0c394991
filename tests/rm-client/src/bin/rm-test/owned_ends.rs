// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests what goes away below owned channels: their switch, their GPU, the driver.

use crate::gpus::{need_two, session, Unbinding, ENGINE};
use crate::limits::set;
use crate::owned::{count, counts, member, no_worker, workers, NAME, OWNED};
use crate::owned_uvm::uvm_session;
use crate::process::Child;
use crate::submit::{queue, release};
use crate::tree::{self, eventually, Group};
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::{Handle, Memory, Queue, Session};
use std::process::Command;

/// These need GPUs that nobody has open.
pub(crate) const FIRST_TESTS: &[Test] = &[
    ("owned_ends_with_its_gpu", unbound),
    ("owned_ends_with_the_driver", unloaded),
];

pub(crate) const TESTS: &[Test] = &[
    ("owned_ends_not_with_the_switch", moved),
    ("owned_mappings_outlive_the_switch", moved_before),
];

/// Bytes of a page, and where the segments of a test lie.
const PAGE: u64 = 0x1000;
const SEGMENT: u64 = 0x3_0000_0000;

/// Has an owned channel execute segments at an address at which other memory is mapped once the
/// switch is off. The worker reads the new memory, so that a later limit binds what is there.
fn moved() -> Outcome {
    for in_uvm in [false, true] {
        let group = Group::new(NAME)?;
        let mut child = member(&group, |parent| {
            let session = session_in(in_uvm)?;
            let mut queue = queue(&session)?;
            let segment = Segment::new(&session)?;
            execute(&session, &mut queue, segment.first, 7)?;
            parent.step()?;
            let second = segment.replace(&session)?;
            execute(&session, &mut queue, second, 8)?;
            same("unreadable", unreadable(), 0)
        })?;
        child.next()?;
        set(NAME, OWNED, "0")?;
        child.go()?;
        child.finish().during(format!("UVM {in_uvm}"))?;
        no_worker()?;
    }
    Ok(())
}

/// The same for a tenant that has no channel while the switch is off. The channel that it makes
/// when the switch is on again executes what is mapped then. There is no group, whose members would
/// be recorded whatever the switch is.
fn moved_before() -> Outcome {
    for in_uvm in [false, true] {
        let mut child = Child::fork(|parent| {
            // With a channel group it has a directory.
            let earlier = session(0)?;
            earlier.group(ENGINE)?;
            parent.step()?;
            let session = session_in(in_uvm)?;
            let segment = Segment::new(&session)?;
            parent.step()?;
            let second = segment.replace(&session)?;
            parent.step()?;
            let mut queue = queue(&session)?;
            counts(1, 0)?;
            execute(&session, &mut queue, second, 8)?;
            same("unreadable", unreadable(), 0)
        })?;
        let name = child.pid().to_string();
        child.at_step()?;
        set(&name, OWNED, "1")?;
        child.next()?;
        set(&name, OWNED, "0")?;
        child.next()?;
        set(&name, OWNED, "1")?;
        child.go()?;
        child.finish().during(format!("UVM {in_uvm}"))?;
        no_worker()?;
    }
    Ok(())
}

pub(crate) fn session_in(uvm: bool) -> Result<Session, Stop> {
    match uvm {
        true => uvm_session(),
        false => session(0),
    }
}

/// Returns how many segments of this process could not be read. A reason that did not occur has no
/// line.
fn unreadable() -> u64 {
    count("passed.unreadable").unwrap_or(0)
}

/// Memory that is mapped at [`SEGMENT`].
struct Segment {
    /// The range of an address space of the resource manager's.
    range: Option<Handle>,
    first: Handle,
}

impl Segment {
    fn new(session: &Session) -> Result<Self, Stop> {
        let gpu = session.gpu();
        let first = gpu.alloc_memory(Memory::Host, PAGE)?;
        let range = match session.uvm() {
            Some(uvm) => {
                uvm.map(gpu, first, SEGMENT, PAGE)?;
                None
            }
            None => {
                let range = session.range()?;
                session.map_in(range, first, PAGE, Some(SEGMENT))?;
                Some(range)
            }
        };
        Ok(Self { range, first })
    }

    /// Maps other memory in its place, and returns that.
    fn replace(&self, session: &Session) -> Result<Handle, Stop> {
        let gpu = session.gpu();
        let second = gpu.alloc_memory(Memory::Host, PAGE)?;
        if let Some(range) = self.range {
            session.unmap_in(range, self.first, SEGMENT)?;
            session.map_in(range, second, PAGE, Some(SEGMENT))?;
        } else if let Some(uvm) = session.uvm() {
            uvm.unmap(SEGMENT, PAGE)?;
            uvm.map_reserved(gpu, second, SEGMENT, PAGE)?;
        }
        Ok(second)
    }
}

/// Executes a release from memory that is mapped at [`SEGMENT`].
fn execute(session: &Session, queue: &mut Queue, memory: Handle, payload: u32) -> Outcome {
    let bytes = usize::try_from(PAGE).map_err(failed)?;
    let words = session.gpu().map_memory(Memory::Host, memory, bytes)?;
    queue.submit_release_in(&words, SEGMENT, 0, payload);
    eventually("payload", &payload, || Ok(queue.payload(0)))
}

/// Takes a GPU from the driver while a tenant has an owned channel there. The driver waits for its
/// open files, and gctgroup does not: its thread ends at once.
fn unbound() -> Outcome {
    need_two()?;
    let group = Group::new(NAME)?;
    set(NAME, OWNED, "1")?;
    let on_other = format!("{NAME}/{}/{OWNED}", tree::index_of(1)?);
    tree::write(&on_other, "1").during("switch")?;
    let unbinding;
    let mut child = member(&group, |parent| {
        let session = session(1)?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        parent.step()?;
        // The channel is gone. The tenant's calls return all the same.
        queue.submit_release(0, 2);
        session.gpu().client().free(queue.channel())?;
        same("executed", queue.payload(0), 1)?;
        parent.step()
    })?;
    child.next()?;
    same("workers", workers()?, 1)?;
    unbinding = Unbinding::begin(1)?;
    no_worker()?;
    child.next().during("a tenant of the GPU")?;
    child.kill();
    unbinding.undo()?;
    drop(group);
    let mut queue_after = queue(&session(1)?)?;
    release(&mut queue_after, 0, 1)
}

/// Removes both modules right after a tenant with an owned channel was killed, and loads them
/// again.
fn unloaded() -> Outcome {
    let group = Group::new(NAME)?;
    let mut child = member(&group, |parent| {
        let session = uvm_session()?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        for number in 0..400 {
            queue.submit_release(1, number);
        }
        parent.step()
    })?;
    child.next()?;
    same("in use", shell("unload_nvidia 2>/dev/null")?, false)?;
    child.kill();
    // It goes with the tree.
    std::mem::forget(group);
    eventually("unloaded", &true, || shell("unload_nvidia 2>/dev/null"))?;
    same("tree", tree::at("").exists(), false)?;
    no_worker()?;
    same("loaded", shell("load_nvidia && load_uvm")?, true)
}

/// Runs a command of the machine's shell functions. Returns whether it succeeded.
fn shell(command: &str) -> Result<bool, Stop> {
    let script = format!(". /test/lib.sh; {command}");
    Ok(Command::new("sh").args(["-c", &script]).status()?.success())
}
