// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Masks graph replays whose mask has changed since the upload.
//!
//! Before the call that replays a graph, uploads in the same channel store new mask words into the
//! nodes that hold another mask, and the registers are restored. The tenant's words stay as they
//! are, in their order.

use super::walk::Walk;
use super::{
    arm_write, armed_word, is_replay, mask_write, valid_bit, MaskWrite, Memory, Node, Replay, Slot,
    Table,
};
use crate::submit::inline::{headers, restore, HEADER_WORDS, RESTORE_WORDS};
use crate::submit::join::Qmd;
use crate::submit::limits::MASK_WORDS;
use crate::submit::mask::{self, DisabledTpcs};
use crate::submit::occupancy::Needs;
use crate::submit::reason::Reason;
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Source};
use crate::units::{volume, Sat};

/// So many TPCs, and the mask that leaves them; no mask leaves all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Width {
    /// The TPCs.
    pub tpcs: u32,
    /// The mask.
    pub mask: Option<DisabledTpcs>,
}

/// The masks for the nodes of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Masks<'a> {
    /// The mask of a node that needs no certain TPCs.
    pub each: Option<&'a DisabledTpcs>,
    /// The TPCs that it leaves. Counts where there are others.
    pub tpcs: u32,
    /// The masks of nodes that need more TPCs, or cannot use as many, the narrowest first. The last
    /// one leaves all that are granted.
    pub others: &'a [Width],
}

impl<'a> From<Option<&'a DisabledTpcs>> for Masks<'a> {
    fn from(each: Option<&'a DisabledTpcs>) -> Self {
        Self {
            each,
            tpcs: 0,
            others: &[],
        }
    }
}

impl Masks<'_> {
    /// Returns the TPCs that a node gets at least.
    fn wanted(&self, node: &Node, most: u32) -> u32 {
        let is_wave = self.tpcs < node.resident && node.resident <= most;
        match node.needs {
            // Clusters of two blocks fill GPCs without a gap.
            Needs::Any | Needs::Together(1) if is_wave => node.resident,
            _ if is_wave => most,
            // More TPCs than blocks have nothing to do.
            Needs::Any => {
                let blocks = volume(node.grid).0;
                u32::try_from(blocks).map_or(self.tpcs, |blocks| blocks.min(self.tpcs))
            }
            _ => self.tpcs,
        }
    }

    /// Returns the TPCs that a node has, and the store that masks it.
    fn choose(&self, node: &Node) -> (u32, Result<MaskWrite, Reason>) {
        let Some(most) = self.others.last() else {
            return (self.tpcs, mask_write(node, self.each));
        };
        let wanted = self.wanted(node, most.tpcs);
        let fits = |width: &&Width| width.tpcs >= wanted;
        let other = self.others.iter().find(fits);
        let other = other.filter(|other| wanted > self.tpcs || other.tpcs < self.tpcs);
        let (tpcs, mask) = match other {
            Some(other) => (other.tpcs, other.mask.as_ref()),
            None => (self.tpcs, self.each),
        };
        let write = mask_write(node, mask);
        // What needs TPCs together may not find them among fewer.
        match write.is_err() && tpcs < most.tpcs {
            true => (most.tpcs, mask_write(node, most.mask.as_ref())),
            false => (tpcs, write),
        }
    }
}

/// Result of patching a segment with replays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patched {
    /// Words of the output; 0 when nothing has to change.
    pub words: usize,
    /// Nodes whose mask words are stored.
    pub nodes: usize,
    /// Nodes that were looked at, each time.
    pub visits: usize,
    /// Nodes with blocks.
    pub seen: usize,
    /// The sum of the TPCs that these have.
    pub used: u64,
    /// The most TPCs that one of these has.
    pub widest: u32,
}

impl Patched {
    /// Returns the mean of the TPCs that the nodes have, or `each` without nodes.
    pub fn mean(&self, each: u64) -> u64 {
        // CAST: widening.
        self.used.checked_div(self.seen as u64).unwrap_or(each)
    }
}

/// An output that is being written.
struct Out<'a> {
    words: &'a mut [u32],
    len: usize,
}

impl Out<'_> {
    /// Appends words. Returns `false` when there is no room for them and for `behind` further
    /// words.
    fn push(&mut self, words: &[u32], behind: usize) -> bool {
        let end = Sat(self.len) + Sat(words.len());
        if Sat(self.words.len()) - Sat(behind) < end {
            return false;
        }
        match self.words.get_mut(self.len..end.0) {
            Some(out) => {
                out.copy_from_slice(words);
                self.len = end.0;
                true
            }
            None => false,
        }
    }
}

