// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides for one tenant on one GPU what is published in place of its work, and when.

use super::clock::Measured;
use super::decide::{self, Me, Others, Piece, Release};
use super::limits::LaunchLimits;
use super::nodes::Nodes;
use super::sizing::{self, Sizing};
use super::words::Storage;
use crate::gpu_time::{GpuTime, Held, Hold};
use crate::mask::TpcMask;
use crate::policy::clock::kernels::{self, Sums};
use crate::policy::pace::{InFlight, YIELDING};
use crate::policy::patience;
use crate::policy::precedence;
use crate::policy::predict::{self, Habits};
use crate::policy::scale::Law;
use crate::policy::share::{Rival, Sign};
use crate::policy::slo::request::Request;
use crate::policy::tpc::{self, Rank};
use crate::submit::graph::Slot;
use crate::submit::join::Qmd;
use crate::submit::mask::DisabledTpcs;
use crate::submit::precedence::Precedence;
use crate::submit::stats::{add, Counters};
use crate::topology::Topology;
use crate::units::{Ns, Percent};

/// The most kernels and places with a learnt duration, a half each. Each program counts twice. The
/// oldest are replaced.
pub const KERNELS_MAX: usize = 8192;

/// The most known nodes of CUDA graphs. Replays of others are counted as not covered. A server of
/// language models captures a graph for each of some 60 sizes of a batch, with hundreds of nodes
/// each. A node takes 224 bytes.
pub const NODES_MAX: usize = 1 << 16;

/// Where a tenant learns its limits and its neighbours, and tells them about itself.
pub trait Peers {
    /// Takes over limits that have changed. Returns the GPU's TPCs if there were any.
    fn refresh(&mut self, limits: &mut LaunchLimits) -> Option<Topology>;

    /// Returns the neighbours as they are now.
    fn look_around(&mut self, now: Ns) -> Others<'_>;

    /// Publishes to the neighbours whether this tenant has work that progresses.
    fn set_busy(&mut self, busy: bool, now: Ns);

    /// Returns the other processes of the GPU, with what they publish of their turns now. A backend
    /// in which nothing shares the GPU's time has none.
    fn rivals(&mut self, _now: Ns) -> &mut [Rival] {
        &mut []
    }

    /// Publishes this tenant's turns to its rivals.
    fn publish_sign(&mut self, _sign: Sign) {}

    /// Publishes the TPCs that none of this tenant's last pieces had
    /// ([`tide`](crate::policy::tide)).
    fn publish_ebb(&mut self, _ebb: &TpcMask) {}

    /// Returns whether no other process can use the GPU. A backend that does not know returns
    /// false.
    fn is_alone(&self) -> bool {
        false
    }
}

/// The peers of a backend that has none.
#[derive(Debug)]
pub enum Nobody {}

impl Peers for Nobody {
    fn refresh(&mut self, _: &mut LaunchLimits) -> Option<Topology> {
        match *self {}
    }

    fn look_around(&mut self, _: Ns) -> Others<'_> {
        match *self {}
    }

    fn set_busy(&mut self, _: bool, _: Ns) {
        match *self {}
    }
}

