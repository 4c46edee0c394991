// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executes compute launches (class HOPPER_COMPUTE_A) with `gct-model`, the model of the launch
//! hardware that also tests the submission core.
//!
//! No shader runs, but for lists of memory accesses ([`touch`](crate::touch)). A launch leaves its
//! effects in memory, such as semaphores, and a record of the blocks that ran and their mask. It
//! takes the time that [`LaunchTime`] gives its blocks, counted while its channel group has the
//! engine.

use crate::bits::Bits;
use crate::chip::{ChipDescription, LaunchTime};
use crate::faults::Place;
use crate::gmmu::{self, AddressSpace};
use crate::gsp::objects::ObjectKey;
use crate::host::execute::Work;
use crate::host::methods::Method;
use crate::host::tpcs::{Demand, FULL_SPEED};
use crate::kernels;
use crate::memory::PhysicalMemory;
use crate::recorder::Event;
use crate::touch::{Progress, Touch};
use gct_core::submit::method::incr;
use gct_model::{Anomaly, ChannelId, Config, Fault, GuestMemory, Machine};
use std::collections::btree_map::Entry;
use std::collections::BTreeMap;

/// The class of compute.
pub const HOPPER_COMPUTE_A: u32 = 0xcbc0;

/// The subchannel that the model uses for compute.
const SUBCHANNEL: u8 = 1;
/// Maximum number of words gathered before the model gets them.
const GATHERED_MAX: usize = 1 << 16;
/// Steps of the model that cost as much of a turn as one method.
const STEPS_PER_METHOD: u32 = 4;
/// Launches after which an idle model is replaced by a new one. This bounds its report.
const RUNS_KEPT: usize = 1024;
/// Maximum number of grids that a channel runs at a time: the resident grids of compute capability
/// 9.0.
const RUNNING_MAX: usize = 128;
/// Maximum number of waiting descriptors of a channel. Each step looks at all of them.
const HELD_MAX: usize = 1 << 12;
/// The only channel of a model.
const CHANNEL: ChannelId = ChannelId(0);
/// The byte offset of a method.
const METHOD: Bits = Bits::new(13, 0);

/// GPU memory, for the model. It owns the memory while the model runs.
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

/// Progress of the compute engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// All work is done.
    Done,
    /// The turn ended before the work did.
    Unfinished,
    /// Launches run.
    Running {
        /// Engine time until the first of them ends, in nanoseconds.
        left_ns: u64,
    },
    /// The engine waits for a semaphore.
    Blocked,
    /// An upload or a release faulted.
    Faulted {
        /// The address.
        va: u64,
    },
}

/// A launch whose time runs.
#[derive(Debug)]
pub(crate) struct Running {
    /// When it began.
    began_ns: u64,
    /// The time that it still needs with its TPCs for itself, in nanoseconds times [`FULL_SPEED`].
    /// 0 once it has ended.
    left: u64,
    /// What it asks of its TPCs.
    pub(crate) demand: Demand,
    /// Its speed among the launches that run now.
    pub(crate) speed: u64,
    /// What is left of its program. It ends with its time and its program.
    touch: Option<Touch>,
}

/// Returns how many times as long a block of a program takes as those of others: bits 30:18 of an
/// address in the upper half of the first 4 GiB, where CUDA has no programs.
fn length_of(program: u64) -> u64 {
    match program >> 31 {
        1 => (program >> 18 & 0x1fff).max(1),
        _ => 1,
    }
}

impl Running {
    /// Begins a launch of `blocks` blocks on `chip`, each `length` times as long as others, without
    /// the TPCs disabled in `mask`. A mask that disables all TPCs hangs the launch for ever, as
    /// measured on an H200.
    fn new(
        chip: &ChipDescription,
        began_ns: u64,
        (blocks, length): (u64, u64),
        mask: &[u32],
    ) -> Self {
        let LaunchTime { fixed_ns, block_ns } = chip.launch;
        let words = (0..4).zip(mask);
        let disabled = words.fold(0, |bits, (at, word)| bits | u128::from(*word) << (32 * at));
        let tpcs = chip.tpc_bits() & !disabled;
        let at_a_time = u64::from(tpcs.count_ones() * chip.sms_per_tpc);
        let left_ns = match blocks {
            0 => fixed_ns,
            _ if at_a_time == 0 => u64::MAX,
            _ => {
                let waves = blocks.div_ceil(at_a_time).saturating_mul(length);
                fixed_ns.saturating_add(waves.saturating_mul(block_ns))
            }
        };
        let part = FULL_SPEED * blocks.min(at_a_time);
        Self {
            began_ns,
            left: left_ns.saturating_mul(FULL_SPEED),
            demand: Demand {
                tpcs,
                part: part.checked_div(at_a_time).unwrap_or(0),
            },
            speed: FULL_SPEED,
            touch: None,
        }
    }

