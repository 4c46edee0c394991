// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executes the one kind of program that launches can have: a list of memory accesses.
//!
//! ```text
//! program   "GCTTOUCH", u32 number of accesses (at most 64), u32 0, accesses
//! access    u64 address, u64 bytes, u64 stride, u64 kind, u64 value
//! ```
//!
//! An access touches a 64-bit word at each step of `stride` bytes. Kind 1 stores `value` plus the
//! offset of the word. Kind 0 adds up the words, and stores the sum at the address `value`. The
//! accesses of a program run side by side, each in its order, as warps do. A fault stalls one of
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

#[derive(Debug)]
struct Access {
    va: u64,
    bytes: u64,
    stride: u64,
    stores: bool,
    value: u64,
    offset: u64,
    sum: u64,
    done: bool,
    waits: Option<Ticket>,
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
            Some(Access {
                va: field(0)?,
                bytes: field(1)?,
                stride: field(2)?.max(8),
                stores: field(3)? == STORE,
                value: field(4)?,
                offset: 0,
                sum: 0,
                done: false,
                waits: None,
            })
        });
        Some(Self {
            accesses: accesses.collect::<Option<_>>()?,
            progress: Progress::Unfinished,
        })
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
    fn advance(&mut self, work: &mut Work<'_>, place: &Place) -> Result<(), Fault> {
        while !self.done && work.methods > 0 {
            let (va, write) = self.next();
            if let Some(ticket) = self.waits {
                match work.replayable.state(ticket) {
                    State::Stalled => return Ok(()),
                    State::Replayed => self.waits = None,
                    State::Cancelled => return Err(Fault { va }),
                }
            }
            work.methods -= 1;
            match self.step(work, place, va) {
                Ok(()) => {}
                Err(fault) => {
                    let lack = place.space.lacks(work.memory, fault.va, write);
                    if !place.replayable || lack.is_none() {
                        return Err(fault);
                    }
                    self.waits = work.stall(place, fault.va, write);
                    if self.waits.is_none() {
                        // No more can stall. It is tried again in a later turn.
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the address of the next word, and whether it is stored.
    fn next(&self) -> (u64, bool) {
        match self.offset < self.bytes {
            true => (self.va.saturating_add(self.offset), self.stores),
            // What is left to do is storing the sum.
            false => (self.value, true),
        }
    }

    fn step(&mut self, work: &mut Work<'_>, place: &Place, va: u64) -> Result<(), Fault> {
        if self.offset >= self.bytes {
            if !self.stores {
                place
                    .space
                    .write(work.memory, va, &self.sum.to_le_bytes())?;
            }
            self.done = true;
            return Ok(());
        }
        if self.stores {
            let word = self.value.wrapping_add(self.offset);
            place.space.write(work.memory, va, &word.to_le_bytes())?;
        } else {
            self.sum = self
                .sum
                .wrapping_add(place.space.read_u64(work.memory, va)?);
        }
        self.offset = self.offset.saturating_add(self.stride);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{Kinds, Target};
    use crate::gsp::objects::ObjectKey;
    use crate::memory::PhysicalAddress;
    use crate::testing::Bench;

    const PROGRAM: u64 = 0x1_0000;
    const DATA: u64 = 0x2_0000;
    const SUM: u64 = 0x3_0000;
    /// Nothing is mapped there.
    const UNMAPPED: u64 = 1 << 50;

    fn place(bench: &mut Bench, replayable: bool) -> Place {
        bench.replayable.register(vec![PhysicalAddress::system(0)]);
        Place {
            channel: ObjectKey {
                client: 1,
                handle: 5,
            },
            instance: PhysicalAddress::video(0x7000),
            subcontext: 0,
            space: bench.space,
            replayable,
        }
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
