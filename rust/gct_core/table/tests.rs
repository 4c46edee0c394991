// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use crate::error::Table;
use crate::ids::GroupId;
use crate::testing::Slots;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::vec::Vec;

/// Slots of a page in these tests.
const PAGE: usize = 4;

/// Pages of four slots.
fn pages<V>(count: usize) -> Slots<GroupId, V> {
    Slots::new(PAGE, count)
}

fn meta(max: usize, seed: u64) -> Meta {
    Meta::new(Table::Groups, max, seed)
}

#[test]
fn no_storage_asks_for_a_page() {
    let mut meta = meta(100, 1);
    let mut storage = pages(0);
    let mut map = Map::new(&mut meta, &mut storage);
    assert_eq!(map.get(&GroupId(1)), None);
    assert_eq!(map.remove(&GroupId(1)), None);
    let need = Need {
        table: Table::Groups,
        piece: 0,
        slots: 1,
    };
    assert_eq!(map.insert(GroupId(1), 1), Err(Error::NeedSlots(need)));
}

#[test]
fn the_maximum_is_exact() {
    let mut meta = meta(2, 1);
    let mut storage = pages(4);
    let mut map = Map::new(&mut meta, &mut storage);
    assert_eq!(map.insert(GroupId(1), 1), Ok(None));
    assert_eq!(map.insert(GroupId(2), 2), Ok(None));
    assert_eq!(map.insert(GroupId(2), 3), Ok(Some(2)));
    assert_eq!(map.insert(GroupId(3), 3), Err(Error::NoSpace));
    assert_eq!(map.len(), 2);
}

/// Checks that a bucket's number is below the number of buckets. A new bucket takes entries of its
/// parent alone.
#[test]
fn one_more_bucket_takes_from_one_other() {
    assert_eq!(
        [0, 1, 2, 3, 6, 7].map(parent),
        [None, Some(0), Some(0), Some(1), Some(2), Some(3)]
    );
    for buckets in 1..70usize {
        for hash in 0..300 {
            let (before, after) = (bucket(hash, buckets), bucket(hash, buckets + 1));
            assert!(before < buckets);
            assert!(after == before || (after == buckets && parent(after) == Some(before)));
        }
    }
}

/// Checks that one event visits few entries, however large the table is.
#[test]
fn growth_and_shrinkage_have_no_long_step() {
    let mut meta = meta(1 << 20, 7);
    let mut storage = pages(0);
    let (mut longest, mut all) = (0, 0);
    let entries = 20_000;
    let mut count = |steps: usize| {
        longest = longest.max(steps);
        all += steps;
    };
    for id in 0..entries {
        if usize::try_from(id).unwrap() == storage.capacity() {
            storage.push();
        }
        count(steps::of(|| {
            Map::new(&mut meta, &mut storage)
                .insert(GroupId(id), id)
                .unwrap();
        }));
    }
    for id in 0..entries {
        count(steps::of(|| {
            assert_eq!(
                Map::new(&mut meta, &mut storage).remove(&GroupId(id)),
                Some(id)
            );
        }));
    }
    assert!(longest < 80, "{longest}");
    assert!(all < 2 * 20_000 * 8, "{all}");
}

/// Checks that a page is spare only beside another empty one, so a table at a page boundary does
/// not thrash.
#[test]
fn one_empty_page_is_kept() {
    let mut meta = meta(100, 1);
    let mut storage = pages(3);
    let mut map = Map::new(&mut meta, &mut storage);
    assert!(map.has_spare_page(0) && map.has_spare_page(PAGE) && !map.has_spare_page(PAGE + 1));
    for id in 0..4 {
        map.insert(GroupId(id), 0).unwrap();
    }
    assert!(map.has_spare_page(0) && !map.has_spare_page(1));
    map.insert(GroupId(4), 0).unwrap();
    assert!(!map.has_spare_page(0));
}

