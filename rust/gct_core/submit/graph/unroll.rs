// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists the launches of replays, so that they can run one by one from descriptors of the driver's.
//!
//! In hardware the end of a node schedules the next ones, from the tenant's memory, and nobody sees
//! what they are by then. A list needs none of that:
//!
//! ```text
//! calls of the tenant     PCAS = head, PCAS = DECREMENT_DEPENDENCE of each further chain
//! list                    head | nodes that it schedules | nodes that these schedule | ..
//! ```
//!
//! Nodes between two bars do not wait for each other; those behind a bar wait for all before it.
//! This is an order in which the hardware may run them, since a node only waits for others. What a
//! call runs has ended before the next call counts, so chains of their own run one after another.
//!
//! The descriptors are those that the scan has seen. Whatever lies in the tenant's memory by now
//! does not count.

use super::{is_replay, Memory, Node, Slot, Table};
use crate::submit::join::Qmd;
use crate::submit::launch::{self, Effects, Kind, ACTION_DECREMENT_DEPENDENCE, ACTION_SCHEDULE};
use crate::submit::methods::Action;
use crate::submit::qmd::v04_00::{self as v04, V04_00};
use crate::submit::qmd::{Field, Layout};
use crate::submit::reason::Reason;
use crate::submit::rewrite::detached;
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Source};
use crate::units::volume;
use core::num::Wrapping;

/// One launch of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The slot of its node, and the node's number.
    node: u32,
    number: u32,
    /// The number of the call that runs it, among those of its segment.
    pub(crate) call: u16,
    /// Whether it waits for the end of all launches before it.
    pub(crate) waits: bool,
}

/// A list that is being made, for a channel.
struct List<'a> {
    steps: &'a mut [Step],
    len: usize,
    /// The steps that were added, also those that were taken out again.
    visits: &'a mut usize,
    channel: u32,
}

impl List<'_> {
    fn push(&mut self, node: usize, call: u16) -> Result<(), Reason> {
        let has_room = *self.visits < self.steps.len();
        *self.visits = (Wrapping(*self.visits) + Wrapping(1)).0;
        let slot = self.steps.get_mut(self.len).filter(|_| has_room);
        let slot = slot.ok_or(Reason::TableFull)?;
        *slot = Step {
            node: u32::try_from(node).map_err(|_| Reason::TableFull)?,
            number: 0,
            call,
            waits: false,
        };
        self.len = (Wrapping(self.len) + Wrapping(1)).0;
        Ok(())
    }

    /// Has a step wait if `waits`. Returns it, for the number of its node.
    fn begin(&mut self, at: usize, waits: bool) -> Option<&mut Step> {
        let step = self.steps.get_mut(at)?;
        step.waits = waits;
        Some(step)
    }

    /// Takes out the steps from `from` on that `is_empty`. What follows them waits in their place.
    fn compact(&mut self, from: usize, is_empty: impl Fn(usize) -> bool) {
        let (mut to, mut waits) = (from, false);
        for at in from..self.len {
            let Some(step) = self.steps.get(at).copied() else {
                break;
            };
            waits |= step.waits;
            // CAST: widening.
            if is_empty(step.node as usize) {
                continue;
            }
            if let Some(slot) = self.steps.get_mut(to) {
                *slot = Step { waits, ..step };
                (to, waits) = ((Wrapping(to) + Wrapping(1)).0, false);
            }
        }
        self.len = to;
    }
}

/// What became of the counter of a node.
enum Decrement {
    /// Nothing: the node is not known, or waits for no decrement.
    Stray,
    /// The node waits for more.
    Waits,
    /// It was the last one. The node in this slot runs.
    Last(usize),
}

