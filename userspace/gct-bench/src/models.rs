// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures services beside trainings: models of torchvision and transformers with random weights,
//! under every mechanism.
//!
//! Each service takes half of the GPU's time when it is alone, or 80% (LithOS's figure 17). Its
//! requests are CUDA graphs that arrive as [`crate::arrivals`] says.

use crate::arrivals::Arrivals;
use crate::dominance::{ALONE, P99, RATE};
use crate::goodput::{self, filled, Bounds, MEASURED};
use crate::mechanisms::{self, Mechanism, Pair, Servers};
use crate::report::{Report, Table};
use crate::torch::LEAD;
use crate::Cli;
use anyhow::{anyhow, Result};
use fastrand::Rng;
use gct_hw::kit::{moment_in, number, Kit, RunEnv};
use gct_hw::served::Served;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

const PROGRAM: &str = include_str!("models.py");
pub(crate) const SERVICES: [&str; 6] = [
    "resnet50", "bert", "detector", "whisper", "prefill", "decode",
];
pub(crate) const TRAININGS: [&str; 6] = ["resnet50", "mobilenet", "bert", "gpt2", "lora", "unet"];
/// Inference of a diffusion U-Net, step after step, in a training's place.
pub(crate) const DIFFUSION: &str = "diffusion";
/// The part that measures busy services.
pub(crate) const BUSY: &str = "pairs80";
/// Share of the GPU's time that a service takes when it is alone, and that of a busy one.
const LOAD: f64 = 0.5;
const BUSY_LOAD: f64 = 0.8;
/// Length of a window as a multiple of the sweep's, since requests are few.
pub(crate) const LONGER: f64 = 5.0;
/// Requests of a window at least.
const REQUESTS: f64 = 200.0;
/// The name of a service that is alone, as a client of MPS.
const MPS_ALONE: &str = "MPS alone";
/// Time limit for a program to build all its models.
pub(crate) const BUILD: Duration = Duration::from_secs(120);
/// Time limit beyond a window. A queue of requests may have to drain.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// First words of the title of each pair's table.
pub(crate) const TITLE: &str = "Service ";

/// How busy each service is: the share of the GPU's time that it takes when it is alone, and the
/// pattern of its arrivals.
#[derive(Clone, Copy)]
struct Offered {
    load: f64,
    arrivals: Arrivals,
}

/// Requests per second of each service.
type Rates = BTreeMap<&'static str, f64>;

/// Measures each service beside each training.
pub(crate) fn run(
    kit: &Kit,
    cli: &Cli,
    part: &str,
    tpcs: &[&str],
    report: &mut Report,
) -> Result<()> {
    let offered = Offered {
        load: if part == BUSY { BUSY_LOAD } else { LOAD },
        arrivals: cli.requests,
    };
    for (service, training) in pairs() {
        report.add(table(offered, service, training));
    }
    let rates = alone(kit, cli, offered, report)?;
    let servers = Servers::start(kit, tpcs)?;
    let all = servers.pairs(tpcs, report, |mechanism| {
        if !mechanism.beside {
            mechanism.name = MPS_ALONE.into();
        }
        cli.measures(&mechanism.name)
    })?;
    mechanisms::in_rounds(all, cli, part, report, |pair, random, report| {
        with_pair(kit, cli, pair, (offered, &rates), random, report)
    })
}

fn pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    SERVICES
        .into_iter()
        .flat_map(|service| TRAININGS.map(|training| (service, training)))
}

fn table(offered: Offered, service: &str, training: &str) -> Table {
    // Titles of half load are those of older samples.
    let load = match offered.load == LOAD {
        true => String::new(),
        false => format!(" at {:.0}%", 100.0 * offered.load),
    };
    let arrivals = offered.arrivals.title();
    Table::new(
        format!("{TITLE}{service}{load} beside training {training}{arrivals}"),
        &MEASURED,
    )
}

