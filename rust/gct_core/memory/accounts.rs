// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Ties slots to the processes that hold their roots, and finds the sums that have changed.
//!
//! A process has one slot on each of its GPUs, its account. All its address spaces there use it,
//! however many it opens. If the last of them closes while an eviction still works on one of their
//! roots, the slot stays in use until that root has another holder.
//!
//! Accounts are divided among payers: groups, and users of processes without a group.
//!
//! ```text
//! a payer may open one more if  PART_FREE * its accounts < free accounts
//! ```
//!
//! So one payer has a quarter of all accounts at most, and `n` greedy payers leave `(3/4)^n`.
//!
//! Roots change hands under a spinlock. Their sums are reported later, by a thread that may sleep:
//!
//! ```text
//! take, take_table, drop_root   the sums of both accounts are stale
//! next_stale        a stale account
//! report            its owner, and its bytes now: not stale any more
//! ```
//!
//! Under a limit the sum is charged before it grows:
//!
//! ```text
//! reserve           its owner, and its bytes with one root more. The caller charges them
//!     cancel        the limit refuses them, or no root was found
//!     take          the reservation becomes a root: the sum does not change
//! victim            an account that has to give up a root
//! pick              its root that leaves
//! ```
//!
//! The evictor makes room for accounts ahead of their next reservations
//! ([`ahead`](crate::policy::ahead)):
//!
//! ```text
//! entitle           the account gets credit, and waits for the evictor
//! wait              it waits again, if it has credit
//! next_waiting      an account for which the evictor makes room
//!     spend         a root leaves for it
//!     rest          there is room enough, or none can be made: it waits no more
//! ```

use super::{Ledger, RootId, SlotId};
use crate::units::Bytes;

/// How many times a payer's accounts must be free before it opens one more.
const PART_FREE: usize = 3;

/// An account.
#[derive(Clone, Copy, Debug)]
pub struct Account<T> {
    /// Who is told of its sum; `None` if there is no address space.
    owner: Option<T>,
    /// How many address spaces use it.
    spaces: u32,
    is_stale: bool,
    /// How often its slot was opened.
    opened: u32,
    /// Roots that may be evicted ahead for it.
    credit: u32,
    /// Whether it waits for the evictor.
    is_waiting: bool,
}

/// What an account is charged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    /// All roots, held and reserved.
    pub charge: Bytes,
    /// The part of it that is for page tables.
    pub tables: Bytes,
}

/// An account that has to give up a root: its slot, and how often the slot was opened. So nobody
/// who gets the slot meanwhile is the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim(pub u32);

impl Victim {
    /// Bits of the slot's number. Slot 0 is nobody's, so no victim is 0.
    const SLOT_BITS: u32 = 12;

    const fn new(slot: SlotId, opened: u32) -> Self {
        Self(slot.0 | (opened << Self::SLOT_BITS))
    }

    const fn slot(self) -> SlotId {
        SlotId(self.0 & ((1 << Self::SLOT_BITS) - 1))
    }
}

impl<T> Default for Account<T> {
    fn default() -> Self {
        Self {
            owner: None,
            spaces: 0,
            is_stale: false,
            opened: 0,
            credit: 0,
            is_waiting: false,
        }
    }
}

/// The accounts of one GPU's ledger: one for each of its slots. Slot 0 is nobody's.
#[derive(Debug)]
pub struct Accounts<'a, T> {
    ledger: Ledger<'a>,
    all: &'a mut [Account<T>],
}

impl<'a, T: Copy> Accounts<'a, T> {
    /// Uses the caller's tables.
    pub fn new(ledger: Ledger<'a>, all: &'a mut [Account<T>]) -> Self {
        Self { ledger, all }
    }

