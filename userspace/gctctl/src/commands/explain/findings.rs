// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Turns two looks at an owner's files into sentences.

use std::collections::BTreeMap;

use gct_core::gpu_time::Hold;
use gct_core::iface::File;
use gct_core::policy::pace;
use gct_core::unmanaged::Reason;
use serde_json::{Map, Value};

use super::super::ungoverned::Ungoverned;

/// The files of one value that findings are made of.
pub(super) const VALUES: [File; 13] = [
    File::GmemCurrent,
    File::GmemLimit,
    File::ComputeFreeze,
    File::ComputePriority,
    File::ComputeWeight,
    File::ComputeMax,
    File::TpcMask,
    File::TpcQuota,
    File::TpcSteal,
    File::TpcEffective,
    File::AtomDuration,
    File::SlipPower,
    File::SloP99,
];

/// The files of an owner on a GPU at one time. What the GPU or mode does not support is absent.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    /// Values by the names of their files.
    pub(super) values: BTreeMap<&'static str, String>,
    /// Counters, as `FILE KEY`.
    pub(super) counters: BTreeMap<String, u64>,
    /// Neighbours' channels that obey no limit on launches, while somebody has one.
    pub(super) beside: Vec<Ungoverned>,
}

impl Look {
    fn value(&self, file: &str) -> Option<&str> {
        self.values.get(file).map(String::as_str)
    }

    /// Returns a value unless it is the one that limits nothing.
    fn limit(&self, file: &str, unlimited: &str) -> Option<&str> {
        self.value(file).filter(|value| *value != unlimited)
    }

    fn stat(&self, key: &str) -> Option<u64> {
        self.counters.get(&format!("compute.stat {key}")).copied()
    }

    /// Returns what is known of goals, unless it is 0.
    fn goal(&self, key: &str) -> Option<u64> {
        let count = self.counters.get(&format!("slo.stat {key}")).copied();
        count.filter(|count| *count > 0)
    }
}

/// What there is to say on one topic.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    /// The topic.
    pub(super) topic: &'static str,
    /// The sentences.
    pub(super) lines: Vec<String>,
    /// The numbers in them, by the names of their counters.
    pub(super) values: Map<String, Value>,
}

impl Finding {
    fn new(topic: &'static str) -> Self {
        Self {
            topic,
            lines: Vec::new(),
            values: Map::new(),
        }
    }

    fn line(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    fn number(&mut self, name: &str, number: u64) {
        self.values.insert(name.to_owned(), number.into());
    }
}

/// Two looks and the time between them.
struct Watched<'a> {
    before: &'a Look,
    now: &'a Look,
    us: u64,
}

/// Explains an owner by two looks that lie `us` microseconds apart.
pub(super) fn findings(before: &Look, now: &Look, us: u64) -> Vec<Finding> {
    let watched = Watched { before, now, us };
    let all = [
        watched.time(),
        watched.waits(),
        watched.tpcs(),
        watched.atoms(),
        watched.slice(),
        watched.order(),
        watched.goal(),
        watched.clock(),
        watched.memory(),
        watched.unbound(),
    ];
    all.into_iter()
        .filter(|finding| !finding.lines.is_empty())
        .collect()
}

