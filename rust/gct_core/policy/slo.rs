// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decides how hard a service's neighbours are pressed, so that its requests keep `slo.p99`.
//!
//! Terminology
//!   request  what a process waits for, or its work between two pauses ([`request`])
//!   goal     `slo.p99`: 99% of the requests end within it
//!   window   the requests that one decision rests on
//!   level    how hard the others are pressed ([`press`])
//!   room     p99 is at most three quarters of the goal
//!   debt     requests that have to keep the goal before a level is given back: [`REPAY`] for each
//!            that exceeded it. So at most half of the 1% that may exceed it is spent on steps down
//!
//! ```text
//! each window (ENOUGH requests, or WINDOW_MAX of time, or OVERDUE looks at one that had not ended
//!              within the goal; the first look after a change is left out):
//!     missed = more than max(requests / 100, 1) of them exceeded the goal
//!     not missed:
//!         debt -= max(requests, REPAID_MIN for each second)      # so it lasts an hour at most
//!         debt = 0, room for PATIENCE windows in a row, and level > 0:  level -= 1  # give back
//!     missed:
//!         level < LEVELS:           level += 1
//!         else: cannot. level = the least whose p99 was at most 3/2 of the best one's
//!               after `retry` windows, twice as many each time: level = 0, and so on
//! ```
//!
//! So a level changes by one in a window, but for the two moves of the last lines. The more
//! requests a step down has cost, the later is the next one: a queue that grows in seconds is paid
//! for in minutes. Pressing that does not help is taken back.

pub mod allowance;
pub mod histogram;
pub mod press;
pub mod request;

use crate::units::{Ns, Sat, Us};
use histogram::Histogram;
use press::LEVELS;

/// The requests of a window. With 200, three must miss the goal; if one in 300 exceeds it, that
/// happens by chance in 3% of the windows.
const ENOUGH: u64 = 200;

/// How long a window waits for [`ENOUGH`] requests.
pub const WINDOW_MAX: Ns = Ns(10_000_000_000);

/// The looks at requests that have not ended within the goal that end a window. A service that gets
/// too little done has few that end, or none.
const OVERDUE: u32 = 3;

/// How often the requests are looked at.
pub const LOOK_EVERY: Ns = Ns(1_000_000_000);

/// Windows with room after which a level is given back.
const PATIENCE: u32 = 3;

/// The requests that pay for one that exceeded the goal.
const REPAY: u64 = 200;

/// The largest debt.
const DEBT_MAX: u64 = 180_000;

/// What a second repays at least.
const REPAID_MIN: u64 = DEBT_MAX / 3_600;

/// Windows after which a goal that could not be kept is tried again, at first and at most.
const RETRY: u32 = 8;
const RETRY_MAX: u32 = 64;

/// What a controller has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Requests that have ended since the goal was set.
    pub requests: u64,
    /// The p99 of the last window; 0 before the first.
    pub p99: Us,
    /// Whether the last window kept the goal.
    pub met: bool,
    /// Whether no level keeps the goal.
    pub cannot: bool,
    /// How hard the others are pressed.
    pub level: u8,
    /// For how long they are.
    pub age: Ns,
}

/// Keeps the goal of one service on one GPU.
#[derive(Clone, Debug)]
pub struct Controller {
    goal: Us,
    verdict: Verdict,
    /// When the level was set.
    since: Ns,
    window: Histogram,
    began: Ns,
    overdue: u32,
    /// Whether the requests until the next look began under another level.
    mixed: bool,
    /// Windows with room in a row.
    calm: u32,
    /// The requests that have to keep the goal before a level is given back.
    debt: Sat<u64>,
    /// The p99 at each level since the goal was kept last.
    tried: [Option<Us>; LEVELS as usize + 1],
    /// Windows until the next try, if no level keeps the goal.
    rest: Option<u32>,
    retry: u32,
}

impl Controller {
    /// Creates a controller that presses nobody.
    pub fn new(goal: Us, now: Ns) -> Self {
        Self {
            goal,
            verdict: Verdict::default(),
            since: now,
            window: Histogram::NEW,
            began: now,
            overdue: 0,
            mixed: false,
            calm: 0,
            debt: Sat(0),
            tried: [None; LEVELS as usize + 1],
            rest: None,
            retry: RETRY,
        }
    }

