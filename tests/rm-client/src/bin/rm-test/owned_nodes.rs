// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests the room for nodes of CUDA graphs: there is more as a tenant uploads them, its memory
//! cgroup pays for it, and neighbours do not notice.

use crate::charged::Cgroup;
use crate::gpus::session;
use crate::launch::finish;
use crate::owned::{join, no_worker};
use crate::owned_launch::{member, NAME};
use crate::owned_storm::{Witness, LATE};
use crate::owned_strict::{refused, Tenant};
use crate::owned_strict_graphs::{Graph, LIST, NODE};
use crate::tree::Group;
use gct_core::owned::{NODES_STEP, SEGMENT_WORDS};
use gct_core::submit::graph::Slot;
use gct_core::submit::join::Qmd;
use gct_ktap::{holds, same, During, Outcome, Stop, Test};
use rm_client::{Launcher, Memory};
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("owned_nodes_of_a_server_are_known", of_a_server),
    ("owned_nodes_beyond_the_cgroup", beyond),
    ("owned_nodes_hostile_segments_beside_a_neighbour", beside),
];

/// Nodes of one graph.
const COUNT: u32 = 1000;

/// Graphs of a server of language models.
const GRAPHS: u32 = 20;

/// Bytes of a chunk of nodes with their words, at least.
// CAST: widening.
const CHUNK: u64 = (NODES_STEP * (size_of::<Slot>() + size_of::<Qmd>())) as u64;

/// Returns graphs in memory of their own.
fn graphs(tenant: &Tenant, count: u32) -> Result<Vec<Graph>, Stop> {
    let bytes = NODE * u64::from(COUNT);
    let all = (bytes * u64::from(count)).next_multiple_of(1 << 21);
    let memory = tenant.session.gpu().alloc_memory(Memory::Host, all)?;
    let at = tenant.session.map_on_gpu(memory, all)?;
    let graph = |number| Graph {
        at: at + bytes * u64::from(number),
        count: COUNT,
    };
    Ok((0..count).map(graph).collect())
}

fn upload(launcher: &mut Launcher, graph: &Graph) -> Outcome {
    launcher.submit(&graph.upload());
    finish(launcher)
}

/// All graphs of a server are known, and its memory cgroup pays for them until it has gone.
fn of_a_server() -> Outcome {
    let (group, cgroup) = (Group::new(NAME)?, Cgroup::new("server")?);
    let mut child = member(&group, LIST, |parent| {
        cgroup.enter()?;
        let tenant = Tenant::new(session(0)?)?;
        let mut launcher = tenant.channel()?;
        let graphs = graphs(&tenant, GRAPHS)?;
        parent.step()?;
        for graph in &graphs {
            upload(&mut launcher, graph)?;
        }
        parent.step()?;
        for number in [0, 19] {
            graphs[number].runs(&mut launcher).during(number)?;
        }
        tenant.launches(&mut launcher)?;
        same("refused", refused()?, 0)
    })?;
    child.next()?;
    let before = cgroup.current()?;
    child.next()?;
    let grown = cgroup.current()?.saturating_sub(before);
    println!("# {} nodes: {} KiB", GRAPHS * COUNT, grown >> 10);
    let most = u64::from(GRAPHS * COUNT) / NODES_STEP as u64 + 1;
    holds("the cgroup pays", grown >= (most - 1) * CHUNK)?;
    holds("for no more than it uses", grown <= (most + 2) * CHUNK)?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// A tenant whose memory cgroup is full gets no room for its nodes. It is killed as for any other
/// memory that it asks for, or its channel is. Nobody else waits for it.
fn beyond() -> Outcome {
    let (group, cgroup) = (Group::new(NAME)?, Cgroup::new("full")?);
    let mut child = member(&group, LIST, |parent| {
        cgroup.enter()?;
        let tenant = Tenant::new(session(0)?)?;
        let mut launcher = tenant.channel()?;
        let graphs = graphs(&tenant, GRAPHS)?;
        parent.step()?;
        for graph in &graphs {
            upload(&mut launcher, graph)?;
        }
        for graph in &graphs {
            graph.runs(&mut launcher)?;
        }
        Ok(())
    })?;
    let mut witness = Witness::new(&group)?;
    child.next()?;
    // Whatever is charged to it waits first, and then there is nothing left.
    cgroup.delay_growth()?;
    child.go()?;
    for _ in 0..5 {
        witness.0.next().during("the neighbour of one that waits")?;
    }
    cgroup.let_grow_at_once()?;
    cgroup.stop_growth()?;
    holds("its room is not there", child.finish().is_err())?;
    for _ in 0..5 {
        witness
            .0
            .next()
            .during("the neighbour of one that is full")?;
    }
    witness.0.kill();
    drop(child);
    no_worker()
}

/// For how long the neighbour is looked at, alone and beside the other.
const LOOK: Duration = Duration::from_secs(2);

/// Returns how long short launches of a neighbour take, the median and the longest.
fn times(tenant: &Tenant, launcher: &mut Launcher) -> Result<[Duration; 2], Stop> {
    let (start, mut all) = (Instant::now(), vec![]);
    while start.elapsed() < LOOK || all.len() < 20 {
        let begun = Instant::now();
        launcher.submit(&tenant.grid().words());
        finish(launcher)?;
        all.push(begun.elapsed());
    }
    all.sort_unstable();
    Ok([all[all.len() / 2], all[all.len() - 1]])
}

/// A tenant under a limit submits the longest segments that there are, full of nodes that were not
/// seen before, and lists of a thousand launches. A neighbour's short launches come in time.
fn beside() -> Outcome {
    let group = Group::new(NAME)?;
    let mut hostile = member(&group, LIST, |parent| {
        let tenant = Tenant::new(session(0)?)?;
        let mut launchers = [tenant.channel()?, tenant.channel()?];
        let all = graphs(&tenant, 40)?;
        let [uploads, replays] = &mut launchers;
        upload(replays, &all[0])?;
        parent.step()?;
        // A graph that is replayed must stay what it is.
        let mut graphs = all[1..all.len() - 2].iter().cycle();
        parent.work(|| {
            // Two graphs and a part of one, in one segment.
            let at = graphs.next().map_or(0, |graph| graph.at);
            let words = Graph { at, count: 2300 }.upload();
            holds("long", words.len() > SEGMENT_WORDS)?;
            uploads.submit(&words);
            replays.submit(&all[0].replay());
            finish(uploads)?;
            finish(replays)
        })
    })?;
    let mut neighbour = join(&group, |parent| {
        let tenant = Tenant::new(session(0)?)?;
        let mut launcher = tenant.channel()?;
        let alone = times(&tenant, &mut launcher)?;
        parent.step()?;
        let beside = times(&tenant, &mut launcher)?;
        println!("# median and longest: alone {alone:?}, beside {beside:?}");
        holds("each launch comes in time", beside[1] < LATE)
    })?;
    hostile.next()?;
    neighbour.next()?;
    hostile.next()?;
    neighbour.go()?;
    neighbour.finish()?;
    hostile.go()?;
    hostile.finish()?;
    no_worker()
}
