// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Implements a client of the resource manager, through the ioctls of /dev/nvidiactl.

use crate::sys::{ioctl, mknod_char};
use std::fs::{File, OpenOptions};
use std::io;

/// The control device.
const CONTROL: &str = "/dev/nvidiactl";
/// `NV_MAJOR_DEVICE_NUMBER` and `NV_CONTROL_DEVICE_MINOR` of NVIDIA's headers.
const MAJOR: u32 = 195;
const CONTROL_MINOR: u32 = 255;

/// `NV_ESC_RM_ALLOC` and `NV_ESC_RM_FREE`.
const ALLOC: u64 = 0x2b;
const FREE: u64 = 0x29;
/// Class of a client.
const NV01_ROOT: u32 = 0;

/// `NVOS21_PARAMETERS`.
#[repr(C)]
#[derive(Default)]
struct Alloc {
    root: u32,
    parent: u32,
    object: u32,
    class: u32,
    parameters: u64,
    parameters_size: u32,
    status: u32,
}

/// `NVOS00_PARAMETERS`.
#[repr(C)]
#[derive(Default)]
struct Free {
    root: u32,
    parent: u32,
    object: u32,
    status: u32,
}

const _: () = assert!(size_of::<Alloc>() == 32);
const _: () = assert!(size_of::<Free>() == 16);

/// Returns `_IOWR('F', number, T)`.
const fn request<T>(number: u64) -> u64 {
    // CAST: sizes of ioctl structures have 14 bits.
    (3 << 30) | ((size_of::<T>() as u64) << 16) | (0x46 << 8) | number
}

/// Opens the control device. First creates its node, which udev does elsewhere.
pub(crate) fn open() -> io::Result<File> {
    mknod_char(CONTROL, MAJOR, CONTROL_MINOR)?;
    OpenOptions::new().read(true).write(true).open(CONTROL)
}

fn done(status: u32) -> io::Result<()> {
    match status {
        0 => Ok(()),
        status => Err(io::Error::other(format!(
            "the resource manager answered status 0x{status:x}"
        ))),
    }
}

/// Allocates a client and returns its handle.
pub(crate) fn alloc_client(control: &File) -> io::Result<u32> {
    let mut call = Alloc {
        class: NV01_ROOT,
        ..Alloc::default()
    };
    // SAFETY: NVOS21 with no parameter block.
    unsafe { ioctl(control, request::<Alloc>(ALLOC), &mut call) }?;
    done(call.status).map(|()| call.object)
}

/// Frees a client.
pub(crate) fn free_client(control: &File, client: u32) -> io::Result<()> {
    let mut call = Free {
        root: client,
        parent: 0,
        object: client,
        status: 0,
    };
    // SAFETY: NVOS00.
    unsafe { ioctl(control, request::<Free>(FREE), &mut call) }?;
    done(call.status)
}

/// Issues an ioctl that the hooks inspect, with `size` bytes of `fill`. The driver may refuse it.
pub(crate) fn nonsense(control: &File, number: u64, size: u64, fill: u8) {
    let mut bytes = [fill; 256];
    let request = (3 << 30) | ((size & 0xff) << 16) | (0x46 << 8) | number;
    // SAFETY: the driver reads and writes at most 255 bytes. Handles and pointers in them are the
    // fill byte repeated: no such handle, and no address of this process.
    let _ = unsafe { ioctl(control, request, &mut bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_those_of_nvidia() {
        assert_eq!(request::<Alloc>(ALLOC), 0xc020_462b);
        assert_eq!(request::<Free>(FREE), 0xc010_4629);
    }
}
