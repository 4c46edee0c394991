// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the worker: a thread that publishes the work of the program's threads and watches the work
//! in flight.

use crate::calls;
use crate::processors;
use crate::stats::{self, STATS};
use crate::sys;
use crate::worker::{self, Held};
use core::sync::atomic::Ordering;
use gct_core::policy::doorbell;
use gct_core::policy::poll::Poll;
use gct_core::policy::poll_backoff::PollBackoff;
use gct_core::units::{Cpus, Ns};
use std::sync::OnceLock;

/// The longest sleep. A tenant that waits for room in its ring does not ring.
const SLEEP: Ns = Ns(1_000_000_000);
/// The longest sleep while a ring is crowded, or work is held back or in flight and watched: no
/// doorbell rings when that may continue.
const SHORT_SLEEP: Ns = Ns(200_000);
/// The longest sleep while doorbells cannot fault. The sleep is an eighth of the time since the
/// last work, between [`SHORT_SLEEP`] and this.
const DEAF_SLEEP: Ns = Ns(2_000_000);
/// The minimum time between two counts of the processors.
const COUNT: Ns = Ns(1_000_000_000);
/// The minimum time between two checks for a debugger.
const TRACER: Ns = Ns(100_000_000);

/// Returns whether a worker thread publishes for this process. The first call starts it, before a
/// channel is managed. If the system allows no thread then, there is never one.
pub(crate) fn serves() -> bool {
    static SERVES: OnceLock<bool> = OnceLock::new();
    *SERVES.get_or_init(|| {
        worker::watch_forks();
        stats::write_at_exit(worker::finish);
        let started = processors::spawn("gct-worker", run);
        if !started {
            eprintln!("gctgroup: no thread can be made; this program runs without limits");
        }
        started
    })
}

/// Runs the worker's loop until the process ends. Returns at once in a forked child.
fn run() {
    let mut looks = Looks::new();
    while looks.look().is_some() {}
}

/// The worker's state between two rounds.
struct Looks {
    poll: Poll,
    backoff: PollBackoff,
    cpus: Cpus,
    counted: Ns,
    last_work: Ns,
    /// Whether the last round found no spare processor to poll on.
    rests: bool,
    /// While doorbells are open: the time of the last call, and the number of calls then.
    called: Option<(Ns, u64)>,
    /// Whether a debugger traces the program, and when that was checked.
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

    /// Runs one round: publishes, and sleeps if there is nothing to poll for. Returns `None` in a
    /// forked child.
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

    /// Arms the doorbells, publishes once more and sleeps until one rings.
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

    /// Runs a round without a spare processor: the ringing threads publish, and the worker does the
    /// rest.
    fn rest(&mut self, mut shared: Held) -> Option<()> {
        if calls::is_open() {
            if self.stays_open(&mut shared) {
                let timeout = Self::no_longer_than(doorbell::LOOK, &shared);
                self.pause(shared, worker::bell(), timeout);
                return Some(());
            }
        } else if self.rests && !worker::armed() {
            // A store that could not be skipped must complete before the next one faults.
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

    /// Returns whether doorbells may stay open: no ring was missed, and calls still come.
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

    /// Arms the doorbells, unless a debugger would stop the program at each fault. Returns false if
    /// they must be polled.
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

    /// Returns how long to sleep. The time is short if no ring would wake the worker.
    fn timeout(&self, shared: &Held, armed: bool) -> Ns {
        let idle = (now() - self.last_work) / 8;
        let longest = match armed {
            true => SLEEP,
            false => idle.clamp(SHORT_SLEEP, DEAF_SLEEP),
        };
        Self::no_longer_than(longest, shared)
    }

    /// Returns `longest`, or less while work must be watched.
    fn no_longer_than(longest: Ns, shared: &Held) -> Ns {
        match shared.unfinished() {
            true => SHORT_SLEEP,
            false => longest,
        }
    }

    /// Sleeps until the bell rings or `timeout` has passed.
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

    /// Records work that came after a sleep.
    fn worked(&mut self, now: Ns) {
        let pause = now - self.last_work;
        self.poll = self.poll.after_sleep(pause);
        self.last_work = now;
    }
}
