// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures how long an urgent kernel waits for the GPU while a best-effort program runs long ones
//! (GPreempt's preemption latency).
//!
//! The urgent kernel is one block of a microsecond. Its time runs from its launch to the moment at
//! which the program knows of its end. The row alone says how much of that is no wait.

use crate::dominance::{ALONE, COLUMNS};
use crate::mechanisms::{self, Mechanism, Pair};
use crate::models::LONGER;
use crate::report::{Report, Table};
use crate::sweep::{needs, Both};
use crate::torch::{filled, LEAD};
use crate::Cli;
use anyhow::Result;
use fastrand::Rng;
use gct_hw::daemon::Daemon;
use gct_hw::kit::Kit;
use gct_hw::mps::Mps;

/// The name of the part.
pub(crate) const PREEMPTION: &str = "preemption";
/// The urgent kernel, and the mean time between its launches in microseconds.
const URGENT: &str = "critical --blocks 1 --threads 32 --cycles 1800";
const PERIOD_US: u32 = 3000;
/// Lengths of the best-effort blocks, in microseconds. Longer ones than a third of the period would
/// let urgent kernels queue.
const BLOCKS_US: [u64; 2] = [100, 1000];
/// What is measured unless `--mechanisms` says otherwise.
const MECHANISMS: [&str; 7] = [
    ALONE,
    "time slicing",
    "gct timeslice 50 us",
    "gct priority by turns",
    "MPS prio",
    "gct pace prio",
    "gct priority prio",
];
/// The pair of processes that is measured alone, too: without MPS.
const STOCK: &str = "time slicing";

pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let mps = Mps::start()?;
    let daemon = Daemon::start(kit, &tpcs.join(","))?;
    let mut pairs = mechanisms::all(&needs(), tpcs, &daemon, &mps, report)?;
    choose(&mut pairs, |name| match cli.mechanisms.is_empty() {
        true => MECHANISMS.contains(&name),
        false => cli.measures(name),
    });
    for blocks_us in BLOCKS_US {
        report.add(table(blocks_us));
    }
    mechanisms::in_rounds(pairs, cli, PREEMPTION, report, |pair, random, report| {
        with_pair(kit, cli, pair, random, report)
    })
}

/// Keeps what is wanted, and lets the program be alone where it is no client of MPS.
fn choose(pairs: &mut Vec<Pair>, wanted: impl Fn(&str) -> bool) {
    for pair in &mut *pairs {
        pair.mechanisms.retain(|mechanism| mechanism.beside);
        if pair.mechanisms.iter().any(|known| known.name == STOCK) {
            pair.mechanisms.push(Mechanism {
                beside: false,
                ..Mechanism::of_limits(ALONE.into())
            });
        }
        pair.mechanisms.retain(|mechanism| wanted(&mechanism.name));
    }
    pairs.retain(|pair| !pair.mechanisms.is_empty());
}

fn table(blocks_us: u64) -> Table {
    let title = format!(
        "Launch to end of an urgent block of 1 us, every {PERIOD_US} us at random, beside kernels \
         whose blocks take {blocks_us} us"
    );
    Table::new(title, &COLUMNS)
}

/// Measures each mechanism of a pair beside blocks of each length, in one run of its processes.
fn with_pair(
    kit: &Kit,
    cli: &Cli,
    pair: &Pair,
    random: &mut Rng,
    report: &mut Report,
) -> Result<()> {
    let mut both = Both::start(kit, pair)?;
    for blocks_us in BLOCKS_US {
        for mechanism in &pair.mechanisms {
            let seed = random.u32(..);
            let urgent = format!("{URGENT} --period-us {PERIOD_US} --poisson --seed {seed}");
            let seconds = LONGER * cli.seconds;
            let (line, rate) = both.window(mechanism, &urgent, blocks_us, (LEAD, seconds))?;
            let rate = rate.into_iter().collect();
            report.add(filled(table(blocks_us), &mechanism.name, &line, rate)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gct_hw::kit::RunEnv;

    fn pair(names: &[&str]) -> Pair {
        let mechanisms = names.iter().map(|name| Mechanism {
            beside: *name != ALONE,
            ..Mechanism::of_limits((*name).into())
        });
        Pair {
            critical: RunEnv::native(),
            best_effort: RunEnv::native(),
            mechanisms: mechanisms.collect(),
        }
    }

    #[test]
    fn the_program_is_alone_without_mps() {
        let mut pairs = vec![
            pair(&[ALONE, "MPS", "MPS prio"]),
            pair(&["gct mask"]),
            pair(&[STOCK]),
        ];
        choose(&mut pairs, |name| MECHANISMS.contains(&name));
        let names: Vec<Vec<&str>> = pairs
            .iter()
            .map(|pair| pair.mechanisms.iter().map(|m| m.name.as_str()).collect())
            .collect();
        assert_eq!(names, [vec!["MPS prio"], vec![STOCK, ALONE]]);
        assert!(!pairs[1].mechanisms[1].beside);
    }
}
