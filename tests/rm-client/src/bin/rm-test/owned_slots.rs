// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that masked launches that are not split run from slots of the driver's: what was checked
//! is what runs, whatever the tenant does to its own memory meanwhile.

use crate::gpus::session;
use crate::launch::{finish, recorder};
use crate::limits::set;
use crate::owned::{count, no_worker, rings};
use crate::owned_atoms::{copy, ran};
use crate::owned_launch::{disabled, member, NAME};
use crate::owned_strict::STRICT;
use crate::owned_time::{launches, stat, Tenant, PROGRAM_OF_ONE};
use crate::submit::queue;
use crate::tree::{eventually, Group};
use fakegpu_record::Event;
use gct_core::owned::{kit, WHOLE_SLOTS};
use gct_core::submit::limits::SLOT_BYTES;
use gct_core::submit::method::incr;
use gct_core::submit::qmd::{v04_00, Field};
use gct_ktap::{same, Outcome, Stop, Test};
use rm_client::{Grid, Queue};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("owned_slots_hostile_rewrites_by_the_cpu", by_cpu),
    ("owned_slots_hostile_rewrites_by_the_gpu", by_gpu),
    ("owned_slots_hostile_forges_ends", forged),
    ("owned_slots_are_used_in_turn", in_turn),
    ("owned_slots_count_what_stays_in_place", in_place),
];

const LIST: &str = "0-31";
/// Offsets in the tenant's memory: a descriptor, and words for semaphores.
const DESCRIPTOR: u64 = 0x1000;
const GATE: u64 = 0x9000;
const RELEASE: u64 = 0x9100;
/// Blocks of a launch.
const BLOCKS: u32 = 1000;

