// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names for things, none of which is ever reused.
//!
//! pids, handles of the resource manager and slots are reused at once; a name
//! that outlives what it named would then act on a stranger. So a process is
//! its pid together with its start time, and everything that the core itself
//! names gets a number from one counter that only grows. Such a number is its
//! own generation: 2^64 of them do not run out.

use crate::iface::Place;
use crate::limits;

/// A process: the thread group and when it started.
///
/// Linux copies a leader's start time to the thread that replaces it in
/// `execve`, so the pair lasts as long as the process does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcKey {
    /// Thread group id in the initial pid namespace.
    pub tgid: u32,
    /// When the process started, in nanoseconds since boot.
    pub start_time_ns: u64,
}

/// A named group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupId(pub(crate) u64);

impl GroupId {
    /// A number below [`GROUPS_MAX`](limits::GROUPS_MAX) that no other group has meanwhile.
    pub(crate) fn slot(self) -> usize {
        let groups = u64::try_from(limits::GROUPS_MAX).unwrap_or(u64::MAX);
        let slot = self.0.checked_rem(groups).unwrap_or(0);
        usize::try_from(slot).unwrap_or(0)
    }
}

/// Which [slots](GroupId::slot) groups have.
#[derive(Debug)]
pub(crate) struct GroupSlots([u64; limits::GROUPS_MAX / 64]);

impl GroupSlots {
    pub(crate) const NONE: Self = Self([0; limits::GROUPS_MAX / 64]);

    /// Makes a group of a number that was never used. `None` when all slots are taken.
    pub(crate) fn take(&mut self, sequence: u64) -> Option<GroupId> {
        for (at, word) in (0..limits::GROUPS_MAX / 64).zip(self.0.iter_mut()) {
            let bit = word.trailing_ones();
            if let Some(mask) = 1u64.checked_shl(bit) {
                *word |= mask;
                let slot = at.saturating_mul(64);
                let slot = u64::try_from(slot).ok()?.saturating_add(u64::from(bit));
                let groups = u64::try_from(limits::GROUPS_MAX).ok()?;
                return Some(GroupId(
                    sequence.saturating_mul(groups).saturating_add(slot),
                ));
            }
        }
        None
    }

    /// Gives the slot of a group back, which has no member.
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

/// A user of the machine, by the kernel's number: who opened the driver, or who made the
/// user namespace that it opened it in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserId(pub u32);

/// A GPU, from its arrival to its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuId(pub(crate) u64);

/// An open file of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub(crate) u64);

impl FileId {
    /// For the token that the driver keeps with its file. Never zero.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// From such a token. A number that is no open file is harmless: every use
    /// of it finds nothing.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
}

/// The `<n>` of the tree: position among the GPUs in order of PCI address, which is
/// what nvidia-smi shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuIndex(pub u8);

/// Who limits and usage belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A named group: the sum of its members.
    Group(GroupId),
    /// One process.
    Proc(ProcKey),
}

/// What the files of one directory are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The root of the tree.
    Root,
    /// Facts of a GPU: `gpus/<n>/`.
    Gpu(GpuId),
    /// A named group: `<name>/`.
    Group(GroupId),
    /// A process: `<pid>/`. It has directories of GPUs and no file of its own.
    Proc(ProcKey),
    /// An owner on a GPU: `<name>/<n>/` and `<pid>/<n>/`.
    Node(Owner, GpuId),
}

impl Scope {
    /// Which files the directory has, if any.
    pub const fn place(self) -> Option<Place> {
        match self {
            Self::Root => Some(Place::Root),
            Self::Gpu(_) => Some(Place::Gpu),
            Self::Group(_) => Some(Place::Group),
            Self::Proc(_) => None,
            Self::Node(..) => Some(Place::Node),
        }
    }

    /// What the directory above it is about, for those that move with it.
    pub(crate) const fn parent(self) -> Option<Self> {
        match self {
            Self::Node(Owner::Group(group), _) => Some(Self::Group(group)),
            Self::Node(Owner::Proc(proc), _) => Some(Self::Proc(proc)),
            _ => None,
        }
    }
}

/// Numbers that grow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence(u64);

impl Sequence {
    pub(crate) const fn new() -> Self {
        Self(0)
    }

    /// The next number, from 1.
    pub(crate) fn next(&mut self) -> u64 {
        // At one number a nanosecond this saturates after 584 years.
        self.0 = self.0.saturating_add(1);
        self.0
    }
}
