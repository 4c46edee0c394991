// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures two services of one priority, each in a group of its own, under time slices of
//! different lengths, beside a training that yields to both.

use crate::mechanisms::{in_order, Mechanism, LAST};
use crate::report::Report;
use crate::scenes::{alone, scenes, Programs};
use crate::Cli;
use anyhow::Result;
use gct_hw::daemon::Daemon;
use gct_hw::kit::Kit;

/// The name of the part.
pub(crate) const SLICES: &str = "slices";

/// The service with long requests, and the other one.
pub(crate) const SERVICES: [(&str, f64); 2] = [("decode", 0.4), ("bert", 0.2)];

/// The name of each way, and `compute.timeslice` of each of [`SERVICES`] in it. The first is what
/// the driver gives; the last two leave it to the policy, which first has to see what the requests
/// are like.
const WAYS: [(&str, [&str; 2]); 7] = [
    ("gct slices of 2ms and 2ms", ["2048us", "2048us"]),
    ("gct slices of 500us and 2ms", ["500us", "2048us"]),
    ("gct slices of 200us and 2ms", ["200us", "2048us"]),
    ("gct slices of 50us and 2ms", ["50us", "2048us"]),
    ("gct slices of 50us and 10ms", ["50us", "10ms"]),
    ("gct slices by the policy at once", ["default", "default"]),
    ("gct slices by the policy then", ["default", "default"]),
];

/// Measures the scene under each pair of time slices.
pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let scenes = scenes(SLICES, cli.requests);
    let rates = alone(kit, cli, &scenes, report)?;
    let daemon = Daemon::start(kit, &tpcs.join(","))?;
    let groups = SERVICES.map(|(service, _)| (service, "0"));
    for (group, priority) in groups.into_iter().chain([LAST]) {
        daemon.create(group)?;
        daemon.set(group, "compute.priority", priority)?;
    }
    let service = |name: &str| daemon.group(name, "");
    let mut programs = Programs::start(kit, &service, &daemon.group(LAST.0, ""), &scenes)?;
    let settings = WAYS.map(|way| (way.0.to_owned(), way));
    in_order(&settings, cli, SLICES, report, |(name, lengths), report| {
        for ((group, _), length) in SERVICES.iter().zip(lengths) {
            daemon.set(group, "compute.timeslice", length)?;
        }
        let mechanism = Mechanism::of_limits((*name).to_owned());
        for scene in &scenes {
            programs.window(cli, &mechanism, scene, &rates, report)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gct_client::Tree;
    use gct_core::iface::{files, Place};

    #[test]
    fn groups_accept_every_length() {
        let entry = files::find(Place::Pool, "compute.timeslice").unwrap();
        for length in WAYS.iter().flat_map(|(_, lengths)| lengths) {
            Tree::parse(entry, length).unwrap();
        }
    }
}
