// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Allocates device memory with one of CUDA's functions until none is left.

use crate::gpu::Gpu;
use anyhow::{bail, ensure, Result};
use clap::ValueEnum;
use cudarc::driver::sys::{self, CUresult};
use serde::Serialize;
use std::io::{BufRead, Write};

/// A function that allocates device memory.
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

/// The memory that could be allocated.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    way: Way,
    mib: usize,
    /// CUDA's error that ended it, if there was one.
    error: Option<String>,
}

/// Bytes of a row of pitched memory.
const ROW: usize = 1 << 20;

/// Allocates up to `mib` in steps of `step_mib`, and prints how much it got.
///
/// With `hold`, keeps the memory until a line on standard input, frees the allocations that have an
/// address, and returns at the end of input.
pub(crate) fn run(gpu: &Gpu, way: Way, mib: usize, step_mib: usize, hold: bool) -> Result<()> {
    if step_mib == 0 {
        bail!("--step-mib must be at least 1");
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
        // The input ends with the parent.
        let mut lines = std::io::stdin().lock().lines();
        if lines.next().is_some() {
            for address in addresses {
                // SAFETY: `step` has allocated it, and nothing uses it.
                let status = unsafe { sys::cuMemFree_v2(address) };
                ensure!(status == CUresult::CUDA_SUCCESS, "{status:?}");
            }
        }
        lines.for_each(drop);
    }
    Ok(())
}

/// Allocates once. Returns the address if the allocation has one. It lives until it is freed or the
/// program exits.
fn step(gpu: &Gpu, way: Way, bytes: usize) -> Result<Option<sys::CUdeviceptr>, CUresult> {
    let stream = gpu.context.default_stream();
    let mut address = 0;
    let at: *mut sys::CUdeviceptr = &mut address;
    // SAFETY: each call writes to a variable of this function and reads descriptions that outlive
    // the call. `gpu` holds a current context.
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

/// Allocates with `cuMemCreate`.
///
/// # Safety
///
/// A context is current.
unsafe fn create(bytes: usize) -> CUresult {
    let mut handle = 0;
    // SAFETY: all zero is a valid value of this plain structure.
    let mut what: sys::CUmemAllocationProp = unsafe { core::mem::zeroed() };
    what.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    // SAFETY: both pointers are valid for the call.
    unsafe { sys::cuMemCreate(&mut handle, bytes, &what, 0) }
}

/// Allocates with `cuArrayCreate`.
///
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
    // SAFETY: both pointers are valid for the call.
    unsafe { sys::cuArrayCreate_v2(&mut handle, &what) }
}
