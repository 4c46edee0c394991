// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Split plans: which part of a grid each atom runs.
//!
//! The hardware runs the blocks from RESUME up to the end of the grid, x fastest, then y, then z. A start may be any
//! block; an end must be one that a smaller grid has, since its width is also the length of a row: any x of a single row,
//! the end of a row of a single slab, or the end of a slab. So a grid of one row is cut anywhere, one of one slab between
//! rows, any other between slabs. For a cluster launch the grid is counted in clusters, so no cut divides a cluster.

use super::limits::ATOMS_MAX;
use crate::units::Sat;
use core::num::{NonZeroU32, NonZeroU64, Wrapping};

/// A part of a grid, as RESUME and GRID say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atom {
    /// The first block: `GRID_*_RESUME`.
    pub start: [u32; 3],
    /// Where the grid ends: `GRID_*`.
    pub end: [u32; 3],
}

/// The direction in which a grid is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Anywhere in the only row.
    Row,
    /// Between the rows of the only slab.
    Column,
    /// Between slabs.
    Slab,
}

impl Axis {
    /// Which of a triple (width, height, depth) it is.
    #[inline]
    pub const fn of<T: Copy>(self, triple: [T; 3]) -> T {
        let [width, height, depth] = triple;
        match self {
            Self::Row => width,
            Self::Column => height,
            Self::Slab => depth,
        }
    }
}

/// How a grid is cut into atoms. Each block is in exactly one of them; their sizes differ by one row, slab or block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    grid: [u32; 3],
    axis: Axis,
    units: u32,
    atoms: NonZeroU32,
}

impl Plan {
    /// A plan of at most `atoms` atoms for a grid, fewer when it has fewer units to cut between; never more than
    /// [`ATOMS_MAX`], and one for 0.
    pub fn new(grid: [u32; 3], atoms: u32) -> Self {
        let [width, height, depth] = grid;
        let (axis, units) = match (height, depth) {
            (..=1, ..=1) => (Axis::Row, width),
            (_, ..=1) => (Axis::Column, height),
            _ => (Axis::Slab, depth),
        };
        Self {
            grid,
            axis,
            units,
            atoms: NonZeroU32::new(atoms.min(ATOMS_MAX).min(units)).unwrap_or(NonZeroU32::MIN),
        }
    }

    /// How many atoms there are.
    pub fn atoms(&self) -> u32 {
        self.atoms.get()
    }

    /// Whether the grid stays whole.
    pub fn is_whole(&self) -> bool {
        self.atoms() <= 1
    }

    /// In which direction the cuts are.
    pub fn axis(&self) -> Axis {
        self.axis
    }

    /// The boundary before atom `index`, in units.
    fn boundary(&self, index: u32) -> u32 {
        let product = u64::from(self.units) * u64::from(index);
        // CAST: not more than `units`, since `index` is not more than `atoms`.
        (product / NonZeroU64::from(self.atoms)) as u32
    }

    /// The units from `start` to `end`.
    #[inline]
    fn part(&self, start: u32, end: u32) -> Atom {
        let [width, height, depth] = self.grid;
        match self.axis {
            Axis::Row => Atom {
                start: [start, 0, 0],
                end: [end, height, depth],
            },
            Axis::Column => Atom {
                start: [0, start, 0],
                end: [width, end, depth],
            },
            Axis::Slab => Atom {
                start: [0, 0, start],
                end: [width, height, end],
            },
        }
    }

    /// The atom `index`, or `None` from [`atoms`](Self::atoms) on.
    pub fn atom(&self, index: u32) -> Option<Atom> {
        let next = (Sat(index) + Sat(1)).0;
        (index < self.atoms()).then(|| self.part(self.boundary(index), self.boundary(next)))
    }

    /// All atoms in order.
    pub fn iter(&self) -> impl Iterator<Item = Atom> {
        let plan = *self;
        self.parts().map(move |(start, end)| plan.part(start, end))
    }

    /// Where each atom starts and ends along the axis, without a division for each.
    #[inline]
    pub fn parts(&self) -> Parts {
        Parts {
            left: self.atoms(),
            atoms: Wrapping(self.atoms()),
            boundary: Wrapping(0),
            size: Wrapping(self.units / self.atoms),
            rest: Wrapping(self.units % self.atoms),
            carry: Wrapping(0),
        }
    }
}

/// The boundaries of a plan's atoms, in order.
#[derive(Clone, Debug)]
pub struct Parts {
    left: u32,
    atoms: Wrapping<u32>,
    boundary: Wrapping<u32>,
    /// The whole units of each atom.
    size: Wrapping<u32>,
    /// What is left of all units together, and how much of it the atoms so far have not got yet.
    rest: Wrapping<u32>,
    carry: Wrapping<u32>,
}

impl Iterator for Parts {
    type Item = (u32, u32);

    #[inline]
    fn next(&mut self) -> Option<(u32, u32)> {
        self.left = self.left.checked_sub(1)?;
        let start = self.boundary;
        self.carry += self.rest;
        let more = Wrapping(u32::from(self.carry >= self.atoms));
        self.carry -= more * self.atoms;
        self.boundary = start + self.size + more;
        Some((start.0, self.boundary.0))
    }
}
