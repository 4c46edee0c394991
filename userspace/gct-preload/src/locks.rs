// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Locks and cells that a forked child can use, whatever the other threads of its parent did at the
//! fork.
//!
//! These threads do not exist in the child. A lock that one of them held is held there for ever,
//! and a `OnceLock` that one of them was filling is never filled. Handlers that take all locks
//! before a fork would not do: a preloaded allocator takes its own locks there too, and threads
//! allocate under ours.

#![allow(clippy::disallowed_types, reason = "the lock that can be renewed")]

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

std::thread_local! {
    /// Its address stands for the thread. The thread that forks keeps it in the child.
    static THREAD: u8 = const { 0 };
}

/// Returns a number of this thread, which is not 0.
fn this_thread() -> usize {
    THREAD.with(|at| ptr::from_ref(at) as usize)
}

/// A lock that [`Lock::renew`] frees in a forked child.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    mutex: UnsafeCell<Mutex<T>>,
    /// The [`this_thread`] that holds it, or 0.
    holder: AtomicUsize,
    /// Makes the value that replaces one in the middle of a change. It allocates nothing.
    empty: fn() -> T,
}

// SAFETY: threads share the mutex, which is `Sync` for such a `T`. `renew` alone replaces it.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The value under a [`Lock`].
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    value: MutexGuard<'a, T>,
    holder: &'a AtomicUsize,
}

impl<T> Lock<T> {
    /// Creates a lock with its first value, and with what makes that of a child.
    pub(crate) const fn new(value: T, empty: fn() -> T) -> Self {
        Self {
            mutex: UnsafeCell::new(Mutex::new(value)),
            holder: AtomicUsize::new(0),
            empty,
        }
    }

    fn mutex(&self) -> &Mutex<T> {
        // SAFETY: `renew` alone writes there, while no other thread exists and this one has no
        // reference to the value.
        unsafe { &*self.mutex.get() }
    }

    fn held<'a>(&'a self, value: MutexGuard<'a, T>) -> Guard<'a, T> {
        let holder = &self.holder;
        holder.store(this_thread(), Ordering::Relaxed);
        Guard { value, holder }
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.held(self.mutex().lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the lock, if it is free. A signal handler may call this.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        match self.mutex().try_lock() {
            Ok(value) => Some(self.held(value)),
            Err(TryLockError::Poisoned(error)) => Some(self.held(error.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns whether this thread holds the lock. A signal handler may call this.
    pub(crate) fn is_mine(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == this_thread()
    }

    /// Frees the lock in a forked child, if another thread held it at the fork. That thread may
    /// have been changing the value, which is forgotten and not dropped.
    ///
    /// # Safety
    ///
    /// The process has one thread.
    pub(crate) unsafe fn renew(&self) {
        if self.is_mine() || self.try_lock().is_some() {
            return;
        }
        // SAFETY: this thread does not hold the lock, so it has no reference to the value, and no
        // other thread exists. All of a mutex may change behind a reference to it: this thread may
        // wait for the lock, below a signal handler that has forked.
        unsafe { self.mutex.get().write(Mutex::new((self.empty)())) };
        self.holder.store(0, Ordering::Relaxed);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.holder.store(0, Ordering::Relaxed);
    }
}

/// A value that is set once. No thread waits for another: each may make one, and the first stays.
/// It is never freed, as in a static.
#[derive(Debug)]
pub(crate) struct First<T>(AtomicPtr<T>);

impl<T: Send + Sync> First<T> {
    /// Creates an empty cell.
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the value, if there is one. A signal handler may call this.
    pub(crate) fn get(&self) -> Option<&T> {
        // SAFETY: null, or a value that `get_or_init` has leaked.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the value. Without one, it makes it.
    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let made = Box::into_raw(Box::new(make()));
        let (ok, none) = (Ordering::AcqRel, ptr::null_mut());
        let at = match self.0.compare_exchange(none, made, ok, Ordering::Acquire) {
            Ok(_) => made,
            Err(first) => {
                // SAFETY: made above, and no other thread knows it.
                drop(unsafe { Box::from_raw(made) });
                first
            }
        };
        // SAFETY: a value that was leaked here.
        unsafe { &*at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_lock_of_a_thread_that_is_gone_is_freed_and_empty() {
        static LOCK: Lock<u32> = Lock::new(1, || 7);
        let (held, waits) = mpsc::channel();
        // The thread never gives it back, as one that does not exist in the child.
        std::thread::spawn(move || {
            let mut guard = LOCK.lock();
            *guard = 2;
            held.send(()).unwrap();
            core::mem::forget(guard);
        });
        waits.recv().unwrap();
        assert!(LOCK.try_lock().is_none() && !LOCK.is_mine());
        // SAFETY: no other thread uses this lock.
        unsafe { LOCK.renew() };
        assert_eq!(*LOCK.lock(), 7);
    }

    #[test]
    fn a_lock_that_is_free_or_ones_own_keeps_its_value() {
        static LOCK: Lock<u32> = Lock::new(1, || 7);
        // SAFETY: no other thread uses this lock.
        unsafe { LOCK.renew() };
        let mut own = LOCK.lock();
        assert_eq!(*own, 1);
        *own = 2;
        // SAFETY: as above.
        unsafe { LOCK.renew() };
        assert!(LOCK.is_mine() && LOCK.try_lock().is_none());
        drop(own);
        assert_eq!(*LOCK.lock(), 2);
        assert!(!LOCK.is_mine());
    }

    #[test]
    fn the_first_value_stays() {
        let cell = First::new();
        assert_eq!(cell.get(), None);
        let own = cell.get_or_init(|| {
            cell.get_or_init(|| 1);
            2
        });
        assert_eq!((*own, cell.get()), (1, Some(&1)));
    }
}
