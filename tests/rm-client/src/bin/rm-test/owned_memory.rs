// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the memory that owned channels execute from, and what the driver reads of their tenants':
//! that no work of a tenant writes to the former, and that the latter may go at any time.

use crate::faults::{events, shown, MMU_FAULT};
use crate::gpus::{me, session};
use crate::launch::recorder;
use crate::limits::set;
use crate::owned::{as_member, count, counts, join, no_worker, rings, OWNED};
use crate::owned_uvm::uvm_session;
use crate::submit::{queue, release};
use crate::tree::{eventually, Group};
use gct_core::submit::method::incr;
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::{numbers, Error, Handle, Memory, Queue, Session};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("owned_hostile_writes_to_the_ring_by_the_gpu", ring),
    ("owned_hostile_maps_over_the_ring", over),
    ("owned_hostile_frees_its_ring", freed),
    ("owned_hostile_asks_for_its_ring_back", asked_back),
    ("owned_memory_mapped_anew", anew),
    ("owned_memory_mapped_anew_by_uvm", anew_by_uvm),
    ("owned_memory_unmapped_by_uvm", unmapped_by_uvm),
    ("owned_hostile_wants_ever_new_windows", windows),
];

/// The name of the group of these tests.
const NAME: &str = "memory";

const PAGE: u64 = 0x1000;
/// Offset of the copies of segments from the ring that names them: one page.
const COPIES: u64 = PAGE;

/// Lets the GPU write to a real ring, and to the copies of segments behind it. The channels that do
/// so fault, and that of the ring runs on.
fn ring() -> Outcome {
    as_member(|_| {
        let recorder = recorder()?;
        let session = session(0)?;
        let mark = recorder.mark()?;
        let mut victim = queue(&session)?;
        let mut attackers = [queue(&session)?, queue(&session)?];
        counts(3, 0)?;
        let [ring, ..] = rings(&recorder, mark)?[..] else {
            return Err(failed("rings are expected"));
        };
        same("the tenant's", ring == victim.ring_address(), false)?;
        for (attacker, (at, errors)) in attackers.iter_mut().zip([(ring, 1), (ring + COPIES, 2)]) {
            release(attacker, 0, 1)?;
            attacker.submit_release_at(at, u32::MAX);
            eventually("errors", &shown(errors, MMU_FAULT), || events(&me()))?;
        }
        for number in 1..=3 {
            release(&mut victim, 0, number)?;
        }
        Ok(())
    })
}

/// Maps memory where the driver's ring and copies lie, in an address space of the resource
/// manager's.
fn over() -> Outcome {
    as_member(|_| {
        let recorder = recorder()?;
        let session = session(0)?;
        let mark = recorder.mark()?;
        let mut queue = queue(&session)?;
        let [ring] = rings(&recorder, mark)?[..] else {
            return Err(failed("one ring is expected"));
        };
        let memory = session.gpu().alloc_memory(Memory::Host, PAGE)?;
        for address in [ring, ring + PAGE, ring + 16 * PAGE] {
            let mapped = session.map_on_gpu_at(memory, address, PAGE);
            let refused = matches!(mapped, Err(Error::Status(numbers::NO_MEMORY)));
            same(&format!("refused: {mapped:?}"), refused, true)?;
        }
        release(&mut queue, 0, 1)?;
        // The addresses are free again with the channel.
        session.gpu().client().free(queue.channel())?;
        session
            .map_on_gpu_at(memory, ring, PAGE)
            .during("afterwards")
    })
}

/// Frees ring and USERD of a channel, which has new entries. The driver reads them until the
/// channel goes.
fn freed() -> Outcome {
    as_member(|_| {
        let (victim, witness) = (session(0)?, session(0)?);
        let (mut freed, mut other) = (queue(&victim)?, queue(&witness)?);
        release(&mut freed, 0, 1)?;
        // Most of it is found when the memory is gone, with its mappings.
        freed.write_positions(20, 0);
        for memory in [freed.memory(), victim.positions()] {
            victim.gpu().client().free(memory).during("free")?;
        }
        for number in 1..=20 {
            // What is in its ring is mapped for the GPU no more.
            freed.ring();
            release(&mut other, 0, number)?;
        }
        victim.gpu().client().free(freed.channel())?;
        release(&mut other, 0, 21)
    })
}

/// Asks the resource manager for a ring of the tenant's own, by a control that no rule allows.
fn asked_back() -> Outcome {
    const NOBODY: libc::uid_t = 65534;
    as_member(|_| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        // SAFETY: takes numbers. This process is this test's own.
        let outcome = unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) };
        same("setresuid", outcome, 0)?;
        let moved = session.move_ring(&queue, queue.ring_address());
        let refused = matches!(moved, Err(Error::Status(numbers::NOT_SUPPORTED)));
        same(&format!("refused: {moved:?}"), refused, true)?;
        release(&mut queue, 0, 2)
    })
}

