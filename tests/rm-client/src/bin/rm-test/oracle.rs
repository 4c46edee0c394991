// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plays random programs on managed memory where little of it fits on the GPU, and prints what each
//! has computed and left in its pages.
//!
//! `small` makes a GPU small, for any driver: pinned memory leaves room for a few roots. `limit`
//! has a large GPU and as many roots under `gmem.limit`. UVM evicts in both, so that a program
//! computes the same. ci/test-gpu.sh compares `small` on the stock driver with `limit` on the
//! patched one. A test compares `limit` with `plenty`, where all fits and nothing is evicted.

use crate::gmem::{current, events, number, LIMIT};
use crate::gpus::me;
use crate::limits::{path, set};
use crate::managed::{uvm, Range, PAGE, ROOT, START};
use crate::programs::Random;
use crate::replayable::{run, toucher};
use crate::tree;
use gct_ktap::{failed, holds, same, During, Outcome, Stop, Test};
use rm_client::{numbers, Access, Client, Error, Gpu, Handle, Memory, Toucher};
use std::sync::atomic::Ordering;

pub(crate) const TESTS: &[Test] = &[("oracle_of_programs_without_a_limit", beside_plenty)];

/// Steps of a program.
const STEPS: u64 = 32;
/// Ranges of a program, of up to this many roots each.
const RANGES: usize = 4;
const RANGE_ROOTS: u64 = 4;
/// Roots that fit: at least this many, and up to so many more. Some may be pinned while UVM looks
/// for another.
const ROOTS_MIN: u64 = 4;
const ROOTS_MORE: u64 = 4;
/// The pieces in which most of the GPU is pinned.
const LARGE: u64 = 64 << 20;
/// 64-bit words of a page.
const WORDS: u64 = PAGE as u64 / 8;

/// What keeps memory off the GPU.
pub(crate) enum Bound {
    /// Pinned memory, in large pieces and in pieces of a root.
    Small {
        gpu: Gpu,
        large: Vec<Handle>,
        pinned: Vec<Handle>,
    },
    /// The process's own limit.
    Limit,
    /// Nothing.
    Plenty,
}

impl Bound {
    /// Returns the bound of a name.
    pub(crate) fn of_name(name: &str) -> Result<Self, Stop> {
        match name {
            "small" => {
                let client = Client::open()?;
                let gpu = Gpu::open(&client, 0)?;
                let mut large = pin(&gpu, LARGE)?;
                let last = large.pop().ok_or_else(|| failed("no memory"))?;
                gpu.client().free(last)?;
                let pinned = Vec::new();
                Ok(Self::Small { gpu, large, pinned })
            }
            "limit" => Ok(Self::Limit),
            "plenty" => Ok(Self::Plenty),
            other => Err(failed(format!("no bound is named {other}"))),
        }
    }

    /// Leaves room for so many roots.
    pub(crate) fn leave(&mut self, roots: u64) -> Outcome {
        match self {
            Self::Plenty => set(&me(), LIMIT, "max"),
            Self::Limit => {
                set(&me(), LIMIT, "max")?;
                let limit = current(&me())? + roots * ROOT as u64;
                set(&me(), LIMIT, &limit.to_string())?;
                tree::write(&path(&me(), "gmem.peak")?, "0")?;
                Ok(())
            }
            Self::Small { gpu, large, pinned } => {
                pinned.extend(pin(gpu, ROOT as u64)?);
                while (pinned.len() as u64) < roots {
                    let memory = large.pop().ok_or_else(|| failed("nothing is pinned"))?;
                    gpu.client().free(memory)?;
                    pinned.extend(pin(gpu, ROOT as u64)?);
                }
                for _ in 0..roots {
                    let memory = pinned.pop().ok_or_else(|| failed("nothing is pinned"))?;
                    gpu.client().free(memory)?;
                }
                Ok(())
            }
        }
    }

    /// Checks that no more than that was on the GPU.
    pub(crate) fn check(&self) -> Outcome {
        match self {
            // There is no room for more.
            Self::Small { .. } | Self::Plenty => Ok(()),
            Self::Limit => {
                let peak = number(&me(), "gmem.peak")?;
                holds("within the limit", peak <= number(&me(), LIMIT)?)
            }
        }
    }

    pub(crate) fn end(&self) -> Outcome {
        match self {
            Self::Small { .. } | Self::Plenty => Ok(()),
            Self::Limit => holds("evicted", events(&me(), "evicted")? > 0),
        }
    }
}

/// Allocates pinned memory in pieces, as long as there is any.
fn pin(gpu: &Gpu, bytes: u64) -> Result<Vec<Handle>, Stop> {
    let mut pinned = Vec::new();
    loop {
        match gpu.alloc_memory(Memory::Device, bytes) {
            Ok(memory) => pinned.push(memory),
            Err(Error::Status(numbers::NO_MEMORY)) => return Ok(pinned),
            Err(other) => return Err(other).during("pinned memory"),
        }
    }
}

