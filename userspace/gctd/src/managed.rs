// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Managed memory of the processes.
//!
//! Its pages may come to lie on any GPU of its process, and nobody says where they are. So all of
//! it is charged on each GPU where the process has a page; on none, nothing is.

use crate::daemon::{Daemon, Session};
use gct_core::engine::Ticket;
use gct_core::error::Error;
use gct_core::host::Host;
use gct_core::ids::{FileId, GpuId};
use gct_core::state::Failure;
use gct_core::units::Bytes;
use gctd_ipc::message::{Managed, MANAGED_MAX};
use std::collections::BTreeMap;

/// A range of managed memory.
#[derive(Debug)]
struct Range {
    bytes: Bytes,
    /// One for each GPU on which it is charged.
    tickets: Vec<Ticket>,
}

/// The ranges of one connection, by the numbers that its process chose.
#[derive(Debug, Default)]
pub(crate) struct Ranges(BTreeMap<u64, Range>);

/// Charges a range on a GPU; `None` if that is over a limit. What cannot be followed is granted.
fn charge(tables: &mut Host, file: FileId, gpu: GpuId, bytes: Bytes) -> Option<Ticket> {
    let ask = |tables: &mut Host| tables.state().managed_ask(file, gpu, bytes);
    tables.follow(ask).unwrap_or(Some(Ticket::NONE))
}

/// Charges a range that exists already.
fn charge_existing(tables: &mut Host, file: FileId, gpu: GpuId, bytes: Bytes) -> Ticket {
    let add = |tables: &mut Host| tables.state().managed_add(file, gpu, bytes);
    tables.follow(add).unwrap_or(Ticket::NONE)
}

impl Daemon {
    /// Managed memory is asked for.
    pub(crate) fn manage(&mut self, session: &mut Session, managed: Managed) -> Result<(), Error> {
        self.managed_gone(session, managed.number);
        let bytes = Bytes(managed.bytes);
        let mut tickets = Vec::new();
        for gpu in self.gpus_for(session) {
            match charge(&mut self.tables, session.file, gpu, bytes) {
                Some(ticket) => tickets.push(ticket),
                None => {
                    self.withdraw(session.file, tickets);
                    return Err(Error::NoSpace);
                }
            }
        }
        self.remember(session, managed.number, Range { bytes, tickets });
        Ok(())
    }

    /// Managed memory exists already.
    pub(crate) fn managed_exists(&mut self, session: &mut Session, managed: Managed) {
        self.managed_gone(session, managed.number);
        let bytes = Bytes(managed.bytes);
        let gpus = self.gpus_for(session).into_iter();
        let tickets = gpus.map(|gpu| charge_existing(&mut self.tables, session.file, gpu, bytes));
        let tickets = tickets.collect();
        self.remember(session, managed.number, Range { bytes, tickets });
    }

    /// Managed memory is gone; a number that nobody told of is none.
    pub(crate) fn managed_gone(&mut self, session: &mut Session, number: u64) {
        if let Some(range) = session.managed.0.remove(&number) {
            self.withdraw(session.file, range.tickets);
        }
    }

    /// All of a connection's managed memory is gone.
    pub(crate) fn all_managed_gone(&mut self, session: &mut Session) {
        for (_, range) in core::mem::take(&mut session.managed.0) {
            self.withdraw(session.file, range.tickets);
        }
    }

    /// The process has a page on one GPU more: what it has may come to lie there.
    pub(crate) fn managed_reaches(&mut self, session: &mut Session, gpu: GpuId) {
        for range in session.managed.0.values_mut() {
            let ticket = charge_existing(&mut self.tables, session.file, gpu, range.bytes);
            range.tickets.push(ticket);
        }
    }

    /// The GPUs on which a range of this connection is charged; none where there are too many
    /// ranges.
    fn gpus_for(&mut self, session: &Session) -> Vec<GpuId> {
        if session.managed.0.len() < MANAGED_MAX {
            return self.tenants.gpus_of(session.connection).collect();
        }
        self.tables.state().count(Failure::Limit);
        Vec::new()
    }

    fn remember(&mut self, session: &mut Session, number: u64, range: Range) {
        if session.managed.0.len() < MANAGED_MAX {
            session.managed.0.insert(number, range);
        }
    }

    fn withdraw(&mut self, file: FileId, tickets: Vec<Ticket>) {
        for ticket in tickets {
            self.tables.state().call_withdraw(file, ticket);
        }
    }
}
