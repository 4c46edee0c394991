// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shares the device between two threads: one serves the guest's accesses, one executes channels.

use fakegpu_core::{Gpu, Progress};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Initial polling interval of a channel that waits for a semaphore. A store of the guest's
/// processors sends no notification.
const POLL_MIN: Duration = Duration::from_micros(50);
/// Maximum polling interval.
const POLL_MAX: Duration = Duration::from_millis(2);

/// The device and its lock.
pub(crate) struct Shared {
    gpu: Mutex<Gpu>,
    work: Condvar,
    /// Number of accesses that wait for the lock. The guest goes first.
    waiting: AtomicUsize,
}

impl Shared {
    /// Shares `gpu`.
    pub(crate) fn new(gpu: Gpu) -> Arc<Self> {
        Arc::new(Self {
            gpu: Mutex::new(gpu),
            work: Condvar::new(),
            waiting: AtomicUsize::new(0),
        })
    }

    /// Serves an access of the guest, and wakes the executor if the access created work.
    pub(crate) fn access<T>(&self, serve: impl FnOnce(&mut Gpu) -> T) -> T {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let mut gpu = self.lock();
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        let result = serve(&mut gpu);
        if gpu.has_work() {
            self.work.notify_one();
        }
        result
    }

    /// Executes channels for ever. The process exits when the guest is gone.
    pub(crate) fn execute(&self) -> ! {
        let mut pause = POLL_MIN;
        loop {
            while self.waiting.load(Ordering::Acquire) != 0 {
                std::thread::yield_now();
            }
            let mut gpu = self.lock();
            match gpu.step() {
                Progress::Busy => pause = POLL_MIN,
                Progress::Waiting => {
                    // PANIC: `into_inner` takes over a poisoned lock, as in `lock`.
                    drop(
                        self.work
                            .wait_timeout(gpu, pause)
                            .unwrap_or_else(PoisonError::into_inner),
                    );
                    pause = (2 * pause).min(POLL_MAX);
                }
                Progress::Running(ns) => {
                    pause = POLL_MIN;
                    // Other channels may wait for a semaphore meanwhile.
                    let end = Duration::from_nanos(ns).min(POLL_MAX);
                    drop(
                        self.work
                            .wait_timeout(gpu, end)
                            .unwrap_or_else(PoisonError::into_inner),
                    );
                }
                Progress::Idle => {
                    pause = POLL_MIN;
                    if !gpu.has_work() {
                        drop(self.work.wait(gpu).unwrap_or_else(PoisonError::into_inner));
                    }
                }
            }
        }
    }

    /// Locks the device, even after a panic: the test that runs on it should see what else happens.
    fn lock(&self) -> MutexGuard<'_, Gpu> {
        self.gpu.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
