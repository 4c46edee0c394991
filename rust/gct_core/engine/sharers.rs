// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which limits reach the channels of a channel group that several processes share.
//!
//! An MPS client gives the server's channel group an alias of its own (RM_DUP_OBJECT), and creates
//! its compute channels below that alias. RM requires the maker's consent (RM_SHARE).
//!
//! ```text
//! maker    the process that created the channel group, or its successor: the one that is charged
//! sharer   a process with channels in the group
//! guest    a sharer that is not the maker
//! ```
//!
//! A channel group has one time slice, and the GPU runs it as a whole. On an H100 a frozen channel
//! with an unfinished kernel kept its whole group off the GPU. So:
//!
//! ```text
//! time slice of the group  the maker's limit
//! a guest's time slice     in force if the maker's limit is as tight, else impossible
//! freeze of a sharer       in force if all other sharers are frozen too, else impossible
//! pause of an owner        in force where all sharers are that owner's
//! ```
//!
//! A write of an impossible limit is refused. So is the creation of a channel under one. When the
//! maker's limits change, `mark_guests` makes the guests' channels dirty, because a time slice of
//! theirs may have become impossible or possible.

use crate::ids::{GpuId, Owner, ProcKey};
use crate::objects::{Object, ObjectKey};
use crate::rmapi::Class;
use crate::settings::Settings;
use crate::state::State;

/// Maximum number of aliases of a group, and of objects below an alias, that a walk visits. A group
/// has at most 128 channels.
pub(super) const LOOKS_MAX: usize = 4096;

impl<'a> State<'a> {
    /// Returns whether the limits of a process can be enforced on a channel below `group`.
    pub(super) fn can_be_kept(
        &self,
        group: ObjectKey,
        proc: ProcKey,
        gpu: GpuId,
        limits: &Settings,
    ) -> bool {
        self.slice_binds(group, proc, gpu, limits) && self.may_freeze(group, proc, gpu, limits)
    }

    /// Returns whether a channel group was made by another process than `proc`.
    pub(super) fn is_made_by_another(&self, group: ObjectKey, proc: ProcKey) -> bool {
        let maker = self.objects.get(self.objects.primary_alias(group));
        maker.is_some_and(|maker| self.proc_of(maker) != Some(proc))
    }

    /// Returns whether a process's time slice can be in force for its channels below an alias.
    pub(super) fn slice_binds(
        &self,
        group: ObjectKey,
        proc: ProcKey,
        gpu: GpuId,
        limits: &Settings,
    ) -> bool {
        let Some(own) = limits.timeslice else {
            return true;
        };
        let maker = self.objects.get(self.objects.primary_alias(group));
        let maker = maker.and_then(|maker| self.proc_of(maker));
        let Some(maker) = maker.filter(|maker| *maker != proc) else {
            return true;
        };
        let theirs = self.effective(maker, gpu).timeslice;
        theirs.is_some_and(|theirs| theirs <= own)
    }

    /// Returns whether a freeze of a process may stop its channels below an alias: it stops no
    /// other sharer that should run.
    pub(super) fn may_freeze(
        &self,
        group: ObjectKey,
        proc: ProcKey,
        gpu: GpuId,
        limits: &Settings,
    ) -> bool {
        !limits.freeze
            || self
                .sharers(group)
                .filter(|sharer| *sharer != proc)
                .all(|sharer| self.effective(sharer, gpu).freeze)
    }

    /// Returns whether a channel is to be off the GPU because its owner pauses.
    pub(super) fn pauses(
        &self,
        key: ObjectKey,
        object: &Object,
        proc: ProcKey,
        gpu: GpuId,
    ) -> bool {
        let group = self.group_of(proc).map(Owner::Group);
        let owners = [Some(Owner::Proc(proc)), group];
        let has_all = |owner: &Owner| {
            let shared = self.group_of_channel(key, object);
            let of_owner = |sharer: ProcKey| match owner {
                Owner::Proc(proc) => sharer == *proc,
                Owner::Group(group) => self.group_of(sharer) == Some(*group),
            };
            shared.is_none_or(|shared| self.sharers(shared).all(of_owner))
        };
        let mut pausing = owners.iter().flatten();
        pausing.any(|owner| self.is_pause_of(*owner, gpu) && has_all(owner))
    }

    /// Returns the alias of the channel group that is a channel's parent.
    pub(super) fn group_of_channel(&self, key: ObjectKey, object: &Object) -> Option<ObjectKey> {
        let group = ObjectKey::new(key.space, object.parent);
        let above = self.objects.get(group)?;
        (object.class == Class::Channel && above.class == Class::ChannelGroup).then_some(group)
    }

    /// Marks the channels of a channel group's guests. Their time slice may be in force no longer,
    /// or again, because the maker's has changed.
    pub(super) fn mark_guests(&mut self, group: ObjectKey) {
        let Some(maker) = self
            .objects
            .get(group)
            .and_then(|object| self.proc_of(object))
        else {
            return;
        };
        let mut alias = self.objects.next_alias(group);
        for _ in 0..LOOKS_MAX {
            if alias == group {
                return;
            }
            let proc = self
                .objects
                .get(alias)
                .and_then(|object| self.proc_of(object));
            let mut at = self.objects.child_of(alias).filter(|_| proc != Some(maker));
            for _ in 0..LOOKS_MAX {
                let Some(key) = at else { break };
                self.mark_if_dirty(key);
                at = self.objects.sibling_of(key);
            }
            alias = self.objects.next_alias(alias);
        }
    }

    /// Returns the processes with channels below the other aliases of a channel group.
    fn sharers(&self, group: ObjectKey) -> impl Iterator<Item = ProcKey> + use<'_, 'a> {
        let mut at = group;
        let others = (0..LOOKS_MAX).map_while(move |_| {
            at = self.objects.next_alias(at);
            (at != group).then_some(at)
        });
        others
            .filter(|name| self.has_channel(*name))
            .filter_map(|name| self.proc_of(self.objects.get(name)?))
    }

    fn has_channel(&self, group: ObjectKey) -> bool {
        let mut at = self.objects.child_of(group);
        let below = (0..LOOKS_MAX).map_while(move |_| {
            let key = at?;
            at = self.objects.sibling_of(key);
            self.objects.get(key)
        });
        below
            .into_iter()
            .any(|object| object.class == Class::Channel)
    }
}
