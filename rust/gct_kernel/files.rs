// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads and writes files of the tree for debugfs and for `/dev/gctgroup`.
//!
//! This module copies bytes in and text out; the core interprets both. Only `control` takes the
//! tree's lock. It is in the root, which is not removed under that lock.

use crate::process::{self, Found};
use crate::rm::SystemPmGuard;
use crate::state::Glue;
use crate::{exec, owned, uvm};
use core::fmt;
use gct_core::error::Error;
use gct_core::ids::{GroupId, Owner, ProcKey, Scope};
use gct_core::iface::files::File;
use gct_core::iface::parse::{self, Command, PidArg};
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::ArcBorrow;
use kernel::uaccess::{UserPtr, UserSlice};

/// Longest write that is accepted. No file's form needs more.
const WRITE_BYTES_MAX: usize = kernel::page::PAGE_SIZE;

/// Returns the negative errno of an error of the core.
pub(crate) fn errno(error: Error) -> c_int {
    error.errno().wrapping_neg()
}

/// Prints a file.
///
/// # Errors
///
/// Those of the core, and [`Error::NoSpace`] when `out` is full.
pub(crate) fn show(
    glue: &Glue,
    file: File,
    scope: Scope,
    out: &mut dyn fmt::Write,
) -> Result<(), Error> {
    if matches!(
        file,
        File::ComputeStat | File::ComputeEvents | File::TpcEffective
    ) {
        owned::report(glue);
    }
    if let (File::GpuWorkerStat, Scope::Gpu(gpu)) = (file, scope) {
        if let Some(id) = glue.locked(|state| state.rm_id(gpu)) {
            owned::report_cost(glue, id);
        }
    }
    if matches!(file, File::GmemCurrent | File::GmemPeak | File::GmemStat) {
        uvm::settle(glue);
    }
    match (file, scope) {
        (File::GroupProcs, Scope::Group(group)) => show_procs(glue, group, out),
        _ => glue.with(|state, _| state.show(file, scope, out)),
    }
}

fn show_procs(glue: &Glue, group: GroupId, out: &mut dyn fmt::Write) -> Result<(), Error> {
    let members = glue.members_of(group)?;
    glue.with(|state, _| state.show_procs(group, &members, &mut process::visible_pid, out))
}

/// Copies the text of a write from an address of user space.
///
/// # Errors
///
/// A negative errno.
pub(crate) fn text_of_write(from: usize, count: usize) -> Result<KVec<u8>, c_int> {
    if count > WRITE_BYTES_MAX {
        return Err(errno(Error::Syntax));
    }
    let mut bytes = KVec::new();
    UserSlice::new(UserPtr::from_addr(from), count)
        .read_all(&mut bytes, GFP_KERNEL)
        .map_err(|error| error.to_errno())?;
    Ok(bytes)
}

/// Writes a file: all of the write takes effect, or nothing.
///
/// # Errors
///
/// A negative errno.
pub(crate) fn write(
    glue: &ArcBorrow<'_, Glue>,
    file: File,
    scope: Scope,
    bytes: &[u8],
) -> Result<(), c_int> {
    if file == File::GmemPeak {
        uvm::settle(glue);
    }
    let outcome = match (file, scope) {
        (File::Control, _) => control(glue, bytes),
        (File::GroupProcs, Scope::Group(group)) => join(glue, group, bytes),
        (File::GpuWorkerCpus, Scope::Gpu(_)) => {
            parse::cpus(bytes).and_then(|cpus| match owned::is_online(&cpus) {
                true => glue.locked(|state| state.write(file, scope, bytes)),
                false => Err(Error::Range),
            })
        }
        _ => {
            let pm = SystemPmGuard::interruptible()?;
            let write = || exec::write(*glue, &pm, file, scope, bytes);
            match file {
                File::GmemLimit => uvm::write_limit(glue, &pm, scope, bytes, write)?,
                _ => write(),
            }
        }
    };
    match (file, scope) {
        (File::Control | File::GroupProcs, _) => exec::send_after_move(*glue),
        (_, Scope::Pool(Owner::Group(group), _)) => glue.bind(group),
        _ => {}
    }
    if let (File::GroupProcs | File::GroupCgroup, Scope::Group(group)) = (file, scope) {
        uvm::shrink_group(glue, group);
    }
    if file == File::GpuWorkerCpus {
        owned::move_workers(glue);
    }
    // Whose limits a process has may change with its group.
    if gct_core::owned::concerns(file) {
        owned::update(glue);
        owned::shadow(glue);
        exec::pass_pauses(*glue);
    }
    outcome.map_err(errno)
}

/// Runs `create NAME` or `remove NAME`. When it returns, the directories exist or are gone.
fn control(glue: &Glue, bytes: &[u8]) -> Result<(), Error> {
    let command = parse::command(bytes)?;
    let mut tree = glue.tree.lock();
    let outcome = match command {
        Command::Create(name) => {
            tree.watch();
            glue.with(|state, _| state.group_create(&name))
                .map(|group| glue.bind(group))
        }
        Command::Remove(name) => glue.with(|state, members| {
            let group = state.group_by_name(&name)?;
            let count = members.with(|members| members.count(group));
            state.group_remove(group, count)
        }),
    };
    exec::run(glue, &mut tree);
    tree.unwatch_if_idle();
    outcome
}

/// Moves a process into a group.
fn join(glue: &Glue, group: GroupId, bytes: &[u8]) -> Result<(), Error> {
    let found = match parse::pid(bytes)? {
        PidArg::Own => Found::own(),
        PidArg::Pid(pid) => Found::new(pid)?,
    };
    if !process::is_watching() {
        return Err(Error::Unsupported);
    }
    let key = found.key();
    glue.with(|state, members| {
        state.group_check(group)?;
        let before = members.with(|members| members.put(key, group))?;
        state.member_moved(key, Some(group)).inspect_err(|_| {
            members.with(|members| restore(members, key, before));
        })
    })?;
    // The exit may have been reported before the process became a member. If the process is not
    // dead yet, its exit will be reported later.
    if found.is_dead() {
        glue.with(|state, members| {
            members.with(|members| members.remove(key));
            state.member_moved(key, None)
        })?;
        return Err(Error::NoProcess);
    }
    Ok(())
}

/// Restores a process's former group. Its slot still exists, so this needs no storage.
fn restore(members: &mut gct_core::members::Members<'_>, key: ProcKey, before: Option<GroupId>) {
    match before {
        Some(group) => drop(members.put(key, group)),
        None => drop(members.remove(key)),
    }
}
