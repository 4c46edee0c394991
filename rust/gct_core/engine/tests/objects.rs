// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests how objects change usage and directories.

use super::*;

#[test]
fn a_process_is_shown_from_its_first_channel_group_to_its_last() {
    let mut world = World::new(FeatureSet::NONE);
    assert_eq!(world.added(), [(DirPath::Gpu(N0), "0".into())]);
    let file = world.open(APP, "");
    world.alloc(file, 0, CLIENT, 0x41, None);
    world.alloc(file, CLIENT, DEVICE, 0x80, Some(1));
    world.alloc(file, DEVICE, MEMORY, 0x40, Some(4096));
    assert!(!world.store.state().has_effects());
    world.alloc(file, DEVICE, TSG, 0xa06c, None);
    let shown = [
        (DirPath::Proc(500), "500".into()),
        (DirPath::ProcGpu(500, N0), "0".into()),
    ];
    assert_eq!(world.added(), shown);
    world.alloc(file, DEVICE, TSG + 1, 0xa06c, None);
    world.free(file, TSG, 0);
    assert!(world.effects().is_empty());
    world.free(file, TSG + 1, 0);
    let gone = [DirPath::ProcGpu(500, N0), DirPath::Proc(500)];
    assert_eq!(world.removed(), gone);
}

#[test]
fn closing_the_file_frees_everything() {
    let mut world = World::new(FeatureSet::NONE);
    let file = world.open(APP, "");
    world.cuda(file);
    assert_eq!(world.effects().len(), 3);
    world.store.state().file_close(file);
    assert_eq!(world.removed().len(), 2);
    let state = world.store.state();
    assert_eq!(
        (state.pools.len(), state.procs.len(), state.files.len()),
        (0, 0, 0)
    );
    assert_eq!(state.objects.iter().count(), 0);
}

#[test]
fn freeing_a_parent_frees_its_children() {
    for top in [TSG, DEVICE, CLIENT] {
        let mut world = World::new(FeatureSet::NONE);
        let file = world.open(APP, "");
        world.cuda(file);
        world.free(file, top, 0);
        world.store.check();
        let pool = world.pool(Owner::Proc(APP));
        let stat = world.read(File::ComputeStat, pool);
        let left = (top == TSG).then(|| "channel_groups 0\nchannels 0\nshared_channels 0\n".into());
        assert_eq!(stat.ok(), left, "{top}");
    }
}

#[test]
fn a_refused_free_restores_everything() {
    let mut world = World::new(FeatureSet::NONE);
    let file = world.open(APP, "");
    world.cuda(file);
    let pool = world.pool(Owner::Proc(APP));
    for top in [CHANNEL, TSG, DEVICE, CLIENT] {
        world.free(file, top, 0x1f);
        world.store.check();
        let stat = world.read(File::ComputeStat, pool);
        assert_eq!(
            stat,
            Ok("channel_groups 1\nchannels 1\nshared_channels 0\n".into()),
            "{top}"
        );
    }
    world.free(file, CLIENT, 0);
    assert_eq!(world.read(File::ComputeStat, pool), Err(Error::Gone));
}

#[test]
fn a_handle_that_is_reused_while_its_free_returns_stays() {
    let mut world = World::new(FeatureSet::NONE);
    let file = world.open(APP, "");
    world.cuda(file);
    let bytes = words(16, &[(0, CLIENT), (8, TSG)]);
    let call = rmapi::decode(escape::FREE, &bytes).unwrap().unwrap();
    let ticket = world.store.state().call_enter(file, &call).unwrap();
    // Another thread gets the same handles at once.
    world.alloc(file, DEVICE, TSG, 0xa06c, None);
    world.alloc(file, TSG, CHANNEL, 0xc86f, None);
    world
        .store
        .state()
        .call_leave(file, &call, ticket, None)
        .unwrap();
    world.store.check();
    let pool = world.pool(Owner::Proc(APP));
    let stat = world.read(File::ComputeStat, pool);
    assert_eq!(
        stat,
        Ok("channel_groups 1\nchannels 1\nshared_channels 0\n".into())
    );
    // A ticket that is used twice finds nothing.
    world
        .store
        .state()
        .call_leave(file, &call, ticket, None)
        .unwrap();
    world
        .store
        .state()
        .call_leave(file, &call, Ticket::NONE, None)
        .unwrap();
    assert_eq!(world.read(File::ComputeStat, pool), stat);
}

#[test]
fn a_failed_allocation_adds_nothing() {
    let mut world = World::new(FeatureSet::NONE);
    let file = world.open(APP, "");
    world.cuda(file);
    let call = words(
        32,
        &[(0, CLIENT), (4, DEVICE), (8, 77), (12, 0xa06c), (28, 0x1a)],
    );
    world.store.ioctl(file, escape::ALLOC, &call, None);
    let pool = world.pool(Owner::Proc(APP));
    let stat = world.read(File::ComputeStat, pool);
    assert_eq!(
        stat,
        Ok("channel_groups 1\nchannels 1\nshared_channels 0\n".into())
    );
}

#[test]
fn an_object_whose_client_is_unknown_is_counted() {
    let mut world = World::new(FeatureSet::NONE);
    let file = world.open(APP, "");
    world.alloc(file, DEVICE, TSG, 0xa06c, None);
    world.store.state().count(Failure::Members(3));
    let events = world.read(File::Events, Scope::Root).unwrap();
    assert!(
        events.contains("client 1\n") && events.contains("members 3\n"),
        "{events}"
    );
}

