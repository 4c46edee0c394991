// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Combines the [`tables`](crate::tables) into the state of the core.
//!
//! The caller owns the storage of the tables. A [`State`] borrows it while the caller holds the
//! lock. The events in [`engine`](crate::engine) are the only code that changes it.

use crate::account::Usage;
use crate::dirs::Dirs;
use crate::error::Table;
use crate::faults::Faults;
use crate::features::FeatureSet;
use crate::gpu::GpuFacts;
use crate::ids::{FileId, GpuId, GpuIndex, GroupId, GroupSlots, Owner, ProcKey, Sequence, UserId};
use crate::iface::{CgroupPath, Name};
use crate::launches::{EffectiveTpcs, Launches};
use crate::mask::TpcMask;
use crate::objects::Objects;
use crate::plan::{Plan, ProcLinks};
use crate::settings::Settings;
use crate::table::Map;
use crate::tables::{Root, Stores};

/// A GPU.
#[derive(Debug)]
pub struct Gpu {
    pub(crate) facts: GpuFacts,
    pub(crate) features: FeatureSet,
    pub(crate) index: GpuIndex,
}

/// A named group.
#[derive(Debug)]
pub struct Group {
    pub(crate) name: Name,
    /// Empty when the group has none.
    pub(crate) cgroup: CgroupPath,
    /// What its members with the driver open have.
    pub(crate) share: Share,
    /// The first of them.
    pub(crate) first_proc: Option<ProcKey>,
    /// Their shares of a time slice have changed.
    pub(crate) stale: bool,
}

/// What one owner has of the tables that all share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) procs: u32,
    pub(crate) files: u32,
    pub(crate) objects: u32,
}

/// A user who has the driver open.
#[derive(Debug, Default)]
pub struct User {
    /// Processes, in groups or not.
    pub(crate) procs: u32,
    /// What those have that are in no group.
    pub(crate) share: Share,
}

/// A hash of a cgroup path. Who finds a group by it compares the paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathHash(pub(crate) u64);

/// The processes that share a pid, one after the other, and have files open.
#[derive(Debug)]
pub struct Pid {
    /// Start of the youngest that was seen.
    pub(crate) youngest_ns: u64,
    pub(crate) procs: u32,
}

/// A process that has the driver open, or had when it opened a file that is
/// still open elsewhere.
#[derive(Debug)]
pub struct Proc {
    /// Its cgroup when it last opened the driver; empty when unknown.
    pub(crate) cgroup: CgroupPath,
    /// The group it belongs to by pid.
    pub(crate) by_pid: Option<GroupId>,
    /// The group it belongs to: by pid, or else by cgroup.
    pub(crate) group: Option<GroupId>,
    pub(crate) user: UserId,
    pub(crate) files: u32,
    pub(crate) objects: u32,
    /// A younger process has its pid: it is dead, its files live on in its children, and the directory of that pid is
    /// not its own.
    pub(crate) replaced: bool,
    /// GPUs on which it has channel groups, each of which is a directory.
    pub(crate) visible: u32,
    /// The space of its lists.
    pub(crate) space: u64,
    /// The control in flight that names its objects.
    pub(crate) in_flight: Option<u64>,
    /// Somebody waits for the end of that.
    pub(crate) has_waiter: bool,
    /// Its place in the queue of processes with dirty objects.
    pub(crate) queued: Option<ProcLinks>,
    /// Its place among the members of its group.
    pub(crate) group_links: ProcLinks,
}

/// A pool: the settings and counters of one owner (group or process) on one GPU.
#[derive(Debug, Default)]
pub struct Pool {
    pub(crate) settings: Settings,
    /// The TPCs that are reserved for its quota.
    pub(crate) reserved: TpcMask,
    pub(crate) usage: Usage,
    pub(crate) launches: Launches,
    /// The TPCs that the last launch was granted.
    pub(crate) effective: EffectiveTpcs,
    /// Allocations that were refused because of `gmem.limit`.
    pub(crate) refusals: u64,
    /// Errors of the GPU.
    pub(crate) faults: Faults,
    /// Processes that the limits do not bind; `None` unless processes enforce limits themselves.
    pub(crate) unbound: Option<u32>,
    /// A process's pool has a directory while it has channel groups.
    pub(crate) visible: bool,
}

impl Pool {
    /// Has it a directory? A process's has none without channel groups.
    pub(crate) const fn is_shown(&self, owner: Owner) -> bool {
        matches!(owner, Owner::Group(_)) || self.visible
    }
}

