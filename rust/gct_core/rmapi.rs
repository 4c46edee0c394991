// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the resource manager's ioctls say.
//!
//! The bytes are the kernel's own copy of an ioctl's structure, so handles,
//! classes and status in it are to be trusted as far as the resource manager
//! checks them. Parameter blocks to which a structure points are the tenant's
//! memory. What is read where a [`Hint`] points is what the resource manager reads
//! only if the caller sees to that; the kernel does, and user space cannot.
//!
//! Names, sizes and offsets are those of NVIDIA's `nvos.h`, `nv_escape.h` and
//! `nv-unix-nvos-params-wrappers.h`. Every field that is read here has the same
//! offset in 535.261.03, 550.163.01, 580.95.05 and 595.45.04; a driver that
//! changes a size is refused by the size check rather than misread.

pub mod ask;
pub mod class;
pub mod control;
pub mod own;
mod share;

use crate::error::Error;
pub use class::Class;
pub use share::{Share, Shared};

/// A handle of the resource manager. 0 is no object.
pub type Handle = u32;

/// Escape numbers of the ioctls that make, free and share objects.
pub mod escape {
    /// `NV_ESC_RM_ALLOC_MEMORY`.
    pub const ALLOC_MEMORY: u32 = 0x27;
    /// `NV_ESC_RM_ALLOC_OBJECT`: [`ALLOC`] without parameters.
    pub const ALLOC_OBJECT: u32 = 0x28;
    /// `NV_ESC_RM_FREE`.
    pub const FREE: u32 = 0x29;
    /// `NV_ESC_RM_ALLOC`.
    pub const ALLOC: u32 = 0x2b;
    /// `NV_ESC_RM_CONTROL`.
    pub const CONTROL: u32 = 0x2a;
    /// `NV_ESC_RM_DUP_OBJECT`.
    pub const DUP_OBJECT: u32 = 0x34;
    /// `NV_ESC_RM_VID_HEAP_CONTROL`.
    pub const VID_HEAP_CONTROL: u32 = 0x4a;
    /// `NV_ESC_RM_MAP_MEMORY`, which makes no object.
    pub const MAP_MEMORY: u32 = 0x4e;
    /// `NV_ESC_REGISTER_FD`, which makes no object, but binds a file to another's clients.
    pub const REGISTER_FD: u32 = 0xc9;
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
    /// The time slice of some channel below the device, and so of its group. On an H100 every client may set it.
    TimesliceOfChannel,
    /// That a channel, or those of a channel group, stand still.
    Schedule,
    /// That channels which its parameters name stand still.
    Channels,
}

