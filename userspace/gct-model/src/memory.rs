// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the memory that launches read and write.

use std::collections::BTreeMap;

/// Error: the memory refused an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The GPU virtual address of the first byte of the access.
    pub address: u64,
}

/// GPU virtual memory, as the launch hardware accesses it.
///
/// The software GPU implements this over its page tables; tests use [`SparseMemory`].
pub trait GuestMemory {
    /// Fills `into` from `address`.
    ///
    /// # Errors
    ///
    /// [`Fault`] when any byte of the range is not mapped.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Fault>;

    /// Stores `from` at `address`.
    ///
    /// # Errors
    ///
    /// [`Fault`] when any byte of the range is not mapped or not writable.
    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Fault>;

    /// Reads one little-endian word.
    ///
    /// # Errors
    ///
    /// As [`GuestMemory::read`].
    fn read_u32(&mut self, address: u64) -> Result<u32, Fault> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Writes one little-endian word.
    ///
    /// # Errors
    ///
    /// As [`GuestMemory::write`].
    fn write_u32(&mut self, address: u64, value: u32) -> Result<(), Fault> {
        self.write(address, &value.to_le_bytes())
    }
}

const PAGE_BYTES: usize = 4096;

/// Memory in which every address exists and reads as zero until written.
#[derive(Clone, Debug)]
pub struct SparseMemory {
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
    pages_max: usize,
}

impl SparseMemory {
    /// Creates memory of at most `pages_max` written pages of 4 KiB. A write that needs one more
    /// faults.
    #[must_use]
    pub fn new(pages_max: usize) -> Self {
        Self {
            pages: BTreeMap::new(),
            pages_max,
        }
    }

    /// Returns every word that is not zero, with its address, in order of address.
    pub fn words(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.pages.iter().flat_map(|(page, bytes)| {
            bytes
                .chunks_exact(4)
                .zip(0_u64..)
                .filter_map(move |(word, i)| {
                    let value = u32::from_le_bytes(word.try_into().ok()?);
                    (value != 0).then_some((page * PAGE_BYTES as u64 + i * 4, value))
                })
        })
    }

    /// Calls `f` with the page number, offset in the page and length of each piece of a range.
    fn pieces(
        address: u64,
        len: usize,
        mut f: impl FnMut(u64, usize, std::ops::Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let at = address.checked_add(done as u64).ok_or(Fault { address })?;
            // CAST: less than PAGE_BYTES.
            let offset = (at % PAGE_BYTES as u64) as usize;
            let piece = (PAGE_BYTES - offset).min(len - done);
            f(at / PAGE_BYTES as u64, offset, done..done + piece)?;
            done += piece;
        }
        Ok(())
    }
}

impl GuestMemory for SparseMemory {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        Self::pieces(address, into.len(), |page, offset, range| {
            let len = range.len();
            match self.pages.get(&page) {
                Some(bytes) => into[range].copy_from_slice(&bytes[offset..offset + len]),
                None => into[range].fill(0),
            }
            Ok(())
        })
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Fault> {
        Self::pieces(address, from.len(), |page, offset, range| {
            if !self.pages.contains_key(&page) && self.pages.len() >= self.pages_max {
                return Err(Fault { address });
            }
            let bytes = self
                .pages
                .entry(page)
                .or_insert_with(|| Box::new([0; PAGE_BYTES]));
            bytes[offset..offset + range.len()].copy_from_slice(&from[range]);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_across_pages_is_read_back_whole() {
        let mut memory = SparseMemory::new(2);
        let data: Vec<u8> = (0..=255).collect();
        memory.write(0xff0, &data).unwrap();
        let mut back = vec![0; 256];
        memory.read(0xff0, &mut back).unwrap();
        assert_eq!(back, data);
        assert_eq!(memory.read_u32(0xff0), Ok(0x0302_0100));
    }

    #[test]
    fn the_limit_on_pages_and_the_end_of_memory_are_faults() {
        let mut memory = SparseMemory::new(1);
        assert_eq!(memory.write_u32(0, 1), Ok(()));
        assert_eq!(memory.write_u32(4096, 1), Err(Fault { address: 4096 }));
        let last = u64::MAX - 1;
        assert_eq!(memory.read_u32(last), Err(Fault { address: last }));
        assert_eq!(memory.words().collect::<Vec<_>>(), [(0, 1)]);
    }
}
