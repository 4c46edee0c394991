// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shadows what a new channel consists of, or leaves the channel alone.

use super::{Doorbell, Mapping, Ring, Session};
use crate::channel::Channel;
use crate::memory::{Heap, Run};
use crate::places::{DOORBELLS_MAX, DOORBELL_BYTES};
use crate::rm::Object;
use crate::shadow::{covers, Shadow};
use crate::stats::STATS;
use core::sync::atomic::Ordering;
use gct_core::lane::scratch::Scratch;
use gct_core::lane::split::FRAME_WORDS;
use gct_core::rmapi::channel::ChannelParams;
use gct_core::unmanaged::Reason;

impl Session {
    /// Manages a new channel, or counts that it is left alone, and returns why.
    pub(super) fn adopt(
        &mut self,
        object: Object,
        class: u32,
        params: ChannelParams,
    ) -> Option<Reason> {
        match self.shadow_channel(object, class, params) {
            Ok(channel) => {
                self.channels.push(channel);
                STATS.channels.fetch_add(1, Ordering::Relaxed);
                None
            }
            Err(reason) => {
                STATS.count_unmanaged(reason);
                self.leave_alone(object, &params);
                Some(reason)
            }
        }
    }

    /// Returns the mapping of a channel's USERD, and the USERD's address.
    pub(super) fn userd(
        &self,
        object: Object,
        params: &ChannelParams,
    ) -> Option<(&Mapping, usize)> {
        let of = |m: &&Mapping| {
            (m.memory.client, m.memory.handle) == (object.client, params.userd_memory)
        };
        let mapping = self.mappings.iter().find(of)?;
        let offset = params.userd_offset.checked_sub(mapping.offset)?;
        let userd = mapping.addr.checked_add(usize::try_from(offset).ok()?)?;
        Some((mapping, userd))
    }

    /// Shadows the channel's ring, USERD and doorbells as far as they are not. Nothing of a channel
    /// is replaced before it is known that all of it can be. Returns the reason if the channel must
    /// be left alone.
    pub(super) fn shadow_channel(
        &mut self,
        object: Object,
        class: u32,
        params: ChannelParams,
    ) -> Result<Channel, Reason> {
        let class = u16::try_from(class).map_err(|_| Reason::UnknownClass)?;
        let (mapping, userd) = self.userd(object, &params).ok_or(Reason::UnmappedUserd)?;
        let gpu = mapping.gpu.ok_or(Reason::SystemMemory)?;
        let (addr, len) = (mapping.addr, mapping.len);
        if !Channel::fits(&params, userd, |at, size| covers((addr, len), at, size)) {
            return Err(Reason::UnusualLayout);
        }
        // Doorbells first: otherwise the tenant could ring past the library.
        self.shadow_doorbells(object.client, gpu)?;
        if !self.rings.iter().any(|r| r.shadow.contains(userd)) {
            // SAFETY: the mapping was made by this process's `mmap` and is whole; no channel
            // lives in it yet, so neither the GPU nor another thread of libcuda uses it.
            let shadow = unsafe { Shadow::new(addr, len, true) }.ok_or(Reason::MoveRefused)?;
            let scratch = scratch_of(&shadow);
            self.rings.push(Ring {
                shadow,
                scratch,
                gpu,
            });
        }
        let ring = self.rings.iter_mut().find(|r| r.shadow.contains(userd));
        let ring = ring.ok_or(Reason::UnusualLayout)?;
        // An earlier channel at this USERD was freed together with an object above it.
        self.channels.retain(|c| !c.is_at(userd));
        let channel = Channel::new(object, class, params, userd, &ring.shadow)
            .ok_or(Reason::UnusualLayout)?;
        if channel.reaches(ring.shadow.upper_half().0) {
            ring.scratch = None;
        }
        Ok(channel)
    }

    /// Shadows the doorbell pages by which a client rings a GPU, as far as they are not. Fails if
    /// there is none, or one that the fault handler could not know. A client without a page rings
    /// by those of the process's other clients.
    fn shadow_doorbells(&mut self, client: u32, gpu: u32) -> Result<(), Reason> {
        let Self {
            nodes,
            mappings,
            doorbells,
            alone,
            ..
        } = self;
        let on_gpu = |m: &&Mapping| m.gpu == Some(gpu) && Self::is_usermode(nodes, m.memory);
        let has_own = mappings
            .iter()
            .filter(on_gpu)
            .any(|m| m.memory.client == client);
        let used = |m: &&Mapping| !has_own || m.memory.client == client;
        for m in mappings.iter().filter(on_gpu).filter(used) {
            if doorbells.iter().any(|d| d.shadow.contains(m.addr)) {
                continue;
            }
            if m.len != DOORBELL_BYTES {
                return Err(Reason::UnusualDoorbell);
            }
            if doorbells.len() >= DOORBELLS_MAX {
                return Err(Reason::TooManyDoorbells);
            }
            let shadow = if alone.rings_by(m.memory.client) {
                Shadow::of_tenant(m.addr, m.len)
            } else {
                // SAFETY: a whole mapping of this process; a doorbell page cannot be read, so
                // nothing is copied, and no channel of it has a token yet.
                unsafe { Shadow::new(m.addr, m.len, false) }.ok_or(Reason::MoveRefused)?
            };
            doorbells.push(Doorbell {
                shadow,
                client: m.memory.client,
                gpu,
            });
        }
        let rings = doorbells.iter().any(|d| d.gpu == gpu);
        rings.then_some(()).ok_or(Reason::NoDoorbell)
    }

    /// Restores the real doorbells of a client with a channel that is not managed: only its own
    /// doorbell announces that channel's work. The client's managed channels are polled. If the
    /// client has no known doorbell, all clients get theirs back.
    fn leave_alone(&mut self, object: Object, params: &ChannelParams) {
        let Self {
            nodes,
            mappings,
            doorbells,
            alone,
            ..
        } = self;
        let own = |m: &Mapping| m.memory.client == object.client;
        let has_own = mappings
            .iter()
            .any(|m| own(m) && Self::is_usermode(nodes, m.memory));
        for doorbell in doorbells {
            let rings = !has_own || doorbell.client == object.client;
            if rings && !doorbell.shadow.restore() {
                // The unmanaged channel would hang for good. A clear end is better.
                std::process::abort();
            }
        }
        alone.client(object.client);
        // Its ring may lie elsewhere while its USERD is beside those of managed channels.
        let userd = self.userd(object, params).map(|(_, userd)| userd);
        let shadowed = |userd: &usize| self.rings.iter().any(|r| r.shadow.contains(*userd));
        if let Some(userd) = userd.filter(shadowed) {
            self.alone.forward(object, userd);
        }
    }
}

/// Makes the upper half of a ring allocation scratch. libcuda maps its rings and USERDs from one
/// allocation of 2 MiB and uses only its beginning: 12 KiB for each channel. CPU and GPU see it at
/// the same virtual address.
pub(crate) fn scratch_of(shadow: &Shadow) -> Option<Scratch<Heap, Run>> {
    let (tenant, real, len) = shadow.upper_half();
    let words = len / 4;
    // SAFETY: the real mapping of whole pages, which is unmapped after its scratch has gone.
    let view = unsafe { Run::new(real, words) };
    let frames = vec![None; Scratch::<Heap, Run>::slots(words, FRAME_WORDS)];
    // CAST: widening.
    Scratch::new(tenant as u64, view, words, FRAME_WORDS, frames)
}
