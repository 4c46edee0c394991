// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures what the copy at the beginning of a service's request does as a hint: others yield
//! while it runs, and not only when its first launch comes (GPreempt).

use super::channel::Kernel;
use super::gpu::Sharing;
use super::measured::waits;
use super::script::{Pattern, Program};
use super::world::{Threads, World, START};
use gct_core::iface::File;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

/// Returns the p99 of the waits of a service beside a program that yields to it by turns and always
/// has launches, and the program's part of the time, in thousandths. A request comes every 4 ms in
/// the mean, and begins with a copy.
fn measure(block_ns: u64, copy_ns: u64, counts: bool) -> (u64, u64) {
    let sharing = Sharing::Turns {
        slice: 2 * MS,
        switch: 100 * US,
    };
    let mut world = World::new(4, sharing, Threads::Each(20 * US));
    world.copies_count = counts;
    let kernel = |blocks, block_ns| Kernel {
        program: 0x100,
        blocks,
        block_ns,
    };
    let group = world.group(&[(File::ComputePriority, "0".into())]);
    let requests = Pattern::Requests {
        launches: 1,
        pause_ns: 4 * MS,
    };
    let service = Program::new(vec![kernel(16, 500 * US)], requests, START, 7);
    world.start(group, service.copies(copy_ns));
    let group = world.group(&[]);
    let training = Program::new(vec![kernel(640, block_ns)], Pattern::Always(6), START, 1);
    let training = world.start(group, training);
    let from = START + 100 * MS;
    world.run_until(from);
    let before = world.gpu.active[&training];
    world.run_until(from + 1_000 * MS);
    let part = (world.gpu.active[&training] - before) / MS;
    let waits = waits(&world, 0, from);
    (waits[waits.len() / 100], part)
}

/// Checks that a copy takes the waits away that end while it runs, and what it costs: the time that
/// it runs longer. Prints the numbers.
#[test]
fn a_copy_tells_others_of_the_launch_behind_it() {
    for block_ns in [20 * US, 200 * US] {
        // What is in flight when the copy begins: a window and its run-ahead, and a look.
        let in_flight = 50 * US + block_ns + 20 * US;
        let (unseen, alone) = measure(block_ns, 0, false);
        assert!(unseen >= 100 * US, "a switch");
        for copy_ns in [50, 100, 200, 1_000].map(|copy| copy * US) {
            let (wait, part) = measure(block_ns, copy_ns, true);
            println!(
                "blocks of {} us, copy of {} us: p99 of the waits {} us, without the hint {} us; \
                 the other has {part} of 1000, without {alone}",
                block_ns / US,
                copy_ns / US,
                wait / US,
                unseen / US,
            );
            let ends = wait == 0 || copy_ns < in_flight;
            assert!(
                ends && wait + copy_ns.min(unseen) <= unseen + 5 * US,
                "{wait}"
            );
            // The copy's part of the time is lost at most.
            assert!(part + copy_ns / 4_000 >= alone, "{part} of {alone}");
        }
    }
}
