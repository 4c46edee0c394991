// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Looks once a second at how much each process depends on the clock of its GPU, and has the clock
//! changed (`slip.power`). Only a daemon that was started with `--clocks` does.
//!
//! A process reports its own times, and can report anything. Its wish lowers the clock only as far
//! as all others on the GPU wish it to be.

use super::Daemon;
use crate::clocks::{self, Order, Report, Worker};
use crate::timer::Timer;
use gct_core::ids::{GpuId, Owner, ProcKey};
use gct_core::policy::clock::{self, Clock, Controller};
use gct_core::records::{Asks, GpuClock};
use gct_core::state::State;
use gct_core::units::{Mhz, Percent};
use rustix::fd::{AsFd, BorrowedFd};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Looks before the clock is changed again after the driver has refused.
const REST: u32 = 300;

/// The name of the server of MPS, as `/proc` cuts it. It has a context and no work of its own.
const MPS_SERVER: &str = "nvidia-cuda-mps";

/// A GPU whose clock can be changed.
#[derive(Debug)]
struct Gpu {
    gpu: GpuId,
    /// Its clocks in MHz, from the lowest one.
    supported: Vec<u32>,
    controller: Controller,
    /// The clock that was ordered last, and whether the order was carried out.
    clock: Clock,
    ordered: bool,
    shown: GpuClock,
    /// The processes with a context; `None` while they cannot be seen.
    processes: Option<Vec<u32>>,
    /// Whether that was said, and whether they are being listed.
    blind: bool,
    listing: bool,
    /// Looks until the next change, after a refusal.
    pause: u32,
}

/// What a process asks for.
struct Wish {
    proc: ProcKey,
    clock: Option<Clock>,
    sensitivity: u64,
}

/// The clocks of all GPUs.
#[derive(Debug)]
pub(super) struct Clocks {
    worker: Option<Worker>,
    timer: Timer,
    gpus: BTreeMap<u32, Gpu>,
}

impl Clocks {
    /// Creates it. It does nothing unless clocks may be changed.
    ///
    /// # Errors
    ///
    /// Those of `timerfd_create`.
    pub(super) fn new(may_change: bool) -> rustix::io::Result<Self> {
        let clocks = Self {
            worker: may_change.then(|| Worker::start(clocks::open)),
            timer: Timer::new()?,
            gpus: BTreeMap::new(),
        };
        if may_change {
            clocks.timer.every(LOOK_INTERVAL);
        }
        Ok(clocks)
    }

    /// Returns the timer for [`Daemon::look_at_clocks`].
    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Looks for the clocks of a new GPU.
    pub(super) fn find(&self, rm_id: u32, pci: String) {
        self.order(rm_id, Order::Find(pci));
    }

    /// Returns whether the clock of a GPU can be changed.
    pub(super) fn has(&self, rm_id: u32) -> bool {
        self.gpus.contains_key(&rm_id)
    }

    fn order(&self, rm_id: u32, order: Order) {
        if let Some(worker) = &self.worker {
            worker.order(rm_id, order);
        }
    }
}

impl Gpu {
    fn new(gpu: GpuId, supported: Vec<u32>, shown: GpuClock) -> Self {
        Self {
            gpu,
            supported,
            controller: Controller::new(),
            clock: Clock::FULL,
            ordered: false,
            shown,
            processes: None,
            blind: false,
            listing: false,
            pause: 0,
        }
    }

    /// Returns a clock of so many MHz.
    fn clock_of(&self, mhz: u32) -> Option<Clock> {
        Clock::new(u64::from(mhz) * Clock::FULL.get() / u64::from(self.shown.highest.get()))
    }

    /// Returns the MHz of a clock that it has.
    fn mhz_of(&self, clock: Clock) -> Mhz {
        let at = |mhz: &&u32| self.clock_of(**mhz) >= Some(clock);
        Mhz(*self
            .supported
            .iter()
            .find(at)
            .unwrap_or(&self.shown.highest.get()))
    }

