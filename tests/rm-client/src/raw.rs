// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Issues ioctls that no honest client issues: any structure, on any file, with any status in it.

use crate::abi::{self, Handle};
use crate::client::{done, Client, Control, Error};
use crate::gpu::{self, Gpu};
use crate::numbers as n;
use crate::session::{Engine, Session};
use crate::sys;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

/// A forged request. Its structure says `NV_OK` before the driver has seen it.
#[derive(Clone, Copy, Debug)]
pub enum Forgery {
    /// `NV_ESC_RM_ALLOC_MEMORY` of a class. Only a device's file accepts it.
    AllocMemory(u32),
    /// `NV_ESC_RM_ALLOC` of a class without parameters. Only the control file accepts it.
    Alloc(u32),
    /// `NV_ESC_RM_ALLOC` of a class with parameters that cannot be read.
    Unreadable(u32),
    /// `NV_ESC_RM_ALLOC` of a class with parameters that are all zeros.
    Zeros(u32),
    /// `NV_ESC_RM_FREE`. Only the control file accepts it.
    Free,
    /// `NV_ESC_RM_DUP_OBJECT` of an object of the same client. Only the control file accepts it.
    Dup(Handle),
    /// `NVA06C_CTRL_CMD_GPFIFO_SCHEDULE`. Only the control file accepts it.
    Schedule,
}

/// Issues a forged ioctl on a file, about an object of a client below a parent. Returns whether the
/// driver refused the ioctl itself, whatever the structure says.
///
/// # Errors
///
/// Those of the system call except EINVAL.
pub fn forge(
    file: &File,
    forgery: Forgery,
    client: Handle,
    parent: Handle,
    object: Handle,
) -> io::Result<bool> {
    let outcome = match forgery {
        Forgery::AllocMemory(class) => {
            let mut call = abi::AllocMemory {
                root: client,
                parent,
                object,
                class,
                limit: u64::MAX - 1,
                ..Default::default()
            };
            // SAFETY: the structure's address is 0.
            unsafe { sys::ioctl(file, n::ESCAPE_ALLOC_MEMORY, &mut call) }
        }
        Forgery::Alloc(class) => {
            let mut call = abi::Alloc {
                root: client,
                parent,
                object,
                class,
                ..Default::default()
            };
            // SAFETY: the structure's address is 0.
            unsafe { sys::ioctl(file, n::ESCAPE_ALLOC, &mut call) }
        }
        Forgery::Unreadable(class) | Forgery::Zeros(class) => {
            let zeros = [0u64; 64];
            let parameters = match forgery {
                // CAST: an address of this process.
                Forgery::Zeros(_) => zeros.as_ptr() as u64,
                _ => 8,
            };
            let mut call = abi::Alloc {
                root: client,
                parent,
                object,
                class,
                parameters,
                ..Default::default()
            };
            // SAFETY: nothing is at the one address, and zeros that nobody uses at the other.
            unsafe { sys::ioctl(file, n::ESCAPE_ALLOC, &mut call) }
        }
        Forgery::Free => {
            let mut call = abi::Free {
                root: client,
                parent,
                object,
                status: 0,
            };
            sys::ioctl_plain(file, n::ESCAPE_FREE, &mut call)
        }
        Forgery::Dup(source) => {
            let mut call = abi::Dup {
                client,
                parent,
                object,
                source_client: client,
                source,
                ..Default::default()
            };
            sys::ioctl_plain(file, n::ESCAPE_DUP, &mut call)
        }
        Forgery::Schedule => {
            let mut call = abi::Control {
                client,
                object,
                command: n::GROUP_SCHEDULE,
                ..Default::default()
            };
            // SAFETY: the structure's address is 0.
            unsafe { sys::ioctl(file, n::ESCAPE_CONTROL, &mut call) }
        }
    };
    match outcome {
        Ok(()) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(true),
        Err(error) => Err(error),
    }
}

