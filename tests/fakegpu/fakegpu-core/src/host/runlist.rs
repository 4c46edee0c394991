// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runlists: which channel group has the engine, in model time.
//!
//! A runlist gives its engine to one group at a time, for the group's time
//! slice; the channels of the group share it. A launch takes time, and comes
//! further only while its group has the engine; what it has not had by the end
//! of a slice it gets in the next. All other work takes as long as it takes us.
//! A group that has nothing to do, or only waits, gives the rest of its slice
//! away.
//!
//! The model follows the clock and never passes it. It goes from one event to
//! the next (a launch ends, a slice ends), so that shares are exact however
//! seldom it is called.

use crate::gsp::objects::ObjectKey;
use crate::host::channel::{Channel, ChannelId};
use crate::host::execute::{Progress, Work};
use crate::host::Host;
use std::collections::BTreeSet;
use std::ops::Bound;

/// Methods that a channel may execute before others get their turn.
const METHODS_PER_TURN: u32 = 2048;
/// Bytes that it may copy.
const BYTES_PER_TURN: u64 = 1 << 20;
/// A shorter time slice counts as this one: each change of the group costs us
/// about a microsecond.
const SLICE_MIN_NS: u64 = 10_000;
/// What the model lags behind the clock is caught up with up to so much.
const LAG_MAX_NS: u64 = 1_000_000_000;
/// Events of a runlist before others get their turn.
const EVENTS_PER_STEP: u32 = 64;

/// One runlist.
#[derive(Debug, Default)]
pub(super) struct Runlist {
    /// The group that has the engine, or had it last.
    group: Option<ObjectKey>,
    /// What is left of its slice; none if it has lost the engine.
    left_ns: u64,
    /// How far the model has come.
    now_ns: u64,
}

impl Runlist {
    /// Leaves no more than `ns` of the slice to `group`, if it has the engine.
    pub(super) fn cut(&mut self, group: ObjectKey, ns: u64) {
        if self.group == Some(group) {
            self.left_ns = self.left_ns.min(ns);
        }
    }

    /// Whether `group` has the engine.
    pub(super) fn is_used_by(&self, group: ObjectKey) -> bool {
        self.group == Some(group)
    }

    /// The group whose turn it is among those that are ready. A group that has
    /// got the engine newly gets a slice of `slice_ns`.
    fn turn(
        &mut self,
        ready: &BTreeSet<ObjectKey>,
        slice_ns: impl Fn(ObjectKey) -> u64,
    ) -> Option<ObjectKey> {
        if let Some(group) = self.group {
            if self.left_ns > 0 && ready.contains(&group) {
                return Some(group);
            }
        }
        let after = self.group.map_or(Bound::Unbounded, Bound::Excluded);
        let next = ready.range((after, Bound::Unbounded)).next();
        let group = *next.or_else(|| ready.first())?;
        self.group = Some(group);
        self.left_ns = slice_ns(group).max(SLICE_MIN_NS);
        Some(group)
    }

    /// The group that has the engine uses it for up to `wanted_ns` of
    /// `available_ns`, and not beyond its slice. Returns for how long.
    fn use_engine(&mut self, wanted_ns: u64, available_ns: u64) -> u64 {
        let used_ns = wanted_ns.min(available_ns).min(self.left_ns);
        self.left_ns -= used_ns;
        self.now_ns += used_ns;
        used_ns
    }
}

impl Host {
    /// Whether [`step`](Self::step) may find something to do.
    pub fn has_work(&self) -> bool {
        self.channels.values().any(Channel::wants_turn)
    }

    /// Lets each runlist go on, up to the clock or for a bounded time.
    pub fn step(&mut self, work: &mut Work<'_>) -> Progress {
        let ready = self.channels.values().filter(|it| it.wants_turn());
        let runlists: BTreeSet<u32> = ready.map(|channel| channel.id().runlist).collect();
        let mut progress = Progress::Idle;
        // One that has nothing to do starts anew, at the time when it has.
        self.runlists.retain(|id, _| runlists.contains(id));
        for id in runlists {
            let mut runlist = self.runlists.remove(&id).unwrap_or_else(|| Runlist {
                now_ns: work.clock.now_ns(),
                ..Runlist::default()
            });
            progress = progress.and(self.step_runlist(work, id, &mut runlist));
            self.runlists.insert(id, runlist);
        }
        progress
    }

