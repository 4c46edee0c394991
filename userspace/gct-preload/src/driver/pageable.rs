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
//! only while some memory is on the host, or has to go there ([`super::pager`]).

use super::allocations::allocating;
use super::contexts::{relaxed, Context};
use super::mover::{self, Mover, OwnStream, When};
use super::size::{bus_id, current_device};
use super::symbols::{
    Symbol, MEM_ALLOC, MEM_ALLOC_PITCH, MEM_FREE_ASYNC, MEM_FREE_ASYNC_PER_THREAD,
};
use super::{
    pager, trace, Address, Device, Function, Status, Stream, INVALID_VALUE, NOT_INITIALIZED,
    OUT_OF_MEMORY, SUCCESS,
};
use crate::locks::{Guard, Lock};
use crate::pager::{Memory, SPARE};
use crate::sys::{self, keep_errno};
use crate::{daemon, forks};
use core::ffi::{c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use gct_core::units::Ns;
use std::collections::BTreeMap;

/// Smaller allocations stay where they are: libcuda takes many of them from one piece of 2 MiB.
const BYTES_MIN: usize = 2 << 20;
/// Bytes by which the rows of a pitched allocation are aligned.
const PITCH: usize = 512;

type Alloc = unsafe extern "C" fn(*mut Address, usize) -> Status;

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: Stream = 2 as Stream;

/// Whether launches look at their arguments.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);
static GPUS: Lock<Gpus> = Lock::new(BTreeMap::new(), BTreeMap::new);

/// The GPUs on which the process has pageable memory.
pub(super) type Gpus = BTreeMap<Device, Gpu>;

/// The pageable memory on a GPU.
#[derive(Debug)]
pub(super) struct Gpu {
    /// The N of `/dev/nvidiaN`.
    pub(super) minor: u32,
    pub(super) memory: Memory,
    /// The last context that used it. A function that may destroy it forgets it before, under the
    /// lock.
    pub(super) context: Option<Context>,
    /// Whether nothing moves before launches, because the thread of the library has to move.
    pub(super) is_held: bool,
}

impl Gpu {
    fn new(minor: u32) -> Self {
        Self {
            minor,
            memory: Memory::default(),
            context: None,
            is_held: false,
        }
    }

    /// Returns what moves memory of this GPU, in a stream of the library's own.
    pub(super) fn mover(&self, device: Device, stream: &OwnStream) -> Mover {
        Mover {
            when: When::Settled,
            device,
            minor: self.minor,
            stream: stream.0,
        }
    }

    /// Returns what charges memory of this GPU and moves none.
    pub(super) fn accountant(&self, device: Device) -> Mover {
        Mover {
            when: When::Now,
            device,
            minor: self.minor,
            stream: ptr::null_mut(),
        }
    }
}

pub(super) fn now() -> Ns {
    Ns(sys::now_ns())
}

/// Locks the GPUs. Returns `None` in an inert child.
pub(super) fn lock() -> Option<Guard<'static, Gpus>> {
    (!forks::is_inert()).then(|| GPUS.lock())
}

/// Makes the GPUs usable in a forked child.
///
/// # Safety
///
/// The process has one thread.
pub(super) unsafe fn forked() {
    // SAFETY: passed on.
    unsafe { GPUS.renew() };
}

/// Returns whether a thread of this process has locked the GPUs.
pub(super) fn is_locked() -> bool {
    !forks::is_inert() && GPUS.try_lock().is_none()
}

/// Lets launches look at their arguments while that is of use.
pub(super) fn updated(gpus: &Gpus) {
    let is_watched = gpus.values().any(|gpu| gpu.memory.is_watched());
    trace::bound(gpus.values().filter_map(|gpu| gpu.memory.bounds()));
    IS_WATCHED.store(is_watched, Ordering::Relaxed);
}

/// Forgets contexts that may be destroyed.
pub(super) fn forget(ends: impl Fn(Device, Context) -> bool) {
    for (device, gpu) in lock().iter_mut().flat_map(|gpus| gpus.iter_mut()) {
        gpu.context = gpu.context.filter(|context| !ends(*device, *context));
        trace::forget(*device);
    }
}

/// Uncharges memory that libcuda does not know any more: it has gone with its context.
pub(super) fn sweep() {
    let Some(mut gpus) = lock() else { return };
    let is_gone = |at, number| match mover::number(at) {
        Ok(now) => now != number,
        Err(status) => status == INVALID_VALUE,
    };
    for (device, gpu) in gpus.iter_mut() {
        let mut accountant = gpu.accountant(*device);
        gpu.memory.sweep(is_gone, &mut accountant);
    }
    updated(&gpus);
}

/// Allocates pageable memory. Returns `None` if it has to be an ordinary allocation.
fn alloc(bytes: usize) -> Option<Result<Address, Status>> {
    if bytes < BYTES_MIN || forks::is_inert() {
        return None;
    }
    let device = current_device()?;
    let minor = bus_id(device).and_then(|id| daemon::pageable_on(&id))?;
    let stream = mover::can_move(device).then(OwnStream::new).flatten()?;
    forks::manage();
    let mut gpus = lock()?;
    let gpu = gpus.entry(device).or_insert_with(|| Gpu::new(minor));
    gpu.context = Context::current();
    let mut mover = gpu.mover(device, &stream);
    // CAST: widening.
    let Some(placed) = gpu.memory.place(bytes as u64, &mut mover, now()) else {
        return Some(Err(OUT_OF_MEMORY));
    };
    let Some(at) = mover::alloc_managed(bytes, device) else {
        gpu.memory.cancel(&placed, &mut mover);
        return None;
    };
    let number = mover::number(at).ok();
    // No launch uses it yet.
    mover.when = When::Now;
    let placed = gpu.memory.insert(at, number, placed, &mut mover);
    updated(&gpus);
    drop((gpus, stream));
    pager::begin();
    if !placed {
        free_pageable(at);
        return None;
    }
    Some(Ok(at))
}

