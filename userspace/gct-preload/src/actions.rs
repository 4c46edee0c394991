// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Remembers the actions that the program has installed for SIGSEGV.
//!
//! An action is written once and never freed, because a handler may be reading it while another
//! thread installs the next. Equal actions share an entry, so a program that alternates between two
//! needs two. Nothing here calls malloc, because a program may install an action in a signal
//! handler.

use crate::signals::Blocked;
use crate::sys;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use libc::sigaction;

/// An action of the program.
pub(crate) struct Action {
    pub(crate) action: sigaction,
    /// The action that this one replaced by a system call past this library. Its handler may call
    /// that one.
    pub(crate) before: Option<&'static Action>,
    next: Option<&'static Action>,
}

// SAFETY: an action is never written after it was made, and its pointers are addresses of code.
unsafe impl Sync for Action {}

impl Action {
    fn is(&self, action: &sigaction, before: Option<&'static Action>) -> bool {
        let masks = [&self.action.sa_mask, &action.sa_mask].map(|mask| {
            // SAFETY: 1 to 64 are the signals that there are.
            (1..=64).map(|signal| unsafe { libc::sigismember(mask, signal) })
        });
        let [own, other] = masks;
        let at =
            |action: Option<&'static Action>| action.map_or(0, |a| core::ptr::from_ref(a) as usize);
        self.action.sa_sigaction == action.sa_sigaction
            && self.action.sa_flags == action.sa_flags
            && own.eq(other)
            && at(self.before) == at(before)
    }
}

/// Memory for actions, and the lock for adding one.
struct Room {
    taken: AtomicBool,
    /// The address of the next action: 0, or inside a page. One word, so that a child forked while
    /// another thread adds an action finds the room usable.
    next: AtomicUsize,
}

static ROOM: Room = Room {
    taken: AtomicBool::new(false),
    next: AtomicUsize::new(0),
};
/// An address at the beginning of a page is that of an empty page, never the end of a full one.
const _: () = assert!(sys::PAGE % size_of::<Action>() != 0);
static ALL: AtomicPtr<Action> = AtomicPtr::new(core::ptr::null_mut());
/// The action that the program believes is installed.
static CURRENT: AtomicPtr<Action> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the action that the program believes is installed; `None` before [`Changing::set`].
pub(crate) fn current() -> Option<&'static Action> {
    // SAFETY: null, or an action, which stays.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// The lock for changing the action. It blocks signals, because their handlers may want the lock,
/// too.
pub(crate) struct Changing {
    /// Dropped after the lock is released.
    _signals: Blocked,
}

impl Changing {
    /// Waits for the lock.
    pub(crate) fn begin() -> Self {
        let blocked = Blocked::all();
        while ROOM.taken.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        Self { _signals: blocked }
    }

    /// Makes `action` the one that the program believes is installed. Returns false without memory.
    pub(crate) fn set(&mut self, action: &sigaction, before: Option<&'static Action>) -> bool {
        let known = self.known(action, before);
        let Some(found) = known.or_else(|| self.add(action, before)) else {
            return false;
        };
        CURRENT.store(core::ptr::from_ref(found).cast_mut(), Ordering::Release);
        true
    }

    fn known(
        &self,
        action: &sigaction,
        before: Option<&'static Action>,
    ) -> Option<&'static Action> {
        // SAFETY: null, or an action, which stays.
        let mut at = unsafe { ALL.load(Ordering::Acquire).as_ref() };
        while let Some(known) = at.filter(|known| !known.is(action, before)) {
            at = known.next;
        }
        at
    }

    fn add(
        &mut self,
        action: &sigaction,
        before: Option<&'static Action>,
    ) -> Option<&'static Action> {
        let mut at = ROOM.next.load(Ordering::Relaxed);
        if at == 0 || at % sys::PAGE + size_of::<Action>() > sys::PAGE {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping at an address of the kernel's choice.
            let page = unsafe { sys::mmap(core::ptr::null_mut(), sys::PAGE, prot, flags, -1, 0) };
            if page == libc::MAP_FAILED {
                return None;
            }
            at = page as usize;
        }
        let place = at as *mut Action;
        ROOM.next.store(at + size_of::<Action>(), Ordering::Relaxed);
        // SAFETY: null, or an action, which stays.
        let next = unsafe { ALL.load(Ordering::Acquire).as_ref() };
        let new = Action {
            action: *action,
            before,
            next,
        };
        // SAFETY: inside the page, aligned because every place before it is one of this size, and
        // nobody else's.
        unsafe { place.write(new) };
        ALL.store(place, Ordering::Release);
        // SAFETY: just written, and never again.
        unsafe { place.as_ref() }
    }
}

/// Frees the lock in a forked child. A thread that held it at the fork does not exist there.
pub(crate) fn forked() {
    ROOM.taken.store(false, Ordering::Relaxed);
}

impl Drop for Changing {
    fn drop(&mut self) {
        ROOM.taken.store(false, Ordering::Release);
    }
}
