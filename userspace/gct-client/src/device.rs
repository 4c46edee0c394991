// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Accesses the kernel's tree through `/dev/gctgroup`.
//!
//! An open device keeps the driver loaded, so it is opened for each request.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use gct_core::iface::door::{Operation, Request, ANSWER_OFFSET, COMMAND, NO_ROOM, REQUEST_BYTES};
use gct_core::limits;
use rustix::ioctl::{ioctl, Opcode, Updater};

use crate::transport::{Door, Transport};

/// Room for the first try. Most files and directories are shorter.
const ROOM: usize = 4096;

/// Tries until an answer fits that grows meanwhile.
const TRIES_MAX: usize = 16;

const OPCODE: Opcode = COMMAND as Opcode;

/// The device.
#[derive(Debug)]
pub(crate) struct Device(pub(crate) PathBuf);

/// Sends a request about a path and a text. Returns the length of the answer, also with an error.
fn send(
    device: &File,
    operation: Operation,
    path: &[u8],
    text: &mut [u8],
) -> (io::Result<()>, usize) {
    let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
    // The lossless conversion of a pointer's bits: no machine has addresses of more than 64.
    let address = |address: usize| address as u64;
    let request = Request {
        operation,
        path: address(path.as_ptr().expose_provenance()),
        path_bytes: number(path.len()),
        text: address(text.as_mut_ptr().expose_provenance()),
        text_bytes: number(text.len()),
    };
    let mut bytes: [u8; REQUEST_BYTES] = request.to_bytes();
    // SAFETY: the command takes these bytes. The kernel reads `path`, and reads or writes `text`,
    // within the lengths that go along. Both outlive the call, and nobody else uses `text`.
    let outcome = unsafe { ioctl(device, Updater::<OPCODE, _>::new(&mut bytes)) };
    let answer = bytes[ANSWER_OFFSET..].first_chunk().copied();
    let length = u64::from_ne_bytes(answer.unwrap_or_default());
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    (outcome.map_err(io::Error::from), length)
}

fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_encoded_bytes()
}

impl Device {
    fn open(&self, operation: Operation) -> io::Result<File> {
        let writes = operation == Operation::Write;
        let mut options = OpenOptions::new();
        options.read(!writes).write(writes).open(&self.0)
    }

    /// Reads a file or lists a directory.
    fn ask(&self, operation: Operation, path: &Path) -> io::Result<Vec<u8>> {
        let device = self.open(operation)?;
        let mut text = vec![0; ROOM];
        for _ in 0..TRIES_MAX {
            let (outcome, length) = send(&device, operation, bytes_of(path), &mut text);
            match outcome {
                Ok(()) => {
                    text.truncate(length);
                    return Ok(text);
                }
                Err(error) if error.raw_os_error() != Some(NO_ROOM) => return Err(error),
                Err(error) if length > limits::ANSWER_LEN_MAX => return Err(error),
                // The answer may have grown until the next try.
                Err(_) => text.resize(length + length / 8, 0),
            }
        }
        Err(io::Error::from_raw_os_error(NO_ROOM))
    }

    fn list(&self, path: &Path) -> io::Result<String> {
        let names = String::from_utf8(self.ask(Operation::List, path)?);
        names.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

impl Transport for Device {
    fn place(&self) -> &Path {
        &self.0
    }

    fn door(&self) -> Door {
        Door::Device(None)
    }

    fn check(&self) -> io::Result<()> {
        self.list(Path::new("")).map(|_| ())
    }

    fn is_dir(&self, path: &Path) -> bool {
        if path.as_os_str().is_empty() {
            // The root lists every process, and is there if the device is.
            return self.open(Operation::List).is_ok();
        }
        // An answer that does not fit says as well that the directory exists.
        let is_there =
            |device: File| match send(&device, Operation::List, bytes_of(path), &mut []).0 {
                Ok(()) => true,
                Err(error) => error.raw_os_error() == Some(NO_ROOM),
            };
        self.open(Operation::List).is_ok_and(is_there)
    }

    fn dirs(&self, path: &Path) -> io::Result<Vec<String>> {
        let names = self.list(path)?;
        let dirs = names.lines().filter_map(|name| name.strip_suffix('/'));
        Ok(dirs.map(str::to_owned).collect())
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.ask(Operation::Read, path)
    }

    fn write(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        let device = self.open(Operation::Write)?;
        let mut text = text.to_vec();
        send(&device, Operation::Write, bytes_of(path), &mut text).0
    }

    fn may_write(&self, _path: &Path) -> io::Result<()> {
        // Opening has no effect, and checks all that a write checks.
        self.open(Operation::Write).map(|_| ())
    }
}
