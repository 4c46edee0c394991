// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests `tpc.mask` against time: changes while launches run, segments that change while the driver
//! reads them, and segments that it cannot read.

use crate::gpus::session;
use crate::launch::{finish, Place};
use crate::limits::{path, set};
use crate::owned::{admit, count, no_worker, rings};
use crate::owned_atoms::copy;
use crate::owned_launch::{disabled, member, MASK, NAME};
use crate::owned_strict::STRICT;
use crate::process::Child;
use crate::submit::{queue, release};
use crate::tree::{eventually, Group};
use fakegpu_record::Event;
use gct_core::owned::{kit, SEGMENT_WORDS};
use gct_core::submit::method::{incr, non_incr};
use gct_ktap::{failed, same, Outcome, Stop, Test};
use rm_client::{numbers, Engine, Grid, Launcher, Memory, Session};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("owned_mask_binds_once_written", written),
    ("owned_hostile_races_the_scan", raced),
    ("owned_segments_that_cannot_be_read", unreadable),
    ("owned_copies_wait_for_their_execution", copies),
    ("owned_hostile_forges_its_progress", forged),
];

/// Bytes of memory for descriptors.
const DESCRIPTORS: u64 = 0x1_0000;
/// Address of the programs, of which there are none.
const PROGRAM: u32 = 0x5000;

/// Maps memory for descriptors. Returns a launch there.
fn grid(session: &Session) -> Result<Grid, Stop> {
    let memory = session.gpu().alloc_memory(Memory::Host, DESCRIPTORS)?;
    Ok(Grid {
        descriptor: session.map_on_gpu(memory, DESCRIPTORS)?,
        program: PROGRAM,
        size: [1, 1, 1],
        disabled: 0,
        release: None,
    })
}

/// Masks that differ from each other, in the order in which they are written.
fn lists() -> Vec<String> {
    (0..12).map(|first| format!("{first}-31")).collect()
}

/// A mask, and the first launch that was submitted once its write had returned.
struct Since {
    first: u32,
    mask: [u32; 8],
}

