// SPDX-License-Identifier: GPL-2.0 OR MIT
// Printed by layout/layout.c, compiled against the headers of 535.261.03.
pub mod GSP_MSG_QUEUE_ELEMENT {
    use super::*;
    pub const SIZE: usize = 0x50;
    pub const checkSum: Field = Field::new(0x20, 4);
    pub const seqNum: Field = Field::new(0x24, 4);
    pub const elemCount: Field = Field::new(0x28, 4);
    pub const rpc: Field = Field::new(0x30, 32);
}
pub mod rpc_message_header_v {
    use super::*;
    pub const SIZE: usize = 0x20;
    pub const header_version: Field = Field::new(0, 4);
    pub const signature: Field = Field::new(0x4, 4);
    pub const length: Field = Field::new(0x8, 4);
    pub const function: Field = Field::new(0xc, 4);
    pub const rpc_result: Field = Field::new(0x10, 4);
    pub const rpc_result_private: Field = Field::new(0x14, 4);
    pub const sequence: Field = Field::new(0x18, 4);
}
pub mod msgqTxHeader {
    use super::*;
    pub const SIZE: usize = 0x20;
    pub const version: Field = Field::new(0, 4);
    pub const size: Field = Field::new(0x4, 4);
    pub const msgSize: Field = Field::new(0x8, 4);
    pub const msgCount: Field = Field::new(0xc, 4);
    pub const writePtr: Field = Field::new(0x10, 4);
    pub const flags: Field = Field::new(0x14, 4);
    pub const rxHdrOff: Field = Field::new(0x18, 4);
    pub const entryOff: Field = Field::new(0x1c, 4);
}
pub const NV_VGPU_MSG_SIGNATURE_VALID: u32 = 0x43505256;
pub const GSP_MSG_QUEUE_ELEMENT_SIZE_MIN: u32 = 0x1000;
pub const GSP_MSG_QUEUE_ELEMENT_SIZE_MAX: u32 = 0x10000;
pub mod NVDM_PAYLOAD_COT {
    use super::*;
    pub const SIZE: usize = 0x35c;
    pub const gspBootArgsSysmemOffset: Field = Field::new(0x354, 8);
}
pub mod GSP_FMC_BOOT_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x38;
    pub const gspRmParams_target: Field = Field::new(0x28, 4);
    pub const gspRmParams_bootArgsOffset: Field = Field::new(0x30, 8);
}
pub mod LibosMemoryRegionInitArgument {
    use super::*;
    pub const SIZE: usize = 0x20;
    pub const id8: Field = Field::new(0, 8);
    pub const pa: Field = Field::new(0x8, 8);
    pub const size: Field = Field::new(0x10, 8);
}
pub mod MESSAGE_QUEUE_INIT_ARGUMENTS {
    use super::*;
    pub const SIZE: usize = 0x30;
    pub const sharedMemPhysAddr: Field = Field::new(0, 8);
    pub const pageTableEntryCount: Field = Field::new(0x8, 4);
    pub const cmdQueueOffset: Field = Field::new(0x10, 8);
    pub const statQueueOffset: Field = Field::new(0x18, 8);
}
pub mod rpc_gsp_rm_control_v {
    use super::*;
    pub const SIZE: usize = 0x18;
    pub const hClient: Field = Field::new(0, 4);
    pub const hObject: Field = Field::new(0x4, 4);
    pub const cmd: Field = Field::new(0x8, 4);
    pub const status: Field = Field::new(0xc, 4);
    pub const paramsSize: Field = Field::new(0x10, 4);
}
pub mod rpc_gsp_rm_alloc_v {
    use super::*;
    pub const SIZE: usize = 0x20;
    pub const hClient: Field = Field::new(0, 4);
    pub const hParent: Field = Field::new(0x4, 4);
    pub const hObject: Field = Field::new(0x8, 4);
    pub const hClass: Field = Field::new(0xc, 4);
    pub const status: Field = Field::new(0x10, 4);
    pub const paramsSize: Field = Field::new(0x14, 4);
}
pub mod rpc_free_v {
    use super::*;
    pub const SIZE: usize = 0x10;
    pub const hRoot: Field = Field::new(0, 4);
    pub const hObjectParent: Field = Field::new(0x4, 4);
    pub const hObjectOld: Field = Field::new(0x8, 4);
    pub const status: Field = Field::new(0xc, 4);
}
pub mod rpc_dup_object_v {
    use super::*;
    pub const SIZE: usize = 0x1c;
    pub const hClient: Field = Field::new(0, 4);
    pub const hParent: Field = Field::new(0x4, 4);
    pub const hObject: Field = Field::new(0x8, 4);
    pub const hClientSrc: Field = Field::new(0xc, 4);
    pub const hObjectSrc: Field = Field::new(0x10, 4);
    pub const status: Field = Field::new(0x18, 4);
}
pub mod rpc_set_page_directory_v {
    use super::*;
    pub const SIZE: usize = 0x30;
    pub const hClient: Field = Field::new(0, 4);
    pub const hDevice: Field = Field::new(0x4, 4);
    pub const physAddress: Field = Field::new(0x10, 8);
    pub const flags: Field = Field::new(0x1c, 4);
    pub const hVASpace: Field = Field::new(0x20, 4);
}
pub mod rpc_unset_page_directory_v {
    use super::*;
    pub const SIZE: usize = 0x10;
    pub const hClient: Field = Field::new(0, 4);
    pub const hDevice: Field = Field::new(0x4, 4);
    pub const hVASpace: Field = Field::new(0x8, 4);
}
pub mod rpc_update_bar_pde_v {
    use super::*;
    pub const SIZE: usize = 0x18;
    pub const barType: Field = Field::new(0, 4);
    pub const entryValue: Field = Field::new(0x8, 8);
    pub const entryLevelShift: Field = Field::new(0x10, 8);
}
pub mod rpc_os_error_log_v {
    use super::*;
    pub const SIZE: usize = 0x10c;
    pub const exceptType: Field = Field::new(0, 4);
    pub const runlistId: Field = Field::new(0x4, 4);
    pub const chid: Field = Field::new(0x8, 4);
    pub const errString: Field = Field::new(0xc, 256);
}
pub const NV_RPC_UPDATE_PDE_BAR_1: u32 = 0;
pub const NV_RPC_UPDATE_PDE_BAR_2: u32 = 0x1;
pub const NV_VGPU_MSG_FUNCTION_FREE: u32 = 0xa;
pub const NV_VGPU_MSG_FUNCTION_DUP_OBJECT: u32 = 0x15;
pub const NV_VGPU_MSG_FUNCTION_UNLOADING_GUEST_DRIVER: u32 = 0x2f;
pub const NV_VGPU_MSG_FUNCTION_SET_PAGE_DIRECTORY: u32 = 0x36;
pub const NV_VGPU_MSG_FUNCTION_UNSET_PAGE_DIRECTORY: u32 = 0x4f;
pub const NV_VGPU_MSG_FUNCTION_GET_GSP_STATIC_INFO: u32 = 0x41;
pub const NV_VGPU_MSG_FUNCTION_UPDATE_BAR_PDE: u32 = 0x46;
pub const NV_VGPU_MSG_FUNCTION_CONTINUATION_RECORD: u32 = 0x47;
pub const NV_VGPU_MSG_FUNCTION_GSP_SET_SYSTEM_INFO: u32 = 0x48;
pub const NV_VGPU_MSG_FUNCTION_SET_REGISTRY: u32 = 0x49;
pub const NV_VGPU_MSG_FUNCTION_GSP_RM_CONTROL: u32 = 0x4c;
pub const NV_VGPU_MSG_FUNCTION_GSP_RM_ALLOC: u32 = 0x67;
pub const NV_VGPU_MSG_FUNCTION_INIT_GSP_TRACE_CRASH_BUFFER: u32 = 0xffffffff;
pub const NV_VGPU_MSG_EVENT_GSP_INIT_DONE: u32 = 0x1001;
pub const NV_VGPU_MSG_EVENT_OS_ERROR_LOG: u32 = 0x1006;
pub mod GspStaticConfigInfo {
    use super::*;
    pub const SIZE: usize = 0x878;
    pub const gidInfo_flags: Field = Field::new(0x1c, 4);
    pub const gidInfo_length: Field = Field::new(0x20, 4);
    pub const gidInfo_data: Field = Field::new(0x24, 256);
    pub const numFBRegions: Field = Field::new(0x348, 4);
    pub const fbRegion: Array = Array::new(0x350, 48, 16);
    pub const computeBranding: Field = Field::new(0x650, 4);
    pub const engineCaps: Array = Array::new(0x6a4, 4, 2);
    pub const SM_info_version: Field = Field::new(0x6ac, 4);
    pub const SM_info_maxWarpsPerSM: Field = Field::new(0x6b8, 4);
    pub const SM_info_maxThreadsPerWarp: Field = Field::new(0x6bc, 4);
    pub const SM_info_maxSPPerSM: Field = Field::new(0x6c8, 4);
    pub const fb_length: Field = Field::new(0x6d8, 8);
    pub const fbio_mask: Field = Field::new(0x6e0, 4);
    pub const fb_bus_width: Field = Field::new(0x6e4, 4);
    pub const fb_ram_type: Field = Field::new(0x6e8, 4);
    pub const fbp_mask: Field = Field::new(0x6ec, 4);
    pub const l2_cache_size: Field = Field::new(0x6f0, 4);
    pub const gpuNameString: Field = Field::new(0x71c, 64);
    pub const gpuShortNameString: Field = Field::new(0x75c, 64);
    pub const gpuNameString_Unicode: Array = Array::new(0x79c, 2, 64);
    pub const bIsTesla: Field = Field::new(0x823, 1);
    pub const bar1PdeBase: Field = Field::new(0x828, 8);
    pub const bar2PdeBase: Field = Field::new(0x830, 8);
    pub const bVbiosValid: Field = Field::new(0x838, 1);
    pub const hInternalClient: Field = Field::new(0x868, 4);
    pub const hInternalDevice: Field = Field::new(0x86c, 4);
    pub const hInternalSubdevice: Field = Field::new(0x870, 4);
}
pub mod NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO {
    use super::*;
    pub const SIZE: usize = 0x30;
    pub const base: Field = Field::new(0, 8);
    pub const limit: Field = Field::new(0x8, 8);
    pub const reserved: Field = Field::new(0x10, 8);
    pub const performance: Field = Field::new(0x18, 4);
    pub const supportCompressed: Field = Field::new(0x1c, 1);
    pub const supportISO: Field = Field::new(0x1d, 1);
}
pub const COMPUTE_BRANDING_TYPE_TESLA: u32 = 0x1;
pub const NV2080_CTRL_FB_INFO_RAM_TYPE_HBM3: u32 = 0x14;
pub const NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY: u32 = 0x2;
pub mod NV_CHANNEL_ALLOC_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x168;
    pub const gpFifoOffset: Field = Field::new(0x8, 8);
    pub const gpFifoEntries: Field = Field::new(0x10, 4);
    pub const flags: Field = Field::new(0x14, 4);
    pub const hContextShare: Field = Field::new(0x18, 4);
    pub const hVASpace: Field = Field::new(0x1c, 4);
    pub const engineType: Field = Field::new(0x80, 4);
    pub const instanceMem_base: Field = Field::new(0x90, 8);
    pub const instanceMem_addressSpace: Field = Field::new(0xa0, 4);
    pub const userdMem_base: Field = Field::new(0xa8, 8);
    pub const userdMem_addressSpace: Field = Field::new(0xb8, 4);
    pub const errorNotifierMem_base: Field = Field::new(0xf8, 8);
    pub const errorNotifierMem_size: Field = Field::new(0x100, 8);
    pub const errorNotifierMem_addressSpace: Field = Field::new(0x108, 4);
}
pub mod NvNotification {
    use super::*;
    pub const SIZE: usize = 0x10;
    pub const timeStamp: Field = Field::new(0, 8);
    pub const info32: Field = Field::new(0x8, 4);
    pub const info16: Field = Field::new(0xc, 2);
    pub const status: Field = Field::new(0xe, 2);
}
pub const ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT: u32 = 0x1f;
pub mod NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS {
    use super::*;
    pub const SIZE: usize = 0x14;
    pub const hVASpace: Field = Field::new(0x8, 4);
    pub const engineType: Field = Field::new(0xc, 4);
}
pub mod NV_CTXSHARE_ALLOCATION_PARAMETERS {
    use super::*;
    pub const SIZE: usize = 0xc;
    pub const hVASpace: Field = Field::new(0, 4);
    pub const subctxId: Field = Field::new(0x8, 4);
}
pub mod NV_VASPACE_ALLOCATION_PARAMETERS {
    use super::*;
    pub const SIZE: usize = 0x30;
    pub const index: Field = Field::new(0, 4);
    pub const flags: Field = Field::new(0x4, 4);
}
pub const NV_VASPACE_ALLOCATION_FLAGS_ENABLE_PAGE_FAULTING: u32 = 0x40;
pub const NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE: u32 = 0x3;
pub const CHANNEL_USERD_INDEX_VALUE_HIGH: u32 = 0xa;
pub const CHANNEL_USERD_INDEX_VALUE_LOW: u32 = 0x8;
pub const CHANNEL_USERD_INDEX_PAGE_VALUE_HIGH: u32 = 0x14;
pub const CHANNEL_USERD_INDEX_PAGE_VALUE_LOW: u32 = 0xc;
pub const ADDR_SYSMEM: u32 = 0x1;
pub const ADDR_FBMEM: u32 = 0x2;
pub const NV2080_ENGINE_TYPE_GR0: u32 = 0x1;
pub const NV2080_ENGINE_TYPE_COPY0: u32 = 0x9;
pub const RM_ENGINE_TYPE_GR0: u32 = 0x1;
pub const RM_ENGINE_TYPE_COPY0: u32 = 0x9;
pub const ENG_GR0: u32 = 0xd334df00;
pub const ENG_CE0: u32 = 0x793ceb00;
pub const ENG_CE_STEP: u32 = 0x1;
pub const MC_ENGINE_IDX_GR0: u32 = 0x52;
pub const MC_ENGINE_IDX_CE0: u32 = 0xf;
pub const MC_ENGINE_IDX_GSP: u32 = 0x31;
pub const MC_ENGINE_IDX_TMR: u32 = 0x1;
pub const MC_ENGINE_IDX_REPLAYABLE_FAULT: u32 = 0x3a;
pub const MC_ENGINE_IDX_REPLAYABLE_FAULT_ERROR: u32 = 0x3d;
pub const MC_ENGINE_IDX_NON_REPLAYABLE_FAULT: u32 = 0x3c;
pub const MC_ENGINE_IDX_NON_REPLAYABLE_FAULT_ERROR: u32 = 0x3e;
pub const MC_ENGINE_IDX_ACCESS_CNTR: u32 = 0x3b;
pub const MC_ENGINE_IDX_INFO_FAULT: u32 = 0x3f;
pub const NV_REG_BASE_TIMER: u32 = 0x2;
pub const NV_REG_BASE_USERMODE: u32 = 0x4;
pub const ENGINE_INFO_TYPE_ENG_DESC: u32 = 0;
pub const ENGINE_INFO_TYPE_FIFO_TAG: u32 = 0x1;
pub const ENGINE_INFO_TYPE_RM_ENGINE_TYPE: u32 = 0x2;
pub const ENGINE_INFO_TYPE_RUNLIST: u32 = 0x3;
pub const ENGINE_INFO_TYPE_MMU_FAULT_ID: u32 = 0x4;
pub const ENGINE_INFO_TYPE_RC_MASK: u32 = 0x5;
pub const ENGINE_INFO_TYPE_RESET: u32 = 0x6;
pub const ENGINE_INFO_TYPE_INTR: u32 = 0x7;
pub const ENGINE_INFO_TYPE_MC: u32 = 0x8;
pub const ENGINE_INFO_TYPE_DEV_TYPE_ENUM: u32 = 0x9;
pub const ENGINE_INFO_TYPE_INSTANCE_ID: u32 = 0xa;
pub const ENGINE_INFO_TYPE_RUNLIST_PRI_BASE: u32 = 0xb;
pub const ENGINE_INFO_TYPE_IS_HOST_DRIVEN_ENGINE: u32 = 0xc;
pub const ENGINE_INFO_TYPE_RUNLIST_ENGINE_ID: u32 = 0xd;
pub const ENGINE_INFO_TYPE_CHRAM_PRI_BASE: u32 = 0xe;
pub const NV0080_CTRL_CMD_DMA_SET_PAGE_DIRECTORY: u32 = 0x801813;
pub const NV2080_CTRL_CMD_BUS_GET_PCI_BAR_INFO: u32 = 0x20801803;
pub const NV2080_CTRL_CMD_CE_GET_ALL_PHYSICAL_CAPS: u32 = 0x20802a0b;
pub const NV2080_CTRL_CMD_CE_GET_CE_PCE_MASK: u32 = 0x20802a02;
pub const NV2080_CTRL_CMD_CE_GET_FAULT_METHOD_BUFFER_SIZE: u32 = 0x20802a08;
pub const NV2080_CTRL_CMD_CE_GET_PHYSICAL_CAPS: u32 = 0x20802a07;
pub const NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS: u32 = 0x2080110b;
pub const NV2080_CTRL_CMD_FIFO_GET_DEVICE_INFO_TABLE: u32 = 0x20801112;
pub const NV2080_CTRL_CMD_GPU_GET_ENGINES_V2: u32 = 0x20800170;
pub const NV2080_CTRL_CMD_GPU_GET_GID_INFO: u32 = 0x2080014a;
pub const NV2080_CTRL_CMD_GPU_GET_NAME_STRING: u32 = 0x20800110;
pub const NV2080_CTRL_CMD_INTERNAL_CONF_COMPUTE_GET_STATIC_INFO: u32 = 0x20800af3;
pub const NV2080_CTRL_CMD_INTERNAL_FIFO_GET_NUM_CHANNELS: u32 = 0x20800a61;
pub const NV2080_CTRL_CMD_INTERNAL_GET_CONSTRUCTED_FALCON_INFO: u32 = 0x20800a42;
pub const NV2080_CTRL_CMD_INTERNAL_GET_DEVICE_INFO_TABLE: u32 = 0x20800a40;
pub const NV2080_CTRL_CMD_INTERNAL_GMMU_COPY_RESERVED_SPLIT_GVASPACE_PDES_TO_SERVER: u32 = 0x20800a9f;
pub const NV2080_CTRL_CMD_INTERNAL_GMMU_GET_STATIC_INFO: u32 = 0x20800a59;
pub const NV2080_CTRL_CMD_INTERNAL_GMMU_REGISTER_FAULT_BUFFER: u32 = 0x20800a9b;
pub const NV2080_CTRL_CMD_INTERNAL_GMMU_UNREGISTER_FAULT_BUFFER: u32 = 0x20800a9c;
pub const NV2080_CTRL_CMD_INTERNAL_GPU_GET_CHIP_INFO: u32 = 0x20800a36;
pub const NV2080_CTRL_CMD_INTERNAL_GPU_GET_USER_REGISTER_ACCESS_MAP: u32 = 0x20800a41;
pub const NV2080_CTRL_CMD_INTERNAL_INTR_GET_KERNEL_TABLE: u32 = 0x20800a5c;
pub const NV2080_CTRL_CMD_INTERNAL_MEMSYS_GET_STATIC_CONFIG: u32 = 0x20800a1c;
pub const NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_CONTEXT_BUFFERS_INFO: u32 = 0x20800a32;
pub const NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_FLOORSWEEPING_MASKS: u32 = 0x20800a26;
pub const NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_GLOBAL_SM_ORDER: u32 = 0x20800a22;
pub const NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_INFO: u32 = 0x20800a2a;
pub const NV2080_CTRL_CMD_NVLINK_GET_NVLINK_DEVICE_INFO: u32 = 0x2080302c;
pub const NV2080_CTRL_CMD_SET_GPFIFO: u32 = 0x20801102;
pub const NV90F1_CTRL_CMD_VASPACE_COPY_SERVER_RESERVED_PDES: u32 = 0x90f10106;
pub const NVA06C_CTRL_CMD_GPFIFO_SCHEDULE: u32 = 0xa06c0101;
pub const NVA06C_CTRL_CMD_PREEMPT: u32 = 0xa06c0105;
pub const NVA06C_CTRL_CMD_SET_TIMESLICE: u32 = 0xa06c0103;
pub const NVA06F_CTRL_CMD_GPFIFO_SCHEDULE: u32 = 0xa06f0103;
pub const NVA06F_CTRL_CMD_STOP_CHANNEL: u32 = 0xa06f0112;
pub const NV_OK: u32 = 0;
pub const NV_ERR_NOT_SUPPORTED: u32 = 0x56;
pub const NV_ERR_INVALID_CLASS: u32 = 0x22;
pub const NV_ERR_INVALID_PARAM_STRUCT: u32 = 0x3a;
pub mod NV0080_CTRL_DMA_SET_PAGE_DIRECTORY_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x20;
    pub const physAddress: Field = Field::new(0, 8);
    pub const flags: Field = Field::new(0xc, 4);
    pub const hVASpace: Field = Field::new(0x10, 4);
}
pub mod NV2080_CTRL_BUS_GET_PCI_BAR_INFO_PARAMS {
    use super::*;
    pub const SIZE: usize = 0xc8;
    pub const pciBarCount: Field = Field::new(0, 4);
    pub const pciBarInfo: Array = Array::new(0x8, 24, 8);
}
pub mod NV2080_CTRL_BUS_PCI_BAR_INFO {
    use super::*;
    pub const SIZE: usize = 0x18;
    pub const barSize: Field = Field::new(0x4, 4);
    pub const barSizeBytes: Field = Field::new(0x8, 8);
}
pub mod NV2080_CTRL_INTERNAL_GET_DEVICE_INFO_TABLE_PARAMS {
    use super::*;
    pub const SIZE: usize = 0xc64;
    pub const numEntries: Field = Field::new(0, 4);
    pub const deviceInfoTable: Array = Array::new(0x4, 36, 88);
}
pub mod NV2080_CTRL_INTERNAL_DEVICE_INFO {
    use super::*;
    pub const SIZE: usize = 0x24;
    pub const faultId: Field = Field::new(0, 4);
    pub const instanceId: Field = Field::new(0x4, 4);
    pub const typeEnum: Field = Field::new(0x8, 4);
    pub const resetId: Field = Field::new(0xc, 4);
    pub const isEngine: Field = Field::new(0x14, 4);
    pub const rlEngId: Field = Field::new(0x18, 4);
    pub const runlistPriBase: Field = Field::new(0x1c, 4);
}
pub mod NV2080_CTRL_FIFO_GET_DEVICE_INFO_TABLE_PARAMS {
    use super::*;
    pub const SIZE: usize = 0xc8c;
    pub const baseIndex: Field = Field::new(0, 4);
    pub const numEntries: Field = Field::new(0x4, 4);
    pub const bMore: Field = Field::new(0x8, 1);
    pub const entries: Array = Array::new(0xc, 100, 32);
}
pub mod NV2080_CTRL_FIFO_DEVICE_ENTRY {
    use super::*;
    pub const SIZE: usize = 0x64;
    pub const engineData: Array = Array::new(0, 4, 16);
    pub const pbdmaIds: Array = Array::new(0x40, 4, 2);
    pub const pbdmaFaultIds: Array = Array::new(0x48, 4, 2);
    pub const numPbdmas: Field = Field::new(0x50, 4);
    pub const engineName: Field = Field::new(0x54, 16);
}
pub mod NV2080_CTRL_INTERNAL_INTR_GET_KERNEL_TABLE_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x814;
    pub const tableLen: Field = Field::new(0, 4);
    pub const table: Array = Array::new(0x4, 16, 128);
    pub const subtreeMap: Array = Array::new(0x804, 2, 7);
}
pub mod NV2080_CTRL_INTERNAL_INTR_GET_KERNEL_TABLE_ENTRY {
    use super::*;
    pub const SIZE: usize = 0x10;
    pub const engineIdx: Field = Field::new(0, 2);
    pub const vectorStall: Field = Field::new(0x8, 4);
    pub const vectorNonStall: Field = Field::new(0xc, 4);
}
pub mod NV2080_INTR_CATEGORY_SUBTREE_MAP {
    use super::*;
    pub const SIZE: usize = 0x2;
    pub const subtreeStart: Field = Field::new(0, 1);
    pub const subtreeEnd: Field = Field::new(0x1, 1);
    pub const subtreeMask: Field = Field::MISSING;
}
pub mod NV2080_CTRL_GPU_GET_ENGINES_V2_PARAMS {
    use super::*;
    pub const SIZE: usize = 0xfc;
    pub const engineCount: Field = Field::new(0, 4);
    pub const engineList: Array = Array::new(0x4, 4, 62);
}
pub mod NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x84;
    pub const gpuNameStringFlags: Field = Field::new(0, 4);
    pub const ascii: Field = Field::new(0x4, 64);
    pub const unicode: Array = Array::new(0x4, 2, 64);
}
pub mod NV2080_CTRL_INTERNAL_GPU_GET_CHIP_INFO_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x5c;
    pub const bar1Size: Field = Field::new(0xc, 4);
    pub const pciDeviceId: Field = Field::new(0x10, 4);
    pub const pciSubDeviceId: Field = Field::new(0x14, 4);
    pub const pciRevisionId: Field = Field::new(0x18, 4);
    pub const regBases: Array = Array::new(0x1c, 4, 16);
}
pub mod NV2080_CTRL_INTERNAL_FIFO_GET_NUM_CHANNELS_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x8;
    pub const numChannels: Field = Field::new(0x4, 4);
}
pub mod NV2080_CTRL_INTERNAL_GMMU_REGISTER_FAULT_BUFFER_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x810;
    pub const faultBufferSize: Field = Field::new(0x8, 4);
    pub const faultBufferPteArray: Array = Array::new(0x10, 8, 256);
}
pub mod NV2080_CTRL_INTERNAL_GMMU_GET_STATIC_INFO_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x10;
    pub const replayableFaultBufferSize: Field = Field::new(0, 4);
    pub const nonReplayableFaultBufferSize: Field = Field::new(0x8, 4);
}
pub mod NV2080_CTRL_INTERNAL_MEMSYS_GET_STATIC_CONFIG_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x38;
    pub const bUseRawModeComptaglineAllocation: Field = Field::new(0x2, 1);
    pub const bDisableCompbitBacking: Field = Field::new(0x3, 1);
    pub const l2CacheSize: Field = Field::new(0x8, 8);
    pub const bFbpaPresent: Field = Field::new(0x11, 1);
    pub const comprPageSize: Field = Field::new(0x14, 4);
    pub const comprPageShift: Field = Field::new(0x18, 4);
    pub const ramType: Field = Field::new(0x20, 4);
    pub const ltcCount: Field = Field::new(0x24, 4);
    pub const ltsPerLtcCount: Field = Field::new(0x28, 4);
}
pub mod NV2080_CTRL_INTERNAL_CONF_COMPUTE_GET_STATIC_INFO_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x2;
    pub const bIsBar1Trusted: Field = Field::new(0, 1);
    pub const bIsPcieTrusted: Field = Field::new(0x1, 1);
}
pub mod NV2080_CTRL_CE_GET_FAULT_METHOD_BUFFER_SIZE_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x4;
    pub const size: Field = Field::new(0, 4);
}
pub mod NV2080_CTRL_CE_GET_CE_PCE_MASK_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x8;
    pub const ceEngineType: Field = Field::new(0, 4);
    pub const pceMask: Field = Field::new(0x4, 4);
}
pub mod NV2080_CTRL_CE_GET_ALL_CAPS_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x44;
    pub const capsTbl: Array = Array::new(0, 2, 32);
    pub const present: Field = Field::new(0x40, 4);
}
pub mod NV2080_CTRL_CE_GET_CAPS_V2_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x8;
    pub const ceEngineType: Field = Field::new(0, 4);
    pub const capsTbl: Array = Array::new(0x4, 1, 2);
}
pub mod NV2080_CTRL_INTERNAL_STATIC_GR_GET_INFO_PARAMS {
    use super::*;
    pub const SIZE: usize = 0xd40;
    pub const infoList: Array = Array::new(0, 8, 53);
}
pub mod NV2080_CTRL_INTERNAL_GR_INFO {
    use super::*;
    pub const SIZE: usize = 0x8;
    pub const index: Field = Field::new(0, 4);
    pub const data: Field = Field::new(0x4, 4);
}
pub const NV0080_CTRL_GR_INFO_INDEX_MAX_SUBCONTEXT_COUNT: u32 = 0x2c;
pub const NV0080_CTRL_GR_INFO_INDEX_MAX_THREADS_PER_WARP: u32 = 0xe;
pub const NV0080_CTRL_GR_INFO_INDEX_MAX_WARPS_PER_SM: u32 = 0xd;
pub const NV0080_CTRL_GR_INFO_INDEX_SHADER_PIPE_COUNT: u32 = 0x7;
pub const NV0080_CTRL_GR_INFO_INDEX_SHADER_PIPE_SUB_COUNT: u32 = 0x9;
pub const NV0080_CTRL_GR_INFO_INDEX_SM_VERSION: u32 = 0xc;
pub const NV0080_CTRL_GR_INFO_INDEX_LITTER_NUM_GPCS: u32 = 0x14;
pub const NV0080_CTRL_GR_INFO_INDEX_LITTER_NUM_TPC_PER_GPC: u32 = 0x17;
pub const NV0080_CTRL_GR_INFO_INDEX_LITTER_NUM_SM_PER_TPC: u32 = 0x20;
pub mod NV2080_CTRL_INTERNAL_STATIC_GR_GET_FLOORSWEEPING_MASKS_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x940;
}
pub mod NV2080_CTRL_INTERNAL_STATIC_GR_FLOORSWEEPING_MASKS {
    use super::*;
    pub const SIZE: usize = 0x128;
    pub const gpcMask: Field = Field::new(0, 4);
    pub const physGpcMask: Field = Field::new(0x64, 4);
    pub const tpcMask: Array = Array::new(0x4, 4, 12);
    pub const tpcCount: Array = Array::new(0x34, 4, 12);
    pub const mmuPerGpc: Array = Array::new(0x68, 4, 12);
}
pub mod NV2080_CTRL_INTERNAL_STATIC_GR_GLOBAL_SM_ORDER {
    use super::*;
    pub const SIZE: usize = 0xb44;
    pub const globalSmId: Array = Array::new(0, 12, 240);
    pub const numSm: Field = Field::new(0xb40, 2);
    pub const numTpc: Field = Field::new(0xb42, 2);
    pub const gpcId: Field = Field::new(0, 2);
    pub const localTpcId: Field = Field::new(0x2, 2);
    pub const localSmId: Field = Field::new(0x4, 2);
    pub const globalTpcId: Field = Field::new(0x6, 2);
    pub const virtualGpcId: Field = Field::new(0x8, 2);
    pub const migratableTpcId: Field = Field::new(0xa, 2);
}
pub mod NV2080_CTRL_INTERNAL_STATIC_GR_GET_CONTEXT_BUFFERS_INFO_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x640;
    pub const engine: Array = Array::new(0, 8, 25);
}
pub mod NV2080_CTRL_INTERNAL_ENGINE_CONTEXT_BUFFER_INFO {
    use super::*;
    pub const SIZE: usize = 0x8;
    pub const size: Field = Field::new(0, 4);
    pub const alignment: Field = Field::new(0x4, 4);
}
pub mod NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x218;
    pub const bDisable: Field = Field::new(0, 1);
    pub const numChannels: Field = Field::new(0x4, 4);
    pub const bOnlyDisableScheduling: Field = Field::new(0x8, 1);
    pub const hClientList: Array = Array::new(0x18, 4, 64);
    pub const hChannelList: Array = Array::new(0x118, 4, 64);
}
pub mod NV2080_CTRL_GPU_GET_GID_INFO_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x10c;
    pub const flags: Field = Field::new(0x4, 4);
    pub const length: Field = Field::new(0x8, 4);
    pub const data: Field = Field::new(0xc, 256);
}
pub mod NV2080_CTRL_CMD_SET_GPFIFO_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x18;
    pub const hChannel: Field = Field::new(0, 4);
    pub const base: Field = Field::new(0x8, 8);
    pub const numEntries: Field = Field::new(0x10, 4);
}
pub mod NVA06C_CTRL_TIMESLICE_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x8;
    pub const timesliceUs: Field = Field::new(0, 8);
}
pub mod NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS {
    use super::*;
    pub const SIZE: usize = 0x2;
    pub const bEnable: Field = Field::new(0, 1);
}
pub mod NV90F1_CTRL_VASPACE_COPY_SERVER_RESERVED_PDES_PARAMS {
    use super::*;
    pub const SIZE: usize = 0xb8;
    pub const root_physAddress: Field = Field::new(0x28, 8);
    pub const root_aperture: Field = Field::new(0x38, 4);
}
pub mod NV2080_CTRL_INTERNAL_GMMU_COPY_RESERVED_SPLIT_GVASPACE_PDES_TO_SERVER_PARAMS {
    use super::*;
    pub const SIZE: usize = 0xb8;
    pub const root_physAddress: Field = Field::new(0x28, 8);
    pub const root_aperture: Field = Field::new(0x38, 4);
}
pub const RPC_NAMES: &[(u32, &str)] = &[
    (0, "NOP"),
    (0x1, "SET_GUEST_SYSTEM_INFO"),
    (0x2, "ALLOC_ROOT"),
    (0x3, "ALLOC_DEVICE"),
    (0x4, "ALLOC_MEMORY"),
    (0x5, "ALLOC_CTX_DMA"),
    (0x6, "ALLOC_CHANNEL_DMA"),
    (0x7, "MAP_MEMORY"),
    (0x8, "BIND_CTX_DMA"),
    (0x9, "ALLOC_OBJECT"),
    (0xa, "FREE"),
    (0xb, "LOG"),
    (0xc, "ALLOC_VIDMEM"),
    (0xd, "UNMAP_MEMORY"),
    (0xe, "MAP_MEMORY_DMA"),
    (0xf, "UNMAP_MEMORY_DMA"),
    (0x10, "GET_EDID"),
    (0x11, "ALLOC_DISP_CHANNEL"),
    (0x12, "ALLOC_DISP_OBJECT"),
    (0x13, "ALLOC_SUBDEVICE"),
    (0x14, "ALLOC_DYNAMIC_MEMORY"),
    (0x15, "DUP_OBJECT"),
    (0x16, "IDLE_CHANNELS"),
    (0x17, "ALLOC_EVENT"),
    (0x18, "SEND_EVENT"),
    (0x19, "REMAPPER_CONTROL"),
    (0x1a, "DMA_CONTROL"),
    (0x1b, "DMA_FILL_PTE_MEM"),
    (0x1c, "MANAGE_HW_RESOURCE"),
    (0x1d, "BIND_ARBITRARY_CTX_DMA"),
    (0x1e, "CREATE_FB_SEGMENT"),
    (0x1f, "DESTROY_FB_SEGMENT"),
    (0x20, "ALLOC_SHARE_DEVICE"),
    (0x21, "DEFERRED_API_CONTROL"),
    (0x22, "REMOVE_DEFERRED_API"),
    (0x23, "SIM_ESCAPE_READ"),
    (0x24, "SIM_ESCAPE_WRITE"),
    (0x25, "SIM_MANAGE_DISPLAY_CONTEXT_DMA"),
    (0x26, "FREE_VIDMEM_VIRT"),
    (0x27, "PERF_GET_PSTATE_INFO"),
    (0x28, "PERF_GET_PERFMON_SAMPLE"),
    (0x29, "PERF_GET_VIRTUAL_PSTATE_INFO"),
    (0x2a, "PERF_GET_LEVEL_INFO"),
    (0x2b, "MAP_SEMA_MEMORY"),
    (0x2c, "UNMAP_SEMA_MEMORY"),
    (0x2d, "SET_SURFACE_PROPERTIES"),
    (0x2e, "CLEANUP_SURFACE"),
    (0x2f, "UNLOADING_GUEST_DRIVER"),
    (0x30, "TDR_SET_TIMEOUT_STATE"),
    (0x31, "SWITCH_TO_VGA"),
    (0x32, "GPU_EXEC_REG_OPS"),
    (0x33, "GET_STATIC_INFO"),
    (0x34, "ALLOC_VIRTMEM"),
    (0x35, "UPDATE_PDE_2"),
    (0x36, "SET_PAGE_DIRECTORY"),
    (0x37, "GET_STATIC_PSTATE_INFO"),
    (0x38, "TRANSLATE_GUEST_GPU_PTES"),
    (0x39, "RESERVED_57"),
    (0x3a, "RESET_CURRENT_GR_CONTEXT"),
    (0x3b, "SET_SEMA_MEM_VALIDATION_STATE"),
    (0x3c, "GET_ENGINE_UTILIZATION"),
    (0x3d, "UPDATE_GPU_PDES"),
    (0x3e, "GET_ENCODER_CAPACITY"),
    (0x3f, "VGPU_PF_REG_READ32"),
    (0x40, "SET_GUEST_SYSTEM_INFO_EXT"),
    (0x41, "GET_GSP_STATIC_INFO"),
    (0x42, "RMFS_INIT"),
    (0x43, "RMFS_CLOSE_QUEUE"),
    (0x44, "RMFS_CLEANUP"),
    (0x45, "RMFS_TEST"),
    (0x46, "UPDATE_BAR_PDE"),
    (0x47, "CONTINUATION_RECORD"),
    (0x48, "GSP_SET_SYSTEM_INFO"),
    (0x49, "SET_REGISTRY"),
    (0x4a, "GSP_INIT_POST_OBJGPU"),
    (0x4b, "SUBDEV_EVENT_SET_NOTIFICATION"),
    (0x4c, "GSP_RM_CONTROL"),
    (0x4d, "GET_STATIC_INFO2"),
    (0x4e, "DUMP_PROTOBUF_COMPONENT"),
    (0x4f, "UNSET_PAGE_DIRECTORY"),
    (0x50, "GET_CONSOLIDATED_STATIC_INFO"),
    (0x51, "GMMU_REGISTER_FAULT_BUFFER"),
    (0x52, "GMMU_UNREGISTER_FAULT_BUFFER"),
    (0x53, "GMMU_REGISTER_CLIENT_SHADOW_FAULT_BUFFER"),
    (0x54, "GMMU_UNREGISTER_CLIENT_SHADOW_FAULT_BUFFER"),
    (0x55, "CTRL_SET_VGPU_FB_USAGE"),
    (0x56, "CTRL_NVFBC_SW_SESSION_UPDATE_INFO"),
    (0x57, "CTRL_NVENC_SW_SESSION_UPDATE_INFO"),
    (0x58, "CTRL_RESET_CHANNEL"),
    (0x59, "CTRL_RESET_ISOLATED_CHANNEL"),
    (0x5a, "CTRL_GPU_HANDLE_VF_PRI_FAULT"),
    (0x5b, "CTRL_CLK_GET_EXTENDED_INFO"),
    (0x5c, "CTRL_PERF_BOOST"),
    (0x5d, "CTRL_PERF_VPSTATES_GET_CONTROL"),
    (0x5e, "CTRL_GET_ZBC_CLEAR_TABLE"),
    (0x5f, "CTRL_SET_ZBC_COLOR_CLEAR"),
    (0x60, "CTRL_SET_ZBC_DEPTH_CLEAR"),
    (0x61, "CTRL_GPFIFO_SCHEDULE"),
    (0x62, "CTRL_SET_TIMESLICE"),
    (0x63, "CTRL_PREEMPT"),
    (0x64, "CTRL_FIFO_DISABLE_CHANNELS"),
    (0x65, "CTRL_SET_TSG_INTERLEAVE_LEVEL"),
    (0x66, "CTRL_SET_CHANNEL_INTERLEAVE_LEVEL"),
    (0x67, "GSP_RM_ALLOC"),
    (0x68, "CTRL_GET_P2P_CAPS_V2"),
    (0x69, "CTRL_CIPHER_AES_ENCRYPT"),
    (0x6a, "CTRL_CIPHER_SESSION_KEY"),
    (0x6b, "CTRL_CIPHER_SESSION_KEY_STATUS"),
    (0x6c, "CTRL_DBG_CLEAR_ALL_SM_ERROR_STATES"),
    (0x6d, "CTRL_DBG_READ_ALL_SM_ERROR_STATES"),
    (0x6e, "CTRL_DBG_SET_EXCEPTION_MASK"),
    (0x6f, "CTRL_GPU_PROMOTE_CTX"),
    (0x70, "CTRL_GR_CTXSW_PREEMPTION_BIND"),
    (0x71, "CTRL_GR_SET_CTXSW_PREEMPTION_MODE"),
    (0x72, "CTRL_GR_CTXSW_ZCULL_BIND"),
    (0x73, "CTRL_GPU_INITIALIZE_CTX"),
    (0x74, "CTRL_VASPACE_COPY_SERVER_RESERVED_PDES"),
    (0x75, "CTRL_FIFO_CLEAR_FAULTED_BIT"),
    (0x76, "CTRL_GET_LATEST_ECC_ADDRESSES"),
    (0x77, "CTRL_MC_SERVICE_INTERRUPTS"),
    (0x78, "CTRL_DMA_SET_DEFAULT_VASPACE"),
    (0x79, "CTRL_GET_CE_PCE_MASK"),
    (0x7a, "CTRL_GET_ZBC_CLEAR_TABLE_ENTRY"),
    (0x7b, "CTRL_GET_NVLINK_PEER_ID_MASK"),
    (0x7c, "CTRL_GET_NVLINK_STATUS"),
    (0x7d, "CTRL_GET_P2P_CAPS"),
    (0x7e, "CTRL_GET_P2P_CAPS_MATRIX"),
    (0x7f, "RESERVED_0"),
    (0x80, "CTRL_RESERVE_PM_AREA_SMPC"),
    (0x81, "CTRL_RESERVE_HWPM_LEGACY"),
    (0x82, "CTRL_B0CC_EXEC_REG_OPS"),
    (0x83, "CTRL_BIND_PM_RESOURCES"),
    (0x84, "CTRL_DBG_SUSPEND_CONTEXT"),
    (0x85, "CTRL_DBG_RESUME_CONTEXT"),
    (0x86, "CTRL_DBG_EXEC_REG_OPS"),
    (0x87, "CTRL_DBG_SET_MODE_MMU_DEBUG"),
    (0x88, "CTRL_DBG_READ_SINGLE_SM_ERROR_STATE"),
    (0x89, "CTRL_DBG_CLEAR_SINGLE_SM_ERROR_STATE"),
    (0x8a, "CTRL_DBG_SET_MODE_ERRBAR_DEBUG"),
    (0x8b, "CTRL_DBG_SET_NEXT_STOP_TRIGGER_TYPE"),
    (0x8c, "CTRL_ALLOC_PMA_STREAM"),
    (0x8d, "CTRL_PMA_STREAM_UPDATE_GET_PUT"),
    (0x8e, "CTRL_FB_GET_INFO_V2"),
    (0x8f, "CTRL_FIFO_SET_CHANNEL_PROPERTIES"),
    (0x90, "CTRL_GR_GET_CTX_BUFFER_INFO"),
    (0x91, "CTRL_KGR_GET_CTX_BUFFER_PTES"),
    (0x92, "CTRL_GPU_EVICT_CTX"),
    (0x93, "CTRL_FB_GET_FS_INFO"),
    (0x94, "CTRL_GRMGR_GET_GR_FS_INFO"),
    (0x95, "CTRL_STOP_CHANNEL"),
    (0x96, "CTRL_GR_PC_SAMPLING_MODE"),
    (0x97, "CTRL_PERF_RATED_TDP_GET_STATUS"),
    (0x98, "CTRL_PERF_RATED_TDP_SET_CONTROL"),
    (0x99, "CTRL_FREE_PMA_STREAM"),
    (0x9a, "CTRL_TIMER_SET_GR_TICK_FREQ"),
    (0x9b, "CTRL_FIFO_SETUP_VF_ZOMBIE_SUBCTX_PDB"),
    (0x9c, "GET_CONSOLIDATED_GR_STATIC_INFO"),
    (0x9d, "CTRL_DBG_SET_SINGLE_SM_SINGLE_STEP"),
    (0x9e, "CTRL_GR_GET_TPC_PARTITION_MODE"),
    (0x9f, "CTRL_GR_SET_TPC_PARTITION_MODE"),
    (0xa0, "UVM_PAGING_CHANNEL_ALLOCATE"),
    (0xa1, "UVM_PAGING_CHANNEL_DESTROY"),
    (0xa2, "UVM_PAGING_CHANNEL_MAP"),
    (0xa3, "UVM_PAGING_CHANNEL_UNMAP"),
    (0xa4, "UVM_PAGING_CHANNEL_PUSH_STREAM"),
    (0xa5, "UVM_PAGING_CHANNEL_SET_HANDLES"),
    (0xa6, "UVM_METHOD_STREAM_GUEST_PAGES_OPERATION"),
    (0xa7, "CTRL_INTERNAL_QUIESCE_PMA_CHANNEL"),
    (0xa8, "DCE_RM_INIT"),
    (0xa9, "REGISTER_VIRTUAL_EVENT_BUFFER"),
    (0xaa, "CTRL_EVENT_BUFFER_UPDATE_GET"),
    (0xab, "GET_PLCABLE_ADDRESS_KIND"),
    (0xac, "CTRL_PERF_LIMITS_SET_STATUS_V2"),
    (0xad, "CTRL_INTERNAL_SRIOV_PROMOTE_PMA_STREAM"),
    (0xae, "CTRL_GET_MMU_DEBUG_MODE"),
    (0xaf, "CTRL_INTERNAL_PROMOTE_FAULT_METHOD_BUFFERS"),
    (0xb0, "CTRL_FLCN_GET_CTX_BUFFER_SIZE"),
    (0xb1, "CTRL_FLCN_GET_CTX_BUFFER_INFO"),
    (0xb2, "DISABLE_CHANNELS"),
    (0xb3, "CTRL_FABRIC_MEMORY_DESCRIBE"),
    (0xb4, "CTRL_FABRIC_MEM_STATS"),
    (0xb5, "SAVE_HIBERNATION_DATA"),
    (0xb6, "RESTORE_HIBERNATION_DATA"),
    (0xb7, "CTRL_INTERNAL_MEMSYS_SET_ZBC_REFERENCED"),
    (0xb8, "CTRL_EXEC_PARTITIONS_CREATE"),
    (0xb9, "CTRL_EXEC_PARTITIONS_DELETE"),
    (0xba, "CTRL_GPFIFO_GET_WORK_SUBMIT_TOKEN"),
    (0xbb, "CTRL_GPFIFO_SET_WORK_SUBMIT_TOKEN_NOTIF_INDEX"),
    (0xbc, "PMA_SCRUBBER_SHARED_BUFFER_GUEST_PAGES_OPERATION"),
    (0xbd, "CTRL_MASTER_GET_VIRTUAL_FUNCTION_ERROR_CONT_INTR_MASK"),
    (0xbe, "SET_SYSMEM_DIRTY_PAGE_TRACKING_BUFFER"),
    (0xbf, "CTRL_SUBDEVICE_GET_P2P_CAPS"),
    (0xc0, "CTRL_BUS_SET_P2P_MAPPING"),
    (0xc1, "CTRL_BUS_UNSET_P2P_MAPPING"),
    (0xc2, "CTRL_FLA_SETUP_INSTANCE_MEM_BLOCK"),
    (0xc3, "CTRL_GPU_MIGRATABLE_OPS"),
    (0xc4, "CTRL_GET_TOTAL_HS_CREDITS"),
    (0xc5, "CTRL_GET_HS_CREDITS"),
    (0xc6, "CTRL_SET_HS_CREDITS"),
    (0xc7, "CTRL_PM_AREA_PC_SAMPLER"),
    (0xc8, "INVALIDATE_TLB"),
    (0xc9, "RESERVED_201"),
    (0xca, "ECC_NOTIFIER_WRITE_ACK"),
    (0xcb, "NUM_FUNCTIONS"),
    (0x1001, "GSP_INIT_DONE"),
    (0x1002, "GSP_RUN_CPU_SEQUENCER"),
    (0x1003, "POST_EVENT"),
    (0x1004, "RC_TRIGGERED"),
    (0x1005, "MMU_FAULT_QUEUED"),
    (0x1006, "OS_ERROR_LOG"),
    (0x1007, "RG_LINE_INTR"),
    (0x1008, "GPUACCT_PERFMON_UTIL_SAMPLES"),
    (0x1009, "SIM_READ"),
    (0x100a, "SIM_WRITE"),
    (0x100b, "SEMAPHORE_SCHEDULE_CALLBACK"),
    (0x100c, "UCODE_LIBOS_PRINT"),
    (0x100d, "VGPU_GSP_PLUGIN_TRIGGERED"),
    (0x100e, "PERF_GPU_BOOST_SYNC_LIMITS_CALLBACK"),
    (0x100f, "PERF_BRIDGELESS_INFO_UPDATE"),
    (0x1010, "VGPU_CONFIG"),
    (0x1011, "DISPLAY_MODESET"),
    (0x1012, "EXTDEV_INTR_SERVICE"),
    (0x1013, "NVLINK_INBAND_RECEIVED_DATA_256"),
    (0x1014, "NVLINK_INBAND_RECEIVED_DATA_512"),
    (0x1015, "NVLINK_INBAND_RECEIVED_DATA_1024"),
    (0x1016, "NVLINK_INBAND_RECEIVED_DATA_2048"),
    (0x1017, "NVLINK_INBAND_RECEIVED_DATA_4096"),
    (0x1018, "TIMED_SEMAPHORE_RELEASE"),
    (0x1019, "NVLINK_IS_GPU_DEGRADED"),
    (0x101a, "PFM_REQ_HNDLR_STATE_SYNC_CALLBACK"),
    (0x101b, "GSP_SEND_USER_SHARED_DATA"),
    (0x101c, "NVLINK_FAULT_UP"),
    (0x101d, "GSP_LOCKDOWN_NOTICE"),
    (0x101e, "MIG_CI_CONFIG_UPDATE"),
    (0x101f, "NUM_EVENTS"),
];
