// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads what `top` shows: one look at the tree.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use gct_client::{Content, Error, Owner, Target, Tree};
use gct_core::iface::{files, File, Value};
use gctd_ipc::procfs;

use super::super::counters::unless_gone;

/// Prefix of the counters that say why work was held.
const HELD: &str = "held_usec.";

/// What an owner uses on a GPU. `None` is what its GPU does not tell.
#[derive(Clone, Debug, Default)]
pub(super) struct Use {
    /// Name of a process's program, which it chooses itself.
    pub(super) program: String,
    /// The group's directory on this GPU, if the owner is a process of a group.
    pub(super) group: Option<Target>,
    pub(super) memory: Option<u64>,
    /// `gmem.limit`; `Some(None)` is `max`.
    pub(super) memory_limit: Option<Option<u64>>,
    /// Number of TPCs of the last launch; `Some(None)` is `all`.
    pub(super) tpcs: Option<Option<u32>>,
    pub(super) is_frozen: bool,
    /// `compute.stat`.
    pub(super) counters: BTreeMap<String, u64>,
}

/// A GPU.
#[derive(Clone, Debug)]
pub(super) struct Gpu {
    pub(super) name: String,
    pub(super) memory: Option<u64>,
    pub(super) tpcs: Option<u32>,
}

/// One look at the tree.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) at: Instant,
    pub(super) gpus: BTreeMap<u32, Gpu>,
    pub(super) uses: BTreeMap<Target, Use>,
}

impl Snapshot {
    /// Reads the tree. What goes meanwhile is left out.
    pub(super) fn read(tree: &Tree) -> Result<Self, Error> {
        let mut gpus = BTreeMap::new();
        for gpu in tree.gpus()? {
            gpus.insert(gpu, read_gpu(tree, gpu)?);
        }
        let owners = tree.owners()?;
        let mut groups = BTreeMap::new();
        for owner in &owners {
            if let Owner::Group(_) = owner {
                let procs = files::entry(File::GroupProcs);
                let members = unless_gone(tree.read(&Target::Owner(owner.clone()), procs))?;
                if let Some(Content::Pids(pids)) = members {
                    groups.extend(pids.into_iter().map(|pid| (pid, owner.clone())));
                }
            }
        }
        let mut uses = BTreeMap::new();
        for owner in owners {
            for gpu in unless_gone(tree.pools(&owner))?.unwrap_or_default() {
                let target = Target::Pool(owner.clone(), gpu);
                let mut found = read_use(tree, &target)?;
                if let Owner::Process(pid) = owner {
                    found.program = procfs::program(&Path::new("/proc").join(pid.to_string()));
                    let group = groups.get(&pid).cloned();
                    found.group = group.map(|group| Target::Pool(group, gpu));
                }
                uses.insert(target, found);
            }
        }
        let at = Instant::now();
        Ok(Self { at, gpus, uses })
    }
}

fn read_gpu(tree: &Tree, gpu: u32) -> Result<Gpu, Error> {
    let read = |file| unless_gone(tree.read(&Target::Gpu(gpu), files::entry(file)));
    let text = |found: Option<Content>| found.map(|found| found.to_string());
    Ok(Gpu {
        name: text(read(File::GpuName)?).unwrap_or_default(),
        memory: text(read(File::GpuMemoryTotal)?).and_then(|text| text.parse().ok()),
        tpcs: text(read(File::GpuTpcs)?).and_then(|text| text.parse().ok()),
    })
}

fn read_use(tree: &Tree, target: &Target) -> Result<Use, Error> {
    let value = |file| match unless_gone(tree.read(target, files::entry(file)))? {
        Some(Content::Value(value)) => Ok(Some(value)),
        _ => Ok(None),
    };
    let stat = unless_gone(tree.read(target, files::entry(File::ComputeStat)))?;
    Ok(Use {
        memory: match value(File::GmemCurrent)? {
            Some(Value::Bytes(bytes)) => Some(bytes.0),
            _ => None,
        },
        memory_limit: match value(File::GmemLimit)? {
            Some(Value::BytesOrMax(limit)) => Some(limit.map(|limit| limit.0)),
            _ => None,
        },
        tpcs: match value(File::TpcEffective)? {
            Some(Value::TpcList(list)) => Some(list.map(|list| list.count())),
            _ => None,
        },
        is_frozen: matches!(value(File::ComputeFreeze)?, Some(Value::Switch(true))),
        counters: match stat {
            Some(Content::Stat(lines)) => lines.into_iter().collect(),
            _ => BTreeMap::new(),
        },
        ..Use::default()
    })
}

impl Use {
    /// Returns what a counter grew since an earlier look.
    pub(super) fn grown(&self, before: Option<&Self>, key: &str) -> Option<u64> {
        let now = *self.counters.get(key)?;
        let then = before.and_then(|before| before.counters.get(key));
        // A daemon that started anew counts from 0.
        Some(now.saturating_sub(*then.unwrap_or(&now)))
    }

    /// Returns the reason for which most work was held since an earlier look.
    pub(super) fn reason(&self, before: Option<&Self>) -> Option<&str> {
        let grown = self.counters.keys().filter_map(|key| {
            let reason = key.strip_prefix(HELD)?;
            Some((self.grown(before, key)?, reason))
        });
        let most = grown.max_by_key(|(grown, _)| *grown)?;
        (most.0 > 0).then_some(most.1)
    }
}
