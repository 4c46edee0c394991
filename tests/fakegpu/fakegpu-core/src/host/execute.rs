// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executes channels, a bounded piece at a time.
//!
//! The front end calls [`Gpu::step`](crate::Gpu::step) from its own thread, between the guest's
//! accesses. A channel that waits for a semaphore is polled: the guest's processors release
//! semaphores by plain stores, which send no notification.

use crate::ce::Moved;
use crate::chip::{ChipDescription, Engine, EngineKind};
use crate::compute::Advance;
use crate::copies::{Begun, Copies, Direction};
use crate::faults::{Faults, Place, Report, Target, Ticket};
use crate::gmmu::{AddressSpace, Fault};
use crate::gsp::objects::ObjectKey;
use crate::host::channel::{Channel, ChannelId};
use crate::host::methods::{decode, Executed, FIRST_ENGINE_METHOD};
use crate::intr::InterruptTree;
use crate::memory::{PhysicalAddress, PhysicalMemory};
use crate::platform::Clock;
use crate::recorder::{Event, Recorder};
use gct_core::submit::gpfifo::{Entry, Segment};

/// Offsets in USERD: how far the ring is fetched, and how far it is filled.
const USERD_GP_GET: u64 = 0x88;
const USERD_GP_PUT: u64 = 0x8c;
/// Bit 8 of an entry's second word. It is reserved, and not among what makes an entry invalid (the
/// manual of GA100's PBDMA), so it means nothing.
const RESERVED: u64 = 1 << 40;
/// Maximum number of entries that are fetched and not begun.
const FETCHED_MAX: usize = 8;

/// A fault: a channel stopped because of an address that is unmapped, or read-only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelFault {
    /// The key of the channel.
    pub object: ObjectKey,
    /// The number of the channel.
    pub id: ChannelId,
    /// The address.
    pub va: u64,
}

/// The parts of the device that execution needs.
pub struct Work<'a> {
    /// The description of the chip.
    pub chip: &'a ChipDescription,
    /// Video and guest memory.
    pub memory: &'a mut PhysicalMemory,
    /// Interrupts to the guest.
    pub intr: &'a mut InterruptTree,
    /// The clock.
    pub clock: &'a dyn Clock,
    /// Model time of the runlist.
    pub now_ns: u64,
    /// Records launches.
    pub recorder: &'a dyn Recorder,
    /// Collects faults.
    pub faults: &'a mut Vec<ChannelFault>,
    /// Accesses that wait for the driver.
    pub replayable: &'a mut Faults,
    /// What the copy engines have moved.
    pub copies: &'a mut Copies,
    /// The engine of the channel that executes.
    pub engine: Option<Engine>,
    /// Methods left in this turn.
    pub methods: u32,
    /// Bytes left in this turn.
    pub bytes: u64,
}

impl Work<'_> {
    /// Raises the interrupt that a pushbuffer requests.
    pub fn non_stall_interrupt(&mut self) {
        if let Some(engine) = self.engine {
            self.intr.trigger(engine.vector_nonstall);
        }
    }

    fn copy_engine(&self) -> Option<u32> {
        match self.engine?.kind {
            EngineKind::Copy(engine) => Some(engine),
            EngineKind::Graphics => None,
        }
    }

    /// Counts bytes that this channel's copy engine has moved.
    pub fn count_copied(&mut self, direction: Direction, bytes: u64) {
        if let Some(engine) = self.copy_engine() {
            self.copies.add(engine, direction, bytes);
        }
    }

    /// Counts an operation of this channel's copy engine that has ended.
    pub fn count_copy(&mut self, operation: Begun, bytes: u64) {
        // Graphics engines copy, too, and are not counted.
        let engine = self.copy_engine().unwrap_or(u32::MAX);
        self.copies.end(engine, operation, bytes);
    }

    /// Reports a replayable fault. Returns the number of the access, if it can stall.
    pub fn stall(&mut self, place: &Place, va: u64, write: bool) -> Option<Ticket> {
        let (replayable, report) = self.report();
        let ticket = replayable.stall(report, *place, va, write);
        if ticket.is_some() {
            let channel = place.channel;
            let event = Event::Fault { channel, va, write };
            self.recorder.record(self.clock.now_ns(), &event);
        }
        ticket
    }

    /// Tries stalled accesses again.
    pub fn replay(&mut self) {
        let (replayable, report) = self.report();
        replayable.replay(report);
        self.recorder.record(self.clock.now_ns(), &Event::Replay);
    }

    /// Cancels stalled accesses.
    pub fn cancel(&mut self, target: &Target) {
        self.replayable.cancel(target);
        let event = Event::Cancel { va: target.va };
        self.recorder.record(self.clock.now_ns(), &event);
    }

    fn report(&mut self) -> (&mut Faults, Report<'_>) {
        let report = Report {
            memory: &mut *self.memory,
            intr: &mut *self.intr,
            vector: self.chip.vectors.replayable_fault,
            now_ns: self.clock.now_ns(),
        };
        (&mut *self.replayable, report)
    }
}

/// How much work is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No work is left.
    Idle,
    /// All remaining work waits for a semaphore.
    Waiting,
    /// Launches run. The next event comes after this many nanoseconds, unless a semaphore is
    /// released.
    Running(u64),
    /// Work is left that can be executed now.
    Busy,
}

