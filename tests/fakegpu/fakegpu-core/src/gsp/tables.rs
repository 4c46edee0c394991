// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Builds the tables that GSP returns to the driver. Each is derived from the description of the
//! chip, so that they agree with one another.

use crate::abi::*;
use crate::chip::{ChipDescription, Engine, EngineKind};

/// Handles of the objects by which the driver calls GSP for itself. The driver only passes them
/// back.
const INTERNAL_CLIENT: u32 = 0xc200_0000;
/// See [`INTERNAL_CLIENT`].
const INTERNAL_DEVICE: u32 = 0xabcd_0080;
/// See [`INTERNAL_CLIENT`].
const INTERNAL_SUBDEVICE: u32 = 0xabcd_2080;
/// Marks an absent vector.
const NO_VECTOR: u32 = u32::MAX;
/// Marks an absent unit.
const NO_REGISTERS: u64 = 0xffff_ffff;
/// Offset in BAR0 of the user-mode page, which has the doorbells.
const USERMODE_BASE: u64 = 0xbb_0000;
/// Offset in BAR0 of the timer.
const TIMER_BASE: u64 = 0x9000;

/// Fills GspStaticConfigInfo, the driver's first request.
///
/// # Errors
/// [`Malformed`] if `out` is shorter than the structure.
pub fn static_info(
    chip: &ChipDescription,
    uuid: [u8; 16],
    out: &mut [u8],
) -> Result<(), Malformed> {
    use GspStaticConfigInfo as S;
    out.fill(0);
    set(
        out,
        S::gidInfo_flags,
        u64::from(NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY),
    )?;
    set(out, S::gidInfo_length, uuid.len() as u64)?;
    set_bytes(out, S::gidInfo_data, &uuid)?;
    fb_regions(chip, out)?;
    // The open driver of this version refuses any other branding.
    set(
        out,
        S::computeBranding,
        u64::from(COMPUTE_BRANDING_TYPE_TESLA),
    )?;
    set(out, S::bIsTesla, 1)?;
    for engine in &chip.engines {
        let number = nv2080_engine(engine.kind);
        let word = S::engineCaps.get((number / 32) as usize);
        let caps = get(out, word)?;
        set(out, word, caps | 1 << (number % 32))?;
    }
    set(out, S::SM_info_version, u64::from(chip.sm.version))?;
    set(out, S::SM_info_maxWarpsPerSM, u64::from(chip.sm.warps))?;
    set(
        out,
        S::SM_info_maxThreadsPerWarp,
        u64::from(chip.sm.threads_per_warp),
    )?;
    set(out, S::SM_info_maxSPPerSM, u64::from(chip.sm.lanes))?;
    set(out, S::fb_length, chip.fb_bytes)?;
    set(
        out,
        S::fb_ram_type,
        u64::from(NV2080_CTRL_FB_INFO_RAM_TYPE_HBM3),
    )?;
    set(out, S::fb_bus_width, u64::from(chip.fb_bus_bits))?;
    set(out, S::fbp_mask, u64::from(chip.fb_partitions_mask))?;
    set(out, S::fbio_mask, u64::from(chip.fb_partitions_mask))?;
    set(out, S::l2_cache_size, chip.l2_bytes)?;
    set_bytes(out, S::gpuNameString, chip.marketing_name.as_bytes())?;
    set_bytes(out, S::gpuShortNameString, chip.short_name.as_bytes())?;
    for (index, unit) in chip.marketing_name.encode_utf16().enumerate() {
        set(out, S::gpuNameString_Unicode.get(index), u64::from(unit))?;
    }
    set(out, S::bar1PdeBase, chip.bar1_root())?;
    set(out, S::bar2PdeBase, chip.bar2_root())?;
    set(out, S::bVbiosValid, 1)?;
    set(out, S::hInternalClient, u64::from(INTERNAL_CLIENT))?;
    set(out, S::hInternalDevice, u64::from(INTERNAL_DEVICE))?;
    set(out, S::hInternalSubdevice, u64::from(INTERNAL_SUBDEVICE))
}