    /// Returns the goal.
    pub fn goal(&self) -> Us {
        self.goal
    }

    /// Sets another goal. The level stays.
    pub fn set_goal(&mut self, goal: Us, now: Ns) {
        let (level, since) = (self.verdict.level, self.since);
        let requests = self.verdict.requests;
        *self = Self::new(goal, now);
        (self.verdict.level, self.verdict.requests) = (level, requests);
        self.since = since;
    }

    /// Takes over the requests that have ended since the last look. `open` is the age of the oldest
    /// one that has not. Returns what holds from now on.
    pub fn look(&mut self, ended: &Histogram, open: Ns, now: Ns) -> Verdict {
        self.verdict.requests = (Sat(self.verdict.requests) + Sat(ended.count())).0;
        let open = Us(open.get() / 1_000);
        if !self.verdict.cannot {
            let missed = Sat(ended.over(self.goal)) + Sat(u64::from(open > self.goal));
            self.debt = (self.debt + missed * Sat(REPAY)).min(Sat(DEBT_MAX));
        }
        if !core::mem::take(&mut self.mixed) {
            self.window.add(ended);
            if open > self.goal {
                self.window.count_one(open);
                self.overdue = self.overdue.saturating_add(1);
            }
        }
        let full = self.window.count() >= ENOUGH || self.overdue >= OVERDUE;
        if full || now - self.began >= WINDOW_MAX {
            self.decide(now);
            self.window = Histogram::NEW;
            self.began = now;
            self.overdue = 0;
        }
        self.verdict.age = now - self.since;
        self.verdict
    }

    fn decide(&mut self, now: Ns) {
        let count = self.window.count();
        let p99 = self.window.p99();
        let missed = self.window.over(self.goal) > (count / 100).max(1);
        self.verdict.met = !missed;
        if count > 0 {
            self.verdict.p99 = p99;
        }
        match missed {
            true => self.miss(p99, now),
            false => self.keep(count, p99 <= self.goal * 3 / 4, now),
        }
    }

    /// Decides after a window of `count` requests that kept the goal.
    fn keep(&mut self, count: u64, room: bool, now: Ns) {
        self.tried = [None; LEVELS as usize + 1];
        self.rest = None;
        self.retry = RETRY;
        self.verdict.cannot = false;
        let seconds = (now - self.began).get() / 1_000_000_000;
        self.debt -= Sat(count).max(Sat(REPAID_MIN) * Sat(seconds));
        self.calm = if room { self.calm.saturating_add(1) } else { 0 };
        if self.calm < PATIENCE || self.debt > Sat(0) {
            return;
        }
        self.calm = 0;
        if self.verdict.level > 0 {
            self.move_to(self.verdict.level.saturating_sub(1), now);
        }
    }

    /// Decides after a window that missed the goal.
    fn miss(&mut self, p99: Us, now: Ns) {
        self.calm = 0;
        let level = self.verdict.level;
        if let Some(tried) = self.tried.get_mut(usize::from(level)) {
            *tried = Some(p99);
        }
        match self.rest {
            Some(0) => {
                self.tried = [None; LEVELS as usize + 1];
                self.rest = None;
                self.retry = self.retry.saturating_mul(2).min(RETRY_MAX);
                self.move_to(0, now);
            }
            Some(rest) => self.rest = Some(rest.saturating_sub(1)),
            None if level < LEVELS => self.move_to(level.saturating_add(1), now),
            None => {
                self.verdict.cannot = true;
                self.rest = Some(self.retry);
                self.move_to(self.best(), now);
            }
        }
    }

    /// Returns the least of the tried levels whose p99 is at most half above the best: the p99 of a
    /// window varies by a third, and what presses harder must pay.
    fn best(&self) -> u8 {
        let least = self.tried.iter().flatten().min().copied();
        let enough = least.map_or(Us(0), |least| least + least / 2);
        let mut levels = (0..=LEVELS).zip(&self.tried);
        let good = levels.find(|(_, p99)| p99.is_some_and(|p99| p99 <= enough));
        good.map_or(0, |(level, _)| level)
    }

    fn move_to(&mut self, level: u8, now: Ns) {
        if level != self.verdict.level {
            self.verdict.level = level;
            self.since = now;
            self.mixed = true;
        }
    }
}

#[cfg(test)]
mod tests;
