// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that a quota is reserved or refused.

use super::*;
use proptest::prelude::*;

/// Ten TPCs with gaps.
const TPCS: &str = "0-3,9-12,30,40";

fn mask_of(text: &str) -> TpcMask {
    TpcMask::parse(text.as_bytes()).unwrap_or(TpcMask::EMPTY)
}

/// Adds a GPU with these TPCs.
fn world_with(topology: Topology) -> World {
    let mut store = Store::new(1);
    let mut facts = facts(1, 1);
    facts.topology = topology;
    let gpu = store
        .retry(|store| store.state().gpu_add(&facts, FeatureSet::all()))
        .unwrap();
    World { store, gpu }
}

/// Adds a GPU with TPCs of unknown GPCs, and groups `a`, `b` and `c`.
fn world_with_three_groups() -> (World, [Scope; 3]) {
    let mut world = world_with(Topology::apart(mask_of(TPCS)));
    let pools = ["a", "b", "c"].map(|name| {
        let group = world.group(name);
        world.pool(Owner::Group(group))
    });
    (world, pools)
}

/// Makes a process of CUDA's a member of the group with a pool. Returns its file, and the GPU.
fn join(world: &mut World, pool: Scope) -> (FileId, GpuId) {
    let file = world.open(APP, "");
    world.cuda(file);
    let Scope::Pool(Owner::Group(group), gpu) = pool else {
        panic!("{pool:?}");
    };
    world.store.state().member_moved(APP, Some(group)).unwrap();
    (file, gpu)
}

fn reserved(world: &mut World, pool: Scope) -> String {
    let text = world.read(File::TpcReserved, pool).unwrap();
    text.trim_end().into()
}

#[test]
fn a_quota_that_does_not_fit_is_refused() {
    let (mut world, [a, b, c]) = world_with_three_groups();
    assert_eq!(world.write(File::TpcQuota, a, "5"), Ok(()));
    assert_eq!(world.write(File::TpcQuota, b, "6"), Err(Error::NoSpace));
    assert_eq!(world.read(File::TpcQuota, b), Ok("none\n".into()));
    assert_eq!(world.write(File::TpcQuota, b, "5"), Ok(()));
    assert_eq!(world.write(File::TpcQuota, c, "1"), Err(Error::NoSpace));
    assert_eq!(
        (&*reserved(&mut world, a), &*reserved(&mut world, b)),
        ("0-3,9", "10-12,30,40")
    );
    assert_eq!(reserved(&mut world, c), "none");
    // Best effort, and no quota, reserve nothing.
    assert_eq!(world.write(File::TpcQuota, c, "0"), Ok(()));
    assert_eq!(world.write(File::TpcQuota, c, "none"), Ok(()));
    assert_eq!(world.write(File::TpcQuota, a, "4"), Ok(()));
    assert_eq!(world.write(File::TpcQuota, c, "1"), Ok(()));
    assert_eq!(
        world.write(File::TpcQuota, c, "11"),
        Err(Error::Range),
        "there are ten"
    );
}

#[test]
fn a_mask_that_leaves_too_few_for_a_quota_is_refused() {
    let (mut world, [a, b, _]) = world_with_three_groups();
    assert_eq!(world.write(File::TpcQuota, a, "3"), Ok(()));
    assert_eq!(world.write(File::TpcMask, a, "9-10"), Err(Error::NoSpace));
    assert_eq!(world.read(File::TpcMask, a), Ok("all\n".into()));
    assert_eq!(world.write(File::TpcMask, a, "0-2"), Ok(()));
    // An owner with fewer TPCs to choose from chooses first.
    assert_eq!(world.write(File::TpcQuota, b, "7"), Ok(()));
    assert_eq!(reserved(&mut world, a), "0-2");
    assert_eq!(world.write(File::TpcMask, b, "0-12"), Err(Error::NoSpace));
}

#[test]
fn removing_a_group_frees_its_reserved_tpcs() {
    let (mut world, [a, b, _]) = world_with_three_groups();
    assert_eq!(world.write(File::TpcQuota, a, "10"), Ok(()));
    assert_eq!(world.write(File::TpcQuota, b, "1"), Err(Error::NoSpace));
    let Scope::Pool(Owner::Group(group), _) = a else {
        panic!("{a:?}");
    };
    assert_eq!(world.store.state().group_remove(group, 0), Ok(()));
    assert_eq!(world.write(File::TpcQuota, b, "10"), Ok(()));
}

