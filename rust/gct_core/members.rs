// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks which processes are members of a group by pid.
//!
//! The kernel reports forks and exits in atomic context. So this table is separate from
//! [`State`](crate::state::State): callers hold a spinlock, and the table neither allocates nor
//! sleeps. Lock order: the state's mutex, then this spinlock.
//!
//! ```text
//! slot(pid) = pages[pid / PAGE][pid % PAGE]    # the member with this pid, and its start time
//! fork      needs at most one page; the caller allocates it and calls again
//! exit      returns the page for freeing if it has no other member
//! ```
//!
//! At most one living process has a pid, so a pid determines its slot. Every process of the machine
//! can be a member, and no tenant can use up the slots of others.

use crate::error::{Error, Need, Table};
use crate::ids::{GroupId, ProcKey};
use crate::limits;
use crate::tables::{Memory, Pieces};
use crate::units::Sat;

/// Pids of one page. Its 4096 bytes can be allocated in atomic context.
pub const PAGE: usize = 128;

const _: () = assert!(PAGE * size_of::<MemberSlot>() <= 4096);

/// Pages for every pid of Linux.
const PAGES_MAX: usize = limits::MEMBERS_MAX.div_ceil(PAGE);

/// Bound on the slots and pages that [`Members::list`] visits in one call.
const LIST_SLOTS: usize = 32 * PAGE;

/// Room for one member.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemberSlot(Option<Member>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    start_time_ns: u64,
    group: GroupId,
}

/// The members of one group.
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupMembers {
    count: Sat<u32>,
    /// Whether the group has a limit. If it has, a child that cannot be tracked may not run.
    bound: bool,
}

/// The members, while the spinlock is held.
pub struct Members<'a> {
    pages: &'a mut dyn Pieces<MemberSlot>,
    groups: &'a mut [GroupMembers],
    counters: &'a mut Counters,
}

/// Counters of the table.
#[derive(Debug, Default)]
pub struct Counters {
    /// Forks whose child could not be added.
    lost: Sat<u64>,
    /// Index after the last page that was ever used.
    end: usize,
}

impl core::fmt::Debug for Members<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Members").finish_non_exhaustive()
    }
}

impl<'a> Members<'a> {
    /// Combines the counters with their storage.
    pub fn new(
        pages: &'a mut dyn Pieces<MemberSlot>,
        groups: &'a mut [GroupMembers],
        counters: &'a mut Counters,
    ) -> Self {
        Self {
            pages,
            groups,
            counters,
        }
    }

    /// Returns the group to which the process belongs by pid.
    pub fn group_of(&self, proc: ProcKey) -> Option<GroupId> {
        let member = self.at(proc.tgid)?;
        (member.start_time_ns == proc.start_time_ns).then_some(member.group)
    }

    /// Puts a process into a group and returns the one it leaves.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`]; [`Error::NoSpace`] for a number that is no pid; [`Error::NoProcess`]
    /// if a younger process has the pid. That one keeps its group.
    pub fn put(&mut self, proc: ProcKey, group: GroupId) -> Result<Option<GroupId>, Error> {
        let (page, at) = place(proc.tgid);
        if page >= PAGES_MAX {
            return Err(Error::NoSpace);
        }
        let Some(slot) = self.pages.piece_mut(page).get_mut(at) else {
            return Err(Error::NeedSlots(Need {
                table: Table::Members,
                piece: page,
                slots: PAGE,
            }));
        };
        if slot
            .0
            .is_some_and(|of| of.start_time_ns > proc.start_time_ns)
        {
            return Err(Error::NoProcess);
        }
        let old = slot.0.replace(Member {
            start_time_ns: proc.start_time_ns,
            group,
        });
        self.counters.end = self.counters.end.max(page.saturating_add(1));
        if let Some(old) = old {
            self.count_one(old.group, |count| *count -= 1);
        }
        self.count_one(group, |count| *count += 1);
        // A member with an older start time has exited, and no hook reported its exit.
        let same = |old: &Member| old.start_time_ns == proc.start_time_ns;
        Ok(old.filter(same).map(|old| old.group))
    }

    /// Removes a process from its group, and returns the group.
    pub fn remove(&mut self, proc: ProcKey) -> Option<GroupId> {
        let group = self.group_of(proc)?;
        let (page, at) = place(proc.tgid);
        self.pages.piece_mut(page).get_mut(at)?.0 = None;
        self.count_one(group, |count| *count -= 1);
        Some(group)
    }

    /// Puts a forked child into its parent's group, and returns the group.
    ///
    /// A new thread has the key of its process, so nothing changes.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`]: the caller adds a page and calls again. Without a page it calls
    /// [`Members::lose`].
    pub fn on_fork(&mut self, parent: ProcKey, child: ProcKey) -> Result<Option<GroupId>, Error> {
        let Some(group) = self.group_of(parent) else {
            return Ok(None);
        };
        self.put(child, group).map(|_| Some(group))
    }

    /// Counts a child of `parent` that could not be added. Returns whether its group has a limit.
    pub fn lose(&mut self, parent: ProcKey) -> bool {
        self.counters.lost += 1;
        let of = |group: GroupId| self.groups.get(group.slot()).map(|group| group.bound);
        self.group_of(parent).and_then(of).unwrap_or(false)
    }

    /// Removes a process whose last thread has exited, and returns its group.
    pub fn on_exit(&mut self, proc: ProcKey) -> Option<GroupId> {
        self.remove(proc)
    }

    /// Records whether a group has a limit.
    pub fn bind(&mut self, group: GroupId, bound: bool) {
        if let Some(of) = self.groups.get_mut(group.slot()) {
            of.bound = bound;
        }
    }

