// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts what the copy engines move, by engine and direction, and shows it to the guest.
//!
//! No GPU has these registers. They lie beside the recorder's (journal.rs), four words for each
//! engine and direction: operations, then bytes, the low word first. Fills are not counted.

use crate::memory::Location;
use crate::regs::GCT_COPIES;

/// Copy engines that are counted.
pub const ENGINES: usize = 4;
/// Words of one direction of an engine.
const WORDS: usize = 4;

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From system memory to video memory.
    In,
    /// From video memory to system memory.
    Out,
    /// Within one of the two.
    Within,
}

impl Direction {
    const ALL: [Self; 3] = [Self::In, Self::Out, Self::Within];

    /// Returns the direction from one memory to the other.
    pub fn between(source: Location, destination: Location) -> Self {
        match (source, destination) {
            (Location::System, Location::Video) => Self::In,
            (Location::Video, Location::System) => Self::Out,
            _ => Self::Within,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    operations: u64,
    bytes: u64,
}

/// What was copied since power-on.
#[derive(Debug, Default)]
pub struct Copies([[Count; Direction::ALL.len()]; ENGINES]);

impl Copies {
    /// Adds bytes that an engine has moved, and an operation if they are its first.
    pub fn add(&mut self, engine: u32, direction: Direction, bytes: u64, is_first: bool) {
        let engine = usize::try_from(engine)
            .ok()
            .and_then(|at| self.0.get_mut(at));
        let count = engine.and_then(|engine| engine.get_mut(direction as usize));
        if let Some(count) = count {
            count.operations += u64::from(is_first);
            count.bytes += bytes;
        }
    }

    /// Reads a register, if `offset` is one.
    pub(crate) fn read(&self, offset: u32) -> Option<u32> {
        let index = GCT_COPIES::index(offset)?;
        let count = self.0.as_flattened().get(index / WORDS)?;
        let number = match index % WORDS {
            0 | 1 => count.operations,
            _ => count.bytes,
        };
        // CAST: a half of the number.
        Some((number >> (32 * (index % 2))) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_and_direction_has_its_registers() {
        let mut copies = Copies::default();
        copies.add(2, Direction::Out, (5 << 32) + 7, true);
        copies.add(2, Direction::Out, 1, false);
        copies.add(4, Direction::Out, 1, true);
        let read = |index: u32| copies.read(GCT_COPIES::OFFSET + 4 * index);
        let first = 4 * (2 * 3 + 1);
        assert_eq!(
            [0, 1, 2, 3].map(|word| read(first + word)),
            [1, 0, 8, 5].map(Some)
        );
        let words = (0..48).filter_map(read);
        assert_eq!(words.map(u64::from).sum::<u64>(), 14, "all others are 0");
        assert_eq!((read(48), copies.read(0)), (None, None));
    }

    #[test]
    fn the_direction_is_seen_from_the_gpu() {
        let (video, system) = (Location::Video, Location::System);
        assert_eq!(Direction::between(system, video), Direction::In);
        assert_eq!(Direction::between(video, system), Direction::Out);
        for both in [video, system] {
            assert_eq!(Direction::between(both, both), Direction::Within);
        }
    }
}
