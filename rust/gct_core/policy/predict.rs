// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Predicts how long a launch will take, from launches that have ended (LithOS, section 5.7).
//!
//! Terminology
//!   kernel    a program with its grid, its block, and how many blocks a TPC holds
//!   work      time multiplied by TPCs
//!   wave      the blocks that the granted TPCs hold at the same time
//!   place     a kernel behind the last 16 launches of its channel
//!
//! A launch is predicted from its place, where places like it were predicted better than from its
//! kernel. A kernel without a history is predicted from the same program with another grid.
//!
//! ```text
//! average   = average + (observed - average) / n                # of work, and of wave time
//! n         = how often it was observed, 4 at most
//! waves     = blocks / (blocks per TPC * TPCs)                  # rounded up
//! predicted = max(work * blocks / observed blocks / TPCs, wave time * waves)
//! ```
//!
//! The first term is conservative for more blocks and fewer TPCs: no kernel scales better. The
//! second one is for fewer blocks and more TPCs: a part of a wave takes as long as its blocks. The
//! time of one wave is that of the launch, divided by its waves. An atom tells of the launch by its
//! part of the blocks, because atoms overlap.
//!
//! A replay of a graph is predicted as a whole: as a kernel of one block that fills any number of
//! TPCs. So on fewer TPCs than it was seen on it takes longer by their ratio, and on more as long.
//!
//! Places. A program that repeats a step runs one kernel at several places of it, on other data and
//! with other contents of the cache. Both errors of each place are averaged as above: of what the
//! place predicts, and of what its kernel does there. They begin with those of other places' first
//! predictions. So a program that does not repeat is predicted from its kernels.
//!
//! ```text
//! error = |predicted - observed| / max(predicted, observed)
//! place = own error <= error of its kernel
//! ```
//!
//! An observation counts for at most four times a place's own error. So one outlier moves its
//! average little, and the next one teaches it.
//!
//! Kernels and places have a half of the table each: a program that never repeats forgets places
//! and no kernel. The moving average keeps no distribution: a launch whose time depends on its data
//! is predicted to take what it took lately.

mod place;

pub use place::{Errors, Path};

use crate::probe;
use crate::submit::launch::Launch;
use crate::submit::occupancy;
use crate::units::{mul_div, volume, Blocks, Ns, Sat, TpcNs};
use core::num::Wrapping;

/// Identity of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Address where its program starts.
    pub program: u64,
    /// Its grid, in blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Blocks that one TPC holds at the same time; 0 if that is unknown.
    pub per_tpc: u32,
}

impl Kernel {
    /// Returns the kernel that a launch runs, as durations are learnt of it.
    pub fn of(launch: &Launch) -> Self {
        Self {
            program: launch.program,
            grid: launch.grid_in_blocks(),
            block: launch.block,
            per_tpc: occupancy::per_tpc(launch),
        }
    }

    /// Creates the identity of the replays of one graph, from a fingerprint of the nodes that its
    /// segment launches.
    pub const fn graph(nodes: u64) -> Self {
        Self {
            program: nodes,
            grid: [0; 3],
            block: [0; 3],
            per_tpc: 0,
        }
    }

    /// Returns whether it stands for a graph.
    pub const fn is_graph(&self) -> bool {
        matches!(
            (self.program, self.grid, self.block),
            (1.., [0, 0, 0], [0, 0, 0])
        )
    }

    /// Returns the number of blocks; 1 for a graph.
    pub fn blocks(&self) -> Blocks {
        match self.is_graph() {
            true => Blocks(1),
            false => Blocks(volume(self.grid).0),
        }
    }

    /// Returns how many waves its blocks are on `tpcs` TPCs; 0 if that is unknown.
    fn waves(&self, tpcs: u64) -> u64 {
        match u64::from(self.per_tpc).saturating_mul(tpcs) {
            _ if self.is_graph() => 1,
            0 => 0,
            wave => self.blocks().pieces_of(Blocks(wave)),
        }
    }

    /// Returns the key of the same program with any grid.
    const fn any_grid(self) -> Self {
        Self {
            grid: [0; 3],
            ..self
        }
    }
}

