// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lets a client of MPS end without the other clients of its server.
//!
//! If a client ends while the GPU works for it, the server's other clients get an error, and end,
//! too (gctgroup-docs/gctd.md, faults). So one that exits waits for the end of its work. A signal
//! whose default action ends the program is handled here: from then on nothing more goes to
//! the GPU, and when that has ended what it has, the default action is taken. SIGKILL and `_exit`
//! cannot be helped.

use crate::signals::{self, real_action, real_mask};
use crate::sys::{self, keep_errno};
use crate::{daemon, worker};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use gct_core::units::Ns;
use libc::{c_int, sigaction};
use std::time::Duration;

/// The longest wait for the end of the work: less than the ten seconds that `docker stop` waits.
const LAST_WORK: Ns = Ns(8_000_000_000);
/// The time between two looks.
const LOOK: Duration = Duration::from_micros(200);

/// What ends a program that does not handle it, and is meant to.
const SIGNALS: [c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];
/// The first process of a container: the kernel ignores what it does not handle.
const FIRST: i32 = 1;

/// The process that handles them; 0 if none does. A child may have its parent's handlers, and its
/// memory, too.
static OWNER: AtomicI32 = AtomicI32::new(0);
static HOLDS: AtomicBool = AtomicBool::new(false);
/// A signal that is to be sent again; 0 if none is.
static AGAIN: AtomicI32 = AtomicI32::new(0);

/// Returns whether nothing more may go to the GPU.
pub(crate) fn holds() -> bool {
    HOLDS.load(Ordering::Relaxed)
}

/// Waits at an exit of a client of MPS until its work has ended.
pub(crate) fn at_exit() {
    if OWNER.load(Ordering::Relaxed) == pid() {
        wait(|| worker::lock().map(|mut shared| shared.has_work()));
    }
}

/// Waits until there is no work, for [`LAST_WORK`] at most. `has_work` may not know.
fn wait(has_work: impl Fn() -> Option<bool>) {
    let since = Ns(sys::now_ns());
    while has_work() != Some(false) && Ns(sys::now_ns()) - since < LAST_WORK {
        std::thread::sleep(LOOK);
    }
}

/// Returns the signals that are handled in a process. SIGTERM ends the first one of a container,
/// too: else the kubelet kills it while the GPU works for it.
fn handled(pid: i32) -> &'static [c_int] {
    match pid {
        FIRST => &SIGNALS[..1],
        _ => &SIGNALS,
    }
}

/// Handles the signals of a client of MPS whose default action ends it.
pub(crate) fn install() {
    let pid = pid();
    if OWNER.load(Ordering::Relaxed) == pid || !daemon::shares_group() {
        return;
    }
    signals::prepare();
    OWNER.store(pid, Ordering::Relaxed);
    for &signal in handled(pid) {
        let mut present = default_action();
        // SAFETY: a complete action, whose handler is async-signal-safe; `present` lives for the
        // call.
        unsafe { real_action(signal, &ours(), &mut present) };
        if present.sa_sigaction != libc::SIG_DFL {
            // SAFETY: the action of before.
            unsafe { real_action(signal, &present, core::ptr::null_mut()) };
        }
    }
}

/// Carries out the program's `sigaction` for a signal other than SIGSEGV. It does not see our
/// handler, which stands for the default action.
///
/// # Safety
///
/// As for `sigaction(2)`.
pub(crate) unsafe fn program_action(
    signal: c_int,
    new: *const sigaction,
    old: *mut sigaction,
) -> c_int {
    let pid = pid();
    let is_ours = handled(pid).contains(&signal) && OWNER.load(Ordering::Relaxed) == pid;
    // SAFETY: valid by contract, if it is not null.
    let is_default = unsafe { new.as_ref() }.is_some_and(|new| new.sa_sigaction == libc::SIG_DFL);
    let instead = ours();
    let new = match is_ours && is_default {
        true => &raw const instead,
        false => new,
    };
    // SAFETY: the caller's pointers, or an action of ours.
    let ret = unsafe { real_action(signal, new, old) };
    // SAFETY: valid by contract, if it is not null.
    if let Some(old) = unsafe { old.as_mut() }.filter(|old| old.sa_sigaction == address()) {
        *old = default_action();
    }
    ret
}

fn pid() -> i32 {
    // SAFETY: has no arguments and cannot fail.
    unsafe { libc::getpid() }
}

/// Returns the action `SIG_DFL`.
fn default_action() -> sigaction {
    // SAFETY: all zero is a valid `sigaction`: SIG_DFL, no flags, an empty mask.
    unsafe { core::mem::zeroed() }
}

fn ours() -> sigaction {
    let mut ours = default_action();
    ours.sa_sigaction = address();
    ours.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    for signal in SIGNALS {
        // SAFETY: an initialised set.
        unsafe { libc::sigaddset(&mut ours.sa_mask, signal) };
    }
    ours
}

fn address() -> usize {
    handler as *const () as usize
}

/// Waits for the end of the work, and takes the default action.
extern "C" fn handler(signal: c_int) {
    keep_errno(|| {
        let pid = pid();
        if OWNER.load(Ordering::Relaxed) == pid {
            HOLDS.store(true, Ordering::Relaxed);
            worker::wake();
            if worker::is_here() {
                // This thread is to let others see what the GPU has. The worker sends it again.
                return AGAIN.store(signal, Ordering::Relaxed);
            }
            wait(worker::has_work_now);
        }
        if pid == FIRST {
            // SAFETY: ends this process with the status that a shell has for the signal.
            unsafe { libc::_exit(128 + signal) };
        }
        // SAFETY: all are async-signal-safe. Blocked here, the signal ends this process when it no
        // longer is, whatever mask the program has.
        unsafe {
            real_action(signal, &default_action(), core::ptr::null_mut());
            libc::raise(signal);
            let mut set = default_action().sa_mask;
            libc::sigaddset(&mut set, signal);
            real_mask(libc::SIG_UNBLOCK, &set, core::ptr::null_mut());
        }
    });
}

/// Sends a signal again that has found its thread in the shared state. The worker does that.
pub(crate) fn again() {
    let signal = AGAIN.swap(0, Ordering::Relaxed);
    if signal != 0 {
        // SAFETY: signals this process.
        unsafe { libc::kill(pid(), signal) };
    }
}
