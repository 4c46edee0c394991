// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs those of NVIDIA's UVM tests that need launches or channels. The others are in tests/uvm.
//! They need a nvidia-uvm.ko with `uvm_enable_builtin_tests=1`, as in the job gpu.

use crate::faults::{events as errors, shown as faulted};
use crate::gpus::me;
use crate::launch::recorder;
use crate::managed::{session, uvm, Range, PAGE, ROOT, START};
use crate::replayable::{pages, run, sum, toucher};
use gct_ktap::{failed, holds, same, skipped, During, Outcome, Stop, Test};
use rm_client::{Toucher, Uvm};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

pub(crate) const TESTS: &[Test] = &[
    ("nvidia_test_flushes_faults_of_launches", flushed),
    ("nvidia_test_finds_the_space_of_a_channel", space_of),
    ("nvidia_test_of_prefetches_by_faults", prefetched),
];

const ENABLED: &str = "/sys/module/nvidia_uvm/parameters/uvm_enable_builtin_tests";
/// A second.
const TIMEOUT_NS: u64 = 1_000_000_000;

/// Skips the test unless the module offers NVIDIA's tests.
fn enabled() -> Outcome {
    match fs::read_to_string(ENABLED)?.trim() {
        "1" => Ok(()),
        _ => Err(skipped("nvidia-uvm.ko offers no tests")),
    }
}

/// Flushes the buffer of faults until `is_over`. Returns how often.
fn flush(uvm: &Uvm, is_over: &AtomicBool) -> Result<u64, Stop> {
    let mut flushes = 0;
    while !is_over.load(Ordering::Relaxed) {
        uvm.flush_faults(8)?;
        flushes += 8;
    }
    Ok(flushes)
}

/// Adds up what the CPU has written, by launches that fault.
fn add_up(toucher: &mut Toucher, rounds: u64) -> Outcome {
    let range = Range::new(toucher.session(), START, 2 * ROOT)?;
    for round in 0..rounds {
        range.write(round);
        run(toucher, &[pages(START, 2 * ROOT, None)])?;
        same("sum", toucher.sum(0), sum(round, 2 * ROOT)).during(round)?;
    }
    Ok(())
}

/// Faults that are flushed come again with the replay: FAULT_BUFFER_FLUSH while launches fault, and
/// DRAIN_REPLAYABLE_FAULTS after them.
fn flushed() -> Outcome {
    enabled()?;
    let (other, mut toucher) = (session()?, toucher()?);
    let (uvm, is_over) = (uvm(&other)?, AtomicBool::new(false));
    let flushes = thread::scope(|scope| {
        let flusher = scope.spawn(|| flush(uvm, &is_over));
        let outcome = add_up(&mut toucher, 8);
        is_over.store(true, Ordering::Relaxed);
        let flushes = flusher.join().map_err(|_| failed("a thread panicked"))?;
        outcome.and(flushes)
    })?;
    holds("flushes", flushes >= 8)?;
    uvm.drain_faults(TIMEOUT_NS)?;
    same("errors", errors(&me())?, faulted(0, 0))
}

/// CHECK_CHANNEL_VA_SPACE: a fault of a channel is found to be its own space's.
fn space_of() -> Outcome {
    enabled()?;
    let (other, mut toucher) = (session()?, toucher()?);
    let channel = toucher.queue().channel();
    let session = toucher.session();
    let own = uvm(session)?;
    let finds = |space: &Uvm| {
        let check = |number: &u32| own.check_channel(session.gpu(), channel, *number, space);
        (0..64).filter(|number| check(number).is_ok()).count()
    };
    same("subcontexts of its own space", finds(own), 1)?;
    same("of another", finds(uvm(&other)?), 0)
}

/// SET_PAGE_PREFETCH_POLICY: without prefetches each page faults by itself.
fn prefetched() -> Outcome {
    const PAGES: usize = 64;
    enabled()?;
    let mut toucher = toucher()?;
    let mut counts = [0, 0];
    for (enable, count) in [false, true].into_iter().zip(&mut counts) {
        uvm(toucher.session())?.prefetch(enable)?;
        let range = Range::new(toucher.session(), START, ROOT)?;
        range.write(3);
        let mark = recorder()?.mark()?;
        run(&mut toucher, &[pages(START, PAGES * PAGE, None)])?;
        same("sum", toucher.sum(0), sum(3, PAGES * PAGE))?;
        let events = recorder()?.since(mark)?;
        *count = events.iter().filter(|event| event.kind == "fault").count();
    }
    same("each page", counts[0], PAGES)?;
    holds("fewer faults", counts[1] < PAGES / 2)
}
