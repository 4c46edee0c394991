// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs tenants on a GPU in virtual time.
//!
//! ```text
//! loop:
//!     now = the next of: an end of blocks, a change of contexts, an arrival, a look, the script
//!     end blocks; the hardware and the tenants see it
//!     the script changes limits, stops, freezes and kills
//!     tenants launch what has arrived
//!     whoever's look is due publishes: one thread for all as in the driver, or each tenant's own
//!     free TPCs take blocks
//! ```

use super::clocks::Clocks;
use super::goals::{open_requests, Goals};
use super::gpu::{Gpu, Grid, Sharing};
use super::law::{self, Facts};
use super::lengths::Lengths;
use super::memory::Heap;
use super::script::{Action, Pattern, Program};
use super::tenant::{self, Launch, Tenant};
use super::tree::Tree;
use gct_core::ids::GroupId;
use gct_core::iface::File;
use gct_core::lane::governor::Peers;
use gct_core::lane::roster::{Roster, MEMBERS_MAX};
use gct_core::lane::standing::Standing;
use gct_core::lane::work::Workspace;
use gct_core::owned::worker::{Pauses, Round, Signs};
use gct_core::policy::share::Sign;
use gct_core::policy::slo::Verdict;
use gct_core::policy::tpc::Rank;
use gct_core::units::{Ns, Us};

/// The time of a machine that has been up for some time.
pub(crate) const START: u64 = 1 << 40;

/// Which threads look at the channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// One for all, as in the driver.
    One,
    /// One in each tenant, as in the user-space mode. It looks this often while work is pending.
    Each(u64),
}

/// What a process pretends that has no work: always to have some, and never to have used any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// It has work in flight.
    Runs,
    /// It waits for its turn.
    Waits,
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Runs,
    /// By SIGSTOP: what it has published goes on.
    Stopped,
    Dead,
}

/// A process, what it does, and what came of it.
pub(crate) struct Process {
    pub(crate) tenant: Tenant,
    pub(crate) life: Life,
    pub(crate) program: Program,
    standing: Standing,
    next_look: u64,
    /// Since when it has work of which nothing is in flight.
    pub(crate) held_since: Option<u64>,
    /// Launches that have ended.
    pub(crate) done: Vec<Launch>,
    /// What it publishes in place of the truth.
    lie: Option<Lie>,
}

/// Everything.
pub(crate) struct World {
    pub(crate) now: u64,
    tree: Tree,
    groups: Vec<GroupId>,
    roster: Roster<Heap>,
    work: Workspace<Heap>,
    pub(crate) gpu: Gpu,
    by_turns: bool,
    threads: Threads,
    pub(crate) processes: Vec<Process>,
    facts: Vec<Facts>,
    pauses: Pauses,
    /// Whether the doorbells are closed, so that a ring wakes the one thread, and whether one has.
    closed: bool,
    woken: bool,
    next_look: u64,
    pub(crate) goals: Goals,
    pub(crate) lengths: Lengths,
    pub(crate) clocks: Option<Clocks>,
    /// Whether copies count as work, as those of copy engines do.
    pub(crate) copies_count: bool,
    /// What is to happen, the last first.
    pub(crate) script: Vec<(u64, Action)>,
}

impl World {
    pub(crate) fn new(tpcs: usize, sharing: Sharing, threads: Threads) -> Self {
        Self {
            now: START,
            tree: Tree::new(tpcs),
            groups: Vec::new(),
            roster: Roster::new(vec![None; MEMBERS_MAX]),
            work: tenant::workspace(),
            gpu: Gpu::new(tpcs, sharing),
            by_turns: sharing != Sharing::Beside,
            threads,
            processes: Vec::new(),
            facts: Vec::new(),
            pauses: Pauses::NEW,
            closed: false,
            woken: false,
            next_look: START,
            goals: Goals::default(),
            lengths: Lengths::default(),
            clocks: None,
            copies_count: true,
            script: Vec::new(),
        }
    }

