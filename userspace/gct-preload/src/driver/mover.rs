// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Allocates, moves and frees managed memory with libcuda's functions.

use super::symbols::{Libcuda, DEVICE_GET_ATTRIBUTE, MEM_ALLOC_MANAGED, MEM_FREE};
use super::{trace, Address, Device, Status, Stream, NOT_INITIALIZED, SUCCESS};
use crate::pager::{Backend, SPARE};
use crate::{daemon, managed};
use core::ffi::{c_int, c_uint};
use core::ptr;
use gctd_ipc::message::Paged;

/// `CU_MEM_ATTACH_GLOBAL`.
const ATTACH_GLOBAL: c_uint = 1;
/// `CU_MEM_ADVISE_SET_ACCESSED_BY`.
const SET_ACCESSED_BY: c_int = 5;
/// `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`.
const CONCURRENT_MANAGED_ACCESS: c_int = 89;
/// `CU_POINTER_ATTRIBUTE_BUFFER_ID`.
const BUFFER_ID: c_int = 7;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

/// Share of the host's memory that stays free, as a divisor.
const HOST_KEPT: u64 = 16;

static ADVISE: Libcuda = Libcuda::new(c"cuMemAdvise_v2");
static PREFETCH: Libcuda = Libcuda::new(c"cuMemPrefetchAsync_v2");
static POINTER_GET_ATTRIBUTE: Libcuda = Libcuda::new(c"cuPointerGetAttribute");
static STREAM_CREATE: Libcuda = Libcuda::new(c"cuStreamCreate");
static STREAM_SYNCHRONIZE: Libcuda = Libcuda::new(c"cuStreamSynchronize");
static STREAM_DESTROY: Libcuda = Libcuda::new(c"cuStreamDestroy_v2");
static STREAM_IS_CAPTURING: Libcuda = Libcuda::new(c"cuStreamIsCapturing");

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Location {
    kind: c_int,
    id: c_int,
}

impl Location {
    const HOST: Self = Self { kind: 2, id: 0 };

    const fn device(device: Device) -> Self {
        Self {
            kind: 1,
            id: device,
        }
    }
}

type Free = unsafe extern "C" fn(Address) -> Status;

/// When a move is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Now: it has ended when it returns.
    Now,
    /// The same, but after those that launches wait for. It fails if they do not end soon.
    Settled,
    /// Between the work of the program's stream before and after it.
    InTurn,
}

/// Moves memory in a stream.
#[derive(Debug)]
pub(super) struct Mover {
    pub(super) when: When,
    pub(super) device: Device,
    /// The N of `/dev/nvidiaN`.
    pub(super) minor: u32,
    pub(super) stream: Stream,
}

impl Backend for Mover {
    fn migrate(&mut self, at: u64, bytes: u64, to_gpu: bool) -> bool {
        type Prefetch = unsafe extern "C" fn(Address, usize, Location, c_uint, Stream) -> Status;
        // SAFETY: the type is that of the function.
        let prefetch = unsafe { PREFETCH.function::<Prefetch>() };
        let (Some(prefetch), Ok(bytes)) = (prefetch, usize::try_from(bytes)) else {
            return false;
        };
        if self.when == When::Settled && !trace::wait(self.device) {
            return false;
        }
        let to = match to_gpu {
            true => Location::device(self.device),
            false => Location::HOST,
        };
        // SAFETY: managed memory of this process. libcuda checks it, and moving it changes nothing
        // that the program sees.
        let moves = unsafe { prefetch(at, bytes, to, 0, self.stream) } == SUCCESS;
        let has_ended = || match self.when {
            When::InTurn => true,
            // SAFETY: the stream is the library's own.
            _ => unsafe { on_stream(&STREAM_SYNCHRONIZE, self.stream) == SUCCESS },
        };
        moves && has_ended()
    }

    fn repage(&mut self, paged: Paged, is_last: bool) -> Result<(), Paged> {
        let grows = paged.host > daemon::paged(self.minor).host;
        match grows.then(|| self.room()).flatten() {
            Some(room) if paged.host > room.host => Err(room),
            _ => daemon::repage(self.minor, paged, SPARE, is_last),
        }
    }

    fn room(&mut self) -> Option<Paged> {
        let room = daemon::pageable_room(self.minor, SPARE)?;
        let exists = daemon::paged(self.minor).host.saturating_add(host_left());
        Some(Paged {
            host: room.host.min(exists),
            ..room
        })
    }
}

/// Returns the bytes that the host can spare.
fn host_left() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo");
    text.map_or(0, |text| spared(&text).unwrap_or(0))
}

/// Returns the bytes that the text of `/proc/meminfo` says can be spared.
fn spared(text: &str) -> Option<u64> {
    let kib = |key: &str| {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(key))?;
        value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    let kept = kib("MemTotal:")? / HOST_KEPT;
    kib("MemAvailable:")?.saturating_sub(kept).checked_mul(1024)
}

/// A stream of the library's own. Dropping it waits for its work.
#[derive(Debug)]
pub(super) struct OwnStream(pub(super) Stream);

