// SPDX-License-Identifier: GPL-2.0 OR MIT

//! States every maximum of the submission path, with its reason.

/// Words of one pushbuffer segment: `GP_ENTRY1_LENGTH` has 21 bits.
pub const SEGMENT_WORDS_MAX: u32 = (1 << 21) - 1;

/// Data words of one method header: its count has 13 bits.
pub const BURST_WORDS_MAX: u32 = (1 << 13) - 1;

/// Inline-to-memory uploads of one segment that are remembered for a later PCAS. A CUDA launch
/// makes five, a graph node three. The oldest are forgotten; a PCAS that names one of them passes
/// through and is counted.
pub const UPLOADS: usize = 32;

/// Words of a mask of TPCs: 256 TPCs. An H200 has 66, a full GB202 96; Blackwell's QMD has room for
/// 256.
pub const MASK_WORDS: usize = 8;

/// TPCs of a mask.
pub const TPCS_MAX: u16 = 256;

/// Atoms of one launch. `DEPENDENCE_COUNTER` would allow 65535, and 100 have been run. At 64 an
/// atom costs 5% of a grid of 370 us (`gctgroup-docs/hardware.md`), so more are of no use.
pub const ATOMS_MAX: u32 = 256;

/// Launches of one segment that are split. CUDA puts one launch into a segment; further ones are
/// masked and left whole.
pub const SPLITS: usize = 16;

/// Distance of two QMD slots in bytes: 384, rounded up to the alignment of 256 that `SEND_PCAS_A`
/// implies.
pub const SLOT_BYTES: u64 = 512;

/// Distance of two QMD slots in words.
pub const SLOT_WORDS: usize = 128;

/// End of the addresses of QMDs: `SEND_PCAS_A` carries 32 bits of an address shifted right by 8.
pub const QMD_VA_END: u64 = 1 << 40;

/// Words of the largest QMD.
pub const QMD_WORDS_MAX: usize = 96;

/// Launches of CUDA graphs of one segment that are listed
/// ([`unroll`](super::graph::Memory::unroll)).
/// The largest graph in a capture has 731.
pub const STEPS: usize = 8192;

/// Nodes that are followed from the head of one graph. CUDA cuts graphs into chains long before.
pub const GRAPH_NODES_MAX: usize = 4096;
