// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves one owned channel.

use super::client::Refused;
use super::kit::Kit;
use super::limited::{Held, Limited};
use super::tenant::{Memory, Run, Tenant, Wanted};
use crate::state::Kv;
use gct_core::lane::channel;
use gct_core::lane::copies::{Copies, Mark};
use gct_core::lane::in_flight::{InFlightQueue, SUBMISSIONS_MAX};
use gct_core::lane::leave::Leave;
use gct_core::lane::replays::STEPS_MAX;
use gct_core::lane::ring::RealRing;
use gct_core::lane::scratch::Scratch;
use gct_core::lane::split::{self, AtomRoom};
use gct_core::lane::whole::WholeSlots;
use gct_core::lane::words::{Control as Position, Rings, Side};
use gct_core::lane::work::{self, Stream, Workspace};
use gct_core::owned::bells::Silence;
use gct_core::owned::kit;
use gct_core::owned::worker::{self, Retry, Round};
use gct_core::owned::{Mailbox, FRAMES, GP_GET, GP_PUT, LAUNCHES_MAX, MARKS, WHOLE_SLOTS};
use gct_core::rmapi::Handle;
use gct_core::submit::gpfifo::{self, Entry};
use gct_core::submit::graph::Step;
use gct_core::submit::rewrite::Cut;
use gct_core::submit::tracker::QmdCall;
use gct_core::units::Ns;
use kernel::prelude::*;
use kernel::sync::Arc;

/// The class of a channel, for the scan: that of Hopper.
const HOPPER_CHANNEL: u16 = 0xc86f;

/// The worker's state of an owned channel.
pub(super) struct Lane {
    /// Unique among all lanes.
    pub(super) number: u64,
    /// The tenant's client, and its channel.
    channel: [Handle; 2],
    kit: Arc<Kit>,
    tenant: Arc<Tenant>,
    pub(super) limited: Arc<Limited>,
    lane: channel::Lane<Kv, Run>,
    copies: Copies<Kv, Run>,
    /// The slots of atoms.
    scratch: Scratch<Kv, Run>,
    /// The slots of masked launches that stay whole.
    slots: WholeSlots<Run>,
    /// Windows that were closed before the last turn.
    closed: u64,
    /// Whether the work submit token for the doorbell is known.
    has_token: bool,
    /// Whether the channel was refused, and is stopped.
    is_stopped: bool,
    /// Whether the last turn passed because the tenant's memory was locked.
    is_skipped: bool,
    exit: Exit,
    retry: Retry,
    silence: Silence,
}

/// How far a shadowed channel is on its way back to its tenant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exit {
    /// It is not.
    None,
    /// The tenant can go on without the lane. Until it does, the worker publishes nothing.
    Open,
    /// It is being handed back. The worker leaves it alone.
    Taken,
}

/// Both sides of a channel.
struct Sides<'a>(&'a Kit);

impl Rings for Sides<'_> {
    fn entry(&self, index: u32) -> Option<u64> {
        self.0.entry(index)
    }

    fn set_entry(&self, index: u32, entry: u64) {
        self.0.set_entry(index, entry);
    }

    /// Leaves nothing to fetch. Copies are written where others were, so a former entry would have
    /// the GPU execute words that were scanned as something else.
    fn spend(&self, index: u32) {
        self.0
            .set_entry(index, Entry::Control(gpfifo::Control::Nop).encode());
    }

    /// A load of device memory costs about a microsecond on hardware (inferred).
    fn load(&self, side: Side, position: Position) -> Option<u32> {
        let userd = match side {
            Side::Tenant => &self.0.tenant_userd,
            Side::Real => &self.0.userd,
        };
        userd.read32(match position {
            Position::Get => GP_GET,
            Position::Put => GP_PUT,
        })
    }

    fn store_get(&self, get: u32) {
        self.0.tenant_userd.write32(GP_GET, get);
    }

    fn publish(&self, put: u32, token: u32) {
        self.0.client().ring(&self.0.userd, put, token);
    }
}

/// The outcome of one turn of a lane.
pub(super) struct Served {
    pub(super) round: Round,
    /// What the lane needs of the resource manager.
    pub(super) need: Option<Need>,
    /// Whether work is held back or in flight.
    pub(super) is_pending: bool,
    /// Whether the channel can be handed back to its tenant.
    pub(super) leaves: bool,
}

impl Served {
    /// The outcome of a turn in which nothing was published.
    const fn idle(need: Option<Need>) -> Self {
        Self {
            round: Round::Idle,
            need,
            is_pending: false,
            leaves: false,
        }
    }
}

/// What a lane needs of the resource manager.
pub(super) enum Need {
    /// The token of a channel.
    Token([Handle; 2]),
    /// A window into the tenant's memory.
    Window(Arc<Tenant>, Wanted),
    /// The end of a channel of a process that was refused.
    Stop([Handle; 2], u32),
}

