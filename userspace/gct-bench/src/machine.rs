// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Describes the machine of the measurements.

use std::collections::BTreeMap;
use std::process::Command;

/// Returns the available facts about this machine.
pub(crate) fn facts(tpcs: &[&str]) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut add = |key: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            facts.insert(key.into(), value);
        }
    };
    let smi = |field: &str| {
        let query = format!("--query-gpu={field}");
        output("nvidia-smi", &[&query, "--format=csv,noheader"])
    };
    add("GPU", smi("name"));
    add("driver", smi("driver_version"));
    add("kernel", output("uname", &["-sr"]));
    add("gctgroup", Some(env!("CARGO_PKG_VERSION").into()));
    add("TPCs", Some(format!("{}: {}", tpcs.len(), tpcs.join(","))));
    let cpus = std::thread::available_parallelism();
    add("CPUs", cpus.ok().map(|cpus| cpus.to_string()));
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    add(
        "CPU",
        model.map(|m| m.trim_start_matches([':', '\t', ' ']).into()),
    );
    facts
}

/// Returns the first line of a program's output.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let text = output_of(program, arguments)?;
    text.lines().next().map(|line| line.trim().to_string())
}

/// Returns a program's output, or nothing if there is no such program.
pub(crate) fn output_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into())
}
