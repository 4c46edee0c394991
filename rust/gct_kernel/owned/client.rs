// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opens clients of the driver's own: one on each GPU for the parts of owned channels, and one for
//! the time of a control that no tenant's subdevice can take.

use super::view::View;
use crate::bindings;
use crate::rm;
use gct_core::owned;
use gct_core::owned::kit::{self, Params};
use gct_core::rmapi::control::{self, Control, Status};
use gct_core::rmapi::{nv, Handle};
use kernel::prelude::*;
use kernel::sync::atomic::Atomic;

/// A client of the resource manager, with a device, a subdevice and a doorbell. It keeps its GPU
/// initialised.
pub(super) struct Client {
    doorbell: View,
    pub(super) handle: Handle,
    // Fields are dropped in order: the client goes before its GPU is let go.
    _base: Base,
    held: Held,
    /// Number of the next channel's names.
    pub(super) channels: Atomic<u32>,
    /// Number of the next window's name.
    pub(super) windows: Atomic<u32>,
}

/// The error of a refusal, by the resource manager or by a bound.
pub(super) struct Refused;

impl From<kernel::alloc::AllocError> for Refused {
    fn from(_: kernel::alloc::AllocError) -> Self {
        Self
    }
}

pub(super) fn done(status: Status) -> Result<(), Refused> {
    match status {
        0 => Ok(()),
        _ => Err(Refused),
    }
}

/// Keeps a GPU initialised.
struct Held(u32);

impl Held {
    fn new(gpu: u32) -> Result<Self, Refused> {
        // SAFETY: takes any number; sleeps, which hooks around an ioctl may.
        match unsafe { bindings::gct_helper_gpu_hold(gpu) } {
            0 => Ok(Self(gpu)),
            _ => Err(Refused),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: held since `new`.
        unsafe { bindings::gct_helper_gpu_release(self.0) };
    }
}

/// Allocates an object of a client. Returns the parameters, to which the resource manager may have
/// written.
pub(super) fn alloc(
    client: Handle,
    [parent, object]: [Handle; 2],
    class: u32,
    mut params: Params,
) -> Result<Params, Refused> {
    // SAFETY: `params` is writable and has the 256 bytes that the helper asks for.
    let status = unsafe {
        let params = params.0.as_mut_ptr().cast();
        bindings::gct_helper_client_alloc(client, parent, object, class, params)
    };
    done(status).map(|()| params)
}

/// Frees the object of a client that has a handle, if there is one.
pub(super) fn free(client: Handle, object: Handle) {
    // SAFETY: takes any numbers: the resource manager looks them up.
    let _ = unsafe { bindings::gct_helper_client_free(client, object) };
}

/// A client, which is freed when this is dropped.
struct Root(Handle);

impl Drop for Root {
    fn drop(&mut self) {
        free(self.0, self.0);
    }
}

/// A client with a device and a subdevice. It does not keep its GPU initialised.
struct Base(Root);

impl Base {
    /// Opens a client on a GPU that is initialised. The caller may call the resource manager.
    fn open(gpu: u32) -> Result<Self, Refused> {
        let root = Root(alloc(0, [0, 0], nv::NV01_ROOT, Params::client())?.handle());
        let mut instance = Control::instance_of_gpu(root.0, gpu);
        rm::send(&mut instance).map_err(|_| Refused)?;
        let device = Params::device(instance.instance());
        alloc(root.0, [root.0, kit::DEVICE], nv::NV01_DEVICE_0, device)?;
        let below = [kit::DEVICE, kit::SUBDEVICE];
        alloc(root.0, below, nv::NV20_SUBDEVICE_0, Params::subdevice())?;
        Ok(Self(root))
    }
}

/// A subdevice of the driver's own, for the controls of one caller. It is opened when it is needed.
#[derive(Default)]
pub(crate) struct Sender(Option<(u32, Base)>);

impl Sender {
    /// Sends a control, by the driver's own subdevice if it is to. The caller is as for
    /// [`rm::send`].
    ///
    /// # Errors
    ///
    /// The status with which the resource manager refuses; [`control::NO_RESOURCES`] if it gives
    /// the driver no subdevice.
    pub(crate) fn send(&mut self, control: &mut Control) -> Result<(), Status> {
        if let Some(gpu) = control.own_subdevice {
            let Base(root) = self.on(gpu).map_err(|_| control::NO_RESOURCES)?;
            (control.client, control.object) = (root.0, kit::SUBDEVICE);
        }
        rm::send(control)
    }

    fn on(&mut self, gpu: u32) -> Result<&Base, Refused> {
        let opened = match self.0.take().filter(|(on, _)| *on == gpu) {
            Some(opened) => opened,
            None => (gpu, Base::open(gpu)?),
        };
        Ok(&self.0.insert(opened).1)
    }
}

impl Client {
    /// Opens a client on a GPU. The caller may call the resource manager.
    pub(super) fn open(gpu: u32) -> Result<Self, Refused> {
        let held = Held::new(gpu)?;
        let base = Base::open(gpu)?;
        let handle = base.0 .0;
        let below = [kit::SUBDEVICE, kit::DOORBELL];
        alloc(handle, below, nv::HOPPER_USERMODE_A, Params::doorbell())?;
        let doorbell = View::new(handle, below, 0, DOORBELL_BYTES)?;
        Ok(Self {
            doorbell,
            handle,
            _base: base,
            held,
            channels: Atomic::new(0),
            windows: Atomic::new(0),
        })
    }

    /// Returns the resource manager's number of its GPU.
    pub(super) fn id(&self) -> u32 {
        self.held.0
    }

    /// Publishes GP_PUT in a channel's USERD and rings the doorbell.
    pub(super) fn ring(&self, userd: &View, put: u32, token: u32) {
        let at = [
            userd.at(owned::GP_PUT, 4),
            self.doorbell.at(owned::DOORBELL, 4),
        ];
        if let [Some(put_at), Some(doorbell)] = at {
            // SAFETY: `View::at` has checked both; their mappings live as long as the views.
            unsafe { bindings::gct_helper_ring(put_at.as_ptr(), put, doorbell.as_ptr(), token) };
        }
    }
}

/// Bytes of the doorbell's mapping.
const DOORBELL_BYTES: u64 = 0x1_0000;

/// Duplicates an object of `source_client` as `name` of `client`.
pub(super) fn dup(
    [client, parent, name]: [Handle; 3],
    [source_client, source]: [Handle; 2],
) -> Result<(), Refused> {
    // SAFETY: takes any numbers: the resource manager looks them up.
    done(unsafe { bindings::gct_helper_client_dup(client, parent, name, source_client, source) })
}
