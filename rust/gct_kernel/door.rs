// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves the tree in `/dev/gctgroup`, where debugfs cannot: under lockdown, and in containers.
//!
//! [`gct_core::iface::door`] defines the requests. A path is looked up for each of them, so an open
//! device names no directory, and a removal waits for nobody here. A file's scope may go after the
//! look-up: scopes are numbers that are not reused, and the core then answers that it is gone.

use crate::bindings;
use crate::files::{self, errno};
use crate::state::Glue;
use core::fmt;
use gct_core::error::Error;
use gct_core::iface::door::{Operation, Request, ANSWER_OFFSET, COMMAND, NO_ROOM, REQUEST_BYTES};
use gct_core::iface::files::Mode;
use gct_core::limits;
use gct_core::text::Room;
use kernel::alloc::flags::GFP_KERNEL_ACCOUNT;
use kernel::error::to_result;
use kernel::ffi::c_int;
use kernel::pr_warn;
use kernel::prelude::*;
use kernel::sync::ArcBorrow;
use kernel::uaccess::{UserPtr, UserSlice};

/// Makes the device. Without it the tree is in debugfs alone, and the log says so.
pub(crate) fn open() {
    // SAFETY: `gct_init` calls it once. The glue is there.
    if let Err(error) = to_result(unsafe { bindings::gct_helper_door_open() }) {
        pr_warn!("/dev/gctgroup could not be made: {error:?}\n");
    }
}

/// Removes the device. No call runs then: an open device keeps the module.
pub(crate) fn close() {
    // SAFETY: `gct_exit` calls it once, after `open`.
    unsafe { bindings::gct_helper_door_close() };
}

/// Serves an ioctl. `address` is that of a request in user space.
///
/// # Errors
///
/// A negative errno.
pub(crate) fn call(
    glue: &ArcBorrow<'_, Glue>,
    command: u32,
    address: usize,
    rights: u32,
) -> Result<(), c_int> {
    if command != COMMAND {
        return Err(ENOTTY.to_errno());
    }
    let mut bytes = [0; REQUEST_BYTES];
    read(address, &mut bytes)?;
    let request = Request::from_bytes(&bytes).map_err(errno)?;
    let right = match request.operation.access() {
        Mode::Write => bindings::GCT_DOOR_WRITE,
        Mode::Read | Mode::ReadWrite => bindings::GCT_DOOR_READ,
    };
    if rights & right == 0 {
        return Err(EBADF.to_errno());
    }
    let mut path = [0; limits::PATH_LEN_MAX];
    let path = path
        .get_mut(..number(request.path_bytes))
        .ok_or(errno(Error::NotFound))?;
    read(addr(request.path)?, path)?;
    match request.operation {
        Operation::List => answer(address, &request, |out| {
            glue.with(|state, _| state.list(path, out))
        }),
        Operation::Read => {
            let found = glue.with(|state, _| state.file_at(path, Mode::Read));
            let (file, scope) = found.map_err(errno)?;
            answer(address, &request, |out| files::show(glue, file, scope, out))
        }
        Operation::Write => {
            let found = glue.with(|state, _| state.file_at(path, Mode::Write));
            let (file, scope) = found.map_err(errno)?;
            let text = files::text_of_write(addr(request.text)?, number(request.text_bytes))?;
            files::write(glue, file, scope, &text)
        }
    }
}

/// Prints into a buffer and copies it to the caller, with its length.
fn answer(
    address: usize,
    request: &Request,
    print: impl FnOnce(&mut dyn fmt::Write) -> Result<(), Error>,
) -> Result<(), c_int> {
    let room = number(request.text_bytes).min(limits::ANSWER_LEN_MAX);
    let mut bytes =
        KVVec::from_elem(0u8, room, GFP_KERNEL_ACCOUNT).map_err(|_| ENOMEM.to_errno())?;
    let mut out = Room::new(&mut bytes);
    print(&mut out).map_err(errno)?;
    let length = u64::try_from(out.length()).unwrap_or(u64::MAX);
    let field = address
        .checked_add(ANSWER_OFFSET)
        .ok_or(EFAULT.to_errno())?;
    if let Some(text) = out.text() {
        write(addr(request.text)?, text)?;
    }
    write(field, &length.to_ne_bytes())?;
    match out.text() {
        Some(_) => Ok(()),
        None => Err(NO_ROOM.wrapping_neg()),
    }
}

fn read(from: usize, to: &mut [u8]) -> Result<(), c_int> {
    let from = UserSlice::new(UserPtr::from_addr(from), to.len());
    from.reader()
        .read_slice(to)
        .map_err(|error| error.to_errno())
}

fn write(to: usize, from: &[u8]) -> Result<(), c_int> {
    let to = UserSlice::new(UserPtr::from_addr(to), from.len());
    to.writer()
        .write_slice(from)
        .map_err(|error| error.to_errno())
}

fn addr(address: u64) -> Result<usize, c_int> {
    usize::try_from(address).map_err(|_| EFAULT.to_errno())
}

fn number(bytes: u32) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
