// SPDX-License-Identifier: GPL-2.0 OR MIT

//! States the fields of a queue metadata descriptor (QMD) that the launch hardware acts on.
//!
//! The fields come from NVIDIA's class headers (`cl*c0qmd.h` of open-gpu-doc), not from the
//! rewriter's tables, so that an error in those tables cannot hide itself here.

/// Bits `hi..=lo` of a descriptor, as the headers' `MW(hi:lo)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// The highest bit.
    pub hi: u16,
    /// The lowest bit; the field may cross a word.
    pub lo: u16,
}

const fn mw(hi: u16, lo: u16) -> Option<Bits> {
    Some(Bits { hi, lo })
}

const fn bit(at: u16) -> Option<Bits> {
    mw(at, at)
}

/// Words of the longest descriptor.
pub const WORDS_MAX: usize = 96;
/// Maximum number of words of a TPC mask.
pub const MASK_WORDS: usize = 8;

/// One semaphore release of a layout.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseBits {
    /// `RELEASE_ENABLE`.
    pub enable: Option<Bits>,
    /// `RELEASE_STRUCTURE_SIZE`: 0 four words, 1 one word, 2 two words.
    pub size: Option<Bits>,
    /// `RELEASE_REDUCTION_ENABLE`.
    pub reduction: Option<Bits>,
    /// `RELEASE_REDUCTION_OP`.
    pub reduction_op: Option<Bits>,
    /// Address, lower and upper.
    pub address: [Option<Bits>; 2],
    /// Payload, lower and upper.
    pub payload: [Option<Bits>; 2],
    /// `RELEASE_PAYLOAD64B`.
    pub payload64: Option<Bits>,
}

/// One dependent descriptor of a layout.
#[derive(Clone, Copy, Debug)]
pub struct DependentBits {
    /// `DEPENDENT_QMD_ENABLE`.
    pub enable: Option<Bits>,
    /// `DEPENDENT_QMD_ACTION`.
    pub action: Option<Bits>,
    /// `DEPENDENT_QMD_POINTER`, address >> 8. The headers of V02_04 and V03_00 name none for the
    /// second dependent.
    pub pointer: Option<Bits>,
}

/// The positions of a layout version's fields; `None` if the version lacks the field.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Major and minor version.
    pub version: (u32, u32),
    /// Position of the version, the major number above the minor.
    pub version_bits: Option<Bits>,
    /// Size in words.
    pub words: usize,
    /// `QMD_TYPE`.
    pub kind: Option<Bits>,
    /// `IS_QUEUE`, in versions without `QMD_TYPE`.
    pub is_queue: Option<Bits>,
    /// `DEPENDENCE_COUNTER`.
    pub counter: Option<Bits>,
    /// `REQUIRE_SCHEDULING_PCAS`.
    pub require_scheduling: Option<Bits>,
    /// `SELF_COPY_ON_COMPLETION`.
    pub self_copy: Option<Bits>,
    /// `QMD_GROUP_ID`.
    pub group: Option<Bits>,
    /// `TPC_DISABLE_MASK_VALID`. In versions without it the mask is always valid.
    pub mask_valid: Option<Bits>,
    /// The disable mask, the first TPC first.
    pub mask: [Option<Bits>; MASK_WORDS],
    /// Grid width, height and depth.
    pub grid: [Option<Bits>; 3],
    /// Resume width, height and depth.
    pub resume: [Option<Bits>; 3],
    /// Cluster width, height and depth.
    pub cluster: [Option<Bits>; 3],
    /// Threads of a block.
    pub threads: [Option<Bits>; 3],
    /// Program address, lower and upper.
    pub program: [Option<Bits>; 2],
    /// Number of low bits of the program address that are not stored.
    pub program_shift: u32,
    /// Constant bank 0 address, lower and upper, as stored.
    pub constants: [Option<Bits>; 2],
    /// Semaphore releases.
    pub releases: [Option<ReleaseBits>; 3],
    /// Dependents.
    pub dependents: [DependentBits; 2],
    /// `ARRIVE_AT_LATCH_VALID` and `_ID`.
    pub arrive: [Option<Bits>; 2],
    /// `WAIT_ON_LATCH_VALID` and `_ID`.
    pub wait: [Option<Bits>; 2],
    /// `ENABLE_PROGRAM_PRE_EXIT`: dependents are signalled once every block has triggered it,
    /// before the blocks end.
    pub pre_exit: Option<Bits>,
    /// `CWD_REFERENCE_COUNT_ID`, `_DELTA_MINUS_ONE`, `_INCR_ENABLE`, `_DECR_ENABLE`.
    pub reference: [Option<Bits>; 4],
}

