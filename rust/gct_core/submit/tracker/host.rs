// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the methods that the host executes itself, on any subchannel: SET_OBJECT and semaphores.
//!
//! Of the acquires only one that begins a segment is kept, in the form that CUDA's have: the word
//! counts up, and has reached 32 bits of payload. What comes before other acquires may be what they
//! wait for.

use super::{Pass, Semaphore, Tracker, HOST_END};
use crate::submit::method::{Burst, Opcode};
use crate::submit::methods;
use crate::submit::qmd::Family;

/// The operation of SEM_EXECUTE that waits until a word that counts up has reached the payload.
const ACQ_CIRC_GEQ: u32 = 3;
/// The bit of SEM_EXECUTE that makes word and payload 64 bits wide.
const PAYLOAD_64BIT: u32 = 1 << 24;

/// Returns the host semaphore register of a method: address low and high, payload low and high.
fn host_register(method: u16) -> Option<usize> {
    match method {
        methods::SEMAPHOREB | methods::SEM_ADDR_LO => Some(0),
        methods::SEMAPHOREA | methods::SEM_ADDR_HI => Some(1),
        methods::SEMAPHOREC | methods::SEM_PAYLOAD_LO => Some(2),
        methods::SEM_PAYLOAD_HI => Some(3),
        _ => None,
    }
}

impl Tracker {
    /// Reads a burst that begins with host methods.
    pub(super) fn host(&mut self, burst: &Burst, pass: &mut Pass<'_, '_>) {
        if burst.opcode == Opcode::Immediate {
            return self.host_write(burst, burst.method, u32::from(burst.immediate));
        }
        let tracked = |method| method == methods::SET_OBJECT || host_register(method).is_some();
        if burst.opcode == Opcode::NonIncr && !tracked(burst.method) {
            return;
        }
        for index in 0..burst.count {
            let method = burst.method_of(index);
            if method >= HOST_END {
                // The rest goes to the engine.
                return self.burst(&burst.tail(index), pass);
            }
            if let Some(value) = pass.word(burst.position_of(index)) {
                self.host_write(burst, method, value);
            }
        }
    }

    fn host_write(&mut self, burst: &Burst, method: u16, value: u32) {
        if method == methods::SET_OBJECT {
            // CAST: the class is the low half.
            let object = value as u16;
            if let Some(subchannel) = self.subchannels.get_mut(usize::from(burst.subchannel & 7)) {
                subchannel.bind(object);
                self.transfers.forget();
            }
            if self.family == Family::Unknown {
                self.family = Family::of_class(object);
            }
            return;
        }
        if let Some(register) = host_register(method).and_then(|index| self.host.get_mut(index)) {
            *register = value;
        }
        let [low, high, payload, payload_high] = self.host;
        let semaphore = Semaphore {
            va: u64::from(high) << 32 | u64::from(low & !3),
            payload: u64::from(payload_high) << 32 | u64::from(payload),
            execute: value,
        };
        match (method, value & 7) {
            (methods::SEM_EXECUTE, 1 | 6) => self.last_release = Some(semaphore),
            (methods::SEM_EXECUTE, ACQ_CIRC_GEQ) if value & PAYLOAD_64BIT == 0 => {
                let begins = burst.opcode == Opcode::Incr && burst.data == 1;
                self.first_acquire = self.first_acquire.or(begins.then_some(semaphore));
            }
            (methods::SEMAPHORED, operation) if !matches!(operation, 1 | 4) => {
                self.last_release = Some(semaphore);
            }
            _ => {}
        }
    }
}
