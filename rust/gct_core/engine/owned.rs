// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which channels the driver owns, and counts them.

use crate::ids::{FileId, Owner};
use crate::lane::limits::LaunchLimits;
use crate::launches::{EffectiveTpcs, Launches};
use crate::objects::ObjectKey;
use crate::rmapi::{Action, Call, Class, Handle};
use crate::state::State;
use crate::topology::Topology;

/// Where a channel that is to be owned is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The resource manager's number of the GPU.
    pub gpu: u32,
    /// The client's device on that GPU.
    pub device: Handle,
    /// Whether a limit binds the tenant that only owned channels obey.
    pub is_limited: bool,
}

impl State<'_> {
    /// Returns whether some owner is to have channels of the driver's. O(owners on GPUs).
    pub fn wants_owned(&self) -> bool {
        self.pools
            .iter()
            .any(|(_, pool)| pool.settings.wants_owned())
    }

    /// Returns whether the driver is to own channels of a file's process on some GPU. O(GPUs).
    pub fn wants_owned_of(&self, file: FileId) -> bool {
        let Some(proc) = self.files.get(&file).map(|file| file.proc) else {
            return false;
        };
        let wants = |(gpu, _): (&crate::ids::GpuId, _)| self.effective(proc, *gpu).wants_owned();
        self.gpus.iter().any(wants)
    }

    /// Returns where a call allocates a channel, if the driver is to own it.
    pub fn site_of_owned(&self, file: FileId, call: &Call) -> Option<Site> {
        let is_channel = matches!(
            call.action,
            Action::Alloc {
                class: Class::Channel,
                ..
            }
        );
        let proc = self.files.get(&file).filter(|_| is_channel)?.proc;
        let space = self.objects.space(file, call.client)?;
        let parent = ObjectKey::new(space, self.parent_handle(call));
        let gpu = self.objects.get(parent)?.gpu?;
        let limits = self.effective(proc, gpu);
        limits.wants_owned().then_some(())?;
        Some(Site {
            is_limited: limits.tpc_mask.is_some(),
            gpu: self.gpus.get(&gpu)?.facts.rm_id,
            device: self.device_above(parent)?,
        })
    }

    fn device_above(&self, key: ObjectKey) -> Option<Handle> {
        let mut at = key;
        // A client nests objects a few levels deep; the bound only guards what never is.
        for _ in 0..self.objects.len() {
            let object = self.objects.get(at)?;
            if object.class == Class::Device {
                return Some(at.handle);
            }
            at.handle = object.parent;
        }
        None
    }

    /// Returns whether a file's client has a channel of that handle.
    pub fn is_channel_of(&self, file: FileId, client: Handle, channel: Handle) -> bool {
        let object = self.key_of(file, client, channel);
        let object = object.and_then(|key| self.objects.get(key));
        object.is_some_and(|object| object.class == Class::Channel)
    }

    /// Returns the limits on the launches of a file's process on a GPU, and the GPU's TPCs.
    pub fn launch_limits(&self, file: FileId, rm_id: u32) -> Option<(LaunchLimits, Topology)> {
        let proc = self.files.get(&file)?.proc;
        let gpu = self.gpu_by_rm_id(rm_id)?;
        let topology = self.gpu_topology(gpu);
        let limits = LaunchLimits {
            tpcs: self.effective(proc, gpu).on(&topology).tpc_mask,
            ..LaunchLimits::NONE
        };
        Some((limits, topology))
    }

    /// Counts launches of a file's process on a GPU. The last was granted `effective`.
    pub fn launched_through(
        &mut self,
        file: FileId,
        rm_id: u32,
        more: &Launches,
        effective: EffectiveTpcs,
    ) {
        let proc = self.files.get(&file).map(|file| file.proc);
        if let Some((proc, gpu)) = proc.zip(self.gpu_by_rm_id(rm_id)) {
            self.launched(proc, gpu, more, effective);
        }
    }

    /// Counts a channel that the driver owns, or has left to its tenant although it was to own it.
    pub fn owned_made(&mut self, file: FileId, client: Handle, channel: Handle, is_owned: bool) {
        let proc = self.files.get(&file).map(|file| file.proc);
        let gpu = self.gpu_of_object(file, client, channel);
        let Some((proc, gpu)) = proc.zip(gpu) else {
            return;
        };
        let group = self.group_of(proc).map(Owner::Group);
        for owner in [Some(Owner::Proc(proc)), group].into_iter().flatten() {
            if let Some(pool) = self.pools.get_mut(&(owner, gpu)) {
                let count = match is_owned {
                    true => &mut pool.owned,
                    false => &mut pool.unowned,
                };
                *count += 1;
            }
        }
    }
}