impl<N: Table<Slot>, Q: Table<Qmd>> Memory<'_, N, Q> {
    /// Records the masks of the nodes in an uploaded segment, as its words will be published.
    pub fn note_masks(&mut self, words: &[u32], calls: &[QmdCall]) {
        self.index.masks_changed();
        for call in calls.iter().filter(|call| call.source == Source::Upload) {
            let (Some(qmd), Some(version)) = (call.qmd(words), call.version) else {
                continue;
            };
            if let Some(node) = self.get_mut(call.qmd_va) {
                let mask = mask::read(qmd, version);
                node.armed |= mask.is_some();
                if let Some((index, bit)) = valid_bit(version) {
                    node.first = qmd.get(index).map(|word| word | bit);
                }
                node.stored = Some(mask.unwrap_or([0; MASK_WORDS]));
            }
        }
    }

    /// Returns whether [`patch_replays`](Self::patch_replays) would store masks: nodes that the
    /// segment replays hold others than `masks`. Visits each node once.
    pub fn hold_others(&mut self, calls: &[QmdCall], masks: Masks<'_>) -> bool {
        let mut walk = self.walk();
        self.others(&mut walk, calls, masks)
    }

    /// Returns whether a replay without a mask may store one, or needs the list of its launches:
    /// nobody else may submit it. It may until all nodes were looked at, some at each call.
    pub fn keep_masks(&mut self) -> bool {
        let masks = Masks::from(None);
        self.may_hold(|node| node.silenced || change(node, &masks, &mut Sat(0)).1.is_some())
    }

    fn others(&mut self, walk: &mut Walk, calls: &[QmdCall], masks: Masks<'_>) -> bool {
        let mut replays = calls.iter().filter(|call| is_replay(call));
        replays.any(|call| {
            let mut others = false;
            self.follow(walk, call.qmd_va, |node| {
                others = others || change(node, &masks, &mut Sat(0)).1.is_some();
            });
            others
        })
    }

    /// Counts the replays of a segment as [`count_replays`](Self::count_replays) does, and writes
    /// into `out` a segment whose replays obey `masks`, where their nodes hold another.
    ///
    /// The caller publishes `out` in place of the segment, or forgets the nodes. Nodes that cannot
    /// be changed run under their old mask. A replay with such nodes is counted as
    /// [`Reason::Replay`], and so is a later one that shares nodes with it.
    ///
    /// Visits each node at most twice: once for the calls before which nothing can be inserted, and
    /// once for the others.
    ///
    /// [`Reason::Replay`]: crate::submit::reason::Reason::Replay
    pub fn patch_replays(
        &mut self,
        words: &[u32],
        calls: &[QmdCall],
        masks: Masks<'_>,
        out: &mut [u32],
        counters: &mut Counters,
    ) -> Patched {
        let unpatched = self.count_unpatched(calls, masks, counters);
        let mut out = Out { words: out, len: 0 };
        let (mut copied, mut nodes) = (0usize, Sat(0usize));
        let (mut seen, mut used, mut widest) = (Sat(0usize), Sat(0u64), 0);
        let mut walk = self.walk();
        let known = |call: &&QmdCall| is_replay(call) && call.registers.known;
        for call in calls.iter().filter(known) {
            // CAST: an index of the segment.
            let at = call.call_at as usize;
            let before = words.get(copied..at).unwrap_or_default();
            // The rest of the segment must still fit behind the patch.
            let rest = Sat(words.len()) - Sat(at) + Sat(RESTORE_WORDS);
            let first = (rest + Sat(HEADER_WORDS + MASK_WORDS)).0;
            let (mut begun, mut left) = (false, Sat(0));
            let replay = self.follow(&mut walk, call.qmd_va, |node| {
                let (tpcs, write) = change(node, &masks, &mut left);
                seen += usize::from(tpcs.is_some());
                used += u64::from(tpcs.unwrap_or(0));
                widest = tpcs.unwrap_or(0).max(widest);
                let Some(write) = write else {
                    return;
                };
                begun = begun || out.push(before, first);
                let mut put =
                    |write: &MaskWrite| begun && upload(call.subchannel, write, &mut out, rest.0);
                let arms = arm_write(node, write.precedence);
                if arms.is_none_or(|arms| put(&arms)) && put(&write) {
                    node.armed = true;
                    node.first = Some(armed_word(node, write.precedence));
                    node.stored = Some(write.words);
                    nodes += 1;
                } else {
                    left += 1;
                }
            });
            let Some(replay) = replay else { continue };
            count(&replay, left, &mut walk, counters);
            if begun {
                copied = at;
                out.push(&restore(call.subchannel, &call.registers), 0);
            }
        }
        let visits = (unpatched + walk.visits).0;
        if nodes == Sat(0) {
            out.len = 0;
        } else {
            self.index.masks_changed();
            out.push(words.get(copied..).unwrap_or_default(), 0);
        }
        Patched {
            words: out.len,
            nodes: nodes.0,
            visits,
            seen: seen.0,
            used: used.0,
            widest,
        }
    }

    /// Counts the replays before which nothing can be inserted, because the registers there are not
    /// known. Returns the visits.
    fn count_unpatched(
        &mut self,
        calls: &[QmdCall],
        masks: Masks<'_>,
        counters: &mut Counters,
    ) -> Sat<usize> {
        let mut walk = self.walk();
        let unknown = |call: &&QmdCall| is_replay(call) && !call.registers.known;
        for call in calls.iter().filter(unknown) {
            let mut left = Sat(0);
            let replay = self.follow(&mut walk, call.qmd_va, |node| {
                let stays = change(node, &masks, &mut left).1.is_some();
                left += usize::from(stays);
            });
            if let Some(replay) = replay {
                count(&replay, left, &mut walk, counters);
            }
        }
        walk.visits
    }
}

