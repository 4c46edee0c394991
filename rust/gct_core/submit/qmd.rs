// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the fields of queue meta data (QMD): the 256 or 384 bytes that describe one launch to the
//! compute work distributor.
//!
//! Each layout version is a module that states every field of NVIDIA's public class header as the
//! header does, `high bit : low bit`, or how they differ from those of an earlier version. The
//! trait [`Layout`] is what the rest of `submit` needs of a version; nothing outside this directory
//! knows a bit number. `tests.rs` compares the tables with the headers.

pub mod v02_03;
pub mod v02_04;
pub mod v03_00;
pub mod v04_00;
pub mod v04_01;
pub mod v05_00;
pub mod v05_01;
mod version;
mod view;

#[cfg(test)]
mod tests;

pub use version::{Family, Version};
pub use view::{Instance, View};

/// A named bit range of a layout. Its `count` instances lie `stride` bits apart.
///
/// No range crosses a 32-bit word (checked where the field is declared), so a value is a `u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Symbol in the class header, without the header's prefix.
    pub name: &'static str,
    /// Highest bit of the first instance.
    pub hi: u16,
    /// Lowest bit of the first instance.
    pub lo: u16,
    /// Number of instances.
    pub count: u8,
    /// Distance of two instances in bits; 0 for a single one.
    pub stride: u16,
}

/// A value that does not fit into its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooWide;

impl Field {
    /// Returns the number of bits.
    #[inline(always)]
    pub const fn width(self) -> u16 {
        (self.hi.abs_diff(self.lo) & 31) + 1
    }

    /// Returns the largest value.
    #[inline(always)]
    pub const fn max(self) -> u32 {
        // CAST: a widening conversion, `From` is not `const`.
        u32::MAX >> (32 - self.width() as u32)
    }

    /// Returns the instance `index` as a field of its own. An index from `count` on names other
    /// bits, or none.
    #[inline(always)]
    pub const fn nth(self, index: u8) -> Self {
        // CAST: they widen, `From` is not `const`; a bit number fits 16 bits.
        let offset = self.stride as u32 * index as u32;
        Self {
            name: self.name,
            hi: (self.hi as u32 + offset) as u16,
            lo: (self.lo as u32 + offset) as u16,
            count: 1,
            stride: 0,
        }
    }

    /// Returns the index of the word that holds the field.
    #[inline(always)]
    pub const fn word(self) -> usize {
        // CAST: a widening conversion, `From` is not `const`.
        (self.lo >> 5) as usize
    }

    /// Returns the shift of the field in that word.
    #[inline(always)]
    pub(crate) const fn shift(self) -> u32 {
        // CAST: a widening conversion, `From` is not `const`.
        (self.lo & 31) as u32
    }

    /// Returns the value in `qmd`, or 0 where `qmd` is too short.
    #[inline(always)]
    pub fn get(self, qmd: &[u32]) -> u32 {
        match qmd.get(self.word()) {
            Some(word) => word >> self.shift() & self.max(),
            None => 0,
        }
    }

    /// Returns whether any bit of the field is set.
    #[inline(always)]
    pub fn is_set(self, qmd: &[u32]) -> bool {
        self.get(qmd) != 0
    }

    /// Stores `value`; where `qmd` is too short nothing happens.
    ///
    /// # Errors
    ///
    /// [`TooWide`] when the value has more bits than the field; `qmd` is unchanged.
    #[inline(always)]
    pub fn set(self, qmd: &mut [u32], value: u32) -> Result<(), TooWide> {
        if value > self.max() {
            return Err(TooWide);
        }
        if let Some(word) = qmd.get_mut(self.word()) {
            *word = self.within(*word, value);
        }
        Ok(())
    }

    /// Returns the word that holds the field, with `value` in the field. Excess bits of `value` are
    /// dropped.
    #[inline(always)]
    pub(crate) const fn within(self, word: u32, value: u32) -> u32 {
        let bits = self.max() << self.shift();
        word & !bits | value << self.shift() & bits
    }

