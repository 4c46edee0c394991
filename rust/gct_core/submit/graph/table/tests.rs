// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks the table against a map, and what it costs.

use super::super::{Memory, Node};
use super::{Index, Slot, CHAIN, LOOKS};
use crate::submit::join::Qmd;
use crate::submit::qmd::v04_00::WORDS;
use crate::submit::reason::Reason;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

struct Nodes {
    slots: Vec<Slot>,
    qmds: Vec<Qmd>,
    index: Index,
}

impl Nodes {
    fn new(count: usize) -> Self {
        Self {
            slots: vec![Slot::EMPTY; count],
            qmds: vec![[0; WORDS]; count],
            index: Index::new(0x1234_5678_9abc_def1),
        }
    }

    fn grow(&mut self, count: usize) {
        self.slots.resize(self.slots.len() + count, Slot::EMPTY);
        self.qmds.resize(self.qmds.len() + count, [0; WORDS]);
    }

    fn memory(&mut self) -> Memory<'_, Vec<Slot>, Vec<Qmd>> {
        Memory::new(&mut self.slots, &mut self.index).keeping(Some(&mut self.qmds))
    }

    fn insert(&mut self, node: Node) -> Result<(), Reason> {
        self.memory().insert(node, &[7; WORDS])
    }

    /// Returns the length of the longest bucket.
    fn longest(&mut self) -> usize {
        let buckets = self.index.buckets;
        let memory = self.memory();
        (0..buckets)
            .map(|at| memory.chain(at).count())
            .max()
            .unwrap()
    }
}

/// What is done with the table.
#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u64),
    Remove(u64),
    Silence(u64),
    Grow(usize),
    ForgetScheduled,
    ForgetUnseen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0u64..400).prop_map(Step::Insert),
        6 => (0u64..400).prop_map(Step::Remove),
        2 => (0u64..400).prop_map(Step::Silence),
        2 => (1usize..40).prop_map(Step::Grow),
        1 => Just(Step::ForgetScheduled),
        1 => Just(Step::ForgetUnseen),
    ]
}

fn va(number: u64) -> u64 {
    0x7_0000_0000 + 0x200 * number
}

proptest! {
    /// While there is room the table knows what a map does, and a node stays in its slot.
    #[test]
    fn nodes_are_where_they_were_put(steps in prop::collection::vec(step(), 1..600), start in 0usize..8) {
        let mut nodes = Nodes::new(start);
        // Of each node its slot, and whether it is silenced and listed.
        let mut known = BTreeMap::<u64, (usize, bool, bool)>::new();
        for step in steps {
            match step {
                Step::Insert(number) => {
                    // What was forgotten takes part until its slot is wanted.
                    let is_full = nodes.index.nodes() == nodes.slots.len();
                    match nodes.insert(Node::armed(va(number))) {
                        Ok(()) if is_full => {
                            let memory = nodes.memory();
                            let before = known.len();
                            known.retain(|number, _| memory.place_of(va(*number)).is_some());
                            prop_assert!(before - known.len() <= 1);
                            let place = memory.place_of(va(number)).unwrap();
                            known.insert(number, (place, false, true));
                        }
                        Ok(()) => {
                            let place = nodes.memory().place_of(va(number)).unwrap();
                            let before = known.insert(number, (place, false, true));
                            prop_assert!(before.is_none_or(|before| before.0 == place));
                        }
                        Err(reason) => {
                            prop_assert_eq!(reason, Reason::MemoryFull);
                            prop_assert_eq!(nodes.slots.len(), 0);
                        }
                    }
                }
                Step::Remove(number) => {
                    let mut memory = nodes.memory();
                    if let Some((place, ..)) = known.remove(&number) {
                        prop_assert_eq!(memory.place_of(va(number)), Some(place));
                        memory.remove(place);
                    }
                }
                Step::Silence(number) => {
                    if let Some((place, silenced, _)) = known.get_mut(&number) {
                        *silenced = true;
                        nodes.memory().node_mut(*place).unwrap().silenced = true;
                    }
                }
                Step::Grow(count) => nodes.grow(count),
                Step::ForgetScheduled => {
                    nodes.memory().forget_scheduled();
                    known.retain(|_, (_, silenced, _)| *silenced);
                }
                Step::ForgetUnseen => {
                    nodes.memory().forget_unseen();
                    known.retain(|_, (_, silenced, _)| *silenced);
                    known.values_mut().for_each(|known| known.2 = false);
                }
            }
            prop_assert!(nodes.index.nodes() <= nodes.slots.len());
            prop_assert!(known.len() <= nodes.index.nodes());
            let memory = nodes.memory();
            for number in 0..400 {
                let place = memory.place_of(va(number));
                prop_assert_eq!(place, known.get(&number).map(|known| known.0));
                let listed = place.and_then(|at| memory.node(at)).map(|it| memory.index.number_of(it) > 0);
                prop_assert_eq!(listed, known.get(&number).map(|known| known.2));
            }
        }
    }
}

