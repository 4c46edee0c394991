// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares every layout with NVIDIA's class headers, and with what was seen on hardware.
//!
//! `tests/fixtures/qmd` lists the bit ranges that the headers give each field. `ANCHORS` are fields
//! that the rewriter relies on, from a third source: findings of other projects on hardware
//! (`gctgroup-docs/hardware.md`).

use super::{Family, Version};
use crate::submit::reason::Reason;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

/// Names of fields with their place: lowest bit, highest bit, and the distance of two instances.
type Places<'a> = BTreeMap<&'a str, (u16, u16, u16)>;

/// Returns what `tests/fixtures/qmd` says of a version.
const fn listed(version: Version) -> &'static str {
    match version {
        Version::V02_03 => include_str!("../../../../tests/fixtures/qmd/v02_03.txt"),
        Version::V02_04 => include_str!("../../../../tests/fixtures/qmd/v02_04.txt"),
        Version::V03_00 => include_str!("../../../../tests/fixtures/qmd/v03_00.txt"),
        Version::V04_00 => include_str!("../../../../tests/fixtures/qmd/v04_00.txt"),
        Version::V04_01 => include_str!("../../../../tests/fixtures/qmd/v04_01.txt"),
        Version::V05_00 => include_str!("../../../../tests/fixtures/qmd/v05_00.txt"),
        Version::V05_01 => include_str!("../../../../tests/fixtures/qmd/v05_01.txt"),
    }
}

/// Parses a line: name, lowest bit, highest bit, and the distance of two instances if it has any.
fn place(line: &str) -> (&str, (u16, u16, u16)) {
    let mut words = line.split(' ');
    let name = words.next().unwrap();
    let mut numbers = words.map(|word| word.parse().unwrap());
    let (low, high) = (numbers.next().unwrap(), numbers.next().unwrap());
    let stride = numbers.next().unwrap_or(0);
    assert_eq!(numbers.next(), None, "{line}");
    (name, (low, high, stride))
}

/// Returns the fields that the header of a version has, as the fixture lists them.
fn fields_of_header(version: Version) -> Places<'static> {
    let lines = listed(version).lines();
    lines
        .filter(|line| !line.starts_with('#'))
        .map(place)
        .collect()
}

#[test]
fn every_field_is_where_the_header_says() {
    for version in Version::ALL {
        let fields = version.fields();
        let declared: Places<'_> = fields
            .map(|field| (field.name, (field.lo, field.hi, field.stride)))
            .collect();
        assert_eq!(
            declared.len(),
            version.fields().count(),
            "{version:?}: a name is declared twice"
        );
        assert!(declared.len() > 90, "{version:?}");
        assert_eq!(declared, fields_of_header(*version), "{version:?}");
    }
}

#[test]
fn no_two_fields_share_a_bit() {
    for version in Version::ALL {
        let mut owner = vec![None; version.words() * 32];
        for field in version.fields() {
            for index in 0..field.count {
                let one = field.nth(index);
                for bit in one.lo..=one.hi {
                    let before = owner[usize::from(bit)].replace(field.name);
                    assert_eq!(before, None, "{version:?}: bit {bit} of {}", field.name);
                }
            }
        }
    }
}

/// Returns the bits that no field names, as ranges.
fn holes(version: Version) -> Vec<(usize, usize)> {
    let mut named = vec![false; version.words() * 32];
    for field in version.fields() {
        for index in 0..field.count {
            let one = field.nth(index);
            named[usize::from(one.lo)..=usize::from(one.hi)].fill(true);
        }
    }
    let mut holes = Vec::new();
    let mut start = None;
    for (bit, named) in named.iter().copied().chain([true]).enumerate() {
        match (named, start) {
            (false, None) => start = Some(bit),
            (true, Some(first)) => {
                holes.push((first, bit - 1));
                start = None;
            }
            _ => {}
        }
    }
    holes
}

