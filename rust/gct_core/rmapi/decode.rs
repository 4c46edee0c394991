// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes the bytes of an ioctl's structure, and writes the status of a refused ioctl into them.

use super::nv::{
    self, nvos00, nvos02_with_fd, nvos05, nvos21, nvos30, nvos32, nvos38, nvos54, nvos55, nvos56,
    nvos64,
};
use super::{escape, Action, Call, Class, Handle, Overrides, Share};
use crate::error::Error;
use crate::units::Sat;

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
        (
            escape::REGISTER_FD
            | escape::MAP_MEMORY
            | escape::UNMAP_MEMORY
            | escape::UPDATE_MAPPING
            | escape::ACCESS_REGISTRY
            | escape::IDLE_CHANNELS,
            _,
        ) => Ok(None),
        (escape::MAP_MEMORY_DMA | escape::UNMAP_MEMORY_DMA, _) => Ok(None),
        _ => Err(Error::Syntax),
    }
}

impl Call {
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

/// Returns the client whose mapping an ioctl says to be known by another address.
pub fn updated_client(escape: u32, bytes: &[u8]) -> Option<Handle> {
    let is_update = (escape, bytes.len()) == (escape::UPDATE_MAPPING, nvos56::SIZE);
    is_update
        .then(|| Fields(bytes).u32(nvos56::CLIENT).ok())
        .flatten()
}

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
        (escape::ACCESS_REGISTRY, nvos38::SIZE) => (nvos38::OBJECT, nvos38::STATUS),
        (escape::IDLE_CHANNELS, nvos30::SIZE) => (nvos30::DEVICE, nvos30::STATUS),
        (escape::UPDATE_MAPPING, nvos56::SIZE) => (nvos56::MEMORY, nvos56::STATUS),
        _ => return None,
    };
    Some(WrittenBack { object, status })
}

/// Returns the offset of element `number` in an array of 32-bit words at offset `array`.
pub(super) fn element(array: usize, number: usize) -> usize {
    (Sat(array) + Sat(number) * Sat(4)).0
}

/// The little-endian fields of a structure.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn array<const N: usize>(&self, offset: usize) -> Result<[u8; N], Error> {
        let rest = self.0.get(offset..).ok_or(Error::Syntax)?;
        rest.first_chunk().copied().ok_or(Error::Syntax)
    }

    pub(super) fn u32(&self, offset: usize) -> Result<u32, Error> {
        self.array(offset).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&self, offset: usize) -> Result<u64, Error> {
        self.array(offset).map(u64::from_le_bytes)
    }

    /// Decodes `NVOS00_PARAMETERS`.
    fn free(&self) -> Result<Call, Error> {
        Ok(Call {
            client: self.u32(nvos00::ROOT)?,
            parent: self.u32(nvos00::PARENT)?,
            object: self.u32(nvos00::OBJECT)?,
            status: self.u32(nvos00::STATUS)?,
            action: Action::Free,
        })
    }

    /// Decodes `NVOS21_PARAMETERS` and `NVOS64_PARAMETERS`, which differ behind the pointer.
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

    /// Decodes `NVOS05_PARAMETERS`.
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

    /// Decodes `NVOS55_PARAMETERS`.
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

    /// Decodes `NVOS54_PARAMETERS`.
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

    /// Decodes `nv_ioctl_nvos02_parameters_with_fd`. The ioctl is on a device's file, and the
    /// client belongs to another.
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

    /// Decodes `NVOS32_PARAMETERS`: one ioctl for many functions.
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

    /// Returns the memory that an `NVOS32_PARAMETERS` has allocated.
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
