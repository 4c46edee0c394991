// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plays hostile tenants against a resource manager that chooses, whenever it may, which of several
//! mappings an address means.

use super::*;
use crate::rmapi::control::NOT_SUPPORTED;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

/// An aperture's range: addresses that one mapping has, or all of one piece of memory.
type Range = u64;

/// What a device file maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Live,
    Held,
    Over,
}

/// The mappings of a file, and how many were visited.
#[derive(Default)]
struct Order {
    all: BTreeMap<Key, CpuMap>,
    shown: BTreeMap<Key, Shown>,
    closed: BTreeSet<Key>,
    visits: usize,
}

impl Maps for Order {
    fn walk(&mut self, [first, last]: [Key; 2], each: &mut dyn FnMut(Key, &mut CpuMap) -> Deed) {
        let keys: Vec<Key> = self.all.range(first..=last).map(|(key, _)| *key).collect();
        for key in keys {
            self.visits += 1;
            let map = self.all.get_mut(&key).unwrap();
            if self.closed.contains(&key) {
                map.close();
            }
            let (shown, goes) = match each(key, map) {
                Deed::Leave => continue,
                Deed::Hold => (Shown::Held, false),
                Deed::Show => (Shown::Live, false),
                Deed::End => (Shown::Over, true),
                Deed::Forget => (Shown::Live, true),
            };
            self.shown.insert(key, shown);
            if goes {
                self.all.remove(&key);
            }
        }
    }
}

/// A mapping in the resource manager.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    piece: Piece,
    range: Range,
}

/// An object of a client's: its parent, its class and a number of its own.
type Object = (Handle, u32, u64);

#[derive(Default)]
struct Rm {
    /// Whether mappings of the same memory have the same addresses.
    is_newer: bool,
    objects: BTreeMap<[Handle; 2], Object>,
    mapped: Vec<Mapped>,
    numbers: u64,
}

const GONE: Status = nv::NV_ERR_OBJECT_NOT_FOUND;
const CLIENTS: [Handle; 2] = [0xc1, 0xc2];
const DEVICE: Handle = 2;
const SUBDEVICE: Handle = 3;
/// Handles that objects of all classes may have.
const FREE_HANDLES: std::ops::Range<Handle> = 10..16;
/// A class of objects that may have memory below them.
const ABOVE_OTHERS: u32 = nv::KEPLER_CHANNEL_GROUP_A;

