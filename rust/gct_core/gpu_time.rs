// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts the time that an owner had of a GPU, and the time for which its work was held back.

use crate::units::Ns;

macro_rules! holds {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $word:literal;)*) => {
        /// Why work is held back.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Hold {
            $($(#[$doc])* $name = $bit,)*
        }

        impl Hold {
            /// Every reason, in the order of `compute.stat`.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
            /// The number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// Returns the word in `compute.stat`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }

            const fn bit(self) -> u8 {
                match self {
                    $(Self::$name => 1 << $bit,)*
                }
            }
        }
    };
}

holds! {
    /// The tenant is frozen.
    Freeze = 0, "freeze";
    /// Its TPCs are reserved for others, or those of an earlier priority have work.
    Tpcs = 1, "tpcs";
    /// Its atoms in flight last long enough.
    Atoms = 2, "atoms";
    /// A graph's replay waits until its masks can change.
    Graph = 3, "graph";
    /// Others have their turn.
    Weight = 4, "weight";
    /// Its duty cycle is used up.
    Max = 5, "max";
}

/// A piece that is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Why.
    pub reason: Hold,
    /// When it goes all the same.
    pub until: Ns,
    /// Whether its TPCs are reserved for others, or are those of an earlier rank.
    pub reserved: bool,
    /// Whether it needs more TPCs than it could have now.
    pub short: bool,
}

impl Held {
    /// Returns that a piece is held for a reason, until it goes all the same.
    #[inline]
    pub const fn until(reason: Hold, until: Ns) -> Self {
        Self {
            reason,
            until,
            reserved: false,
            short: false,
        }
    }

    /// Returns whether the piece goes late.
    #[inline]
    pub fn is_late(self, now: Ns) -> Result<bool, Self> {
        match now >= self.until {
            true => Ok(true),
            false => Err(self),
        }
    }
}

/// A set of reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds(u8);

impl Holds {
    /// Adds a reason.
    pub fn add(&mut self, hold: Hold) {
        self.0 |= hold.bit();
    }

    /// Returns whether a reason is in the set.
    pub const fn has(self, hold: Hold) -> bool {
        self.0 & hold.bit() != 0
    }

    /// Returns whether there is no reason.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Times of an owner on one GPU since it was first seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuTime {
    /// Time with work in flight, divided among the processes with work on the same TPCs.
    pub used: Ns,
    /// The same, times the part of the GPU's TPCs that was granted.
    pub weighted: Ns,
    /// Time with work that was held back.
    pub waited: Ns,
    /// The same by reason, indexed by [`Hold`]. Several may apply at a time.
    pub held: [Ns; Hold::COUNT],
}

impl GpuTime {
    /// No time.
    pub const ZERO: Self = Self {
        used: Ns(0),
        weighted: Ns(0),
        waited: Ns(0),
        held: [Ns(0); Hold::COUNT],
    };

    /// Adds time with work in flight, on `granted` TPCs of a GPU that has `tpcs`.
    pub fn use_time(&mut self, time: Ns, granted: u64, tpcs: u64) {
        self.used += time;
        self.weighted += weighted(time, granted, tpcs);
    }

    /// Takes back time of [`use_time`](Self::use_time).
    pub fn refund(&mut self, time: Ns, granted: u64, tpcs: u64) {
        self.used -= time;
        self.weighted -= weighted(time, granted, tpcs);
    }

    /// Adds time with work that was held back.
    pub fn wait(&mut self, time: Ns, holds: Holds) {
        if holds.is_empty() {
            return;
        }
        self.waited += time;
        for (held, hold) in self.held.iter_mut().zip(Hold::ALL) {
            if holds.has(*hold) {
                *held += time;
            }
        }
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a + b)
    }

    /// Returns the difference to `earlier`. A time that went back, which only a liar reports, gives
    /// 0.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.combine(earlier, |a, b| a - b)
    }

    fn combine(&self, other: &Self, with: fn(Ns, Ns) -> Ns) -> Self {
        let mut held = self.held;
        for (time, more) in held.iter_mut().zip(other.held) {
            *time = with(*time, more);
        }
        Self {
            used: with(self.used, other.used),
            weighted: with(self.weighted, other.weighted),
            waited: with(self.waited, other.waited),
            held,
        }
    }
}

impl Default for GpuTime {
    fn default() -> Self {
        Self::ZERO
    }
}

/// Returns `time` times the part of the TPCs; all of it where the TPCs are unknown.
fn weighted(time: Ns, granted: u64, tpcs: u64) -> Ns {
    match tpcs {
        0 => time,
        tpcs => time.scale(granted.min(tpcs), tpcs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_weighted_by_the_part_of_the_tpcs() {
        let mut time = GpuTime::ZERO;
        time.use_time(Ns(660), 33, 66);
        time.use_time(Ns(660), 99, 66);
        time.use_time(Ns(660), 0, 0);
        assert_eq!((time.used, time.weighted), (Ns(1980), Ns(1650)));
        time.refund(Ns(60), 33, 66);
        assert_eq!((time.used, time.weighted), (Ns(1920), Ns(1620)));
    }

    #[test]
    fn a_wait_counts_once_and_for_each_of_its_reasons() {
        let mut holds = Holds::default();
        let mut time = GpuTime::ZERO;
        time.wait(Ns(5), holds);
        holds.add(Hold::Weight);
        holds.add(Hold::Freeze);
        time.wait(Ns(7), holds);
        let held = |hold: Hold| time.held[hold as usize];
        assert_eq!((time.waited, held(Hold::Weight)), (Ns(7), Ns(7)));
        assert_eq!((held(Hold::Freeze), held(Hold::Max)), (Ns(7), Ns(0)));
        assert_eq!(GpuTime::ZERO.since(&time), GpuTime::ZERO);
        assert_eq!(time.plus(&time).since(&time), time);
    }
}
