// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the launches and the copies in what a tenant writes into a channel.
//!
//! A [`Tracker`] belongs to one channel and keeps the state between segments: the class of each
//! subchannel, the registers that later methods use, and a burst that goes on in the next segment.
//! It believes only what it has seen. A launch is a PCAS that schedules a QMD whose words are all
//! in this segment and were not changed since. Anything else is reported with the reason, for the
//! caller to pass through.
//!
//! The cost is one pass over the headers; data words are skipped.

mod calls;
mod fast_path;
mod host;
mod pieces;
mod qmd_call;
mod subchannel;
mod transfers;
mod uploads;

use super::limits::SEGMENT_WORDS_MAX;
use super::method::{Burst, Opcode, PartialBurst, Refused, Walk};
use super::methods::{self, Action};
use super::qmd::Family;
use super::reason::Reason;
use super::stats::Counters;
use crate::units::Sat;
use calls::Call;
use core::num::Wrapping;
use qmd_call::Table;
use subchannel::{Role, Subchannel};
use transfers::Transfers;
use uploads::Uploads;

pub use pieces::Piece;
pub use qmd_call::{QmdCall, Registers, Source};

/// A semaphore operation of the host or of a compute class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Semaphore {
    /// Its address.
    pub va: u64,
    /// Its payload.
    pub payload: u64,
    /// The word that executed it, as its class defines it.
    pub execute: u32,
}

/// Result of scanning one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Filled entries of the caller's table.
    pub found: usize,
    /// Entries that did not fit.
    pub missed: usize,
    /// Where and why the rest of the segment was not understood.
    pub refused: Option<Refused>,
}

/// State of one channel: its subchannels, and the burst that goes on in the next segment.
#[derive(Clone, Debug)]
pub struct Tracker {
    family: Family,
    subchannels: [Subchannel; 8],
    uploads: Uploads,
    transfers: Transfers,
    partial: Option<PartialBurst>,
    host: [u32; 4],
    last_release: Option<Semaphore>,
    first_acquire: Option<Semaphore>,
    /// Whether the fast path is off.
    #[cfg(test)]
    pub(crate) plain: bool,
}

/// End of the methods that the host executes itself.
const HOST_END: u16 = 0x100;

impl Tracker {
    /// Creates the state of a new channel of the given class (`0xc86f` on Hopper; 0 if unknown).
    pub const fn new(channel_class: u16) -> Self {
        let mut subchannels = [Subchannel::new(Role::Other); 8];
        // Until a SET_OBJECT is seen, the binding that every driver uses is assumed.
        subchannels[methods::SUBCHANNEL_COMPUTE as usize] = Subchannel::new(Role::Compute);
        subchannels[methods::SUBCHANNEL_I2M as usize] = Subchannel::new(Role::Upload);
        subchannels[methods::SUBCHANNEL_COPY as usize] = Subchannel::new(Role::Copy);
        Self {
            family: Family::of_class(channel_class),
            subchannels,
            uploads: Uploads::new(),
            transfers: Transfers::new(),
            partial: None,
            host: [0; 4],
            last_release: None,
            first_acquire: None,
            #[cfg(test)]
            plain: false,
        }
    }

    #[cfg(test)]
    fn is_plain(&self) -> bool {
        self.plain
    }

    #[cfg(not(test))]
    const fn is_plain(&self) -> bool {
        false
    }

    /// Returns the generation of the GPU, as far as its classes are known.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Returns the class that SET_OBJECT bound to a subchannel; 0 for none.
    pub fn class_of(&self, subchannel: u8) -> u16 {
        self.subchannels
            .get(usize::from(subchannel))
            .map_or(0, |subchannel| subchannel.class)
    }

    /// Returns the last semaphore release of the last segment.
    pub fn last_release(&self) -> Option<Semaphore> {
        self.last_release
    }

    /// Returns the word that the last segment uploads to `va` as an upload of its own. `words` are
    /// the segment's.
    pub fn uploaded_word(&self, va: u64, words: &[u32]) -> Option<u32> {
        let at = self.uploads.word_at(va)?;
        words.get(usize::try_from(at).ok()?).copied()
    }

    /// Returns the semaphore acquire by which the last segment begins: nothing of the segment is
    /// done before the word reaches the payload, modulo 2^32 (ACQ_CIRC_GEQ).
    pub fn first_acquire(&self) -> Option<Semaphore> {
        self.first_acquire
    }

    /// Returns whether the next segment begins with a header, so that others may be inserted before
    /// it.
    pub fn is_between_bursts(&self) -> bool {
        self.partial.is_none()
    }

