// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests copies of a tenant beside a neighbour.

use super::{later, of_priority, Beside, MS};
use crate::tests::copies::{copy, BYTES};
use core::sync::atomic::Ordering;
use gct_core::policy::tpc::SWITCHES;

impl Beside {
    fn copy(&mut self) {
        let release = core::ptr::from_ref(self.bench.release_word(0)) as u64;
        self.bench.submit(&copy(BYTES, release, 1), 0);
    }

    fn has_copied(&self) -> bool {
        self.bench.release_word(0).load(Ordering::Relaxed) == 1
    }

    /// Publishes once. Returns how many entries that were.
    fn published(&mut self) -> u32 {
        let before = self.bench.channel.published();
        self.bench.work();
        (self.bench.channel.published() + 8 - before) % 8
    }

    /// Lets the GPU execute what was published, in 20 us.
    fn execute(&mut self) {
        while self.bench.step() {}
        self.bench.pass(20_000);
    }
}

#[test]
fn who_copies_has_work_until_the_copy_ends() {
    let mut beside = Beside::new("", of_priority(0));
    beside.copy();
    assert!(beside.published() > 0);
    assert!(beside.tenant.busy_since_ns().is_some(), "others wait");
    beside.execute();
    assert!(beside.has_copied(), "the first rank copies whole");
    beside.bench.work();
    assert_eq!(beside.tenant.busy_since_ns(), None);
    let time = beside.bench.governor.gpu_time().used.get();
    assert!(time > 0, "it is billed");
}

#[test]
fn a_copy_waits_for_an_earlier_priority_and_stops_for_it() {
    let mut beside = Beside::new("", later());
    beside.neighbour.busy(beside.bench.now_ns());
    beside.copy();
    for _ in 0..10 {
        assert_eq!(beside.published(), 0, "an earlier priority has work");
        beside.bench.pass(MS);
        beside.neighbour.beat(beside.bench.now_ns());
    }
    beside.neighbour.idle(beside.bench.now_ns());
    beside.bench.pass(SWITCHES.get());
    assert_eq!(beside.published(), 3, "the words before, and two pieces");
    beside.execute();
    beside.neighbour.busy(beside.bench.now_ns());
    for _ in 0..10 {
        assert_eq!(beside.published(), 0, "it is back");
        beside.execute();
    }
    assert!(!beside.has_copied());
    beside.neighbour.idle(beside.bench.now_ns());
    beside.bench.pass(SWITCHES.get());
    for _ in 0..20 {
        beside.bench.work();
        beside.execute();
    }
    assert!(beside.has_copied());
}
