// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares the tree with a file, and lists the changes.

use std::collections::BTreeMap;
use std::fmt;

use gct_client::{Content, Error, Owner, Target, Tree};
use gct_core::error::Error as CoreError;
use gct_core::iface::files::{self, Entry};
use gct_core::iface::{File, Place};

use super::file::{is_setting, Group, Values};
use super::wrong;
use crate::commands::run::is_run_group;
use crate::outcome::Failure;

/// A new value of a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Set {
    pub(super) target: Target,
    pub(super) entry: &'static Entry,
    pub(super) from: String,
    pub(super) to: String,
    /// Whether the group goes afterwards. Its settings return to their defaults first, so that
    /// others may have its reservations and its cgroup, and the change can be undone.
    pub(super) of_removed: bool,
}

/// A change of the tree.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    Create(String),
    Set(Set),
    Remove(String),
}

impl Change {
    /// Returns whether another change says it already.
    pub(super) fn is_implied(&self) -> bool {
        matches!(self, Self::Set(set) if set.of_removed)
    }

    /// Returns the change that undoes this one.
    pub(super) fn undo(&self) -> Self {
        match self {
            Self::Create(name) => Self::Remove(name.clone()),
            Self::Remove(name) => Self::Create(name.clone()),
            Self::Set(set) => Self::Set(Set {
                from: set.to.clone(),
                to: set.from.clone(),
                ..set.clone()
            }),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(name) => write!(f, "+ {name}"),
            Self::Remove(name) => write!(f, "- {name}"),
            Self::Set(set) => write!(
                f,
                "~ {} {}: {} -> {}",
                set.target, set.entry.name, set.from, set.to
            ),
        }
    }
}

/// Returns the changes that make the tree what the file says.
///
/// With `prune`, what the file does not name goes: groups, and settings of those that it names.
pub(super) fn plan(
    tree: &Tree,
    wanted: &BTreeMap<String, Group>,
    prune: bool,
) -> Result<Vec<Change>, Failure> {
    let there = tree.owners()?;
    let gpus = tree.gpus()?;
    let (mut sets, mut creates, mut removes) = (Vec::new(), Vec::new(), Vec::new());
    for (name, group) in wanted {
        if let Some(gpu) = group.gpus.keys().find(|gpu| !gpus.contains(gpu)) {
            return Err(wrong(4, name, &format!("there is no GPU {gpu}.")));
        }
        let owner = Owner::Group(name.clone());
        let exists = there.contains(&owner);
        if !exists {
            creates.push(Change::Create(name.clone()));
        }
        let mut compare = |target: Target, values: &Values| {
            directory(tree, name, exists, target, values, prune).map(|found| sets.extend(found))
        };
        compare(Target::Owner(owner.clone()), &group.own)?;
        for gpu in &gpus {
            let mut values = group.limits.clone();
            values.extend(group.gpus.get(gpu).cloned().unwrap_or_default());
            compare(Target::Pool(owner.clone(), *gpu), &values)?;
        }
    }
    for owner in there.iter().filter(|_| prune) {
        let Owner::Group(name) = owner else { continue };
        // A program's own group goes after the program.
        if wanted.contains_key(name) || is_run_group(name) {
            continue;
        }
        has_no_members(tree, name)?;
        let group = Target::Owner(owner.clone());
        let pools = gpus.iter().map(|gpu| Target::Pool(owner.clone(), *gpu));
        for target in std::iter::once(group).chain(pools) {
            let found = directory(tree, name, true, target, &Values::new(), true)?;
            sets.extend(found.into_iter().map(|set| Set {
                of_removed: true,
                ..set
            }));
        }
        removes.push(Change::Remove(name.clone()));
    }
    let sets = sets.into_iter().map(Change::Set);
    Ok(creates.into_iter().chain(sets).chain(removes).collect())
}

/// Returns the differences of a directory.
fn directory(
    tree: &Tree,
    group: &str,
    exists: bool,
    target: Target,
    values: &Values,
    prune: bool,
) -> Result<Vec<Set>, Failure> {
    let mut sets = Vec::new();
    let place = target.place().unwrap_or(Place::Root);
    for entry in files::of(place).filter(|entry| is_setting(entry)) {
        let default = || (prune && exists).then(|| canonical(entry, entry.default));
        let wanted = values.get(entry.name).map(|(_, text)| text.clone());
        let is_named = wanted.is_some();
        let Some(to) = wanted.or_else(default) else {
            continue;
        };
        let from = match exists {
            true => current(tree, &target, entry)?,
            false => supported(tree, &target, entry)?.then(|| canonical(entry, entry.default)),
        };
        match from {
            Some(from) if from != to => sets.push(Set {
                target: target.clone(),
                entry,
                from,
                to,
                of_removed: false,
            }),
            // What is not supported has no value that could be returned to its default.
            None if is_named => {
                let message = format!(
                    "{target} does not support {}; gctctl show gpus/N lists what its GPU supports.",
                    entry.name
                );
                return Err(wrong(5, group, &message));
            }
            _ => {}
        }
    }
    Ok(sets)
}

/// Returns a value in the form that the tree prints.
fn canonical(entry: &'static Entry, text: &str) -> String {
    let parsed = Tree::parse(entry, text);
    parsed.map_or_else(|_| text.to_owned(), |content| content.to_string())
}

/// Returns the value of a file, `None` if its GPU does not support it.
fn current(tree: &Tree, target: &Target, entry: &'static Entry) -> Result<Option<String>, Error> {
    match tree.read(target, entry) {
        Ok(content) => Ok(Some(content.to_string())),
        Err(error) if error.core() == Some(CoreError::Unsupported) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether a GPU supports a file of a group that does not exist yet.
fn supported(tree: &Tree, target: &Target, entry: &Entry) -> Result<bool, Error> {
    let (Target::Pool(_, gpu), Some(_)) = (target, entry.feature) else {
        return Ok(true);
    };
    match tree.read(&Target::Gpu(*gpu), files::entry(File::GpuFeatures))? {
        Content::Words(words) => Ok(words.iter().any(|word| word == entry.name)),
        _ => Ok(false),
    }
}

fn has_no_members(tree: &Tree, name: &str) -> Result<(), Failure> {
    let target = Target::Owner(Owner::Group(name.to_owned()));
    match tree.read(&target, files::entry(File::GroupProcs))? {
        Content::Pids(pids) if !pids.is_empty() => {
            let message = format!(
                "--prune cannot remove it, because it has {} processes: end them, move them with \
                 gctctl attach, or name the group in the file.",
                pids.len()
            );
            Err(wrong(3, name, &message))
        }
        _ => Ok(()),
    }
}
