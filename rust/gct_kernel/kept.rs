// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Has the core follow memory of the resource manager that nvidia-uvm maps, or a channel is made
//! of.

use crate::hooks::with;
use crate::state::Glue;
use crate::{owned, process};
use gct_core::engine::{Kept, KeptNames};
use gct_core::error::Error;
use gct_core::failures::Failure;
use gct_core::ids::FileId;
use gct_core::owned::Request;
use gct_core::rmapi::channel::ChannelMemory;
use gct_core::rmapi::control::Status;
use gct_core::rmapi::{self, Call, Handle};
use kernel::sync::ArcBorrow;

/// Keeps memory for an address space of nvidia-uvm. Returns its name there; 0 if nothing is
/// charged for it. `control` is the client's control file, whose ioctls the caller holds off.
///
/// # Errors
///
/// The memory cannot be followed, and the process of the space is under a limit.
pub(crate) fn keep(
    glue: &ArcBorrow<'_, Glue>,
    control: Option<FileId>,
    space: Option<FileId>,
    client: Handle,
    object: Handle,
) -> Result<u32, Status> {
    let is_owner = |control: &FileId| glue.locked(|state| state.has_client(*control, client));
    let failed = match (control.filter(is_owner), space) {
        (Some(_), Some(space)) => match with(glue, |state| state.keep(space, client, object)) {
            Ok(kept) => return Ok(kept.map_or(0, Kept::raw)),
            Err(error) => error,
        },
        _ => Error::Gone,
    };
    let (failure, status) = match failed {
        // Others' handles may come to mean other memory, unseen here.
        Error::Gone => (Some(Failure::Client), rmapi::INSUFFICIENT_PERMISSIONS),
        Error::NoSpace => (Some(Failure::Limit), rmapi::INSUFFICIENT_RESOURCES),
        // Missing memory is counted already.
        _ => (None, rmapi::NO_MEMORY),
    };
    if let Some(failure) = failure {
        glue.count(failure);
    }
    match process::is_bound(glue, space) {
        true => Err(status),
        false => Ok(0),
    }
}

/// Ends what one [`keep`] has begun. The last one uncharges the memory.
pub(crate) fn let_go(glue: &ArcBorrow<'_, Glue>, space: FileId, name: u32) {
    if let Some(kept) = Kept::from_raw(name) {
        // Who is charged now may need controls.
        let _ = with(glue, |state| {
            state.let_go(space, kept);
            Ok(())
        });
    }
}

/// Keeps the memory that a channel is to be made of, for as long as there is the channel.
///
/// # Errors
///
/// Those of [`State::keep_for_channel`](gct_core::state::State::keep_for_channel).
pub(crate) fn for_channel(
    glue: &Glue,
    file: FileId,
    call: &Call,
    memory: Option<ChannelMemory>,
    request: Option<Request>,
) -> Result<KeptNames, Error> {
    let Some(ChannelMemory([error, userd, ecc])) = memory else {
        return Ok(KeptNames::default());
    };
    let ring = request.and_then(|request| owned::ring_memory(glue, file, call, request));
    let memory = [error, userd, ecc, ring.unwrap_or(0)];
    glue.with(|state, _| state.keep_for_channel(file, call.client, memory))
}
