// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tells the evictor for whom it makes room, by the limits of a process and of its group
//! ([`policy::ahead`](crate::policy::ahead)).

use crate::ids::{FileId, GpuId, Owner};
use crate::policy::ahead;
use crate::records::Pool;
use crate::state::State;
use crate::units::Bytes;

impl State<'_> {
    /// Returns how many roots may be evicted ahead for a process for which there was no room below
    /// an owner's limit.
    pub fn credit_ahead(&self, owner: Owner, gpu: GpuId) -> u32 {
        let limit = self.pools.get(&(owner, gpu)).and_then(Pool::memory_limit);
        limit.map_or(0, ahead::credit)
    }

    /// Returns whether the evictor is to wake for a file's process.
    pub fn is_low(&self, file: FileId, gpu: GpuId) -> bool {
        self.with_less_room(file, gpu, ahead::low).is_some()
    }

    /// Returns the first of a file's process and its group for which the evictor has to make room.
    pub fn lacks_room_ahead(&self, file: FileId, gpu: GpuId) -> Option<Owner> {
        self.with_less_room(file, gpu, ahead::full)
    }

    fn with_less_room(&self, file: FileId, gpu: GpuId, of: fn(Bytes) -> Bytes) -> Option<Owner> {
        let proc = self.files.get(&file)?.proc;
        let mut owners = self.owners_of(proc).into_iter().flatten();
        owners.find(|owner| {
            let pool = self.pools.get(&(*owner, gpu));
            let limited = pool.and_then(|pool| Some((pool, pool.memory_limit()?)));
            limited.is_some_and(|(pool, limit)| pool.is_over(of(limit)))
        })
    }

    /// Counts 2 MiB of a file's process that were evicted ahead.
    pub fn evicted_ahead(&mut self, file: FileId, gpu: GpuId) {
        self.count_root(file, gpu, |pool| &mut pool.ahead);
    }
}
