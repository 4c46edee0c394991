// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the entries of the tables: GPUs, groups, users, processes, pools and open files.

use crate::account::Usage;
use crate::faults::Faults;
use crate::features::FeatureSet;
use crate::gpu::GpuFacts;
use crate::gpu_time::GpuTime;
use crate::ids::Kept;
use crate::ids::{GpuId, GpuIndex, GroupId, Owner, ProcKey, UserId};
use crate::iface::value::CpuList;
use crate::iface::{CgroupPath, Name};
use crate::launches::{EffectiveTpcs, Launches};
use crate::mask::TpcMask;
use crate::plan::ProcLinks;
use crate::policy::balance::Balance;
use crate::policy::clock::Clock;
use crate::policy::pauses::Pauses;
use crate::policy::slo::Verdict;
use crate::policy::tpc::Rank;
use crate::rmapi::allow::Rule;
use crate::settings::Settings;
use crate::units::{Bytes, Mhz, Ns, Sat, Us};

/// A GPU.
#[derive(Debug)]
pub struct Gpu {
    pub(crate) facts: GpuFacts,
    pub(crate) features: FeatureSet,
    pub(crate) index: GpuIndex,
    /// The last error that the GPU does not survive without a reset; 0 if there was none.
    pub(crate) lost_xid: u32,
    /// Where the thread for owned channels may run.
    pub(crate) worker_cpus: CpuList,
    /// What the thread had cost when the backend last said.
    pub(crate) worker_cost: WorkerCost,
    /// What goals do to owners without one.
    pub(crate) pressure: Option<Pressure>,
    /// Its clock, where a backend changes it.
    pub(crate) clock: GpuClock,
}

/// The clock of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuClock {
    /// The clock that processes measure at; `None` while it is changed.
    pub told: Option<Clock>,
    /// The highest clock of now, and of the GPU.
    pub now: Mhz,
    /// The second of these.
    pub highest: Mhz,
    /// How often it was changed.
    pub changes: u64,
    /// How often that failed.
    pub errors: u64,
}

/// What an owner asks of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asks {
    /// The lowest clock that it tolerates; 0 if it has had no work lately.
    pub clock: Mhz,
    /// How much of its work depends on the clock, in thousandths; 0 if that is not known.
    pub sensitivity: u64,
}

/// What the goals of a GPU's services do to other owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pressure {
    /// The highest level.
    pub(crate) level: u8,
    /// The earliest rank of the services. Owners of an earlier one are left alone.
    pub(crate) rank: Rank,
}

/// What the thread for a GPU's owned channels has cost since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCost {
    /// How long it ran.
    pub ran: Ns,
    /// How often it went to sleep.
    pub sleeps: u64,
}

/// A named group.
#[derive(Debug)]
pub struct Group {
    pub(crate) name: Name,
    /// Its cgroup path; empty if it has none.
    pub(crate) cgroup: CgroupPath,
    /// Its entries in the shared tables.
    pub(crate) share: Share,
    /// The first of its processes that have the driver open.
    pub(crate) first_proc: Option<ProcKey>,
    /// Whether its processes' shares of its time slice have changed.
    pub(crate) stale: bool,
}

/// The number of entries that one owner has in the tables that all owners share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) procs: Sat<u32>,
    pub(crate) files: Sat<u32>,
    pub(crate) objects: Sat<u32>,
}

/// Who pays for entries in tables that all share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payer {
    /// A group.
    Group(GroupId),
    /// A user, for processes in no group.
    User(UserId),
}

/// A user with the driver open.
#[derive(Debug, Default)]
pub struct User {
    /// Its processes, in groups or not.
    pub(crate) procs: Sat<u32>,
    /// The entries of its processes that are in no group.
    pub(crate) share: Share,
}

/// The hash of a cgroup path. Hashes can collide, so a lookup compares the paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathHash(pub(crate) u64);

/// The processes that had the same pid one after the other, and have files open.
#[derive(Debug)]
pub struct Pid {
    /// Start time of the youngest one.
    pub(crate) youngest_ns: u64,
    pub(crate) procs: Sat<u32>,
}

