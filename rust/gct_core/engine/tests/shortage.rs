// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests which shortage of memory lasts.

use super::*;
use crate::engine::Shortage;

const MIB: u64 = 1 << 20;

/// Adds a member of a group with 4 MiB of managed memory, and with the 4096 bytes that the resource
/// manager has allocated. Both have limits.
fn limited(own: &str, of_group: &str) -> (World, FileId, GroupId) {
    let mut world = World::new(FeatureSet::all());
    let (group, file) = world.web();
    let gpu = world.gpu;
    let add = |store: &mut Store| store.state().charge_managed(file, gpu, Bytes(4 * MIB));
    world.store.retry(add).unwrap();
    for (owner, limit) in [(Owner::Proc(APP), own), (Owner::Group(group), of_group)] {
        let pool = world.pool(owner);
        assert_eq!(world.write(File::GmemLimit, pool, limit), Ok(()));
    }
    (world, file, group)
}

fn shortage(world: &mut World, file: FileId, failed: u32) -> Shortage {
    let gpu = world.gpu;
    let shortage = world.store.state().shortage(file, gpu, failed);
    world.store.check();
    shortage
}

fn refusals(world: &mut World, owner: Owner) -> String {
    let pool = world.pool(owner);
    let text = world.read(File::GmemEvents, pool).unwrap();
    text.lines().next().unwrap().into()
}

#[test]
fn pinned_roots_are_a_passing_shortage() {
    let (mut world, file, _) = limited("4100K", "max");
    assert_eq!(shortage(&mut world, file, 0), Shortage::Passing);
    assert_eq!(refusals(&mut world, Owner::Proc(APP)), "limit 0");
}

#[test]
fn failed_evictions_are_a_lasting_one_in_the_end() {
    let (mut world, file, _) = limited("4100K", "max");
    for failed in [1, 2, 63] {
        assert_eq!(shortage(&mut world, file, failed), Shortage::Renewed);
    }
    for failed in [64, u32::MAX] {
        assert_eq!(shortage(&mut world, file, failed), Shortage::Lasting);
    }
}

/// A root beside the resource manager's memory has to fit, managed memory or not.
#[test]
fn a_limit_without_room_for_a_root_is_a_lasting_one() {
    let (mut world, file, group) = limited("max", "max");
    for owner in [Owner::Proc(APP), Owner::Group(group)] {
        for (limit, expected) in [
            (2 * MIB + 4095, Shortage::Lasting),
            (2 * MIB + 4096, Shortage::Passing),
        ] {
            let pool = world.pool(owner);
            // The managed memory is above it: the limit is on trial.
            let begun = world.store.state().trial_begin(
                File::GmemLimit,
                pool,
                format!("{limit}").as_bytes(),
            );
            assert_eq!(shortage(&mut world, file, 0), expected);
            world.store.state().trial_end(begun.unwrap());
        }
        assert_eq!(refusals(&mut world, owner), "limit 1");
    }
}

#[test]
fn who_has_gone_has_no_shortage() {
    let mut world = World::new(FeatureSet::all());
    let file = world.open(APP, "/web");
    world.store.state().file_close(file);
    assert_eq!(shortage(&mut world, file, 64), Shortage::Passing);
}