/// The bits that no field names. The headers state no number of instances; it follows from these.
const HOLES: &[(Version, &str)] = &[
    (
        Version::V02_03,
        "144-159 185-185 328-335 372-377 379-381 383-383 432-447 464-479 512-521 535-543 \
         584-591 776-787 791-791 795-798 872-883 887-887 891-894 952-954 1010-1015 \
         1585-1599 1694-1694 1728-1983",
    ),
    (
        Version::V02_04,
        "159-159 328-335 372-377 379-381 432-447 464-479 512-521 535-543 584-591 776-787 \
         791-791 795-798 872-883 887-887 891-894 952-954 984-991 1012-1015 1585-1599 \
         1694-1694 1735-1983",
    ),
    (
        Version::V03_00,
        "138-139 141-141 159-159 328-335 366-366 381-381 432-447 464-479 568-568 575-575 \
         760-762 808-818 936-946 1585-1599 1624-1631 1652-1655 1704-1714 1887-1887 \
         1918-1918 1968-1983",
    ),
    (
        Version::V04_00,
        "26-27 57-63 128-159 191-191 223-223 255-255 305-319 383-383 627-639 697-703 \
         825-831 953-959 1072-1087 1104-1119 1209-1210 1273-1279 1328-1343 1404-1405 \
         2088-2111 2141-2143 2150-2151 2158-2159 2166-2206 2256-2367 2560-3007",
    ),
    (
        Version::V04_01,
        "26-27 57-63 128-159 191-191 223-223 255-255 305-319 383-383 627-639 697-703 \
         825-831 953-959 1072-1087 1104-1119 1209-1209 1273-1279 1334-1343 1404-1405 \
         2048-2127 2141-2143 2150-2151 2158-2159 2166-2167 2176-2206 2256-2367 2632-2687 \
         2816-3007",
    ),
    (
        Version::V05_00,
        "185-191 219-223 537-543 704-713 825-831 953-959 1148-1151 1182-1183 1224-1247 \
         1296-1311 1328-1343 1937-2047 2054-2055 2062-2063 2070-2071 2080-2110 2160-2175 \
         2568-2591 2597-2623 2655-2655 2687-3007",
    ),
    (
        Version::V05_01,
        "185-191 219-223 537-543 704-713 926-927 1100-1119 1342-1343 1516-1535 1758-1759 \
         1932-1951 2174-2175 2348-2367 2590-2591 2764-2783 2848-3071",
    ),
];

#[test]
fn every_field_has_as_many_instances_as_bits_are_left() {
    assert_eq!(HOLES.len(), Version::ALL.len());
    for (version, ranges) in HOLES {
        let stated: Vec<(usize, usize)> = ranges
            .split_whitespace()
            .map(|range| {
                let (low, high) = range.split_once('-').unwrap();
                (low.parse().unwrap(), high.parse().unwrap())
            })
            .collect();
        assert_eq!(holes(*version), stated, "{version:?}");
    }
}

