// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reserves TPCs for the quotas of a GPU's groups and processes.
//!
//! A process's quota is its own and adds to its group's. A quota is reserved even while its owner
//! has no processes there. A quota that does not fit beside the others is refused.
//!
//! ```text
//! for each owner with a quota, by (TPCs its mask allows, group or process, age):
//!     reserve `quota` TPCs of those that its mask allows and that are still free
//! ```
//!
//! Owners with few allowed TPCs choose first. If all masks are disjoint or nested, a quota is
//! refused only if no assignment exists.

use crate::error::Error;
use crate::features::Feature;
use crate::ids::{GpuId, Owner, ProcKey};
use crate::iface::{File, Value};
use crate::mask::TpcMask;
use crate::policy::{size, tpc};
use crate::records::Gpu;
use crate::settings::Settings;
use crate::state::State;
use crate::topology::Topology;
use crate::units::Sat;

/// Order in which owners choose: by number of allowed TPCs, then groups first, then by age.
type Rank = (u32, u64, u64);

/// A quota, and the TPCs from which it may be reserved.
struct Reservation {
    rank: Rank,
    owner: Owner,
    allowed: TpcMask,
    quota: u16,
}

impl State<'_> {
    /// Returns the TPCs that are reserved for an owner.
    pub fn reserved(&self, owner: Owner, gpu: GpuId) -> TpcMask {
        let pool = self.pools.get(&(owner, gpu));
        pool.map_or(TpcMask::EMPTY, |pool| pool.reserved)
    }

    /// Returns the TPCs that are reserved for all owners.
    pub fn reserved_on(&self, gpu: GpuId) -> TpcMask {
        let here = self.pools.iter().filter(|((_, on), _)| *on == gpu);
        here.fold(TpcMask::EMPTY, |all, (_, pool)| all.or(&pool.reserved))
    }

    /// Returns the TPCs that are reserved for a process: its own, and those of its group.
    pub(super) fn reserved_for(&self, proc: ProcKey, gpu: GpuId) -> TpcMask {
        let of_owner = self.reserved(self.owner_of(proc), gpu);
        of_owner.or(&self.reserved(Owner::Proc(proc), gpu))
    }

    /// Returns the limits in force on the launches of a process on a GPU. If it may not steal, its
    /// mask leaves out what is reserved for others, whether they have processes or not. If nothing
    /// is left, the mask stays as it is: a launch without a TPC would never start.
    pub fn launch_settings(&self, proc: ProcKey, gpu: GpuId) -> Settings {
        let settings = self.effective(proc, gpu);
        if settings.tpc_steal {
            return settings;
        }
        let others = self.reserved_on(gpu);
        let others = others.without(&self.reserved_for(proc, gpu));
        let mask = settings.tpc_mask;
        let mask = mask.unwrap_or(*self.gpu_topology(gpu).existing());
        let left = mask.without(&others);
        match others.is_empty() || left.is_empty() {
            true => settings,
            false => Settings {
                tpc_mask: Some(left),
                ..settings
            },
        }
    }

    /// Returns the TPCs of a GPU that a process is shown if it asks now.
    pub fn dependable_tpcs(&self, proc: ProcKey, gpu: GpuId) -> TpcMask {
        let topology = self.gpu_topology(gpu);
        let standing = self.standing(proc, gpu);
        let (owner, alone) = (self.owner_of(proc), Owner::Proc(proc));
        let others = self.pools.iter().filter(|((other, on), _)| {
            let owner_of = match other {
                Owner::Proc(other) => self.owner_of(*other),
                Owner::Group(_) => *other,
            };
            *on == gpu && *other != alone && owner_of != owner
        });
        let earlier = others.map(|((other, _), _)| self.unpressed(*other, gpu));
        let earlier = earlier.filter(|settings| settings.rank() < standing.rank);
        let limits = size::Limits {
            allowed: standing.allowed,
            own: standing.own,
            steal: !standing.confined,
            others: self.reserved_on(gpu).without(&standing.own),
            earlier: earlier.fold(TpcMask::EMPTY, |all, settings| {
                all.or(&settings.allowed(&topology))
            }),
        };
        size::dependable(&limits, topology.existing())
    }

    /// Stores a setting that may change which TPCs are reserved.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] if an owner would lose reserved TPCs: then the old value stays.
    /// [`Error::Gone`].
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

    /// Reserves all quotas of a GPU. Returns the number of missing TPCs: some may miss after a
    /// process has moved to a group with another mask.
    pub(super) fn reserve_quotas(&mut self, gpu: GpuId) -> u32 {
        let has_quotas = |gpu: &Gpu| gpu.features.has(Feature::TpcQuota);
        if !self.gpus.get(&gpu).is_some_and(has_quotas) {
            return 0;
        }
        let topology = self.gpu_topology(gpu);
        let (mut reserved, mut missing, mut last) = (TpcMask::EMPTY, Sat(0u32), None);
        for at in 0..self.pools.len() {
            let key = self.pools.key_at(at).filter(|(_, on)| *on == gpu);
            if let Some(pool) = key.and_then(|key| self.pools.get_mut(&key)) {
                pool.reserved = TpcMask::EMPTY;
            }
        }
        while let Some(reservation) = self.next_reservation(gpu, &topology, last) {
            let quota = Some(reservation.quota);
            let own = tpc::reserve(&reservation.allowed, &topology, &reserved, quota);
            reserved = reserved.or(&own);
            missing += Sat(u32::from(reservation.quota)) - Sat(own.count());
            if let Some(pool) = self.pools.get_mut(&(reservation.owner, gpu)) {
                pool.reserved = own;
            }
            last = Some(reservation.rank);
        }
        missing.0
    }

    /// Returns the quota that follows `last`.
    fn next_reservation(
        &self,
        gpu: GpuId,
        topology: &Topology,
        last: Option<Rank>,
    ) -> Option<Reservation> {
        let all = self.pools.iter().filter_map(|((owner, on), pool)| {
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
            (quota > 0).then_some(Reservation {
                rank: (allowed.count(), kind, age),
                owner: *owner,
                allowed,
                quota,
            })
        });
        let later = all.filter(|reservation| last.is_none_or(|last| reservation.rank > last));
        later.min_by_key(|reservation| reservation.rank)
    }
}