/// The limits of a tenant on one GPU, and what was learnt about its work.
pub struct Governor<S: Storage, P> {
    /// What is decided by.
    pub(super) me: Me,
    /// The neighbours, if the backend knows them.
    pub(super) peers: Option<P>,
    /// The GPU's TPCs.
    pub(super) gpu: Topology,
    /// The TPCs that are reserved for the tenant, as seen last.
    pub(super) own: TpcMask,
    /// TPCs granted to the next release, their number, and the same set as a QMD mask.
    pub(super) granted: TpcMask,
    pub(super) granted_count: u32,
    pub(super) mask: Option<DisabledTpcs>,
    /// The place of the next release among those of the neighbours.
    pub(super) precedence: Option<Precedence>,
    /// Whether these are more than the policy allows, for a launch whose blocks may wait for each
    /// other; and how many TPCs such a launch gets at last.
    pub(super) spares: bool,
    dependable: u32,
    /// The most TPCs that hold a known node of a graph at once ([`occupancy::resident`]).
    ///
    /// [`occupancy::resident`]: crate::submit::occupancy::resident
    pub(super) nodes_resident: u32,
    /// Whether a neighbour of an earlier rank is there, and whether the GPU switches contexts.
    yields: bool,
    pub(super) by_turns: bool,
    pub(super) kernels: S::Slots<Option<predict::Entry>>,
    pub(super) habits: Habits,
    pub(super) sizing: Sizing<S>,
    /// What is measured at clocks, where the backend can change them.
    pub(super) measured: Option<Measured<S>>,
    pub(super) nodes: Nodes<S>,
    /// Whether there are some, and whether some were taken from the scheduler.
    pub(super) knows_nodes: bool,
    pub(super) silences: bool,
    /// Whether words ran that nobody saw, since the last time that somebody asked.
    pub(super) ran_unseen: bool,
    /// Whether nodes may hold a mask that was ordered for them.
    pub(super) marked: bool,
    /// The address space of the graphs whose launches are listed.
    pub(super) space: Option<u64>,
    /// The number of launches that were split, modulo 2^32.
    pub(super) splits: u32,
    pub(super) counters: Counters,
    /// Whether the entry that was just looked at is refused.
    refused: bool,
    /// The start of the last round, and whether the one before was too long ago.
    began: Ns,
    unseen: bool,
    /// Whether work was pending at the last [`end`](Self::end).
    pending: bool,
    /// Whether no other process could use the GPU at the last [`end`](Self::end).
    was_alone: bool,
    /// The present request, and the duration of the last one until it is taken.
    request: Request,
    ended: Option<Ns>,
}

impl<S: Storage, P: Peers> Governor<S, P> {
    /// Creates a governor for a GPU whose TPCs are not known yet. `kernels` has [`KERNELS_MAX`]
    /// slots, `nodes` has [`NODES_MAX`] and `laws` has [`LAWS_MAX`], or fewer to learn less.
    ///
    /// [`LAWS_MAX`]: crate::policy::scale::LAWS_MAX
    pub fn new(
        limits: LaunchLimits,
        kernels: S::Slots<Option<predict::Entry>>,
        nodes: S::Table<Slot>,
        laws: S::Slots<Option<Law>>,
    ) -> Self {
        let mut governor = Self {
            me: Me::new(limits),
            peers: None,
            gpu: Topology::UNKNOWN,
            own: TpcMask::EMPTY,
            granted: TpcMask::EMPTY,
            granted_count: 0,
            mask: None,
            precedence: None,
            spares: false,
            dependable: 0,
            nodes_resident: 0,
            yields: false,
            by_turns: false,
            kernels,
            habits: Habits::default(),
            sizing: Sizing::new(laws),
            measured: None,
            nodes: Nodes::new(nodes),
            knows_nodes: false,
            silences: false,
            ran_unseen: false,
            marked: false,
            space: None,
            splits: 0,
            counters: Counters::new(),
            refused: false,
            began: Ns(0),
            unseen: false,
            pending: false,
            was_alone: false,
            request: Request::default(),
            ended: None,
        };
        governor.use_own_mask();
        governor
    }

    /// Measures times at clocks from now on, while there is a `slip.power`. `laws` has
    /// [`LAWS_MAX`](crate::policy::clock::kernels::LAWS_MAX) slots, or fewer to learn less.
    pub fn measure_clock(&mut self, laws: S::Slots<Option<kernels::Law>>) {
        self.measured = Some(Measured::new(laws));
    }

    /// Returns whether times are measured at clocks, so that ends must be seen as soon as they come.
    pub fn measures_clock(&self) -> bool {
        self.measured.is_some() && self.me.limits.slip_power > Percent(0)
    }

    /// Returns what was measured at clocks so far.
    pub fn clock_sums(&self) -> Sums {
        self.measured.as_ref().map_or(Sums::ZERO, Measured::sums)
    }

    /// Takes room for the words of graph nodes, without which a limit that is strict refuses CUDA
    /// graphs. `grows` says that the backend adds room while some [`is lacking`](Self::lacks_nodes).
    pub fn keep_descriptors(&mut self, descriptors: S::Table<Qmd>, key: u64, grows: bool) {
        self.nodes.keep(descriptors, key, grows);
    }

    /// Returns whether segments that may have so many further nodes wait for the backend to add room.
    #[inline]
    pub fn lacks_nodes(&self, count: usize) -> bool {
        self.nodes.lacks(count)
    }

