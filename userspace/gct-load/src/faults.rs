// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs a kernel that fails, one that does not end by itself, and some that nobody waits for.

use crate::gpu::{one_thread, Gpu, Stamp};
use crate::latency::unix_ns;
use anyhow::{bail, ensure, Context, Result};
use clap::ValueEnum;
use core::convert::Infallible;
use cudarc::driver::{result, sys, CudaFunction, DriverError, PushKernelArg};
use cudarc::nvrtc::Ptx;
use serde::Serialize;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How a kernel fails.
#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum How {
    /// It stores where nothing is mapped
    Illegal,
    /// A device assert
    Assert,
    /// A trap
    Trap,
}

/// CUDA's error after a fault.
#[derive(Debug, Serialize)]
struct Report {
    how: How,
    error: String,
}

/// The count of a kernel that does not end.
#[derive(Debug, Serialize)]
struct Sample {
    /// Unix time.
    ns: u64,
    count: u64,
}

/// Loads a kernel of `faults.ptx`.
fn kernel(gpu: &Gpu, name: &str) -> Result<CudaFunction> {
    let ptx = Ptx::from_src(include_str!("faults.ptx"));
    let module = gpu.context.load_module(ptx);
    let module = module.context("faults.ptx cannot be loaded")?;
    Ok(module.load_function(name)?)
}

/// Launches a kernel that fails, waits for its error, and lingers: the library looks for faults now
/// and then.
pub(crate) fn fail(gpu: &Gpu, how: How, linger: Duration) -> Result<Infallible> {
    let name = match how {
        How::Illegal => "illegal",
        How::Assert => "assert_false",
        How::Trap => "trap_now",
    };
    let kernel = kernel(gpu, name)?;
    let stream = gpu.context.new_stream()?;
    let mut launch = stream.launch_builder(&kernel);
    // SAFETY: the kernel has no arguments. What it destroys is this program's context.
    unsafe { launch.launch(one_thread()) }?;
    let Err(DriverError(error)) = stream.synchronize() else {
        bail!("{name} did not fail");
    };
    std::thread::sleep(linger);
    println!(
        "{}",
        serde_json::to_string(&Report {
            how,
            error: format!("{error:?}"),
        })?
    );
    std::io::stdout().flush()?;
    // Nothing of a context that has failed can be freed, which cudarc takes for an error.
    std::process::exit(0);
}

/// Launches, and exits without a wait, as a program does that an exception ends.
pub(crate) fn leave(gpu: &Gpu, stamp: &mut Stamp, launches: u32) -> Result<Infallible> {
    let stream = gpu.context.new_stream()?;
    for _ in 0..launches {
        gpu.launch_stamp(&stream, stamp)?;
    }
    std::process::exit(0);
}

/// Runs a kernel that counts until it is told to stop, and prints its count every `every`.
pub(crate) fn persist(gpu: &Gpu, seconds: f64, every: Duration) -> Result<()> {
    let kernel = kernel(gpu, "count_until")?;
    let stream = gpu.context.new_stream()?;
    // SAFETY: allocates; the memory is never freed.
    let at = unsafe { result::malloc_host(16, sys::CU_MEMHOSTALLOC_DEVICEMAP) }?;
    ensure!(!at.is_null(), "no memory that the GPU can write");
    // SAFETY: two aligned words, which nobody but the kernel writes beside this.
    let words = unsafe { &*at.cast::<[AtomicU64; 2]>() };
    words
        .iter()
        .for_each(|word| word.store(0, Ordering::SeqCst));
    let address = at as u64;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&address);
    // SAFETY: the argument is that of `count_until`, which writes the first word alone.
    unsafe { launch.launch(one_thread()) }?;
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        let sample = Sample {
            ns: unix_ns()?,
            count: words[0].load(Ordering::SeqCst),
        };
        println!("{}", serde_json::to_string(&sample)?);
        std::io::stdout().flush()?;
        std::thread::sleep(every);
    }
    words[1].store(1, Ordering::SeqCst);
    Ok(stream.synchronize()?)
}
