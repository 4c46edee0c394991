// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asks the core what is published in place of the tenant's work, and when.

mod segment;

use crate::channel::{Stream, SubmitCtx, LAUNCHES_MAX};
use crate::limits::LaunchLimits;
use crate::memory::{Heap, Run};
use crate::neighbours::GpuPeers;
use crate::stats::STATS;
use core::sync::atomic::{AtomicU64, Ordering};
use gct_core::lane::in_flight::{InFlightQueue, Submission};
use gct_core::lane::split::Atoms;
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

/// The longest segment that is processed, in words. CUDA's have hundreds, the upload of a graph's
/// nodes some ten thousand.
const WORDS_MAX: usize = 1 << 16;
/// The most kernels with a learnt duration, counting each program twice. The oldest are replaced.
const KERNELS_MAX: usize = 4096;

/// The most known nodes of CUDA graphs. Replays of others are counted as not covered.
const NODES_MAX: usize = 1 << 14;

/// The outcome of processing one entry of the tenant.
#[derive(Debug)]
pub(crate) enum Next {
    /// One entry, with its submission if its end can be observed.
    Whole {
        entry: u64,
        submission: Option<Submission<Run>>,
        /// The work left for the moment of release; `None` if there is none.
        seal: Option<Seal>,
    },
    /// A launch that is split into atoms.
    Atoms(Atoms<Run>),
}

/// The work done on a segment just before it is published: its launches get the mask of that
/// moment. It cannot be done twice, because it overwrites the tenant's words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seal {
    segment: Segment,
    /// The number of the segment's launches in the stream.
    found: usize,
    /// The value of `Governor::reads` while the governor's words are this segment's.
    read: u64,
    /// The round in which the segment was read. Its words are at `at` during that round.
    round: u64,
    at: Run,
    /// The time at which it was read.
    since: Ns,
    /// The time for which its launch may hold its TPCs.
    holds: Ns,
    /// Whether it stores nodes of a CUDA graph.
    stores: bool,
    /// Whether it replays one.
    replays: bool,
}

/// The limits of this process on one GPU, and room to process segments without allocating.
#[derive(Debug)]
pub(crate) struct Governor {
    limits: LaunchLimits,
    /// The daemon's pages and the peers, if there is a daemon.
    peers: Option<GpuPeers>,
    /// The GPU's TPCs.
    gpu: Topology,
    /// The TPCs that the limits allow.
    allowed: TpcMask,
    /// TPCs granted to the next release, and the same set as a QMD mask.
    granted: TpcMask,
    mask: Option<DisabledTpcs>,
    words: Vec<u32>,
    /// The number of segments that were read into `words`.
    reads: u64,
    /// The number of rounds of publishing of a channel. Nothing is unmapped within a round.
    rounds: u64,
    /// One order for each launch of a segment: too many for the stack of a signal handler.
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
    /// The time of the last publication or end.
    moved: Ns,
    /// The start of the last round, and whether the one before was too long ago.
    began: Ns,
    unseen: bool,
    /// Whether work was pending at the last [`end`](Self::end).
    pending: bool,
}

impl Governor {
    /// Creates a governor without limits or room. It processes nothing before
    /// [`prepare_with`](Self::prepare_with).
    pub(crate) const fn new() -> Self {
        Self {
            limits: LaunchLimits::NONE,
            peers: None,
            gpu: Topology::UNKNOWN,
            allowed: TpcMask::EMPTY,
            granted: TpcMask::EMPTY,
            mask: None,
            words: Vec::new(),
            reads: 0,
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
            moved: Ns(0),
            began: Ns(0),
            unseen: false,
            pending: false,
        }
    }

    /// Allocates, and sets `limits`. A signal handler must not call this.
    pub(crate) fn prepare_with(&mut self, limits: LaunchLimits) {
        if self.words.is_empty() {
            self.set_limits(limits);
            self.words = vec![0; WORDS_MAX];
            self.orders = vec![Order::default(); LAUNCHES_MAX];
            self.output = vec![0; WORDS_MAX];
            self.kernels = vec![None; KERNELS_MAX];
            self.nodes = vec![None; NODES_MAX];
        }
    }

    /// Returns the core's counters.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the limits.
    pub(crate) fn limits(&self) -> LaunchLimits {
        self.limits
    }

