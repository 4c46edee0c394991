// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes the group of a container, and removes it when the container is gone.
//!
//! ```text
//! bind       record, then group, limits, membership     before the container's first process runs
//! release    group, then record                         after its last process has ended
//! reconcile  removes what release did not see, and makes again what the tree has lost
//! ```

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use gct_client::{one_line, Content, Error, Owner, Target, Tree};
use gct_core::error::Error as CoreError;
use gct_core::iface::{files, File, Place};
use gct_kubelet::group::PodContainer;
use gctd_ipc::procfs::{stat_field, START};

use annotated::{check_guarantee, check_slots, drop_guarantees};

use crate::cgroup;
use crate::container::{self, State};
use crate::nri;
use crate::place::Places;
use crate::prefer::Running;
use crate::records::{Record, Records, Share};
use crate::shares;

/// Most time until the tree has noticed that the last process of a group has ended.
const MEMBERS_WAIT: Duration = Duration::from_secs(1);
const MEMBERS_POLL: Duration = Duration::from_millis(5);

/// What a pass of [`reconcile`] did.
#[derive(Debug, Default)]
pub struct Report {
    /// Groups whose containers are gone.
    pub removed: Vec<String>,
    /// Groups that the tree had lost.
    pub restored: Vec<String>,
    /// What could not be done, and is tried again.
    pub failures: Vec<String>,
    /// Containers by GPU and profile.
    pub running: Running,
}

/// Gives a container its group and its share of a GPU. A second call with the same share changes
/// nothing.
///
/// # Errors
///
/// Then the container has neither group nor record, and must not start.
pub fn bind(places: &Places, state: &State, gpu: u32, share: &Share) -> Result<()> {
    let tree = places.tree();
    let records = Records::lock(&places.state)?;
    let group = state.group();
    let mut record = match records.read(&group) {
        Some(record) if record.id == state.id => record,
        Some(other) => bail!("group {group} is of container {}", other.id),
        None => new_record(places, state, group.clone())?,
    };
    let of_gpu = record.gpus.entry(gpu).or_default();
    if !shares::add(of_gpu, share).with_context(|| format!("GPU {gpu}"))? {
        return Ok(());
    }
    // A program has one daemon.
    ensure!(
        record.gpus.len() == 1 || record.shares().all(|share| !share.mps),
        "a container can use one GPU under MPS, and no other beside it"
    );
    if let Some(claim) = &share.claim {
        check_is_free(places, &records, claim, &group)?;
    }
    check_slots(places, &records, gpu, share, &group)?;
    if share.profile == nri::PROFILE {
        check_guarantee(places, &tree, &records, gpu, &record)?;
    }
    settle(places, &tree, &records, &record)
}

/// What became of a container that runs.
#[derive(Debug)]
pub enum Adopted {
    /// It had a group.
    Before,
    /// It has its group.
    Now,
    /// It has its group, which guarantees nothing: what it should cannot be had.
    WithoutGuarantee(anyhow::Error),
}

/// Gives a container that runs its group, with its shares of all GPUs. A limit counts more than a
/// guarantee: the container runs in any case, and would have none.
///
/// # Errors
///
/// Then it has neither group nor record. The process may be another container's by now.
pub fn adopt(
    places: &Places,
    state: &State,
    shares: impl Iterator<Item = (u32, Share)>,
) -> Result<Adopted> {
    let tree = places.tree();
    let records = Records::lock(&places.state)?;
    let group = state.group();
    if records.read(&group).is_some() {
        return Ok(Adopted::Before);
    }
    let mut record = new_record(places, state, group.clone())?;
    let own = record.cgroup.of_container(&state.id);
    record.cgroup = own.context("its first process has ended")?;
    let mut lost = None;
    for (gpu, share) in shares {
        let slot = check_slots(places, &records, gpu, &share, &group);
        shares::add(record.gpus.entry(gpu).or_default(), &share)?;
        let fits = slot.and_then(|()| check_guarantee(places, &tree, &records, gpu, &record));
        if let Err(error) = fits {
            drop_guarantees(record.gpus.entry(gpu).or_default().iter_mut());
            lost.get_or_insert(error);
        }
    }
    if let Err(error) = settle(places, &tree, &records, &record) {
        // A record that stays is one for `reconcile`.
        let is_left = records.read(&group).is_some();
        if is_left || !drop_guarantees(record.gpus.values_mut().flatten()) {
            return Err(error);
        }
        if settle(places, &tree, &records, &record).is_err() {
            return Err(error);
        }
        lost.get_or_insert(error);
    }
    Ok(lost.map_or(Adopted::Now, Adopted::WithoutGuarantee))
}

