// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opens a GPU for a client, and allocates memory.

use crate::abi::{self, Handle, Release};
use crate::client::{done, Client, Error};
use crate::numbers as n;
use crate::sys::{self, Mapping};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A GPU that a client has opened.
#[derive(Debug)]
pub struct Gpu {
    pub(crate) client: Client,
    pub(crate) minor: u32,
    pub(crate) gpu_id: u32,
    /// Keeps the GPU initialised.
    pub(crate) file: File,
    pub(crate) device: Handle,
    pub(crate) subdevice: Handle,
}

/// The location of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// On the GPU.
    Device,
    /// In the host, coherent.
    Host,
}

impl Memory {
    /// `NVOS32_ATTR_LOCATION_PCI`, with `_COHERENCY_CACHED`.
    const ATTR_HOST: u32 = (1 << 25) | (1 << 29);

    fn class(self) -> u32 {
        match self {
            Self::Device => n::DEVICE_MEMORY,
            Self::Host => n::HOST_MEMORY,
        }
    }

    fn attr(self) -> u32 {
        match self {
            Self::Device => 0,
            Self::Host => Self::ATTR_HOST,
        }
    }
}

impl Gpu {
    /// Opens `/dev/nvidiaN`, which initialises the GPU, and allocates its device and subdevice.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn open(client: &Client, minor: u32) -> Result<Self, Error> {
        let cards = client.control_file().gpus()?;
        let card = cards.iter().find(|(found, _)| *found == minor);
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let (_, gpu_id) = *card.ok_or_else(missing)?;
        let file = open(client, minor)?;
        let mut info = abi::IdInfo {
            gpu_id,
            ..Default::default()
        };
        client.control(client.handle(), n::GET_ID_INFO, &mut info)?;
        let mut parameters = abi::Device {
            device_id: info.device_instance,
            client_share: client.handle(),
            ..Default::default()
        };
        let device = client.alloc(client.handle(), n::DEVICE, &mut parameters)?;
        let mut parameters = abi::Subdevice {
            subdevice_id: info.subdevice_instance,
        };
        let subdevice = client.alloc(device, n::SUBDEVICE, &mut parameters)?;
        Ok(Self {
            client: client.clone(),
            minor,
            gpu_id,
            file,
            device,
            subdevice,
        })
    }

    /// Returns the client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the N of `/dev/nvidiaN`.
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// Returns the device.
    pub fn device(&self) -> Handle {
        self.device
    }

    /// Returns the subdevice.
    pub fn subdevice(&self) -> Handle {
        self.subdevice
    }

    /// Returns whether the subdevice is on the intended GPU.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn is_the_one(&self) -> Result<bool, Error> {
        let mut id = abi::GpuId::default();
        self.client
            .control(self.subdevice, n::GET_GPU_ID, &mut id)?;
        Ok(id.gpu_id == self.gpu_id)
    }

    /// Asks for facts about the memory, `n::MEMORY_*` and `n::HEAP_*`.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn memory_facts<const N: usize>(&self, indices: [u32; N]) -> Result<[u32; N], Error> {
        let mut call = abi::MemoryInfo::default();
        for (pair, index) in call.list.as_flattened_mut().iter_mut().zip(indices) {
            *pair = [index, 0];
            call.count += 1;
        }
        self.client
            .control(self.subdevice, n::GET_MEMORY_INFO, &mut call)?;
        let mut facts = [0; N];
        for (fact, [_, data]) in facts.iter_mut().zip(call.list.as_flattened()) {
            *fact = *data;
        }
        Ok(facts)
    }

    /// Returns the GPU's UUID.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn uuid(&self) -> Result<[u8; 16], Error> {
        let mut call = abi::Uuid {
            gpu_id: self.gpu_id,
            flags: n::UUID_BINARY,
            ..Default::default()
        };
        self.client
            .control(self.client.handle(), n::GET_UUID, &mut call)?;
        Ok(call.uuid[0])
    }

    /// Allocates memory.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn alloc_memory(&self, place: Memory, bytes: u64) -> Result<Handle, Error> {
        let memory = abi::Memory {
            owner: self.client.handle(),
            attr: place.attr(),
            size: bytes,
            ..Default::default()
        };
        match self.client.control_file().release() {
            Release::R535 => {
                let mut parameters = memory;
                self.client
                    .alloc(self.device, place.class(), &mut parameters)
            }
            Release::R550 | Release::R580 | Release::R595 => {
                let mut parameters = abi::MemoryWithNode {
                    memory,
                    ..Default::default()
                };
                self.client
                    .alloc(self.device, place.class(), &mut parameters)
            }
        }
    }

    /// Allocates memory by the old interface, in which the driver chooses the handle.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn alloc_memory_vid_heap(&self, place: Memory, bytes: u64) -> Result<Handle, Error> {
        let mut call = abi::VidHeap {
            root: self.client.handle(),
            parent: self.device,
            function: n::VID_HEAP_ALLOC_SIZE,
            owner: self.client.handle(),
            attr: place.attr(),
            size: bytes,
            ..Default::default()
        };
        self.vid_heap(&mut call).map(|()| call.memory)
    }

    /// Frees memory by the old interface.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn free_memory_vid_heap(&self, memory: Handle) -> Result<(), Error> {
        let mut call = abi::VidHeap {
            root: self.client.handle(),
            parent: self.device,
            function: n::VID_HEAP_FREE,
            owner: self.client.handle(),
            memory,
            ..Default::default()
        };
        self.vid_heap(&mut call)
    }

    fn vid_heap(&self, call: &mut abi::VidHeap) -> Result<(), Error> {
        let file = self.client.control_file().file();
        // SAFETY: these functions follow no address. The one in the structure is only output.
        unsafe { sys::ioctl(file, n::ESCAPE_VID_HEAP, call) }?;
        done(call.status)
    }

    /// Maps memory of this device into this process.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn map_memory(
        &self,
        place: Memory,
        memory: Handle,
        bytes: usize,
    ) -> Result<Mapping, Error> {
        let file = match place {
            Memory::Device => open(&self.client, self.minor)?,
            Memory::Host => sys::open_device("/dev/nvidiactl", 255)?,
        };
        self.client.map(self.device, memory, bytes, &file)
    }

    /// Allocates a doorbell page and maps it.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn doorbell(&self, in_bar1: bool) -> Result<Mapping, Error> {
        /// Size of the page.
        const BYTES: usize = 0x1_0000;
        let mut parameters = abi::Usermode {
            in_bar1: in_bar1.into(),
            is_privileged: 0,
        };
        let page = self
            .client
            .alloc(self.subdevice, n::USERMODE, &mut parameters)?;
        let file = open(&self.client, self.minor)?;
        self.client.map(self.subdevice, page, BYTES, &file)
    }
}

/// Opens a GPU's device and ties it to the client's control file.
pub(crate) fn open(client: &Client, minor: u32) -> Result<File, Error> {
    let file = sys::open_device(&format!("/dev/nvidia{minor}"), minor)?;
    let mut call = abi::RegisterFd {
        control: client.control_file().file().as_raw_fd(),
    };
    sys::ioctl_plain(&file, n::ESCAPE_REGISTER_FD, &mut call)?;
    Ok(file)
}
