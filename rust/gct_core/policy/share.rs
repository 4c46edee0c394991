// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides whose turn it is on a GPU (`compute.weight`), and when an owner has used its duty cycle
//! (`compute.max`, [`cycle`]).
//!
//! Terminology
//!   owner      a group, or a process without a group
//!   sibling    another process of the same owner
//!   rival      another process of the GPU, siblings included
//!   contender  a process that has work in flight, or work that only its weight holds back
//!   position   virtual time: GPU time of a process divided by its weight
//!   clock      the smallest position of the contenders; it never goes back
//!   window     the GPU time that a process may be ahead of the clock
//!   turn       the time for which a process runs while its rivals wait
//!
//! ```text
//! weight    = weight of the owner / contenders of the owner
//! runs:     position += time / processes that run * 100 / weight
//! waits:    position + work in flight - clock > WINDOW * 100 / weight
//!           a rival runs, and is not OVERDUE ahead                    } apart: siblings, too
//!           nobody runs, and others are further behind (for HANDOVER each)
//!           apart: it runs, and so does a rival that is further behind
//! wakes:    position = max(position, clock, siblings' positions)    # idle time is not banked
//! resumes:  position = max(position, least)                         # after an earlier rank's work
//! turn(r)   = LAG_MAX * 100 / weight(r)
//! least     = max(clock - turn of the least weight, position(r) - turn(r) for each r there),
//!             and the clock at most
//! lingers:  a contender stays one for 2 * pause + HANDOVER, and LINGER_MAX at most, if 2 * pause
//!           is at most run / 2 or LINGER_MIN    # pause, run: averages of its pauses and of runs
//!                                               # between them
//! ```
//!
//! Contenders take turns, with or without MPS: what a process had of the GPU is then the time for
//! which its work was in flight. Where work of two overlaps, each is charged its part of the time.
//! A turn lasts the window and the lag of the process, so that its change costs little. Siblings
//! run beside each other in the turn of their owner. Where nobody wrote a weight and each piece of
//! another process costs a change of contexts, each sibling has a turn of its own. The work of an
//! earlier rank interrupts a turn and does not end it: who is held back keeps its position, and
//! shows that it does.
//!
//! The contender that is furthest behind always may run, in everybody's view: positions are
//! published, each by its process. So two processes never wait for each other.
//!
//! No process trusts a rival's position. While a rival runs, or has its turn and nobody runs, each
//! observer moves the rival's position itself, at half the speed at which an honest one moves. So a
//! rival that does not move, or lies, delays others for at most twice the time of its turn. A rival
//! that claims to be far ahead delays nobody but itself: positions count only in comparison, and
//! who wakes begins at the clock.
//!
//! More processes do not make the share of an owner larger. They divide its weight, and one that
//! wakes begins where its siblings are.

pub mod cycle;
pub mod place;
mod position;
mod rival;

use crate::units::{Ns, Sat, Weight};
pub use cycle::{Cycle, DutyCycle, Spent};
pub use place::{Place, Relation};
pub use position::Virtual;
pub(crate) use rival::number;
pub use rival::{Rival, Sign};

/// The GPU time that a process may be ahead of the clock. A turn lasts a few of these, beside which
/// the change of contexts (0.2 ms without MPS) is short. Over a second it is 0.2% of the GPU.
pub const WINDOW: Ns = Ns(2_000_000);
/// How long work in flight may take to end when an earlier rank has come.
const DRAIN_MAX: Ns = Ns(5_000_000);
/// How far a running rival must be ahead of its window until others run beside it. A piece in
/// flight cannot be stopped, and may never end.
pub const OVERDUE: Ns = Ns(20_000_000);
/// How far behind the clock a process may be that an earlier rank has held back: as far as the
/// rival with the least weight gets ahead until others run beside it.
const LAG_MAX: Ns = Ns(WINDOW.get() + OVERDUE.get());
/// How long a free GPU waits for each contender that is further behind: two looks of a process. Two
/// that begin at once cost two changes of contexts.
pub const HANDOVER: Ns = Ns(100_000);
/// The longest time for which a process without work stays a contender.
pub const LINGER_MAX: Ns = Ns(1_000_000);
/// How long it does so however short its runs are.
const LINGER_MIN: Ns = Ns(200_000);
/// How long a process that begins again waits for rivals that may not have seen yet that they may.
const RESUME_MAX: Ns = Ns(200_000);
/// The GPU time that a process owes at most when it wakes.
const DEBT_MAX: Ns = Ns(10_000_000_000);
/// How far siblings may be ahead of the clock for a process that wakes. A sibling that lies delays
/// it by this.
const SIBLINGS_AHEAD: Ns = Ns(100_000_000);
/// A longer pause counts as this in the average, and a longer run as that.
const PAUSE_MAX: Ns = Ns(1_000_000);
const RUN_MAX: Ns = Ns(8_000_000);
/// The longest time that is charged at once: a process that does not look for longer was stopped.
const STEP_MAX: Ns = Ns(250_000_000);
/// The longest time for which the clock moves at once.
const LOOK_MAX: Ns = Ns(1 << 50);
/// The weight at which virtual time is GPU time.
const UNIT: u64 = 100;
/// How much faster than time the clock may move. A weight of 1 moves it by 100.
const SPEED_MAX: u64 = 1_000;

