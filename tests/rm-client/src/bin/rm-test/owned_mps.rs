// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests owned channels in a channel group of another process, like those of clients of MPS.
//!
//! A server makes the channel group. A client has its own files, address space and context share,
//! and a name of the server's group, below which it allocates its compute channels.

use crate::gpus::{me, ENGINE};
use crate::launch::{recorder, Place, PROGRAMS};
use crate::limits::{set, FREEZE, TIMESLICE};
use crate::owned::{counts, join, no_worker};
use crate::owned_launch::{disabled, MASK};
use crate::owned_time::{self, groups, launches, tenant_as, Tenant, MILLISECOND};
use crate::owned_time::{ONE, OTHER, PROGRAM_OF_ONE, PROGRAM_OF_OTHER};
use crate::owned_uvm::uvm_session;
use crate::process::{Child, Parent};
use crate::strangers::{is_unsupported, leave, left};
use crate::timing::undisturbed;
use crate::tree::Group;
use fakegpu_record::{Event, Recorder};
use gct_ktap::{same, During, Outcome, Stop, Test};
use rm_client::{Engine, Handle, Session};

pub(crate) const TESTS: &[Test] = &[
    ("owned_mps_clients_have_their_masks", masks),
    ("owned_mps_clients_run_side_by_side", side_by_side),
    ("owned_mps_priority_holds_the_later", priority),
    ("owned_mps_quota_is_lent_and_comes_back", quota),
    ("owned_mps_client_has_no_slice_and_no_freeze", slice),
    ("owned_mps_killed_client_leaves_the_others", killed),
    ("owned_mps_killed_server_leaves_its_clients", orphans),
];

/// Forks a server that is in no group. It works at each step.
pub(crate) fn server() -> Result<Child, Stop> {
    let mut server = Child::fork(|parent: &mut Parent| {
        let session = uvm_session()?;
        // The address space is chosen by each context share.
        let group = session.group_in(0, Engine::Compute)?;
        let client = session.gpu().client();
        client.share_with_all(group).during("SHARE")?;
        leave([client.handle(), group])?;
        let mut own = Tenant::below(session, group, 0x7000)?;
        loop {
            parent.step()?;
            own.launch(MILLISECOND);
            own.wait(0)?;
        }
    })?;
    server.at_step()?;
    Ok(server)
}

/// Opens the GPU as a client of the server, with its own name of the server's channel group.
fn client() -> Result<(Session, Handle), Stop> {
    let session = uvm_session()?;
    let (server, group) = left()?;
    let gpu = session.gpu();
    let name = gpu.client().dup_of(gpu.device(), server, group);
    let name = name.during("DUP")?;
    // Copies have a group of their own. It gives the client a directory.
    session.group(ENGINE)?;
    Ok((session, name))
}

/// Opens the GPU as a client that launches a program.
pub(crate) fn guest(program: u32) -> Result<Tenant, Stop> {
    let (session, group) = client()?;
    Tenant::below(session, group, program)
}

/// Runs all kinds of captured launches as two clients with masks. The server works beside them.
fn masks() -> Outcome {
    let mut server = server()?;
    let [one, other] = groups()?;
    let mut clients = Vec::new();
    for (group, name, list) in [(&one, ONE, "0-31"), (&other, OTHER, "32-63")] {
        set(name, MASK, list)?;
        let mut client = join(group, move |parent| {
            let (session, group) = client()?;
            let place = Place::below(session, group)?;
            parent.step()?;
            place.check_all(&disabled(list)?)?;
            counts(PROGRAMS.len() as u64 + 1, 0)?;
            parent.step()
        })?;
        client.next()?;
        clients.push(client);
    }
    for client in &mut clients {
        server.next()?;
        client.next()?;
    }
    for client in &mut clients {
        client.go()?;
        client.finish()?;
    }
    server.next()?;
    no_worker()
}

/// Returns the times of the launches of a program since a mark, shortest first.
fn times(recorder: &Recorder, mark: u32, program: u32) -> Result<Vec<u64>, Stop> {
    let time = |launch: &Event| launch.ns - launch.began;
    let launches = launches(recorder, mark, program)?;
    let mut times: Vec<_> = launches.iter().map(time).collect();
    times.sort_unstable();
    Ok(times)
}

