// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Translates virtual addresses of the GPU by Hopper's page tables (version 3 of the format).
//!
//! A virtual address has 57 bits, resolved by up to six tables:
//!
//! | table | bits of the address | entry |
//! |---|---|---|
//! | PDE4 | 56 | 8 bytes |
//! | PDE3 | 55:47 | 8 bytes |
//! | PDE2 | 46:38 | 8 bytes |
//! | PDE1 | 37:29 | 8 bytes, or a page of 512 MiB |
//! | PDE0 | 28:21 | 16 bytes: a table of 64 KiB pages (or a 2 MiB page), and one of 4 KiB pages |
//! | PTE | 20:16 or 20:12 | 8 bytes |
//!
//! Every access walks the tables. Those of channels are noted in the TLB (`tlb.rs`), which finds
//! invalidations that the driver forgets.

use crate::bits::Bits;
use crate::memory::{Location, PhysicalAddress, PhysicalMemory};

/// Bits of a page directory entry.
mod pde {
    use super::Bits;
    /// Set if the entry maps a page instead of a table.
    pub(super) const IS_PTE: Bits = Bits::new(0, 0);
    /// 0 invalid, 1 video memory, 2 and 3 system memory.
    pub(super) const APERTURE: Bits = Bits::new(2, 1);
    pub(super) const ADDRESS: Bits = Bits::new(51, 12);
    /// The table of 64 KiB pages is aligned to 256 bytes only.
    pub(super) const ADDRESS_BIG: Bits = Bits::new(51, 8);
}

/// Bits of a page table entry.
mod pte {
    use super::Bits;
    pub(super) const VALID: Bits = Bits::new(0, 0);
    /// 0 video memory, 1 a peer's, 2 and 3 system memory.
    pub(super) const APERTURE: Bits = Bits::new(2, 1);
    /// The bit of NV_MMU_VER3_PTE_PCF that is set in all of its RO values and in no other.
    pub(super) const READ_ONLY: Bits = Bits::new(5, 5);
    /// NV_MMU_VER3_PTE_PCF, which also says something of an entry that is not valid.
    pub(super) const PCF: Bits = Bits::new(7, 3);
    pub(super) const KIND: Bits = Bits::new(11, 8);
    pub(super) const ADDRESS: Bits = Bits::new(51, 12);
}

/// NV_MMU_VER3_PTE_PCF_NO_VALID_4KB_PAGE: the 4 KiB pages in an invalid 64 KiB page are ignored.
const NO_VALID_4KB_PAGE: u64 = 3;

/// Tables above PDE0: the lowest address bit and the number of bits that each resolves.
const UPPER_TABLES: [(u32, u32); 4] = [(56, 1), (47, 9), (38, 9), (29, 9)];
/// The lowest address bit that the topmost table resolves.
pub const ROOT_SHIFT: u32 = UPPER_TABLES[0].0;
/// The same for PDE0.
const PDE0: (u32, u32) = (21, 8);
/// The same for the tables of 64 KiB pages.
const BIG_PAGES: (u32, u32) = (16, 5);
/// The same for the tables of 4 KiB pages.
const SMALL_PAGES: (u32, u32) = (12, 9);
/// Width of a virtual address in bits.
const VA_BITS: u32 = 57;

/// NV_MMU_VER3_PTE_KIND_SMSKED_MESSAGE: the page is not memory. It is the doorbell page of the
/// virtual function at this offset.
pub const KIND_SMSKED_MESSAGE: u64 = 0xf;

/// The target of a virtual address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The physical address.
    pub address: PhysicalAddress,
    /// The kind of the page.
    pub kind: u64,
    /// Whether the page may be written to.
    pub writable: bool,
    /// Bytes from the address to the end of the page.
    pub bytes: u64,
    /// Size of the page.
    pub page_bytes: u64,
}

impl Translation {
    /// Returns a [`Fault`] at `va` if the page is read-only.
    ///
    /// # Errors
    /// That fault.
    pub fn check_writable(&self, va: u64) -> Result<(), Fault> {
        match self.writable {
            true => Ok(()),
            false => Err(Fault { va }),
        }
    }
}

/// Error: a virtual address is not mapped, or not for this access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The virtual address.
    pub va: u64,
}

