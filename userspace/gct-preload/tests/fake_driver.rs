// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A GPU's driver within a program that runs under the library. It is preloaded behind the library
//! and answers the library's system calls. It supports two channels of one client, the second only
//! to bring a second doorbell page.
//!
//! The program calls the functions whose names begin with `fake_`.

use core::arch::asm;
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

const CLIENT: u32 = 0xc1d0_0019;
const USERMODE: u32 = 5;
const RINGS: u32 = 0x17;
const CHANNEL: u32 = 0x1c;
const SECOND_USERMODE: u32 = 6;
const SECOND_CHANNEL: u32 = 0x1d;
const ENTRIES: u32 = 1024;
const DOORBELL_BYTES: usize = 0x10000;
const RINGS_BYTES: usize = 2 << 20;
const USERD: usize = 0x2000;
const GP_GET: usize = USERD + 0x88;
const GP_PUT: usize = USERD + 0x8c;
const DOORBELL: usize = 0x90;
const TOKEN: u32 = 0xa;

/// The descriptor of `/dev/nvidia0`; 0 before it is opened.
static NODE: AtomicI32 = AtomicI32::new(0);
/// Whether there is a channel group.
static HAS_GROUP: AtomicBool = AtomicBool::new(false);
/// The memory objects that are mapped as descriptors: doorbells, rings, the second doorbells.
static MEMORY: [AtomicI32; 3] = [const { AtomicI32::new(0) }; 3];
/// The GPU's mappings of these objects.
static REAL: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
/// The program's mappings of these objects.
static PROGRAM: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
/// Whether SIGTERM comes when the library next moves a mapping.
static TERMINATES: AtomicBool = AtomicBool::new(false);
/// The object that the next `mmap` maps.
static ANNOUNCED: AtomicUsize = AtomicUsize::new(0);

/// Makes a system call past all libraries.
///
/// # Safety
///
/// As for the call.
unsafe fn raw(number: c_long, a: [c_long; 6]) -> c_long {
    let ret;
    // SAFETY: the kernel's convention; the caller vouches for the call.
    unsafe {
        asm!("syscall", inlateout("rax") number => ret, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _);
    }
    ret
}

/// Interposes `syscall(2)`: the library's calls of the driver end here.
///
/// # Safety
///
/// As for `syscall(2)`.
#[no_mangle]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let node = c_long::from(NODE.load(Ordering::Relaxed));
    let ours = |fd: c_long| node != 0 && fd == node;
    if number == libc::SYS_ioctl && ours(a) {
        // SAFETY: a structure of this request's.
        return unsafe { serve(b, c as *mut u32) };
    }
    if number == libc::SYS_mremap && node != 0 {
        // SAFETY: the caller's.
        let ret = unsafe { raw(number, [a, b, c, d, e, f]) };
        another_thread_maps(b);
        if TERMINATES.swap(false, Ordering::Relaxed) {
            // SAFETY: a signal to this thread.
            unsafe { libc::raise(libc::SIGTERM) };
        }
        return ret;
    }
    let mut args = [a, b, c, d, e, f];
    if number == libc::SYS_mmap && ours(e) {
        args[4] = c_long::from(MEMORY[ANNOUNCED.load(Ordering::Relaxed)].load(Ordering::Relaxed));
    }
    // SAFETY: the caller's.
    let ret = unsafe { raw(number, args) };
    if (-4095..0).contains(&ret) {
        // SAFETY: this thread's `errno`.
        unsafe { *libc::__errno_location() = -ret as c_int };
        return -1;
    }
    ret
}

/// Maps memory anywhere and writes there, as another thread may at any time.
fn another_thread_maps(len: c_long) {
    // SAFETY: a new mapping of so many bytes.
    unsafe {
        let at = raw(libc::SYS_mmap, [0, len, 3, 0x22, -1, 0]);
        (at as *mut u32).write_volatile(OTHERS);
        let free = OTHER.iter().find(|slot| slot.load(Ordering::Relaxed) == 0);
        free.unwrap().store(at as usize, Ordering::Relaxed);
    }
}

/// The value that the other thread writes, and its addresses.
const OTHERS: u32 = 0x07e5_07e5;
static OTHER: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

/// Returns how many of the other thread's mappings are unchanged; 0 if one has changed.
#[no_mangle]
pub extern "C" fn fake_others() -> u32 {
    let used = || {
        OTHER
            .iter()
            .map(|slot| slot.load(Ordering::Relaxed))
            .take_while(|at| *at != 0)
    };
    // SAFETY: mapped above, for ever.
    let kept = used().filter(|at| unsafe { (*at as *const u32).read_volatile() } == OTHERS);
    if kept.count() == used().count() {
        used().count() as u32
    } else {
        0
    }
}

