// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves the owned channels of one GPU, by a worker thread.

use super::client::{Client, Refused};
use super::kit::Kit;
use super::tenant::{Memory, Run, Tenant, Wanted};
use crate::bindings::{self, gct_worker};
use crate::rm::{self, SystemPmGuard};
use crate::state::Kv;
use core::ptr;
use gct_core::lane::channel;
use gct_core::lane::copies::{Copies, Mark};
use gct_core::lane::governor::{Governor, Nobody};
use gct_core::lane::in_flight::InFlightQueue;
use gct_core::lane::limits::LaunchLimits;
use gct_core::lane::ring::RealRing;
use gct_core::lane::split::AtomRoom;
use gct_core::lane::words::{Control as Position, Rings, Side, Storage};
use gct_core::lane::work::{self, Stream, Workspace};
use gct_core::launches::{EffectiveTpcs, Launches};
use gct_core::owned::kit;
use gct_core::owned::worker::{self, Retry, Round};
use gct_core::owned::{
    Mailbox, ENTRY_BYTES, GP_GET, GP_PUT, LAUNCHES_MAX, MARKS, REAL_ENTRIES, SEGMENT_WORDS,
};
use gct_core::rmapi::control::Control;
use gct_core::rmapi::Handle;
use gct_core::submit::rewrite::Order;
use gct_core::submit::tracker::QmdCall;
use gct_core::topology::Topology;
use gct_core::units::Ns;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed, Release};
use kernel::sync::{new_mutex, Arc, Mutex};

/// The class of a channel, for the scan: that of Hopper.
const HOPPER_CHANNEL: u16 = 0xc86f;

/// Most nodes of CUDA graphs that a tenant may have on a GPU. Others keep their masks.
const NODES_MAX: usize = 4096;

impl Storage for Kv {
    type Slots<T: 'static> = KVVec<T>;
}

/// A GPU with owned channels, or with one that is being allocated.
#[pin_data]
pub(super) struct Gpu {
    pub(super) id: u32,
    pub(super) client: Arc<Client>,
    #[pin]
    lanes: Mutex<Lanes>,
    /// Nanoseconds that the worker slept before this round.
    slept: Atomic<u64>,
    worker: Atomic<*mut gct_worker>,
}

struct Lanes {
    all: KVVec<KBox<Lane>>,
    work: Workspace<Kv>,
    /// The lane for which the resource manager was asked last.
    asked: u64,
}

/// A tenant on a GPU: its limits, and what was done with its launches.
#[pin_data]
pub(super) struct Limited {
    pub(super) gpu: u32,
    #[pin]
    inner: Mutex<Counted>,
}

struct Counted {
    /// Masks need no neighbours.
    governor: Governor<Kv, Nobody>,
    reported: Launches,
}

impl Limited {
    /// Creates the state of a tenant without limits.
    #[inline(never)]
    pub(super) fn new(gpu: u32) -> Result<Arc<Self>, Refused> {
        let nodes = KVVec::from_elem(None, NODES_MAX, GFP_KERNEL_ACCOUNT)?;
        let governor = Governor::new(LaunchLimits::NONE, KVVec::new(), nodes);
        let limited = Arc::pin_init(
            pin_init!(Self {
                gpu,
                inner <- new_mutex!(Counted {
                    governor,
                    reported: Launches::ZERO,
                }, "gct::limited"),
            }),
            GFP_KERNEL_ACCOUNT,
        );
        limited.map_err(|_| Refused)
    }

    /// Sets limits. Nothing is published under the former ones any more when this returns.
    pub(super) fn set(&self, limits: LaunchLimits, topology: Topology) {
        let governor = &mut self.inner.lock().governor;
        governor.set_gpu(topology);
        governor.set_limits(limits);
    }

    /// Returns the launches since the last time, and the TPCs that were granted last.
    pub(super) fn report(&self) -> (Launches, EffectiveTpcs) {
        let counted = &mut *self.inner.lock();
        let now = Launches::of(counted.governor.counters());
        let more = now.since(&counted.reported);
        counted.reported = now;
        let effective = match counted.governor.effective() {
            Some(mask) => EffectiveTpcs::Mask(mask),
            None => EffectiveTpcs::All,
        };
        (more, effective)
    }
}

/// The worker's state of an owned channel.
pub(super) struct Lane {
    /// Unique among all lanes.
    number: u64,
    /// The tenant's client, and its channel.
    channel: [Handle; 2],
    kit: Kit,
    tenant: Arc<Tenant>,
    limited: Arc<Limited>,
    lane: channel::Lane<Kv, Run>,
    copies: Copies<Kv, Run>,
    /// Whether the work submit token for the doorbell is known.
    has_token: bool,
    retry: Retry,
}

