// SPDX-License-Identifier: GPL-2.0 OR MIT

//! States what programs launch, and what an administrator and others do to them.

use super::channel::Kernel;
use super::tenant::Tenant;
use gct_core::iface::File;

/// What happens to tenants.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// An administrator writes a limit of a group.
    Write(usize, File, String),
    /// A group has a goal, for which others are pressed so hard.
    Press(usize, u8),
    /// SIGSTOP and SIGCONT.
    Stop(usize),
    Continue(usize),
    /// SIGKILL.
    Kill(usize),
}

/// When a program launches.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pattern {
    /// Always, with so many launches outstanding.
    Always(u32),
    /// So many launches at a time, and pauses of this mean between the beginnings.
    Requests { launches: u32, pause_ns: u64 },
    /// So many launches at a time, and behind their end a pause of this mean.
    Closed { launches: u32, pause_ns: u64 },
}

/// When the next launches of a closed loop come while its last ones have not ended.
const NEVER: u64 = u64::MAX;

/// Launches of a program between two looks at its ends.
const DEPTH: u32 = 12;

/// A program.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    kernels: Vec<Kernel>,
    pattern: Pattern,
    chance: fastrand::Rng,
    /// The next kernel of a program that launches them in turn, and not at random.
    turn: Option<usize>,
    /// When the next request arrives, and launches of those that have arrived.
    next: u64,
    queued: u32,
    begun: bool,
    /// How long the copy takes with which each request begins, before its launches; and whether
    /// the present one has begun.
    copy_ns: u64,
    copying: bool,
    /// Whether its launches are graphs, whose times are not predicted.
    pub(crate) graphs: bool,
}

impl Program {
    /// Creates a program that begins at `start`.
    pub(crate) fn new(kernels: Vec<Kernel>, pattern: Pattern, start: u64, seed: u64) -> Self {
        Self {
            kernels,
            pattern,
            chance: fastrand::Rng::with_seed(seed),
            turn: None,
            next: start,
            queued: 0,
            begun: false,
            copy_ns: 0,
            copying: false,
            graphs: false,
        }
    }

    /// Makes it a program whose kernels are a step that it repeats.
    pub(crate) fn in_steps(self) -> Self {
        Self {
            turn: Some(0),
            ..self
        }
    }

    /// Makes its launches graphs. One of more than a wave would be split.
    pub(crate) fn of_graphs(self) -> Self {
        Self {
            graphs: true,
            ..self
        }
    }

    /// Ends it: it launches nothing more.
    pub(crate) fn finish(&mut self) {
        (self.pattern, self.queued, self.copy_ns) = (Pattern::Always(0), 0, 0);
    }

    /// Makes it a program whose requests begin with copies of so long.
    pub(crate) fn copies(self, copy_ns: u64) -> Self {
        Self { copy_ns, ..self }
    }

    /// Returns whether a copy begins now, once.
    pub(crate) fn begins_copy(&mut self, now: u64) -> bool {
        let due = self.copy_ns > 0 && now + self.copy_ns >= self.next;
        due && !std::mem::replace(&mut self.copying, true)
    }

    /// Returns when the next request arrives, or its copy begins.
    pub(crate) fn next_arrival(&self) -> Option<u64> {
        let arrives = match self.pattern {
            Pattern::Always(_) => !self.begun,
            Pattern::Requests { .. } => true,
            Pattern::Closed { .. } => self.next != NEVER,
        };
        let ahead = if self.copying { 0 } else { self.copy_ns };
        arrives.then_some(self.next - ahead)
    }

    /// Returns the next kernel to launch now, if there is one.
    pub(crate) fn take(&mut self, tenant: &Tenant, now: u64) -> Option<Kernel> {
        self.begun |= now >= self.next;
        let depth = match self.pattern {
            Pattern::Always(depth) if self.begun => depth,
            Pattern::Always(_) => 0,
            Pattern::Closed { launches, pause_ns } => {
                if self.queued == 0 && self.next == NEVER && tenant.ended == tenant.submitted {
                    self.next = now + pause_ns / 2 + self.chance.u64(..=pause_ns);
                }
                if now >= self.next {
                    (self.queued, self.next) = (launches, NEVER);
                }
                match self.queued {
                    0 => return None,
                    _ => launches,
                }
            }
            Pattern::Requests { launches, pause_ns } => {
                while now >= self.next {
                    self.copying = false;
                    self.queued += launches;
                    self.next += pause_ns / 2 + self.chance.u64(..=pause_ns);
                }
                DEPTH.min(self.queued + tenant.submitted - tenant.ended)
            }
        };
        if !tenant.has_room(depth) {
            return None;
        }
        self.queued = self.queued.saturating_sub(1);
        let count = self.kernels.len();
        let at = match &mut self.turn {
            Some(turn) => std::mem::replace(turn, (*turn + 1) % count),
            None => self.chance.usize(..count),
        };
        Some(self.kernels[at])
    }
}
