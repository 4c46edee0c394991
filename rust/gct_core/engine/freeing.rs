// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Hides and frees objects, few of them while the state is locked once.
//!
//! A client may have 2^17 objects, and goes with a file or by one ioctl. Its tenant's thread need
//! not have a processor. So that others wait for a step alone, a caller that holds a lock begins
//! with [`file_closes`](State::file_closes), [`hides_more`](State::hides_more) or
//! [`frees_more`](State::frees_more) until there are few objects left, and lets go of the lock in
//! between.

use super::Ticket;
use crate::ids::{FileId, ProcKey};
use crate::objects::{ObjectKey, Popped};
use crate::rmapi::{Action, Call};
use crate::state::State;

/// Objects of a step: some 100 us of a processor, half a microsecond each (inferred).
pub(super) const OBJECTS_PER_STEP: usize = 256;

impl State<'_> {
    /// Frees some objects of a file that is being closed: it has no ioctl any more. Returns whether
    /// there are more than [`file_close`](Self::file_close) should free at once.
    pub fn file_closes(&mut self, id: FileId) -> bool {
        let client = self.objects.first_below_root(id.raw());
        let proc = self.files.get(&id).map(|file| file.proc);
        let Some((client, proc)) = client.zip(proc) else {
            return false;
        };
        if self.free_some(proc, client) {
            return true;
        }
        // One of few objects, which need not be the last one.
        let has_more = self.objects.sibling_of(client).is_some();
        if has_more {
            self.free(proc, client);
        }
        has_more
    }

    /// Closes a file and frees all objects that were created through it.
    pub fn file_close(&mut self, id: FileId) {
        let Some(file) = self.files.remove(&id) else {
            return;
        };
        let proc = file.proc;
        // Each iteration frees one client. The bound covers a broken list.
        for _ in 0..self.objects.len() {
            let Some(client) = self.objects.first_below_root(id.raw()) else {
                break;
            };
            self.free(proc, client);
        }
        self.drain(proc, ObjectKey::root(id.raw()));
        self.file_leave(&file);
    }

    /// Hides further objects that an ioctl may free. Returns whether some are left.
    pub fn hides_more(&mut self, ticket: &mut Ticket) -> bool {
        if ticket.moving != 0 {
            let top = ObjectKey::new(ticket.home, ticket.handle);
            let (hidden, next) = (ticket.hidden, ticket.moving);
            let next = self
                .objects
                .detach_more(top, hidden, next, OBJECTS_PER_STEP);
            ticket.moving = next.unwrap_or(0);
        }
        ticket.moving != 0
    }

    /// Frees some of the objects that RM has freed in an ioctl. Returns whether there are more than
    /// [`call_leave`](Self::call_leave) should free at once.
    pub fn frees_more(&mut self, file: FileId, call: &Call, ticket: Ticket) -> bool {
        let is_free = call.action == Action::Free && call.succeeded() && ticket.hidden != 0;
        let proc = self.files.get(&file).map(|file| file.proc);
        let proc = proc.filter(|_| is_free);
        let hidden = ObjectKey::new(ticket.hidden, ticket.handle);
        proc.is_some_and(|proc| self.free_some(proc, hidden))
    }

    /// Frees an object and all below it. The name of a client frees all of the client's objects.
    pub(super) fn free(&mut self, proc: ProcKey, key: ObjectKey) {
        let Some(object) = self.objects.get(key) else {
            return;
        };
        if object.inner != 0 {
            self.drain(proc, ObjectKey::root(object.inner));
        }
        self.drain(proc, key);
    }

    /// Frees some objects below an object, and of a client. Returns whether there may be more.
    fn free_some(&mut self, proc: ProcKey, key: ObjectKey) -> bool {
        let Some(object) = self.objects.get(key) else {
            return false;
        };
        let inner = (object.inner != 0).then(|| ObjectKey::root(object.inner));
        let mut left = OBJECTS_PER_STEP;
        let mut file = None;
        for top in [inner, Some(key)].into_iter().flatten() {
            let mut at = top;
            while left > 0 && self.objects.child_of(top).is_some() {
                let Some(popped) = self.drain_one(proc, top, at) else {
                    break;
                };
                file = Some(popped.object.file);
                at = popped.next.unwrap_or(top);
                left = left.saturating_sub(1);
            }
        }
        if let Some(file) = file {
            self.count_objects_of(file);
        }
        left == 0
    }

    pub(super) fn drain(&mut self, proc: ProcKey, top: ObjectKey) {
        let mut file = None;
        let mut next = Some(top);
        while let Some(popped) = next.and_then(|at| self.drain_one(proc, top, at)) {
            file = Some(popped.object.file);
            next = popped.next;
        }
        if let Some(file) = file {
            // All objects of a tree belong to one file.
            self.count_objects_of(file);
        }
    }

    /// Removes one object of a tree: `at`, or one below it.
    fn drain_one(&mut self, proc: ProcKey, top: ObjectKey, at: ObjectKey) -> Option<Popped> {
        let popped = self.objects.pop(top, at)?;
        let (object, successor) = (&popped.object, popped.successor);
        self.succeeded_by(object, successor);
        self.native_registers_stay(object);
        // The driver duplicates no channel, so its names go with it.
        self.let_all_go(object.file, object.keeps);
        match successor {
            Some(successor) => self.inherit(proc, object, successor),
            None => self.uncharge(proc, object),
        }
        Some(popped)
    }
}
