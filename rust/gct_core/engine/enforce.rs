// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Limits become controls of the resource manager, one at a time.
//!
//! The caller asks for a control, sends it without the state's lock, and says what
//! came of it before it asks for the next. While one is under way
//! ([`State::is_sending`]) it lets no object be freed.

use crate::account::Amount;
use crate::gpu::Backend;
use crate::ids::{FileId, GpuId, GroupId, Owner, ProcKey};
use crate::objects::{Object, ObjectKey};
use crate::plan::{Order, Sent, Trial};
use crate::rmapi::control::{self, Control, Status};
use crate::rmapi::{Call, Class, Handle, Undoes};
use crate::settings::Settings;
use crate::slice::{Slice, SliceOrder};
use crate::state::{Failure, State};

impl State<'_> {
    /// For tests: an object that was refused is tried again.
    #[cfg(test)]
    pub(crate) fn consider_again(&mut self, key: ObjectKey) {
        self.consider(key);
    }

    /// Is a control under way?
    pub fn is_sending(&self) -> bool {
        self.plan.sent.is_some()
    }

    /// May there be a control to send? Cheap, for those who only pass by.
    pub fn has_controls(&self) -> bool {
        self.plan.due > 0
    }

    /// The next control, which is under way from now on.
    pub fn next_control(&mut self) -> Option<Control> {
        if self.plan.due == 0 || self.plan.sent.is_some() {
            return None;
        }
        let recent = self.plan.recent.take();
        if let Some(control) = recent.and_then(|key| self.control_for(key)) {
            return Some(control);
        }
        let slots = self.objects.slots();
        for _ in 0..slots {
            let at = self.plan.cursor;
            self.plan.cursor = at.saturating_add(1);
            if self.plan.cursor >= slots {
                self.plan.cursor = 0;
            }
            let key = self.objects.key_at(at);
            if let Some(control) = key.and_then(|key| self.control_for(key)) {
                return Some(control);
            }
        }
        None
    }

    /// What came of the control that was under way.
    pub fn control_done(&mut self, control: &Control, outcome: Result<(), Status>) {
        let Some(Sent { order, keys }) = self.plan.sent.take() else {
            return;
        };
        let taken = match order {
            Order::Slice(order) => order.taken(control, outcome),
            Order::Freeze(_) => outcome,
        };
        for key in keys.into_iter().flatten() {
            if outcome.is_ok() {
                self.took(key, order, control);
            }
            match taken {
                Ok(()) => self.consider(key),
                Err(status) => self.refused(key, order, status),
            }
        }
    }

    /// A tenant's own control was obeyed, which may have undone one of ours.
    pub(super) fn undone(&mut self, file: FileId, call: &Call, undoes: Undoes) {
        let Some(proc) = self.files.get(&file).map(|file| file.proc) else {
            return;
        };
        match undoes {
            Undoes::Timeslice => {
                let Some(key) = self.key_of(file, call.client, call.object) else {
                    return;
                };
                let key = self.objects.charged_name(key);
                if let Some(object) = self.objects.get_mut(key) {
                    object.told.slice = match call.succeeded() {
                        true => Slice::Own,
                        false => object.told.slice.lost(),
                    };
                }
                self.consider(key);
            }
            Undoes::TimesliceOfChannel => self.slices_lost(file, call),
            Undoes::Freeze => {
                for at in 0..self.objects.slots() {
                    self.thawed_by_tenant(at, proc);
                }
            }
        }
    }

    /// Some channel below a device has got another time slice, and with it its group. The resource manager
    /// does not say so when it is asked for the group's.
    fn slices_lost(&mut self, file: FileId, call: &Call) {
        let Some(device) = self.key_of(file, call.client, call.object) else {
            return;
        };
        let mut at = Some(device);
        for _ in 0..self.objects.len() {
            let Some(key) = at else { break };
            let name = self.objects.charged_name(key);
            if let Some(object) = self.objects.get_mut(name) {
                object.told.slice = object.told.slice.lost();
            }
            self.consider(name);
            at = self.objects.after(device, key.handle);
        }
    }

    /// The channel in a slot, if it is a frozen one of the process, may run again.
    fn thawed_by_tenant(&mut self, at: usize, proc: ProcKey) {
        let Some(key) = self.objects.key_at(at) else {
            return;
        };
        let of_proc = |object: &&Object| self.proc_of(object) == Some(proc);
        let frozen = self.objects.get(key).filter(of_proc);
        if !frozen.is_some_and(|object| object.told.frozen) {
            return;
        }
        if let Some(object) = self.objects.get_mut(key) {
            object.told.frozen = false;
        }
        self.consider(key);
    }

    /// Everything of an owner is compared with its limits, on one GPU or on all.
    pub(super) fn reconsider(&mut self, owner: Owner, gpu: Option<GpuId>) {
        for at in 0..self.objects.slots() {
            let Some(key) = self.objects.key_at(at) else {
                continue;
            };
            let Some(object) = self.objects.get(key) else {
                continue;
            };
            let tells = matches!(object.class, Class::ChannelGroup | Class::Channel);
            if tells && gpu.is_none_or(|_| object.gpu == gpu) && self.belongs(object, owner) {
                self.consider(key);
            }
        }
    }

    /// An object is compared with the limits that bind it.
    pub(super) fn consider(&mut self, key: ObjectKey) {
        let Some(object) = self.objects.get(key) else {
            return;
        };
        let due = self.order_for(object).is_some();
        self.set_due(key, due);
        if due {
            self.plan.recent = Some(key);
        }
    }

    fn set_due(&mut self, key: ObjectKey, due: bool) {
        let Some(object) = self.objects.get_mut(key) else {
            return;
        };
        self.plan.due = match (object.told.due, due) {
            (false, true) => self.plan.due.saturating_add(1),
            (true, false) => self.plan.due.saturating_sub(1),
            _ => self.plan.due,
        };
        object.told.due = due;
    }

    /// Do two groups bind their members differently, as far as controls go?
    pub(super) fn bind_differently(&self, one: Option<GroupId>, other: Option<GroupId>) -> bool {
        let limits = |group: Option<GroupId>, gpu| {
            let settings = group.map(|group| self.settings_in_force(Owner::Group(group), gpu));
            let settings = settings.unwrap_or(Settings::DEFAULT);
            (settings.timeslice, settings.freeze)
        };
        self.gpus
            .iter()
            .any(|(gpu, _)| limits(one, *gpu) != limits(other, *gpu))
    }

    /// Does the driver below send controls for this GPU?
    fn sends_controls(&self, gpu: GpuId) -> bool {
        let kernel = |gpu: &crate::state::Gpu| gpu.facts.backend == Backend::Kernel;
        self.gpus.get(&gpu).is_some_and(kernel)
    }

    fn proc_of(&self, object: &Object) -> Option<ProcKey> {
        self.files.get(&object.file).map(|file| file.proc)
    }

    fn belongs(&self, object: &Object, owner: Owner) -> bool {
        let Some(proc) = self.proc_of(object) else {
            return false;
        };
        match owner {
            Owner::Proc(key) => key == proc,
            Owner::Group(group) => self.group_of(proc) == Some(group),
        }
    }

    /// The settings of an owner, with what is on trial.
    pub(super) fn settings_in_force(&self, owner: Owner, gpu: GpuId) -> Settings {
        let node = self.nodes.get(&(owner, gpu));
        let mut settings = node.map_or(Settings::DEFAULT, |node| node.settings);
        if let Some(trial) = self.plan.trial {
            if trial.owner == owner && trial.gpu == gpu && trial.refused.is_none() {
                // The value is of the file's type: it was parsed for it.
                let _ = settings.set(trial.file, trial.value);
            }
        }
        settings
    }

    /// What the resource manager has to be told of an object now.
    fn order_for(&self, object: &Object) -> Option<Order> {
        let gpu = object.gpu.filter(|gpu| self.sends_controls(*gpu))?;
        let limits = self.effective(self.proc_of(object)?, gpu);
        match object.class {
            Class::Channel if object.told.frozen != limits.freeze => {
                Some(Order::Freeze(limits.freeze))
            }
            // It has a group that nobody can speak of: see `State::call_refused`.
            Class::Channel if object.charged.channel_groups == 0 => None,
            Class::Channel => limits.timeslice.map(SliceOrder::Set).map(Order::Slice),
            // Of several names of a group the one that is charged is spoken of.
            Class::ChannelGroup if object.charged == Amount::ZERO => None,
            Class::ChannelGroup => object.told.slice.order(limits.timeslice).map(Order::Slice),
            _ => None,
        }
    }

    /// Makes the control for an object that is due, and for others like it.
    fn control_for(&mut self, key: ObjectKey) -> Option<Control> {
        let object = *self.objects.get(key)?;
        if !object.told.due || !self.objects.is_reachable(key, &object) {
            return None;
        }
        let Some(order) = self.order_for(&object) else {
            self.set_due(key, false);
            return None;
        };
        let (client, handle) = (object.client, key.handle);
        let control = match order {
            Order::Slice(_) if object.class == Class::Channel => {
                self.refused(key, order, control::NOT_SUPPORTED);
                return None;
            }
            Order::Slice(order) => order.control(client, handle),
            Order::Freeze(freeze) => return self.freeze_channels(key, &object, freeze),
        };
        self.plan.sent = Some(Sent::one(order, key));
        Some(control)
    }

    /// Stops or releases as many channels of a process as one control takes, `key`
    /// among them.
    fn freeze_channels(&mut self, key: ObjectKey, of: &Object, freeze: bool) -> Option<Control> {
        let order = Order::Freeze(freeze);
        let Some((client, subdevice)) = self.subdevice_for(key.space, of) else {
            // Nobody can be told.
            self.refused(key, order, control::NOT_SUPPORTED);
            return None;
        };
        let mut control = Control::disable_channels(client, subdevice, freeze);
        let mut sent = Sent::one(order, key);
        control.add_channel(of.client, key.handle);
        let proc = self.proc_of(of);
        let also = self.objects.iter().filter(|(other, object)| {
            **other != key
                && object.told.due
                && object.gpu == of.gpu
                && self.proc_of(object) == proc
                && self.objects.is_reachable(**other, object)
                && self.order_for(object) == Some(order)
        });
        for (slot, (other, object)) in sent.keys.iter_mut().skip(1).zip(also) {
            control.add_channel(object.client, other.handle);
            *slot = Some(*other);
        }
        self.plan.sent = Some(sent);
        Some(control)
    }

    /// A subdevice of the GPU on which `of` is: of the same client, or of any.
    fn subdevice_for(&self, space: u64, of: &Object) -> Option<(Handle, Handle)> {
        let mut found = None;
        for (key, object) in self.objects.iter() {
            let fits = object.class == Class::Subdevice
                && object.gpu == of.gpu
                && self.objects.is_reachable(*key, object);
            if fits && (found.is_none() || key.space == space) {
                found = Some((object.client, key.handle));
                if key.space == space {
                    break;
                }
            }
        }
        found
    }

    /// The resource manager has obeyed, or answered.
    fn took(&mut self, key: ObjectKey, order: Order, control: &Control) {
        let Some(object) = self.objects.get_mut(key) else {
            return;
        };
        let told = &mut object.told;
        match order {
            Order::Slice(order) => told.slice = told.slice.after(order, control.timeslice()),
            Order::Freeze(freeze) => told.frozen = freeze,
        }
    }

    /// The resource manager has refused. What is not on trial is not tried again
    /// before something changes.
    fn refused(&mut self, key: ObjectKey, order: Order, status: Status) {
        self.set_due(key, false);
        if control::is_gone(status) {
            return;
        }
        let object = self.objects.get(key).copied();
        let on_trial = |trial: &Trial| {
            object.is_some_and(|object| {
                trial.file == order.file()
                    && object.gpu == Some(trial.gpu)
                    && self.belongs(&object, trial.owner)
            })
        };
        if self.plan.trial.as_ref().is_some_and(on_trial) {
            if let Some(trial) = &mut self.plan.trial {
                trial.refused = Some(status);
            }
        } else {
            self.count(Failure::Control);
        }
    }
}