    /// Creates a group with limits. A refused one, such as a quota that does not fit, stays off.
    pub(crate) fn group(&mut self, limits: &[(File, String)]) -> usize {
        let number = self.groups.len();
        self.groups.push(self.tree.group(&format!("g{number}")));
        for (file, text) in limits {
            let _ = self.tree.write(self.groups[number], *file, text);
        }
        self.take_goal(number);
        self.take_terms();
        number
    }

    /// Takes over a goal that was written.
    fn take_goal(&mut self, group: usize) {
        let goal = self.tree.goal(self.groups[group]);
        self.goals.set(group, goal, self.now);
    }

    /// Looks at all goals, and presses those that have none.
    fn look_at_goals(&mut self) {
        let open = open_requests(&self.processes, &self.facts, self.now);
        let found = self.goals.look(open, self.now);
        let found: Vec<_> = found
            .iter()
            .map(|(group, verdict)| (self.groups[*group], *verdict))
            .collect();
        if self.tree.press(&found) {
            self.take_terms();
        }
    }

    /// Looks at the lengths of requests, and decides whose slices are short.
    fn look_at_lengths(&mut self) {
        let open = open_requests(&self.processes, &self.facts, self.now);
        let found = self.lengths.look(open, self.now);
        let found: Vec<_> = self.groups.iter().copied().zip(found).collect();
        if self.tree.order(&found) {
            self.take_terms();
        }
    }

    /// Starts a process in a group.
    pub(crate) fn start(&mut self, group: usize, program: Program) -> usize {
        let file = self.tree.process(self.groups[group]);
        let terms = self.tree.terms(file);
        self.facts.push(Facts::new(group, terms.standing));
        self.processes.push(Process {
            tenant: Tenant::new(file, &terms, program.graphs),
            life: Life::Runs,
            program,
            standing: terms.standing,
            next_look: u64::MAX,
            held_since: None,
            done: Vec::new(),
            lie: None,
        });
        self.take_terms();
        let at = self.processes.len() - 1;
        if !self.by_turns {
            self.processes[at].tenant.company().share_group();
        }
        at
    }

    /// Starts a process in a group that has no work and publishes a lie.
    pub(crate) fn start_liar(&mut self, group: usize, lie: Lie) {
        let program = Program::new(Vec::new(), Pattern::Always(0), START, 0);
        let at = self.start(group, program);
        self.processes[at].lie = Some(lie);
        self.processes[at].next_look = self.now;
    }

    /// Publishes a lie.
    fn pretend(&mut self, at: usize, lie: Lie) {
        let now = Ns(self.now);
        let company = self.processes[at].tenant.company();
        company.see(&self.roster, now);
        company.set_busy(true, now);
        company.publish_sign(Sign {
            contends_until: Ns::MAX,
            runs: lie == Lie::Runs,
            ..Sign::default()
        });
        self.roster.publish(company);
        self.facts[at].show(true, u64::MAX, false, self.now);
    }

    /// Gives all tenants their limits of now.
    fn take_terms(&mut self) {
        self.gpu.slices.clear();
        for (at, (process, facts)) in self.processes.iter_mut().zip(&mut self.facts).enumerate() {
            if process.life != Life::Dead {
                let mut terms = self.tree.terms(process.tenant.file);
                terms.limits.clock = self.clocks.as_ref().and_then(Clocks::published);
                let slice = self.tree.slice(terms.proc).and_then(Us::to_ns);
                self.gpu.slices.extend(slice.map(|slice| (at, slice.get())));
                process.tenant.set(&terms);
                process.standing = terms.standing;
                facts.steal = terms.limits.steal;
                facts.pressed = terms.limits.pressed;
                facts.slips = terms.limits.slip.get() > 0;
                facts.written = law::tpcs(&terms.limits.allowed(&terms.topology));
            }
        }
    }

