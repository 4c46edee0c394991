// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The worker: a thread that publishes what the program's threads submit, and looks after what is in
//! flight.

use crate::calls;
use crate::processors;
use crate::stats::STATS;
use crate::sys;
use crate::worker::{self, Held};
use core::sync::atomic::Ordering;
use gct_core::policy::doorbell;
use gct_core::policy::poll::Poll;
use gct_core::policy::poll_backoff::PollBackoff;
use gct_core::units::{Cpus, Ns};

/// Sleep at most this long: a tenant that waits for room in its ring does not ring.
const SLEEP: Ns = Ns(1_000_000_000);
/// The same while some ring is crowded, or work is held back or followed: nobody rings when
/// it may go on.
const SHORT_SLEEP: Ns = Ns(200_000);
/// The same while doorbells cannot be heard: an eighth of the time since the last work, between
/// [`SHORT_SLEEP`] and this.
const DEAF_SLEEP: Ns = Ns(2_000_000);
/// How often the processors are counted again, at most.
const COUNT: Ns = Ns(1_000_000_000);
/// How often is looked for a debugger, at most.
const TRACER: Ns = Ns(100_000_000);

/// Looks until the process ends, or in a forked child at once.
pub(crate) fn run() {
    let mut looks = Looks::new();
    while looks.look().is_some() {}
}

/// What the worker knows from look to look.
struct Looks {
    poll: Poll,
    backoff: PollBackoff,
    cpus: Cpus,
    counted: Ns,
    last_work: Ns,
    /// Whether the last look found no processor to poll on.
    rests: bool,
    /// Since when no call has come, while doorbells are open, and how many had come before.
    called: Option<(Ns, u64)>,
    /// Whether a debugger traces the program, and since when that is known.
    traced: bool,
    asked: Ns,
}

fn now() -> Ns {
    Ns(sys::now_ns())
}

impl Looks {
    fn new() -> Self {
        let now = now();
        Self {
            poll: Poll::new(),
            backoff: PollBackoff::new().resume(processors::preemptions(), now),
            cpus: processors::count(),
            counted: now,
            last_work: now,
            rests: false,
            called: None,
            traced: sys::is_traced(),
            asked: now,
        }
    }

    /// Looks once, and sleeps where that is to be done; `None` in a forked child.
    fn look(&mut self) -> Option<()> {
        let mut shared = worker::lock()?;
        let progress = shared.publish() > 0;
        let now = now();
        if progress {
            self.last_work = now;
        }
        if self.backoff.is_due(now) {
            self.backoff = self.backoff.end(processors::preemptions(), now);
        }
        if !self.backoff.may_poll(self.cpus, now) {
            return self.rest(shared);
        }
        self.rests = false;
        self.called = None;
        calls::close();
        if now - self.last_work > self.poll.time() {
            return self.sleep(shared);
        }
        if worker::armed() {
            shared.disarm();
        }
        drop(shared);
        core::hint::spin_loop();
        while worker::wanted() {
            std::thread::yield_now();
        }
        Some(())
    }

    /// Arms the doorbells, looks once more and sleeps until one rings.
    fn sleep(&mut self, mut shared: Held) -> Option<()> {
        let seen = worker::bell();
        let armed = self.arm(&mut shared, false);
        if shared.publish() > 0 {
            shared.disarm();
            self.worked(now());
            return Some(());
        }
        let timeout = self.timeout(&shared, armed);
        self.pause(shared, seen, timeout);
        let mut shared = worker::lock()?;
        let rung = worker::bell() != seen;
        shared.disarm();
        if shared.publish() > 0 || rung {
            self.worked(now());
        }
        Some(())
    }

    /// There is no processor to poll on: whoever rings publishes. Looks after the rest.
    fn rest(&mut self, mut shared: Held) -> Option<()> {
        if calls::is_open() {
            if self.stays_open(&mut shared) {
                let timeout = Self::no_longer_than(doorbell::LOOK, &shared);
                self.pause(shared, worker::bell(), timeout);
                return Some(());
            }
        } else if self.rests && !worker::armed() {
            // A store that could not be left out must get through before the next one faults.
            let timeout = self.timeout(&shared, false);
            self.pause(shared, worker::bell(), timeout);
            shared = worker::lock()?;
        }
        self.rests = true;
        self.called = None;
        let seen = worker::bell();
        let armed = self.arm(&mut shared, true);
        calls::close();
        if shared.publish() > 0 {
            self.last_work = now();
        }
        let timeout = self.timeout(&shared, armed);
        self.pause(shared, seen, timeout);
        Some(())
    }

    /// Returns whether doorbells stay open, after a look: nothing was missed, and the program calls.
    fn stays_open(&mut self, shared: &mut Held) -> bool {
        let now = now();
        if shared.session.has_news() && !calls::is_under_way() {
            shared.doorbells = shared.doorbells.missed();
            STATS.missed.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let (since, calls) = *self.called.get_or_insert((now, shared.calls));
        if calls != shared.calls {
            self.called = Some((now, shared.calls));
        } else if now - since > doorbell::IDLE {
            shared.doorbells = shared.doorbells.silent();
            return false;
        }
        true
    }

    /// Arms the doorbells, unless a debugger would stop the program at each fault; `false` if they
    /// must be looked at.
    fn arm(&mut self, shared: &mut Held, stay: bool) -> bool {
        let now = now();
        if now - self.asked > TRACER {
            self.traced = sys::is_traced();
            self.asked = now;
        }
        if self.traced && worker::armed() {
            shared.disarm();
        }
        !self.traced && shared.arm(stay)
    }

    /// How long to sleep; for a short while where nobody would wake it in time.
    fn timeout(&self, shared: &Held, armed: bool) -> Ns {
        let idle = (now() - self.last_work) / 8;
        let longest = match armed {
            true => SLEEP,
            false => idle.clamp(SHORT_SLEEP, DEAF_SLEEP),
        };
        Self::no_longer_than(longest, shared)
    }

    /// That, or less while something is to be looked after.
    fn no_longer_than(longest: Ns, shared: &Held) -> Ns {
        match shared.unfinished() {
            true => SHORT_SLEEP,
            false => longest,
        }
    }

    /// Sleeps.
    fn pause(&mut self, shared: Held, seen: u32, timeout: Ns) {
        self.backoff = self.backoff.pause(processors::preemptions(), now());
        worker::rest(shared, seen, timeout);
        let now = now();
        if now - self.counted > COUNT {
            self.cpus = processors::count();
            self.counted = now;
        }
        self.backoff = self.backoff.resume(processors::preemptions(), now);
    }

    /// Work has come after a sleep.
    fn worked(&mut self, now: Ns) {
        let pause = now - self.last_work;
        self.poll = self.poll.after_sleep(pause);
        self.last_work = now;
    }
}
