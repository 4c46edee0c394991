// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests each rule of the tree with one scenario.

mod admit;
mod ahead;
mod aliases;
mod balance;
mod bounds;
mod clock;
mod conformance;
mod faults;
mod freeing;
mod goals;
mod governed;
mod gpus;
mod groups;
mod host_memory;
mod hostile;
mod kept;
mod objects;
mod overdraft;
mod owned;
mod pageable;
mod paths;
mod pauses;
mod reserve;
mod rounds;
mod schedules;
mod shortage;
mod shortest;
mod tables;
mod unseen;

use crate::dirs::{DirPath, Effect};
use crate::engine::Ticket;
use crate::error::Error;
use crate::failures::Failure;
use crate::features::{Feature, FeatureSet};
use crate::gpu::{Backend, GpuFacts, PciAddress};
use crate::ids::{FileId, GpuId, GpuIndex, GroupId, Owner, ProcKey, Scope};
use crate::iface::value::Format;
use crate::iface::{parse, File, Name};
use crate::limits;
use crate::mask::TpcMask;
use crate::rmapi::{self, escape};
use crate::testing::{words, Store};
use crate::topology::Topology;
use crate::units::{Bytes, Sat, Weight};
use std::format;
use std::string::String;
use std::vec::Vec;

/// One process with one client, and the objects that libcuda allocates:
///
/// ```text
///     file - client 10 - device 20 - channel group 30 - channel 40
///                                  - memory 50
/// ```
const CLIENT: u64 = 10;
const DEVICE: u64 = 20;
const TSG: u64 = 30;
const CHANNEL: u64 = 40;
const MEMORY: u64 = 50;

const APP: ProcKey = ProcKey {
    tgid: 500,
    start_time_ns: 1,
};

fn facts(rm_id: u32, bus: u8) -> GpuFacts {
    let pci = PciAddress {
        domain: 0,
        bus,
        slot: 0,
        function: 0,
    };
    GpuFacts::new(rm_id, pci, Backend::Kernel)
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

struct World {
    store: Store,
    gpu: GpuId,
}

impl World {
    /// Adds one GPU on bus 0x40.
    fn new(features: FeatureSet) -> Self {
        let mut store = Store::new(5);
        let mut facts = facts(1, 0x40);
        if features.has(Feature::TpcQuota) {
            facts.topology = Topology::apart(TpcMask::first(66));
        }
        let gpu = store.retry(|store| store.state().gpu_add(&facts, features));
        Self {
            gpu: gpu.unwrap(),
            store,
        }
    }

    fn group(&mut self, text: &str) -> GroupId {
        let name = name(text);
        self.store
            .retry(|store| store.state().group_create(&name))
            .unwrap()
    }

    /// Adds the group `web`, which takes the processes of `/web`, with one member.
    fn web(&mut self) -> (GroupId, FileId) {
        let group = self.group("web");
        let path = Scope::Group(group);
        assert_eq!(self.write(File::GroupCgroup, path, "/web"), Ok(()));
        let file = self.open(APP, "/web");
        self.cuda(file);
        (group, file)
    }

    fn open(&mut self, proc: ProcKey, cgroup: &str) -> FileId {
        self.store
            .retry(|store| store.state().file_open(proc, cgroup.as_bytes(), None))
            .unwrap()
    }

    fn alloc(&mut self, file: FileId, parent: u64, object: u64, class: u64, hint: Option<u64>) {
        let client = if class == 0x41 { 0 } else { CLIENT };
        let call = words(
            32,
            &[
                (0, client),
                (4, parent),
                (8, object),
                (12, class),
                (16, 0x1000),
            ],
        );
        self.store.ioctl(file, escape::ALLOC, &call, hint);
    }

    /// Allocates the objects of the picture above, with 4 KiB of memory.
    fn cuda(&mut self, file: FileId) {
        self.alloc(file, 0, CLIENT, 0x41, None);
        self.alloc(file, CLIENT, DEVICE, 0x80, Some(1));
        self.alloc(file, DEVICE, TSG, 0xa06c, None);
        self.alloc(file, TSG, CHANNEL, 0xc86f, None);
        self.alloc(file, DEVICE, MEMORY, 0x40, Some(4096));
    }

    fn free(&mut self, file: FileId, object: u64, status: u64) {
        let call = words(16, &[(0, CLIENT), (8, object), (12, status)]);
        self.store.ioctl(file, escape::FREE, &call, None);
    }

    fn read(&mut self, file: File, scope: Scope) -> Result<String, Error> {
        let mut out = String::new();
        self.store.state().show(file, scope, &mut out).map(|()| out)
    }

    fn write(&mut self, file: File, scope: Scope, text: &str) -> Result<(), Error> {
        self.store
            .retry(|store| store.state().write(file, scope, text.as_bytes()))
    }

    fn pool(&self, owner: Owner) -> Scope {
        Scope::Pool(owner, self.gpu)
    }

    fn effects(&mut self) -> Vec<Effect> {
        let mut all = Vec::new();
        while let Some(effect) = self.store.state().next_effect() {
            all.push(effect);
        }
        self.store.check();
        all
    }

    /// Returns the paths that were added since the last call, with their names.
    fn added(&mut self) -> Vec<(DirPath, String)> {
        let add = |effect| match effect {
            Effect::Add { path, name, .. } => Some((path, String::from(name.as_str()))),
            Effect::Remove { .. } => None,
        };
        self.effects().into_iter().filter_map(add).collect()
    }

    fn removed(&mut self) -> Vec<DirPath> {
        let remove = |effect| match effect {
            Effect::Remove { path } => Some(path),
            Effect::Add { .. } => None,
        };
        self.effects().into_iter().filter_map(remove).collect()
    }
}

const N0: GpuIndex = GpuIndex(0);
