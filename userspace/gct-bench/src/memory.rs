// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures programs below the memory that they want (GVM 7.3.1, 7.5), beside the least time that
//! the link to the host leaves them: a training, an inference that uses all of its memory in each
//! step, and a diffusion that makes images, as in the paper.
//!
//! ```text
//! live    bytes that exist at the same time within a step
//! room    gmem.limit - what cannot move (contexts, code)
//! comes   live - room: is on the host at that moment, and used again before it is over
//! leaves  comes - what no step writes, whose copy on the host stays valid
//! link    leaves at the rate of both ways at once, the rest at that of one way
//! floor   the native step + link, one after the other; or the longer of both, at once
//! ```
//!
//! Both floors assume the best possible choice of what stays. Reading memory of the host where it
//! lies goes over the same link, so they hold for it, too. What a program holds at that moment and
//! never uses again makes them too high.
//!
//! A step of those that learn nothing has the same bits natively and at each part.
//!
//! What came and left is the GPU's own count of its link, a sample a second.

use crate::budget::Budget;
use crate::machine::output_of;
use crate::models::LONGER;
use crate::report::{Report, Table};
use crate::Cli;
use anyhow::{ensure, Context, Result};
use gct_hw::daemon::Daemon;
use gct_hw::kit::{number, Kit, RunEnv};
use gct_hw::served::Served;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// The name of the part.
pub(crate) const MEMORY: &str = "memory";
const PROGRAM: &str = include_str!("memory.py");
const MODELS: &str = include_str!("../../../tests/hw/src/pageable.py");
const KINDS: [(&str, &str); 3] = [
    ("infer", "inference"),
    ("train", "training"),
    ("image", "images"),
];
/// The kind whose steps change what they compute.
const LEARNS: &str = "train";
/// `gmem.limit` in percent of the memory that the program takes natively.
const PARTS: [u64; 3] = [40, 60, 90];
/// Seconds, and native steps, until places have settled, for the most part: what has moved rests
/// for 10 s (`gct_core::policy::placement`).
const SETTLE: f64 = 16.0;
const SETTLE_STEPS: f64 = 20.0;
/// Time limit beyond a window. A step may take seconds.
const PATIENCE: Duration = Duration::from_secs(60);
const MIB: f64 = (1 << 20) as f64;
const COLUMNS: [&str; 10] = [
    "step (ms)",
    "to native",
    "must come (MiB a step)",
    "must leave (MiB a step)",
    "floor, one after the other (ms)",
    "step to it",
    "floor, at once (ms)",
    "came (MiB a step)",
    "left (MiB a step)",
    "on the GPU (MiB)",
];

/// What a program does with enough memory.
#[derive(Clone, Debug)]
struct Native {
    ms: f64,
    /// The result of a step, if steps do not change it.
    bits: Option<String>,
    /// Bytes that live at the same time, and those of them that no step writes.
    live: f64,
    read_only: f64,
    /// Bytes charged, and those of them that cannot move.
    charged: f64,
    fixed: f64,
}

/// Bandwidth of the link in bytes a millisecond: into the GPU, out of it, and each at once.
#[derive(Clone, Copy, Debug)]
struct Link {
    into: f64,
    out: f64,
    both: f64,
}

/// The least that a step takes under a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Floor {
    comes: f64,
    leaves: f64,
    after: f64,
    at_once: f64,
}

impl Native {
    fn floor(&self, limit: f64, link: &Link) -> Floor {
        let comes = (self.live - (limit - self.fixed).max(0.0)).max(0.0);
        let leaves = (comes - self.read_only).max(0.0);
        let ms = leaves / link.both + (comes - leaves) / link.into;
        Floor {
            comes,
            leaves,
            after: self.ms + ms,
            at_once: self.ms.max(ms),
        }
    }
}

pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let daemon = Daemon::start(kit, &tpcs.join(","))?;
    let mut budget = Budget::new(cli.limit_seconds);
    for (kind, name) in KINDS {
        if !budget.admits() {
            report.note("memory was cut short by --limit-seconds".into());
            return Ok(());
        }
        if let Err(error) = measure(kit, cli, &daemon, (kind, name), report) {
            report.note(format!("{name}: {error:#}"));
        }
        budget.done();
        report.write(&cli.out, MEMORY)?;
    }
    Ok(())
}