impl Lane {
    /// Creates the lane of a channel that has processed nothing. It is large, so it is built in
    /// a frame of its own and never moved on a stack.
    #[inline(never)]
    pub(super) fn new(
        number: u64,
        space: [u32; 2],
        kit: Kit,
        mailbox: &Mailbox,
        tenant: Arc<Tenant>,
        limited: Arc<Limited>,
    ) -> Result<KBox<Self>, Refused> {
        let flags = GFP_KERNEL_ACCOUNT;
        let entries = kit.real_entries(mailbox);
        // CAST: at most 8192.
        let slots = KVVec::from_elem(0, entries as usize, flags)?;
        let found = KVVec::from_elem(QmdCall::NONE, LAUNCHES_MAX, flags)?;
        let marks = KVVec::from_elem(Mark::NONE, MARKS, flags)?;
        let in_flight = KVVec::from_elem(None, SUBMISSIONS_MAX, flags)?;
        let memory = (kit.copies_address(), Run::COPIES, kit::COPIES_WORDS);
        let progress = (kit.progress_address, Run::PROGRESS);
        let copies = Copies::new(memory, progress, marks).ok_or(Refused)?;
        let scratch = scratch(&kit)?;
        let whole = (kit.whole_address(), Run::WHOLE);
        let ends = (kit.whole_done_address(), Run::WHOLE_DONE);
        let whole = WholeSlots::new(whole, ends, WHOLE_SLOTS).ok_or(Refused)?;
        let room = atom_room()?;
        let steps = KVVec::from_elem(Step::default(), STEPS_MAX, flags)?;
        let [client, space] = space.map(u64::from);
        let space = client << 32 | space;
        let lane = Self {
            number,
            channel: [0, 0],
            kit: Arc::new(kit, flags)?,
            tenant,
            limited,
            lane: channel::Lane::new(
                mailbox.entries,
                RealRing::new(slots),
                InFlightQueue::new(in_flight),
                // CAST: tells the channel from others as long as 2^32 do not follow it.
                Stream::new(HOPPER_CHANNEL, room, found).with_steps(steps, space, number as u32),
            ),
            copies,
            scratch,
            slots: whole,
            closed: 0,
            has_token: false,
            is_stopped: false,
            is_skipped: false,
            exit: Exit::None,
            retry: Retry::NOW,
            silence: Silence::NEW,
        };
        Ok(KBox::new(lane, flags)?)
    }

    pub(super) fn kit(&self) -> &Kit {
        &self.kit
    }

    /// Begins where its tenant and the GPU are, and has the tenant see other pages in place of its
    /// ring and USERD. Returns whether it does.
    pub(super) fn turn(&mut self) -> bool {
        let lane = &mut self.lane;
        self.kit.turn(|get, put| lane.resume(get, put))
    }

    /// Sets the channel, once it is allocated.
    pub(super) fn is_channel(&mut self, channel: [Handle; 2]) {
        self.channel = channel;
    }

    /// Takes the answer to [`Need::Token`].
    pub(super) fn answer(&mut self, token: Option<u32>, now_ns: u64) {
        if let Some(token) = token {
            self.lane.set_token(token);
            self.has_token = true;
        }
        self.retry = self.retry.refused(now_ns);
    }

    /// Takes the answer to [`Need::Stop`].
    pub(super) fn stopped(&mut self, is_stopped: bool, now_ns: u64) {
        self.is_stopped = is_stopped;
        self.retry = self.retry.refused(now_ns);
    }

    /// Returns whether there is nothing to do. Reads one word of the channel. If `all_closed`, the
    /// tenant's bells announce what is new.
    pub(super) fn rests(&mut self, all_closed: bool) -> bool {
        if self.lane.is_refused() {
            return self.is_stopped;
        }
        let sides = Sides(&self.kit);
        // What a round has left needs no bell.
        if self.is_skipped || self.has_token && !self.lane.is_quiet() {
            self.silence = Silence::NEW;
            return false;
        }
        let rings = self.tenant.ear.rings();
        let has_news = match self.has_token {
            true => self.lane.has_news(&sides),
            false => self.lane.is_pending(&sides),
        };
        if self.silence.is_broken_unheard(rings, has_news, all_closed) {
            // If the tenant is about to ring, that is heard.
            self.tenant.ear.missed(rings);
        }
        !has_news
    }

    /// Returns whether the worker hears when the tenant rings.
    pub(super) fn is_heard(&self) -> bool {
        self.tenant.ear.hears()
    }

    /// Asks for the end of a channel that was refused.
    fn stop(&self, now_ns: u64) -> Served {
        let asks = !self.is_stopped && self.retry.is_due(now_ns);
        Served::idle(asks.then_some(Need::Stop(self.channel, self.limited.process())))
    }

