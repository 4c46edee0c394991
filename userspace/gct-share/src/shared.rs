// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory that is shared between processes.

use core::ffi::c_void;
use core::marker::PhantomData;
use core::ptr::NonNull;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{Errno, Result};
use rustix::mm::{self, MapFlags, ProtFlags};

/// A type that may lie in memory which others write at any time.
///
/// # Safety
///
/// It consists of atomics alone, every bit pattern of it is valid, it needs no drop, and it
/// is not larger than [`PAGE_BYTES`] and not aligned to more.
pub unsafe trait Shareable: Sync {}

/// Bytes of a shared page.
pub const PAGE_BYTES: usize = 4096;

/// Who may write a new page beside its maker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Whoever is given [`SharedFd::writable`].
    Holder,
    /// Nobody: not even who is given the descriptor and opens it anew.
    Maker,
}

/// A page of `T`, mapped.
#[derive(Debug)]
pub struct Shared<T> {
    at: NonNull<T>,
    _owned: PhantomData<T>,
}

// SAFETY: `T` is made of atomics, so references to it may be used from every thread.
unsafe impl<T: Shareable> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Shareable> Sync for Shared<T> {}

impl<T: Shareable> core::ops::Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `at` is a mapping of a whole page that lives as long as `self`, its file
        // cannot shrink, and every bit pattern is a `T`.
        unsafe { self.at.as_ref() }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map`, and no reference outlives `self`.
        // A mapping that cannot be removed is only lost address space.
        let _ = unsafe { mm::munmap(self.at.as_ptr().cast::<c_void>(), PAGE_BYTES) };
    }
}

fn map<T: Shareable>(fd: BorrowedFd<'_>, access: ProtFlags) -> Result<Shared<T>> {
    const { assert!(size_of::<T>() <= PAGE_BYTES && align_of::<T>() <= PAGE_BYTES) };
    // SAFETY: the kernel chooses an address where nothing is.
    let at = unsafe {
        mm::mmap(
            core::ptr::null_mut(),
            PAGE_BYTES,
            access,
            MapFlags::SHARED,
            fd,
            0,
        )?
    };
    Ok(Shared {
        at: NonNull::new(at.cast::<T>()).ok_or(Errno::NOMEM)?,
        _owned: PhantomData,
    })
}

/// The descriptor of a page that somebody else made. Before anything is mapped it is checked
/// that it can neither shrink nor be shorter than a page.
fn check(fd: BorrowedFd<'_>) -> Result<()> {
    let sealed = fs::fcntl_get_seals(fd)?.contains(SealFlags::SHRINK);
    // CAST: a page is a few thousand bytes.
    let long = fs::fstat(fd)?.st_size >= PAGE_BYTES as i64;
    (sealed && long).then_some(()).ok_or(Errno::INVAL)
}

impl<T: Shareable> Shared<T> {
    /// Maps a page that was received, to read and write.
    ///
    /// # Errors
    ///
    /// The kernel's; `EINVAL` for a descriptor that is no sealed page.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self> {
        check(fd)?;
        map(fd, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps a page that was received, to read.
    ///
    /// # Errors
    ///
    /// As [`Shared::open`].
    pub fn open_read_only(fd: BorrowedFd<'_>) -> Result<ReadOnly<T>> {
        check(fd)?;
        map(fd, ProtFlags::READ).map(ReadOnly)
    }
}

/// A page that this process must not write: the methods that write take the whole
/// [`Shared`].
#[derive(Debug)]
pub struct ReadOnly<T>(Shared<T>);

impl<T: Shareable> ReadOnly<T> {
    /// The page. Storing to it ends the process.
    pub(crate) fn get(&self) -> &T {
        &self.0
    }
}

/// The descriptors of a page that this process made.
#[derive(Debug)]
pub struct SharedFd {
    fd: OwnedFd,
    read_only: OwnedFd,
}

impl SharedFd {
    /// Makes a page of zeros: mapped here, and to be sent to others.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn create<T: Shareable>(name: &str, writers: Writers) -> Result<(Self, Shared<T>)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = fs::memfd_create(name, flags)?;
        // CAST: widening.
        fs::ftruncate(&fd, PAGE_BYTES as u64)?;
        // Whoever holds a descriptor to read must not open the file anew to write.
        fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        let page = map(fd.as_fd(), ProtFlags::READ | ProtFlags::WRITE)?;
        let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        if writers == Writers::Maker {
            // The mapping above stays writable; no other ever will be.
            seals |= SealFlags::FUTURE_WRITE;
        }
        fs::fcntl_add_seals(&fd, seals)?;
        let path = format!(
            "/proc/self/fd/{}",
            rustix::fd::AsRawFd::as_raw_fd(&fd.as_fd())
        );
        let read_only = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok((Self { fd, read_only }, page))
    }

    /// For the process that writes it.
    pub fn writable(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// For those that read it.
    pub fn read_only(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU64, Ordering};

    #[repr(C)]
    struct Word(AtomicU64);
    // SAFETY: one atomic.
    unsafe impl Shareable for Word {}

    #[test]
    fn what_one_writes_the_other_reads_and_none_can_shrink_it() {
        let (fd, mine) = SharedFd::create::<Word>("test", Writers::Holder).unwrap();
        let theirs = Shared::<Word>::open(fd.writable()).unwrap();
        let reader = Shared::<Word>::open_read_only(fd.read_only()).unwrap();
        theirs.0.store(7, Ordering::SeqCst);
        assert_eq!(mine.0.load(Ordering::SeqCst), 7);
        assert_eq!(reader.get().0.load(Ordering::SeqCst), 7);
        assert_eq!(fs::ftruncate(fd.writable(), 0), Err(Errno::PERM));
        assert_eq!(fs::ftruncate(fd.writable(), 8192), Err(Errno::PERM));
        assert_eq!(
            fs::fcntl_add_seals(fd.writable(), SealFlags::WRITE),
            Err(Errno::PERM)
        );
        assert!(Shared::<Word>::open(fd.read_only()).is_err());
    }

    #[test]
    fn what_only_its_maker_writes_nobody_else_can() {
        let (fd, mine) = SharedFd::create::<Word>("test", Writers::Maker).unwrap();
        assert!(Shared::<Word>::open(fd.writable()).is_err());
        let reader = Shared::<Word>::open_read_only(fd.writable()).unwrap();
        mine.0.store(9, Ordering::SeqCst);
        assert_eq!(reader.get().0.load(Ordering::SeqCst), 9);
    }

    #[test]
    fn memory_that_may_shrink_is_not_mapped() {
        let fd = fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        fs::ftruncate(&fd, 4096).unwrap();
        assert!(Shared::<Word>::open(fd.as_fd()).is_err());
        let short = fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        fs::fcntl_add_seals(&short, SealFlags::SHRINK).unwrap();
        assert!(Shared::<Word>::open(short.as_fd()).is_err());
    }
}
