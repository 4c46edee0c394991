// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks which launches can be detached from descriptors in the tenant's memory.

use super::captures::segments;
use crate::submit::methods::Action;
use crate::submit::qmd::{v04_00 as v04, Field};
use crate::submit::rewrite::detached::detach;
use crate::submit::rewrite::whole;
use crate::submit::stats::Counters;
use crate::submit::tracker::{QmdCall, Source, Tracker};
use std::vec;
use std::vec::Vec;

/// Detaches all segments of a capture after `change`. Returns which of them could be, and the
/// words.
fn detached(
    name: &str,
    change: impl Fn(&mut [u32], &mut [QmdCall]),
) -> Vec<(bool, Vec<u32>, Vec<QmdCall>)> {
    let mut tracker = Tracker::new(0xc86f);
    let mut counters = Counters::new();
    let mut all = Vec::new();
    for segment in segments(name) {
        let mut words = segment.words;
        let mut found = vec![QmdCall::NONE; 64];
        let scan = tracker.scan(&words, &mut found, &mut counters);
        found.truncate(scan.found);
        change(&mut words, &mut found);
        let done = detach(&mut words, &mut found).and_then(|_| whole::check(&words, &found));
        let done = done.is_ok();
        all.push((done, words, found));
    }
    all
}

/// Sets a field of the descriptors of one kind.
fn put(words: &mut [u32], found: &[QmdCall], null: bool, field: Field, value: u32) {
    for call in found.iter().filter(|call| call.source == Source::Upload) {
        if call.is_null() == null {
            field.set(call.qmd_mut(words).unwrap(), value).unwrap();
        }
    }
}

#[test]
fn launches_of_cuda_are_detached() {
    for name in [
        "one_launch",
        "three_launches_same_stream",
        "two_streams_event",
        "grid3d",
        "dynamic_smem_64k",
        "cluster2",
        "cooperative",
        "pdl_pair",
    ] {
        for (done, words, found) in detached(name, |_, _| {}) {
            assert!(done, "{name}");
            let launches: Vec<_> = found.iter().filter(|call| call.is_launch()).collect();
            assert!(launches.len() <= 1, "{name}: the companion is no launch");
            for launch in launches {
                let launch = launch.launch(&words).unwrap();
                let effects = launch.effects;
                assert_eq!(effects.dependents, [None; 2], "{name}");
                assert_eq!(effects.releases.iter().flatten().count(), 1, "{name}");
                assert!(
                    !effects.pre_exit && effects.arrive_latch.is_none(),
                    "{name}"
                );
                assert_eq!(launch.waits, Default::default(), "{name}");
            }
            // Nothing is left that starts a descriptor but the launches.
            let mut again = vec![QmdCall::NONE; 64];
            let mut tracker = Tracker::new(0xc86f);
            let scan = tracker.scan(&words, &mut again, &mut Counters::new());
            let calls = again.get(..scan.found).unwrap();
            let starts =
                |call: &&QmdCall| call.is_launch() || call.action == Action::DecrementDependence;
            let launches = found.iter().filter(|call| call.is_launch()).count();
            assert_eq!(calls.iter().filter(starts).count(), launches, "{name}");
        }
    }
}

#[test]
fn replays_are_not() {
    for name in ["graph4", "graph_fork", "graph_tails"] {
        assert!(
            detached(name, |_, _| {}).iter().any(|(done, ..)| !done),
            "{name}"
        );
    }
}

/// What starts, or waits for, another descriptor otherwise.
#[test]
fn others_are_refused() {
    let fields: &[(bool, Field, u32)] = &[
        (true, v04::DEPENDENCE_COUNTER, 1),
        (true, v04::DEPENDENCE_COUNTER, 0),
        (true, v04::RELEASE_ENABLE, 1),
        (true, v04::ARRIVE_AT_LATCH_VALID, 1),
        (true, v04::CWD_REFERENCE_COUNT_DECR_ENABLE, 1),
        (false, v04::DEPENDENT_QMD_ACTION, 1),
        (false, v04::DEPENDENT_QMD_ACTION, 3),
        (false, v04::DEPENDENT_QMD_ACTION, 0),
        (false, v04::WAIT_ON_LATCH_VALID, 1),
        (false, v04::REQUIRE_SCHEDULING_PCAS, 1),
        (false, v04::DEPENDENCE_COUNTER, 1),
        (false, v04::SELF_COPY_ON_COMPLETION, 1),
        (false, v04::QMD_TYPE, 0),
        (false, v04::QMD_TYPE, 6),
    ];
    for (null, field, value) in fields {
        let all = detached("one_launch", |words, found| {
            put(words, found, *null, *field, *value);
        });
        assert!(
            all.iter().any(|(done, ..)| !done),
            "{} = {value}",
            field.name
        );
    }
    let actions = [
        Action::Schedule,
        Action::PrefetchSchedule,
        Action::ForceRequireScheduling,
        Action::UndocumentedF,
    ];
    for action in actions {
        let all = detached("one_launch", |_, found| {
            found.iter_mut().for_each(|call| call.action = action);
        });
        assert!(all.iter().any(|(done, ..)| !done), "{action:?}");
    }
    let touches = [
        Action::IncrementPut,
        Action::IncrementDependence,
        Action::IncrementCwdRefCounter,
    ];
    for action in touches {
        let all = detached("pdl_pair", |_, found| {
            let touches = found.iter_mut().filter(|call| call.source == Source::Touch);
            touches.for_each(|call| call.action = action);
        });
        assert!(all.iter().any(|(done, ..)| !done), "{action:?}");
    }
    let unknown = detached("one_launch", |_, found| {
        found.iter_mut().for_each(|call| call.version = None);
    });
    assert!(unknown.iter().any(|(done, ..)| !done));
    let fragmented = detached("one_launch", |_, found| {
        found.iter_mut().for_each(|call| call.alone = false);
    });
    assert!(fragmented.iter().any(|(done, ..)| !done));
}
