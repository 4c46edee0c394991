// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes method headers: pairs each data word with its subchannel and method.

/// A method with one data word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) subchannel: u32,
    /// Byte offset.
    pub(crate) method: u32,
    pub(crate) data: u32,
}

/// The meaning of a word of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// A method with its data.
    Write(Write),
    /// A header, or a word without effect.
    Header,
    /// The end: the rest of the segment is skipped.
    End,
    /// A header form that the model does not execute: an old form, or one that changes the
    /// subdevice mask. Holds its operation.
    Unknown(u32),
}

/// An unfinished burst of data words, which may continue in the next segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Decoder {
    subchannel: u32,
    method: u32,
    left: u32,
    /// Number of further words for which the method advances by 4.
    steps: u32,
}

impl Decoder {
    pub(crate) fn feed(&mut self, word: u32) -> Word {
        if self.left > 0 {
            self.left -= 1;
            let write = Write {
                subchannel: self.subchannel,
                method: self.method,
                data: word,
            };
            if self.steps > 0 {
                self.steps -= 1;
                self.method += 4;
            }
            return Word::Write(write);
        }
        let (operation, count) = (word >> 29, (word >> 16) & 0x1fff);
        self.subchannel = (word >> 13) & 7;
        self.method = (word & 0xfff) << 2;
        match operation {
            0 if word == 0 => Word::Header,
            1 | 3 | 5 => {
                self.left = count;
                self.steps = match operation {
                    1 => count,
                    3 => 0,
                    _ => 1,
                };
                Word::Header
            }
            4 => Word::Write(Write {
                subchannel: self.subchannel,
                method: self.method,
                data: count,
            }),
            7 => Word::End,
            other => Word::Unknown(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writes(words: &[u32]) -> Vec<(u32, u32)> {
        let mut decoder = Decoder::default();
        words
            .iter()
            .filter_map(|word| match decoder.feed(*word) {
                Word::Write(write) => Some((write.method, write.data)),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn each_form_counts_its_methods_its_own_way() {
        assert_eq!(writes(&[0x2002_2062, 7, 8]), [(0x188, 7), (0x18c, 8)]);
        assert_eq!(writes(&[0x6002_206d, 7, 8]), [(0x1b4, 7), (0x1b4, 8)]);
        assert_eq!(
            writes(&[0xa003_206c, 7, 8, 9]),
            [(0x1b0, 7), (0x1b4, 8), (0x1b4, 9)]
        );
        assert_eq!(writes(&[0x8041_206c, 0]), [(0x1b0, 0x41)]);
        assert_eq!(Decoder::default().feed(0xe000_0000), Word::End);
        assert_eq!(Decoder::default().feed(0x4001_2000), Word::Unknown(2));
    }
}