/// Byte, bit and width of the fields that matter, from `libsmctrl` and other projects' findings on
/// hardware: version byte 72, masks at 84 and 304, grid at 48 and 128, RESUME at 24 and 176,
/// program at 192 and 152, constant bank 0 at 192.
const ANCHORS: &[(Version, &str, u32, u32, u32)] = &[
    (Version::V02_04, "QMD_VERSION", 72, 0, 4),
    (Version::V02_04, "QMD_MAJOR_VERSION", 72, 4, 4),
    (Version::V02_04, "SM_DISABLE_MASK_LOWER", 84, 0, 32),
    (Version::V02_04, "SM_DISABLE_MASK_UPPER", 88, 0, 32),
    (Version::V02_04, "CTA_RASTER_WIDTH", 48, 0, 32),
    (Version::V02_04, "CTA_RASTER_HEIGHT", 52, 0, 16),
    (Version::V02_04, "CTA_RASTER_DEPTH", 56, 0, 16),
    (Version::V02_04, "CTA_RASTER_WIDTH_RESUME", 24, 0, 32),
    (Version::V02_04, "CTA_RASTER_HEIGHT_RESUME", 28, 0, 16),
    (Version::V02_04, "CTA_RASTER_DEPTH_RESUME", 30, 0, 16),
    (Version::V02_04, "CTA_THREAD_DIMENSION0", 74, 0, 16),
    (Version::V02_04, "PROGRAM_ADDRESS_LOWER", 192, 0, 32),
    (Version::V02_04, "REGISTER_COUNT_V", 81, 0, 9),
    (Version::V02_04, "CONSTANT_BUFFER_ADDR_LOWER", 128, 0, 32),
    (Version::V03_00, "QMD_VERSION", 72, 0, 4),
    (Version::V03_00, "SM_DISABLE_MASK_LOWER", 84, 0, 32),
    (Version::V03_00, "SM_DISABLE_MASK_UPPER", 88, 0, 32),
    (Version::V03_00, "CTA_RASTER_WIDTH", 48, 0, 32),
    (Version::V03_00, "CTA_RASTER_WIDTH_RESUME", 24, 0, 32),
    (Version::V03_00, "CTA_THREAD_DIMENSION2", 78, 0, 16),
    (Version::V03_00, "PROGRAM_ADDRESS_LOWER", 192, 0, 32),
    (Version::V03_00, "REGISTER_COUNT_V", 81, 0, 9),
    (Version::V04_00, "QMD_MINOR_VERSION", 72, 0, 4),
    (Version::V04_00, "QMD_MAJOR_VERSION", 72, 4, 4),
    (Version::V04_00, "TPC_DISABLE_MASK_VALID", 3, 7, 1),
    (Version::V04_00, "TPC_DISABLE_MASK", 304, 0, 32),
    (Version::V04_00, "GRID_WIDTH", 128, 0, 32),
    (Version::V04_00, "GRID_HEIGHT", 132, 0, 16),
    (Version::V04_00, "GRID_DEPTH", 136, 0, 16),
    (Version::V04_00, "GRID_WIDTH_RESUME", 176, 0, 32),
    (Version::V04_00, "GRID_HEIGHT_RESUME", 180, 0, 16),
    (Version::V04_00, "GRID_DEPTH_RESUME", 182, 0, 16),
    (Version::V04_00, "CTA_THREAD_DIMENSION0", 144, 0, 16),
    (Version::V04_00, "CTA_THREAD_DIMENSION1", 146, 0, 16),
    (Version::V04_00, "CTA_THREAD_DIMENSION2", 148, 0, 16),
    (Version::V04_00, "PROGRAM_ADDRESS_LOWER", 152, 0, 32),
    (Version::V04_00, "PROGRAM_ADDRESS_UPPER", 156, 0, 25),
    (Version::V04_00, "REGISTER_COUNT", 150, 0, 9),
    (
        Version::V04_00,
        "CONSTANT_BUFFER_ADDR_LOWER_SHIFTED6",
        192,
        0,
        32,
    ),
    (Version::V04_00, "DEPENDENCE_COUNTER", 0, 0, 16),
    (Version::V04_00, "QMD_TYPE", 2, 7, 3),
    (Version::V04_00, "ARRIVE_AT_LATCH_ID", 184, 0, 32),
    (Version::V05_00, "QMD_MINOR_VERSION", 58, 0, 4),
    (Version::V05_00, "QMD_MAJOR_VERSION", 58, 4, 4),
    (Version::V05_00, "TPC_DISABLE_MASK_VALID", 19, 7, 1),
    (Version::V05_00, "TPC_DISABLE_MASK", 280, 0, 32),
    (Version::V05_00, "GRID_WIDTH", 156, 0, 32),
    (Version::V05_00, "GRID_WIDTH_RESUME", 28, 0, 32),
];

#[test]
fn the_fields_that_matter_are_where_hardware_was_seen_to_have_them() {
    for (version, name, byte, bit, width) in ANCHORS {
        let field = version
            .field(name)
            .unwrap_or_else(|| panic!("{version:?} has no {name}"));
        let found = (
            u32::from(field.lo) / 8,
            u32::from(field.lo) % 8,
            u32::from(field.width()),
        );
        assert_eq!(found, (*byte, *bit, *width), "{version:?} {name}");
    }
}

