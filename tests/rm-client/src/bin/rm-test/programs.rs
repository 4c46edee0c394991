// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plays random programs on managed memory under limits, against a model of what each page holds.

use crate::gmem::{current, is_refused, number, LIMIT};
use crate::gpus::me;
use crate::limits::{path, set};
use crate::managed::{session, shown, uvm, Range, PAGE, ROOT, START};
use crate::tree;
use gct_ktap::{holds, same, During, Outcome, Stop, Test};
use rm_client::Session;
use std::sync::atomic::Ordering;

pub(crate) const TESTS: &[Test] = &[("managed_memory_of_random_programs", few)];

/// Steps of a program.
const STEPS: u64 = 24;
/// Ranges of a program. A range has up to this many roots, and some pages.
const RANGES: usize = 4;
const ROOTS_MAX: u64 = 5;

/// What a migration has placed cannot leave before it ends. Under a limit this low that may be all
/// that there is.
const PINNED_MAX: u64 = 2 * ROOT as u64;

/// Pseudo-random numbers (xorshift).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A range, and the word of each page.
struct Modelled {
    range: Range,
    start: usize,
    words: Vec<u64>,
}

impl Modelled {
    fn new(session: &Session, at: usize, random: &mut Random) -> Result<Self, Stop> {
        let start = START + 64 * at * ROOT;
        let pages = 1 + random.below(ROOTS_MAX * (ROOT / PAGE) as u64) as usize;
        Ok(Self {
            range: Range::new(session, start, pages * PAGE)?,
            start,
            words: vec![0; pages],
        })
    }

    /// Chooses a part of its pages.
    fn part(&self, random: &mut Random) -> std::ops::Range<usize> {
        let first = random.below(self.words.len() as u64) as usize;
        let count = 1 + random.below((self.words.len() - first) as u64) as usize;
        first..first + count
    }

    fn write(&mut self, random: &mut Random) {
        let seed = random.below(u64::MAX);
        for page in self.part(random) {
            let word = seed ^ page as u64;
            self.range
                .mapping
                .u64(page * PAGE)
                .store(word, Ordering::Relaxed);
            self.words[page] = word;
        }
    }

    /// Moves a part to the GPU. Returns false if a limit refuses it.
    fn migrate(&self, session: &Session, random: &mut Random) -> Result<bool, Stop> {
        let part = self.part(random);
        let bytes = part.len() * PAGE;
        let outcome = uvm(session)?.migrate(self.start + part.start * PAGE, bytes);
        Ok(!is_refused(outcome)?)
    }

    fn check(&self) -> Outcome {
        for (page, word) in self.words.iter().enumerate() {
            let found = self.range.mapping.u64(page * PAGE).load(Ordering::Relaxed);
            same("content", found, *word).during(page)?;
        }
        Ok(())
    }
}

/// Plays one program. Each page has the model's content at the end, no limit was exceeded, and
/// nothing stays charged.
fn program(session: &Session, seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let alone = current(&me())?;
    let limit = alone + (1 + random.below(8)) * ROOT as u64;
    let host_limit = match random.below(2) {
        0 => None,
        _ => Some(random.below(16) * (ROOT / 4) as u64),
    };
    set(&me(), LIMIT, &limit.to_string())?;
    tree::write(&path(&me(), "gmem.peak")?, "0")?;
    let text = host_limit.map_or("max".into(), |limit| limit.to_string());
    set(&me(), "hmem.limit", &text)?;
    let mut ranges: [Option<Modelled>; RANGES] = [const { None }; RANGES];
    for _ in 0..STEPS {
        let at = random.below(RANGES as u64) as usize;
        match (&mut ranges[at], random.below(8)) {
            (empty @ None, _) => *empty = Some(Modelled::new(session, at, &mut random)?),
            (Some(range), 0..3) => range.write(&mut random),
            (Some(range), 3..6) => {
                let migrated = range.migrate(session, &mut random)?;
                let may_fail = host_limit.is_some() || limit - alone <= PINNED_MAX;
                holds("refused by a limit", migrated || may_fail)?;
            }
            (Some(range), 6) => range.check()?,
            (full, _) => *full = None,
        }
        let host = number(&me(), "hmem.current")?;
        holds(
            "within hmem.limit",
            host_limit.is_none_or(|limit| host <= limit),
        )?;
    }
    ranges.iter().flatten().try_for_each(Modelled::check)?;
    holds("within gmem.limit", number(&me(), "gmem.peak")? <= limit)?;
    drop(ranges);
    let left = [
        shown(&me())? as u64,
        number(&me(), "hmem.current")?,
        current(&me())?,
    ];
    same("left", left, [0, 0, alone])
}

fn few() -> Outcome {
    many(6)
}

/// Plays programs of so many seeds.
pub(crate) fn many(count: u64) -> Outcome {
    let session = session()?;
    (0..count).try_for_each(|seed| program(&session, seed).during(format!("seed {seed}")))
}
