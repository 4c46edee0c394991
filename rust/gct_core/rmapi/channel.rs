// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes what a process learns of its channels from its own ioctls: rings, mappings, tokens.
//!
//! The user-space mode reads the structures in the tenant's process, after the ioctl.

pub use super::nv::ROBUST_CHANNEL_PREEMPTIVE_REMOVAL as PREEMPTIVE_REMOVAL;
use super::nv::{self, channel, nvos21, nvos33_with_fd, nvos54, nvos64};
use super::{escape, Fields, Handle};

/// The ring of a channel, from its parameters (`NV_CHANNEL_ALLOC_PARAMS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelParams {
    /// The memory object of the error notifier, where RM writes why it has ended the channel.
    pub error_memory: Handle,
    /// GPU virtual address of the ring.
    pub ring_va: u64,
    /// Entries in the ring.
    pub entries: u32,
    /// The memory object that holds USERD.
    pub userd_memory: Handle,
    /// Where USERD begins in that memory, in bytes.
    pub userd_offset: u64,
}

impl ChannelParams {
    /// Length of the decoded part of the structure.
    pub const BYTES: usize = channel::USERD_OFFSET + 8;

    /// Decodes the parameters. Returns `None` for fewer than [`BYTES`](Self::BYTES).
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let fields = Fields(bytes);
        Some(Self {
            error_memory: fields.u32(channel::ERROR_MEMORY).ok()?,
            ring_va: fields.u64(channel::RING).ok()?,
            entries: fields.u32(channel::ENTRIES).ok()?,
            userd_memory: fields.u32(channel::USERD_MEMORY).ok()?,
            userd_offset: fields.u64(channel::USERD_OFFSET).ok()?,
        })
    }
}

/// The memory objects that a channel is made of, from its parameters: its notifiers and its USERD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelMemory(pub [Handle; 3]);

impl ChannelMemory {
    /// Length of the part of the structure that names them.
    pub const BYTES: usize = channel::ECC_ERROR_MEMORY + 4;

    /// Decodes the parameters. Returns `None` for fewer than [`BYTES`](Self::BYTES).
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let fields = Fields(bytes);
        let [error, userd, ecc] = [
            channel::ERROR_MEMORY,
            channel::USERD_MEMORY,
            channel::ECC_ERROR_MEMORY,
        ]
        .map(|at| fields.u32(at).ok());
        Some(Self([error?, userd?, ecc?]))
    }
}

/// Returns the Xid in a channel's error notifier, or `None` if no error has ended the channel.
/// `words` are the first four of its `NvNotification`: time (two), `info32`, and `status << 16 |
/// info16`.
///
/// RM also writes the notifier when it stops a channel whose owner goes (`kchannelNotifyRc`, with
/// [`PREEMPTIVE_REMOVAL`]). That is no error.
pub const fn notified_error(words: [u32; 4]) -> Option<u32> {
    /// The status that RM writes.
    const WRITTEN: u32 = 0xffff;
    let [_, _, xid, last] = words;
    match last >> 16 {
        WRITTEN if xid != PREEMPTIVE_REMOVAL => Some(xid),
        _ => None,
    }
}

/// Memory that the next `mmap` of a descriptor will map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The client.
    pub client: Handle,
    /// Its memory object.
    pub memory: Handle,
    /// Where the mapping begins in it, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The descriptor.
    pub fd: i32,
}

impl Mapping {
    /// Decodes an `nv_ioctl_nvos33_parameters_with_fd`. Returns `None` for another structure, and
    /// if RM has refused.
    pub fn decode(escape: u32, bytes: &[u8]) -> Option<Self> {
        let fields = Fields(bytes);
        let is_mapping = (escape, bytes.len()) == (escape::MAP_MEMORY, nvos33_with_fd::SIZE);
        if !is_mapping || fields.u32(nvos33_with_fd::STATUS).ok()? != nv::NV_OK {
            return None;
        }
        Some(Self {
            client: fields.u32(nvos33_with_fd::CLIENT).ok()?,
            memory: fields.u32(nvos33_with_fd::MEMORY).ok()?,
            offset: fields.u64(nvos33_with_fd::OFFSET).ok()?,
            len: fields.u64(nvos33_with_fd::LENGTH).ok()?,
            // CAST: a descriptor, stored in 32 bits.
            fd: fields.u32(nvos33_with_fd::FD).ok()? as i32,
        })
    }
}

