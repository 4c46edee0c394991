// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gives a tenant pages of the host in place of pages of its memory objects.

use super::client::Refused;
use super::view::View;
use crate::bindings::{self, gct_sheet};
use core::ptr::NonNull;
use gct_core::ids::FileId;
use gct_core::owned::bells::CpuMapping;
use gct_core::owned::kit::PAGE;
use gct_core::owned::shadow::{Pages, PANE_BYTES_MAX};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;

/// A memory object of a tenant's, and the pages that stand for its own.
pub(super) struct Sheet(NonNull<gct_sheet>);

// SAFETY: C counts the references, and has locks for the rest.
unsafe impl Send for Sheet {}
// SAFETY: as above.
unsafe impl Sync for Sheet {}

impl Sheet {
    /// Creates the sheet of a memory object on a GPU, which nobody has mapped yet.
    pub(super) fn new(gpu: u32) -> Result<Arc<Self>, Refused> {
        // SAFETY: has no preconditions but that the caller may sleep.
        let sheet = unsafe { bindings::gct_helper_sheet_new(gpu) };
        let sheet = NonNull::new(sheet).map(Self).ok_or(Refused)?;
        Ok(Arc::new(sheet, GFP_KERNEL_ACCOUNT)?)
    }

    /// Has a mapping of the memory object, by a descriptor of the file `by`, follow the sheet.
    pub(super) fn follow(&self, mapping: &CpuMapping, by: Option<FileId>) {
        let sheet = self.0.as_ptr();
        let by = by.filter(|_| mapping.bytes <= PANE_BYTES_MAX);
        let Some(by) = by else {
            // SAFETY: the sheet lives as long as `self`.
            return unsafe { bindings::gct_helper_sheet_give_up(sheet) };
        };
        let (descriptor, first) = (mapping.descriptor, mapping.offset / PAGE);
        // SAFETY: as above. Any numbers are valid: the driver looks them up.
        unsafe { bindings::gct_helper_pane_follow(descriptor, by.raw(), sheet, first) }
    }
}

impl Drop for Sheet {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and put once. Panes have references of their own.
        unsafe { bindings::gct_helper_sheet_put(self.0.as_ptr()) }
    }
}

/// Pages of the host that stand for consecutive pages of a memory object. They go, and are mapped
/// no more, when this is dropped. The user of the GPU keeps it for so long.
pub(super) struct Cover {
    sheet: Arc<Sheet>,
    first: u64,
    /// One for each page.
    views: KVVec<View>,
}

impl Cover {
    /// Allocates pages, which are not shown yet.
    pub(super) fn new(sheet: Arc<Sheet>, pages: &Pages) -> Result<Self, Refused> {
        let mut cover = Self {
            sheet,
            first: pages.first,
            views: KVVec::new(),
        };
        for number in (pages.first..).take(usize::try_from(pages.count).map_err(|_| Refused)?) {
            cover.views.reserve(1, GFP_KERNEL_ACCOUNT)?;
            let sheet = cover.sheet.0.as_ptr();
            // SAFETY: the sheet lives as long as the cover.
            let page = unsafe { bindings::gct_helper_sheet_page(sheet, number) };
            // SAFETY: the kernel has all pages mapped. This one is freed by `drop`.
            let view = unsafe { View::of(page, PAGE) }.ok_or(Refused)?;
            // INVARIANT: there is room.
            let _ = cover.views.push_within_capacity(view);
        }
        Ok(cover)
    }

    /// Returns the first page.
    pub(super) fn first(&self) -> Option<&View> {
        self.views.first()
    }

    fn numbers(&self) -> impl Iterator<Item = u64> {
        (self.first..).take(self.views.len())
    }

    fn show(&self, shown: bool) {
        for number in self.numbers() {
            // SAFETY: the sheet lives as long as `self`. Only `turn` calls this.
            unsafe { bindings::gct_helper_turn_show(self.sheet.0.as_ptr(), number, shown) };
        }
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        for number in self.numbers() {
            // SAFETY: the sheet lives as long as `self`; the views are not used any more.
            unsafe { bindings::gct_helper_sheet_forget(self.sheet.0.as_ptr(), number) };
        }
    }
}

