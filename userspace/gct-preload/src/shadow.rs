// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Replaces mappings of the driver with ordinary memory.
//!
//! The tenant keeps its addresses and writes ordinary memory there. The real mapping moves
//! elsewhere in the process, where only the worker uses it.

use crate::sys;
use core::ffi::c_void;
#[cfg(target_arch = "x86_64")]
use core::sync::atomic::compiler_fence;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A mapping and its shadow.
#[derive(Debug)]
pub(crate) struct Shadow {
    tenant: usize,
    real: usize,
    len: usize,
}

impl Shadow {
    /// Moves the mapping at `tenant` away and maps ordinary memory there. Copies the contents if
    /// `copy` says that they can be read.
    ///
    /// Between the two steps the range is free, and the kernel may give it to a thread that maps
    /// memory anywhere. It does so only if no higher range is free. That does not happen to the
    /// rings, which libcuda maps far below, nor to doorbells, which [`places`](crate::places) has
    /// mapped there.
    ///
    /// `None` leaves everything unchanged. One failure cannot be undone: if no anonymous page can
    /// be mapped at `tenant`, the process is aborted. Its next store would be lost, or reach
    /// another thread's memory.
    ///
    /// # Safety
    ///
    /// `[tenant, tenant + len)` must be one whole mapping of the NVIDIA driver, and no
    /// other thread may be using it during the call.
    pub(crate) unsafe fn new(tenant: usize, len: usize, copy: bool) -> Option<Self> {
        // SAFETY: by this function's contract the range is one mapping that is not in use.
        let real = unsafe { sys::move_mapping(tenant as *mut c_void, len)? };
        // SAFETY: the range was vacated by the move above.
        let shadow = unsafe {
            sys::mmap(
                tenant as *mut c_void,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE
                    | libc::MAP_ANONYMOUS
                    | libc::MAP_FIXED_NOREPLACE
                    | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        if shadow as usize != tenant {
            sys::say("gctgroup: the place of a mapping of the driver's was taken meanwhile\n");
            std::process::abort();
        }
        if copy {
            // SAFETY: both ranges are mapped, `len` bytes long and page-aligned, and the tenant
            // does not use its own during the call.
            unsafe { read_device(real.cast(), tenant as *mut c_void, len) };
        }
        Some(Self {
            tenant,
            real: real as usize,
            len,
        })
    }

    /// Creates a pair in which the tenant keeps the real mapping.
    pub(crate) fn of_tenant(tenant: usize, len: usize) -> Self {
        let real = tenant;
        Self { tenant, real, len }
    }

    /// Returns the start of the tenant's mapping.
    pub(crate) fn tenant(&self) -> usize {
        self.tenant
    }

    /// Returns the upper half: the tenant's address, the device's address, and the length. The
    /// tenant writes nothing there as long as its channels end below.
    pub(crate) fn upper_half(&self) -> (usize, usize, usize) {
        let half = self.len / 2;
        (self.tenant + half, self.real + half, self.len - half)
    }

    /// Returns whether the tenant's address lies inside.
    pub(crate) fn contains(&self, addr: usize) -> bool {
        addr.wrapping_sub(self.tenant) < self.len
    }

    /// Returns whether `[addr, addr + len)` lies inside.
    pub(crate) fn covers(&self, addr: usize, len: usize) -> bool {
        covers((self.tenant, self.len), addr, len)
    }

    /// Returns whether a part of `[addr, addr + len)` lies inside.
    pub(crate) fn touches(&self, addr: usize, len: usize) -> bool {
        touches((self.tenant, self.len), addr, len)
    }

    /// Returns a word of the tenant's mapping and its real counterpart. Returns `None` outside the
    /// mapping or off the alignment.
    pub(crate) fn word(&self, addr: usize) -> Option<Pair<'_, AtomicU32>> {
        if addr % 4 != 0 || !self.covers(addr, 4) {
            return None;
        }
        let real = self.real + (addr - self.tenant);
        // SAFETY: both lie in mappings that live as long as `self`, are aligned, and are
        // only ever accessed as atomics or by the GPU and the tenant, volatile by nature.
        unsafe {
            Some(Pair {
                tenant: AtomicU32::from_ptr(addr as *mut u32),
                real: AtomicU32::from_ptr(real as *mut u32),
            })
        }
    }

    /// Returns a ring entry of the tenant's mapping and its real counterpart.
    pub(crate) fn entry(&self, addr: usize) -> Option<Pair<'_, AtomicU64>> {
        if addr % 8 != 0 || !self.covers(addr, 8) {
            return None;
        }
        let real = self.real + (addr - self.tenant);
        // SAFETY: as in `word`.
        unsafe {
            Some(Pair {
                tenant: AtomicU64::from_ptr(addr as *mut u64),
                real: AtomicU64::from_ptr(real as *mut u64),
            })
        }
    }

