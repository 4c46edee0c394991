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

pub mod allow;
pub mod channel;
pub mod class;
pub mod control;
mod decode;
pub mod memory_info;
pub mod mode;
pub mod nv;
pub mod query;
mod share;

pub use class::Class;
pub use decode::{decode, set_status, updated_client};
use decode::{element, Fields};
use mode::Mode;
pub use share::{Share, Shared};

/// A handle of the resource manager. 0 is no object.
pub type Handle = u32;

/// Shorter names of the escapes that make, free, map and share objects.
pub mod escape {
    pub use super::nv::NV_ESC_REGISTER_FD as REGISTER_FD;
    pub use super::nv::NV_ESC_RM_ACCESS_REGISTRY as ACCESS_REGISTRY;
    pub use super::nv::NV_ESC_RM_ALLOC as ALLOC;
    pub use super::nv::NV_ESC_RM_ALLOC_MEMORY as ALLOC_MEMORY;
    pub use super::nv::NV_ESC_RM_ALLOC_OBJECT as ALLOC_OBJECT;
    pub use super::nv::NV_ESC_RM_CONTROL as CONTROL;
    pub use super::nv::NV_ESC_RM_DUP_OBJECT as DUP_OBJECT;
    pub use super::nv::NV_ESC_RM_FREE as FREE;
    pub use super::nv::NV_ESC_RM_IDLE_CHANNELS as IDLE_CHANNELS;
    pub use super::nv::NV_ESC_RM_MAP_MEMORY as MAP_MEMORY;
    pub use super::nv::NV_ESC_RM_MAP_MEMORY_DMA as MAP_MEMORY_DMA;
    pub use super::nv::NV_ESC_RM_UNMAP_MEMORY as UNMAP_MEMORY;
    pub use super::nv::NV_ESC_RM_UNMAP_MEMORY_DMA as UNMAP_MEMORY_DMA;
    pub use super::nv::NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO as UPDATE_MAPPING;
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
    /// How the contexts of a channel or a channel group share the GPU.
    Mode(Mode, Option<Hint>),
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
            _ => Mode::by_command(command).map(|mode| Self::Mode(mode, mode.hint(params))),
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
            Action::Share(_, hint)
            | Action::Control(Overrides::Channels(hint) | Overrides::Mode(_, hint)) => hint,
            Action::Alloc {
                class: Class::Debugger,
                params: address @ 1..,
                ..
            } => {
                // CAST: 4.
                let address = address.checked_add(nv::debugger::APP_CLIENT as u64)?;
                Some(Hint { address, bytes: 4 })
            }
            // RM writes the new client's handle there.
            Action::Alloc {
                class: Class::Client,
                params: address @ 1..,
                ..
            } => Some(Hint { address, bytes: 4 }),
            Action::Alloc {
                class: Class::Channel,
                params: address @ 1..,
                ..
            } => Some(Hint {
                address,
                // CAST: 144.
                bytes: channel::ChannelMemory::BYTES as u32,
            }),
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
            Action::Alloc { class, .. } => class.is_tracked() || matches!(class, Class::Debugger),
            Action::Dup { .. } | Action::Share(..) | Action::Control(_) => true,
            Action::Free => false,
        }
    }

    /// Returns whether the call allocates device memory, or an object for which the driver does.
    pub const fn allocates_memory(&self) -> bool {
        match self.action {
            Action::Alloc { class, .. } => class.takes_memory(),
            _ => false,
        }
    }

    /// Returns whether the call allocates a channel.
    pub const fn allocates_channel(&self) -> bool {
        matches!(
            self.action,
            Action::Alloc {
                class: Class::Channel,
                ..
            }
        )
    }

    /// Returns whether RM reports success.
    pub const fn succeeded(&self) -> bool {
        self.status == nv::NV_OK
    }
}

/// The status of an ioctl that the tenant may not do.
pub use nv::NV_ERR_INSUFFICIENT_PERMISSIONS as INSUFFICIENT_PERMISSIONS;
/// The status of an ioctl beyond a maximum.
pub use nv::NV_ERR_INSUFFICIENT_RESOURCES as INSUFFICIENT_RESOURCES;
/// The status of an ioctl with a value out of its range.
pub use nv::NV_ERR_INVALID_ARGUMENT as INVALID_ARGUMENT;
/// The status that CUDA reports as its out-of-memory error.
pub use nv::NV_ERR_NO_MEMORY as NO_MEMORY;

#[cfg(test)]
mod tests;