    /// Returns whether its time is over and its program has ended.
    fn is_over(&self) -> bool {
        self.left == 0 && self.touch.is_none()
    }

    /// Returns when it ends at its present speed, in nanoseconds from now.
    pub(crate) fn ends_in_ns(&self) -> u64 {
        self.left.div_ceil(self.speed)
    }

    fn pass(&mut self, ns: u64) {
        self.left = self.left.saturating_sub(ns.saturating_mul(self.speed));
    }
}

/// The compute engine's state of one channel.
#[derive(Default)]
pub struct Compute {
    words: Vec<u32>,
    machine: Option<Machine<Window>>,
    /// Whether the model may have work to do.
    active: bool,
    /// Launches that have begun and are not recorded yet, by their index in the model's report.
    launches: BTreeMap<usize, Running>,
    anomalies_logged: usize,
}

impl Compute {
    /// Gathers a method. Returns false if the buffer is full: call [`advance`](Self::advance)
    /// first.
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

    /// Executes the gathered methods, within the turn's budget.
    pub fn advance(&mut self, work: &mut Work<'_>, place: &Place) -> Advance {
        if let Err(gmmu::Fault { va }) = self.touch(work, place) {
            return Advance::Faulted { va };
        }
        let Place { space, channel, .. } = *place;
        if self.words.is_empty() && !self.active {
            return self.state(false);
        }
        let machine = self.machine.get_or_insert_with(|| {
            let config = Config {
                timed: true,
                running_max: RUNNING_MAX,
                held_max: HELD_MAX,
                ..Config::default()
            };
            Machine::new(
                Window {
                    memory: work.memory.without_video(),
                    space,
                },
                config,
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
            // Nothing is left to do. This only updates the report's list of blocked channels.
            machine.run();
        }
        std::mem::swap(&mut machine.memory().memory, work.memory);
        let blocked = !self.active && !machine.report().blocked.is_empty();
        // The next turn checks the semaphore again.
        self.active |= blocked;
        self.start(work, place);
        match self.record(work, channel) {
            Some(va) => Advance::Faulted { va },
            None => self.state(blocked),
        }
    }

    fn state(&self, blocked: bool) -> Advance {
        let running = self.launches.values().filter(|launch| launch.left > 0);
        let left_ns = running.map(Running::ends_in_ns).min();
        let touches = self.launches.values().filter_map(|it| it.touch.as_ref());
        let is_stalled = touches.clone().next().is_some();
        let mut touches = touches.map(Touch::progress);
        match left_ns {
            _ if self.active && !blocked => Advance::Unfinished,
            _ if touches.any(|progress| progress != Progress::Stalled) => Advance::Unfinished,
            Some(left_ns) => Advance::Running { left_ns },
            None if blocked || is_stalled => Advance::Blocked,
            None => Advance::Done,
        }
    }

    /// Continues the programs of running launches.
    fn touch(&mut self, work: &mut Work<'_>, place: &Place) -> Result<(), gmmu::Fault> {
        for launch in self.launches.values_mut() {
            if let Some(touch) = &mut launch.touch {
                if touch.advance(work, place)? == Progress::Done {
                    launch.touch = None;
                }
            }
        }
        self.finish();
        Ok(())
    }

    /// Ends launches that are over.
    fn finish(&mut self) {
        let Some(machine) = &mut self.machine else {
            return;
        };
        for (run, _) in self.launches.iter().filter(|(_, it)| it.is_over()) {
            machine.finish(*run);
            self.active = true;
        }
    }

    /// Starts the clock of launches that have begun, and their programs.
    fn start(&mut self, work: &Work<'_>, place: &Place) {
        let Some(machine) = &self.machine else {
            return;
        };
        for run in machine.running() {
            if let (Entry::Vacant(launch), Some(entry)) =
                (self.launches.entry(run), machine.report().runs.get(run))
            {
                let blocks = (entry.count(), length_of(entry.kernel.program));
                let mut running = Running::new(work.chip, work.now_ns, blocks, &entry.mask.0);
                let memory = &*work.memory;
                running.touch = Touch::read(memory, place, entry.kernel.program).or_else(|| {
                    kernels::accesses(memory, place, &entry.kernel, &entry.blocks).map(Touch::new)
                });
                launch.insert(running);
            }
        }
    }

    /// Returns whether launches have begun and not ended.
    pub fn runs(&self) -> bool {
        self.active || !self.launches.is_empty()
    }

    /// Charges `ns` of engine time to the channel's running launches.
    pub fn pass(&mut self, ns: u64) {
        for launch in self.launches.values_mut() {
            launch.pass(ns);
        }
        self.finish();
    }

    /// Returns the launches whose time runs.
    pub(crate) fn running(&mut self) -> impl Iterator<Item = &mut Running> {
        let launches = self.launches.values_mut();
        launches.filter(|launch| launch.left > 0)
    }

    /// Records launches that have ended, and logs anomalies that the model reported. Returns the
    /// address of a fault among them.
    fn record(&mut self, work: &Work<'_>, channel: ObjectKey) -> Option<u64> {
        let machine = self.machine.as_ref()?;
        let report = machine.report();
        self.launches.retain(|run, launch| {
            let ended = report.runs.get(*run).filter(|run| run.ended.is_some());
            if let Some(run) = ended {
                let event = Event::Launch {
                    channel,
                    began_ns: launch.began_ns,
                    program: run.kernel.program,
                    grid: run.grid,
                    blocks: &run.blocks,
                    group: run.group,
                    mask: &run.mask.0,
                };
                work.recorder.record(work.now_ns, &event);
            }
            ended.is_none()
        });
        let mut fault = None;
        for anomaly in report.anomalies.iter().skip(self.anomalies_logged) {
            self.anomalies_logged += 1;
            log::info!("compute, {channel:x?}: {anomaly}");
            if let Anomaly::Fault(va) = anomaly {
                fault = fault.or(Some(*va));
            }
        }
        let idle = !self.active && self.launches.is_empty() && report.waiting.is_empty();
        if idle && report.runs.len() > RUNS_KEPT {
            *self = Self::default();
        }
        fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_says_how_long_its_blocks_take() {
        assert_eq!([0x5000, 0x7fff_ffff, 3 << 31].map(length_of), [1; 3]);
        let programs = [0x8000_0000, 0x8008_0000, 0x8320_5000, 0xffff_ffff];
        assert_eq!(programs.map(length_of), [1, 2, 200, 0x1fff]);
        let chip = ChipDescription::gh100();
        let long = Running::new(&chip, 0, (133, 200), &[]);
        assert_eq!(long.ends_in_ns(), 4_002_000);
    }

    #[test]
    fn a_mask_makes_a_launch_longer() {
        let chip = ChipDescription::gh100();
        let duration_ns =
            |chip, blocks, mask: &[u32]| Running::new(chip, 0, (blocks, 1), mask).ends_in_ns();
        // 132 SMs in 66 TPCs.
        assert_eq!(duration_ns(&chip, 132, &[]), 12_000);
        assert_eq!(duration_ns(&chip, 133, &[0; 4]), 22_000);
        // Half of them.
        let half = [u32::MAX, 0b11, 0, 0];
        assert_eq!(
            [66, 67].map(|blocks| duration_ns(&chip, blocks, &half)),
            [12_000, 22_000]
        );
        // Mask bits of TPCs that do not exist change nothing.
        let others = [1 << 26, 1 << 3, !0x7f, u32::MAX];
        assert_eq!(duration_ns(&chip, 132, &others), 12_000);
        assert_eq!(duration_ns(&chip, 0, &[u32::MAX; 4]), 2_000);
        assert!(duration_ns(&chip, 1, &[u32::MAX; 4]) > 1 << 45);
    }
}
