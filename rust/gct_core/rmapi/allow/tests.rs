// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// Controls that libcuda, an MPS server and client, torch and nvidia-smi were recorded with on an
/// H100 (580.159.04).
const RECORDED: &[u32] = &[
    0x101,
    0x13a,
    0x1f0,
    0x201,
    0x202,
    0x205,
    0x214,
    0x215,
    0x216,
    0x21b,
    0x279,
    0x27b,
    0x288,
    0x289,
    0xa04,
    0xd01,
    0xd04,
    0x80_0280,
    0x80_0289,
    0x80_0292,
    0x80_1108,
    0x80_1307,
    0x80_1402,
    0x80_170d,
    0x80_1909,
    0x2080_0102,
    0x2080_0110,
    0x2080_0111,
    0x2080_0119,
    0x2080_012f,
    0x2080_0131,
    0x2080_0145,
    0x2080_014a,
    0x2080_0170,
    0x2080_0195,
    0x2080_01a3,
    0x2080_0406,
    0x2080_1201,
    0x2080_1210,
    0x2080_1218,
    0x2080_121b,
    0x2080_1227,
    0x2080_122a,
    0x2080_122b,
    0x2080_1230,
    0x2080_1303,
    0x2080_1701,
    0x2080_1801,
    0x2080_1803,
    0x2080_1823,
    0x2080_182a,
    0x2080_182b,
    0x2080_200a,
    0x2080_220c,
    0x2080_2210,
    0x2080_2a0a,
    0x2080_3002,
    0x2080_3601,
    0x2080_3801,
    0x2080_8159,
    0x2080_8162,
    0x2080_9001,
    0x2080_9009,
    0x2080_9038,
    0x2080_9064,
    0x2080_a026,
    0x2080_a084,
    0x2081_0108,
    0x503c_0102,
    0x503c_0104,
    0x83de_0309,
    0x906f_0101,
    0x90e6_0102,
    0xa06c_0101,
    0xa06c_0103,
    0xa06f_0103,
    0xc36f_0108,
    0xcb33_0101,
];

/// Those with which limits, pages or neighbours were reached, or could be.
const HOSTILE: &[u32] = &[
    0x80_1714,
    0x80_180a,
    0x80_180c,
    0x90_0101,
    0x2080_0122,
    0x2080_1102,
    0x2080_1103,
    0x2080_1115,
    0x2080_1118,
    0x2080_1211,
    0x2080_122c,
    0x5080_0101,
    0x5080_0103,
    0x83de_0316,
    0x83de_0317,
    0x83de_031a,
    0x83de_031b,
    0x83de_031d,
    0x83de_0327,
    0xa06c_0107,
    0xa06c_0110,
    0xa06f_0109,
    0xa06f_0111,
    0xb0cc_010a,
];

fn all() -> impl Iterator<Item = (u32, Rule)> {
    TABLES.iter().flat_map(|table| table.rules.iter().copied())
}

#[test]
fn tables_are_sorted_and_named() {
    let numbers: Vec<_> = all().map(|(number, _)| number).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(RANGES.iter().all(|(first, last, _)| first <= last));
    assert!(RANGES.windows(2).all(|pair| pair[0].1 < pair[1].0));
    assert!(CLASSES.windows(2).all(|pair| pair[0].0 < pair[1].0));
    for table in TABLES {
        assert_eq!(table.rules.len(), table.names.len());
    }
    assert!(CLASSES.iter().all(|(_, rule)| rule.refuses()));
}

/// The rows say what the decoder does: who takes a control out of it has to look here.
#[test]
fn what_is_followed_is_in_the_table() {
    for (number, rule) in all() {
        assert_eq!(control(number), rule, "{number:#x}");
    }
}

#[test]
fn what_programs_were_recorded_with_is_allowed() {
    for number in RECORDED {
        assert!(!control(*number).refuses(), "{number:#x}");
    }
    // The client's own null command.
    assert!(!control(0).refuses() && !control(0x2080_0000).refuses());
}

#[test]
fn what_is_hostile_or_unknown_is_refused() {
    for number in HOSTILE {
        assert!(control(*number).refuses(), "{number:#x}");
    }
    // Beyond the last of a category, the firmware's own, and those with the privileged bit.
    for number in [
        0x2080_12ff,
        0x2081_0109,
        0x2080_91ff,
        0x2080_d001,
        0xa06c_0299,
        0xdead_beef,
    ] {
        assert_eq!(control(number), Rule::Unknown, "{number:#x}");
    }
}

