// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Answers `cuMemAlloc` with memory that can move, while `gmem.pageable` says so
//! ([`crate::pager`]).
//!
//! It is memory of `cuMemCreate` ([`super::backing`]), which moves behind a closed gate
//! ([`super::gate`]). The GPU uses pieces on the host across the bus: nothing faults, whatever was
//! foreseen.
//!
//! What the library knows of use are the arguments of launches ([`launching`]). It looks at them
//! only while some memory is on the host, or has to go there ([`super::pager`]).

use super::allocations::allocating;
use super::backing::{self, Backing, PAGE};
use super::contexts::{relaxed, Context};
use super::gate::{self, Stop};
use super::mover::{self, Mover};
use super::size::{bus_id, current_device};
use super::symbols::{
    Symbol, MEM_ALLOC, MEM_ALLOC_PITCH, MEM_FREE, MEM_FREE_ASYNC, MEM_FREE_ASYNC_PER_THREAD,
};
use super::{
    pager, trace, Address, Device, Function, Status, Stream, NOT_INITIALIZED, OUT_OF_MEMORY,
    SUCCESS,
};
use crate::locks::{Guard, Lock};
use crate::pager::{Detached, Memory, SPARE};
use crate::sys::{self, keep_errno};
use crate::{daemon, forks};
use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use gct_core::units::Ns;
use std::collections::BTreeMap;

/// Smaller allocations stay where they are: libcuda takes many of them from one piece of 2 MiB.
const BYTES_MIN: usize = 2 << 20;
/// Bytes by which the rows of a pitched allocation are aligned.
const PITCH: usize = 512;

/// Attempts to stop the program for an allocation. Each may take a second.
const ATTEMPTS: u32 = 3;

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
    minor: u32,
    pub(super) memory: Memory,
    backing: Backing,
    /// What the program has freed while something might still use it.
    doomed: Vec<Detached>,
    /// The last context that used it. A function that may destroy it forgets it before, under the
    /// lock.
    pub(super) context: Option<Context>,
}

impl Gpu {
    fn new(minor: u32) -> Self {
        Self {
            minor,
            memory: Memory::default(),
            backing: Backing::default(),
            doomed: Vec::new(),
            context: None,
        }
    }

    /// Returns the memory, and what moves and charges it.
    pub(super) fn mover(&mut self, device: Device) -> (&mut Memory, Mover<'_>) {
        let mover = Mover {
            device,
            minor: self.minor,
            backing: &mut self.backing,
            attempts: 1,
            stop: None,
        };
        (&mut self.memory, mover)
    }

    /// As [`Gpu::mover`], for moves without which an allocation fails.
    fn patient(&mut self, device: Device) -> (&mut Memory, Mover<'_>) {
        let (memory, mover) = self.mover(device);
        let attempts = ATTEMPTS;
        (memory, Mover { attempts, ..mover })
    }

    /// Frees what the program has freed, if nothing can use it any more.
    pub(super) fn bury(&mut self, device: Device) {
        let stop = (!self.doomed.is_empty()).then(Stop::new).flatten();
        if stop.is_some() {
            for gone in core::mem::take(&mut self.doomed) {
                self.free(&gone, device);
            }
        }
    }