/// A process that has opened the driver. It stays until its last file is closed, even if another
/// process holds the file.
#[derive(Debug)]
pub struct Proc {
    /// Its cgroup when it last opened the driver; empty if unknown.
    pub(crate) cgroup: CgroupPath,
    /// Its group by pid, if any.
    pub(crate) by_pid: Option<GroupId>,
    /// Its group: by pid, or else by cgroup.
    pub(crate) group: Option<GroupId>,
    pub(crate) user: UserId,
    pub(crate) files: Sat<u32>,
    pub(crate) objects: Sat<u32>,
    /// Whether a younger process has its pid. Then it is dead, its children hold its files, and the
    /// directory of the pid belongs to the younger process.
    pub(crate) replaced: bool,
    /// The number of GPUs on which it has channel groups, and so a directory.
    pub(crate) visible: Sat<u32>,
    /// The hidden space of its lists.
    pub(crate) space: u64,
    /// The control in flight that names its objects.
    pub(crate) in_flight: Option<u64>,
    /// Whether a thread waits for its completion.
    pub(crate) has_waiter: bool,
    /// Its place in the queue of processes with dirty objects.
    pub(crate) queued: Option<ProcLinks>,
    /// Its neighbours among the processes of its group.
    pub(crate) group_links: ProcLinks,
}

/// A pool's links in a list of pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolLinks {
    pub(crate) previous: Option<(Owner, GpuId)>,
    pub(crate) next: Option<(Owner, GpuId)>,
}

/// A pool: the settings and counters of one owner (group or process) on one GPU.
#[derive(Debug, Default)]
pub struct Pool {
    pub(crate) settings: Settings,
    /// TPCs reserved for its quota.
    pub(crate) reserved: TpcMask,
    pub(crate) usage: Usage,
    pub(crate) launches: Launches,
    /// The time that it had of the GPU.
    pub(crate) time: GpuTime,
    /// Launches, atoms and entries in flight or held back, when the backend last said.
    pub(crate) pending: u64,
    /// TPCs granted to the last launch.
    pub(crate) effective: EffectiveTpcs,
    /// Allocations refused because of `gmem.limit`.
    pub(crate) refusals: u64,
    /// Roots of 2 MiB evicted because of `gmem.limit`.
    pub(crate) evictions: Sat<u64>,
    /// Those of them that the evictor has evicted ahead.
    pub(crate) ahead: Sat<u64>,
    /// Roots of 2 MiB that a full GPU took although the owner was within `gmem.limit`.
    pub(crate) taken: Sat<u64>,
    /// A lower `gmem.limit` that is in force and not stored yet.
    pub(crate) trial: Option<Bytes>,
    /// What `gmem.low` leaves of `gmem.limit` now, where a backend looks at it.
    pub(crate) allowed: Option<Bytes>,
    /// What that rests on.
    pub(crate) balance: Balance,
    /// Channels that were allocated with a ring of the driver's.
    pub(crate) owned: Sat<u64>,
    /// Channels that were to have one and have their tenant's.
    pub(crate) unowned: Sat<u64>,
    /// Controls and classes that were refused to it, indexed by [`Rule`].
    pub(crate) forbidden: [u64; Rule::COUNT],
    /// When its channels pause, while it has some with their tenant's ring.
    pub(crate) pauses: Pauses,
    /// The number of the event behind which all of its channels knew of the last pause, or its end.
    pub(crate) paused_at: u64,
    /// Its neighbours among the pools whose owners may pause, while it is one of them.
    pub(crate) pausing: Option<PoolLinks>,
    /// Errors of the GPU that ended its work.
    pub(crate) faults: Faults,
    /// Processes that the limits do not bind; `None` unless processes enforce limits themselves.
    pub(crate) unbound: Option<u32>,
    /// What is done for its `slo.p99`.
    pub(crate) goal: Verdict,
    /// How long its requests are, if the backend knows.
    pub(crate) request: Option<Us>,
    /// Whether it yields to shorter requests of its rank.
    pub(crate) yields: bool,
    /// What it asks of the clock.
    pub(crate) asks: Asks,
    /// For a process: whether it has channel groups here, and so a directory.
    pub(crate) visible: bool,
}

impl Pool {
    /// Returns whether it has a directory. A group's always has one.
    pub(crate) const fn is_shown(&self, owner: Owner) -> bool {
        matches!(owner, Owner::Group(_)) || self.visible
    }
}

/// An open file of the driver.
#[derive(Debug)]
pub struct File {
    pub(crate) proc: ProcKey,
    /// Its objects, which count in its owner's [`Share`].
    pub(crate) objects: Sat<u32>,
    /// Objects that an ioctl in flight may add.
    pub(crate) reserved: Sat<u32>,
    /// Whether it is an account for managed memory, and no file that somebody has opened.
    pub(crate) is_account: bool,
    /// Whether it shares objects with another process's file, or did.
    pub(crate) is_entangled: bool,
    /// The name that it got last for memory that is kept.
    pub(crate) last_kept: Option<Kept>,
}
