// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Owns the core and makes the tree, the pages and the descriptors follow its decisions.

mod balance;
mod clocks;
mod driver_limits;
mod events;
mod files;
mod goals;
mod ioctls;
mod keep;
mod lowering;
mod managed;
mod members;
mod pageable;
mod pages;
mod pending;
mod publishing;
mod requests;
mod seen;
mod sessions;
mod strangers;
mod watches;

pub(crate) use pending::OnDone;
pub(crate) use sessions::Session;
pub(crate) use watches::FIRST_WATCH;

use crate::budget::Budget;
use crate::gpus::{self, Ask, Look, Query};
use crate::kept::{Keeper, Place};
use crate::options::Options;
use crate::tenants::Tenants;
use crate::timer::Timer;
use crate::tree::Tree;
use balance::Balances;
use clocks::Clocks;
use driver_limits::DriverLimits;
use events::Events;
use gct_core::features::Feature;
use gct_core::gpu::GpuFacts;
use gct_core::host::Host;
use gct_core::ids::GpuId;
use gct_core::mask::TpcMask;
use gct_core::topology::Topology;
use gct_core::units::Bytes;
use gctd_ipc::selftest::{self, Selftest};
use lowering::Lowerings;
use pending::PendingWrites;
use publishing::Publishing;
use requests::Looks;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use watches::Watches;

/// Time between two looks for an answer of the resource manager.
const ANSWER_INTERVAL: Duration = Duration::from_millis(100);

/// The state of the daemon, except for its sockets.
#[derive(Debug)]
pub(crate) struct Daemon {
    tables: Host,
    tree: Tree,
    tenants: Tenants,
    pending: PendingWrites,
    publishing: Publishing,
    lowerings: Lowerings,
    looks: Looks,
    balances: Balances,
    clocks: Clocks,
    driver_limits: DriverLimits,
    pub(crate) budget: Budget,
    events: Events,
    /// The directory in which the driver lists its GPUs.
    gpus: PathBuf,
    /// The directory of the results of `gctctl selftest`.
    selftest_directory: PathBuf,
    /// The result of each GPU, read once its UUID is known.
    selftests: HashMap<u32, Option<Selftest>>,
    /// The TPCs that the administrator named for all GPUs.
    tpcs: Option<TpcMask>,
    /// The memory of GPUs that the resource manager does not describe.
    memory: Option<Bytes>,
    /// The GPU that was found first.
    first_gpu: Option<GpuId>,
    /// How to ask the resource manager.
    ask: Ask,
    /// GPUs that the resource manager has not described yet.
    unknown_gpus: HashMap<u32, Query>,
    /// Expires when there may be an answer.
    answers: Timer,
    /// The PCI address of each GPU.
    addresses: BTreeMap<GpuId, String>,
    keeper: Keeper,
    /// Files of groups that the last daemon had written, and this one could not write yet.
    unrestored: BTreeSet<(Place, String)>,
    /// When each member joined its group by pid, in nanoseconds since boot.
    joined: HashMap<(u32, u64), u64>,
    watches: Watches,
}

impl Daemon {
    /// Creates a daemon that may use `fds` descriptors.
    ///
    /// # Errors
    ///
    /// Those of `timerfd_create`.
    pub(crate) fn new(
        options: &Options,
        fds: u64,
        epoll: Arc<OwnedFd>,
        seeds: [u64; 2],
    ) -> rustix::io::Result<Self> {
        let mut daemon = Self {
            tables: Host::new(seeds),
            tree: Tree::default(),
            tenants: Tenants::default(),
            pending: PendingWrites::new()?,
            publishing: Publishing::new()?,
            lowerings: Lowerings::new()?,
            looks: Looks::new()?,
            balances: Balances::new()?,
            clocks: Clocks::new(options.clocks)?,
            driver_limits: DriverLimits::new(options.driver_limits, options.cgroups.clone()),
            budget: Budget::new(fds),
            events: Events::default(),
            gpus: options.gpus.clone(),
            selftest_directory: options.selftests.clone(),
            selftests: HashMap::new(),
            tpcs: options.tpcs,
            memory: options.memory,
            first_gpu: None,
            ask: options.ask,
            unknown_gpus: HashMap::new(),
            answers: Timer::new()?,
            addresses: BTreeMap::new(),
            keeper: Keeper::read(&options.directory),
            unrestored: BTreeSet::new(),
            joined: HashMap::new(),
            watches: Watches::new(epoll),
        };
        daemon.show_events();
        daemon.find_gpus();
        daemon.take_over();
        Ok(daemon)
    }