/// A hash of what a program has seen (FNV-1a, of words).
struct Hash(u64);

impl Hash {
    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    }
}

struct Program<'a> {
    toucher: &'a mut Toucher,
    random: Random,
    ranges: [Option<(Range, u64)>; RANGES],
    hash: Hash,
}

impl Program<'_> {
    fn start(at: usize) -> usize {
        START + 64 * at * ROOT
    }

    /// Chooses words of one range: the same one in each of some pages in a row. Returns the offset
    /// of the first, and their number.
    fn words(&mut self, pages: u64) -> (usize, u64) {
        let first = self.random.below(pages);
        let count = 1 + self.random.below(pages - first);
        let word = self.random.below(WORDS);
        ((first * PAGE as u64 + 8 * word) as usize, count)
    }

    /// Runs a launch on words, and takes note of the sum if it is one.
    fn launch(&mut self, at: usize, words: (usize, u64), store: Option<u64>) -> Outcome {
        let access = Access {
            va: (Self::start(at) + words.0) as u64,
            bytes: (words.1 - 1) * PAGE as u64 + 8,
            stride: PAGE as u64,
            store,
        };
        run(self.toucher, &[access])?;
        if store.is_none() {
            self.hash.add(self.toucher.sum(0));
        }
        Ok(())
    }

    fn step(&mut self) -> Outcome {
        let at = self.random.below(RANGES as u64) as usize;
        let what = self.random.below(16);
        let Some((range, pages)) = &self.ranges[at] else {
            let pages = 1 + self.random.below(RANGE_ROOTS * (ROOT / PAGE) as u64);
            let bytes = pages as usize * PAGE;
            let range = Range::new(self.toucher.session(), Self::start(at), bytes)?;
            self.ranges[at] = Some((range, pages));
            return Ok(());
        };
        let pages = *pages;
        if what == 15 {
            hash_pages(&mut self.hash, range, pages);
            self.ranges[at] = None;
            return Ok(());
        }
        let words = self.words(pages);
        let seed = self.random.below(u64::MAX);
        let (Some((range, _)), (first, count)) = (&self.ranges[at], words) else {
            return Ok(());
        };
        let all = (0..count).map(|page| first + page as usize * PAGE);
        let uvm = uvm(self.toucher.session())?;
        let place = Self::start(at) + first / PAGE * PAGE;
        match what {
            0..4 => all.for_each(|at| {
                let word = seed ^ at as u64;
                range.mapping.u64(at).store(word, Ordering::Relaxed);
            }),
            4..6 => all.for_each(|at| {
                let word = range.mapping.u64(at).load(Ordering::Relaxed);
                self.hash.add(word);
            }),
            6..9 => uvm.migrate(place, count as usize * PAGE)?,
            9 => uvm.migrate_to_cpu(place, count as usize * PAGE)?,
            10..13 => self.launch(at, words, None)?,
            _ => self.launch(at, words, Some(seed))?,
        }
        Ok(())
    }
}

/// Takes note of all words of a range.
fn hash_pages(hash: &mut Hash, range: &Range, pages: u64) {
    for at in (0..pages as usize * PAGE).step_by(8) {
        hash.add(range.mapping.u64(at).load(Ordering::Relaxed));
    }
}

/// Plays the program of a seed. Returns its hash, and the number of pages at its end.
fn play(toucher: &mut Toucher, bound: &mut Bound, seed: u64) -> Result<(u64, u64), Stop> {
    let mut random = Random::new(seed);
    bound.leave(ROOTS_MIN + random.below(ROOTS_MORE))?;
    let mut program = Program {
        toucher,
        random,
        ranges: [const { None }; RANGES],
        hash: Hash(0xcbf2_9ce4_8422_2325),
    };
    for step in 0..STEPS {
        program.step().during(format!("step {step}"))?;
    }
    let Program {
        ranges, mut hash, ..
    } = program;
    let mut all = 0;
    for (range, pages) in ranges.iter().flatten() {
        hash_pages(&mut hash, range, *pages);
        all += pages;
    }
    bound.check()?;
    Ok((hash.0, all))
}

/// Plays the programs of so many seeds, and prints a line for each.
pub(crate) fn many(mut bound: Bound, count: u64) -> Outcome {
    let mut toucher = toucher()?;
    for seed in 0..count {
        let played = play(&mut toucher, &mut bound, seed);
        let (hash, pages) = played.during(format!("seed {seed}"))?;
        println!("# program {seed}: {pages} pages, {hash:016x}");
    }
    bound.end()
}

/// Programs under a limit compute what they compute where all their memory fits.
fn beside_plenty() -> Outcome {
    const SEEDS: u64 = 8;
    let mut toucher = toucher()?;
    for seed in 0..SEEDS {
        let [all, within] = [Bound::Plenty, Bound::Limit]
            .map(|mut bound| play(&mut toucher, &mut bound, seed).during(format!("seed {seed}")));
        same("what is computed", within?, all?).during(format!("seed {seed}"))?;
    }
    Bound::Limit.end()
}
