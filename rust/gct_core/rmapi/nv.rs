// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the numbers of NVIDIA's resource manager that gctgroup uses.
//!
//! Every number has the name that NVIDIA's headers give it. Structures are modules: `SIZE` is the
//! size in bytes, the other constants are offsets of fields. A structure that newer drivers have
//! enlarged is a module for each size ([`VARIANTS`]). `ci/test-rm.sh` compiles [`NUMBERS`],
//! [`SOME_NUMBERS`], [`STRUCTURES`] and [`VARIANTS`] as C assertions against the headers of each
//! supported driver whose source is unpacked.

/// A number and its name in C.
pub type Number = (&'static str, u32);

/// A structure in C: its name, its size unless drivers differ, and the names and offsets of its
/// fields.
pub type Structure = (
    &'static str,
    Option<usize>,
    &'static [(&'static str, usize)],
);

macro_rules! numbers {
    ($(#[$note:meta])* $list:ident: $($name:ident = $value:expr;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`.")]
            pub const $name: u32 = $value;
        )*

        $(#[$note])*
        pub const $list: &[Number] = &[$((stringify!($name), $name),)*];
    };
}

macro_rules! structures {
    ($(#[$note:meta])* $list:ident: $($module:ident = $c_name:literal $(, $size:literal)?; {$($field:ident = $c_field:literal @ $offset:expr,)*})*) => {
        $(
            #[doc = concat!("Offsets in `", $c_name, "`.")]
            pub mod $module {
                $(
                    /// Size in bytes.
                    pub const SIZE: usize = $size;
                )?
                $(
                    #[doc = concat!("Offset of `", $c_field, "`.")]
                    pub const $field: usize = $offset;
                )*
            }
        )*

        $(#[$note])*
        pub const $list: &[Structure] = &[
            $((
                $c_name,
                first(&[$($size)?]),
                &[$(($c_field, $module::$field),)*],
            ),)*
        ];
    };
}

/// Bytes that no driver's `NV_CHANNEL_ALLOC_PARAMS` exceeds.
pub const CHANNEL_PARAMS_MOST: u16 = 512;

/// Returns the first number of at most one.
const fn first(sizes: &[usize]) -> Option<usize> {
    match sizes {
        [size, ..] => Some(*size),
        [] => None,
    }
}

numbers! {
    /// The numbers that every supported driver's headers have.
    NUMBERS:
    // Escapes: `nv_escape.h`, `nv-ioctl-numbers.h`.
    NV_ESC_RM_ALLOC_MEMORY = 0x27;
    NV_ESC_RM_ALLOC_OBJECT = 0x28;
    NV_ESC_RM_FREE = 0x29;
    NV_ESC_RM_CONTROL = 0x2a;
    NV_ESC_RM_ALLOC = 0x2b;
    NV_ESC_RM_DUP_OBJECT = 0x34;
    NV_ESC_RM_IDLE_CHANNELS = 0x41;
    NV_ESC_RM_VID_HEAP_CONTROL = 0x4a;
    NV_ESC_RM_ACCESS_REGISTRY = 0x4d;
    NV_ESC_RM_MAP_MEMORY = 0x4e;
    NV_ESC_RM_UNMAP_MEMORY = 0x4f;
    NV_ESC_RM_MAP_MEMORY_DMA = 0x57;
    NV_ESC_RM_UNMAP_MEMORY_DMA = 0x58;
    NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO = 0x5e;
    NV_ESC_CARD_INFO = 0xc8;
    NV_ESC_REGISTER_FD = 0xc9;
    NV_MAX_DEVICES = 32;

    // Classes: `class/cl*.h`.
    NV01_ROOT = 0x0000;
    NV01_ROOT_NON_PRIV = 0x0001;
    NV01_ROOT_CLIENT = 0x0041;
    NV01_DEVICE_0 = 0x0080;
    NV20_SUBDEVICE_0 = 0x2080;
    KEPLER_CHANNEL_GROUP_A = 0xa06c;
    FERMI_CONTEXT_SHARE_A = 0x9067;
    FERMI_VASPACE_A = 0x90f1;
    KERNEL_GRAPHICS_CONTEXT = 0x0090;
    GT200_DEBUGGER = 0x83de;
    NV01_MEMORY_SYSTEM = 0x003e;
    NV01_MEMORY_LOCAL_PRIVILEGED = 0x003f;
    NV01_MEMORY_LOCAL_USER = 0x0040;
    NV01_MEMORY_VIRTUAL = 0x0070;
    NV01_MEMORY_SYSTEM_OS_DESCRIPTOR = 0x0071;
    NV_MEMORY_FABRIC = 0x00f8;
    NV50_MEMORY_VIRTUAL = 0x50a0;
    GF100_CHANNEL_GPFIFO = 0x906f;
    KEPLER_CHANNEL_GPFIFO_A = 0xa06f;
    KEPLER_CHANNEL_GPFIFO_B = 0xa16f;
    MAXWELL_CHANNEL_GPFIFO_A = 0xb06f;
    PASCAL_CHANNEL_GPFIFO_A = 0xc06f;
    VOLTA_CHANNEL_GPFIFO_A = 0xc36f;
    TURING_CHANNEL_GPFIFO_A = 0xc46f;
    AMPERE_CHANNEL_GPFIFO_A = 0xc56f;
    HOPPER_CHANNEL_GPFIFO_A = 0xc86f;
    VOLTA_USERMODE_A = 0xc361;
    TURING_USERMODE_A = 0xc461;
    AMPERE_USERMODE_A = 0xc561;
    HOPPER_USERMODE_A = 0xc661;

    // Controls of a client: `ctrl/ctrl0000/*.h`.
    NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2 = 0x0205;
    NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO = 0x0d02;
    NV0000_CTRL_CMD_CLIENT_SET_INHERITED_SHARE_POLICY = 0x0d04;
    RS_SHARE_TYPE_ALL = 1;
    RS_SHARE_ACTION_FLAG_REVOKE = 1;
    NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO_INDEX_CLASSID = 2;
    NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD = 0x3d05;
    NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD = 0x3d06;
    NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD = 0x3d0b;
    NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD = 0x3d0c;
    NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_MAX_OBJECTS = 512;
    NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_TO_FD_MAX_OBJECTS = 128;

    // Controls of a device and a subdevice: `ctrl/ctrl0080/*.h`, `ctrl/ctrl2080/*.h`.
    NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE = 0x0080_1108;
    NV0080_CTRL_GR_TPC_PARTITION_MODE_DYNAMIC = 2;
    NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES = 0x0080_170f;
    NV2080_ENGINE_TYPE_GRAPHICS = 0x01;
    NV2080_ENGINE_TYPE_COPY1 = 0x0a;
    NV2080_ENGINE_TYPE_COPY2 = 0x0b;
    NV2080_ENGINE_TYPE_COPY9 = 0x12;
    NV2080_CTRL_CMD_GPU_GET_ID = 0x2080_0142;
    NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS = 0x2080_110b;
    NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES = 64;
    NV2080_CTRL_CMD_GR_GET_INFO = 0x2080_1201;
    NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE = 0x2080_1210;
    NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_FLAGS_CILP_SET = 1;
    NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE_WFI = 0;
    NV2080_CTRL_CMD_GR_GET_GLOBAL_SM_ORDER = 0x2080_121b;
    NV2080_CTRL_CMD_GR_GET_GLOBAL_SM_ORDER_MAX_SM_COUNT = 512;
    NV2080_CTRL_CMD_FB_GET_INFO_V2 = 0x2080_1303;
    NV2080_CTRL_FB_INFO_INDEX_RAM_SIZE = 0x07;
    NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE = 0x08;
    NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE = 0x09;
    NV2080_CTRL_FB_INFO_INDEX_LARGEST_FREE_REGION_SIZE_KB = 0x12;
    NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE = 0x16;
    NV2080_CTRL_FB_INFO_INDEX_USABLE_RAM_SIZE = 0x20;
    NV2080_CTRL_CMD_MC_GET_ARCH_INFO = 0x2080_1701;
    NV0080_CTRL_GR_INFO_INDEX_LITTER_NUM_GPCS = 0x14;
    NV0080_CTRL_GR_INFO_INDEX_LITTER_NUM_TPC_PER_GPC = 0x17;

    // Controls of channels and channel groups: `ctrl/ctrl506f.h`, `ctrl906f.h`, `ctrla06c.h`,
    // `ctrla06f/*.h`, `ctrlc36f.h`.
    NV506F_CTRL_CMD_RESET_ISOLATED_CHANNEL = 0x506f_0105;
    NV906F_CTRL_GET_CLASS_ENGINEID = 0x906f_0101;
    NV906F_CTRL_CMD_RESET_CHANNEL = 0x906f_0102;
    NVA06C_CTRL_CMD_GPFIFO_SCHEDULE = 0xa06c_0101;
    NVA06C_CTRL_CMD_SET_TIMESLICE = 0xa06c_0103;
    NVA06C_CTRL_CMD_GET_TIMESLICE = 0xa06c_0104;
    NVA06F_CTRL_CMD_GPFIFO_SCHEDULE = 0xa06f_0103;
    NVA06F_CTRL_CMD_STOP_CHANNEL = 0xa06f_0112;
    NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN = 0xc36f_0108;

    // Statuses: `nvstatuscodes.h`.
    NV_OK = 0x00;
    NV_ERR_INSUFFICIENT_RESOURCES = 0x1a;
    NV_ERR_INSUFFICIENT_PERMISSIONS = 0x1b;
    NV_ERR_INVALID_ARGUMENT = 0x1f;
    NV_ERR_INVALID_CHANNEL = 0x21;
    NV_ERR_INVALID_CLIENT = 0x23;
    NV_ERR_INVALID_OBJECT = 0x31;
    NV_ERR_INVALID_OBJECT_HANDLE = 0x33;
    NV_ERR_NO_MEMORY = 0x51;
    NV_ERR_NOT_SUPPORTED = 0x56;
    NV_ERR_OBJECT_NOT_FOUND = 0x57;
    NV_ERR_RESOURCE_LOST = 0x6e;

    // Reasons in a channel's error notifier, the Xids: `nverror.h`.
    ROBUST_CHANNEL_PREEMPTIVE_REMOVAL = 45;

    // Flags of NVOS54_PARAMETERS and NVOS64_PARAMETERS: `nvos.h`.
    NVOS54_FLAGS_FINN_SERIALIZED = 4;
    NVOS64_FLAGS_FINN_SERIALIZED = 1;

    // The old memory interface: `nvos.h`.
    NVOS32_FUNCTION_ALLOC_SIZE = 2;
    NVOS32_FUNCTION_FREE = 3;
    NVOS32_FUNCTION_ALLOC_TILED_PITCH_HEIGHT = 6;
    NVOS32_FUNCTION_ALLOC_SIZE_RANGE = 14;
    NVOS32_ALLOC_FLAGS_VIRTUAL = 0x0008_0000;
    NVOS32_ATTR_LOCATION_PCI = 1;
}

numbers! {
    /// The numbers that only some drivers' headers have: Blackwell's from 570 on, the control up
    /// to 550.
    SOME_NUMBERS:
    NV0080_CTRL_CMD_FIFO_START_SELECTED_CHANNELS = 0x0080_1705;
    BLACKWELL_CHANNEL_GPFIFO_A = 0xc96f;
    BLACKWELL_CHANNEL_GPFIFO_B = 0xca6f;
    BLACKWELL_USERMODE_A = 0xc761;
}

/// Returns whether a control of a channel is `command` under any generation's number: bits 31:24
/// are the generation, and a channel takes them all (`kchannelCtrlCmdGpFifoScheduleC36F` and the
/// like).
pub const fn is_of_any_generation(control: u32, command: u32) -> bool {
    const GENERATION: u32 = 0xff00_0000;
    control & !GENERATION == command & !GENERATION
}

structures! {
    /// The structures of which each driver has one form.
    STRUCTURES:
    // Arguments of the ioctls: `nvos.h`, `nv-unix-nvos-params-wrappers.h`.
    nvos00 = "NVOS00_PARAMETERS", 16; {
        ROOT = "hRoot" @ 0,
        PARENT = "hObjectParent" @ 4,
        OBJECT = "hObjectOld" @ 8,
        STATUS = "status" @ 12,
    }
    nvos02_with_fd = "nv_ioctl_nvos02_parameters_with_fd", 56; {
        ROOT = "params.hRoot" @ 0,
        PARENT = "params.hObjectParent" @ 4,
        OBJECT = "params.hObjectNew" @ 8,
        CLASS = "params.hClass" @ 12,
        STATUS = "params.status" @ 40,
    }
    nvos05 = "NVOS05_PARAMETERS", 20; {
        ROOT = "hRoot" @ 0,
        PARENT = "hObjectParent" @ 4,
        OBJECT = "hObjectNew" @ 8,
        CLASS = "hClass" @ 12,
        STATUS = "status" @ 16,
    }
    nvos21 = "NVOS21_PARAMETERS", 32; {
        ROOT = "hRoot" @ 0,
        PARENT = "hObjectParent" @ 4,
        OBJECT = "hObjectNew" @ 8,
        CLASS = "hClass" @ 12,
        PARAMS = "pAllocParms" @ 16,
        STATUS = "status" @ 28,
    }
    // The fields up to the parameters lie as in NVOS21_PARAMETERS.
    nvos64 = "NVOS64_PARAMETERS", 48; {
        ROOT = "hRoot" @ 0,
        PARENT = "hObjectParent" @ 4,
        OBJECT = "hObjectNew" @ 8,
        CLASS = "hClass" @ 12,
        PARAMS = "pAllocParms" @ 16,
        FLAGS = "flags" @ 36,
        STATUS = "status" @ 40,
    }
    nvos30 = "NVOS30_PARAMETERS", 56; {
        CLIENT = "hClient" @ 0,
        DEVICE = "hDevice" @ 4,
        STATUS = "status" @ 48,
    }
    nvos32 = "NVOS32_PARAMETERS", 184; {
        ROOT = "hRoot" @ 0,
        PARENT = "hObjectParent" @ 4,
        FUNCTION = "function" @ 8,
        STATUS = "status" @ 20,
        MEMORY = "data.AllocSize.hMemory" @ 44,
        RANGE_MEMORY = "data.AllocSizeRange.hMemory" @ 44,
        FREED_MEMORY = "data.Free.hMemory" @ 44,
        FLAGS = "data.AllocSize.flags" @ 52,
        RANGE_FLAGS = "data.AllocSizeRange.flags" @ 52,
        ATTR = "data.AllocSize.attr" @ 56,
        RANGE_ATTR = "data.AllocSizeRange.attr" @ 56,
        ALLOC_SIZE = "data.AllocSize.size" @ 88,
        RANGE_SIZE = "data.AllocSizeRange.size" @ 80,
    }
    nvos33_with_fd = "nv_ioctl_nvos33_parameters_with_fd", 56; {
        CLIENT = "params.hClient" @ 0,
        DEVICE = "params.hDevice" @ 4,
        MEMORY = "params.hMemory" @ 8,
        OFFSET = "params.offset" @ 16,
        LENGTH = "params.length" @ 24,
        ADDRESS = "params.pLinearAddress" @ 32,
        STATUS = "params.status" @ 40,
        FD = "fd" @ 48,
    }
    nvos34 = "NVOS34_PARAMETERS", 32; {
        CLIENT = "hClient" @ 0,
        MEMORY = "hMemory" @ 8,
        ADDRESS = "pLinearAddress" @ 16,
        STATUS = "status" @ 24,
    }
    nvos38 = "NVOS38_PARAMETERS", 72; {
        CLIENT = "hClient" @ 0,
        OBJECT = "hObject" @ 4,
        STATUS = "status" @ 64,
    }
    nvos54 = "NVOS54_PARAMETERS", 32; {
        CLIENT = "hClient" @ 0,
        OBJECT = "hObject" @ 4,
        COMMAND = "cmd" @ 8,
        FLAGS = "flags" @ 12,
        PARAMS = "params" @ 16,
        PARAMS_SIZE = "paramsSize" @ 24,
        STATUS = "status" @ 28,
    }
    nvos55 = "NVOS55_PARAMETERS", 28; {
        CLIENT = "hClient" @ 0,
        PARENT = "hParent" @ 4,
        OBJECT = "hObject" @ 8,
        SOURCE_CLIENT = "hClientSrc" @ 12,
        SOURCE = "hObjectSrc" @ 16,
        STATUS = "status" @ 24,
    }
    nvos56 = "NVOS56_PARAMETERS", 40; {
        CLIENT = "hClient" @ 0,
        MEMORY = "hMemory" @ 8,
        FROM = "pOldCpuAddress" @ 16,
        TO = "pNewCpuAddress" @ 24,
        STATUS = "status" @ 32,
    }

    // Parameters of allocations: `nvos.h`, `class/cl*.h`, `alloc/alloc_channel.h`.
    device = "NV0080_ALLOC_PARAMETERS", 56; {
        DEVICE_ID = "deviceId" @ 0,
    }
    subdevice = "NV2080_ALLOC_PARAMETERS", 4; {
        SUBDEVICE_ID = "subDeviceId" @ 0,
    }
    memory = "NV_MEMORY_ALLOCATION_PARAMS"; {
        OWNER = "owner" @ 0,
        ATTR = "attr" @ 24,
        ATTR2 = "attr2" @ 28,
        LENGTH = "size" @ 64,
    }
    memory_virtual = "NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS", 24; {
        ADDRESS_SPACE = "hVASpace" @ 16,
    }
    channel_group = "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS"; {
        ADDRESS_SPACE = "hVASpace" @ 8,
        ENGINE_TYPE = "engineType" @ 12,
    }
    context_share = "NV_CTXSHARE_ALLOCATION_PARAMETERS", 12; {
        ADDRESS_SPACE = "hVASpace" @ 0,
    }
    usermode = "NV_HOPPER_USERMODE_A_PARAMS"; {
        IN_BAR1 = "bBar1Mapping" @ 0,
    }
    debugger = "NV83DE_ALLOC_PARAMETERS", 12; {
        APP_CLIENT = "hAppClient" @ 4,
    }
    channel = "NV_CHANNEL_ALLOC_PARAMS"; {
        ERROR_MEMORY = "hObjectError" @ 0,
        RING = "gpFifoOffset" @ 8,
        ENTRIES = "gpFifoEntries" @ 16,
        CONTEXT_SHARE = "hContextShare" @ 24,
        ADDRESS_SPACE = "hVASpace" @ 28,
        USERD_MEMORY = "hUserdMemory" @ 32,
        USERD_OFFSET = "userdOffset" @ 64,
        ECC_ERROR_MEMORY = "hObjectEccError" @ 140,
    }

    // Parameters of controls: `ctrl/*`.
    gpu_id = "NV2080_CTRL_GPU_GET_ID_PARAMS", 4; {
        GPU_ID = "gpuId" @ 0,
    }
    id_info = "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS", 32; {
        GPU_ID = "gpuId" @ 0,
        DEVICE_INSTANCE = "deviceInstance" @ 8,
    }
    share_policy = "NV0000_CTRL_CLIENT_SET_INHERITED_SHARE_POLICY_PARAMS", 12; {
        TYPE = "sharePolicy.type" @ 8,
        ACTION = "sharePolicy.action" @ 10,
    }
    handle_info = "NV0000_CTRL_CLIENT_GET_HANDLE_INFO_PARAMS", 16; {
        OBJECT = "hObject" @ 0,
        INDEX = "index" @ 4,
        RESULT = "data.iResult" @ 8,
    }
    class_engine_id = "NV906F_CTRL_GET_CLASS_ENGINEID_PARAMS", 16; {
        OBJECT = "hObject" @ 0,
    }
    work_token = "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS", 4; {
        TOKEN = "workSubmitToken" @ 0,
    }
    stop_channel = "NVA06F_CTRL_STOP_CHANNEL_PARAMS", 1; {
        IMMEDIATE = "bImmediate" @ 0,
    }
    timeslice = "NVA06C_CTRL_TIMESLICE_PARAMS", 8; {
        US = "timesliceUs" @ 0,
    }
    disable_channels = "NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS", 536; {
        DISABLE = "bDisable" @ 0,
        COUNT = "numChannels" @ 4,
        CLIENTS = "hClientList" @ 24,
        CHANNELS = "hChannelList" @ 280,
    }
    export_one = "NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS", 24; {
        OBJECT = "object.data.rmObject.hObject" @ 12,
    }
    import_one = "NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS", 20; {
        PARENT = "object.data.rmObject.hParent" @ 12,
        OBJECT = "object.data.rmObject.hObject" @ 16,
    }
    export_many = "NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS", 2128; {
        OBJECTS = "objects" @ 76,
        COUNT = "numObjects" @ 2124,
        FIRST = "index" @ 2126,
    }
    import_many = "NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS", 652; {
        PARENT = "hParent" @ 4,
        OBJECTS = "objects" @ 8,
        COUNT = "numObjects" @ 648,
        FIRST = "index" @ 650,
    }
    gr_info = "NV2080_CTRL_GR_GET_INFO_PARAMS", 32; {
        COUNT = "grInfoListSize" @ 0,
        LIST = "grInfoList" @ 8,
    }
    fb_info = "NV2080_CTRL_FB_GET_INFO_V2_PARAMS"; {
        COUNT = "fbInfoListSize" @ 0,
        LIST = "fbInfoList" @ 4,
    }
    preemption_mode = "NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS", 32; {
        FLAGS = "flags" @ 0,
        COMPUTE = "cilpPreemptMode" @ 12,
    }
    partition_mode = "NV0080_CTRL_GR_TPC_PARTITION_MODE_PARAMS", 32; {
        MODE = "mode" @ 4,
        ENABLE_ALL_TPCS = "bEnableAllTpcs" @ 8,
    }
    sm_order = "NV2080_CTRL_GR_GET_GLOBAL_SM_ORDER_PARAMS"; {
        VIRTUAL_GPC = "globalSmId[0].virtualGpcId" @ 8,
        MIGRATABLE_TPC = "globalSmId[0].migratableTpcId" @ 10,
    }
    arch_info = "NV2080_CTRL_MC_GET_ARCH_INFO_PARAMS", 16; {
        ARCHITECTURE = "architecture" @ 0,
    }
    card_info = "nv_ioctl_card_info_t", 72; {
        VALID = "valid" @ 0,
        GPU_ID = "gpu_id" @ 16,
        MINOR = "minor_number" @ 56,
    }
}

structures! {
    /// The structures of which a driver has one of several forms, told by their sizes.
    VARIANTS:
    nvos46 = "NVOS46_PARAMETERS", 56; {
        CLIENT = "hClient" @ 0,
        RANGE = "hDma" @ 8,
        MEMORY = "hMemory" @ 12,
        OFFSET = "offset" @ 16,
        LENGTH = "length" @ 24,
        ADDRESS = "dmaOffset" @ 40,
        STATUS = "status" @ 48,
    }
    // From 580 on. The fields up to the length lie as before.
    nvos46_with_kind = "NVOS46_PARAMETERS", 64; {
        CLIENT = "hClient" @ 0,
        RANGE = "hDma" @ 8,
        MEMORY = "hMemory" @ 12,
        OFFSET = "offset" @ 16,
        LENGTH = "length" @ 24,
        ADDRESS = "dmaOffset" @ 48,
        STATUS = "status" @ 56,
    }
    nvos47 = "NVOS47_PARAMETERS", 40; {
        CLIENT = "hClient" @ 0,
        RANGE = "hDma" @ 8,
        ADDRESS = "dmaOffset" @ 24,
    }
    // From 550 on. The fields up to the address lie as before.
    nvos47_with_size = "NVOS47_PARAMETERS", 48; {
        CLIENT = "hClient" @ 0,
        RANGE = "hDma" @ 8,
        ADDRESS = "dmaOffset" @ 24,
    }
}
