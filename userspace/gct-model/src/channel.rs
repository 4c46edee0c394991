// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Models one channel: decodes methods into commands.

use std::collections::{BTreeMap, VecDeque};

use crate::command::{Command, Compare, Copy2d, Semaphore, Wait};
use crate::stream::{Decoder, Word, Write};
use crate::upload::Upload;

/// The engine behind a subchannel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Compute,
    Copies,
    Other,
}

/// Registers of one subchannel that the model reads back.
type Registers = BTreeMap<u32, u32>;

#[derive(Clone, Debug)]
pub(crate) struct Channel {
    decoder: Decoder,
    segments: VecDeque<VecDeque<u32>>,
    engines: [Engine; 8],
    registers: [Registers; 8],
    upload: Upload,
    inline: Vec<u32>,
    stopped: bool,
    pub(crate) wait: Option<Wait>,
    pub(crate) pending: Option<Command>,
    /// Number of PCAS with COPY so far. Grids of earlier epochs start first.
    pub(crate) epoch: u64,
}

const METHODS_KEPT: std::ops::Range<u32> = 0..0x2000;

impl Channel {
    pub(crate) fn new() -> Self {
        let mut engines = [Engine::Other; 8];
        // CUDA's subchannels, for streams that begin after SET_OBJECT.
        engines[1] = Engine::Compute;
        engines[4] = Engine::Copies;
        Self {
            decoder: Decoder::default(),
            segments: VecDeque::new(),
            engines,
            registers: Default::default(),
            upload: Upload::default(),
            inline: Vec::new(),
            stopped: false,
            wait: None,
            pending: None,
            epoch: 0,
        }
    }

    /// Queues a segment, unless the channel has stopped.
    pub(crate) fn push(&mut self, words: &[u32]) {
        if self.stopped {
            return;
        }
        self.segments.push_back(words.iter().copied().collect());
    }

    pub(crate) fn has_work(&self) -> bool {
        self.pending.is_some() || !self.segments.is_empty()
    }

    /// Consumes words until one yields a command.
    pub(crate) fn advance(&mut self) -> Option<Command> {
        loop {
            let segment = self.segments.front_mut()?;
            let Some(word) = segment.pop_front() else {
                self.segments.pop_front();
                continue;
            };
            let command = match self.decoder.feed(word) {
                Word::Header => None,
                Word::End => {
                    self.segments.pop_front();
                    None
                }
                Word::Unknown(operation) => {
                    // The following words are ambiguous, so the channel executes nothing more.
                    self.segments.clear();
                    self.stopped = true;
                    Some(Command::UnknownHeader(operation))
                }
                Word::Write(write) => self.write(write),
            };
            if command.is_some() {
                return command;
            }
        }
    }

    fn write(&mut self, write: Write) -> Option<Command> {
        // CAST: three bits.
        let index = (write.subchannel & 7) as usize;
        if METHODS_KEPT.contains(&write.method) {
            self.registers[index].insert(write.method, write.data);
        }
        if write.method == 0 {
            self.engines[index] = match write.data & 0xff {
                0xc0 => Engine::Compute,
                0xb5 => Engine::Copies,
                _ => Engine::Other,
            };
            return None;
        }
        if write.method < 0x100 {
            return self.host(index, write);
        }
        match self.engines[index] {
            Engine::Compute => self.compute(index, write),
            Engine::Copies => self.copy_engine(index, write),
            Engine::Other => None,
        }
    }

    fn register(&self, index: usize, method: u32) -> u32 {
        self.registers
            .get(index)
            .and_then(|registers| registers.get(&method))
            .copied()
            .unwrap_or(0)
    }

    /// Returns the address in two registers, the upper one first.
    fn pair(&self, index: usize, upper: u32, lower: u32) -> u64 {
        u64::from(self.register(index, upper)) << 32 | u64::from(self.register(index, lower))
    }

    fn host(&mut self, index: usize, write: Write) -> Option<Command> {
        match write.method {
            0x78 => Some(Command::WaitIdle),
            0x6c => Some(self.host_semaphore(
                self.pair(index, 0x60, 0x5c) & !3,
                self.register(index, 0x64),
                write.data,
            )),
            0x1c => {
                let address = self.pair(index, 0x10, 0x14) & !3;
                let payload = self.register(index, 0x18);
                let acquire = |compare| Command::Acquire {
                    address,
                    payload,
                    compare,
                };
                Some(match write.data & 0x1f {
                    1 => acquire(Compare::Equal),
                    2 => Command::Release(Semaphore {
                        address,
                        payload: u64::from(payload),
                        words: if write.data >> 24 & 1 == 1 { 1 } else { 4 },
                        reduction: None,
                        wait_idle: write.data >> 20 & 1 == 0,
                    }),
                    4 => acquire(Compare::AtLeastCircular),
                    8 => acquire(Compare::And),
                    _ => Command::Unmodelled(write.method),
                })
            }
            _ => None,
        }
    }

