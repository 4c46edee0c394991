// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests a tenant on a simulated GPU beside a neighbour whose pulse the test beats.

mod copies;
mod shares;

use super::GpuPeers;
use crate::governor;
use crate::limits::LaunchLimits;
use crate::simulated::Bench;
use gct_core::mask::TpcMask;
use gct_core::policy::arrivals::{ArrivalStats, PAUSE_MIN};
use gct_core::policy::clock::kernels::Sums;
use gct_core::policy::clock::Clock;
use gct_core::policy::pace::YIELDING;
use gct_core::policy::patience;
use gct_core::policy::slo::histogram::Histogram;
use gct_core::policy::slo::request::GAP;
use gct_core::policy::tpc::{Rank, SWITCHES};
use gct_core::topology::Topology;
use gct_core::units::{Ns, Percent, Priority, Us};
use gct_model::Config;
use gctd_ipc::board::{Board, BoardReader, BoardWriter, Peer, Pulse, Slot, SlotIndex};
use gctd_ipc::page::{Limits, Page};
use gctd_ipc::shared::{Shared, SharedFd};
use gctd_ipc::tenant::Gpu;
use rustix::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

const MS: u64 = 1_000_000;

/// A tenant, its neighbour, and the pages that they share.
struct Beside {
    bench: Bench,
    neighbour: Shared<Pulse>,
    /// The tenant, as the neighbour sees it.
    tenant: Peer,
    /// Whether the tenant is a client of MPS.
    shares_group: Arc<AtomicBool>,
    board: BoardWriter,
}

/// Creates a page as the daemon does, with its descriptor.
fn page<T: gctd_ipc::shared::Shareable>(name: &str) -> (SharedFd, Shared<T>) {
    SharedFd::create(name).unwrap()
}

impl Beside {
    /// Sets up a tenant of priority 8. `own` is reserved for the neighbour; if empty, the neighbour
    /// has priority 0.
    fn new(own: &str, limits: LaunchLimits) -> Self {
        Self::with_slot(Some((1, 2)), own, limits)
    }

    /// The same with the slot on the board that the tenant was told.
    fn with_slot(told: Option<(SlotIndex, u32)>, own: &str, limits: LaunchLimits) -> Self {
        let (board_fd, board) = page::<Board>("board");
        let mut board = BoardWriter::new(board);
        let mask = TpcMask::parse(own.as_bytes()).unwrap_or(TpcMask::EMPTY);
        let slot = |user, priority, tpcs| Slot {
            user,
            tenant: user,
            tpcs,
            alone: [0; 4],
            allowed: *TpcMask::first(128).words(),
            lends: true,
            confined: false,
            priority,
            best_effort: false,
            weight: None,
        };
        let priority = if mask.is_empty() { 0 } else { 8 };
        board.set(0, slot(1, priority, *mask.words()));
        board.set(1, slot(2, 8, [0; 4]));
        let (pulse_fd, neighbour) = page::<Pulse>("neighbour");
        let (own_fd, pulse) = page::<Pulse>("tenant");
        let peer = |user, fd: &SharedFd| {
            // CAST: 1 or 2.
            let slot = user as u8 - 1;
            Peer::new(
                slot,
                user,
                Shared::open_read_only(fd.seal().unwrap().as_fd()).unwrap(),
            )
        };
        let gpu = Gpu {
            minor: 0,
            slot: told,
            page: page::<Page>("page").1,
            pulse,
            board: BoardReader::new(
                Shared::open_read_only(board_fd.seal().unwrap().as_fd()).unwrap(),
            ),
        };
        let timed = Config {
            timed: true,
            ..Config::default()
        };
        let mut bench = Bench::with(limits, timed);
        let shares_group = Arc::<AtomicBool>::default();
        let generation = gpu.board.generation();
        let peers = GpuPeers::new(
            Arc::new(gpu),
            (vec![peer(1, &pulse_fd)], generation),
            shares_group.clone(),
        );
        bench.governor.set_peers(Some(peers));
        Self {
            bench,
            neighbour,
            tenant: peer(2, &own_fd),
            shares_group,
            board,
        }
    }

    /// Lets time pass and returns how many grids run then.
    fn after(&mut self, ns: u64) -> usize {
        self.bench.pass(ns);
        self.bench.running().len()
    }

    /// Returns the mask of the grid that started last.
    fn last_mask(&self) -> u32 {
        self.bench
            .machine
            .report()
            .runs
            .iter()
            .rfind(|run| run.count() > 0)
            .unwrap()
            .mask
            .0[0]
    }
}

fn of_priority(priority: u8) -> LaunchLimits {
    LaunchLimits {
        rank: Rank {
            best_effort: false,
            priority: Priority(priority),
        },
        ..LaunchLimits::NONE
    }
}

