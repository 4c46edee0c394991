// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Allocates what work needs: an address space, channel groups, channels, rings, doorbells.

use crate::abi::{self, Handle, Release};
use crate::client::{done, Error};
use crate::gpu::{Gpu, Memory};
use crate::numbers as n;
use crate::sys::{self, Mapping};
use crate::uvm::Uvm;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// The engine of a channel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Graphics and compute.
    Compute,
    /// A copy engine.
    Copy(u32),
}

impl Engine {
    /// Returns the `NV2080_ENGINE_TYPE_*`.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Compute => n::ENGINE_GRAPHICS,
            Self::Copy(number) => n::ENGINE_COPY0 + number,
        }
    }
}

/// A GPU with an address space, and the memory that channels need.
#[derive(Debug)]
pub struct Session {
    gpu: Gpu,
    pub(crate) uvm: Option<Uvm>,
    space: Handle,
    /// Where the driver writes the errors of channels.
    notifier: Handle,
    /// One page per channel, which holds the ring's positions.
    pub(crate) userd: Handle,
    channels: AtomicU32,
    /// Where rings lie.
    pub(crate) rings: Memory,
    /// How many channels' positions a channel's take up.
    step: u32,
    /// Number of mappings requested from UVM.
    mapped: AtomicU32,
}

impl Session {
    /// Maximum number of channels. The memory for their positions has room for as many.
    pub const CHANNELS_MAX: u32 = 1024;
    /// Size of a channel's positions.
    pub(crate) const USERD_BYTES: u32 = 0x200;
    /// Number of entries of a ring.
    pub(crate) const ENTRIES: u32 = 512;
    /// Address of a ring without submissions. Any address will do.
    const NOWHERE: u64 = 0x1_0000;
    /// Address of UVM's first mapping, and distance between mappings.
    const UVM_START: u64 = 0x2_0000_0000;
    const UVM_STEP: u64 = 0x20_0000;
    /// The smallest page of a GPU's memory.
    const PAGE: u64 = 0x1000;