/// Measures one program natively, and then at each part of its memory.
fn measure(
    kit: &Kit,
    cli: &Cli,
    daemon: &Daemon,
    (kind, name): (&str, &str),
    report: &mut Report,
) -> Result<()> {
    let (native, link) = natively(kit, cli, daemon, (kind, name), report)?;
    let group = format!("paged-{kind}");
    daemon.create(&group)?;
    let limit = |part: u64| (native.charged / 100.0).floor() * part as f64;
    let set = |part| daemon.set(&group, "gmem.limit", &format!("{:.0}", limit(part)));
    set(PARTS[0])?;
    daemon.set(&group, "gmem.pageable", "1")?;
    let mut program = start(kit, &daemon.group(&group, ""), kind)?;
    for part in PARTS {
        set(part)?;
        let seconds = 2.0 * LONGER * cli.seconds;
        step_for(&mut program, SETTLE.max(SETTLE_STEPS * native.ms / 1e3))?;
        program.ask(&format!("step {seconds}"))?;
        let traffic = traffic(seconds);
        let ms = number(&answer(&mut program, seconds)?, "ms")?;
        let bits = bits(&mut program, kind)?;
        ensure!(
            bits == native.bits,
            "at {part}% a step computes {bits:?}, natively {:?}",
            native.bits
        );
        let floor = native.floor(limit(part), &link);
        let resident = daemon.get(&group, "gmem.current")?;
        let [came, left] = match traffic {
            Some(rates) => rates.map(|rate| vec![rate * ms / 1e3 * 1e6 / MIB]),
            None => [vec![], vec![]],
        };
        let mut table = Table::new(
            format!("Memory, {name}: steps by the part of the memory that it takes natively"),
            &COLUMNS,
        );
        table.row(
            &format!("{part}%"),
            &[
                vec![ms],
                vec![ms / native.ms],
                vec![floor.comes / MIB],
                vec![floor.leaves / MIB],
                vec![floor.after],
                vec![ms / floor.after],
                vec![floor.at_once],
                came,
                left,
                vec![resident.trim().parse::<f64>()? / MIB],
            ],
        );
        report.add(table);
    }
    Ok(())
}

/// Measures one program with all its memory, and the link.
fn natively(
    kit: &Kit,
    cli: &Cli,
    daemon: &Daemon,
    (kind, name): (&str, &str),
    report: &mut Report,
) -> Result<(Native, Link)> {
    let group = format!("native-{kind}");
    daemon.create(&group)?;
    let mut program = start(kit, &daemon.group(&group, ""), kind)?;
    let ms = number(&step_for(&mut program, LONGER * cli.seconds)?, "ms")?;
    program.ask("wants")?;
    let wants = program.answer(PATIENCE)?;
    let charged: f64 = daemon.get(&group, "gmem.current")?.trim().parse()?;
    program.ask("link")?;
    let rates = program.answer(PATIENCE)?;
    let rate = |key| number(&rates, key).map(|gigabytes| gigabytes * 1e6);
    let link = Link {
        into: rate("into")?,
        out: rate("out")?,
        both: rate("both")?,
    };
    let native = Native {
        ms,
        bits: bits(&mut program, kind)?,
        live: number(&wants, "live")?,
        read_only: number(&wants, "read_only")?,
        charged,
        fixed: (charged - number(&wants, "reserved")?).max(0.0),
    };
    report.note(format!(
        "{name} natively: {ms:.1} ms a step; MiB: {:.0} charged, of which {:.0} cannot move; {:.0} \
         live at once, of which {:.0} are only read",
        charged / MIB,
        native.fixed / MIB,
        native.live / MIB,
        native.read_only / MIB,
    ));
    let columns = ["to the GPU", "to the host", "each way at once"];
    let mut table = Table::new("Memory: pinned copies over the link (GB/s)", &columns);
    let rates = [link.into, link.out, link.both];
    table.row("link", &rates.map(|rate| vec![rate / 1e6]));
    report.add(table);
    Ok((native, link))
}

fn start(kit: &Kit, env: &RunEnv, kind: &str) -> Result<Served> {
    let mut program = kit.serve_by(env, Path::new("python3"), &["-c", PROGRAM, MODELS, kind])?;
    program.ready()?;
    Ok(program)
}