impl Client {
    /// Tries to duplicate an object of this client into another client, which the driver must
    /// refuse.
    ///
    /// # Errors
    ///
    /// Those of the system call, and EEXIST if the driver agreed.
    pub fn dup_into(
        &self,
        file: &File,
        stranger: Handle,
        parent: Handle,
        source: Handle,
    ) -> io::Result<()> {
        let mut call = abi::Dup {
            client: stranger,
            parent,
            object: 0xdead_0003,
            source_client: self.handle(),
            source,
            ..Default::default()
        };
        sys::ioctl_plain(file, n::ESCAPE_DUP, &mut call)?;
        match call.status {
            n::OK => Err(io::ErrorKind::AlreadyExists.into()),
            _ => Ok(()),
        }
    }

    /// Allocates an object with parameters that other threads may write meanwhile.
    fn alloc_at(
        &self,
        parent: Handle,
        class: u32,
        parameters: &[AtomicU32],
    ) -> Result<Handle, Error> {
        // CAST: an address of this process.
        let address = parameters.as_ptr() as u64;
        // SAFETY: the driver reads and writes the class's parameters. They exist, accept any bytes,
        // and other threads change them by atomic writes only.
        let (object, status) = unsafe { self.alloc_from(parent, class, address, 0) }?;
        done(status).map(|()| object)
    }

    /// Allocates an object by the oldest escape, which has no parameters.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn alloc_object(&self, parent: Handle, class: u32) -> Result<Handle, Error> {
        let mut call = abi::AllocObject {
            root: self.handle(),
            parent,
            object: self.new_handle(),
            class,
            status: 0,
        };
        let file = self.control_file().file();
        sys::ioctl_plain(file, n::ESCAPE_ALLOC_OBJECT, &mut call)?;
        done(call.status).map(|()| call.object)
    }
}

impl Control {
    /// Makes all ioctls on this file act for another control file, for good.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn register(&self, with: &Self) -> Result<(), Error> {
        let mut call = abi::RegisterFd {
            control: with.file().as_raw_fd(),
        };
        Ok(sys::ioctl_plain(
            self.file(),
            n::ESCAPE_REGISTER_FD,
            &mut call,
        )?)
    }
}

impl Session {
    /// Allocates a channel without submissions, while another thread makes its ring now the one,
    /// now the other. Both addresses have the same high half.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn channel_raced(
        &self,
        group: Handle,
        engine: Engine,
        rings: [u64; 2],
    ) -> Result<Handle, Error> {
        let asked = self.channel_parameters(0, engine, rings[0], 0);
        let words = [const { AtomicU32::new(0) }; size_of::<abi::Channel>() / 4];
        // CAST: halves of addresses.
        let low = rings.map(|ring| ring as u32);
        for (at, word) in [
            (offset_of!(abi::Channel, error), asked.error),
            (offset_of!(abi::Channel, ring_address), low[0]),
            (
                offset_of!(abi::Channel, ring_address) + 4,
                (rings[0] >> 32) as u32,
            ),
            (offset_of!(abi::Channel, ring_entries), asked.ring_entries),
            (
                offset_of!(abi::Channel, userd_memory),
                asked.userd_memory[0],
            ),
            (offset_of!(abi::Channel, engine), asked.engine),
        ] {
            words[at / 4].store(word, Ordering::Relaxed);
        }
        let (running, done) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let ring = &words[offset_of!(abi::Channel, ring_address) / 4];
                while !done.load(Ordering::Relaxed) {
                    for low in low {
                        ring.store(low, Ordering::Relaxed);
                    }
                    running.store(true, Ordering::Relaxed);
                }
            });
            while !running.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            let channel = self.gpu().client().alloc_at(group, n::CHANNEL, &words);
            done.store(true, Ordering::Relaxed);
            channel
        })
    }

    /// Allocates a channel directly below the device. The driver allocates a channel group for it.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn channel_alone(&self, engine: Engine) -> Result<Handle, Error> {
        let mut parameters = abi::Channel {
            ring_address: 0x1_0000,
            ring_entries: Self::ENTRIES,
            address_space: self.space(),
            engine: engine.number(),
            ..Default::default()
        };
        parameters.userd_memory[0] = self.userd;
        // After the positions of all other channels.
        parameters.userd_offset[0] = u64::from((Self::CHANNELS_MAX - 1) * Self::USERD_BYTES);
        let gpu = self.gpu();
        gpu.client()
            .alloc(gpu.device(), n::CHANNEL, &mut parameters)
    }
}

