// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The steps, each a test. All share one context.

use crate::driver::{api, cu, DevicePointer, Handle};
use crate::ipc;
use gct_ktap::{failed, holds, same, Outcome, Stop, Test};
use std::ffi::{c_void, CStr};
use std::mem::ManuallyDrop;
use std::ptr::{addr_of_mut, null_mut};
use std::sync::OnceLock;
use std::time::Duration;

/// The steps in their order.
pub(crate) const STEPS: &[Test] = &[
    ("init", init),
    ("device", device),
    ("context", context_is_made),
    ("memory_info", memory_info),
    ("memory", memory),
    ("large_memory", large_memory),
    ("memset", memset),
    ("small_memset", small_memset),
    ("copies", copies),
    ("pinned_host_memory", pinned),
    ("streams", streams),
    ("events", events),
    ("managed_memory", managed),
    ("managed_beyond", managed_beyond),
    ("module", module_is_loaded),
    ("launch", launch),
    ("long_launches", long_launches),
    ("graph", graph),
    ("fork", fork),
    ("rounds", rounds),
    ("replays", replays),
    ("wild_store", wild_store),
    ("ipc_owner", ipc::owner),
    ("ipc_user", ipc::user),
    ("context_is_destroyed", context_is_destroyed),
];

/// Words of a test's buffer.
pub(crate) const WORDS: usize = 1 << 16;
const BYTES: usize = WORDS * 4;

/// Attributes of a device.
const MULTIPROCESSOR_COUNT: i32 = 16;
const COMPUTE_CAPABILITY_MAJOR: i32 = 75;

fn init() -> Outcome {
    let mut version = 0;
    // SAFETY: `version` is a place for a number.
    unsafe {
        cu!(cuDriverGetVersion(&mut version))?;
        println!("# driver {version}");
        cu!(cuInit(0))
    }
}

fn device() -> Outcome {
    let (mut count, mut device, mut name, mut uuid) = (0, 0, [0; 64], [0; 16]);
    let (mut bytes, mut processors, mut major) = (0, 0, 0);
    // SAFETY: each pointer is a place for what the function returns, and the name's length is said.
    unsafe {
        cu!(cuDeviceGetCount(&mut count))?;
        cu!(cuDeviceGet(&mut device, 0))?;
        cu!(cuDeviceGetName(name.as_mut_ptr().cast(), 64, device))?;
        cu!(cuDeviceGetUuid_v2(&mut uuid, device))?;
        cu!(cuDeviceTotalMem_v2(&mut bytes, device))?;
        cu!(cuDeviceGetAttribute(
            &mut processors,
            MULTIPROCESSOR_COUNT,
            device
        ))?;
        cu!(cuDeviceGetAttribute(
            &mut major,
            COMPUTE_CAPABILITY_MAJOR,
            device
        ))?;
    }
    let name = CStr::from_bytes_until_nul(&name).map_err(failed)?;
    println!(
        "# {count} devices, the first: {name:?}, {} MiB, {processors} SMs, sm_{major}0",
        bytes >> 20
    );
    same("compute capability", major, 9)?;
    same("SMs", processors, 132)
}

/// Makes the context that all steps share, once.
fn context() -> Result<Handle, Stop> {
    static CONTEXT: OnceLock<Result<usize, String>> = OnceLock::new();
    let make = || -> Result<usize, Stop> {
        let mut context = null_mut();
        // SAFETY: `context` is a place for the handle.
        unsafe {
            cu!(cuInit(0))?;
            cu!(cuCtxCreate_v2(&mut context, 0, 0))?;
        }
        Ok(context.expose_provenance())
    };
    let made = CONTEXT.get_or_init(|| {
        make().map_err(|why| match why {
            Stop::Failed(why) | Stop::Skipped(why) => why,
        })
    });
    made.as_ref()
        .map(|address| std::ptr::with_exposed_provenance_mut(*address))
        .map_err(failed)
}