    /// Has `grow` add room for nodes and their words. If it returns false there is no more.
    pub fn grow_nodes(
        &mut self,
        grow: impl FnOnce(&mut S::Table<Slot>, &mut S::Table<Qmd>) -> bool,
    ) {
        self.nodes.grow(grow);
    }

    /// Returns whether launches get sizes, so that their ends must be seen as soon as they come.
    pub fn sizes(&self) -> bool {
        self.me.limits.slip > Percent(0)
    }

    /// Returns how soon the backend must look at the work in flight for its time to count. `None` if
    /// no time is measured.
    pub fn next_look(&self, now: Ns) -> Option<Ns> {
        let measured = self.sizes() && self.is_busy(now) && !self.me.shares.holds_all();
        measured.then(|| (now - self.me.moved) / sizing::LOOKS)
    }

    /// Returns the TPCs that none of the last releases had.
    pub fn ebb(&self) -> TpcMask {
        match self.sizes() {
            true => self.sizing.ebb(),
            false => TpcMask::EMPTY,
        }
    }

    /// Returns the core's counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the limits.
    pub fn limits(&self) -> &LaunchLimits {
        &self.me.limits
    }

    /// Returns the TPCs that the limits and goals of others allow.
    pub fn allowed(&self) -> TpcMask {
        self.me.allowed
    }

    /// Returns the TPCs to which the next release is masked, if it is.
    pub fn effective(&self) -> Option<TpcMask> {
        let is_masked = self.narrows() || self.mask.is_some() && self.me.limits.tpcs.is_some();
        is_masked.then_some(self.granted)
    }

    /// Sets limits, until the peers change them.
    pub fn set_limits(&mut self, limits: LaunchLimits) {
        self.me.limits = limits;
        self.use_own_mask();
    }

    /// Sets the GPU's TPCs. Without them nothing is masked.
    pub fn set_gpu(&mut self, gpu: Topology) {
        self.gpu = gpu;
        self.me.gpu_count = gpu.existing().count();
        self.use_own_mask();
    }

    /// Returns the GPU's TPCs.
    pub fn gpu(&self) -> &Topology {
        &self.gpu
    }

    /// Keeps launches to `list`; `None` removes the mask.
    pub fn restrict(&mut self, list: Option<&TpcMask>) {
        self.me.limits.tpcs = list.copied();
        self.use_own_mask();
    }

    /// Connects the peers; `None` leaves the last limits in force.
    pub fn set_peers(&mut self, peers: Option<P>) {
        self.peers = peers;
        self.yields = false;
        self.precedence = None;
        self.use_own_mask();
    }

    /// Returns the peers.
    pub fn peers(&self) -> Option<&P> {
        self.peers.as_ref()
    }

    /// Returns the peers for changes.
    pub fn peers_mut(&mut self) -> Option<&mut P> {
        self.peers.as_mut()
    }

    /// Uses the mask of the limits, regardless of the neighbours.
    fn use_own_mask(&mut self) {
        self.me.written = self.me.limits.allowed(&self.gpu);
        self.me.allowed = tpc::kept(&self.me.written, &self.gpu, self.me.limits.taken);
        self.spares = false;
        self.dependable = self.me.allowed.count();
        self.use_mask(self.me.allowed);
    }

    /// Restricts the next release to `granted`. All TPCs without a place mean no mask, so that the
    /// launch stays unchanged, unless a mask was asked for.
    ///
    /// It is no part of its callers, which seldom need it.
    #[inline(never)]
    pub(super) fn use_mask(&mut self, granted: TpcMask) {
        self.granted = granted;
        self.granted_count = granted.count();
        self.mask = Some(granted)
            .filter(|granted| {
                self.me.limits.tpcs.is_some()
                    || self.precedence.is_some()
                    || granted != self.gpu.existing()
            })
            .and_then(|granted| DisabledTpcs::outside(&self.gpu, &granted).ok())
            .map(|mask| mask.with_precedence(self.precedence));
    }

    /// Starts a round of publishing of all lanes: takes over limits that have changed.
    pub fn begin(&mut self, now: Ns) {
        self.unseen = now - self.began >= patience::BEAT_MAX;
        self.began = now;
        if let Some(peers) = &mut self.peers {
            if let Some(gpu) = peers.refresh(&mut self.me.limits) {
                self.set_gpu(gpu);
            }
        }
        if let Some(measured) = &mut self.measured {
            measured.follow(self.me.limits.clock, now);
        }
        self.account(now);
    }