impl Session {
    /// Allocates a channel whose positions, and with `notifier` its errors, are in the caller's
    /// memory.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn channel_on(
        &self,
        group: Handle,
        engine: Engine,
        positions: Handle,
        notifier: Option<Handle>,
    ) -> Result<Handle, Error> {
        let mut parameters = self.channel_parameters(0, engine, 0x1_0000, 0);
        parameters.userd_memory[0] = positions;
        parameters.error = notifier.unwrap_or(parameters.error);
        let client = self.gpu().client();
        client.alloc(group, n::CHANNEL, &mut parameters)
    }
}

impl Gpu {
    /// Allocates a device, and no subdevice, while another thread changes the GPU in the
    /// parameters. Also returns the files that keep the GPUs initialised.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn open_raced(client: &Client) -> Result<(Self, Vec<File>), Error> {
        let cards = client.control_file().gpus()?;
        let files: Result<Vec<File>, Error> = cards
            .iter()
            .map(|(minor, _)| gpu::open(client, *minor))
            .collect();
        let parameters = [const { AtomicU32::new(0) }; size_of::<abi::Device>() / 4];
        let (running, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let device = thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    parameters[0].fetch_xor(1, Ordering::Relaxed);
                    running.store(true, Ordering::Relaxed);
                }
            });
            while !running.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            let device = client.alloc_at(client.handle(), n::DEVICE, &parameters);
            done.store(true, Ordering::Relaxed);
            device
        });
        let gpu = Self {
            client: client.clone(),
            minor: 0,
            gpu_id: 0,
            file: gpu::open(client, 0)?,
            device: device?,
            subdevice: 0,
        };
        Ok((gpu, files?))
    }

    /// Allocates device memory, while another thread makes its size now the one, now the other.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn alloc_memory_raced(&self, sizes: [u32; 2]) -> Result<Handle, Error> {
        const WORDS: usize = size_of::<abi::MemoryWithNode>() / 4;
        let words = [const { AtomicU32::new(0) }; WORDS];
        let size = &words[offset_of!(abi::Memory, size) / 4];
        words[offset_of!(abi::Memory, owner) / 4].store(self.client.handle(), Ordering::Relaxed);
        size.store(sizes[0], Ordering::Relaxed);
        let (running, done) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for next in sizes {
                        size.store(next, Ordering::Relaxed);
                    }
                    running.store(true, Ordering::Relaxed);
                }
            });
            while !running.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            let memory = self.client.alloc_at(self.device, n::DEVICE_MEMORY, &words);
            done.store(true, Ordering::Relaxed);
            memory
        })
    }

    /// Returns the minor of the device's actual GPU. RM reports it for a new subdevice.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn real_minor(&self) -> Result<u32, Error> {
        let mut parameters = abi::Subdevice::default();
        let subdevice = self
            .client
            .alloc(self.device, n::SUBDEVICE, &mut parameters)?;
        let mut id = abi::GpuId::default();
        self.client.control(subdevice, n::GET_GPU_ID, &mut id)?;
        let cards = self.client.control_file().gpus()?;
        let real = cards.iter().find(|(_, gpu_id)| *gpu_id == id.gpu_id);
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        Ok(real.ok_or_else(missing)?.0)
    }

    /// Returns the file of the GPU's device.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Opens the GPU on which a device without parameters lies, and allocates such a device and no
    /// subdevice.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn open_without_parameters(client: &Client) -> Result<Self, Error> {
        for (minor, gpu_id) in client.control_file().gpus()? {
            let file = gpu::open(client, minor)?;
            let mut info = abi::IdInfo {
                gpu_id,
                ..Default::default()
            };
            client.control(client.handle(), n::GET_ID_INFO, &mut info)?;
            if info.device_instance == 0 {
                return Ok(Self {
                    client: client.clone(),
                    minor,
                    gpu_id,
                    file,
                    device: client.alloc_object(client.handle(), n::DEVICE)?,
                    subdevice: 0,
                });
            }
        }
        Err(io::Error::from(io::ErrorKind::NotFound).into())
    }
}
