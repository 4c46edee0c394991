// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes a cpio archive in the `newc` format. The kernel unpacks it into its initial root file
//! system (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::io::{self, Write};

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;
const S_IFCHR: u32 = 0o020_000;

/// An archive under construction. All its entries belong to root.
pub(crate) struct Archive<W: Write> {
    out: W,
    inodes: u32,
}

impl<W: Write> Archive<W> {
    /// Starts an archive that is written to `out`.
    pub(crate) fn new(out: W) -> Self {
        Self { out, inodes: 0 }
    }

    /// Adds a directory. Add parents before their contents.
    pub(crate) fn directory(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, S_IFDIR | 0o755, (0, 0), &[])
    }

    /// Adds a regular file with permission bits `mode`.
    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, S_IFREG | mode, (0, 0), content)
    }

    /// Adds a symbolic link.
    pub(crate) fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, S_IFLNK | 0o777, (0, 0), target.as_bytes())
    }

    /// Adds a character device.
    pub(crate) fn character_device(
        &mut self,
        path: &str,
        major: u32,
        minor: u32,
    ) -> io::Result<()> {
        self.entry(path, S_IFCHR | 0o600, (major, minor), &[])
    }

    /// Finishes the archive and returns the writer.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(
        &mut self,
        path: &str,
        mode: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> io::Result<()> {
        let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, format!("{path}: too long"));
        let name = path.trim_start_matches('/');
        let name_size = u32::try_from(name.len() + 1).map_err(too_long)?;
        let size = u32::try_from(content.len()).map_err(too_long)?;
        self.inodes += 1;
        // In order: inode, mode, user, group, links, time, size, device of the file system (two),
        // device of a device file (two), length of the name with its zero, checksum.
        let fields = [
            self.inodes,
            mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            device.0,
            device.1,
            name_size,
            0,
        ];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(name.as_bytes())?;
        self.out.write_all(&[0])?;
        self.pad(header.len() + name.len() + 1)?;
        self.out.write_all(content)?;
        self.pad(content.len())
    }

    /// Pads to a multiple of four bytes, as headers and contents require.
    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.out
            .write_all(&[0; 3][..written.next_multiple_of(4) - written])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_laid_out_as_the_kernel_expects() {
        let mut archive = Archive::new(Vec::new());
        archive.file("/bin/x", 0o755, b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(&bytes[..14], b"07070100000001");
        assert_eq!(&bytes[14..22], b"000081ed");
        assert_eq!(&bytes[54..62], b"00000005", "size");
        assert_eq!(
            &bytes[94..102],
            b"00000006",
            "length of the name and its zero"
        );
        // 110 bytes of header and 6 of name are a multiple of four.
        assert_eq!(&bytes[110..116], b"bin/x\0");
        assert_eq!(&bytes[116..124], b"hello\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert!(bytes[124..].windows(10).any(|w| w == b"TRAILER!!!"));
    }

    #[test]
    fn every_part_is_padded_to_four_bytes() {
        for length in 0..9 {
            let mut archive = Archive::new(Vec::new());
            let path = "p".repeat(length + 1);
            archive.file(&path, 0o644, &vec![7; length]).unwrap();
            assert_eq!(archive.finish().unwrap().len() % 4, 0, "length {length}");
        }
    }
}
