// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device, shared by two threads: one serves the guest's accesses, one
//! executes channels.

use fakegpu_core::{Gpu, Progress};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often a channel that waits for a semaphore looks again, at first.
/// Nobody tells us when a processor of the guest stores to memory.
const POLL_MIN: Duration = Duration::from_micros(50);
/// How often at last, when nothing comes.
const POLL_MAX: Duration = Duration::from_millis(2);

/// The device and its lock.
pub(crate) struct Shared {
    gpu: Mutex<Gpu>,
    work: Condvar,
    /// Accesses that wait for the lock: the guest goes first.
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

    /// Serves an access of the guest, and wakes the executor if that gave it
    /// something to do.
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

    /// Executes channels for ever; the process ends when the guest is gone.
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
                    // PANIC: a poisoned lock is taken over, see `lock`.
                    drop(
                        self.work
                            .wait_timeout(gpu, pause)
                            .unwrap_or_else(PoisonError::into_inner),
                    );
                    pause = (2 * pause).min(POLL_MAX);
                }
                Progress::Running(ns) => {
                    pause = POLL_MIN;
                    // Others may wait for a semaphore meanwhile.
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

    /// The device, even if a thread has panicked while it held it: the test
    /// that runs on it should see what else happens.
    fn lock(&self) -> MutexGuard<'_, Gpu> {
        self.gpu.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
