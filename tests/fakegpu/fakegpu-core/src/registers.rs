// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Declares registers, and implements those without side effects.

use crate::regs;
use crate::sparse::SparseMemory;
use std::collections::BTreeSet;

/// Declares registers as the manuals print them:
///
/// ```text
/// NV_NAME @ 0x1000 { 31:8 FIELD, 0:0 OTHER }
/// NV_ARRAY @ 0x2000 [16] {}
/// ```
///
/// Each becomes a type over its raw value, with the offset and a
/// [`Bits`](crate::bits::Bits) constant per field. All of them together become
/// the table [`regs::NAMES`].
macro_rules! registers {
    ($( $(#[$doc:meta])* $name:ident @ $offset:literal $([$count:literal])? { $( $(#[$fdoc:meta])* $high:literal : $low:literal $field:ident ),* $(,)? } )*) => {
        $(
            $(#[$doc])*
            #[allow(non_camel_case_types)]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct $name(u32);

            #[allow(dead_code)]
            impl $name {
                $( $(#[$fdoc])* #[doc = concat!("Bits ", $high, ":", $low, ".")]
                   pub const $field: $crate::bits::Bits = $crate::bits::Bits::new($high, $low); )*

                /// Offset in BAR0; of the first element if it is an array.
                pub const OFFSET: u32 = $offset;

                /// Number of elements; 1 for a single register.
                pub const COUNT: u32 = registers!(@count $($count)?);

                /// Creates the register from `raw`.
                pub const fn from_raw(raw: u32) -> Self {
                    Self(raw)
                }

                /// Returns the raw value.
                pub const fn raw(self) -> u32 {
                    self.0
                }

                /// Returns one field.
                pub const fn get(self, field: $crate::bits::Bits) -> u32 {
                    $crate::bits::low_u32(field.of(self.0 as u64))
                }

                /// Returns the register with one field changed.
                #[must_use]
                pub const fn with(self, field: $crate::bits::Bits, value: u32) -> Self {
                    Self($crate::bits::low_u32(field.put(self.0 as u64, value as u64)))
                }

                /// Returns the array index of `offset`, if it belongs to the register.
                pub fn index(offset: u32) -> Option<usize> {
                    $crate::registers::index_of(Self::OFFSET, Self::COUNT, offset)
                }
            }
        )*

        /// Every declared register: first offset, number of elements, name.
        pub const NAMES: &[(u32, u32, &str)] = &[ $( ($name::OFFSET, $name::COUNT, stringify!($name)) ),* ];
    };
    (@count) => { 1 };
    (@count $count:literal) => { $count };
}
pub(crate) use registers;

/// Returns the index of `offset` among `count` registers from `first` on.
pub(crate) fn index_of(first: u32, count: u32, offset: u32) -> Option<usize> {
    let index = offset.checked_sub(first)? / 4;
    (offset % 4 == 0 && index < count).then_some(usize::try_from(index).ok()?)
}

/// Returns the name of the register at `offset`, with its index if it is an array.
pub fn name_of(offset: u32) -> Option<String> {
    regs::NAMES.iter().find_map(|(first, count, name)| {
        let index = index_of(*first, *count, offset)?;
        Some(if *count == 1 {
            (*name).to_string()
        } else {
            format!("{name}({index})")
        })
    })
}

/// Direction of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// The guest reads.
    Read,
    /// The guest writes.
    Write,
}

/// Maximum number of unknown registers that are logged. A guest that sweeps the whole space must
/// not fill the disk.
const LOGGED_MAX: usize = 2048;

/// Registers without side effects. They read as last written, or as after reset. The first access
/// to an undeclared register is logged, since the register may matter.
pub struct Registers {
    values: SparseMemory,
    reset_values: Vec<(u32, u32)>,
    logged: BTreeSet<(u32, Direction)>,
}

impl Registers {
    /// Creates `len` bytes of register space. After reset it holds the pairs of offset and value in
    /// `reset_values`, and zero elsewhere.
    pub fn new(len: u64, reset_values: Vec<(u32, u32)>) -> Self {
        let mut registers = Self {
            values: SparseMemory::new(len),
            reset_values,
            logged: BTreeSet::new(),
        };
        registers.reset();
        registers
    }

    /// Restores the reset values. Accesses that were logged are not logged again.
    pub fn reset(&mut self) {
        self.values.clear();
        for (offset, value) in self.reset_values.clone() {
            self.set(offset, value);
        }
    }

    /// Returns the value at `offset`; zero outside the space.
    pub fn get(&self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        match self.values.read(u64::from(offset), &mut bytes) {
            Ok(()) => u32::from_le_bytes(bytes),
            Err(_) => 0,
        }
    }

    /// Sets the value at `offset`. Does nothing outside the space.
    pub fn set(&mut self, offset: u32, value: u32) {
        // An offset outside the space reads back as zero, like any register that does not exist.
        let _ = self.values.write(u64::from(offset), &value.to_le_bytes());
    }

    /// Reads for the guest.
    pub fn guest_read(&mut self, offset: u32) -> u32 {
        let value = self.get(offset);
        self.note(offset, Direction::Read, value);
        value
    }

    /// Writes for the guest.
    pub fn guest_write(&mut self, offset: u32, value: u32) {
        self.note(offset, Direction::Write, value);
        self.set(offset, value);
    }

    /// Returns how many undeclared registers were accessed. Reads and writes count separately.
    pub fn unknown_count(&self) -> usize {
        self.logged.len()
    }

    fn note(&mut self, offset: u32, direction: Direction, value: u32) {
        if self.logged.len() < LOGGED_MAX
            && name_of(offset).is_none()
            && self.logged.insert((offset, direction))
        {
            log::info!("unknown register {offset:#08x}: first {direction:?}, value {value:#x}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regs::*;

    #[test]
    fn names_cover_arrays_and_nothing_else() {
        assert_eq!(name_of(0).as_deref(), Some("NV_PMC_BOOT_0"));
        assert_eq!(name_of(2), None);
        let last = NV_PMC_BOOT_42::OFFSET;
        assert_eq!(name_of(last).as_deref(), Some("NV_PMC_BOOT_42"));
        assert_eq!(name_of(last + 4), None);
    }

    #[test]
    fn declared_ranges_do_not_overlap() {
        let mut ranges: Vec<_> = NAMES
            .iter()
            .map(|(first, count, name)| (*first, first + 4 * count, *name))
            .collect();
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            assert!(
                pair[0].1 <= pair[1].0,
                "{} and {} overlap",
                pair[0].2,
                pair[1].2
            );
        }
    }

    #[test]
    fn an_unknown_register_remembers_and_is_counted_once() {
        let mut registers = Registers::new(0x1000, vec![(8, 7)]);
        assert_eq!(registers.guest_read(8), 7);
        registers.guest_write(8, 9);
        registers.guest_write(8, 10);
        assert_eq!(registers.guest_read(8), 10);
        assert_eq!(registers.unknown_count(), 2);
        registers.reset();
        assert_eq!(registers.guest_read(8), 7);
    }

    #[test]
    fn outside_of_the_space_nothing_is_kept() {
        let mut registers = Registers::new(0x1000, vec![]);
        registers.guest_write(0x1000, 1);
        assert_eq!(registers.guest_read(0x1000), 0);
    }
}
