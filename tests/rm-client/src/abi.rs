// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Declares the structures of RM's ioctls, as in 535.261.03, 550.163.01, 580.142 and 595.45.04.
//! `ci/test-rm.sh` compiles [`c_assertions`] against the headers of each driver.

mod alloc;
mod control;
mod headers;
pub(crate) mod share;
mod uvm;

use crate::layout::{self, layouts, Description, Layout};
use crate::numbers::NUMBERS;
pub(crate) use alloc::*;
pub(crate) use control::*;
pub(crate) use uvm::*;

/// A handle of RM. 0 is no object.
pub type Handle = u32;

layouts! {
    /// Frees an object. `nvos.h`.
    Free = "NVOS00_PARAMETERS", 16 {
        root: u32 = "hRoot",
        parent: u32 = "hObjectParent",
        object: u32 = "hObjectOld",
        status: u32 = "status",
    }

    /// Reads or writes a key of RM's. `nvos.h`.
    Registry = "NVOS38_PARAMETERS", 72 {
        client: u32 = "hClient",
        object: u32 = "hObject",
        access: u32 = "AccessType",
        node_length: u32 = "DevNodeLength",
        node: u64 = "pDevNode",
        name_length: u32 = "ParmStrLength",
        padding: u32,
        name: u64 = "pParmStr",
        bytes_length: u32 = "BinaryDataLength",
        padding_of_bytes: u32,
        bytes: u64 = "pBinaryData",
        number: u32 = "Data",
        entry: u32 = "Entry",
        status: u32 = "status",
        padding_at_end: u32,
    }

    /// Waits for the end of what channels do. `nvos.h`.
    Idle = "NVOS30_PARAMETERS", 56 {
        client: u32 = "hClient",
        device: u32 = "hDevice",
        channel: u32 = "hChannel",
        count: u32 = "numChannels",
        clients: u64 = "phClients",
        devices: u64 = "phDevices",
        channels: u64 = "phChannels",
        flags: u32 = "flags",
        timeout: u32 = "timeout",
        status: u32 = "status",
        padding: u32,
    }

    /// Allocates an object. `nvos.h`.
    Alloc = "NVOS21_PARAMETERS", 32 {
        root: u32 = "hRoot",
        parent: u32 = "hObjectParent",
        object: u32 = "hObjectNew",
        class: u32 = "hClass",
        parameters: u64 = "pAllocParms",
        parameters_size: u32 = "paramsSize",
        status: u32 = "status",
    }

    /// Allocates an object without parameters. `nvos.h`.
    AllocObject = "NVOS05_PARAMETERS", 20 {
        root: u32 = "hRoot",
        parent: u32 = "hObjectParent",
        object: u32 = "hObjectNew",
        class: u32 = "hClass",
        status: u32 = "status",
    }

    /// Allocates memory by the oldest escape. `nv-unix-nvos-params-wrappers.h`.
    AllocMemory = "nv_ioctl_nvos02_parameters_with_fd", 56 {
        root: u32 = "params.hRoot",
        parent: u32 = "params.hObjectParent",
        object: u32 = "params.hObjectNew",
        class: u32 = "params.hClass",
        flags: u32 = "params.flags",
        padding: u32,
        address: u64 = "params.pMemory",
        limit: u64 = "params.limit",
        status: u32 = "params.status",
        padding_params: u32,
        descriptor: i32 = "fd",
        padding_end: u32,
    }

    /// Allocates an object with access rights, as libcuda does. `nvos.h`.
    AllocWithRights = "NVOS64_PARAMETERS", 48 {
        root: u32 = "hRoot",
        parent: u32 = "hObjectParent",
        object: u32 = "hObjectNew",
        class: u32 = "hClass",
        parameters: u64 = "pAllocParms",
        rights: u64 = "pRightsRequested",
        parameters_size: u32 = "paramsSize",
        flags: u32 = "flags",
        status: u32 = "status",
        padding: u32,
    }

    /// Gives an object a second name. `nvos.h`.
    Dup = "NVOS55_PARAMETERS", 28 {
        client: u32 = "hClient",
        parent: u32 = "hParent",
        object: u32 = "hObject",
        source_client: u32 = "hClientSrc",
        source: u32 = "hObjectSrc",
        flags: u32 = "flags",
        status: u32 = "status",
    }

    /// Says who may give an object a second name. `nvos.h`.
    SharePolicy = "NVOS57_PARAMETERS", 24 {
        client: u32 = "hClient",
        object: u32 = "hObject",
        target: u32 = "sharePolicy.target",
        rights: u32 = "sharePolicy.accessMask",
        with: u16 = "sharePolicy.type",
        action: u8 = "sharePolicy.action",
        padding: u8,
        status: u32 = "status",
    }

    /// Puts channels on the runlist. `ctrl/ctrl0080/ctrl0080fifo.h`.
    StartChannels = "NV0080_CTRL_FIFO_START_SELECTED_CHANNELS_PARAMS", 48 {
        count: u32 = "fifoStartChannelListCount",
        handles: [u32; 8] = "channelHandle",
        padding: u32,
        list: u64 = "fifoStartChannelList",
    }

    /// Sends a control to an object. `nvos.h`.
    Control = "NVOS54_PARAMETERS", 32 {
        client: u32 = "hClient",
        object: u32 = "hObject",
        command: u32 = "cmd",
        flags: u32 = "flags",
        parameters: u64 = "params",
        parameters_size: u32 = "paramsSize",
        status: u32 = "status",
    }

    /// Prepares an mmap. `nv-unix-nvos-params-wrappers.h`.
    MapMemory = "nv_ioctl_nvos33_parameters_with_fd", 56 {
        client: u32 = "params.hClient",
        device: u32 = "params.hDevice",
        memory: u32 = "params.hMemory",
        padding: u32,
        offset: u64 = "params.offset",
        length: u64 = "params.length",
        address: u64 = "params.pLinearAddress",
        status: u32 = "params.status",
        flags: u32 = "params.flags",
        descriptor: i32 = "fd",
        padding_end: u32,
    }

    /// Ends what [`MapMemory`] has prepared. `nvos.h`.
    UnmapMemory = "NVOS34_PARAMETERS", 32 {
        client: u32 = "hClient",
        device: u32 = "hDevice",
        memory: u32 = "hMemory",
        padding: u32,
        address: u64 = "pLinearAddress",
        status: u32 = "status",
        flags: u32 = "flags",
    }

    /// Says by which address a mapping is known from now on. `nvos.h`.
    UpdateMapping = "NVOS56_PARAMETERS", 40 {
        client: u32 = "hClient",
        device: u32 = "hDevice",
        memory: u32 = "hMemory",
        padding: u32,
        from: u64 = "pOldCpuAddress",
        to: u64 = "pNewCpuAddress",
        status: u32 = "status",
        padding_end: u32,
    }

    /// Maps memory into a GPU's address space. `nvos.h`.
    MapMemoryDma = "NVOS46_PARAMETERS", 56 {
        client: u32 = "hClient",
        device: u32 = "hDevice",
        range: u32 = "hDma",
        memory: u32 = "hMemory",
        offset: u64 = "offset",
        length: u64 = "length",
        flags: u32 = "flags",
        padding: u32,
        address: u64 = "dmaOffset",
        status: u32 = "status",
        padding_end: u32,
    }

    /// Maps memory into a GPU's address space, in 580.142. `nvos.h`.
    MapMemoryDmaWithKind = "NVOS46_PARAMETERS", 64 {
        client: u32 = "hClient",
        device: u32 = "hDevice",
        range: u32 = "hDma",
        memory: u32 = "hMemory",
        offset: u64 = "offset",
        length: u64 = "length",
        flags: u32 = "flags",
        flags2: u32 = "flags2",
        kind: u32 = "kindOverride",
        padding: u32,
        address: u64 = "dmaOffset",
        status: u32 = "status",
        padding_end: u32,
    }

    /// Unmaps it, in 580.142: all of it if the size is 0. `nvos.h`.
    UnmapMemoryDmaWithSize = "NVOS47_PARAMETERS", 48 {
        client: u32 = "hClient",
        device: u32 = "hDevice",
        range: u32 = "hDma",
        memory: u32 = "hMemory",
        flags: u32 = "flags",
        padding: u32,
        address: u64 = "dmaOffset",
        size: u64 = "size",
        status: u32 = "status",
        padding_end: u32,
    }

    /// Unmaps it. `nvos.h`.
    UnmapMemoryDma = "NVOS47_PARAMETERS", 40 {
        client: u32 = "hClient",
        device: u32 = "hDevice",
        range: u32 = "hDma",
        memory: u32 = "hMemory",
        flags: u32 = "flags",
        padding: u32,
        address: u64 = "dmaOffset",
        status: u32 = "status",
        padding_end: u32,
    }

    /// Allocates memory by the old interface; the function is `ALLOC_SIZE`. `nvos.h`.
    VidHeap = "NVOS32_PARAMETERS", 184 {
        root: u32 = "hRoot",
        parent: u32 = "hObjectParent",
        function: u32 = "function",
        address_space: u32 = "hVASpace",
        ivc_heap: i16 = "ivcHeapNumber",
        padding: u16,
        status: u32 = "status",
        total: u64 = "total",
        free: u64 = "free",
        owner: u32 = "data.AllocSize.owner",
        memory: u32 = "data.AllocSize.hMemory",
        kind: u32 = "data.AllocSize.type",
        flags: u32 = "data.AllocSize.flags",
        attr: u32 = "data.AllocSize.attr",
        format: u32 = "data.AllocSize.format",
        compression: u32 = "data.AllocSize.comprCovg",
        zcull: u32 = "data.AllocSize.zcullCovg",
        stride: u32 = "data.AllocSize.partitionStride",
        width: u32 = "data.AllocSize.width",
        height: u32 = "data.AllocSize.height",
        padding_size: u32,
        size: u64 = "data.AllocSize.size",
        alignment: u64 = "data.AllocSize.alignment",
        offset: u64 = "data.AllocSize.offset",
        limit: u64 = "data.AllocSize.limit",
        address: u64 = "data.AllocSize.address",
        range_begin: u64 = "data.AllocSize.rangeBegin",
        range_end: u64 = "data.AllocSize.rangeEnd",
        attr2: u32 = "data.AllocSize.attr2",
        tag: u32 = "data.AllocSize.ctagOffset",
        rest: [u64; 4],
    }

    /// Binds a device's file to a control file. `nv-ioctl.h`.
    RegisterFd = "nv_ioctl_register_fd_t", 4 {
        control: i32 = "ctl_fd",
    }

    /// Compares or returns the driver's version. `nv-ioctl.h`.
    Version = "nv_ioctl_rm_api_version_t", 72 {
        command: u32 = "cmd",
        reply: u32 = "reply",
        text: [[u8; 16]; 4] = "versionString",
    }

    /// The driver's description of a GPU before it is opened. `nv-ioctl.h`.
    CardInfo = "nv_ioctl_card_info_t", 72 {
        valid: u8 = "valid",
        padding: [u8; 3],
        domain: u32 = "pci_info.domain",
        bus: u8 = "pci_info.bus",
        slot: u8 = "pci_info.slot",
        function: u8 = "pci_info.function",
        padding_pci: u8,
        vendor: u16 = "pci_info.vendor_id",
        device: u16 = "pci_info.device_id",
        gpu_id: u32 = "gpu_id",
        interrupt_line: u16 = "interrupt_line",
        padding_line: u16,
        registers_address: u64 = "reg_address",
        registers_size: u64 = "reg_size",
        memory_address: u64 = "fb_address",
        memory_size: u64 = "fb_size",
        minor: u32 = "minor_number",
        name: [u8; 10] = "dev_name",
        padding_end: u16,
    }
}

