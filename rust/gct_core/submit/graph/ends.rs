// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the words that tell when a graph's replay has ended.

use super::{Memory, Slot, Table};
use crate::submit::join::Qmd;
use crate::submit::launch::Launch;
use crate::submit::tracker::{QmdCall, Source};
use core::num::Wrapping;

/// The most ends of a replay that are followed: last nodes that do not wait for each other.
pub const ENDS_MAX: usize = 4;

/// `RED_ADD` of a release (clcbc0qmd.h).
const RED_ADD: u8 = 0;

/// A word, and a number: the one that a node adds, or that the word reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The word's address.
    pub va: u64,
    /// The number.
    pub number: u32,
}

/// The ends of the replays of one segment.
pub type Ends = [Option<End>; ENDS_MAX];

/// Returns the word that a launch adds to when it ends.
pub(super) fn added_by(launch: &Launch) -> Option<End> {
    let mut releases = launch.effects.releases.iter().flatten();
    let release = releases.find(|r| r.words == 1 && r.reduction == Some(RED_ADD))?;
    Some(End {
        va: release.va,
        // CAST: a release of one word.
        number: release.payload as u32,
    })
}

impl<N: Table<Slot>, Q: Table<Qmd>> Memory<'_, N, Q> {
    /// Returns the ends of the graph that a segment replays. `stored` returns the word that the
    /// segment stores at an address.
    ///
    /// The chains of a large graph are joined by counters, and the last call names the last chain.
    /// A graph of one chain has one call. Returns no end for a graph that is not known.
    pub fn ends(&mut self, calls: &[QmdCall], stored: impl Fn(u64) -> Option<u32>) -> Ends {
        let named = |call: &&QmdCall| matches!(call.source, Source::Elsewhere | Source::Touch);
        let mut ends = Ends::default();
        if let Some(last) = calls.iter().rev().find(named) {
            self.visit(last.qmd_va, |node| {
                if let Some((end, first)) = node.adds.and_then(|end| Some((end, stored(end.va)?))) {
                    add(&mut ends, end, first);
                }
            });
        }
        ends
    }
}

/// Adds a node's end, whose word holds `first` before. Further ends than fit are not followed.
fn add(ends: &mut Ends, end: End, first: u32) {
    let free = |slot: &Option<End>| slot.is_none_or(|known| known.va == end.va);
    if let Some(slot) = ends.iter_mut().find(|slot| free(slot)) {
        let before = slot.map_or(first, |known| known.number);
        *slot = Some(End {
            va: end.va,
            number: (Wrapping(before) + Wrapping(end.number)).0,
        });
    }
}
