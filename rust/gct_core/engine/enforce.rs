// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sends limits to RM as controls, and records their outcomes.
//!
//! Each process has at most one control in flight; processes are independent. The caller takes a
//! control, sends it without the state's lock, and reports the outcome:
//!
//! ```text
//! flush:
//!     match next_control(flush):
//!         Send(control, in_flight):  outcome = send(control)
//!                                    control_done(in_flight, control, outcome)
//!         Busy(wait):                sleep until is_over(wait)
//!         Nothing:                   return
//! ```
//!
//! A flush sends only what was dirty when it began, so no tenant can prolong another's.
//!
//! A freeze names up to 64 channels, and RM returns one status for all of them. It reports neither
//! which channel it did not find nor which it has stopped. So a failure is narrowed down:
//!
//! ```text
//! n > 1 channels failed:  retry with at most ceil(n / 2) in a control
//! 1 channel failed:       CheckClass: drop the refusal if the handle names no such object
//!                         CheckAlive: drop the refusal if RM has lost the object
//!                         else the refusal counts
//! ```

use crate::failures::Failure;
use crate::ids::{FileId, Owner, ProcKey};
use crate::objects::{List, Object, ObjectKey};
use crate::plan::{
    Completion, Flush, InFlight, Next, PendingWrite, Refusal, Run, Touched, Update, Wait,
    SHARERS_MAX,
};
use crate::records::Proc;
use crate::rmapi::control::{self, Control, Status, CHANNELS_MAX};
use crate::rmapi::{Class, Handle};
use crate::state::State;

