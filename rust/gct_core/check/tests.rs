// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plays random event sequences in a small world around the core.
//!
//! The world has a filesystem for the directories, and a model of RM whose ioctls are decoded from
//! bytes as the driver's are. After each event the invariants must hold. Whenever no ioctl is
//! running, the usage must be what the model of RM counts.

mod enforced;
mod objects;

use super::*;
use crate::dirs::Effect;
use crate::engine::Ticket;
use crate::error::Error;
use crate::features::{Feature, FeatureSet};
use crate::gpu::{Backend, GpuFacts, PciAddress};
use crate::ids::FileId;
use crate::iface::{File, Name};
use crate::rmapi::{self, escape, Handle};
use crate::testing::{cases, words, Store};
use objects::{Real, RealKey, Thing, NO_GPU};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

struct World {
    store: Store,
    open: Vec<(FileId, ProcKey)>,
    real: BTreeMap<RealKey, Real>,
    tree: BTreeMap<String, Scope>,
    groups: Vec<(GroupId, Name)>,
    gpus: BTreeMap<u64, GpuId>,
    things: BTreeMap<u64, Thing>,
    enforced: enforced::Enforced,
    pending: Vec<(FileId, Vec<u8>, Ticket, RealKey)>,
    dups: Vec<(FileId, Vec<u8>, Ticket)>,
    managed: Vec<objects::Managed>,
    next: Handle,
}

fn proc(n: u8) -> ProcKey {
    // Two processes share each pid, one after the other.
    ProcKey {
        tgid: 100 + u32::from(n % 3),
        start_time_ns: u64::from(n),
    }
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            store: Store::new(seed),
            open: vec![],
            real: BTreeMap::new(),
            tree: BTreeMap::new(),
            groups: vec![],
            gpus: BTreeMap::new(),
            things: BTreeMap::new(),
            enforced: enforced::Enforced::default(),
            pending: vec![],
            dups: vec![],
            managed: vec![],
            next: 1,
        }
    }

    fn gpu_add(&mut self, n: u64) {
        let pci = PciAddress {
            domain: 0,
            bus: u8::try_from(n * 16).unwrap(),
            slot: 0,
            function: 0,
        };
        let facts = GpuFacts::new(u32::try_from(n).unwrap(), pci, Backend::Kernel);
        let features = FeatureSet::NONE
            .with(Feature::GmemCharge)
            .with(Feature::Timeslice)
            .with(Feature::Freeze);
        let added = self
            .store
            .retry(|store| store.state().gpu_add(&facts, features));
        match added {
            Ok(id) => {
                self.gpus.insert(n, id);
            }
            Err(error) => assert_eq!((error, self.gpus.contains_key(&n)), (Error::Exists, true)),
        }
    }

    fn gpu_remove(&mut self, n: u64) {
        let removed = self.store.state().gpu_remove(u32::try_from(n).unwrap());
        assert_eq!(removed.is_ok(), self.gpus.remove(&n).is_some());
        // Its objects are on no GPU now, even if one with the same number is added.
        for real in self.real.values_mut().filter(|real| real.gpu == n) {
            real.gpu = NO_GPU;
        }
        for managed in self.managed.iter_mut().filter(|managed| managed.gpu == n) {
            managed.gpu = NO_GPU;
        }
    }

    fn open(&mut self, n: u8, cgroup: &str) {
        let key = proc(n);
        let by_pid = self.store.members().group_of(key);
        let opened = self
            .store
            .retry(|store| store.state().file_open(key, cgroup.as_bytes(), by_pid));
        self.open.push((opened.unwrap(), key));
    }

    fn close(&mut self, at: usize) {
        if at < self.open.len() {
            let (file, _) = self.open[at];
            let frees = self.pending.iter().all(|(of, ..)| *of != file);
            if frees && self.dups.iter().all(|(of, ..)| *of != file) {
                self.unmanage_all(file);
                self.open.remove(at);
                self.forget(|(of, ..)| *of == file);
                self.store.state().file_close(file);
                self.store.state().file_close(file);
            }
        }
    }

    fn group_create(&mut self, n: u8) {
        let name = Name::new(&format!("g{n}")).unwrap();
        let known = self.groups.iter().any(|(_, other)| *other == name);
        match self.store.retry(|store| store.state().group_create(&name)) {
            Ok(id) => {
                assert!(!known);
                self.groups.push((id, name));
            }
            Err(error) => assert_eq!((error, known), (Error::Exists, true)),
        }
    }

    fn group_remove(&mut self, at: usize) {
        let Some((id, _)) = self.groups.get(at).copied() else {
            return;
        };
        let members = self.store.members().count(id);
        match self.store.state().group_remove(id, members) {
            Ok(()) => {
                self.groups.remove(at);
                assert_eq!(members, 0);
                assert_eq!(self.store.state().group_remove(id, 0), Err(Error::NotFound));
            }
            Err(error) => assert_eq!(error, Error::Busy),
        }
    }

    fn cgroup(&mut self, at: usize, path: &str) {
        let Some((id, _)) = self.groups.get(at).copied() else {
            return;
        };
        let scope = Scope::Group(id);
        let written = self.store.retry(|store| {
            let path = path.as_bytes();
            store.state().write(File::GroupCgroup, scope, path)
        });
        assert!(
            matches!(written, Ok(()) | Err(Error::Exists)),
            "{written:?}"
        );
    }

    fn join(&mut self, n: u8, at: usize) {
        let Some((id, _)) = self.groups.get(at).copied() else {
            return;
        };
        match self.store.retry(|store| store.members().put(proc(n), id)) {
            Err(Error::NoProcess) => return,
            put => put.unwrap(),
        };
        self.store.state().member_moved(proc(n), Some(id)).unwrap();
    }

    /// Carries out the effects as the glue does, one at a time.
    fn effect(&mut self) -> bool {
        let Some(effect) = self.store.state().next_effect() else {
            return false;
        };
        let full = |world: &Self, path: DirPath| -> String {
            let group = |id: GroupId| format!("{id:?}");
            let _ = world;
            match path {
                DirPath::Gpu(n) => format!("gpus/{}", n.0),
                DirPath::Group(id) => group(id),
                DirPath::Proc(tgid) => format!("{tgid}"),
                DirPath::GroupGpu(id, n) => format!("{}/{}", group(id), n.0),
                DirPath::ProcGpu(tgid, n) => format!("{tgid}/{}", n.0),
            }
        };
        match effect {
            Effect::Add { path, scope, name } => {
                assert!(!name.is_empty());
                if let Some(parent) = path.parent() {
                    assert_eq!(self.tree.get(&full(self, parent)).copied(), scope.parent());
                }
                assert_eq!(self.tree.insert(full(self, path), scope), None);
            }
            Effect::Remove { path } => {
                let below = format!("{}/", full(self, path));
                assert!(!self.tree.keys().any(|name| name.starts_with(&below)));
                assert!(self.tree.remove(&full(self, path)).is_some());
            }
        }
        true
    }
}