/// A program's environment and models: of services or of trainings.
pub(crate) enum Models<'a> {
    Services(&'a RunEnv, &'a [&'a str]),
    Trainings(&'a RunEnv, &'a [&'a str]),
}

/// Starts the two programs of a pair.
fn start(kit: &Kit, [service, training]: [&RunEnv; 2]) -> Result<[Served; 2]> {
    let programs = [
        Models::Services(service, &SERVICES),
        Models::Trainings(training, &TRAININGS),
    ];
    let programs = start_all(kit, &programs)?;
    <[Served; 2]>::try_from(programs).map_err(|_| anyhow!("two programs were to start"))
}

/// Starts a program that has no model yet.
pub(crate) fn serve(kit: &Kit, env: &RunEnv) -> Result<Served> {
    kit.serve_by(env, Path::new("python3"), &["-c", PROGRAM])
}

/// Starts programs and builds all their models at the same time.
pub(crate) fn start_all(kit: &Kit, programs: &[Models<'_>]) -> Result<Vec<Served>> {
    let mut started = Vec::new();
    for Models::Services(env, _) | Models::Trainings(env, _) in programs {
        started.push(serve(kit, env)?);
    }
    for (program, models) in started.iter_mut().zip(programs) {
        let (verb, names) = match models {
            Models::Services(_, names) => ("build-services", names),
            Models::Trainings(_, names) => ("build-trainings", names),
        };
        program.ready()?;
        program.ask(&format!("{verb} {}", names.join(" ")))?;
    }
    for program in &mut started {
        program.answer(BUILD)?;
    }
    Ok(started)
}

/// Measures each program alone on the GPU, natively. Returns the rates of the offered load.
fn alone(kit: &Kit, cli: &Cli, offered: Offered, report: &mut Report) -> Result<Rates> {
    let native = RunEnv::native();
    let [mut service, mut training] = start(kit, [&native, &native])?;
    let mut rates = Rates::new();
    let seconds = LONGER * cli.seconds;
    for name in SERVICES {
        service.ask(&format!("cost {name} 50"))?;
        let us = number(&service.answer(PATIENCE)?, "us")?;
        let rate = offered.load / us * 1e6;
        report.note(format!(
            "{name}: {us:.0} us a request, {rate:.1} requests/s"
        ));
        rates.insert(name, rate);
    }
    for _ in 0..cli.repeat.max(2) {
        let mut steps = BTreeMap::new();
        for name in TRAININGS {
            training.ask(&format!("train {name} {} {seconds}", moment_in(LEAD)))?;
            steps.insert(
                name,
                number(&training.answer(PATIENCE)?, "launches_per_second")?,
            );
        }
        for (name, rate) in &rates {
            let title = table(offered, name, TRAININGS[0]).title;
            let window = Window::of(cli, report, &title, ALONE, (offered.arrivals, *rate));
            service.ask(&format!("infer {name} 0 {}", window.requests(*rate)))?;
            let line = service.answer(PATIENCE)?;
            for (training, rate) in &steps {
                let table = table(offered, name, training);
                report.add(filled(report, table, ALONE, &line, vec![*rate])?);
            }
        }
    }
    Ok(rates)
}

/// The time of a measurement, and the seed of its arrivals. All mechanisms get the same arrivals.
pub(crate) struct Window {
    pub(crate) start: String,
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
    arrivals: Arrivals,
}

impl Window {
    /// Returns the next window of a mechanism's row in the table of this title.
    pub(crate) fn of(
        cli: &Cli,
        report: &Report,
        title: &str,
        mechanism: &str,
        (arrivals, rate): (Arrivals, f64),
    ) -> Self {
        let round = goodput::rounds(report, title, mechanism);
        Self {
            start: moment_in(LEAD),
            seconds: (LONGER * cli.seconds).max(REQUESTS / rate),
            // CAST: rounds are few.
            seed: cli.seed + round as u64,
            arrivals,
        }
    }

    /// Returns when requests arrive, in seconds from the start.
    pub(crate) fn times(&self, rate: f64) -> Vec<f64> {
        self.arrivals
            .times(rate, self.seconds, LEAD.as_secs_f64(), self.seed)
    }

    /// Formats the start, and the arrivals in microseconds from it.
    pub(crate) fn requests(&self, rate: f64) -> String {
        let times = self.times(rate);
        let each = times.iter().map(|time| format!("{:.0}", time * 1e6));
        format!("{} {}", self.start, each.collect::<Vec<_>>().join(","))
    }
}

fn with_pair(
    kit: &Kit,
    cli: &Cli,
    pair: &Pair,
    (offered, rates): (Offered, &Rates),
    random: &mut Rng,
    report: &mut Report,
) -> Result<()> {
    let mut programs = start(kit, [&pair.critical, &pair.best_effort])?;
    let mut windows: Vec<(&Mechanism, (&str, &str))> = pair
        .mechanisms
        .iter()
        .flat_map(|mechanism| pairs().map(move |models| (mechanism, models)))
        .filter(|(mechanism, models)| mechanism.beside || models.1 == TRAININGS[0])
        .collect();
    random.shuffle(&mut windows);
    for (mechanism, models) in windows {
        let rate = rates.get(models.0).copied().unwrap_or(1.0);
        window(
            cli,
            &mut programs,
            mechanism,
            models,
            (offered, rate),
            report,
        )?;
    }
    Ok(())
}

/// Measures one service, beside one training or alone.
fn window(
    cli: &Cli,
    [service, training]: &mut [Served; 2],
    mechanism: &Mechanism,
    (name, trained): (&str, &str),
    (offered, rate): (Offered, f64),
    report: &mut Report,
) -> Result<()> {
    let title = table(offered, name, trained).title;
    let window = Window::of(
        cli,
        report,
        &title,
        &mechanism.name,
        (offered.arrivals, rate),
    );
    if mechanism.beside {
        let Window { start, seconds, .. } = &window;
        training.ask(&format!("train {trained} {start} {seconds}"))?;
    }
    let priority = u8::from(mechanism.high_priority);
    let requests = window.requests(rate);
    service.ask(&format!("infer {name} {priority} {requests}"))?;
    let line = service.answer(PATIENCE)?;
    if mechanism.beside {
        let steps = number(&training.answer(PATIENCE)?, "launches_per_second")?;
        let table = table(offered, name, trained);
        report.add(filled(report, table, &mechanism.name, &line, vec![steps])?);
    } else {
        for training in TRAININGS {
            let table = table(offered, name, training);
            report.add(filled(report, table, &mechanism.name, &line, vec![])?);
        }
    }
    Ok(())
}

/// One mechanism over all pairs: p99 as a multiple of that alone, throughput as a part of it and of
/// what strict priority would leave, requests in time, and goodput.
#[derive(Debug, Default)]
struct Sum {
    p99: Vec<(f64, String)>,
    rate: Vec<f64>,
    left: Vec<f64>,
    in_time: Vec<Bounds>,
    goodput: Vec<Bounds>,
}

/// Returns the tables of each load and pattern of arrivals, which have no mean in common.
pub(crate) fn alike<'a>(tables: &[&'a Table]) -> Vec<Vec<&'a Table>> {
    let offered = |table: &'a Table| {
        let title = table.title.as_str();
        (
            goodput::load(title),
            title.split_once(", ").map(|(_, rest)| rest),
        )
    };
    let mut groups: Vec<Vec<&Table>> = Vec::new();
    for table in tables {
        let same = |group: &&mut Vec<&'a Table>| {
            group
                .first()
                .is_some_and(|first| offered(first) == offered(table))
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(table),
            None => groups.push(vec![table]),
        }
    }
    groups
}

