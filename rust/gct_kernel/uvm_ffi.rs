// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the functions that nvidia-uvm.ko calls. gct.h says what they do.

use crate::bindings;
use crate::evictor;
use crate::ffi::{check_signatures, glue, token};
use crate::state::Glue;
use crate::uvm::{self, Gpu, Reserved};
use gct_core::engine::{HostCharge, Shortage};
use gct_core::memory::accounts::Victim;
use gct_core::memory::{RootId, SlotId};
use gct_core::units::Bytes;
use kernel::ffi::c_void;
use kernel::sync::{Arc, ArcBorrow};

check_signatures!(
    gct_uvm_gpu_add,
    gct_uvm_gpu_remove,
    gct_uvm_account_open,
    gct_uvm_account_close,
    gct_uvm_settle,
    gct_uvm_reserve,
    gct_uvm_reserve_table,
    gct_uvm_cancel,
    gct_uvm_evicted,
    gct_uvm_instead,
    gct_uvm_shortage,
    gct_uvm_host_charge,
    gct_uvm_host_uncharge,
    gct_uvm_take,
    gct_uvm_take_table,
    gct_uvm_drop,
    gct_uvm_holder,
    gct_uvm_use,
    gct_uvm_pick,
);

/// Returns the GPU that UVM passes.
///
/// # Safety
///
/// `gpu` is null, or [`gct_uvm_gpu_add`] returned it and [`gct_uvm_gpu_remove`] has not got it. It
/// is used within the call only.
unsafe fn gpu<'a>(gpu: *mut c_void) -> Option<ArcBorrow<'a, Gpu>> {
    // SAFETY: the caller's contract: `Arc::into_raw` made the pointer, and its reference lives
    // until `gct_uvm_gpu_remove`. Nobody has a mutable one.
    (!gpu.is_null()).then(|| unsafe { ArcBorrow::from_raw(gpu.cast::<Gpu>().cast_const()) })
}

/// Starts the account of a GPU.
///
/// # Safety
///
/// `uuid` is null or points to `GCT_GPU_UUID_BYTES` bytes that do not change during the call.
#[no_mangle]
unsafe extern "C" fn gct_uvm_gpu_add(uuid: *const u8, roots: u32) -> *mut c_void {
    // SAFETY: the caller's contract; null is handled. An array of bytes needs no alignment.
    let uuid: Option<&[u8; 16]> = unsafe { uuid.cast::<[u8; 16]>().as_ref() };
    let added = match (glue(), uuid) {
        (Some(glue), Some(uuid)) => uvm::gpu_add(&glue, *uuid, roots),
        _ => None,
    };
    added.map_or(core::ptr::null_mut(), |gpu| {
        Arc::into_raw(gpu).cast_mut().cast()
    })
}

/// Forgets a GPU.
///
/// # Safety
///
/// `gpu` is null, or [`gct_uvm_gpu_add`] returned it. No other call uses it, now or later.
#[no_mangle]
unsafe extern "C" fn gct_uvm_gpu_remove(gpu: *mut c_void) {
    if gpu.is_null() {
        return;
    }
    // SAFETY: the reference that `gct_uvm_gpu_add` has given away, which comes back once.
    let gpu = unsafe { Arc::from_raw(gpu.cast::<Gpu>().cast_const()) };
    if let Some(glue) = glue() {
        uvm::gpu_remove(&glue, &gpu);
    }
}

/// Opens an account.
///
/// # Safety
///
/// As for [`gpu`]. Any token is valid.
#[no_mangle]
unsafe extern "C" fn gct_uvm_account_open(gpu: *mut c_void, file: *mut c_void) -> u32 {
    // SAFETY: the caller's contract.
    let gpu = unsafe { self::gpu(gpu) };
    let Some(glue) = glue() else { return 0 };
    let opened = uvm::account_open(&glue, gpu.as_deref(), token(file));
    opened.map_or(bindings::GCT_UVM_NO_ACCOUNT, |slot| slot.0)
}

/// Closes an account.
///
/// # Safety
///
/// As for [`gpu`]. Any account is valid.
#[no_mangle]
unsafe extern "C" fn gct_uvm_account_close(gpu: *mut c_void, account: u32) {
    // SAFETY: the caller's contract.
    if let (Some(glue), Some(gpu)) = (glue(), unsafe { self::gpu(gpu) }) {
        uvm::account_close(&glue, &gpu, SlotId(account));
    }
}

