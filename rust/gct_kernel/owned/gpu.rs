// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves the owned channels of one GPU, by a worker thread.

use super::client::{Client, Refused};
use super::kit::Kit;
use super::lane::{Lane, Need};
use super::limited::Limited;
use super::shadow;
use crate::bindings::{self, gct_worker};
use crate::rm::{self, SystemPmGuard};
use crate::state::Kv;
use core::ptr;
use gct_core::iface::value::CpuList;
use gct_core::lane::roster::{Roster, MEMBERS_MAX};
use gct_core::lane::whole;
use gct_core::lane::work::Workspace;
use gct_core::owned::worker::{self, Pauses, Round, Signs};
use gct_core::owned::{LAUNCHES_MAX, SEGMENT_WORDS};
use gct_core::policy::tpc::Rank;
use gct_core::records::WorkerCost;
use gct_core::rmapi::control::{self, Control};
use gct_core::rmapi::Handle;
use gct_core::submit::rewrite::Order;
use gct_core::units::Ns;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full, Release};
use kernel::sync::{new_mutex, Arc, Mutex};

/// A GPU with owned channels, or with one that is being allocated.
#[pin_data]
pub(super) struct Gpu {
    pub(super) id: u32,
    pub(super) client: Arc<Client>,
    #[pin]
    lanes: Mutex<Lanes>,
    /// Held while a control names a channel, so that the channel's name stays its own.
    #[pin]
    sending: Mutex<()>,
    worker: Atomic<*mut gct_worker>,
}

struct Lanes {
    tenants: KVVec<Lot>,
    roster: Roster<Kv>,
    work: Workspace<Kv>,
    /// The lane for which the resource manager was asked last.
    asked: u64,
    pauses: Pauses,
}

/// The lanes of one tenant.
struct Lot {
    limited: Arc<Limited>,
    rank: Rank,
    lanes: KVVec<KBox<Lane>>,
}

/// What a round has found, and what one lane needs of the resource manager: they take turns.
struct Found {
    asked: u64,
    round: Round,
    is_quiet: bool,
    /// How soon the next look must come for the time of work in flight to count.
    look: Option<Ns>,
    /// Whether a channel can be handed back to its tenant.
    leaves: bool,
    first: Option<(u64, Need)>,
    next: Option<(u64, Need)>,
}

impl Found {
    fn needs(&mut self, number: u64, need: Need) {
        let slot = match number > self.asked {
            true => &mut self.next,
            false => &mut self.first,
        };
        if slot.is_none() {
            *slot = Some((number, need));
        }
    }
}

impl Lanes {
    /// Returns the lanes of a tenant.
    fn lot(&mut self, limited: &Arc<Limited>) -> Option<&mut Lot> {
        let mut lots = self.tenants.iter_mut();
        lots.find(|lot| Arc::ptr_eq(&lot.limited, limited))
    }

    /// Makes room for one more lane of a tenant.
    fn reserve(&mut self, limited: &Arc<Limited>) -> Result<(), Refused> {
        if let Some(lot) = self.lot(limited) {
            lot.lanes.reserve(1, GFP_KERNEL)?;
            return Ok(());
        }
        let lot = Lot {
            limited: limited.clone(),
            rank: Rank::LAST,
            lanes: KVVec::with_capacity(1, GFP_KERNEL)?,
        };
        self.tenants.push(lot, GFP_KERNEL)?;
        Ok(())
    }

