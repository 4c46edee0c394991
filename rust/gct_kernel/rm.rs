// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Calls the resource manager. No other module does.
//!
//! All calls run with the kernel's rights, in whatever process happens to run, on names that a
//! tenant may have chosen. The calls here that name a tenant's object
//!
//! | call | accepts | why a tenant gains nothing |
//! |---|---|---|
//! | [`class_of`], [`is_gone`], [`memory_bytes`] | any name | they ask; its counts show it |
//! | [`gpu_of_subdevice`], [`topology`] | any subdevice | as above |
//! | [`send`] | what the core follows, by its class | the core builds command and values |
//! | [`free`] | what the ioctl in progress has made | its maker may free it, too |
//!
//! [`own`] has the driver's clients: what they take of tenants is said there.

pub(crate) mod own;

use crate::bindings;
use crate::state::Glue;
use crate::uvm::Gpu;
use gct_core::limits;
use gct_core::memory::accounts::Victim;
use gct_core::rmapi::control::{self, Control, Status};
use gct_core::rmapi::{query, Class, Handle};
use gct_core::topology::Topology;
use kernel::ffi::c_int;
use kernel::prelude::*;

/// Prevents suspension of the GPUs while it exists: holds the driver's `nv_system_pm_lock` for
/// reading. The driver holds that lock during an ioctl, so a hook of an ioctl must not make one.
pub(crate) struct SystemPmGuard(());

impl SystemPmGuard {
    /// Waits until no suspension is in progress.
    ///
    /// # Errors
    ///
    /// EINTR if a signal comes first.
    pub(crate) fn interruptible() -> Result<Self, c_int> {
        // SAFETY: may sleep, and the lock must not be held: callers are writes of the tree's files,
        // in process context and without a lock of the driver.
        match unsafe { bindings::gct_helper_rm_begin(true) } {
            0 => Ok(Self(())),
            errno => Err(errno),
        }
    }

    /// Waits until no suspension is in progress, and ignores signals.
    pub(crate) fn patient() -> Self {
        // SAFETY: as above; the caller is the work item. It cannot fail, as no signal interrupts
        // it.
        unsafe { bindings::gct_helper_rm_begin(false) };
        Self(())
    }

    /// Returns `None` while the GPUs are suspended, or somebody waits to suspend them.
    pub(crate) fn attempt() -> Option<Self> {
        // SAFETY: has no preconditions.
        let is_held = unsafe { bindings::gct_helper_rm_try_begin() };
        // A guard that is made and dropped would release what was not taken.
        is_held.then(|| Self(()))
    }
}

impl Drop for SystemPmGuard {
    fn drop(&mut self) {
        // SAFETY: this value was made by a `begin` that succeeded, and ends it once.
        unsafe { bindings::gct_helper_rm_end() };
    }
}

/// Sends a control and stores the answer in it. The caller may sleep, holds no lock of the resource
/// manager, and is in an ioctl or has a [`SystemPmGuard`].
///
/// # Errors
///
/// The status with which the resource manager refuses.
pub(crate) fn send(control: &mut Control) -> Result<(), Status> {
    let (client, object, command) = (control.client, control.object, control.command);
    let params = control.params();
    let size = u32::try_from(params.len()).unwrap_or(0);
    // SAFETY: `params` is writable and `size` bytes long. Handles may be any numbers: the resource
    // manager looks them up.
    let status = unsafe {
        bindings::gct_helper_rm_control(client, object, command, params.as_mut_ptr().cast(), size)
    };
    match status {
        0 => Ok(()),
        status => Err(status),
    }
}

/// Sends a query with parameters of any size, into which the resource manager writes. The caller is
/// as for [`send`].
fn query(client: Handle, object: Handle, command: u32, params: &mut [u8]) -> bool {
    let size = u32::try_from(params.len()).unwrap_or(0);
    // SAFETY: as in `send`.
    let status = unsafe {
        bindings::gct_helper_rm_control(client, object, command, params.as_mut_ptr().cast(), size)
    };
    status == 0
}

