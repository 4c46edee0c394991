// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Forwards the ioctls that a process reports to the core, before and after they run.

use super::{Daemon, Session};
use gct_core::engine::Ticket;
use gct_core::error::Error;
use gct_core::failures::Failure;
use gct_core::host::Host;
use gct_core::ids::FileId;
use gct_core::rmapi::{self, Action, Call, Class};
use gctd_ipc::message::Ioctl;

/// Most ioctls of one process in flight, one for each of its threads. Beyond it the oldest is
/// abandoned.
const IN_FLIGHT_MAX: usize = 1024;

/// Returns whether a completed call is the one that was entered. The resource manager may have
/// chosen the handle in between.
fn completes(entered: &Call, left: &Call) -> bool {
    let object = entered.object == left.object || entered.object == 0;
    object && (entered.client, entered.action) == (left.client, left.action)
}

impl Daemon {
    /// Completes a call whose outcome the process will not report. A free counts as done, a
    /// duplication as failed.
    pub(super) fn abandon(&mut self, file: FileId, call: &Call, ticket: Ticket) {
        let status = match call.action {
            Action::Free => 0,
            _ => rmapi::NO_MEMORY,
        };
        let done = Call { status, ..*call };
        let leave = |tables: &mut Host| tables.state().call_leave(file, &done, ticket, None);
        self.tables.follow(leave);
    }

    fn decode(&mut self, ioctl: &Ioctl) -> Option<Call> {
        let call = rmapi::decode(ioctl.escape, &ioctl.bytes);
        if call.is_err() {
            self.tables.state().count(Failure::Decode);
        }
        call.ok().flatten()
    }

    /// Returns whether a call names only RM clients of the process itself, and memory of its group.
    fn permits(&mut self, session: &Session, call: &Call) -> bool {
        let state = self.tables.state();
        let own = |client| state.has_client(session.file, client);
        let permitted = match call.action {
            Action::Alloc {
                class: Class::Client,
                ..
            } => true,
            Action::Dup {
                source_client,
                source,
            } => {
                let shares = || state.shares_memory(session.file, source_client, source);
                own(call.client) && (own(source_client) || shares())
            }
            _ => own(call.client),
        };
        if !permitted {
            self.tables.state().count(Failure::Client);
        }
        permitted
    }

    fn decode_permitted(&mut self, session: &Session, ioctl: &Ioctl) -> Option<Call> {
        let call = self.decode(ioctl)?;
        self.permits(session, &call).then_some(call)
    }

    /// Announces an ioctl that is about to free or duplicate an object. For others, which the
    /// library does not announce, the core would take room.
    pub(crate) fn enter(&mut self, session: &mut Session, ioctl: &Ioctl) {
        let call = self.decode_permitted(session, ioctl);
        let is_announced = |call: &Call| matches!(call.action, Action::Free | Action::Dup { .. });
        let Some(call) = call.filter(is_announced) else {
            return;
        };
        let file = session.file;
        let enter = |tables: &mut Host| tables.state().call_enter(file, &call);
        let Some(ticket) = self.tables.follow(enter).filter(|t| *t != Ticket::NONE) else {
            return;
        };
        session.entered.push_back((call, ticket));
        if session.entered.len() > IN_FLIGHT_MAX {
            if let Some((call, ticket)) = session.entered.pop_front() {
                self.abandon(file, &call, ticket);
            }
        }
    }

    /// Charges an allocation of device memory. Returns the number of the grant.
    ///
    /// An allocation that the core cannot track is granted and not charged.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] if it exceeds a limit.
    pub(crate) fn charge(&mut self, session: &mut Session, ioctl: &Ioctl) -> Result<u32, Error> {
        let file = session.file;
        let ticket = match self.decode_permitted(session, ioctl) {
            Some(call) => {
                let try_charge =
                    |tables: &mut Host| tables.state().call_try_charge(file, &call, ioctl.hint);
                match self.tables.follow(try_charge) {
                    Some(None) => return Err(Error::NoSpace),
                    Some(Some(ticket)) => ticket,
                    None => Ticket::NONE,
                }
            }
            None => Ticket::NONE,
        };
        session.last_grant = session.last_grant.wrapping_add(1);
        session.grants.insert(session.last_grant, ticket);
        if session.grants.len() > IN_FLIGHT_MAX {
            if let Some((_, ticket)) = session.grants.pop_first() {
                self.tables.state().uncharge_ticket(file, ticket);
            }
        }
        Ok(session.last_grant)
    }

    /// Completes an ioctl with what the driver wrote. `granted` is the number that
    /// [`Daemon::charge`] returned for it.
    ///
    /// A call that was permitted when it was entered stays permitted: if it freed its RM client,
    /// the state no longer knows the client.
    pub(crate) fn leave(&mut self, session: &mut Session, ioctl: &Ioctl, granted: Option<u32>) {
        let granted = granted.and_then(|number| session.grants.remove(&number));
        let granted = granted.unwrap_or(Ticket::NONE);
        let file = session.file;
        let call = self.decode(ioctl);
        let position = |call| {
            session
                .entered
                .iter()
                .position(|(c, _)| completes(c, &call))
        };
        let entered = call.and_then(position);
        let entered = entered.and_then(|at| session.entered.remove(at));
        let permitted = |call: &Call| entered.is_some() || self.permits(session, call);
        let call = call.filter(permitted);
        let ticket = match (entered, call.map(|call| call.action)) {
            (Some((_, ticket)), _) => ticket,
            (None, Some(Action::Alloc { .. })) => granted,
            _ => Ticket::NONE,
        };
        if ticket != granted {
            self.tables.state().uncharge_ticket(file, granted);
        }
        let Some(call) = call else { return };
        let hint = ioctl.hint;
        let leave = |tables: &mut Host| tables.state().call_leave(file, &call, ticket, hint);
        if self.tables.follow(leave).is_none() {
            self.tables.state().uncharge_ticket(file, ticket);
        }
        if self.tables.state().has_effects() {
            self.apply_effects_later();
        }
    }
}
