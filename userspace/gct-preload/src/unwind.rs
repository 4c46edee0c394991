// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the unwind tables of an address for GCC's unwinder, which is linked into this library.
//!
//! Since GCC 12 it asks glibc for them by `_dl_find_object`, a function of glibc 2.35. Older
//! containers lack it, so this one takes its place within the library.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::slice;

/// glibc's `struct dl_find_object`.
#[repr(C)]
struct Found {
    flags: u64,
    map_start: *mut c_void,
    map_end: *mut c_void,
    link_map: *mut c_void,
    eh_frame: *mut c_void,
    reserved: [u64; 7],
}

/// An address, and the object that has it.
struct Search {
    address: u64,
    found: Option<Found>,
}

// A function of this name that other objects saw would take the place of glibc's for all of them.
core::arch::global_asm!(
    ".globl _dl_find_object",
    ".hidden _dl_find_object",
    ".type _dl_find_object, @function",
    "_dl_find_object: jmp {find}",
    find = sym find,
);

/// Finds the object that has an address. Returns 0, or -1 if there is none.
///
/// # Safety
///
/// `result` must be valid for a write.
unsafe extern "C" fn find(address: *mut c_void, result: *mut Found) -> c_int {
    let mut search = Search {
        // CAST: an address.
        address: address as u64,
        found: None,
    };
    let data = core::ptr::from_mut(&mut search).cast();
    // SAFETY: `look` takes `data` as what it is, and `search` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), data) };
    match search.found {
        Some(found) => {
            // SAFETY: the caller vouches for `result`.
            unsafe { result.write(found) };
            0
        }
        None => -1,
    }
}

/// Looks at one object. Returns 1, which ends the search, if it has the address.
///
/// # Safety
///
/// `info` must describe an object that is loaded, and `data` must be a `Search` that nobody else
/// uses.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: the caller vouches for both; the loader keeps the headers while it calls.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
    // SAFETY: as above.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let start = |header: &libc::Elf64_Phdr| info.dlpi_addr.wrapping_add(header.p_vaddr);
    let has = |header: &&libc::Elf64_Phdr| {
        let offset = search.address.wrapping_sub(start(header));
        header.p_type == libc::PT_LOAD && offset < header.p_memsz
    };
    let segment = headers.iter().find(has);
    let mut tables = headers.iter();
    let tables = tables.find(|header| header.p_type == libc::PT_GNU_EH_FRAME);
    let (Some(segment), Some(tables)) = (segment, tables) else {
        return 0;
    };
    // CAST: addresses.
    search.found = Some(Found {
        flags: 0,
        map_start: start(segment) as *mut c_void,
        map_end: start(segment).wrapping_add(segment.p_memsz) as *mut c_void,
        link_map: null_mut(),
        eh_frame: start(tables) as *mut c_void,
        reserved: [0; 7],
    });
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the tables begin: version 1, and the encodings that linkers use.
    const TABLES: [u8; 4] = [1, 0x1b, 3, 0x3b];

    fn found(address: *mut c_void) -> Option<Found> {
        let mut result = core::mem::MaybeUninit::uninit();
        // SAFETY: `result` may be written, and is if this returns 0.
        unsafe { (find(address, result.as_mut_ptr()) == 0).then(|| result.assume_init()) }
    }

    #[test]
    fn an_address_of_code_has_the_tables_of_its_object() {
        let address = found as *mut c_void;
        let found = found(address).unwrap();
        assert!((found.map_start..found.map_end).contains(&address));
        // SAFETY: the object is this test, which stays loaded, and its tables are longer.
        let tables = unsafe { found.eh_frame.cast::<[u8; 4]>().read() };
        assert_eq!(tables, TABLES);
    }

    #[test]
    fn an_address_of_no_object_has_no_tables() {
        assert!(found(null_mut()).is_none());
        let mut heap = Box::new(0_u8);
        assert!(found((&raw mut *heap).cast()).is_none());
    }
}