/// Frees an allocation, if it is pageable.
fn free_pageable(at: Address) -> Option<Status> {
    let detached = lock()?.iter_mut().find_map(|(device, gpu)| {
        let detached = gpu.memory.detach(at)?;
        Some((*device, detached))
    });
    let (device, detached) = detached?;
    let status = mover::free(at);
    let mut gpus = lock()?;
    let gpu = gpus.get_mut(&device)?;
    if status == SUCCESS {
        let mut accountant = gpu.accountant(device);
        gpu.memory.release(&detached, &mut accountant);
    } else {
        gpu.memory.attach(detached);
    }
    updated(&gpus);
    Some(status)
}

/// Frees an allocation after the work of a stream, if it is pageable. What libcuda's function does
/// with managed memory is not documented. So this one waits, beside captures of other streams.
fn free_pageable_in(at: Address, stream: Stream) -> Option<Status> {
    let is_pageable = lock()?.values().any(|gpu| gpu.memory.begins_at(at));
    if !is_pageable || mover::is_capturing(stream) {
        return None;
    }
    relaxed(|| {
        mover::wait_for(stream);
        free_pageable(at)
    })?
}

/// Evicts pageable memory for an allocation that cannot move. Returns whether it may fit now.
pub(super) fn make_room(bytes: u64) -> bool {
    let (Some(device), Some(mut gpus)) = (current_device(), lock()) else {
        return false;
    };
    let Some(gpu) = gpus.get_mut(&device) else {
        return false;
    };
    let made = relaxed(|| {
        let stream = OwnStream::new()?;
        let mut mover = gpu.mover(device, &stream);
        Some(gpu.memory.make_room(bytes.max(SPARE), &mut mover, now()))
    });
    updated(&gpus);
    made.flatten().unwrap_or(false)
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
        None => allocating(bytes, || unsafe { real(address, bytes) }),
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
        None => allocating(bytes, || unsafe {
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

macro_rules! frees_in_stream {
    ($($name:ident is $symbol:ident;)*) => {$(
        /// Interposes libcuda's function: uncharges pageable memory.
        ///
        /// # Safety
        ///
        /// As for libcuda's function.
        #[no_mangle]
        #[allow(non_snake_case, reason = "libcuda's name")]
        pub unsafe extern "C" fn $name(address: Address, stream: Stream) -> Status {
            type Real = unsafe extern "C" fn(Address, Stream) -> Status;
            let ordered = of_call(&$symbol, stream);
            if let Some(status) = keep_errno(|| free_pageable_in(address, ordered)) {
                return status;
            }
            // SAFETY: the type is that of the function.
            match unsafe { $symbol.function::<Real>() } {
                // SAFETY: passed on.
                Some(real) => unsafe { real(address, stream) },
                None => NOT_INITIALIZED,
            }
        }
    )*};
}

frees_in_stream! {
    cuMemFreeAsync is MEM_FREE_ASYNC;
    cuMemFreeAsync_ptsz is MEM_FREE_ASYNC_PER_THREAD;
}

/// Returns the stream that a call of a function names.
fn of_call(symbol: &Symbol, stream: Stream) -> Stream {
    match stream.is_null() && symbol.per_thread {
        true => PER_THREAD,
        false => stream,
    }
}

/// Learns what a launch uses.
///
/// # Safety
///
/// The program launches `function` in this stream of `symbol` with these arguments.
#[inline]
pub(super) unsafe fn launching(
    symbol: &Symbol,
    function: Function,
    stream: Stream,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) {
    if IS_WATCHED.load(Ordering::Relaxed) {
        let ordered = of_call(symbol, stream);
        // SAFETY: the contract is the same.
        keep_errno(|| unsafe { observe(function, ordered, arguments, extra) });
    }
}

/// # Safety
///
/// As for [`launching`].
#[cold]
unsafe fn observe(
    function: Function,
    stream: Stream,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) {
    let Some(device) = current_device() else {
        return;
    };
    // SAFETY: the contract is the same.
    let is_seen = unsafe { trace::record(device, function, stream, arguments, extra) };
    // While another thread moves memory, launches need not wait.
    let Some(mut gpus) = GPUS.try_lock() else {
        return;
    };
    let Some(gpu) = gpus.get_mut(&device) else {
        return;
    };
    gpu.context = gpu.context.or_else(Context::current);
    if is_seen {
        relaxed(|| prepare(gpu, device, stream));
    }
}

/// Makes the moves that the next launch in a stream is to wait for.
fn prepare(gpu: &mut Gpu, device: Device, stream: Stream) {
    trace::tell(device, &mut gpu.memory);
    // Streams of threads have one name. And moves in two streams have no order.
    let is_ordered = stream != PER_THREAD && !trace::is_moving_beside(device, stream);
    if gpu.is_held || !is_ordered {
        gpu.memory.launches();
        return;
    }
    let mut mover = Mover {
        when: When::InTurn,
        device,
        minor: gpu.minor,
        stream,
    };
    let mut moves = 0;
    while let Some(next) = gpu.memory.before_launch(now()) {
        moves += 1;
        if !gpu.memory.carry_out(next, &mut mover, now()) {
            gpu.memory.rest(now());
            break;
        }
    }
    gpu.memory.launches();
    if moves > 0 && !trace::mark_moves(device, stream, moves) {
        mover::wait_for(stream);
    }
}
