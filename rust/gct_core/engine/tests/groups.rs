// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests groups and their members.

use super::*;

#[test]
fn a_group_is_the_sum_of_its_members_and_moving_moves_usage() {
    let mut world = World::new(FeatureSet::NONE.with(Feature::GmemCharge));
    let (web, db) = (world.group("web"), world.group("db"));
    let file = world.open(APP, "");
    world.cuda(file);
    let (of_web, of_db) = (world.pool(Owner::Group(web)), world.pool(Owner::Group(db)));
    assert_eq!(world.read(File::GmemCurrent, of_web), Ok("0\n".into()));
    world.store.state().member_moved(APP, Some(web)).unwrap();
    assert_eq!(world.read(File::GmemCurrent, of_web), Ok("4096\n".into()));
    world.store.state().member_moved(APP, Some(db)).unwrap();
    assert_eq!(world.read(File::GmemCurrent, of_web), Ok("0\n".into()));
    assert_eq!(world.read(File::GmemPeak, of_web), Ok("4096\n".into()));
    assert_eq!(
        world.read(File::ComputeStat, of_db),
        Ok("channel_groups 1\nchannels 1\nshared_channels 0\n".into())
    );
    world.store.check();
    let state = &mut world.store.state();
    assert_eq!(state.group_remove(db, 0), Err(Error::Busy));
    assert_eq!(state.group_remove(web, 1), Err(Error::Busy));
    assert_eq!(state.group_remove(web, 0), Ok(()));
    assert_eq!(state.member_moved(APP, Some(web)), Err(Error::NotFound));
    assert_eq!(state.member_moved(APP, None), Ok(()));
    assert_eq!(state.group_remove(db, 0), Ok(()));
}

#[test]
fn the_longest_cgroup_path_decides_unless_the_pid_does() {
    let mut world = World::new(FeatureSet::NONE);
    let (pool, pod) = (world.group("pool"), world.group("pod"));
    let file = world.open(APP, "/kube/pod1/main");
    let group = |world: &mut World| world.store.state().procs.get(&APP).unwrap().group;
    assert_eq!(group(&mut world), None);
    assert_eq!(
        world.write(File::GroupCgroup, Scope::Group(pool), "/kube\n"),
        Ok(())
    );
    assert_eq!(group(&mut world), Some(pool));
    assert_eq!(
        world.write(File::GroupCgroup, Scope::Group(pod), "/kube/pod1"),
        Ok(())
    );
    assert_eq!(group(&mut world), Some(pod));
    let taken = world.write(File::GroupCgroup, Scope::Group(pool), "/kube/pod1");
    assert_eq!(taken, Err(Error::Exists));
    assert_eq!(
        world.read(File::GroupCgroup, Scope::Group(pool)),
        Ok("/kube\n".into())
    );
    world.store.state().member_moved(APP, Some(pool)).unwrap();
    assert_eq!(group(&mut world), Some(pool));
    world.store.state().member_moved(APP, None).unwrap();
    assert_eq!(
        world.write(File::GroupCgroup, Scope::Group(pod), "none"),
        Ok(())
    );
    assert_eq!(group(&mut world), Some(pool));
    assert_eq!(
        world.read(File::GroupCgroup, Scope::Group(pod)),
        Ok("none\n".into())
    );
    // The process has moved to another container. These paths are not below /kube, however long or
    // odd.
    let long = format!("/kube{}", "x".repeat(2 * limits::CGROUP_LEN_MAX));
    for path in ["/kubernetes/pod1", "/kube\u{e9}", "/kub", long.as_str()] {
        world.open(APP, path);
        assert_eq!(group(&mut world), None, "{path}");
        world.open(APP, "/kube");
        assert_eq!(group(&mut world), Some(pool));
    }
    world.store.state().file_close(file);
    world.store.check();
}

#[test]
fn a_path_that_was_cut_equals_no_group() {
    let mut world = World::new(FeatureSet::NONE);
    let group = world.group("web");
    let longest = format!("/{}", "a".repeat(limits::CGROUP_LEN_MAX - 1));
    world
        .write(File::GroupCgroup, Scope::Group(group), &longest)
        .unwrap();
    for (tail, inside) in [("", true), ("/b", true), ("a", false), ("aa", false)] {
        world.open(APP, &format!("{longest}{tail}"));
        let found = world.store.state().procs.get(&APP).unwrap().group;
        assert_eq!(found.is_some(), inside, "{tail}");
    }
}