/// An open file of the driver.
#[derive(Debug)]
pub struct File {
    pub(crate) proc: ProcKey,
    /// Objects that are counted in the shares.
    pub(crate) objects: u32,
    /// Objects that an ioctl under way may add.
    pub(crate) promised: u32,
}

/// The reason why an object or an event could not be tracked. The root's `events` counts each.
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
}

/// Counts of [`Failure`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failures {
    pub(crate) limit: u64,
    pub(crate) memory: u64,
    pub(crate) decode: u64,
    pub(crate) members: u64,
    pub(crate) client: u64,
    pub(crate) gpu: u64,
    pub(crate) charge: u64,
    pub(crate) control: u64,
}

/// The state of the core, while its lock is held.
#[derive(Debug)]
pub struct State<'a> {
    pub(crate) sequence: &'a mut Sequence,
    pub(crate) group_slots: &'a mut GroupSlots,
    /// Objects that ioctls in flight may add.
    pub(crate) promised: &'a mut usize,
    /// Files with such an ioctl in flight.
    pub(crate) promisers: &'a mut usize,
    /// Operations that are allocating storage.
    pub(crate) growing: usize,
    pub(crate) failures: &'a mut Failures,
    pub(crate) plan: &'a mut Plan,
    pub(crate) gpus: Map<'a, GpuId, Gpu>,
    pub(crate) groups: Map<'a, GroupId, Group>,
    pub(crate) paths: Map<'a, PathHash, GroupId>,
    pub(crate) procs: Map<'a, ProcKey, Proc>,
    pub(crate) pids: Map<'a, u32, Pid>,
    pub(crate) users: Map<'a, UserId, User>,
    pub(crate) pools: Map<'a, (Owner, GpuId), Pool>,
    pub(crate) files: Map<'a, FileId, File>,
    pub(crate) objects: Objects<'a>,
    pub(crate) dirs: Dirs<'a>,
}

impl<'a> State<'a> {
    /// Combines the tables with their storage.
    pub(crate) fn new(root: &'a mut Root, stores: Stores<'a>) -> Self {
        let metas = &mut root.metas;
        Self {
            sequence: &mut root.sequence,
            group_slots: &mut root.group_slots,
            promised: &mut root.promised,
            promisers: &mut root.promisers,
            growing: root.growing.0,
            failures: &mut root.failures,
            plan: &mut root.plan,
            gpus: Map::new(&mut metas.gpus, stores.gpus),
            groups: Map::new(&mut metas.groups, stores.groups),
            paths: Map::new(&mut metas.paths, stores.paths),
            procs: Map::new(&mut metas.procs, stores.procs),
            pids: Map::new(&mut metas.pids, stores.pids),
            users: Map::new(&mut metas.users, stores.users),
            pools: Map::new(&mut metas.pools, stores.pools),
            files: Map::new(&mut metas.files, stores.files),
            objects: Objects::new(
                Map::new(&mut metas.objects, stores.objects),
                &mut root.extra_aliases,
            ),
            dirs: Dirs::new(Map::new(&mut metas.dirs, stores.dirs), &mut root.queue),
        }
    }

    /// Returns whether a table has a page that no entry needs. O(1).
    pub fn has_spare(&self) -> bool {
        self.spare().is_some()
    }

    /// Returns a table with a page that neither its entries nor the reserved ones need. Returns `None`
    /// while an operation is allocating: it may have added the page.
    pub(crate) fn spare(&self) -> Option<Table> {
        if self.growing > 0 {
            return None;
        }
        let places = self.places_kept();
        let spares = [
            (Table::Objects, self.objects.has_spare_page(*self.promised)),
            (Table::Pools, self.pools.has_spare_page(places)),
            (
                Table::Dirs,
                self.dirs.has_spare_page(places.saturating_mul(2)),
            ),
            (Table::Files, self.files.has_spare_page(0)),
            (Table::Procs, self.procs.has_spare_page(0)),
            (Table::Pids, self.pids.has_spare_page(0)),
            (Table::Users, self.users.has_spare_page(0)),
            (Table::Groups, self.groups.has_spare_page(0)),
            (Table::Paths, self.paths.has_spare_page(0)),
            (Table::Gpus, self.gpus.has_spare_page(0)),
        ];
        let spare = spares.iter().find(|(_, has_spare_page)| *has_spare_page);
        spare.map(|(table, _)| *table)
    }
}
