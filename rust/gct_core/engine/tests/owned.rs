// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which channels the driver is to own, and what it says of them.

use super::*;
use crate::engine::{Progress, Shadowed, Site};
use crate::gpu_time::GpuTime;
use crate::launches::{EffectiveTpcs, Launches};
use crate::owned;
use crate::rmapi::{nv, Call, Handle};
use crate::units::Ns;

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
    assert!(!world.store.state().wants_record_of(file) && !world.store.state().wants_records());
    let pool = world.pool(Owner::Proc(APP));
    assert_eq!(world.write(File::ChannelOwned, pool, "1"), Ok(()));
    let site = world.store.state().site_of_owned(file, &call);
    assert_eq!(site.map(|site: Site| site.device), Some(handle(DEVICE)));
    assert!(world.store.state().wants_record_of(file) && world.store.state().wants_records());
    // What is no channel, or below nothing that is known, is not.
    let state = world.store.state();
    for call in [
        alloc(DEVICE, nv::KEPLER_CHANNEL_GROUP_A),
        alloc(77, nv::HOPPER_CHANNEL_GPFIFO_A),
    ] {
        assert_eq!(state.site_of_owned(file, &call), None);
    }
    assert_eq!(world.write(File::ChannelOwned, pool, "0"), Ok(()));
    assert!(!world.store.state().wants_records());
}

/// What a member maps is recorded before its group has a limit. Nobody else is looked at, and
/// nobody on a GPU whose channels cannot be owned.
#[test]
fn members_are_recorded_before_they_have_limits() {
    let mut world = World::new(FEATURES);
    let stranger = world.open(ProcKey { tgid: 77, ..APP }, "");
    assert!(!world.store.state().wants_records());
    let (_, member) = world.web();
    let state = world.store.state();
    assert!(state.wants_records() && state.wants_record_of(member));
    assert!(!state.wants_record_of(stranger));
    let call = alloc(TSG, nv::HOPPER_CHANNEL_GPFIFO_A);
    assert_eq!(state.site_of_owned(member, &call), None);
    let mut world = World::new(FeatureSet::NONE);
    let (_, member) = world.web();
    let state = world.store.state();
    assert!(!state.wants_records() && !state.wants_record_of(member));
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
    let limits = FeatureSet::NONE.with(Feature::TpcMask);
    state.gpu_has_tpcs(GPU_ID, topology, limits);
    assert!(!state.lacks_tpcs(GPU_ID));
    assert_eq!(world.write(File::ChannelOwned, pool, "1"), Ok(()));
    let call = alloc(TSG, nv::HOPPER_CHANNEL_GPFIFO_A);
    let site = |world: &mut World| world.store.state().site_of_owned(file, &call);
    assert_eq!(site(&mut world).map(|site| site.must_be_owned), Some(false));
    assert_eq!(world.write(File::TpcMask, pool, "2-9"), Ok(()));
    assert_eq!(world.write(File::ChannelOwned, pool, "0"), Ok(()));
    world.free(file, CHANNEL, 0);
    assert_eq!(site(&mut world).map(|site| site.must_be_owned), Some(true));
    let terms = world.store.state().launch_terms(file, GPU_ID).unwrap();
    assert_eq!(terms.limits.tpcs, TpcMask::parse(b"2-7").ok());
    assert_eq!(Some(terms.standing.allowed), terms.limits.tpcs);
    assert_eq!((terms.proc, terms.topology), (APP, topology));
    let elsewhere = world.store.state().launch_terms(file, GPU_ID + 1);
    assert!(elsewhere.is_none());
}

