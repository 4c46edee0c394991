// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Answers control calls.
//!
//! Some need no answer. The driver fills the parameters that it sends, so returning them unchanged
//! means "nothing to add". Controls with pure output arrive with uninitialised parameters; these
//! are cleared. Others are answered from the description of the chip. What is not known is refused,
//! as firmware refuses it: a test must not pass because the device says yes to everything.

use crate::abi::*;
use crate::chip::{ChipDescription, EngineKind};
use crate::gsp::{graphics, identity, tables};

/// Controls whose parameters are pure output, where all zeros means "none".
const CLEARED: &[u32] = &[
    NV2080_CTRL_CMD_INTERNAL_GET_CONSTRUCTED_FALCON_INFO,
    NV2080_CTRL_CMD_INTERNAL_GPU_GET_USER_REGISTER_ACCESS_MAP,
];

/// Controls that only inform GSP. `scheduling.rs`, `spaces.rs` and `replayable.rs` handle them.
const OBSERVED: &[u32] = &[
    NV0080_CTRL_CMD_DMA_SET_PAGE_DIRECTORY,
    NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
    NV2080_CTRL_CMD_INTERNAL_GMMU_COPY_RESERVED_SPLIT_GVASPACE_PDES_TO_SERVER,
    NV2080_CTRL_CMD_INTERNAL_GMMU_REGISTER_FAULT_BUFFER,
    NV2080_CTRL_CMD_INTERNAL_GMMU_UNREGISTER_FAULT_BUFFER,
    NV2080_CTRL_CMD_SET_GPFIFO,
    NV90F1_CTRL_CMD_VASPACE_COPY_SERVER_RESERVED_PDES,
    NVA06C_CTRL_CMD_GPFIFO_SCHEDULE,
    NVA06C_CTRL_CMD_PREEMPT,
    NVA06C_CTRL_CMD_SET_TIMESLICE,
    NVA06F_CTRL_CMD_GPFIFO_SCHEDULE,
    NVA06F_CTRL_CMD_STOP_CHANNEL,
];

/// Controls that make the driver leave out a unit that is not modelled.
const NOT_SUPPORTED: &[u32] = &[
    // NVLink.
    NV2080_CTRL_CMD_NVLINK_GET_NVLINK_DEVICE_INFO,
];

