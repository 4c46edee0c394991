// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The sequences that nearly all words of a CUDA launch consist of, each in one step.
//!
//! This is for speed alone: a launch is an upload five times, a PCAS twice and a report, and reading it burst by burst
//! takes about four times as long.

use super::uploads::is_whole;
use super::{subchannel, Call, Pass, Role, Subchannel, Tracker, HOST_END};
use crate::submit::class::{self, Action};
use crate::submit::method;

/// The first header of an upload as CUDA writes it, on subchannel 0: the destination.
const UPLOAD_FORM: u32 = method::incr(0, class::OFFSET_OUT_UPPER, 2);

/// Its other headers: length, launch, and the data's without its count.
const UPLOAD_FORMS: [u32; 3] = [
    method::incr(0, class::LINE_LENGTH_IN, 2),
    method::incr(0, class::LAUNCH_DMA, 1),
    method::non_incr(0, class::LOAD_INLINE_DATA, 0),
];

/// The words of an upload before its data.
const UPLOAD_HEADERS: usize = 9;

/// The first header of a PCAS as CUDA writes it, on subchannel 0.
const PCAS_FORM: u32 = method::incr(0, class::SEND_PCAS_A, 1);

/// Its second header.
const PCAS_ACTION_FORM: u32 = method::incr(0, class::SEND_SIGNALING_PCAS2_B, 1);

/// The header of a semaphore report as CUDA writes it, on subchannel 0.
const REPORT_FORM: u32 = method::incr(0, class::SET_REPORT_SEMAPHORE_A, 4);

impl Tracker {
    /// Takes the sequences that nearly all words of a CUDA launch consist of in one step each: an upload, a PCAS, a
    /// semaphore report; and whatever goes to another class. Returns where the first word lies that is none of them. What
    /// this does is what the single bursts would do (a test compares); whatever differs in one bit is left to them.
    #[inline(always)]
    pub(super) fn known_forms(&mut self, at: u32, pass: &mut Pass<'_, '_>) -> u32 {
        let words = pass.words;
        let mut tail = match usize::try_from(at) {
            Ok(at) => words.get(at..).unwrap_or(&[]),
            Err(_) => &[],
        };
        // Each turn takes at least one word.
        while let Some(header) = tail.first() {
            let on = header & method::SUBCHANNEL;
            // CAST: a segment has fewer than 2^21 words.
            let at = words.len().wrapping_sub(tail.len()) as u32;
            // Not a `match`, so that the form which comes most often is asked for first.
            let form = header ^ on;
            let rest = if form == UPLOAD_FORM {
                self.known_upload(at, on, tail)
            } else if form == PCAS_FORM {
                self.known_pcas(at, on, tail, pass)
            } else if form == REPORT_FORM {
                self.known_report(on, tail)
            } else {
                self.foreign(on, *header, tail)
            };
            match rest {
                Some(rest) => tail = rest,
                None => break,
            }
        }
        // CAST: as above.
        words.len().wrapping_sub(tail.len()) as u32
    }

    /// The subchannel of a known form, if its class has these methods.
    #[inline(always)]
    fn engine(&mut self, on: u32) -> Option<&mut Subchannel> {
        // CAST: three bits.
        let index = (on >> method::SUBCHANNEL_SHIFT) as usize;
        let subchannel = self.subchannels.get_mut(index)?;
        (subchannel.role != Role::Other).then_some(subchannel)
    }

    /// Takes an upload and gives the words behind it.
    #[inline(always)]
    fn known_upload<'a>(&mut self, at: u32, on: u32, tail: &'a [u32]) -> Option<&'a [u32]> {
        let (headers, data) = tail.split_first_chunk()?;
        let [_, upper, lower, length_header, length, lines, launch_header, launch, data_header] =
            *headers;
        let [length_form, launch_form, data_form] = UPLOAD_FORMS;
        let count = data_header >> method::COUNT_SHIFT & method::COUNT;
        let differ = (length_header ^ length_form ^ on)
            | (launch_header ^ launch_form ^ on)
            | (data_header & !method::COUNT_BITS ^ data_form ^ on)
            | (lines ^ 1)
            | (!launch & subchannel::LAYOUT_PITCH);
        // CAST: at most 13 bits.
        let rest = data.get(count as usize..)?;
        // CAST: three bits.
        let subchannel = self
            .subchannels
            .get_mut((on >> method::SUBCHANNEL_SHIFT) as usize)?;
        if differ != 0 || !is_whole(count, length) || !subchannel.uploads_plainly() {
            return None;
        }
        let va = subchannel.set_upload(upper, lower, length);
        // CAST: nine.
        let data = at.wrapping_add(UPLOAD_HEADERS as u32);
        self.uploads.add_whole(va, length, data);
        Some(rest)
    }

    /// Takes a PCAS and gives the words behind it.
    #[inline(always)]
    fn known_pcas<'a>(
        &mut self,
        at: u32,
        on: u32,
        tail: &'a [u32],
        pass: &mut Pass<'_, '_>,
    ) -> Option<&'a [u32]> {
        let ([_, address, action_header, action], rest) = tail.split_first_chunk()?;
        if *action_header != on | PCAS_ACTION_FORM {
            return None;
        }
        let subchannel = self.engine(on)?;
        subchannel.set(class::SEND_PCAS_A, *address);
        let call = Call {
            at: at.wrapping_add(2),
            end: at.wrapping_add(4),
            // CAST: three bits.
            subchannel: (on >> method::SUBCHANNEL_SHIFT) as usize,
            alone: true,
        };
        self.pcas(&call, Action::of_pcas2(*action), pass);
        Some(rest)
    }

    /// Takes a burst for a class whose methods mean nothing here, and gives the words behind it.
    #[inline(always)]
    fn foreign<'a>(&self, on: u32, header: u32, tail: &'a [u32]) -> Option<&'a [u32]> {
        // CAST: three bits.
        let index = (on >> method::SUBCHANNEL_SHIFT) as usize;
        if self.subchannels.get(index)?.role != Role::Other
            || !method::has_data_beyond(header, HOST_END)
        {
            return None;
        }
        let count = header >> method::COUNT_SHIFT & method::COUNT;
        // CAST: at most 13 bits.
        tail.get((count as usize).wrapping_add(1)..)
    }

    /// Takes a semaphore report and gives the words behind it.
    #[inline(always)]
    fn known_report<'a>(&mut self, on: u32, tail: &'a [u32]) -> Option<&'a [u32]> {
        let ([_, upper, lower, payload, execute], rest) = tail.split_first_chunk()?;
        let subchannel = self.engine(on)?;
        let report = subchannel.set_report_all(*upper, *lower, *payload, *execute);
        self.last_release = Some(report);
        Some(rest)
    }
}
