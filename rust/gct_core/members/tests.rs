// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use crate::host::Heap;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

const WEB: GroupId = GroupId(1);
const DB: GroupId = GroupId(2);

fn proc(tgid: u32, start_time_ns: u64) -> ProcKey {
    ProcKey {
        tgid,
        start_time_ns,
    }
}

fn table() -> MemberTable<Heap> {
    let Ok(table) = MemberTable::new();
    table
}

/// Runs an operation as the glue does: adds the page that it needs.
fn with<T>(
    table: &mut MemberTable<Heap>,
    f: impl Fn(&mut Members<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    match f(&mut table.members()) {
        Err(Error::NeedSlots(need)) => {
            let Ok(page) = Heap::slots(need.slots);
            assert!(table.put_page(need.piece, page).is_empty());
            f(&mut table.members())
        }
        outcome => outcome,
    }
}

fn put(
    table: &mut MemberTable<Heap>,
    key: ProcKey,
    group: GroupId,
) -> Result<Option<GroupId>, Error> {
    with(table, |members| members.put(key, group))
}

fn list(table: &mut MemberTable<Heap>, group: GroupId, room: usize) -> Vec<u32> {
    let (mut pids, mut from) = (Vec::new(), Some(0));
    while let Some(next) = from {
        let mut out = std::vec![ProcKey::default(); room];
        let (found, then) = table.members().list(group, next, &mut out);
        pids.extend(out[..found].iter().map(|key| key.tgid));
        assert!(then.is_none_or(|then| then > next || found > 0));
        from = then;
    }
    pids
}

#[test]
fn children_follow_and_a_reused_pid_does_not() {
    let mut table = table();
    let (parent, child) = (proc(10, 1), proc(11, 2));
    let fork = |table: &mut _, a, b| with(table, |members| members.on_fork(a, b));
    assert_eq!(fork(&mut table, parent, child), Ok(None));
    assert_eq!(put(&mut table, parent, WEB), Ok(None));
    assert_eq!(fork(&mut table, parent, child), Ok(Some(WEB)));
    assert_eq!(fork(&mut table, parent, parent), Ok(Some(WEB)));
    let mut members = table.members();
    assert_eq!(members.count(WEB), 2);
    assert_eq!(members.on_exit(parent), Some(WEB));
    assert_eq!(members.group_of(child), Some(WEB));
    assert_eq!(members.group_of(proc(10, 3)), None);
    assert_eq!(members.on_exit(parent), None);
}

#[test]
fn a_process_is_in_one_group() {
    let mut table = table();
    assert_eq!(put(&mut table, proc(1, 1), WEB), Ok(None));
    assert_eq!(put(&mut table, proc(1, 1), DB), Ok(Some(WEB)));
    let members = table.members();
    assert_eq!((members.count(WEB), members.count(DB)), (0, 1));
}

/// Checks that a write of the pid of a process that has just died does not replace a member that
/// has the pid now.
#[test]
fn the_youngest_of_a_pid_stays() {
    let mut table = table();
    assert_eq!(put(&mut table, proc(7, 5), WEB), Ok(None));
    assert_eq!(put(&mut table, proc(7, 4), DB), Err(Error::NoProcess));
    assert_eq!(table.members().group_of(proc(7, 5)), Some(WEB));
    assert_eq!(put(&mut table, proc(7, 6), DB), Ok(None));
    let members = table.members();
    assert_eq!((members.count(WEB), members.count(DB)), (0, 1));
}

/// Checks that every pid of Linux has a slot. A fork needs at most one page, for the largest pid as
/// for the smallest.
#[test]
fn every_pid_has_a_place() {
    let mut table = table();
    let last = u32::try_from(limits::MEMBERS_MAX).unwrap() - 1;
    let edge = u32::try_from(PAGE).unwrap();
    for tgid in [1, edge - 1, edge, last] {
        assert_eq!(put(&mut table, proc(tgid, 1), WEB), Ok(None));
    }
    assert_eq!(put(&mut table, proc(last + 1, 1), WEB), Err(Error::NoSpace));
    assert_eq!(put(&mut table, proc(u32::MAX, 1), WEB), Err(Error::NoSpace));
    assert_eq!(list(&mut table, WEB, 2), [1, edge - 1, edge, last]);
}

#[test]
fn a_fork_without_a_page_is_counted_and_says_whether_it_may_run() {
    let mut table = table();
    put(&mut table, proc(1, 1), WEB).unwrap();
    let mut members = table.members();
    let refused = members.on_fork(proc(1, 1), proc(1000, 1));
    assert!(matches!(refused, Err(Error::NeedSlots(need)) if need.table == Table::Members));
    assert!(!members.lose(proc(1, 1)));
    members.bind(WEB, true);
    assert!(members.lose(proc(1, 1)));
    assert!(!members.lose(proc(2, 1)));
    assert_eq!((members.lost(), members.count(WEB)), (3, 1));
}

#[test]
fn a_page_goes_with_its_last_member() {
    let mut table = table();
    put(&mut table, proc(300, 1), WEB).unwrap();
    put(&mut table, proc(301, 1), WEB).unwrap();
    assert!(table.on_exit(proc(300, 1)).is_empty());
    assert!(table.on_exit(proc(300, 1)).is_empty());
    assert_eq!(table.on_exit(proc(301, 1)).len(), PAGE);
    let refused = table.members().put(proc(300, 2), WEB);
    assert!(matches!(refused, Err(Error::NeedSlots(_))));
    // A page that arrives too late is returned.
    let page = || Heap::slots::<MemberSlot>(PAGE).unwrap_or_default();
    assert!(table.put_page(300 / PAGE, page()).is_empty());
    assert_eq!(table.put_page(300 / PAGE, page()).len(), PAGE);
}

#[test]
fn a_list_looks_at_a_bounded_number_of_slots() {
    let mut table = table();
    for tgid in (0..40 * 256).step_by(64) {
        put(
            &mut table,
            proc(tgid, 0),
            if tgid % 128 == 0 { WEB } else { DB },
        )
        .unwrap();
    }
    let mut out = [ProcKey::default(); 4096];
    let (found, next) = table.members().list(WEB, 0, &mut out);
    assert!(found <= LIST_SLOTS / 128 && next.is_some());
    let expected: Vec<u32> = (0..40 * 256).step_by(128).collect();
    for room in [1, 3, 1000] {
        assert_eq!(list(&mut table, WEB, room), expected);
    }
    assert_eq!(list(&mut table, GroupId(7), 3), []);
}

proptest! {
    /// Compares forks, exits and moves with a `BTreeMap`, while pids are reused at once.
    #[test]
    fn behaves_like_a_map(ops in prop::collection::vec((0u8..4, 0u32..12, 0u64..3, 0u32..12, 1u64..4), 0..300)) {
        let mut table = table();
        let mut model: BTreeMap<u32, (u64, GroupId)> = BTreeMap::new();
        let of = |model: &BTreeMap<u32, (u64, GroupId)>, key: ProcKey| {
            model.get(&key.tgid).filter(|(start, _)| *start == key.start_time_ns).map(|(_, group)| *group)
        };
        let model_put = |model: &mut BTreeMap<u32, (u64, GroupId)>, key: ProcKey, group| {
            if model.get(&key.tgid).is_some_and(|(start, _)| *start > key.start_time_ns) {
                return Err(Error::NoProcess);
            }
            let old = of(model, key);
            model.insert(key.tgid, (key.start_time_ns, group));
            Ok(old)
        };
        for (op, tgid, start, other, group) in ops {
            let (a, b) = (proc(tgid * 100, start), proc(other * 100, start + 1));
            match op {
                0 => prop_assert_eq!(put(&mut table, a, GroupId(group)), model_put(&mut model, a, GroupId(group))),
                1 => {
                    let before = of(&model, a);
                    if before.is_some() {
                        model.remove(&a.tgid);
                    }
                    table.on_exit(a);
                }
                2 => {
                    let expected = match of(&model, a) {
                        Some(group) => model_put(&mut model, b, group).map(|_| Some(group)),
                        None => Ok(None),
                    };
                    prop_assert_eq!(with(&mut table, |members| members.on_fork(a, b)), expected);
                }
                _ => prop_assert_eq!(table.members().group_of(a), of(&model, a)),
            }
            let members = table.members();
            prop_assert!(members.is_sound());
            for group in [WEB, DB, GroupId(3)] {
                let expected = model.values().filter(|(_, of)| *of == group).count();
                prop_assert_eq!(members.count(group), expected);
            }
        }
    }
}
