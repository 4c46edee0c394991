// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Carries what the entry of an ioctl leaves for its return.

use crate::ids::{KeptNames, OF_CHANNEL};
use crate::objects::ObjectKey;
use crate::rmapi::Handle;

/// Result of [`call_enter`](crate::state::State::call_enter), for
/// [`call_leave`](crate::state::State::call_leave) of the same ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The object's space before it was hidden; 0 if there was none.
    pub(super) home: u64,
    /// The space where it is hidden; 0 if it is not.
    pub(super) hidden: u64,
    pub(super) handle: Handle,
    /// The object below it that is hidden next; 0 if all are.
    pub(super) moving: Handle,
    /// Number of objects for which room is reserved.
    pub(super) reserved: usize,
    /// Memory that the channel keeps which the ioctl is to make.
    pub(super) keeps: KeptNames,
}

impl Ticket {
    /// Ticket of an ioctl for which the entry had nothing to do.
    pub const NONE: Self = Self {
        home: 0,
        hidden: 0,
        handle: 0,
        moving: 0,
        reserved: 0,
        keeps: [None; OF_CHANNEL],
    };

    /// Returns a ticket for device memory that is charged to the hidden object.
    pub(super) const fn reserved(hidden: ObjectKey) -> Self {
        Self {
            home: 0,
            hidden: hidden.space,
            handle: hidden.handle,
            moving: 0,
            reserved: 0,
            keeps: [None; OF_CHANNEL],
        }
    }

    /// Returns the ticket of an allocation for which room is reserved and memory is charged.
    #[must_use]
    pub const fn with_charge(self, charge: Self) -> Self {
        Self {
            reserved: self.reserved,
            keeps: self.keeps,
            ..charge
        }
    }

    /// Returns the ticket of a channel that keeps memory.
    #[must_use]
    pub const fn with_keeps(self, keeps: KeptNames) -> Self {
        Self { keeps, ..self }
    }

    /// Returns the hidden object that is charged for device memory.
    pub(super) fn reservation(self) -> Option<ObjectKey> {
        (self.hidden != 0 && self.home == 0).then(|| ObjectKey::new(self.hidden, self.handle))
    }
}
