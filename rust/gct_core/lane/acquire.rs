// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps off the GPU what would only wait there.
//!
//! Terminology
//!   acquire   a segment's first method, if it waits until a word has reached a number: that other
//!             work, or the program, has come so far
//!
//! A share of time counts whoever has work in flight as running. Its rivals wait meanwhile. So work
//! that waits on the GPU for work that the share holds back would use up the share by waiting. A
//! server of a language model does that with each token: one channel makes it, another copies it.
//! Two of them had 8% of the tokens that they have without weights (H200, 29 November 2026).
//!
//! ```text
//! held back   a share of time bounds the work in flight (bounds_flight), nothing of the channel
//!             is in flight, and the acquire's word has not reached its number; STALL_MAX at most
//! ```
//!
//! Who writes to the word to look as if it waited only delays itself. Behind other work of its
//! channel an acquire is released at once, since it may wait for that work.

use super::governor::{Governor, Peers};
use super::in_flight::Fence;
use super::words::{Storage, Words};
use super::work::{Acquire, Stream};
use crate::policy::patience;
use crate::submit::tracker::Semaphore;
use crate::units::Ns;

impl<S: Storage, P: Peers> Governor<S, P> {
    /// Returns what a segment waits for that begins with `acquire`. Returns `None` if the word has
    /// come so far, or cannot be read, or if it does not matter where the segment waits.
    pub(super) fn acquire<W: Words>(
        &self,
        acquire: Option<Semaphore>,
        memory: &W,
        now: Ns,
    ) -> Option<Acquire<W::View>> {
        let acquire = acquire.filter(|_| self.bounds_flight().is_some())?;
        Some(Acquire {
            word: Fence::at(memory, acquire.va, acquire.payload)?,
            since: now,
        })
    }
}

impl<S: Storage, V: Copy> Stream<S, V> {
    /// Returns whether the segment that was processed last still waits for its acquire.
    pub(super) fn acquires(&mut self, memory: &impl Words<View = V>, now: Ns) -> bool {
        let waits =
            |it: &Acquire<V>| patience::moves(now - it.since) && !it.word.is_reached(memory);
        self.acquire = self.acquire.take().filter(waits);
        self.acquire.is_some()
    }
}

#[cfg(test)]
mod tests;
