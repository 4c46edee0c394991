// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plays threads that take roots of managed memory at a limit, as nvidia-uvm.ko does
//! (gct-pmm-evict.h), and checks how much an owner gets beyond the limit.
//!
//! A thread of a tenant waits where nothing can leave. The kernel's thread serves the faults of all
//! tenants and cannot wait: where a shortage passes, it takes a root beyond the limit.

use super::*;
use crate::engine::Shortage;
use crate::memory::accounts::{Account, Accounts, Victim};
use crate::memory::{Ledger, Root, RootId, Slot, SlotId, ROOT};
use proptest::prelude::*;
use std::vec;

/// Roots of the GPU: more than any owner may have.
const ROOTS: u32 = 64;
/// Members of the group, and threads of each.
const MEMBERS: usize = 2;
const THREADS: usize = 3;
/// The kernel's thread, after those of the tenants.
const KERNEL: usize = MEMBERS * THREADS;
/// Roots that fit within the limit.
const FIT: u64 = 4;
/// As GCT_EVICTIONS_MAX.
const EVICTIONS_MAX: u32 = 16;

const OTHER: ProcKey = ProcKey {
    tgid: 501,
    start_time_ns: 2,
};

#[derive(Clone, Copy, Debug)]
struct Holder {
    file: FileId,
    ticket: Ticket,
}

/// What a thread does next.
#[derive(Clone, Copy, Debug, Default)]
enum Next {
    #[default]
    Nothing,
    /// Reserves a root, after some victims could give up none.
    Reserve { tried: u32 },
    /// Takes a free root, and pins it.
    Take,
    /// Unpins it.
    Unpin(RootId),
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    next: Next,
    /// The member for which it allocates.
    member: usize,
    /// Roots that it has evicted for this allocation.
    evicted: u32,
}

/// A group of two members at its limit on a GPU, whose roots their threads take.
struct Gpu {
    world: World,
    group: Owner,
    /// What the group is charged for beside roots.
    before: Bytes,
    slots: [SlotId; MEMBERS],
    ledger: (Vec<Root>, Vec<Slot>, Vec<Account<Holder>>),
    hand: SlotId,
    pinned: Vec<RootId>,
    threads: [Thread; KERNEL + 1],
}

impl Gpu {
    fn new() -> Self {
        let mut world = World::new(FeatureSet::all());
        let (group, file) = world.web();
        let (gpu, group) = (world.gpu, Owner::Group(group));
        let mut gpu_of = Self {
            group,
            before: Bytes(0),
            slots: [SlotId(0); MEMBERS],
            ledger: (
                vec![Root::default(); ROOTS as usize],
                vec![Slot::default(); 8],
                vec![Account::default(); 8],
            ),
            hand: SlotId(0),
            pinned: Vec::new(),
            threads: Default::default(),
            world,
        };
        let other = gpu_of.world.open(OTHER, "/web");
        for (at, file) in [file, other].into_iter().enumerate() {
            let open = |store: &mut Store| store.state().charge_managed(file, gpu, Bytes(0));
            let ticket = gpu_of.world.store.retry(open).unwrap();
            let holder = Holder { file, ticket };
            gpu_of.slots[at] = gpu_of.accounts().open(holder, |_| false).unwrap();
        }
        let pool = gpu_of.world.pool(group);
        gpu_of.before = gpu_of.charged();
        let limit = gpu_of.before + ROOT * FIT;
        let written = gpu_of
            .world
            .write(File::GmemLimit, pool, &format!("{}", limit.get()));
        assert_eq!(written, Ok(()));
        gpu_of
    }

