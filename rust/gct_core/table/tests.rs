// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

fn slots(n: usize) -> Vec<Slot<GroupId, u32>> {
    (0..n).map(|_| Slot::default()).collect()
}

fn meta(max: usize, seed: u64) -> Meta {
    Meta::new(Table::Groups, max, seed)
}

#[test]
fn capacity_leaves_an_empty_slot() {
    assert_eq!([0, 1, 2, 4, 8, 16].map(capacity), [0, 0, 1, 3, 6, 12]);
}

#[test]
fn no_storage_asks_for_the_smallest() {
    let mut meta = meta(100, 1);
    let mut none = slots(0);
    let mut map = Map::new(&mut meta, &mut none);
    assert_eq!(map.get(&GroupId(1)), None);
    assert_eq!(map.remove(&GroupId(1)), None);
    let need = Need {
        table: Table::Groups,
        piece: 0,
        slots: limits::TABLE_SLOTS_MIN,
    };
    assert_eq!(map.insert(GroupId(1), 1), Err(Error::NeedSlots(need)));
}

#[test]
fn the_maximum_is_exact() {
    let mut meta = meta(2, 1);
    let mut some = slots(16);
    let mut map = Map::new(&mut meta, &mut some);
    assert_eq!(map.insert(GroupId(1), 1), Ok(None));
    assert_eq!(map.insert(GroupId(2), 2), Ok(None));
    assert_eq!(map.insert(GroupId(2), 3), Ok(Some(2)));
    assert_eq!(map.insert(GroupId(3), 3), Err(Error::NoSpace));
    assert_eq!(map.len(), 2);
}

#[test]
fn rehash_refuses_what_does_not_fit() {
    let mut meta = meta(100, 1);
    let (mut old, mut small) = (slots(16), slots(2));
    for id in 0..12 {
        Map::new(&mut meta, &mut old)
            .insert(GroupId(id), 0)
            .unwrap();
    }
    assert_eq!(rehash(&mut meta, &mut old, &mut small), Err(Error::NoSpace));
    assert_eq!(Map::new(&mut meta, &mut old).iter().count(), 12);
}

proptest! {
    /// Everything picked is handed out once, and the rest stays.
    #[test]
    fn removal_in_bulk_is_exact(seed: u64, ids in prop::collection::btree_set(0u64..1000, 0..48), bit in 0u64..3) {
        let mut meta = meta(100, seed);
        let mut storage = slots(64);
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

    /// The table does what a `BTreeMap` does, whatever the seed, growth included.
    #[test]
    fn behaves_like_a_map(seed: u64, ops in prop::collection::vec((0u8..3, 0u64..48, any::<u32>()), 0..400)) {
        let mut meta = meta(40, seed);
        let mut storage = slots(0);
        let mut model = BTreeMap::new();
        for (op, id, value) in ops {
            let mut map = Map::new(&mut meta, &mut storage);
            match op {
                0 => match map.insert(GroupId(id), value) {
                    Ok(old) => prop_assert_eq!(old, model.insert(id, value)),
                    Err(Error::NoSpace) => prop_assert_eq!(model.len(), 40),
                    Err(Error::NeedSlots(need)) => {
                        let mut bigger = slots(need.slots);
                        prop_assert!(bigger.len() > storage.len());
                        rehash(&mut meta, &mut storage, &mut bigger).unwrap();
                        storage = bigger;
                    }
                    Err(other) => prop_assert!(false, "{:?}", other),
                },
                1 => prop_assert_eq!(map.remove(&GroupId(id)), model.remove(&id)),
                _ => prop_assert_eq!(map.get(&GroupId(id)), model.get(&id)),
            }
            let map = Map::new(&mut meta, &mut storage);
            prop_assert!(map.is_sound());
            let mut all: Vec<_> = map.iter().map(|(key, value)| (key.0, *value)).collect();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(model.iter().map(|(key, value)| (*key, *value))));
        }
    }
}
