// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Chooses victims by second chance (CLOCK), among the roots of whoever is over a limit.
//!
//! The roots of a process are a circular list with a hand, so are the members of a group:
//!
//! ```text
//! process over its limit:  look at the root under its hand, advance the hand
//! group over its limit:    look at one root of the member under its hand, advance both hands
//! look at a root:          leaving: next; used: not used any more, next; else: this one
//! ```
//!
//! A group's members take turns, whatever they hold, so moving a process to another group relinks
//! no root. A GPU's pages have no accessed bit: a root counts as used when UVM touches it.

use super::{Kind, Ledger, Pick, RootId, Slot, SlotId, LOOKS_MAX, NONE, ROOT};

impl Ledger<'_> {
    /// Chooses a root that has to leave before a process, or a group, may have one more. It never
    /// chooses a root of somebody outside of what is over its limit. The next call chooses another.
    pub fn pick(&mut self, slot: SlotId) -> Pick {
        let is_over = |slot: &Slot| !slot.fits(ROOT);
        let own = self.slot(slot).filter(|own| is_over(own)).map(|_| slot);
        let group = self.group_of(slot);
        let group = group.filter(|group| self.slot(*group).is_some_and(is_over));
        let Some(over) = own.or(group) else {
            return Pick::Any;
        };
        let mut fallback = Pick::Nothing;
        for _ in 0..LOOKS_MAX {
            let Some(root) = self.under_hand(over) else {
                if self.is_group(over) {
                    continue;
                }
                break;
            };
            match self.look(root) {
                Look::Cold => return Pick::Root(root),
                Look::Used => fallback = Pick::Root(root),
                Look::Leaving => {}
            }
        }
        fallback
    }

    /// Chooses a root of one process that `can_leave`, whatever its limits. The next call chooses
    /// another. The second round finds each root that the first one has marked as not used.
    pub fn pick_of(
        &mut self,
        slot: SlotId,
        mut can_leave: impl FnMut(RootId) -> bool,
    ) -> Option<RootId> {
        let roots = self.slot(slot)?.charge.roots;
        let looks = roots.saturating_mul(2).min(LOOKS_MAX);
        let mut fallback = None;
        for _ in 0..looks {
            let root = self.under_hand(slot)?;
            match self.look(root) {
                Look::Cold if can_leave(root) => return Some(root),
                Look::Used if can_leave(root) => fallback = Some(root),
                _ => {}
            }
        }
        fallback
    }

    /// Returns the root under the hand of a process, or of a group's next member, and advances.
    fn under_hand(&mut self, over: SlotId) -> Option<RootId> {
        let mut slot = self.slot_mut(over)?;
        if slot.kind == Kind::Group {
            let member = slot.hand;
            let next = self.slot(SlotId(member))?.next;
            self.slot_mut(over)?.hand = next;
            slot = self.slot_mut(SlotId(member))?;
        }
        let at = slot.hand;
        let next = self.root(RootId(at))?.next;
        let holder = self.holder(RootId(at))?;
        self.slot_mut(holder)?.hand = next;
        Some(RootId(at))
    }

    fn look(&mut self, root: RootId) -> Look {
        match self.root_mut(root) {
            Some(root) if !root.leaving => match core::mem::take(&mut root.used) {
                true => Look::Used,
                false => Look::Cold,
            },
            _ => Look::Leaving,
        }
    }

    /// Adds a free root to a process's list, just behind the hand: it is looked at last.
    pub(super) fn link_root(&mut self, slot: SlotId, root: RootId) {
        let Some(hand) = self.slot(slot).map(|slot| slot.hand) else {
            return;
        };
        let (next, prev) = match self.root(RootId(hand)) {
            Some(at) => (hand, at.prev),
            None => (root.0, root.0),
        };
        if let Some(new) = self.root_mut(root) {
            (new.holder, new.next, new.prev) = (slot.0, next, prev);
        }
        if let Some(prev) = self.root_mut(RootId(prev)) {
            prev.next = root.0;
        }
        if let Some(next) = self.root_mut(RootId(next)) {
            next.prev = root.0;
        }
        if let Some(slot) = self.slot_mut(slot).filter(|slot| slot.hand == NONE) {
            slot.hand = root.0;
        }
    }

    /// Removes a root from its holder's list.
    pub(super) fn unlink_root(&mut self, holder: SlotId, root: RootId) {
        let Some(old) = self.root_mut(root).map(core::mem::take) else {
            return;
        };
        if let Some(prev) = self
            .root_mut(RootId(old.prev))
            .filter(|_| old.prev != root.0)
        {
            prev.next = old.next;
        }
        if let Some(next) = self
            .root_mut(RootId(old.next))
            .filter(|_| old.next != root.0)
        {
            next.prev = old.prev;
        }
        let next = if old.next == root.0 { NONE } else { old.next };
        if let Some(slot) = self.slot_mut(holder).filter(|slot| slot.hand == root.0) {
            slot.hand = next;
        }
    }

    /// Adds a member to a group's list, just behind the hand.
    pub(super) fn link_member(&mut self, group: SlotId, member: SlotId) {
        let Some(hand) = self.slot(group).map(|group| group.hand) else {
            return;
        };
        let (next, prev) = match self.slot(SlotId(hand)) {
            Some(at) => (hand, at.prev),
            None => (member.0, member.0),
        };
        if let Some(new) = self.slot_mut(member) {
            (new.next, new.prev) = (next, prev);
        }
        if let Some(prev) = self.slot_mut(SlotId(prev)) {
            prev.next = member.0;
        }
        if let Some(next) = self.slot_mut(SlotId(next)) {
            next.prev = member.0;
        }
        if let Some(group) = self.slot_mut(group).filter(|group| group.hand == NONE) {
            group.hand = member.0;
        }
    }

    /// Removes a member from its group's list.
    pub(super) fn unlink_member(&mut self, group: SlotId, member: SlotId) {
        let Some(old) = self.slot_mut(member) else {
            return;
        };
        let (next, prev) = (old.next, old.prev);
        (old.next, old.prev) = (NONE, NONE);
        if let Some(prev) = self.slot_mut(SlotId(prev)).filter(|_| prev != member.0) {
            prev.next = next;
        }
        if let Some(after) = self.slot_mut(SlotId(next)).filter(|_| next != member.0) {
            after.prev = prev;
        }
        let next = if next == member.0 { NONE } else { next };
        if let Some(group) = self.slot_mut(group).filter(|group| group.hand == member.0) {
            group.hand = next;
        }
    }
}

/// What a look at a root has found.
enum Look {
    /// It was not used since the last look.
    Cold,
    /// It was.
    Used,
    /// It is being evicted.
    Leaving,
}
