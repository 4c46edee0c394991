// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that errors of the GPU are counted for their owner only.

use super::*;
use crate::faults::Report;

fn proc(tgid: u32) -> ProcKey {
    ProcKey { tgid, ..APP }
}

fn report(pid: u32, bus: u8) -> Report {
    Report {
        domain: 0,
        bus,
        slot: 0,
        xid: 31,
        pid,
    }
}

#[test]
fn an_error_counts_for_its_process_and_its_group_alone() {
    let mut world = World::new(FeatureSet::NONE.with(Feature::Faults));
    let (web, batch) = (world.group("web"), world.group("batch"));
    for (group, path) in [(web, "/web"), (batch, "/batch")] {
        world
            .write(File::GroupCgroup, Scope::Group(group), path)
            .unwrap();
    }
    for (pid, path) in [(7, "/web"), (8, "/web"), (9, "/batch")] {
        let file = world.open(proc(pid), path);
        world.cuda(file);
    }
    world.store.state().fault_reported(&report(7, 0x40));
    // Of another GPU, and of an unknown process.
    world.store.state().fault_reported(&report(7, 0x41));
    world.store.state().fault_reported(&report(77, 0x40));
    let hit = "faults 1\nlast_xid 31\n";
    let spared = "faults 0\nlast_xid 0\n";
    for (owner, expected) in [
        (Owner::Proc(proc(7)), hit),
        (Owner::Group(web), hit),
        (Owner::Proc(proc(8)), spared),
        (Owner::Proc(proc(9)), spared),
        (Owner::Group(batch), spared),
    ] {
        let pool = world.pool(owner);
        assert_eq!(
            world.read(File::ComputeEvents, pool).as_deref(),
            Ok(expected),
            "{owner:?}"
        );
    }
}

#[test]
fn an_error_that_ends_all_work_counts_for_everybody_once() {
    let mut world = World::new(FeatureSet::NONE.with(Feature::Faults));
    let (web, empty) = (world.group("web"), world.group("empty"));
    world
        .write(File::GroupCgroup, Scope::Group(web), "/web")
        .unwrap();
    for (pid, path) in [(7, "/web"), (8, "/other")] {
        let file = world.open(proc(pid), path);
        world.cuda(file);
    }
    let owners = [
        Owner::Proc(proc(7)),
        Owner::Proc(proc(8)),
        Owner::Group(web),
        Owner::Group(empty),
    ];
    let gpu = Scope::Gpu(world.gpu);
    assert_eq!(world.read(File::GpuHealth, gpu), Ok("ok\n".into()));
    // One that the driver blames on a process, or on nobody; repeated; and of another GPU.
    for (pid, bus, xid, count) in [
        (7, 0x41, 79, 0),
        (0, 0x40, 79, 1),
        (0, 0x40, 79, 1),
        (8, 0x40, 48, 2),
    ] {
        let report = Report {
            xid,
            ..report(pid, bus)
        };
        world.store.state().fault_reported(&report);
        for owner in owners {
            let pool = world.pool(owner);
            let last = if count == 0 { 0 } else { xid };
            assert_eq!(
                world.read(File::ComputeEvents, pool),
                Ok(format!("faults {count}\nlast_xid {last}\n")),
                "{owner:?}"
            );
        }
    }
    assert_eq!(world.read(File::GpuHealth, gpu), Ok("xid 48\n".into()));
    // An error without a process that others survive is nobody's.
    world.store.state().fault_reported(&report(0, 0x40));
    let pool = world.pool(Owner::Group(web));
    assert_eq!(
        world.read(File::ComputeEvents, pool),
        Ok("faults 2\nlast_xid 48\n".into())
    );
}

#[test]
fn without_a_backend_that_counts_faults_there_is_no_line() {
    let mut world = World::new(FeatureSet::NONE);
    let web = world.group("web");
    let pool = world.pool(Owner::Group(web));
    assert_eq!(world.read(File::ComputeEvents, pool).as_deref(), Ok(""));
}