/// A process that runs when its limit comes may have further channels that the driver cannot own.
/// One that is stopped for what no limit can bind may not.
#[test]
fn a_limit_refuses_no_channel_beside_one_from_before() {
    let features = FEATURES
        .with(Feature::ChannelStrict)
        .with(Feature::Bandwidth);
    let mut world = World::new(features);
    let file = world.open(APP, "");
    world.cuda(file);
    let pool = world.pool(Owner::Proc(APP));
    let call = alloc(TSG, nv::HOPPER_CHANNEL_GPFIFO_A);
    let must = |world: &mut World| {
        let site = world.store.state().site_of_owned(file, &call);
        site.map(|site| site.must_be_owned)
    };
    assert_eq!(world.write(File::ComputeMax, pool, "1000 2000"), Ok(()));
    assert_eq!(must(&mut world), Some(false), "CHANNEL is native");
    assert_eq!(world.write(File::ChannelStrict, pool, "1"), Ok(()));
    assert_eq!(must(&mut world), Some(true));
    assert_eq!(world.write(File::ChannelStrict, pool, "0"), Ok(()));
    let (client, channel) = (handle(CLIENT), handle(CHANNEL));
    let mut state = world.store.state();
    state.owned_made(file, client, channel, true);
    assert_eq!(must(&mut world), Some(true), "CHANNEL is the driver's");
}

