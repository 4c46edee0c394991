// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Follows the registers of a channel's copy engine, and finds the transfers of a segment.

use super::{Pass, Semaphore, Tracker};
use crate::submit::method::{Burst, Opcode};
use crate::submit::transfer::{self, Registers, Transfer, LAUNCH_DMA};
use core::num::Wrapping;

/// The transfers of one segment that are remembered. Further ones stay whole.
const TRANSFERS_MAX: usize = 8;

/// The copy engine of one channel, and what the last segment had it do.
#[derive(Clone, Debug)]
pub(super) struct Transfers {
    /// The subchannel that the registers are those of.
    subchannel: u8,
    registers: Registers,
    found: [Option<Transfer>; TRANSFERS_MAX],
    count: usize,
    /// The bytes of all transfers of the segment.
    bytes: u64,
    /// The last release before the last of them.
    before: Option<Semaphore>,
    /// Whether an unknown semaphore was used, so that its registers must stay.
    borrows: bool,
}

impl Transfers {
    pub(super) const fn new() -> Self {
        Self {
            subchannel: 0,
            registers: Registers::UNKNOWN,
            found: [None; TRANSFERS_MAX],
            count: 0,
            bytes: 0,
            before: None,
            borrows: false,
        }
    }

    /// Begins another segment.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.count = 0;
        self.bytes = 0;
    }

    /// Forgets the registers.
    pub(super) fn forget(&mut self) {
        self.registers = Registers::UNKNOWN;
    }

    /// Uses the registers of a subchannel. Those of another one are unknown.
    fn turn_to(&mut self, subchannel: u8) {
        if self.subchannel != subchannel {
            self.subchannel = subchannel;
            self.borrows |= self.bytes > 0;
            self.forget();
        }
    }

    /// Starts what a LAUNCH_DMA says. `alone` are the positions of its header and of what follows,
    /// if the burst does nothing else. Returns the semaphore that it releases.
    fn launch(
        &mut self,
        launch: u32,
        alone: Option<(u32, u32)>,
        released: Option<Semaphore>,
    ) -> Option<Semaphore> {
        if transfer::moves(launch) {
            if self.bytes == 0 {
                self.borrows = false;
            }
            let place = alone.unwrap_or_default();
            let found = Transfer::new(place, self.subchannel, launch, self.registers);
            self.bytes = self.bytes.saturating_add(found.bytes().max(1));
            self.before = released;
            if alone.is_some() && found.is_divisible() {
                if let Some(slot) = self.found.get_mut(self.count) {
                    *slot = Some(found);
                    self.count = self.count.wrapping_add(1);
                }
            }
        }
        let known = self.registers.knows_semaphore();
        self.borrows |= transfer::uses_semaphore(launch) && !known;
        if !(known && transfer::releases(launch)) {
            return None;
        }
        let (va, payload) = self.registers.semaphore();
        Some(Semaphore {
            va,
            payload: payload.into(),
            execute: launch,
        })
    }
}

impl Tracker {
    /// Reads a burst for the copy engine.
    pub(super) fn transfer_burst(&mut self, burst: &Burst, pass: &mut Pass<'_, '_>) {
        self.transfers.turn_to(burst.subchannel);
        if burst.opcode == Opcode::Immediate {
            let alone = Some((burst.at, burst.end()));
            return self.transfer_write(burst.method, burst.immediate.into(), alone);
        }
        let alone = burst.count == 1
            && burst.missing == 0
            && Wrapping(burst.data) == Wrapping(burst.at) + Wrapping(1);
        let alone = alone.then(|| (burst.at, burst.end()));
        // Bounded by the burst's words, each of which is visited once.
        for index in 0..burst.count {
            if let Some(value) = pass.word(burst.position_of(index)) {
                self.transfer_write(burst.method_of(index), value, alone);
            }
        }
    }

    fn transfer_write(&mut self, method: u16, value: u32, alone: Option<(u32, u32)>) {
        if method != LAUNCH_DMA {
            return self.transfers.registers.set(method, value);
        }
        let release = self.transfers.launch(value, alone, self.last_release);
        self.last_release = release.or(self.last_release);
    }

    /// Returns how many bytes the copies of the last segment move; 0 if it has none.
    pub fn transfer_bytes(&self) -> u64 {
        self.transfers.bytes
    }

    /// Returns the first transfers of the last segment that can be divided, in order. There are
    /// none if the registers could not be restored behind a piece.
    pub fn transfers(&self) -> &[Option<Transfer>] {
        let transfers = &self.transfers;
        let settled = transfers.registers.knows_semaphore() && !transfers.borrows;
        let count = if settled { transfers.count } else { 0 };
        transfers.found.get(..count).unwrap_or_default()
    }

    /// Returns the last release of the last segment, if it is behind all of its transfers.
    pub fn transfer_release(&self) -> Option<Semaphore> {
        let release = self.last_release;
        release.filter(|_| release != self.transfers.before)
    }
}
