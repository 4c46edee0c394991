// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Answers control calls.
//!
//! Most need no answer. The driver fills the parameters that it sends, so returning them unchanged
//! means "nothing to add". Controls with pure output arrive with uninitialised parameters; these
//! are cleared. The rest are answered from the description of the chip.

use crate::abi::*;
use crate::chip::{ChipDescription, EngineKind};
use crate::gsp::{graphics, identity, tables};

/// Controls whose parameters are pure output, where all zeros means "none".
const CLEARED: &[u32] = &[
    // RM takes an allocation size from the buffer: garbage makes it allocate gigabytes.
    NV2080_CTRL_CMD_INTERNAL_GET_DEVICE_INFO_TABLE,
    NV2080_CTRL_CMD_INTERNAL_GET_CONSTRUCTED_FALCON_INFO,
    NV2080_CTRL_CMD_INTERNAL_GPU_GET_USER_REGISTER_ACCESS_MAP,
];

/// Controls that only inform GSP. `scheduling.rs`, `spaces.rs` and `replayable.rs` handle them.
const OBSERVED: &[u32] = &[
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

/// The outcome of a control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Answered with this status.
    Given(u32),
    /// Not modelled: returned unchanged.
    HandedBack,
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
        Ok(false) => Answer::HandedBack,
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
    fn unknown_controls_are_handed_back() {
        let mut params = [0xa5; 8];
        assert_eq!(
            answer(&ChipDescription::gh100(), [7; 16], 0x2080_ffff, &mut params),
            Answer::HandedBack
        );
        assert_eq!(params, [0xa5; 8]);
    }

    #[test]
    fn uninitialised_outputs_are_cleared() {
        let mut params = [0xa5; 64];
        let command = NV2080_CTRL_CMD_INTERNAL_GET_DEVICE_INFO_TABLE;
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