#[test]
fn members_are_listed_by_pid_and_by_cgroup() {
    let mut world = World::new(FeatureSet::NONE);
    let web = world.group("web");
    assert_eq!(
        world.write(File::GroupCgroup, Scope::Group(web), "/web"),
        Ok(())
    );
    world.open(APP, "/web/1");
    let hidden = ProcKey { tgid: 501, ..APP };
    world.open(hidden, "/web/2");
    let by_pid = [ProcKey { tgid: 7, ..APP }];
    let mut out = String::new();
    let mut pid_of = |proc: &ProcKey| (proc.tgid != 501).then_some(proc.tgid);
    let state = world.store.state();
    state
        .show_procs(web, &by_pid, &mut pid_of, &mut out)
        .unwrap();
    assert_eq!(out, "7\n500\n");
    let gone = state.show_procs(GroupId(99), &[], &mut pid_of, &mut out);
    assert_eq!(gone, Err(Error::Gone));
}

#[test]
fn names_are_unique_and_free_again_after_removal() {
    let mut world = World::new(FeatureSet::NONE);
    let web = world.group("web");
    let again = world.store.state().group_create(&name("web"));
    assert_eq!(again, Err(Error::Exists));
    assert_eq!(world.store.state().group_by_name(&name("web")), Ok(web));
    assert_eq!(
        world.store.state().group_by_name(&name("db")),
        Err(Error::NotFound)
    );
    let first = world.added();
    assert_eq!(first.len(), 3);
    assert_eq!(world.store.state().group_remove(web, 0), Ok(()));
    let second = world.group("web");
    assert_ne!(web, second);
    // The old directory is removed before one with the same name is added.
    let paths: Vec<_> = world.effects();
    let remove = |path| Effect::Remove { path };
    assert_eq!(paths.first(), Some(&remove(DirPath::GroupGpu(web, N0))));
    assert_eq!(paths.get(1), Some(&remove(DirPath::Group(web))));
    assert_eq!(paths.len(), 4);
    assert_eq!(world.store.state().group_check(web), Err(Error::NotFound));
}

#[test]
fn both_directories_bind() {
    let mut world = World::new(FeatureSet::all());
    let group = world.group("web");
    let file = world.open(APP, "");
    world.cuda(file);
    world.store.state().member_moved(APP, Some(group)).unwrap();
    let (of_group, own) = (
        world.pool(Owner::Group(group)),
        world.pool(Owner::Proc(APP)),
    );
    world.write(File::GmemLimit, of_group, "1G").unwrap();
    world.write(File::GmemLimit, own, "2G").unwrap();
    world.write(File::ComputeWeight, own, "50").unwrap();
    world.write(File::TpcMask, own, "0-3").unwrap();
    let gpu = world.gpu;
    let binding = world.store.state().effective(APP, gpu);
    assert_eq!(binding.gmem_limit, Some(Bytes(1 << 30)));
    assert_eq!(binding.weight, Some(Weight(50)));
    assert_eq!(binding.tpc_mask, TpcMask::parse(b"0-3").ok());
    let stranger = ProcKey { tgid: 1, ..APP };
    assert_eq!(
        world.store.state().effective(stranger, gpu),
        Default::default()
    );
}

#[test]
fn settings_of_a_process_end_with_its_directory() {
    let mut world = World::new(FeatureSet::all());
    let file = world.open(APP, "");
    world.cuda(file);
    let own = world.pool(Owner::Proc(APP));
    world.write(File::ComputeWeight, own, "50").unwrap();
    world.free(file, CHANNEL, 0);
    assert_eq!(world.read(File::ComputeWeight, own), Ok("50\n".into()));
    // The memory keeps the pool alive.
    world.free(file, TSG, 0);
    world.alloc(file, DEVICE, TSG, 0xa06c, None);
    assert_eq!(world.read(File::ComputeWeight, own), Ok("100\n".into()));
}
