// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Knows what a daemon that has gone had granted, which a process may have again without one.
//!
//! The processes of a group together then have no more than the daemon would have granted them.

use super::replay::{Device, ReplayLog};
use std::collections::BTreeMap;

/// The memory that a process had when its daemon went.
#[derive(Debug, Default)]
pub(super) struct Granted {
    /// Whether a limit bound it.
    is_bound: bool,
    device: BTreeMap<Device, u64>,
    managed: u64,
}

impl Granted {
    /// Records the memory of a process whose daemon has gone.
    pub(super) fn new(is_bound: bool, objects: &ReplayLog, managed: u64) -> Self {
        Self {
            is_bound,
            device: objects.memory(),
            managed,
        }
    }

    /// Returns what a forked child may have, which has nothing of its parent's.
    pub(super) fn nothing(is_bound: bool) -> Self {
        Self {
            is_bound,
            ..Self::default()
        }
    }

    /// Returns whether a limit bound the process.
    pub(super) fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// Returns whether the process may have that much of a device's memory.
    pub(super) fn allows_device(&self, device: Device, bytes: u64) -> bool {
        !self.is_bound || bytes <= self.device.get(&device).copied().unwrap_or(0)
    }

    /// Returns whether it may have that much managed memory.
    pub(super) fn allows_managed(&self, bytes: u64) -> bool {
        !self.is_bound || bytes <= self.managed
    }
}
