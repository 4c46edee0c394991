// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests CUDA graphs under `channel.strict`: a replay is a list of launches from slots of the
//! driver's, with the descriptors that the driver has seen at the upload.

use crate::gpus::session;
use crate::launch::{finish, recorder};
use crate::limits::set;
use crate::owned::{count, no_worker};
use crate::owned_launch::{disabled, member, NAME};
use crate::owned_slots::{put, QMD_AT};
use crate::owned_strict::{refused, Tenant, BYTES, ERROR, REMOVAL, STRICT};
use crate::tree::{eventually, Group};
use gct_core::owned::SEGMENT_WORDS;
use gct_core::submit::method::incr;
use gct_core::submit::qmd::v04_00;
use gct_ktap::{same, During, Outcome, Stop, Test};
use rm_client::{Grid, Launcher};
use std::sync::atomic::Ordering;

pub(crate) const TESTS: &[Test] = &[
    ("owned_strict_graphs_run_in_turn", in_turn),
    ("owned_strict_graphs_hostile_rewrites_nodes", rewritten),
    ("owned_strict_graphs_that_cannot_be_listed", refuses),
    ("owned_strict_graphs_outlive_the_limit", outlive),
];

pub(crate) const LIST: &str = "0-31";
/// Bytes between two descriptors.
pub(crate) const NODE: u64 = 0x200;
/// Nodes of a long graph. They have fewer slots, and their upload has more words than are read at
/// once.
const LONG: u32 = 1000;
/// The actions of dependents.
const SCHEDULE: u32 = 1;
const DECREMENT: u32 = 4;

/// A chain of nodes in memory of the tenant's: the head has 1 block, the next 2, and so on.
pub(crate) struct Graph {
    pub(crate) at: u64,
    pub(crate) count: u32,
}

impl Graph {
    fn va(&self, number: u32) -> u64 {
        self.at + NODE * u64::from(number)
    }

    /// Returns the words that upload and call a node. `next` is what its end schedules.
    fn node(&self, number: u32, next: Option<u32>) -> Vec<u32> {
        let grid = Grid {
            descriptor: self.va(number),
            program: 0x5000,
            size: [number + 1, 1, 1],
            disabled: 0,
            release: None,
        };
        let mut words = grid.words();
        if number > 0 {
            put(&mut words, v04_00::REQUIRE_SCHEDULING_PCAS, 1);
            put(&mut words, v04_00::SELF_COPY_ON_COMPLETION, 1);
        }
        if let Some(next) = next {
            depends(&mut words, 0, SCHEDULE, self.va(next));
        }
        words
    }

    /// Returns the words of an ordinary launch of 9 blocks whose descriptor lies where a node did.
    fn launch_over(&self, number: u32) -> Vec<u32> {
        let mut words = self.node(number, None);
        put(&mut words, v04_00::REQUIRE_SCHEDULING_PCAS, 0);
        put(&mut words, v04_00::SELF_COPY_ON_COMPLETION, 0);
        put(&mut words, v04_00::GRID_WIDTH, 9);
        words
    }

    /// Returns the upload as CUDA has it: the last node first, and the head without a call.
    pub(crate) fn upload(&self) -> Vec<u32> {
        let nodes = (0..self.count).rev();
        let next = |number| (number + 1 < self.count).then_some(number + 1);
        let mut words: Vec<_> = nodes
            .flat_map(|number| self.node(number, next(number)))
            .collect();
        words.truncate(words.len() - 4);
        words
    }

    pub(crate) fn replay(&self) -> Vec<u32> {
        call(self.at, 0xa)
    }

    /// Fails unless a replay runs each node once, one after the other and under the mask.
    pub(crate) fn runs(&self, launcher: &mut Launcher) -> Outcome {
        self.runs_widths(launcher, &(1..=self.count).collect::<Vec<_>>())
    }

    /// Fails unless a replay runs launches of these widths so.
    fn runs_widths(&self, launcher: &mut Launcher, widths: &[u32]) -> Outcome {
        let recorder = recorder()?;
        let mark = recorder.mark()?;
        launcher.submit(&self.replay());
        finish(launcher)?;
        let (mut launches, mask) = (recorder.launches_since(mark)?, disabled(LIST)?);
        launches.sort_by_key(|launch| launch.began);
        let found: Vec<_> = launches.iter().map(|launch| launch.grid[0]).collect();
        same("nodes", &found[..], widths)?;
        let mut ended = 0;
        for launch in launches {
            same("mask", &launch.mask_words()[..], &mask[..])?;
            same("in turn", launch.began >= ended, true)?;
            ended = launch.ns;
        }
        Ok(())
    }
}

