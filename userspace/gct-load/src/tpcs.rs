// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which bits of the TPC mask have a TPC. The driver does not say, and they have holes.

use crate::gpu::{Gpu, Stamp};
use anyhow::{bail, ensure, Context, Result};
use core::ffi::{c_char, c_int, c_void};
use std::ffi::CString;

/// `gctgroup_restrict` of libgct_preload.
type Restrict = unsafe extern "C" fn(*const c_char) -> c_int;

/// The user-space mode's function by which a program restricts itself.
fn restrict() -> Result<Restrict> {
    // SAFETY: looks a symbol up by name.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"gctgroup_restrict".as_ptr()) };
    ensure!(!symbol.is_null(), "libgct_preload.so is not loaded");
    // SAFETY: the library declares it with this type.
    Ok(unsafe { core::mem::transmute::<*mut c_void, Restrict>(symbol) })
}

/// SMs on which the blocks of one launch ran.
fn sms(gpu: &Gpu, stamp: &mut Stamp) -> Result<usize> {
    let stream = gpu.context.default_stream();
    stream.memset_zeros(&mut stamp.sms)?;
    gpu.launch_stamp(&stream, stamp)?;
    let sms = stream.clone_dtoh(&stamp.sms)?;
    Ok(sms.iter().filter(|&&blocks| blocks > 0).count())
}

/// The bits below `bits` that have a TPC, as a list.
pub(crate) fn present(gpu: &Gpu, bits: u32) -> Result<String> {
    let restrict = restrict()?;
    let mut stamp = Gpu::stamp_room(&gpu.context.default_stream(), (600, 1, 1), 128, 20_000)?;
    // A launch on no TPC at all would hang, so one that is there is always allowed.
    let anchor = 0;
    let alone = run_on(restrict, gpu, &mut stamp, &anchor.to_string())?;
    if alone == 0 {
        bail!("bit {anchor} has no TPC");
    }
    let mut list = vec![anchor.to_string()];
    for bit in 1..bits {
        let both = run_on(restrict, gpu, &mut stamp, &format!("{anchor},{bit}"))?;
        if both > alone {
            list.push(bit.to_string());
        }
    }
    Ok(list.join(","))
}

fn run_on(restrict: Restrict, gpu: &Gpu, stamp: &mut Stamp, list: &str) -> Result<usize> {
    let list = CString::new(list).context("a list has no NUL")?;
    // SAFETY: the string lives for the call.
    let status = unsafe { restrict(list.as_ptr()) };
    ensure!(status == 0, "the list {list:?} was refused: errno {status}");
    sms(gpu, stamp)
}
