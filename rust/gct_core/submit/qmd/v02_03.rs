// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines QMD version 02.03: Turing's last, which Ampere's classes take as well, 2048 bits.
//!
//! CUDA is not known to use it on Ampere. `clc5c0qmd.h` and `clc7c0qmd.h` agree on every bit. It
//! has neither a dependence counter nor a copy of itself, and its one dependent has no action: it
//! is scheduled.
//!
//! Source: `clc6c0qmd.h` of NVIDIA/open-gpu-doc (`classes/compute`, commit c8607fe of July 2025). A
//! field `NAME` below is `NVC6C0_QMDV02_03_NAME` there, stated as in the header: `high bit : low
//! bit`, with `[instances, stride]` where the header has an index `(i)`. Reserved bits are left
//! out. `tests.rs` compares every field with the header.

use super::{
    DependentFields, Field, LatchFields, Layout, ReferenceFields, ReleaseFields, TypeField, Version,
};

/// The layout of version 2.3.
#[derive(Clone, Copy, Debug)]
pub struct V02_03;

impl Layout for V02_03 {
    const VERSION: Version = Version::V02_03;
    const WORDS: usize = WORDS;
    const FIELDS: &'static [Field] = FIELDS;
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
    const DEPENDENCE_COUNTER: Option<Field> = None;
    const REQUIRE_SCHEDULING_PCAS: Field = REQUIRE_SCHEDULING_PCAS;
    const SELF_COPY_ON_COMPLETION: Option<Field> = None;
    const SEQUENTIALLY_RUN_CTAS: Option<Field> = Some(SEQUENTIALLY_RUN_CTAS);
    const LAUNCH_QUEUE: Option<Field> = None;
    const MASK_VALID: Option<Field> = None;
    const MASK: &'static [Field] = &[SM_DISABLE_MASK_LOWER, SM_DISABLE_MASK_UPPER];
    const RELEASES: &'static [ReleaseFields] = super::releases_of_version_2!();
    const DEPENDENTS: &'static [DependentFields] = &[DependentFields {
        enable: DEPENDENT_QMD_SCHEDULE_ENABLE,
        action: None,
        prefetch: None,
        pointer: Some(DEPENDENT_QMD_POINTER),
    }];
    const LATCH: Option<LatchFields> = None;
    const REFERENCE: ReferenceFields = super::reference_fields!();
    const SPLIT_MEASURED: bool = false;
}
super::fields! {
    "NVC6C0_QMDV02_03": 64 words;
    OUTER_PUT = 30 : 0;
    OUTER_OVERFLOW = 31 : 31;
    OUTER_GET = 62 : 32;
    OUTER_STICKY_OVERFLOW = 63 : 63;
    INNER_GET = 94 : 64;
    INNER_OVERFLOW = 95 : 95;
    INNER_PUT = 126 : 96;
    INNER_STICKY_OVERFLOW = 127 : 127;
    QMD_GROUP_ID = 133 : 128;
    SM_GLOBAL_CACHING_ENABLE = 134 : 134;
    RUN_CTA_IN_ONE_SM_PARTITION = 135 : 135;
    IS_QUEUE = 136 : 136;
    ADD_TO_HEAD_OF_QMD_GROUP_LINKED_LIST = 137 : 137;
    SEMAPHORE_RELEASE_ENABLE0 = 138 : 138;
    SEMAPHORE_RELEASE_ENABLE1 = 139 : 139;
    REQUIRE_SCHEDULING_PCAS = 140 : 140;
    DEPENDENT_QMD_SCHEDULE_ENABLE = 141 : 141;
    DEPENDENT_QMD_TYPE = 142 : 142;
    DEPENDENT_QMD_FIELD_COPY = 143 : 143;
    CIRCULAR_QUEUE_SIZE = 184 : 160;
    INVALIDATE_TEXTURE_HEADER_CACHE = 186 : 186;
    INVALIDATE_TEXTURE_SAMPLER_CACHE = 187 : 187;
    INVALIDATE_TEXTURE_DATA_CACHE = 188 : 188;
    INVALIDATE_SHADER_DATA_CACHE = 189 : 189;
    INVALIDATE_INSTRUCTION_CACHE = 190 : 190;
    INVALIDATE_SHADER_CONSTANT_CACHE = 191 : 191;
    CTA_RASTER_WIDTH_RESUME = 223 : 192;
    CTA_RASTER_HEIGHT_RESUME = 239 : 224;
    CTA_RASTER_DEPTH_RESUME = 255 : 240;
    PROGRAM_PREFETCH_ADDR_LOWER_SHIFTED = 287 : 256;
    CIRCULAR_QUEUE_ADDR_LOWER = 319 : 288;
    CIRCULAR_QUEUE_ADDR_UPPER = 327 : 320;
    CIRCULAR_QUEUE_ENTRY_SIZE = 351 : 336;
    CWD_REFERENCE_COUNT_ID = 357 : 352;
    CWD_REFERENCE_COUNT_DELTA_MINUS_ONE = 365 : 358;
    RELEASE_MEMBAR_TYPE = 366 : 366;
    CWD_REFERENCE_COUNT_INCR_ENABLE = 367 : 367;
    CWD_MEMBAR_TYPE = 369 : 368;
    SEQUENTIALLY_RUN_CTAS = 370 : 370;
    CWD_REFERENCE_COUNT_DECR_ENABLE = 371 : 371;
    API_VISIBLE_CALL_LIMIT = 378 : 378;
    SAMPLER_INDEX = 382 : 382;
    CTA_RASTER_WIDTH = 415 : 384;
    CTA_RASTER_HEIGHT = 431 : 416;
    CTA_RASTER_DEPTH = 463 : 448;
    DEPENDENT_QMD_POINTER = 511 : 480;
    COALESCE_WAITING_PERIOD = 529 : 522;
    QUEUE_ENTRIES_PER_CTA_LOG2 = 534 : 530;
    SHARED_MEMORY_SIZE = 561 : 544;
    MIN_SM_CONFIG_SHARED_MEM_SIZE = 568 : 562;
    MAX_SM_CONFIG_SHARED_MEM_SIZE = 575 : 569;
    QMD_VERSION = 579 : 576;
    QMD_MAJOR_VERSION = 583 : 580;
    CTA_THREAD_DIMENSION0 = 607 : 592;
    CTA_THREAD_DIMENSION1 = 623 : 608;
    CTA_THREAD_DIMENSION2 = 639 : 624;
    CONSTANT_BUFFER_VALID = 640 : 640 [8, 1];
    REGISTER_COUNT_V = 656 : 648;
    TARGET_SM_CONFIG_SHARED_MEM_SIZE = 663 : 657;
    FREE_CTA_SLOTS_EMPTY_SM = 671 : 664;
    SM_DISABLE_MASK_LOWER = 703 : 672;
    SM_DISABLE_MASK_UPPER = 735 : 704;
    RELEASE0_ADDRESS_LOWER = 767 : 736;
    RELEASE0_ADDRESS_UPPER = 775 : 768;
    RELEASE0_REDUCTION_OP = 790 : 788;
    RELEASE0_REDUCTION_FORMAT = 793 : 792;
    RELEASE0_REDUCTION_ENABLE = 794 : 794;
    RELEASE0_STRUCTURE_SIZE = 799 : 799;
    RELEASE0_PAYLOAD = 831 : 800;
    RELEASE1_ADDRESS_LOWER = 863 : 832;
    RELEASE1_ADDRESS_UPPER = 871 : 864;
    RELEASE1_REDUCTION_OP = 886 : 884;
    RELEASE1_REDUCTION_FORMAT = 889 : 888;
    RELEASE1_REDUCTION_ENABLE = 890 : 890;
    RELEASE1_STRUCTURE_SIZE = 895 : 895;
    RELEASE1_PAYLOAD = 927 : 896;
    SHADER_LOCAL_MEMORY_LOW_SIZE = 951 : 928;
    BARRIER_COUNT = 959 : 955;
    SHADER_LOCAL_MEMORY_HIGH_SIZE = 983 : 960;
    REGISTER_COUNT = 991 : 984;
    PROGRAM_PREFETCH_ADDR_UPPER_SHIFTED = 1000 : 992;
    PROGRAM_PREFETCH_SIZE = 1009 : 1001;
    SASS_VERSION = 1023 : 1016;
    CONSTANT_BUFFER_ADDR_LOWER = 1055 : 1024 [8, 64];
    CONSTANT_BUFFER_ADDR_UPPER = 1072 : 1056 [8, 64];
    CONSTANT_BUFFER_PREFETCH_POST = 1073 : 1073 [8, 64];
    CONSTANT_BUFFER_INVALIDATE = 1074 : 1074 [8, 64];
    CONSTANT_BUFFER_SIZE_SHIFTED4 = 1087 : 1075 [8, 64];
    PROGRAM_ADDRESS_LOWER = 1567 : 1536;
    PROGRAM_ADDRESS_UPPER = 1584 : 1568;
    HW_ONLY_INNER_GET = 1630 : 1600;
    HW_ONLY_REQUIRE_SCHEDULING_PCAS = 1631 : 1631;
    HW_ONLY_INNER_PUT = 1662 : 1632;
    HW_ONLY_SCG_TYPE = 1663 : 1663;
    HW_ONLY_SPAN_LIST_HEAD_INDEX = 1693 : 1664;
    HW_ONLY_SPAN_LIST_HEAD_INDEX_VALID = 1695 : 1695;
    HW_ONLY_SKED_NEXT_QMD_POINTER = 1727 : 1696;
    DEBUG_ID_UPPER = 2015 : 1984;
    DEBUG_ID_LOWER = 2047 : 2016;
}