const PATHS: [&str; 4] = ["none", "/k", "/k/pod", "/other"];

fn play(world: &mut World, (op, a, b, c): (u8, u8, usize, u8)) {
    let status = u64::from(c % 8 == 7);
    match op {
        0 => world.open(
            a % 6,
            ["", "/k/pod/c", "/k", "/elsewhere"][usize::from(c % 4)],
        ),
        1 => world.close(b % 8),
        2 | 3 => world.client(b % 8, status),
        4 | 5 => world.alloc(b, 0x80, u64::from(a % 3), status),
        6 | 7 => world.alloc(b, 0xa06c, 0, status),
        8 | 9 => world.alloc(b, 0xc86f, 0, status),
        10 => world.alloc(b, 0x40, 0, status),
        11 => world.alloc(b, 0x2080, 0, status),
        12 => world.dup(b, usize::from(a), c % 2 == 0),
        27 => world.dup_leave(c % 4 == 0),
        28 | 29 => world.write_limit(b, a, c),
        30 => world.tenant_sets_slice(b, u64::from(a) + 1),
        31 => world.tenant_thaws(b, c % 2 == 0),
        32 => {
            world.send(None);
        }
        33 => world.manage(b, u64::from(a % 3), c % 2 == 0),
        34 => world.unmanage(b),
        35 => world.take_host(b % 4, u64::from(a) * 4096),
        36 => world.free_host(b % 4),
        13 | 14 => world.free_enter(b),
        15 | 16 => world.free_leave(c % 4 == 0),
        17 => world.group_create(a % 4),
        18 => world.group_remove(b % 4),
        19 => world.cgroup(b % 4, PATHS[usize::from(c % 4)]),
        20 => world.join(a % 6, b % 4),
        21 => {
            let (parent, child) = (proc(a % 6), proc(c % 6));
            let _ = world
                .store
                .retry(|store| store.members().on_fork(parent, child));
        }
        22 => {
            world.store.members().on_exit(proc(a % 6));
        }
        // A fork may put a process with open files into a group. The tracepoint cannot change the
        // state, so the next open does.
        23 if c % 32 == 0 => world.gpu_remove(u64::from(a % 3)),
        23 | 24 => world.gpu_add(u64::from(a % 3)),
        _ => {
            for _ in 0..c % 5 {
                world.effect();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(160), ..ProptestConfig::default() })]

    #[test]
    fn random_histories(seed: u64, ops in prop::collection::vec((0u8..37, any::<u8>(), 0usize..64, any::<u8>()), 0..160)) {
        let mut world = World::new(seed);
        for n in 0..3 {
            world.gpu_add(n);
        }
        for op in ops {
            play(&mut world, op);
            world.store.check();
            world.compare();
        }
        world.compare_limits();
        // Everything is closed, and the tables must be empty.
        while !world.dups.is_empty() {
            world.dup_leave(false);
        }
        while !world.pending.is_empty() {
            world.free_leave(false);
        }
        while !world.open.is_empty() {
            world.close(0);
        }
        for n in 0..6 {
            world.store.members().on_exit(proc(n));
        }
        while !world.groups.is_empty() {
            world.group_remove(0);
        }
        for n in 0..3 {
            if world.gpus.contains_key(&n) {
                world.gpu_remove(n);
            }
        }
        while world.effect() {}
        world.store.check();
        prop_assert!(world.tree.is_empty());
        let state = world.store.state();
        let left = (state.gpus.len(), state.groups.len(), state.procs.len(), state.pools.len(), state.files.len(), state.objects.iter().count());
        prop_assert_eq!(left, (0, 0, 0, 0, 0, 0));
        prop_assert_eq!((state.failures.charge.0, state.failures.limit.0), (0, 0));
    }
}
