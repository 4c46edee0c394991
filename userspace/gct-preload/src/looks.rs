// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the worker: a thread that publishes the work of the program's threads and watches the work
//! in flight.

use crate::calls;
use crate::ending;
use crate::fault;
use crate::forks;
use crate::locks::First;
use crate::processors;
use crate::stats::{self, STATS};
use crate::sys;
use crate::worker::{self, Held, AWAITED};
use core::sync::atomic::{AtomicBool, Ordering};
use gct_core::policy::doorbell;
use gct_core::policy::poll_backoff::PollBackoff;
use gct_core::units::{Cpus, Ns};

/// The longest sleep. A tenant that waits for room in its ring does not ring.
const SLEEP: Ns = Ns(1_000_000_000);
/// The longest sleep while doorbells cannot fault. The sleep is an eighth of the time since the
/// last work, between [`AWAITED`] and this.
const DEAF_SLEEP: Ns = Ns(2_000_000);
/// Time after the last ring for which the worker polls while doorbells cannot fault.
const DEAF_POLL: Ns = Ns(5_000_000);
/// Polling time after which doorbells are disarmed.
const DISARM: Ns = Ns(50_000);
/// Polling time after the end of paced work. A loop that launches, waits and launches again is
/// polled for throughout.
const LINGER: Ns = Ns(4_000);
/// The minimum time between two counts of the processors.
const COUNT: Ns = Ns(1_000_000_000);
/// The minimum time between two checks for a debugger, and for a handler that was installed past
/// the library.
const CHECK: Ns = Ns(100_000_000);

/// Reports the statistics when the program ends. The first channel causes that.
pub(crate) fn report_at_exit() {
    static REPORTS: AtomicBool = AtomicBool::new(false);
    forks::manage();
    if !REPORTS.swap(true, Ordering::Relaxed) {
        stats::write_at_exit(worker::finish);
    }
}

/// Returns whether a worker thread publishes for this process. The first call starts it, before a
/// channel is managed. If the system allows no thread then, there is never one.
pub(crate) fn serves() -> bool {
    // The lock of the shared state is held, so no two threads start a worker.
    static SERVES: First<bool> = First::new();
    *SERVES.get_or_init(|| {
        let started = processors::spawn("gct-worker", run);
        if !started {
            sys::say("gctgroup: no thread can be made: no limit on launches binds this program\n");
        }
        started
    })
}

/// Runs the worker's loop until the process ends. Returns at once in an inert child.
fn run() {
    processors::wake_in_time();
    let mut looks = Looks::new();
    while looks.look().is_some() {}
}

/// The worker's state between two rounds.
struct Looks {
    backoff: PollBackoff,
    cpus: Cpus,
    counted: Ns,
    /// Whether the last round left the rings to the ringing threads.
    rests: bool,
    /// Whether doorbells could not be armed, so that only polling finds their rings.
    deaf: bool,
    /// The start of this poll.
    polls_since: Option<Ns>,
    /// When paced work was last in flight.
    paced: Ns,
    /// While doorbells are open: the time of the last call, and the number of calls then.
    called: Option<(Ns, u64)>,
    /// Whether a debugger traces the program, and the time of the last [`CHECK`].
    traced: bool,
    asked: Ns,
}

fn now() -> Ns {
    Ns(sys::now_ns())
}

impl Looks {
    fn new() -> Self {
        let now = now();
        let cpus = processors::count();
        worker::set_processors(cpus);
        Self {
            backoff: PollBackoff::new().resume(processors::preemptions(), now),
            cpus,
            counted: now,
            rests: false,
            deaf: false,
            polls_since: None,
            paced: Ns(0),
            called: None,
            traced: sys::is_traced(),
            asked: now,
        }
    }

    /// Runs one round: publishes, and sleeps if there is nothing to poll for. Returns `None` in an
    /// inert child.
    fn look(&mut self) -> Option<()> {
        ending::again();
        let mut shared = worker::lock()?;
        shared.publish();
        let now = now();
        if self.backoff.is_due(now) {
            self.backoff = self.backoff.end(processors::preemptions(), now);
        }
        if !self.polls(&shared, now) {
            self.polls_since = None;
            return self.rest(shared);
        }
        // A short poll leaves the doorbells as they are: to change them costs more than a fault.
        if now - *self.polls_since.get_or_insert(now) > DISARM {
            self.rests = false;
            self.called = None;
            calls::close();
            if worker::armed() {
                shared.disarm();
            }
        }
        drop(shared);
        core::hint::spin_loop();
        while worker::wanted() {
            std::thread::yield_now();
        }
        Some(())
    }

