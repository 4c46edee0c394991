// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Charges managed memory with the daemon before it is mapped, and uncharges it when it is gone.
//!
//! libcuda maps managed memory from the UVM driver's node, at an address of its choice, without any
//! ioctl before. It frees the memory by unmapping it or by mapping something else over it. A
//! semaphore pool, which is host memory, is mapped in the same way, but an ioctl announces it.
//!
//! A mapping over the limit fails with `ENOMEM`. libcuda turns that into CUDA_ERROR_UNKNOWN, and
//! [`crate::driver::allocations`] turns this into CUDA_ERROR_OUT_OF_MEMORY. libcuda has no better
//! error: if the ioctl that it sends after the mapping (0x48) is refused, it returns
//! CUDA_ERROR_INVALID_VALUE for every status (580.159.04).

use crate::daemon;
use crate::forks;
use crate::locks::Lock;
use crate::ranges::Ranges;
use crate::sys::{keep_errno, PAGE};
use core::cell::Cell;
use gctd_ipc::tenant::ManagedCharge;

/// `UVM_ALLOC_SEMAPHORE_POOL`. Its structure begins with the address and the length.
pub(crate) const ALLOC_SEMAPHORE_POOL: u64 = 0x44;

/// The most announced pools that are not mapped yet. Beyond that the oldest is forgotten.
const POOLS_MAX: usize = 64;

static RANGES: Ranges = Ranges::new();
static POOLS: Lock<Pools> = Lock::new(Pools(Vec::new()), || Pools(Vec::new()));

