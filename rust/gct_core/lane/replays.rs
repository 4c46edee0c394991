// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Releases the launches of a segment one by one, from slots that the GPU may only read, where a
//! CUDA graph may not start its nodes itself.
//!
//! ```text
//! entries = the tenant's words up to the end of a call | launch 0 of it | launch 1 | ..
//!           | its words up to the end of the next call | .. | the words behind the last call
//! slot    = QMD of a launch | the words that schedule it
//! ```
//!
//! The tenant's words are a copy in which the calls do nothing. A launch takes a slot as any other
//! that stays whole, and gets the mask of the moment at which it is released. It is admitted as any
//! other, too, and its end is tracked by the word that frees its slot.
//!
//! The functions by which a lane uses a list are cold: without graphs none costs it an instruction.

use super::governor::{Governor, Peers};
use super::in_flight::Submission;
use super::whole::WholeSlots;
use super::words::{Storage, Words};
use super::work::{visited, Round, Stream};
use crate::policy::predict::Kernel;
use crate::submit::gpfifo::{Entry, Segment};
use crate::submit::graph::Step;
use crate::submit::join::Qmd;
use crate::submit::launch::Launch;
use crate::submit::limits::{SLOT_WORDS, STEPS};
use crate::submit::mask;
use crate::submit::qmd::Version;
use crate::submit::reason::Reason;
use crate::submit::rewrite::{detached, whole};
use crate::submit::tracker::{QmdCall, Source};
use crate::units::{Ns, Sat, Va};
use core::num::Wrapping;

/// The most launches of one segment that are listed.
pub const STEPS_MAX: usize = STEPS;

/// A segment whose launches are listed.
#[derive(Debug)]
pub struct Replays {
    /// The copy, without its calls.
    segment: Segment,
    /// The number of steps in the stream, and of those that were released.
    steps: usize,
    next: usize,
    /// The words before were released.
    at: u32,
}

/// How long, and for how many looks at least, a replay waits whose graph is not known. Another
/// channel of the tenant's may upload it: it has rung before, and is served later.
const UPLOAD_WAIT: Ns = Ns(100_000_000);
const UPLOAD_LOOKS: u32 = 100;

/// A segment that replays a graph which is not known yet.
#[derive(Debug)]
pub struct Unlisted {
    /// The copy.
    segment: Segment,
    /// The number of its calls in the stream.
    found: usize,
    since: Ns,
    looks: u32,
}

/// A segment with CUDA graphs whose launches run one by one.
#[derive(Debug)]
pub enum List {
    /// They are known.
    Known(Replays),
    /// They are not yet.
    Unknown(Unlisted),
}

/// What became of the launches of a segment.
enum Listed {
    /// It uses no graph.
    Unused,
    /// A graph that it replays is not known.
    Unknown,
    /// So many are on the list.
    Steps(usize),
}

/// What the next entry executes.
enum Part {
    /// Words of the tenant, up to a position.
    Words(u32),
    /// A step.
    Step(Step),
}

/// What is known of a launch before it is released.
struct Upcoming {
    kernel: Kernel,
    blocks: u64,
    /// The predicted duration; 0 if it is unknown.
    predicted: Ns,
    /// The TPCs that hold all of its blocks at once; 0 if no number does.
    resident: u32,
}

/// Address and number of the words that schedule a launch, and its submission if its end is
/// tracked.
type Launched<V> = (u64, u32, Option<Submission<V>>);

impl Replays {
    fn part<S: Storage, V>(&self, stream: &Stream<S, V>) -> Part {
        let steps = stream.steps.as_deref().unwrap_or_default();
        let steps = steps.get(..self.steps).unwrap_or_default();
        let Some(step) = steps.get(self.next) else {
            return Part::Words(self.segment.words);
        };
        let call = stream.found.get(usize::from(step.call));
        match call.map_or(self.segment.words, |call| call.call_end) {
            end if end > self.at => Part::Words(end),
            _ => Part::Step(*step),
        }
    }

    /// Returns whether further entries follow the next one.
    fn is_listed(&self) -> bool {
        self.steps > self.next
    }
}

impl List {
    /// Returns whether launches wait for their release.
    pub(super) fn is_split(&self) -> bool {
        match self {
            Self::Known(replays) => replays.is_listed(),
            Self::Unknown(_) => false,
        }
    }

    /// Returns whether the next entry is known, and finds a slot if it needs one.
    pub(super) fn is_ready<S: Storage, V: Copy + 'static>(
        &self,
        stream: &Stream<S, V>,
        slots: Option<&mut WholeSlots<V>>,
        memory: &impl Words<View = V>,
    ) -> bool {
        let Self::Known(replays) = self else {
            return false;
        };
        match replays.part(stream) {
            Part::Words(_) => true,
            Part::Step(_) => slots.is_some_and(|slots| slots.has_slot(memory)),
        }
    }
}

