// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executes what launches do in memory: a list of accesses. It stands at the program's address, or
//! is what a kernel that is known does ([`kernels`](crate::kernels)).
//!
//! ```text
//! program   "GCTTOUCH", u32 number of accesses (at most 64), u32 0, accesses
//! access    u64 address, u64 bytes, u64 stride, u64 kind, u64 value
//! ```
//!
//! An access touches a 64-bit word at each step of `stride` bytes. Kind 1 stores `value` plus the
//! offset of the word. Kind 0 adds up the words, and stores the sum at the address `value`. The
//! accesses of a launch run side by side, each in its order, as warps do. A fault stalls one of
//! them.

use crate::faults::{Place, State, Ticket};
use crate::gmmu::Fault;
use crate::host::execute::Work;
use crate::memory::PhysicalMemory;

/// The first bytes of a program.
const MAGIC: u64 = u64::from_le_bytes(*b"GCTTOUCH");
/// Maximum number of accesses of a program.
const ACCESSES_MAX: u64 = 64;
/// Sizes of the head of a program and of an access.
const HEAD_BYTES: u64 = 16;
const ACCESS_BYTES: u64 = 40;
/// The kind of an access that stores.
const STORE: u64 = 1;

/// Progress of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All accesses are done.
    Done,
    /// The turn ended before the program did.
    Unfinished,
    /// Each unfinished access waits for a replay.
    Stalled,
}

/// A running program.
#[derive(Debug)]
pub struct Touch {
    accesses: Vec<Access>,
    progress: Progress,
}

/// What an access does at each step.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Stores a 64-bit word: `value` plus the offset.
    Store { value: u64 },
    /// Adds a 64-bit word. The sum is stored at `into` in the end.
    Sum { into: u64, sum: u64 },
    /// Stores `value` in each 32-bit word of `length` bytes.
    Fill { value: u32, length: u64 },
    /// Copies `length` bytes from `from` plus the offset.
    Copy { from: u64, length: u64 },
}

/// A loop over memory.
#[derive(Debug)]
pub struct Access {
    va: u64,
    bytes: u64,
    stride: u64,
    kind: Kind,
    offset: u64,
    done: bool,
    /// What it waits for: the replay of a fault at an address.
    waits: Option<(Ticket, u64)>,
}

/// An access failed.
struct Failed {
    fault: Fault,
    write: bool,
}

/// The part of memory that one block's loop covers.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// All bytes, of all blocks.
    pub bytes: u64,
    /// Where the block begins.
    pub first: u64,
    /// Bytes of a step.
    pub length: u64,
    /// Bytes from one step to the next.
    pub stride: u64,
}

impl Touch {
    /// Reads the program at `va`. Returns nothing if none is there.
    pub fn read(memory: &PhysicalMemory, place: &Place, va: u64) -> Option<Self> {
        let word = |at: u64| place.space.read_u64(memory, va.checked_add(at)?).ok();
        if word(0)? != MAGIC {
            return None;
        }
        let count = word(8)?.min(ACCESSES_MAX);
        let accesses = (0..count).map(|index| {
            let field = |number: u64| word(HEAD_BYTES + index * ACCESS_BYTES + 8 * number);
            let value = field(4)?;
            let kind = match field(3)? {
                STORE => Kind::Store { value },
                _ => Kind::Sum {
                    into: value,
                    sum: 0,
                },
            };
            Some(Access {
                bytes: field(1)?,
                stride: field(2)?.max(8),
                ..Access::new(field(0)?, kind)
            })
        });
        Some(Self::new(accesses.collect::<Option<_>>()?))
    }

    /// Begins accesses.
    pub fn new(accesses: Vec<Access>) -> Self {
        Self {
            accesses,
            progress: Progress::Unfinished,
        }
    }