    /// Has programs launch nothing more, and nobody be frozen or stopped. Returns those whose work
    /// has not ended after `most`, though there are TPCs that they may use.
    pub(crate) fn finish(&mut self, most: u64) -> Vec<usize> {
        self.script.clear();
        for group in 0..self.groups.len() {
            self.act(Action::Write(group, File::ComputeFreeze, "0".into()));
        }
        for at in 0..self.processes.len() {
            self.act(Action::Continue(at));
            self.processes[at].program.finish();
        }
        let end = self.now + most;
        let unfinished = |world: &Self| -> Vec<usize> {
            let all = (0..).zip(&world.processes);
            all.filter(|(_, process)| process.life != Life::Dead && process.tenant.has_work())
                .map(|(at, _)| at)
                .collect()
        };
        while !unfinished(self).is_empty() && self.now < end {
            self.run_until(self.now + 1_000_000);
        }
        let mut left = unfinished(self);
        left.retain(|at| law::piece(&self.facts, *at, self.by_turns, self.now).due != 0);
        left
    }

    /// Runs until `end`.
    pub(crate) fn run_until(&mut self, end: u64) {
        while let Some(next) = self.next_event().filter(|next| *next < end) {
            self.now = next.max(self.now);
            self.step();
        }
        self.now = end;
    }

    fn next_event(&self) -> Option<u64> {
        let scripted = self.script.last().map(|(at, _)| *at);
        let arrivals = self.processes.iter().filter(|p| p.life == Life::Runs);
        let arrivals = arrivals.filter_map(|p| p.program.next_arrival());
        let looks = match self.threads {
            Threads::One => Some(self.next_look),
            Threads::Each(_) => {
                let running = self.processes.iter().filter(|p| p.life == Life::Runs);
                running.map(|process| process.next_look).min()
            }
        };
        let events = [
            scripted,
            looks,
            self.gpu.next_event(self.now),
            self.goals.next(),
            self.lengths.next(),
            self.clocks.as_ref().map(Clocks::next),
        ];
        events.into_iter().flatten().chain(arrivals).min()
    }

    fn step(&mut self) {
        for (at, run) in self.gpu.advance(self.now) {
            self.end_run(at, run);
        }
        let is_due =
            |script: &[(u64, Action)]| script.last().is_some_and(|(at, _)| *at <= self.now);
        let mut due = Vec::new();
        while is_due(&self.script) {
            due.extend(self.script.pop());
        }
        for (_, action) in due {
            self.act(action);
        }
        if self.goals.next().is_some_and(|next| next <= self.now) {
            self.look_at_goals();
        }
        if self.lengths.next().is_some_and(|next| next <= self.now) {
            self.look_at_lengths();
        }
        if let Some(clocks) = self.clocks.as_mut().filter(|it| it.next() <= self.now) {
            clocks.look(&self.processes, &mut self.gpu, self.now);
            self.take_terms();
        }
        self.arrive();
        self.look();
        for (at, _) in self.gpu.dispatch(self.now) {
            let launch = self.processes[at].tenant.launches.front_mut();
            let launch = launch.expect("its blocks run");
            launch.began.get_or_insert(self.now);
        }
    }

    pub(crate) fn act(&mut self, action: Action) {
        match action {
            Action::Write(group, file, text) => {
                let _ = self.tree.write(self.groups[group], file, &text);
                self.take_goal(group);
                self.take_terms();
            }
            Action::Press(group, level) => {
                let of = self.groups[group];
                let _ = self.tree.write(of, File::SloP99, "10000");
                let verdict = Verdict {
                    level,
                    ..Verdict::default()
                };
                self.tree.press(&[(of, verdict)]);
                self.take_terms();
            }
            Action::Stop(at) if self.processes[at].life == Life::Runs => {
                self.processes[at].life = Life::Stopped;
            }
            Action::Continue(at) if self.processes[at].life == Life::Stopped => {
                self.processes[at].life = Life::Runs;
                self.processes[at].next_look = self.now;
            }
            Action::Kill(at) if self.processes[at].life != Life::Dead => self.kill(at),
            _ => {}
        }
    }

    /// Ends a process: its channels are torn down, and nobody sees it any more.
    fn kill(&mut self, at: usize) {
        let process = &mut self.processes[at];
        process.life = Life::Dead;
        self.gpu.kill(at);
        process.tenant.governor.stop();
        process.tenant.company().quit(&mut self.roster);
        self.facts[at].seated = false;
        self.tree.exit(process.tenant.file);
        self.take_terms();
    }

