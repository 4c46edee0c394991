// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recognises mappings for the CPU, doorbells among them, and tenants whose rings are not heard.

use super::maps::{u32_at, u64_at};
use crate::rmapi::nv::{self, nvos33_with_fd as map};
use crate::rmapi::Handle;

/// Most bytes of a doorbell's mapping.
const DOORBELL_BYTES: u64 = 0x1_0000;

/// A mapping for the CPU that a tenant has prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuMapping {
    /// The client.
    pub client: Handle,
    /// The object.
    pub object: Handle,
    /// Where the mapping begins in the object, in bytes.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The tenant's descriptor of the device file by which it maps the object.
    pub descriptor: i32,
}

impl CpuMapping {
    /// Reads what an ioctl of escape `MAP_MEMORY` has prepared, after the resource manager ran it.
    /// Returns `None` if it has prepared nothing.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let is_map = bytes.len() == map::SIZE;
        let is_done = is_map && u32_at(bytes, map::STATUS)? == nv::NV_OK;
        is_done.then_some(())?;
        Some(Self {
            client: u32_at(bytes, map::CLIENT)?,
            object: u32_at(bytes, map::MEMORY)?,
            offset: u64_at(bytes, map::OFFSET)?,
            bytes: u64_at(bytes, map::LENGTH)?,
            descriptor: i32::from_le_bytes(u32_at(bytes, map::FD)?.to_le_bytes()),
        })
    }

    /// Returns whether it may be a doorbell's.
    pub const fn may_be_doorbell(&self) -> bool {
        self.bytes <= DOORBELL_BYTES
    }
}

/// Returns whether objects of a class are pages with a doorbell.
pub const fn is_doorbell(class: u32) -> bool {
    matches!(
        class,
        nv::VOLTA_USERMODE_A
            | nv::TURING_USERMODE_A
            | nv::AMPERE_USERMODE_A
            | nv::HOPPER_USERMODE_A
    )
}

/// What the last look at a channel has found, to tell whether its tenant rings unheard.
///
/// While all bells are closed, a ring that is heard faults, and adds one to its tenant's rings. So
/// a tenant rings unheard, or has yet to ring, if its rings are the same at three looks:
///
/// ```text
/// at the first
/// at the second   all bells are closed, and the channel has nothing new
/// at the third    it has
/// ```
///
/// What a look finds without such looks before it may have been rung for while the bell was being
/// closed. Then no ring will follow, and none was missed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silence {
    /// The tenant's rings at the last look.
    rings: Option<u32>,
    /// Whether that was a second look.
    is_silent: bool,
}

impl Silence {
    /// The state of a channel that nobody has looked at.
    pub const NEW: Self = Self {
        rings: None,
        is_silent: false,
    };

    /// Takes note of a look at a channel. The caller has read whether `all_closed` first, then
    /// `rings`, and has looked then. Returns whether a submission of the tenant was not heard.
    pub fn is_broken_unheard(&mut self, rings: u32, has_news: bool, all_closed: bool) -> bool {
        let are_same = self.rings == Some(rings);
        let was_silent = self.is_silent && are_same;
        *self = Self {
            rings: Some(rings),
            is_silent: are_same && all_closed && !has_news,
        };
        has_news && was_silent
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(length: u64, status: u32) -> [u8; map::SIZE] {
        let mut bytes = [0; map::SIZE];
        let mut set = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        set(map::CLIENT, &1_u32.to_le_bytes());
        set(map::MEMORY, &2_u32.to_le_bytes());
        set(map::OFFSET, &0x2000_u64.to_le_bytes());
        set(map::LENGTH, &length.to_le_bytes());
        set(map::STATUS, &status.to_le_bytes());
        set(map::FD, &(-3_i32).to_le_bytes());
        bytes
    }

    #[test]
    fn a_mapping_is_read() {
        let found = CpuMapping::decode(&bytes(0x1_0000, 0));
        let expected = CpuMapping {
            client: 1,
            object: 2,
            offset: 0x2000,
            bytes: 0x1_0000,
            descriptor: -3,
        };
        assert_eq!(found, Some(expected));
        assert!(expected.may_be_doorbell());
    }

    #[test]
    fn what_is_no_doorbell_is_not_looked_up() {
        let decode = CpuMapping::decode;
        let long = decode(&bytes(0x1_0001, 0));
        assert!(long.is_some_and(|long| !long.may_be_doorbell()));
        assert_eq!(decode(&bytes(1, 0x57)), None);
        assert_eq!(decode(&bytes(1, 0)[..55]), None);
        assert!(is_doorbell(0xc661) && !is_doorbell(0xc86f) && !is_doorbell(0));
    }
}
