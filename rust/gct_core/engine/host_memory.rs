// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Charges host memory that evictions of managed memory take, until the UVM driver frees it.
//!
//! UVM keeps host memory for as long as the range of managed memory lives, also when its pages are
//! on the GPU again. A process may lose its account on the GPU before that. Then its ticket, of
//! [`State::open_account`], lives until the last of that memory is freed.
//!
//! ```text
//! charge_host       an eviction takes host memory; beyond hmem.limit it is refused
//! uncharge_host     some of it is freed
//! close_managed     no address space of the process is on the GPU any more
//! ```

use crate::account::Amount;
use crate::engine::admit::RESERVED;
use crate::engine::Ticket;
use crate::error::Error;
use crate::ids::{FileId, GpuId, Owner};
use crate::objects::ObjectKey;
use crate::state::State;
use crate::units::Bytes;

/// Names what is charged, for [`State::uncharge_host`]. No number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCharge(pub u64);

impl HostCharge {
    /// Nobody is charged.
    pub const NOBODY: Self = Self(0);
}

impl State<'_> {
    /// Charges host memory that an eviction from an address space's GPU takes. Returns `None` if
    /// that would exceed a limit and the eviction is `for_owner`: then it has to fail. An eviction
    /// because the GPU is full must not fail for it, because somebody else would pay.
    ///
    /// # Errors
    ///
    /// [`Error::NeedSlots`], [`Error::NoSpace`]: it cannot be charged.
    pub fn charge_host(
        &mut self,
        file: FileId,
        ticket: Ticket,
        bytes: Bytes,
        for_owner: bool,
    ) -> Result<Option<HostCharge>, Error> {
        let proc = self.files.get(&file).map(|file| file.proc);
        let key = ticket.reservation();
        let gpu = key.and_then(|key| self.objects.get(key)?.gpu);
        let Some(((proc, key), gpu)) = proc.zip(key).zip(gpu) else {
            return Ok(Some(HostCharge::NOBODY));
        };
        self.reserve_charge()?;
        let mut owners = self.owners_of(proc).into_iter().flatten();
        if for_owner && owners.any(|owner| self.exceeds_host_limit(owner, gpu, bytes)) {
            return Ok(None);
        }
        let charged = self.charge(proc, Some(gpu), Amount::of_host(bytes)).host;
        if let Some(object) = self.objects.get_mut(key) {
            object.charged.host += charged;
        }
        Ok(Some(match charged == bytes {
            true => HostCharge(key.space),
            false => HostCharge::NOBODY,
        }))
    }

    fn exceeds_host_limit(&self, owner: Owner, gpu: GpuId, more: Bytes) -> bool {
        let pool = self.pools.get(&(owner, gpu));
        pool.is_some_and(|pool| match pool.settings.hmem_limit {
            Some(limit) => {
                let sum = pool.usage.now().host.checked_add(more);
                sum.is_none_or(|sum| sum > limit)
            }
            None => false,
        })
    }

    /// Uncharges host memory that was freed.
    pub fn uncharge_host(&mut self, charge: HostCharge, bytes: Bytes) {
        let key = ObjectKey::new(charge.0, RESERVED);
        let Some(object) = self.objects.get(key).copied() else {
            return;
        };
        let Some(proc) = self.files.get(&object.file).map(|file| file.proc) else {
            return;
        };
        let less = bytes.min(object.charged.host);
        self.uncharge_part(proc, &object, Amount::of_host(less));
        let Some(object) = self.objects.get_mut(key) else {
            return;
        };
        object.charged.host -= less;
        if object.is_closed && object.charged.host == Bytes(0) {
            let file = object.file;
            self.free(proc, key);
            self.account_leave(file);
        }
    }

    /// Closes the file of an account whose ticket is gone.
    fn account_leave(&mut self, file: FileId) {
        if self.files.get(&file).is_some_and(|file| file.is_account) {
            self.file_close(file);
        }
    }

    /// Uncharges the managed memory of an account that is closed. What evictions took of the host
    /// stays charged until it is freed.
    pub fn close_managed(&mut self, file: FileId, ticket: Ticket) {
        let proc = self.files.get(&file).map(|file| file.proc);
        let Some((proc, key)) = proc.zip(ticket.reservation()) else {
            return;
        };
        let Some(object) = self.objects.get(key).copied() else {
            return;
        };
        if object.charged.host == Bytes(0) {
            self.free(proc, key);
            return self.account_leave(file);
        }
        let rest = Amount::of_host(object.charged.host);
        let device = object.charged.without(&rest).unwrap_or(Amount::ZERO);
        self.uncharge_part(proc, &object, device);
        if let Some(object) = self.objects.get_mut(key) {
            (object.charged, object.is_closed) = (rest, true);
        }
    }
}
