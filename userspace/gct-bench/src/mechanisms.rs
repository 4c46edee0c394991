// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists the mechanisms by which a latency-critical and a best-effort program share a GPU.

use crate::budget::Budget;
use crate::dominance::{ALONE, PLAIN};
use crate::report::Report;
use crate::Cli;
use anyhow::Result;
use fastrand::Rng;
use gct_hw::daemon::Daemon;
use gct_hw::kit::{Kit, RunEnv};
use gct_hw::mps::Mps;

/// One mechanism, within a run of a pair of processes.
#[derive(Clone, Debug)]
pub(crate) struct Mechanism {
    pub(crate) name: String,
    /// Whether the latency-critical stream has the highest priority.
    pub(crate) high_priority: bool,
    /// The services of which that is not so.
    pub(crate) without: &'static [&'static str],
    /// Whether the latency-critical program has a neighbour.
    pub(crate) beside: bool,
}

impl Mechanism {
    /// Returns a mechanism of the limits alone, for a program with a neighbour.
    pub(crate) fn of_limits(name: String) -> Self {
        Self {
            name,
            high_priority: false,
            without: &[],
            beside: true,
        }
    }
}

/// Two processes, and the mechanisms that can be measured with them.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) critical: RunEnv,
    pub(crate) best_effort: RunEnv,
    pub(crate) mechanisms: Vec<Mechanism>,
}

impl Pair {
    fn new(critical: RunEnv, best_effort: RunEnv) -> Self {
        Self {
            critical,
            best_effort,
            mechanisms: Vec::new(),
        }
    }

    fn mechanism(mut self, name: impl ToString, high_priority: bool) -> Self {
        let name = name.to_string();
        self.mechanisms.push(Mechanism {
            beside: name != ALONE,
            name,
            high_priority,
            without: &[],
        });
        self
    }

    /// Adds mechanism `name`, without and with a priority of the latency-critical stream.
    fn both(self, name: &str) -> Self {
        self.mechanism(name, false)
            .mechanism(format!("{name} prio"), true)
    }
}

/// The requirements of the two programs.
#[derive(Debug)]
pub(crate) struct Needs {
    /// Number of TPCs that suffice for the latency-critical program.
    pub(crate) tpcs: usize,
    /// `atom.duration` of the best-effort program, in microseconds.
    pub(crate) atom_us: u64,
    /// Values of `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` for the best-effort program. The last one
    /// leaves what the latency-critical program needs.
    pub(crate) percentages: Vec<u64>,
}

impl Needs {
    /// Returns the requirements of two models: half of the GPU for the latency-critical one.
    pub(crate) fn half(tpcs: &[&str], percentages: &[u64]) -> Self {
        Self {
            tpcs: tpcs.len() / 2,
            atom_us: 100,
            percentages: percentages.to_vec(),
        }
    }
}

/// MPS and the daemon, which the mechanisms need as long as they are measured.
pub(crate) struct Servers {
    mps: Mps,
    daemon: Daemon,
}

impl Servers {
    pub(crate) fn start(kit: &Kit, tpcs: &[&str]) -> Result<Self> {
        Ok(Self {
            mps: Mps::start()?,
            daemon: Daemon::start(kit, &tpcs.join(","))?,
        })
    }

    /// Returns the mechanisms that `keeps` returns true for, with half of the GPU for the
    /// latency-critical model.
    pub(crate) fn pairs(
        &self,
        tpcs: &[&str],
        report: &mut Report,
        mut keeps: impl FnMut(&mut Mechanism) -> bool,
    ) -> Result<Vec<Pair>> {
        let needs = Needs::half(tpcs, &[50]);
        let mut pairs = all(&needs, tpcs, &self.daemon, &self.mps, report)?;
        for pair in &mut pairs {
            pair.mechanisms.retain_mut(&mut keeps);
        }
        pairs.retain(|pair| !pair.mechanisms.is_empty());
        Ok(pairs)
    }
}

/// Returns all mechanisms of this machine. Notes the missing ones in `report`.
pub(crate) fn all(
    needs: &Needs,
    tpcs: &[&str],
    daemon: &Daemon,
    mps: &Mps,
    report: &mut Report,
) -> Result<Vec<Pair>> {
    let native = RunEnv::native;
    let list = |tpcs: &[&str]| tpcs.join(",");
    let own = tpcs.get(..needs.tpcs).unwrap_or_default();
    let rest = tpcs.get(needs.tpcs..).unwrap_or_default();
    let masked = |tpcs: &[&str]| RunEnv::gctgroup().with("GCTGROUP_TPC_MASK", list(tpcs));
    let atom = format!("--atom {}us", needs.atom_us);
    let paced = masked(tpcs).with("GCTGROUP_ATOM_DURATION", needs.atom_us);
    let share = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    let mut clients = vec![
        Pair::new(native(), native())
            .mechanism(ALONE, false)
            .both(PLAIN),
        Pair::new(native(), paced).both("gct pace"),
        Pair::new(masked(own), masked(rest)).mechanism("gct mask", false),
        Pair::new(
            daemon.group("quota", &format!("--quota {}", needs.tpcs)),
            daemon.group("others", &atom),
        )
        .both("gct quota"),
    ];
    let (first, last) = ordered(daemon)?;
    let ordered = || Pair::new(first.clone(), last.clone());
    clients.push(ordered().both("gct priority"));
    let last = needs.percentages.last();
    for percent in &needs.percentages {
        let pair = Pair::new(native(), native().with(share, percent));
        let name = format!("MPS {percent}%");
        clients.push(match Some(percent) == last {
            true => pair.both(&name),
            false => pair.mechanism(name, false),
        });
    }
    let mut pairs: Vec<Pair> = clients
        .into_iter()
        .map(|pair| Pair {
            critical: mps.client(pair.critical),
            best_effort: mps.client(pair.best_effort),
            ..pair
        })
        .collect();
    pairs.push(Pair::new(native(), native()).mechanism("time slicing", false));
    pairs.push(ordered().mechanism("gct priority by turns", false));
    if let Some(pair) = sliced(daemon, report)? {
        pairs.push(pair);
        pairs.push(sliced_and_ordered(daemon, &atom)?);
    }
    Ok(pairs)
}

