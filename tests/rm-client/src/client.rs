// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opens the control file, and allocates a client and its objects.

use crate::abi::{self, Handle, Release};
use crate::layout::Plain;
use crate::numbers as n;
use crate::sys::{self, Mapping};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// The reason why the driver refused.
#[derive(Debug)]
pub enum Error {
    /// The system call failed.
    System(io::Error),
    /// RM refused with this status.
    Status(u32),
    /// This crate does not know the driver's structures.
    Version(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => write!(f, "{error}"),
            Self::Status(status) => match n::status_name(*status) {
                Some(name) => write!(f, "status {status:#x} ({name})"),
                None => write!(f, "status {status:#x}"),
            },
            Self::Version(version) => write!(f, "unknown driver '{version}'"),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

pub(crate) fn done(status: u32) -> Result<(), Error> {
    match status {
        n::OK => Ok(()),
        status => Err(Error::Status(status)),
    }
}

/// An open `/dev/nvidiactl`.
#[derive(Debug)]
pub struct Control {
    file: File,
    release: Release,
}

impl Control {
    /// Minor number of the control device.
    const MINOR: u32 = 255;
    /// GPUs in the driver's list.
    const CARDS: usize = 32;

    /// Opens the control device.
    ///
    /// # Errors
    ///
    /// Those of the driver; [`Error::Version`] for a driver that is not known.
    pub fn open() -> Result<Self, Error> {
        Self::from_file(sys::open_device("/dev/nvidiactl", Self::MINOR)?)
    }

    /// Uses a control file that is already open.
    ///
    /// # Errors
    ///
    /// As for [`Control::open`].
    pub fn from_file(file: File) -> Result<Self, Error> {
        let version = version(&file)?;
        match Release::of_version(&version) {
            Some(release) => Ok(Self { file, release }),
            None => Err(Error::Version(version)),
        }
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the driver's release.
    pub fn release(&self) -> Release {
        self.release
    }

    /// Lists the GPUs that the driver has bound to: the N of `/dev/nvidiaN` and the id.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn gpus(&self) -> Result<Vec<(u32, u32)>, Error> {
        let mut cards = [abi::CardInfo::default(); Self::CARDS];
        // SAFETY: the driver fills the list. Addresses in it are only output.
        unsafe { sys::ioctl(&self.file, n::ESCAPE_CARD_INFO, &mut cards) }?;
        let valid = cards.iter().filter(|card| card.valid != 0);
        Ok(valid.map(|card| (card.minor, card.gpu_id)).collect())
    }

    /// Holds a GPU open until this file is closed, as libcuda does.
    ///
    /// # Errors
    ///
    /// Those of the driver: EINVAL if the file already holds one.
    pub fn attach_gpu(&self, gpu_id: u32) -> Result<(), Error> {
        let mut ids = [gpu_id];
        // SAFETY: the structure is a list of numbers.
        Ok(unsafe { sys::ioctl(&self.file, n::ESCAPE_ATTACH_GPUS, &mut ids) }?)
    }
}

/// Asks the driver for its version.
fn version(file: &File) -> Result<String, Error> {
    let mut call = abi::Version {
        command: n::VERSION_QUERY,
        ..Default::default()
    };
    sys::ioctl_plain(file, n::ESCAPE_VERSION, &mut call)?;
    let text = call.text.as_flattened();
    let end = text.iter().position(|byte| *byte == 0);
    let text = String::from_utf8_lossy(&text[..end.unwrap_or(text.len())]).into_owned();
    match call.reply {
        n::VERSION_RECOGNIZED => Ok(text),
        _ => Err(Error::Version(text)),
    }
}

/// A client: the root of a tree of objects.
///
/// Threads may share it. The driver allows its use only through the file by which it was allocated.
#[derive(Clone, Debug)]
pub struct Client {
    control: Arc<Control>,
    handle: Handle,
    next: Arc<AtomicU32>,
}

impl Client {
    /// The first handle, as libcuda's.
    const FIRST: Handle = 0x5c00_0001;

    /// Opens the control device and allocates a client.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn open() -> Result<Self, Error> {
        Self::new(Arc::new(Control::open()?))
    }

    /// Allocates a client through an open file.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn new(control: Arc<Control>) -> Result<Self, Error> {
        let mut call = abi::Alloc {
            class: n::CLIENT,
            ..Default::default()
        };
        // SAFETY: the structure's address is 0.
        unsafe { sys::ioctl(&control.file, n::ESCAPE_ALLOC, &mut call) }?;
        done(call.status)?;
        Ok(Self::of(control, call.object))
    }

