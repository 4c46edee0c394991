// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines QMD version 05.01: Blackwell, several programs in one launch, 3072 bits.
//!
//! `clcec0qmd.h` agrees on every bit. The first 768 bits are those of version 5.0. Sub-tasks
//! follow, each with a program and a grid. `TPC_DISABLE_MASK_VALID` is there, a mask is not. So
//! such a launch is neither masked nor split ([`Reason::SubTasks`](crate::submit::reason::Reason)).
//! What is read of its grid is that of the first sub-task.
//!
//! The header states neither the size nor how many sub-tasks there are. Five fit into 384 bytes,
//! the longest inline QMD (inferred). Its aliases `DEPENDENT_QMD0_*` and `DEPENDENT_QMD1_*` are the
//! instances 0 and 1 of `DEPENDENT_QMD_*` and are not repeated, and neither are those of
//! `SUB_TASK_CONSTANT_BANK0_*` and `.._BANK1_*` with a second index.
//!
//! Source: `clcdc0qmd.h` of NVIDIA/open-gpu-doc (`classes/compute`, commit c8607fe of July 2025). A
//! field `NAME` below is `NVCDC0_QMDV05_01_NAME` there, stated as in the header: `high bit : low
//! bit`, with `[instances, stride]` where the header has an index `(i)`. Reserved bits are left
//! out, and fields that are where version 5.0 has them. `tests.rs` compares every field with the
//! header.

use super::{
    DependentFields, Field, LatchFields, Layout, ReferenceFields, ReleaseFields, Shared, TypeField,
    Version,
};

/// The layout of version 5.1.
#[derive(Clone, Copy, Debug)]
pub struct V05_01;