/// The address of a channel's work-submit token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The client.
    pub client: Handle,
    /// The channel.
    pub channel: Handle,
    /// The address at which RM has written the 4 bytes of the token.
    pub address: u64,
}

impl Token {
    /// Decodes an `NVOS54_PARAMETERS` of `NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN`. Returns
    /// `None` for another control, and if RM has refused.
    pub fn decode(escape: u32, bytes: &[u8]) -> Option<Self> {
        let fields = Fields(bytes);
        let of_token = (escape, bytes.len()) == (escape::CONTROL, nvos54::SIZE)
            && fields.u32(nvos54::COMMAND).ok()?
                == nv::NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN
            && fields.u32(nvos54::STATUS).ok()? == nv::NV_OK;
        of_token.then_some(())?;
        Some(Self {
            client: fields.u32(nvos54::CLIENT).ok()?,
            channel: fields.u32(nvos54::OBJECT).ok()?,
            address: fields.u64(nvos54::PARAMS).ok()?,
        })
    }
}

/// Returns the class number in an `NVOS21_PARAMETERS` or an `NVOS64_PARAMETERS`.
pub fn class_number(escape: u32, bytes: &[u8]) -> Option<u32> {
    match (escape, bytes.len()) {
        (escape::ALLOC, nvos21::SIZE | nvos64::SIZE) => Fields(bytes).u32(nvos21::CLASS).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn bytes(words: usize, set: &[(usize, u32)]) -> Vec<u8> {
        let mut all = vec![0u32; words];
        for (at, word) in set {
            all[*at] = *word;
        }
        all.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn an_error_is_one_when_the_resource_manager_has_written_it() {
        // A page fault, as it was read on an H100; a channel that lives.
        let fault = [0x18ea_52d5, 0xc5bc_5558, 31, 0xffff_0001];
        assert_eq!(notified_error(fault), Some(31));
        assert_eq!(notified_error([0; 4]), None);
        assert_eq!(notified_error([1, 2, 31, 0x8000_0001]), None);
        // Its owner exits.
        assert_eq!(notified_error([1, 2, 45, 0xffff_0001]), None);
    }

    #[test]
    fn a_channels_ring_is_found() {
        let params = bytes(
            40,
            &[
                (0, 0x5c00_001b),
                (2, 0x0060_0000),
                (3, 2),
                (4, 1024),
                (8, 0x5c00_0017),
                (16, 0x2000),
            ],
        );
        let expected = ChannelParams {
            error_memory: 0x5c00_001b,
            ring_va: 0x2_0060_0000,
            entries: 1024,
            userd_memory: 0x5c00_0017,
            userd_offset: 0x2000,
        };
        assert_eq!(ChannelParams::decode(&params), Some(expected));
        let short = &params[..ChannelParams::BYTES];
        assert_eq!(ChannelParams::decode(short), Some(expected));
        assert_eq!(ChannelParams::decode(&short[1..]), None);
        let alloc = bytes(12, &[(3, 0xc86f)]);
        assert_eq!(class_number(escape::ALLOC, &alloc), Some(0xc86f));
        assert_eq!(class_number(escape::FREE, &alloc), None);
    }

    #[test]
    fn mappings_and_tokens_are_read_where_the_driver_agreed() {
        let map = [(0, 1), (2, 3), (4, 0x1000), (6, 0x2000), (12, 16)];
        let mapping = Mapping::decode(escape::MAP_MEMORY, &bytes(14, &map)).unwrap();
        assert_eq!((mapping.client, mapping.memory, mapping.fd), (1, 3, 16));
        assert_eq!((mapping.offset, mapping.len), (0x1000, 0x2000));
        let refused = bytes(14, &[&map[..], &[(10, 0x1f)]].concat());
        assert_eq!(Mapping::decode(escape::MAP_MEMORY, &refused), None);
        assert_eq!(Mapping::decode(escape::ALLOC, &bytes(14, &map)), None);

        let asked = [(0, 1), (1, 9), (2, 0xc36f_0108), (4, 0x7000)];
        let token = Token::decode(escape::CONTROL, &bytes(8, &asked)).unwrap();
        assert_eq!((token.client, token.channel, token.address), (1, 9, 0x7000));
        let refused = bytes(8, &[&asked[..], &[(7, 0x1f)]].concat());
        assert_eq!(Token::decode(escape::CONTROL, &refused), None);
        let other = bytes(8, &[(0, 1), (2, 0xc36f_0109)]);
        assert_eq!(Token::decode(escape::CONTROL, &other), None);
    }
}
