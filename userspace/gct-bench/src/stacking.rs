// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Judges three programs on one GPU as LithOS does (7.2, figures 14 to 16).
//!
//! ```text
//! A            a service whose requests have to end within MLPerf's constraint
//! B            a service whose throughput counts; with all of the GPU a closed loop
//! best effort  a model in a closed loop that nothing is promised
//!
//! part         throughput, of that alone in a closed loop: of A and B load * requests that ended
//!              in the window, of those that arrived
//! SLO          mean of A's requests in time and of B's part of its goal, which is half of the GPU
//! throughput   sum of the parts
//! goodput      the same with A's load * its requests in time, where that is less than its part
//! ```
//!
//! LithOS's throughput of 1 is B's 0.50, best effort's 0.15 and what is left for A, hence the
//! loads. Its constraints are at most 7.4 times a request. Models here are smaller, so MLPerf's
//! constraint is a longer time for them, and requests within 7.4 times one alone are counted, too.

use crate::budget::Budget;
use crate::dominance::ALONE;
use crate::goodput::{numbers, percent_within, ranked};
use crate::mechanisms::Mechanism;
use crate::report::{Report, Row, Table};
use crate::scenes::{scenes, Measured, Programs, Rates, Scene};
use crate::Cli;
use anyhow::Result;
use gct_hw::daemon::Daemon;
use gct_hw::kit::{Kit, RunEnv};
use gct_hw::mps::Mps;

mod ways;
pub(crate) use ways::across_gpcs;

use ways::{Role, Setting, Way, ALL_B, WAYS};

/// The name of the part.
pub(crate) const STACKING: &str = "stacking";
/// First words of the titles of the tables: of a scene, and of each of its services.
pub(crate) const TITLE: &str = "Stacking ";
pub(crate) const SERVICE: &str = "Stacked ";

/// Parts of the GPU that A and B want.
const A_LOAD: f64 = 0.35;
const B_LOAD: f64 = 0.5;
/// The longest constraint of LithOS's table 2, as a multiple of a request alone.
const STRICT: f64 = 7.4;
/// The model of every scene's best-effort program.
pub(crate) const BEST_EFFORT: &str = "closed-decode";
/// A and B of each scene.
pub(crate) const SCENES: [[(&str, f64); 2]; 3] = [
    [("resnet50", A_LOAD), ("bert", B_LOAD)],
    [("resnet50", A_LOAD), ("bert", 1.0)],
    [("detector", A_LOAD), ("prefill", B_LOAD)],
];

/// Columns of a scene, and their indices.
const COLUMNS: [&str; 6] = [
    "A in time (%)",
    "A within 7.4 times one alone (%)",
    "A p99 (us)",
    "A (% of the GPU)",
    "B (% of the GPU)",
    "best effort (% of the GPU)",
];

const IN_TIME: usize = 0;
const STRICTLY: usize = 1;
const P99: usize = 2;
const A: usize = 3;
const B: usize = 4;
const BEST_EFFORT_PART: usize = 5;

/// Returns MLPerf's limit of the latency of a service in a datacenter, in microseconds (LithOS,
/// table 2).
fn constraint(model: &str) -> f64 {
    match model {
        "resnet50" => 15e3,
        "detector" => 100e3,
        "bert" => 130e3,
        _ => 2000e3,
    }
}

/// Returns the name of a scene, which says what each program wants.
pub(crate) fn name([a, b]: [(&str, f64); 2]) -> String {
    let wants = |(model, load): (&str, f64)| match load >= 1.0 {
        true => format!("{model} in a closed loop"),
        false => format!("{model} at {:.0}%", 100.0 * load),
    };
    let best_effort = BEST_EFFORT.trim_start_matches("closed-");
    format!("A {}, B {}, {best_effort}", wants(a), wants(b))
}

