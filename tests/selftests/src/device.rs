// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sends requests to `/dev/gctgroup`.

use crate::sys;
use gct_core::iface::door::{Operation, Request, ANSWER_OFFSET, COMMAND, NO_ROOM, REQUEST_BYTES};
use std::fs::{File, OpenOptions};
use std::io;

/// The device.
pub(crate) const DEVICE: &str = "/dev/gctgroup";

/// Most bytes that these tests read at once.
const ROOM: usize = 1 << 16;

/// Opens the device.
pub(crate) fn open(read: bool, write: bool) -> io::Result<File> {
    OpenOptions::new().read(read).write(write).open(DEVICE)
}

/// Sends the bytes of a request. Returns what the kernel stored as length of the answer.
///
/// # Safety
///
/// The addresses in the request are those of `bytes_of`'s buffers, or of no memory of this process.
pub(crate) unsafe fn send(device: &File, bytes: &mut [u8; REQUEST_BYTES]) -> (io::Result<()>, u64) {
    // SAFETY: the caller guarantees it.
    let outcome = unsafe { sys::ioctl(device, COMMAND.into(), bytes) };
    let answer = bytes[ANSWER_OFFSET..].first_chunk().copied();
    (outcome, u64::from_ne_bytes(answer.unwrap_or_default()))
}

/// Returns the bytes of a request about a path and a text.
pub(crate) fn bytes_of(operation: Operation, path: &[u8], text: &mut [u8]) -> [u8; REQUEST_BYTES] {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let request = Request {
        operation,
        path: path.as_ptr().expose_provenance() as u64,
        path_bytes: number(path.len()),
        text: text.as_mut_ptr().expose_provenance() as u64,
        text_bytes: number(text.len()),
    };
    request.to_bytes()
}

/// Reads a file or lists a directory, with `room` bytes of room at first.
pub(crate) fn ask(
    device: &File,
    operation: Operation,
    path: &str,
    room: usize,
) -> io::Result<String> {
    let mut text = vec![0; room];
    loop {
        let mut bytes = bytes_of(operation, path.as_bytes(), &mut text);
        // SAFETY: the request names `path` and `text`, which nobody else uses meanwhile.
        let (outcome, length) = unsafe { send(device, &mut bytes) };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        match outcome {
            Ok(()) => {
                text.truncate(length);
                return String::from_utf8(text).map_err(io::Error::other);
            }
            Err(error) if sys::errno(&error) == NO_ROOM && length > text.len() => {
                text.resize(length, 0);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Writes to a file.
pub(crate) fn put(device: &File, path: &str, text: &[u8]) -> io::Result<()> {
    let mut text = text.to_vec();
    let mut bytes = bytes_of(Operation::Write, path.as_bytes(), &mut text);
    // SAFETY: the request names `path` and `text`, which the kernel only reads.
    unsafe { send(device, &mut bytes) }.0
}

/// Reads a file.
pub(crate) fn read(path: &str) -> io::Result<String> {
    ask(&open(true, false)?, Operation::Read, path, ROOM)
}

/// Writes to a file.
pub(crate) fn write(path: &str, text: &[u8]) -> io::Result<()> {
    put(&open(false, true)?, path, text)
}

/// Lists a directory: its directories and its files.
pub(crate) fn list(path: &str) -> io::Result<(Vec<String>, Vec<String>)> {
    let text = ask(&open(true, false)?, Operation::List, path, ROOM)?;
    let (mut dirs, mut files) = (Vec::new(), Vec::new());
    for name in text.lines() {
        match name.strip_suffix('/') {
            Some(name) => dirs.push(name.to_owned()),
            None => files.push(name.to_owned()),
        }
    }
    dirs.sort();
    files.sort();
    Ok((dirs, files))
}