/// Maps other memory over the rings, as a program may. Returns whether the program reads it there.
#[no_mangle]
pub extern "C" fn fake_map_over() -> u32 {
    let at = PROGRAM[1].load(Ordering::Relaxed) as *mut c_void;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: over a mapping of this file's.
    let mapped = unsafe { libc::mmap(at, RINGS_BYTES, 3, flags, -1, 0) };
    let word = word(&PROGRAM, 1, GP_PUT);
    let fresh = word.load(Ordering::Relaxed) == 0;
    // It is ordinary memory, regardless of its contents.
    word.store(77, Ordering::Release);
    u32::from(mapped == at && fresh)
}

/// Answers an ioctl. All succeed.
///
/// # Safety
///
/// `arg` is the argument for the request.
unsafe fn serve(request: c_long, arg: *mut u32) -> c_long {
    let number = request & 0xff;
    if number == 0x4e {
        // SAFETY: an nvos33 structure.
        let memory = unsafe { arg.add(2).read() };
        let which = match memory {
            RINGS => 1,
            SECOND_USERMODE => 2,
            _ => 0,
        };
        ANNOUNCED.store(which, Ordering::Relaxed);
    }
    if number == 0x2a {
        // SAFETY: an nvos54 structure, with the parameters of its command.
        unsafe {
            control(
                arg.add(2).read(),
                arg.add(4).cast::<*mut u32>().read_unaligned(),
            )
        };
    }
    0
}

/// Answers a control. It has the work-submit token for all but two.
///
/// # Safety
///
/// `params` are those of the control.
unsafe fn control(command: u32, params: *mut u32) {
    match command {
        // SAFETY: a count and pairs.
        FB_GET_INFO_V2 => unsafe {
            for pair in 0..params.read() as usize {
                params.add(2 + 2 * pair).write(MEMORY_KIB);
            }
        },
        // SAFETY: one word: the GPU on bus 0.
        GPU_GET_ID => unsafe { *params = 0 },
        // SAFETY: one word.
        _ => unsafe { *params = TOKEN },
    }
}

const FB_GET_INFO_V2: u32 = 0x2080_1303;
const GPU_GET_ID: u32 = 0x2080_0142;
/// The memory of the GPU, all of it free.
const MEMORY_KIB: u32 = 80 << 20;
const DEVICE: u32 = 0x80;
const SUBDEVICE: u32 = 0x81;
const GROUP: u32 = 0x82;

/// Opens the GPU as NVML does, without a channel. Returns 0, or another number if a step failed.
#[no_mangle]
pub extern "C" fn fake_open_device() -> c_int {
    // SAFETY: opens a file.
    let node = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    NODE.store(node, Ordering::Relaxed);
    fake_make_device()
}

/// Makes a client with the objects of the GPU. Returns 0, or another number if a step failed.
#[no_mangle]
pub extern "C" fn fake_make_device() -> c_int {
    let params = [0u32; 16];
    let at = params.as_ptr() as u64;
    let objects = [
        (0, 0, CLIENT, 0x41),
        (CLIENT, CLIENT, DEVICE, 0x80),
        (CLIENT, DEVICE, SUBDEVICE, 0x2080),
    ];
    for (client, parent, handle, class) in objects {
        let mut nvos64 = [0; 12];
        nvos64[..6].copy_from_slice(&[client, parent, handle, class, at as u32, (at >> 32) as u32]);
        if ioctl(0x2b, &mut nvos64) != 0 {
            return 1;
        }
    }
    0
}

/// Makes a channel group on the GPU of [`fake_open_device`]. Returns 0 on success.
#[no_mangle]
pub extern "C" fn fake_open_group() -> c_int {
    let params = [0u32; 16];
    let at = params.as_ptr() as u64;
    let mut nvos64 = [0; 12];
    let (low, high) = (at as u32, (at >> 32) as u32);
    nvos64[..6].copy_from_slice(&[CLIENT, DEVICE, GROUP, 0xa06c, low, high]);
    HAS_GROUP.store(true, Ordering::Relaxed);
    ioctl(0x2b, &mut nvos64)
}

/// Returns the driver's answer about one fact of the memory, in MiB.
fn memory(index: u32) -> u32 {
    let mut params = [0u32; 1 + 2 * 54];
    params[..2].copy_from_slice(&[1, index]);
    let at = params.as_mut_ptr() as u64;
    let bytes = size_of_val(&params) as u32;
    let mut nvos54 = [
        CLIENT,
        SUBDEVICE,
        FB_GET_INFO_V2,
        0,
        at as u32,
        (at >> 32) as u32,
        bytes,
        0,
    ];
    match ioctl(0x2a, &mut nvos54) {
        0 => core::hint::black_box(params)[2] >> 10,
        _ => 0,
    }
}