/// Walks the tables below the page directory at `root`.
///
/// # Errors
/// [`Fault`] if the address is not mapped, mapped to a peer, or a table does
/// not lie in memory.
pub fn translate(
    memory: &PhysicalMemory,
    root: PhysicalAddress,
    va: u64,
) -> Result<Translation, Fault> {
    let fault = Fault { va };
    if va >> VA_BITS != 0 {
        return Err(fault);
    }
    let mut table = root;
    for (low, bits) in UPPER_TABLES {
        let entry = memory
            .read_u64(table.plus(8 * index(va, low, bits)))
            .map_err(|_| fault)?;
        if pde::IS_PTE.of(entry) == 1 {
            return page(entry, va, low).ok_or(fault);
        }
        table = table_of(entry, pde::ADDRESS).ok_or(fault)?;
    }
    let both = table.plus(16 * index(va, PDE0.0, PDE0.1));
    let big = memory.read_u64(both).map_err(|_| fault)?;
    if pde::IS_PTE.of(big) == 1 {
        return page(big, va, PDE0.0).ok_or(fault);
    }
    let small = memory.read_u64(both.plus(8)).map_err(|_| fault)?;
    let entry_of = |table: PhysicalAddress, (low, bits): (u32, u32)| {
        let entry = memory.read_u64(table.plus(8 * index(va, low, bits)));
        entry.map_err(|_| fault)
    };
    if let Some(table) = table_of(big, pde::ADDRESS_BIG) {
        let entry = entry_of(table, BIG_PAGES)?;
        // Valid or not, it can hide the 4 KiB pages in it. UVM's debug build maps those to nowhere.
        if let Some(found) = page(entry, va, BIG_PAGES.0) {
            return Ok(found);
        }
        if pte::VALID.of(entry) == 0 && pte::PCF.of(entry) == NO_VALID_4KB_PAGE {
            return Err(fault);
        }
    }
    let table = table_of(small, pde::ADDRESS).ok_or(fault)?;
    page(entry_of(table, SMALL_PAGES)?, va, SMALL_PAGES.0).ok_or(fault)
}

/// Returns the index into a table that resolves `bits` bits of `va` from `low` on.
fn index(va: u64, low: u32, bits: u32) -> u64 {
    (va >> low) & ((1 << bits) - 1)
}

/// Returns the table that a directory entry points at.
fn table_of(entry: u64, address: Bits) -> Option<PhysicalAddress> {
    let location = match pde::APERTURE.of(entry) {
        0 => return None,
        1 => Location::Video,
        _ => Location::System,
    };
    Some(PhysicalAddress {
        location,
        offset: address.put(0, address.of(entry)),
    })
}

/// Translates `va` by `entry`, which maps a page of `1 << low` bytes.
fn page(entry: u64, va: u64, low: u32) -> Option<Translation> {
    let location = match pte::APERTURE.of(entry) {
        _ if pte::VALID.of(entry) == 0 => return None,
        0 => Location::Video,
        1 => return None,
        _ => Location::System,
    };
    let page_bytes = 1 << low;
    let inside = va % page_bytes;
    let offset = pte::ADDRESS.put(0, pte::ADDRESS.of(entry));
    // A page begins at a multiple of its size: UVM's test of huge pages writes other bits, too.
    let address = PhysicalAddress {
        location,
        offset: offset - offset % page_bytes,
    };
    Some(Translation {
        address: address.plus(inside),
        kind: pte::KIND.of(entry),
        writable: pte::READ_ONLY.of(entry) == 0,
        bytes: page_bytes - inside,
        page_bytes,
    })
}

/// What a mapping lacks for an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// A page.
    Page,
    /// The permission to write.
    Permission,
}

/// A virtual address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressSpace {
    /// Its page directory.
    pub root: PhysicalAddress,
}

impl AddressSpace {
    /// Copies `data.len()` bytes from `va`.
    ///
    /// # Errors
    /// [`Fault`] with the first address that is not memory. The bytes before it have been copied.
    pub fn read(self, memory: &PhysicalMemory, va: u64, data: &mut [u8]) -> Result<(), Fault> {
        let mut at = va;
        let mut rest = data;
        while !rest.is_empty() {
            let (found, count) = self.run(memory, at, rest.len(), false)?;
            let (now, later) = rest.split_at_mut(count);
            memory
                .read(found.address, now)
                .map_err(|_| Fault { va: at })?;
            rest = later;
            at = at.saturating_add(count as u64);
        }
        Ok(())
    }

