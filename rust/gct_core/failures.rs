// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts what could not be tracked, and what a rule has refused.

use crate::units::Sat;

/// The reason why an object or an event could not be tracked, or a rule refused an ioctl. The
/// root's `events` counts each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A maximum of [`limits`](crate::limits).
    Limit,
    /// No memory for a table.
    Memory,
    /// An ioctl with an unexpected structure.
    Decode,
    /// Forked children that could not be added to their parent's group: the total, as in
    /// [`Members::lost`](crate::members::Members::lost).
    Members(u64),
    /// An object of an unknown client.
    Client,
    /// A channel group, channel or allocation on an unknown GPU.
    Gpu,
    /// A charge that did not fit, or was missing when it was uncharged.
    Charge,
    /// A control that the resource manager refused.
    Control,
    /// A control or a class that a [rule](crate::rmapi::allow) refused.
    Forbidden,
}

/// Counts of [`Failure`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failures {
    pub(crate) limit: Sat<u64>,
    pub(crate) memory: Sat<u64>,
    pub(crate) decode: Sat<u64>,
    pub(crate) members: Sat<u64>,
    pub(crate) client: Sat<u64>,
    pub(crate) gpu: Sat<u64>,
    pub(crate) charge: Sat<u64>,
    pub(crate) control: Sat<u64>,
    pub(crate) forbidden: Sat<u64>,
    /// Of a daemon.
    pub(crate) daemon: Option<DaemonEvents>,
}

/// Counts of what a daemon could not do for its clients.
#[derive(Clone, Copy, Debug, Default)]
pub struct DaemonEvents {
    /// Answers that it could not send.
    pub unanswered: u64,
    /// Greetings of clients that speak no version that it speaks.
    pub version: u64,
}