/// Returns limits with which a tenant yields to the neighbour.
fn later() -> LaunchLimits {
    of_priority(8)
}

/// Checks a neighbour that is in a paused container, or stopped by SIGSTOP or a debugger.
#[test]
fn a_neighbour_that_is_stopped_is_not_waited_for() {
    let mut beside = Beside::new("", later());
    beside.neighbour.busy(beside.bench.now_ns());
    beside.bench.launch();
    assert_eq!(beside.after(0), 0, "an earlier priority has work");
    for _ in 0..100 {
        assert_eq!(beside.after(200 * MS), 0, "it lives");
        beside.neighbour.beat(beside.bench.now_ns());
    }
    // No process waits for one that waits itself.
    assert_eq!(beside.tenant.busy_since_ns(), None);
    assert_eq!(beside.after(patience::BEAT_MAX.get() - 1), 0);
    assert_eq!(beside.after(1), 1, "it is stopped");
    beside.bench.drain(0);
    // The neighbour resumes.
    beside.neighbour.beat(beside.bench.now_ns());
    beside.bench.launch();
    assert_eq!(beside.after(MS), 0);
    beside.neighbour.idle(beside.bench.now_ns());
    assert_eq!(beside.after(0), 0, "it may come back");
    assert_eq!(beside.after(SWITCHES.get() - 1), 0);
    assert_eq!(beside.after(1), 1);
    // As clients of the same MPS server they do not switch contexts.
    beside.bench.drain(0);
    beside.shares_group.store(true, Ordering::Relaxed);
    beside.neighbour.busy(beside.bench.now_ns());
    beside.bench.launch();
    beside.neighbour.idle(beside.bench.now_ns());
    assert_eq!(beside.after(PAUSE_MIN.get() - 1), 0);
    assert_eq!(beside.after(1), 1);
}

#[test]
fn what_is_reserved_for_a_neighbour_that_is_stopped_is_lent() {
    let mut beside = Beside::new("0-3", later());
    beside.neighbour.busy(beside.bench.now_ns());
    beside.bench.launch();
    assert_eq!(
        (beside.after(0), beside.last_mask()),
        (1, 0xf),
        "it is there"
    );
    beside.bench.drain(0);
    beside.bench.pass(patience::BEAT_MAX.get());
    beside.bench.launch();
    assert_eq!(
        (beside.after(0), beside.last_mask()),
        (1, 0),
        "it is stopped"
    );
}

/// Checks a neighbour whose launches no longer end, as after a sticky error of CUDA.
#[test]
fn who_does_not_move_is_not_busy_for_its_neighbours() {
    let mut beside = Beside::new("", of_priority(0));
    beside.bench.launch();
    let still = patience::STALL_MAX.get();
    assert_eq!(beside.after(0), 1);
    for _ in 0..still / MS / 100 {
        assert!(beside.tenant.busy_since_ns().is_some());
        let beat = beside.bench.now_ns() - beside.tenant.beat_ns();
        assert!(beat < patience::BEAT_EVERY.get() + MS, "it beats: {beat}");
        // The worker checks much more often.
        (0..10).for_each(|_| assert_eq!(beside.after(10 * MS), 1));
    }
    assert_eq!(beside.tenant.busy_since_ns(), None);
    assert_eq!(
        beside.bench.governor.counters().sums.stalled,
        0,
        "no limit can be why"
    );
    // It regains its turn when something moves.
    beside.bench.launch();
    beside.after(0);
    assert!(beside.tenant.busy_since_ns().is_some());
    beside.bench.drain(0);
    assert_eq!(beside.tenant.busy_since_ns(), None);
}

#[test]
fn who_was_stopped_has_its_turn_again() {
    let mut beside = Beside::new("", later());
    beside.bench.launch();
    assert_eq!(beside.after(0), 1);
    // Its launch still runs when the process resumes.
    assert_eq!(beside.after(2 * patience::STALL_MAX.get()), 1);
    assert!(beside.tenant.busy_since_ns().is_some());
    assert_eq!(beside.tenant.beat_ns(), beside.bench.now_ns());
}

#[test]
fn who_is_frozen_is_not_busy_for_its_neighbours() {
    let mut beside = Beside::new("", later());
    let frozen = LaunchLimits {
        frozen: true,
        ..later()
    };
    beside.bench.governor.set_limits(frozen);
    beside.bench.launch();
    assert_eq!(beside.after(MS), 0);
    assert_eq!(beside.tenant.busy_since_ns(), None);
    beside.bench.governor.set_limits(later());
    assert_eq!(beside.after(MS), 1);
    assert!(beside.tenant.busy_since_ns().is_some());
}

