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

/// Bytes of a shared page: what a board of 60 processes needs. What is not written takes no memory.
pub const PAGE_BYTES: usize = 8192;

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

/// The descriptor of a page that this process made, and that others may still map to write.
#[derive(Debug)]
pub struct SharedFd(OwnedFd);

impl SharedFd {
    /// Makes a page of zeros: mapped here, and to be sent to whoever writes it, too.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn create<T: Shareable>(name: &str) -> Result<(Self, Shared<T>)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = fs::memfd_create(name, flags)?;
        // CAST: widening.
        fs::ftruncate(&fd, PAGE_BYTES as u64)?;
        // Users other than this one have no business with it; root opens it all the same.
        fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        let page = map(fd.as_fd(), ProtFlags::READ | ProtFlags::WRITE)?;
        fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok((Self(fd), page))
    }

    /// For the process that writes it.
    pub fn writable(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Seals the page: mappings that write it stay, and nobody will get another one, not even root
    /// who opens the descriptor anew. What is left is for readers.
    ///
    /// # Errors
    ///
    /// The kernel's; `EPERM` when a holder has sealed it otherwise.
    pub fn seal(&self) -> Result<SealedFd> {
        fs::fcntl_add_seals(&self.0, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        let path = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&self.0));
        let fd = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(SealedFd(fd))
    }
}

/// The descriptor of a page that has all its writers.
#[derive(Debug)]
pub struct SealedFd(OwnedFd);

impl AsFd for SealedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU64, Ordering};
    use rustix::fd::AsRawFd;

    #[repr(C)]
    struct Word(AtomicU64);
    // SAFETY: one atomic.
    unsafe impl Shareable for Word {}

    #[test]
    fn what_one_writes_the_other_reads_and_none_can_shrink_it() {
        let (fd, mine) = SharedFd::create::<Word>("test").unwrap();
        let theirs = Shared::<Word>::open(fd.writable()).unwrap();
        let sealed = fd.seal().unwrap();
        let reader = Shared::<Word>::open_read_only(sealed.as_fd()).unwrap();
        theirs.0.store(7, Ordering::SeqCst);
        assert_eq!(mine.0.load(Ordering::SeqCst), 7);
        assert_eq!(reader.get().0.load(Ordering::SeqCst), 7);
        assert_eq!(fs::ftruncate(fd.writable(), 0), Err(Errno::PERM));
        assert_eq!(
            fs::ftruncate(fd.writable(), 2 * PAGE_BYTES as u64),
            Err(Errno::PERM)
        );
        assert_eq!(
            fs::fcntl_add_seals(fd.writable(), SealFlags::WRITE),
            Err(Errno::PERM)
        );
        assert!(Shared::<Word>::open(sealed.as_fd()).is_err());
    }

    /// These tests may be root's, for whom the mode of a file is nothing.
    #[test]
    fn nobody_can_write_what_is_sealed_however_it_is_opened() {
        let (fd, mine) = SharedFd::create::<Word>("test").unwrap();
        let sealed = fd.seal().unwrap();
        mine.0.store(9, Ordering::SeqCst);
        assert!(Shared::<Word>::open(fd.writable()).is_err());
        for of in [fd.0.as_raw_fd(), sealed.0.as_raw_fd()] {
            let path = format!("/proc/self/fd/{of}");
            let Ok(anew) = fs::open(path, OFlags::RDWR, Mode::empty()) else {
                continue;
            };
            assert!(Shared::<Word>::open(anew.as_fd()).is_err());
            assert_eq!(rustix::io::write(&anew, &[1; 8]), Err(Errno::PERM));
            let punch = fs::FallocateFlags::PUNCH_HOLE | fs::FallocateFlags::KEEP_SIZE;
            assert_eq!(fs::fallocate(&anew, punch, 0, 4096), Err(Errno::PERM));
            let view = Shared::<Word>::open_read_only(anew.as_fd()).unwrap();
            let at = view.0.at.as_ptr().cast();
            // SAFETY: a mapping of this test's, which nobody else uses; it must stay as it is.
            let changed = unsafe { mm::mprotect(at, PAGE_BYTES, mm::MprotectFlags::WRITE) };
            assert_eq!(changed, Err(Errno::ACCESS));
        }
        assert_eq!(mine.0.load(Ordering::SeqCst), 9);
    }

    #[test]
    fn a_holder_that_seals_a_page_itself_is_found_out() {
        let (fd, _page) = SharedFd::create::<Word>("test").unwrap();
        fs::fcntl_add_seals(fd.writable(), SealFlags::SEAL).unwrap();
        assert!(fd.seal().is_err());
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