fn context_is_made() -> Outcome {
    context().map(drop)
}

/// Device memory, freed on drop.
pub(crate) struct Buffer(pub(crate) DevicePointer);

impl Buffer {
    pub(crate) fn new(bytes: usize) -> Result<Self, Stop> {
        context()?;
        let mut at = 0;
        // SAFETY: `at` is a place for the address.
        unsafe { cu!(cuMemAlloc_v2(&mut at, bytes))? };
        Ok(Self(at))
    }

    pub(crate) fn read(&self) -> Result<Vec<u32>, Stop> {
        self.read_from(0)
    }

    /// Returns the words from an offset in bytes on.
    fn read_from(&self, offset: usize) -> Result<Vec<u32>, Stop> {
        let (mut words, at) = (vec![0u32; WORDS], self.0 + offset as u64);
        // SAFETY: both memories have so many bytes.
        unsafe { cu!(cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), at, BYTES))? };
        Ok(words)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Ok(api) = api() {
            // SAFETY: the memory is this buffer's. A failure leaks it.
            unsafe { (api.cuMemFree_v2)(self.0) };
        }
    }
}

/// Returns words that differ.
fn pattern(seed: u32) -> Vec<u32> {
    (0..)
        .take(WORDS)
        .map(|at: u32| at.wrapping_mul(2_654_435_761) ^ seed)
        .collect()
}

fn memory_info() -> Outcome {
    context()?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are places for numbers.
    unsafe { cu!(cuMemGetInfo_v2(&mut free, &mut total))? };
    println!("# {} of {} MiB free", free >> 20, total >> 20);
    holds("some is free", free > 0 && free <= total)
}

fn memory() -> Outcome {
    for bytes in [1, BYTES, 64 << 20] {
        Buffer::new(bytes)?;
    }
    Ok(())
}

/// Allocates more than a limit of the tests allows.
/// Fills more memory than the limits of the tests leave beside a context, and reads its end.
fn large_memory() -> Outcome {
    const LARGE: usize = 320 << 20;
    let buffer = Buffer::new(LARGE)?;
    // SAFETY: the buffer has so many words.
    unsafe { cu!(cuMemsetD32_v2(buffer.0, 13, LARGE / 4))? };
    same("words", buffer.read_from(LARGE - BYTES)?, vec![13; WORDS]).map_err(short)
}

fn memset() -> Outcome {
    let buffer = Buffer::new(BYTES)?;
    // SAFETY: the buffer has so many words.
    unsafe {
        cu!(cuMemsetD32_v2(buffer.0, 0x1234_5678, WORDS))?;
        cu!(cuCtxSynchronize())?;
    }
    same("words", buffer.read()?, vec![0x1234_5678; WORDS]).map_err(short)
}

/// Fills little memory, as CUDA does by a macro. The software GPU has none.
fn small_memset() -> Outcome {
    let buffer = Buffer::new(BYTES)?;
    // SAFETY: the buffer has so many bytes.
    unsafe {
        cu!(cuMemsetD32_v2(buffer.0, 0, WORDS))?;
        cu!(cuMemsetD8_v2(buffer.0, 7, 4))?;
        cu!(cuMemsetD8_v2(buffer.0 + 256, 9, 1000))?;
        cu!(cuMemsetD8_v2(buffer.0 + 4096, 11, 4096))?;
        cu!(cuCtxSynchronize())?;
    }
    let mut expected = vec![0; WORDS];
    expected[0] = 0x0707_0707;
    expected[64..64 + 250].fill(0x0909_0909);
    expected[1024..2048].fill(0x0b0b_0b0b);
    same("words", buffer.read()?, expected).map_err(short)
}

/// Shortens a failure that shows all words.
pub(crate) fn short(why: Stop) -> Stop {
    match why {
        Stop::Failed(why) => failed(why.chars().take(80).collect::<String>()),
        skipped @ Stop::Skipped(_) => skipped,
    }
}

