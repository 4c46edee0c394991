// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Holds what is needed while entries are processed: buffers, and the state of one command stream.

use super::copies::Copies;
use super::in_flight::Fence;
use super::scratch::Scratch;
use super::split::AtomRoom;
use super::whole::WholeSlots;
use super::words::{Storage, Words};
use crate::policy::predict::Path;
use crate::policy::transfer::Rate;
use crate::submit::gpfifo::{Fetch, Segment};
use crate::submit::graph::{Step, ENDS_MAX};
use crate::submit::rewrite::Order;
use crate::submit::tracker::{QmdCall, Tracker};
use crate::units::Ns;
use core::num::Wrapping;

/// The longest segment that is processed, in words. CUDA's have hundreds. The upload of a graph has
/// 263 for each node (H100: 157,912 for 600 nodes), so this is enough for [`LAUNCHES_MAX`] nodes.
pub const WORDS_MAX: usize = 1 << 20;

/// The most launches of one segment that are processed. The core counts the rest. The upload of a
/// graph has one for each node.
pub const LAUNCHES_MAX: usize = 2048;

/// The longest segment across the bus that is processed, in words. The GPU's memory is read word by
/// word, so this is half a millisecond of a processor (inferred: a microsecond for two words). CUDA
/// keeps its segments in the host's memory.
pub const SLOW_WORDS_MAX: usize = 1024;

/// How many words of the host's memory are read in the time of one across the bus (inferred).
pub const SLOW_WORD: u32 = 64;

/// How many of them are read in the time in which a node of a graph is visited (inferred).
const VISIT_WORDS: u32 = 16;

const _: () = assert!(WORDS_MAX > 264 * LAUNCHES_MAX);

/// The buffers in which segments are read and rewritten. One is enough for all lanes that one
/// thread serves.
pub struct Workspace<S: Storage> {
    /// The words of the segment that was read last, as far as it was edited.
    pub(super) words: S::Slots<u32>,
    /// One order for each launch of a segment: too many for a stack.
    pub(super) orders: S::Slots<Order<'static>>,
    pub(super) output: S::Slots<u32>,
    /// The number of segments that were read into `words`.
    pub(super) reads: Wrapping<u64>,
    /// The number of rounds of publishing of a lane. No view goes within a round.
    pub(super) rounds: Wrapping<u64>,
}

impl<S: Storage> Workspace<S> {
    /// Takes the buffers. `words` and `output` have [`WORDS_MAX`] words and `orders` has
    /// [`LAUNCHES_MAX`] slots. With less, segments that would need more are published unchanged.
    pub fn new(
        words: S::Slots<u32>,
        orders: S::Slots<Order<'static>>,
        output: S::Slots<u32>,
    ) -> Self {
        Self {
            words,
            orders,
            output,
            reads: Wrapping(0),
            rounds: Wrapping(0),
        }
    }

    /// Returns the words of the segment that was read last.
    pub(super) fn of(&mut self, segment: &Segment) -> &mut [u32] {
        // CAST: checked when the segment was read.
        let words = self.words.get_mut(..segment.words as usize);
        words.unwrap_or_default()
    }

    /// Returns how many of a segment's words are read at once.
    #[inline]
    pub(super) fn at_once(&self, words: u32) -> u32 {
        match self.words.len() {
            // CAST: widening, then less than `words`.
            longest if words as usize > longest => (longest >> 1) as u32,
            _ => words,
        }
    }
}

/// What the backend brings to one round of publishing of a lane.
pub struct Round<'a, S: Storage, W: Words> {
    /// The memory that segments, fences and frames are in.
    pub memory: &'a W,
    /// Memory for replacement segments, and for the atoms of split launches. The GPU may only read
    /// it in a lane with copies.
    pub scratch: Option<&'a mut Scratch<S, W::View>>,
    /// Memory for copies of the lane's segments. Without it the GPU executes the tenant's words.
    pub copies: Option<&'a mut Copies<S, W::View>>,
    /// Slots for launches that stay whole. Without them these run where their tenant stores them.
    pub slots: Option<&'a mut WholeSlots<W::View>>,
    /// The most entries of the tenant to process: what is left of them.
    pub turn: u32,
    /// No entry is processed behind so many words of segments: what is left of them. A word across
    /// the bus counts as [`SLOW_WORD`].
    pub words: u32,
    /// The buffers.
    pub work: &'a mut Workspace<S>,
    /// Monotonic time.
    pub now: Ns,
    /// The most entries that may be [published before they are read](super::ahead), and are read in
    /// a later round. `None` if none may, since the round is bounded.
    pub ahead: Option<u32>,
}

impl<S: Storage, W: Words> Round<'_, S, W> {
    /// Returns whether a segment of `words` words is read in pieces. It is not in a lane without
    /// copies, whose GPU executes the tenant's words.
    #[inline]
    pub(super) fn is_long(&self, words: u32) -> bool {
        // CAST: widening.
        words as usize > self.work.words.len() && self.copies.is_some()
    }
}

