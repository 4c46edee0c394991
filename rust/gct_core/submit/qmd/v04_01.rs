// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines QMD version 04.01: Hopper's layout on Blackwell, 3072 bits.
//!
//! `clcec0qmd.h` agrees on every bit. Beside version 4.0 there are upper words of the mask, and
//! more state of RESUME (`INCOMPLETE_BOX_*`). CUDA is not known to use it.
//!
//! Source: `clcdc0qmd.h` of NVIDIA/open-gpu-doc (`classes/compute`, commit c8607fe of July 2025). A
//! field `NAME` below is `NVCDC0_QMDV04_01_NAME` there, stated as in the header: `high bit : low
//! bit`, with `[instances, stride]` where the header has an index `(i)`. Reserved bits are left
//! out, and fields that are where version 4.0 has them. `tests.rs` compares every field with the
//! header.

use super::{
    DependentFields, Field, LatchFields, Layout, ReferenceFields, ReleaseFields, Shared, TypeField,
    Version,
};

/// The layout of version 4.1.
#[derive(Clone, Copy, Debug)]
pub struct V04_01;

impl Layout for V04_01 {
    const VERSION: Version = Version::V04_01;
    const WORDS: usize = WORDS;
    const FIELDS: &'static [Field] = FIELDS;
    const SHARED: Option<Shared> = SHARED;
    const TYPE: TypeField = TypeField::Typed(QMD_TYPE);
    const GRID: [Field; 3] = [GRID_WIDTH, GRID_HEIGHT, GRID_DEPTH];
    const RESUME: [Field; 3] = [GRID_WIDTH_RESUME, GRID_HEIGHT_RESUME, GRID_DEPTH_RESUME];
    const RESUME_STATE: &'static [Field] = &[
        INCOMPLETE_BOX_BASE_WIDTH_RESUME,
        INCOMPLETE_BOX_BASE_HEIGHT_RESUME,
        INCOMPLETE_BOX_BASE_DEPTH_RESUME,
        INCOMPLETE_BOX_OFFSET_WIDTH_RESUME,
        INCOMPLETE_BOX_OFFSET_HEIGHT_RESUME,
    ];
    const BLOCK: [Field; 3] = super::block_fields!();
    const CLUSTER: Option<[Field; 3]> = Some([GPC_CGA_WIDTH, GPC_CGA_HEIGHT, GPC_CGA_DEPTH]);
    const GANG: Option<[Field; 3]> = Some([GPU_CGA_WIDTH, GPU_CGA_HEIGHT, GPU_CGA_DEPTH]);
    const REGISTERS: Field = REGISTER_COUNT;
    const SHARED_MEMORY: Field = SHARED_MEMORY_SIZE;
    const SHARED_MEMORY_SHIFT: u32 = 0;
    const PROGRAM: [Field; 2] = [PROGRAM_ADDRESS_LOWER, PROGRAM_ADDRESS_UPPER];
    const PROGRAM_SHIFT: u32 = 0;
    const DEPENDENCE_COUNTER: Option<Field> = Some(DEPENDENCE_COUNTER);
    const REQUIRE_SCHEDULING_PCAS: Field = REQUIRE_SCHEDULING_PCAS;
    const SELF_COPY_ON_COMPLETION: Option<Field> = Some(SELF_COPY_ON_COMPLETION);
    const SEQUENTIALLY_RUN_CTAS: Option<Field> = Some(SEQUENTIALLY_RUN_CTAS);
    const LAUNCH_QUEUE: Option<Field> = Some(CTA_LAUNCH_QUEUE);
    const MASK_VALID: Option<Field> = Some(TPC_DISABLE_MASK_VALID);
    const MASK: &'static [Field] = &[
        TPC_DISABLE_MASK.nth(0),
        TPC_DISABLE_MASK.nth(1),
        TPC_DISABLE_MASK.nth(2),
        TPC_DISABLE_MASK.nth(3),
        TPC_DISABLE_MASK_UPPER.nth(0),
        TPC_DISABLE_MASK_UPPER.nth(1),
        TPC_DISABLE_MASK_UPPER.nth(2),
        TPC_DISABLE_MASK_UPPER.nth(3),
    ];
    const RELEASES: &'static [ReleaseFields] = super::releases_of_versions_4_and_5!();
    const DEPENDENTS: &'static [DependentFields] =
        super::dependents_of_versions_4_and_5!(DEPENDENT_QMD0_POINTER, DEPENDENT_QMD1_POINTER);
    const LATCH: Option<LatchFields> = Some(super::latch_fields!());
    const REFERENCE: ReferenceFields = super::reference_fields!();
    const SPLIT_MEASURED: bool = false;
}
super::fields! {
    "NVCDC0_QMDV04_01": 96 words;
    like v04_00 without [
        CIRCULAR_QUEUE_ADDR_LOWER, CIRCULAR_QUEUE_ADDR_UPPER, CIRCULAR_QUEUE_ENTRY_SIZE
    ];
    CTA_THREAD_DIMENSION2 = 1191 : 1184;
    VIRTUAL_RESOURCE_COUNT = 1199 : 1192;
    SHARED_MEM_BARRIER_INIT_ENABLE = 1210 : 1210;
    ICC_PREFETCH_SIZE = 1333 : 1328;
    LARGE_GPC_CGA_WIDTH_MINUS_ONE = 2171 : 2168;
    LARGE_GPC_CGA_HEIGHT_MINUS_ONE = 2175 : 2172;
    INCOMPLETE_BOX_BASE_WIDTH_RESUME = 2591 : 2560;
    INCOMPLETE_BOX_BASE_HEIGHT_RESUME = 2607 : 2592;
    INCOMPLETE_BOX_BASE_DEPTH_RESUME = 2623 : 2608;
    INCOMPLETE_BOX_OFFSET_WIDTH_RESUME = 2627 : 2624;
    INCOMPLETE_BOX_OFFSET_HEIGHT_RESUME = 2631 : 2628;
    TPC_DISABLE_MASK_UPPER = 2719 : 2688 [4, 32];
}
