// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads parameters of a tenant's ioctl, and has the resource manager read the same.

use crate::bindings::{self, gct_call, gct_serving};
use core::ptr::NonNull;
use gct_core::ids::FileId;
use gct_core::owned::Swap;
use gct_core::rmapi::Hint;

/// Reads what a hint points to, and what can be read behind it up to `most` bytes. Until [`taken`]
/// the resource manager reads the same bytes there. Returns what the hint points to, or `None` if
/// that cannot be read; then the resource manager cannot read it either.
pub(crate) fn serve<'a>(call: &'a mut gct_call, hint: &Hint, most: u16) -> Option<&'a [u8]> {
    let bytes = u16::try_from(hint.bytes).ok()?;
    if hint.address == 0 || bytes == 0 {
        return None;
    }
    // SAFETY: by gct.h, `call` belongs to this ioctl and does not move. `gct_ioctl_enter` has
    // zeroed it, and the same task passes it to `taken`. Any address is valid: it is read as
    // user memory. The hint's size is not 0.
    let copy = unsafe { bindings::gct_helper_serve(call, hint.address, bytes, most) };
    let len = usize::try_from(hint.bytes).ok()?;
    // SAFETY: the helper has filled `len` bytes. They live until the `Served` that `taken` returns
    // is dropped, and `taken` needs `call`, which this borrow holds. Only the resource manager
    // writes to them, later and in this task.
    NonNull::new(copy.cast_mut())
        .map(|copy| unsafe { core::slice::from_raw_parts(copy.as_ptr(), len) })
}

/// Replaces a field of the served parameters, as the resource manager reads them. Returns false
/// where nothing is served.
pub(crate) fn swap(call: &mut gct_call, swap: &Swap) -> bool {
    // SAFETY: as for `serve`, in the same task. The helper checks the bounds.
    unsafe { bindings::gct_helper_serve_swap(call, swap.offset, swap.bytes, swap.value) }
}

/// Parameters that were served to an ioctl, with what the resource manager wrote to them.
pub(crate) struct Served {
    copy: NonNull<u8>,
    len: usize,
    /// Whether the resource manager wrote to them.
    pub(crate) is_written: bool,
    /// The file that the resource manager found by a descriptor.
    pub(crate) file: Option<FileId>,
}

/// Watches which file the resource manager finds by a descriptor, until [`found`]. An ioctl that is
/// watched has nothing served.
pub(crate) fn watch(call: &mut gct_call) {
    // SAFETY: as for `serve`; `found` gets `call` in the same task.
    unsafe { bindings::gct_helper_serve_watch(call) };
}

/// Ends what [`watch`] began. Returns the file, if there is one and it is followed.
pub(crate) fn found(call: &mut gct_call) -> Option<FileId> {
    let (_, out) = end(call);
    (out.file != 0).then(|| FileId::from_raw(out.file))
}

/// Ends what [`serve`] began. Returns `None` if nothing was served.
pub(crate) fn taken(call: &mut gct_call) -> Option<Served> {
    let (copy, out) = end(call);
    let len = usize::try_from(out.bytes).ok()?;
    NonNull::new(copy).map(|copy| Served {
        copy,
        len,
        is_written: out.written != 0,
        file: (out.file != 0).then(|| FileId::from_raw(out.file)),
    })
}

fn end(call: &mut gct_call) -> (*mut u8, gct_serving) {
    let mut out = gct_serving {
        bytes: 0,
        written: 0,
        file: 0,
    };
    // SAFETY: `call` is the one that `serve` or `watch` got, in the same task (gct.h). Without them
    // it is zero, and nothing is served.
    let copy = unsafe { bindings::gct_helper_serve_end(call, &mut out) };
    (copy, out)
}

impl Served {
    /// Returns the bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the helper has filled `len` bytes and gave them to this value. They are no longer
        // served, so nobody writes to them.
        unsafe { core::slice::from_raw_parts(self.copy.as_ptr(), self.len) }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // SAFETY: this value owns the copy, and it is not used after this.
        unsafe { bindings::gct_helper_serve_free(self.copy.as_ptr()) };
    }
}