    /// Returns the host's semaphore registers: address and payload, low halves first.
    pub fn semaphore_registers(&self) -> [u32; 4] {
        self.host
    }

    /// Reads the next segment of the channel and fills `calls`, in order.
    ///
    /// What is not understood is counted in `counters`.
    pub fn scan(&mut self, words: &[u32], calls: &mut [QmdCall], counters: &mut Counters) -> Scan {
        self.last_release = None;
        self.first_acquire = None;
        let Some(length) = u32::try_from(words.len())
            .ok()
            .filter(|length| *length <= SEGMENT_WORDS_MAX)
        else {
            counters.scan_segment(0);
            counters.keep(Reason::SegmentTooLong);
            self.partial = None;
            return Scan::default();
        };
        counters.scan_segment(length);
        self.uploads.clear();
        self.transfers.clear();
        let mut pass = Pass {
            words,
            table: Table::new(calls),
            counters,
        };
        let at = match self.may_use_fast_path() {
            true => self.fast_path(0, &mut pass),
            false => 0,
        };
        let mut refused = None;
        if at != length {
            (pass, refused) = self.walk(at, pass);
        }
        if self.uploads.may_store() {
            pass = self.report_stored(pass);
        }
        Scan {
            found: pass.table.len(),
            missed: pass.count_missed(),
            refused,
        }
    }

    /// Reads the words from `at` on burst by burst, where the fast path does not apply. Takes the
    /// pass and returns it, so that a caller that does not need this keeps it in registers.
    #[inline(never)]
    fn walk<'a, 'b>(&mut self, at: u32, mut pass: Pass<'a, 'b>) -> (Pass<'a, 'b>, Option<Refused>) {
        let mut walk = Walk::resume(pass.words, self.partial.take());
        walk.seek(at);
        let refused = loop {
            match walk.next() {
                Some(Ok(burst)) => self.burst(&burst, &mut pass),
                Some(Err(refused)) => break Some(refused),
                None => break None,
            }
            if walk.is_at_header() && self.may_use_fast_path() {
                let at = self.fast_path(walk.position(), &mut pass);
                walk.seek(at);
            }
        };
        self.partial = walk.partial();
        if let Some(refused) = refused {
            pass.counters.keep(refused.reason);
            self.forget_registers();
        }
        (pass, refused)
    }

    /// Returns whether the fast path applies where a header is next.
    #[inline(always)]
    fn may_use_fast_path(&self) -> bool {
        self.partial.is_none() && !self.is_plain()
    }

    /// Forgets all registers, after words that were not understood.
    fn forget_registers(&mut self) {
        self.transfers.forget();
        for subchannel in &mut self.subchannels {
            subchannel.forget();
        }
    }

    #[inline]
    fn burst(&mut self, burst: &Burst, pass: &mut Pass<'_, '_>) {
        let method = burst.method;
        if method < HOST_END {
            return self.host(burst, pass);
        }
        let Some(subchannel) = self.subchannels.get_mut(usize::from(burst.subchannel & 7)) else {
            return;
        };
        match subchannel.role {
            Role::Compute | Role::Upload => {}
            Role::Copy => return self.transfer_burst(burst, pass),
            Role::Other => return,
        }
        match burst.opcode {
            Opcode::NonIncr if method == methods::LOAD_INLINE_DATA => {
                self.uploads.data(burst.data, burst.count);
            }
            Opcode::Incr | Opcode::Immediate => self.registers(burst, pass),
            Opcode::NonIncr => self.repeated(burst, method, 0, pass),
            Opcode::OneIncr => {
                if burst.count != 0 {
                    self.write(burst, method, 0, pass);
                    self.repeated(burst, burst.method_of(1), 1, pass);
                }
            }
        }
    }

    /// Reads the words from `from` on, which all go to one method.
    fn repeated(&mut self, burst: &Burst, method: u16, from: u32, pass: &mut Pass<'_, '_>) {
        if method == methods::LOAD_INLINE_DATA {
            let data = burst.tail(from);
            return self.uploads.data(data.data, data.count);
        }
        if !subchannel::is_tracked(method) {
            return;
        }
        // Bounded by the burst's words, each of which is visited once.
        for index in from..burst.count {
            self.write(burst, method, index, pass);
        }
    }

