// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executes channels and the scheduler over a memory, one step at a time.

use std::collections::{BTreeMap, BTreeSet};

use crate::channel::Channel;
use crate::command::{Command, Wait};
use crate::descriptor::Descriptor;
use crate::memory::GuestMemory;
use crate::report::{Anomaly, ChannelId, Moment, Report, Waiting};

/// The order in which possible events happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Grids end and start before the next method is executed.
    Eager,
    /// All methods come first; then the newest grid starts and ends first.
    Late,
    /// A random order, by a seed.
    Random(u64),
}

/// Bounds and options of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The order of events.
    pub order: Order,
    /// Maximum number of queued words of all channels together.
    pub words_max: usize,
    /// Maximum number of runs in the life of the machine.
    pub runs_max: usize,
    /// Maximum number of recorded effects.
    pub effects_max: usize,
    /// Maximum number of descriptors held by the scheduler, ready or waiting.
    pub held_max: usize,
    /// Maximum number of concurrent grids.
    pub running_max: usize,
    /// Maximum number of bytes per copy engine command.
    pub copy_bytes_max: u64,
    /// Grids run until [`Machine::finish`] ends them, for callers that model time.
    pub timed: bool,
    /// Every grid belongs to a stream of its own. It waits for no earlier grid of its channel, like
    /// streams that share a channel.
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
    /// Whether it waits for a SCHEDULE.
    pub(crate) parked: bool,
    /// Whether it is read from memory again when it starts.
    pub(crate) stored: bool,
    /// Whether SELF_COPY_ON_COMPLETION armed it: then only a dependence can start it.
    pub(crate) rearmed: bool,
    pub(crate) channel: ChannelId,
    pub(crate) epoch: u64,
}

/// The source of a scheduled grid's descriptor.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A copy made by a PCAS with COPY.
    Copied(Box<Descriptor>),
    /// Memory, read when the grid starts. `resume` tells whether RESUME counts.
    Memory { resume: bool },
}

/// A grid that may start.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    pub(crate) qmd: u64,
    pub(crate) source: Source,
    pub(crate) channel: ChannelId,
    pub(crate) epoch: u64,
    /// Whether a dependence started it: then it does not wait for the channel's earlier epochs.
    pub(crate) free: bool,
}

/// A grid whose blocks run.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// Index of the run in the report.
    pub(crate) run: usize,
    pub(crate) descriptor: Descriptor,
    pub(crate) epoch: u64,
    /// Whether program pre-exit has signalled its dependents.
    pub(crate) signalled: bool,
    /// Whether its time is over, if the machine is timed.
    pub(crate) finished: bool,
}

/// A possible next event.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Method(ChannelId),
    Start(usize),
    Signal(usize),
    End(usize),
}

/// The launch hardware of one GPU, over a memory.
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
    /// Creates a machine without any work.
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

    /// Queues a segment on a channel. The first segment creates the channel.
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

    /// Signals a latch on behalf of a launch that was submitted elsewhere.
    pub fn arrive(&mut self, latch: u32) {
        self.latches.insert(latch);
    }

    /// Returns the runs that have not ended, as indices in the report.
    pub fn running(&self) -> impl Iterator<Item = usize> + '_ {
        self.running.iter().map(|running| running.run)
    }

    /// Marks the time of a run as over. The next steps may end it.
    pub fn finish(&mut self, run: usize) {
        for running in &mut self.running {
            running.finished |= running.run == run;
        }
    }

    /// Returns the events so far. [`Machine::run`] fills the lists of waiting and blocked.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Returns the memory.
    pub fn memory(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Steps until nothing more can happen. Returns the report.
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

    /// Returns the report and the memory of a machine that is no longer needed.
    pub fn into_parts(self) -> (Report, M) {
        (self.report, self.memory)
    }

    /// Executes one event. Returns false if none is possible.
    ///
    /// Every step takes a word from a segment or moves a grid to its next stage, and both are
    /// bounded.
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

    /// Chooses one of the possible events, by the configured order.
    fn choose(&mut self) -> Option<Choice> {
        let mut choices = self.choices();
        while !choices.is_empty() {
            let pick = match self.config.order {
                Order::Random(_) => self.rng.usize(..choices.len()),
                Order::Eager | Order::Late => 0,
            };
            let choice = choices.remove(pick);
            // Reading a descriptor takes time, so only the chosen grid's is read.
            match choice {
                Choice::Start(ready) if self.waits_on_latch(ready) => {}
                _ => return Some(choice),
            }
        }
        None
    }

    /// Returns the events that are possible without reading a descriptor, the preferred ones first.
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

    /// Returns the earliest unfinished epoch of each channel.
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

    /// Executes methods up to one that does more than store a word.
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

    /// Makes a channel wait before it executes `then`.
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
