// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plays programs to the predictor, and to the two that it is to be no worse than: one that knows
//! kernels alone, and LithOS's ordinal one.

use super::tests::{kernel, Table};
use super::*;
use std::vec;
use std::vec::Vec;

/// A kernel and its time in nanoseconds.
type Ran = (Kernel, u64);

/// Sums of the errors of three predictors, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    core: u64,
    kernels: u64,
    ordinal: u64,
}

/// A source of numbers.
struct Chance(u64);

impl Chance {
    /// Returns a number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = probe::mix(self.0, 7);
        (self.0 >> 20) % bound
    }

    /// Returns a time that is off by `percent` at most.
    fn noisy(&mut self, time: u64, percent: u64) -> u64 {
        let part = time * percent / 100;
        time - part + self.below(2 * part + 1)
    }
}

/// Returns the sums over the launches from number `from` on, and prints them as parts of the time.
/// `a_step` is the launches in a step.
fn errors(name: &str, ran: &[Ran], from: usize, a_step: usize) -> Sums {
    let (mut core, mut kernels) = (Table::new(4096), Table::new(4096));
    let mut steps = vec![Vec::new(); a_step];
    let mut sums = Sums::default();
    for (at, (kernel, time)) in ran.iter().enumerate() {
        // Each launch has a place of its own, which says nothing.
        kernels.path = Path::number(at as u32);
        let place: &mut Vec<u64> = &mut steps[at % a_step];
        if at >= from {
            let off = |predicted: Option<u64>| predicted.unwrap_or(0).abs_diff(*time);
            sums.core += off(core.predict(kernel, 60).map(Ns::get));
            sums.kernels += off(kernels.predict(kernel, 60).map(Ns::get));
            sums.ordinal += off(place.get(place.len() / 2).copied());
        }
        let blocks = kernel.blocks().get();
        core.observe(kernel, blocks, 60, Ns(*time));
        kernels.observe(kernel, blocks, 60, Ns(*time));
        core.path = core.path.then(kernel);
        place.insert(place.partition_point(|earlier| earlier < time), *time);
    }
    let time: u64 = ran.iter().skip(from).map(|(_, time)| *time).sum();
    let [core, kernels, ordinal] = [sums.core, sums.kernels, sums.ordinal].map(|sum| {
        let tenths = (1000 * sum + time / 2) / time;
        std::format!("{}.{}%", tenths / 10, tenths % 10)
    });
    std::println!("{name}: core {core}, kernels {kernels}, ordinal {ordinal}");
    sums
}

/// Returns `steps` repetitions of a step, with noise of so many percent.
fn repeated(step: &[Ran], steps: usize, percent: u64) -> Vec<Ran> {
    let mut chance = Chance(11);
    let each = (0..steps).flat_map(|_| step.iter());
    each.map(|(kernel, time)| (*kernel, chance.noisy(*time, percent)))
        .collect()
}

/// Returns a step of layers whose kernels look alike and take different times.
fn layers() -> Vec<Ran> {
    let layer = [
        (1, 40),
        (2, 100),
        (1, 90),
        (3, 20),
        (1, 200),
        (1, 30),
        (1, 60),
    ];
    let head = [(4, 500), (1, 10)];
    let all = head.iter().chain((0..12).flat_map(|_| &layer));
    all.map(|(program, us)| (kernel(*program, 600), us * 1_000))
        .collect()
}

/// Checks that a program that repeats itself is predicted as well as by the places in its steps.
#[test]
fn a_repeated_step_is_predicted_by_its_places() {
    let step = layers();
    for percent in [0, 1, 3] {
        let ran = repeated(&step, 20, percent);
        let sums = errors("steps", &ran, 2 * step.len(), step.len());
        assert!(sums.core <= sums.ordinal, "{percent}%: {sums:?}");
        assert!(sums.kernels > 10 * sums.core, "{percent}%: {sums:?}");
    }
}

/// Checks that launches of one kernel that follow each other have a place each.
#[test]
fn a_run_of_one_kernel_is_told_apart() {
    let mut step: Vec<Ran> = (1..=15).map(|us| (kernel(1, 600), us * 20_000)).collect();
    step.push((kernel(2, 600), 100_000));
    let sums = errors("a run", &repeated(&step, 20, 1), 2 * step.len(), step.len());
    assert!(sums.core <= sums.ordinal, "{sums:?}");
}