    /// Serves the lanes of all tenants, those of an earlier rank first.
    fn serve(&mut self, all_closed: bool, now: Ns) -> Found {
        let Self {
            tenants,
            roster,
            work,
            asked,
            ..
        } = self;
        let mut found = Found {
            asked: *asked,
            round: Round::Idle,
            is_quiet: true,
            look: None,
            leaves: false,
            first: None,
            next: None,
        };
        for lot in tenants.iter_mut() {
            lot.rank = lot.limited.attend(roster, now);
        }
        let mut last = None;
        loop {
            let ranks = tenants.iter().map(|lot| lot.rank);
            let later = ranks.filter(|rank| last.is_none_or(|last| *rank > last));
            let Some(rank) = later.min() else { break };
            for lot in tenants.iter_mut().filter(|lot| lot.rank == rank) {
                let rests = lot.rests(all_closed);
                found.is_quiet &= rests;
                if !rests || lot.is_leaving() {
                    lot.serve(roster, work, &mut found, now);
                }
            }
            last = Some(rank);
        }
        found
    }
}

impl Lot {
    /// Returns whether the tenant has nothing to do, so that a thousand idle ones cost little.
    fn rests(&mut self, all_closed: bool) -> bool {
        self.lanes.iter_mut().all(|lane| lane.rests(all_closed))
    }

    /// Returns whether a channel of the tenant is to go back to it.
    fn is_leaving(&self) -> bool {
        self.lanes.iter().any(|lane| lane.is_leaving())
    }

    /// Returns whether the worker hears when the tenant rings.
    fn is_heard(&self) -> bool {
        self.lanes.iter().all(|lane| lane.is_heard())
    }

    fn serve(
        &mut self,
        roster: &mut Roster<Kv>,
        work: &mut Workspace<Kv>,
        found: &mut Found,
        now: Ns,
    ) {
        self.limited.begin(roster, now);
        let mut is_pending = false;
        for lane in self.lanes.iter_mut() {
            let served = lane.serve(work, now.get());
            is_pending |= served.is_pending;
            found.round = found.round.max(served.round);
            found.leaves |= served.leaves;
            if let Some(need) = served.need {
                found.needs(lane.number, need);
            }
        }
        let look = self.limited.end(roster, is_pending, now);
        found.look = [found.look, look].into_iter().flatten().min();
    }
}

impl Gpu {
    /// Opens a GPU and starts its worker.
    pub(super) fn open(id: u32) -> Result<Arc<Self>, Refused> {
        let client = Arc::new(Client::open(id)?, GFP_KERNEL)?;
        let work = Workspace::new(
            KVVec::from_elem(0, SEGMENT_WORDS, GFP_KERNEL)?,
            KVVec::from_elem(Order::default(), LAUNCHES_MAX, GFP_KERNEL)?,
            KVVec::from_elem(
                0,
                SEGMENT_WORDS.saturating_add(whole::ADDED_WORDS),
                GFP_KERNEL,
            )?,
        );
        let lanes = Lanes {
            tenants: KVVec::new(),
            roster: Roster::new(KVVec::from_elem(None, MEMBERS_MAX, GFP_KERNEL)?),
            work,
            asked: 0,
            pauses: Pauses::NEW,
        };
        let gpu = Arc::pin_init(
            pin_init!(Self {
                id,
                client,
                lanes <- new_mutex!(lanes, "gct::lanes"),
                sending <- new_mutex!((), "gct::owned_sending"),
                worker: Atomic::new(ptr::null_mut()),
            }),
            GFP_KERNEL,
        )
        .map_err(|_| Refused)?;
        // SAFETY: the thread gets a pointer to what is in the `Arc`. `stop` ends the thread before
        // the last reference goes.
        let worker =
            unsafe { bindings::gct_helper_worker_start(id, Arc::as_ptr(&gpu).cast_mut().cast()) };
        match worker.is_null() {
            true => Err(Refused),
            false => {
                gpu.worker.store(worker, Release);
                Ok(gpu)
            }
        }
    }

    /// Hands a lane to the worker.
    ///
    /// # Errors
    ///
    /// The lane, without memory.
    pub(super) fn add(&self, lane: KBox<Lane>) -> Result<(), KBox<Lane>> {
        let limited = lane.limited.clone();
        let mut lanes = self.lanes.lock();
        if lanes.reserve(&limited).is_err() {
            return Err(lane);
        }
        let refused = match lanes.lot(&limited) {
            Some(lot) => lot.lanes.push_within_capacity(lane).err().map(|e| e.0),
            None => Some(lane),
        };
        drop(lanes);
        match refused {
            None => {
                self.wake();
                Ok(())
            }
            Some(refused) => Err(refused),
        }
    }

