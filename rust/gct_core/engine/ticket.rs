// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the two halves of an ioctl say to each other.

use crate::objects::ObjectKey;
use crate::rmapi::Handle;

/// What [`call_enter`](crate::state::State::call_enter) leaves for
/// [`call_leave`](crate::state::State::call_leave) of the same ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Where the object was, and where it is hidden; 0 is nowhere.
    pub(super) home: u64,
    pub(super) hidden: u64,
    pub(super) handle: Handle,
    /// Objects for which there is room, and the right to it.
    pub(super) promised: usize,
}

impl Ticket {
    /// Nothing was done on entering.
    pub const NONE: Self = Self {
        home: 0,
        hidden: 0,
        handle: 0,
        promised: 0,
    };

    /// Memory was granted, and is charged for the object at `hidden`.
    pub(super) const fn reserved(hidden: ObjectKey) -> Self {
        Self {
            home: 0,
            hidden: hidden.space,
            handle: hidden.handle,
            promised: 0,
        }
    }

    /// Where memory is charged that was granted.
    pub(super) fn reservation(self) -> Option<ObjectKey> {
        (self.hidden != 0 && self.home == 0).then(|| ObjectKey::new(self.hidden, self.handle))
    }
}