    /// Returns the client of this handle, which was allocated through `control`.
    pub(crate) fn of(control: Arc<Control>, handle: Handle) -> Self {
        Self {
            control,
            handle,
            next: Arc::new(AtomicU32::new(Self::FIRST)),
        }
    }

    /// Returns the same client through another file, which the driver should refuse.
    pub fn through(&self, control: Arc<Control>) -> Self {
        Self {
            control,
            ..self.clone()
        }
    }

    /// Returns the file.
    pub fn control_file(&self) -> &Arc<Control> {
        &self.control
    }

    /// Returns the client's handle.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Returns a handle that this client has not yet used.
    pub fn new_handle(&self) -> Handle {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Uses `handle` for the next object, whether it is free or not.
    pub fn choose_next(&self, handle: Handle) {
        self.next.store(handle, Ordering::Relaxed);
    }

    /// Allocates an object with its class's parameters.
    pub(crate) fn alloc<T: Plain>(
        &self,
        parent: Handle,
        class: u32,
        parameters: &mut T,
    ) -> Result<Handle, Error> {
        self.with_all_members(parameters, |address, length| {
            // SAFETY: the parameters have the length that the call says, accept any bytes, and
            // contain no address that the driver follows.
            let (object, status) = unsafe { self.alloc_from(parent, class, address, length) }?;
            done(status).map(|()| object)
        })
    }

    /// Calls `call` with address and length of the parameters as this release of the driver has
    /// them. Members that newer releases have at the end are zero.
    fn with_all_members<T: Plain, R>(
        &self,
        parameters: &mut T,
        call: impl FnOnce(u64, u32) -> R,
    ) -> R {
        let bytes = self.control.release().size_of(T::NAME, size_of::<T>());
        let more = bytes.saturating_sub(size_of::<T>());
        if more == 0 {
            // CAST: an address of this process.
            return call(std::ptr::from_mut(parameters) as u64, size(parameters));
        }
        let mut words = vec![0u64; bytes.div_ceil(8)];
        let start = words.as_mut_ptr().cast::<T>();
        // SAFETY: the buffer is at least as long, and aligned for any member. The type is plain.
        unsafe { start.write(*parameters) };
        // CAST: an address of this process; structures are far smaller than 4 GiB.
        let result = call(start as u64, bytes as u32);
        // SAFETY: as above; any bytes are a value of the type.
        *parameters = unsafe { start.read() };
        result
    }

    /// Allocates an object with the parameters at `address`. Returns its handle and the status.
    ///
    /// # Safety
    ///
    /// At `address` there are the class's parameters, `length` bytes or as many as the class has if
    /// that is 0. The driver may read and write them, and follows no address in them.
    pub(crate) unsafe fn alloc_from(
        &self,
        parent: Handle,
        class: u32,
        address: u64,
        length: u32,
    ) -> io::Result<(Handle, u32)> {
        let object = self.new_handle();
        let mut call = abi::Alloc {
            root: self.handle,
            parent,
            object,
            class,
            parameters: address,
            parameters_size: length,
            status: 0,
        };
        // SAFETY: the caller guarantees it.
        unsafe { sys::ioctl(&self.control.file, n::ESCAPE_ALLOC, &mut call) }?;
        Ok((object, call.status))
    }

    /// Allocates an object without parameters, through the structure with access rights. The driver
    /// chooses the handle.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn alloc_bare(&self, parent: Handle, class: u32) -> Result<Handle, Error> {
        let mut call = abi::AllocWithRights {
            root: self.handle,
            parent,
            class,
            ..Default::default()
        };
        // SAFETY: both addresses of the structure are 0.
        unsafe { sys::ioctl(&self.control.file, n::ESCAPE_ALLOC, &mut call) }?;
        done(call.status).map(|()| call.object)
    }

