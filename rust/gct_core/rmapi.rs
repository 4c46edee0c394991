// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the resource manager's ioctls say.
//!
//! The bytes are the kernel's own copy of an ioctl's structure, so handles,
//! classes and status in it are to be trusted as far as the resource manager
//! checks them. Parameter blocks to which a structure points are the tenant's
//! memory. What is read where a [`Hint`] points is what the resource manager reads
//! only if the caller sees to that; the kernel does, and user space cannot.
//!
//! Numbers, sizes and offsets are in [`nv`]. A driver that changes a size is refused by the size
//! check rather than misread.

pub mod ask;
pub mod channel;
pub mod class;
pub mod control;
pub mod nv;
mod share;

use crate::error::Error;
pub use class::Class;
pub use share::{Share, Shared};

/// A handle of the resource manager. 0 is no object.
pub type Handle = u32;

/// Escapes of the ioctls that make, free, map and share objects, by shorter names.
pub mod escape {
    pub use super::nv::NV_ESC_REGISTER_FD as REGISTER_FD;
    pub use super::nv::NV_ESC_RM_ALLOC as ALLOC;
    pub use super::nv::NV_ESC_RM_ALLOC_MEMORY as ALLOC_MEMORY;
    pub use super::nv::NV_ESC_RM_ALLOC_OBJECT as ALLOC_OBJECT;
    pub use super::nv::NV_ESC_RM_CONTROL as CONTROL;
    pub use super::nv::NV_ESC_RM_DUP_OBJECT as DUP_OBJECT;
    pub use super::nv::NV_ESC_RM_FREE as FREE;
    pub use super::nv::NV_ESC_RM_MAP_MEMORY as MAP_MEMORY;
    pub use super::nv::NV_ESC_RM_VID_HEAP_CONTROL as VID_HEAP_CONTROL;
}

/// Something that happens to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It comes into being.
    Alloc {
        /// What it is.
        class: Class,
        /// Bytes of device memory, where the structure itself says so.
        bytes: Option<u64>,
        /// The tenant's parameter block; 0 is none.
        params: u64,
    },
    /// It goes, with everything below it.
    Free,
    /// It becomes a second name of another client's object.
    Dup {
        /// The other client.
        source_client: Handle,
        /// The other client's object.
        source: Handle,
    },
    /// It is given an order that may undo one of ours.
    Control(Undoes),
    /// Objects of the client get names in a file, or get them from there.
    Share(Share, Option<Hint>),
}

/// What a tenant's own control may undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undoes {
    /// The time slice of a channel group.
    Timeslice,
    /// The time slice of some channel below the device, and so of its group. On an H100 every
    /// client may set it.
    TimesliceOfChannel,
    /// That a channel, or those of a channel group, stand still.
    Schedule,
    /// That channels of its process stand still.
    ScheduleAny,
    /// That channels of any client stand still: those that its parameters name
    /// ([`control::named`]).
    Channels(Option<Hint>),
}

impl Undoes {
    /// Returns what a control with parameters at `params` may undo, by its number.
    /// `gct_tracks_control()` in gct.h names the same.
    fn by_command(command: u32, params: u64) -> Option<Self> {
        match command {
            nv::NVA06C_CTRL_CMD_SET_TIMESLICE => Some(Self::Timeslice),
            nv::NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES => Some(Self::TimesliceOfChannel),
            nv::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE | nv::NV506F_CTRL_CMD_RESET_ISOLATED_CHANNEL => {
                Some(Self::Schedule)
            }
            // A channel takes the control's number of every generation: 0xa06f0103, 0xc36f0103 ...
            _ if nv::is_of_any_generation(command, nv::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE)
                || nv::is_of_any_generation(command, nv::NV906F_CTRL_CMD_RESET_CHANNEL) =>
            {
                Some(Self::Schedule)
            }
            nv::NV0080_CTRL_CMD_FIFO_START_SELECTED_CHANNELS => Some(Self::ScheduleAny),
            // It also enables.
            nv::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS => {
                Some(Self::Channels(control::list_hint(params)))
            }
            _ => None,
        }
    }
}