    /// Takes a lane from the worker, which does not use it any more. No control names its channel
    /// when this returns.
    pub(super) fn take(&self, number: u64) -> Option<KBox<Lane>> {
        let lane = self.remove(number);
        drop(self.sending.lock());
        lane
    }

    fn remove(&self, number: u64) -> Option<KBox<Lane>> {
        let lanes = &mut *self.lanes.lock();
        let mut lots = lanes.tenants.iter();
        let (lot_at, lane_at) = (0..usize::MAX).zip(&mut lots).find_map(|(at, lot)| {
            let lane_at = lot.lanes.iter().position(|lane| lane.number == number)?;
            Some((at, lane_at))
        })?;
        let lot = lanes.tenants.get_mut(lot_at)?;
        let lane = lot.lanes.remove(lane_at).ok();
        if lot.lanes.is_empty() {
            lot.limited.quit(&mut lanes.roster);
            let gone = lanes.tenants.remove(lot_at);
            drop(gone);
        }
        lane
    }

    /// Has the worker look at all lanes.
    pub(super) fn wake(&self) {
        let worker = self.worker.load(Acquire);
        if !worker.is_null() {
            // SAFETY: the worker runs until `stop`, which is called when no other thread uses this
            // value.
            unsafe { bindings::gct_helper_worker_wake(worker) };
        }
    }

    /// Waits for the end of the round, in which tenants may regard former limits of others.
    pub(super) fn settle(&self) {
        drop(self.lanes.lock());
    }

    /// Takes the parts of a channel that can be handed back to its tenant, with its token. The
    /// worker leaves the lane alone from then on.
    pub(super) fn take_kit(&self, number: u64) -> Option<(Arc<Kit>, u32)> {
        let mut taken = None;
        self.answer(number, |lane| taken = lane.take_kit());
        taken
    }

    /// Goes on with a lane whose channel could not be handed back.
    pub(super) fn stays(&self, number: u64) {
        self.answer(number, Lane::stays);
    }

    /// Serves all lanes. `signs` are those of `gct_worker_round`. Returns how long to sleep, in
    /// nanoseconds.
    pub(super) fn round(&self, now_ns: u64, signs: u32) -> u64 {
        // A suspended GPU must not be accessed.
        let Some(_awake) = SystemPmGuard::attempt() else {
            return worker::SLEEP_NS_MAX;
        };
        let are_closed = signs & bindings::GCT_WORKER_CLOSED != 0;
        let mut lanes = self.lanes.lock();
        let found = lanes.serve(are_closed, Ns(now_ns));
        let (mut round, need) = (found.round, found.next.or(found.first));
        if let Some((number, _)) = &need {
            lanes.asked = *number;
        }
        let signs = Signs {
            is_woken: signs & bindings::GCT_WORKER_WOKEN != 0,
            are_closed,
            is_quiet: found.is_quiet,
            is_heard: lanes.tenants.iter().all(Lot::is_heard),
            look_ns: found.look.map(Ns::get),
        };
        if need.is_some() {
            round = round.max(Round::Busy);
        }
        let rest = lanes.pauses.after(round, signs, now_ns);
        // Taken before the lanes are let go, so that a lane that leaves waits for the control.
        let names = matches!(&need, Some((_, Need::Stop(_))));
        let sending = names.then(|| self.sending.lock());
        drop(lanes);
        let stopped = match &need {
            Some((_, Need::Stop(channel))) => stop(*channel),
            _ => false,
        };
        drop(sending);
        if found.leaves {
            shadow::give_back_soon();
        }
        if let Some((number, need)) = need {
            match need {
                Need::Stop(_) => self.answer(number, |lane| lane.stopped(stopped, now_ns)),
                Need::Token(channel) => self.ask_for_token(number, channel, now_ns),
                Need::Window(tenant, wanted) => tenant.open(&self.client, &wanted),
            }
        }
        if rest.closes {
            self.close_bells();
        }
        rest.sleep_ns
    }

