// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Records what RM has acknowledged of each channel group and channel, and which control it gets
//! next.
//!
//! ```text
//! subject        a channel group or a channel, under the alias that is charged
//! clean, dirty   RM has, or does not yet have, what the limits in force want of the subject
//! control        one call of RM; a freeze names several channels of one process
//! in flight      the control was handed out and has not completed
//! flush          the controls that one caller sends before it returns
//! pending write  a limit that is written but not stored: not all its controls are acknowledged
//! stale          a group whose members' shares of a time slice changed and are not yet compared
//! ```
//!
//! Each process has lists of its subjects ([`List`](crate::objects::List)) and at most one control
//! in flight. An outcome counts only for subjects that are still in the list of those in flight. If
//! a tenant overrides a limit meanwhile, its subject leaves that list at once: the outcome does not
//! reach it, and it is dirty again.

use crate::ids::{GpuId, GroupId, Owner, ProcKey};
use crate::iface::value::Value;
use crate::iface::File;
use crate::rmapi::control::{Control, Status, CHANNELS_MAX};
use crate::rmapi::Class;
use crate::slice::{Slice, SliceUpdate};
use crate::units::{Ns, Sat};

/// Whether RM runs a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// The channel may run.
    Runs,
    /// RM has stopped the channel.
    Frozen,
    /// A control is in flight or failed, or the tenant may have overridden the last one.
    Unknown,
}

impl Run {
    /// Returns whether this is the state that the limit wants.
    const fn is(self, freeze: bool) -> bool {
        match self {
            Self::Runs => !freeze,
            Self::Frozen => freeze,
            Self::Unknown => false,
        }
    }

    /// Returns the update that leads to the state that the limit wants.
    pub(crate) fn update(self, freeze: bool) -> Option<Update> {
        (!self.is(freeze)).then_some(Update::Freeze(freeze))
    }

    /// Returns the state after RM has acknowledged a freeze or its end.
    pub(crate) const fn after(freeze: bool) -> Self {
        match freeze {
            true => Self::Frozen,
            false => Self::Runs,
        }
    }
}

/// State of a subject as RM has acknowledged it, and what is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acked {
    /// Whether this alias of a resource is the subject.
    pub(crate) primary: bool,
    /// A channel group's time slice.
    pub(crate) slice: Slice,
    /// Whether a channel runs.
    pub(crate) run: Run,
    /// Maximum number of channels in a control that names this one.
    pub(crate) batch_max: usize,
    /// The last refusal. It counts once the object turns out to exist.
    pub(crate) refusal: Option<Refusal>,
    /// RM refused the last update, or has no such object. The next event that marks it retries.
    pub(crate) given_up: bool,
    /// Sequence number of the event that made it dirty.
    pub(crate) dirty_since: u64,
}

impl Acked {
    pub(crate) const NONE: Self = Self {
        primary: false,
        slice: Slice::Own,
        run: Run::Runs,
        batch_max: CHANNELS_MAX,
        refusal: None,
        given_up: false,
        dirty_since: 0,
    };

    /// Records that RM has no such object.
    pub(crate) fn gone(&mut self) {
        (self.refusal, self.given_up) = (None, true);
    }

    /// Returns what is known of the resource, for another alias that becomes the subject.
    pub(crate) const fn inherited(&self) -> Self {
        Self {
            primary: self.primary,
            slice: self.slice,
            run: self.run,
            ..Self::NONE
        }
    }
}

/// One step that brings RM's state of a subject towards the limits in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    /// Reads or sets a channel group's time slice.
    Slice(SliceUpdate),
    /// Stops a channel, or lets it run.
    Freeze(bool),
    /// After a refusal: asks for the class of the object under the handle.
    CheckClass(Class),
    /// After that: asks something that RM does not answer for a lost object.
    CheckAlive(Class),
}

/// An update that RM refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) update: Update,
    pub(crate) status: Status,
    /// RM has an object of the right class under the handle.
    pub(crate) exists: bool,
}

impl Update {
    /// Returns the file whose limit the update enforces.
    pub(crate) const fn file(self) -> Option<File> {
        match self {
            Self::Slice(_) => Some(File::ComputeTimeslice),
            Self::Freeze(_) => Some(File::ComputeFreeze),
            Self::CheckClass(_) | Self::CheckAlive(_) => None,
        }
    }
}

/// A control in flight. Pass it to [`State::control_done`](crate::state::State::control_done).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    pub(crate) proc: ProcKey,
    pub(crate) number: u64,
    pub(crate) update: Update,
}

/// A control in flight to wait for. See [`State::is_over`](crate::state::State::is_over).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub(crate) proc: ProcKey,
    pub(crate) number: u64,
}