    fn accounts(&mut self) -> Accounts<'_, Holder> {
        let (roots, slots, all) = &mut self.ledger;
        Accounts::new(Ledger::new(roots, slots), all)
    }

    fn charged(&mut self) -> Bytes {
        let key = (self.group, self.world.gpu);
        self.world.store.state().memory_charged(key)
    }

    /// Charges all members for what they hold.
    fn settle(&mut self) {
        let mut from = SlotId(0);
        while let Some(slot) = self.accounts().next_stale(from) {
            if let Some((Holder { file, ticket }, sums)) = self.accounts().report(slot) {
                let charge =
                    |store: &mut Store| store.state().recharge_managed(file, ticket, sums.charge);
                self.world.store.retry(charge).unwrap();
            }
            from = SlotId(slot.0 + 1);
        }
    }

    /// Charges a member for a root. Returns the next victim if a limit is in the way.
    fn reserve(&mut self, member: usize, tried: u32) -> Result<(), Option<Victim>> {
        self.settle();
        let slot = self.slots[member];
        let (Holder { file, ticket }, bytes) = self.accounts().reserve(slot).unwrap();
        let charge = |store: &mut Store| store.state().try_recharge_managed(file, ticket, bytes);
        let Some(over) = self.world.store.retry(charge).unwrap() else {
            return Ok(());
        };
        self.accounts().cancel(slot);
        Err(self.victim(over, tried))
    }

    /// Charges a member for a root beyond any limit.
    fn reserve_anyway(&mut self, member: usize) {
        let slot = self.slots[member];
        let mut accounts = self.accounts();
        assert!(accounts.reserve(slot).is_some());
        accounts.changed(slot);
        accounts.entitle(slot, 1);
        self.settle();
    }

    /// Runs the evictor until nobody waits for it, or nothing can leave.
    fn evictor(&mut self) {
        let mut last = SlotId(0);
        while let Some(slot) = self.accounts().next_waiting(last) {
            last = slot;
            let (file, gpu) = (self.accounts().owner(slot).unwrap().file, self.world.gpu);
            let over = self.world.store.state().lacks_room_ahead(file, gpu);
            let victim = over.and_then(|over| self.victim(over, 0));
            self.accounts().spend(slot);
            if !victim.is_some_and(|victim| self.evict(victim)) {
                self.accounts().rest(slot);
            }
            self.check();
        }
    }

    fn victim(&mut self, over: Owner, tried: u32) -> Option<Victim> {
        let mut hand = self.hand;
        let (roots, slots, all) = &mut self.ledger;
        let accounts = Accounts::new(Ledger::new(roots, slots), all);
        let state = self.world.store.state();
        let gives_way = |holder: &Holder| state.may_give_way(over, holder.file);
        let victim = accounts.victim(&mut hand, tried, gives_way);
        self.hand = hand;
        victim
    }

    /// Frees a root of the victim. Returns whether one could leave.
    fn evict(&mut self, victim: Victim) -> bool {
        let pinned = self.pinned.clone();
        let picked = self.accounts().pick(victim, |root| !pinned.contains(&root));
        picked.map(|root| self.accounts().drop_root(root)).is_some()
    }

    /// Runs a step of a thread. `member` is for whom the kernel's thread begins to allocate.
    fn step(&mut self, at: usize, member: usize) {
        let Thread { next, .. } = self.threads[at];
        self.threads[at].next = match next {
            Next::Nothing => {
                self.threads[at] = Thread {
                    member: if at == KERNEL { member } else { at / THREADS },
                    ..Thread::default()
                };
                Next::Reserve { tried: 0 }
            }
            Next::Reserve { tried } => self.reserve_or_evict(at, tried),
            Next::Take => self.take(self.threads[at].member),
            Next::Unpin(root) => {
                self.pinned.retain(|other| *other != root);
                Next::Nothing
            }
        };
        self.check();
    }

    fn reserve_or_evict(&mut self, at: usize, tried: u32) -> Next {
        let Thread { member, .. } = self.threads[at];
        match self.reserve(member, tried) {
            Ok(()) => return Next::Take,
            Err(Some(victim)) if !self.evict(victim) => return Next::Reserve { tried: tried + 1 },
            Err(Some(_)) => {
                self.threads[at].evicted += 1;
                if self.threads[at].evicted < EVICTIONS_MAX {
                    return Next::Reserve { tried: 0 };
                }
            }
            Err(None) => {
                let (slot, gpu) = (self.slots[member], self.world.gpu);
                let file = self.accounts().owner(slot).unwrap().file;
                let shortage = self.world.store.state().shortage(file, gpu, 0);
                assert_eq!(shortage, Shortage::Passing);
            }
        }
        if at != KERNEL {
            return Next::Reserve { tried: 0 };
        }
        self.reserve_anyway(member);
        Next::Take
    }

    fn take(&mut self, member: usize) -> Next {
        let slot = self.slots[member];
        let mut accounts = self.accounts();
        let mut roots = (0..ROOTS).map(RootId);
        let free = roots.find(|root| accounts.ledger().holder(*root).is_none());
        accounts.take(slot, free.unwrap());
        self.pinned.extend(free);
        Next::Unpin(free.unwrap())
    }

    /// Checks that the group has one root beyond its limit at most, that of the kernel's thread.
    fn check(&mut self) {
        let slots = self.slots;
        let held = slots.map(|slot| *self.accounts().ledger().slot(slot).unwrap());
        let held = held.iter().fold(Bytes(0), |sum, slot| sum + slot.charge());
        assert!(held <= ROOT * (FIT + 1), "held {held:?}");
        self.settle();
        assert_eq!(self.charged(), self.before + held);
    }

    fn is_at_work(&self, at: usize) -> bool {
        !matches!(self.threads[at].next, Next::Nothing)
    }

    /// Lets all threads end, and returns what the members hold then.
    fn end(&mut self) -> Bytes {
        for _ in 0..1000 {
            for at in 0..=KERNEL {
                if self.is_at_work(at) {
                    self.step(at, 0);
                }
            }
        }
        // Who waits for roots that others have pinned gets one when they unpin them.
        assert!((0..=KERNEL).all(|at| !self.is_at_work(at)));
        self.charged() - self.before
    }
}