    /// Stores 0, which fits every field.
    #[inline(always)]
    pub fn clear(self, qmd: &mut [u32]) {
        if let Some(word) = qmd.get_mut(self.word()) {
            *word &= !(self.max() << self.shift());
        }
    }

    /// Returns whether every instance lies within one word of a QMD of `words` words. For constant
    /// assertions.
    const fn is_sound(self, words: usize) -> bool {
        let mut index = 0;
        while index < self.count {
            let one = self.nth(index);
            if one.hi < one.lo || one.hi >> 5 != one.lo >> 5 || one.word() >= words {
                return false;
            }
            index += 1;
        }
        self.count > 0 && (self.count == 1) == (self.stride == 0)
    }
}

/// Fields that a version has of an earlier one: those that begin below a bit, but for some.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    fields: &'static [Field],
    end: u16,
    without: &'static [&'static str],
}

/// Declares the fields of a layout version as constants, and `FIELDS`, all of them in order. A
/// version that is `like` an earlier one has those of that, but for those `without` and for those
/// that it declares itself.
macro_rules! fields {
    ($prefix:literal : $words:literal words;
     like $base:ident $(below $end:literal)? $(without [$($gone:ident),*])?;
     $($fields:tt)*) => {
        pub use super::$base::*;
        /// The fields that an earlier version has, too.
        pub const SHARED: Option<super::Shared> = Some(super::Shared {
            fields: super::$base::FIELDS,
            end: super::fields!(@or 0xffff $($end)?),
            without: &[$($(stringify!($gone)),*)?],
        });
        super::fields! { $prefix: $words words; $($fields)* }
    };
    ($prefix:literal : $words:literal words;
     $($name:ident = $hi:literal : $lo:literal $([$count:literal, $stride:literal])?;)*) => {
        $(
            #[doc = concat!("`", $prefix, "_", stringify!($name), "`, bits ", $hi, ":", $lo,
                            $(" and ", $count, " instances every ", $stride, " bits",)? ".")]
            pub const $name: super::Field = super::Field {
                name: stringify!($name),
                hi: $hi,
                lo: $lo,
                count: super::fields!(@or 1 $($count)?),
                stride: super::fields!(@or 0 $($stride)?),
            };
            const _: () = assert!($name.is_sound($words), concat!(stringify!($name), " leaves its word"));
        )*
        /// Every field that is declared here, in the order of its bits.
        pub const FIELDS: &[super::Field] = &[$($name),*];
        /// Size of a QMD of this version in 32-bit words.
        pub const WORDS: usize = $words;
        /// The header's prefix of each name.
        pub const PREFIX: &str = $prefix;
    };
    (@or $default:literal) => { $default };
    (@or $default:literal $value:literal) => { $value };
}
use fields;

/// Returns the threads of a block, of the fields in scope. As the macros below it is for versions
/// whose headers name them alike.
macro_rules! block_fields {
    () => {
        [
            CTA_THREAD_DIMENSION0,
            CTA_THREAD_DIMENSION1,
            CTA_THREAD_DIMENSION2,
        ]
    };
}
use block_fields;

/// Returns the releases of versions 2.3 and 2.4.
macro_rules! releases_of_version_2 {
    () => {
        &[
            ReleaseFields {
                enable: SEMAPHORE_RELEASE_ENABLE0,
                structure_size: RELEASE0_STRUCTURE_SIZE,
                membar: RELEASE_MEMBAR_TYPE,
                reduction_enable: RELEASE0_REDUCTION_ENABLE,
                reduction_op: RELEASE0_REDUCTION_OP,
                others: &[RELEASE0_REDUCTION_FORMAT],
                address: [RELEASE0_ADDRESS_LOWER, RELEASE0_ADDRESS_UPPER],
                payload: (RELEASE0_PAYLOAD, None),
            },
            ReleaseFields {
                enable: SEMAPHORE_RELEASE_ENABLE1,
                structure_size: RELEASE1_STRUCTURE_SIZE,
                membar: RELEASE_MEMBAR_TYPE,
                reduction_enable: RELEASE1_REDUCTION_ENABLE,
                reduction_op: RELEASE1_REDUCTION_OP,
                others: &[RELEASE1_REDUCTION_FORMAT],
                address: [RELEASE1_ADDRESS_LOWER, RELEASE1_ADDRESS_UPPER],
                payload: (RELEASE1_PAYLOAD, None),
            },
        ]
    };
}
use releases_of_version_2;

