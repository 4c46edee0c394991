// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The locks, and the storage of the core's tables.
//!
//! Lock order, outermost first; the driver's power management lock, where it is
//! held, comes before all of them:
//!
//! 1. [`Glue::tree`] (mutex): the directories. Held while directories are made
//!    and removed, and while `control` is written. Nothing that a file below a
//!    removable directory does takes it, so a removal may wait for such files.
//! 2. [`Glue::writing`] (mutex): one write is pending at a time. Held while all the
//!    controls of a write are sent.
//! 3. [`Glue::wait`], which is no lock: waits for the end of one control that names objects of one process. At most
//!    one is in flight for each, which the core keeps account of. No lock is held while the resource manager runs it
//!    but [`Glue::writing`].
//! 4. [`Glue::core`] (mutex): all that the core knows but the members. Held for
//!    one call of the core. Nothing sleeps under it but on memory that it copies;
//!    nothing is allocated or freed under it, and no function of the driver runs.
//! 5. [`Glue::members`] (spinlock): who belongs to which group by pid. A leaf;
//!    forks and exits take it where sleeping is not allowed.
//!
//! Storage grows and shrinks outside the locks: the core says which table needs a page, who needs it allocates one,
//! adds it under the lock, and tries again. However many do so at a time, each has one page. Pages that no entry
//! needs any more are taken out under the lock, one at a time, and freed after it.
//!
//! A page is charged to the memory cgroup of who needed it. Other tenants' entries may come to lie in it.

use crate::faults::Reports;
use crate::tree::Tree;
use gct_core::dirs::Effect;
use gct_core::engine::{Flush, InFlight, Next, Wait};
use gct_core::error::{Error, Need, Table};
use gct_core::ids::{FileId, GroupId, Owner, ProcKey};
use gct_core::members::{MemberSlot, MemberTable, Members};
use gct_core::rmapi::control::{Control, Status};
use gct_core::state::{Failure, State};
use gct_core::tables::{Memory, Storage, Tables};
use kernel::alloc::flags::{__GFP_NOWARN, GFP_ATOMIC, GFP_KERNEL, GFP_KERNEL_ACCOUNT};
use kernel::alloc::{AllocError, Flags, KVVec};
use kernel::prelude::*;
use kernel::sync::{new_condvar, new_mutex, new_spinlock, Arc, CondVar, Mutex, SpinLock};
use kernel::workqueue::{impl_has_work, new_work, Work};

/// How often one operation may ask for storage. Each time it or somebody else brings a page, and none is taken out
/// meanwhile; all tables together have fewer.
const GROWTHS_MAX: usize = 1 << 20;

/// How often a fork brings a page: one is enough, unless the last member of just that page
/// exits in between.
const FORK_TRIES: usize = 4;

/// What became of a forked child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forked {
    /// It belongs where its parent belongs.
    Followed,
    /// It belongs to no group by pid.
    Lost,
    /// The same, and its parent is under a limit.
    MustNotRun,
}

/// Everything that lives from `gct_init` to `gct_exit`.
#[pin_data]
pub(crate) struct Glue {
    #[pin]
    pub(crate) tree: Mutex<Tree>,
    #[pin]
    pub(crate) writing: Mutex<()>,
    #[pin]
    core: Mutex<Tables<Kv>>,
    /// Signals that a control with a waiter has completed.
    #[pin]
    completed: CondVar,
    #[pin]
    members: SpinLock<MemberTable<Kv>>,
    pub(crate) reports: Reports,
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
        slots(count, GFP_KERNEL)
    }

    fn page<T: Default>(count: usize) -> Result<KVVec<T>, AllocError> {
        slots(count, GFP_KERNEL_ACCOUNT)
    }
}