    /// Has the bells of all tenants closed, by a work item.
    fn close_bells(&self) {
        let worker = self.worker.load(Acquire);
        if !worker.is_null() {
            // SAFETY: as in `wake`; this is the worker's own thread, which `stop` waits for.
            unsafe { bindings::gct_helper_worker_close_bells(worker) };
        }
    }

    /// Asks the resource manager for the token of a channel. The lock is not held, because the
    /// resource manager takes locks of its own.
    fn ask_for_token(&self, number: u64, [client, channel]: [Handle; 2], now_ns: u64) {
        let mut control = Control::work_token(client, channel);
        let token = rm::send(&mut control).ok().map(|()| control.token());
        self.answer(number, |lane| lane.answer(token, now_ns));
    }

    /// Has a lane told something, if it is still there.
    fn answer(&self, number: u64, tell: impl FnOnce(&mut Lane)) {
        let mut lanes = self.lanes.lock();
        let mut all = lanes
            .tenants
            .iter_mut()
            .flat_map(|lot| lot.lanes.iter_mut());
        if let Some(lane) = all.find(|lane| lane.number == number) {
            tell(lane);
        }
    }

    /// Lets the worker run on a list of processors.
    pub(super) fn run_on(&self, cpus: &CpuList) {
        let (worker, list) = (self.worker.load(Acquire), cpus.as_bytes());
        if !worker.is_null() {
            // CAST: at most 127.
            let length = list.len() as u32;
            // SAFETY: the worker runs until `stop`, which waits for `Owned::live`; the caller holds
            // that. The list has that length.
            unsafe { bindings::gct_helper_worker_move(worker, list.as_ptr(), length) };
        }
    }

    /// Returns what the worker has cost since it started.
    pub(super) fn cost(&self) -> WorkerCost {
        let (worker, mut ran, mut sleeps) = (self.worker.load(Acquire), 0, 0);
        if !worker.is_null() {
            // SAFETY: as in `run_on`. Both results are writable.
            unsafe { bindings::gct_helper_worker_cost(worker, &mut ran, &mut sleeps) };
        }
        let ran = Ns(ran);
        WorkerCost { ran, sleeps }
    }

    /// Ends the worker. No thread may call [`add`](Self::add) meanwhile or later.
    pub(super) fn stop(&self) {
        let worker = self.worker.xchg(ptr::null_mut(), Full);
        if !worker.is_null() {
            // SAFETY: started by `open`, and stopped once: the pointer was taken out. Nobody else
            // has it: this value is in no list any more, and the bells forget it under their lock,
            // or have forgotten it for the GPU's next worker.
            unsafe { bindings::gct_helper_worker_stop(worker) };
        }
    }
}

/// Stops a channel, and has its error notifier say so. Returns whether it is stopped, or gone.
fn stop([client, channel]: [Handle; 2]) -> bool {
    let sent = rm::send(&mut Control::stop_channel(client, channel));
    sent.is_ok() || sent.is_err_and(control::is_gone)
}

/// Runs one round of a worker, for [`gct_worker_round`](crate::ffi).
///
/// # Safety
///
/// `gpu` is what a worker was started with.
pub(crate) unsafe fn round(gpu: *const kernel::ffi::c_void, now_ns: u64, signs: u32) -> u64 {
    // SAFETY: `Gpu::open` started the worker with a pointer into its `Arc`. `Gpu::stop` waits for
    // the end of the thread before the last reference is dropped.
    let gpu: &Gpu = unsafe { &*gpu.cast() };
    gpu.round(now_ns, signs)
}
