// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests several tenants that share one simulated GPU by weight or by duty cycle, in model time.

use super::page;
use crate::limits::LaunchLimits;
use crate::neighbours::GpuPeers;
use crate::simulated::Bench;
use gct_core::gpu_time::Hold;
use gct_core::mask::TpcMask;
use gct_core::policy::share::{DutyCycle, Level, Share};
use gct_core::units::{Ns, Weight};
use gct_model::Config;
use gctd_ipc::board::{Board, BoardReader, BoardWriter, Peer, Pulse, Slot};
use gctd_ipc::page::Page;
use gctd_ipc::shared::Shared;
use gctd_ipc::tenant::Gpu;
use rustix::fd::AsFd;
use std::collections::VecDeque;
use std::sync::Arc;

const MS: u64 = 1_000_000;
/// The time between two rounds of a tenant. Each step of a machine takes a part of it.
const TICK: u64 = 250_000;
/// The time slice of a context, as the driver's default.
const SLICE: u64 = 2 * MS;
/// The length of a launch.
const LAUNCH: u64 = MS;

/// A tenant that always has work, and what it had of the GPU.
struct Tenant {
    bench: Bench,
    /// The grids in flight, and what is left of each.
    grids: VecDeque<(usize, u64)>,
    used: u64,
    launches: bool,
}

/// Tenants on one GPU, whose contexts run one after the other.
struct Shop {
    now: u64,
    tenants: Vec<Tenant>,
    board: BoardWriter,
    context: usize,
    slice: u64,
}

fn level(weight: Option<u16>, max: Option<(u64, u64)>) -> Share {
    let ms = |time| Ns(time * MS);
    let owner = Level {
        weight: weight.map(Weight),
        max: max.map(|(quota, period)| DutyCycle {
            quota: ms(quota),
            period: ms(period),
        }),
    };
    Share {
        owner,
        ..Share::NONE
    }
}

impl Shop {
    /// Opens with a tenant for each owner and its limits.
    fn new(owners: &[(u32, Share)]) -> Self {
        let (board_fd, board) = page::<Board>("board");
        let mut board = BoardWriter::new(board);
        let pulses: Vec<_> = owners.iter().map(|_| page::<Pulse>("pulse")).collect();
        let fds: Vec<_> = pulses.iter().map(|(fd, _)| fd.seal().unwrap()).collect();
        let board_fd = board_fd.seal().unwrap();
        let mut tenants = Vec::new();
        for (at, ((owner, share), (_, pulse))) in owners.iter().zip(pulses).enumerate() {
            // CAST: a small number.
            let (index, user) = (at as u8, at as u32 + 1);
            board.set(
                index,
                Slot {
                    user,
                    tenant: *owner,
                    allowed: *TpcMask::first(128).words(),
                    lends: true,
                    priority: 8,
                    weight: share.weight(),
                    ..Slot::default()
                },
            );
            let others = fds.iter().enumerate().filter(|(other, _)| *other != at);
            let peers = others.map(|(other, fd)| {
                let pulse = Shared::open_read_only(fd.as_fd()).unwrap();
                Peer::new(other as u8, other as u32 + 1, pulse)
            });
            let gpu = Gpu {
                minor: 0,
                slot: Some((index, user)),
                page: page::<Page>("page").1,
                pulse,
                board: BoardReader::new(Shared::open_read_only(board_fd.as_fd()).unwrap()),
            };
            let limits = LaunchLimits {
                share: *share,
                ..LaunchLimits::NONE
            };
            let timed = Config {
                timed: true,
                streams_apart: true,
                ..Config::default()
            };
            let mut bench = Bench::with(limits, timed);
            let generation = gpu.board.generation();
            bench.governor.set_peers(Some(GpuPeers::new(
                Arc::new(gpu),
                (peers.collect(), generation),
                Arc::default(),
            )));
            tenants.push(Tenant {
                bench,
                grids: VecDeque::new(),
                used: 0,
                launches: true,
            });
        }
        Self {
            now: 1 << 40,
            tenants,
            board,
            context: 0,
            slice: 0,
        }
    }

    /// Runs for `time`. Returns what each tenant had of the GPU.
    fn run(&mut self, time: u64) -> Vec<u64> {
        let before: Vec<u64> = self.tenants.iter().map(|tenant| tenant.used).collect();
        let end = self.now + time;
        while self.now < end {
            for tenant in &mut self.tenants {
                tenant.bench.set_now(self.now);
                // The machine fetches entries at once, whether or not it has room for them.
                while tenant.launches && tenant.grids.len() < 4 && tenant.bench.launch() {}
                for run in tenant.bench.running() {
                    if !tenant.grids.iter().any(|(known, _)| *known == run) {
                        tenant.grids.push_back((run, LAUNCH));
                    }
                }
            }
            self.work();
            self.now += TICK;
        }
        let tenants = self.tenants.iter().zip(before);
        tenants
            .map(|(tenant, before)| tenant.used - before)
            .collect()
    }

