// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Declares the parameters of allocations, by class.

use crate::layout::{layouts, Description, Layout};

layouts! {
    /// Parameters of a device. `class/cl0080.h`.
    Device = "NV0080_ALLOC_PARAMETERS", 56 {
        device_id: u32 = "deviceId",
        client_share: u32 = "hClientShare",
        target_client: u32 = "hTargetClient",
        target_device: u32 = "hTargetDevice",
        flags: u32 = "flags",
        padding: u32,
        space_size: u64 = "vaSpaceSize",
        space_start: u64 = "vaStartInternal",
        space_limit: u64 = "vaLimitInternal",
        space_mode: u32 = "vaMode",
        padding_end: u32,
    }

    /// Parameters of a subdevice. `class/cl2080.h`.
    Subdevice = "NV2080_ALLOC_PARAMETERS", 4 {
        subdevice_id: u32 = "subDeviceId",
    }

    /// Parameters of an address space. `nvos.h`.
    AddressSpace = "NV_VASPACE_ALLOCATION_PARAMETERS", 48 {
        index: u32 = "index",
        flags: u32 = "flags",
        size: u64 = "vaSize",
        start: u64 = "vaStartInternal",
        limit: u64 = "vaLimitInternal",
        big_page_size: u32 = "bigPageSize",
        padding: u32,
        base: u64 = "vaBase",
    }

    /// Parameters of a range of virtual addresses. `class/cl0070.h`.
    VirtualRange = "NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS", 24 {
        offset: u64 = "offset",
        limit: u64 = "limit",
        address_space: u32 = "hVASpace",
        padding: u32,
    }

    /// Parameters of memory in 535.261.03. `nvos.h`.
    Memory = "NV_MEMORY_ALLOCATION_PARAMS", 120 {
        owner: u32 = "owner",
        kind: u32 = "type",
        flags: u32 = "flags",
        width: u32 = "width",
        height: u32 = "height",
        pitch: i32 = "pitch",
        attr: u32 = "attr",
        attr2: u32 = "attr2",
        format: u32 = "format",
        compression: u32 = "comprCovg",
        zcull: u32 = "zcullCovg",
        padding: u32,
        range_low: u64 = "rangeLo",
        range_high: u64 = "rangeHi",
        size: u64 = "size",
        alignment: u64 = "alignment",
        offset: u64 = "offset",
        limit: u64 = "limit",
        address: u64 = "address",
        tag_offset: u32 = "ctagOffset",
        address_space: u32 = "hVASpace",
        internal_flags: u32 = "internalflags",
        tag: u32 = "tag",
    }

    /// Parameters of memory in 550.163.01. `nvos.h`.
    MemoryWithNode = "NV_MEMORY_ALLOCATION_PARAMS", 128 {
        memory: Memory,
        numa_node: i32 = "numaNode",
        padding: u32,
    }

    /// Parameters of a channel group. `nvos.h`.
    ChannelGroup = "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS", 20 {
        error: u32 = "hObjectError",
        ecc_error: u32 = "hObjectEccError",
        address_space: u32 = "hVASpace",
        engine: u32 = "engineType",
        is_plugin: u8 = "bIsCallingContextVgpuPlugin",
        padding: [u8; 3],
    }

    /// Parameters of a context share. `nvos.h`.
    ContextShare = "NV_CTXSHARE_ALLOCATION_PARAMETERS", 12 {
        address_space: u32 = "hVASpace",
        flags: u32 = "flags",
        subcontext: u32 = "subctxId",
    }

    /// Parameters of a channel. `alloc/alloc_channel.h`.
    Channel = "NV_CHANNEL_ALLOC_PARAMS", 360 {
        error: u32 = "hObjectError",
        buffer: u32 = "hObjectBuffer",
        ring_address: u64 = "gpFifoOffset",
        ring_entries: u32 = "gpFifoEntries",
        flags: u32 = "flags",
        context_share: u32 = "hContextShare",
        address_space: u32 = "hVASpace",
        userd_memory: [u32; 8] = "hUserdMemory",
        userd_offset: [u64; 8] = "userdOffset",
        engine: u32 = "engineType",
        cid: u32 = "cid",
        subdevice: u32 = "subDeviceId",
        ecc_error: u32 = "hObjectEccError",
        reserved: [u64; 27],
    }

    /// Parameters of a copy engine's object. `class/clb0b5sw.h`.
    CopyEngine = "NVB0B5_ALLOCATION_PARAMETERS", 8 {
        version: u32 = "version",
        engine: u32 = "engineType",
    }

    /// Parameters of a doorbell page. `nvos.h`.
    Usermode = "NV_HOPPER_USERMODE_A_PARAMS", 2 {
        in_bar1: u8 = "bBar1Mapping",
        is_privileged: u8 = "bPriv",
    }
}

/// Structures that are the same in every supported driver.
pub(super) const COMMON: &[Description] = &[
    Device::DESCRIPTION,
    Subdevice::DESCRIPTION,
    AddressSpace::DESCRIPTION,
    VirtualRange::DESCRIPTION,
    ChannelGroup::DESCRIPTION,
    ContextShare::DESCRIPTION,
    Channel::DESCRIPTION,
    CopyEngine::DESCRIPTION,
    Usermode::DESCRIPTION,
];
