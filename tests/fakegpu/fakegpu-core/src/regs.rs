// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The registers of BAR0 that the device knows by name.

use crate::registers::registers;

registers! {
    /// Chip identity in the format all generations share.
    NV_PMC_BOOT_0 @ 0x0 {
        3:0 MINOR_REVISION,
        7:4 MAJOR_REVISION,
        23:20 IMPLEMENTATION,
        28:24 ARCHITECTURE_0,
    }

    /// Says whether this is a physical or a virtual function; zero is physical.
    NV_PMC_BOOT_1 @ 0x4 {}

    /// Chip identity in the format the open driver decides by.
    NV_PMC_BOOT_42 @ 0xa00 {
        15:12 MINOR_REVISION,
        19:16 MAJOR_REVISION,
        23:20 IMPLEMENTATION,
        29:24 ARCHITECTURE,
    }

    /// Pending vectors, 32 per leaf; writing a one clears.
    NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF @ 0xb81000 [16] {}
    /// Enabled vectors; writing a one enables.
    NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF_EN_SET @ 0xb81200 [16] {}
    /// Enabled vectors; writing a one disables.
    NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF_EN_CLEAR @ 0xb81400 [16] {}
    /// Subtrees with a pending vector.
    NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_TOP @ 0xb81600 {}
    /// Enabled subtrees; writing a one enables.
    NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_TOP_EN_SET @ 0xb81608 {}
    /// Enabled subtrees; writing a one disables.
    NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_TOP_EN_CLEAR @ 0xb81610 {}
    /// Makes the vector that is written pending.
    NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF_TRIGGER @ 0xb81640 {}

    /// Nanoseconds, low half; the counter steps by 32.
    NV_VIRTUAL_FUNCTION_TIME_0 @ 0xbb0080 {}
    /// Nanoseconds, high half.
    NV_VIRTUAL_FUNCTION_TIME_1 @ 0xbb0084 {}
    /// The same counter where the security processor reads it.
    NV_PGC6_SCI_SEC_TIMER_TIME_0 @ 0x118f54 {}
    /// High half.
    NV_PGC6_SCI_SEC_TIMER_TIME_1 @ 0x118f58 {}
}