fn step_for(program: &mut Served, seconds: f64) -> Result<Value> {
    program.ask(&format!("step {seconds}"))?;
    answer(program, seconds)
}

/// Returns the result of a step of a program that learns nothing.
fn bits(program: &mut Served, kind: &str) -> Result<Option<String>> {
    if kind == LEARNS {
        return Ok(None);
    }
    program.ask("value")?;
    let value = program.answer(PATIENCE)?;
    let bits = value["bits"].as_str().context("a step without a result")?;
    Ok(Some(bits.to_owned()))
}

fn answer(program: &mut Served, seconds: f64) -> Result<Value> {
    program.answer(PATIENCE + Duration::from_secs_f64(seconds))
}

/// Returns the megabytes a second that come to the GPU over its link and leave it, by the GPU's own
/// counters, or nothing where it has none. Takes about `seconds`.
fn traffic(seconds: f64) -> Option<[f64; 2]> {
    // CAST: some seconds.
    let count = (seconds as u64).max(1).to_string();
    let text = output_of("nvidia-smi", &["dmon", "-i", "0", "-s", "t", "-c", &count])?;
    mean_traffic(&text)
}

/// Returns the mean of the lines of `nvidia-smi dmon -s t`: GPU, received, transmitted.
fn mean_traffic(text: &str) -> Option<[f64; 2]> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let samples: Vec<[f64; 2]> = lines
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let mut next = || words.next()?.parse().ok();
            Some([next()?, next()?])
        })
        .collect();
    // CAST: samples are few.
    let count = samples.len() as f64;
    let mean = |way: fn(&[f64; 2]) -> f64| samples.iter().map(way).sum::<f64>() / count;
    (count > 0.0).then(|| [mean(|[came, _]| *came), mean(|[_, left]| *left)])
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: f64 = 1e9;
    const NATIVE: Native = Native {
        ms: 10.0,
        bits: None,
        live: 4.0 * GB,
        read_only: 0.0,
        charged: 6.0 * GB,
        fixed: 0.5 * GB,
    };
    /// 50 GB/s one way, 25 each way at once.
    const LINK: Link = Link {
        into: 50e6,
        out: 50e6,
        both: 25e6,
    };

    #[test]
    fn what_a_step_writes_crosses_the_link_twice() {
        let floor = NATIVE.floor(2.5 * GB, &LINK);
        assert_eq!((floor.comes, floor.leaves), (2.0 * GB, 2.0 * GB));
        assert_eq!((floor.after, floor.at_once), (90.0, 80.0));
    }

    #[test]
    fn what_no_step_writes_comes_only() {
        let reads = Native {
            read_only: 3.0 * GB,
            ..NATIVE
        };
        let floor = reads.floor(2.5 * GB, &LINK);
        assert_eq!((floor.comes, floor.leaves), (2.0 * GB, 0.0));
        assert_eq!((floor.after, floor.at_once), (50.0, 40.0));
        // Half a gigabyte is written and has no room either.
        let floor = reads.floor(1.0 * GB, &LINK);
        assert_eq!((floor.comes, floor.leaves), (3.5 * GB, 0.5 * GB));
        assert_eq!(floor.after, 10.0 + 20.0 + 60.0);
    }

    #[test]
    fn nothing_must_move_where_all_that_lives_has_room() {
        let floor = NATIVE.floor(4.5 * GB, &LINK);
        assert_eq!((floor.comes, floor.after, floor.at_once), (0.0, 10.0, 10.0));
        // A limit below what cannot move leaves no room, and not less than none.
        assert_eq!(NATIVE.floor(0.1 * GB, &LINK).comes, 4.0 * GB);
    }

    #[test]
    fn the_gpu_says_what_crosses_its_link() {
        let text =
            "# gpu  rxpci  txpci\n# Idx   MB/s   MB/s\n    0   1000     10\n    0   3000     30\n";
        assert_eq!(mean_traffic(text), Some([2000.0, 20.0]));
        assert_eq!(mean_traffic("# gpu\n    0      -      -\n"), None);
        assert_eq!(mean_traffic(""), None);
    }
}
