// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A GPU with this program's kernels loaded.

use anyhow::{Context, Result};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use std::sync::Arc;

/// More SMs than any GPU has.
pub(crate) const SMS_MAX: usize = 1024;

/// A context on one GPU, and its kernels.
pub(crate) struct Gpu {
    pub(crate) context: Arc<CudaContext>,
    stamp: CudaFunction,
    check: CudaFunction,
}

/// One launch of `stamp`: where it counts and how much it works.
pub(crate) struct Stamp {
    /// Launches so far of each block.
    pub(crate) ran: CudaSlice<u32>,
    /// Blocks that ran on each SM.
    pub(crate) sms: CudaSlice<u32>,
    /// The grid, x fastest.
    pub(crate) grid: (u32, u32, u32),
    /// Threads of a block.
    pub(crate) threads: u32,
    /// Clock cycles that a block spins for.
    pub(crate) cycles: u64,
}

impl Stamp {
    /// Blocks of the grid.
    pub(crate) fn blocks(&self) -> u32 {
        self.grid.0 * self.grid.1 * self.grid.2
    }
}

impl Gpu {
    /// Opens GPU `index` and loads the kernels.
    pub(crate) fn open(index: usize) -> Result<Self> {
        let context =
            CudaContext::new(index).with_context(|| format!("GPU {index} cannot be opened"))?;
        let module = context
            .load_module(Ptx::from_src(include_str!("kernels.ptx")))
            .context("the kernels cannot be loaded")?;
        Ok(Self {
            stamp: module.load_function("stamp")?,
            check: module.load_function("check")?,
            context,
        })
    }

    /// Room for a grid's counts, all zero.
    pub(crate) fn stamp_room(
        stream: &Arc<CudaStream>,
        grid: (u32, u32, u32),
        threads: u32,
        cycles: u64,
    ) -> Result<Stamp> {
        // CAST: grids here have far fewer blocks than 2^32.
        let blocks = (grid.0 * grid.1 * grid.2) as usize;
        Ok(Stamp {
            ran: stream.alloc_zeros(blocks)?,
            sms: stream.alloc_zeros(SMS_MAX)?,
            grid,
            threads,
            cycles,
        })
    }

    /// Launches `stamp`.
    pub(crate) fn launch_stamp(&self, stream: &Arc<CudaStream>, s: &mut Stamp) -> Result<()> {
        let config = LaunchConfig {
            grid_dim: s.grid,
            block_dim: (s.threads, 1, 1),
            shared_mem_bytes: 0,
        };
        let mut launch = stream.launch_builder(&self.stamp);
        launch.arg(&mut s.ran).arg(&mut s.sms).arg(&s.cycles);
        // SAFETY: the arguments are those of `stamp` in kernels.ptx, `ran` has a word for
        // each block and `sms` one for each SM that can exist.
        unsafe { launch.launch(config) }.context("stamp cannot be launched")?;
        Ok(())
    }

    /// Launches `check`: `wrong` grows by the number of blocks that have not run
    /// `expected` times.
    pub(crate) fn launch_check(
        &self,
        stream: &Arc<CudaStream>,
        s: &Stamp,
        expected: u32,
        wrong: &mut CudaSlice<u32>,
    ) -> Result<()> {
        let blocks = s.blocks();
        let mut launch = stream.launch_builder(&self.check);
        launch.arg(&s.ran).arg(&blocks).arg(&expected).arg(wrong);
        // SAFETY: the arguments are those of `check` in kernels.ptx, which stays below `blocks`.
        unsafe { launch.launch(LaunchConfig::for_num_elems(blocks)) }
            .context("check cannot be launched")?;
        Ok(())
    }
}
