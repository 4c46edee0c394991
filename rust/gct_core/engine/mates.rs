// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The members of each group that have the driver open, in a list, and those whose share of a time slice has changed.
//!
//! A process's ioctl may change the shares of all others in its group. It only marks the group, which costs O(1); the
//! work item looks at one member at a time, so that no ioctl pays for another's channel groups.

use crate::ids::{GpuId, GroupId, ProcKey};
use crate::plan::Turn;
use crate::state::State;

/// Members that are looked at before the state's lock is let go.
const MEMBERS_PER_STEP: usize = 8;

impl<'a> State<'a> {
    /// Puts a process into the list of its group.
    pub(super) fn join_mates(&mut self, key: ProcKey, group: Option<GroupId>) {
        let Some(group) = group.and_then(|group| self.groups.get_mut(&group)) else {
            return;
        };
        let next = group.mates.replace(key);
        if let Some(next) = next.and_then(|next| self.procs.get_mut(&next)) {
            next.mates.previous = Some(key);
        }
        if let Some(proc) = self.procs.get_mut(&key) {
            proc.mates = Turn {
                previous: None,
                next,
            };
        }
    }

    /// Takes a process out of the list of its group.
    pub(super) fn leave_mates(&mut self, key: ProcKey, group: Option<GroupId>) {
        let Some(proc) = self.procs.get_mut(&key) else {
            return;
        };
        let Turn { previous, next } = core::mem::replace(&mut proc.mates, Turn::ALONE);
        if let Some(next) = next.and_then(|next| self.procs.get_mut(&next)) {
            next.mates.previous = previous;
        }
        match previous.and_then(|previous| self.procs.get_mut(&previous)) {
            Some(previous) => previous.mates.next = next,
            None => {
                if let Some(group) = group.and_then(|group| self.groups.get_mut(&group)) {
                    group.mates = next;
                }
            }
        }
        if let Some((group, _)) = self.plan.telling.filter(|(_, at)| *at == key) {
            self.plan.telling = next.map(|next| (group, next));
        }
    }

    /// The members of a group that have the driver open.
    pub(super) fn mates(&self, group: GroupId) -> impl Iterator<Item = ProcKey> + use<'_, 'a> {
        let mut at = self.groups.get(&group).and_then(|group| group.mates);
        (0..self.procs.len()).map_while(move |_| {
            let key = at?;
            at = self.mate_after(key);
            Some(key)
        })
    }

    /// The member behind another.
    pub(super) fn mate_after(&self, key: ProcKey) -> Option<ProcKey> {
        self.procs.get(&key)?.mates.next
    }

    /// The shares of a group's members have changed on a GPU.
    pub(super) fn shares_changed(&mut self, group: GroupId, gpu: GpuId) {
        if !self.sends_controls(gpu) {
            // Whoever sends asks for the limits in force.
            return;
        }
        let fresh = |group: &&mut crate::state::Group| !group.stale;
        if let Some(group) = self.groups.get_mut(&group).filter(fresh) {
            group.stale = true;
            self.plan.stale = self.plan.stale.saturating_add(1);
        }
    }

    /// Returns whether some group's members have to be looked at.
    pub(super) fn has_stale(&self) -> bool {
        self.plan.stale > 0 || self.plan.telling.is_some()
    }

    /// Compares some members of groups whose shares have changed with their limits.
    pub(super) fn look_at_mates(&mut self) {
        for _ in 0..MEMBERS_PER_STEP {
            if self.plan.telling.is_none() {
                self.plan.telling = self.next_stale();
            }
            let Some((group, key)) = self.plan.telling else {
                break;
            };
            self.plan.telling = self.mate_after(key).map(|next| (group, next));
            self.mark_proc(key, None);
        }
    }

    /// The next group whose shares have changed, and its first member.
    fn next_stale(&mut self) -> Option<(GroupId, ProcKey)> {
        for at in 0..self.groups.len() {
            if self.plan.stale == 0 {
                break;
            }
            let Some(id) = self.groups.key_at(at) else {
                continue;
            };
            let stale = |group: &&mut crate::state::Group| group.stale;
            let Some(group) = self.groups.get_mut(&id).filter(stale) else {
                continue;
            };
            group.stale = false;
            self.plan.stale = self.plan.stale.saturating_sub(1);
            if let Some(first) = group.mates {
                return Some((id, first));
            }
        }
        None
    }

    /// Is each process in the list of its group, linked both ways, and are stale groups counted?
    pub(crate) fn mates_are_sound(&self) -> bool {
        let linked = |(key, proc): (&ProcKey, &crate::state::Proc)| {
            let Some(group) = proc.group else {
                return proc.mates == Turn::ALONE;
            };
            let next = proc.mates.next.and_then(|next| self.procs.get(&next));
            let behind = next
                .is_none_or(|next| next.mates.previous == Some(*key) && next.group == Some(group));
            behind
                && proc.mates.next.is_some() == next.is_some()
                && self.mates(group).any(|mate| mate == *key)
        };
        let stale = self.groups.iter().filter(|(_, group)| group.stale);
        let telling = self.plan.telling;
        self.procs.iter().all(linked)
            && crate::table::count(stale) == self.plan.stale
            && telling.is_none_or(|(group, key)| self.group_of(key) == Some(group))
    }

    /// Returns whether a process is yet to be compared with a share that has changed.
    pub(crate) fn is_stale(&self, key: ProcKey) -> bool {
        let Some(id) = self.group_of(key) else {
            return false;
        };
        let telling = self.plan.telling.is_some_and(|(group, _)| group == id);
        telling || self.groups.get(&id).is_some_and(|group| group.stale)
    }
}