    /// Returns the ledger.
    pub fn ledger(&self) -> &Ledger<'a> {
        &self.ledger
    }

    fn account_mut(&mut self, slot: SlotId) -> Option<&mut Account<T>> {
        self.all.get_mut(slot.0 as usize)
    }

    /// Returns the owner of an open account.
    pub fn owner(&self, slot: SlotId) -> Option<T> {
        self.all.get(slot.0 as usize)?.owner
    }

    fn slots(&self) -> u32 {
        u32::try_from(self.all.len()).unwrap_or(u32::MAX)
    }

    /// Adds an address space to the open account whose owner `is_own` names, if there is one.
    pub fn join(&mut self, is_own: impl Fn(&T) -> bool) -> Option<SlotId> {
        let is_own = |account: &Account<T>| account.owner.as_ref().is_some_and(&is_own);
        let mut accounts = self.all.iter_mut().zip(0u32..);
        let (account, slot) = accounts.find(|(account, _)| is_own(account))?;
        account.spaces = account.spaces.saturating_add(1);
        Some(SlotId(slot))
    }

    /// Opens an account for one address space. Returns `None` if all are in use, or if its payer
    /// has its part of them. `is_same` returns whether an owner has that payer. Looks at each
    /// account in turn.
    pub fn open(&mut self, owner: T, is_same: impl Fn(&T) -> bool) -> Option<SlotId> {
        let accounts = self.all.iter().skip(1);
        let (mut same, mut free) = (0usize, 0usize);
        for account in accounts {
            match &account.owner {
                Some(owner) => same = same.saturating_add(usize::from(is_same(owner))),
                None => free = free.saturating_add(1),
            }
        }
        if same.saturating_mul(PART_FREE) >= free {
            return None;
        }
        let slots = self.slots();
        let free = (1..slots)
            .map(SlotId)
            .find(|slot| self.ledger.open(*slot))?;
        if let Some(account) = self.account_mut(free) {
            *account = Account {
                owner: Some(owner),
                spaces: 1,
                opened: account.opened.wrapping_add(1),
                ..Account::default()
            };
        }
        Some(free)
    }

    /// Takes an address space out of an account. Closes the account with the last, and returns its
    /// owner. Its slot can be opened again when it holds no root.
    pub fn close(&mut self, slot: SlotId) -> Option<T> {
        let account = self.account_mut(slot)?;
        account.spaces = account.spaces.saturating_sub(1);
        if account.spaces > 0 {
            return None;
        }
        let owner = account.owner.take();
        (account.is_stale, account.is_waiting) = (false, false);
        self.ledger.cancel(slot, u32::MAX);
        self.ledger.close(slot);
        owner
    }

    /// Reserves a root for an open account. Returns its owner, and its bytes with that root, which
    /// the caller charges. Returns `None` if the account is not open: nobody is charged.
    pub fn reserve(&mut self, slot: SlotId) -> Option<(T, Bytes)> {
        let owner = self.owner(slot)?;
        if !self.ledger.reserve(slot) {
            return None;
        }
        Some((owner, self.sums(slot)?.charge))
    }

    /// Gives a reserved root back.
    pub fn cancel(&mut self, slot: SlotId) {
        self.ledger.cancel(slot, 1);
        self.changed(slot);
    }

    /// Gives a root to an open account, which consumes a reservation if it has one. Any other slot
    /// leaves the root free.
    pub fn take(&mut self, slot: SlotId, root: RootId) {
        self.take_by(Ledger::take, slot, root);
    }

    /// Gives a root for page tables to an open account, like [`Accounts::take`].
    pub fn take_table(&mut self, slot: SlotId, root: RootId) {
        self.take_by(Ledger::take_table, slot, root);
    }

    fn take_by(
        &mut self,
        take: fn(&mut Ledger<'a>, SlotId, RootId) -> bool,
        slot: SlotId,
        root: RootId,
    ) {
        if self.owner(slot).is_none() {
            return self.drop_root(root);
        }
        let from = self.ledger.holder(root);
        let before = self.sums(slot);
        take(&mut self.ledger, slot, root);
        if before != self.sums(slot) {
            self.changed(slot);
        }
        if from != Some(slot) {
            self.left(from);
        }
    }

    fn sums(&self, slot: SlotId) -> Option<Sums> {
        self.ledger.slot(slot).map(|slot| Sums {
            charge: slot.charge(),
            tables: slot.tables(),
        })
    }

    /// Returns the account that has to give up a root: of those that `is_candidate` names and that
    /// hold roots, the one after `hand`, which then stands at it. After `tried` of them could give
    /// up none, returns the next one, or `None` when all were tried.
    pub fn victim(
        &self,
        hand: &mut SlotId,
        tried: u32,
        is_candidate: impl Fn(&T) -> bool,
    ) -> Option<Victim> {
        let slots = self.slots();
        let from = hand.0.min(slots);
        // A circle: the hand's own place comes last, or was tried first.
        let until = if tried == 0 {
            from.saturating_add(1)
        } else {
            from
        };
        let circle = (from.saturating_add(1)..slots).chain(0..until.min(slots));
        let mut candidates = circle.map(SlotId).filter(|slot| {
            let account = self.ledger.slot(*slot);
            account.is_some_and(|account| account.roots() > 0)
                && self.owner(*slot).is_some_and(|owner| is_candidate(&owner))
        });
        let skipped = usize::try_from(tried.saturating_sub(1)).ok()?;
        let found = candidates.nth(skipped)?;
        if tried == 0 {
            *hand = found;
        }
        let opened = self.all.get(found.0 as usize)?.opened;
        Some(Victim::new(found, opened))
    }

    /// Chooses a root that the victim gives up, among those that can leave.
    pub fn pick(
        &mut self,
        victim: Victim,
        can_leave: impl FnMut(RootId) -> bool,
    ) -> Option<RootId> {
        self.owner_of_victim(victim)?;
        self.ledger.pick(victim.slot(), can_leave)
    }

    /// Records that an open account uses a root of its own.
    pub fn set_used(&mut self, root: RootId, used: bool) {
        self.ledger.set_used(root, used);
    }

    /// Returns the owner of a victim, if it still has the account.
    pub fn owner_of_victim(&self, victim: Victim) -> Option<T> {
        let slot = victim.slot();
        let opened = self.all.get(slot.0 as usize)?.opened;
        self.owner(slot)
            .filter(|_| Victim::new(slot, opened) == victim)
    }

    /// Returns the owner of the account that holds a root.
    pub fn owner_of(&self, root: RootId) -> Option<T> {
        self.owner(self.ledger.holder(root)?)
    }

    /// Makes a root free.
    pub fn drop_root(&mut self, root: RootId) {
        let from = self.ledger.holder(root);
        self.ledger.drop_root(root);
        self.left(from);
    }

    fn left(&mut self, from: Option<SlotId>) {
        match from {
            Some(slot) if self.owner(slot).is_some() => self.changed(slot),
            // The slot is free with its last root.
            Some(slot) => drop(self.ledger.close(slot)),
            None => {}
        }
    }

    /// Lets an open account have so many roots evicted ahead, and has it wait for that.
    pub fn entitle(&mut self, slot: SlotId, roots: u32) {
        if let Some(account) = self.account_mut(slot) {
            account.credit = account.credit.max(roots);
        }
        self.wait(slot);
    }

    /// Has an open account wait for the evictor, if it has credit.
    pub fn wait(&mut self, slot: SlotId) {
        if let Some(account) = self.account_mut(slot) {
            account.is_waiting = account.credit > 0 && account.owner.is_some();
        }
    }

    /// Returns whether an account may have roots evicted ahead.
    pub fn has_credit(&self, slot: SlotId) -> bool {
        let account = self.all.get(slot.0 as usize);
        account.is_some_and(|account| account.credit > 0)
    }

    /// Returns the next account in turn that waits for the evictor, after `last`.
    pub fn next_waiting(&self, last: SlotId) -> Option<SlotId> {
        let (slots, last) = (self.slots(), last.0.min(self.slots()));
        let circle = (last.saturating_add(1)..slots).chain(0..last.saturating_add(1).min(slots));
        circle.map(SlotId).find(|slot| {
            let account = self.all.get(slot.0 as usize);
            account.is_some_and(|account| account.is_waiting)
        })
    }

    /// Takes a root of an account's credit, before one is evicted ahead for it. With the last one
    /// the account waits no more.
    pub fn spend(&mut self, slot: SlotId) {
        if let Some(account) = self.account_mut(slot) {
            account.credit = account.credit.saturating_sub(1);
            account.is_waiting &= account.credit > 0;
        }
    }

    /// Has an account wait no more.
    pub fn rest(&mut self, slot: SlotId) {
        if let Some(account) = self.account_mut(slot) {
            account.is_waiting = false;
        }
    }

    /// Marks the sum of an account as stale.
    pub fn changed(&mut self, slot: SlotId) {
        if let Some(account) = self.account_mut(slot) {
            account.is_stale = account.owner.is_some();
        }
    }

    /// Returns whether the sum of an account is stale.
    pub fn is_stale(&self, slot: SlotId) -> bool {
        let account = self.all.get(slot.0 as usize);
        account.is_some_and(|account| account.is_stale)
    }

    /// Returns the first stale account from this slot on.
    pub fn next_stale(&self, from: SlotId) -> Option<SlotId> {
        let slots = self.all.iter().zip(0u32..).skip(from.0 as usize);
        let mut stale = slots.filter(|(account, _)| account.is_stale);
        stale.next().map(|(_, number)| SlotId(number))
    }

    /// Returns the owner of a stale account and its sums, and marks it as reported.
    pub fn report(&mut self, slot: SlotId) -> Option<(T, Sums)> {
        let account = self.account_mut(slot)?;
        if !core::mem::take(&mut account.is_stale) {
            return None;
        }
        let owner = account.owner?;
        Some((owner, self.sums(slot)?))
    }
}

#[cfg(test)]
mod tests;
