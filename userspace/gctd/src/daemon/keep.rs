// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps groups, limits and members for the next daemon, and takes over those of the last one.
//!
//! Programs connect to a new daemon by themselves, and are members of their groups again before
//! they get a page. A limit that cannot be set yet, because the driver has not told enough of its
//! GPU, is kept and tried again when the driver has.

use super::members;
use super::watches::hashed;
use super::Daemon;
use crate::budget::{Account, FDS_WATCH};
use crate::kept::{Change, Membership, Place, Process, Values};
use crate::process;
use gct_core::dirs::DirPath;
use gct_core::error::Error;
use gct_core::ids::{GpuId, GroupId, Owner, ProcKey, Scope};
use gct_core::iface::files;
use gct_core::iface::{parse, File};

/// In place of a PCI address for files of no GPU.
const NO_GPU: &str = "-";

fn key((tgid, start_time_ns): Process) -> ProcKey {
    ProcKey {
        tgid,
        start_time_ns,
    }
}

impl Daemon {
    /// Takes over what the last daemon of this directory has kept. Nobody is connected yet.
    pub(super) fn take_over(&mut self) {
        for name in self
            .keeper
            .kept()
            .groups
            .keys()
            .cloned()
            .collect::<Vec<_>>()
        {
            if let Err(error) = self.restore_group(&name) {
                tracing::warn!(name, error = error.symbol(), "a group is not taken over");
            }
        }
        let members = self.keeper.kept().members.clone();
        for (process, membership) in members {
            let restored = self.restore_member(process, &membership);
            match restored {
                Ok(()) => continue,
                // It has ended meanwhile.
                Err(Error::NoProcess) => {}
                Err(error) => tracing::warn!(
                    pid = process.0,
                    group = membership.group,
                    error = error.symbol(),
                    "a member is not taken over"
                ),
            }
            self.keeper.keep(Change::End(process));
        }
        let processes: Vec<_> = self.keeper.kept().processes.keys().copied().collect();
        for process in processes {
            if !process::find(process.0).is_ok_and(|found| found.key == key(process)) {
                self.keeper.keep(Change::End(process));
            }
        }
        self.apply_effects();
        self.restore_limits();
        for (place, name) in &self.unrestored {
            let (gpu, file) = place;
            tracing::warn!(name, gpu, file, "a limit cannot be taken over yet");
        }
        self.keeper.write();
    }

    fn restore_group(&mut self, name: &str) -> Result<(), Error> {
        let parsed = parse::name(name.as_bytes())?;
        let create = |tables: &mut gct_core::host::Host| tables.state().group_create(&parsed);
        self.tables.with(create)?;
        let places = self.keeper.kept().groups.get(name);
        let places = places.into_iter().flat_map(Values::keys);
        let unrestored = places.map(|place| (place.clone(), name.to_owned()));
        self.unrestored.extend(unrestored);
        Ok(())
    }

    fn restore_member(&mut self, process: Process, member: &Membership) -> Result<(), Error> {
        let (key, name) = (key(process), parse::name(member.group.as_bytes())?);
        let group = self.tables.state().group_by_name(&name)?;
        let pidfd = members::open(key)?;
        let account = match member.born {
            true => Some(Account::tenant(
                process::user(key.tgid)?,
                &process::cgroup(key.tgid)?,
                key,
            )),
            false => None,
        };
        if let Some(account) = &account {
            if !self.budget.try_charge(account, FDS_WATCH) {
                return Err(Error::NoSpace);
            }
        }
        self.watches.add(key, pidfd, account)?;
        self.add_member(group, key)?;
        self.joined.insert(hashed(key), member.joined);
        Ok(())
    }

    /// Sets the limits of groups that could not be set before. Some need others first.
    pub(super) fn restore_limits(&mut self) {
        let mut before = usize::MAX;
        while self.unrestored.len() < before {
            before = self.unrestored.len();
            for (place, name) in self.unrestored.clone() {
                if self.restore_limit(&place, &name).is_ok() {
                    self.unrestored.remove(&(place, name));
                }
            }
        }
    }

    fn restore_limit(&mut self, place: &Place, name: &str) -> Result<(), Error> {
        let values = self.keeper.kept().groups.get(name).ok_or(Error::NotFound)?;
        let value = values.get(place).ok_or(Error::NotFound)?.clone();
        let name = parse::name(name.as_bytes())?;
        let group = self.tables.state().group_by_name(&name)?;
        self.restore(place, &value, |gpu| match gpu {
            Some(gpu) => Scope::Pool(Owner::Group(group), gpu),
            None => Scope::Group(group),
        })
    }

    /// Sets the limits that a process had under the last daemon, once it has a page.
    pub(super) fn restore_own(&mut self, process: ProcKey) {
        let values = self.keeper.kept().processes.get(&hashed(process)).cloned();
        for (place, value) in values.into_iter().flatten() {
            let scope = |gpu: Option<GpuId>| match gpu {
                Some(gpu) => Scope::Pool(Owner::Proc(process), gpu),
                None => Scope::Root,
            };
            // A GPU where it has no page yet has its turn when it has one.
            let _ = self.restore(&place, &value, scope);
        }
    }

    fn restore(
        &mut self,
        (gpu, file): &Place,
        value: &str,
        scope: impl FnOnce(Option<GpuId>) -> Scope,
    ) -> Result<(), Error> {
        let known = |(id, address): (&GpuId, &String)| (address == gpu).then_some(*id);
        let gpu = match gpu.as_str() {
            NO_GPU => None,
            _ => Some(self.addresses.iter().find_map(known).ok_or(Error::Gone)?),
        };
        let scope = scope(gpu);
        let place = scope.place().ok_or(Error::Gone)?;
        let entry = files::find(place, file).ok_or(Error::NotFound)?;
        self.set(entry.file, scope, value.as_bytes())
    }

    /// Keeps a write that has succeeded.
    pub(super) fn keep_write(&mut self, file: File, scope: Scope, text: &[u8]) {
        // What follows from a write is kept where it happens, and a reset is no limit.
        if matches!(file, File::Control | File::GroupProcs | File::GmemPeak) {
            return;
        }
        let value = String::from_utf8_lossy(text).trim().to_owned();
        let name = files::entry(file).name.to_owned();
        let (owner, gpu) = match scope {
            Scope::Group(group) => (Owner::Group(group), None),
            Scope::Pool(owner, gpu) => (owner, self.addresses.get(&gpu)),
            _ => return,
        };
        let place = (gpu.map_or(NO_GPU.into(), String::clone), name);
        let change = match owner {
            Owner::Proc(process) => Change::Own(hashed(process), place, value),
            Owner::Group(group) => {
                let Some(name) = self.group_name(group) else {
                    return;
                };
                self.unrestored.remove(&(place.clone(), name.clone()));
                Change::Set(name, place, value)
            }
        };
        self.keeper.keep(change);
    }

    /// Keeps that a process is a member of a group.
    pub(super) fn keep_member(&mut self, group: GroupId, process: ProcKey, born: bool) {
        let joined = self.joined.get(&hashed(process)).copied().unwrap_or(0);
        if let Some(group) = self.group_name(group) {
            let membership = Membership {
                group,
                joined,
                born,
            };
            self.keeper.keep(Change::Join(hashed(process), membership));
        }
    }

    fn group_name(&self, group: GroupId) -> Option<String> {
        self.tree.name(DirPath::Group(group)).map(str::to_owned)
    }
}
