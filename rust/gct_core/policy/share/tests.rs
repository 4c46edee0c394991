// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests shares of a GPU that runs one piece after the other, in model time.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

const MS: Ns = Ns(1_000_000);
/// Time until which every simulation has reached its steady state.
const START: Ns = Ns(1_000_000_000);
/// Pieces of a process in flight, as `pace` has them.
const IN_FLIGHT: u32 = 2;

/// A process that always has work from `from` until `to`.
#[derive(Clone, Debug)]
struct Process {
    node: usize,
    in_flight: u32,
    /// Lengths of its pieces, shortest and longest.
    lengths: (u64, u64),
    from: Ns,
    to: Ns,
}

/// A piece in flight.
struct Piece {
    process: usize,
    time: Ns,
    charge: Charge,
}

/// A GPU and the accounts of its nodes.
struct Gpu {
    now: Ns,
    random: u64,
    /// The largest error of a prediction, in percent, and what is added to those of node 0.
    error: u64,
    bias: u64,
    clock: Clock,
    nodes: Vec<(Account, Share)>,
    processes: Vec<Process>,
    queue: VecDeque<Piece>,
    /// The time of each node in each millisecond.
    used: Vec<Vec<u64>>,
}

fn share(weight: u16) -> Share {
    Share {
        weight: Weight(weight),
        max: None,
    }
}

fn process(node: usize, lengths: (u64, u64)) -> Process {
    Process {
        node,
        in_flight: 0,
        lengths,
        from: Ns(0),
        to: Ns::MAX,
    }
}

impl Gpu {
    fn new(shares: &[Share], processes: &[Process], seed: u64) -> Self {
        Self {
            now: Ns(0),
            random: seed | 1,
            error: 50,
            bias: 0,
            clock: Clock::default(),
            nodes: shares
                .iter()
                .map(|share| (Account::default(), *share))
                .collect(),
            processes: processes.to_vec(),
            queue: VecDeque::new(),
            used: vec![Vec::new(); shares.len()],
        }
    }

    /// Returns a number of `low..=high` (xorshift).
    fn random(&mut self, (low, high): (u64, u64)) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        low + self.random % (high - low + 1)
    }

    fn has_work(&self, process: &Process) -> bool {
        (process.from..process.to).contains(&self.now)
    }

    /// Returns whether a process has a piece to release.
    fn holds(&self, process: usize) -> bool {
        let process = &self.processes[process];
        self.has_work(process) && process.in_flight < IN_FLIGHT
    }

    fn is_idle(&self, node: usize) -> bool {
        let mut processes = self.processes.iter().filter(|p| p.node == node);
        processes.all(|p| p.in_flight == 0)
    }

    /// Releases all pieces that may go.
    fn release(&mut self) {
        while (0..self.processes.len()).fold(false, |any, process| self.release_one(process) | any)
        {
        }
    }

    /// Returns the accounts with work in flight, or with work that a duty cycle does not hold back.
    fn with_work(&mut self) -> Vec<Account> {
        let mut accounts = Vec::new();
        for process in 0..self.processes.len() {
            let (node, in_flight) = (
                self.processes[process].node,
                self.processes[process].in_flight,
            );
            let (account, share) = &mut self.nodes[node];
            let free = account.ready_at(share, Ns(1), self.now) <= self.now;
            let account = *account;
            if in_flight > 0 || free && self.holds(process) {
                accounts.push(account);
            }
        }
        accounts
    }

    fn release_one(&mut self, process: usize) -> bool {
        if !self.holds(process) {
            return false;
        }
        let now = self.now;
        let time = self.random(self.processes[process].lengths);
        let node = self.processes[process].node;
        let bias = if node == 0 { self.bias } else { 0 };
        let error = self.random((100 - self.error, 100 + self.error)) + bias;
        let predicted = Ns(time * error / 100);
        if self.is_idle(node) {
            self.nodes[node].0.wake(&self.clock);
        }
        let with_work = self.with_work();
        self.clock.advance(&with_work);
        let (account, share) = &mut self.nodes[node];
        let free = account.ready_at(share, predicted, now) <= now;
        if !free || !account.has_turn(share, &self.clock) {
            return false;
        }
        let charge = account.charge(share, predicted, now);
        self.processes[process].in_flight += 1;
        self.queue.push_back(Piece {
            process,
            time: Ns(time),
            charge,
        });
        true
    }

    /// Runs until `end`.
    fn run(&mut self, end: Ns) {
        while self.now < end {
            self.release();
            let Some(piece) = self.queue.pop_front() else {
                self.now += Ns(10_000);
                continue;
            };
            let node = self.processes[piece.process].node;
            self.use_time(node, piece.time);
            self.processes[piece.process].in_flight -= 1;
            let (account, share) = &mut self.nodes[node];
            account.correct(share, piece.charge, piece.time, self.now);
        }
    }

    /// Lets a node have the GPU for `time`.
    fn use_time(&mut self, node: usize, time: Ns) {
        let end = self.now + time;
        while self.now < end {
            let slot = self.now / MS;
            let until = end.min(MS * (slot + 1));
            let used = &mut self.used[node];
            used.resize(used.len().max(slot as usize + 1), 0);
            used[slot as usize] += (until - self.now).get();
            self.now = until;
        }
    }

    /// Returns the time that a node had between two times, which are whole milliseconds.
    fn used(&self, node: usize, from: Ns, to: Ns) -> u64 {
        let slots = (from / MS) as usize..(to / MS) as usize;
        let used = &self.used[node];
        slots.map(|slot| used.get(slot).copied().unwrap_or(0)).sum()
    }

    /// Returns the share of the first node among two, in hundredths of a percent.
    fn first(&self, from: Ns, to: Ns) -> u64 {
        let (one, two) = (self.used(0, from, to), self.used(1, from, to));
        one * 10_000 / (one + two).max(1)
    }
}

