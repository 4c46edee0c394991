// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Says what device memory the driver takes for a tenant's objects, beside what the tenant asks
//! for.
//!
//! The resource manager does not report it. So each class has a fixed charge, an upper bound, and
//! the objects' number bounds the sum:
//!
//! ```text
//! channel group  the context of its engine; pools take 2 MiB at a time
//! channel        instance block, runlist entries, a part of a pool
//! context share  header of the subcontext
//! address space  page directories, the first tables, entries that the driver reserves
//! ```

use crate::rmapi::Class;
use crate::round::Round;
use crate::units::Bytes;

/// The charges for objects of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// A channel group for graphics and compute.
    pub compute_group: Bytes,
    /// Another channel group.
    pub other_group: Bytes,
    /// A channel.
    pub channel: Bytes,
    /// A context share.
    pub context_share: Bytes,
    /// An address space.
    pub space: Bytes,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

impl Costs {
    /// Where nothing is charged.
    pub const NONE: Self = Self {
        compute_group: Bytes(0),
        other_group: Bytes(0),
        channel: Bytes(0),
        context_share: Bytes(0),
        space: Bytes(0),
    };

    /// Hopper's. The context is 0x52c000 bytes (NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE on an H100,
    /// 580.159.04), in pages of 2 MiB. The others are what the resource manager's own count of free
    /// memory lost, rounded up (rm-test `costs_cover_what_the_driver_takes`, 535.261.03).
    pub const HOPPER: Self = Self {
        compute_group: Bytes(6 * MIB),
        other_group: Bytes(2 * MIB),
        channel: Bytes(128 * KIB),
        context_share: Bytes(64 * KIB),
        space: Bytes(2 * MIB),
    };

    /// Returns the charge for an object. `answer` is the answer to its
    /// [`Lookup`](crate::rmapi::Lookup).
    pub fn of(&self, class: Class, answer: u64) -> Bytes {
        match class {
            Class::ChannelGroup if Round::of_engine(answer) == Round::GRAPHICS => {
                self.compute_group
            }
            Class::ChannelGroup => self.other_group,
            Class::Channel => self.channel,
            Class::ContextShare => self.context_share,
            Class::Space => self.space,
            _ => Bytes(0),
        }
    }
}
