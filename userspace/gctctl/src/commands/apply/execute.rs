// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes the changes of a plan, all or none.

use gct_client::{Error, Kind, Tree};

use super::plan::Change;
use crate::outcome::Failure;

/// Makes every change. After a failure, undoes those that were made. Returns what failed.
pub(super) fn all(tree: &Tree, changes: &[Change]) -> Vec<Failure> {
    let mut done = Vec::new();
    // Groups go last: only what they no longer have can be restored.
    let (removes, others): (Vec<Change>, Vec<Change>) = changes
        .iter()
        .cloned()
        .partition(|change| matches!(change, Change::Remove(_)));
    let made = in_some_order(tree, &others, &mut done)
        .and_then(|()| in_some_order(tree, &removes, &mut done));
    let Err(failures) = made else {
        return Vec::new();
    };
    done.reverse();
    let undo: Vec<Change> = done.iter().map(Change::undo).collect();
    let left = in_some_order(tree, &undo, &mut Vec::new()).err();
    let mut failures: Vec<Failure> = failures.into_iter().map(Failure::from).collect();
    failures.push(match left {
        None => Failure::new(1, "Nothing was changed: what had been changed was undone."),
        Some(_) => Failure::new(
            1,
            "A part of the changes could not be undone: compare with gctctl apply --dry-run.",
        ),
    });
    failures.extend(left.into_iter().flatten().map(Failure::from));
    failures
}

/// Makes the changes. One that needs another first is tried again after the others: a quota is free
/// only after its owner has a smaller one.
fn in_some_order(
    tree: &Tree,
    changes: &[Change],
    done: &mut Vec<Change>,
) -> Result<(), Vec<Error>> {
    let mut pending: Vec<&Change> = changes.iter().collect();
    while !pending.is_empty() {
        let before = pending.len();
        let mut errors = Vec::new();
        pending.retain(|change| match make(tree, change) {
            Ok(()) => {
                done.push((*change).clone());
                false
            }
            Err(error) => {
                // It was written, and must be undone.
                if error.kind() == Kind::Mismatch {
                    done.push((*change).clone());
                }
                errors.push(error);
                true
            }
        });
        if pending.len() == before {
            return Err(errors);
        }
    }
    Ok(())
}

fn make(tree: &Tree, change: &Change) -> Result<(), Error> {
    match change {
        Change::Create(name) => tree.create(name),
        Change::Remove(name) => tree.remove(name),
        Change::Set(set) => tree.set(&set.target, set.entry, &set.to).map(|_| ()),
    }
}