/// Weight 1:3 gives 25% of a second, whatever the lengths and predictions.
const QUARTER: core::ops::RangeInclusive<u64> = 2_300..=2_700;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Checks that more processes of a node do not make its share larger, nor do longer pieces or
    /// predictions that are wrong in one direction.
    #[test]
    fn a_weight_is_a_share_of_each_second(
        processes in 1usize..=4, long in 20_000u64..2_000_000, other in 20_000u64..2_000_000,
        bias in 0u64..200, seed: u64,
    ) {
        let mut all = vec![process(0, (long / 4, long)); processes];
        all.push(process(1, (other / 4, other)));
        let mut gpu = Gpu::new(&[share(100), share(300)], &all, seed);
        gpu.bias = bias;
        gpu.run(START + MS * 2_000);
        for second in 1..3 {
            let from = MS * (1_000 * second);
            let part = gpu.first(from, from + MS * 1_000);
            prop_assert!(QUARTER.contains(&part), "{part} in second {second}");
        }
    }

    /// Checks that a node that was away for long gets its share from then on, and nothing for the
    /// time before.
    #[test]
    fn idle_time_is_not_banked(away in 1u64..3_000, long in 20_000u64..1_000_000, seed: u64) {
        let away = START + MS * away;
        let late = Process { from: away, ..process(0, (long / 4, long)) };
        let mut gpu = Gpu::new(&[share(100), share(300)], &[late, process(1, (20_000, 500_000))], seed);
        gpu.run(away + MS * 1_010);
        prop_assert_eq!(gpu.used(0, Ns(0), away), 0);
        let part = gpu.first(away, away + MS * 1_000);
        prop_assert!(QUARTER.contains(&part), "{part}");
    }

    /// Checks that a node that always has work gets its quota in each period, and no more, beside
    /// another. In a short period it may get less: half the GPU is its share, and it may begin the
    /// period `WINDOW` ahead.
    #[test]
    fn a_duty_cycle_holds_in_each_period(
        percent in 5u64..=45, period in 10u64..=100, processes in 1usize..=2, seed: u64,
    ) {
        let period = MS * period;
        let quota = period * percent / 100;
        let max = Some(DutyCycle { quota, period });
        let lengths = (quota.get() / 1_000, quota.get() / 400);
        let mut all = vec![process(0, lengths); processes];
        all.push(process(1, (lengths.0, lengths.1 * 2)));
        let limited = Share { max, ..share(100) };
        let mut gpu = Gpu::new(&[limited, share(100)], &all, seed);
        gpu.run(period * 12);
        for number in 2..11 {
            let used = gpu.used(0, period * number, period * (number + 1));
            let least = quota.min(period / 2 - WINDOW);
            prop_assert!(used * 1_000 >= least.get() * 980, "{used} of {least:?} in period {number}");
            prop_assert!(used * 1_000 <= quota.get() * 1_020, "{used} of {quota:?} in period {number}");
        }
    }

    /// Checks that idle periods are not saved up.
    #[test]
    fn idle_periods_are_not_banked(percent in 5u64..=80, away in 1u64..=50, seed: u64) {
        let period = MS * 20;
        let quota = period * percent / 100;
        let max = Some(DutyCycle { quota, period });
        let late = Process { from: period * away, ..process(0, (1_000, quota.get() / 400)) };
        let mut gpu = Gpu::new(&[Share { max, ..share(100) }], &[late], seed);
        gpu.run(period * (away + 4));
        for number in away..away + 3 {
            let used = gpu.used(0, period * number, period * (number + 1));
            prop_assert!(used * 1_000 / quota.get() <= 1_020, "{used} of {quota:?}");
        }
    }
}

