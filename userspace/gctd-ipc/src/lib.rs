// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Connects the daemon of the user-space mode with the processes that it governs, its tenants.
//!
//! - [`message`]: requests and replies. One message is one packet of a `SOCK_SEQPACKET` Unix
//!   socket.
//! - [`page`]: one page for each process on each GPU. The daemon writes limits, the process
//!   counters.
//! - [`board`]: one page for each GPU with the reservations of its processes, which only the
//!   daemon can write; and one *pulse* for each process, which only that process can write and
//!   its neighbours read, and which shows whether it has work.
//! - [`versions`]: what may change, so that a daemon and a library of different releases work.
//! - [`greeting`]: how a client connects.
//! - [`tenant`]: the process's side of the socket.
//! - [`driver`]: queries of the resource manager.
//! - [`paths`]: the paths of the daemon's sockets.
//! - [`selftest`]: what was found exact on a GPU.
//!
//! Neither side trusts the other. Every word of a page is an atomic that is read once. The memory
//! is sealed, so it cannot shrink under a reader. The worst that the other side can write is a
//! wrong number.

use gct_core::features::{Feature, FeatureSet};

pub mod board;
pub mod descriptor;
pub mod driver;
pub mod environment;
pub mod greeting;
pub mod message;
pub mod page;
pub mod paths;
pub mod procfs;
pub mod selftest;
mod seqlock;
pub mod shared;
pub mod socket;
pub mod tenant;
pub mod versions;

/// The features that the preload library of this version enforces. The daemon announces them.
pub const ENFORCED: FeatureSet = FeatureSet::NONE
    .with(Feature::GmemCharge)
    .with(Feature::GmemLimit)
    .with(Feature::GmemLow)
    .with(Feature::GmemUvm)
    .with(Feature::GmemPageable)
    .with(Feature::HmemCharge)
    .with(Feature::HmemLimit)
    .with(Feature::Timeslice)
    .with(Feature::Priority)
    .with(Feature::Weight)
    .with(Feature::Bandwidth)
    .with(Feature::Usage)
    .with(Feature::Freeze)
    .with(Feature::TpcQuota)
    .with(Feature::TpcMask)
    .with(Feature::TpcSteal)
    .with(Feature::AtomDuration)
    .with(Feature::SlipTpc)
    .with(Feature::Faults)
    .with(Feature::SloP99);