/// Describes video memory: the part for the driver, and GSP's part at the end.
fn fb_regions(chip: &ChipDescription, out: &mut [u8]) -> Result<(), Malformed> {
    use GspStaticConfigInfo as S;
    use NV2080_CTRL_CMD_FB_GET_FB_REGION_FB_REGION_INFO as Region;
    let usable = chip.fb_bytes - chip.fb_reserved_bytes;
    set(out, S::numFBRegions, 2)?;
    let first = S::fbRegion.get(0).offset();
    set(out, Region::limit.at(first), usable - 1)?;
    set(out, Region::performance.at(first), 100)?;
    set(out, Region::supportCompressed.at(first), 1)?;
    set(out, Region::supportISO.at(first), 1)?;
    let second = S::fbRegion.get(1).offset();
    set(out, Region::base.at(second), usable)?;
    set(out, Region::limit.at(second), chip.fb_bytes - 1)?;
    set(out, Region::reserved.at(second), chip.fb_reserved_bytes)
}

/// Fills NV2080_CTRL_CMD_GPU_GET_ENGINES_V2.
pub(super) fn engines(chip: &ChipDescription, out: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_GPU_GET_ENGINES_V2_PARAMS as P;
    out.fill(0);
    set(out, P::engineCount, chip.engines.len() as u64)?;
    for (index, engine) in chip.engines.iter().enumerate() {
        set(
            out,
            P::engineList.get(index),
            u64::from(nv2080_engine(engine.kind)),
        )?;
    }
    Ok(())
}

/// Fills NV2080_CTRL_CMD_BUS_GET_PCI_BAR_INFO.
pub(super) fn bars(chip: &ChipDescription, out: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_BUS_GET_PCI_BAR_INFO_PARAMS as P;
    use NV2080_CTRL_BUS_PCI_BAR_INFO as Bar;
    out.fill(0);
    let sizes = [
        chip.bars.registers,
        chip.bars.framebuffer,
        chip.bars.instance,
    ];
    set(out, P::pciBarCount, sizes.len() as u64)?;
    for (index, bytes) in sizes.into_iter().enumerate() {
        let bar = P::pciBarInfo.get(index).offset();
        set(out, Bar::barSize.at(bar), bytes >> 20)?;
        set(out, Bar::barSizeBytes.at(bar), bytes)?;
    }
    Ok(())
}

/// Fills NV2080_CTRL_CMD_INTERNAL_GPU_GET_CHIP_INFO.
pub(super) fn chip_info(chip: &ChipDescription, out: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_INTERNAL_GPU_GET_CHIP_INFO_PARAMS as P;
    out.fill(0);
    let id = |device: u16, vendor: u16| u64::from(device) << 16 | u64::from(vendor);
    set(out, P::pciDeviceId, id(chip.pci.device, chip.pci.vendor))?;
    set(
        out,
        P::pciSubDeviceId,
        id(chip.pci.subsystem_device, chip.pci.subsystem_vendor),
    )?;
    set(out, P::pciRevisionId, u64::from(chip.pci.revision))?;
    set(out, P::bar1Size, chip.bars.framebuffer >> 20)?;
    for index in 0..P::regBases.count() {
        set(out, P::regBases.get(index), NO_REGISTERS)?;
    }
    // Without the first entry RM cannot map doorbells and later dereferences a null pointer.
    set(
        out,
        P::regBases.get(NV_REG_BASE_USERMODE as usize),
        USERMODE_BASE,
    )?;
    set(out, P::regBases.get(NV_REG_BASE_TIMER as usize), TIMER_BASE)
}

/// Fills NV2080_CTRL_CMD_INTERNAL_MEMSYS_GET_STATIC_CONFIG.
pub(super) fn memory_system(chip: &ChipDescription, out: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_INTERNAL_MEMSYS_GET_STATIC_CONFIG_PARAMS as P;
    out.fill(0);
    set(out, P::bUseRawModeComptaglineAllocation, 1)?;
    set(out, P::bDisableCompbitBacking, 1)?;
    set(out, P::l2CacheSize, chip.l2_bytes)?;
    set(out, P::bFbpaPresent, 1)?;
    set(out, P::comprPageSize, 1 << 16)?;
    set(out, P::comprPageShift, 16)?;
    set(
        out,
        P::ramType,
        u64::from(NV2080_CTRL_FB_INFO_RAM_TYPE_HBM3),
    )?;
    set(out, P::ltcCount, u64::from(chip.l2_caches))?;
    set(out, P::ltsPerLtcCount, u64::from(chip.l2_slices_per_cache))
}

