// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures scenes under settings that change while the programs run: lengths of atoms (Tally's
//! figure 7c), what priority and atoms give each (Tally's 7b, LithOS's figure 20), duty cycles of
//! the training (GVM's 7.4), and goals of the service (`slo.p99`).
//!
//! The service is in the group `first`, its training in the group `last`. They take turns: nothing
//! here needs MPS.
//!
//! A goal takes some windows of its controller until it is kept. So it is measured twice: at once,
//! and then.

use crate::mechanisms::{self, in_order, Mechanism};
use crate::report::Report;
use crate::scenes::{alone, scenes, Programs};
use crate::Cli;
use anyhow::Result;
use gct_hw::daemon::Daemon;
use gct_hw::kit::Kit;

/// The part that measures lengths of atoms.
pub(crate) const LENGTHS: &str = "atoms-by-turns";
/// The part that measures priority and atoms, each alone.
pub(crate) const DECOMPOSITION: &str = "decomposition";
/// The part that measures duty cycles of the training.
pub(crate) const DUTY: &str = "duty";
/// The part that measures goals of the service.
pub(crate) const GOALS: &str = "goals";
/// Values of `compute.priority`: two that differ, and the default.
const ORDER: [&str; 2] = ["0", "15"];
const SAME: [&str; 2] = ["8", "8"];
/// Values of `atom.duration`: longer than any launch here, and what who yields has by default.
const WHOLE: &str = "1000000us";
const ATOMS: &str = "50us";
/// A limit that is not set.
const NO_ATOMS: &str = "off";
const NO_DUTY: &str = "max";
const NO_GOAL: &str = "max";
const GOAL: &str = "slo.p99";

/// Settings of the two groups.
struct Variant {
    name: String,
    /// `compute.priority` of the service's group and of the training's.
    priorities: [&'static str; 2],
    /// `atom.duration` and `compute.max` of the training's group.
    atoms: &'static str,
    duty: String,
    /// `slo.p99` of the service's group.
    goal: &'static str,
}

impl Variant {
    fn new(name: impl ToString, priorities: [&'static str; 2], atoms: &'static str) -> Self {
        Self {
            name: name.to_string(),
            priorities,
            atoms,
            duty: NO_DUTY.into(),
            goal: NO_GOAL,
        }
    }

    /// Returns the name of each row that is measured, one after the other.
    fn rows(&self) -> Vec<String> {
        match self.goal {
            NO_GOAL => vec![self.name.clone()],
            _ => ["at once", "then"]
                .map(|when| format!("{} {when}", self.name))
                .into(),
        }
    }

    /// Returns all settings: group, file and value. A goal is forgotten first.
    fn settings(&self) -> [(&'static str, &'static str, &str); 6] {
        let [first, last] = self.priorities;
        [
            ("first", "compute.priority", first),
            ("last", "compute.priority", last),
            ("last", "atom.duration", self.atoms),
            ("last", "compute.max", &self.duty),
            ("first", GOAL, NO_GOAL),
            ("first", GOAL, self.goal),
        ]
    }
}

/// Returns the settings of a part.
fn variants(part: &str) -> Vec<Variant> {
    match part {
        LENGTHS => ["10us", "30us", "100us", "300us", "1ms", "10ms"]
            .map(|length| Variant::new(format!("atoms of {length}"), ORDER, length))
            .into(),
        DECOMPOSITION => vec![
            Variant::new("gct neither", SAME, NO_ATOMS),
            Variant::new("gct atoms", SAME, ATOMS),
            Variant::new("gct priority with whole launches", ORDER, WHOLE),
            Variant::new("gct priority and atoms", ORDER, ATOMS),
        ],
        GOALS => {
            let goals = ["8000", "30000"].map(|goal| Variant {
                goal,
                ..Variant::new(format!("gct goal of {goal} us"), SAME, NO_ATOMS)
            });
            let without = Variant::new("gct no goal", SAME, NO_ATOMS);
            let order = Variant::new("gct priority", ORDER, ATOMS);
            [without].into_iter().chain(goals).chain([order]).collect()
        }
        _ => {
            let limited = [10, 20, 30, 50, 70, 90].map(|percent| Variant {
                duty: format!("{} 100000", percent * 1000),
                ..Variant::new(format!("gct compute.max {percent}%"), SAME, NO_ATOMS)
            });
            let free = Variant::new("gct compute.max max", SAME, NO_ATOMS);
            limited.into_iter().chain([free]).collect()
        }
    }
}

/// Measures the scenes of a part under each of its settings.
pub(crate) fn run(
    kit: &Kit,
    cli: &Cli,
    part: &str,
    tpcs: &[&str],
    report: &mut Report,
) -> Result<()> {
    let scenes = scenes(part, cli.requests);
    let rates = alone(kit, cli, &scenes, report)?;
    let daemon = Daemon::start(kit, &tpcs.join(","))?;
    let (first, last) = mechanisms::ordered(&daemon)?;
    let mut programs = Programs::start(kit, &|_| first.clone(), &last, &scenes)?;
    let settings: Vec<(String, Variant)> = variants(part)
        .into_iter()
        .map(|variant| (variant.name.clone(), variant))
        .collect();
    in_order(&settings, cli, part, report, |variant, report| {
        for scene in &scenes {
            for (group, file, value) in variant.settings() {
                daemon.set(group, file, value)?;
            }
            for name in variant.rows() {
                let mechanism = Mechanism::of_limits(name);
                programs.window(cli, &mechanism, scene, &rates, report)?;
                if variant.goal != NO_GOAL {
                    let stat = daemon.get("first", "slo.stat")?;
                    let stat = stat.split_whitespace().collect::<Vec<_>>().join(" ");
                    report.note(format!("{}: {stat}", mechanism.name));
                }
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gct_client::Tree;
    use gct_core::iface::{files, Place};
    use std::collections::BTreeSet;

    #[test]
    fn groups_accept_every_setting() {
        for part in [LENGTHS, DECOMPOSITION, DUTY, GOALS] {
            for variant in variants(part) {
                for (_, file, value) in variant.settings() {
                    let entry = files::find(Place::Pool, file).unwrap();
                    Tree::parse(entry, value).unwrap();
                }
            }
        }
    }

    #[test]
    fn every_variant_has_settings_and_a_name_of_its_own() {
        for part in [LENGTHS, DECOMPOSITION, DUTY, GOALS] {
            let all = variants(part);
            let names: BTreeSet<&str> = all.iter().map(|variant| variant.name.as_str()).collect();
            let settings: BTreeSet<_> = all.iter().map(Variant::settings).collect();
            assert_eq!((names.len(), settings.len()), (all.len(), all.len()));
            // --mechanisms divides its names at commas.
            assert!(names.iter().all(|name| !name.contains(',')));
        }
    }
}
