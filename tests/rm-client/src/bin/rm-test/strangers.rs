// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests access to other processes' channels: by a tenant's own controls, and in a channel group
//! that several processes share.

use crate::freeze::clock;
use crate::gpus::{me, session, ENGINE};
use crate::limits::{has_slice, path, set, FREEZE, TIMESLICE};
use crate::process::{Child, Parent};
use crate::sent::{named, sent, DISABLE};
use crate::tree::{self, eventually, Group};
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::{numbers, Error, Handle, Release, Session};
use std::fs;

pub(crate) const TESTS: &[Test] = &[
    ("hostile_stranger_stops_and_starts_nobody", strangers),
    ("hostile_process_of_the_group_starts_nobody", same_group),
    ("hostile_schedule_of_any_generation", generations),
    ("limit_freeze_stops_no_sharer", shared_freeze),
    ("limit_timeslice_of_a_guest", shared_slice),
];

/// The file by which a process passes its handles.
const SHARED: &str = "/tmp/rm-test.shared";

/// Leaves two handles for another process.
pub(crate) fn leave(handles: [Handle; 2]) -> Outcome {
    Ok(fs::write(
        SHARED,
        handles.map(|handle| handle.to_string()).join(" "),
    )?)
}

/// Returns the handles that another process has left.
pub(crate) fn left() -> Result<(Handle, Handle), Stop> {
    let text = fs::read_to_string(SHARED)?;
    let mut numbers = text.split(' ').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(one)), Some(Ok(two))) => Ok((one, two)),
        _ => Err(failed(format!("no handles in {text}"))),
    }
}

/// Forks a process that submits at each step, and checks at the next one whether the work is done,
/// as `expected` says.
fn tenant(expected: &'static [bool]) -> Result<Child, Stop> {
    let mut child = Child::fork(move |parent: &mut Parent| {
        let session = session(0)?;
        let group = session.group(ENGINE)?;
        let mut queue = session.queue(group, ENGINE)?;
        session.schedule(group, true)?;
        leave([session.gpu().client().handle(), queue.channel()])?;
        let mut done = 0;
        for (step, runs) in (1..).zip(expected) {
            parent.step()?;
            queue.submit_release(0, step);
            parent.step()?;
            done = if *runs { step } else { done };
            match runs {
                true => eventually("its work", &step, || Ok(queue.payload(0)))?,
                false => same("its work", queue.payload(0), done)?,
            }
        }
        parent.step()
    })?;
    child.at_step()?;
    Ok(child)
}

/// Checks one step of a tenant: it submits, the clock advances, and it looks.
fn works(tenant: &mut Child, clock: &mut Child) -> Outcome {
    tenant.next()?;
    clock.next()?;
    tenant.next().during("the tenant")
}

fn is_refused(what: &str, outcome: Result<(), Error>) -> Outcome {
    match outcome {
        Err(Error::Status(numbers::INSUFFICIENT_PERMISSIONS)) => Ok(()),
        other => Err(failed(format!("{what}: {other:?}"))),
    }
}

/// Checks that without a group, the driver lets every process stop and start every other's
/// channels. In a group, gctgroup refuses that.
fn strangers() -> Outcome {
    let group = Group::new("rm")?;
    let mut clock = clock()?;
    let mut tenant = tenant(&[true, false, true])?;
    let channel = left()?;
    let own = session(0)?;
    // Outside groups the driver decides.
    own.disable_of(&[channel], true)
        .during("as without gctgroup")?;
    own.disable_of(&[channel], false)?;
    group.add(tenant.pid())?;
    is_refused("stopped", own.disable_of(&[channel], true))?;
    works(&mut tenant, &mut clock)?;
    set("rm", FREEZE, "1")?;
    is_refused("started", own.disable_of(&[channel], false))?;
    let mine = own.channel(own.group(ENGINE)?, ENGINE)?;
    let both = [(own.gpu().client().handle(), mine), channel];
    is_refused("started with its own", own.disable_of(&both, false))?;
    works(&mut tenant, &mut clock)?;
    set("rm", FREEZE, "0")?;
    works(&mut tenant, &mut clock)?;
    tenant.go()?;
    tenant.finish()
}

/// Checks that a process in the same group may stop the others' channels, but cannot start a frozen
/// one.
fn same_group() -> Outcome {
    let group = Group::new("rm")?;
    let mut clock = clock()?;
    let mut tenant = tenant(&[false, true])?;
    let channel = left()?;
    group.add(tenant.pid())?;
    let mut mate = Child::fork(|parent: &mut Parent| {
        let own = session(0)?;
        parent.step()?;
        own.disable_of(&[channel], false)?;
        parent.step()
    })?;
    mate.at_step()?;
    group.add(mate.pid())?;
    set("rm", FREEZE, "1")?;
    let events = sent(|| mate.next())?;
    // The mate's own control, and the one that undid it before the mate's ioctl returned.
    let told: Result<Vec<_>, Stop> = events.iter().map(named).collect();
    let channel = (u64::from(channel.0), u64::from(channel.1));
    let expected = vec![(false, vec![channel]), (true, vec![channel])];
    same("sent", told?, expected)?;
    works(&mut tenant, &mut clock)?;
    mate.kill();
    set("rm", FREEZE, "0")?;
    works(&mut tenant, &mut clock)?;
    tenant.go()?;
    tenant.finish()
}

