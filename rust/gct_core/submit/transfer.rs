// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the copies that a copy engine executes, and divides them into pieces.
//!
//! Terminology
//!   transfer  the copy that one LAUNCH_DMA starts: lines of bytes, at two addresses
//!   piece     a part of a transfer: some of its lines, or a part of one line
//!
//! A piece is a transfer of its own. The last piece executes the tenant's LAUNCH_DMA, with its
//! semaphore, flush and interrupt; the others have none of these. Each piece releases a word of the
//! caller's when it has ended. Behind the last one all registers hold what the tenant wrote.
//!
//! Source: `clc8b5.h` of NVIDIA's public headers; the offsets are the same in every copy class.

use super::method::{immediate, incr};
use core::num::Wrapping;

/// LAUNCH_DMA.
pub(super) const LAUNCH_DMA: u16 = 0x0300;
const SET_SEMAPHORE_A: u16 = 0x0240;
const SET_SEMAPHORE_PAYLOAD: u16 = 0x0248;
const OFFSET_IN_UPPER: u16 = 0x0400;
const LINE_LENGTH_IN: u16 = 0x0418;
const LINE_COUNT: u16 = 0x041c;

/// Bits of LAUNCH_DMA.
mod launch {
    /// DATA_TRANSFER_TYPE; 3 is undefined.
    pub(super) const TYPE: u32 = 3;
    pub(super) const FLUSH: u32 = 1 << 2;
    pub(super) const SEMAPHORE: u32 = 3 << 3;
    pub(super) const ONE_WORD: u32 = 1 << 3;
    pub(super) const FOUR_WORDS: u32 = 2 << 3;
    pub(super) const INTERRUPT: u32 = 3 << 5;
    /// Both layouts are pitch.
    pub(super) const PITCH: u32 = 3 << 7;
    pub(super) const MULTI_LINE: u32 = 1 << 9;
    const RMW_DISABLE: u32 = 1 << 11;
    pub(super) const REDUCTION: u32 = 1 << 19;
    const REDUCTION_KIND: u32 = 0x1f << 14;
    const FLUSH_TYPE: u32 = 1 << 25;
    const PLC_DISABLE: u32 = 1 << 26;
    const PAYLOAD_SIZE: u32 = 1 << 27;
    /// What each piece of a transfer keeps.
    pub(super) const KEPT: u32 = TYPE | PITCH | MULTI_LINE | RMW_DISABLE | PLC_DISABLE;
    /// What a transfer that is divided may have: no remapping of bytes, no physical address, no
    /// scrub.
    pub(super) const KNOWN: u32 = KEPT
        | FLUSH
        | SEMAPHORE
        | INTERRUPT
        | REDUCTION
        | REDUCTION_KIND
        | FLUSH_TYPE
        | PAYLOAD_SIZE;
}

/// Upper bits of an address that the engine uses.
const UPPER: u32 = 0x1ff_ffff;

/// Indices of [`Registers`].
const IN: usize = 0;
const OUT: usize = 2;
const PITCH_IN: usize = 4;
const PITCH_OUT: usize = 5;
const LENGTH: usize = 6;
const COUNT: usize = 7;
const SEMAPHORE: usize = 8;

/// The words of the longest piece.
pub const PIECE_WORDS_MAX: usize = 31;

/// The registers of a copy engine that decide about a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registers {
    /// OFFSET_IN, OFFSET_OUT (upper parts first), PITCH_IN, PITCH_OUT, LINE_LENGTH_IN, LINE_COUNT,
    /// SET_SEMAPHORE_A, B and PAYLOAD.
    values: [u32; 11],
    /// One bit for each that was seen.
    known: u16,
}

impl Registers {
    /// Registers of which none was seen.
    pub(super) const UNKNOWN: Self = Self {
        values: [0; 11],
        known: 0,
    };

    /// Sets a register, if `method` is one of these.
    pub(super) fn set(&mut self, method: u16, value: u32) {
        let (base, first) = match method {
            OFFSET_IN_UPPER..=LINE_COUNT => (OFFSET_IN_UPPER, IN),
            SET_SEMAPHORE_A..=SET_SEMAPHORE_PAYLOAD => (SET_SEMAPHORE_A, SEMAPHORE),
            _ => return,
        };
        let index = first.wrapping_add(usize::from(method.wrapping_sub(base) >> 2));
        if let Some(register) = self.values.get_mut(index) {
            *register = value;
            self.known |= 1 << (index & 0xf);
        }
    }

    fn get(&self, index: usize) -> u32 {
        self.values.get(index).copied().unwrap_or(0)
    }

    /// Returns the address in two registers, as they are.
    fn pair(&self, index: usize) -> [u32; 2] {
        [self.get(index), self.get(index.wrapping_add(1))]
    }

    fn address(&self, index: usize) -> u64 {
        let [upper, lower] = self.pair(index);
        u64::from(upper & UPPER) << 32 | u64::from(lower)
    }

