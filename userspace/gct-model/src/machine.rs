// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The machine: channels, the scheduler and memory, one step at a time.

use std::collections::{BTreeMap, BTreeSet};

use crate::channel::Channel;
use crate::command::{Command, Wait};
use crate::descriptor::Descriptor;
use crate::memory::GuestMemory;
use crate::report::{Anomaly, ChannelId, Moment, Report, Waiting};

/// Which of the things that can happen next happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Grids end, and start, before the next method is executed.
    Eager,
    /// All methods first; then the newest grid starts and ends first.
    Late,
    /// Any, by a seed.
    Random(u64),
}

/// Bounds and choices of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The order of events.
    pub order: Order,
    /// Words that may wait in all channels together.
    pub words_max: usize,
    /// Grids that may run in the life of the machine.
    pub runs_max: usize,
    /// Effects that are recorded.
    pub effects_max: usize,
    /// Descriptors that the scheduler holds, ready or waiting.
    pub held_max: usize,
    /// Grids that run at a time.
    pub running_max: usize,
    /// Bytes that one copy engine command moves.
    pub copy_bytes_max: u64,
    /// Grids run until [`Machine::finish`] ends them, for whoever models time.
    pub timed: bool,
    /// Every grid is of a stream of its own and waits for none before it in its channel, as streams that share a channel do.
    pub streams_apart: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            order: Order::Eager,
            words_max: 1 << 22,
            runs_max: 1 << 16,
            effects_max: 1 << 18,
            held_max: 1 << 14,
            running_max: usize::MAX,
            copy_bytes_max: 1 << 26,
            timed: false,
            streams_apart: false,
        }
    }
}

/// A copied descriptor that waits for decrements or a SCHEDULE.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) descriptor: Descriptor,
    pub(crate) counter: u32,
    /// Waits for a SCHEDULE.
    pub(crate) parked: bool,
    /// It is read from memory again when it starts.
    pub(crate) stored: bool,
    /// Armed anew by SELF_COPY_ON_COMPLETION: only a dependence can start it.
    pub(crate) rearmed: bool,
    pub(crate) channel: ChannelId,
    pub(crate) epoch: u64,
}

/// Where a scheduled grid's descriptor comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A copy made by a PCAS with COPY.
    Copied(Box<Descriptor>),
    /// Memory, read when the grid starts; RESUME counts or is ignored.
    Memory { resume: bool },
}

/// A grid that may start.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    pub(crate) qmd: u64,
    pub(crate) source: Source,
    pub(crate) channel: ChannelId,
    pub(crate) epoch: u64,
    /// Does not wait for the channel's earlier epochs: a dependence started it.
    pub(crate) free: bool,
}

/// A grid whose blocks run.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// Index of its run in the report.
    pub(crate) run: usize,
    pub(crate) descriptor: Descriptor,
    pub(crate) epoch: u64,
    /// Its dependents were signalled by program pre-exit.
    pub(crate) signalled: bool,
    /// Its time is over, if the machine is timed.
    pub(crate) finished: bool,
}

/// Something that can happen next.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Method(ChannelId),
    Start(usize),
    Signal(usize),
    End(usize),
}

/// The launch hardware of one GPU over a memory.
#[derive(Clone, Debug)]
pub struct Machine<M> {
    pub(crate) memory: M,
    pub(crate) config: Config,
    rng: fastrand::Rng,
    pub(crate) report: Report,
    pub(crate) clock: Moment,
    pub(crate) channels: BTreeMap<ChannelId, Channel>,
    words: usize,
    pub(crate) held: BTreeMap<u64, Held>,
    pub(crate) ready: Vec<Ready>,
    pub(crate) running: Vec<Running>,
    pub(crate) latches: BTreeSet<u32>,
}

impl<M: GuestMemory> Machine<M> {
    /// A machine on which nothing has happened.
    pub fn new(memory: M, config: Config) -> Self {
        let seed = match config.order {
            Order::Random(seed) => seed,
            Order::Eager | Order::Late => 0,
        };
        Self {
            memory,
            config,
            rng: fastrand::Rng::with_seed(seed),
            report: Report::default(),
            clock: 0,
            channels: BTreeMap::new(),
            words: 0,
            held: BTreeMap::new(),
            ready: Vec::new(),
            running: Vec::new(),
            latches: BTreeSet::new(),
        }
    }

    /// Queues a segment on a channel, which appears with its first one.
    pub fn submit(&mut self, channel: ChannelId, words: &[u32]) {
        if self.words.saturating_add(words.len()) > self.config.words_max {
            self.report.note(Anomaly::Bound("words"));
            return;
        }
        self.words += words.len();
        self.channels
            .entry(channel)
            .or_insert_with(Channel::new)
            .push(words);
    }

    /// Arrives at a latch on behalf of a launch that was submitted elsewhere.
    pub fn arrive(&mut self, latch: u32) {
        self.latches.insert(latch);
    }