/// The limits of one owner or process. `None` is what nobody wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// `compute.weight`.
    pub weight: Option<Weight>,
    /// `compute.max`.
    pub max: Option<DutyCycle>,
}

/// The limits of a process on its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The limits of its owner, which it shares with its siblings.
    pub owner: Level,
    /// The limits of the process itself, if its owner is a group.
    pub own: Level,
}

impl Share {
    /// No limit.
    pub const NONE: Self = Self {
        owner: Level {
            weight: None,
            max: None,
        },
        own: Level {
            weight: None,
            max: None,
        },
    };

    /// Returns the weight that binds the process if it has no contending sibling; `None` if nobody
    /// wrote one.
    pub fn weight(&self) -> Option<Weight> {
        match (self.owner.weight, self.own.weight) {
            (Some(owner), Some(own)) => Some(if own.get() < owner.get() { own } else { owner }),
            (owner, own) => owner.or(own),
        }
    }

    /// Returns the virtual time of `time` if `sharers` processes divide the owner's weight.
    fn virtual_time(&self, time: Ns, sharers: u64) -> Ns {
        let owner = self.owner.weight.unwrap_or(Weight::DEFAULT);
        let of = |weight: Weight, part: u64| {
            time.scale(UNIT.saturating_mul(part), u64::from(weight.get().max(1)))
        };
        let own = self.own.weight.map_or(Ns(0), |own| of(own, 1));
        of(owner, sharers).max(own)
    }
}

/// What a process has on a GPU at the end of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// No work, or its own limits hold it back.
    Idle,
    /// Work that must wait for TPCs: an earlier rank has them, or a reservation.
    Held,
    /// Work that only the turns of others hold back.
    Waits,
    /// Work in flight.
    Runs,
}

/// The turns of one process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turns {
    at: Virtual,
    clock: Virtual,
    /// The time of the last look.
    since: Ns,
    /// The time until which it contends, as in [`Sign`].
    contends_until: Ns,
    runs: bool,
    /// Whether siblings have turns of their own.
    apart: bool,
    /// When it began again after the work of others that are no rivals.
    resumed: Ns,
    /// How long nobody has run.
    free: Ns,
    /// Siblings that contend, and this process.
    sharers: u64,
    /// The time when it had work last, and whether it has had none since.
    worked: Ns,
    rests: bool,
    /// Its average pause, and its average run between two pauses.
    pause: Option<Ns>,
    run: Ns,
    /// How long it has run since its last pause.
    ran: Ns,
}

impl Turns {
    /// Returns the position.
    pub fn at(&self) -> Virtual {
        self.at
    }

    /// Returns the time until which the process contends, as in [`Sign`].
    pub fn contends_until(&self) -> Ns {
        self.contends_until
    }

    fn contends(&self) -> bool {
        self.contends_until > self.since && self.contends_until != Sign::KEEPS
    }

    /// Returns whether a rival counts for the clock. One that keeps its position does while this
    /// process may not have seen yet what the rival has: that an earlier rank has work, or none.
    fn meets(&self, rival: &Rival) -> bool {
        let is_fresh = self.since - rival.kept_since < DRAIN_MAX;
        let resumes = self.since - self.resumed < RESUME_MAX;
        rival.contends || (rival.keeps && (is_fresh || resumes))
    }

    /// Sets whether siblings have turns of their own.
    pub fn set_apart(&mut self, apart: bool) {
        self.apart = apart;
    }

