// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which channels the driver owns, and counts them.

use crate::account::Amount;
use crate::features::Feature;
use crate::gpu_time::GpuTime;
use crate::ids::{FileId, GpuId, Owner, ProcKey};
use crate::iface::value::CpuList;
use crate::lane::limits::LaunchLimits;
use crate::lane::standing::Standing;
use crate::launches::{EffectiveTpcs, Launches};
use crate::objects::ObjectKey;
use crate::records::{Gpu, WorkerCost};
use crate::rmapi::{Call, Class, Handle};
use crate::settings::Settings;
use crate::state::State;
use crate::topology::Topology;
use crate::units::Sat;

/// Returns whether the driver can own channels of a GPU.
fn can_own(gpu: &Gpu) -> bool {
    gpu.features.has(Feature::ChannelOwned)
}

/// Returns whether limits bind launches that pauses do not enforce, as they do `compute.max`.
fn binds_beside_pauses(limits: &Settings) -> bool {
    let without_max = Settings {
        bandwidth: None,
        ..*limits
    };
    without_max.binds_launches()
}

/// Returns whether channels from before these limits are to be shadowed.
fn shadows(limits: &Settings) -> bool {
    binds_beside_pauses(limits) || limits.sizes()
}

/// Where a channel that is to be owned is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The resource manager's number of the GPU.
    pub gpu: u32,
    /// The client's device on that GPU.
    pub device: Handle,
    /// Whether the channel is refused if it cannot be owned.
    pub must_be_owned: bool,
    /// Whether the channel will be in another process's channel group.
    pub shares_group: bool,
}

/// Where a channel is that is to be shadowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadowed {
    /// The resource manager's number of the GPU.
    pub gpu: u32,
    /// Whether it is in another process's channel group.
    pub shares_group: bool,
}

/// The limits on the launches of a process on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The process.
    pub proc: ProcKey,
    /// Its owner: its group, or itself.
    pub owner: Owner,
    /// Its limits.
    pub limits: LaunchLimits,
    /// Those that concern its neighbours.
    pub standing: Standing,
    /// Whether its channels from before its limits are to be shadowed.
    pub shadows: bool,
    /// The GPU's TPCs.
    pub topology: Topology,
}

/// What was done for a process on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The launches since the last time.
    pub launches: Launches,
    /// The TPCs that were granted last.
    pub effective: EffectiveTpcs,
    /// The time since the last time.
    pub time: GpuTime,
    /// Launches, atoms and entries that are in flight or held back now.
    pub pending: u64,
    /// Whether words ran since the last time that nobody saw.
    pub unseen: bool,
}