const NONE3: [Option<Bits>; 3] = [None; 3];

const fn parts<const N: usize>(fields: [Option<Bits>; N]) -> [Option<Bits>; MASK_WORDS] {
    let mut all = [None; MASK_WORDS];
    let mut at = 0;
    while at < N {
        all[at] = fields[at];
        at += 1;
    }
    all
}

const fn release_v4(i: u16, enables: u16, base: u16) -> Option<ReleaseBits> {
    let e = enables + 16 * i;
    Some(ReleaseBits {
        enable: bit(e),
        size: mw(e + 2, e + 1),
        reduction: bit(e + 4),
        reduction_op: mw(e + 7, e + 5),
        address: [mw(base + 31, base), mw(base + 56, base + 32)],
        payload: [mw(base + 95, base + 64), mw(base + 127, base + 96)],
        payload64: bit(e + 12),
    })
}

const fn release_v3(base: u16) -> Option<ReleaseBits> {
    Some(ReleaseBits {
        enable: bit(base + 55),
        size: mw(base + 63, base + 62),
        reduction: bit(base + 58),
        reduction_op: mw(base + 54, base + 52),
        address: [mw(base + 31, base), mw(base + 39, base + 32)],
        payload: [mw(base + 95, base + 64), mw(base + 127, base + 96)],
        payload64: bit(base + 61),
    })
}

const fn release_v2(enable: u16, base: u16) -> Option<ReleaseBits> {
    Some(ReleaseBits {
        enable: bit(enable),
        size: bit(base + 63),
        reduction: bit(base + 58),
        reduction_op: mw(base + 54, base + 52),
        address: [mw(base + 31, base), mw(base + 39, base + 32)],
        payload: [mw(base + 95, base + 64), None],
        payload64: None,
    })
}

const fn dependent(enable: u16, pointer: Option<Bits>) -> DependentBits {
    DependentBits {
        enable: bit(enable),
        action: mw(enable + 3, enable + 1),
        pointer,
    }
}

const NO_DEPENDENT: DependentBits = DependentBits {
    enable: None,
    action: None,
    pointer: None,
};

/// GA100 with CUDA.
pub const V02_04: Layout = Layout {
    version: (2, 4),
    version_bits: mw(583, 576),
    words: 64,
    kind: None,
    is_queue: bit(136),
    counter: mw(157, 151),
    require_scheduling: bit(140),
    self_copy: bit(158),
    group: mw(133, 128),
    mask_valid: None,
    mask: parts([mw(703, 672), mw(735, 704)]),
    grid: [mw(415, 384), mw(431, 416), mw(463, 448)],
    resume: [mw(223, 192), mw(239, 224), mw(255, 240)],
    cluster: NONE3,
    threads: [mw(607, 592), mw(623, 608), mw(639, 624)],
    program: [mw(1567, 1536), mw(1584, 1568)],
    program_shift: 0,
    constants: [mw(1055, 1024), mw(1072, 1056)],
    releases: [release_v2(138, 736), release_v2(139, 832), None],
    dependents: [dependent(141, mw(511, 480)), dependent(146, None)],
    arrive: [None; 2],
    wait: [None; 2],
    pre_exit: None,
    reference: [mw(357, 352), mw(365, 358), bit(367), bit(371)],
};