/// Writes a record and makes its group, or leaves neither.
fn settle(places: &Places, tree: &Tree, records: &Records, record: &Record) -> Result<()> {
    records.write(record)?;
    let made = make(tree, &places.proc, record);
    if made.is_err() {
        remove_group(tree, &record.group, Duration::ZERO)?;
        records.remove(&record.group)?;
    }
    made.with_context(|| format!("group {}", record.group))
}

/// Checks that no other container has a claim's device: each would have all of its share.
fn check_is_free(places: &Places, records: &Records, claim: &str, group: &str) -> Result<()> {
    let has = |other: &Record| {
        let mut shares = other.shares();
        other.group != group
            && shares.any(|share| share.claim.as_deref() == Some(claim))
            && !is_gone(places, other, None)
    };
    if let Some(other) = records.all()?.into_iter().find(has) {
        bail!(
            "its share is in use by {}: give each container a claim, or a request, of its own",
            other.group
        );
    }
    Ok(())
}

/// Returns whether a container has a record, and so a group now or after the next pass.
///
/// # Errors
///
/// Those of the records.
pub fn is_known(places: &Places, state: &State) -> Result<bool> {
    let records = Records::lock(&places.state)?;
    let record = records.read(&state.group());
    Ok(record.is_some_and(|record| record.id == state.id))
}

/// Removes the group of a container, and its record, if it has them.
///
/// # Errors
///
/// Those of the tree. The record stays then, and [`reconcile`] goes on.
pub fn release(places: &Places, state: &State) -> Result<()> {
    let records = Records::lock(&places.state)?;
    let group = state.group();
    // Runtimes release a container that was refused, too, as one whose name another one has.
    let record = records.read(&group);
    if record.is_some_and(|record| record.id != state.id) {
        return Ok(());
    }
    remove_group(&places.tree(), &group, MEMBERS_WAIT)?;
    records.remove(&group)
}

/// Makes groups and records what the containers are. `pods` are the containers that the kubelet
/// knows, if it has been asked.
///
/// # Errors
///
/// Fails if the tree or the records cannot be read.
pub fn reconcile(places: &Places, pods: Option<&HashSet<PodContainer>>) -> Result<Report> {
    let tree = places.tree();
    let records = Records::lock(&places.state)?;
    let mut report = Report::default();
    let mut groups: HashSet<String> = container_groups(&tree)?;
    for record in records.all()? {
        let exists = groups.remove(&record.group);
        let name = record.group.clone();
        let done = if is_gone(places, &record, pods) {
            let removed =
                remove_group(&tree, &name, Duration::ZERO).and_then(|()| records.remove(&name));
            removed.map(|()| report.removed.push(name.clone()))
        } else {
            for (gpu, of_gpu) in &record.gpus {
                // All of them are of one profile, or of claims.
                if let Some(share) = of_gpu.first() {
                    let place = (*gpu, share.profile.clone());
                    *report.running.entry(place).or_default() += 1;
                }
            }
            if exists {
                continue;
            }
            restore(&tree, places, &record).map(|()| report.restored.push(name.clone()))
        };
        if let Err(error) = done {
            let why = one_line(error.as_ref());
            report.failures.push(format!("group {name}: {why}"));
        }
    }
    // No container has these, unless somebody removed its record.
    for group in groups {
        if is_without_cgroup(&tree, &places.cgroups, &group)
            && remove_group(&tree, &group, Duration::ZERO).is_ok()
        {
            report.removed.push(group);
        }
    }
    Ok(report)
}

