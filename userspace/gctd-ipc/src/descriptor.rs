// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps descriptors inside a program that does not know of them.
//!
//! The program may close all descriptors, as a daemon does, and open its own files under the same
//! numbers. So each use of a number first checks that it still names the same file.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::fstat;
use rustix::io::{close, fcntl_dupfd_cloexec, Errno, Result};

/// The least numbers to try. A program opens its own files at the lowest free number, and gives
/// some of them fixed numbers, which are small. 1024 is a common limit.
const FLOORS: [RawFd; 4] = [1024, 512, 128, 32];

/// A descriptor that is checked before each use, if the program may have closed it.
pub trait Descriptor {
    /// Returns the descriptor for one system call.
    ///
    /// # Errors
    ///
    /// `EBADF` if the program has closed it.
    fn checked(&self) -> Result<BorrowedFd<'_>>;
}

impl Descriptor for OwnedFd {
    fn checked(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.as_fd())
    }
}

/// A descriptor of a process that closes none of its own by mistake.
impl Descriptor for BorrowedFd<'_> {
    fn checked(&self) -> Result<BorrowedFd<'_>> {
        Ok(*self)
    }
}

impl<D: Descriptor> Descriptor for &D {
    fn checked(&self) -> Result<BorrowedFd<'_>> {
        (**self).checked()
    }
}

/// A descriptor of a library, inside a program that may close it.
///
/// Another thread can close it between the check and the system call that follows. The call then
/// reaches what that thread opens under the number within the same moment.
#[derive(Debug)]
pub struct Kept {
    number: RawFd,
    /// The device and the inode. A socket's inode is its own.
    file: (u64, u64),
}

impl Kept {
    /// Keeps a descriptor under its number, for a short time.
    ///
    /// # Errors
    ///
    /// Those of `fstat`.
    pub fn here(fd: OwnedFd) -> Result<Self> {
        let file = file(&fd)?;
        let number = fd.into_raw_fd();
        Ok(Self { number, file })
    }

    /// Moves a descriptor to a high number and keeps it there. Where the limit of descriptors is
    /// too low, the number stays.
    ///
    /// # Errors
    ///
    /// Those of `fstat`.
    pub fn high(fd: OwnedFd) -> Result<Self> {
        let mut floors = FLOORS.iter();
        let moved = floors.find_map(|floor| fcntl_dupfd_cloexec(&fd, *floor).ok());
        Self::here(moved.unwrap_or(fd))
    }
}

impl Descriptor for Kept {
    fn checked(&self) -> Result<BorrowedFd<'_>> {
        // SAFETY: the number is not -1, since it was a descriptor's. Whether it still is one, only
        // the kernel knows: `fstat` fails if it is not, and the caller gets no descriptor then.
        let fd = unsafe { BorrowedFd::borrow_raw(self.number) };
        match file(fd)? == self.file {
            true => Ok(fd),
            false => Err(Errno::BADF),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let Ok(own) = self.checked().map(|fd| fd.as_raw_fd()) else {
            return;
        };
        // SAFETY: it is the file that this value owns, and nothing borrows it any more.
        unsafe { close(own) };
    }
}

/// Returns the device and the inode of a file.
fn file(fd: impl rustix::fd::AsFd) -> Result<(u64, u64)> {
    let stat = fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};

    fn pair() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_number_that_names_another_file_is_neither_used_nor_closed() {
        let (mine, theirs) = pair();
        let kept = Kept::high(mine).unwrap();
        assert!(kept.number >= FLOORS[3], "{}", kept.number);
        assert_eq!(kept.checked().unwrap().as_raw_fd(), kept.number);
        // SAFETY: as a program closes what it does not know. Nothing else has this number.
        unsafe { close(kept.number) };
        assert!(matches!(kept.checked(), Err(Errno::BADF)));
        let taken = fcntl_dupfd_cloexec(&theirs, kept.number).unwrap();
        assert_eq!(taken.as_raw_fd(), kept.number);
        assert!(matches!(kept.checked(), Err(Errno::BADF)));
        drop(kept);
        assert!(fstat(&taken).is_ok(), "it was closed");
    }

    #[test]
    fn its_own_file_is_closed() {
        let (mine, theirs) = pair();
        drop(Kept::here(mine).unwrap());
        let end = rustix::io::read(&theirs, &mut [0; 1]);
        assert_eq!(end, Ok(0), "the other side sees the end");
    }
}
