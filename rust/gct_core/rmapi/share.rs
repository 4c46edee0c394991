// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Controls that put names of objects into a file, and take them out.
//!
//! A client exports objects to an open file of the control device, and whoever gets that file
//! imports them. Until the file is closed it keeps what was exported alive. Names, sizes and
//! offsets are those of NVIDIA's `ctrl0000unix.h`.

use super::nv::{self, export_many, export_one, import_many, import_one};
use super::{Fields, Handle, Hint};

/// Which control it is.
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
    /// Returns what a control shares, by its number.
    pub(super) const fn by_command(command: u32) -> Option<Self> {
        match command {
            nv::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD => Some(Self::ExportOne),
            nv::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD => Some(Self::ImportOne),
            nv::NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD => Some(Self::ExportMany),
            nv::NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD => Some(Self::ImportMany),
            _ => None,
        }
    }

    /// Bytes of its parameters. The resource manager refuses another size.
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

    /// Is something put into the file, and not taken out?
    pub const fn exports(self) -> bool {
        matches!(self, Self::ExportOne | Self::ExportMany)
    }

    /// How many objects it takes out of a file at the most.
    pub const fn imports_max(self) -> usize {
        match self {
            Self::ImportOne => 1,
            // CAST: 128.
            Self::ImportMany => nv::NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_TO_FD_MAX_OBJECTS as usize,
            Self::ExportOne | Self::ExportMany => 0,
        }
    }

    /// Its parameters at a tenant's address.
    pub(super) fn hint(self, address: u64) -> Option<Hint> {
        let bytes = self.bytes();
        (address != 0).then_some(Hint { address, bytes })
    }

    /// Object number `number` of its parameters, as the resource manager has left them; `None`
    /// after the last. Of an empty place the handle is 0.
    pub fn object(self, params: &[u8], number: u32) -> Option<Shared> {
        let fields = Fields(params);
        // Where the handles are, how many there can be, where their number and the first index are.
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
        let at = usize::try_from(number).ok()?;
        let at = at.saturating_mul(4).saturating_add(handles);
        let parent = match self {
            Self::ExportOne | Self::ExportMany => 0,
            Self::ImportOne => fields.u32(import_one::PARENT).ok()?,
            Self::ImportMany => fields.u32(import_many::PARENT).ok()?,
        };
        Some(Shared {
            index: first.saturating_add(number),
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
