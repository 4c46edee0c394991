// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Divides a GPU's memory among the owners whose memory can leave, for a backend that looks at it
//! now and then.
//!
//! Owners are groups, and processes without one. One is elastic if it has a `gmem.low`, a
//! `gmem.limit` and `gmem.pageable`. A process in a group shares what its group is allowed.

use crate::ids::{GpuId, Owner};
use crate::policy::balance::{target, Claim};
use crate::records::Pool;
use crate::state::State;
use crate::units::Bytes;

impl State<'_> {
    /// Returns whether an owner's memory gives way to others.
    pub fn has_elastic(&self) -> bool {
        let mut pools = self.pools.iter();
        pools.any(|((owner, _), pool)| self.is_payer(*owner) && pool.is_elastic())
    }

    /// Calls `found` for each owner whose work the backend is to report before [`State::balance`].
    pub fn each_elastic(&self, found: &mut dyn FnMut(Owner, GpuId)) {
        for ((owner, gpu), pool) in self.pools.iter() {
            if self.is_payer(*owner) && pool.is_elastic() {
                found(*owner, *gpu);
            }
        }
    }

    /// Decides anew how much memory each owner may have, by what all have now. What its processes
    /// hold beyond that is in excess of a limit, as after a lower `gmem.limit`.
    pub fn balance(&mut self) {
        for at in 0..self.pools.len() {
            let Some(key) = self.pools.key_at(at) else {
                continue;
            };
            let target = self.target_of(key);
            let Some(pool) = self.pools.get_mut(&key) else {
                continue;
            };
            pool.balance.worked(pool.time.used, pool.pending > 0);
            pool.allowed = target.map(|target| pool.balance.allow(target));
            if target.is_none() {
                pool.balance.forget();
            }
        }
    }

    /// Returns what an elastic owner may have now; `None` for a firm one, or if the memory of the
    /// GPU is unknown.
    fn target_of(&self, (owner, gpu): (Owner, GpuId)) -> Option<Bytes> {
        let memory = self.gpus.get(&gpu)?.facts.memory_total?;
        let pool = self.pools.get(&(owner, gpu))?;
        if !self.is_payer(owner) || !pool.is_elastic() {
            return None;
        }
        let claims = (0..self.pools.len()).filter_map(|at| {
            let key = self.pools.key_at(at).filter(|(_, on)| *on == gpu)?;
            let pool = self.pools.get(&key).filter(|_| self.is_payer(key.0))?;
            Some(pool.claim(memory))
        });
        Some(target(memory, claims, &pool.claim(memory)))
    }

    /// Returns whether what an owner has is no part of what a group has.
    fn is_payer(&self, owner: Owner) -> bool {
        match owner {
            Owner::Group(_) => true,
            Owner::Proc(proc) => self.group_of(proc).is_none(),
        }
    }
}

impl Pool {
    fn is_elastic(&self) -> bool {
        let settings = &self.settings;
        settings.pageable && settings.gmem_low.is_some() && settings.gmem_limit.is_some()
    }

    fn claim(&self, memory: Bytes) -> Claim {
        let (settings, now) = (&self.settings, self.usage.now());
        Claim {
            rank: settings.rank(),
            low: settings.gmem_low.filter(|_| self.is_elastic()),
            limit: settings.gmem_limit.unwrap_or(memory).min(memory),
            fixed: now.fixed_memory(),
            device: now.all_memory(),
            host: now.host,
            rests: self.balance.rests(),
        }
    }
}