    /// Takes over what the rivals publish, and charges the time since the last look to whoever had
    /// the GPU.
    pub fn look(&mut self, share: &Share, rivals: &mut [Rival], now: Ns) {
        let passed = (now - self.since).min(LOOK_MAX);
        self.since = now;
        // Only who contends has looked at the time that has passed.
        let time = match self.contends_until {
            Ns::MAX => passed.min(STEP_MAX),
            _ => Ns(0),
        };
        let meets = rivals.iter().any(|rival| !rival.known);
        let least = self.least(self.clock, share, rivals);
        for rival in rivals.iter_mut() {
            rival.follow(self.clock, least, now);
        }
        let siblings = rivals.iter().filter(|r| r.contends && r.relation.sibling);
        self.sharers = number(siblings).saturating_add(1);
        let running = number(rivals.iter().filter(|r| r.runs()));
        let running = running.saturating_add(u64::from(self.runs));
        match running {
            0 => {
                self.free += time;
                self.charge_next(share, rivals, time);
            }
            _ => {
                self.free = Ns(0);
                let part = time / running;
                self.charge(share, part, self.runs);
                self.ran += if self.runs { part } else { Ns(0) };
                for rival in rivals.iter_mut().filter(|r| r.runs()) {
                    rival.at = rival.at.after(rival.virtual_time(part / 2));
                }
            }
        }
        self.advance(rivals, passed);
        if meets {
            self.align(share, rivals);
        }
    }

    fn charge(&mut self, share: &Share, time: Ns, applies: bool) {
        if applies {
            self.at = self.at.after(share.virtual_time(time, self.sharers));
        }
    }

    /// Charges time in which nobody ran to the contender that is furthest behind, if others wait.
    fn charge_next(&mut self, share: &Share, rivals: &mut [Rival], time: Ns) {
        let mine = self.contends();
        let mut first: Option<&mut Rival> = None;
        for rival in rivals.iter_mut().filter(|r| r.contends) {
            if mine && !rival.is_before(self.at) {
                continue;
            }
            if first.as_ref().is_none_or(|first| rival.is_before(first.at)) {
                first = Some(rival);
            }
        }
        match first {
            Some(first) => first.at = first.at.after(first.virtual_time(time / 2)),
            None => {
                let others_wait = rivals.iter().any(|r| r.contends);
                self.charge(share, time, mine && others_wait);
            }
        }
    }

    /// Takes back the charge for the last `time` of a run, after which nothing was in flight.
    pub fn refund(&mut self, share: &Share, time: Ns) {
        self.at = self.at.before(share.virtual_time(time, self.sharers));
    }

    /// Moves the clock in the `time` since the last look, not faster than [`SPEED_MAX`].
    fn advance(&mut self, rivals: &[Rival], time: Ns) {
        let own = self.contends().then_some(self.at);
        let contenders = rivals.iter().filter(|r| self.meets(r)).map(|r| r.at);
        let smallest = contenders.chain(own).reduce(Virtual::min);
        let competing = rivals.iter().filter(|r| r.relation.competes).map(|r| r.at);
        // Nobody contends: the next one begins where the last one has stopped.
        if let Some(found) = smallest.or_else(|| competing.reduce(Virtual::max)) {
            let bound = self.clock.after(time * SPEED_MAX);
            self.clock = self.clock.max(found.min(bound));
        }
    }

    /// Moves to the clock, or to siblings that are ahead of it.
    fn align(&mut self, share: &Share, rivals: &[Rival]) {
        let clock = self.clock_of(rivals);
        let after = |time| clock.after(share.virtual_time(time, self.sharers));
        let own = self.at.max(clock).min(after(DEBT_MAX));
        let siblings = rivals
            .iter()
            .filter(|r| r.relation.sibling && r.relation.competes)
            .map(|r| r.at.min(after(SIBLINGS_AHEAD)));
        self.at = siblings.fold(own, Virtual::max);
        self.clock = clock;
    }

    /// Returns the clock as the contenders show it.
    fn clock_of(&self, rivals: &[Rival]) -> Virtual {
        let others = rivals.iter().filter(|r| self.meets(r)).map(|r| r.at);
        others
            .reduce(Virtual::min)
            .map_or(self.clock, |at| at.max(self.clock))
    }

    /// Returns the least position at which a process begins that was held back. It is behind the
    /// position of each process there by one turn of that process at most, and not beyond the
    /// clock. A rival with a small weight moves far in one turn, and takes the clock along if
    /// nobody else contends. The others make up for that turn, and not for as much of each other.
    fn least(&self, clock: Virtual, share: &Share, rivals: &[Rival]) -> Virtual {
        let own = share.virtual_time(LAG_MAX, self.sharers);
        let there = rivals.iter().filter(|r| r.contends || r.keeps);
        let turns = there.map(|r| (r.at, r.virtual_time(LAG_MAX)));
        let (behind, lag) = turns.fold((self.at.before(own), own), |(behind, lag), (at, turn)| {
            (behind.max(at.before(turn)), lag.max(turn))
        });
        clock.before(lag).max(behind).min(clock)
    }

