// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The sequences that nearly all words of a CUDA launch consist of, each in one step.
//!
//! This is for speed alone: a launch is an upload five times, a PCAS twice and a report, and reading it burst by burst
//! takes about four times as long.

use super::{subchannel, Call, Pass, Role, Subchannel, Tracker};
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
    /// semaphore report. Returns where the first word lies that is none of them. What this does is what the single bursts
    /// would do (a test compares); whatever differs in one bit is left to them.
    #[inline(always)]
    pub(super) fn known_forms(&mut self, mut at: u32, pass: &mut Pass<'_, '_>) -> u32 {
        let mut tail = match usize::try_from(at) {
            Ok(at) => pass.words.get(at..).unwrap_or(&[]),
            Err(_) => &[],
        };
        // Each turn takes at least four words.
        while let Some(header) = tail.first() {
            let on = header & method::SUBCHANNEL;
            let taken = match header ^ on {
                UPLOAD_FORM => self.known_upload(at, on, tail),
                PCAS_FORM => self.known_pcas(at, on, tail, pass),
                REPORT_FORM => self.known_report(on, tail),
                _ => None,
            };
            let Some(rest) = taken.and_then(|taken| tail.get(taken..)) else {
                break;
            };
            // CAST: at most the words of one upload.
            at = at.wrapping_add(tail.len().wrapping_sub(rest.len()) as u32);
            tail = rest;
        }
        at
    }

    /// The subchannel of a known form, if its class has these methods.
    #[inline(always)]
    fn engine(&mut self, on: u32) -> Option<&mut Subchannel> {
        // CAST: three bits.
        let index = (on >> method::SUBCHANNEL_SHIFT) as usize;
        let subchannel = self.subchannels.get_mut(index)?;
        (subchannel.role != Role::Other).then_some(subchannel)
    }

    #[inline(always)]
    fn known_upload(&mut self, at: u32, on: u32, tail: &[u32]) -> Option<usize> {
        let [_, upper, lower, length_header, length, lines, launch_header, launch, data_header] =
            *tail.first_chunk()?;
        let [length_form, launch_form, data_form] = UPLOAD_FORMS;
        let count = data_header >> method::COUNT_SHIFT & method::COUNT;
        // CAST: at most 13 bits.
        let end = (count as usize).wrapping_add(UPLOAD_HEADERS);
        let differ = (length_header ^ length_form ^ on)
            | (launch_header ^ launch_form ^ on)
            | (data_header & !method::COUNT_BITS ^ data_form ^ on)
            | (lines ^ 1)
            | (!launch & subchannel::LAYOUT_PITCH);
        // CAST: three bits.
        let subchannel = self
            .subchannels
            .get_mut((on >> method::SUBCHANNEL_SHIFT) as usize)?;
        if differ != 0 || end > tail.len() || !subchannel.uploads_plainly() {
            return None;
        }
        let va = subchannel.set_upload(upper, lower, length);
        // CAST: nine.
        let data = at.wrapping_add(UPLOAD_HEADERS as u32);
        self.uploads.begin(va, Some(length), Some((data, count)));
        Some(end)
    }

    #[inline(always)]
    fn known_pcas(
        &mut self,
        at: u32,
        on: u32,
        tail: &[u32],
        pass: &mut Pass<'_, '_>,
    ) -> Option<usize> {
        let [_, address, action_header, action] = *tail.first_chunk()?;
        if action_header != on | PCAS_ACTION_FORM {
            return None;
        }
        let subchannel = self.engine(on)?;
        subchannel.set(class::SEND_PCAS_A, address);
        let call = Call {
            at: at.wrapping_add(2),
            end: at.wrapping_add(4),
            // CAST: three bits.
            subchannel: (on >> method::SUBCHANNEL_SHIFT) as usize,
            alone: true,
        };
        self.pcas(&call, Action::of_pcas2(action), pass);
        Some(4)
    }

    #[inline(always)]
    fn known_report(&mut self, on: u32, tail: &[u32]) -> Option<usize> {
        let [_, upper, lower, payload, execute] = *tail.first_chunk()?;
        let subchannel = self.engine(on)?;
        let report = subchannel.set_report_all(upper, lower, payload, execute);
        self.last_release = Some(report);
        Some(5)
    }
}
