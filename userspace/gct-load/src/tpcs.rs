// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that each TPC that the resource manager reports has SMs, and that these are all SMs.

use crate::gpu::{Gpu, Stamp};
use anyhow::{ensure, Context, Result};
use core::ffi::{c_char, c_int, c_void};
use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
use std::collections::BTreeSet;
use std::ffi::CString;

/// `gctgroup_restrict` of libgct_preload.
type Restrict = unsafe extern "C" fn(*const c_char) -> c_int;

/// Returns the library's function with which a program restricts itself.
fn restrict() -> Result<Restrict> {
    // SAFETY: `dlsym` with a valid C string.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"gctgroup_restrict".as_ptr()) };
    ensure!(
        !symbol.is_null(),
        "tpcs needs the user-space mode's library: LD_PRELOAD=libgct_preload.so gct-load tpcs"
    );
    // SAFETY: the library declares the symbol with this type.
    Ok(unsafe { core::mem::transmute::<*mut c_void, Restrict>(symbol) })
}

/// Restricts this program's launches to a TPC. Returns `false` if there is no such TPC.
fn keep_to(restrict: Restrict, tpc: u32) -> Result<bool> {
    let list = CString::new(tpc.to_string()).context("a number has no NUL")?;
    // SAFETY: the string lives for the call.
    match unsafe { restrict(list.as_ptr()) } {
        0 => Ok(true),
        libc::ERANGE => Ok(false),
        errno => anyhow::bail!("TPC {tpc} was refused: errno {errno}"),
    }
}

/// Launches once and returns the SMs on which its blocks ran.
fn sms(gpu: &Gpu, stamp: &mut Stamp) -> Result<BTreeSet<usize>> {
    let stream = gpu.context.default_stream();
    stream.memset_zeros(&mut stamp.sms)?;
    Ok(gpu.sms_used(stamp)?.into_keys().collect())
}

/// Returns the TPCs below `bits` that exist, as a list.
///
/// # Errors
///
/// Fails unless each TPC has two SMs of its own, and all together have all SMs of the GPU.
pub(crate) fn present(gpu: &Gpu, bits: u32) -> Result<String> {
    let restrict = restrict()?;
    // Before the first restriction, since a program sees the SMs that its limits leave.
    let count = gpu
        .context
        .attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let mut stamp = Gpu::alloc_stamp(&gpu.context.default_stream(), (600, 1, 1), 128, 20_000)?;
    let (mut list, mut all) = (Vec::new(), BTreeSet::new());
    // The library learns the GPU from a first launch.
    sms(gpu, &mut stamp)?;
    for tpc in 0..bits {
        if keep_to(restrict, tpc)? {
            let sms = sms(gpu, &mut stamp)?;
            ensure!(sms.len() == 2, "TPC {tpc} has {} SMs: {sms:?}", sms.len());
            ensure!(
                all.is_disjoint(&sms),
                "TPC {tpc} has SMs of another: {sms:?}"
            );
            all.extend(sms);
            list.push(tpc.to_string());
        }
    }
    ensure!(
        usize::try_from(count) == Ok(all.len()),
        "the TPCs {} have {} of {count} SMs",
        list.join(","),
        all.len()
    );
    Ok(list.join(","))
}
