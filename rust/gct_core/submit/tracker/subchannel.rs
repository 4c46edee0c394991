// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tracks the registers of one subchannel.

use super::uploads::Uploads;
use super::{Registers, Semaphore};
use crate::submit::methods;
use crate::submit::reason::Reason;

/// The methods that a subchannel's class has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A compute class: uploads and launches.
    Compute,
    /// A class with inline-to-memory methods at the same offsets.
    Upload,
    /// A copy engine.
    Copy,
    /// Anything else.
    Other,
}

impl Role {
    fn of_class(class: u16) -> Self {
        match class & 0xff {
            0xc0 => Self::Compute,
            0xb5 => Self::Copy,
            // Inline-to-memory (A040, A140) and three-dimensional classes (..97).
            0x40 | 0x97 => Self::Upload,
            _ => Self::Other,
        }
    }

    /// Returns whether the class has inline-to-memory methods.
    #[inline(always)]
    pub(super) const fn uploads(self) -> bool {
        matches!(self, Self::Compute | Self::Upload)
    }
}

/// Bits of [`Subchannel::known`].
mod known {
    pub(super) const OFFSET_UPPER: u8 = 1;
    pub(super) const OFFSET: u8 = 2;
    pub(super) const LINE_LENGTH: u8 = 4;
    pub(super) const LINE_COUNT: u8 = 8;
    pub(super) const PCAS: u8 = 16;
    pub(super) const INLINE_UPPER: u8 = 32;
    pub(super) const INLINE_LOWER: u8 = 64;
    pub(super) const I2M: u8 = OFFSET_UPPER | OFFSET | LINE_LENGTH | LINE_COUNT;
    pub(super) const INLINE: u8 = INLINE_UPPER | INLINE_LOWER;
}

/// `SET_QMD_VIRTUALIZATION_CONTROL`: PCAS addresses are relative.
const VIRTUAL_PCAS: u32 = 1 << 24;
/// Inline QMD addresses are relative.
const VIRTUAL_INLINE: u32 = 1 << 16;
/// Upload addresses are relative.
const VIRTUAL_I2M: u32 = 1 << 8;
/// Any addresses are relative.
const VIRTUAL: u32 = VIRTUAL_PCAS | VIRTUAL_INLINE | VIRTUAL_I2M;
/// `SET_INLINE_QMD_ADDRESS_A_INLINE_SIZE`: 384 bytes.
const INLINE_SIZE_384: u32 = 1 << 30;
/// `LAUNCH_DMA_DST_MEMORY_LAYOUT_PITCH`.
const LAYOUT_PITCH: u32 = 1;

/// LINE_COUNT is 1.
pub(super) const ONE_LINE: u64 = 1 << 32;

fn set_upper(pair: &mut u64, value: u32) {
    *pair = *pair & u64::from(u32::MAX) | u64::from(value) << 32;
}

fn set_lower(pair: &mut u64, value: u32) {
    *pair = *pair & !u64::from(u32::MAX) | u64::from(value);
}

/// State of one subchannel. Its size is a power of two, so that a shift finds it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Subchannel {
    /// Register pairs: OFFSET_OUT_UPPER and OFFSET_OUT here, LINE_COUNT and LINE_LENGTH_IN in
    /// `lines`. They are read in pairs, and a processor is slow to read what was just written in
    /// halves. For the same reason the pairs are not adjacent: a compiler would read both at once.
    destination: u64,
    pub(super) class: u16,
    pub(super) role: Role,
    known: u8,
    /// Whether its methods are tracked and their addresses absolute.
    direct: bool,
    pcas: u32,
    lines: u64,
    inline_upper: u32,
    inline_lower: u32,
    virtualization: u32,
    report: [u32; 4],
}

/// Returns whether a method of an engine changes the tracked state.
#[inline]
pub(super) fn is_tracked(method: u16) -> bool {
    matches!(method,
        methods::SET_MME_SHADOW_RAM_CONTROL
            | methods::LINE_LENGTH_IN..=methods::OFFSET_OUT
            | methods::LAUNCH_DMA..=methods::LOAD_INLINE_DATA
            | methods::SEND_PCAS_A..=methods::SEND_SIGNALING_PCAS2_B
            | methods::SET_QMD_VIRTUALIZATION_CONTROL
            | methods::SET_INLINE_QMD_ADDRESS_A..=methods::LOAD_INLINE_QMD_DATA_LAST
            | methods::SET_REPORT_SEMAPHORE_PAYLOAD_LOWER..=methods::REPORT_SEMAPHORE_EXECUTE
            | methods::SET_REPORT_SEMAPHORE_A..=methods::SET_REPORT_SEMAPHORE_D
            | methods::CALL_MME_MACRO..)
}

impl Subchannel {
    pub(super) const fn new(role: Role) -> Self {
        Self {
            class: 0,
            role,
            known: 0,
            direct: role.uploads(),
            destination: 0,
            lines: 0,
            pcas: 0,
            inline_upper: 0,
            inline_lower: 0,
            virtualization: 0,
            report: [0; 4],
        }
    }

    /// Takes a class: SET_OBJECT. Hardware binds nothing by it, so launches and copies cannot hide
    /// behind another class.
    pub(super) fn bind(&mut self, class: u16) {
        let role = match Role::of_class(class) {
            Role::Other => self.role,
            Role::Copy if self.role.uploads() => self.role,
            role => role,
        };
        *self = Self {
            class,
            ..Self::new(role)
        };
    }

    /// Forgets all registers, after words that were not understood.
    pub(super) fn forget(&mut self) {
        self.known = 0;
    }

