// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares what the resource manager was told with the limits in force.
//!
//! Every step costs the objects of one process, or of those that a write names.

use crate::gpu::Backend;
use crate::ids::{FileId, GpuId, GroupId, Owner, ProcKey};
use crate::objects::{List, Object, ObjectKey};
use crate::plan::{Run, Update};
use crate::rmapi::{Call, Class, Overrides};
use crate::settings::Settings;
use crate::slice::{Slice, SliceUpdate};
use crate::state::{Proc, State};

impl State<'_> {
    /// Returns whether a subject of the process is dirty.
    pub(super) fn has_dirty(&self, proc: &Proc) -> bool {
        let dirty = [List::DirtyGroups, List::DirtyChannels];
        dirty
            .iter()
            .any(|list| self.objects.first(proc.space, *list).is_some())
    }

    /// Compares an object with the limits that bind it.
    pub(super) fn mark_if_dirty(&mut self, key: ObjectKey) {
        let Some(object) = self.objects.get_mut(key) else {
            return;
        };
        (object.acked.given_up, object.acked.refusal) = (false, None);
        match object.class {
            Class::Subdevice => {
                let gpu = object.gpu;
                self.list_subdevice(key, gpu);
            }
            Class::Channel | Class::ChannelGroup if object.acked.primary => {
                self.requeue_unless_in_flight(key)
            }
            _ => {}
        }
    }

    /// What is in flight is sorted when it has landed.
    fn requeue_unless_in_flight(&mut self, key: ObjectKey) {
        if self.objects.list_of(key) != Some(List::InFlight) {
            self.requeue(key);
        }
    }

    /// Puts a subject into the list where it belongs. One that was in flight goes before those that became dirty later.
    pub(super) fn requeue(&mut self, key: ObjectKey) {
        let Some(object) = self.objects.get(key).copied() else {
            return;
        };
        let proc = self.proc_of(&object);
        let space = proc
            .and_then(|proc| self.procs.get(&proc))
            .map(|proc| proc.space);
        let Some((proc, space)) = proc.zip(space) else {
            return self.objects.unlist(key);
        };
        let dirty = !object.acked.given_up && self.update_for(key, &object).is_some();
        let to = match (dirty, object.class) {
            (false, _) => List::Clean,
            (true, Class::Channel) => List::DirtyChannels,
            (true, _) => List::DirtyGroups,
        };
        match self.objects.list_of(key) {
            Some(list) if list == to => return,
            Some(List::InFlight) if dirty => self.objects.enlist_first(key, space, to),
            _ => {
                self.objects.enlist(key, space, to);
                let now = self.sequence.next();
                if let Some(object) = self.objects.get_mut(key) {
                    object.acked.dirty_since = now;
                }
            }
        }
        if dirty {
            self.enqueue_proc(proc);
        }
    }

    fn list_subdevice(&mut self, key: ObjectKey, gpu: Option<GpuId>) {
        match gpu.filter(|gpu| self.gpus.contains(gpu)) {
            Some(gpu) => self.objects.enlist(key, gpu.0, List::Subdevices),
            None => self.objects.unlist(key),
        }
    }

    /// Everything of an owner is compared with its limits, on one GPU or on all.
    pub(super) fn mark_owner(&mut self, owner: Owner, gpu: Option<GpuId>) {
        let group = match owner {
            Owner::Proc(key) => return self.mark_proc(key, gpu),
            Owner::Group(group) => group,
        };
        let mut at = self.procs_in_group(group).next();
        for _ in 0..self.procs.len() {
            let Some(key) = at else { break };
            at = self.next_in_group(key);
            self.mark_proc(key, gpu);
        }
    }

    /// Everything of a process is compared with its limits, on one GPU or on all.
    pub(super) fn mark_proc(&mut self, key: ProcKey, gpu: Option<GpuId>) {
        let Some(space) = self.procs.get(&key).map(|proc| proc.space) else {
            return;
        };
        // What leaves a list goes to one that comes later, or out of those that are dirty.
        for list in [List::Clean, List::DirtyGroups, List::DirtyChannels] {
            let mut at = self.objects.first(space, list);
            for _ in 0..self.objects.len() {
                let Some(key) = at else { break };
                at = self.objects.behind(space, list, key);
                let of = self.objects.get(key).and_then(|object| object.gpu);
                if gpu.is_none_or(|_| of == gpu) {
                    self.mark_if_dirty(key);
                }
            }
        }
    }

    /// A tenant's own control may have undone one of ours, even where it failed: it may have failed in part.
    pub(super) fn overridden(&mut self, file: FileId, call: &Call, overrides: Overrides) {
        let Some(proc) = self.files.get(&file).map(|file| file.proc) else {
            return;
        };
        match overrides {
            Overrides::Timeslice => {
                if let Some(key) = self.key_of(file, call.client, call.object) {
                    self.slice_overridden(key, call.succeeded());
                }
            }
            Overrides::TimesliceOfChannel => self.slices_below_overridden(file, call),
            // Nothing stands still that could have been let run.
            Overrides::Schedule | Overrides::ScheduleAny if self.plan.stopped == 0 => {}
            Overrides::Schedule => {
                if let Some(key) = self.key_of(file, call.client, call.object) {
                    self.scheduled(key, proc);
                }
            }
            Overrides::ScheduleAny => self.channels_overridden(proc),
            // Of those that its parameters name: `channels_enabled()`.
            Overrides::Channels(_) => {}
        }
    }

    fn slice_overridden(&mut self, key: ObjectKey, succeeded: bool) {
        let primary = self.objects.primary_alias(key);
        if let Some(object) = self.objects.get_mut(primary) {
            object.acked.slice = match succeeded {
                true => Slice::Own,
                false => object.acked.slice.lost(),
            };
        }
        self.drop_in_flight(primary);
    }

    /// Some channel below a device has got another time slice, and with it its group. The resource manager
    /// does not say so when it is asked for the group's.
    fn slices_below_overridden(&mut self, file: FileId, call: &Call) {
        let Some(device) = self.key_of(file, call.client, call.object) else {
            return;
        };
        let mut at = Some(device);
        for _ in 0..self.objects.len() {
            let Some(key) = at else { break };
            at = self.objects.after(device, key.handle);
            let is_group = |object: &Object| object.class == Class::ChannelGroup;
            if self.objects.get(key).is_some_and(is_group) {
                self.slice_overridden(key, false);
            }
        }
    }

    /// A channel, or every channel of a group under whatever name, may run.
    fn scheduled(&mut self, key: ObjectKey, by: ProcKey) {
        let mut name = key;
        for _ in 0..self.objects.len() {
            let mut child = self.objects.child_of(name);
            for _ in 0..self.objects.len() {
                let Some(at) = child else { break };
                child = self.objects.sibling_of(at);
                self.may_run(at, by);
            }
            self.may_run(name, by);
            name = self.objects.next_alias(name);
            if name == key {
                break;
            }
        }
    }

    /// Any channel of a process may run.
    fn channels_overridden(&mut self, proc: ProcKey) {
        let Some(space) = self.procs.get(&proc).map(|proc| proc.space) else {
            return;
        };
        for list in [List::DirtyChannels, List::Clean, List::InFlight] {
            let mut at = self.objects.first(space, list);
            for _ in 0..self.objects.len() {
                let Some(key) = at else { break };
                at = self.objects.behind(space, list, key);
                self.may_run(key, proc);
            }
        }
    }

    /// While an object and all below it could not be named, their owner may have undone anything.
    pub(super) fn invalidate_below(&mut self, top: ObjectKey) {
        let inner = self.objects.get(top).map_or(0, |object| object.inner);
        let top = match inner {
            0 => top,
            inner => ObjectKey::root(inner),
        };
        let mut at = Some(top);
        for _ in 0..self.objects.len() {
            let Some(key) = at else { break };
            let Some(object) = self.objects.get_mut(key) else {
                break;
            };
            object.acked.slice = object.acked.slice.lost();
            if object.acked.run != Run::Runs {
                self.set_run(key, Run::Unknown);
            }
            at = self.objects.after(top, key.handle);
        }
    }

    /// A channel that was told to stand still may run, because of `by`.
    pub(super) fn may_run(&mut self, key: ObjectKey, by: ProcKey) {
        let of_channel = |object: &Object| object.class == Class::Channel;
        if !self.objects.get(key).is_some_and(of_channel) {
            return;
        }
        let primary = self.objects.primary_alias(key);
        let object = self.objects.get(primary).copied();
        let Some(object) = object.filter(|object| object.acked.run != Run::Runs) else {
            return;
        };
        self.set_run(primary, Run::Unknown);
        self.drop_in_flight(primary);
        if let Some(owner) = self.proc_of(&object).filter(|owner| *owner != by) {
            self.plan.touched.add(owner);
        }
    }

    /// A GPU was suspended and resumed. Whether the resource manager's firmware still has what it was told is not known,
    /// so it is told all of it again. O(objects), once for each resumption.
    pub fn gpu_resumed(&mut self, rm_id: u32) {
        let Some(gpu) = self.gpu_by_rm_id(rm_id) else {
            return;
        };
        for at in 0..self.procs.len() {
            let space = self.procs.key_at(at).and_then(|key| self.procs.get(&key));
            if let Some(space) = space.map(|proc| proc.space) {
                self.invalidate(space, gpu);
            }
        }
    }

    fn invalidate(&mut self, space: u64, gpu: GpuId) {
        // As in `mark_proc`: what leaves a list goes to one that comes later.
        for list in [
            List::InFlight,
            List::Clean,
            List::DirtyGroups,
            List::DirtyChannels,
        ] {
            let mut at = self.objects.first(space, list);
            for _ in 0..self.objects.len() {
                let Some(key) = at else { break };
                at = self.objects.behind(space, list, key);
                let Some(object) = self.objects.get_mut(key) else {
                    continue;
                };
                if object.gpu != Some(gpu) {
                    continue;
                }
                object.acked.slice = object.acked.slice.lost();
                if object.acked.run == Run::Frozen {
                    self.set_run(key, Run::Unknown);
                }
                self.drop_in_flight(key);
            }
        }
    }

    /// What is in flight of a subject no longer counts.
    fn drop_in_flight(&mut self, key: ObjectKey) {
        if self.objects.list_of(key) == Some(List::InFlight) {
            self.objects.unlist(key);
        }
        self.mark_if_dirty(key);
    }

    /// Sets what a channel does, and counts those that stand still.
    pub(super) fn set_run(&mut self, key: ObjectKey, run: Run) {
        let Some(object) = self.objects.get_mut(key) else {
            return;
        };
        let was = core::mem::replace(&mut object.acked.run, run);
        self.plan.stopped = match (was, run) {
            (Run::Runs, Run::Frozen | Run::Unknown) => self.plan.stopped.saturating_add(1),
            (Run::Frozen | Run::Unknown, Run::Runs) => self.plan.stopped.saturating_sub(1),
            _ => self.plan.stopped,
        };
    }

    /// A subject is gone; another name of the same thing takes its place, if there is one.
    pub(super) fn succeeded_by(&mut self, gone: &Object, successor: Option<ObjectKey>) {
        if !gone.acked.primary {
            return;
        }
        if gone.acked.run != Run::Runs {
            self.plan.stopped = self.plan.stopped.saturating_sub(1);
        }
        let Some(key) = successor else { return };
        let acked = gone.acked.inherited();
        if let Some(successor) = self.objects.get_mut(key) {
            successor.gpu = gone.gpu;
            successor.acked = acked;
            successor.acked.run = Run::Runs;
        }
        self.set_run(key, acked.run);
    }

    /// Do two groups bind their members differently, as far as controls go? How much of a time slice a member has
    /// depends on the others.
    pub(super) fn bind_differently(&self, one: Option<GroupId>, other: Option<GroupId>) -> bool {
        let limits = |group: Option<GroupId>, gpu| {
            let settings = group.map(|group| self.settings_in_force(Owner::Group(group), gpu));
            let settings = settings.unwrap_or(Settings::DEFAULT);
            (settings.timeslice, settings.freeze)
        };
        self.gpus.iter().any(|(gpu, _)| {
            let (one, other) = (limits(one, *gpu), limits(other, *gpu));
            one != other || one.0.is_some()
        })
    }

    /// Does the driver below send controls for this GPU?
    pub(super) fn sends_controls(&self, gpu: GpuId) -> bool {
        let kernel = |gpu: &crate::state::Gpu| gpu.facts.backend == Backend::Kernel;
        self.gpus.get(&gpu).is_some_and(kernel)
    }

    pub(super) fn proc_of(&self, object: &Object) -> Option<ProcKey> {
        self.files.get(&object.file).map(|file| file.proc)
    }

    pub(super) fn belongs(&self, object: &Object, owner: Owner) -> bool {
        let Some(proc) = self.proc_of(object) else {
            return false;
        };
        match owner {
            Owner::Proc(key) => key == proc,
            Owner::Group(group) => self.group_of(proc) == Some(group),
        }
    }

    /// The settings of an owner, with the pending write.
    pub(super) fn settings_in_force(&self, owner: Owner, gpu: GpuId) -> Settings {
        let pool = self.pools.get(&(owner, gpu));
        let mut settings = pool.map_or(Settings::DEFAULT, |pool| pool.settings);
        if let Some(write) = self.plan.pending_write {
            if write.owner == owner && write.gpu == gpu && write.refused.is_none() {
                // The value is of the file's type: it was parsed for it.
                let _ = settings.set(write.file, write.value);
            }
        }
        settings
    }

    /// Needs the resource manager be told nothing of a subject?
    pub(crate) fn is_as_it_should_be(&self, key: ObjectKey, object: &Object) -> bool {
        self.update_for(key, object).is_none()
    }

    /// What the resource manager has to be told of a subject now; nothing while it cannot be named.
    pub(super) fn update_for(&self, key: ObjectKey, object: &Object) -> Option<Update> {
        let gpu = object.gpu.filter(|gpu| self.sends_controls(*gpu))?;
        let proc = self.proc_of(object).filter(|_| object.acked.primary)?;
        if !self.objects.is_reachable(key, object) {
            return None;
        }
        match object.acked.refusal {
            Some(refusal) if refusal.exists => return Some(Update::CheckAlive(object.class)),
            Some(_) => return Some(Update::CheckClass(object.class)),
            None => {}
        }
        let limits = self.effective(proc, gpu);
        let guest = || {
            let group = self.group_of_channel(key, object);
            group.is_some_and(|group| !self.slice_binds(group, proc, gpu, &limits))
        };
        match object.class {
            // Nobody can set the time slice of its group: it stands still as long as one is in force.
            Class::Channel if object.is_alone() => {
                let stands = limits.freeze || limits.timeslice.is_some();
                object.acked.run.update(stands)
            }
            Class::Channel => {
                let unheard = limits.timeslice.map(SliceUpdate::Set).map(Update::Slice);
                let run = object.acked.run.update(limits.freeze);
                run.or(unheard.filter(|_| guest()))
            }
            Class::ChannelGroup => {
                let slice = self.slice_of(proc, gpu, object);
                object.acked.slice.update(slice).map(Update::Slice)
            }
            _ => None,
        }
    }
}