    /// Returns whether to poll: for rings in quick succession, for the end of a piece that another
    /// one follows, or for all work if doorbells cannot be armed.
    fn polls(&mut self, shared: &Held, now: Ns) -> bool {
        let idle = shared.poll.idle(now);
        let recent = idle <= DEAF_POLL;
        if recent && shared.is_paced() {
            self.paced = now;
        }
        let pays = shared.poll.pays(now) || now - self.paced <= LINGER || (self.deaf && recent);
        pays && self.backoff.may_poll(self.cpus, now)
    }

    /// Runs a round without polling: the ringing threads publish, and the worker does the rest.
    fn rest(&mut self, mut shared: Held) -> Option<()> {
        if calls::is_open() {
            if self.stays_open(&mut shared) {
                let timeout = Self::no_longer_than(doorbell::LOOK, &shared);
                self.pause(shared, worker::bell(), timeout);
                return Some(());
            }
        } else if self.rests && !worker::armed() {
            // A store that could not be skipped must complete before the next one faults.
            let timeout = Self::timeout(&shared, false);
            self.pause(shared, worker::bell(), timeout);
            shared = worker::lock()?;
        }
        self.rests = true;
        self.called = None;
        let seen = worker::bell();
        let armed = self.arm(&mut shared);
        self.deaf = !armed;
        calls::close();
        shared.publish();
        let timeout = Self::timeout(&shared, armed);
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
    fn arm(&mut self, shared: &mut Held) -> bool {
        let now = now();
        if now - self.asked > CHECK {
            self.traced = sys::is_traced();
            fault::in_front();
            self.asked = now;
        }
        if self.traced && worker::armed() {
            shared.disarm();
        }
        !self.traced && shared.arm()
    }

    /// Returns how long to sleep. The time is short if no ring would wake the worker.
    fn timeout(shared: &Held, armed: bool) -> Ns {
        let idle = shared.poll.idle(now());
        let longest = match armed {
            // The next launch need not wake the worker to look at what nobody awaits.
            true if idle <= doorbell::IDLE && shared.governors.is_unawaited() => doorbell::LOOK,
            true => SLEEP,
            false => (idle / 8).clamp(AWAITED, DEAF_SLEEP),
        };
        Self::no_longer_than(longest, shared)
    }

    /// Returns `longest`, or less while work must be looked at.
    fn no_longer_than(longest: Ns, shared: &Held) -> Ns {
        shared
            .look_within()
            .map_or(longest, |within| longest.min(within))
    }

    /// Sleeps until the bell rings or `timeout` has passed.
    fn pause(&mut self, shared: Held, seen: u32, timeout: Ns) {
        self.backoff = self.backoff.pause(processors::preemptions(), now());
        worker::rest(shared, seen, timeout);
        let now = now();
        if now - self.counted > COUNT {
            self.cpus = processors::count();
            worker::set_processors(self.cpus);
            self.counted = now;
        }
        self.backoff = self.backoff.resume(processors::preemptions(), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gct_core::policy::poll::Poll;

    /// Returns whether the worker polls after rings that lie `gap` apart.
    fn polls_after(gap: Ns, deaf: bool) -> bool {
        let mut looks = Looks::new();
        (looks.cpus, looks.deaf) = (Cpus::whole(8), deaf);
        let mut shared = worker::lock().unwrap();
        let mut now = now();
        for _ in 0..1_000 {
            now += gap;
            shared.poll = shared.poll.rang(now);
        }
        let polls = looks.polls(&shared, now);
        shared.poll = Poll::new();
        polls
    }

    #[test]
    fn single_launches_are_polled_for_only_where_no_doorbell_faults() {
        assert!(polls_after(Ns(4_000), false));
        assert!(!polls_after(Ns(50_000), false));
        assert!(polls_after(Ns(50_000), true));
    }
}
