// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks against the model that `channel.strict` refuses what no scan has seen, and what would
//! change the launches that it sees later.

mod common;
mod lanes;
mod rings;

use common::{capture, Qmd, Segment, COPY};
use gct_core::submit::gpfifo::{self, Entry};
use gct_core::submit::method::{immediate, incr};
use gct_core::submit::methods::SET_QMD_VIRTUALIZATION_CONTROL;
use gct_core::submit::reason::Reason;
use gct_model::Order;
use lanes::{Bench, RESERVED};

const QMD: u64 = 0x1000_0000;
/// Memory of the tenant's that no test of these submits otherwise.
const HIDDEN: u64 = 0x20_0010_0000;

fn launch() -> Segment {
    let mut segment = Segment::default();
    segment.launch(QMD, &Qmd::grid(7, [5, 1, 1]), COPY);
    segment
}

/// The words of an entry with a bit that is reserved are executed, but not read. Without the limit
/// they are counted.
#[test]
fn what_an_entry_hides_does_not_run() {
    let words = launch().0;
    let hidden = gpfifo::Segment {
        va: HIDDEN,
        words: u32::try_from(words.len()).expect("short"),
        subroutine: false,
        wait: false,
        conditional: false,
    };
    for strict in [true, false] {
        let mut bench = Bench::new(Order::Eager, strict);
        bench.store(HIDDEN, &words);
        bench.submit_entry(Entry::Segment(hidden).encode() | RESERVED);
        assert_eq!(bench.finish(), !strict);
        assert_eq!(bench.runs().len(), usize::from(!strict));
        assert_eq!(bench.counters().kept(Reason::Unreadable), 1);
    }
}

/// The channels of a group have one context, and so the same registers. None may have the addresses
/// of others' launches be relative.
#[test]
fn no_channel_makes_addresses_relative() {
    for bit in [8, 16, 24] {
        let set = [incr(1, SET_QMD_VIRTUALIZATION_CONTROL, 1), 1 << bit];
        let mut bench = Bench::new(Order::Eager, true);
        assert!(!bench.run(&set), "{bit}");
        assert_eq!(bench.counters().kept(Reason::Virtualized), 1);
        bench.switch();
        assert!(bench.run(&launch().0));
        bench.is_bound();
    }
    let mut bench = Bench::new(Order::Eager, true);
    assert!(bench.run(&[immediate(1, SET_QMD_VIRTUALIZATION_CONTROL, 0)]));
}

/// A turn pays for the nodes that a replay runs, as it does where they are listed.
#[test]
fn a_turn_pays_for_the_nodes_of_a_replay() {
    for strict in [true, false] {
        let mut bench = Bench::new(Order::Eager, strict);
        for (_, words) in capture("graph4_upload") {
            assert!(bench.run(&words));
        }
        for (_, words) in capture("graph4") {
            bench.submit(&words);
            bench.publish();
            assert!(u32::MAX - bench.left >= 16 * 5, "{strict}");
        }
    }
}
