// SPDX-License-Identifier: GPL-2.0 OR MIT

//! TPCs are reserved for the quotas of a GPU's owners.
//!
//! Groups and processes are owners alike: what is reserved for a process is its own beside what its group has. A quota is
//! promised, whether its owner has processes there or not, so one that cannot be kept beside the others is refused. Owners
//! whose masks leave few TPCs choose first: where masks are disjoint or one lies within the other, a quota is then refused
//! only if no choice would do.

use crate::error::Error;
use crate::features::Feature;
use crate::ids::{GpuId, Owner};
use crate::iface::{File, Value};
use crate::mask::TpcMask;
use crate::policy::tpc;
use crate::state::{Gpu, State};
use crate::topology::Topology;

/// In which order owners choose: by how many TPCs their masks leave, then groups first, then by age.
type Rank = (u32, u64, u64);

/// A quota, and where it may be kept.
struct Promise {
    rank: Rank,
    owner: Owner,
    allowed: TpcMask,
    quota: u16,
}

impl State<'_> {
    /// The TPCs that are reserved for an owner.
    pub fn reserved(&self, owner: Owner, gpu: GpuId) -> TpcMask {
        let pool = self.pools.get(&(owner, gpu));
        pool.map_or(TpcMask::EMPTY, |pool| pool.reserved)
    }

    /// The TPCs that are reserved for anybody.
    pub fn reserved_on(&self, gpu: GpuId) -> TpcMask {
        let here = self.pools.iter().filter(|((_, on), _)| *on == gpu);
        here.fold(TpcMask::EMPTY, |all, (_, pool)| all.or(&pool.reserved))
    }

    /// Stores a setting that may cost somebody reserved TPCs.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when it would: then the old value stays. [`Error::Gone`].
    pub(super) fn set_reserving(
        &mut self,
        file: File,
        owner: Owner,
        gpu: GpuId,
        value: Value,
    ) -> Result<(), Error> {
        let before = self.reserve_quotas(gpu);
        let pool = self.pools.get_mut(&(owner, gpu)).ok_or(Error::Gone)?;
        let kept = pool.settings;
        pool.settings.set(file, value)?;
        if self.reserve_quotas(gpu) <= before {
            return Ok(());
        }
        if let Some(pool) = self.pools.get_mut(&(owner, gpu)) {
            pool.settings = kept;
        }
        self.reserve_quotas(gpu);
        Err(Error::NoSpace)
    }

    /// Reserves anew on a GPU. Returns how many TPCs are promised and missing: some may be when a process has moved to a
    /// group with another mask.
    pub(super) fn reserve_quotas(&mut self, gpu: GpuId) -> u32 {
        let promises = |gpu: &Gpu| gpu.features.has(Feature::TpcQuota);
        if !self.gpus.get(&gpu).is_some_and(promises) {
            return 0;
        }
        let topology = self.gpu_topology(gpu);
        let (mut reserved, mut missing, mut last) = (TpcMask::EMPTY, 0u32, None);
        for at in 0..self.pools.len() {
            let key = self.pools.key_at(at).filter(|(_, on)| *on == gpu);
            if let Some(pool) = key.and_then(|key| self.pools.get_mut(&key)) {
                pool.reserved = TpcMask::EMPTY;
            }
        }
        while let Some(promise) = self.next_promise(gpu, &topology, last) {
            let quota = Some(promise.quota);
            let own = tpc::reserve(&promise.allowed, topology.existing(), &reserved, quota);
            let short = u32::from(promise.quota).saturating_sub(own.count());
            (reserved, missing) = (reserved.or(&own), missing.saturating_add(short));
            if let Some(pool) = self.pools.get_mut(&(promise.owner, gpu)) {
                pool.reserved = own;
            }
            last = Some(promise.rank);
        }
        missing
    }

    /// The promise whose rank comes after `last`.
    fn next_promise(&self, gpu: GpuId, topology: &Topology, last: Option<Rank>) -> Option<Promise> {
        let promised = self.pools.iter().filter_map(|((owner, on), pool)| {
            let quota = pool.settings.tpc_quota.filter(|_| *on == gpu)?.get();
            let settings = match owner {
                Owner::Proc(proc) => self.effective(*proc, gpu),
                Owner::Group(_) => pool.settings.on(topology),
            };
            let allowed = settings.tpc_mask.unwrap_or(*topology.existing());
            let (kind, age) = match owner {
                Owner::Group(group) => (0, group.0),
                Owner::Proc(proc) => (u64::from(proc.tgid), proc.start_time_ns),
            };
            (quota > 0).then_some(Promise {
                rank: (allowed.count(), kind, age),
                owner: *owner,
                allowed,
                quota,
            })
        });
        let later = promised.filter(|promise| last.is_none_or(|last| promise.rank > last));
        later.min_by_key(|promise| promise.rank)
    }
}
