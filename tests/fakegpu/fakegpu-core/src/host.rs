// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Models the host unit, which takes work from channels.

pub mod channel;
pub mod execute;
pub mod methods;
mod replay;
mod runlist;
pub mod semaphore;
pub(crate) mod tpcs;

use crate::abi::{self, Malformed};
use crate::gsp::objects::{ObjectKey, Objects};
use crate::memory::PhysicalAddress;
use channel::{Channel, ChannelId, Space};
use runlist::Runlist;
use std::collections::{BTreeMap, BTreeSet};

/// The class of channels.
pub const HOPPER_CHANNEL_GPFIFO_A: u32 = 0xc86f;
/// An older class of channels, which RM uses for its watchdog.
pub const VOLTA_CHANNEL_GPFIFO_A: u32 = 0xc36f;
/// The class of channel groups.
pub const KEPLER_CHANNEL_GROUP_A: u32 = 0xa06c;
/// The class of address spaces.
pub const FERMI_VASPACE_A: u32 = 0x90f1;
/// The class of devices, each with an address space of its own.
pub const NV01_DEVICE_0: u32 = 0x80;
/// The class of context shares: parts of a channel group's context.
pub const FERMI_CONTEXT_SHARE_A: u32 = 0x9067;

/// All channels and their address spaces.
#[derive(Default)]
pub struct Host {
    channels: BTreeMap<ChannelId, Channel>,
    /// Time slices that were set for channel groups.
    timeslices_ns: BTreeMap<ObjectKey, u64>,
    runlists: BTreeMap<u32, Runlist>,
    page_directories: BTreeMap<ObjectKey, PhysicalAddress>,
    /// Page directories of which TLBs have nothing any more.
    unbound: Vec<PhysicalAddress>,
    /// The address space of a channel group or a context share.
    spaces: BTreeMap<ObjectKey, ObjectKey>,
    /// The engines of channel groups.
    engines: BTreeMap<ObjectKey, u32>,
    /// The numbers of context shares.
    subcontexts: BTreeMap<ObjectKey, u32>,
    /// Address spaces whose faults can be replayed.
    replayable: BTreeSet<ObjectKey>,
}

impl Host {
    /// Forgets all channels and address spaces.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Rings the doorbell of channel `id`. Returns the channel's key, if it exists.
    pub fn ring_doorbell(&mut self, id: ChannelId) -> Option<ObjectKey> {
        let channel = self.channels.get_mut(&id)?;
        channel.ring_doorbell();
        Some(channel.object())
    }

    /// Puts `object` on the runlist or takes it off: a channel, or a channel group with all its
    /// present channels. Running launches go on until the group loses the engine, as measured on an
    /// H200.
    pub fn schedule(&mut self, object: ObjectKey, enable: bool) {
        let runlists = &self.runlists;
        for channel in self.channels.values_mut() {
            if channel.object() == object || channel.group() == object {
                channel.set_scheduled(enable, has_engine(runlists, channel));
            }
        }
    }

    /// Takes a channel off the runlist and stops its running launches.
    pub fn stop(&mut self, object: ObjectKey) {
        for channel in self.channels.values_mut() {
            if channel.object() == object {
                channel.set_scheduled(false, false);
            }
        }
    }

    /// Has a channel fetch from another ring. Hardware was seen to do so for an idle channel (H100,
    /// 580.159.04).
    pub fn set_ring(&mut self, channel: ObjectKey, ring: u64, entries: u32) {
        for known in self.channels.values_mut() {
            if known.object() == channel {
                known.set_ring(ring, entries);
            }
        }
    }

    /// Freezes `channel`, on the runlist or not, until [`enable`](Self::enable). With
    /// `only_scheduling` it begins no new work, and running launches go on until the group loses
    /// the engine.
    pub fn disable(&mut self, channel: ObjectKey, only_scheduling: bool) {
        let runlists = &self.runlists;
        for known in self.channels.values_mut() {
            match known.object() == channel {
                true if only_scheduling => known.hold(has_engine(runlists, known)),
                true => known.disable(),
                false => {}
            }
        }
    }

    /// Thaws `channel`. It runs again if it is on the runlist.
    pub fn enable(&mut self, channel: ObjectKey) {
        for known in self.channels.values_mut() {
            if known.object() == channel {
                known.enable();
            }
        }
    }

    /// Sets the time slice of a channel group. The remainder of a longer slice is cut.
    pub fn set_timeslice(&mut self, group: ObjectKey, us: u64) {
        let slice_ns = us.saturating_mul(1000);
        self.timeslices_ns.insert(group, slice_ns);
        for runlist in self.runlists.values_mut() {
            runlist.cut(group, slice_ns);
        }
    }

    /// Ends the turn of a channel group.
    pub fn preempt(&mut self, group: ObjectKey) {
        for runlist in self.runlists.values_mut() {
            runlist.cut(group, 0);
        }
        self.lose_engine(group);
    }

    /// Freezes running launches of `group` whose channels may begin no new work.
    fn lose_engine(&mut self, group: ObjectKey) {
        for channel in self.channels.values_mut() {
            if channel.group() == group {
                channel.lose_engine();
            }
        }
    }

