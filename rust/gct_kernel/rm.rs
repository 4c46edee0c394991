// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Controls that gctgroup sends to the resource manager.

use crate::bindings;
use crate::state::Glue;
use gct_core::limits;
use gct_core::rmapi::control::{self, Control, Status};
use gct_core::rmapi::{Class, Handle};
use kernel::ffi::c_int;

/// While it lives the GPUs are not suspended. An ioctl's hook has it already and may
/// not take it again.
pub(crate) struct SystemPmGuard(());

impl SystemPmGuard {
    /// Waits for the end of a suspension, or for a signal to the caller.
    pub(crate) fn interruptible() -> Result<Self, c_int> {
        // SAFETY: sleeps, which the callers may: none holds a lock of ours or the
        // driver's.
        match unsafe { bindings::gct_helper_rm_begin(true) } {
            0 => Ok(Self(())),
            errno => Err(errno),
        }
    }

    /// Waits for the end of a suspension, however long.
    pub(crate) fn patient() -> Self {
        // SAFETY: as above. Without signals it cannot fail.
        unsafe { bindings::gct_helper_rm_begin(false) };
        Self(())
    }
}

impl Drop for SystemPmGuard {
    fn drop(&mut self) {
        // SAFETY: begun when this was made.
        unsafe { bindings::gct_helper_rm_end() };
    }
}

/// Sends a control; what comes back is in it. The caller may sleep and holds the
/// driver's power management lock, as every ioctl does.
pub(crate) fn send(control: &mut Control) -> Result<(), Status> {
    let (client, object, command) = (control.client, control.object, control.command);
    let params = control.params();
    let size = u32::try_from(params.len()).unwrap_or(0);
    // SAFETY: `params` is writable and has `size` bytes. The resource manager looks
    // the handles up and takes any number.
    let status = unsafe {
        bindings::gct_helper_rm_control(client, object, command, params.as_mut_ptr().cast(), size)
    };
    match status {
        0 => Ok(()),
        status => Err(status),
    }
}

/// On which GPU a subdevice is, by the resource manager's number of it.
pub(crate) fn gpu_of_subdevice(client: Handle, subdevice: Handle) -> Option<u64> {
    let mut control = Control::gpu_of_subdevice(client, subdevice);
    send(&mut control).ok()?;
    Some(u64::from(control.gpu()))
}

/// The GPU that has a device instance now. Instances are given in the order in
/// which GPUs are initialised, so each GPU is asked for its own.
pub(crate) fn gpu_of_instance(glue: &Glue, client: Handle, instance: u64) -> Option<u64> {
    let mut gpus = [0; limits::GPUS_MAX];
    let count = glue.with(|state, _| Ok(state.gpu_rm_ids(&mut gpus))).ok()?;
    gpus.iter().take(count).find_map(|gpu| {
        let mut control = Control::instance_of_gpu(client, *gpu);
        send(&mut control).ok()?;
        (u64::from(control.instance()) == instance).then_some(u64::from(*gpu))
    })
}

/// The class number of an object that a client has; `Err` with the status if it has none, or the
/// resource manager does not say.
pub(crate) fn class_of(client: Handle, object: Handle) -> Result<u32, Status> {
    let mut control = Control::class_of(client, object);
    send(&mut control)?;
    Ok(control.class())
}

/// Does a client have an object no more? Where the resource manager does not say, it still has it.
pub(crate) fn is_gone(client: Handle, object: Handle, class: Class) -> bool {
    if class_of(client, object).is_err_and(control::is_gone) {
        return true;
    }
    let probe = Control::probe(client, object, class);
    probe.is_some_and(|mut control| send(&mut control) == Err(control::RESOURCE_LOST))
}

/// Bytes of an object that is device memory.
pub(crate) fn memory_bytes(client: Handle, memory: Handle) -> Option<u64> {
    // SAFETY: takes any numbers, like `send`.
    let bytes = unsafe { bindings::gct_helper_rm_memory_bytes(client, memory) };
    (bytes != 0).then_some(bytes)
}
