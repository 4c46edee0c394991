// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks the other processes on the same GPU: which have work, and which TPCs that leaves for the
//! next launch.

use crate::limits::{self, LaunchLimits};
use gct_core::lane::governor::{Peers, Surroundings};
use gct_core::mask::TpcMask;
use gct_core::policy::arrivals::{ArrivalStats, PAUSE_MIN};
use gct_core::policy::patience::{self, Signs};
use gct_core::policy::share::{Place, Rival, Sign};
use gct_core::policy::tpc::{Neighbour, Rank};
use gct_core::topology::Topology;
use gct_core::units::{Ns, Priority};
use gctd_ipc::board::{Peer, Slot, SlotIndex, SLOTS_MAX};
use gctd_ipc::tenant::Gpu;
use std::sync::Arc;

/// This process and its peers on a GPU with a daemon.
#[derive(Debug)]
pub(crate) struct GpuPeers {
    gpu: Arc<Gpu>,
    peers: Vec<Peer>,
    /// The TPCs that are reserved for this process.
    own: TpcMask,
    /// The board's slot of each peer, by its index in `peers`.
    slots: Vec<Option<Slot>>,
    board: u64,
    limits: u64,
    neighbours: Vec<Neighbour>,
    /// The peers that have a slot.
    rivals: Vec<Rival>,
    /// The slot and its user of each of `rivals`, and its index in `peers`.
    known: Vec<((SlotIndex, u32), usize)>,
    /// The board's generation for which they were set.
    related: u64,
    /// What was published last.
    sign: Sign,
    arrivals: ArrivalStats,
    busy: bool,
    /// The time of the last heartbeat.
    beat_ns: u64,
    /// The start of the present request, or of the last one.
    request_since_ns: u64,
    idle_since_ns: u64,
}

impl GpuPeers {
    /// Creates the state for `gpu` with `peers`. It allocates all room here, because a signal
    /// handler uses it.
    pub(crate) fn new(gpu: Arc<Gpu>, peers: Vec<Peer>) -> Self {
        Self {
            gpu,
            peers,
            own: TpcMask::EMPTY,
            slots: Vec::with_capacity(SLOTS_MAX),
            board: u64::MAX,
            limits: 0,
            neighbours: Vec::with_capacity(SLOTS_MAX),
            // Those of before and those of now.
            rivals: Vec::with_capacity(2 * SLOTS_MAX),
            known: Vec::with_capacity(2 * SLOTS_MAX),
            related: u64::MAX,
            sign: Sign::default(),
            arrivals: ArrivalStats::default(),
            busy: false,
            beat_ns: 0,
            request_since_ns: 0,
            idle_since_ns: 0,
        }
    }

    /// Returns the GPU's pages.
    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Replaces the peers.
    pub(crate) fn set_peers(&mut self, peers: Vec<Peer>) {
        self.peers = peers;
        self.board = u64::MAX;
        self.related = u64::MAX;
    }

    /// Starts another request, unless the pause was one within the same request.
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

    /// Updates `neighbours` from the board and the peers' pulses.
    fn update(&mut self, now: Ns) {
        let generation = self.gpu.board.generation();
        if generation != self.board {
            self.board = generation;
            self.read_board();
        }
        self.neighbours.clear();
        for (peer, slot) in self.peers.iter().zip(&self.slots) {
            let Some(slot) = slot else { continue };
            let signs = signs(peer);
            self.neighbours.push(Neighbour {
                own: TpcMask::from_words(slot.tpcs),
                allowed: TpcMask::from_words(slot.allowed),
                lends: slot.lends,
                rank: rank(slot),
                busy: signs.is_busy(now),
                idle: signs.idle(now),
                arrivals: ArrivalStats::from_word(peer.arrivals()),
            });
        }
    }