/// Returns a row with what A or B did in a window, and with A the best effort.
pub(crate) fn judged(measured: &Measured<'_>) -> Vec<Table> {
    let scene = measured
        .name
        .rsplit_once(": ")
        .map_or("", |(scene, _)| scene);
    let mut table = Table::new(format!("{TITLE}{scene}"), &COLUMNS);
    let part = 100.0 * part_of(measured);
    let (model, _) = measured.service;
    let values = match Role::of(model) {
        Role::B => vec![vec![], vec![], vec![], vec![], vec![part], vec![]],
        _ => {
            let mut times = numbers(&measured.answer["times_us"]);
            times.sort_by(f64::total_cmp);
            let within = |slo| vec![percent_within(&times, slo)];
            vec![
                within(constraint(model)),
                within(STRICT * 1e6 / measured.rates.of((model, 1.0))),
                ranked(&times, 0.99).into_iter().collect(),
                vec![part],
                vec![],
                best_effort(measured),
            ]
        }
    };
    table.row(measured.mechanism, &values);
    vec![table]
}

/// Returns which part of the GPU a service has had.
fn part_of(measured: &Measured<'_>) -> f64 {
    let (_, load) = measured.service;
    let times = numbers(&measured.answer["times_us"]);
    let seconds = measured.window.seconds;
    let rate = measured.rates.of(measured.service);
    if load >= 1.0 {
        // CAST: requests are few.
        return times.len() as f64 / seconds / rate;
    }
    let mut arrivals = measured.window.times(rate);
    arrivals.retain(|arrival| *arrival >= 0.0);
    let ends = arrivals
        .iter()
        .zip(&times)
        .map(|(at, time)| at + time * 1e-6);
    let ended = ends.filter(|end| *end <= seconds).count();
    // CAST: as above.
    load * ended as f64 / arrivals.len() as f64
}

/// Returns the steps of the best-effort program in a window, in percent of those alone.
fn best_effort(measured: &Measured<'_>) -> Vec<f64> {
    let of = |training: &serde_json::Value| {
        let ends = numbers(&training["ends_us"]).len();
        // CAST: steps are few.
        let rate = ends as f64 / measured.window.seconds;
        Some(100.0 * rate / measured.rates.steps(BEST_EFFORT)?)
    };
    measured.trainings.iter().filter_map(of).collect()
}

/// Measures each scene under each way to share the GPU.
pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let scenes = scenes(STACKING, cli.requests);
    let native = RunEnv::native();
    let mut programs = Programs::start(kit, &|_| native.clone(), &native, &scenes)?;
    let bench = Bench {
        kit,
        cli,
        tpcs,
        rates: programs.alone(cli, &scenes, report)?,
        scenes,
    };
    let mut budget = Budget::new(cli.limit_seconds);
    let [first, rest @ ..] = &WAYS;
    bench.windows(&mut programs, None, first, report)?;
    drop(programs);
    let mps = Mps::start()?;
    for way in rest
        .iter()
        .filter(|way| bench.settings(way).next().is_some())
    {
        if !budget.admits() {
            report.note(format!("{STACKING} was cut short by --limit-seconds"));
            break;
        }
        if let Err(error) = bench.way(way, &mps, report) {
            let names: Vec<&str> = bench.settings(way).map(|setting| setting.name).collect();
            report.note(format!("{STACKING}, {}: {error:#}", names.join(", ")));
        }
        budget.done();
        report.write(&cli.out, STACKING)?;
    }
    Ok(())
}

/// What all windows have in common.
struct Bench<'a> {
    kit: &'a Kit,
    cli: &'a Cli,
    tpcs: &'a [&'a str],
    rates: Rates,
    scenes: Vec<Scene>,
}

impl<'a> Bench<'a> {
    /// Returns the settings of a way that are to be measured.
    fn settings<'b>(&'b self, way: &'b Way) -> impl Iterator<Item = &'b Setting> {
        let all = way.settings.iter();
        all.filter(|setting| self.cli.measures(setting.name))
    }

