// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures what graphs that stay whole cost a neighbour of an earlier rank by turns, and what
//! their nodes would cost it as launches of their own.

use super::channel::Kernel;
use super::gpu::Sharing;
use super::measured::waits;
use super::script::{Pattern, Program};
use super::world::{Threads, World, START};
use gct_core::iface::File;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

/// Nodes of a graph, each one wave that no atom divides.
const NODES: u32 = 24;

/// Returns the p99 of the waits of a service, and the part of the time of a program that yields to
/// it, in thousandths. The program always has a graph in flight. Its nodes are released `whole`, at
/// once, or as launches of their own.
fn measure(whole: bool, node_ns: u64, slice: Option<&str>) -> (u64, u64) {
    let sharing = Sharing::Turns {
        slice: 2 * MS,
        switch: 100 * US,
    };
    let mut world = World::new(4, sharing, Threads::Each(20 * US));
    let kernel = |block_ns| Kernel {
        program: 0x100,
        blocks: 16,
        block_ns,
    };
    let group = world.group(&[(File::ComputePriority, "0".into())]);
    let requests = Pattern::Requests {
        launches: 1,
        pause_ns: 4 * MS,
    };
    world.start(
        group,
        Program::new(vec![kernel(500 * US)], requests, START, 7),
    );
    let target = if whole { "1000000" } else { "50" };
    let mut limits = vec![(File::AtomDuration, target.to_string())];
    limits.extend(slice.map(|slice| (File::ComputeTimeslice, slice.to_string())));
    let group = world.group(&limits);
    let nodes = Program::new(vec![kernel(node_ns)], Pattern::Always(NODES), START, 1);
    let other = world.start(group, nodes);
    let from = START + 100 * MS;
    world.run_until(from);
    let before = world.gpu.active[&other];
    world.run_until(from + 400 * MS);
    let part = (world.gpu.active[&other] - before) * 10 / (4 * MS);
    let waits = waits(&world, 0, from);
    (waits[waits.len() / 100], part)
}

/// Checks that a short time slice of the program gives the service what cutting its graphs into
/// nodes would, and leaves the program more of the time. Prints the numbers.
#[test]
fn a_short_slice_preempts_a_graph_as_its_nodes_would() {
    for node_ns in [50 * US, 200 * US] {
        for slice in [None, Some("500"), Some("50")] {
            let [whole, nodes] = [true, false].map(|whole| measure(whole, node_ns, slice));
            println!(
                "nodes of {} us, slice {slice:?}: whole {whole:?}, nodes {nodes:?}",
                node_ns / US
            );
            match slice {
                None => assert!(whole.0 > 4 * nodes.0, "{whole:?} {nodes:?}"),
                Some(_) => assert!(whole.1 > nodes.1, "{whole:?} {nodes:?}"),
            }
            if slice == Some("50") {
                assert!(whole.0 <= nodes.0, "{whole:?} {nodes:?}");
            }
        }
    }
}
