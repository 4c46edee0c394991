// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Acquires and releases semaphores in memory, for the host and the copy engine.

use crate::bits::{low_u32, Bits};
use crate::gmmu::{AddressSpace, Fault};
use crate::memory::PhysicalMemory;

/// Offset of a semaphore's timestamp from its payload.
const TIMESTAMP_OFFSET: u64 = 8;

/// Width of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 32 bits.
    Bits32,
    /// 64 bits.
    Bits64,
}

impl Width {
    fn mask(self) -> u64 {
        match self {
            Self::Bits32 => u64::from(u32::MAX),
            Self::Bits64 => u64::MAX,
        }
    }

    /// Interprets `value` as a signed number of this width.
    fn signed(self, value: u64) -> i64 {
        // CAST: two's complement is meant.
        match self {
            Self::Bits32 => i64::from(low_u32(value) as i32),
            Self::Bits64 => value as i64,
        }
    }
}

/// The arithmetic of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// Number of the operation, the same for the host and the copy engine.
    pub operation: u64,
    /// Whether minimum and maximum compare as signed numbers.
    pub signed: bool,
}

impl Reduction {
    /// Combines `old` with `payload`.
    pub fn apply(self, width: Width, old: u64, payload: u64) -> u64 {
        let less = if self.signed {
            width.signed(old) < width.signed(payload)
        } else {
            old < payload
        };
        let new = match self.operation {
            // IMIN, IMAX, IXOR, IAND, IOR, IADD.
            0 => {
                if less {
                    old
                } else {
                    payload
                }
            }
            1 => {
                if less {
                    payload
                } else {
                    old
                }
            }
            2 => old ^ payload,
            3 => old & payload,
            4 => old | payload,
            5 => old.wrapping_add(payload),
            // INC and DEC wrap at the payload.
            6 => {
                if old >= payload {
                    0
                } else {
                    old + 1
                }
            }
            7 => {
                if old == 0 || old > payload {
                    payload
                } else {
                    old - 1
                }
            }
            // Undefined operations keep the old value.
            _ => old,
        };
        new & width.mask()
    }
}

/// A semaphore in a channel's address space.
#[derive(Clone, Copy, Debug)]
pub struct Semaphore {
    /// The address space.
    pub space: AddressSpace,
    /// The virtual address.
    pub va: u64,
    /// The width of the payload.
    pub width: Width,
}

impl Semaphore {
    /// Reads the payload.
    ///
    /// # Errors
    /// [`Fault`] if it is not in memory.
    pub fn load(&self, memory: &PhysicalMemory) -> Result<u64, Fault> {
        match self.width {
            Width::Bits32 => self.space.read_u32(memory, self.va).map(u64::from),
            Width::Bits64 => self.space.read_u64(memory, self.va),
        }
    }

    /// Stores `payload`, or the result of `reduction`. A timestamp, if requested, is written before
    /// the payload becomes visible.
    ///
    /// # Errors
    /// [`Fault`] if it is not in memory.
    pub fn release(
        &self,
        memory: &mut PhysicalMemory,
        payload: u64,
        reduction: Option<Reduction>,
        timestamp_ns: Option<u64>,
    ) -> Result<(), Fault> {
        if let Some(timestamp_ns) = timestamp_ns {
            let va = self.va.saturating_add(TIMESTAMP_OFFSET);
            self.space.write(memory, va, &timestamp_ns.to_le_bytes())?;
        }
        let value = match reduction {
            Some(reduction) => {
                reduction.apply(self.width, self.load(memory)?, payload & self.width.mask())
            }
            None => payload,
        };
        match self.width {
            Width::Bits32 => self
                .space
                .write(memory, self.va, &low_u32(value).to_le_bytes()),
            Width::Bits64 => self.space.write(memory, self.va, &value.to_le_bytes()),
        }
    }

    /// Returns whether an acquire by `operation` for `payload` is satisfied.
    ///
    /// # Errors
    /// [`Fault`] if it is not in memory.
    pub fn satisfied(
        &self,
        memory: &PhysicalMemory,
        operation: u64,
        payload: u64,
    ) -> Result<bool, Fault> {
        let payload = payload & self.width.mask();
        let value = self.load(memory)?;
        Ok(match operation {
            sem_execute::ACQUIRE => value == payload,
            sem_execute::ACQ_STRICT_GEQ => value >= payload,
            sem_execute::ACQ_CIRC_GEQ => self.width.signed(value.wrapping_sub(payload)) >= 0,
            sem_execute::ACQ_AND => value & payload != 0,
            sem_execute::ACQ_NOR => (value | payload) & self.width.mask() != self.width.mask(),
            _ => true,
        })
    }
}

/// NVC86F_SEM_EXECUTE.
pub(super) mod sem_execute {
    use super::Bits;
    pub(crate) const OPERATION: Bits = Bits::new(2, 0);
    pub(crate) const ACQUIRE: u64 = 0;
    pub(crate) const RELEASE: u64 = 1;
    pub(crate) const ACQ_STRICT_GEQ: u64 = 2;
    pub(crate) const ACQ_CIRC_GEQ: u64 = 3;
    pub(crate) const ACQ_AND: u64 = 4;
    pub(crate) const ACQ_NOR: u64 = 5;
    pub(crate) const REDUCTION: u64 = 6;
    pub(crate) const PAYLOAD_SIZE_64: Bits = Bits::new(24, 24);
    pub(crate) const RELEASE_TIMESTAMP: Bits = Bits::new(25, 25);
    pub(crate) const REDUCTION_OPERATION: Bits = Bits::new(30, 27);
    pub(crate) const REDUCTION_UNSIGNED: Bits = Bits::new(31, 31);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(operation: u64, signed: bool, old: u64, payload: u64) -> u64 {
        Reduction { operation, signed }.apply(Width::Bits32, old, payload)
    }

    #[test]
    fn reductions_are_those_of_the_manual() {
        assert_eq!(apply(0, false, 5, 3), 3);
        assert_eq!(apply(0, true, u64::from(u32::MAX), 3), u64::from(u32::MAX));
        assert_eq!(apply(1, false, 5, 3), 5);
        assert_eq!(apply(5, false, u64::from(u32::MAX), 1), 0);
        assert_eq!((apply(6, false, 3, 3), apply(6, false, 2, 3)), (0, 3));
        assert_eq!((apply(7, false, 0, 3), apply(7, false, 2, 3)), (3, 1));
        assert_eq!(apply(15, false, 7, 3), 7);
    }
}
