// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use crate::error::Table;
use crate::ids::{GpuId, ProcKey};
use crate::table::Meta;
use crate::testing::Slots;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::format;
use std::string::String;

const N0: GpuIndex = GpuIndex(0);

struct World {
    meta: Meta,
    slots: Slots<DirPath, Dir>,
    queue: Queue,
    /// The model of a filesystem: the scope of each path.
    tree: BTreeMap<String, Scope>,
}

fn full(path: DirPath) -> String {
    match path {
        DirPath::Gpu(n) => format!("gpus/{}", n.0),
        DirPath::Group(group) => format!("g{}", group.0),
        DirPath::Proc(tgid) => format!("{tgid}"),
        DirPath::GroupGpu(group, n) => format!("g{}/{}", group.0, n.0),
        DirPath::ProcGpu(tgid, n) => format!("{tgid}/{}", n.0),
    }
}

impl World {
    fn new() -> Self {
        Self {
            meta: Meta::new(Table::Dirs, 200, 3),
            slots: Slots::new(256, 1),
            queue: Queue::new(),
            tree: BTreeMap::new(),
        }
    }

    fn dirs(&mut self) -> Dirs<'_> {
        Dirs::new(Map::new(&mut self.meta, &mut self.slots), &mut self.queue)
    }

    /// Performs one step as a filesystem does, and panics if a step is out of order.
    fn step(&mut self) -> bool {
        let Some(step) = self.dirs().next_effect() else {
            return false;
        };
        match step {
            Step::Add(path, scope) => {
                if let Some(parent) = path.parent() {
                    assert_eq!(self.tree.get(&full(parent)).copied(), scope.parent());
                }
                assert_eq!(self.tree.insert(full(path), scope), None, "{path:?}");
            }
            Step::Remove(path) => {
                let below = format!("{}/", full(path));
                assert!(
                    !self.tree.keys().any(|name| name.starts_with(&below)),
                    "{path:?}"
                );
                assert!(self.tree.remove(&full(path)).is_some(), "{path:?}");
            }
        }
        assert!(self.dirs().is_sound());
        true
    }

    fn settle(&mut self) -> usize {
        let steps = (0..10_000).take_while(|_| self.step()).count();
        assert!(self.dirs().is_settled());
        steps
    }
}

fn proc(start_time_ns: u64) -> ProcKey {
    ProcKey {
        tgid: 7,
        start_time_ns,
    }
}

fn pool(start: u64, gpu: u64) -> Scope {
    Scope::Pool(Owner::Proc(proc(start)), GpuId(gpu))
}

#[test]
fn parents_come_first_and_go_last() {
    let mut world = World::new();
    let (top, sub) = (DirPath::Proc(7), DirPath::ProcGpu(7, N0));
    world.dirs().want(top, Scope::Proc(proc(1))).unwrap();
    world.dirs().want(sub, pool(1, 1)).unwrap();
    assert_eq!(world.settle(), 2);
    world.dirs().unwant(sub, pool(1, 1));
    world.dirs().unwant(top, Scope::Proc(proc(1)));
    assert_eq!(world.settle(), 2);
    assert!(world.tree.is_empty() && world.dirs().map.len() == 0);
}

#[test]
fn what_was_never_shown_is_not_removed() {
    let mut world = World::new();
    world
        .dirs()
        .want(DirPath::Proc(7), Scope::Proc(proc(1)))
        .unwrap();
    world.dirs().unwant(DirPath::Proc(7), Scope::Proc(proc(1)));
    assert_eq!(world.settle(), 0);
}

#[test]
fn a_reused_pid_gets_new_directories() {
    let mut world = World::new();
    let (top, sub) = (DirPath::Proc(7), DirPath::ProcGpu(7, N0));
    for start in [1, 2] {
        world.dirs().want(top, Scope::Proc(proc(start))).unwrap();
        world.dirs().want(sub, pool(start, 1)).unwrap();
        assert_eq!(world.settle(), if start == 1 { 2 } else { 4 });
    }
    // A late demand of the dead process does not change the path.
    world.dirs().unwant(sub, pool(1, 1));
    assert_eq!(world.settle(), 0);
    assert_eq!(world.tree.len(), 2);
}

proptest! {
    /// Checks for any order of demands and steps that the tree is well formed after each step and
    /// ends as wanted.
    #[test]
    fn the_tree_converges(ops in prop::collection::vec((0u8..4, 1u64..4, 1u64..4, 0u8..4), 0..200)) {
        let mut world = World::new();
        for (op, start, gpu, steps) in ops {
            let index = GpuIndex(u8::try_from(gpu).unwrap());
            let (top, sub) = (DirPath::Proc(7), DirPath::ProcGpu(7, index));
            let owner = Scope::Proc(proc(start));
            let mut dirs = world.dirs();
            match op {
                // As the engine does it: a new owner of the pid clears the old one's GPUs.
                0 if dirs.wanted(top) != Some(owner) => {
                    for n in 1..4 {
                        let path = DirPath::ProcGpu(7, GpuIndex(n));
                        if let Some(old) = dirs.wanted(path) {
                            dirs.unwant(path, old);
                        }
                    }
                    dirs.want(top, owner).unwrap();
                }
                1 if dirs.wanted(top) == Some(owner) => dirs.want(sub, pool(start, gpu)).unwrap(),
                2 => dirs.unwant(sub, pool(start, gpu)),
                3 if (1..4).all(|n| dirs.wanted(DirPath::ProcGpu(7, GpuIndex(n))).is_none()) => dirs.unwant(top, owner),
                _ => {}
            }
            prop_assert!(world.dirs().is_sound());
            for _ in 0..steps {
                world.step();
            }
        }
        world.settle();
        let wanted: BTreeMap<String, Scope> = world.dirs().map.iter().filter_map(|(path, dir)| Some((full(*path), dir.wanted?))).collect();
        prop_assert_eq!(&world.tree, &wanted);
    }
}
