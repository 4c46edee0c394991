// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests shares of a GPU whose contexts take turns or run side by side, in model time.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

mod looks;

const MS: Ns = Ns(1_000_000);
/// The time between two rounds of a process.
const TICK: Ns = Ns(10_000);
/// The time slice of a context, as the driver's default.
const SLICE: Ns = Ns(2_000_000);
/// Time until which every simulation has reached its steady state.
const START: Ns = Ns(200_000_000);

/// How the GPU divides itself among the processes with work in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hardware {
    /// Contexts run one after the other, for a time slice each.
    Slices,
    /// Each has an equal part at a time, as under MPS.
    Beside,
}

/// What a process publishes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Honesty {
    Honest,
    /// It always has work in flight and never moves, and has no work.
    Frozen,
    /// The same, and it comes and goes.
    Flickers,
    /// It is as far ahead as it can say.
    FarAhead,
    /// It works without asking, and publishes that it has never used anything.
    Ungoverned,
}

/// A process that always has work from `from` until `to`.
#[derive(Clone, Debug)]
struct Process {
    owner: usize,
    share: Share,
    turns: Turns,
    cycle: Cycle,
    rivals: Vec<Rival>,
    /// Rest and prediction of its pieces in flight, and when the first one began.
    queue: VecDeque<(Ns, Ns)>,
    head: Ns,
    /// Lengths of its pieces, shortest and longest.
    lengths: (u64, u64),
    from: Ns,
    to: Ns,
    /// It waits for each piece, and then for this long.
    pause: Option<Ns>,
    idle_until: Ns,
    since: Ns,
    honesty: Honesty,
    /// Its GPU time in each millisecond.
    used: Vec<u64>,
}

fn weight(weight: u16) -> Share {
    let owner = Level {
        weight: Some(Weight(weight)),
        max: None,
    };
    Share {
        owner,
        ..Share::NONE
    }
}

fn process(owner: usize, share: Share, lengths: (u64, u64)) -> Process {
    Process {
        owner,
        share,
        turns: Turns::default(),
        cycle: Cycle::default(),
        rivals: Vec::new(),
        queue: VecDeque::new(),
        head: Ns(0),
        lengths,
        from: Ns(0),
        to: Ns::MAX,
        pause: None,
        idle_until: Ns(0),
        since: Ns(0),
        honesty: Honesty::Honest,
        used: Vec::new(),
    }
}

struct Gpu {
    now: Ns,
    random: u64,
    /// The largest error of a prediction, in percent, and what is added to those of owner 0.
    error: u64,
    bias: u64,
    hardware: Hardware,
    context: usize,
    slice: Ns,
    processes: Vec<Process>,
    signs: Vec<Sign>,
}

impl Gpu {
    fn new(hardware: Hardware, processes: &[Process], seed: u64) -> Self {
        let mut processes = processes.to_vec();
        let all: Vec<_> = processes.iter().map(|p| (p.owner, p.share)).collect();
        for (me, process) in processes.iter_mut().enumerate() {
            let relation = |(other, (owner, share)): (usize, &(usize, Share))| Relation {
                sibling: other != me && *owner == process.owner,
                competes: other != me,
                overlaps: other != me,
                first: other < me,
                weight: share.weight(),
            };
            let all = all.iter().enumerate();
            process.rivals = all.map(|other| Rival::new(relation(other))).collect();
        }
        Self {
            now: MS * 1_000_000,
            random: seed | 1,
            error: 50,
            bias: 0,
            hardware,
            context: 0,
            slice: Ns(0),
            signs: vec![Sign::default(); processes.len()],
            processes,
        }
    }

