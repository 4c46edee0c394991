// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A GPU that fails slowly does not hold up the tenants of others.

mod common;

use common::{eventually, Tenant};
use core::sync::atomic::{AtomicU32, Ordering};
use gct_core::topology::Chip;
use gctd::testing::Daemon;
use gctd_ipc::driver::Facts;
use std::time::{Duration, Instant};

/// How long the sick GPU takes to fail.
const SLOW: Duration = Duration::from_millis(1_500);

/// How often it was asked.
static ASKED: AtomicU32 = AtomicU32::new(0);

const CHIP: Chip = Chip {
    architecture: 0x180,
    gpcs: 8,
    tpcs_per_gpc: 9,
};

/// GPU 0 is sick for the first three queries. The others answer nothing at once.
fn ask(minor: u32) -> Option<Facts> {
    if minor != 0 {
        return None;
    }
    let before = ASKED.fetch_add(1, Ordering::SeqCst);
    std::thread::sleep(SLOW);
    (before >= 3).then_some(Facts {
        chip: CHIP,
        topology: None,
        memory: Some(3 << 30),
    })
}

#[test]
fn a_gpu_that_fails_slowly_holds_up_nobody() {
    let daemon = Daemon::with_ask("sick", 2, ask);
    let client = daemon.client();
    let mut first = Tenant::of(&daemon);
    first.cuda(1);
    let started = Instant::now();
    let mut slowest = Duration::ZERO;
    while started.elapsed() < 4 * SLOW {
        let before = Instant::now();
        let tenant = Tenant::of(&daemon);
        assert!(tenant.link.connected());
        assert!(first.memory(0x5c00_0040, 4096));
        first.free(0x5c00_0040);
        slowest = slowest.max(before.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(slowest < SLOW / 2, "{slowest:?}");
    // One at the start, then after pauses of one and two seconds.
    let asked = ASKED.load(Ordering::SeqCst);
    assert!((2..=3).contains(&asked), "asked {asked} times");
    // An answer is taken when it comes, without a further program.
    let due = Instant::now() + Duration::from_secs(15);
    while ASKED.load(Ordering::SeqCst) < 4 {
        assert!(Instant::now() < due, "not asked again");
        drop(Tenant::of(&daemon));
        std::thread::sleep(Duration::from_millis(50));
    }
    let memory = || client.read("gpus/0/memory.total");
    eventually(&Ok(format!("{}\n", 3u64 << 30)), memory);
}
