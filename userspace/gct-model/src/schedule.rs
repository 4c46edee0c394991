// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Schedules descriptors by the rules that were measured on an H200 (driver 580.159.04).
//!
//! * A PCAS with COPY (actions 3, 0xA, 0xB) copies the descriptor and sets its dependence counter.
//!   RESUME of the copy is zero. With REQUIRE_SCHEDULING_PCAS, and always with 0xB, the copy waits
//!   for a SCHEDULE.
//! * SCHEDULE alone (2) starts a waiting copy. Without one it runs the descriptor in memory from
//!   its RESUME. Memory is read when the grid starts, so overwriting it too early shows.
//! * PREFETCH_SCHEDULE (9) and a dependent's SCHEDULE run the descriptor and ignore RESUME.
//! * A decrement to zero starts the copy that waits for it.
//! * A copy that waited for a SCHEDULE, such as a graph's node, is read from memory again when it
//!   starts. Masks written into stored nodes therefore count in the next replay. The same holds for
//!   copies that INVALIDATE (1) or SELF_COPY_ON_COMPLETION fetches again.
//! * A grid scheduled with COPY starts when all earlier grids of its channel have ended. Grids
//!   scheduled without COPY start when the grids before the last COPY have ended, and run
//!   concurrently. A grid started by a dependence waits for no other grid.
//! * Releases and latches happen when the last block has ended. Dependents are signalled then. With
//!   ENABLE_PROGRAM_PRE_EXIT they are signalled at any time after the start.

use crate::descriptor::{Dependent, Descriptor, Kind, Unreadable};
use crate::grid::blocks_from;
use crate::machine::{Held, Machine, Ready, Running, Source};
use crate::memory::GuestMemory;
use crate::report::{Act, Anomaly, ChannelId, Run};

/// Names of the `PCAS_ACTION` values.
pub(crate) mod action {
    pub(crate) const NOP: u32 = 0;
    pub(crate) const INVALIDATE: u32 = 1;
    pub(crate) const SCHEDULE: u32 = 2;
    pub(crate) const INVALIDATE_COPY_SCHEDULE: u32 = 3;
    pub(crate) const INCREMENT_PUT: u32 = 6;
    pub(crate) const DECREMENT_DEPENDENCE: u32 = 7;
    pub(crate) const PREFETCH: u32 = 8;
    pub(crate) const PREFETCH_SCHEDULE: u32 = 9;
    pub(crate) const INVALIDATE_PREFETCH_COPY_SCHEDULE: u32 = 0xa;
    pub(crate) const INVALIDATE_PREFETCH_COPY_FORCE_REQUIRE_SCHEDULING: u32 = 0xb;
    pub(crate) const INCREMENT_DEPENDENCE: u32 = 0xc;
}

impl<M: GuestMemory> Machine<M> {
    pub(crate) fn pcas(&mut self, channel: ChannelId, qmd: u64, what: u32) {
        match what {
            action::NOP | action::PREFETCH => {}
            action::INVALIDATE => self.fetch_again(qmd),
            action::INVALIDATE_COPY_SCHEDULE | action::INVALIDATE_PREFETCH_COPY_SCHEDULE => {
                self.hold_copy(channel, qmd, false);
            }
            action::INVALIDATE_PREFETCH_COPY_FORCE_REQUIRE_SCHEDULING => {
                self.hold_copy(channel, qmd, true);
            }
            action::SCHEDULE => {
                let epoch = self.epoch(channel);
                self.schedule(qmd, channel, epoch, Source::Memory { resume: true }, false);
            }
            action::PREFETCH_SCHEDULE => {
                let epoch = self.next_epoch(channel);
                self.held.remove(&qmd);
                self.schedule(qmd, channel, epoch, Source::Memory { resume: false }, false);
            }
            action::INCREMENT_PUT => self.act(None, Act::QueuePut(qmd)),
            action::DECREMENT_DEPENDENCE => self.decrement(None, qmd),
            action::INCREMENT_DEPENDENCE => {
                self.act(None, Act::Increment(qmd));
                match self.held.get_mut(&qmd) {
                    Some(held) => held.counter = held.counter.saturating_add(1),
                    None => self.report.note(Anomaly::StrayDecrement(qmd)),
                }
            }
            _ => self.report.note(Anomaly::Unmodelled(0x2c0)),
        }
    }

    fn epoch(&self, channel: ChannelId) -> u64 {
        self.channels
            .get(&channel)
            .map_or(0, |channel| channel.epoch)
    }