    /// Publishes that a process has work: a copy, which uses no TPC.
    fn begin_copy(&mut self, at: usize) {
        let now = Ns(self.now);
        let company = self.processes[at].tenant.company();
        company.see(&self.roster, now);
        company.set_busy(true, now);
        self.roster.publish(company);
        self.facts[at].show(true, u64::MAX, false, self.now);
    }

    /// Has tenants launch what has arrived, and begin copies.
    fn arrive(&mut self) {
        let (now, threads) = (self.now, self.threads);
        for at in 0..self.processes.len() {
            let process = &mut self.processes[at];
            if process.life == Life::Runs && process.program.begins_copy(now) && self.copies_count {
                self.begin_copy(at);
            }
        }
        for process in self.processes.iter_mut().filter(|p| p.life == Life::Runs) {
            let mut rang = false;
            let Process {
                tenant, program, ..
            } = process;
            while let Some(kernel) = program.take(tenant, now) {
                tenant.launch(&kernel, now);
                rang = true;
            }
            if !rang {
                continue;
            }
            process.held_since = process.held_since.or(Some(now));
            match threads {
                Threads::One if self.closed => {
                    (self.closed, self.woken) = (false, true);
                    self.next_look = now;
                }
                Threads::One => {}
                Threads::Each(_) => process.next_look = now,
            }
        }
    }

    /// Runs the rounds that are due.
    fn look(&mut self) {
        match self.threads {
            Threads::One if self.next_look <= self.now => self.look_at_all(),
            Threads::One => {}
            Threads::Each(every) => {
                for at in 0..self.processes.len() {
                    let process = &self.processes[at];
                    if process.life == Life::Runs && process.next_look <= self.now {
                        self.look_at(at, every);
                    }
                }
            }
        }
    }

    /// Runs a round of a tenant's own thread.
    fn look_at(&mut self, at: usize, every: u64) {
        self.attend(at);
        let pending = match self.processes[at].lie {
            Some(lie) => {
                self.pretend(at, lie);
                true
            }
            None => {
                self.round(at);
                self.processes[at].tenant.is_unfinished()
            }
        };
        self.processes[at].next_look = if pending { self.now + every } else { u64::MAX };
    }

    /// Returns how long the one thread takes for the rounds of so many tenants.
    pub(crate) fn rounds_ns(tenants: u64) -> u64 {
        2_000 + 500 * tenants
    }

    /// Runs a round of the one thread for all, as `gct_kernel::owned` does.
    fn look_at_all(&mut self) {
        let mut order = Vec::new();
        for at in 0..self.processes.len() {
            if self.processes[at].life != Life::Dead {
                self.attend(at);
                order.push((self.processes[at].tenant.company().rank(), at));
            }
        }
        order.sort();
        let (mut found, mut quiet, mut look) = (Round::Idle, true, None);
        for (_, at) in &order {
            if self.processes[*at].tenant.rests() {
                continue;
            }
            quiet = false;
            found = found.max(self.round(*at));
            let governor = &self.processes[*at].tenant.governor;
            let next = governor.next_look(Ns(self.now)).map(Ns::get);
            look = look.into_iter().chain(next).min();
        }
        let signs = Signs {
            is_woken: std::mem::take(&mut self.woken),
            are_closed: self.closed,
            is_quiet: quiet,
            is_heard: true,
            look_ns: look,
        };
        let rest = self.pauses.after(found, signs, self.now);
        self.closed |= rest.closes;
        let rounds = World::rounds_ns(order.len() as u64);
        self.next_look = self.now + rounds + rest.sleep_ns;
    }

    fn attend(&mut self, at: usize) {
        let company = self.processes[at].tenant.company();
        company.attend(&mut self.roster, Ns(self.now));
        let facts = &mut self.facts[at];
        facts.standing = self.processes[at].standing;
        let seated = self.processes[at].tenant.company().rank() != Rank::LAST;
        if seated && !facts.seated {
            facts.take_seat();
        }
        let takes_one = seated && !facts.seated;
        (facts.seated, facts.is_sure) = (seated, true);
        let taken = self.facts.iter().filter(|facts| facts.seated).count();
        if takes_one && taken > MEMBERS_MAX {
            // Somebody has lost its seat, and does not know yet.
            let others = (0..).zip(&mut self.facts).filter(|(other, _)| *other != at);
            others.for_each(|(_, other)| other.is_sure = false);
        }
    }

