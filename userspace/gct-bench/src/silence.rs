// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the best-effort throughput from the moment at which the latency-critical tenant falls
//! silent.

use crate::mechanisms::{self, Pair};
use crate::report::{Report, Table};
use crate::sweep::{best_effort, needs, Both, CRITICAL, PATIENCE};
use crate::Cli;
use anyhow::{ensure, Context, Result};
use gct_hw::daemon::Daemon;
use gct_hw::kit::{moment_in, Kit};
use gct_hw::mps::Mps;
use serde_json::Value;
use std::time::Duration;

/// The mechanisms that are measured.
const WAYS: [&str; 4] = ["MPS prio", "gct mask", "gct quota", "gct priority"];
/// Length of best-effort blocks in microseconds. Short, so that few cross the edge of a bin.
const BLOCKS_US: u64 = 10;
/// Latency-critical loops: time between launches in microseconds, and whether arrivals are random.
const LOOPS: [(u64, bool); 3] = [(250, false), (2500, false), (250, true)];
/// Bursts and silences in milliseconds. A silence is longer than any pause in a tenant's arrival
/// statistics.
const BURSTS: &str = "--burst-ms 15 --pause-ms 25";
const LEAD: Duration = Duration::from_millis(300);

/// Measured bins per displayed bin, which is 131 us.
const FOLD: u64 = 8;
/// The displayed time before and after the start of a silence.
const BEFORE_NS: i64 = 1_000_000;
const AFTER_NS: i64 = 12_000_000;

pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let mps = Mps::start()?;
    let daemon = Daemon::start(kit, &tpcs.join(","))?;
    let pairs = mechanisms::all(&needs(), tpcs, &daemon, &mps, report)?;
    for pair in pairs {
        for name in WAYS {
            if pair
                .mechanisms
                .iter()
                .any(|mechanism| mechanism.name == name)
            {
                if let Err(error) = with_pair(kit, cli, &pair, name, report) {
                    report.note(format!("silence, {name}: {error:#}"));
                }
                report.write(&cli.out, "silence")?;
            }
        }
    }
    Ok(())
}

fn with_pair(kit: &Kit, cli: &Cli, pair: &Pair, name: &str, report: &mut Report) -> Result<()> {
    let mut both = Both::start(kit, pair)?;
    let work = format!("{} --timeline", best_effort(BLOCKS_US));
    both.best_effort.ask(&format!("{work} --seconds 0.5"))?;
    let alone = Timeline::of(&both.best_effort.answer(PATIENCE)?)?.whole_rate();
    let priority = match name.ends_with("prio") {
        true => "--high-priority",
        false => "",
    };
    for (period_us, poisson) in LOOPS {
        let seconds = 10.0 * cli.seconds;
        let window = format!("--seconds {seconds} --start-at {}", moment_in(LEAD));
        let arrivals = if poisson { "--poisson" } else { "" };
        both.best_effort.ask(&format!("{work} {window}"))?;
        both.critical.ask(&format!(
            "{CRITICAL} --period-us {period_us} {arrivals} {priority} {BURSTS} {window}"
        ))?;
        let stops = stops(&both.critical.answer(PATIENCE)?)?;
        let timeline = Timeline::of(&both.best_effort.answer(PATIENCE)?)?;
        let after = timeline.after(&stops);
        let title = format!(
            "Best-effort blocks of {BLOCKS_US} us after a loop of a launch every {period_us} us{} fell silent, % of \
             their rate alone, by the time since then in us ({} silences)",
            if poisson { " at random" } else { "" },
            stops.len()
        );
        let columns: Vec<String> = after
            .iter()
            .map(|(at, _)| (at / 1000).to_string())
            .collect();
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let mut table = Table::new(title, &columns);
        let rates = after.iter().map(|(_, rate)| vec![rate / alone * 100.0]);
        table.row(name, &rates.collect::<Vec<_>>());
        report.add(table);
    }
    Ok(())
}

fn stops(line: &Value) -> Result<Vec<i64>> {
    let stops = line["stops_ns"].as_array().context("no stops")?;
    Ok(stops.iter().filter_map(Value::as_i64).collect())
}

/// Number of blocks that ended in each bin.
struct Timeline {
    origin_ns: i64,
    bin_ns: i64,
    blocks: Vec<f64>,
}

impl Timeline {
    fn of(line: &Value) -> Result<Self> {
        let line = &line["timeline"];
        let blocks = line["blocks"].as_array().context("no timeline")?;
        Ok(Self {
            origin_ns: line["origin_ns"].as_i64().context("no origin")?,
            bin_ns: line["bin_ns"]
                .as_i64()
                .filter(|ns| *ns > 0)
                .context("no bins")?,
            blocks: blocks.iter().filter_map(Value::as_f64).collect(),
        })
    }

    /// Returns the last bin in which a block ended.
    fn last(&self) -> i64 {
        let last = self.blocks.iter().rposition(|blocks| *blocks > 0.0);
        // CAST: an index.
        last.unwrap_or(0) as i64
    }

    /// Returns the mean number of blocks per bin, without the first and the last tenth of the time.
    fn whole_rate(&self) -> f64 {
        let last = self
            .blocks
            .iter()
            .rposition(|blocks| *blocks > 0.0)
            .unwrap_or(0);
        let middle = self
            .blocks
            .get(last / 10..last * 9 / 10)
            .unwrap_or_default();
        // CAST: far fewer than 2^52.
        middle.iter().sum::<f64>() / middle.len().max(1) as f64
    }