/// Nodes as CUDA places them find each other at once: no bucket has many.
#[test]
fn buckets_stay_short() {
    for stride in [0x100, 0x200, 0x300, 0x400, 0x1000, 0x6000, 0x2_0000] {
        let mut nodes = Nodes::new(2048);
        for number in 0..20_000 {
            if nodes.index.nodes() == nodes.slots.len() {
                nodes.grow(2048);
            }
            // A graph has memory of its own.
            let va = 0x10_0000_0000 + 0x20_0000 * (number / 500) + stride * (number % 500);
            nodes.insert(Node::armed(va)).unwrap();
        }
        assert!(
            nodes.longest() <= CHAIN / 2,
            "{stride:#x}: {}",
            nodes.longest()
        );
        let spare = 20_000usize.next_multiple_of(2048);
        assert!(nodes.slots.len() <= spare, "no slot is left empty");
    }
}

/// A tenant that knows the key fills one bucket. Its nodes push out each other, and what others of
/// its nodes are in stays as it is.
#[test]
fn a_full_bucket_keeps_to_itself() {
    let mut nodes = Nodes::new(4096);
    let kept: Vec<_> = (0..500).map(|number| 0x900_0000 + 0x200 * number).collect();
    kept.iter()
        .for_each(|va| nodes.insert(Node::armed(*va)).unwrap());
    // All buckets are there.
    (0..2048).for_each(|_| nodes.insert(Node::armed(kept[0])).unwrap());
    assert_eq!(nodes.index.buckets, 4096);
    let taken: Vec<_> = kept.iter().map(|va| nodes.index.bucket(*va)).collect();
    let free = (0..4096).find(|bucket| !taken.contains(bucket)).unwrap();
    let all = (0x10_0000..).map(|number| 0x100 * number);
    let index = nodes.index.clone();
    let same: Vec<_> = all
        .filter(|va| index.bucket(*va) == free)
        .take(100)
        .collect();
    same.iter()
        .for_each(|va| nodes.insert(Node::armed(*va)).unwrap());
    assert_eq!(nodes.longest(), CHAIN);
    assert_eq!(nodes.index.nodes(), 500 + CHAIN);
    let memory = nodes.memory();
    assert!(memory.get(*same.last().unwrap()).is_some());
    assert!(kept.iter().all(|va| memory.get(*va).is_some()));
}

/// A large table is looked through in parts, and again once a mask has changed.
#[test]
fn masks_are_looked_for_in_parts() {
    let count = 2 * LOOKS + 1;
    let mut nodes = Nodes::new(count);
    (0..count as u64).for_each(|number| nodes.insert(Node::armed(va(number))).unwrap());
    let mut memory = nodes.memory();
    for _ in 0..2 {
        let looks: Vec<_> = (0..4).map(|_| memory.keep_masks()).collect();
        assert_eq!(looks, [true, true, false, false]);
        memory.index.masks_changed();
    }
    memory.node_mut(count - 1).unwrap().silenced = true;
    let looks: Vec<_> = (0..4).map(|_| memory.keep_masks()).collect();
    assert_eq!(looks, [true; 4]);
}

/// A node and its words take as many bytes as the documents say.
#[test]
fn a_node_has_its_size() {
    assert_eq!((size_of::<Slot>(), size_of::<Qmd>()), (224, 384));
}
