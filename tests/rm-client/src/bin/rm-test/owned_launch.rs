// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that the driver keeps the launches of owned channels to the TPCs of `tpc.mask`.

use crate::gpus::session;
use crate::launch::{finish, Channels, Place, PROGRAMS};
use crate::limits::set;
use crate::owned::{admit, count, counts, join, no_worker, workers};
use crate::owned_strict::STRICT;
use crate::owned_uvm::uvm_session;
use crate::process::{Child, Parent};
use crate::submit::{queue, release};
use crate::tree::{self, eventually, Group};
use gct_core::mask::TpcMask;
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::{numbers, Capture, Engine, Error, Session};

pub(crate) const TESTS: &[Test] = &[
    ("owned_launches_have_the_mask", masked),
    ("owned_launches_have_a_later_mask", later),
    ("owned_hostile_rewrites_its_launch", rewritten),
    ("owned_launches_need_a_known_ring", unknown),
    ("owned_launches_beside_native_ones", beside_native),
    ("owned_channels_beside_one_from_before", beside),
    ("owned_channels_of_a_member_from_before", member_before),
];

pub(crate) const MASK: &str = "tpc.mask";
/// The name of the group of these tests.
pub(crate) const NAME: &str = "masked";

/// Returns the words that disable all TPCs of the GPU outside of a list.
pub(crate) fn disabled(list: &str) -> Result<[u32; 8], Stop> {
    let index = tree::index_of(0)?;
    let existing = tree::read(&format!("gpus/{index}/tpcs.list"))?;
    let parse = |text: &str| {
        let mask = TpcMask::parse(text.trim().as_bytes());
        mask.map_err(|_| failed(format!("{text} is no list")))
    };
    let (existing, list) = (parse(&existing)?, parse(list)?);
    let mut words = [0; 8];
    for tpc in (0..256).filter(|tpc| existing.has(*tpc) && !list.has(*tpc)) {
        words[tpc / 32] |= 1 << (tpc % 32);
    }
    Ok(words)
}

/// Runs `work` in a member of a group with a mask. It waits for [`Child::go`].
pub(crate) fn member(
    group: &Group,
    list: &str,
    work: impl FnOnce(&mut Parent) -> Outcome,
) -> Result<Child, Stop> {
    // The driver learns the GPU's TPCs from its first client.
    drop(session(0)?);
    set(NAME, MASK, list)?;
    join(group, work)
}

fn masked() -> Outcome {
    masks(|| session(0))
}

/// Launches of [`PROGRAMS`] that are masked where their graph is stored, and do not count as
/// rewritten: the heads of two graphs that were uploaded, and all nodes of three that are launched
/// again.
const REPLAYED: u64 = 2 + 1 + 4 + 20;

/// Heads without blocks in the same programs, which count although they launch nothing.
const HEADS: u64 = 1;