    /// Returns whether the channel is to go back to its tenant: no limit has it shadowed any more.
    pub(super) fn is_leaving(&self, held: &Held<'_>) -> bool {
        self.kit.is_shadow() && !held.shadows()
    }

    /// Takes the parts of a channel that can be handed back now, with its token. The worker leaves
    /// the lane alone until [`stays`](Self::stays) is called.
    pub(super) fn take_kit(&mut self) -> Option<(Arc<Kit>, u32)> {
        let token = self.lane.token()?;
        (self.exit == Exit::Open).then_some(())?;
        self.exit = Exit::Taken;
        Some((self.kit.clone(), token))
    }

    /// Goes on with a channel that could not be handed back.
    pub(super) fn stays(&mut self) {
        self.exit = Exit::None;
    }

    /// Publishes copies of the entries that the tenant has submitted, and writes GP_GET back to it.
    /// `held` are the tenant's limits.
    pub(super) fn serve(
        &mut self,
        held: &mut Held<'_>,
        work: &mut Workspace<Kv>,
        now_ns: u64,
    ) -> Served {
        let sides = Sides(&self.kit);
        if self.exit == Exit::Taken {
            return Served::idle(None);
        }
        if self.lane.is_refused() {
            return self.stop(now_ns);
        }
        let is_leaving = self.is_leaving(held);
        let moved = self.lane.follow_get(&sides);
        if !self.has_token {
            let needs = is_leaving || self.lane.is_pending(&sides);
            let asks = needs && self.retry.is_due(now_ns);
            return Served::idle(asks.then_some(Need::Token(self.channel)));
        }
        let Some(tenant) = self.tenant.try_lock() else {
            // A thread of the tenant's that has the lock may get no processor.
            self.is_skipped = true;
            return Served {
                round: Round::Watched,
                is_pending: self.lane.is_unfinished(),
                ..Served::idle(None)
            };
        };
        self.is_skipped = false;
        let memory = Memory::new(&tenant, &self.kit, self.channel[0]);
        if self.closed != tenant.closed() {
            self.closed = tenant.closed();
            self.lane.forget(|fence| !memory.shows(&fence.view));
            self.scratch.forget(|fence| !memory.shows(&fence.view));
        }
        let mut round = work::Round {
            memory: &memory,
            scratch: Some(&mut self.scratch),
            copies: Some(&mut self.copies),
            slots: Some(&mut self.slots),
            turn: worker::TURN_MAX,
            words: worker::TURN_WORDS,
            work,
            now: Ns(now_ns),
            ahead: None,
        };
        self.exit = Exit::None;
        let governor = held.governor();
        match is_leaving.then(|| self.lane.leave(&sides, governor, &mut round)) {
            None | Some(Leave::Works) => {}
            Some(Leave::Waits) => return Served::idle(None),
            Some(Leave::Left) => {
                self.exit = Exit::Open;
                return Served {
                    leaves: true,
                    ..Served::idle(None)
                };
            }
        }
        let count = self.lane.publish(&sides, governor, &mut round);
        if self.lane.is_refused() {
            self.retry = Retry::NOW;
            return self.stop(now_ns);
        }
        let is_used_up = round.turn == 0 || round.words == 0;
        let is_pending = self.lane.is_unfinished();
        let need = memory.wanted();
        Served {
            round: match (count, moved, is_pending) {
                (worker::TURN_MAX.., ..) => Round::Left,
                _ if is_used_up => Round::Left,
                (1.., ..) | (_, true, _) => Round::Busy,
                _ if self.lane.is_split() => Round::Busy,
                (_, _, true) => Round::Watched,
                _ => Round::Idle,
            },
            need: need.map(|wanted| Need::Window(self.tenant.clone(), wanted)),
            is_pending,
            leaves: false,
        }
    }
}

/// Divides a channel's slots into frames.
fn scratch(kit: &Kit) -> Result<Scratch<Kv, Run>, Refused> {
    let slots = (kit.slots_address(), Run::SLOTS, kit::SLOTS_WORDS);
    let done = (kit.done_address(), Run::DONE, kit::DONE_WORDS);
    let frames = KVVec::from_elem(None, FRAMES, GFP_KERNEL_ACCOUNT)?;
    Scratch::read_only(slots, kit::FRAME_WORDS, done, frames).ok_or(Refused)
}

/// Allocates room for the atoms of one launch.
fn atom_room() -> Result<AtomRoom<Kv>, Refused> {
    let slots = KVVec::from_elem(0, split::SLOTS_WORDS, GFP_KERNEL_ACCOUNT)?;
    // CAST: a small constant.
    let cuts = KVVec::from_elem(Cut::NONE, split::ATOMS_MAX as usize, GFP_KERNEL_ACCOUNT)?;
    Ok(AtomRoom::new(slots, cuts))
}
