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
use std::collections::{BTreeMap, BTreeSet};

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

    /// Writes GET or PUT. Returns whether the register is one of them. A write to GET raises the
    /// vector again while the buffer is not empty.
    pub fn write(
        &mut self,
        intr: &mut InterruptTree,
        vector: u32,
        offset: u32,
        value: u32,
    ) -> bool {
        if offset == GET {
            self.get = low_u32(POINTER.of(value.into())) % self.entries().max(1);
            if OVERFLOW.of(value.into()) == 1 {
                self.overflow = false;
            }
            if self.get != self.put {
                intr.trigger(vector);
            }
        }
        matches!(offset, GET | PUT)
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
mod tests {
    use super::*;
    use crate::regs::NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF;
    use crate::testing::Bench;
    use proptest::prelude::*;

    const VECTOR: u32 = 64;
    /// Nothing is mapped there.
    const UNMAPPED: u64 = 1 << 50;
    const PAGES: [PhysicalAddress; 2] = [
        PhysicalAddress::system(0x7000),
        PhysicalAddress::system(0x3000),
    ];

    fn place(bench: &Bench) -> Place {
        Place {
            channel: ObjectKey {
                client: 1,
                handle: 5,
            },
            instance: PhysicalAddress::system(0x1_2345_6000),
            subcontext: 3,
            space: bench.space,
            replayable: true,
        }
    }

    fn faults() -> Faults {
        let mut faults = Faults::default();
        faults.register(PAGES.to_vec());
        faults
    }

    fn report(bench: &mut Bench) -> Report<'_> {
        Report {
            memory: &mut bench.memory,
            intr: &mut bench.intr,
            vector: VECTOR,
            now_ns: 0x11_2233_4455,
        }
    }

    fn words(bench: &Bench, at: PhysicalAddress) -> Vec<u32> {
        let word = |at| bench.memory.read_u32(at).unwrap();
        (0..8).map(|index| word(at.plus(4 * index))).collect()
    }

    /// Returns whether the vector is pending, and clears it.
    fn interrupted(bench: &mut Bench) -> bool {
        let leaf = NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF::OFFSET + 4 * (VECTOR / 32);
        let pending = bench.intr.read(leaf).unwrap();
        bench.intr.write(leaf, pending);
        pending & 1 << (VECTOR % 32) != 0
    }

    #[test]
    fn a_fault_is_a_packet_and_an_interrupt() {
        let mut bench = Bench::new();
        let (place, mut faults) = (place(&bench), faults());
        let va = UNMAPPED + 0x7_6543_2108;
        let ticket = faults.stall(report(&mut bench), place, va, true).unwrap();
        assert_eq!((faults.read(GET), faults.read(PUT)), (Some(0), Some(1)));
        assert!(interrupted(&mut bench));
        let expected = [
            0x2345_6200,
            1,
            0x6543_2000,
            0x0004_0007,
            0x2233_4455,
            0x11,
            387,
            1 << 31 | 1 << 30 | 1 << 16 | 1 << 7 | 2,
        ];
        assert_eq!(words(&bench, PAGES[0]), expected);
        assert_eq!(faults.state(ticket), State::Stalled);
        // The interrupt comes again until GET has moved on.
        faults.write(&mut bench.intr, VECTOR, GET, 0);
        assert!(interrupted(&mut bench));
        faults.write(&mut bench.intr, VECTOR, GET, 1);
        assert!(!interrupted(&mut bench));
    }

    #[test]
    fn a_replay_tries_again() {
        let mut bench = Bench::new();
        let (place, mut faults) = (place(&bench), faults());
        let (writable, read_only) = (bench.va(0x40), bench.va_read_only(0x40));
        let unmapped = faults.stall(report(&mut bench), place, UNMAPPED, false);
        // What is mapped meanwhile goes on.
        let mapped = faults.stall(report(&mut bench), place, writable, true);
        let denied = faults.stall(report(&mut bench), place, read_only, true);
        faults.replay(report(&mut bench));
        assert_eq!(faults.read(PUT), Some(5));
        let access_of = |index: u64| words(&bench, PAGES[0].plus(32 * index))[7] & 0x1f001f;
        assert_eq!([access_of(3), access_of(4)], [2, 1 << 16 | 6]);
        let states = [unmapped, mapped, denied].map(|ticket| faults.state(ticket.unwrap()));
        assert_eq!(states, [State::Stalled, State::Replayed, State::Stalled]);
    }

    #[test]
    fn a_cancel_ends_accesses_to_one_page_of_one_space() {
        let mut bench = Bench::new();
        let (place, mut faults) = (place(&bench), faults());
        let target = Target {
            root: bench.space.root,
            va: UNMAPPED,
            engine: 387,
            kinds: Kinds::All,
        };
        let mut stall = |va, write| faults.stall(report(&mut bench), place, va, write).unwrap();
        let (read, write) = (stall(UNMAPPED + 0xff8, false), stall(UNMAPPED, true));
        let other = stall(UNMAPPED + 0x1000, true);
        let none = [
            Target {
                root: PhysicalAddress::video(0x1000),
                ..target
            },
            Target {
                engine: 384,
                ..target
            },
        ];
        none.iter().for_each(|target| faults.cancel(target));
        assert_eq!(faults.state(read), State::Stalled);
        faults.cancel(&Target {
            kinds: Kinds::Writes,
            ..target
        });
        assert_eq!(faults.state(write), State::Cancelled);
        assert_eq!(faults.state(read), State::Stalled);
        faults.cancel(&target);
        assert_eq!(faults.state(read), State::Cancelled);
        assert_eq!(faults.state(other), State::Stalled);
    }

    #[test]
    fn a_full_buffer_drops_faults_until_the_next_replay() {
        let mut bench = Bench::new();
        let (place, mut faults) = (place(&bench), faults());
        for _ in 0..300 {
            faults.stall(report(&mut bench), place, UNMAPPED, false);
        }
        let full = 1 << 31 | 255;
        assert_eq!(faults.read(PUT), Some(full));
        // The index does not clear the overflow, and one packet more is dropped.
        faults.write(&mut bench.intr, VECTOR, GET, 200);
        faults.stall(report(&mut bench), place, UNMAPPED, false);
        assert_eq!(faults.read(PUT), Some(full));
        faults.write(&mut bench.intr, VECTOR, GET, 1 << 31 | 200);
        faults.replay(report(&mut bench));
        assert_eq!(faults.read(PUT), Some(1 << 31 | 199));
    }

    #[test]
    fn who_is_gone_faults_no_more() {
        let mut bench = Bench::new();
        let (place, mut faults) = (place(&bench), faults());
        faults.stall(report(&mut bench), place, UNMAPPED, false);
        faults.forget(&BTreeSet::from([place.channel]));
        faults.replay(report(&mut bench));
        assert_eq!(faults.read(PUT), Some(1));
    }

    #[test]
    fn without_a_buffer_nothing_stalls() {
        let mut bench = Bench::new();
        let place = place(&bench);
        let mut faults = Faults::default();
        let ticket = faults.stall(report(&mut bench), place, UNMAPPED, false);
        assert_eq!(ticket, None);
    }

    proptest! {
        /// Checks that a hostile driver's writes break nothing.
        #[test]
        fn any_writes(pages in 0usize..3, gets in prop::collection::vec(any::<u32>(), 0..40)) {
            let mut bench = Bench::new();
            let place = place(&bench);
            let mut faults = Faults::default();
            faults.register(PAGES.iter().copied().cycle().take(pages).collect());
            for get in gets {
                faults.stall(report(&mut bench), place, UNMAPPED, false);
                faults.write(&mut bench.intr, VECTOR, GET, get);
                faults.replay(report(&mut bench));
                prop_assert!(faults.put < faults.entries().max(1));
            }
        }
    }
}
