// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks the other processes on the same GPU: which have work, and which TPCs that leaves for the
//! next launch.

use crate::driver::size;
use crate::limits::{self, LaunchLimits};
use core::sync::atomic::{AtomicBool, Ordering};
use gct_core::lane::decide::Others;
use gct_core::lane::governor::Peers;
use gct_core::lane::standing::{Activity, Standing};
use gct_core::mask::TpcMask;
use gct_core::policy::arrivals::ArrivalStats;
use gct_core::policy::patience::Signs;
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
    /// The board's generation before they were read.
    peers_at: u64,
    /// The TPCs that are reserved for this process, by its slot; `None` without one.
    own: Option<TpcMask>,
    /// The same by its page.
    reserved: TpcMask,
    /// The limits of each peer that count beside this process, by its index in `peers`.
    standings: Vec<Option<Standing>>,
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
    activity: Activity,
    /// Whether this process has channels in another one's channel group, as a client of MPS has.
    shares_group: Arc<AtomicBool>,
}

impl GpuPeers {
    /// Creates the state for `gpu` with `peers`, read after the board had a generation. It
    /// allocates all room here, because a signal handler uses it.
    pub(crate) fn new(
        gpu: Arc<Gpu>,
        peers: (Vec<Peer>, u64),
        shares_group: Arc<AtomicBool>,
    ) -> Self {
        Self {
            gpu,
            peers: peers.0,
            peers_at: peers.1,
            shares_group,
            own: None,
            reserved: TpcMask::EMPTY,
            standings: Vec::with_capacity(SLOTS_MAX),
            board: u64::MAX,
            limits: 0,
            neighbours: Vec::with_capacity(SLOTS_MAX),
            // Those of before and those of now.
            rivals: Vec::with_capacity(2 * SLOTS_MAX),
            known: Vec::with_capacity(2 * SLOTS_MAX),
            related: u64::MAX,
            sign: Sign::default(),
            activity: Activity::default(),
        }
    }

    /// Returns the GPU's pages.
    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Replaces the peers, read after the board had a generation.
    pub(crate) fn set_peers(&mut self, (peers, at): (Vec<Peer>, u64)) {
        self.peers = peers;
        self.peers_at = at;
        self.board = u64::MAX;
        self.related = u64::MAX;
    }

    /// Updates `neighbours` from the board and the peers' pulses.
    fn update(&mut self, now: Ns) {
        let generation = self.gpu.board.generation();
        if generation != self.board {
            self.board = generation;
            self.read_board();
        }
        self.neighbours.clear();
        for (peer, standing) in self.peers.iter().zip(&self.standings) {
            let Some(standing) = standing else { continue };
            let arrivals = ArrivalStats::from_word(peer.arrivals());
            let neighbour = standing.neighbour(&signs(peer), arrivals, peer.ebb(), now);
            self.neighbours.push(neighbour);
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
        self.own = mine.map(|slot| TpcMask::from_words(slot.tpcs));
        let mine = mine.unwrap_or_default();
        self.standings.clear();
        for peer in self.peers.iter().take(SLOTS_MAX) {
            let slot = slot(peer.slot, peer.user);
            let beside = |slot: Slot| {
                let is_sibling = slot.tenant == mine.tenant;
                standing(&slot).beside(standing(&mine).rank, is_sibling)
            };
            self.standings.push(slot.and_then(beside));
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
        self.reserved = TpcMask::from_words(new.own);
        self.limits = generation;
        self.gpu.page.acknowledge(generation);
        Some(new.topology)
    }

    fn look_around(&mut self, now: Ns) -> Others<'_> {
        self.update(now);
        Others {
            own: self.own.unwrap_or(self.reserved),
            neighbours: &self.neighbours,
            rivals: &self.rivals,
            by_turns: !self.shares_group.load(Ordering::Relaxed),
            shown: size::shown_on(self.gpu.minor),
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

    fn publish_ebb(&mut self, ebb: &TpcMask) {
        if *ebb != self.activity.ebb {
            self.gpu.pulse.set_ebb(ebb);
            self.activity.ebb = *ebb;
        }
    }

    fn is_alone(&self) -> bool {
        // Somebody may have come since.
        self.peers.is_empty() && self.peers_at == self.gpu.board.generation()
    }

    fn set_busy(&mut self, busy: bool, now: Ns) {
        let before = self.activity;
        self.activity.set_busy(busy, now);
        let (pulse, now_ns) = (&self.gpu.pulse, now.get());
        match (before.signs.claims, busy) {
            (false, true) => pulse.busy(now_ns),
            (true, false) => pulse.idle(now_ns),
            _ if self.activity.signs.beat != before.signs.beat => pulse.beat(now_ns),
            _ => {}
        }
        if self.activity.arrivals != before.arrivals {
            pulse.set_arrivals(self.activity.arrivals.to_word());
        }
    }
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
    standing(slot).place(slot.tenant, slot.user)
}

/// Returns the limits of the process of a slot that concern its neighbours.
fn standing(slot: &Slot) -> Standing {
    Standing {
        own: TpcMask::from_words(slot.tpcs),
        alone: TpcMask::from_words(slot.alone),
        allowed: TpcMask::from_words(slot.allowed),
        lends: slot.lends,
        confined: slot.confined,
        rank: rank(slot),
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