    /// Returns the timer of the pending write, for epoll.
    pub(crate) fn ack_timer(&self) -> BorrowedFd<'_> {
        self.pending.timer()
    }

    /// Returns the timer of limits that are being lowered, for epoll.
    pub(crate) fn lowerings_timer(&self) -> BorrowedFd<'_> {
        self.lowerings.timer()
    }

    /// Returns the timer of looks at requests, for epoll.
    pub(crate) fn looks_timer(&self) -> BorrowedFd<'_> {
        self.looks.timer()
    }

    /// Returns the timer of looks at memory, for epoll.
    pub(crate) fn balances_timer(&self) -> BorrowedFd<'_> {
        self.balances.timer()
    }

    /// Returns the timer of looks at clocks, for epoll.
    pub(crate) fn clocks_timer(&self) -> BorrowedFd<'_> {
        self.clocks.timer()
    }

    /// Returns the timer of answers about GPUs, for epoll.
    pub(crate) fn answers_timer(&self) -> BorrowedFd<'_> {
        self.answers.as_fd()
    }

    /// Takes the answers about GPUs that have come.
    pub(crate) fn look_at_answers(&mut self) {
        // Clears the event.
        let _ = self.answers.has_expired();
        self.find_gpus();
    }

    /// Adds the GPUs that appeared since the last call. All appear when the driver is loaded.
    fn find_gpus(&mut self) {
        let before = (self.addresses.len(), self.unknown_gpus.len());
        for mut facts in gpus::find(&self.gpus) {
            let features = self.driver_limits.with_feature(gctd_ipc::ENFORCED);
            let add = |tables: &mut Host| tables.state().gpu_add(&facts, features);
            if let Some(gpu) = self.tables.follow(add) {
                self.first_gpu.get_or_insert(gpu);
                self.addresses.insert(gpu, facts.pci.to_string());
                tracing::info!(
                    minor = facts.minor,
                    name = facts.name.as_str(),
                    "found a GPU"
                );
                self.unknown_gpus.insert(facts.rm_id, Query::new());
                self.clocks.find(facts.rm_id, facts.pci.to_string());
            }
            // The driver tells it when it has started the GPU, which others may cause, too.
            if let Some(uuid) = facts.uuid {
                // Fails only for a GPU that could not be added.
                let _ = self.tables.state().gpu_uuid(facts.rm_id, uuid);
            }
            self.query_gpu(&mut facts);
        }
        // Whoever connects causes a look. One that has found nothing new costs little.
        if before != (self.addresses.len(), self.unknown_gpus.len()) {
            self.restore_limits();
            self.apply_effects_later();
        }
    }

    /// Asks the resource manager about a GPU that it has not described yet, and takes its answer.
    ///
    /// The TPCs are those that the administrator named, else those that the resource manager
    /// reports, else those that `gctctl selftest` found.
    fn query_gpu(&mut self, facts: &mut GpuFacts) {
        let Some(query) = self.unknown_gpus.get_mut(&facts.rm_id) else {
            return;
        };
        let look = query.look(self.ask, facts.minor);
        if query.is_asked() {
            self.answers.once(ANSWER_INTERVAL);
        }
        let answer = match look {
            Look::Later => return,
            Look::Failed => None,
            Look::Hung => {
                self.unknown_gpus.remove(&facts.rm_id);
                None
            }
            Look::Answered(answer) => {
                self.unknown_gpus.remove(&facts.rm_id);
                Some(answer)
            }
        };
        facts.memory_total = self.memory;
        if let Some(answer) = &answer {
            facts.set_architecture(answer.chip.architecture);
            facts.memory_total = answer.memory.map(Bytes).or(self.memory);
        }
        let selftest = self.selftest(facts);
        let configured = self.tpcs.map(Topology::apart);
        let told = configured.or(answer.and_then(|answer| answer.topology));
        let usable = selftest.as_ref().filter(|found| found.masks.is_exact());
        facts.tried = usable.is_some_and(|found| found.atoms.is_exact());
        let found = usable.map(|found| Topology::apart(found.tpcs));
        facts.topology = told.or(found).unwrap_or(Topology::UNKNOWN);
        let enforced = match self.clocks.has(facts.rm_id) {
            true => gctd_ipc::ENFORCED.with(Feature::SlipPower),
            false => gctd_ipc::ENFORCED,
        };
        let enforced = self.driver_limits.with_feature(enforced);
        let features = selftest::allowed(selftest.as_ref(), facts, enforced);
        // Cannot fail: `find_gpus` has added the GPU.
        let _ = self.tables.state().gpu_learned(facts, features);
    }

    /// Returns the result of a GPU's self-test. The query may have made its UUID known.
    fn selftest(&mut self, facts: &mut GpuFacts) -> Option<Selftest> {
        if facts.uuid.is_none() {
            let mut now = gpus::find(&self.gpus).into_iter();
            facts.uuid = now.find(|gpu| gpu.rm_id == facts.rm_id)?.uuid;
            // Cannot fail: `find_gpus` has added the GPU.
            let _ = self.tables.state().gpu_uuid(facts.rm_id, facts.uuid?);
        }
        let uuid = facts.uuid?;
        let (gpus, results) = (&self.gpus, &self.selftest_directory);
        let read = || gpus::selftest(gpus, results, uuid);
        self.selftests
            .entry(facts.rm_id)
            .or_insert_with(read)
            .clone()
    }

    /// Adds what the processes counted to the core's statistics.
    fn collect_counters(&mut self) {
        self.tenants.collect_all_counters(&mut self.tables.state());
    }
}
