// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Host: the part of the GPU that takes work from channels.

pub mod channel;
pub mod execute;
pub mod methods;
mod runlist;
pub mod semaphore;

use crate::abi::{self, Malformed};
use crate::gsp::objects::{ObjectKey, Objects};
use crate::memory::PhysicalAddress;
use channel::{Channel, ChannelId};
use runlist::Runlist;
use std::collections::{BTreeMap, BTreeSet};

/// The class of channels.
pub const HOPPER_CHANNEL_GPFIFO_A: u32 = 0xc86f;
/// An older class of channels, which RM takes for its watchdog.
pub const VOLTA_CHANNEL_GPFIFO_A: u32 = 0xc36f;
/// The class of channel groups.
pub const KEPLER_CHANNEL_GROUP_A: u32 = 0xa06c;
/// The class of address spaces.
pub const FERMI_VASPACE_A: u32 = 0x90f1;
/// The class of devices, each with an address space of its own.
pub const NV01_DEVICE_0: u32 = 0x80;
/// The class of shares of a channel group's context.
pub const FERMI_CONTEXT_SHARE_A: u32 = 0x9067;

/// All channels and the address spaces they run in.
#[derive(Default)]
pub struct Host {
    channels: BTreeMap<ChannelId, Channel>,
    /// Time slices of channel groups that were given one.
    timeslices_ns: BTreeMap<ObjectKey, u64>,
    runlists: BTreeMap<u32, Runlist>,
    page_directories: BTreeMap<ObjectKey, PhysicalAddress>,
    /// The address space that a channel group or a context share names.
    spaces: BTreeMap<ObjectKey, ObjectKey>,
}

impl Host {
    /// Forgets all channels and address spaces.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// The doorbell of channel `id` rings. Returns the channel's handle, if
    /// there is such a channel.
    pub fn ring_doorbell(&mut self, id: ChannelId) -> Option<ObjectKey> {
        let channel = self.channels.get_mut(&id)?;
        channel.ring_doorbell();
        Some(channel.object())
    }

    /// Puts `object`, a channel or a channel group with all its channels of
    /// now, on the runlist, or takes it off. What runs then goes on until it
    /// loses the engine, as was seen on an H200.
    pub fn schedule(&mut self, object: ObjectKey, enable: bool) {
        let runlists = &self.runlists;
        for channel in self.channels.values_mut() {
            if channel.object() == object || channel.group() == object {
                channel.set_scheduled(enable, has_engine(runlists, channel));
            }
        }
    }

    /// Takes a channel off the runlist, with what runs.
    pub fn stop(&mut self, object: ObjectKey) {
        for channel in self.channels.values_mut() {
            if channel.object() == object {
                channel.set_scheduled(false, false);
            }
        }
    }

    /// Lets `channel` stand still, on the runlist or not, until
    /// [`enable`](Self::enable). With `only_scheduling` it begins nothing more,
    /// and what runs goes on until it loses the engine.
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

    /// Lets `channel` go on if it is on the runlist.
    pub fn enable(&mut self, channel: ObjectKey) {
        for known in self.channels.values_mut() {
            if known.object() == channel {
                known.enable();
            }
        }
    }

    /// Gives a channel group a time slice. What is left of a longer one is cut
    /// off.
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

    /// What runs of `group` and may not begin any more stands still.
    fn lose_engine(&mut self, group: ObjectKey) {
        for channel in self.channels.values_mut() {
            if channel.group() == group {
                channel.lose_engine();
            }
        }
    }

    /// Says where the page directory of address space `space` lies.
    pub fn set_page_directory(&mut self, space: ObjectKey, root: PhysicalAddress) {
        self.page_directories.insert(space, root);
    }

    /// Takes the page directory of `space` away.
    pub fn unset_page_directory(&mut self, space: ObjectKey) {
        self.page_directories.remove(&space);
    }

    /// A client allocates `object`: channels, their groups and context shares
    /// matter here.
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
                let handle = abi::get_u32(
                    params,
                    abi::NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS::hVASpace,
                )?;
                self.name_space(objects, object, handle);
            }
            FERMI_CONTEXT_SHARE_A => {
                let handle =
                    abi::get_u32(params, abi::NV_CTXSHARE_ALLOCATION_PARAMETERS::hVASpace)?;
                self.name_space(objects, object, handle);
            }
            HOPPER_CHANNEL_GPFIFO_A | VOLTA_CHANNEL_GPFIFO_A => {
                let space = self.space_of_channel(objects, object, parent, params)?;
                let group = self.group_of_channel(objects, object, parent);
                let channel = Channel::new(object, group, space, params)?;
                log::info!("{:x?} is {object:x?} in {space:x?}", channel.id());
                self.channels.insert(channel.id(), channel);
            }
            _ => {}
        }
        Ok(())
    }

    /// `objects` are gone.
    pub fn free(&mut self, objects: &BTreeSet<ObjectKey>) {
        self.channels
            .retain(|_, channel| !objects.contains(&channel.object()));
        for object in objects {
            self.page_directories.remove(object);
            self.spaces.remove(object);
            self.timeslices_ns.remove(object);
        }
    }

    /// The group that a new channel is in: its parent's, by its first name.
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

    /// The address space of a new channel: its own, its context share's, its
    /// group's, or its device's.
    fn space_of_channel(
        &self,
        objects: &Objects,
        object: ObjectKey,
        parent: u32,
        params: &[u8],
    ) -> Result<Option<ObjectKey>, Malformed> {
        use abi::NV_CHANNEL_ALLOC_PARAMS as P;
        let key = |handle| ObjectKey {
            client: object.client,
            handle,
        };
        let own = abi::get_u32(params, P::hVASpace)?;
        if own != 0 {
            return Ok(Some(objects.origin(key(own))));
        }
        let share = key(abi::get_u32(params, P::hContextShare)?);
        let named = self
            .spaces
            .get(&share)
            .or(self.spaces.get(&key(parent)))
            .copied();
        Ok(named.or_else(|| objects.ancestor(key(parent), NV01_DEVICE_0)))
    }

    /// The page directory `channel` runs with, if it has one yet.
    pub fn page_directory(&self, channel: &Channel) -> Option<PhysicalAddress> {
        self.page_directories.get(&channel.space()?).copied()
    }
}

/// Whether the channel's group has its engine.
fn has_engine(runlists: &BTreeMap<u32, Runlist>, channel: &Channel) -> bool {
    runlists
        .get(&channel.id().runlist)
        .is_some_and(|runlist| runlist.is_used_by(channel.group()))
}

#[cfg(test)]
mod tests;
