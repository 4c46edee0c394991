// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What work needs: an address space, channel groups, channels, rings, doorbells.

use crate::abi::{self, Handle};
use crate::client::{done, Error};
use crate::gpu::{Gpu, Memory};
use crate::numbers as n;
use crate::sys::{self, Mapping};
use crate::uvm::Uvm;
use std::io;
use std::sync::atomic::{fence, AtomicU32, Ordering};

/// What a channel group runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Graphics and compute.
    Compute,
    /// A copy engine.
    Copy(u32),
}

impl Engine {
    /// `NV2080_ENGINE_TYPE_*`.
    fn number(self) -> u32 {
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
    uvm: Option<Uvm>,
    space: Handle,
    /// Where the driver writes errors of channels.
    notifier: Handle,
    /// One page per channel, in which the ring's positions are.
    userd: Handle,
    channels: AtomicU32,
    /// How often UVM was asked to map memory.
    mapped: AtomicU32,
}

impl Session {
    /// Channels that fit into the memory for their positions.
    pub const CHANNELS_MAX: u32 = 1024;
    /// Bytes of a channel's positions.
    const USERD_BYTES: u32 = 0x200;
    /// Entries of a ring.
    const ENTRIES: u32 = 512;
    /// Any address will do for a ring that nothing is submitted to.
    const NOWHERE: u64 = 0x1_0000;
    /// Where UVM is asked to map memory, and how far apart.
    const UVM_START: u64 = 0x2_0000_0000;
    const UVM_STEP: u64 = 0x20_0000;
    /// The smallest page of a GPU's memory.
    const PAGE: u64 = 0x1000;

    /// Makes an address space and the memory for channels.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn new(gpu: Gpu) -> Result<Self, Error> {
        Self::with_space(gpu, 0, None)
    }

    /// Makes an address space whose page tables are UVM's, as libcuda does.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn with_uvm(gpu: Gpu) -> Result<Self, Error> {
        let uvm = Uvm::open(&gpu)?;
        let session = Self::with_space(gpu, n::SPACE_OF_UVM, Some(uvm))?;
        if let Some(uvm) = &session.uvm {
            uvm.register_space(&session.gpu, session.space)?;
        }
        Ok(session)
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
            mapped: AtomicU32::new(0),
        })
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The address space.
    pub fn space(&self) -> Handle {
        self.space
    }

    /// Makes a channel group.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn group(&self, engine: Engine) -> Result<Handle, Error> {
        self.group_in(self.space, engine)
    }

    /// Makes a channel group in any address space.
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

    /// Makes a context share of a group, as libcuda does for compute.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn context_share(&self, group: Handle) -> Result<Handle, Error> {
        let mut parameters = abi::ContextShare {
            address_space: self.space,
            ..Default::default()
        };
        self.gpu
            .client()
            .alloc(group, n::CONTEXT_SHARE, &mut parameters)
    }

    /// Makes a channel that nothing will be submitted to.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn channel(&self, group: Handle, engine: Engine) -> Result<Handle, Error> {
        self.channel_in(group, 0, engine)
    }

    /// Makes a channel of a context share.
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

    /// Makes a channel whose ring is at an address of the space. Also returns
    /// the number of its page of positions.
    fn channel_at(
        &self,
        group: Handle,
        share: Handle,
        engine: Engine,
        ring_address: u64,
    ) -> Result<(Handle, u32), Error> {
        let number = self.channels.fetch_add(1, Ordering::Relaxed) % Self::CHANNELS_MAX;
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
        let channel = self
            .gpu
            .client()
            .alloc(group, n::CHANNEL, &mut parameters)?;
        Ok((channel, number))
    }

    /// Makes an object of the copy engine on a channel.
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

    /// The number of a channel group on its runlist.
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

    /// Ties a channel to its engine and returns what its doorbell wants.
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

    /// Maps memory into the address space and returns where it is.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn map_on_gpu(&self, memory: Handle, bytes: u64) -> Result<u64, Error> {
        let client = self.gpu.client();
        if let Some(uvm) = &self.uvm {
            let number = self.mapped.fetch_add(1, Ordering::Relaxed);
            let address = Self::UVM_START + Self::UVM_STEP * u64::from(number);
            return uvm.map(&self.gpu, memory, address, bytes).map(|()| address);
        }
        let mut range = abi::VirtualRange {
            address_space: self.space,
            ..Default::default()
        };
        let range = client.alloc(self.gpu.device(), n::VIRTUAL_RANGE, &mut range)?;
        let mut call = abi::MapMemoryDma {
            client: client.handle(),
            device: self.gpu.device(),
            range,
            memory,
            length: bytes,
            ..Default::default()
        };
        let file = client.control_file().file();
        sys::ioctl_plain(file, n::ESCAPE_MAP_DMA, &mut call)?;
        done(call.status).map(|()| call.address)
    }

    /// Makes a channel with a ring, ready to be submitted to. Its group must be
    /// scheduled for work to start.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn queue(&self, group: Handle, engine: Engine) -> Result<Queue, Error> {
        let memory = self.gpu.alloc_memory(Memory::Host, Queue::BYTES)?;
        let address = self.map_on_gpu(memory, Queue::BYTES)?;
        let (channel, number) = self.channel_at(group, 0, engine, address)?;
        let token = self.work_token(channel, engine)?;
        if let Some(uvm) = &self.uvm {
            uvm.register_channel(&self.gpu, channel)?;
        }
        let userd_bytes = bytes(u64::from(Self::CHANNELS_MAX * Self::USERD_BYTES))?;
        Ok(Queue {
            channel,
            token,
            address,
            memory: self
                .gpu
                .map_memory(Memory::Host, memory, bytes(Queue::BYTES)?)?,
            userd: self
                .gpu
                .map_memory(Memory::Device, self.userd, userd_bytes)?,
            positions: bytes(u64::from(number * Self::USERD_BYTES))?,
            doorbell: self.gpu.doorbell(false)?,
            put: 0,
        })
    }
}

