// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the requests of `/dev/gctgroup`, which serves the tree where debugfs cannot.
//!
//! One ioctl, [`COMMAND`], takes a structure of 40 bytes in the machine's byte order. It has the
//! same layout in programs of 32 and of 64 bits:
//!
//! ```text
//! offset  type  field
//!      0  u32   version     1
//!      4  u32   operation   1 list, 2 read, 3 write
//!      8  u64   path        address of the path, without a NUL
//!     16  u64   text        address of the text: of a write, or for the answer
//!     24  u32   path_bytes  length of the path
//!     28  u32   text_bytes  length of the text, or of the room for the answer
//!     32  u64   answer      0; the kernel stores the length of the answer
//! ```
//!
//! An answer that does not fit is not copied: the call fails with EMSGSIZE, and `answer` says how
//! much room it needs.

use super::files::Mode;
use crate::error::Error;
use crate::limits;

/// The number of the ioctl: `_IOWR('G', 1, 40 bytes)`.
pub const COMMAND: u32 = (3 << 30) | (40 << 16) | (0x47 << 8) | 1;

/// Length of a request.
pub const REQUEST_BYTES: usize = 40;

/// Offset of the field that the kernel stores.
pub const ANSWER_OFFSET: usize = 32;

/// Version of the structure.
pub const VERSION: u32 = 1;

/// The errno for an answer that does not fit: EMSGSIZE.
pub const NO_ROOM: i32 = 90;

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Lists a directory: one name per line, those of directories with a slash at the end.
    List,
    /// Reads a file.
    Read,
    /// Writes a file. The text is one whole write.
    Write,
}

impl Operation {
    const ALL: [Self; 3] = [Self::List, Self::Read, Self::Write];

    const fn number(self) -> u32 {
        match self {
            Self::List => 1,
            Self::Read => 2,
            Self::Write => 3,
        }
    }

    /// Returns how the device must be open for it.
    pub const fn access(self) -> Mode {
        match self {
            Self::List | Self::Read => Mode::Read,
            Self::Write => Mode::Write,
        }
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it is for.
    pub operation: Operation,
    /// Address of the path.
    pub path: u64,
    /// Length of the path.
    pub path_bytes: u32,
    /// Address of the text.
    pub text: u64,
    /// Length of the text, or of the room for it.
    pub text_bytes: u32,
}

impl Request {
    /// Parses a request.
    ///
    /// # Errors
    ///
    /// [`Error::Syntax`] for another version or operation, and for an answer that is not 0;
    /// [`Error::NotFound`] for a path that is longer than all paths of the tree.
    pub fn from_bytes(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Error> {
        let (version, number) = (u32_at(bytes, 0), u32_at(bytes, 4));
        let (path, text) = (u64_at(bytes, 8), u64_at(bytes, 16));
        let (path_bytes, text_bytes) = (u32_at(bytes, 24), u32_at(bytes, 28));
        let answer = u64_at(bytes, ANSWER_OFFSET);
        let known = Operation::ALL.iter().find(|known| known.number() == number);
        let Some(operation) = known.filter(|_| version == VERSION && answer == 0) else {
            return Err(Error::Syntax);
        };
        if usize::try_from(path_bytes).map_or(true, |bytes| bytes > limits::PATH_LEN_MAX) {
            return Err(Error::NotFound);
        }
        Ok(Self {
            operation: *operation,
            path,
            path_bytes,
            text,
            text_bytes,
        })
    }

    /// Returns the bytes of a request.
    pub fn to_bytes(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        put(&mut bytes, 0, &VERSION.to_ne_bytes());
        put(&mut bytes, 4, &self.operation.number().to_ne_bytes());
        put(&mut bytes, 8, &self.path.to_ne_bytes());
        put(&mut bytes, 16, &self.text.to_ne_bytes());
        put(&mut bytes, 24, &self.path_bytes.to_ne_bytes());
        put(&mut bytes, 28, &self.text_bytes.to_ne_bytes());
        bytes
    }
}

/// Returns the field at an offset that the structure has.
fn u32_at(bytes: &[u8; REQUEST_BYTES], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(<[u8]>::first_chunk);
    field.map_or(0, |field| u32::from_ne_bytes(*field))
}

/// As [`u32_at`], of 8 bytes.
fn u64_at(bytes: &[u8; REQUEST_BYTES], at: usize) -> u64 {
    let field = bytes.get(at..).and_then(<[u8]>::first_chunk);
    field.map_or(0, |field| u64::from_ne_bytes(*field))
}

/// Stores a field at an offset that the structure has.
fn put(bytes: &mut [u8; REQUEST_BYTES], at: usize, field: &[u8]) {
    let room = bytes.get_mut(at..).unwrap_or_default();
    for (to, from) in room.iter_mut().zip(field) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(operation: Operation) -> Request {
        Request {
            operation,
            path: 0x1122_3344_5566_7788,
            path_bytes: 7,
            text: 0x99aa_bbcc_ddee_ff00,
            text_bytes: 9,
        }
    }

    #[test]
    fn a_request_has_the_documented_layout() {
        let bytes = request(Operation::Write).to_bytes();
        let word = |at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().unwrap());
        let long = |at: usize| u64::from_ne_bytes(*bytes[at..].first_chunk().unwrap());
        assert_eq!((word(0), word(4)), (1, 3));
        assert_eq!(long(8), 0x1122_3344_5566_7788);
        assert_eq!(long(16), 0x99aa_bbcc_ddee_ff00);
        assert_eq!((word(24), word(28)), (7, 9));
        assert_eq!(long(ANSWER_OFFSET), 0);
    }

    #[test]
    fn other_versions_operations_and_paths_are_refused() {
        let good = request(Operation::List).to_bytes();
        for (at, value, error) in [
            (0, 0, Error::Syntax),
            (0, 2, Error::Syntax),
            (4, 0, Error::Syntax),
            (4, 4, Error::Syntax),
            (24, 129, Error::NotFound),
            (24, u32::MAX, Error::NotFound),
            (32, 1, Error::Syntax),
            (36, 1, Error::Syntax),
        ] {
            let mut bytes = good;
            bytes[at..at + 4].copy_from_slice(&u32::to_ne_bytes(value));
            assert_eq!(Request::from_bytes(&bytes), Err(error), "{at} {value}");
        }
    }

    proptest! {
        /// Checks that a request is its bytes, and that other bytes are refused.
        #[test]
        fn what_parses_is_what_was_written(bytes in prop::array::uniform32(any::<u8>()), number in 0u32..5) {
            let mut whole = [0; REQUEST_BYTES];
            whole[..32].copy_from_slice(&bytes);
            whole[..4].copy_from_slice(&VERSION.to_ne_bytes());
            whole[4..8].copy_from_slice(&number.to_ne_bytes());
            whole[25..28].copy_from_slice(&[0; 3]);
            match Request::from_bytes(&whole) {
                Ok(request) => prop_assert_eq!(request.to_bytes(), whole),
                Err(Error::Syntax) => prop_assert!(!(1..=3).contains(&number)),
                Err(_) => prop_assert!(whole[24] > 128),
            }
        }
    }
}
