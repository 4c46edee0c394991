// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gives pageable memory its pages: memory of `cuMemCreate`, mapped at one address from the GPU or
//! from the host.
//!
//! A piece lies on the GPU, or on the host, where the GPU uses it across the bus. All memory that a
//! piece has is mapped at an address of its own, too: the host's in the second half of the
//! addresses that its allocation has reserved, the GPU's in a [`Slot`]. So a move is a copy between
//! these, and then one change of mappings. To change a mapping while the GPU copies takes 1 ms, and
//! 0.09 else, for pieces side by side together (H200).

use super::contexts::Context;
use super::symbols::{Libcuda, MEM_CREATE};
use super::{Address, Device, Status, Stream, SUCCESS};
use crate::locks::Lock;
use crate::pager::{self, uncharged, PIECE};
use crate::sys;
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;

/// Allocations are multiples of this: the size of the GPU's large pages.
pub(super) const PAGE: u64 = 2 << 20;

/// `CU_MEM_LOCATION_TYPE_DEVICE`, `_HOST` and `_HOST_NUMA`.
const ON_DEVICE: c_int = 1;
const ON_HOST: c_int = 2;
const ON_NODE: c_int = 3;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: c_int = 3;

static RESERVE: Libcuda = Libcuda::new(c"cuMemAddressReserve");
static UNRESERVE: Libcuda = Libcuda::new(c"cuMemAddressFree");
static MAP: Libcuda = Libcuda::new(c"cuMemMap");
static UNMAP: Libcuda = Libcuda::new(c"cuMemUnmap");
static SET_ACCESS: Libcuda = Libcuda::new(c"cuMemSetAccess");
static RELEASE: Libcuda = Libcuda::new(c"cuMemRelease");
static COPY: Libcuda = Libcuda::new(c"cuMemcpyDtoDAsync_v2");
static STREAM_CREATE: Libcuda = Libcuda::new(c"cuStreamCreate");
static STREAM_DESTROY: Libcuda = Libcuda::new(c"cuStreamDestroy_v2");
static STREAM_SYNCHRONIZE: Libcuda = Libcuda::new(c"cuStreamSynchronize");

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
struct Properties {
    kind: c_int,
    handles: c_int,
    location: Location,
    _win32: *mut c_void,
    _flags: u64,
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct Access {
    location: Location,
    flags: c_int,
}

/// A `CUmemGenericAllocationHandle`. It has to be released.
type Handle = u64;

/// Memory of the GPU, mapped at an address of its own.
#[derive(Debug)]
struct Slot {
    handle: Handle,
    at: Address,
    bytes: u64,
}

impl Slot {
    fn new(bytes: u64, device: Device) -> Option<Self> {
        let handle = create(bytes, ON_DEVICE, device, pager::Pages::Any)?;
        let at = reserve(bytes).filter(|at| {
            let is_usable = place(*at, bytes, handle, &[device]);
            if !is_usable {
                unreserve(*at, bytes);
            }
            is_usable
        });
        if at.is_none() {
            release(handle);
        }
        Some(Self {
            handle,
            at: at?,
            bytes,
        })
    }

