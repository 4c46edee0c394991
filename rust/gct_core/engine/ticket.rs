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
    /// What is freed may take channels along that are not below it.
    pub(super) takes_channels: bool,
    /// Objects for which there is room, and the right to it.
    pub(super) promised: usize,
}

impl Ticket {
    /// Nothing was done on entering.
    pub const NONE: Self = Self {
        home: 0,
        hidden: 0,
        handle: 0,
        takes_channels: false,
        promised: 0,
    };

    /// Remembers that what is freed may take channels along that are not below it.
    #[must_use]
    pub const fn taking_channels(mut self, takes: bool) -> Self {
        self.takes_channels = takes;
        self
    }

    /// What [`Ticket::taking_channels`] has said.
    pub const fn takes_channels(self) -> bool {
        self.takes_channels
    }

    /// Memory was granted, and is charged for the object at `hidden`.
    pub(super) const fn reserved(hidden: ObjectKey) -> Self {
        Self {
            home: 0,
            hidden: hidden.space,
            handle: hidden.handle,
            takes_channels: false,
            promised: 0,
        }
    }

    /// Where memory is charged that was granted.
    pub(super) fn reservation(self) -> Option<ObjectKey> {
        (self.hidden != 0 && self.home == 0).then(|| ObjectKey::new(self.hidden, self.handle))
    }

    /// For the caller's stack.
    pub fn words(self) -> [u64; 4] {
        // A number of objects far below 2^63.
        let promised = u64::try_from(self.promised).unwrap_or(0).saturating_mul(2);
        let rest = promised.saturating_add(u64::from(self.takes_channels));
        [self.home, self.hidden, u64::from(self.handle), rest]
    }

    /// From the caller's stack. Words that no ticket ever was are harmless.
    pub fn from_words([home, hidden, handle, rest]: [u64; 4]) -> Self {
        match Handle::try_from(handle) {
            Ok(handle) => Self {
                home,
                hidden,
                handle,
                takes_channels: rest & 1 == 1,
                promised: usize::try_from(rest >> 1).unwrap_or(0),
            },
            Err(_) => Self::NONE,
        }
    }
}
