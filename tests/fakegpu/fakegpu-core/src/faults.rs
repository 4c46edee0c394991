// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Models replayable faults: how the MMU reports them to the driver, and what waits for a replay.
//!
//! ```text
//! access of a launch faults   a packet goes into the buffer, PUT moves on, the vector is raised;
//!                             the access stalls
//! the driver serves it        moves GET on, maps the page, pushes REPLAY
//! REPLAY                      each stalled access is tried again: it goes on, or faults again
//! CANCEL                      the stalled accesses to one page fail: their channels stop
//! ```
//!
//! The buffer lies in the guest's memory. A fault that finds it full is dropped, and its access
//! faults again at the next replay.

use crate::bits::{high_u32, low_u32, Bits};
use crate::gmmu::{AddressSpace, Lack};
use crate::gsp::objects::ObjectKey;
use crate::intr::InterruptTree;
use crate::memory::{Location, PhysicalAddress, PhysicalMemory};
use crate::regs::NV_VIRTUAL_FUNCTION_PRIV_MMU_FAULT_BUFFER;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Registers of the second buffer, that of replayable faults.
const GET: u32 = NV_VIRTUAL_FUNCTION_PRIV_MMU_FAULT_BUFFER::OFFSET + 0x28;
const PUT: u32 = NV_VIRTUAL_FUNCTION_PRIV_MMU_FAULT_BUFFER::OFFSET + 0x2c;
/// The index in GET and PUT.
const POINTER: Bits = Bits::new(19, 0);
/// Set in PUT while faults are dropped. Writing a one to GET clears it.
const OVERFLOW: Bits = Bits::new(31, 31);

/// Size of a packet (NVC369_BUF_SIZE).
const PACKET_BYTES: u64 = 32;
/// Size of the buffer's pages.
const PAGE_BYTES: u64 = 4096;
/// Maximum number of accesses that stall. Further ones try again later, without a report.
const STALLED_MAX: usize = 4096;

/// Fields of a packet (NVC369_BUF_ENTRY), by the word that they lie in.
mod packet {
    use super::Bits;
    /// In the first word.
    pub(super) const INSTANCE_APERTURE: Bits = Bits::new(9, 8);
    /// In the first and third: address bits 31:12.
    pub(super) const PAGE: Bits = Bits::new(31, 12);
    /// In the seventh.
    pub(super) const ENGINE: Bits = Bits::new(8, 0);
    /// In the eighth.
    pub(super) const FAULT_TYPE: Bits = Bits::new(4, 0);
    pub(super) const REPLAYABLE: Bits = Bits::new(7, 7);
    pub(super) const ACCESS_TYPE: Bits = Bits::new(19, 16);
    pub(super) const REPLAYABLE_ENABLED: Bits = Bits::new(30, 30);
    pub(super) const VALID: Bits = Bits::new(31, 31);
}

/// NVC369_BUF_ENTRY_INST_APERTURE_SYS_MEM_COHERENT; zero is video memory.
const SYSTEM_COHERENT: u64 = 2;
/// NV_PFAULT_MMU_ENG_ID_GRAPHICS. The subcontext is added.
const GRAPHICS: u32 = 384;
/// NV_PFAULT_FAULT_TYPE_PTE and .._RO_VIOLATION.
const INVALID_PTE: u64 = 2;
const READ_ONLY: u64 = 6;

/// The accesses that a cancel ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// Reads alone.
    Reads,
    /// Writes alone.
    Writes,
    /// All.
    All,
}

/// Names the accesses to one page of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The page directory.
    pub root: PhysicalAddress,
    /// An address on the page.
    pub va: u64,
    /// The MMU engine.
    pub engine: u32,
    /// Which accesses.
    pub kinds: Kinds,
}

/// Who accesses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The channel.
    pub channel: ObjectKey,
    /// Its instance block, by which the driver knows it.
    pub instance: PhysicalAddress,
    /// Its context share's number.
    pub subcontext: u32,
    /// Its address space.
    pub space: AddressSpace,
    /// Whether its faults can be replayed.
    pub replayable: bool,
}

