// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Declares the structures of RM's ioctls, as in 535.261.03 and 550.163.01. `ci/test-rm.sh`
//! compiles [`c_assertions`] against the headers of both.

mod headers;
pub(crate) mod share;

use crate::layout::{self, layouts, Description, Layout};
use crate::numbers::NUMBERS;

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

    /// A device's numbers. `ctrl/ctrl0000/ctrl0000gpu.h`.
    IdInfo = "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS", 32 {
        gpu_id: u32 = "gpuId",
        flags: u32 = "gpuFlags",
        device_instance: u32 = "deviceInstance",
        subdevice_instance: u32 = "subDeviceInstance",
        sli_status: u32 = "sliStatus",
        board_id: u32 = "boardId",
        gpu_instance: u32 = "gpuInstance",
        numa_node: i32 = "numaId",
    }

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

    /// The id of a subdevice's GPU. `ctrl/ctrl2080/ctrl2080gpu.h`.
    GpuId = "NV2080_CTRL_GPU_GET_ID_PARAMS", 4 {
        gpu_id: u32 = "gpuId",
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

    /// Binds a channel or a group to an engine. `ctrl/ctrla06f/ctrla06fgpfifo.h`.
    Bind = "NVA06F_CTRL_BIND_PARAMS", 4 {
        engine: u32 = "engineType",
    }

    /// Puts a channel or a group on the runlist. `ctrl/ctrla06f/ctrla06fgpfifo.h`.
    Schedule = "NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS", 2 {
        enable: u8 = "bEnable",
        skip_submit: u8 = "bSkipSubmit",
    }

    /// A channel group's time slice. `ctrl/ctrla06c.h`.
    Timeslice = "NVA06C_CTRL_TIMESLICE_PARAMS", 8 {
        us: u64 = "timesliceUs",
    }

    /// Disables channels, or enables them again. `ctrl/ctrl2080/ctrl2080fifo.h`.
    DisableChannels = "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS", 536 {
        disable: u8 = "bDisable",
        padding: [u8; 3],
        count: u32 = "numChannels",
        only_scheduling: u8 = "bOnlyDisableScheduling",
        rewind: u8 = "bRewindGpPut",
        padding_too: [u8; 6],
        event: u64 = "pRunlistPreemptEvent",
        clients: [[u32; 32]; 2] = "hClientList",
        channels: [[u32; 32]; 2] = "hChannelList",
    }

    /// A channel group's number. `ctrl/ctrla06c.h`.
    GroupInfo = "NVA06C_CTRL_GET_INFO_PARAMS", 4 {
        number: u32 = "tsgID",
    }

    /// A GPU's UUID. `ctrl/ctrl0000/ctrl0000gpu.h`.
    Uuid = "NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS", 268 {
        gpu_id: u32 = "gpuId",
        flags: u32 = "flags",
        uuid: [[u8; 16]; 16] = "gpuUuid",
        length: u32 = "uuidStrLen",
    }

    /// The first call to UVM. `uvm_linux_ioctl.h`.
    UvmInitialize = "UVM_INITIALIZE_PARAMS", 16 {
        flags: u64 = "flags",
        status: u32 = "rmStatus",
        padding: u32,
    }

    /// Binds UVM's file to the process, through a second file. `uvm_ioctl.h`.
    UvmMmInitialize = "UVM_MM_INITIALIZE_PARAMS", 8 {
        file: i32 = "uvmFd",
        status: u32 = "rmStatus",
    }

    /// Registers a GPU with UVM. `uvm_ioctl.h`.
    UvmRegisterGpu = "UVM_REGISTER_GPU_PARAMS", 40 {
        uuid: [u8; 16] = "gpu_uuid",
        numa_enabled: u8 = "numaEnabled",
        padding: [u8; 3],
        numa_node: i32 = "numaNodeId",
        control: i32 = "rmCtrlFd",
        client: u32 = "hClient",
        partition: u32 = "hSmcPartRef",
        status: u32 = "rmStatus",
    }

    /// Registers an address space with UVM. `uvm_ioctl.h`.
    UvmRegisterSpace = "UVM_REGISTER_GPU_VASPACE_PARAMS", 32 {
        uuid: [u8; 16] = "gpuUuid",
        control: i32 = "rmCtrlFd",
        client: u32 = "hClient",
        space: u32 = "hVaSpace",
        status: u32 = "rmStatus",
    }

    /// Registers a channel with UVM. `uvm_ioctl.h`.
    UvmRegisterChannel = "UVM_REGISTER_CHANNEL_PARAMS", 56 {
        uuid: [u8; 16] = "gpuUuid",
        control: i32 = "rmCtrlFd",
        client: u32 = "hClient",
        channel: u32 = "hChannel",
        padding: u32,
        base: u64 = "base",
        length: u64 = "length",
        status: u32 = "rmStatus",
        padding_end: u32,
    }

    /// Reserves addresses for memory that the caller maps. `uvm_ioctl.h`.
    UvmExternalRange = "UVM_CREATE_EXTERNAL_RANGE_PARAMS", 24 {
        base: u64 = "base",
        length: u64 = "length",
        status: u32 = "rmStatus",
        padding: u32,
    }

    /// A GPU's mapping attributes. `uvm_types.h`.
    UvmAttributes = "UvmGpuMappingAttributes", 36 {
        uuid: [u8; 16] = "gpuUuid",
        mapping: u32 = "gpuMappingType",
        caching: u32 = "gpuCachingType",
        format: u32 = "gpuFormatType",
        element_bits: u32 = "gpuElementBits",
        compression: u32 = "gpuCompressionType",
    }

    /// Maps memory at reserved addresses, in 535.261.03. `uvm_ioctl.h`.
    UvmMapExternal = "UVM_MAP_EXTERNAL_ALLOCATION_PARAMS", 1200 {
        base: u64 = "base",
        length: u64 = "length",
        offset: u64 = "offset",
        attributes: [UvmAttributes; 32] = "perGpuAttributes",
        attributes_count: u64 = "gpuAttributesCount",
        control: i32 = "rmCtrlFd",
        client: u32 = "hClient",
        memory: u32 = "hMemory",
        status: u32 = "rmStatus",
    }

    /// The token to write to the doorbell. `ctrl/ctrlc36f.h`.
    WorkToken = "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS", 4 {
        token: u32 = "workSubmitToken",
    }
}

