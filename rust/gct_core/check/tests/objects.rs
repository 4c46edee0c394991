// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Models RM's objects: what its clients create, dup and free, and what the core must have charged.

use super::*;
use crate::engine::HostCharge;
use crate::units::Bytes;

/// An object of the model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Real {
    pub(super) parent: Handle,
    pub(super) class: u32,
    pub(super) gpu: u64,
    pub(super) bytes: u64,
    /// `NV2080_ENGINE_TYPE_*` of a channel group.
    pub(super) engine: u64,
    /// Identifies the resource. Aliases share it.
    pub(super) thing: u64,
}

/// Aliases of one resource, each after the one from which it was dup'ed, and the charged one.
pub(super) struct Thing {
    pub(super) names: Vec<RealKey>,
    pub(super) charged: RealKey,
}

/// Managed memory that was charged.
pub(super) struct Managed {
    pub(super) file: FileId,
    pub(super) gpu: u64,
    bytes: u64,
    ticket: Ticket,
    /// Host memory that evictions took.
    host: Vec<(HostCharge, u64)>,
    is_closed: bool,
}

impl Managed {
    fn is_gone(&self) -> bool {
        self.is_closed && self.host.is_empty()
    }
}

/// The GPU of an object on a GPU that was removed.
pub(super) const NO_GPU: u64 = u64::MAX;

/// Key: file, client, object. A client is its own object.
pub(super) type RealKey = (FileId, Handle, Handle);

impl World {
    /// Adds a resource with one alias.
    pub(super) fn thing(&mut self, key: RealKey) -> u64 {
        let number = u64::from(key.2);
        let names = vec![key];
        let thing = Thing {
            names,
            charged: key,
        };
        self.things.insert(number, thing);
        number
    }

    /// Removes aliases. If the charged one is among them, its successor is charged.
    pub(super) fn forget(&mut self, gone: impl Fn(&RealKey) -> bool) {
        self.real.retain(|key, _| !gone(key));
        self.things.retain(|_, Thing { names, charged }| {
            let at = names.iter().position(|name| name == charged).unwrap();
            names.rotate_left(at);
            names.retain(|name| !gone(name));
            names.first().map(|first| *charged = *first).is_some()
        });
    }

    /// Returns an object that no thread is freeing, chosen by a number.
    pub(super) fn pick(&self, number: usize, class: Option<u32>) -> Option<(RealKey, Real)> {
        let fits = |key: RealKey, real: &Real| {
            class.is_none_or(|class| class == real.class) && !self.is_being_freed(key)
        };
        let fitting: Vec<_> = self
            .real
            .iter()
            .filter(|(key, real)| fits(**key, real))
            .collect();
        let at = number.checked_rem(fitting.len())?;
        Some((*fitting[at].0, *fitting[at].1))
    }

    pub(super) fn is_being_freed(&self, key: RealKey) -> bool {
        self.pending
            .iter()
            .any(|(.., top)| self.is_below(key, *top))
    }

    pub(super) fn client(&mut self, at: usize, status: u64) {
        let Some((file, _)) = self.open.get(at).copied() else {
            return;
        };
        let handle = self.handle();
        let bytes = words(32, &[(8, handle.into()), (12, 0x41), (28, status)]);
        self.store.ioctl(file, escape::ALLOC, &bytes, None);
        if status == 0 {
            let real = Real {
                parent: 0,
                class: 0x41,
                gpu: NO_GPU,
                bytes: 0,
                engine: 0,
                thing: self.thing((file, handle, handle)),
            };
            self.real.insert((file, handle, handle), real);
        }
    }

    fn handle(&mut self) -> Handle {
        self.next += 1;
        self.next
    }

    /// Allocates an object below another, or a device below its client.
    pub(super) fn alloc(&mut self, number: usize, class: u32, gpu: u64, status: u64) {
        let above = match class {
            0x80 => Some(0x41),
            0xa06c | 0x40 | 0x2080 => Some(0x80),
            _ => Some(0xa06c),
        };
        let Some(((file, client, parent), of)) = self.pick(number, above) else {
            return;
        };
        let (handle, bytes) = (self.handle(), u64::from(self.next) * 4096);
        // Compute, and two copy engines.
        let engine = [1, 9, 11][usize::try_from(handle % 3).unwrap()];
        let call = words(
            48,
            &[
                (0, client.into()),
                (4, parent.into()),
                (8, handle.into()),
                (12, class.into()),
                (16, 0x1000),
                (40, status),
            ],
        );
        let present = self.gpus.contains_key(&gpu);
        let (hint, gpu) = match class {
            0x80 => (Some(gpu), if present { gpu } else { NO_GPU }),
            // The right GPU, as in the device's parameters.
            0x2080 => (Some(of.gpu), of.gpu),
            0x40 => (Some(bytes), of.gpu),
            0xa06c => (Some(engine), of.gpu),
            _ => (None, of.gpu),
        };
        self.store.ioctl(file, escape::ALLOC, &call, hint);
        if status == 0 {
            let bytes = if class == 0x40 { bytes } else { 0 };
            let real = Real {
                parent,
                class,
                gpu,
                bytes,
                engine,
                thing: self.thing((file, client, handle)),
            };
            self.real.insert((file, client, handle), real);
        }
    }

