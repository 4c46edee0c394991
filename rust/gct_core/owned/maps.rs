// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks where a tenant maps its memory for the GPU, and which address space its channels use.
//!
//! The driver copies these structures before it acts, so that what they say is what happened. What
//! is found here are names in the tenant's own client. They may mean other objects by the time that
//! they are used: the driver asks then what they are ([`Kind`](super::names::Kind)).

use super::SEGMENT_WORDS;
use crate::error::Error;
use crate::rmapi::nv::{self, nvos46, nvos46_with_kind, nvos47, nvos47_with_size};
use crate::rmapi::{word, Handle};

/// Most mappings of one open file that are remembered. libcuda leaves its mappings to UVM.
pub const MAPPINGS_MAX: usize = 4096;

/// Most channel groups and context shares of one open file that are remembered.
pub const SPACES_MAX: usize = 4096;

/// A part of a memory object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The client's memory object.
    pub memory: Handle,
    /// Where the part begins, in bytes.
    pub offset: u64,
}

/// A mapping of memory for the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The open file of nvidia-uvm that made it, or 0 for the resource manager.
    uvm: u64,
    client: Handle,
    /// The range; for nvidia-uvm the address space.
    range: Handle,
    place: Place,
    /// What the memory object is below, or 0 if that is not known.
    parent: Handle,
    address: u64,
    bytes: u64,
}

/// What a call did to the mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It added one.
    Added(Mapping),
    /// It removed the one of a client that begins at an address of a range.
    Removed {
        /// The client.
        client: Handle,
        /// The range.
        range: Handle,
        /// The GPU virtual address.
        address: u64,
    },
    /// nvidia-uvm removed all that overlap with addresses.
    Cleared {
        /// Its open file.
        uvm: u64,
        /// The address space, or 0 for all.
        space: Handle,
        /// The first address.
        address: u64,
        /// How many there are.
        bytes: u64,
    },
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    word(bytes.get(at..at.checked_add(8)?)?)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    u32::try_from(word(bytes.get(at..at.checked_add(4)?)?)?).ok()
}

impl Change {
    /// Reads what an ioctl did, after the resource manager ran it. Returns `None` if it changed
    /// nothing.
    pub fn decode(escape: u32, bytes: &[u8]) -> Option<Self> {
        match (escape, bytes.len()) {
            (nv::NV_ESC_RM_MAP_MEMORY_DMA, nvos46::SIZE) => {
                Self::added(bytes, nvos46::ADDRESS, nvos46::STATUS)
            }
            (nv::NV_ESC_RM_MAP_MEMORY_DMA, nvos46_with_kind::SIZE) => {
                Self::added(bytes, nvos46_with_kind::ADDRESS, nvos46_with_kind::STATUS)
            }
            (nv::NV_ESC_RM_UNMAP_MEMORY_DMA, nvos47::SIZE | nvos47_with_size::SIZE) => {
                Some(Self::Removed {
                    client: u32_at(bytes, nvos47::CLIENT)?,
                    range: u32_at(bytes, nvos47::RANGE)?,
                    address: u64_at(bytes, nvos47::ADDRESS)?,
                })
            }
            _ => None,
        }
    }

    /// Reads an `NVOS46_PARAMETERS`, of which the address and the status have no fixed place.
    fn added(bytes: &[u8], address: usize, status: usize) -> Option<Self> {
        let done = u32_at(bytes, status)? == nv::NV_OK;
        done.then_some(Self::Added(Mapping {
            uvm: 0,
            client: u32_at(bytes, nvos46::CLIENT)?,
            range: u32_at(bytes, nvos46::RANGE)?,
            place: Place {
                memory: u32_at(bytes, nvos46::MEMORY)?,
                offset: u64_at(bytes, nvos46::OFFSET)?,
            },
            parent: 0,
            address: u64_at(bytes, address)?,
            bytes: u64_at(bytes, nvos46::LENGTH)?,
        }))
    }
}

