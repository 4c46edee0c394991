// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks splits of the versions on which they were not measured, as `gctctl selftest` tries them:
//! a tenant must notice no difference, if the chip does as the model does.

mod common;

use common::rewriter::{mask_in_place, rewrite_as, rewrite_on, run_in_turn, How, HOPPER};
use common::{channel_class, Segment, CHANNEL};
use gct_core::submit::mask::DisabledTpcs;
use gct_core::submit::reason::Reason;
use gct_model::qmd::{set, Layout, LAYOUTS, WORDS_MAX};
use gct_model::{
    compare, memory_differences, Expected, Machine, Mask, Order, Report, SparseMemory,
};
use proptest::prelude::*;

/// TPCs of the chips.
const TPCS: u16 = 64;

/// More slots than any test uses.
const SLOT_RANGE: std::ops::Range<u64> =
    common::rewriter::SLOTS..common::rewriter::SLOTS + (1 << 24);

/// Returns the address of the n-th launch's descriptor.
fn qmd_va(n: u32) -> u64 {
    0x2_0400_0000 + 0x800 * u64::from(n)
}

/// A launch.
#[derive(Clone, Debug)]
struct Launch {
    grid: [u32; 3],
    inline: bool,
    /// Whether another upload precedes it, so that all registers are known.
    uploads: bool,
    releases: usize,
    reference: bool,
    /// Whether its end schedules a stored descriptor.
    schedules: bool,
    /// TPCs that the tenant disables.
    mask: u32,
    /// Whether a call by the last PCAS_A follows.
    again: bool,
}

fn launch() -> impl Strategy<Value = Launch> {
    let grids = prop_oneof![
        (1_u32..300).prop_map(|x| [x, 1, 1]),
        (1_u32..20, 1_u32..20).prop_map(|(x, y)| [x, y, 1]),
        (1_u32..6, 1_u32..6, 1_u32..6).prop_map(|(x, y, z)| [x, y, z]),
    ];
    (
        grids,
        any::<[bool; 3]>(),
        0_usize..=2,
        any::<[bool; 2]>(),
        any::<u32>(),
    )
        .prop_map(|(grid, form, releases, effects, mask)| {
            let [inline, uploads, again] = form;
            let [reference, schedules] = effects;
            Launch {
                grid,
                inline,
                uploads,
                releases,
                reference,
                schedules,
                mask: mask & 0xff00,
                again,
            }
        })
}

/// Returns a grid without effects that runs program `n`.
fn grid(layout: &Layout, n: u32, grid: [u32; 3]) -> [u32; WORDS_MAX] {
    let mut words = [0; WORDS_MAX];
    let (major, minor) = layout.version;
    set(&mut words, layout.version_bits, major << 4 | minor);
    set(&mut words, layout.kind, 2);
    for (field, value) in layout.grid.into_iter().zip(grid) {
        set(&mut words, field, value);
    }
    for field in layout.threads {
        set(&mut words, field, 1);
    }
    set(&mut words, layout.program[0], 0x1000 + n);
    words
}

impl Launch {
    fn qmd(&self, layout: &Layout, n: u32) -> [u32; WORDS_MAX] {
        let mut words = grid(layout, n, self.grid);
        for (i, release) in (0..).zip(&layout.releases[..self.releases]) {
            let release = release.expect("every version has two releases");
            set(&mut words, release.enable, 1);
            set(&mut words, release.size, 1);
            set(
                &mut words,
                release.address[0],
                0x4600_0000 + 0x100 * n + 4 * i,
            );
            set(&mut words, release.payload[0], 100 * (n + 1) + i);
        }
        if self.reference {
            for (field, value) in layout.reference.into_iter().zip([n, 0, 1, 1]) {
                set(&mut words, field, value);
            }
        }
        let [dependent, _] = layout.dependents;
        if self.schedules {
            let pointer = u32::try_from(qmd_va(100 + n) >> 8).expect("below 2^40");
            set(&mut words, dependent.enable, 1);
            set(&mut words, dependent.action, 1);
            set(&mut words, dependent.pointer, pointer);
        }
        set(&mut words, layout.mask_valid, 1);
        set(&mut words, layout.mask[0], self.mask);
        words
    }

