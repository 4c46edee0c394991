// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests for whom the evictor makes room, by the limits of a process and of its group.

use super::*;

const MIB: u64 = 1 << 20;

/// The evictor makes room below the first limit of a process and its group that has too little.
#[test]
fn the_evictor_makes_room_below_limits() {
    let mut world = World::new(FeatureSet::all());
    let (group, file) = world.web();
    let gpu = world.gpu;
    let (own, of_group) = (Owner::Proc(APP), Owner::Group(group));
    let charge = |store: &mut Store| store.state().charge_managed(file, gpu, Bytes(0));
    let ticket = world.store.retry(charge).unwrap();
    let before = world.store.state().memory_charged((own, gpu)).get();
    let marks = |world: &mut World, room: u64| {
        let grow = |store: &mut Store| {
            let bytes = Bytes(64 * MIB - before - room);
            store.state().recharge_managed(file, ticket, bytes)
        };
        world.store.retry(grow).unwrap();
        let state = world.store.state();
        (state.is_low(file, gpu), state.lacks_room_ahead(file, gpu))
    };
    assert_eq!(marks(&mut world, 0), (false, None), "without a limit");
    for over in [of_group, own] {
        let pool = world.pool(over);
        assert_eq!(world.write(File::GmemLimit, pool, "64M"), Ok(()));
        // Two roots of room are made when there is less than one.
        assert_eq!(marks(&mut world, 4 * MIB), (false, None));
        assert_eq!(marks(&mut world, 4 * MIB - 1), (false, Some(over)));
        assert_eq!(marks(&mut world, 2 * MIB), (false, Some(over)));
        assert_eq!(marks(&mut world, 2 * MIB - 1), (true, Some(over)));
        assert_eq!(world.store.state().credit_ahead(over, gpu), 16);
    }
    assert_eq!(
        world
            .store
            .state()
            .credit_ahead(Owner::Proc(ProcKey { tgid: 9, ..APP }), gpu),
        0
    );
    world.store.state().evicted(file, gpu);
    world.store.state().evicted_ahead(file, gpu);
    let pool = world.pool(of_group);
    let both = Ok("limit 0\nevicted 1\nahead 1\npressure 0\n".into());
    assert_eq!(world.read(File::GmemEvents, pool), both);
}
