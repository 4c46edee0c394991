// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Handles SIGSEGV: serves faults on our doorbells, and passes all others to the program's handler.
//!
//! The kernel knows only our handler. [`actions`] remembers the action that the program installs.
//! The kernel gets our handler with the program's `sa_mask`, `SA_ONSTACK` and `SA_RESTART`, so the
//! program's handler runs as the kernel would have run it. Two differences remain: SIGSEGV itself
//! is never blocked, and `SA_NODEFER` therefore always holds.

use crate::actions::{self, Action, Changing};
use crate::locks::First;
use crate::signals::{self, real_action};
use crate::sys::keep_errno;
use crate::{ending, stack, store};
use core::cell::Cell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use libc::{c_int, sigaction, siginfo_t};

static INSTALLED: AtomicBool = AtomicBool::new(false);
static SERVE: First<Serve> = First::new();
/// The process that owns the remembered actions. Another process that runs this code is a child
/// that shares the memory, by `vfork` or `clone(CLONE_VM)`. The kernel keeps separate actions for
/// it.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Returns the action that the kernel has for SIGSEGV.
fn installed() -> sigaction {
    // SAFETY: all zero is a valid `sigaction` (SIG_DFL, no flags, empty mask).
    let mut installed: sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: null asks only, and `installed` lives for the call.
    unsafe { real_action(libc::SIGSEGV, core::ptr::null(), &mut installed) };
    installed
}

/// Returns whether an action is this library's.
fn is_ours(action: &sigaction) -> bool {
    action.sa_sigaction == handler as *const () as usize
}

/// Installs our handler with the mask and flags of the action `program`.
fn put_in_front(program: &sigaction) -> c_int {
    let mut ours = *program;
    ours.sa_sigaction = handler as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO
        | libc::SA_NODEFER
        | program.sa_flags & (libc::SA_ONSTACK | libc::SA_RESTART);
    // SAFETY: an initialised set.
    unsafe { libc::sigdelset(&mut ours.sa_mask, libc::SIGSEGV) };
    // SAFETY: `ours` lives for the call, and the handler is async-signal-safe.
    unsafe { real_action(libc::SIGSEGV, &ours, core::ptr::null_mut()) }
}

/// A function that serves the fault at an address, with the signal's context. It returns false for
/// a fault of the program's own. It is async-signal-safe.
pub(crate) type Serve = unsafe fn(usize, *mut c_void) -> bool;

/// Installs our handler, once. `serve` gets every fault first.
pub(crate) fn install(serve: Serve) {
    if !INSTALLED.swap(true, Ordering::SeqCst) {
        SERVE.get_or_init(|| serve);
        signals::prepare();
        own();
        stack::prepare();
        in_front();
    }
}

/// Makes a forked child the owner of its copy of the remembered actions.
pub(crate) fn forked() {
    actions::forked();
    own();
}