    fn next_epoch(&mut self, channel: ChannelId) -> u64 {
        self.channels.get_mut(&channel).map_or(0, |channel| {
            channel.epoch += 1;
            channel.epoch
        })
    }

    /// Handles a PCAS with COPY.
    fn hold_copy(&mut self, channel: ChannelId, qmd: u64, force: bool) {
        let mut descriptor = match Descriptor::read(&mut self.memory, qmd) {
            Ok(descriptor) => descriptor,
            Err(why) => return self.report.note(Anomaly::of_unreadable(qmd, why)),
        };
        descriptor.resume = [0; 3];
        let epoch = self.next_epoch(channel);
        if self.is_full() {
            return;
        }
        let held = Held {
            counter: descriptor.counter,
            parked: force || descriptor.require_scheduling,
            stored: force || descriptor.require_scheduling,
            descriptor,
            rearmed: false,
            channel,
            epoch,
        };
        self.held.insert(qmd, held);
        self.start_if_free(qmd, false);
    }

    /// Handles INVALIDATE: reads a held descriptor from memory again, but keeps its dependence
    /// counter.
    fn fetch_again(&mut self, qmd: u64) {
        if !self.held.contains_key(&qmd) {
            return;
        }
        let Ok(mut descriptor) = Descriptor::read(&mut self.memory, qmd) else {
            return;
        };
        descriptor.resume = [0; 3];
        if let Some(held) = self.held.get_mut(&qmd) {
            held.descriptor = descriptor;
        }
    }

    fn is_full(&mut self) -> bool {
        let full = self.held.len() + self.ready.len() >= self.config.held_max;
        if full {
            self.report.note(Anomaly::Bound("scheduled descriptors"));
        }
        full
    }

    /// Makes a held descriptor ready if it waits for nothing more.
    fn start_if_free(&mut self, qmd: u64, free: bool) {
        let waits = |held: &Held| held.parked || held.counter > 0;
        if self.held.get(&qmd).is_none_or(waits) {
            return;
        }
        if let Some(held) = self.held.remove(&qmd) {
            let source = match held.stored {
                true => Source::Memory { resume: false },
                false => Source::Copied(Box::new(held.descriptor)),
            };
            self.ready.push(Ready {
                qmd,
                source,
                channel: held.channel,
                epoch: held.epoch,
                free,
            });
        }
    }

    /// Handles SCHEDULE: starts a waiting copy, or else runs `source`.
    fn schedule(&mut self, qmd: u64, channel: ChannelId, epoch: u64, source: Source, free: bool) {
        if let Some(held) = self.held.get_mut(&qmd) {
            held.parked = false;
            held.rearmed = false;
            return self.start_if_free(qmd, free);
        }
        if self.is_full() {
            return;
        }
        self.ready.push(Ready {
            qmd,
            source,
            channel,
            epoch,
            free,
        });
    }

    fn decrement(&mut self, by: Option<usize>, qmd: u64) {
        self.act(by, Act::Decrement(qmd));
        match self.held.get_mut(&qmd) {
            Some(held) if held.counter > 0 => {
                held.counter -= 1;
                if held.counter == 0 {
                    held.parked = false;
                    held.rearmed = false;
                    self.start_if_free(qmd, true);
                }
            }
            _ => self.report.note(Anomaly::StrayDecrement(qmd)),
        }
    }

    /// Returns the descriptor that a ready grid would start with now.
    pub(crate) fn descriptor_of(&mut self, at: usize) -> Result<Descriptor, Unreadable> {
        let ready = self.ready.get(at).ok_or(Unreadable::Fault)?;
        match &ready.source {
            Source::Copied(descriptor) => Ok((**descriptor).clone()),
            Source::Memory { resume } => {
                let resume = *resume;
                Descriptor::read(&mut self.memory, ready.qmd).map(|mut descriptor| {
                    if !resume {
                        descriptor.resume = [0; 3];
                    }
                    descriptor
                })
            }
        }
    }

    pub(crate) fn waits_on_latch(&mut self, at: usize) -> bool {
        let latch = self
            .descriptor_of(at)
            .ok()
            .and_then(|descriptor| descriptor.wait);
        latch.is_some_and(|latch| !self.latches.contains(&latch))
    }