/// Structures of escapes that are the same in every supported driver.
const ESCAPES: &[Description] = &[
    Free::DESCRIPTION,
    Alloc::DESCRIPTION,
    AllocObject::DESCRIPTION,
    AllocMemory::DESCRIPTION,
    AllocWithRights::DESCRIPTION,
    Dup::DESCRIPTION,
    Control::DESCRIPTION,
    MapMemory::DESCRIPTION,
    MapMemoryDma::DESCRIPTION,
    UnmapMemoryDma::DESCRIPTION,
    VidHeap::DESCRIPTION,
    RegisterFd::DESCRIPTION,
    Version::DESCRIPTION,
    CardInfo::DESCRIPTION,
];

/// The driver release, for structures that differ between releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// 535.261.03.
    R535,
    /// 550.163.01.
    R550,
    /// 580.142.
    R580,
    /// 595.45.04.
    R595,
}

impl Release {
    /// Returns the release of a version such as `535.261.03`; `None` if its structures are not
    /// known.
    pub fn of_version(version: &str) -> Option<Self> {
        match version.split('.').next()? {
            "535" => Some(Self::R535),
            "550" => Some(Self::R550),
            "580" => Some(Self::R580),
            "595" => Some(Self::R595),
            _ => None,
        }
    }

    /// Returns whether the release has another structure or number of this name than the older
    /// ones, or none.
    fn differs(self, name: &str) -> bool {
        match name {
            "NVOS46_PARAMETERS"
            | "NVOS47_PARAMETERS"
            | "NV2080_CTRL_FB_GET_INFO_V2_PARAMS"
            | "nv_ioctl_export_to_dma_buf_fd_t"
            | "NV0080_CTRL_CMD_FIFO_START_SELECTED_CHANNELS"
            | "NV0080_CTRL_FIFO_START_SELECTED_CHANNELS_PARAMS" => self >= Self::R580,
            "UVM_FREE_PARAMS" => self >= Self::R595,
            _ => false,
        }
    }

