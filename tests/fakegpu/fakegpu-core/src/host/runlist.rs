// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides which channel group has each engine, in model time.
//!
//! A runlist gives its engine to one group at a time, for the group's time slice. The channels of
//! the group share it. A launch takes engine time and progresses only while its group has the
//! engine; it continues in the group's next slice. All other work takes as long as the model needs
//! to execute it. A group that is idle or only waits yields the rest of its slice.
//!
//! Model time follows the clock and never passes it. It advances from event to event (a launch
//! ends, a slice ends). So shares are exact, however seldom the model is called.

use crate::compute::Running;
use crate::gsp::objects::ObjectKey;
use crate::host::channel::{Channel, ChannelId};
use crate::host::execute::{Progress, Work};
use crate::host::tpcs::{speeds, Demand};
use crate::host::Host;
use std::collections::BTreeSet;
use std::ops::Bound;

/// Methods that a channel may execute per turn.
const METHODS_PER_TURN: u32 = 2048;
/// Bytes that a channel may copy per turn.
const BYTES_PER_TURN: u64 = 1 << 20;
/// Minimum time slice. Each change of the group costs the model about a microsecond.
const SLICE_MIN_NS: u64 = 10_000;
/// Maximum lag behind the clock that the model makes up for. A longer lag is dropped.
const LAG_MAX_NS: u64 = 1_000_000_000;
/// Events of a runlist per step.
const EVENTS_PER_STEP: u32 = 64;

/// One runlist.
#[derive(Debug, Default)]
pub(super) struct Runlist {
    /// The group that has the engine, or had it last.
    group: Option<ObjectKey>,
    /// The rest of its slice; 0 if it has lost the engine.
    left_ns: u64,
    /// Model time.
    now_ns: u64,
}

impl Runlist {
    /// Limits the rest of the slice to `ns` if `group` has the engine.
    pub(super) fn cut(&mut self, group: ObjectKey, ns: u64) {
        if self.group == Some(group) {
            self.left_ns = self.left_ns.min(ns);
        }
    }

    /// Returns whether `group` has the engine.
    pub(super) fn is_used_by(&self, group: ObjectKey) -> bool {
        self.group == Some(group)
    }

    /// Chooses the group for the next turn among those that are ready. A group that newly gets the
    /// engine gets a slice of `slice_ns`.
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

    /// Lets the current group use the engine for up to `wanted_ns` of `available_ns`, within its
    /// slice. Returns for how long.
    fn use_engine(&mut self, wanted_ns: u64, available_ns: u64) -> u64 {
        let used_ns = wanted_ns.min(available_ns).min(self.left_ns);
        self.left_ns -= used_ns;
        self.now_ns += used_ns;
        used_ns
    }
}

impl Host {
    /// Returns whether [`step`](Self::step) may find work.
    pub fn has_work(&self) -> bool {
        self.channels.values().any(Channel::wants_turn)
    }

    /// Advances each runlist up to the clock, or for a bounded time.
    pub fn step(&mut self, work: &mut Work<'_>) -> Progress {
        let ready = self.channels.values().filter(|it| it.wants_turn());
        let runlists: BTreeSet<u32> = ready.map(|channel| channel.id().runlist).collect();
        let mut progress = Progress::Idle;
        // An idle runlist restarts at the time when it has work again.
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
        // Number of consecutive groups that only wait. An idle group is not ready.
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
                    // No group used this time.
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

    /// Returns the groups of a runlist that have a channel with work.
    fn ready_groups(&self, runlist: u32) -> BTreeSet<ObjectKey> {
        self.channels
            .values()
            .filter(|channel| channel.id().runlist == runlist && channel.wants_turn())
            .map(Channel::group)
            .collect()
    }

    /// Gives a turn to each channel of `group` that has work.
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
        match (progress, self.share_tpcs(runlist, group)) {
            (Progress::Running(_), Some(end_ns)) => Progress::Running(end_ns),
            (progress, _) => progress,
        }
    }

    /// Gives each running launch of `group` its speed. Returns when the first of them ends.
    fn share_tpcs(&mut self, runlist: u32, group: ObjectKey) -> Option<u64> {
        let channels = self.channels.values_mut().filter(|channel| {
            channel.id().runlist == runlist && channel.group() == group && channel.wants_turn()
        });
        let mut running: Vec<&mut Running> = channels.flat_map(Channel::running).collect();
        let demands: Vec<Demand> = running.iter().map(|launch| launch.demand).collect();
        for (launch, speed) in running.iter_mut().zip(speeds(&demands)) {
            launch.speed = speed;
        }
        running.iter().map(|launch| launch.ends_in_ns()).min()
    }

    /// Charges `ns` of engine time to the channels of `group` that may run.
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