    /// Stores `data` at `va`.
    ///
    /// # Errors
    /// As [`read`](Self::read), and for an address that is mapped read-only.
    pub fn write(self, memory: &mut PhysicalMemory, va: u64, data: &[u8]) -> Result<(), Fault> {
        let mut at = va;
        let mut rest = data;
        while !rest.is_empty() {
            let (found, count) = self.run(memory, at, rest.len(), true)?;
            let (now, later) = rest.split_at(count);
            found.check_writable(at)?;
            memory
                .write(found.address, now)
                .map_err(|_| Fault { va: at })?;
            rest = later;
            at = at.saturating_add(count as u64);
        }
        Ok(())
    }

    /// Returns what the mapping of `va` lacks for a read or a write.
    pub fn lacks(self, memory: &PhysicalMemory, va: u64, write: bool) -> Option<Lack> {
        match translate(memory, self.root, va) {
            Err(_) => Some(Lack::Page),
            Ok(page) if write && !page.writable => Some(Lack::Permission),
            Ok(_) => None,
        }
    }

    /// Reads a little-endian 32-bit word at `va`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_u32(self, memory: &PhysicalMemory, va: u64) -> Result<u32, Fault> {
        let mut bytes = [0; 4];
        self.read(memory, va, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads a little-endian 64-bit word at `va`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_u64(self, memory: &PhysicalMemory, va: u64) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        self.read(memory, va, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Translates `va` for an access, of which the TLB takes note.
    ///
    /// # Errors
    /// As [`translate`].
    pub fn translate(
        self,
        memory: &PhysicalMemory,
        va: u64,
        write: bool,
    ) -> Result<Translation, Fault> {
        let found = translate(memory, self.root, va);
        memory
            .tlb()
            .access(self.root, va, write, found.as_ref().ok());
        found
    }

    /// Translates `va`, and returns how many of `len` bytes its page holds.
    fn run(
        self,
        memory: &PhysicalMemory,
        va: u64,
        len: usize,
        write: bool,
    ) -> Result<(Translation, usize), Fault> {
        let found = self.translate(memory, va, write)?;
        if found.kind == KIND_SMSKED_MESSAGE {
            return Err(Fault { va });
        }
        let count = usize::try_from(found.bytes).map_or(len, |bytes| bytes.min(len));
        Ok((found, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;
    use proptest::prelude::*;

    const ROOT: PhysicalAddress = PhysicalAddress::video(0x1000);
    const VA: u64 = (1 << 56) | (3 << 47) | (5 << 38) | (7 << 29) | (9 << 21);

    /// Returns memory with tables for `VA` down to PDE0, at 0x5000.
    fn memory() -> PhysicalMemory {
        let mut memory = PhysicalMemory::new(1 << 30, World::new());
        for (table, index, next) in [
            (0x1000, 1, 0x2000),
            (0x2000, 3, 0x3000),
            (0x3000, 5, 0x4000),
            (0x4000, 7, 0x5000),
        ] {
            memory
                .write_u64(PhysicalAddress::video(table + 8 * index), next | 1 << 1)
                .unwrap();
        }
        memory
    }

    fn set(memory: &mut PhysicalMemory, offset: u64, value: u64) {
        memory
            .write_u64(PhysicalAddress::video(offset), value)
            .unwrap();
    }

    fn at(memory: &PhysicalMemory, va: u64) -> Option<Translation> {
        translate(memory, ROOT, va).ok()
    }

    #[test]
    fn a_two_mebibyte_page() {
        let mut memory = memory();
        set(&mut memory, 0x5000 + 16 * 9, 0x20_0000 | 0x6 << 8 | 1);
        let found = at(&memory, VA + 0x1234).unwrap();
        assert_eq!(found.address, PhysicalAddress::video(0x20_1234));
        assert_eq!((found.kind, found.bytes), (6, 0x20_0000 - 0x1234));
        assert_eq!(at(&memory, VA + 0x20_0000), None);
    }

    #[test]
    fn a_big_page_hides_the_small_ones() {
        let mut memory = memory();
        set(&mut memory, 0x5000 + 16 * 9, 0x6100 | 1 << 1);
        set(&mut memory, 0x5000 + 16 * 9 + 8, 0x7000 | 1 << 1);
        set(&mut memory, 0x6100, 0x10_0000 | 1);
        set(&mut memory, 0x6100 + 16, NO_VALID_4KB_PAGE << 3);
        // One in each: a big page, an invalid one, and one that says that there are none.
        for index in [1, 17, 33] {
            set(&mut memory, 0x7000 + 8 * index, 0xdef000 | 2 << 1 | 1);
        }
        assert_eq!(
            at(&memory, VA + 0x1010).unwrap().address,
            PhysicalAddress::video(0x10_1010)
        );
        let small = at(&memory, VA + 0x1_1010).unwrap();
        assert_eq!(small.address, PhysicalAddress::system(0xde_f010));
        assert_eq!(small.bytes, 0xff0);
        assert_eq!(at(&memory, VA + 0x1_2010), None);
        assert_eq!(at(&memory, VA + 0x2_1010), None);
    }

    #[test]
    fn a_huge_page_and_a_peer_page() {
        let mut memory = memory();
        set(&mut memory, 0x4000 + 8 * 8, 0x2000_0000 | 1);
        set(&mut memory, 0x4000 + 8 * 9, 0x2000_0000 | 1 << 1 | 1);
        set(&mut memory, 0x4000 + 8 * 10, 0x2012_3000 | 1);
        let base = VA & !((1 << 38) - 1);
        for page in [8, 10] {
            assert_eq!(
                at(&memory, base + (page << 29) + 5).unwrap().address,
                PhysicalAddress::video(0x2000_0005),
                "the bits below a page's size do not count"
            );
        }
        assert_eq!(at(&memory, base + (9 << 29)), None);
    }

    /// Each RO value of NV_MMU_VER3_PTE_PCF, and the RW value before it in the header.
    #[test]
    fn a_read_only_page_is_read_and_not_written() {
        let space = AddressSpace { root: ROOT };
        for read_only in [4, 5, 6, 7, 0xc, 0xd, 0xe, 0xf, 0x14, 0x17, 0x1c, 0x1f] {
            let mut memory = memory();
            set(&mut memory, 0x5000 + 16 * 9 + 8, 0x7000 | 1 << 1);
            set(&mut memory, 0x7000, 0x9000 | (read_only - 4) << 3 | 1);
            set(&mut memory, 0x7008, 0xa000 | read_only << 3 | 1);
            assert_eq!(at(&memory, VA).map(|page| page.writable), Some(true));
            let fault = Err(Fault { va: VA + 0x1000 });
            assert_eq!(space.write(&mut memory, VA + 0xffe, &[1; 4]), fault);
            assert_eq!(space.read_u32(&memory, VA + 0x1000), Ok(0));
            // The bytes before it are stored, as with an unmapped page.
            assert_eq!(space.read_u32(&memory, VA + 0xffc), Ok(0x0101_0000));
        }
    }

    #[test]
    fn reads_and_writes_cross_pages() {
        let mut memory = memory();
        set(&mut memory, 0x5000 + 16 * 9 + 8, 0x7000 | 1 << 1);
        set(&mut memory, 0x7000, 0x9000 | 1);
        set(&mut memory, 0x7008, 0x1000 | 2 << 1 | 1);
        let space = AddressSpace { root: ROOT };
        space.write(&mut memory, VA + 0xffe, &[1, 2, 3, 4]).unwrap();
        assert_eq!(
            memory.read_u32(PhysicalAddress::system(0x1000)).unwrap() & 0xffff,
            0x0403
        );
        assert_eq!(space.read_u32(&memory, VA + 0xffe), Ok(0x0403_0201));
        assert_eq!(
            space.read_u32(&memory, VA + 0x1ffe),
            Err(Fault { va: VA + 0x2000 })
        );
    }

    proptest! {
        /// Checks that every walk ends, whatever the tables contain, even pointers to themselves.
        #[test]
        fn any_tables_are_walked(entries in prop::collection::vec(any::<u64>(), 512), va in any::<u64>()) {
            let mut memory = PhysicalMemory::new(1 << 20, World::new());
            for (index, entry) in (0u64..).zip(entries) {
                set(&mut memory, 8 * index, entry & 0xfff);
            }
            let _ = translate(&memory, PhysicalAddress::video(0), va);
            let _ = AddressSpace { root: PhysicalAddress::video(0) }.read(&memory, va, &mut [0; 100]);
        }
    }
}
