// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Holds the locks, and the storage of the core's tables.
//!
//! Lock order, outermost first. The driver's power management lock, where it is held, comes before
//! all of them:
//!
//! 1. [`Glue::tree`] (mutex): the directories. Held while directories are made and removed, and
//!    while `control` is written. Files below a directory that can be removed never take it, so a
//!    removal may wait for them.
//! 2. [`Glue::writing`] (mutex): one write is pending at a time. Held while the controls of a write
//!    are sent.
//! 3. [`Glue::wait`] (no lock): waits for the control in flight that names objects of a process.
//!    Each process has at most one; the core keeps account of them. A sender holds no lock but
//!    [`Glue::writing`] while the resource manager runs its control.
//! 4. [`Glue::core`] (mutex): everything that the core knows except the members. Held for one call
//!    of the core. Its holder does not allocate, free, or call the driver.
//! 5. [`Glue::members`] (spinlock): which processes belong to which group by pid. The innermost
//!    lock; forks and exits take it in atomic context.
//!
//! Storage grows and shrinks outside the locks. If a table is full, the core names it. The thread
//! allocates a page, adds it under the lock and tries again, so a thread holds at most one page
//! that is not in use. Pages without entries are taken out under the lock, one at a time, and freed
//! after it.
//!
//! A page is charged to the memory cgroup of the thread that allocated it. Entries of other tenants
//! may lie in it later.

use crate::faults::Reports;
use crate::owned::Owned;
use crate::queue::WorkQueue;
use crate::tree::Tree;
use crate::uvm::Uvm;
use gct_core::dirs::Effect;
use gct_core::engine::{Flush, InFlight, Next, Wait};
use gct_core::error::{Error, Need, Table};
use gct_core::failures::Failure;
use gct_core::ids::{FileId, GpuId, GroupId, Owner, ProcKey, Scope};
use gct_core::iface::files::File;
use gct_core::members::{MemberSlot, MemberTable, Members};
use gct_core::rmapi::control::{Control, Status};
use gct_core::state::State;
use gct_core::tables::{Memory, Storage, Tables};
use kernel::alloc::flags::{__GFP_NOWARN, GFP_ATOMIC, GFP_KERNEL, GFP_KERNEL_ACCOUNT};
use kernel::alloc::{AllocError, Flags, KVVec};
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::{new_condvar, new_mutex, new_spinlock, Arc, CondVar, Mutex, SpinLock};
use kernel::workqueue::{impl_has_work, new_work, Work};

/// Bounds the pages that one operation adds. No page is taken out while one waits for storage, and
/// all tables together have fewer pages than this.
const GROWTHS_MAX: usize = 1 << 20;

/// Bounds the pages that one fork allocates. One is enough unless the last member of that page
/// exits in between.
const FORK_TRIES: usize = 4;

/// How a fork was followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forked {
    /// The child belongs to its parent's group, or neither has one.
    Followed,
    /// There was no page for the child, so it belongs to no group by pid.
    Lost,
    /// As `Lost`, and a limit binds the parent's group.
    MustNotRun,
}

/// The state of gctgroup from `gct_init` to `gct_exit`.
#[pin_data]
pub(crate) struct Glue {
    #[pin]
    pub(crate) tree: Mutex<Tree>,
    #[pin]
    pub(crate) writing: Mutex<()>,
    #[pin]
    core: Mutex<Tables<Kv>>,
    /// Signals that a control with a waiter has completed, or that a trial has ended.
    #[pin]
    completed: CondVar,
    #[pin]
    members: SpinLock<MemberTable<Kv>>,
    pub(crate) reports: Reports,
    #[pin]
    pub(crate) owned: Owned,
    #[pin]
    pub(crate) uvm: Uvm,
    #[pin]
    pub(crate) work: Work<Glue>,
}

impl_has_work! {
    impl HasWork<Self> for Glue { self.work }
}

/// Memory that is contiguous in the kernel's address space (`kvmalloc`).
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

/// Gives access to the members while the core's mutex is held.
pub(crate) struct MembersLock<'a>(&'a SpinLock<MemberTable<Kv>>);

impl MembersLock<'_> {
    /// Runs `operation` under the spinlock.
    pub(crate) fn with<T>(&self, operation: impl FnOnce(&mut Members<'_>) -> T) -> T {
        operation(&mut self.0.lock().members())
    }
}

impl Glue {
    /// Creates the glue with empty tables, which grow with their entries.
    pub(crate) fn new(tree: Tree, seed: u64) -> Result<Arc<Self>> {
        let (tables, members) = (Tables::new(seed)?, MemberTable::new()?);
        let evictors = WorkQueue::new(c"gct/evict")?;
        let owned = Owned::new()?;
        Arc::pin_init(
            pin_init!(Self {
                tree <- new_mutex!(tree, "gct::tree"),
                writing <- new_mutex!((), "gct::writing"),
                core <- new_mutex!(tables, "gct::core"),
                completed <- new_condvar!("gct::completed"),
                members <- new_spinlock!(members, "gct::members"),
                reports: Reports::new(),
                owned <- owned,
                uvm <- Uvm::new(evictors),
                work <- new_work!("gct::work"),
            }),
            GFP_KERNEL,
        )
    }