    /// Charges the time since the last round, and takes over what the rivals publish.
    fn account(&mut self, now: Ns) {
        let yields = self.by_turns && self.target() > Ns(0);
        let all = match self.gpu.is_known() {
            true => u64::from(self.me.gpu_count),
            false => 0,
        };
        let tpcs = (self.tpcs(), all);
        let peers = self.peers.as_mut();
        let rivals = peers.map_or(&mut [][..], |peers| peers.rivals(now));
        let Me {
            limits,
            shares,
            allowance,
            ..
        } = &mut self.me;
        if let Some(time) = shares.begin(limits, rivals, tpcs, yields, now) {
            allowance.wait(time, now);
        }
        if shares.is_beside() {
            self.sizing.disturb(now);
        }
        if let Some(measured) = &mut self.measured {
            if rivals.iter().any(Rival::is_at_work) {
                measured.disturb(now);
            }
        }
    }

    /// Returns the time that the tenant had of the GPU.
    pub fn gpu_time(&self) -> &GpuTime {
        &self.me.shares.time
    }

    /// Returns how many launches, atoms and entries are in flight or held back.
    pub fn pending(&self) -> u64 {
        self.me.shares.pending
    }

    /// Returns how much work in flight a share of time allows, which may end at any time.
    pub(super) fn bounds_flight(&self) -> Option<Ns> {
        self.me.shares.window(&self.me.limits.share)
    }

    /// Takes over what is in flight on a lane, of which `known` was told before. `first` is the
    /// beginning of the lane's round.
    pub(super) fn sync(&mut self, known: &mut InFlight, now: &InFlight, first: bool) {
        if self.me.shares.sync(known, now, first) {
            let since = self.me.shares.since;
            self.sizing.disturb(since);
            if let Some(measured) = &mut self.measured {
                measured.disturb(since);
            }
        }
    }

    /// Ends a round. Tells the neighbours whether this tenant has work that they should wait for.
    /// `pending` says whether work is held back or in flight. Work that is frozen, has used up its
    /// duty cycle, waits for reserved TPCs alone, or has not moved for long, does not count.
    pub fn end(&mut self, pending: bool, now: Ns) {
        let sign = self.me.shares.end(&self.me.limits.share);
        if !self.pending || self.excuses() || self.me.shares.holds_all() {
            self.me.moved = now;
        }
        self.pending = pending;
        // The backend sees waits only beside others.
        let alone = self.peers.as_ref().is_some_and(Peers::is_alone);
        if core::mem::replace(&mut self.was_alone, alone) && !alone {
            self.request.restart(now);
        }
        let ended = self.request.see(pending && !self.me.limits.frozen, now);
        self.ended = self.ended.or(ended);
        let (busy, ebb) = (self.is_busy(now), self.ebb());
        if let Some(peers) = &mut self.peers {
            peers.publish_sign(sign);
            peers.publish_ebb(&ebb);
            peers.set_busy(busy, now);
        }
    }

    /// Returns whether work was pending at the last [`end`](Self::end) that moves.
    fn is_busy(&self, now: Ns) -> bool {
        let stopped =
            self.me.limits.frozen || self.me.shares.is_over() || self.me.shares.is_kept_off();
        self.pending && !stopped && patience::moves(now - self.me.moved)
    }

    /// Records that a wait of the program has returned, behind a round.
    pub fn waited(&mut self, now: Ns) {
        if !self.pending {
            self.ended = self.ended.or(self.request.waited(now));
        }
    }

    /// Returns the duration of a request that the last round or wait has found to be over, once.
    pub fn take_request(&mut self) -> Option<Ns> {
        self.ended.take()
    }

    /// Returns when the request began that has work now.
    pub fn open_request(&self) -> Option<Ns> {
        self.request.open()
    }

    /// Returns the place in the order of neighbours at this moment, but for a tenant that they do
    /// not see.
    pub fn rank(&self, now: Ns) -> Rank {
        self.me.rank(now)
    }

    /// Ends the last round of a tenant that has no lane any more.
    pub fn stop(&mut self) {
        self.end(false, self.began);
    }

    /// Records a publication or an end.
    pub fn moved(&mut self, now: Ns) {
        self.me.moved = now;
    }