    /// Gives the memory back, as far as it is mapped nowhere else.
    fn free(self) {
        unmap(self.at, self.bytes);
        release(self.handle);
        unreserve(self.at, self.bytes);
    }
}

/// The pages of a piece.
#[derive(Debug)]
struct Pages {
    bytes: u64,
    /// The address of its allocation.
    base: Address,
    /// Where its memory on the host is mapped.
    shadow: Address,
    slot: Option<Slot>,
    host: Option<Handle>,
    is_mapped: bool,
}

/// The pages of the pageable memory on a GPU.
#[derive(Debug, Default)]
pub(super) struct Backing {
    pieces: BTreeMap<Address, Pages>,
    streams: Option<Streams>,
}

/// Other GPUs that use the memory of one, each behind that.
static PEERS: Lock<Vec<[Device; 2]>> = Lock::new(Vec::new(), Vec::new);

/// Records that a GPU uses the memory of `device`.
pub(super) fn add_peer(device: Device, user: Device) {
    PEERS.lock().push([device, user]);
}

/// Returns the GPUs that use the memory of one.
fn users(device: Device) -> Vec<Device> {
    let peers = PEERS.lock();
    let peers = peers.iter().filter(|[of, _]| *of == device);
    core::iter::once(device)
        .chain(peers.map(|[_, user]| *user))
        .collect()
}

/// Makes the list of peers usable in a forked child.
///
/// # Safety
///
/// The process has one thread.
pub(super) unsafe fn forked() {
    // SAFETY: passed on.
    unsafe { PEERS.renew() };
}

/// Returns whether libcuda has what this needs.
pub(super) fn can_back() -> bool {
    let functions = [&RESERVE, &UNRESERVE, &MAP, &UNMAP, &SET_ACCESS, &RELEASE];
    functions.map(Libcuda::address).iter().all(Option::is_some)
}

fn reserve(bytes: u64) -> Option<Address> {
    type Reserve = unsafe extern "C" fn(*mut Address, usize, usize, Address, u64) -> Status;
    // SAFETY: the type is that of the function.
    let reserve = unsafe { RESERVE.function::<Reserve>() }?;
    let bytes = usize::try_from(bytes).ok()?;
    let mut at = 0;
    // CAST: a constant. SAFETY: `at` is valid for the call.
    (unsafe { reserve(&mut at, bytes, PAGE as usize, 0, 0) } == SUCCESS).then_some(at)
}

fn unreserve(at: Address, bytes: u64) {
    type Unreserve = unsafe extern "C" fn(Address, usize) -> Status;
    // SAFETY: the type is that of the function.
    if let Some(unreserve) = unsafe { UNRESERVE.function::<Unreserve>() } {
        // CAST: these bytes were reserved. SAFETY: nothing is mapped there any more.
        unsafe { unreserve(at, bytes as usize) };
    }
}

impl Backing {
    /// Reserves addresses for an allocation of a multiple of [`PAGE`], which has no pages yet.
    pub(super) fn reserve(&mut self, size: u64) -> Option<Address> {
        let base = reserve(size.checked_mul(2)?)?;
        // CAST: a constant.
        for at in (base..base + size).step_by(PIECE as usize) {
            let pages = Pages {
                bytes: PIECE.min(base + size - at),
                base,
                shadow: at + size,
                slot: None,
                host: None,
                is_mapped: false,
            };
            self.pieces.insert(at, pages);
        }
        Some(base)
    }

    /// Returns the streams of copies in the current context.
    fn streams(&mut self) -> Option<[Stream; 4]> {
        let context = Context::current()?;
        if self
            .streams
            .as_ref()
            .is_none_or(|streams| streams.context != context)
        {
            self.streams = Some(Streams::new(context)?);
        }
        self.streams.as_ref().map(|streams| streams.streams)
    }

    /// Forgets a context that may be destroyed.
    pub(super) fn forget(&mut self, ends: impl Fn(Context) -> bool) {
        self.streams.take_if(|streams| ends(streams.context));
    }

    /// Returns whether something may use a piece.
    pub(super) fn is_mapped(&self, at: Address) -> bool {
        self.pieces.get(&at).is_some_and(|pages| pages.is_mapped)
    }

    /// Brings pieces to the host, and others to the GPU. Nothing uses them meanwhile. Returns the
    /// addresses of those that have not moved, or `None` if none has.
    pub(super) fn migrate(
        &mut self,
        leave: &[(Address, u64)],
        come: &[(Address, u64)],
        device: Device,
    ) -> Option<Vec<Address>> {
        // What comes takes the slot of a piece of its size that leaves.
        let mut alone = come.to_vec();
        let mut with = |bytes: u64| {
            let at = alone.iter().position(|(_, size)| *size == bytes)?;
            Some(alone.swap_remove(at).0)
        };
        let pairs: Vec<_> = leave
            .iter()
            .map(|(at, bytes)| (*at, with(*bytes)))
            .collect();
        let mut failed = self.exchange(&pairs, device)?;
        alone.retain(|(at, _)| !self.come(*at, device));
        failed.extend(alone.into_iter().map(|(at, _)| at));
        Some(failed)
    }

