// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the daemon of the user-space mode and the processes that it governs share:
//! the messages on its socket, and the pages of memory between them.
//!
//! - [`message`]: requests and replies. One message is one packet of a `SOCK_SEQPACKET`
//!   Unix socket.
//! - [`page`]: one page for each process on each GPU: its limits, which the daemon writes,
//!   and its counters, which the process writes.
//! - [`board`]: one page for each GPU, which only the daemon can write, and one *pulse* for
//!   each process, which only that process writes and its neighbours read: who may use which
//!   TPCs, and who has work now.
//! - [`tenant`]: the process's side of the socket.
//! - [`paths`]: where the daemon's sockets are.
//!
//! Neither side trusts the other. Every word of a page is an atomic that is read once; the
//! memory behind it is sealed, so that it cannot shrink under its reader; nothing that the
//! other side writes can do more than be a wrong number.

use gct_core::features::{Feature, FeatureSet};

pub mod board;
pub mod driver;
pub mod message;
pub mod page;
pub mod paths;
mod seqlock;
pub mod shared;
pub mod socket;
pub mod tenant;

/// Version of the messages and of the pages. The two sides must have the same.
pub const VERSION: u32 = 7;

/// What the processes that preload the library of this version enforce. A limit that begins to
/// work there is added here, and the daemon announces it.
pub const ENFORCED: FeatureSet = FeatureSet::NONE
    .with(Feature::GmemCharge)
    .with(Feature::GmemLimit)
    .with(Feature::Timeslice)
    .with(Feature::Priority)
    .with(Feature::Freeze)
    .with(Feature::TpcQuota)
    .with(Feature::TpcMask)
    .with(Feature::TpcSteal)
    .with(Feature::AtomDuration)
    .with(Feature::Faults);