/// Runs `copy` while nobody can access the memory of both covers' sheets through its mappings. If
/// it returns true, the covers are shown from then on, or not any more. Returns whether that is so.
fn turn([one, other]: [&Cover; 2], gpu: u32, shown: bool, copy: impl FnOnce() -> bool) -> bool {
    let sheets = [one, other].map(|cover| cover.sheet.0.as_ptr());
    // SAFETY: the sheets live as long as the covers. The caller holds the GPU until these are gone.
    let turn = unsafe { bindings::gct_helper_turn_begin(sheets[0], sheets[1], gpu) };
    if turn.is_null() {
        return false;
    }
    let is_done = copy();
    if is_done {
        one.show(shown);
        other.show(shown);
    }
    // SAFETY: begun above, and ended once. The caller still holds the GPU.
    unsafe { bindings::gct_helper_turn_end(turn) };
    is_done
}

/// The ring and USERD of a tenant, and the pages that stand for them.
pub(super) struct Shadow {
    gpu: u32,
    /// The ring, and the page with USERD.
    real: [View; 2],
    covers: [Cover; 2],
    /// Changed by one thread at a time, which has the channel's record locked or drops this.
    is_shown: Atomic<bool>,
}

impl Shadow {
    /// Describes pages that the tenant does not see yet.
    pub(super) fn new(gpu: u32, real: [View; 2], covers: [Cover; 2]) -> Self {
        Self {
            gpu,
            real,
            covers,
            is_shown: Atomic::new(false),
        }
    }

    /// Returns the real ring.
    pub(super) fn ring(&self) -> &View {
        let [ring, _] = &self.real;
        ring
    }

    /// Returns the entry at an offset of the tenant's ring.
    pub(super) fn entry(&self, at: u32) -> Option<u64> {
        let [ring, _] = &self.covers;
        // CAST: a small constant.
        let (page, offset) = (at / PAGE as u32, at % PAGE as u32);
        ring.views.get(usize::try_from(page).ok()?)?.read64(offset)
    }

    /// Has the tenant see the pages, with what is in its memory, if `begins` agrees while it sees
    /// nothing. Returns whether it does.
    pub(super) fn turn(&self, begins: impl FnOnce() -> bool) -> bool {
        let is_shown = turn(self.covers.each_ref(), self.gpu, true, || {
            let begins = begins();
            if begins {
                self.copy(|page, real| (real, page));
            }
            begins
        });
        self.is_shown.store(is_shown, Relaxed);
        is_shown
    }

    /// Has the tenant see its memory again, with what it has written to the pages. Runs `before`
    /// and `behind` while it sees nothing, on both sides of the copy. Returns whether it sees its
    /// memory.
    pub(super) fn turn_back<T>(&self, before: impl FnOnce() -> T, behind: impl FnOnce(T)) -> bool {
        let is_back = turn(self.covers.each_ref(), self.gpu, false, || {
            let found = before();
            self.copy(|page, real| (page, real));
            behind(found);
            true
        });
        if is_back {
            self.is_shown.store(false, Relaxed);
        }
        is_back
    }

    /// Copies all pages. `way` says from which of a page and its real one to which.
    fn copy<'a>(&'a self, way: impl Fn(At<'a>, At<'a>) -> (At<'a>, At<'a>)) {
        // CAST: a small constant.
        const BYTES: u32 = PAGE as u32;
        for (cover, real) in self.covers.iter().zip(&self.real) {
            for (page, number) in cover.views.iter().zip(0u32..) {
                for offset in (0..BYTES).step_by(8) {
                    let at = number.saturating_mul(BYTES).saturating_add(offset);
                    let (from, to) = way((page, offset), (real, at));
                    if let Some(word) = from.0.read64(from.1) {
                        to.0.write64(to.1, word);
                    }
                }
            }
        }
    }
}

/// A word of a view.
type At<'a> = (&'a View, u32);

impl Drop for Shadow {
    fn drop(&mut self) {
        if self.is_shown.load(Relaxed) {
            // What the tenant has written stays its own.
            self.turn_back(|| (), |()| ());
        }
    }
}
