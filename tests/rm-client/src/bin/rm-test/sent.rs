// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests which controls a limit sends, on which objects, and the fate of a limit when RM refuses
//! one. The software GPU's recorder provides the controls.

use crate::gpus::{me, session, ENGINE};
use crate::limits::{has_slice, path, set, FREEZE, TIMESLICE};
use crate::process::{Child, Parent};
use crate::processes::make_and_free;
use crate::tree::{self, eventually, expect, Group};
use fakegpu_record::{Event, Recorder};
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::{Engine, Handle, Session};
use std::collections::BTreeSet;
use std::io;

pub(crate) const TESTS: &[Test] = &[
    ("sent_nothing_without_a_limit", nothing),
    ("sent_timeslice_once_to_each_group", slices),
    ("sent_freeze_names_every_channel_once", freezes),
    ("sent_to_nobody_who_died", storm),
];

/// Tests that need a GPU that refuses [`REFUSED_SLICES`] and [`REFUSED_FREEZE`]: see
/// `ci/test-rm.sh`.
pub(crate) const REFUSED: &[Test] = &[
    ("refused_timeslice_is_taken_back", slice_refused),
    ("refused_freeze_is_taken_back", freeze_refused),
];

/// The SET_TIMESLICE calls that the GPU refuses, counted from 1.
const REFUSED_SLICES: [usize; 2] = [3, 9];
/// The FIFO_DISABLE_CHANNELS calls that it refuses with `NV_ERR_NOT_SUPPORTED`: one of 36 channels,
/// then half of it, and so on down to one channel.
const REFUSED_FREEZE: core::ops::RangeInclusive<usize> = 2..=8;

const SET_SLICE: &str = "NVA06C_CTRL_CMD_SET_TIMESLICE";
pub(crate) const DISABLE: &str = "NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS";

/// Maximum number of channels per control.
const CHANNELS_MAX: usize = 64;

/// Returns the limit controls that were sent while `work` ran.
pub(crate) fn sent(work: impl FnOnce() -> Outcome) -> Result<Vec<Event>, Stop> {
    let index = usize::try_from(tree::index_of(0)?).map_err(failed)?;
    let recorder = Recorder::open(index).during("recorder")?;
    let mark = recorder.mark()?;
    work()?;
    let mut events = recorder.controls_since(mark)?;
    events.retain(|event| [SET_SLICE, DISABLE].contains(&event.name.as_str()));
    Ok(events)
}

fn nothing() -> Outcome {
    let events = sent(|| {
        let session = session(0)?;
        for _ in 0..3 {
            let group = session.group(ENGINE)?;
            session.channel(group, ENGINE)?;
        }
        expect(&me(), 0, Some((3, 3)))?;
        // A value that is already in force needs no control.
        set(&me(), TIMESLICE, "default")?;
        set(&me(), FREEZE, "0")
    })?;
    same("controls", events.len(), 0)
}

/// Fails unless every group got this time slice once, and no other control was sent.
fn sent_once(events: &[Event], session: &Session, groups: &[Handle], us: u64) -> Outcome {
    let client = session.gpu().client().handle();
    let mut expected: Vec<_> = groups
        .iter()
        .map(|group| (SET_SLICE, client, *group, Some(us), 0))
        .collect();
    let mut found: Vec<_> = events
        .iter()
        .map(|event| {
            let slice = event.param(0, 8);
            (
                event.name.as_str(),
                event.client,
                event.object,
                slice,
                event.status,
            )
        })
        .collect();
    expected.sort_unstable();
    found.sort_unstable();
    same("controls", found, expected)
}

fn slices() -> Outcome {
    let session = session(0)?;
    let mut groups = vec![
        session.group(ENGINE)?,
        session.group(Engine::Copy(3))?,
        session.group(Engine::Compute)?,
    ];
    let stock = session.timeslice(groups[0])?;
    for us in [5000, 400] {
        let events = sent(|| set(&me(), TIMESLICE, &us.to_string()))?;
        sent_once(&events, &session, &groups, us)?;
    }
    let events = sent(|| set(&me(), TIMESLICE, "400"))?;
    same("again", events.len(), 0)?;
    let mut new = 0;
    let events = sent(|| {
        new = session.group(ENGINE)?;
        Ok(())
    })?;
    sent_once(&events, &session, &[groups[0], new], 200).during("new group")?;
    groups.push(new);
    session.gpu().client().free(groups.swap_remove(2))?;
    let events = sent(|| set(&me(), TIMESLICE, "default"))?;
    sent_once(&events, &session, &groups, stock).during("back")
}

/// Returns whether a control disables, and the channels that it names.
pub(crate) fn named(event: &Event) -> Result<(bool, Vec<(u64, u64)>), Stop> {
    let word = |at, bytes| {
        let value = event.param(at, bytes);
        value.ok_or_else(|| failed(format!("short parameters: {}", event.line)))
    };
    // `hClientList` and `hChannelList` after the 24 bytes of the head.
    let count = usize::try_from(word(4, 4)?).map_err(failed)?;
    let channels = (0..count)
        .map(|number| Ok((word(24 + 4 * number, 4)?, word(280 + 4 * number, 4)?)))
        .collect::<Result<_, Stop>>()?;
    Ok((word(0, 1)? != 0, channels))
}

/// Fails unless exactly so many controls disabled, or enabled, each of the channels once.
fn named_once(
    events: &[Event],
    stops: bool,
    controls: usize,
    channels: &BTreeSet<(u64, u64)>,
) -> Outcome {
    same("controls", events.len(), controls)?;
    let mut all = Vec::new();
    for event in events {
        let (stopped, named) = named(event)?;
        same("stops", stopped, stops)?;
        same("fits", named.len() <= CHANNELS_MAX, true)?;
        all.extend(named);
    }
    same("channels named", all.len(), channels.len())?;
    same("channels", &all.into_iter().collect(), channels)
}

