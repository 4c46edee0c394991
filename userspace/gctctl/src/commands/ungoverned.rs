// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds channels that use a GPU beside limits on launches which do not bind them.

use gct_client::{Content, Error, Owner, Target, Tree};
use gct_core::iface::{files, File};

use super::counters::unless_gone;

/// The channels of an owner that no limit on launches binds, while somebody on the GPU has one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ungoverned {
    /// The owner on the GPU. A member of a group is found by its group.
    pub(super) target: Target,
    pub(super) channels: u64,
    /// The reasons, as in `unmanaged.REASON`.
    reasons: Vec<String>,
}

impl Ungoverned {
    /// Says what that means for a limit of `written`.
    pub(super) fn of_a_write(&self, written: &Target) -> String {
        let Self { channels, .. } = self;
        match &self.target == written {
            true => format!(
                "it does not bind {channels} channels of programs that run: gctctl explain {written}"
            ),
            false => format!("it does not hold against {}.", self.named()),
        }
    }

    /// Names channels, owner and reasons.
    pub(super) fn named(&self) -> String {
        format!(
            "{} channels of {}, which no limit on launches binds ({})",
            self.channels,
            self.target,
            self.reasons.join(", ")
        )
    }
}

/// Returns who has such channels on the GPU of a target: the target, then its neighbours.
///
/// # Errors
///
/// Those of reading the tree.
pub(super) fn on_gpu_of(tree: &Tree, target: &Target) -> Result<Vec<Ungoverned>, Error> {
    let Target::Pool(own, gpu) = target else {
        return Ok(Vec::new());
    };
    let owners = tree.owners()?;
    let mut members = Vec::new();
    let mut found = Vec::from_iter(look(tree, target)?);
    for owner in owners {
        let pids = pids(tree, &owner)?;
        let kin = match (&owner, own) {
            (Owner::Group(_), Owner::Process(pid)) => pids.contains(pid),
            // Groups come first.
            (Owner::Process(pid), _) => members.contains(pid),
            _ => false,
        };
        members.extend(pids);
        if !kin && owner != *own {
            found.extend(look(tree, &Target::Pool(owner, *gpu))?);
        }
    }
    Ok(found)
}

/// Returns the members of a group.
fn pids(tree: &Tree, owner: &Owner) -> Result<Vec<u32>, Error> {
    if let Owner::Process(_) = owner {
        return Ok(Vec::new());
    }
    let target = Target::Owner(owner.clone());
    let read = unless_gone(tree.read(&target, files::entry(File::GroupProcs)))?;
    Ok(match read {
        Some(Content::Pids(pids)) => pids,
        _ => Vec::new(),
    })
}

fn look(tree: &Tree, target: &Target) -> Result<Option<Ungoverned>, Error> {
    let read = unless_gone(tree.read(target, files::entry(File::ComputeStat)))?;
    let Some(Content::Stat(lines)) = read else {
        return Ok(None);
    };
    let channels = lines.iter().find(|(key, _)| key == "ungoverned");
    let Some((_, channels)) = channels.filter(|(_, channels)| *channels > 0) else {
        return Ok(None);
    };
    let reasons = lines.iter().filter(|(_, count)| *count > 0);
    let reasons = reasons.filter_map(|(key, _)| key.strip_prefix("unmanaged."));
    Ok(Some(Ungoverned {
        target: target.clone(),
        channels: *channels,
        reasons: reasons.map(str::to_owned).collect(),
    }))
}