    /// Brings pieces to the host, each with one that takes its slot, if any does. Returns as
    /// [`Backing::migrate`].
    fn exchange(
        &mut self,
        pairs: &[(Address, Option<Address>)],
        device: Device,
    ) -> Option<Vec<Address>> {
        if !pairs.iter().all(|(at, _)| self.take_host(*at, device)) {
            return None;
        }
        let streams = self.streams()?;
        let turns = pairs.iter().zip(streams.iter().cycle());
        let copied: Vec<_> = turns
            .map(|((leaves, comes), stream)| self.copy(*leaves, *comes, *stream))
            .collect();
        // After an error the context has ended, and all that it had.
        if !wait(streams) {
            return None;
        }
        let (mut moved, mut failed, mut unused) = (Vec::new(), Vec::new(), Vec::new());
        for ((leaves, comes), (has_left, has_come)) in pairs.iter().zip(copied) {
            failed.extend(comes.filter(|_| !has_come));
            if !has_left {
                failed.push(*leaves);
                continue;
            }
            let pages = self.pieces.get_mut(leaves);
            let slot = pages.and_then(|pages| pages.slot.take());
            moved.push(*leaves);
            let comes = comes.filter(|_| has_come);
            match comes.and_then(|at| self.pieces.get_mut(&at)) {
                Some(pages) => {
                    pages.slot = slot;
                    moved.extend(comes);
                }
                None => unused.extend(slot),
            }
        }
        self.map(moved, device);
        unused.into_iter().for_each(Slot::free);
        Some(failed)
    }

    /// Takes host memory for a piece that leaves.
    fn take_host(&mut self, at: Address, device: Device) -> bool {
        let Some(pages) = self.pieces.get_mut(&at) else {
            return false;
        };
        if pages.host.is_none() {
            pages.host = on_host(pages.bytes).filter(|host| {
                let (at, bytes) = (pages.shadow, pages.bytes);
                let is_usable = place(at, bytes, *host, &[device]);
                if !is_usable {
                    release(*host);
                }
                is_usable
            });
        }
        pages.host.is_some()
    }

    /// Begins to copy a piece to the host, and then another one to where it was. Returns which of
    /// them has begun.
    fn copy(&self, leaves: Address, comes: Option<Address>, stream: Stream) -> (bool, bool) {
        let Some(Pages { slot, shadow, .. }) = self.pieces.get(&leaves) else {
            return (false, false);
        };
        // A new piece has no content.
        let Some(slot) = slot else {
            return (true, false);
        };
        if !copy(*shadow, slot.at, slot.bytes, stream) {
            return (false, false);
        }
        let Some(other) = comes.and_then(|at| self.pieces.get(&at)) else {
            return (true, false);
        };
        let has_content = other.host.is_some();
        let comes = !has_content || copy(slot.at, other.shadow, slot.bytes, stream);
        (true, comes)
    }

    /// Brings a piece to the GPU, in a slot of its own.
    fn come(&mut self, at: Address, device: Device) -> bool {
        let Some(pages) = self.pieces.get_mut(&at) else {
            return false;
        };
        let Some(slot) = Slot::new(pages.bytes, device) else {
            return false;
        };
        let from = pages.host.map(|_| pages.shadow);
        let copied = from.is_none_or(|shadow| {
            let streams = self.streams();
            streams.is_some_and(|all| copy(slot.at, shadow, slot.bytes, all[0]) && wait(all))
        });
        let pages = self.pieces.get_mut(&at).filter(|_| copied);
        let Some(pages) = pages else {
            slot.free();
            return false;
        };
        pages.slot = Some(slot);
        self.map(vec![at], device);
        true
    }

    /// Maps pieces from where they are now, those side by side together.
    fn map(&mut self, mut pieces: Vec<Address>, device: Device) {
        pieces.sort_unstable();
        let follows = |a: &Address, b: &Address| match (self.pieces.get(a), self.pieces.get(b)) {
            (Some(a_pages), Some(b_pages)) => {
                a + a_pages.bytes == *b
                    && (a_pages.base, a_pages.is_mapped) == (b_pages.base, b_pages.is_mapped)
            }
            _ => false,
        };
        let runs: Vec<Vec<Address>> = pieces.chunk_by(follows).map(<[_]>::to_vec).collect();
        let users = users(device);
        if !runs.iter().all(|run| self.map_run(run, &users)) {
            sys::say("gctgroup: the driver maps no memory: the program ends where it uses that\n");
        }
    }