/// Returns the size of the heap in MiB.
#[no_mangle]
pub extern "C" fn fake_memory_total() -> u32 {
    memory(9)
}

/// Returns what is free of the heap, in MiB.
#[no_mangle]
pub extern "C" fn fake_memory_free() -> u32 {
    memory(0x16)
}

/// Interposes `fstat(2)`: the driver's node is a device.
///
/// # Safety
///
/// As for `fstat(2)`.
#[no_mangle]
pub unsafe extern "C" fn __fxstat64(_: c_int, fd: c_int, into: *mut libc::stat) -> c_int {
    let empty = c"".as_ptr() as c_long;
    let args = [c_long::from(fd), empty, into as c_long, 0x1000, 0, 0];
    // SAFETY: the caller's; 0x1000 is AT_EMPTY_PATH.
    let ret = unsafe { raw(libc::SYS_newfstatat, args) };
    if ret == 0 && fd == NODE.load(Ordering::Relaxed) {
        // SAFETY: just written.
        unsafe {
            (*into).st_mode = libc::S_IFCHR;
            (*into).st_rdev = libc::makedev(195, 0);
        }
    }
    if ret == 0 {
        0
    } else {
        -1
    }
}

/// Interposes `pthread_create(3)`: with `FAKE_NO_THREADS` no thread can be made.
///
/// # Safety
///
/// As for `pthread_create(3)`.
#[no_mangle]
pub unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    start: *const c_void,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: both are strings that live for ever.
    let (real, none) = unsafe {
        (
            libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()),
            libc::getenv(c"FAKE_NO_THREADS".as_ptr()),
        )
    };
    if !none.is_null() {
        return libc::EAGAIN;
    }
    type Create =
        unsafe extern "C" fn(*mut c_void, *const c_void, *const c_void, *mut c_void) -> c_int;
    // SAFETY: the function of this name has this type.
    let real = unsafe { core::mem::transmute::<*mut c_void, Create>(real) };
    // SAFETY: the caller's arguments.
    unsafe { real(thread, attributes, start, argument) }
}

/// Sends an ioctl as libcuda does.
fn ioctl(number: u64, structure: &mut [u32]) -> c_int {
    let request = 0xc000_0000 | (size_of_val(structure) as u64) << 16 | 0x4600 | number;
    // SAFETY: a structure of the size that the request says.
    unsafe {
        libc::ioctl(
            NODE.load(Ordering::Relaxed),
            request,
            structure.as_mut_ptr(),
        )
    }
}

/// Allocates an object. The parent of a channel is the channel group, if there is one.
fn alloc(handle: u32, class: u32, params: &mut [u32]) -> c_int {
    let parent = match class == 0xc86f && HAS_GROUP.load(Ordering::Relaxed) {
        true => GROUP,
        false => 1,
    };
    let at = params.as_mut_ptr() as u64;
    let mut nvos64 = [0; 12];
    nvos64[..6].copy_from_slice(&[CLIENT, parent, handle, class, at as u32, (at >> 32) as u32]);
    ioctl(0x2b, &mut nvos64)
}

/// Maps a memory object at an address, or anywhere.
fn map(which: usize, handle: u32, len: usize, at: usize) -> bool {
    let mut nvos33 = [0; 14];
    (nvos33[0], nvos33[2], nvos33[6]) = (CLIENT, handle, len as u32);
    nvos33[12] = NODE.load(Ordering::Relaxed) as u32;
    if ioctl(0x4e, &mut nvos33) != 0 {
        return false;
    }
    let (prot, fixed) = (libc::PROT_READ | libc::PROT_WRITE, at != 0);
    let flags = libc::MAP_SHARED | if fixed { libc::MAP_FIXED } else { 0 };
    let node = NODE.load(Ordering::Relaxed);
    // SAFETY: a new mapping, at an address that this file has chosen.
    let mapped = unsafe { libc::mmap(at as *mut c_void, len, prot, flags, node, 0) };
    PROGRAM[which].store(mapped as usize, Ordering::Relaxed);
    mapped != libc::MAP_FAILED
}

/// Where the program maps the rings.
const AT: usize = 0x2_0060_0000;