    /// Returns the mean number of blocks per bin, by the time since the stops in nanoseconds. Each
    /// time is the beginning of [`FOLD`] bins.
    fn after(&self, stops: &[i64]) -> Vec<(i64, f64)> {
        // CAST: eight.
        let width = self.bin_ns * FOLD as i64;
        let first = -(BEFORE_NS / width);
        // Nothing is counted after the window.
        let end = self.origin_ns + self.last() * self.bin_ns;
        let stops: Vec<i64> = stops
            .iter()
            .copied()
            .filter(|stop| stop + AFTER_NS < end)
            .collect();
        (first..AFTER_NS / width)
            .map(|step| {
                let from = step * width;
                let mut found = (0.0, 0);
                for stop in &stops {
                    // The bins that begin in this step. A negative index lies before the window.
                    let begin = (stop + from - self.origin_ns).div_euclid(self.bin_ns) + 1;
                    for bin in begin..begin + width / self.bin_ns {
                        let blocks = usize::try_from(bin)
                            .ok()
                            .and_then(|bin| self.blocks.get(bin));
                        if let Some(blocks) = blocks {
                            found.0 += blocks;
                            found.1 += 1;
                        }
                    }
                }
                (from, found.0 / f64::from(found.1.max(1)))
            })
            .collect()
    }
}

/// Formats, for each table of this part and each mechanism, the rate in the first milliseconds, and
/// the time after which it stays at 99%.
pub(crate) fn markdown(tables: &[&Table]) -> Result<String> {
    let mut out = String::from(
        "| loop that falls silent | way | before | first ms | second | third | from then on | 99% after (us) |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for table in tables {
        let at = table
            .columns
            .iter()
            .map(|column| Ok(column.parse::<f64>()?))
            .collect::<Result<Vec<_>>>()?;
        ensure!(at.len() > 1, "no series");
        for row in &table.rows {
            let rates: Vec<f64> = row
                .values
                .iter()
                .filter_map(|v| v.first().copied())
                .collect();
            let mean = |from: f64, to: f64| {
                let all: Vec<f64> = at
                    .iter()
                    .zip(&rates)
                    .filter(|(at, _)| **at >= from && **at < to)
                    .map(|(_, rate)| *rate)
                    .collect();
                // CAST: a count of bins.
                all.iter().sum::<f64>() / all.len().max(1) as f64
            };
            let means = [
                mean(-1e9, -1.0),
                mean(-0.5, 1e3),
                mean(1e3, 2e3),
                mean(2e3, 3e3),
                mean(3e3, 1e9),
            ];
            let means: Vec<String> = means.iter().map(|mean| format!("{mean:.1}")).collect();
            let back = at.iter().copied().find(|from| {
                *from > -0.5 && at.iter().all(|at| at < from || mean(*at, at + 1e3) >= 99.0)
            });
            let back = back.map_or("never".into(), |back| format!("{back:.0}"));
            let what = table.title.split(" after a loop of ").nth(1);
            let what = what
                .and_then(|what| what.split(" fell").next())
                .unwrap_or_default();
            out += &format!(
                "| {what} | {} | {} | {back} |\n",
                row.name,
                means.join(" | ")
            );
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_aligned_to_the_stops() {
        let bin_ns = 1 << 14;
        // 10 blocks per bin, and 20 from 2 ms after a stop at 100 ms on.
        let stop: i64 = 100_000_000;
        let blocks = |bin: i64| {
            if bin * bin_ns < stop + 2_000_000 {
                10.0
            } else {
                20.0
            }
        };
        let timeline = Timeline {
            origin_ns: 5_000,
            bin_ns,
            blocks: (0..10_000).map(blocks).collect(),
        };
        // The last stop is too close to the end.
        let after = timeline.after(&[stop + 5_000, 10_000 * bin_ns - 1_000_000]);
        for (from, rate) in after {
            match from {
                ..1_850_000 => assert!((rate - 10.0).abs() < 1e-9, "{from}: {rate}"),
                2_000_000.. => assert!((rate - 20.0).abs() < 1e-9, "{from}: {rate}"),
                _ => {}
            }
        }
    }

    #[test]
    fn back_is_when_it_stays_at_99_percent() {
        let at: Vec<String> = (-2..20).map(|n| (n * 500).to_string()).collect();
        let columns: Vec<&str> = at.iter().map(String::as_str).collect();
        let title = "Blocks after a loop of a launch every 250 us fell silent";
        let mut table = Table::new(title, &columns);
        let rate = |n: i32| match n {
            ..0 => 80.0,
            0..4 => 90.0,
            4 => 101.0,
            5 => 90.0,
            _ => 100.0,
        };
        let row: Vec<Vec<f64>> = (-2..20).map(|n| vec![rate(n)]).collect();
        table.row("a way", &row);
        let text = markdown(&[&table]).unwrap();
        let last = "| a launch every 250 us | a way | 80.0 | 90.0 | 90.0 | 95.5 | 100.0 | 3000 |";
        assert_eq!(text.lines().last(), Some(last));
    }
}
