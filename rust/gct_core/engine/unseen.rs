// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Remembers which channels may have registers that nobody saw.
//!
//! The channels of a channel group have one context. With relative addresses, or methods that
//! replay their shadow, later launches of the group are others than those that were scanned.
//!
//! ```text
//! unseen group    a channel with its tenant's ring was in it, or an owned one while its process
//!                 ran words that nobody saw; until the group goes
//! unseen channel  a channel of such a group, or alone. It is counted, and its owner permissive
//! ```
//!
//! What a process does concerns its own names of a channel group, and what is duplicated from
//! those: clients of MPS have the server's group, and a context share each.

use super::sharers::LOOKS_MAX;
use crate::account::Amount;
use crate::ids::{GpuId, Owner, ProcKey};
use crate::objects::{List, Object, ObjectKey};
use crate::rmapi::Class;
use crate::state::State;

impl State<'_> {
    /// Returns whether an owner has channels whose registers nobody saw.
    pub(super) fn has_unseen(&self, owner: Owner, gpu: GpuId) -> bool {
        let pool = self.pools.get(&(owner, gpu));
        pool.is_some_and(|pool| pool.usage.now().unseen_channels > 0)
    }

    /// Returns whether nobody saw what the registers of a channel group are.
    pub(super) fn is_unseen(&self, group: ObjectKey) -> bool {
        self.objects.get(group).is_some_and(|group| group.is_unseen)
    }

    /// Remembers that an object which is gone has left its registers, if it was a channel with its
    /// tenant's ring.
    pub(super) fn native_registers_stay(&mut self, gone: &Object) {
        if gone.charged.native_channels == 0 {
            return;
        }
        if let Some(space) = self.objects.space(gone.file, gone.client) {
            self.unseen_from_now(ObjectKey::new(space, gone.parent));
        }
    }

    /// Remembers that owned channels of a process have run words that nobody saw: any of them may
    /// have. O(its channels).
    pub(super) fn owned_registers_unseen(&mut self, proc: ProcKey, gpu: GpuId) {
        let Some(space) = self.procs.get(&proc).map(|proc| proc.space) else {
            return;
        };
        for list in List::OF_PROC {
            let mut next = self.objects.first(space, list);
            while let Some(key) = next {
                next = self.objects.behind(space, list, key);
                let owned = self.objects.get(key).copied().filter(|object| {
                    let is_owned = object.charged.native_channels == 0;
                    object.class == Class::Channel && object.gpu == Some(gpu) && is_owned
                });
                match owned.map(|owned| self.group_of_channel(key, &owned)) {
                    Some(Some(group)) => self.unseen_from_now(group),
                    Some(None) => self.charge_unseen(key),
                    None => {}
                }
            }
        }
    }

    /// Remembers that nobody saw what the registers of a channel group are.
    fn unseen_from_now(&mut self, group: ObjectKey) {
        let known = self.objects.get(group);
        let Some(known) = known.filter(|it| it.class == Class::ChannelGroup && !it.is_unseen)
        else {
            return;
        };
        let proc = self.proc_of(known);
        let mut alias = group;
        for _ in 0..LOOKS_MAX {
            let is_own = |object: &Object| self.proc_of(object) == proc;
            if self.objects.get(alias).is_some_and(is_own) {
                self.unseen_below(alias);
            }
            alias = self.objects.next_alias(alias);
            if alias == group {
                return;
            }
        }
    }

    fn unseen_below(&mut self, group: ObjectKey) {
        if let Some(object) = self.objects.get_mut(group) {
            object.is_unseen = true;
        }
        let mut at = self.objects.child_of(group);
        for _ in 0..LOOKS_MAX {
            let Some(key) = at else { break };
            self.charge_unseen(key);
            at = self.objects.sibling_of(key);
        }
    }

    fn charge_unseen(&mut self, channel: ObjectKey) {
        let charged = self.charge_channel(channel, Amount::UNSEEN, |charged| {
            charged.channels > charged.unseen_channels
        });
        if let Some((object, charged)) = self.objects.get_mut(channel).zip(charged) {
            object.charged.unseen_channels = charged.unseen_channels;
        }
    }
}