std::thread_local! {
    /// Whether this thread allocates memory that is charged in another way.
    static IS_UNCHARGED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f`, whose managed memory is pageable memory: [`crate::pager`] charges it.
pub(crate) fn uncharged<T>(f: impl FnOnce() -> T) -> T {
    IS_UNCHARGED.set(true);
    let result = f();
    IS_UNCHARGED.set(false);
    result
}

/// The addresses and lengths of announced pools.
#[derive(Debug)]
struct Pools(Vec<(u64, u64)>);

impl Pools {
    fn announce(&mut self, base: u64, len: u64) {
        if self.0.len() == POOLS_MAX {
            self.0.remove(0);
        }
        self.0.push((base, len));
    }

    /// Removes a pool that is now mapped. Returns false if it was not announced.
    fn take(&mut self, base: u64, len: u64) -> bool {
        let at = self.0.iter().position(|pool| *pool == (base, len));
        at.map(|at| self.0.swap_remove(at)).is_some()
    }
}

/// The daemon's answer about a mapping of the UVM driver's node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The mapping is not managed memory, or no daemon could be asked.
    Nothing,
    /// The daemon has charged it under this number.
    Granted(u64),
    /// It exceeds the limit.
    Refused,
}

/// Records a semaphore pool that the program will map.
pub(crate) fn pool_made(base: u64, len: u64) {
    let mut pools = POOLS.lock();
    pools.announce(base, len);
}

/// Charges a mapping of the UVM driver's node before it is made.
pub(crate) fn before(addr: usize, len: usize) -> Asked {
    forks::manage();
    if forks::is_inert() || IS_UNCHARGED.try_with(Cell::get).unwrap_or(false) {
        return Asked::Nothing;
    }
    // CAST: widening.
    let (base, bytes) = (addr as u64, len as u64);
    let mut pools = POOLS.lock();
    if pools.take(base, bytes) {
        return Asked::Nothing;
    }
    drop(pools);
    match daemon::charge_managed(bytes) {
        Some(ManagedCharge::Granted(number)) => Asked::Granted(number),
        Some(ManagedCharge::Refused) => Asked::Refused,
        None => Asked::Nothing,
    }
}

/// Records where the mapping was made, or uncharges it if it failed.
pub(crate) fn after(asked: Asked, addr: Option<usize>, len: usize) {
    let Asked::Granted(number) = asked else {
        return;
    };
    let range = addr.and_then(|addr| range(addr, len));
    if !range.is_some_and(|(start, end)| RANGES.add(start, end, number)) {
        daemon::uncharge_managed(number);
    }
}

/// Uncharges managed memory that was in `[addr, addr + len)`, which is unmapped or mapped over. Any
/// code may call it: allocators and signal handlers unmap no managed memory, so they take no lock
/// here.
pub(crate) fn gone(addr: usize, len: usize) {
    let Some((start, end)) = range(addr, len) else {
        return;
    };
    if RANGES.touch(start, end) && !forks::is_inert() {
        keep_errno(|| RANGES.remove(start, end, daemon::uncharge_managed));
    }
}

/// Makes pools and ranges usable in a forked child.
///
/// # Safety
///
/// The process has one thread.
pub(crate) unsafe fn forked() {
    // SAFETY: passed on.
    unsafe {
        POOLS.renew();
        RANGES.forked();
    }
}

/// Returns the page range of a mapping, or `None` if the kernel rejects it.
fn range(addr: usize, len: usize) -> Option<(usize, usize)> {
    let end = addr.checked_add(len.checked_next_multiple_of(PAGE)?)?;
    (addr % PAGE == 0 && addr < end).then_some((addr, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interpose;
    use crate::tests::device;

    #[test]
    fn a_pool_is_one_once() {
        let mut pools = Pools(Vec::new());
        pools.announce(0x2000, 0x1000);
        assert!(!pools.take(0x2000, 0x2000) && !pools.take(0x1000, 0x1000));
        assert!(pools.take(0x2000, 0x1000) && !pools.take(0x2000, 0x1000));
        (0..1000).for_each(|n| pools.announce(n, 1));
        assert!(pools.0.len() == POOLS_MAX && pools.take(999, 1) && !pools.take(900, 1));
    }

    #[test]
    fn pageable_memory_is_not_charged_twice() {
        let asked = |f: fn() -> Asked| match f() {
            Asked::Granted(number) => {
                after(Asked::Granted(number), None, PAGE);
                true
            }
            _ => false,
        };
        assert!(!asked(|| uncharged(|| before(0, PAGE))));
        assert!(asked(|| before(0, PAGE)), "from then on as ever");
    }

    #[test]
    fn the_pages_are_those_of_the_kernel() {
        assert_eq!(range(0x1000, 1), Some((0x1000, 0x2000)));
        assert_eq!(range(0x1000, 0x1001), Some((0x1000, 0x3000)));
        for (addr, len) in [
            (0x1001, 1),
            (0x1000, 0),
            (0x1000, usize::MAX),
            (usize::MAX - 4095, 1),
        ] {
            assert_eq!(range(addr, len), None, "{addr:#x} {len:#x}");
        }
    }

    /// Checks it with this library's `mmap` and `munmap`.
    #[test]
    fn what_the_program_unmaps_or_maps_over_is_gone() {
        const LEN: usize = 4 * PAGE;
        let there = |at: usize| RANGES.touch(at, at + 1);
        let at = device(LEN);
        after(Asked::Granted(1), Some(at), LEN);
        assert!(there(at) && there(at + LEN - 1));
        let over = |flags: i32| {
            let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let first = at as *mut core::ffi::c_void;
            // SAFETY: over a mapping of this test, or beside it.
            let ret = unsafe { interpose::mmap(first, PAGE, libc::PROT_READ, flags, -1, 0) };
            assert_ne!(ret, libc::MAP_FAILED);
            ret as usize
        };
        assert_ne!(over(0), at, "an address that is a wish takes nothing away");
        assert!(there(at));
        assert_eq!(over(libc::MAP_FIXED), at);
        assert!(!there(at) && there(at + PAGE));
        // SAFETY: a mapping of this test, which nobody uses.
        assert_eq!(unsafe { interpose::munmap(at as *mut _, LEN) }, 0);
        assert!(!there(at + PAGE) && !there(at + LEN - 1));
        after(Asked::Granted(2), None, LEN);
        after(Asked::Refused, Some(at), LEN);
        after(Asked::Nothing, Some(at), LEN);
        assert!(!there(at));
    }
}
