// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that pageable memory is charged by place, within both limits of a process and its group.

use super::*;
use crate::engine::Paged;
use crate::memory::BYTES_MAX;

const MIB: u64 = 1 << 20;

struct Pager {
    world: World,
    file: FileId,
    group: GroupId,
    ticket: Ticket,
}

fn at(device: u64, host: u64) -> Paged {
    Paged {
        device: Bytes(device * MIB),
        host: Bytes(host * MIB),
    }
}

impl Pager {
    /// Adds a member of a group without pageable memory. The member has 4 KiB of other memory.
    fn new() -> Self {
        let mut world = World::new(FeatureSet::all());
        let (group, file) = world.web();
        let gpu = world.gpu;
        let add = |store: &mut Store| store.state().charge_managed(file, gpu, Bytes(0));
        let ticket = world.store.retry(add).unwrap();
        Self {
            world,
            file,
            group,
            ticket,
        }
    }

    fn set(&mut self, file: File, owner: Owner, text: &str) {
        let pool = self.world.pool(owner);
        assert_eq!(self.world.write(file, pool, text), Ok(()));
    }

    fn group(&mut self, file: File, text: &str) {
        self.set(file, Owner::Group(self.group), text);
    }

    fn try_repage(&mut self, now: Paged, spare: u64) -> bool {
        let (file, ticket) = (self.file, self.ticket);
        let repage = |store: &mut Store| {
            let mut state = store.state();
            state.try_repage(file, ticket, now, Bytes(spare * MIB))
        };
        let repaged = self.world.store.retry(repage).unwrap();
        self.world.store.check();
        repaged
    }

    fn holds(&mut self, paged: Paged) {
        for owner in [Owner::Proc(APP), Owner::Group(self.group)] {
            let pool = self.world.pool(owner);
            let host = self.world.read(File::HmemCurrent, pool);
            assert_eq!(host, Ok(format!("{}\n", paged.host.get())));
            let stat = self.world.read(File::GmemStat, pool);
            let uvm = paged.device.get();
            assert_eq!(stat, Ok(format!("pinned 4096\nuvm {uvm}\npage_tables 0\n")));
        }
    }

    fn room(&mut self, spare: u64) -> Option<Paged> {
        let state = self.world.store.state();
        state.pageable_room(self.file, self.ticket, Bytes(spare * MIB))
    }
}

#[test]
fn memory_is_pageable_under_a_limit_when_the_switch_is_on() {
    let mut pager = Pager::new();
    let is = |pager: &mut Pager| {
        let (file, gpu) = (pager.file, pager.world.gpu);
        pager.world.store.state().is_pageable(file, gpu)
    };
    assert!(!is(&mut pager));
    pager.group(File::GmemPageable, "1");
    assert!(!is(&mut pager), "nothing bounds it");
    pager.group(File::GmemLimit, "64M");
    assert!(is(&mut pager));
    pager.group(File::GmemPageable, "0");
    assert!(!is(&mut pager));
    pager.set(File::GmemPageable, Owner::Proc(APP), "1");
    assert!(is(&mut pager), "the process's own switch");
    assert!(!pager.world.store.state().is_pageable(FileId(99), GpuId(0)));
}

#[test]
fn each_place_has_its_limit() {
    let mut pager = Pager::new();
    pager.group(File::GmemLimit, "64M");
    pager.set(File::HmemLimit, Owner::Proc(APP), "32M");
    let pinned = Bytes(4096);
    let room = pager.room(8).unwrap();
    assert_eq!(room.device, Bytes(56 * MIB) - pinned);
    assert_eq!(room.host, Bytes(32 * MIB));
    assert!(pager.try_repage(at(63, 32), 0));
    pager.holds(at(63, 32));
    assert!(!pager.try_repage(at(64, 32), 0) && !pager.try_repage(at(63, 33), 0));
    pager.holds(at(63, 32));
    assert!(
        pager.try_repage(at(63, 0), 8),
        "what does not grow needs no room"
    );
    assert!(!pager.try_repage(at(63, 33), 0));
    assert_eq!(pager.room(0).unwrap().device, Bytes(64 * MIB) - pinned);
    assert!(pager.try_repage(at(1, 31), 0));
    pager.holds(at(1, 31));
    // A limit below what is charged: growth is refused, and shrinking is not.
    let (file, ticket) = (pager.file, pager.ticket);
    let grow = |store: &mut Store| store.state().repage(file, ticket, at(100, 100));
    assert_eq!(pager.world.store.retry(grow), Ok(()));
    pager.holds(at(100, 100));
    assert!(!pager.try_repage(at(101, 100), 0) && pager.try_repage(at(99, 99), 0));
    pager.holds(at(99, 99));
}

#[test]
fn a_dead_process_gives_both_back() {
    let mut pager = Pager::new();
    assert!(pager.try_repage(at(8, 4), 0));
    let (file, ticket) = (pager.file, pager.ticket);
    pager.world.store.state().uncharge_ticket(file, ticket);
    pager.world.store.check();
    pager.holds(at(0, 0));
    assert_eq!(pager.room(0), None);
    let gone = |store: &mut Store| store.state().try_repage(file, ticket, at(1, 1), Bytes(0));
    assert_eq!(pager.world.store.retry(gone), Err(Error::Gone));
}

/// A process that lies about sizes leaves the others of its group room to count.
#[test]
fn lies_about_sizes_are_not_charged() {
    let mut pager = Pager::new();
    assert!(pager.try_repage(at(1, 1), 0));
    let (file, ticket) = (pager.file, pager.ticket);
    let most = BYTES_MAX.get() / MIB;
    for lie in [at(most + 1, 1), at(1, most + 1), at(most + 1, most + 1)] {
        let lie = |store: &mut Store| store.state().repage(file, ticket, lie);
        assert_eq!(pager.world.store.retry(lie), Err(Error::NoSpace));
        pager.world.store.check();
    }
    pager.holds(at(1, 1));
}

#[test]
fn a_refusal_counts_where_there_is_a_limit() {
    let mut pager = Pager::new();
    pager.group(File::GmemLimit, "1M");
    let (file, gpu) = (pager.file, pager.world.gpu);
    pager.world.store.state().pageable_refused(file, gpu);
    for (owner, count) in [(Owner::Proc(APP), 0), (Owner::Group(pager.group), 1)] {
        let pool = pager.world.pool(owner);
        let events = pager.world.read(File::GmemEvents, pool).unwrap();
        assert!(events.starts_with(&format!("limit {count}\n")), "{events}");
    }
}