/// Where these tests map segments.
pub(crate) const AT: u64 = 0x3_0000_0000;

/// Memory with one segment.
pub(crate) struct Segment {
    memory: Handle,
    address: u64,
}

impl Segment {
    const WORDS: u32 = 6;

    /// Allocates memory with a release of a semaphore there, and maps it.
    pub(crate) fn new(
        session: &Session,
        address: u64,
        semaphore: u64,
        payload: u32,
    ) -> Result<Self, Stop> {
        let gpu = session.gpu();
        let memory = gpu.alloc_memory(Memory::Host, PAGE)?;
        session
            .map_on_gpu_at(memory, address, PAGE)
            .during("mapping")?;
        // CAST: one page, and the halves of an address.
        let mapping = gpu.map_memory(Memory::Host, memory, PAGE as usize)?;
        let [low, high] = [semaphore as u32, (semaphore >> 32) as u32];
        let header = incr(0, numbers::SEM_ADDR_LO, 5);
        let words = [header, low, high, payload, 0, numbers::SEM_RELEASE];
        for (at, word) in (0..).step_by(4).zip(words) {
            mapping.u32(at).store(word, Ordering::Relaxed);
        }
        Ok(Self { memory, address })
    }

    pub(crate) fn submit(&self, queue: &mut Queue) {
        queue.submit_segment(self.address, Self::WORDS);
    }
}

/// Submits a segment, replaces its memory by other memory at the same address, and submits that.
fn replaces(session: &Session, unmap: impl Fn(&Segment) -> Outcome) -> Outcome {
    let mut queue = queue(session)?;
    counts(1, 0)?;
    let semaphore = queue.ring_address() + 0xf000;
    for payload in 1..=5 {
        let segment = Segment::new(session, AT, semaphore, payload)?;
        segment.submit(&mut queue);
        eventually("payload", &payload, || Ok(queue.payload(0)))?;
        unmap(&segment)?;
    }
    Ok(())
}

/// Checks that the driver reads a segment where its address leads now.
fn anew() -> Outcome {
    as_member(|_| {
        let session = session(0)?;
        replaces(&session, |old| {
            Ok(session.gpu().client().free(old.memory)?)
        })
    })
}

fn anew_by_uvm() -> Outcome {
    as_member(|_| {
        let session = uvm_session()?;
        let uvm = session.uvm().ok_or_else(|| failed("no UVM"))?;
        replaces(&session, |old| Ok(uvm.free(old.address, PAGE)?))
    })
}

/// Checks that the driver reads no segment where nothing is mapped any more.
fn unmapped_by_uvm() -> Outcome {
    as_member(|_| {
        let session = uvm_session()?;
        let uvm = session.uvm().ok_or_else(|| failed("no UVM"))?;
        let mut queue = queue(&session)?;
        let semaphore = queue.ring_address() + 0xf000;
        let segment = Segment::new(&session, AT, semaphore, 1)?;
        segment.submit(&mut queue);
        eventually("payload", &1, || Ok(queue.payload(0)))?;
        same("passed", count("passed")?, 0)?;
        uvm.free(segment.address, PAGE)?;
        segment.submit(&mut queue);
        eventually("passed", &1, || count("passed"))?;
        same("unreadable", count("passed.unreadable")?, 1)
    })
}

/// Submits segments in more memory than the driver keeps windows for, by turns, so that the worker
/// opens a window for each. A neighbour's segments are executed all the same.
fn windows() -> Outcome {
    const MEMORIES: u64 = 40;
    const ENTRIES: usize = 100;
    const STEP: u64 = 0x20_0000;
    let group = Group::new(NAME)?;
    set(NAME, OWNED, "1")?;
    let mut hostile = join(&group, |parent| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        let semaphore = queue.ring_address() + 0xf000;
        let mut segments = Vec::new();
        for number in 0..MEMORIES {
            let address = AT + number * STEP;
            segments.push(Segment::new(&session, address, semaphore, 1)?);
        }
        let mut next = segments.iter().cycle();
        for round in 1.. {
            // Some are always left.
            while queue.payload(1) + 2 < round {
                thread::sleep(Duration::from_micros(100));
            }
            for segment in next.by_ref().take(ENTRIES) {
                segment.submit(&mut queue);
            }
            queue.submit_release(1, round);
            if round == 2 {
                parent.step()?;
            }
        }
        Ok(())
    })?;
    hostile.next()?;
    let mut neighbour = join(&group, |_| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        let semaphore = queue.ring_address() + 0xf000;
        for number in 1..=10 {
            let address = AT + u64::from(number) * STEP;
            let segment = Segment::new(&session, address, semaphore, number)?;
            segment.submit(&mut queue);
            eventually("its payload", &number, || Ok(queue.payload(0)))?;
        }
        Ok(())
    })?;
    hostile.go()?;
    neighbour.go()?;
    neighbour.finish()?;
    hostile.kill();
    no_worker()
}
