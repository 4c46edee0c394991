// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that many objects go step by step, so that nobody waits for all of them.

use super::*;
use crate::engine::freeing::OBJECTS_PER_STEP;
use crate::rmapi::{Call, Class, Handle};

/// Memory objects of the device: three steps and some.
const MANY: usize = 3 * OBJECTS_PER_STEP + 10;

fn many() -> (World, FileId) {
    let mut world = World::new(FeatureSet::NONE);
    let file = world.open(APP, "");
    world.cuda(file);
    for number in 0..MANY as u64 {
        world.alloc(file, DEVICE, 1000 + number, 0x40, Some(4096));
    }
    (world, file)
}

fn free_of(object: u64, status: u64) -> Call {
    let bytes = words(16, &[(0, CLIENT), (8, object), (12, status)]);
    rmapi::decode(escape::FREE, &bytes).unwrap().unwrap()
}

fn memory_of(world: &mut World) -> Bytes {
    let state = world.store.state();
    let pools = state.pools.iter();
    pools.fold(Bytes(0), |sum, (_, pool)| {
        sum + pool.usage.now().all_memory()
    })
}

/// Runs steps until none is left. Returns how many there were, and checks each.
fn steps(world: &mut World, mut step: impl FnMut(&mut World) -> bool) -> usize {
    let mut count = 0;
    loop {
        let before = world.store.state().objects.len();
        let has_more = step(world);
        let gone = before - world.store.state().objects.len();
        assert!(gone <= OBJECTS_PER_STEP, "{gone} at once");
        if !has_more {
            return count;
        }
        count += 1;
    }
}

#[test]
fn a_file_closes_step_by_step() {
    let (mut world, file) = many();
    let neighbour = ProcKey {
        tgid: 900,
        start_time_ns: 1,
    };
    let neighbour = world.open(neighbour, "");
    let taken = steps(&mut world, |world| {
        let has_more = world.store.state().file_closes(file);
        world.store.check();
        has_more
    });
    assert_eq!(taken, MANY / OBJECTS_PER_STEP);
    let before = world.store.state().objects.len();
    world.store.state().file_close(file);
    world.store.check();
    // The client, its names, and the lists of its process.
    assert!(before - world.store.state().objects.len() <= 10);
    assert_eq!(memory_of(&mut world), Bytes(0));
    // One without objects has no step.
    assert!(!world.store.state().file_closes(neighbour));
    assert!(!world.store.state().file_closes(file));
}

#[test]
fn a_file_with_many_clients_closes_client_by_client() {
    let mut world = World::new(FeatureSet::NONE);
    let file = world.open(APP, "");
    for client in 0..20 {
        world.alloc(file, 0, CLIENT + 100 + client, 0x41, None);
    }
    let taken = steps(&mut world, |world| {
        let has_more = world.store.state().file_closes(file);
        world.store.check();
        has_more
    });
    assert_eq!(taken, 19);
    world.store.state().file_close(file);
    world.store.check();
}

#[test]
fn a_device_goes_step_by_step() {
    let (mut world, file) = many();
    let call = free_of(DEVICE, 0);
    let mut ticket = world.store.state().call_begin(file, &call).unwrap();
    let handle = |number: u64| Handle::try_from(number).unwrap();
    let knows = |world: &mut World, number| {
        let state = world.store.state();
        state.has_object(file, handle(CLIENT), handle(number))
    };
    assert!(!knows(&mut world, DEVICE));
    let mut taken = 1;
    while world.store.state().hides_more(&mut ticket) {
        taken += 1;
    }
    assert_eq!(taken, MANY / OBJECTS_PER_STEP);
    world.store.check();
    assert!((1000..1000 + MANY as u64).all(|number| !knows(&mut world, number)));
    assert!(!knows(&mut world, CHANNEL));
    let taken = steps(&mut world, |world| {
        let has_more = world.store.state().frees_more(file, &call, ticket);
        world.store.check();
        has_more
    });
    assert_eq!(taken, MANY / OBJECTS_PER_STEP);
    let mut state = world.store.state();
    assert_eq!(state.call_leave(file, &call, ticket, None), Ok(()));
    world.store.check();
    assert_eq!(memory_of(&mut world), Bytes(0));
}

/// What the resource manager has not freed comes back whole.
#[test]
fn a_refused_free_of_many_restores_them() {
    let (mut world, file) = many();
    let before = memory_of(&mut world);
    let call = free_of(DEVICE, 0x1f);
    let mut ticket = world.store.state().call_begin(file, &call).unwrap();
    while world.store.state().hides_more(&mut ticket) {}
    assert!(!world.store.state().frees_more(file, &call, ticket));
    let mut state = world.store.state();
    assert_eq!(state.call_leave(file, &call, ticket, None), Ok(()));
    world.store.check();
    assert_eq!(memory_of(&mut world), before);
}

/// A channel goes with memory of the process that is its USERD (580 and later). What such memory is
/// mirrored as does not say so: its number does.
#[test]
fn memory_of_a_process_takes_channels_along() {
    let (mut world, file) = many();
    for (object, number) in [(2000, 0x3e), (2001, 0x71)] {
        world.alloc(file, DEVICE, object, number, Some(4096));
    }
    let mut takes = |object| {
        world
            .store
            .state()
            .takes_channels(file, &free_of(object, 0))
    };
    assert_eq!(takes(1000), Some(false), "device memory");
    assert_eq!([takes(2000), takes(2001)], [None, None]);
    assert!(Class::takes_channels(0x71) && !Class::takes_channels(0x3e));
}