/// Checks that a process's own quota adds to its group's, and ends with the process.
#[test]
fn a_process_has_a_quota_of_its_own() {
    let (mut world, [a, b, _]) = world_with_three_groups();
    let (file, gpu) = join(&mut world, a);
    let own = world.pool(Owner::Proc(APP));
    assert_eq!(world.write(File::TpcQuota, a, "4"), Ok(()));
    assert_eq!(world.write(File::TpcQuota, own, "3"), Ok(()));
    assert_eq!(
        (&*reserved(&mut world, a), &*reserved(&mut world, own)),
        ("0-3", "9-11")
    );
    assert_eq!(world.write(File::TpcQuota, b, "4"), Err(Error::NoSpace));
    let reserved = world.store.state().reserved(Owner::Proc(APP), gpu);
    assert_eq!(reserved, mask_of("9-11"));
    world.store.state().file_close(file);
    assert_eq!(world.write(File::TpcQuota, b, "6"), Ok(()));
}

/// Checks that a quota which is missed in a group with another mask takes nothing from other
/// owners.
#[test]
fn a_move_to_a_narrower_mask_takes_nothing_from_others() {
    let (mut world, [a, b, _]) = world_with_three_groups();
    let file = world.open(APP, "");
    world.cuda(file);
    let own = world.pool(Owner::Proc(APP));
    assert_eq!(world.write(File::TpcQuota, own, "6"), Ok(()));
    assert_eq!(world.write(File::TpcMask, a, "0-3,9"), Ok(()));
    assert_eq!(world.write(File::TpcQuota, b, "4"), Ok(()));
    let Scope::Pool(Owner::Group(group), _) = a else {
        panic!("{a:?}");
    };
    world.store.state().member_moved(APP, Some(group)).unwrap();
    assert_eq!(reserved(&mut world, own), "0-3,9");
    assert_eq!(reserved(&mut world, b), "10-12,30");
    // A quota that is missed already is no reason to refuse a write that costs no TPC.
    assert_eq!(world.write(File::TpcQuota, b, "5"), Ok(()));
    assert_eq!(world.write(File::TpcQuota, b, "6"), Err(Error::NoSpace));
}

/// Checks what a program is shown: a quota takes nothing from its owner, but from others.
#[test]
fn a_program_is_shown_what_guarantees_of_others_leave() {
    let (mut world, [a, b, c]) = world_with_three_groups();
    let (_, gpu) = join(&mut world, a);
    let shown = |world: &mut World| world.store.state().dependable_tpcs(APP, gpu).count();
    let mut after = |pool, file, value: &str| {
        assert_eq!(world.write(file, pool, value), Ok(()));
        shown(&mut world)
    };
    assert_eq!(after(a, File::TpcQuota, "3"), 10, "a guarantee is no cap");
    assert_eq!(after(b, File::TpcQuota, "2"), 8, "less what others reserve");
    assert_eq!(after(c, File::ComputePriority, "0"), 3, "whatever c does");
    assert_eq!(after(c, File::TpcMask, "9-12"), 5, "less what c may use");
    assert_eq!(after(c, File::ComputePriority, "8"), 8);
    assert_eq!(after(a, File::TpcSteal, "0"), 3, "a cap");
    assert_eq!(after(a, File::TpcQuota, "none"), 8);
    assert_eq!(after(a, File::TpcMask, "0-3"), 2, "b has the others");
}

/// Checks that `tpc.steal` 0 is a cap: what is reserved for others stays free, even while they have
/// no processes.
#[test]
fn who_may_not_steal_has_nothing_that_others_reserved() {
    let (mut world, [a, b, _]) = world_with_three_groups();
    let (file, _) = join(&mut world, a);
    let mut after = |pool, file_of, value: &str| {
        assert_eq!(world.write(file_of, pool, value), Ok(()));
        let terms = world.store.state().launch_terms(file, 1).unwrap();
        let tpcs = terms.limits.allowed(&terms.topology);
        assert_eq!(tpcs, terms.standing.allowed);
        (tpcs == mask_of(TPCS), tpcs.and(&terms.standing.own), tpcs)
    };
    assert!(after(a, File::TpcQuota, "3").0);
    assert!(after(b, File::TpcQuota, "4").0, "who may steal");
    let (_, own, left) = after(a, File::TpcSteal, "0");
    assert_eq!((own.count(), left.count()), (3, 6));
    assert_eq!(after(b, File::TpcQuota, "7"), (false, own, own));
    assert_eq!(after(a, File::TpcQuota, "none").2.count(), 3);
    // A launch without any TPC would never start.
    assert!(after(b, File::TpcQuota, "10").0);
    assert_eq!(after(b, File::TpcQuota, "9").2.count(), 1);
    assert!(after(a, File::TpcSteal, "1").0);
}

