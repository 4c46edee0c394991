// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opens a GPU and launches this program's kernels on it.

use crate::attributes::{self, Attribute};
use anyhow::{Context, Result};
use core::ffi::c_void;
use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// More SMs than any GPU has.
pub(crate) const SMS_MAX: usize = 1024;

/// A context on a GPU with the kernels.
pub(crate) struct Gpu {
    pub(crate) context: Arc<CudaContext>,
    stamp: CudaFunction,
    check: CudaFunction,
    /// `None` on GPUs older than Hopper.
    check_dependent: Option<CudaFunction>,
    pub(crate) stamp_range: CudaFunction,
    pub(crate) stamp_persistent: CudaFunction,
    stamp_timed: CudaFunction,
    clock: CudaFunction,
    wait_for: CudaFunction,
    raise_to: CudaFunction,
    pub(crate) meet: CudaFunction,
}

/// The kind of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    /// Clusters of two blocks.
    Cluster,
    /// A cooperative launch: all blocks resident at once.
    Cooperative,
}

/// The arguments of the kernel `stamp`, which spins and counts the runs of each block.
pub(crate) struct Stamp {
    /// Runs of each block.
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
    /// Returns the number of blocks of the grid.
    pub(crate) fn blocks(&self) -> u32 {
        self.grid.0 * self.grid.1 * self.grid.2
    }

    /// Returns the configuration of a launch.
    fn config(&self) -> LaunchConfig {
        LaunchConfig {
            grid_dim: self.grid,
            block_dim: (self.threads, 1, 1),
            shared_mem_bytes: 0,
        }
    }
}

/// What CUDA says of a GPU.
#[derive(Debug, Serialize)]
pub(crate) struct Device {
    /// Major and minor number of the compute capability.
    capability: (i32, i32),
    sms: i32,
}

impl Gpu {
    /// Returns what CUDA says of the GPU.
    pub(crate) fn device(&self) -> Result<Device> {
        Ok(Device {
            capability: self.context.compute_capability()?,
            sms: self
                .context
                .attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        })
    }

    /// Opens GPU `index` and loads the kernels.
    pub(crate) fn open(index: usize) -> Result<Self> {
        let context =
            CudaContext::new(index).with_context(|| format!("GPU {index} cannot be opened"))?;
        Self::load(context)
    }

    /// Opens the same GPU in another context.
    pub(crate) fn another_context(&self) -> Result<Self> {
        let context = CudaContext::new_non_primary(self.context.ordinal(), 0)
            .context("no second context can be made")?;
        Self::load(context)
    }

    fn load(context: Arc<CudaContext>) -> Result<Self> {
        // cudarc would record an event at every launch, which costs time.
        // SAFETY: each buffer is used on one stream, after the stream that created it was
        // synchronised, and freed after its own stream was synchronised.
        unsafe { context.disable_event_tracking() };
        let module = context
            .load_module(Ptx::from_src(include_str!("kernels.ptx")))
            .context("the kernels cannot be loaded")?;
        let hopper = Ptx::from_src(include_str!("kernels_sm90.ptx"));
        let check_dependent = match context.load_module(hopper) {
            Ok(module) => Some(module.load_function("check_dependent")?),
            // The GPU is older than Hopper.
            Err(_) => None,
        };
        Ok(Self {
            stamp: module.load_function("stamp")?,
            check: module.load_function("check")?,
            check_dependent,
            stamp_range: module.load_function("stamp_range")?,
            stamp_persistent: module.load_function("stamp_persistent")?,
            stamp_timed: module.load_function("stamp_timed")?,
            clock: module.load_function("clock")?,
            wait_for: module.load_function("wait_for")?,
            raise_to: module.load_function("raise_to")?,
            meet: module.load_function("meet")?,
            context,
        })
    }

    /// Allocates the counters of a grid, all zero.
    pub(crate) fn alloc_stamp(
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
        let config = s.config();
        let mut launch = stream.launch_builder(&self.stamp);
        launch.arg(&mut s.ran).arg(&mut s.sms).arg(&s.cycles);
        // SAFETY: the arguments are those of `stamp` in kernels.ptx, `ran` has a word for
        // each block and `sms` one for each SM that can exist.
        unsafe { launch.launch(config) }.context("stamp cannot be launched")?;
        Ok(())
    }

    /// Launches `stamp_timed`. Each block counts in the one of `bins` in which it ends: they begin
    /// at `base` by the GPU's clock, and last 2^`shift` nanoseconds each.
    pub(crate) fn launch_timed(
        &self,
        stream: &Arc<CudaStream>,
        s: &Stamp,
        bins: &mut CudaSlice<u32>,
        (base, shift): (u64, u32),
    ) -> Result<()> {
        // CAST: some seconds have far fewer bins than 2^32.
        let count = bins.len() as u32;
        let config = s.config();
        let mut launch = stream.launch_builder(&self.stamp_timed);
        launch.arg(bins).arg(&base);
        launch.arg(&shift).arg(&count).arg(&s.cycles);
        // SAFETY: the arguments are those of `stamp_timed` in kernels.ptx, which counts in the
        // first `count` words of `bins` only.
        unsafe { launch.launch(config) }.context("stamp_timed cannot be launched")?;
        Ok(())
    }