/// Generates operations of a tenant on entries.
fn operations() -> impl Strategy<Value = Vec<(u8, u64, u32)>> {
    // Runs of one kind, so that the table grows and shrinks by pages.
    let run = (0u8..3, 0u64..200, 1usize..60, any::<u32>());
    prop::collection::vec(run, 0..20).prop_map(|runs| {
        let of = |(op, first, count, value): (u8, u64, usize, u32)| {
            (0..count).map(move |at| (op, (first + u64::try_from(at).unwrap() * 7) % 211, value))
        };
        runs.into_iter().flat_map(of).collect()
    })
}

proptest! {
    /// Checks that `each` gets every selected entry once; the others stay.
    #[test]
    fn removal_in_bulk_is_exact(seed: u64, ids in prop::collection::btree_set(0u64..1000, 0..48), bit in 0u64..3) {
        let mut meta = meta(100, seed);
        let mut storage = pages(16);
        let mut map = Map::new(&mut meta, &mut storage);
        for id in &ids {
            map.insert(GroupId(*id), 0).unwrap();
        }
        let picked = |id: u64| id % 3 == bit;
        let mut out = Vec::new();
        map.remove_where(|key, _| picked(key.0), |key, _| out.push(key.0));
        out.sort_unstable();
        prop_assert!(out.into_iter().eq(ids.iter().copied().filter(|id| picked(*id))));
        prop_assert!(map.is_sound());
        prop_assert!(ids.iter().all(|id| map.contains(&GroupId(*id)) != picked(*id)));
    }

    /// Checks that the table behaves as a `HashMap` for every seed. The test adds a page only when
    /// the table asks for it, and removes each spare page.
    #[test]
    fn behaves_like_a_map(seed: u64, ops in operations()) {
        let mut meta = meta(120, seed);
        let mut storage = pages(0);
        let mut model = HashMap::new();
        for (op, id, value) in ops {
            let mut map = Map::new(&mut meta, &mut storage);
            match op {
                0 => match map.insert(GroupId(id), value) {
                    Ok(old) => prop_assert_eq!(old, model.insert(id, value)),
                    Err(Error::NoSpace) => prop_assert_eq!(model.len(), 120),
                    Err(Error::NeedSlots(need)) => {
                        prop_assert_eq!(need.piece * PAGE, map.len());
                        storage.push();
                        let added = Map::new(&mut meta, &mut storage).insert(GroupId(id), value);
                        prop_assert_eq!(added, Ok(model.insert(id, value)));
                    }
                    Err(other) => prop_assert!(false, "{:?}", other),
                },
                1 => prop_assert_eq!(map.remove(&GroupId(id)), model.remove(&id)),
                _ => prop_assert_eq!(map.get(&GroupId(id)), model.get(&id)),
            }
            while Map::new(&mut meta, &mut storage).has_spare_page(0) {
                storage.pop();
            }
            prop_assert!(storage.capacity() < model.len() + 3 * PAGE);
            let map = Map::new(&mut meta, &mut storage);
            prop_assert!(map.is_sound());
            let all: BTreeMap<_, _> = map.iter().map(|(key, value)| (key.0, *value)).collect();
            prop_assert!(all.into_iter().eq(model.iter().map(|(key, value)| (*key, *value)).collect::<BTreeMap<_, _>>()));
        }
    }

    /// Entries keep their slots until one is removed. A walk from the last slot to the first passes
    /// every entry that stays, whichever others are removed meanwhile.
    #[test]
    fn a_walk_backwards_misses_nobody(seed: u64, gone in prop::collection::vec((0u64..60, 0usize..60), 0..40)) {
        let mut meta = meta(100, seed);
        let mut storage = pages(16);
        let mut map = Map::new(&mut meta, &mut storage);
        for id in 0..60 {
            map.insert(GroupId(id), id).unwrap();
        }
        let mut seen = [false; 60];
        for at in (0..60).rev() {
            if let Some(GroupId(id)) = map.key_at(at) {
                seen[usize::try_from(id).unwrap()] = true;
            }
            for (id, _) in gone.iter().filter(|(_, when)| *when == at) {
                map.remove(&GroupId(*id));
            }
        }
        prop_assert!(map.iter().all(|(key, _)| seen[usize::try_from(key.0).unwrap()]));
    }
}
