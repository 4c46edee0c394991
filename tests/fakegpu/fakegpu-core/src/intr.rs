// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Models the CPU interrupt tree.
//!
//! An interrupt vector is one bit of a leaf register. Two leaves form a subtree, and each subtree
//! is one bit of the top register. The device sends a message when an enabled leaf bit is pending
//! under an enabled top bit.

use crate::bits::low_u32;
use crate::platform::Interrupts;
use crate::regs::*;
use std::sync::Arc;

/// Leaf registers.
const LEAVES: usize = 16;
/// Leaves per bit of the top register.
const LEAVES_PER_SUBTREE: usize = 2;
/// Number of vectors.
pub const VECTORS: u32 = 32 * NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF::COUNT;
/// The device's only message.
const MESSAGE: u32 = 0;

/// The tree and its connection to the guest.
pub struct InterruptTree {
    leaf: [u32; LEAVES],
    leaf_enable: [u32; LEAVES],
    top_enable: u32,
    was_pending: bool,
    messages: u64,
    interrupts: Arc<dyn Interrupts>,
}

impl InterruptTree {
    /// Creates a tree with everything disabled.
    pub fn new(interrupts: Arc<dyn Interrupts>) -> Self {
        Self {
            leaf: [0; LEAVES],
            leaf_enable: [0; LEAVES],
            top_enable: 0,
            was_pending: false,
            messages: 0,
            interrupts,
        }
    }

    /// Disables and clears everything.
    pub fn reset(&mut self) {
        *self = Self::new(self.interrupts.clone());
    }

    /// Makes `vector` pending. Vectors beyond the tree are ignored.
    pub fn trigger(&mut self, vector: u32) {
        // CAST: at most 2^27.
        if let Some(leaf) = self.leaf.get_mut((vector / 32) as usize) {
            *leaf |= 1 << (vector % 32);
            self.deliver(true);
        }
    }

    /// Returns the number of messages sent since reset.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Reads the register at `offset`, if it is one of the tree's.
    pub fn read(&self, offset: u32) -> Option<u32> {
        type Leaf = NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF;
        type LeafEnSet = NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF_EN_SET;
        type LeafEnClear = NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF_EN_CLEAR;
        if let Some(index) = Leaf::index(offset) {
            return self.leaf.get(index).copied();
        }
        if let Some(index) = LeafEnSet::index(offset).or(LeafEnClear::index(offset)) {
            return self.leaf_enable.get(index).copied();
        }
        match offset {
            NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_TOP::OFFSET => Some(self.top()),
            NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_TOP_EN_SET::OFFSET
            | NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_TOP_EN_CLEAR::OFFSET => Some(self.top_enable),
            NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF_TRIGGER::OFFSET => Some(0),
            _ => None,
        }
    }

    /// Writes the register at `offset`. Returns whether it is one of the
    /// tree's.
    pub fn write(&mut self, offset: u32, value: u32) -> bool {
        type Leaf = NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF;
        type LeafEnSet = NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF_EN_SET;
        type LeafEnClear = NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF_EN_CLEAR;
        if let Some(leaf) = Leaf::index(offset).and_then(|index| self.leaf.get_mut(index)) {
            *leaf &= !value;
            self.deliver(false);
        } else if let Some(enable) =
            LeafEnSet::index(offset).and_then(|index| self.leaf_enable.get_mut(index))
        {
            *enable |= value;
            self.deliver(false);
        } else if let Some(enable) =
            LeafEnClear::index(offset).and_then(|index| self.leaf_enable.get_mut(index))
        {
            *enable &= !value;
            self.deliver(false);
        } else {
            return self.write_top(offset, value);
        }
        true
    }

    fn write_top(&mut self, offset: u32, value: u32) -> bool {
        match offset {
            NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_TOP::OFFSET => {}
            NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_TOP_EN_SET::OFFSET => {
                self.top_enable |= value;
                // The driver disables the top register while it serves interrupts and enables it
                // again afterwards. What became pending meanwhile counts as new.
                self.deliver(true);
            }
            NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_TOP_EN_CLEAR::OFFSET => {
                self.top_enable &= !value;
                self.deliver(false);
            }
            NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF_TRIGGER::OFFSET => self.trigger(value),
            _ => return false,
        }
        true
    }

    /// Returns the top register: one bit per subtree with a pending vector.
    fn top(&self) -> u32 {
        let mut pending = self
            .leaf
            .iter()
            .zip(&self.leaf_enable)
            .map(|(leaf, enable)| leaf & enable);
        let mut top = 0u64;
        for subtree in 0..LEAVES / LEAVES_PER_SUBTREE {
            let bits =
                (0..LEAVES_PER_SUBTREE).fold(0, |bits, _| bits | pending.next().unwrap_or(0));
            top |= u64::from(bits != 0) << subtree;
        }
        low_u32(top)
    }

    /// Sends a message if a vector becomes pending, or if one is pending and `again` is set.
    fn deliver(&mut self, again: bool) {
        let pending = self.top() & self.top_enable != 0;
        if pending && (again || !self.was_pending) {
            self.messages += 1;
            self.interrupts.raise(MESSAGE);
        }
        self.was_pending = pending;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;

    type Leaf = NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF;
    type LeafEnSet = NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF_EN_SET;
    type Top = NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_TOP;
    type TopEnSet = NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_TOP_EN_SET;
    type TopEnClear = NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_TOP_EN_CLEAR;
    type Trigger = NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF_TRIGGER;

    fn tree() -> InterruptTree {
        InterruptTree::new(World::new())
    }

    /// Checks what RM does at the end of its initialisation: it triggers vector 0x81 and waits for
    /// its handler.
    #[test]
    fn the_drivers_self_test_gets_its_message() {
        let mut tree = tree();
        tree.write(LeafEnSet::OFFSET + 4 * 4, 1 << 1);
        tree.write(TopEnSet::OFFSET, 1 << 2);
        tree.write(Trigger::OFFSET, 0x81);
        assert_eq!(tree.messages(), 1);
        assert_eq!(tree.read(Top::OFFSET), Some(1 << 2));
        tree.write(Leaf::OFFSET + 4 * 4, 1 << 1);
        assert_eq!(tree.read(Top::OFFSET), Some(0));
        assert_eq!(tree.messages(), 1);
    }

    #[test]
    fn a_disabled_vector_waits_for_its_enable() {
        let mut tree = tree();
        tree.trigger(5);
        tree.write(TopEnSet::OFFSET, 1);
        assert_eq!(tree.messages(), 0);
        tree.write(LeafEnSet::OFFSET, 1 << 5);
        assert_eq!(tree.messages(), 1);
    }

    #[test]
    fn pending_vectors_count_again_when_the_top_opens() {
        let mut tree = tree();
        tree.write(LeafEnSet::OFFSET, u32::MAX);
        tree.write(TopEnSet::OFFSET, 1);
        tree.trigger(1);
        tree.write(TopEnClear::OFFSET, 1);
        tree.trigger(2);
        assert_eq!(tree.messages(), 1);
        tree.write(Leaf::OFFSET, 1 << 1);
        tree.write(TopEnSet::OFFSET, 1);
        assert_eq!(tree.messages(), 2);
    }

    #[test]
    fn a_vector_beyond_the_tree_is_ignored() {
        let mut tree = tree();
        tree.write(Trigger::OFFSET, VECTORS);
        tree.write(Trigger::OFFSET, u32::MAX);
        assert!((0..16).all(|leaf| tree.read(Leaf::OFFSET + 4 * leaf) == Some(0)));
    }
}