    /// Refuses the entry that is being looked at, and so its channel.
    pub(super) fn refuse(&mut self) {
        self.refused = true;
        add(&mut self.counters.sums.refused, 1);
    }

    /// Returns whether the last entry was refused, once.
    pub(super) fn take_refused(&mut self) -> bool {
        core::mem::take(&mut self.refused)
    }

    /// Returns whether a pause has a known reason: the tenant is frozen, or the backend did not run
    /// because the process was stopped or slept.
    pub fn excuses(&self) -> bool {
        self.me.limits.frozen || self.unseen
    }

    /// Returns whether anything of this tenant may be published now.
    pub fn is_open(&mut self, now: Ns) -> bool {
        self.ask(None, now).is_ok()
    }

    /// Asks [`decide`](decide::decide) about a piece, or whether any may go, and takes over its TPCs.
    /// Returns whether it goes late.
    #[inline(always)]
    pub(super) fn ask(&mut self, piece: Option<&Piece<'_>>, now: Ns) -> Result<bool, Held> {
        let rank = self.rank(now);
        let others = match &mut self.peers {
            Some(peers) => {
                if piece.is_some() && self.me.shares.window(&self.me.limits.share).is_some() {
                    peers.rivals(now);
                }
                Some(peers.look_around(now))
            }
            None => None,
        };
        let decision = decide::decide(&self.me, others.as_ref(), piece, now);
        let is_asked = match &decision {
            Ok(release) => release.timed,
            Err(held) => held.reason == Hold::Weight,
        };
        if is_asked {
            let rivals = others.as_ref().map_or(&[][..], |others| others.rivals);
            self.me.shares.contend(&self.me.limits.share, rivals);
        }
        if let Some(others) = others {
            self.yields = tpc::yields(rank, others.neighbours);
            self.by_turns = others.by_turns;
            self.own = others.own;
        }
        let Release { grant, late, .. } = decision.map_err(|held| self.hold(held))?;
        match grant {
            Some(grant) => {
                (self.dependable, self.spares) = (grant.dependable, grant.spares);
                if grant.tpcs != self.granted || grant.order != self.precedence {
                    self.precedence = grant.order;
                    self.use_mask(grant.tpcs);
                }
            }
            // The piece before may have had a size.
            None if self.granted != self.me.allowed => self.use_mask(self.me.allowed),
            None => {}
        }
        Ok(late)
    }

    /// Records why work is held back.
    pub(super) fn hold(&mut self, held: Held) -> Held {
        self.me.shares.hold(&held);
        held
    }

    /// Returns the place of a release on `chosen` among those of the neighbours.
    pub(super) fn place_of(&mut self, chosen: &TpcMask, now: Ns) -> Option<Precedence> {
        let others = self.peers.as_mut()?.look_around(now);
        let tenant = self.me.beside(&others, now);
        precedence::decide(&tenant, chosen, others.neighbours)
    }

    /// Returns how many TPCs a launch has at last that `resident` TPCs hold at once, and for which
    /// the present ones may be too few.
    pub(super) fn tpcs_for(&self, resident: u32) -> u64 {
        let more = Some(resident).filter(|resident| *resident <= self.dependable);
        self.tpcs().max(u64::from(more.unwrap_or(0)))
    }

    /// Returns how many TPCs a launch would run on now.
    pub(super) fn tpcs(&self) -> u64 {
        u64::from(self.granted_count)
    }

    /// Returns the longest time that released work may occupy the GPU; 0 for any.
    pub fn target(&self) -> Ns {
        match self.me.limits.atom_ns {
            0 if self.yields && self.me.limits.atoms <= 1 => YIELDING,
            target => Ns(target),
        }
    }

    /// Returns whether launches are changed at all.
    pub(super) fn acts(&self) -> bool {
        self.mask.is_some() || self.me.limits.tpcs.is_some() || self.may_split()
    }

    /// Returns whether the next release keeps off some TPCs.
    pub(super) fn narrows(&self) -> bool {
        self.mask.as_ref().is_some_and(|mask| mask.disabled() > 0)
    }

    /// Returns whether launches may be split.
    pub(super) fn may_split(&self) -> bool {
        self.target() > Ns(0) || self.me.limits.atoms > 1
    }

    /// Returns whether launches may get a mask.
    pub(super) fn acts_on_masks(&self) -> bool {
        self.me.limits.tpcs.is_some() || self.peers.is_some()
    }
}
