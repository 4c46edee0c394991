// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes method headers: how the words of a segment are addressed to an engine's registers.
//!
//! Source: `NVC56F_DMA_*` in `clc56f.h` of NVIDIA/open-gpu-doc. Headers of the forms since Fermi
//! are decoded. Older ones (`SEC_OP` 0 with a count, 2) and those that change the subdevice mask
//! are refused: after one of them it is unknown which of the following methods reach an engine.

use super::reason::Reason;
use crate::units::Sat;
use core::num::Wrapping;

/// How a burst's words are addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// `INCR`: each word goes to the next method.
    Incr,
    /// `NON_INCR`: all words go to the same method.
    NonIncr,
    /// `ONE_INCR`: the first word goes to the method, all others to the next.
    OneIncr,
    /// `IMMD`: the header itself holds 13 bits of data.
    Immediate,
}

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Does nothing.
    Nop,
    /// `END_PB_SEGMENT`: the rest of the segment is not executed.
    End,
    /// Data for methods.
    Methods {
        /// How they are addressed.
        opcode: Opcode,
        /// The subchannel, 0 to 7.
        subchannel: u8,
        /// The byte offset of the first method.
        method: u16,
        /// Number of words that follow, or the data of an immediate.
        count: u16,
    },
}

/// The bits of the method, in words.
const METHOD: u32 = 0xfff;
/// The number of methods.
const METHODS: u32 = METHOD + 1;
/// The largest count of a header.
pub(crate) const COUNT: u32 = 0x1fff;
/// The lowest bit of the count.
pub(crate) const COUNT_SHIFT: u32 = 16;
/// The bits of the subchannel.
pub(crate) const SUBCHANNEL: u32 = 7 << SUBCHANNEL_SHIFT;
/// The lowest bit of the subchannel.
pub(crate) const SUBCHANNEL_SHIFT: u32 = 13;

impl Header {
    /// Decodes a header.
    ///
    /// # Errors
    ///
    /// [`Reason::OldForm`] and [`Reason::BadHeader`].
    #[inline]
    pub const fn decode(word: u32) -> Result<Self, Reason> {
        let header = Self::parse(word);
        if let Ok(Self::Methods { opcode, count, .. }) = header {
            let steps = match opcode {
                Opcode::Incr => count as u32,
                Opcode::OneIncr => 2,
                Opcode::NonIncr | Opcode::Immediate => 0,
            };
            // Behind the last method it would go on at the first: SET_OBJECT.
            if (word & METHOD).saturating_add(steps) > METHODS {
                return Err(Reason::BadHeader);
            }
        }
        header
    }

    /// Decodes a header, wherever its words go.
    #[inline]
    const fn parse(word: u32) -> Result<Self, Reason> {
        let opcode = match word >> 29 {
            1 => Opcode::Incr,
            3 => Opcode::NonIncr,
            4 => Opcode::Immediate,
            5 => Opcode::OneIncr,
            0 if word == 0 => return Ok(Self::Nop),
            7 => return Ok(Self::End),
            0 | 2 => return Err(Reason::OldForm),
            _ => return Err(Reason::BadHeader),
        };
        // CAST: each part is masked to its width.
        Ok(Self::Methods {
            opcode,
            subchannel: (word >> SUBCHANNEL_SHIFT & 7) as u8,
            method: ((word & METHOD) << 2) as u16,
            count: (word >> COUNT_SHIFT & COUNT) as u16,
        })
    }
}

/// One header with the data that follows it in this segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Position of the header; where the segment continues a burst of the last one, of its first
    /// word.
    pub at: u32,
    /// How the words are addressed.
    pub opcode: Opcode,
    /// The subchannel.
    pub subchannel: u8,
    /// The method of the first data word.
    pub method: u16,
    /// Position of the first data word.
    pub data: u32,
    /// Number of data words; 0 for an immediate.
    pub count: u32,
    /// The data of an immediate.
    pub immediate: u16,
    /// Number of words that the next segment still brings.
    pub missing: u32,
}

impl Burst {
    /// Returns the method that data word `index` goes to.
    pub fn method_of(&self, index: u32) -> u16 {
        let step = match self.opcode {
            Opcode::Incr => index,
            Opcode::NonIncr | Opcode::Immediate => 0,
            Opcode::OneIncr => index.min(1),
        };
        // CAST: methods are 14 bits and wrap there.
        ((u32::from(self.method) + (step & 0xfff) * 4) & 0x3fff) as u16
    }

    /// Returns the position of data word `index`.
    #[inline]
    pub fn position_of(&self, index: u32) -> u32 {
        // A segment has fewer than 2^21 words and a burst fewer than 2^13, so nothing wraps.
        (Wrapping(self.data) + Wrapping(index)).0
    }

    /// Returns the position behind the data.
    pub fn end(&self) -> u32 {
        self.position_of(self.count)
    }

    /// Returns how the words from data word `index` on are addressed.
    fn opcode_from(&self, index: u32) -> Opcode {
        match self.opcode {
            // Only the first word of ONE_INCR goes to another method than the rest.
            Opcode::OneIncr if index != 0 => Opcode::NonIncr,
            opcode => opcode,
        }
    }

    /// Returns the burst from data word `index` on.
    pub(crate) fn tail(&self, index: u32) -> Self {
        Self {
            opcode: self.opcode_from(index),
            method: self.method_of(index),
            data: self.position_of(index),
            count: (Sat(self.count) - Sat(index)).0,
            ..*self
        }
    }
}

