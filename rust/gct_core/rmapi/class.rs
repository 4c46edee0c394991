// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sorts the resource manager's classes into those that gctgroup treats alike.

use super::nv::*;

/// The kind of object that a class number makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `NV01_ROOT`, `NV01_ROOT_NON_PRIV`, `NV01_ROOT_CLIENT`: the top of one client's objects.
    Client,
    /// `NV01_DEVICE_0`: a GPU, or several that are linked.
    Device,
    /// `NV20_SUBDEVICE_0`.
    Subdevice,
    /// `KEPLER_CHANNEL_GROUP_A`: what the runlist schedules.
    ChannelGroup,
    /// `*_CHANNEL_GPFIFO_*`: a queue of work.
    Channel,
    /// `FERMI_CONTEXT_SHARE_A`.
    ContextShare,
    /// `FERMI_VASPACE_A`: an address space.
    Space,
    /// `NV01_MEMORY_LOCAL_USER`: device memory.
    DeviceMemory,
    /// Host memory, address space and other memory classes.
    OtherMemory,
    /// `*_USERMODE_A`: the doorbell.
    Usermode,
    /// `GT200_DEBUGGER`: a debugger of a client's channel; the core does not mirror it.
    Debugger,
    /// Any other class; the core does not mirror it.
    Other,
}

impl Class {
    /// Returns the kind of object that a class number makes.
    pub const fn from_number(number: u32) -> Self {
        match number {
            NV01_ROOT | NV01_ROOT_NON_PRIV | NV01_ROOT_CLIENT => Self::Client,
            NV01_DEVICE_0 => Self::Device,
            NV20_SUBDEVICE_0 => Self::Subdevice,
            KEPLER_CHANNEL_GROUP_A => Self::ChannelGroup,
            GF100_CHANNEL_GPFIFO
            | KEPLER_CHANNEL_GPFIFO_A
            | KEPLER_CHANNEL_GPFIFO_B
            | MAXWELL_CHANNEL_GPFIFO_A
            | PASCAL_CHANNEL_GPFIFO_A
            | VOLTA_CHANNEL_GPFIFO_A
            | TURING_CHANNEL_GPFIFO_A
            | AMPERE_CHANNEL_GPFIFO_A
            | HOPPER_CHANNEL_GPFIFO_A
            | BLACKWELL_CHANNEL_GPFIFO_A
            | BLACKWELL_CHANNEL_GPFIFO_B => Self::Channel,
            FERMI_CONTEXT_SHARE_A => Self::ContextShare,
            FERMI_VASPACE_A => Self::Space,
            NV01_MEMORY_LOCAL_USER => Self::DeviceMemory,
            NV01_MEMORY_SYSTEM
            | NV01_MEMORY_LOCAL_PRIVILEGED
            | NV01_MEMORY_VIRTUAL
            | NV01_MEMORY_SYSTEM_OS_DESCRIPTOR
            | NV_MEMORY_FABRIC
            | NV50_MEMORY_VIRTUAL => Self::OtherMemory,
            VOLTA_USERMODE_A | TURING_USERMODE_A | AMPERE_USERMODE_A | HOPPER_USERMODE_A
            | BLACKWELL_USERMODE_A => Self::Usermode,
            GT200_DEBUGGER => Self::Debugger,
            _ => Self::Other,
        }
    }

    /// Returns whether a class number makes a queue of work, of a known or a future generation: the
    /// `*_GPFIFO_*` classes since Kepler.
    pub const fn is_queue(number: u32) -> bool {
        number & 0xff == 0x6f && number >= KEPLER_CHANNEL_GPFIFO_A
    }

    /// Returns whether freeing an object of this class number also frees channels elsewhere in the
    /// client (`refAddDependant()` in `kernel_channel.c`, and `kernel_channel_gv100.c` of 580 and
    /// later). The channel group is one that RM has made for a channel. Memory of the process may
    /// be a channel's USERD.
    pub const fn takes_channels(number: u32) -> bool {
        matches!(
            number,
            FERMI_VASPACE_A
                | FERMI_CONTEXT_SHARE_A
                | KEPLER_CHANNEL_GROUP_A
                | KERNEL_GRAPHICS_CONTEXT
                | NV01_MEMORY_SYSTEM_OS_DESCRIPTOR
        )
    }

    /// Returns whether the driver takes device memory for an object of this class.
    pub const fn takes_memory(self) -> bool {
        matches!(
            self,
            Self::ChannelGroup
                | Self::Channel
                | Self::ContextShare
                | Self::Space
                | Self::DeviceMemory
        )
    }

    /// Returns whether the core mirrors objects of this class.
    pub const fn is_tracked(self) -> bool {
        !matches!(self, Self::Other | Self::Debugger)
    }
}
