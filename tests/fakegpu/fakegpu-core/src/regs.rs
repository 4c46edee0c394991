// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Declares the registers of BAR0 that the device knows by name.
//!
//! Names and offsets are those of NVIDIA's `dev_*.h` headers for GH100. The headers' private space
//! of the virtual function begins at 0xb80000 here.

use crate::registers::registers;

registers! {
    /// Chip identity, in the format that all generations share.
    NV_PMC_BOOT_0 @ 0x0 {
        3:0 MINOR_REVISION,
        7:4 MAJOR_REVISION,
        23:20 IMPLEMENTATION,
        28:24 ARCHITECTURE_0,
    }

    /// Physical (zero) or virtual function.
    NV_PMC_BOOT_1 @ 0x4 {}

    /// Chip identity, in the format that the open driver uses.
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
    /// Makes the written vector pending.
    NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF_TRIGGER @ 0xb81640 {}

    /// Nanoseconds, low half; the counter steps by 32.
    NV_VIRTUAL_FUNCTION_TIME_0 @ 0xbb0080 {}
    /// Nanoseconds, high half.
    NV_VIRTUAL_FUNCTION_TIME_1 @ 0xbb0084 {}
    /// The same counter where the security processor reads it.
    NV_PGC6_SCI_SEC_TIMER_TIME_0 @ 0x118f54 {}
    /// High half.
    NV_PGC6_SCI_SEC_TIMER_TIME_1 @ 0x118f58 {}

    /// Boot progress of the security processor; 0xff is done.
    NV_THERM_I2CS_SCRATCH_FSP_BOOT_COMPLETE @ 0x200bc {}

    /// XAL error interrupts; never pending here.
    NV_XAL_EP_INTR_0 @ 0x10f100 {}
    /// Starts writing back compression tags; returns a token.
    NV_XAL_EP_UFLUSH_L2_CLEAN_COMPTAGS @ 0x10f808 {}
    /// The token of the last completed request.
    NV_XAL_EP_UFLUSH_L2_CLEAN_COMPTAGS_COMPLETED @ 0x10f80c {}
    /// Starts writing back dirty lines; returns a token.
    NV_XAL_EP_UFLUSH_L2_FLUSH_DIRTY @ 0x10f810 { 30:0 TOKEN }
    /// The token of the last completed request.
    NV_XAL_EP_UFLUSH_L2_FLUSH_DIRTY_COMPLETED @ 0x10f814 { 30:0 TOKEN, 31:31 STATUS }
    /// The position of PRAMIN.
    NV_XAL_EP_BAR0_WINDOW @ 0x10fd40 {
        /// In steps of 64 KiB.
        21:0 BASE,
    }

    /// Writing a one clears GSP's interrupt of that number.
    NV_PGSP_FALCON_IRQSCLR @ 0x110004 {}
    /// GSP's pending interrupts.
    NV_PGSP_FALCON_IRQSTAT @ 0x110008 {
        /// A record is in the status queue.
        6:6 SWGEN0,
    }
    /// GSP's enabled interrupts.
    NV_PGSP_FALCON_IRQMASK @ 0x110018 { 6:6 SWGEN0 }
    /// GSP's interrupts that go to the CPU.
    NV_PGSP_FALCON_IRQDEST @ 0x11001c { 6:6 SWGEN0 }
    /// Sends the pending interrupt again.
    NV_PGSP_FALCON_INTR_RETRIGGER @ 0x1103e8 {}
    /// Boot status of GSP. Zero is success; bit 31 means halted.
    NV_PGSP_FALCON_MAILBOX0 @ 0x110040 {}
    /// Configuration of GSP's processor.
    NV_PGSP_FALCON_HWCFG2 @ 0x1100f4 {
        10:10 RISCV,
        13:13 RISCV_BR_PRIV_LOCKDOWN,
    }
    /// Resets GSP.
    NV_PGSP_FALCON_ENGINE @ 0x1103c0 {
        0:0 RESET,
        /// 0 while in reset, 2 out of it.
        10:8 RESET_STATUS,
    }
    /// Writing notifies GSP of new records in its queue.
    NV_PGSP_QUEUE_HEAD @ 0x110c00 {}
    /// As NV_PGSP_FALCON_IRQMASK. Newer drivers read this one alone.
    NV_PGSP_RISCV_IRQMASK @ 0x111528 { 6:6 SWGEN0 }
    /// As NV_PGSP_FALCON_IRQDEST. Newer drivers read this one alone.
    NV_PGSP_RISCV_IRQDEST @ 0x11152c { 6:6 SWGEN0 }
    /// Whether GSP runs.
    NV_PGSP_RISCV_CPUCTL @ 0x111388 {
        /// GSP has stopped at the driver's request. Newer drivers wait for it.
        4:4 HALTED,
        7:7 ACTIVE_STAT,
    }

    /// Confidential computing mode; off.
    NV_PGC6_AON_SECURE_SCRATCH_GROUP_20_CC @ 0x1182cc {}
    /// Video memory in MiB.
    NV_USABLE_FB_SIZE_IN_MB @ 0x1183a4 {}

    /// Upper end of the second write-protected region; zero before GSP boots.
    NV_PFB_PRI_MMU_WPR2_ADDR_HI @ 0x1fa828 {}

    /// PRAMIN, see [`pramin`](crate::pramin).
    NV_PRAMIN_DATA @ 0x700000 [0x40000] {}

    /// Fuse: GSP is not a debug part.
    NV_FUSE_OPT_SECURE_GSP_DEBUG_DIS @ 0x82074c { 0:0 DATA }

    /// Version of the security processor's firmware.
    NV_GFW_FSP_UCODE_VERSION @ 0x8f0334 { 11:0 FULL }
    /// Writing submits the message in EMEM to the security processor.
    NV_PFSP_QUEUE_HEAD @ 0x8f2c00 {}
    /// Offset of the last word of that message.
    NV_PFSP_QUEUE_TAIL @ 0x8f2c04 {}
    /// Offset of the first word of the response.
    NV_PFSP_MSGQ_HEAD @ 0x8f2c80 {}
    /// Offset of the last word of the response.
    NV_PFSP_MSGQ_TAIL @ 0x8f2c84 {}
    /// Read and write position of EMEMD.
    NV_PFSP_EMEMC @ 0x8f2ac0 {
        7:2 OFFS,
        15:8 BLK,
        24:24 AINCW,
        25:25 AINCR,
    }
    /// One word of EMEM.
    NV_PFSP_EMEMD @ 0x8f2ac4 {}

    /// Reading starts an invalidation of cached system memory and returns a token.
    NV_VIRTUAL_FUNCTION_PRIV_FUNC_L2_SYSMEM_INVALIDATE @ 0xb80f10 {}
    /// The token of the last completed request.
    NV_VIRTUAL_FUNCTION_PRIV_FUNC_L2_SYSMEM_INVALIDATE_COMPLETED @ 0xb80f14 {}
    /// The same for a peer's memory.
    NV_VIRTUAL_FUNCTION_PRIV_FUNC_L2_PEERMEM_INVALIDATE @ 0xb80f18 {}
    /// The token of the last completed request.
    NV_VIRTUAL_FUNCTION_PRIV_FUNC_L2_PEERMEM_INVALIDATE_COMPLETED @ 0xb80f1c {}
    /// Address mode of BAR2; only the virtual mode is modelled.
    NV_VIRTUAL_FUNCTION_PRIV_FUNC_BAR2_BLOCK_LOW_ADDR @ 0xb80f70 {}
    /// A doorbell in the private space.
    NV_VIRTUAL_FUNCTION_PRIV_DOORBELL @ 0xb82200 {}
    /// The nanosecond counter, both halves.
    NV_VIRTUAL_FUNCTION_PRIV_TIMER @ 0xb82300 [2] {}
    /// Page directory of the next TLB invalidation.
    NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE_PDB @ 0xb830a0 {
        1:1 APERTURE,
        31:4 ADDR,
    }
    /// Upper half of that address.
    NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE_UPPER_PDB @ 0xb830a4 {
        19:0 ADDR,
    }
    /// Starts a TLB invalidation; reads as zero once it has completed.
    NV_VIRTUAL_FUNCTION_PRIV_MMU_INVALIDATE @ 0xb830b0 {
        1:1 ALL_PDB,
    }
    /// Maximum number of entries of the access counter buffer.
    NV_VIRTUAL_FUNCTION_PRIV_ACCESS_COUNTER_NOTIFY_BUFFER_SIZE @ 0xb83110 {}
    /// Replayable and non-replayable fault buffers.
    NV_VIRTUAL_FUNCTION_PRIV_MMU_FAULT_BUFFER @ 0xb83000 [16] {}

    /// Writing a channel's token tells the host that the channel's ring has new entries.
    NV_VIRTUAL_FUNCTION_DOORBELL @ 0xbb0090 {
        11:0 VECTOR,
        22:16 RUNLIST_ID,
    }

    /// Not NVIDIA's: the recorder can be read here (journal.rs).
    GCT_RECORD_MAGIC @ 0xff0000 {}
    /// Number of events so far.
    GCT_RECORD_COUNT @ 0xff0004 {}
    /// Writing an event's number selects its line.
    GCT_RECORD_SELECT @ 0xff0008 {}
    /// Length of that line in bytes; 0 if the event is no longer kept.
    GCT_RECORD_LENGTH @ 0xff000c {}
    /// The selected line.
    GCT_RECORD_TEXT @ 0xff1000 [1024] {}
    /// What the copy engines have moved (copies.rs).
    GCT_COPIES @ 0xff2000 [96] {}
}
