// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Maps sealed pages of memory that processes share.

use core::ffi::c_void;
use core::marker::PhantomData;
use core::ptr::NonNull;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{self, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{Errno, Result};
use rustix::mm::{self, MapFlags, ProtFlags};

/// A type that may lie in memory that other processes write at any time.
///
/// # Safety
///
/// The type consists of atomics only, every bit pattern of it is valid, and it needs no drop.
pub unsafe trait Shareable: Sync {}

/// Bytes of a shared page: enough for a board of 60 processes. Unwritten parts use no memory.
pub const PAGE_BYTES: usize = 8192;

/// A mapped page of `T`.
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
        // SAFETY: `at` maps a whole page that lives as long as `self`, its file cannot shrink,
        // and every bit pattern is a `T`.
        unsafe { self.at.as_ref() }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: `map` created the mapping, and no reference outlives `self`. If `munmap` fails,
        // address space is lost and nothing else.
        let _ = unsafe { mm::munmap(self.at.as_ptr().cast::<c_void>(), PAGE_BYTES) };
    }
}

fn map<T: Shareable>(fd: BorrowedFd<'_>, access: ProtFlags) -> Result<Shared<T>> {
    const { assert!(size_of::<T>() <= PAGE_BYTES && align_of::<T>() <= PAGE_BYTES) };
    // SAFETY: the kernel chooses an unused address, so no existing mapping changes.
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

/// Checks that a received descriptor is at least one page long and sealed against shrinking.
fn check(fd: BorrowedFd<'_>) -> Result<()> {
    let sealed = fs::fcntl_get_seals(fd)?.contains(SealFlags::SHRINK);
    // CAST: a page is a few thousand bytes.
    let long = fs::fstat(fd)?.st_size >= PAGE_BYTES as i64;
    (sealed && long).then_some(()).ok_or(Errno::INVAL)
}

impl<T: Shareable> Shared<T> {
    /// Maps a received page for reading and writing.
    ///
    /// # Errors
    ///
    /// `EINVAL` unless the descriptor is a sealed page, and those of the kernel.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self> {
        check(fd)?;
        map(fd, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps a received page for reading.
    ///
    /// # Errors
    ///
    /// As [`Shared::open`].
    pub fn open_read_only(fd: BorrowedFd<'_>) -> Result<ReadOnly<T>> {
        check(fd)?;
        map(fd, ProtFlags::READ).map(ReadOnly)
    }
}

/// A page that this process must not write. Methods that write take a [`Shared`].
#[derive(Debug)]
pub struct ReadOnly<T>(Shared<T>);

impl<T: Shareable> ReadOnly<T> {
    /// Returns the page. A store to it would kill the process.
    pub(crate) fn get(&self) -> &T {
        &self.0
    }
}

/// The descriptor of a page that this process created. Others can still map it for writing.
#[derive(Debug)]
pub struct SharedFd(OwnedFd);

impl SharedFd {
    /// Creates a page of zeros and maps it.
    ///
    /// # Errors
    ///
    /// Those of the kernel.
    pub fn create<T: Shareable>(name: &str) -> Result<(Self, Shared<T>)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = fs::memfd_create(name, flags)?;
        // CAST: widening.
        fs::ftruncate(&fd, PAGE_BYTES as u64)?;
        // Keeps other users out. Root can open it all the same.
        fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        let page = map(fd.as_fd(), ProtFlags::READ | ProtFlags::WRITE)?;
        fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok((Self(fd), page))
    }

    /// Returns the descriptor, for the other process that writes the page.
    pub fn writable(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Seals the page. Existing writable mappings stay, and no new one can be created, not even by
    /// root after reopening the descriptor. Returns a descriptor for readers.
    ///
    /// # Errors
    ///
    /// `EPERM` if a holder has set other seals, and those of the kernel.
    pub fn seal(&self) -> Result<SealedFd> {
        fs::fcntl_add_seals(&self.0, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        let path = format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&self.0));
        let fd = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(SealedFd(fd))
    }
}

/// The descriptor of a page that no further process can map for writing.
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
    fn a_page_is_shared_and_cannot_shrink() {
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

    /// Checks the seals: root, as which the tests may run, ignores the mode of the file.
    #[test]
    fn a_sealed_page_cannot_be_written_after_reopening() {
        let (fd, mine) = SharedFd::create::<Word>("test").unwrap();
        let sealed = fd.seal().unwrap();
        mine.0.store(9, Ordering::SeqCst);
        assert!(Shared::<Word>::open(fd.writable()).is_err());
        for of in [fd.0.as_raw_fd(), sealed.0.as_raw_fd()] {
            let path = format!("/proc/self/fd/{of}");
            let Ok(reopened) = fs::open(path, OFlags::RDWR, Mode::empty()) else {
                continue;
            };
            assert!(Shared::<Word>::open(reopened.as_fd()).is_err());
            assert_eq!(rustix::io::write(&reopened, &[1; 8]), Err(Errno::PERM));
            let punch = fs::FallocateFlags::PUNCH_HOLE | fs::FallocateFlags::KEEP_SIZE;
            assert_eq!(fs::fallocate(&reopened, punch, 0, 4096), Err(Errno::PERM));
            let view = Shared::<Word>::open_read_only(reopened.as_fd()).unwrap();
            let at = view.0.at.as_ptr().cast();
            // SAFETY: only this test uses the mapping, and the call must fail without a change.
            let changed = unsafe { mm::mprotect(at, PAGE_BYTES, mm::MprotectFlags::WRITE) };
            assert_eq!(changed, Err(Errno::ACCESS));
        }
        assert_eq!(mine.0.load(Ordering::SeqCst), 9);
    }

    #[test]
    fn other_seals_of_a_holder_are_detected() {
        let (fd, _page) = SharedFd::create::<Word>("test").unwrap();
        fs::fcntl_add_seals(fd.writable(), SealFlags::SEAL).unwrap();
        assert!(fd.seal().is_err());
    }

    #[test]
    fn memory_that_may_shrink_is_not_mapped() {
        let fd = fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        fs::ftruncate(&fd, 4096).unwrap();
        assert!(Shared::<Word>::open(fd.as_fd()).is_err());
    }

    /// A longer page is that of a newer side.
    #[test]
    fn memory_that_is_shorter_than_a_page_is_not_mapped() {
        let open = |bytes| {
            let fd = fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
            fs::ftruncate(&fd, bytes).unwrap();
            fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
            Shared::<Word>::open(fd.as_fd()).is_ok()
        };
        let page = PAGE_BYTES as u64;
        let lengths = [0, page - 1, page, page + 1, 1 << 30];
        assert_eq!(lengths.map(open), [false, false, true, true, true]);
    }
}
