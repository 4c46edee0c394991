// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lets pageable memory make room for an allocation that is refused, whatever function makes it.
//!
//! A function of libcuda may allocate other amounts than its caller asks for: a pool grows by
//! larger pieces. So the room is made for what the driver or a limit has refused to this thread
//! meanwhile ([`refused`]), or for what the caller asks for if that is more.
//!
//! ```text
//! allocating: call; while memory is refused: make room, call again
//! ```
//!
//! What stays refused by a limit is `CUDA_ERROR_OUT_OF_MEMORY`. libcuda itself reports a mapping of
//! managed memory that a limit refuses ([`crate::managed`]) as `CUDA_ERROR_UNKNOWN`. A program
//! aborts on that error, and frees memory on the other.

use super::pageable::make_room;
use super::symbols::{
    ARRAY_3D_CREATE, ARRAY_CREATE, MEM_ALLOC_ASYNC, MEM_ALLOC_ASYNC_PER_THREAD,
    MEM_ALLOC_FROM_POOL_ASYNC, MEM_ALLOC_FROM_POOL_ASYNC_PER_THREAD, MEM_ALLOC_MANAGED, MEM_CREATE,
    MIPMAPPED_ARRAY_CREATE,
};
use super::{Address, Status, Stream, NOT_INITIALIZED, OUT_OF_MEMORY, SUCCESS};
use crate::sys::keep_errno;
use core::cell::Cell;
use core::ffi::{c_uint, c_void};

/// Most calls for one allocation. Each may be refused at another of its pieces, and other threads
/// take room, too.
const CALLS_MAX: usize = 4;

std::thread_local! {
    /// The most bytes at once that were refused to this thread, by a limit or by the driver.
    static REFUSED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Records that device memory was refused to this thread.
pub(crate) fn refused(bytes: u64) {
    // Fails in a thread that is exiting, which allocates nothing.
    let _ = REFUSED.try_with(|refused| refused.set(refused.get().max(Some(bytes))));
}

/// Returns the most bytes at once that were refused to this thread, and forgets them.
pub(crate) fn take_refused() -> Option<u64> {
    REFUSED.take()
}

/// Calls a function of libcuda that allocates, and again after pageable memory has made room.
/// `asked` are the bytes that its caller wants, as far as that is known.
pub(super) fn allocating(asked: usize, call: impl Fn() -> Status) -> Status {
    // CAST: widening.
    attempt(call, |bytes| {
        keep_errno(|| make_room(bytes.max(asked as u64)))
    })
}

fn attempt(call: impl Fn() -> Status, make_room: impl Fn(u64) -> bool) -> Status {
    let mut calls = 0;
    loop {
        take_refused();
        let status = call();
        let refused = take_refused();
        let status = match refused {
            Some(_) if status != SUCCESS => OUT_OF_MEMORY,
            _ => status,
        };
        calls += 1;
        let is_final = status != OUT_OF_MEMORY || calls == CALLS_MAX;
        if is_final || !make_room(refused.unwrap_or(0)) {
            return status;
        }
    }
}

macro_rules! allocates {
    ($($name:ident is $symbol:ident ($($argument:ident: $kind:ty),*): $bytes:expr;)*) => {$(
        /// Interposes libcuda's function: pageable memory makes room for what it allocates.
        ///
        /// # Safety
        ///
        /// As for libcuda's function.
        #[no_mangle]
        #[allow(non_snake_case, reason = "libcuda's name")]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> Status {
            type Real = unsafe extern "C" fn($($kind),*) -> Status;
            // SAFETY: this is its type.
            match unsafe { $symbol.function::<Real>() } {
                // SAFETY: passed on. A call that is refused memory has done nothing.
                Some(real) => allocating($bytes, || unsafe { real($($argument),*) }),
                None => NOT_INITIALIZED,
            }
        }
    )*};
}

allocates! {
    cuMemAllocManaged is MEM_ALLOC_MANAGED
        (address: *mut Address, bytes: usize, flags: c_uint): bytes;
    cuMemAllocAsync is MEM_ALLOC_ASYNC
        (address: *mut Address, bytes: usize, stream: Stream): bytes;
    cuMemAllocAsync_ptsz is MEM_ALLOC_ASYNC_PER_THREAD
        (address: *mut Address, bytes: usize, stream: Stream): bytes;
    cuMemAllocFromPoolAsync is MEM_ALLOC_FROM_POOL_ASYNC
        (address: *mut Address, bytes: usize, pool: *mut c_void, stream: Stream): bytes;
    cuMemAllocFromPoolAsync_ptsz is MEM_ALLOC_FROM_POOL_ASYNC_PER_THREAD
        (address: *mut Address, bytes: usize, pool: *mut c_void, stream: Stream): bytes;
    cuMemCreate is MEM_CREATE
        (handle: *mut u64, bytes: usize, properties: *const c_void, flags: u64): bytes;
    cuArrayCreate_v2 is ARRAY_CREATE (array: *mut c_void, shape: *const c_void): 0;
    cuArray3DCreate_v2 is ARRAY_3D_CREATE (array: *mut c_void, shape: *const c_void): 0;
    cuMipmappedArrayCreate is MIPMAPPED_ARRAY_CREATE
        (array: *mut c_void, shape: *const c_void, levels: c_uint): 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNKNOWN: Status = 999;

    /// Calls a function that needs `pieces`, of which as many fit as room was made for. Returns the
    /// status and the rooms that were made.
    fn allocate(pieces: &[u64], rooms_max: usize) -> (Status, Vec<u64>) {
        let rooms = std::cell::RefCell::new(Vec::new());
        let call = || match pieces.get(rooms.borrow().len()) {
            Some(piece) => {
                // libcuda tries again with less, and gives up.
                refused(*piece);
                refused(1);
                UNKNOWN
            }
            None => SUCCESS,
        };
        let make_room = |bytes| {
            let may = rooms.borrow().len() < rooms_max;
            may.then(|| rooms.borrow_mut().push(bytes)).is_some()
        };
        let status = attempt(call, make_room);
        (status, rooms.into_inner())
    }

    #[test]
    fn room_is_made_for_each_piece_that_is_refused() {
        assert_eq!(allocate(&[], 9), (SUCCESS, vec![]));
        assert_eq!(allocate(&[7, 5], 9), (SUCCESS, vec![7, 5]));
        assert_eq!(allocate(&[7, 5], 1), (OUT_OF_MEMORY, vec![7]));
        assert_eq!(allocate(&[7, 5], 0), (OUT_OF_MEMORY, vec![]));
        let (status, rooms) = allocate(&[2; 99], 99);
        assert_eq!((status, rooms.len()), (OUT_OF_MEMORY, CALLS_MAX - 1));
    }

    #[test]
    fn only_a_refusal_of_memory_is_out_of_memory() {
        refused(1);
        assert_eq!(attempt(|| UNKNOWN, |_| true), UNKNOWN, "an earlier one");
        let gives_way = || {
            refused(1);
            SUCCESS
        };
        assert_eq!(attempt(gives_way, |_| true), SUCCESS, "in another way");
        // libcuda's own shortage.
        assert_eq!(attempt(|| OUT_OF_MEMORY, |bytes| bytes > 0), OUT_OF_MEMORY);
    }
}
