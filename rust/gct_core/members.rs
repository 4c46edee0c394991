// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Who belongs to a group by pid.
//!
//! This table is apart from [`State`](crate::state::State) because forks and
//! exits are seen in atomic context: it is used under a spinlock, allocates
//! nothing and never waits. Lock order: the state's mutex, then this spinlock.
//!
//! A fork cannot wait for storage. The glue keeps the table at most half full
//! from a work item ([`Members::headroom`]); a fork that finds it full all the
//! same is counted in [`Members::lost`], and the child is then governed by its
//! cgroup alone.

use crate::error::{Error, Need, Table};
use crate::ids::{GroupId, ProcKey};
use crate::limits;
use crate::table::{self, Map, Meta, Slot};
use crate::tables::{exchange, Memory};

/// Storage for one member.
pub type MemberSlot = Slot<ProcKey, GroupId>;

/// What is remembered between two uses of the storage.
#[derive(Debug)]
pub struct MembersRoot {
    meta: Meta,
    lost: u64,
}

impl MembersRoot {
    /// No members. `seed` is a random number that nobody else knows.
    pub const fn new(seed: u64) -> Self {
        Self {
            meta: Meta::new(Table::Members, limits::MEMBERS_MAX, seed),
            lost: 0,
        }
    }
}

/// The members, while the lock is held.
#[derive(Debug)]
pub struct Members<'a> {
    map: Map<'a, ProcKey, GroupId>,
    lost: &'a mut u64,
}

impl<'a> Members<'a> {
    /// Joins what is remembered with its storage.
    pub fn new(root: &'a mut MembersRoot, slots: &'a mut [MemberSlot]) -> Self {
        Self {
            map: Map::new(&mut root.meta, slots),
            lost: &mut root.lost,
        }
    }

    /// The group to which the process belongs by pid.
    pub fn group_of(&self, proc: ProcKey) -> Option<GroupId> {
        self.map.get(&proc).copied()
    }

    /// Puts a process into a group and returns the one it leaves.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: it stays where it was.
    pub fn put(&mut self, proc: ProcKey, group: GroupId) -> Result<Option<GroupId>, Error> {
        self.map.insert(proc, group)
    }

    /// Takes a process out of its group.
    pub fn remove(&mut self, proc: ProcKey) -> Option<GroupId> {
        self.map.remove(&proc)
    }

    /// A process was forked: the child belongs where its parent belongs.
    ///
    /// A new thread has its parent's key, so nothing changes.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: the child belongs to no group by
    /// pid, and that is counted.
    pub fn on_fork(&mut self, parent: ProcKey, child: ProcKey) -> Result<Option<GroupId>, Error> {
        let Some(group) = self.group_of(parent) else {
            return Ok(None);
        };
        match self.put(child, group) {
            Ok(_) => Ok(Some(group)),
            Err(error) => {
                *self.lost = self.lost.saturating_add(1);
                Err(error)
            }
        }
    }

    /// A process exited: its last thread is gone.
    pub fn on_exit(&mut self, proc: ProcKey) -> Option<GroupId> {
        self.remove(proc)
    }

    /// Number of members of a group. Looks at every slot.
    pub fn count(&self, group: GroupId) -> usize {
        table::count(self.of(group))
    }

    /// Copies the members of a group to `out`, as many as fit, in no order.
    ///
    /// Returns how many there are: if that is more than `out` holds, take a
    /// larger one outside the lock and ask again.
    pub fn list(&self, group: GroupId, out: &mut [ProcKey]) -> usize {
        for (to, from) in out.iter_mut().zip(self.of(group)) {
            *to = from;
        }
        self.count(group)
    }

    /// Forks whose child could not be added.
    pub fn lost(&self) -> u64 {
        *self.lost
    }

    /// What to allocate when the table is more than half as full as it may get.
    pub fn headroom(&self) -> Option<Need> {
        self.map.headroom()
    }

    fn of(&self, group: GroupId) -> impl Iterator<Item = ProcKey> + '_ {
        let mine = move |(proc, of): (&ProcKey, &GroupId)| (*of == group).then_some(*proc);
        self.map.iter().filter_map(mine)
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.map.is_sound()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ProcKey, &GroupId)> {
        self.map.iter()
    }
}

/// The members and their storage, guarded by their own lock.
#[derive(Debug)]
pub struct MemberTable<M: Memory> {
    root: MembersRoot,
    slots: M::Slots<MemberSlot>,
}

impl<M: Memory> MemberTable<M> {
    /// No members. `seed` is a random number that nobody else knows.
    pub fn new(seed: u64) -> Self {
        Self {
            root: MembersRoot::new(seed),
            slots: Default::default(),
        }
    }

    /// The members over their storage.
    pub fn members(&mut self) -> Members<'_> {
        Members::new(&mut self.root, &mut self.slots)
    }

    /// Moves the members into larger storage, whose place the old one takes. Says
    /// whether it was larger.
    pub fn replace(&mut self, slots: &mut M::Slots<MemberSlot>) -> bool {
        exchange(&mut self.slots, slots, |old, new| {
            rehash(&mut self.root, old, new)
        })
    }
}

