// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks the plans of splits.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::random::config;
use crate::submit::atom::{Axis, Plan};
use crate::submit::limits::ATOMS_MAX;

/// Returns the linear numbers of the blocks that the hardware runs for one atom: from RESUME on, x
/// fastest, up to the end.
fn blocks(grid: [u32; 3], start: [u32; 3], end: [u32; 3]) -> impl Iterator<Item = usize> {
    let [width, height, _] = grid.map(u64::from);
    let [start_x, start_y, start_z] = start.map(u64::from);
    let [end_x, end_y, end_z] = end.map(u64::from);
    let mut at = (start_x, start_y, start_z);
    std::iter::from_fn(move || {
        let (x, y, z) = at;
        if z >= end_z || y >= end_y || x >= end_x {
            return None;
        }
        at = (x + 1, y, z);
        if at.0 == end_x {
            at = (0, y + 1, z);
        }
        if at.1 == end_y {
            at = (at.0, 0, z + 1);
        }
        Some(usize::try_from((z * height + y) * width + x).unwrap())
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn each_block_is_in_exactly_one_atom(
        (width, height, depth) in (1u32..60, 1u32..20, 1u32..12),
        flatten in 0u32..3,
        atoms in 0u32..40,
    ) {
        let grid = match flatten {
            0 => [width, 1, 1],
            1 => [width, height, 1],
            _ => [width, height, depth],
        };
        let plan = Plan::new(grid, atoms);
        let mut ran = vec![0; grid.iter().product::<u32>() as usize];
        let mut sizes = vec![];
        for index in 0..plan.atoms() {
            let atom = plan.atom(index).unwrap();
            let before: u32 = ran.iter().sum();
            for block in blocks(grid, atom.start, atom.end) {
                ran[block] += 1;
            }
            sizes.push(ran.iter().sum::<u32>() - before);
        }
        prop_assert!(ran.iter().all(|times| *times == 1), "{:?} {:?}", grid, plan);
        prop_assert_eq!(plan.atom(plan.atoms()), None);
        let all: Vec<_> = (0..plan.atoms()).filter_map(|index| plan.atom(index)).collect();
        prop_assert_eq!(plan.iter().collect::<Vec<_>>(), all);
        let unit = match plan.axis() {
            Axis::Row => 1,
            Axis::Column => grid[0],
            Axis::Slab => grid[0] * grid[1],
        };
        prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= unit);
        prop_assert!(plan.atoms() <= atoms.max(1));
    }

    #[test]
    fn the_largest_grids_are_cut_without_overflow(width in (u32::MAX - 5)..=u32::MAX, atoms in 1u32..=u32::MAX) {
        let plan = Plan::new([width, 1, 1], atoms);
        prop_assert_eq!(plan.atoms(), atoms.min(ATOMS_MAX));
        let mut next = 0;
        for (index, same) in (0..plan.atoms()).zip(plan.iter()) {
            let atom = plan.atom(index).unwrap();
            prop_assert_eq!(atom, same);
            prop_assert_eq!(atom.start, [next, 0, 0]);
            prop_assert!(atom.end[0] > next);
            next = atom.end[0];
        }
        prop_assert_eq!(next, width);
    }
}

#[test]
fn a_grid_is_cut_where_its_shape_allows() {
    for (grid, asked, got, axis) in [
        ([1000, 1, 1], 8, 8, Axis::Row),
        ([3, 1, 1], 8, 3, Axis::Row),
        ([10, 20, 1], 8, 8, Axis::Column),
        ([1000, 2, 1], 8, 2, Axis::Column),
        ([30, 20, 10], 8, 8, Axis::Slab),
        ([30, 20, 10], 64, 10, Axis::Slab),
        ([1, 1, 4], 2, 2, Axis::Slab),
        ([0, 0, 0], 8, 1, Axis::Row),
        ([5, 1, 1], 0, 1, Axis::Row),
    ] {
        let plan = Plan::new(grid, asked);
        assert_eq!(
            (plan.atoms(), plan.axis()),
            (got, axis),
            "{grid:?} into {asked}"
        );
        assert_eq!(plan.is_whole(), got == 1);
    }
}
