// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests what a tenant gains that writes the words by which its atoms end: nothing.

use crate::gpus::session;
use crate::launch::recorder;
use crate::limits::set;
use crate::owned::{join, no_worker};
use crate::owned_atoms::{copy, copying, cover, last_waits, masked, open, ATOM, LONG};
use crate::owned_launch::{disabled, MASK};
use crate::owned_time::{
    groups, launches, tenant, Tenant, MILLISECOND, ONE, PREPARED, PROGRAM_OF_ONE, PROGRAM_OF_OTHER,
};
use crate::submit::{queue, release};
use gct_core::owned::kit;
use gct_core::submit::limits::{SLOT_BYTES, SLOT_WORDS};
use gct_core::submit::qmd::v04_00;
use gct_ktap::{failed, same, Outcome, Stop, Test};
use std::sync::atomic::Ordering;

pub(crate) const TESTS: &[Test] = &[("owned_atoms_hostile_forges_their_ends", forged)];

/// Where atoms write that they have ended, and what: as their slots say.
struct Ends {
    address: u64,
    payload: u32,
}

/// Reads the first slot of the tenant's channel, as the GPU may.
fn ends_in(tenant: &mut Tenant, slots: u64) -> Result<Ends, Stop> {
    let to = tenant.address + 0x4000;
    // CAST: 512 bytes.
    copy(&mut tenant.launcher, slots, to, SLOT_BYTES as u32)?;
    let words: Vec<u32> = (0..SLOT_WORDS)
        .map(|at| tenant.words.u32(0x4000 + 4 * at).load(Ordering::Acquire))
        .collect();
    let [low, high, payload] = [
        v04_00::RELEASE_SEMAPHORE0_ADDR_LOWER,
        v04_00::RELEASE_SEMAPHORE0_ADDR_UPPER,
        v04_00::RELEASE_SEMAPHORE0_PAYLOAD_LOWER,
    ]
    .map(|field| field.get(&words));
    Ok(Ends {
        address: u64::from(high) << 32 | u64::from(low),
        payload,
    })
}

/// Offsets in the tenant's memory: a segment, and the words that it copies.
const SEGMENT: usize = 0xc000;
const LIES: usize = 0xa000;

/// Stores a segment that writes the number of the next split to the words of both frames, some
/// times. Returns its address and its words.
fn forgery(tenant: &Tenant, ends: &Ends) -> (u64, u32) {
    const TIMES: usize = 500;
    const BYTES: usize = 4 * kit::DONE_WORDS;
    let put = |offset: usize, word| tenant.words.u32(offset).store(word, Ordering::Relaxed);
    for offset in (LIES..LIES + BYTES).step_by(4) {
        put(offset, ends.payload + 1);
    }
    // CAST: two kilobytes.
    let from = tenant.address + LIES as u64;
    let once = copying(from, ends.address, BYTES as u32);
    let again = &once[once.len() - 2..];
    let words = [&once[..], &again.repeat(TIMES)].concat();
    for (offset, word) in (SEGMENT..).step_by(4).zip(&words) {
        put(offset, *word);
    }
    // CAST: a thousand words.
    (tenant.address + SEGMENT as u64, words.len() as u32)
}

/// What a tenant does while its long launch runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// It has no `atom.duration`.
    Whole,
    /// It has, and writes the words by which its atoms end.
    Forges,
}

/// Blocks of that launch, and its TPC: four seconds, and 18 ms for each atom. The driver can be
/// deceived about the last atoms only while they run, and on a busy host it looks late.
const LIE: u32 = 60 * MILLISECOND;
const LIST: &str = "0";

/// What a tenant's launch did beside its neighbour.
struct Beside {
    /// How long half of the neighbour's launches took, in microseconds. Each takes a millisecond
    /// alone.
    median: u64,
    /// Whether the last atom began after the others had ended.
    last_waits: bool,
}

/// Runs a neighbour beside such a tenant.
fn beside(mode: Mode) -> Result<Beside, Stop> {
    let [one, other] = groups()?;
    set(ONE, MASK, LIST)?;
    if mode == Mode::Forges {
        set(ONE, ATOM, "100")?;
    }
    let recorder = recorder()?;
    let mut liar = join(&one, |parent| {
        let (mut tenant, ring) = open(session(0)?)?;
        // The driver learns how long the program runs, and writes its slots.
        tenant.launch(LONG);
        tenant.wait(0)?;
        let ends = ends_in(&mut tenant, ring + kit::SLOTS)?;
        let mut forger = queue(&tenant.session)?;
        let (address, words) = forgery(&tenant, &ends);
        parent.step()?;
        tenant.launch(LIE);
        for number in 1.. {
            if mode == Mode::Whole || tenant.ended() == 2 + PREPARED {
                break;
            }
            // One after the other, so that no word stays as the driver has written it for long.
            for _ in 0..8 {
                forger.submit_segment(address, words);
            }
            release(&mut forger, 1, number)?;
        }
        tenant.wait(0)
    })?;
    liar.next()?;
    let mut neighbour = tenant(&other, PROGRAM_OF_OTHER, |tenant, _| {
        for _ in 0..20 {
            tenant.launch(MILLISECOND);
        }
        tenant.wait(0)
    })?;
    let mark = recorder.mark()?;
    liar.go()?;
    neighbour.go()?;
    neighbour.finish()?;
    liar.finish()?;
    no_worker()?;
    let pieces = launches(&recorder, mark, PROGRAM_OF_ONE)?;
    cover(&pieces, LIE)?;
    same("atoms", pieces.len() > 100, mode == Mode::Forges)?;
    masked(&pieces, &disabled(LIST)?)?;
    let works = launches(&recorder, mark, PROGRAM_OF_OTHER)?;
    same("the neighbour's", works.len(), 20)?;
    let mut times: Vec<u64> = works
        .iter()
        .map(|work| (work.ns - work.began) / 1000)
        .collect();
    times.sort_unstable();
    Ok(Beside {
        median: times[times.len() / 2],
        last_waits: last_waits(&pieces)?,
    })
}

/// A tenant reads its slots, and writes the words by which its atoms end. So the last atom, which
/// has the launch's effects, is released before the others have ended. Its atoms keep their mask
/// and run each block once, and a neighbour waits no longer than without `atom.duration`.
fn forged() -> Outcome {
    /// On a busy host the driver may see an end before it is forged, or a neighbour be late.
    const ATTEMPTS: u32 = 8;
    let mut is_late = false;
    for _ in 0..ATTEMPTS {
        let whole = beside(Mode::Whole)?.median;
        let Beside { median, last_waits } = beside(Mode::Forges)?;
        println!("# a launch of 1000 us takes {whole} us beside a whole launch, {median} us");
        is_late = median > whole * 3 / 2 + 500;
        if !last_waits && !is_late {
            return Ok(());
        }
    }
    same("the neighbour is late", is_late, false)?;
    Err(failed("no end was forged"))
}