    /// Starts the programs of a way, and measures its settings.
    fn way(&self, way: &Way, mps: &Mps, report: &mut Report) -> Result<()> {
        let daemon = way
            .grouped
            .then(|| Daemon::start(self.kit, &self.tpcs.join(",")));
        let daemon = daemon.transpose()?;
        if let Some(daemon) = &daemon {
            let mut groups = Role::ALL.iter().map(|role| role.group());
            groups.try_for_each(|group| daemon.create(group))?;
            if let Some(only) = self.settings(way).next().filter(|_| way.before) {
                self.set(daemon, only)?;
            }
        }
        let env = |role| way.env(role, daemon.as_ref(), mps);
        let service = |model: &str| env(Role::of(model));
        let best_effort = env(Role::BestEffort);
        let mut programs = Programs::start(self.kit, &service, &best_effort, &self.scenes)?;
        self.windows(&mut programs, daemon.as_ref(), way, report)
    }

    /// Writes the limits of a setting.
    fn set(&self, daemon: &Daemon, setting: &Setting) -> Result<()> {
        let mut files = setting.files(self.tpcs).into_iter();
        files.try_for_each(|(group, file, value)| daemon.set(group, file, &value))
    }

    /// Measures each scene under each setting of a way. Notes a window that fails.
    fn windows(
        &self,
        programs: &mut Programs,
        daemon: Option<&Daemon>,
        way: &Way,
        report: &mut Report,
    ) -> Result<()> {
        for setting in self.settings(way) {
            if let Some(daemon) = daemon {
                self.set(daemon, setting)?;
            }
            let mechanism = Mechanism {
                high_priority: setting.high_priority,
                without: if setting.a_alone { &ALL_B } else { &[] },
                ..Mechanism::of_limits(setting.name.to_owned())
            };
            for scene in (0..self.cli.repeat).flat_map(|_| &self.scenes) {
                let alone = scene.of_services();
                let scene = if setting.best_effort { scene } else { &alone };
                let rates = &self.rates;
                if let Err(error) = programs.window(self.cli, &mechanism, scene, rates, report) {
                    report.note(format!("{STACKING}, {}: {error:#}", setting.name));
                    programs.settle()?;
                }
            }
        }
        Ok(())
    }
}

/// What a mechanism gives the three programs of a scene, as parts.
struct Sum {
    in_time: f64,
    strict: f64,
    p99: f64,
    a: f64,
    b: f64,
    best_effort: Option<f64>,
    slo: f64,
    goodput: f64,
}

impl Sum {
    /// Sums the medians of a row up.
    fn of(row: &Row, alone: &Row) -> Option<Self> {
        let part = |column: usize| Some(row.spread(column)?.median / 100.0);
        let (in_time, a, b) = (part(IN_TIME)?, part(A)?, part(B)?);
        let best_effort = part(BEST_EFFORT_PART);
        Some(Self {
            in_time,
            strict: part(STRICTLY)?,
            p99: row.ratio_by_round(alone, P99)?,
            a,
            b,
            best_effort,
            slo: (in_time + (b / B_LOAD).min(1.0)) / 2.0,
            goodput: a.min(A_LOAD * in_time) + b + best_effort.unwrap_or(0.0),
        })
    }

    fn throughput(&self) -> f64 {
        self.a + self.b + self.best_effort.unwrap_or(0.0)
    }
}

