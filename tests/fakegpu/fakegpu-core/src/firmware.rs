// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Generates a firmware file that the driver accepts.
//!
//! The driver loads GSP's firmware and hands it to the device, which ignores it here. The driver
//! checks only a few sections of an ELF file: the version, which must be its own, an image, a
//! signature and, in newer drivers, a build id.

use crate::abi;

/// Returns the path of the file below a system's firmware folder. Hopper uses the same file as
/// Ampere.
pub fn path() -> String {
    format!("nvidia/{}/gsp_ga10x.bin", abi::VERSION)
}

/// Size of the image; its contents do not matter.
const IMAGE_BYTES: usize = 8192;
/// Size of the signature; nothing checks it.
const SIGNATURE_BYTES: usize = 4096;
/// Sizes of the ELF64 headers.
const FILE_HEADER_BYTES: usize = 64;
const SECTION_HEADER_BYTES: u16 = 64;
/// Section types.
const SHT_NULL: u32 = 0;
const SHT_PROGBITS: u32 = 1;
const SHT_STRTAB: u32 = 3;
const SHT_NOTE: u32 = 7;
/// The note that newer drivers copy, for their readers of GSP's logs: a name of 4 bytes, 4 bytes of
/// description, type 3 (NT_GNU_BUILD_ID), "GNU" and the description.
const BUILD_ID: &[u8] = b"\x04\0\0\0\x04\0\0\0\x03\0\0\0GNU\0\0\0\0\0";
/// Machine RISC-V, relocatable file.
const EM_RISCV: u16 = 0xf3;
const ET_REL: u16 = 1;

struct Section {
    name: &'static str,
    kind: u32,
    data: Vec<u8>,
}

/// Returns the contents of the file.
pub fn image() -> Vec<u8> {
    let version = format!("{}\0", abi::VERSION).into_bytes();
    let mut sections = vec![
        Section {
            name: "",
            kind: SHT_NULL,
            data: Vec::new(),
        },
        Section {
            name: ".fwversion",
            kind: SHT_PROGBITS,
            data: version,
        },
        Section {
            name: ".fwimage",
            kind: SHT_PROGBITS,
            data: vec![0xfe; IMAGE_BYTES],
        },
        Section {
            name: ".fwsignature_gh100",
            kind: SHT_PROGBITS,
            data: vec![0x5a; SIGNATURE_BYTES],
        },
        Section {
            name: ".note.gnu.build-id",
            kind: SHT_NOTE,
            data: BUILD_ID.to_vec(),
        },
        Section {
            name: ".shstrtab",
            kind: SHT_STRTAB,
            data: Vec::new(),
        },
    ];
    let (names, name_offsets) = name_table(&sections);
    if let Some(last) = sections.last_mut() {
        last.data = names;
    }
    let mut data = Vec::new();
    let mut headers = Vec::new();
    for (section, name) in sections.iter().zip(name_offsets) {
        let offset = (FILE_HEADER_BYTES + data.len()) as u64;
        headers.extend(section_header(section, name, offset));
        data.extend(&section.data);
        data.resize(data.len().next_multiple_of(16), 0);
    }
    let mut file = file_header(
        (FILE_HEADER_BYTES + data.len()) as u64,
        sections.len() as u16,
    );
    file.extend(data);
    file.extend(headers);
    file
}

/// Returns the zero-terminated section names, and the offset of each.
fn name_table(sections: &[Section]) -> (Vec<u8>, Vec<u32>) {
    let mut names = Vec::new();
    let offsets = sections.iter().map(|section| {
        let offset = names.len() as u32;
        names.extend(section.name.bytes().chain([0]));
        offset
    });
    let offsets = offsets.collect();
    (names, offsets)
}

fn file_header(section_headers: u64, sections: u16) -> Vec<u8> {
    // 64-bit, little-endian, version 1.
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(16, 0);
    header.extend(ET_REL.to_le_bytes());
    header.extend(EM_RISCV.to_le_bytes());
    header.extend(1u32.to_le_bytes());
    // No entry point, no program headers.
    header.extend([0; 16]);
    header.extend(section_headers.to_le_bytes());
    header.extend(0u32.to_le_bytes());
    // Sizes and counts: this header; program headers; section headers; the index of the section
    // with the names.
    for size in [
        FILE_HEADER_BYTES as u16,
        0,
        0,
        SECTION_HEADER_BYTES,
        sections,
        sections - 1,
    ] {
        header.extend(size.to_le_bytes());
    }
    header
}

fn section_header(section: &Section, name: u32, offset: u64) -> Vec<u8> {
    let mut header = Vec::new();
    header.extend(name.to_le_bytes());
    header.extend(section.kind.to_le_bytes());
    // No flags, no address.
    header.extend([0; 16]);
    header.extend(if section.kind == SHT_NULL { 0 } else { offset }.to_le_bytes());
    header.extend((section.data.len() as u64).to_le_bytes());
    // No link, no information, alignment 1, no entries of a fixed size.
    header.extend([0; 8]);
    header.extend(1u64.to_le_bytes());
    header.extend(0u64.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u64_at(file: &[u8], offset: usize) -> usize {
        u64::from_le_bytes(file[offset..offset + 8].try_into().unwrap()) as usize
    }

    /// Finds a section as the driver does: by its name in the last section.
    fn section<'a>(file: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
        let headers = u64_at(file, 0x28);
        let count = usize::from(u16::from_le_bytes([file[0x3c], file[0x3d]]));
        let header = |index: usize| &file[headers + 64 * index..headers + 64 * (index + 1)];
        let names = u64_at(header(count - 1), 0x18);
        (0..count).map(header).find_map(|header| {
            let name = names + u32::from_le_bytes(header[..4].try_into().unwrap()) as usize;
            let found = file[name..].starts_with(format!("{wanted}\0").as_bytes());
            let start = u64_at(header, 0x18);
            found.then(|| &file[start..start + u64_at(header, 0x20)])
        })
    }

    #[test]
    fn the_driver_finds_its_sections() {
        let file = image();
        assert_eq!(
            section(&file, ".fwversion"),
            Some(format!("{}\0", abi::VERSION).as_bytes())
        );
        assert_eq!(
            section(&file, ".fwimage").map(<[u8]>::len),
            Some(IMAGE_BYTES)
        );
        assert_eq!(
            section(&file, ".fwsignature_gh100").map(<[u8]>::len),
            Some(SIGNATURE_BYTES)
        );
        assert_eq!(section(&file, ".note.gnu.build-id"), Some(BUILD_ID));
        assert_eq!(section(&file, ".fwsignature_ga100"), None);
    }
}
