// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recognises CUDA graphs on Hopper, and masks their nodes.
//!
//! Terminology
//!   node    a QMD that is stored once and runs in each replay
//!   head    a stored QMD that no QMD schedules; it has no blocks or is the graph's first kernel
//!   upload  the segment that stores a graph; it also runs it if the program has not called
//!           cuGraphUpload
//!   replay  one PCAS on the head, and one that decrements each further chain of the graph
//!   end     a word that the replay's segment stores, and that a last node adds to
//!   armed   the mask words of a node count, so that a store into them masks the node
//!
//! An upload stores the nodes, last first, each with `SELF_COPY_ON_COMPLETION` and
//! `REQUIRE_SCHEDULING_PCAS`. Each node schedules the next as its dependent. The head comes last,
//! or with the heads of further chains before all others. No PCAS names it in an upload that does
//! not run the graph. One that does stores and starts a long graph in chains of some eighteen
//! nodes: the head comes behind the first of them, and a PCAS names it there. The heads of other
//! chains are kernels, and a chain may be its head alone.
//!
//! So a mask must be in the stored QMDs. The upload gets it like any other launch. Later,
//! [`Memory`] knows the stored QMDs, and stores into their mask words change it. For that the
//! upload arms each node, with an empty mask if none is ordered ([`arm`]). A head is armed by the
//! first replay that needs a mask: before a PCAS names it, it may be data. So is a node whose
//! upload was published before it was read. Nodes are never split: dependents ignore RESUME.
//!
//! Where no work of the tenant's may start a descriptor, a replay is a list of launches instead,
//! from the descriptors that were seen at the upload ([`Memory::unroll`]). Then no PCAS of the
//! tenant's names a node.
//!
//! The semaphore release behind a replay tells when the segment was read, not when the graph ends:
//! it comes at once (H100, `gctgroup-docs/hardware.md`). The [`Ends`] of a replay tell that.

mod ends;
mod patch;
mod table;
mod unroll;
mod walk;

pub use ends::{End, Ends, ENDS_MAX};
pub use patch::{Masks, Patched, Width};
pub use table::{Index, Slot, Table};
pub use unroll::Step;

use super::join::Qmd;
use super::launch::{DependentAction, Kind, Launch};
use super::limits::MASK_WORDS;
use super::mask::{self, DisabledTpcs};
use super::occupancy::{self, Needs};
use super::precedence::{self, Precedence};
use super::qmd::{with_layout, Layout, Version};
use super::reason::Reason;
use super::stats::Counters;
use super::tracker::{QmdCall, Source};
use crate::units::Va;
use core::num::Wrapping;

/// TPCs of the widest mask.
// CAST: a small constant.
const TPCS_MAX: u32 = (MASK_WORDS as u32) << 5;

/// A stored QMD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its address.
    pub va: u64,
    /// Its layout.
    pub version: Version,
    /// Its grid.
    pub grid: [u32; 3],
    /// The mask that its tenant wrote; `None` when none counts.
    pub tenant: Option<[u32; MASK_WORDS]>,
    /// The QMDs that its end schedules or decrements.
    pub next: [Option<u64>; 2],
    /// The word that its end adds to, and the number that it adds.
    pub adds: Option<End>,
    /// Whether its mask words count, so that a store into them masks it.
    pub armed: bool,
    /// The value of its mask words, if it is known.
    stored: Option<[u32; MASK_WORDS]>,
    /// The value that arms it of the word with `TPC_DISABLE_MASK_VALID`; 0 if there is none. It has
    /// the tenant's place.
    arming: u32,
    /// The value of that word, if it is known.
    first: Option<u32>,
    /// What a mask must leave.
    pub(super) needs: Needs,
    /// The TPCs that hold all of its blocks at once; 0 if no number does.
    pub(super) resident: u32,
    /// Number of the last replay that reached it.
    reached: u32,
    /// Decrements that it waits for, those that are left, and the channel that made the others.
    counter: u32,
    left: u32,
    counted_by: u32,
    /// Tells it from other nodes, and from others at its address; 0 if its words are not kept.
    number: u32,
    /// The era in which it was stored.
    era: u64,
    /// Whether the scheduler has no copy of it, because its call was taken out.
    silenced: bool,
}