/// A burst that goes on in the next segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialBurst {
    /// How the words are addressed.
    pub opcode: Opcode,
    /// The subchannel.
    pub subchannel: u8,
    /// The method of the next word.
    pub method: u16,
    /// Number of missing words.
    pub count: u32,
}

/// Where and why the rest of a segment was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Position of the header.
    pub at: u32,
    /// The header.
    pub header: u32,
    /// Why it was refused.
    pub reason: Reason,
}

/// Iterator over the bursts of a segment. Ends at the segment's end, at `END_PB_SEGMENT`, and after
/// a refusal.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    words: &'a [u32],
    at: u32,
    partial: Option<PartialBurst>,
}

impl<'a> Walk<'a> {
    /// Walks a segment that begins with a header.
    pub fn new(words: &'a [u32]) -> Self {
        Self::resume(words, None)
    }

    /// Walks a segment of a channel whose last one ended in `partial`.
    pub fn resume(words: &'a [u32], partial: Option<PartialBurst>) -> Self {
        Self {
            words,
            at: 0,
            partial,
        }
    }

    /// Returns the burst that this segment leaves unfinished, once the walk has ended.
    pub fn partial(&self) -> Option<PartialBurst> {
        self.partial
    }

    /// Returns the position of the next header.
    #[inline]
    pub(crate) fn position(&self) -> u32 {
        self.at
    }

    /// Returns whether the next word is a header, not the rest of the last segment's burst.
    #[inline]
    pub(crate) fn is_at_header(&self) -> bool {
        self.partial.is_none()
    }

    /// Continues at the header `at`, after the fast path has read the words before it.
    #[inline]
    pub(crate) fn seek(&mut self, at: u32) {
        self.at = at;
    }

    #[inline]
    fn left(&self) -> u32 {
        let length = u32::try_from(self.words.len()).unwrap_or(u32::MAX);
        (Sat(length) - Sat(self.at)).0
    }

    #[inline]
    fn burst(&mut self, at: u32, partial: PartialBurst) -> Burst {
        let count = partial.count.min(self.left());
        let missing = (Sat(partial.count) - Sat(count)).0;
        let burst = Burst {
            at,
            opcode: partial.opcode,
            subchannel: partial.subchannel,
            method: partial.method,
            data: self.at,
            count,
            immediate: 0,
            missing,
        };
        self.partial = (missing != 0).then(|| PartialBurst {
            opcode: burst.opcode_from(count),
            method: burst.method_of(count),
            count: missing,
            ..partial
        });
        self.at = burst.end();
        burst
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<Burst, Refused>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at == 0 && !self.words.is_empty() {
            if let Some(partial) = self.partial.take() {
                return Some(Ok(self.burst(0, partial)));
            }
        }
        loop {
            let at = self.at;
            let header = *self.words.get(usize::try_from(at).ok()?)?;
            self.at = (Wrapping(at) + Wrapping(1)).0;
            match Header::decode(header) {
                Ok(Header::Nop) => {}
                Ok(Header::End) => {
                    self.words = &[];
                    return None;
                }
                Ok(Header::Methods {
                    opcode: Opcode::Immediate,
                    subchannel,
                    method,
                    count,
                }) => {
                    return Some(Ok(Burst {
                        at,
                        opcode: Opcode::Immediate,
                        subchannel,
                        method,
                        data: self.at,
                        count: 0,
                        immediate: count,
                        missing: 0,
                    }));
                }
                Ok(Header::Methods {
                    opcode,
                    subchannel,
                    method,
                    count,
                }) => {
                    let partial = PartialBurst {
                        opcode,
                        subchannel,
                        method,
                        count: u32::from(count),
                    };
                    return Some(Ok(self.burst(at, partial)));
                }
                Err(reason) => {
                    if let Ok(Header::Methods {
                        opcode,
                        subchannel,
                        method,
                        count,
                    }) = Header::parse(header)
                    {
                        // Its words go on in the next segment all the same.
                        let words = PartialBurst {
                            opcode,
                            subchannel,
                            method,
                            count: u32::from(count),
                        };
                        self.burst(at, words);
                    }
                    self.words = &[];
                    return Some(Err(Refused { at, header, reason }));
                }
            }
        }
    }
}

const fn header(sec_op: u32, subchannel: u8, method: u16, count: u32) -> u32 {
    // CAST: widening, `From` is not `const`.
    sec_op << 29
        | (count & COUNT) << COUNT_SHIFT
        | (subchannel as u32 & 7) << SUBCHANNEL_SHIFT
        | (method as u32 >> 2 & 0xfff)
}

/// Encodes the header of `count` words to consecutive methods. Counts above [`BURST_WORDS_MAX`]
/// lose their upper bits.
///
/// [`BURST_WORDS_MAX`]: super::limits::BURST_WORDS_MAX
pub const fn incr(subchannel: u8, method: u16, count: u32) -> u32 {
    header(1, subchannel, method, count)
}

/// Encodes the header of `count` words to one method.
pub const fn non_incr(subchannel: u8, method: u16, count: u32) -> u32 {
    header(3, subchannel, method, count)
}

/// Encodes the header of one word to a method and of the others to the next.
pub const fn one_incr(subchannel: u8, method: u16, count: u32) -> u32 {
    header(5, subchannel, method, count)
}

/// Encodes a header that carries 13 bits of data.
pub const fn immediate(subchannel: u8, method: u16, data: u32) -> u32 {
    header(4, subchannel, method, data)
}