fn words(size: usize, words: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for (offset, word) in words {
        bytes[*offset..*offset + 4].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[test]
fn classes_are_refused_by_each_way_to_allocate_them() {
    for (escape, size) in [
        (escape::ALLOC, nvos21::SIZE),
        (escape::ALLOC, nvos64::SIZE),
        (escape::ALLOC_OBJECT, nvos05::SIZE),
        (escape::ALLOC_MEMORY, nvos02_with_fd::SIZE),
    ] {
        let call = |class| words(size, &[(0, 10), (4, 20), (8, 30), (12, class)]);
        let asked = refused(escape, &call(0x5080)).unwrap();
        assert_eq!(
            (asked.client, asked.object, asked.rule),
            (10, 20, Rule::Deferred)
        );
        // libcuda allocates a debugger, and memory.
        for class in [0x41, 0x80, 0x40, 0x3e, 0x83de, 0xc86f] {
            assert_eq!(refused(escape, &call(class)), None, "{class:#x}");
        }
    }
}

/// The registry, and a wait with RM's locks.
#[test]
fn whole_ioctls_are_refused() {
    for (escape, number, size, status, rule) in [
        (escape::ACCESS_REGISTRY, 0x4d, 72, 64, Rule::Machine),
        (escape::IDLE_CHANNELS, 0x41, 56, 48, Rule::Schedule),
    ] {
        let mut call = words(size, &[(0, 10), (4, 20)]);
        let asked = refused(escape, &call).unwrap();
        assert_eq!((asked.client, asked.object, asked.rule), (10, 20, rule));
        assert!(crate::rmapi::set_status(number, &mut call, 0x1b));
        assert_eq!(call[status], 0x1b);
        // RM refuses another size.
        assert_eq!(refused(escape, &call[1..]), None);
    }
}

/// RM takes a pointer from the caller in the one, and pins the caller's pages in the other.
#[test]
fn memory_of_the_host_has_an_ioctl_of_its_own() {
    let class = nv::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR;
    for size in [nvos21::SIZE, nvos64::SIZE] {
        let call = words(size, &[(nvos21::CLASS, class)]);
        let asked = refused(escape::ALLOC, &call).unwrap();
        assert_eq!(asked.rule, Rule::Machine);
    }
    let call = words(nvos02_with_fd::SIZE, &[(nvos02_with_fd::CLASS, class)]);
    assert_eq!(refused(escape::ALLOC_MEMORY, &call), None);
}

#[test]
fn serialized_parameters_are_refused_where_they_are_read() {
    let alloc = |flags| {
        words(
            nvos64::SIZE,
            &[(nvos64::CLASS, 0xc86f), (nvos64::FLAGS, flags)],
        )
    };
    assert_eq!(refused(escape::ALLOC, &alloc(0)), None);
    let asked = refused(escape::ALLOC, &alloc(1)).unwrap();
    assert_eq!(asked.rule, Rule::Serialized);
    let control = |command, flags| {
        let fields = [(nvos54::COMMAND, command), (nvos54::FLAGS, flags)];
        refused(escape::CONTROL, &words(nvos54::SIZE, &fields)).map(|asked| asked.rule)
    };
    assert_eq!(control(0x2080_110b, 0), None);
    assert_eq!(control(0x2080_110b, 4), Some(Rule::Serialized));
    assert_eq!(control(0x2080_1210, 4), Some(Rule::Serialized));
    assert_eq!(control(0x2080_0110, 4), None);
}

proptest! {
    /// A control is allowed only by a row, by a range, as followed or as a null command.
    #[test]
    fn nothing_else_is_allowed(class in prop::sample::select(vec![0u32, 0x80, 0x2080, 0x83de, 0xa06c, 0xa06f, 0xc36f]), low: u16, any: u32) {
        for number in [class << 16 | u32::from(low), any] {
            let rule = control(number);
            let has_row = all().any(|(known, _)| known == number);
            let in_range = RANGES.iter().any(|(first, last, _)| (*first..=*last).contains(&number));
            let followed = matches!(rule, Rule::Followed | Rule::Checked) || number & 0xffff == 0;
            prop_assert_eq!(rule == Rule::Unknown, !(has_row || in_range || followed));
        }
    }

    /// Structures of any size and content are looked at without a panic.
    #[test]
    fn any_structure(escape in prop::sample::select(vec![0x27u32, 0x28, 0x29, 0x2a, 0x2b, 0x34, 0x4d]), bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = refused(escape, &bytes);
    }
}
