// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps the queue of processes with dirty subjects. A process that got a control moves to the end,
//! so each waits for at most one control of every other process (round robin).

use crate::ids::ProcKey;
use crate::plan::ProcLinks;
use crate::state::State;
use crate::units::Sat;

impl State<'_> {
    /// Appends a process, unless it is queued.
    pub(super) fn enqueue_proc(&mut self, key: ProcKey) {
        let last = self.plan.dirty_procs.last;
        let Some(proc) = self
            .procs
            .get_mut(&key)
            .filter(|proc| proc.queued.is_none())
        else {
            return;
        };
        proc.queued = Some(ProcLinks {
            previous: last,
            next: None,
        });
        self.set_next(last, Some(key));
        self.plan.dirty_procs.last = Some(key);
        self.plan.dirty_procs.count += 1;
    }

    /// Removes a process from the queue.
    pub(super) fn dequeue_proc(&mut self, key: ProcKey) {
        let Some(ProcLinks { previous, next }) =
            self.procs.get_mut(&key).and_then(|proc| proc.queued.take())
        else {
            return;
        };
        self.set_next(previous, next);
        match next.and_then(|next| self.procs.get_mut(&next)) {
            Some(next) => {
                if let Some(turn) = &mut next.queued {
                    turn.previous = previous;
                }
            }
            None => self.plan.dirty_procs.last = previous,
        }
        self.plan.dirty_procs.count -= 1;
    }

    /// Returns the process behind `key`, or the first with `None`.
    pub(super) fn queued_after(&self, key: Option<ProcKey>) -> Option<ProcKey> {
        match key {
            Some(key) => self.procs.get(&key)?.queued?.next,
            None => self.plan.dirty_procs.first,
        }
    }

    fn set_next(&mut self, of: Option<ProcKey>, next: Option<ProcKey>) {
        let Some(of) = of else {
            self.plan.dirty_procs.first = next;
            return;
        };
        if let Some(turn) = self
            .procs
            .get_mut(&of)
            .and_then(|proc| proc.queued.as_mut())
        {
            turn.next = next;
        }
    }

    /// Returns whether the links are mutual and every process with a dirty subject is queued.
    pub(crate) fn dirty_procs_are_sound(&self) -> bool {
        let (mut at, mut count) = (None, Sat(0usize));
        for _ in 0..self.procs.len() {
            let Some(next) = self.queued_after(at) else {
                break;
            };
            let turn = self.procs.get(&next).and_then(|proc| proc.queued);
            if turn.is_none_or(|turn| turn.previous != at) {
                return false;
            }
            at = Some(next);
            count += 1;
        }
        let queued = self
            .procs
            .iter()
            .all(|(_, proc)| proc.queued.is_some() || !self.has_dirty(proc));
        at == self.plan.dirty_procs.last
            && self.queued_after(at).is_none()
            && count == self.plan.dirty_procs.count
            && queued
    }
}
