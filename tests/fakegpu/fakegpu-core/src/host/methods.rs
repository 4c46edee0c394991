// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes pushbuffers into methods, and executes the host's own.

use crate::bits::{low_u32, Bits};
use crate::gmmu::{AddressSpace, Fault};
use crate::host::execute::Work;
use crate::host::replay::MemoryOperation;
use crate::host::semaphore::{sem_execute, Reduction, Semaphore, Width};
use gct_core::submit::method::{Opcode, PartialBurst, Walk};
use std::collections::VecDeque;

/// Methods below this one belong to the host, on every subchannel.
pub const FIRST_ENGINE_METHOD: u16 = 0x100;

/// NVC86F_* methods.
mod nvc86f {
    pub(super) const SET_OBJECT: u16 = 0x0000;
    pub(super) const NON_STALL_INTERRUPT: u16 = 0x0020;
    pub(super) const MEM_OP_A: u16 = 0x0028;
    pub(super) const MEM_OP_B: u16 = 0x002c;
    pub(super) const MEM_OP_C: u16 = 0x0030;
    pub(super) const MEM_OP_D: u16 = 0x0034;
    pub(super) const SEM_ADDR_LO: u16 = 0x005c;
    pub(super) const SEM_ADDR_HI: u16 = 0x0060;
    pub(super) const SEM_PAYLOAD_LO: u16 = 0x0064;
    pub(super) const SEM_PAYLOAD_HI: u16 = 0x0068;
    pub(super) const SEM_EXECUTE: u16 = 0x006c;
}

/// One command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// The subchannel, 0 to 7.
    pub subchannel: u8,
    /// Its byte offset.
    pub method: u16,
    /// Its data.
    pub data: u32,
}

/// Decodes a pushbuffer segment. `partial` is the unfinished burst of the channel's previous
/// segment, and receives that of this one.
pub fn decode(words: &[u32], partial: &mut Option<PartialBurst>) -> VecDeque<Method> {
    let mut methods = VecDeque::new();
    let mut walk = Walk::resume(words, partial.take());
    for burst in walk.by_ref() {
        let burst = match burst {
            Ok(burst) => burst,
            Err(refused) => {
                log::warn!(
                    "pushbuffer: header {:#x} is not understood: {:?}",
                    refused.header,
                    refused.reason
                );
                break;
            }
        };
        let method = |index, data| Method {
            subchannel: burst.subchannel,
            method: burst.method_of(index),
            data,
        };
        if burst.opcode == Opcode::Immediate {
            methods.push_back(method(0, u32::from(burst.immediate)));
            continue;
        }
        let data = usize::try_from(burst.data)
            .ok()
            .and_then(|data| words.get(data..))
            .unwrap_or(&[]);
        methods.extend(
            (0..burst.count)
                .zip(data)
                .map(|(index, data)| method(index, *data)),
        );
    }
    *partial = walk.partial();
    methods
}

/// The outcome of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// The method is done.
    Done,
    /// The method has to wait and be tried again.
    Blocked,
}

/// The host's state of one channel.
#[derive(Clone, Debug, Default)]
pub struct HostMethods {
    semaphore_va: u64,
    payload: u64,
    classes: [u32; 8],
    /// MEM_OP_A to MEM_OP_C.
    operation: MemoryOperation,
}

/// The class in the data of SET_OBJECT.
const SET_OBJECT_CLASS: Bits = Bits::new(15, 0);
/// The two halves of a 64-bit register.
const LOW: Bits = Bits::new(31, 0);
const HIGH: Bits = Bits::new(63, 32);

impl HostMethods {
    /// Returns the class set on `subchannel`; zero if there is none.
    pub fn class(&self, subchannel: u8) -> u32 {
        self.classes[usize::from(subchannel % 8)]
    }

    /// Executes one of the host's methods. Barriers and waits do nothing: execution is in order.
    ///
    /// # Errors
    /// [`Fault`] if a semaphore is not in memory.
    pub fn execute(
        &mut self,
        work: &mut Work<'_>,
        space: AddressSpace,
        method: Method,
    ) -> Result<Executed, Fault> {
        let data = u64::from(method.data);
        match method.method {
            nvc86f::SET_OBJECT => {
                self.classes[usize::from(method.subchannel % 8)] =
                    low_u32(SET_OBJECT_CLASS.of(data));
            }
            nvc86f::NON_STALL_INTERRUPT => work.non_stall_interrupt(),
            nvc86f::MEM_OP_A => self.operation.a = data,
            nvc86f::MEM_OP_B => self.operation.b = data,
            nvc86f::MEM_OP_C => self.operation.c = data,
            nvc86f::MEM_OP_D => self.operation.execute(work, data),
            nvc86f::SEM_ADDR_LO => self.semaphore_va = LOW.put(self.semaphore_va, data & !3),
            nvc86f::SEM_ADDR_HI => {
                self.semaphore_va = HIGH.put(self.semaphore_va, data & 0x1ff_ffff)
            }
            nvc86f::SEM_PAYLOAD_LO => self.payload = LOW.put(self.payload, data),
            nvc86f::SEM_PAYLOAD_HI => self.payload = HIGH.put(self.payload, data),
            nvc86f::SEM_EXECUTE => return self.semaphore(work, space, data),
            _ => {}
        }
        Ok(Executed::Done)
    }

    fn semaphore(
        &self,
        work: &mut Work<'_>,
        space: AddressSpace,
        execute: u64,
    ) -> Result<Executed, Fault> {
        let width = if sem_execute::PAYLOAD_SIZE_64.of(execute) == 1 {
            Width::Bits64
        } else {
            Width::Bits32
        };
        let semaphore = Semaphore {
            space,
            va: self.semaphore_va,
            width,
        };
        let operation = sem_execute::OPERATION.of(execute);
        if !matches!(operation, sem_execute::RELEASE | sem_execute::REDUCTION) {
            let satisfied = semaphore.satisfied(work.memory, operation, self.payload)?;
            return Ok(if satisfied {
                Executed::Done
            } else {
                Executed::Blocked
            });
        }
        let reduction = (operation == sem_execute::REDUCTION).then(|| Reduction {
            operation: sem_execute::REDUCTION_OPERATION.of(execute),
            signed: sem_execute::REDUCTION_UNSIGNED.of(execute) == 0,
        });
        let timestamp_ns =
            (sem_execute::RELEASE_TIMESTAMP.of(execute) == 1).then(|| work.clock.now_ns());
        semaphore.release(work.memory, self.payload, reduction, timestamp_ns)?;
        Ok(Executed::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gct_core::submit::method;
    use proptest::prelude::*;

    #[test]
    fn a_burst_may_cross_segments() {
        let mut partial = None;
        let first = decode(&[method::incr(4, 0x400, 3), 1], &mut partial);
        assert_eq!(
            first,
            [Method {
                subchannel: 4,
                method: 0x400,
                data: 1
            }]
        );
        let second = decode(&[2, 3, method::immediate(0, 0x20, 7)], &mut partial);
        let expected = [(4, 0x404, 2), (4, 0x408, 3), (0, 0x20, 7)];
        assert_eq!(
            second,
            expected.map(|(subchannel, method, data)| Method {
                subchannel,
                method,
                data
            })
        );
        assert_eq!(partial, None);
    }

    proptest! {
        #[test]
        fn any_words(words in prop::collection::vec(any::<u32>(), 0..64)) {
            let mut partial = None;
            prop_assert!(decode(&words, &mut partial).len() <= words.len());
            decode(&words, &mut partial);
        }
    }
}
