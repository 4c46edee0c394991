// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opens UVM as far as libcuda needs it to run work: as owner of the page tables.

use crate::abi::{self, Handle, Release};
use crate::client::{done, Client, Error};
use crate::gpu::Gpu;
use crate::layout::Plain;
use crate::numbers as n;
use crate::sys::{self, Mapping};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

/// The device node.
const NODE: &str = "/dev/nvidia-uvm";

/// An open UVM file, with one GPU.
#[derive(Debug)]
pub struct Uvm {
    file: File,
    /// Closing it tells UVM that the process has gone.
    process: File,
    uuid: [u8; 16],
    release: Release,
}

impl Uvm {
    /// Where UVM maps the contexts of compute channels.
    const CONTEXTS: u64 = 0x10_0000_0000;
    const CONTEXTS_BYTES: u64 = 0x4000_0000;
    /// The CPU among processors: `NV_PROCESSOR_UUID_CPU_DEFAULT`, `nvCpuUuid.c`.
    const CPU: [u8; 16] = [
        0xa6, 0x5e, 0x0f, 0x4e, 0xd7, 0xd4, 0x7b, 0xa2, 0x50, 0x47, 0x41, 0x2c, 0x14, 0x2a, 0x77,
        0x73,
    ];

    /// Opens UVM, whose node must exist, and registers a GPU.
    ///
    /// # Errors
    ///
    /// Those of the driver; [`Error::Version`] if a structure is not known.
    pub fn open(gpu: &Gpu) -> Result<Self, Error> {
        let control = gpu.client().control_file();
        if control.release() == Release::R550 {
            return Err(Error::Version("UVM of another release".into()));
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true);
        let uvm = Self {
            file: options.open(NODE)?,
            process: options.open(NODE)?,
            uuid: gpu.uuid()?,
            release: control.release(),
        };
        let mut call = abi::UvmInitialize::default();
        uvm.call(n::UVM_INITIALIZE, &mut call)?;
        done(call.status)?;
        let mut call = abi::UvmMmInitialize {
            file: uvm.file.as_raw_fd(),
            status: 0,
        };
        // SAFETY: the structure of this number holds no address.
        unsafe { sys::ioctl_number(&uvm.process, n::UVM_MM_INITIALIZE.into(), &mut call) }?;
        done(call.status)?;
        let mut call = abi::UvmRegisterGpu {
            uuid: uvm.uuid,
            control: control.file().as_raw_fd(),
            client: gpu.client().handle(),
            ..Default::default()
        };
        uvm.call(n::UVM_REGISTER_GPU, &mut call)?;
        done(call.status).map(|()| uvm)
    }

    fn call<T: Plain>(&self, number: u32, argument: &mut T) -> Result<(), Error> {
        // SAFETY: UVM follows no address in these structures as a pointer: bases and lengths
        // describe GPU mappings.
        Ok(unsafe { sys::ioctl_number(&self.file, number.into(), argument) }?)
    }

