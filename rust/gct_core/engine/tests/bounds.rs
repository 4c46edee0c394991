// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a tenant does costs what it has itself, however many others there are.

use super::*;
use crate::table::steps;

/// Slots that one event of a small process may look at. Probes are short: a table is at
/// most three quarters full.
const STEPS_MAX: usize = 400;

/// A process of its own pid.
fn tenant(n: u32) -> ProcKey {
    ProcKey {
        tgid: 1000 + n,
        start_time_ns: 1,
    }
}

/// A machine with many processes, each with the objects of libcuda.
fn crowd(count: u32) -> World {
    let mut world = World::new(FeatureSet::NONE);
    let web = world.group("web");
    world
        .write(File::GroupCgroup, Scope::Group(web), "/web")
        .unwrap();
    for n in 0..count {
        let file = world.open(tenant(n), if n % 2 == 0 { "/web/a" } else { "/db" });
        world.cuda(file);
    }
    world
}

#[test]
fn open_and_close_look_at_nobody_else() {
    let mut world = crowd(600);
    let key = tenant(100_000);
    // What the tables ask for is not the tenant's doing.
    let first = world.open(key, "/web/b");
    world.store.state().file_close(first);

    let mut file = None;
    let opened = steps::of(|| {
        let open = |store: &mut Store| store.state().file_open(key, b"/web/b", None);
        file = Some(open(&mut world.store).unwrap());
    });
    assert!(opened < STEPS_MAX, "{opened}");
    let closed = steps::of(|| world.store.state().file_close(file.unwrap()));
    assert!(closed < STEPS_MAX, "{closed}");
}

#[test]
fn a_reused_pid_looks_at_nobody_else() {
    let mut world = crowd(600);
    let old = world.open(tenant(7), "");
    let young = ProcKey {
        start_time_ns: 2,
        ..tenant(7)
    };
    let opened = steps::of(|| {
        let open = |store: &mut Store| store.state().file_open(young, b"", None);
        open(&mut world.store).unwrap();
    });
    assert!(opened < STEPS_MAX, "{opened}");
    assert!(world.store.state().procs.get(&tenant(7)).unwrap().replaced);
    world.store.state().file_close(old);
    world.store.check();
}