    /// The runs (their indices in the report) that have not ended.
    pub fn running(&self) -> impl Iterator<Item = usize> + '_ {
        self.running.iter().map(|running| running.run)
    }

    /// The time of a run is over: the next steps may end it.
    pub fn finish(&mut self, run: usize) {
        for running in &mut self.running {
            running.finished |= running.run == run;
        }
    }

    /// What happened so far. The waiting and blocked lists are made by [`Machine::run`].
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The memory.
    pub fn memory(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Steps until nothing more can happen and returns what happened.
    pub fn run(&mut self) -> &Report {
        while self.step() {}
        self.report.waiting = self.still_waiting();
        self.report.blocked = self
            .channels
            .iter()
            .filter(|(_, channel)| channel.has_work())
            .map(|(id, _)| *id)
            .collect();
        &self.report
    }

    /// The report and the memory, when the machine is done with.
    pub fn into_parts(self) -> (Report, M) {
        (self.report, self.memory)
    }

    /// Does one thing; false when nothing can happen.
    ///
    /// Every step takes a word from a segment or moves a grid to its next stage, and both are bounded.
    pub fn step(&mut self) -> bool {
        let Some(choice) = self.choose() else {
            return false;
        };
        self.clock += 1;
        match choice {
            Choice::Method(channel) => self.method(channel),
            Choice::Start(ready) => self.start(ready),
            Choice::Signal(running) => self.signal(running),
            Choice::End(running) => self.end(running),
        }
        true
    }

    /// One of the things that can happen, as the order wants it.
    fn choose(&mut self) -> Option<Choice> {
        let mut choices = self.choices();
        while !choices.is_empty() {
            let pick = match self.config.order {
                Order::Random(_) => self.rng.usize(..choices.len()),
                Order::Eager | Order::Late => 0,
            };
            let choice = choices.remove(pick);
            // To read a descriptor takes time, so only that of a grid which is picked is read.
            match choice {
                Choice::Start(ready) if self.waits_on_latch(ready) => {}
                _ => return Some(choice),
            }
        }
        None
    }

    /// What can happen as far as no descriptor has to be read for it, first what the order prefers.
    fn choices(&mut self) -> Vec<Choice> {
        let methods: Vec<Choice> = self
            .channels
            .keys()
            .copied()
            .collect::<Vec<_>>()
            .into_iter()
            .filter(|channel| self.may_proceed(*channel))
            .map(Choice::Method)
            .collect();
        let epochs = self.first_epochs();
        let is_first = |ready: &Ready| {
            ready.free
                || self.config.streams_apart
                || epochs
                    .get(&ready.channel)
                    .is_none_or(|first| *first >= ready.epoch)
        };
        let starts: Vec<Choice> = self
            .ready
            .iter()
            .enumerate()
            .filter(|(_, ready)| is_first(ready) && self.running.len() < self.config.running_max)
            .map(|(at, _)| Choice::Start(at))
            .collect();
        let ends = self.running.iter().enumerate().flat_map(|(at, running)| {
            let signal = running.descriptor.pre_exit && !running.signalled;
            let end = running.finished || !self.config.timed;
            [
                signal.then_some(Choice::Signal(at)),
                end.then_some(Choice::End(at)),
            ]
        });
        let ends: Vec<Choice> = ends.flatten().collect();
        match self.config.order {
            Order::Eager => [ends, starts, methods].concat(),
            Order::Late | Order::Random(_) => {
                let newest_first = |list: Vec<Choice>| list.into_iter().rev().collect();
                [methods, newest_first(starts), newest_first(ends)].concat()
            }
        }
    }

    /// The earliest epoch that each channel has at work.
    fn first_epochs(&self) -> BTreeMap<ChannelId, u64> {
        let ready = self.ready.iter().map(|ready| (ready.channel, ready.epoch));
        let running = self
            .running
            .iter()
            .map(|running| (self.channel_of(running), running.epoch));
        let mut first = BTreeMap::new();
        for (channel, epoch) in ready.chain(running) {
            let earliest = first.entry(channel).or_insert(epoch);
            *earliest = epoch.min(*earliest);
        }
        first
    }

    fn may_proceed(&mut self, id: ChannelId) -> bool {
        let Some(channel) = self.channels.get(&id) else {
            return false;
        };
        if !channel.has_work() {
            return false;
        }
        match channel.wait {
            None => true,
            Some(Wait::Idle) => self.is_idle(id),
            Some(Wait::Memory {
                address,
                payload,
                compare,
            }) => self
                .memory
                .read_u32(address)
                .is_ok_and(|value| compare.holds(value, payload)),
        }
    }

    fn is_idle(&self, channel: ChannelId) -> bool {
        self.ready.iter().all(|ready| ready.channel != channel)
            && self
                .running
                .iter()
                .all(|running| self.channel_of(running) != channel)
    }

    pub(crate) fn channel_of(&self, running: &Running) -> ChannelId {
        self.report
            .runs
            .get(running.run)
            .map(|run| run.channel)
            .unwrap_or_default()
    }

    /// Executes methods up to one that does more than to store a word.
    fn method(&mut self, id: ChannelId) {
        loop {
            let Some(channel) = self.channels.get_mut(&id) else {
                return;
            };
            channel.wait = None;
            let Some(command) = channel.pending.take().or_else(|| channel.advance()) else {
                return;
            };
            let is_store = matches!(command, Command::Store { .. });
            self.execute(id, command);
            if !is_store {
                return;
            }
        }
    }

    /// Lets a channel wait before it executes `then`.
    pub(crate) fn wait(&mut self, id: ChannelId, wait: Wait, then: Option<Command>) {
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.wait = Some(wait);
            channel.pending = then;
        }
    }

    fn still_waiting(&mut self) -> Vec<Waiting> {
        let mut waiting: Vec<Waiting> = self
            .held
            .iter()
            .filter(|(_, held)| !held.rearmed)
            .map(|(qmd, held)| Waiting {
                qmd: *qmd,
                counter: held.counter,
                scheduling: held.parked,
                latch: None,
                kernel: Some(held.descriptor.kernel),
            })
            .collect();
        for at in 0..self.ready.len() {
            let descriptor = self.descriptor_of(at).ok();
            waiting.extend(self.ready.get(at).map(|ready| Waiting {
                qmd: ready.qmd,
                counter: 0,
                scheduling: false,
                latch: descriptor.as_ref().and_then(|descriptor| descriptor.wait),
                kernel: descriptor.map(|descriptor| descriptor.kernel),
            }));
        }
        waiting.sort_unstable();
        waiting
    }
}
