// SPDX-License-Identifier: GPL-2.0 OR MIT

//! States what a lane needs from its backend: words of memory, the two sides of a channel, and
//! storage.

use crate::submit::graph::Table;
use core::fmt::Debug;
use core::ops::DerefMut;

/// Access to words of 32 bits that the GPU or the tenant may change at any time.
///
/// A view stays valid until the backend tells the lane to forget it. An access outside a view, or
/// to a view that is gone, has no effect and returns `None` or `false`.
pub trait Words {
    /// A run of words that was resolved.
    type View: Copy + Debug + 'static;

    /// Resolves `count` words at a GPU address of the tenant. Returns `None` if they cannot be
    /// accessed or are not aligned to 4 bytes.
    fn find(&self, va: u64, count: usize) -> Option<Self::View>;

    /// Returns whether [`find`](Self::find) may resolve these words soon, once the backend has
    /// mapped them. The lane holds their entry back until then.
    fn is_coming(&self, _va: u64, _count: usize) -> bool {
        false
    }

    /// Returns whether a load of the view goes across the bus, and takes a microsecond.
    fn is_slow(&self, _view: &Self::View) -> bool {
        false
    }

    /// Loads a word. Later loads see what its writer stored before it (acquire).
    fn load(&self, view: &Self::View, index: usize) -> Option<u32>;

    /// Stores a word. Orders nothing.
    fn store(&self, view: &Self::View, index: usize, word: u32) -> bool;

    /// Copies the first words of a view. Reads each word once.
    fn read(&self, view: &Self::View, to: &mut [u32]) -> bool;

    /// Stores consecutive words from `index` on: all of them, or none.
    fn write(&self, view: &Self::View, index: usize, words: &[u32]) -> bool;
}

/// A side of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What the tenant reads and writes.
    Tenant,
    /// What the GPU reads and writes.
    Real,
}

/// A word of USERD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// GP_GET: the index of the next entry that the GPU will read.
    Get,
    /// GP_PUT: the index behind the last entry.
    Put,
}

/// Both sides of one channel: its rings, USERD and doorbell.
pub trait Rings {
    /// Loads an entry of the tenant's ring. Returns `None` outside of it.
    fn entry(&self, index: u32) -> Option<u64>;

    /// Stores an entry into the real ring.
    fn set_entry(&self, index: u32, entry: u64);

    /// Is called once the GPU has fetched an entry of the real ring. A backend whose tenant may
    /// have the GPU fetch it again takes it out.
    fn spend(&self, _index: u32) {}

    /// Loads a word of USERD. Later loads see what its writer stored before it (acquire).
    fn load(&self, side: Side, control: Control) -> Option<u32>;

    /// Stores the tenant's GP_GET (release).
    fn store_get(&self, get: u32);

    /// Hands the entries before `put` to the GPU. The GPU sees all earlier stores before the real
    /// GP_PUT, and that before the doorbell rings with `token`.
    fn publish(&self, put: u32, token: u32);
}

/// The caller's containers for the slots of a lane.
///
/// The caller allocates each container with the length that its user documents, and fills it with
/// empty slots.
pub trait Storage {
    /// Slots of one type.
    type Slots<T: 'static>: DerefMut<Target = [T]>;

    /// Slots whose number may grow.
    type Table<T: 'static>: Table<T>;
}