/// Fills NV2080_CTRL_CMD_INTERNAL_GET_DEVICE_INFO_TABLE: the units of the chip, of which the model
/// has the engines alone. Newer drivers take the fault ids of copy engines from it.
pub(super) fn units(chip: &ChipDescription, out: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_INTERNAL_DEVICE_INFO as Unit;
    use NV2080_CTRL_INTERNAL_GET_DEVICE_INFO_TABLE_PARAMS as P;
    out.fill(0);
    set(out, P::numEntries, chip.engines.len() as u64)?;
    for (index, engine) in chip.engines.iter().enumerate() {
        let unit = P::deviceInfoTable.get(index).offset();
        let (kind, instance) = match engine.kind {
            EngineKind::Graphics => (0, 0),
            EngineKind::Copy(n) => (DEV_TYPE_ENUM_LCE, n),
        };
        let values = [
            (Unit::faultId, engine.mmu_fault_id),
            (Unit::instanceId, instance),
            (Unit::typeEnum, kind),
            (Unit::isEngine, 1),
            (Unit::runlistPriBase, engine.runlist_registers),
        ];
        for (field, value) in values {
            set(out, field.at(unit), u64::from(value))?;
        }
        set(out, Unit::resetId.at(unit), index as u64)?;
        let rank = rank_on_runlist(chip, index);
        set(out, Unit::rlEngId.at(unit), rank as u64)?;
    }
    Ok(())
}

/// Returns how many engines before this one share its runlist.
fn rank_on_runlist(chip: &ChipDescription, index: usize) -> usize {
    let (before, rest) = chip.engines.split_at(index);
    let runlist = rest.first().map(|engine| engine.runlist);
    let same = |engine: &&Engine| Some(engine.runlist) == runlist;
    before.iter().filter(same).count()
}

/// Fills NV2080_CTRL_CMD_FIFO_GET_DEVICE_INFO_TABLE. The caller asks piece by piece; the first
/// piece holds everything.
pub(super) fn device_info(chip: &ChipDescription, out: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_FIFO_GET_DEVICE_INFO_TABLE_PARAMS as P;
    let base = get(out, P::baseIndex)?;
    out.fill(0);
    set(out, P::baseIndex, base)?;
    if base != 0 {
        return Ok(());
    }
    set(out, P::numEntries, chip.engines.len() as u64)?;
    for (index, engine) in chip.engines.iter().enumerate() {
        let on_runlist = rank_on_runlist(chip, index);
        let entry = P::entries.get(index).offset();
        device_entry(engine, index, on_runlist, entry, out)?;
    }
    Ok(())
}

