// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which subjects are dirty: their state at RM is not what the limits in force want.
//!
//! ```text
//! the subject's limits changed        mark_owner, mark_proc, mark_if_dirty
//! its tenant may have overridden one  overridden, may_run, invalidate_below
//! RM may have lost its state          gpu_resumed
//! ```
//!
//! An event visits the objects of one process, or of one owner if it writes a limit.

use crate::gpu::Backend;
use crate::ids::{FileId, GpuId, GroupId, Owner, ProcKey};
use crate::objects::{List, Object, ObjectKey};
use crate::plan::{Run, Update};
use crate::records::Proc;
use crate::rmapi::{Call, Class, Overrides};
use crate::settings::Settings;
use crate::slice::{Slice, SliceUpdate};
use crate::state::State;

impl State<'_> {
    /// Returns whether a subject of the process is dirty.
    pub(super) fn has_dirty(&self, proc: &Proc) -> bool {
        let dirty = [List::DirtyGroups, List::DirtyChannels];
        dirty
            .iter()
            .any(|list| self.objects.first(proc.space, *list).is_some())
    }

    /// Requeues a subject. A former refusal no longer counts.
    pub(super) fn mark_if_dirty(&mut self, key: ObjectKey) {
        let Some(object) = self.objects.get_mut(key) else {
            return;
        };
        (object.acked.given_up, object.acked.refusal) = (false, None);
        let subject = matches!(object.class, Class::Channel | Class::ChannelGroup);
        if subject && object.acked.primary {
            self.requeue_unless_in_flight(key);
        }
    }

    /// Requeues a subject. One in flight is requeued when its control completes.
    fn requeue_unless_in_flight(&mut self, key: ObjectKey) {
        if self.objects.list_of(key) != Some(List::InFlight) {
            self.requeue(key);
        }
    }

    /// Moves a subject to the list where it belongs. One that was in flight goes before those that
    /// became dirty after it.
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

    /// Marks the dirty subjects of an owner, on one GPU or on all.
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

    /// Marks the dirty subjects of a process, on one GPU or on all.
    pub(super) fn mark_proc(&mut self, key: ProcKey, gpu: Option<GpuId>) {
        let Some(space) = self.procs.get(&key).map(|proc| proc.space) else {
            return;
        };
        // A subject only moves to a list that is walked later, or to `Clean`.
        for list in [List::Clean, List::DirtyGroups, List::DirtyChannels] {
            let mut at = self.objects.first(space, list);
            for _ in 0..self.objects.len() {
                let Some(key) = at else { break };
                at = self.objects.behind(space, list, key);
                let of = self.objects.get(key).and_then(|object| object.gpu);
                if gpu.is_none_or(|_| of == gpu) {
                    self.mark_if_dirty(key);
                    self.mark_guests(key);
                }
            }
        }
    }

    /// Marks all that a tenant's own control may have overridden. A control that failed may have
    /// succeeded in part.
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
            // No channel is stopped, so none can be started.
            Overrides::Schedule | Overrides::ScheduleAny if self.plan.stopped.0 == 0 => {}
            Overrides::Schedule => {
                if let Some(key) = self.key_of(file, call.client, call.object) {
                    self.scheduled(key, proc);
                }
            }
            Overrides::ScheduleAny => self.channels_overridden(proc),
            // `channels_told` handles the channels that the parameters name.
            Overrides::Channels(_) | Overrides::Mode(..) => {}
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

    /// Marks all channel groups below a device. The control has set the time slice of some channel
    /// and so of its group, but RM does not report it as the group's.
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

    /// Marks a channel, or every channel of a channel group under all aliases, as possibly running.
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

    /// Marks all channels of a process as possibly running.
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

    /// Invalidates what is known of an object and all below it, after a free that failed. Meanwhile
    /// they were hidden, and their tenant may have overridden any limit.
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

    /// Marks a stopped channel as possibly running, because of a control of process `by`.
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

    /// Marks all subjects of a GPU that was suspended and resumed: the GPU's firmware may have lost
    /// their state. O(objects), once per resume.
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
        // As in `mark_proc`: a subject only moves to a list that is walked later.
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

    /// Takes a subject out of flight, so that the outcome does not reach it, and requeues it.
    fn drop_in_flight(&mut self, key: ObjectKey) {
        if self.objects.list_of(key) == Some(List::InFlight) {
            self.objects.unlist(key);
        }
        self.mark_if_dirty(key);
    }

    /// Sets whether a channel runs, and counts those that may not.
    pub(super) fn set_run(&mut self, key: ObjectKey, run: Run) {
        let Some(object) = self.objects.get_mut(key) else {
            return;
        };
        let was = core::mem::replace(&mut object.acked.run, run);
        match (was, run) {
            (Run::Runs, Run::Frozen | Run::Unknown) => self.plan.stopped += 1,
            (Run::Frozen | Run::Unknown, Run::Runs) => self.plan.stopped -= 1,
            _ => {}
        }
    }

    /// Hands what is known of a resource to its successor, when the alias that was the subject is
    /// gone.
    pub(super) fn succeeded_by(&mut self, gone: &Object, successor: Option<ObjectKey>) {
        if !gone.acked.primary {
            return;
        }
        if gone.acked.run != Run::Runs {
            self.plan.stopped -= 1;
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

    /// Returns whether two groups may want different controls for a member. A member's part of a
    /// time slice depends on the other members, so two groups with a time slice always differ. One
    /// of them may pause.
    pub(super) fn bind_differently(&self, one: Option<GroupId>, other: Option<GroupId>) -> bool {
        let limits = |group: Option<GroupId>, gpu| {
            let settings = group.map(|group| self.settings_in_force(Owner::Group(group), gpu));
            let settings = settings.unwrap_or(Settings::DEFAULT);
            let pauses = group.is_some_and(|group| self.is_pause_of(Owner::Group(group), gpu));
            (settings.timeslice, settings.freeze, pauses)
        };
        self.gpus.iter().any(|(gpu, _)| {
            let (one, other) = (limits(one, *gpu), limits(other, *gpu));
            one != other || one.0.is_some()
        })
    }

    /// Returns whether controls for this GPU are sent by the caller of the core.
    pub(super) fn sends_controls(&self, gpu: GpuId) -> bool {
        let kernel = |gpu: &crate::records::Gpu| gpu.facts.backend == Backend::Kernel;
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

    /// Returns the settings of an owner, with the pending write unless it was refused.
    pub(super) fn settings_in_force(&self, owner: Owner, gpu: GpuId) -> Settings {
        let pool = self.pools.get(&(owner, gpu));
        let mut settings = pool.map_or(Settings::DEFAULT, |pool| pool.settings);
        if let Some(write) = self.plan.pending_write {
            if write.owner == owner && write.gpu == gpu && write.refused.is_none() {
                // Cannot fail: the value was parsed for this file.
                let _ = settings.set(write.file, write.value);
            }
        }
        settings
    }

    /// Returns whether RM has what the limits want of a subject.
    pub(crate) fn is_as_it_should_be(&self, key: ObjectKey, object: &Object) -> bool {
        self.update_for(key, object).is_none()
    }

    /// Returns the next update of a subject. Returns `None` if it is clean, or while no control can
    /// name it.
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
            // The time slice of its group cannot be set, so the channel is stopped while one is in
            // force.
            Class::Channel if object.is_alone() => {
                let stands = limits.freeze || limits.timeslice.is_some();
                object.acked.run.update(stands || self.is_paused(proc, gpu))
            }
            Class::Channel => {
                let unheard = limits.timeslice.map(SliceUpdate::Set).map(Update::Slice);
                let stands = limits.freeze || self.pauses(key, object, proc, gpu);
                let run = object.acked.run.update(stands);
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
