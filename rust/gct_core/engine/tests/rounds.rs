// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that an owner's channel groups share its time slice and change no other owner's.

use super::*;
use crate::engine::{Flush, Next};
use crate::rmapi::control::Control;
use crate::table::steps;
use crate::units::Us;
use std::collections::BTreeMap;
use std::vec;

const SLICE: File = File::ComputeTimeslice;

/// `NV2080_ENGINE_TYPE_GR0`, and a copy engine that has a runlist of its own.
const GRAPHICS: u64 = 1;
const COPY: u64 = 11;

/// An RM that accepts each time slice, by client and channel group, and counts its controls.
#[derive(Default)]
struct Rm {
    slices: BTreeMap<(u32, u32), u64>,
    sets: BTreeMap<u32, usize>,
}

impl Rm {
    /// Carries out all controls of a flush.
    fn obey(&mut self, world: &mut World, flush: &Flush) {
        while let Next::Send(mut control, in_flight) = world.store.state().next_control(flush) {
            let of = (control.client, control.object);
            match control.command {
                0xa06c_0104 => {
                    let now = self.slices.get(&of).copied().unwrap_or(2048);
                    control = Control::set_timeslice(of.0, of.1, Us(now));
                }
                0xa06c_0103 => {
                    self.slices.insert(of, control.timeslice().get());
                    *self.sets.entry(of.0).or_default() += 1;
                }
                other => panic!("{other:#x}"),
            }
            world
                .store
                .state()
                .control_done(&in_flight, &control, Ok(()));
        }
    }

    /// Runs the work item until nothing is left.
    fn settle(&mut self, world: &mut World) {
        while world.store.state().can_send() {
            self.obey(world, &Flush::ALL);
        }
        world.store.check();
    }

    fn of(&self, tenant: &Tenant) -> Vec<u64> {
        let own = self
            .slices
            .iter()
            .filter(|((client, _), _)| *client == tenant.client);
        own.map(|(_, slice)| *slice).collect()
    }

    fn slices_set(&self, tenant: &Tenant) -> usize {
        self.sets.get(&tenant.client).copied().unwrap_or(0)
    }
}

/// A process with a client and a device.
struct Tenant {
    key: ProcKey,
    file: FileId,
    client: u32,
    next: u32,
}

impl Tenant {
    fn new(world: &mut World, number: u32, group: Option<GroupId>) -> Self {
        let key = ProcKey {
            tgid: 1000 + number,
            start_time_ns: 1,
        };
        let tenant = Self {
            key,
            file: world.open(key, ""),
            client: 100_000 * number,
            next: 100_000 * number + 2,
        };
        world.store.state().member_moved(key, group).unwrap();
        tenant.alloc(world, 0, tenant.client, 0x41, None);
        tenant.alloc(world, tenant.client, tenant.client + 1, 0x80, Some(1));
        tenant
    }

    fn alloc(&self, world: &mut World, parent: u32, object: u32, class: u64, answer: Option<u64>) {
        let client = if class == 0x41 { 0 } else { self.client };
        let of = [(0, client), (4, parent), (8, object)].map(|(at, word)| (at, u64::from(word)));
        let call = words(32, &[&of[..], &[(12, class), (16, 0x1000)]].concat());
        world.store.ioctl(self.file, escape::ALLOC, &call, answer);
    }

    /// Creates a channel group, and flushes as its own ioctl does.
    fn make(&mut self, world: &mut World, rm: &mut Rm, engine: u64) -> u32 {
        self.next += 1;
        self.alloc(world, self.client + 1, self.next, 0xa06c, Some(engine));
        let flush = world.store.state().flush_of_file(self.file);
        if let Some(flush) = flush {
            rm.obey(world, &flush);
        }
        self.next
    }

    fn free(&self, world: &mut World, rm: &mut Rm, object: u32) {
        let call = words(16, &[(0, self.client.into()), (8, object.into())]);
        world.store.ioctl(self.file, escape::FREE, &call, None);
        rm.slices.remove(&(self.client, object));
        if let Some(flush) = world.store.state().flush_of_file(self.file) {
            rm.obey(world, &flush);
        }
    }
}

fn world() -> (World, Rm, GroupId) {
    let mut world = World::new(FeatureSet::NONE.with(Feature::Timeslice));
    let group = world.group("web");
    (world, Rm::default(), group)
}

impl World {
    /// Returns the time slices that `compute.stat` shows of an owner.
    fn slices_shown(&mut self, owner: Owner) -> String {
        let scope = self.pool(owner);
        let stat = self.read(File::ComputeStat, scope).unwrap();
        let lines = stat
            .lines()
            .filter(|line| line.starts_with("slice ") || line.starts_with("round "));
        lines.map(|line| format!("{line}\n")).collect()
    }