impl Progress {
    /// Combines the progress of two places.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Busy, _) | (_, Self::Busy) => Self::Busy,
            (Self::Running(one), Self::Running(two)) => Self::Running(one.min(two)),
            (Self::Running(ns), _) | (_, Self::Running(ns)) => Self::Running(ns),
            (Self::Waiting, _) | (_, Self::Waiting) => Self::Waiting,
            (Self::Idle, Self::Idle) => Self::Idle,
        }
    }
}

impl Channel {
    /// Executes for one turn, in the address space below `root`.
    pub(super) fn turn(&mut self, work: &mut Work<'_>, root: Option<PhysicalAddress>) -> Progress {
        let Some(root) = root else {
            log::warn!(
                "{:?} has no page directory for {:x?}",
                self.id(),
                self.space()
            );
            self.stop(work);
            return Progress::Idle;
        };
        let space = AddressSpace { root };
        match self.run(work, space) {
            Ok(progress) => progress,
            Err(fault) => {
                log::warn!(
                    "channel {:?} has faulted at {:#x}: it stops",
                    self.id(),
                    fault.va
                );
                work.faults.push(ChannelFault {
                    object: self.object(),
                    id: self.id(),
                    va: fault.va,
                });
                self.stop(work);
                Progress::Idle
            }
        }
    }

    fn run(&mut self, work: &mut Work<'_>, space: AddressSpace) -> Result<Progress, Fault> {
        if self.may_begin() {
            self.fetch_ahead(work, space)?;
        }
        while work.methods > 0 && work.bytes > 0 {
            match self.copy.advance(work, space)? {
                Moved::All => {}
                Moved::Some => return Ok(Progress::Busy),
                Moved::Held => return Ok(Progress::Waiting),
            }
            let next = self.methods.front().copied().filter(|_| self.may_begin());
            // Compute methods are gathered, and executed before anything else.
            if next.is_some_and(|method| self.gather(method)) {
                self.methods.pop_front();
                work.methods -= 1;
                continue;
            }
            let place = self.place(space);
            match self.compute.advance(work, &place) {
                Advance::Done => {}
                Advance::Unfinished => return Ok(Progress::Busy),
                Advance::Running { left_ns } => return Ok(Progress::Running(left_ns)),
                Advance::Blocked => return Ok(Progress::Waiting),
                Advance::Faulted { va } => return Err(Fault { va }),
            }
            if !self.may_begin() {
                self.lose_engine();
                return Ok(Progress::Idle);
            }
            if let Some(method) = next {
                if method.method >= FIRST_ENGINE_METHOD {
                    self.execute_on_engine(work, space, method)?;
                } else if self.host.execute(work, space, method)? == Executed::Blocked {
                    return Ok(Progress::Waiting);
                }
                self.methods.pop_front();
                work.methods = work.methods.saturating_sub(1);
            } else if !self.next_entry(work, space)? {
                return Ok(Progress::Idle);
            }
        }
        Ok(Progress::Busy)
    }

    /// Begins the next entry. Returns whether there was one.
    fn next_entry(&mut self, work: &mut Work<'_>, space: AddressSpace) -> Result<bool, Fault> {
        let is_empty = self.fetch_ahead(work, space)?;
        let Some(segment) = self.fetched.pop_front() else {
            self.rung = !is_empty;
            return Ok(self.rung);
        };
        let words = read_segment(work.memory, space, segment)?;
        self.methods = decode(&words, &mut self.partial);
        Ok(true)
    }

    /// Fetches entries of the ring, up to [`FETCHED_MAX`] ahead of their execution. As on hardware,
    /// GP_GET says nothing about the segments of the entries before it. Returns whether the ring is
    /// empty.
    fn fetch_ahead(&mut self, work: &mut Work<'_>, space: AddressSpace) -> Result<bool, Fault> {
        let before = self.get;
        let mut is_empty = false;
        while !is_empty && self.fetched.len() < FETCHED_MAX && work.methods > 0 {
            // USERD was checked when the channel was created. If it is gone there is nothing to
            // fetch.
            let put = work
                .memory
                .read_u32(self.userd().plus(USERD_GP_PUT))
                .unwrap_or(self.get);
            is_empty = put == self.get || put >= self.ring_entries;
            if is_empty {
                if put != self.get {
                    log::warn!(
                        "channel {:?}: GP_PUT {put:#x} is outside the ring",
                        self.id()
                    );
                }
                continue;
            }
            let (ring_va, _) = self.ring();
            let entry_va = ring_va.saturating_add(8 * u64::from(self.get));
            let entry = space.read_u64(work.memory, entry_va)?;
            // An entry costs as much as a method, so a ring of empty entries ends.
            work.methods -= 1;
            if let Entry::Segment(segment) = self.fetch.decode(entry & !RESERVED) {
                self.fetched.push_back(segment);
            }
            self.get = (self.get + 1) % self.ring_entries.max(1);
        }
        if self.get != before {
            self.write_get(work.memory);
        }
        Ok(is_empty)
    }

    fn write_get(&self, memory: &mut PhysicalMemory) {
        // As for reading GP_PUT.
        let _ = memory.write_u32(self.userd().plus(USERD_GP_GET), self.get);
    }
}

fn read_segment(
    memory: &PhysicalMemory,
    space: AddressSpace,
    segment: Segment,
) -> Result<Vec<u32>, Fault> {
    let len = usize::try_from(segment.words).unwrap_or(0) * 4;
    let mut bytes = vec![0; len];
    space.read(memory, segment.va, &mut bytes)?;
    Ok(bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect())
}