/// History of one kernel.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    kernel: Kernel,
    /// Average cost of `blocks` blocks.
    work: TpcNs,
    blocks: Blocks,
    /// Average time of one wave; 0 if that is unknown.
    wave: Ns,
    /// The observations in the averages, [`WEIGHT`] at most.
    seen: u8,
    /// How far predictions at this place were off, if it is one that is not fresh.
    errors: Errors,
    /// Clock of the table when the entry was last updated.
    used: Wrapping<u32>,
}

impl Entry {
    /// Predicts how long `kernel` takes on `tpcs` TPCs. Returns `None` without a TPC.
    fn predict(&self, kernel: &Kernel, tpcs: u64) -> Option<Ns> {
        let work = mul_div(self.work.get(), kernel.blocks().get(), self.blocks.get())?;
        let time = work.checked_div(tpcs)?;
        Some(Ns(time).max(self.wave * kernel.waves(tpcs)))
    }

    /// Returns whether this place has never predicted.
    fn is_fresh(&self) -> bool {
        self.seen <= 1
    }
}

/// What a table knows beside its entries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habits {
    /// The clock of the table.
    uses: Wrapping<u32>,
    /// How far the first predictions of places were off lately.
    fresh: Errors,
}

/// Slots of the table that a kernel may be in. The least recently updated of them makes room.
const PROBES: usize = 8;

/// The largest error of a prediction that is no miss. Source: LithOS, section 8.4.
const MISS: Ns = Ns(50_000);

/// The least weight of a new observation in the average, as a divisor.
const WEIGHT: u8 = 4;

/// The weight of the last one in the errors of first predictions, as a divisor.
const FRESH_WEIGHT: u32 = 16;

/// History of one tenant's kernels, in slots of the caller.
#[derive(Debug)]
pub struct Predictor<'a> {
    slots: &'a mut [Option<Entry>],
    habits: &'a mut Habits,
}

/// Returns a hash of what identifies a kernel.
fn hash(kernel: &Kernel) -> u64 {
    let words = kernel.grid.iter().chain(&kernel.block);
    words.fold(kernel.program, |hash, word| probe::mix(hash, *word))
}

/// Returns the slots of a table of `len` that a kernel may be in.
pub(super) fn places(kernel: &Kernel, len: usize) -> impl Iterator<Item = usize> {
    probe::slots(hash(kernel), len, PROBES)
}

fn get<'a>(slots: &'a [Option<Entry>], kernel: &Kernel) -> Option<&'a Entry> {
    places(kernel, slots.len())
        .filter_map(|place| slots.get(place)?.as_ref())
        .find(|entry| entry.kernel == *kernel)
}

/// Returns the entries of kernels, and those of places.
fn halves(slots: &[Option<Entry>]) -> (&[Option<Entry>], &[Option<Entry>]) {
    slots
        .split_at_checked(slots.len() / 2)
        .unwrap_or((slots, &[]))
}

/// Returns the entry of a kernel, or of its program.
fn general<'a>(kernels: &'a [Option<Entry>], kernel: &Kernel) -> Option<&'a Entry> {
    get(kernels, kernel).or_else(|| get(kernels, &kernel.any_grid()))
}

/// Predicts how long `kernel` takes on `tpcs` TPCs behind the launches of `path`, from the `slots`
/// of a [`Predictor`]. Returns `None` for a program without a history, or without a TPC.
pub fn predict(
    slots: &[Option<Entry>],
    habits: &Habits,
    (kernel, path): (&Kernel, Path),
    tpcs: u64,
) -> Option<Ns> {
    let (kernels, places) = halves(slots);
    let place = get(places, &path.place(kernel));
    let trusted = |place: &&Entry| match place.is_fresh() {
        true => habits.fresh.favour_place(),
        false => place.errors.favour_place(),
    };
    let entry = place.filter(trusted);
    let entry = entry.or_else(|| general(kernels, kernel)).or(place)?;
    entry.predict(kernel, tpcs)
}

/// Returns whether a prediction was wrong by more than 50 us. The launch has taken from `shortest`
/// to `longest`: it ended between two looks.
pub fn misses(predicted: Ns, shortest: Ns, longest: Ns) -> bool {
    predicted + MISS < shortest || predicted > longest + MISS
}