/// Controls whose parameters come back unchanged: of the start of the driver, of its channels, and
/// of tests. Numbers and names are those of the drivers that have the control; a test compares them
/// with the headers. Some numbers have no name in any header.
#[rustfmt::skip]
const UNCHANGED: &[(u32, &str)] = &[
    (0x0080_0294, "NV0080_CTRL_CMD_GPU_GET_BRAND_CAPS"),
    (0x0080_1108, "NV0080_CTRL_CMD_GR_SET_TPC_PARTITION_MODE"),
    (0x0080_1705, "NV0080_CTRL_CMD_FIFO_START_SELECTED_CHANNELS"),
    (0x0080_1814, "NV0080_CTRL_CMD_DMA_UNSET_PAGE_DIRECTORY"),
    (0x0080_2004, "NV0080_CTRL_CMD_INTERNAL_PERF_CUDA_LIMIT_DISABLE"),
    (0x0080_2009, "NV0080_CTRL_CMD_INTERNAL_PERF_CUDA_LIMIT_SET_CONTROL"),
    (0x0080_9909, ""),
    (0x2080_0102, "NV2080_CTRL_CMD_GPU_GET_INFO_V2"),
    (0x2080_0111, "NV2080_CTRL_CMD_GPU_GET_SHORT_NAME_STRING"),
    (0x2080_012b, "NV2080_CTRL_CMD_GPU_PROMOTE_CTX"),
    (0x2080_012c, "NV2080_CTRL_CMD_GPU_EVICT_CTX"),
    (0x2080_012f, "NV2080_CTRL_CMD_GPU_QUERY_ECC_STATUS"),
    (0x2080_0133, "NV2080_CTRL_CMD_GPU_QUERY_ECC_CONFIGURATION"),
    (0x2080_013f, "NV2080_CTRL_CMD_GPU_GET_OEM_BOARD_INFO"),
    (0x2080_014b, "NV2080_CTRL_CMD_GPU_GET_INFOROM_OBJECT_VERSION"),
    (0x2080_0157, "NV2080_CTRL_CMD_GPU_QUERY_INFOROM_ECC_SUPPORT"),
    (0x2080_017e, "NV2080_CTRL_CMD_GPU_GET_VMMU_SEGMENT_SIZE"),
    (0x2080_0301, "NV2080_CTRL_CMD_EVENT_SET_NOTIFICATION"),
    (0x2080_0a1d, "NV2080_CTRL_CMD_INTERNAL_UVM_REGISTER_ACCESS_CNTR_BUFFER"),
    (0x2080_0a1e, "NV2080_CTRL_CMD_INTERNAL_UVM_UNREGISTER_ACCESS_CNTR_BUFFER"),
    (0x2080_0a1f, "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_CAPS"),
    (0x2080_0a2c, "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_ZCULL_INFO"),
    (0x2080_0a2e, "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_ROP_INFO"),
    (0x2080_0a30, "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_PPC_MASKS"),
    (0x2080_0a34, "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_SM_ISSUE_RATE_MODIFIER"),
    (0x2080_0a37, "NV2080_CTRL_CMD_INTERNAL_GR_SET_FECS_TRACE_HW_ENABLE"),
    (0x2080_0a38, "NV2080_CTRL_CMD_INTERNAL_GR_GET_FECS_TRACE_HW_ENABLE"),
    (0x2080_0a3d, "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_FECS_RECORD_SIZE"),
    (0x2080_0a3f, "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_FECS_TRACE_DEFINES"),
    (0x2080_0a48, "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_PDB_PROPERTIES"),
    (0x2080_0a4c, "NV2080_CTRL_CMD_INTERNAL_GPU_GET_SMC_MODE"),
    (0x2080_0a51, "NV2080_CTRL_CMD_INTERNAL_MEMSYS_SET_PARTITIONABLE_MEM"),
    (0x2080_0a67, "NV2080_CTRL_CMD_INTERNAL_KMEMSYS_GET_MIG_MEMORY_CONFIG"),
    (0x2080_0a6c, "NV2080_CTRL_CMD_INTERNAL_MEMSYS_L2_INVALIDATE_EVICT"),
    (0x2080_0a70, "NV2080_CTRL_CMD_INTERNAL_BUS_FLUSH_WITH_SYSMEMBAR"),
    (0x2080_0a80, "NV2080_CTRL_CMD_INTERNAL_PERF_GPU_BOOST_SYNC_GET_INFO"),
    (0x2080_0a9a, "NV2080_CTRL_CMD_INTERNAL_PERF_BOOST_SET_2X"),
    (0x2080_0a9d, "NV2080_CTRL_CMD_INTERNAL_GMMU_REGISTER_CLIENT_SHADOW_FAULT_BUFFER"),
    (0x2080_0a9e, "NV2080_CTRL_CMD_INTERNAL_GMMU_UNREGISTER_CLIENT_SHADOW_FAULT_BUFFER"),
    (0x2080_0aac, "NV2080_CTRL_CMD_INTERNAL_BIF_GET_STATIC_INFO"),
    (0x2080_0ab3, "NV2080_CTRL_CMD_INTERNAL_CCU_MAP"),
    (0x2080_0ab4, "NV2080_CTRL_CMD_INTERNAL_CCU_UNMAP"),
    (0x2080_0ad8, "NV2080_CTRL_CMD_INTERNAL_FIFO_GET_NUM_SECURE_CHANNELS"),
    (0x2080_0afe, "NV2080_CTRL_CMD_INTERNAL_INIT_USER_SHARED_DATA"),
    (0x2080_0aff, "NV2080_CTRL_CMD_INTERNAL_USER_SHARED_DATA_SET_DATA_POLL"),
    (0x2080_0b03, "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_SM_ISSUE_RATE_MODIFIER_V2"),
    (0x2080_0b05, "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_SM_ISSUE_THROTTLE_CTRL"),
    // Of suspensions. Channels here do not stop for it.
    (0x2080_1117, "NV2080_CTRL_CMD_FIFO_DISABLE_USERMODE_CHANNELS"),
    (0x2080_1210, "NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE"),
    (0x2080_1303, "NV2080_CTRL_CMD_FB_GET_INFO_V2"),
    (0x2080_1702, "NV2080_CTRL_CMD_MC_SERVICE_INTERRUPTS"),
    (0x2080_1823, "NV2080_CTRL_CMD_BUS_GET_INFO_V2"),
    (0x2080_182a, "NV2080_CTRL_CMD_BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS"),
    (0x2080_182b, "NV2080_CTRL_CMD_BUS_GET_C2C_INFO"),
    (0x2080_2609, "NV2080_CTRL_CMD_PMGR_GET_MODULE_INFO"),
    (0x2080_2a05, "NV2080_CTRL_CMD_CE_UPDATE_PCE_LCE_MAPPINGS"),
    (0x2080_2a06, "NV2080_CTRL_CMD_CE_UPDATE_CLASS_DB"),
    (0x2080_2a09, "NV2080_CTRL_CMD_CE_GET_HUB_PCE_MASK"),
    (0x2080_2a0b, "NV2080_CTRL_CMD_CE_GET_ALL_PHYSICAL_CAPS"),
    (0x2080_2a0d, "NV2080_CTRL_CMD_CE_UPDATE_PCE_LCE_MAPPINGS_V2"),
    (0x2080_2a0e, "NV2080_CTRL_CMD_CE_GET_HUB_PCE_MASK_V2"),
    (0x2080_2a0f, "NV2080_CTRL_CMD_INTERNAL_CE_GET_PCE_CONFIG_FOR_LCE_TYPE"),
    (0x2080_2a12, "NV2080_CTRL_CMD_CE_IS_DECOMP_LCE_ENABLED"),
    (0x2080_3601, "NV2080_CTRL_CMD_GSP_GET_FEATURES"),
    (0x2080_400b, "NV2080_CTRL_CMD_VGPU_MGR_INTERNAL_SET_VGPU_MGR_CONFIG"),
    (0x2080_8159, ""),
    (0x2080_8161, ""),
    (0x2080_8513, ""),
    (0x2080_852e, ""),
    (0x2080_852f, ""),
    (0x2080_9009, ""),
    (0x2080_9038, ""),
    (0x2080_a068, ""),
    (0x2080_a612, ""),
    (0x208f_1105, "NV208F_CTRL_CMD_GPU_VERIFY_INFOROM"),
    (0x402c_0101, "NV402C_CTRL_CMD_I2C_GET_PORT_INFO"),
    (0x83de_0309, "NV83DE_CTRL_CMD_DEBUG_SET_EXCEPTION_MASK"),
    (0x83de_030c, "NV83DE_CTRL_CMD_DEBUG_READ_ALL_SM_ERROR_STATES"), // SMs have no errors here.
    (0x83de_0310, "NV83DE_CTRL_CMD_DEBUG_CLEAR_ALL_SM_ERROR_STATES"),
    (0xa06c_010a, "NVA06C_CTRL_CMD_INTERNAL_PROMOTE_FAULT_METHOD_BUFFERS"),
    (0xa06f_0104, "NVA06F_CTRL_CMD_BIND"),
];

