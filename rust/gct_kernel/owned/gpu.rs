// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves the owned channels of one GPU, by a worker thread.

use super::client::{Client, Refused};
use super::kit::Kit;
use super::lane::{Lane, Need};
use super::lanes::{Lacking, Lanes, Room};
use super::limited::Limited;
use super::shadow;
use crate::bindings::{self, gct_worker};
use crate::rm::{self, SystemPmGuard};
use core::{mem, ptr};
use gct_core::iface::value::CpuList;
use gct_core::owned::worker::{self, Round, Signs};
use gct_core::records::WorkerCost;
use gct_core::rmapi::control::{self, Control};
use gct_core::rmapi::Handle;
use gct_core::units::Ns;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed, Release};
use kernel::sync::{new_mutex, Arc, ArcBorrow, Mutex};
use kernel::workqueue::{self, impl_has_work, new_work, Work, WorkItem};

/// A GPU with owned channels, or with one that is being allocated.
#[pin_data]
pub(super) struct Gpu {
    pub(super) id: u32,
    pub(super) client: Arc<Client>,
    #[pin]
    lanes: Mutex<Lanes>,
    #[pin]
    asked: Mutex<Asked>,
    #[pin]
    work: Work<Self>,
    worker: Atomic<*mut gct_worker>,
}

/// What a lane needs of the resource manager. A work item asks for it, one lane's at a time: some
/// thread may have the resource manager's locks for as long as it likes, and the worker waits for
/// nobody.
enum Asked {
    Nothing,
    /// The work item is queued, or runs, for the lane with this number.
    Waits(u64, Need),
    Runs(u64),
}

impl Asked {
    fn is_of(&self, number: u64) -> bool {
        match self {
            Self::Nothing => false,
            Self::Waits(asked, _) | Self::Runs(asked) => *asked == number,
        }
    }
}

impl_has_work! {
    impl HasWork<Self> for Gpu { self.work }
}

impl WorkItem for Gpu {
    type Pointer = Arc<Self>;

    fn run(gpu: Arc<Self>) {
        let mut asked = gpu.asked.lock();
        let Asked::Waits(number, need) = mem::replace(&mut *asked, Asked::Nothing) else {
            return;
        };
        *asked = Asked::Runs(number);
        drop(asked);
        // A suspended GPU must not be accessed. The lane asks again.
        if let Some(_awake) = SystemPmGuard::attempt() {
            gpu.ask(number, need);
        }
        *gpu.asked.lock() = Asked::Nothing;
    }
}

