// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Combines the [`tables`](crate::tables) into the state of the core.
//!
//! The caller owns the storage of the tables. A [`State`] borrows it while the caller holds the
//! lock. The events in [`engine`](crate::engine) are the only code that changes it.

use crate::dirs::Dirs;
use crate::error::Table;
use crate::failures::Failures;
use crate::ids::{FileId, GpuId, GroupId, GroupSlots, Owner, ProcKey, Sequence, UserId};
use crate::objects::Objects;
use crate::plan::Plan;
use crate::records::{File, Gpu, Group, PathHash, Pid, Pool, Proc, User};
use crate::table::Map;
use crate::tables::{Memory, Root, Storage, Stores, Tables};
use crate::units::Sat;

/// The state of the core, while its lock is held.
#[derive(Debug)]
pub struct State<'a> {
    pub(crate) sequence: &'a mut Sequence,
    pub(crate) group_slots: &'a mut GroupSlots,
    /// Objects that ioctls in flight may add.
    pub(crate) reserved_objects: &'a mut Sat<usize>,
    /// Files with such an ioctl in flight.
    pub(crate) reserving_files: &'a mut Sat<usize>,
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
            reserved_objects: &mut root.reserved_objects,
            reserving_files: &mut root.reserving_files,
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

    /// Returns a table with a page that neither its entries nor the reserved ones need. Returns
    /// `None` while an operation is allocating: it may have added the page.
    pub(crate) fn spare(&self) -> Option<Table> {
        if self.growing > 0 {
            return None;
        }
        let places = self.places_kept();
        let spares = [
            (
                Table::Objects,
                self.objects.has_spare_page(self.reserved_objects.0),
            ),
            (Table::Pools, self.pools.has_spare_page(places)),
            (
                Table::Dirs,
                self.dirs.has_spare_page((Sat(places) * Sat(2)).0),
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

impl<M: Memory> Tables<M> {
    /// Returns the state.
    pub fn state(&mut self) -> State<'_> {
        let (root, stores) = self.parts();
        State::new(root, stores)
    }

    /// Removes a spare page; the caller frees it without the lock. `None` if no table has one.
    pub fn pop(&mut self) -> Option<Storage<M>> {
        let table = self.state().spare()?;
        self.take(table)
    }
}
