// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Describes the driver's interface to its GSP firmware: layouts, numbers and names.
//!
//! The names are the driver's own. `build.rs` generates the contents and says where they come from.

use crate::bits::low_u32;
use std::fmt;

/// Generated layouts and numbers.
#[allow(
    missing_docs,
    non_snake_case,
    non_upper_case_globals,
    non_camel_case_types,
    unused_imports,
    dead_code
)]
mod layouts {
    use super::{Array, Field};
    include!(concat!(env!("OUT_DIR"), "/layouts.rs"));

    /// Checks that the snapshot does not differ from the headers, which it replaces where there are
    /// none.
    #[test]
    fn the_snapshot_is_current() {
        let current = include_str!(concat!(env!("OUT_DIR"), "/layouts.rs"));
        assert!(
            super::VERSION != "535.261.03" || include_str!("abi/snapshot_535_261_03.rs") == current,
            "copy layouts.rs over the snapshot"
        );
    }
}

/// Generated names.
mod names {
    include!(concat!(env!("OUT_DIR"), "/names.rs"));
}

pub use layouts::*;

/// The driver version the layouts belong to.
pub const VERSION: &str = env!("GCT_FAKEGPU_DRIVER");

/// A member of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    offset: usize,
    size: usize,
}

impl Field {
    /// A member that other versions of the driver have. Writes to it have no effect, reads fail.
    pub const MISSING: Self = Self::new(usize::MAX, 0);

    /// Describes `size` bytes at `offset`.
    pub const fn new(offset: usize, size: usize) -> Self {
        Self { offset, size }
    }

    /// Returns the offset in bytes from the start of the structure.
    pub const fn offset(self) -> usize {
        self.offset
    }

    /// Returns the size in bytes.
    pub const fn size(self) -> usize {
        self.size
    }

    /// Returns the same member of a structure at offset `base`.
    pub const fn at(self, base: usize) -> Self {
        Self {
            offset: self.offset.saturating_add(base),
            size: self.size,
        }
    }

    /// Returns whether this version's structure lacks the member.
    const fn is_missing(self) -> bool {
        self.offset == Self::MISSING.offset
    }
}

/// An array in a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    offset: usize,
    stride: usize,
    count: usize,
}

impl Array {
    /// A member that other versions of the driver have. Writes to its elements have no effect.
    pub const MISSING: Self = Self::new(usize::MAX, 0, 0);

    /// Describes `count` elements of `stride` bytes from `offset` on.
    pub const fn new(offset: usize, stride: usize, count: usize) -> Self {
        Self {
            offset,
            stride,
            count,
        }
    }

    /// Returns the number of elements.
    pub const fn count(self) -> usize {
        self.count
    }

    /// Returns one element. An index beyond the last gives a field of size 0, which every access
    /// refuses.
    pub const fn get(self, index: usize) -> Field {
        if self.offset == Self::MISSING.offset {
            Field::MISSING
        } else if index < self.count {
            Field {
                offset: self.offset + index * self.stride,
                size: self.stride,
            }
        } else {
            Field { offset: 0, size: 0 }
        }
    }
}

/// Error: the structure is too short, or the field has no usable size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The requested field.
    pub field: Field,
    /// Length of the structure in bytes.
    pub len: usize,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no {} bytes at {:#x} in a structure of {:#x}",
            self.field.size, self.field.offset, self.len
        )
    }
}

impl std::error::Error for Malformed {}

/// Reads an integer member of the structure in `bytes`.
///
/// # Errors
/// [`Malformed`] if the member lies outside, is empty, or is longer than 8 bytes.
pub fn get(bytes: &[u8], field: Field) -> Result<u64, Malformed> {
    let malformed = Malformed {
        field,
        len: bytes.len(),
    };
    let raw = bytes
        .get(field.offset..field.offset.saturating_add(field.size))
        .ok_or(malformed)?;
    if raw.is_empty() || raw.len() > 8 {
        return Err(malformed);
    }
    let mut word = [0; 8];
    word[..raw.len()].copy_from_slice(raw);
    Ok(u64::from_le_bytes(word))
}

