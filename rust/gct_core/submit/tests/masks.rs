// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks masks of every width in every layout.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::random::config;
use crate::mask::TpcMask;
use crate::submit::launch::Launch;
use crate::submit::limits::{MASK_WORDS, TPCS_MAX};
use crate::submit::mask::{self, Applied, DisabledTpcs, OutOfRange};
use crate::submit::occupancy;
use crate::submit::qmd::{v04_00, v05_00, v05_01, with_layout, Layout, Version};
use crate::submit::reason::Reason;
use crate::topology::Topology;

/// Returns the versions that have a mask.
fn version() -> impl Strategy<Value = Version> {
    let masked = |version: &Version| mask::width(*version) > 0;
    let versions: Vec<Version> = Version::ALL.iter().copied().filter(masked).collect();
    proptest::sample::select(versions)
}

/// Builds an empty grid of a version.
fn grid(version: Version) -> Vec<u32> {
    let mut qmd = vec![0; version.words()];
    if let Some(field) = version.field("QMD_TYPE") {
        field.set(&mut qmd, 2).unwrap();
    }
    qmd
}

fn bit(words: &[u32; MASK_WORDS], tpc: u16) -> bool {
    words[usize::from(tpc / 32)] >> (tpc % 32) & 1 != 0
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_mask_holds_what_is_no_more_than_a_wave(
        version in version(),
        threads in [0u32..1100, 1u32..5, 1u32..3],
        registers in 0u32..300,
        shared in 0u32..300_000,
        tpcs in 0u16..130,
        blocks in prop_oneof![0u64..10, 0u64..20_000, any::<u64>()],
    ) {
        with_layout!(version, L => {
            let mut qmd = vec![0; version.words()];
            for (field, threads) in L::BLOCK.into_iter().zip(threads) {
                field.set(&mut qmd, threads & field.max()).unwrap();
            }
            L::REGISTERS.set(&mut qmd, registers & L::REGISTERS.max()).unwrap();
            let shared = shared >> L::SHARED_MEMORY_SHIFT & L::SHARED_MEMORY.max();
            L::SHARED_MEMORY.set(&mut qmd, shared).unwrap();
            let per_tpc = occupancy::per_tpc(&Launch::read(&qmd, version).unwrap());
            let wave = u64::from(per_tpc) * u64::from(tpcs);
            for blocks in [blocks, wave, wave.saturating_add(1), wave.saturating_sub(1)] {
                prop_assert_eq!(occupancy::holds::<L>(&qmd, blocks, tpcs), blocks <= wave);
            }
        });
    }

    #[test]
    fn tpcs_that_either_disables_are_disabled(
        version in version(),
        tpcs in 2u16..=256,
        tenant in proptest::collection::vec(0u16..256, 0..40),
        ours in proptest::collection::vec(0u16..256, 0..40),
    ) {
        let width = mask::width(version);
        let tpcs = tpcs.min(width);
        let tenant: Vec<u16> = tenant.into_iter().filter(|tpc| *tpc < tpcs).collect();
        let ours: Vec<u16> = ours.into_iter().filter(|tpc| *tpc < tpcs).collect();
        let mut qmd = grid(version);
        let make = |disabled: &[u16]| {
            let mut made = DisabledTpcs::none(tpcs).unwrap();
            for tpc in disabled {
                made.disable(*tpc).unwrap();
            }
            made
        };
        let (tenant_mask, our_mask) = (make(&tenant), make(&ours));
        mask::write(&mut qmd, version, Some(tenant_mask.words()));
        prop_assert_eq!(mask::read(&qmd, version), Some(*tenant_mask.words()));
        let before = qmd.clone();
        let applied = mask::apply(&mut qmd, version, &our_mask);
        let all = tenant.iter().chain(&ours).collect::<std::collections::BTreeSet<_>>().len();
        if our_mask.enabled() == 0 {
            prop_assert_eq!(applied, Err(Reason::MaskEmpty));
            prop_assert_eq!(qmd, before);
            return Ok(());
        }
        let wanted = if all == usize::from(tpcs) { Applied::Overrode } else { Applied::United };
        prop_assert_eq!(applied, Ok(wanted));
        let read = mask::read(&qmd, version).unwrap();
        for tpc in 0..tpcs {
            let united = our_mask.is_disabled(tpc) || tenant_mask.is_disabled(tpc);
            let expected = if wanted == Applied::Overrode { our_mask.is_disabled(tpc) } else { united };
            prop_assert_eq!(bit(&read, tpc), expected, "TPC {}", tpc);
        }
        // Only the mask has changed.
        mask::write(&mut qmd, version, Some(tenant_mask.words()));
        prop_assert_eq!(&qmd, &before);
        // Applying a mask again changes nothing.
        mask::apply(&mut qmd, version, &our_mask).unwrap();
        let once = qmd.clone();
        mask::apply(&mut qmd, version, &our_mask).unwrap();
        prop_assert_eq!(qmd, once);
    }

    #[test]
    fn a_mask_that_a_layout_cannot_hold_is_refused(
        version in proptest::sample::select(&[
            Version::V02_03,
            Version::V02_04,
            Version::V03_00,
            Version::V04_00,
        ]),
        above in 0u16..64,
    ) {
        let width = mask::width(version);
        let mut mask = DisabledTpcs::none(TPCS_MAX).unwrap();
        mask.disable(width + above).unwrap();
        let mut qmd = grid(version);
        let before = qmd.clone();
        prop_assert_eq!(mask::apply(&mut qmd, version, &mask), Err(Reason::MaskTooNarrow));
        prop_assert_eq!(qmd, before);
    }
}