    /// Allocates an address space and the memory for channels.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn new(gpu: Gpu) -> Result<Self, Error> {
        Self::with_space(gpu, 0, None)
    }

    /// Allocates an address space whose page tables belong to UVM, as with libcuda.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn with_uvm(gpu: Gpu) -> Result<Self, Error> {
        Self::of_uvm(gpu, n::SPACE_OF_UVM)
    }

    /// The same, for launches that touch memory which is elsewhere: UVM serves their faults.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn with_faults(gpu: Gpu) -> Result<Self, Error> {
        Self::of_uvm(gpu, n::SPACE_OF_UVM | n::SPACE_WITH_FAULTS)
    }

    fn of_uvm(gpu: Gpu, flags: u32) -> Result<Self, Error> {
        let uvm = Uvm::open(&gpu)?;
        let session = Self::with_space(gpu, flags, Some(uvm))?;
        if let Some(uvm) = &session.uvm {
            uvm.register_space(&session.gpu, session.space)?;
        }
        Ok(session)
    }

    /// Allocates another address space of the device, whose page tables are to be UVM's.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn another_space(&self) -> Result<Handle, Error> {
        let mut parameters = abi::AddressSpace {
            flags: n::SPACE_OF_UVM,
            ..Default::default()
        };
        let gpu = &self.gpu;
        gpu.client()
            .alloc(gpu.device(), n::ADDRESS_SPACE, &mut parameters)
    }

    /// Allocates another address space of the device, whose page tables are the resource manager's.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn another_space_of_rm(&self) -> Result<Handle, Error> {
        let gpu = &self.gpu;
        let mut parameters = abi::AddressSpace::default();
        gpu.client()
            .alloc(gpu.device(), n::ADDRESS_SPACE, &mut parameters)
    }

    fn with_space(gpu: Gpu, flags: u32, uvm: Option<Uvm>) -> Result<Self, Error> {
        let client = gpu.client();
        let mut parameters = abi::AddressSpace {
            flags,
            ..Default::default()
        };
        let space = client.alloc(gpu.device(), n::ADDRESS_SPACE, &mut parameters)?;
        let notifier = gpu.alloc_memory(Memory::Host, Self::PAGE)?;
        let userd_bytes = u64::from(Self::CHANNELS_MAX * Self::USERD_BYTES);
        let userd = gpu.alloc_memory(Memory::Device, userd_bytes)?;
        Ok(Self {
            gpu,
            uvm,
            space,
            notifier,
            userd,
            channels: AtomicU32::new(0),
            rings: Memory::Host,
            step: 1,
            mapped: AtomicU32::new(0),
        })
    }

    /// Maps the error notifier of the session's channels.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn map_notifier(&self) -> Result<Mapping, Error> {
        // CAST: a page.
        let bytes = Self::PAGE as usize;
        self.gpu.map_memory(Memory::Host, self.notifier, bytes)
    }

    /// Has the rings of further queues lie in the GPU's memory, and their positions in pages of
    /// their own, as libcuda has it.
    #[must_use]
    pub fn with_rings_on_device(self) -> Self {
        let rings = Memory::Device;
        // CAST: 8.
        let step = Self::PAGE as u32 / Self::USERD_BYTES;
        Self {
            rings,
            step,
            ..self
        }
    }

    /// Has the positions of further queues lie beside each other again.
    #[must_use]
    pub fn with_positions_together(self) -> Self {
        Self { step: 1, ..self }
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns UVM, if it owns the address space.
    pub fn uvm(&self) -> Option<&Uvm> {
        self.uvm.as_ref()
    }

    /// Closes UVM's files.
    pub fn close_uvm(&mut self) {
        self.uvm = None;
    }

    /// Returns the address space.
    pub fn space(&self) -> Handle {
        self.space
    }

    /// Returns the memory object with the positions of all channels.
    pub fn positions(&self) -> Handle {
        self.userd
    }

    /// Allocates a channel group.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn group(&self, engine: Engine) -> Result<Handle, Error> {
        self.group_in(self.space, engine)
    }

    /// Allocates a channel group in any address space.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn group_in(&self, space: Handle, engine: Engine) -> Result<Handle, Error> {
        let mut parameters = abi::ChannelGroup {
            address_space: space,
            engine: engine.number(),
            ..Default::default()
        };
        let gpu = &self.gpu;
        gpu.client()
            .alloc(gpu.device(), n::CHANNEL_GROUP, &mut parameters)
    }

    /// Allocates a context share of a group, as libcuda does for compute.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn context_share(&self, group: Handle) -> Result<Handle, Error> {
        self.context_share_in(group, self.space)
    }

    /// Allocates a context share of a group in any address space.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn context_share_in(&self, group: Handle, space: Handle) -> Result<Handle, Error> {
        let mut parameters = abi::ContextShare {
            address_space: space,
            flags: n::ASYNCHRONOUS,
            ..Default::default()
        };
        self.gpu
            .client()
            .alloc(group, n::CONTEXT_SHARE, &mut parameters)
    }

    /// Allocates a channel without submissions.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn channel(&self, group: Handle, engine: Engine) -> Result<Handle, Error> {
        self.channel_in(group, 0, engine)
    }

    /// Allocates a channel of a context share.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn channel_in(
        &self,
        group: Handle,
        share: Handle,
        engine: Engine,
    ) -> Result<Handle, Error> {
        self.channel_at(group, share, engine, Self::NOWHERE)
            .map(|(channel, _)| channel)
    }

    /// Allocates a channel without submissions, whose ring lies at an address of the space.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn channel_with_ring(
        &self,
        group: Handle,
        engine: Engine,
        ring: u64,
    ) -> Result<Handle, Error> {
        self.channel_at(group, 0, engine, ring)
            .map(|(channel, _)| channel)
    }

    /// Allocates a channel whose ring lies at an address of the space. Also returns the number of
    /// its page of positions.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn channel_at(
        &self,
        group: Handle,
        share: Handle,
        engine: Engine,
        ring_address: u64,
    ) -> Result<(Handle, u32), Error> {
        let number = self.channels.fetch_add(self.step, Ordering::Relaxed) % Self::CHANNELS_MAX;
        let asked = self.channel_parameters(share, engine, ring_address, number);
        let mut parameters = asked;
        let channel = self
            .gpu
            .client()
            .alloc(group, n::CHANNEL, &mut parameters)?;
        // What the driver writes back is what was asked for, whoever has changed it in between.
        let ring = |asked: &abi::Channel| (asked.ring_address, asked.ring_entries);
        let userd = |asked: &abi::Channel| (asked.userd_memory, asked.userd_offset);
        if (ring(&asked), userd(&asked)) != (ring(&parameters), userd(&parameters)) {
            return Err(Error::System(io::ErrorKind::InvalidData.into()));
        }
        Ok((channel, number))
    }

    /// Returns the parameters of a channel with a page of positions.
    pub(crate) fn channel_parameters(
        &self,
        share: Handle,
        engine: Engine,
        ring_address: u64,
        number: u32,
    ) -> abi::Channel {
        let mut parameters = abi::Channel {
            error: self.notifier,
            ring_address,
            ring_entries: Self::ENTRIES,
            context_share: share,
            engine: engine.number(),
            ..Default::default()
        };
        parameters.userd_memory[0] = self.userd;
        parameters.userd_offset[0] = u64::from(number * Self::USERD_BYTES);
        parameters
    }

    /// Allocates a copy engine object on a channel.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn copy_object(&self, channel: Handle, engine: Engine) -> Result<Handle, Error> {
        let mut parameters = abi::CopyEngine {
            // `NVB0B5_ALLOCATION_PARAMETERS_VERSION_1`: the engine is one of `ENGINE_*`.
            version: 1,
            engine: engine.number(),
        };
        self.gpu.client().alloc(channel, n::COPY, &mut parameters)
    }

    /// Sets a channel group's time slice.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn set_timeslice(&self, group: Handle, us: u64) -> Result<(), Error> {
        let mut parameters = abi::Timeslice { us };
        let client = self.gpu.client();
        client.control(group, n::SET_TIMESLICE, &mut parameters)
    }

    /// Reads a channel group's time slice, in microseconds.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn timeslice(&self, group: Handle) -> Result<u64, Error> {
        let mut parameters = abi::Timeslice::default();
        let client = self.gpu.client();
        client.control(group, n::GET_TIMESLICE, &mut parameters)?;
        Ok(parameters.us)
    }

    /// Returns the number of a channel group on its runlist.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn group_number(&self, group: Handle) -> Result<u32, Error> {
        let mut parameters = abi::GroupInfo::default();
        let client = self.gpu.client();
        client.control(group, n::GROUP_INFO, &mut parameters)?;
        Ok(parameters.number)
    }

    /// Puts a channel group on the runlist, or takes it off.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn schedule(&self, group: Handle, enable: bool) -> Result<(), Error> {
        let mut parameters = abi::Schedule {
            enable: enable.into(),
            skip_submit: 0,
        };
        let client = self.gpu.client();
        client.control(group, n::GROUP_SCHEDULE, &mut parameters)
    }

    /// Disables a channel, or enables it again.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn disable(&self, channel: Handle, disable: bool) -> Result<(), Error> {
        let client = self.gpu.client();
        let mut parameters = abi::DisableChannels {
            disable: disable.into(),
            count: 1,
            ..Default::default()
        };
        parameters.clients[0][0] = client.handle();
        parameters.channels[0][0] = channel;
        client.control(self.gpu.subdevice(), n::DISABLE_CHANNELS, &mut parameters)
    }

    /// Binds a channel to its engine. Returns the token for its doorbell.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn work_token(&self, channel: Handle, engine: Engine) -> Result<u32, Error> {
        let client = self.gpu.client();
        let mut parameters = abi::Bind {
            engine: engine.number(),
        };
        client.control(channel, n::CHANNEL_BIND, &mut parameters)?;
        let mut parameters = abi::WorkToken::default();
        client.control(channel, n::GET_WORK_TOKEN, &mut parameters)?;
        Ok(parameters.token)
    }

    /// Maps memory into the address space. Returns its address.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn map_on_gpu(&self, memory: Handle, bytes: u64) -> Result<u64, Error> {
        if let Some(uvm) = &self.uvm {
            let number = self.mapped.fetch_add(1, Ordering::Relaxed);
            let address = Self::UVM_START + Self::UVM_STEP * u64::from(number);
            return uvm.map(&self.gpu, memory, address, bytes).map(|()| address);
        }
        self.map_dma(memory, bytes, None)
    }

    /// Maps memory at an address of the space.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn map_on_gpu_at(&self, memory: Handle, address: u64, bytes: u64) -> Result<(), Error> {
        match &self.uvm {
            Some(uvm) => uvm.map(&self.gpu, memory, address, bytes),
            None => self.map_dma(memory, bytes, Some(address)).map(|_| ()),
        }
    }

    /// Maps memory in a space of RM's, at an address or anywhere.
    fn map_dma(&self, memory: Handle, bytes: u64, address: Option<u64>) -> Result<u64, Error> {
        self.map_in(self.range()?, memory, bytes, address)
    }

    /// Allocates a range of addresses: all that an address space of RM's has.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn range(&self) -> Result<Handle, Error> {
        let mut range = abi::VirtualRange {
            address_space: self.space,
            ..Default::default()
        };
        let gpu = &self.gpu;
        gpu.client()
            .alloc(gpu.device(), n::VIRTUAL_RANGE, &mut range)
    }

    /// Maps memory in a range, at an address or anywhere. Returns its address.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn map_in(
        &self,
        range: Handle,
        memory: Handle,
        bytes: u64,
        address: Option<u64>,
    ) -> Result<u64, Error> {
        let client = self.gpu.client();
        macro_rules! map {
            ($kind:ident) => {{
                let mut call = abi::$kind {
                    client: client.handle(),
                    device: self.gpu.device(),
                    range,
                    memory,
                    length: bytes,
                    flags: address.map_or(0, |_| n::MAP_DMA_FIXED),
                    address: address.unwrap_or(0),
                    ..Default::default()
                };
                sys::ioctl_plain(client.control_file().file(), n::ESCAPE_MAP_DMA, &mut call)?;
                done(call.status).map(|()| call.address)
            }};
        }
        match client.control_file().release() {
            Release::R580 | Release::R595 => map!(MapMemoryDmaWithKind),
            Release::R535 | Release::R550 => map!(MapMemoryDma),
        }
    }

    /// Unmaps memory that is mapped in a range.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn unmap_in(&self, range: Handle, memory: Handle, address: u64) -> Result<(), Error> {
        let client = self.gpu.client();
        macro_rules! unmap {
            ($kind:ident) => {{
                let mut call = abi::$kind {
                    client: client.handle(),
                    device: self.gpu.device(),
                    range,
                    memory,
                    address,
                    ..Default::default()
                };
                sys::ioctl_plain(client.control_file().file(), n::ESCAPE_UNMAP_DMA, &mut call)?;
                done(call.status)
            }};
        }
        match client.control_file().release() {
            Release::R580 | Release::R595 => unmap!(UnmapMemoryDmaWithSize),
            Release::R535 | Release::R550 => unmap!(UnmapMemoryDma),
        }
    }
}