    /// Returns the real mapping to the tenant at its old address, where this library uses it as
    /// well. Returns false if the kernel refuses. Then nothing has changed.
    pub(crate) fn restore(&mut self) -> bool {
        if self.real == self.tenant {
            return true;
        }
        // SAFETY: the real mapping is known to this library only, and the shadow that it
        // replaces is this library's; a store that races with the move hits one or the other.
        let moved = unsafe {
            libc::syscall(
                libc::SYS_mremap,
                self.real,
                self.len,
                self.len,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                self.tenant,
            )
        };
        if moved == -1 {
            return false;
        }
        self.real = self.tenant;
        true
    }

    /// Returns whether the tenant's mapping is a shadow.
    pub(crate) fn is_apart(&self) -> bool {
        self.real != self.tenant
    }

    /// Makes the tenant's next store fault, or lets stores pass again. Returns false if that cannot
    /// be done. Then the shadow must be polled.
    pub(crate) fn arm(&self, armed: bool) -> bool {
        if self.real == self.tenant {
            return false;
        }
        let prot = if armed {
            // libcuda reads back a doorbell that it has rung.
            libc::PROT_READ
        } else {
            libc::PROT_READ | libc::PROT_WRITE
        };
        // SAFETY: the shadow is this library's own mapping, and a store that faults
        // meanwhile is what the signal handler expects.
        unsafe { sys::mprotect(self.tenant as *mut c_void, self.len, prot) }
    }

    /// Unmaps the real mapping after the tenant has unmapped its own.
    ///
    /// # Safety
    ///
    /// No reference from [`Shadow::word`] or [`Shadow::entry`] may be alive.
    pub(crate) unsafe fn release(self) {
        if self.real == self.tenant {
            return;
        }
        // SAFETY: the alias belongs to this library, and by contract nobody uses it.
        unsafe { sys::munmap(self.real as *mut c_void, self.len) };
    }
}

/// Returns whether `[addr, addr + len)` lies in a range, given as address and length.
pub(crate) fn covers((start, size): (usize, usize), addr: usize, len: usize) -> bool {
    let offset = addr.wrapping_sub(start);
    offset < size && len <= size - offset
}

/// Returns whether a part of `[addr, addr + len)` lies in a range.
pub(crate) fn touches((start, size): (usize, usize), addr: usize, len: usize) -> bool {
    addr.wrapping_sub(start) < size || start.wrapping_sub(addr) < len
}

/// Copies `len` bytes of device memory, a multiple of 64.
///
/// A plain load of write-combined memory crosses the bus by itself. A streaming load fetches 64
/// bytes at once.
///
/// # Safety
///
/// Both ranges are mapped and aligned to 64 bytes. They are apart, and nobody writes `to`
/// meanwhile.
unsafe fn read_device(from: *const c_void, to: *mut c_void, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.1") {
        // SAFETY: the processor has the instruction, and the ranges are as the caller says.
        return unsafe { stream(from.cast(), to.cast(), len / 64) };
    }
    for at in (0..len).step_by(8) {
        // SAFETY: inside both ranges, as the caller says.
        unsafe {
            let word = from.cast::<u64>().byte_add(at).read_volatile();
            to.cast::<u64>().byte_add(at).write_volatile(word);
        }
    }
}

