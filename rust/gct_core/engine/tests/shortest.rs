// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whose time slices are short, and what else says how an owner shares.

use super::goals::tenant;
use super::*;
use crate::policy::shortest::SLICE;
use crate::units::Us;

const PRIORITY: (File, &str) = (File::ComputePriority, "3");

/// Sets the length of requests of each owner, and decides.
fn lengths(world: &mut World, of: &[(Scope, u64)]) -> bool {
    let mut state = world.store.state();
    for (scope, length) in of {
        if let Scope::Pool(owner, gpu) = scope {
            let length = Some(Us(*length)).filter(|length| *length > Us(0));
            state.set_request_length(*owner, *gpu, length);
        }
    }
    state.shorten()
}

/// Returns the time slice in force of a process.
fn slice(world: &mut World, proc: ProcKey) -> Option<Us> {
    let state = world.store.state();
    let gpu = state.gpu_of_minor(facts(1, 1).minor).unwrap();
    state.effective(proc, gpu).timeslice
}

#[test]
fn only_longer_requests_of_one_rank_yield() {
    let mut world = World::new(FeatureSet::all());
    let (short, of_short) = tenant(&mut world, 1, &[PRIORITY]);
    let (long, of_long) = tenant(&mut world, 2, &[PRIORITY]);
    let spared = [
        tenant(&mut world, 3, &[]),
        tenant(&mut world, 4, &[(File::ComputePriority, "4")]),
        tenant(&mut world, 5, &[PRIORITY, (File::TpcQuota, "0")]),
        tenant(&mut world, 6, &[PRIORITY]),
    ];
    let mut all = std::vec![(of_short, 1_400), (of_long, 14_000)];
    all.extend(spared[..3].iter().map(|(_, scope)| (*scope, 900_000)));
    assert!(lengths(&mut world, &all));
    assert!(!lengths(&mut world, &all), "nothing changed");
    assert_eq!(slice(&mut world, long), Some(SLICE));
    for (proc, _) in spared {
        assert_eq!(slice(&mut world, proc), None, "{proc:?}");
    }
    assert_eq!(slice(&mut world, short), None);
    assert_eq!(
        world.read(File::ComputeTimeslice, of_long),
        Ok("default\n".into())
    );
    assert!(lengths(&mut world, &[(of_short, 0)]), "idle");
    assert_eq!(slice(&mut world, long), None);
}

#[test]
fn what_is_written_counts_at_once() {
    let mut world = World::new(FeatureSet::all());
    let (_, of_short) = tenant(&mut world, 1, &[PRIORITY]);
    let (long, of_long) = tenant(&mut world, 2, &[PRIORITY]);
    assert!(lengths(&mut world, &[(of_short, 1_000), (of_long, 4_000)]));
    assert_eq!(slice(&mut world, long), Some(SLICE));
    assert_eq!(world.write(File::ComputeTimeslice, of_long, "9ms"), Ok(()));
    assert_eq!(slice(&mut world, long), Some(Us(9_000)));
    assert!(lengths(&mut world, &[]));
    assert_eq!(
        world.write(File::ComputeTimeslice, of_long, "default"),
        Ok(())
    );
    assert_eq!(slice(&mut world, long), None);
    assert!(lengths(&mut world, &[]));
    assert_eq!(slice(&mut world, long), Some(SLICE));
    assert_eq!(world.write(File::TpcQuota, of_long, "2"), Ok(()));
    assert_eq!(slice(&mut world, long), None);
}

#[test]
fn the_stat_of_a_group_shows_a_short_slice() {
    let mut world = World::new(FeatureSet::all());
    let (_, of_short) = tenant(&mut world, 1, &[PRIORITY]);
    let (_, of_long) = tenant(&mut world, 2, &[PRIORITY]);
    let mut slice_shown = |lengths_of: &[(Scope, u64)]| -> Option<String> {
        lengths(&mut world, lengths_of);
        let stat = world.read(File::ComputeStat, of_long).unwrap();
        stat.lines()
            .find_map(|line| Some(line.strip_prefix("slice ")?.into()))
    };
    assert_eq!(
        slice_shown(&[(of_short, 1_000), (of_long, 9_000)]).as_deref(),
        Some("500")
    );
    assert_eq!(slice_shown(&[(of_long, 1_500)]).as_deref(), Some("0"));
}