    #[inline]
    pub(super) fn set(&mut self, method: u16, value: u32) {
        match method {
            methods::OFFSET_OUT_UPPER => {
                set_upper(&mut self.destination, value);
                self.known |= known::OFFSET_UPPER;
            }
            methods::OFFSET_OUT => {
                set_lower(&mut self.destination, value);
                self.known |= known::OFFSET;
            }
            methods::LINE_LENGTH_IN => {
                set_lower(&mut self.lines, value);
                self.known |= known::LINE_LENGTH;
            }
            methods::LINE_COUNT => {
                set_upper(&mut self.lines, value);
                self.known |= known::LINE_COUNT;
            }
            methods::SEND_PCAS_A => {
                self.set_pcas(value);
            }
            methods::SET_INLINE_QMD_ADDRESS_A => {
                self.inline_upper = value;
                self.known |= known::INLINE_UPPER;
            }
            methods::SET_INLINE_QMD_ADDRESS_B => {
                self.inline_lower = value;
                self.known |= known::INLINE_LOWER;
            }
            methods::SET_QMD_VIRTUALIZATION_CONTROL => {
                self.virtualization = value;
                self.direct = self.role.uploads() && value & VIRTUAL == 0;
            }
            _ => self.set_report(method, value),
        }
    }

    /// Returns whether uploads and calls go to the addresses that they name.
    #[inline(always)]
    pub(super) fn is_direct(&self) -> bool {
        self.direct
    }

    /// Sets all registers of an upload, each pair as it is kept here.
    #[inline(always)]
    pub(super) fn set_upload(&mut self, destination: u64, lines: u64) {
        self.destination = destination;
        self.lines = lines;
        self.known |= known::I2M;
    }

    /// Sets SEND_PCAS_A.
    #[inline(always)]
    pub(super) fn set_pcas(&mut self, address: u32) -> u64 {
        self.pcas = address;
        self.known |= known::PCAS;
        u64::from(address) << 8
    }

    fn set_report(&mut self, method: u16, value: u32) {
        let index = match method {
            methods::SET_REPORT_SEMAPHORE_A | methods::SET_REPORT_SEMAPHORE_ADDRESS_UPPER => 0,
            methods::SET_REPORT_SEMAPHORE_B | methods::SET_REPORT_SEMAPHORE_ADDRESS_LOWER => 1,
            methods::SET_REPORT_SEMAPHORE_C | methods::SET_REPORT_SEMAPHORE_PAYLOAD_LOWER => 2,
            methods::SET_REPORT_SEMAPHORE_PAYLOAD_UPPER => 3,
            _ => return,
        };
        if let Some(register) = self.report.get_mut(index) {
            *register = value;
        }
    }

    /// Sets SET_REPORT_SEMAPHORE_A to D.
    #[inline]
    pub(super) fn set_report_all(
        &mut self,
        upper: u32,
        lower: u32,
        payload: u32,
        execute: u32,
    ) -> Semaphore {
        let [_, _, _, kept] = self.report;
        self.report = [upper, lower, payload, kept];
        self.report(methods::SET_REPORT_SEMAPHORE_D, execute)
    }

    /// Returns the semaphore that the word `execute` writes.
    pub(super) fn report(&self, method: u16, execute: u32) -> Semaphore {
        let [upper, lower, payload, payload_upper] = self.report;
        let high = if method == methods::REPORT_SEMAPHORE_EXECUTE {
            payload_upper
        } else {
            0
        };
        Semaphore {
            va: u64::from(upper) << 32 | u64::from(lower),
            payload: u64::from(high) << 32 | u64::from(payload),
            execute,
        }
    }

    /// Begins an upload: LAUNCH_DMA.
    pub(super) fn begin(&mut self, uploads: &mut Uploads, launch: u32) {
        let plain = launch & LAYOUT_PITCH != 0
            && self.lines >> 32 == 1
            && self.known & known::I2M == known::I2M
            && self.virtualization & VIRTUAL_I2M == 0;
        // CAST: the lower half.
        uploads.begin(self.destination, plain.then_some(self.lines as u32));
    }

    /// Returns the address of the QMD of a PCAS.
    #[inline]
    pub(super) fn pcas_va(&self) -> Result<u64, Reason> {
        if self.virtualization & VIRTUAL_PCAS != 0 {
            return Err(Reason::Virtualized);
        }
        if self.known & known::PCAS == 0 {
            return Err(Reason::NoAddress);
        }
        Ok(u64::from(self.pcas) << 8)
    }

    /// Returns the address of an inline QMD.
    pub(super) fn inline_va(&self) -> Result<u64, Reason> {
        if self.virtualization & VIRTUAL_INLINE != 0 {
            return Err(Reason::Virtualized);
        }
        if self.known & known::INLINE != known::INLINE {
            return Err(Reason::NoAddress);
        }
        Ok((u64::from(self.inline_upper & 0x1ff) << 32 | u64::from(self.inline_lower)) << 8)
    }

    /// Returns the size of an inline QMD in words.
    pub(super) fn inline_words(&self) -> u32 {
        if self.inline_upper & INLINE_SIZE_384 != 0 {
            96
        } else {
            64
        }
    }

    /// Returns the registers that an insertion must restore. They are unknown during an upload,
    /// which nothing can restore.
    #[inline]
    pub(super) fn registers(&self, uploads: &Uploads) -> Registers {
        Registers {
            known: self.known & known::I2M == known::I2M && !uploads.is_open(),
            destination: self.destination,
            lines: self.lines,
            pcas: 0,
        }
    }

    /// Returns those at an inline QMD, whose insertion names another QMD.
    pub(super) fn inline_registers(&self, uploads: &Uploads) -> Registers {
        Registers {
            pcas: self.pcas,
            ..self.registers(uploads)
        }
    }
}
