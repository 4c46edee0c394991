// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts what the copy engines move, by engine and direction, and shows it to the guest.
//!
//! No GPU has these registers. They lie beside the recorder's (journal.rs), eight words for each
//! engine and direction, the low word of a number first: operations, bytes, operations beside, and
//! large bytes. Fills are not counted.
//!
//! ```text
//! beside   in progress at a time when a copy of the other direction, by any engine, was, too
//! large    in one operation of 2 MiB or more
//! ```

use crate::memory::Location;
use crate::regs::GCT_COPIES;

/// Copy engines that are counted.
pub const ENGINES: usize = 4;
/// Words of one direction of an engine.
const WORDS: usize = 8;
/// Bytes of a large operation.
const LARGE: u64 = 2 << 20;

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

    /// Returns the direction that can be beside this one.
    fn other(self) -> Option<Self> {
        match self {
            Self::In => Some(Self::Out),
            Self::Out => Some(Self::In),
            Self::Within => None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    operations: u64,
    bytes: u64,
    beside: u64,
    large: u64,
}

/// An operation in progress.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    direction: Direction,
    /// Whether one of the other direction was in progress when it began, and how many had begun.
    is_beside: bool,
    others: u64,
}

/// What was copied since power-on.
#[derive(Debug, Default)]
pub struct Copies {
    counts: [[Count; Direction::ALL.len()]; ENGINES],
    /// Operations of each direction that have begun, and that have ended.
    begun: [u64; Direction::ALL.len()],
    ended: [u64; Direction::ALL.len()],
}

impl Copies {
    fn count(&mut self, engine: u32, direction: Direction) -> Option<&mut Count> {
        let engine = self.counts.get_mut(usize::try_from(engine).ok()?)?;
        engine.get_mut(direction as usize)
    }

    /// Begins an operation.
    pub fn begin(&mut self, direction: Direction) -> Begun {
        self.begun[direction as usize] += 1;
        let other = direction.other().map(|other| other as usize);
        Begun {
            direction,
            is_beside: other.is_some_and(|other| self.begun[other] > self.ended[other]),
            others: other.map_or(0, |other| self.begun[other]),
        }
    }

    /// Adds bytes that an engine has moved in an operation.
    pub fn add(&mut self, engine: u32, direction: Direction, bytes: u64) {
        if let Some(count) = self.count(engine, direction) {
            count.bytes += bytes;
        }
    }

    /// Ends an operation of so many bytes, and counts it.
    pub fn end(&mut self, engine: u32, operation: Begun, bytes: u64) {
        let direction = operation.direction;
        self.ended[direction as usize] += 1;
        let other = direction.other().map(|other| other as usize);
        let joined = other.is_some_and(|other| self.begun[other] > operation.others);
        if let Some(count) = self.count(engine, direction) {
            count.operations += 1;
            count.beside += u64::from(operation.is_beside || joined);
            count.large += if bytes >= LARGE { bytes } else { 0 };
        }
    }

    /// Reads a register, if `offset` is one.
    pub(crate) fn read(&self, offset: u32) -> Option<u32> {
        let index = GCT_COPIES::index(offset)?;
        let count = self.counts.as_flattened().get(index / WORDS)?;
        let number = match index % WORDS {
            0 | 1 => count.operations,
            2 | 3 => count.bytes,
            4 | 5 => count.beside,
            _ => count.large,
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
        for engine in [2, 4] {
            let operation = copies.begin(Direction::Out);
            copies.add(engine, Direction::Out, (5 << 32) + 7);
            copies.add(engine, Direction::Out, 1);
            copies.end(engine, operation, (5 << 32) + 8);
        }
        let read = |index: u32| copies.read(GCT_COPIES::OFFSET + 4 * index);
        let first = 8 * (2 * 3 + 1);
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7].map(|word| read(first + word)),
            [1, 0, 8, 5, 0, 0, 8, 5].map(Some)
        );
        let words = (0..96).filter_map(read);
        assert_eq!(words.map(u64::from).sum::<u64>(), 27, "all others are 0");
        assert_eq!((read(96), copies.read(0)), (None, None));
    }

    /// Returns how many operations each direction had beside the other.
    fn beside(copies: &Copies) -> [u64; 3] {
        let engines = copies.counts.iter();
        engines.fold([0; 3], |sums, counts| {
            [0, 1, 2].map(|at| sums[at] + counts[at].beside)
        })
    }

    #[test]
    fn operations_of_both_directions_are_beside_each_other() {
        let mut copies = Copies::default();
        let (first, other) = (copies.begin(Direction::In), copies.begin(Direction::Within));
        copies.end(0, first, LARGE);
        copies.end(1, other, LARGE);
        // One after the other.
        let out = copies.begin(Direction::Out);
        copies.end(1, out, LARGE - 1);
        assert_eq!(beside(&copies), [0, 0, 0]);
        // Whichever begins or ends first.
        let [long, out] = [Direction::In, Direction::Out].map(|way| copies.begin(way));
        copies.end(1, out, LARGE);
        let out = copies.begin(Direction::Out);
        copies.end(0, long, LARGE);
        copies.end(1, out, LARGE);
        assert_eq!(beside(&copies), [1, 2, 0]);
        // Two of one direction are not.
        for operation in [(); 2].map(|()| copies.begin(Direction::In)) {
            copies.end(0, operation, LARGE);
        }
        assert_eq!(beside(&copies), [1, 2, 0]);
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
