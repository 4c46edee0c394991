// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Splits accesses of any size and alignment into accesses of whole registers.

/// A space of 32-bit registers.
pub trait Mmio {
    /// Reads the register at `offset`, a multiple of 4.
    fn read32(&mut self, offset: u32) -> u32;

    /// Writes the register at `offset`, a multiple of 4.
    fn write32(&mut self, offset: u32, value: u32);
}

/// Bytes of one register.
const WIDTH: u64 = 4;

/// Reads `data.len()` bytes at `offset` for the guest. Each register that they touch is read once.
/// Bytes beyond 32-bit offsets read as 0xff.
pub fn read(space: &mut dyn Mmio, offset: u64, data: &mut [u8]) {
    let mut at = offset;
    let mut rest = data;
    while !rest.is_empty() {
        // CAST: at most 3.
        let skip = (at % WIDTH) as usize;
        let count = rest.len().min(4 - skip);
        let (now, later) = rest.split_at_mut(count);
        match u32::try_from(at - at % WIDTH) {
            Ok(register) => {
                now.copy_from_slice(&space.read32(register).to_le_bytes()[skip..skip + count])
            }
            Err(_) => now.fill(0xff),
        }
        at = at.saturating_add(count as u64);
        rest = later;
    }
}

/// Writes for the guest. The register bus takes whole registers only, so partial ones at the start
/// or the end are dropped.
///
/// Returns the number of dropped bytes, for the log.
pub fn write(space: &mut dyn Mmio, offset: u64, data: &[u8]) -> usize {
    let skip = data.len().min(((WIDTH - offset % WIDTH) % WIDTH) as usize);
    let (before, whole) = data.split_at(skip);
    let mut at = offset.saturating_add(skip as u64);
    let mut dropped = before.len();
    for bytes in whole.chunks(4) {
        match (<[u8; 4]>::try_from(bytes), u32::try_from(at)) {
            (Ok(word), Ok(register)) => space.write32(register, u32::from_le_bytes(word)),
            _ => dropped += bytes.len(),
        }
        at = at.saturating_add(WIDTH);
    }
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads as its own offset, and remembers writes.
    #[derive(Default)]
    struct Echo {
        writes: Vec<(u32, u32)>,
    }

    impl Mmio for Echo {
        fn read32(&mut self, offset: u32) -> u32 {
            offset
        }

        fn write32(&mut self, offset: u32, value: u32) {
            self.writes.push((offset, value));
        }
    }

    #[test]
    fn a_write_reaches_whole_registers_only() {
        let mut space = Echo::default();
        assert_eq!(write(&mut space, 0x10, &[1, 0, 0, 0, 2, 0, 0, 0]), 0);
        assert_eq!(write(&mut space, 0x22, &[9; 2]), 2);
        assert_eq!(write(&mut space, 0x33, &[9, 3, 0, 0, 0, 9]), 2);
        assert_eq!(space.writes, [(0x10, 1), (0x14, 2), (0x34, 3)]);
    }

    #[test]
    fn beyond_the_space_there_is_nothing() {
        let mut space = Echo::default();
        let mut data = [0; 6];
        read(&mut space, u64::from(u32::MAX) - 1, &mut data);
        assert_eq!(data, [0xff; 6]);
        assert_eq!(write(&mut space, u64::MAX, &[0; 9]), 9);
    }

    proptest! {
        /// Checks that every byte of a read comes from the register that contains it.
        #[test]
        fn reads_any_size_and_offset(offset in any::<u64>(), len in 0usize..64) {
            let mut data = vec![0; len];
            read(&mut Echo::default(), offset, &mut data);
            for (index, byte) in data.iter().enumerate() {
                let at = offset.saturating_add(index as u64);
                let expected = match u32::try_from(at & !3) {
                    Ok(register) => register.to_le_bytes()[(at & 3) as usize],
                    Err(_) => 0xff,
                };
                if at < u64::MAX - 64 {
                    prop_assert_eq!(*byte, expected);
                }
            }
        }

        #[test]
        fn a_write_loses_or_delivers_each_byte(offset in any::<u64>(), data in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut space = Echo::default();
            let dropped = write(&mut space, offset, &data);
            prop_assert_eq!(dropped + 4 * space.writes.len(), data.len());
        }
    }
}
