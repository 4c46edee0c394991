// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that each block of random launches runs exactly once and in order.

use crate::gpu::{Gpu, Kind, Stamp};
use anyhow::{ensure, Context, Result};
use cudarc::driver::{sys, CudaGraph, CudaSlice, CudaStream};
use fastrand::Rng;
use serde::Serialize;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Counts of launches and of errors.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    launches: u64,
    blocks: u64,
    graphs: u64,
    /// Replays of graphs that were changed in place since the one before.
    updates: u64,
    clusters: u64,
    cooperative: u64,
    programmatic: u64,
    /// Blocks that had not run, or had run twice, when a dependent kernel checked.
    stale_or_repeated: u64,
    /// The same when the host checked, after it had synchronised the stream.
    wrong_at_host: u64,
}

/// Returns a random grid of one to three dimensions and at most some 8,000 blocks.
fn random_grid(random: &mut Rng) -> (u32, u32, u32) {
    match random.u64(..3) {
        0 => (random.u32(1..=8000), 1, 1),
        1 => (random.u32(1..=90), random.u32(1..=90), 1),
        _ => (random.u32(1..=20), random.u32(1..=20), random.u32(1..=20)),
    }
}

/// The kinds of launches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kinds {
    /// Whether to launch clusters, cooperative grids and programmatic dependents too.
    pub(crate) attributes: bool,
    /// Whether to launch some rounds as CUDA graphs.
    pub(crate) graphs: bool,
    /// Whether to launch once a round, and to stop at the first launch that is wrong. Nothing
    /// checks it on the GPU.
    pub(crate) one_by_one: bool,
}

/// A random grid with its repeated launches and checks.
struct Round {
    stamp: Stamp,
    kind: Kind,
    dependent: bool,
    repeats: u32,
    wrong: CudaSlice<u32>,
}

impl Round {
    fn random(stream: &Arc<CudaStream>, random: &mut Rng, kinds: Kinds) -> Result<Self> {
        let cycles = random.u64(..4000);
        let mut threads = 32 * random.u32(1..=8);
        let mut grid = random_grid(random);
        let mut kind = Kind::Plain;
        if kinds.attributes {
            match random.u64(..16) {
                0 => {
                    kind = Kind::Cluster;
                    grid.0 += grid.0 % 2;
                }
                1 => {
                    // Small enough to be resident on a few TPCs.
                    (kind, threads, grid) = (Kind::Cooperative, 64, (random.u32(1..=100), 1, 1));
                }
                _ => {}
            }
        }
        Ok(Self {
            stamp: Gpu::alloc_stamp(stream, grid, threads, cycles)?,
            kind,
            dependent: kinds.attributes && random.u64(..8) == 0,
            repeats: match kinds.one_by_one {
                true => 1,
                false => random.u32(1..=4),
            },
            wrong: stream.alloc_zeros::<u32>(1)?,
        })
    }

    /// Launches the stamp alone, and waits for its end.
    fn launch_alone(&mut self, gpu: &Gpu, stream: &Arc<CudaStream>) -> Result<()> {
        gpu.launch_stamp_as(self.kind, stream, &mut self.stamp)?;
        Ok(stream.synchronize()?)
    }

    /// Launches the stamp and then its check that each block has run `expected` times.
    fn launch(&mut self, gpu: &Gpu, stream: &Arc<CudaStream>, expected: u32) -> Result<()> {
        gpu.launch_stamp_as(self.kind, stream, &mut self.stamp)?;
        if self.dependent {
            return gpu.launch_check_dependent(stream, &self.stamp, expected, &mut self.wrong);
        }
        gpu.launch_check(stream, &self.stamp, expected, &mut self.wrong)
    }

    /// Captures all repeats as one graph.
    fn capture(&mut self, gpu: &Gpu, stream: &Arc<CudaStream>) -> Result<CudaGraph> {
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        for expected in 1..=self.repeats {
            gpu.launch_stamp(stream, &mut self.stamp)?;
            gpu.launch_check(stream, &self.stamp, expected, &mut self.wrong)?;
        }
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        stream.end_capture(flags)?.context("nothing was captured")
    }

    /// Launches all repeats as one graph, and then others, for which it is changed in place.
    /// Returns those, and what must live until the stream is idle.
    fn launch_graph(
        &mut self,
        gpu: &Gpu,
        stream: &Arc<CudaStream>,
        random: &mut Rng,
        kinds: Kinds,
    ) -> Result<(Vec<Self>, Vec<CudaGraph>)> {
        let graph = self.capture(gpu, stream)?;
        graph.launch()?;
        let (mut others, mut graphs) = (Vec::new(), vec![graph]);
        for _ in 0..random.u32(1..=3) {
            let mut other = Self::random(stream, random, kinds)?;
            // The nodes of both are the same, but for grids and parameters.
            other.repeats = self.repeats;
            let captured = other.capture(gpu, stream)?;
            if update(&graphs[0], &captured)? {
                graphs[0].launch()?;
                others.push(other);
            }
            graphs.push(captured);
        }
        Ok((others, graphs))
    }