    pub(crate) fn start(&mut self, at: usize) {
        let descriptor = self.descriptor_of(at);
        let ready = self.ready.remove(at);
        let descriptor = match descriptor {
            Ok(descriptor) => descriptor,
            Err(why) => return self.report.note(Anomaly::of_unreadable(ready.qmd, why)),
        };
        self.note_unmeasured(&ready, &descriptor);
        if self.report.runs.len() >= self.config.runs_max {
            return self.report.note(Anomaly::Bound("runs"));
        }
        let run = self.report.runs.len();
        let blocks = match descriptor.runs_blocks() {
            true => blocks_from(descriptor.grid, descriptor.resume),
            false => Vec::new(),
        };
        self.report.runs.push(Run {
            qmd: ready.qmd,
            channel: ready.channel,
            kind: descriptor.kind,
            kernel: descriptor.kernel,
            group: descriptor.group,
            mask: descriptor.mask,
            grid: descriptor.grid,
            resume: descriptor.resume,
            blocks,
            started: self.clock,
            ended: None,
        });
        if let Some(reference) = descriptor.reference.filter(|reference| reference.raise) {
            self.act(Some(run), Act::Raise(reference));
        }
        self.running.push(Running {
            run,
            descriptor,
            epoch: ready.epoch,
            signalled: false,
            finished: false,
        });
    }

    fn note_unmeasured(&mut self, ready: &Ready, descriptor: &Descriptor) {
        if matches!(descriptor.kind, Kind::Unknown(_)) {
            self.report.note(Anomaly::UnknownKind(ready.qmd));
        }
        let conditional = descriptor.counter > 0 || descriptor.require_scheduling;
        if conditional && matches!(ready.source, Source::Memory { resume: true }) {
            self.report.note(Anomaly::UncopiedCondition(ready.qmd));
        }
    }

    /// Handles program pre-exit: every block has triggered the dependents.
    pub(crate) fn signal(&mut self, at: usize) {
        let Some(running) = self.running.get_mut(at) else {
            return;
        };
        running.signalled = true;
        let (run, epoch) = (running.run, running.epoch);
        let dependents = running.descriptor.dependents.clone();
        self.signal_dependents(run, epoch, &dependents);
    }

    /// Handles the end of the last block.
    pub(crate) fn end(&mut self, at: usize) {
        let Running {
            run,
            descriptor,
            epoch,
            signalled,
            ..
        } = self.running.remove(at);
        let Some(entry) = self.report.runs.get_mut(run) else {
            return;
        };
        entry.ended = Some(self.clock);
        let (qmd, channel) = (entry.qmd, entry.channel);
        for release in &descriptor.releases {
            self.act(Some(run), Act::Release(*release));
            let words = match release.size {
                0 => 4,
                size => size,
            };
            self.store_release(release.address, release.payload, words, release.reduction);
        }
        if let Some(reference) = descriptor.reference.filter(|reference| reference.lower) {
            self.act(Some(run), Act::Lower(reference));
        }
        if let Some(latch) = descriptor.arrive {
            self.act(Some(run), Act::Arrive(latch));
            self.latches.insert(latch);
        }
        if descriptor.self_copy {
            self.rearm(qmd, channel, epoch);
        }
        if !signalled {
            self.signal_dependents(run, epoch, &descriptor.dependents);
        }
    }

    /// Handles SELF_COPY_ON_COMPLETION: fetches the descriptor again, to wait for its next use.
    fn rearm(&mut self, qmd: u64, channel: ChannelId, epoch: u64) {
        let Ok(mut descriptor) = Descriptor::read(&mut self.memory, qmd) else {
            return;
        };
        descriptor.resume = [0; 3];
        if self.is_full() {
            return;
        }
        self.held.insert(
            qmd,
            Held {
                counter: descriptor.counter,
                parked: true,
                stored: true,
                descriptor,
                rearmed: true,
                channel,
                epoch,
            },
        );
    }

    fn signal_dependents(&mut self, run: usize, epoch: u64, dependents: &[Dependent]) {
        let (own, channel) = match self.report.runs.get(run) {
            Some(run) => (run.qmd, run.channel),
            None => return,
        };
        for dependent in dependents {
            let Some(qmd) = dependent.qmd else {
                self.report.note(Anomaly::UnknownDependent(own));
                continue;
            };
            match dependent.action {
                0 => self.act(Some(run), Act::QueuePut(qmd)),
                1 | 3 => {
                    self.act(Some(run), Act::Schedule(qmd));
                    if dependent.action == 3 {
                        self.held.remove(&qmd);
                    }
                    self.schedule(qmd, channel, epoch, Source::Memory { resume: false }, true);
                }
                4 => self.decrement(Some(run), qmd),
                _ => self.report.note(Anomaly::UnknownDependent(own)),
            }
        }
    }
}
