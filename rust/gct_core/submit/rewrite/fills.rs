// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes out the words that CUDA has a macro make.
//!
//! Nobody sees the methods of a macro: its tenant loads its code, and it may launch. CUDA calls one
//! where it fills up to 4 KiB (H100 and H200, `gctgroup-docs/hardware.md`):
//!
//! ```text
//! LINE_LENGTH_IN = bytes, LINE_COUNT = 1, OFFSET_OUT_UPPER, OFFSET_OUT
//! LAUNCH_DMA                                      begins an upload
//! CALL_MME_MACRO(0) = words, CALL_MME_DATA(0) = word
//! ```
//!
//! The upload takes so many words from the macro, and the memory has the word. So the call becomes
//! these words, before the segment is scanned. Whatever code the tenant has loaded does not run: it
//! does not matter what that is, nor who else could write it.

use crate::submit::method::{non_incr, Burst, Opcode, Walk};
use crate::submit::methods;
use core::num::Wrapping;

/// The longest segment in which fills are looked for. CUDA's have 21 words.
const SEGMENT_WORDS_MAX: usize = 64;

/// The longest fill. CUDA fills more by a kernel.
const FILL_WORDS_MAX: u32 = 1024;

/// How much longer a segment gets at most.
pub const ADDED_WORDS: usize = 2048;

/// Words of a call of the macro.
const CALL_WORDS: usize = 3;

/// A call of the macro that fills.
struct Fill {
    /// The position of its header.
    at: usize,
    subchannel: u8,
    /// How many words it makes.
    count: usize,
    word: u32,
}

/// Returns whether fills are looked for in a segment of so many words.
pub const fn are_looked_for(words: usize) -> bool {
    words <= SEGMENT_WORDS_MAX
}

/// Replaces the fills in a segment, the first `length` of `words`, by what they make. The other
/// words are room. Returns the new length.
///
/// The segment begins with a header. Calls of macros that are no such fill stay, and fills that do
/// not fit.
pub fn expand(words: &mut [u32], length: usize) -> usize {
    let most = length.saturating_add(ADDED_WORDS).min(words.len());
    let mut length = length;
    // Each round has one call less.
    while let Some(fill) = words.get(..length).and_then(find) {
        let longer = length.saturating_add(fill.count.saturating_sub(CALL_WORDS - 1));
        let room = words.get_mut(..longer).filter(|_| longer <= most);
        if room.and_then(|words| write(words, length, &fill)).is_none() {
            break;
        }
        length = longer;
    }
    length
}

/// Returns the first fill of a segment.
fn find(words: &[u32]) -> Option<Fill> {
    let mut upload = Upload::default();
    for burst in Walk::new(words) {
        let burst = burst.ok()?;
        let fill = upload.fill(&burst, words);
        if fill.is_some() {
            return fill;
        }
        upload.read(&burst, words);
    }
    None
}

/// The upload that the last bursts describe.
#[derive(Default)]
struct Upload {
    subchannel: u8,
    bytes: u32,
    lines: u32,
    /// Whether the last burst has begun it.
    begun: bool,
}

impl Upload {
    /// Reads a burst of registers.
    fn read(&mut self, burst: &Burst, words: &[u32]) {
        if burst.subchannel != self.subchannel {
            *self = Self::default();
            self.subchannel = burst.subchannel;
        }
        self.begun = false;
        for index in 0..burst.count {
            // The data of an upload is not read word by word.
            if burst.opcode != Opcode::Incr {
                break;
            }
            let word = word_of(burst, index, words).unwrap_or(0);
            match burst.method_of(index) {
                methods::LINE_LENGTH_IN => self.bytes = word,
                methods::LINE_COUNT => self.lines = word,
                methods::LAUNCH_DMA => self.begun = burst.count == 1,
                _ => {}
            }
        }
    }

    /// Returns the fill that a burst is, of all of the upload.
    fn fill(&self, burst: &Burst, words: &[u32]) -> Option<Fill> {
        let is_call = burst.method == methods::CALL_MME_MACRO
            && burst.opcode == Opcode::Incr
            && (burst.count, burst.missing) == (2, 0);
        let is_whole = self.begun && self.lines == 1 && burst.subchannel == self.subchannel;
        let count = word_of(burst, 0, words).filter(|_| is_call && is_whole)?;
        let fits = (1..=FILL_WORDS_MAX).contains(&count) && self.bytes.div_ceil(4) == count;
        fits.then_some(Fill {
            // CAST: widening.
            at: burst.at as usize,
            subchannel: burst.subchannel,
            // CAST: widening.
            count: count as usize,
            word: word_of(burst, 1, words)?,
        })
    }
}

/// Returns a data word of a burst.
fn word_of(burst: &Burst, index: u32, words: &[u32]) -> Option<u32> {
    // CAST: widening.
    words.get(burst.position_of(index) as usize).copied()
}

/// Writes a fill in place of its call. The words behind it move to the end of `words`.
fn write(words: &mut [u32], length: usize, fill: &Fill) -> Option<()> {
    let behind = fill.at.checked_add(CALL_WORDS)?;
    let moved = words.len().checked_sub(length)?;
    for from in (behind..length).rev() {
        let word = *words.get(from)?;
        *words.get_mut((Wrapping(from) + Wrapping(moved)).0)? = word;
    }
    let [header, rest @ ..] = words.get_mut(fill.at..)? else {
        return None;
    };
    // CAST: FILL_WORDS_MAX at most.
    *header = non_incr(
        fill.subchannel,
        methods::LOAD_INLINE_DATA,
        fill.count as u32,
    );
    rest.get_mut(..fill.count)?.fill(fill.word);
    if fill.count == 1 {
        // The call was longer: a header that does nothing.
        *rest.get_mut(1)? = 0;
    }
    Some(())
}