/// The next step of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "it lives on the stack of who sends the control"
)]
pub enum Next {
    /// Send this control.
    Send(Control, InFlight),
    /// Another thread sends a control for the same process. Wait, then ask again.
    Busy(Wait),
    /// The flush is done.
    Nothing,
}

/// Outcome of a control, for its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// A thread waits for this control.
    pub has_waiter: bool,
    /// The pending write was refused.
    pub refused: bool,
}

/// Maximum number of other processes that a flush names.
pub(crate) const SHARERS_MAX: usize = 8;

/// Other processes whose channels one ioctl may have enabled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touched {
    pub(crate) procs: [Option<ProcKey>; SHARERS_MAX],
    /// There are more than fit.
    pub(crate) more: bool,
}

impl Touched {
    pub(crate) const NOBODY: Self = Self {
        procs: [None; SHARERS_MAX],
        more: false,
    };

    pub(crate) fn add(&mut self, proc: ProcKey) {
        let free = |slot: &&mut Option<ProcKey>| slot.is_none_or(|known| known == proc);
        match self.procs.iter_mut().find(free) {
            Some(slot) => *slot = Some(proc),
            None => self.more = true,
        }
    }
}

/// A set of controls that one caller sends: those of an owner that are dirty by `until`. Later ones
/// belong to the caller that makes them dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// `None` means all owners.
    pub(crate) owner: Option<Owner>,
    pub(crate) others: [Option<ProcKey>; SHARERS_MAX],
    pub(crate) until: u64,
    /// The flush waits for controls in flight that other threads send.
    pub(crate) waits: bool,
    /// The flush belongs to a write, whose limit may be refused.
    pub(crate) writes: bool,
}

impl Flush {
    /// Returns whether the flush ends when the pending write is refused.
    pub const fn ends_at_refusal(&self) -> bool {
        self.writes
    }

    /// All dirty processes in queue order, except for those with a control in flight.
    pub const ALL: Self = Self {
        owner: None,
        others: [None; SHARERS_MAX],
        until: u64::MAX,
        waits: false,
        writes: false,
    };
}

/// A limit that is written and not yet stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingWrite {
    pub(crate) owner: Owner,
    pub(crate) gpu: GpuId,
    pub(crate) file: File,
    pub(crate) value: Value,
    /// RM's status, if it refused the limit.
    pub(crate) refused: Option<Status>,
}

/// Processes that may have dirty subjects, the one that waits longest first.
#[derive(Debug)]
pub(crate) struct ProcQueue {
    pub(crate) first: Option<ProcKey>,
    pub(crate) last: Option<ProcKey>,
    pub(crate) count: Sat<usize>,
}

/// A process's links in a list of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcLinks {
    pub(crate) previous: Option<ProcKey>,
    pub(crate) next: Option<ProcKey>,
}

impl ProcLinks {
    /// Links of a process without neighbours, or in no list.
    pub(crate) const ALONE: Self = Self {
        previous: None,
        next: None,
    };
}

/// All pending updates, beside the lists of the processes.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) dirty_procs: ProcQueue,
    /// Subjects in another state than [`Run::Runs`].
    pub(crate) stopped: Sat<usize>,
    /// Other processes whose channels the last ioctl may have enabled.
    pub(crate) touched: Touched,
    pub(crate) pending_write: Option<PendingWrite>,
    /// Number of stale groups.
    pub(crate) stale: Sat<usize>,
    /// The stale group whose members are being compared, and the next member.
    pub(crate) stale_cursor: Option<(GroupId, ProcKey)>,
    /// When pauses were decided on last.
    pub(crate) pauses_at: Ns,
    /// The first pool of those whose owners may pause.
    pub(crate) first_pausing: Option<(Owner, GpuId)>,
    /// Whether an owner may have pauses that were not looked at yet.
    pub(crate) has_new_pauses: bool,
    /// Whether the limits of a process on launches have changed without a write.
    pub(crate) has_new_terms: bool,
    /// Owners wait for their controls, so that a pause or a turn begins.
    pub(crate) pauses_settle: bool,
}

impl Plan {
    pub(crate) const NONE: Self = Self {
        dirty_procs: ProcQueue {
            first: None,
            last: None,
            count: Sat(0),
        },
        stopped: Sat(0),
        touched: Touched::NOBODY,
        pending_write: None,
        stale: Sat(0),
        stale_cursor: None,
        pauses_at: Ns(0),
        first_pausing: None,
        has_new_pauses: false,
        has_new_terms: false,
        pauses_settle: false,
    };
}