#[test]
fn a_value_is_stored_where_it_is_read_and_nowhere_else() {
    for version in Version::ALL {
        for field in version.fields() {
            for index in 0..field.count {
                let one = field.nth(index);
                let mut qmd = vec![0u32; version.words()];
                one.set(&mut qmd, one.max()).unwrap();
                assert_eq!(one.get(&qmd), one.max());
                let ones: u32 = qmd.iter().map(|word| word.count_ones()).sum();
                assert_eq!(ones, u32::from(one.width()), "{version:?} {}", one.name);
                let mut qmd = vec![u32::MAX; version.words()];
                one.clear(&mut qmd);
                assert_eq!(one.get(&qmd), 0);
                let zeros: u32 = qmd.iter().map(|word| word.count_zeros()).sum();
                assert_eq!(zeros, u32::from(one.width()));
                if one.width() < 32 {
                    let before = qmd.clone();
                    assert!(
                        one.set(&mut qmd, one.max() + 1).is_err(),
                        "{}",
                        one.name.to_string()
                    );
                    assert_eq!(qmd, before);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// In a descriptor of any words: what is written is read back, and no other bit changes.
    #[test]
    fn a_value_changes_its_bits_alone(
        version in proptest::sample::select(Version::ALL),
        words in proptest::collection::vec(any::<u32>(), 96),
        value in any::<u32>(),
    ) {
        for field in version.fields() {
            for one in (0..field.count).map(|index| field.nth(index)) {
                let mut qmd = words.clone();
                let value = value & one.max();
                one.set(&mut qmd, value).unwrap();
                prop_assert_eq!(one.get(&qmd), value);
                let bits = one.max() << (one.lo % 32);
                for (at, (before, after)) in words.iter().zip(&qmd).enumerate() {
                    let kept = if at == one.word() { !bits } else { u32::MAX };
                    prop_assert_eq!(before & kept, after & kept, "{:?} {}", version, one.name);
                }
            }
        }
    }
}

/// Returns a descriptor with these bytes where versions 2 to 4 and where version 5 have theirs.
fn numbered(old: u32, new: u32) -> [u32; 96] {
    let mut qmd = [0; 96];
    for (version, byte) in [(Version::V04_00, old), (Version::V05_00, new)] {
        for (name, half) in [
            ("QMD_MINOR_VERSION", byte & 15),
            ("QMD_MAJOR_VERSION", byte >> 4),
        ] {
            version.field(name).unwrap().set(&mut qmd, half).unwrap();
        }
    }
    qmd
}

/// Each class takes the versions of its header. A descriptor of which two could be meant is none:
/// on Blackwell other fields lie where the number of the other versions does.
#[test]
fn a_class_takes_the_versions_of_its_header() {
    let classes: &[(u16, &[u32], &[u32])] = &[
        (0xc6c0, &[0x23, 0x24, 0x30], &[]),
        (0xc7c0, &[0x23, 0x24, 0x30], &[]),
        (0xc9c0, &[0x23, 0x24, 0x30], &[]),
        (0xcbc0, &[0x30, 0x40], &[]),
        (0xcdc0, &[0x41], &[0x50, 0x51]),
        (0xcec0, &[0x41], &[0x50, 0x51]),
        (0, &[0x23, 0x24, 0x30, 0x40, 0x41], &[0x50, 0x51]),
    ];
    for (class, olds, news) in classes {
        let family = Family::of_class(*class);
        for old in 0..=255 {
            for new in [0, 0x40, 0x4f, 0x50, 0x51, 0x52] {
                let (is_old, is_new) = (olds.contains(&old), news.contains(&new));
                let found = Version::of(&numbered(old, new), family);
                let number = found.map(|version| {
                    let (major, minor) = version.number();
                    u32::from(major << 4 | minor)
                });
                let expected = match (is_old, is_new) {
                    (true, true) => Err(Reason::Ambiguous),
                    (true, false) => Ok(old),
                    (false, true) => Ok(new),
                    (false, false) => Err(Reason::Version),
                };
                assert_eq!(number, expected, "{class:#x}: {old:#x}, {new:#x}");
            }
        }
    }
    // None is read where it does not fit.
    assert_eq!(
        Version::of(&numbered(0, 0x50)[..95], Family::Blackwell),
        Err(Reason::Version)
    );
}
