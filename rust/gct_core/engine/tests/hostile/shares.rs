// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests side effects: objects that are created or freed without a call that names them, or kept in
//! files.

use super::*;
use crate::engine::{Imported, Visited};
use crate::objects::{Object, ObjectKey};
use crate::plan::Run;
use crate::rmapi::control::NOT_SUPPORTED;
use crate::rmapi::{Class, Shared};

/// Opens a file of the neighbour, to which objects are exported.
fn world_with_export_file() -> (World, FileId, FileId, FileId) {
    let (mut world, own, theirs) = world_with_memory();
    let file = world.open(NEIGHBOUR, "");
    (world, own, theirs, file)
}

fn shared_object(index: u32, object: u64) -> Shared {
    Shared {
        index,
        object: u32::try_from(object).unwrap(),
        parent: 20,
    }
}

const MEMORY_IMPORTED: Imported = Imported {
    class: Class::DeviceMemory,
    bytes: 4096,
};

#[test]
fn exported_objects_are_charged_until_the_file_is_closed() {
    let (mut world, own, theirs, file) = world_with_export_file();
    let memory = |world: &mut World, proc| world.account(proc)[1].clone();
    let export = |store: &mut Store| {
        store
            .state()
            .exported(own, 10, &shared_object(3, MEMORY), file)
    };
    world.store.retry(export).unwrap();
    world.store.check();
    assert_eq!(memory(&mut world, APP), Ok("4096\n".into()));
    world.free(own, MEMORY, 0);
    world.store.check();
    // The opener of the file keeps the memory alive.
    assert_eq!(memory(&mut world, NEIGHBOUR), Ok("12288\n".into()));
    let import = |store: &mut Store| {
        let mut state = store.state();
        state.imported(
            theirs,
            11,
            &shared_object(3, 80),
            Some(file),
            &MEMORY_IMPORTED,
        )
    };
    world.store.retry(import).unwrap();
    world.store.check();
    assert_eq!(memory(&mut world, NEIGHBOUR), Ok("12288\n".into()));
    world.store.state().file_close(file);
    world.store.check();
    assert_eq!(memory(&mut world, NEIGHBOUR), Ok("12288\n".into()));
    world.store.state().file_close(theirs);
    world.store.check();
    assert_eq!(memory(&mut world, NEIGHBOUR), Err(Error::Gone));
}

#[test]
fn an_untracked_import_is_charged_with_rms_size() {
    let (mut world, own, _, file) = world_with_export_file();
    for from in [None, Some(file)] {
        let import = |store: &mut Store| {
            let mut state = store.state();
            state.imported(own, 10, &shared_object(0, 80), from, &MEMORY_IMPORTED)
        };
        world.store.retry(import).unwrap();
        world.store.check();
        let pool = world.pool(Owner::Proc(APP));
        assert_eq!(world.read(File::GmemCurrent, pool), Ok("8192\n".into()));
    }
    // A closed file keeps nothing. An index that is used again keeps the new object.
    world.store.state().file_close(file);
    let export = |store: &mut Store| {
        store
            .state()
            .exported(own, 10, &shared_object(0, MEMORY), file)
    };
    assert_eq!(world.store.retry(export), Ok(()));
    world.store.check();
}

#[test]
fn objects_that_rm_has_freed_along_are_removed() {
    let (mut world, own, _) = world_with_memory();
    world.alloc(own, DEVICE, TSG + 1, 0xa06c, None);
    world.alloc(own, TSG + 1, CHANNEL + 1, 0xc86f, None);
    let mut channels = Vec::new();
    let mut at = world.store.state().next_channel(own, 10, 0);
    while let Some(passed @ Visited { object, .. }) = at {
        if passed.is_channel() {
            channels.push(object);
        }
        // RM has freed the second group with its channel.
        at = match u64::from(object) == TSG + 1 {
            true => world.store.state().vanished(own, 10, object),
            false => world.store.state().next_channel(own, 10, object),
        };
        world.store.check();
    }
    channels.sort_unstable();
    assert_eq!(channels, [30, 31, 40]);
    let [stat, ..] = world.account(APP);
    assert_eq!(
        stat,
        Ok("channel_groups 1\nchannels 1\nshared_channels 0\n".into())
    );
    assert_eq!(world.store.state().vanished(own, 11, 30), None);
}

