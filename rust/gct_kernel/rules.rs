// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Refuses ioctls by what they ask for, before the core is asked what they would change.

use crate::state::Glue;
use crate::{owned, process};
use gct_core::ids::FileId;
use gct_core::rmapi::allow::{self, Asked};
use gct_core::rmapi::control::Status;
use gct_core::rmapi::{self, Action, Call};
use kernel::prelude::*;

/// Decides whether a rule forbids an ioctl ([`allow`]). While nobody is governed, none does. A lock
/// is taken only for what would be refused.
///
/// # Errors
///
/// The status with which the ioctl is refused.
pub(crate) fn obey(
    glue: &Glue,
    file: Option<FileId>,
    escape: u32,
    bytes: &[u8],
) -> Result<(), Status> {
    if !owned::is_owning() {
        return Ok(());
    }
    leave_mapping(glue, file, escape, bytes)?;
    let Some(asked) = allow::refused(escape, bytes) else {
        return Ok(());
    };
    forbid(glue, file, &asked)
}

/// Refuses what a rule forbids to files for which the rules hold. The kernel's log has some of the
/// refusals ([`logs_refusal`](gct_core::state::State::logs_refusal)).
///
/// # Errors
///
/// The status with which the ioctl is refused.
pub(crate) fn forbid(glue: &Glue, file: Option<FileId>, asked: &Asked) -> Result<(), Status> {
    let is_recorded = file.is_some_and(|file| glue.owned.has_record(file));
    let (answer, is_logged) = glue.locked(|state| {
        let answer = state.forbid(file, is_recorded, asked);
        (answer, state.logs_refusal())
    });
    if answer.is_err() && is_logged {
        let (number, rule) = (asked.number, asked.rule.name());
        let process = process::current().tgid;
        pr_info!("control or class {number:#x} of process {process} is refused: {rule}\n");
    }
    answer
}

/// Decides whether a call duplicates what the driver has lent.
///
/// # Errors
///
/// The status with which the ioctl is refused.
pub(crate) fn leave_lent(glue: &Glue, call: &Call) -> Result<(), Status> {
    match call.action {
        Action::Dup {
            source_client,
            source,
        } if owned::is_lent(glue, source_client, source) => Err(rmapi::INSUFFICIENT_PERMISSIONS),
        _ => Ok(()),
    }
}

/// Decides whether an ioctl may say by which address a mapping is known. The resource manager does
/// not ask whose the client is, and C ends mappings by their addresses (`gct_map.c`).
///
/// # Errors
///
/// The status with which the ioctl is refused.
fn leave_mapping(
    glue: &Glue,
    file: Option<FileId>,
    escape: u32,
    bytes: &[u8],
) -> Result<(), Status> {
    let client = rmapi::updated_client(escape, bytes);
    let is_foreign = |client| glue.locked(|state| state.is_client_of_another(file, client));
    match client.is_some_and(is_foreign) {
        true => Err(rmapi::INSUFFICIENT_PERMISSIONS),
        false => Ok(()),
    }
}

/// Decides whether an ioctl on a file that is not followed may run. No limit bound the process that
/// opened the file. The process that uses it may be under a limit now.
///
/// # Errors
///
/// The status with which the ioctl is refused.
pub(crate) fn admit_unfollowed(glue: &Glue, call: &Call) -> Result<(), Status> {
    if let Some(status) = glue.locked(|state| state.control_of_unknown_refused(call)) {
        return Err(status);
    }
    let mut buffer = process::CGROUP_BUFFER;
    let cgroup = process::cgroup(&mut buffer);
    match call.concerns_limits() && glue.binds_opener(process::current(), cgroup) {
        true => Err(rmapi::INSUFFICIENT_RESOURCES),
        false => Ok(()),
    }
}
