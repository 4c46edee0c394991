// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the requests of clients and the replies of the daemon.
//!
//! A connection begins with [`Request::Hello`]. No message says who sends it: the daemon asks the
//! kernel. Fields are only appended, and 0 is their default, so that sides of different versions
//! understand each other.

use crate::page::MaskWords;
use crate::versions::Versions;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Most bytes of a message.
pub const MESSAGE_BYTES_MAX: usize = 32 * 1024;

/// Most bytes of the fields that were appended to a message since its first version, all 0.
const APPENDED_BYTES: usize = 64;

/// Most bytes of a file's text in one reply.
pub const CHUNK_BYTES: usize = 4 * 1024;

/// Most neighbours in one reply, each with a descriptor. The kernel passes at most 253.
pub const PEERS_MAX: usize = crate::board::SLOTS_MAX;

/// Most ranges of managed memory of one connection. Further ones are granted and not charged.
pub const MANAGED_MAX: usize = 65_536;

/// An ioctl of the resource manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ioctl {
    /// The escape, `NV_ESC_RM_*`.
    pub escape: u32,
    /// The structure, as it is in the tenant's memory.
    pub bytes: Vec<u8>,
    /// The answer to `gct_core::rmapi::Call::lookup`, if there is one.
    pub hint: Option<u64>,
}

/// A range of managed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Managed {
    /// The number that the process chose for the range. Reuse replaces the old range.
    pub number: u64,
    /// The size.
    pub bytes: u64,
}

/// Pageable memory of a process on a GPU, by place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paged {
    /// Bytes on the GPU.
    pub device: u64,
    /// Bytes of host memory that were taken for it.
    pub host: u64,
}

/// The memory of a GPU as a process's limits show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryView {
    /// The tightest limit in bytes.
    pub limit: u64,
    /// The fewest bytes that a limit leaves.
    pub left: u64,
}

/// A request of a client. Those of a tenant are served on the tenants' socket only, after a
/// `Hello` with `tenant` set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Greets the daemon. It is the first message. The reply is [`Reply::Hello`], or
    /// [`Reply::Error`] before the daemon closes the connection.
    Hello {
        /// The versions that the client speaks.
        versions: Versions,
        /// Whether the client is a tenant, which reports its ioctls.
        tenant: bool,
    },
    /// Announces an ioctl that frees or duplicates an object. No reply.
    Enter(Ioctl),
    /// Charges an allocation of device memory, until [`Request::Leave`] reports its outcome. The
    /// reply is [`Reply::Granted`] or [`Reply::Error`].
    Charge(Ioctl),
    /// Reports an ioctl that has run. No reply.
    Leave {
        /// The ioctl, with what the driver wrote.
        ioctl: Ioctl,
        /// The number of [`Reply::Granted`], if the ioctl was charged.
        granted: Option<u32>,
    },
    /// Charges a new range of managed memory on each GPU where this connection has or gets a page,
    /// until [`Request::UnchargeManaged`]. The reply is [`Reply::Done`] or [`Reply::Error`].
    ChargeManaged(Managed),
    /// Charges an existing range, even beyond a limit. No reply.
    AddManaged(Managed),
    /// Uncharges a range. No reply.
    UnchargeManaged {
        /// The number of the range.
        number: u64,
    },
    /// Asks whether memory that the process allocates on a GPU is to be pageable. The reply is
    /// [`Reply::Pageable`].
    IsPageable {
        /// The PCI address, such as `0000:04:00.0`.
        bus_id: String,
    },
    /// Changes what the process is charged for pageable memory on a GPU. The reply is
    /// [`Reply::Repaged`] or [`Reply::Error`].
    Repage {
        /// The N of `/dev/nvidiaN`.
        minor: u32,
        /// All that it has there.
        paged: Paged,
        /// Bytes that must stay free below each `gmem.limit`.
        spare: u64,
        /// Whether the process refuses an allocation if this is refused.
        is_last: bool,
    },
    /// Asks for the most that the process can be charged for pageable memory on a GPU. The reply is
    /// [`Reply::Repaged`] or [`Reply::Error`].
    PageableRoom {
        /// The N of `/dev/nvidiaN`.
        minor: u32,
        /// Bytes that must stay free below each `gmem.limit`.
        spare: u64,
    },
    /// Charges pageable memory that exists, even beyond a limit. No reply.
    AddPaged {
        /// The N of `/dev/nvidiaN`.
        minor: u32,
        /// All that the process has there.
        paged: Paged,
    },
    /// Asks for the page of the GPU where an object lies. The reply is [`Reply::Page`] or
    /// [`Reply::Error`]. Until [`Request::PageMapped`] it has three descriptors: page, pulse,
    /// board. The client has read all replies before it.
    OpenPage {
        /// The RM client of the object.
        client: u32,
        /// The object.
        object: u32,
    },
    /// Reports that page and pulse of a GPU are mapped. From now on no further process can map
    /// them for writing, and neighbours may read the pulse. The reply is [`Reply::Done`] or
    /// [`Reply::Error`].
    PageMapped {
        /// The N of `/dev/nvidiaN`.
        minor: u32,
    },
    /// Asks for the neighbours on a GPU where this connection has a page. The reply is
    /// [`Reply::Peers`] with their pulses, or [`Reply::Error`]. The client has read all replies
    /// before it.
    Peers {
        /// The N of `/dev/nvidiaN`.
        minor: u32,
    },
    /// Acknowledges the limits of a generation of the page. No reply.
    Ack {
        /// The N of `/dev/nvidiaN`.
        minor: u32,
        /// The generation.
        generation: u64,
        /// The status with which the resource manager refused one of the limits.
        refused: Option<u32>,
    },
    /// Lists a directory of the tree. The reply is [`Reply::Text`] with one name per line. Names of
    /// directories end with a slash.
    List {
        /// The path below the root.
        path: String,
    },
    /// Reads a file of the tree. The reply is [`Reply::Text`].
    Read {
        /// The path below the root.
        path: String,
    },
    /// Asks for the next part of the last text. The reply is [`Reply::Text`].
    More,
    /// Writes a file of the tree, on the administrators' socket only. The reply is [`Reply::Done`]
    /// or [`Reply::Error`].
    Write {
        /// The path below the root.
        path: String,
        /// The text of one whole write.
        bytes: Vec<u8>,
    },
    /// Asks for the memory that this process's limits show it of the GPU where an object lies. The
    /// reply is [`Reply::MemoryView`].
    MemoryView {
        /// The RM client of the object.
        client: u32,
        /// The object.
        object: u32,
    },
    /// Asks for the TPCs of a GPU that this process can count on, with or without a page there.
    /// The reply is [`Reply::DependableTpcs`] or [`Reply::Error`].
    DependableTpcs {
        /// The N of `/dev/nvidiaN`.
        minor: u32,
    },
}