/// Checks that a request lasts from the first look at a launch to the look at its end, also while
/// others hold it back.
#[test]
fn a_request_is_measured_with_the_time_for_which_it_waits() {
    let mut beside = Beside::new("", later());
    beside.neighbour.busy(beside.bench.now_ns());
    beside.bench.launch();
    assert_eq!(beside.after(0), 0, "an earlier priority has work");
    assert_eq!(beside.after(3 * MS), 0);
    governor::report(&beside.bench.governor);
    let now = Ns(beside.bench.now_ns());
    let page = |beside: &Beside| beside.bench.governor.peers().unwrap().gpu().clone();
    assert_eq!(page(&beside).page.open_request(now), Ns(3 * MS));
    beside.neighbour.idle(beside.bench.now_ns());
    assert_eq!(beside.after(SWITCHES.get()), 1);
    beside.bench.drain(0);
    beside.after(GAP.get() - 1);
    assert_eq!(
        page(&beside).page.requests(),
        Histogram::NEW,
        "more may follow"
    );
    beside.after(1);
    let mut one = Histogram::NEW;
    one.count_one(Us(3_000 + SWITCHES.get() / 1_000));
    assert_eq!(page(&beside).page.requests(), one);
    beside.after(10 * MS);
    governor::report(&beside.bench.governor);
    let now = Ns(beside.bench.now_ns());
    let found = (
        page(&beside).page.requests(),
        page(&beside).page.open_request(now),
    );
    assert_eq!(found, (one, Ns(0)), "once");
}

/// Checks that a program that waits for each launch has a request for each, without a pause between
/// them, and that a wait for some of its work ends none.
#[test]
fn what_a_program_waits_for_is_a_request() {
    let mut beside = Beside::new("", later());
    for launch in 0..3 {
        beside.bench.launch();
        assert_eq!(beside.after(GAP.get() / 8), 1);
        if launch == 1 {
            let now = Ns(beside.bench.now_ns());
            governor::waited(&mut beside.bench.governor, now);
        }
        beside.bench.drain(0);
        let now = Ns(beside.bench.now_ns());
        governor::waited(&mut beside.bench.governor, now);
    }
    let gpu = beside.bench.governor.peers().unwrap().gpu().clone();
    assert_eq!(gpu.page.requests().count(), 3);
    beside.after(2 * GAP.get());
    assert_eq!(gpu.page.requests().count(), 3, "none is counted twice");
}

/// Checks that a process without a slot has the TPCs that are reserved for it, which its page
/// alone names.
#[test]
fn without_a_slot_a_tenant_has_its_reserved_tpcs() {
    let started = |told| {
        let mut beside = Beside::with_slot(told, "", later());
        let limits = Limits {
            own: [0xf, 0, 0, 0],
            topology: Topology::together(TpcMask::first(128)),
            ..Limits::NONE
        };
        let gpu = beside.bench.governor.peers().unwrap().gpu().clone();
        gpu.page.set_limits(1, &limits);
        beside.neighbour.busy(beside.bench.now_ns());
        beside.bench.launch();
        match beside.after(0) {
            0 => None,
            _ => Some(beside.last_mask()),
        }
    };
    assert_eq!(
        started(Some((1, 2))),
        None,
        "the board says that it has none"
    );
    assert_eq!(started(None).map(|disabled| !disabled & 0xffff), Some(0xf));
}

/// Checks that the slip and the clock come by the page, and what is measured goes there.
#[test]
fn what_is_measured_at_the_clock_of_the_page_is_reported() {
    let measured = |slip: u8| {
        let mut beside = Beside::new("", of_priority(8));
        let gpu = beside.bench.governor.peers().unwrap().gpu().clone();
        let limits = Limits {
            launches: LaunchLimits {
                slip_power: Percent(slip),
                clock: Some(Clock::FULL),
                ..LaunchLimits::NONE
            },
            ..Limits::NONE
        };
        gpu.page.set_limits(1, &limits);
        beside.bench.launch();
        for _ in 0..40 {
            beside.after(25_000);
        }
        beside.bench.drain(0);
        beside.after(25_000);
        governor::report(&beside.bench.governor);
        gpu.page.clock_sums()
    };
    assert_eq!(measured(0), Sums::ZERO);
    let sums = measured(10);
    let most = Ns(MS + 25_000);
    assert!((Ns(MS * 9 / 10)..=most).contains(&sums.fresh), "{sums:?}");
}

/// Checks that who is pressed for a goal goes on after four fifths of a period.
#[test]
fn who_is_pressed_does_not_wait_for_ever() {
    let mut pressed = of_priority(8);
    pressed.rank.best_effort = true;
    pressed.pressed = true;
    let mut beside = Beside::new("127", pressed);
    beside.neighbour.busy(beside.bench.now_ns());
    beside.bench.launch();
    let mut waited = 0;
    while beside.after(MS) == 0 {
        waited += 1;
        beside.neighbour.beat(beside.bench.now_ns());
        assert!(waited < 200, "it waits");
    }
    // Parts of two periods.
    assert!((79..=161).contains(&waited), "{waited} ms");
}