fn device_entry(
    engine: &Engine,
    index: usize,
    on_runlist: usize,
    entry: usize,
    out: &mut [u8],
) -> Result<(), Malformed> {
    use NV2080_CTRL_FIFO_DEVICE_ENTRY as Entry;
    let index = index as u64;
    let (descriptor, rm_type, mc, kind, instance) = match engine.kind {
        EngineKind::Graphics => (ENG_GR0, RM_ENGINE_TYPE_GR0, MC_ENGINE_IDX_GR0, 0, 0),
        EngineKind::Copy(n) => (
            ENG_CE0 + n * ENG_CE_STEP,
            RM_ENGINE_TYPE_COPY0 + n,
            MC_ENGINE_IDX_CE0 + n,
            DEV_TYPE_ENUM_LCE,
            n,
        ),
    };
    let data = [
        (ENGINE_INFO_TYPE_ENG_DESC, u64::from(descriptor)),
        (ENGINE_INFO_TYPE_FIFO_TAG, index),
        (ENGINE_INFO_TYPE_RM_ENGINE_TYPE, u64::from(rm_type)),
        (ENGINE_INFO_TYPE_RUNLIST, u64::from(engine.runlist)),
        (
            ENGINE_INFO_TYPE_MMU_FAULT_ID,
            u64::from(engine.mmu_fault_id),
        ),
        (ENGINE_INFO_TYPE_RC_MASK, 1 << index),
        (ENGINE_INFO_TYPE_RESET, index),
        (ENGINE_INFO_TYPE_INTR, index),
        (ENGINE_INFO_TYPE_MC, u64::from(mc)),
        (ENGINE_INFO_TYPE_DEV_TYPE_ENUM, u64::from(kind)),
        (ENGINE_INFO_TYPE_INSTANCE_ID, u64::from(instance)),
        (ENGINE_INFO_TYPE_IS_HOST_DRIVEN_ENGINE, 1),
        (ENGINE_INFO_TYPE_RUNLIST_ENGINE_ID, on_runlist as u64),
        (
            ENGINE_INFO_TYPE_RUNLIST_PRI_BASE,
            u64::from(engine.runlist_registers),
        ),
        (
            ENGINE_INFO_TYPE_CHRAM_PRI_BASE,
            u64::from(engine.channel_registers),
        ),
    ];
    for (position, value) in data {
        set(
            out,
            Entry::engineData.get(position as usize).at(entry),
            value,
        )?;
    }
    set(out, Entry::numPbdmas.at(entry), 1)?;
    set(
        out,
        Entry::pbdmaIds.get(0).at(entry),
        u64::from(engine.pbdma),
    )?;
    set(
        out,
        Entry::pbdmaFaultIds.get(0).at(entry),
        u64::from(engine.pbdma_fault_id),
    )?;
    set_bytes(out, Entry::engineName.at(entry), engine.name().as_bytes())
}

/// DEV_TYPE_ENUM of logical copy engines; graphics has 0.
const DEV_TYPE_ENUM_LCE: u32 = 19;

/// Fills NV2080_CTRL_CMD_INTERNAL_INTR_GET_KERNEL_TABLE.
pub(super) fn interrupts(chip: &ChipDescription, out: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_INTERNAL_INTR_GET_KERNEL_TABLE_ENTRY as Entry;
    use NV2080_CTRL_INTERNAL_INTR_GET_KERNEL_TABLE_PARAMS as P;
    use NV2080_INTR_CATEGORY_SUBTREE_MAP as Subtrees;
    out.fill(0);
    let vectors = &chip.vectors;
    let engines = chip.engines.iter().map(|engine| {
        let unit = match engine.kind {
            EngineKind::Graphics => MC_ENGINE_IDX_GR0,
            EngineKind::Copy(n) => MC_ENGINE_IDX_CE0 + n,
        };
        (unit, engine.vector_stall, engine.vector_nonstall)
    });
    let units = [
        (MC_ENGINE_IDX_GSP, vectors.gsp),
        (MC_ENGINE_IDX_TMR, vectors.timer),
        (MC_ENGINE_IDX_REPLAYABLE_FAULT, vectors.replayable_fault),
        (
            MC_ENGINE_IDX_REPLAYABLE_FAULT_ERROR,
            vectors.replayable_fault_error,
        ),
        (
            MC_ENGINE_IDX_NON_REPLAYABLE_FAULT,
            vectors.non_replayable_fault,
        ),
        (
            MC_ENGINE_IDX_NON_REPLAYABLE_FAULT_ERROR,
            vectors.non_replayable_fault_error,
        ),
        (MC_ENGINE_IDX_ACCESS_CNTR, vectors.access_counter),
        (MC_ENGINE_IDX_INFO_FAULT, vectors.info_fault),
    ];
    let all = engines.chain(
        units
            .into_iter()
            .map(|(unit, vector)| (unit, vector, NO_VECTOR)),
    );
    let mut count = 0;
    for (index, (unit, stall, nonstall)) in all.enumerate() {
        let entry = P::table.get(index).offset();
        set(out, Entry::engineIdx.at(entry), u64::from(unit))?;
        set(out, Entry::vectorStall.at(entry), u64::from(stall))?;
        set(out, Entry::vectorNonStall.at(entry), u64::from(nonstall))?;
        count = index + 1;
    }
    set(out, P::tableLen, count as u64)?;
    for (category, (start, end)) in vectors.subtrees.into_iter().enumerate() {
        let map = P::subtreeMap.get(category).offset();
        set(out, Subtrees::subtreeStart.at(map), u64::from(start))?;
        set(out, Subtrees::subtreeEnd.at(map), u64::from(end))?;
        set(out, Subtrees::subtreeMask.at(map), subtree_mask(start, end))?;
    }
    Ok(())
}