impl State<'_> {
    /// Returns the resource manager's number of a GPU.
    pub fn rm_id(&self, gpu: GpuId) -> Option<u32> {
        self.gpus.get(&gpu).map(|gpu| gpu.facts.rm_id)
    }

    /// Returns where the thread for a GPU's owned channels may run.
    pub fn worker_cpus(&self, rm_id: u32) -> CpuList {
        let gpu = self.gpu_by_rm_id(rm_id);
        let gpu = gpu.and_then(|gpu| self.gpus.get(&gpu));
        gpu.map_or(CpuList::EMPTY, |gpu| gpu.worker_cpus)
    }

    /// Sets what that thread has cost.
    pub fn set_worker_cost(&mut self, rm_id: u32, cost: WorkerCost) {
        let gpu = self.gpu_by_rm_id(rm_id);
        if let Some(gpu) = gpu.and_then(|gpu| self.gpus.get_mut(&gpu)) {
            gpu.worker_cost = cost;
        }
    }

    /// Returns whether the driver is to record what some process maps. O(owners on GPUs).
    pub fn wants_records(&self) -> bool {
        let has_members = self.groups.len() > 0 && self.gpus.iter().any(|(_, gpu)| can_own(gpu));
        let mut pools = self.pools.iter();
        has_members || pools.any(|(_, pool)| pool.settings.wants_owned())
    }

    /// Returns whether the driver is to record what a file's process maps: as it is to own the
    /// process's channels, or may have to when its group gets a limit. O(GPUs).
    pub fn wants_record_of(&self, file: FileId) -> bool {
        let Some(proc) = self.files.get(&file).map(|file| file.proc) else {
            return false;
        };
        let is_member = self.group_of(proc).is_some();
        let mut gpus = self.gpus.iter();
        gpus.any(|(id, gpu)| can_own(gpu) && (is_member || self.effective(proc, *id).wants_owned()))
    }

    /// Returns where a call allocates a channel, if the driver is to own it.
    pub fn site_of_owned(&self, file: FileId, call: &Call) -> Option<Site> {
        let file_of_call = self.files.get(&file);
        let proc = file_of_call.filter(|_| call.allocates_channel())?.proc;
        let space = self.objects.space(file, call.client)?;
        let parent = ObjectKey::new(space, self.parent_handle(call));
        let gpu = self.objects.get(parent)?.gpu?;
        let limits = self.effective(proc, gpu);
        limits.wants_owned().then_some(())?;
        Some(Site {
            must_be_owned: self.must_own(&limits, proc, gpu),
            gpu: self.rm_id(gpu)?,
            device: self.device_above(parent)?,
            shares_group: self.is_made_by_another(parent, proc),
        })
    }

    /// Returns whether a process under these limits may have no further channel with its own ring.
    ///
    /// A process with such a channel from before its limits gains nothing by another one. If it
    /// were refused one, a limit would end programs that run.
    fn must_own(&self, limits: &Settings, proc: ProcKey, gpu: GpuId) -> bool {
        limits.asks_strict() || self.binds_all(limits, proc, gpu)
    }

    /// Returns whether limits bind launches, and the process has no channel on which they do not.
    fn binds_all(&self, limits: &Settings, proc: ProcKey, gpu: GpuId) -> bool {
        limits.binds_launches() && !self.has_native(Owner::Proc(proc), gpu)
    }

    /// Returns whether an owner has channels with their tenant's ring.
    fn has_native(&self, owner: Owner, gpu: GpuId) -> bool {
        let pool = self.pools.get(&(owner, gpu));
        pool.is_some_and(|pool| pool.usage.now().native_channels > 0)
    }

    /// Returns whether a process under these limits loses a channel whose launches cannot be bound.
    ///
    /// Without the owner of the tree saying so it does under any limit on launches. A process with
    /// channels from before its limits can evade them there, and what these have submitted was not
    /// seen: it would lose channels for graphs that it had uploaded, and nobody would gain.
    fn is_strict(&self, limits: &Settings, proc: ProcKey, gpu: GpuId) -> bool {
        let by_default = || self.binds_all(limits, proc, gpu);
        limits.strict.unwrap_or_else(by_default)
    }

    /// Returns whether an owner has limits on launches that it can evade: it was allowed to, or has
    /// channels with its own ring, or with registers that nobody saw.
    pub(super) fn is_permissive(&self, owner: Owner, gpu: GpuId) -> bool {
        let limits = self.unpressed(owner, gpu);
        let allowed = limits.strict == Some(false) && limits.binds_launches();
        allowed
            || match self.has_native(owner, gpu) {
                true => binds_beside_pauses(&limits),
                false => limits.binds_launches() && self.has_unseen(owner, gpu),
            }
    }

    /// Has the limits of a process set anew if its last channel with its own ring is gone, and they
    /// are strict from then on.
    pub(super) fn native_gone(&mut self, proc: ProcKey, gpu: GpuId) {
        let limits = self.effective(proc, gpu);
        if limits.strict.is_none() && self.is_strict(&limits, proc, gpu) {
            self.plan.has_new_pauses = true;
            self.plan.has_new_terms = true;
        }
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

    /// Returns whether a file's client has an object of that handle, which the core follows.
    pub fn has_object(&self, file: FileId, client: Handle, object: Handle) -> bool {
        let object = self.key_of(file, client, object);
        object.is_some_and(|key| self.objects.get(key).is_some())
    }

    /// Returns what an object of a file's client is below, if the core follows the object.
    pub fn handle_above(&self, file: FileId, client: Handle, object: Handle) -> Option<Handle> {
        let key = self.key_of(file, client, object)?;
        self.objects.get(key).map(|object| object.parent)
    }

    /// Returns whether a file's client has a channel of that handle.
    pub fn is_channel_of(&self, file: FileId, client: Handle, channel: Handle) -> bool {
        let object = self.key_of(file, client, channel);
        let object = object.and_then(|key| self.objects.get(key));
        object.is_some_and(|object| object.class == Class::Channel)
    }

    /// Returns where a channel is, if it is to be shadowed: limits on launches bind its process
    /// that pauses do not enforce.
    pub fn shadows(&self, file: FileId, client: Handle, channel: Handle) -> Option<Shadowed> {
        let proc = self.files.get(&file)?.proc;
        let key = self.key_of(file, client, channel)?;
        let object = self.objects.get(key)?;
        let group = ObjectKey {
            handle: object.parent,
            ..key
        };
        let gpu = object.gpu?;
        shadows(&self.effective(proc, gpu)).then_some(())?;
        Some(Shadowed {
            gpu: self.rm_id(gpu)?,
            shares_group: self.is_made_by_another(group, proc),
        })
    }

    /// Returns the limits on the launches of a file's process on a GPU.
    pub fn launch_terms(&self, file: FileId, rm_id: u32) -> Option<Terms> {
        let proc = self.files.get(&file)?.proc;
        let gpu = self.gpu_by_rm_id(rm_id)?;
        let settings = self.launch_settings(proc, gpu);
        Some(Terms {
            proc,
            owner: self.owner_of(proc),
            limits: LaunchLimits {
                frozen: settings.freeze || self.is_paused(proc, gpu),
                strict: self.is_strict(&settings, proc, gpu),
                ..LaunchLimits::of(&settings, self.share(proc, gpu))
            },
            standing: self.standing(proc, gpu),
            shadows: shadows(&settings),
            topology: self.gpu_topology(gpu),
        })
    }

    /// Returns whether TPCs are reserved for the process of a file, so that those of others may
    /// change when it ends.
    pub fn reserves(&self, file: FileId) -> bool {
        let proc = self.files.get(&file).map(|file| file.proc);
        proc.is_some_and(|proc| {
            let mut gpus = self.gpus.iter();
            gpus.any(|(gpu, _)| !self.reserved(Owner::Proc(proc), *gpu).is_empty())
        })
    }

    /// Counts what was done for a file's process on a GPU.
    pub fn progressed(&mut self, file: FileId, rm_id: u32, progress: &Progress) {
        let proc = self.files.get(&file).map(|file| file.proc);
        let Some((proc, gpu)) = proc.zip(self.gpu_by_rm_id(rm_id)) else {
            return;
        };
        self.launched(proc, gpu, &progress.launches, progress.effective);
        self.used_gpu(proc, gpu, &progress.time);
        self.set_pending(Owner::Proc(proc), gpu, progress.pending);
        if progress.unseen {
            self.owned_registers_unseen(proc, gpu);
        }
        if let Some(group) = self.group_of(proc) {
            let members = self.pools.iter().filter(|((owner, on), _)| match owner {
                Owner::Proc(proc) => *on == gpu && self.group_of(*proc) == Some(group),
                Owner::Group(_) => false,
            });
            let pending = members.fold(Sat(0u64), |sum, (_, pool)| sum + Sat(pool.pending));
            self.set_pending(Owner::Group(group), gpu, pending.0);
        }
    }

    /// Counts a channel that the driver owns, or has left to its tenant although it was to own it.
    pub fn owned_made(&mut self, file: FileId, client: Handle, channel: Handle, is_owned: bool) {
        let proc = self.files.get(&file).map(|file| file.proc);
        let gpu = self.gpu_of_object(file, client, channel);
        let Some((proc, gpu)) = proc.zip(gpu) else {
            return;
        };
        if is_owned {
            self.native_no_more(file, client, channel);
        }
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

    /// Counts a native channel that the driver has shadowed.
    pub fn shadowed(&mut self, file: FileId, client: Handle, channel: Handle) {
        let Some(key) = self.key_of(file, client, channel) else {
            return;
        };
        let charged = self.charge_channel(key, Amount::SHADOWED, |charged| {
            charged.native_channels > charged.shadowed_channels
        });
        if let Some((object, charged)) = self.objects.get_mut(key).zip(charged) {
            object.charged.shadowed_channels = charged.shadowed_channels;
        }
    }

    /// Charges a part of what a channel is charged for, if `lacks` says so of what it is. Returns
    /// what was charged.
    pub(super) fn charge_channel(
        &mut self,
        key: ObjectKey,
        part: Amount,
        lacks: impl FnOnce(&Amount) -> bool,
    ) -> Option<Amount> {
        let object = *self.objects.get(key)?;
        let is_due = !object.charge_deferred && lacks(&object.charged);
        let proc = self.proc_of(&object).filter(|_| is_due)?;
        // INVARIANT: the channel was charged, so there is a pool.
        Some(self.charge(proc, object.gpu, part))
    }

    /// Counts a channel as shadowed no longer: its tenant has it back.
    pub fn unshadowed(&mut self, file: FileId, client: Handle, channel: Handle) {
        self.uncharge_channel(file, client, channel, Amount::SHADOWED);
    }

    /// Charges a channel no longer as one with its tenant's ring.
    fn native_no_more(&mut self, file: FileId, client: Handle, channel: Handle) {
        self.uncharge_channel(file, client, channel, Amount::NATIVE);
    }

    /// Uncharges a part of what a channel is charged for, if it is.
    fn uncharge_channel(&mut self, file: FileId, client: Handle, channel: Handle, part: Amount) {
        let named = self.key_of(file, client, channel);
        let Some((key, object)) = named.and_then(|key| Some((key, *self.objects.get(key)?))) else {
            return;
        };
        let Some(rest) = object.charged.without(&part) else {
            return;
        };
        if let Some(proc) = self.proc_of(&object) {
            self.uncharge_part(proc, &object, part);
        }
        if let Some(object) = self.objects.get_mut(key) {
            object.charged = rest;
        }
    }
}
