// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Random histories of processes with several address spaces each: ranges are made, written, moved
//! to the GPU and back, and freed, address spaces close, and processes die in between. The debug
//! build of nvidia-uvm compares the ledger with PMM's root chunks whenever an address space lets
//! go of the GPU.

use crate::gmem::{current, is_refused, number, LIMIT};
use crate::limits::set;
use crate::managed::{uvm, Range, PAGE, ROOT, START};
use crate::process::{Child, Parent};
use crate::programs::Random;
use crate::tree::{eventually, Group};
use gct_ktap::{holds, During, Outcome, Stop, Test};
use rm_client::{Client, Gpu, Session};

pub(crate) const TESTS: &[Test] = &[("managed_memory_of_many_spaces_at_random", few)];

/// Processes at a time, and address spaces of each.
const PROCESSES: usize = 4;
const SPACES: usize = 8;
/// Operations of a process before it ends or is killed.
const OPERATIONS: u64 = 24;
/// Roots for all processes beside their sessions.
const LIMIT_ROOTS: usize = 8;
const ROOTS_MAX: u64 = 3;

/// An address space with at most one range. The range goes first.
struct Space {
    range: Option<(Range, u64)>,
    session: Session,
}

impl Space {
    fn open() -> Result<Self, Stop> {
        let session = Session::with_uvm(Gpu::open(&Client::open()?, 0)?).during("session")?;
        Ok(Self {
            range: None,
            session,
        })
    }

    /// Makes a range at its own place, or uses the one that it has.
    fn step(&mut self, start: usize, random: &mut Random) -> Outcome {
        let Some((range, seed)) = &mut self.range else {
            let pages = 1 + random.below(ROOTS_MAX * (ROOT / PAGE) as u64);
            let range = Range::new(&self.session, start, pages as usize * PAGE)?;
            range.write(0);
            self.range = Some((range, 0));
            return Ok(());
        };
        match random.below(8) {
            0 => {
                *seed += 1;
                range.write(*seed);
            }
            1 => range.check(*seed)?,
            2..7 => {
                // Others may have pinned all that could leave.
                is_refused(uvm(&self.session)?.migrate(start, range.length()))?;
            }
            _ => self.range = None,
        }
        Ok(())
    }
}

/// Plays a history of a seed, with all address spaces by turns.
fn play(parent: &mut Parent, seed: u64) -> Outcome {
    parent.step()?;
    let mut random = Random::new(seed);
    let mut spaces: Vec<_> = (0..SPACES)
        .map(|_| Space::open())
        .collect::<Result<_, _>>()?;
    parent.step()?;
    for step in 0..OPERATIONS {
        let at = random.below(SPACES as u64) as usize;
        let start = START + 64 * at * ROOT;
        match random.below(16) {
            // Its range, the managed memory of an address space that has gone, goes with it.
            0 => spaces[at] = Space::open()?,
            _ => spaces[at].step(start, &mut random).during(step)?,
        }
    }
    for (range, seed) in spaces.iter().filter_map(|space| space.range.as_ref()) {
        range.check(*seed)?;
    }
    parent.step()
}

/// Plays so many histories in groups of some at a time. Of each group one dies at its work.
pub(crate) fn histories(count: u64) -> Outcome {
    let group = Group::new("spaces")?;
    for first in (0..count).step_by(PROCESSES) {
        let fork = |seed| Child::fork(move |parent: &mut Parent| play(parent, seed));
        let seeds = first..first + PROCESSES as u64;
        let mut all: Vec<Child> = seeds.map(fork).collect::<Result<_, _>>()?;
        for child in &mut all {
            child.at_step()?;
            group.add(child.pid())?;
            child.next().during("address spaces")?;
        }
        let limit = current("spaces")? + (LIMIT_ROOTS * ROOT) as u64;
        set("spaces", LIMIT, &limit.to_string())?;
        all.iter_mut().try_for_each(Child::go)?;
        if let Some(mut dies) = all.pop() {
            dies.kill();
        }
        for (mut child, seed) in all.into_iter().zip(first..) {
            child.at_step().during(format!("seed {seed}"))?;
            child.go()?;
            child.finish()?;
        }
        holds("within the limit", number("spaces", "gmem.peak")? <= limit)?;
        eventually("current", &0, || current("spaces")).during(first)?;
        eventually("host", &0, || number("spaces", "hmem.current")).during(first)?;
        set("spaces", LIMIT, "max")?;
    }
    Ok(())
}

fn few() -> Outcome {
    histories(4)
}