/// Has a tenant launch alone, and while one with a disjoint mask works. Returns how long its median
/// launch takes then, in % of that alone.
fn beside(open: fn(u32) -> Result<Tenant, Stop>) -> Result<u64, Stop> {
    const LAUNCHES: u32 = 5;
    let [one, other] = groups()?;
    set(ONE, MASK, "0-31")?;
    set(OTHER, MASK, "32-63")?;
    let recorder = recorder()?;
    let mut first = tenant_as(open, &one, PROGRAM_OF_ONE, |tenant, parent| loop {
        for _ in 0..LAUNCHES {
            tenant.launch(5 * MILLISECOND);
        }
        tenant.wait(0)?;
        parent.step()?;
    })?;
    let mut second = tenant_as(open, &other, PROGRAM_OF_OTHER, |tenant, parent| {
        parent.work(|| {
            tenant.launch(5 * MILLISECOND);
            tenant.wait(LAUNCHES)
        })
    })?;
    let mut median = || {
        let mark = recorder.mark()?;
        first.next()?;
        let times = times(&recorder, mark, PROGRAM_OF_ONE)?;
        same("launches", times.len(), LAUNCHES as usize)?;
        Ok::<_, Stop>(times[times.len() / 2])
    };
    let alone = median()?;
    second.next()?;
    let beside = median()?;
    no_more([first, second])?;
    Ok(100 * beside / alone.max(1))
}

/// Ends processes that nobody needs any more.
fn no_more(mut all: [Child; 2]) -> Outcome {
    all.iter_mut().for_each(Child::kill);
    no_worker()
}

/// Clients of one server that have disjoint masks do not slow each other down. Processes with
/// channel groups of their own take turns, whatever their masks.
fn side_by_side() -> Outcome {
    undisturbed(|| {
        let turns = beside(|program| Tenant::with(uvm_session()?, program))?;
        println!("# by turns {turns}%");
        same("turns", turns >= 150, true)
    })?;
    let _server = server()?;
    undisturbed(|| {
        let clients = beside(guest)?;
        println!("# as clients {clients}%");
        same("clients", (90..=120).contains(&clients), true)
    })
}

/// Clients share a context, so the GPU knows which of their launches comes first.
fn priority() -> Outcome {
    let _server = server()?;
    owned_time::priority_holds(guest, [2, 58])
}

fn quota() -> Outcome {
    let _server = server()?;
    owned_time::quota_is_lent(guest)
}

/// A time slice and a freeze would bind the server and its other clients.
fn slice() -> Outcome {
    let mut server = server()?;
    let [one, _other] = groups()?;
    let mut client = tenant_as(guest, &one, PROGRAM_OF_ONE, |tenant, parent| {
        counts(1, 0)?;
        for file in [FREEZE, TIMESLICE] {
            is_unsupported(&me(), file, if file == FREEZE { "1" } else { "500" })?;
        }
        parent.step()?;
        tenant.launch(MILLISECOND);
        tenant.wait(0)
    })?;
    client.next()?;
    is_unsupported(ONE, FREEZE, "1")?;
    is_unsupported(ONE, TIMESLICE, "500")?;
    server.next()?;
    client.go()?;
    client.finish()?;
    no_worker()
}

/// Works as a client until it is killed, with launches in flight.
fn works(group: &Group, program: u32) -> Result<Child, Stop> {
    tenant_as(guest, group, program, |tenant, parent| loop {
        for _ in 0..4 {
            tenant.launch(MILLISECOND);
        }
        parent.step()?;
        tenant.wait(0)?;
    })
}

fn killed() -> Outcome {
    let mut server = server()?;
    let [one, other] = groups()?;
    let mut witness = works(&other, PROGRAM_OF_OTHER)?;
    for _ in 0..2 {
        let mut client = works(&one, PROGRAM_OF_ONE)?;
        client.next()?;
        witness.next()?;
        client.kill();
        witness.next().during("after a client's death")?;
        server.next().during("the server")?;
    }
    witness.kill();
    no_worker()
}

/// The channel group lives as long as somebody has a name of it.
fn orphans() -> Outcome {
    let mut server = server()?;
    let [one, other] = groups()?;
    let recorder = recorder()?;
    let mut clients = [
        works(&one, PROGRAM_OF_ONE)?,
        works(&other, PROGRAM_OF_OTHER)?,
    ];
    for client in &mut clients {
        client.next()?;
    }
    let mark = recorder.mark()?;
    server.kill();
    for _ in 0..3 {
        for client in &mut clients {
            client.next().during("after the server's death")?;
        }
    }
    let after = launches(&recorder, mark, PROGRAM_OF_ONE)?;
    same("they run", after.len() >= 8, true)?;
    no_more(clients)
}
