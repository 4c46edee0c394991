// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executes inline-to-memory uploads: writes data words of a segment to memory.

use std::collections::BTreeMap;

/// An upload in progress.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Upload {
    address: u64,
    pitch: u64,
    line_bytes: u64,
    lines: u64,
    line: u64,
    offset: u64,
}

impl Upload {
    /// Handles `LAUNCH_DMA`: begins an upload to the address in the registers. Returns false if the
    /// destination is not pitch-linear.
    pub(crate) fn start(&mut self, registers: &BTreeMap<u32, u32>, launch: u32) -> bool {
        let register = |method| u64::from(registers.get(&method).copied().unwrap_or(0));
        *self = Self::default();
        if launch & 1 == 0 {
            return false;
        }
        self.address = register(0x188) << 32 | register(0x18c);
        self.pitch = register(0x190);
        self.line_bytes = register(0x180);
        self.lines = register(0x184);
        true
    }

    /// Returns the address of the next data word and its number of bytes; `None` once the upload is
    /// complete.
    pub(crate) fn next(&mut self) -> Option<(u64, usize)> {
        if self.line >= self.lines || self.line_bytes == 0 {
            return None;
        }
        let at = self
            .address
            .wrapping_add(self.line.wrapping_mul(self.pitch))
            .wrapping_add(self.offset);
        let left = self.line_bytes - self.offset;
        let bytes = left.min(4);
        self.offset += bytes;
        if self.offset == self.line_bytes {
            self.offset = 0;
            self.line += 1;
        }
        usize::try_from(bytes).ok().map(|bytes| (at, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_follow_the_pitch_and_the_last_word_is_cut() {
        let registers = BTreeMap::from([
            (0x188, 1),
            (0x18c, 0x10),
            (0x190, 0x100),
            (0x180, 6),
            (0x184, 2),
        ]);
        let mut upload = Upload::default();
        assert_eq!(upload.next(), None);
        assert!(upload.start(&registers, 0x41));
        let all: Vec<_> = std::iter::from_fn(|| upload.next()).collect();
        let base = 0x1_0000_0010;
        assert_eq!(
            all,
            [
                (base, 4),
                (base + 4, 2),
                (base + 0x100, 4),
                (base + 0x104, 2)
            ]
        );
        assert!(!upload.start(&registers, 0x40));
        assert_eq!(upload.next(), None);
    }
}