impl OwnStream {
    /// Creates a stream in the current context.
    pub(super) fn new() -> Option<Self> {
        type Create = unsafe extern "C" fn(*mut Stream, c_uint) -> Status;
        // SAFETY: the type is that of the function.
        let create = unsafe { STREAM_CREATE.function::<Create>() }?;
        let mut stream = ptr::null_mut();
        // SAFETY: `stream` is valid for the call.
        (unsafe { create(&mut stream, NON_BLOCKING) } == SUCCESS).then_some(Self(stream))
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        for function in [&STREAM_SYNCHRONIZE, &STREAM_DESTROY] {
            // SAFETY: created by `new`, and nobody else has it. An error of earlier work is
            // reported to the program by its own calls, too.
            unsafe { on_stream(function, self.0) };
        }
    }
}

/// Calls a function of libcuda that takes a stream.
///
/// # Safety
///
/// The function takes a stream, and may be called with this one.
unsafe fn on_stream(function: &Libcuda, stream: Stream) -> Status {
    type Of = unsafe extern "C" fn(Stream) -> Status;
    // SAFETY: by contract.
    match unsafe { function.function::<Of>() } {
        // SAFETY: by contract.
        Some(function) => unsafe { function(stream) },
        None => NOT_INITIALIZED,
    }
}

/// Returns whether the GPU can use managed memory while it moves.
pub(super) fn can_move(device: Device) -> bool {
    type Get = unsafe extern "C" fn(*mut c_int, c_int, Device) -> Status;
    // SAFETY: the type is that of the function.
    let Some(get) = (unsafe { DEVICE_GET_ATTRIBUTE.function::<Get>() }) else {
        return false;
    };
    let mut value = 0;
    // SAFETY: `value` is valid for the call.
    let status = unsafe { get(&mut value, CONCURRENT_MANAGED_ACCESS, device) };
    let functions = [&ADVISE, &PREFETCH].map(Libcuda::address);
    status == SUCCESS && value != 0 && functions.iter().all(Option::is_some)
}

/// Allocates managed memory whose pages the GPU can use wherever they are.
pub(super) fn alloc_managed(bytes: usize, device: Device) -> Option<Address> {
    type Managed = unsafe extern "C" fn(*mut Address, usize, c_uint) -> Status;
    type Advise = unsafe extern "C" fn(Address, usize, c_int, Location) -> Status;
    // SAFETY: the type is that of the function.
    let managed = unsafe { MEM_ALLOC_MANAGED.function::<Managed>() }?;
    // SAFETY: as above.
    let advise = unsafe { ADVISE.function::<Advise>() }?;
    let mut at = 0;
    // SAFETY: `at` is valid for the call.
    if managed::uncharged(|| unsafe { managed(&mut at, bytes, ATTACH_GLOBAL) }) != SUCCESS {
        return None;
    }
    // SAFETY: just allocated.
    if unsafe { advise(at, bytes, SET_ACCESSED_BY, Location::device(device)) } != SUCCESS {
        free(at);
        return None;
    }
    Some(at)
}

/// Returns libcuda's number of the allocation at an address. No other allocation of the process has
/// it ever.
///
/// # Errors
///
/// [`INVALID_VALUE`]: there is none.
pub(super) fn number(at: Address) -> Result<u64, Status> {
    type Get = unsafe extern "C" fn(*mut u64, c_int, Address) -> Status;
    // SAFETY: the type is that of the function.
    let get = unsafe { POINTER_GET_ATTRIBUTE.function::<Get>() };
    let mut number = 0;
    // SAFETY: the attribute is 64 bits long. libcuda looks the address up and reads nothing there.
    match get.map(|get| unsafe { get(&mut number, BUFFER_ID, at) }) {
        Some(SUCCESS) => Ok(number),
        Some(status) => Err(status),
        None => Err(NOT_INITIALIZED),
    }
}

/// Frees memory with libcuda's function.
pub(super) fn free(at: Address) -> Status {
    // SAFETY: the type is that of the function. libcuda checks the address.
    let function = unsafe { MEM_FREE.function::<Free>() };
    // SAFETY: the program frees it, or it was allocated by this library and never returned.
    function.map_or(NOT_INITIALIZED, |free| unsafe { free(at) })
}

/// Waits for the work of a stream.
pub(super) fn wait_for(stream: Stream) {
    // SAFETY: a stream of the program, which libcuda checks. Its errors are reported to the program
    // by its own calls, too.
    unsafe { on_stream(&STREAM_SYNCHRONIZE, stream) };
}

/// Returns whether a stream records a graph, or cannot be used while another one does.
pub(super) fn is_capturing(stream: Stream) -> bool {
    type Is = unsafe extern "C" fn(Stream, *mut c_int) -> Status;
    // SAFETY: the type is that of the function.
    let Some(is) = (unsafe { STREAM_IS_CAPTURING.function::<Is>() }) else {
        return true;
    };
    let mut state = 0;
    // SAFETY: the program launches on the stream, and `state` is valid for the call.
    unsafe { is(stream, &mut state) != SUCCESS || state != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sixteenth_of_the_host_is_kept() {
        let text = |available| {
            format!("MemTotal:       1600 kB\nMemFree: 1 kB\nMemAvailable:   {available} kB\n")
        };
        assert_eq!(spared(&text(900)), Some(800 << 10));
        assert_eq!(spared(&text(99)), Some(0));
        for wrong in ["", "MemTotal: 1 kB\n", "MemTotal: 1\nMemAvailable: 2\n"] {
            assert_eq!(spared(wrong), None);
        }
        assert_eq!(spared(&text(u64::MAX)), None);
    }
}