/// Charges the process of an account for what it holds.
///
/// # Safety
///
/// As for [`gpu`]. Any account is valid.
#[no_mangle]
unsafe extern "C" fn gct_uvm_settle(gpu: *mut c_void, account: u32) {
    // SAFETY: the caller's contract.
    if let (Some(glue), Some(gpu)) = (glue(), unsafe { self::gpu(gpu) }) {
        gpu.settle(&glue, SlotId(account));
    }
}

/// Charges an account for a root that is about to be taken, or names a victim.
///
/// # Safety
///
/// As for [`gpu`]. Any account is valid. `victim` is null or points to a writable word.
#[no_mangle]
unsafe extern "C" fn gct_uvm_reserve(
    gpu: *mut c_void,
    account: u32,
    tried: u32,
    victim: *mut u32,
) -> u32 {
    // SAFETY: the caller's contract.
    let (Some(glue), Some(gpu)) = (glue(), unsafe { self::gpu(gpu) }) else {
        return 1;
    };
    if tried == bindings::GCT_UVM_ANYWAY {
        gpu.reserve_anyway(&glue, SlotId(account));
        evictor::wake(&glue.uvm.evictors, gpu);
        return 1;
    }
    // SAFETY: the caller's contract; null is handled.
    let victim = unsafe { victim.as_mut() };
    reserve_by(Gpu::reserve, &glue, gpu, SlotId(account), tried, victim)
}

/// Charges an account for a root of page tables, or names a victim.
///
/// # Safety
///
/// As for [`gct_uvm_reserve`].
#[no_mangle]
unsafe extern "C" fn gct_uvm_reserve_table(
    gpu: *mut c_void,
    account: u32,
    tried: u32,
    victim: *mut u32,
) -> u32 {
    // SAFETY: the caller's contract.
    let (Some(glue), Some(gpu)) = (glue(), unsafe { self::gpu(gpu) }) else {
        return 1;
    };
    // SAFETY: the caller's contract; null is handled.
    let victim = unsafe { victim.as_mut() };
    reserve_by(
        Gpu::reserve_table,
        &glue,
        gpu,
        SlotId(account),
        tried,
        victim,
    )
}

/// Reserves a root, and stores the victim if the caller wants one. Returns whether the root is
/// charged.
fn reserve_by(
    reserve: fn(&Gpu, &Glue, SlotId, Option<u32>) -> Reserved,
    glue: &Glue,
    gpu: ArcBorrow<'_, Gpu>,
    slot: SlotId,
    tried: u32,
    victim: Option<&mut u32>,
) -> u32 {
    let reserved = reserve(&gpu, glue, slot, victim.is_some().then_some(tried));
    evictor::wake(&glue.uvm.evictors, gpu);
    if let Some(victim) = victim {
        *victim = match reserved {
            Reserved::Refused(Some(victim)) => victim.0,
            _ => 0,
        };
    }
    u32::from(reserved == Reserved::Granted)
}

/// Takes a charge back for which no root was taken.
///
/// # Safety
///
/// As for [`gpu`]. Any account is valid.
#[no_mangle]
unsafe extern "C" fn gct_uvm_cancel(gpu: *mut c_void, account: u32) {
    // SAFETY: the caller's contract.
    if let Some(gpu) = unsafe { self::gpu(gpu) } {
        gpu.cancel(SlotId(account));
    }
}

/// Counts a root that was evicted for a limit.
///
/// # Safety
///
/// As for [`gpu`]. Any root is valid.
#[no_mangle]
unsafe extern "C" fn gct_uvm_evicted(gpu: *mut c_void, root: u32) {
    // SAFETY: the caller's contract.
    if let (Some(glue), Some(gpu)) = (glue(), unsafe { self::gpu(gpu) }) {
        gpu.evicted(&glue, RootId(root));
    }
}

/// Names the account that gives up a root before another's.
///
/// # Safety
///
/// As for [`gpu`]. Any root is valid.
#[no_mangle]
unsafe extern "C" fn gct_uvm_instead(gpu: *mut c_void, root: u32, tried: u32) -> u32 {
    // SAFETY: the caller's contract.
    let (Some(glue), Some(gpu)) = (glue(), unsafe { self::gpu(gpu) }) else {
        return 0;
    };
    let victim = gpu.instead(&glue, RootId(root), tried);
    victim.map_or(0, |victim| victim.0)
}

