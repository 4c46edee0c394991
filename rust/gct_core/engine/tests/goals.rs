// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whom goals of others press, and what they leave alone.

use super::*;
use crate::policy::slo::Verdict;
use crate::settings::Settings;
use crate::topology::Topology;
use crate::units::{Ns, Tpcs, Us};

/// A process in a group of its own.
pub(super) fn tenant(world: &mut World, number: u32, limits: &[(File, &str)]) -> (ProcKey, Scope) {
    let group = world.group(&std::format!("g{number}"));
    let scope = world.pool(Owner::Group(group));
    for (file, text) in limits {
        assert_eq!(world.write(*file, scope, text), Ok(()), "{file:?}");
    }
    let proc = ProcKey {
        tgid: number,
        ..APP
    };
    let file = world.open(proc, "");
    world.cuda(file);
    let mut state = world.store.state();
    state.member_moved(proc, Some(group)).unwrap();
    (proc, scope)
}

fn gpu_tpcs() -> Topology {
    Topology::together(TpcMask::first(8))
}

/// Returns a world with eight TPCs.
fn world() -> (World, GpuId) {
    let mut world = World::new(FeatureSet::all());
    let mut state = world.store.state();
    state.gpu_has_tpcs(1, gpu_tpcs(), FeatureSet::NONE);
    let gpu = state.gpu_of_minor(facts(1, 1).minor).unwrap();
    (world, gpu)
}

fn press(world: &mut World, scope: Scope, level: u8) -> bool {
    let Scope::Pool(owner, gpu) = scope else {
        return false;
    };
    let verdict = Verdict {
        level,
        requests: 7,
        p99: Us(1_500),
        met: level < 3,
        cannot: level > 3,
        age: Ns(2_500_000_000),
    };
    let mut state = world.store.state();
    state.set_verdict(owner, gpu, verdict);
    state.press()
}

fn mask(text: &str) -> TpcMask {
    TpcMask::parse(text.as_bytes()).unwrap()
}

#[test]
fn only_owners_without_goal_quota_and_earlier_rank_are_pressed() {
    let (mut world, gpu) = world();
    let goal = (File::SloP99, "2ms");
    let (service, of_service) = tenant(&mut world, 1, &[goal, (File::ComputePriority, "5")]);
    let (batch, _) = tenant(&mut world, 2, &[]);
    let (masked, _) = tenant(&mut world, 3, &[(File::TpcMask, "0-3")]);
    let (yielding, _) = tenant(&mut world, 4, &[(File::TpcQuota, "0")]);
    let spared = [
        service,
        tenant(&mut world, 5, &[(File::SloP99, "1s")]).0,
        tenant(&mut world, 6, &[(File::TpcQuota, "2")]).0,
        tenant(&mut world, 7, &[(File::ComputePriority, "4")]).0,
    ];
    let get = |world: &mut World, proc| world.store.state().effective(proc, gpu);
    let before: Vec<Settings> = spared.iter().map(|proc| get(&mut world, *proc)).collect();
    let free = get(&mut world, batch);
    assert!(press(&mut world, of_service, 3));
    assert!(!press(&mut world, of_service, 3), "nothing changed");
    let pressed = get(&mut world, batch);
    assert!(pressed.pressed && pressed.rank().best_effort);
    assert_eq!(pressed.allowed(&gpu_tpcs()), mask("4-7"));
    assert!(world.store.state().standing(batch, gpu).rank.best_effort);
    assert_eq!(
        get(&mut world, masked).allowed(&gpu_tpcs()),
        mask("2-3"),
        "a part of its own"
    );
    let already = get(&mut world, yielding);
    assert!(!already.pressed, "no allowance beyond what was written");
    assert_eq!(
        (already.tpc_quota, already.allowed(&gpu_tpcs())),
        (Some(Tpcs(0)), mask("4-7"))
    );
    for (proc, before) in spared.iter().zip(before) {
        assert_eq!(get(&mut world, *proc), before, "{proc:?}");
    }
    assert!(press(&mut world, of_service, 1));
    assert_eq!(get(&mut world, batch).allowed(&gpu_tpcs()), mask("0-7"));
    // The stat of the pressed owner says so; its other files show what was written.
    let owner = world.store.state().owner_of(batch);
    let shown = world.read(File::TpcQuota, world.pool(owner));
    assert_eq!(shown, Ok("none\n".into()));
    for (of, level) in [
        (owner, 1),
        (Owner::Proc(batch), 1),
        (Owner::Proc(yielding), 1),
        (Owner::Proc(service), 0),
        (Owner::Proc(spared[1]), 0),
        (Owner::Proc(spared[2]), 0),
        (Owner::Proc(spared[3]), 0),
    ] {
        let stat = world.read(File::SloStat, world.pool(of)).unwrap();
        let line = std::format!("pressed {level}\n");
        assert!(stat.ends_with(&line), "{of:?}: {stat}");
    }
    assert_eq!(world.write(File::SloP99, of_service, "max"), Ok(()));
    assert_eq!(get(&mut world, batch), free, "at once");
    assert_eq!(world.write(File::SloP99, of_service, "2000"), Ok(()));
    assert_eq!(get(&mut world, batch), free, "a new goal begins anew");
}

