// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which process's controls are sent next: a queue through the processes, so that nobody waits for more than one
//! control of each other process.

use crate::ids::ProcKey;
use crate::plan::Turn;
use crate::state::State;

impl State<'_> {
    /// Puts a process behind all others, if it is not queued.
    pub(super) fn queue_turn(&mut self, key: ProcKey) {
        let last = self.plan.turns.last;
        let Some(proc) = self.procs.get_mut(&key).filter(|proc| proc.turn.is_none()) else {
            return;
        };
        proc.turn = Some(Turn {
            previous: last,
            next: None,
        });
        self.set_next(last, Some(key));
        self.plan.turns.last = Some(key);
        self.plan.turns.count = self.plan.turns.count.saturating_add(1);
    }

    /// Takes a process out of the queue.
    pub(super) fn leave_turns(&mut self, key: ProcKey) {
        let Some(Turn { previous, next }) =
            self.procs.get_mut(&key).and_then(|proc| proc.turn.take())
        else {
            return;
        };
        self.set_next(previous, next);
        match next.and_then(|next| self.procs.get_mut(&next)) {
            Some(next) => {
                if let Some(turn) = &mut next.turn {
                    turn.previous = previous;
                }
            }
            None => self.plan.turns.last = previous,
        }
        self.plan.turns.count = self.plan.turns.count.saturating_sub(1);
    }

    /// The process behind `key`; the first with `None`.
    pub(super) fn turn_after(&self, key: Option<ProcKey>) -> Option<ProcKey> {
        match key {
            Some(key) => self.procs.get(&key)?.turn?.next,
            None => self.plan.turns.first,
        }
    }

    fn set_next(&mut self, of: Option<ProcKey>, next: Option<ProcKey>) {
        let Some(of) = of else {
            self.plan.turns.first = next;
            return;
        };
        if let Some(turn) = self.procs.get_mut(&of).and_then(|proc| proc.turn.as_mut()) {
            turn.next = next;
        }
    }

    /// Is the queue linked both ways, and does it hold every process with a dirty object?
    pub(crate) fn turns_are_sound(&self) -> bool {
        let (mut at, mut count) = (None, 0usize);
        for _ in 0..self.procs.len() {
            let Some(next) = self.turn_after(at) else {
                break;
            };
            let turn = self.procs.get(&next).and_then(|proc| proc.turn);
            if turn.is_none_or(|turn| turn.previous != at) {
                return false;
            }
            (at, count) = (Some(next), count.saturating_add(1));
        }
        let queued = self
            .procs
            .iter()
            .all(|(_, proc)| proc.turn.is_some() || !self.has_dirty(proc));
        at == self.plan.turns.last
            && self.turn_after(at).is_none()
            && count == self.plan.turns.count
            && queued
    }
}
