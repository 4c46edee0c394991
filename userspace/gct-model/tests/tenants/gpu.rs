// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Models when the blocks of grids run on the TPCs of a GPU.
//!
//! A TPC holds [`TPC_BLOCKS`] blocks of one grid. Free TPCs take blocks from the earliest grid that
//! may use them and has any left. Blocks that run are not stopped, except by a change of contexts.
//!
//! Contexts run side by side, as under MPS, or one after the other for a time slice. A context that
//! has nothing to run gives up its slice. Who comes to one that was alone waits for a whole slice,
//! as on an H100: beside slices of 2 ms half of the short kernels take 2.4 ms or longer.

use super::channel::Kernel;
use super::clocks::ModelClock;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Blocks of 1024 threads that a TPC holds.
pub(crate) const TPC_BLOCKS: u64 = 4;

/// How contexts share the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// All at once.
    Beside,
    /// One after the other, for `slice` ns each unless a time slice was set. A change takes
    /// `switch` ns.
    Turns { slice: u64, switch: u64 },
}

/// A grid that was handed to the GPU.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    pub(crate) tenant: usize,
    /// Its number among the runs of the tenant's machine.
    pub(crate) run: usize,
    /// The TPCs that it may use.
    pub(crate) tpcs: u64,
    /// Blocks that have not begun.
    pub(crate) left: u64,
    /// How long each block takes at the highest clock.
    pub(crate) block_ns: u64,
    /// Its program.
    program: u32,
    /// TPCs on which blocks of it run.
    on: u32,
}

impl Grid {
    pub(crate) fn new(tenant: usize, run: usize, tpcs: u64, blocks: u64, kernel: &Kernel) -> Self {
        Self {
            tenant,
            run,
            tpcs,
            left: blocks,
            block_ns: kernel.block_ns,
            program: kernel.program,
            on: 0,
        }
    }
}

/// Blocks on a TPC.
#[derive(Clone, Copy, Debug)]
struct Wave {
    grid: u64,
    tenant: usize,
    /// When they end, or what is left of them while their context is switched out.
    end: u64,
}

/// Blocks that have begun, by tenant and run.
pub(crate) type Begun = BTreeSet<(usize, usize)>;

/// The TPCs and the grids on them.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) tpcs: usize,
    sharing: Sharing,
    grids: BTreeMap<u64, Grid>,
    next_grid: u64,
    on: Vec<Option<Wave>>,
    /// Contexts with grids, the one that runs first; and the end of its slice.
    contexts: VecDeque<usize>,
    slice_end: u64,
    /// The time slices that were set, by tenant.
    pub(crate) slices: BTreeMap<usize, u64>,
    /// Until when no context runs, because one is changed.
    switching: u64,
    /// What was on the TPCs when contexts were switched out.
    saved: BTreeMap<usize, Vec<Option<Wave>>>,
    /// Time for which blocks of each tenant were on TPCs, times TPCs, and on any TPC.
    pub(crate) used: BTreeMap<usize, u64>,
    pub(crate) active: BTreeMap<usize, u64>,
    accounted: u64,
    pub(crate) clock: ModelClock,
}

impl Gpu {
    pub(crate) fn new(tpcs: usize, sharing: Sharing) -> Self {
        Self {
            tpcs,
            sharing,
            grids: BTreeMap::new(),
            next_grid: 0,
            on: vec![None; tpcs],
            contexts: VecDeque::new(),
            slice_end: 0,
            slices: BTreeMap::new(),
            switching: 0,
            saved: BTreeMap::new(),
            used: BTreeMap::new(),
            active: BTreeMap::new(),
            accounted: 0,
            clock: ModelClock::default(),
        }
    }

    /// Returns all TPCs as a mask.
    pub(crate) fn all(&self) -> u64 {
        u64::MAX >> (64 - self.tpcs)
    }

    /// Adds a grid that has blocks.
    pub(crate) fn add(&mut self, grid: Grid) {
        if !self.contexts.contains(&grid.tenant) {
            if let ([alone], Sharing::Turns { slice, .. }) =
                (self.contexts.make_contiguous(), self.sharing)
            {
                let slice = *self.slices.get(alone).unwrap_or(&slice);
                self.slice_end = self.accounted.max(self.switching) + slice;
            }
            self.contexts.push_back(grid.tenant);
        }
        self.grids.insert(self.next_grid, grid);
        self.next_grid += 1;
    }

    /// Returns how long the blocks take on average that a tenant has here and that have not ended.
    /// It has its TPCs to itself, and those that run have just begun.
    pub(crate) fn in_flight(&self, tenant: usize) -> u64 {
        let grids = self.grids.values().filter(|grid| grid.tenant == tenant);
        let times = grids.map(|grid| {
            let wave = TPC_BLOCKS * u64::from(grid.tpcs.count_ones());
            (grid.left + TPC_BLOCKS * u64::from(grid.on)) * grid.block_ns / wave
        });
        times.sum()
    }

