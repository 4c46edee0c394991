// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lists GPUs, groups and processes (`ls`).

use gct_client::{others, Content, Error, Owner, Target, Tree};
use gct_core::iface::{files, File};
use serde_json::{json, Map, Value};

use crate::cli::Ls;
use crate::outcome::{Failure, Outcome};
use crate::table::Table;
use crate::values::Shown;

pub(crate) fn run(tree: &Tree, options: &Ls) -> Outcome {
    let (gpus, owners) = match tree.gpus().and_then(|gpus| Ok((gpus, tree.owners()?))) {
        Ok(found) => found,
        Err(error) => return Outcome::failed(error),
    };
    let mut outcome = Outcome::default();
    let mut errors = Vec::new();
    let (gpu_text, gpus) = list_gpus(tree, &gpus, &mut errors);
    let mut groups = Vec::new();
    let mut processes = Vec::new();
    let mut table = Table::new(&["OWNER", "GPUS", "PROCESSES", "CGROUP"]);
    for owner in &owners {
        match list_owner(tree, owner, &mut table) {
            Ok(entry) => match owner {
                Owner::Group(_) => groups.push(entry),
                Owner::Process(_) => processes.push(entry),
            },
            // The process or group ended while the list was read.
            Err(Error::NoTarget { .. }) => {}
            Err(error) => errors.push(error),
        }
    }
    outcome.text = gpu_text;
    outcome.text.push('\n');
    outcome.text.push_str(&match table.is_empty() {
        true => "no groups and no processes\n".to_owned(),
        false => table.render(),
    });
    outcome.json = json!({ "gpus": gpus, "groups": groups, "processes": processes });
    outcome.failures = errors.into_iter().map(Into::into).collect();
    if options.all {
        list_others(tree, options, &mut outcome);
    }
    outcome
}

/// Lists the processes that have a GPU of the user-space mode open and that gctd does not know.
fn list_others(tree: &Tree, options: &Ls, outcome: &mut Outcome) {
    let found = match others(tree, &options.system_root.join("proc")) {
        Ok(found) => found,
        Err(error) => return outcome.failures.push(error.into()),
    };
    let mut table = Table::new(&["NOT KNOWN TO GCTD", "GPUS", "GROUP", "COMMAND"]);
    let mut list = Vec::new();
    for other in &found.others {
        let gpus: Vec<String> = other.gpus.iter().map(u32::to_string).collect();
        let group = other.group.clone().unwrap_or_default();
        let command = other.command.clone();
        table.row([other.pid.to_string(), gpus.join(","), group, command]);
        list.push(json!({
            "pid": other.pid,
            "gpus": other.gpus,
            "group": other.group,
            "escapes": other.escapes,
            "command": other.command,
        }));
    }
    outcome.text.push('\n');
    outcome.text.push_str(&match table.is_empty() {
        true => "no process that gctd does not know\n".to_owned(),
        false => table.render(),
    });
    if let Some(document) = outcome.json.as_object_mut() {
        document.insert("others".to_owned(), list.into());
    }
    if found.hidden > 0 {
        let message = format!(
            "{} processes cannot be looked at, and may have a GPU open: run this as root.",
            found.hidden
        );
        outcome.failures.push(Failure::new(1, message));
    }
}

fn list_gpus(tree: &Tree, gpus: &[u32], errors: &mut Vec<Error>) -> (String, Vec<Value>) {
    let columns = [
        ("NAME", File::GpuName),
        ("PCI", File::GpuPci),
        ("ARCHITECTURE", File::GpuArchitecture),
        ("TPCS", File::GpuTpcs),
        ("MEMORY", File::GpuMemoryTotal),
        ("MODE", File::GpuMode),
        ("UUID", File::GpuUuid),
    ];
    let mut headline = vec!["GPU"];
    headline.extend(columns.map(|(title, _)| title));
    let mut table = Table::new(&headline);
    let mut list = Vec::new();
    for gpu in gpus {
        let target = Target::Gpu(*gpu);
        let mut cells = vec![gpu.to_string()];
        let mut object = Map::from_iter([("index".to_owned(), Value::from(*gpu))]);
        for (_, file) in columns {
            let entry = files::entry(file);
            match Shown::new(tree.read(&target, entry)) {
                Ok(shown) => {
                    cells.push(shown.text());
                    object.insert(entry.name.to_owned(), shown.json());
                }
                Err(error) => {
                    cells.push("(error)".to_owned());
                    errors.push(error);
                }
            }
        }
        table.row(cells);
        list.push(Value::Object(object));
    }
    let text = match list.is_empty() {
        true => "no GPUs\n".to_owned(),
        false => table.render(),
    };
    (text, list)
}

fn list_owner(tree: &Tree, owner: &Owner, table: &mut Table) -> Result<Value, Error> {
    let gpus = tree.pools(owner)?;
    let shown_gpus: Vec<String> = gpus.iter().map(u32::to_string).collect();
    let name = owner.to_string();
    if let Owner::Process(pid) = owner {
        table.row([name, shown_gpus.join(","), String::new(), String::new()]);
        return Ok(json!({ "pid": pid, "gpus": gpus }));
    }
    let target = Target::Owner(owner.clone());
    let pids = match tree.read(&target, files::entry(File::GroupProcs))? {
        Content::Pids(pids) => pids,
        _ => Vec::new(),
    };
    let cgroup = match tree.read(&target, files::entry(File::GroupCgroup))? {
        Content::Cgroup(path) => path,
        _ => None,
    };
    let cells = [
        name.clone(),
        shown_gpus.join(","),
        pids.len().to_string(),
        cgroup.clone().unwrap_or_default(),
    ];
    table.row(cells);
    Ok(json!({ "name": name, "gpus": gpus, "pids": pids, "cgroup": cgroup }))
}