    /// Runs `operation` under the core's mutex, and provides the storage that it asks for. It may
    /// run several times; only the last run changes the state.
    ///
    /// # Errors
    ///
    /// Those of `operation`. [`Error::NeedSlots`] means that there is no memory, which is counted.
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

    /// Counts an event that could not be followed.
    pub(crate) fn count(&self, failure: Failure) {
        self.core.lock().state().count(failure);
    }

    /// Counts an allocation that failed.
    pub(crate) fn out_of_memory(&self) {
        self.count(Failure::Memory);
    }

    /// Counts the GPU errors that the driver has logged.
    pub(crate) fn count_faults(&self) {
        while let Some(report) = self.reports.take() {
            self.core.lock().state().fault_reported(&report);
        }
        if self.reports.take_lost() > 0 {
            self.count(Failure::Limit);
        }
    }

    /// Returns the next directory to make or remove.
    pub(crate) fn next_effect(&self) -> Option<Effect> {
        self.core.lock().state().next_effect()
    }

    /// Returns the next control of a flush.
    pub(crate) fn next_control(&self, flush: &Flush) -> Next {
        self.core.lock().state().next_control(flush)
    }

    /// Reports the outcome of a control. Returns whether the pending write was refused.
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

    /// Waits for the end of a control that another thread sends.
    pub(crate) fn wait(&self, wait: &Wait) {
        let mut core = self.core.lock();
        while !core.state().is_over(wait) {
            self.completed.wait(&mut core);
        }
    }

    /// Puts a lower `gmem.limit` in force, as [`State::trial_begin`] does. Waits while another one
    /// of the same pool is on trial.
    ///
    /// # Errors
    ///
    /// EINTR if a signal comes meanwhile.
    pub(crate) fn trial_begin(
        &self,
        scope: Scope,
        text: &[u8],
    ) -> Result<Option<(Owner, GpuId)>, c_int> {
        let mut core = self.core.lock();
        while core.state().is_on_trial(scope) {
            if self.completed.wait_interruptible(&mut core) {
                return Err(EINTR.to_errno());
            }
        }
        Ok(core.state().trial_begin(File::GmemLimit, scope, text))
    }

    /// Ends a trial, and lets the next write of the same limit go on.
    pub(crate) fn trial_end(&self, trial: (Owner, GpuId)) {
        self.core.lock().state().trial_end(trial);
        self.completed.notify_all();
    }

    /// Returns whether an owner may have pauses that were not looked at yet. O(1).
    pub(crate) fn has_new_pauses(&self) -> bool {
        self.core.lock().state().has_new_pauses()
    }

    /// Returns whether pauses are to be decided on as soon as all controls have completed. O(1).
    pub(crate) fn do_pauses_settle(&self) -> bool {
        self.core.lock().state().do_pauses_settle()
    }

    /// Returns whether there may be controls to send. O(1).
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

    /// Allocates a page and adds it to a table.
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

    /// Returns whether a table has pages without entries to free.
    pub(crate) fn has_spare(&self) -> bool {
        self.core.lock().state().has_spare()
    }

    /// Frees pages without entries.
    pub(crate) fn shrink(&self) {
        loop {
            let spare = self.core.lock().pop();
            if spare.is_none() {
                break;
            }
        }
    }

    /// Follows a fork: the child joins its parent's group. Must not sleep.
    ///
    /// If a page is needed, it comes from the reserves for atomic allocations and is charged to the
    /// parent's cgroup.
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

    /// Removes a process whose last thread exits from its group. Must not sleep.
    pub(crate) fn exited(&self, process: ProcKey) {
        let page = self.members.lock().on_exit(process);
        drop(page);
    }

    /// Counts forks that could not be followed.
    pub(crate) fn count_lost(&self) {
        let lost = self.members.lock().members().lost();
        self.count(Failure::Members(lost));
    }

    /// Returns whether a process that opens the driver would be under a limit.
    pub(crate) fn binds_opener(&self, key: ProcKey, cgroup: &[u8]) -> bool {
        let group = self.members.lock().members().group_of(key);
        self.core.lock().state().binds_opener(key, group, cgroup)
    }

    /// Returns whether the process that opened a file is under a limit.
    pub(crate) fn binds_file(&self, file: FileId) -> bool {
        self.core.lock().state().binds_file(file)
    }

    /// Records whether a group has a limit. If it has, a child that cannot be followed must not
    /// run.
    pub(crate) fn bind(&self, group: GroupId) {
        let tables = &mut *self.core.lock();
        let bound = tables.state().is_bound(group);
        self.members.lock().members().bind(group, bound);
    }

    /// Returns the processes that belong to a group by pid. The lock is dropped after every few
    /// pages.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`] if there is no memory.
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

    /// Allocates room for `count` members, and for some that are forked meanwhile.
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