impl Mapping {
    /// Returns a mapping that an open file of nvidia-uvm made in an address space.
    pub fn in_uvm(
        (uvm, space): (u64, Handle),
        client: Handle,
        place: Place,
        [address, bytes]: [u64; 2],
    ) -> Self {
        Self {
            uvm,
            client,
            range: space,
            place,
            parent: 0,
            address,
            bytes,
        }
    }

    /// Returns client and handle of the memory object.
    pub const fn of(&self) -> [Handle; 2] {
        [self.client, self.place.memory]
    }

    /// Returns a mapping of memory that is below an object of its client.
    pub const fn below(self, parent: Handle) -> Self {
        Self { parent, ..self }
    }

    /// Returns whether the mapping has one of so many addresses.
    fn overlaps(&self, address: u64, bytes: u64) -> bool {
        address < self.address.saturating_add(self.bytes)
            && self.address < address.saturating_add(bytes)
    }

    /// Returns whether both were made below one range and overlap. Then the older is gone.
    fn replaces(&self, older: &Self) -> bool {
        // nvidia-uvm maps memory of any client in one address space.
        let is_same = (self.uvm, self.range) == (older.uvm, older.range)
            && (self.uvm != 0 || self.client == older.client);
        is_same && older.overlaps(self.address, self.bytes)
    }

    /// Returns whether the mapping goes with an object that is freed. Its memory's handle may mean
    /// other memory afterwards.
    pub fn goes_with(&self, client: Handle, object: Handle) -> bool {
        let of_client = [client, self.range, self.place.memory, self.parent];
        self.client == client && object != 0 && of_client.contains(&object)
    }

    /// Returns whether the mapping is gone after a change. One that is added may take its place.
    pub fn is_gone_after(&self, change: &Change) -> bool {
        match change {
            Change::Added(new) => new.replaces(self),
            Change::Removed {
                client,
                range,
                address,
            } => {
                let is_same = (self.client, self.range) == (*client, *range);
                self.uvm == 0 && is_same && self.address == *address
            }
            Change::Cleared {
                uvm,
                space,
                address,
                bytes,
            } => {
                let is_same = self.uvm == *uvm && [0, self.range].contains(space);
                is_same && self.overlaps(*address, *bytes)
            }
        }
    }

    fn find(&self, client: Handle, address: u64, bytes: u64) -> Option<Place> {
        let from = address.checked_sub(self.address)?;
        let fits = from.checked_add(bytes)? <= self.bytes;
        (self.client == client && fits).then_some(())?;
        Some(Place {
            memory: self.place.memory,
            offset: self.place.offset.checked_add(from)?,
        })
    }
}

/// Returns where in a client's memory `bytes` at a GPU virtual address lie.
///
/// # Errors
///
/// [`Error::Unknown`] if nothing is mapped there, or the client has mapped the address in several
/// address spaces.
pub fn find(
    mappings: &[Mapping],
    client: Handle,
    address: u64,
    bytes: u64,
) -> Result<Place, Error> {
    let mapping = only(mappings, client, address, bytes)?;
    let place = mapping.find(client, address, bytes);
    place.ok_or(Error::Unknown)
}

/// Returns the only mapping of a client that covers `bytes` at a GPU virtual address.
fn only(mappings: &[Mapping], client: Handle, address: u64, bytes: u64) -> Result<&Mapping, Error> {
    let covers = |mapping: &&Mapping| mapping.find(client, address, bytes).is_some();
    let mut found = mappings.iter().filter(covers);
    let mapping = found.next().ok_or(Error::Unknown)?;
    match found.next() {
        None => Ok(mapping),
        Some(_) => Err(Error::Unknown),
    }
}

/// A part of a mapping that the driver maps for itself, to read segments there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    mapping: Mapping,
    /// Where the part lies.
    pub place: Place,
    /// GPU virtual address of the part.
    address: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// Most windows of one open file.
pub const WINDOWS_MAX: usize = 32;

impl Window {
    /// Distance between windows of a mapping.
    const STEP: u64 = 2 << 20;
    /// Bytes of a window: each segment that begins in the first [`STEP`](Self::STEP) bytes ends in
    /// it.
    const BYTES: u64 = Self::STEP + 4 * SEGMENT_WORDS as u64;

