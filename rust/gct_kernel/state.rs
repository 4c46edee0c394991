// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The locks, and the storage of the core's tables.
//!
//! Lock order, outermost first; the driver's power management lock, where it is
//! held, comes before all of them:
//!
//! 1. [`Glue::tree`] (mutex): the directories. Held while directories are made
//!    and removed, and while `control` is written. Nothing that a file below a
//!    removable directory does takes it, so a removal may wait for such files.
//! 2. [`Glue::writing`] (mutex): one limit is on trial at a time. Held while all the
//!    controls of a write are sent.
//! 3. [`Glue::sending`] (mutex): one control is under way at a time. Held while the
//!    resource manager runs it, so that who frees objects can wait for that.
//! 4. [`Glue::core`] (mutex): all that the core knows but the members. Held for
//!    one call of the core. Nothing sleeps under it but on memory that it copies;
//!    nothing is allocated or freed under it, and no function of the driver runs.
//! 5. [`Glue::members`] (spinlock): who belongs to which group by pid. A leaf;
//!    forks and exits take it where sleeping is not allowed.
//!
//! Storage grows outside the locks: the core says how much it needs, the new
//! slots are allocated, the entries move under the lock, the old slots are freed
//! after it, and the operation is tried again.

use crate::tree::Tree;
use gct_core::dirs::Effect;
use gct_core::error::{Error, Need, Table};
use gct_core::ids::{GroupId, ProcKey};
use gct_core::members::{MemberTable, Members};
use gct_core::rmapi::control::{Control, Status};
use gct_core::state::{Failure, State};
use gct_core::tables::{Memory, Storage, Tables};
use kernel::alloc::flags::GFP_KERNEL;
use kernel::alloc::{AllocError, KVVec};
use kernel::prelude::*;
use kernel::sync::{new_mutex, new_spinlock, Arc, Mutex, SpinLock};
use kernel::workqueue::{impl_has_work, new_work, Work};

/// How often one operation may ask for storage: there are eight tables, and each
/// doubles twenty times from its first slot to its maximum, or is enlarged by
/// somebody else meanwhile.
const GROWTHS_MAX: usize = 200;

/// Slots of the smallest table of members, 24 KiB: a member that forks at once
/// does not outrun the work item that enlarges the table.
const MEMBER_SLOTS_MIN: usize = 1024;

/// Everything that lives from `gct_init` to `gct_exit`.
#[pin_data]
pub(crate) struct Glue {
    #[pin]
    pub(crate) tree: Mutex<Tree>,
    #[pin]
    pub(crate) writing: Mutex<()>,
    #[pin]
    pub(crate) sending: Mutex<()>,
    #[pin]
    core: Mutex<Tables<Kv>>,
    #[pin]
    members: SpinLock<MemberTable<Kv>>,
    #[pin]
    pub(crate) work: Work<Glue>,
}

impl_has_work! {
    impl HasWork<Self> for Glue { self.work }
}

/// The kernel's memory, contiguous in its address space only.
pub(crate) struct Kv;

impl Memory for Kv {
    type Slots<T> = KVVec<T>;
    type Error = AllocError;

    fn slots<T: Default>(count: usize) -> Result<KVVec<T>, AllocError> {
        let mut slots = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            slots.push(T::default(), GFP_KERNEL)?;
        }
        Ok(slots)
    }
}

/// The way to the members from inside the core's mutex.
pub(crate) struct MembersLock<'a>(&'a SpinLock<MemberTable<Kv>>);

impl MembersLock<'_> {
    /// Runs `operation` under the spinlock.
    pub(crate) fn with<T>(&self, operation: impl FnOnce(&mut Members<'_>) -> T) -> T {
        operation(&mut self.0.lock().members())
    }
}