fn copies() -> Outcome {
    let (first, second) = (Buffer::new(BYTES)?, Buffer::new(BYTES)?);
    let words = pattern(1);
    // SAFETY: all memories have so many bytes.
    unsafe {
        cu!(cuMemcpyHtoD_v2(first.0, words.as_ptr().cast(), BYTES))?;
        cu!(cuMemcpyDtoD_v2(second.0, first.0, BYTES))?;
    }
    same("words", second.read()?, words).map_err(short)
}

fn pinned() -> Outcome {
    let buffer = Buffer::new(BYTES)?;
    let mut host = null_mut();
    // SAFETY: the host's memory has BYTES bytes and is freed once.
    unsafe {
        cu!(cuMemAllocHost_v2(&mut host, BYTES))?;
        let words = std::slice::from_raw_parts_mut(host.cast::<u32>(), WORDS);
        words.copy_from_slice(&pattern(2));
        cu!(cuMemcpyHtoDAsync_v2(buffer.0, host, BYTES, null_mut()))?;
        cu!(cuCtxSynchronize())?;
        words.fill(0);
        cu!(cuMemcpyDtoHAsync_v2(host, buffer.0, BYTES, null_mut()))?;
        cu!(cuCtxSynchronize())?;
        let read = words.to_vec();
        cu!(cuMemFreeHost(host))?;
        same("words", read, pattern(2)).map_err(short)
    }
}

fn streams() -> Outcome {
    let buffer = Buffer::new(BYTES)?;
    let (mut first, mut second, mut event) = (null_mut(), null_mut(), null_mut());
    // SAFETY: each handle is used between its creation and its destruction.
    unsafe {
        cu!(cuStreamCreate(&mut first, 1))?;
        cu!(cuStreamCreate(&mut second, 1))?;
        cu!(cuEventCreate(&mut event, 2))?;
        cu!(cuMemsetD32Async(buffer.0, 1, WORDS, first))?;
        cu!(cuEventRecord(event, first))?;
        cu!(cuStreamWaitEvent(second, event, 0))?;
        cu!(cuMemsetD32Async(buffer.0, 2, WORDS, second))?;
        cu!(cuStreamSynchronize(second))?;
        cu!(cuEventDestroy_v2(event))?;
        cu!(cuStreamDestroy_v2(first))?;
        cu!(cuStreamDestroy_v2(second))?;
    }
    same("words", buffer.read()?, vec![2; WORDS]).map_err(short)
}

fn events() -> Outcome {
    context()?;
    let (mut begin, mut end, mut milliseconds) = (null_mut(), null_mut(), 0f32);
    // SAFETY: each handle is used between its creation and its destruction.
    unsafe {
        cu!(cuEventCreate(&mut begin, 0))?;
        cu!(cuEventCreate(&mut end, 0))?;
        cu!(cuEventRecord(begin, null_mut()))?;
        cu!(cuEventRecord(end, null_mut()))?;
        cu!(cuEventSynchronize(end))?;
        cu!(cuEventElapsedTime(&mut milliseconds, begin, end))?;
        cu!(cuEventDestroy_v2(begin))?;
        cu!(cuEventDestroy_v2(end))?;
    }
    println!("# {milliseconds} ms between two events");
    holds("time passes", milliseconds >= 0.0)
}

fn managed() -> Outcome {
    context()?;
    let mut at = 0;
    // SAFETY: the memory has BYTES bytes, on the host and the GPU, and is freed once.
    unsafe {
        cu!(cuMemAllocManaged(&mut at, BYTES, 1))?;
        let words = std::slice::from_raw_parts_mut(
            std::ptr::with_exposed_provenance_mut::<u32>(at as usize),
            WORDS,
        );
        words.copy_from_slice(&pattern(3));
        cu!(cuMemPrefetchAsync(at, BYTES, 0, null_mut()))?;
        cu!(cuCtxSynchronize())?;
        cu!(cuMemsetD32_v2(at, 7, WORDS / 2))?;
        cu!(cuCtxSynchronize())?;
        let mut expected = pattern(3);
        expected[..WORDS / 2].fill(7);
        let read = words.to_vec();
        cu!(cuMemFree_v2(at))?;
        same("words", read, expected).map_err(short)
    }
}

