// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares every layout with a second statement of its ranges, so that a table that is wrong by one bit fails.
//!
//! `ranges.txt` states each field as byte, bit within the byte, width, instances and stride, extracted from the headers
//! by another way than the tables, which state high and low bit. `ANCHORS` are the fields that the rewriter relies on,
//! written down by hand from a third source: what other projects found on hardware (`gctgroup-docs/hardware.md`).

use super::Version;
use std::collections::BTreeMap;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

const RANGES: &str = include_str!("ranges.txt");

/// Version, name, instances, stride, low bit, width.
type Row<'a> = (&'a str, (u32, u32, u32, u32));

fn stated(version: Version) -> BTreeMap<&'static str, (u32, u32, u32, u32)> {
    let (major, minor) = version.number();
    let wanted = std::format!("{major:02}_{minor:02}");
    RANGES
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut parts = line.split(' ');
            let this = parts.next()? == wanted;
            let name = parts.next()?;
            let n: Vec<u32> = parts.map(|part| part.parse().unwrap()).collect();
            let row: Row<'_> = (name, (n[0] * 8 + n[1], n[2], n[3], n[4]));
            this.then_some(row)
        })
        .collect()
}

#[test]
fn every_field_is_where_the_second_statement_says() {
    for version in Version::ALL {
        let stated = stated(*version);
        assert!(stated.len() > 90, "{version:?}: the fixture lacks rows");
        let declared: BTreeMap<_, _> = version
            .fields()
            .iter()
            .map(|field| {
                let place = (
                    u32::from(field.lo),
                    u32::from(field.width()),
                    u32::from(field.count),
                    u32::from(field.stride),
                );
                (field.name, place)
            })
            .collect();
        assert_eq!(
            declared.len(),
            version.fields().len(),
            "{version:?}: a name is declared twice"
        );
        assert_eq!(declared, stated, "{version:?}");
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

/// The bits that no field names, as ranges: a field that shrinks or moves changes them.
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

#[test]
fn the_reserved_bits_are_those_that_the_fixture_lists() {
    for version in Version::ALL {
        let (major, minor) = version.number();
        let prefix = std::format!("# holes {major:02}_{minor:02}:");
        let line = RANGES
            .lines()
            .find(|line| line.starts_with(&prefix))
            .unwrap();
        let stated: Vec<_> = line[prefix.len()..]
            .split_whitespace()
            .map(|range| {
                let (low, high) = range.split_once('-').unwrap();
                (low.parse().unwrap(), high.parse().unwrap())
            })
            .collect();
        assert_eq!(holes(*version), stated, "{version:?}");
    }
}

/// Byte, bit and width of the fields that matter, from `libsmctrl` and other projects' findings on hardware: version byte
/// 72, masks at 84 and 304, grid at 48 and 128, RESUME at 24 and 176, program at 192 and 152, constant bank 0 at 192.
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
