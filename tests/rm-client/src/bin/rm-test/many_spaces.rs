// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Random histories of processes with several address spaces each: ranges are made, written, moved
//! to the GPU and back, and freed, address spaces close, processes fork, and die in between. The
//! debug build of nvidia-uvm compares the ledger with PMM's root chunks whenever an address space
//! lets go of the GPU.

use crate::gmem::{current, is_refused, number, LIMIT};
use crate::limits::{path, set};
use crate::managed::{uvm, Range, PAGE, ROOT, START};
use crate::process::{Child, Parent};
use crate::programs::Random;
use crate::tree::{self, eventually, Group};
use gct_ktap::{holds, During, Outcome, Stop, Test};
use rm_client::{Client, Error, Gpu, Session};
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[("managed_memory_of_many_spaces_at_random", few)];

/// Processes at a time, and address spaces of each.
const PROCESSES: u64 = 8;
const SPACES: usize = 8;
/// Most operations of a process before it ends or is killed.
const OPERATIONS_MAX: u64 = 240;
/// Roots for all processes beside their sessions.
const LIMIT_ROOTS: usize = 8;
/// Most pages of a range: of a small one, several of which fit in a root, and of a large one.
const SMALL: u64 = 32;
const LARGE: u64 = 3 * (ROOT / PAGE) as u64;

/// An address space with at most one range. The range goes first.
struct Space {
    range: Option<(Range, u64)>,
    session: Session,
}

impl Space {
    fn open() -> Result<Self, Error> {
        let session = Session::with_uvm(Gpu::open(&Client::open()?, 0)?)?;
        Ok(Self {
            range: None,
            session,
        })
    }

    /// Makes a range at its own place, or uses the one that it has.
    fn step(&mut self, start: usize, random: &mut Random) -> Outcome {
        let Some((range, seed)) = &mut self.range else {
            let most = [SMALL, LARGE][random.below(2) as usize];
            let pages = 1 + random.below(most);
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

/// Forks a process that keeps the descriptors of all address spaces open until it is dropped. Their
/// memory is not in its own mm.
fn keeper() -> Result<Child, Stop> {
    let mut child = Child::fork(|parent: &mut Parent| {
        // Also ends with this process.
        let _ = parent.step();
        Ok(())
    })?;
    child.at_step()?;
    Ok(child)
}

/// Plays a history of a seed, with all address spaces by turns.
fn play(parent: &mut Parent, seed: u64, operations: u64) -> Outcome {
    parent.step()?;
    let mut random = Random::new(seed);
    let mut spaces: Vec<_> = (0..SPACES)
        .map(|_| Space::open())
        .collect::<Result<_, _>>()?;
    let mut keeps = None;
    parent.step()?;
    for step in 0..operations {
        let at = random.below(SPACES as u64) as usize;
        let start = START + 64 * at * ROOT;
        match random.below(32) {
            // Its range, the managed memory of an address space that has gone, goes with it.
            0 | 1 => match Space::open() {
                Ok(space) => spaces[at] = space,
                // A keeper has the memory of former ones.
                Err(refused) => holds("refused", is_refused::<()>(Err(refused))?)?,
            },
            // The former one is killed.
            2 => keeps = Some(keeper()?),
            3 => keeps = None,
            _ => spaces[at].step(start, &mut random).during(step)?,
        }
    }
    for (range, seed) in spaces.iter().filter_map(|space| space.range.as_ref()) {
        range.check(*seed)?;
    }
    drop(keeps);
    parent.step()
}

/// Plays histories of `count` operations in all or some more, in groups of some at a time. Of each
/// group one dies at its work. Its operations are not counted. Another number has other histories.
pub(crate) fn histories(count: u64) -> Outcome {
    let group = Group::new("spaces")?;
    let end_well = PROCESSES - 1;
    let operations = count.div_ceil(end_well).min(OPERATIONS_MAX);
    let rounds = count.div_ceil(end_well * operations);
    for first in (0..rounds).map(|round| round * PROCESSES) {
        let fork = |seed| Child::fork(move |parent: &mut Parent| play(parent, seed, operations));
        let seeds = (first..first + PROCESSES).map(|seed| count << 32 | seed);
        let mut all: Vec<Child> = seeds.map(fork).collect::<Result<_, _>>()?;
        for child in &mut all {
            child.at_step()?;
            group.add(child.pid())?;
            child.next().during("address spaces")?;
        }
        let limit = current("spaces")? + (LIMIT_ROOTS * ROOT) as u64;
        set("spaces", LIMIT, &limit.to_string())?;
        tree::write(&path("spaces", "gmem.peak")?, "0")?;
        all.iter_mut().try_for_each(Child::go)?;
        if let Some(mut dies) = all.pop() {
            // Somewhere in its work, at another place each time.
            thread::sleep(Duration::from_millis(first * 37 % 200));
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
    println!("# {} operations", rounds * end_well * operations);
    Ok(())
}

fn few() -> Outcome {
    histories(280)
}