fn rehash(
    root: &mut MembersRoot,
    old: &mut [MemberSlot],
    new: &mut [MemberSlot],
) -> Result<(), Error> {
    table::rehash(&mut root.meta, old, new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    const WEB: GroupId = GroupId(1);
    const DB: GroupId = GroupId(2);

    fn proc(tgid: u32, start_time_ns: u64) -> ProcKey {
        ProcKey {
            tgid,
            start_time_ns,
        }
    }

    fn slots(n: usize) -> Vec<MemberSlot> {
        (0..n).map(|_| MemberSlot::default()).collect()
    }

    #[test]
    fn children_follow_and_a_reused_pid_does_not() {
        let (mut root, mut storage) = (MembersRoot::new(1), slots(16));
        let mut members = Members::new(&mut root, &mut storage);
        let (parent, child) = (proc(10, 1), proc(11, 2));
        assert_eq!(members.on_fork(parent, child), Ok(None));
        assert_eq!(members.put(parent, WEB), Ok(None));
        assert_eq!(members.on_fork(parent, child), Ok(Some(WEB)));
        assert_eq!(members.on_fork(parent, parent), Ok(Some(WEB)));
        assert_eq!(members.count(WEB), 2);
        assert_eq!(members.on_exit(parent), Some(WEB));
        assert_eq!(members.group_of(child), Some(WEB));
        assert_eq!(members.group_of(proc(10, 3)), None);
        assert_eq!(members.on_exit(parent), None);
    }

    #[test]
    fn a_process_is_in_one_group() {
        let (mut root, mut storage) = (MembersRoot::new(1), slots(16));
        let mut members = Members::new(&mut root, &mut storage);
        assert_eq!(members.put(proc(1, 1), WEB), Ok(None));
        assert_eq!(members.put(proc(1, 1), DB), Ok(Some(WEB)));
        assert_eq!((members.count(WEB), members.count(DB)), (0, 1));
    }

    #[test]
    fn a_fork_without_room_is_counted_and_headroom_warns_before() {
        let (mut root, mut storage) = (MembersRoot::new(1), slots(4));
        let mut members = Members::new(&mut root, &mut storage);
        assert_eq!(members.headroom(), None);
        assert_eq!(members.put(proc(1, 1), WEB), Ok(None));
        assert_eq!(members.headroom(), None);
        assert_eq!(members.put(proc(2, 1), WEB), Ok(None));
        assert!(members.headroom().is_some_and(|need| need.slots > 4));
        assert_eq!(members.put(proc(3, 1), WEB), Ok(None));
        let refused = members.on_fork(proc(1, 1), proc(4, 1));
        assert!(matches!(refused, Err(Error::NeedSlots(need)) if need.table == Table::Members));
        assert_eq!((members.lost(), members.count(WEB)), (1, 3));
    }

    #[test]
    fn a_list_says_how_many_there_are() {
        let (mut root, mut storage) = (MembersRoot::new(1), slots(16));
        let mut members = Members::new(&mut root, &mut storage);
        for tgid in 1..=5 {
            members.put(proc(tgid, 0), WEB).unwrap();
        }
        members.put(proc(9, 0), DB).unwrap();
        let mut few = [ProcKey::default(); 2];
        assert_eq!(members.list(WEB, &mut few), 5);
        let mut many = [ProcKey::default(); 8];
        assert_eq!(members.list(WEB, &mut many), 5);
        let mut pids: Vec<u32> = many.iter().take(5).map(|proc| proc.tgid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [1, 2, 3, 4, 5]);
        assert_eq!(members.list(GroupId(7), &mut many), 0);
    }

    proptest! {
        /// Storms of forks, exits and moves, with pids reused at once, against a map.
        #[test]
        fn behaves_like_a_map(ops in prop::collection::vec((0u8..4, 0u32..12, 0u64..3, 0u32..12, 1u64..4), 0..300)) {
            let (mut root, mut storage) = (MembersRoot::new(7), slots(64));
            let mut members = Members::new(&mut root, &mut storage);
            let mut model: BTreeMap<ProcKey, GroupId> = BTreeMap::new();
            for (op, tgid, start, other, group) in ops {
                let (a, b) = (proc(tgid, start), proc(other, start + 1));
                match op {
                    0 => prop_assert_eq!(members.put(a, GroupId(group)), Ok(model.insert(a, GroupId(group)))),
                    1 => prop_assert_eq!(members.on_exit(a), model.remove(&a)),
                    2 => {
                        let expected = model.get(&a).copied();
                        if let Some(group) = expected {
                            model.insert(b, group);
                        }
                        prop_assert_eq!(members.on_fork(a, b), Ok(expected));
                    }
                    _ => prop_assert_eq!(members.group_of(a), model.get(&a).copied()),
                }
                prop_assert!(members.is_sound());
                for group in [WEB, DB, GroupId(3)] {
                    let expected = model.values().filter(|of| **of == group).count();
                    prop_assert_eq!(members.count(group), expected);
                }
            }
        }
    }
}
