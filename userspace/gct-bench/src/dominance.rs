// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the mechanisms that are worse than others in one respect and better in none.

use crate::report::Table;
use gct_hw::kit::Spread;
use std::fmt::Write;

/// Prefix of the names of this project's mechanisms.
pub(crate) const OURS: &str = "gct ";
/// The mechanism that throughputs are relative to.
pub(crate) const PLAIN: &str = "MPS";
/// The latency-critical loop without a neighbour.
pub(crate) const ALONE: &str = "alone";
/// Columns that are compared.
pub(crate) const COLUMNS: [&str; 4] = [
    "p50 (us)",
    "p95 (us)",
    "p99 (us)",
    "best effort, launches or steps/s",
];
/// Indices of the p99 and the throughput columns.
pub(crate) const P99: usize = 2;
pub(crate) const RATE: usize = 3;

/// What the title of a program says that launches each kernel from Python.
pub(crate) const EAGER: &str = "launch by launch";

/// Smaller differences of p99 count as equal. This is the range of the loop alone in the quietest
/// rows.
const P99_MARGIN: f64 = 0.05;
/// Smaller differences of throughput count as equal.
const RATE_MARGIN: f64 = 0.005;

/// The result of one mechanism at one point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Achieved<'a> {
    pub(crate) name: &'a str,
    pub(crate) p99: Spread,
    pub(crate) rate: Spread,
}

/// Returns whether `less` is below `more` by more than both ranges, and by more than `margin`.
fn below(less: &Spread, more: &Spread, margin: f64) -> bool {
    less.most < more.least && less.median < more.median * (1.0 - margin)
}

impl Achieved<'_> {
    /// Returns whether this result is no worse in p99 and in throughput, and better in one.
    pub(crate) fn dominates(&self, other: &Self) -> bool {
        let sooner = below(&self.p99, &other.p99, P99_MARGIN);
        let later = below(&other.p99, &self.p99, P99_MARGIN);
        let more = below(&other.rate, &self.rate, RATE_MARGIN);
        let less = below(&self.rate, &other.rate, RATE_MARGIN);
        !later && !less && (sooner || more)
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.name.starts_with(OURS)
    }
}

/// Returns the result of each mechanism in a table. A program alone is not one.
pub(crate) fn achieved(table: &Table) -> Vec<Achieved<'_>> {
    let rows = table.rows.iter().filter(|row| row.name != ALONE);
    rows.filter_map(|row| {
        Some(Achieved {
            name: &row.name,
            p99: row.spread(P99)?,
            rate: row.spread(RATE)?,
        })
    })
    .collect()
}

/// Returns the name of a table's point. A table of models has its title, with a mark if the host
/// and not the GPU limits the program: its latencies say little about mechanisms on the GPU.
pub(crate) fn name(table: &Table) -> String {
    let Some(point) = table.point else {
        let mark = match table.title.contains(EAGER) {
            true => " (host-bound)",
            false => "",
        };
        return format!("{}{mark}", table.title);
    };
    let arrivals = if point.poisson { "random" } else { "periodic" };
    format!(
        "{} us, every {} us, {arrivals}",
        point.blocks_us, point.period_us
    )
}

/// Formats the statement about all `tables`.
pub(crate) fn markdown(tables: &[&Table]) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = write_statement(&mut out, tables);
    out
}

