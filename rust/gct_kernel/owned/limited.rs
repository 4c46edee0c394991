// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps the limits of one process on one GPU, and what was done for it there.

use super::client::Refused;
use super::nodes::{Chunk, Chunks};
use crate::bindings;
use crate::state::Kv;
use gct_core::engine::{Progress, Terms};
use gct_core::gpu_time::GpuTime;
use gct_core::ids::ProcKey;
use gct_core::lane::governor;
use gct_core::lane::roster::{Company, Roster, Seats, MEMBERS_MAX};
use gct_core::lane::words::Storage;
use gct_core::launches::{EffectiveTpcs, Launches};
use gct_core::owned::{KERNELS_MAX, LAUNCHES_MAX, LAWS_MAX};
use gct_core::policy::predict;
use gct_core::policy::scale::Law;
use gct_core::policy::share::Rival;
use gct_core::policy::tpc::{Neighbour, Rank};
use gct_core::units::Ns;
use kernel::prelude::*;
use kernel::sync::{new_mutex, Arc, Mutex, MutexGuard};
use kernel::workqueue::{impl_has_work, new_work, Work};

impl Storage for Kv {
    type Slots<T: 'static> = KVVec<T>;
    type Table<T: 'static> = Chunks<T>;
}

/// The governor of a process on a GPU.
pub(super) type Governor = governor::Governor<Kv, Company<Kv>>;

/// A process on a GPU: its limits, and what was done with its launches. Its files share it.
#[pin_data]
pub(super) struct Limited {
    pub(super) proc: ProcKey,
    pub(super) gpu: u32,
    #[pin]
    inner: Mutex<Counted>,
    /// Adds room for nodes.
    #[pin]
    work: Work<Limited>,
}

impl_has_work! {
    impl HasWork<Self> for Limited { self.work }
}

struct Counted {
    /// Whether its channels from before its limits are to be shadowed.
    shadows: bool,
    governor: KBox<Governor>,
    launches: Launches,
    time: GpuTime,
}

/// What a process on a GPU has room for at first: 1.5 MiB, charged to who asks.
pub(super) struct Room {
    kernels: KVVec<Option<predict::Entry>>,
    nodes: Chunk,
    laws: KVVec<Option<Law>>,
    seats: Seats<Kv>,
}

impl Room {
    /// Allocates it. Who is at a limit on its memory may wait for long, so others do not wait for
    /// it: no lock is held.
    pub(super) fn new() -> Result<Self, Refused> {
        let flags = GFP_KERNEL_ACCOUNT;
        Ok(Self {
            kernels: KVVec::from_elem(None, KERNELS_MAX, flags)?,
            nodes: Chunk::new()?,
            laws: KVVec::from_elem(None, LAWS_MAX, flags)?,
            seats: Seats {
                neighbours: KVVec::from_elem(Neighbour::NONE, MEMBERS_MAX, flags)?,
                slots: KVVec::from_elem(0, MEMBERS_MAX, flags)?,
                rivals: KVVec::from_elem(Rival::default(), MEMBERS_MAX, flags)?,
                numbers: KVVec::from_elem(0, MEMBERS_MAX, flags)?,
            },
        })
    }
}

/// Creates the governor of a process under its limits of now. It is large, so it is built in a
/// frame of its own, and never moved on a stack.
#[inline(never)]
fn governor(terms: &Terms, room: Room) -> Result<KBox<Governor>, Refused> {
    let (nodes, descriptors) = room.nodes.table()?;
    let governor = Governor::new(terms.limits, room.kernels, nodes, room.laws);
    let mut governor = KBox::new(governor, GFP_KERNEL_ACCOUNT)?;
    // SAFETY: it has no preconditions.
    let key = unsafe { bindings::gct_helper_random() };
    governor.keep_descriptors(descriptors, key, true);
    governor.set_gpu(terms.topology);
    governor.set_peers(Some(Company::new(terms.owner, terms.standing, room.seats)));
    Ok(governor)
}

impl Limited {
    /// Creates the state of a process under its limits of now.
    #[inline(never)]
    pub(super) fn new(gpu: u32, terms: &Terms, room: Room) -> Result<Arc<Self>, Refused> {
        let governor = governor(terms, room)?;
        let proc = terms.proc;
        let limited = Arc::pin_init(
            pin_init!(Self {
                proc,
                gpu,
                inner <- new_mutex!(Counted {
                    shadows: terms.shadows,
                    governor,
                    launches: Launches::ZERO,
                    time: GpuTime::ZERO,
                }, "gct::limited"),
                work <- new_work!("gct::limited_nodes"),
            }),
            GFP_KERNEL_ACCOUNT,
        );
        limited.map_err(|_| Refused)
    }