impl<S: Storage, P: Peers> Governor<S, P> {
    /// Lists the launches of a copied segment that uses CUDA graphs, and takes its calls out.
    /// Returns `None` if it uses none. Without a strict limit only graphs count whose nodes the
    /// scheduler does not have.
    ///
    /// # Errors
    ///
    /// The [`Reason`] why its launches cannot be listed. The segment is to be refused then: part of it
    /// may be changed.
    #[cold]
    #[inline(never)]
    pub(super) fn list<W: Words>(
        &mut self,
        stream: &mut Stream<S, W::View>,
        segment: &Segment,
        found: usize,
        round: &mut Round<'_, S, W>,
    ) -> Result<Option<List>, Reason> {
        let mut visits = 0;
        let words = round.work.of(segment);
        let listed = self.unroll(stream, found, words, &mut visits);
        visited(visits, &mut round.words);
        let steps = match listed? {
            Listed::Unused => return Ok(None),
            Listed::Unknown => {
                return Ok(Some(List::Unknown(Unlisted {
                    segment: *segment,
                    found,
                    since: round.now,
                    looks: 0,
                })));
            }
            Listed::Steps(steps) => steps,
        };
        let calls = stream.found.get_mut(..found).unwrap_or_default();
        detached::take_out(round.work.of(segment), calls)?;
        Ok(Some(List::Known(Replays {
            segment: *segment,
            steps,
            next: 0,
            at: 0,
        })))
    }

    /// Lists the launches of a segment whose graph was not known, once it is, and refuses it in the
    /// end. Returns its entry if the limit is gone.
    pub(super) fn list_again<W: Words>(
        &mut self,
        list: &mut List,
        stream: &mut Stream<S, W::View>,
        round: &mut Round<'_, S, W>,
    ) -> Option<u64> {
        let List::Unknown(unlisted) = list else {
            return None;
        };
        let Unlisted {
            segment,
            found,
            since,
            ..
        } = *unlisted;
        if self.lacks_nodes(found) {
            return None;
        }
        unlisted.looks = unlisted.looks.saturating_add(1);
        let calls = stream.found.get(..found).unwrap_or_default();
        let graphs = self.nodes.memory();
        let listed = match graphs.knows_heads(calls) {
            true => match self.read(&segment, round) {
                Some(_) => self.list(stream, &segment, found, round),
                None => Err(Reason::Unreadable),
            },
            false if !self.limits().strict => Ok(None),
            false if unlisted.looks < UPLOAD_LOOKS || round.now - since < UPLOAD_WAIT => {
                return None
            }
            false => Err(Reason::NotHere),
        };
        match listed {
            Ok(Some(known)) => {
                self.write_copy(&segment, round);
                *list = known;
                None
            }
            Ok(None) => Some(Entry::Segment(segment).encode()),
            Err(reason) => {
                self.counters.keep(reason);
                self.refuse();
                None
            }
        }
    }

    /// Fills the stream's list. `visits` counts the nodes that were looked at.
    fn unroll<V>(
        &mut self,
        stream: &mut Stream<S, V>,
        found: usize,
        words: &[u32],
        visits: &mut usize,
    ) -> Result<Listed, Reason> {
        let strict = self.limits().strict;
        let calls = stream.found.get(..found).unwrap_or_default();
        let mut graphs = self.nodes.memory();
        let uses = match strict {
            true => graphs.concerns(words, calls),
            false => graphs.runs_silenced(calls, visits),
        };
        if self.knows_nodes {
            graphs.forget_overwritten(words, calls);
        }
        if !uses {
            return Ok(Listed::Unused);
        }
        self.knows_nodes = true;
        // Nodes are known by address: those of another address space are others.
        if *self.space.get_or_insert(stream.space) != stream.space {
            return Err(Reason::Ambiguous);
        }
        if !graphs.knows_heads(calls) {
            return Ok(Listed::Unknown);
        }
        graphs.keep_launches(words, calls, &mut self.counters);
        // A QMD that a later upload of the segment replaces is not on the list.
        graphs.forget_overwritten(words, calls);
        let steps = stream.steps.as_deref_mut().unwrap_or_default();
        let mut listed = 0;
        let steps = graphs.unroll(calls, steps, stream.number, &mut listed);
        *visits = (Wrapping(*visits) + Wrapping(listed)).0;
        let steps = steps?;
        let replays = calls.iter().filter(|call| call.source == Source::Elsewhere);
        replays.for_each(|_| self.counters.replay(true));
        self.silences = true;
        graphs.silence(calls);
        Ok(Listed::Steps(steps))
    }

