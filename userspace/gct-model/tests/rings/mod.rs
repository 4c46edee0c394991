// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rings and USERD of a channel, on the tenant's side and on the real one.

use gct_core::lane::words::{Control, Rings, Side};
use std::cell::Cell;

/// Both sides of a channel.
#[derive(Debug)]
pub(crate) struct Sides {
    pub(crate) rings: [Vec<Cell<u64>>; 2],
    /// GP_GET and GP_PUT of each side.
    userd: [[Cell<u32>; 2]; 2],
}

impl Sides {
    /// Makes rings of so many entries.
    pub(crate) fn new(entries: u32) -> Self {
        let ring = || (0..entries).map(|_| Cell::new(0)).collect();
        Self {
            rings: [ring(), ring()],
            userd: Default::default(),
        }
    }

    pub(crate) fn control(&self, side: Side, control: Control) -> &Cell<u32> {
        &self.userd[side as usize][control as usize]
    }
}

impl Rings for Sides {
    fn entry(&self, index: u32) -> Option<u64> {
        let ring = &self.rings[Side::Tenant as usize];
        ring.get(index as usize).map(Cell::get)
    }

    fn set_entry(&self, index: u32, entry: u64) {
        self.rings[Side::Real as usize][index as usize].set(entry);
    }

    fn load(&self, side: Side, control: Control) -> Option<u32> {
        Some(self.control(side, control).get())
    }

    fn store_get(&self, get: u32) {
        self.control(Side::Tenant, Control::Get).set(get);
    }

    fn publish(&self, put: u32, _token: u32) {
        self.control(Side::Real, Control::Put).set(put);
    }
}
