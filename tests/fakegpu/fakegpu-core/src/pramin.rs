// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Implements PRAMIN: a movable window of 1 MiB in BAR0 on video memory.

use crate::memory::{PhysicalAddress, PhysicalMemory};
use crate::regs::{NV_PRAMIN_DATA, NV_XAL_EP_BAR0_WINDOW};

/// The window moves in steps of 64 KiB.
const BASE_SHIFT: u32 = 16;

/// Returns the address in video memory that the register at `offset` shows, for `window` in
/// NV_XAL_EP_BAR0_WINDOW. Returns `None` outside PRAMIN.
pub fn target(window: u32, offset: u32) -> Option<PhysicalAddress> {
    NV_PRAMIN_DATA::index(offset)?;
    let base = NV_XAL_EP_BAR0_WINDOW::from_raw(window).get(NV_XAL_EP_BAR0_WINDOW::BASE);
    Some(PhysicalAddress::video(
        (u64::from(base) << BASE_SHIFT) + u64::from(offset - NV_PRAMIN_DATA::OFFSET),
    ))
}

/// Reads through the window. Bytes beyond video memory read as 0xff.
pub fn read(memory: &PhysicalMemory, window: u32, offset: u32) -> Option<u32> {
    target(window, offset).map(|address| memory.read_u32(address).unwrap_or(u32::MAX))
}

/// Writes through the window. Writes beyond video memory are dropped. Returns whether `offset` lies
/// in the window.
pub fn write(memory: &mut PhysicalMemory, window: u32, offset: u32, value: u32) -> bool {
    let Some(address) = target(window, offset) else {
        return false;
    };
    // On failure no memory could keep the value.
    let _ = memory.write_u32(address, value);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;

    #[test]
    fn the_window_moves_over_video_memory() {
        let mut memory = PhysicalMemory::new(1 << 24, World::new());
        assert!(write(&mut memory, 3, 0x70_0010, 7));
        assert_eq!(memory.read_u32(PhysicalAddress::video(0x3_0010)), Ok(7));
        assert_eq!(read(&memory, 2, 0x71_0010), Some(7));
        assert_eq!(read(&memory, 0x100, 0x70_0000), Some(u32::MAX));
        assert_eq!(read(&memory, 0, 0x6f_fffc), None);
        assert_eq!(read(&memory, 0, 0x80_0000), None);
    }
}
