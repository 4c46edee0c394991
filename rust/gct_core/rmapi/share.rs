// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes the controls that export objects to a file and import them from it.
//!
//! A client exports objects to an open file of the control device. Any process that receives the
//! file can import them. The file keeps them alive until it is closed. The controls are those of
//! NVIDIA's `ctrl0000unix.h`.

use super::nv::{self, export_many, export_one, import_many, import_one};
use super::{element, Fields, Handle, Hint};
use crate::units::Sat;

/// A control that exports or imports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// `NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD`.
    ExportOne,
    /// `NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD`.
    ImportOne,
    /// `NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD`.
    ExportMany,
    /// `NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD`.
    ImportMany,
}

/// One object that is exported or imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Its place in the file.
    pub index: u32,
    /// Its handle in the client.
    pub object: Handle,
    /// The parent below which it is imported.
    pub parent: Handle,
}

impl Share {
    /// Returns the control with a number.
    pub(super) const fn by_command(command: u32) -> Option<Self> {
        match command {
            nv::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD => Some(Self::ExportOne),
            nv::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD => Some(Self::ImportOne),
            nv::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD => Some(Self::ExportMany),
            nv::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD => Some(Self::ImportMany),
            _ => None,
        }
    }

    /// Returns the size of its parameters. RM refuses another size.
    pub const fn bytes(self) -> u32 {
        let size = match self {
            Self::ExportOne => export_one::SIZE,
            Self::ImportOne => import_one::SIZE,
            Self::ExportMany => export_many::SIZE,
            Self::ImportMany => import_many::SIZE,
        };
        // CAST: at most 2128.
        size as u32
    }

    /// Returns whether it exports.
    pub const fn exports(self) -> bool {
        matches!(self, Self::ExportOne | Self::ExportMany)
    }

    /// Returns the number of objects for which room is reserved: all that it can import. An export
    /// needs one, for the charge of what gets no name in the file.
    pub const fn reserved_objects(self) -> usize {
        match self {
            Self::ImportOne | Self::ExportOne | Self::ExportMany => 1,
            // CAST: 128.
            Self::ImportMany => nv::NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_TO_FD_MAX_OBJECTS as usize,
        }
    }

    /// Returns its parameters at a tenant's address.
    pub(super) fn hint(self, address: u64) -> Option<Hint> {
        let bytes = self.bytes();
        (address != 0).then_some(Hint { address, bytes })
    }

    /// Decodes object `number` of the parameters after the control. Returns `None` after the last.
    /// An empty place has handle 0.
    pub fn object(self, params: &[u8], number: u32) -> Option<Shared> {
        let fields = Fields(params);
        // Offset of the handles, their maximum, and offset of their count and first index.
        let (handles, most, count) = match self {
            Self::ExportOne => (export_one::OBJECT, 1, None),
            Self::ImportOne => (import_one::OBJECT, 1, None),
            Self::ExportMany => (
                export_many::OBJECTS,
                nv::NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_MAX_OBJECTS,
                Some(export_many::COUNT),
            ),
            Self::ImportMany => (
                import_many::OBJECTS,
                nv::NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_TO_FD_MAX_OBJECTS,
                Some(import_many::COUNT),
            ),
        };
        let (count, first) = match count {
            None => (1, 0),
            Some(at) => {
                // The count is a 16-bit field and the first index the next one.
                let both = fields.u32(at).ok()?;
                (both & 0xffff, both >> 16)
            }
        };
        if number >= count.min(most) {
            return None;
        }
        let at = element(handles, usize::try_from(number).ok()?);
        let parent = match self {
            Self::ExportOne | Self::ExportMany => 0,
            Self::ImportOne => fields.u32(import_one::PARENT).ok()?,
            Self::ImportMany => fields.u32(import_many::PARENT).ok()?,
        };
        Some(Shared {
            index: (Sat(first) + Sat(number)).0,
            object: fields.u32(at).ok()?,
            parent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::words;
    use std::vec::Vec;

    fn all(share: Share, params: &[u8]) -> Vec<(u32, Handle, Handle)> {
        (0..)
            .map_while(|number| share.object(params, number))
            .map(|shared| (shared.index, shared.object, shared.parent))
            .collect()
    }

    #[test]
    fn objects_of_each_control_are_read() {
        // type, device, parent, object; descriptor.
        let one = words(24, &[(0, 1), (4, 7), (8, 8), (12, 9), (16, 5)]);
        assert_eq!(all(Share::ExportOne, &one), [(0, 9, 0)]);
        // descriptor; type, device, parent, object.
        let one = words(20, &[(0, 5), (4, 1), (8, 7), (12, 8), (16, 9)]);
        assert_eq!(all(Share::ImportOne, &one), [(0, 9, 8)]);
        let many = words(2128, &[(76, 30), (84, 31), (2124, 3 | 4 << 16)]);
        let expected = [(4, 30, 0), (5, 0, 0), (6, 31, 0)];
        assert_eq!(all(Share::ExportMany, &many), expected);
        let many = words(652, &[(4, 8), (8, 30), (12, 31), (648, 2)]);
        assert_eq!(all(Share::ImportMany, &many), [(0, 30, 8), (1, 31, 8)]);
    }

    #[test]
    fn numbers_beyond_the_structure_are_cut() {
        let many = words(652, &[(648, 0xffff_ffff)]);
        assert_eq!(all(Share::ImportMany, &many).len(), 128);
        for share in [
            Share::ExportOne,
            Share::ImportOne,
            Share::ExportMany,
            Share::ImportMany,
        ] {
            assert_eq!(all(share, &[]), []);
            let len = usize::try_from(share.bytes()).unwrap();
            assert!(share.object(&std::vec![0xff; len], 0).is_some());
        }
    }
}