/// Returns the function of the kernels' module called `name`.
pub(crate) fn function(name: &CStr) -> Result<Handle, Stop> {
    context()?;
    static KERNELS: &str = concat!(include_str!("kernels.ptx"), "\0");
    let (mut module, mut function) = (null_mut(), null_mut());
    // SAFETY: the text and the name end with a zero byte.
    unsafe {
        cu!(cuModuleLoadData(&mut module, KERNELS.as_ptr().cast()))?;
        cu!(cuModuleGetFunction(&mut function, module, name.as_ptr()))?;
    }
    Ok(function)
}

/// Fills more managed memory than the limits of the tests leave, on the GPU, and reads a part.
fn managed_beyond() -> Outcome {
    const BYTES: usize = 100 << 20;
    context()?;
    let mut at = 0;
    // SAFETY: the memory has BYTES bytes, on the host and the GPU, and is freed once.
    unsafe {
        cu!(cuMemAllocManaged(&mut at, BYTES, 1))?;
        for value in 1..=2 {
            cu!(cuMemsetD32_v2(at, value, BYTES / 4))?;
            cu!(cuCtxSynchronize())?;
        }
        let words = std::slice::from_raw_parts(
            std::ptr::with_exposed_provenance::<u32>(at as usize),
            BYTES / 4,
        );
        let wrong = words
            .iter()
            .step_by(1021)
            .filter(|word| **word != 2)
            .count();
        cu!(cuMemFree_v2(at))?;
        same("wrong words", wrong, 0)
    }
}

fn module_is_loaded() -> Outcome {
    function(c"fill").map(drop)
}

/// Launches the kernel that fills a buffer with a value.
pub(crate) fn fill(kernel: Handle, buffer: &Buffer, value: u32, stream: Handle) -> Outcome {
    fill_words(kernel, buffer, (value, WORDS as u32), stream)
}

/// Launches the kernel that stores a value in so many words.
fn fill_words(
    kernel: Handle,
    buffer: &Buffer,
    (mut value, mut count): (u32, u32),
    stream: Handle,
) -> Outcome {
    let mut at = buffer.0;
    let mut arguments: [*mut c_void; 3] = [
        addr_of_mut!(at).cast(),
        addr_of_mut!(value).cast(),
        addr_of_mut!(count).cast(),
    ];
    let blocks = count / 256;
    // SAFETY: the arguments are those of the kernel.
    unsafe {
        cu!(cuLaunchKernel(
            kernel,
            blocks,
            1,
            1,
            256,
            1,
            1,
            0,
            stream,
            arguments.as_mut_ptr(),
            null_mut()
        ))
    }
}

fn launch() -> Outcome {
    let (kernel, buffer) = (function(c"fill")?, Buffer::new(BYTES)?);
    fill(kernel, &buffer, 42, null_mut())?;
    // SAFETY: nothing is passed.
    unsafe { cu!(cuCtxSynchronize())? };
    same("words", buffer.read()?, vec![42; WORDS]).map_err(short)
}

/// Makes launches of 2^16 blocks, one after the other.
fn long_launches() -> Outcome {
    const BLOCKS: usize = 1 << 16;
    const LENGTH: usize = BLOCKS * 256;
    let (kernel, buffer) = (function(c"fill")?, Buffer::new(4 * LENGTH)?);
    for value in 1..=4 {
        fill_words(kernel, &buffer, (value, LENGTH as u32), null_mut())?;
        // SAFETY: nothing is passed.
        unsafe { cu!(cuCtxSynchronize())? };
    }
    let words = buffer.read_from(4 * LENGTH - BYTES)?;
    same("words", words, vec![4; WORDS]).map_err(short)
}