#[test]
fn the_widths_are_those_of_the_hardware() {
    let widths: Vec<_> = Version::ALL
        .iter()
        .map(|version| mask::width(*version))
        .collect();
    assert_eq!(widths, [64, 64, 72, 128, 256, 256, 0]);
}

#[test]
fn words_of_a_mask_that_is_not_valid_do_not_count() {
    let mut qmd = grid(Version::V04_00);
    v04_00::TPC_DISABLE_MASK.set(&mut qmd, u32::MAX).unwrap();
    assert_eq!(mask::read(&qmd, Version::V04_00), None);
    let ours = DisabledTpcs::keep_only(66, [0, 65]).unwrap();
    assert_eq!(
        mask::apply(&mut qmd, Version::V04_00, &ours),
        Ok(Applied::United)
    );
    assert_eq!(mask::read(&qmd, Version::V04_00).unwrap()[..3], [!1, !0, 1]);
    mask::write(&mut qmd, Version::V04_00, None);
    assert_eq!(mask::read(&qmd, Version::V04_00), None);
}

#[test]
fn a_mask_knows_its_gpu() {
    assert_eq!(DisabledTpcs::none(0), Err(OutOfRange));
    assert_eq!(DisabledTpcs::none(257), Err(OutOfRange));
    assert_eq!(DisabledTpcs::none(66).unwrap().disable(66), Err(OutOfRange));
    let mask = DisabledTpcs::keep_only(66, 60..66).unwrap();
    assert_eq!((mask.enabled(), mask.disabled(), mask.tpcs()), (6, 60, 66));
}

#[test]
fn blocks_that_must_be_together_are_not_squeezed() {
    let mut qmd = grid(Version::V04_00);
    for (field, value) in [
        (v04_00::QMD_TYPE, 4),
        (v04_00::GRID_WIDTH, 1),
        (v04_00::GRID_HEIGHT, 1),
        (v04_00::GRID_DEPTH, 1),
        (v04_00::GPU_CGA_WIDTH, 132),
        (v04_00::GPU_CGA_HEIGHT, 1),
        (v04_00::GPU_CGA_DEPTH, 1),
        (v04_00::CTA_THREAD_DIMENSION0, 1024),
        (v04_00::CTA_THREAD_DIMENSION1, 1),
        (v04_00::CTA_THREAD_DIMENSION2, 1),
        (v04_00::REGISTER_COUNT, 32),
        (v04_00::SHARED_MEMORY_SIZE, 1024),
    ] {
        field.set(&mut qmd, value).unwrap();
    }
    // Two blocks of 1024 threads fit on an SM, four on a TPC: 132 need 33 TPCs.
    let enough = DisabledTpcs::keep_only(66, 0..33).unwrap();
    let few = DisabledTpcs::keep_only(66, 0..32).unwrap();
    assert_eq!(
        mask::apply(&mut qmd.clone(), Version::V04_00, &few),
        Err(Reason::TooWide)
    );
    assert_eq!(
        mask::apply(&mut qmd.clone(), Version::V04_00, &enough),
        Ok(Applied::United)
    );
    v04_00::REGISTER_COUNT.set(&mut qmd, 64).unwrap();
    assert_eq!(
        mask::apply(&mut qmd, Version::V04_00, &enough),
        Err(Reason::TooWide)
    );
}