    /// Returns the window for `bytes` at a GPU virtual address of a client.
    ///
    /// # Errors
    ///
    /// Those of [`find`].
    pub fn of(
        mappings: &[Mapping],
        client: Handle,
        address: u64,
        bytes: u64,
    ) -> Result<Self, Error> {
        let mapping = *only(mappings, client, address, bytes)?;
        let from = address.saturating_sub(mapping.address);
        let start = from.saturating_sub(from % Self::STEP);
        let left = mapping.bytes.saturating_sub(start);
        Ok(Self {
            mapping,
            place: Place {
                memory: mapping.place.memory,
                offset: mapping.place.offset.saturating_add(start),
            },
            address: mapping.address.saturating_add(start),
            bytes: left.min(Self::BYTES),
        })
    }

    /// Returns the offset of `bytes` at a GPU virtual address of a client, if they lie inside.
    pub fn offset_of(&self, client: Handle, address: u64, bytes: u64) -> Option<u64> {
        let from = address.checked_sub(self.address)?;
        let fits = from.checked_add(bytes)? <= self.bytes;
        (fits && self.mapping.client == client).then_some(from)
    }

    /// Returns the client whose memory it shows.
    pub fn client(&self) -> Handle {
        self.mapping.client
    }

    /// Returns whether the window's mapping is still there.
    pub fn is_in(&self, mappings: &[Mapping]) -> bool {
        mappings.contains(&self.mapping)
    }
}

/// The address space of a channel group or of a context share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The client.
    pub client: Handle,
    /// The channel group or the context share.
    pub object: Handle,
    /// The address space; 0 is the device's own.
    pub space: Handle,
}

impl Space {
    /// Returns whether this is forgotten when an object is freed.
    pub fn goes_with(&self, client: Handle, object: Handle) -> bool {
        self.client == client && [client, self.object, self.space].contains(&object)
    }
}

