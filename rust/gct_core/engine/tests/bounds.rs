// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that an event costs what its process has, however many other processes there are.

use super::*;
use crate::ids::UserId;
use crate::table::steps;

/// Maximum number of slots that one event of a small process may visit. Probes are short, because a
/// table is at most three quarters full.
const STEPS_MAX: usize = 400;

/// Returns a process with a pid of its own.
fn tenant(n: u32) -> ProcKey {
    ProcKey {
        tgid: 1000 + n,
        start_time_ns: 1,
    }
}

/// Adds many processes, each with the objects of libcuda.
fn crowd(count: u32) -> World {
    let mut world = World::new(FeatureSet::NONE);
    let web = world.group("web");
    world
        .write(File::GroupCgroup, Scope::Group(web), "/web")
        .unwrap();
    for n in 0..count {
        let file = world.open(tenant(n), if n % 2 == 0 { "/web/a" } else { "/db" });
        world.cuda(file);
    }
    world
}

#[test]
fn open_and_close_visit_own_entries_only() {
    let mut world = crowd(600);
    let key = tenant(100_000);
    // Storage is not counted.
    let first = world.open(key, "/web/b");
    world.store.state().file_close(first);

    let mut file = None;
    let opened = steps::of(|| {
        let open = |store: &mut Store| store.state().file_open(key, b"/web/b", None);
        file = Some(open(&mut world.store).unwrap());
    });
    assert!(opened < STEPS_MAX, "{opened}");
    let closed = steps::of(|| world.store.state().file_close(file.unwrap()));
    assert!(closed < STEPS_MAX, "{closed}");
}

/// In the user mode a tenant says what is below what.
#[test]
fn a_deep_tree_costs_what_its_objects_cost() {
    const DEPTH: u64 = 2000;
    const STEPS_OF_OBJECT: usize = 50;
    let mut world = World::new(FeatureSet::NONE);
    let chain = |world: &mut World, file| {
        world.cuda(file);
        let first = 0x5d00_0000;
        world.alloc(file, DEVICE, first, 0xa06c, None);
        for n in first + 1..first + DEPTH {
            world.alloc(file, n - 1, n, 0xa06c, None);
        }
    };
    let file = world.open(tenant(0), "");
    chain(&mut world, file);
    let freed = steps::of(|| world.free(file, CLIENT, 0));
    assert!(freed < DEPTH as usize * STEPS_OF_OBJECT, "{freed}");
    chain(&mut world, file);
    let closed = steps::of(|| world.store.state().file_close(file));
    assert!(closed < DEPTH as usize * STEPS_OF_OBJECT, "{closed}");
    world.store.check();
}

fn reuse_a_pid(world: &mut World) {
    let old = world.open(tenant(7), "");
    let young = ProcKey {
        start_time_ns: 2,
        ..tenant(7)
    };
    let opened = steps::of(|| {
        let open = |store: &mut Store| store.state().file_open(young, b"", None);
        open(&mut world.store).unwrap();
    });
    assert!(opened < STEPS_MAX, "{opened}");
    assert!(world.store.state().procs.get(&tenant(7)).unwrap().replaced);
    world.store.state().file_close(old);
}

#[test]
fn a_reused_pid_visits_own_entries_only() {
    reuse_a_pid(&mut crowd(600));
    // The check takes more than quadratic time.
    let mut few = crowd(60);
    reuse_a_pid(&mut few);
    few.store.check();
}

const ALICE: UserId = UserId(1000);
const BOB: UserId = UserId(1001);

/// Opens the driver as a user. Returns `None` when the open is refused.
fn open_by(world: &mut World, user: UserId, key: ProcKey, cgroup: &str) -> Option<FileId> {
    let mut open = || loop {
        let path = cgroup.as_bytes();
        match world.store.state().file_open_by(user, key, path, None) {
            Err(Error::NeedSlots(need)) => world.store.grow(need),
            outcome => return outcome,
        }
    };
    open().ok()
}

/// Forks, opens, passes the descriptor on and exits, as often as a table has entries. This uses up
/// the user's own share only.
#[test]
fn dead_processes_use_up_their_own_share() {
    let mut world = World::new(FeatureSet::NONE);
    let attack = |world: &mut World, user, first: u32| {
        let opened = (0..65_536u32).map_while(|n| {
            let key = tenant(first + n);
            open_by(world, user, key, "")
        });
        opened.count()
    };
    assert_eq!(attack(&mut world, ALICE, 0), limits::PROCS_MAX / 2);
    assert_eq!(open_by(&mut world, ALICE, tenant(99_999), ""), None);
    // Her existing processes still work.
    assert!(open_by(&mut world, ALICE, tenant(0), "").is_some());
    // The next user gets half of what is free, and the next half of that.
    assert_eq!(attack(&mut world, BOB, 100_000), limits::PROCS_MAX / 4);
    assert!(open_by(&mut world, UserId(7), tenant(300_000), "").is_some());
}