/// Counts a replay of which `left` nodes hold another mask than they should.
fn count(replay: &Replay, left: Sat<usize>, walk: &mut Walk, counters: &mut Counters) {
    let is_covered = replay.unknown == 0 && left == Sat(0);
    counters.replay(is_covered);
    walk.is_partial |= !is_covered;
}

/// Returns the TPCs of a node with blocks, and the store that it needs, if any. `left` counts the
/// nodes that need one and cannot get it.
fn change(
    node: &Node,
    masks: &Masks<'_>,
    left: &mut Sat<usize>,
) -> (Option<u32>, Option<MaskWrite>) {
    // Most heads have no blocks.
    if node.grid.contains(&0) {
        return (None, None);
    }
    let (tpcs, write) = masks.choose(node);
    *left += usize::from(write.is_err());
    let store = write.ok().filter(|write| {
        // Without a mask a node need not be armed.
        let is_armed = match node.armed {
            true => node.first == Some(armed_word(node, write.precedence)),
            false => masks.each.is_none(),
        };
        Some(write.words) != node.stored || !is_armed
    });
    (Some(tpcs), store)
}

/// Appends the upload of a node's mask words.
fn upload(on: u8, write: &MaskWrite, out: &mut Out<'_>, behind: usize) -> bool {
    // CAST: at most `MASK_WORDS`.
    let count = write.count as u32;
    let mut block = [0; HEADER_WORDS + MASK_WORDS];
    let (head, data) = block.split_at_mut(HEADER_WORDS);
    head.copy_from_slice(&headers(on, write.va, count));
    data.copy_from_slice(&write.words);
    let words = block.get(..(Sat(HEADER_WORDS) + Sat(write.count)).0);
    words.is_some_and(|words| out.push(words, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::submit::graph::Index;
    use crate::submit::methods::Action;
    use crate::submit::tracker::Registers;
    use std::vec;
    use std::vec::Vec;

    const NODES: u64 = 1000;
    const REPLAYS: u64 = 500;

    /// Returns the address of a node of a chain, or of one of the heads before it.
    fn va(number: u64) -> u64 {
        0x10_0000 + (number << 10)
    }

    fn node(va: u64, next: u64) -> Node {
        Node {
            next: [Some(next), None],
            ..Node::armed(va)
        }
    }

    /// Returns a chain of nodes that ends with an unknown one if `is_partial`, and heads that all
    /// schedule its first node.
    fn graph(is_partial: bool) -> (Vec<Slot>, Index) {
        let (mut slots, mut index) = (vec![Slot::EMPTY; 1 << 14], Index::new(0));
        let mut memory = Memory::new(&mut slots, &mut index);
        let last = REPLAYS + NODES - 1;
        for number in 0..=last {
            let next = match number {
                _ if number < REPLAYS => va(REPLAYS),
                _ if number == last && !is_partial => va(number),
                _ => va(number + 1),
            };
            memory.insert(node(va(number), next), &[]).unwrap();
        }
        (slots, index)
    }

    /// Returns a replay by each head, the last ones before known registers.
    fn calls(known: u64) -> Vec<QmdCall> {
        let call = |number| QmdCall {
            qmd_va: va(number),
            action: Action::Schedule,
            registers: Registers {
                known: REPLAYS - number <= known,
                ..Registers::default()
            },
            ..QmdCall::NONE
        };
        (0..REPLAYS).map(call).collect()
    }

    /// A node of one wave has the TPCs that hold it, one of few blocks has no more than these, and
    /// the others have the mask of their graph.
    #[test]
    fn nodes_have_the_widths_that_they_need() {
        let keep = |tpcs: u16| DisabledTpcs::keep_only(66, 0..tpcs).unwrap();
        let others = [4, 8, 16, 32, 66].map(|tpcs| Width {
            tpcs: tpcs.into(),
            mask: Some(keep(tpcs)),
        });
        let each = keep(20);
        let masks = Masks {
            each: Some(&each),
            tpcs: 20,
            others: &others,
        };
        let waves = |blocks, resident, needs| {
            let node = Node {
                grid: [blocks, 1, 1],
                needs,
                resident,
                ..node(va(0), va(1))
            };
            let (tpcs, write) = masks.choose(&node);
            let stored = write.unwrap().words;
            let kept = mask_write(&node, Some(&keep(tpcs as u16))).unwrap().words;
            assert_eq!(stored, kept, "{tpcs}");
            tpcs
        };
        for (blocks, resident, needs, tpcs) in [
            (1000, 0, Needs::Any, 20),
            (1000, 20, Needs::Any, 20),
            (1000, 21, Needs::Any, 32),
            (1000, 33, Needs::Any, 66),
            (1000, 67, Needs::Any, 20),
            (1000, 30, Needs::Together(1), 32),
            (1000, 30, Needs::Together(2), 66),
            (17, 9, Needs::Any, 20),
            (16, 8, Needs::Any, 16),
            (1, 1, Needs::Any, 4),
            (1, 1, Needs::Together(1), 20),
        ] {
            assert_eq!(waves(blocks, resident, needs), tpcs, "{blocks} {resident}");
        }
    }

    /// A tenant that replays a large graph many times in one segment has its nodes visited once,
    /// and once more where nothing can be inserted.
    #[test]
    fn many_replays_of_a_graph_visit_it_once() {
        let ours = DisabledTpcs::keep_only(128, 0..6).unwrap();
        let once = (NODES + 2 * REPLAYS + 1) as usize;
        for known in [0, REPLAYS / 2, REPLAYS] {
            let (mut slots, mut index) = graph(false);
            let mut memory = Memory::new(&mut slots, &mut index);
            let (calls, mut out) = (calls(known), vec![0; 1 << 16]);
            let mut walk = memory.walk();
            assert!(!memory.others(&mut walk, &calls, None.into()));
            assert!(walk.visits.0 <= once, "{:?}", walk.visits);
            assert!(memory.hold_others(&calls, Some(&ours).into()));
            let mut counters = Counters::new();
            let patched =
                memory.patch_replays(&[0], &calls, Some(&ours).into(), &mut out, &mut counters);
            let nodes = if known == 0 { 0 } else { NODES + known };
            assert_eq!(patched.nodes as u64, nodes);
            assert!(patched.visits <= 2 * once, "{}", patched.visits);
            let kept = counters.kept(Reason::Replay);
            assert_eq!((counters.replays, kept), (REPLAYS, REPLAYS - known));
        }
    }

    #[test]
    fn a_replay_that_meets_one_with_unknown_nodes_is_not_covered() {
        for is_partial in [false, true] {
            let (mut slots, mut index) = graph(is_partial);
            let mut memory = Memory::new(&mut slots, &mut index);
            let kept = if is_partial { REPLAYS } else { 0 };
            let mut counters = Counters::new();
            memory.count_replays(&calls(0), &mut counters);
            assert_eq!(counters.kept(Reason::Replay), kept);
            memory.patch_replays(&[0], &calls(REPLAYS), None.into(), &mut [], &mut counters);
            assert_eq!(counters.kept(Reason::Replay), 2 * kept);
        }
    }
}