/// Turing and Ampere: version 2.4 without what makes descriptors wait for each other. Its dependent
/// is always scheduled, which the model does not do.
pub const V02_03: Layout = Layout {
    version: (2, 3),
    counter: None,
    self_copy: None,
    dependents: [NO_DEPENDENT; 2],
    ..V02_04
};

/// GA10x and Ada.
pub const V03_00: Layout = Layout {
    version: (3, 0),
    counter: mw(157, 142),
    // The last two are Ada's EXT_LOWER and EXT_UPPER (clc9c0qmd.h).
    mask: parts([mw(703, 672), mw(735, 704), mw(377, 372), mw(380, 379)]),
    releases: [release_v3(768), release_v3(896), release_v3(1664)],
    dependents: [dependent(512, mw(511, 480)), dependent(517, None)],
    ..V02_04
};

/// Hopper.
pub const V04_00: Layout = Layout {
    version: (4, 0),
    version_bits: mw(583, 576),
    words: 96,
    kind: mw(25, 23),
    is_queue: None,
    counter: mw(15, 0),
    require_scheduling: bit(30),
    self_copy: bit(378),
    group: mw(21, 16),
    mask_valid: bit(31),
    mask: parts([
        mw(2463, 2432),
        mw(2495, 2464),
        mw(2527, 2496),
        mw(2559, 2528),
    ]),
    grid: [mw(1055, 1024), mw(1071, 1056), mw(1103, 1088)],
    resume: [mw(1439, 1408), mw(1455, 1440), mw(1471, 1456)],
    cluster: [mw(2149, 2144), mw(2157, 2152), mw(2165, 2160)],
    threads: [mw(1167, 1152), mw(1183, 1168), mw(1199, 1184)],
    program: [mw(1247, 1216), mw(1272, 1248)],
    program_shift: 0,
    constants: [mw(1567, 1536), mw(1586, 1568)],
    releases: [
        release_v4(0, 320, 640),
        release_v4(1, 320, 768),
        release_v4(2, 320, 896),
    ],
    dependents: [dependent(368, mw(479, 448)), dependent(373, mw(511, 480))],
    arrive: [bit(28), mw(1503, 1472)],
    wait: [bit(29), mw(1535, 1504)],
    pre_exit: bit(1151),
    reference: [mw(1133, 1128), mw(1127, 1120), bit(1134), bit(1135)],
};

/// Hopper's layout on Blackwell.
pub const V04_01: Layout = Layout {
    version: (4, 1),
    mask: parts([
        mw(2463, 2432),
        mw(2495, 2464),
        mw(2527, 2496),
        mw(2559, 2528),
        mw(2719, 2688),
        mw(2751, 2720),
        mw(2783, 2752),
        mw(2815, 2784),
    ]),
    threads: [mw(1167, 1152), mw(1183, 1168), mw(1191, 1184)],
    ..V04_00
};

/// Blackwell.
pub const V05_00: Layout = Layout {
    version: (5, 0),
    version_bits: mw(471, 464),
    words: 96,
    kind: mw(153, 151),
    is_queue: None,
    counter: mw(143, 128),
    require_scheduling: bit(158),
    self_copy: bit(341),
    group: mw(149, 144),
    mask_valid: bit(159),
    mask: parts([
        mw(2271, 2240),
        mw(2303, 2272),
        mw(2335, 2304),
        mw(2367, 2336),
        mw(2399, 2368),
        mw(2431, 2400),
        mw(2463, 2432),
        mw(2495, 2464),
    ]),
    grid: [mw(1279, 1248), mw(1295, 1280), mw(1327, 1312)],
    resume: [mw(255, 224), mw(271, 256), mw(287, 272)],
    cluster: [mw(2053, 2048), mw(2061, 2056), mw(2069, 2064)],
    threads: [mw(1103, 1088), mw(1119, 1104), mw(1127, 1120)],
    program: [mw(1055, 1024), mw(1076, 1056)],
    program_shift: 4,
    constants: [mw(1375, 1344), mw(1394, 1376)],
    releases: [
        release_v4(0, 288, 480),
        release_v4(1, 288, 768),
        release_v4(2, 288, 896),
    ],
    dependents: [dependent(336, mw(415, 384)), dependent(344, mw(447, 416))],
    arrive: [bit(730), mw(671, 640)],
    wait: [bit(731), mw(703, 672)],
    pre_exit: bit(639),
    reference: [mw(621, 616), mw(615, 608), bit(622), bit(623)],
};

