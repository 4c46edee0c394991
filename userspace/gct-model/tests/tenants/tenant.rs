// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Models one tenant: a process with one channel, whose work goes through a real lane and governor
//! into a model of the launch hardware.

use super::channel::{self, Channel, Kernel};
use super::memory::{Heap, Ram, View};
use crate::common::CHANNEL;
use gct_core::engine::Terms;
use gct_core::ids::FileId;
use gct_core::lane::channel::Lane;
use gct_core::lane::governor::Governor;
use gct_core::lane::in_flight::InFlightQueue;
use gct_core::lane::ring::RealRing;
use gct_core::lane::roster::{Company, Roster, Seats, MEMBERS_MAX};
use gct_core::lane::scratch::Scratch;
use gct_core::lane::split::{AtomRoom, ATOMS_MAX, FRAME_WORDS, SLOTS_WORDS};
use gct_core::lane::work::{Round, Stream, Workspace};
use gct_core::owned::worker;
use gct_core::policy::share::Rival;
use gct_core::policy::tpc::Neighbour;
use gct_core::submit::rewrite::{Cut, Order};
use gct_core::submit::tracker::QmdCall;
use gct_core::units::Ns;
use gct_model::{Anomaly, Config, Coverage, Machine, Run};
use std::collections::{BTreeMap, VecDeque};

/// Frames for split launches.
const FRAMES: usize = 3;
/// Kernels whose durations a governor knows.
const KERNELS: usize = 64;
/// Longest segment in words, with the atoms of a launch.
const SEGMENT_WORDS: usize = 1 << 12;

/// A launch that has not ended.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    pub(crate) submitted: u64,
    /// When its first block began.
    pub(crate) began: Option<u64>,
    ran: Coverage,
}

/// What a round of a tenant has published: the descriptors that it schedules.
pub(crate) type Published = Vec<u64>;

/// A process on the GPU.
pub(crate) struct Tenant {
    pub(crate) file: FileId,
    ram: Ram,
    channel: Channel,
    lane: Lane<Heap, View>,
    pub(crate) governor: Governor<Heap, Company<Heap>>,
    scratch: Scratch<Heap, View>,
    machine: Machine<Ram>,
    /// The next run of the machine that was not looked at.
    seen: usize,
    /// Runs with blocks that have begun and not ended.
    running: u32,
    /// Launches submitted and ended so far.
    pub(crate) submitted: u32,
    pub(crate) ended: u32,
    pub(crate) launches: VecDeque<Launch>,
    /// What the law says of the descriptors that were published, by address.
    pub(crate) pieces: BTreeMap<u64, super::law::Piece>,
}

/// Creates the buffers that one thread needs for all its lanes.
pub(crate) fn workspace() -> Workspace<Heap> {
    Workspace::new(
        vec![0; SEGMENT_WORDS],
        vec![Order::default(); 8],
        vec![0; SEGMENT_WORDS],
    )
}

fn company(terms: &Terms) -> Company<Heap> {
    let seats = Seats {
        neighbours: vec![Neighbour::NONE; MEMBERS_MAX],
        slots: vec![0; MEMBERS_MAX],
        rivals: vec![Rival::default(); MEMBERS_MAX],
        numbers: vec![0; MEMBERS_MAX],
    };
    Company::new(terms.owner, terms.standing, seats)
}

impl Tenant {
    /// Creates a process whose launches all are graphs, or none.
    pub(crate) fn new(file: FileId, terms: &Terms, graphs: bool) -> Self {
        let words = channel::WORDS + FRAMES * FRAME_WORDS;
        let ram = Ram::new(words);
        let (frames, len) = (channel::WORDS, FRAMES * FRAME_WORDS);
        let scratch = Scratch::new(
            Ram::va(frames),
            (frames, len),
            len,
            FRAME_WORDS,
            vec![None; FRAMES],
        );
        let room = AtomRoom::new(vec![0; SLOTS_WORDS], vec![Cut::NONE; ATOMS_MAX as usize]);
        let stream = Stream::new(0xc86f, room, vec![QmdCall::default(); 8]);
        let ring = RealRing::new(vec![0; channel::ENTRIES as usize]);
        let mut lane = Lane::new(
            channel::ENTRIES,
            ring,
            InFlightQueue::new(vec![None; 64]),
            stream,
        );
        lane.set_token(1);
        let mut governor = Governor::new(
            terms.limits,
            vec![None; if graphs { 0 } else { KERNELS }],
            // It knows no nodes of graphs. A lone launch is not to be taken for the head of one.
            vec![],
            vec![None; KERNELS],
        );
        governor.measure_clock(vec![None; KERNELS]);
        governor.set_gpu(terms.topology);
        governor.set_peers(Some(company(terms)));
        let config = Config {
            timed: true,
            runs_max: usize::MAX,
            effects_max: usize::MAX,
            ..Config::default()
        };
        Self {
            file,
            channel: Channel::new(),
            lane,
            governor,
            scratch: scratch.expect("room for frames"),
            machine: Machine::new(ram.clone(), config),
            ram,
            seen: 0,
            running: 0,
            submitted: 0,
            ended: 0,
            launches: VecDeque::new(),
            pieces: BTreeMap::new(),
        }
    }

    pub(crate) fn company(&mut self) -> &mut Company<Heap> {
        self.governor.peers_mut().expect("set at the beginning")
    }

    /// Takes over new limits, as the driver does when a file was written.
    pub(crate) fn set(&mut self, terms: &Terms) {
        self.governor.set_gpu(terms.topology);
        self.governor.set_limits(terms.limits);
        self.company().set_standing(terms.owner, terms.standing);
    }

