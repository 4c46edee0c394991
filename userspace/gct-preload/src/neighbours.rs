// SPDX-License-Identifier: GPL-2.0 OR MIT

//! This process among those on the same GPU: what the daemon says, who has work, and what
//! that leaves for the next launch.

use crate::limits::Limits;
use gct_core::mask::TpcMask;
use gct_core::policy::arrivals::{ArrivalStats, PAUSE_MIN};
use gct_core::policy::patience::{self, Signs};
use gct_core::policy::tpc::{self, Neighbour, Rank, Tenant};
use gct_core::topology::Topology;
use gct_core::units::{Ns, Priority};
use gctd_ipc::board::{Peer, Slot, SLOTS_MAX};
use gctd_ipc::tenant::Gpu;
use std::sync::Arc;

/// This process on a GPU that a daemon looks after.
#[derive(Debug)]
pub(crate) struct Place {
    gpu: Arc<Gpu>,
    peers: Vec<Peer>,
    /// The TPCs that are reserved for this process.
    own: TpcMask,
    /// What the board says of each peer, by its place in `peers`.
    slots: Vec<Option<Slot>>,
    board: u64,
    limits: u64,
    neighbours: Vec<Neighbour>,
    arrivals: ArrivalStats,
    busy: bool,
    /// When this process gave a sign of life last.
    beat_ns: u64,
    /// Since when it works on the present request, or on the last one.
    request_since_ns: u64,
    idle_since_ns: u64,
}

impl Place {
    /// A place on `gpu` beside `peers`. Allocates all that is needed later, in a signal handler.
    pub(crate) fn new(gpu: Arc<Gpu>, peers: Vec<Peer>) -> Self {
        Self {
            gpu,
            peers,
            own: TpcMask::EMPTY,
            slots: Vec::with_capacity(SLOTS_MAX),
            board: u64::MAX,
            limits: 0,
            neighbours: Vec::with_capacity(SLOTS_MAX),
            arrivals: ArrivalStats::default(),
            busy: false,
            beat_ns: 0,
            request_since_ns: 0,
            idle_since_ns: 0,
        }
    }

    /// The GPU's pages.
    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Other peers, on the same GPU.
    pub(crate) fn set_peers(&mut self, peers: Vec<Peer>) {
        self.peers = peers;
        self.board = u64::MAX;
    }

    /// Takes over limits that the daemon has changed; the GPU's TPCs if it has.
    pub(crate) fn refresh(&mut self, limits: &mut Limits) -> Option<Topology> {
        if self.gpu.page.generation() == self.limits {
            return None;
        }
        let (generation, new) = self.gpu.page.limits()?;
        limits.take(&new);
        self.limits = generation;
        self.gpu.page.acknowledge(generation);
        Some(new.topology)
    }

    /// Whether nobody else is expected for `time` on the TPCs that this process may use.
    pub(crate) fn is_alone_for(&mut self, rank: Rank, time: Ns, now_ns: u64) -> bool {
        self.look_around(now_ns);
        tpc::nobody_expected(rank, time, &self.neighbours)
    }

    /// Tells the neighbours whether this process has work that goes on.
    pub(crate) fn set_busy(&mut self, busy: bool, now_ns: u64) {
        if busy == self.busy {
            if busy && Ns(now_ns.saturating_sub(self.beat_ns)) >= patience::BEAT_EVERY {
                self.beat_ns = now_ns;
                self.gpu.pulse.beat(now_ns);
            }
            return;
        }
        self.busy = busy;
        if busy {
            self.beat_ns = now_ns;
            self.gpu.pulse.busy(now_ns);
            self.resume(now_ns);
        } else {
            self.idle_since_ns = now_ns;
            self.gpu.pulse.idle(now_ns);
        }
    }

    /// There is work again: another request, unless the pause was one within the same.
    fn resume(&mut self, now_ns: u64) {
        let pause = Ns(now_ns.saturating_sub(self.idle_since_ns));
        if self.idle_since_ns != 0 && pause < PAUSE_MIN {
            return;
        }
        if self.idle_since_ns != 0 {
            let request = Ns(self.idle_since_ns.saturating_sub(self.request_since_ns));
            self.arrivals = self.arrivals.after(request, pause);
            self.gpu.pulse.set_arrivals(self.arrivals.to_word());
        }
        self.request_since_ns = now_ns;
    }

    /// Looks at the neighbours.
    fn look_around(&mut self, now_ns: u64) {
        let generation = self.gpu.board.generation();
        if generation != self.board {
            self.board = generation;
            self.read_board();
        }
        self.neighbours.clear();
        for (peer, slot) in self.peers.iter().zip(&self.slots) {
            let Some(slot) = slot else { continue };
            let signs = Signs {
                claims: peer.busy_since_ns().is_some(),
                beat: Ns(peer.beat_ns()),
                idle_since: Ns(peer.idle_since_ns()),
            };
            self.neighbours.push(Neighbour {
                own: TpcMask::from_words(slot.tpcs),
                allowed: TpcMask::from_words(slot.allowed),
                lends: slot.lends,
                rank: rank(slot),
                busy: signs.is_busy(Ns(now_ns)),
                idle: signs.idle(Ns(now_ns)),
                arrivals: ArrivalStats::from_word(peer.arrivals()),
            });
        }
    }

    /// Reads what the board says of this process and of each peer.
    fn read_board(&mut self) {
        let board = &self.gpu.board;
        let slot = |index, user| board.slot(index).filter(|slot| slot.user == user);
        let mine = self.gpu.slot.and_then(|(index, user)| slot(index, user));
        let mine = mine.unwrap_or_default();
        self.own = TpcMask::from_words(mine.tpcs);
        self.slots.clear();
        for peer in self.peers.iter().take(SLOTS_MAX) {
            let slot = slot(peer.slot, peer.user);
            self.slots.push(slot.and_then(|slot| beside(slot, &mine)));
        }
    }

    /// Which of the TPCs `allowed` may be used now for `time`; `None` is an order to wait.
    pub(crate) fn grant(
        &mut self,
        limits: &Limits,
        allowed: &TpcMask,
        time: Ns,
        now_ns: u64,
    ) -> Option<TpcMask> {
        self.look_around(now_ns);
        let tenant = Tenant {
            allowed: *allowed,
            own: self.own,
            steal: limits.steal,
            rank: limits.rank,
        };
        let granted = tpc::grant(&tenant, time, &self.neighbours);
        (!granted.is_empty()).then_some(granted)
    }
}

/// What matters of a peer beside `mine`: of one of the same group, which shares what is reserved for it, its own TPCs and its
/// place in the order, if that is another.
fn beside(slot: Slot, mine: &Slot) -> Option<Slot> {
    if slot.tenant != mine.tenant {
        return Some(slot);
    }
    let differs = slot.alone != [0; 4] || rank(&slot) != rank(mine);
    let tpcs = slot.alone;
    differs.then_some(Slot { tpcs, ..slot })
}

/// A slot's place in the order.
fn rank(slot: &Slot) -> Rank {
    Rank {
        best_effort: slot.best_effort,
        priority: Priority(slot.priority),
    }
}

#[cfg(test)]
mod tests;
