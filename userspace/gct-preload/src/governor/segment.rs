// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Processes one segment of the tenant: reads it once, and may edit or replace it.

use super::{Governor, Next, Seal};
use crate::channel::{Stream, SubmitCtx};
use crate::memory::Run;
use crate::stats::STATS;
use core::sync::atomic::Ordering;
use gct_core::lane::in_flight::{Fence, Reach, Submission};
use gct_core::lane::split::{Atoms, Emission, Splitting, ATOMS_MAX};
use gct_core::lane::words::Words;
use gct_core::policy::pace::{self, Split, Work};
use gct_core::policy::predict::{self, Kernel};
use gct_core::submit::gpfifo::{Entry, Segment};
use gct_core::submit::graph::{self, Memory};
use gct_core::submit::launch::{kind_of, Kind, Launch};
use gct_core::submit::occupancy;
use gct_core::submit::rewrite::{self, Order};
use gct_core::submit::stats::Reason;
use gct_core::submit::tracker::{QmdCall, Source};
use gct_core::units::{Blocks, Ns};

/// The use of CUDA graphs by a segment.
struct Graphs {
    /// It stores nodes.
    stored: bool,
    /// It replays a graph, or launches a QMD that is not known.
    replayed: bool,
}

impl Governor {
    /// Processes the segment of one ring entry, and may edit or replace it.
    pub(crate) fn process_segment(
        &mut self,
        stream: &mut Stream,
        entry: u64,
        ctx: &mut SubmitCtx<'_>,
    ) -> Next {
        let as_it_is = Next::Whole {
            entry,
            submission: None,
            seal: None,
        };
        let Entry::Segment(segment) = stream.fetch.decode(entry) else {
            return as_it_is;
        };
        let Some(shared) = self.read(&segment, ctx) else {
            self.forget_graphs();
            return as_it_is;
        };
        // CAST: checked when the segment was read.
        let count = segment.words as usize;
        let words = self.words.get_mut(..count).unwrap_or_default();
        let scan = stream
            .tracker
            .scan(words, &mut stream.found, &mut self.counters);
        if scan.refused.is_some() || scan.missed > 0 {
            self.forget_graphs();
        }
        if scan.found == 0 {
            return as_it_is;
        }
        let found = stream.found.get(..scan.found).unwrap_or(&[]);
        let graphs = self.learn_graphs(count, found);
        if graphs.stored {
            self.store(ctx, &shared, count, found, |_| true);
        }
        if !(self.acts() || self.tracks_ends() || graphs.replayed) {
            return as_it_is;
        }
        let seal = Seal {
            segment,
            found: scan.found,
            read: self.reads,
            round: self.rounds,
            at: shared,
            since: ctx.now,
            holds: pace::unknown_is_long(Ns(0)),
            stores: graphs.stored,
            replays: graphs.replayed,
        };
        let last = self.last_launch(count, found, ctx);
        let Some((index, launch, submission)) = last.filter(|_| !graphs.replayed) else {
            // The end of a replay frees the frame with its masks.
            let tracked = self.tracks_ends() || graphs.replayed;
            return Next::Whole {
                entry,
                submission: tracked
                    .then(|| self.opaque_submission(stream, ctx))
                    .flatten(),
                seal: Some(seal),
            };
        };
        if let Some(atoms) = self.split(index, &seal, &launch, submission, stream, ctx) {
            return Next::Atoms(atoms);
        }
        Next::Whole {
            entry,
            submission: Some(submission),
            seal: Some(Seal {
                // It may start as soon as the work before it has ended.
                holds: pace::unknown_is_long(submission.predicted),
                ..seal
            }),
        }
    }

