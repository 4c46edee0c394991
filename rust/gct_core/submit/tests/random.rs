// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Generates random launches and their segments.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use crate::submit::method::{immediate, incr, non_incr, one_incr};
use crate::submit::methods;
use crate::submit::qmd::v04_00 as q;

/// Configures random tests. Failing cases are not written to files: a failure prints its smallest
/// case, which becomes a test of its own.
pub(super) fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// A launch by its properties.
#[derive(Clone, Debug)]
pub(super) struct Random {
    pub(super) kind: u32,
    pub(super) grid: [u32; 3],
    pub(super) cluster: [u32; 3],
    pub(super) effects: u32,
    pub(super) waits: u32,
    pub(super) tenant_mask: Option<[u32; 4]>,
    pub(super) noise: Vec<u32>,
    pub(super) form: u8,
}

/// Generates any launch, mostly of kinds that can be split.
pub(super) fn random() -> impl Strategy<Value = Random> {
    let size = prop_oneof![Just(1u32), 1u32..40, 1u32..5000];
    let small = prop_oneof![Just(1u32), 1u32..30];
    (
        prop_oneof![3 => Just(2u32), 1 => Just(3u32), 1 => 0u32..8],
        (size, small.clone(), small),
        (1u32..4, 1u32..3, 1u32..2),
        0u32..256,
        prop_oneof![4 => Just(0u32), 1 => 0u32..64],
        proptest::option::of(any::<[u32; 4]>()),
        proptest::collection::vec(any::<u32>(), 96),
        0u8..4,
    )
        .prop_map(
            |(kind, grid, cluster, effects, waits, tenant_mask, noise, form)| Random {
                kind,
                grid: grid.into(),
                cluster: cluster.into(),
                effects,
                waits,
                tenant_mask,
                noise,
                form,
            },
        )
}

/// Returns the address of launch `index`'s QMD.
pub(super) fn qmd_va(index: usize) -> u64 {
    0x2_04e0_0000 + 0x800 * u64::try_from(index).unwrap()
}

impl Random {
    /// Builds the QMD: noise, and the launch's properties over it.
    pub(super) fn qmd(&self, index: usize) -> Vec<u32> {
        let mut qmd = self.noise.clone();
        let set = [
            (q::QMD_MINOR_VERSION, 0),
            (q::QMD_MAJOR_VERSION, 4),
            (q::QMD_TYPE, self.kind),
            (q::GRID_WIDTH, self.grid[0]),
            (q::GRID_HEIGHT, self.grid[1]),
            (q::GRID_DEPTH, self.grid[2]),
            (q::GRID_WIDTH_RESUME, 0),
            (q::GRID_HEIGHT_RESUME, 0),
            (q::GRID_DEPTH_RESUME, 0),
            (q::GPC_CGA_WIDTH, self.cluster[0]),
            (q::GPC_CGA_HEIGHT, self.cluster[1]),
            (q::GPC_CGA_DEPTH, self.cluster[2]),
            (q::GPU_CGA_WIDTH, 132),
            (q::GPU_CGA_HEIGHT, 1),
            (q::GPU_CGA_DEPTH, 1),
            (q::CTA_THREAD_DIMENSION0, 128),
            (q::CTA_THREAD_DIMENSION1, 1),
            (q::CTA_THREAD_DIMENSION2, 1),
            (q::REGISTER_COUNT, 32),
            (q::SHARED_MEMORY_SIZE, 1024),
            (q::RELEASE_ENABLE.nth(0), self.effects & 1),
            (q::RELEASE_ENABLE.nth(1), self.effects >> 1 & 1),
            (q::RELEASE_ENABLE.nth(2), self.effects >> 2 & 1),
            (q::ARRIVE_AT_LATCH_VALID, self.effects >> 3 & 1),
            (q::DEPENDENT_QMD_ENABLE.nth(0), self.effects >> 4 & 1),
            (q::DEPENDENT_QMD_ENABLE.nth(1), self.effects >> 5 & 1),
            (q::CWD_REFERENCE_COUNT_INCR_ENABLE, self.effects >> 6 & 1),
            (q::ENABLE_PROGRAM_PRE_EXIT, self.effects >> 7 & 1),
            (q::WAIT_ON_LATCH_VALID, self.waits & 1),
            (q::REQUIRE_SCHEDULING_PCAS, self.waits >> 1 & 1),
            (q::DEPENDENCE_COUNTER, self.waits >> 2 & 1),
            (q::SELF_COPY_ON_COMPLETION, self.waits >> 3 & 1),
            (q::SEQUENTIALLY_RUN_CTAS, self.waits >> 4 & 1),
            (q::CTA_LAUNCH_QUEUE, self.waits >> 5 & 1),
            (
                q::TPC_DISABLE_MASK_VALID,
                u32::from(self.tenant_mask.is_some()),
            ),
            // At another address than any other QMD of the segment.
            (
                q::DEPENDENT_QMD0_POINTER,
                0x0300_0000 + u32::try_from(index).unwrap(),
            ),
        ];
        for (field, value) in set {
            field.set(&mut qmd, value).unwrap();
        }
        for (index, word) in (0u8..).zip(self.tenant_mask.unwrap_or([0; 4])) {
            q::TPC_DISABLE_MASK.nth(index).set(&mut qmd, word).unwrap();
        }
        qmd
    }

