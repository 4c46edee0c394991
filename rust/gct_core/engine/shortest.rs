// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gives short time slices to owners whose requests are longer than those of others of their rank.
//!
//! An owner takes part if `compute.priority` was written, and neither `compute.timeslice` nor
//! `tpc.quota`: somebody has said how much it matters, and not how it shares.

use crate::ids::{GpuId, Owner, ProcKey};
use crate::policy::shortest::{yields, SLICE};
use crate::records::Pool;
use crate::settings::Settings;
use crate::state::State;
use crate::units::{Priority, Us};

/// The number of ranks of owners without a quota.
const RANKS: usize = Priority::LAST.get() as usize + 1;

impl Pool {
    /// Returns the rank in which it takes part.
    fn rank_by_length(&self) -> Option<usize> {
        let settings = &self.settings;
        let free = settings.timeslice.is_none() && settings.tpc_quota.is_none();
        settings
            .priority
            .filter(|_| free)
            .map(|rank| usize::from(rank.get()))
    }
}

impl State<'_> {
    /// Calls `found` for each owner whose requests the backend is to measure: those with a written
    /// priority, also while something else keeps them from taking part.
    pub fn each_ordered(&self, found: &mut dyn FnMut(Owner, GpuId)) {
        for ((owner, gpu), pool) in self.pools.iter() {
            if pool.settings.priority.is_some() {
                found(*owner, *gpu);
            }
        }
    }

    /// Sets how long an owner's requests are; `None` if it has none.
    /// [`shorten`](Self::shorten) decides by it.
    pub fn set_request_length(&mut self, owner: Owner, gpu: GpuId, length: Option<Us>) {
        if let Some(pool) = self.pools.get_mut(&(owner, gpu)) {
            pool.request = length;
        }
    }

    /// Decides whose time slices are short. Returns whether anything changed.
    pub fn shorten(&mut self) -> bool {
        let mut changed = false;
        for at in 0..self.gpus.len() {
            if let Some(gpu) = self.gpus.key_at(at) {
                changed |= self.shorten_on(gpu);
            }
        }
        changed
    }

    fn shorten_on(&mut self, gpu: GpuId) -> bool {
        let mut shortest = [Us::MAX; RANKS];
        for ((_, on), pool) in self.pools.iter() {
            let (rank, length) = (pool.rank_by_length(), pool.request);
            let (Some(rank), Some(length)) = (rank, length.filter(|_| *on == gpu)) else {
                continue;
            };
            if let Some(least) = shortest.get_mut(rank) {
                *least = length.min(*least);
            }
        }
        let mut changed = false;
        for at in 0..self.pools.len() {
            let key = self.pools.key_at(at).filter(|(_, on)| *on == gpu);
            let Some(pool) = key.and_then(|key| self.pools.get_mut(&key)) else {
                continue;
            };
            let least = pool.rank_by_length().and_then(|rank| shortest.get(rank));
            let now = match (pool.request, least) {
                (Some(length), Some(least)) => yields(length, *least, pool.yields),
                _ => false,
            };
            changed |= core::mem::replace(&mut pool.yields, now) != now;
        }
        changed
    }

    /// Returns the limits in force for a process whose other ones are `settings`.
    pub(super) fn among_lengths(&self, settings: Settings, proc: ProcKey, gpu: GpuId) -> Settings {
        if settings.priority.is_none() || settings.timeslice.is_some() {
            return settings;
        }
        let yields = self.yields(Owner::Proc(proc), gpu);
        match yields || self.yields(self.owner_of(proc), gpu) {
            true => Settings {
                timeslice: Some(SLICE),
                yields: true,
                ..settings
            },
            false => settings,
        }
    }

    /// Returns whether an owner's time slices are short for requests of others.
    pub(super) fn yields(&self, owner: Owner, gpu: GpuId) -> bool {
        self.pools
            .get(&(owner, gpu))
            .is_some_and(|pool| pool.yields && pool.rank_by_length().is_some())
    }
}
