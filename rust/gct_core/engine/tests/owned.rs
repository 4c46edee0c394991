// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which channels the driver is to own, and what it says of them.

use super::*;
use crate::engine::Site;
use crate::launches::{EffectiveTpcs, Launches};
use crate::rmapi::{nv, Call, Handle};

/// The resource manager's number of the GPU.
const GPU_ID: u32 = 1;

const FEATURES: FeatureSet = FeatureSet::NONE.with(Feature::ChannelOwned);

/// Returns the call that allocates an object of a class below another.
fn alloc(parent: u64, class: u32) -> Call {
    let bytes = words(
        nv::nvos21::SIZE,
        &[
            (nv::nvos21::ROOT, CLIENT),
            (nv::nvos21::PARENT, parent),
            (nv::nvos21::OBJECT, 99),
            (nv::nvos21::CLASS, class.into()),
        ],
    );
    rmapi::decode(escape::ALLOC, &bytes).unwrap().unwrap()
}

fn handle(number: u64) -> Handle {
    Handle::try_from(number).unwrap()
}

#[test]
fn only_members_channels_are_owned() {
    let mut world = World::new(FEATURES);
    let file = world.open(APP, "");
    world.cuda(file);
    let call = alloc(TSG, nv::HOPPER_CHANNEL_GPFIFO_A);
    assert_eq!(world.store.state().site_of_owned(file, &call), None);
    assert!(!world.store.state().wants_owned_of(file) && !world.store.state().wants_owned());
    let pool = world.pool(Owner::Proc(APP));
    assert_eq!(world.write(File::ChannelOwned, pool, "1"), Ok(()));
    let site = world.store.state().site_of_owned(file, &call);
    assert_eq!(site.map(|site: Site| site.device), Some(handle(DEVICE)));
    assert!(world.store.state().wants_owned_of(file) && world.store.state().wants_owned());
    // What is no channel, or below nothing that is known, is not.
    let state = world.store.state();
    for call in [
        alloc(DEVICE, nv::KEPLER_CHANNEL_GROUP_A),
        alloc(77, nv::HOPPER_CHANNEL_GPFIFO_A),
    ] {
        assert_eq!(state.site_of_owned(file, &call), None);
    }
    assert_eq!(world.write(File::ChannelOwned, pool, "0"), Ok(()));
    assert!(!world.store.state().wants_owned());
}

/// A mask needs owned channels; the switch alone binds nothing.
#[test]
fn a_masks_channels_are_owned_or_refused() {
    let mut world = World::new(FEATURES);
    let file = world.open(APP, "");
    world.cuda(file);
    let topology = Topology::together(TpcMask::first(8));
    let pool = world.pool(Owner::Proc(APP));
    let refused = Err(Error::Unsupported);
    assert_eq!(world.write(File::TpcMask, pool, "0-3"), refused);
    let mut state = world.store.state();
    assert!(state.lacks_tpcs(GPU_ID) && !state.lacks_tpcs(GPU_ID + 1));
    state.gpu_has_tpcs(GPU_ID, topology, Feature::TpcMask);
    assert!(!state.lacks_tpcs(GPU_ID));
    assert_eq!(world.write(File::ChannelOwned, pool, "1"), Ok(()));
    let call = alloc(TSG, nv::HOPPER_CHANNEL_GPFIFO_A);
    let site = |world: &mut World| world.store.state().site_of_owned(file, &call);
    assert_eq!(site(&mut world).map(|site| site.is_limited), Some(false));
    assert_eq!(world.write(File::TpcMask, pool, "2-9"), Ok(()));
    assert_eq!(world.write(File::ChannelOwned, pool, "0"), Ok(()));
    assert_eq!(site(&mut world).map(|site| site.is_limited), Some(true));
    let limits = world.store.state().launch_limits(file, GPU_ID);
    let tpcs = limits.and_then(|(limits, _)| limits.tpcs);
    assert_eq!(tpcs, TpcMask::parse(b"2-7").ok());
    assert_eq!(limits.map(|(_, gpu)| gpu), Some(topology));
    assert!(world
        .store
        .state()
        .launch_limits(file, GPU_ID + 1)
        .is_none());
}

#[test]
fn launches_of_owned_channels_are_counted() {
    let mut world = World::new(FEATURES.with(Feature::TpcMask));
    let file = world.open(APP, "");
    world.cuda(file);
    let more = Launches {
        launches: 3,
        rewritten: 2,
        ..Launches::ZERO
    };
    for _ in 0..2 {
        let mut state = world.store.state();
        state.launched_through(file, GPU_ID, &more, EffectiveTpcs::All);
        state.launched_through(file, GPU_ID + 1, &more, EffectiveTpcs::All);
    }
    let pool = world.pool(Owner::Proc(APP));
    let stat = world.read(File::ComputeStat, pool).unwrap();
    assert!(stat.contains("launches 6\nrewritten 4\n"), "{stat}");
    assert_eq!(world.read(File::TpcEffective, pool).unwrap(), "all\n");
}

#[test]
fn a_backend_that_cannot_own_refuses_the_switch() {
    let mut world = World::new(FeatureSet::NONE);
    let file = world.open(APP, "");
    world.cuda(file);
    let pool = world.pool(Owner::Proc(APP));
    let refused = Err(Error::Unsupported);
    assert_eq!(world.write(File::ChannelOwned, pool, "1"), refused);
}

#[test]
fn channels_are_counted_by_who_has_their_ring() {
    let mut world = World::new(FEATURES);
    let file = world.open(APP, "");
    world.cuda(file);
    let mut state = world.store.state();
    let (client, channel) = (handle(CLIENT), handle(CHANNEL));
    state.owned_made(file, client, channel, true);
    state.owned_made(file, client, channel, true);
    state.owned_made(file, client, channel, false);
    // Of what is not there nothing is counted.
    state.owned_made(file, client, 77, true);
    let pool = world.pool(Owner::Proc(APP));
    let stat = world.read(File::ComputeStat, pool).unwrap();
    assert!(stat.ends_with("owned 2\nunowned 1\n"), "{stat}");
}

#[test]
fn a_channel_is_gone_when_its_handle_is() {
    let mut world = World::new(FEATURES);
    let file = world.open(APP, "");
    world.cuda(file);
    let is_there = |world: &mut World| {
        let state = world.store.state();
        state.is_channel_of(file, handle(CLIENT), handle(CHANNEL))
    };
    assert!(is_there(&mut world));
    let group = world
        .store
        .state()
        .is_channel_of(file, handle(CLIENT), handle(TSG));
    assert!(!group);
    world.free(file, TSG, 0x1f);
    assert!(is_there(&mut world));
    world.free(file, TSG, 0);
    assert!(!is_there(&mut world));
}