/// Returns a bit for each subtree from `start` to `end`, as newer drivers take it.
fn subtree_mask(start: u8, end: u8) -> u64 {
    (start..=end).fold(0, |mask, subtree| mask | 1 << (subtree % 64))
}

/// Fills NV2080_CTRL_CMD_GPU_GET_NAME_STRING, in the encoding that the caller chose.
pub(super) fn name(chip: &ChipDescription, out: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS as P;
    if get(out, P::gpuNameStringFlags)? == 1 {
        for (index, unit) in chip.marketing_name.encode_utf16().chain([0]).enumerate() {
            set(out, P::unicode.get(index), u64::from(unit))?;
        }
        Ok(())
    } else {
        let name: Vec<u8> = chip.marketing_name.bytes().chain([0]).collect();
        set_bytes(out, P::ascii, &name)
    }
}

/// Returns the NV2080_ENGINE_TYPE_* of an engine.
fn nv2080_engine(kind: EngineKind) -> u32 {
    match kind {
        EngineKind::Graphics => NV2080_ENGINE_TYPE_GR0,
        EngineKind::Copy(n) => NV2080_ENGINE_TYPE_COPY0 + n,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_info_fits_and_names_the_chip() {
        let chip = ChipDescription::gh100();
        let mut out = vec![0xff; GspStaticConfigInfo::SIZE];
        static_info(&chip, [7; 16], &mut out).unwrap();
        assert_eq!(get(&out, GspStaticConfigInfo::fb_length), Ok(chip.fb_bytes));
        assert_eq!(
            get(&out, GspStaticConfigInfo::engineCaps.get(0)),
            Ok(1 << 1 | 0x3f << 9)
        );
        let name = GspStaticConfigInfo::gpuNameString.offset();
        assert!(out[name..].starts_with(chip.marketing_name.as_bytes()));
        assert!(static_info(&chip, [7; 16], &mut out[..0x100]).is_err());
    }

    #[test]
    fn each_engine_is_in_every_table_once() {
        let chip = ChipDescription::gh100();
        let mut table = vec![0; NV2080_CTRL_FIFO_GET_DEVICE_INFO_TABLE_PARAMS::SIZE];
        device_info(&chip, &mut table).unwrap();
        assert_eq!(
            get(
                &table,
                NV2080_CTRL_FIFO_GET_DEVICE_INFO_TABLE_PARAMS::numEntries
            ),
            Ok(7)
        );
        let mut table = vec![0; NV2080_CTRL_INTERNAL_GET_DEVICE_INFO_TABLE_PARAMS::SIZE];
        units(&chip, &mut table).unwrap();
        assert_eq!(
            get(
                &table,
                NV2080_CTRL_INTERNAL_GET_DEVICE_INFO_TABLE_PARAMS::numEntries
            ),
            Ok(7)
        );
        let mut table = vec![0; NV2080_CTRL_INTERNAL_INTR_GET_KERNEL_TABLE_PARAMS::SIZE];
        interrupts(&chip, &mut table).unwrap();
        assert_eq!(
            get(
                &table,
                NV2080_CTRL_INTERNAL_INTR_GET_KERNEL_TABLE_PARAMS::tableLen
            ),
            Ok(15)
        );
    }

    #[test]
    fn the_second_piece_of_the_device_table_is_empty() {
        let mut table = vec![0xff; NV2080_CTRL_FIFO_GET_DEVICE_INFO_TABLE_PARAMS::SIZE];
        device_info(&ChipDescription::gh100(), &mut table).unwrap();
        assert_eq!(
            get(
                &table,
                NV2080_CTRL_FIFO_GET_DEVICE_INFO_TABLE_PARAMS::numEntries
            ),
            Ok(0)
        );
    }
}
