// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Maps device memory step by step.

use crate::abi::{self, Handle};
use crate::client::{done, Client, Error};
use crate::gpu::{self, Gpu};
use crate::numbers as n;
use crate::sys::{self, Mapping};
use std::fs::File;

/// A device file that is prepared to map memory.
#[derive(Debug)]
pub struct Mapped {
    file: File,
    length: usize,
    name: Name,
}

/// How the driver knows a mapping.
#[derive(Debug)]
pub struct Name {
    client: Handle,
    device: Handle,
    memory: Handle,
    address: u64,
}

impl Mapped {
    /// Prepares to map memory of a GPU.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn new(gpu: &Gpu, memory: Handle, length: usize) -> Result<Self, Error> {
        let file = gpu::open(gpu.client(), gpu.minor())?;
        Self::with(file, gpu, memory, length)
    }

    /// The same by a device file that is not tied to the client's control file, and does not keep
    /// it open.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn apart(gpu: &Gpu, memory: Handle, length: usize) -> Result<Self, Error> {
        let minor = gpu.minor();
        let file = sys::open_device(&format!("/dev/nvidia{minor}"), minor)?;
        Self::with(file, gpu, memory, length)
    }

    fn with(file: File, gpu: &Gpu, memory: Handle, length: usize) -> Result<Self, Error> {
        let client = gpu.client();
        let address = client.prepare(gpu.device(), memory, length, &file)?;
        let name = Name {
            client: client.handle(),
            device: gpu.device(),
            memory,
            address,
        };
        Ok(Self { file, length, name })
    }

    /// Maps it, as often as it is called.
    ///
    /// # Errors
    ///
    /// Those of the system call.
    pub fn map(&self) -> Result<Mapping, Error> {
        Ok(Mapping::new(&self.file, self.length)?)
    }

    /// Returns the address by which the driver knows the mapping.
    pub fn address(&self) -> u64 {
        self.name.address
    }

    /// Returns the memory.
    pub fn memory(&self) -> Handle {
        self.name.memory
    }

    /// Closes the file.
    pub fn close(self) -> Name {
        self.name
    }

    /// Has the driver end the mapping, by a client's control file.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn unmap(&self, by: &Client) -> Result<(), Error> {
        self.name.unmap(by)
    }

    /// Has the driver know the mapping by another address, by a client's control file.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn rename(&mut self, by: &Client, to: u64) -> Result<(), Error> {
        let mut call = abi::UpdateMapping {
            client: self.name.client,
            device: self.name.device,
            memory: self.name.memory,
            from: self.name.address,
            to,
            ..Default::default()
        };
        // SAFETY: as above.
        unsafe {
            sys::ioctl(
                by.control_file().file(),
                n::ESCAPE_UPDATE_MAPPING,
                &mut call,
            )
        }?;
        done(call.status)?;
        self.name.address = to;
        Ok(())
    }
}

impl Name {
    /// Has the driver end the mapping, by a client's control file.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn unmap(&self, by: &Client) -> Result<(), Error> {
        let mut call = abi::UnmapMemory {
            client: self.client,
            device: self.device,
            memory: self.memory,
            address: self.address,
            ..Default::default()
        };
        // SAFETY: the driver compares the address, and does not follow it.
        unsafe { sys::ioctl(by.control_file().file(), n::ESCAPE_UNMAP, &mut call) }?;
        done(call.status)
    }
}
