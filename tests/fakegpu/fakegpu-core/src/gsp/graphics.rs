// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Describes the graphics engine to the driver. Only the first of eight possible instances exists,
//! as on a GPU without partitions.

use crate::abi::*;
use crate::chip::ChipDescription;

/// Fills NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_INFO.
pub(super) fn info(chip: &ChipDescription, out: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_INTERNAL_GR_INFO as Info;
    use NV2080_CTRL_INTERNAL_STATIC_GR_GET_INFO_PARAMS as P;
    out.fill(0);
    for index in 0..P::infoList.count() {
        set(
            out,
            Info::index.at(P::infoList.get(index).offset()),
            index as u64,
        )?;
    }
    let widest = chip.tpcs_per_gpc.iter().copied().max().unwrap_or(0);
    let values = [
        // Without subcontexts RM cannot allocate a channel group.
        (
            NV0080_CTRL_GR_INFO_INDEX_MAX_SUBCONTEXT_COUNT,
            u64::from(chip.subcontexts),
        ),
        (
            NV0080_CTRL_GR_INFO_INDEX_SHADER_PIPE_COUNT,
            chip.tpcs_per_gpc.len() as u64,
        ),
        (
            NV0080_CTRL_GR_INFO_INDEX_SHADER_PIPE_SUB_COUNT,
            u64::from(chip.tpcs()),
        ),
        (
            NV0080_CTRL_GR_INFO_INDEX_MAX_WARPS_PER_SM,
            u64::from(chip.sm.warps),
        ),
        (
            NV0080_CTRL_GR_INFO_INDEX_MAX_THREADS_PER_WARP,
            u64::from(chip.sm.threads_per_warp),
        ),
        (
            NV0080_CTRL_GR_INFO_INDEX_LITTER_NUM_SM_PER_TPC,
            u64::from(chip.sms_per_tpc),
        ),
        (
            NV0080_CTRL_GR_INFO_INDEX_SM_VERSION,
            u64::from(chip.sm.version),
        ),
        (
            NV0080_CTRL_GR_INFO_INDEX_LITTER_NUM_GPCS,
            chip.tpcs_per_gpc.len() as u64,
        ),
        (
            NV0080_CTRL_GR_INFO_INDEX_LITTER_NUM_TPC_PER_GPC,
            u64::from(widest),
        ),
    ];
    for (index, value) in values {
        // CAST: small numbers.
        let entry = P::infoList.get(index as usize).offset();
        set(out, Info::data.at(entry), value)?;
    }
    Ok(())
}

/// Fills NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_FLOORSWEEPING_MASKS: the working processors. With
/// none RM refuses every graphics object, including its own watchdog's.
pub(super) fn floorsweeping(chip: &ChipDescription, out: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_INTERNAL_STATIC_GR_FLOORSWEEPING_MASKS as Masks;
    out.fill(0);
    let gpcs = (1u64 << chip.tpcs_per_gpc.len()) - 1;
    set(out, Masks::gpcMask, gpcs)?;
    set(out, Masks::physGpcMask, gpcs)?;
    for (gpc, tpcs) in chip.tpcs_per_gpc.iter().enumerate() {
        set(out, Masks::tpcMask.get(gpc), (1 << tpcs) - 1)?;
        set(out, Masks::tpcCount.get(gpc), u64::from(*tpcs))?;
        set(out, Masks::mmuPerGpc.get(gpc), 1)?;
    }
    Ok(())
}

/// Fills NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_GLOBAL_SM_ORDER: the position of each SM.
pub(super) fn sm_order(chip: &ChipDescription, out: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_INTERNAL_STATIC_GR_GLOBAL_SM_ORDER as Order;
    out.fill(0);
    let first = Order::globalSmId.get(0).offset();
    let mut sm = 0;
    let mut global_tpc = 0u64;
    for (gpc, tpcs) in chip.tpcs_per_gpc.iter().enumerate() {
        for tpc in 0..*tpcs {
            for local_sm in 0..chip.sms_per_tpc {
                let base = Order::globalSmId.get(sm).offset() - first;
                set(out, Order::gpcId.at(base), gpc as u64)?;
                set(out, Order::virtualGpcId.at(base), gpc as u64)?;
                set(out, Order::localTpcId.at(base), u64::from(tpc))?;
                set(out, Order::localSmId.at(base), u64::from(local_sm))?;
                set(out, Order::globalTpcId.at(base), global_tpc)?;
                set(out, Order::migratableTpcId.at(base), u64::from(tpc))?;
                sm += 1;
            }
            global_tpc += 1;
        }
    }
    set(out, Order::numSm, sm as u64)?;
    set(out, Order::numTpc, global_tpc)
}

/// Fills NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_CONTEXT_BUFFERS_INFO: the sizes of a context's
/// buffers. Nothing reads the buffers, so all have one size.
pub(super) fn context_buffers(chip: &ChipDescription, out: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_INTERNAL_ENGINE_CONTEXT_BUFFER_INFO as Buffer;
    use NV2080_CTRL_INTERNAL_STATIC_GR_GET_CONTEXT_BUFFERS_INFO_PARAMS as P;
    out.fill(0);
    for index in 0..P::engine.count() {
        let buffer = P::engine.get(index).offset();
        set(out, Buffer::size.at(buffer), chip.context_buffer_bytes)?;
        set(out, Buffer::alignment.at(buffer), 4096)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_add_up() {
        let chip = ChipDescription::gh100();
        let mut order = vec![0; NV2080_CTRL_INTERNAL_STATIC_GR_GLOBAL_SM_ORDER::SIZE];
        sm_order(&chip, &mut order).unwrap();
        assert_eq!(
            get(
                &order,
                NV2080_CTRL_INTERNAL_STATIC_GR_GLOBAL_SM_ORDER::numSm
            ),
            Ok(132)
        );
        assert_eq!(
            get(
                &order,
                NV2080_CTRL_INTERNAL_STATIC_GR_GLOBAL_SM_ORDER::numTpc
            ),
            Ok(66)
        );
        let mut masks =
            vec![0; NV2080_CTRL_INTERNAL_STATIC_GR_GET_FLOORSWEEPING_MASKS_PARAMS::SIZE];
        floorsweeping(&chip, &mut masks).unwrap();
        assert_eq!(
            get(
                &masks,
                NV2080_CTRL_INTERNAL_STATIC_GR_FLOORSWEEPING_MASKS::gpcMask
            ),
            Ok(0xff)
        );
        assert!(sm_order(&chip, &mut masks[..40]).is_err());
    }
}