/// Structures that are the same in every supported driver.
const COMMON: &[Description] = &[
    Free::DESCRIPTION,
    Alloc::DESCRIPTION,
    AllocObject::DESCRIPTION,
    AllocMemory::DESCRIPTION,
    AllocWithRights::DESCRIPTION,
    Dup::DESCRIPTION,
    Control::DESCRIPTION,
    MapMemory::DESCRIPTION,
    MapMemoryDma::DESCRIPTION,
    VidHeap::DESCRIPTION,
    RegisterFd::DESCRIPTION,
    Version::DESCRIPTION,
    CardInfo::DESCRIPTION,
    IdInfo::DESCRIPTION,
    Device::DESCRIPTION,
    Subdevice::DESCRIPTION,
    GpuId::DESCRIPTION,
    AddressSpace::DESCRIPTION,
    VirtualRange::DESCRIPTION,
    ChannelGroup::DESCRIPTION,
    ContextShare::DESCRIPTION,
    Channel::DESCRIPTION,
    CopyEngine::DESCRIPTION,
    Usermode::DESCRIPTION,
    Bind::DESCRIPTION,
    Schedule::DESCRIPTION,
    share::Export::DESCRIPTION,
    share::Import::DESCRIPTION,
    share::ExportMany::DESCRIPTION,
    share::ImportMany::DESCRIPTION,
    share::ExportDmaBuf::DESCRIPTION,
    Timeslice::DESCRIPTION,
    DisableChannels::DESCRIPTION,
    GroupInfo::DESCRIPTION,
    Uuid::DESCRIPTION,
    UvmInitialize::DESCRIPTION,
    UvmMmInitialize::DESCRIPTION,
    UvmRegisterGpu::DESCRIPTION,
    UvmRegisterSpace::DESCRIPTION,
    UvmRegisterChannel::DESCRIPTION,
    UvmExternalRange::DESCRIPTION,
    UvmAttributes::DESCRIPTION,
    WorkToken::DESCRIPTION,
];

/// The driver release, for structures that differ between releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// 535.261.03.
    R535,
    /// 550.163.01.
    R550,
}

impl Release {
    /// Returns the release of a version such as `535.261.03`; `None` if its structures are not
    /// known.
    pub fn of_version(version: &str) -> Option<Self> {
        match version.split('.').next()? {
            "535" => Some(Self::R535),
            "550" => Some(Self::R550),
            _ => None,
        }
    }
}

/// Returns a C program that compiles only against headers that agree with this crate and with
/// [`gct_core::rmapi::nv`].
pub fn c_assertions(release: Release) -> String {
    let changed = match release {
        Release::R535 => &[Memory::DESCRIPTION, UvmMapExternal::DESCRIPTION][..],
        Release::R550 => &[
            MemoryWithNode::DESCRIPTION,
            Description {
                size: MemoryWithNode::DESCRIPTION.size,
                ..Memory::DESCRIPTION
            },
        ],
    };
    let own = layout::c_assertions(headers::HEADERS, &[COMMON, changed].concat(), NUMBERS);
    own + &layout::core_assertions()
}
