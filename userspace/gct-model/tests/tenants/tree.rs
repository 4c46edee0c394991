// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sets limits as an administrator does: by writing files of the tree, which the engine keeps.

use gct_core::engine::Terms;
use gct_core::error::Error;
use gct_core::features::{Feature, FeatureSet};
use gct_core::gpu::{Backend, GpuFacts, PciAddress};
use gct_core::host::Host;
use gct_core::ids::{FileId, GpuId, GroupId, Owner, ProcKey, Scope};
use gct_core::iface::{File, Name};
use gct_core::mask::TpcMask;
use gct_core::policy::slo::Verdict;
use gct_core::topology::Topology;
use gct_core::units::Us;

/// The resource manager's number of the GPU.
const RM_ID: u32 = 1;

/// The engine with one GPU.
pub(crate) struct Tree {
    host: Host,
    gpu: GpuId,
    processes: u32,
}

impl Tree {
    pub(crate) fn new(tpcs: usize) -> Self {
        let pci = PciAddress {
            domain: 0,
            bus: 0x40,
            slot: 0,
            function: 0,
        };
        let mut facts = GpuFacts::new(RM_ID, pci, Backend::Simulator);
        facts.topology = Topology::together(TpcMask::first(tpcs));
        let all = Feature::ALL.iter();
        let features = all.fold(FeatureSet::NONE, |set, feature| set.with(*feature));
        let mut host = Host::new([1, 2]);
        let gpu = host.with(|host| host.state().gpu_add(&facts, features));
        Self {
            gpu: gpu.expect("the first GPU"),
            host,
            processes: 0,
        }
    }

    /// Creates a group.
    pub(crate) fn group(&mut self, name: &str) -> GroupId {
        let name = Name::new(name).expect("a name");
        let group = self.host.with(|host| host.state().group_create(&name));
        group.expect("few groups")
    }

    /// Starts a process of a group, which opens the driver.
    pub(crate) fn process(&mut self, group: GroupId) -> FileId {
        self.processes += 1;
        let key = ProcKey {
            tgid: self.processes,
            start_time_ns: 1,
        };
        let opened = self
            .host
            .with(|host| host.state().file_open(key, b"", Some(group)));
        opened.expect("few processes")
    }

    /// Ends a process.
    pub(crate) fn exit(&mut self, file: FileId) {
        self.host.state().file_close(file);
    }

    /// Writes a limit of a group.
    pub(crate) fn write(&mut self, group: GroupId, file: File, text: &str) -> Result<(), Error> {
        let scope = Scope::Pool(Owner::Group(group), self.gpu);
        self.host
            .with(|host| host.state().write(file, scope, text.as_bytes()))
    }

    /// Returns the goal of a group.
    pub(crate) fn goal(&mut self, group: GroupId) -> Option<Us> {
        let settings = self.host.state().settings(Owner::Group(group), self.gpu);
        settings.and_then(|settings| settings.slo_p99)
    }

    /// Takes over what was found for goals. Returns whether others are pressed otherwise now.
    pub(crate) fn press(&mut self, found: &[(GroupId, Verdict)]) -> bool {
        let mut state = self.host.state();
        for (group, verdict) in found {
            state.set_verdict(Owner::Group(*group), self.gpu, *verdict);
        }
        state.press()
    }

    /// Takes over how long the requests of groups are. Returns whether other slices are short now.
    pub(crate) fn order(&mut self, lengths: &[(GroupId, Option<Us>)]) -> bool {
        let mut state = self.host.state();
        for (group, length) in lengths {
            state.set_request_length(Owner::Group(*group), self.gpu, *length);
        }
        state.shorten()
    }

    /// Returns the time slice of a process; `None` for the driver's own.
    pub(crate) fn slice(&mut self, proc: ProcKey) -> Option<Us> {
        self.host.state().effective(proc, self.gpu).timeslice
    }

    /// Returns the limits of a process.
    pub(crate) fn terms(&mut self, file: FileId) -> Terms {
        let terms = self.host.state().launch_terms(file, RM_ID);
        terms.expect("the file is open")
    }
}
