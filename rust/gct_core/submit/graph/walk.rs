// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Follows the nodes that replays run.

use super::{Memory, Node, Replay, Slot, Table};
use crate::submit::join::Qmd;
use crate::submit::limits::GRAPH_NODES_MAX;
use crate::units::Sat;

/// A walk over the nodes that the replays of one segment run. It shows each node once, so that a
/// segment with many replays of a large graph costs no more than one.
#[derive(Debug)]
pub(super) struct Walk {
    /// The number that visited nodes hold.
    mark: u32,
    /// Nodes that were looked at, each time.
    pub(super) visits: Sat<usize>,
    /// Whether a replay has parts that are not covered. Another replay may have the same, so one
    /// that meets its nodes counts as not covered either.
    pub(super) is_partial: bool,
}

impl<N: Table<Slot>, Q: Table<Qmd>> Memory<'_, N, Q> {
    /// Begins a walk.
    pub(super) fn walk(&mut self) -> Walk {
        Walk {
            mark: self.tick(),
            visits: Sat(0),
            is_partial: false,
        }
    }

    /// Follows one replay as [`replay`](Self::replay) does, and shows every node once.
    pub(super) fn visit(&mut self, head: u64, show: impl FnMut(&mut Node)) -> Option<Replay> {
        self.get(head)?;
        let mut walk = self.walk();
        self.follow(&mut walk, head, show)
    }

    /// Follows one more replay, and shows the nodes that the walk has not shown. Returns `None` for
    /// an unknown QMD.
    ///
    /// The nodes of the result are those shown. A part that an earlier replay of the walk does not
    /// cover counts as one unknown node.
    pub(super) fn follow(
        &mut self,
        walk: &mut Walk,
        head: u64,
        mut show: impl FnMut(&mut Node),
    ) -> Option<Replay> {
        self.get(head)?;
        let (mut nodes, mut unknown) = (Sat(0u32), Sat(0u32));
        // Nodes to visit. CUDA's graphs are chains joined by counters, so few are open at a time.
        let mut open = [0u64; 64];
        let mut count = Sat(1usize);
        open[0] = head;
        for _ in 0..GRAPH_NODES_MAX {
            if count == Sat(0) {
                break;
            }
            count -= 1;
            walk.visits += 1;
            let va = open.get(count.0).copied().unwrap_or(0);
            let Some(node) = self.get_mut(va) else {
                unknown += 1;
                continue;
            };
            if node.reached == walk.mark {
                unknown += u32::from(walk.is_partial);
                continue;
            }
            node.reached = walk.mark;
            show(node);
            nodes += 1;
            for next in node.next.into_iter().flatten() {
                match open.get_mut(count.0) {
                    Some(slot) => {
                        *slot = next;
                        count += 1;
                    }
                    None => unknown += 1,
                }
            }
        }
        // Otherwise the graph is larger than the bound.
        unknown += u32::from(count != Sat(0));
        walk.is_partial |= unknown != Sat(0);
        Some(Replay {
            head,
            nodes: nodes.0,
            unknown: unknown.0,
        })
    }
}
