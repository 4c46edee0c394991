// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps a client of the driver's own on each GPU for the parts of owned channels, and opens one
//! for the time of a control that no tenant's subdevice can take.

use super::view::{Mapped, View};
use crate::bindings;
use crate::rm;
use crate::rm::own::Own;
use gct_core::owned;
use gct_core::owned::kit::Params;
use gct_core::rmapi::control::{self, Control, Status};
use gct_core::rmapi::nv;

pub(super) use crate::rm::own::Refused;

/// A client of the resource manager with a doorbell. It keeps its GPU initialised.
pub(super) struct Client {
    doorbell: View,
    // Fields are dropped in order: the client goes before its GPU is let go.
    pub(super) own: Own,
    held: Held,
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

/// A subdevice of the driver's own, for the controls of one caller. It is opened when it is needed.
#[derive(Default)]
pub(crate) struct Sender(Option<(u32, Own)>);

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
            let own = self.on(gpu).map_err(|_| control::NO_RESOURCES)?;
            (control.client, control.object) = (own.client(), own.subdevice());
        }
        rm::send(control)
    }

    fn on(&mut self, gpu: u32) -> Result<&Own, Refused> {
        let opened = match self.0.take().filter(|(on, _)| *on == gpu) {
            Some(opened) => opened,
            None => (gpu, Own::open(gpu)?),
        };
        Ok(&self.0.insert(opened).1)
    }
}

impl Client {
    /// Opens a client on a GPU. The caller may call the resource manager.
    pub(super) fn open(gpu: u32) -> Result<Self, Refused> {
        let held = Held::new(gpu)?;
        let own = Own::open(gpu)?;
        let below = [own.subdevice(), own.new_name()];
        own.alloc(below, nv::HOPPER_USERMODE_A, Params::doorbell())?;
        Ok(Self {
            doorbell: View::map(&own, below, 0, DOORBELL_BYTES)?,
            own,
            held,
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