/// Allocates `count` channels in one group.
fn channels(session: &Session, count: usize) -> Result<BTreeSet<(u64, u64)>, Stop> {
    let group = session.group(ENGINE)?;
    let client = u64::from(session.gpu().client().handle());
    let one = |_| Ok((client, session.channel(group, ENGINE)?.into()));
    (0..count).map(one).collect()
}

fn freezes() -> Outcome {
    const COUNT: usize = 100;
    let session = session(0)?;
    let mut all = channels(&session, COUNT)?;
    let events = sent(|| set(&me(), FREEZE, "1"))?;
    named_once(&events, true, 2, &all)?;
    let mut new = BTreeSet::new();
    let events = sent(|| {
        new = channels(&session, 1)?;
        Ok(())
    })?;
    named_once(&events, true, 1, &new).during("new channel")?;
    all.append(&mut new);
    let events = sent(|| set(&me(), FREEZE, "0"))?;
    named_once(&events, false, 2, &all)
}

/// Members of a group start and die while its limits are written. No control reaches a freed
/// object, and no write fails because of one.
fn storm() -> Outcome {
    const MEMBERS: usize = 6;
    let group = Group::new("rm")?;
    let mut values = ["300", "default", "700"].into_iter().cycle();
    let events = sent(|| {
        for number in 0..MEMBERS {
            let mut child = Child::fork(|parent: &mut Parent| {
                parent.step()?;
                let session = session(0)?;
                parent.step()?;
                make_and_free(&session)
            })?;
            child.at_step()?;
            group.add(child.pid())?;
            child.next()?;
            child.go()?;
            for _ in 0..=number {
                set("rm", TIMESLICE, values.next().unwrap_or("default"))?;
                set("rm", FREEZE, "1")?;
                set("rm", FREEZE, "0")?;
            }
            child.kill();
        }
        Ok(())
    })?;
    let refused = events.iter().find(|event| event.status != 0);
    same("refused", refused, None)
}

/// Writes a limit, which must fail with errno `errno`.
fn refuses(file: &str, value: &str, errno: i32) -> Outcome {
    let path = path(&me(), file)?;
    eventually("directory", &true, || Ok(tree::at(&path).exists()))?;
    let before = tree::read(&path)?;
    let error = tree::write(&path, value).err();
    let found = error.as_ref().and_then(io::Error::raw_os_error);
    same(&format!("{path} = {value}"), found, Some(errno))?;
    same(&path, tree::read(&path)?, before)
}

/// Returns the count of failed controls outside writes.
fn failed_controls() -> Result<u64, Stop> {
    tree::stat("events", "control")
}

fn slice_refused() -> Outcome {
    let session = session(0)?;
    // Each has a runlist of its own, and so the whole time slice.
    let mut groups = [ENGINE, Engine::Copy(3), Engine::Copy(4)]
        .into_iter()
        .map(|engine| session.group(engine))
        .collect::<Result<Vec<_>, _>>()?;
    let stock = session.timeslice(groups[0])?;
    let events = sent(|| refuses(TIMESLICE, "5000", libc::EREMOTEIO))?;
    // Two accepted the value and got their own back. The last one refused it and got no further
    // control.
    let told: Vec<_> = events
        .iter()
        .map(|event| (event.param(0, 8), event.status != 0))
        .collect();
    let (new, old) = (Some(5000), Some(stock));
    let expected = [
        (new, false),
        (new, false),
        (new, true),
        (old, false),
        (old, false),
    ];
    same("controls", told.as_slice(), &expected[..])?;
    same("refused", expected[REFUSED_SLICES[0] - 1].1, true)?;
    for group in &groups {
        has_slice(&session, *group, stock)?;
    }
    // The next call succeeds. The one after it is refused, for a new group.
    set(&me(), TIMESLICE, "6000")?;
    let before = failed_controls()?;
    groups.push(session.group(Engine::Compute)?);
    same("untold", failed_controls()? - before, 1)?;
    same("controls so far", 5 + 3 + 1, REFUSED_SLICES[1])?;
    has_slice(&session, groups[3], stock).during("the new group")?;
    set(&me(), TIMESLICE, "7000")?;
    for group in &groups {
        has_slice(&session, *group, 7000)?;
    }
    Ok(())
}

fn freeze_refused() -> Outcome {
    const COUNT: usize = 100;
    let session = session(0)?;
    let all = channels(&session, COUNT)?;
    let events = sent(|| refuses(FREEZE, "1", libc::EOPNOTSUPP))?;
    let (stopped, released) = events.split_at(*REFUSED_FREEZE.end());
    let mut names = Vec::new();
    for (number, event) in (1..).zip(stopped) {
        let (stops, channels) = named(event)?;
        let refused = event.status != 0;
        same(
            "stops",
            (stops, refused),
            (true, REFUSED_FREEZE.contains(&number)),
        )?;
        names.push(channels.len());
    }
    same(
        "stopped",
        names,
        vec![CHANNELS_MAX, COUNT - CHANNELS_MAX, 18, 9, 5, 3, 2, 1],
    )?;
    // A refused control may have taken effect in part, so every channel is enabled again.
    let mut back = BTreeSet::new();
    for event in released {
        let (stops, channels) = named(event)?;
        same("stops", (stops, event.status), (false, 0))?;
        for channel in channels {
            same("released once", back.insert(channel), true)?;
        }
    }
    same("released", back.len(), COUNT)?;
    let events = sent(|| set(&me(), FREEZE, "1"))?;
    named_once(&events, true, 2, &all).during("afterwards")?;
    set(&me(), FREEZE, "0")
}
