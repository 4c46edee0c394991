// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests what is said of an owner by its files alone.

use super::*;

const SECOND: u64 = 1_000_000;

fn look(values: &[(&'static str, &str)], counters: &[(&str, u64)]) -> Look {
    let owned = |(file, value): &(&'static str, &str)| (*file, (*value).to_owned());
    let counter = |(key, count): &(&str, u64)| ((*key).to_owned(), *count);
    Look {
        values: values.iter().map(owned).collect(),
        counters: counters.iter().map(counter).collect(),
        beside: Vec::new(),
    }
}

fn lines(found: &[Finding], topic: &str) -> Vec<String> {
    let of = found.iter().filter(|finding| finding.topic == topic);
    of.flat_map(|finding| finding.lines.clone()).collect()
}

#[test]
fn a_gpu_that_tells_nothing_is_not_explained() {
    assert_eq!(findings(&Look::default(), &Look::default(), SECOND), []);
}

#[test]
fn counters_of_before_do_not_count_and_the_longest_wait_comes_first() {
    let before = look(
        &[],
        &[
            ("compute.stat usage_usec", 5_000_000),
            ("compute.stat waited_usec", 9_000_000),
            ("compute.stat held_usec.weight", 9_000_000),
        ],
    );
    let now = look(
        &[],
        &[
            ("compute.stat usage_usec", 5_310_000),
            ("compute.stat usage_tpc_usec", 1_000),
            ("compute.stat pending", 3),
            ("compute.stat waited_usec", 9_420_000),
            ("compute.stat held_usec.tpcs", 400_000),
            ("compute.stat held_usec.weight", 9_020_000),
            ("compute.stat held_usec.max", 0),
        ],
    );
    let found = findings(&before, &now, SECOND);
    assert_eq!(
        lines(&found, "time"),
        [
            "31% on the GPU.",
            "under 1% times the part of the TPCs that it had."
        ]
    );
    let waits = lines(&found, "waits");
    assert_eq!(waits.len(), 3, "{waits:?}");
    assert_eq!(waits[0], "42% of the time with work held back.");
    assert!(waits[1].starts_with("40% because its TPCs"), "{waits:?}");
    assert!(waits[2].starts_with("2% because others"), "{waits:?}");
    let numbers = &found[1].values;
    assert_eq!(numbers["held_usec.weight"], 20_000);
}

#[test]
fn an_idle_owner_is_told_from_a_starved_one() {
    let now = |pending| {
        look(
            &[],
            &[
                ("compute.stat usage_usec", 7),
                ("compute.stat pending", pending),
            ],
        )
    };
    let time = |pending| lines(&findings(&now(0), &now(pending), SECOND), "time");
    assert_eq!(time(0), ["It had no work."]);
    assert_eq!(time(4), ["It has 4 pieces of work and got no time."]);
}

#[test]
fn limits_that_limit_nothing_are_not_mentioned() {
    let free = look(
        &[
            ("tpc.mask", "all"),
            ("tpc.quota", "none"),
            ("tpc.effective", "all"),
            ("tpc.steal", "1"),
            ("atom.duration", "off"),
            ("compute.weight", "100"),
            ("compute.max", "max"),
            ("gmem.limit", "max"),
            ("gmem.current", "77"),
            ("compute.freeze", "0"),
        ],
        &[("compute.stat launches", 12)],
    );
    assert_eq!(findings(&free, &free, SECOND), []);
}

#[test]
fn limits_are_said_with_what_they_did() {
    let values = [
        ("tpc.mask", "0-31"),
        ("tpc.quota", "16"),
        ("tpc.effective", "0-15"),
        ("tpc.steal", "0"),
        ("atom.duration", "100"),
        ("compute.priority", "2"),
        ("compute.max", "20000 100000"),
        ("gmem.limit", "1000"),
        ("gmem.current", "900"),
        ("compute.freeze", "1"),
    ];
    let before = look(&values, &[("compute.stat passed.queue", 4)]);
    let now = look(
        &values,
        &[
            ("compute.stat launches", 10),
            ("compute.stat rewritten", 9),
            ("compute.stat split", 2),
            ("compute.stat atoms", 34),
            ("compute.stat slice", 50),
            ("compute.stat round", 10_050),
            ("compute.stat passed.queue", 5),
            ("compute.stat passed.macro", 0),
            ("compute.stat native", 3),
            ("compute.stat cooperative", 2),
            ("compute.stat permissive", 1),
            ("compute.stat shared_channels", 3),
            ("gmem.events limit", 3),
        ],
    );
    let found = findings(&before, &now, SECOND);
    let all: Vec<String> = found
        .iter()
        .flat_map(|finding| finding.lines.clone())
        .collect();
    let expected = [
        "Frozen: nothing of it runs until compute.freeze is 0.",
        "Its last launch ran on TPCs 0-15.",
        "tpc.mask 0-31: it runs nowhere else.",
        "tpc.quota 16: these are its own; it borrows none.",
        "9 of 10 launches got a mask.",
        "Side by side: 3 channels are in channel groups of other processes (MPS).",
        "atom.duration 100us: 2 launches were split into 34 atoms.",
        "50 us for a channel group, in a round of 10050 us.",
        "compute.priority 2: owners with a lower number come first.",
        "compute.max: 20000 us of every 100000 us, then it waits.",
        "900 of 1000 bytes.",
        "3 allocations were refused.",
        "1 launches passed unchanged: queue.",
        "1 channels have their tenant's ring: of the limits on launches compute.max alone binds them.",
        "Its processes can evade its limits on launches: channel.strict is 0, or channels, or what they have left, are from before the limits.",
    ];
    assert_eq!(all, expected);
}

#[test]
fn a_slice_that_nobody_wrote_is_explained() {
    let at = |written| {
        let counters = [("compute.stat slice", 500), ("compute.stat round", 500)];
        look(&[("compute.timeslice", written)], &counters)
    };
    let said = "compute.timeslice is default: owners of its rank have shorter requests.";
    for (written, is_said) in [("default", true), ("500", false)] {
        let found = findings(&at(written), &at(written), SECOND);
        let mut lines = found.iter().flat_map(|finding| &finding.lines);
        assert_eq!(lines.any(|line| line == said), is_said, "{written}");
    }
}

/// Checks that splits are said of an owner that asked for none: who yields has atoms by default.
#[test]
fn atoms_by_default_are_said() {
    let at = |split, atoms| {
        let counters = [("compute.stat split", split), ("compute.stat atoms", atoms)];
        look(&[("atom.duration", "off")], &counters)
    };
    let found = findings(&at(5, 50), &at(7, 84), SECOND);
    assert_eq!(
        lines(&found, "atoms"),
        ["No atom.duration, so 50us beside an earlier rank: 2 launches were split into 34 atoms."]
    );
    assert_eq!(findings(&at(7, 84), &at(7, 84), SECOND), []);
}

#[test]
fn goals_are_said_by_those_who_have_one_and_those_who_pay() {
    let goals = |goal, stat: &[(&str, u64)]| {
        let now = look(&[("slo.p99", goal)], stat);
        lines(&findings(&now, &now, SECOND), "goals")
    };
    assert_eq!(goals("max", &[("slo.stat pressed", 0)]), [""; 0]);
    assert_eq!(
        goals("5000", &[("slo.stat p99_usec", 0)]),
        ["slo.p99 5000us: no window of its requests has ended."]
    );
    let kept = [
        ("slo.stat p99_usec", 4200),
        ("slo.stat met", 1),
        ("slo.stat cannot", 0),
        ("slo.stat level", 1),
    ];
    assert_eq!(
        goals("5000", &kept),
        [
            "slo.p99 5000us: kept, 99% of the last requests ended in 4200 us.",
            "For it others yield to every owner with work, in atoms of 50 us, on all of the TPCs."
        ]
    );
    let missed = [
        ("slo.stat p99_usec", 9000),
        ("slo.stat cannot", 1),
        ("slo.stat level", 4),
    ];
    let missed = goals("5000", &missed);
    assert!(missed[0].contains("missed"), "{missed:?}");
    assert!(
        missed[1].ends_with("on a quarter of the TPCs."),
        "{missed:?}"
    );
    assert!(
        missed[2].starts_with("No pressure on others keeps it"),
        "{missed:?}"
    );
    assert_eq!(
        goals("max", &[("slo.stat pressed", 2)]),
        ["For another owner's slo.p99 this one yields to every owner with work, in atoms of 50 us, \
          on three quarters of the TPCs."]
    );
}

#[test]
fn who_keeps_the_clock_high_is_named() {
    let said = |slip: &str, mhz: u64, sensitivity: u64| {
        let counters = [
            ("compute.stat clock_mhz", mhz),
            ("compute.stat clock_sensitivity", sensitivity),
        ];
        let now = look(&[("slip.power", slip)], &counters);
        lines(&findings(&now, &now, SECOND), "clock")
    };
    let asks = "slip.power 10%: it asks for a clock of 1700 MHz. The GPU has the highest that anyone asks for.";
    let depends = "50% of its time depends on the clock, or was not measured.";
    assert_eq!(said("10", 1700, 505), [asks, depends]);
    let idle = "slip.power 10%: it has had no work lately, so it asks for no clock.";
    assert_eq!(said("10", 0, 0), [idle]);
    let high = "No slip.power: while it works, the GPU has its highest clock, although others have a slip.";
    assert_eq!(said("0", 2000, 0), [high]);
    assert_eq!(said("0", 0, 0), [""; 0], "nobody has a slip");
}

#[test]
fn channels_that_are_not_managed_are_named_with_what_follows() {
    let now = look(
        &[],
        &[
            ("compute.stat unmanaged", 9),
            ("compute.stat unmanaged.too_many_doorbells", 2),
            ("compute.stat unmanaged.memory_only", 1),
            ("compute.stat unmanaged.beside_native", 4),
            ("compute.stat unmanaged.untested", 0),
        ],
    );
    let found = findings(&now, &now, SECOND);
    let [finding] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(finding.topic, "not bound");
    let begins = [
        "2 channels are not managed (too_many_doorbells): limits",
        "1 channels are native: nobody",
        "4 channels are native: nobody",
    ];
    assert_eq!(finding.lines.len(), begins.len(), "{:?}", finding.lines);
    for (line, begin) in finding.lines.iter().zip(begins) {
        assert!(line.starts_with(begin), "{line}");
    }
    assert_eq!(finding.values["unmanaged.beside_native"], 4);
}
