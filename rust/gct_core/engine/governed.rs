// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides for which open files the rules of [`allow`](crate::rmapi::allow) hold.
//!
//! ```text
//! governed(file)   its process has, or may get, channels that the driver owns; or
//!                  the file is entangled
//! entangled(file)  it has duplicated or imported an object of another process's file, or has a
//!                  debugger there. It stays so until it is closed
//! ```
//!
//! Without the second line a tenant had an accomplice without limits name its address space, its
//! channel or its debugger in a client of its own, and call the control there. Whoever shares
//! objects with a process without limits is bound, too, while somebody is governed: the file may
//! outlive the time at which its partner had no limits.

use crate::failures::Failure;
use crate::ids::{FileId, GpuId, Owner, ProcKey};
use crate::rmapi::allow::{Asked, Rule};
use crate::rmapi::control::{Status, NOT_SUPPORTED};
use crate::rmapi::{Handle, INSUFFICIENT_PERMISSIONS};
use crate::state::State;

impl State<'_> {
    /// Refuses what a rule refuses, and counts it, if the rules hold for the file. `is_recorded`
    /// says that the driver records what the file maps. A file that is not followed (`None`) may
    /// be anybody's, so they hold for it. The caller asks only while somebody is governed.
    ///
    /// # Errors
    ///
    /// The status with which the ioctl is refused.
    pub fn forbid(
        &mut self,
        file: Option<FileId>,
        is_recorded: bool,
        asked: &Asked,
    ) -> Result<(), Status> {
        if file.is_some_and(|file| !is_recorded && !self.is_governed_file(file)) {
            return Ok(());
        }
        self.count(Failure::Forbidden);
        if let Some(file) = file {
            self.count_forbidden(file, asked);
        }
        Err(match asked.rule {
            Rule::Unknown => NOT_SUPPORTED,
            _ => INSUFFICIENT_PERMISSIONS,
        })
    }

    /// Returns whether the log is to have the last refusal. It has the first since boot, the
    /// second, the fourth, the eighth and so on: no tenant fills it.
    pub fn logs_refusal(&self) -> bool {
        self.failures.forbidden.0.is_power_of_two()
    }

    /// Returns whether the rules hold for a file that the driver does not record. O(GPUs).
    pub fn is_governed_file(&self, file: FileId) -> bool {
        let entangled = self.files.get(&file).is_some_and(|file| file.is_entangled);
        entangled || self.wants_record_of(file)
    }

    /// Counts a refusal for the owners of a file, on the GPU of the object that it names; of one
    /// that is not mirrored, such as a debugger, on the first GPU that the process uses. O(GPUs).
    fn count_forbidden(&mut self, file: FileId, asked: &Asked) {
        let Some(proc) = self.files.get(&file).map(|file| file.proc) else {
            return;
        };
        let uses = |gpu: &GpuId| self.pools.get(&(Owner::Proc(proc), *gpu)).is_some();
        let first = || self.gpus.iter().map(|(gpu, _)| *gpu).find(uses);
        let gpu = self.gpu_of_object(file, asked.client, asked.object);
        let Some(gpu) = gpu.or_else(first) else {
            return;
        };
        let group = self.group_of(proc).map(Owner::Group);
        for owner in [Some(Owner::Proc(proc)), group].into_iter().flatten() {
            let pool = self.pools.get_mut(&(owner, gpu));
            // CAST: the number of a variant.
            let counter = pool.and_then(|pool| pool.forbidden.get_mut(asked.rule as usize));
            if let Some(counter) = counter {
                *counter = counter.saturating_add(1);
            }
        }
    }

    /// Records that a file is about to name an object of a client: by a duplicate, or a debugger.
    pub fn entangle(&mut self, file: FileId, client: Handle) {
        let other = self.objects.file_of_any(client);
        self.entangle_with(file, other);
    }

    /// Records that a file exports objects to another one, or has imported them from it. `None` is
    /// one that is not followed.
    pub fn entangle_by_file(&mut self, file: FileId, other: Option<FileId>, exports: bool) {
        match (exports, other) {
            (true, Some(other)) => self.entangle_with(other, Some(file)),
            (true, None) => {}
            (false, other) => self.entangle_with(file, other),
        }
    }

    /// Marks a file if another one is not of the same process, or is marked.
    fn entangle_with(&mut self, file: FileId, other: Option<FileId>) {
        let other = other.and_then(|other| self.files.get(&other));
        let other: Option<ProcKey> = other.filter(|other| !other.is_entangled).map(|o| o.proc);
        if let Some(file) = self.files.get_mut(&file) {
            file.is_entangled |= other != Some(file.proc);
        }
    }
}