/// Builds GPCs of four TPCs, of which bits 0-2, 4-7 and 8, and a single one, exist.
fn with_holes() -> Topology {
    let existing = *TpcMask::parse(b"0-2,4-8,12").unwrap().words();
    let [a, b, c, d] = existing;
    Topology::from_words([a, b, c, d, 3 << 16 | 4])
}

#[test]
fn a_mask_leaves_a_tpc_that_exists() {
    let gpu = with_holes();
    let outside =
        |list: &str| DisabledTpcs::outside(&gpu, &TpcMask::parse(list.as_bytes()).unwrap());
    assert_eq!(outside("3,9-11,13-127"), Err(OutOfRange));
    let mask = outside("3-4").unwrap();
    assert_eq!((mask.enabled(), mask.disabled(), mask.tpcs()), (1, 8, 13));
    assert!(!mask.is_disabled(4) && !mask.is_disabled(3) && mask.is_disabled(12));
    // The mask of a tenant that leaves itself only holes is replaced.
    let mut qmd = grid(Version::V04_00);
    mask::write(
        &mut qmd,
        Version::V04_00,
        Some(&[1 << 4, 0, 0, 0, 0, 0, 0, 0]),
    );
    let applied = mask::apply(&mut qmd, Version::V04_00, &mask);
    assert_eq!(applied, Ok(Applied::Overrode));
    assert_eq!(DisabledTpcs::none_of(&Topology::UNKNOWN), Err(OutOfRange));
}

/// Builds a launch of clusters of `blocks` blocks.
fn clusters(blocks: u32) -> Vec<u32> {
    let mut qmd = grid(Version::V04_00);
    for (field, value) in [
        (v04_00::QMD_TYPE, 3),
        (v04_00::GPC_CGA_WIDTH, blocks),
        (v04_00::GPC_CGA_HEIGHT, 1),
        (v04_00::GPC_CGA_DEPTH, 1),
    ] {
        field.set(&mut qmd, value).unwrap();
    }
    qmd
}

/// Checks launches that never start on H100s.
#[test]
fn clusters_that_no_gpc_can_place_are_left_alone() {
    let gpu = with_holes();
    for (list, blocks, fits) in [
        ("0-8", 8, true),
        ("0-8", 9, false),
        ("0-2,8,12", 6, true),
        ("0-2,8,12", 8, false),
        ("2,4,8,12", 2, true),
        ("2,4,8,12", 4, false),
    ] {
        let allowed = TpcMask::parse(list.as_bytes()).unwrap();
        let mask = DisabledTpcs::outside(&gpu, &allowed).unwrap();
        let applied = mask::apply(&mut clusters(blocks), Version::V04_00, &mask);
        let expected = if fits {
            Ok(Applied::United)
        } else {
            Err(Reason::TooWide)
        };
        assert_eq!(applied, expected, "clusters of {blocks} on {list}");
    }
    // The tenant's own mask leaves fewer TPCs.
    let mask = DisabledTpcs::outside(&gpu, &TpcMask::parse(b"4-7").unwrap()).unwrap();
    let mut qmd = clusters(8);
    mask::write(
        &mut qmd,
        Version::V04_00,
        Some(&[1 << 5, 0, 0, 0, 0, 0, 0, 0]),
    );
    let before = qmd.clone();
    let applied = mask::apply(&mut qmd, Version::V04_00, &mask);
    assert_eq!((applied, qmd), (Err(Reason::TooWide), before));
}