    fn limit_slice(&mut self, rm: &mut Rm, owner: Owner, text: &str) {
        let scope = self.pool(owner);
        let prepared = self
            .store
            .state()
            .write_prepare(SLICE, scope, text.as_bytes());
        assert_eq!(prepared, Ok(crate::engine::Prepared::Pending));
        let flush = self.store.state().flush_of(Some(owner));
        rm.obey(self, &flush);
        assert_eq!(self.store.state().write_commit(), Ok(()));
        rm.settle(self);
    }
}

#[test]
fn without_a_limit_no_time_slice_is_sent() {
    let (mut world, mut rm, group) = world();
    let mut one = Tenant::new(&mut world, 1, Some(group));
    one.make(&mut world, &mut rm, GRAPHICS);
    for owner in [Owner::Group(group), Owner::Proc(one.key)] {
        assert_eq!(world.slices_shown(owner), "slice 0\nround 0\n");
    }
    world.limit_slice(&mut rm, Owner::Proc(one.key), "100");
    assert_eq!(
        world.slices_shown(Owner::Group(group)),
        "slice 0\nround 0\n"
    );
    assert_eq!(
        world.slices_shown(Owner::Proc(one.key)),
        "slice 100\nround 100\n"
    );
}

#[test]
fn four_processes_of_a_group_have_one_time_slice() {
    let (mut world, mut rm, group) = world();
    let mut all: Vec<_> = (1..=4)
        .map(|n| Tenant::new(&mut world, n, Some(group)))
        .collect();
    for tenant in &mut all {
        tenant.make(&mut world, &mut rm, GRAPHICS);
    }
    world.limit_slice(&mut rm, Owner::Group(group), "800");
    for tenant in &all {
        assert_eq!(rm.of(tenant), [200], "{:?}", tenant.key);
    }
    // A fifth process gets its part before its ioctl returns, the others a moment later.
    let mut fifth = Tenant::new(&mut world, 5, Some(group));
    fifth.make(&mut world, &mut rm, GRAPHICS);
    assert_eq!((rm.of(&fifth), rm.of(&all[0])), (vec![133], vec![200]));
    rm.settle(&mut world);
    assert_eq!(rm.of(&all[0]), [133]);
    // Half of them exit.
    for tenant in all.drain(..2) {
        world.store.state().file_close(tenant.file);
    }
    rm.settle(&mut world);
    assert_eq!((rm.of(&fifth), rm.of(&all[0])), (vec![266], vec![266]));
    world.limit_slice(&mut rm, Owner::Group(group), "default");
    assert_eq!((rm.of(&fifth), rm.of(&all[0])), (vec![2048], vec![2048]));
}

#[test]
fn a_process_divides_its_own_share_by_round() {
    let (mut world, mut rm, group) = world();
    let mut one = Tenant::new(&mut world, 1, Some(group));
    one.make(&mut world, &mut rm, GRAPHICS);
    one.make(&mut world, &mut rm, COPY);
    let mut other = Tenant::new(&mut world, 2, Some(group));
    other.make(&mut world, &mut rm, GRAPHICS);
    world.limit_slice(&mut rm, Owner::Group(group), "600");
    assert_eq!((rm.of(&one), rm.of(&other)), (vec![300, 300], vec![300]));
    let second = one.make(&mut world, &mut rm, GRAPHICS);
    assert_eq!(rm.of(&one), [150, 300, 150], "its own ioctl has told both");
    rm.settle(&mut world);
    assert_eq!(rm.of(&other), [300]);
    assert_eq!(
        world.slices_shown(Owner::Proc(one.key)),
        "slice 150\nround 300\n"
    );
    assert_eq!(
        world.slices_shown(Owner::Group(group)),
        "slice 150\nround 600\n"
    );
    world.limit_slice(&mut rm, Owner::Proc(one.key), "100");
    assert_eq!((rm.of(&one), rm.of(&other)), (vec![50, 100, 50], vec![300]));
    one.free(&mut world, &mut rm, second);
    assert_eq!(rm.of(&one), [100, 100]);
}

#[test]
fn a_thousand_channel_groups_shrink_their_makers_slices_only() {
    let (mut world, mut rm, group) = world();
    let mut other = Tenant::new(&mut world, 1, Some(group));
    let mut many = Tenant::new(&mut world, 2, Some(group));
    let mut stranger = Tenant::new(&mut world, 3, None);
    for tenant in [&mut other, &mut many, &mut stranger] {
        tenant.make(&mut world, &mut rm, GRAPHICS);
    }
    world.limit_slice(&mut rm, Owner::Group(group), "3000");
    world.limit_slice(&mut rm, Owner::Proc(stranger.key), "3000");
    let before = (rm.slices_set(&other), rm.slices_set(&stranger));
    for _ in 1..1000 {
        many.make(&mut world, &mut rm, GRAPHICS);
    }
    rm.settle(&mut world);
    assert_eq!((rm.of(&other), rm.of(&stranger)), (vec![1500], vec![3000]));
    assert_eq!((rm.slices_set(&other), rm.slices_set(&stranger)), before);
    let least = crate::round::SLICE_MIN.get();
    assert!(rm.of(&many).iter().all(|slice| *slice == least));
    // `compute.stat` shows what cannot be divided further.
    let told = world.slices_shown(Owner::Group(group));
    assert_eq!(
        told,
        format!("slice {least}\nround {}\n", 1500 + 1000 * least)
    );
}

