// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines identifiers that are never reused.
//!
//! pids, handles of the resource manager and slots are reused at once. An identifier that outlives
//! its object would then act on another one. So a process is its pid and its start time. Everything
//! that the core itself names gets a number from one 64-bit counter that only grows.

use crate::iface::Place;
use crate::limits;
use crate::rmapi::Handle;
use crate::units::Sat;
use core::num::NonZero;

/// A process: its thread group and its start time.
///
/// Linux copies a leader's start time to the thread that replaces it in `execve`, so the pair lasts
/// as long as the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcKey {
    /// Thread group id in the initial pid namespace.
    pub tgid: u32,
    /// Start time in nanoseconds since boot.
    pub start_time_ns: u64,
}

/// A named group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupId(pub(crate) u64);

impl GroupId {
    /// Returns a number below [`GROUPS_MAX`](limits::GROUPS_MAX) that no other living group has.
    pub(crate) fn slot(self) -> usize {
        let groups = u64::try_from(limits::GROUPS_MAX).unwrap_or(u64::MAX);
        let slot = self.0.checked_rem(groups).unwrap_or(0);
        usize::try_from(slot).unwrap_or(0)
    }
}

/// The [slots](GroupId::slot) in use.
#[derive(Debug)]
pub(crate) struct GroupSlots([u64; limits::GROUPS_MAX / 64]);

impl GroupSlots {
    pub(crate) const NONE: Self = Self([0; limits::GROUPS_MAX / 64]);

    /// Allocates a slot for a new group. Returns `None` if all slots are in use.
    pub(crate) fn take(&mut self, sequence: u64) -> Option<GroupId> {
        for (at, word) in (0..limits::GROUPS_MAX / 64).zip(self.0.iter_mut()) {
            let bit = word.trailing_ones();
            if let Some(mask) = 1u64.checked_shl(bit) {
                *word |= mask;
                let at = u64::try_from(at).ok()?;
                let groups = u64::try_from(limits::GROUPS_MAX).ok()?;
                let slot = Sat(at) * Sat(64) + Sat(u64::from(bit));
                return Some(GroupId((Sat(sequence) * Sat(groups) + slot).0));
            }
        }
        None
    }

    /// Releases the slot of a group without members.
    pub(crate) fn give(&mut self, group: GroupId) {
        let (at, bit) = (group.slot() / 64, group.slot() % 64);
        let mask = u32::try_from(bit)
            .ok()
            .and_then(|bit| 1u64.checked_shl(bit));
        if let (Some(word), Some(mask)) = (self.0.get_mut(at), mask) {
            *word &= !mask;
        }
    }
}

/// A user of the machine, by the kernel's number: the user that opened the driver, or that made the
/// user namespace in which the driver was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserId(pub u32);

/// A GPU, from its arrival to its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuId(pub(crate) u64);

/// An open file of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub(crate) u64);

impl FileId {
    /// Returns the token that the driver keeps with its file. It is never 0.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Converts such a token back. The number of no open file is harmless: it finds nothing.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
}

/// The `<n>` of the tree: the GPU's position in the order of PCI addresses, as in nvidia-smi.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuIndex(pub u8);

/// The owner of limits and usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A named group: the sum of its members.
    Group(GroupId),
    /// One process.
    Proc(ProcKey),
}

/// The subject of a directory's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The root of the tree.
    Root,
    /// Facts of a GPU: `gpus/<n>/`.
    Gpu(GpuId),
    /// A named group: `<name>/`.
    Group(GroupId),
    /// A process: `<pid>/`. It has directories of GPUs and no files.
    Proc(ProcKey),
    /// An owner on a GPU: `<name>/<n>/` and `<pid>/<n>/`.
    Pool(Owner, GpuId),
}

impl Scope {
    /// Returns the kind of files that the directory has, if any.
    pub const fn place(self) -> Option<Place> {
        match self {
            Self::Root => Some(Place::Root),
            Self::Gpu(_) => Some(Place::Gpu),
            Self::Group(_) => Some(Place::Group),
            Self::Proc(_) => None,
            Self::Pool(..) => Some(Place::Pool),
        }
    }

    /// Returns the subject of the parent directory, for directories that move with it.
    pub(crate) const fn parent(self) -> Option<Self> {
        match self {
            Self::Pool(Owner::Group(group), _) => Some(Self::Group(group)),
            Self::Pool(Owner::Proc(proc), _) => Some(Self::Proc(proc)),
            _ => None,
        }
    }
}

/// A counter that only grows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence(u64);

impl Sequence {
    pub(crate) const fn new() -> Self {
        Self(0)
    }

    /// Returns the next number, from 1.
    pub(crate) fn next(&mut self) -> u64 {
        // One number a nanosecond saturates after 584 years.
        self.0 = self.0.saturating_add(1);
        self.0
    }
}

/// A name of memory in a file, of which the core lets go once nothing keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept(NonZero<Handle>);

impl Kept {
    /// The lowest handle of one. Exports have lower handles, and clients higher ones.
    const FIRST: Handle = 1 << 30;
    /// The number of handles.
    const COUNT: Handle = 1 << 30;

    /// Returns the number with which C names it. It is not 0.
    pub const fn raw(self) -> u32 {
        self.0.get()
    }

    /// Returns the name with a number, if there may be one.
    pub fn from_raw(raw: u32) -> Option<Self> {
        let handle = NonZero::new(raw);
        handle.filter(|_| Self::is_handle(raw)).map(Self)
    }

    const fn is_handle(handle: Handle) -> bool {
        handle >= Self::FIRST && handle - Self::FIRST < Self::COUNT
    }

    /// Returns the name after another one, after the last the first.
    pub(crate) fn after(last: Option<Self>) -> Option<Self> {
        let next = last.and_then(|last| Self::from_raw(last.raw().checked_add(1)?));
        next.or_else(|| Self::from_raw(Self::FIRST))
    }
}

/// Names that one channel keeps: those of two notifiers, USERD and the ring.
pub const OF_CHANNEL: usize = 4;

/// The names that a channel keeps.
pub type KeptNames = [Option<Kept>; OF_CHANNEL];
