// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Classes of the resource manager, as far as they matter here.
//!
//! Numbers are those of NVIDIA's `class/cl*.h`.

/// What kind of object a class number makes.
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
    /// `NV01_MEMORY_LOCAL_USER`: device memory.
    DeviceMemory,
    /// Host memory, address space and other memory classes.
    OtherMemory,
    /// `*_USERMODE_A`: the doorbell.
    Usermode,
    /// Anything else. It is not tracked.
    Other,
}

impl Class {
    /// Looks a class number up.
    pub const fn from_number(number: u32) -> Self {
        match number {
            0x0000 | 0x0001 | 0x0041 => Self::Client,
            0x0080 => Self::Device,
            0x2080 => Self::Subdevice,
            0xa06c => Self::ChannelGroup,
            // Fermi to Pascal, which the resource manager still knows; Volta, Turing, Ampere and Ada, Hopper,
            // Blackwell (two).
            0x906f | 0xa06f | 0xa16f | 0xb06f | 0xc06f => Self::Channel,
            0xc36f | 0xc46f | 0xc56f | 0xc86f | 0xc96f | 0xca6f => Self::Channel,
            0x9067 => Self::ContextShare,
            0x0040 => Self::DeviceMemory,
            // System memory, registers (`NV01_MEMORY_LOCAL_PRIVILEGED`), registered ranges, virtual memory, OS descriptors, fabric memory.
            0x003e | 0x003f | 0x0070 | 0x0071 | 0x00f8 | 0x50a0 => Self::OtherMemory,
            // Volta, Turing, Ampere, Hopper, Blackwell.
            0xc361 | 0xc461 | 0xc561 | 0xc661 | 0xc761 => Self::Usermode,
            _ => Self::Other,
        }
    }

    /// Does a class number make a queue of work, of a known generation or of one to come? Those are the `*_GPFIFO_*`
    /// classes since Kepler.
    pub const fn is_queue(number: u32) -> bool {
        number & 0xff == 0x6f && number >= 0xa06f
    }

    /// Do channels elsewhere in the client go with an object of this class number? It is an address space, a
    /// context share, a channel group (one that the resource manager has made for a channel) or a
    /// `KERNEL_GRAPHICS_CONTEXT` (`refAddDependant()` in `kernel_channel.c`).
    pub const fn takes_channels(number: u32) -> bool {
        matches!(number, 0x90f1 | 0x9067 | 0xa06c | 0x0090)
    }

    /// Is a mirror of such objects kept?
    pub const fn is_tracked(self) -> bool {
        !matches!(self, Self::Other)
    }
}
