// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plans which part of a grid each atom runs.
//!
//! The hardware runs the blocks from RESUME up to the end of the grid, x fastest, then y, then z.
//! An atom may start at any block. It must end where a smaller grid ends, because the grid's width
//! is also the length of a row. So a grid is cut only
//!
//! - anywhere, if it is a single row;
//! - between rows, if it is a single slab;
//! - between slabs otherwise.
//!
//! The grid of a cluster launch is counted in clusters, so no cut divides a cluster.

use super::limits::ATOMS_MAX;
use crate::units::Sat;
use core::num::{NonZeroU32, NonZeroU64, Wrapping};

/// A part of a grid, by its RESUME and GRID fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atom {
    /// The first block: `GRID_*_RESUME`.
    pub start: [u32; 3],
    /// The end of the grid: `GRID_*`.
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
    /// Selects the axis of a triple (width, height, depth).
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

/// Division of a grid into atoms. Each block is in exactly one atom. The sizes of atoms differ by
/// at most one block, row or slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    grid: [u32; 3],
    axis: Axis,
    units: u32,
    atoms: NonZeroU32,
}

impl Plan {
    /// Plans at most `atoms` atoms for a grid: not more than it has units to cut between, not more
    /// than [`ATOMS_MAX`], and one for 0.
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

    /// Returns the number of atoms.
    pub fn atoms(&self) -> u32 {
        self.atoms.get()
    }

    /// Returns whether the grid stays whole.
    pub fn is_whole(&self) -> bool {
        self.atoms() <= 1
    }

    /// Returns the axis along which the grid is cut.
    pub fn axis(&self) -> Axis {
        self.axis
    }

    /// Returns the boundary before atom `index`, in units.
    fn boundary(&self, index: u32) -> u32 {
        let product = u64::from(self.units) * u64::from(index);
        // CAST: not more than `units`, since `index` is not more than `atoms`.
        (product / NonZeroU64::from(self.atoms)) as u32
    }

    /// Returns the atom of the units `start..end`.
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

    /// Returns the atom `index`, or `None` from [`atoms`](Self::atoms) on.
    pub fn atom(&self, index: u32) -> Option<Atom> {
        let next = (Sat(index) + Sat(1)).0;
        (index < self.atoms()).then(|| self.part(self.boundary(index), self.boundary(next)))
    }

    /// Returns all atoms in order.
    pub fn iter(&self) -> impl Iterator<Item = Atom> {
        let plan = *self;
        self.parts().map(move |(start, end)| plan.part(start, end))
    }

    /// Returns where each atom starts and ends along the axis, without a division for each.
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

/// Iterator over the boundaries of a plan's atoms.
#[derive(Clone, Debug)]
pub struct Parts {
    left: u32,
    atoms: Wrapping<u32>,
    boundary: Wrapping<u32>,
    /// Whole units of each atom.
    size: Wrapping<u32>,
    /// Remaining units of all atoms together, and how many of them the atoms so far have not got
    /// yet.
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