    /// Enters a dup of memory or of a channel group. Some events later the ioctl returns.
    pub(super) fn dup(&mut self, from: usize, to: usize, group: bool) {
        let class = if group { 0xa06c } else { 0x40 };
        let (Some(((_, source_client, source), _)), Some(((file, client, parent), _))) =
            (self.pick(from, Some(class)), self.pick(to, Some(0x80)))
        else {
            return;
        };
        let handle = self.handle();
        let bytes = words(
            28,
            &[
                (0, client.into()),
                (4, parent.into()),
                (8, handle.into()),
                (12, source_client.into()),
                (16, source.into()),
            ],
        );
        let call = rmapi::decode(escape::DUP_OBJECT, &bytes).unwrap().unwrap();
        let ticket = self
            .store
            .retry(|store| store.state().call_enter(file, &call))
            .unwrap();
        self.dups.push((file, bytes, ticket));
    }

    /// Returns from the oldest dup, with RM's decision.
    pub(super) fn dup_leave(&mut self, fails: bool) {
        if self.dups.is_empty() {
            return;
        }
        let (file, mut bytes, ticket) = self.dups.remove(0);
        let word = |at: usize| Handle::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let (client, parent, handle) = (word(0), word(4), word(8));
        let (source_client, source) = (word(12), word(16));
        let known = |key: &&RealKey| (key.1, key.2) == (source_client, source);
        let source = self.real.keys().find(known).copied();
        let parent_key = (file, client, parent);
        // A source that is gone cannot be dup'ed.
        let real = source
            .filter(|_| !fails && self.real.contains_key(&parent_key))
            .filter(|_| !self.is_being_freed(parent_key))
            .map(|source| (source, self.real[&source]));
        bytes[24] = u8::from(real.is_none());
        let call = rmapi::decode(escape::DUP_OBJECT, &bytes).unwrap().unwrap();
        self.store
            .retry(|store| store.state().call_leave(file, &call, ticket, None))
            .unwrap();
        if let Some((source, of)) = real {
            let key = (file, client, handle);
            let names = &mut self.things.get_mut(&of.thing).unwrap().names;
            let at = names.iter().position(|name| *name == source).unwrap();
            names.insert(at + 1, key);
            self.real.insert(key, Real { parent, ..of });
        }
    }

    /// Charges managed memory, before or after its allocation.
    pub(super) fn manage(&mut self, at: usize, gpu: u64, exists: bool) {
        let file = self.open.get(at % 8).map(|(file, _)| *file);
        let (Some(file), Some(id)) = (file, self.gpus.get(&gpu).copied()) else {
            return;
        };
        let bytes = u64::from(self.handle()) * 4096;
        let ticket = self.store.retry(|store| match exists {
            true => store
                .state()
                .charge_managed(file, id, Bytes(bytes))
                .map(Some),
            false => store.state().try_charge_managed(file, id, Bytes(bytes)),
        });
        // No limit is set here.
        let ticket = ticket.unwrap().unwrap();
        self.managed.push(Managed {
            file,
            gpu,
            bytes,
            ticket,
            host: vec![],
            is_closed: false,
        });
    }

    /// Uncharges managed memory. What evictions took of the host stays charged.
    pub(super) fn unmanage(&mut self, at: usize) {
        let Some(managed) = self.managed.get_mut(at) else {
            return;
        };
        if !managed.is_closed {
            (managed.bytes, managed.is_closed) = (0, true);
            let (file, ticket) = (managed.file, managed.ticket);
            self.store.state().close_managed(file, ticket);
        }
        self.managed.retain(|managed| !managed.is_gone());
    }

    /// Takes host memory for an eviction.
    pub(super) fn take_host(&mut self, at: usize, bytes: u64) {
        let mut open = self.managed.iter_mut().filter(|managed| !managed.is_closed);
        let Some(managed) = open.nth(at) else {
            return;
        };
        let (file, ticket) = (managed.file, managed.ticket);
        let charge = |store: &mut Store| {
            let mut state = store.state();
            state.charge_host(file, ticket, Bytes(bytes), true)
        };
        // No limit is set here.
        let charge = self.store.retry(charge).unwrap().unwrap();
        let is_charged = managed.gpu != NO_GPU && bytes > 0;
        assert_eq!(charge == HostCharge::NOBODY, !is_charged && bytes > 0);
        managed.host.push((charge, bytes));
    }