/// Both sides of a channel.
struct Sides<'a>(&'a Kit);

impl Rings for Sides<'_> {
    fn entry(&self, index: u32) -> Option<u64> {
        self.0.tenant_ring.read64(index.checked_mul(ENTRY_BYTES)?)
    }

    fn set_entry(&self, index: u32, entry: u64) {
        let at = index.saturating_mul(ENTRY_BYTES);
        self.0.ring.write64(at, entry);
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

impl Lane {
    /// Creates the lane of a channel that is about to be allocated. It is large, so it is built in
    /// a frame of its own and never moved on a stack.
    #[inline(never)]
    pub(super) fn new(
        number: u64,
        kit: Kit,
        mailbox: &Mailbox,
        tenant: Arc<Tenant>,
        limited: Arc<Limited>,
    ) -> Result<KBox<Self>, Refused> {
        let flags = GFP_KERNEL_ACCOUNT;
        // CAST: 512.
        let slots = KVVec::from_elem(0, REAL_ENTRIES as usize, flags)?;
        let found = KVVec::from_elem(QmdCall::NONE, LAUNCHES_MAX, flags)?;
        let marks = KVVec::from_elem(Mark::NONE, MARKS, flags)?;
        let memory = (kit.copies_address(), Run::COPIES, kit::COPIES_WORDS);
        let progress = (kit.progress_address, Run::PROGRESS);
        let copies = Copies::new(memory, progress, marks).ok_or(Refused)?;
        let room = AtomRoom::new(KVVec::new(), KVVec::new());
        let lane = Self {
            number,
            channel: [0, 0],
            kit,
            tenant,
            limited,
            lane: channel::Lane::new(
                mailbox.entries,
                RealRing::new(slots),
                InFlightQueue::new(KVVec::new()),
                Stream::new(HOPPER_CHANNEL, room, found),
            ),
            copies,
            has_token: false,
            retry: Retry::NOW,
        };
        Ok(KBox::new(lane, flags)?)
    }

    pub(super) fn kit(&self) -> &Kit {
        &self.kit
    }

    /// Sets the channel, once it is allocated.
    pub(super) fn is_channel(&mut self, channel: [Handle; 2]) {
        self.channel = channel;
    }

    /// Publishes copies of the entries that the tenant has submitted, and writes GP_GET back to it.
    fn serve(&mut self, work: &mut Workspace<Kv>, now_ns: u64) -> Served {
        let sides = Sides(&self.kit);
        let moved = self.lane.follow_get(&sides);
        if !self.has_token {
            return match self.lane.is_pending(&sides) && self.retry.is_due(now_ns) {
                true => Served::Needs(Need::Token(self.channel)),
                false => Served::As(Round::Idle),
            };
        }
        let tenant = self.tenant.lock();
        let memory = Memory::new(&tenant, &self.kit, self.channel[0]);
        let mut round = work::Round {
            memory: &memory,
            scratch: None,
            copies: Some(&mut self.copies),
            turn: worker::TURN_MAX,
            work,
            now: Ns(now_ns),
        };
        let governor = &mut self.limited.inner.lock().governor;
        let count = self.lane.publish(&sides, governor, &mut round);
        match memory.wanted() {
            Some(wanted) => Served::Needs(Need::Window(self.tenant.clone(), wanted)),
            None if count >= worker::TURN_MAX => Served::As(Round::Left),
            None if moved || count > 0 => Served::As(Round::Busy),
            None => Served::As(Round::Idle),
        }
    }
}

/// The outcome of one turn of a lane.
enum Served {
    As(Round),
    /// The lane has work, and waits for an answer of the resource manager.
    Needs(Need),
}

/// What a lane needs of the resource manager.
enum Need {
    /// The token of a channel.
    Token([Handle; 2]),
    /// A window into the tenant's memory.
    Window(Arc<Tenant>, Wanted),
}

impl Gpu {
    /// Opens a GPU and starts its worker.
    pub(super) fn open(id: u32) -> Result<Arc<Self>, Refused> {
        let client = Arc::new(Client::open(id)?, GFP_KERNEL)?;
        let work = Workspace::new(
            KVVec::from_elem(0, SEGMENT_WORDS, GFP_KERNEL)?,
            KVVec::from_elem(Order::default(), LAUNCHES_MAX, GFP_KERNEL)?,
            KVVec::from_elem(0, SEGMENT_WORDS, GFP_KERNEL)?,
        );
        let lanes = Lanes {
            all: KVVec::new(),
            work,
            asked: 0,
        };
        let gpu = Arc::pin_init(
            pin_init!(Self {
                id,
                client,
                lanes <- new_mutex!(lanes, "gct::lanes"),
                slept: Atomic::new(0),
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
        let mut lanes = self.lanes.lock();
        if lanes.all.reserve(1, GFP_KERNEL).is_err() {
            return Err(lane);
        }
        let refused = lanes.all.push_within_capacity(lane);
        drop(lanes);
        match refused {
            Ok(()) => {
                self.wake();
                Ok(())
            }
            Err(refused) => Err(refused.0),
        }
    }

    /// Takes a lane from the worker, which does not use it any more.
    pub(super) fn take(&self, number: u64) -> Option<KBox<Lane>> {
        let mut lanes = self.lanes.lock();
        let at = lanes.all.iter().position(|lane| lane.number == number)?;
        lanes.all.remove(at).ok()
    }

    fn wake(&self) {
        let worker = self.worker.load(Acquire);
        if !worker.is_null() {
            // SAFETY: the worker runs until `stop`, which is called when no other thread uses this
            // value.
            unsafe { bindings::gct_helper_worker_wake(worker) };
        }
    }

    /// Serves all lanes. Returns how long to sleep, in nanoseconds.
    pub(super) fn round(&self, now_ns: u64) -> u64 {
        // A suspended GPU must not be accessed.
        let Some(_awake) = SystemPmGuard::attempt() else {
            return worker::SLEEP_NS_MAX;
        };
        let (mut round, need) = self.serve(now_ns);
        if let Some((number, need)) = need {
            round = round.max(Round::Busy);
            match need {
                Need::Token(channel) => self.ask_for_token(number, channel, now_ns),
                Need::Window(tenant, wanted) => tenant.open(&self.client, &wanted),
            }
        }
        let sleep = worker::sleep_after(round, self.slept.load(Relaxed));
        self.slept.store(sleep, Relaxed);
        sleep
    }

    /// Serves all lanes. Returns what one of them needs of the resource manager: they take turns.
    fn serve(&self, now_ns: u64) -> (Round, Option<(u64, Need)>) {
        let mut round = Round::Idle;
        let (mut first, mut next) = (None, None);
        let lanes = &mut *self.lanes.lock();
        for lane in lanes.all.iter_mut() {
            match lane.serve(&mut lanes.work, now_ns) {
                Served::As(found) => round = round.max(found),
                Served::Needs(need) => {
                    let slot = match lane.number > lanes.asked {
                        true => &mut next,
                        false => &mut first,
                    };
                    if slot.is_none() {
                        *slot = Some((lane.number, need));
                    }
                }
            }
        }
        let need = next.or(first);
        if let Some((number, _)) = &need {
            lanes.asked = *number;
        }
        (round, need)
    }

    /// Asks the resource manager for the token of a channel. The lock is not held, because the
    /// resource manager takes locks of its own.
    fn ask_for_token(&self, number: u64, [client, channel]: [Handle; 2], now_ns: u64) {
        let mut control = Control::work_token(client, channel);
        let token = rm::send(&mut control).ok().map(|()| control.token());
        let mut lanes = self.lanes.lock();
        if let Some(lane) = lanes.all.iter_mut().find(|lane| lane.number == number) {
            if let Some(token) = token {
                lane.lane.set_token(token);
                lane.has_token = true;
            }
            lane.retry = lane.retry.refused(now_ns);
        }
    }

    /// Ends the worker. No thread may call [`add`](Self::add) meanwhile or later.
    pub(super) fn stop(&self) {
        let worker = self.worker.xchg(ptr::null_mut(), Full);
        if !worker.is_null() {
            // SAFETY: started by `open`, and stopped once: the pointer was taken out.
            unsafe { bindings::gct_helper_worker_stop(worker) };
        }
    }
}

/// Runs one round of a worker, for [`gct_worker_round`](crate::ffi).
///
/// # Safety
///
/// `gpu` is what a worker was started with.
pub(crate) unsafe fn round(gpu: *const kernel::ffi::c_void, now_ns: u64) -> u64 {
    // SAFETY: `Gpu::open` started the worker with a pointer into its `Arc`. `Gpu::stop` waits for
    // the end of the thread before the last reference is dropped.
    let gpu: &Gpu = unsafe { &*gpu.cast() };
    gpu.round(now_ns)
}
