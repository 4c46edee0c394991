// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes the ioctls of the resource manager (RM).
//!
//! ```text
//! call      a decoded ioctl: client, parent, object, status and action
//! action    what the ioctl does: alloc, free, dup, control, share
//! hint      the address of a word of parameters in the tenant's memory
//! lookup    what the structure does not say about a new object, and where the answer is
//! ```
//!
//! The bytes are the kernel's copy of an ioctl's structure, and RM checks handles, classes and
//! status in it. Parameters are tenant memory, which the tenant can change at any time. The kernel
//! makes RM read the word that the core has read. The user-space mode cannot.
//!
//! Numbers, sizes and offsets are in [`nv`]. A structure of another size is an error, so a driver
//! that changes one is not misread.

pub mod channel;
pub mod class;
pub mod control;
pub mod nv;
pub mod query;
mod share;

use crate::error::Error;
use crate::units::Sat;
pub use class::Class;
pub use share::{Share, Shared};

/// A handle of the resource manager. 0 is no object.
pub type Handle = u32;

/// Shorter names of the escapes that make, free, map and share objects.
pub mod escape {
    pub use super::nv::NV_ESC_REGISTER_FD as REGISTER_FD;
    pub use super::nv::NV_ESC_RM_ALLOC as ALLOC;
    pub use super::nv::NV_ESC_RM_ALLOC_MEMORY as ALLOC_MEMORY;
    pub use super::nv::NV_ESC_RM_ALLOC_OBJECT as ALLOC_OBJECT;
    pub use super::nv::NV_ESC_RM_CONTROL as CONTROL;
    pub use super::nv::NV_ESC_RM_DUP_OBJECT as DUP_OBJECT;
    pub use super::nv::NV_ESC_RM_FREE as FREE;
    pub use super::nv::NV_ESC_RM_MAP_MEMORY as MAP_MEMORY;
    pub use super::nv::NV_ESC_RM_MAP_MEMORY_DMA as MAP_MEMORY_DMA;
    pub use super::nv::NV_ESC_RM_UNMAP_MEMORY_DMA as UNMAP_MEMORY_DMA;
    pub use super::nv::NV_ESC_RM_VID_HEAP_CONTROL as VID_HEAP_CONTROL;
}

/// What an ioctl does to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Makes it.
    Alloc {
        /// Its class.
        class: Class,
        /// Bytes of device memory, if they are in the structure itself.
        bytes: Option<u64>,
        /// Address of the tenant's parameters; 0 is none.
        params: u64,
    },
    /// Frees it and its descendants.
    Free,
    /// Makes it an alias of another client's object.
    Dup {
        /// The other client.
        source_client: Handle,
        /// The other client's object.
        source: Handle,
    },
    /// Controls it, and may override a limit.
    Control(Overrides),
    /// Exports objects of the client to a file, or imports them from one.
    Share(Share, Option<Hint>),
}

/// State that a tenant's own control may override.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overrides {
    /// The time slice of a channel group.
    Timeslice,
    /// The time slice of the group of any channel below the device. On an H100 every client may set
    /// it.
    TimesliceOfChannel,
    /// The freeze of a channel, or of the channels of a channel group.
    Schedule,
    /// The freeze of any channels of its process.
    ScheduleAny,
    /// The freeze of the channels of any client that its parameters name ([`control::named`]).
    Channels(Option<Hint>),
}

impl Overrides {
    /// Returns what a control with this number and parameters at `params` may override.
    /// `gct_tracks_control()` in gct.h has the same numbers.
    fn by_command(command: u32, params: u64) -> Option<Self> {
        match command {
            nv::NVA06C_CTRL_CMD_SET_TIMESLICE => Some(Self::Timeslice),
            nv::NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES => Some(Self::TimesliceOfChannel),
            nv::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE | nv::NV506F_CTRL_CMD_RESET_ISOLATED_CHANNEL => {
                Some(Self::Schedule)
            }
            // A channel accepts the control's number of every generation: 0xa06f0103, 0xc36f0103
            // ...
            _ if nv::is_of_any_generation(command, nv::NVA06F_CTRL_CMD_GPFIFO_SCHEDULE)
                || nv::is_of_any_generation(command, nv::NV906F_CTRL_CMD_RESET_CHANNEL) =>
            {
                Some(Self::Schedule)
            }
            nv::NV0080_CTRL_CMD_FIFO_START_SELECTED_CHANNELS => Some(Self::ScheduleAny),
            // This control also enables.
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
    /// The calling client; 0 in the allocation of a client.
    pub client: Handle,
    /// Parent of the object; 0 if the structure has none.
    pub parent: Handle,
    /// The object. It may be 0 before an allocation; then RM chooses the handle.
    pub object: Handle,
    /// RM's status; meaningless before the ioctl.
    pub status: u32,
    /// What the ioctl does.
    pub action: Action,
}

/// The address of a little-endian number in the tenant's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Its user address.
    pub address: u64,
    /// Its size: 4 or 8 bytes.
    pub bytes: u32,
}

/// What the structure does not say about a new object, and where the answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Bytes of memory: a word of the parameters.
    Bytes(Hint),
    /// Engine of a channel group, `NV2080_ENGINE_TYPE_*`: a word of the parameters.
    Engine(Hint),
    /// RM's number of a device's GPU. RM converts the instance in the parameters; without
    /// parameters it is instance 0 (`deviceConstruct_IMPL`).
    GpuOfInstance(Option<Hint>),
    /// RM's number of a subdevice's GPU: RM answers.
    GpuOfSubdevice,
}

