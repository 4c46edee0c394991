// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists the memory limits of groups that have a cgroup, for a driver that limits cgroups itself.

use crate::ids::{GpuId, Owner};
use crate::state::State;
use crate::units::Bytes;

impl State<'_> {
    /// Calls `found` for each `gmem.limit` of a group with a cgroup: its path, the GPU, the limit.
    pub fn each_cgroup_limit(&self, found: &mut dyn FnMut(&[u8], GpuId, Bytes)) {
        for ((owner, gpu), pool) in self.pools.iter() {
            let (Owner::Group(id), Some(limit)) = (owner, pool.settings.gmem_limit) else {
                continue;
            };
            let group = self.groups.get(id).filter(|group| !group.cgroup.is_empty());
            if let Some(group) = group {
                found(group.cgroup.as_bytes(), *gpu, limit);
            }
        }
    }
}