    /// Writes the GPU's clock, in nanoseconds, to `word`.
    pub(crate) fn launch_clock(
        &self,
        stream: &Arc<CudaStream>,
        word: &mut CudaSlice<u64>,
    ) -> Result<()> {
        let mut launch = stream.launch_builder(&self.clock);
        launch.arg(word);
        // SAFETY: `clock` in kernels.ptx writes one word.
        unsafe { launch.launch(LaunchConfig::for_num_elems(1)) }
            .context("clock cannot be launched")?;
        Ok(())
    }

    /// Launches a block that waits until `words[0]` reaches `value`. After `limit_ns` it gives up
    /// and counts in `words[1]`.
    pub(crate) fn launch_wait(
        &self,
        stream: &Arc<CudaStream>,
        words: &CudaSlice<u32>,
        value: u32,
        limit_ns: u64,
    ) -> Result<()> {
        let late = words.slice(1..2);
        let mut launch = stream.launch_builder(&self.wait_for);
        launch.arg(words).arg(&late).arg(&limit_ns).arg(&value);
        // SAFETY: the arguments are those of `wait_for` in kernels.ptx, which writes `late` only.
        unsafe { launch.launch(one_thread()) }.context("wait_for cannot be launched")?;
        Ok(())
    }

    /// Launches a block that stores `value` to `words[0]`.
    pub(crate) fn launch_raise(
        &self,
        stream: &Arc<CudaStream>,
        words: &CudaSlice<u32>,
        value: u32,
    ) -> Result<()> {
        let mut launch = stream.launch_builder(&self.raise_to);
        launch.arg(words).arg(&value);
        // SAFETY: `raise_to` in kernels.ptx writes one word.
        unsafe { launch.launch(one_thread()) }.context("raise_to cannot be launched")?;
        Ok(())
    }

    /// Launches `stamp` and returns how many blocks ran on each SM that was used.
    pub(crate) fn sms_used(&self, stamp: &mut Stamp) -> Result<BTreeMap<usize, u32>> {
        let stream = self.context.default_stream();
        self.launch_stamp(&stream, stamp)?;
        let sms = stream.clone_dtoh(&stamp.sms)?;
        let all = sms.into_iter().enumerate();
        Ok(all.filter(|(_, blocks)| *blocks > 0).collect())
    }

    /// Launches `stamp` as a kind of launch. A cluster launch needs an even width, a cooperative
    /// one a grid that fits onto the GPU.
    pub(crate) fn launch_stamp_as(
        &self,
        kind: Kind,
        stream: &Arc<CudaStream>,
        s: &mut Stamp,
    ) -> Result<()> {
        match kind {
            Kind::Plain => self.launch_stamp(stream, s),
            Kind::Cooperative => {
                let config = s.config();
                let mut launch = stream.launch_builder(&self.stamp);
                launch.arg(&mut s.ran).arg(&mut s.sms).arg(&s.cycles);
                // SAFETY: as in `launch_stamp`.
                unsafe { launch.launch_cooperative(config) }
                    .context("stamp cannot be launched cooperatively")?;
                Ok(())
            }
            Kind::Cluster => {
                let (ran, _ran) = s.ran.device_ptr(stream);
                let (sms, _sms) = s.sms.device_ptr(stream);
                let mut arguments = [address(&ran), address(&sms), address(&s.cycles)];
                // SAFETY: the arguments are those of `stamp`, as in `launch_stamp`.
                unsafe {
                    attributes::launch(
                        stream,
                        &self.stamp,
                        s.grid,
                        s.threads,
                        Attribute::Cluster(2),
                        &mut arguments,
                    )
                }
            }
        }
    }

    /// Launches `check` as a programmatic dependent of the previous launch, if the GPU supports it.
    pub(crate) fn launch_check_dependent(
        &self,
        stream: &Arc<CudaStream>,
        s: &Stamp,
        expected: u32,
        wrong: &mut CudaSlice<u32>,
    ) -> Result<()> {
        let Some(check) = &self.check_dependent else {
            return self.launch_check(stream, s, expected, wrong);
        };
        let blocks = s.blocks();
        let (ran, _ran) = s.ran.device_ptr(stream);
        let (wrong, _wrong) = wrong.device_ptr(stream);
        let mut arguments = [
            address(&ran),
            address(&blocks),
            address(&expected),
            address(&wrong),
        ];
        let grid = LaunchConfig::for_num_elems(blocks);
        // SAFETY: the arguments are those of `check_dependent`, which stays below `blocks`.
        unsafe {
            attributes::launch(
                stream,
                check,
                grid.grid_dim,
                grid.block_dim.0,
                Attribute::ProgrammaticDependent,
                &mut arguments,
            )
        }
    }

    /// Launches `check`, which adds to `wrong` the number of blocks that have not run `expected`
    /// times.
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

/// Returns the configuration of a launch of one thread.
pub(crate) fn one_thread() -> LaunchConfig {
    LaunchConfig {
        grid_dim: (1, 1, 1),
        block_dim: (1, 1, 1),
        shared_mem_bytes: 0,
    }
}

/// Returns the address of a launch's argument, for the driver.
fn address<T>(argument: &T) -> *mut c_void {
    core::ptr::from_ref(argument).cast_mut().cast()
}