    /// Makes UVM the owner of an address space's page tables.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn register_space(&self, gpu: &Gpu, space: Handle) -> Result<(), Error> {
        let mut call = abi::UvmRegisterSpace {
            uuid: self.uuid,
            control: gpu.client().control_file().file().as_raw_fd(),
            client: gpu.client().handle(),
            space,
            status: 0,
        };
        self.call(n::UVM_REGISTER_SPACE, &mut call)?;
        done(call.status)
    }

    /// Gives an address space's page tables back.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn unregister_space(&self) -> Result<(), Error> {
        let mut call = abi::UvmUnregisterSpace {
            uuid: self.uuid,
            status: 0,
        };
        self.call(n::UVM_UNREGISTER_SPACE, &mut call)?;
        done(call.status)
    }

    /// Unregisters the GPU, and the address space with it.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn unregister_gpu(&self) -> Result<(), Error> {
        let mut call = abi::UvmUnregisterGpu {
            uuid: self.uuid,
            status: 0,
        };
        self.call(n::UVM_UNREGISTER_GPU, &mut call)?;
        done(call.status)
    }

    /// Gives addresses back that were reserved together.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn free(&self, base: u64, length: u64) -> Result<(), Error> {
        macro_rules! free {
            ($params:ident, $($length:ident)?) => {{
                let mut call = abi::$params {
                    base,
                    $($length,)?
                    ..Default::default()
                };
                self.call(n::UVM_FREE, &mut call)?;
                done(call.status)
            }};
        }
        match self.release {
            Release::R595 => free!(UvmFreeAll,),
            Release::R535 | Release::R550 | Release::R580 => free!(UvmFree, length),
        }
    }

    /// Unmaps what was mapped at addresses.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn unmap(&self, base: u64, length: u64) -> Result<(), Error> {
        let mut call = abi::UvmUnmapExternal {
            base,
            length,
            uuid: self.uuid,
            ..Default::default()
        };
        self.call(n::UVM_UNMAP_EXTERNAL, &mut call)?;
        done(call.status)
    }

    /// Registers a channel, which must be bound to its engine.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn register_channel(&self, gpu: &Gpu, channel: Handle) -> Result<(), Error> {
        let mut call = abi::UvmRegisterChannel {
            uuid: self.uuid,
            control: gpu.client().control_file().file().as_raw_fd(),
            client: gpu.client().handle(),
            channel,
            base: Self::CONTEXTS,
            length: Self::CONTEXTS_BYTES,
            ..Default::default()
        };
        self.call(n::UVM_REGISTER_CHANNEL, &mut call)?;
        done(call.status)
    }

    /// Makes a range of managed memory at an address that the caller chooses.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn managed(&self, address: usize, length: usize) -> Result<Mapping, Error> {
        Ok(Mapping::at(&self.file, address, length)?)
    }

    /// Moves managed memory to the GPU.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn migrate(&self, base: usize, length: usize) -> Result<(), Error> {
        self.migrate_to(self.uuid, base, length)
    }

    /// Moves managed memory to the CPU.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn migrate_to_cpu(&self, base: usize, length: usize) -> Result<(), Error> {
        self.migrate_to(Self::CPU, base, length)
    }

    fn migrate_to(&self, destination: [u8; 16], base: usize, length: usize) -> Result<(), Error> {
        let mut call = abi::UvmMigrate {
            // CAST: an address and a size of this process.
            base: base as u64,
            length: length as u64,
            destination,
            ..Default::default()
        };
        self.call(n::UVM_MIGRATE, &mut call)?;
        done(call.status)
    }

    /// Has managed memory stay on the CPU: the GPU maps it where it is.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn prefer_cpu(&self, base: usize, length: usize) -> Result<(), Error> {
        macro_rules! prefer {
            ($kind:ident $($more:tt)*) => {{
                let mut call = abi::$kind {
                    // CAST: an address and a size of this process.
                    base: base as u64,
                    length: length as u64,
                    location: Self::CPU,
                    $($more)*
                    ..Default::default()
                };
                self.call(n::UVM_PREFER, &mut call)?;
                done(call.status)
            }};
        }
        match self.release {
            // Any node.
            Release::R580 | Release::R595 => prefer!(UvmPreferredLocationWithNode node: -1,),
            Release::R535 | Release::R550 => prefer!(UvmPreferredLocation),
        }
    }

    /// Runs NVIDIA's test that flushes the buffer of faults, so many times.
    ///
    /// # Errors
    ///
    /// Those of the driver, without `uvm_enable_builtin_tests=1`.
    pub fn flush_faults(&self, iterations: u64) -> Result<(), Error> {
        let mut call = abi::UvmTestFlush {
            iterations,
            ..Default::default()
        };
        self.call(n::UVM_TEST_FLUSH, &mut call)?;
        done(call.status)
    }

    /// Runs NVIDIA's test that waits until no fault is left in the buffer.
    ///
    /// # Errors
    ///
    /// As [`flush_faults`](Self::flush_faults).
    pub fn drain_faults(&self, timeout_ns: u64) -> Result<(), Error> {
        let mut call = abi::UvmTestDrain {
            uuid: self.uuid,
            timeout_ns,
            ..Default::default()
        };
        self.call(n::UVM_TEST_DRAIN, &mut call)?;
        done(call.status)
    }

    /// Runs NVIDIA's test that looks up whose fault one of a channel's subcontext would be. The
    /// channel is registered with this file.
    ///
    /// # Errors
    ///
    /// As [`flush_faults`](Self::flush_faults); refuses if it would not be one of `space`.
    pub fn check_channel(
        &self,
        gpu: &Gpu,
        channel: Handle,
        subcontext: u32,
        space: &Self,
    ) -> Result<(), Error> {
        let mut call = abi::UvmTestChannel {
            uuid: self.uuid,
            control: gpu.client().control_file().file().as_raw_fd(),
            client: gpu.client().handle(),
            channel,
            subcontext,
            space: space.file.as_raw_fd(),
            ..Default::default()
        };
        self.call(n::UVM_TEST_CHANNEL, &mut call)?;
        done(call.status)
    }

    /// Runs NVIDIA's test that has faults fetch pages around them along, or not.
    ///
    /// # Errors
    ///
    /// As [`flush_faults`](Self::flush_faults).
    pub fn prefetch(&self, enable: bool) -> Result<(), Error> {
        let mut call = abi::UvmTestPrefetch {
            policy: u32::from(!enable),
            status: 0,
        };
        self.call(n::UVM_TEST_PREFETCH, &mut call)?;
        done(call.status)
    }

    /// Maps memory at an address that the caller chooses, in all registered address spaces of the
    /// GPU.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn map(&self, gpu: &Gpu, memory: Handle, base: u64, length: u64) -> Result<(), Error> {
        let mut call = abi::UvmExternalRange {
            base,
            length,
            ..Default::default()
        };
        self.call(n::UVM_EXTERNAL_RANGE, &mut call)?;
        done(call.status)?;
        self.map_reserved(gpu, memory, base, length)
    }

    /// Maps memory at addresses that are reserved.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn map_reserved(
        &self,
        gpu: &Gpu,
        memory: Handle,
        base: u64,
        length: u64,
    ) -> Result<(), Error> {
        self.map_by(gpu.client(), gpu, memory, base, length)
    }

    /// The same, with the control file of any client.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn map_by(
        &self,
        by: &Client,
        gpu: &Gpu,
        memory: Handle,
        base: u64,
        length: u64,
    ) -> Result<(), Error> {
        macro_rules! map {
            ($kind:ident $($first:tt)+) => {{
                let mut call = abi::$kind {
                    base,
                    length,
                    attributes_count: 1,
                    control: by.control_file().file().as_raw_fd(),
                    client: gpu.client().handle(),
                    memory,
                    ..Default::default()
                };
                call.attributes$($first)+.uuid = self.uuid;
                self.call(n::UVM_MAP_EXTERNAL, &mut call)?;
                done(call.status)
            }};
        }
        match self.release {
            Release::R580 | Release::R595 => map!(UvmMapExternalMany[0][0]),
            Release::R535 | Release::R550 => map!(UvmMapExternal[0]),
        }
    }
}
