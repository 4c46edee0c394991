// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Allocates the parts of owned channels before the resource manager allocates the channels.

use super::client::Refused;
use super::kit::{Home, Kit};
use super::lane::Lane;
use super::limited::Limited;
use super::limits::{move_workers, terms};
use super::{record_made, Pending, Record};
use crate::bindings::{self, gct_call};
use crate::serve;
use crate::state::Glue;
use gct_core::engine::Site;
use gct_core::ids::FileId;
use gct_core::owned::uvm::{self, Several};
use gct_core::owned::{self, Native, Request};
use gct_core::rmapi::control::{self, Status};
use gct_core::rmapi::{Call, Handle};
use kernel::prelude::*;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;

/// Allocates the parts of a channel that is to be owned, and replaces its parameters, before its
/// ioctl runs. `request` is read from the parameters, if they are a channel's.
///
/// # Errors
///
/// The status with which the ioctl is refused: the channel cannot be owned, and must be
/// ([`Site::must_be_owned`]).
pub(crate) fn enter(
    glue: &Glue,
    file: FileId,
    call: &Call,
    request: Option<Request>,
    room: &mut gct_call,
) -> Result<(), Status> {
    let Some(site) = glue.locked(|state| state.site_of_owned(file, call)) else {
        return Ok(());
    };
    let record = record_made(glue, file);
    let made = record.and_then(|record| {
        let pending = pending(glue, &record, call, site, request, room);
        Ok((pending, record))
    });
    match made {
        Ok((Ok(pending), record)) => record.inner.lock().pending = Some(pending),
        _ if site.must_be_owned => return Err(control::NOT_SUPPORTED),
        Ok((Err(Refused), record)) => record.inner.lock().pending = Some(Pending::Native),
        Err(Refused) => {}
    }
    Ok(())
}

/// Allocates the parts of a channel.
///
/// # Errors
///
/// The channel stays native.
fn pending(
    glue: &Glue,
    record: &Record,
    call: &Call,
    site: Site,
    request: Option<Request>,
    room: &mut gct_call,
) -> Result<Pending, Refused> {
    let request = request.ok_or(Refused)?;
    let inner = record.inner.lock();
    let names = [call.client, call.parent];
    let mailbox = record
        .tenant
        .with_mappings(|mappings| request.mailbox(mappings, &inner.spaces, names));
    let (mailbox, space) = mailbox.map_err(|_: Native| Refused)?;
    let uvm = uvm::find(&inner.uvm, call.client, space).map_err(|_: Several| Refused)?;
    let uvm = uvm.copied();
    drop(inner);
    let home = uvm.as_ref().map_or(Home::Rm(space), Home::Uvm);
    let limited = limited(glue, record, site.gpu)?;
    if site.shares_group {
        limited.share_group();
    }
    let (gpu, is_new) = glue.owned.open(site.gpu)?;
    if is_new {
        move_workers(glue);
    }
    let made = || {
        let kit = Kit::new(gpu.client.clone(), call.client, &home, &mailbox)?;
        // SAFETY: has no preconditions. A random name cannot be guessed by the tenant.
        let name = unsafe { bindings::gct_helper_random() };
        // CAST: the low half.
        let name = (name as Handle).max(1);
        let number = glue.owned.lanes.fetch_add(1, Relaxed);
        let lane = Lane::new(number, kit, &mailbox, record.tenant.clone(), limited)?;
        lane.kit().lend_userd(call.client, site.device, name)?;
        Ok((lane, number, name))
    };
    let (lane, number, name) = match made() {
        Ok(made) => made,
        Err(refused) => {
            glue.owned.close(gpu);
            return Err(refused);
        }
    };
    for swap in owned::swaps(lane.kit().ring_address, name) {
        // Every swap fits: the request was read from the same parameters.
        serve::swap(room, &swap);
    }
    Ok(Pending::Owned {
        lane,
        number,
        gpu,
        name,
    })
}

/// Returns the process of a file on a GPU, with the limits of now. Makes it if there is none.
fn limited(glue: &Glue, record: &Record, gpu: u32) -> Result<Arc<Limited>, Refused> {
    // A write that comes later finds what is made here.
    let _updating = glue.owned.updating.lock();
    let inner = record.inner.lock();
    let known = inner
        .limited
        .iter()
        .find(|limited| limited.gpu == gpu)
        .cloned();
    drop(inner);
    if let Some(known) = known {
        return Ok(known);
    }
    let terms = terms(glue, record.file, gpu).ok_or(Refused)?;
    let made = match glue.owned.limited_of(terms.proc, gpu) {
        Some(known) => known,
        None => Limited::new(gpu, &terms)?,
    };
    let limited = &mut record.inner.lock().limited;
    limited.push(made.clone(), GFP_KERNEL_ACCOUNT)?;
    Ok(made)
}
