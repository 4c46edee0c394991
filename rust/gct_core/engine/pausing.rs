// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists the owners that may pause: those under `compute.max` that have channels with their
//! tenant's ring, and those whose pauses have yet to end. Time passes for these alone, however many
//! owners there are.

use crate::ids::{GpuId, Owner};
use crate::records::{Pool, PoolLinks};
use crate::state::State;

impl<'a> State<'a> {
    /// Lists an owner on a GPU if it may pause now. O(1).
    pub(super) fn may_pause(&mut self, owner: Owner, gpu: GpuId) {
        let key = (owner, gpu);
        let pool = self.pools.get(&key);
        let is_new = pool.is_some_and(|pool| pool.pausing.is_none() && self.is_pausing(pool, gpu));
        if !is_new {
            return;
        }
        let next = self.plan.first_pausing.replace(key);
        if let Some(links) = next.and_then(|next| self.pausing_links(next)) {
            links.previous = Some(key);
        }
        if let Some(pool) = self.pools.get_mut(&key) {
            pool.pausing = Some(PoolLinks {
                previous: None,
                next,
            });
        }
    }

    /// Takes an owner on a GPU from the list, if it is there. O(1).
    pub(super) fn pauses_no_more(&mut self, owner: Owner, gpu: GpuId) {
        let pool = self.pools.get_mut(&(owner, gpu));
        let Some(links) = pool.and_then(|pool| pool.pausing.take()) else {
            return;
        };
        let PoolLinks { previous, next } = links;
        if let Some(next) = next.and_then(|next| self.pausing_links(next)) {
            next.previous = previous;
        }
        match previous.and_then(|previous| self.pausing_links(previous)) {
            Some(previous) => previous.next = next,
            None => self.plan.first_pausing = next,
        }
    }

    /// Takes all owners on a GPU from the list.
    pub(super) fn nobody_pauses_on(&mut self, gpu: GpuId) {
        let mut at = self.plan.first_pausing;
        while let Some(key) = at {
            at = self.next_pausing(key);
            if key.1 == gpu {
                self.pauses_no_more(key.0, gpu);
            }
        }
    }

    /// Returns the owner that follows one of the list.
    pub(super) fn next_pausing(&self, key: (Owner, GpuId)) -> Option<(Owner, GpuId)> {
        self.pools.get(&key)?.pausing?.next
    }

    /// Returns the owners of the list.
    pub(super) fn pausing(&self) -> impl Iterator<Item = (Owner, GpuId)> + use<'_, 'a> {
        let mut at = self.plan.first_pausing;
        (0..self.pools.len()).map_while(move |_| {
            let key = at?;
            at = self.next_pausing(key);
            Some(key)
        })
    }

    fn pausing_links(&mut self, key: (Owner, GpuId)) -> Option<&mut PoolLinks> {
        self.pools.get_mut(&key)?.pausing.as_mut()
    }

    /// Returns whether an owner may pause.
    fn is_pausing(&self, pool: &Pool, gpu: GpuId) -> bool {
        pool.pauses.due().is_some() || self.cycle_of_pauses(pool, gpu).is_some()
    }

    /// Returns whether the list has all owners that may pause, each once.
    pub(crate) fn pausing_is_sound(&self) -> bool {
        let listed = |key: &(Owner, GpuId), pool: &Pool| {
            let has_links = pool.pausing.is_some();
            let mut at = self
                .pausing()
                .skip_while(|of| of != key)
                .take_while(|of| of == key);
            let once = at.next().is_some() && at.next().is_none();
            once == has_links && (has_links || !self.is_pausing(pool, key.1))
        };
        let mut pools = self.pools.iter();
        pools.all(|(key, pool)| listed(key, pool))
    }
}