    /// Frees some of it.
    pub(super) fn free_host(&mut self, at: usize) {
        let Some(managed) = self.managed.get_mut(at) else {
            return;
        };
        if let Some((charge, bytes)) = managed.host.pop() {
            self.store.state().uncharge_host(charge, Bytes(bytes));
        }
        self.managed.retain(|managed| !managed.is_gone());
    }

    /// Frees and uncharges the managed memory of a file.
    pub(super) fn unmanage_all(&mut self, file: FileId) {
        for at in (0..self.managed.len()).rev() {
            if self.managed[at].file == file {
                for _ in 0..self.managed[at].host.len() {
                    self.free_host(at);
                }
                self.unmanage(at);
            }
        }
    }

    /// Enters a free. Some events later the ioctl returns.
    pub(super) fn free_enter(&mut self, number: usize) {
        let Some((key @ (file, client, handle), _)) = self.pick(number, None) else {
            return;
        };
        // RM frees an object once.
        if self
            .pending
            .iter()
            .any(|(.., other)| self.is_below(key, *other) || self.is_below(*other, key))
        {
            return;
        }
        let bytes = words(16, &[(0, client.into()), (8, handle.into())]);
        let call = rmapi::decode(escape::FREE, &bytes).unwrap().unwrap();
        let ticket = self.store.state().call_enter(file, &call).unwrap();
        self.pending.push((file, bytes, ticket, key));
    }

    pub(super) fn free_leave(&mut self, fails: bool) {
        if self.pending.is_empty() {
            return;
        }
        let (file, mut bytes, ticket, key) = self.pending.remove(0);
        bytes[12] = u8::from(fails);
        let call = rmapi::decode(escape::FREE, &bytes).unwrap().unwrap();
        self.store
            .state()
            .call_leave(file, &call, ticket, None)
            .unwrap();
        if !fails {
            let gone: BTreeSet<_> = self
                .real
                .keys()
                .copied()
                .filter(|below| self.is_below(*below, key))
                .collect();
            self.forget(|key| gone.contains(key));
        }
    }

    /// Returns whether an object is `top` or below it.
    pub(super) fn is_below(&self, key: RealKey, top: RealKey) -> bool {
        let (mut at, mut turns) = (key, 0);
        while at != top {
            let Some(real) = self.real.get(&at) else {
                return false;
            };
            if at.1 == at.2 || turns > 100 {
                return false;
            }
            at.2 = if real.parent == 0 { at.1 } else { real.parent };
            turns += 1;
        }
        true
    }

    /// Checks the usage against the model while no ioctl is running.
    pub(super) fn compare(&mut self) {
        if !self.pending.is_empty() || !self.dups.is_empty() {
            return;
        }
        let procs: BTreeMap<FileId, ProcKey> = self.open.iter().copied().collect();
        let mut expected: BTreeMap<(ProcKey, GpuId), [u64; 5]> = BTreeMap::new();
        for (key @ (file, ..), real) in &self.real {
            let charged = self.things[&real.thing].charged == *key;
            let Some(gpu) = self.gpus.get(&real.gpu).filter(|_| charged) else {
                continue;
            };
            let [groups, channels, bytes, ..] = expected.entry((procs[file], *gpu)).or_default();
            match real.class {
                0xa06c => *groups += 1,
                0xc86f => *channels += 1,
                0x40 => *bytes += real.bytes,
                _ => {}
            }
        }
        for managed in &self.managed {
            if let Some(gpu) = self.gpus.get(&managed.gpu) {
                let expected = expected.entry((procs[&managed.file], *gpu)).or_default();
                expected[3] += managed.bytes;
                expected[4] += managed.host.iter().map(|(_, bytes)| bytes).sum::<u64>();
            }
        }
        expected.retain(|_, sum| *sum != [0; 5]);
        let state = self.store.state();
        let mut found = BTreeMap::new();
        for ((owner, gpu), pool) in state.pools.iter() {
            if let Owner::Proc(proc) = owner {
                let now = pool.usage.now();
                let [memory, managed, host] = [now.memory, now.managed, now.host].map(Bytes::get);
                let sum = [
                    now.channel_groups.into(),
                    now.channels.into(),
                    memory,
                    managed,
                    host,
                ];
                found.insert((*proc, *gpu), sum);
            }
        }
        assert_eq!(found, expected);
    }
}
