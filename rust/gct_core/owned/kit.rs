// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Builds the parameters of the objects that the driver allocates for owned channels, and names
//! them.

use super::{FRAMES, MARKS, SEGMENT_WORDS, WHOLE_SLOTS};
use crate::lane::split::ATOMS_MAX;
use crate::lane::whole;
use crate::rmapi::nv::{self, device, memory, memory_virtual, usermode};
use crate::rmapi::Handle;
use crate::submit::limits::SLOT_WORDS;

/// Bytes of the longest parameters; what a driver reads beyond the known fields is 0.
pub const PARAMS_BYTES: usize = 256;

/// Parameters of an allocation.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct Params(pub [u8; PARAMS_BYTES]);

impl Params {
    const ZERO: Self = Self([0; PARAMS_BYTES]);

    fn with(mut self, at: usize, value: &[u8]) -> Self {
        for (to, from) in self.0.iter_mut().skip(at).zip(value) {
            *to = *from;
        }
        self
    }

    /// Returns those of a client, which the resource manager answers with its handle.
    pub const fn client() -> Self {
        Self::ZERO
    }

    /// Returns those of a device by its instance.
    pub fn device(instance: u32) -> Self {
        Self::ZERO.with(device::DEVICE_ID, &instance.to_le_bytes())
    }

    /// Returns those of a device's only subdevice.
    pub const fn subdevice() -> Self {
        Self::ZERO
    }

    /// Returns those of the doorbell in BAR1. A write there arrives after earlier ones to device
    /// memory, which lies in BAR1 too.
    pub fn doorbell() -> Self {
        Self::ZERO.with(usermode::IN_BAR1, &[1])
    }

    /// Returns those of so much host memory, cached.
    pub fn host_memory(owner: Handle, bytes: u64) -> Self {
        /// `NVOS32_ATTR_COHERENCY_CACHED`.
        const CACHED: u32 = 1 << 29;
        let attributes = nv::NVOS32_ATTR_LOCATION_PCI << 25 | CACHED;
        Self::device_memory(owner, bytes).with(memory::ATTR, &attributes.to_le_bytes())
    }

    /// Returns those of so much device memory that only the kernel may map for writing.
    pub fn kernel_memory(owner: Handle, bytes: u64) -> Self {
        /// `NVOS32_ATTR2_PROTECTION_USER_READ_ONLY`.
        const USERS_READ: u32 = 1 << 22;
        Self::device_memory(owner, bytes).with(memory::ATTR2, &USERS_READ.to_le_bytes())
    }

    /// Returns those of so much device memory.
    pub fn device_memory(owner: Handle, bytes: u64) -> Self {
        Self::ZERO
            .with(memory::OWNER, &owner.to_le_bytes())
            .with(memory::LENGTH, &bytes.to_le_bytes())
    }

    /// Returns those of a range of virtual memory in an address space.
    pub fn range(space: Handle) -> Self {
        Self::ZERO.with(memory_virtual::ADDRESS_SPACE, &space.to_le_bytes())
    }

    /// Returns the handle that the resource manager has written for [`client`](Self::client).
    pub fn handle(&self) -> Handle {
        self.0.first_chunk().copied().map_or(0, u32::from_le_bytes)
    }
}

/// Bytes of the driver's ring, of the memory with its USERD, and of that with the progress word.
pub const PAGE: u64 = 4096;

/// Words for copies of a channel's segments: the longest one with what is added to it, and what
/// ends batches.
pub const COPIES_WORDS: u32 = SEGMENT_WORDS as u32 + MARKS as u32 * 32;

const _: () = assert!(MARKS * 32 >= MARKS * 11 + whole::ADDED_WORDS);

/// Words of the slots of the atoms of one launch.
pub const FRAME_WORDS: usize = ATOMS_MAX as usize * SLOT_WORDS;

/// Offset of the slots, and their words: behind the copies.
pub const SLOTS: u64 = PAGE + COPIES_WORDS as u64 * 4;
/// Words of all slots.
pub const SLOTS_WORDS: usize = FRAMES * FRAME_WORDS;

/// Offset of the slots of launches that stay whole, and their words: behind those of atoms.
pub const WHOLE: u64 = SLOTS + SLOTS_WORDS as u64 * 4;
/// Words of these slots.
pub const WHOLE_WORDS: usize = WHOLE_SLOTS as usize * SLOT_WORDS;

/// Bytes of the memory that the GPU only reads: the ring, the copies, the slots.
pub const RING_BYTES: u64 = WHOLE + WHOLE_WORDS as u64 * 4;

const _: () = assert!(RING_BYTES % PAGE == 0 && SLOTS % PAGE == 0 && WHOLE % PAGE == 0);

/// Offset of the words that atoms write, behind the progress word.
pub const DONE: u64 = 256;
/// Number of these words.
pub const DONE_WORDS: usize = FRAMES * ATOMS_MAX as usize;

/// Offset of the words that launches from slots write, behind those of atoms.
pub const WHOLE_DONE: u64 = DONE + DONE_WORDS as u64 * 4;

const _: () = assert!(WHOLE_DONE + WHOLE_SLOTS as u64 * 4 <= PAGE);

/// `NVOS46_FLAGS_ACCESS_READ_WRITE`: the GPU may read and write the mapping.
pub const GPU_WRITES: u32 = 0;

/// `NVOS46_FLAGS_ACCESS_READ_ONLY`: the GPU may read the mapping and not write it.
pub const GPU_READS: u32 = 1;

/// What one owned channel is made of, as names of the driver's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The real ring, the copies of segments, and the slots of atoms.
    Ring,
    /// The real USERD.
    Userd,
    /// The tenant's address space.
    Space,
    /// Where ring, copies and progress word are mapped in that.
    Range,
    /// The memory of the tenant's ring.
    TenantRing,
    /// The memory of the tenant's USERD.
    TenantUserd,
    /// The progress word of the copies, and what atoms write.
    Progress,
}

impl Part {
    /// All, in the order in which they are freed: mappings before what is mapped.
    pub const ALL: [Self; 7] = [
        Self::Range,
        Self::Space,
        Self::Ring,
        Self::Userd,
        Self::TenantRing,
        Self::TenantUserd,
        Self::Progress,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_say_what_is_asked() {
        let host = Params::host_memory(7, PAGE);
        let at = |params: &Params, at: usize| params.0[at..at + 4].to_vec();
        assert_eq!(at(&host, memory::ATTR), 0x2200_0000_u32.to_le_bytes());
        assert_eq!(at(&host, memory::LENGTH), 4096_u32.to_le_bytes());
        assert_eq!(at(&host, memory::OWNER), 7_u32.to_le_bytes());
        assert_eq!(at(&Params::device_memory(7, 1), memory::ATTR), [0; 4]);
        assert_eq!(Params::device(3).handle(), 3);
        assert_eq!(
            at(&Params::range(9), memory_virtual::ADDRESS_SPACE),
            9_u32.to_le_bytes()
        );
        assert_eq!(Params::doorbell().0[usermode::IN_BAR1], 1);
    }
}
