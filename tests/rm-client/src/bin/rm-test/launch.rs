// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that launches run: submissions that were captured on an H200, unchanged and at their own
//! addresses.

use crate::gpus::session;
use crate::owned::{as_member, counts};
use crate::tree::{self, eventually};
use fakegpu_record::{Event, Recorder};
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::{Capture, Client, Engine, Gpu, Handle, Launcher, Mapping, Memory, Session};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

pub(crate) const TESTS: &[Test] = &[
    ("launch_of_every_kind", every_kind),
    ("launch_in_a_space_of_uvm", uvm),
    ("launch_through_owned_channels", owned),
];

macro_rules! captures {
    ($($name:literal),*) => {
        &[$(include_str!(concat!("../../../../fixtures/captures/", $name, ".pbcap"))),*]
    };
}

/// A captured program: its name, its submissions, and the grids of its launches in blocks, clusters
/// or gangs.
pub(crate) type Program = (&'static str, &'static [&'static str], &'static [[u32; 3]]);

/// The programs that the captures' README lists.
pub(crate) const PROGRAMS: &[Program] = &[
    ("one launch", captures!("one_launch"), &[[1000, 1, 1]]),
    (
        "three launches",
        captures!("three_launches_same_stream"),
        &[[1001, 1, 1], [1002, 1, 1], [1003, 1, 1]],
    ),
    (
        "two streams",
        captures!("two_streams_event"),
        &[[1100, 1, 1], [1101, 1, 1]],
    ),
    ("grid", captures!("grid3d"), &[[30, 20, 10]]),
    (
        "shared memory",
        captures!("dynamic_smem_64k"),
        &[[1200, 1, 1]],
    ),
    ("clusters", captures!("cluster2"), &[[650, 1, 1]]),
    ("cooperative", captures!("cooperative"), &[[1, 1, 1]]),
    (
        "programmatic dependent",
        captures!("pdl_pair"),
        &[[1400, 1, 1], [1401, 1, 1]],
    ),
    (
        "graph",
        captures!("graph4_upload", "graph4"),
        &[[100, 1, 1], [101, 1, 1], [102, 1, 1], [103, 1, 1]],
    ),
    (
        "graph that forks",
        captures!("graph_fork_upload", "graph_fork"),
        &[
            [10, 1, 1],
            [20, 1, 1],
            [40, 1, 1],
            [21, 1, 1],
            [41, 1, 1],
            [22, 1, 1],
            [42, 1, 1],
            [23, 1, 1],
            [43, 1, 1],
            [24, 1, 1],
            [44, 1, 1],
            [25, 1, 1],
            [45, 1, 1],
            [60, 1, 1],
        ],
    ),
    (
        "graph with two ends",
        captures!("graph_tails_upload", "graph_tails"),
        &[[10, 1, 1], [20, 1, 1], [40, 1, 1]],
    ),
    (
        "graph of one kernel",
        captures!("graph_single_first", "graph_single"),
        &[[64, 1, 1], [64, 1, 1]],
    ),
    (
        "graph of clusters",
        captures!("graph_clusters_first", "graph_clusters"),
        &[
            [1, 66, 1],
            [64, 1, 1],
            [1, 66, 1],
            [64, 1, 1],
            [1, 66, 1],
            [64, 1, 1],
            [1, 66, 1],
            [64, 1, 1],
        ],
    ),
    (
        "graph of chains",
        captures!("graph_chains_first", "graph_chains"),
        &[[64, 1, 1]; 40],
    ),
];

/// Opens the recorder of the first GPU.
pub(crate) fn recorder() -> Result<Recorder, Stop> {
    let index = usize::try_from(tree::index_of(0)?).map_err(failed)?;
    Recorder::open(index).during("recorder")
}

/// The channels of a captured program, by their numbers there.
pub(crate) type Channels = BTreeMap<u32, Launcher>;

/// A compute group in a space with all memory that the programs need.
pub(crate) struct Place {
    pub(crate) session: Session,
    pub(crate) recorder: Recorder,
    pub(crate) group: Handle,
    pub(crate) share: Handle,
    memory: Vec<Mapping>,
}

impl Place {
    pub(crate) fn new(session: Session) -> Result<Self, Stop> {
        let group = session.group(Engine::Compute)?;
        Self::below(session, group)
    }

    /// The same, for a context share of its own below a group.
    pub(crate) fn below(session: Session, group: Handle) -> Result<Self, Stop> {
        let mut blocks = BTreeSet::new();
        for (_, texts, _) in PROGRAMS {
            blocks.extend(Capture::parse(texts)?.blocks());
        }
        // CAST: 64 KiB.
        const BYTES: usize = Capture::BLOCK as usize;
        let mut mapped = Vec::new();
        for block in blocks {
            let memory = session.gpu().alloc_memory(Memory::Host, Capture::BLOCK)?;
            session
                .map_on_gpu_at(memory, block, Capture::BLOCK)
                .during(format!("{block:#x}"))?;
            mapped.push(session.gpu().map_memory(Memory::Host, memory, BYTES)?);
        }
        Ok(Self {
            recorder: recorder()?,
            share: session.context_share(group)?,
            group,
            session,
            memory: mapped,
        })
    }

    /// Clears the memory that the programs use, so that they run as for the first time.
    pub(crate) fn clear(&self) {
        for mapping in &self.memory {
            // CAST: 64 KiB.
            for offset in (0..Capture::BLOCK as usize).step_by(4) {
                mapping.u32(offset).store(0, Ordering::Relaxed);
            }
        }
    }

    /// Runs a captured program on channels of its own. Returns its launches.
    pub(crate) fn run(&self, texts: &[&str]) -> Result<Vec<Event>, Stop> {
        let capture = Capture::parse(texts)?;
        let mark = self.recorder.mark()?;
        let mut channels = self.channels(&capture)?;
        self.run_on(&mut channels, &capture, mark)
    }

    /// Makes the channels of a captured program.
    pub(crate) fn channels(&self, capture: &Capture) -> Result<Channels, Stop> {
        let mut channels = Channels::new();
        for channel in capture.channels() {
            let mut launcher = self
                .session
                .launcher(self.group, self.share)
                .during("channel")?;
            self.session.schedule_queue(launcher.queue())?;
            channels.insert(channel, launcher);
        }
        Ok(channels)
    }

    /// Runs a captured program on its channels. Returns the launches since a mark.
    pub(crate) fn run_on(
        &self,
        channels: &mut Channels,
        capture: &Capture,
        mark: u32,
    ) -> Result<Vec<Event>, Stop> {
        for (channel, words) in capture.segments() {
            let launcher = channels.get_mut(channel);
            launcher.ok_or_else(|| failed("no channel"))?.submit(words);
        }
        for launcher in channels.values_mut() {
            finish(launcher)?;
        }
        let mut launches = self.recorder.launches_since(mark)?;
        launches.retain(|launch| !launch.blocks.is_empty());
        Ok(launches)
    }

    /// Runs all captured programs and checks their launches, the disabled TPCs among them.
    pub(crate) fn check_all(&self, disabled: &[u32]) -> Outcome {
        for (name, texts, grids) in PROGRAMS {
            let launches = self.run(texts).during(name)?;
            same_grids(name, &launches, grids)?;
            for launch in launches {
                same(name, &launch.mask_words()[..], disabled)?;
                let took = launch.ns.saturating_sub(launch.began);
                same(&format!("{name} takes time"), took >= 10_000, true)?;
            }
        }
        Ok(())
    }
}

/// Fails unless the launches of a program have these grids. The order of branches is not defined.
pub(crate) fn same_grids(name: &str, launches: &[Event], grids: &[[u32; 3]]) -> Outcome {
    let mut found: Vec<_> = launches.iter().map(|launch| launch.grid).collect();
    let mut grids = grids.to_vec();
    if name == "graph that forks" {
        found.sort_unstable();
        grids.sort_unstable();
    }
    same(name, found, grids)
}

/// Waits until a channel has done all of its work.
pub(crate) fn finish(launcher: &mut Launcher) -> Outcome {
    let queue = launcher.queue();
    let payload = queue.payload(0) + 1;
    queue.submit_release(0, payload);
    eventually("the end", &payload, || Ok(queue.payload(0)))
}

/// The mask of a launch that may use all TPCs.
const NONE: &[u32] = &[0; 8];

fn every_kind() -> Outcome {
    Place::new(session(0)?)?.check_all(NONE)
}

fn uvm() -> Outcome {
    let client = Client::open()?;
    let session = Session::with_uvm(Gpu::open(&client, 0)?).during("session")?;
    Place::new(session)?.check_all(NONE)
}

/// The driver copies their entries, and they run as they do without it.
fn owned() -> Outcome {
    as_member(|_| {
        let place = Place::new(session(0)?)?;
        place.check_all(NONE)?;
        // One channel for each program, and one more for that with two streams.
        counts(PROGRAMS.len() as u64 + 1, 0)
    })
}