    fn step_runlist(&mut self, work: &mut Work<'_>, id: u32, runlist: &mut Runlist) -> Progress {
        let clock_ns = work.clock.now_ns();
        runlist.now_ns = runlist.now_ns.max(clock_ns.saturating_sub(LAG_MAX_NS));
        work.engine = work
            .chip
            .engines
            .iter()
            .find(|engine| engine.runlist == id)
            .copied();
        // Groups in a row that only wait. One that has nothing to do is ready no more.
        let mut waiting_groups = 0;
        for _ in 0..EVENTS_PER_STEP {
            let ready = self.ready_groups(id);
            let default_ns = work.chip.default_timeslice_ns;
            let slice_ns = |group| {
                self.timeslices_ns
                    .get(&group)
                    .copied()
                    .unwrap_or(default_ns)
            };
            let before = runlist.group;
            let group = match runlist.turn(&ready, slice_ns) {
                Some(group) if waiting_groups < ready.len() => group,
                next => {
                    // Nobody used this time.
                    runlist.now_ns = clock_ns;
                    return next.map_or(Progress::Idle, |_| Progress::Waiting);
                }
            };
            if let Some(loser) = before.filter(|before| *before != group) {
                self.lose_engine(loser);
            }
            work.now_ns = runlist.now_ns;
            let available_ns = clock_ns.saturating_sub(runlist.now_ns);
            match self.turn_of_group(work, id, group) {
                Progress::Busy => {
                    let used_ns = runlist.use_engine(available_ns, available_ns);
                    self.pass(id, group, used_ns);
                    return Progress::Busy;
                }
                Progress::Running(end_ns) => {
                    let used_ns = runlist.use_engine(end_ns, available_ns);
                    self.pass(id, group, used_ns);
                    let event_ns = (end_ns - used_ns).min(runlist.left_ns);
                    if used_ns == available_ns && event_ns > 0 {
                        return Progress::Running(event_ns);
                    }
                    waiting_groups = 0;
                }
                Progress::Waiting => {
                    runlist.cut(group, 0);
                    waiting_groups += 1;
                }
                Progress::Idle => runlist.cut(group, 0),
            }
        }
        Progress::Busy
    }

    /// The groups of a runlist that have a channel with work.
    fn ready_groups(&self, runlist: u32) -> BTreeSet<ObjectKey> {
        self.channels
            .values()
            .filter(|channel| channel.id().runlist == runlist && channel.wants_turn())
            .map(Channel::group)
            .collect()
    }

    /// Gives each channel of `group` that has work a turn.
    fn turn_of_group(&mut self, work: &mut Work<'_>, runlist: u32, group: ObjectKey) -> Progress {
        let ready: Vec<ChannelId> = self
            .channels
            .values()
            .filter(|channel| channel.id().runlist == runlist && channel.group() == group)
            .filter(|channel| channel.wants_turn())
            .map(Channel::id)
            .collect();
        let mut progress = Progress::Idle;
        for id in ready {
            let root = self
                .channels
                .get(&id)
                .and_then(|channel| self.page_directory(channel));
            if let Some(channel) = self.channels.get_mut(&id) {
                work.methods = METHODS_PER_TURN;
                work.bytes = BYTES_PER_TURN;
                progress = progress.and(channel.turn(work, root));
            }
        }
        progress
    }

    /// The channels of `group` that may run have had the engine for so long.
    fn pass(&mut self, runlist: u32, group: ObjectKey, ns: u64) {
        for channel in self.channels.values_mut() {
            if channel.id().runlist == runlist && channel.group() == group && channel.wants_turn() {
                channel.pass(ns);
            }
        }
    }
}

#[cfg(test)]
mod tests;