/// Checks that beside a quota of 40 a tenant has 26 TPCs, however many bits.
#[test]
fn a_cooperative_launch_counts_tpcs_that_exist() {
    let mut qmd = grid(Version::V04_00);
    for (field, value) in [
        (v04_00::QMD_TYPE, 4),
        (v04_00::GRID_WIDTH, 1),
        (v04_00::GRID_HEIGHT, 1),
        (v04_00::GRID_DEPTH, 1),
        (v04_00::GPU_CGA_HEIGHT, 1),
        (v04_00::GPU_CGA_DEPTH, 1),
        (v04_00::CTA_THREAD_DIMENSION0, 1024),
        (v04_00::CTA_THREAD_DIMENSION1, 1),
        (v04_00::CTA_THREAD_DIMENSION2, 1),
        (v04_00::REGISTER_COUNT, 64),
    ] {
        field.set(&mut qmd, value).unwrap();
    }
    let mask = DisabledTpcs::outside(&with_holes(), &TpcMask::parse(b"4-127").unwrap()).unwrap();
    for (blocks, expected) in [(12, Ok(Applied::United)), (13, Err(Reason::TooWide))] {
        v04_00::GPU_CGA_WIDTH.set(&mut qmd, blocks).unwrap();
        assert_eq!(
            mask::apply(&mut qmd.clone(), Version::V04_00, &mask),
            expected
        );
    }
}

#[test]
fn queues_and_empty_qmds_are_not_masked() {
    let ours = DisabledTpcs::keep_only(66, [0]).unwrap();
    for (kind, reason) in [(0, Reason::Queue), (1, Reason::Null), (7, Reason::Kind)] {
        let mut qmd = grid(Version::V05_00);
        v05_00::QMD_TYPE.set(&mut qmd, kind).unwrap();
        assert_eq!(mask::apply(&mut qmd, Version::V05_00, &ours), Err(reason));
    }
}

proptest! {
    #![proptest_config(config())]

    /// A mask that is written to a launch of any words is read back, and no other bit changes.
    #[test]
    fn a_mask_changes_its_bits_alone(
        version in version(),
        words in proptest::collection::vec(any::<u32>(), 96),
        mask in any::<[u32; MASK_WORDS]>(),
    ) {
        let is_in = |bit: u16| bit < mask::width(version);
        let mut mask = mask;
        for bit in (0..TPCS_MAX).filter(|bit| !is_in(*bit)) {
            mask[usize::from(bit / 32)] &= !(1 << (bit % 32));
        }
        let mut written = words.clone();
        mask::write(&mut written, version, Some(&mask));
        prop_assert_eq!(mask::read(&written, version), Some(mask));
        let mut bits = vec![0u32; 96];
        with_layout!(version, L => {
            for field in L::MASK.iter().chain(&L::MASK_VALID) {
                field.set(&mut bits, field.max()).unwrap();
            }
        });
        for ((before, after), bits) in words.iter().zip(&written).zip(bits) {
            prop_assert_eq!(before & !bits, after & !bits);
        }
    }

    /// Version 5.1 has no mask and several grids: no order changes a bit of it.
    #[test]
    fn a_launch_of_sub_tasks_stays_as_it_is(
        words in proptest::collection::vec(any::<u32>(), 96),
        kept in 0u16..256,
    ) {
        let version = Version::V05_01;
        let mut qmd = words.clone();
        let ours = DisabledTpcs::keep_only(256, [kept]).unwrap();
        prop_assert_eq!(mask::apply(&mut qmd, version, &ours), Err(Reason::SubTasks));
        mask::write(&mut qmd, version, Some(ours.words()));
        mask::write(&mut qmd, version, None);
        prop_assert_eq!(&qmd, &words);
        v05_01::QMD_TYPE.set(&mut qmd, 2).unwrap();
        prop_assert_eq!(Launch::splittable(&qmd, version, true), Err(Reason::SubTasks));
    }
}
