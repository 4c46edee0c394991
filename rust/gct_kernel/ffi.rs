// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the functions that C calls.
//!
//! Each converts C's arguments to safe values, calls one function and converts its result. gct.h
//! and gct_helpers.h say what they do.
//!
//! One pointer leads to the glue. It is set before the static key enables the hooks. `gct_exit`
//! clears it, after the character devices and GPUs are gone and no hook can run.

use crate::bindings::{self, gct_call, gct_gpu, gct_process};
use crate::files::errno;
use crate::state::Glue;
use crate::{debugfs, door, exec, hooks, ioctl, owned};
use core::mem::{offset_of, size_of};
use core::ops::Deref;
use core::ptr::{self, NonNull};
use gct_core::error::Error;
use gct_core::ids::FileId;
use gct_core::rmapi::Shared;
use kernel::bindings::{file, seq_file};
use kernel::ffi::{c_char, c_int, c_void};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::{Arc, ArcBorrow};

// gct.h and gct_helpers.h assert the same numbers in C.
const _: () = assert!(bindings::GCT_ABI_VERSION == 19);
const _: () = assert!(size_of::<gct_gpu>() == 128);
const _: () = assert!(offset_of!(gct_gpu, bus) == 16);
const _: () = assert!(offset_of!(gct_gpu, vendor) == 20);
const _: () = assert!(offset_of!(gct_gpu, pmc_boot_42) == 28);
const _: () = assert!(offset_of!(gct_gpu, bar0_base) == 32);
const _: () = assert!(offset_of!(gct_gpu, name) == 64);
const _: () = assert!(size_of::<gct_call>() == 200);
const _: () = assert!(size_of::<gct_process>() == 16);

/// Fails to compile if a function's type differs from its declaration in the C headers: both arms
/// of the `if` must have one type.
macro_rules! check_signatures {
    ($($function:ident),* $(,)?) => {
        $(const _: () = { let _ = if true { bindings::$function } else { $function }; };)*
    };
}

pub(crate) use check_signatures;

check_signatures!(
    gct_init,
    gct_exit,
    gct_gpu_add,
    gct_gpu_uuid,
    gct_gpu_remove,
    gct_gpu_resumed,
    gct_log_line,
    gct_file_open,
    gct_file_close,
    gct_memory_kept,
    gct_memory_size,
    gct_ioctl_enter,
    gct_ioctl_leave,
    gct_debugfs_show,
    gct_debugfs_write,
    gct_door_call,
    gct_trace_fork,
    gct_trace_exit,
    gct_worker_round,
    gct_pauses_due,
    gct_shadows_due,
);

mod maps;
mod uvm;

/// The glue from `Arc::into_raw`, with one reference, or null.
static GLUE: Atomic<*mut Glue> = Atomic::new(ptr::null_mut());

/// The glue, for the length of one call from C: what it lends goes no further than this value,
/// which stays in the thread of the call.
///
/// That the glue is there for so long no type shows. It is the order of calls in C: `gct_exit`
/// gives the only reference back when the static key is off and the last hook, file operation, work
/// item and tracepoint has returned.
pub(crate) struct Called {
    glue: NonNull<Glue>,
}

impl Called {
    /// Lends the glue.
    pub(crate) fn glue(&self) -> ArcBorrow<'_, Glue> {
        // SAFETY: the pointer comes from `Arc::into_raw`, and `gct_exit` alone drops its reference.
        // This value was made in a call from C, for which `gct_exit` waits (`Called`).
        unsafe { ArcBorrow::from_raw(self.glue.as_ptr()) }
    }
}

impl Deref for Called {
    type Target = Glue;

    fn deref(&self) -> &Glue {
        // SAFETY: as in `glue`.
        unsafe { self.glue.as_ref() }
    }
}

/// Returns the glue if there is one. The caller is called from C, and drops it before it returns.
pub(crate) fn glue() -> Option<Called> {
    let glue = NonNull::new(GLUE.load(Acquire))?;
    Some(Called { glue })
}

/// Starts the glue. Without it the driver continues as stock.
///
/// # Safety
///
/// The driver's module init calls it once, before any other function here.
#[no_mangle]
unsafe extern "C" fn gct_init() -> c_int {
    match exec::start() {
        Ok(glue) => {
            GLUE.store(Arc::into_raw(glue).cast_mut(), Release);
            // SAFETY: it sleeps, and module init may sleep.
            unsafe { bindings::gct_helper_enable_hooks(true) };
            door::open();
            0
        }
        Err(error) => {
            pr_err!("not started: {error:?}; the driver goes on without gctgroup\n");
            error.to_errno()
        }
    }
}

