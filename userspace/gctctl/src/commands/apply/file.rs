// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the file of `apply`.
//!
//! ```toml
//! [group.web]
//! group.cgroup = "/kubepods/web"
//! gmem.limit = "20G"              # on each GPU
//!
//! [group.web.gpu.1]
//! gmem.limit = "40G"              # on GPU 1 instead
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use gct_client::Tree;
use gct_core::iface::files::{self, Entry, Mode};
use gct_core::iface::{parse, File, Place};
use toml::{Table, Value};

use super::wrong;
use crate::outcome::Failure;

/// The wanted values of files, by the file's name, in the form that the tree prints.
pub(super) type Values = BTreeMap<&'static str, (&'static Entry, String)>;

/// What a file says of a group.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// Files of the group itself.
    pub(super) own: Values,
    /// Limits on each GPU.
    pub(super) limits: Values,
    /// Limits on one GPU, before those on each.
    pub(super) gpus: BTreeMap<u32, Values>,
}

/// Returns the groups of a file, by their names.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, Group>, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::new(1, format!("{} cannot be read: {error}.", path.display())))?;
    let syntax = |error: toml::de::Error| {
        Failure::new(3, format!("{} is not valid TOML:\n{error}", path.display()))
    };
    let table: Table = text.parse().map_err(syntax)?;
    groups(table)
}

fn groups(table: Table) -> Result<BTreeMap<String, Group>, Failure> {
    let mut found = BTreeMap::new();
    for (key, value) in table {
        let (true, Value::Table(groups)) = (key == "group", value) else {
            let message =
                format!("{key} is none of gctctl's: write [group.NAME]. Nothing was changed.");
            return Err(Failure::new(3, message));
        };
        for (name, value) in groups {
            let is_name = parse::name(name.as_bytes()).is_ok();
            let (true, Value::Table(table)) = (is_name, value) else {
                let message =
                    "a group is a table, and its name a letter or underscore, then up to 63 \
                               letters, digits, '.', '_' and '-'.";
                return Err(wrong(3, &name, message));
            };
            let group = group(&name, table)?;
            found.insert(name, group);
        }
    }
    let mut cgroups = BTreeMap::new();
    for (name, group) in &found {
        for (_, path) in group.own.values().filter(|(_, path)| path != "none") {
            if let Some(other) = cgroups.insert(path, name) {
                return Err(wrong(3, name, &format!("{other} has the same cgroup.")));
            }
        }
    }
    Ok(found)
}

fn group(name: &str, mut table: Table) -> Result<Group, Failure> {
    let mut group = Group::default();
    if let Some(gpus) = table.remove("gpu") {
        let Value::Table(gpus) = gpus else {
            return Err(wrong(3, name, "gpu is a table: write [group.NAME.gpu.0]."));
        };
        for (gpu, limits) in gpus {
            let (Ok(index), Value::Table(limits)) = (gpu.parse(), limits) else {
                return Err(wrong(
                    3,
                    name,
                    &format!("gpu.{gpu} is no table of a GPU's index."),
                ));
            };
            let gpu = group.gpus.entry(index).or_default();
            values(name, "", limits, &[Place::Pool], &mut |_, entry, text| {
                gpu.insert(entry.name, (entry, text));
            })?;
        }
    }
    let Group { own, limits, .. } = &mut group;
    values(
        name,
        "",
        table,
        &[Place::Group, Place::Pool],
        &mut |place, entry, text| {
            let values = match place {
                Place::Group => &mut *own,
                _ => &mut *limits,
            };
            values.insert(entry.name, (entry, text));
        },
    )?;
    Ok(group)
}

/// Passes each file of a table with its value. Dots in a key make tables in TOML.
fn values(
    group: &str,
    prefix: &str,
    table: Table,
    places: &[Place],
    take: &mut impl FnMut(Place, &'static Entry, String),
) -> Result<(), Failure> {
    for (key, value) in table {
        let file = format!("{prefix}{key}");
        let text = match value {
            Value::Table(table) => {
                values(group, &format!("{file}."), table, places, take)?;
                continue;
            }
            Value::String(text) => text,
            Value::Integer(number) => number.to_string(),
            Value::Boolean(on) => u8::from(on).to_string(),
            _ => {
                return Err(wrong(
                    3,
                    group,
                    &format!("{file} is no text and no number."),
                ))
            }
        };
        let find = |place: &Place| files::find(*place, &file);
        let entry = places
            .iter()
            .find_map(find)
            .filter(|entry| is_setting(entry));
        let Some(entry) = entry else {
            let message = format!("there is no setting {file}; gctctl show lists them.");
            return Err(wrong(4, group, &message));
        };
        let content = Tree::parse(entry, &text)
            .map_err(|error| Failure::from(error).before(&format!("group {group}: ")))?;
        take(entry.place, entry, content.to_string());
    }
    Ok(())
}

/// Returns whether a file holds a setting that lasts. Members are not, and a peak is a counter.
pub(super) fn is_setting(entry: &Entry) -> bool {
    let counters = [File::GroupProcs, File::GmemPeak];
    entry.mode == Mode::ReadWrite && !counters.contains(&entry.file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<BTreeMap<String, Group>, String> {
        let table: Table = text.parse().expect("TOML");
        groups(table).map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn limits_are_those_of_each_gpu_or_of_one() {
        let text = "[group.web]\ngroup.cgroup = '/a'\ngmem.limit = '1G'\ncompute.freeze = true\n\
                    [group.web.gpu.1]\ngmem.limit = 4096\n[group.\"a.b\"]\n";
        let groups = parsed(text).unwrap();
        assert_eq!(groups.keys().collect::<Vec<_>>(), ["a.b", "web"]);
        let web = &groups["web"];
        assert_eq!(web.own["group.cgroup"].1, "/a");
        assert_eq!(web.limits["gmem.limit"].1, "1073741824");
        assert_eq!(web.limits["compute.freeze"].1, "1");
        assert_eq!(web.gpus[&1]["gmem.limit"].1, "4096");
    }

    #[test]
    fn every_mistake_names_its_group_or_key() {
        for (text, says) in [
            ("groups = 1", "groups is none"),
            ("group = 1", "write [group.NAME]"),
            ("[group.gpus]", "group gpus"),
            ("[group]\nweb = 1", "group web"),
            ("[group.web]\ngmem.limits = 1", "no setting gmem.limits"),
            ("[group.web]\ngmem.peak = 1", "no setting gmem.peak"),
            ("[group.web]\ngroup.procs = 1", "no setting group.procs"),
            ("[group.web]\ngmem.limit = 1.5", "no text and no number"),
            ("[group.web]\ngmem.limit = -1", "group web"),
            ("[group.web]\ncompute.weight = 0", "group web"),
            ("[group.web.gpu.x]", "gpu.x"),
            ("[group.web]\ngpu = 1", "gpu is a table"),
            (
                "[group.web.gpu.0]\ngroup.cgroup = '/a'",
                "no setting group.cgroup",
            ),
            (
                "[group.a]\ngroup.cgroup='/x'\n[group.b]\ngroup.cgroup='/x'",
                "same cgroup",
            ),
        ] {
            let failure = parsed(text).expect_err(text);
            assert!(failure.contains(says), "{text}: {failure}");
        }
    }
}
