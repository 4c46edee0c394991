// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Brings a shadowed channel to where its tenant can go on without the lane.
//!
//! The tenant goes on in the ring that the GPU reads, where GP_GET is. One entry of the tenant may
//! have become several there, so its index differs. NOPs fill the real ring up to it:
//!
//! ```text
//! copies, frames, slots or masks of graphs are in use     Works: publish as ever
//! GP_PUT is not the tenant's index                        the tenant's base, then NOPs
//! GP_GET is not there yet                                 Waits: publish nothing
//! both are                                                Left
//! ```
//!
//! No entry is held back while launches are in flight, because they may wait for it. Behind the
//! NOPs an entry waits for these alone.

use super::channel::Lane;
use super::governor::{Governor, Peers};
use super::words::{Rings, Storage, Words};
use super::work::Round;
use crate::submit::gpfifo::{self, Entry};

/// How far a lane is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Work of the tenant needs the lane's memory.
    Works,
    /// Nothing does, and the GPU has not fetched the last entry.
    Waits,
    /// The tenant can go on at its index.
    Left,
}

impl<S: Storage, P: Peers> Governor<S, P> {
    /// Returns whether the tenant's graphs may run under a mask that was ordered for them.
    fn keeps_masks(&mut self) -> bool {
        self.nodes.memory().keep_masks()
    }
}

impl<S: Storage, V: Copy + 'static> Lane<S, V> {
    /// Returns the token that rings the channel's doorbell, if it is known.
    pub fn token(&self) -> Option<u32> {
        self.token
    }

    /// Takes a step towards the end of the lane. Unless it returns [`Leave::Works`], nothing may be
    /// published behind it but by further steps. The real ring is as long as the tenant's.
    pub fn leave<W: Words<View = V>, P: Peers>(
        &mut self,
        rings: &impl Rings,
        governor: &mut Governor<S, P>,
        round: &mut Round<'_, S, W>,
    ) -> Leave {
        self.update_in_flight(governor, round.memory, round.now);
        self.real.follow_get(rings);
        let is_free = self.is_between_entries() && self.is_free(round) && !governor.keeps_masks();
        match is_free {
            true => self.align(rings),
            false => Leave::Works,
        }
    }

    /// Returns whether the GPU uses nothing of the lane's memory.
    fn is_free<W: Words<View = V>>(&mut self, round: &mut Round<'_, S, W>) -> bool {
        let fetched = self.real.fetched_count();
        let copies = round.copies.as_deref_mut();
        let slots = round.slots.as_deref_mut();
        let scratch = round.scratch.as_deref();
        copies.is_none_or(|copies| copies.is_free(round.memory, fetched))
            && slots.is_none_or(|slots| slots.is_free(round.memory))
            && scratch.is_none_or(|scratch| scratch.is_free(round.memory))
    }

    /// Fills the real ring up to the tenant's index.
    fn align(&mut self, rings: &impl Rings) -> Leave {
        let (base, tenant, put) = (
            self.stream.fetch.base(),
            self.tenant.taken(),
            self.real.put(),
        );
        let Some(token) = self.token else {
            return Leave::Works;
        };
        let is_aligned = put == tenant && self.real.has_base(base);
        match (is_aligned, self.real.is_fetched()) {
            (true, true) => return Leave::Left,
            (true, false) => return Leave::Waits,
            // The whole ring is free for NOPs.
            (false, false) => return Leave::Works,
            (false, true) => {}
        }
        self.real.set_base(rings, base, tenant);
        while self.real.put() != tenant && self.real.room() > 0 {
            let nop = Entry::Control(gpfifo::Control::Nop);
            self.real.push(rings, nop.encode(), tenant);
        }
        rings.publish(self.real.put(), token);
        Leave::Waits
    }
}