    /// Reads words that go to one method after another.
    fn registers(&mut self, burst: &Burst, pass: &mut Pass<'_, '_>) {
        if burst.opcode == Opcode::Immediate {
            return self.write_value(burst, burst.method, u32::from(burst.immediate), true, pass);
        }
        if burst.method <= methods::LOAD_INLINE_QMD_DATA_LAST
            && burst.method_of(burst.count) > methods::LOAD_INLINE_QMD_DATA
        {
            return self.inline_burst(burst, pass);
        }
        // Bounded by the burst's words: each round goes on by one at least.
        let mut index = Sat(0);
        while index < Sat(burst.count) {
            let method = burst.method_of(index.0);
            if method > methods::SET_REPORT_SEMAPHORE_D && method < methods::CALL_MME_MACRO {
                // Nothing is tracked before the macros.
                index += u32::from((Sat(methods::CALL_MME_MACRO) - Sat(method)).0 / 4).max(1);
                continue;
            }
            if subchannel::is_tracked(method) {
                self.write(burst, method, index.0, pass);
            }
            index += 1;
        }
    }

    #[inline]
    fn write(&mut self, burst: &Burst, method: u16, index: u32, pass: &mut Pass<'_, '_>) {
        let at = burst.position_of(index);
        // Behind its own header; a burst that a host method or the last segment began has others.
        let alone = burst.count == 1
            && burst.missing == 0
            && Wrapping(burst.data) == Wrapping(burst.at) + Wrapping(1);
        if let Some(value) = pass.word(at) {
            if method == methods::LOAD_INLINE_DATA {
                return self.uploads.data(at, 1);
            }
            self.write_value(burst, method, value, alone, pass);
        }
    }

    /// Counts a method of a macro: its call, or one more word for it. CUDA fills an upload by the
    /// macro 0, called with the number of words.
    fn macro_called(&mut self, method: u16, value: u32, pass: &mut Pass<'_, '_>) {
        if method & methods::CALL_MME_DATA != 0 {
            return;
        }
        pass.counters.keep(if self.uploads.is_open() {
            Reason::MacroFill
        } else {
            Reason::Macro
        });
        if method == methods::CALL_MME_MACRO {
            self.uploads.fill(value);
        }
    }

    /// Writes one register of an engine. `alone` says that its burst does nothing else.
    fn write_value(
        &mut self,
        burst: &Burst,
        method: u16,
        value: u32,
        alone: bool,
        pass: &mut Pass<'_, '_>,
    ) {
        let Some(subchannel) = self.subchannels.get_mut(usize::from(burst.subchannel & 7)) else {
            return;
        };
        let action = match method {
            methods::LAUNCH_DMA => {
                subchannel.begin(&mut self.uploads, value);
                if self.uploads.has_evicted() {
                    self.report_evicted(pass);
                }
                return;
            }
            methods::SEND_SIGNALING_PCAS2_B => Action::of_pcas2(value),
            methods::SEND_SIGNALING_PCAS_B => Action::of_pcas(value),
            methods::SET_REPORT_SEMAPHORE_D | methods::REPORT_SEMAPHORE_EXECUTE => {
                subchannel.set(method, value);
                self.last_release = Some(subchannel.report(method, value));
                return;
            }
            methods::CALL_MME_MACRO.. => return self.macro_called(method, value, pass),
            // It is for queues, and what it does with another descriptor is not documented.
            methods::SEND_PCAS_B => Action::Undocumented4,
            methods::SET_MME_SHADOW_RAM_CONTROL => {
                if value & methods::SHADOW_RAM_MODE == methods::SHADOW_RAM_REPLAY {
                    pass.counters.keep(Reason::Macro);
                }
                return;
            }
            methods::SET_QMD_VIRTUALIZATION_CONTROL => {
                subchannel.set(method, value);
                if !subchannel.is_direct() {
                    pass.counters.keep(Reason::Virtualized);
                }
                return;
            }
            _ => return subchannel.set(method, value),
        };
        let call = Call {
            at: burst.at,
            end: burst.end(),
            subchannel: usize::from(burst.subchannel & 7),
            alone,
        };
        self.pcas(&call, action, pass);
    }
}

/// State of one scan.
struct Pass<'a, 'b> {
    words: &'a [u32],
    table: Table<'a>,
    counters: &'b mut Counters,
}

impl Pass<'_, '_> {
    #[inline]
    fn word(&self, at: u32) -> Option<u32> {
        self.words.get(usize::try_from(at).ok()?).copied()
    }

    /// Counts the calls that did not fit into the table.
    #[inline]
    fn count_missed(&mut self) -> usize {
        let missed = self.table.missed();
        // CAST: widening on every machine that has GPUs.
        self.counters.keep_all(Reason::TableFull, missed as u64);
        missed
    }

    /// Counts a call as a launch if it schedules.
    #[inline(always)]
    fn count_call(&mut self, action: Action, reason: Option<Reason>) {
        if action.schedules() {
            self.count_launch(reason);
        }
    }

    #[inline]
    fn count_launch(&mut self, reason: Option<Reason>) {
        self.counters.find_launch(reason);
    }
}
