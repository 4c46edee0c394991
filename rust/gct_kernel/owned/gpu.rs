// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves the owned channels of one GPU, by a worker thread.

use super::client::{Client, Kit, Refused};
use crate::bindings::{self, gct_worker};
use crate::rm::{self, SystemPmGuard};
use core::ptr;
use gct_core::owned::passage::{self, Passage, Retry, Round};
use gct_core::owned::{Mailbox, ENTRY_BYTES, GP_GET, GP_PUT, REAL_ENTRIES};
use gct_core::rmapi::control::Control;
use gct_core::rmapi::Handle;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed, Release};
use kernel::sync::{new_mutex, Arc, Mutex};

/// A GPU with owned channels, or with one that is being allocated.
#[pin_data]
pub(super) struct Gpu {
    pub(super) id: u32,
    pub(super) client: Arc<Client>,
    #[pin]
    lanes: Mutex<KVVec<Lane>>,
    /// Nanoseconds that the worker slept before this round.
    slept: Atomic<u64>,
    worker: Atomic<*mut gct_worker>,
}

/// The worker's state of an owned channel.
pub(super) struct Lane {
    /// Unique among all lanes.
    number: u64,
    /// The tenant's client, and its channel.
    channel: [Handle; 2],
    kit: Kit,
    passage: Passage<KVVec<u32>>,
    /// The work submit token for the doorbell; `None` until the resource manager has answered.
    token: Option<u32>,
    retry: Retry,
}

impl Lane {
    /// Creates the lane of a channel that is about to be allocated.
    pub(super) fn new(number: u64, kit: Kit, mailbox: &Mailbox) -> Result<Self, Refused> {
        // CAST: 512.
        let slots = KVVec::from_elem(0, REAL_ENTRIES as usize, GFP_KERNEL_ACCOUNT)?;
        Ok(Self {
            number,
            channel: [0, 0],
            kit,
            passage: Passage::new(mailbox.entries, slots),
            token: None,
            retry: Retry::NOW,
        })
    }

    pub(super) fn kit(&self) -> &Kit {
        &self.kit
    }

    /// Sets the channel, once it is allocated.
    pub(super) fn is_channel(&mut self, channel: [Handle; 2]) {
        self.channel = channel;
    }

    /// Copies the entries that the tenant has submitted, and writes GP_GET back to it. A load of
    /// device memory costs about a microsecond on hardware (inferred).
    fn serve(&mut self, now_ns: u64) -> Served {
        let mut moved = false;
        if self.passage.is_in_flight() {
            let get = self.kit.userd.read32(GP_GET);
            if let Some(shown) = get.and_then(|get| self.passage.fetched(get)) {
                self.kit.tenant_userd.write32(GP_GET, shown);
                moved = true;
            }
        }
        let put = self.kit.tenant_userd.read32(GP_PUT).unwrap_or(u32::MAX);
        let Some(token) = self.token else {
            return match self.passage.next(put) {
                Some(_) if self.retry.is_due(now_ns) => Served::NeedsToken,
                _ => Served::As(Round::Idle),
            };
        };
        let mut copied = 0;
        while let Some(index) = self
            .passage
            .next(put)
            .filter(|_| copied < passage::TURN_MAX)
        {
            self.copy(index);
            copied = copied.saturating_add(1);
        }
        if copied > 0 {
            let client = self.kit.client();
            client.ring(&self.kit.userd, self.passage.put(), token);
        }
        Served::As(match self.passage.next(put) {
            Some(_) => Round::Left,
            None if moved || copied > 0 => Round::Busy,
            None => Round::Idle,
        })
    }

    /// Copies one entry. Reads it once, because the tenant may write to it at any time.
    fn copy(&mut self, index: u32) {
        let from = index.saturating_mul(ENTRY_BYTES);
        let to = self.passage.put().saturating_mul(ENTRY_BYTES);
        let entry = self.kit.tenant_ring.read64(from).unwrap_or(0);
        self.kit.ring.write64(to, entry);
        self.passage.moved();
    }
}

/// The outcome of one turn of a lane.
enum Served {
    As(Round),
    /// The lane has work, and has no token yet.
    NeedsToken,
}

impl Gpu {
    /// Opens a GPU and starts its worker.
    pub(super) fn open(id: u32) -> Result<Arc<Self>, Refused> {
        let client = Arc::new(Client::open(id)?, GFP_KERNEL)?;
        let gpu = Arc::pin_init(
            pin_init!(Self {
                id,
                client,
                lanes <- new_mutex!(KVVec::new(), "gct::lanes"),
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
    pub(super) fn add(&self, lane: Lane) -> Result<(), Lane> {
        let mut lanes = self.lanes.lock();
        if lanes.reserve(1, GFP_KERNEL).is_err() {
            return Err(lane);
        }
        let refused = lanes.push_within_capacity(lane);
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
    pub(super) fn take(&self, number: u64) -> Option<Lane> {
        let mut lanes = self.lanes.lock();
        let at = lanes.iter().position(|lane| lane.number == number)?;
        lanes.remove(at).ok()
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
            return passage::SLEEP_NS_MAX;
        };
        let mut round = Round::Idle;
        let mut asks = None;
        for lane in self.lanes.lock().iter_mut() {
            match lane.serve(now_ns) {
                Served::As(found) => round = round.max(found),
                Served::NeedsToken => asks = asks.or(Some((lane.number, lane.channel))),
            }
        }
        if let Some((number, channel)) = asks {
            self.ask_for_token(number, channel, now_ns);
            round = round.max(Round::Busy);
        }
        let sleep = passage::sleep_after(round, self.slept.load(Relaxed));
        self.slept.store(sleep, Relaxed);
        sleep
    }

    /// Asks the resource manager for the token of a channel. The lock is not held, because the
    /// resource manager takes locks of its own.
    fn ask_for_token(&self, number: u64, [client, channel]: [Handle; 2], now_ns: u64) {
        let mut control = Control::work_token(client, channel);
        let token = rm::send(&mut control).ok().map(|()| control.token());
        let mut lanes = self.lanes.lock();
        if let Some(lane) = lanes.iter_mut().find(|lane| lane.number == number) {
            lane.token = token;
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
