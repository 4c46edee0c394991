// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads and writes the files of the tree.
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
use gct_core::iface::files::{File, FILES};
use gct_core::iface::parse::{self, Command, PidArg};
use kernel::bindings;
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

/// Returns an open file's entry in the core's table and its directory's scope.
///
/// # Safety
///
/// `file` is an open file of the tree, and debugfs holds off its removal while the reference is
/// used.
unsafe fn subject<'a>(file: *mut bindings::file) -> Option<(File, &'a Scope)> {
    // SAFETY: `file` is an open file of debugfs.
    let number = unsafe { bindings::debugfs_get_aux(file) }.addr();
    let entry = FILES.get(number)?;
    // SAFETY: an open file has an inode. Its private data is the scope that `Dentry::add_file`
    // passed, and the scope is not freed before the file is removed.
    let scope = unsafe { &*(*(*file).f_inode).i_private.cast::<Scope>() };
    Some((entry.file, scope))
}

/// Writes text to a `seq_file`. If its buffer is too small, `seq_read` doubles it and calls again.
struct SeqText(*mut bindings::seq_file);

impl fmt::Write for SeqText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: `show` made this from a live seq_file that nobody else uses.
        match unsafe { bindings::seq_write(self.0, text.as_ptr().cast(), text.len()) } {
            0 => Ok(()),
            _ => Err(fmt::Error),
        }
    }
}

/// Reads a file, for `seq_read`.
///
/// # Errors
///
/// A negative errno.
///
/// # Safety
///
/// `seq` belongs to an open file of the tree, nobody else uses it during the call, and debugfs
/// holds off the file's removal.
pub(crate) unsafe fn show(glue: &Glue, seq: *mut bindings::seq_file) -> Result<(), c_int> {
    // SAFETY: `seq_open` stored the open file, which outlives its seq_file. debugfs holds off its
    // removal.
    let (file, scope) = unsafe { subject((*seq).file.cast_mut()) }.ok_or(errno(Error::Gone))?;
    let mut text = SeqText(seq);
    if matches!(
        file,
        File::ComputeStat | File::ComputeEvents | File::TpcEffective
    ) {
        owned::report(glue);
    }
    if let (File::GpuWorkerStat, Scope::Gpu(gpu)) = (file, scope) {
        if let Some(id) = glue.locked(|state| state.rm_id(*gpu)) {
            owned::report_cost(glue, id);
        }
    }
    if matches!(file, File::GmemCurrent | File::GmemPeak | File::GmemStat) {
        uvm::settle(glue);
    }
    let outcome = match (file, scope) {
        (File::GroupProcs, Scope::Group(group)) => show_procs(glue, *group, &mut text),
        _ => glue.with(|state, _| state.show(file, *scope, &mut text)),
    };
    // SAFETY: `seq` is live and nobody else uses it.
    let overflowed = unsafe { (*seq).count == (*seq).size };
    match outcome {
        // seq_read makes the same test, enlarges the buffer and calls again.
        Err(_) if overflowed => Ok(()),
        outcome => outcome.map_err(errno),
    }
}

fn show_procs(glue: &Glue, group: GroupId, text: &mut SeqText) -> Result<(), Error> {
    let members = glue.members_of(group)?;
    glue.with(|state, _| state.show_procs(group, &members, &mut process::visible_pid, text))
}

/// Writes a file: all of the write takes effect, or nothing. `from` is an address of user space.
///
/// # Errors
///
/// A negative errno.
///
/// # Safety
///
/// `file` is an open file of the tree, and debugfs holds off its removal.
pub(crate) unsafe fn write(
    glue: &ArcBorrow<'_, Glue>,
    file: *mut bindings::file,
    from: *const u8,
    count: usize,
) -> Result<(), c_int> {
    // SAFETY: the caller's contract.
    let (file, scope) = unsafe { subject(file) }.ok_or(errno(Error::Gone))?;
    if file == File::GmemPeak {
        uvm::settle(glue);
    }
    if count > WRITE_BYTES_MAX {
        return Err(errno(Error::Syntax));
    }
    let mut bytes = KVec::new();
    UserSlice::new(UserPtr::from_addr(from.addr()), count)
        .read_all(&mut bytes, GFP_KERNEL)
        .map_err(|error| error.to_errno())?;
    let outcome = match (file, scope) {
        (File::Control, _) => control(glue, &bytes),
        (File::GroupProcs, Scope::Group(group)) => join(glue, *group, &bytes),
        (File::GpuWorkerCpus, Scope::Gpu(_)) => {
            parse::cpus(&bytes).and_then(|cpus| match owned::is_online(&cpus) {
                true => glue.locked(|state| state.write(file, *scope, &bytes)),
                false => Err(Error::Range),
            })
        }
        _ => {
            let pm = SystemPmGuard::interruptible()?;
            let write = || exec::write(*glue, &pm, file, *scope, &bytes);
            match file {
                File::GmemLimit => uvm::write_limit(glue, &pm, *scope, &bytes, write),
                _ => write(),
            }
        }
    };
    match (file, scope) {
        (File::Control | File::GroupProcs, _) => exec::send_after_move(*glue),
        (_, Scope::Pool(Owner::Group(group), _)) => glue.bind(*group),
        _ => {}
    }
    if let (File::GroupProcs | File::GroupCgroup, Scope::Group(group)) = (file, scope) {
        uvm::shrink_group(glue, *group);
    }
    if file == File::GpuWorkerCpus {
        owned::move_workers(glue);
    }
    // Whose limits a process has may change with its group.
    if gct_core::owned::concerns(file) {
        owned::update(glue);
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