    /// Updates `rivals` from the board. A peer that was there before keeps what is known of it.
    fn relate(&mut self) {
        let board = &self.gpu.board;
        let slot = |index, user| board.slot(index).filter(|slot: &Slot| slot.user == user);
        let mine = self.gpu.slot.and_then(|(index, user)| slot(index, user));
        let mine = mine.map(|slot| place(&slot));
        let mut count = 0;
        for (index, peer) in self.peers.iter().take(SLOTS_MAX).enumerate() {
            let (Some(mine), Some(slot)) = (mine, slot(peer.slot, peer.user)) else {
                continue;
            };
            let relation = mine.relation(&place(&slot));
            let key = (peer.slot, peer.user);
            let at = (count..self.known.len()).find(|at| self.known[*at].0 == key);
            let at = at.unwrap_or_else(|| {
                self.rivals.push(Rival::new(relation));
                self.known.push((key, index));
                self.rivals.len() - 1
            });
            self.rivals[at].set_relation(relation);
            self.known[at].1 = index;
            self.rivals.swap(count, at);
            self.known.swap(count, at);
            count += 1;
        }
        self.rivals.truncate(count);
        self.known.truncate(count);
    }

    /// Reads the slots of this process and of its peers from the board.
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
}

impl Peers for GpuPeers {
    fn refresh(&mut self, limits: &mut LaunchLimits) -> Option<Topology> {
        if self.gpu.page.generation() == self.limits {
            return None;
        }
        let (generation, new) = self.gpu.page.limits()?;
        limits::take(limits, &new);
        self.limits = generation;
        self.gpu.page.acknowledge(generation);
        Some(new.topology)
    }

    fn look_around(&mut self, now: Ns) -> Surroundings<'_> {
        self.update(now);
        Surroundings {
            own: self.own,
            neighbours: &self.neighbours,
        }
    }

    fn rivals(&mut self, now: Ns) -> &mut [Rival] {
        let generation = self.gpu.board.generation();
        if generation != self.related {
            self.related = generation;
            self.relate();
        }
        for (rival, (_, at)) in self.rivals.iter_mut().zip(&self.known) {
            if let Some(peer) = self.peers.get(*at) {
                rival.see(peer.sign(), signs(peer).is_busy(now), now);
            }
        }
        &mut self.rivals
    }

    fn publish_sign(&mut self, sign: Sign) {
        self.gpu.pulse.set_sign(&sign, &self.sign);
        self.sign = sign;
    }

    fn set_busy(&mut self, busy: bool, now: Ns) {
        let now_ns = now.get();
        if busy == self.busy {
            if busy && now - Ns(self.beat_ns) >= patience::BEAT_EVERY {
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
}

/// Returns the slot of a peer as `mine` must regard it. Peers of the same group share its reserved
/// TPCs, so only their own TPCs and their place in the order count. Returns `None` if neither
/// differs.
fn beside(slot: Slot, mine: &Slot) -> Option<Slot> {
    if slot.tenant != mine.tenant {
        return Some(slot);
    }
    let differs = slot.alone != [0; 4] || rank(&slot) != rank(mine);
    let tpcs = slot.alone;
    differs.then_some(Slot { tpcs, ..slot })
}

/// Returns what a peer publishes about its work.
fn signs(peer: &Peer) -> Signs {
    Signs {
        claims: peer.busy_since_ns().is_some(),
        beat: Ns(peer.beat_ns()),
        idle_since: Ns(peer.idle_since_ns()),
    }
}

/// Returns what decides with whom the process of a slot takes turns.
fn place(slot: &Slot) -> Place {
    Place {
        owner: slot.tenant,
        number: slot.user,
        rank: rank(slot),
        own: TpcMask::from_words(slot.tpcs).or(&TpcMask::from_words(slot.alone)),
        allowed: TpcMask::from_words(slot.allowed),
        weight: slot.weight,
    }
}

/// Returns a slot's place in the order.
fn rank(slot: &Slot) -> Rank {
    Rank {
        best_effort: slot.best_effort,
        priority: Priority(slot.priority),
    }
}

#[cfg(test)]
mod tests;
