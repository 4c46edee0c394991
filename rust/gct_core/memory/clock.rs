// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Chooses the root that an account gives up, by second chance (CLOCK).
//!
//! The roots of an account are a circular list with a hand:
//!
//! ```text
//! pick:  look at the root under the hand, advance the hand
//! look:  it cannot leave: next; used: not used any more, next; else: this one
//! ```
//!
//! A GPU's pages have no accessed bit: a root counts as used when UVM touches it.

use super::{Ledger, Root, RootId, SlotId, LOOKS_MAX, NONE};

impl Ledger<'_> {
    /// Chooses a root of an account that `can_leave`. The next call chooses another. The second
    /// round finds each root that the first one has marked as not used.
    pub fn pick(
        &mut self,
        slot: SlotId,
        mut can_leave: impl FnMut(RootId) -> bool,
    ) -> Option<RootId> {
        let looks = self.slot(slot)?.roots.saturating_mul(2).min(LOOKS_MAX);
        let mut fallback = None;
        for _ in 0..looks {
            let root = RootId(self.slot(slot)?.hand);
            let at = self.root_mut(root)?;
            let (was_used, next) = (core::mem::take(&mut at.used), at.next);
            self.slot_mut(slot)?.hand = next;
            if !can_leave(root) {
                continue;
            }
            if !was_used {
                return Some(root);
            }
            fallback = Some(root);
        }
        fallback
    }

    /// Adds a free root to an account's list, just behind the hand: it is looked at last.
    pub(super) fn link(&mut self, slot: SlotId, root: RootId) {
        let Some(account) = self.slot_mut(slot) else {
            return;
        };
        account.roots = account.roots.saturating_add(1);
        if account.hand == NONE {
            account.hand = root.0;
        }
        let hand = RootId(account.hand);
        let (next, prev) = match self.root(hand).filter(|_| hand != root) {
            Some(at) => (hand.0, at.prev),
            None => (root.0, root.0),
        };
        if let Some(new) = self.root_mut(root) {
            (new.holder, new.next, new.prev) = (slot.0, next, prev);
        }
        self.join(prev, root.0);
        self.join(root.0, next);
    }

    /// Removes a root from its holder's list.
    pub(super) fn unlink(&mut self, holder: SlotId, root: RootId) {
        let Some(Root { next, prev, .. }) = self.root_mut(root).map(core::mem::take) else {
            return;
        };
        let is_last = next == root.0;
        if !is_last {
            self.join(prev, next);
        }
        if let Some(account) = self.slot_mut(holder) {
            account.roots = account.roots.saturating_sub(1);
            if account.hand == root.0 {
                account.hand = if is_last { NONE } else { next };
            }
        }
    }

    /// Makes two roots neighbours in a list.
    fn join(&mut self, before: u32, after: u32) {
        if let Some(before) = self.root_mut(RootId(before)) {
            before.next = after;
        }
        if let Some(after) = self.root_mut(RootId(after)) {
            after.prev = before;
        }
    }
}
