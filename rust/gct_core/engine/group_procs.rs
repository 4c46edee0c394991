// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists the members of each group that have the driver open, and defers the comparison of their
//! shares.
//!
//! An ioctl may change the time slices of all members of its group. It only marks the group as
//! stale, in O(1). The work item compares the members later, so no ioctl pays for channel groups of
//! other processes.

use crate::ids::{GpuId, GroupId, ProcKey};
use crate::plan::ProcLinks;
use crate::state::State;

/// Members that are compared while the state's lock is held once.
const MEMBERS_PER_STEP: usize = 8;

impl<'a> State<'a> {
    /// Adds a process to the list of its group.
    pub(super) fn link_to_group(&mut self, key: ProcKey, group: Option<GroupId>) {
        let Some(group) = group.and_then(|group| self.groups.get_mut(&group)) else {
            return;
        };
        let next = group.first_proc.replace(key);
        if let Some(next) = next.and_then(|next| self.procs.get_mut(&next)) {
            next.group_links.previous = Some(key);
        }
        if let Some(proc) = self.procs.get_mut(&key) {
            proc.group_links = ProcLinks {
                previous: None,
                next,
            };
        }
    }

    /// Removes a process from the list of its group.
    pub(super) fn unlink_from_group(&mut self, key: ProcKey, group: Option<GroupId>) {
        let Some(proc) = self.procs.get_mut(&key) else {
            return;
        };
        let ProcLinks { previous, next } =
            core::mem::replace(&mut proc.group_links, ProcLinks::ALONE);
        if let Some(next) = next.and_then(|next| self.procs.get_mut(&next)) {
            next.group_links.previous = previous;
        }
        match previous.and_then(|previous| self.procs.get_mut(&previous)) {
            Some(previous) => previous.group_links.next = next,
            None => {
                if let Some(group) = group.and_then(|group| self.groups.get_mut(&group)) {
                    group.first_proc = next;
                }
            }
        }
        if let Some((group, _)) = self.plan.stale_cursor.filter(|(_, at)| *at == key) {
            self.plan.stale_cursor = next.map(|next| (group, next));
        }
    }

    /// Returns the members of a group that have the driver open.
    pub(super) fn procs_in_group(
        &self,
        group: GroupId,
    ) -> impl Iterator<Item = ProcKey> + use<'_, 'a> {
        let mut at = self.groups.get(&group).and_then(|group| group.first_proc);
        (0..self.procs.len()).map_while(move |_| {
            let key = at?;
            at = self.next_in_group(key);
            Some(key)
        })
    }

    /// Returns the next member of the same group.
    pub(super) fn next_in_group(&self, key: ProcKey) -> Option<ProcKey> {
        self.procs.get(&key)?.group_links.next
    }

    /// Marks a group as stale: the shares of its members have changed on a GPU.
    pub(super) fn shares_changed(&mut self, group: GroupId, gpu: GpuId) {
        if !self.sends_controls(gpu) {
            // The processes of the user-space mode read the limits in force themselves.
            return;
        }
        let fresh = |group: &&mut crate::records::Group| !group.stale;
        if let Some(group) = self.groups.get_mut(&group).filter(fresh) {
            group.stale = true;
            self.plan.stale += 1;
        }
    }

    /// Returns whether members of some group have yet to be compared.
    pub(super) fn has_stale(&self) -> bool {
        self.plan.stale.0 > 0 || self.plan.stale_cursor.is_some()
    }

    /// Marks the dirty subjects of up to [`MEMBERS_PER_STEP`] members of stale groups.
    pub(super) fn mark_stale_procs(&mut self) {
        for _ in 0..MEMBERS_PER_STEP {
            if self.plan.stale_cursor.is_none() {
                self.plan.stale_cursor = self.next_stale();
            }
            let Some((group, key)) = self.plan.stale_cursor else {
                break;
            };
            self.plan.stale_cursor = self.next_in_group(key).map(|next| (group, next));
            self.mark_proc(key, None);
        }
    }

    /// Takes the mark from a stale group. Returns the group and its first member.
    fn next_stale(&mut self) -> Option<(GroupId, ProcKey)> {
        for at in 0..self.groups.len() {
            if self.plan.stale.0 == 0 {
                break;
            }
            let Some(id) = self.groups.key_at(at) else {
                continue;
            };
            let stale = |group: &&mut crate::records::Group| group.stale;
            let Some(group) = self.groups.get_mut(&id).filter(stale) else {
                continue;
            };
            group.stale = false;
            self.plan.stale -= 1;
            if let Some(first) = group.first_proc {
                return Some((id, first));
            }
        }
        None
    }

    /// Returns whether each process is linked into its group's list, and stale groups are counted.
    pub(crate) fn group_procs_are_sound(&self) -> bool {
        let linked = |(key, proc): (&ProcKey, &crate::records::Proc)| {
            let Some(group) = proc.group else {
                return proc.group_links == ProcLinks::ALONE;
            };
            let next = proc.group_links.next.and_then(|next| self.procs.get(&next));
            let behind = next.is_none_or(|next| {
                next.group_links.previous == Some(*key) && next.group == Some(group)
            });
            behind
                && proc.group_links.next.is_some() == next.is_some()
                && self.procs_in_group(group).any(|mate| mate == *key)
        };
        let stale = self.groups.iter().filter(|(_, group)| group.stale);
        let cursor = self.plan.stale_cursor;
        self.procs.iter().all(linked)
            && crate::table::count(stale) == self.plan.stale.0
            && cursor.is_none_or(|(group, key)| self.group_of(key) == Some(group))
    }

    /// Returns whether a process may have yet to be compared.
    pub(crate) fn is_stale(&self, key: ProcKey) -> bool {
        let Some(id) = self.group_of(key) else {
            return false;
        };
        let cursor = self.plan.stale_cursor.is_some_and(|(group, _)| group == id);
        cursor || self.groups.get(&id).is_some_and(|group| group.stale)
    }
}