/// Returns the address space of a channel: that of its context share, or else the one that it names
/// itself, or else that of the channel group below which it is made. 0 is none that is known.
pub fn space_of(spaces: &[Space], client: Handle, [own, share, group]: [Handle; 3]) -> Handle {
    let known = |object: Handle| {
        let mut all = spaces.iter().rev();
        let found = all.find(|space| (space.client, space.object) == (client, object));
        found.map_or(0, |space| space.space)
    };
    match (share, own) {
        (0, 0) => known(group),
        (0, own) => own,
        (share, _) => known(share),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const CLIENT: Handle = 0xc1;

    fn map(range: Handle, memory: Handle, offset: u64, address: u64, bytes: u64) -> Change {
        let mut call = [0; nvos46::SIZE];
        let mut set = |at: usize, value: &[u8]| call[at..at + value.len()].copy_from_slice(value);
        set(nvos46::CLIENT, &CLIENT.to_le_bytes());
        set(nvos46::RANGE, &range.to_le_bytes());
        set(nvos46::MEMORY, &memory.to_le_bytes());
        set(nvos46::OFFSET, &offset.to_le_bytes());
        set(nvos46::LENGTH, &bytes.to_le_bytes());
        set(nvos46::ADDRESS, &address.to_le_bytes());
        Change::decode(nv::NV_ESC_RM_MAP_MEMORY_DMA, &call).unwrap()
    }

    fn unmap(range: Handle, address: u64) -> Change {
        let mut call = [0; nvos47::SIZE];
        let mut set = |at: usize, value: &[u8]| call[at..at + value.len()].copy_from_slice(value);
        set(nvos47::CLIENT, &CLIENT.to_le_bytes());
        set(nvos47::RANGE, &range.to_le_bytes());
        set(nvos47::ADDRESS, &address.to_le_bytes());
        Change::decode(nv::NV_ESC_RM_UNMAP_MEMORY_DMA, &call).unwrap()
    }

    fn after(changes: &[Change]) -> Vec<Mapping> {
        let mut all: Vec<Mapping> = Vec::new();
        for change in changes {
            all.retain(|mapping| !mapping.is_gone_after(change));
            if let Change::Added(mapping) = change {
                all.push(*mapping);
            }
        }
        all
    }

    #[test]
    fn a_ring_is_found_in_the_middle_of_a_mapping() {
        let all = after(&[
            map(1, 5, 0x100, 0x1000, 0x3000),
            map(1, 6, 0, 0x8000, 0x1000),
        ]);
        let find = |address, bytes| find(&all, CLIENT, address, bytes);
        let place = |memory, offset| Ok(Place { memory, offset });
        assert_eq!(find(0x1000, 0x3000), place(5, 0x100));
        assert_eq!(find(0x2000, 0x1000), place(5, 0x1100));
        assert_eq!(find(0x8ff8, 8), place(6, 0xff8));
        assert_eq!(find(0x8ff8, 16), Err(Error::Unknown));
        assert_eq!(find(0x0ff8, 16), Err(Error::Unknown));
        assert_eq!(find(u64::MAX, 16), Err(Error::Unknown));
        assert_eq!(super::find(&all, 0xc2, 0x1000, 8), Err(Error::Unknown));
    }

    #[test]
    fn what_was_unmapped_freed_or_mapped_again_is_gone() {
        let (one, two) = (map(1, 5, 0, 0x1000, 0x1000), map(1, 6, 0, 0x1800, 0x1000));
        assert_eq!(after(&[one, unmap(1, 0x1000)]), []);
        assert_eq!(after(&[one, unmap(2, 0x1000)]).len(), 1);
        assert_eq!(after(&[one, two]), after(&[two]));
        let [mapping] = after(&[one])[..] else {
            panic!("one mapping");
        };
        for gone in [CLIENT, 1, 5] {
            assert!(mapping.goes_with(CLIENT, gone));
        }
        assert!(!mapping.goes_with(CLIENT, 7) && !mapping.goes_with(0xc2, 5));
        assert!(!mapping.goes_with(CLIENT, 0), "a parent that is not known");
        let mapping = mapping.below(7);
        assert!(mapping.goes_with(CLIENT, 7) && !mapping.goes_with(0xc2, 7));
    }

    #[test]
    fn what_nvidia_uvm_cleared_or_mapped_again_is_gone() {
        let map = |at: (u64, Handle), client, address| {
            let place = Place {
                memory: 5,
                offset: 0,
            };
            Change::Added(Mapping::in_uvm(at, client, place, [address, 0x1000]))
        };
        let clear = |uvm, space, address| Change::Cleared {
            uvm,
            space,
            address,
            bytes: 0x1000,
        };
        let (one, other) = ((7, 0x90), (7, 0x91));
        let both = [map(one, CLIENT, 0x4000), map(other, CLIENT, 0x8000)];
        let left = |change| after(&[both[0], both[1], change]).len();
        assert_eq!(left(clear(7, 0, 0x4fff)), 1);
        assert_eq!(left(clear(7, 0x90, 0x4000)), 1);
        assert_eq!(left(clear(7, 0x91, 0x4000)), 2);
        assert_eq!(left(clear(8, 0, 0x4000)), 2);
        assert_eq!(left(clear(7, 0, 0x5000)), 2);
        assert_eq!(left(unmap(0x90, 0x4000)), 2, "not the resource manager's");
        // Memory of any client takes the place of another's, in the same space.
        assert_eq!(left(map(one, 0xc2, 0x4800)), 2);
        assert_eq!(left(map(other, 0xc2, 0x4800)), 3);
        assert_eq!(left(map((8, 0x90), 0xc2, 0x4800)), 3);
        let all = after(&both);
        let place = find(&all, CLIENT, 0x4800, 0x800);
        assert_eq!(place.map(|place| place.offset), Ok(0x800));
        for gone in [0x90, 5, CLIENT] {
            assert!(all[0].goes_with(CLIENT, gone));
        }
    }

    /// Checks that one address in two spaces, perhaps of two memories, is not known.
    #[test]
    fn an_address_of_two_spaces_is_not_known() {
        let all = after(&[map(1, 5, 0, 0x1000, 0x1000), map(2, 6, 0, 0x1000, 0x1000)]);
        assert_eq!(find(&all, CLIENT, 0x1000, 8), Err(Error::Unknown));
    }

    #[test]
    fn a_window_holds_each_segment_that_begins_in_it() {
        let (address, step) = (0x1_0000_0000, Window::STEP);
        let all = after(&[map(1, 5, 0x1000, address, 5 * step)]);
        for from in [0, 4, step - 4, step, 3 * step + 8] {
            let at = address + from;
            let window = Window::of(&all, CLIENT, at, 4 * SEGMENT_WORDS as u64).unwrap();
            let offset = window
                .offset_of(CLIENT, at, 4 * SEGMENT_WORDS as u64)
                .unwrap();
            assert_eq!(offset, from % step);
            assert_eq!(window.place.offset + offset, 0x1000 + from);
            assert!(window.is_in(&all) && !window.is_in(&[]));
            assert_eq!(window.offset_of(0xc2, at, 4), None);
        }
        let last = Window::of(&all, CLIENT, address + 5 * step - 4, 4).unwrap();
        assert_eq!(last.bytes, step, "not beyond the mapping");
        assert_eq!(last.offset_of(CLIENT, address + 5 * step - 4, 8), None);
        assert!(Window::of(&all, CLIENT, address + 5 * step - 4, 8).is_err());
    }

    /// Returns a structure of the driver with so many bytes and these words.
    fn structure(bytes: usize, words: &[(usize, u32)]) -> Vec<u8> {
        let mut call = std::vec![0; bytes];
        for (at, value) in words {
            call[*at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        call
    }

    // The words are those of the headers of 580.142: flags2 and kindOverride precede the address.
    #[test]
    fn a_mapping_of_580_is_found_at_its_address() {
        let words = [(0, CLIENT), (8, 1), (12, 2), (16, 0x1000), (24, 0x2000)];
        let kind = [(36, 7), (40, 8), (48, 0x3000)];
        let call = structure(64, &[words.as_slice(), &kind].concat());
        let seen = Change::decode(nv::NV_ESC_RM_MAP_MEMORY_DMA, &call).unwrap();
        assert_eq!(seen, map(1, 2, 0x1000, 0x3000, 0x2000));
        let refused = structure(64, &[words.as_slice(), &kind, &[(56, 0x51)]].concat());
        assert_eq!(Change::decode(nv::NV_ESC_RM_MAP_MEMORY_DMA, &refused), None);
    }

    // The words are those of the headers of 550.163.01: a size precedes the status.
    #[test]
    fn an_unmapping_of_550_takes_the_mapping_away() {
        let words = [(0, CLIENT), (8, 1), (12, 2), (24, 0x3000), (32, 0x2000)];
        let call = structure(48, &words);
        let seen = Change::decode(nv::NV_ESC_RM_UNMAP_MEMORY_DMA, &call);
        assert_eq!(seen, Some(unmap(1, 0x3000)));
        let left = after(&[map(1, 2, 0x1000, 0x3000, 0x2000), unmap(1, 0x3000)]);
        assert_eq!(left, []);
    }

    #[test]
    fn a_refused_call_changes_nothing() {
        let mut call = [0; nvos46::SIZE];
        call[nvos46::STATUS] = 0x51;
        assert_eq!(Change::decode(nv::NV_ESC_RM_MAP_MEMORY_DMA, &call), None);
        assert_eq!(
            Change::decode(nv::NV_ESC_RM_MAP_MEMORY_DMA, &call[1..]),
            None
        );
        assert_eq!(Change::decode(nv::NV_ESC_RM_FREE, &call), None);
    }

    #[test]
    fn a_channel_uses_the_space_of_its_share_or_of_its_group() {
        let of = |object, space| Space {
            client: CLIENT,
            object,
            space,
        };
        // A handle that was freed and given again has its later space.
        let spaces = [of(1, 10), of(2, 20), of(1, 11)];
        let space = |own, share, group| space_of(&spaces, CLIENT, [own, share, group]);
        assert_eq!(space(0, 0, 1), 11);
        assert_eq!(space(30, 0, 1), 30);
        assert_eq!(space(30, 2, 1), 20);
        assert_eq!(space(0, 3, 1), 0);
        assert_eq!(space_of(&spaces, 0xc2, [0, 0, 1]), 0);
    }
}