fn new_record(places: &Places, state: &State, group: String) -> Result<Record> {
    let pid = state.pid;
    let cgroup = cgroup::of(&places.proc, &places.cgroups, pid)
        .with_context(|| format!("the cgroup of process {pid} is unknown"))?;
    let started = started(&places.proc, pid).with_context(|| format!("process {pid} is gone"))?;
    Ok(Record {
        group,
        id: state.id.clone(),
        pod: state.pod_container(),
        pid,
        started,
        cgroup,
        gpus: BTreeMap::new(),
    })
}

/// Makes the group of a record. Members come last, when all limits are in force.
fn make(tree: &Tree, proc: &Path, record: &Record) -> Result<()> {
    match tree.create(&record.group) {
        // The container has a share of another GPU.
        Err(error) if error.core() == Some(CoreError::Exists) => {}
        other => other?,
    }
    let owner = Owner::Group(record.group.clone());
    for (gpu, of_gpu) in &record.gpus {
        for (file, value) in shares::limits(of_gpu).with_context(|| format!("GPU {gpu}"))? {
            let entry =
                files::find(Place::Pool, &file).with_context(|| format!("there is no {file}"))?;
            tree.set(&Target::Pool(owner.clone(), *gpu), entry, &value)?;
        }
    }
    match &record.cgroup.path {
        Some(path) => tree.attach_cgroup(&record.group, path)?,
        None if started(proc, record.pid) == Some(record.started) => {
            tree.attach_pid(&record.group, record.pid)?;
        }
        // Its descendants cannot be found without a cgroup.
        None => bail!("its first process has ended, and this machine has no cgroup version 2"),
    }
    Ok(())
}

/// Makes a group again that the tree has lost, whole or not at all.
fn restore(tree: &Tree, places: &Places, record: &Record) -> Result<()> {
    let made = make(tree, &places.proc, record);
    if made.is_err() {
        remove_group(tree, &record.group, Duration::ZERO)?;
    }
    made
}

/// Removes a group if it exists. Waits for its members to be gone.
fn remove_group(tree: &Tree, group: &str, wait: Duration) -> Result<()> {
    let started = Instant::now();
    loop {
        match tree.remove(group) {
            Err(error) if error.core() == Some(CoreError::NotFound) => return Ok(()),
            Err(error) if error.core() == Some(CoreError::Busy) && started.elapsed() < wait => {
                thread::sleep(MEMBERS_POLL);
            }
            other => return Ok(other?),
        }
    }
}

fn container_groups(tree: &Tree) -> Result<HashSet<String>, Error> {
    let groups = tree.owners()?.into_iter().filter_map(|owner| match owner {
        Owner::Group(name) => container::is_group(&name).then_some(name),
        Owner::Process(_) => None,
    });
    Ok(groups.collect())
}

/// Returns whether the container of a record is gone: its cgroup is, or is empty and the kubelet
/// knows of no such container. Just after its start the kubelet knows none at all, but those that
/// run have processes.
fn is_gone(places: &Places, record: &Record, pods: Option<&HashSet<PodContainer>>) -> bool {
    if !record.cgroup.exists(&places.cgroups) {
        return true;
    }
    let (Some(pods), Some(pod)) = (pods, &record.pod) else {
        return false;
    };
    !pods.contains(pod) && !record.cgroup.is_populated(&places.cgroups)
}

/// Returns whether a group is bound to no cgroup, or to one that is gone.
fn is_without_cgroup(tree: &Tree, cgroups: &Path, group: &str) -> bool {
    let target = Target::Owner(Owner::Group(group.to_owned()));
    match tree.read(&target, files::entry(File::GroupCgroup)) {
        Ok(Content::Cgroup(None)) => true,
        Ok(Content::Cgroup(Some(path))) => {
            let path = path.trim_start_matches('/');
            !cgroups.join(path).exists() && !cgroups.join("unified").join(path).exists()
        }
        _ => false,
    }
}

/// Returns when a process started, in the kernel's ticks.
fn started(proc: &Path, pid: u32) -> Option<u64> {
    let stat = fs::read(proc.join(pid.to_string()).join("stat")).ok()?;
    stat_field(&stat, START)?.parse().ok()
}

mod annotated;

#[cfg(test)]
mod tests;
