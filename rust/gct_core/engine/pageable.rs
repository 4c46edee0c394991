// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Charges pageable memory: ordinary allocations that a process moves between its GPU and the host
//! by itself.
//!
//! A ticket of [`State::charge_managed`] stands for all pageable memory of a file on a GPU.
//!
//! ```text
//! is_pageable       whether a new allocation is to be pageable
//! pageable_room     the most that may be on the GPU and on the host
//! try_repage        changes both charges within the limits, or neither
//! repage            changes them for memory that exists, whatever the limits
//! pageable_refused  counts an allocation for which there was no room
//! ```
//!
//! Bytes on the GPU count as managed memory. Bytes of the host count until they are freed, as for
//! evictions: moving a piece back to the GPU frees none.

use crate::account::Amount;
use crate::engine::Ticket;
use crate::error::Error;
use crate::ids::{FileId, GpuId};
use crate::memory::BYTES_MAX;
use crate::records::Pool;
use crate::state::State;
use crate::units::Bytes;

/// Pageable memory of a process, by place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paged {
    /// Bytes on the GPU.
    pub device: Bytes,
    /// Bytes of host memory that were taken for it.
    pub host: Bytes,
}

impl Paged {
    /// No limit.
    pub const MAX: Self = Self {
        device: Bytes::MAX,
        host: Bytes::MAX,
    };
}

impl State<'_> {
    /// Returns whether memory that a process allocates on a GPU is to be pageable: `gmem.pageable`
    /// says so, and a `gmem.limit` bounds it.
    pub fn is_pageable(&self, file: FileId, gpu: GpuId) -> bool {
        let Some(proc) = self.files.get(&file).map(|file| file.proc) else {
            return false;
        };
        let settings = self.effective(proc, gpu);
        settings.pageable && settings.gmem_limit.is_some()
    }

    /// Returns the most that a ticket may be charged within the limits of the process and of its
    /// group, beside what else they are charged for. It keeps `spare` bytes of each `gmem.limit`
    /// free.
    pub fn pageable_room(&self, file: FileId, ticket: Ticket, spare: Bytes) -> Option<Paged> {
        let (gpu, was) = self.paged(ticket)?;
        let proc = self.files.get(&file)?.proc;
        let owners = self.owners_of(proc).into_iter().flatten();
        let pools = owners.filter_map(|owner| self.pools.get(&(owner, gpu)));
        let rooms = pools.map(|pool| room_of(pool, was, spare));
        Some(rooms.fold(Paged::MAX, |a, b| Paged {
            device: a.device.min(b.device),
            host: a.host.min(b.host),
        }))
    }

    /// Changes what a ticket is charged for. Returns false and changes nothing if a part grows
    /// beyond [`State::pageable_room`].
    ///
    /// # Errors
    ///
    /// Those of [`State::repage`].
    pub fn try_repage(
        &mut self,
        file: FileId,
        ticket: Ticket,
        now: Paged,
        spare: Bytes,
    ) -> Result<bool, Error> {
        let (_, was) = self.paged(ticket).ok_or(Error::Gone)?;
        let room = self.pageable_room(file, ticket, spare).ok_or(Error::Gone)?;
        let fits = |now: Bytes, was: Bytes, room: Bytes| now <= was || now <= room;
        let fits = fits(now.device, was.device, room.device) && fits(now.host, was.host, room.host);
        if fits {
            self.repage(file, ticket, now)?;
        }
        Ok(fits)
    }

    /// Changes what a ticket is charged for. No limit refuses it, since the memory exists.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: nothing has changed. A process that claims more
    /// than [`BYTES_MAX`] gets the second, so no sum of a group overflows. [`Error::Gone`]: there
    /// is no such file or ticket.
    pub fn repage(&mut self, file: FileId, ticket: Ticket, now: Paged) -> Result<(), Error> {
        if now.device.max(now.host) > BYTES_MAX {
            return Err(Error::NoSpace);
        }
        let proc = self.files.get(&file).ok_or(Error::Gone)?.proc;
        let key = ticket.reservation().ok_or(Error::Gone)?;
        let object = *self.objects.get(key).ok_or(Error::Gone)?;
        self.reserve_charge()?;
        let was = paged(&object.charged);
        let less = of(was.device - now.device, was.host - now.host);
        let more = of(now.device - was.device, now.host - was.host);
        self.uncharge_part(proc, &object, less);
        let more = self.charge(proc, object.gpu, more);
        if let Some(object) = self.objects.get_mut(key) {
            let charged = &mut object.charged;
            charged.managed = charged.managed - less.managed + more.managed;
            charged.host = charged.host - less.host + more.host;
        }
        Ok(())
    }

    /// Counts an allocation of a file's process that was refused, in each pool with a `gmem.limit`.
    pub fn pageable_refused(&mut self, file: FileId, gpu: GpuId) {
        let Some(proc) = self.files.get(&file).map(|file| file.proc) else {
            return;
        };
        for owner in self.owners_of(proc).into_iter().flatten() {
            let pool = self.pools.get_mut(&(owner, gpu));
            if let Some(pool) = pool.filter(|pool| pool.settings.gmem_limit.is_some()) {
                pool.refusals = pool.refusals.saturating_add(1);
            }
        }
    }

    /// Returns the GPU of a ticket, and what it is charged for.
    fn paged(&self, ticket: Ticket) -> Option<(GpuId, Paged)> {
        let object = self.objects.get(ticket.reservation()?)?;
        Some((object.gpu?, paged(&object.charged)))
    }
}

/// Returns the most that a pool leaves for pageable memory of which `own` is charged already.
fn room_of(pool: &Pool, own: Paged, spare: Bytes) -> Paged {
    let now = pool.usage.now();
    let left =
        |limit: Option<Bytes>, others: Bytes| limit.map_or(Bytes::MAX, |limit| limit - others);
    Paged {
        device: left(pool.memory_limit(), now.all_memory() - own.device + spare),
        host: left(pool.settings.hmem_limit, now.host - own.host),
    }
}

fn paged(amount: &Amount) -> Paged {
    Paged {
        device: amount.managed,
        host: amount.host,
    }
}

fn of(managed: Bytes, host: Bytes) -> Amount {
    Amount {
        managed,
        host,
        ..Amount::ZERO
    }
}