/// Has a turn that has `left` words pay for so many nodes that were looked at.
pub(super) fn visited(nodes: usize, left: &mut u32) {
    // CAST: some thousand.
    let cost = VISIT_WORDS.saturating_mul(nodes as u32);
    *left = left.saturating_sub(cost);
}

/// The state of one channel's command stream.
pub struct Stream<S: Storage, V> {
    pub(super) fetch: Fetch,
    pub(super) tracker: Tracker,
    pub(super) room: AtomRoom<S>,
    /// The launches of the segment that was processed last.
    pub(super) found: S::Slots<QmdCall>,
    /// The launches of the segment's graphs, if they can be listed.
    pub(super) steps: Option<S::Slots<Step>>,
    /// The address space of the channel, and its number, if graphs can be listed.
    pub(super) space: u64,
    pub(super) number: u32,
    /// The launches before the next one.
    pub(super) path: Path,
    /// The rate at which the channel copies.
    pub(super) rate: Rate,
    /// What shows the end of the replay that was processed last.
    pub(super) replay: Replay<V>,
    /// What the segment that was processed last waits for.
    pub(super) acquire: Option<Acquire<V>>,
    /// What is left of a long segment, of which a piece was processed.
    pub(super) rest: Option<Segment>,
    /// Whether the entry that is processed was published before, so nothing of it can change.
    pub(super) published: bool,
}

/// What a segment waits for, and since when.
pub(super) struct Acquire<V> {
    pub(super) word: Fence<V>,
    pub(super) since: Ns,
}

/// What shows the end of a replay, beside the condition of its submission.
pub(super) struct Replay<V> {
    /// The condition under which the segment has been read.
    pub(super) release: Option<Fence<V>>,
    /// Further conditions of its end.
    pub(super) ends: [Option<Fence<V>>; ENDS_MAX],
}

impl<V> Default for Replay<V> {
    fn default() -> Self {
        Self {
            release: None,
            ends: [const { None }; ENDS_MAX],
        }
    }
}

impl<S: Storage, V> Stream<S, V> {
    /// Creates the state of an unread stream of a channel of `class`. `found` has [`LAUNCHES_MAX`]
    /// slots, or fewer to process fewer launches of a segment.
    pub fn new(class: u16, room: AtomRoom<S>, found: S::Slots<QmdCall>) -> Self {
        Self {
            fetch: Fetch::new(),
            tracker: Tracker::new(class),
            room,
            found,
            steps: None,
            space: 0,
            number: 0,
            path: Path::default(),
            rate: Rate::default(),
            replay: Replay::default(),
            acquire: None,
            rest: None,
            published: false,
        }
    }

    /// Takes room for a list of the launches of CUDA graphs: [`STEPS_MAX`] slots, or fewer to list
    /// fewer. Without it none are listed. Graphs of one address space of a process are. `number`
    /// tells the channel from others of its tenant.
    ///
    /// [`STEPS_MAX`]: super::replays::STEPS_MAX
    #[must_use]
    pub fn with_steps(self, steps: S::Slots<Step>, space: u64, number: u32) -> Self {
        Self {
            steps: Some(steps),
            space,
            number,
            ..self
        }
    }
}

/// The words that the GPU executes for a segment.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place<V> {
    /// Those of its tenant.
    Tenant(V),
    /// Those of a copy. Until the end of the round in which the segment was read they may be in the
    /// workspace alone.
    Copy {
        /// Whether they are in the copy.
        written: bool,
    },
}

/// The work done on a segment just before it is published: its launches get the mask of that
/// moment. It cannot be done twice, because it overwrites the tenant's words.
#[derive(Clone, Copy, Debug)]
pub struct Seal<V> {
    pub(super) segment: Segment,
    /// The number of the segment's launches in the stream.
    pub(super) found: usize,
    /// The value of `Workspace::reads` while the words there are this segment's.
    pub(super) read: Wrapping<u64>,
    /// The round in which the segment was read. Its words are in `at` during that round.
    pub(super) round: Wrapping<u64>,
    pub(super) at: Place<V>,
    /// The time at which it was read.
    pub(super) since: Ns,
    /// The time for which its launch may hold its TPCs.
    pub(super) holds: Ns,
    /// The TPCs that hold all blocks of each of its launches at once; 0 if no number does.
    pub(super) resident: u32,
    /// Whether its launches may have fewer TPCs than they are granted.
    pub(super) sizable: bool,
    /// How many launches it has, if all must be able to run from slots; and whether that was
    /// checked.
    pub(super) strict: Option<u32>,
    pub(super) checked: bool,
    /// Whether it stores nodes of a CUDA graph.
    pub(super) stores: bool,
    /// Whether it replays one.
    pub(super) replays: bool,
}