/// Copies `lines` of 64 bytes by streaming loads.
///
/// # Safety
///
/// As for [`read_device`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.1")]
unsafe fn stream(
    from: *const core::arch::x86_64::__m128i,
    to: *mut core::arch::x86_64::__m128i,
    lines: usize,
) {
    use core::arch::x86_64::{_mm_sfence, _mm_store_si128, _mm_stream_load_si128};
    // Streaming loads see earlier stores only behind a fence.
    _mm_sfence();
    for at in (0..lines * 4).step_by(4) {
        // SAFETY: inside both ranges, which are aligned.
        unsafe {
            let line = [0, 1, 2, 3].map(|part| _mm_stream_load_si128(from.add(at + part)));
            for (part, words) in line.into_iter().enumerate() {
                _mm_store_si128(to.add(at + part), words);
            }
        }
    }
}

/// One location in the tenant's mapping and in the real one.
#[derive(Clone, Copy)]
pub(crate) struct Pair<'a, T> {
    pub(crate) tenant: &'a T,
    pub(crate) real: &'a T,
}

/// Orders stores to write-combined device memory before all stores that follow.
pub(crate) fn device_write_barrier() {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: SSE is part of the x86-64 baseline.
        unsafe { core::arch::x86_64::_mm_sfence() };
        // The processor needs no more: `mfence` would also wait for loads.
        compiler_fence(Ordering::SeqCst);
    }
    #[cfg(not(target_arch = "x86_64"))]
    core::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::device;

    #[test]
    fn the_tenant_keeps_its_address_and_contents_and_the_device_sees_nothing() {
        let at = device(8192);
        // SAFETY: `at` was mapped above, 8192 bytes.
        unsafe { (at as *mut u32).byte_add(4096).write_volatile(7) };
        // SAFETY: one whole mapping, used by this test only.
        let shadow = unsafe { Shadow::new(at, 8192, true) }.unwrap();
        let pair = shadow.word(at + 4096).unwrap();
        assert_eq!(pair.tenant.load(Ordering::Relaxed), 7);
        pair.tenant.store(9, Ordering::Relaxed);
        assert_eq!(pair.real.load(Ordering::Relaxed), 7);
        // SAFETY: `pair` is not used any more.
        unsafe { shadow.release() };
    }

    #[test]
    fn a_restored_mapping_reaches_the_device_again() {
        let at = device(4096);
        // SAFETY: as above.
        let mut shadow = unsafe { Shadow::new(at, 4096, false) }.unwrap();
        shadow.word(at).unwrap().real.store(3, Ordering::Relaxed);
        assert_eq!(shadow.word(at).unwrap().tenant.load(Ordering::Relaxed), 0);
        assert!(shadow.restore());
        assert_eq!(shadow.word(at).unwrap().tenant.load(Ordering::Relaxed), 3);
        assert!(!shadow.arm(true));
    }

    #[test]
    fn nothing_outside_the_mapping_is_reachable() {
        let at = device(4096);
        // SAFETY: as above.
        let shadow = unsafe { Shadow::new(at, 4096, false) }.unwrap();
        assert!(shadow.word(at + 4092).is_some());
        assert!(shadow.word(at + 4096).is_none());
        assert!(shadow.word(at - 4).is_none());
        assert!(shadow.word(at + 2).is_none());
        assert!(shadow.entry(at + 4088).is_some());
        assert!(shadow.entry(at + 4092).is_none());
        assert!(!shadow.covers(at, 4097));
        assert!(!shadow.covers(at + 8, usize::MAX));
    }
}