/// Formats a table for each scene, with a line for each mechanism.
pub(crate) fn markdown(tables: &[&Table]) -> String {
    let tables = tables.iter().filter(|table| table.title.starts_with(TITLE));
    let mut out = String::new();
    for table in tables {
        let scene = table.title.trim_start_matches(TITLE);
        out += &format!(
            "| {scene} | A in time | within 7.4 | p99 of A | A | B | best effort | SLO | throughput \
             | goodput |\n|---|{}\n",
            "---|".repeat(9)
        );
        let alone = table.get(ALONE);
        for row in table.rows.iter().filter(|row| row.name != ALONE) {
            let Some(sum) = alone.and_then(|alone| Sum::of(row, alone)) else {
                continue;
            };
            out += &format!(
                "| {} | {:.1}% | {:.1}% | {:.2} | {:.2} | {:.2} | {} | {:.0}% | {:.2} | {:.2} |\n",
                row.name,
                100.0 * sum.in_time,
                100.0 * sum.strict,
                sum.p99,
                sum.a,
                sum.b,
                sum.best_effort
                    .map_or("-".into(), |part| format!("{part:.2}")),
                100.0 * sum.slo,
                sum.throughput(),
                sum.goodput,
            );
        }
        out += "\n";
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Arrivals;
    use clap::Parser;
    use serde_json::json;

    #[test]
    fn work_in_time_is_summed_up() {
        let mut table = Table::new(format!("{TITLE}a scene"), &COLUMNS);
        let row = |values: [f64; 6]| values.map(|value| vec![value]);
        table.row(ALONE, &row([100.0, 99.0, 2000.0, 35.0, 50.0, 100.0])[..5]);
        table.row("kept", &row([100.0, 98.0, 3000.0, 35.0, 52.0, 14.0]));
        table.row("missed", &row([40.0, 8.0, 9000.0, 30.0, 25.0, 60.0]));
        table.row("without", &row([100.0, 97.0, 2500.0, 35.0, 50.0, 0.0])[..5]);
        // Some requests ended in time, and after the window.
        table.row("late", &row([100.0, 97.0, 2500.0, 30.0, 50.0, 20.0]));
        let text = markdown(&[&table]);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        // The SLO of B is half of the GPU: 50% of it, with 40% of A's requests in time, is 45%.
        assert_eq!(
            lines,
            [
                "| kept | 100.0% | 98.0% | 1.50 | 0.35 | 0.52 | 0.14 | 100% | 1.01 | 1.01 |",
                "| missed | 40.0% | 8.0% | 4.50 | 0.30 | 0.25 | 0.60 | 45% | 1.15 | 0.99 |",
                "| without | 100.0% | 97.0% | 1.25 | 0.35 | 0.50 | - | 100% | 0.85 | 0.85 |",
                "| late | 100.0% | 97.0% | 1.25 | 0.30 | 0.50 | 0.20 | 100% | 1.00 | 1.00 |",
                "",
            ]
        );
    }

    /// Judges a window of 2 s in which each request takes `us`, and the last program 10 steps.
    fn window(index: usize, scene: usize, us: f64) -> Vec<Vec<f64>> {
        let cli = Cli::parse_from(["gct-bench"]);
        let rates = Rates::made(
            [("resnet50", 1000.0), ("bert", 1000.0)],
            (BEST_EFFORT, 50.0),
        );
        let scene = &scenes(STACKING, Arrivals::Poisson)[scene];
        let mut report = Report::default();
        let window = scene.window(index, &cli, ALONE, &rates, &report);
        let (model, load) = scene.service(index);
        let count = match load >= 1.0 {
            true => 1200,
            false => {
                let times = window.times(rates.of((model, load)));
                times.iter().filter(|time| **time >= 0.0).count()
            }
        };
        let answer = json!({ "times_us": vec![us; count] });
        let steps = [json!({ "ends_us": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] })];
        scene.detail(
            index,
            ("MPS", &window),
            (&answer, &steps),
            &rates,
            &mut report,
        );
        report.tables.remove(0).rows.remove(0).values
    }

    #[test]
    fn a_window_tells_what_each_had() {
        let [in_time, strict, p99, a, b, last] = <[_; 6]>::try_from(window(0, 0, 14e3)).unwrap();
        // 14 ms are within 15 ms, and beyond 7.4 times the 1 ms of one alone.
        assert_eq!((in_time, strict, p99), (vec![100.0], vec![0.0], vec![14e3]));
        // Those that arrive in the last 14 ms of 2 s end later.
        assert!((34.0..35.0).contains(&a[0]), "{a:?}");
        // 10 steps in 2 s, of 50 a second.
        assert_eq!((b, last), (vec![], vec![10.0]));
        assert_eq!(window(0, 0, 15.1e3)[0], [0.0]);
        let late = window(1, 0, 1e6);
        assert!((22.0..28.0).contains(&late[4][0]), "{late:?}");
        assert!(late[0].is_empty() && late[5].is_empty());
        // In a closed loop 1200 requests in 2 s, of 1000 a second.
        assert_eq!(window(1, 1, 1e3)[4], [60.0]);
    }
}