/// The group of programs that yield, and its `compute.priority`.
pub(crate) const LAST: (&str, &str) = ("last", "15");

/// Creates the groups `first` and `last`, the first with precedence. Returns their programs'
/// environments.
pub(crate) fn ordered(daemon: &Daemon) -> Result<(RunEnv, RunEnv)> {
    for (group, priority) in [("first", "0"), LAST] {
        daemon.create(group)?;
        daemon.set(group, "compute.priority", priority)?;
    }
    Ok((daemon.group("first", ""), daemon.group("last", "")))
}

/// Returns time slicing with a short slice for the best-effort program, if this mode can set one.
fn sliced(daemon: &Daemon, report: &mut Report) -> Result<Option<Pair>> {
    daemon.create("sliced")?;
    if let Err(error) = daemon.set("sliced", "compute.timeslice", "50us") {
        report.note(format!("compute.timeslice was not measured: {error:#}"));
        return Ok(None);
    }
    let pair = Pair::new(RunEnv::native(), daemon.group("sliced", ""));
    Ok(Some(pair.mechanism("gct timeslice 50 us", false)))
}

/// Returns long time slices and precedence for the latency-critical program, short ones and atoms
/// for the best-effort program.
fn sliced_and_ordered(daemon: &Daemon, atom: &str) -> Result<Pair> {
    for (group, slice, priority) in [("long", "10ms", "0"), ("short", "50us", "15")] {
        daemon.create(group)?;
        daemon.set(group, "compute.timeslice", slice)?;
        daemon.set(group, "compute.priority", priority)?;
    }
    let pair = Pair::new(daemon.group("long", ""), daemon.group("short", atom));
    Ok(pair.mechanism("gct timeslice and priority", false))
}

/// Measures each setting whose name is asked for once per round, in this order, while time is left.
pub(crate) fn in_order<S>(
    settings: &[(String, S)],
    cli: &Cli,
    what: &str,
    report: &mut Report,
    mut measure: impl FnMut(&S, &mut Report) -> Result<()>,
) -> Result<()> {
    let mut budget = Budget::new(cli.limit_seconds);
    for _ in 0..cli.repeat {
        for (_, setting) in settings.iter().filter(|(name, _)| cli.measures(name)) {
            if !budget.admits() {
                report.note(format!("{what} was cut short by --limit-seconds"));
                return Ok(());
            }
            measure(setting, report)?;
            report.write(&cli.out, what)?;
            budget.done();
        }
    }
    Ok(())
}

/// Measures every pair once per round, in random order, while time is left. Notes a pair that
/// fails.
pub(crate) fn in_rounds(
    pairs: Vec<Pair>,
    cli: &Cli,
    what: &str,
    report: &mut Report,
    measure: impl FnMut(&Pair, &mut Rng, &mut Report) -> Result<()>,
) -> Result<()> {
    let mut budget = Budget::new(cli.limit_seconds);
    in_rounds_within(pairs, (cli, &mut budget), what, report, measure)
}

/// The same, with a budget that others spend, too.
pub(crate) fn in_rounds_within(
    mut pairs: Vec<Pair>,
    (cli, budget): (&Cli, &mut Budget),
    what: &str,
    report: &mut Report,
    mut measure: impl FnMut(&Pair, &mut Rng, &mut Report) -> Result<()>,
) -> Result<()> {
    let mut random = Rng::with_seed(cli.seed);
    for _ in 0..cli.repeat {
        random.shuffle(&mut pairs);
        for pair in &pairs {
            if !budget.admits() {
                report.note(format!("{what} was cut short by --limit-seconds"));
                return Ok(());
            }
            if let Err(error) = measure(pair, &mut random, report) {
                let names: Vec<&str> = pair
                    .mechanisms
                    .iter()
                    .map(|mechanism| mechanism.name.as_str())
                    .collect();
                report.note(format!("{what}, {}: {error:#}", names.join(", ")));
            }
            budget.done();
            report.write(&cli.out, what)?;
        }
    }
    Ok(())
}
