// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gives tenants' channels rings of the driver's, where `channel.owned` asks for it.
//!
//! An open file has at most one ioctl between [`enter`] and [`leave`]. What [`enter`] stores in the
//! file's [`Record`] is therefore for the [`leave`] of the same ioctl.

mod client;
mod gpu;
mod tenant;

use crate::bindings::{self, gct_call};
use crate::serve::{self, Served};
use crate::state::Glue;
use client::{Kit, Refused};
use gct_core::engine::Site;
use gct_core::ids::FileId;
use gct_core::owned::maps::{Change, Space, SPACES_MAX};
use gct_core::owned::{self, Native, Request};
use gct_core::rmapi::control::{self, Status};
use gct_core::rmapi::{Action, Call, Class, Handle};
use gpu::{Gpu, Lane, Limited};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_mutex, Arc, Mutex};
use tenant::Tenant;

pub(crate) use gpu::round;

/// The records of open files, and the GPUs that have owned channels.
#[pin_data]
pub(crate) struct Owned {
    #[pin]
    files: Mutex<KVVec<Arc<Record>>>,
    /// Number of records. While it is 0, the ioctls of all tenants take no lock here.
    records: Atomic<usize>,
    /// Held while a GPU is opened. No other lock of ours is held then.
    #[pin]
    gpus: Mutex<KVVec<Opened>>,
    /// Held while limits are taken over. No other lock of ours is held then.
    #[pin]
    updating: Mutex<()>,
    /// Number of the next lane.
    lanes: Atomic<u64>,
}

/// An open GPU, and the number of channels that use it or are being allocated on it.
struct Opened {
    gpu: Arc<Gpu>,
    users: usize,
}

/// State of an open file whose process has, or had, `channel.owned` set.
#[pin_data]
struct Record {
    file: FileId,
    tenant: Arc<Tenant>,
    #[pin]
    inner: Mutex<Inner>,
}

struct Inner {
    /// The tenant on each GPU where it had an owned channel.
    limited: KVVec<Arc<Limited>>,
    spaces: KVVec<Space>,
    channels: KVVec<Channel>,
    pending: Option<Pending>,
}

/// An owned channel. The worker has its lane.
struct Channel {
    client: Handle,
    channel: Handle,
    lane: u64,
    gpu: Arc<Gpu>,
}

/// A channel that the resource manager is allocating.
enum Pending {
    /// The channel gets its tenant's ring.
    Native,
    /// The channel gets a ring of the driver's. During the allocation the driver's USERD has the
    /// handle `name` in the tenant's client.
    Owned {
        lane: KBox<Lane>,
        number: u64,
        gpu: Arc<Gpu>,
        name: Handle,
    },
}

