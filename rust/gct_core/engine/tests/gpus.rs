// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that GPUs are added, removed and described.

use super::*;

#[test]
fn indices_follow_pci_addresses() {
    let mut world = World::new(FeatureSet::NONE);
    let group = world.group("web");
    let file = world.open(APP, "");
    world.cuda(file);
    assert_eq!(world.effects().len(), 5);
    let low = facts(2, 0x10);
    let added = world
        .store
        .retry(|store| store.state().gpu_add(&low, FeatureSet::NONE));
    // Number 0 is now 1: for the GPU, the group and the process.
    let effects = world.effects();
    assert_eq!(effects.len(), 3 + 3 + 2, "{effects:?}");
    let pci = |world: &mut World, gpu| world.read(File::GpuPci, Scope::Gpu(gpu)).unwrap();
    assert_eq!(pci(&mut world, added.unwrap()), "0000:10:00.0\n");
    let last = |path| Effect::Add {
        path,
        scope: Scope::Pool(Owner::Group(group), world.gpu),
        name: name_of("1"),
    };
    assert!(effects.contains(&last(DirPath::GroupGpu(group, GpuIndex(1)))));
    assert_eq!(world.store.state().gpu_remove(2), Ok(()));
    let effects = world.effects();
    assert_eq!(effects.len(), 3 + 3 + 2, "{effects:?}");
    assert_eq!(world.store.state().gpu_remove(2), Err(Error::Gone));
    assert_eq!(world.store.state().gpu_remove(1), Ok(()));
    // Objects on a removed GPU are not charged any more.
    world.free(file, CLIENT, 0);
    world.store.state().file_close(file);
    world.store.check();
    assert!(world
        .read(File::Events, Scope::Root)
        .unwrap()
        .contains("charge 0\n"));
}

/// Returns a directory's name. Unlike a group's it may be a number.
fn name_of(text: &str) -> Name {
    Name::new(text).unwrap()
}

#[test]
fn the_maximum_number_of_gpus_fits() {
    let mut store = Store::new(1);
    let count = u32::try_from(limits::GPUS_MAX).unwrap();
    for n in (0..count).rev() {
        let facts = facts(n, u8::try_from(n).unwrap());
        store
            .retry(|store| store.state().gpu_add(&facts, FeatureSet::NONE))
            .unwrap();
    }
    store.check();
    let more = facts(99, 99);
    let refused = store.retry(|store| store.state().gpu_add(&more, FeatureSet::NONE));
    assert_eq!(refused, Err(Error::NoSpace));
    let same = facts(99, 3);
    let refused = store.retry(|store| store.state().gpu_add(&same, FeatureSet::NONE));
    assert_eq!(refused, Err(Error::Exists));
}

#[test]
fn unknown_facts_are_errors() {
    let mut world = World::new(
        FeatureSet::NONE
            .with(Feature::Freeze)
            .with(Feature::TpcMask),
    );
    let gpu = Scope::Gpu(world.gpu);
    for file in [
        File::GpuUuid,
        File::GpuName,
        File::GpuArchitecture,
        File::GpuTpcs,
        File::GpuMemoryTotal,
    ] {
        assert_eq!(world.read(file, gpu), Err(Error::Unknown), "{file:?}");
    }
    assert_eq!(world.read(File::GpuMode, gpu), Ok("kernel\n".into()));
    assert_eq!(
        world.read(File::GpuFeatures, gpu),
        Ok("compute.freeze\ntpc.mask\n".into())
    );
    assert_eq!(world.store.state().gpu_uuid(1, [0xab; 16]), Ok(()));
    let uuid = "GPU-abababab-abab-abab-abab-abababababab\n";
    assert_eq!(world.read(File::GpuUuid, gpu), Ok(uuid.into()));
    assert_eq!(world.store.state().gpu_uuid(2, [0; 16]), Err(Error::Gone));
    assert_eq!(
        world.read(File::Version, Scope::Root),
        Ok("gctgroup 0.1.0 abi 3\n".into())
    );
}
