// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Implements the nanosecond counter at each of its offsets.

use crate::bits::{high_u32, low_u32};
use crate::regs::*;

/// The counter advances in steps of this many nanoseconds.
const STEP_NS: u64 = 32;

/// Reads the counter register at `offset`, if it is one, for time `now_ns`.
pub fn read(offset: u32, now_ns: u64) -> Option<u32> {
    let now_ns = now_ns - now_ns % STEP_NS;
    match offset {
        NV_VIRTUAL_FUNCTION_TIME_0::OFFSET | NV_PGC6_SCI_SEC_TIMER_TIME_0::OFFSET => {
            Some(low_u32(now_ns))
        }
        _ if NV_VIRTUAL_FUNCTION_PRIV_TIMER::index(offset) == Some(0) => Some(low_u32(now_ns)),
        _ if NV_VIRTUAL_FUNCTION_PRIV_TIMER::index(offset) == Some(1) => Some(high_u32(now_ns)),
        NV_VIRTUAL_FUNCTION_TIME_1::OFFSET | NV_PGC6_SCI_SEC_TIMER_TIME_1::OFFSET => {
            Some(high_u32(now_ns))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_halves_make_the_time_in_steps() {
        let now_ns = 0x12_3456_789f;
        assert_eq!(
            read(NV_VIRTUAL_FUNCTION_TIME_0::OFFSET, now_ns),
            Some(0x3456_7880)
        );
        assert_eq!(read(NV_VIRTUAL_FUNCTION_TIME_1::OFFSET, now_ns), Some(0x12));
        assert_eq!(read(0, now_ns), None);
    }
}