/// Checks that a group has a share of its own, independent of its members' user and of other
/// groups.
#[test]
fn a_group_has_a_share_of_its_own() {
    let mut world = World::new(FeatureSet::NONE);
    let web = world.group("web");
    world
        .write(File::GroupCgroup, Scope::Group(web), "/web")
        .unwrap();
    for n in 0..70_000 {
        if open_by(&mut world, ALICE, tenant(n), "").is_none() {
            break;
        }
    }
    assert_eq!(open_by(&mut world, ALICE, tenant(90_000), "/"), None);
    let inside = open_by(&mut world, ALICE, tenant(90_001), "/web/a");
    assert!(inside.is_some());
    // A process that moves takes its share along.
    let mut state = world.store.state();
    assert_eq!(state.groups.get(&web).unwrap().share.procs.0, 1);
    state.member_moved(tenant(5), Some(web)).unwrap();
    assert_eq!(state.groups.get(&web).unwrap().share.procs.0, 2);
    let alice = state.users.get(&ALICE).unwrap();
    assert_eq!((alice.share.procs.0, alice.procs.0), (32_767, 32_769));
}

/// Checks that a process which opens files or creates objects without end leaves seven eighths to
/// others of its owner.
#[test]
fn a_process_has_an_eighth() {
    let mut world = World::new(FeatureSet::NONE);
    let opened = (0..limits::FILES_MAX).map_while(|_| open_by(&mut world, ALICE, APP, ""));
    assert_eq!(opened.count(), limits::FILES_OF_PROC_MAX);
    assert!(open_by(&mut world, ALICE, tenant(1), "").is_some());
}

/// Checks that room promised when an ioctl begins is there when it ends, whatever happens between.
#[test]
fn an_ioctl_with_reserved_room_can_be_tracked() {
    let mut world = World::new(FeatureSet::NONE);
    let file = world.open(APP, "");
    world.cuda(file);
    let bytes = words(
        32,
        &[
            (0, CLIENT),
            (4, DEVICE),
            (8, 77),
            (12, 0xa06c),
            (16, 0x1000),
        ],
    );
    let call = rmapi::decode(escape::ALLOC, &bytes).unwrap().unwrap();
    let ticket = world
        .store
        .retry(|store| store.state().call_enter(file, &call))
        .unwrap();
    assert_eq!(*world.store.state().reserved_objects, Sat(1));
    world.store.check();
    // Another process fills the table up to the last slot of its storage.
    let other = world.open(tenant(1), "");
    let mut object = 1000;
    loop {
        let call = words(32, &[(0, CLIENT), (8, object), (12, 0x41)]);
        let call = rmapi::decode(escape::ALLOC, &call).unwrap().unwrap();
        let mut state = world.store.state();
        let Ok(ticket) = state.call_enter(other, &call) else {
            break;
        };
        state.call_leave(other, &call, ticket, None).unwrap();
        object += 1;
    }
    let left = world.store.state().call_leave(file, &call, ticket, None);
    assert_eq!(left, Ok(()));
    assert_eq!(*world.store.state().reserved_objects, Sat(0));
    world.store.check();
}

#[test]
fn processes_under_a_limit_are_known() {
    let mut world = World::new(FeatureSet::NONE.with(Feature::Timeslice));
    let web = world.group("web");
    let file = world.open(APP, "");
    let state = world.store.state();
    assert!(!state.binds_opener(APP, Some(web), b"") && !state.binds_file(file));
    world.store.state().member_moved(APP, Some(web)).unwrap();
    let pool = world.pool(Owner::Group(web));
    let prepared = world
        .store
        .state()
        .write_prepare(File::ComputeTimeslice, pool, b"2000");
    assert!(prepared.is_ok());
    let _ = world.store.state().write_commit();
    let state = world.store.state();
    assert!(state.binds_opener(tenant(1), Some(web), b"") && state.binds_file(file));
    assert!(!state.binds_opener(tenant(1), None, b"/elsewhere"));
}