    /// Writes the launch as the n-th.
    fn write(&self, layout: &Layout, n: u32, segment: &mut Segment) {
        if self.uploads {
            segment.upload(0x4700_0000 + 0x100 * u64::from(n), &[n, 7]);
        }
        if self.schedules && layout.dependents[0].enable.is_some() {
            let stored = grid(layout, 100 + n, [3, 1, 1]);
            segment.upload(qmd_va(100 + n), &stored[..layout.words]);
        }
        let qmd = self.qmd(layout, n);
        match self.inline {
            true => segment.inline(qmd_va(n), &qmd[..layout.words]),
            false => segment
                .upload(qmd_va(n), &qmd[..layout.words])
                .pcas(qmd_va(n), 0xa),
        };
        if self.again {
            segment.0.extend([0x2001_20b0, 0xa]);
        }
    }
}

/// Returns how many of the launches are split.
fn splits(layout: &Layout, launches: &[Launch]) -> u64 {
    let joins = layout.kind.is_some();
    let (mut known, mut splits) = (false, 0);
    for (n, launch) in launches.iter().enumerate() {
        let stores = launch.schedules && layout.dependents[0].enable.is_some();
        known |= launch.uploads || !launch.inline || stores;
        let [x, y, z] = launch.grid;
        let units = match (y, z) {
            (1, 1) => x,
            (_, 1) => y,
            _ => z,
        };
        // Its own call again, or that of a later one which did not set PCAS_A.
        let behind = launches[n..].iter().skip(1).take_while(|next| next.inline);
        let mut calls = std::iter::once(launch).chain(behind);
        let is_shared = !launch.inline && calls.any(|call| call.again);
        let is_split = known && units > 1 && !is_shared && !(joins && launch.inline);
        splits += u64::from(is_split);
    }
    splits
}

fn run(segments: &[Vec<u32>]) -> (Report, SparseMemory) {
    let mut machine = Machine::new(SparseMemory::new(1 << 12), Default::default());
    for segment in segments {
        machine.submit(CHANNEL, segment);
    }
    machine.run();
    machine.into_parts()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_split_that_is_tried_keeps_its_effects(
        layout in proptest::sample::select(&LAYOUTS[..]),
        launches in proptest::collection::vec(launch(), 1..5),
        kept in proptest::option::of(0_u16..TPCS),
        atoms in 2_u32..20,
        seed: u64,
    ) {
        let mut launches = launches;
        for launch in &mut launches {
            // A stored descriptor has no mask.
            launch.schedules &= kept.is_none();
        }
        let mut original = Segment::default();
        for (n, launch) in (0..).zip(&launches) {
            launch.write(layout, n, &mut original);
        }
        let original = [original.0];
        // TPCs 0 to 7 are never the tenant's.
        let kept = kept.map(|kept| DisabledTpcs::keep_only(TPCS, [kept, 3]));
        let mask = kept.map(|mask| mask.expect("TPCs of the GPU"));
        let class = channel_class(layout);
        let how = How {
            mask: mask.as_ref(),
            atoms,
            written: true,
            done: true,
            tried: Some(class),
            ..How::default()
        };
        let done = rewrite_as(&original, &how);
        if class != HOPPER {
            prop_assert_eq!(done.counters.sums.split, splits(layout, &launches));
        }
        let (before, memory) = run(&original);
        let memory = match &mask {
            Some(mask) => run(&mask_in_place(&original, mask, class)).1,
            None => memory,
        };
        for order in [Order::Eager, Order::Late, Order::Random(seed), Order::Random(!seed)] {
            let (after, new_memory) = run_in_turn(&done, order);
            let expected = Expected {
                slots: SLOT_RANGE,
                mask: mask.as_ref().map(|mask| Mask(*mask.words())).unwrap_or_default(),
            };
            prop_assert_eq!(compare(&before, &after, &expected), [], "{:?}", layout.version);
            prop_assert_eq!(memory_differences(&memory, &new_memory, &[SLOT_RANGE]), []);
        }
        // Nobody splits them otherwise.
        let how = How { tried: None, ..how };
        if class != HOPPER {
            let done = rewrite_on(class, &original, &how);
            prop_assert_eq!(done.counters.sums.split, 0);
        }
    }
}

/// What was not measured stays whole without being tried, and is counted.
#[test]
fn a_split_that_nobody_tries_is_counted() {
    for layout in LAYOUTS
        .into_iter()
        .filter(|layout| layout.version != (4, 0))
    {
        let mut original = Segment::default();
        original.upload(qmd_va(0), &grid(layout, 0, [100, 1, 1])[..layout.words]);
        original.pcas(qmd_va(0), 0xa);
        let how = How {
            atoms: 8,
            written: true,
            ..How::default()
        };
        let done = rewrite_on(channel_class(layout), &[original.0], &how);
        assert_eq!(done.counters.sums.split, 0, "{:?}", layout.version);
        assert_eq!(done.counters.kept(Reason::NotMeasured), 1);
    }
}
