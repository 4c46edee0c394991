// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that the driver splits long launches of owned channels under `atom.duration`, and that a
//! tenant cannot change what the atoms are.

use crate::faults::{events, shown, MMU_FAULT};
use crate::gpus::{me, session};
use crate::launch::{finish, recorder, Channels, Place, PROGRAMS};
use crate::limits::set;
use crate::owned::{count, join, no_worker, rings};
use crate::owned_launch::{disabled, member, NAME};
use crate::owned_strict::STRICT;
use crate::owned_time::{
    groups, launches, stat, tenant, Tenant, MILLISECOND, ONE, OTHER, PRIORITY, PROGRAM_OF_ONE,
    PROGRAM_OF_OTHER,
};
use crate::owned_uvm::uvm_session;
use crate::submit::queue;
use crate::timing::undisturbed;
use crate::tree::{eventually, Group};
use fakegpu_record::Event;
use gct_core::owned::{kit, FRAMES};
use gct_core::submit::limits::SLOT_BYTES;
use gct_core::submit::method::incr;
use gct_ktap::{failed, same, Outcome, Stop, Test};
use rm_client::{Capture, Launcher, Session};
use std::collections::BTreeMap;

pub(crate) const TESTS: &[Test] = &[
    ("owned_atoms_run_each_block_once", once),
    ("owned_atoms_of_every_kind", every_kind),
    ("owned_atoms_in_a_space_of_uvm", uvm),
    ("owned_atoms_let_an_earlier_priority_in", || {
        undisturbed(let_in)
    }),
    ("owned_atoms_hostile_writes_to_slots", written),
];

pub(crate) const ATOM: &str = "atom.duration";
/// Blocks of a launch of the same length.
pub(crate) const LONG: u32 = 20 * MILLISECOND;
/// SMs, and the blocks that they hold at a time at most.
const SMS: u32 = 132;
const WAVE: u32 = 32 * SMS;

/// Opens a channel in a session. Returns it with the address of the driver's ring.
pub(crate) fn open(session: Session) -> Result<(Tenant, u64), Stop> {
    let recorder = recorder()?;
    // Behind the channels that the resource manager makes for itself.
    let mark = recorder.mark()?;
    let tenant = Tenant::with(session, PROGRAM_OF_ONE)?;
    match rings(&recorder, mark)?[..] {
        [ring] => Ok((tenant, ring)),
        ref rings => Err(failed(format!("rings: {rings:x?}"))),
    }
}

