// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the fault handler's work on its own stack if the program's alternate stack is small.
//!
//! A program's handler for SIGSEGV often runs on an alternate stack, and then ours does, too.
//! Rust's has 8 KiB. A frame with the registers of AVX-512 takes a third of that.

use crate::signals::Blocked;
use crate::sys;
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The most that publishing needs, with room to spare.
const BYTES: usize = 256 << 10;

/// The end of the stack; 0 before it is made.
static TOP: AtomicUsize = AtomicUsize::new(0);

/// Maps the stack with a guard page below it. Without memory for it there is none.
pub(crate) fn prepare() {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { sys::mmap(core::ptr::null_mut(), BYTES + sys::PAGE, prot, flags, -1, 0) };
    // SAFETY: the first page of the mapping above, which nobody uses.
    if at != libc::MAP_FAILED && unsafe { sys::mprotect(at, sys::PAGE, libc::PROT_NONE) } {
        TOP.store(at as usize + BYTES + sys::PAGE, Ordering::Release);
    }
}

/// Runs `work` on that stack if the signal was delivered on an alternate one, else on the present
/// stack.
///
/// # Safety
///
/// `context` is the context of the signal that this handler handles, and no other thread is in
/// here.
pub(crate) unsafe fn run(context: *mut c_void, work: &mut dyn FnMut()) {
    let here = 0u8;
    // SAFETY: by contract.
    let stack = unsafe { (*context.cast::<libc::ucontext_t>()).uc_stack };
    let offset = (&raw const here as usize).wrapping_sub(stack.ss_sp as usize);
    let top = TOP.load(Ordering::Acquire);
    if stack.ss_flags & libc::SS_DISABLE != 0 || offset >= stack.ss_size || top == 0 {
        return work();
    }
    // The kernel would take the alternate stack for unused meanwhile, and start at its end again.
    let _blocked = Blocked::all();
    // SAFETY: the stack is this library's, nobody else's meanwhile, and aligned.
    unsafe { switch(top, work) };
}

/// Calls `work` with the stack pointer at `top`.
///
/// # Safety
///
/// The memory below is a stack that nobody uses.
#[cfg(target_arch = "x86_64")]
unsafe fn switch(top: usize, mut work: &mut dyn FnMut()) {
    unsafe extern "C" fn call(work: *mut c_void) {
        // SAFETY: the address of `work` below.
        let work = unsafe { &mut *work.cast::<&mut dyn FnMut()>() };
        work();
    }
    // SAFETY: the assembly restores the stack pointer; `call` keeps to the C convention and does
    // not unwind.
    unsafe {
        core::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {call}",
            "mov rsp, r12",
            top = in(reg) top,
            call = in(reg) call as *const (),
            inout("rdi") &raw mut work => _,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// Calls `work` on the present stack: other machines have no second one.
///
/// # Safety
///
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn switch(_: usize, work: &mut dyn FnMut()) {
    work();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_the_stack_that_was_made() {
        prepare();
        let top = TOP.load(Ordering::Relaxed);
        let mut at = 0;
        // SAFETY: this test alone makes stacks here.
        unsafe {
            switch(top, &mut || {
                let deep = [1u8; 100_000];
                at = core::hint::black_box(&deep).as_ptr() as usize;
            });
        }
        assert!(top.wrapping_sub(at) < BYTES);
    }
}
