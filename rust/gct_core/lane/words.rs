// SPDX-License-Identifier: GPL-2.0 OR MIT

//! States what a lane needs from its backend: words of memory, and storage.

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

    /// Loads a word. Later loads see what its writer stored before it (acquire).
    fn load(&self, view: &Self::View, index: usize) -> Option<u32>;

    /// Stores a word. Orders nothing.
    fn store(&self, view: &Self::View, index: usize, word: u32) -> bool;

    /// Copies the first words of a view. Reads each word once.
    fn read(&self, view: &Self::View, to: &mut [u32]) -> bool;

    /// Stores consecutive words from `index` on: all of them, or none.
    fn write(&self, view: &Self::View, index: usize, words: &[u32]) -> bool;
}

/// The caller's containers for the slots of a lane.
///
/// The caller allocates each container with the length that its user documents, and fills it with
/// empty slots.
pub trait Storage {
    /// Slots of one type.
    type Slots<T: 'static>: DerefMut<Target = [T]>;
}
