// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Who has a slip of the clock, and what is shown of it.

use super::goals::tenant;
use super::*;
use crate::policy::clock::Clock;
use crate::records::{Asks, GpuClock};
use crate::units::{Mhz, Percent};

fn clock() -> GpuClock {
    GpuClock {
        told: Clock::new(900),
        now: Mhz(1_785),
        highest: Mhz(1_980),
        changes: 3,
        errors: 1,
    }
}

#[test]
fn a_slip_of_the_clock_needs_a_backend_that_changes_it() {
    let features = FeatureSet::all().without(Feature::SlipPower);
    let mut world = World::new(features);
    let group = world.group("web");
    let scope = world.pool(Owner::Group(group));
    let refused = Err(Error::Unsupported);
    assert_eq!(world.write(File::SlipPower, scope, "5"), refused);
    let gpu = world.store.state().gpu_has_clocks(1, clock()).unwrap();
    assert!(!world.store.state().has_power_slip(gpu));
    assert_eq!(world.write(File::SlipPower, scope, "5"), Ok(()));
    assert!(world.store.state().has_power_slip(gpu));
    assert_eq!(world.store.state().clock(gpu), Clock::new(900));
    assert_eq!(
        world.read(File::GpuClockStat, Scope::Gpu(gpu)),
        Ok("mhz 1785\nhighest_mhz 1980\nchanges 3\nerrors 1\n".into())
    );
    assert_eq!(world.write(File::SlipPower, scope, "0"), Ok(()));
    assert!(!world.store.state().has_power_slip(gpu));
    assert_eq!(world.store.state().gpu_has_clocks(9, clock()), None);
}

#[test]
fn a_slip_binds_the_processes_of_its_group_and_what_nobody_wrote_binds_nothing() {
    let mut world = World::new(FeatureSet::all());
    let gpu = world.store.state().gpu_of_minor(facts(1, 1).minor).unwrap();
    let (proc, of_group) = tenant(&mut world, 1, &[(File::SlipPower, "10")]);
    let own = Scope::Pool(Owner::Proc(proc), gpu);
    let mut slip = |write: Option<(Scope, &str)>| {
        if let Some((scope, text)) = write {
            assert_eq!(world.write(File::SlipPower, scope, text), Ok(()));
        }
        let settings = world.store.state().effective(proc, gpu);
        settings.power_slip_in_force()
    };
    assert_eq!(slip(None), Percent(10));
    assert_eq!(slip(Some((own, "3"))), Percent(3));
    assert_eq!(slip(Some((of_group, "2"))), Percent(2));
    assert_eq!(slip(Some((own, "0"))), Percent(0));
}

#[test]
fn what_an_owner_asks_for_is_in_its_statistics() {
    let mut world = World::new(FeatureSet::all());
    let gpu = world.store.state().gpu_of_minor(facts(1, 1).minor).unwrap();
    let (proc, of_group) = tenant(&mut world, 1, &[(File::SlipPower, "10")]);
    let asks = |owner: Owner| match owner {
        Owner::Group(_) => Asks {
            clock: Mhz(1_800),
            sensitivity: 640,
        },
        Owner::Proc(_) => Asks::default(),
    };
    world.store.state().set_asks(gpu, &asks);
    let lines = |world: &mut World, scope| {
        let text = world.read(File::ComputeStat, scope).unwrap();
        let lines = text.lines().filter(|line| line.starts_with("clock_"));
        lines.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        lines(&mut world, of_group),
        "clock_mhz 1800 clock_sensitivity 640"
    );
    let own = Scope::Pool(Owner::Proc(proc), gpu);
    assert_eq!(lines(&mut world, own), "clock_mhz 0 clock_sensitivity 0");
}