    /// Lets the GPU work for a tick.
    fn work(&mut self) {
        let busy = |tenant: &Tenant| !tenant.grids.is_empty();
        if self.slice == 0 || !busy(&self.tenants[self.context]) {
            let all = self.tenants.len();
            let after = (1..=all).map(|step| (self.context + step) % all);
            let Some(next) = after.into_iter().find(|at| busy(&self.tenants[*at])) else {
                return;
            };
            (self.context, self.slice) = (next, SLICE);
        }
        self.slice -= TICK;
        let tenant = &mut self.tenants[self.context];
        let (run, rest) = &mut tenant.grids[0];
        tenant.used += TICK;
        *rest -= TICK;
        if *rest == 0 {
            tenant.bench.machine.finish(*run);
            tenant.grids.pop_front();
        }
    }

    /// Returns the percentage of the first of two owners.
    fn percent(used: &[u64], first: usize) -> u64 {
        let all: u64 = used.iter().sum();
        used[..first].iter().sum::<u64>() * 100 / all.max(1)
    }
}

#[test]
fn weights_of_1_to_3_give_a_quarter_also_to_four_processes() {
    for processes in [1, 4] {
        let mut owners = vec![(1, level(Some(100), None)); processes];
        owners.push((2, level(Some(300), None)));
        let mut shop = Shop::new(&owners);
        shop.run(100 * MS);
        let used = shop.run(1_000 * MS);
        let quarter = Shop::percent(&used, processes);
        assert!((23..=27).contains(&quarter), "{quarter}% of {used:?}");
        assert!(used.iter().sum::<u64>() > 970 * MS, "it idles: {used:?}");
        let waited = shop.tenants[0].bench.governor.gpu_time().held[Hold::Weight as usize];
        assert!(waited > Ns(500 * MS), "{waited:?}");
    }
}

#[test]
fn without_a_written_weight_nobody_waits() {
    let mut shop = Shop::new(&[(1, Share::NONE), (2, Share::NONE)]);
    let used = shop.run(200 * MS);
    assert!((49..=51).contains(&Shop::percent(&used, 1)), "{used:?}");
    let times = shop.tenants.iter().map(|t| *t.bench.governor.gpu_time());
    assert!(times.into_iter().all(|time| time.waited == Ns(0)));
}

#[test]
fn a_duty_cycle_holds_in_each_period_and_is_what_is_billed() {
    let mut shop = Shop::new(&[(1, level(None, Some((20, 100))))]);
    // To the beginning of a period, and one period for the predictions.
    shop.run(100 * MS - shop.now % (100 * MS));
    shop.run(100 * MS);
    let billed = |shop: &Shop| shop.tenants[0].bench.governor.gpu_time().used.get();
    let before = billed(&shop);
    let mut all = 0;
    for _ in 0..10 {
        let used = shop.run(100 * MS)[0];
        assert!(used.abs_diff(20 * MS) <= LAUNCH, "{used}");
        all += used;
    }
    assert!(all.abs_diff(200 * MS) <= 4 * MS, "{all}");
    let bill = billed(&shop) - before;
    assert!(bill.abs_diff(all) <= all / 50, "{bill} for {all}");
    let time = shop.tenants[0].bench.governor.gpu_time();
    assert!(time.held[Hold::Max as usize] > Ns(700 * MS));
}

/// Two streams of a process share a channel with a third, and wait for a launch of it that the duty
/// cycle holds back.
#[test]
fn held_work_goes_when_work_in_flight_may_wait_for_it() {
    let mut shop = Shop::new(&[(1, level(None, Some((2, 1000))))]);
    let tenant = &mut shop.tenants[0];
    tenant.bench.set_now(1 << 40);
    (1..4).for_each(|stream| assert!(tenant.bench.launch_on(stream)));
    for _ in 0..19 {
        tenant.bench.pass(MS);
        assert_eq!(tenant.bench.running().len(), 2, "the period is over");
    }
    tenant.bench.pass(2 * MS);
    assert_eq!(tenant.bench.running().len(), 3, "they may wait for it");
}

/// Bills of two that take turns sum up to the time of the GPU.
#[test]
fn two_that_overlap_are_billed_for_their_parts() {
    let mut shop = Shop::new(&[(1, Share::NONE), (2, Share::NONE)]);
    shop.run(50 * MS);
    let bills = |shop: &Shop| -> Vec<u64> {
        let times = shop.tenants.iter().map(|t| t.bench.governor.gpu_time());
        times.map(|time| time.used.get()).collect()
    };
    let before = bills(&shop);
    let used = shop.run(200 * MS);
    for ((after, before), used) in bills(&shop).iter().zip(before).zip(used) {
        let bill = after - before;
        assert!(bill.abs_diff(used) <= used / 20, "{bill} for {used}");
    }
}

#[test]
fn who_has_gone_leaves_its_share() {
    let owners = [(1, level(Some(1), None)), (2, level(Some(10_000), None))];
    let mut shop = Shop::new(&owners);
    shop.run(100 * MS);
    let used = shop.run(100 * MS);
    assert!(used[0] <= 4 * MS, "{used:?}");
    // It is killed: its pulse stays as it was, and the daemon frees its slot.
    shop.tenants[1].launches = false;
    shop.tenants[1].grids.clear();
    let dead = shop.tenants.pop().unwrap();
    shop.board.set(1, Slot::default());
    shop.run(10 * MS);
    let used = shop.run(100 * MS);
    assert!(used[0] >= 98 * MS, "{used:?}");
    drop(dead);
}