proptest! {
    /// Whatever the order of steps, a group has one root beyond its limit at most, and none after
    /// the next allocation of any of its threads.
    #[test]
    fn an_overdraft_is_one_root_and_is_repaid(
        steps in prop::collection::vec((0..=KERNEL, 0..MEMBERS), 0..400),
        last in 0..=KERNEL,
    ) {
        let mut gpu = Gpu::new();
        for (at, member) in steps {
            gpu.step(at, member);
        }
        gpu.end();
        gpu.step(last, 0);
        prop_assert!(gpu.end() <= ROOT * FIT);
    }
}

/// The kernel's thread serves a fault while the tenants have pinned all roots that fit.
#[test]
fn a_fault_beside_pinned_roots_overdraws() {
    let mut gpu = Gpu::new();
    for at in 0..FIT as usize {
        (0..3).for_each(|_| gpu.step(at, 0));
    }
    for fault in 0..3 {
        gpu.step(KERNEL, 1);
        while gpu.is_at_work(KERNEL) {
            gpu.step(KERNEL, 1);
        }
        assert_eq!(
            gpu.charged() - gpu.before,
            ROOT * (FIT + 1),
            "fault {fault}"
        );
    }
    // A tenant's thread waits: it gets nothing beyond the limit.
    let waits = FIT as usize;
    (0..20).for_each(|_| gpu.step(waits, 0));
    assert!(matches!(gpu.threads[waits].next, Next::Reserve { .. }));
    assert_eq!(gpu.end(), ROOT * FIT);
}

/// The evictor repays what a fault has taken beyond the limit, when the roots are not pinned any
/// more.
#[test]
fn the_evictor_repays_an_overdraft() {
    let mut gpu = Gpu::new();
    for at in 0..FIT as usize {
        (0..3).for_each(|_| gpu.step(at, 0));
    }
    gpu.step(KERNEL, 1);
    while matches!(gpu.threads[KERNEL].next, Next::Reserve { .. }) {
        gpu.step(KERNEL, 1);
    }
    gpu.evictor();
    assert_eq!(
        gpu.charged() - gpu.before,
        ROOT * (FIT + 1),
        "all are pinned"
    );
    gpu.end();
    // The next fault takes the root beyond the limit again, and unpins it.
    for at in 0..FIT as usize {
        (0..3).for_each(|_| gpu.step(at, 0));
    }
    gpu.step(KERNEL, 1);
    gpu.end();
    gpu.evictor();
    assert!(gpu.charged() - gpu.before <= ROOT * FIT);
}