/// A length in this process.
fn bytes(bytes: u64) -> Result<usize, Error> {
    let too_long = |_| Error::System(io::Error::from(io::ErrorKind::InvalidInput));
    usize::try_from(bytes).map_err(too_long)
}

/// A channel with its ring, of which this process is the only writer.
#[derive(Debug)]
pub struct Queue {
    channel: Handle,
    token: u32,
    address: u64,
    /// The ring, then the pushes, then semaphores.
    memory: Mapping,
    userd: Mapping,
    /// Where this channel's positions are in `userd`.
    positions: usize,
    doorbell: Mapping,
    put: u32,
}

impl Queue {
    /// Of the memory with ring, pushes and semaphores.
    const BYTES: u64 = 0x1_0000;
    /// Where pushes start, and what each may take.
    const PUSHES: u32 = 0x1000;
    const PUSH_BYTES: u32 = 0x40;
    /// Where semaphores are.
    const SEMAPHORES: u32 = 0xf000;

    /// The channel.
    pub fn channel(&self) -> Handle {
        self.channel
    }

    /// Submits the release of a semaphore, of which there are 64, with a payload.
    pub fn submit_release(&mut self, semaphore: u32, payload: u32) {
        let [low, high] = halves(self.address + u64::from(self.semaphore(semaphore)));
        let words = [
            methods(n::SEM_ADDR_LO, 5),
            low,
            high,
            payload,
            0,
            n::SEM_RELEASE,
        ];
        self.submit(&words);
    }

    /// The value of a semaphore.
    pub fn payload(&self, semaphore: u32) -> u32 {
        self.word(self.semaphore(semaphore)).load(Ordering::Acquire)
    }

    fn semaphore(&self, number: u32) -> u32 {
        Self::SEMAPHORES + (number % 64) * 16
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // CAST: 32 bits fit.
        self.memory.u32(offset as usize)
    }

    /// Writes a push and its entry, then tells the GPU.
    fn submit(&mut self, words: &[u32; 6]) {
        let push = Self::PUSHES + self.put * Self::PUSH_BYTES;
        for (at, word) in (push..).step_by(4).zip(words) {
            self.word(at).store(*word, Ordering::Relaxed);
        }
        // `GP_ENTRY0_GET`, `GP_ENTRY1_GET_HI`, `GP_ENTRY1_LENGTH` in words.
        let [low, high] = halves(self.address + u64::from(push));
        // CAST: a push has a few words.
        let length = words.len() as u32;
        let entry = self.put * 8;
        self.word(entry).store(low, Ordering::Relaxed);
        self.word(entry + 4)
            .store(high | length << 10, Ordering::Relaxed);
        self.put = (self.put + 1) % Session::ENTRIES;
        // The entry must be there before its number, and that before the bell rings.
        fence(Ordering::SeqCst);
        let put = self.positions + usize::from(n::USERD_GP_PUT);
        self.userd.u32(put).store(self.put, Ordering::SeqCst);
        self.ring();
    }

    /// Rings the doorbell.
    pub fn ring(&self) {
        self.doorbell
            .u32(n::DOORBELL.into())
            .store(self.token, Ordering::SeqCst);
    }
}

/// Header of `count` methods from `first` on, each of the next register.
fn methods(first: u16, count: u32) -> u32 {
    /// `DMA_INCR_OPCODE_VALUE`.
    const INCREASING: u32 = 1 << 29;
    INCREASING | (count << 16) | (u32::from(first) >> 2)
}

/// The low and the high half of an address.
fn halves(address: u64) -> [u32; 2] {
    // CAST: each half has 32 bits.
    [address as u32, (address >> 32) as u32]
}