impl Watched<'_> {
    /// Returns how much a counter grew; `None` if the GPU or mode does not have it.
    fn grew(&self, counter: &str) -> Option<u64> {
        let now = self.now.counters.get(counter)?;
        let before = self.before.counters.get(counter).unwrap_or(&0);
        Some(now.saturating_sub(*before))
    }

    fn stat_grew(&self, key: &str) -> Option<u64> {
        self.grew(&format!("compute.stat {key}"))
    }

    /// Returns microseconds as a part of the time between the looks.
    fn part(&self, us: u64) -> String {
        match us.saturating_mul(100) / self.us.max(1) {
            0 if us > 0 => "under 1%".to_owned(),
            percent => format!("{percent}%"),
        }
    }

    fn time(&self) -> Finding {
        let mut finding = Finding::new("time");
        if self.now.limit("compute.freeze", "0").is_some() {
            finding.line("Frozen: nothing of it runs until compute.freeze is 0.");
        }
        let Some(used) = self.stat_grew("usage_usec") else {
            return finding;
        };
        let pending = self.now.stat("pending").unwrap_or(0);
        finding.number("usage_usec", used);
        finding.number("pending", pending);
        finding.line(match (used, pending) {
            (0, 0) => "It had no work.".to_owned(),
            (0, _) => format!("It has {pending} pieces of work and got no time."),
            _ => format!("{} on the GPU.", self.part(used)),
        });
        if let Some(weighted) = self.stat_grew("usage_tpc_usec").filter(|_| used > 0) {
            finding.number("usage_tpc_usec", weighted);
            let part = self.part(weighted);
            finding.line(format!("{part} times the part of the TPCs that it had."));
        }
        finding
    }

    /// Names the reasons for which work was held back, the longest first.
    fn waits(&self) -> Finding {
        let mut finding = Finding::new("waits");
        let Some(waited) = self.stat_grew("waited_usec").filter(|us| *us > 0) else {
            return finding;
        };
        finding.number("waited_usec", waited);
        let part = self.part(waited);
        finding.line(format!("{part} of the time with work held back."));
        let mut reasons: Vec<(u64, Hold)> = Hold::ALL
            .iter()
            .filter_map(|hold| {
                let key = format!("held_usec.{}", hold.name());
                let us = self.stat_grew(&key).filter(|us| *us > 0)?;
                Some((us, *hold))
            })
            .collect();
        reasons.sort_by_key(|(us, _)| std::cmp::Reverse(*us));
        for (us, hold) in reasons {
            finding.number(&format!("held_usec.{}", hold.name()), us);
            finding.line(format!("{} {}.", self.part(us), because(hold)));
        }
        finding
    }

    fn tpcs(&self) -> Finding {
        let mut finding = Finding::new("TPCs");
        let mask = self.now.limit("tpc.mask", "all");
        let quota = self.now.limit("tpc.quota", "none");
        let effective = self.now.limit("tpc.effective", "all");
        if (mask, quota, effective) == (None, None, None) {
            return finding;
        }
        if let Some(tpcs) = self.now.value("tpc.effective") {
            finding.line(format!("Its last launch ran on TPCs {tpcs}."));
        }
        if let Some(mask) = mask {
            finding.line(format!("tpc.mask {mask}: it runs nowhere else."));
        }
        let steals = self.now.limit("tpc.steal", "0").is_some();
        match quota {
            Some("0") => finding.line("tpc.quota 0: it yields to every owner with work."),
            Some(quota) => finding.line(match steals {
                true => format!("tpc.quota {quota}: these are its own; it borrows idle ones."),
                false => format!("tpc.quota {quota}: these are its own; it borrows none."),
            }),
            None => (),
        }
        if let (Some(all), Some(masked)) = (self.stat_grew("launches"), self.stat_grew("rewritten"))
        {
            finding.number("launches", all);
            finding.number("rewritten", masked);
            finding.line(format!("{masked} of {all} launches got a mask."));
        }
        if let Some(shared) = self.now.stat("shared_channels") {
            finding.number("shared_channels", shared);
            finding.line(match shared {
                0 => "By turns: nothing of other processes runs at the same time. Clients of MPS run side by side.".to_owned(),
                _ => format!("Side by side: {shared} channels are in channel groups of other processes (MPS)."),
            });
        }
        finding
    }

    fn atoms(&self) -> Finding {
        let mut finding = Finding::new("atoms");
        let Some(duration) = self.now.value("atom.duration") else {
            return finding;
        };
        let split = self.stat_grew("split").unwrap_or(0);
        let atoms = self.stat_grew("atoms").unwrap_or(0);
        let target = match duration {
            "off" if split == 0 => return finding,
            // Who yields has atoms without asking for them.
            "off" => format!(
                "No atom.duration, so {}us beside an earlier rank",
                pace::YIELDING.get() / 1_000
            ),
            duration => format!("atom.duration {duration}us"),
        };
        finding.number("split", split);
        finding.number("atoms", atoms);
        finding.line(match split {
            0 => format!("{target}: no launch was split. None was predicted to run longer, or none could be split."),
            _ => format!("{target}: {split} launches were split into {atoms} atoms."),
        });
        finding
    }

    fn slice(&self) -> Finding {
        let mut finding = Finding::new("time slices");
        let now = |key| self.now.stat(key).filter(|us| *us > 0);
        if let (Some(slice), Some(round)) = (now("slice"), now("round")) {
            finding.number("slice", slice);
            finding.number("round", round);
            finding.line(format!(
                "{slice} us for a channel group, in a round of {round} us."
            ));
            if self.now.value("compute.timeslice") == Some("default") {
                finding.line(
                    "compute.timeslice is default: owners of its rank have shorter requests."
                        .to_owned(),
                );
            }
        }
        finding
    }

    /// Says how the owner is ordered among others.
    fn order(&self) -> Finding {
        let mut finding = Finding::new("order");
        let now = self.now;
        if let Some(priority) = now.value("compute.priority") {
            finding.line(match priority {
                "0" => "compute.priority 0: nobody comes before it.".to_owned(),
                _ => format!("compute.priority {priority}: owners with a lower number come first."),
            });
        }
        if let Some(weight) = now.limit("compute.weight", "100") {
            finding.line(format!(
                "compute.weight {weight}: its part of the time, beside 100 of an owner without one."
            ));
        }
        if let Some((quota, period)) = now.value("compute.max").and_then(|max| max.split_once(' '))
        {
            finding.line(format!(
                "compute.max: {quota} us of every {period} us, then it waits."
            ));
        }
        finding
    }

    /// Says how the owner's goal is kept, and what goals of others cost it.
    fn goal(&self) -> Finding {
        let mut finding = Finding::new("goals");
        for key in ["p99_usec", "level", "pressed"] {
            if let Some(count) = self.now.goal(key) {
                finding.number(key, count);
            }
        }
        if let Some(goal) = self.now.limit("slo.p99", "max") {
            finding.line(match self.now.goal("p99_usec") {
                None => format!("slo.p99 {goal}us: no window of its requests has ended."),
                Some(p99) => {
                    let kept = match self.now.goal("met") {
                        Some(_) => "kept",
                        None => "missed",
                    };
                    format!("slo.p99 {goal}us: {kept}, 99% of the last requests ended in {p99} us.")
                }
            });
            if let Some(level) = self.now.goal("level") {
                finding.line(format!("For it {}.", pressure(level, "others")));
            }
            if self.now.goal("cannot").is_some() {
                finding.line("No pressure on others keeps it: give it more room, or another GPU.");
            }
        }
        if let Some(level) = self.now.goal("pressed") {
            finding.line(format!(
                "For another owner's slo.p99 {}.",
                pressure(level, "this one")
            ));
        }
        finding
    }

    /// Says which clock the owner asks for, while anyone has a slip.
    fn clock(&self) -> Finding {
        let mut finding = Finding::new("clock");
        let slip = self.now.limit("slip.power", "0");
        let asked = self.now.stat("clock_mhz").filter(|mhz| *mhz > 0);
        if let Some(mhz) = asked {
            finding.number("clock_mhz", mhz);
        }
        match (slip, asked) {
            (Some(slip), Some(mhz)) => finding.line(format!(
                "slip.power {slip}%: it asks for a clock of {mhz} MHz. The GPU has the highest that anyone asks for."
            )),
            (Some(slip), None) => finding.line(format!(
                "slip.power {slip}%: it has had no work lately, so it asks for no clock."
            )),
            (None, Some(_)) => finding.line(
                "No slip.power: while it works, the GPU has its highest clock, although others have a slip.",
            ),
            (None, None) => {}
        }
        let sensitivity = self.now.stat("clock_sensitivity").filter(|it| *it > 0);
        if let Some(thousandths) = sensitivity.filter(|_| slip.is_some()) {
            finding.number("clock_sensitivity", thousandths);
            let percent = thousandths / 10;
            finding.line(format!(
                "{percent}% of its time depends on the clock, or was not measured."
            ));
        }
        finding
    }

    fn memory(&self) -> Finding {
        let mut finding = Finding::new("memory");
        let Some(limit) = self.now.limit("gmem.limit", "max") else {
            return finding;
        };
        let current = self.now.value("gmem.current").unwrap_or("0");
        finding.line(format!("{current} of {limit} bytes."));
        if let Some(refused) = self.grew("gmem.events limit").filter(|count| *count > 0) {
            finding.number("refused", refused);
            finding.line(format!("{refused} allocations were refused."));
        }
        finding
    }

    /// Names what no limit bound.
    fn unbound(&self) -> Finding {
        let mut finding = Finding::new("not bound");
        for key in self.now.counters.keys() {
            let Some(reason) = key.strip_prefix("compute.stat passed.") else {
                continue;
            };
            let count = self.grew(key).unwrap_or(0);
            if count > 0 {
                finding.number(&format!("passed.{reason}"), count);
                finding.line(format!("{count} launches passed unchanged: {reason}."));
            }
        }
        let now = |key| self.now.stat(key).filter(|count| *count > 0);
        // Limits bind those that the driver has come between.
        let cooperative = now("cooperative").unwrap_or(0);
        let native = now("native").map(|native| native.saturating_sub(cooperative));
        if let Some(channels) = native.filter(|channels| *channels > 0) {
            finding.number("native", channels);
            finding.line(format!(
                "{channels} channels have their tenant's ring: of the limits on launches compute.max alone binds them."
            ));
        }
        if let Some(permissive) = now("permissive") {
            finding.number("permissive", permissive);
            finding.line(
                "Its processes can evade its limits on launches: channel.strict is 0, or channels, or what they have left, are from before the limits.",
            );
        }
        for reason in Reason::ALL {
            let key = format!("unmanaged.{}", reason.name());
            if let Some(channels) = self.now.stat(&key).filter(|count| *count > 0) {
                finding.number(&key, channels);
                finding.line(not_managed(*reason, channels));
            }
        }
        for found in &self.now.beside {
            finding.number(&format!("ungoverned.{}", found.target), found.channels);
            finding.line(format!(
                "Its limits on launches do not hold against {}.",
                found.named()
            ));
        }
        if let Some(processes) = now("unbound") {
            finding.number("unbound", processes);
            finding.line(format!(
                "{processes} processes do not have its time slice or freeze."
            ));
        }
        finding
    }
}