    /// Takes over what came of an order.
    fn hear(&mut self, report: Report) {
        match report {
            Report::Found(_) => {}
            Report::Changed => {
                self.ordered = false;
                self.shown.changes += 1;
                self.shown.now = self.mhz_of(self.clock);
            }
            Report::Refused(error) => {
                let rest = LOOK_INTERVAL * REST;
                tracing::warn!("cannot change the clock: {error}; trying again in {rest:?}");
                (self.ordered, self.clock, self.pause) = (false, Clock::FULL, REST);
                self.controller = Controller::new();
                self.shown.errors += 1;
                self.shown.now = self.shown.highest;
            }
            Report::Processes(Ok(processes)) => {
                (self.processes, self.blind, self.listing) = (Some(processes), false, false);
            }
            Report::Processes(Err(error)) => {
                self.listing = false;
                if !std::mem::replace(&mut self.blind, true) {
                    tracing::warn!("the clock stays high, for unseen processes: {error}");
                }
                self.processes = None;
            }
        }
    }

    /// Returns whether somebody uses the GPU whom the daemon does not know.
    fn has_strangers(&self, known: &BTreeSet<u32>) -> bool {
        let Some(processes) = &self.processes else {
            return true;
        };
        let stranger = |pid: &&u32| !known.contains(pid) && !is_mps_server(**pid);
        processes.iter().any(|pid| stranger(&pid))
    }

    /// Returns what each owner asks for: the highest of what its processes do.
    fn asks(&self, wishes: &[Wish], state: &State<'_>) -> BTreeMap<Owner, Asks> {
        let mut all: BTreeMap<Owner, Asks> = BTreeMap::new();
        for wish in wishes {
            let group = state.group_of(wish.proc).map(Owner::Group);
            let clock = wish.clock.map_or(Mhz(0), |clock| self.mhz_of(clock));
            for owner in [Some(Owner::Proc(wish.proc)), group].into_iter().flatten() {
                let asks = all.entry(owner).or_default();
                asks.clock = asks.clock.max(clock);
                asks.sensitivity = asks.sensitivity.max(wish.sensitivity);
            }
        }
        all
    }

    /// Returns the next clock, if it is another one.
    fn decide(&mut self, wishes: &[Wish]) -> Option<Clock> {
        if self.ordered || self.pause > 0 {
            return self.wait();
        }
        let pids = wishes.iter().map(|wish| wish.proc.tgid).collect();
        let wishes = wishes.iter().map(|wish| wish.clock);
        let wish = clock::of_all(wishes, self.has_strangers(&pids));
        let supported = self.supported.iter().filter_map(|mhz| self.clock_of(*mhz));
        let mut controller = self.controller;
        let next = controller.look(wish, self.clock, supported);
        self.controller = controller;
        (next != self.clock).then_some(next)
    }

    /// Returns the highest clock, if it is not in force although nobody has a slip.
    fn rest(&mut self) -> Option<Clock> {
        self.controller = Controller::new();
        self.processes = None;
        if self.ordered || self.pause > 0 {
            return self.wait();
        }
        (self.clock != Clock::FULL).then_some(Clock::FULL)
    }

    /// Waits for an order, or after a refusal. A clock that could not be given back then is tried
    /// again.
    fn wait(&mut self) -> Option<Clock> {
        if self.ordered {
            return None;
        }
        self.pause -= 1;
        (self.pause == 0).then_some(Clock::FULL)
    }
}

/// Returns whether a process is the server of MPS, whose clients the daemon knows.
fn is_mps_server(pid: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.trim_end() == MPS_SERVER)
}

impl Daemon {
    /// Looks at the clocks of all GPUs once the timer has expired.
    pub(crate) fn look_at_clocks(&mut self) {
        // Clears the event. Looks that were missed do not matter.
        let _ = self.clocks.timer.has_expired();
        while let Some((rm_id, report)) = self.clocks.worker.as_ref().and_then(Worker::report) {
            self.hear_of_clock(rm_id, report);
        }
        let numbers: Vec<u32> = self.clocks.gpus.keys().copied().collect();
        for rm_id in numbers {
            self.look_at_clock(rm_id);
        }
    }

    fn hear_of_clock(&mut self, rm_id: u32, report: Report) {
        if let Some(gpu) = self.clocks.gpus.get_mut(&rm_id) {
            return gpu.hear(report);
        }
        let Report::Found(supported) = report else {
            return;
        };
        let (Some(lowest), Some(highest)) = (supported.first(), supported.last()) else {
            return;
        };
        tracing::info!(lowest, highest, "the clock of a GPU can be changed, in MHz");
        let clock = GpuClock {
            told: Some(Clock::FULL),
            now: Mhz(*highest),
            highest: Mhz(*highest),
            ..GpuClock::default()
        };
        if let Some(gpu) = self.tables.state().gpu_has_clocks(rm_id, clock) {
            self.clocks
                .gpus
                .insert(rm_id, Gpu::new(gpu, supported, clock));
        }
    }