impl<N: Table<Slot>, Q: Table<Qmd>> Memory<'_, N, Q> {
    /// Returns whether calls of a segment store nodes or run them.
    pub fn concerns(&self, words: &[u32], calls: &[QmdCall]) -> bool {
        calls.iter().any(|call| match call.source {
            Source::Elsewhere => true,
            Source::Touch => {
                call.action == Action::DecrementDependence && self.kept(call.qmd_va).is_some()
            }
            Source::Upload => call.is_node() || self.starts_known(call, words),
            Source::Stored | Source::Inline => false,
        })
    }

    /// Returns whether all graphs are known that calls of a segment replay.
    pub fn knows_heads(&self, calls: &[QmdCall]) -> bool {
        let mut replays = calls.iter().filter(|call| is_replay(call));
        replays.all(|call| self.place_of(call.qmd_va).is_some())
    }

    /// Returns whether calls of a segment run nodes of which the scheduler has no copy. Adds the
    /// nodes that it looks at to `visits`.
    pub fn runs_silenced(&mut self, calls: &[QmdCall], visits: &mut usize) -> bool {
        let names = |call: &&QmdCall| matches!(call.source, Source::Elsewhere | Source::Touch);
        let (mut walk, mut silenced) = (self.walk(), false);
        for call in calls.iter().filter(names) {
            self.follow(&mut walk, call.qmd_va, |node| silenced |= node.silenced);
        }
        *visits = (Wrapping(*visits) + Wrapping(walk.visits.0)).0;
        silenced
    }

    /// Returns whether the end of a launch starts a descriptor, or decrements a known node.
    fn starts_known(&self, call: &QmdCall, words: &[u32]) -> bool {
        let qmd = call
            .qmd(words)
            .and_then(|qmd| qmd.first_chunk::<{ v04::WORDS }>());
        let Some(qmd) = qmd.filter(|_| !call.is_null()) else {
            return false;
        };
        let mut dependents = dependents(qmd).into_iter().flatten();
        dependents.any(|(action, va)| match action {
            ACTION_DECREMENT_DEPENDENCE => self.kept(va).is_some(),
            action => action == ACTION_SCHEDULE,
        })
    }

    /// Keeps the launches of a segment, too, so that a list may have them.
    pub fn keep_launches(&mut self, words: &[u32], calls: &[QmdCall], counters: &mut Counters) {
        let plain = |call: &&QmdCall| call.source == Source::Upload && !call.is_node();
        for call in calls.iter().filter(plain).filter(|call| !call.is_null()) {
            self.remember(call, words, false, counters);
        }
    }

    /// Forgets nodes over which a segment uploads other launches.
    pub fn forget_overwritten(&mut self, words: &[u32], calls: &[QmdCall]) {
        for call in calls.iter().filter(|call| call.source == Source::Upload) {
            let Some(place) = self.place_of(call.qmd_va) else {
                continue;
            };
            let is_kept = self.kept(call.qmd_va) == Some(place);
            let qmd = self.qmd(place).filter(|_| is_kept);
            if qmd.map(|qmd| &qmd[..]) != call.qmd(words) {
                self.remove(place);
            }
        }
    }

    /// Lists the launches that the calls of a segment of `channel` run. Returns how many there are.
    ///
    /// Nothing but a known node is on the list. A node is visited as often as it runs. `visits`
    /// counts that from 0 on, also where there is an error: one more than there are `steps` at
    /// most.
    ///
    /// # Errors
    ///
    /// The [`Reason`] why something cannot be listed.
    pub fn unroll(
        &mut self,
        calls: &[QmdCall],
        steps: &mut [Step],
        channel: u32,
        visits: &mut usize,
    ) -> Result<usize, Reason> {
        self.tick();
        let mut list = List {
            steps,
            len: 0,
            visits,
            channel,
        };
        for (number, call) in (0..u16::MAX).zip(calls) {
            let from = list.len;
            let started = match call.source {
                Source::Stored => None,
                Source::Inline => return Err(Reason::Inline),
                Source::Touch => match call.action {
                    Action::Nop | Action::Invalidate | Action::Prefetch => None,
                    Action::DecrementDependence => match self.decrement(call.qmd_va, channel)? {
                        Decrement::Last(node) => Some(node),
                        // The companion of an ordinary launch.
                        Decrement::Stray | Decrement::Waits => None,
                    },
                    _ => return Err(Reason::Action),
                },
                Source::Upload if call.is_null() => None,
                Source::Upload | Source::Elsewhere => self.start(call)?,
            };
            if let Some(node) = started {
                list.push(node, number)?;
                self.spread(&mut list, from, call)?;
            }
        }
        Ok(list.len)
    }

    /// Adds what the step at `from` schedules, what that schedules, and so on.
    fn spread(&mut self, list: &mut List<'_>, from: usize, call: &QmdCall) -> Result<(), Reason> {
        let (mut at, mut level) = (from, from);
        // Bounded by the length of the list.
        while at < list.len {
            let step = list.begin(at, at == level).ok_or(Reason::TableFull)?;
            // CAST: widening.
            let (node, number) = (step.node as usize, step.call);
            step.number = self.runs(node).ok_or(Reason::NotHere)?;
            if at == level {
                level = list.len;
            }
            let qmd = self.qmd(node).ok_or(Reason::NotHere)?;
            if !is_empty(qmd) {
                detached::freed(qmd)?;
            }
            for (action, va) in dependents(qmd).into_iter().flatten() {
                let next = match action {
                    ACTION_SCHEDULE => Some(self.scheduled(va)?),
                    ACTION_DECREMENT_DEPENDENCE => match self.decrement(va, list.channel)? {
                        Decrement::Last(next) => Some(next),
                        Decrement::Waits => None,
                        // An ordinary launch decrements its companion.
                        Decrement::Stray if at == from && call.source == Source::Upload => None,
                        Decrement::Stray => return Err(Reason::NotHere),
                    },
                    _ => return Err(Reason::Queue),
                };
                if let Some(next) = next {
                    list.push(next, number)?;
                }
            }
            at = (Wrapping(at) + Wrapping(1)).0;
        }
        list.compact(from, |node| self.qmd(node).is_none_or(is_empty));
        Ok(())
    }

    /// Returns the slot of a node whose words are kept.
    fn kept(&self, va: u64) -> Option<usize> {
        let place = self.place_of(va)?;
        let number = self.index.number_of(self.node(place)?);
        (number > 0 && self.qmd(place).is_some()).then_some(place)
    }

    /// Records that the node in a slot runs. Returns its number.
    fn runs(&mut self, place: usize) -> Option<u32> {
        let ticks = self.index.ticks;
        let node = self.node_mut(place)?;
        node.reached = ticks;
        Some(node.number)
    }

    fn kept_mut(&mut self, va: u64) -> Option<(usize, &mut Node)> {
        let place = self.kept(va)?;
        Some((place, self.node_mut(place)?))
    }

    /// Follows a call that copies a descriptor and schedules the copy. Returns the slot of a node
    /// that runs now.
    fn start(&mut self, call: &QmdCall) -> Result<Option<usize>, Reason> {
        if !call.is_copied() {
            return Err(Reason::Action);
        }
        // Otherwise the segment has stored something there that was not understood.
        if let Some(reason) = call.reason.filter(|reason| *reason != Reason::NotHere) {
            return Err(reason);
        }
        let (place, node) = self.kept_mut(call.qmd_va).ok_or(Reason::NotHere)?;
        node.left = node.counter;
        let waits = node.counter > 0;
        let qmd = self.qmd(place).ok_or(Reason::NotHere)?;
        let is_parked = v04::REQUIRE_SCHEDULING_PCAS.is_set(qmd);
        if call.source == Source::Upload && !call.is_node() {
            let kept: [(Field, Reason); 3] = [
                (v04::REQUIRE_SCHEDULING_PCAS, Reason::RequiresPcas),
                (v04::DEPENDENCE_COUNTER, Reason::Dependences),
                (v04::SELF_COPY_ON_COMPLETION, Reason::SelfCopy),
            ];
            let kept = kept.iter().find(|(field, _)| field.is_set(qmd));
            kept.map_or(Ok(()), |(_, reason)| Err(*reason))?;
        }
        Ok((!waits && !is_parked).then_some(place))
    }

    /// Returns the slot of a node that another one schedules.
    fn scheduled(&self, va: u64) -> Result<usize, Reason> {
        let place = self.kept(va).ok_or(Reason::NotHere)?;
        match self.node(place).is_some_and(|node| node.left == 0) {
            true => Ok(place),
            false => Err(Reason::Dependences),
        }
    }

    /// Counts a decrement by a channel. That of another one is refused as long as a counter is not
    /// complete: nobody would wait there for what the first channel runs.
    fn decrement(&mut self, va: u64, channel: u32) -> Result<Decrement, Reason> {
        let Some((place, node)) = self.kept_mut(va) else {
            return Ok(Decrement::Stray);
        };
        if node.left < node.counter && node.counted_by != channel {
            return Err(Reason::Dependences);
        }
        node.counted_by = channel;
        Ok(match node.left.checked_sub(1) {
            None => Decrement::Stray,
            Some(0) => {
                node.left = node.counter;
                Decrement::Last(place)
            }
            Some(left) => {
                node.left = left;
                Decrement::Waits
            }
        })
    }

    /// Records that the calls of a segment were taken out, so that the scheduler has no copy of the
    /// nodes that it stores. Their heads count as nodes.
    pub fn silence(&mut self, calls: &[QmdCall]) {
        self.index.masks_changed();
        let stores = |call: &&QmdCall| matches!(call.source, Source::Upload | Source::Stored);
        for call in calls.iter().filter(stores) {
            if let Some(node) = self.get_mut(call.qmd_va) {
                node.silenced = true;
            }
        }
    }

    /// Returns the descriptor that a step launches: it starts nothing else. Returns it with the
    /// TPCs that hold all of its blocks at once; 0 if no number does.
    ///
    /// # Errors
    ///
    /// The [`Reason`] why there is none, [`Reason::Patched`] if another node has taken its place.
    pub fn step(&self, step: &Step) -> Result<(Qmd, u32), Reason> {
        // CAST: widening.
        let place = step.node as usize;
        let is_same = |node: &&Node| self.index.number_of(node) == step.number;
        let node = self.node(place).filter(is_same).ok_or(Reason::Patched)?;
        let qmd = self.qmd(place).ok_or(Reason::NotHere)?;
        Ok((detached::freed(qmd)?, node.resident))
    }
}

