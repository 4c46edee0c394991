// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Parameters of a tenant's ioctl, which the resource manager sees as they were read here.

use crate::bindings::{self, gct_call, gct_serving};
use core::ptr::NonNull;
use gct_core::ids::FileId;
use gct_core::rmapi::Hint;

/// Reads what a hint points to, and has the resource manager read the same until [`taken`]. Where that
/// is not to be read, the resource manager cannot read it either, and nothing is returned.
pub(crate) fn serve<'a>(call: &'a mut gct_call, hint: &Hint) -> Option<&'a [u8]> {
    if hint.address == 0 || hint.bytes == 0 {
        return None;
    }
    // SAFETY: `call` is the caller's for this ioctl (gct.h): it stays in its place, is zero, and goes
    // to `taken` in the same task. The address may be any: it is read as user memory.
    let copy = unsafe { bindings::gct_helper_serve(call, hint.address, hint.bytes) };
    let len = usize::try_from(hint.bytes).ok()?;
    // SAFETY: the helper has filled so many bytes, which it frees after `taken` alone, for which `call` must be
    // borrowed again. Until the resource manager runs, in this task, nobody writes there.
    NonNull::new(copy.cast_mut())
        .map(|copy| unsafe { core::slice::from_raw_parts(copy.as_ptr(), len) })
}

/// What was served to an ioctl that has run, with what the resource manager wrote over it.
pub(crate) struct Served {
    copy: NonNull<u8>,
    len: usize,
    /// Has the resource manager written there?
    pub(crate) is_written: bool,
    /// The file that the resource manager has found by a descriptor.
    pub(crate) file: Option<FileId>,
}

/// Ends what [`serve`] has begun; `None` if it was nothing, or could not be read.
pub(crate) fn taken(call: &mut gct_call) -> Option<Served> {
    let mut out = gct_serving {
        bytes: 0,
        written: 0,
        file: 0,
    };
    // SAFETY: as for `serve`, in the same task; without it nothing is found.
    let copy = unsafe { bindings::gct_helper_serve_end(call, &mut out) };
    let len = usize::try_from(out.bytes).ok()?;
    NonNull::new(copy).map(|copy| Served {
        copy,
        len,
        is_written: out.written != 0,
        file: (out.file != 0).then(|| FileId::from_raw(out.file)),
    })
}

impl Served {
    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the helper has allocated and filled that many bytes, and nobody writes to them any more:
        // they are served no longer.
        unsafe { core::slice::from_raw_parts(self.copy.as_ptr(), self.len) }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // SAFETY: the copy is this value's.
        unsafe { bindings::gct_helper_serve_free(self.copy.as_ptr()) };
    }
}
