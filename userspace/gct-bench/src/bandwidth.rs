// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures what a neighbour on other TPCs takes of memory bandwidth and of the cache.
//!
//! Masks divide TPCs and nothing else. The first program has half of the TPCs. The second one
//! streams memory on more and more of the others.

use crate::models::{serve, BUILD, PATIENCE};
use crate::report::{Report, Table};
use crate::torch::LEAD;
use crate::Cli;
use anyhow::Result;
use gct_hw::daemon::Daemon;
use gct_hw::kit::{moment_in, number, Kit};
use gct_hw::mps::Mps;
use gct_hw::served::Served;

/// What the first program does. The second one does the first of these.
const LOOPS: [&str; 3] = ["stream", "cached", "matmul"];
/// Length of a window as a multiple of the sweep's.
const LONGER: f64 = 2.0;

pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let mps = Mps::start()?;
    let daemon = Daemon::start(kit, &tpcs.join(","))?;
    let (own, rest) = tpcs.split_at(tpcs.len() / 2);
    let mut programs = Vec::new();
    for (group, mask) in [("near", own), ("far", rest)] {
        daemon.create(group)?;
        daemon.set(group, "tpc.mask", &mask.join(","))?;
        programs.push(serve(kit, &mps.client(daemon.group(group, "")))?);
    }
    for program in &mut programs {
        program.ready()?;
        program.ask(&format!("build-loops {}", LOOPS.join(" ")))?;
    }
    for program in &mut programs {
        program.answer(BUILD)?;
    }
    let counts = [0, 2, 4, 8, 16, rest.len()];
    let columns = counts.map(|count| format!("{count} TPCs"));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    for _ in 0..cli.repeat {
        for name in LOOPS {
            let mut rates = Vec::new();
            for count in counts {
                if let Some(mask) = rest.get(..count).filter(|mask| !mask.is_empty()) {
                    daemon.set("far", "tpc.mask", &mask.join(","))?;
                }
                rates.push(beside(cli, &mut programs, name, count > 0)?);
            }
            let alone = rates.first().map_or(1.0, |(near, _)| *near);
            let title =
                "Rate on half of the TPCs to that alone, by the TPCs of a neighbour that streams";
            let mut table = Table::new(title, &columns);
            let near = rates.iter().map(|(near, _)| vec![near / alone]);
            table.row(name, &near.collect::<Vec<_>>());
            report.add(table);
            let mut table = Table::new("Steps of the neighbour a second", &columns);
            let far = rates.iter().map(|(_, far)| vec![*far]);
            table.row(&format!("beside {name}"), &far.collect::<Vec<_>>());
            report.add(table);
        }
        report.write(&cli.out, "bandwidth")?;
    }
    Ok(())
}

/// Returns the rates of both programs.
fn beside(
    cli: &Cli,
    programs: &mut [Served],
    name: &str,
    has_neighbour: bool,
) -> Result<(f64, f64)> {
    let [near, far] = programs else {
        return Ok((0.0, 0.0));
    };
    let window = format!("{} {}", moment_in(LEAD), LONGER * cli.seconds);
    near.ask(&format!("train {name} {window}"))?;
    if has_neighbour {
        far.ask(&format!("train {} {window}", LOOPS[0]))?;
    }
    let rate = number(&near.answer(PATIENCE)?, "launches_per_second")?;
    let other = match has_neighbour {
        true => number(&far.answer(PATIENCE)?, "launches_per_second")?,
        false => 0.0,
    };
    Ok((rate, other))
}
