// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Device memory is asked for before the driver allocates it, and launches are told of after
//! they ran.

use crate::account::Amount;
use crate::engine::Ticket;
use crate::error::Error;
use crate::ids::{FileId, GpuId, GroupId, Owner, ProcKey};
use crate::launches::{EffectiveTpcs, Launches};
use crate::objects::{Object, ObjectKey};
use crate::rmapi::{Action, Call, Class, Handle};
use crate::state::{File, Pool, State};
use crate::units::Bytes;

impl State<'_> {
    /// An ioctl that may allocate device memory is about to run: `None` if it must not, since
    /// its owner would have more than `gmem.limit`. Otherwise the memory is charged from now
    /// on, so that two who ask at a time cannot both have the last of it, until
    /// [`State::call_leave`] gets the ticket and charges what came of it.
    ///
    /// What cannot be told beforehand is granted. The caller closes the file after the last
    /// `call_leave`, as with [`State::call_enter`].
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: it cannot be followed.
    pub fn call_try_charge(
        &mut self,
        file: FileId,
        call: &Call,
        hint: Option<u64>,
    ) -> Result<Option<Ticket>, Error> {
        let Action::Alloc {
            class: class @ Class::DeviceMemory,
            bytes,
            ..
        } = call.action
        else {
            return Ok(Some(Ticket::NONE));
        };
        let gpu = self.parent_of(file, call).and_then(|parent| parent.gpu);
        let proc = self.files.get(&file).map(|file| file.proc);
        let Some((proc, gpu)) = proc.zip(gpu) else {
            return Ok(Some(Ticket::NONE));
        };
        self.reserve_objects(file, 1)?;
        self.reserve_charge()?;
        let amount = Amount::of_object(class, bytes.or(hint).unwrap_or(0));
        if self.exceeds_limit(proc, gpu, amount.memory) {
            return Ok(None);
        }
        self.charge_reserved(file, proc, gpu, amount).map(Some)
    }

    /// A process is about to have so much more managed memory, which may come to lie on this
    /// GPU: `None` if it must not, since its owner would have more than `gmem.limit`. Otherwise
    /// it is charged until [`State::uncharge_ticket`] gets the ticket.
    ///
    /// The caller uncharges it before it closes the file.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: it cannot be followed; [`Error::Gone`].
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

    /// As [`State::try_charge_managed`] for memory that exists already: no limit refuses it.
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

    /// The process that is charged, with room for one charge.
    fn owner_of_managed(&self, file: FileId, gpu: GpuId) -> Result<ProcKey, Error> {
        let File { proc, .. } = self.files.get(&file).ok_or(Error::Gone)?;
        if !self.gpus.contains(&gpu) {
            return Err(Error::Gone);
        }
        self.reserve_objects(file, 1)?;
        self.reserve_charge()?;
        Ok(*proc)
    }

    /// Charges an object that nobody can name. The caller has made room for it.
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
        self.tally(file);
        Ok(Ticket::reserved(hidden))
    }

    /// What was granted is given back: no [`State::call_leave`] will follow.
    pub fn uncharge_ticket(&mut self, file: FileId, ticket: Ticket) {
        let proc = self.files.get(&file).map(|file| file.proc);
        if let (Some(proc), Some(key)) = (proc, ticket.reservation()) {
            self.free(proc, key);
        }
    }

    /// The object below which a call makes another.
    fn parent_of(&self, file: FileId, call: &Call) -> Option<Object> {
        let space = self.objects.space(file, call.client)?;
        let parent = ObjectKey::new(space, self.parent_handle(call));
        self.objects.get(parent).copied()
    }

    /// Would so much more be over the limit of the process or of its group? Then that is
    /// counted where it would.
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

    /// The group that a process with open files belongs to.
    pub fn group_of(&self, proc: ProcKey) -> Option<GroupId> {
        self.procs.get(&proc)?.group
    }

    /// Does a file have a client of that handle? A caller that does not hear from the resource
    /// manager itself must not let one file speak of another's.
    pub fn has_client(&self, file: FileId, client: Handle) -> bool {
        self.objects.space(file, client).is_some()
    }

    /// The GPU on which an object of a file's client lies.
    pub fn gpu_of_object(&self, file: FileId, client: Handle, object: Handle) -> Option<GpuId> {
        let space = self.objects.space(file, client)?;
        self.objects.get(ObjectKey::new(space, object))?.gpu
    }

    /// The N of a GPU's `/dev/nvidiaN`.
    pub fn gpu_minor(&self, gpu: GpuId) -> Option<u32> {
        self.gpus.get(&gpu).map(|gpu| gpu.facts.minor)
    }

    /// Adds launches of a process on a GPU, of which the last was granted `effective`.
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

    /// Sets how many processes of an owner its time slice or freeze does not bind. A daemon calls
    /// this whose processes enforce these limits themselves.
    pub fn set_unbound(&mut self, owner: Owner, gpu: GpuId, count: u32) {
        if let Some(pool) = self.pools.get_mut(&(owner, gpu)) {
            pool.unbound = Some(count);
        }
    }
}

/// The handle of memory that is asked for, in a space that nobody can name.
const RESERVED: Handle = 1;

impl Pool {
    fn is_over(&self, more: Bytes) -> bool {
        let Some(limit) = self.settings.gmem_limit else {
            return false;
        };
        match self.usage.now().all_memory().checked_add(more) {
            Some(sum) => sum > limit,
            None => true,
        }
    }
}
