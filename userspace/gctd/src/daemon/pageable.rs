// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Charges the pageable memory of processes.
//!
//! A process moves its pageable memory itself, and says how much of it is on each GPU and on the
//! host. A number is charged to the process and its group alone, whatever it is.

use super::{Daemon, Session};
use crate::gpus;
use gct_core::engine::{Paged, Ticket};
use gct_core::error::Error;
use gct_core::host::Host;
use gct_core::ids::GpuId;
use gct_core::units::Bytes;
use gctd_ipc::message;
use std::collections::BTreeMap;

/// The charges of one session, one for each GPU.
#[derive(Debug, Default)]
pub(super) struct Pageable(BTreeMap<GpuId, Ticket>);

fn received(paged: message::Paged) -> Paged {
    Paged {
        device: Bytes(paged.device),
        host: Bytes(paged.host),
    }
}

fn sent(paged: Paged) -> message::Paged {
    message::Paged {
        device: paged.device.get(),
        host: paged.host.get(),
    }
}

impl Daemon {
    /// Returns the minor number of the GPU at a PCI address, if memory that a process allocates
    /// there is to be pageable.
    pub(crate) fn pageable_on(&mut self, session: &Session, bus_id: &str) -> Option<u32> {
        let state = self.tables.state();
        let gpu = state.gpu_of_pci(&gpus::pci(bus_id)?)?;
        let is_pageable = state.is_pageable(session.file, gpu);
        is_pageable.then(|| state.gpu_minor(gpu)).flatten()
    }

    /// Returns the most that a process can be charged for pageable memory on a GPU.
    ///
    /// # Errors
    ///
    /// As for [`Daemon::repage`].
    pub(crate) fn pageable_room(
        &mut self,
        session: &mut Session,
        minor: u32,
        spare: u64,
    ) -> Result<message::Paged, Error> {
        let (_, ticket) = self.pageable_charge(session, minor)?;
        let (state, spare) = (self.tables.state(), Bytes(spare));
        let room = state.pageable_room(session.file, ticket, spare);
        room.map(sent).ok_or(Error::Gone)
    }

    /// Changes what a process is charged for pageable memory on a GPU. Returns the most that it can
    /// be charged for if that is less. `is_last`: then the process refuses an allocation.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] for an unknown GPU, [`Error::NoSpace`] if it cannot be charged.
    pub(crate) fn repage(
        &mut self,
        session: &mut Session,
        minor: u32,
        paged: message::Paged,
        spare: u64,
        is_last: bool,
    ) -> Result<Option<message::Paged>, Error> {
        let (gpu, ticket) = self.pageable_charge(session, minor)?;
        let (file, paged, spare) = (session.file, received(paged), Bytes(spare));
        let charge = |tables: &mut Host| tables.state().try_repage(file, ticket, paged, spare);
        if self.tables.with(charge)? {
            self.look_at_lowerings();
            return Ok(None);
        }
        let mut state = self.tables.state();
        if is_last {
            state.pageable_refused(file, gpu);
        }
        let room = state.pageable_room(file, ticket, spare);
        Ok(room.map(sent))
    }

    /// Charges pageable memory that a process had before it met this daemon.
    pub(crate) fn add_paged(&mut self, session: &mut Session, minor: u32, paged: message::Paged) {
        if let Ok((_, ticket)) = self.pageable_charge(session, minor) {
            let (file, paged) = (session.file, received(paged));
            let charge = |tables: &mut Host| tables.state().repage(file, ticket, paged);
            self.tables.follow(charge);
        }
    }

    /// Uncharges all pageable memory of a session.
    pub(super) fn drop_pageable(&mut self, session: &mut Session) {
        for ticket in core::mem::take(&mut session.pageable.0).into_values() {
            self.tables.state().uncharge_ticket(session.file, ticket);
        }
    }

    /// Returns a GPU and the charge of a session there.
    fn pageable_charge(
        &mut self,
        session: &mut Session,
        minor: u32,
    ) -> Result<(GpuId, Ticket), Error> {
        let gpu = self.tables.state().gpu_of_minor(minor).ok_or(Error::Gone)?;
        if let Some(ticket) = session.pageable.0.get(&gpu) {
            return Ok((gpu, *ticket));
        }
        let (file, none) = (session.file, Bytes(0));
        let open = |tables: &mut Host| tables.state().charge_managed(file, gpu, none);
        let ticket = self.tables.with(open)?;
        session.pageable.0.insert(gpu, ticket);
        Ok((gpu, ticket))
    }
}
