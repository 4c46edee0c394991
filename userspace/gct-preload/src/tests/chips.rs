// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests launches in atoms on simulated chips on which splits were not measured, as `gctctl
//! selftest` tries them.

use crate::limits::LaunchLimits;
use crate::simulated::Bench;
use core::sync::atomic::Ordering;
use gct_core::mask::TpcMask;
use gct_core::submit::reason::Reason;
use gct_core::topology::Topology;
use gct_model::qmd::{set, Layout, V02_04, V03_00, V04_01, V05_00, WORDS_MAX};
use gct_model::{Act, Config, Coverage, Order, Run};

/// Blocks of a launch: more than the whole chip could hold at once.
const BLOCKS: u32 = 5000;
/// Blocks that the whole chip could hold at once if its SMs were the largest, and the allowed TPCs
/// could not: 32 on each of eight TPCs.
const WAVE: u32 = 256;
/// Address of the launch's descriptor.
const QMD: u64 = 0x2_0400_0000;
/// Launches of a test.
const LAUNCHES: u32 = 12;

/// TPCs in the order of GB10, one of each GPC in turn, with holes.
const INTERLEAVED: &str = "1-2,6-8,12,14,18";
/// Those that the tenant may use.
const ALLOWED: &str = "1,7,12";

/// A chip: the class of its channels, its descriptors, and whether they are inline.
type Chip = (u16, &'static Layout, bool);

const CHIPS: [Chip; 5] = [
    (0xc56f, &V02_04, true),
    (0xc56f, &V02_04, false),
    (0xc56f, &V03_00, true),
    (0xc96f, &V04_01, false),
    (0xc96f, &V05_00, false),
];

fn list(text: &str) -> TpcMask {
    TpcMask::parse(text.as_bytes()).unwrap()
}

/// Returns a launch that releases its number to an address.
fn launch((_, layout, inline): Chip, blocks: u32, number: u32, release_at: usize) -> Vec<u32> {
    let mut qmd = [0; WORDS_MAX];
    let (major, minor) = layout.version;
    set(&mut qmd, layout.version_bits, major << 4 | minor);
    set(&mut qmd, layout.kind, 2);
    set(&mut qmd, layout.program[0], 0x1234);
    for (field, value) in layout.grid.into_iter().zip([blocks, 1, 1]) {
        set(&mut qmd, field, value);
    }
    for (field, value) in layout.threads.into_iter().zip([128, 1, 1]) {
        set(&mut qmd, field, value);
    }
    let release = layout.releases[0].unwrap();
    let [low, high] = release.address;
    set(&mut qmd, release.enable, 1);
    set(&mut qmd, release.size, 1);
    set(&mut qmd, low, (release_at & 0xffff_ffff) as u32);
    set(&mut qmd, high, (release_at >> 32) as u32);
    set(&mut qmd, release.payload[0], number);
    let words = &qmd[..layout.words];
    let upload = |va: u64, words: &[u32]| {
        let count = words.len() as u32;
        let (high, low) = ((va >> 32) as u32, va as u32);
        let mut all = vec![
            0x2002_2062,
            high,
            low,
            0x2002_2060,
            count * 4,
            1,
            0x2001_206c,
            0x41,
        ];
        all.push(0x6000_206d | count << 16);
        all.extend(words);
        all
    };
    // The parameters, as CUDA uploads them.
    let mut all = upload(QMD + 0x1000, &[number]);
    match inline {
        true => all.extend([0x2042_20c6, 0, (QMD >> 8) as u32].iter().chain(words)),
        false => {
            all.extend(upload(QMD, words));
            all.extend([0x2001_20ad, (QMD >> 8) as u32, 0x2001_20b0, 0xa]);
        }
    }
    all
}

/// Runs launches of so many blocks on a chip. Returns the bench and the most grids with blocks that
/// ran at once.
fn run(chip: Chip, blocks: u32, tried: bool, order: Order) -> (Bench, usize) {
    let limits = LaunchLimits {
        tpcs: Some(list(ALLOWED)),
        atom_ns: 10_000,
        tried,
        ..LaunchLimits::NONE
    };
    let config = Config {
        order,
        ..Config::default()
    };
    let mut bench = Bench::of(chip.0, limits, config);
    bench.governor.set_gpu(Topology::apart(list(INTERLEAVED)));
    let (mut number, mut idle, mut most) = (0, 0, 0);
    while idle < 3 {
        let more = number < LAUNCHES && bench.has_room();
        if more {
            number += 1;
            let words = launch(chip, blocks, number, bench.release_at(0));
            bench.submit(&words, bench.put as usize * 2048);
        }
        bench.work();
        let moved = bench.step();
        most = most.max(bench.outstanding());
        idle = if more || moved { 0 } else { idle + 1 };
    }
    assert_eq!(number, LAUNCHES, "the tenant hangs");
    assert!(!bench.channel.pending(&bench.shadow), "work is held back");
    (bench, most)
}

/// Checks that each block ran once in each launch, only where it may, and before the release.
fn check(bench: &Bench, blocks: u32) {
    let report = bench.machine.report();
    assert_eq!(report.anomalies, []);
    let others = list(INTERLEAVED).without(&list(ALLOWED));
    let mut coverage = Coverage::default();
    for run in report.runs.iter().filter(|run| run.count() > 0) {
        assert!(run.ended.is_some());
        coverage.add(&run.blocks);
        for tpc in 0..64 {
            let disabled = run.mask.0[tpc / 32] >> (tpc % 32) & 1 == 1;
            assert!(disabled || !others.has(tpc), "TPC {tpc}: {:x?}", run.mask);
        }
    }
    assert_eq!(coverage.total(), u64::from(blocks * LAUNCHES));
    assert!(coverage
        .counts()
        .into_iter()
        .all(|(_, times)| times == LAUNCHES));
    assert_eq!(bench.release_word(0).load(Ordering::Relaxed), LAUNCHES);
    let mut releases = 0;
    for effect in &report.effects {
        let Act::Release(release) = effect.act else {
            continue;
        };
        if release.address != bench.release_at(0) as u64 {
            continue;
        }
        releases += 1;
        // Launches of one channel run one after the other.
        let before = &report.runs[..effect.by.unwrap()];
        let ended = |run: &Run| run.ended.is_some_and(|ended| ended < effect.at);
        assert!(before.iter().all(ended), "{release:?} comes early");
    }
    assert_eq!(releases, LAUNCHES);
}

#[test]
fn launches_in_atoms_are_exact_on_chips_that_are_tried() {
    for (chip, order) in CHIPS.into_iter().zip([
        Order::Eager,
        Order::Late,
        Order::Random(1),
        Order::Random(2),
        Order::Late,
    ]) {
        let (bench, most) = run(chip, BLOCKS, true, order);
        check(&bench, BLOCKS);
        let sums = &bench.governor.counters().sums;
        let split = (sums.split, sums.atoms > 8 * sums.split);
        assert_eq!(split, (u64::from(LAUNCHES), true), "{:?}", chip.1.version);
        assert!(most <= 8, "{most} atoms at once");
    }
}

#[test]
fn launches_stay_whole_on_chips_that_nobody_tries() {
    for chip in CHIPS {
        let (bench, _) = run(chip, BLOCKS, false, Order::Eager);
        check(&bench, BLOCKS);
        let counters = bench.governor.counters();
        assert_eq!(counters.sums.split, 0);
        // Until their duration is known.
        let counted = counters.kept(Reason::NotMeasured);
        assert!(counted > 0, "{:?}", chip.1.version);
    }
}

/// Without a join the last atom waits for the others, and before version 4.0 nothing tells whether
/// the blocks of a launch wait for each other. So one that the chip may hold at once stays whole.
#[test]
fn what_may_be_a_cooperative_launch_stays_whole() {
    for chip in CHIPS {
        let joins = chip.1.kind.is_some();
        for (blocks, splits) in [(WAVE, joins), (WAVE + 1, true)] {
            let (bench, _) = run(chip, blocks, true, Order::Eager);
            check(&bench, blocks);
            let split = bench.governor.counters().sums.split;
            assert_eq!(split > 0, splits, "{:?}: {blocks} blocks", chip.1.version);
        }
    }
}
