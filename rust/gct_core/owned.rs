// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides what an owned channel is made of.
//!
//! Terminology
//!   owned    a channel whose ring and USERD the driver allocated; the tenant can write neither
//!   mailbox  what the tenant allocated instead; only the driver reads it
//!   range    the tenant's virtual memory object, below which it maps memory for the GPU
//!
//! A channel is owned from its allocation or not at all: the resource manager is given other
//! parameters than the tenant wrote. What the tenant reads back is what it wrote. A channel from
//! before can be [shadowed](shadow) at most.
//!
//! | module | contents |
//! |---|---|
//! | [`maps`] | where in the tenant's memory objects its rings lie |
//! | [`cpu_maps`] | which mappings by the processor end, and when |
//! | [`turns`] | how long a tenant is served in a row, and how long a round takes |
//! | [`worker`] | how much a round of the worker takes, and when it begins |
//! | [`kit`] | parameters of what the driver allocates |
//! | [`uvm`] | address spaces of nvidia-uvm |
//! | [`shadow`] | which channels from before a limit the driver can come between |
//! | [`names`] | names in the driver's client, and of what the driver takes one |
//! | `params` | which parameters of the tenant are read |

pub mod bells;
pub mod cpu_maps;
pub mod kit;
pub mod maps;
pub mod names;
mod params;
pub mod shadow;
pub mod turns;
pub mod uvm;
pub mod worker;

use crate::features::{Feature, Sees};
use crate::gpu::GpuFacts;
use crate::iface::{files, File};
use crate::rmapi::channel::{ChannelMemory, ChannelParams};
use crate::rmapi::nv::channel;
use crate::rmapi::{word, Handle};
use maps::{Mapping, Place, Space};

/// Number of entries of a real ring: one page. The tenant's may be longer or shorter.
pub const REAL_ENTRIES: u32 = 512;
/// Words of the longest segment that is read at once, and copied. Each channel has memory for one.
/// Longer ones are read in pieces of half as many words, as the uploads of CUDA graphs with more
/// than some 250 nodes.
pub const SEGMENT_WORDS: usize = 1 << 16;
/// Launches of one segment that are masked.
pub const LAUNCHES_MAX: usize = 1024;
/// Nodes of CUDA graphs that are known of one process on a GPU. A server of language models
/// captures a graph for each of some 70 sizes of a batch, with up to 2000 nodes each. Others keep
/// their masks, or are refused.
pub const NODES_MAX: usize = 1 << 18;
/// Nodes for which a process has room at first, and for which room is added. No segment has more,
/// so one that uploads a graph waits once at most.
pub const NODES_STEP: usize = 2 * LAUNCHES_MAX;
/// Kernels of one process on a GPU whose durations are known, and places, a half each.
pub const KERNELS_MAX: usize = 2048;
/// Kernels and graphs of one process on a GPU that have a size by `slip.tpc`.
pub const LAWS_MAX: usize = 256;
/// Batches of copies that one channel may have in flight.
pub const MARKS: usize = 64;
/// Launches of one channel whose slots may be in use. The last atom of one waits for the others, so
/// two are enough for launches that follow each other.
pub const FRAMES: usize = 2;
/// Launches of one channel that may run or wait under a mask without being split: a power of two.
pub const WHOLE_SLOTS: u32 = 128;
/// Bytes of an entry.
pub const ENTRY_BYTES: u32 = 8;
/// Bytes of a channel's USERD (`NV_RAMUSERD_CHAN_SIZE`).
pub const USERD_BYTES: u64 = 512;
/// Words of 32 bits in it.
pub const USERD_WORDS: usize = 128;
/// Offset of GP_GET in USERD.
pub const GP_GET: u32 = 0x88;
/// Offset of GP_PUT in USERD.
pub const GP_PUT: u32 = 0x8c;
/// Offset of the doorbell in the page of `HOPPER_USERMODE_A`.
pub const DOORBELL: u32 = 0x90;
/// Most entries that a ring of a tenant may have.
const TENANT_ENTRIES_MAX: u32 = 1 << 20;

/// PCI device numbers of Hopper GPUs whose memory is the processor's, too: those of Grace Hopper in
/// NVIDIA's list of products (0x2342) and in the PCI ID database.
const COHERENT: [u16; 3] = [0x2342, 0x2345, 0x2348];