/// Returns whether a control's parameters come back unchanged.
fn is_unchanged(command: u32) -> bool {
    UNCHANGED
        .binary_search_by_key(&command, |(known, _)| *known)
        .is_ok()
}

/// The outcome of a control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Answered with this status.
    Given(u32),
    /// Not known: refused.
    Unknown,
}

/// Answers control `command` in place.
pub fn answer(chip: &ChipDescription, uuid: [u8; 16], command: u32, params: &mut [u8]) -> Answer {
    if NOT_SUPPORTED.contains(&command) {
        return Answer::Given(NV_ERR_NOT_SUPPORTED);
    }
    if CLEARED.contains(&command) {
        params.fill(0);
        return Answer::Given(NV_OK);
    }
    if OBSERVED.contains(&command) {
        return Answer::Given(NV_OK);
    }
    match fill(chip, uuid, command, params) {
        Ok(true) => Answer::Given(NV_OK),
        Ok(false) if is_unchanged(command) => Answer::Given(NV_OK),
        Ok(false) => Answer::Unknown,
        Err(error) => {
            log::warn!("control {command:#x}: {error}");
            Answer::Given(NV_ERR_INVALID_PARAM_STRUCT)
        }
    }
}

/// Fills the output parameters of `command`. Returns whether it has any.
fn fill(
    chip: &ChipDescription,
    uuid: [u8; 16],
    command: u32,
    params: &mut [u8],
) -> Result<bool, Malformed> {
    let filled = match command {
        NV2080_CTRL_CMD_BUS_GET_PCI_BAR_INFO => tables::bars(chip, params),
        NV2080_CTRL_CMD_FIFO_GET_DEVICE_INFO_TABLE => tables::device_info(chip, params),
        NV2080_CTRL_CMD_GPU_GET_ENGINES_V2 => tables::engines(chip, params),
        NV2080_CTRL_CMD_GPU_GET_GID_INFO => identity::gid(uuid, params),
        NV2080_CTRL_CMD_GPU_GET_NAME_STRING => tables::name(chip, params),
        NV2080_CTRL_CMD_INTERNAL_GET_DEVICE_INFO_TABLE => tables::units(chip, params),
        NV2080_CTRL_CMD_INTERNAL_GPU_GET_CHIP_INFO => tables::chip_info(chip, params),
        NV2080_CTRL_CMD_INTERNAL_INTR_GET_KERNEL_TABLE => tables::interrupts(chip, params),
        NV2080_CTRL_CMD_INTERNAL_MEMSYS_GET_STATIC_CONFIG => tables::memory_system(chip, params),
        NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_CONTEXT_BUFFERS_INFO => {
            graphics::context_buffers(chip, params)
        }
        NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_FLOORSWEEPING_MASKS => {
            graphics::floorsweeping(chip, params)
        }
        NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_GLOBAL_SM_ORDER => graphics::sm_order(chip, params),
        NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_INFO => graphics::info(chip, params),
        NV2080_CTRL_CMD_CE_GET_CE_PCE_MASK => physical_copy_engines(params),
        NV2080_CTRL_CMD_CE_GET_ALL_PHYSICAL_CAPS => all_copy_capabilities(chip, params),
        NV2080_CTRL_CMD_CE_GET_PHYSICAL_CAPS => copy_capabilities(chip, params),
        NV2080_CTRL_CMD_CE_GET_FAULT_METHOD_BUFFER_SIZE => {
            use NV2080_CTRL_CE_GET_FAULT_METHOD_BUFFER_SIZE_PARAMS as P;
            set(params, P::size, chip.fault_method_buffer_bytes)
        }
        NV2080_CTRL_CMD_INTERNAL_FIFO_GET_NUM_CHANNELS => {
            use NV2080_CTRL_INTERNAL_FIFO_GET_NUM_CHANNELS_PARAMS as P;
            set(params, P::numChannels, u64::from(chip.channels_per_runlist))
        }
        NV2080_CTRL_CMD_INTERNAL_GMMU_GET_STATIC_INFO => {
            use NV2080_CTRL_INTERNAL_GMMU_GET_STATIC_INFO_PARAMS as P;
            set(
                params,
                P::replayableFaultBufferSize,
                chip.replayable_fault_buffer_bytes,
            )?;
            set(
                params,
                P::nonReplayableFaultBufferSize,
                chip.non_replayable_fault_buffer_bytes,
            )
        }
        NV2080_CTRL_CMD_INTERNAL_CONF_COMPUTE_GET_STATIC_INFO => {
            // Otherwise all access to video memory goes through remote calls.
            use NV2080_CTRL_INTERNAL_CONF_COMPUTE_GET_STATIC_INFO_PARAMS as P;
            set(params, P::bIsBar1Trusted, 1)?;
            set(params, P::bIsPcieTrusted, 1)
        }
        _ => return Ok(false),
    };
    filled.map(|()| true)
}

