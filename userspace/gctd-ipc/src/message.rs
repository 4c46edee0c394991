// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is said on the socket.
//!
//! A connection begins with [`Request::Hello`]. Who is at the other end is not said but asked
//! of the kernel.

use crate::page::MaskWords;
use serde::{Deserialize, Serialize};

/// Bytes of the longest message.
pub const MESSAGE_BYTES_MAX: usize = 32 * 1024;

/// Bytes of a file's text that one reply carries.
pub const CHUNK_BYTES: usize = 16 * 1024;

/// Neighbours in one reply, each with a descriptor: the kernel passes at most 253.
pub const PEERS_MAX: usize = crate::board::SLOTS_MAX;

/// Ranges of managed memory that one connection may have told of; what is beyond is granted
/// and not charged.
pub const MANAGED_MAX: usize = 65_536;

/// One of the resource manager's ioctls: its number and the structure, as it is in the
/// tenant's memory, and the answer to `gct_core::rmapi::Call::question`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ioctl {
    /// `NV_ESC_RM_*`.
    pub escape: u32,
    /// The structure.
    pub bytes: Vec<u8>,
    /// The answer, where there is one.
    pub hint: Option<u64>,
}

/// A range of managed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Managed {
    /// Its number, which the process chooses; another of this number is gone.
    pub number: u64,
    /// Its size.
    pub bytes: u64,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first message. Answered by [`Reply::Hello`], or by [`Reply::Error`] before the
    /// connection is closed.
    Hello {
        /// [`VERSION`](crate::VERSION).
        version: u32,
        /// Whether the resource manager's ioctls of this process will follow, which only the
        /// tenants' door takes.
        tenant: bool,
    },
    /// An object is about to be freed, or to get a second name. Not answered.
    Enter(Ioctl),
    /// May this memory be allocated? It counts as allocated until [`Request::Leave`] tells how
    /// it went. Answered by [`Reply::Granted`] or [`Reply::Error`].
    Ask(Ioctl),
    /// An ioctl has run. Not answered.
    Leave {
        /// The ioctl, with what the driver wrote.
        ioctl: Ioctl,
        /// The number of [`Reply::Granted`], if it was asked for.
        granted: Option<u32>,
    },
    /// May so much managed memory be allocated? It counts until [`Request::ManagedGone`], on
    /// each GPU where this connection has a page or will have one. Answered by [`Reply::Done`]
    /// or [`Reply::Error`].
    Manage(Managed),
    /// Managed memory that exists, as [`Request::Manage`] says it, is to be charged whatever
    /// the limit. Not answered.
    Managed(Managed),
    /// Managed memory is gone. Not answered.
    ManagedGone {
        /// Its number.
        number: u64,
    },
    /// The page of the GPU on which an object of this process lies. Answered by
    /// [`Reply::Page`], the first time with three descriptors: page, pulse, board.
    Page {
        /// Handle of its client.
        client: u32,
        /// Its own handle.
        object: u32,
    },
    /// Page and pulse of the GPU with this minor number are mapped: nobody may write them but this
    /// process and the daemon from now on, and neighbours may read the pulse. Answered by
    /// [`Reply::Done`] or [`Reply::Error`].
    Mapped {
        /// The N of `/dev/nvidiaN`.
        minor: u32,
    },
    /// The neighbours on the GPU with this minor number, where this process has a page.
    /// Answered by [`Reply::Peers`] with their pulses.
    Peers {
        /// The N of `/dev/nvidiaN`.
        minor: u32,
    },
    /// The limits of a generation of this process's page are in force. Not answered.
    Took {
        /// The N of `/dev/nvidiaN`.
        minor: u32,
        /// The generation.
        generation: u64,
        /// What the resource manager said, if it refused one of them.
        refused: Option<u32>,
    },
    /// The names in a directory of the tree. Answered by [`Reply::Text`]: one name per line,
    /// those of directories with a slash behind.
    List {
        /// Its path below the root.
        path: String,
    },
    /// The text of a file of the tree. Answered by [`Reply::Text`].
    Read {
        /// Its path below the root.
        path: String,
    },
    /// More of the last text. Answered by [`Reply::Text`].
    More,
    /// Writes a file of the tree, which only the administrators' door takes. Answered by [`Reply::Done`] or [`Reply::Error`].
    Write {
        /// Its path below the root.
        path: String,
        /// The whole of one write.
        bytes: Vec<u8>,
    },
    /// The TPCs of a GPU that this process can count on, whether it has a page there or not.
    /// Answered by [`Reply::Dependable`] or [`Reply::Error`].
    Dependable {
        /// The N of `/dev/nvidiaN`.
        minor: u32,
    },
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The daemon's version of the messages.
    Hello {
        /// [`VERSION`](crate::VERSION).
        version: u32,
    },
    /// It was done.
    Done,
    /// The memory may be allocated.
    Granted(u32),
    /// It was not done, or must not be.
    Error {
        /// Why: a Linux number, positive.
        errno: i32,
    },
    /// A process's page.
    Page {
        /// The GPU: the N of `/dev/nvidiaN`.
        minor: u32,
        /// Where the process is on the board; `None` when that is full.
        slot: Option<(u8, u32)>,
    },
    /// Neighbours: slot and user of each pulse that is with this.
    Peers(Vec<(u8, u32)>),
    /// Text, or the names of a directory.
    Text {
        /// The next of it.
        bytes: Vec<u8>,
        /// Whether [`Request::More`] has more.
        more: bool,
    },
    /// TPCs.
    Dependable(MaskWords),
}

/// A message as one packet.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Writing to a vector fails only for types that postcard cannot say the length of.
    postcard::to_stdvec(message).unwrap_or_default()
}

/// A packet as a message; `None` for anything else, trailing bytes included.
pub fn decode<'a, T: Deserialize<'a>>(packet: &'a [u8]) -> Option<T> {
    let (message, rest) = postcard::take_from_bytes(packet).ok()?;
    rest.is_empty().then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_survive_the_wire() {
        let ioctl = Ioctl {
            escape: 0x2b,
            bytes: vec![1; 48],
            hint: Some(u64::MAX),
        };
        for request in [
            Request::Hello {
                version: 1,
                tenant: true,
            },
            Request::Ask(ioctl.clone()),
            Request::Leave {
                ioctl,
                granted: Some(7),
            },
            Request::Manage(Managed {
                number: u64::MAX,
                bytes: 1,
            }),
            Request::Managed(Managed {
                number: 1,
                bytes: u64::MAX,
            }),
            Request::ManagedGone { number: u64::MAX },
            Request::Write {
                path: "web/0/tpc.mask".into(),
                bytes: b"0-3\n".to_vec(),
            },
        ] {
            let packet = encode(&request);
            assert_eq!(decode::<Request>(&packet), Some(request));
            let longer = [packet.as_slice(), &[0]].concat();
            assert_eq!(decode::<Request>(&longer), None);
        }
    }

    proptest! {
        /// Whatever arrives is a message or refused, and a message says no more than arrived.
        #[test]
        fn any_bytes_are_safe(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Some(request) = decode::<Request>(&bytes) {
                let again: Option<Request> = decode(&encode(&request));
                prop_assert_eq!(again, Some(request));
            }
            let _ = decode::<Reply>(&bytes);
        }
    }
}
