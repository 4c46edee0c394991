// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Wraps the client's system calls: device nodes, ioctl, mmap.

use crate::layout::{Layout, Plain};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// `NV_MAJOR_DEVICE_NUMBER` of NVIDIA's headers.
const MAJOR: u32 = 195;

/// Opens a device of the driver. First creates its node, if udev does not.
pub(crate) fn open_device(path: &str, minor: u32) -> io::Result<File> {
    if !Path::new(path).exists() {
        let c_path = CString::new(path)?;
        let device = libc::makedev(MAJOR, minor);
        // SAFETY: the path ends with a NUL.
        if unsafe { libc::mknod(c_path.as_ptr(), libc::S_IFCHR | 0o666, device) } != 0 {
            let error = io::Error::last_os_error();
            // Another process of the same test was faster.
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(error);
            }
        }
    }
    OpenOptions::new().read(true).write(true).open(path)
}

/// Returns `_IOWR('F', escape, size)`.
const fn request(escape: u8, size: usize) -> libc::c_ulong {
    // CAST: sizes of ioctl structures have 14 bits, and a byte fits.
    (3 << 30) | ((size as libc::c_ulong) << 16) | (0x46 << 8) | (escape as libc::c_ulong)
}

/// Issues an ioctl with a structure that the driver reads and writes.
///
/// # Safety
///
/// Addresses in `argument` that the driver follows for this escape are 0, or point at memory that
/// it may read and write for as long as it says.
pub(crate) unsafe fn ioctl<T: Plain>(file: &File, escape: u8, argument: &mut T) -> io::Result<()> {
    // SAFETY: the driver takes the size from the request; the caller guarantees the rest.
    unsafe { ioctl_number(file, request(escape, size_of::<T>()), argument) }
}

/// Issues an ioctl by its whole number.
///
/// # Safety
///
/// As for [`ioctl`]; also, the driver expects a `T` for this number.
pub(crate) unsafe fn ioctl_number<T: Plain>(
    file: &File,
    number: libc::c_ulong,
    argument: &mut T,
) -> io::Result<()> {
    // SAFETY: the driver reads and writes the bytes of a `T`. They are a `T` afterwards, too, since
    // `T` accepts any bytes. The caller guarantees what they point at.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), number, std::ptr::from_mut(argument)) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Issues an ioctl whose structure holds no address.
pub(crate) fn ioctl_plain<T: Layout>(file: &File, escape: u8, argument: &mut T) -> io::Result<()> {
    // SAFETY: no structure of any caller holds an address.
    unsafe { ioctl(file, escape, argument) }
}

/// Memory that a GPU shares with this process.
///
/// The GPU may change it at any time, so all access is atomic and word by word.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to no thread, and all access is atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps what the driver has prepared for this file, or the file itself.
    ///
    /// # Errors
    ///
    /// Those of the system call.
    pub fn new(file: &File, length: usize) -> io::Result<Self> {
        Self::map(file, 0, length, 0)
    }

    /// Maps a file at an address that is also the offset in the file.
    pub(crate) fn at(file: &File, address: usize, length: usize) -> io::Result<Self> {
        Self::map(file, address, length, libc::MAP_FIXED_NOREPLACE)
    }

    fn map(file: &File, address: usize, length: usize, flags: i32) -> io::Result<Self> {
        let offset = i64::try_from(address).map_err(io::Error::other)?;
        // SAFETY: the kernel chooses the address of the new mapping, or nothing is mapped there, so
        // it replaces nothing of this process.
        let start = unsafe {
            libc::mmap(
                std::ptr::without_provenance_mut(address),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | flags,
                file.as_raw_fd(),
                offset,
            )
        };
        match NonNull::new(start.cast::<u8>()) {
            Some(address) if start != libc::MAP_FAILED => Ok(Self {
                start: address,
                length,
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns its address.
    pub(crate) fn address(&self) -> u64 {
        // CAST: an address of this process.
        self.start.as_ptr() as u64
    }

    /// Returns the 32-bit word at an offset in bytes, which must be aligned and inside.
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, size_of::<u32>());
        // SAFETY: the address is aligned and inside the mapping, which lives as long as `self`.
        unsafe { &*self.start.as_ptr().add(offset).cast::<AtomicU32>() }
    }

    /// Returns the 64-bit word at an offset in bytes, which must be aligned and inside.
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, size_of::<u64>());
        // SAFETY: as above.
        unsafe { &*self.start.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// Unmaps what is behind the first `length` bytes, whole pages.
    pub fn cut(&mut self, length: usize) {
        self.check(length, size_of::<u64>());
        // SAFETY: this part of the mapping is inside, and nothing refers to it, since `self` is
        // exclusive.
        unsafe { libc::munmap(self.start.as_ptr().add(length).cast(), self.length - length) };
        self.length = length;
    }

    fn check(&self, offset: usize, size: usize) {
        let end = offset.checked_add(size);
        assert!(end.is_some_and(|end| end <= self.length), "outside");
        assert_eq!(offset % size, 0, "unaligned");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// Memory of this process that can be made read-only.
#[derive(Debug)]
pub(crate) struct Page(NonNull<u8>);

impl Page {
    const BYTES: usize = 4096;

    /// Returns a page that begins with `value` and is read-only from then on.
    pub(crate) fn read_only<T: Plain>(value: &T) -> io::Result<Self> {
        assert!(size_of::<T>() <= Self::BYTES, "too large");
        // SAFETY: the kernel chooses the address of the new mapping.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Self::BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let page = match NonNull::new(start.cast::<u8>()) {
            Some(page) if start != libc::MAP_FAILED => Self(page),
            _ => return Err(io::Error::last_os_error()),
        };
        // SAFETY: the page is new, aligned and large enough. Nothing writes to it afterwards.
        let result = unsafe {
            page.0.as_ptr().cast::<T>().write(*value);
            libc::mprotect(start, Self::BYTES, libc::PROT_READ)
        };
        match result {
            0 => Ok(page),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns its address.
    pub(crate) fn address(&self) -> u64 {
        // CAST: an address of this process.
        self.0.as_ptr() as u64
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping.
        unsafe { libc::munmap(self.0.as_ptr().cast(), Self::BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{abi, numbers};

    #[test]
    fn requests_are_those_of_nvidia() {
        let alloc = request(numbers::ESCAPE_ALLOC, size_of::<abi::Alloc>());
        assert_eq!(alloc, 0xc020_462b);
        let free = request(numbers::ESCAPE_FREE, size_of::<abi::Free>());
        assert_eq!(free, 0xc010_4629);
    }
}