/// Reads as [`get`] does, and keeps the low 32 bits.
///
/// # Errors
/// As [`get`].
pub fn get_u32(bytes: &[u8], field: Field) -> Result<u32, Malformed> {
    get(bytes, field).map(low_u32)
}

/// Writes an integer member of the structure in `bytes`; bits that do not fit are cut off.
///
/// # Errors
/// [`Malformed`] if the member lies outside, is empty, or is longer than 8 bytes.
pub fn set(bytes: &mut [u8], field: Field, value: u64) -> Result<(), Malformed> {
    let malformed = Malformed {
        field,
        len: bytes.len(),
    };
    if field.is_missing() {
        return Ok(());
    }
    if field.size == 0 || field.size > 8 {
        return Err(malformed);
    }
    set_bytes(bytes, field, &value.to_le_bytes()[..field.size])
}

/// Writes `value` to the start of a member, which may be longer.
///
/// # Errors
/// [`Malformed`] if the member lies outside or is shorter than `value`.
pub fn set_bytes(bytes: &mut [u8], field: Field, value: &[u8]) -> Result<(), Malformed> {
    let malformed = Malformed {
        field,
        len: bytes.len(),
    };
    let raw = bytes
        .get_mut(field.offset..field.offset + field.size)
        .ok_or(malformed)?;
    raw.get_mut(..value.len())
        .ok_or(malformed)?
        .copy_from_slice(value);
    Ok(())
}

/// Returns the name of RPC or event `number`.
pub fn rpc_name(number: u32) -> Option<&'static str> {
    RPC_NAMES
        .iter()
        .find(|(known, _)| *known == number)
        .map(|(_, name)| *name)
}

/// Returns the name of control `number`.
pub fn control_name(number: u32) -> Option<&'static str> {
    lookup(names::CONTROL_NAMES, number)
}

/// Returns the name of class `number`.
pub fn class_name(number: u32) -> Option<&'static str> {
    lookup(names::CLASS_NAMES, number)
}

fn lookup(table: &[(u32, &'static str)], number: u32) -> Option<&'static str> {
    let index = table
        .binary_search_by_key(&number, |(known, _)| *known)
        .ok()?;
    table.get(index).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_keep_to_their_field() {
        let mut bytes = [0xff; 8];
        set(&mut bytes, Field::new(2, 4), 0x1_2345_6789).unwrap();
        assert_eq!(bytes, [0xff, 0xff, 0x89, 0x67, 0x45, 0x23, 0xff, 0xff]);
        assert_eq!(get(&bytes, Field::new(1, 3)), Ok(0x67_89ff));
    }

    #[test]
    fn missing_fields_are_errors() {
        let mut bytes = [0; 8];
        assert!(get(&bytes, Field::new(5, 4)).is_err());
        assert!(set(&mut bytes, Field::new(0, 9), 0).is_err());
        assert!(set(&mut bytes, Array::new(0, 4, 2).get(2), 0).is_err());
        assert!(set_bytes(&mut bytes, Field::new(0, 2), &[0; 3]).is_err());
    }

    #[test]
    fn the_layouts_hang_together() {
        assert_eq!(GSP_MSG_QUEUE_ELEMENT::rpc.offset(), 0x30);
        assert_eq!(rpc_message_header_v::SIZE, 0x20);
        assert_eq!(
            rpc_name(NV_VGPU_MSG_FUNCTION_GSP_RM_CONTROL),
            Some("GSP_RM_CONTROL")
        );
        assert_eq!(
            rpc_name(NV_VGPU_MSG_EVENT_GSP_INIT_DONE),
            Some("GSP_INIT_DONE")
        );
        assert_eq!(rpc_name(u32::MAX), None);
    }
}
