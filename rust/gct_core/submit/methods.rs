// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names the methods of NVIDIA's compute and host classes.
//!
//! Source: `clcbc0.h` (compute; the offsets are the same in every class that has the method), and
//! `clc56f.h` and `clc86f.h` (host) of NVIDIA's public headers. [`name_of`] is for printing; the
//! tracker uses the constants.

/// Declares the constants and the table of their names.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $offset:literal,)*) => {
        $($(#[$doc])* pub const $name: u16 = $offset;)*

        /// Every method above with its name.
        pub const METHODS: &[(u16, &str)] = &[$(($offset, stringify!($name)),)*];
    };
}

methods! {
    /// Binds a class to the subchannel.
    SET_OBJECT = 0x0000,
    /// Host: does nothing.
    NOP = 0x0008,
    /// Host, older form: semaphore address, upper part.
    SEMAPHOREA = 0x0010,
    /// Host, older form: semaphore address, lower part.
    SEMAPHOREB = 0x0014,
    /// Host, older form: payload.
    SEMAPHOREC = 0x0018,
    /// Host, older form: acquires or releases.
    SEMAPHORED = 0x001c,
    /// Host: semaphore address, lower part.
    SEM_ADDR_LO = 0x005c,
    /// Host: semaphore address, upper part.
    SEM_ADDR_HI = 0x0060,
    /// Host: payload, lower part.
    SEM_PAYLOAD_LO = 0x0064,
    /// Host: payload, upper part.
    SEM_PAYLOAD_HI = 0x0068,
    /// Host: acquires or releases.
    SEM_EXECUTE = 0x006c,
    /// Host: waits until the engine is idle.
    WFI = 0x0078,
    /// Waits until all launches of the channel have ended.
    WAIT_FOR_IDLE = 0x0110,
    /// Loads the position in the macro memory.
    LOAD_MME_INSTRUCTION_RAM_POINTER = 0x0114,
    /// Loads macro code.
    LOAD_MME_INSTRUCTION_RAM = 0x0118,
    /// Chooses a macro's start.
    LOAD_MME_START_ADDRESS_RAM_POINTER = 0x011c,
    /// Sets a macro's start.
    LOAD_MME_START_ADDRESS_RAM = 0x0120,
    /// Whether methods are remembered, and whether what is remembered replaces their data.
    SET_MME_SHADOW_RAM_CONTROL = 0x0124,
    /// Semaphore payload, lower part.
    SET_REPORT_SEMAPHORE_PAYLOAD_LOWER = 0x0158,
    /// Semaphore payload, upper part.
    SET_REPORT_SEMAPHORE_PAYLOAD_UPPER = 0x015c,
    /// Semaphore address, lower part.
    SET_REPORT_SEMAPHORE_ADDRESS_LOWER = 0x0160,
    /// Semaphore address, upper part.
    SET_REPORT_SEMAPHORE_ADDRESS_UPPER = 0x0164,
    /// Writes the semaphore.
    REPORT_SEMAPHORE_EXECUTE = 0x0168,
    /// Inline-to-memory: bytes of a line.
    LINE_LENGTH_IN = 0x0180,
    /// Inline-to-memory: lines.
    LINE_COUNT = 0x0184,
    /// Inline-to-memory: destination, upper part.
    OFFSET_OUT_UPPER = 0x0188,
    /// Inline-to-memory: destination, lower part.
    OFFSET_OUT = 0x018c,
    /// Inline-to-memory: begins an upload.
    LAUNCH_DMA = 0x01b0,
    /// Inline-to-memory: its data.
    LOAD_INLINE_DATA = 0x01b4,
    /// The base of relative QMD addresses, upper part.
    SET_QMD_VIRTUALIZATION_BASE_A = 0x0214,
    /// The base of relative QMD addresses, lower part.
    SET_QMD_VIRTUALIZATION_BASE_B = 0x0218,
    /// Which QMD version the scheduler expects.
    SET_QMD_VERSION = 0x0288,
    /// Drops everything that the scheduler has cached.
    INVALIDATE_SKED_CACHES = 0x0298,
    /// Which addresses are relative to the base.
    SET_QMD_VIRTUALIZATION_CONTROL = 0x029c,
    /// Address of the QMD for the next PCAS, shifted right by 8.
    SEND_PCAS_A = 0x02b4,
    /// A PCAS for a queue.
    SEND_PCAS_B = 0x02b8,
    /// A PCAS with the bits INVALIDATE and SCHEDULE.
    SEND_SIGNALING_PCAS_B = 0x02bc,
    /// A PCAS with an [`Action`].
    SEND_SIGNALING_PCAS2_B = 0x02c0,
    /// An inline QMD's address shifted right by 8, upper part.
    SET_INLINE_QMD_ADDRESS_A = 0x0318,
    /// An inline QMD's address shifted right by 8, lower part.
    SET_INLINE_QMD_ADDRESS_B = 0x031c,
    /// An inline QMD's words, one method each.
    LOAD_INLINE_QMD_DATA = 0x0320,
    /// Waits for the pipe.
    PIPE_NOP = 0x1a2c,
    /// Drops cached constants, textures and code without waiting.
    INVALIDATE_SHADER_CACHES_NO_WFI = 0x1698,
    /// Semaphore address, upper part.
    SET_REPORT_SEMAPHORE_A = 0x1b00,
    /// Semaphore address, lower part.
    SET_REPORT_SEMAPHORE_B = 0x1b04,
    /// Payload.
    SET_REPORT_SEMAPHORE_C = 0x1b08,
    /// Writes the semaphore.
    SET_REPORT_SEMAPHORE_D = 0x1b0c,
    /// The first of the methods that call macros: two for each of them.
    CALL_MME_MACRO = 0x3800,
}