/// Stops the glue and frees its state.
///
/// # Safety
///
/// The driver's module exit calls it once, after the last hook has returned. `gct_init` may have
/// failed.
#[no_mangle]
unsafe extern "C" fn gct_exit() {
    let Some(borrow) = glue() else {
        return;
    };
    door::close();
    // SAFETY: it sleeps, and module exit may sleep.
    unsafe { bindings::gct_helper_enable_hooks(false) };
    exec::stop(borrow.glue().into());
    let raw = GLUE.xchg(ptr::null_mut(), kernel::sync::atomic::Full);
    // SAFETY: `raw` is the reference that `gct_init` stored. After `exec::stop` no file operation,
    // work item or tracepoint runs, and the caller guarantees the same of hooks.
    drop(unsafe { Arc::from_raw(raw) });
    // SAFETY: no file is open, so no bell is left, and no worker.
    unsafe { bindings::gct_helper_bells_exit() };
}

/// Adds a GPU that the driver has probed.
///
/// # Safety
///
/// `gpu` is null or points to a `struct gct_gpu` that does not change during the call.
#[no_mangle]
unsafe extern "C" fn gct_gpu_add(gpu: *const gct_gpu) {
    // SAFETY: the caller's contract; null is handled.
    let Some(gpu) = (unsafe { gpu.as_ref() }) else {
        return;
    };
    if let (Some(glue), true) = (
        glue(),
        usize::try_from(gpu.size) == Ok(size_of::<gct_gpu>()),
    ) {
        hooks::gpu_add(&glue.glue(), gpu);
    }
}

/// Stores the UUID of a GPU.
///
/// # Safety
///
/// `uuid` is null or points to `GCT_GPU_UUID_BYTES` bytes that do not change during the call.
#[no_mangle]
unsafe extern "C" fn gct_gpu_uuid(gpu_id: u32, uuid: *const u8) {
    // SAFETY: the caller's contract.
    let uuid = unsafe { uuid_at(uuid) };
    if let (Some(glue), Some(uuid)) = (glue(), uuid) {
        hooks::gpu_uuid(&glue.glue(), gpu_id, uuid);
    }
}

/// Removes a GPU, and waits for work of the glue on it.
///
/// # Safety
///
/// Any number is valid.
#[no_mangle]
unsafe extern "C" fn gct_gpu_remove(gpu_id: u32) {
    if let Some(glue) = glue() {
        hooks::gpu_remove(&glue.glue(), gpu_id);
    }
}

/// Makes all limits of a resumed GPU dirty.
///
/// # Safety
///
/// Any number is valid.
#[no_mangle]
unsafe extern "C" fn gct_gpu_resumed(gpu_id: u32) {
    if let Some(glue) = glue() {
        hooks::gpu_resumed(&glue.glue(), gpu_id);
    }
}

/// Counts a fault that a line of the driver's log reports.
///
/// # Safety
///
/// `line` is null or points to `size` bytes that do not change during the call. Any context.
#[no_mangle]
unsafe extern "C" fn gct_log_line(line: *const c_char, size: u32) {
    // SAFETY: the caller's contract; null is handled.
    if let (Some(glue), Some(line)) = (glue(), unsafe { bytes(line.cast(), size) }) {
        hooks::log_line(&glue.glue(), line);
    }
}

/// Tracks an open file of the driver.
///
/// # Safety
///
/// current is the process that opens, in process context that may sleep. `file` is null or
/// writable.
#[no_mangle]
unsafe extern "C" fn gct_file_open(file: *mut *mut c_void) -> c_int {
    // SAFETY: the caller's contract; null is handled.
    let Some(token) = (unsafe { file.as_mut() }) else {
        return 0;
    };
    let opened = glue().map_or(Ok(None), |glue| hooks::file_open(&glue.glue()));
    *token = as_token(opened.unwrap_or(None));
    opened.map_or_else(|errno| errno, |_| 0)
}

/// Returns the token of an open file. It is a number that nobody dereferences.
fn as_token(file: Option<FileId>) -> *mut c_void {
    file.and_then(|file| usize::try_from(file.raw()).ok())
        .map_or(ptr::null_mut(), ptr::without_provenance_mut)
}

