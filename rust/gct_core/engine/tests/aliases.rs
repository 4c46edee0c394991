// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests aliases of channel groups, and on which GPU a device is.

use super::*;
use crate::table::steps;

/// Opens a second client of the process, with a device on the GPU.
const SECOND: u64 = 11;

impl World {
    fn alloc_in(&mut self, file: FileId, client: u64, words_of: [u64; 3], answer: Option<u64>) {
        let [parent, object, class] = words_of;
        let client = if class == 0x41 { 0 } else { client };
        let call = words(
            32,
            &[(0, client), (4, parent), (8, object), (12, class), (16, 1)],
        );
        self.store.ioctl(file, escape::ALLOC, &call, answer);
    }

    fn second_client(&mut self, file: FileId) {
        self.alloc_in(file, SECOND, [0, SECOND, 0x41], None);
        self.alloc_in(file, SECOND, [SECOND, DEVICE, 0x80], Some(1));
    }

    fn dup_call(&self, status: u64) -> rmapi::Call {
        let call = words(
            28,
            &[
                (0, SECOND),
                (4, DEVICE),
                (8, 60),
                (12, CLIENT),
                (16, TSG),
                (24, status),
            ],
        );
        rmapi::decode(escape::DUP_OBJECT, &call).unwrap().unwrap()
    }

    pub(super) fn free_in(&mut self, file: FileId, client: u64, object: u64) {
        let call = words(16, &[(0, client), (8, object)]);
        self.store.ioctl(file, escape::FREE, &call, None);
        self.store.check();
    }

    fn dup_enter(&mut self, file: FileId) -> Ticket {
        let call = self.dup_call(0);
        self.store
            .retry(|store| store.state().call_enter(file, &call))
            .unwrap()
    }

    fn dup_leave(&mut self, file: FileId, ticket: Ticket, status: u64) {
        let call = self.dup_call(status);
        self.store
            .retry(|store| store.state().call_leave(file, &call, ticket, None))
            .unwrap();
        self.store.check();
    }

    fn stat(&mut self, proc: ProcKey) -> Result<String, Error> {
        let pool = self.pool(Owner::Proc(proc));
        self.read(File::ComputeStat, pool)
    }
}

/// Checks which memory of others a daemon lets a process name.
#[test]
fn memory_is_shared_within_a_group() {
    let mut world = World::new(FeatureSet::NONE);
    let (_, maker) = world.web();
    let process = |tgid| ProcKey { tgid, ..APP };
    let sibling = world.open(process(501), "/web");
    let strangers = [502, 503].map(|tgid| world.open(process(tgid), "/other"));
    let mut shares = |file, object: u64| {
        let (client, object) = (CLIENT.try_into().unwrap(), object.try_into().unwrap());
        world.store.state().shares_memory(file, client, object)
    };
    assert!(shares(sibling, MEMORY) && shares(maker, MEMORY));
    assert!(!shares(sibling, TSG) && !shares(sibling, 77));
    assert!(!strangers.iter().any(|file| shares(*file, MEMORY)));
    world.store.state().file_close(maker);
    world.cuda(strangers[0]);
    // Nobody outside of groups shares, and nobody with a group.
    let (client, memory) = (CLIENT.try_into().unwrap(), MEMORY.try_into().unwrap());
    for file in [sibling, strangers[1]] {
        assert!(!world.store.state().shares_memory(file, client, memory));
    }
}

const ONE_GROUP: &str = "channel_groups 1\nchannels 0\nshared_channels 0\n";
const ONE_OF_EACH: &str = "channel_groups 1\nchannels 1\nshared_channels 0\n";