/// Formats what [`markdown`] does for each window alone; nothing if there is one only.
pub(crate) fn by_window(tables: &[&Table]) -> String {
    let windows = tables.iter().map(|table| table.rounds(P99)).max();
    let each = (0..windows.unwrap_or(0)).map(|round| {
        let window: Vec<Table> = tables.iter().map(|table| table.of_round(round)).collect();
        let text = markdown(&window.iter().collect::<Vec<_>>());
        format!("\nWindow {}:\n\n{text}", round.saturating_add(1))
    });
    match windows {
        Some(2..) => each.collect(),
        _ => String::new(),
    }
}

/// Formats a line per mechanism: the mean and the worst pair.
pub(crate) fn markdown(tables: &[&Table]) -> String {
    let mut sums: Vec<(&str, Sum)> = Vec::new();
    for table in tables {
        let Some(alone) = table.get(ALONE) else {
            continue;
        };
        for row in table.rows.iter().filter(|row| row.name != ALONE) {
            let Some(p99) = row.ratio_by_round(alone, P99) else {
                continue;
            };
            let at = match sums.iter().position(|(name, _)| *name == row.name) {
                Some(at) => at,
                None => {
                    sums.push((&row.name, Sum::default()));
                    sums.len() - 1
                }
            };
            if let Some((_, sum)) = sums.get_mut(at) {
                sum.p99.push((p99, table.title.replace(TITLE, "")));
                let load = goodput::load(&table.title).unwrap_or(LOAD);
                let rate = row.ratio(alone, RATE);
                let in_time = goodput::in_time(row, alone);
                sum.rate.extend(rate);
                sum.left.extend(rate.map(|rate| rate / (1.0 - load)));
                sum.in_time.extend(in_time);
                let both = in_time.zip(rate);
                sum.goodput
                    .extend(both.map(|(in_time, rate)| Bounds::exactly(rate).and(load, in_time)));
            }
        }
    }
    let mean = |sum: &Sum| mean(sum.p99.iter().map(|(ratio, _)| *ratio));
    sums.sort_by(|(_, a), (_, b)| mean(a).total_cmp(&mean(b)));
    let mut out = String::from(
        "| mechanism | pairs | p99, mean over pairs | worst pair | training, mean | least | \
         of what is left | requests in time | goodput |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for (name, sum) in &sums {
        let worst = sum.p99.iter().max_by(|a, b| a.0.total_cmp(&b.0));
        let (worst, pair) = worst.map_or((0.0, ""), |(ratio, pair)| (*ratio, pair.as_str()));
        let least = sum.rate.iter().copied().fold(f64::INFINITY, f64::min);
        let trained = match sum.rate.is_empty() {
            true => "- | - | -".into(),
            false => format!(
                "{:.0}% | {:.0}% | {:.0}%",
                100.0 * self::mean(sum.rate.iter().copied()),
                100.0 * least,
                100.0 * self::mean(sum.left.iter().copied()),
            ),
        };
        let in_time = Bounds::mean(&sum.in_time).map_or("-".into(), Bounds::percent);
        let goodput = Bounds::mean(&sum.goodput).map_or("-".into(), Bounds::text);
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            out,
            "| {name} | {} | {:.2} | {worst:.2} ({pair}) | {trained} | {in_time} | {goodput} |",
            sum.p99.len(),
            mean(sum),
        );
    }
    out
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_the_start_and_the_arrivals() {
        let window = Window {
            start: "17.5".into(),
            seconds: 1.0,
            seed: 3,
            arrivals: Arrivals::Bursty,
        };
        let text = window.requests(200.0);
        let (start, arrivals) = text.split_once(' ').unwrap();
        assert_eq!(start, "17.5");
        let arrivals: Vec<i64> = arrivals.split(',').map(|us| us.parse().unwrap()).collect();
        assert!(arrivals.is_sorted());
        assert!((-300_000..0).contains(&arrivals[0]));
        assert!(arrivals.len() > 100);
        assert_eq!(text, window.requests(200.0));
    }

    #[test]
    fn a_busy_service_leaves_less() {
        let table = |load| {
            let arrivals = Arrivals::Poisson;
            let mut table = table(Offered { load, arrivals }, "bert", "lora");
            for (name, steps) in [(ALONE, 10.0), ("MPS", 4.0)] {
                let one = || vec![1.0];
                table.row(name, &[one(), one(), one(), vec![steps]]);
            }
            table
        };
        let (half, busy) = (table(LOAD), table(BUSY_LOAD));
        assert_eq!(half.title, "Service bert beside training lora");
        assert_eq!(busy.title, "Service bert at 80% beside training lora");
        let groups = alike(&[&half, &busy]);
        assert_eq!(groups.len(), 2);
        assert!(markdown(&groups[0]).contains("| 40% | 40% | 80% |"));
        assert!(markdown(&groups[1]).contains("| 40% | 40% | 200% |"));
    }

    #[test]
    fn each_window_has_its_own_mean() {
        let offered = Offered {
            load: LOAD,
            arrivals: Arrivals::Poisson,
        };
        let mut table = table(offered, "bert", "lora");
        let windows = |p99: [f64; 2]| [vec![], vec![], p99.to_vec(), vec![2.0, 4.0], vec![]];
        table.row(ALONE, &windows([100.0, 200.0]));
        table.row("MPS", &windows([150.0, 400.0]));
        let text = by_window(&[&table]);
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("| MPS"))
            .collect();
        assert!(lines[0].starts_with("| MPS | 1 | 1.50 | 1.50 (bert beside training lora) | 100%"));
        assert!(lines[1].starts_with("| MPS | 1 | 2.00 | 2.00 (bert beside training lora) | 100%"));
        assert_eq!(lines.len(), 2);
        assert_eq!(by_window(&[&table.of_round(0)]), "");
    }

    #[test]
    fn a_mechanism_is_summed_over_pairs() {
        let pair = |training: &str, p99: f64, rate: f64| {
            let offered = Offered {
                load: LOAD,
                arrivals: Arrivals::Poisson,
            };
            let mut table = table(offered, "bert", training);
            let row = |p99, rate: &[f64], in_time: &[f64]| {
                let one = vec![1.0];
                [one.clone(), one, vec![p99], rate.to_vec(), in_time.to_vec()]
            };
            table.row(ALONE, &row(100.0, &[50.0], &[]));
            table.row("MPS", &row(p99, &[rate], &[]));
            table.row("gct none", &[vec![], vec![], vec![], vec![]]);
            table.row(MPS_ALONE, &row(p99 / 3.0, &[], &[90.0]));
            table
        };
        let tables = [pair("lora", 120.0, 40.0), pair("bert", 300.0, 45.0)];
        let text = markdown(&tables.iter().collect::<Vec<_>>());
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| MPS alone | 2 | 0.70 | 1.00 (bert beside training bert) | - | - | - | 90% | - |",
                "| MPS | 2 | 2.10 | 3.00 (bert beside training bert) \
                 | 85% | 80% | 170% | 95 to 99% | 1.32 to 1.34 |",
            ]
        );
    }
}