impl Rm {
    fn class(&self, object: [Handle; 2]) -> Result<u32, Status> {
        self.objects.get(&object).map(|object| object.1).ok_or(GONE)
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn alloc(&mut self, [client, parent, object]: [Handle; 3], class: u32) -> bool {
        let has_parent = object == client || self.objects.contains_key(&[client, parent]);
        let is_free = !self.objects.contains_key(&[client, object]);
        if has_parent && is_free {
            let number = self.number();
            self.objects
                .insert([client, object], (parent, class, number));
        }
        has_parent && is_free
    }

    /// Makes a client with a device and a subdevice, as far as they are not there.
    fn begin(&mut self, client: Handle) {
        self.alloc([client, 0, client], nv::NV01_ROOT);
        self.alloc([client, client, DEVICE], nv::NV01_DEVICE_0);
        self.alloc([client, DEVICE, SUBDEVICE], nv::NV20_SUBDEVICE_0);
    }

    fn map(&mut self, mut piece: Piece) -> Option<Mapped> {
        let memory = self.objects.get(&[piece.client, piece.memory])?.2;
        self.objects.get(&[piece.client, piece.device])?;
        piece.address = match self.is_newer {
            true => 0x1_0000 + memory * 4 + piece.offset,
            false => 0x1_0000 + self.number(),
        };
        // Pieces that begin at one address may have a range each.
        let range = piece.address * 4 + piece.bytes;
        let mapped = Mapped { piece, range };
        self.mapped.push(mapped);
        Some(mapped)
    }

    /// Returns one of those that an address may mean.
    fn choose(&self, of: [Handle; 2], address: u64, choice: usize) -> Option<usize> {
        let means = |at: &usize| {
            let piece = self.mapped[*at].piece;
            [piece.client, piece.memory] == of && piece.address == address
        };
        let all: Vec<usize> = (0..self.mapped.len()).filter(means).collect();
        (!all.is_empty()).then(|| all[choice % all.len()])
    }

    fn free(&mut self, [client, object]: [Handle; 2]) {
        if self.objects.remove(&[client, object]).is_none() {
            return;
        }
        let below = |(at, of): (&[Handle; 2], &Object)| {
            (at[0] == client && (of.0 == object || object == client)).then_some(*at)
        };
        let below: Vec<[Handle; 2]> = self.objects.iter().filter_map(below).collect();
        below.into_iter().for_each(|object| self.free(object));
        self.mapped.retain(|mapped| {
            let piece = mapped.piece;
            piece.client != client || ![piece.memory, piece.device, client].contains(&object)
        });
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Alloc(Handle, usize),
    Map(Handle, [u64; 2], bool),
    Unmap(Handle, u64, usize),
    Rename(Handle, [u64; 2], usize),
    Free(Handle),
    Close(usize),
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let handle = || FREE_HANDLES;
    // Addresses are those of mappings, from the first one on, or a few others.
    let address = || 0_u64..12;
    let step = prop_oneof![
        4 => (handle(), 0..4_usize).prop_map(|(handle, class)| Step::Alloc(handle, class)),
        6 => (handle(), [0..2_u64, 1..3_u64], any::<bool>())
            .prop_map(|(handle, piece, by_subdevice)| Step::Map(handle, piece, by_subdevice)),
        4 => (handle(), address(), any::<usize>())
            .prop_map(|(handle, address, choice)| Step::Unmap(handle, address, choice)),
        1 => (handle(), [address(), address()], any::<usize>())
            .prop_map(|(handle, addresses, choice)| Step::Rename(handle, addresses, choice)),
        3 => prop_oneof![8 => handle(), 1 => Just(DEVICE), 1 => Just(SUBDEVICE), 1 => Just(0)]
            .prop_map(Step::Free),
        1 => any::<usize>().prop_map(Step::Close),
    ];
    proptest::collection::vec((0..2_usize, step), 0..60)
}

/// A tenant's file with its mappings, and the resource manager.
#[derive(Default)]
struct World {
    rm: Rm,
    order: Order,
    /// The range of each device file that is open.
    files: BTreeMap<Key, Range>,
    numbers: u64,
    asked: usize,
    has_renamed: bool,
}

impl World {
    fn address(&self, number: u64) -> u64 {
        let at = usize::try_from(number).unwrap();
        self.rm
            .mapped
            .get(at)
            .map_or(number, |mapped| mapped.piece.address)
    }

    /// Runs an ioctl as the driver does.
    fn ioctl(&mut self, call: Call, run: impl FnOnce(&mut Rm) -> bool) {
        let Self {
            rm, order, asked, ..
        } = self;
        let held = enter(order, &call, true, &mut |object| {
            *asked += 1;
            rm.class(object)
        });
        let has_succeeded = run(rm);
        leave(order, &call, has_succeeded, held, &mut |object| {
            *asked += 1;
            rm.class(object)
        });
    }

    fn map(&mut self, piece: Piece) {
        if !has_room(&mut self.order, &piece) {
            return;
        }
        self.numbers += 1;
        let key = piece.key(self.numbers);
        self.order.all.insert(key, CpuMap::new(piece, true));
        let Some(mapped) = self.rm.map(piece) else {
            self.order.all.remove(&key);
            return;
        };
        let Self {
            rm, order, asked, ..
        } = self;
        made(order, key, mapped.piece, &mut |object| {
            *asked += 1;
            rm.class(object)
        });
        order.shown.insert(key, Shown::Live);
        self.files.insert(key, mapped.range);
    }

    fn step(&mut self, client: Handle, step: Step) {
        match step {
            Step::Alloc(object, class) => {
                self.rm.begin(client);
                let others = self
                    .rm
                    .objects
                    .iter()
                    .find(|(at, object)| at[0] == client && object.1 == ABOVE_OTHERS);
                let other = others.map_or(DEVICE, |(at, _)| at[1]);
                let (parent, class) = [
                    (DEVICE, nv::NV01_MEMORY_LOCAL_USER),
                    (SUBDEVICE, nv::HOPPER_USERMODE_A),
                    (other, nv::NV01_MEMORY_SYSTEM),
                    (DEVICE, ABOVE_OTHERS),
                ][class];
                self.rm.alloc([client, parent, object], class);
            }
            Step::Map(memory, [offset, bytes], by_subdevice) => {
                let device = if by_subdevice { SUBDEVICE } else { DEVICE };
                let address = 0;
                self.map(Piece {
                    client,
                    device,
                    memory,
                    offset,
                    bytes,
                    address,
                });
            }
            Step::Unmap(memory, address, choice) => {
                let (of, address) = ([client, memory], self.address(address));
                self.ioctl(Call::Unmap { of, address }, |rm| {
                    let chosen = rm.choose(of, address, choice);
                    chosen.map(|at| rm.mapped.remove(at)).is_some()
                });
            }
            Step::Rename(memory, addresses, choice) => {
                self.has_renamed = true;
                let (of, [from, to]) = ([client, memory], addresses.map(|at| self.address(at)));
                self.ioctl(Call::Rename { of, from, to }, |rm| {
                    let chosen = rm.choose(of, from, choice);
                    chosen.map(|at| rm.mapped[at].piece.address = to).is_some()
                });
            }
            Step::Free(object) => {
                let object = [client, if object == 0 { client } else { object }];
                self.ioctl(Call::Free { object }, |rm| {
                    rm.free(object);
                    true
                });
            }
            Step::Close(at) => {
                let key = self.files.keys().nth(at % self.files.len().max(1)).copied();
                if let Some(key) = key {
                    self.files.remove(&key);
                    self.order.closed.insert(key);
                }
            }
        }
    }

    /// Returns whether the resource manager has mapped a range.
    fn is_mapped(&self, range: Range) -> bool {
        self.rm.mapped.iter().any(|mapped| mapped.range == range)
    }

    fn check(&self) {
        for (key, range) in &self.files {
            let shown = self.order.shown[key];
            let is_mapped = self.is_mapped(*range);
            assert_ne!(shown, Shown::Held, "{key:?} is held for ever");
            assert!(
                is_mapped || shown == Shown::Over,
                "{key:?} outlives what it depends on"
            );
            // Where each mapping has an address of its own, which nobody changed, it is exact.
            let is_exact = !self.rm.is_newer && !self.has_renamed;
            assert!(
                !is_exact || !is_mapped || shown == Shown::Live,
                "{key:?} ended early"
            );
        }
    }
}

proptest! {
    #[test]
    fn no_mapping_outlives_what_it_depends_on(is_newer: bool, steps in steps()) {
        let mut world = World::default();
        world.rm.is_newer = is_newer;
        for (of, step) in steps {
            let client = CLIENTS[of];
            let before = world.order.shown.clone();
            world.step(client, step);
            world.check();
            let changed = |(key, shown): (&Key, &Shown)| world.order.shown[key] != *shown;
            for (key, _) in before.iter().filter(|entry| changed(*entry)) {
                prop_assert_eq!(key.client, client, "another client's mapping has changed");
            }
        }
        // The kernel closes the file, whoever keeps its mappings.
        close(&mut world.order, true);
        let is_over = |key| world.order.shown[key] == Shown::Over;
        prop_assert!(world.files.keys().all(is_over));
    }
}

const CLIENT: Handle = CLIENTS[0];

fn memory_of(device: Handle, memory: Handle) -> Piece {
    Piece {
        client: CLIENT,
        device,
        memory,
        offset: 0,
        bytes: 1,
        address: 0,
    }
}

/// Makes so many memory objects, each with a mapping.
fn crowd(count: Handle) -> World {
    let mut world = World::default();
    world.rm.begin(CLIENT);
    for memory in 1000..1000 + count {
        world
            .rm
            .alloc([CLIENT, DEVICE, memory], nv::NV01_MEMORY_LOCAL_USER);
        world.map(memory_of(DEVICE, memory));
    }
    world
}

/// Returns the visits and the questions of a free.
fn cost(world: &mut World, object: Handle) -> [usize; 2] {
    let before = [world.order.visits, world.asked];
    world.step(CLIENT, Step::Free(object));
    world.check();
    [world.order.visits - before[0], world.asked - before[1]]
}

#[test]
fn a_thousand_mappings_are_not_looked_at_for_one() {
    let mut world = crowd(1000);
    assert!(
        world.order.visits <= 5 * 1000,
        "to map them: {}",
        world.order.visits
    );
    // It is held and settled: its class before, and whether it or its device has gone.
    assert_eq!(cost(&mut world, 1500), [2, 3]);
    assert_eq!(cost(&mut world, 77), [0, 1], "no such object");
    assert_eq!(cost(&mut world, DEVICE), [2 * 999, 2], "all at once");
    assert!(world.order.all.is_empty());
}

#[test]
fn mappings_beside_what_may_have_memory_below_cost_a_question_each() {
    let mut world = crowd(1000);
    for (memory, class) in [(50, nv::NV01_MEMORY_SYSTEM), (51, ABOVE_OTHERS)] {
        world.rm.alloc([CLIENT, DEVICE, memory], class);
    }
    world.map(memory_of(DEVICE, 50));
    // All are looked at twice. That which is held is asked for, and its device.
    assert_eq!(cost(&mut world, 51), [2 * 1001, 3]);
    assert_eq!(world.order.all.len(), 1001);
}

#[test]
fn a_memory_object_has_a_most_of_mappings() {
    let mut world = crowd(1);
    for _ in 0..2 * OF_MEMORY_MAX {
        world.map(memory_of(DEVICE, 1000));
    }
    assert_eq!(world.order.all.len(), OF_MEMORY_MAX);
}

#[test]
fn a_mapping_outlives_another_whose_file_was_closed_first() {
    for is_newer in [false, true] {
        let mut world = crowd(1);
        world.rm.is_newer = is_newer;
        for _ in 0..2 {
            world.map(memory_of(DEVICE, 1000));
        }
        let [_, kept, closed] = [1, 2, 3].map(|number| memory_of(DEVICE, 1000).key(number));
        world.files.remove(&closed);
        world.order.closed.insert(closed);
        // The last one that was mapped, or one that is like it.
        world.step(CLIENT, Step::Unmap(1000, 2, 0));
        assert_eq!(world.order.shown[&kept], Shown::Live);
        assert!(!world.order.all.contains_key(&closed), "it is gone");
        world.step(CLIENT, Step::Unmap(1000, 1, 0));
        assert_eq!(world.order.shown[&kept], Shown::Over);
    }
}

#[test]
fn what_is_mapped_and_closed_in_turn_is_not_kept() {
    for (is_newer, unmaps_first) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut world = crowd(1);
        world.rm.is_newer = is_newer;
        world.map(memory_of(DEVICE, 1000));
        for _ in 0..2 * OF_MEMORY_MAX {
            world.map(memory_of(DEVICE, 1000));
            let key = *world.files.keys().last().unwrap();
            let last = u64::try_from(world.rm.mapped.len() - 1).unwrap();
            if unmaps_first {
                world.step(CLIENT, Step::Unmap(1000, last, 0));
            }
            world.files.remove(&key);
            world.order.closed.insert(key);
            if !unmaps_first {
                world.step(CLIENT, Step::Unmap(1000, last, 0));
            }
            assert!(world.order.all.len() <= 3, "{}", world.order.all.len());
            world.check();
        }
        assert_eq!(world.files.len(), 2);
        assert!(world
            .files
            .keys()
            .all(|key| world.order.shown[key] == Shown::Live));
    }
}

#[test]
fn what_got_an_address_by_chance_goes_with_any() {
    for choice in 0..4 {
        let mut world = crowd(1);
        for _ in 0..2 {
            world.map(memory_of(DEVICE, 1000));
        }
        let [one, two, three] = [0, 1, 2].map(|at| world.rm.mapped[at].piece.address);
        // Two have one address, one of them gets another, and a third one gets theirs.
        for (addresses, choice) in [
            ([one, two], 0),
            ([two, 0x99], choice / 2),
            ([three, two], 0),
        ] {
            world.step(CLIENT, Step::Rename(1000, addresses, choice));
        }
        world.step(CLIENT, Step::Unmap(1000, two, choice % 2));
        world.check();
    }
}

#[test]
fn of_those_who_are_not_governed_nothing_ends_by_itself() {
    let mut world = crowd(1);
    let key = memory_of(DEVICE, 1000).key(1);
    world.order.all.get_mut(&key).unwrap().is_governed = false;
    let free = Call::Free {
        object: [CLIENT, 1000],
    };
    let mut class = |object| world.rm.class(object);
    assert_eq!(enter(&mut world.order, &free, false, &mut class), None);
    close(&mut world.order, false);
    assert!(world.order.all.is_empty() && world.order.shown[&key] == Shown::Live);
}

#[test]
fn what_the_resource_manager_does_not_tell_may_take_all() {
    let mut world = crowd(2);
    let free = Call::Free {
        object: [CLIENT, 7],
    };
    let mut untold = |_| Err(NOT_SUPPORTED);
    assert!(enter(&mut world.order, &free, true, &mut untold).is_some());
    let is_held = |shown: &Shown| *shown == Shown::Held;
    assert!(world.order.shown.values().all(is_held));
}

#[test]
fn ioctls_are_read() {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let bytes: Vec<u8> = words(&[1, 2, 3, 0, 4, 0, 5, 0, 6, 0, 9, 0, 0, 0]);
    let piece = Piece {
        client: 1,
        device: 2,
        memory: 3,
        offset: 4,
        bytes: 5,
        address: 6,
    };
    let decoded = Call::decode(nv::NV_ESC_RM_MAP_MEMORY, &bytes);
    assert_eq!(decoded, Some((Call::Map(piece), 9)));
    assert_eq!(Call::decode(nv::NV_ESC_RM_MAP_MEMORY, &bytes[..52]), None);
    let bytes: Vec<u8> = words(&[1, 2, 3, 0, 4, 5, 6, 0]);
    let unmap = Call::Unmap {
        of: [1, 3],
        address: 5 << 32 | 4,
    };
    assert_eq!(
        Call::decode(nv::NV_ESC_RM_UNMAP_MEMORY, &bytes),
        Some((unmap, 6))
    );
    let bytes: Vec<u8> = words(&[1, 2, 3, 0, 4, 0, 5, 0, 6, 0]);
    let rename = Call::Rename {
        of: [1, 3],
        from: 4,
        to: 5,
    };
    let decoded = Call::decode(nv::NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO, &bytes);
    assert_eq!(decoded, Some((rename, 6)));
    let bytes: Vec<u8> = words(&[1, 2, 3, 4]);
    let free = Call::Free { object: [1, 3] };
    assert_eq!(Call::decode(nv::NV_ESC_RM_FREE, &bytes), Some((free, 4)));
    assert_eq!(Call::decode(nv::NV_ESC_RM_CONTROL, &bytes), None);
}