/// The number of a stalled access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What became of a stalled access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It waits.
    Stalled,
    /// It can be tried again.
    Replayed,
    /// It fails.
    Cancelled,
}

#[derive(Clone, Copy, Debug)]
struct Access {
    place: Place,
    va: u64,
    write: bool,
    state: State,
}

/// Packets that the driver has taken from the buffer at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Number of packets.
    pub faults: u32,
    /// Number of channels whose faults they report.
    pub channels: u32,
}

/// What a report needs.
pub struct Report<'a> {
    /// Holds the buffer and the page tables.
    pub memory: &'a mut PhysicalMemory,
    /// Gets the interrupt.
    pub intr: &'a mut InterruptTree,
    /// Its vector.
    pub vector: u32,
    /// The time.
    pub now_ns: u64,
}

/// The buffer of replayable faults, and the accesses that wait.
#[derive(Default)]
pub struct Faults {
    pages: Vec<PhysicalAddress>,
    get: u32,
    put: u32,
    overflow: bool,
    /// Channels of the packets between GET and PUT, in order.
    reported: VecDeque<ObjectKey>,
    accesses: BTreeMap<Ticket, Access>,
    last: u64,
}

impl Faults {
    /// Sets the pages of the buffer. It is empty afterwards.
    pub fn register(&mut self, pages: Vec<PhysicalAddress>) {
        *self = Self {
            pages,
            ..Self::default()
        };
    }

    /// Reads GET or PUT. Returns nothing for other registers.
    pub fn read(&self, offset: u32) -> Option<u32> {
        let pointer = |index: u32| POINTER.put(0, u64::from(index));
        match offset {
            GET => Some(low_u32(pointer(self.get))),
            PUT => Some(low_u32(
                OVERFLOW.put(pointer(self.put), self.overflow.into()),
            )),
            _ => None,
        }
    }

    /// Writes GET or PUT. Returns what the driver takes by that, or nothing for other registers. A
    /// write to GET raises the vector again while the buffer is not empty.
    pub fn write(
        &mut self,
        intr: &mut InterruptTree,
        vector: u32,
        offset: u32,
        value: u32,
    ) -> Option<Batch> {
        match offset {
            GET => {}
            PUT => return Some(Batch::default()),
            _ => return None,
        }
        let batch = self.take(low_u32(POINTER.of(value.into())) % self.entries().max(1));
        if OVERFLOW.of(value.into()) == 1 {
            self.overflow = false;
        }
        if self.get != self.put {
            intr.trigger(vector);
        }
        Some(batch)
    }

    /// Moves GET, and forgets the packets that it passes.
    fn take(&mut self, get: u32) -> Batch {
        let entries = self.entries().max(1);
        let passed = (get + entries - self.get) % entries;
        self.get = get;
        let taken = self.reported.len().min(passed as usize);
        let channels: BTreeSet<_> = self.reported.drain(..taken).collect();
        // CAST: the buffer has fewer entries than GET has values.
        Batch {
            faults: taken as u32,
            channels: channels.len() as u32,
        }
    }

    /// Reports a fault at `va`. Returns the number of the access, which stalls, or nothing if no
    /// more can stall.
    pub fn stall(
        &mut self,
        report: Report<'_>,
        place: Place,
        va: u64,
        write: bool,
    ) -> Option<Ticket> {
        if self.accesses.len() >= STALLED_MAX || self.pages.is_empty() {
            return None;
        }
        let access = Access {
            place,
            va,
            write,
            state: State::Stalled,
        };
        self.last += 1;
        let ticket = Ticket(self.last);
        self.accesses.insert(ticket, access);
        self.put_packet(report, &access);
        Some(ticket)
    }

    /// Returns what became of an access. One that is told not to wait is forgotten.
    pub fn state(&mut self, ticket: Ticket) -> State {
        let state = self
            .accesses
            .get(&ticket)
            .map_or(State::Replayed, |access| access.state);
        if state != State::Stalled {
            self.accesses.remove(&ticket);
        }
        state
    }

