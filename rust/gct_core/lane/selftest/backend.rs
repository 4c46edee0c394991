// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Is the backend of the checks: arrays for memory, both sides of a channel, and one neighbour.

use super::{ENTRIES, VA, WORDS};
use crate::lane::decide::Others;
use crate::lane::governor::Peers;
use crate::lane::limits::LaunchLimits;
use crate::lane::ring::{next_index, previous_index};
use crate::lane::words::{Control, Rings, Side, Storage, Words};
use crate::policy::tpc::Neighbour;
use crate::topology::Topology;
use crate::units::Ns;
use core::cell::Cell;
use core::marker::PhantomData;

/// Storage in arrays that are lent.
#[derive(Debug)]
pub(super) struct Lent<'a>(PhantomData<&'a ()>);

impl<'a> Storage for Lent<'a> {
    type Slots<T: 'static> = &'a mut [T];
    type Table<T: 'static> = &'a mut [T];
}

/// A view: the index of its first word, and its length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) first: usize,
    pub(super) words: usize,
}

/// The memory, as the GPU addresses it.
pub(super) struct Ram<'a>(pub(super) &'a [Cell<u32>; WORDS]);

impl Ram<'_> {
    fn run(&self, view: &Run, index: usize, count: usize) -> Option<&[Cell<u32>]> {
        let run = self.0.get(view.first..)?.get(..view.words)?;
        run.get(index..)?.get(..count)
    }
}

impl Words for Ram<'_> {
    type View = Run;

    fn find(&self, va: u64, count: usize) -> Option<Run> {
        let offset = va.checked_sub(VA).filter(|offset| offset % 4 == 0)?;
        let first = usize::try_from(offset / 4).ok()?;
        let view = Run {
            first,
            words: count,
        };
        self.run(&view, 0, count).map(|_| view)
    }

    fn load(&self, view: &Run, index: usize) -> Option<u32> {
        self.run(view, index, 1)?.first().map(Cell::get)
    }

    fn store(&self, view: &Run, index: usize, word: u32) -> bool {
        self.write(view, index, &[word])
    }

    fn read(&self, view: &Run, to: &mut [u32]) -> bool {
        let Some(from) = self.run(view, 0, to.len()) else {
            return false;
        };
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.get();
        }
        true
    }

    fn write(&self, view: &Run, index: usize, words: &[u32]) -> bool {
        let Some(to) = self.run(view, index, words.len()) else {
            return false;
        };
        for (to, word) in to.iter().zip(words) {
            to.set(*word);
        }
        true
    }
}

/// Both sides of the channel. The real ring is the shorter one.
pub(super) struct Sides<'a> {
    pub(super) tenant: &'a [Cell<u64>; ENTRIES as usize],
    pub(super) real: &'a [Cell<u64>],
    /// GP_GET and GP_PUT of the tenant, and the real ones.
    pub(super) userd: &'a [[Cell<u32>; 2]; 2],
    pub(super) rung: &'a Cell<Option<u32>>,
}

impl Sides<'_> {
    pub(super) fn control(&self, side: Side, control: Control) -> &Cell<u32> {
        let [tenant, real] = self.userd;
        let [get, put] = match side {
            Side::Tenant => tenant,
            Side::Real => real,
        };
        match control {
            Control::Get => get,
            Control::Put => put,
        }
    }

    /// Adds an entry as the tenant.
    pub(super) fn submit(&self, entry: u64) {
        let put = self.control(Side::Tenant, Control::Put);
        // CAST: widening.
        if let Some(slot) = self.tenant.get(put.get() as usize) {
            slot.set(entry);
        }
        put.set(next_index(put.get(), ENTRIES));
    }

    /// Reads all published entries as the GPU. Returns the last.
    pub(super) fn fetch(&self) -> u64 {
        let put = self.control(Side::Real, Control::Put).get();
        self.control(Side::Real, Control::Get).set(put);
        // CAST: a few.
        let last = previous_index(put, self.real.len() as u32);
        // CAST: widening.
        let entry = self.real.get(last as usize);
        entry.map_or(0, Cell::get)
    }
}

impl Rings for Sides<'_> {
    fn entry(&self, index: u32) -> Option<u64> {
        // CAST: widening.
        self.tenant.get(index as usize).map(Cell::get)
    }

    fn set_entry(&self, index: u32, entry: u64) {
        // CAST: widening.
        if let Some(slot) = self.real.get(index as usize) {
            slot.set(entry);
        }
    }

    fn load(&self, side: Side, control: Control) -> Option<u32> {
        Some(self.control(side, control).get())
    }

    fn store_get(&self, get: u32) {
        self.control(Side::Tenant, Control::Get).set(get);
    }

    fn publish(&self, put: u32, token: u32) {
        self.control(Side::Real, Control::Put).set(put);
        self.rung.set(Some(token));
    }
}

/// A neighbour with work and TPCs of its own.
pub(super) struct Beside(pub(super) Neighbour);

impl Peers for Beside {
    fn refresh(&mut self, _: &mut LaunchLimits) -> Option<Topology> {
        None
    }

    fn look_around(&mut self, _: Ns) -> Others<'_> {
        Others {
            neighbours: core::slice::from_ref(&self.0),
            ..Others::NONE
        }
    }

    fn set_busy(&mut self, busy: bool, _: Ns) {
        self.0.lends = busy;
    }
}
