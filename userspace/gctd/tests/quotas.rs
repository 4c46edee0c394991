// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Quotas and priorities appear on a GPU's board.

mod common;

use common::{member, own, Tenant};
use gct_core::mask::TpcMask;
use gctd::testing::{Daemon, TPCS};
use gctd_ipc::board::Slot;
use gctd_ipc::tenant::Gpu;

/// Returns the board's slot of the only process.
fn slot(gpu: &Gpu) -> Slot {
    let slots: Vec<Slot> = gpu.board.slots().map(|(_, slot)| slot).collect();
    assert_eq!(slots.len(), 1);
    slots[0]
}

fn count(words: [u64; 4]) -> u32 {
    TpcMask::from_words(words).count()
}

#[test]
fn quotas_beyond_the_gpu_are_refused() {
    let daemon = Daemon::new("promises", 1);
    let client = daemon.client();
    for group in ["one", "two", "three"] {
        client.write("control", format!("create {group}")).unwrap();
    }
    for group in ["one", "two"] {
        assert_eq!(client.write(&format!("{group}/0/tpc.quota"), "33"), Ok(()));
    }
    let third = client.write("three/0/tpc.quota", "1");
    assert_eq!(third, Err(libc::ENOSPC));
    assert_eq!(client.write("three/0/tpc.quota", "0"), Ok(()));
    assert_eq!(client.write("three/0/tpc.quota", "67"), Err(libc::ERANGE));
    assert_eq!(client.write("three/0/tpc.quota", "max"), Err(libc::EINVAL));
    let reserved = |group: &str| {
        let text = client.read(&format!("{group}/0/tpc.reserved")).unwrap();
        TpcMask::parse(text.trim_end().as_bytes())
    };
    let (one, two) = (reserved("one").unwrap(), reserved("two").unwrap());
    let existing = TpcMask::parse(TPCS.as_bytes()).unwrap();
    assert_eq!(one.or(&two), existing);
    assert!(reserved("three").is_err(), "none");
    // An owner may lower its quota.
    assert_eq!(client.write("one/0/tpc.quota", "32"), Ok(()));
    assert_eq!(client.write("three/0/tpc.quota", "1"), Ok(()));
}

#[test]
fn a_process_and_its_group_have_separate_quotas() {
    let daemon = Daemon::new("quotas", 1);
    let client = member(&daemon);
    let mut tenant = Tenant::of(&daemon);
    let gpu = tenant.cuda(0);
    assert_eq!((count(slot(&gpu).tpcs), slot(&gpu).best_effort), (0, false));
    assert_eq!(client.write("web/0/tpc.quota", "20"), Ok(()));
    assert_eq!((count(slot(&gpu).tpcs), count(slot(&gpu).alone)), (20, 0));
    assert_eq!(client.write(&own("tpc.quota"), "5"), Ok(()));
    assert_eq!((count(slot(&gpu).tpcs), count(slot(&gpu).alone)), (25, 5));
    client.write("control", "create other").unwrap();
    assert_eq!(client.write("other/0/tpc.quota", "42"), Err(libc::ENOSPC));
    assert_eq!(client.write("other/0/tpc.quota", "41"), Ok(()));
    // The reservation of the process ends with it.
    drop(tenant);
    common::eventually(&Ok(()), || client.write("other/0/tpc.quota", "46"));
}

#[test]
fn the_board_shows_priorities() {
    let daemon = Daemon::new("order", 1);
    let client = member(&daemon);
    let mut tenant = Tenant::of(&daemon);
    let gpu = tenant.cuda(0);
    assert_eq!(client.write("web/0/compute.priority", "3"), Ok(()));
    assert_eq!(client.write("web/0/tpc.mask", "0-9"), Ok(()));
    let shown = slot(&gpu);
    assert_eq!((shown.priority, shown.best_effort), (3, false));
    // 0 to 3 and 9 exist.
    assert_eq!(shown.allowed, [0x20f, 0, 0, 0]);
    assert_eq!(client.write(&own("tpc.quota"), "0"), Ok(()));
    assert!(slot(&gpu).best_effort);
    let limits = gpu.page.limits().unwrap().1;
    assert!(limits.launches.rank.best_effort);
}