    /// Returns a number of `low..=high` (xorshift).
    fn random(&mut self, (low, high): (u64, u64)) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        low + self.random % (high - low + 1)
    }

    /// Returns the time since the beginning.
    fn time(&self) -> Ns {
        self.now - MS * 1_000_000
    }

    /// Runs one round of a process.
    fn round(&mut self, at: usize) {
        let (now, time) = (self.now, self.time());
        let signs = self.signs.clone();
        let process = &mut self.processes[at];
        for (rival, sign) in process.rivals.iter_mut().zip(signs) {
            rival.see(sign, true, now);
        }
        let has_work = (process.from..process.to).contains(&time) && time >= process.idle_until;
        if process.honesty != Honesty::Honest {
            self.signs[at] = process.lie(time);
            if process.honesty == Honesty::Ungoverned && has_work && process.queue.len() < 2 {
                let time = Ns(process.lengths.0);
                process.queue.push_back((time, time));
            }
            return;
        }
        let runs = process.turns.runs;
        let beside = process.rivals.iter().filter(|r| r.is_beside()).count() as u64;
        let parts = runs.then_some(beside + 1);
        let span = (process.since, now);
        let max = process.share.owner.max;
        process.cycle.pass(max, &process.rivals, span, parts);
        process.since = now;
        let share = process.share;
        process.turns.look(&share, &mut process.rivals, now);
        let most = if process.pause.is_some() { 1 } else { 1000 };
        let mut held = false;
        while has_work && self.processes[at].queue.len() < most {
            let lengths = self.processes[at].lengths;
            let length = self.random(lengths);
            let bias = if self.processes[at].owner == 0 {
                self.bias
            } else {
                0
            };
            let error = self.random((100 - self.error, 100 + self.error)) + bias;
            let process = &mut self.processes[at];
            let rest = rest(&process.queue, now - process.head);
            if !process.cycle.may_release(&process.rivals, rest) {
                break;
            }
            process.turns.contend(&share, &process.rivals);
            if !process.turns.may_release(&share, &process.rivals, rest) {
                held = true;
                break;
            }
            if process.queue.is_empty() {
                process.head = now;
            }
            let piece = (Ns(length), Ns(length * error / 100));
            process.queue.push_back(piece);
        }
        let process = &mut self.processes[at];
        let runs = !process.queue.is_empty();
        process.turns.end(match runs {
            true => Work::Runs,
            false if held => Work::Waits,
            false => Work::Idle,
        });
        self.signs[at] = Sign {
            at: process.turns.at(),
            contends_until: process.turns.contends_until(),
            runs,
            spent: process
                .cycle
                .spent(rest(&process.queue, now - process.head)),
        };
    }

    /// Lets the GPU work for a tick.
    fn work(&mut self) {
        let active: Vec<_> = (0..self.processes.len())
            .filter(|at| !self.processes[*at].queue.is_empty())
            .collect();
        let Some(first) = active.first() else {
            return;
        };
        if self.hardware == Hardware::Beside {
            let part = TICK / active.len() as u64;
            active.iter().for_each(|at| self.give(*at, part));
            return;
        }
        if self.slice == Ns(0) || !active.contains(&self.context) {
            let next = active.iter().find(|at| **at > self.context);
            self.context = *next.unwrap_or(first);
            self.slice = SLICE;
        }
        self.slice -= TICK;
        self.give(self.context, TICK);
    }

    /// Lets a process have the GPU for `time` of this tick.
    fn give(&mut self, at: usize, mut time: Ns) {
        let (now, slot) = (self.now, (self.time() / MS) as usize);
        let process = &mut self.processes[at];
        process.used.resize(process.used.len().max(slot + 1), 0);
        while let Some((rest, _)) = process.queue.front_mut().filter(|_| time > Ns(0)) {
            let part = time.min(*rest);
            *rest -= part;
            time -= part;
            process.used[slot] += part.get();
            if *rest == Ns(0) {
                process.queue.pop_front();
                process.head = now;
                if let Some(pause) = process.pause {
                    process.idle_until = now - MS * 1_000_000 + pause;
                }
            }
        }
    }

    fn run(&mut self, end: Ns) {
        while self.time() < end {
            (0..self.processes.len()).for_each(|at| self.round(at));
            self.work();
            self.now += TICK;
        }
    }

    /// Returns the time that an owner had between two times, which are whole milliseconds.
    fn used(&self, owner: usize, from: Ns, to: Ns) -> u64 {
        let of = self.processes.iter().filter(|p| p.owner == owner);
        let slots = (from / MS) as usize..(to / MS) as usize;
        of.map(|p| {
            let used = |slot| p.used.get(slot).copied().unwrap_or(0);
            slots.clone().map(used).sum::<u64>()
        })
        .sum()
    }

    /// Returns the share of the first owner among two, in hundredths of a percent.
    fn first(&self, from: Ns, to: Ns) -> u64 {
        let (one, two) = (self.used(0, from, to), self.used(1, from, to));
        one * 10_000 / (one + two).max(1)
    }
}