/// Checks that a node whose neighbours do not wait has the whole GPU, whatever its weight.
#[test]
fn the_gpu_does_not_idle_while_anybody_may_run() {
    let short = Process {
        to: START,
        ..process(1, (100_000, 500_000))
    };
    let mut gpu = Gpu::new(
        &[share(1), share(10_000)],
        &[process(0, (100_000, 500_000)), short],
        7,
    );
    gpu.run(START + MS * 1_000);
    assert!(gpu.used(0, Ns(0), START) < 10 * MS.get());
    let alone = gpu.used(0, START + MS, START + MS * 1_000);
    assert_eq!(alone, 999 * MS.get());
}

/// Returns the limits of a node that may use 10 ms in each 100.
fn tenth() -> Share {
    let max = DutyCycle {
        quota: MS * 10,
        period: MS * 100,
    };
    Share {
        max: Some(max),
        ..share(100)
    }
}

/// Checks that neither a weight nor a quota holds back for good what is longer than the window and
/// the quota.
#[test]
fn a_long_piece_goes_and_is_paid_for() {
    let share = tenth();
    let (mut account, now) = (Account::default(), MS * 1_000);
    assert_eq!(account.ready_at(&share, MS * 35, now), now);
    let charge = account.charge(&share, MS * 35, now);
    account.correct(&share, charge, MS * 45, now + MS * 45);
    // 45 of 10 in each: four periods pay 40, and the fifth the rest.
    let end = now + MS * 45;
    assert_eq!(account.ready_at(&share, MS * 35, end), now + MS * 500);
    assert_eq!(account.ready_at(&share, MS * 5, end), now + MS * 400);
    assert_eq!(account.ready_at(&share, MS * 6, end), now + MS * 500);
    let later = now + MS * 400;
    assert_eq!(account.ready_at(&share, MS * 5, later), later);
    // The debt of the last period remains, and with it the quota is used up.
    assert_eq!(account.ready_at(&share, MS * 6, later), now + MS * 500);
    account.charge(&share, MS * 5, later);
    assert_eq!(account.ready_at(&share, MS, later), now + MS * 500);
}

/// Checks that an overcharge of one period makes no later period longer.
#[test]
fn a_wrong_prediction_is_given_back_in_its_own_period() {
    let share = tenth();
    for (ends, ready) in [(MS * 1_010, MS * 1_010), (MS * 1_110, MS * 1_200)] {
        let mut account = Account::default();
        let charge = account.charge(&share, MS * 8, MS * 1_000);
        if ends > MS * 1_100 {
            account.charge(&share, MS * 10, MS * 1_105);
        }
        account.correct(&share, charge, MS * 2, ends);
        assert_eq!(account.ready_at(&share, MS * 6, ends), ready);
    }
}

/// Checks that a piece of unknown length does not hold others back for as long as it runs.
#[test]
fn a_piece_is_charged_while_it_runs() {
    let (mut long, mut other) = (Account::default(), Account::default());
    let (mut clock, equal) = (Clock::default(), share(100));
    let mut charge = long.charge(&equal, Ns(0), MS);
    other.charge(&equal, WINDOW + Ns(1), MS);
    clock.advance([&long, &other]);
    assert!(!other.has_turn(&equal, &clock));
    long.overrun(&equal, &mut charge, MS, MS * 2);
    clock.advance([&long, &other]);
    assert!(other.has_turn(&equal, &clock));
    long.correct(&equal, charge, MS * 3, MS * 4);
    let mut whole = Account::default();
    whole.charge(&equal, MS * 3, MS);
    assert_eq!(long, whole, "charged once");
}

#[test]
fn without_a_limit_nothing_is_owed_when_one_comes() {
    let mut account = Account::default();
    let charge = account.charge(&share(100), MS * 500, MS);
    account.correct(&share(100), charge, MS * 900, MS * 901);
    let max = Some(DutyCycle {
        quota: MS,
        period: MS * 10,
    });
    let limited = Share { max, ..share(100) };
    assert_eq!(account.ready_at(&limited, MS, MS * 901), MS * 901);
}

#[test]
fn cost_is_the_part_of_the_tpcs() {
    assert_eq!(cost(Ns(660), 33, 66), Ns(330));
    assert_eq!(cost(Ns(660), 99, 66), Ns(660));
    assert_eq!(cost(Ns(660), 0, 0), Ns(660));
}

#[test]
fn virtual_time_wraps() {
    let end = Virtual(Wrapping(u64::MAX));
    let next = end.after(Ns(5));
    assert_eq!((next.ahead_of(end), end.ahead_of(next)), (Ns(5), Ns(0)));
    assert_eq!((end.max(next), end.min(next)), (next, end));
    assert_eq!(next.before(Ns(5)), end);
}