    /// Sets the page directory of address space `space`.
    pub fn set_page_directory(&mut self, space: ObjectKey, root: PhysicalAddress) {
        let before = self.page_directories.insert(space, root);
        if before != Some(root) {
            self.unbound.extend(before);
            self.unbound.push(root);
        }
    }

    /// Removes the page directory of address space `space`.
    pub fn unset_page_directory(&mut self, space: ObjectKey) {
        self.unbound.extend(self.page_directories.remove(&space));
    }

    /// Returns page directories that address spaces have lost, or have got for the first time.
    pub fn take_unbound(&mut self) -> Vec<PhysicalAddress> {
        std::mem::take(&mut self.unbound)
    }

    /// Handles the allocation of `object`. Only channels, channel groups, context shares and
    /// address spaces matter here.
    ///
    /// # Errors
    /// [`Malformed`] if the parameters are too short.
    pub fn alloc(
        &mut self,
        objects: &Objects,
        object: ObjectKey,
        parent: u32,
        class: u32,
        params: &[u8],
    ) -> Result<(), Malformed> {
        match class {
            KEPLER_CHANNEL_GROUP_A => {
                use abi::NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS as P;
                self.name_space(objects, object, abi::get_u32(params, P::hVASpace)?);
                let engine = abi::get_u32(params, P::engineType)?;
                self.engines.insert(object, engine);
            }
            FERMI_CONTEXT_SHARE_A => {
                use abi::NV_CTXSHARE_ALLOCATION_PARAMETERS as P;
                self.name_space(objects, object, abi::get_u32(params, P::hVASpace)?);
                let number = abi::get_u32(params, P::subctxId)?;
                self.subcontexts.insert(object, number);
            }
            FERMI_VASPACE_A => {
                let flags = abi::get_u32(params, abi::NV_VASPACE_ALLOCATION_PARAMETERS::flags)?;
                if flags & abi::NV_VASPACE_ALLOCATION_FLAGS_ENABLE_PAGE_FAULTING != 0 {
                    self.replayable.insert(object);
                }
            }
            HOPPER_CHANNEL_GPFIFO_A | VOLTA_CHANNEL_GPFIFO_A => {
                let space = self.space_of_channel(objects, object, parent, params)?;
                let group = self.group_of_channel(objects, object, parent);
                let engine = match self.engines.get(&group) {
                    Some(engine) => *engine,
                    None => abi::get_u32(params, abi::NV_CHANNEL_ALLOC_PARAMS::engineType)?,
                };
                let channel = Channel::new(object, group, (engine, space), params)?;
                log::info!("{:x?} is {object:x?} in {space:x?}", channel.id());
                self.channels.insert(channel.id(), channel);
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes freed objects.
    pub fn free(&mut self, objects: &BTreeSet<ObjectKey>) {
        self.channels
            .retain(|_, channel| !objects.contains(&channel.object()));
        for object in objects {
            self.unbound.extend(self.page_directories.remove(object));
            self.spaces.remove(object);
            self.timeslices_ns.remove(object);
            self.engines.remove(object);
            self.subcontexts.remove(object);
            self.replayable.remove(object);
        }
    }

    /// Returns the group of a new channel: its parent's, by the parent's first name.
    fn group_of_channel(&self, objects: &Objects, object: ObjectKey, parent: u32) -> ObjectKey {
        let parent = ObjectKey {
            client: object.client,
            handle: parent,
        };
        match objects.get(parent) {
            Some(known) if known.class == KEPLER_CHANNEL_GROUP_A => known.origin,
            _ => object,
        }
    }

    fn name_space(&mut self, objects: &Objects, object: ObjectKey, handle: u32) {
        if handle != 0 {
            self.spaces.insert(
                object,
                objects.origin(ObjectKey {
                    client: object.client,
                    handle,
                }),
            );
        }
    }

    /// Returns the address space of a new channel: its own, its context share's, its group's, or
    /// its device's.
    fn space_of_channel(
        &self,
        objects: &Objects,
        object: ObjectKey,
        parent: u32,
        params: &[u8],
    ) -> Result<Space, Malformed> {
        use abi::NV_CHANNEL_ALLOC_PARAMS as P;
        let key = |handle| ObjectKey {
            client: object.client,
            handle,
        };
        let own = abi::get_u32(params, P::hVASpace)?;
        let share = key(abi::get_u32(params, P::hContextShare)?);
        let named = match own {
            0 => self
                .spaces
                .get(&share)
                .or(self.spaces.get(&key(parent)))
                .copied(),
            own => Some(objects.origin(key(own))),
        };
        let space = named.or_else(|| objects.ancestor(key(parent), NV01_DEVICE_0));
        Ok(Space {
            key: space,
            replayable: space.is_some_and(|space| self.replayable.contains(&space)),
            subcontext: self.subcontexts.get(&share).copied().unwrap_or(0),
        })
    }

    /// Returns the page directory of `channel`, if it has one.
    pub fn page_directory(&self, channel: &Channel) -> Option<PhysicalAddress> {
        self.page_directories.get(&channel.space()?).copied()
    }
}

/// Returns whether the channel's group has the engine.
fn has_engine(runlists: &BTreeMap<u32, Runlist>, channel: &Channel) -> bool {
    runlists
        .get(&channel.id().runlist)
        .is_some_and(|runlist| runlist.is_used_by(channel.group()))
}

#[cfg(test)]
mod tests;