/// Has the end of a launch act on another descriptor.
fn depends(words: &mut [u32], number: u8, action: u32, va: u64) {
    let pointer = match number {
        0 => v04_00::DEPENDENT_QMD0_POINTER,
        _ => v04_00::DEPENDENT_QMD1_POINTER,
    };
    put(words, v04_00::DEPENDENT_QMD_ENABLE.nth(number), 1);
    put(words, v04_00::DEPENDENT_QMD_ACTION.nth(number), action);
    // CAST: below 2^40.
    put(words, pointer, (va >> 8) as u32);
}

/// Returns the words of a call.
fn call(va: u64, action: u32) -> Vec<u32> {
    // CAST: below 2^40.
    vec![
        incr(1, 0x2b4, 1),
        (va >> 8) as u32,
        incr(1, 0x2c0, 1),
        action,
    ]
}

/// Runs `work` in a member with a mask.
fn strict(work: impl FnOnce(&Tenant) -> Outcome) -> Outcome {
    let group = Group::new(NAME)?;
    let mut child = member(&group, LIST, |_| work(&Tenant::new(session(0)?)?))?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// A graph of more nodes than a channel has slots runs again and again, and so does what the
/// channel submits between.
fn in_turn() -> Outcome {
    strict(|tenant| {
        let mut launcher = tenant.channel()?;
        let bytes = NODE * u64::from(LONG);
        let memory = tenant
            .session
            .gpu()
            .alloc_memory(rm_client::Memory::Host, bytes.next_multiple_of(0x1_0000))?;
        let graph = Graph {
            at: tenant
                .session
                .map_on_gpu(memory, bytes.next_multiple_of(0x1_0000))?,
            count: LONG,
        };
        let upload = graph.upload();
        same("long", upload.len() > SEGMENT_WORDS, true)?;
        launcher.submit(&upload);
        for _ in 0..3 {
            graph.runs(&mut launcher)?;
            tenant.launches(&mut launcher)?;
        }
        same("passed", count("passed")?, 0)?;
        same("refused", refused()?, 0)
    })
}

/// A tenant takes the mask out of its nodes, once they were seen, and makes them others that start
/// others. They run as they were.
fn rewritten() -> Outcome {
    strict(|tenant| {
        let mut launcher = tenant.channel()?;
        let graph = Graph {
            at: tenant.address,
            count: 5,
        };
        launcher.submit(&graph.upload());
        graph.runs(&mut launcher)?;
        for number in 0..graph.count {
            let other = Graph {
                at: tenant.address,
                count: 77,
            };
            let words = other.node(76, Some(number));
            let at = (NODE * u64::from(number)) as usize;
            for (offset, word) in (at..).step_by(4).zip(&words[QMD_AT..QMD_AT + 96]) {
                tenant.words.u32(offset).store(*word, Ordering::SeqCst);
            }
        }
        for _ in 0..3 {
            graph.runs(&mut launcher)?;
        }
        // A launch that starts nothing was seen as a whole, too. It takes the node's place.
        launcher.submit(&graph.launch_over(1));
        finish(&mut launcher)?;
        graph.runs_widths(&mut launcher, &[1, 9])?;
        same("refused", refused()?, 0)
    })
}

/// Submits a graph that no list can hold.
type Bad = fn(&Graph, &mut Launcher);

/// Uploads a head and one node with a change, and replays the head.
fn changed(graph: &Graph, launcher: &mut Launcher, change: fn(&Graph, [&mut Vec<u32>; 2])) {
    let [mut head, mut node] = [graph.node(0, Some(1)), graph.node(1, None)];
    change(graph, [&mut head, &mut node]);
    head.truncate(head.len() - 4);
    launcher.submit(&[node, head].concat());
    launcher.submit(&graph.replay());
}

const BAD: &[(&str, Bad)] = &[
    ("a node that is not known", |graph, launcher| {
        changed(graph, launcher, |graph, [head, _]| {
            depends(head, 0, SCHEDULE, graph.va(7));
        });
    }),
    ("a decrement of what is not known", |graph, launcher| {
        changed(graph, launcher, |graph, [head, _]| {
            depends(head, 1, DECREMENT, graph.va(7));
        });
    }),
    ("a node that starts itself", |graph, launcher| {
        changed(graph, launcher, |graph, [_, node]| {
            depends(node, 0, SCHEDULE, graph.va(1));
        });
    }),
    ("nodes that start twice as many", |graph, launcher| {
        changed(graph, launcher, |graph, [head, node]| {
            depends(head, 1, SCHEDULE, graph.va(1));
            depends(node, 0, SCHEDULE, graph.va(0));
        });
    }),
    ("a copy that a node starts", |graph, launcher| {
        changed(graph, launcher, |graph, [head, _]| {
            depends(head, 0, 3, graph.va(1));
        });
    }),
    ("a queue that a node fills", |graph, launcher| {
        changed(graph, launcher, |graph, [head, _]| {
            depends(head, 0, 0, graph.va(1));
        });
    }),
    ("a node that is a queue", |graph, launcher| {
        changed(graph, launcher, |_, [_, node]| {
            put(node, v04_00::QMD_TYPE, 0);
        });
    }),
    ("a node that waits for a latch", |graph, launcher| {
        changed(graph, launcher, |_, [_, node]| {
            put(node, v04_00::WAIT_ON_LATCH_VALID, 1);
        });
    }),
    ("a node with three releases", |graph, launcher| {
        changed(graph, launcher, |_, [_, node]| {
            for release in 0..3 {
                put(node, v04_00::RELEASE_ENABLE.nth(release), 1);
            }
        });
    }),
    ("a node that is overwritten", |graph, launcher| {
        launcher.submit(&graph.upload());
        // As CUDA's launches have a companion.
        let mut words = graph.launch_over(1);
        depends(&mut words, 0, DECREMENT, graph.va(7));
        launcher.submit(&words);
        launcher.submit(&graph.replay());
    }),
    ("another action", |graph, launcher| {
        launcher.submit(&graph.upload());
        launcher.submit(&call(graph.at, 2));
    }),
];

/// Each stops its channel. Another one goes on, and nothing runs without the mask.
fn refuses() -> Outcome {
    strict(|tenant| {
        let recorder = recorder()?;
        let mark = recorder.mark()?;
        let mut sibling = tenant.channel()?;
        for (number, (name, bad)) in (1u64..).zip(BAD) {
            let mut launcher = tenant.channel().during(name)?;
            tenant.forget_notification();
            // Each graph has addresses of its own: what the one before has stored is known.
            let graph = Graph {
                at: tenant.address + BYTES / 16 * number,
                count: 3,
            };
            bad(&graph, &mut launcher);
            eventually(name, &(REMOVAL, ERROR), || Ok(tenant.notified()))?;
            eventually(name, &number, refused)?;
            tenant.launches(&mut sibling).during(name)?;
            let channel = launcher.queue().channel();
            tenant.session.gpu().client().free(channel).during(name)?;
        }
        let mask = disabled(LIST)?;
        for launch in recorder.launches_since(mark)? {
            same("mask", &launch.mask_words()[..], &mask[..])?;
        }
        Ok(())
    })
}

/// Graphs that were uploaded before the switch run under it, and those that were uploaded under it
/// run without.
fn outlive() -> Outcome {
    let group = Group::new(NAME)?;
    set(NAME, STRICT, "0")?;
    let mut child = member(&group, LIST, |parent| {
        let tenant = Tenant::new(session(0)?)?;
        let mut launcher = tenant.channel()?;
        let graph = |number: u64| Graph {
            at: tenant.address + 0x2000 * number,
            count: 4,
        };
        let upload = |launcher: &mut Launcher, number| -> Result<(), Stop> {
            launcher.submit(&graph(number).upload());
            graph(number).runs(launcher)
        };
        upload(&mut launcher, 0)?;
        for number in [1, 2, 3] {
            parent.step()?;
            upload(&mut launcher, number)?;
            for number in 0..=number {
                graph(number).runs(&mut launcher).during(number)?;
            }
        }
        same("refused", refused()?, 0)
    })?;
    for value in ["default", "0", "1"] {
        child.next()?;
        set(NAME, STRICT, value)?;
    }
    child.go()?;
    child.finish()?;
    no_worker()
}
