// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Allocates what the core needs for a GPU, and reports what it has done to the daemon.

use crate::limits::LaunchLimits;
use crate::memory::Heap;
use crate::neighbours::GpuPeers;
use crate::stats::STATS;
use core::sync::atomic::Ordering;
use gct_core::lane::governor::{KERNELS_MAX, NODES_MAX};
use gct_core::lane::work::{LAUNCHES_MAX, WORDS_MAX};
use gct_core::policy::clock::kernels;
use gct_core::policy::scale::LAWS_MAX;
use gct_core::submit::graph::Slot;
use gct_core::submit::rewrite::Order;
use gct_core::units::Ns;

/// The limits of this process on one GPU, and what was learnt about its work.
pub(crate) type Governor = gct_core::lane::governor::Governor<Heap, GpuPeers>;

/// The buffers in which segments are processed.
pub(crate) type Workspace = gct_core::lane::work::Workspace<Heap>;

/// Allocates a governor. A signal handler must not call this.
pub(crate) fn new(limits: LaunchLimits) -> Governor {
    let (kernels, nodes, laws) = (
        vec![None; KERNELS_MAX],
        vec![Slot::EMPTY; NODES_MAX],
        vec![None; LAWS_MAX],
    );
    let mut governor = Governor::new(limits, kernels, nodes, laws);
    governor.measure_clock(vec![None; kernels::LAWS_MAX]);
    governor
}

/// Allocates the buffers. A signal handler must not call this.
pub(crate) fn workspace() -> Workspace {
    Workspace::new(
        vec![0; WORDS_MAX],
        vec![Order::default(); LAUNCHES_MAX],
        vec![0; WORDS_MAX],
    )
}

/// Ends a round, and counts a request that it has found to be over.
pub(crate) fn end(governor: &mut Governor, pending: bool, now: Ns) {
    governor.end(pending, now);
    count_request(governor);
}

/// Records that a wait of the program has returned, behind a round, and counts the request that
/// this ends.
pub(crate) fn waited(governor: &mut Governor, now: Ns) {
    governor.waited(now);
    count_request(governor);
}

fn count_request(governor: &mut Governor) {
    if let Some((time, peers)) = governor.take_request().zip(governor.peers()) {
        peers.gpu().page.count_request(time);
    }
}

/// Copies the counters to the daemon's page; not in every round.
pub(crate) fn report(governor: &Governor) {
    let Some(peers) = governor.peers() else {
        return;
    };
    let page = &peers.gpu().page;
    page.set_counters(governor.counters());
    page.set_time(governor.gpu_time(), governor.pending());
    page.set_clock_sums(&governor.clock_sums());
    page.set_open_request(governor.open_request());
    page.set_effective(governor.effective().map(|granted| *granted.words()));
    page.set_unmanaged(STATS.unmanaged());
    let unreadable = STATS.unreadable.load(Ordering::Relaxed);
    page.counters
        .unreadable
        .store(unreadable, Ordering::Relaxed);
}