#[test]
fn the_hardest_level_counts_and_a_group_that_goes_presses_nobody() {
    let (mut world, gpu) = world();
    let (_, first) = tenant(&mut world, 1, &[(File::SloP99, "2ms")]);
    let (_, second) = tenant(&mut world, 2, &[(File::SloP99, "3ms")]);
    let (batch, _) = tenant(&mut world, 3, &[]);
    assert!(press(&mut world, first, 4) && !press(&mut world, second, 2));
    let of_batch = |world: &mut World| {
        let settings = world.store.state().effective(batch, gpu);
        settings.allowed(&gpu_tpcs())
    };
    assert_eq!(of_batch(&mut world), mask("6-7"));
    assert!(press(&mut world, first, 0));
    assert_eq!(of_batch(&mut world), mask("2-7"));
    assert!(press(&mut world, second, 0));
    assert_eq!(of_batch(&mut world), mask("0-7"));
    let mut goals = Vec::new();
    let state = world.store.state();
    state.each_goal(&mut |owner, _, goal| goals.push((owner, goal)));
    goals.sort_by_key(|(_, goal)| *goal);
    let goals: Vec<Us> = goals.iter().map(|(_, goal)| *goal).collect();
    assert_eq!(goals, [Us(2_000), Us(3_000)]);
}

#[test]
fn the_stat_says_what_was_found() {
    let (mut world, _) = world();
    let (_, scope) = tenant(&mut world, 1, &[(File::SloP99, "2ms")]);
    press(&mut world, scope, 4);
    let text =
        "requests 7\np99_usec 1500\nmet 0\ncannot 1\nlevel 4\nlevel_usec 2500000\npressed 0\n";
    assert_eq!(world.read(File::SloStat, scope), Ok(text.into()));
    assert_eq!(world.read(File::SloP99, scope), Ok("2000\n".into()));
    for (text, error) in [
        ("99", Error::Range),
        ("off", Error::Syntax),
        ("11s", Error::Range),
    ] {
        assert_eq!(world.write(File::SloP99, scope, text), Err(error), "{text}");
    }
    let mut world = World::new(FeatureSet::all().without(Feature::SloP99));
    let scope = {
        let group = world.group("web");
        world.pool(Owner::Group(group))
    };
    for file in [File::SloP99, File::SloStat] {
        assert_eq!(world.read(file, scope), Err(Error::Unsupported));
    }
    assert_eq!(
        world.write(File::SloP99, scope, "2ms"),
        Err(Error::Unsupported)
    );
}