/// Checks that a launch which is submitted after a write has returned runs under that mask or a
/// later one.
fn written() -> Outcome {
    let group = Group::new(NAME)?;
    let mut child = member(&group, &lists()[0], |_| {
        let place = Place::new(session(0)?)?;
        let mark = place.recorder.mark()?;
        let (submitted, stop) = (AtomicU32::new(0), AtomicBool::new(false));
        let changes = thread::scope(|scope| {
            let changing = scope.spawn(|| {
                let changes = change(&submitted);
                stop.store(true, Ordering::Relaxed);
                changes
            });
            launch(&place, &submitted, &stop)?;
            let changes = changing.join();
            changes.map_err(|_| failed("the thread panicked"))?
        })?;
        let launches = place.recorder.launches_since(mark)?;
        let all = submitted.load(Ordering::SeqCst);
        judge(&launches, all, &changes)
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// Launches grids of 1, 2, 3, .. blocks.
fn launch(place: &Place, submitted: &AtomicU32, stop: &AtomicBool) -> Outcome {
    let mut launcher = place.session.launcher(place.group, place.share)?;
    place.session.schedule(place.group, true)?;
    let mut grid = grid(&place.session)?;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..16 {
            grid.size[0] = submitted.fetch_add(1, Ordering::SeqCst) + 1;
            launcher.submit(&grid.words());
        }
        finish(&mut launcher)?;
    }
    Ok(())
}

/// Writes one mask after the other, while launches are submitted.
fn change(submitted: &AtomicU32) -> Result<Vec<Since>, Stop> {
    let mut changes = Vec::new();
    for list in lists() {
        set(NAME, MASK, &list)?;
        let before = submitted.load(Ordering::SeqCst);
        changes.push(Since {
            first: before + 1,
            mask: disabled(&list)?,
        });
        eventually("more launches", &true, || {
            Ok(submitted.load(Ordering::SeqCst) > before + 20)
        })?;
    }
    Ok(changes)
}

/// Fails unless each launch ran all of its blocks, once and under no mask that was replaced before
/// it was submitted.
fn judge(launches: &[Event], all: u32, changes: &[Since]) -> Outcome {
    let ids: Vec<u32> = launches.iter().map(|launch| launch.grid[0]).collect();
    same("launches", ids, (1..=all).collect())?;
    let mut last = 0;
    for launch in launches {
        let id = launch.grid[0];
        same(
            "blocks",
            &launch.blocks[..],
            &[format!("[0,{id})x[0,1)x[0,1)")],
        )?;
        let mask = launch.mask_words();
        let found = changes.iter().position(|since| since.mask[..] == mask);
        let found = found.ok_or_else(|| failed(format!("launch {id}: {mask:08x?}")))?;
        let written = changes.iter().filter(|since| since.first <= id).count();
        same(
            &format!("launch {id} is in time"),
            found + 1 >= written,
            true,
        )?;
        same(&format!("launch {id} is in order"), found >= last, true)?;
        last = found;
    }
    same("the last mask", last, changes.len() - 1)
}

/// Submits launches, while a thread makes each of their segments another launch and back. Whatever
/// the driver reads it masks, and what it has scanned is what runs. Each submission is one launch.
fn raced() -> Outcome {
    const LIST: &str = "0-31";
    let group = Group::new(NAME)?;
    let mut child = member(&group, LIST, |_| {
        let place = Place::new(session(0)?)?;
        let mut launcher = place.session.launcher(place.group, place.share)?;
        place.session.schedule(place.group, true)?;
        // The segment with the engine's object lies where the launches are written.
        finish(&mut launcher)?;
        let one = grid(&place.session)?;
        let sizes = [[100, 1, 1], [200, 1, 1]];
        let variants = [(sizes[0], 0), (sizes[1], 1 << 5)].map(|(size, disabled)| {
            let grid = Grid {
                size,
                disabled,
                ..one
            };
            grid.words()
        });
        let stop = AtomicBool::new(false);
        let words = launcher.memory();
        let launches = thread::scope(|scope| {
            scope.spawn(|| race(&words, &variants, &stop));
            let launches = submit_until_both_ran(&place, &mut launcher, &variants[0], sizes);
            stop.store(true, Ordering::Relaxed);
            launches
        })?;
        let disabled = disabled(LIST)?;
        for launch in launches {
            same("a known grid", sizes.contains(&launch.grid), true)?;
            let found = launch.mask_words();
            let masked = found
                .iter()
                .zip(disabled)
                .all(|(found, asked)| found & asked == asked);
            same(&format!("{found:08x?} has the mask"), masked, true)?;
        }
        Ok(())
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// Segments that are submitted before the first is used again.
const SEGMENTS: usize = 64;

/// Writes both variants over all segments, by turns.
fn race(memory: &rm_client::Mapping, variants: &[Vec<u32>; 2], stop: &AtomicBool) {
    let length = variants[0].len();
    let differs = |at: &usize| variants[0].get(*at) != variants[1].get(*at);
    let places: Vec<usize> = (0..length).filter(differs).collect();
    while !stop.load(Ordering::Relaxed) {
        for variant in [1, 0] {
            for segment in 0..SEGMENTS {
                for at in &places {
                    let word = memory.u32(4 * (segment * length + at));
                    word.store(variants[variant][*at], Ordering::Relaxed);
                }
            }
        }
    }
}

/// Submits the first variant until both have run. Returns all launches.
fn submit_until_both_ran(
    place: &Place,
    launcher: &mut Launcher,
    words: &[u32],
    sizes: [[u32; 3]; 2],
) -> Result<Vec<Event>, Stop> {
    let start = Instant::now();
    let mut launches = Vec::new();
    loop {
        // The recorder keeps some thousand events, and each takes a while to read.
        let mark = place.recorder.mark()?;
        launcher.rewind();
        for _ in 0..SEGMENTS {
            launcher.submit(words);
        }
        finish(launcher)?;
        let more = place.recorder.launches_since(mark)?;
        same("launches", more.len(), SEGMENTS)?;
        launches.extend(more);
        let ran = |size: &[u32; 3]| launches.iter().any(|launch| launch.grid == *size);
        if sizes.iter().all(ran) {
            return Ok(launches);
        }
        if start.elapsed() > Duration::from_secs(60) {
            return Err(failed("the race was never won: nothing is proved"));
        }
    }
}

/// Checks that segments run as they are, and are counted, in memory that the driver has not seen
/// mapped: the process had no limit then.
fn unreadable() -> Outcome {
    let group = Group::new(NAME)?;
    drop(session(0)?);
    set(NAME, MASK, "0-31")?;
    // It passes then, and ends its channel otherwise.
    set(NAME, STRICT, "0")?;
    let child = Child::fork(|parent| {
        let session = session(0)?;
        let memory = session.segment_memory()?;
        parent.step()?;
        let recorder = crate::launch::recorder()?;
        let mark = recorder.mark()?;
        let tenant = session.group(Engine::Compute)?;
        let share = session.context_share(tenant)?;
        let mut launcher = session.launcher_with(tenant, share, memory)?;
        session.schedule(tenant, true)?;
        launcher.submit(&grid(&session)?.words());
        finish(&mut launcher)?;
        let launches = recorder.launches_since(mark)?;
        let masks: Vec<_> = launches.iter().map(Event::mask_words).collect();
        same("masks", masks, vec![vec![0; 8]])?;
        // The engine's object is one segment, the launch another.
        let shown = path(&crate::gpus::me(), "compute.stat")?;
        eventually(&shown, &2, || count("passed.unreadable"))
    })?;
    admit(&group, child)
}

/// Words without effect, so that the copies of all launches do not fit.
const PADDING: usize = 1000;

/// Submits a segment that waits for a semaphore, which holds 0.
fn submit_wait(launcher: &mut Launcher, semaphore: u64) {
    // CAST: the halves of an address.
    let [low, high] = [semaphore as u32, (semaphore >> 32) as u32];
    launcher.submit(&[incr(0, numbers::SEM_ADDR_LO, 5), low, high, 1, 0, 0]);
}

/// Submits a launch with a segment that is longer than it need be.
fn submit_padded(launcher: &mut Launcher, grid: &Grid) {
    const NO_OPERATION: u16 = 0x100;
    // CAST: a small constant.
    let nothing = [non_incr(1, NO_OPERATION, PADDING as u32)];
    launcher.submit(&[&grid.words()[..], &nothing, &[0; PADDING]].concat());
}

/// Returns the address of the word that counts a channel's copies, as the tenant finds it: in the
/// end of the first batch, which the GPU may read.
fn progress_of(launcher: &mut Launcher, ring: u64, session: &Session) -> Result<u64, Stop> {
    let ends = kit::COPIES_WORDS as usize - SEGMENT_WORDS;
    // CAST: a page or two.
    let bytes = 4 * ends as u64;
    let memory = session.gpu().alloc_memory(Memory::Host, bytes)?;
    let to = session.map_on_gpu(memory, bytes)?;
    let words = session.gpu().map_memory(Memory::Host, memory, 4 * ends)?;
    let from = ring + kit::PAGE + 4 * SEGMENT_WORDS as u64;
    copy(launcher, from, to, 4 * ends as u32)?;
    let words: Vec<u32> = (0..ends)
        .map(|at| words.u32(4 * at).load(Ordering::Acquire))
        .collect();
    let release = |words: &&[u32]| words[0] == incr(0, numbers::SEM_ADDR_LO, 5) && words[3] == 1;
    let end = words.windows(6).find(release);
    let end = end.ok_or_else(|| failed("no batch has ended"))?;
    Ok(u64::from(end[2]) << 32 | u64::from(end[1]))
}

/// Returns whether a channel does all of its work within some seconds.
fn ends(launcher: &mut Launcher) -> bool {
    let queue = launcher.queue();
    let payload = queue.payload(0) + 1;
    queue.submit_release(0, payload);
    let most = Instant::now() + Duration::from_secs(5);
    while queue.payload(0) != payload && Instant::now() < most {
        thread::sleep(Duration::from_millis(1));
    }
    queue.payload(0) == payload
}

/// Writes a large number to the word that counts copies, while they fill their memory and the
/// channel waits. Entries that GP_GET has not passed run as they were submitted. Those that it has
/// passed may mix: then a method may swallow what follows, and the channel never ends its work.
fn forged() -> Outcome {
    /// Entries that the software GPU fetches ahead, without their words.
    const FETCHED: u32 = 8;
    const LIST: &str = "0-31";
    const LAUNCHES: u32 = 100;
    let group = Group::new(NAME)?;
    let mut child = member(&group, LIST, |_| {
        let place = Place::new(session(0)?)?;
        let mut forger = queue(&place.session)?;
        let mark = place.recorder.mark()?;
        let mut launcher = place.session.launcher(place.group, place.share)?;
        place.session.schedule(place.group, true)?;
        finish(&mut launcher)?;
        let [ring] = rings(&place.recorder, mark)?[..] else {
            return Err(failed("one ring is expected"));
        };
        let progress = progress_of(&mut launcher, ring, &place.session)?;
        let mut grid = grid(&place.session)?;
        let semaphore = grid.descriptor + DESCRIPTORS / 2;
        submit_wait(&mut launcher, semaphore);
        for id in 1..=LAUNCHES {
            grid.size[0] = id;
            submit_padded(&mut launcher, &grid);
        }
        for number in 1..=20 {
            forger.submit_release_at(progress, 0x1000);
            release(&mut forger, 1, number)?;
        }
        forger.submit_release_at(semaphore, 1);
        let is_whole = ends(&mut launcher);
        release(&mut forger, 1, 100)?;
        let launches = place.recorder.launches_since(mark)?;
        // Each of the mixed ones may swallow one behind it.
        let unmixed = FETCHED + 1..=2 * FETCHED + 1;
        let first = launches.iter().position(|it| unmixed.contains(&it.grid[0]));
        let behind = first.map_or(&[][..], |first| &launches[first..]);
        let ids: Vec<u32> = behind.iter().map(|launch| launch.grid[0]).collect();
        let in_order = ids.windows(2).all(|pair| pair[0] < pair[1]);
        same(&format!("{ids:?} are in order"), in_order, true)?;
        // CAST: a small constant.
        let least = (LAUNCHES - 2 * FETCHED - 1) as usize;
        same("launches", !is_whole || ids.len() >= least, true)?;
        let mask = disabled(LIST)?;
        let masked = behind.iter().all(|launch| launch.mask_words() == mask);
        same("masked", masked, true)
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// Fills the memory for copies while the channel waits at its first segment. The GPU has fetched
/// the entries of some more, and reads their copies only when it continues.
fn copies() -> Outcome {
    const LIST: &str = "0-31";
    const LAUNCHES: u32 = 100;
    let group = Group::new(NAME)?;
    let mut child = member(&group, LIST, |_| {
        let place = Place::new(session(0)?)?;
        let mut clock = queue(&place.session)?;
        let mut launcher = place.session.launcher(place.group, place.share)?;
        place.session.schedule(place.group, true)?;
        let mut grid = grid(&place.session)?;
        let mark = place.recorder.mark()?;
        let semaphore = grid.descriptor + DESCRIPTORS / 2;
        submit_wait(&mut launcher, semaphore);
        for id in 1..=LAUNCHES {
            grid.size[0] = id;
            submit_padded(&mut launcher, &grid);
            // The copies of the first are batches of their own, so that GP_GET passes some of them.
            if id <= 6 {
                release(&mut clock, 1, 100 + id)?;
                release(&mut clock, 1, 200 + id)?;
            }
        }
        // The worker has served both channels so often.
        for number in 1..=20 {
            release(&mut clock, 1, number)?;
        }
        clock.submit_release_at(semaphore, 1);
        finish(&mut launcher)?;
        let launches = place.recorder.launches_since(mark)?;
        let mask = disabled(LIST)?;
        judge(&launches, LAUNCHES, &[Since { first: 1, mask }])
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}
