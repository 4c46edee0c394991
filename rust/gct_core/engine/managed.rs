// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Charges managed memory that is on a GPU now, as the UVM driver reports it.
//!
//! An account is a process on a GPU, whatever the number of its address spaces: a process that
//! opens many has no more accounts than one that opens one. An account may outlive the address
//! space that was its first. So it has a file of its own in the core, and a ticket.
//!
//! ```text
//! open_account          the process's first address space gets the GPU
//! try_recharge_managed  the account is about to grow. Returns whose limit is in the way
//!     may_give_way      whether an account's memory is evicted for that owner
//!     evicted           2 MiB of it were
//! is_spared             whether others give way first when the GPU is full
//!     take_within_limit nobody else can, and 2 MiB of it do
//! trial_begin           a lower limit is in force, and is not stored yet
//!     exceeds_limit_of  whether memory has to be evicted
//! trial_end             then the limit is written, or has failed
//! ```

use crate::account::Amount;
use crate::engine::Ticket;
use crate::error::Error;
use crate::gpu::Backend;
use crate::ids::{FileId, GpuId, Owner, ProcKey, Scope};
use crate::iface::value::Value;
use crate::iface::File;
use crate::memory::ROOT;
use crate::records::{Payer, Pool};
use crate::state::State;
use crate::units::{Bytes, Sat};