fn graph() -> Outcome {
    replay_while(|_| false)
}

/// Replays a graph in rounds, as `rounds` launches.
fn replays() -> Outcome {
    let input = std::thread::spawn(end_of_input);
    replay_while(|round| {
        println!("# round {round}");
        std::thread::sleep(Duration::from_millis(50));
        !input.is_finished()
    })
}

/// Replays a graph again and again while another round is wanted.
fn replay_while(mut more: impl FnMut(u32) -> bool) -> Outcome {
    let (kernel, buffer) = (function(c"fill")?, Buffer::new(BYTES)?);
    let (mut stream, mut graph, mut replay) = (null_mut(), null_mut(), null_mut());
    // SAFETY: each handle is used between its creation and its destruction.
    unsafe {
        cu!(cuStreamCreate(&mut stream, 1))?;
        cu!(cuStreamBeginCapture_v2(stream, 0))?;
        for value in 0..4 {
            fill(kernel, &buffer, value, stream)?;
        }
        cu!(cuStreamEndCapture(stream, &mut graph))?;
        cu!(cuGraphInstantiateWithFlags(&mut replay, graph, 0))?;
        for round in 1.. {
            cu!(cuGraphLaunch(replay, stream))?;
            cu!(cuStreamSynchronize(stream))?;
            if !more(round) {
                break;
            }
        }
        cu!(cuGraphExecDestroy(replay))?;
        cu!(cuGraphDestroy(graph))?;
        cu!(cuStreamDestroy_v2(stream))?;
    }
    same("words", buffer.read()?, vec![3; WORDS]).map_err(short)
}

/// Launches after a child has closed all that it inherited.
fn fork() -> Outcome {
    let (kernel, buffer) = (function(c"fill")?, Buffer::new(BYTES)?);
    // SAFETY: the child calls nothing but _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: `status` is a place for a number.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    same("child", (waited == child, status), (true, 0))?;
    fill(kernel, &buffer, 5, null_mut())?;
    same("words", buffer.read()?, vec![5; WORDS]).map_err(short)
}

/// Waits until standard input ends.
pub(crate) fn end_of_input() -> Outcome {
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

/// Launches once in each round until standard input ends, and says when each launch has ended.
fn rounds() -> Outcome {
    let (kernel, buffer) = (function(c"fill")?, Buffer::new(BYTES)?);
    let input = std::thread::spawn(end_of_input);
    let mut value = 0;
    while !input.is_finished() {
        value += 1;
        fill(kernel, &buffer, value, null_mut())?;
        // SAFETY: nothing is passed.
        unsafe { cu!(cuCtxSynchronize())? };
        println!("# round {value}");
        std::thread::sleep(Duration::from_millis(50));
    }
    same("words", buffer.read()?, vec![value; WORDS]).map_err(short)
}

/// Stores where there is no memory. The context is lost, and says so: by the error of the GPU's
/// SMs, which the software GPU does not have, CUDA_ERROR_ILLEGAL_ADDRESS; without it the other.
fn wild_store() -> Outcome {
    let nowhere = ManuallyDrop::new(Buffer(0x5_0000_0000));
    fill(function(c"fill")?, &nowhere, 1, null_mut())?;
    // SAFETY: nothing is passed.
    let outcome = unsafe { cu!(cuCtxSynchronize()) };
    let expected = ["CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED"];
    match outcome {
        Err(Stop::Failed(why)) if expected.iter().any(|error| why.contains(error)) => Ok(()),
        other => Err(failed(format!("{other:?}"))),
    }
}

fn context_is_destroyed() -> Outcome {
    // SAFETY: no later step uses the context.
    unsafe { cu!(cuCtxDestroy_v2(context()?)) }
}
