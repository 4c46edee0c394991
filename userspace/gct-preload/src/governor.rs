// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks the core what the GPU should get instead of what the tenant wrote, and when.

mod look;

use crate::channel::{Around, Stream, LAUNCHES_MAX};
use crate::limits::Limits;
use crate::line::{Line, Piece};
use crate::neighbours::Place;
use crate::split::Atoms;
use crate::stats::STATS;
use core::sync::atomic::{AtomicU64, Ordering};
use gct_core::mask::TpcMask;
use gct_core::policy::pace::{self, Admission, InFlight};
use gct_core::policy::patience;
use gct_core::policy::predict::{self, Predictor};
use gct_core::submit::gpfifo::Segment;
use gct_core::submit::graph::Node;
use gct_core::submit::mask::DisabledTpcs;
use gct_core::submit::rewrite::Order;
use gct_core::submit::stats::Counters;
use gct_core::topology::Topology;
use gct_core::units::Ns;

/// The longest segment that is looked at. CUDA's have hundreds of words, an upload of a
/// graph's nodes some ten thousand.
const WORDS_MAX: usize = 1 << 16;
/// Kernels whose time is remembered, counting each program twice; the oldest make room.
const KERNELS_MAX: usize = 4096;

/// Nodes of CUDA graphs that are known; replays of others are counted as not covered.
const NODES_MAX: usize = 1 << 14;

/// What the governor made of one entry of the tenant's.
#[derive(Debug)]
pub(crate) enum Next {
    /// One entry, and what can be told of its launch.
    Whole {
        entry: u64,
        piece: Option<Piece>,
        /// What is still to be done before it goes; `None` if nothing is.
        seal: Option<Seal>,
    },
    /// A launch in atoms.
    Atoms(Atoms),
}

/// What is done to a segment just before it is published, when its turn has come: its launches get the mask of that moment. It
/// cannot be done twice, because what the tenant wrote is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seal {
    segment: Segment,
    /// How many launches the stream has of it.
    found: usize,
    /// For which look at a segment the governor's words are this one's.
    look: u64,
    /// In which round of its channel it was looked at, and where its words are for as long as that lasts.
    round: u64,
    at: usize,
    /// When it was looked at.
    since_ns: u64,
    /// For how long its launch may hold its TPCs.
    holds: Ns,
    /// It stores nodes of a CUDA graph.
    stores: bool,
    /// It replays one.
    replays: bool,
}

/// This process's limits, and room to work on its segments without allocating.
#[derive(Debug)]
pub(crate) struct Governor {
    limits: Limits,
    /// Where a daemon looks after this process.
    place: Option<Place>,
    /// The GPU's TPCs.
    gpu: Topology,
    /// The TPCs that the limits allow.
    allowed: TpcMask,
    /// The TPCs that what is let go next may use, and the same as a mask.
    granted: TpcMask,
    mask: Option<DisabledTpcs>,
    words: Vec<u32>,
    /// How many segments were read into `words`.
    looks: u64,
    /// How often a channel began to publish. Nothing is unmapped before it has ended.
    rounds: u64,
    /// As many orders as a segment may have launches: too many for the stack of a signal handler.
    orders: Vec<Order<'static>>,
    output: Vec<u32>,
    kernels: Vec<Option<predict::Entry>>,
    uses: u32,
    /// The stored QMDs of CUDA graphs, and the number of the last replay.
    nodes: Vec<Option<Node>>,
    knows_nodes: bool,
    replays: u32,
    splits: u32,
    counters: Counters,
    /// When something was published or ended last.
    moved_ns: u64,
    /// When the last round began, and whether nobody had looked for long before.
    looked_ns: u64,
    unseen: bool,
    /// Whether something was pending at the last [`end`](Self::end).
    pending: bool,
}

impl Governor {
    /// Without limits and without room; nothing is looked at before [`prepare`](Self::prepare).
    pub(crate) const fn new() -> Self {
        Self {
            limits: Limits::NONE,
            place: None,
            gpu: Topology::UNKNOWN,
            allowed: TpcMask::EMPTY,
            granted: TpcMask::EMPTY,
            mask: None,
            words: Vec::new(),
            looks: 0,
            rounds: 0,
            orders: Vec::new(),
            output: Vec::new(),
            kernels: Vec::new(),
            uses: 0,
            nodes: Vec::new(),
            knows_nodes: false,
            replays: 0,
            splits: 0,
            counters: Counters::new(),
            moved_ns: 0,
            looked_ns: 0,
            unseen: false,
            pending: false,
        }
    }