    /// Tries all stalled accesses again.
    pub fn replay(&mut self, report: Report<'_>) {
        let mut again = Vec::new();
        for access in self.accesses.values_mut() {
            if access.state == State::Stalled {
                match lacks(report.memory, access) {
                    Some(_) => again.push(*access),
                    None => access.state = State::Replayed,
                }
            }
        }
        for access in again {
            let report = Report {
                memory: &mut *report.memory,
                intr: &mut *report.intr,
                ..report
            };
            self.put_packet(report, &access);
        }
    }

    /// Cancels the stalled accesses to a page.
    pub fn cancel(&mut self, target: &Target) {
        for access in self.accesses.values_mut() {
            let Place {
                space, subcontext, ..
            } = access.place;
            let is_meant = space.root == target.root
                && access.va / PAGE_BYTES == target.va / PAGE_BYTES
                && GRAPHICS.saturating_add(subcontext) == target.engine
                && match target.kinds {
                    Kinds::Reads => !access.write,
                    Kinds::Writes => access.write,
                    Kinds::All => true,
                };
            if is_meant && access.state == State::Stalled {
                access.state = State::Cancelled;
            }
        }
    }

    /// Forgets the accesses of channels that are gone or stopped.
    pub fn forget(&mut self, channels: &BTreeSet<ObjectKey>) {
        self.accesses
            .retain(|_, access| !channels.contains(&access.place.channel));
    }

    fn entries(&self) -> u32 {
        // CAST: a buffer has at most 256 pages.
        (self.pages.len() as u64 * PAGE_BYTES / PACKET_BYTES) as u32
    }

    /// Puts a packet into the buffer, if there is room.
    fn put_packet(&mut self, report: Report<'_>, access: &Access) {
        let next = (self.put + 1) % self.entries().max(1);
        self.overflow |= next == self.get;
        let offset = u64::from(self.put) * PACKET_BYTES;
        let page = usize::try_from(offset / PAGE_BYTES)
            .ok()
            .and_then(|page| self.pages.get(page));
        let (Some(page), false) = (page, self.overflow) else {
            return;
        };
        let words = packet(report.memory, access, report.now_ns);
        // The driver polls for the valid bit of the last word.
        for (at, word) in (0..PACKET_BYTES).step_by(4).zip(words) {
            // If the guest's memory is gone, nothing reads it.
            let _ = report
                .memory
                .write_u32(page.plus(offset % PAGE_BYTES + at), word);
        }
        self.put = next;
        self.reported.push_back(access.place.channel);
        report.intr.trigger(report.vector);
    }
}

/// Returns what the mapping lacks for an access.
fn lacks(memory: &PhysicalMemory, access: &Access) -> Option<Lack> {
    let space = access.place.space;
    space.lacks(memory, access.va, access.write)
}

fn packet(memory: &PhysicalMemory, access: &Access, now_ns: u64) -> [u32; 8] {
    let Place {
        instance,
        subcontext,
        ..
    } = access.place;
    let aperture = match instance.location {
        Location::Video => 0,
        Location::System => SYSTEM_COHERENT,
    };
    let page = |address: u64| packet::PAGE.put(0, packet::PAGE.of(address));
    let engine = packet::ENGINE.put(0, GRAPHICS.saturating_add(subcontext).into());
    let fault_type = match lacks(memory, access) {
        Some(Lack::Permission) => READ_ONLY,
        _ => INVALID_PTE,
    };
    let what = [
        (packet::FAULT_TYPE, fault_type),
        (packet::REPLAYABLE, 1),
        (packet::ACCESS_TYPE, access.write.into()),
        (packet::REPLAYABLE_ENABLED, 1),
        (packet::VALID, 1),
    ];
    let what = what
        .into_iter()
        .fold(0, |word, (field, value)| field.put(word, value));
    [
        low_u32(packet::INSTANCE_APERTURE.put(page(instance.offset), aperture)),
        high_u32(instance.offset),
        low_u32(page(access.va)),
        high_u32(access.va),
        low_u32(now_ns),
        high_u32(now_ns),
        low_u32(engine),
        low_u32(what),
    ]
}

#[cfg(test)]
mod tests;