/// Sends each generation's number of the control that puts a channel on the runlist, and the one
/// of a device.
fn generations() -> Outcome {
    let own = session(0)?;
    let group = own.group(ENGINE)?;
    let channel = own.channel(group, ENGINE)?;
    own.work_token(channel, ENGINE)?;
    set(&me(), FREEZE, "1")?;
    let frozen_again = |what: &str, schedule: &dyn Fn() -> Result<(), Error>| -> Outcome {
        let events = sent(|| schedule().during(what.to_owned()))?;
        let last = events.iter().rfind(|event| event.name == DISABLE);
        let last = last.ok_or_else(|| failed(format!("{what}: nothing is sent")))?;
        let client = u64::from(own.gpu().client().handle());
        same(what, named(last)?, (true, vec![(client, channel.into())]))
    };
    frozen_again("0xa06f", &|| own.schedule_channel(channel, 0xa06f))?;
    // 580 knows none of the others.
    let gone = own.gpu().client().control_file().release() >= Release::R580;
    let others = |what: &str, schedule: &dyn Fn() -> Result<(), Error>| match gone {
        false => frozen_again(what, schedule),
        true => {
            let refused = matches!(schedule(), Err(Error::Status(numbers::NOT_SUPPORTED)));
            same(what, refused, true)
        }
    };
    for generation in [0xa16f, 0xa26f, 0xb06f, 0xc06f, 0xc36f] {
        others(&format!("{generation:#x}"), &|| {
            own.schedule_channel(channel, generation)
        })?;
    }
    others("by the device", &|| own.start_channel(channel))?;
    set(&me(), FREEZE, "0")
}

/// Forks a process that shares a channel group with all others, and one with a channel in it, like
/// a server and a client of MPS.
fn host_and_guest(
    work: impl FnOnce(&Session, Handle, &mut Parent) -> Outcome,
) -> Result<[Child; 2], Stop> {
    let mut host = Child::fork(move |parent: &mut Parent| {
        let session = session(0)?;
        let group = session.group(ENGINE)?;
        session.channel(group, ENGINE)?;
        session
            .gpu()
            .client()
            .share_with_all(group)
            .during("SHARE")?;
        leave([session.gpu().client().handle(), group])?;
        parent.step()?;
        work(&session, group, parent)
    })?;
    host.at_step()?;
    let mut guest = Child::fork(|parent: &mut Parent| {
        let session = session(0)?;
        // The group gives the guest a directory.
        session.group(ENGINE)?;
        let (client, group) = left()?;
        let gpu = session.gpu();
        let name = gpu
            .client()
            .dup_of(gpu.device(), client, group)
            .during("DUP")?;
        parent.step()?;
        session.channel(name, ENGINE).during("a guest's channel")?;
        parent.step()
    })?;
    guest.at_step()?;
    Ok([host, guest])
}

/// Writes a limit, which must be refused as unsupported.
pub(crate) fn is_unsupported(owner: &str, file: &str, value: &str) -> Outcome {
    let path = path(owner, file)?;
    eventually("directory", &true, || Ok(tree::at(&path).exists()))?;
    let refused = tree::write(&path, value).map_err(|error| error.raw_os_error());
    same(
        &format!("{path} = {value}"),
        refused,
        Err(Some(libc::EOPNOTSUPP)),
    )
}

fn shared_freeze() -> Outcome {
    let [mut host, mut guest] = host_and_guest(|_, _, parent| parent.step())?;
    let pids = [host.pid().to_string(), guest.pid().to_string()];
    // A guest with only a name for the group does not obstruct a limit.
    set(&pids[0], FREEZE, "1")?;
    set(&pids[0], FREEZE, "0")?;
    guest.next()?;
    let events = sent(|| {
        is_unsupported(&pids[0], FREEZE, "1")?;
        is_unsupported(&pids[1], FREEZE, "1")
    })?;
    let stopped = events.iter().map(named).collect::<Result<Vec<_>, Stop>>()?;
    same("stopped", stopped.iter().any(|(stops, _)| *stops), false)?;
    let group = Group::new("rm")?;
    group.add(host.pid())?;
    is_unsupported("rm", FREEZE, "1")?;
    group.add(guest.pid())?;
    let events = sent(|| set("rm", FREEZE, "1"))?;
    let stopped = events.iter().map(named).collect::<Result<Vec<_>, Stop>>()?;
    let count: usize = stopped.iter().map(|(_, channels)| channels.len()).sum();
    same(
        "channels",
        (stopped.iter().all(|(stops, _)| *stops), count),
        (true, 2),
    )?;
    set("rm", FREEZE, "0")?;
    // A group with members cannot be removed.
    host.kill();
    guest.kill();
    Ok(())
}

fn shared_slice() -> Outcome {
    let [mut host, mut guest] = host_and_guest(|session, group, parent| {
        has_slice(session, group, 400)?;
        parent.step()
    })?;
    let pids = [host.pid().to_string(), guest.pid().to_string()];
    guest.next()?;
    is_unsupported(&pids[1], TIMESLICE, "500")?;
    // The host's limit applies.
    set(&pids[0], TIMESLICE, "400")?;
    set(&pids[1], TIMESLICE, "500")?;
    host.next()
}