    /// Returns the size of a structure that had `size` bytes before the release added members at
    /// its end.
    pub(crate) fn size_of(self, name: &str, size: usize) -> usize {
        if self < Self::R580 {
            return size;
        }
        match name {
            "NV_VASPACE_ALLOCATION_PARAMETERS" => 56,
            "NV_CHANNEL_ALLOC_PARAMS" => 368,
            "NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS" => 3,
            "NV2080_CTRL_FB_GET_INFO_V2_PARAMS" => 1028,
            _ => size,
        }
    }
}

/// Returns a C program that compiles only against headers that agree with [`gct_core::rmapi::nv`].
pub fn core_assertions() -> String {
    layout::c_assertions(headers::HEADERS, &[], &[]) + &layout::core_assertions()
}

/// Returns a C program that compiles only against headers that agree with this crate and with
/// [`gct_core::rmapi::nv`].
pub fn c_assertions(release: Release) -> String {
    let changed = match release {
        Release::R535 => vec![
            Memory::DESCRIPTION,
            UvmMapExternal::DESCRIPTION,
            UvmPreferredLocation::DESCRIPTION,
        ],
        Release::R550 => vec![
            MemoryWithNode::DESCRIPTION,
            Description {
                size: MemoryWithNode::DESCRIPTION.size,
                ..Memory::DESCRIPTION
            },
        ],
        Release::R580 | Release::R595 => vec![
            MemoryWithNode::DESCRIPTION,
            MapMemoryDmaWithKind::DESCRIPTION,
            UnmapMemoryDmaWithSize::DESCRIPTION,
            share::ExportDmaBufForMapping::DESCRIPTION,
            UvmMapExternalMany::DESCRIPTION,
            UvmPreferredLocationWithNode::DESCRIPTION,
        ],
    };
    let common = [
        ESCAPES,
        alloc::COMMON,
        control::COMMON,
        share::COMMON,
        uvm::COMMON,
    ];
    let same = |kind: &Description| !release.differs(kind.name);
    let common = common.concat().into_iter().filter(same);
    let since_595 = (release >= Release::R595).then_some(UvmFreeAll::DESCRIPTION);
    let types: Vec<_> = common
        .chain(changed)
        .chain(since_595)
        .map(|kind| Description {
            size: release.size_of(kind.name, kind.size),
            ..kind
        })
        .collect();
    let numbers = NUMBERS.iter().filter(|(name, _)| !release.differs(name));
    let numbers: Vec<_> = numbers.copied().collect();
    let own = layout::c_assertions(headers::HEADERS, &types, &numbers);
    own + &layout::core_assertions()
}
