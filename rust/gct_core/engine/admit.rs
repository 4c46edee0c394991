// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides whether device memory may be allocated, and counts launches.
//!
//! ```text
//! call_try_charge   charges the memory before the driver allocates it, or refuses
//!     the driver allocates it, or fails
//! outgrows_limit    the driver has allocated more than was charged, and more than the limit
//! call_leave        replaces that charge by one for the allocated object
//! uncharge_ticket   takes the charge back if no call_leave follows
//! ```

use crate::account::Amount;
use crate::costs::Costs;
use crate::engine::Ticket;
use crate::error::Error;
use crate::failures::DaemonEvents;
use crate::gpu_time::GpuTime;
use crate::ids::{FileId, GpuId, GroupId, Owner, ProcKey};
use crate::launches::{EffectiveTpcs, Launches};
use crate::limits;
use crate::objects::{Object, ObjectKey};
use crate::records::{File, Pool};
use crate::rmapi::{Action, Call, Class, Handle};
use crate::state::State;
use crate::units::Bytes;

impl State<'_> {
    /// Charges the device memory that an ioctl may allocate. Returns `None` if its owner would
    /// exceed `gmem.limit`: the ioctl must not run. The charge comes first, so concurrent ioctls
    /// cannot exceed the limit together. It lasts until [`State::call_leave`] gets the ticket.
    ///
    /// Memory of unknown size is granted. The caller closes the file after the last `call_leave`,
    /// as with [`State::call_enter`].
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: the memory cannot be tracked.
    pub fn call_try_charge(
        &mut self,
        file: FileId,
        call: &Call,
        hint: Option<u64>,
    ) -> Result<Option<Ticket>, Error> {
        let proc = self.files.get(&file).map(|file| file.proc);
        let Some((proc, (gpu, more))) = proc.zip(self.memory_for(file, call, hint)) else {
            return Ok(Some(Ticket::NONE));
        };
        self.reserve_objects(file, 1)?;
        self.reserve_charge()?;
        if self.exceeds_limit(proc, gpu, more) {
            return Ok(None);
        }
        let amount = Amount::of_object(Class::DeviceMemory, more.get());
        self.charge_reserved(file, proc, gpu, amount).map(Some)
    }

    /// Returns the GPU on which an ioctl allocates, and the device memory that the resource manager
    /// takes for it. `hint` is as for [`State::call_try_charge`].
    fn memory_for(&self, file: FileId, call: &Call, hint: Option<u64>) -> Option<(GpuId, Bytes)> {
        let Action::Alloc { class, bytes, .. } = call.action else {
            return None;
        };
        let parent = self.parent_of(file, call)?;
        let gpu = parent.gpu.filter(|_| class.takes_memory())?;
        let answer = bytes.or(hint).unwrap_or(0);
        let mut more = self.amount_of(Some(gpu), class, answer).memory;
        if class == Class::Channel && parent.class == Class::Device {
            more += self.costs_on(Some(gpu)).compute_group;
        }
        // As small as nothing: no ticket.
        (class == Class::DeviceMemory || more > Bytes(0)).then_some((gpu, more))
    }

    /// Returns what the driver takes for objects of a GPU.
    fn costs_on(&self, gpu: Option<GpuId>) -> Costs {
        let gpu = gpu.and_then(|gpu| self.gpus.get(&gpu));
        gpu.map_or(Costs::NONE, |gpu| gpu.facts.costs)
    }

    /// Returns the amount of one object, with what the driver takes for it. `answer` is as for
    /// [`Amount::of_object`].
    pub(super) fn amount_of(&self, gpu: Option<GpuId>, class: Class, answer: u64) -> Amount {
        let mut amount = Amount::of_object(class, answer);
        amount.memory += self.costs_on(gpu).of(class, answer);
        amount
    }

    /// Returns what the driver takes for the channel group that it makes for a channel, if the
    /// channel's parent is a device.
    pub(super) fn cost_of_group_above(&self, parent: ObjectKey, gpu: Option<GpuId>) -> Bytes {
        let parent = self.objects.get(parent);
        match parent.is_some_and(|parent| parent.class == Class::Device) {
            true => self.costs_on(gpu).compute_group,
            false => Bytes(0),
        }
    }

    /// Returns whether an ioctl would give an owner under a limit more channels or address spaces
    /// than one may have of a GPU.
    pub fn is_crowded(&self, file: FileId, call: &Call) -> bool {
        let Action::Alloc { class, .. } = call.action else {
            return false;
        };
        let count = |now: &Amount| match class {
            Class::Channel => now.channels >= limits::CHANNELS_OF_OWNER_MAX,
            Class::Space => now.spaces >= limits::SPACES_OF_OWNER_MAX,
            _ => false,
        };
        let full = || {
            let gpu = self.parent_of(file, call)?.gpu?;
            let proc = self.files.get(&file)?.proc;
            let pool = self.pools.get(&(self.owner_of(proc), gpu))?;
            Some(count(pool.usage.now()) && self.binds_proc(proc))
        };
        full().unwrap_or(false)
    }

    /// Returns the first of a process and its group whose limit refuses an ioctl's allocation now,
    /// the GPU, and the bytes. Counts no refusal.
    pub fn call_lacks_room(
        &self,
        file: FileId,
        call: &Call,
        hint: Option<u64>,
    ) -> Option<(Owner, GpuId, Bytes)> {
        let (gpu, more) = self.memory_for(file, call, hint)?;
        let proc = self.files.get(&file)?.proc;
        let mut owners = self.owners_of(proc).into_iter().flatten();
        let over = owners.find(|owner| self.exceeds_limit_of(*owner, gpu, more))?;
        Some((over, gpu, more))
    }

    /// Returns whether a successful allocation of device memory has more bytes than its ticket is
    /// charged for, and its owner would exceed `gmem.limit`. RM rounds sizes up. The caller frees
    /// the object, and reports the call as failed. It holds the lock until [`State::call_leave`]
    /// otherwise.
    ///
    /// `answer` is as for [`State::call_leave`].
    pub fn outgrows_limit(
        &mut self,
        file: FileId,
        call: &Call,
        ticket: Ticket,
        answer: Option<u64>,
    ) -> bool {
        let Action::Alloc {
            class: class @ Class::DeviceMemory,
            bytes,
            ..
        } = call.action
        else {
            return false;
        };
        let gpu = self.parent_of(file, call).and_then(|parent| parent.gpu);
        let proc = self.files.get(&file).map(|file| file.proc);
        let Some((proc, gpu)) = proc.zip(gpu).filter(|_| call.succeeded()) else {
            return false;
        };
        let charged = ticket
            .reservation()
            .and_then(|key| self.objects.get(key))
            .map_or(Bytes(0), |object| object.charged.memory);
        let made = Amount::of_object(class, bytes.or(answer).unwrap_or(0)).memory;
        made > charged && self.exceeds_limit(proc, gpu, made - charged)
    }

    /// Charges managed memory that a process is about to allocate and that may be placed on this
    /// GPU. Returns `None` if its owner would exceed `gmem.limit`: the process must not allocate
    /// it. The charge lasts until [`State::uncharge_ticket`] gets the ticket.
    ///
    /// The caller uncharges it before it closes the file.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: it cannot be tracked; [`Error::Gone`].
    pub fn try_charge_managed(
        &mut self,
        file: FileId,
        gpu: GpuId,
        bytes: Bytes,
    ) -> Result<Option<Ticket>, Error> {
        let proc = self.owner_of_managed(file, gpu)?;
        if self.exceeds_limit(proc, gpu, bytes) {
            return Ok(None);
        }
        self.charge_managed(file, gpu, bytes).map(Some)
    }

    /// Charges managed memory that exists already: no limit refuses it.
    ///
    /// # Errors
    ///
    /// Those of [`State::try_charge_managed`].
    pub fn charge_managed(
        &mut self,
        file: FileId,
        gpu: GpuId,
        bytes: Bytes,
    ) -> Result<Ticket, Error> {
        let proc = self.owner_of_managed(file, gpu)?;
        self.charge_reserved(file, proc, gpu, Amount::of_managed(bytes))
    }

    /// Returns the process that is charged, and reserves room for one charge.
    fn owner_of_managed(&self, file: FileId, gpu: GpuId) -> Result<ProcKey, Error> {
        let File { proc, .. } = self.files.get(&file).ok_or(Error::Gone)?;
        if !self.gpus.contains(&gpu) {
            return Err(Error::Gone);
        }
        self.reserve_objects(file, 1)?;
        self.reserve_charge()?;
        Ok(*proc)
    }

    /// Charges a hidden object. The caller has reserved room for it.
    fn charge_reserved(
        &mut self,
        file: FileId,
        proc: ProcKey,
        gpu: GpuId,
        amount: Amount,
    ) -> Result<Ticket, Error> {
        let hidden = ObjectKey::new(self.sequence.next(), RESERVED);
        let mut object = Object::new(file, Class::DeviceMemory);
        object.gpu = Some(gpu);
        object.charged = self.charge(proc, object.gpu, amount);
        self.objects.add(hidden, object)?;
        self.count_objects_of(file);
        Ok(Ticket::reserved(hidden))
    }

    /// Takes back what a ticket charges and keeps, if no [`State::call_leave`] follows that records
    /// an object.
    pub fn uncharge_ticket(&mut self, file: FileId, ticket: Ticket) {
        self.uncharge_reserved(file, ticket);
        self.let_all_go(file, ticket.keeps);
    }

    /// Takes back the charge of a ticket.
    pub(super) fn uncharge_reserved(&mut self, file: FileId, ticket: Ticket) {
        let proc = self.files.get(&file).map(|file| file.proc);
        if let (Some(proc), Some(key)) = (proc, ticket.reservation()) {
            self.free(proc, key);
        }
    }

    /// Returns the parent of the object that a call creates.
    fn parent_of(&self, file: FileId, call: &Call) -> Option<Object> {
        let space = self.objects.space(file, call.client)?;
        let parent = ObjectKey::new(space, self.parent_handle(call));
        self.objects.get(parent).copied()
    }

    /// Returns whether `more` would exceed the limit of the process or of its group, and counts a
    /// refusal in each pool whose limit it exceeds.
    fn exceeds_limit(&mut self, proc: ProcKey, gpu: GpuId, more: Bytes) -> bool {
        let group = self.group_of(proc);
        let mut refused = false;
        for owner in [Some(Owner::Proc(proc)), group.map(Owner::Group)]
            .into_iter()
            .flatten()
        {
            let Some(pool) = self.pools.get_mut(&(owner, gpu)) else {
                continue;
            };
            if pool.is_over(more) {
                pool.refusals = pool.refusals.saturating_add(1);
                refused = true;
            }
        }
        refused
    }

    /// Returns the group of a process that has files open.
    pub fn group_of(&self, proc: ProcKey) -> Option<GroupId> {
        self.procs.get(&proc)?.group
    }

    /// Returns whether a client belongs to a file. A daemon asks this of each message, because RM
    /// does not check it there.
    pub fn has_client(&self, file: FileId, client: Handle) -> bool {
        self.objects.space(file, client).is_some()
    }

    /// Returns whether an object is device memory that another process of a file's group has made.
    /// A daemon asks this of a dup by CUDA IPC: what it knows of clients is what processes say, so
    /// whoever names another one's memory may cost nobody outside of the group.
    pub fn shares_memory(&self, file: FileId, client: Handle, object: Handle) -> bool {
        let group = |proc| self.group_of(proc);
        let own = self.files.get(&file).and_then(|file| group(file.proc));
        let key = self.key_of_source(client, object);
        let object = key.and_then(|key| self.objects.get(key));
        let memory = object.filter(|object| object.class == Class::DeviceMemory);
        let theirs = memory.and_then(|object| group(self.proc_of(object)?));
        own.is_some() && own == theirs
    }

    /// Returns the GPU of an object.
    pub fn gpu_of_object(&self, file: FileId, client: Handle, object: Handle) -> Option<GpuId> {
        let space = self.objects.space(file, client)?;
        self.objects.get(ObjectKey::new(space, object))?.gpu
    }

    /// Returns the resource manager's identifier of an object's GPU.
    pub fn rm_gpu_of(&self, file: FileId, client: Handle, object: Handle) -> Option<u32> {
        self.rm_id(self.gpu_of_object(file, client, object)?)
    }

    /// Returns the N of a GPU's `/dev/nvidiaN`.
    pub fn gpu_minor(&self, gpu: GpuId) -> Option<u32> {
        self.gpus.get(&gpu).map(|gpu| gpu.facts.minor)
    }

    /// Counts launches of a process on a GPU. The last was granted `effective`.
    pub fn launched(
        &mut self,
        proc: ProcKey,
        gpu: GpuId,
        more: &Launches,
        effective: EffectiveTpcs,
    ) {
        let group = self.group_of(proc).map(Owner::Group);
        for owner in [Some(Owner::Proc(proc)), group].into_iter().flatten() {
            if let Some(pool) = self.pools.get_mut(&(owner, gpu)) {
                pool.launches = pool.launches.plus(more);
                if effective != EffectiveTpcs::Unknown && *more != Launches::ZERO {
                    pool.effective = effective;
                }
            }
        }
    }

    /// Adds time that a process had of a GPU, and waited, to its own and its group's statistics.
    pub fn used_gpu(&mut self, proc: ProcKey, gpu: GpuId, more: &GpuTime) {
        let group = self.group_of(proc).map(Owner::Group);
        for owner in [Some(Owner::Proc(proc)), group].into_iter().flatten() {
            if let Some(pool) = self.pools.get_mut(&(owner, gpu)) {
                pool.time = pool.time.plus(more);
            }
        }
    }

    /// Sets how many launches, atoms and entries of an owner are in flight or held back now.
    pub fn set_pending(&mut self, owner: Owner, gpu: GpuId, count: u64) {
        if let Some(pool) = self.pools.get_mut(&(owner, gpu)) {
            pool.pending = count;
        }
    }

    /// Sets how many processes of an owner do not apply its time slice or freeze. The daemon of the
    /// user-space mode learns this from its processes, which apply the limits themselves.
    pub fn set_unbound(&mut self, owner: Owner, gpu: GpuId, count: u32) {
        if let Some(pool) = self.pools.get_mut(&(owner, gpu)) {
            pool.unbound = Some(count);
        }
    }

    /// Sets what a daemon has counted. Before that, `events` has no such lines.
    pub fn set_daemon_events(&mut self, events: DaemonEvents) {
        self.failures.daemon = Some(events);
    }
}

/// Handle of charged memory, in a hidden space.
pub(super) const RESERVED: Handle = 1;

impl Pool {
    /// Returns `gmem.limit`, that of a trial, or what `gmem.low` leaves now: the least.
    pub(super) fn memory_limit(&self) -> Option<Bytes> {
        let limits = [self.settings.gmem_limit, self.trial, self.allowed];
        limits.into_iter().flatten().min()
    }

    pub(super) fn is_over(&self, more: Bytes) -> bool {
        let Some(limit) = self.memory_limit() else {
            return false;
        };
        let sum = self.usage.now().all_memory().checked_add(more);
        sum.is_none_or(|sum| sum > limit)
    }
}
