// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts how many blocks ended when. The blocks count themselves, by the GPU's clock.

use crate::gpu::{Gpu, Stamp};
use crate::latency::{unix_ns, Window};
use anyhow::{ensure, Context, Result};
use cudarc::driver::{CudaSlice, CudaStream};
use serde::Serialize;
use std::sync::Arc;

/// Binary logarithm of a bin's length in nanoseconds.
const SHIFT: u32 = 14;
/// Comparisons of the two clocks. The quickest one counts.
const COMPARISONS: usize = 50;
/// Seconds of bins after the window, for its last blocks.
const REST: f64 = 0.1;

/// The bins on the GPU.
pub(crate) struct Timeline {
    bins: CudaSlice<u32>,
    /// The begin of the first bin by the GPU's clock.
    base: u64,
    /// The begin of the first bin in Unix time.
    origin_ns: u64,
}

impl Timeline {
    /// Allocates bins that begin with the window.
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

    /// Launches blocks that count in the bins.
    pub(crate) fn launch(&mut self, gpu: &Gpu, on: &Arc<CudaStream>, stamp: &Stamp) -> Result<()> {
        gpu.launch_timed(on, stamp, &mut self.bins, (self.base, SHIFT))
    }

    /// Reads the bins.
    pub(crate) fn report(&self, stream: &Arc<CudaStream>) -> Result<Report> {
        Ok(Report {
            origin_ns: self.origin_ns,
            bin_ns: 1 << SHIFT,
            blocks: stream.clone_dtoh(&self.bins)?,
        })
    }
}

/// The number of blocks that ended in each bin.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The begin of the first bin, in nanoseconds of Unix time.
    origin_ns: u64,
    bin_ns: u64,
    blocks: Vec<u32>,
}

/// Returns by how many nanoseconds the GPU's clock is ahead of Unix time, exact to some
/// microseconds.
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