impl Owned {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            files <- new_mutex!(KVVec::new(), "gct::owned_files"),
            records: Atomic::new(0),
            gpus <- new_mutex!(KVVec::new(), "gct::owned_gpus"),
            updating <- new_mutex!((), "gct::owned_updating"),
            lanes: Atomic::new(0),
        })
    }

    /// Returns the record of a file, if it has one.
    fn record(&self, file: FileId) -> Option<Arc<Record>> {
        // The file's own record was counted by an earlier ioctl of the file, which the driver has
        // ordered before this one.
        if self.records.load(Relaxed) == 0 {
            return None;
        }
        let files = self.files.lock();
        files.iter().find(|record| record.file == file).cloned()
    }

    /// Returns the record of the next file after one, in the order of their numbers. Records may
    /// come and go between two calls.
    fn record_after(&self, last: Option<u64>) -> Option<Arc<Record>> {
        let files = self.files.lock();
        let later = files
            .iter()
            .filter(|record| last.is_none_or(|last| record.file.raw() > last));
        later.min_by_key(|record| record.file.raw()).cloned()
    }

    /// Returns the record of a file. Makes it if there is none.
    fn record_made(&self, file: FileId) -> Result<Arc<Record>, Refused> {
        if let Some(record) = self.record(file) {
            return Ok(record);
        }
        let tenant = Tenant::new().map_err(|_| Refused)?;
        let record = Arc::pin_init(
            pin_init!(Record {
                file,
                tenant,
                inner <- new_mutex!(Inner {
                    limited: KVVec::new(),
                    spaces: KVVec::new(),
                    channels: KVVec::new(),
                    pending: None,
                }, "gct::owned_file"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
        .map_err(|_| Refused)?;
        // No other ioctl makes it too: a file has one ioctl here at a time.
        self.files.lock().push(record.clone(), GFP_KERNEL)?;
        self.records.fetch_add(1, Relaxed);
        Ok(record)
    }

    /// Adds a user to a GPU. The first one opens it.
    fn open(&self, id: u32) -> Result<Arc<Gpu>, Refused> {
        let mut gpus = self.gpus.lock();
        if let Some(opened) = gpus.iter_mut().find(|opened| opened.gpu.id == id) {
            opened.users = opened.users.checked_add(1).ok_or(Refused)?;
            return Ok(opened.gpu.clone());
        }
        gpus.reserve(1, GFP_KERNEL)?;
        let gpu = Gpu::open(id)?;
        let opened = Opened {
            gpu: gpu.clone(),
            users: 1,
        };
        gpus.push(opened, GFP_KERNEL)?;
        Ok(gpu)
    }

    /// Removes a user from a GPU. The last one ends the worker and the client.
    fn close(&self, gpu: Arc<Gpu>) {
        let mut gpus = self.gpus.lock();
        let at = gpus
            .iter()
            .position(|opened| Arc::ptr_eq(&opened.gpu, &gpu));
        let Some(at) = at else { return };
        let users = match gpus.get_mut(at) {
            Some(opened) => {
                opened.users = opened.users.saturating_sub(1);
                opened.users
            }
            None => return,
        };
        if users == 0 {
            let last = gpus.remove(at).ok();
            drop(gpus);
            gpu.stop();
            drop((last, gpu));
        }
    }

    /// Ends the lane of a channel that is gone or is about to be freed. The record has forgotten
    /// it.
    fn end(&self, record: &Record, channel: Channel) {
        drop(channel.gpu.take(channel.lane));
        let id = channel.gpu.id;
        let others = |other: &Channel| other.gpu.id == id;
        let is_last = !record.inner.lock().channels.iter().any(others);
        record.tenant.lane_ends(id, is_last);
        self.close(channel.gpu);
    }
}

/// Takes over what a write has changed. Lets the hooks pass calls that map memory, while an owner
/// is to have owned channels, and sets the limits of all tenants. Nothing is published under the
/// former ones any more when this returns.
pub(crate) fn update(glue: &Glue) {
    // Of two writes, the later one's limits stay.
    let _updating = glue.owned.updating.lock();
    let on = glue.locked(|state| state.wants_owned());
    // SAFETY: has no preconditions.
    unsafe { bindings::gct_helper_own(on) };
    each_limited(glue, |record, limited| {
        set_limits(glue, record.file, limited)
    });
}

fn set_limits(glue: &Glue, file: FileId, limited: &Limited) {
    let found = glue.locked(|state| state.launch_limits(file, limited.gpu));
    if let Some((limits, topology)) = found {
        limited.set(limits, topology);
    }
}

/// Runs `operation` for each tenant on each GPU where it had owned channels. No lock of ours is
/// held then.
fn each_limited(glue: &Glue, mut operation: impl FnMut(&Record, &Limited)) {
    if glue.owned.records.load(Relaxed) == 0 {
        return;
    }
    let mut last = None;
    while let Some(record) = glue.owned.record_after(last) {
        each_limited_of(&record, |limited| operation(&record, limited));
        last = Some(record.file.raw());
    }
}

fn each_limited_of(record: &Record, mut operation: impl FnMut(&Limited)) {
    for from in 0..usize::MAX {
        let limited = record.inner.lock().limited.get(from).cloned();
        let Some(limited) = limited else { break };
        operation(&limited);
    }
}

/// Has the core count the launches of all tenants' owned channels.
pub(crate) fn report(glue: &Glue) {
    each_limited(glue, |record, limited| report_of(glue, record, limited));
}

/// Has the core count the launches of a file that is about to be closed.
pub(crate) fn report_file(glue: &Glue, file: FileId) {
    if let Some(record) = glue.owned.record(file) {
        each_limited_of(&record, |limited| report_of(glue, &record, limited));
    }
}

fn report_of(glue: &Glue, record: &Record, limited: &Limited) {
    let (more, effective) = limited.report();
    glue.locked(|state| state.launched_through(record.file, limited.gpu, &more, effective));
}

/// Returns whether an owner is to have owned channels.
pub(crate) fn is_wanted() -> bool {
    // SAFETY: one aligned load of a number that is 0 or 1.
    unsafe { core::ptr::addr_of!(bindings::gct_owning).read_volatile() != 0 }
}

/// Allocates the parts of a channel that is to be owned, and replaces its parameters, before its
/// ioctl runs. `request` is read from the parameters, if they are a channel's.
///
/// # Errors
///
/// The status with which the ioctl is refused: the channel cannot be owned, and a limit that only
/// owned channels obey binds its tenant.
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
    let record = glue.owned.record_made(file);
    let made = record.and_then(|record| {
        let pending = pending(glue, &record, call, site, request, room);
        Ok((pending, record))
    });
    match made {
        Ok((Ok(pending), record)) => record.inner.lock().pending = Some(pending),
        _ if site.is_limited => return Err(control::NOT_SUPPORTED),
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
    drop(inner);
    let (mailbox, space) = mailbox.map_err(|_: Native| Refused)?;
    let limited = limited(glue, record, site.gpu)?;
    let gpu = glue.owned.open(site.gpu)?;
    let made = || {
        let kit = Kit::new(gpu.client.clone(), call.client, space, &mailbox)?;
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

/// Returns the tenant on a GPU, with the limits of now. Makes it if there is none.
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
    let made = Limited::new(gpu)?;
    set_limits(glue, record.file, &made);
    let limited = &mut record.inner.lock().limited;
    limited.push(made.clone(), GFP_KERNEL_ACCOUNT)?;
    Ok(made)
}

/// Records what an ioctl has made or freed. `served` are its parameters.
pub(crate) fn leave(glue: &Glue, file: FileId, call: &Call, served: Option<&Served>) {
    if let Action::Alloc { class, .. } = call.action {
        match class {
            Class::Channel => channel_made(glue, file, call),
            Class::ChannelGroup | Class::ContextShare if call.succeeded() => {
                space_known(glue, file, call, served);
            }
            _ => {}
        }
    }
    if call.action == Action::Free {
        freed(glue, file, call);
    }
}

/// Hands a channel that the resource manager has allocated to its worker, or ends its parts.
fn channel_made(glue: &Glue, file: FileId, call: &Call) {
    let Some(record) = glue.owned.record(file) else {
        return;
    };
    let pending = record.inner.lock().pending.take();
    let is_owned = match pending {
        None => return,
        Some(Pending::Native) => false,
        Some(Pending::Owned {
            mut lane,
            number,
            gpu,
            name,
        }) => {
            client::free(call.client, name);
            lane.is_channel([call.client, call.object]);
            let channel = Channel {
                client: call.client,
                channel: call.object,
                lane: number,
                gpu,
            };
            record.tenant.lane_begins();
            if !call.succeeded() || !keep(&record, &channel, lane) {
                glue.owned.end(&record, channel);
                return;
            }
            // INVARIANT: `keep` has made room.
            let _ = record.inner.lock().channels.push_within_capacity(channel);
            true
        }
    };
    if call.succeeded() {
        glue.locked(|state| state.owned_made(file, call.client, call.object, is_owned));
    }
}

/// Hands a lane to its worker. Reserves room for its channel in the record before.
fn keep(record: &Record, channel: &Channel, lane: KBox<Lane>) -> bool {
    let reserved = record.inner.lock().channels.reserve(1, GFP_KERNEL_ACCOUNT);
    reserved.is_ok() && channel.gpu.add(lane).is_ok()
}

/// Records the address space of a new channel group or context share.
fn space_known(glue: &Glue, file: FileId, call: &Call, served: Option<&Served>) {
    let wants = is_wanted() && glue.locked(|state| state.wants_owned_of(file));
    let space = served.and_then(|served| call.space_in(served.bytes()));
    let (true, Some(space)) = (wants, space) else {
        return;
    };
    let Ok(record) = glue.owned.record_made(file) else {
        return;
    };
    let spaces = &mut record.inner.lock().spaces;
    if spaces.len() < SPACES_MAX {
        let space = Space {
            client: call.client,
            object: call.object,
            space,
        };
        // Without the entry a channel there stays native, and `unowned` counts it.
        let _ = spaces.push(space, GFP_KERNEL_ACCOUNT);
    }
}

/// Drops the records of freed objects, and ends the lanes of channels that are gone.
fn freed(glue: &Glue, file: FileId, call: &Call) {
    let Some(record) = glue.owned.record(file) else {
        return;
    };
    if call.succeeded() {
        let (client, object) = (call.client, call.object);
        record.tenant.freed(client, object);
        let inner = &mut *record.inner.lock();
        retain(&mut inner.spaces, |space| !space.goes_with(client, object));
    }
    let mut at = 0;
    loop {
        let mut inner = record.inner.lock();
        let Some(channel) = inner.channels.get(at) else {
            break;
        };
        let named = (channel.client, channel.channel);
        if glue.locked(|state| state.is_channel_of(file, named.0, named.1)) {
            at = at.saturating_add(1);
            continue;
        }
        let gone = inner.channels.remove(at).ok();
        drop(inner);
        if let Some(channel) = gone {
            glue.owned.end(&record, channel);
        }
    }
}

/// Records what an ioctl has mapped for the GPU, or unmapped.
pub(crate) fn mapped(glue: &Glue, file: FileId, escape: u32, bytes: &[u8], result: u32) {
    let Some(change) = Change::decode(escape, bytes).filter(|_| result == 0) else {
        return;
    };
    let adds = matches!(change, Change::Added(_));
    let wants = adds && glue.locked(|state| state.wants_owned_of(file));
    let record = match wants {
        true => glue.owned.record_made(file).ok(),
        false => glue.owned.record(file),
    };
    let Some(record) = record else { return };
    record.tenant.changed(&change, wants);
}

/// Ends the channels of a file that is being closed. Frees each channel before its ring. No ioctl
/// uses the file's clients any more.
pub(crate) fn file_closed(glue: &Glue, file: FileId) {
    if glue.owned.records.load(Relaxed) == 0 {
        return;
    }
    let mut files = glue.owned.files.lock();
    let at = files.iter().position(|record| record.file == file);
    let record = at.and_then(|at| files.remove(at).ok());
    drop(files);
    let Some(record) = record else { return };
    glue.owned.records.fetch_sub(1, Relaxed);
    loop {
        let channel = record.inner.lock().channels.pop();
        let Some(channel) = channel else { break };
        client::free(channel.client, channel.channel);
        glue.owned.end(&record, channel);
    }
}

/// Ends all owned channels of a GPU that is being removed.
pub(crate) fn gpu_removed(glue: &Glue, id: u32) {
    let mut last = None;
    while let Some(record) = glue.owned.record_after(last) {
        loop {
            let mut inner = record.inner.lock();
            let at = inner
                .channels
                .iter()
                .position(|channel| channel.gpu.id == id);
            let Some(channel) = at.and_then(|at| inner.channels.remove(at).ok()) else {
                break;
            };
            drop(inner);
            glue.owned.end(&record, channel);
        }
        last = Some(record.file.raw());
    }
}

/// Keeps the items for which `keeps` is true, in order. The object of `KVVec::retain` has a path
/// that panics, which the object gate refuses.
fn retain<T: Copy>(all: &mut KVVec<T>, keeps: impl Fn(&T) -> bool) {
    let mut kept = 0;
    for at in 0..all.len() {
        let Some(item) = all.get(at).copied() else {
            break;
        };
        if let Some(slot) = all.get_mut(kept).filter(|_| keeps(&item)) {
            *slot = item;
            kept = kept.saturating_add(1);
        }
    }
    all.truncate(kept);
}
