// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures what tenants get of TPCs that others may not use.

use super::channel::Kernel;
use super::gpu::Sharing;
use super::measured::{active, busy, requests, LOOK, MS, SETTLED};
use super::script::{Pattern, Program};
use super::world::{Threads, World};
use gct_core::iface::File;
use gct_core::policy::arrivals::IDLE_TIMEOUT_MAX;

/// Checks that an earlier priority which may not use lent TPCs keeps nobody off them, whether it
/// has other TPCs or can never run.
///
/// The owner of the lent TPCs comes each 100 ms in the mean, and is waited for after that.
#[test]
fn who_may_not_steal_keeps_nobody_off_lent_tpcs() {
    for quota in [4, 8] {
        let mut world = World::new(8, Sharing::Beside, Threads::Each(LOOK));
        let owner = world.group(&[(File::TpcQuota, quota.to_string())]);
        world.start(owner, requests(8, 100_000, 100 * MS));
        let limits = [
            (File::ComputePriority, "0".into()),
            (File::TpcSteal, "0".into()),
        ];
        let first = world.group(&limits);
        let first = world.start(first, busy(8, 4, 50_000));
        let rest = world.group(&[]);
        let later = world.start(rest, busy(8, 4, 50_000));
        world.run_until(SETTLED);
        let time = 600 * MS;
        let used = active(&mut world, SETTLED + time);
        assert_eq!(used[first] > 0, quota < 8, "{used:?}");
        let requests = time / (100 * MS) + 2;
        let kept = requests * (IDLE_TIMEOUT_MAX.get() + MS);
        assert!(used[later] >= time - kept, "quota {quota}: {used:?}");
    }
}

/// Checks that an earlier priority keeps nobody off lent TPCs while its own launch is too long for
/// them.
///
/// The owner's requests come so often that its TPCs are seldom lent for long work. The later tenant
/// has run before, so its launches are known to be short.
#[test]
fn who_cannot_be_lent_tpcs_keeps_nobody_off_them() {
    let mut world = World::new(8, Sharing::Beside, Threads::Each(LOOK));
    let owner = world.group(&[(File::TpcQuota, "8".into())]);
    world.start(owner, requests(8, 2 * MS, 8 * MS));
    let rest = world.group(&[]);
    let later = world.start(rest, busy(8, 4, 5_000));
    let kernel = Kernel {
        program: 0x100,
        blocks: 32,
        block_ns: 60 * MS,
    };
    let first = world.group(&[(File::ComputePriority, "0".into())]);
    let long = Program::new(vec![kernel], Pattern::Always(6), SETTLED, 1);
    world.start(first, long);
    world.run_until(SETTLED);
    let used = active(&mut world, SETTLED + 600 * MS);
    assert!(used[later] >= 300 * MS, "{used:?}");
}
