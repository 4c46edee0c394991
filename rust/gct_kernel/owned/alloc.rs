// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Allocates the parts of owned channels before the resource manager allocates the channels.

use super::client::Refused;
use super::gpu::Gpu;
use super::kit::{Home, Kit};
use super::lane::Lane;
use super::lent::Lent;
use super::limited::{Limited, Room};
use super::limits::{move_workers, terms};
use super::{record_made, refill, room_beside, Inner, Parts, Pending, Record};
use crate::bindings::gct_call;
use crate::serve;
use crate::state::Glue;
use gct_core::engine::Site;
use gct_core::ids::FileId;
use gct_core::owned::shadow::Seen;
use gct_core::owned::uvm::{self, Several};
use gct_core::owned::{self, Request};
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
/// ([`Site::must_be_owned`]), or it would stand still ([`Seen::stands_still`]).
pub(crate) fn enter(
    glue: &Glue,
    file: FileId,
    call: &Call,
    request: Option<Request>,
    room: &mut gct_call,
) -> Result<(), Status> {
    if !call.allocates_channel() {
        return Ok(());
    }
    let site = glue.locked(|state| state.site_of_owned(file, call));
    let record = match site {
        Some(_) => record_made(glue, file).ok(),
        None => glue.owned.record(file),
    };
    let seen = record.as_ref().and_then(|record| {
        let number = glue.owned.numbers.fetch_add(1, Relaxed);
        seen(record, call, request?, number)
    });
    if let (Some(record), Some(seen)) = (&record, &seen) {
        let inner = record.inner.lock();
        if inner.past.stops(seen, &inner.channels) {
            return Err(control::NOT_SUPPORTED);
        }
    }
    let parts = match (site, &record) {
        (None, _) => Parts::Plain,
        (Some(site), Some(record)) => match parts(glue, record, call, site, seen, room) {
            Ok(parts) => parts,
            Err(Refused) if site.must_be_owned => return Err(control::NOT_SUPPORTED),
            Err(Refused) => Parts::Native,
        },
        (Some(site), None) if site.must_be_owned => return Err(control::NOT_SUPPORTED),
        (Some(_), None) => Parts::Native,
    };
    if let Some(record) = record {
        record.inner.lock().pending = Some(Pending { seen, parts });
    }
    Ok(())
}

/// Returns the memory object in which the ring of a channel lies that is about to be allocated, if
/// that is known.
pub(crate) fn ring_memory(
    glue: &Glue,
    file: FileId,
    call: &Call,
    request: Request,
) -> Option<Handle> {
    let record = glue.owned.record(file)?;
    seen(&record, call, request, 0).map(|seen| seen.mailbox.ring.memory)
}

/// Returns where the parameters of a channel say that it lies, and its address space.
fn seen(record: &Record, call: &Call, request: Request, number: u64) -> Option<Seen> {
    let inner = record.inner.lock();
    let names = [call.client, call.parent];
    let mailbox = record
        .tenant
        .with_mappings(|mappings| request.mailbox(mappings, &inner.spaces, names));
    let (mailbox, space) = mailbox.ok()?;
    Some(Seen {
        number,
        client: call.client,
        channel: call.object,
        mailbox,
        space,
    })
}

/// Allocates the parts of a channel that is to be owned.
///
/// # Errors
///
/// The channel stays native.
fn parts(
    glue: &Glue,
    record: &Record,
    call: &Call,
    site: Site,
    seen: Option<Seen>,
    room: &mut gct_call,
) -> Result<Parts, Refused> {
    let Seen { mailbox, space, .. } = seen.ok_or(Refused)?;
    let inner = record.inner.lock();
    let uvm = uvm::find(&inner.uvm, call.client, space).map_err(|_: Several| Refused)?;
    let uvm = uvm.copied();
    drop(inner);
    let home = uvm.as_ref().map_or(Home::Rm(space), Home::Uvm);
    let (limited, gpu) = attend(glue, record, site.gpu, site.shares_group)?;
    let made = || {
        let kit = Kit::new(gpu.client.clone(), call.client, &home, &mailbox)?;
        let number = glue.owned.numbers.fetch_add(1, Relaxed);
        let lane = Lane::new(
            number,
            [call.client, space],
            kit,
            &mailbox,
            record.tenant.clone(),
            limited,
        )?;
        let lent = Lent::new(glue, lane.kit(), call.client, site.device)?;
        Ok((lane, number, lent))
    };
    let (lane, number, lent) = match made() {
        Ok(made) => made,
        Err(refused) => {
            glue.owned.close(gpu);
            return Err(refused);
        }
    };
    for swap in owned::swaps(lane.kit().ring_address, lent.name) {
        // Every swap fits: the request was read from the same parameters.
        serve::swap(room, &swap);
    }
    Ok(Parts::Owned {
        lane,
        number,
        gpu,
        lent,
    })
}

/// Returns the process of a file on a GPU, and the GPU with its worker, for a channel there.
/// `shares_group` says that the channel is in another process's channel group. The caller closes
/// the GPU unless a lane has it.
pub(super) fn attend(
    glue: &Glue,
    record: &Record,
    gpu: u32,
    shares_group: bool,
) -> Result<(Arc<Limited>, Arc<Gpu>), Refused> {
    let limited = limited(glue, record, gpu)?;
    if shares_group {
        limited.share_group();
    }
    let (gpu, is_new) = glue.owned.open(gpu)?;
    if is_new {
        move_workers(glue);
    }
    Ok((limited, gpu))
}

/// Returns the process of a file on a GPU, with the limits of now. Makes it if there is none.
fn limited(glue: &Glue, record: &Record, gpu: u32) -> Result<Arc<Limited>, Refused> {
    let known = |inner: &Inner| {
        let mut all = inner.limited.iter();
        all.find(|limited| limited.gpu == gpu).cloned()
    };
    let mut made: Option<Arc<Limited>> = None;
    loop {
        // A write that comes later finds what is made here.
        let updating = glue.owned.updating.lock();
        if let Some(known) = known(&record.inner.lock()) {
            return Ok(known);
        }
        let terms = terms(glue, record.file, gpu).ok_or(Refused)?;
        let limited = glue.owned.limited_of(terms.proc, gpu).or_else(|| {
            // The limits may have changed since.
            made.as_ref().inspect(|made| made.set(&terms)).cloned()
        });
        let Some(limited) = limited else {
            drop(updating);
            made = Some(Limited::new(gpu, &terms, Room::new()?)?);
            continue;
        };
        let mut inner = record.inner.lock();
        if inner.limited.push_within_capacity(limited.clone()).is_ok() {
            return Ok(limited);
        }
        let count = inner.limited.len();
        drop((inner, updating));
        let mut room = room_beside(count)?;
        refill(&mut record.inner.lock().limited, &mut room);
    }
}