/// Checks that a program without any order is predicted as well as by its kernels alone.
#[test]
fn a_program_without_order_is_predicted_by_its_kernels() {
    for programs in [1, 2, 40] {
        let mut chance = Chance(programs);
        let ran: Vec<Ran> = (0..20_000)
            .map(|_| {
                let program = chance.below(programs);
                (
                    kernel(program, 600),
                    chance.noisy(100_000 + 50_000 * program, 50),
                )
            })
            .collect();
        let sums = errors("without order", &ran, 100, 1);
        assert!(
            sums.core <= sums.kernels + sums.kernels / 50,
            "{programs}: {sums:?}"
        );
    }
}

/// Returns a step of 400 launches of five kernels in no order.
fn unordered(chance: &mut Chance) -> Vec<Ran> {
    let each = (0..400).map(|_| chance.below(5));
    each.map(|program| (kernel(program, 600), 100_000 + 50_000 * program))
        .collect()
}

/// Checks that first predictions of places are not made where those of other places were worse than
/// their kernels': of a program that repeats its launches, and their times not.
#[test]
fn places_that_tell_nothing_cost_nothing() {
    let step = unordered(&mut Chance(3));
    let sums = errors(
        "times at random",
        &repeated(&step, 3, 90),
        step.len(),
        step.len(),
    );
    assert!(sums.core <= sums.kernels + sums.kernels / 25, "{sums:?}");
}

/// Checks that kernels are preferred where their last launches tell more than the last steps: of
/// steps whose times all differ by one factor.
#[test]
fn what_a_step_has_in_common_is_predicted_by_its_kernels() {
    let mut chance = Chance(3);
    let step = unordered(&mut chance);
    let mut ran = Vec::new();
    for _ in 0..30 {
        let factor = 1 + chance.below(8);
        ran.extend(step.iter().map(|(kernel, time)| (*kernel, factor * time)));
    }
    let sums = errors("one factor", &ran, step.len(), step.len());
    assert!(2 * sums.core < sums.ordinal, "{sums:?}");
    assert!(sums.core <= sums.kernels + sums.kernels / 10, "{sums:?}");
}

/// Checks that launches behind a change of a step are predicted by their kernels, and by their
/// places again once the step has come back.
#[test]
fn a_changed_step_costs_no_more_than_knowing_kernels_alone() {
    let step = layers();
    let mut ran = repeated(&step, 10, 1);
    let from = ran.len();
    // One launch more, and those behind it are at other numbers.
    ran.push((kernel(5, 600), 70_000));
    ran.extend(repeated(&step, 1, 1));
    let changed = errors("changed", &ran, from + 1, step.len());
    assert!(changed.core < changed.kernels, "{changed:?}");
    assert!(changed.core < changed.ordinal / 2, "{changed:?}");
    let back = ran.len();
    ran.extend(repeated(&step, 1, 1));
    let again = errors("back again", &ran, back, step.len());
    assert!(10 * again.core < again.kernels, "{again:?}");
}

/// Checks that one outlier changes what its place predicts little, and that a second one in a row
/// is believed.
#[test]
fn an_outlier_is_not_believed_and_a_change_is() {
    let mut table = Table::new(64);
    let one = kernel(1, 600);
    let mut observe = |times: &[u64]| {
        for time in times {
            table.observe(&one, 600, 60, Ns(*time));
        }
        table.predict(&one, 60).unwrap().get()
    };
    let settled = observe(&[100_000, 101_000].repeat(20));
    let after = observe(&[5_000_000]);
    assert!(after.abs_diff(settled) < 2_000, "{after}");
    assert!(observe(&[5_000_000]) > 200_000);
    assert!(observe(&[5_000_000; 20]) > 4_900_000);
}

/// Checks that a program that never repeats forgets no kernel.
#[test]
fn ever_new_places_displace_no_kernel() {
    let mut table = Table::new(256);
    let rare = kernel(9, 600);
    table.observe(&rare, 600, 60, Ns(70_000));
    for at in 0..100_000 {
        table.path = Path::number(at);
        table.observe(&kernel(1, 600), 600, 60, Ns(10_000));
    }
    assert_eq!(table.predict(&rare, 60), Some(Ns(70_000)));
}