#[test]
fn a_failed_call_may_only_have_created_unknown_objects() {
    let (mut world, own, _) = world_with_memory();
    let call = |client: u64, object: u64, class: u64| {
        let fields = [
            (0, client),
            (4, DEVICE),
            (8, object),
            (12, class),
            (28, 0x1e),
        ];
        let call = rmapi::decode(escape::ALLOC, &words(32, &fields));
        call.unwrap().unwrap()
    };
    for (client, object, class, may_be) in [
        (CLIENT, 90, 0xa06c, true),
        (CLIENT, TSG, 0xa06c, false),
        (THEIRS, 90, 0xa06c, false),
        (CLIENT, 90, 0x90f1, true),
        (CLIENT, 90, 0xcbc0, false),
        (CLIENT, 0, 0xa06c, false),
        // A client, by the handle that RM chose or that the tenant wrote.
        (0, 90, 0x41, true),
        (0, THEIRS, 0x41, false),
    ] {
        let call = call(client, object, class);
        let found = world.store.state().may_be_made(own, &call, true);
        assert_eq!(found, may_be, "{client} {object} {class:#x}");
    }
    // The handle of an existing client, for example one of the driver: RM has created none.
    let call = call(0, 90, 0x41);
    assert!(!world.store.state().may_be_made(own, &call, false));
}

#[test]
fn a_channel_without_a_group_counts_as_one_and_has_no_time_slice() {
    let mut world = World::new(FeatureSet::NONE.with(Feature::Timeslice));
    let file = world.open(APP, "");
    world.cuda(file);
    world.alloc(file, DEVICE, 60, 0x2080, Some(1));
    let fields = [(0, CLIENT), (4, DEVICE), (8, 41), (12, 0xc86f)];
    let call = rmapi::decode(escape::ALLOC, &words(32, &fields));
    let call = call.unwrap().unwrap();
    assert_eq!(world.store.state().call_refused(file, &call), None);
    world.alloc(file, DEVICE, 41, 0xc86f, None);
    let pool = world.pool(Owner::Proc(APP));
    let stat = world.read(File::ComputeStat, pool);
    assert!(stat
        .unwrap()
        .starts_with("channel_groups 2\nchannels 2\nshared_channels 0\n"));
    // Its time slice cannot be set. The write must succeed, so the channel is stopped.
    let stopped = |world: &mut World| {
        let state = world.store.state();
        let alone = |(key, object): &(&ObjectKey, &Object)| {
            key.handle == 41 && object.acked.primary && object.acked.run == Run::Frozen
        };
        state.objects.iter().filter(alone).count()
    };
    assert_eq!((world.limit("500"), stopped(&mut world)), (Ok(()), 1));
    // Its owner cannot start it.
    let schedule = words(32, &[(0, CLIENT), (4, 41), (8, 0xa06f_0103)]);
    world.store.ioctl(file, escape::CONTROL, &schedule, None);
    world.send_all();
    assert_eq!(stopped(&mut world), 1);
    assert_eq!((world.limit("default"), stopped(&mut world)), (Ok(()), 0));
    assert_eq!((world.limit("500"), stopped(&mut world)), (Ok(()), 1));
    world.free(file, 41, 0);
    let found = world.store.state().call_refused(file, &call);
    assert_eq!(found, Some(NOT_SUPPORTED));
    // In a channel group of its own it may run.
    let fields = [(0, CLIENT), (4, TSG), (8, 41), (12, 0xc86f)];
    let call = rmapi::decode(escape::ALLOC, &words(32, &fields));
    let found = world
        .store
        .state()
        .call_refused(file, &call.unwrap().unwrap());
    assert_eq!(found, None);
}