    /// Begins again after the work of others that are no rivals. The turn goes on, if the process
    /// had one, and its lag is kept.
    fn resume(&mut self, share: &Share, rivals: &[Rival]) {
        self.resumed = self.since;
        let clock = self.clock_of(rivals);
        let least = self.least(clock, share, rivals);
        let debt = share.virtual_time(DEBT_MAX, self.sharers);
        self.at = self.at.max(least).min(clock.after(debt));
        self.clock = clock;
        self.free = Ns(0);
    }

    /// Records that the process has work that may be released. Idle time is not banked.
    fn wake(&mut self, share: &Share, rivals: &[Rival]) {
        self.align(share, rivals);
        self.end_pause();
    }

    /// Counts the pause that the present work ends, once. The wait for an earlier rank is no part
    /// of it.
    fn end_pause(&mut self) {
        if core::mem::take(&mut self.rests) {
            let pause = (self.since - self.worked).min(PAUSE_MAX);
            let average = self.pause.unwrap_or(PAUSE_MAX);
            self.pause = Some(average - average / 4 + pause / 4);
        }
    }

    /// Counts the run that the present pause ends, once.
    fn end_run(&mut self) {
        if !core::mem::replace(&mut self.rests, true) {
            let ran = core::mem::take(&mut self.ran);
            self.run = self.run - self.run / 4 + ran.min(RUN_MAX) / 4;
        }
    }

    /// Returns how long a process stays a contender that pauses now; 0 if it usually pauses for too
    /// long. Rivals see both ends of a pause a look late.
    fn lingers(&self) -> Ns {
        let most = (self.run / 2).clamp(LINGER_MIN, LINGER_MAX);
        let time = self.pause.unwrap_or(PAUSE_MAX) * 2;
        if time <= most {
            (time + HANDOVER).min(LINGER_MAX)
        } else {
            Ns(0)
        }
    }

    /// Records that the process has a piece that only its turn may hold back. [`look`](Self::look)
    /// comes first.
    pub fn contend(&mut self, share: &Share, rivals: &[Rival]) {
        match self.contends_until {
            Sign::KEEPS => self.resume(share, rivals),
            _ if !self.contends() => self.wake(share, rivals),
            _ => {}
        }
        self.contends_until = Ns::MAX;
        if !rivals.iter().any(|rival| self.meets(rival)) {
            // The clock is the position of the only contender: a debt delays nobody who is alone.
            self.clock = self.clock.max(self.at);
        }
    }

    /// Returns whether a process that contends may release a piece, with work predicted to take
    /// `in_flight` in flight.
    pub fn may_release(&self, share: &Share, rivals: &[Rival], in_flight: Ns) -> bool {
        let sharers = if self.apart { self.sharers } else { 1 };
        let window = share.virtual_time(WINDOW, sharers);
        let ahead = self
            .at
            .after(share.virtual_time(in_flight, self.sharers))
            .ahead_of(self.clock);
        if ahead > window {
            return false;
        }
        if self.runs {
            return !self.apart || !rivals.iter().any(|r| r.runs() && r.is_before(self.at));
        }
        let mut before = Sat(0u64);
        for rival in rivals.iter().filter(|r| r.contends && self.waits_for(r)) {
            let is_overdue = rival.at.ahead_of(self.at) > rival.virtual_time(WINDOW + OVERDUE);
            match rival.sign.runs {
                true if !is_overdue => return false,
                false if rival.is_before(self.at) => before += 1,
                _ => {}
            }
        }
        self.free >= HANDOVER * before.0
    }

    /// Returns whether a contender's turn is not that of this process.
    fn waits_for(&self, rival: &Rival) -> bool {
        self.apart || !rival.relation.sibling
    }

    /// Ends a round.
    pub fn end(&mut self, work: Work) {
        self.runs = work == Work::Runs;
        match work {
            Work::Runs | Work::Waits => self.rests = false,
            Work::Held => self.end_pause(),
            Work::Idle => self.end_run(),
        }
        match (work, self.contends_until) {
            (Work::Runs | Work::Waits, _) => {
                self.contends_until = Ns::MAX;
                self.worked = self.since;
            }
            // Also who comes back from a short pause.
            (Work::Held, _) if self.contends() => self.contends_until = Sign::KEEPS,
            (Work::Idle, Sign::KEEPS) => self.contends_until = Ns(0),
            (Work::Idle, Ns::MAX) => {
                self.contends_until = match self.lingers() {
                    Ns(0) => Ns(0),
                    time => self.since + time,
                };
            }
            (Work::Held | Work::Idle, _) => {}
        }
    }
}

#[cfg(test)]
mod tests;
