// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Managed memory over the limit is `CUDA_ERROR_OUT_OF_MEMORY`.
//!
//! The limit refuses the mapping ([`crate::managed`]), of which libcuda makes
//! `CUDA_ERROR_UNKNOWN`: a program gives up there, where it frees memory after the other.

use super::symbols::MEM_ALLOC_MANAGED;
use super::{Status, NOT_INITIALIZED, OUT_OF_MEMORY, SUCCESS};
use core::cell::Cell;
use core::ffi::{c_uint, c_void};

std::thread_local! {
    /// Whether a mapping of this thread was refused for a limit.
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// Remembers that a mapping of managed memory of this thread is over the limit.
pub(crate) fn refused() {
    // A thread that is ending allocates nothing.
    let _ = REFUSED.try_with(|refused| refused.set(true));
}

/// What a call answers that libcuda answers with `status`.
fn answer(status: Status) -> Status {
    match status != SUCCESS && REFUSED.take() {
        true => OUT_OF_MEMORY,
        false => status,
    }
}

/// Stands in front of libcuda's.
///
/// # Safety
///
/// As for libcuda's.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuMemAllocManaged(
    address: *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> Status {
    type Real = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> Status;
    // SAFETY: this is its type.
    let Some(real) = (unsafe { MEM_ALLOC_MANAGED.function::<Real>() }) else {
        return NOT_INITIALIZED;
    };
    REFUSED.set(false);
    // SAFETY: passed on.
    answer(unsafe { real(address, bytes, flags) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_limit_refused_is_out_of_memory() {
        const UNKNOWN: Status = 999;
        assert_eq!(answer(UNKNOWN), UNKNOWN);
        refused();
        assert_eq!(answer(SUCCESS), SUCCESS, "it was mapped another way");
        assert_eq!(answer(UNKNOWN), OUT_OF_MEMORY);
        assert_eq!(answer(UNKNOWN), UNKNOWN, "once");
    }
}
