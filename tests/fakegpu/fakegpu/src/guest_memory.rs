// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Maps the guest's memory from the file descriptors that QEMU sends.

use anyhow::{anyhow, ensure, Context};
use fakegpu_core::platform::GuestMemory;
use fakegpu_core::sparse::OutOfRange;
use std::fs::File;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap, MmapRegion,
};

/// The memory that the guest has mapped for the device at this moment.
#[derive(Default)]
pub(crate) struct MappedMemory {
    regions: RwLock<GuestMemoryMmap>,
}

impl MappedMemory {
    /// Maps `size` bytes of `file` from `offset` on at guest address `address`.
    pub(crate) fn map(
        &self,
        file: File,
        offset: u64,
        address: u64,
        size: u64,
    ) -> anyhow::Result<()> {
        let end = offset.checked_add(size).context("the file offset wraps")?;
        // Touching a page beyond the end of the file would kill the process.
        ensure!(
            end <= file.metadata()?.len(),
            "the file ends before the region does"
        );
        let mapping = MmapRegion::from_file(FileOffset::new(file, offset), usize::try_from(size)?)?;
        let region = GuestRegionMmap::new(mapping, GuestAddress(address))
            .context("the region ends beyond the address space")?;
        let mut regions = self.regions.write().map_err(|_| anyhow!("poisoned"))?;
        *regions = regions.insert_region(Arc::new(region))?;
        Ok(())
    }

    /// Unmaps the range from `address` to `address + size`.
    pub(crate) fn unmap(&self, address: u64, size: u64) {
        let Ok(mut regions) = self.regions.write() else {
            return;
        };
        let end = address.saturating_add(size);
        let gone: Vec<_> = regions
            .iter()
            .map(|region| (region.start_addr(), region.len()))
            .filter(|(start, _)| (address..end).contains(&start.0))
            .collect();
        for (start, len) in gone {
            if let Ok((rest, _)) = regions.remove_region(start, len) {
                *regions = rest;
            }
        }
    }
}

impl GuestMemory for MappedMemory {
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), OutOfRange> {
        let fault = OutOfRange {
            address,
            len: data.len() as u64,
        };
        let regions = self.regions.read().map_err(|_| fault)?;
        regions
            .read_slice(data, GuestAddress(address))
            .map_err(|_| fault)
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), OutOfRange> {
        let fault = OutOfRange {
            address,
            len: data.len() as u64,
        };
        let regions = self.regions.read().map_err(|_| fault)?;
        let at = GuestAddress(address);
        match (<[u8; 4]>::try_from(data), <[u8; 8]>::try_from(data)) {
            (Ok(word), _) if address % 4 == 0 => {
                regions.store(u32::from_ne_bytes(word), at, Ordering::SeqCst)
            }
            (_, Ok(word)) if address % 8 == 0 => {
                regions.store(u64::from_ne_bytes(word), at, Ordering::SeqCst)
            }
            _ => regions.write_slice(data, at),
        }
        .map_err(|_| fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Returns a private file of `len` bytes.
    fn file(len: usize) -> File {
        let path = std::env::temp_dir().join(format!("fakegpu-{}-{len}", std::process::id()));
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(&vec![0; len]).unwrap();
        file
    }

    #[test]
    fn memory_comes_and_goes() {
        let memory = MappedMemory::default();
        assert!(memory.write(0x1000, &[1; 4]).is_err());
        memory.map(file(0x3000), 0x1000, 0x1000, 0x2000).unwrap();
        for len in [1, 4, 8, 100] {
            memory.write(0x1008, &vec![7; len]).unwrap();
            let mut back = vec![0; len];
            memory.read(0x1008, &mut back).unwrap();
            assert_eq!(back, vec![7; len]);
        }
        assert!(memory.write(0x2ffe, &[1; 4]).is_err());
        memory.unmap(0x1000, 0x2000);
        assert!(memory.read(0x1000, &mut [0]).is_err());
    }

    #[test]
    fn a_region_larger_than_its_file_is_refused() {
        let memory = MappedMemory::default();
        assert!(memory.map(file(0x1001), 0, 0, 0x2000).is_err());
        assert!(memory.map(file(0x1002), u64::MAX, 0, 0x1000).is_err());
    }
}