    /// Applies the work left for the release of a segment. Returns the entry to publish in place of
    /// the tenant's, if there is one.
    pub(super) fn seal(
        &mut self,
        seal: &Seal,
        submission: Option<Submission<Run>>,
        stream: &Stream,
        ctx: &mut SubmitCtx<'_>,
    ) -> Option<u64> {
        if self.mask.is_none() && !seal.stores && !seal.replays {
            return None;
        }
        // CAST: checked when the segment was read.
        let count = seal.segment.words as usize;
        let shared = if (seal.read, seal.round) == (self.reads, self.rounds) {
            Some(seal.at)
        } else {
            // The segment has waited, so its words are read again.
            self.read(&seal.segment, ctx)
        }?;
        let found = stream.found.get(..seal.found).unwrap_or(&[]);
        self.mask(count, found);
        let patched = match seal.replays {
            true => self.patch(seal.segment, found, submission, stream, ctx),
            false => None,
        };
        if seal.stores {
            self.note_masks(count, found);
        }
        // A launch without a grid was not masked.
        self.store(ctx, &shared, count, found, |kind| kind != Some(Kind::Null));
        patched
    }

    /// Returns whether a replay's nodes hold masks other than the present one, so that it will
    /// write them.
    pub(super) fn changes(&mut self, seal: &Seal, stream: &Stream) -> bool {
        let found = stream.found.get(..seal.found).unwrap_or(&[]);
        let mut graphs = Memory::new(&mut self.nodes, &mut self.replays);
        graphs.hold_others(found, self.mask.as_ref())
    }

    /// Copies a segment's words. Returns `None` if they cannot be read.
    ///
    /// The words are the tenant's, and its other threads may write there. So they are read once,
    /// and the core decides on the copy.
    fn read(&mut self, segment: &Segment, ctx: &SubmitCtx<'_>) -> Option<Run> {
        // CAST: a segment has fewer than 2^21 words.
        let count = segment.words as usize;
        let Some(words) = self.words.get_mut(..count) else {
            self.counters.keep(Reason::SegmentTooLong);
            return None;
        };
        let shared = ctx.memory.find(segment.va, count);
        self.reads = self.reads.wrapping_add(1);
        let shared = shared.filter(|shared| ctx.memory.read(shared, words));
        if shared.is_none() {
            STATS.unreadable.fetch_add(1, Ordering::Relaxed);
        }
        shared
    }

    /// Remembers the graph nodes that a segment stores, and arms them so that their masks can be
    /// changed later.
    fn learn_graphs(&mut self, count: usize, found: &[QmdCall]) -> Graphs {
        let words = self.words.get_mut(..count).unwrap_or_default();
        let nulls = found.iter().filter(|found| found.is_null(words)).count();
        // CAST: widening.
        self.counters.nulls += nulls as u64;
        let mut graphs = Memory::new(&mut self.nodes, &mut self.replays);
        let stored = graphs.learn(words, found, &mut self.counters) > 0;
        if stored {
            self.knows_nodes = true;
            graph::arm(words, found);
        }
        let replays = |found: &QmdCall| found.source == Source::Elsewhere && found.is_launch();
        Graphs {
            stored,
            replayed: found.iter().any(replays),
        }
    }

    /// Records the masks with which nodes are stored.
    fn note_masks(&mut self, count: usize, found: &[QmdCall]) {
        let words = self.words.get(..count).unwrap_or(&[]);
        Memory::new(&mut self.nodes, &mut self.replays).note_masks(words, found);
    }

    /// Forgets all QMDs, because a segment that was not read may have stored any.
    fn forget_graphs(&mut self) {
        if core::mem::take(&mut self.knows_nodes) {
            Memory::new(&mut self.nodes, &mut self.replays).forget(0, u64::MAX);
        }
    }

