// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds where a long segment can be cut into pieces, each of which is a segment of its own.
//!
//! A piece ends behind a call, so that each launch lies whole in one piece: CUDA uploads a
//! descriptor just before the call that schedules it. What follows a call without an upload, as the
//! decrement of a companion, stays with it. Without a call the piece ends before a header, so that
//! a burst lies whole in one, too.

use super::Tracker;
use crate::submit::method::Walk;
use crate::submit::methods;
use core::num::Wrapping;

/// A piece of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its number of words.
    pub words: u32,
    /// Whether nothing of the segment behind it is executed: it ends in `END_PB_SEGMENT`.
    pub ends: bool,
}

impl Tracker {
    /// Returns the first piece of a segment that begins with `words` and is longer. It has no more
    /// than `calls` calls of one burst each.
    #[cold]
    #[inline(never)]
    pub fn piece(&self, words: &[u32], calls: usize) -> Piece {
        let mut walk = Walk::resume(words, self.partial);
        // Where the last burst ends, the last place before a header, the last place behind a call.
        let (mut end, mut header, mut behind_call) = (0, 0, 0);
        let (mut is_behind, mut left) = (false, Wrapping(calls));
        // CAST: a segment has fewer than 2^21 words.
        let all = words.len() as u32;
        let whole = Piece {
            words: all,
            ends: false,
        };
        loop {
            let burst = match walk.next() {
                Some(Ok(burst)) => burst,
                // The scan refuses it.
                Some(Err(_)) => return whole,
                None => break,
            };
            let sends =
                (methods::SEND_PCAS_A..=methods::SEND_SIGNALING_PCAS2_B).contains(&burst.method);
            if is_behind && !sends {
                behind_call = end;
            }
            is_behind = sends && burst.method != methods::SEND_PCAS_A;
            left -= usize::from(is_behind);
            if left == Wrapping(0) {
                break;
            }
            end = walk.position();
            // The address of a call stays with it.
            if walk.is_at_header() && burst.method != methods::SEND_PCAS_A {
                header = end;
            }
        }
        // CAST: widening.
        let behind = words.get(end as usize..).unwrap_or_default();
        // What is behind the last burst is nothing, or ends the segment.
        let stop = (1..u32::MAX).zip(behind).find(|(_, word)| **word != 0);
        match stop.filter(|_| walk.is_at_header() && left != Wrapping(0)) {
            Some((count, _)) => Piece {
                words: (Wrapping(end) + Wrapping(count)).0,
                ends: true,
            },
            None if behind_call > 0 => Piece {
                words: behind_call,
                ends: false,
            },
            None if header > 0 => Piece {
                words: header,
                ends: false,
            },
            None => whole,
        }
    }
}