    fn knows(&self, mask: u16) -> bool {
        self.known & mask == mask
    }

    /// Returns whether the semaphore's registers were seen.
    pub(super) fn knows_semaphore(&self) -> bool {
        self.knows(7 << SEMAPHORE)
    }

    /// Returns the address and the payload of the semaphore.
    pub(super) fn semaphore(&self) -> (u64, u32) {
        (self.address(SEMAPHORE), self.get(SEMAPHORE.wrapping_add(2)))
    }
}

/// Returns whether a LAUNCH_DMA moves bytes.
pub(super) fn moves(launch: u32) -> bool {
    launch & launch::TYPE != 0
}

/// Returns whether it uses the semaphore's registers.
pub(super) fn uses_semaphore(launch: u32) -> bool {
    launch & launch::SEMAPHORE != 0
}

/// Returns whether it writes the semaphore's payload when all before has ended.
pub(super) fn releases(launch: u32) -> bool {
    let kind = launch & launch::SEMAPHORE;
    launch & launch::REDUCTION == 0 && (kind == launch::ONE_WORD || kind == launch::FOUR_WORDS)
}

/// A transfer of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The position of the header of its LAUNCH_DMA.
    pub at: u32,
    /// The position behind that.
    pub end: u32,
    subchannel: u8,
    launch: u32,
    registers: Registers,
}

/// How far a transfer was divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    line: u32,
    byte: u32,
}

/// One piece of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    from: Progress,
    /// Bytes of each of its lines, and their number.
    length: u32,
    lines: u32,
    /// What follows; `None` behind the last piece.
    pub next: Option<Progress>,
}

impl Piece {
    /// Returns how many bytes it copies.
    pub fn bytes(&self) -> u64 {
        u64::from(self.length).wrapping_mul(u64::from(self.lines))
    }
}

/// Returns the number of bytes from the first to the last of `lines` lines.
fn span(pitch: u32, length: u32, lines: u32) -> Option<u64> {
    let before = u64::from(pitch).checked_mul(u64::from(lines.checked_sub(1)?))?;
    before.checked_add(u64::from(length))
}

impl Transfer {
    /// Takes the transfer that `launch` starts. It stands between `at` and `end`.
    pub(super) fn new(
        (at, end): (u32, u32),
        subchannel: u8,
        launch: u32,
        registers: Registers,
    ) -> Self {
        Self {
            at,
            end,
            subchannel,
            launch,
            registers,
        }
    }

    fn has_lines(&self) -> bool {
        self.launch & launch::MULTI_LINE != 0
    }

    fn lines(&self) -> u32 {
        match self.has_lines() {
            true => self.registers.get(COUNT),
            false => 1,
        }
    }

    fn pitch(&self, index: usize) -> u32 {
        match self.has_lines() {
            true => self.registers.get(index),
            false => 0,
        }
    }

    /// Returns how many bytes it copies. Elements of a remapped one count as one byte.
    pub fn bytes(&self) -> u64 {
        u64::from(self.registers.get(LENGTH)).wrapping_mul(u64::from(self.lines()))
    }

    /// Returns whether pieces of it, one after the other, do what it does: all that decides about
    /// its bytes is known, and none of them is read after another was written.
    pub(super) fn is_divisible(&self) -> bool {
        let (length, lines) = (self.registers.get(LENGTH), self.lines());
        let mut needed = 1 << IN | 2 << IN | 1 << OUT | 2 << OUT | 1 << LENGTH;
        if self.has_lines() {
            needed |= 1 << PITCH_IN | 1 << PITCH_OUT | 1 << COUNT;
        }
        let plain = self.launch & !launch::KNOWN == 0
            && self.launch & launch::PITCH == launch::PITCH
            && matches!(self.launch & launch::TYPE, 1 | 2);
        let (pitch_in, pitch_out) = (self.pitch(PITCH_IN), self.pitch(PITCH_OUT));
        // A larger one may be a negative one.
        let pitched = pitch_in <= u32::MAX >> 1
            && pitch_out <= u32::MAX >> 1
            && (lines <= 1 || pitch_out >= length);
        plain && pitched && length > 0 && self.registers.knows(needed) && self.is_apart()
    }

    /// Returns whether source and destination have no byte in common, and lie in the address space.
    fn is_apart(&self) -> bool {
        const END: u64 = (UPPER as u64).wrapping_add(1) << 32;
        let range = |offset, pitch| {
            let start = self.registers.address(offset);
            let bytes = span(self.pitch(pitch), self.registers.get(LENGTH), self.lines())?;
            let end = start.checked_add(bytes).filter(|end| *end <= END)?;
            Some((start, end))
        };
        let both = range(IN, PITCH_IN).zip(range(OUT, PITCH_OUT));
        both.is_some_and(|(from, to)| from.1 <= to.0 || to.1 <= from.0)
    }

