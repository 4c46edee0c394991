// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Updates time slices as channel groups are created and freed; see [`round`](crate::round).

use crate::account::Usage;
use crate::error::Error;
use crate::ids::{GpuId, GroupId, Owner, ProcKey};
use crate::iface::show;
use crate::objects::Object;
use crate::round::Round;
use crate::state::State;
use crate::units::Us;
use core::fmt::Write;

/// The divisors of a process's and of its group's time slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Divisors {
    rounds: [u32; Round::COUNT],
    sharers: u32,
}

/// Summary of an owner's time slices.
struct Slices {
    /// The shortest slice.
    least: Us,
    /// The sum of the slices in the longest round.
    round: Us,
}

impl Slices {
    const NONE: Self = Self {
        least: Us(0),
        round: Us(0),
    };
}

impl State<'_> {
    /// Returns the divisors now in force.
    pub(super) fn divisors(&self, proc: ProcKey, gpu: GpuId) -> Divisors {
        let group = self.group_of(proc).map(Owner::Group);
        let of_group = group.map(|group| self.usage_of(group, gpu));
        let own = self.usage_of(Owner::Proc(proc), gpu);
        Divisors {
            rounds: own.rounds().map(|divisor| divisor.by()),
            sharers: of_group.map_or(1, |usage| usage.sharers().by()),
        }
    }

    /// Marks a process's channel groups if its divisors have changed since `before`, and its group
    /// as stale if the group's has. O(channel groups of the process).
    pub(super) fn divided(&mut self, proc: ProcKey, gpu: GpuId, before: &Divisors) {
        let now = self.divisors(proc, gpu);
        if now == *before || self.effective(proc, gpu).timeslice.is_none() {
            return;
        }
        self.mark_proc(proc, Some(gpu));
        if let Some(group) = self
            .group_of(proc)
            .filter(|_| now.sharers != before.sharers)
        {
            self.shares_changed(group, gpu);
        }
    }

    /// Returns a subject's time slice under the limits in force: its part of its process's share.
    /// `None` means the original one.
    pub(crate) fn slice_of(&self, proc: ProcKey, gpu: GpuId, object: &Object) -> Option<Us> {
        let share = self.effective(proc, gpu).timeslice?;
        let usage = self.usage_of(Owner::Proc(proc), gpu);
        Some(usage.round(object.charged.round).part(share))
    }

    /// Writes the summary of an owner's time slices. All are 0 without a limit or without channel
    /// groups.
    pub(super) fn show_slices(
        &self,
        owner: Owner,
        gpu: GpuId,
        out: &mut dyn Write,
    ) -> Result<(), Error> {
        let slices = match owner {
            Owner::Proc(key) => self.slices_of_proc(key, gpu),
            Owner::Group(group) => self.slices_of_group(group, gpu),
        };
        let Slices { least, round } = slices.unwrap_or(Slices::NONE);
        show::stat_line("slice", least.get(), out)
            .and_then(|()| show::stat_line("round", round.get(), out))
            .map_err(|_| Error::NoSpace)
    }

    fn slices_of_proc(&self, key: ProcKey, gpu: GpuId) -> Option<Slices> {
        let share = self.effective(key, gpu).timeslice?;
        let usage = self.usage_of(Owner::Proc(key), gpu);
        let rounds = usage.rounds().iter().filter(|round| round.count() > 0);
        let slices = rounds.map(|round| {
            let least = round.part(share);
            Slices {
                least,
                round: least * u64::from(round.count()),
            }
        });
        slices.reduce(|one, other| Slices {
            least: one.least.min(other.least),
            round: one.round.max(other.round),
        })
    }

    fn slices_of_group(&self, group: GroupId, gpu: GpuId) -> Option<Slices> {
        let written = self.settings(Owner::Group(group), gpu)?.timeslice;
        if written.is_none() && !self.yields(Owner::Group(group), gpu) {
            return None;
        }
        let slices = self
            .procs_in_group(group)
            .filter_map(|key| self.slices_of_proc(key, gpu));
        slices.reduce(|one, other| Slices {
            least: one.least.min(other.least),
            round: one.round + other.round,
        })
    }

    fn usage_of(&self, owner: Owner, gpu: GpuId) -> Usage {
        let pool = self.pools.get(&(owner, gpu));
        pool.map_or(Usage::ZERO, |pool| pool.usage)
    }
}