/// A reply of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Greets the client.
    Hello {
        /// The highest version that both sides speak. If there is none: those that the daemon
        /// speaks, before it closes the connection.
        versions: Versions,
    },
    /// The request was served.
    Done,
    /// The allocation is charged and may run.
    Granted(u32),
    /// The request was refused.
    Error {
        /// The errno, positive.
        errno: i32,
    },
    /// The page of a process.
    Page {
        /// The GPU: the N of `/dev/nvidiaN`.
        minor: u32,
        /// The process's slot on the board and the slot's user; `None` if the board is full.
        slot: Option<(u8, u32)>,
    },
    /// The neighbours: slot and user of each attached pulse.
    Peers(Vec<(u8, u32)>),
    /// The N of `/dev/nvidiaN`, if new memory is to be pageable there.
    Pageable(Option<u32>),
    /// `None`: pageable memory is charged as requested. Otherwise nothing has changed, and this is
    /// the most that it can be charged for.
    Repaged(Option<Paged>),
    /// A part of a text.
    Text {
        /// The part.
        bytes: Vec<u8>,
        /// Whether [`Request::More`] returns a further part.
        more: bool,
    },
    /// The memory that the process's limits show it; `None` without a limit.
    MemoryView(Option<MemoryView>),
    /// The TPCs that the process can count on.
    DependableTpcs(MaskWords),
}

/// Encodes a message as one packet.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Cannot fail: all lengths in the messages are known.
    postcard::to_stdvec(message).unwrap_or_default()
}

/// Decodes a packet. Returns `None` unless it begins with a message.
///
/// Fields that an older sender does not know are 0. What a newer sender has appended is left out.
pub fn decode<T: DeserializeOwned>(packet: &[u8]) -> Option<T> {
    let padded = [packet, &[0; APPENDED_BYTES]].concat();
    let (message, _) = postcard::take_from_bytes(&padded).ok()?;
    Some(message)
}

#[cfg(test)]
mod tests;