/// A decoded ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Client on whose behalf it is made; 0 when a client is made.
    pub client: Handle,
    /// Parent of the object; 0 when the structure names none.
    pub parent: Handle,
    /// The object. Before the ioctl it may be 0: the resource manager chooses.
    pub object: Handle,
    /// `NV_OK` is 0. Means something only after the ioctl.
    pub status: u32,
    /// What happens.
    pub action: Action,
}

/// A word of parameters in the tenant's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// User address of a little-endian number.
    pub address: u64,
    /// Its size, 4 or 8.
    pub bytes: u32,
}

/// What the ioctl's structure does not say of a new object, and who knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Bytes of memory: a word of the tenant's.
    Bytes(Hint),
    /// The engine that a channel group is for, `NV2080_ENGINE_TYPE_*`: a word of the tenant's.
    Engine(Hint),
    /// The resource manager's number of the GPU on which a device is. The parameters
    /// say the device's instance, which the resource manager knows; without
    /// parameters it is 0 (`deviceConstruct_IMPL`).
    GpuOfInstance(Option<Hint>),
    /// The resource manager's number of the GPU on which the new subdevice is.
    /// It answers that itself.
    GpuOfSubdevice,
}

impl Lookup {
    /// The parameters that the answer needs.
    pub const fn hint(&self) -> Option<Hint> {
        match self {
            Self::Bytes(hint) | Self::Engine(hint) => Some(*hint),
            Self::GpuOfInstance(hint) => *hint,
            Self::GpuOfSubdevice => None,
        }
    }
}

/// A little-endian number of at most 8 bytes.
pub fn word(bytes: &[u8]) -> Option<u64> {
    let mut word = [0; 8];
    for (to, from) in word.get_mut(..bytes.len())?.iter_mut().zip(bytes) {
        *to = *from;
    }
    Some(u64::from_le_bytes(word))
}

impl Call {
    /// The parameters that must be those which the resource manager sees.
    pub fn params(&self) -> Option<Hint> {
        match self.action {
            Action::Share(_, hint) | Action::Control(Undoes::Channels(hint)) => hint,
            // The resource manager writes the new client's handle there.
            Action::Alloc {
                class: Class::Client,
                params: address @ 1..,
                ..
            } => Some(Hint { address, bytes: 4 }),
            _ => self.lookup()?.hint(),
        }
    }

    /// What to ask after success.
    pub fn lookup(&self) -> Option<Lookup> {
        let Action::Alloc {
            class,
            bytes: None,
            params,
        } = self.action
        else {
            return None;
        };
        let hint = |offset: usize, bytes| {
            // CAST: an offset, far below 2^64.
            let address = params.checked_add(offset as u64)?;
            (params != 0).then_some(Hint { address, bytes })
        };
        match class {
            Class::Device => Some(Lookup::GpuOfInstance(hint(nv::device::DEVICE_ID, 4))),
            Class::Subdevice => Some(Lookup::GpuOfSubdevice),
            Class::ChannelGroup => hint(nv::channel_group::ENGINE_TYPE, 4).map(Lookup::Engine),
            Class::DeviceMemory => hint(nv::memory::LENGTH, 8).map(Lookup::Bytes),
            _ => None,
        }
    }

    /// Returns whether the core keeps account of what the call does.
    pub const fn is_followed(&self) -> bool {
        self.concerns_limits() || matches!(self.action, Action::Free)
    }

    /// Returns whether it would make something that is followed, or may undo a limit.
    pub const fn concerns_limits(&self) -> bool {
        match self.action {
            Action::Alloc { class, .. } => class.is_tracked(),
            Action::Dup { .. } | Action::Share(..) | Action::Control(_) => true,
            Action::Free => false,
        }
    }