    /// Frees an allocation that nothing uses.
    fn free(&mut self, gone: &Detached, device: Device) {
        self.backing.free(gone.base(), gone.bytes());
        let (memory, mut mover) = self.mover(device);
        memory.release(gone, &mut mover);
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
    let Some(mut gpus) = lock() else { return };
    for (device, gpu) in gpus.iter_mut() {
        gpu.context = gpu.context.filter(|context| !ends(*device, *context));
        gpu.backing.forget(|context| ends(*device, context));
        trace::forget(*device);
    }
    gate::forget(ends);
}

/// Frees the memory of contexts that are gone.
pub(super) fn sweep(is_gone: impl Fn(Device, Context) -> bool) {
    let Some(mut gpus) = lock() else { return };
    for (device, gpu) in gpus.iter_mut() {
        let of_context = |context| is_gone(*device, Context::from_number(context));
        while let Some(gone) = gpu.memory.sweep(of_context) {
            gpu.free(&gone, *device);
        }
    }
    updated(&gpus);
}

/// Returns the address and the size of the pageable allocation that contains an address.
pub(super) fn span_of(address: Address) -> Option<(Address, u64)> {
    if !trace::may_be_pageable(address) {
        return None;
    }
    lock()?.values().find_map(|gpu| gpu.memory.span_of(address))
}

/// Lets a GPU use the pageable memory of another one, its peer.
pub(super) fn share(device: Device, user: Device) {
    backing::add_peer(device, user);
    let gpus = lock();
    if let Some(gpu) = gpus.as_ref().and_then(|gpus| gpus.get(&device)) {
        relaxed(|| gpu.backing.share(device));
    }
}

/// Allocates pageable memory. Returns `None` if it has to be an ordinary allocation.
fn alloc(bytes: usize) -> Option<Result<Address, Status>> {
    if bytes < BYTES_MIN || forks::is_inert() || !backing::can_back() {
        return None;
    }
    // CAST: widening.
    let bytes = (bytes as u64).checked_next_multiple_of(PAGE)?;
    let device = current_device()?;
    let minor = bus_id(device).and_then(|id| daemon::pageable_on(&id))?;
    let context = Context::current()?;
    forks::manage();
    gate::need();
    let mut gpus = lock()?;
    let gpu = gpus.entry(device).or_insert_with(|| Gpu::new(minor));
    gpu.context = Some(context);
    let made = relaxed(|| make(gpu, device, bytes, context)).flatten();
    updated(&gpus);
    drop(gpus);
    pager::begin();
    made
}

/// Makes an allocation on a GPU.
fn make(
    gpu: &mut Gpu,
    device: Device,
    bytes: u64,
    context: Context,
) -> Option<Result<Address, Status>> {
    gpu.bury(device);
    let (memory, mut mover) = gpu.patient(device);
    let Some(placed) = memory.place(bytes, &mut mover, now()) else {
        return Some(Err(OUT_OF_MEMORY));
    };
    let Some(at) = mover.backing.reserve(bytes) else {
        memory.cancel(&placed, &mut mover);
        return None;
    };
    let is_placed = memory.insert(at, context.number(), placed, &mut mover, now());
    drop(mover);
    if !is_placed {
        let gone = gpu.memory.detach(at)?;
        gpu.free(&gone, device);
        return None;
    }
    Some(Ok(at))
}

/// Frees an allocation, if it is pageable: now, or once nothing can use it any more.
fn free_pageable(at: Address) -> Option<Status> {
    let mut gpus = lock()?;
    let (device, gpu) = gpus.iter_mut().find(|(_, gpu)| gpu.memory.begins_at(at))?;
    let gone = gpu.memory.detach(at)?;
    gpu.doomed.push(gone);
    gpu.bury(*device);
    updated(&gpus);
    Some(SUCCESS)
}

/// Frees an allocation after the work of a stream, if it is pageable.
fn free_pageable_in(at: Address, stream: Stream) -> Option<Status> {
    match mover::is_capturing(stream) {
        true => None,
        false => free_pageable(at),
    }
}

/// Evicts pageable memory for an allocation that cannot move. Returns whether it may fit now.
pub(super) fn make_room(bytes: u64) -> bool {
    if gate::is_inside() {
        return false;
    }
    let (Some(device), Some(mut gpus)) = (current_device(), lock()) else {
        return false;
    };
    let Some(gpu) = gpus.get_mut(&device) else {
        return false;
    };
    let made = relaxed(|| {
        gpu.bury(device);
        let (memory, mut mover) = gpu.patient(device);
        memory.make_room(bytes.max(SPARE), &mut mover, now())
    });
    updated(&gpus);
    made.unwrap_or(false)
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
    if let Some(status) = keep_errno(|| free_pageable(address)) {
        return status;
    }
    type Free = unsafe extern "C" fn(Address) -> Status;
    // SAFETY: the type is that of the function.
    match unsafe { MEM_FREE.function::<Free>() } {
        // SAFETY: passed on.
        Some(free) => unsafe { free(address) },
        None => NOT_INITIALIZED,
    }
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
            if let Some(status) = keep_errno(|| free_pageable_in(address, stream)) {
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
        let ordered = match stream.is_null() && symbol.per_thread {
            true => PER_THREAD,
            false => stream,
        };
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
    let (memory, mut mover) = gpu.mover(device);
    let moves = memory.before_launch(now());
    if !moves.is_empty() && !memory.carry_out(&moves, &mut mover, now()) {
        memory.rest(now());
    }
    memory.launches();
    drop(mover);
    if !moves.is_empty() {
        // CAST: widening.
        trace::mark_moves(device, stream, moves.len() as u64);
    }
}
