// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests whose memory gives way, and what is in force meanwhile.

use super::goals::tenant;
use super::*;
use crate::gpu_time::GpuTime;
use crate::units::Ns;

const MIB: u64 = 1 << 20;

/// A group with one process that has a ticket for its pageable memory.
struct Owned {
    pool: Scope,
    file: FileId,
    ticket: Ticket,
}

/// Returns a world whose GPU has 1 GiB.
fn world() -> World {
    let mut world = World::new(FeatureSet::all());
    let mut facts = facts(1, 0x40);
    facts.memory_total = Some(Bytes(1024 * MIB));
    facts.topology = Topology::apart(TpcMask::first(66));
    let mut state = world.store.state();
    assert_eq!(state.gpu_learned(&facts, FeatureSet::all()), Ok(()));
    world
}

impl Owned {
    fn new(world: &mut World, number: u32, limits: &[(File, &str)]) -> Self {
        let (proc, pool) = tenant(world, number, limits);
        let gpu = world.gpu;
        let Scope::Pool(Owner::Group(group), _) = pool else {
            panic!("{pool:?}")
        };
        let open = |store: &mut Store| store.state().file_open(proc, b"", Some(group));
        let file = world.store.retry(open).unwrap();
        let add = |store: &mut Store| store.state().charge_managed(file, gpu, Bytes(0));
        let ticket = world.store.retry(add).unwrap();
        Self { pool, file, ticket }
    }

    fn elastic(world: &mut World, number: u32, low: &str) -> Self {
        let limit = (File::GmemLimit, "800M");
        Self::new(
            world,
            number,
            &[limit, (File::GmemLow, low), (File::GmemPageable, "1")],
        )
    }

    fn has(&self, world: &mut World, device: u64, host: u64) {
        let paged = crate::engine::Paged {
            device: Bytes(device * MIB),
            host: Bytes(host * MIB),
        };
        let repage = |store: &mut Store| store.state().repage(self.file, self.ticket, paged);
        world.store.retry(repage).unwrap();
    }

    fn room(&self, world: &mut World) -> u64 {
        let state = world.store.state();
        let room = state.pageable_room(self.file, self.ticket, Bytes(0));
        room.unwrap().device.get() / MIB
    }
}

#[test]
fn only_memory_that_can_leave_gives_way() {
    let mut world = world();
    let lesser = Owned::elastic(&mut world, 1, "100M");
    let other = Owned::new(&mut world, 2, &[]);
    lesser.has(&mut world, 700, 0);
    other.has(&mut world, 500, 0);
    world.store.state().balance();
    // 992 MiB are divided. Both have 4 KiB that cannot leave, and the other has its own.
    assert_eq!(lesser.room(&mut world), 491);
    let read = |world: &mut World, file| world.read(file, lesser.pool).unwrap();
    assert_eq!(read(&mut world, File::GmemLimit), "838860800\n");
    assert!(read(&mut world, File::GmemStat).contains("\nallowed "));
    for (file, text) in [
        (File::GmemPageable, "0"),
        (File::GmemLow, "max"),
        (File::GmemLimit, "max"),
    ] {
        assert!(world.store.state().has_elastic());
        let before = read(&mut world, file);
        assert_eq!(world.write(file, lesser.pool, text), Ok(()));
        assert!(!world.store.state().has_elastic(), "{file:?}");
        world.store.state().balance();
        assert!(!read(&mut world, File::GmemStat).contains("allowed"));
        assert_eq!(world.write(file, lesser.pool, before.trim()), Ok(()));
        world.store.state().balance();
        assert_eq!(lesser.room(&mut world), 491, "{file:?}");
    }
}

/// Checks that an owner that has had no work for ten looks gives way to a later rank that has.
#[test]
fn who_rests_gives_way_until_it_works() {
    let mut world = world();
    let first = Owned::elastic(&mut world, 1, "100M");
    let second = Owned::elastic(&mut world, 2, "100M");
    let priority = world.write(File::ComputePriority, first.pool, "0");
    assert_eq!(priority, Ok(()));
    first.has(&mut world, 700, 0);
    second.has(&mut world, 200, 500);
    let gpu = world.gpu;
    let look = |world: &mut World, works: &Owned| {
        let mut state = world.store.state();
        let proc = state.opener(works.file).unwrap();
        let time = GpuTime {
            used: Ns(1_000),
            ..GpuTime::ZERO
        };
        state.used_gpu(proc, gpu, &time);
        state.balance();
    };
    look(&mut world, &first);
    assert_eq!(
        (first.room(&mut world), second.room(&mut world)),
        (700, 291)
    );
    for _ in 0..25 {
        look(&mut world, &second);
    }
    assert_eq!(
        (first.room(&mut world), second.room(&mut world)),
        (291, 700)
    );
    look(&mut world, &first);
    look(&mut world, &first);
    assert_eq!(second.room(&mut world), 291);
}

/// Checks that a GPU without a known size divides nothing.
#[test]
fn memory_of_unknown_size_is_not_divided() {
    let mut world = World::new(FeatureSet::all());
    let lesser = Owned::elastic(&mut world, 1, "0");
    lesser.has(&mut world, 700, 0);
    world.store.state().balance();
    assert_eq!(lesser.room(&mut world), 799);
}