    /// Maps pieces side by side. Returns whether all can be used.
    fn map_run(&mut self, run: &[Address], users: &[Device]) -> bool {
        let pages = run.iter().filter_map(|at| self.pieces.get(at));
        let bytes = pages.map(|pages| pages.bytes).sum();
        let Some(at) = run.first() else { return true };
        if self.is_mapped(*at) {
            unmap(*at, bytes);
        }
        let mut all = true;
        for at in run {
            if let Some(pages) = self.pieces.get_mut(at) {
                let on_gpu = pages.slot.as_ref().map(|slot| slot.handle);
                let handle = on_gpu.or(pages.host);
                pages.is_mapped = handle.is_some_and(|handle| map(*at, pages.bytes, handle));
                all &= pages.is_mapped;
            }
        }
        all && allow(*at, bytes, users)
    }

    /// Lets the peers of its GPU use the memory, after there is a new one.
    pub(super) fn share(&self, device: Device) {
        let users = users(device);
        for (at, pages) in self.pieces.iter().filter(|(_, pages)| pages.is_mapped) {
            allow(*at, pages.bytes, &users);
        }
    }

    /// Frees an allocation, which nothing uses any more.
    pub(super) fn free(&mut self, base: Address, size: u64) {
        // CAST: a constant.
        for at in (base..base + size).step_by(PIECE as usize) {
            let Some(pages) = self.pieces.remove(&at) else {
                continue;
            };
            if pages.is_mapped {
                unmap(at, pages.bytes);
            }
            if let Some(host) = pages.host {
                unmap(pages.shadow, pages.bytes);
                release(host);
            }
            pages.slot.into_iter().for_each(Slot::free);
        }
        unreserve(base, 2 * size);
    }
}

fn create(bytes: u64, kind: c_int, id: c_int, pages: pager::Pages) -> Option<Handle> {
    type Create = unsafe extern "C" fn(*mut Handle, usize, *const Properties, u64) -> Status;
    // SAFETY: the type is that of the function.
    let create = unsafe { MEM_CREATE.function::<Create>() }?;
    let properties = Properties {
        kind: PINNED,
        handles: 0,
        location: Location { kind, id },
        _win32: ptr::null_mut(),
        _flags: 0,
    };
    let mut handle = 0;
    // CAST: no piece is larger than `PIECE`. SAFETY: both pointers are valid for the call.
    let made = || unsafe { create(&mut handle, bytes as usize, &properties, 0) } == SUCCESS;
    uncharged(pages, made).then_some(handle)
}

/// Takes memory of the host: of huge pages, if there are such. Drivers before 550 know it by its
/// node alone.
fn on_host(bytes: u64) -> Option<Handle> {
    static BY_NODE: AtomicBool = AtomicBool::new(false);
    let kinds = match BY_NODE.load(Ordering::Relaxed) {
        true => &[ON_NODE][..],
        false => &[ON_HOST, ON_NODE],
    };
    for pages in [pager::Pages::Huge, pager::Pages::Any] {
        for kind in kinds {
            if let Some(handle) = create(bytes, *kind, 0, pages) {
                BY_NODE.store(*kind == ON_NODE, Ordering::Relaxed);
                return Some(handle);
            }
        }
    }
    None
}

/// Maps memory at an address that is reserved and free.
fn map(at: Address, bytes: u64, handle: Handle) -> bool {
    type Map = unsafe extern "C" fn(Address, usize, usize, Handle, u64) -> Status;
    // SAFETY: the type is that of the function.
    let map = unsafe { MAP.function::<Map>() };
    // CAST: no piece is larger than `PIECE`. SAFETY: by the callers, it is reserved and free.
    map.is_some_and(|map| unsafe { map(at, bytes as usize, 0, handle, 0) } == SUCCESS)
}

/// Maps memory at an address that is reserved and free, and lets GPUs use it.
fn place(at: Address, bytes: u64, handle: Handle, devices: &[Device]) -> bool {
    let is_mapped = map(at, bytes, handle);
    let is_usable = is_mapped && allow(at, bytes, devices);
    if is_mapped && !is_usable {
        unmap(at, bytes);
    }
    is_usable
}

/// Lets GPUs use what is mapped.
fn allow(at: Address, bytes: u64, devices: &[Device]) -> bool {
    type SetAccess = unsafe extern "C" fn(Address, usize, *const Access, usize) -> Status;
    let to = |id: &Device| Access {
        location: Location {
            kind: ON_DEVICE,
            id: *id,
        },
        flags: READ_WRITE,
    };
    let access: Vec<Access> = devices.iter().map(to).collect();
    // SAFETY: the type is that of the function.
    let set = unsafe { SET_ACCESS.function::<SetAccess>() };
    // CAST: it is mapped.
    let (bytes, count) = (bytes as usize, access.len());
    // SAFETY: `access` has so many entries, for the call.
    set.is_some_and(|set| unsafe { set(at, bytes, access.as_ptr(), count) } == SUCCESS)
}

fn unmap(at: Address, bytes: u64) {
    type Unmap = unsafe extern "C" fn(Address, usize) -> Status;
    // SAFETY: the type is that of the function.
    if let Some(unmap) = unsafe { UNMAP.function::<Unmap>() } {
        // CAST: no piece is larger than `PIECE`. SAFETY: nothing uses it.
        unsafe { unmap(at, bytes as usize) };
    }
}

fn release(handle: Handle) {
    type Release = unsafe extern "C" fn(Handle) -> Status;
    // SAFETY: the type is that of the function.
    if let Some(release) = unsafe { RELEASE.function::<Release>() } {
        // SAFETY: this module's own. What is mapped of it stays until it is unmapped.
        unsafe { release(handle) };
    }
}

/// Begins to copy between both places of a piece.
fn copy(to: Address, from: Address, bytes: u64, stream: Stream) -> bool {
    type Copy = unsafe extern "C" fn(Address, Address, usize, Stream) -> Status;
    // SAFETY: the type is that of the function.
    let copy = unsafe { COPY.function::<Copy>() };
    // CAST: no piece is larger than `PIECE`. SAFETY: both are mapped, and nothing else uses them.
    copy.is_some_and(|copy| unsafe { copy(to, from, bytes as usize, stream) } == SUCCESS)
}

/// Streams of the library's own, so many that copies in both directions overlap.
#[derive(Debug)]
struct Streams {
    context: Context,
    streams: [Stream; 4],
}

// SAFETY: libcuda's functions take a stream from any thread.
unsafe impl Send for Streams {}

impl Streams {
    /// Creates streams in the current context.
    fn new(context: Context) -> Option<Self> {
        type Create = unsafe extern "C" fn(*mut Stream, c_uint) -> Status;
        // SAFETY: the type is that of the function.
        let create = unsafe { STREAM_CREATE.function::<Create>() }?;
        let mut streams = Self {
            context,
            streams: [ptr::null_mut(); 4],
        };
        for stream in &mut streams.streams {
            // SAFETY: `stream` is valid for the call.
            if unsafe { create(stream, NON_BLOCKING) } != SUCCESS {
                return None;
            }
        }
        Some(streams)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for stream in self.streams.into_iter().filter(|stream| !stream.is_null()) {
            // SAFETY: created by `new` in a context that exists, and nobody else has it.
            unsafe { on_stream(&STREAM_DESTROY, stream) };
        }
    }
}

/// Waits for the copies of streams. Returns whether all were made.
fn wait(streams: [Stream; 4]) -> bool {
    // SAFETY: created by `Streams::new`.
    let waited = streams.map(|stream| unsafe { on_stream(&STREAM_SYNCHRONIZE, stream) });
    waited.into_iter().all(|made| made)
}

/// Calls a function of libcuda that takes a stream.
///
/// # Safety
///
/// The function takes a stream, and may be called with this one.
unsafe fn on_stream(function: &Libcuda, stream: Stream) -> bool {
    type Of = unsafe extern "C" fn(Stream) -> Status;
    // SAFETY: by contract.
    let function = unsafe { function.function::<Of>() };
    // SAFETY: by contract.
    function.is_some_and(|function| unsafe { function(stream) } == SUCCESS)
}
