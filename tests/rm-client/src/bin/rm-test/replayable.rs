// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that a launch can touch managed memory which is elsewhere: its fault is served by UVM, and
//! it goes on.

use crate::faults::{events, shown as faulted, MMU_FAULT};
use crate::gmem::{current, LIMIT};
use crate::gpus::me;
use crate::launch::recorder;
use crate::limits::set;
use crate::managed::{shown, Range, PAGE, ROOT, START};
use crate::tree::eventually;
use gct_ktap::{holds, same, During, Outcome, Stop, Test};
use rm_client::{Access, Client, Gpu, Toucher};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("replayable_fault_migrates_what_the_cpu_wrote", migrated),
    (
        "replayable_fault_of_a_write_follows_that_of_a_read",
        upgraded,
    ),
    ("replayable_fault_without_memory_ends_its_channel", fatal),
    ("replayable_fault_follows_an_invalidation", invalidated),
];

/// Opens a channel whose launches can touch managed memory.
pub(crate) fn toucher() -> Result<Toucher, Stop> {
    let client = Client::open()?;
    Toucher::new(Gpu::open(&client, 0)?).during("toucher")
}

/// Returns accesses to one word of each page.
pub(crate) fn pages(start: usize, bytes: usize, store: Option<u64>) -> Access {
    Access {
        va: start as u64,
        bytes: bytes as u64,
        stride: PAGE as u64,
        store,
    }
}

/// Runs a program to its end.
pub(crate) fn run(toucher: &mut Toucher, accesses: &[Access]) -> Outcome {
    toucher.start(accesses);
    ended(toucher)
}

pub(crate) fn ended(toucher: &Toucher) -> Outcome {
    eventually("the end", &true, || Ok(toucher.has_ended()))
}

/// Returns the sum of what [`Range::write`] stores.
pub(crate) fn sum(seed: u64, bytes: usize) -> u64 {
    let words = (0..bytes).step_by(PAGE).map(|page| seed ^ page as u64);
    words.fold(0, u64::wrapping_add)
}

/// The software GPU gives the driver so long for an invalidation (`tlb.rs`), and a little more.
const GRACE: Duration = Duration::from_secs(3);

/// Returns how many events of a kind the software GPU has recorded.
fn count(mark: u32, kind: &str) -> Result<usize, Stop> {
    let events = recorder()?.since(mark)?;
    Ok(events.iter().filter(|event| event.kind == kind).count())
}

/// A launch adds up what the CPU wrote, and stores what the CPU reads then.
fn migrated() -> Outcome {
    const BYTES: usize = 2 * ROOT;
    let mut toucher = toucher()?;
    let range = Range::new(toucher.session(), START, BYTES)?;
    range.write(7);
    same("on the CPU", shown(&me())?, 0)?;
    let mark = recorder()?.mark()?;
    run(&mut toucher, &[pages(START, BYTES, None)])?;
    same("sum", toucher.sum(0), sum(7, BYTES))?;
    same("on the GPU", shown(&me())?, BYTES)?;
    holds("faults", count(mark, "fault")? >= 2)?;
    holds("replays", count(mark, "replay")? >= 2)?;
    same("cancels", count(mark, "cancel")?, 0)?;
    run(&mut toucher, &[pages(START, BYTES, Some(9))])?;
    for page in (0..BYTES).step_by(PAGE) {
        let word = range.mapping.u64(page).load(Ordering::Relaxed);
        same("content", word, 9 + page as u64).during(page)?;
    }
    same("errors", events(&me())?, faulted(0, 0))
}

/// A page that the GPU may only read is made writable. The accesses of one program fault together.
fn upgraded() -> Outcome {
    const BYTES: usize = ROOT;
    let mut toucher = toucher()?;
    let range = Range::new(toucher.session(), START, 4 * BYTES)?;
    range.write(3);
    let accesses = |store| [0, 1, 2, 3].map(|at| pages(START + at * BYTES, BYTES, store));
    run(&mut toucher, &accesses(None)).during("read")?;
    for at in 0..4 {
        let words = (0..BYTES).step_by(PAGE);
        let words = words.map(|page| 3 ^ (at * BYTES + page) as u64);
        same("sum", toucher.sum(at), words.sum())?;
    }
    // The CPU's reads leave the pages on both sides, to be read alone.
    range.check(3)?;
    run(&mut toucher, &accesses(Some(5))).during("write")?;
    for at in (0..4 * BYTES).step_by(PAGE) {
        let word = range.mapping.u64(at).load(Ordering::Relaxed);
        same("content", word, 5 + (at % BYTES) as u64).during(at)?;
    }
    Ok(())
}

/// What leaves the GPU, by a fault of the CPU or because of a limit, is invalidated in its TLBs. A
/// launch that comes back to it faults, and could not have used what was there.
fn invalidated() -> Outcome {
    const BYTES: usize = 2 * ROOT;
    let mut toucher = toucher()?;
    let range = Range::new(toucher.session(), START, BYTES)?;
    let alone = current(&me())?;
    let mark = recorder()?.mark()?;
    for seed in [1, 2, 3] {
        range.write(seed);
        for _ in 0..2 {
            run(&mut toucher, &[pages(START, BYTES, None)])?;
            same("sum", toucher.sum(0), sum(seed, BYTES))?;
            set(&me(), LIMIT, &alone.to_string())?;
            same("on the GPU", shown(&me())?, 0)?;
            set(&me(), LIMIT, "max")?;
        }
    }
    holds("faults", count(mark, "fault")? >= 6)?;
    thread::sleep(GRACE);
    same("stale", count(mark, "stale")?, 0)
}

/// UVM cancels an access to an address where it has nothing. The channel gets an error, and no
/// other.
fn fatal() -> Outcome {
    let mut other = toucher()?;
    let mut toucher = toucher()?;
    let range = Range::new(toucher.session(), START, ROOT)?;
    range.write(1);
    let mark = recorder()?.mark()?;
    toucher.start(&[
        pages(START, ROOT, None),
        pages(START + 64 * ROOT, ROOT, Some(1)),
    ]);
    eventually("own errors", &faulted(1, MMU_FAULT), || events(&me()))?;
    holds("cancels", count(mark, "cancel")? >= 1)?;
    same("ended", toucher.has_ended(), false)?;
    range.check(1)?;
    drop(range);
    let range = Range::new(other.session(), START, ROOT)?;
    range.write(2);
    run(&mut other, &[pages(START, ROOT, None)])?;
    same("sum", other.sum(0), sum(2, ROOT))?;
    same("errors", events(&me())?, faulted(1, MMU_FAULT))
}
