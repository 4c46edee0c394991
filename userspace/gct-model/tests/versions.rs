// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks masks on every layout version, uploaded and inline: the model's bit positions against the
//! rewriter's.

mod common;

use common::{channel_class, execute, Segment};
use gct_core::submit::mask::DisabledTpcs;
use gct_core::submit::rewrite::{in_place, Order as Wanted};
use gct_core::submit::stats::Counters;
use gct_core::submit::tracker::{QmdCall, Tracker};
use gct_model::qmd::{set, Layout, LAYOUTS, WORDS_MAX};
use gct_model::{compare, Expected, Kind, Mask, Order};

const QMD: u64 = 0x2_0400_0000;
const TPCS: u16 = 64;

/// Returns a grid of 6 x 5 blocks that releases a semaphore, with the tenant's own mask in its
/// second word.
fn qmd(layout: &Layout) -> [u32; WORDS_MAX] {
    let mut words = [0; WORDS_MAX];
    let (major, minor) = layout.version;
    set(&mut words, layout.version_bits, major << 4 | minor);
    set(&mut words, layout.kind, 2);
    for (field, value) in layout.grid.into_iter().zip([6, 5, 1]) {
        set(&mut words, field, value);
    }
    for field in layout.threads {
        set(&mut words, field, 32);
    }
    set(&mut words, layout.program[0], 0x1234);
    set(&mut words, layout.mask_valid, 1);
    set(&mut words, layout.mask[1], 0x8000_0001);
    let release = layout.releases[0].expect("every version has a release");
    set(&mut words, release.enable, 1);
    set(&mut words, release.size, 1);
    set(&mut words, release.address[0], 0x4600_0000);
    set(&mut words, release.payload[0], 77);
    words
}

/// Returns the launch in a segment: inline methods, or an upload and a PCAS.
fn segment(layout: &Layout, inline: bool) -> Vec<u32> {
    let words = &qmd(layout)[..layout.words];
    let mut segment = Segment::default();
    if inline {
        segment.inline(QMD, words);
    } else {
        segment.upload(QMD, words).pcas(QMD, 0xa);
    }
    segment.0
}

#[test]
fn every_version_runs_and_is_masked_where_the_model_says() {
    for (layout, inline) in LAYOUTS
        .iter()
        .flat_map(|layout| [(layout, false), (layout, true)])
    {
        let original = segment(layout, inline);
        let mask = DisabledTpcs::keep_only(TPCS, [1, 2, 40]).expect("TPCs of the GPU");
        let mut found = [QmdCall::default(); 4];
        let mut counters = Counters::new();
        let mut masked = original.clone();
        let scan = Tracker::new(channel_class(layout)).scan(&masked, &mut found, &mut counters);
        let order = Wanted {
            mask: Some(&mask),
            atoms: 1,
            ..Wanted::default()
        };
        in_place(
            &mut masked,
            &found[..scan.found],
            &[order; 4],
            &mut counters,
        );
        let case = format!("version {:?}, inline {inline}", layout.version);
        assert_eq!((scan.found, counters.sums.rewritten), (1, 1), "{case}");
        let (before, _) = execute(&[&original], Order::Eager);
        let (after, _) = execute(&[&masked], Order::Eager);
        let expected = Expected {
            slots: 0..0,
            mask: Mask(*mask.words()),
        };
        assert_eq!(compare(&before, &after, &expected), [], "{case}");
        let run = &after.runs[0];
        assert_eq!((run.kind, run.count()), (Kind::Blocks, 30), "{case}");
        assert_eq!(run.mask.0[..3], [!6, !(1 << 8), 0], "{case}");
        assert_eq!(before.runs[0].mask.0[..3], [0, 0x8000_0001, 0], "{case}");
    }
}

#[test]
fn resume_of_every_version_counts_with_schedule() {
    for layout in LAYOUTS {
        let mut words = qmd(layout);
        for (field, value) in layout.resume.into_iter().zip([4, 2, 0]) {
            set(&mut words, field, value);
        }
        let mut segment = Segment::default();
        segment.upload(QMD, &words[..layout.words]).pcas(QMD, 2);
        let (report, _) = execute(&[&segment.0], Order::Eager);
        assert_eq!(report.runs[0].count(), 30 - 16, "{:?}", layout.version);
    }
}
