/* SPDX-License-Identifier: GPL-2.0 OR MIT */

/*
 * Prints, as Rust, the layouts and numbers of the driver's interface to its GSP firmware. Only what
 * the software GPU uses is here. build.rs compiles this against the driver's own headers and runs
 * it on the build machine.
 */

#include "core/core.h"
#include "gpu/gpu.h"
#include "alloc/alloc_channel.h"
#include "class/cl90f1.h"
#include "ctrl/ctrl0080.h"
#include "ctrl/ctrl2080.h"
#include "ctrl/ctrl90f1.h"
#include "ctrl/ctrla06c.h"
#include "ctrl/ctrla06f.h"
#include "ctrl/ctrlc36f.h"
#include "gpu/fifo/kernel_fifo.h"
#include "gpu/fsp/kern_fsp.h"
#include "gpu/gpu_access.h"
#include "gpu/gsp/gsp_init_args.h"
#include "gpu/gsp/gsp_static_config.h"
#include "gpu/gsp/kernel_gsp.h"
#include "gpu/intr/engine_idx.h"
#include "gsp/gspifpub.h"
#include "libos_init_args.h"
#include "msgq/msgq_priv.h"
#include "nverror.h"
#include "nvos.h"
#include "vgpu/rpc_headers.h"

#define RPC_STRUCTURES
#define RPC_GENERIC_UNION
#include "g_rpc-structures.h"
#define RPC_MESSAGE_STRUCTURES
#define RPC_MESSAGE_GENERIC_UNION
#include "g_rpc-message-header.h"
#include "gpu/gsp/message_queue.h"
#include "gpu/gsp/message_queue_priv.h"

extern int printf(const char *, ...);