#[test]
fn a_channel_group_is_charged_once_until_its_last_alias_goes() {
    for first_goes_first in [true, false] {
        let mut world = World::new(FeatureSet::NONE);
        let (file, second) = (world.open(APP, ""), world.open(APP, ""));
        world.cuda(file);
        world.second_client(second);
        let ticket = world.dup_enter(second);
        world.dup_leave(second, ticket, 0);
        assert_eq!(world.stat(APP), Ok(ONE_OF_EACH.into()));
        world.effects();
        if first_goes_first {
            // This also frees the channel below the first alias.
            world.free_in(file, CLIENT, TSG);
            assert_eq!(world.stat(APP), Ok(ONE_GROUP.into()));
            world.free_in(second, SECOND, 60);
        } else {
            world.free_in(second, SECOND, 60);
            assert_eq!(world.stat(APP), Ok(ONE_OF_EACH.into()));
            world.free_in(file, CLIENT, TSG);
        }
        // The directory was removed once, at the end, with its settings.
        assert_eq!(world.removed().len(), 2);
    }
}

#[test]
fn settings_outlive_the_first_alias() {
    let mut world = World::new(FeatureSet::NONE.with(Feature::Weight));
    let (file, second) = (world.open(APP, ""), world.open(APP, ""));
    world.cuda(file);
    world.second_client(second);
    let ticket = world.dup_enter(second);
    world.dup_leave(second, ticket, 0);
    let pool = world.pool(Owner::Proc(APP));
    assert_eq!(world.write(File::ComputeWeight, pool, "7"), Ok(()));
    world.store.state().file_close(file);
    assert_eq!(world.read(File::ComputeWeight, pool), Ok("7\n".into()));
}

#[test]
fn an_alias_freed_during_a_dup_passes_its_charge_on() {
    for refused in [false, true] {
        let mut world = World::new(FeatureSet::NONE);
        let (file, second) = (world.open(APP, ""), world.open(APP, ""));
        world.cuda(file);
        world.second_client(second);
        let ticket = world.dup_enter(second);
        // Another thread frees the first alias before this thread learns of the second.
        world.free_in(file, CLIENT, TSG);
        assert_eq!(world.stat(APP), Ok(ONE_GROUP.into()));
        world.dup_leave(second, ticket, u64::from(refused));
        let left = (!refused).then(|| ONE_GROUP.into());
        assert_eq!(
            world.stat(APP).ok().filter(|stat| stat == ONE_GROUP),
            left,
            "{refused}"
        );
    }
}

#[test]
fn another_process_is_charged_for_the_alias_it_keeps() {
    let other = ProcKey { tgid: 600, ..APP };
    let mut world = World::new(FeatureSet::NONE);
    let (file, second) = (world.open(APP, ""), world.open(other, ""));
    world.cuda(file);
    world.second_client(second);
    let ticket = world.dup_enter(second);
    world.dup_leave(second, ticket, 0);
    assert_eq!(world.stat(other), Err(Error::Gone));
    world.store.state().file_close(file);
    world.store.check();
    assert_eq!(world.stat(APP), Err(Error::Gone));
    assert_eq!(world.stat(other), Ok(ONE_GROUP.into()));
    world.store.state().file_close(second);
    assert_eq!(world.stat(other), Err(Error::Gone));
}

#[test]
fn a_subdevice_fixes_the_gpu_of_its_device() {
    let mut world = World::new(FeatureSet::NONE);
    let second = facts(2, 0x50);
    world
        .store
        .retry(|store| store.state().gpu_add(&second, FeatureSet::NONE))
        .unwrap();
    let file = world.open(APP, "");
    // The tenant's parameter names the wrong GPU. RM knows the right one.
    world.cuda(file);
    assert_eq!(world.stat(APP), Ok(ONE_OF_EACH.into()));
    world.alloc(file, DEVICE, 21, 0x2080, Some(2));
    world.store.check();
    assert_eq!(world.stat(APP), Err(Error::Gone));
    let paths: Vec<DirPath> = world.added().iter().map(|(path, _)| *path).collect();
    assert!(paths.contains(&DirPath::ProcGpu(500, GpuIndex(1))));
    // The false parameter is counted, and later objects are on the right GPU.
    let events = world.read(File::Events, Scope::Root).unwrap();
    assert!(events.contains("gpu 1\n"), "{events}");
    world.alloc(file, DEVICE, TSG + 1, 0xa06c, None);
    assert!(world.added().is_empty());
    // An invalid answer changes nothing.
    for answer in [None, Some(9)] {
        world.alloc(file, DEVICE, 22, 0x2080, answer);
        assert_eq!(world.stat(APP), Err(Error::Gone));
    }
}

