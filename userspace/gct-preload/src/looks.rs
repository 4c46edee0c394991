// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The worker: a thread that publishes what the program's threads submit, and looks after what is in
//! flight.

use crate::processors;
use crate::sys;
use crate::worker::{self, Held};
use gct_core::policy::poll::Poll;
use gct_core::policy::poll_backoff::{Cpus, PollBackoff};
use gct_core::units::Ns;

/// Sleep at most this long: a tenant that waits for room in its ring does not ring.
const SLEEP_NS: i64 = 1_000_000_000;
/// The same while some ring is crowded, or work is held back or followed: nobody rings when
/// it may go on.
const SHORT_SLEEP_NS: i64 = 200_000;
/// The same while doorbells cannot be heard: an eighth of the time since the last work, between
/// [`SHORT_SLEEP_NS`] and this.
const DEAF_SLEEP_NS: i64 = 2_000_000;
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
        if now.saturating_sub(self.last_work) > self.poll.time() {
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
        self.pause(shared, seen, armed);
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
        if self.rests && !worker::armed() {
            // A store that could not be left out must get through before the next one faults.
            self.pause(shared, worker::bell(), false);
            shared = worker::lock()?;
        }
        self.rests = true;
        let seen = worker::bell();
        let armed = self.arm(&mut shared, true);
        if shared.publish() > 0 {
            self.last_work = now();
        }
        self.pause(shared, seen, armed);
        Some(())
    }

    /// Arms the doorbells, unless a debugger would stop the program at each fault; `false` if they
    /// must be looked at.
    fn arm(&mut self, shared: &mut Held, stay: bool) -> bool {
        let now = now();
        if now.saturating_sub(self.asked) > TRACER {
            self.traced = sys::is_traced();
            self.asked = now;
        }
        if self.traced && worker::armed() {
            shared.disarm();
        }
        !self.traced && shared.arm(stay)
    }

    /// Sleeps; for a short while where nobody would wake it in time.
    fn pause(&mut self, shared: Held, seen: u32, armed: bool) {
        let idle = now().saturating_sub(self.last_work).get() / 8;
        let timeout = match (shared.unfinished(), armed) {
            (true, _) => SHORT_SLEEP_NS,
            (_, false) => i64::try_from(idle)
                .unwrap_or(DEAF_SLEEP_NS)
                .clamp(SHORT_SLEEP_NS, DEAF_SLEEP_NS),
            _ => SLEEP_NS,
        };
        self.backoff = self.backoff.pause(processors::preemptions(), now());
        worker::rest(shared, seen, timeout);
        let now = now();
        if now.saturating_sub(self.counted) > COUNT {
            self.cpus = processors::count();
            self.counted = now;
        }
        self.backoff = self.backoff.resume(processors::preemptions(), now);
    }

    /// Work has come after a sleep.
    fn worked(&mut self, now: Ns) {
        let pause = now.saturating_sub(self.last_work);
        self.poll = self.poll.after_sleep(pause);
        self.last_work = now;
    }
}