    /// Returns the TPCs that the limits allow.
    #[cfg(test)]
    pub(crate) fn allowed(&self) -> TpcMask {
        self.allowed
    }

    /// Sets limits, until a daemon changes them.
    pub(crate) fn set_limits(&mut self, limits: LaunchLimits) {
        self.limits = limits;
        self.use_own_mask();
    }

    /// Sets the GPU's TPCs. Without them nothing is masked.
    pub(crate) fn set_gpu(&mut self, gpu: Topology) {
        self.gpu = gpu;
        self.use_own_mask();
    }

    /// Returns the GPU's TPCs.
    pub(crate) fn gpu(&self) -> &Topology {
        &self.gpu
    }

    /// Keeps launches to `list`; `None` removes the mask.
    pub(crate) fn restrict(&mut self, list: Option<&TpcMask>) {
        self.limits.tpcs = list.copied();
        self.use_own_mask();
    }

    /// Connects to a daemon's pages; `None` leaves the last limits in force.
    pub(crate) fn set_peers(&mut self, peers: Option<GpuPeers>) {
        self.peers = peers;
        self.use_own_mask();
    }

    /// Returns the daemon's pages and the peers.
    pub(crate) fn peers(&mut self) -> Option<&mut GpuPeers> {
        self.peers.as_mut()
    }

    /// Uses the mask of the limits, regardless of the neighbours.
    fn use_own_mask(&mut self) {
        self.allowed = self.limits.allowed(&self.gpu);
        self.use_mask(self.allowed);
    }

    /// Restricts the next release to `granted`. All TPCs mean no mask unless a mask was asked for:
    /// then the launch stays unchanged.
    fn use_mask(&mut self, granted: TpcMask) {
        self.granted = granted;
        self.mask = Some(granted)
            .filter(|granted| self.limits.tpcs.is_some() || granted != self.gpu.existing())
            .and_then(|granted| DisabledTpcs::outside(&self.gpu, &granted).ok());
    }

    /// Starts a round of publishing: takes over limits that the daemon has changed.
    pub(crate) fn begin(&mut self, now: Ns) {
        self.unseen = now - self.began >= patience::BEAT_MAX;
        self.began = now;
        if let Some(peers) = &mut self.peers {
            if let Some(gpu) = peers.refresh(&mut self.limits) {
                self.set_gpu(gpu);
            }
        }
    }

    /// Ends a round. Tells the neighbours whether this process has work that they should wait for.
    /// `pending` says whether work is held back or in flight. Work that is frozen, or has not moved
    /// for long, does not count.
    pub(crate) fn end(&mut self, pending: bool, now: Ns) {
        if !self.pending || self.excuses() {
            self.moved = now;
        }
        self.pending = pending;
        let busy = pending && !self.limits.frozen && patience::moves(now - self.moved);
        if let Some(peers) = &mut self.peers {
            peers.set_busy(busy, now.get());
        }
    }

    /// Records a publication or an end.
    pub(crate) fn moved(&mut self, now: Ns) {
        self.moved = now;
    }

    /// Counts a stall of a channel, if a limit may be the reason.
    pub(crate) fn count_stalled(&mut self) {
        self.counters.stalled += u64::from(self.acts());
    }

    /// Discards the words, as processing a segment of another channel does.
    #[cfg(test)]
    pub(crate) fn read_elsewhere(&mut self) {
        self.words.fill(0);
        self.reads += 1;
    }

    /// Returns whether a pause has a known reason: the tenant is frozen, or the worker did not run
    /// because the process was stopped or slept.
    pub(crate) fn excuses(&self) -> bool {
        self.limits.frozen || self.unseen
    }

    /// Copies the counters to the daemon's page; not in every round.
    pub(crate) fn report(&self) {
        if let Some(peers) = &self.peers {
            let page = &peers.gpu().page;
            page.set_counters(&self.counters);
            page.set_effective(self.mask.is_some().then(|| *self.granted.words()));
            let set = |counter: &AtomicU64, value: &AtomicU64| {
                counter.store(value.load(Ordering::Relaxed), Ordering::Relaxed);
            };
            set(&page.counters.unmanaged, &STATS.unmanaged);
            set(&page.counters.unreadable, &STATS.unreadable);
        }
    }

