// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the sequences that nearly all words of a CUDA launch consist of, each in one step.
//!
//! This is for speed alone. A launch is five uploads, two PCAS and a report; burst by burst they
//! take about four times as long to read.

use super::calls::called;
use super::subchannel::ONE_LINE;
use super::uploads::Plain;
use super::{Call, Pass, Role, Subchannel, Tracker, HOST_END};
use crate::submit::method::{self, Header, Opcode};
use crate::submit::methods::{self, Action};
use crate::submit::qmd::Version;
use crate::submit::reason::Reason;
use core::num::Wrapping;

/// The headers of an upload as CUDA writes it, on subchannel 0: destination, length, launch, and
/// the data's without its count.
const DESTINATION_HEADER: u32 = method::incr(0, methods::OFFSET_OUT_UPPER, 2);
const LENGTH_HEADER: u32 = method::incr(0, methods::LINE_LENGTH_IN, 2);
const LAUNCH_HEADER: u32 = method::incr(0, methods::LAUNCH_DMA, 1);
const DATA_HEADER: u32 = method::non_incr(0, methods::LOAD_INLINE_DATA, 0);

/// LAUNCH_DMA as CUDA writes it: pitch layout, no system membar.
const LAUNCH: u32 = 0x41;

/// Largest data of one header, in bytes.
const DATA_BYTES_MAX: u64 = 4 * method::COUNT as u64;

/// The headers of a PCAS as CUDA writes it, on subchannel 0: the QMD, and the action.
const PCAS_HEADER: u32 = method::incr(0, methods::SEND_PCAS_A, 1);
const ACTION_HEADER: u32 = method::incr(0, methods::SEND_SIGNALING_PCAS2_B, 1);

/// The header of a semaphore report as CUDA writes it, on subchannel 0.
const REPORT_HEADER: u32 = method::incr(0, methods::SET_REPORT_SEMAPHORE_A, 4);

/// Joins two words into one number.
#[inline(always)]
const fn pair(upper: u32, lower: u32) -> u64 {
    // CAST: widening, `From` is not `const`.
    (upper as u64) << 32 | lower as u64
}

/// Returns the `N` words at `at`, and the position behind them.
#[inline(always)]
fn take<const N: usize>(words: &[u32], at: u32) -> Option<(&[u32; N], u32)> {
    // CAST: widening on every machine that has GPUs.
    let at = at as usize;
    let end = at + N;
    // CAST: a segment has fewer than 2^21 words.
    Some((words.get(at..end)?.first_chunk()?, end as u32))
}

/// Returns `end` if it is still in the segment.
#[inline(always)]
fn within(words: &[u32], end: u64) -> Option<u32> {
    // CAST: as above.
    (end <= words.len() as u64).then_some(end as u32)
}

impl Tracker {
    /// Reads uploads, PCAS and semaphore reports in one step each, and skips bursts for other
    /// classes. Returns the position of the first word that is none of these.
    ///
    /// The result is that of reading the single bursts (a test compares). A sequence that differs
    /// in one bit is left to them.
    #[inline(always)]
    pub(super) fn fast_path(&mut self, mut at: u32, pass: &mut Pass<'_, '_>) -> u32 {
        let words = pass.words;
        // Each turn takes at least one word.
        while let Some(header) = pass.word(at) {
            let on = header & method::SUBCHANNEL;
            let on_zero = header ^ on;
            // Not a `match`, so that the most frequent header is compared first.
            let end = if header == on | DESTINATION_HEADER {
                self.fast_upload(at, on, pass)
            } else if on_zero == PCAS_HEADER {
                self.fast_pcas(at, on, pass)
            } else if on_zero == REPORT_HEADER {
                self.fast_report(at, on, words)
            } else {
                self.foreign(at, on, header, words)
            };
            match end {
                Some(end) => at = end,
                None => break,
            }
        }
        at
    }

    #[inline(always)]
    fn subchannel(&mut self, on: u32) -> Option<&mut Subchannel> {
        // CAST: three bits.
        self.subchannels
            .get_mut((on >> method::SUBCHANNEL_SHIFT) as usize)
    }