/// Returns what follows from channels that the library does not manage.
fn not_managed(reason: Reason, channels: u64) -> String {
    match reason {
        Reason::Untested => format!(
            "{channels} channels are native: the GPU has no limits on launches before gctctl selftest finds it exact."
        ),
        reason if reason.is_native() => format!(
            "{channels} channels are native: nobody had a limit on launches when their programs began. Limits on launches bind programs that start from now on."
        ),
        _ => format!(
            "{channels} channels are not managed ({}): limits on launches do not bind them.",
            reason.name()
        ),
    }
}

/// Returns what a level of pressure does to owners.
fn pressure(level: u64, whom: &str) -> String {
    let tpcs = match level {
        0 | 1 => "all",
        2 => "three quarters",
        3 => "half",
        _ => "a quarter",
    };
    let verb = if whom == "others" { "yield" } else { "yields" };
    format!("{whom} {verb} to every owner with work, in atoms of 50 us, on {tpcs} of the TPCs")
}

/// Returns why work was held back, to follow a part of the time.
fn because(hold: Hold) -> &'static str {
    match hold {
        Hold::Freeze => "frozen (compute.freeze)",
        Hold::Tpcs => "because its TPCs are reserved, or have work of an owner that comes first (tpc.quota, compute.priority)",
        Hold::Atoms => "because its atoms in flight last long enough (atom.duration)",
        Hold::Graph => "because a graph's replay waits until its masks can change",
        Hold::Weight => "because others have their turn (compute.weight)",
        Hold::Max => "because its duty cycle is used up (compute.max)",
    }
}

#[cfg(test)]
mod tests;
