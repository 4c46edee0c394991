// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Adds and removes GPUs, and numbers them by PCI address.

use crate::dirs::DirPath;
use crate::error::Error;
use crate::features::{Feature, FeatureSet};
use crate::gpu::{GpuFacts, PciAddress};
use crate::ids::{GpuId, GpuIndex, Owner, Scope};
use crate::iface::value::CpuList;
use crate::limits;
use crate::records::{Gpu, GpuClock, Pool, WorkerCost};
use crate::state::State;
use crate::table::count;
use crate::topology::Topology;
use crate::units::Sat;

impl State<'_> {
    /// Adds a GPU, with a directory in each group. It may renumber other GPUs.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`] when a GPU with this identifier or address is present;
    /// [`Error::NoSpace`], [`Error::NeedSlots`].
    pub fn gpu_add(&mut self, facts: &GpuFacts, features: FeatureSet) -> Result<GpuId, Error> {
        let same = |gpu: &Gpu| gpu.facts.rm_id == facts.rm_id || gpu.facts.pci == facts.pci;
        if self.gpus.iter().any(|(_, gpu)| same(gpu)) {
            return Err(Error::Exists);
        }
        self.gpus.reserve(1)?;
        // Renumbering needs at most one more directory for each owner.
        let dirs = Sat(self.groups.len()) + Sat(self.procs.len()) + Sat(1);
        self.reserve_places(self.groups.len(), dirs.0)?;

        let id = GpuId(self.sequence.next());
        let gpu = Gpu {
            facts: *facts,
            features,
            // Above all indices in use, so that `renumber` moves it.
            index: GpuIndex(u8::MAX),
            lost_xid: 0,
            worker_cpus: CpuList::EMPTY,
            worker_cost: WorkerCost::default(),
            pressure: None,
            clock: GpuClock::default(),
        };
        self.gpus.insert(id, gpu)?;
        for at in 0..self.groups.len() {
            if let Some(group) = self.groups.key_at(at) {
                self.pools
                    .insert((Owner::Group(group), id), Pool::default())?;
            }
        }
        self.renumber();
        Ok(id)
    }

    /// Sets a GPU's UUID, which the driver reports late.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] when no such GPU is present.
    pub fn gpu_uuid(&mut self, rm_id: u32, uuid: [u8; 16]) -> Result<(), Error> {
        let id = self.gpu_by_rm_id(rm_id).ok_or(Error::Gone)?;
        let gpu = self.gpus.get_mut(&id).ok_or(Error::Gone)?;
        gpu.facts.uuid = Some(uuid);
        Ok(())
    }

    /// Sets what the driver reports when it has started a GPU: chip, TPCs, memory, what a
    /// self-test has tried, and features.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] when no such GPU is present.
    pub fn gpu_learned(&mut self, facts: &GpuFacts, features: FeatureSet) -> Result<(), Error> {
        let id = self.gpu_by_rm_id(facts.rm_id).ok_or(Error::Gone)?;
        let gpu = self.gpus.get_mut(&id).ok_or(Error::Gone)?;
        gpu.facts.boot_42 = facts.boot_42;
        gpu.facts.topology = facts.topology;
        gpu.facts.memory_total = facts.memory_total;
        gpu.facts.tried = facts.tried;
        gpu.features = features;
        self.reserve_quotas(id);
        Ok(())
    }

    /// Returns whether the driver can enforce limits that need a GPU's TPCs, and does not know them
    /// yet.
    pub fn lacks_tpcs(&self, rm_id: u32) -> bool {
        let gpu = self.gpu_by_rm_id(rm_id).and_then(|id| self.gpus.get(&id));
        gpu.is_some_and(|gpu| {
            gpu.features.has(Feature::ChannelOwned) && !gpu.facts.topology.is_known()
        })
    }

    /// Sets a GPU's TPCs, and adds the limits that they make possible.
    pub fn gpu_has_tpcs(&mut self, rm_id: u32, topology: Topology, limits: FeatureSet) {
        let id = self.gpu_by_rm_id(rm_id);
        if let Some(gpu) = id.and_then(|id| self.gpus.get_mut(&id)) {
            gpu.facts.topology = topology;
            gpu.features = gpu.features.and(limits);
        }
    }

    /// Returns the TPCs of a GPU.
    pub fn gpu_topology(&self, gpu: GpuId) -> Topology {
        let gpu = self.gpus.get(&gpu);
        gpu.map_or(Topology::UNKNOWN, |gpu| gpu.facts.topology)
    }

    /// Returns whether launches are split on a GPU where only a self-test has found that exact.
    pub fn splits_tried(&self, gpu: GpuId) -> bool {
        let gpu = self.gpus.get(&gpu);
        gpu.is_some_and(|gpu| gpu.facts.tried && !gpu.facts.is_measured())
    }

    /// Removes a GPU with all limits and charges on it.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] when no such GPU is present.
    pub fn gpu_remove(&mut self, rm_id: u32) -> Result<(), Error> {
        let id = self.gpu_by_rm_id(rm_id).ok_or(Error::Gone)?;
        self.nobody_pauses_on(id);
        let gpu = self.gpus.remove(&id).ok_or(Error::Gone)?;
        self.dirs.unwant(DirPath::Gpu(gpu.index), Scope::Gpu(id));
        let (dirs, procs) = (&mut self.dirs, &mut self.procs);
        self.pools.remove_where(
            |(_, on), _| *on == id,
            |(owner, _), pool| {
                let path = DirPath::of_pool(owner, gpu.index);
                dirs.unwant(path, Scope::Pool(owner, id));
                if let (Owner::Proc(key), true) = (owner, pool.visible) {
                    if let Some(proc) = procs.get_mut(&key) {
                        proc.visible -= 1;
                        if proc.visible.0 == 0 {
                            dirs.unwant(DirPath::Proc(key.tgid), Scope::Proc(key));
                        }
                    }
                }
            },
        );
        self.renumber();
        Ok(())
    }

    pub(super) fn gpu_by_rm_id(&self, rm_id: u32) -> Option<GpuId> {
        let found = |(id, gpu): (&GpuId, &Gpu)| (gpu.facts.rm_id == rm_id).then_some(*id);
        self.gpus.iter().find_map(found)
    }

    /// Returns the GPU of `/dev/nvidiaN`, by its N.
    pub fn gpu_of_minor(&self, minor: u32) -> Option<GpuId> {
        let found = |(id, gpu): (&GpuId, &Gpu)| (gpu.facts.minor == minor).then_some(*id);
        self.gpus.iter().find_map(found)
    }

    /// Returns the GPU with a PCI address.
    pub fn gpu_of_pci(&self, pci: &PciAddress) -> Option<GpuId> {
        let found = |(id, gpu): (&GpuId, &Gpu)| (gpu.facts.pci == *pci).then_some(*id);
        self.gpus.iter().find_map(found)
    }

    /// Returns the GPU with RM's identifier. Without an identifier, returns the only GPU if there
    /// is one.
    pub(super) fn gpu_or_only(&self, rm_id: Option<u64>) -> Option<GpuId> {
        let meant = |gpu: &Gpu| rm_id.is_none_or(|id| id == u64::from(gpu.facts.rm_id));
        let mut found = self.gpus.iter().filter(|(_, gpu)| meant(gpu));
        let (id, _) = found.next()?;
        found.next().is_none().then_some(*id)
    }

    /// Copies RM's identifiers of all GPUs to `out` and returns their number.
    pub fn gpu_rm_ids(&self, out: &mut [u32; limits::GPUS_MAX]) -> usize {
        for (to, (_, gpu)) in out.iter_mut().zip(self.gpus.iter()) {
            *to = gpu.facts.rm_id;
        }
        self.gpus.len()
    }

    /// Numbers the GPUs by PCI address, and moves the directories of those whose number changes.
    fn renumber(&mut self) {
        let mut moved = [false; limits::GPUS_MAX];
        for at in 0..self.gpus.len() {
            let Some(id) = self.gpus.key_at(at) else {
                continue;
            };
            let (Some(old), index) = (self.index_of(id), self.position(id)) else {
                continue;
            };
            if old == index {
                continue;
            }
            self.unwant_all(id, old);
            if let Some(gpu) = self.gpus.get_mut(&id) {
                gpu.index = index;
            }
            if let Some(mark) = moved.get_mut(usize::from(index.0)) {
                *mark = true;
            }
        }
        for at in 0..self.gpus.len() {
            let Some(id) = self.gpus.key_at(at) else {
                continue;
            };
            if let Some(index) = self.index_of(id) {
                if moved.get(usize::from(index.0)) == Some(&true) {
                    self.want_all(id, index);
                }
            }
        }
    }

    pub(super) fn index_of(&self, gpu: GpuId) -> Option<GpuIndex> {
        self.gpus.get(&gpu).map(|gpu| gpu.index)
    }

    /// Returns the number of GPUs with a lower PCI address.
    fn position(&self, id: GpuId) -> GpuIndex {
        let below = match self.gpus.get(&id) {
            Some(me) => {
                let lower = |gpu: &Gpu| gpu.facts.pci < me.facts.pci;
                count(self.gpus.iter().filter(|(_, gpu)| lower(gpu)))
            }
            None => 0,
        };
        GpuIndex(u8::try_from(below).unwrap_or(u8::MAX))
    }

    fn unwant_all(&mut self, gpu: GpuId, index: GpuIndex) {
        self.dirs.unwant(DirPath::Gpu(index), Scope::Gpu(gpu));
        let (pools, dirs) = (&self.pools, &mut self.dirs);
        for ((owner, on), _) in pools.iter() {
            if *on == gpu {
                dirs.unwant(DirPath::of_pool(*owner, index), Scope::Pool(*owner, gpu));
            }
        }
    }

    fn want_all(&mut self, gpu: GpuId, index: GpuIndex) {
        // INVARIANT: `gpu_add` reserved the paths, and a removal needs fewer. So `want` cannot
        // fail.
        let (pools, dirs) = (&self.pools, &mut self.dirs);
        let _ = dirs.want(DirPath::Gpu(index), Scope::Gpu(gpu));
        for ((owner, on), pool) in pools.iter() {
            if *on == gpu && pool.is_shown(*owner) {
                let _ = dirs.want(DirPath::of_pool(*owner, index), Scope::Pool(*owner, gpu));
            }
        }
    }
}