/// Maps each logical copy engine to one physical engine.
fn physical_copy_engines(params: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_CE_GET_CE_PCE_MASK_PARAMS as P;
    let engine = get_u32(params, P::ceEngineType)?;
    let mask = engine
        .checked_sub(NV2080_ENGINE_TYPE_COPY0)
        .and_then(|n| 1u64.checked_shl(n))
        .unwrap_or(0);
    set(params, P::pceMask, mask)
}

fn copy_capabilities(chip: &ChipDescription, params: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_CE_GET_CAPS_V2_PARAMS as P;
    let number = get_u32(params, P::ceEngineType)?.wrapping_sub(NV2080_ENGINE_TYPE_COPY0);
    for (index, caps) in chip.capabilities_of_copy(number).into_iter().enumerate() {
        set(params, P::capsTbl.get(index), u64::from(caps))?;
    }
    Ok(())
}

/// Fills NV2080_CTRL_CMD_CE_GET_ALL_PHYSICAL_CAPS: which copy engines there are, and what each can.
fn all_copy_capabilities(chip: &ChipDescription, params: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_CE_GET_ALL_CAPS_PARAMS as P;
    params.fill(0);
    let mut present = 0;
    for engine in &chip.engines {
        let EngineKind::Copy(number) = engine.kind else {
            continue;
        };
        let entry = P::capsTbl.get(number as usize);
        set_bytes(params, entry, &chip.capabilities_of_copy(number))?;
        present |= 1 << number;
    }
    set(params, P::present, present)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unchanged_controls_have_their_names() {
        assert!(UNCHANGED.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (number, name) in UNCHANGED {
            if let (Some(found), false) = (control_name(*number), name.is_empty()) {
                assert_eq!(found, *name, "{number:#x}");
            }
        }
    }

    #[test]
    fn unknown_controls_are_refused() {
        let mut params = [0xa5; 8];
        assert_eq!(
            answer(&ChipDescription::gh100(), [7; 16], 0x2080_ffff, &mut params),
            Answer::Unknown
        );
        assert_eq!(params, [0xa5; 8]);
    }

    #[test]
    fn uninitialised_outputs_are_cleared() {
        let mut params = [0xa5; 64];
        let command = NV2080_CTRL_CMD_INTERNAL_GET_CONSTRUCTED_FALCON_INFO;
        assert_eq!(
            answer(&ChipDescription::gh100(), [7; 16], command, &mut params),
            Answer::Given(NV_OK)
        );
        assert_eq!(params, [0; 64]);
    }

    #[test]
    fn short_parameters_are_refused() {
        let command = NV2080_CTRL_CMD_GPU_GET_ENGINES_V2;
        assert_eq!(
            answer(&ChipDescription::gh100(), [7; 16], command, &mut [0; 4]),
            Answer::Given(NV_ERR_INVALID_PARAM_STRUCT)
        );
    }

    proptest! {
        /// Checks that no answer panics on parameters of any length and content.
        #[test]
        fn any_parameters(index in 0usize..18, params in prop::collection::vec(any::<u8>(), 0..600)) {
            let commands = [
                NV2080_CTRL_CMD_BUS_GET_PCI_BAR_INFO, NV2080_CTRL_CMD_FIFO_GET_DEVICE_INFO_TABLE,
                NV2080_CTRL_CMD_GPU_GET_ENGINES_V2, NV2080_CTRL_CMD_GPU_GET_NAME_STRING,
                NV2080_CTRL_CMD_INTERNAL_GPU_GET_CHIP_INFO, NV2080_CTRL_CMD_INTERNAL_INTR_GET_KERNEL_TABLE,
                NV2080_CTRL_CMD_INTERNAL_MEMSYS_GET_STATIC_CONFIG, NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_INFO,
                NV2080_CTRL_CMD_CE_GET_CE_PCE_MASK, NV2080_CTRL_CMD_CE_GET_PHYSICAL_CAPS,
                NV2080_CTRL_CMD_CE_GET_FAULT_METHOD_BUFFER_SIZE, NV2080_CTRL_CMD_INTERNAL_FIFO_GET_NUM_CHANNELS,
                NV2080_CTRL_CMD_INTERNAL_GMMU_GET_STATIC_INFO, NV2080_CTRL_CMD_INTERNAL_CONF_COMPUTE_GET_STATIC_INFO,
                NV2080_CTRL_CMD_NVLINK_GET_NVLINK_DEVICE_INFO, NV2080_CTRL_CMD_INTERNAL_GET_DEVICE_INFO_TABLE, 0, u32::MAX,
            ];
            let mut params = params;
            let _ = answer(&ChipDescription::gh100(), [7; 16], commands[index], &mut params);
        }
    }
}