/// Returns whether channels of a GPU can be owned: those of Hopper, unless its memory is the
/// processor's, too. The numbers here describe its rings, USERD and doorbells. Memory of the
/// processor's has pages, and whoever revokes or replaces its mappings must know of them. The
/// driver says later for sure whether it is that (`gct_helper_gpu_hold`).
pub fn can_own(facts: &GpuFacts) -> bool {
    facts.architecture() == Some("hopper") && !COHERENT.contains(&facts.ids.device)
}

/// Returns whether a write to a file may change the limits on launches.
pub fn concerns(file: File) -> bool {
    // Whose limits a process has changes with its group.
    let of_members = matches!(file, File::Control | File::GroupProcs | File::GroupCgroup);
    let entry = files::entry(file);
    let sees = entry.feature.map(Feature::sees);
    let of_launches = entry.place == files::Place::Pool && sees == Some(Sees::Launches);
    of_members || of_launches || file == File::ComputeFreeze
}

/// Why a channel stays its tenant's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Native {
    /// Its parameters are not complete: the resource manager will refuse it, or allocate USERD
    /// itself.
    Params,
    /// It is not known where its ring lies.
    Ring,
    /// It is not known which address space it has.
    Space,
}

/// What the tenant asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// GPU virtual address of the tenant's ring.
    pub ring: u64,
    /// Its entries.
    pub entries: u32,
    /// The memory object with the tenant's USERD.
    pub userd: Handle,
    /// Where USERD begins in it.
    pub userd_offset: u64,
    /// The context share, or 0.
    pub share: Handle,
    /// The address space, if the channel names one itself, or 0.
    pub space: Handle,
}

impl Request {
    /// Bytes of the parameters that are read.
    pub const BYTES: usize = ChannelMemory::BYTES;

    /// Reads a channel's parameters.
    ///
    /// # Errors
    ///
    /// [`Native::Params`].
    pub fn decode(params: &[u8]) -> Result<Self, Native> {
        let basics = ChannelParams::decode(params).ok_or(Native::Params)?;
        let handle = |at: usize| {
            let bytes = params.get(at..at.saturating_add(4));
            let word = bytes.and_then(word).ok_or(Native::Params)?;
            Handle::try_from(word).map_err(|_| Native::Params)
        };
        let entries = basics.entries;
        let has_entries = (2..=TENANT_ENTRIES_MAX).contains(&entries);
        let is_aligned = basics.ring_va % 8 == 0 && basics.userd_offset % 4 == 0;
        if basics.userd_memory == 0 || !has_entries || !is_aligned {
            return Err(Native::Params);
        }
        Ok(Self {
            ring: basics.ring_va,
            entries,
            userd: basics.userd_memory,
            userd_offset: basics.userd_offset,
            share: handle(channel::CONTEXT_SHARE)?,
            space: handle(channel::ADDRESS_SPACE)?,
        })
    }

    /// Returns where the channel's mailbox lies, and its address space, as far as the open file's
    /// mappings and spaces tell. `client` and `group` are those of the call.
    ///
    /// # Errors
    ///
    /// [`Native::Ring`], [`Native::Space`].
    pub fn mailbox(
        &self,
        mappings: &[Mapping],
        spaces: &[Space],
        [client, group]: [Handle; 2],
    ) -> Result<(Mailbox, Handle), Native> {
        let ring = maps::find(mappings, client, self.ring, ring_bytes(self.entries));
        let mailbox = Mailbox {
            ring: ring.map_err(|_| Native::Ring)?,
            entries: self.entries,
            userd: Place {
                memory: self.userd,
                offset: self.userd_offset,
            },
        };
        match maps::space_of(spaces, client, [self.space, self.share, group]) {
            0 => Err(Native::Space),
            space => Ok((mailbox, space)),
        }
    }
}

/// Returns the bytes of a ring.
fn ring_bytes(entries: u32) -> u64 {
    // INVARIANT: at most 2^20 entries.
    u64::from(entries).saturating_mul(u64::from(ENTRY_BYTES))
}

/// Where in the tenant's memory the mailbox lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mailbox {
    /// The ring.
    pub ring: Place,
    /// Number of its entries.
    pub entries: u32,
    /// USERD.
    pub userd: Place,
}

impl Mailbox {
    /// Returns the bytes of the ring.
    pub fn ring_bytes(&self) -> u64 {
        ring_bytes(self.entries)
    }
}