/// Says how long a shortage of an account lasts.
///
/// # Safety
///
/// As for [`gpu`]. Any account is valid.
#[no_mangle]
unsafe extern "C" fn gct_uvm_shortage(gpu: *mut c_void, account: u32, failed: u32) -> u32 {
    // SAFETY: the caller's contract.
    let (Some(glue), Some(gpu)) = (glue(), unsafe { self::gpu(gpu) }) else {
        return bindings::GCT_UVM_PASSING;
    };
    match gpu.shortage(&glue, SlotId(account), failed) {
        Shortage::Passing => bindings::GCT_UVM_PASSING,
        Shortage::Renewed => bindings::GCT_UVM_RENEWED,
        Shortage::Lasting => bindings::GCT_UVM_LASTING,
    }
}

/// Charges an account for host memory that an eviction takes.
///
/// # Safety
///
/// As for [`gpu`]. Any account is valid.
#[no_mangle]
unsafe extern "C" fn gct_uvm_host_charge(
    gpu: *mut c_void,
    account: u32,
    bytes: u64,
    for_owner: u32,
) -> u64 {
    // SAFETY: the caller's contract.
    let (Some(glue), Some(gpu)) = (glue(), unsafe { self::gpu(gpu) }) else {
        return HostCharge::NOBODY.0;
    };
    let charged = gpu.charge_host(&glue, SlotId(account), Bytes(bytes), for_owner != 0);
    charged.map_or(bindings::GCT_UVM_REFUSED, |charge| charge.0)
}

/// Uncharges host memory that was freed.
#[no_mangle]
extern "C" fn gct_uvm_host_uncharge(charge: u64, bytes: u64) {
    if let Some(glue) = glue() {
        uvm::uncharge_host(&glue, HostCharge(charge), Bytes(bytes));
    }
}

/// Gives a root to an account.
///
/// # Safety
///
/// As for [`gpu`]. Any root and account are valid.
#[no_mangle]
unsafe extern "C" fn gct_uvm_take(gpu: *mut c_void, root: u32, account: u32) {
    // SAFETY: the caller's contract.
    if let Some(gpu) = unsafe { self::gpu(gpu) } {
        gpu.take(RootId(root), SlotId(account));
    }
}

/// Gives a root for page tables to an account.
///
/// # Safety
///
/// As for [`gpu`]. Any root and account are valid.
#[no_mangle]
unsafe extern "C" fn gct_uvm_take_table(gpu: *mut c_void, root: u32, account: u32) {
    // SAFETY: the caller's contract.
    if let Some(gpu) = unsafe { self::gpu(gpu) } {
        gpu.take_table(RootId(root), SlotId(account));
    }
}

/// Makes a root free.
///
/// # Safety
///
/// As for [`gpu`]. Any root is valid.
#[no_mangle]
unsafe extern "C" fn gct_uvm_drop(gpu: *mut c_void, root: u32) {
    // SAFETY: the caller's contract.
    if let Some(gpu) = unsafe { self::gpu(gpu) } {
        gpu.drop_root(RootId(root));
    }
}

/// Returns the account that holds a root.
///
/// # Safety
///
/// As for [`gpu`]. Any root is valid.
#[no_mangle]
unsafe extern "C" fn gct_uvm_holder(gpu: *mut c_void, root: u32) -> u32 {
    // SAFETY: the caller's contract.
    unsafe { self::gpu(gpu) }.map_or(0, |gpu| gpu.holder(RootId(root)).0)
}

/// Records whether a root was used lately.
///
/// # Safety
///
/// As for [`gpu`]. Any root is valid.
#[no_mangle]
unsafe extern "C" fn gct_uvm_use(gpu: *mut c_void, root: u32, used: u32) {
    // SAFETY: the caller's contract.
    if let Some(gpu) = unsafe { self::gpu(gpu) } {
        gpu.set_used(RootId(root), used != 0);
    }
}

/// Chooses a root that a victim gives up.
///
/// # Safety
///
/// As for [`gpu`]. Any victim is valid. `can_leave` may be called with `pmm` and any root during
/// this call.
#[no_mangle]
unsafe extern "C" fn gct_uvm_pick(
    gpu: *mut c_void,
    victim: u32,
    can_leave: Option<unsafe extern "C" fn(pmm: *mut c_void, root: u32) -> u32>,
    pmm: *mut c_void,
) -> u32 {
    // SAFETY: the caller's contract.
    let (Some(gpu), Some(can_leave)) = (unsafe { self::gpu(gpu) }, can_leave) else {
        return bindings::GCT_UVM_NO_ROOT;
    };
    let picked = gpu.pick(Victim(victim), |root| {
        // SAFETY: the caller's contract.
        unsafe { can_leave(pmm, root.0) != 0 }
    });
    picked.map_or(bindings::GCT_UVM_NO_ROOT, |root| root.0)
}