    /// Returns the progress of the last turn.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Continues the accesses, within the turn's budget.
    ///
    /// # Errors
    /// [`Fault`] if an access failed for good.
    pub fn advance(&mut self, work: &mut Work<'_>, place: &Place) -> Result<Progress, Fault> {
        for access in &mut self.accesses {
            access.advance(work, place)?;
        }
        let stalled = |access: &Access| access.done || access.waits.is_some();
        self.progress = if self.accesses.iter().all(|access| access.done) {
            Progress::Done
        } else if self.accesses.iter().all(stalled) {
            Progress::Stalled
        } else {
            Progress::Unfinished
        };
        Ok(self.progress)
    }
}

impl Access {
    fn new(va: u64, kind: Kind) -> Self {
        Self {
            va,
            bytes: 0,
            stride: 1,
            kind,
            offset: 0,
            done: false,
            waits: None,
        }
    }

    fn of_block(va: u64, share: Share, kind: Kind) -> Self {
        Self {
            bytes: share.bytes,
            stride: share.stride.max(1),
            offset: share.first,
            ..Self::new(va, kind)
        }
    }

    /// Returns a block's share in filling memory at `va` with a value.
    pub fn fill(va: u64, value: u32, share: Share) -> Self {
        let length = share.length;
        Self::of_block(va, share, Kind::Fill { value, length })
    }

    /// Returns a block's share in copying memory to `va`.
    pub fn copy(va: u64, from: u64, share: Share) -> Self {
        let length = share.length;
        Self::of_block(va, share, Kind::Copy { from, length })
    }