    /// Allocates, for these limits; never called in a signal handler.
    pub(crate) fn prepare_with(&mut self, limits: Limits) {
        if self.words.is_empty() {
            self.set_limits(limits);
            self.words = vec![0; WORDS_MAX];
            self.orders = vec![Order::default(); LAUNCHES_MAX];
            self.output = vec![0; WORDS_MAX];
            self.kernels = vec![None; KERNELS_MAX];
            self.nodes = vec![None; NODES_MAX];
        }
    }

    /// The core's counters.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The limits.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The TPCs that the limits allow.
    #[cfg(test)]
    pub(crate) fn allowed(&self) -> TpcMask {
        self.allowed
    }

    /// Sets limits, until a daemon changes them.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.use_own_mask();
    }

    /// Which TPCs the GPU has. Without them nothing is masked.
    pub(crate) fn set_gpu(&mut self, gpu: Topology) {
        self.gpu = gpu;
        self.use_own_mask();
    }

    /// The GPU's TPCs.
    pub(crate) fn gpu(&self) -> &Topology {
        &self.gpu
    }

    /// Keeps launches to `list`; `None` is no mask.
    pub(crate) fn restrict(&mut self, list: Option<&TpcMask>) {
        self.limits.tpcs = list.copied();
        self.use_own_mask();
    }

    /// Whose daemon looks after this process; `None` leaves the last limits in force.
    pub(crate) fn set_place(&mut self, place: Option<Place>) {
        self.place = place;
        self.use_own_mask();
    }

    /// Where a daemon looks after this process.
    pub(crate) fn place(&mut self) -> Option<&mut Place> {
        self.place.as_mut()
    }

    /// The mask of the limits, without a look at the neighbours.
    fn use_own_mask(&mut self) {
        self.allowed = self.limits.allowed(&self.gpu);
        self.use_mask(self.allowed);
    }

    /// Keeps what is let go next to `granted`. All TPCs are no mask, unless it was asked for: nothing of the launch is
    /// touched.
    fn use_mask(&mut self, granted: TpcMask) {
        self.granted = granted;
        self.mask = Some(granted)
            .filter(|granted| self.limits.tpcs.is_some() || granted != self.gpu.existing())
            .and_then(|granted| DisabledTpcs::outside(&self.gpu, &granted).ok());
    }

    /// To be called before a round of publishing: takes over what the daemon has changed.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.unseen = Ns(now_ns.saturating_sub(self.looked_ns)) >= patience::BEAT_MAX;
        self.looked_ns = now_ns;
        if let Some(place) = &mut self.place {
            if let Some(gpu) = place.refresh(&mut self.limits) {
                self.set_gpu(gpu);
            }
        }
    }

    /// To be called after a round, with whether something is held back or in flight: tells the neighbours whether this process
    /// has work that they should wait for. What is frozen, or has not moved for long, is not.
    pub(crate) fn end(&mut self, pending: bool, now_ns: u64) {
        if !self.pending || self.excuses() {
            self.moved_ns = now_ns;
        }
        self.pending = pending;
        let still = Ns(now_ns.saturating_sub(self.moved_ns));
        let busy = pending && !self.limits.frozen && patience::moves(still);
        if let Some(place) = &mut self.place {
            place.set_busy(busy, now_ns);
        }
    }

    /// Something was published, or has ended.
    pub(crate) fn moved(&mut self, now_ns: u64) {
        self.moved_ns = now_ns;
    }

    /// What is in flight in a channel has stalled, which matters if a limit may be why.
    pub(crate) fn count_stalled(&mut self) {
        self.counters.stalled += u64::from(self.acts());
    }

    /// As if a segment of another channel had been looked at.
    #[cfg(test)]
    pub(crate) fn look_elsewhere(&mut self) {
        self.words.fill(0);
        self.looks += 1;
    }

    /// Whether it is known why nothing may have moved: it is frozen, or nobody has looked, because this process was stopped or
    /// slept.
    pub(crate) fn excuses(&self) -> bool {
        self.limits.frozen || self.unseen
    }

    /// Copies the counters for the daemon; not on every round.
    pub(crate) fn report(&self) {
        if let Some(place) = &self.place {
            let page = &place.gpu().page;
            page.set_counters(&self.counters);
            page.set_effective(self.mask.is_some().then(|| *self.granted.words()));
            let set = |counter: &AtomicU64, value: &AtomicU64| {
                counter.store(value.load(Ordering::Relaxed), Ordering::Relaxed);
            };
            set(&page.counters.unmanaged, &STATS.unmanaged);
            set(&page.counters.unreadable, &STATS.unreadable);
        }
    }

    /// To be called when a channel begins to publish: whether anything of this tenant may be published now.
    pub(crate) fn open(&mut self, now_ns: u64) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        !self.limits.frozen && self.may_run_for(Ns(0), now_ns)
    }

    /// Whether something that takes `time` may run now; decides on which TPCs.
    fn may_run_for(&mut self, time: Ns, now_ns: u64) -> bool {
        let Some(place) = &mut self.place else {
            return true;
        };
        let Some(granted) = place.grant(&self.limits, &self.allowed, time, now_ns) else {
            return false;
        };
        if granted != self.granted {
            self.use_mask(granted);
        }
        true
    }

    /// On how many TPCs a launch runs now, as far as is known.
    fn tpcs(&self) -> u64 {
        u64::from(self.granted.count())
    }

    /// Whether anything of a launch is to change.
    fn acts(&self) -> bool {
        self.mask.is_some() || self.limits.any()
    }

    /// Whether the ends of launches matter.
    fn follows(&self) -> bool {
        self.limits.atom_ns > 0 || self.place.is_some()
    }

    /// Whether `next` may join what its channel has on the GPU; decides on which TPCs.
    pub(crate) fn admits(
        &mut self,
        line: &Line,
        stream: &Stream,
        next: &Next,
        now_ns: u64,
    ) -> Admission {
        let (in_flight, over) = (line.in_flight(), line.is_over(now_ns));
        let (admission, holds) = match next {
            Next::Whole { piece, seal, .. } => {
                let predicted = piece.map(|piece| piece.predicted);
                let target = Ns(self.limits.atom_ns);
                let admission = match predicted.filter(|_| target > Ns(0)) {
                    Some(predicted) => {
                        let admits = pace::admits_whole(in_flight, predicted, target);
                        in_flight.admission(admits, over)
                    }
                    None => Admission::InTurn,
                };
                (admission, seal.map(|seal| seal.holds))
            }
            Next::Atoms(atoms) if atoms.is_paced() => {
                let time = pace::atom_holds(in_flight, &atoms.split, atoms.piece.predicted);
                // Without a daemon nobody says who else is there.
                let (place, rank) = (self.place.as_mut(), self.limits.rank);
                let alone = || place.is_some_and(|place| place.is_alone_for(rank, time, now_ns));
                let admits = pace::admits_atom(in_flight, &atoms.split, alone);
                (in_flight.admission(admits, over), Some(time))
            }
            Next::Atoms(atoms) => {
                let time = pace::unknown_is_long(atoms.piece.predicted);
                (Admission::InTurn, Some(time))
            }
        };
        let waits = |governor: &mut Self| {
            holds.is_some_and(|time| !governor.may_run_for(time, now_ns))
                || governor.drains(in_flight, stream, next, now_ns)
        };
        match admission {
            Admission::Held => Admission::Held,
            _ if waits(self) => Admission::Held,
            admission => admission,
        }
    }

    /// Whether a replay must wait for what its channel has in flight: a replay of the same graph may be reading the masks that
    /// it changes.
    fn drains(&mut self, in_flight: &InFlight, stream: &Stream, next: &Next, now_ns: u64) -> bool {
        let Next::Whole {
            seal: Some(seal), ..
        } = next
        else {
            return false;
        };
        let waited = Ns(now_ns.saturating_sub(seal.since_ns));
        seal.replays && !pace::admits_alone(in_flight, waited) && self.changes(seal, stream)
    }

    /// The entry that is to be published next of `next`, what it is a piece of, and whether it
    /// is the last. [`admits`](Self::admits) has just admitted it.
    pub(crate) fn release(
        &mut self,
        stream: &mut Stream,
        next: &mut Next,
        around: &mut Around<'_>,
    ) -> (u64, Option<Piece>, bool) {
        match next {
            Next::Whole { entry, piece, seal } => {
                let tpcs = self.tpcs();
                let piece = piece.map(|piece| Piece { tpcs, ..piece });
                let sealed = seal.and_then(|seal| self.seal(&seal, piece, stream, around));
                (
                    sealed.unwrap_or(*entry),
                    piece.filter(|_| self.follows()),
                    true,
                )
            }
            Next::Atoms(atoms) => {
                let mask = self.mask.as_ref();
                let (entry, piece, last) =
                    atoms.release(&mut stream.room, mask, &mut self.counters);
                (entry, Some(piece).filter(|_| self.follows()), last)
            }
        }
    }

    /// A piece has ended after so long.
    pub(crate) fn learn(&mut self, piece: &Piece, time: Ns) {
        let mut predictor = Predictor::new(&mut self.kernels, &mut self.uses);
        predictor.observe(&piece.kernel, piece.blocks, piece.tpcs, time);
    }
}