impl Gpu {
    /// Opens a GPU and starts its worker.
    pub(super) fn open(id: u32) -> Result<Arc<Self>, Refused> {
        let client = Arc::new(Client::open(id)?, GFP_KERNEL)?;
        let lanes = Lanes::new()?;
        let gpu = Arc::pin_init(
            pin_init!(Self {
                id,
                client,
                lanes <- new_mutex!(lanes, "gct::lanes"),
                asked <- new_mutex!(Asked::Nothing, "gct::owned_asked"),
                work <- new_work!("gct::owned_work"),
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

    /// Hands a lane of a tenant to the worker, if there is room.
    ///
    /// # Errors
    ///
    /// The lane, and what room it lacks.
    pub(super) fn add(
        &self,
        limited: &Arc<Limited>,
        lane: KBox<Lane>,
    ) -> Result<(), (KBox<Lane>, Lacking)> {
        let added = self.lanes.lock().add(limited, lane);
        if added.is_ok() {
            self.wake();
        }
        added
    }

    /// Makes the room that a lane of a tenant lacks. The caller holds no lock: the tenant's memory
    /// may be at its limit, and others need not wait for it.
    pub(super) fn make_room(
        &self,
        limited: &Arc<Limited>,
        lacking: &Lacking,
    ) -> Result<(), Refused> {
        let room = Room::new(lacking, limited)?;
        let unused = self.lanes.lock().take(limited, room);
        drop(unused);
        Ok(())
    }

    /// Takes a lane from the worker, which does not use it any more. No control names its channel
    /// when this returns.
    pub(super) fn take(&self, number: u64) -> Option<KBox<Lane>> {
        let lane = self.remove(number);
        let is_named = self.asked.lock().is_of(number);
        if is_named {
            self.flush();
        }
        lane
    }

    /// Waits for the end of the work item, if it is queued or runs.
    fn flush(&self) {
        // SAFETY: the work item lives in `self`. This sleeps, and the caller may.
        unsafe { kernel::bindings::flush_work(Work::raw_get(&self.work)) };
    }

    fn remove(&self, number: u64) -> Option<KBox<Lane>> {
        loop {
            let removed = self.lanes.lock().try_remove(number);
            match removed {
                Ok((lane, gone)) => {
                    drop(gone);
                    return lane;
                }
                // Whoever has the limits locked may get no processor. The worker does not wait.
                Err(limited) => limited.settle(),
            }
        }
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

    /// Waits for the end of the round, in which tenants may regard former limits of others. In the
    /// next one they regard those of now, also where it goes on with the lanes of a tenant.
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
    fn round(this: ArcBorrow<'_, Self>, now_ns: u64, signs: u32) -> u64 {
        // A suspended GPU must not be accessed.
        let Some(_awake) = SystemPmGuard::attempt() else {
            return worker::SLEEP_NS_MAX;
        };
        let are_closed = signs & bindings::GCT_WORKER_CLOSED != 0;
        let mut lanes = this.lanes.lock();
        let found = lanes.serve(are_closed, Ns(now_ns));
        let (mut round, need) = (found.round, found.next.or(found.first));
        let signs = Signs {
            is_woken: signs & bindings::GCT_WORKER_WOKEN != 0,
            are_closed: found.are_closed,
            is_quiet: found.is_quiet,
            is_heard: lanes.is_heard(),
            look_ns: found.look.map(Ns::get),
        };
        if let Some((number, need)) = need {
            let is_asked = Self::queue(this, number, need);
            if is_asked {
                lanes.asked = number;
            }
            round = round.max(match is_asked {
                true => Round::Busy,
                false => Round::Watched,
            });
        }
        let rest = lanes.pauses.after(round, signs, now_ns);
        drop(lanes);
        if found.leaves {
            shadow::give_back_soon();
        }
        if rest.closes {
            this.close_bells();
        }
        rest.sleep_ns
    }

    /// Has the work item ask for what a lane needs, unless it is busy. The lanes are locked: a lane
    /// that is taken out later waits for the end.
    fn queue(this: ArcBorrow<'_, Self>, number: u64, need: Need) -> bool {
        let mut asked = this.asked.lock();
        if !matches!(*asked, Asked::Nothing) {
            return false;
        }
        *asked = Asked::Waits(number, need);
        // One that runs is at its end: it is queued once more.
        let _ = workqueue::system_long().enqueue::<Arc<Self>, 0>(this.into());
        true
    }

    /// Asks the resource manager for what a lane needs, and tells the lane.
    fn ask(&self, number: u64, need: Need) {
        // SAFETY: it has no preconditions.
        let now_ns = || unsafe { bindings::gct_helper_now() };
        match need {
            Need::Stop(channel, process) => {
                let stopped = stop(channel);
                if stopped {
                    log_stop(process);
                }
                self.answer(number, |lane| lane.stopped(stopped, now_ns()));
            }
            Need::Token([client, channel]) => {
                let mut control = Control::work_token(client, channel);
                let token = rm::send(&mut control).ok().map(|()| control.token());
                self.answer(number, |lane| lane.answer(token, now_ns()));
            }
            Need::Window(tenant, wanted) => tenant.open(&self.client, &wanted),
        }
    }

    /// Has the bells of all tenants closed, by a work item.
    fn close_bells(&self) {
        let worker = self.worker.load(Acquire);
        if !worker.is_null() {
            // SAFETY: as in `wake`; this is the worker's own thread, which `stop` waits for.
            unsafe { bindings::gct_helper_worker_close_bells(worker) };
        }
    }

    /// Has a lane told something, if it is still there.
    fn answer(&self, number: u64, tell: impl FnOnce(&mut Lane)) {
        if let Some(lane) = self.lanes.lock().lane(number) {
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
        // The worker queues it no more.
        self.flush();
    }
}

/// Has the kernel's log say why a process has lost a channel. It has the first since boot, the
/// second, the fourth, the eighth and so on: no tenant fills it.
fn log_stop(process: u32) {
    static STOPS: Atomic<u64> = Atomic::new(0);
    if STOPS
        .fetch_add(1, Relaxed)
        .wrapping_add(1)
        .is_power_of_two()
    {
        pr_info!(
            "a channel of process {process} is stopped: limits on launches cannot bind what it submits, passed.* in compute.stat says why; 0 in channel.strict lets it pass\n"
        );
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
    // SAFETY: `Gpu::open` started the worker with the pointer of its `Arc`. `Gpu::stop` waits for
    // the end of the thread before the last reference is dropped.
    let gpu: ArcBorrow<'_, Gpu> = unsafe { ArcBorrow::from_raw(gpu.cast()) };
    Gpu::round(gpu, now_ns, signs)
}