/// Runs all kinds of captured launches as ever, on the TPCs of the mask.
pub(crate) fn masks(session: impl FnOnce() -> Result<Session, Stop>) -> Outcome {
    let group = Group::new(NAME)?;
    // The nodes of graphs run where their tenant has stored them, with the mask.
    set(NAME, STRICT, "0")?;
    let mut child = member(&group, "0-31", |_| {
        let place = Place::new(session()?)?;
        place.check_all(&disabled("0-31")?)?;
        // One channel for each program, and one more for that with two streams.
        counts(PROGRAMS.len() as u64 + 1, 0)?;
        let launches: u64 = PROGRAMS
            .iter()
            .map(|(_, _, grids)| grids.len() as u64)
            .sum();
        let rewritten = launches - REPLAYED + HEADS;
        eventually("rewritten", &rewritten, || count("rewritten"))
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// A mask binds all launches that are submitted after it was written.
fn later() -> Outcome {
    let group = Group::new(NAME)?;
    let mut child = member(&group, "0-31", |parent| {
        let place = Place::new(session(0)?)?;
        for list in ["0-31", "16-47", "all"] {
            let words = match list {
                "all" => [0; 8],
                list => disabled(list)?,
            };
            place.check_all(&words).during(list)?;
            parent.step()?;
        }
        Ok(())
    })?;
    for list in ["16-47", "all"] {
        child.next()?;
        set(NAME, MASK, list)?;
    }
    child.next()?;
    child.go()?;
    child.finish()?;
    no_worker()
}

fn rewritten() -> Outcome {
    rewrites(|| session(0))
}

/// Submits a launch to a group that is not scheduled. Overwrites it after a while, and schedules
/// the group. The GPU executes what was submitted, with the mask.
pub(crate) fn rewrites(session: impl FnOnce() -> Result<Session, Stop>) -> Outcome {
    let group = Group::new(NAME)?;
    let mut child = member(&group, "0-31", |_| {
        let place = Place::new(session()?)?;
        let (_, texts, grids) = PROGRAMS[0];
        let capture = Capture::parse(texts)?;
        let mark = place.recorder.mark()?;
        let mut launcher = place.session.launcher(place.group, place.share)?;
        for (_, words) in capture.segments() {
            launcher.submit(words);
        }
        let mut clock = queue(&place.session)?;
        for number in 1..=20 {
            release(&mut clock, 1, number)?;
        }
        launcher.erase();
        place.session.schedule(place.group, true)?;
        finish(&mut launcher)?;
        let launches = place.recorder.launches_since(mark)?;
        let found: Vec<_> = launches.iter().map(|launch| launch.grid).collect();
        same("grids", &found[..], grids)?;
        let words = disabled("0-31")?;
        same("mask", &launches[0].mask_words()[..], &words[..])
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// The driver does not know where a ring lies that UVM mapped before the process had a limit. Under
/// a mask it refuses such a channel.
fn unknown() -> Outcome {
    let group = Group::new(NAME)?;
    // The driver learns the GPU's TPCs from its first client.
    drop(session(0)?);
    set(NAME, MASK, "0-31")?;
    let child = Child::fork(|parent| {
        let session = uvm_session()?;
        let ring = session.ring_memory()?;
        parent.step()?;
        let group = session.group(Engine::Compute)?;
        for _ in 0..3 {
            let queue = session.queue(group, Engine::Compute);
            let refused = matches!(queue, Err(Error::Status(numbers::NOT_SUPPORTED)));
            same("refused", refused, true)?;
        }
        same("the ring is mapped", ring != 0, true)?;
        counts(0, 0)?;
        same("channels", count("channels")?, 0)
    })?;
    admit(&group, child)
}

/// A process that has a channel from before its mask may have further ones that cannot be owned:
/// they work, and are counted. Under `channel.strict` they are refused.
fn beside() -> Outcome {
    let group = Group::new(NAME)?;
    // The driver learns the GPU's TPCs from its first client.
    drop(session(0)?);
    let mut child = Child::fork(|parent| {
        let session = uvm_session()?;
        let mut earlier = queue(&session)?;
        parent.step()?;
        let mut further = queue(&session)?;
        release(&mut earlier, 0, 1)?;
        release(&mut further, 0, 2)?;
        counts(0, 1)?;
        same("native", count("native")?, 2)?;
        parent.step()?;
        let group = session.group(Engine::Compute)?;
        let queue = session.queue(group, Engine::Compute);
        let refused = matches!(queue, Err(Error::Status(numbers::NOT_SUPPORTED)));
        same("refused", refused, true)?;
        release(&mut further, 0, 3)?;
        same("native", count("native")?, 2)
    })?;
    child.at_step()?;
    group.add(child.pid())?;
    set(NAME, MASK, "0-31")?;
    child.next()?;
    set(NAME, STRICT, "1")?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// A channel that is not shadowed launches on all TPCs beside an owned one of the same channel
/// group, whose launches have the mask.
fn beside_native() -> Outcome {
    let group = Group::new(NAME)?;
    let mut child = join(&group, |parent| {
        let place = Place::new(session(0)?)?;
        let (_, texts, grids) = PROGRAMS[0];
        let capture = Capture::parse(texts)?;
        let launch = |channels: &mut Channels, words: [u32; 8]| -> Outcome {
            let mark = place.recorder.mark()?;
            let launches = place.run_on(channels, &capture, mark)?;
            same("launches", launches.len(), grids.len())?;
            let mut all = launches.iter();
            all.try_for_each(|launch| same("mask", &launch.mask_words()[..], &words[..]))
        };
        let mut native = place.channels(&capture)?;
        launch(&mut native, [0; 8])?;
        parent.step()?;
        let mut owned = place.channels(&capture)?;
        for _ in 0..5 {
            launch(&mut native, [0; 8])?;
            launch(&mut owned, disabled("0-31")?)?;
        }
        counts(1, 0)?;
        let found = (count("native")?, count("cooperative")?);
        same("native, cooperative", found, (1, 0))
    })?;
    child.next()?;
    set(NAME, MASK, "0-31")?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// A member of a group without limits has native channels, and nobody serves it. When the group
/// gets a mask, the driver knows the member's address space, and owns its further channels.
fn member_before() -> Outcome {
    let group = Group::new(NAME)?;
    // The driver learns the GPU's TPCs from its first client.
    drop(session(0)?);
    let mut child = join(&group, |parent| {
        let place = Place::new(uvm_session()?)?;
        let mut earlier = queue(&place.session)?;
        release(&mut earlier, 0, 1)?;
        counts(0, 0)?;
        same("workers", workers()?, 0)?;
        parent.step()?;
        place.check_all(&disabled("0-31")?)?;
        release(&mut earlier, 0, 2)?;
        counts(PROGRAMS.len() as u64 + 1, 0)?;
        same("native", count("native")?, 1)
    })?;
    child.next()?;
    set(NAME, MASK, "0-31")?;
    child.go()?;
    child.finish()?;
    no_worker()
}