impl State<'_> {
    /// Returns the process that opened a file.
    pub fn opener(&self, file: FileId) -> Option<ProcKey> {
        self.files.get(&file).map(|file| file.proc)
    }

    /// Opens the account of a file's process on a GPU: a file of that process, and the ticket of
    /// its managed memory. [`State::close_managed`] closes both, once no host memory is charged.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: it cannot be tracked; [`Error::Gone`].
    pub fn open_account(&mut self, file: FileId, gpu: GpuId) -> Result<(FileId, Ticket), Error> {
        let key = self.opener(file).ok_or(Error::Gone)?;
        let proc = self.procs.get(&key).ok_or(Error::Gone)?;
        let (user, by_pid) = (proc.user, proc.by_pid);
        let account = self.file_open_by(user, key, &[], by_pid)?;
        if let Some(account) = self.files.get_mut(&account) {
            account.is_account = true;
        }
        match self.charge_managed(account, gpu, Bytes(0)) {
            Ok(ticket) => Ok((account, ticket)),
            Err(error) => {
                self.file_close(account);
                Err(error)
            }
        }
    }

    /// Returns who pays for a file's entries in tables that all share: its process's group, or its
    /// user without a group.
    pub fn payer(&self, file: FileId) -> Option<Payer> {
        let proc = self.procs.get(&self.files.get(&file)?.proc)?;
        Some(proc.group.map_or(Payer::User(proc.user), Payer::Group))
    }

    /// Changes what a ticket is charged for, within the limits of the process and of its group.
    /// Returns the first of them whose limit is in the way; then the ticket stays as it is. It is
    /// no refusal: the caller evicts memory and tries again.
    ///
    /// # Errors
    ///
    /// Those of [`State::recharge_managed`].
    pub fn try_recharge_managed(
        &mut self,
        file: FileId,
        ticket: Ticket,
        bytes: Bytes,
    ) -> Result<Option<Owner>, Error> {
        let proc = self.files.get(&file).ok_or(Error::Gone)?.proc;
        let key = ticket.reservation().ok_or(Error::Gone)?;
        let object = self.objects.get(key).ok_or(Error::Gone)?;
        let (gpu, was) = (object.gpu.ok_or(Error::Gone)?, object.charged.managed);
        let over = if bytes > was {
            let mut owners = self.owners_of(proc).into_iter().flatten();
            owners.find(|owner| self.exceeds_limit_of(*owner, gpu, bytes - was))
        } else {
            None
        };
        if over.is_none() {
            self.recharge_managed(file, ticket, bytes)?;
        }
        Ok(over)
    }

    /// Returns whether page tables of a file's process may have a root more: within each limit they
    /// have at most half. Since they cannot be evicted, they could else leave no room for a page.
    pub fn admits_table(&self, file: FileId, gpu: GpuId) -> bool {
        let Some(file) = self.files.get(&file) else {
            return true;
        };
        let owners = self.owners_of(file.proc).into_iter().flatten();
        let mut pools = owners.filter_map(|owner| self.pools.get(&(owner, gpu)));
        pools.all(|pool| {
            let tables = pool.usage.now().tables + ROOT;
            pool.memory_limit()
                .is_none_or(|limit| tables + tables <= limit)
        })
    }

    /// Returns whether `more` would exceed the limit of an owner, or that of a trial.
    pub fn exceeds_limit_of(&self, owner: Owner, gpu: GpuId, more: Bytes) -> bool {
        let pool = self.pools.get(&(owner, gpu));
        pool.is_some_and(|pool| pool.is_over(more))
    }

    /// Returns whether the memory of a file's process is evicted when an owner is over its limit:
    /// its own, and for a group that of its members. Nobody else's is.
    pub fn may_give_way(&self, owner: Owner, file: FileId) -> bool {
        let file = self.files.get(&file);
        file.is_some_and(|file| self.owners_of(file.proc).contains(&Some(owner)))
    }

    /// Counts 2 MiB of a file's process that were evicted for a limit.
    pub fn evicted(&mut self, file: FileId, gpu: GpuId) {
        self.count_root(file, gpu, |pool| &mut pool.evictions);
    }

    /// Returns whether the memory of a file's process stays while others can give way to a full
    /// GPU: it or its group has a `gmem.limit` or a `gmem.low`, neither is beyond a limit, and one
    /// root less would take what a `gmem.low` keeps.
    pub fn is_spared(&self, file: FileId, gpu: GpuId) -> bool {
        let Some(file) = self.files.get(&file) else {
            return false;
        };
        let owners = self.owners_of(file.proc).into_iter().flatten();
        let mut pools = owners.filter_map(|owner| self.pools.get(&(owner, gpu)));
        let is_limited = pools.clone().any(Pool::claims_memory);
        is_limited && !pools.any(|pool| pool.is_over(Bytes(0)) || pool.has_a_root_beyond_low())
    }

    /// Counts 2 MiB of a file's process that a full GPU takes although it is within its limits.
    pub fn take_within_limit(&mut self, file: FileId, gpu: GpuId) {
        self.count_root(file, gpu, |pool| &mut pool.taken);
    }

    /// Counts a root in the pools of a file's process and of its group.
    pub(super) fn count_root(
        &mut self,
        file: FileId,
        gpu: GpuId,
        count: fn(&mut Pool) -> &mut Sat<u64>,
    ) {
        let Some(proc) = self.files.get(&file).map(|file| file.proc) else {
            return;
        };
        for owner in self.owners_of(proc).into_iter().flatten() {
            if let Some(pool) = self.pools.get_mut(&(owner, gpu)) {
                *count(pool) += 1;
            }
        }
    }

    /// Returns a process and its group.
    pub(super) fn owners_of(&self, proc: ProcKey) -> [Option<Owner>; 2] {
        let group = self.group_of(proc).map(Owner::Group);
        [Some(Owner::Proc(proc)), group]
    }

    /// Returns whether a lower `gmem.limit` of a pool is in force and not stored yet.
    pub fn is_on_trial(&self, scope: Scope) -> bool {
        let Scope::Pool(owner, gpu) = scope else {
            return false;
        };
        let pool = self.pools.get(&(owner, gpu));
        pool.is_some_and(|pool| pool.trial.is_some())
    }

    /// Puts a lower `gmem.limit` in force that is about to be written. Returns the pool if its
    /// owner has to give memory up first, and can: by eviction, or because it is pageable. Not for
    /// any other file, no limit that is no lower, and no pool that is on trial.
    pub fn trial_begin(&mut self, file: File, scope: Scope, text: &[u8]) -> Option<(Owner, GpuId)> {
        let Scope::Pool(owner, gpu) = scope else {
            return None;
        };
        if file != File::GmemLimit {
            return None;
        }
        let evicts = self.gpus.get(&gpu)?.facts.backend == Backend::Kernel;
        let outcome = self.check_write(file, owner, gpu, text);
        let lowers = outcome == Err(Error::Busy) && (evicts || self.has_pageable(owner, gpu));
        let value = crate::iface::parse::value(crate::iface::files::entry(file).format, text);
        let Ok(Value::BytesOrMax(limit)) = value else {
            return None;
        };
        let pool = self.pools.get_mut(&(owner, gpu)).filter(|_| lowers)?;
        if pool.trial.is_some() {
            return None;
        }
        pool.trial = limit;
        Some((owner, gpu))
    }

    /// Returns whether an owner's memory may be pageable.
    fn has_pageable(&self, owner: Owner, gpu: GpuId) -> bool {
        match owner {
            Owner::Proc(proc) => self.effective(proc, gpu).pageable,
            Owner::Group(_) => {
                let pool = self.pools.get(&(owner, gpu));
                pool.is_some_and(|pool| pool.settings.pageable)
            }
        }
    }

    /// Returns the device memory that a pool is charged for.
    pub fn memory_charged(&self, (owner, gpu): (Owner, GpuId)) -> Bytes {
        let pool = self.pools.get(&(owner, gpu));
        pool.map_or(Bytes(0), |pool| pool.usage.now().all_memory())
    }

    /// Ends a trial.
    pub fn trial_end(&mut self, (owner, gpu): (Owner, GpuId)) {
        if let Some(pool) = self.pools.get_mut(&(owner, gpu)) {
            pool.trial = None;
        }
    }

    /// Returns the GPU with a UUID.
    pub fn gpu_of_uuid(&self, uuid: &[u8; 16]) -> Option<GpuId> {
        let mut gpus = self.gpus.iter();
        let found = gpus.find(|(_, gpu)| gpu.facts.uuid.as_ref() == Some(uuid));
        found.map(|(id, _)| *id)
    }

    /// Changes what a ticket is charged for. No limit refuses it, since the memory is used already.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: the ticket stays as it is. [`Error::Gone`]: there
    /// is no such file or ticket.
    pub fn recharge_managed(
        &mut self,
        file: FileId,
        ticket: Ticket,
        bytes: Bytes,
    ) -> Result<(), Error> {
        let proc = self.files.get(&file).ok_or(Error::Gone)?.proc;
        let key = ticket.reservation().ok_or(Error::Gone)?;
        let object = *self.objects.get(key).ok_or(Error::Gone)?;
        self.reserve_charge()?;
        let was = object.charged.managed;
        let mut now = bytes;
        if bytes > was {
            let more = self.charge(proc, object.gpu, Amount::of_managed(bytes - was));
            now = was + more.managed;
        } else {
            self.uncharge_part(proc, &object, Amount::of_managed(was - bytes));
        }
        if let Some(object) = self.objects.get_mut(key) {
            object.charged.managed = now;
        }
        Ok(())
    }

    /// Records which part of what a ticket is charged for is page tables. No sum changes by it.
    ///
    /// # Errors
    ///
    /// Those of [`State::recharge_managed`].
    pub fn record_tables(
        &mut self,
        file: FileId,
        ticket: Ticket,
        tables: Bytes,
    ) -> Result<(), Error> {
        let proc = self.files.get(&file).ok_or(Error::Gone)?.proc;
        let key = ticket.reservation().ok_or(Error::Gone)?;
        let object = *self.objects.get(key).ok_or(Error::Gone)?;
        self.reserve_charge()?;
        let was = object.charged.tables;
        self.uncharge_part(proc, &object, Amount::of_tables(was - tables));
        let more = self.charge(proc, object.gpu, Amount::of_tables(tables - was));
        if let Some(object) = self.objects.get_mut(key) {
            object.charged.tables = was - (was - tables) + more.tables;
        }
        Ok(())
    }
}

impl Pool {
    fn claims_memory(&self) -> bool {
        self.memory_limit().is_some() || self.settings.gmem_low.is_some()
    }

    /// Returns whether a root less leaves what `gmem.low` keeps.
    fn has_a_root_beyond_low(&self) -> bool {
        let Some(low) = self.settings.gmem_low else {
            return false;
        };
        let least = low.checked_add(ROOT);
        least.is_some_and(|least| self.usage.now().all_memory() >= least)
    }
}