/// The bits of SET_MME_SHADOW_RAM_CONTROL that choose a mode.
pub const SHADOW_RAM_MODE: u32 = 3;
/// The mode in which a method's data is what was remembered of it (`MODE_METHOD_REPLAY`).
pub const SHADOW_RAM_REPLAY: u32 = 3;

/// The bit that tells a macro's second method, CALL_MME_DATA, from CALL_MME_MACRO. The second gives
/// the macro more words, the first calls it.
pub const CALL_MME_DATA: u16 = 4;

/// The last of the methods that take an inline QMD's words: 96 of them.
pub const LOAD_INLINE_QMD_DATA_LAST: u16 = 0x049c;

/// The subchannel on which CUDA binds its compute class.
pub const SUBCHANNEL_COMPUTE: u8 = 1;

/// The subchannel on which an inline-to-memory class is bound by convention.
pub const SUBCHANNEL_I2M: u8 = 2;

/// The subchannel on which drivers bind a copy class.
pub const SUBCHANNEL_COPY: u8 = 4;

/// Returns the name of the method at `offset` in a compute class or, below 0x100, in any class.
pub fn name_of(offset: u16) -> Option<&'static str> {
    if (LOAD_INLINE_QMD_DATA..=LOAD_INLINE_QMD_DATA_LAST).contains(&offset) {
        return Some("LOAD_INLINE_QMD_DATA");
    }
    if offset >= CALL_MME_MACRO {
        return Some("CALL_MME_MACRO");
    }
    METHODS
        .iter()
        .find(|method| method.0 == offset)
        .map(|method| method.1)
}

/// Action of a PCAS (`SEND_SIGNALING_PCAS2_B_PCAS_ACTION`, bits 3:0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// Nothing.
    Nop = 0,
    /// Drops the scheduler's copy of the QMD.
    Invalidate = 1,
    /// Schedules the QMD in memory. The only action that honours RESUME.
    Schedule = 2,
    /// Copies the QMD and schedules the copy.
    InvalidateCopySchedule = 3,
    /// Not documented.
    Undocumented4 = 4,
    /// Not documented.
    Undocumented5 = 5,
    /// For a queue.
    IncrementPut = 6,
    /// Decrements the dependence counter.
    DecrementDependence = 7,
    /// Fetches the QMD early.
    Prefetch = 8,
    /// Fetches the QMD early and schedules it.
    PrefetchSchedule = 9,
    /// CUDA's action on Hopper.
    InvalidatePrefetchCopySchedule = 0xa,
    /// Schedules, but as if `REQUIRE_SCHEDULING_PCAS` were set.
    ForceRequireScheduling = 0xb,
    /// Increments the dependence counter.
    IncrementDependence = 0xc,
    /// Increments the work distributor's reference counter.
    IncrementCwdRefCounter = 0xd,
    /// Not documented.
    UndocumentedE = 0xe,
    /// Not documented.
    UndocumentedF = 0xf,
}

impl Action {
    /// Decodes the action of a PCAS2_B word.
    #[inline]
    pub const fn of_pcas2(word: u32) -> Self {
        match word & 0xf {
            0 => Self::Nop,
            1 => Self::Invalidate,
            2 => Self::Schedule,
            3 => Self::InvalidateCopySchedule,
            4 => Self::Undocumented4,
            5 => Self::Undocumented5,
            6 => Self::IncrementPut,
            7 => Self::DecrementDependence,
            8 => Self::Prefetch,
            9 => Self::PrefetchSchedule,
            0xa => Self::InvalidatePrefetchCopySchedule,
            0xb => Self::ForceRequireScheduling,
            0xc => Self::IncrementDependence,
            0xd => Self::IncrementCwdRefCounter,
            0xe => Self::UndocumentedE,
            _ => Self::UndocumentedF,
        }
    }

    /// Decodes the two bits of `SEND_SIGNALING_PCAS_B`.
    pub const fn of_pcas(word: u32) -> Self {
        match word & 3 {
            0 => Self::Nop,
            1 => Self::Invalidate,
            2 => Self::Schedule,
            _ => Self::InvalidateCopySchedule,
        }
    }

    /// Returns the value of the field.
    #[inline]
    pub const fn value(self) -> u32 {
        // CAST: the discriminant.
        self as u32
    }

    /// Returns whether the action hands a QMD to the scheduler. Undocumented actions are assumed
    /// to.
    #[inline]
    pub const fn schedules(self) -> bool {
        const SCHEDULING: u32 = 1 << Action::Schedule.value()
            | 1 << Action::InvalidateCopySchedule.value()
            | 1 << Action::Undocumented4.value()
            | 1 << Action::Undocumented5.value()
            | 1 << Action::PrefetchSchedule.value()
            | 1 << Action::InvalidatePrefetchCopySchedule.value()
            | 1 << Action::ForceRequireScheduling.value()
            | 1 << Action::UndocumentedE.value()
            | 1 << Action::UndocumentedF.value();
        SCHEDULING >> (self.value() & 0xf) & 1 != 0
    }

    /// Returns whether the scheduler takes a copy, so that the QMD in memory may change afterwards.
    pub const fn copies(self) -> bool {
        matches!(
            self,
            Self::InvalidateCopySchedule | Self::InvalidatePrefetchCopySchedule
        )
    }
}