    /// Runs a round of one tenant, and checks it.
    fn round(&mut self, at: usize) -> Round {
        let now = self.now;
        // Another may have taken its seat since `attend`.
        let company = self.processes[at].tenant.company();
        company.see(&self.roster, Ns(now));
        self.facts[at].seated &= company.rank() != Rank::LAST;
        let process = &mut self.processes[at];
        let tenant = &mut process.tenant;
        let limits = tenant.governor.limits();
        let (frozen, has_cycle) = (limits.frozen, limits.share.owner.max.is_some());
        let small_by_turns = self.by_turns && tenant.governor.target() > Ns(0);
        let (published, found) = tenant.round(&mut self.roster, &mut self.work, now);
        // Who is pressed for a goal has its own rank again after a time.
        let standing = &mut self.facts[at].standing;
        let written = std::mem::replace(&mut standing.rank, tenant.governor.rank(Ns(now)));
        let piece = law::piece(&self.facts, at, self.by_turns, now);
        self.facts[at].standing.rank = written;
        assert!(
            !frozen || published.is_empty(),
            "process {at} is frozen, and publishes"
        );
        for descriptor in published {
            tenant.pieces.insert(descriptor, piece);
        }
        if let Some(time) = tenant.governor.take_request() {
            self.goals.count(self.facts[at].owner, time);
            self.lengths.count(self.facts[at].owner, time);
        }
        self.start_runs(at);
        let process = &mut self.processes[at];
        let shows = process.tenant.is_unfinished() && !frozen;
        let [ebb, ..] = *process.tenant.governor.ebb().words();
        let held = process.tenant.is_held();
        let may_rest = has_cycle || (held && piece.unreserved == 0);
        self.facts[at].show(shows, !ebb, may_rest, now);
        if !held {
            process.held_since = None;
            return found;
        }
        let since = *process.held_since.get_or_insert(now);
        let turn = law::may_be_anothers_turn(&self.facts, at, small_by_turns, now);
        let next = process.tenant.launches.front();
        let waits = next.is_some_and(|next| piece.may_wait(next.kernel.blocks.into()));
        let excused = frozen || has_cycle || waits || turn;
        assert!(
            excused,
            "process {at} holds its work since {} ns, and may use {:#x}: {:?} {:#?}",
            now - since,
            piece.due,
            self.processes[at].tenant.governor.gpu_time(),
            self.facts,
        );
        found
    }

    /// Hands the grids that have begun to the GPU.
    fn start_runs(&mut self, at: usize) {
        let tenant = &mut self.processes[at].tenant;
        for run in tenant.step() {
            let kernel = tenant.begin(run);
            let (grid, all) = (tenant.run(run), self.gpu.all());
            let mask = &grid.mask.0;
            let tpcs = !(u64::from(mask[0]) | u64::from(mask[1]) << 32) & all;
            let piece = tenant.pieces.get(&grid.qmd).expect("it was published");
            let what = || {
                format!(
                    "process {at}, run {run} on {tpcs:#x} at {}: {piece:x?} {:#?}",
                    self.now, self.facts
                )
            };
            assert!(
                piece.holds(tpcs, kernel.blocks.into()),
                "outside of the mask, or too few: {}",
                what()
            );
            assert!(tpcs & piece.forbidden == 0, "on TPCs of others: {}", what());
            let placed = piece.is_placed(tpcs, grid.group);
            assert!(placed, "at the place of group {}: {}", grid.group, what());
            let has_due = piece.has_due(tpcs, kernel.blocks.into());
            assert!(has_due, "TPCs are left: {}", what());
            self.gpu
                .add(Grid::new(at, run, tpcs, grid.count(), &kernel));
        }
    }

    fn end_run(&mut self, at: usize, run: usize) {
        let process = &mut self.processes[at];
        process.tenant.finish(run);
        self.start_runs(at);
        let process = &mut self.processes[at];
        process.done.extend(process.tenant.take_ended());
    }
}