    /// Builds the words that upload and schedule it, in one of four equivalent encodings.
    pub(super) fn words(&self, index: usize) -> Vec<u32> {
        let va = qmd_va(index);
        let (high, low) = ((va >> 32) as u32, va as u32);
        let qmd = self.qmd(index);
        let mut words = match self.form {
            0 => vec![
                incr(1, methods::OFFSET_OUT_UPPER, 2),
                high,
                low,
                incr(1, methods::LINE_LENGTH_IN, 2),
                384,
                1,
                incr(1, methods::LAUNCH_DMA, 1),
                0x41,
                non_incr(1, methods::LOAD_INLINE_DATA, 96),
            ],
            1 => vec![
                incr(1, methods::LINE_LENGTH_IN, 4),
                384,
                1,
                high,
                low,
                immediate(1, methods::LAUNCH_DMA, 0x41),
                0,
                non_incr(1, methods::LOAD_INLINE_DATA, 96),
            ],
            2 => vec![
                immediate(1, methods::LINE_LENGTH_IN, 384),
                immediate(1, methods::LINE_COUNT, 1),
                immediate(1, methods::OFFSET_OUT_UPPER, high),
                one_incr(1, methods::OFFSET_OUT, 1),
                low,
                one_incr(1, methods::LAUNCH_DMA, 97),
                0x11,
            ],
            _ => vec![
                one_incr(1, methods::OFFSET_OUT_UPPER, 2),
                high,
                low,
                non_incr(1, methods::LINE_LENGTH_IN, 2),
                7,
                384,
                immediate(1, methods::LINE_COUNT, 1),
                one_incr(1, methods::LAUNCH_DMA, 97),
                0x41,
            ],
        };
        words.extend(qmd);
        let address = (va >> 8) as u32;
        match self.form {
            0 | 2 => words.extend([
                incr(1, methods::SEND_PCAS_A, 1),
                address,
                incr(1, methods::SEND_SIGNALING_PCAS2_B, 1),
                0xa,
            ]),
            1 => words.extend([
                one_incr(1, methods::SEND_PCAS_A, 1),
                address,
                immediate(1, methods::SEND_SIGNALING_PCAS2_B, 0xa),
            ]),
            _ => words.extend([
                non_incr(1, methods::SEND_PCAS_A, 2),
                1,
                address,
                immediate(1, methods::SEND_SIGNALING_PCAS_B, 3),
            ]),
        }
        words
    }
}

/// Builds the words of several launches, one after another.
pub(super) fn words_of(launches: &[Random]) -> Vec<u32> {
    launches
        .iter()
        .enumerate()
        .flat_map(|(index, launch)| launch.words(index))
        .collect()
}