/// Returns the release number `$number` of versions 4 and 5, with its address and payload.
macro_rules! release_of_versions_4_and_5 {
    ($number:literal, $lower:ident, $upper:ident, $low:ident, $high:ident) => {
        ReleaseFields {
            enable: RELEASE_ENABLE.nth($number),
            structure_size: RELEASE_STRUCTURE_SIZE.nth($number),
            membar: RELEASE_MEMBAR_TYPE.nth($number),
            reduction_enable: RELEASE_REDUCTION_ENABLE.nth($number),
            reduction_op: RELEASE_REDUCTION_OP.nth($number),
            others: &[
                RELEASE_REDUCTION_FORMAT.nth($number),
                RELEASE_TRAP_TYPE.nth($number),
                RELEASE_PAYLOAD64B.nth($number),
                RELEASE_RESERVED_INFO.nth($number),
            ],
            address: [$lower, $upper],
            payload: ($low, Some($high)),
        }
    };
}
use release_of_versions_4_and_5;

/// Returns the three releases of versions 4.0, 4.1 and 5.0.
macro_rules! releases_of_versions_4_and_5 {
    () => {
        &[
            super::release_of_versions_4_and_5!(
                0,
                RELEASE_SEMAPHORE0_ADDR_LOWER,
                RELEASE_SEMAPHORE0_ADDR_UPPER,
                RELEASE_SEMAPHORE0_PAYLOAD_LOWER,
                RELEASE_SEMAPHORE0_PAYLOAD_UPPER
            ),
            super::release_of_versions_4_and_5!(
                1,
                RELEASE_SEMAPHORE1_ADDR_LOWER,
                RELEASE_SEMAPHORE1_ADDR_UPPER,
                RELEASE_SEMAPHORE1_PAYLOAD_LOWER,
                RELEASE_SEMAPHORE1_PAYLOAD_UPPER
            ),
            super::release_of_versions_4_and_5!(
                2,
                RELEASE_SEMAPHORE2_ADDR_LOWER,
                RELEASE_SEMAPHORE2_ADDR_UPPER,
                RELEASE_SEMAPHORE2_PAYLOAD_LOWER,
                RELEASE_SEMAPHORE2_PAYLOAD_UPPER
            ),
        ]
    };
}
use releases_of_versions_4_and_5;

/// Returns the dependents of versions 4 and 5, with the pointers to both.
macro_rules! dependents_of_versions_4_and_5 {
    ($first:expr, $second:expr) => {
        &[
            DependentFields {
                enable: DEPENDENT_QMD_ENABLE.nth(0),
                action: Some(DEPENDENT_QMD_ACTION.nth(0)),
                prefetch: Some(DEPENDENT_QMD_PREFETCH.nth(0)),
                pointer: Some($first),
            },
            DependentFields {
                enable: DEPENDENT_QMD_ENABLE.nth(1),
                action: Some(DEPENDENT_QMD_ACTION.nth(1)),
                prefetch: Some(DEPENDENT_QMD_PREFETCH.nth(1)),
                pointer: Some($second),
            },
        ]
    };
}
use dependents_of_versions_4_and_5;

/// Returns the dependents of versions 2.4 and 3.0, which have one pointer.
macro_rules! dependents_of_versions_2_and_3 {
    () => {
        &[
            DependentFields {
                enable: DEPENDENT_QMD0_ENABLE,
                action: Some(DEPENDENT_QMD0_ACTION),
                prefetch: Some(DEPENDENT_QMD0_PREFETCH),
                pointer: Some(DEPENDENT_QMD0_POINTER),
            },
            DependentFields {
                enable: DEPENDENT_QMD1_ENABLE,
                action: Some(DEPENDENT_QMD1_ACTION),
                prefetch: Some(DEPENDENT_QMD1_PREFETCH),
                pointer: None,
            },
        ]
    };
}
use dependents_of_versions_2_and_3;

