// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks which blocks of a grid ran, as boxes of coordinates.
//!
//! The unit is the block, or the cluster if the launch has clusters. A grid runs from its resume
//! point to its end in raster order, x fastest. That is at most three boxes.

use std::fmt;

/// A half-open range of one coordinate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The first coordinate.
    pub start: u32,
    /// The first coordinate after the last.
    pub end: u32,
}

impl Span {
    /// Returns the range from `start` to `end`, without `end`.
    #[must_use]
    pub const fn new(start: u32, end: u32) -> Self {
        Self { start, end }
    }

    fn len(self) -> u64 {
        u64::from(self.end.saturating_sub(self.start))
    }
}

/// A box of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blocks {
    /// The fastest coordinate.
    pub x: Span,
    /// The second coordinate.
    pub y: Span,
    /// The slowest coordinate.
    pub z: Span,
}

impl Blocks {
    /// Returns the number of blocks in the box, saturating.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.x
            .len()
            .saturating_mul(self.y.len())
            .saturating_mul(self.z.len())
    }
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { x, y, z } = self;
        write!(
            f,
            "[{},{})x[{},{})x[{},{})",
            x.start, x.end, y.start, y.end, z.start, z.end
        )
    }
}

/// Returns the blocks of a `grid` (width, height, depth) from `resume` to the end.
///
/// A resume point outside the grid runs no block, as measured.
#[must_use]
pub fn blocks_from(grid: [u32; 3], resume: [u32; 3]) -> Vec<Blocks> {
    let [width, height, depth] = grid;
    let [x, y, z] = resume;
    if x >= width || y >= height || z >= depth {
        return Vec::new();
    }
    let row = Blocks {
        x: Span::new(x, width),
        y: Span::new(y, y + 1),
        z: Span::new(z, z + 1),
    };
    let slab = Blocks {
        x: Span::new(0, width),
        y: Span::new(y + 1, height),
        z: Span::new(z, z + 1),
    };
    let rest = Blocks {
        x: Span::new(0, width),
        y: Span::new(0, height),
        z: Span::new(z + 1, depth),
    };
    [row, slab, rest]
        .into_iter()
        .filter(|blocks| blocks.count() > 0)
        .collect()
}

/// Counts how often each block ran.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    boxes: Vec<Blocks>,
}

/// Runs of blocks along x, each with its count.
type Row = Vec<(Span, u32)>;
/// Equal rows along y.
type Slab = Vec<(Span, Row)>;

impl Coverage {
    /// Adds one run of every block of `boxes`.
    pub fn add(&mut self, boxes: &[Blocks]) {
        self.boxes.extend_from_slice(boxes);
    }

    /// Returns how many blocks ran; a block that ran twice counts twice.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.boxes
            .iter()
            .fold(0, |sum, blocks| sum.saturating_add(blocks.count()))
    }

    /// Returns the boxes with their counts, in a normal form that does not depend on order and
    /// shape of the added boxes.
    ///
    /// Blocks that never ran are left out.
    #[must_use]
    pub fn counts(&self) -> Vec<(Blocks, u32)> {
        let slabs = sweep(&self.boxes, |blocks| blocks.z, slab);
        let mut counts = Vec::new();
        for (z, slab) in slabs {
            for (y, row) in slab {
                for (x, times) in row {
                    counts.push((Blocks { x, y, z }, times));
                }
            }
        }
        counts
    }
}

fn slab(boxes: &[Blocks]) -> Slab {
    sweep(boxes, |blocks| blocks.y, row)
}

fn row(boxes: &[Blocks]) -> Row {
    sweep(
        boxes,
        |blocks| blocks.x,
        |active| u32::try_from(active.len()).unwrap_or(u32::MAX),
    )
}

/// Cuts one axis at the ends of all boxes, describes each piece by the boxes that cover it, and
/// joins equal neighbours.
fn sweep<T: PartialEq>(
    boxes: &[Blocks],
    axis: impl Fn(&Blocks) -> Span,
    describe: impl Fn(&[Blocks]) -> T,
) -> Vec<(Span, T)> {
    let mut cuts: Vec<u32> = boxes
        .iter()
        .flat_map(|blocks| [axis(blocks).start, axis(blocks).end])
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut pieces: Vec<(Span, T)> = Vec::new();
    for pair in cuts.windows(2) {
        let piece = Span::new(pair[0], pair[1]);
        let active: Vec<Blocks> = boxes
            .iter()
            .filter(|blocks| axis(blocks).start <= piece.start && piece.end <= axis(blocks).end)
            .copied()
            .collect();
        if active.is_empty() {
            continue;
        }
        let what = describe(&active);
        match pieces.last_mut() {
            Some((span, last)) if span.end == piece.start && *last == what => span.end = piece.end,
            _ => pieces.push((piece, what)),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(grid: [u32; 3]) -> Blocks {
        Blocks {
            x: Span::new(0, grid[0]),
            y: Span::new(0, grid[1]),
            z: Span::new(0, grid[2]),
        }
    }

    #[test]
    fn the_measured_ranges() {
        // h200: 1000 blocks, RESUME=600, WIDTH=800 ran [600,800).
        assert_eq!(
            blocks_from([800, 1, 1], [600, 0, 0])[0].x,
            Span::new(600, 800)
        );
        // h200: a 10x20 grid resumed at (5,3) ran linear [35,200).
        let mut ran = Coverage::default();
        ran.add(&blocks_from([10, 20, 1], [5, 3, 0]));
        assert_eq!(ran.total(), 165);
        assert!(blocks_from([100, 1, 1], [100, 0, 0]).is_empty());
    }

    #[test]
    fn pieces_of_a_grid_count_as_the_grid() {
        let mut pieces = Coverage::default();
        pieces.add(&blocks_from([10, 4, 5], [0, 0, 3]));
        pieces.add(&blocks_from([10, 4, 3], [7, 2, 1]));
        pieces.add(&blocks_from([10, 4, 1], [0, 0, 0]));
        pieces.add(&blocks_from([10, 2, 2], [0, 0, 1]));
        pieces.add(&[Blocks {
            x: Span::new(0, 7),
            y: Span::new(2, 3),
            z: Span::new(1, 2),
        }]);
        assert_eq!(pieces.counts(), [(whole([10, 4, 5]), 1)]);
        assert_eq!(pieces.total(), 200);
    }

    #[test]
    fn a_block_that_ran_twice_or_never_shows() {
        let mut ran = Coverage::default();
        ran.add(&blocks_from([6, 1, 1], [0, 0, 0]));
        ran.add(&blocks_from([10, 1, 1], [5, 0, 0]));
        let counts: Vec<_> = ran.counts().iter().map(|(b, n)| (b.x, *n)).collect();
        assert_eq!(
            counts,
            [
                (Span::new(0, 5), 1),
                (Span::new(5, 6), 2),
                (Span::new(6, 10), 1)
            ]
        );
    }
}