/// A field of a channel's parameters that the resource manager reads otherwise than the tenant
/// wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Offset in the parameters.
    pub offset: u32,
    /// Size of the field, 4 or 8.
    pub bytes: u32,
    /// What the resource manager reads.
    pub value: u64,
}

/// Returns how a channel's parameters are changed. `userd` names the driver's USERD in the tenant's
/// client.
pub const fn swaps(ring: u64, userd: Handle) -> [Swap; 4] {
    const fn swap(offset: usize, bytes: u32, value: u64) -> Swap {
        Swap {
            // CAST: an offset below 2^32.
            offset: offset as u32,
            bytes,
            value,
        }
    }
    [
        swap(channel::RING, 8, ring),
        swap(channel::ENTRIES, 4, REAL_ENTRIES as u64),
        swap(channel::USERD_MEMORY, 4, userd as u64),
        swap(channel::USERD_OFFSET, 8, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{Backend, PciAddress};

    #[test]
    fn hopper_is_owned_unless_its_memory_is_the_processors() {
        let pci = PciAddress {
            domain: 0,
            bus: 1,
            slot: 0,
            function: 0,
        };
        let mut facts = GpuFacts::new(1, pci, Backend::Kernel);
        assert!(!can_own(&facts));
        facts.boot_42 = 0x180a_1000;
        // H100 SXM, H100 PCIe, H200, H20.
        for device in [0x2330, 0x2331, 0x2335, 0x2329] {
            facts.ids.device = device;
            assert!(can_own(&facts), "{device:#x}");
        }
        for device in COHERENT {
            facts.ids.device = device;
            assert!(!can_own(&facts), "{device:#x}");
        }
    }

    fn params() -> [u8; Request::BYTES] {
        let mut bytes = [0; Request::BYTES];
        let mut set = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        set(channel::RING, &0x1_2345_6000_u64.to_le_bytes());
        set(channel::ENTRIES, &1024_u32.to_le_bytes());
        set(channel::CONTEXT_SHARE, &7_u32.to_le_bytes());
        set(channel::ADDRESS_SPACE, &8_u32.to_le_bytes());
        set(channel::USERD_MEMORY, &9_u32.to_le_bytes());
        set(channel::USERD_OFFSET, &0x400_u64.to_le_bytes());
        bytes
    }

    fn with(at: usize, value: &[u8]) -> Result<Request, Native> {
        let mut bytes = params();
        bytes[at..at + value.len()].copy_from_slice(value);
        Request::decode(&bytes)
    }

    #[test]
    fn parameters_are_read() {
        let request = Request::decode(&params()).unwrap();
        assert_eq!((request.ring, request.entries), (0x1_2345_6000, 1024));
        assert_eq!((request.share, request.space), (7, 8));
        assert_eq!((request.userd, request.userd_offset), (9, 0x400));
        assert_eq!(ring_bytes(request.entries), 8192);
    }

    #[test]
    fn what_cannot_be_served_stays_the_tenants() {
        let refused = Err(Native::Params);
        assert_eq!(
            Request::decode(&params()[..ChannelParams::BYTES - 1]),
            refused
        );
        assert_eq!(with(channel::USERD_MEMORY, &[0; 4]), refused);
        assert_eq!(with(channel::ENTRIES, &[0; 4]), refused);
        assert_eq!(with(channel::ENTRIES, &[1, 0, 0, 0]), refused);
        assert_eq!(with(channel::ENTRIES, &[0xff; 4]), refused);
        assert_eq!(with(channel::RING, &[4]), refused);
        assert_eq!(with(channel::USERD_OFFSET, &[2]), refused);
    }

    /// Checks that the swaps turn the parameters into a request that names nothing of the tenant's.
    #[test]
    fn the_swaps_replace_ring_and_userd() {
        let mut bytes = params();
        for swap in swaps(0x7_0000_1000, 0xabcd) {
            let (at, len) = (swap.offset as usize, swap.bytes as usize);
            bytes[at..at + len].copy_from_slice(&swap.value.to_le_bytes()[..len]);
        }
        let request = Request::decode(&bytes).unwrap();
        assert_eq!(
            (request.ring, request.entries),
            (0x7_0000_1000, REAL_ENTRIES)
        );
        assert_eq!((request.userd, request.userd_offset), (0xabcd, 0));
        assert_eq!((request.share, request.space), (7, 8));
    }
}