/// The extent of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The head's address.
    pub head: u64,
    /// Number of known nodes, the head included.
    pub nodes: u32,
    /// Number of unknown QMDs that are named: their masks cannot be changed.
    pub unknown: u32,
}

/// A store into the mask words of one QMD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskWrite {
    /// The address of the first mask word.
    pub va: u64,
    /// The words.
    pub words: [u32; MASK_WORDS],
    /// Number of words to store.
    pub count: usize,
    /// The place that goes with them.
    pub precedence: Option<Precedence>,
}

/// The stored QMDs of one tenant, in slots of the caller.
#[derive(Debug)]
pub struct Memory<'a, N, Q = &'static mut [Qmd]> {
    slots: &'a mut N,
    /// The words of the nodes in the first slots.
    qmds: Option<&'a mut Q>,
    index: &'a mut Index,
}

impl<'a, N: Table<Slot>> Memory<'a, N> {
    /// Views the nodes in `slots`, all empty at first, of which `index` is the index. Both belong
    /// to the tenant's address space and outlive this view.
    pub fn new(slots: &'a mut N, index: &'a mut Index) -> Self {
        Self {
            slots,
            qmds: None,
            index,
        }
    }
}

impl<'a, N: Table<Slot>, Q: Table<Qmd>> Memory<'a, N, Q> {
    /// Keeps the words of nodes in `qmds`: those of as many slots as it has.
    #[must_use]
    pub fn keeping<R: Table<Qmd>>(self, qmds: Option<&'a mut R>) -> Memory<'a, N, R> {
        Memory {
            slots: self.slots,
            qmds,
            index: self.index,
        }
    }

    /// Returns the node at an address.
    pub fn get(&self, va: u64) -> Option<&Node> {
        self.node(self.place_of(va)?)
    }

    fn get_mut(&mut self, va: u64) -> Option<&mut Node> {
        let place = self.place_of(va)?;
        self.node_mut(place)
    }

    /// Advances the number of the last replay, and returns it.
    fn tick(&mut self) -> u32 {
        self.index.ticks = (Wrapping(self.index.ticks) + Wrapping(1)).0.max(1);
        self.index.ticks
    }

    /// Remembers the nodes and heads that a scanned segment stores, and returns their number. One
    /// that only looks like a head does not count. There is none unless an upload [`may_store`]
    /// one, or was not scheduled.
    ///
    /// Takes the tenant's words, before masks are put into them. `arms` says that [`arm`] follows.
    /// Nodes that do not fit are counted.
    pub fn learn(
        &mut self,
        words: &[u32],
        calls: &[QmdCall],
        arms: bool,
        counters: &mut Counters,
    ) -> usize {
        let mut nodes = Wrapping(0usize);
        for call in calls {
            let is_node = call.is_node();
            if is_node || call.source == Source::Stored {
                let known = self.remember(call, words, is_node && arms, counters);
                nodes += usize::from(is_node && known);
            }
        }
        for call in calls.iter().filter(|call| call.source == Source::Upload) {
            if !call.is_node() && self.is_head(call, words, nodes != Wrapping(0)) {
                nodes += usize::from(self.remember(call, words, false, counters));
            }
        }
        nodes.0
    }

    /// Returns whether a launch may be the head of a graph, whose segment both stores and runs it.
    /// CUDA's ordinary launches are none: each decrements its companion, and that is no node. If
    /// the segment has no nodes, the chain has no further one.
    fn is_head(&self, call: &QmdCall, words: &[u32], has_nodes: bool) -> bool {
        let is_last = match call.kind() {
            Some(Kind::Null) => false,
            Some(Kind::Queue | Kind::Undocumented(_)) | None => return false,
            Some(_) => ends_alone(call, words),
        };
        is_last || has_nodes && self.schedules_known(call, words)
    }

    /// Remembers a QMD whose words are here, and returns whether it could.
    fn remember(
        &mut self,
        call: &QmdCall,
        words: &[u32],
        is_armed: bool,
        counters: &mut Counters,
    ) -> bool {
        let (Some(launch), Some(qmd)) = (call.launch(words), call.qmd(words)) else {
            return false;
        };
        let tenant = mask::read(qmd, launch.version);
        let arming = arming_of(qmd, launch.version);
        let node = Node {
            va: call.qmd_va,
            version: launch.version,
            grid: launch.grid,
            tenant,
            next: next_of(&launch),
            adds: ends::added_by(&launch),
            armed: is_armed || tenant.is_some(),
            stored: Some(tenant.unwrap_or([0; MASK_WORDS])),
            arming,
            first: Some(arming),
            needs: with_layout!(launch.version, L => Needs::of::<L>(qmd)),
            resident: occupancy::resident(qmd, launch.version, TPCS_MAX),
            reached: 0,
            counter: launch.waits.dependences,
            left: launch.waits.dependences,
            counted_by: 0,
            number: 0,
            era: 0,
            silenced: false,
        };
        let remembered = self.insert(node, qmd);
        if let Err(reason) = remembered {
            counters.keep(reason);
        }
        remembered.is_ok()
    }

    /// Returns whether the end of a launch schedules a remembered QMD.
    fn schedules_known(&self, call: &QmdCall, words: &[u32]) -> bool {
        let launch = call.launch(words);
        let next = launch.map_or([None; 2], |launch| next_of(&launch));
        next.into_iter().flatten().any(|va| self.get(va).is_some())
    }

    /// Recognises a PCAS on a QMD that is not in its segment as a replay, and marks the nodes that
    /// it runs; [`reached`](Self::reached) returns them. Returns `None` for an unknown QMD.
    pub fn replay(&mut self, head: u64) -> Option<Replay> {
        self.visit(head, |_| ())
    }

    /// Returns the nodes that the last recognised replay runs. O(nodes).
    pub fn reached(&self) -> impl Iterator<Item = &Node> {
        let mark = self.index.ticks;
        let nodes = self.places().filter_map(|place| self.node(place));
        nodes.filter(move |node| node.reached == mark)
    }

    /// Counts the replays among the calls of a segment.
    ///
    /// The scan has counted them as calls of a QMD that is not here; the difference is what is not
    /// covered. A graph with unknown parts is counted as [`Reason::Replay`]. Visits each node once.
    pub fn count_replays(&mut self, calls: &[QmdCall], counters: &mut Counters) {
        let mut walk = self.walk();
        for call in calls.iter().filter(|call| is_replay(call)) {
            if let Some(replay) = self.follow(&mut walk, call.qmd_va, |_| ()) {
                counters.replay(replay.unknown == 0);
            }
        }
    }

    /// Notes that it is not known which mask the node at an address holds, and which place.
    pub fn forget_mask(&mut self, va: u64) {
        self.index.masks_changed();
        if let Some(node) = self.get_mut(va) {
            (node.stored, node.first) = (None, None);
        }
    }
}

/// Returns whether an upload that is scheduled may store a node or a head.
#[inline]
pub(crate) fn may_store(call: &QmdCall, is_null: bool, words: &[u32]) -> bool {
    call.is_node() || !is_null && ends_alone(call, words)
}

/// Returns whether a call schedules a QMD that is not in its segment.
fn is_replay(call: &QmdCall) -> bool {
    call.source == Source::Elsewhere && call.is_launch()
}

/// Returns whether the end of a launch does nothing to another QMD.
fn ends_alone(call: &QmdCall, words: &[u32]) -> bool {
    let (Some(qmd), Some(version)) = (call.qmd(words), call.version) else {
        return false;
    };
    with_layout!(version, L => {
        L::DEPENDENTS.iter().all(|dependent| !dependent.enable.is_set(qmd))
    })
}

/// Returns the QMDs that a launch's end schedules or decrements.
fn next_of(launch: &Launch) -> [Option<u64>; 2] {
    launch.effects.dependents.map(|dependent| match dependent {
        Some(dependent) if dependent.action != DependentAction::IncrementPut => dependent.va,
        _ => None,
    })
}

/// Arms the graph nodes of a segment, with the tenant's mask or an empty one.
///
/// Takes the words to be published. It does not change where blocks run.
pub fn arm(words: &mut [u32], calls: &[QmdCall]) {
    for call in calls {
        if !call.is_node() {
            continue;
        }
        if let (Some(version), Some(qmd)) = (call.version, call.qmd_mut(words)) {
            let mask = mask::read(qmd, version).unwrap_or([0; MASK_WORDS]);
            mask::write(qmd, version, Some(&mask));
        }
    }
}

/// Returns the index of the word with the bit that makes mask words count, and that bit. Versions
/// before 4.0 have none: their masks always count. Version 5.1 has no mask.
fn valid_bit(version: Version) -> Option<(usize, u32)> {
    with_layout!(version, L => {
        L::MASK_VALID.map(|valid| (valid.word(), 1 << valid.shift()))
    })
}

/// Returns the word of a QMD that arms it; 0 if its version needs none.
fn arming_of(qmd: &[u32], version: Version) -> u32 {
    let word = valid_bit(version).and_then(|(index, bit)| Some(*qmd.get(index)? | bit));
    word.unwrap_or(0)
}

/// Returns the word that arms a node, with a place.
fn armed_word(node: &Node, precedence: Option<Precedence>) -> u32 {
    match node.version {
        Version::V04_00 => precedence::first_word(node.arming, precedence),
        _ => node.arming,
    }
}

/// Returns the address of a word of a node.
fn word_va(node: &Node, index: usize) -> u64 {
    // CAST: a QMD has 96 words.
    (Va(node.va) + ((index as u64) << 2)).get()
}

/// Returns the store that arms a node, with a place; `None` if it has both.
pub fn arm_write(node: &Node, precedence: Option<Precedence>) -> Option<MaskWrite> {
    let (index, _) = valid_bit(node.version)?;
    let word = armed_word(node, precedence);
    if node.armed && node.first == Some(word) {
        return None;
    }
    let mut words = [0; MASK_WORDS];
    if let Some(first) = words.first_mut() {
        *first = word;
    }
    Some(MaskWrite {
        va: word_va(node, index),
        words,
        count: 1,
        precedence,
    })
}

/// Returns the store into a node's mask words after which it disables what `mask` and its tenant
/// disable, or only its tenant's with `None`. A node that is not armed, or has another
/// place, also needs [`arm_write`].
///
/// One store writes the words that adjoin. Versions 3.0 and 4.1 have further bits elsewhere, for
/// TPCs from 64 and 128 on, and a mask that disables one of those is refused.
///
/// The words take effect in the next replay if the node is not running.
/// `gctgroup-docs/submission.md` says what makes the scheduler read them again.
///
/// # Errors
///
/// The errors of [`mask::apply`] that come from the mask or the version, and [`Reason::TooWide`].
pub fn mask_write(node: &Node, mask: Option<&DisabledTpcs>) -> Result<MaskWrite, Reason> {
    let (first, count) = with_layout!(node.version, L => {
        let first = L::MASK.first().ok_or(Reason::SubTasks)?.word();
        let words = L::MASK.iter().zip(first..);
        let adjoin = words.take_while(|(field, word)| field.width() == 32 && field.word() == *word);
        (first, adjoin.count().min(MASK_WORDS))
    });
    let words = match mask {
        Some(mask) => {
            // CAST: a few words.
            let decision = mask::combine(node.tenant, mask, (count as u16) << 5)?;
            mask::fitting(decision, node.needs, mask)?.0
        }
        None => node.tenant.unwrap_or([0; MASK_WORDS]),
    };
    Ok(MaskWrite {
        va: word_va(node, first),
        words,
        count,
        precedence: mask.and_then(DisabledTpcs::precedence),
    })
}

#[cfg(test)]
impl Node {
    /// Returns a stored node that runs no other.
    fn armed(va: u64) -> Self {
        Self {
            va,
            version: Version::V04_00,
            grid: [1, 1, 1],
            tenant: None,
            next: [None, None],
            adds: None,
            armed: true,
            stored: Some([0; MASK_WORDS]),
            arming: 0,
            first: Some(0),
            needs: Needs::Any,
            resident: 0,
            reached: 0,
            counter: 0,
            left: 0,
            counted_by: 0,
            number: 0,
            era: 0,
            silenced: false,
        }
    }
}
