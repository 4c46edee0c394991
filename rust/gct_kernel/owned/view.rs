// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads and writes memory that is mapped for the kernel.
//!
//! What is only read has a type without stores: a tenant's ring, and the memory of its segments.

use crate::bindings;
use crate::rm::own::{Own, Refused};
use core::ops::Deref;
use core::ptr::NonNull;
use gct_core::rmapi::Handle;
use kernel::ffi::c_void;

/// Memory that is mapped for the kernel, to be read. The view's owner keeps the mapping.
pub(super) struct ReadView {
    base: NonNull<c_void>,
    bytes: u64,
}

/// Memory that is mapped for the kernel, to be read and written.
pub(super) struct View(ReadView);

// SAFETY: the mapping is the kernel's and not a process's; each access is one load or store of
// memory that others change at any time, by C helpers.
unsafe impl Send for ReadView {}
// SAFETY: as above.
unsafe impl Sync for ReadView {}

/// A part of a memory object that can be mapped.
pub(super) trait Mapped: Sized {
    /// Maps a part of an object of the driver's. Its owner keeps the object.
    fn map(own: &Own, names: [Handle; 2], offset: u64, bytes: u64) -> Result<Self, Refused>;

    /// Returns the view of `bytes` behind the first `skipped` ones, if they lie inside.
    fn part(&self, skipped: u64, bytes: u64) -> Option<Self>;
}

impl Mapped for ReadView {
    fn map(own: &Own, names: [Handle; 2], offset: u64, bytes: u64) -> Result<Self, Refused> {
        let base = own.map(names, offset, bytes, false)?;
        Ok(Self { base, bytes })
    }

    fn part(&self, skipped: u64, bytes: u64) -> Option<Self> {
        (skipped.checked_add(bytes)? <= self.bytes).then_some(())?;
        let skipped = usize::try_from(skipped).ok()?;
        // SAFETY: inside of the mapping, as was just checked.
        let base = unsafe { self.base.byte_add(skipped) };
        Some(Self { base, bytes })
    }
}

impl Mapped for View {
    fn map(own: &Own, names: [Handle; 2], offset: u64, bytes: u64) -> Result<Self, Refused> {
        let base = own.map(names, offset, bytes, true)?;
        Ok(Self(ReadView { base, bytes }))
    }

    fn part(&self, skipped: u64, bytes: u64) -> Option<Self> {
        self.0.part(skipped, bytes).map(Self)
    }
}

impl ReadView {
    /// Returns the address of `bytes` at an offset, if they lie inside and begin at a multiple of
    /// `align`.
    fn run(&self, offset: u32, bytes: u64, align: u32) -> Option<NonNull<c_void>> {
        let end = u64::from(offset).checked_add(bytes)?;
        (end <= self.bytes && offset.checked_rem(align)? == 0).then_some(())?;
        let offset = usize::try_from(offset).ok()?;
        // SAFETY: inside of the mapping, as was just checked.
        Some(unsafe { self.base.byte_add(offset) })
    }

    pub(super) fn read32(&self, offset: u32) -> Option<u32> {
        let at = self.run(offset, 4, 4)?;
        // SAFETY: `run` has checked it.
        Some(unsafe { bindings::gct_helper_read32(at.as_ptr()) })
    }

    pub(super) fn read64(&self, offset: u32) -> Option<u64> {
        let at = self.run(offset, 8, 8)?;
        // SAFETY: `run` has checked it.
        Some(unsafe { bindings::gct_helper_read64(at.as_ptr()) })
    }

    /// Copies words from an offset on, each read once. Returns false where they do not lie inside.
    pub(super) fn read_words(&self, offset: u32, to: &mut [u32]) -> bool {
        let count = u32::try_from(to.len()).unwrap_or(u32::MAX);
        let Some(from) = self.run(offset, 4 * u64::from(count), 4) else {
            return false;
        };
        // SAFETY: `run` has checked the source; `to` has `count` words.
        unsafe { bindings::gct_helper_read_words(to.as_mut_ptr(), from.as_ptr(), count) };
        true
    }
}

impl Deref for View {
    type Target = ReadView;

    fn deref(&self) -> &ReadView {
        &self.0
    }
}

impl View {
    /// Returns the view of memory of the host, unless its address is null.
    ///
    /// # Safety
    ///
    /// The kernel has mapped so many bytes there, and keeps the mapping while the view is used.
    pub(super) unsafe fn of(base: *mut c_void, bytes: u64) -> Option<Self> {
        NonNull::new(base).map(|base| Self(ReadView { base, bytes }))
    }

    /// Returns the address of `bytes` at an offset, if they lie inside and are aligned.
    pub(super) fn at(&self, offset: u32, bytes: u32) -> Option<NonNull<c_void>> {
        self.run(offset, u64::from(bytes), bytes)
    }

    pub(super) fn write32(&self, offset: u32, value: u32) {
        if let Some(at) = self.at(offset, 4) {
            // SAFETY: `at` has checked it.
            unsafe { bindings::gct_helper_write32(at.as_ptr(), value) };
        }
    }

    pub(super) fn write64(&self, offset: u32, value: u64) {
        if let Some(at) = self.at(offset, 8) {
            // SAFETY: `at` has checked it.
            unsafe { bindings::gct_helper_write64(at.as_ptr(), value) };
        }
    }

    /// Stores words from an offset on. Returns false where they do not lie inside.
    pub(super) fn write_words(&self, offset: u32, from: &[u32]) -> bool {
        let count = u32::try_from(from.len()).unwrap_or(u32::MAX);
        let Some(to) = self.run(offset, 4 * u64::from(count), 4) else {
            return false;
        };
        // SAFETY: `run` has checked the destination; `from` has `count` words.
        unsafe { bindings::gct_helper_write_words(to.as_ptr(), from.as_ptr(), count) };
        true
    }
}
