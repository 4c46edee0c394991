// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Host: the part of the GPU that takes work from channels.

pub mod channel;

use crate::abi::{self, Malformed};
use crate::gsp::objects::{ObjectKey, Objects};
use crate::memory::PhysicalAddress;
use channel::{Channel, ChannelId};
use std::collections::BTreeMap;

/// The class of channels.
pub const HOPPER_CHANNEL_GPFIFO_A: u32 = 0xc86f;
/// The class of channel groups.
pub const KEPLER_CHANNEL_GROUP_A: u32 = 0xa06c;
/// The class of shares of a channel group's context.
pub const FERMI_CONTEXT_SHARE_A: u32 = 0x9067;

/// All channels and the address spaces they run in.
#[derive(Default)]
pub struct Host {
    channels: BTreeMap<ChannelId, Channel>,
    page_directories: BTreeMap<ObjectKey, PhysicalAddress>,
    /// The address space that a channel group or a context share names.
    spaces: BTreeMap<ObjectKey, ObjectKey>,
    /// The address space each client named last, for channels that name none.
    last_space: BTreeMap<u32, ObjectKey>,
}

impl Host {
    /// Forgets all channels and address spaces.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// The channel that a work-submit token names.
    pub fn channel(&self, id: ChannelId) -> Option<&Channel> {
        self.channels.get(&id)
    }

    /// Says where the page directory of address space `space` lies.
    pub fn set_page_directory(&mut self, space: ObjectKey, root: PhysicalAddress) {
        self.page_directories.insert(space, root);
        self.last_space.insert(space.client, space);
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
            HOPPER_CHANNEL_GPFIFO_A => {
                let space = self.space_of_channel(objects, object, parent, params)?;
                let channel = Channel::new(object, space, params)?;
                log::info!(
                    "channel {:?} of client {:#x}, object {:#x}",
                    channel.id(),
                    object.client,
                    object.handle
                );
                self.channels.insert(channel.id(), channel);
            }
            _ => {}
        }
        Ok(())
    }

    /// `object` is gone.
    pub fn free(&mut self, object: ObjectKey) {
        self.channels
            .retain(|_, channel| channel.object() != object);
        self.page_directories.remove(&object);
        self.spaces.remove(&object);
        self.last_space.retain(|_, space| *space != object);
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

    /// The address space of a new channel: its own, its context share's, or
    /// its group's.
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
        let share = abi::get_u32(params, P::hContextShare)?;
        Ok(self
            .spaces
            .get(&key(share))
            .or(self.spaces.get(&key(parent)))
            .copied())
    }

    /// The page directory `channel` runs with, if it has one yet.
    pub fn page_directory(&self, channel: &Channel) -> Option<PhysicalAddress> {
        let space = channel
            .space()
            .or(self.last_space.get(&channel.object().client).copied())?;
        self.page_directories.get(&space).copied()
    }
}
