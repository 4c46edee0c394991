// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Has owners pause that are under `compute.max` and have channels with their tenant's ring.
//!
//! Nobody sees what such channels submit, for example those that were there before the limit. So
//! the owner gets its share of time by turns off the GPU; see [`pauses`](crate::policy::pauses).
//! All of its channels pause: with those of the driver's running on, it could have its quota twice.

use crate::gpu::Backend;
use crate::ids::{GpuId, Owner, ProcKey};
use crate::objects::List;
use crate::policy::pauses::Passed;
use crate::policy::share::DutyCycle;
use crate::records::Pool;
use crate::state::State;
use crate::units::Ns;

/// What follows when pauses were decided on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pausing {
    /// In what time to decide again; `None` while no owner pauses.
    pub due: Option<Ns>,
    /// Whether channels with rings of the driver's pause, or go on, with their owner, or have other
    /// limits than before.
    pub concerns_owned: bool,
}

impl State<'_> {
    /// Returns whether an owner may have pauses, or limits, that were not looked at yet. O(1).
    pub fn has_new_pauses(&self) -> bool {
        self.plan.has_new_pauses
    }

    /// Returns whether pauses are to be decided on as soon as all controls have completed. O(1).
    pub fn do_pauses_settle(&self) -> bool {
        self.plan.pauses_settle
    }

    /// Decides which owners pause, and marks what has to be told. Call it when it is due, and when
    /// there may be new pauses. O(owners that may pause).
    pub fn pass_pauses(&mut self, now: Ns) -> Pausing {
        let time = now - core::mem::replace(&mut self.plan.pauses_at, now);
        self.plan.has_new_pauses = false;
        self.plan.pauses_settle = false;
        let mut pausing = Pausing {
            due: None,
            concerns_owned: core::mem::take(&mut self.plan.has_new_terms),
        };
        // Processes first: whether they stood depends on what their groups did until now.
        for of_groups in [false, true] {
            let mut at = self.plan.first_pausing;
            while let Some((owner, gpu)) = at {
                at = self.next_pausing((owner, gpu));
                if matches!(owner, Owner::Group(_)) == of_groups {
                    self.pass_pause(owner, gpu, time, &mut pausing);
                }
            }
        }
        pausing
    }

    fn pass_pause(&mut self, owner: Owner, gpu: GpuId, time: Ns, pausing: &mut Pausing) {
        let Some(pool) = self.pools.get(&(owner, gpu)) else {
            return;
        };
        let cycle = self.cycle_of_pauses(pool, gpu);
        let mut pauses = pool.pauses;
        let (was, paused_at, now) = (pauses.is_pause(), pool.paused_at, *pool.usage.now());
        pauses.pass(
            cycle,
            Passed {
                time,
                stood: self.stands_with_group(owner, gpu),
                unsettled: self.unsettled(owner, paused_at),
            },
        );
        if let Some(pool) = self.pools.get_mut(&(owner, gpu)) {
            pool.pauses = pauses;
        }
        if cycle.is_none() && pauses.due().is_none() {
            self.pauses_no_more(owner, gpu);
        }
        self.plan.pauses_settle |= pauses.settles();
        if let Some(due) = pauses.due() {
            pausing.due = Some(pausing.due.map_or(due, |other| other.min(due)));
        }
        if pauses.is_pause() == was {
            return;
        }
        pausing.concerns_owned |= now.channels > now.native_channels;
        self.mark_owner(owner, Some(gpu));
        // Behind those that were marked.
        let number = self.sequence.next();
        if let Some(pool) = self.pools.get_mut(&(owner, gpu)) {
            pool.paused_at = number;
        }
    }

    /// Returns the duty cycle by which an owner pauses.
    pub(super) fn cycle_of_pauses(&self, pool: &Pool, gpu: GpuId) -> Option<DutyCycle> {
        let has_native = pool.usage.now().native_channels > 0;
        let sends = self.gpus.get(&gpu).map(|gpu| gpu.facts.backend) == Some(Backend::Kernel);
        let limit = pool.settings.bandwidth.filter(|_| has_native && sends)?;
        Some(DutyCycle {
            quota: limit.quota.to_ns()?,
            period: limit.period.to_ns()?,
        })
    }

    /// Returns whether a process's group pauses.
    fn stands_with_group(&self, owner: Owner, gpu: GpuId) -> bool {
        let Owner::Proc(proc) = owner else {
            return false;
        };
        let group = self.group_of(proc).map(Owner::Group);
        group.is_some_and(|group| self.is_pause_of(group, gpu))
    }

    /// Returns how many processes have a control left of those that were to be sent by an event.
    fn unsettled(&self, owner: Owner, until: u64) -> usize {
        let group = match owner {
            Owner::Proc(proc) => return usize::from(!self.has_settled(proc, until)),
            Owner::Group(group) => group,
        };
        let mut left = 0_usize;
        for proc in self.procs_in_group(group) {
            left = left.saturating_add(usize::from(!self.has_settled(proc, until)));
        }
        left
    }

    fn has_settled(&self, proc: ProcKey, until: u64) -> bool {
        let space = self.procs.get(&proc).map(|proc| proc.space);
        let lists = [List::InFlight, List::DirtyGroups, List::DirtyChannels];
        space.is_none_or(|space| {
            let mut lists = lists.iter();
            !lists.any(|list| self.is_dirty_by(space, *list, until))
        })
    }

    /// Returns whether an owner's channels are to be off the GPU.
    pub(super) fn is_pause_of(&self, owner: Owner, gpu: GpuId) -> bool {
        let pool = self.pools.get(&(owner, gpu));
        pool.is_some_and(|pool| pool.pauses.is_pause() && pool.settings.bandwidth.is_some())
    }

    /// Returns whether a process's channels are to be off the GPU, but for those in a channel group
    /// that it shares with others.
    pub(super) fn is_paused(&self, proc: ProcKey, gpu: GpuId) -> bool {
        let owner = Owner::Proc(proc);
        self.is_pause_of(owner, gpu) || self.stands_with_group(owner, gpu)
    }

    /// Follows a write of a duty cycle. Without a limit the owner's channels go on at once.
    pub(super) fn pauses_rewritten(&mut self, owner: Owner, gpu: GpuId) {
        self.plan.has_new_pauses = true;
        self.may_pause(owner, gpu);
        self.mark_owner(owner, Some(gpu));
    }
}
