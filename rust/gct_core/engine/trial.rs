// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A limit that somebody else has to take is on trial before it is stored.

use crate::error::Error;
use crate::gpu::Backend;
use crate::ids::{GpuId, Scope};
use crate::iface::File;
use crate::plan::Trial;
use crate::rmapi::control::{self, Status};
use crate::state::State;

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It is done.
    Done,
    /// It is on trial: send the controls until there is none or one was refused, then
    /// call [`State::write_end`].
    Trial,
}

/// Are limits of this file enforced by controls? Write them with
/// [`State::write_begin`].
pub const fn needs_controls(file: File) -> bool {
    matches!(file, File::ComputeTimeslice | File::ComputeFreeze)
}

/// Are limits of this file enforced by controls that each process sends itself, where a
/// daemon governs? It tells them what is on trial, and the core what they answer
/// ([`State::write_refused`]).
pub const fn needs_answers(file: File) -> bool {
    needs_controls(file)
}

impl State<'_> {
    /// A file is written, by a caller that sends controls. As [`State::write`], but a
    /// limit that needs controls is only on trial. One write may be so at a time.
    ///
    /// # Errors
    ///
    /// Those of [`State::write`]; then nothing is on trial.
    pub fn write_begin(&mut self, file: File, scope: Scope, text: &[u8]) -> Result<Begun, Error> {
        let Scope::Pool(owner, gpu) = scope else {
            return self.write(file, scope, text).map(|()| Begun::Done);
        };
        if !self.is_tried(file, gpu) {
            return self.write(file, scope, text).map(|()| Begun::Done);
        }
        let value = self.check_write(file, owner, gpu, text)?;
        self.plan.trial = Some(Trial {
            owner,
            gpu,
            file,
            value,
            refused: None,
        });
        self.reconsider(owner, Some(gpu));
        Ok(Begun::Trial)
    }

    /// A process was refused what is on trial, or does not answer.
    pub fn write_refused(&mut self, status: Status) {
        if let Some(trial) = &mut self.plan.trial {
            trial.refused = Some(status);
        }
    }

    /// Has the resource manager refused what is on trial?
    pub fn write_is_refused(&self) -> bool {
        self.plan.trial.is_some_and(|trial| trial.refused.is_some())
    }

    /// What was on trial is in force, if nothing was refused. If something was, the
    /// former limit is due again for those who were told of the new one.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`], [`Error::Unsupported`]; [`Error::Gone`].
    pub fn write_end(&mut self) -> Result<(), Error> {
        let trial = self.plan.trial.take().ok_or(Error::Gone)?;
        let key = (trial.owner, trial.gpu);
        let outcome = match (trial.refused, self.pools.get_mut(&key)) {
            (Some(control::NOT_SUPPORTED), _) => Err(Error::Unsupported),
            (Some(_), _) => Err(Error::Refused),
            (None, Some(pool)) if pool.is_shown(trial.owner) => {
                pool.settings.set(trial.file, trial.value)
            }
            (None, _) => Err(Error::Gone),
        };
        if outcome.is_err() {
            self.reconsider(trial.owner, Some(trial.gpu));
        }
        outcome
    }

    /// Is a limit of this file on trial before it is stored?
    fn is_tried(&self, file: File, gpu: GpuId) -> bool {
        match self.gpus.get(&gpu).map(|gpu| gpu.facts.backend) {
            Some(Backend::Kernel) => needs_controls(file),
            Some(Backend::User) => needs_answers(file),
            _ => false,
        }
    }
}