/// Checks that a neighbour with all TPCs that is away for 5 ms more lends them for a moment, but
/// not for a launch of unknown duration.
#[test]
fn a_whole_launch_obeys_the_order_to_wait() {
    let mut beside = Beside::new("0-127", later());
    let arrivals = ArrivalStats::default().after(Ns(25_000), Ns(10 * MS));
    beside.neighbour.set_arrivals(arrivals.to_word());
    beside.neighbour.idle(beside.bench.now_ns());
    beside.bench.launch();
    assert_eq!(
        beside.after(MS),
        0,
        "it may come back before the launch has ended"
    );
    // An eighth later than usual it counts as silent.
    assert_eq!(beside.after(10_250_000), 1);
}

/// Checks that a launch gets the mask of its release, not the mask of its processing.
#[test]
fn a_launch_that_has_waited_gets_the_mask_of_when_it_goes() {
    let paced = LaunchLimits {
        atom_ns: 10 * MS,
        ..later()
    };
    let mut beside = Beside::new("0-3", paced);
    for _ in 0..20 {
        beside.bench.launch();
        beside.bench.drain(4 * MS);
    }
    assert_eq!(beside.last_mask(), 0, "the neighbour is away");
    (0..3).for_each(|_| assert!(beside.bench.launch()));
    assert_eq!(beside.after(0), 1, "one after the other");
    let published = beside.bench.channel.published();
    beside.neighbour.busy(beside.bench.now_ns());
    beside.bench.read_elsewhere();
    for _ in 0..3 {
        let run = beside.bench.running()[0];
        beside.bench.machine.finish(run);
        beside.after(MS);
    }
    assert_eq!(
        beside.bench.channel.published(),
        published + 1,
        "the third has waited"
    );
    assert_eq!(beside.last_mask(), 0xf);
}

/// Checks that priorities alone make atoms: of who yields to somebody, with work or without.
#[test]
fn who_yields_to_a_neighbour_releases_its_launches_in_atoms() {
    // 128 blocks of the kernel at once.
    let narrow = |priority| LaunchLimits {
        tpcs: TpcMask::parse(b"0-3").ok(),
        ..of_priority(priority)
    };
    let long = LaunchLimits {
        atom_ns: 100 * MS,
        ..narrow(8)
    };
    let (later, first) = (narrow(8), narrow(0));
    for (limits, yields) in [(later, true), (first, false), (long, false)] {
        let mut beside = Beside::new("", limits);
        // The neighbour is there, and has never had work.
        for _ in 0..4 {
            beside.bench.launch();
            beside.bench.drain(MS);
        }
        let counters = beside.bench.governor.counters();
        let target = if yields { YIELDING } else { Ns(limits.atom_ns) };
        assert_eq!(counters.sums.split > 0, target > Ns(0));
        assert_eq!(beside.bench.governor.target(), target);
        // Without neighbours nobody waits for its launches.
        beside.bench.governor.set_peers(None);
        assert_eq!(beside.bench.governor.target(), Ns(limits.atom_ns));
    }
}

/// Checks that a tenant alone is looked at soon only until its launches were timed, and again from
/// the moment that somebody comes.
#[test]
fn a_launch_is_awaited_while_it_is_new_or_somebody_is_there() {
    let mut beside = Beside::new("", later());
    let peers = |beside: &mut Beside, new| {
        let peers = beside.bench.governor.peers_mut().unwrap();
        let old = core::mem::take(&mut peers.peers);
        let generation = peers.gpu.board.generation();
        peers.set_peers((new, generation));
        old
    };
    let neighbour = peers(&mut beside, Vec::new());
    let launch = |beside: &mut Beside| {
        beside.bench.launch();
        assert_eq!(beside.after(0), 1);
        assert!(beside.bench.is_pending());
        beside.bench.is_awaited()
    };
    assert!(launch(&mut beside), "nobody knows how long it takes");
    beside.bench.drain(MS / 10);
    assert!(!launch(&mut beside));
    peers(&mut beside, neighbour);
    assert!(beside.bench.is_awaited(), "the neighbour may wait for it");
    beside.bench.drain(MS / 10);
    assert!(launch(&mut beside));
    beside.bench.drain(0);
    assert!(!beside.bench.is_awaited(), "nothing is in flight");
    peers(&mut beside, Vec::new());
    assert!(!launch(&mut beside));
    beside.board.set(0, Slot::default());
    assert!(beside.bench.is_awaited(), "somebody may have come");
}