#define STRUCT(type) \
	printf("pub mod %s {\n    use super::*;\n    pub const SIZE: usize = %#lx;\n", \
	       #type, (unsigned long)sizeof(type));
#define FIELD_AS(type, name, member) \
	printf("    pub const %s: Field = Field::new(%#lx, %lu);\n", #name, \
	       (unsigned long)__builtin_offsetof(type, member), \
	       (unsigned long)sizeof(((type *)0)->member));
#define FIELD(type, member) FIELD_AS(type, member, member)
#define ARRAY_AS(type, name, member) \
	printf("    pub const %s: Array = Array::new(%#lx, %lu, %lu);\n", #name, \
	       (unsigned long)__builtin_offsetof(type, member), \
	       (unsigned long)sizeof(((type *)0)->member[0]), \
	       (unsigned long)(sizeof(((type *)0)->member) / sizeof(((type *)0)->member[0])));
#define ARRAY(type, member) ARRAY_AS(type, member, member)
/*
 * Members that the structure of another driver has. DRIVER is the first number of the version, from
 * build.rs. A write to one that is missing has no effect.
 */
#define NO_FIELD(name) printf("    pub const %s: Field = Field::MISSING;\n", #name);
#if DRIVER < 570
#define FIELD_BEFORE_570(type, name, member) FIELD_AS(type, name, member)
#define FIELD_SINCE_570(type, name, member) NO_FIELD(name)
/* No message and no control has this number. */
#define VALUE_SINCE_570(name) printf("pub const %s: u32 = %#x;\n", #name, -1);
#else
#define FIELD_BEFORE_570(type, name, member) NO_FIELD(name)
#define FIELD_SINCE_570(type, name, member) FIELD_AS(type, name, member)
#define VALUE_SINCE_570(name) VALUE(name)
#endif
#define NO_ARRAY(name) printf("    pub const %s: Array = Array::MISSING;\n", #name);
#if DRIVER < 595
#define FIELD_BEFORE_595(type, member) FIELD(type, member)
#define ARRAY_BEFORE_595(type, name, member) ARRAY_AS(type, name, member)
#else
#define FIELD_BEFORE_595(type, member) NO_FIELD(member)
#define ARRAY_BEFORE_595(type, name, member) NO_ARRAY(name)
/* From 595 on message_queue_cpu.c has these numbers, and no header. */
#define GSP_MSG_QUEUE_ELEMENT_SIZE_MIN RM_PAGE_SIZE
#define GSP_MSG_QUEUE_ELEMENT_SIZE_MAX (RM_PAGE_SIZE * 16)
#endif
#define END printf("}\n");
#define VALUE(name) printf("pub const %s: u32 = %#lx;\n", #name, (unsigned long)(NvU32)(name));
#define VALUE_AS(name, expression) \
	printf("pub const %s: u32 = %#lx;\n", #name, (unsigned long)(NvU32)(expression));

static void queues(void)
{
	STRUCT(GSP_MSG_QUEUE_ELEMENT)
	FIELD(GSP_MSG_QUEUE_ELEMENT, checkSum)
	FIELD(GSP_MSG_QUEUE_ELEMENT, seqNum)
	FIELD(GSP_MSG_QUEUE_ELEMENT, elemCount)
	FIELD(GSP_MSG_QUEUE_ELEMENT, rpc)
	END
	STRUCT(rpc_message_header_v)
	FIELD(rpc_message_header_v, header_version)
	FIELD(rpc_message_header_v, signature)
	FIELD(rpc_message_header_v, length)
	FIELD(rpc_message_header_v, function)
	FIELD(rpc_message_header_v, rpc_result)
	FIELD(rpc_message_header_v, rpc_result_private)
	FIELD(rpc_message_header_v, sequence)
	END
	STRUCT(msgqTxHeader)
	FIELD(msgqTxHeader, version)
	FIELD(msgqTxHeader, size)
	FIELD(msgqTxHeader, msgSize)
	FIELD(msgqTxHeader, msgCount)
	FIELD(msgqTxHeader, writePtr)
	FIELD(msgqTxHeader, flags)
	FIELD(msgqTxHeader, rxHdrOff)
	FIELD(msgqTxHeader, entryOff)
	END
	VALUE(NV_VGPU_MSG_SIGNATURE_VALID)
	VALUE(GSP_MSG_QUEUE_ELEMENT_SIZE_MIN)
	VALUE(GSP_MSG_QUEUE_ELEMENT_SIZE_MAX)
}

static void boot(void)
{
	STRUCT(NVDM_PAYLOAD_COT)
	FIELD(NVDM_PAYLOAD_COT, gspBootArgsSysmemOffset)
	END
	STRUCT(GSP_FMC_BOOT_PARAMS)
	FIELD_AS(GSP_FMC_BOOT_PARAMS, gspRmParams_target, gspRmParams.target)
	FIELD_AS(GSP_FMC_BOOT_PARAMS, gspRmParams_bootArgsOffset, gspRmParams.bootArgsOffset)
	END
	STRUCT(LibosMemoryRegionInitArgument)
	FIELD(LibosMemoryRegionInitArgument, id8)
	FIELD(LibosMemoryRegionInitArgument, pa)
	FIELD(LibosMemoryRegionInitArgument, size)
	END
	STRUCT(MESSAGE_QUEUE_INIT_ARGUMENTS)
	FIELD(MESSAGE_QUEUE_INIT_ARGUMENTS, sharedMemPhysAddr)
	FIELD(MESSAGE_QUEUE_INIT_ARGUMENTS, pageTableEntryCount)
	FIELD(MESSAGE_QUEUE_INIT_ARGUMENTS, cmdQueueOffset)
	FIELD(MESSAGE_QUEUE_INIT_ARGUMENTS, statQueueOffset)
	END
}

static void rpcs(void)
{
	STRUCT(rpc_gsp_rm_control_v)
	FIELD(rpc_gsp_rm_control_v, hClient)
	FIELD(rpc_gsp_rm_control_v, hObject)
	FIELD(rpc_gsp_rm_control_v, cmd)
	FIELD(rpc_gsp_rm_control_v, status)
	FIELD(rpc_gsp_rm_control_v, paramsSize)
	END
	STRUCT(rpc_gsp_rm_alloc_v)
	FIELD(rpc_gsp_rm_alloc_v, hClient)
	FIELD(rpc_gsp_rm_alloc_v, hParent)
	FIELD(rpc_gsp_rm_alloc_v, hObject)
	FIELD(rpc_gsp_rm_alloc_v, hClass)
	FIELD(rpc_gsp_rm_alloc_v, status)
	FIELD(rpc_gsp_rm_alloc_v, paramsSize)
	END
	STRUCT(rpc_free_v)
	FIELD_AS(rpc_free_v, hRoot, params.hRoot)
	FIELD_AS(rpc_free_v, hObjectParent, params.hObjectParent)
	FIELD_AS(rpc_free_v, hObjectOld, params.hObjectOld)
	FIELD_AS(rpc_free_v, status, params.status)
	END
	STRUCT(rpc_dup_object_v)
	FIELD_AS(rpc_dup_object_v, hClient, params.hClient)
	FIELD_AS(rpc_dup_object_v, hParent, params.hParent)
	FIELD_AS(rpc_dup_object_v, hObject, params.hObject)
	FIELD_AS(rpc_dup_object_v, hClientSrc, params.hClientSrc)
	FIELD_AS(rpc_dup_object_v, hObjectSrc, params.hObjectSrc)
	FIELD_AS(rpc_dup_object_v, status, params.status)
	END
	STRUCT(rpc_set_page_directory_v)
	FIELD(rpc_set_page_directory_v, hClient)
	FIELD(rpc_set_page_directory_v, hDevice)
	FIELD_AS(rpc_set_page_directory_v, physAddress, params.physAddress)
	FIELD_AS(rpc_set_page_directory_v, flags, params.flags)
	FIELD_AS(rpc_set_page_directory_v, hVASpace, params.hVASpace)
	END
	STRUCT(rpc_unset_page_directory_v)
	FIELD(rpc_unset_page_directory_v, hClient)
	FIELD(rpc_unset_page_directory_v, hDevice)
	FIELD_AS(rpc_unset_page_directory_v, hVASpace, params.hVASpace)
	END
	STRUCT(rpc_update_bar_pde_v)
	FIELD_AS(rpc_update_bar_pde_v, barType, info.barType)
	FIELD_AS(rpc_update_bar_pde_v, entryValue, info.entryValue)
	FIELD_AS(rpc_update_bar_pde_v, entryLevelShift, info.entryLevelShift)
	END
	STRUCT(rpc_os_error_log_v)
	FIELD(rpc_os_error_log_v, exceptType)
	FIELD(rpc_os_error_log_v, runlistId)
	FIELD(rpc_os_error_log_v, chid)
	FIELD(rpc_os_error_log_v, errString)
	END
	VALUE(NV_RPC_UPDATE_PDE_BAR_1)
	VALUE(NV_RPC_UPDATE_PDE_BAR_2)
	VALUE(NV_VGPU_MSG_FUNCTION_FREE)
	VALUE(NV_VGPU_MSG_FUNCTION_DUP_OBJECT)
	VALUE(NV_VGPU_MSG_FUNCTION_UNLOADING_GUEST_DRIVER)
	VALUE(NV_VGPU_MSG_FUNCTION_SET_PAGE_DIRECTORY)
	VALUE(NV_VGPU_MSG_FUNCTION_UNSET_PAGE_DIRECTORY)
	VALUE(NV_VGPU_MSG_FUNCTION_GET_GSP_STATIC_INFO)
	VALUE(NV_VGPU_MSG_FUNCTION_UPDATE_BAR_PDE)
	VALUE(NV_VGPU_MSG_FUNCTION_CONTINUATION_RECORD)
	VALUE(NV_VGPU_MSG_FUNCTION_GSP_SET_SYSTEM_INFO)
	VALUE(NV_VGPU_MSG_FUNCTION_SET_REGISTRY)
	VALUE(NV_VGPU_MSG_FUNCTION_GSP_RM_CONTROL)
	VALUE(NV_VGPU_MSG_FUNCTION_GSP_RM_ALLOC)
	VALUE_SINCE_570(NV_VGPU_MSG_FUNCTION_INIT_GSP_TRACE_CRASH_BUFFER)
	VALUE(NV_VGPU_MSG_EVENT_GSP_INIT_DONE)
	VALUE(NV_VGPU_MSG_EVENT_OS_ERROR_LOG)
}

static void static_info(void)
{
	STRUCT(GspStaticConfigInfo)
	FIELD_AS(GspStaticConfigInfo, gidInfo_flags, gidInfo.flags)
	FIELD_AS(GspStaticConfigInfo, gidInfo_length, gidInfo.length)
	FIELD_AS(GspStaticConfigInfo, gidInfo_data, gidInfo.data)
	FIELD_AS(GspStaticConfigInfo, numFBRegions, fbRegionInfoParams.numFBRegions)
	ARRAY_AS(GspStaticConfigInfo, fbRegion, fbRegionInfoParams.fbRegion)
	FIELD_BEFORE_570(GspStaticConfigInfo, computeBranding, computeBranding)
	ARRAY(GspStaticConfigInfo, engineCaps)
	FIELD_BEFORE_570(GspStaticConfigInfo, SM_info_version, SM_info.version)
	FIELD_BEFORE_570(GspStaticConfigInfo, SM_info_maxWarpsPerSM, SM_info.maxWarpsPerSM)
	FIELD_BEFORE_570(GspStaticConfigInfo, SM_info_maxThreadsPerWarp, SM_info.maxThreadsPerWarp)
	FIELD_BEFORE_570(GspStaticConfigInfo, SM_info_maxSPPerSM, SM_info.maxSPPerSM)
	FIELD(GspStaticConfigInfo, fb_length)
	FIELD_BEFORE_595(GspStaticConfigInfo, fbio_mask)
	FIELD_BEFORE_595(GspStaticConfigInfo, fb_bus_width)
	FIELD_BEFORE_595(GspStaticConfigInfo, fb_ram_type)
	FIELD_BEFORE_595(GspStaticConfigInfo, fbp_mask)
	FIELD_BEFORE_595(GspStaticConfigInfo, l2_cache_size)
	FIELD(GspStaticConfigInfo, gpuNameString)
	FIELD(GspStaticConfigInfo, gpuShortNameString)
	ARRAY_BEFORE_595(GspStaticConfigInfo, gpuNameString_Unicode, gpuNameString_Unicode)
	FIELD(GspStaticConfigInfo, bIsTesla)
	FIELD(GspStaticConfigInfo, bar1PdeBase)
	FIELD(GspStaticConfigInfo, bar2PdeBase)
	FIELD(GspStaticConfigInfo, bVbiosValid)
	FIELD(GspStaticConfigInfo, hInternalClient)
	FIELD(GspStaticConfigInfo, hInternalDevice)
	FIELD(GspStaticConfigInfo, hInternalSubdevice)
	END
	STRUCT(NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO)
	FIELD(NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO, base)
	FIELD(NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO, limit)
	FIELD(NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO, reserved)
	FIELD(NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO, performance)
	FIELD(NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO, supportCompressed)
	FIELD(NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO, supportISO)
	END
	VALUE(COMPUTE_BRANDING_TYPE_TESLA)
	VALUE(NV2080_CTRL_FB_INFO_RAM_TYPE_HBM3)
	VALUE_AS(NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY, 2)
}

static void allocations(void)
{
	STRUCT(NV_CHANNEL_ALLOC_PARAMS)
	FIELD(NV_CHANNEL_ALLOC_PARAMS, gpFifoOffset)
	FIELD(NV_CHANNEL_ALLOC_PARAMS, gpFifoEntries)
	FIELD(NV_CHANNEL_ALLOC_PARAMS, flags)
	FIELD(NV_CHANNEL_ALLOC_PARAMS, hContextShare)
	FIELD(NV_CHANNEL_ALLOC_PARAMS, hVASpace)
	FIELD(NV_CHANNEL_ALLOC_PARAMS, engineType)
	FIELD_AS(NV_CHANNEL_ALLOC_PARAMS, instanceMem_base, instanceMem.base)
	FIELD_AS(NV_CHANNEL_ALLOC_PARAMS, instanceMem_addressSpace, instanceMem.addressSpace)
	FIELD_AS(NV_CHANNEL_ALLOC_PARAMS, userdMem_base, userdMem.base)
	FIELD_AS(NV_CHANNEL_ALLOC_PARAMS, userdMem_addressSpace, userdMem.addressSpace)
	FIELD_AS(NV_CHANNEL_ALLOC_PARAMS, errorNotifierMem_base, errorNotifierMem.base)
	FIELD_AS(NV_CHANNEL_ALLOC_PARAMS, errorNotifierMem_size, errorNotifierMem.size)
	FIELD_AS(NV_CHANNEL_ALLOC_PARAMS, errorNotifierMem_addressSpace, errorNotifierMem.addressSpace)
	END
	STRUCT(NvNotification)
	FIELD(NvNotification, timeStamp)
	FIELD(NvNotification, info32)
	FIELD(NvNotification, info16)
	FIELD(NvNotification, status)
	END
	VALUE(ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT)
	STRUCT(NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS)
	FIELD(NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS, hVASpace)
	FIELD(NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS, engineType)
	END
	STRUCT(NV_CTXSHARE_ALLOCATION_PARAMETERS)
	FIELD(NV_CTXSHARE_ALLOCATION_PARAMETERS, hVASpace)
	FIELD(NV_CTXSHARE_ALLOCATION_PARAMETERS, subctxId)
	END
	STRUCT(NV_VASPACE_ALLOCATION_PARAMETERS)
	FIELD(NV_VASPACE_ALLOCATION_PARAMETERS, index)
	FIELD(NV_VASPACE_ALLOCATION_PARAMETERS, flags)
	END
	VALUE(NV_VASPACE_ALLOCATION_FLAGS_ENABLE_PAGE_FAULTING)
	VALUE(NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE)
	VALUE_AS(CHANNEL_USERD_INDEX_VALUE_HIGH, DRF_EXTENT(NVOS04_FLAGS_CHANNEL_USERD_INDEX_VALUE))
	VALUE_AS(CHANNEL_USERD_INDEX_VALUE_LOW, DRF_SHIFT(NVOS04_FLAGS_CHANNEL_USERD_INDEX_VALUE))
	VALUE_AS(CHANNEL_USERD_INDEX_PAGE_VALUE_HIGH, DRF_EXTENT(NVOS04_FLAGS_CHANNEL_USERD_INDEX_PAGE_VALUE))
	VALUE_AS(CHANNEL_USERD_INDEX_PAGE_VALUE_LOW, DRF_SHIFT(NVOS04_FLAGS_CHANNEL_USERD_INDEX_PAGE_VALUE))
	VALUE(ADDR_SYSMEM)
	VALUE(ADDR_FBMEM)
}

static void engines(void)
{
	VALUE(NV2080_ENGINE_TYPE_GR0)
	VALUE(NV2080_ENGINE_TYPE_COPY0)
	VALUE(RM_ENGINE_TYPE_GR0)
	VALUE(RM_ENGINE_TYPE_COPY0)
	VALUE_AS(ENG_GR0, ENG_GR(0))
	VALUE_AS(ENG_CE0, ENG_CE(0))
	VALUE_AS(ENG_CE_STEP, ENG_CE(1) - ENG_CE(0))
	VALUE_AS(MC_ENGINE_IDX_GR0, MC_ENGINE_IDX_GRn(0))
	VALUE_AS(MC_ENGINE_IDX_CE0, MC_ENGINE_IDX_CE(0))
	VALUE(MC_ENGINE_IDX_GSP)
	VALUE(MC_ENGINE_IDX_TMR)
	VALUE(MC_ENGINE_IDX_REPLAYABLE_FAULT)
	VALUE(MC_ENGINE_IDX_REPLAYABLE_FAULT_ERROR)
	VALUE(MC_ENGINE_IDX_NON_REPLAYABLE_FAULT)
	VALUE(MC_ENGINE_IDX_NON_REPLAYABLE_FAULT_ERROR)
	VALUE(MC_ENGINE_IDX_ACCESS_CNTR)
	VALUE(MC_ENGINE_IDX_INFO_FAULT)
	VALUE(NV_REG_BASE_TIMER)
	VALUE(NV_REG_BASE_USERMODE)
	VALUE(ENGINE_INFO_TYPE_ENG_DESC)
	VALUE(ENGINE_INFO_TYPE_FIFO_TAG)
	VALUE(ENGINE_INFO_TYPE_RM_ENGINE_TYPE)
	VALUE(ENGINE_INFO_TYPE_RUNLIST)
	VALUE(ENGINE_INFO_TYPE_MMU_FAULT_ID)
	VALUE(ENGINE_INFO_TYPE_RC_MASK)
	VALUE(ENGINE_INFO_TYPE_RESET)
	VALUE(ENGINE_INFO_TYPE_INTR)
	VALUE(ENGINE_INFO_TYPE_MC)
	VALUE(ENGINE_INFO_TYPE_DEV_TYPE_ENUM)
	VALUE(ENGINE_INFO_TYPE_INSTANCE_ID)
	VALUE(ENGINE_INFO_TYPE_RUNLIST_PRI_BASE)
	VALUE(ENGINE_INFO_TYPE_IS_HOST_DRIVEN_ENGINE)
	VALUE(ENGINE_INFO_TYPE_RUNLIST_ENGINE_ID)
	VALUE(ENGINE_INFO_TYPE_CHRAM_PRI_BASE)
}

#include "controls.h"

static void rpc_names(void)
{
	printf("pub const RPC_NAMES: &[(u32, &str)] = &[\n");
#undef _RPC_GLOBAL_ENUMS_H_
#define X(unit, name, ...) printf("    (%#lx, \"%s\"),\n", (unsigned long)NV_VGPU_MSG_FUNCTION_##name, #name);
#if DRIVER < 570
/* Events are numbered consecutively. The first entry also holds its number. */
#define E(name) { static const unsigned long number = 0x1000 + __COUNTER__ - FIRST_COUNT; \
		  if (number > 0x1000) printf("    (%#lx, \"%s\"),\n", number, #name); }
	enum { FIRST_COUNT = __COUNTER__ + 1 };
#else
#define E(name, number) if (number > 0x1000) printf("    (%#lx, \"%s\"),\n", (unsigned long)number, #name);
#endif
#include "vgpu/rpc_global_enums.h"
	printf("];\n");
}

int main(void)
{
	queues();
	boot();
	rpcs();
	static_info();
	allocations();
	engines();
	control_numbers();
	table_params();
	unit_params();
	rpc_names();
	return 0;
}
