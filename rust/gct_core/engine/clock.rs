// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps the clocks of GPUs and what owners ask for, where a backend changes clocks.

use crate::features::{Feature, FeatureSet};
use crate::ids::{GpuId, Owner};
use crate::policy::clock::Clock;
use crate::records::{Asks, GpuClock};
use crate::settings::Settings;
use crate::state::State;
use crate::units::Percent;

impl State<'_> {
    /// Announces that the clock of a GPU can be changed, of which `clock` is the present one.
    /// Returns the GPU.
    pub fn gpu_has_clocks(&mut self, rm_id: u32, clock: GpuClock) -> Option<GpuId> {
        let id = self.gpu_by_rm_id(rm_id)?;
        let gpu = self.gpus.get_mut(&id)?;
        gpu.features = gpu.features.and(FeatureSet::NONE.with(Feature::SlipPower));
        gpu.clock = clock;
        Some(id)
    }

    /// Sets the clock of a GPU.
    pub fn set_clock(&mut self, gpu: GpuId, clock: GpuClock) {
        if let Some(gpu) = self.gpus.get_mut(&gpu) {
            gpu.clock = clock;
        }
    }

    /// Returns the clock that the processes of a GPU measure at; `None` while it is changed, and
    /// where nobody changes it.
    pub fn clock(&self, gpu: GpuId) -> Option<Clock> {
        self.gpus.get(&gpu)?.clock.told
    }

    /// Returns whether anybody tolerates a lower clock on a GPU.
    pub fn has_power_slip(&self, gpu: GpuId) -> bool {
        let slips = |settings: &Settings| settings.power_slip_in_force() > Percent(0);
        self.pools
            .iter()
            .any(|((_, on), pool)| *on == gpu && slips(&pool.settings))
    }

    /// Sets what each owner on a GPU asks for: what `asks` says of it.
    pub fn set_asks(&mut self, gpu: GpuId, asks: &dyn Fn(Owner) -> Asks) {
        for at in 0..self.pools.len() {
            let key = self.pools.key_at(at).filter(|(_, on)| *on == gpu);
            let Some((owner, pool)) = key.and_then(|key| Some((key.0, self.pools.get_mut(&key)?)))
            else {
                continue;
            };
            pool.asks = asks(owner);
        }
    }
}