impl Process {
    /// Returns what it publishes although it is not so.
    fn lie(&self, time: Ns) -> Sign {
        let contends = self.honesty != Honesty::Flickers || time / (MS / 2) % 2 == 0;
        let at = match self.honesty {
            Honesty::FarAhead => Virtual::from_word(u64::MAX / 2),
            _ => Virtual::default(),
        };
        Sign {
            at,
            contends_until: if contends { Ns::MAX } else { Ns(0) },
            runs: contends,
            spent: Spent::default(),
        }
    }
}

/// Returns the predicted rest of pieces in flight. Only the first one has begun.
fn rest(queue: &VecDeque<(Ns, Ns)>, passed: Ns) -> Ns {
    let predicted = queue.iter().fold(Ns(0), |sum, piece| sum + piece.1);
    let first = queue.front().map_or(Ns(0), |piece| piece.1);
    predicted - passed.min(first)
}

/// Weight 1:3 gives 25% of a second, whatever the lengths and predictions.
const QUARTER: core::ops::RangeInclusive<u64> = 2_300..=2_700;

fn hardware() -> impl Strategy<Value = Hardware> {
    prop_oneof![Just(Hardware::Slices), Just(Hardware::Beside)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Checks that more processes of an owner do not make its share larger, nor do longer pieces or
    /// predictions that are wrong in one direction.
    #[test]
    fn a_weight_is_a_share_of_a_second(
        hardware in hardware(), processes in 1usize..=4, others in 1usize..=2,
        long in 20_000u64..4_000_000, other in 20_000u64..4_000_000, bias in 0u64..200, seed: u64,
    ) {
        let mut all = vec![process(0, weight(100), (long / 4, long)); processes];
        all.extend(vec![process(1, weight(300), (other / 4, other)); others]);
        let mut gpu = Gpu::new(hardware, &all, seed);
        gpu.bias = bias;
        gpu.run(START + MS * 1_000);
        let part = gpu.first(START, START + MS * 1_000);
        prop_assert!(QUARTER.contains(&part), "{part}");
        let all = gpu.used(0, START, gpu.time()) + gpu.used(1, START, gpu.time());
        prop_assert!(all >= 990 * MS.get(), "it idles: {all}");
    }

    /// Checks that who was away for long gets its share from then on, and nothing for the time
    /// before.
    #[test]
    fn idle_time_is_not_banked(
        hardware in hardware(), away in 1u64..1_000, long in 20_000u64..1_000_000, seed: u64,
    ) {
        let away = START + MS * away;
        let late = Process { from: away, ..process(0, weight(100), (long / 4, long)) };
        let other = process(1, weight(300), (20_000, 500_000));
        let mut gpu = Gpu::new(hardware, &[late, other], seed);
        gpu.run(away + MS * 510);
        prop_assert_eq!(gpu.used(0, Ns(0), away), 0);
        let part = gpu.first(away, away + MS * 500);
        prop_assert!(QUARTER.contains(&part), "{part}");
    }

    /// Checks that processes that wake one after the other have no more than one that stays awake.
    #[test]
    fn processes_that_relieve_each_other_have_one_share(hardware in hardware(), seed: u64) {
        let other = process(1, weight(300), (100_000, 500_000));
        let mut all: Vec<_> = (0..4).map(|at| Process {
            pause: Some(MS * 3),
            idle_until: MS * at,
            ..process(0, weight(100), (500_000, 1_000_000))
        }).collect();
        all.push(other);
        let mut gpu = Gpu::new(hardware, &all, seed);
        gpu.run(START + MS * 1_000);
        let part = gpu.first(START, START + MS * 1_000);
        prop_assert!(part <= 2_700, "{part}");
    }

    /// Checks that an owner that always has work gets its quota in each period, and no more, beside
    /// another.
    #[test]
    fn a_duty_cycle_holds_in_each_period(
        hardware in hardware(), percent in 10u64..=45, period in 50u64..=100,
        processes in 1usize..=4, beside: bool, seed: u64,
    ) {
        let period = MS * period;
        let quota = period * percent / 100;
        let owner = Level { weight: None, max: Some(DutyCycle { quota, period }) };
        let limited = Share { owner, ..Share::NONE };
        let lengths = (30_000, 50_000);
        let mut all = vec![process(0, limited, lengths); processes];
        if beside {
            all.push(process(1, Share::NONE, (lengths.0, lengths.1 * 2)));
        }
        let mut gpu = Gpu::new(hardware, &all, seed);
        gpu.error = 5;
        gpu.run(period * 9);
        let mut sum = 0;
        // Who takes turns by time slices with others does not know whose slice it is.
        let slices = beside && hardware == Hardware::Slices;
        let unknown = if slices { SLICE.get() } else { 0 };
        for number in 2..8 {
            let used = gpu.used(0, period * number, period * (number + 1));
            sum += used;
            // And the pieces in flight at the end, of each process.
            let slack = quota.get() / 50 + 2 * lengths.1 * processes as u64 + unknown;
            prop_assert!(used.abs_diff(quota.get()) <= slack, "{used} of {quota:?} in {number}");
        }
        let slack = 6 * quota.get() / 50 + unknown;
        prop_assert!(sum.abs_diff(6 * quota.get()) <= slack, "{sum} of {quota:?}");
    }

    /// Checks that idle periods are not saved up.
    #[test]
    fn idle_periods_are_not_banked(percent in 5u64..=80, away in 1u64..=50, seed: u64) {
        let period = MS * 20;
        let quota = period * percent / 100;
        let owner = Level { weight: None, max: Some(DutyCycle { quota, period }) };
        let share = Share { owner, ..Share::NONE };
        let late = Process { from: period * away, ..process(0, share, (20_000, 20_000)) };
        let mut gpu = Gpu::new(Hardware::Slices, &[late], seed);
        gpu.error = 5;
        gpu.run(period * (away + 4));
        for number in away..away + 3 {
            let used = gpu.used(0, period * number, period * (number + 1));
            prop_assert!(used <= quota.get() + quota.get() / 50 + 40_000, "{used} of {quota:?}");
        }
    }

    /// Checks that a neighbour that lies about its turns takes no more from others than its weight.
    #[test]
    fn a_liar_delays_others_by_its_share_at_most(
        hardware in hardware(), liar in 1u16..=300, at in 0usize..3, long in 20_000u64..1_000_000,
        seed: u64,
    ) {
        let honesty = [Honesty::Frozen, Honesty::Flickers, Honesty::FarAhead][at];
        let liar = Process { honesty, ..process(0, weight(liar), (1, 1)) };
        let honest = process(1, weight(100), (long / 4, long));
        let weights = u64::from(liar.share.weight().unwrap().get());
        let mut gpu = Gpu::new(hardware, &[liar, honest], seed);
        gpu.run(START + MS * 1_000);
        let used = gpu.used(1, START, START + MS * 1_000) / 1_000_000;
        prop_assert!(used * (100 + weights) >= 98 * 1_000, "{used} ms beside weight {weights}");
    }
}

/// Checks that a process whose neighbours do not wait has the whole GPU, whatever its weight.
#[test]
fn the_gpu_does_not_idle_while_anybody_may_run() {
    let short = Process {
        to: START,
        ..process(1, weight(10_000), (100_000, 500_000))
    };
    let all = [process(0, weight(1), (100_000, 500_000)), short];
    let mut gpu = Gpu::new(Hardware::Slices, &all, 7);
    gpu.run(START + MS * 1_000);
    assert!(gpu.used(0, Ns(0), START) < 10 * MS.get());
    let alone = gpu.used(0, START + MS * 5, START + MS * 1_000);
    assert!(alone >= 994 * MS.get(), "{alone}");
}

/// Checks that a program that waits for each of its launches has its share beside one that always
/// has work, also if its pause is longer than it would be waited for behind a short launch.
#[test]
fn short_pauses_do_not_cost_a_turn() {
    for (length, pause) in [(200_000, 20_000), (1_400_000, 150_000)] {
        let waits = Process {
            pause: Some(Ns(pause)),
            ..process(1, weight(300), (length, length))
        };
        let all = [process(0, weight(100), (1_000_000, 1_000_000)), waits];
        let mut gpu = Gpu::new(Hardware::Slices, &all, 7);
        gpu.run(START + MS * 1_000);
        let used = |process| gpu.used(process, START, gpu.time());
        assert!(used(1) >= 2 * used(0), "{} and {}", used(0), used(1));
    }
}

/// Checks that a process that works without asking has what it would have without weights, and no
/// more.
#[test]
fn who_does_not_ask_has_its_time_slices() {
    let ungoverned = Process {
        honesty: Honesty::Ungoverned,
        ..process(0, weight(100), (1_000_000, 1_000_000))
    };
    let all = [ungoverned, process(1, weight(300), (100_000, 500_000))];
    let mut gpu = Gpu::new(Hardware::Slices, &all, 7);
    gpu.run(START + MS * 1_000);
    let part = gpu.first(START, START + MS * 1_000);
    assert!(part <= 6_000, "{part}");
}

/// Checks that a piece that never ends holds nobody back for good.
#[test]
fn a_piece_that_does_not_end_is_not_waited_for() {
    let long = 100_000 * MS.get();
    let endless = process(0, weight(300), (long, long));
    let all = [endless, process(1, weight(100), (100_000, 500_000))];
    let mut gpu = Gpu::new(Hardware::Slices, &all, 7);
    gpu.error = 0;
    gpu.run(START + MS * 1_000);
    let used = gpu.used(1, START, START + MS * 1_000);
    assert!((230..=270).contains(&(used / MS.get())), "{used}");
}

/// Checks that later periods pay what a piece took beyond the quota.
#[test]
fn a_long_piece_goes_and_is_paid_for() {
    let max = DutyCycle {
        quota: MS * 10,
        period: MS * 100,
    };
    let mut cycle = Cycle::default();
    let pass = |cycle: &mut Cycle, from, to, runs: bool| {
        cycle.pass(Some(max), &[], (MS * from, MS * to), runs.then_some(1));
    };
    pass(&mut cycle, 1_000, 1_000, false);
    assert!(cycle.may_release(&[], Ns(0)) && !cycle.may_release(&[], MS * 10));
    pass(&mut cycle, 1_000, 1_045, true);
    assert!(!cycle.may_release(&[], Ns(0)));
    // 45 of 10 in each: four periods pay 40, and the fifth the rest.
    pass(&mut cycle, 1_045, 1_399, false);
    assert!(!cycle.may_release(&[], Ns(0)));
    pass(&mut cycle, 1_399, 1_400, false);
    assert!(cycle.may_release(&[], MS * 4) && !cycle.may_release(&[], MS * 5));
    assert_eq!(cycle.spent(Ns(0)).time, MS * 5);
    // A change of the limit forgives.
    cycle.pass(None, &[], (MS * 1_400, MS * 1_401), Some(1));
    assert!(cycle.may_release(&[], Ns::MAX));
    pass(&mut cycle, 1_401, 1_402, false);
    assert!(cycle.may_release(&[], Ns(0)));
}

#[test]
fn spent_time_survives_the_word() {
    for (period, time) in [(0, 0), (7, 64_000), (u32::MAX, 64)] {
        let spent = Spent {
            period,
            time: Ns(time),
        };
        assert_eq!(Spent::from_word(spent.to_word()), spent);
    }
    let long = Spent {
        period: 1,
        time: Ns::MAX,
    };
    assert_eq!(Spent::from_word(long.to_word()).period, 1);
}

#[test]
fn a_process_has_the_smaller_of_both_weights() {
    let level = |weight: Option<u16>| Level {
        weight: weight.map(Weight),
        max: None,
    };
    let share = |owner, own| Share {
        owner: level(owner),
        own: level(own),
    };
    assert_eq!(share(Some(300), Some(50)).weight(), Some(Weight(50)));
    assert_eq!(share(None, Some(50)).weight(), Some(Weight(50)));
    assert_eq!(share(None, None).weight(), None);
    let time = |share: Share, sharers| share.virtual_time(Ns(300), sharers);
    assert_eq!(time(share(Some(300), None), 2), Ns(200));
    assert_eq!(time(share(Some(300), Some(50)), 2), Ns(600));
    assert_eq!(time(share(Some(300), Some(50)), 9), Ns(900));
    assert_eq!(time(share(None, None), 1), Ns(300));
}

#[test]
fn virtual_time_wraps() {
    let end = Virtual::from_word(u64::MAX);
    let next = end.after(Ns(5));
    assert_eq!((next.ahead_of(end), end.ahead_of(next)), (Ns(5), Ns(0)));
    assert_eq!((end.max(next), end.min(next)), (next, end));
    assert_eq!(next.before(Ns(5)), end);
}
