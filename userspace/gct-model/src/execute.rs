// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Applies commands to memory and to the scheduler.

use crate::command::{Command, Copy2d, Semaphore, Wait};
use crate::machine::Machine;
use crate::memory::{Fault, GuestMemory};
use crate::report::{Act, Anomaly, ChannelId, Effect};

const COPY_PIECE_BYTES: u64 = 4096;

impl<M: GuestMemory> Machine<M> {
    pub(crate) fn execute(&mut self, channel: ChannelId, command: Command) {
        match command {
            Command::Store {
                address,
                data,
                bytes,
            } => {
                let data = data.to_le_bytes();
                let done = self
                    .memory
                    .write(address, data.get(..bytes).unwrap_or(&data));
                self.note_fault(done);
            }
            Command::Pcas { qmd, action } => self.pcas(channel, qmd, action),
            Command::Inline { qmd, words } => {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                let done = self.memory.write(qmd, &bytes);
                self.note_fault(done);
                // An inline descriptor is scheduled as with COPY: its RESUME is ignored.
                self.pcas(channel, qmd, 0xa);
            }
            Command::Release(semaphore) if semaphore.wait_idle => self.wait(
                channel,
                Wait::Idle,
                Some(Command::Release(Semaphore {
                    wait_idle: false,
                    ..semaphore
                })),
            ),
            Command::Release(semaphore) => self.release_by_method(semaphore),
            Command::Acquire {
                address,
                payload,
                compare,
            } => self.wait(
                channel,
                Wait::Memory {
                    address,
                    payload,
                    compare,
                },
                None,
            ),
            Command::WaitIdle => self.wait(channel, Wait::Idle, None),
            Command::Copy(copy, semaphore) => {
                self.copy(copy);
                if let Some(semaphore) = semaphore {
                    self.release_by_method(semaphore);
                }
            }
            Command::Unmodelled(method) => self.report.note(Anomaly::Unmodelled(method)),
            Command::UnknownHeader(operation) => {
                self.report.note(Anomaly::UnknownHeader(operation));
            }
        }
    }

    pub(crate) fn note_fault(&mut self, done: Result<(), Fault>) {
        if let Err(Fault { address }) = done {
            self.report.note(Anomaly::Fault(address));
        }
    }

    pub(crate) fn act(&mut self, by: Option<usize>, act: Act) {
        if self.report.effects.len() >= self.config.effects_max {
            self.report.note(Anomaly::Bound("effects"));
            return;
        }
        self.clock += 1;
        self.report.effects.push(Effect {
            at: self.clock,
            by,
            act,
        });
    }

    fn release_by_method(&mut self, semaphore: Semaphore) {
        let Semaphore {
            address,
            payload,
            words,
            reduction,
            ..
        } = semaphore;
        self.act(None, Act::Semaphore(address, payload));
        self.store_release(address, payload, words, reduction);
    }

    /// Writes the result of a release to memory. The time stamp of a four-word release is written
    /// as zero, so that two runs can be compared.
    pub(crate) fn store_release(
        &mut self,
        address: u64,
        payload: u64,
        words: u32,
        reduction: Option<u32>,
    ) {
        let [low, high] = [payload & 0xffff_ffff, payload >> 32].map(|half| {
            // CAST: 32 bits each.
            half as u32
        });
        let done = match (reduction, words) {
            (Some(op), _) => self
                .memory
                .read_u32(address)
                .and_then(|old| self.memory.write_u32(address, reduced(op, old, low))),
            (None, 1) => self.memory.write_u32(address, low),
            (None, 2) => self
                .memory
                .write_u32(address, low)
                .and_then(|()| self.memory.write_u32(address.wrapping_add(4), high)),
            (None, _) => [low, high, 0, 0]
                .into_iter()
                .zip((0..).step_by(4))
                .try_for_each(|(word, at)| self.memory.write_u32(address.wrapping_add(at), word)),
        };
        self.note_fault(done);
    }

    fn copy(&mut self, copy: Copy2d) {
        let bytes = copy.line_bytes.saturating_mul(copy.lines);
        if bytes == 0 {
            return;
        }
        self.act(None, Act::Copy(copy.from, copy.to, bytes));
        if bytes > self.config.copy_bytes_max {
            self.report.note(Anomaly::Bound("bytes of a copy"));
            return;
        }
        for line in 0..copy.lines {
            let from = copy.from.wrapping_add(line.wrapping_mul(copy.pitch_in));
            let to = copy.to.wrapping_add(line.wrapping_mul(copy.pitch_out));
            let done = self.copy_line(from, to, copy.line_bytes);
            if done.is_err() {
                self.note_fault(done);
                return;
            }
        }
    }

    fn copy_line(&mut self, from: u64, to: u64, bytes: u64) -> Result<(), Fault> {
        let mut buffer = [0; COPY_PIECE_BYTES as usize];
        let mut done = 0;
        while done < bytes {
            let piece = (bytes - done).min(COPY_PIECE_BYTES);
            // CAST: at most COPY_PIECE_BYTES.
            let buffer = &mut buffer[..piece as usize];
            self.memory.read(from.wrapping_add(done), buffer)?;
            self.memory.write(to.wrapping_add(done), buffer)?;
            done += piece;
        }
        Ok(())
    }
}

/// Applies `RED_*` of the class headers, unsigned.
fn reduced(op: u32, old: u32, payload: u32) -> u32 {
    match op {
        0 => old.wrapping_add(payload),
        1 => old.min(payload),
        2 => old.max(payload),
        3 if old >= payload => 0,
        3 => old + 1,
        4 if old == 0 || old > payload => payload,
        4 => old - 1,
        5 => old & payload,
        6 => old | payload,
        _ => old ^ payload,
    }
}