impl Undoes {
    /// Looks a control's number up. `gct_tracks_control()` in gct.h names the same.
    const fn by_command(command: u32) -> Option<Self> {
        match command {
            // `NVA06C_CTRL_CMD_SET_TIMESLICE`.
            0xa06c_0103 => Some(Self::Timeslice),
            // `NV0080_CTRL_CMD_FIFO_SET_CHANNEL_PROPERTIES`.
            0x0080_170f => Some(Self::TimesliceOfChannel),
            // `NVA06C_CTRL_CMD_GPFIFO_SCHEDULE`, and the same of a channel.
            0xa06c_0101 | 0xa06f_0103 => Some(Self::Schedule),
            // `NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS`, which also enables.
            0x2080_110b => Some(Self::Channels),
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
pub enum Question {
    /// Bytes of memory: a word of the tenant's.
    Bytes(Hint),
    /// The resource manager's number of the GPU on which a device is. The parameters
    /// say the device's instance, which the resource manager knows; without
    /// parameters it is 0 (`deviceConstruct_IMPL`).
    GpuOfInstance(Option<Hint>),
    /// The resource manager's number of the GPU on which the new subdevice is.
    /// It answers that itself.
    GpuOfSubdevice,
}

impl Question {
    /// The parameters that the answer needs.
    pub const fn hint(&self) -> Option<Hint> {
        match self {
            Self::Bytes(hint) => Some(*hint),
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
            Action::Share(_, hint) => hint,
            _ => self.question()?.hint(),
        }
    }

    /// What to ask after success.
    pub fn question(&self) -> Option<Question> {
        let Action::Alloc {
            class,
            bytes: None,
            params,
        } = self.action
        else {
            return None;
        };
        let hint = |offset, bytes| {
            let address = params.checked_add(offset)?;
            (params != 0).then_some(Hint { address, bytes })
        };
        match class {
            // `NV0080_ALLOC_PARAMETERS.deviceId`.
            Class::Device => Some(Question::GpuOfInstance(hint(0, 4))),
            Class::Subdevice => Some(Question::GpuOfSubdevice),
            // `NV_MEMORY_ALLOCATION_PARAMS.size`.
            Class::DeviceMemory => hint(64, 8).map(Question::Bytes),
            _ => None,
        }
    }

    /// Would it make something that is followed?
    pub const fn makes(&self) -> bool {
        match self.action {
            Action::Alloc { class, .. } => class.is_tracked(),
            Action::Dup { .. } | Action::Share(..) => true,
            Action::Free | Action::Control(_) => false,
        }
    }

    /// Did the resource manager do it?
    pub const fn succeeded(&self) -> bool {
        self.status == 0
    }

    /// Adds what `rm_ioctl()` returned. The status in the structure is the resource manager's only
    /// where that is `NV_OK`: an ioctl on a wrong file is refused before anything is written, and
    /// what the tenant has put there stays.
    pub const fn with_result(mut self, result: u32) -> Self {
        if result != 0 {
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
        (escape::FREE, 16) => fields.free().map(Some),
        (escape::ALLOC, 32) => fields.alloc(28).map(Some),
        (escape::ALLOC, 48) => fields.alloc(40).map(Some),
        (escape::ALLOC_OBJECT, 20) => fields.alloc_object().map(Some),
        (escape::DUP_OBJECT, 28) => fields.dup().map(Some),
        (escape::CONTROL, 32) => fields.control(),
        (escape::ALLOC_MEMORY, 56) => fields.alloc_memory().map(Some),
        (escape::VID_HEAP_CONTROL, 184) => fields.vid_heap(),
        (escape::REGISTER_FD, _) => Ok(None),
        _ => Err(Error::Syntax),
    }
}

/// `NV_ERR_NO_MEMORY`, which CUDA turns into its out-of-memory error.
pub const NO_MEMORY: u32 = 0x51;

/// `NV_ERR_INSUFFICIENT_RESOURCES`: a maximum is reached.
pub const INSUFFICIENT_RESOURCES: u32 = 0x1a;

/// `NV_ERR_INVALID_ARGUMENT`.
pub const INVALID_ARGUMENT: u32 = 0x1f;

/// Writes the status of a call that the driver is not to see. Returns false for a structure that
/// [`decode`] does not know.
pub fn set_status(escape: u32, bytes: &mut [u8], status: u32) -> bool {
    let Some(offset) = status_offset(escape, bytes.len()) else {
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

const fn status_offset(escape: u32, size: usize) -> Option<usize> {
    Some(match (escape, size) {
        (escape::FREE, 16) => 12,
        (escape::ALLOC, 32) => 28,
        (escape::ALLOC, 48) | (escape::ALLOC_MEMORY, 56) => 40,
        (escape::ALLOC_OBJECT, 20) => 16,
        (escape::DUP_OBJECT, 28) => 24,
        (escape::CONTROL, 32) => 28,
        (escape::VID_HEAP_CONTROL, 184) => 20,
        _ => return None,
    })
}

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
            client: self.u32(0)?,
            parent: self.u32(4)?,
            object: self.u32(8)?,
            status: self.u32(12)?,
            action: Action::Free,
        })
    }

    /// `NVOS21_PARAMETERS` and `NVOS64_PARAMETERS`, which differ behind the pointer.
    fn alloc(&self, status: usize) -> Result<Call, Error> {
        Ok(Call {
            client: self.u32(0)?,
            parent: self.u32(4)?,
            object: self.u32(8)?,
            status: self.u32(status)?,
            action: Action::Alloc {
                class: Class::from_number(self.u32(12)?),
                bytes: None,
                params: self.u64(16)?,
            },
        })
    }

    /// `NVOS05_PARAMETERS`.
    fn alloc_object(&self) -> Result<Call, Error> {
        Ok(Call {
            client: self.u32(0)?,
            parent: self.u32(4)?,
            object: self.u32(8)?,
            status: self.u32(16)?,
            action: Action::Alloc {
                class: Class::from_number(self.u32(12)?),
                bytes: None,
                params: 0,
            },
        })
    }

    /// `NVOS55_PARAMETERS`.
    fn dup(&self) -> Result<Call, Error> {
        Ok(Call {
            client: self.u32(0)?,
            parent: self.u32(4)?,
            object: self.u32(8)?,
            status: self.u32(24)?,
            action: Action::Dup {
                source_client: self.u32(12)?,
                source: self.u32(16)?,
            },
        })
    }

    /// `NVOS54_PARAMETERS`.
    fn control(&self) -> Result<Option<Call>, Error> {
        let command = self.u32(8)?;
        let action = match (Undoes::by_command(command), Share::by_command(command)) {
            (Some(undoes), _) => Action::Control(undoes),
            (None, Some(share)) => Action::Share(share, share.hint(self.u64(16)?)),
            (None, None) => return Ok(None),
        };
        Ok(Some(Call {
            client: self.u32(0)?,
            parent: 0,
            object: self.u32(4)?,
            status: self.u32(28)?,
            action,
        }))
    }

    /// `nv_ioctl_nvos02_parameters_with_fd`. It arrives on a device's file, not
    /// on the one to which the client belongs.
    ///
    /// None of its classes takes device memory: `NV01_MEMORY_LOCAL_USER` makes a view of all of it for
    /// an administrator, and an empty name for others (`_rmAllocMemoryLocalUser`).
    fn alloc_memory(&self) -> Result<Call, Error> {
        let class = match Class::from_number(self.u32(12)?) {
            Class::DeviceMemory => Class::OtherMemory,
            class => class,
        };
        Ok(Call {
            client: self.u32(0)?,
            parent: self.u32(4)?,
            object: self.u32(8)?,
            status: self.u32(40)?,
            action: Action::Alloc {
                class,
                bytes: Some(0),
                params: 0,
            },
        })
    }

    /// `NVOS32_PARAMETERS`: one ioctl for many functions.
    fn vid_heap(&self) -> Result<Option<Call>, Error> {
        /// `NVOS32_FUNCTION_*`.
        const ALLOC_SIZE: u32 = 2;
        const FREE: u32 = 3;
        const ALLOC_TILED_PITCH_HEIGHT: u32 = 6;
        const ALLOC_SIZE_RANGE: u32 = 14;

        let action = match self.u32(8)? {
            ALLOC_SIZE | ALLOC_TILED_PITCH_HEIGHT => self.vid_heap_alloc(88)?,
            ALLOC_SIZE_RANGE => self.vid_heap_alloc(80)?,
            FREE => Action::Free,
            _ => return Ok(None),
        };
        Ok(Some(Call {
            client: self.u32(0)?,
            parent: self.u32(4)?,
            object: self.u32(44)?,
            status: self.u32(20)?,
            action,
        }))
    }

    fn vid_heap_alloc(&self, size: usize) -> Result<Action, Error> {
        /// `NVOS32_ALLOC_FLAGS_VIRTUAL`: addresses without memory.
        const VIRTUAL: u32 = 0x8_0000;
        /// `NVOS32_ATTR_LOCATION_PCI` in bits 26:25: host memory. The other
        /// values are device memory, or wherever there is room.
        const LOCATION: u32 = 3 << 25;
        const LOCATION_PCI: u32 = 1 << 25;

        let (flags, attr) = (self.u32(52)?, self.u32(56)?);
        Ok(if flags & VIRTUAL == 0 && attr & LOCATION != LOCATION_PCI {
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
