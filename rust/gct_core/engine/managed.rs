// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Charges managed memory that is on a GPU now, as the UVM driver reports it.
//!
//! A ticket of [`State::charge_managed`] stands for an address space on a GPU.

use crate::account::Amount;
use crate::engine::Ticket;
use crate::error::Error;
use crate::ids::{FileId, GpuId};
use crate::state::State;
use crate::units::Bytes;

impl State<'_> {
    /// Returns the GPU with a UUID.
    pub fn gpu_of_uuid(&self, uuid: &[u8; 16]) -> Option<GpuId> {
        let mut gpus = self.gpus.iter();
        let found = gpus.find(|(_, gpu)| gpu.facts.uuid.as_ref() == Some(uuid));
        found.map(|(id, _)| *id)
    }

    /// Changes what a ticket is charged for. No limit refuses it, since the memory is used already.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: the ticket stays as it is. [`Error::Gone`]: there
    /// is no such file or ticket.
    pub fn recharge_managed(
        &mut self,
        file: FileId,
        ticket: Ticket,
        bytes: Bytes,
    ) -> Result<(), Error> {
        let proc = self.files.get(&file).ok_or(Error::Gone)?.proc;
        let key = ticket.reservation().ok_or(Error::Gone)?;
        let object = *self.objects.get(key).ok_or(Error::Gone)?;
        self.reserve_charge()?;
        let was = object.charged.managed;
        let mut now = bytes;
        if bytes > was {
            let more = self.charge(proc, object.gpu, Amount::of_managed(bytes - was));
            now = was + more.managed;
        } else {
            let mut less = object;
            less.charged = Amount::of_managed(was - bytes);
            self.uncharge(proc, &less);
        }
        if let Some(object) = self.objects.get_mut(key) {
            object.charged = Amount::of_managed(now);
        }
        Ok(())
    }
}
