// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Returns `CUDA_ERROR_OUT_OF_MEMORY` for managed memory beyond the limit.
//!
//! The limit refuses the mapping ([`crate::managed`]), which libcuda reports as
//! `CUDA_ERROR_UNKNOWN`. A program aborts on that error, and frees memory on the other.

use super::symbols::MEM_ALLOC_MANAGED;
use super::{Status, NOT_INITIALIZED, OUT_OF_MEMORY, SUCCESS};
use core::cell::Cell;
use core::ffi::{c_uint, c_void};

std::thread_local! {
    /// Whether a limit has refused a mapping of this thread.
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// Records that a limit has refused a mapping of this thread.
pub(crate) fn refused() {
    // Fails in a thread that is exiting, which allocates nothing.
    let _ = REFUSED.try_with(|refused| refused.set(true));
}

/// Returns the result of a call whose libcuda function returned `status`.
fn translate(status: Status) -> Status {
    match status != SUCCESS && REFUSED.take() {
        true => OUT_OF_MEMORY,
        false => status,
    }
}

/// Interposes libcuda's function.
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuMemAllocManaged(
    address: *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> Status {
    type Real = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> Status;
    // SAFETY: `Real` is the type of the function.
    let Some(real) = (unsafe { MEM_ALLOC_MANAGED.function::<Real>() }) else {
        return NOT_INITIALIZED;
    };
    REFUSED.set(false);
    // SAFETY: passes on the caller's contract.
    translate(unsafe { real(address, bytes, flags) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_by_a_limit_is_out_of_memory() {
        const UNKNOWN: Status = 999;
        assert_eq!(translate(UNKNOWN), UNKNOWN);
        refused();
        assert_eq!(translate(SUCCESS), SUCCESS, "mapped in another way");
        assert_eq!(translate(UNKNOWN), OUT_OF_MEMORY);
        assert_eq!(translate(UNKNOWN), UNKNOWN, "a refusal counts once");
    }
}