fn slots<T: Default>(count: usize, flags: Flags) -> Result<KVVec<T>, AllocError> {
    let mut slots = KVVec::with_capacity(count, flags)?;
    for _ in 0..count {
        slots.push(T::default(), flags)?;
    }
    Ok(slots)
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
    pub(crate) fn new(tree: Tree, seed: u64) -> Result<Arc<Self>> {
        let (tables, members) = (Tables::new(seed)?, MemberTable::new()?);
        Arc::pin_init(
            pin_init!(Self {
                tree <- new_mutex!(tree, "gct::tree"),
                writing <- new_mutex!((), "gct::writing"),
                core <- new_mutex!(tables, "gct::core"),
                completed <- new_condvar!("gct::completed"),
                members <- new_spinlock!(members, "gct::members"),
                reports: Reports::new(),
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
        let members = MembersLock(&self.members);
        let outcome = operation(&mut self.core.lock().state(), &members);
        let Err(Error::NeedSlots(first)) = outcome else {
            return outcome;
        };
        let mut outcome = Err(Error::NoSpace);
        let mut need = first;
        self.core.lock().grows();
        for _ in 0..GROWTHS_MAX {
            if self.grow(&need).is_err() {
                outcome = Err(Error::NeedSlots(need));
                break;
            }
            outcome = operation(&mut self.core.lock().state(), &members);
            match outcome {
                Err(Error::NeedSlots(next)) => need = next,
                _ => break,
            }
        }
        let mut core = self.core.lock();
        core.has_grown();
        if matches!(outcome, Err(Error::NeedSlots(_))) {
            core.state().count(Failure::Memory);
        }
        outcome
    }

    /// Runs `operation`, which needs no storage, under the core's mutex.
    pub(crate) fn locked<T>(&self, operation: impl FnOnce(&mut State<'_>) -> T) -> T {
        operation(&mut self.core.lock().state())
    }

    /// Counts what could not be followed.
    pub(crate) fn count(&self, failure: Failure) {
        self.core.lock().state().count(failure);
    }

    /// Counts an allocation that failed.
    pub(crate) fn out_of_memory(&self) {
        self.count(Failure::Memory);
    }

    /// Counts the errors of GPUs that the driver has logged.
    pub(crate) fn count_faults(&self) {
        while let Some(report) = self.reports.take() {
            self.core.lock().state().fault_reported(&report);
        }
        if self.reports.take_lost() > 0 {
            self.count(Failure::Limit);
        }
    }

    /// The next change that the tree needs.
    pub(crate) fn next_effect(&self) -> Option<Effect> {
        self.core.lock().state().next_effect()
    }

    /// The next control to send.
    pub(crate) fn next_control(&self, flush: &Flush) -> Next {
        self.core.lock().state().next_control(flush)
    }

    /// Says what came of it. Returns whether the pending write was refused.
    pub(crate) fn control_done(
        &self,
        in_flight: &InFlight,
        control: &Control,
        outcome: Result<(), Status>,
    ) -> bool {
        let completion = self
            .core
            .lock()
            .state()
            .control_done(in_flight, control, outcome);
        if completion.has_waiter {
            self.completed.notify_all();
        }
        completion.refused
    }

    /// Waits for the end of a control that somebody else sends.
    pub(crate) fn wait(&self, wait: &Wait) {
        let mut core = self.core.lock();
        while !core.state().is_over(wait) {
            self.completed.wait(&mut core);
        }
    }

    /// May there be controls to send?
    pub(crate) fn has_controls(&self) -> bool {
        self.core.lock().state().has_controls()
    }

    /// Returns whether a process without a control in flight has dirty objects.
    pub(crate) fn can_send(&self) -> bool {
        self.core.lock().state().can_send()
    }

    /// Returns the flush for what ioctls on a file have made dirty.
    pub(crate) fn flush_of_file(&self, file: FileId) -> Option<Flush> {
        self.core.lock().state().flush_of_file(file)
    }

    /// Returns the flush for what a write has made dirty: of one owner, or of many with `None`.
    pub(crate) fn flush_of(&self, owner: Option<Owner>) -> Flush {
        self.core.lock().state().flush_of(owner)
    }

    /// Brings a page to a table.
    fn grow(&self, need: &Need) -> Result<(), AllocError> {
        let Some(page) = Storage::allocate(need)? else {
            return self.grow_members(need);
        };
        let unused = self.core.lock().push(need, page);
        drop(unused);
        Ok(())
    }

    fn grow_members(&self, need: &Need) -> Result<(), AllocError> {
        let page = Kv::page(need.slots)?;
        let unused = self.members.lock().put_page(need.piece, page);
        drop(unused);
        Ok(())
    }

    /// Is there a page that no entry needs any more?
    pub(crate) fn has_spare(&self) -> bool {
        self.core.lock().state().has_spare()
    }

    /// Frees the pages that no entry needs any more.
    pub(crate) fn shrink(&self) {
        loop {
            let spare = self.core.lock().pop();
            if spare.is_none() {
                break;
            }
        }
    }

    /// A process forked. Returns whether the child may run: not where it cannot be
    /// followed and its group has a limit. Nothing here may sleep.
    ///
    /// The page that a child may need comes from the allocator's reserves for those who
    /// cannot sleep, at once, and is charged to the parent's cgroup.
    pub(crate) fn forked(&self, parent: ProcKey, child: ProcKey) -> Forked {
        for _ in 0..FORK_TRIES {
            let need = match self.members.lock().members().on_fork(parent, child) {
                Ok(_) => return Forked::Followed,
                Err(Error::NeedSlots(need)) => need,
                Err(_) => break,
            };
            let accounted = GFP_KERNEL_ACCOUNT & !GFP_KERNEL;
            let Ok(page) = slots::<MemberSlot>(need.slots, GFP_ATOMIC | accounted | __GFP_NOWARN)
            else {
                break;
            };
            let unused = self.members.lock().put_page(need.piece, page);
            drop(unused);
        }
        match self.members.lock().members().lose(parent) {
            true => Forked::MustNotRun,
            false => Forked::Lost,
        }
    }

    /// The last thread of a process exits. Nothing here may sleep.
    pub(crate) fn exited(&self, process: ProcKey) {
        let page = self.members.lock().on_exit(process);
        drop(page);
    }

    /// Counts the forks that could not be followed.
    pub(crate) fn count_lost(&self) {
        let lost = self.members.lock().members().lost();
        self.count(Failure::Members(lost));
    }

    /// Would a process that opens the driver be under a limit?
    pub(crate) fn binds_opener(&self, key: ProcKey, cgroup: &[u8]) -> bool {
        let group = self.members.lock().members().group_of(key);
        self.core.lock().state().binds_opener(key, group, cgroup)
    }

    /// Is the process that opened a file under a limit?
    pub(crate) fn binds_file(&self, file: FileId) -> bool {
        self.core.lock().state().binds_file(file)
    }

    /// Remembers whether a fork of a group's member must be followed, after a limit was written.
    pub(crate) fn bind(&self, group: GroupId) {
        let tables = &mut *self.core.lock();
        let bound = tables.state().is_bound(group);
        self.members.lock().members().bind(group, bound);
    }

    /// The processes that belong to a group by pid.
    /// The lock is let go of after each few pages.
    pub(crate) fn members_of(&self, group: GroupId) -> Result<KVVec<ProcKey>, Error> {
        let count = self.members.lock().members().count(group);
        let mut keys: KVVec<ProcKey> = self.keys(count)?;
        let (mut filled, mut from) = (0usize, Some(0));
        while let Some(next) = from {
            if filled == keys.len() {
                let mut more = self.keys(filled.saturating_mul(2))?;
                for (to, key) in more.iter_mut().zip(&keys) {
                    *to = *key;
                }
                keys = more;
            }
            let room = keys.get_mut(filled..).unwrap_or_default();
            let (found, then) = self.members.lock().members().list(group, next, room);
            filled = filled.saturating_add(found);
            from = then;
        }
        keys.truncate(filled);
        Ok(keys)
    }

    /// Room for so many members and some that are forked meanwhile.
    fn keys(&self, count: usize) -> Result<KVVec<ProcKey>, Error> {
        let slots = count.saturating_add(32);
        Kv::slots(slots).map_err(|_| {
            self.out_of_memory();
            Error::NeedSlots(Need {
                table: Table::Members,
                piece: 0,
                slots,
            })
        })
    }
}
