// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Declares the structures that put objects into files and import them from there.

use crate::layout::{layouts, Description, Layout};

layouts! {
    /// Exports an object to a file. `ctrl/ctrl0000/ctrl0000unix.h`.
    Export = "NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS", 24 {
        kind: u32 = "object.type",
        device: u32 = "object.data.rmObject.hDevice",
        parent: u32 = "object.data.rmObject.hParent",
        object: u32 = "object.data.rmObject.hObject",
        descriptor: i32 = "fd",
        flags: u32 = "flags",
    }

    /// Imports an object from a file. `ctrl/ctrl0000/ctrl0000unix.h`.
    Import = "NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS", 20 {
        descriptor: i32 = "fd",
        kind: u32 = "object.type",
        device: u32 = "object.data.rmObject.hDevice",
        parent: u32 = "object.data.rmObject.hParent",
        object: u32 = "object.data.rmObject.hObject",
    }

    /// Exports several objects to a file. `ctrl/ctrl0000/ctrl0000unix.h`.
    ExportMany = "NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS", 2128 {
        descriptor: i32 = "fd",
        device: u32 = "hDevice",
        most: u16 = "maxObjects",
        metadata: [[u8; 16]; 4] = "metadata",
        padding: [u8; 2],
        objects: [[u32; 32]; 16] = "objects",
        count: u16 = "numObjects",
        index: u16 = "index",
    }

    /// Exports memory to a dma-buf, in 580.142. `nv-ioctl.h`.
    ExportDmaBufForMapping = "nv_ioctl_export_to_dma_buf_fd_t", 2608 {
        descriptor: i32 = "fd",
        client: u32 = "hClient",
        total: u32 = "totalObjects",
        count: u32 = "numObjects",
        index: u32 = "index",
        padding: u32,
        total_size: u64 = "totalSize",
        mapping: u8 = "mappingType",
        allow_mmap: u8 = "bAllowMmap",
        padding_mapping: u16,
        objects: [[u32; 32]; 4] = "handles",
        padding_objects: u32,
        offsets: [[u64; 32]; 4] = "offsets",
        sizes: [[u64; 32]; 4] = "sizes",
        status: u32 = "status",
        padding_end: u32,
    }

    /// Exports memory to a dma-buf. `nv-ioctl.h`.
    ExportDmaBuf = "nv_ioctl_export_to_dma_buf_fd_t", 2600 {
        descriptor: i32 = "fd",
        client: u32 = "hClient",
        total: u32 = "totalObjects",
        count: u32 = "numObjects",
        index: u32 = "index",
        padding: u32,
        total_size: u64 = "totalSize",
        objects: [[u32; 32]; 4] = "handles",
        offsets: [[u64; 32]; 4] = "offsets",
        sizes: [[u64; 32]; 4] = "sizes",
        status: u32 = "status",
        padding_end: u32,
    }

    /// Imports several objects from a file. `ctrl/ctrl0000/ctrl0000unix.h`.
    ImportMany = "NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS", 652 {
        descriptor: i32 = "fd",
        parent: u32 = "hParent",
        objects: [[u32; 32]; 4] = "objects",
        kinds: [[u8; 32]; 4] = "objectTypes",
        count: u16 = "numObjects",
        index: u16 = "index",
    }
}

/// Structures that are the same in every supported driver.
pub(super) const COMMON: &[Description] = &[
    Export::DESCRIPTION,
    Import::DESCRIPTION,
    ExportMany::DESCRIPTION,
    ImportMany::DESCRIPTION,
    ExportDmaBuf::DESCRIPTION,
];