    /// Returns the segment's last launch whose release is a plain word that can be observed.
    fn last_launch(
        &self,
        count: usize,
        found: &[QmdCall],
        ctx: &SubmitCtx<'_>,
    ) -> Option<(usize, Launch, Submission<Run>)> {
        if !self.tracks_ends() && self.limits.atoms <= 1 {
            return None;
        }
        let words = self.words.get(..count)?;
        let (index, launch) = found
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, found)| found.is_launch())
            .find_map(|(index, found)| {
                let launch = found.launch(words)?;
                (launch.blocks() > 0).then_some((index, launch))
            })?;
        let mut releases = launch.effects.releases.iter().flatten();
        let release = releases.find(|r| r.words == 1 && r.reduction.is_none())?;
        // CAST: a release of one word carries 32 bits.
        let fence = fence_at(ctx, release.va, release.payload as u32)?;
        let kernel = Kernel {
            program: launch.program,
            grid: launch.grid_in_blocks(),
            block: launch.block,
        };
        let tpcs = self.tpcs();
        let submission = Submission {
            fence,
            kernel,
            blocks: launch.blocks(),
            tpcs,
            predicted: self.predict(&kernel, tpcs).unwrap_or(Ns(0)),
        };
        Some((index, launch, submission))
    }

    /// Writes a segment with masks for the graphs that it replays into a frame of scratch. Returns
    /// the entry for it, or `None` if the tenant's is to be published.
    fn patch(
        &mut self,
        segment: Segment,
        found: &[QmdCall],
        submission: Option<Submission<Run>>,
        stream: &Stream,
        ctx: &mut SubmitCtx<'_>,
    ) -> Option<u64> {
        // The end of the submission frees the frame.
        let fence = submission.map(|submission| submission.fence);
        let scratch = ctx.scratch.as_deref_mut();
        let reachable = fence.is_some() && stream.fetch.base() == 0;
        let room = scratch.filter(|_| reachable);
        let room = room.and_then(|scratch| Some((scratch.frame(ctx.memory)?, scratch)));
        let most = room.as_ref().map_or(0, |(frame, _)| frame.words());
        let out = self.output.get_mut(..most).unwrap_or_default();
        // CAST: checked when the segment was read.
        let words = self.words.get(..segment.words as usize)?;
        let mut graphs = Memory::new(&mut self.nodes, &mut self.replays);
        let mask = self.mask.as_ref();
        let patched = graphs.patch_replays(words, found, mask, out, &mut self.counters);
        let out = out.get(..patched.words).filter(|out| !out.is_empty())?;
        let (frame, scratch) = room?;
        let written = frame.write(ctx.memory, 0, out);
        if !written || !scratch.hold(ctx.memory, &frame, fence?, None) {
            // The nodes do not hold the masks recorded for them.
            self.forget_graphs();
            return None;
        }
        let segment = Segment {
            va: frame.gpu_va,
            // CAST: within the frame.
            words: patched.words as u32,
            ..segment
        };
        Some(Entry::Segment(segment).encode())
    }

    /// Returns the submission for a segment whose launches cannot be read, as with a graph's
    /// replay. Its fence is the segment's last release.
    fn opaque_submission(&self, stream: &Stream, ctx: &SubmitCtx<'_>) -> Option<Submission<Run>> {
        let release = stream.tracker.last_release()?;
        // CAST: as wide as the word that it is compared with.
        let fence = fence_at(ctx, release.va, release.payload as u32)?;
        let kernel = Kernel {
            program: 0,
            grid: [0; 3],
            block: [0; 3],
        };
        Some(Submission {
            fence,
            kernel,
            blocks: 0,
            tpcs: 0,
            predicted: Ns(0),
        })
    }

    fn predict(&self, kernel: &Kernel, tpcs: u64) -> Option<Ns> {
        predict::predict(&self.kernels, kernel, tpcs)
    }

    /// Splits a launch if the limits ask for it.
    fn split(
        &mut self,
        index: usize,
        seal: &Seal,
        launch: &Launch,
        submission: Submission<Run>,
        stream: &mut Stream,
        ctx: &mut SubmitCtx<'_>,
    ) -> Option<Atoms<Run>> {
        let work = Work {
            blocks: Blocks(submission.blocks),
            wave: Blocks(occupancy::wave(launch, submission.tpcs)),
            predicted: self.predict(&submission.kernel, submission.tpcs),
        };
        let split = match self.limits.atom_ns {
            0 => Split {
                atoms: self.limits.atoms.min(ATOMS_MAX),
                in_flight: 0,
                run_ahead: 0,
            },
            target => pace::split(&work, Ns(target), ATOMS_MAX),
        };
        if split.atoms <= 1 || stream.fetch.base() != 0 {
            return None;
        }
        let segment = seal.segment;
        let found = stream.found.get(..seal.found)?;
        // CAST: checked by the caller.
        let words = self.words.get(..segment.words as usize)?;
        // Other launches of the segment get their mask when the whole segment is released.
        let grids = found
            .iter()
            .filter(|found| found.version.is_some() && !found.is_null(words));
        if self.acts_on_masks() && grids.count() > 1 {
            return None;
        }
        let narrowed = self.is_narrowed(found.get(index)?, words);
        self.splits = self.splits.wrapping_add(1);
        let rest = stream.tracker.last_release();
        // CAST: as wide as the word that it is compared with.
        let rest = rest.and_then(|rest| fence_at(ctx, rest.va, rest.payload as u32));
        let splitting = Splitting {
            words,
            found,
            index,
            split,
            segment,
            launch: submission,
            rest,
            number: self.splits,
        };
        let mut crowded = 0;
        let to = Emission {
            orders: &mut self.orders,
            output: &mut self.output,
            counters: &mut self.counters,
            crowded: &mut crowded,
        };
        let scratch = ctx.scratch.as_deref_mut()?;
        let atoms = splitting.emit(&mut stream.room, scratch, ctx.memory, to);
        STATS.crowded.fetch_add(crowded, Ordering::Relaxed);
        self.counters.narrowed += u64::from(narrowed && atoms.is_some());
        atoms
    }

    /// Returns whether launches may get a mask.
    fn acts_on_masks(&self) -> bool {
        self.limits.tpcs.is_some() || self.peers.is_some()
    }

    /// Applies the mask to the launches of a segment, in the copy.
    fn mask(&mut self, count: usize, found: &[QmdCall]) {
        let order = Order {
            mask: self.mask.as_ref(),
            atoms: 0,
        };
        if order.mask.is_none() {
            return;
        }
        let words = self.words.get(..count).unwrap_or_default();
        let narrowed = found.iter().filter(|found| self.is_narrowed(found, words));
        // CAST: widening.
        self.counters.narrowed += narrowed.count() as u64;
        let words = self.words.get_mut(..count).unwrap_or_default();
        for found in found.iter().filter(|found| found.version.is_some()) {
            // A launch without a grid has nothing to mask.
            if !found.is_null(words) {
                let one = core::slice::from_ref(found);
                rewrite::in_place(words, one, &[order], &mut self.counters);
            }
        }
    }

    /// Returns whether a launch may never end on its granted TPCs although it would on all.
    fn is_narrowed(&self, found: &QmdCall, words: &[u32]) -> bool {
        let (Some(qmd), Some(version)) = (found.qmd(words), found.version) else {
            return false;
        };
        let (granted, whole) = (self.granted.count(), self.gpu.existing().count());
        // CAST: a mask has 256 TPCs at most.
        occupancy::is_narrowed(qmd, version, granted as u16, whole as u16)
    }

    /// Stores the changed words of QMDs of some kinds into the tenant's segment.
    fn store(
        &self,
        ctx: &SubmitCtx<'_>,
        shared: &Run,
        count: usize,
        found: &[QmdCall],
        kinds: impl Fn(Option<Kind>) -> bool,
    ) {
        let words = self.words.get(..count).unwrap_or(&[]);
        for found in found {
            let Some(qmd) = found.qmd(words) else {
                continue;
            };
            if !kinds(found.version.and_then(|version| kind_of(qmd, version))) {
                continue;
            }
            // CAST: an index of the segment.
            for (index, word) in (found.at as usize..).zip(qmd) {
                if ctx.memory.load(shared, index) != Some(*word) {
                    ctx.memory.store(shared, index, *word);
                }
            }
        }
    }
}

/// Returns the fence that a word of the tenant reaches `number`. Returns `None` if this process
/// does not map the word, or it is reached already.
fn fence_at(ctx: &SubmitCtx<'_>, va: u64, number: u32) -> Option<Fence<Run>> {
    let fence = Fence {
        view: ctx.memory.find(va, 1)?,
        index: 0,
        number,
        reach: Reach::AtLeast,
    };
    (!fence.is_reached(ctx.memory)).then_some(fence)
}