    /// Looks at one GPU.
    fn look_at_clock(&mut self, rm_id: u32) {
        let Some(known) = self.clocks.gpus.get(&rm_id) else {
            return;
        };
        let (gpu, clock, mixed) = (known.gpu, known.clock, known.shown.told.is_none());
        let wishes = self.wishes(gpu, clock, mixed);
        let mut state = self.tables.state();
        let slips = state.has_power_slip(gpu);
        let Some(known) = self.clocks.gpus.get_mut(&rm_id) else {
            return;
        };
        let mut asks = BTreeMap::new();
        let next = match slips {
            true => {
                asks = known.asks(&wishes, &state);
                known.decide(&wishes)
            }
            false => known.rest(),
        };
        if let Some(next) = next {
            (known.clock, known.ordered) = (next, true);
        }
        let told = (!known.ordered).then_some(known.clock);
        let changed = std::mem::replace(&mut known.shown.told, told) != told;
        state.set_clock(gpu, known.shown);
        state.set_asks(gpu, &|owner| asks.get(&owner).copied().unwrap_or_default());
        let lists = slips && !std::mem::replace(&mut known.listing, true);
        let mhz = known.mhz_of(known.clock).get();
        if lists {
            self.clocks.order(rm_id, Order::List);
        }
        match next {
            Some(Clock::FULL) => self.clocks.order(rm_id, Order::Release),
            Some(_) => self.clocks.order(rm_id, Order::Keep(mhz)),
            None => {}
        }
        if changed {
            self.apply_effects();
        }
    }

    /// Returns what each process on a GPU asks for, whose clock was `clock` since the last look, or
    /// was changed.
    fn wishes(&mut self, gpu: GpuId, clock: Clock, mixed: bool) -> Vec<Wish> {
        let state = self.tables.state();
        let mut wishes = Vec::new();
        self.tenants
            .look_at_clocks(gpu, mixed, |proc, demand, unmanaged| {
                let slip = state.effective(proc, gpu).power_slip_in_force();
                let sensitivity = demand.sensitivity(clock).filter(|_| slip > Percent(0));
                wishes.push(Wish {
                    proc,
                    // What it does there is not seen.
                    clock: match unmanaged {
                        true => Some(Clock::FULL),
                        false => demand.wish(slip, clock),
                    },
                    sensitivity: sensitivity.unwrap_or(0),
                });
            });
        wishes
    }

    /// Gives all GPUs their highest clock back, at the end.
    pub(crate) fn end_clocks(&mut self) {
        self.clocks.worker = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gct_core::features::FeatureSet;
    use gct_core::gpu::{Backend, GpuFacts};
    use gct_core::host::Host;

    /// Returns a GPU of three clocks.
    fn gpu() -> Gpu {
        let pci = crate::gpus::pci("0000:01:00.0").unwrap();
        let facts = GpuFacts::new(1, pci, Backend::User);
        let mut host = Host::new([1, 2]);
        let gpu = host.with(|host| host.state().gpu_add(&facts, FeatureSet::NONE));
        let shown = GpuClock {
            highest: Mhz(900),
            ..GpuClock::default()
        };
        Gpu::new(gpu.unwrap(), vec![300, 600, 900], shown)
    }

    #[test]
    fn after_a_refusal_the_highest_clock_is_given_back_once_more() {
        let mut gpu = gpu();
        (gpu.clock, gpu.ordered) = (gpu.clock_of(600).unwrap(), true);
        assert_eq!(gpu.decide(&[]), None, "an order is under way");
        gpu.hear(Report::Refused("no".into()));
        assert_eq!((gpu.clock, gpu.shown.errors), (Clock::FULL, 1));
        for _ in 1..REST {
            assert_eq!(gpu.decide(&[]), None);
        }
        assert_eq!(gpu.rest(), Some(Clock::FULL));
        assert_eq!(gpu.rest(), None);
    }

    #[test]
    fn a_clock_has_the_least_megahertz_that_are_not_lower() {
        let gpu = gpu();
        let at = |thousandths| gpu.mhz_of(Clock::new(thousandths).unwrap());
        assert_eq!(
            [1, 333, 334, 666, 667, 1000].map(at),
            [300, 300, 600, 600, 900, 900].map(Mhz)
        );
    }
}