#[test]
fn a_process_that_comes_and_goes_rarely_changes_slices() {
    let (mut world, mut rm, group) = world();
    let mut others: Vec<_> = (1..=5)
        .map(|n| Tenant::new(&mut world, n, Some(group)))
        .collect();
    let mut stranger = Tenant::new(&mut world, 6, None);
    for tenant in others.iter_mut().chain([&mut stranger]) {
        tenant.make(&mut world, &mut rm, GRAPHICS);
    }
    world.limit_slice(&mut rm, Owner::Group(group), "3000");
    world.limit_slice(&mut rm, Owner::Proc(stranger.key), "3000");
    let before = rm.slices_set(&stranger);
    let mut hostile = Tenant::new(&mut world, 7, Some(group));
    for _ in 0..100 {
        let made = hostile.make(&mut world, &mut rm, GRAPHICS);
        rm.settle(&mut world);
        hostile.free(&mut world, &mut rm, made);
        rm.settle(&mut world);
    }
    assert_eq!(rm.slices_set(&stranger), before);
    for other in &others {
        assert!(rm.slices_set(other) <= 2, "{}", rm.slices_set(other));
    }
}

#[test]
fn an_ioctl_that_changes_all_shares_visits_no_other_process() {
    const OTHERS: u32 = 256;
    let (mut world, mut rm, group) = world();
    let mut others: Vec<_> = (1..=OTHERS)
        .map(|n| Tenant::new(&mut world, n, Some(group)))
        .collect();
    for other in &mut others {
        other.make(&mut world, &mut rm, GRAPHICS);
    }
    world.limit_slice(&mut rm, Owner::Group(group), "1000000");
    assert_eq!(rm.of(&others[0]), [1_000_000 / 256]);
    let one_more = Tenant::new(&mut world, OTHERS + 1, Some(group));
    let (device, object) = (one_more.client + 1, one_more.client + 2);
    let looked = steps::of(|| one_more.alloc(&mut world, device, object, 0xa06c, Some(GRAPHICS)));
    assert!(looked < 800, "{looked}");
    rm.settle(&mut world);
    assert_eq!(rm.of(&others[0]), [1_000_000 / 384]);
}

#[test]
fn a_channel_group_that_passes_to_another_owner_is_part_of_its_share() {
    let (mut world, mut rm, group) = world();
    let mut maker = Tenant::new(&mut world, 1, None);
    let mut heir = Tenant::new(&mut world, 2, Some(group));
    heir.make(&mut world, &mut rm, GRAPHICS);
    world.limit_slice(&mut rm, Owner::Group(group), "600");
    let made = maker.make(&mut world, &mut rm, GRAPHICS);
    heir.next += 1;
    let dup = [
        (0, heir.client),
        (4, heir.client + 1),
        (8, heir.next),
        (12, maker.client),
        (16, made),
    ];
    let dup = words(28, &dup.map(|(at, word)| (at, u64::from(word))));
    world.store.ioctl(heir.file, escape::DUP_OBJECT, &dup, None);
    rm.settle(&mut world);
    assert_eq!(rm.of(&heir), [600], "the name alone is not charged");
    world.store.state().file_close(maker.file);
    rm.settle(&mut world);
    assert_eq!(rm.of(&heir), [300, 300]);
}

#[test]
fn a_move_updates_the_shares() {
    let (mut world, mut rm, group) = world();
    let other = world.group("db");
    let mut tenants: Vec<_> = (1..=3)
        .map(|n| Tenant::new(&mut world, n, Some(group)))
        .collect();
    for tenant in &mut tenants {
        tenant.make(&mut world, &mut rm, GRAPHICS);
    }
    world.limit_slice(&mut rm, Owner::Group(group), "600");
    world.limit_slice(&mut rm, Owner::Group(other), "600");
    assert_eq!(rm.of(&tenants[0]), [200]);
    for tenant in &tenants[..2] {
        world
            .store
            .state()
            .member_moved(tenant.key, Some(other))
            .unwrap();
    }
    rm.settle(&mut world);
    let slices: Vec<_> = tenants.iter().flat_map(|tenant| rm.of(tenant)).collect();
    assert_eq!(slices, [300, 300, 600]);
}