#[test]
fn memory_is_charged_once_and_to_the_owner_of_the_client() {
    let mut world = World::new(FeatureSet::NONE.with(Feature::GmemCharge));
    let (file, other) = (world.open(APP, ""), ProcKey { tgid: 600, ..APP });
    world.cuda(file);
    let pool = world.pool(Owner::Proc(APP));
    world.alloc(file, DEVICE, 51, 0x40, Some(4096));
    assert_eq!(world.read(File::GmemCurrent, pool), Ok("8192\n".into()));
    // Another process maps the memory under an alias of its own.
    let stranger = world.open(other, "");
    for (parent, object, class, hint) in [(0, 11, 0x41, None), (11, DEVICE, 0x80, Some(1))] {
        let client = if class == 0x41 { 0 } else { 11 };
        let call = words(
            32,
            &[(0, client), (4, parent), (8, object), (12, class), (16, 1)],
        );
        world.store.ioctl(stranger, escape::ALLOC, &call, hint);
    }
    let dup = words(
        28,
        &[(0, 11), (4, DEVICE), (8, 60), (12, CLIENT), (16, MEMORY)],
    );
    world.store.ioctl(stranger, escape::DUP_OBJECT, &dup, None);
    let theirs = world.pool(Owner::Proc(other));
    assert_eq!(world.read(File::GmemCurrent, theirs), Err(Error::Gone));
    world.free(file, MEMORY, 0);
    assert_eq!(world.read(File::GmemCurrent, pool), Ok("4096\n".into()));
    assert_eq!(world.read(File::GmemCurrent, theirs), Ok("4096\n".into()));
    assert_eq!(world.read(File::GmemPeak, pool), Ok("8192\n".into()));
    assert_eq!(world.write(File::GmemPeak, pool, "0"), Ok(()));
    assert_eq!(world.read(File::GmemPeak, pool), Ok("4096\n".into()));
    assert_eq!(world.read(File::GmemStat, pool), Ok("pinned 4096\n".into()));
}

#[test]
fn a_reused_pid_takes_over_the_directory() {
    let mut world = World::new(FeatureSet::NONE);
    let young = ProcKey {
        start_time_ns: 9,
        ..APP
    };
    let old_file = world.open(APP, "");
    world.cuda(old_file);
    assert_eq!(world.added().len(), 3);
    // A child keeps the dead process's file open; the pid is used again.
    let young_file = world.open(young, "");
    world.cuda(young_file);
    let effects = world.effects();
    assert_eq!(effects.len(), 4);
    assert!(
        matches!(effects[3], Effect::Add { scope: Scope::Pool(Owner::Proc(proc), _), .. } if proc == young)
    );
    world.alloc(old_file, DEVICE, TSG + 5, 0xa06c, None);
    world.store.state().file_close(old_file);
    assert!(world.effects().is_empty());
    world.store.state().file_close(young_file);
    assert_eq!(world.removed().len(), 2);
}

#[test]
fn a_dead_process_does_not_come_back_when_its_pid_is_free_again() {
    let mut world = World::new(FeatureSet::NONE.with(Feature::Freeze));
    let young = ProcKey {
        start_time_ns: 9,
        ..APP
    };
    let old_file = world.open(APP, "");
    world.cuda(old_file);
    let old = world.pool(Owner::Proc(APP));
    assert_eq!(world.write(File::ComputeFreeze, old, "1"), Ok(()));
    world.effects();
    let young_file = world.open(young, "");
    assert_eq!(
        world.removed().len(),
        2,
        "at once, not with the first channel group"
    );
    // No file could thaw it any more.
    let thawed = world.store.state().effective(APP, world.gpu);
    assert!(!thawed.freeze);
    world.store.state().file_close(young_file);
    world.alloc(old_file, DEVICE, TSG + 5, 0xa06c, None);
    assert!(world.effects().is_empty());
}

#[test]
fn a_device_on_an_unknown_gpu_is_counted() {
    let mut world = World::new(FeatureSet::NONE);
    let second = facts(2, 0x50);
    world
        .store
        .retry(|store| store.state().gpu_add(&second, FeatureSet::NONE))
        .unwrap();
    let file = world.open(APP, "");
    world.alloc(file, 0, CLIENT, 0x41, None);
    // RM reports no identifier, or one without a GPU.
    for (device, hint) in [(DEVICE, None), (DEVICE + 1, Some(7))] {
        world.alloc(file, CLIENT, device, 0x80, hint);
        world.alloc(file, device, TSG + device, 0xa06c, None);
    }
    world.alloc(file, CLIENT, DEVICE + 2, 0x80, Some(2));
    world.alloc(file, DEVICE + 2, TSG, 0xa06c, None);
    let events = world.read(File::Events, Scope::Root).unwrap();
    assert!(events.contains("gpu 2\n"), "{events}");
    assert_eq!(
        world.added().last().map(|(path, _)| *path),
        Some(DirPath::ProcGpu(500, GpuIndex(1)))
    );
}

#[test]
fn an_object_that_appears_twice_replaces_itself() {
    let mut world = World::new(FeatureSet::NONE);
    let file = world.open(APP, "");
    world.cuda(file);
    let pool = world.pool(Owner::Proc(APP));
    // The free was missed between RM's allocation and this event.
    world.alloc(file, DEVICE, TSG, 0xa06c, None);
    let stat = world.read(File::ComputeStat, pool);
    assert_eq!(
        stat,
        Ok("channel_groups 1\nchannels 0\nshared_channels 0\n".into())
    );
    world.alloc(file, 0, CLIENT, 0x41, None);
    assert_eq!(world.read(File::ComputeStat, pool), Err(Error::Gone));
    world.store.check();
}