/// Follows memory that a dma-buf keeps. Returns 0 if the driver may keep it.
///
/// # Safety
///
/// `file` is null or points to a token that nobody else uses during the call. The numbers may be
/// any.
#[no_mangle]
unsafe extern "C" fn gct_memory_kept(
    file: *mut *mut c_void,
    gpu_id: u32,
    index: u32,
    client: u32,
    object: u32,
    bytes: u64,
) -> c_int {
    // SAFETY: the caller's contract; null is handled.
    let (Some(file), Some(glue)) = (unsafe { file.as_mut() }, glue()) else {
        return 0;
    };
    if file.is_null() {
        match hooks::file_open(&glue.glue()) {
            Ok(opened) => *file = as_token(opened),
            Err(errno) => return errno,
        }
    }
    let Some(into) = token(*file) else {
        return 0;
    };
    let shared = Shared {
        index,
        object,
        parent: 0,
    };
    match hooks::memory_kept(&glue.glue(), into, gpu_id, client, &shared, bytes) {
        true => 0,
        false => errno(Error::NoSpace),
    }
}

/// Charges memory that a dma-buf keeps with its size.
///
/// # Safety
///
/// Any token and any numbers are valid.
#[no_mangle]
unsafe extern "C" fn gct_memory_size(file: *mut c_void, index: u32, keeper: u32, kept: u32) {
    if let (Some(glue), Some(into)) = (glue(), token(file)) {
        let shared = Shared {
            index,
            object: 0,
            parent: 0,
        };
        hooks::memory_size(&glue, into, &shared, (keeper, kept));
    }
}

/// Returns the open file of a token.
pub(crate) fn token(file: *mut c_void) -> Option<FileId> {
    let raw = u64::try_from(file.addr()).ok()?;
    (raw != 0).then(|| FileId::from_raw(raw))
}

/// Frees what an open file of the driver has.
///
/// # Safety
///
/// Any token is valid; a stale one names no file.
#[no_mangle]
unsafe extern "C" fn gct_file_close(file: *mut c_void) {
    if let (Some(glue), Some(file)) = (glue(), token(file)) {
        hooks::file_close(&glue.glue(), file);
    }
}

/// Prepares for an ioctl. Returns 0 if it may run.
///
/// # Safety
///
/// `arg` is null or points to `size` bytes that nobody else uses during the call. `call` is null or
/// points to memory for a `struct gct_call`.
#[no_mangle]
unsafe extern "C" fn gct_ioctl_enter(
    file: *mut c_void,
    escape: u32,
    arg: *mut c_void,
    size: u32,
    call: *mut gct_call,
) -> c_int {
    let Some(mut call) = NonNull::new(call) else {
        return 0;
    };
    // SAFETY: the caller's contract. The memory is not initialised, so it is written before a
    // reference to it exists.
    let call = unsafe {
        call.write(gct_call::EMPTY);
        call.as_mut()
    };
    // SAFETY: the caller's contract; null is handled.
    let Some(bytes) = (unsafe { bytes_mut(arg, size) }) else {
        return 0;
    };
    if let Some(glue) = glue() {
        return ioctl::ioctl_enter(&glue.glue(), token(file), escape, bytes, call).into();
    }
    0
}

/// Records what an ioctl has done.
///
/// # Safety
///
/// As for [`gct_ioctl_enter`], which the same task called with the same `call` and which returned
/// 0.
#[no_mangle]
unsafe extern "C" fn gct_ioctl_leave(
    file: *mut c_void,
    escape: u32,
    arg: *mut c_void,
    size: u32,
    call: *mut gct_call,
    result: u32,
) {
    // SAFETY: the caller's contract; null is handled.
    let (Some(bytes), Some(call)) = (unsafe { (bytes_mut(arg, size), call.as_mut()) }) else {
        return;
    };
    if let (Some(glue), Some(file)) = (glue(), token(file)) {
        ioctl::ioctl_leave(&glue.glue(), file, escape, bytes, call, result);
    }
}

/// Returns bytes of C as a slice, `None` for null.
///
/// # Safety
///
/// `arg` is null or points to `size` bytes that do not change while the slice is used.
unsafe fn bytes<'a>(arg: *const c_void, size: u32) -> Option<&'a [u8]> {
    let size = usize::try_from(size).ok()?;
    // SAFETY: the caller's contract, and bytes have no alignment.
    (!arg.is_null()).then(|| unsafe { core::slice::from_raw_parts(arg.cast(), size) })
}

/// Returns bytes of C as a mutable slice, `None` for null.
///
/// # Safety
///
/// As for [`bytes`], and nobody else uses them while the slice is used.
unsafe fn bytes_mut<'a>(arg: *mut c_void, size: u32) -> Option<&'a mut [u8]> {
    let size = usize::try_from(size).ok()?;
    // SAFETY: the caller's contract, and bytes have no alignment.
    (!arg.is_null()).then(|| unsafe { core::slice::from_raw_parts_mut(arg.cast(), size) })
}

