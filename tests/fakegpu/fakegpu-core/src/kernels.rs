// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Knows what a few kernels do, by their machine code, which is not executed.
//!
//! ```text
//! code        up to the branch to itself that ends a kernel; its FNV-1a hash names the kernel
//! constants   bank 0, whose address the launch has: blockDim at 0, gridDim at 0xc, parameters
//!             from 0x210 on (sm_90)
//! ```
//!
//! Each block does its share as a loop over the whole grid does: of every `gridDim` times
//! `blockDim` elements the `blockDim` at its index. So a block that does not run leaves its
//! elements as they were, and one that runs twice is not noticed.

use crate::bits::low_u32;
use crate::faults::Place;
use crate::memory::PhysicalMemory;
use crate::touch::{Access, Share};
use fnv::FnvHasher;
use gct_model::{Blocks, Kernel};
use std::hash::Hasher;

/// Number of low bits of a constant bank's address that a launch does not store.
const CONSTANTS_SHIFT: u32 = 6;
/// Offsets in constant bank 0.
const BLOCK_DIM: u64 = 0;
const GRID_DIM: u64 = 0xc;
const PARAMETERS: u64 = 0x210;
/// BRA to itself, which ends each kernel; further bits are the scheduler's.
const LAST: u64 = 0xffff_fffc_00fc_7947;
/// Maximum number of instructions of a kernel that is known.
const INSTRUCTIONS_MAX: u64 = 256;
/// Bytes of an element of each kernel that is known.
const WORD_BYTES: u64 = 4;

/// What a kernel does, by its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// u64 address, u64 value, u64 number of words.
    Fill,
    /// u64 address, u32 value, u32 number of words.
    FillShort,
    /// u64 destination, u64 source, u64 number of words.
    Copy,
}

/// The kernels, by the hash of their code.
const KNOWN: &[(u64, Effect)] = &[
    // cuMemsetD32 and a copy on the device, of libcuda 535.261.03.
    (0x1b07_dd5c_9d78_e9f7, Effect::Fill),
    (0x3864_cf21_6d00_92f4, Effect::Copy),
    // fill of tests/cuda-client/src/kernels.ptx, compiled by 535.261.03.
    (0x49f0_b977_1dcb_3d16, Effect::FillShort),
];

/// Returns the accesses of the blocks of a launch, if its kernel is known.
pub fn accesses(
    memory: &PhysicalMemory,
    place: &Place,
    kernel: &Kernel,
    blocks: &[Blocks],
) -> Option<Vec<Access>> {
    let hash = hash(memory, place, kernel.program)?;
    let known = KNOWN.iter().find(|(known, _)| *known == hash);
    if known.is_none() {
        log::info!("a kernel whose effect is not known: {hash:#x}");
    }
    shares(memory, place, (known?.1, kernel.constants), blocks)
}

/// Returns the accesses of some blocks of a kernel with an effect and constants.
fn shares(
    memory: &PhysicalMemory,
    place: &Place,
    (effect, constants): (Effect, u64),
    blocks: &[Blocks],
) -> Option<Vec<Access>> {
    let bank = constants << CONSTANTS_SHIFT;
    let word = |at: u64| place.space.read_u64(memory, bank.checked_add(at)?).ok();
    let half = |at: u64| word(at).map(low_u32);
    let parameter = |at: u64| word(PARAMETERS + at);
    let (threads, grid) = (half(BLOCK_DIM)?, u64::from(half(GRID_DIM)?));
    let threads = u64::from(threads) * WORD_BYTES;
    let (to, second, words) = (parameter(0)?, parameter(8)?, parameter(16)?);
    let words = match effect {
        Effect::FillShort => u64::from(half(PARAMETERS + 12)?),
        Effect::Fill | Effect::Copy => words,
    };
    let share = |block: u32| Share {
        bytes: words.saturating_mul(WORD_BYTES),
        first: threads.saturating_mul(u64::from(block)),
        length: threads,
        stride: threads.saturating_mul(grid),
    };
    let indices = blocks
        .iter()
        .flat_map(|blocks| blocks.x.start..blocks.x.end);
    let access = |block| match effect {
        Effect::Copy => Access::copy(to, second, share(block)),
        Effect::Fill | Effect::FillShort => Access::fill(to, low_u32(second), share(block)),
    };
    Some(indices.map(access).collect())
}

