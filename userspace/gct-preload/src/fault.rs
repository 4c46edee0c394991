// SPDX-License-Identifier: GPL-2.0 OR MIT

//! SIGSEGV: our doorbell faults first, the program's own handler for all else.

use crate::worker;
use core::ffi::{c_void, CStr};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use libc::{c_int, sigaction, siginfo_t, sigset_t};

/// The action that the program believes is installed; leaked boxes, because a handler
/// may be reading one while another thread installs the next.
static PROGRAM: AtomicPtr<sigaction> = AtomicPtr::new(core::ptr::null_mut());
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// glibc's functions of these names, past our own.
type Sigaction = unsafe extern "C" fn(c_int, *const sigaction, *mut sigaction) -> c_int;
type Sigmask = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;

/// A symbol of the libraries after this one, looked up once: `dlsym` must not be called
/// in a signal handler.
struct Next {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            at: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// The symbol's address; null when there is none.
    fn get(&self) -> *mut c_void {
        let known = self.at.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        // SAFETY: looks a symbol up by name; `RTLD_NEXT` is whatever comes after this object.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(found, Ordering::Release);
        found
    }
}

static SIGACTION: Next = Next::new(c"sigaction");
static PTHREAD_SIGMASK: Next = Next::new(c"pthread_sigmask");

/// Calls glibc's `sigaction`.
///
/// # Safety
///
/// As for `sigaction(2)`.
unsafe fn call_real(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int {
    let symbol = SIGACTION.get();
    if symbol.is_null() {
        return -1;
    }
    // SAFETY: the symbol named `sigaction` has this type in every libc.
    let real = unsafe { core::mem::transmute::<*mut c_void, Sigaction>(symbol) };
    // SAFETY: the caller's pointers are passed on unchanged.
    unsafe { real(signal, new, old) }
}

/// `pthread_sigmask` that leaves SIGSEGV unblocked: the kernel kills a process whose
/// doorbell faults in a thread that blocks it.
///
/// # Safety
///
/// As for `pthread_sigmask(3)`.
pub(crate) unsafe fn program_mask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int {
    let symbol = PTHREAD_SIGMASK.get();
    if symbol.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the symbol named `pthread_sigmask` has this type in every libc.
    let real = unsafe { core::mem::transmute::<*mut c_void, Sigmask>(symbol) };
    if new.is_null() || how == libc::SIG_UNBLOCK {
        // SAFETY: the caller's pointers are passed on unchanged.
        return unsafe { real(how, new, old) };
    }
    // SAFETY: `new` is valid by contract.
    let mut set = unsafe { new.read() };
    // SAFETY: `set` is an initialised set.
    unsafe { libc::sigdelset(&mut set, libc::SIGSEGV) };
    // SAFETY: `set` lives for the call; `old` is the caller's.
    unsafe { real(how, &set, old) }
}

/// Puts our handler in front, once.
pub(crate) fn install() {
    if INSTALLED.swap(true, Ordering::SeqCst) {
        return;
    }
    // SAFETY: all zero is a valid `sigaction` (SIG_DFL, no flags, empty mask).
    let mut program: sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: null asks only, and `program` lives for the call.
    unsafe { call_real(libc::SIGSEGV, core::ptr::null(), &mut program) };
    // Before the handler can run: it must find what to pass a fault on to.
    let asked = Box::into_raw(Box::new(program));
    PROGRAM.store(asked, Ordering::Release);
    // SAFETY: as above.
    let mut ours: sigaction = unsafe { core::mem::zeroed() };
    ours.sa_sigaction = handler as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: both live for the call, and the handler is async-signal-safe.
    unsafe { call_real(libc::SIGSEGV, &ours, &mut program) };
    // Another thread may have installed one after the question; what comes after that is in
    // `PROGRAM` already.
    let replaced = Box::into_raw(Box::new(program));
    let _ = PROGRAM.compare_exchange(asked, replaced, Ordering::AcqRel, Ordering::Relaxed);
}

/// The program's view of `sigaction`: it may replace its own handler, not ours.
///
/// # Safety
///
/// As for `sigaction(2)`.
pub(crate) unsafe fn program_action(
    signal: c_int,
    new: *const sigaction,
    old: *mut sigaction,
) -> c_int {
    let current = PROGRAM.load(Ordering::Acquire);
    if signal != libc::SIGSEGV || current.is_null() {
        // SAFETY: passed on unchanged.
        return unsafe { call_real(signal, new, old) };
    }
    if !old.is_null() {
        // SAFETY: `old` is valid by contract; `current` is a leaked box.
        unsafe { old.write(*current) };
    }
    if !new.is_null() {
        // SAFETY: `new` is valid by contract.
        let action = unsafe { new.read() };
        PROGRAM.store(Box::into_raw(Box::new(action)), Ordering::Release);
    }
    0
}

unsafe extern "C" fn handler(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let info_of = unsafe { &*info };
    // By a process, as `kill` does: then there is no address.
    let sent = info_of.si_code <= 0;
    // SAFETY: every other SIGSEGV has an address.
    let fault = (!sent).then(|| unsafe { info_of.si_addr() } as usize);
    if fault.is_some_and(|addr| crate::sys::keep_errno(|| worker::on_fault(addr))) {
        return;
    }
    let program = PROGRAM.load(Ordering::Acquire);
    // SAFETY: null or a leaked box.
    let action = unsafe { program.as_ref() };
    match action.map(|a| (a.sa_sigaction, a.sa_flags)) {
        Some((h, _)) if h == libc::SIG_IGN && sent => {}
        Some((h, flags)) if is_function(h) && flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the program installed this address as a handler of this form.
            let f: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                unsafe { core::mem::transmute(h) };
            // SAFETY: called as the kernel would have.
            unsafe { f(signal, info, context) };
        }
        Some((h, _)) if is_function(h) => {
            // SAFETY: the program installed this address as a plain handler.
            let f: unsafe extern "C" fn(c_int) = unsafe { core::mem::transmute(h) };
            // SAFETY: called as the kernel would have.
            unsafe { f(signal) };
        }
        // A fault cannot be ignored.
        _ => die(sent),
    }
}

fn is_function(handler: usize) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

/// Lets the fault happen again with the default action, or sends the signal again, so that the
/// process ends as it would have without us.
fn die(sent: bool) {
    // SAFETY: all zero is SIG_DFL.
    let default: sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: `default` lives for the call, which is async-signal-safe.
    unsafe { call_real(libc::SIGSEGV, &default, core::ptr::null_mut()) };
    if sent {
        // SAFETY: async-signal-safe; it is not blocked here, by SA_NODEFER.
        unsafe { libc::raise(libc::SIGSEGV) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How a child ends to which SIGSEGV is sent while `action` is its own, in the words of `wait`.
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
        install();
        let status = sent_to_a_child(libc::SIG_DFL);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV);
        let status = sent_to_a_child(libc::SIG_IGN);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1);
        let status = sent_to_a_child(exit_with_signal as *const () as usize);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == libc::SIGSEGV);
    }
}