    /// Returns of the launch that the next entry of a list is, if it is one, the predicted duration,
    /// and how many TPCs hold all of its blocks at once; 0 if no number does.
    #[cold]
    #[inline(never)]
    pub(super) fn look_ahead<V>(
        &mut self,
        list: &List,
        stream: &Stream<S, V>,
    ) -> Option<(Ns, u32)> {
        let List::Known(replays) = list else {
            return None;
        };
        let Part::Step(step) = replays.part(stream) else {
            return None;
        };
        // What cannot be launched is refused at its release.
        let (qmd, resident) = self.node(&step).ok()?;
        let upcoming = self.describe(stream, &qmd, resident)?;
        Some((upcoming.predicted, upcoming.resident))
    }

    fn node(&mut self, step: &Step) -> Result<(Qmd, u32), Reason> {
        let graphs = self.nodes.memory();
        graphs.step(step)
    }

    fn describe<V>(&self, stream: &Stream<S, V>, qmd: &Qmd, resident: u32) -> Option<Upcoming> {
        let launch = Launch::read(qmd, Version::V04_00)?;
        let kernel = Kernel::of(&launch);
        let predicted = self.predict((&kernel, stream.path), self.tpcs());
        let resident = Some(resident).filter(|resident| *resident <= self.me.gpu_count);
        Some(Upcoming {
            kernel,
            blocks: launch.blocks(),
            predicted: predicted.unwrap_or(Ns(0)),
            resident: resident.unwrap_or(0),
        })
    }

    /// Releases the next entry of a segment whose launches are listed. Returns it, its submission,
    /// and whether it is the last.
    #[cold]
    #[inline(never)]
    pub(super) fn release_listed<W: Words>(
        &mut self,
        stream: &mut Stream<S, W::View>,
        list: &mut List,
        round: &mut Round<'_, S, W>,
    ) -> (u64, Option<Submission<W::View>>, bool) {
        if self.sizes() {
            self.record_tide(true);
        }
        let List::Known(replays) = list else {
            self.refuse();
            return (0, None, true);
        };
        let mut submission = None;
        let segment = match replays.part(stream) {
            Part::Words(to) => {
                let from = core::mem::replace(&mut replays.at, to);
                Segment {
                    va: (Va(replays.segment.va) + 4 * u64::from(from)).get(),
                    words: (Sat(to) - Sat(from)).0,
                    ..replays.segment
                }
            }
            Part::Step(step) => {
                replays.next = (Wrapping(replays.next) + Wrapping(1)).0;
                // CAST: a small constant.
                round.words = round.words.saturating_sub(SLOT_WORDS as u32);
                let call = stream.found.get(usize::from(step.call)).copied();
                let launched = call
                    .ok_or(Reason::NotHere)
                    .and_then(|call| self.launch(&step, &call, stream, round));
                let (va, words) = match launched {
                    Ok((va, words, tracked)) => {
                        submission = tracked;
                        (va, words)
                    }
                    Err(reason) => {
                        self.counters.keep(reason);
                        self.refuse();
                        return (0, None, true);
                    }
                };
                Segment {
                    va,
                    words,
                    ..replays.segment
                }
            }
        };
        let last = !replays.is_listed() && replays.at >= replays.segment.words;
        (Entry::Segment(segment).encode(), submission, last)
    }

    /// Writes a launch to the next slot.
    ///
    /// # Errors
    ///
    /// The [`Reason`] why it cannot be bound.
    fn launch<W: Words>(
        &mut self,
        step: &Step,
        call: &QmdCall,
        stream: &mut Stream<S, W::View>,
        round: &mut Round<'_, S, W>,
    ) -> Result<Launched<W::View>, Reason> {
        let (mut qmd, resident) = self.node(step)?;
        let upcoming = match self.tracks_ends() {
            true => self.describe(stream, &qmd, resident),
            false => None,
        };
        if let Some(mask) = &self.mask {
            let masked = mask::apply(&mut qmd, Version::V04_00, mask);
            let narrows = self.narrows();
            match masked {
                // The caller counts it.
                Err(reason) if narrows => return Err(reason),
                masked => self.counters.mask(masked),
            }
        }
        let slots = round.slots.as_deref_mut().ok_or(Reason::NotHere)?;
        if !slots.keep_to(call.subchannel) {
            return Err(Reason::Registers);
        }
        let mut words = [0; SLOT_WORDS];
        let (slot, fence) = (slots.slot(0), slots.fence());
        let (at, count) = whole::fill(&qmd, &slot, call, step.waits, &mut words);
        if !slots.take::<SLOT_WORDS, _>(round.memory, &words, 1) {
            return Err(Reason::Unreadable);
        }
        let submission = upcoming.map(|upcoming| Submission {
            kernel: upcoming.kernel,
            path: stream.path,
            blocks: upcoming.blocks,
            tpcs: self.tpcs(),
            predicted: upcoming.predicted,
            ..Submission::opaque(fence)
        });
        if let Some(submission) = &submission {
            stream.path = stream.path.then(&submission.kernel);
        }
        let va = (Va(slot.va) + 4 * u64::from(at)).get();
        Ok((va, count, submission))
    }
}