/// Returns the TPCs of a subdevice's GPU. The caller is as for [`send`].
pub(crate) fn topology(client: Handle, subdevice: Handle) -> Option<Topology> {
    let mut arch = [0; query::ARCH_BYTES];
    query(client, subdevice, query::ARCH_INFO, &mut arch).then_some(())?;
    let mut list = query::gr_list();
    // CAST: an address of the kernel, to which the resource manager writes in this call.
    let params = query::gr_params(list.as_mut_ptr() as u64);
    let mut bytes = [0; 32];
    for (to, word) in bytes.chunks_exact_mut(4).zip(params) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    query(client, subdevice, query::GR_INFO, &mut bytes).then_some(())?;
    let chip = query::chip(&arch, &list)?;
    let most = query::SM_ORDER_BYTES[0];
    let mut order = KVVec::from_elem(0u8, most, GFP_KERNEL).ok()?;
    query::SM_ORDER_BYTES.into_iter().find_map(|bytes| {
        let order = order.get_mut(..bytes)?;
        query(client, subdevice, query::SM_ORDER, order).then_some(())?;
        Topology::from_sm_order(chip, query::sms(order)?)
    })
}

/// Returns the resource manager's number of a subdevice's GPU.
pub(crate) fn gpu_of_subdevice(client: Handle, subdevice: Handle) -> Option<u64> {
    let mut control = Control::gpu_of_subdevice(client, subdevice);
    send(&mut control).ok()?;
    Some(u64::from(control.gpu()))
}

/// Returns the resource manager's number of the GPU that has a device instance. Instances are
/// numbered in the order in which GPUs are initialised, so each GPU is asked for its own.
pub(crate) fn gpu_of_instance(glue: &Glue, client: Handle, instance: u64) -> Option<u64> {
    let mut gpus = [0; limits::GPUS_MAX];
    let count = glue.with(|state, _| Ok(state.gpu_rm_ids(&mut gpus))).ok()?;
    gpus.iter().take(count).find_map(|gpu| {
        let mut control = Control::instance_of_gpu(client, *gpu);
        send(&mut control).ok()?;
        (u64::from(control.instance()) == instance).then_some(u64::from(*gpu))
    })
}

/// Returns the class number of a client's object.
///
/// # Errors
///
/// The status with which the resource manager refuses to tell, for example if there is no such
/// object.
pub(crate) fn class_of(client: Handle, object: Handle) -> Result<u32, Status> {
    let mut control = Control::class_of(client, object);
    send(&mut control)?;
    Ok(control.class())
}

/// Returns whether a client's object is gone. If the resource manager does not tell, it is not.
pub(crate) fn is_gone(client: Handle, object: Handle, class: Class) -> bool {
    if class_of(client, object).is_err_and(control::is_gone) {
        return true;
    }
    let probe = Control::probe(client, object, class);
    probe.is_some_and(|mut control| send(&mut control) == Err(control::RESOURCE_LOST))
}

/// Returns the bytes of an object in device memory.
pub(crate) fn memory_bytes(client: Handle, memory: Handle) -> Option<u64> {
    // SAFETY: any handles are valid, as for `send`.
    let bytes = unsafe { bindings::gct_helper_rm_memory_bytes(client, memory) };
    (bytes != 0).then_some(bytes)
}

/// Frees an object of a client. The context is that of [`send`].
///
/// # Errors
///
/// The status with which the resource manager refuses.
pub(crate) fn free(client: Handle, object: Handle) -> Result<(), Status> {
    // SAFETY: takes any numbers: the resource manager looks them up.
    match unsafe { bindings::gct_helper_rm_free(client, object) } {
        0 => Ok(()),
        status => Err(status),
    }
}

/// Has nvidia-uvm evict a root of a victim on a GPU, which it knows as `gpu`. It `keeps` the root
/// for its own allocations, or gives one back to the resource manager. Returns whether it did
/// evict. The caller may sleep, holds no lock of nvidia-uvm or of the resource manager, and is in
/// an ioctl or has a [`SystemPmGuard`].
pub(crate) fn evict(uuid: &[u8; 16], gpu: *const Gpu, victim: Victim, keeps: bool) -> bool {
    let (uuid, gpu) = (uuid.as_ptr(), gpu.cast_mut().cast());
    // SAFETY: `uuid` is 16 bytes long. nvidia-uvm compares `gpu`, and does not follow it unless it
    // still has its own reference to it.
    unsafe { bindings::gct_helper_uvm_evict(uuid, gpu, victim.0, keeps.into()) == 0 }
}
