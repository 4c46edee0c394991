// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves the tree's files in debugfs.

use crate::files::{self, errno};
use crate::state::Glue;
use core::fmt;
use gct_core::error::Error;
use gct_core::ids::Scope;
use gct_core::iface::files::{File, FILES};
use kernel::bindings;
use kernel::ffi::c_int;
use kernel::sync::ArcBorrow;

/// Returns an open file's entry in the core's table and its directory's scope.
///
/// # Safety
///
/// `file` is an open file of the tree, and debugfs holds off its removal while the reference is
/// used.
unsafe fn subject<'a>(file: *mut bindings::file) -> Option<(File, &'a Scope)> {
    // SAFETY: `file` is an open file of debugfs.
    let number = unsafe { bindings::debugfs_get_aux(file) }.addr();
    let entry = FILES.get(number)?;
    // SAFETY: an open file has an inode. Its private data is the scope that `Dentry::add_file`
    // passed, and the scope is not freed before the file is removed.
    let scope = unsafe { &*(*(*file).f_inode).i_private.cast::<Scope>() };
    Some((entry.file, scope))
}

/// Writes text to a `seq_file`. If its buffer is too small, `seq_read` doubles it and calls again.
struct SeqText(*mut bindings::seq_file);

impl fmt::Write for SeqText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: `show` made this from a live seq_file that nobody else uses.
        match unsafe { bindings::seq_write(self.0, text.as_ptr().cast(), text.len()) } {
            0 => Ok(()),
            _ => Err(fmt::Error),
        }
    }
}

/// Reads a file, for `seq_read`.
///
/// # Errors
///
/// A negative errno.
///
/// # Safety
///
/// `seq` belongs to an open file of the tree, nobody else uses it during the call, and debugfs
/// holds off the file's removal.
pub(crate) unsafe fn show(glue: &Glue, seq: *mut bindings::seq_file) -> Result<(), c_int> {
    // SAFETY: `seq_open` stored the open file, which outlives its seq_file. debugfs holds off its
    // removal.
    let (file, scope) = unsafe { subject((*seq).file.cast_mut()) }.ok_or(errno(Error::Gone))?;
    let outcome = files::show(glue, file, *scope, &mut SeqText(seq));
    // SAFETY: `seq` is live and nobody else uses it.
    let overflowed = unsafe { (*seq).count == (*seq).size };
    match outcome {
        // seq_read makes the same test, enlarges the buffer and calls again.
        Err(_) if overflowed => Ok(()),
        outcome => outcome.map_err(errno),
    }
}

/// Writes a file. `from` is an address of user space.
///
/// # Errors
///
/// A negative errno.
///
/// # Safety
///
/// `file` is an open file of the tree, and debugfs holds off its removal.
pub(crate) unsafe fn write(
    glue: &ArcBorrow<'_, Glue>,
    file: *mut bindings::file,
    from: *const u8,
    count: usize,
) -> Result<(), c_int> {
    // SAFETY: the caller's contract.
    let (file, scope) = unsafe { subject(file) }.ok_or(errno(Error::Gone))?;
    let bytes = files::text_of_write(from.addr(), count)?;
    files::write(glue, file, *scope, &bytes)
}
