// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Answers `cuMemAlloc` with memory that can move, while `gmem.pageable` says so
//! ([`crate::pager`]).
//!
//! It is managed memory with a mapping that the driver keeps on the GPU wherever the pages are
//! (`CU_MEM_ADVISE_SET_ACCESSED_BY`). So the GPU uses pages of the host across the bus, without
//! faults, and nothing but a prefetch moves them. On an H100 (580.159.04) kernels over resident
//! pages are as fast as over memory of `cuMemAlloc`; pages of the host are read at 51 GB/s.
//!
//! What the library knows of use are the arguments of launches ([`launching`]). It looks at them
//! only while some memory is on the host.

use super::arguments::each_argument;
use super::mover::{self, Mover, OwnStream};
use super::size::{bus_id, current_device};
use super::symbols::{Symbol, MEM_ALLOC, MEM_ALLOC_PITCH};
use super::{Address, Device, Function, Status, Stream, NOT_INITIALIZED, OUT_OF_MEMORY, SUCCESS};
use crate::daemon;
use crate::pager::{Memory, SPARE};
use crate::sys::{self, keep_errno};
use core::ffi::{c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use gct_core::units::Ns;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Smaller allocations stay where they are: libcuda takes many of them from one piece of 2 MiB.
const BYTES_MIN: usize = 2 << 20;
/// Bytes by which the rows of a pitched allocation are aligned.
const PITCH: usize = 512;

type Alloc = unsafe extern "C" fn(*mut Address, usize) -> Status;

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: Stream = 2 as Stream;

/// Whether any pageable memory is on the host.
static HAS_REMOTE: AtomicBool = AtomicBool::new(false);
static GPUS: Mutex<BTreeMap<Device, Gpu>> = Mutex::new(BTreeMap::new());

/// The pageable memory on a GPU.
#[derive(Debug)]
struct Gpu {
    /// The N of `/dev/nvidiaN`.
    minor: u32,
    memory: Memory,
}

fn now() -> Ns {
    Ns(sys::now_ns())
}

fn lock() -> MutexGuard<'static, BTreeMap<Device, Gpu>> {
    GPUS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets launches look at their arguments while that is of use.
fn updated(gpus: &BTreeMap<Device, Gpu>) {
    let has_remote = gpus.values().any(|gpu| gpu.memory.has_remote());
    HAS_REMOTE.store(has_remote, Ordering::Relaxed);
}

/// Allocates pageable memory. Returns `None` if it has to be an ordinary allocation.
fn alloc(bytes: usize) -> Option<Result<Address, Status>> {
    if bytes < BYTES_MIN {
        return None;
    }
    let device = current_device()?;
    let minor = bus_id(device).and_then(|id| daemon::pageable_on(&id))?;
    let stream = mover::can_move(device).then(OwnStream::new).flatten()?;
    let mut mover = Mover {
        device,
        minor,
        stream: stream.0,
    };
    let mut gpus = lock();
    let memory = Memory::default();
    let gpu = gpus.entry(device).or_insert(Gpu { minor, memory });
    // CAST: widening.
    let Some(placed) = gpu.memory.place(bytes as u64, &mut mover, now()) else {
        return Some(Err(OUT_OF_MEMORY));
    };
    let Some(at) = mover::alloc_managed(bytes, device) else {
        gpu.memory.cancel(&placed, &mut mover);
        return None;
    };
    let placed = gpu.memory.insert(at, placed, &mut mover);
    updated(&gpus);
    drop((gpus, stream));
    if !placed {
        free_pageable(at);
        return None;
    }
    Some(Ok(at))
}

/// Frees an allocation, if it is pageable.
fn free_pageable(at: Address) -> Option<Status> {
    let detached = lock().iter_mut().find_map(|(device, gpu)| {
        let detached = gpu.memory.detach(at)?;
        Some((*device, detached))
    });
    let (device, detached) = detached?;
    let status = mover::free(at);
    let mut gpus = lock();
    let gpu = gpus.get_mut(&device)?;
    if status == SUCCESS {
        let mut mover = Mover {
            device,
            minor: gpu.minor,
            stream: ptr::null_mut(),
        };
        gpu.memory.release(&detached, &mut mover);
    } else {
        gpu.memory.attach(detached);
    }
    updated(&gpus);
    Some(status)
}

/// Evicts pageable memory for an allocation that cannot move. Returns whether it may fit now.
pub(super) fn make_room(bytes: usize) -> bool {
    let Some(device) = current_device() else {
        return false;
    };
    let mut gpus = lock();
    let Some(gpu) = gpus.get_mut(&device) else {
        return false;
    };
    let Some(stream) = OwnStream::new() else {
        return false;
    };
    let mut mover = Mover {
        device,
        minor: gpu.minor,
        stream: stream.0,
    };
    // CAST: widening.
    let made = gpu
        .memory
        .make_room((bytes as u64).max(SPARE), &mut mover, now());
    updated(&gpus);
    made
}

/// Allocates with libcuda's function, and once more after pageable memory has made room.
fn alloc_pinned(bytes: usize, alloc: impl Fn() -> Status) -> Status {
    let status = alloc();
    match status == OUT_OF_MEMORY && keep_errno(|| make_room(bytes)) {
        true => alloc(),
        false => status,
    }
}

/// Interposes libcuda's function: the memory is pageable if `gmem.pageable` says so.
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut Address, bytes: usize) -> Status {
    // SAFETY: the type is that of the function.
    let Some(real) = (unsafe { MEM_ALLOC.function::<Alloc>() }) else {
        return NOT_INITIALIZED;
    };
    let pageable = match address.is_null() {
        true => None,
        false => keep_errno(|| alloc(bytes)),
    };
    match pageable {
        Some(Ok(at)) => {
            // SAFETY: the caller passes a valid pointer.
            unsafe { *address = at };
            SUCCESS
        }
        Some(Err(status)) => status,
        // SAFETY: passed on.
        None => alloc_pinned(bytes, || unsafe { real(address, bytes) }),
    }
}