/// Returns the hash of the code at an address. Returns `None` if no kernel ends there.
fn hash(memory: &PhysicalMemory, place: &Place, program: u64) -> Option<u64> {
    let mut hasher = FnvHasher::default();
    for at in 0..INSTRUCTIONS_MAX {
        let address = program.checked_add(16 * at)?;
        let low = place.space.read_u64(memory, address).ok()?;
        let high = place.space.read_u64(memory, address.checked_add(8)?).ok()?;
        hasher.write_u64(low);
        hasher.write_u64(high);
        if low == LAST {
            return Some(hasher.finish());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PhysicalAddress;
    use crate::testing::Bench;
    use crate::touch::{Progress, Touch};
    use gct_model::Span;

    const CODE: u64 = 0x1_0000;
    const BANK: u64 = 0x2_0000;
    const TO: u64 = 0x3_0000;
    const FROM: u64 = 0x4_0000;
    /// A grid of 4 blocks of 8 threads.
    const DIMENSIONS: [(u64, u64); 2] = [(BLOCK_DIM, 1 << 32 | 8), (8, 4 << 32 | 1)];
    const WORDS: u64 = 70;

    fn store(bench: &mut Bench, at: u64, word: u64) {
        bench
            .memory
            .write_u64(PhysicalAddress::video(at), word)
            .unwrap();
    }

    fn words(bench: &Bench, from: u64) -> Vec<u32> {
        let at = |word: u64| PhysicalAddress::video(from + 4 * word);
        let words = (0..WORDS + 2).map(|word| bench.memory.read_u32(at(word)).unwrap());
        words.collect()
    }

    /// Runs some blocks of a kernel. Returns the words at [`TO`].
    fn run(effect: Effect, parameters: [u64; 3], blocks: [(u32, u32); 2]) -> Vec<u32> {
        let mut bench = Bench::new();
        for word in 0..WORDS {
            store(&mut bench, FROM + 4 * word, 100 + word);
        }
        let parameters = (PARAMETERS..).step_by(8).zip(parameters);
        for (at, word) in parameters.chain(DIMENSIONS) {
            store(&mut bench, BANK + at, word);
        }
        let place = bench.place(false);
        let one = || Span::new(0, 1);
        let blocks = blocks.map(|(start, end)| Blocks {
            x: Span::new(start, end),
            y: one(),
            z: one(),
        });
        let bank = bench.va(BANK) >> CONSTANTS_SHIFT;
        let accesses = shares(&bench.memory, &place, (effect, bank), &blocks).unwrap();
        assert_eq!(accesses.len(), 3);
        let mut touch = Touch::new(accesses);
        let done = touch.advance(&mut bench.work(), &place);
        assert_eq!(done, Ok(Progress::Done));
        words(&bench, TO)
    }

    /// Returns what blocks 0, 1 and 3 leave of 4 that write `element` of each index.
    fn expected(element: impl Fn(u32) -> u32) -> Vec<u32> {
        let written = |index: u32| index < 70 && index / 8 % 4 != 2;
        let words = (0..72).map(|index| if written(index) { element(index) } else { 0 });
        words.collect()
    }

    #[test]
    fn each_block_does_its_share() {
        let va = |at| Bench::new().va(at);
        let blocks = [(0, 2), (3, 4)];
        let filled = run(Effect::Fill, [va(TO), 7 << 32 | 9, WORDS], blocks);
        assert_eq!(filled, expected(|_| 9));
        let filled = run(Effect::FillShort, [va(TO), WORDS << 32 | 9, 0], blocks);
        assert_eq!(filled, expected(|_| 9));
        let copied = run(Effect::Copy, [va(TO), va(FROM), WORDS], blocks);
        assert_eq!(copied, expected(|index| 100 + index));
    }

    #[test]
    fn code_ends_with_its_last_branch() {
        let mut bench = Bench::new();
        let place = bench.place(false);
        let hash = |bench: &Bench| hash(&bench.memory, &place, bench.va(CODE));
        assert_eq!(hash(&bench), None);
        store(&mut bench, CODE, 5);
        store(&mut bench, CODE + 16, LAST);
        let known = hash(&bench);
        assert!(known.is_some());
        store(&mut bench, CODE + 32, 5);
        assert_eq!(hash(&bench), known);
        store(&mut bench, CODE + 8, 5);
        assert_ne!(hash(&bench), known);
    }
}
