// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps the nodes of one tenant in slots that the caller may add to.
//!
//! ```text
//! slot      a node | the first node of the bucket with the slot's number | the next of its bucket
//! bucket    a hash of the address, as many as slots; two more are split off with each new node
//! ```
//!
//! A node stays in its slot, so lists name slots. All that is done with one node looks at the
//! [`CHAIN`] nodes of a bucket at most. Nothing walks all nodes: what is forgotten is told by its
//! era, and gives up its slot to the next node that needs one.

use super::{Memory, Node};
use crate::submit::join::Qmd;
use crate::submit::qmd::Version;
use crate::submit::reason::Reason;
use core::num::Wrapping;
use core::ops::DerefMut;

/// Nodes of one bucket. There is one for each bucket or fewer, and the hash has a key, so a full
/// bucket is no accident that happens. Its nodes give up their slots to each other.
const CHAIN: usize = 32;

/// Slots that are looked at when all are taken, for the node that was used longest ago. They lie
/// apart, because the nodes of one graph lie side by side.
const SWEEP: usize = 16;

/// Nodes that one [`Memory::keep_masks`] looks at.
pub(super) const LOOKS: usize = 4096;

/// 2^64 divided by the golden ratio (Knuth, volume 3, section 6.4: Fibonacci hashing).
const GOLDEN: Wrapping<u64> = Wrapping(0x9e37_79b9_7f4a_7c15);

/// Numbered items.
pub trait Table<T> {
    /// Returns how many there are. Their number may grow.
    fn count(&self) -> usize;

    /// Returns an item.
    fn at(&self, place: usize) -> Option<&T>;

    /// Returns an item for changes.
    fn at_mut(&mut self, place: usize) -> Option<&mut T>;
}

impl<T, D: DerefMut<Target = [T]>> Table<T> for D {
    fn count(&self) -> usize {
        self.len()
    }

    fn at(&self, place: usize) -> Option<&T> {
        self.get(place)
    }

    fn at_mut(&mut self, place: usize) -> Option<&mut T> {
        self.get_mut(place)
    }
}

/// Room for a node.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    pub(in crate::submit) node: Option<Node>,
    /// The first slot of the bucket.
    head: Link,
    /// The next slot of the node's bucket, or the next free one.
    next: Link,
}

impl Slot {
    /// A slot that was never used.
    pub const EMPTY: Self = Self {
        node: None,
        head: Link::NONE,
        next: Link::NONE,
    };
}

/// The number of a slot, plus one; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link(u32);

impl Link {
    const NONE: Self = Self(0);

    fn to(place: usize) -> Self {
        // CAST: a table has fewer than 2^32 slots.
        Self((Wrapping(place as u32) + Wrapping(1)).0)
    }

    fn place(self) -> Option<usize> {
        // CAST: widening.
        self.0.checked_sub(1).map(|place| place as usize)
    }
}

/// Where the nodes of a tenant are, and what was forgotten.
#[derive(Clone, Debug)]
pub struct Index {
    key: u64,
    /// The number of the last replay or kept node.
    pub(super) ticks: u32,
    /// Buckets that are in use, and a mask of as many bits as their numbers have.
    buckets: usize,
    mask: usize,
    /// Slots that were ever used, those of them that were given back, and nodes.
    used: usize,
    free: Link,
    nodes: usize,
    /// The slot where the next sweep begins.
    hand: usize,
    /// Nodes of an earlier era are forgotten, but for those that were silenced. The words of nodes
    /// from before `unseen` may have been replaced.
    era: u64,
    unseen: u64,
    /// The first slots whose nodes have no mask but their tenant's.
    unmasked: usize,
}

impl Index {
    /// Creates the index of an empty table. Who does not know `key` cannot tell which nodes share a
    /// bucket.
    pub const fn new(key: u64) -> Self {
        Self {
            key,
            ticks: 0,
            buckets: 1,
            mask: 0,
            used: 0,
            free: Link::NONE,
            nodes: 0,
            hand: 0,
            era: 0,
            unseen: 0,
            unmasked: 0,
        }
    }

    /// Returns how many nodes there are, those that were forgotten included.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    fn bucket(&self, va: u64) -> usize {
        let mixed = Wrapping(va >> 8) * Wrapping(self.key | 1);
        let mixed = (mixed ^ (mixed >> 32)) * GOLDEN;
        // CAST: as many bits as the mask has, which are mixed best in the upper half.
        let bucket = (mixed.0 >> 32) as usize & self.mask;
        match bucket < self.buckets {
            true => bucket,
            false => bucket & (self.mask >> 1),
        }
    }

    /// Returns whether a node counts.
    fn knows(&self, node: &Node) -> bool {
        node.silenced || node.era == self.era
    }

    /// Returns a node's number; 0 if its words are not kept, or may be others by now.
    pub(super) fn number_of(&self, node: &Node) -> u32 {
        match node.era < self.unseen {
            true => 0,
            false => node.number,
        }
    }

    /// Records that nodes may have got other masks.
    pub(super) fn masks_changed(&mut self) {
        self.unmasked = 0;
    }
}