    /// Drops all that a tenant has: its channels were torn down.
    pub(crate) fn kill(&mut self, tenant: usize) {
        self.grids.retain(|_, grid| grid.tenant != tenant);
        let runs = self.contexts.front() == Some(&tenant);
        self.contexts.retain(|context| *context != tenant);
        self.saved.remove(&tenant);
        for wave in &mut self.on {
            *wave = wave.filter(|wave| wave.tenant != tenant);
        }
        if runs {
            self.begin_context(self.accounted);
        }
    }

    /// Returns when something happens next by itself.
    pub(crate) fn next_event(&self, now: u64) -> Option<u64> {
        let ends = self.on.iter().flatten().map(|wave| wave.end);
        let turns = match self.sharing {
            Sharing::Turns { .. } if self.switching > now => Some(self.switching),
            Sharing::Turns { .. } if self.contexts.len() > 1 => Some(self.slice_end.max(now + 1)),
            _ => None,
        };
        ends.chain(turns).min()
    }

    /// Advances to `now`. Returns the runs that have ended, as tenant and run.
    pub(crate) fn advance(&mut self, now: u64) -> Vec<(usize, usize)> {
        self.account(now);
        let mut ended = Vec::new();
        for at in 0..self.tpcs {
            let Some(wave) = self.on[at] else { continue };
            if wave.end > now {
                continue;
            }
            self.on[at] = None;
            let grid = self.grids.get_mut(&wave.grid).expect("its blocks run");
            grid.on -= 1;
            if grid.on == 0 && grid.left == 0 {
                ended.push((grid.tenant, grid.run));
                self.grids.remove(&wave.grid);
            }
        }
        ended
    }

    /// Accounts the time until `now`.
    fn account(&mut self, now: u64) {
        let before = std::mem::replace(&mut self.accounted, now);
        // Nothing runs while contexts change.
        let passed = if before < self.switching {
            0
        } else {
            now - before
        };
        let mut active = BTreeSet::new();
        for wave in self.on.iter().flatten() {
            *self.used.entry(wave.tenant).or_default() += passed;
            active.insert(wave.tenant);
        }
        for tenant in active {
            *self.active.entry(tenant).or_default() += passed;
        }
    }

    /// Has free TPCs take blocks. Returns those that have begun.
    pub(crate) fn dispatch(&mut self, now: u64) -> Begun {
        self.change_context(now);
        let current = self.contexts.front().copied();
        let turns = self.sharing != Sharing::Beside;
        let mut begun = Begun::new();
        if self.switching > now {
            return begun;
        }
        let mut free: Vec<usize> = (0..self.tpcs).filter(|at| self.on[*at].is_none()).collect();
        for (number, grid) in &mut self.grids {
            if turns && Some(grid.tenant) != current {
                continue;
            }
            free.retain(|tpc| {
                if grid.left == 0 || grid.tpcs >> tpc & 1 == 0 {
                    return true;
                }
                grid.left -= grid.left.min(TPC_BLOCKS);
                grid.on += 1;
                begun.insert((grid.tenant, grid.run));
                self.on[*tpc] = Some(Wave {
                    grid: *number,
                    tenant: grid.tenant,
                    end: now + self.clock.time(grid.program, grid.block_ns, now),
                });
                false
            });
            if free.is_empty() {
                break;
            }
        }
        begun
    }

    /// Changes to the next context where the present one has no grid or its slice is over.
    fn change_context(&mut self, now: u64) {
        if self.sharing == Sharing::Beside {
            return;
        }
        let Some(current) = self.contexts.front().copied() else {
            return;
        };
        let has_grids = |tenant| self.grids.values().any(|grid| grid.tenant == tenant);
        let is_over = now >= self.slice_end && self.contexts.len() > 1;
        if self.switching > now || (has_grids(current) && !is_over) {
            return;
        }
        self.contexts.pop_front();
        if has_grids(current) {
            let left = |wave: Wave| Wave {
                end: wave.end - now,
                ..wave
            };
            let waves = self.on.iter_mut().map(|wave| wave.take().map(left));
            let waves = waves.collect();
            self.saved.insert(current, waves);
            self.contexts.push_back(current);
        }
        self.begin_context(now);
    }

    /// Begins the turn of the first context, with what of it was switched out.
    fn begin_context(&mut self, now: u64) {
        let (Sharing::Turns { slice, switch }, Some(next)) = (self.sharing, self.contexts.front())
        else {
            return;
        };
        self.switching = now + switch;
        self.slice_end = self.switching + self.slices.get(next).unwrap_or(&slice);
        for (on, wave) in self
            .on
            .iter_mut()
            .zip(self.saved.remove(next).into_iter().flatten())
        {
            *on = wave.map(|wave| Wave {
                end: wave.end + self.switching,
                ..wave
            });
        }
    }
}
