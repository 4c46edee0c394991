// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Implements a large memory that allocates only the pages that were written.

use std::collections::BTreeMap;
use std::fmt;

/// Bytes per page of a [`SparseMemory`].
pub const PAGE_BYTES: usize = 4096;

/// [`PAGE_BYTES`] as an address.
const PAGE: u64 = PAGE_BYTES as u64;

/// Error: an access leaves the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// First byte of the access.
    pub address: u64,
    /// Length of the access in bytes.
    pub len: u64,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no memory at {:#x}+{:#x}", self.address, self.len)
    }
}

impl std::error::Error for OutOfRange {}

/// Zero-initialised memory. It allocates a page at the first write that is not all zero.
pub struct SparseMemory {
    len: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
}

impl SparseMemory {
    /// Creates memory of `len` bytes, all zero.
    pub fn new(len: u64) -> Self {
        Self {
            len,
            pages: BTreeMap::new(),
        }
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of allocated pages.
    pub fn resident_pages(&self) -> usize {
        self.pages.len()
    }

    /// Copies `data.len()` bytes from `address` on.
    ///
    /// # Errors
    /// [`OutOfRange`] if any byte lies outside; then nothing is copied.
    pub fn read(&self, address: u64, data: &mut [u8]) -> Result<(), OutOfRange> {
        self.check(address, data.len() as u64)?;
        let mut at = address;
        let mut rest = data;
        while !rest.is_empty() {
            let (page, start, count) = chunk(at, rest.len());
            let (now, later) = rest.split_at_mut(count);
            match self.pages.get(&page) {
                Some(bytes) => now.copy_from_slice(&bytes[start..start + count]),
                None => now.fill(0),
            }
            rest = later;
            at += count as u64;
        }
        Ok(())
    }

    /// Stores `data` from `address` on.
    ///
    /// # Errors
    /// [`OutOfRange`] if any byte lies outside; then nothing is stored.
    pub fn write(&mut self, address: u64, data: &[u8]) -> Result<(), OutOfRange> {
        self.check(address, data.len() as u64)?;
        let mut at = address;
        let mut rest = data;
        while !rest.is_empty() {
            let (page, start, count) = chunk(at, rest.len());
            let (now, later) = rest.split_at(count);
            if let Some(bytes) = self.pages.get_mut(&page) {
                bytes[start..start + count].copy_from_slice(now);
            } else if now.iter().any(|byte| *byte != 0) {
                let mut bytes = Box::new([0; PAGE_BYTES]);
                bytes[start..start + count].copy_from_slice(now);
                self.pages.insert(page, bytes);
            }
            rest = later;
            at += count as u64;
        }
        Ok(())
    }

    /// Sets `len` bytes to zero, in time proportional to the allocated pages instead of `len`.
    ///
    /// # Errors
    /// [`OutOfRange`] if any byte lies outside; then nothing is changed.
    pub fn zero(&mut self, address: u64, len: u64) -> Result<(), OutOfRange> {
        self.check(address, len)?;
        let end = address + len;
        let first_whole = address.div_ceil(PAGE);
        let end_whole = end / PAGE;
        if first_whole >= end_whole {
            // CAST: less than two pages remain here.
            return self.write(address, &vec![0; len as usize]);
        }
        let whole: Vec<u64> = self
            .pages
            .range(first_whole..end_whole)
            .map(|(page, _)| *page)
            .collect();
        for page in whole {
            self.pages.remove(&page);
        }
        let head = first_whole * PAGE - address;
        let tail = end - end_whole * PAGE;
        // CAST: both are shorter than a page.
        self.write(address, &vec![0; head as usize])?;
        self.write(end_whole * PAGE, &vec![0; tail as usize])
    }

    /// Sets everything to zero.
    pub fn clear(&mut self) {
        self.pages.clear();
    }

    fn check(&self, address: u64, len: u64) -> Result<(), OutOfRange> {
        match address.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(OutOfRange { address, len }),
        }
    }
}

/// Returns the page of `address`, the offset in it, and how many of `len` bytes the page holds.
fn chunk(address: u64, len: usize) -> (u64, usize, usize) {
    // CAST: the remainder is below PAGE_BYTES.
    let start = (address % PAGE) as usize;
    (address / PAGE, start, len.min(PAGE_BYTES - start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEN: u64 = 4 * PAGE + 17;

    #[test]
    fn zeros_need_no_page() {
        let mut memory = SparseMemory::new(LEN);
        memory.write(0, &[0; 3 * PAGE_BYTES]).unwrap();
        assert_eq!(memory.resident_pages(), 0);
        memory.write(5, &[0, 1]).unwrap();
        assert_eq!(memory.resident_pages(), 1);
    }

    #[test]
    fn the_last_byte_is_the_last() {
        let mut memory = SparseMemory::new(LEN);
        assert!(memory.write(LEN - 1, &[1]).is_ok());
        assert_eq!(
            memory.write(LEN, &[1]),
            Err(OutOfRange {
                address: LEN,
                len: 1
            })
        );
        assert!(memory.read(u64::MAX, &mut [0; 2]).is_err());
        assert!(memory.write(LEN, &[]).is_ok());
    }

    proptest! {
        /// Checks that after any writes and clears the memory reads back as an array would.
        #[test]
        fn agrees_with_an_array(ops in prop::collection::vec((0..LEN + 8, 0usize..9000, any::<u8>(), any::<bool>()), 0..40)) {
            let mut memory = SparseMemory::new(LEN);
            let mut array = vec![0u8; LEN as usize];
            for (address, len, byte, clear) in ops {
                let fits = address + len as u64 <= LEN;
                let result = if clear { memory.zero(address, len as u64) } else { memory.write(address, &vec![byte; len]) };
                prop_assert_eq!(result.is_ok(), fits);
                if fits {
                    array[address as usize..address as usize + len].fill(if clear { 0 } else { byte });
                }
            }
            let mut all = vec![0xa5; LEN as usize];
            memory.read(0, &mut all).unwrap();
            prop_assert_eq!(all, array);
        }
    }
}