fn write_at_random(
    world: &mut World,
    pool: Scope,
    quota: bool,
    value: u16,
) -> (bool, Result<(), Error>) {
    let text = match (quota, value % 8) {
        (true, 7) => "none".into(),
        (true, _) => format!("{}", value % 12),
        (false, 7) => "all".into(),
        (false, from) => format!("{}-{}", from * 4, from * 4 + value % 37),
    };
    let file = if quota { File::TpcQuota } else { File::TpcMask };
    (quota, world.write(file, pool, &text))
}

proptest! {
    /// Writes quotas and masks in any order. Each accepted quota is reserved exactly, and disjoint
    /// from others.
    #[test]
    fn accepted_quotas_are_kept(
        writes in prop::collection::vec((0usize..3, any::<bool>(), any::<u16>()), 1..40),
    ) {
        let (mut world, pools) = world_with_three_groups();
        for (owner, quota, value) in writes {
            let before = pools.map(|pool| reserved(&mut world, pool));
            let (_, written) = write_at_random(&mut world, pools[owner], quota, value);
            prop_assert!(matches!(written, Ok(()) | Err(Error::NoSpace | Error::Range)), "{:?}", written);
            let mut all = TpcMask::EMPTY;
            for pool in pools {
                let own = mask_of(&reserved(&mut world, pool));
                let quota = world.read(File::TpcQuota, pool).unwrap();
                prop_assert_eq!(own.count(), quota.trim_end().parse().unwrap_or(0));
                prop_assert!(own.and(&all).is_empty());
                let mask = world.read(File::TpcMask, pool).unwrap();
                prop_assert!(mask == "all\n" || own.without(&mask_of(mask.trim_end())).is_empty());
                all = all.or(&own);
            }
            prop_assert!(all.without(&mask_of(TPCS)).is_empty());
            if written.is_err() {
                prop_assert_eq!(pools.map(|pool| reserved(&mut world, pool)), before);
            }
        }
    }

    /// Writes quotas in any order on a GPU like an H100: seven GPCs of 8 and 9 TPCs, half of one,
    /// and four TPCs outside. Whatever came and went before, each owner has as many clusters of
    /// each size as any choice of the TPCs that those before it leave.
    #[test]
    fn quotas_hold_clusters_whatever_came_and_went(
        writes in prop::collection::vec((0usize..4, 0u16..40), 1..40),
    ) {
        let gpu = "0-3,9-16,18-25,27-34,36-43,45-52,54-71,75,78,81,83";
        let [a, b, c, d] = *mask_of(gpu).words();
        let gpu = Topology::from_words([a, b, c, d, 8 << 16 | 9]);
        let mut world = world_with(gpu);
        let pools = ["a", "b", "c", "d"].map(|name| {
            let group = world.group(name);
            world.pool(Owner::Group(group))
        });
        let held = |tpcs: &TpcMask, unit: u32| -> u32 {
            gpu.tpcs_of_gpcs(tpcs).map(|tpcs| tpcs / unit).sum()
        };
        for (owner, quota) in writes {
            let quota = format!("{quota}");
            let written = world.write(File::TpcQuota, pools[owner], &quota);
            prop_assert!(matches!(written, Ok(()) | Err(Error::NoSpace)), "{:?}", written);
            let mut free = *gpu.existing();
            for pool in pools {
                let own = mask_of(&reserved(&mut world, pool));
                for unit in [4, 2] {
                    let most = (own.count() / unit).min(held(&free, unit));
                    prop_assert_eq!(held(&own, unit), most, "{} TPCs of {:?}", unit, own);
                }
                free = free.without(&own);
            }
        }
    }
}