impl<N: Table<Slot>, Q: Table<Qmd>> Memory<'_, N, Q> {
    fn any_node(&self, place: usize) -> Option<&Node> {
        self.slots.at(place)?.node.as_ref()
    }

    /// Returns the known node in a slot.
    pub(super) fn node(&self, place: usize) -> Option<&Node> {
        self.any_node(place).filter(|node| self.index.knows(node))
    }

    /// Returns it for changes.
    pub(super) fn node_mut(&mut self, place: usize) -> Option<&mut Node> {
        let node = self.slots.at_mut(place)?.node.as_mut()?;
        self.index.knows(node).then_some(node)
    }

    /// Returns the words of the node in a slot, if there is room for them.
    pub(super) fn qmd(&self, place: usize) -> Option<&Qmd> {
        self.qmds.as_ref()?.at(place)
    }

    /// Returns the slots of a bucket.
    fn chain(&self, bucket: usize) -> impl Iterator<Item = usize> + '_ {
        let mut next = self.slots.at(bucket).map_or(Link::NONE, |slot| slot.head);
        (0..CHAIN).map_while(move |_| {
            let place = next.place()?;
            next = self.slots.at(place)?.next;
            Some(place)
        })
    }

    /// Returns the slot of the node at an address, also of one that was forgotten.
    fn any_place_of(&self, va: u64) -> Option<usize> {
        let is_there = |place: &usize| self.any_node(*place).is_some_and(|node| node.va == va);
        self.chain(self.index.bucket(va)).find(is_there)
    }

    /// Returns the slot of the node at an address.
    pub(super) fn place_of(&self, va: u64) -> Option<usize> {
        let place = self.any_place_of(va)?;
        self.node(place).map(|_| place)
    }

    /// Returns the slots that were used. O(nodes).
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        0..self.index.used
    }

    /// Stores a node whose words are `qmd`. Without a free slot, where words are kept, it takes
    /// that of a node that was used longer ago than others.
    pub(super) fn insert(&mut self, node: Node, qmd: &[u32]) -> Result<(), Reason> {
        self.split_bucket();
        self.split_bucket();
        let place = match self.any_place_of(node.va) {
            Some(place) => place,
            None => self.place_for(node.va).ok_or(Reason::MemoryFull)?,
        };
        let number = self.keep(place, &node, qmd);
        let era = self.index.era;
        self.index.masks_changed();
        let slot = self.slots.at_mut(place).ok_or(Reason::MemoryFull)?;
        slot.node = Some(Node {
            number,
            era,
            ..node
        });
        Ok(())
    }

    /// Keeps the words of a node that goes into a slot. Returns its number, which is that of the
    /// node before if this is the same.
    fn keep(&mut self, place: usize, node: &Node, qmd: &[u32]) -> u32 {
        let before = self.node(place).filter(|before| before.va == node.va);
        let before = before.map_or(0, |before| self.index.number_of(before));
        let known = node.version == Version::V04_00;
        let qmd = qmd.first_chunk().filter(|_| known);
        let kept = self.qmds.as_mut().and_then(|qmds| qmds.at_mut(place));
        let Some((to, qmd)) = kept.zip(qmd) else {
            return 0;
        };
        let is_same = *to == *qmd;
        *to = *qmd;
        match before {
            number if is_same && number > 0 => number,
            _ => self.tick(),
        }
    }

    /// Takes a slot for a node at an address that has none.
    fn place_for(&mut self, va: u64) -> Option<usize> {
        let bucket = self.index.bucket(va);
        let mut length = Wrapping(0usize);
        self.chain(bucket).for_each(|_| length += 1);
        if length.0 >= CHAIN {
            let oldest = self.oldest(self.chain(bucket))?;
            self.remove(oldest);
        }
        let place = match self.free_slot() {
            Some(place) => place,
            None => {
                let oldest = self.sweep()?;
                self.remove(oldest);
                self.free_slot()?
            }
        };
        let head = self.slots.at_mut(bucket)?;
        let next = core::mem::replace(&mut head.head, Link::to(place));
        self.slots.at_mut(place)?.next = next;
        self.index.nodes = (Wrapping(self.index.nodes) + Wrapping(1)).0;
        Some(place)
    }

    /// Returns the slot of a node that may go, where all are taken.
    fn sweep(&mut self) -> Option<usize> {
        let count = self.slots.count();
        let hand = self.index.hand;
        self.index.hand = match (Wrapping(hand) + Wrapping(1)).0 {
            next if next < count => next,
            _ => 0,
        };
        let apart = (count / SWEEP).max(1);
        let swept = (0..SWEEP.min(count)).map(|at| {
            let place = (Wrapping(hand) + Wrapping(at) * Wrapping(apart)).0;
            match place < count {
                true => place,
                false => (Wrapping(place) - Wrapping(count)).0,
            }
        });
        self.oldest(swept)
    }

    /// Takes a slot out of those that are free.
    fn free_slot(&mut self) -> Option<usize> {
        match self.index.free.place() {
            Some(place) => {
                self.index.free = self.slots.at(place)?.next;
                Some(place)
            }
            None => {
                let place = self.index.used;
                self.slots.at(place)?;
                self.index.used = (Wrapping(place) + Wrapping(1)).0;
                Some(place)
            }
        }
    }

    /// Removes the node in a slot.
    pub(super) fn remove(&mut self, place: usize) {
        let Some(node) = self.any_node(place) else {
            return;
        };
        let bucket = self.index.bucket(node.va);
        let before = self.chain(bucket).take_while(|at| *at != place).last();
        let Some(slot) = self.slots.at_mut(place) else {
            return;
        };
        slot.node = None;
        let next = core::mem::replace(&mut slot.next, self.index.free);
        self.index.free = Link::to(place);
        self.index.nodes = (Wrapping(self.index.nodes) - Wrapping(1)).0;
        let link = match before {
            Some(before) => self.slots.at_mut(before).map(|slot| &mut slot.next),
            None => self.slots.at_mut(bucket).map(|slot| &mut slot.head),
        };
        if let Some(link) = link {
            *link = next;
        }
    }

    /// Divides a bucket, unless there is one for each slot.
    fn split_bucket(&mut self) {
        let new = self.index.buckets;
        if self.slots.at(new).is_none() {
            return;
        }
        if new > self.index.mask {
            self.index.mask = self.index.mask << 1 | 1;
        }
        self.index.buckets = (Wrapping(new) + Wrapping(1)).0;
        let old = new & (self.index.mask >> 1);
        let Some(slot) = self.slots.at_mut(old) else {
            return;
        };
        let mut next = core::mem::replace(&mut slot.head, Link::NONE);
        for _ in 0..CHAIN {
            let Some(place) = next.place() else { break };
            let bucket = self.any_node(place).map(|node| self.index.bucket(node.va));
            let head = bucket.and_then(|bucket| self.slots.at_mut(bucket));
            let head = head.map(|slot| core::mem::replace(&mut slot.head, Link::to(place)));
            let (Some(head), Some(slot)) = (head, self.slots.at_mut(place)) else {
                break;
            };
            next = core::mem::replace(&mut slot.next, head);
        }
    }

    /// Returns the slot of the node that was used longest ago, of those that may go. A node that
    /// waits for decrements stays: those of calls would be taken for a companion's. Where no words
    /// are kept, only what was forgotten goes.
    fn oldest(&self, places: impl Iterator<Item = usize>) -> Option<usize> {
        let now = Wrapping(self.index.ticks);
        let age = |place: usize| {
            let node = self.any_node(place)?;
            if !self.index.knows(node) {
                return Some((u32::MAX, place));
            }
            let used = [node.number, node.reached].map(|used| (now - Wrapping(used)).0);
            let goes = self.qmd(place).is_some() && node.counter == 0;
            goes.then_some((used[0].min(used[1]), place))
        };
        places.filter_map(age).max().map(|(_, place)| place)
    }

    /// Forgets all nodes, because any may have been stored anew where nobody saw it. A replay of
    /// one whose call was taken out is known still, and cannot be listed.
    pub fn forget_unseen(&mut self) {
        self.forget_scheduled();
        self.index.unseen = self.index.era;
    }

    /// Forgets the nodes that the scheduler starts, because it is not known which masks they hold.
    pub fn forget_scheduled(&mut self) {
        self.index.era = self.index.era.wrapping_add(1);
    }

    /// Returns whether a node that `holds` a mask may be there. Looks at some nodes at a time, and
    /// says that one may until it has seen all since the last change of a mask.
    pub(super) fn may_hold(&mut self, holds: impl Fn(&Node) -> bool) -> bool {
        let from = self.index.unmasked;
        let left = (Wrapping(self.index.used) - Wrapping(from)).0;
        for place in from..(Wrapping(from) + Wrapping(left.min(LOOKS))).0 {
            if self.node(place).is_some_and(&holds) {
                return true;
            }
            self.index.unmasked = (Wrapping(place) + Wrapping(1)).0;
        }
        left > LOOKS
    }
}

#[cfg(test)]
mod tests;