    /// Returns the piece from `from` on that copies `most` bytes or fewer, one at least.
    pub fn piece(&self, from: Progress, most: u64) -> Piece {
        let (length, count) = (self.registers.get(LENGTH), self.lines());
        let left = count.saturating_sub(from.line);
        let whole = most.checked_div(u64::from(length)).unwrap_or(0);
        if from.byte == 0 && whole > 0 {
            // CAST: not more than `left`.
            let lines = whole.min(u64::from(left)) as u32;
            let line = from.line.saturating_add(lines);
            return Piece {
                from,
                length,
                lines,
                next: (line < count).then_some(Progress { line, byte: 0 }),
            };
        }
        let rest = length.saturating_sub(from.byte);
        // CAST: not more than `rest`.
        let part = most.clamp(1, u64::from(rest.max(1))) as u32;
        let next = match part < rest {
            true => Some(Progress {
                line: from.line,
                byte: from.byte.saturating_add(part),
            }),
            false => Some(Progress {
                line: from.line.saturating_add(1),
                byte: 0,
            }),
        };
        Piece {
            from,
            length: part,
            lines: 1,
            next: next.filter(|next| next.line < count),
        }
    }

    /// Writes the words of a piece, which releases `done`, an address and a payload, when it has
    /// ended. Returns how many words it has, [`PIECE_WORDS_MAX`] at most; `None` without room.
    pub fn write(&self, piece: &Piece, done: (u64, u32), to: &mut [u32]) -> Option<usize> {
        let mut out = Writer {
            to,
            at: 0,
            subchannel: self.subchannel,
        };
        let [source, destination] = [(IN, PITCH_IN), (OUT, PITCH_OUT)].map(|(offset, pitch)| {
            let lines = Wrapping(u64::from(self.pitch(pitch))) * Wrapping(piece.from.line.into());
            let at = lines + Wrapping(u64::from(piece.from.byte));
            halves((Wrapping(self.registers.address(offset)) + at).0)
        });
        self.write_place(&mut out, source, destination, piece.length, piece.lines)?;
        let own = |out: &mut Writer<'_>| {
            let [upper, lower] = halves(done.0);
            out.burst(SET_SEMAPHORE_A, &[upper, lower, done.1])
        };
        if piece.next.is_some() {
            own(&mut out)?;
            let launch = self.launch & launch::KEPT | launch::ONE_WORD;
            out.burst(LAUNCH_DMA, &[launch])?;
            return Some(out.at);
        }
        self.write_semaphore(&mut out)?;
        out.burst(LAUNCH_DMA, &[self.launch])?;
        own(&mut out)?;
        out.word(immediate(
            self.subchannel,
            LAUNCH_DMA,
            launch::FLUSH | launch::ONE_WORD,
        ))?;
        self.write_semaphore(&mut out)?;
        let registers = &self.registers;
        let (source, destination) = (registers.pair(IN), registers.pair(OUT));
        let (length, lines) = (registers.get(LENGTH), self.lines());
        self.write_place(&mut out, source, destination, length, lines)?;
        Some(out.at)
    }

    fn write_place(
        &self,
        out: &mut Writer<'_>,
        [in_upper, in_lower]: [u32; 2],
        [out_upper, out_lower]: [u32; 2],
        length: u32,
        lines: u32,
    ) -> Option<()> {
        out.burst(OFFSET_IN_UPPER, &[in_upper, in_lower, out_upper, out_lower])?;
        // LINE_COUNT of a single line is not used, and may be unknown.
        match self.has_lines() {
            true => out.burst(LINE_LENGTH_IN, &[length, lines]),
            false => out.burst(LINE_LENGTH_IN, &[length]),
        }
    }

    /// Writes the tenant's semaphore registers, if they are known.
    fn write_semaphore(&self, out: &mut Writer<'_>) -> Option<()> {
        let Registers { values, .. } = &self.registers;
        let semaphore = values.get(SEMAPHORE..)?;
        match self.registers.knows_semaphore() {
            true => out.burst(SET_SEMAPHORE_A, semaphore),
            false => Some(()),
        }
    }
}

/// Returns the upper and the lower half of an address.
fn halves(va: u64) -> [u32; 2] {
    // CAST: halves.
    [(va >> 32) as u32, va as u32]
}

/// Words that are written one burst after the other.
struct Writer<'a> {
    to: &'a mut [u32],
    at: usize,
    subchannel: u8,
}

impl Writer<'_> {
    fn word(&mut self, word: u32) -> Option<()> {
        *self.to.get_mut(self.at)? = word;
        self.at = self.at.wrapping_add(1);
        Some(())
    }

    fn burst(&mut self, method: u16, data: &[u32]) -> Option<()> {
        // CAST: a few words.
        let count = data.len() as u32;
        self.word(incr(self.subchannel, method, count))?;
        data.iter().try_for_each(|word| self.word(*word))
    }
}