/// Runs `work` in a member of a group under a mask, with a channel and the address of its ring.
fn masked_member(work: impl FnOnce(&mut Tenant, u64) -> Outcome) -> Outcome {
    let group = Group::new(NAME)?;
    let mut child = member(&group, LIST, |_| {
        let recorder = recorder()?;
        let session = session(0)?;
        // Behind the channels that the resource manager makes for itself.
        let mark = recorder.mark()?;
        let mut tenant = Tenant::with(session, PROGRAM_OF_ONE)?;
        let ring = rings(&recorder, mark)?.first().copied().unwrap_or(0);
        work(&mut tenant, ring)
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// Returns the launch of a grid whose descriptor the tenant can write.
fn grid(tenant: &Tenant, number: u32) -> Grid {
    Grid {
        descriptor: tenant.address + DESCRIPTOR,
        program: PROGRAM_OF_ONE,
        size: [BLOCKS, 1, 1],
        disabled: 0,
        release: Some((tenant.address + RELEASE, number)),
    }
}

/// Returns the words that wait until a word of memory is 1.
pub(crate) fn acquire(address: u64) -> [u32; 6] {
    // CAST: the halves of an address.
    let [low, high] = [address as u32, (address >> 32) as u32];
    [incr(0, 0x5c, 5), low, high, 1, 0, 0]
}

/// Returns a segment that stores the descriptor, waits for the gate, and launches.
fn gated(tenant: &Tenant, grid: &Grid) -> Vec<u32> {
    let words = grid.words();
    let (upload, call) = words.split_at(words.len() - 4);
    [upload, &acquire(tenant.address + GATE), call].concat()
}

/// Returns the word of a field, by its address and its offset in the tenant's memory.
fn word_of(tenant: &Tenant, field: Field) -> (u64, usize) {
    let offset = DESCRIPTOR + 4 * field.word() as u64;
    // CAST: an offset.
    (tenant.address + offset, offset as usize)
}

/// Fails unless all launches have the mask.
fn judge(launches: &[Event], expected: usize) -> Outcome {
    same("launches", launches.len(), expected)?;
    let mask = disabled(LIST)?;
    for launch in launches {
        same("mask", &launch.mask_words()[..], &mask[..])?;
        same("grid", launch.grid, [BLOCKS, 1, 1])?;
    }
    Ok(())
}

/// Has a launch wait between the upload of its descriptor and its call. Meanwhile `rewrite` takes
/// the mask out of the tenant's memory, by storing words there.
fn rewrites(rewrite: impl FnOnce(&mut Tenant, &[(u64, usize)]) -> Outcome) -> Outcome {
    masked_member(|tenant, _| {
        let recorder = recorder()?;
        let mark = recorder.mark()?;
        let grid = grid(tenant, 1);
        tenant.launcher.submit(&gated(tenant, &grid));
        let (_, width) = word_of(tenant, v04_00::GRID_WIDTH);
        eventually("the upload", &BLOCKS, || {
            Ok(tenant.words.u32(width).load(Ordering::Acquire))
        })?;
        let valid = word_of(tenant, v04_00::TPC_DISABLE_MASK_VALID);
        let masks = (0..4).map(|at| word_of(tenant, v04_00::TPC_DISABLE_MASK.nth(at)));
        let all: Vec<_> = [valid].into_iter().chain(masks).collect();
        rewrite(tenant, &all)?;
        for (_, offset) in &all {
            let word = tenant.words.u32(*offset).load(Ordering::Acquire);
            same("rewritten", word & 0x8000_0000, 0)?;
        }
        // CAST: an offset.
        let gate = tenant.words.u32(GATE as usize);
        gate.store(1, Ordering::SeqCst);
        finish(&mut tenant.launcher)?;
        judge(&launches(&recorder, mark, PROGRAM_OF_ONE)?, 1)
    })
}

fn by_cpu() -> Outcome {
    rewrites(|tenant, words| {
        for (_, offset) in words {
            let word = tenant.words.u32(*offset);
            word.fetch_and(0x7fff_ffff, Ordering::SeqCst);
            if *offset != words[0].1 {
                word.store(0, Ordering::SeqCst);
            }
        }
        Ok(())
    })
}

fn by_gpu() -> Outcome {
    rewrites(|tenant, words| {
        let mut other = queue(&tenant.session)?;
        for (at, offset) in words {
            let word = tenant.words.u32(*offset).load(Ordering::Acquire);
            let value = if *offset == words[0].1 {
                word & 0x7fff_ffff
            } else {
                0
            };
            other.submit_release_at(*at, value);
        }
        finish_queue(&mut other)
    })
}

/// Waits until a channel has done all of its work.
fn finish_queue(queue: &mut Queue) -> Outcome {
    let payload = queue.payload(0) + 1;
    queue.submit_release(0, payload);
    eventually("the end", &payload, || Ok(queue.payload(0)))
}

/// Launches behind a closed gate: more than there are slots, fewer than a ring has entries.
const MANY: u32 = 300;

/// Queues launches behind a gate, each with a grid of its own. `meanwhile` runs before the gate
/// opens. Returns the launches.
fn queued(
    tenant: &mut Tenant,
    meanwhile: impl FnOnce(&mut Tenant) -> Outcome,
) -> Result<Vec<Event>, Stop> {
    let recorder = recorder()?;
    let mark = recorder.mark()?;
    tenant.launcher.submit(&acquire(tenant.address + GATE));
    for number in 1..=MANY {
        let mut grid = grid(tenant, number);
        grid.size[0] = 1 + number;
        tenant.launcher.submit(&grid.words());
    }
    meanwhile(tenant)?;
    // CAST: an offset.
    let gate = tenant.words.u32(GATE as usize);
    gate.store(1, Ordering::SeqCst);
    finish(&mut tenant.launcher)?;
    let launches = launches(&recorder, mark, PROGRAM_OF_ONE)?;
    let mask = disabled(LIST)?;
    for launch in &launches {
        same("mask", &launch.mask_words()[..], &mask[..])?;
    }
    Ok(launches)
}

/// A launch takes a slot until it has ended, and further ones wait for a slot.
fn in_turn() -> Outcome {
    masked_member(|tenant, _| {
        let before = count("launches")?;
        let found = queued(tenant, |_| {
            let all = || Ok::<_, Stop>(count("launches")? - before);
            eventually("some", &true, || Ok(all()? >= u64::from(WHOLE_SLOTS / 2)))?;
            thread::sleep(Duration::from_millis(100));
            same("no more than slots", all()? <= u64::from(WHOLE_SLOTS), true)
        })?;
        let grids: Vec<_> = found.iter().map(|launch| launch.grid[0]).collect();
        let expected: Vec<_> = (2..=MANY + 1).collect();
        same("each once, in order", grids, expected)?;
        same("passed", count("passed")?, 0)
    })
}

/// Returns where the launch in the first slot writes that it has ended.
fn ends(tenant: &mut Tenant, ring: u64) -> Result<u64, Stop> {
    const AT: u64 = 0x4000;
    let to = tenant.address + AT;
    // CAST: 512 bytes, and an offset.
    copy(
        &mut tenant.launcher,
        ring + kit::WHOLE,
        to,
        SLOT_BYTES as u32,
    )?;
    let word = |field: Field| tenant.words.u32(AT as usize + 4 * field.word());
    let word = |field| word(field).load(Ordering::Acquire);
    let low = word(v04_00::RELEASE_SEMAPHORE1_ADDR_LOWER);
    let high = word(v04_00::RELEASE_SEMAPHORE1_ADDR_UPPER);
    Ok(u64::from(high) << 32 | u64::from(low))
}

/// A tenant writes the words by which its launches end. Its slots are used again too early, so that
/// some of its launches become others of its own. All have the mask.
fn forged() -> Outcome {
    masked_member(|tenant, ring| {
        let ends = ends(tenant, ring)?;
        let before = count("launches")?;
        let mut found = queued(tenant, |tenant| {
            let mut forger = queue(&tenant.session)?;
            let mut lap = 0;
            eventually("all", &(before + u64::from(MANY)), || {
                for word in 0..WHOLE_SLOTS {
                    let number = lap * WHOLE_SLOTS + word;
                    forger.submit_release_at(ends + 4 * u64::from(word), number);
                }
                finish_queue(&mut forger)?;
                lap = (lap + 1) % 4;
                count("launches")
            })
        })?;
        same("launches", found.len(), MANY as usize)?;
        found.sort_by_key(|launch| launch.grid[0]);
        found.dedup_by_key(|launch| launch.grid[0]);
        println!("# {} of {MANY} launches ran as submitted", found.len());
        same(
            "others ran in their place",
            found.len() < MANY as usize,
            true,
        )
    })
}

/// A change of a segment: of its words from the descriptor on.
type Change = fn(&mut Vec<u32>);

/// Position of the descriptor in a segment.
pub(crate) const QMD_AT: usize = 9;

pub(crate) fn put(words: &mut [u32], field: Field, value: u32) {
    assert_eq!(field.set(&mut words[QMD_AT..], value), Ok(()));
}

/// Launches with what a slot cannot have run in the tenant's memory, with their mask, and are
/// counted. Others that are never split run from slots.
fn in_place() -> Outcome {
    let kinds: &[(&str, usize, Change)] = &[
        ("releases", 1, |words| {
            for release in 1..3 {
                put(words, v04_00::RELEASE_ENABLE.nth(release), 1);
                put(words, v04_00::RELEASE_STRUCTURE_SIZE.nth(release), 1);
            }
            for (to, from) in [(24, 20), (28, 20)] {
                let at = QMD_AT + from;
                words.copy_within(at..at + 4, QMD_AT + to);
            }
        }),
        ("self-copy", 1, |words| {
            put(words, v04_00::SELF_COPY_ON_COMPLETION, 1)
        }),
        ("launch-queue", 1, |words| {
            put(words, v04_00::CTA_LAUNCH_QUEUE, 1)
        }),
        ("pcas-action", 1, |words| {
            // PREFETCH_SCHEDULE.
            *words.last_mut().expect("a call") = 9;
        }),
        ("qmd-shared", 1, |words| {
            // PREFETCH of the same descriptor.
            words.extend([incr(1, 0x2c0, 1), 8]);
        }),
        ("", 1, |words| put(words, v04_00::SEQUENTIALLY_RUN_CTAS, 1)),
        ("", 1, |words| put(words, v04_00::GRID_WIDTH_RESUME, 7)),
        ("", 1, |words| *words.last_mut().expect("a call") = 3),
        ("", 2, |words| {
            let call: Vec<u32> = words[words.len() - 2..].to_vec();
            words.extend(call);
        }),
    ];
    masked_member(|tenant, _| {
        // They end their channel otherwise.
        set(NAME, STRICT, "0")?;
        let recorder = recorder()?;
        for (number, (reason, launched, change)) in (1..).zip(kinds) {
            println!("# {number} {reason}");
            let (mark, passed) = (recorder.mark()?, stat(NAME, "passed")?);
            let counted = stat(NAME, &format!("passed.{reason}"))?;
            let mut words = grid(tenant, number).words();
            change(&mut words);
            tenant.launcher.submit(&words);
            finish(&mut tenant.launcher)?;
            let found = launches(&recorder, mark, PROGRAM_OF_ONE)?;
            judge(&found, *launched)?;
            // CAST: a thousand.
            let blocks = ran(&found)?.into_values().collect::<Vec<_>>();
            same("blocks", blocks, vec![*launched; BLOCKS as usize])?;
            let more = u64::from(!reason.is_empty());
            eventually("passed", &(passed + more), || stat(NAME, "passed"))?;
            let now = stat(NAME, &format!("passed.{reason}"))?;
            same("for this reason", now, counted + more)?;
        }
        Ok(())
    })
}