    /// Returns whether the program may launch once more with `depth` launches outstanding at most.
    pub(crate) fn has_room(&self, depth: u32) -> bool {
        self.submitted - self.ended < depth && self.channel.has_room()
    }

    /// Launches as the program. There is room.
    pub(crate) fn launch(&mut self, kernel: &Kernel, now: u64) {
        self.submitted += 1;
        self.channel.launch(&self.ram, kernel, self.submitted);
        self.launches.push_back(Launch {
            kernel: *kernel,
            submitted: now,
            began: None,
            ran: Coverage::default(),
        });
    }

    /// Runs one round, as the worker of the driver and of the library do. Returns what it has
    /// published, and how busy it was.
    pub(crate) fn round(
        &mut self,
        roster: &mut Roster<Heap>,
        work: &mut Workspace<Heap>,
        now: u64,
    ) -> (Published, worker::Round) {
        let now = Ns(now);
        self.company().see(roster, now);
        self.governor.begin(now);
        let moved = self.lane.follow_get(&self.channel.sides);
        let mut round = Round {
            memory: &self.ram,
            scratch: Some(&mut self.scratch),
            copies: None,
            slots: None,
            turn: worker::TURN_MAX,
            words: u32::MAX,
            work,
            now,
            ahead: None,
        };
        let count = self
            .lane
            .publish(&self.channel.sides, &mut self.governor, &mut round);
        let pending = self.lane.is_unfinished();
        self.governor.end(pending, now);
        roster.publish(self.governor.peers().expect("set at the beginning"));
        let mut published = Vec::new();
        while let Some(fetched) = self.channel.fetch(&self.ram) {
            self.machine.submit(CHANNEL, &fetched.words);
            published.extend(fetched.scheduled);
        }
        let found = match (count, moved, pending) {
            (worker::TURN_MAX.., ..) => worker::Round::Left,
            (1.., ..) | (_, true, _) => worker::Round::Busy,
            _ if self.lane.is_split() => worker::Round::Busy,
            (_, _, true) => worker::Round::Watched,
            _ => worker::Round::Idle,
        };
        (published, found)
    }

    /// Returns whether its last round has left work.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.lane.is_unfinished()
    }

    /// Returns whether its lane has nothing to do.
    pub(crate) fn rests(&self) -> bool {
        self.lane.rests(&self.channel.sides)
    }

    /// Returns whether launches have not ended.
    pub(crate) fn has_work(&self) -> bool {
        self.submitted > self.ended
    }

    /// Returns whether it has work of which the GPU has nothing to run.
    pub(crate) fn is_held(&self) -> bool {
        self.has_work() && self.running == 0
    }

    /// Has the hardware do all that takes no time. Returns the runs with blocks that have begun.
    pub(crate) fn step(&mut self) -> Vec<usize> {
        let mut grids = Vec::new();
        loop {
            while self.machine.step() {}
            let runs = &self.machine.report().runs[self.seen..];
            if runs.is_empty() {
                return grids;
            }
            let news = self.seen..self.seen + runs.len();
            self.seen = news.end;
            for run in news {
                match self.machine.report().runs[run].count() {
                    // A join.
                    0 => self.finish(run),
                    _ => {
                        self.running += 1;
                        grids.push(run);
                    }
                }
            }
        }
    }

    /// Returns a run of the machine.
    pub(crate) fn run(&self, run: usize) -> &Run {
        &self.machine.report().runs[run]
    }

    /// Records that the blocks of a run have ended.
    pub(crate) fn finish(&mut self, run: usize) {
        let ended = &self.machine.report().runs[run];
        self.running -= u32::from(ended.count() > 0);
        self.pieces.remove(&ended.qmd);
        self.machine.finish(run);
    }

    /// Accounts a run for the launch that it belongs to: the first that did not run completely.
    ///
    /// # Panics
    ///
    /// If no launch asked for it, or an earlier one has not ended.
    pub(crate) fn begin(&mut self, run: usize) -> Kernel {
        let run = &self.machine.report().runs[run];
        let released = self.ram.get(channel::RELEASE) - self.ended;
        let mut launches = (0..).zip(&mut self.launches);
        let missing = |launch: &Launch| launch.ran.total() < u64::from(launch.kernel.blocks);
        let (at, launch) = launches
            .find(|(_, launch)| missing(launch))
            .expect("nobody launched this grid");
        let program = u64::from(launch.kernel.program);
        assert_eq!(run.kernel.program, program, "another launch's grid");
        assert_eq!(at, released, "a launch before it has not ended");
        launch.ran.add(&run.blocks);
        launch.kernel
    }

    /// Takes launches off that have released their numbers. Returns them.
    ///
    /// # Panics
    ///
    /// If not each block of one has run exactly once, or the hardware saw something unusual.
    pub(crate) fn take_ended(&mut self) -> Vec<Launch> {
        let mut ended = Vec::new();
        while self.ended < self.ram.get(channel::RELEASE) {
            let launch = self.launches.pop_front().expect("it was launched");
            let counts = launch.ran.counts();
            let once = matches!(counts[..], [(blocks, 1)] if blocks.count() == u64::from(launch.kernel.blocks));
            assert!(
                once,
                "launch {} of {:?} ran {counts:?}",
                self.ended, launch.kernel
            );
            self.ended += 1;
            ended.push(launch);
        }
        let anomalies: &[Anomaly] = &self.machine.report().anomalies;
        assert_eq!(anomalies, []);
        ended
    }
}
