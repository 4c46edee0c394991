// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executing channels, a bounded piece at a time.
//!
//! The front end calls [`Gpu::step`](crate::Gpu::step) from a thread of its own,
//! between the guest's accesses. A channel whose semaphore is not there yet
//! stays where it is and is tried again: the guest's processors release
//! semaphores by plain stores that nobody tells us of.

use crate::chip::{ChipDescription, Engine};
use crate::gmmu::{AddressSpace, Fault};
use crate::host::channel::{Channel, ChannelId};
use crate::host::methods::{decode, Executed, FIRST_ENGINE_METHOD};
use crate::host::Host;
use crate::intr::InterruptTree;
use crate::memory::{PhysicalAddress, PhysicalMemory};
use crate::platform::Clock;
use crate::recorder::Recorder;
use gct_core::submit::gpfifo::{Entry, Segment};

/// Methods that a channel may execute before others get their turn.
const METHODS_PER_TURN: u32 = 2048;
/// Bytes that it may copy.
const BYTES_PER_TURN: u64 = 1 << 20;

/// USERD: how far the ring was filled, and how far it was executed.
const USERD_GP_GET: u64 = 0x88;
const USERD_GP_PUT: u64 = 0x8c;

/// What executing needs.
pub struct Work<'a> {
    /// What the chip is.
    pub chip: &'a ChipDescription,
    /// Both memories.
    pub memory: &'a mut PhysicalMemory,
    /// The way to the guest's processors.
    pub intr: &'a mut InterruptTree,
    /// Time.
    pub clock: &'a dyn Clock,
    /// Takes note of launches.
    pub recorder: &'a dyn Recorder,
    /// The engine of the channel that executes.
    pub engine: Option<Engine>,
    /// Methods left in this turn.
    pub methods: u32,
    /// Bytes left in this turn.
    pub bytes: u64,
}

impl Work<'_> {
    /// The interrupt that software asks for in a pushbuffer.
    pub fn non_stall_interrupt(&mut self) {
        if let Some(engine) = self.engine {
            self.intr.trigger(engine.vector_nonstall);
        }
    }
}

/// How much there is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// Nothing.
    Idle,
    /// Only what waits for a semaphore.
    Waiting,
    /// More.
    Busy,
}

impl Host {
    /// Whether [`step`](Self::step) may find something to do.
    pub fn has_work(&self) -> bool {
        self.channels.values().any(Channel::wants_turn)
    }

    /// Gives each channel that has work a turn.
    pub fn step(&mut self, work: &mut Work<'_>) -> Progress {
        let ready: Vec<ChannelId> = self
            .channels
            .values()
            .filter(|channel| channel.wants_turn())
            .map(Channel::id)
            .collect();
        let mut progress = Progress::Idle;
        for id in ready {
            let root = self
                .channels
                .get(&id)
                .and_then(|channel| self.page_directory(channel));
            if let Some(channel) = self.channels.get_mut(&id) {
                work.engine = work
                    .chip
                    .engines
                    .iter()
                    .find(|engine| engine.runlist == id.runlist)
                    .copied();
                work.methods = METHODS_PER_TURN;
                work.bytes = BYTES_PER_TURN;
                progress = progress.max(channel.turn(work, root));
            }
        }
        progress
    }
}

impl Channel {
    /// Executes for one turn in the address space below `root`.
    fn turn(&mut self, work: &mut Work<'_>, root: Option<PhysicalAddress>) -> Progress {
        let Some(root) = root else {
            log::warn!(
                "{:?} has no page directory for {:x?}",
                self.id(),
                self.space()
            );
            self.stop(work.memory, work.clock.now_ns());
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
                self.stop(work.memory, work.clock.now_ns());
                Progress::Idle
            }
        }
    }

    fn run(&mut self, work: &mut Work<'_>, space: AddressSpace) -> Result<Progress, Fault> {
        while work.methods > 0 && work.bytes > 0 {
            if !self.copy.advance(work, space)? {
                return Ok(Progress::Busy);
            }
            let next = self.methods.front().copied();
            // Compute methods are gathered, and executed before anything else.
            if next.is_some_and(|method| self.gather(method)) {
                self.methods.pop_front();
                work.methods -= 1;
                continue;
            }
            let object = self.object();
            if !self.compute.advance(work, space, object) {
                return Ok(Progress::Busy);
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

    /// Takes the next entry of the ring. Returns whether there was one.
    fn next_entry(&mut self, work: &mut Work<'_>, space: AddressSpace) -> Result<bool, Fault> {
        if self.in_entry {
            self.in_entry = false;
            self.get = (self.get + 1) % self.ring_entries.max(1);
            self.write_get(work.memory);
        }
        // USERD was checked when the channel was made; if it is gone there is
        // nothing to fetch.
        let put = work
            .memory
            .read_u32(self.userd().plus(USERD_GP_PUT))
            .unwrap_or(self.get);
        if put == self.get || put >= self.ring_entries {
            if put != self.get {
                log::warn!(
                    "channel {:?}: GP_PUT {put:#x} is outside the ring",
                    self.id()
                );
            }
            self.rung = false;
            return Ok(false);
        }
        let (ring_va, _) = self.ring();
        let entry = space.read_u64(work.memory, ring_va.saturating_add(8 * u64::from(self.get)))?;
        self.in_entry = true;
        // An entry counts like a method, so that a ring of empty ones ends.
        work.methods = work.methods.saturating_sub(1);
        if let Entry::Segment(segment) = self.fetch.decode(entry) {
            let words = read_segment(work.memory, space, segment)?;
            self.methods = decode(&words, &mut self.rest);
        }
        Ok(true)
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