#[test]
fn a_time_slice_that_is_set_by_a_channel_is_set_back() {
    let mut world = World::new(FeatureSet::NONE.with(Feature::Timeslice));
    let file = world.open(APP, "");
    world.cuda(file);
    assert_eq!(world.limit("500"), Ok(()));
    // SET_CHANNEL_PROPERTIES of the device, and a SET_TIMESLICE whose parameters could not be
    // copied back.
    for (object, command, status) in [
        (DEVICE, 0x80_170f, 0),
        (DEVICE, 0x80_170f, 0x1e),
        (TSG, 0xa06c_0103, 0x1e),
        (TSG, 0xa06c_0103, 0),
    ] {
        let fields = [(0, CLIENT), (4, object), (8, command), (28, status)];
        let bytes = words(32, &fields);
        assert_eq!(
            world.ioctl_with_result(file, escape::CONTROL, &bytes, 0),
            Ok(())
        );
        assert_eq!(world.send_all(), [500], "{command:#x} {status:#x}");
    }
    // The restored time slice is the original one, or the one that its owner has set with success.
    assert_eq!(world.limit("default"), Ok(()));
    let fields = [(0, CLIENT), (4, DEVICE), (8, 0x80_170f)];
    let outcome = world.ioctl_with_result(file, escape::CONTROL, &words(32, &fields), 0);
    assert_eq!((outcome, world.send_all()), (Ok(()), Vec::new()));
}

#[test]
fn memory_of_a_dma_buf_is_charged_to_its_exporter() {
    for freed_first in [false, true] {
        let (mut world, own, theirs, buffer) = world_with_export_file();
        world.store.state().file_close(theirs);
        if freed_first {
            // Between the driver's dup and this event.
            world.free(own, MEMORY, 0);
        }
        let kept = |store: &mut Store| {
            store
                .state()
                .kept(10, &shared_object(0, MEMORY), buffer, 1, 4096)
        };
        world.store.retry(kept).unwrap();
        world.store.check();
        if !freed_first {
            assert_eq!(world.account(APP)[1], Ok("4096\n".into()));
            world.free(own, MEMORY, 0);
        }
        let pool = (Owner::Proc(NEIGHBOUR), world.gpu);
        let charged = |world: &mut World| {
            let state = world.store.state();
            state.pools.get(&pool).map(|pool| pool.usage.now().memory)
        };
        assert_eq!(charged(&mut world), Some(Bytes(4096)), "{freed_first}");
        world.store.state().file_close(buffer);
        world.store.check();
        assert_eq!(charged(&mut world), None);
    }
}

/// Checks that a control that imports has room before RM runs it, whatever fills the table
/// meanwhile, and that unused room is free afterwards.
#[test]
fn reserved_imports_can_be_tracked() {
    let (mut world, own, theirs, file) = world_with_export_file();
    let export = |store: &mut Store| {
        store
            .state()
            .exported(own, 10, &shared_object(3, MEMORY), file)
    };
    world.store.retry(export).unwrap();
    let control = words(
        32,
        &[(0, 11), (4, 11), (8, 0x3d0c), (16, 0x1000), (24, 652)],
    );
    let call = rmapi::decode(escape::CONTROL, &control).unwrap().unwrap();
    let ticket = world
        .store
        .retry(|store| store.state().call_enter(theirs, &call))
        .unwrap();
    assert_eq!(
        (
            *world.store.state().reserved_objects,
            *world.store.state().reserving_files
        ),
        (Sat(128), Sat(1))
    );
    world.store.check();
    // Another process fills the table up to the last slot of its storage.
    let other = world.open(
        ProcKey {
            tgid: 700,
            start_time_ns: 1,
        },
        "",
    );
    for object in 1000.. {
        let call = words(32, &[(0, 10), (8, object), (12, 0x41)]);
        let call = rmapi::decode(escape::ALLOC, &call).unwrap().unwrap();
        let mut state = world.store.state();
        let Ok(ticket) = state.call_enter(other, &call) else {
            break;
        };
        state.call_leave(other, &call, ticket, None).unwrap();
    }
    let mut state = world.store.state();
    assert_eq!(state.call_leave(theirs, &call, ticket, None), Ok(()));
    for index in 3..131 {
        let object = 80 + u64::from(index);
        let imported = state.imported(
            theirs,
            11,
            &shared_object(index, object),
            Some(file),
            &MEMORY_IMPORTED,
        );
        assert_eq!(imported, Ok(()), "{index}");
    }
    state.share_ends(theirs, ticket);
    assert_eq!(
        (*state.reserved_objects, *state.reserving_files),
        (Sat(0), Sat(0))
    );
    world.store.check();
}