/// Every layout that the model knows.
pub const LAYOUTS: [&Layout; 6] = [&V02_03, &V02_04, &V03_00, &V04_00, &V04_01, &V05_00];

/// Returns the value of `field` in `words`; 0 if the layout has no such field or the words end
/// before it.
#[must_use]
pub fn get(words: &[u32], field: Option<Bits>) -> u32 {
    let Some(Bits { hi, lo }) = field else {
        return 0;
    };
    (lo..=hi).zip(0..32).fold(0, |value, (at, shift)| {
        let word = words.get(usize::from(at / 32)).copied().unwrap_or(0);
        value | (((word >> (at % 32)) & 1) << shift)
    })
}

/// Sets `field` to the low bits of `value`. Tests build descriptors by it.
pub fn set(words: &mut [u32], field: Option<Bits>, value: u32) {
    let Some(Bits { hi, lo }) = field else {
        return;
    };
    for (at, shift) in (lo..=hi).zip(0..32) {
        if let Some(word) = words.get_mut(usize::from(at / 32)) {
            *word = (*word & !(1 << (at % 32))) | (((value >> shift) & 1) << (at % 32));
        }
    }
}

impl Layout {
    /// Returns the layout of a descriptor, by its version field.
    #[must_use]
    pub fn of(words: &[u32]) -> Option<&'static Layout> {
        LAYOUTS.into_iter().find(|layout| {
            let (major, minor) = layout.version;
            get(words, layout.version_bits) == (major << 4 | minor)
        })
    }

    /// Combines two fields into one number, with `shift` zero bits below.
    pub(crate) fn wide(words: &[u32], fields: [Option<Bits>; 2], shift: u32) -> u64 {
        (u64::from(get(words, fields[1])) << 32 | u64::from(get(words, fields[0]))) << shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_reads_back_and_touches_no_other_bit() {
        for layout in LAYOUTS {
            // Before descriptors wait for each other they count nothing.
            assert_eq!(layout.counter.is_none(), layout.version == (2, 3));
            let counter = layout.counter.or(layout.grid[0]);
            for field in [counter, layout.grid[0], layout.resume[1], layout.mask[1]] {
                let mut words = [0; WORDS_MAX];
                set(&mut words, field, u32::MAX);
                let Bits { hi, lo } = field.unwrap();
                let ones: u32 = words.iter().map(|word| word.count_ones()).sum();
                assert_eq!(ones, u32::from(hi - lo) + 1);
                assert_eq!(get(&words, field).count_ones(), ones);
                set(&mut words, field, 0);
                assert_eq!(words, [0; WORDS_MAX]);
            }
        }
    }

    #[test]
    fn the_version_is_found_where_each_layout_keeps_it() {
        for layout in LAYOUTS {
            let mut words = [0; WORDS_MAX];
            let (major, minor) = layout.version;
            set(&mut words, layout.version_bits, major << 4 | minor);
            assert_eq!(Layout::of(&words).map(|l| l.version), Some(layout.version));
        }
        assert!(Layout::of(&[0; WORDS_MAX]).is_none());
        assert!(Layout::of(&[]).is_none());
    }
}
