// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes a limit in two phases, so that the tree never shows a limit that is not in force.
//!
//! RM may refuse a limit. So the engine stores it only when the caller knows the outcome:
//!
//! ```text
//! write_prepare(value)  the limits in force include the value; the owner's subjects become dirty
//! flush                 the caller sends the controls, or collects its processes' answers
//!     write_refused     RM or the caller refuses: the value is not in force any more
//! write_commit          stores the value; after a refusal it marks the subjects dirty instead
//! flush                 after a refusal: restores the old value
//! ```
//!
//! One write is pending at a time. The caller serializes writes.

use crate::error::Error;
use crate::gpu::Backend;
use crate::ids::{GpuId, Scope};
use crate::iface::File;
use crate::plan::PendingWrite;
use crate::rmapi::control::{self, Status};
use crate::state::State;

/// Outcome of [`State::write_prepare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// The value is stored.
    Done,
    /// The write is pending. Flush, then call [`State::write_commit`].
    Pending,
}

/// Returns whether RM controls enforce this file's limits. [`State::write_prepare`] writes them.
pub const fn needs_controls(file: File) -> bool {
    matches!(file, File::ComputeTimeslice | File::ComputeFreeze)
}

/// Returns whether each process of the user-space mode enforces this file's limits by controls of
/// its own. The daemon publishes the pending value and collects the answers.
pub const fn needs_acks(file: File) -> bool {
    needs_controls(file)
}

impl State<'_> {
    /// Writes a file, or makes the write pending if its limit needs controls or acknowledgements.
    ///
    /// # Errors
    ///
    /// Those of [`State::write`]; then no write is pending.
    pub fn write_prepare(
        &mut self,
        file: File,
        scope: Scope,
        text: &[u8],
    ) -> Result<Prepared, Error> {
        let Scope::Pool(owner, gpu) = scope else {
            return self.write(file, scope, text).map(|()| Prepared::Done);
        };
        if !self.has_two_phases(file, gpu) {
            return self.write(file, scope, text).map(|()| Prepared::Done);
        }
        let value = self.check_write(file, owner, gpu, text)?;
        self.plan.pending_write = Some(PendingWrite {
            owner,
            gpu,
            file,
            value,
            refused: None,
        });
        self.mark_owner(owner, Some(gpu));
        Ok(Prepared::Pending)
    }

    /// Refuses the pending write with RM's status.
    pub fn write_refused(&mut self, status: Status) {
        if let Some(write) = &mut self.plan.pending_write {
            write.refused = Some(status);
        }
    }

    /// Returns whether the pending write was refused.
    pub fn write_is_refused(&self) -> bool {
        self.plan
            .pending_write
            .is_some_and(|write| write.refused.is_some())
    }

    /// Stores the value of the pending write. After a refusal, keeps the old value and marks the
    /// subjects that got the new one.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`], [`Error::Unsupported`]; [`Error::Gone`].
    pub fn write_commit(&mut self) -> Result<(), Error> {
        let write = self.plan.pending_write.take().ok_or(Error::Gone)?;
        let key = (write.owner, write.gpu);
        let outcome = match (write.refused, self.pools.get_mut(&key)) {
            (Some(control::NOT_SUPPORTED), _) => Err(Error::Unsupported),
            (Some(_), _) => Err(Error::Refused),
            (None, Some(pool)) if pool.is_shown(write.owner) => {
                pool.settings.set(write.file, write.value)
            }
            (None, _) => Err(Error::Gone),
        };
        if outcome.is_err() {
            self.mark_owner(write.owner, Some(write.gpu));
        }
        outcome
    }

    /// Returns whether a limit of this file may be refused after it was written.
    fn has_two_phases(&self, file: File, gpu: GpuId) -> bool {
        match self.gpus.get(&gpu).map(|gpu| gpu.facts.backend) {
            Some(Backend::Kernel) => needs_controls(file),
            Some(Backend::User) => needs_acks(file),
            _ => false,
        }
    }
}
