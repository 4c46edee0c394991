// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Ioctls that no honest client makes: any structure, on any file, with any status in it.

use crate::abi::{self, Handle};
use crate::client::{done, Client, Control, Error};
use crate::gpu::{self, Gpu};
use crate::numbers as n;
use crate::sys;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// What a liar asks for. The structure says `NV_OK` before the driver has seen it.
#[derive(Clone, Copy, Debug)]
pub enum Forgery {
    /// `NV_ESC_RM_ALLOC_MEMORY` of a class, which only a device's file takes.
    AllocMemory(u32),
    /// `NV_ESC_RM_ALLOC` of a class without parameters, which only the control file takes.
    Alloc(u32),
    /// `NV_ESC_RM_FREE`, which only the control file takes.
    Free,
    /// `NV_ESC_RM_DUP_OBJECT` of an object of the same client, which only the control file takes.
    Dup(Handle),
    /// `NVA06C_CTRL_CMD_GPFIFO_SCHEDULE`, which only the control file takes.
    Schedule,
}

/// Makes a forged ioctl on a file, about an object of a client below a parent. Says whether the
/// driver has refused the ioctl itself, whatever the structure says.
///
/// # Errors
///
/// Those of the system call but EINVAL.
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
            // SAFETY: the address in it is 0.
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
            // SAFETY: the address in it is 0.
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
            // SAFETY: the address in it is 0.
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
    /// Tries to give an object of this client a name in a stranger's client, which the driver has to
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

    /// Makes an object by the oldest of the escapes, which has no parameters.
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
    /// Has all ioctls on this file made in the name of another control file, for good.
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

impl Gpu {
    /// The file of the GPU's device.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Opens the GPU that a device without parameters is on, and makes such a device and no
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