/// Checks that an event visits a bounded number of aliases, however many a tenant creates.
#[test]
fn a_resource_has_a_bounded_number_of_aliases() {
    let mut world = World::new(FeatureSet::NONE);
    let file = world.open(APP, "");
    world.cuda(file);
    world.second_client(file);
    let dup = |world: &mut World, object: u64| {
        let call = words(
            28,
            &[
                (0, SECOND),
                (4, DEVICE),
                (8, object),
                (12, CLIENT),
                (16, TSG),
            ],
        );
        let call = rmapi::decode(escape::DUP_OBJECT, &call).unwrap().unwrap();
        let ticket = world
            .store
            .retry(|store| store.state().call_enter(file, &call))?;
        world
            .store
            .retry(|store| store.state().call_leave(file, &call, ticket, None))
    };
    let refused = |world: &mut World| {
        let call = words(
            28,
            &[(0, SECOND), (4, DEVICE), (8, 500), (12, CLIENT), (16, TSG)],
        );
        let call = rmapi::decode(escape::DUP_OBJECT, &call).unwrap().unwrap();
        world.store.state().call_refused(file, &call)
    };
    assert_eq!(refused(&mut world), None);
    let mut names = 1;
    while dup(&mut world, 1000 + names) == Ok(()) {
        names += 1;
    }
    assert_eq!(usize::try_from(names), Ok(limits::ALIASES_MAX));
    assert_eq!(dup(&mut world, 500), Err(Error::NoSpace));
    // Without a limit, too: an object below an untracked alias would escape every later limit.
    assert_eq!(refused(&mut world), Some(rmapi::INSUFFICIENT_RESOURCES));
    // The youngest alias is the farthest from the charged one.
    let call = words(32, &[(0, SECOND), (4, 2023), (8, 0xa06c_0103)]);
    let call = rmapi::decode(escape::CONTROL, &call).unwrap().unwrap();
    let looked = steps::of(|| {
        let left = world
            .store
            .state()
            .call_leave(file, &call, Ticket::NONE, None);
        assert_eq!(left, Ok(()));
    });
    assert!(
        looked > limits::ALIASES_MAX && looked < 8 * limits::ALIASES_MAX,
        "{looked}"
    );
    // After one is freed, another fits.
    world.free_in(file, SECOND, 1500);
    assert_eq!(dup(&mut world, 500), Ok(()));
    assert_eq!(world.stat(APP).unwrap(), ONE_OF_EACH);
}

/// What a channel has left in its channel group's context is there under all names that its process
/// has of the group, and under one that is made later.
#[test]
fn unseen_registers_have_all_names_of_their_group() {
    let mut world = World::new(FeatureSet::all());
    let file = world.open(APP, "");
    world.cuda(file);
    world.second_client(file);
    let channel = 61;
    let handles = [SECOND, channel].map(|number| u32::try_from(number).unwrap());
    for is_earlier in [true, false] {
        let ticket = world.dup_enter(file);
        world.dup_leave(file, ticket, 0);
        world.alloc_in(file, SECOND, [60, channel, 0xc86f], None);
        let mut state = world.store.state();
        state.owned_made(file, handles[0], handles[1], true);
        if is_earlier {
            assert!(world.stat(APP).unwrap().contains("\nunseen 0\n"));
            world.free(file, CHANNEL, 0);
        }
        assert!(
            world.stat(APP).unwrap().contains("\nunseen 1\n"),
            "{is_earlier}"
        );
        world.free_in(file, SECOND, 60);
        assert!(world.stat(APP).unwrap().contains("\nunseen 0\n"));
    }
}