    /// Did the resource manager do it?
    pub const fn succeeded(&self) -> bool {
        self.status == nv::NV_OK
    }

    /// Returns the call with what the resource manager wrote back: the object's handle, the status,
    /// and the kind and size of memory. `result` is what `rm_ioctl()` returned. If it is not
    /// `NV_OK`, it is the status: an ioctl on a wrong file is refused before the resource manager
    /// writes, and the structure still holds what the tenant put there.
    #[must_use]
    pub fn returned(mut self, escape: u32, bytes: &[u8], result: u32) -> Self {
        let fields = Fields(bytes);
        if let Some(back) = written_back(escape, bytes.len()) {
            self.object = fields.u32(back.object).unwrap_or(self.object);
            self.status = fields.u32(back.status).unwrap_or(self.status);
        }
        if let (escape::VID_HEAP_CONTROL, Action::Alloc { .. }) = (escape, self.action) {
            // The resource manager chooses where memory lies, and rounds its size.
            self.action = fields.vid_heap_made().unwrap_or(self.action);
        }
        if result != nv::NV_OK {
            self.status = result;
        }
        self
    }
}

/// Decodes an ioctl's structure. `Ok(None)` is a call that makes or frees nothing.
///
/// # Errors
///
/// [`Error::Syntax`] when the size is not the structure's, or the escape is not
/// one of [`escape`].
pub fn decode(escape: u32, bytes: &[u8]) -> Result<Option<Call>, Error> {
    let fields = Fields(bytes);
    match (escape, bytes.len()) {
        (escape::FREE, nv::nvos00::SIZE) => fields.free().map(Some),
        (escape::ALLOC, nv::nvos21::SIZE) => fields.alloc(nv::nvos21::STATUS).map(Some),
        (escape::ALLOC, nv::nvos64::SIZE) => fields.alloc(nv::nvos64::STATUS).map(Some),
        (escape::ALLOC_OBJECT, nv::nvos05::SIZE) => fields.alloc_object().map(Some),
        (escape::DUP_OBJECT, nv::nvos55::SIZE) => fields.dup().map(Some),
        (escape::CONTROL, nv::nvos54::SIZE) => fields.control(),
        (escape::ALLOC_MEMORY, nv::nvos02_with_fd::SIZE) => fields.alloc_memory().map(Some),
        (escape::VID_HEAP_CONTROL, nv::nvos32::SIZE) => fields.vid_heap(),
        (escape::REGISTER_FD, _) => Ok(None),
        _ => Err(Error::Syntax),
    }
}

/// The status of an ioctl beyond a maximum.
pub use nv::NV_ERR_INSUFFICIENT_PERMISSIONS as INSUFFICIENT_PERMISSIONS;
pub use nv::NV_ERR_INSUFFICIENT_RESOURCES as INSUFFICIENT_RESOURCES;
pub use nv::NV_ERR_INVALID_ARGUMENT as INVALID_ARGUMENT;
/// CUDA reports this status as its out-of-memory error.
pub use nv::NV_ERR_NO_MEMORY as NO_MEMORY;

/// Writes the status of a call that the driver is not to see. Returns false for a structure that
/// [`decode`] does not know.
pub fn set_status(escape: u32, bytes: &mut [u8], status: u32) -> bool {
    let Some(offset) = written_back(escape, bytes.len()).map(|back| back.status) else {
        return false;
    };
    match bytes
        .get_mut(offset..)
        .and_then(|rest| rest.first_chunk_mut())
    {
        Some(field) => {
            *field = status.to_le_bytes();
            true
        }
        None => false,
    }
}

/// Offsets of the fields that the resource manager writes in every structure.
struct WrittenBack {
    object: usize,
    status: usize,
}