    /// Checks, on an idle stream, that each block has run as often as it was launched. The stamp
    /// had so many `kernels` with it.
    fn check(&self, stream: &Arc<CudaStream>, kernels: u64, report: &mut Report) -> Result<()> {
        let ran = stream.clone_dtoh(&self.stamp.ran)?;
        let wrong = stream.clone_dtoh(&self.wrong)?;
        let repeats = self.repeats;
        report.launches += kernels * u64::from(repeats);
        report.blocks += u64::from(self.stamp.blocks()) * u64::from(repeats);
        report.stale_or_repeated += wrong.iter().map(|&w| u64::from(w)).sum::<u64>();
        // CAST: a count of blocks.
        report.wrong_at_host += ran.iter().filter(|&&n| n != repeats).count() as u64;
        Ok(())
    }
}

/// Changes an instantiated graph to what another one of the same nodes does. Returns false if
/// libcuda refuses that, as for nodes of other kinds.
fn update(graph: &CudaGraph, other: &CudaGraph) -> Result<bool> {
    let mut info = MaybeUninit::<sys::CUgraphExecUpdateResultInfo>::uninit();
    // SAFETY: Both are graphs of this context, and live; libcuda writes to `info` alone.
    let updated = unsafe {
        sys::cuGraphExecUpdate_v2(graph.cu_graph_exec(), other.cu_graph(), info.as_mut_ptr())
    };
    match updated {
        sys::CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE => Ok(false),
        updated => Ok(updated.result().map(|()| true)?),
    }
}

/// Runs [`run`] in a thread for each seed, distributed over `gpus`. Returns the sum of the reports.
pub(crate) fn run_all(
    gpus: &[&Gpu],
    seeds: std::ops::Range<u64>,
    rounds: u32,
    streams: usize,
    kinds: Kinds,
) -> Result<Report> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = seeds
            .zip(gpus.iter().cycle())
            .map(|(seed, gpu)| scope.spawn(move || run(gpu, seed, rounds, streams, kinds)))
            .collect();
        let mut sum = Report::default();
        for thread in threads {
            sum.add(
                &thread
                    .join()
                    .expect("a thread that launches does not panic")?,
            );
        }
        Ok(sum)
    })
}

/// Launches `rounds` random grids on `streams` streams and checks each.
fn run(gpu: &Gpu, seed: u64, rounds: u32, streams: usize, kinds: Kinds) -> Result<Report> {
    ensure!(streams > 0, "at least one stream is needed");
    let mut random = Rng::with_seed(seed);
    let streams = (0..streams)
        .map(|_| gpu.context.new_stream())
        .collect::<Result<Vec<_>, _>>()?;
    let mut report = Report::default();
    for number in 0..rounds {
        // CAST: a remainder of a count of streams.
        let stream = &streams[number as usize % streams.len()];
        let mut round = Round::random(stream, &mut random, kinds)?;
        let repeats = round.repeats;
        if kinds.one_by_one {
            round.launch_alone(gpu, stream)?;
            round.check(stream, 1, &mut report)?;
            match report.exact() {
                true => continue,
                false => break,
            }
        }
        let (others, graphs) = if kinds.graphs && random.u64(..8) == 0 {
            report.graphs += 1;
            round.launch_graph(gpu, stream, &mut random, kinds)?
        } else {
            for expected in 1..=repeats {
                round.launch(gpu, stream, expected)?;
            }
            report.count(&round);
            Default::default()
        };
        stream.synchronize()?;
        drop(graphs);
        report.updates += u64::try_from(others.len())?;
        round.check(stream, 2, &mut report)?;
        for other in &others {
            other.check(stream, 2, &mut report)?;
        }
    }
    Ok(report)
}

impl Report {
    fn add(&mut self, other: &Self) {
        self.launches += other.launches;
        self.blocks += other.blocks;
        self.graphs += other.graphs;
        self.updates += other.updates;
        self.clusters += other.clusters;
        self.cooperative += other.cooperative;
        self.programmatic += other.programmatic;
        self.stale_or_repeated += other.stale_or_repeated;
        self.wrong_at_host += other.wrong_at_host;
    }

    fn count(&mut self, round: &Round) {
        let repeats = u64::from(round.repeats);
        match round.kind {
            Kind::Plain => {}
            Kind::Cluster => self.clusters += repeats,
            Kind::Cooperative => self.cooperative += repeats,
        }
        if round.dependent {
            self.programmatic += repeats;
        }
    }

    /// Returns whether every block ran exactly once in each launch, and in order.
    pub(crate) fn exact(&self) -> bool {
        self.stale_or_repeated == 0 && self.wrong_at_host == 0
    }
}