/// Returns the moving average after the observation number `seen`.
fn average(known: u64, observed: u64, seen: u8) -> u64 {
    let weight = u64::from(seen.clamp(1, WEIGHT));
    match (known.checked_div(weight), observed.checked_div(weight)) {
        (Some(less), Some(more)) => (Sat(known) - Sat(less) + Sat(more)).0,
        _ => observed,
    }
}

impl<'a> Predictor<'a> {
    /// Creates a view of the table in `slots`, all `None` at first.
    pub fn new(slots: &'a mut [Option<Entry>], habits: &'a mut Habits) -> Self {
        Self { slots, habits }
    }

    /// Learns that `blocks` blocks of `kernel`, behind the launches of `path`, took `time` on
    /// `tpcs` TPCs.
    pub fn observe(&mut self, (kernel, path): (&Kernel, Path), blocks: u64, tpcs: u64, time: Ns) {
        if kernel.blocks() == Blocks(0) || blocks == 0 || tpcs == 0 {
            return;
        }
        // An atom tells of the whole launch.
        let time = time.scale(kernel.blocks(), Blocks(blocks));
        let (errors, at_place) = self.judge((kernel, path), tpcs, time);
        self.habits.uses += 1;
        let now = self.habits.uses;
        let middle = self.slots.len() / 2;
        let Some((kernels, places)) = self.slots.split_at_mut_checked(middle) else {
            return;
        };
        let seen = Seen { kernel, tpcs, now };
        seen.learn(places, &path.place(kernel), at_place, errors);
        seen.learn(kernels, kernel, time, Errors::default());
        if !kernel.is_graph() {
            seen.learn(kernels, &kernel.any_grid(), time, Errors::default());
        }
    }

    /// Returns the errors of a place, and the time that it learns, when its launch took `time`.
    fn judge(&mut self, (kernel, path): (&Kernel, Path), tpcs: u64, time: Ns) -> (Errors, Ns) {
        let (kernels, places) = halves(self.slots);
        let predicted = |entry: &Entry| entry.predict(kernel, tpcs);
        let place = get(places, &path.place(kernel));
        let Some((place, own)) = place.and_then(|place| Some((place, predicted(place)?))) else {
            return (Errors::default(), time);
        };
        let of_kernel = general(kernels, kernel).and_then(predicted);
        let new = Errors::of(own, of_kernel.unwrap_or(own), time);
        if place.is_fresh() {
            self.habits.fresh = self.habits.fresh.after(new, FRESH_WEIGHT);
            return (self.habits.fresh.after(new, WEIGHT.into()), time);
        }
        let errors = place.errors;
        (errors.after(new, WEIGHT.into()), errors.bound(own, time))
    }
}

/// A launch that has ended.
struct Seen<'a> {
    kernel: &'a Kernel,
    tpcs: u64,
    now: Wrapping<u32>,
}

impl Seen<'_> {
    /// Writes that it took `time` to the entry with this key.
    fn learn(&self, slots: &mut [Option<Entry>], key: &Kernel, time: Ns, errors: Errors) {
        let age = |entry: &Entry| (entry.kernel != *key).then(|| (self.now - entry.used).0);
        let place = probe::place(slots, places(key, slots.len()), age);
        let Some(slot) = place.and_then(|place| slots.get_mut(place)) else {
            return;
        };
        let blocks = self.kernel.blocks();
        let known = slot.filter(|entry| entry.kernel == *key).and_then(|entry| {
            // The old average, for as many blocks as were seen now.
            let work = mul_div(entry.work.get(), blocks.get(), entry.blocks.get())?;
            Some((work, entry.wave.get(), entry.seen))
        });
        let (work, wave, seen) = known.unwrap_or((0, 0, 0));
        let seen = (Sat(seen) + Sat(1)).0.min(WEIGHT);
        let waves = self.kernel.waves(self.tpcs);
        *slot = Some(Entry {
            kernel: *key,
            work: TpcNs(average(work, (TpcNs(time.get()) * self.tpcs).get(), seen)),
            blocks,
            // 0 without waves.
            wave: Ns(average(
                wave,
                time.get().checked_div(waves).unwrap_or(0),
                seen,
            )),
            seen,
            errors,
            used: self.now,
        });
    }
}

#[cfg(test)]
mod programs;
#[cfg(test)]
mod tests;