/// Returns the offsets for a structure, or `None` for one that [`decode`] does not know.
const fn written_back(escape: u32, size: usize) -> Option<WrittenBack> {
    let (object, status) = match (escape, size) {
        (escape::FREE, nvos00::SIZE) => (nvos00::OBJECT, nvos00::STATUS),
        (escape::ALLOC, nvos21::SIZE) => (nvos21::OBJECT, nvos21::STATUS),
        (escape::ALLOC, nvos64::SIZE) => (nvos21::OBJECT, nvos64::STATUS),
        (escape::ALLOC_MEMORY, nvos02_with_fd::SIZE) => {
            (nvos02_with_fd::OBJECT, nvos02_with_fd::STATUS)
        }
        (escape::ALLOC_OBJECT, nvos05::SIZE) => (nvos05::OBJECT, nvos05::STATUS),
        (escape::DUP_OBJECT, nvos55::SIZE) => (nvos55::OBJECT, nvos55::STATUS),
        (escape::CONTROL, nvos54::SIZE) => (nvos54::OBJECT, nvos54::STATUS),
        (escape::VID_HEAP_CONTROL, nvos32::SIZE) => (nvos32::MEMORY, nvos32::STATUS),
        _ => return None,
    };
    Some(WrittenBack { object, status })
}

use nv::{nvos00, nvos02_with_fd, nvos05, nvos21, nvos32, nvos54, nvos55, nvos64};