    /// Reads an upload and returns the position behind it.
    #[inline(always)]
    fn fast_upload(&mut self, at: u32, on: u32, pass: &mut Pass<'_, '_>) -> Option<u32> {
        let words = pass.words;
        let (headers, data) = take(words, at)?;
        let [_, upper, lower, length_header, length, lines, launch_header, launch, data_header] =
            *headers;
        let lines = pair(lines, length);
        let bytes = (Wrapping(lines) - Wrapping(ONE_LINE)).0;
        if length_header != on | LENGTH_HEADER
            || bytes > DATA_BYTES_MAX
            || pair(launch, launch_header) != pair(LAUNCH, on | LAUNCH_HEADER)
        {
            return None;
        }
        // CAST: not more than `DATA_BYTES_MAX`.
        let bytes = bytes as u32;
        let count = bytes.div_ceil(4);
        if data_header != on | DATA_HEADER | count << method::COUNT_SHIFT {
            return None;
        }
        let end = within(words, u64::from(data) + u64::from(count))?;
        let subchannel = self.subchannel(on)?;
        if !subchannel.is_direct() {
            return None;
        }
        let va = pair(upper, lower);
        subchannel.set_upload(va, lines);
        self.uploads.add_whole(va, bytes, data);
        if self.uploads.has_evicted() {
            self.report_evicted(pass);
        }
        Some(end)
    }

    /// Reads a PCAS and returns the position behind it.
    #[inline(always)]
    fn fast_pcas(&mut self, at: u32, on: u32, pass: &mut Pass<'_, '_>) -> Option<u32> {
        let words = pass.words;
        let ([_, address, header, action], end) = take(words, at)?;
        let action = Action::of_pcas2(*action);
        // CAST: three bits.
        let index = (on >> method::SUBCHANNEL_SHIFT) as usize;
        let subchannel = self.subchannels.get_mut(index)?;
        if *header != on | ACTION_HEADER
            || !subchannel.is_direct()
            || action == Action::Nop
            || !pass.table.has_room()
        {
            return None;
        }
        let va = u64::from(*address) << 8;
        let call = Call {
            at: (Wrapping(at) + Wrapping(2)).0,
            end,
            subchannel: index,
            alone: true,
        };
        let registers = subchannel.registers(&self.uploads);
        // Not one call for both, so that the compiler knows what is stored.
        match self.uploads.find_plain(va, words, self.family)? {
            Plain::At(at, nature) => {
                pass.count_call(action, None);
                let here = Ok((at, Version::V04_00));
                let found = called(&call, action, va, here, Some(nature), registers);
                pass.table.put(found);
            }
            Plain::NotHere => {
                pass.count_call(action, Some(Reason::NotHere));
                let here = Err(Reason::NotHere);
                let found = called(&call, action, va, here, None, registers);
                pass.table.put(found);
            }
        }
        subchannel.set_pcas(*address);
        Some(end)
    }

    /// Skips a burst for a class without tracked methods, and returns the position behind it.
    #[inline(always)]
    fn foreign(&mut self, at: u32, on: u32, header: u32, words: &[u32]) -> Option<u32> {
        if self.subchannel(on)?.role != Role::Other {
            return None;
        }
        // One that goes on behind the last method, at SET_OBJECT, is left to the single bursts.
        match Header::decode(header) {
            Ok(Header::Methods {
                opcode: Opcode::Incr | Opcode::NonIncr | Opcode::OneIncr,
                method,
                count,
                ..
            }) if method >= HOST_END => within(words, u64::from(at) + 1 + u64::from(count)),
            _ => None,
        }
    }

    /// Reads a semaphore report and returns the position behind it.
    #[inline(always)]
    fn fast_report(&mut self, at: u32, on: u32, words: &[u32]) -> Option<u32> {
        let ([_, upper, lower, payload, execute], end) = take(words, at)?;
        let subchannel = self.subchannel(on)?;
        if !subchannel.role.uploads() {
            return None;
        }
        let report = subchannel.set_report_all(*upper, *lower, *payload, *execute);
        self.last_release = Some(report);
        Some(end)
    }
}