    /// Starts a channel's round. Returns whether anything of this tenant may be published now.
    pub(crate) fn open(&mut self, now: Ns) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        !self.limits.frozen && self.may_run_for(Ns(0), now)
    }

    /// Returns whether work of duration `time` may run now, and decides on which TPCs.
    fn may_run_for(&mut self, time: Ns, now: Ns) -> bool {
        let Some(peers) = &mut self.peers else {
            return true;
        };
        let Some(granted) = peers.grant(&self.limits, &self.allowed, time, now.get()) else {
            return false;
        };
        if granted != self.granted {
            self.use_mask(granted);
        }
        true
    }

    /// Returns how many TPCs a launch would run on now.
    fn tpcs(&self) -> u64 {
        u64::from(self.granted.count())
    }

    /// Returns whether launches are changed at all.
    fn acts(&self) -> bool {
        self.mask.is_some() || self.limits.any()
    }

    /// Returns whether the ends of launches must be tracked.
    fn tracks_ends(&self) -> bool {
        self.limits.atom_ns > 0 || self.peers.is_some()
    }

    /// Returns whether `next` may join the channel's work in flight, and decides on which TPCs.
    pub(crate) fn admits(
        &mut self,
        queue: &InFlightQueue<Heap, Run>,
        stream: &Stream,
        next: &Next,
        now: Ns,
    ) -> Admission {
        let (in_flight, over) = (queue.totals(), queue.is_over(now));
        let (admission, holds) = match next {
            Next::Whole {
                submission, seal, ..
            } => {
                let predicted = submission.map(|submission| submission.predicted);
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
                let time = pace::atom_holds(in_flight, &atoms.split, atoms.submission.predicted);
                // Without a daemon the neighbours are unknown.
                let (peers, rank) = (self.peers.as_mut(), self.limits.rank);
                let alone = || peers.is_some_and(|peers| peers.is_alone_for(rank, time, now.get()));
                let admits = pace::admits_atom(in_flight, &atoms.split, alone);
                (in_flight.admission(admits, over), Some(time))
            }
            Next::Atoms(atoms) => {
                let time = pace::unknown_is_long(atoms.submission.predicted);
                (Admission::InTurn, Some(time))
            }
        };
        let waits = |governor: &mut Self| {
            holds.is_some_and(|time| !governor.may_run_for(time, now))
                || governor.drains(in_flight, stream, next, now)
        };
        match admission {
            Admission::Held => Admission::Held,
            _ if waits(self) => Admission::Held,
            admission => admission,
        }
    }

    /// Returns whether a replay must wait for the work in flight of its channel. A replay of the
    /// same graph may be reading the masks that this one changes.
    fn drains(&mut self, in_flight: &InFlight, stream: &Stream, next: &Next, now: Ns) -> bool {
        let Next::Whole {
            seal: Some(seal), ..
        } = next
        else {
            return false;
        };
        seal.replays
            && !pace::admits_alone(in_flight, now - seal.since)
            && self.changes(seal, stream)
    }

    /// Releases the next entry of `next`, which [`admits`](Self::admits) has just admitted. Returns
    /// the entry, its submission, and whether it is the last.
    pub(crate) fn release(
        &mut self,
        stream: &mut Stream,
        next: &mut Next,
        ctx: &mut SubmitCtx<'_>,
    ) -> (u64, Option<Submission<Run>>, bool) {
        match next {
            Next::Whole {
                entry,
                submission,
                seal,
            } => {
                let tpcs = self.tpcs();
                let submission = submission.map(|submission| Submission { tpcs, ..submission });
                let sealed = seal.and_then(|seal| self.seal(&seal, submission, stream, ctx));
                (
                    sealed.unwrap_or(*entry),
                    submission.filter(|_| self.tracks_ends()),
                    true,
                )
            }
            Next::Atoms(atoms) => {
                let mask = self.mask.as_ref();
                let (entry, submission, last) =
                    atoms.release(&mut stream.room, ctx.memory, mask, &mut self.counters);
                (entry, Some(submission).filter(|_| self.tracks_ends()), last)
            }
        }
    }

    /// Learns the duration of a submission that has ended.
    pub(crate) fn learn(&mut self, submission: &Submission<Run>, time: Ns) {
        let mut predictor = Predictor::new(&mut self.kernels, &mut self.uses);
        predictor.observe(&submission.kernel, submission.blocks, submission.tpcs, time);
    }
}