impl Layout for V05_01 {
    const VERSION: Version = Version::V05_01;
    const WORDS: usize = WORDS;
    const FIELDS: &'static [Field] = FIELDS;
    const SHARED: Option<Shared> = SHARED;
    const TYPE: TypeField = TypeField::Typed(QMD_TYPE);
    const GRID: [Field; 3] = [
        SUB_TASK_GRID_WIDTH.nth(0),
        SUB_TASK_GRID_HEIGHT.nth(0),
        SUB_TASK_GRID_DEPTH.nth(0),
    ];
    const RESUME: [Field; 3] = [GRID_WIDTH_RESUME, GRID_HEIGHT_RESUME, GRID_DEPTH_RESUME];
    const RESUME_STATE: &'static [Field] = &[RESUME_SUB_TASK_ID, COMPLETED_SUB_TASK_MASK];
    const BLOCK: [Field; 3] = [
        SUB_TASK_CTA_THREAD_DIMENSION0.nth(0),
        SUB_TASK_CTA_THREAD_DIMENSION1.nth(0),
        SUB_TASK_CTA_THREAD_DIMENSION2.nth(0),
    ];
    const CLUSTER: Option<[Field; 3]> = None;
    const GANG: Option<[Field; 3]> = None;
    const REGISTERS: Field = SUB_TASK_REGISTER_COUNT.nth(0);
    const SHARED_MEMORY: Field = SUB_TASK_SHARED_MEMORY_SIZE_SHIFTED7.nth(0);
    const SHARED_MEMORY_SHIFT: u32 = 7;
    const PROGRAM: [Field; 2] = [
        SUB_TASK_PROGRAM_ADDRESS_LOWER_SHIFTED4.nth(0),
        SUB_TASK_PROGRAM_ADDRESS_UPPER_SHIFTED4.nth(0),
    ];
    const PROGRAM_SHIFT: u32 = 4;
    const DEPENDENCE_COUNTER: Option<Field> = Some(DEPENDENCE_COUNTER);
    const REQUIRE_SCHEDULING_PCAS: Field = REQUIRE_SCHEDULING_PCAS;
    const SELF_COPY_ON_COMPLETION: Option<Field> = Some(SELF_COPY_ON_COMPLETION);
    const SEQUENTIALLY_RUN_CTAS: Option<Field> = None;
    const LAUNCH_QUEUE: Option<Field> = Some(CTA_LAUNCH_QUEUE);
    const MASK_VALID: Option<Field> = None;
    const MASK: &'static [Field] = &[];
    const RELEASES: &'static [ReleaseFields] = &[super::release_of_versions_4_and_5!(
        0,
        RELEASE_SEMAPHORE0_ADDR_LOWER,
        RELEASE_SEMAPHORE0_ADDR_UPPER,
        RELEASE_SEMAPHORE0_PAYLOAD_LOWER,
        RELEASE_SEMAPHORE0_PAYLOAD_UPPER
    )];
    const DEPENDENTS: &'static [DependentFields] = super::dependents_of_versions_4_and_5!(
        DEPENDENT_QMD_POINTER.nth(0),
        DEPENDENT_QMD_POINTER.nth(1)
    );
    const LATCH: Option<LatchFields> = Some(super::latch_fields!());
    const REFERENCE: ReferenceFields = super::reference_fields!();
    const SPLIT_MEASURED: bool = false;
}
super::fields! {
    "NVCDC0_QMDV05_01": 96 words;
    like v05_00 below 768;
    SUB_TASK_PROGRAM_ADDRESS_LOWER_SHIFTED4 = 799 : 768 [5, 416];
    SUB_TASK_PROGRAM_ADDRESS_UPPER_SHIFTED4 = 820 : 800 [5, 416];
    SUB_TASK_PROGRAM_PREFETCH_SIZE = 829 : 821 [5, 416];
    SUB_TASK_PROGRAM_PREFETCH_TYPE = 831 : 830 [5, 416];
    SUB_TASK_CTA_THREAD_DIMENSION0 = 847 : 832 [5, 416];
    SUB_TASK_CTA_THREAD_DIMENSION1 = 863 : 848 [5, 416];
    SUB_TASK_CTA_THREAD_DIMENSION2 = 871 : 864 [5, 416];
    SUB_TASK_REGISTER_COUNT = 880 : 872 [5, 416];
    SUB_TASK_BARRIER_COUNT = 885 : 881 [5, 416];
    SUB_TASK_CONSTANT_BANK0_VALID = 886 : 886 [5, 416];
    SUB_TASK_CONSTANT_BANK0_PREFETCH = 888 : 887 [5, 416];
    SUB_TASK_CONSTANT_BANK0_INVALIDATE = 889 : 889 [5, 416];
    SUB_TASK_ICC_PREFETCH_SIZE = 895 : 890 [5, 416];
    SUB_TASK_SHARED_MEMORY_SIZE_SHIFTED7 = 906 : 896 [5, 416];
    SUB_TASK_MIN_SM_CONFIG_SHARED_MEM_SIZE = 912 : 907 [5, 416];
    SUB_TASK_MAX_SM_CONFIG_SHARED_MEM_SIZE = 918 : 913 [5, 416];
    SUB_TASK_TARGET_SM_CONFIG_SHARED_MEM_SIZE = 924 : 919 [5, 416];
    SUB_TASK_SHARED_MEM_BARRIER_INIT_ENABLE = 925 : 925 [5, 416];
    SUB_TASK_SHADER_LOCAL_MEMORY_LOW_SIZE_SHIFTED4 = 943 : 928 [5, 416];
    SUB_TASK_SHADER_LOCAL_MEMORY_HIGH_SIZE_SHIFTED4 = 959 : 944 [5, 416];
    SUB_TASK_CONSTANT_BANK0_ADDR_LOWER_SHIFTED6 = 991 : 960 [5, 416];
    SUB_TASK_CONSTANT_BANK0_ADDR_UPPER_SHIFTED6 = 1010 : 992 [5, 416];
    SUB_TASK_CONSTANT_BANK0_SIZE_SHIFTED4 = 1023 : 1011 [5, 416];
    SUB_TASK_CONSTANT_BANK1_ADDR_LOWER_SHIFTED6 = 1055 : 1024 [5, 416];
    SUB_TASK_CONSTANT_BANK1_ADDR_UPPER_SHIFTED6 = 1074 : 1056 [5, 416];
    SUB_TASK_CONSTANT_BANK1_SIZE_SHIFTED4 = 1087 : 1075 [5, 416];
    SUB_TASK_CONSTANT_BANK1_VALID = 1088 : 1088 [5, 416];
    SUB_TASK_CONSTANT_BANK1_PREFETCH = 1090 : 1089 [5, 416];
    SUB_TASK_CONSTANT_BANK1_INVALIDATE = 1091 : 1091 [5, 416];
    SUB_TASK_VIRTUAL_RESOURCE_COUNT = 1099 : 1092 [5, 416];
    SUB_TASK_GRID_WIDTH = 1151 : 1120 [5, 416];
    SUB_TASK_GRID_HEIGHT = 1167 : 1152 [5, 416];
    SUB_TASK_GRID_DEPTH = 1183 : 1168 [5, 416];
}
