// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the resource manager was told of each channel group and channel, and what it is to be told next.
//!
//! Terminology
//!   subject    a channel group or a channel, under the one of its names that is charged
//!   dirty      RM does not yet have what the limits in force want of the subject
//!   control    one call of the resource manager; a freeze names several channels of one process
//!   in flight  the control was handed out and its outcome is not known
//!   flush     what one caller sends before it returns
//!   pending write   a limit that is written, until every control that it needs was acknowledged
//!
//! Each process has its subjects in lists ([`List`](crate::objects::List)) and at most one control in flight. A
//! subject's place in the lists is what an outcome must match: whatever a tenant undoes leaves the list of those in
//! flight at once, so that the outcome finds it no more and it is told again.

use crate::ids::{GpuId, GroupId, Owner, ProcKey};
use crate::iface::value::Value;
use crate::iface::File;
use crate::rmapi::control::{Control, Status, CHANNELS_MAX};
use crate::rmapi::Class;
use crate::slice::{Slice, SliceUpdate};

/// Whether a channel stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// As its owner wants it.
    Runs,
    /// The resource manager has stopped it.
    Frozen,
    /// It was told to stop or to go on, and has not answered, or has refused, or the tenant has undone it.
    Unknown,
}

impl Run {
    /// Is it as the limit says?
    const fn is(self, freeze: bool) -> bool {
        match self {
            Self::Runs => !freeze,
            Self::Frozen => freeze,
            Self::Unknown => false,
        }
    }

    /// What makes it as the limit says.
    pub(crate) fn update(self, freeze: bool) -> Option<Update> {
        (!self.is(freeze)).then_some(Update::Freeze(freeze))
    }

    /// What it is once the resource manager has obeyed.
    pub(crate) const fn after(freeze: bool) -> Self {
        match freeze {
            true => Self::Frozen,
            false => Self::Runs,
        }
    }
}

/// What the resource manager was told of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acked {
    /// Of several names of one thing this one is the subject.
    pub(crate) primary: bool,
    /// Of a channel group.
    pub(crate) slice: Slice,
    /// Of a channel.
    pub(crate) run: Run,
    /// How many channels a control may name that names this one.
    pub(crate) batch_max: usize,
    /// What was refused. It is believed once the object turns out to be there.
    pub(crate) refusal: Option<Refusal>,
    /// It was refused, or is not there: it is told again when something changes.
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

    /// The resource manager does not have it.
    pub(crate) fn gone(&mut self) {
        (self.refusal, self.given_up) = (None, true);
    }

    /// What is known of a thing of which another name becomes the subject.
    pub(crate) const fn inherited(&self) -> Self {
        Self {
            primary: self.primary,
            slice: self.slice,
            run: self.run,
            ..Self::NONE
        }
    }
}

/// One step that brings RM's state of an object towards the limits in force.
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
    /// There is something of the right class under the handle.
    pub(crate) exists: bool,
}

impl Update {
    /// The limit that it enforces.
    pub(crate) const fn file(self) -> Option<File> {
        match self {
            Self::Slice(_) => Some(File::ComputeTimeslice),
            Self::Freeze(_) => Some(File::ComputeFreeze),
            Self::CheckClass(_) | Self::CheckAlive(_) => None,
        }
    }
}

/// A control in flight: give it to [`State::control_done`](crate::state::State::control_done).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    pub(crate) proc: ProcKey,
    pub(crate) number: u64,
    pub(crate) update: Update,
}

/// The end of a control in flight: see [`State::is_over`](crate::state::State::is_over).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub(crate) proc: ProcKey,
    pub(crate) number: u64,
}

/// The answer to who asks for a control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "it lives on the stack of who sends the control"
)]
pub enum Next {
    /// Send this.
    Send(Control, InFlight),
    /// Somebody else is sending for the same process. Wait, then ask again.
    Busy(Wait),
    /// The flush is done.
    Nothing,
}

/// What came of a control, for who sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Somebody waits for its end.
    pub has_waiter: bool,
    /// The pending write was refused.
    pub refused: bool,
}

/// How many other processes a flush names.
pub(crate) const SHARERS_MAX: usize = 8;

/// Other processes whose channels one ioctl may have let run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touched {
    pub(crate) procs: [Option<ProcKey>; SHARERS_MAX],
    /// There are more.
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

/// Whose controls a caller sends, and how far: what becomes dirty later is for who makes it dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// `None` is anybody.
    pub(crate) owner: Option<Owner>,
    pub(crate) others: [Option<ProcKey>; SHARERS_MAX],
    pub(crate) until: u64,
    /// It waits for what others have in flight.
    pub(crate) waits: bool,
    /// It is a write's, whose limit may be refused.
    pub(crate) writes: bool,
}

impl Flush {
    /// Does it end when the pending write is refused?
    pub const fn ends_at_refusal(&self) -> bool {
        self.writes
    }

    /// Everybody's controls, in turns: a process that somebody sends for already is left out.
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
    /// Why it cannot be, if the resource manager has refused.
    pub(crate) refused: Option<Status>,
}

/// Processes that may have something dirty, in the order in which they get their turns.
#[derive(Debug)]
pub(crate) struct ProcQueue {
    pub(crate) first: Option<ProcKey>,
    pub(crate) last: Option<ProcKey>,
    pub(crate) count: usize,
}

/// A process's place in a list of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcLinks {
    pub(crate) previous: Option<ProcKey>,
    pub(crate) next: Option<ProcKey>,
}

impl ProcLinks {
    /// Nobody is before it or behind it.
    pub(crate) const ALONE: Self = Self {
        previous: None,
        next: None,
    };
}

/// What is remembered of all this.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) dirty_procs: ProcQueue,
    /// Subjects that do not run as their owners want.
    pub(crate) stopped: usize,
    /// Whose channels the last ioctl may have let run, besides its own process's.
    pub(crate) touched: Touched,
    pub(crate) pending_write: Option<PendingWrite>,
    /// Groups whose members' shares of a time slice have changed.
    pub(crate) stale: usize,
    /// One of those, and the member that is compared with its share next.
    pub(crate) stale_cursor: Option<(GroupId, ProcKey)>,
}

impl Plan {
    pub(crate) const NONE: Self = Self {
        dirty_procs: ProcQueue {
            first: None,
            last: None,
            count: 0,
        },
        stopped: 0,
        touched: Touched::NOBODY,
        pending_write: None,
        stale: 0,
        stale_cursor: None,
    };
}
