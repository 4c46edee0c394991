// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tells launches of one kernel apart by the launches before them, as a branch predictor does by
//! its history.

use super::{hash, Kernel};
use crate::probe;
use crate::units::{Ns, Sat};

/// The launches of a channel before the next one: a hash of the last 16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path(u64);

impl Path {
    /// Creates the path with this number.
    #[cfg(test)]
    pub(super) fn number(number: u32) -> Self {
        Self(probe::mix(0, number))
    }

    /// Returns the path behind one more launch.
    #[must_use]
    pub fn then(self, kernel: &Kernel) -> Self {
        Self(probe::follow(self.0, hash(kernel)))
    }

    /// Returns the key of `kernel` at the end of this path.
    pub(super) fn place(self, kernel: &Kernel) -> Kernel {
        Kernel {
            program: kernel.program ^ self.0,
            ..*kernel
        }
    }
}

/// The parts of an error that is as large as the time.
const WHOLE: u32 = 1 << 16;

/// An observation counts for this many times the error of its place at most.
const OUTLIER: u32 = 4;

/// How far two predictions were off, as averages: in parts of the predicted or the real time,
/// whichever is longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// That of a place.
    place: u32,
    /// That of its kernel.
    kernel: u32,
}

/// Returns the error of a prediction.
fn error(predicted: Ns, real: Ns) -> u32 {
    let (longer, shorter) = (predicted.max(real), predicted.min(real));
    let part = Ns(u64::from(WHOLE)).scale(longer - shorter, longer.max(Ns(1)));
    // CAST: at most a whole.
    part.get() as u32
}

impl Errors {
    /// Returns the errors of predictions of a time.
    pub(super) fn of(place: Ns, kernel: Ns, real: Ns) -> Self {
        Self {
            place: error(place, real),
            kernel: error(kernel, real),
        }
    }

    /// Returns the averages after an observation, which counts for a part of `weight`.
    pub(super) fn after(self, new: Self, weight: u32) -> Self {
        let average = |known: u32, new: u32| {
            let part = |error: u32| error.checked_div(weight).unwrap_or(error);
            (Sat(known) - Sat(part(known)) + Sat(part(new))).0
        };
        Self {
            place: average(self.place, new.place),
            kernel: average(self.kernel, new.kernel),
        }
    }

    /// Returns whether the place predicts at least as well as its kernel.
    pub(super) fn favour_place(self) -> bool {
        self.place <= self.kernel
    }

    /// Returns an observed time, or what it counts for beside the place's prediction.
    pub(super) fn bound(self, predicted: Ns, real: Ns) -> Ns {
        let most = predicted.scale(self.place.saturating_mul(OUTLIER), WHOLE);
        real.max(predicted - most).min(predicted + most)
    }
}
