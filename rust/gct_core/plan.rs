// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the resource manager was told of each channel group and channel, and what
//! it is to be told next.
//!
//! Limits are enforced by controls, which sleep and may be refused. So the core
//! says one control at a time, is told what came of it, and remembers of each
//! object what the resource manager took. What differs from the limits in force
//! is *due*. A limit that somebody writes is on *trial* until every control that
//! it needs was taken: nothing else is stored before.

use crate::ids::{GpuId, Owner};
use crate::iface::value::Value;
use crate::iface::File;
use crate::objects::ObjectKey;
use crate::rmapi::control::{Status, CHANNELS_MAX};
use crate::slice::{Slice, SliceOrder};

/// What the resource manager was told of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// Of a channel group.
    pub(crate) slice: Slice,
    /// Of a channel: it stands still.
    pub(crate) frozen: bool,
    /// It has to be told something.
    pub(crate) due: bool,
}

impl Told {
    pub(crate) const NOTHING: Self = Self {
        slice: Slice::Own,
        frozen: false,
        due: false,
    };
}

/// What the resource manager has to be told of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Of a channel group's time slice.
    Slice(SliceOrder),
    /// A channel stands still, or goes on.
    Freeze(bool),
}

impl Order {
    /// The limit that it enforces.
    pub(crate) const fn file(self) -> File {
        match self {
            Self::Slice(_) => File::ComputeTimeslice,
            Self::Freeze(_) => File::ComputeFreeze,
        }
    }
}

/// A control that is under way, and whom it is about.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) order: Order,
    pub(crate) keys: [Option<ObjectKey>; CHANNELS_MAX],
}

impl Sent {
    /// About one object.
    pub(crate) fn one(order: Order, key: ObjectKey) -> Self {
        let mut keys = [None; CHANNELS_MAX];
        if let Some(first) = keys.first_mut() {
            *first = Some(key);
        }
        Self { order, keys }
    }
}

/// A limit that somebody writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    pub(crate) owner: Owner,
    pub(crate) gpu: GpuId,
    pub(crate) file: File,
    pub(crate) value: Value,
    /// Why it cannot be, if the resource manager has refused.
    pub(crate) refused: Option<Status>,
}

/// What is remembered of all this.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Objects that are due.
    pub(crate) due: usize,
    /// Where the search for them goes on.
    pub(crate) cursor: usize,
    /// The one that became due last, which is looked at first.
    pub(crate) recent: Option<ObjectKey>,
    pub(crate) sent: Option<Sent>,
    pub(crate) trial: Option<Trial>,
}

impl Plan {
    pub(crate) const NONE: Self = Self {
        due: 0,
        cursor: 0,
        recent: None,
        sent: None,
        trial: None,
    };
}
