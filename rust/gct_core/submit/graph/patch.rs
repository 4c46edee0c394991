// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Masks graph replays whose mask has changed since the upload.
//!
//! Before the call that replays a graph, uploads in the same channel store new mask words into the
//! nodes that hold another mask, and the registers are restored. The tenant's words stay as they
//! are, in their order.

use super::{mask_write, MaskWrite, Memory, Node};
use crate::submit::inline::{headers, restore, HEADER_WORDS, RESTORE_WORDS};
use crate::submit::limits::MASK_WORDS;
use crate::submit::mask::{self, DisabledTpcs};
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Source};
use crate::units::Sat;

/// Result of patching a segment with replays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patched {
    /// Words of the output; 0 when nothing has to change.
    pub words: usize,
    /// Nodes whose mask words are stored.
    pub nodes: usize,
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

impl Memory<'_> {
    /// Records the masks of the nodes in an uploaded segment, as its words will be published.
    pub fn note_masks(&mut self, words: &[u32], calls: &[QmdCall]) {
        for call in calls.iter().filter(|call| call.source == Source::Upload) {
            let (Some(qmd), Some(version)) = (call.qmd(words), call.version) else {
                continue;
            };
            if let Some(node) = self.get_mut(call.qmd_va) {
                node.stored = mask::read(qmd, version).unwrap_or([0; MASK_WORDS]);
            }
        }
    }

    /// Returns whether [`patch_replays`](Self::patch_replays) would store masks: nodes that the
    /// segment replays hold another mask than `mask`.
    pub fn hold_others(&mut self, calls: &[QmdCall], mask: Option<&DisabledTpcs>) -> bool {
        let mut others = false;
        for call in calls {
            if call.source == Source::Elsewhere && call.is_launch() {
                self.visit(call.qmd_va, |node| {
                    others = others || change(node, mask, &mut Sat(0)).is_some();
                });
            }
        }
        others
    }

    /// Counts the replays of a segment as [`count_replays`](Self::count_replays) does, and writes
    /// into `out` a segment whose replays obey `mask`, where their nodes hold another.
    ///
    /// The caller publishes `out` in place of the segment, or forgets the nodes. Nodes that cannot
    /// be changed run under their old mask and are counted as [`Reason::Replay`].
    ///
    /// [`Reason::Replay`]: crate::submit::stats::Reason::Replay
    pub fn patch_replays(
        &mut self,
        words: &[u32],
        calls: &[QmdCall],
        mask: Option<&DisabledTpcs>,
        out: &mut [u32],
        counters: &mut Counters,
    ) -> Patched {
        let mut out = Out { words: out, len: 0 };
        let (mut copied, mut nodes) = (0usize, Sat(0usize));
        for call in calls {
            if call.source != Source::Elsewhere || !call.is_launch() {
                continue;
            }
            // CAST: an index of the segment.
            let at = call.call_at as usize;
            let before = words.get(copied..at).unwrap_or_default();
            // The rest of the segment must still fit behind the patch.
            let rest = Sat(words.len()) - Sat(at) + Sat(RESTORE_WORDS);
            let first = (rest + Sat(HEADER_WORDS + MASK_WORDS)).0;
            let (mut begun, mut left) = (false, Sat(0));
            let replay = self.visit(call.qmd_va, |node| {
                let Some(write) = change(node, mask, &mut left) else {
                    return;
                };
                begun = begun || (call.registers.known && out.push(before, first));
                if begun && upload(call.subchannel, &write, &mut out, rest.0) {
                    node.stored = write.words;
                    nodes += 1;
                } else {
                    left += 1;
                }
            });
            let Some(replay) = replay else { continue };
            counters.replay(replay.unknown == 0 && left == Sat(0));
            if begun {
                copied = at;
                out.push(&restore(call.subchannel, &call.registers), 0);
            }
        }
        if nodes == Sat(0) {
            return Patched::default();
        }
        out.push(words.get(copied..).unwrap_or_default(), 0);
        Patched {
            words: out.len,
            nodes: nodes.0,
        }
    }
}

/// Returns the store that a node needs, if any. `left` counts the nodes that need one and cannot
/// get it.
fn change(node: &Node, mask: Option<&DisabledTpcs>, left: &mut Sat<usize>) -> Option<MaskWrite> {
    // A head has no blocks.
    if node.grid.contains(&0) {
        return None;
    }
    match mask_write(node, mask) {
        Ok(write) if write.words == node.stored => None,
        // Only the upload can check whether clusters and cooperative launches would fit.
        Ok(write) if node.plain => Some(write),
        // A node that cannot be changed holds its tenant's mask.
        Err(_) if mask.is_none() => None,
        _ => {
            *left += 1;
            None
        }
    }
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
