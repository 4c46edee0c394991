// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which limits reach the channels of a channel group that several processes share.
//!
//! A client of MPS gives the server's channel group a name of its own (RM_DUP_OBJECT), and makes its compute channels
//! below that name. The resource manager lets nobody do so without the maker's consent (RM_SHARE).
//!
//! Terminology
//!   maker    the process that made the channel group, or whoever inherited it: the one that is charged
//!   sharer   a process that has channels in the group
//!
//! A channel group has one time slice, and the GPU runs it as a whole. On an H100 a frozen channel with an unfinished
//! kernel kept its whole group off the GPU. So:
//!
//! ```text
//! time slice of a group   = the maker's limit
//! a guest's time slice    binds if the maker's limit is as tight; else it cannot be set
//! freeze of a sharer      binds if all other sharers are frozen too; else its channels cannot be stopped
//! ```
//!
//! What cannot be limited is refused: the write that sets the limit, or the channel that is made under it.

use crate::ids::{GpuId, ProcKey};
use crate::objects::{Object, ObjectKey};
use crate::rmapi::Class;
use crate::settings::Settings;
use crate::state::State;

/// Names of a channel group, and objects below a name, that are looked at. A group has at most 128 channels.
const LOOKS_MAX: usize = 4096;

impl<'a> State<'a> {
    /// Returns whether a channel, there or to be made below `group`, can be kept to the limits of its process.
    pub(super) fn can_be_kept(
        &self,
        group: ObjectKey,
        proc: ProcKey,
        gpu: GpuId,
        limits: &Settings,
    ) -> bool {
        self.slice_binds(group, proc, gpu, limits) && self.may_freeze(group, proc, gpu, limits)
    }

    /// Returns whether a time slice of a process can bind its channels below a name of a channel group.
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

    /// Returns whether a freeze of a process may stop channels below a name of a channel group: it stops nobody else
    /// who is to run.
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

    /// Returns the name of a channel group below which a channel is.
    pub(super) fn group_of_channel(&self, key: ObjectKey, object: &Object) -> Option<ObjectKey> {
        let group = ObjectKey::new(key.space, object.parent);
        let above = self.objects.get(group)?;
        (object.class == Class::Channel && above.class == Class::ChannelGroup).then_some(group)
    }

    /// Returns the processes that have channels below the other names of a channel group.
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
