// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compute launches (class HOPPER_COMPUTE_A), executed by the model of the
//! launch hardware that the submission core is tested with.
//!
//! No shader runs. What a launch leaves behind is its effects in memory, such
//! as semaphores, and a record of which blocks ran under which mask. It takes no
//! time.

use crate::bits::Bits;
use crate::gmmu::AddressSpace;
use crate::gsp::objects::ObjectKey;
use crate::host::execute::Work;
use crate::host::methods::Method;
use crate::memory::PhysicalMemory;
use crate::recorder::Event;
use gct_core::submit::method::incr;
use gct_model::{ChannelId, Config, Fault, GuestMemory, Machine};

/// The class.
pub const HOPPER_COMPUTE_A: u32 = 0xcbc0;

/// The subchannel that the model takes for compute.
const SUBCHANNEL: u8 = 1;
/// Words that are gathered before the model gets them.
const GATHERED_MAX: usize = 1 << 16;
/// Steps of the model that count as much as one method.
const STEPS_PER_METHOD: u32 = 4;
/// Launches after which a model that waits for nothing is replaced by a new
/// one, so that what it remembers does not grow.
const RUNS_KEPT: usize = 1024;
/// The one channel of a model.
const CHANNEL: ChannelId = ChannelId(0);
/// The byte offset of a method.
const METHOD: Bits = Bits::new(13, 0);

/// GPU memory as the model wants to see it. It owns the memory while it runs.
struct Window {
    memory: PhysicalMemory,
    space: AddressSpace,
}

impl GuestMemory for Window {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.space
            .read(&self.memory, address, into)
            .map_err(|fault| Fault { address: fault.va })
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Fault> {
        self.space
            .write(&mut self.memory, address, from)
            .map_err(|fault| Fault { address: fault.va })
    }
}

/// The compute engine's state of one channel.
#[derive(Default)]
pub struct Compute {
    words: Vec<u32>,
    machine: Option<Machine<Window>>,
    /// Whether the model may have something to do.
    active: bool,
    runs_recorded: usize,
    anomalies_logged: usize,
}

impl Compute {
    /// Gathers a method. Returns whether there was room; if not, let it
    /// [`advance`](Self::advance) first.
    pub fn push(&mut self, method: Method) -> bool {
        if self.words.len() >= GATHERED_MAX {
            return false;
        }
        // CAST: the mask keeps 14 bits.
        let offset = METHOD.of(u64::from(method.method)) as u16;
        self.words
            .extend([incr(SUBCHANNEL, offset, 1), method.data]);
        true
    }

    /// Executes what was gathered, as far as the turn allows. Returns whether
    /// all of it is done.
    pub fn advance(
        &mut self,
        work: &mut Work<'_>,
        space: AddressSpace,
        channel: ObjectKey,
    ) -> bool {
        if self.words.is_empty() && !self.active {
            return true;
        }
        let machine = self.machine.get_or_insert_with(|| {
            Machine::new(
                Window {
                    memory: work.memory.without_video(),
                    space,
                },
                Config::default(),
            )
        });
        machine.submit(CHANNEL, &std::mem::take(&mut self.words));
        machine.memory().space = space;
        std::mem::swap(&mut machine.memory().memory, work.memory);
        self.active = true;
        while self.active && work.methods > 0 {
            self.active = (0..STEPS_PER_METHOD).all(|_| machine.step());
            work.methods -= 1;
        }
        if !self.active {
            // Nothing is left to do: this only finds out what still waits.
            machine.run();
        }
        std::mem::swap(&mut machine.memory().memory, work.memory);
        self.record(work, channel);
        !self.active
    }

    /// Records launches that have ended, and logs what the model did not
    /// understand.
    fn record(&mut self, work: &Work<'_>, channel: ObjectKey) {
        let Some(machine) = &self.machine else {
            return;
        };
        let report = machine.report();
        for run in report
            .runs
            .iter()
            .skip(self.runs_recorded)
            .take_while(|run| run.ended.is_some())
        {
            self.runs_recorded += 1;
            let event = Event::Launch {
                channel,
                grid: run.grid,
                blocks: &run.blocks,
                mask: &run.mask.0,
            };
            work.recorder.record(work.clock.now_ns(), &event);
        }
        for anomaly in report.anomalies.iter().skip(self.anomalies_logged) {
            self.anomalies_logged += 1;
            log::info!("compute, {channel:x?}: {anomaly}");
        }
        if !self.active && report.waiting.is_empty() && report.runs.len() > RUNS_KEPT {
            *self = Self::default();
        }
    }
}
