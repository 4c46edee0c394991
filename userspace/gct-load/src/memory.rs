// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory pressure: allocates by one of CUDA's ways until there is no more.

use crate::gpu::Gpu;
use anyhow::{bail, ensure, Result};
use clap::ValueEnum;
use cudarc::driver::sys::{self, CUresult};
use serde::Serialize;
use std::io::{BufRead, Write};

/// A way to allocate device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
pub(crate) enum Way {
    /// `cuMemAlloc`
    Alloc,
    /// `cuMemAllocAsync`, from the device's pool
    Async,
    /// `cuMemAllocPitch`
    Pitch,
    /// `cuMemCreate`, without an address
    Create,
    /// `cuArrayCreate`
    Array,
    /// `cuMemAllocManaged`, touched on the device
    Managed,
}

/// What could be had.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    way: Way,
    mib: usize,
    /// What ended it: CUDA's error, or nothing.
    error: Option<String>,
}

/// Bytes of a row of what is allocated by rows.
const ROW: usize = 1 << 20;

/// Allocates up to `mib` in steps of `step_mib` and says what it got. If `hold`, keeps it until a
/// line comes on standard input, frees then what has an address, and goes on until the input ends.
pub(crate) fn run(gpu: &Gpu, way: Way, mib: usize, step_mib: usize, hold: bool) -> Result<()> {
    if step_mib == 0 {
        bail!("a step has at least one MiB");
    }
    let mut report = Report {
        way,
        mib: 0,
        error: None,
    };
    let mut addresses = Vec::new();
    while report.mib < mib {
        match step(gpu, way, step_mib << 20) {
            Ok(address) => addresses.extend(address),
            Err(status) => {
                report.error = Some(format!("{status:?}"));
                break;
            }
        }
        report.mib += step_mib;
    }
    println!("{}", serde_json::to_string(&report)?);
    std::io::stdout().flush()?;
    if hold {
        // It ends with whoever started this.
        let mut lines = std::io::stdin().lock().lines();
        if lines.next().is_some() {
            for address in addresses {
                // SAFETY: a step has allocated it, and nothing uses it.
                let status = unsafe { sys::cuMemFree_v2(address) };
                ensure!(status == CUresult::CUDA_SUCCESS, "{status:?}");
            }
        }
        lines.for_each(drop);
    }
    Ok(())
}

/// One step: its address if it has one. It lives as long as the program or until it is freed.
fn step(gpu: &Gpu, way: Way, bytes: usize) -> Result<Option<sys::CUdeviceptr>, CUresult> {
    let stream = gpu.context.default_stream();
    let mut address = 0;
    let at: *mut sys::CUdeviceptr = &mut address;
    // SAFETY: each call writes to a place of its own on this stack and reads descriptions that
    // live for the call; a context is current, since `gpu` has one.
    let status = unsafe {
        match way {
            Way::Alloc => sys::cuMemAlloc_v2(at, bytes),
            Way::Async => {
                let status = sys::cuMemAllocAsync(at, bytes, stream.cu_stream());
                match status {
                    CUresult::CUDA_SUCCESS => sys::cuStreamSynchronize(stream.cu_stream()),
                    status => status,
                }
            }
            Way::Pitch => {
                let mut pitch = 0;
                sys::cuMemAllocPitch_v2(at, &mut pitch, ROW, bytes / ROW, 4)
            }
            Way::Create => create(bytes),
            Way::Array => array(bytes),
            Way::Managed => {
                let flags = sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
                match sys::cuMemAllocManaged(at, bytes, flags as u32) {
                    CUresult::CUDA_SUCCESS => {
                        let fill = sys::cuMemsetD8_v2(*at, 1, bytes);
                        match fill {
                            CUresult::CUDA_SUCCESS => sys::cuCtxSynchronize(),
                            status => status,
                        }
                    }
                    status => status,
                }
            }
        }
    };
    match status {
        CUresult::CUDA_SUCCESS => Ok((address != 0).then_some(address)),
        status => Err(status),
    }
}

/// # Safety
///
/// A context is current.
unsafe fn create(bytes: usize) -> CUresult {
    let mut handle = 0;
    // SAFETY: all zero is a description of nothing, of which the fields that matter are set.
    let mut what: sys::CUmemAllocationProp = unsafe { core::mem::zeroed() };
    what.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    // SAFETY: both live for the call.
    unsafe { sys::cuMemCreate(&mut handle, bytes, &what, 0) }
}

/// # Safety
///
/// A context is current.
unsafe fn array(bytes: usize) -> CUresult {
    let mut handle = core::ptr::null_mut();
    const SIDE: usize = 16_384;
    let what = sys::CUDA_ARRAY_DESCRIPTOR {
        Width: SIDE,
        Height: (bytes / SIDE / 4).max(1),
        Format: sys::CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32,
        NumChannels: 1,
    };
    // SAFETY: both live for the call.
    unsafe { sys::cuArrayCreate_v2(&mut handle, &what) }
}
