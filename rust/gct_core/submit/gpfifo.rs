// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes GPFIFO entries: where a ring says that the next words are.
//!
//! Source: `NVC56F_GP_ENTRY*` (Ampere, 40-bit addresses) and `NVC86F_GP_ENTRY*` (Hopper, the same
//! and an extended base) in `clc56f.h` of NVIDIA/open-gpu-doc and `clc86f.h` of
//! NVIDIA/open-gpu-kernel-modules.

use super::limits;

/// `GP_ENTRY0_GET`, bits 31:2 of the address.
const GET: u64 = 0xffff_fffc;
/// `GP_ENTRY1_GET_HI`, bits 39:32 of the address. A control entry has its opcode there.
const LOW_BYTE: u64 = 0xff;
/// Bit 8 of the second word: reserved in every entry.
const RESERVED: u64 = 1 << 40;
/// `GP_ENTRY1_LEVEL`.
const LEVEL: u64 = 1 << 41;
/// `GP_ENTRY1_LENGTH`, 30:10.
const LENGTH_SHIFT: u32 = 42;
/// `GP_ENTRY1_SYNC`.
const SYNC: u64 = 1 << 63;
/// `GP_ENTRY0_FETCH`.
const FETCH: u64 = 1;
/// `GP_ENTRY0_PB_EXTENDED_BASE_OPERAND`, 24:8.
const BASE_SHIFT: u32 = 8;
/// The base has 17 bits.
const BASE_MAX: u32 = 0x1_ffff;

/// A run of pushbuffer words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The GPU virtual address of the first word; a multiple of 4.
    pub va: u64,
    /// Number of words; 1 to [`limits::SEGMENT_WORDS_MAX`].
    pub words: u32,
    /// `LEVEL_SUBROUTINE`: the main level's GET is kept.
    pub subroutine: bool,
    /// `SYNC_WAIT`: fetched only after everything before was executed.
    pub wait: bool,
    /// `FETCH_CONDITIONAL`: the host may skip it.
    pub conditional: bool,
}

/// An entry without words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Does nothing.
    Nop,
    /// Stops the channel.
    Illegal,
    /// Compares a checksum of the entries.
    GpCrc(u32),
    /// Compares a checksum of the pushbuffer.
    PbCrc(u32),
    /// Bits 56:40 of the addresses of the segments that follow (Hopper and later).
    ExtendedBase(u32),
}

/// A decoded entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Words to fetch.
    Segment(Segment),
    /// A control entry.
    Control(Control),
    /// A control entry with an undocumented opcode, or reserved bits that are set.
    Unknown(u64),
}

impl Entry {
    /// Encodes the entry as it stands in the ring. The upper bits of a segment's address are not
    /// part of it: a [`Control::ExtendedBase`] must have set them before.
    pub const fn encode(&self) -> u64 {
        // CAST: every cast here widens, `From` is not `const`.
        match *self {
            Self::Segment(segment) => {
                let mut entry = segment.va & (GET | LOW_BYTE << 32);
                entry |= ((segment.words & limits::SEGMENT_WORDS_MAX) as u64) << LENGTH_SHIFT;
                if segment.subroutine {
                    entry |= LEVEL;
                }
                if segment.wait {
                    entry |= SYNC;
                }
                if segment.conditional {
                    entry |= FETCH;
                }
                entry
            }
            Self::Control(control) => match control {
                Control::Nop => 0,
                Control::Illegal => 1 << 32,
                Control::GpCrc(operand) => 2 << 32 | operand as u64,
                Control::PbCrc(operand) => 3 << 32 | operand as u64,
                Control::ExtendedBase(base) => 4 << 32 | ((base & BASE_MAX) as u64) << BASE_SHIFT,
            },
            Self::Unknown(entry) => entry,
        }
    }
}

/// State of one ring that decodes its entries: the extended base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetch {
    base: u32,
}

impl Fetch {
    /// Creates the state of an unread ring.
    pub const fn new() -> Self {
        Self { base: 0 }
    }

    /// Returns bits 56:40 of the addresses that follow.
    pub const fn base(&self) -> u32 {
        self.base
    }

