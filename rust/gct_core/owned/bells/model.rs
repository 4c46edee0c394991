// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Interleaves tenants that ring, the work item that closes their bells, and the worker that looks
//! at their channels, step by step as a random number says. The steps are those of `gct_bell.c`.

use super::Silence;
use proptest::prelude::*;
use std::vec::Vec;

/// What a tenant does next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Writes GP_PUT.
    Submits,
    /// Stores to its doorbell, which faults if it is not mapped.
    Rings,
    /// Is in a fault, whose handler has mapped the page and has yet to open the bell.
    Faults,
}

struct Tenant {
    /// Whether the mapping by which it rings is a bell.
    is_followed: bool,
    next: Next,
    has_news: bool,
    is_mapped: bool,
    is_open: bool,
    rings: u32,
    missed: u32,
    silence: Silence,
    /// What the worker has read of `rings`.
    read: u32,
}

impl Tenant {
    fn new(is_followed: bool) -> Self {
        Self {
            is_followed,
            next: Next::Submits,
            has_news: false,
            is_mapped: true,
            is_open: true,
            rings: 1,
            missed: 0,
            silence: Silence::NEW,
            read: 0,
        }
    }

    fn is_heard(&self) -> bool {
        self.rings != self.missed
    }
}

/// Where the work item is.
#[derive(Clone, Copy)]
enum Work {
    Waits,
    /// It has so many bells to close.
    Takes(usize),
    /// It has taken a bell out of the list.
    Unmaps(usize, usize),
    /// It has unmapped it.
    Closes(usize),
}

/// Where the worker is.
#[derive(Clone, Copy)]
enum Worker {
    Begins,
    /// Reads a tenant's rings.
    Hears(usize),
    /// Looks at its channel.
    Looks(usize),
    Ends,
    /// Sleeps for long.
    Sleeps,
}

struct Model {
    tenants: Vec<Tenant>,
    open: usize,
    revoke: bool,
    work: Work,
    worker: Worker,
    is_woken: bool,
    all_closed: bool,
    is_idle: bool,
    /// Long sleeps during which a tenant had rung in vain.
    overslept: u32,
}

impl Model {
    fn new(followed: &[bool]) -> Self {
        Self {
            tenants: followed.iter().copied().map(Tenant::new).collect(),
            open: followed.len(),
            revoke: false,
            work: Work::Waits,
            worker: Worker::Begins,
            is_woken: false,
            all_closed: false,
            is_idle: true,
            overslept: 0,
        }
    }

    fn tenant(&mut self, at: usize) {
        let tenant = &mut self.tenants[at];
        tenant.next = match tenant.next {
            Next::Submits => {
                tenant.has_news = true;
                Next::Rings
            }
            Next::Rings if tenant.is_mapped || !tenant.is_followed => Next::Submits,
            Next::Rings => {
                tenant.is_mapped = true;
                Next::Faults
            }
            Next::Faults => {
                if !core::mem::replace(&mut tenant.is_open, true) {
                    self.open += 1;
                }
                tenant.rings += 1;
                self.is_woken = true;
                // The store is repeated.
                Next::Rings
            }
        };
    }

    fn work(&mut self) {
        let first = self.tenants.iter().position(|tenant| tenant.is_open);
        self.work = match (self.work, first) {
            (Work::Waits, _) if core::mem::take(&mut self.revoke) => Work::Takes(self.open),
            (Work::Takes(1..), None) | (Work::Takes(0) | Work::Waits, _) => Work::Waits,
            (Work::Takes(left), Some(first)) => {
                self.tenants[first].is_open = false;
                Work::Unmaps(left - 1, first)
            }
            (Work::Unmaps(left, at), _) => {
                self.tenants[at].is_mapped = false;
                Work::Closes(left)
            }
            (Work::Closes(left), _) => {
                self.open -= 1;
                Work::Takes(left)
            }
        };
    }

    /// `is_late` says whether the GPU was quiet for so long that bells are to be closed, or the
    /// longest sleep is over.
    fn worker(&mut self, is_late: bool) {
        let behind = |at: usize, all: usize| match at + 1 < all {
            true => Worker::Hears(at + 1),
            false => Worker::Ends,
        };
        let count = self.tenants.len();
        self.worker = match self.worker {
            Worker::Begins => {
                self.is_idle = !core::mem::take(&mut self.is_woken);
                self.all_closed = self.open == 0;
                Worker::Hears(0)
            }
            Worker::Hears(at) => {
                self.tenants[at].read = self.tenants[at].rings;
                Worker::Looks(at)
            }
            Worker::Looks(at) => {
                let tenant = &mut self.tenants[at];
                let has_news = core::mem::take(&mut tenant.has_news);
                let (read, silence) = (tenant.read, &mut tenant.silence);
                if silence.is_broken_unheard(read, has_news, self.all_closed) {
                    tenant.missed = read;
                }
                self.is_idle &= !has_news;
                behind(at, count)
            }
            Worker::Ends if self.is_idle && is_late => {
                self.revoke |= !self.all_closed;
                match self.all_closed && self.tenants.iter().all(Tenant::is_heard) {
                    true if !self.is_woken => Worker::Sleeps,
                    _ => Worker::Begins,
                }
            }
            Worker::Sleeps if self.is_woken || is_late => {
                let waits = |tenant: &Tenant| tenant.has_news && tenant.next == Next::Submits;
                let waits = self.tenants.iter().any(waits);
                self.overslept += u32::from(waits && !self.is_woken);
                Worker::Begins
            }
            Worker::Sleeps => Worker::Sleeps,
            Worker::Ends => Worker::Begins,
        };
    }

    fn step(&mut self, step: u8) {
        match step % 8 {
            0 | 1 => self.tenant(usize::from(step / 8) % self.tenants.len()),
            2 | 3 => self.work(),
            _ => self.worker(step / 8 % 4 == 0),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Who rings bells is heard, however rings, closing and looks follow each other, and its work
    /// never waits for the end of a long sleep.
    #[test]
    fn bells_that_ring_are_heard(steps in prop::collection::vec(any::<u8>(), 0..600)) {
        let mut model = Model::new(&[true, true]);
        for step in steps {
            model.step(step);
            for tenant in &model.tenants {
                prop_assert!(tenant.next != Next::Submits || tenant.is_heard(), "deaf");
            }
            prop_assert_eq!(model.overslept, 0);
        }
    }

    /// Who rings by another mapping waits for the end of a long sleep once, whatever others do.
    #[test]
    fn who_is_not_heard_is_missed_once(steps in prop::collection::vec(any::<u8>(), 0..600)) {
        let mut model = Model::new(&[false, true]);
        steps.into_iter().for_each(|step| model.step(step));
        prop_assert!(model.overslept <= 1, "{} times", model.overslept);
    }
}