    fn advance(&mut self, work: &mut Work<'_>, place: &Place) -> Result<(), Fault> {
        while !self.done && work.methods > 0 {
            if let Some((ticket, va)) = self.waits {
                match work.replayable.state(ticket) {
                    State::Stalled => return Ok(()),
                    State::Replayed => self.waits = None,
                    State::Cancelled => return Err(Fault { va }),
                }
            }
            work.methods -= 1;
            if let Err(Failed { fault, write }) = self.step(work, place) {
                let lack = place.space.lacks(work.memory, fault.va, write);
                if !place.replayable || lack.is_none() {
                    return Err(fault);
                }
                let ticket = work.stall(place, fault.va, write);
                self.waits = ticket.map(|ticket| (ticket, fault.va));
                if self.waits.is_none() {
                    // No more can stall. It is tried again in a later turn.
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, work: &mut Work<'_>, place: &Place) -> Result<(), Failed> {
        let (space, offset) = (place.space, self.offset);
        let va = self.va.saturating_add(offset);
        let read = |fault| Failed {
            fault,
            write: false,
        };
        let write = |fault| Failed { fault, write: true };
        if offset >= self.bytes {
            if let Kind::Sum { into, sum } = self.kind {
                let stored = space.write(work.memory, into, &sum.to_le_bytes());
                stored.map_err(write)?;
            }
            self.done = true;
            return Ok(());
        }
        let part = |length: u64| usize::try_from(length.min(self.bytes - offset)).unwrap_or(0);
        match &mut self.kind {
            Kind::Store { value } => {
                let word = value.wrapping_add(offset);
                let stored = space.write(work.memory, va, &word.to_le_bytes());
                stored.map_err(write)?;
            }
            Kind::Sum { sum, .. } => {
                let word = space.read_u64(work.memory, va).map_err(read)?;
                *sum = sum.wrapping_add(word);
            }
            Kind::Fill { value, length } => {
                let mut bytes = value.to_le_bytes().repeat(part(*length).div_ceil(4));
                bytes.truncate(part(*length));
                space.write(work.memory, va, &bytes).map_err(write)?;
            }
            Kind::Copy { from, length } => {
                let mut bytes = vec![0; part(*length)];
                let from = from.saturating_add(offset);
                space.read(work.memory, from, &mut bytes).map_err(read)?;
                space.write(work.memory, va, &bytes).map_err(write)?;
            }
        }
        self.offset = offset.saturating_add(self.stride);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{Kinds, Target};
    use crate::memory::PhysicalAddress;
    use crate::testing::Bench;

    const PROGRAM: u64 = 0x1_0000;
    const DATA: u64 = 0x2_0000;
    const SUM: u64 = 0x3_0000;
    /// Nothing is mapped there.
    const UNMAPPED: u64 = 1 << 50;

    fn place(bench: &mut Bench, replayable: bool) -> Place {
        bench.replayable.register(vec![PhysicalAddress::system(0)]);
        bench.place(replayable)
    }

    fn touch(bench: &mut Bench, place: &Place, accesses: &[[u64; 5]]) -> Touch {
        let words = [MAGIC, accesses.len() as u64];
        let words = words.into_iter().chain(accesses.iter().flatten().copied());
        for (at, word) in (PROGRAM..).step_by(8).zip(words) {
            let at = PhysicalAddress::video(at);
            bench.memory.write_u64(at, word).unwrap();
        }
        Touch::read(&bench.memory, place, bench.va(PROGRAM)).unwrap()
    }

    fn word(bench: &Bench, offset: u64) -> u64 {
        let at = PhysicalAddress::video(offset);
        bench.memory.read_u64(at).unwrap()
    }

    #[test]
    fn words_are_stored_and_added_up() {
        let mut bench = Bench::new();
        let place = place(&mut bench, true);
        let store = [bench.va(DATA), 0x3000, 0x1000, 1, 7];
        let mut program = touch(&mut bench, &place, &[store]);
        let done = program.advance(&mut bench.work(), &place);
        assert_eq!(done, Ok(Progress::Done));
        assert_eq!(
            [0, 0x1000, 0x2000, 0x3000].map(|at| word(&bench, DATA + at)),
            [7, 0x1007, 0x2007, 0]
        );
        let load = [bench.va(DATA), 0x3000, 0x1000, 0, bench.va(SUM)];
        let mut program = touch(&mut bench, &place, &[load]);
        assert_eq!(
            program.advance(&mut bench.work(), &place),
            Ok(Progress::Done)
        );
        assert_eq!(word(&bench, SUM), 0x3000 + 21);
    }

    #[test]
    fn a_stalled_access_holds_up_no_other() {
        let mut bench = Bench::new();
        let place = place(&mut bench, true);
        let accesses = [
            [UNMAPPED, 8, 8, 1, 1],
            [bench.va(DATA), 8, 8, 1, 9],
            [bench.va_read_only(DATA), 8, 8, 1, 1],
        ];
        let mut program = touch(&mut bench, &place, &accesses);
        for _ in 0..3 {
            let stalled = program.advance(&mut bench.work(), &place);
            assert_eq!(stalled, Ok(Progress::Stalled));
        }
        assert_eq!(word(&bench, DATA), 9);
        let faults = |bench: &Bench| bench.recorder.all().len();
        assert_eq!(faults(&bench), 2);
        let target = Target {
            root: bench.space.root,
            va: UNMAPPED,
            engine: 384,
            kinds: Kinds::All,
        };
        bench.work().cancel(&target);
        let ended = program.advance(&mut bench.work(), &place);
        assert_eq!(ended, Err(Fault { va: UNMAPPED }));
    }

    #[test]
    fn a_long_program_takes_turns() {
        let mut bench = Bench::new();
        let place = place(&mut bench, true);
        let store = [bench.va(DATA), 0x8000, 8, 1, 0];
        let mut program = touch(&mut bench, &place, &[store]);
        let mut turns = 0;
        while program.advance(&mut bench.work(), &place) == Ok(Progress::Unfinished) {
            turns += 1;
        }
        assert_eq!(turns, 2);
        assert_eq!(word(&bench, DATA + 0x7ff8), 0x7ff8);
    }

    #[test]
    fn without_replays_a_fault_is_fatal() {
        let mut bench = Bench::new();
        let place = place(&mut bench, false);
        let mut program = touch(&mut bench, &place, &[[UNMAPPED, 8, 8, 0, 0]]);
        let ended = program.advance(&mut bench.work(), &place);
        assert_eq!(ended, Err(Fault { va: UNMAPPED }));
    }

    #[test]
    fn other_bytes_are_no_program() {
        let mut bench = Bench::new();
        let place = place(&mut bench, true);
        let read = |va| Touch::read(&bench.memory, &place, va).is_none();
        assert!(read(bench.va(DATA)));
        assert!(read(UNMAPPED));
        assert!(read(u64::MAX - 3));
    }
}