/// Makes this process the owner of the remembered actions.
fn own() {
    // SAFETY: has no arguments and cannot fail.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// Installs our handler again if a system call past this library has replaced it, as runtimes
/// without libc do. The handler found there becomes the program's. The library calls this before it
/// makes a doorbell fault, and periodically.
pub(crate) fn in_front() {
    if !INSTALLED.load(Ordering::Relaxed) || is_ours(&installed()) {
        return;
    }
    let mut changing = Changing::begin();
    let theirs = installed();
    if is_ours(&theirs) {
        return;
    }
    let current = actions::current();
    let again = current.is_some_and(|c| c.action.sa_sigaction == theirs.sa_sigaction);
    // Record the action before our handler can run: the handler passes faults on to it.
    if again || changing.set(&theirs, current) {
        put_in_front(&theirs);
    }
}

/// Carries out the program's `sigaction`. It replaces the program's action, never our handler.
///
/// # Safety
///
/// As for `sigaction(2)`.
pub(crate) unsafe fn program_action(
    signal: c_int,
    new: *const sigaction,
    old: *mut sigaction,
) -> c_int {
    if signal != libc::SIGSEGV {
        // SAFETY: passed on unchanged.
        return unsafe { ending::program_action(signal, new, old) };
    }
    if actions::current().is_none() {
        // SAFETY: passed on unchanged.
        return unsafe { real_action(signal, new, old) };
    }
    // SAFETY: has no arguments and cannot fail.
    if unsafe { libc::getpid() } != OWNER.load(Ordering::Relaxed) {
        // SAFETY: passed on.
        return unsafe { childs_action(new, old) };
    }
    // SAFETY: valid by contract, if it is not null.
    let new = (!new.is_null()).then(|| unsafe { new.read() });
    let mut changing = Changing::begin();
    let current = actions::current();
    let ret = match &new {
        Some(new) if !changing.set(new, None) => {
            // SAFETY: glibc returns this thread's `errno`.
            unsafe { *libc::__errno_location() = libc::ENOMEM };
            -1
        }
        Some(new) => put_in_front(new),
        None => 0,
    };
    drop(changing);
    if let Some(current) = current.filter(|_| !old.is_null() && ret == 0) {
        // SAFETY: `old` is valid by contract.
        unsafe { old.write(current.action) };
    }
    ret
}

/// Carries out `sigaction` for SIGSEGV in a child that shares this process's memory. The kernel has
/// the child's actions.
///
/// # Safety
///
/// As for `sigaction(2)`.
unsafe fn childs_action(new: *const sigaction, old: *mut sigaction) -> c_int {
    // SAFETY: all zero is a valid `sigaction`.
    let mut before: sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: `new` is the caller's; `before` lives for the call.
    let ret = unsafe { real_action(libc::SIGSEGV, new, &mut before) };
    if !old.is_null() && ret == 0 {
        let inherited = actions::current().filter(|_| is_ours(&before));
        // SAFETY: `old` is valid by contract.
        unsafe { old.write(inherited.map_or(before, |action| action.action)) };
    }
    ret
}

std::thread_local! {
    /// The action whose handler this thread runs, and the address of the context it was called
    /// with.
    static CALLED: Cell<(usize, Option<&'static Action>)> = const { Cell::new((0, None)) };
}

/// Returns the action that a signal is passed on to. That is the program's action, or, if its
/// handler has called ours, the action that it replaced.
fn next_of(context: *mut c_void) -> Option<&'static Action> {
    match CALLED.get() {
        (at, Some(action)) if at == context as usize && action.before.is_some() => action.before,
        _ => actions::current(),
    }
}

unsafe extern "C" fn handler(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let info_of = unsafe { &*info };
    // A process sent the signal, as `kill` does. It has no address then.
    let sent = info_of.si_code <= 0;
    // SAFETY: every other SIGSEGV has an address.
    let fault = (!sent).then(|| unsafe { info_of.si_addr() } as usize);
    let served = |addr| {
        // SAFETY: the context is the kernel's.
        let serve = |serve: &Serve| unsafe { serve(addr, context) };
        SERVE.get().is_some_and(serve)
    };
    if fault.is_some_and(|addr| keep_errno(|| served(addr))) {
        return;
    }
    let Some(program) = next_of(context) else {
        return die(sent);
    };
    let before = CALLED.replace((context as usize, Some(program)));
    // SAFETY: the kernel's arguments, passed on.
    unsafe { call(&program.action, sent, signal, info, context) };
    CALLED.set(before);
}

/// Resumes the program behind the store that faulted. Returns false if it is no plain store.
///
/// # Safety
///
/// `context` is the context that the kernel passed to a handler for a fault of this thread.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn skip_store(context: *mut c_void) -> bool {
    // SAFETY: by contract; nobody else uses it meanwhile.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    // CAST: the register's number.
    let rip = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    let code = *rip as *const u8;
    // SAFETY: the processor has read this instruction there, and no more of it is read.
    match store::length(|at| unsafe { code.add(at).read() }) {
        Some(length) => {
            // CAST: at most 15.
            *rip += length as i64;
            true
        }
        None => false,
    }
}

/// Returns false: only x86-64 code can be decoded.
///
/// # Safety
///
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn skip_store(_: *mut c_void) -> bool {
    false
}

/// Calls the program's handler as the kernel would have.
///
/// # Safety
///
/// The arguments are those that the kernel passed to a handler.
unsafe fn call(
    action: &sigaction,
    sent: bool,
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    let (h, flags) = (action.sa_sigaction, action.sa_flags);
    if h == libc::SIG_IGN && sent {
        return;
    }
    if h == libc::SIG_DFL || h == libc::SIG_IGN {
        // A fault cannot be ignored.
        return die(sent);
    }
    if flags & libc::SA_RESETHAND != 0 {
        let mut default = *action;
        default.sa_sigaction = libc::SIG_DFL;
        Changing::begin().set(&default, None);
    }
    if flags & libc::SA_SIGINFO != 0 {
        // SAFETY: the program installed this address as a handler of this form.
        let f: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
            unsafe { core::mem::transmute(h) };
        // SAFETY: called as the kernel would have.
        unsafe { f(signal, info, context) };
    } else {
        // SAFETY: the program installed this address as a plain handler.
        let f: unsafe extern "C" fn(c_int) = unsafe { core::mem::transmute(h) };
        // SAFETY: called as the kernel would have.
        unsafe { f(signal) };
    }
}

/// Repeats the fault with the default action, or sends the signal again, so that the process ends
/// as it would have without this library.
fn die(sent: bool) {
    // SAFETY: all zero is SIG_DFL.
    let default: sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: `default` lives for the call, which is async-signal-safe.
    unsafe { real_action(libc::SIGSEGV, &default, core::ptr::null_mut()) };
    if sent {
        // SAFETY: async-signal-safe; it is not blocked here, by SA_NODEFER.
        unsafe { libc::raise(libc::SIGSEGV) };
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the wait status of a child that installs `action` and then gets a SIGSEGV.
    fn sent_to_a_child(action: usize) -> c_int {
        // SAFETY: the child calls nothing that another thread's lock could be in the way of:
        // `signal` allocates, which glibc allows after a fork.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::signal(libc::SIGSEGV, action);
                libc::raise(libc::SIGSEGV);
                libc::_exit(1);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        }
    }

    extern "C" fn exit_with_signal(signal: c_int) {
        // SAFETY: async-signal-safe.
        unsafe { libc::_exit(signal) };
    }

    #[test]
    fn a_signal_that_is_sent_does_what_it_would_do_without_us() {
        install(|_, _| false);
        let status = sent_to_a_child(libc::SIG_DFL);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV);
        let status = sent_to_a_child(libc::SIG_IGN);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1);
        let status = sent_to_a_child(exit_with_signal as *const () as usize);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == libc::SIGSEGV);
    }
}