    /// Decodes the next entry of the ring.
    pub fn decode(&mut self, entry: u64) -> Entry {
        // CAST: 21 bits fit.
        let words = (entry >> LENGTH_SHIFT) as u32 & limits::SEGMENT_WORDS_MAX;
        if entry & RESERVED != 0 {
            return Entry::Unknown(entry);
        }
        if words != 0 {
            return Entry::Segment(Segment {
                va: u64::from(self.base) << 40 | entry & (GET | LOW_BYTE << 32),
                words,
                subroutine: entry & LEVEL != 0,
                wait: entry & SYNC != 0,
                conditional: entry & FETCH != 0,
            });
        }
        // CAST: the low half.
        let operand = entry as u32;
        match entry >> 32 & LOW_BYTE {
            0 => Entry::Control(Control::Nop),
            1 => Entry::Control(Control::Illegal),
            2 => Entry::Control(Control::GpCrc(operand)),
            3 => Entry::Control(Control::PbCrc(operand)),
            4 => {
                self.base = operand >> BASE_SHIFT & BASE_MAX;
                Entry::Control(Control::ExtendedBase(self.base))
            }
            _ => Entry::Unknown(entry),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Segment = Segment {
        va: 0x2_0083_3944,
        words: 385,
        subroutine: false,
        wait: false,
        conditional: false,
    };

    #[test]
    fn a_segment_is_read_as_the_header_says() {
        // E0 = address 31:2, E1 = address 39:32 | length << 10.
        let raw = 0x0083_3944 | (0x2 | 385 << 10) << 32;
        assert_eq!(Fetch::new().decode(raw), Entry::Segment(PLAIN));
        assert_eq!(Entry::Segment(PLAIN).encode(), raw);
        for (bit, want) in [
            (
                0,
                Segment {
                    conditional: true,
                    ..PLAIN
                },
            ),
            (
                41,
                Segment {
                    subroutine: true,
                    ..PLAIN
                },
            ),
            (
                63,
                Segment {
                    wait: true,
                    ..PLAIN
                },
            ),
        ] {
            assert_eq!(Fetch::new().decode(raw | 1 << bit), Entry::Segment(want));
            assert_eq!(Entry::Segment(want).encode(), raw | 1 << bit);
        }
    }

    #[test]
    fn the_longest_segment_has_all_length_bits() {
        let entry = Entry::Segment(Segment {
            words: limits::SEGMENT_WORDS_MAX,
            ..PLAIN
        });
        assert_eq!(Fetch::new().decode(entry.encode()), entry);
    }

    #[test]
    fn an_extended_base_applies_to_what_follows() {
        let mut fetch = Fetch::new();
        let raw = Entry::Segment(PLAIN).encode();
        assert_eq!(
            fetch.decode(4 << 32 | 0x1_2345 << 8),
            Entry::Control(Control::ExtendedBase(0x1_2345))
        );
        for _ in 0..2 {
            let Entry::Segment(segment) = fetch.decode(raw) else {
                panic!("not a segment");
            };
            assert_eq!(segment.va, 0x1_2345 << 40 | PLAIN.va);
        }
        fetch.decode(4 << 32);
        assert_eq!(fetch.decode(raw), Entry::Segment(PLAIN));
    }

    #[test]
    fn control_entries_carry_their_operand() {
        for control in [
            Control::Nop,
            Control::Illegal,
            Control::GpCrc(0xdead_beef),
            Control::PbCrc(7),
            Control::ExtendedBase(BASE_MAX),
        ] {
            assert_eq!(
                Fetch::new().decode(Entry::Control(control).encode()),
                Entry::Control(control)
            );
        }
    }

    #[test]
    fn undocumented_entries_are_unknown() {
        for raw in [
            5 << 32,
            0xff << 32,
            1 << 40,
            Entry::Segment(PLAIN).encode() | 1 << 40,
        ] {
            assert_eq!(Fetch::new().decode(raw), Entry::Unknown(raw));
            assert_eq!(Entry::Unknown(raw).encode(), raw);
        }
    }
}