    fn host_semaphore(&self, address: u64, payload: u32, execute: u32) -> Command {
        let acquire = |compare| Command::Acquire {
            address,
            payload,
            compare,
        };
        match execute & 7 {
            0 => acquire(Compare::Equal),
            1 => Command::Release(Semaphore {
                address,
                payload: u64::from(payload),
                words: if execute >> 25 & 1 == 1 { 4 } else { 1 },
                reduction: None,
                wait_idle: execute >> 20 & 1 == 1,
            }),
            2 => acquire(Compare::AtLeast),
            3 => acquire(Compare::AtLeastCircular),
            4 => acquire(Compare::And),
            5 => acquire(Compare::Nor),
            _ => Command::Unmodelled(0x6c),
        }
    }

    fn compute(&mut self, index: usize, write: Write) -> Option<Command> {
        let data = write.data;
        match write.method {
            0x110 => Some(Command::WaitIdle),
            0x168 => {
                let address = self.pair(index, 0x164, 0x160);
                let payload = self.pair(index, 0x15c, 0x158);
                Some(report_semaphore(
                    write,
                    address,
                    payload,
                    [0, 5, 6, 7],
                    data >> 3 & 3,
                ))
            }
            0x1b0 => match self.upload.start(&self.registers[index], data) {
                true => None,
                false => Some(Command::Unmodelled(write.method)),
            },
            0x1b4 => {
                let (address, bytes) = self.upload.next()?;
                Some(Command::Store {
                    address,
                    data,
                    bytes,
                })
            }
            0x29c if data != 0 => Some(Command::Unmodelled(write.method)),
            // Its two bits INVALIDATE and SCHEDULE form the actions 1, 2 and 3.
            0x2bc => Some(Command::Pcas {
                qmd: self.pcas_address(index),
                action: data & 3,
            }),
            0x2c0 => Some(Command::Pcas {
                qmd: self.pcas_address(index),
                action: data & 0xf,
            }),
            0x318 => {
                self.inline.clear();
                None
            }
            0x320..=0x49c => self.inline_word(index, write),
            0x1b0c => {
                let address = self.pair(index, 0x1b00, 0x1b04);
                let payload = u64::from(self.register(index, 0x1b08));
                Some(report_semaphore(
                    write,
                    address,
                    payload,
                    [0, 2, 3, 9],
                    data >> 28,
                ))
            }
            _ => None,
        }
    }

    fn pcas_address(&self, index: usize) -> u64 {
        u64::from(self.register(index, 0x2b4)) << 8
    }

    /// Stores a word of an inline descriptor. The last word schedules the descriptor.
    fn inline_word(&mut self, index: usize, write: Write) -> Option<Command> {
        let upper = self.register(index, 0x318);
        let words = if upper >> 30 & 1 == 1 { 96 } else { 64 };
        // CAST: at most 95.
        let at = ((write.method - 0x320) / 4) as usize;
        if at != self.inline.len() || at >= words {
            self.inline.clear();
            return Some(Command::Unmodelled(write.method));
        }
        self.inline.push(write.data);
        (self.inline.len() == words).then(|| Command::Inline {
            qmd: (u64::from(upper & 0x1ff) << 32 | u64::from(self.register(index, 0x31c))) << 8,
            words: std::mem::take(&mut self.inline),
        })
    }

    fn copy_engine(&mut self, index: usize, write: Write) -> Option<Command> {
        if write.method != 0x300 {
            return None;
        }
        let data = write.data;
        let pitch = data >> 7 & 3 == 3;
        let plain = data >> 10 & 1 == 0 && data >> 12 & 3 == 0;
        let transfer = data & 3 != 0;
        if transfer && !(pitch && plain) {
            return Some(Command::Unmodelled(write.method));
        }
        let register = |method| u64::from(self.register(index, method));
        let copy = Copy2d {
            from: self.pair(index, 0x400, 0x404),
            to: self.pair(index, 0x408, 0x40c),
            pitch_in: register(0x410),
            pitch_out: register(0x414),
            line_bytes: if transfer { register(0x418) } else { 0 },
            lines: match data >> 9 & 1 {
                0 => 1,
                _ => register(0x41c),
            },
        };
        let release = |words| Semaphore {
            address: self.pair(index, 0x240, 0x244),
            payload: register(0x248),
            words,
            reduction: None,
            wait_idle: false,
        };
        let semaphore = match (data >> 19 & 1, data >> 3 & 3) {
            (0, 0) => None,
            (0, 1) => Some(release(1)),
            (0, 2) => Some(release(4)),
            _ => return Some(Command::Unmodelled(write.method)),
        };
        Some(Command::Copy(copy, semaphore))
    }
}

/// Decodes a release by the compute engine. `bits` are the positions of OPERATION, FLUSH_DISABLE,
/// REDUCTION_ENABLE and REDUCTION_OP; `size` is the value of STRUCTURE_SIZE.
fn report_semaphore(
    write: Write,
    address: u64,
    payload: u64,
    bits: [u32; 4],
    size: u32,
) -> Command {
    let [operation, flush_disable, reduction, reduction_op] = bits;
    if write.data >> operation & 3 != 0 {
        return Command::Unmodelled(write.method);
    }
    Command::Release(Semaphore {
        address,
        payload,
        words: match size & 3 {
            0 => 4,
            1 => 1,
            _ => 2,
        },
        reduction: (write.data >> reduction & 1 == 1).then_some(write.data >> reduction_op & 7),
        wait_idle: write.data >> flush_disable & 1 == 0,
    })
}