    /// Returns the number of members of a group. O(1).
    pub fn count(&self, group: GroupId) -> usize {
        let of = self.groups.get(group.slot());
        of.and_then(|of| usize::try_from(of.count.0).ok())
            .unwrap_or(0)
    }

    /// Copies members of a group to `out`, in the order of their pids, from the pid `from` on.
    ///
    /// Returns how many were copied, and the pid at which the next call continues. A call visits a
    /// bounded number of slots, which bounds how long the caller holds the spinlock.
    pub fn list(&self, group: GroupId, from: u32, out: &mut [ProcKey]) -> (usize, Option<u32>) {
        let (mut page, mut at) = place(from);
        let (mut found, mut visited) = (Sat(0usize), Sat(0usize));
        while page < self.counters.end {
            let slots = self.pages.piece(page);
            for at in at..slots.len() {
                let member = slots.get(at).and_then(|slot| slot.0);
                let Some(member) = member.filter(|member| member.group == group) else {
                    continue;
                };
                let tgid = pid(page, at);
                let Some(to) = out.get_mut(found.0) else {
                    return (found.0, Some(tgid));
                };
                *to = ProcKey {
                    tgid,
                    start_time_ns: member.start_time_ns,
                };
                found += 1;
            }
            visited += Sat(slots.len()) + Sat(1);
            (page, at) = (page.saturating_add(1), 0);
            if visited.0 >= LIST_SLOTS {
                return (found.0, Some(pid(page, 0)));
            }
        }
        (found.0, None)
    }

    /// Returns the number of forks whose child could not be added.
    pub fn lost(&self) -> u64 {
        self.counters.lost.0
    }

    fn at(&self, tgid: u32) -> Option<Member> {
        let (page, at) = place(tgid);
        self.pages.piece(page).get(at)?.0
    }

    fn count_one(&mut self, group: GroupId, change: impl FnOnce(&mut Sat<u32>)) {
        if let Some(of) = self.groups.get_mut(group.slot()) {
            change(&mut of.count);
        }
    }

    /// Checks that the count of every group is the number of its members.
    pub(crate) fn is_sound(&self) -> bool {
        let mut all = Sat(0usize);
        for (slot, of) in (0..self.groups.len()).zip(self.groups.iter()) {
            let Some(expected) = usize::try_from(of.count.0).ok().filter(|count| *count > 0) else {
                continue;
            };
            let members = self.iter().filter(|(_, group)| group.slot() == slot);
            if crate::table::count(members) != expected {
                return false;
            }
            all += expected;
        }
        all.0 == crate::table::count(self.iter())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ProcKey, GroupId)> + use<'_, 'a> {
        (0..self.counters.end).flat_map(move |page| {
            let slots = self.pages.piece(page);
            let slots = (0..slots.len()).zip(slots);
            slots.filter_map(move |(at, slot)| {
                let member = slot.0?;
                let key = ProcKey {
                    tgid: pid(page, at),
                    start_time_ns: member.start_time_ns,
                };
                Some((key, member.group))
            })
        })
    }
}

/// Returns the page and the slot of a pid.
fn place(tgid: u32) -> (usize, usize) {
    let pid = usize::try_from(tgid).unwrap_or(usize::MAX);
    (pid / PAGE, pid % PAGE)
}

/// Returns the pid of a slot.
fn pid(page: usize, at: usize) -> u32 {
    u32::try_from((Sat(page) * Sat(PAGE) + Sat(at)).0).unwrap_or(u32::MAX)
}

/// Pages of slots; a page without members may be absent.
struct Pages<M: Memory>(M::Slots<M::Slots<MemberSlot>>);

impl<M: Memory> Pieces<MemberSlot> for Pages<M> {
    fn piece(&self, at: usize) -> &[MemberSlot] {
        self.0.get(at).map_or(&[], |page| page)
    }

    fn piece_mut(&mut self, at: usize) -> &mut [MemberSlot] {
        self.0.get_mut(at).map_or(&mut [], |page| page)
    }
}

/// The members and their storage. The caller guards them by a spinlock.
pub struct MemberTable<M: Memory> {
    pages: Pages<M>,
    groups: M::Slots<GroupMembers>,
    counters: Counters,
}

impl<M: Memory> core::fmt::Debug for MemberTable<M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MemberTable").finish_non_exhaustive()
    }
}

impl<M: Memory> MemberTable<M> {
    /// Creates a table without members.
    ///
    /// # Errors
    ///
    /// Those of [`Memory::slots`], for the array of pages.
    pub fn new() -> Result<Self, M::Error> {
        Ok(Self {
            pages: Pages(M::slots(PAGES_MAX)?),
            groups: M::slots(limits::GROUPS_MAX)?,
            counters: Counters::default(),
        })
    }

    /// Returns the members.
    pub fn members(&mut self) -> Members<'_> {
        Members::new(&mut self.pages, &mut self.groups, &mut self.counters)
    }

    /// Adds a page if it is still absent. Otherwise returns it; the caller frees it after it has
    /// released the lock.
    pub fn put_page(&mut self, at: usize, page: M::Slots<MemberSlot>) -> M::Slots<MemberSlot> {
        match self.pages.0.get_mut(at) {
            Some(place) if place.is_empty() => core::mem::replace(place, page),
            _ => page,
        }
    }

    /// Removes a process that has exited. Returns its page if that has no member left; the caller
    /// frees it after it has released the lock.
    pub fn on_exit(&mut self, proc: ProcKey) -> M::Slots<MemberSlot> {
        if self.members().on_exit(proc).is_none() {
            return Default::default();
        }
        match self.pages.0.get_mut(place(proc.tgid).0) {
            Some(page) if page.iter().all(|slot| slot.0.is_none()) => core::mem::take(page),
            _ => Default::default(),
        }
    }
}

#[cfg(test)]
mod tests;
