// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines QMD version 02.04: GA100 (A100), 2048 bits.
//!
//! CUDA uses this version on an A100. `CTA_RASTER_*` is what later versions call `GRID_*`. There is
//! no `QMD_TYPE`, only `IS_QUEUE`. So a cooperative launch cannot be told from another one, and
//! there is no `GRID_NULL` for a join.
//!
//! Source: `clc6c0qmd.h` of NVIDIA/open-gpu-doc (`classes/compute`, commit c8607fe of July 2025). A
//! field `NAME` below is `NVC6C0_QMDV02_04_NAME` there, stated as in the header: `high bit : low
//! bit`, with `[instances, stride]` where the header has an index `(i)`. Reserved bits are left
//! out, and fields that are where version 2.3 has them. `tests.rs` compares every field with the
//! header.

use super::{
    DependentFields, Field, LatchFields, Layout, ReferenceFields, ReleaseFields, Shared, TypeField,
    Version,
};

/// The layout of version 2.4.
#[derive(Clone, Copy, Debug)]
pub struct V02_04;

impl Layout for V02_04 {
    const VERSION: Version = Version::V02_04;
    const WORDS: usize = WORDS;
    const FIELDS: &'static [Field] = FIELDS;
    const SHARED: Option<Shared> = SHARED;
    const TYPE: TypeField = TypeField::Queue(IS_QUEUE);
    const GRID: [Field; 3] = [CTA_RASTER_WIDTH, CTA_RASTER_HEIGHT, CTA_RASTER_DEPTH];
    const RESUME: [Field; 3] = [
        CTA_RASTER_WIDTH_RESUME,
        CTA_RASTER_HEIGHT_RESUME,
        CTA_RASTER_DEPTH_RESUME,
    ];
    const RESUME_STATE: &'static [Field] = &[];
    const BLOCK: [Field; 3] = super::block_fields!();
    const CLUSTER: Option<[Field; 3]> = None;
    const GANG: Option<[Field; 3]> = None;
    const REGISTERS: Field = REGISTER_COUNT_V;
    const SHARED_MEMORY: Field = SHARED_MEMORY_SIZE;
    const SHARED_MEMORY_SHIFT: u32 = 0;
    const PROGRAM: [Field; 2] = [PROGRAM_ADDRESS_LOWER, PROGRAM_ADDRESS_UPPER];
    const PROGRAM_SHIFT: u32 = 0;
    const DEPENDENCE_COUNTER: Option<Field> = Some(DEPENDENCE_COUNTER);
    const REQUIRE_SCHEDULING_PCAS: Field = REQUIRE_SCHEDULING_PCAS;
    const SELF_COPY_ON_COMPLETION: Option<Field> = Some(SELF_COPY_ON_COMPLETION);
    const SEQUENTIALLY_RUN_CTAS: Option<Field> = Some(SEQUENTIALLY_RUN_CTAS);
    const LAUNCH_QUEUE: Option<Field> = None;
    const MASK_VALID: Option<Field> = None;
    const MASK: &'static [Field] = &[SM_DISABLE_MASK_LOWER, SM_DISABLE_MASK_UPPER];
    const RELEASES: &'static [ReleaseFields] = super::releases_of_version_2!();
    const DEPENDENTS: &'static [DependentFields] = super::dependents_of_versions_2_and_3!();
    const LATCH: Option<LatchFields> = None;
    const REFERENCE: ReferenceFields = super::reference_fields!();
    const SPLIT_MEASURED: bool = false;
}
super::fields! {
    "NVC6C0_QMDV02_04": 64 words;
    like v02_03 without [
        DEPENDENT_QMD_SCHEDULE_ENABLE, DEPENDENT_QMD_TYPE, DEPENDENT_QMD_FIELD_COPY,
        DEPENDENT_QMD_POINTER, REGISTER_COUNT
    ];
    DEPENDENT_QMD0_ENABLE = 141 : 141;
    DEPENDENT_QMD0_ACTION = 144 : 142;
    DEPENDENT_QMD0_PREFETCH = 145 : 145;
    DEPENDENT_QMD1_ENABLE = 146 : 146;
    DEPENDENT_QMD1_ACTION = 149 : 147;
    DEPENDENT_QMD1_PREFETCH = 150 : 150;
    DEPENDENCE_COUNTER = 157 : 151;
    SELF_COPY_ON_COMPLETION = 158 : 158;
    DEMOTE_L2_EVICT_LAST = 185 : 185;
    DISABLE_AUTO_INVALIDATE = 383 : 383;
    DEPENDENT_QMD0_POINTER = 511 : 480;
    PROGRAM_PREFETCH_TYPE = 1011 : 1010;
    HW_ONLY_DEPENDENCE_COUNTER = 1734 : 1728;
}
