// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that the driver splits long launches of owned channels under `atom.duration`, and that a
//! tenant cannot change what the atoms are.

use crate::faults::{events, shown, MMU_FAULT};
use crate::gpus::{me, session};
use crate::launch::{finish, recorder, Place, PROGRAMS};
use crate::limits::set;
use crate::owned::{count, join, no_worker, rings};
use crate::owned_launch::{disabled, member, MASK, NAME};
use crate::owned_time::{
    groups, launches, stat, tenant, Tenant, MILLISECOND, ONE, OTHER, PREPARED, PRIORITY,
    PROGRAM_OF_ONE, PROGRAM_OF_OTHER,
};
use crate::owned_uvm::uvm_session;
use crate::submit::{queue, release};
use crate::tree::{eventually, Group};
use fakegpu_record::Event;
use gct_core::owned::kit;
use gct_core::submit::limits::{SLOT_BYTES, SLOT_WORDS};
use gct_core::submit::method::incr;
use gct_core::submit::qmd::v04_00;
use gct_ktap::{failed, same, Outcome, Stop, Test};
use rm_client::{Launcher, Session};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

pub(crate) const TESTS: &[Test] = &[
    ("owned_atoms_run_each_block_once", once),
    ("owned_atoms_of_every_kind", every_kind),
    ("owned_atoms_in_a_space_of_uvm", uvm),
    ("owned_atoms_let_an_earlier_priority_in", let_in),
    ("owned_atoms_hostile_writes_to_slots", written),
    ("owned_atoms_hostile_forges_their_ends", forged),
];

const ATOM: &str = "atom.duration";
/// Blocks of a launch of the same length.
const LONG: u32 = 20 * MILLISECOND;
/// SMs, and the blocks that they hold at a time at most.
const SMS: u32 = 132;
const WAVE: u32 = 32 * SMS;

/// Opens a channel in a session. Returns it with the address of the driver's ring.
fn open(session: Session) -> Result<(Tenant, u64), Stop> {
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
fn cover(atoms: &[Event], blocks: u32) -> Result<u32, Stop> {
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

/// Fails unless the launches are the atoms of one: each block ran once, no atom is longer than the
/// blocks that the GPU holds at a time, and the last atom began when all others had ended.
fn judge(atoms: &[Event], blocks: u32) -> Outcome {
    let longest = cover(atoms, blocks)?;
    println!("# {} atoms of {blocks} blocks", atoms.len());
    same("a wave at most", longest <= WAVE, true)?;
    let (last, others) = atoms.split_last().ok_or_else(|| failed("no atoms"))?;
    let ended = others.iter().map(|atom| atom.ns).max().unwrap_or(0);
    same("the last waits", last.began >= ended, true)?;
    same("the last's blocks", range(last)?[1], blocks)
}

/// Launches a long grid, which comes in atoms, and checks them.
fn check_split(tenant: &mut Tenant) -> Outcome {
    let recorder = recorder()?;
    // What the driver learns of the program, it learns from the first atoms.
    for _ in 0..2 {
        let mark = recorder.mark()?;
        let (split, atoms) = (count("split")?, count("atoms")?);
        tenant.launch(LONG);
        tenant.wait(0)?;
        let found = launches(&recorder, mark, PROGRAM_OF_ONE)?;
        judge(&found, LONG)?;
        same("several", found.len() >= 16, true)?;
        eventually("split", &(split + 1), || count("split"))?;
        same("atoms", count("atoms")?, atoms + found.len() as u64)?;
    }
    Ok(())
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

/// All kinds of captured launches run each of their blocks once, on a few TPCs, whether they are
/// split or not. A cooperative launch that does not fit keeps all TPCs.
fn every_kind() -> Outcome {
    const LIST: &str = "0-1";
    let group = Group::new(NAME)?;
    // The driver learns the GPU's TPCs from its first client.
    drop(session(0)?);
    set(NAME, ATOM, "100")?;
    let mut child = member(&group, LIST, |_| {
        let place = Place::new(session(0)?)?;
        let mask = disabled(LIST)?;
        for (name, texts, grids) in PROGRAMS {
            let launches = place.run(texts)?;
            let mut all = BTreeMap::new();
            for grid in *grids {
                count_box(&mut all, grid.map(|size| [0, size]));
            }
            same(name, ran(&launches)? == all, true)?;
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
            let recorder = recorder()?;
            let (slots, whole) = (ring + kit::SLOTS, ring + kit::WHOLE);
            let last = whole + 4 * kit::WHOLE_WORDS as u64 - 4;
            for (errors, at) in (1..).zip([slots, slots + SLOT_BYTES + 4, whole, last]) {
                let mut attacker = queue(&tenant.session)?;
                attacker.submit_release_at(at, 0);
                eventually("errors", &shown(errors, MMU_FAULT), || events(&me()))?;
            }
            let mark = recorder.mark()?;
            tenant.launch(LONG);
            tenant.wait(0)?;
            let atoms = launches(&recorder, mark, PROGRAM_OF_ONE)?;
            judge(&atoms, LONG)?;
            masked(&atoms, &disabled(LIST)?)
        },
    )
}

/// Fails unless all launches have a mask.
fn masked(launches: &[Event], mask: &[u32]) -> Outcome {
    let masked = launches.iter().all(|launch| launch.mask_words() == mask);
    same("mask", masked, true)
}

/// Copies words of the tenant's address space, by the GPU.
pub(crate) fn copy(launcher: &mut Launcher, from: u64, to: u64, bytes: u32) -> Outcome {
    const SUBCHANNEL: u8 = 4;
    const COPY_ENGINE: u32 = 0xc8b5;
    /// Not pipelined, both sides in lines.
    const LAUNCH: u32 = 2 | 1 << 7 | 1 << 8;
    // CAST: the halves of an address.
    let [from, to] = [from, to].map(|va| [(va >> 32) as u32, va as u32]);
    launcher.submit(&[
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
    ]);
    finish(launcher)
}

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

/// What a tenant does while its long launch runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// It has no `atom.duration`.
    Whole,
    /// It has, and writes the words by which its atoms end.
    Forges,
}

/// Blocks of that launch: 50 ms.
const LIE: u32 = 50 * MILLISECOND;

/// Runs a neighbour beside such a tenant. Returns how long half of the neighbour's launches took,
/// in microseconds. Each takes a millisecond alone.
fn beside(mode: Mode) -> Result<u64, Stop> {
    const LIST: &str = "0-31";
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
        parent.step()?;
        tenant.launch(LIE);
        for number in 1.. {
            if mode == Mode::Whole || tenant.ended() == 2 + PREPARED {
                break;
            }
            for word in 0..kit::DONE_WORDS as u64 {
                // The number of the next split, in the words of both frames.
                forger.submit_release_at(ends.address + 4 * word, ends.payload + 1);
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
    Ok(times[times.len() / 2])
}

/// A tenant reads its slots, and writes the words by which its atoms end. Its atoms keep their mask
/// and run each block once, and a neighbour waits no longer than without `atom.duration`.
fn forged() -> Outcome {
    let whole = beside(Mode::Whole)?;
    let forges = beside(Mode::Forges)?;
    println!("# a launch of 1000 us takes {whole} us beside a whole launch, {forges} us");
    same("no longer", forges <= whole * 3 / 2 + 500, true)
}