/// Makes a channel whose ring begins at an offset of the rings, with its USERD behind it.
fn channel(handle: u32, offset: usize) -> c_int {
    let ring = AT + offset;
    let mut params = [0; 80];
    (params[2], params[3], params[4]) = (ring as u32, (ring >> 32) as u32, ENTRIES);
    (params[8], params[16]) = (RINGS, (USERD + offset) as u32);
    alloc(handle, 0xc86f, &mut params)
}

/// Sends SIGTERM to the thread in which the library next moves a mapping.
#[no_mangle]
pub extern "C" fn fake_terminate() -> u32 {
    TERMINATES.store(true, Ordering::Relaxed);
    0
}

/// Makes a second channel, after mapping doorbells anew. Returns 0, or another number if a step
/// failed.
#[no_mangle]
pub extern "C" fn fake_second() -> c_int {
    if alloc(SECOND_USERMODE, 0xc661, &mut [0]) != 0 || !map(2, SECOND_USERMODE, DOORBELL_BYTES, 0)
    {
        return 1;
    }
    channel(SECOND_CHANNEL, 0x4000)
}

/// Makes a context with one channel. Returns 0, or another number if a step failed.
#[no_mangle]
pub extern "C" fn fake_open() -> c_int {
    // SAFETY: opens a file.
    let node = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    NODE.store(node, Ordering::Relaxed);
    let objects = [DOORBELL_BYTES, RINGS_BYTES, DOORBELL_BYTES];
    for (which, len) in objects.into_iter().enumerate() {
        // SAFETY: new memory, at an address of the kernel's choice.
        unsafe {
            let memory = libc::memfd_create(c"fake".as_ptr(), 0);
            libc::ftruncate(memory, len as i64);
            MEMORY[which].store(memory, Ordering::Relaxed);
            let (len, fd) = (len as c_long, c_long::from(memory));
            let real = raw(libc::SYS_mmap, [0, len, 3, 1, fd, 0]);
            REAL[which].store(real as usize, Ordering::Relaxed);
        }
    }
    if alloc(USERMODE, 0xc661, &mut [0]) != 0 || !map(0, USERMODE, DOORBELL_BYTES, 0) {
        return 1;
    }
    if !map(1, RINGS, RINGS_BYTES, AT) {
        return 2;
    }
    if channel(CHANNEL, 0) != 0 {
        return 3;
    }
    let mut token = [0u32];
    let at = token.as_mut_ptr() as u64;
    let mut nvos54 = [
        CLIENT,
        CHANNEL,
        0xc36f_0108,
        0,
        at as u32,
        (at >> 32) as u32,
        4,
        0,
    ];
    ioctl(0x2a, &mut nvos54)
}

/// Returns a word of a memory object.
fn word(of: &[AtomicUsize; 3], which: usize, offset: usize) -> &'static AtomicU32 {
    // SAFETY: mapped by `fake_open`, for ever.
    unsafe { AtomicU32::from_ptr((of[which].load(Ordering::Relaxed) + offset) as *mut u32) }
}

/// Adds an entry to the ring and rings, as libcuda does. Returns the new GP_PUT.
#[no_mangle]
pub extern "C" fn fake_launch() -> u32 {
    launch(0)
}

/// Launches as [`fake_launch`] does, with the second doorbells.
#[no_mangle]
pub extern "C" fn fake_launch_second() -> u32 {
    launch(2)
}

fn launch(doorbells: usize) -> u32 {
    let put = word(&PROGRAM, 1, GP_PUT);
    let at = put.load(Ordering::Relaxed);
    let next = (at + 1) % ENTRIES;
    word(&PROGRAM, 1, 8 * at as usize).store(0x7000_0000, Ordering::Relaxed);
    word(&PROGRAM, 1, 8 * at as usize + 4).store(1 << 10, Ordering::Relaxed);
    put.store(next, Ordering::Release);
    word(&PROGRAM, doorbells, DOORBELL).store(TOKEN, Ordering::Release);
    // libcuda (580.159.04) reads behind the doorbell so that the store arrives.
    word(&PROGRAM, doorbells, DOORBELL + 4).load(Ordering::Acquire);
    next
}

/// Returns GP_PUT as the GPU sees it.
#[no_mangle]
pub extern "C" fn fake_put() -> u32 {
    word(&REAL, 1, GP_PUT).load(Ordering::Acquire)
}

/// Returns the last value of the doorbell that the GPU sees.
#[no_mangle]
pub extern "C" fn fake_rung() -> u32 {
    word(&REAL, 0, DOORBELL).load(Ordering::Acquire)
}

/// Lets the GPU read all that is published.
#[no_mangle]
pub extern "C" fn fake_read() {
    word(&REAL, 1, GP_GET).store(fake_put(), Ordering::Release);
}
