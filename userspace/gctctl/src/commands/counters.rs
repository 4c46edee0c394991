// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the counters of the whole tree, for the commands that watch them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use gct_client::{Content, Error, Kind, Owner, Target, Tree};
use gct_core::error::Error as CoreError;
use gct_core::iface::files::{self, Entry};
use gct_core::iface::File;

use crate::outcome::Failure;

/// A line of a `KEY VALUE` file: directory, file and key.
pub(super) type Key = (Target, &'static str, String);

/// The values of `KEY VALUE` files.
pub(super) type Counters = BTreeMap<Key, u64>;

/// Returns the counters of these files of the root and of each owner on each GPU.
pub(super) fn read(tree: &Tree, root: &[File], pools: &[File]) -> Result<Counters, Error> {
    let mut found = Counters::new();
    for file in root {
        add(tree, &Target::Root, files::entry(*file), &mut found)?;
    }
    for pool in targets(tree)? {
        for file in pools {
            add(tree, &pool, files::entry(*file), &mut found)?;
        }
    }
    Ok(found)
}

/// Returns the directory of each owner on each GPU.
pub(super) fn targets(tree: &Tree) -> Result<Vec<Target>, Error> {
    let mut found = Vec::new();
    for owner in tree.owners()? {
        let gpus = unless_gone(tree.pools(&owner))?.unwrap_or_default();
        let pool = |gpu| Target::Pool(Owner::clone(&owner), gpu);
        found.extend(gpus.into_iter().map(pool));
    }
    Ok(found)
}

/// Returns the directories of a target on its GPUs, or of all owners.
///
/// # Errors
///
/// Fails if the target has no GPU.
pub(super) fn targets_of(tree: &Tree, wanted: Option<&str>) -> Result<Vec<Target>, Failure> {
    let mut found = targets(tree)?;
    if let Some(wanted) = wanted {
        let wanted: Target = wanted.parse()?;
        found.retain(|target| is_part(target, &wanted));
        if found.is_empty() {
            return Err(Failure::new(
                4,
                format!("There is no {wanted} with a GPU: gctctl ls lists groups and processes."),
            ));
        }
    }
    Ok(found)
}

fn is_part(target: &Target, wanted: &Target) -> bool {
    match (target, wanted) {
        (Target::Pool(owner, _), Target::Owner(wanted)) => owner == wanted,
        _ => target == wanted,
    }
}

fn add(
    tree: &Tree,
    target: &Target,
    entry: &'static Entry,
    found: &mut Counters,
) -> Result<(), Error> {
    if let Some(Content::Stat(lines)) = unless_gone(tree.read(target, entry))? {
        let key = |key| (target.clone(), entry.name, key);
        found.extend(lines.into_iter().map(|(name, value)| (key(name), value)));
    }
    Ok(())
}

/// Turns into `None` what went while the tree was read, or what a GPU does not support.
pub(super) fn unless_gone<T>(read: Result<T, Error>) -> Result<Option<T>, Error> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        Err(error) => match error.core() {
            Some(CoreError::Unsupported | CoreError::Unknown) => Ok(None),
            // The file went between the look for its directory and its read.
            _ if is_missing_file(&error) => Ok(None),
            _ => Err(error),
        },
    }
}

fn is_missing_file(error: &Error) -> bool {
    use gct_client::Refusal::System;
    matches!(error, Error::Read { source: System(cause), .. } if cause.kind() == io::ErrorKind::NotFound)
}

/// Prints a text at once. Returns `false` if nobody reads it any more.
pub(super) fn print(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(
            1,
            format!("The output cannot be written: {error}."),
        )),
    }
}