    /// Sends a control.
    pub(crate) fn control<T: Plain>(
        &self,
        object: Handle,
        command: u32,
        parameters: &mut T,
    ) -> Result<(), Error> {
        self.with_all_members(parameters, |address, length| {
            let mut call = abi::Control {
                client: self.handle,
                object,
                command,
                flags: 0,
                parameters: address,
                parameters_size: length,
                status: 0,
            };
            // SAFETY: as for `alloc`.
            unsafe { sys::ioctl(&self.control.file, n::ESCAPE_CONTROL, &mut call) }?;
            done(call.status)
        })
    }

    /// Frees an object and its descendants. The client's own handle frees everything.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn free(&self, object: Handle) -> Result<(), Error> {
        let mut call = abi::Free {
            root: self.handle,
            parent: 0,
            object,
            status: 0,
        };
        sys::ioctl_plain(&self.control.file, n::ESCAPE_FREE, &mut call)?;
        done(call.status)
    }

    /// Frees the client with all its objects.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn free_all(&self) -> Result<(), Error> {
        self.free(self.handle)
    }

    /// Writes 1 to a key of RM's. Its name is one byte, with a zero behind it. Returns the status.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn write_key(&self, name: &[u8; 2]) -> Result<u32, Error> {
        let mut call = abi::Registry {
            client: self.handle,
            object: self.handle,
            access: n::WRITE_DWORD,
            name_length: 1,
            // CAST: an address of this process.
            name: std::ptr::from_ref(name) as u64,
            number: 1,
            ..abi::Registry::default()
        };
        // SAFETY: the driver reads the name alone, which stays until the call returns.
        unsafe { sys::ioctl(&self.control.file, n::ESCAPE_REGISTRY, &mut call) }?;
        Ok(call.status)
    }

    /// Has RM wait for the end of what a channel does, so many microseconds at most. Returns the
    /// status.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn idle(&self, device: Handle, channel: Handle, timeout: u32) -> Result<u32, Error> {
        let mut call = abi::Idle {
            client: self.handle,
            device,
            channel,
            count: 1,
            timeout,
            ..abi::Idle::default()
        };
        // SAFETY: all addresses of the structure are 0.
        unsafe { sys::ioctl(&self.control.file, n::ESCAPE_IDLE, &mut call) }?;
        Ok(call.status)
    }

    /// Duplicates an object of another client of this process into this client, below `parent`.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn dup(&self, parent: Handle, source: &Self, object: Handle) -> Result<Handle, Error> {
        self.dup_of(parent, source.handle, object)
    }

    /// Duplicates an object of any client, by that client's handle, into this client.
    ///
    /// # Errors
    ///
    /// Those of the driver.
    pub fn dup_of(
        &self,
        parent: Handle,
        source_client: Handle,
        source: Handle,
    ) -> Result<Handle, Error> {
        let mut call = abi::Dup {
            client: self.handle,
            parent,
            object: self.new_handle(),
            source_client,
            source,
            flags: 0,
            status: 0,
        };
        sys::ioctl_plain(&self.control.file, n::ESCAPE_DUP, &mut call)?;
        done(call.status).map(|()| call.object)
    }

    /// Maps an object of a device or subdevice into this process. `file` carries this mapping and
    /// can carry no other: a fresh file of the control device for host memory, of the GPU
    /// otherwise.
    pub(crate) fn map(
        &self,
        device: Handle,
        object: Handle,
        length: usize,
        file: &File,
    ) -> Result<Mapping, Error> {
        self.prepare(device, object, length, file)?;
        Ok(Mapping::new(file, length)?)
    }

    /// Prepares a file to be mapped, as [`map`](Self::map) does. Returns the address by which the
    /// driver knows the mapping.
    pub(crate) fn prepare(
        &self,
        device: Handle,
        object: Handle,
        length: usize,
        file: &File,
    ) -> Result<u64, Error> {
        let mut call = abi::MapMemory {
            client: self.handle,
            device,
            memory: object,
            // CAST: a length has at most 64 bits.
            length: length as u64,
            descriptor: file.as_raw_fd(),
            ..Default::default()
        };
        // SAFETY: the driver returns an address and follows none.
        unsafe { sys::ioctl(&self.control.file, n::ESCAPE_MAP, &mut call) }?;
        done(call.status).map(|()| call.address)
    }
}

/// Returns the size of parameters, for which the interface has 32 bits.
fn size<T>(_: &T) -> u32 {
    // INVARIANT: structures of this crate are far smaller than 4 GiB.
    u32::try_from(size_of::<T>()).unwrap_or(0)
}
