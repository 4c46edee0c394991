// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sends controls to the resource manager.

use crate::bindings;
use crate::state::Glue;
use gct_core::limits;
use gct_core::rmapi::control::{self, Control, Status};
use gct_core::rmapi::{Class, Handle};
use kernel::ffi::c_int;

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
        unsafe { bindings::gct_helper_rm_try_begin() }.then_some(Self(()))
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
    match unsafe { bindings::gct_helper_client_free(client, object) } {
        0 => Ok(()),
        status => Err(status),
    }
}
