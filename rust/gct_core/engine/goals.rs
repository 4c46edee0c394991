// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Applies what goals demand of other owners: pressure beside the limits that were written.

use crate::features::Feature;
use crate::ids::{GpuId, Owner};
use crate::policy::slo::press::press;
use crate::policy::slo::Verdict;
use crate::records::Pressure;
use crate::settings::Settings;
use crate::state::State;
use crate::units::{Tpcs, Us};

impl State<'_> {
    /// Calls `found` for each goal that was written.
    pub fn each_goal(&self, found: &mut dyn FnMut(Owner, GpuId, Us)) {
        for ((owner, gpu), pool) in self.pools.iter() {
            if let Some(goal) = pool.settings.slo_p99 {
                found(*owner, *gpu, goal);
            }
        }
    }

    /// Sets what is done for an owner's goal. [`press`](Self::press) applies it.
    pub fn set_verdict(&mut self, owner: Owner, gpu: GpuId, verdict: Verdict) {
        if let Some(pool) = self.pools.get_mut(&(owner, gpu)) {
            pool.goal = verdict;
        }
    }

    /// Presses the owners without a goal as hard as the goals of each GPU demand. Returns whether
    /// anything changed.
    pub fn press(&mut self) -> bool {
        let mut changed = false;
        for at in 0..self.gpus.len() {
            let Some(gpu) = self.gpus.key_at(at) else {
                continue;
            };
            let pressure = self.pressure_on(gpu);
            if let Some(gpu) = self.gpus.get_mut(&gpu) {
                changed |= core::mem::replace(&mut gpu.pressure, pressure) != pressure;
            }
        }
        changed
    }

    fn pressure_on(&self, gpu: GpuId) -> Option<Pressure> {
        let mut pressure: Option<Pressure> = None;
        for ((_, on), pool) in self.pools.iter() {
            let presses = pool.settings.slo_p99.is_some() && pool.goal.level > 0;
            if *on != gpu || !presses {
                continue;
            }
            let (level, rank) = (pool.goal.level, pool.settings.rank());
            pressure = Some(match pressure {
                Some(known) => Pressure {
                    level: known.level.max(level),
                    rank: known.rank.min(rank),
                },
                None => Pressure { level, rank },
            });
        }
        pressure
    }

    /// Returns the limits in force for an owner whose written ones are `settings`.
    pub(super) fn under_pressure(&self, settings: Settings, gpu: GpuId) -> Settings {
        let level = self.level_against(&settings, gpu);
        let Some(gpu) = self.gpus.get(&gpu).filter(|_| level > 0) else {
            return settings;
        };
        let topology = &gpu.facts.topology;
        let masks = topology.is_known() && gpu.features.has(Feature::TpcMask);
        press(&settings, level, masks)
    }

    /// Returns how hard the goals of others press an owner on a GPU.
    pub(super) fn pressed(&self, owner: Owner, gpu: GpuId) -> u8 {
        self.level_against(&self.unpressed(owner, gpu), gpu)
    }

    /// Returns how hard goals press whose limits are these. They do not act against each other,
    /// against a quota, nor against an earlier rank.
    fn level_against(&self, settings: &Settings, gpu: GpuId) -> u8 {
        let Some(pressure) = self.gpus.get(&gpu).and_then(|gpu| gpu.pressure) else {
            return 0;
        };
        let guaranteed = settings.tpc_quota.is_some_and(|quota| quota > Tpcs(0));
        match settings.slo_p99.is_some() || guaranteed || settings.rank() < pressure.rank {
            true => 0,
            false => pressure.level,
        }
    }
}