/// Returns the latches of versions 4 and 5.
macro_rules! latch_fields {
    () => {
        LatchFields {
            arrive: ARRIVE_AT_LATCH_VALID,
            arrive_id: ARRIVE_AT_LATCH_ID,
            wait: WAIT_ON_LATCH_VALID,
            wait_id: WAIT_ON_LATCH_ID,
            pre_exit: ENABLE_PROGRAM_PRE_EXIT,
            pre_exit_at_last: PRE_EXIT_AT_LAST_CTA_LAUNCH,
        }
    };
}
use latch_fields;

/// Returns the reference count of any version.
macro_rules! reference_fields {
    () => {
        ReferenceFields {
            id: CWD_REFERENCE_COUNT_ID,
            delta_minus_one: CWD_REFERENCE_COUNT_DELTA_MINUS_ONE,
            increment: CWD_REFERENCE_COUNT_INCR_ENABLE,
            decrement: CWD_REFERENCE_COUNT_DECR_ENABLE,
        }
    };
}
use reference_fields;

/// How a version states the kind of launch.
#[derive(Clone, Copy, Debug)]
pub enum TypeField {
    /// `QMD_TYPE`, with the values of [`kind_of`](crate::submit::launch::Kind).
    Typed(Field),
    /// `IS_QUEUE`: a queue or a grid; other kinds are not told apart.
    Queue(Field),
}

/// Fields of one semaphore release.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseFields {
    /// Whether the release happens.
    pub enable: Field,
    /// Number of words written: 0 is four, 1 is one, 2 is two.
    pub structure_size: Field,
    /// 1 puts a system membar before the write.
    pub membar: Field,
    /// Whether the payload is combined with memory.
    pub reduction_enable: Field,
    /// Operation that combines them.
    pub reduction_op: Field,
    /// What else is 0 where one word is written: format, trap, 64 bits.
    pub others: &'static [Field],
    /// Address, lower part first.
    pub address: [Field; 2],
    /// Payload, lower part first; version 2.4 has no upper part.
    pub payload: (Field, Option<Field>),
}

/// Fields of one dependent QMD.
#[derive(Clone, Copy, Debug)]
pub struct DependentFields {
    /// Whether there is one.
    pub enable: Field,
    /// What happens to it; `None` where it is always scheduled.
    pub action: Option<Field>,
    /// Whether it is fetched early.
    pub prefetch: Option<Field>,
    /// Its address, shifted right by 8; version 2.4 has one for the first only.
    pub pointer: Option<Field>,
}

/// Fields of the latches (Hopper and later), on which programmatic dependent launch is built.
#[derive(Clone, Copy, Debug)]
pub struct LatchFields {
    /// Whether this QMD arrives at a latch when it completes.
    pub arrive: Field,
    /// The latch that it arrives at.
    pub arrive_id: Field,
    /// Whether this QMD waits for a latch.
    pub wait: Field,
    /// The latch that it waits for.
    pub wait_id: Field,
    /// Whether the program may let dependents start before it ends.
    pub pre_exit: Field,
    /// Whether that happens by itself once the last block has been launched.
    pub pre_exit_at_last: Field,
}

/// Fields of the work distributor's reference counter.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceFields {
    /// Number of the counter.
    pub id: Field,
    /// Amount of the change, minus one.
    pub delta_minus_one: Field,
    /// Whether it is incremented at the start.
    pub increment: Field,
    /// Whether it is decremented at the end.
    pub decrement: Field,
}