/// Little-endian fields of a structure.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&self, offset: usize) -> Result<[u8; N], Error> {
        let rest = self.0.get(offset..).ok_or(Error::Syntax)?;
        rest.first_chunk().copied().ok_or(Error::Syntax)
    }

    fn u32(&self, offset: usize) -> Result<u32, Error> {
        self.array(offset).map(u32::from_le_bytes)
    }

    fn u64(&self, offset: usize) -> Result<u64, Error> {
        self.array(offset).map(u64::from_le_bytes)
    }

    /// `NVOS00_PARAMETERS`.
    fn free(&self) -> Result<Call, Error> {
        Ok(Call {
            client: self.u32(nvos00::ROOT)?,
            parent: self.u32(nvos00::PARENT)?,
            object: self.u32(nvos00::OBJECT)?,
            status: self.u32(nvos00::STATUS)?,
            action: Action::Free,
        })
    }

    /// `NVOS21_PARAMETERS` and `NVOS64_PARAMETERS`, which differ behind the pointer.
    fn alloc(&self, status: usize) -> Result<Call, Error> {
        Ok(Call {
            client: self.u32(nvos21::ROOT)?,
            parent: self.u32(nvos21::PARENT)?,
            object: self.u32(nvos21::OBJECT)?,
            status: self.u32(status)?,
            action: Action::Alloc {
                class: Class::from_number(self.u32(nvos21::CLASS)?),
                bytes: None,
                params: self.u64(nvos21::PARAMS)?,
            },
        })
    }

    /// `NVOS05_PARAMETERS`.
    fn alloc_object(&self) -> Result<Call, Error> {
        Ok(Call {
            client: self.u32(nvos05::ROOT)?,
            parent: self.u32(nvos05::PARENT)?,
            object: self.u32(nvos05::OBJECT)?,
            status: self.u32(nvos05::STATUS)?,
            action: Action::Alloc {
                class: Class::from_number(self.u32(nvos05::CLASS)?),
                bytes: None,
                params: 0,
            },
        })
    }

    /// `NVOS55_PARAMETERS`.
    fn dup(&self) -> Result<Call, Error> {
        Ok(Call {
            client: self.u32(nvos55::CLIENT)?,
            parent: self.u32(nvos55::PARENT)?,
            object: self.u32(nvos55::OBJECT)?,
            status: self.u32(nvos55::STATUS)?,
            action: Action::Dup {
                source_client: self.u32(nvos55::SOURCE_CLIENT)?,
                source: self.u32(nvos55::SOURCE)?,
            },
        })
    }

    /// `NVOS54_PARAMETERS`.
    fn control(&self) -> Result<Option<Call>, Error> {
        let (command, params) = (self.u32(nvos54::COMMAND)?, self.u64(nvos54::PARAMS)?);
        let undoes = Undoes::by_command(command, params);
        let action = match (undoes, Share::by_command(command)) {
            (Some(undoes), _) => Action::Control(undoes),
            (None, Some(share)) => Action::Share(share, share.hint(params)),
            (None, None) => return Ok(None),
        };
        Ok(Some(Call {
            client: self.u32(nvos54::CLIENT)?,
            parent: 0,
            object: self.u32(nvos54::OBJECT)?,
            status: self.u32(nvos54::STATUS)?,
            action,
        }))
    }

    /// `nv_ioctl_nvos02_parameters_with_fd`. It arrives on a device's file, not
    /// on the one to which the client belongs.
    ///
    /// None of its classes takes device memory: `NV01_MEMORY_LOCAL_USER` makes a view of all of it
    /// for an administrator, and an empty name for others (`_rmAllocMemoryLocalUser`).
    fn alloc_memory(&self) -> Result<Call, Error> {
        let class = match Class::from_number(self.u32(nvos02_with_fd::CLASS)?) {
            Class::DeviceMemory => Class::OtherMemory,
            class => class,
        };
        Ok(Call {
            client: self.u32(nvos02_with_fd::ROOT)?,
            parent: self.u32(nvos02_with_fd::PARENT)?,
            object: self.u32(nvos02_with_fd::OBJECT)?,
            status: self.u32(nvos02_with_fd::STATUS)?,
            action: Action::Alloc {
                class,
                bytes: Some(0),
                params: 0,
            },
        })
    }

    /// `NVOS32_PARAMETERS`: one ioctl for many functions.
    fn vid_heap(&self) -> Result<Option<Call>, Error> {
        let action = match self.u32(nvos32::FUNCTION)? {
            nv::NVOS32_FUNCTION_ALLOC_SIZE | nv::NVOS32_FUNCTION_ALLOC_TILED_PITCH_HEIGHT => {
                self.vid_heap_alloc(nvos32::ALLOC_SIZE)?
            }
            nv::NVOS32_FUNCTION_ALLOC_SIZE_RANGE => self.vid_heap_alloc(nvos32::RANGE_SIZE)?,
            nv::NVOS32_FUNCTION_FREE => Action::Free,
            _ => return Ok(None),
        };
        Ok(Some(Call {
            client: self.u32(nvos32::ROOT)?,
            parent: self.u32(nvos32::PARENT)?,
            object: self.u32(nvos32::MEMORY)?,
            status: self.u32(nvos32::STATUS)?,
            action,
        }))
    }

    /// The memory that an `NVOS32_PARAMETERS` has allocated.
    fn vid_heap_made(&self) -> Option<Action> {
        let action = self.vid_heap().ok()??.action;
        matches!(action, Action::Alloc { .. }).then_some(action)
    }

    fn vid_heap_alloc(&self, size: usize) -> Result<Action, Error> {
        let (flags, attr) = (self.u32(nvos32::FLAGS)?, self.u32(nvos32::ATTR)?);
        // Virtual memory is addresses alone.
        let has_memory = flags & nv::NVOS32_ALLOC_FLAGS_VIRTUAL == 0;
        // `NVOS32_ATTR_LOCATION`, bits 26:25. Every value but PCI, host memory, may be device
        // memory.
        let location = (attr >> 25) & 3;
        Ok(if has_memory && location != nv::NVOS32_ATTR_LOCATION_PCI {
            Action::Alloc {
                class: Class::DeviceMemory,
                bytes: Some(self.u64(size)?),
                params: 0,
            }
        } else {
            Action::Alloc {
                class: Class::OtherMemory,
                bytes: Some(0),
                params: 0,
            }
        })
    }
}

#[cfg(test)]
mod tests;