/// Each limit on launches stops what it cannot bind, unless the owner of the tree says otherwise.
/// The channels of a process from before its limits go on until the last of them is gone.
#[test]
fn limits_on_launches_are_strict_by_default() {
    for (limit, value) in [
        (File::TpcMask, "0-3"),
        (File::TpcQuota, "0"),
        (File::TpcSteal, "0"),
        (File::ComputeMax, "1000 2000"),
        (File::ComputePriority, "8"),
        (File::ComputeWeight, "100"),
        (File::AtomDuration, "100"),
    ] {
        let mut world = World::new(FeatureSet::all());
        let (web, file) = world.web();
        let pools = [Owner::Group(web), Owner::Proc(APP)].map(|owner| world.pool(owner));
        let strict = |world: &mut World| {
            let terms = world.store.state().launch_terms(file, GPU_ID).unwrap();
            let permissive = pools.map(|pool| {
                let stat = world.read(File::ComputeStat, pool).unwrap();
                stat.contains("\npermissive 1\n")
            });
            (terms.limits.strict, permissive)
        };
        assert_eq!(strict(&mut world), (false, [false; 2]));
        assert_eq!(world.write(limit, pools[0], value), Ok(()));
        let by_pauses = limit == File::ComputeMax;
        assert_eq!(strict(&mut world), (false, [!by_pauses; 2]), "{limit:?}");
        world.free(file, CHANNEL, 0);
        let mut state = world.store.state();
        assert!(state.has_new_pauses() && state.pass_pauses(Ns(0)).concerns_owned);
        assert_eq!(strict(&mut world), (true, [false; 2]), "{limit:?}");
        for (of_group, own, is_strict, is_permissive) in [
            ("0", "default", false, [true, true]),
            ("0", "1", true, [true, false]),
            ("0", "0", false, [true, true]),
            ("default", "0", false, [false, true]),
            ("1", "0", true, [false, false]),
            ("default", "default", true, [false, false]),
        ] {
            for (pool, value) in pools.into_iter().zip([of_group, own]) {
                assert_eq!(world.write(File::ChannelStrict, pool, value), Ok(()));
            }
            let found = strict(&mut world);
            assert_eq!(found, (is_strict, is_permissive), "{of_group} {own}");
        }
    }
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
    let progress = Progress {
        launches: more,
        effective: EffectiveTpcs::All,
        time: GpuTime::ZERO,
        pending: 0,
        unseen: false,
    };
    for _ in 0..2 {
        let mut state = world.store.state();
        state.progressed(file, GPU_ID, &progress);
        state.progressed(file, GPU_ID + 1, &progress);
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
    assert!(
        stat.ends_with("owned 2\nunowned 1\nnative 0\ncooperative 0\nunseen 0\nforbidden 0\n"),
        "{stat}"
    );
}

/// A channel from before a limit is to be shadowed while a limit on launches binds its process that
/// pauses do not enforce. It counts once, and goes with the channel.
#[test]
fn channels_from_before_are_shadowed_under_limits() {
    let mut world = World::new(
        FEATURES
            .with(Feature::Bandwidth)
            .with(Feature::AtomDuration),
    );
    let (web, file) = world.web();
    let (client, channel) = (handle(CLIENT), handle(CHANNEL));
    let shadows = |world: &mut World, channel: Handle| {
        let state = world.store.state();
        state.shadows(file, client, channel)
    };
    assert_eq!(shadows(&mut world, channel), None);
    let pool = world.pool(Owner::Group(web));
    assert_eq!(world.write(File::ComputeMax, pool, "1000 2000"), Ok(()));
    assert_eq!(shadows(&mut world, channel), None, "pauses are enough");
    assert_eq!(world.write(File::AtomDuration, pool, "100"), Ok(()));
    let due = Shadowed {
        gpu: GPU_ID,
        shares_group: false,
    };
    assert_eq!(shadows(&mut world, channel), Some(due));
    assert_eq!(shadows(&mut world, 77), None);
    let counts = |world: &mut World| {
        let stat = world.read(File::ComputeStat, pool).unwrap();
        let at = stat.find("native ").unwrap();
        String::from(&stat[at..stat[at..].match_indices('\n').nth(1).unwrap().0 + at])
    };
    for _ in 0..2 {
        world.store.state().shadowed(file, client, channel);
        assert_eq!(counts(&mut world), "native 1\ncooperative 1");
    }
    let terms = |world: &mut World| {
        let terms = world.store.state().launch_terms(file, GPU_ID);
        terms.map(|terms| terms.shadows)
    };
    assert_eq!(terms(&mut world), Some(true));
    assert_eq!(world.write(File::AtomDuration, pool, "off"), Ok(()));
    assert_eq!(shadows(&mut world, channel), None);
    assert_eq!(terms(&mut world), Some(false));
    for _ in 0..2 {
        world.store.state().unshadowed(file, client, channel);
        assert_eq!(counts(&mut world), "native 1\ncooperative 0");
    }
    world.store.state().shadowed(file, client, channel);
    assert_eq!(counts(&mut world), "native 1\ncooperative 1");
    world.free(file, CHANNEL, 0);
    assert_eq!(counts(&mut world), "native 0\ncooperative 0");
    world.store.state().unshadowed(file, client, channel);
    assert_eq!(counts(&mut world), "native 0\ncooperative 0");
    world.store.state().shadowed(file, client, channel);
    assert_eq!(counts(&mut world), "native 0\ncooperative 0");
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

/// Each limit on launches makes channels owned, and a write to its file reaches the worker.
#[test]
fn limits_on_launches_need_owned_channels() {
    for (file, value, none) in [
        (File::TpcMask, "0-3", "all"),
        (File::TpcQuota, "0", "none"),
        (File::TpcSteal, "0", "1"),
        (File::ComputeMax, "1000 2000", "max"),
        (File::AtomDuration, "100", "off"),
        (File::SlipTpc, "10", "0"),
    ] {
        let mut world = World::new(FeatureSet::all());
        let file_of_app = world.open(APP, "");
        world.cuda(file_of_app);
        let pool = world.pool(Owner::Proc(APP));
        let call = alloc(TSG, nv::HOPPER_CHANNEL_GPFIFO_A);
        let site = |world: &mut World| world.store.state().site_of_owned(file_of_app, &call);
        assert!(site(&mut world).is_none() && owned::concerns(file));
        assert_eq!(world.write(file, pool, value), Ok(()), "{file:?}");
        assert!(site(&mut world).is_some());
        assert_eq!(world.write(file, pool, none), Ok(()), "{file:?}");
        assert!(site(&mut world).is_none());
    }
    // Their defaults cannot be told from what was written.
    for (file, value) in [(File::ComputePriority, "8"), (File::ComputeWeight, "100")] {
        let mut world = World::new(FeatureSet::all());
        let opened = world.open(APP, "");
        world.cuda(opened);
        let pool = world.pool(Owner::Proc(APP));
        assert!(!world.store.state().wants_record_of(opened) && owned::concerns(file));
        assert_eq!(world.write(file, pool, value), Ok(()));
        assert!(world.store.state().wants_record_of(opened));
    }
    assert!(!owned::concerns(File::GmemLimit) && !owned::concerns(File::ComputeTimeslice));
}

/// Sizes are no limit: where the driver does not see the launches they have all TPCs, so no channel
/// is refused. Those from before are shadowed.
#[test]
fn a_slip_refuses_no_channel() {
    let mut world = World::new(FeatureSet::all());
    let file = world.open(APP, "");
    world.cuda(file);
    let (pool, call) = (
        world.pool(Owner::Proc(APP)),
        alloc(TSG, nv::HOPPER_CHANNEL_GPFIFO_A),
    );
    let mut state_under = |slip| {
        assert_eq!(world.write(File::SlipTpc, pool, slip), Ok(()));
        let state = world.store.state();
        let site = state.site_of_owned(file, &call);
        let shadows = state.shadows(file, handle(CLIENT), handle(CHANNEL));
        (site.map(|site| site.must_be_owned), shadows.is_some())
    };
    assert_eq!(state_under("10"), (Some(false), true));
    assert_eq!(state_under("0"), (None, false));
}

/// The terms of a process are those that the user-space mode publishes.
#[test]
fn terms_have_what_neighbours_must_know() {
    let mut world = World::new(FeatureSet::all());
    let group = world.group("web");
    let of_group = world.pool(Owner::Group(group));
    let opened = world.open(APP, "");
    world.cuda(opened);
    let mut state = world.store.state();
    state.member_moved(APP, Some(group)).unwrap();
    let own = world.pool(Owner::Proc(APP));
    assert_eq!(world.write(File::TpcQuota, of_group, "4"), Ok(()));
    assert_eq!(world.write(File::ComputePriority, of_group, "3"), Ok(()));
    assert_eq!(world.write(File::ComputeWeight, of_group, "300"), Ok(()));
    assert!(!world.store.state().reserves(opened));
    assert_eq!(world.write(File::TpcQuota, own, "2"), Ok(()));
    let state = world.store.state();
    assert!(state.reserves(opened));
    let terms = state.launch_terms(opened, GPU_ID).unwrap();
    assert_eq!(terms.owner, Owner::Group(group));
    let standing = terms.standing;
    assert_eq!((standing.own.count(), standing.alone.count()), (6, 2));
    assert_eq!((standing.rank, standing.lends), (terms.limits.rank, true));
    assert_eq!(terms.limits.rank.priority.get(), 3);
    assert_eq!(standing.weight, Some(Weight(300)));
    assert_eq!(terms.limits.share.weight(), standing.weight);
}

/// What a group has pending is the sum over its processes.
#[test]
fn pending_work_of_a_group_is_that_of_its_processes() {
    let mut world = World::new(FeatureSet::all());
    let group = world.group("web");
    let of_group = world.pool(Owner::Group(group));
    let procs = [APP, ProcKey { tgid: 77, ..APP }];
    let files = procs.map(|proc| {
        let opened = world.open(proc, "");
        world.cuda(opened);
        let mut state = world.store.state();
        state.member_moved(proc, Some(group)).unwrap();
        opened
    });
    for (pending, sum) in [([3, 4], 7), ([0, 5], 5)] {
        for (file, pending) in files.into_iter().zip(pending) {
            let progress = Progress {
                launches: Launches::ZERO,
                effective: EffectiveTpcs::Unknown,
                time: GpuTime {
                    used: Ns(1_000_000),
                    ..GpuTime::ZERO
                },
                pending,
                unseen: false,
            };
            world.store.state().progressed(file, GPU_ID, &progress);
        }
        let stat = world.read(File::ComputeStat, of_group).unwrap();
        assert!(stat.contains(&format!("\npending {sum}\n")), "{stat}");
    }
    let stat = world.read(File::ComputeStat, of_group).unwrap();
    assert!(stat.contains("\nusage_usec 4000\n"), "{stat}");
}