fn write_statement(out: &mut String, tables: &[&Table]) -> std::fmt::Result {
    let mut ours: Vec<(&str, usize, usize)> = Vec::new();
    let (mut beaten, mut lost) = (0, Vec::new());
    let mut baselines = 0;
    for table in tables {
        let all = achieved(table);
        let (mine, theirs): (Vec<_>, Vec<_>) = all.into_iter().partition(Achieved::is_ours);
        baselines += theirs.len();
        beaten += theirs
            .iter()
            .filter(|b| mine.iter().any(|a| a.dominates(b)))
            .count();
        for mechanism in &mine {
            let by: Vec<&str> = theirs
                .iter()
                .filter(|b| b.dominates(mechanism))
                .map(|b| b.name)
                .collect();
            let at = match ours.iter().position(|(name, ..)| *name == mechanism.name) {
                Some(at) => at,
                None => {
                    ours.push((mechanism.name, 0, 0));
                    ours.len() - 1
                }
            };
            if let Some((_, of, dominated)) = ours.get_mut(at) {
                *of += 1;
                *dominated += usize::from(!by.is_empty());
            }
        }
        if !mine.is_empty() && mine.iter().all(|a| theirs.iter().any(|b| b.dominates(a))) {
            lost.push(*table);
        }
    }
    writeln!(
        out,
        "A dominates B: p99 not higher and throughput not lower, and one of them better; a difference counts if the \
         ranges over all repetitions are apart and the medians by {} % (p99) or {} % (throughput).\n",
        P99_MARGIN * 100.0,
        RATE_MARGIN * 100.0
    )?;
    writeln!(
        out,
        "- Points: {}. Points at which each of our ways is dominated by some baseline: {}.",
        tables.len(),
        lost.len()
    )?;
    for table in lost {
        writeln!(out, "  - {}", name(table))?;
    }
    writeln!(
        out,
        "- Baseline points: {baselines}; dominated by one of our ways at the same point: {beaten}."
    )?;
    writeln!(out, "\n| our way | points | dominated by a baseline |")?;
    writeln!(out, "|---|---|---|")?;
    for (name, of, dominated) in &ours {
        writeln!(out, "| {name} | {of} | {dominated} |")?;
    }
    writeln!(out, "\n| point | our way | dominated by |\n|---|---|---|")?;
    for table in tables {
        let all = achieved(table);
        for mechanism in all.iter().filter(|mechanism| mechanism.is_ours()) {
            let by: Vec<&str> = all
                .iter()
                .filter(|b| !b.is_ours() && b.dominates(mechanism))
                .map(|b| b.name)
                .collect();
            if !by.is_empty() {
                let (point, by) = (name(table), by.join(", "));
                writeln!(out, "| {point} | {} | {by} |", mechanism.name)?;
            }
        }
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Point;

    fn achieved(name: &str, p99: [f64; 2], rate: [f64; 2]) -> Achieved<'_> {
        Achieved {
            name,
            p99: Spread::of(&p99).unwrap(),
            rate: Spread::of(&rate).unwrap(),
        }
    }

    #[test]
    fn better_in_one_and_worse_in_no_respect_dominates() {
        let a = achieved("a", [50.0, 52.0], [400.0, 401.0]);
        let slower = achieved("b", [60.0, 70.0], [400.0, 402.0]);
        let less = achieved("c", [51.0, 53.0], [390.0, 391.0]);
        let noisy = achieved("d", [40.0, 70.0], [400.0, 401.0]);
        let other = achieved("e", [60.0, 70.0], [430.0, 431.0]);
        assert!(a.dominates(&slower) && !slower.dominates(&a));
        assert!(a.dominates(&less) && !less.dominates(&a));
        assert!(!a.dominates(&noisy) && !noisy.dominates(&a));
        assert!(!a.dominates(&other) && !other.dominates(&a));
        assert!(!a.dominates(&a));
    }

    #[test]
    fn a_lost_pair_of_models_is_named() {
        let mut table = Table::new("Service bert beside training lora", &COLUMNS);
        let samples = |p99: f64, rate: f64| [vec![1.0], vec![1.0], vec![p99], vec![rate]];
        table.row("MPS", &samples(40.0, 100.0));
        table.row("gct mask", &samples(60.0, 80.0));
        let text = markdown(&[&table]);
        assert!(
            text.contains("some baseline: 1.\n  - Service bert beside training lora\n"),
            "{text}"
        );
    }

    #[test]
    fn a_host_bound_program_is_marked() {
        let title = |title| name(&Table::new(title, &COLUMNS));
        assert_eq!(
            title("PyTorch inference launch by launch, beside training"),
            "PyTorch inference launch by launch, beside training (host-bound)"
        );
        let graph = "PyTorch inference as a CUDA graph, beside training";
        assert_eq!(title(graph), graph);
    }

    #[test]
    fn the_statement_names_the_loss() {
        let mut table = Table::new("t", &COLUMNS);
        table.point = Some(Point {
            blocks_us: 25,
            period_us: 50,
            poisson: false,
        });
        let samples = |p99: f64, rate: f64| [vec![1.0], vec![1.0], vec![p99], vec![rate]];
        table.row("MPS", &samples(40.0, 100.0));
        table.row("gct mask", &samples(60.0, 80.0));
        let text = markdown(&[&table]);
        assert!(text.contains("some baseline: 1."), "{text}");
        assert!(
            text.contains("  - 25 us, every 50 us, periodic\n"),
            "{text}"
        );
        assert!(text.contains("| gct mask | 1 | 1 |"), "{text}");
        table.row("gct quota", &samples(30.0, 100.0));
        let text = markdown(&[&table]);
        assert!(text.contains("some baseline: 0."), "{text}");
        assert!(text.contains("our ways at the same point: 1."), "{text}");
    }
}