/// Returns action and address of each descriptor on which the end of `qmd` acts.
fn dependents(qmd: &Qmd) -> [Option<(u32, u64)>; 2] {
    let [first, second] = V04_00::DEPENDENTS else {
        return [None; 2];
    };
    [first, second].map(|dependent| {
        let va = dependent
            .pointer
            .map(|field| u64::from(field.get(qmd)) << 8);
        let action = dependent.action;
        let action = action.map_or(ACTION_SCHEDULE, |field| field.get(qmd));
        let is_enabled = dependent.enable.is_set(qmd);
        is_enabled.then(|| (action, va.unwrap_or(0)))
    })
}

/// Returns whether a descriptor runs no block, and has no effect but on other descriptors. CUDA
/// begins a graph with such a one.
fn is_empty(qmd: &Qmd) -> bool {
    let has_blocks = match launch::kind::<V04_00>(qmd) {
        Kind::Null => false,
        Kind::Queue | Kind::Undocumented(_) => true,
        _ => volume(launch::triple(V04_00::GRID, qmd)).0 > 0,
    };
    let effects = launch::effects::<V04_00>(qmd);
    let others = Effects {
        dependents: [None; 2],
        self_copy: false,
        pre_exit: false,
        arrive_latch: None,
        ..effects
    };
    !has_blocks && others == Effects::default()
}