/// Interposes libcuda's function, as [`cuMemAlloc_v2`].
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuMemAllocPitch_v2(
    address: *mut Address,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Status {
    type Real = unsafe extern "C" fn(*mut Address, *mut usize, usize, usize, c_uint) -> Status;
    // SAFETY: the type is that of the function.
    let Some(real) = (unsafe { MEM_ALLOC_PITCH.function::<Real>() }) else {
        return NOT_INITIALIZED;
    };
    let row = width.checked_next_multiple_of(PITCH).unwrap_or(usize::MAX);
    let bytes = row.saturating_mul(height);
    let is_valid = !address.is_null() && !pitch.is_null() && matches!(element, 4 | 8 | 16);
    match is_valid.then(|| keep_errno(|| alloc(bytes))).flatten() {
        Some(Ok(at)) => {
            // SAFETY: the caller passes valid pointers.
            unsafe { (*address, *pitch) = (at, row) };
            SUCCESS
        }
        Some(Err(status)) => status,
        // SAFETY: passed on.
        None => alloc_pinned(bytes, || unsafe {
            real(address, pitch, width, height, element)
        }),
    }
}

/// Interposes libcuda's function: uncharges pageable memory.
///
/// # Safety
///
/// As for libcuda's function.
#[no_mangle]
#[allow(non_snake_case, reason = "libcuda's name")]
pub unsafe extern "C" fn cuMemFree_v2(address: Address) -> Status {
    keep_errno(|| free_pageable(address)).unwrap_or_else(|| mover::free(address))
}

/// Learns what a launch uses, and moves pieces of pageable memory before it.
///
/// # Safety
///
/// The program launches `function` with these arguments.
#[inline]
pub(super) unsafe fn launching(
    symbol: &Symbol,
    function: Function,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
    stream: Stream,
) {
    if HAS_REMOTE.load(Ordering::Relaxed) {
        // SAFETY: the contract is the same.
        keep_errno(|| unsafe { observe(symbol, function, arguments, extra, stream) });
    }
}

/// # Safety
///
/// As for [`launching`].
#[cold]
unsafe fn observe(
    symbol: &Symbol,
    function: Function,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
    stream: Stream,
) {
    let Some(device) = current_device() else {
        return;
    };
    // While another thread moves memory, its launches need not wait to be counted.
    let Ok(mut gpus) = GPUS.try_lock() else {
        return;
    };
    let Some(gpu) = gpus.get_mut(&device) else {
        return;
    };
    // SAFETY: the contract is the same.
    unsafe { each_argument(function, arguments, extra, |word| gpu.memory.used(word)) };
    let stream = match stream.is_null() && symbol.per_thread {
        true => PER_THREAD,
        false => stream,
    };
    if gpu.memory.is_due(now()) && !mover::is_capturing(stream) {
        let mut mover = Mover {
            device,
            minor: gpu.minor,
            stream,
        };
        gpu.memory.tick(&mut mover, now());
        updated(&gpus);
    }
}