impl State<'_> {
    /// Marks a subject as any event would, so that it is retried after a refusal.
    #[cfg(test)]
    pub(crate) fn mark_again(&mut self, key: ObjectKey) {
        self.mark_if_dirty(key);
    }

    /// Returns whether any subject may be dirty. O(1).
    pub fn has_controls(&self) -> bool {
        self.plan.dirty_procs.count.0 > 0 || self.has_stale()
    }

    /// Returns whether a process without a control in flight has dirty subjects. A thread with a
    /// control in flight asks again when the control has completed.
    pub fn can_send(&self) -> bool {
        if self.has_stale() {
            return true;
        }
        let mut at = self.queued_after(None);
        for _ in 0..self.plan.dirty_procs.count.0 {
            let Some(key) = at else { break };
            let idle = |proc: &&Proc| proc.in_flight.is_none() && self.has_dirty(proc);
            if self.procs.get(&key).filter(idle).is_some() {
                return true;
            }
            at = self.queued_after(Some(key));
        }
        false
    }

    /// Returns a flush of what is dirty now, of one owner or, with `None`, of all.
    pub fn flush_of(&mut self, owner: Option<Owner>) -> Flush {
        Flush {
            until: self.sequence.next(),
            waits: true,
            writes: true,
            owner,
            others: [None; SHARERS_MAX],
        }
    }

    /// Returns a flush of what the last ioctl on a file has made dirty, of its process and of
    /// others whose channels it enabled. Returns `None` when all of it is clean. Call it before the
    /// lock is dropped.
    pub fn flush_of_file(&mut self, file: FileId) -> Option<Flush> {
        let touched = core::mem::replace(&mut self.plan.touched, Touched::NOBODY);
        let proc = self.files.get(&file)?.proc;
        if touched.more {
            // Too many to name: flush all that is dirty by now.
            return self.has_controls().then(|| Flush {
                writes: false,
                ..self.flush_of(None)
            });
        }
        let others = touched.procs;
        let concerned = [Some(proc)];
        let concerned = concerned.iter().chain(&others).flatten();
        let busy = |key: &ProcKey| {
            let proc = self.procs.get(key);
            proc.is_some_and(|proc| proc.in_flight.is_some() || self.has_dirty(proc))
        };
        concerned.copied().any(|key| busy(&key)).then(|| Flush {
            others,
            writes: false,
            ..self.flush_of(Some(Owner::Proc(proc)))
        })
    }

    /// Returns the control in flight that may name objects of a file's process. The caller waits
    /// for it: [`State::control_done`] reports that it has a waiter.
    pub fn wait_for(&mut self, file: FileId) -> Option<Wait> {
        let proc = self.files.get(&file)?.proc;
        self.wait_for_proc(proc)
    }

    /// Returns whether the control has completed.
    pub fn is_over(&self, wait: &Wait) -> bool {
        self.in_flight_of(wait.proc) != Some(wait.number)
    }

    fn in_flight_of(&self, proc: ProcKey) -> Option<u64> {
        self.procs.get(&proc)?.in_flight
    }

    fn wait_for_proc(&mut self, key: ProcKey) -> Option<Wait> {
        let proc = self.procs.get_mut(&key)?;
        let number = proc.in_flight?;
        proc.has_waiter = true;
        Some(Wait { proc: key, number })
    }

    /// Returns the next control of a flush. It is in flight from now on.
    pub fn next_control(&mut self, flush: &Flush) -> Next {
        let Some(Owner::Proc(key)) = flush.owner else {
            return self.next_in_queue(flush);
        };
        for key in [Some(key)].iter().chain(&flush.others).flatten() {
            match self.next_of(*key, flush.until) {
                Next::Nothing => {}
                next => return next,
            }
        }
        Next::Nothing
    }

    /// Returns the next control of a group's members, or of all processes, in queue order.
    fn next_in_queue(&mut self, flush: &Flush) -> Next {
        if flush.owner.is_none() {
            self.mark_stale_procs();
        }
        let mut busy = Next::Nothing;
        let mut after = self.queued_after(None);
        for _ in 0..self.plan.dirty_procs.count.0 {
            let Some(key) = after else { break };
            after = self.queued_after(Some(key));
            let fits = match flush.owner {
                Some(Owner::Group(group)) => self.group_of(key) == Some(group),
                _ => true,
            };
            if !fits {
                continue;
            }
            match self.next_of(key, flush.until) {
                Next::Nothing => {}
                Next::Busy(wait) => busy = Next::Busy(wait),
                next => {
                    self.dequeue_proc(key);
                    self.enqueue_proc(key);
                    return next;
                }
            }
        }
        match flush.waits {
            true => busy,
            // The sender of the control in flight continues, or wakes the work item.
            false => Next::Nothing,
        }
    }

    /// Returns the next control for the subjects of a process that were dirty by `until`.
    fn next_of(&mut self, key: ProcKey, until: u64) -> Next {
        let Some(proc) = self.procs.get(&key) else {
            return Next::Nothing;
        };
        let (space, is_in_flight) = (proc.space, proc.in_flight.is_some());
        if is_in_flight {
            let lists = [List::InFlight, List::DirtyGroups, List::DirtyChannels];
            let concerns = lists
                .iter()
                .any(|list| self.is_dirty_by(space, *list, until));
            let wait = concerns.then(|| self.wait_for_proc(key)).flatten();
            return wait.map_or(Next::Nothing, Next::Busy);
        }
        for _ in 0..self.objects.len() {
            let dirty = [List::DirtyGroups, List::DirtyChannels];
            let oldest = dirty
                .iter()
                .filter_map(|list| self.objects.first(space, *list));
            let since = |key: &ObjectKey| {
                self.objects
                    .get(*key)
                    .map_or(0, |object| object.acked.dirty_since)
            };
            let Some(first) = oldest.min_by_key(since) else {
                self.dequeue_proc(key);
                return Next::Nothing;
            };
            if since(&first) > until {
                return Next::Nothing;
            }
            if let Some(next) = self.control_for(key, first) {
                return next;
            }
        }
        Next::Nothing
    }

    pub(super) fn is_dirty_by(&self, space: u64, list: List, until: u64) -> bool {
        let first = self.objects.first(space, list);
        let object = first.and_then(|key| self.objects.get(key));
        object.is_some_and(|object| object.acked.dirty_since <= until)
    }

    /// Builds the control for a dirty subject, and batches others like it. Requeues the subject and
    /// returns `None` if no control is necessary or possible.
    fn control_for(&mut self, proc: ProcKey, key: ObjectKey) -> Option<Next> {
        let object = *self.objects.get(key)?;
        let Some(update) = self.update_for(key, &object) else {
            self.requeue(key);
            return None;
        };
        let (client, handle) = (object.client, key.handle);
        let control = match update {
            Update::Slice(_) if object.class == Class::Channel => {
                self.record_refusal(key, update, control::NOT_SUPPORTED);
                return None;
            }
            Update::Slice(update) => update.control(client, handle),
            Update::CheckClass(_) => Control::class_of(client, handle),
            Update::CheckAlive(class) => Control::probe(client, handle, class)?,
            Update::Freeze(true) if self.stops_others(proc, key, &object) => {
                self.record_refusal(key, update, control::NOT_SUPPORTED);
                return None;
            }
            Update::Freeze(freeze) => self.freeze_channels(proc, key, &object, freeze)?,
        };
        let number = self.sequence.next();
        let space = self.procs.get_mut(&proc).map(|proc| {
            proc.in_flight = Some(number);
            proc.space
        })?;
        if !matches!(update, Update::Freeze(_)) {
            self.objects.enlist(key, space, List::InFlight);
        }
        Some(Next::Send(
            control,
            InFlight {
                proc,
                number,
                update,
            },
        ))
    }

    /// Stops or starts channels of a process, `key` first, as many as one control takes. Their
    /// state is unknown until the control completes.
    fn freeze_channels(
        &mut self,
        proc: ProcKey,
        key: ObjectKey,
        of: &Object,
        freeze: bool,
    ) -> Option<Control> {
        let update = Update::Freeze(freeze);
        let space = self.procs.get(&proc)?.space;
        let Some(mut control) = self.disable_channels(key, of, freeze) else {
            self.record_refusal(key, update, control::NOT_SUPPORTED);
            return None;
        };
        let (mut at, mut batch_max) = (Some(key), CHANNELS_MAX);
        // A batch is contiguous in the list, so that channels that are sent again keep their place.
        for number in 0..CHANNELS_MAX {
            let Some(key) = at else { break };
            let Some(object) = self.objects.get(key).copied() else {
                break;
            };
            batch_max = batch_max.min(object.acked.batch_max);
            let fits = number < batch_max && object.gpu == of.gpu;
            let kept_out = freeze && self.stops_others(proc, key, &object);
            if !fits || kept_out || self.update_for(key, &object) != Some(update) {
                break;
            }
            at = self.objects.behind(space, List::DirtyChannels, key);
            control.add_channel(object.client, key.handle);
            self.set_run(key, Run::Unknown);
            self.objects.enlist(key, space, List::InFlight);
        }
        Some(control)
    }

    /// Returns whether a freeze of a running channel would stop other sharers of its channel group.
    /// A channel that was frozen before they came, and that its tenant has enabled, is frozen
    /// again.
    fn stops_others(&self, proc: ProcKey, key: ObjectKey, object: &Object) -> bool {
        let group = self.group_of_channel(key, object).zip(object.gpu);
        object.acked.run == Run::Runs
            && group.is_some_and(|(group, gpu)| {
                let limits = self.effective(proc, gpu);
                !self.may_freeze(group, proc, gpu, &limits)
            })
    }

    /// Returns a freeze without channels for a channel's GPU: a control of the subdevice of the
    /// channel's device, or else of one of the driver's own.
    fn disable_channels(&self, key: ObjectKey, of: &Object, freeze: bool) -> Option<Control> {
        Some(match self.subdevice_of(key, of) {
            Some((client, subdevice)) => Control::disable_channels(client, subdevice, freeze),
            None => {
                let gpu = self.gpus.get(&of.gpu?)?.facts.rm_id;
                Control::disable_channels_of(gpu, freeze)
            }
        })
    }

    /// Returns the client and a subdevice of a channel's device.
    fn subdevice_of(&self, key: ObjectKey, of: &Object) -> Option<(Handle, Handle)> {
        let device = self.objects.device_of(key)?;
        let subdevice = ObjectKey::new(device.space, self.objects.get(device)?.subdevice);
        let found = self.objects.get(subdevice)?;
        let is_one = found.class == Class::Subdevice
            && found.gpu == of.gpu
            && self.objects.is_reachable(subdevice, found);
        is_one.then_some((found.client, subdevice.handle))
    }

    /// Records the outcome of a control for all subjects that are still in flight; see
    /// [`plan`](crate::plan).
    pub fn control_done(
        &mut self,
        in_flight: &InFlight,
        control: &Control,
        outcome: Result<(), Status>,
    ) -> Completion {
        let is_it = |proc: &&mut Proc| proc.in_flight == Some(in_flight.number);
        let Some(proc) = self.procs.get_mut(&in_flight.proc).filter(is_it) else {
            return Completion {
                has_waiter: false,
                refused: self.write_is_refused(),
            };
        };
        proc.in_flight = None;
        let (space, has_waiter) = (proc.space, core::mem::take(&mut proc.has_waiter));
        // Requeue the last first, each before the dirty ones: they keep their order.
        for _ in 0..CHANNELS_MAX {
            let Some(key) = self.objects.last(space, List::InFlight) else {
                break;
            };
            self.complete(key, in_flight.update, control, outcome);
            self.requeue(key);
        }
        self.proc_leave(in_flight.proc);
        Completion {
            has_waiter,
            refused: self.write_is_refused(),
        }
    }

    /// Records the outcome of a control for one of its subjects.
    fn complete(
        &mut self,
        key: ObjectKey,
        update: Update,
        control: &Control,
        outcome: Result<(), Status>,
    ) {
        match (update, outcome) {
            (Update::CheckClass(class), _) => self.class_checked(key, class, control, outcome),
            (Update::CheckAlive(_), _) => self.alive_checked(key, outcome),
            (Update::Slice(slice), Ok(())) => {
                if let Some(object) = self.objects.get_mut(key) {
                    let acked = &mut object.acked;
                    acked.slice = acked.slice.after(slice, control.timeslice());
                }
                if let Err(status) = slice.verify(control, outcome) {
                    self.record_refusal(key, update, status);
                }
            }
            (Update::Freeze(freeze), Ok(())) => {
                self.set_run(key, Run::after(freeze));
                self.set_batch_max(key, CHANNELS_MAX);
            }
            (_, Err(status)) => match control.channels_named() {
                many @ 2.. => self.set_batch_max(key, many.div_ceil(2)),
                _ => {
                    if let Some(object) = self.objects.get_mut(key) {
                        let exists = false;
                        object.acked.refusal = Some(Refusal {
                            update,
                            status,
                            exists,
                        });
                    }
                }
            },
        }
    }

    fn set_batch_max(&mut self, key: ObjectKey, batch_max: usize) {
        if let Some(object) = self.objects.get_mut(key) {
            object.acked.batch_max = batch_max;
        }
    }

    /// Records the class that RM has under the handle of a refused update. If there is no object,
    /// or one of another class, the object was freed along with one on which it depended: drop the
    /// refusal.
    fn class_checked(
        &mut self,
        key: ObjectKey,
        class: Class,
        control: &Control,
        outcome: Result<(), Status>,
    ) {
        let Some(object) = self.objects.get_mut(key) else {
            return;
        };
        if outcome.is_err() || Class::from_number(control.class()) != class {
            object.acked.gone();
        } else if let Some(refusal) = &mut object.acked.refusal {
            refusal.exists = true;
        }
    }

    /// Records the answer to a control that changes nothing. If RM has lost the object and only its
    /// handle is left, drop the refusal.
    fn alive_checked(&mut self, key: ObjectKey, outcome: Result<(), Status>) {
        let Some(object) = self.objects.get_mut(key) else {
            return;
        };
        if outcome == Err(control::RESOURCE_LOST) {
            return object.acked.gone();
        }
        let Some(Refusal { update, status, .. }) = object.acked.refusal.take() else {
            return;
        };
        let object = *object;
        // The limits may have changed since: another update may be next.
        if self.update_for(key, &object) == Some(update) {
            self.record_refusal(key, update, status);
        }
    }

    /// Records a refusal. It refuses the pending write if there is one for this limit. Otherwise it
    /// is counted, and the next event that marks the subject retries.
    fn record_refusal(&mut self, key: ObjectKey, update: Update, status: Status) {
        let Some(object) = self.objects.get_mut(key) else {
            return;
        };
        object.acked.given_up = true;
        let object = *object;
        self.requeue(key);
        let is_pending = |write: &PendingWrite| {
            Some(write.file) == update.file()
                && object.gpu == Some(write.gpu)
                && self.belongs(&object, write.owner)
        };
        if self.plan.pending_write.as_ref().is_some_and(is_pending) {
            if let Some(write) = &mut self.plan.pending_write {
                write.refused = Some(status);
            }
        } else {
            self.count(Failure::Control);
        }
    }
}
