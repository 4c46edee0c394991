// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How many blocks ended when, counted by the blocks themselves with the GPU's clock.

use crate::gpu::Gpu;
use crate::latency::{unix_ns, Window};
use anyhow::{ensure, Context, Result};
use cudarc::driver::{CudaSlice, CudaStream};
use serde::Serialize;
use std::sync::Arc;

/// A bin lasts 2^14 ns.
const SHIFT: u32 = 14;
/// How often the two clocks are compared; the quickest comparison counts.
const COMPARISONS: usize = 50;
/// Of blocks that end after the window, in seconds.
const REST: f64 = 0.1;

/// Bins on the GPU.
pub(crate) struct Timeline {
    pub(crate) bins: CudaSlice<u32>,
    /// When the first bin begins, by the GPU's clock.
    pub(crate) base: u64,
    /// The same in Unix time.
    origin_ns: u64,
}

impl Timeline {
    pub(crate) const SHIFT: u32 = SHIFT;

    /// Bins that begin with the window.
    pub(crate) fn new(gpu: &Gpu, stream: &Arc<CudaStream>, window: Window) -> Result<Self> {
        let ahead = clock_ahead(gpu, stream)?;
        // CAST: some seconds, in nanoseconds.
        let origin_ns = ((window.start_at * 1e9) as u64).max(unix_ns()?);
        let base = i64::try_from(origin_ns)? + ahead;
        // CAST: as above.
        let bins = ((window.seconds + REST) * 1e9) as usize >> SHIFT;
        Ok(Self {
            bins: stream.alloc_zeros(bins + 1)?,
            base: u64::try_from(base).context("the GPU's clock")?,
            origin_ns,
        })
    }

    pub(crate) fn report(&self, stream: &Arc<CudaStream>) -> Result<Report> {
        Ok(Report {
            origin_ns: self.origin_ns,
            bin_ns: 1 << SHIFT,
            blocks: stream.clone_dtoh(&self.bins)?,
        })
    }
}

/// Blocks that ended in each bin.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// When the first bin begins, in nanoseconds of Unix time.
    origin_ns: u64,
    bin_ns: u64,
    blocks: Vec<u32>,
}

/// By how much the GPU's clock is ahead of Unix time, in nanoseconds, to some microseconds.
fn clock_ahead(gpu: &Gpu, stream: &Arc<CudaStream>) -> Result<i64> {
    let mut word = stream.alloc_zeros::<u64>(1)?;
    let mut best = None;
    for _ in 0..COMPARISONS {
        stream.synchronize()?;
        let before = unix_ns()?;
        gpu.launch_clock(stream, &mut word)?;
        stream.synchronize()?;
        let after = unix_ns()?;
        let time = stream.clone_dtoh(&word)?.first().copied().unwrap_or(0);
        ensure!(time > 0, "the GPU has no clock");
        let took = after.saturating_sub(before);
        let middle = i64::try_from(before + took / 2)?;
        let ahead = i64::try_from(time)? - middle;
        if best.is_none_or(|(quickest, _)| took < quickest) {
            best = Some((took, ahead));
        }
    }
    Ok(best.context("no comparison of the clocks")?.1)
}