    /// Returns the process's pid.
    pub(super) fn process(&self) -> u32 {
        self.proc.tgid
    }

    pub(super) fn is_of(&self, proc: ProcKey, gpu: u32) -> bool {
        (self.proc, self.gpu) == (proc, gpu)
    }

    /// Sets limits. Nothing is published under the former ones any more when this returns.
    pub(super) fn set(&self, terms: &Terms) {
        let counted = &mut *self.inner.lock();
        counted.shadows = terms.shadows;
        let governor = &mut counted.governor;
        governor.set_gpu(terms.topology);
        governor.set_limits(terms.limits);
        if let Some(company) = governor.peers_mut() {
            company.set_standing(terms.owner, terms.standing);
        }
    }

    /// Records that the process has a channel in another process's channel group.
    pub(super) fn share_group(&self) {
        if let Some(company) = self.inner.lock().governor.peers_mut() {
            company.share_group();
        }
    }

    /// Returns what was done since the last time.
    pub(super) fn report(&self) -> Progress {
        let counted = &mut *self.inner.lock();
        let governor = &counted.governor;
        let (launches, time) = (governor.counters().shown(), *governor.gpu_time());
        Progress {
            launches: launches.since(&core::mem::replace(&mut counted.launches, launches)),
            effective: match governor.effective() {
                Some(mask) => EffectiveTpcs::Mask(mask),
                None => EffectiveTpcs::All,
            },
            time: time.since(&core::mem::replace(&mut counted.time, time)),
            pending: governor.pending(),
            unseen: counted.governor.take_unseen(),
        }
    }

    /// Locks the limits for a turn of all lanes, unless somebody has them locked. That may be a
    /// thread of the tenant's that gets no processor: others need not wait for it.
    pub(super) fn try_hold(&self) -> Option<Held<'_>> {
        self.inner.try_lock().map(Held)
    }

    /// Returns whether a segment may wait for room for its nodes.
    pub(super) fn lacks_nodes(&self) -> bool {
        self.inner.lock().governor.lacks_nodes(LAUNCHES_MAX)
    }

    /// Adds room for nodes, or records that there is no more.
    pub(super) fn grow_nodes(&self, chunk: Result<Chunk, Refused>) {
        let governor = &mut self.inner.lock().governor;
        governor.grow_nodes(|slots, words| chunk.is_ok_and(|chunk| chunk.add(slots, words)));
    }

    /// Waits until nobody has the limits locked.
    pub(super) fn settle(&self) {
        drop(self.inner.lock());
    }
}

/// The limits of a process on a GPU, locked.
pub(super) struct Held<'a>(MutexGuard<'a, Counted>);

impl Held<'_> {
    /// Returns whether channels of the process from before its limits are to be shadowed.
    pub(super) fn shadows(&self) -> bool {
        self.0.shadows
    }

    /// Returns whether a segment may wait for room for its nodes.
    pub(super) fn lacks_nodes(&self) -> bool {
        self.0.governor.lacks_nodes(LAUNCHES_MAX)
    }

    /// Returns the governor.
    pub(super) fn governor(&mut self) -> &mut Governor {
        &mut self.0.governor
    }

    /// Has the roster show the limits of now. Returns the rank.
    pub(super) fn attend(&mut self, roster: &mut Roster<Kv>, now: Ns) -> Rank {
        self.governor().peers_mut().map_or(Rank::LAST, |company| {
            company.attend(roster, now);
            company.rank()
        })
    }

    /// Leaves the roster: no lane is left.
    pub(super) fn quit(&mut self, roster: &mut Roster<Kv>) {
        self.governor().stop();
        if let Some(company) = self.governor().peers_mut() {
            company.quit(roster);
        }
    }

    /// Looks at the others.
    pub(super) fn see(&mut self, roster: &Roster<Kv>, now: Ns) {
        if let Some(company) = self.governor().peers_mut() {
            company.see(roster, now);
        }
    }

    /// Begins a round of all lanes.
    pub(super) fn begin(&mut self, roster: &Roster<Kv>, now: Ns) {
        self.see(roster, now);
        self.governor().begin(now);
    }

    /// Ends a round of all lanes. `pending` says whether work is held back or in flight. Returns
    /// how soon the next one must come for the time of that work to count.
    pub(super) fn end(&mut self, roster: &mut Roster<Kv>, pending: bool, now: Ns) -> Option<Ns> {
        self.governor().end(pending, now);
        if let Some(company) = self.governor().peers() {
            roster.publish(company);
        }
        self.governor().next_look(now)
    }
}