/// Runs `work` in a member of a group under `atom.duration`, with a channel of its own and the
/// address of its ring.
fn split_member(
    list: &str,
    open_session: impl FnOnce() -> Result<Session, Stop>,
    work: impl FnOnce(&mut Tenant, u64) -> Outcome,
) -> Outcome {
    let group = Group::new(NAME)?;
    // The driver learns the GPU's TPCs from its first client.
    drop(session(0)?);
    set(NAME, ATOM, "100")?;
    let mut child = member(&group, list, |_| {
        let (mut tenant, ring) = open(open_session()?)?;
        work(&mut tenant, ring)
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// Returns the range of blocks that a launch in one direction ran.
fn range(launch: &Event) -> Result<[u32; 2], Stop> {
    let bad = || failed(format!("{:?}", launch.blocks));
    let [text] = &launch.blocks[..] else {
        return Err(bad());
    };
    let inside = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(")x[0,1)x[0,1)"));
    let (start, end) = inside
        .and_then(|text| text.split_once(','))
        .ok_or_else(bad)?;
    let number = |text: &str| text.parse().map_err(|_| bad());
    Ok([number(start)?, number(end)?])
}

/// Fails unless each block of a launch in one direction ran once. Returns the most blocks of an
/// atom.
pub(crate) fn cover(atoms: &[Event], blocks: u32) -> Result<u32, Stop> {
    let mut ranges = Vec::new();
    for atom in atoms {
        ranges.push(range(atom)?);
    }
    ranges.sort_unstable();
    let mut next = 0;
    for [start, end] in &ranges {
        same("the next block", *start, next)?;
        next = *end;
    }
    same("all blocks", next, blocks)?;
    let longest = ranges.iter().map(|[start, end]| end - start).max();
    Ok(longest.unwrap_or(0))
}

/// Returns whether the last atom, which has the launch's effects, was released when all others had
/// ended. A channel executes in order, so one that was there before begins as the others end.
pub(crate) fn last_waits(atoms: &[Event]) -> Result<bool, Stop> {
    let (last, others) = atoms.split_last().ok_or_else(|| failed("no atoms"))?;
    let ended = others.iter().map(|atom| atom.ns).max().unwrap_or(0);
    Ok(last.began > ended)
}

/// Fails unless the launches are the atoms of one: each block ran once, and the last atom waited
/// for all others. Returns whether none is longer than the blocks that the GPU holds at a time, as
/// when the driver knows how long the program takes.
fn judge(atoms: &[Event], blocks: u32) -> Result<bool, Stop> {
    let longest = cover(atoms, blocks)?;
    println!("# {} atoms of {blocks} blocks", atoms.len());
    same("the last waits", last_waits(atoms)?, true)?;
    let last = atoms.last().ok_or_else(|| failed("no atoms"))?;
    same("the last's blocks", range(last)?[1], blocks)?;
    same("several", atoms.len() >= 16, true)?;
    Ok(longest <= WAVE)
}

/// Launches of which some must be of a program that the driver knows. It learns from times that it
/// has seen well, and a slow host shows it few.
const LEARNT_IN: u32 = 20;

/// Launches a long grid until so many launches in a row come in atoms of a wave at most. Each comes
/// in atoms, of which `check` learns.
fn learn(
    tenant: &mut Tenant,
    in_a_row: u32,
    mut check: impl FnMut(&[Event]) -> Outcome,
) -> Outcome {
    let recorder = recorder()?;
    let mut found = 0;
    for _ in 0..LEARNT_IN {
        let mark = recorder.mark()?;
        tenant.launch(LONG);
        tenant.wait(0)?;
        let atoms = launches(&recorder, mark, PROGRAM_OF_ONE)?;
        let in_waves = judge(&atoms, LONG)?;
        check(&atoms)?;
        found = if in_waves { found + 1 } else { 0 };
        if found == in_a_row {
            return Ok(());
        }
    }
    Err(failed(format!(
        "never {in_a_row} launches in a row have a wave at most"
    )))
}

/// Launches a long grid, and checks what is counted of its atoms.
fn check_split(tenant: &mut Tenant) -> Outcome {
    let (mut split, mut atoms) = (count("split")?, count("atoms")?);
    learn(tenant, 2, |found| {
        split += 1;
        atoms += found.len() as u64;
        eventually("split", &split, || count("split"))?;
        same("atoms", count("atoms")?, atoms)
    })
}

/// A limit that is written while a tenant runs binds its next launch, until it is lifted.
fn once() -> Outcome {
    let group = Group::new(NAME)?;
    set(NAME, "channel.owned", "1")?;
    drop(session(0)?);
    let mut child = join(&group, |_| {
        let mut tenant = Tenant::with(session(0)?, PROGRAM_OF_ONE)?;
        let recorder = recorder()?;
        let whole = |tenant: &mut Tenant, blocks| {
            let mark = recorder.mark()?;
            tenant.launch(blocks);
            tenant.wait(0)?;
            let found = launches(&recorder, mark, PROGRAM_OF_ONE)?;
            same("whole", found.len(), 1)?;
            same("its blocks", range(&found[0])?, [0, blocks])
        };
        whole(&mut tenant, LONG)?;
        set(NAME, ATOM, "100")?;
        check_split(&mut tenant)?;
        // A launch of one wave stays whole.
        set(NAME, ATOM, "5")?;
        whole(&mut tenant, SMS)?;
        whole(&mut tenant, SMS)?;
        set(NAME, ATOM, "100")?;
        check_split(&mut tenant)?;
        set(NAME, ATOM, "off")?;
        whole(&mut tenant, LONG)
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// Returns how often each block ran.
pub(crate) fn ran(launches: &[Event]) -> Result<BTreeMap<[u32; 3], usize>, Stop> {
    let mut all = BTreeMap::new();
    for text in launches.iter().flat_map(|launch| &launch.blocks) {
        let numbers = text.split(|c: char| !c.is_ascii_digit());
        let numbers: Vec<u32> = numbers.filter_map(|number| number.parse().ok()).collect();
        let [a, b, c, d, e, f] = numbers[..] else {
            return Err(failed(format!("blocks {text}")));
        };
        count_box(&mut all, [[a, b], [c, d], [e, f]]);
    }
    Ok(all)
}

fn count_box(all: &mut BTreeMap<[u32; 3], usize>, [xs, ys, zs]: [[u32; 2]; 3]) {
    for z in zs[0]..zs[1] {
        for y in ys[0]..ys[1] {
            for x in xs[0]..xs[1] {
                *all.entry([x, y, z]).or_default() += 1;
            }
        }
    }
}

/// The programs with launches that are not split, and how many are: none of a cooperative launch or
/// of a graph, and the first of a pair whose second waits for a latch.
const NOT_ALL_SPLIT: &[(&str, u64)] = &[
    ("cooperative", 0),
    ("graph", 0),
    ("graph that forks", 0),
    ("graph with two ends", 0),
    ("graph of one kernel", 0),
    ("graph of clusters", 0),
    ("graph of chains", 0),
    ("programmatic dependent", 1),
];

/// All kinds of captured launches run each of their blocks once, on a few TPCs. Each that can be
/// split is, as far as there are frames. A cooperative launch that does not fit keeps all TPCs.
fn every_kind() -> Outcome {
    const LIST: &str = "0-1";
    let group = Group::new(NAME)?;
    // The driver learns the GPU's TPCs from its first client.
    drop(session(0)?);
    set(NAME, ATOM, "100")?;
    // That launch ends its channel otherwise.
    set(NAME, STRICT, "0")?;
    let mut child = member(&group, LIST, |_| {
        let place = Place::new(session(0)?)?;
        let mask = disabled(LIST)?;
        for (name, texts, grids) in PROGRAMS {
            let known = NOT_ALL_SPLIT.iter().find(|known| known.0 == *name);
            let all = known.map_or(grids.len() as u64, |known| known.1);
            let (mut launches, mut counts) = run_known(&place, texts)?;
            for _ in 1..LEARNT_IN {
                // What is not known may go whole.
                if counts.iter().sum::<u64>() >= all {
                    break;
                }
                (launches, counts) = run_known(&place, texts)?;
            }
            let [split, crowded] = counts;
            same(name, split + crowded, all)?;
            same("frames", split >= all.min(FRAMES as u64), true)?;
            let mut blocks = BTreeMap::new();
            for grid in *grids {
                count_box(&mut blocks, grid.map(|size| [0, size]));
            }
            same(name, ran(&launches)? == blocks, true)?;
            println!("# {name}: {} launches in {}", grids.len(), launches.len());
            let masked = launches.iter().all(|launch| launch.mask_words() == mask);
            same("mask", masked || *name == "cooperative", true)?;
        }
        Ok(())
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// Runs a captured program when the driver knows where its launches release: it learns that on
/// channels whose own memory it knows. Returns the launches, and how many were split and found no
/// frame.
fn run_known(place: &Place, texts: &[&str]) -> Result<(Vec<Event>, [u64; 2]), Stop> {
    let capture = Capture::parse(texts)?;
    let run = |channels: &mut Channels| {
        let mark = place.recorder.mark()?;
        let before = [count("split")?, count("crowded")?];
        let launches = place.run_on(channels, &capture, mark)?;
        // A channel's second turn begins when the counts of its first are told.
        for launcher in channels.values_mut() {
            finish(launcher)?;
            finish(launcher)?;
        }
        let more = [count("split")? - before[0], count("crowded")? - before[1]];
        Ok::<_, Stop>((launches, more))
    };
    let mut learnt = place.channels(&capture)?;
    run(&mut learnt)?;
    run(&mut learnt)?;
    // What was released counts as not released, so the frames of those channels stay in use.
    place.clear();
    run(&mut place.channels(&capture)?)
}

fn uvm() -> Outcome {
    split_member("0-131", uvm_session, |tenant, _| check_split(tenant))
}

/// While an owner of an earlier priority has work, none of the atoms that wait is released.
fn let_in() -> Outcome {
    let [one, other] = groups()?;
    set(ONE, PRIORITY, "0")?;
    set(OTHER, ATOM, "100")?;
    let recorder = recorder()?;
    let mark = recorder.mark()?;
    let mut late = tenant(&other, PROGRAM_OF_OTHER, |tenant, parent| {
        tenant.launch(300 * MILLISECOND);
        eventually("atoms", &true, || Ok(count("atoms")? > 4))?;
        parent.step()?;
        tenant.wait(0)
    })?;
    let mut early = tenant(&one, PROGRAM_OF_ONE, |tenant, _| {
        for _ in 0..20 {
            tenant.launch(MILLISECOND);
        }
        tenant.wait(0)
    })?;
    late.next()?;
    early.go()?;
    early.finish()?;
    late.go()?;
    late.finish()?;
    let early = launches(&recorder, mark, PROGRAM_OF_ONE)?;
    let late = launches(&recorder, mark, PROGRAM_OF_OTHER)?;
    same("launches", early.len(), 20)?;
    let from = early.iter().map(|launch| launch.began).min().unwrap_or(0);
    let to = early.iter().map(|launch| launch.ns).max().unwrap_or(0);
    let between = |atom: &&Event| (from + 1..to).contains(&atom.began);
    let meanwhile = late.iter().filter(between).count();
    println!("# {} atoms, {meanwhile} while the other worked", late.len());
    same("few", meanwhile <= 4, true)?;
    same(
        "the rest came later",
        late.iter().filter(|atom| atom.began >= to).count() > 10,
        true,
    )?;
    same("held", stat(OTHER, "held_usec.tpcs")? > 1000, true)?;
    no_worker()
}

/// Has the GPU write to the slots of atoms, each word of which decides what an atom is. The
/// channels that do so fault. The launches keep their mask, and run each block once.
fn written() -> Outcome {
    const LIST: &str = "0-31";
    split_member(
        LIST,
        || session(0),
        |tenant, ring| {
            let (slots, whole) = (ring + kit::SLOTS, ring + kit::WHOLE);
            let last = whole + 4 * kit::WHOLE_WORDS as u64 - 4;
            for (errors, at) in (1..).zip([slots, slots + SLOT_BYTES + 4, whole, last]) {
                let mut attacker = queue(&tenant.session)?;
                attacker.submit_release_at(at, 0);
                eventually("errors", &shown(errors, MMU_FAULT), || events(&me()))?;
            }
            let mask = disabled(LIST)?;
            learn(tenant, 1, |atoms| masked(atoms, &mask))
        },
    )
}

/// Fails unless all launches have a mask.
pub(crate) fn masked(launches: &[Event], mask: &[u32]) -> Outcome {
    let masked = launches.iter().all(|launch| launch.mask_words() == mask);
    same("mask", masked, true)
}

/// Returns the words that copy bytes. The last two copy them again.
pub(crate) fn copying(from: u64, to: u64, bytes: u32) -> [u32; 12] {
    const SUBCHANNEL: u8 = 4;
    const COPY_ENGINE: u32 = 0xc8b5;
    /// Not pipelined, both sides in lines.
    const LAUNCH: u32 = 2 | 1 << 7 | 1 << 8;
    // CAST: the halves of an address.
    let [from, to] = [from, to].map(|va| [(va >> 32) as u32, va as u32]);
    [
        incr(SUBCHANNEL, 0, 1),
        COPY_ENGINE,
        incr(SUBCHANNEL, 0x400, 4),
        from[0],
        from[1],
        to[0],
        to[1],
        incr(SUBCHANNEL, 0x418, 2),
        bytes,
        1,
        incr(SUBCHANNEL, 0x300, 1),
        LAUNCH,
    ]
}

/// Copies words of the tenant's address space, by the GPU.
pub(crate) fn copy(launcher: &mut Launcher, from: u64, to: u64, bytes: u32) -> Outcome {
    launcher.submit(&copying(from, to, bytes));
    finish(launcher)
}