impl Lookup {
    /// Returns the address of the word that the answer needs.
    pub const fn hint(&self) -> Option<Hint> {
        match self {
            Self::Bytes(hint) | Self::Engine(hint) => Some(*hint),
            Self::GpuOfInstance(hint) => *hint,
            Self::GpuOfSubdevice => None,
        }
    }
}

/// Decodes a little-endian number of at most 8 bytes.
pub fn word(bytes: &[u8]) -> Option<u64> {
    let mut word = [0; 8];
    for (to, from) in word.get_mut(..bytes.len())?.iter_mut().zip(bytes) {
        *to = *from;
    }
    Some(u64::from_le_bytes(word))
}

impl Call {
    /// Returns the parameters that the core reads, and that RM must read with the same value.
    pub fn params(&self) -> Option<Hint> {
        match self.action {
            Action::Share(_, hint) | Action::Control(Overrides::Channels(hint)) => hint,
            // RM writes the new client's handle there.
            Action::Alloc {
                class: Class::Client,
                params: address @ 1..,
                ..
            } => Some(Hint { address, bytes: 4 }),
            _ => self.lookup()?.hint(),
        }
    }

    /// Returns what to look up after a successful allocation.
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

    /// Returns whether the core tracks what the call does.
    pub const fn is_followed(&self) -> bool {
        self.concerns_limits() || matches!(self.action, Action::Free)
    }

    /// Returns whether the call makes a tracked object, or may override a limit.
    pub const fn concerns_limits(&self) -> bool {
        match self.action {
            Action::Alloc { class, .. } => class.is_tracked(),
            Action::Dup { .. } | Action::Share(..) | Action::Control(_) => true,
            Action::Free => false,
        }
    }

    /// Returns whether RM reports success.
    pub const fn succeeded(&self) -> bool {
        self.status == nv::NV_OK
    }

    /// Returns the call with what RM has written: the object's handle, the status, and the kind and
    /// size of memory. `result` is that of `rm_ioctl()`. If it is not `NV_OK`, it is the status: RM
    /// refuses an ioctl on a wrong file before it writes, and the structure is still the tenant's.
    #[must_use]
    pub fn returned(mut self, escape: u32, bytes: &[u8], result: u32) -> Self {
        let fields = Fields(bytes);
        if let Some(back) = written_back(escape, bytes.len()) {
            self.object = fields.u32(back.object).unwrap_or(self.object);
            self.status = fields.u32(back.status).unwrap_or(self.status);
        }
        if let (escape::VID_HEAP_CONTROL, Action::Alloc { .. }) = (escape, self.action) {
            // RM chooses the kind of memory, and rounds its size.
            self.action = fields.vid_heap_made().unwrap_or(self.action);
        }
        if result != nv::NV_OK {
            self.status = result;
        }
        self
    }
}

/// Decodes an ioctl's structure. Returns `Ok(None)` for a call that no limit depends on.
///
/// # Errors
///
/// [`Error::Syntax`] if the size is not the structure's, or the escape is not in [`escape`].
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
        (escape::REGISTER_FD | escape::MAP_MEMORY, _) => Ok(None),
        (escape::MAP_MEMORY_DMA | escape::UNMAP_MEMORY_DMA, _) => Ok(None),
        _ => Err(Error::Syntax),
    }
}

pub use nv::NV_ERR_INSUFFICIENT_PERMISSIONS as INSUFFICIENT_PERMISSIONS;
/// The status of an ioctl beyond a maximum.
pub use nv::NV_ERR_INSUFFICIENT_RESOURCES as INSUFFICIENT_RESOURCES;
pub use nv::NV_ERR_INVALID_ARGUMENT as INVALID_ARGUMENT;
/// CUDA reports this status as its out-of-memory error.
pub use nv::NV_ERR_NO_MEMORY as NO_MEMORY;

/// Writes the status of a call that gctgroup refuses. Returns false for a structure that [`decode`]
/// does not know.
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

/// Offsets of the fields that RM writes in every structure.
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

/// Returns the offset of element `number` in an array of 32-bit words at offset `array`.
fn element(array: usize, number: usize) -> usize {
    (Sat(array) + Sat(number) * Sat(4)).0
}

/// The little-endian fields of a structure.
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
        let overrides = Overrides::by_command(command, params);
        let action = match (overrides, Share::by_command(command)) {
            (Some(overrides), _) => Action::Control(overrides),
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

    /// `nv_ioctl_nvos02_parameters_with_fd`. The ioctl is on a device's file, and the client
    /// belongs to another.
    ///
    /// None of its classes allocates device memory. `NV01_MEMORY_LOCAL_USER` maps all of it for an
    /// administrator, and is empty for others (`_rmAllocMemoryLocalUser`).
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