/// A layout version, as far as the rest of `submit` needs it. Each constant names a field of the
/// version's module.
pub trait Layout {
    /// The version.
    const VERSION: Version;
    /// Size in 32-bit words.
    const WORDS: usize;
    /// Every field, but those of an earlier version.
    const FIELDS: &'static [Field];
    /// These.
    const SHARED: Option<Shared> = None;
    /// Kind of launch.
    const TYPE: TypeField;
    /// End of the grid: width, height, depth; in clusters for a cluster launch.
    const GRID: [Field; 3];
    /// Start of the grid when it is scheduled without a copy.
    const RESUME: [Field; 3];
    /// What else hardware writes where it stops a grid, to resume it: 0 in a grid that begins.
    const RESUME_STATE: &'static [Field];
    /// Threads of a block.
    const BLOCK: [Field; 3];
    /// Blocks of a cluster (`GPC_CGA_*`).
    const CLUSTER: Option<[Field; 3]>;
    /// Blocks of a cooperative launch (`GPU_CGA_*`).
    const GANG: Option<[Field; 3]>;
    /// Registers of a thread.
    const REGISTERS: Field;
    /// Shared memory of a block.
    const SHARED_MEMORY: Field;
    /// Shift of the value of `SHARED_MEMORY`.
    const SHARED_MEMORY_SHIFT: u32;
    /// Address of the program, lower part first.
    const PROGRAM: [Field; 2];
    /// Shift of that address.
    const PROGRAM_SHIFT: u32;
    /// Decrements that it waits for.
    const DEPENDENCE_COUNTER: Option<Field>;
    /// Whether a copying PCAS does not schedule it.
    const REQUIRE_SCHEDULING_PCAS: Field;
    /// Whether the stored QMD is restored after completion, to run again.
    const SELF_COPY_ON_COMPLETION: Option<Field>;
    /// Whether blocks run one after another; Blackwell has no such field.
    const SEQUENTIALLY_RUN_CTAS: Option<Field>;
    /// Whether the blocks come from a launch queue.
    const LAUNCH_QUEUE: Option<Field>;
    /// Whether the mask words count; `None` where they always do, and where there are none.
    const MASK_VALID: Option<Field>;
    /// Words of the mask of disabled TPCs, lowest TPC first; none where a launch has several grids.
    const MASK: &'static [Field];
    /// The semaphore releases.
    const RELEASES: &'static [ReleaseFields];
    /// The dependent QMDs.
    const DEPENDENTS: &'static [DependentFields];
    /// The latches.
    const LATCH: Option<LatchFields>;
    /// The reference count.
    const REFERENCE: ReferenceFields;
    /// Whether splitting by RESUME and a join was measured on hardware of this version.
    const SPLIT_MEASURED: bool;
}

/// Returns whether a split launch of a version may have a join: a QMD without a grid that waits for
/// decrements.
pub(crate) const fn joins<L: Layout>() -> bool {
    matches!(L::TYPE, TypeField::Typed(_)) && L::DEPENDENCE_COUNTER.is_some()
}

/// Runs `$body` with the type `$layout` that implements [`Layout`] for `$version`.
macro_rules! with_layout {
    ($version:expr, $layout:ident => $body:expr) => {
        match $version {
            $crate::submit::qmd::Version::V02_03 => {
                type $layout = $crate::submit::qmd::v02_03::V02_03;
                $body
            }
            $crate::submit::qmd::Version::V02_04 => {
                type $layout = $crate::submit::qmd::v02_04::V02_04;
                $body
            }
            $crate::submit::qmd::Version::V03_00 => {
                type $layout = $crate::submit::qmd::v03_00::V03_00;
                $body
            }
            $crate::submit::qmd::Version::V04_00 => {
                type $layout = $crate::submit::qmd::v04_00::V04_00;
                $body
            }
            $crate::submit::qmd::Version::V04_01 => {
                type $layout = $crate::submit::qmd::v04_01::V04_01;
                $body
            }
            $crate::submit::qmd::Version::V05_00 => {
                type $layout = $crate::submit::qmd::v05_00::V05_00;
                $body
            }
            $crate::submit::qmd::Version::V05_01 => {
                type $layout = $crate::submit::qmd::v05_01::V05_01;
                $body
            }
        }
    };
}
pub(crate) use with_layout;