impl Glue {
    /// Makes the glue with empty tables; they grow when something is put in.
    pub(crate) fn new(tree: Tree, [core_seed, members_seed]: [u64; 2]) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                tree <- new_mutex!(tree, "gct::tree"),
                writing <- new_mutex!((), "gct::writing"),
                sending <- new_mutex!((), "gct::sending"),
                core <- new_mutex!(Tables::new(core_seed), "gct::core"),
                members <- new_spinlock!(MemberTable::new(members_seed), "gct::members"),
                work <- new_work!("gct::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Runs `operation` under the core's mutex, with as much storage as it asks
    /// for. It may run several times, but only the last run changes anything.
    pub(crate) fn with<T>(
        &self,
        mut operation: impl FnMut(&mut State<'_>, &MembersLock<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        for _ in 0..GROWTHS_MAX {
            let outcome = operation(&mut self.core.lock().state(), &MembersLock(&self.members));
            let need = match outcome {
                Err(Error::NeedSlots(need)) => need,
                other => return other,
            };
            if self.grow(need).is_err() {
                self.out_of_memory();
                return Err(Error::NeedSlots(need));
            }
        }
        Err(Error::NoSpace)
    }

    /// Counts what could not be followed.
    pub(crate) fn count(&self, failure: Failure) {
        self.core.lock().state().count(failure);
    }

    /// Counts an allocation that failed.
    pub(crate) fn out_of_memory(&self) {
        self.count(Failure::Memory);
    }

    /// The next change that the tree needs.
    pub(crate) fn next_effect(&self) -> Option<Effect> {
        self.core.lock().state().next_effect()
    }

    /// The next control to send.
    pub(crate) fn next_control(&self) -> Option<Control> {
        self.core.lock().state().next_control()
    }

    /// What came of it. Says whether more may follow, or not: a write was refused.
    pub(crate) fn control_done(&self, control: &Control, outcome: Result<(), Status>) -> bool {
        let mut tables = self.core.lock();
        let mut state = tables.state();
        state.control_done(control, outcome);
        !state.write_is_refused()
    }

    /// May there be controls to send?
    pub(crate) fn has_controls(&self) -> bool {
        self.core.lock().state().has_controls()
    }

    fn grow(&self, need: Need) -> Result<(), AllocError> {
        let Some(mut storage) = Storage::allocate(need)? else {
            return self.grow_members(need);
        };
        self.core.lock().replace(&mut storage);
        drop(storage);
        Ok(())
    }

    fn grow_members(&self, need: Need) -> Result<(), AllocError> {
        let mut slots = Kv::slots(need.slots.max(MEMBER_SLOTS_MIN))?;
        self.members.lock().replace(&mut slots);
        drop(slots);
        Ok(())
    }

    /// Keeps room for processes that members will fork, because a fork cannot
    /// wait for memory; and tells the core how often there was none.
    pub(crate) fn grow_members_ahead(&self) {
        let (need, lost) = {
            let mut table = self.members.lock();
            let members = table.members();
            (members.headroom(), members.lost())
        };
        if let Some(need) = need {
            if self.grow_members(need).is_err() {
                self.out_of_memory();
            }
        }
        self.count(Failure::Members(lost));
    }

    /// A member forked or exited. Says whether [`Glue::grow_members_ahead`]
    /// should run. The caller may be unable to sleep.
    pub(crate) fn on_members(&self, event: impl FnOnce(&mut Members<'_>)) -> bool {
        let mut table = self.members.lock();
        let mut members = table.members();
        event(&mut members);
        members.headroom().is_some()
    }

    /// The processes that belong to a group by pid.
    pub(crate) fn members_of(&self, group: GroupId) -> Result<KVVec<ProcKey>, Error> {
        let mut keys: KVVec<ProcKey> = KVVec::new();
        loop {
            let total = self.members.lock().members().list(group, &mut keys);
            if total <= keys.len() {
                keys.truncate(total);
                return Ok(keys);
            }
            keys = Kv::slots(total).map_err(|_| {
                self.out_of_memory();
                Error::NeedSlots(Need {
                    table: Table::Members,
                    slots: total,
                })
            })?;
        }
    }
}
