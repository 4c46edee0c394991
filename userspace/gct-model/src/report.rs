// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reports what happened, in order.

use std::fmt;

use crate::descriptor::{Kernel, Kind, Mask, Reference, Release, Unreadable};
use crate::grid::Blocks;

/// A moment: the number of events before it.
pub type Moment = u64;

/// A channel of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u32);

/// One execution of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The descriptor's address.
    pub qmd: u64,
    /// The channel that scheduled it, or that scheduled the run which it depends on.
    pub channel: ChannelId,
    /// The kind of launch.
    pub kind: Kind,
    /// The kernel.
    pub kernel: Kernel,
    /// Its place among launches that wait, 0 first.
    pub group: u32,
    /// Disabled TPCs.
    pub mask: Mask,
    /// The descriptor's grid, in blocks or clusters.
    pub grid: [u32; 3],
    /// The resume point in effect.
    pub resume: [u32; 3],
    /// The blocks that ran.
    pub blocks: Vec<Blocks>,
    /// When it started.
    pub started: Moment,
    /// When its last block ended; `None` while it runs.
    pub ended: Option<Moment>,
}

impl Run {
    /// Returns how many blocks, or clusters, ran.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.blocks
            .iter()
            .fold(0, |sum, blocks| sum.saturating_add(blocks.count()))
    }
}

/// An effect. It must happen as often as the tenant asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Act {
    /// A descriptor's completion released a semaphore.
    Release(Release),
    /// The dependence counter of a descriptor went down.
    Decrement(u64),
    /// The dependence counter of a descriptor went up.
    Increment(u64),
    /// A descriptor's completion scheduled another one.
    Schedule(u64),
    /// A queue descriptor got one more entry.
    QueuePut(u64),
    /// A latch was signalled.
    Arrive(u32),
    /// A reference count was raised.
    Raise(Reference),
    /// A reference count was lowered.
    Lower(Reference),
    /// A method released a semaphore: its address and payload.
    Semaphore(u64, u64),
    /// A copy engine copied bytes: source, destination, length.
    Copy(u64, u64, u64),
}

impl Act {
    /// Returns the descriptor that this acts on.
    #[must_use]
    pub fn qmd(&self) -> Option<u64> {
        match *self {
            Self::Decrement(qmd) | Self::Increment(qmd) => Some(qmd),
            Self::Schedule(qmd) | Self::QueuePut(qmd) => Some(qmd),
            _ => None,
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Release(release) => {
                write!(
                    f,
                    "release {:#x} to {:#x}",
                    release.payload, release.address
                )?;
                match release.reduction {
                    Some(op) => write!(f, " as reduction {op}"),
                    None => Ok(()),
                }
            }
            Self::Decrement(qmd) => write!(f, "decrement the dependence counter of {qmd:#x}"),
            Self::Increment(qmd) => write!(f, "increment the dependence counter of {qmd:#x}"),
            Self::Schedule(qmd) => write!(f, "schedule {qmd:#x}"),
            Self::QueuePut(qmd) => write!(f, "add an entry to the queue {qmd:#x}"),
            Self::Arrive(latch) => write!(f, "arrive at latch {latch:#x}"),
            Self::Raise(count) => {
                write!(f, "raise reference count {} by {}", count.id, count.delta)
            }
            Self::Lower(count) => {
                write!(f, "lower reference count {} by {}", count.id, count.delta)
            }
            Self::Semaphore(address, payload) => {
                write!(f, "method releases {payload:#x} to {address:#x}")
            }
            Self::Copy(from, to, bytes) => {
                write!(f, "copy {bytes} bytes from {from:#x} to {to:#x}")
            }
        }
    }
}

/// An effect with its time and origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The time.
    pub at: Moment,
    /// The run whose start or completion caused it, as an index in the report; `None` for a method.
    pub by: Option<usize>,
    /// The effect.
    pub act: Act,
}

/// A behaviour that was not seen on hardware, or an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Anomaly {
    /// A scheduled descriptor could not be read.
    Unreadable(u64),
    /// The model does not know the version of a scheduled descriptor.
    UnknownVersion(u64),
    /// No header names the type of a scheduled descriptor.
    UnknownKind(u64),
    /// A decrement of a counter that was zero, or of a descriptor that the scheduler does not hold.
    StrayDecrement(u64),
    /// A descriptor with a dependence counter or a scheduling requirement was scheduled without
    /// COPY. This case was not measured.
    UncopiedCondition(u64),
    /// No header names a dependent's pointer or action.
    UnknownDependent(u64),
    /// The operation of this method is not modelled.
    Unmodelled(u32),
    /// A header of this operation is not modelled, and its channel stopped.
    UnknownHeader(u32),
    /// An upload or a release went to an unmapped address.
    Fault(u64),
    /// A bound of the configuration was reached, and the rest was not executed.
    Bound(&'static str),
}

impl Anomaly {
    pub(crate) fn of_unreadable(qmd: u64, why: Unreadable) -> Self {
        match why {
            Unreadable::Fault => Self::Unreadable(qmd),
            Unreadable::Version => Self::UnknownVersion(qmd),
        }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Unreadable(qmd) => write!(f, "the QMD at {qmd:#x} is not mapped"),
            Self::UnknownVersion(qmd) => write!(f, "the QMD at {qmd:#x} has an unknown version"),
            Self::UnknownKind(qmd) => write!(f, "the QMD at {qmd:#x} has an unknown type"),
            Self::StrayDecrement(qmd) => {
                write!(
                    f,
                    "the QMD at {qmd:#x} was decremented but did not wait for it"
                )
            }
            Self::UncopiedCondition(qmd) => write!(
                f,
                "the QMD at {qmd:#x} has a condition and was scheduled without COPY"
            ),
            Self::UnknownDependent(qmd) => {
                write!(
                    f,
                    "the QMD at {qmd:#x} has a dependent that is not understood"
                )
            }
            Self::Unmodelled(method) => write!(f, "method {method:#x} is not modelled"),
            Self::UnknownHeader(operation) => {
                write!(
                    f,
                    "a channel stopped at a header of operation {operation}, which is not modelled"
                )
            }
            Self::Fault(address) => write!(f, "{address:#x} is not mapped"),
            Self::Bound(what) => write!(f, "the bound on {what} was reached"),
        }
    }
}

/// A descriptor that still waits at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waiting {
    /// The descriptor's address.
    pub qmd: u64,
    /// Number of decrements that are missing.
    pub counter: u32,
    /// Whether a required SCHEDULE is missing.
    pub scheduling: bool,
    /// The latch that was not signalled.
    pub latch: Option<u32>,
    /// The kernel that it would run; `None` if it cannot be read.
    pub kernel: Option<Kernel>,
}

/// The record of a machine's execution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Runs, by start.
    pub runs: Vec<Run>,
    /// Effects, by time.
    pub effects: Vec<Effect>,
    /// Descriptors that still wait, by address.
    pub waiting: Vec<Waiting>,
    /// Channels whose next method waits for a semaphore that was never released.
    pub blocked: Vec<ChannelId>,
    /// Anomalies, each once.
    pub anomalies: Vec<Anomaly>,
}

impl Report {
    pub(crate) fn note(&mut self, anomaly: Anomaly) {
        if !self.anomalies.contains(&anomaly) {
            self.anomalies.push(anomaly);
        }
    }
}
