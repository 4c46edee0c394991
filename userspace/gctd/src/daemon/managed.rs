// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Charges the managed memory of processes.
//!
//! Pages of managed memory migrate between the GPUs of their process, and this mode cannot see
//! where they are. A range is therefore charged in full on every GPU where the process has a page,
//! and nowhere while it has none.
//!
//! A range is known as long as it has an object of the core, so the maxima of objects bound the
//! ranges. Without a page that is an object of 0 bytes on the first GPU.

use super::{Daemon, Session};
use gct_core::engine::Ticket;
use gct_core::error::Error;
use gct_core::failures::Failure;
use gct_core::host::Host;
use gct_core::ids::{FileId, GpuId};
use gct_core::units::Bytes;
use gctd_ipc::message::{Managed, MANAGED_MAX};
use std::collections::BTreeMap;

/// A range of managed memory.
#[derive(Debug)]
struct Range {
    bytes: Bytes,
    /// Its charges, one for each GPU, or that of 0 bytes. There is at least one.
    tickets: Vec<Ticket>,
    /// Whether the session has no page, so that its charge is of 0 bytes.
    waits: bool,
}

/// The ranges of one session, by the numbers that the process chose.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, Range>);

/// Charges a new range on a GPU. Returns `None` if it exceeds a limit. A range that the core
/// cannot track is granted and not charged.
fn try_charge(tables: &mut Host, file: FileId, gpu: GpuId, bytes: Bytes) -> Option<Ticket> {
    let try_charge = |tables: &mut Host| tables.state().try_charge_managed(file, gpu, bytes);
    tables.follow(try_charge).unwrap_or(Some(Ticket::NONE))
}

/// Charges a range that exists already, even beyond a limit.
fn charge_existing(tables: &mut Host, file: FileId, gpu: GpuId, bytes: Bytes) -> Ticket {
    let charge = |tables: &mut Host| tables.state().charge_managed(file, gpu, bytes);
    tables.follow(charge).unwrap_or(Ticket::NONE)
}

impl Daemon {
    /// Charges a range that the process is about to map.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] if it exceeds a limit on one of the GPUs.
    pub(crate) fn charge_managed(
        &mut self,
        session: &mut Session,
        managed: Managed,
    ) -> Result<(), Error> {
        self.uncharge_managed(session, managed.number);
        let bytes = Bytes(managed.bytes);
        let mut tickets = Vec::new();
        for gpu in self.charged_gpus(session) {
            match try_charge(&mut self.tables, session.file, gpu, bytes) {
                Some(ticket) => tickets.push(ticket),
                None => {
                    self.uncharge(session.file, tickets);
                    return Err(Error::NoSpace);
                }
            }
        }
        self.insert_range(session, managed.number, bytes, tickets);
        Ok(())
    }

    /// Charges a range that the process has mapped before it met this daemon.
    pub(crate) fn add_managed(&mut self, session: &mut Session, managed: Managed) {
        self.uncharge_managed(session, managed.number);
        let bytes = Bytes(managed.bytes);
        let gpus = self.charged_gpus(session).into_iter();
        let tickets = gpus.map(|gpu| charge_existing(&mut self.tables, session.file, gpu, bytes));
        let tickets = tickets.collect();
        self.insert_range(session, managed.number, bytes, tickets);
    }

    /// Uncharges a range. An unknown number is ignored.
    pub(crate) fn uncharge_managed(&mut self, session: &mut Session, number: u64) {
        if let Some(range) = session.managed.0.remove(&number) {
            self.uncharge(session.file, range.tickets);
        }
    }

    /// Uncharges all ranges of a session.
    pub(super) fn drop_managed(&mut self, session: &mut Session) {
        for (_, range) in core::mem::take(&mut session.managed.0) {
            self.uncharge(session.file, range.tickets);
        }
    }

    /// Charges all ranges of a session on a further GPU, where it has got a page. Those that cannot
    /// be tracked are forgotten.
    pub(super) fn charge_managed_on(&mut self, session: &mut Session, gpu: GpuId) {
        let (tables, file) = (&mut self.tables, session.file);
        session.managed.0.retain(|_, range| {
            if core::mem::take(&mut range.waits) {
                for ticket in range.tickets.drain(..) {
                    tables.state().uncharge_ticket(file, ticket);
                }
            }
            let ticket = charge_existing(tables, file, gpu, range.bytes);
            if ticket != Ticket::NONE {
                range.tickets.push(ticket);
            }
            !range.tickets.is_empty()
        });
    }

    /// Returns the GPUs on which a further range of a session is charged. Beyond
    /// [`MANAGED_MAX`] ranges there are none.
    fn charged_gpus(&mut self, session: &Session) -> Vec<GpuId> {
        if session.managed.0.len() < MANAGED_MAX {
            return self.tenants.gpus_of(session.connection).collect();
        }
        self.tables.state().count(Failure::Limit);
        Vec::new()
    }

    /// Remembers a range, unless no object can be had for it.
    fn insert_range(
        &mut self,
        session: &mut Session,
        number: u64,
        bytes: Bytes,
        mut tickets: Vec<Ticket>,
    ) {
        if session.managed.0.len() >= MANAGED_MAX {
            return;
        }
        let waits = tickets.is_empty();
        if let (true, Some(gpu)) = (waits, self.first_gpu) {
            let none = charge_existing(&mut self.tables, session.file, gpu, Bytes(0));
            tickets.push(none);
        }
        tickets.retain(|ticket| *ticket != Ticket::NONE);
        if !tickets.is_empty() {
            let range = Range {
                bytes,
                tickets,
                waits,
            };
            session.managed.0.insert(number, range);
        }
    }

    fn uncharge(&mut self, file: FileId, tickets: Vec<Ticket>) {
        for ticket in tickets {
            self.tables.state().uncharge_ticket(file, ticket);
        }
    }
}