/// Prints a file of the tree.
///
/// # Safety
///
/// Only `single_open` in `gct_debugfs_fops` may use it: `seq` belongs to an open file of the tree,
/// and debugfs holds off the file's removal.
#[no_mangle]
unsafe extern "C" fn gct_debugfs_show(seq: *mut seq_file, _: *mut c_void) -> c_int {
    let Some(glue) = glue() else {
        return errno(Error::Gone);
    };
    // SAFETY: the caller's contract.
    unsafe { debugfs::show(&glue.glue(), seq) }.map_or_else(|errno| errno, |()| 0)
}

/// Writes a file of the tree.
///
/// # Safety
///
/// Only the `write` of `gct_debugfs_fops` may use it: `file` is an open file of the tree, debugfs
/// holds off its removal, and `offset` is the position of the write.
#[no_mangle]
unsafe extern "C" fn gct_debugfs_write(
    file: *mut file,
    from: *const c_char,
    count: usize,
    offset: *mut i64,
) -> isize {
    let written = glue().ok_or(errno(Error::Gone)).and_then(|glue| {
        // SAFETY: the caller's contract.
        unsafe { debugfs::write(&glue.glue(), file, from, count) }
    });
    match written {
        Ok(()) => {
            let written = isize::try_from(count).unwrap_or(isize::MAX);
            // SAFETY: the caller's contract; a `write` may move its position.
            unsafe { *offset = (*offset).saturating_add(i64::try_from(written).unwrap_or(0)) };
            written
        }
        // CAST: widens. `isize` has no `From<i32>`.
        Err(errno) => errno as isize,
    }
}

/// Serves a request of `/dev/gctgroup`.
///
/// # Safety
///
/// Any numbers are valid.
#[no_mangle]
unsafe extern "C" fn gct_door_call(command: u32, request: usize, rights: u32) -> c_int {
    let served = glue()
        .ok_or(errno(Error::Gone))
        .and_then(|glue| door::call(&glue.glue(), command, request, rights));
    served.map_or_else(|errno| errno, |()| 0)
}

/// Makes a child a member of its parent's group.
///
/// # Safety
///
/// `parent` and `child` point to identities of processes.
#[no_mangle]
unsafe extern "C" fn gct_trace_fork(parent: *const gct_process, child: *const gct_process) -> bool {
    // SAFETY: the caller's contract.
    let (parent, child) = unsafe { (*parent, *child) };
    glue().is_none_or(|glue| hooks::fork(&glue.glue(), parent.into(), child.into()))
}

/// Removes a process that has exited from its group.
///
/// # Safety
///
/// `process` points to the identity of a process.
#[no_mangle]
unsafe extern "C" fn gct_trace_exit(process: *const gct_process) {
    // SAFETY: the caller's contract.
    let process = unsafe { *process };
    if let Some(glue) = glue() {
        glue.exited(process.into());
    }
}

/// Runs one round of a worker of owned channels.
///
/// # Safety
///
/// For the worker that was started with `data` only.
#[no_mangle]
unsafe extern "C" fn gct_worker_round(data: *mut c_void, now_ns: u64, signs: u32) -> u64 {
    // SAFETY: the caller's contract is the callee's.
    unsafe { owned::round(data, now_ns, signs) }
}

/// Decides which owners pause.
///
/// # Safety
///
/// For the work item of `gct_helper_pauses_in` only, which `exec::stop` cancels.
#[no_mangle]
unsafe extern "C" fn gct_pauses_due() {
    if let Some(glue) = glue() {
        exec::pass_pauses(glue.glue());
    }
}

/// Shadows the channels that could not be shadowed before.
///
/// # Safety
///
/// For the work item of `gct_helper_uvm_map` only, which `exec::stop` cancels.
#[no_mangle]
unsafe extern "C" fn gct_shadows_due() {
    if let Some(glue) = glue() {
        owned::shadow(&glue);
        exec::pass_pauses(glue.glue());
    }
}

/// Returns a UUID of C, `None` for null.
///
/// # Safety
///
/// `uuid` is null or points to `GCT_GPU_UUID_BYTES` bytes that do not change during the call.
unsafe fn uuid_at(uuid: *const u8) -> Option<[u8; bindings::GCT_GPU_UUID_BYTES as usize]> {
    // SAFETY: the caller's contract; null is handled. An array of bytes needs no alignment.
    unsafe {
        uuid.cast::<[u8; bindings::GCT_GPU_UUID_BYTES as usize]>()
            .as_ref()
    }
    .copied()
}
