// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gives tenants' channels rings of the driver's, where `channel.owned` asks for it.
//!
//! An open file has at most one ioctl between [`enter`] and [`leave`]. What [`enter`] stores in the
//! file's [`Record`] is therefore for the [`leave`] of the same ioctl.

mod client;
mod gpu;

use crate::bindings::{self, gct_call};
use crate::serve::{self, Served};
use crate::state::Glue;
use client::{Kit, Refused};
use gct_core::engine::Site;
use gct_core::ids::FileId;
use gct_core::owned::maps::{Change, Mapping, Space, MAPPINGS_MAX, SPACES_MAX};
use gct_core::owned::{self, Native, Request};
use gct_core::rmapi::{Action, Call, Class, Handle};
use gpu::{Gpu, Lane};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_mutex, Arc, Mutex};

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
    #[pin]
    inner: Mutex<Inner>,
}

struct Inner {
    mappings: KVVec<Mapping>,
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
        lane: Lane,
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

    /// Returns the record of a file. Makes it if there is none.
    fn record_made(&self, file: FileId) -> Result<Arc<Record>, Refused> {
        if let Some(record) = self.record(file) {
            return Ok(record);
        }
        let record = Arc::pin_init(
            pin_init!(Record {
                file,
                inner <- new_mutex!(Inner {
                    mappings: KVVec::new(),
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

    /// Ends the lane of a channel that is gone or is about to be freed.
    fn end(&self, channel: Channel) {
        drop(channel.gpu.take(channel.lane));
        self.close(channel.gpu);
    }
}

/// Lets the hooks pass calls that map memory, while an owner has `channel.owned` set.
pub(crate) fn update(glue: &Glue) {
    let on = glue.locked(|state| state.wants_owned());
    // SAFETY: has no preconditions.
    unsafe { bindings::gct_helper_own(on) };
}

/// Returns whether an owner has `channel.owned` set.
pub(crate) fn is_wanted() -> bool {
    // SAFETY: one aligned load of a number that is 0 or 1.
    unsafe { core::ptr::addr_of!(bindings::gct_owning).read_volatile() != 0 }
}

/// Allocates the parts of a channel that is to be owned, and replaces its parameters, before its
/// ioctl runs. `request` is read from the parameters, if they are a channel's.
pub(crate) fn enter(
    glue: &Glue,
    file: FileId,
    call: &Call,
    request: Option<Request>,
    room: &mut gct_call,
) {
    let Some(site) = glue.locked(|state| state.site_of_owned(file, call)) else {
        return;
    };
    let Ok(record) = glue.owned.record_made(file) else {
        return;
    };
    let pending = pending(glue, &record, call, site, request, room).unwrap_or(Pending::Native);
    record.inner.lock().pending = Some(pending);
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
    let mailbox = request.mailbox(&inner.mappings, &inner.spaces, names);
    drop(inner);
    let (mailbox, space) = mailbox.map_err(|_: Native| Refused)?;
    let gpu = glue.owned.open(site.gpu)?;
    let made = || {
        let kit = Kit::new(gpu.client.clone(), call.client, space, &mailbox)?;
        // SAFETY: has no preconditions. A random name cannot be guessed by the tenant.
        let name = unsafe { bindings::gct_helper_random() };
        // CAST: the low half.
        let name = (name as Handle).max(1);
        let number = glue.owned.lanes.fetch_add(1, Relaxed);
        let lane = Lane::new(number, kit, &mailbox)?;
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
            if !call.succeeded() || !keep(&record, &channel, lane) {
                glue.owned.end(channel);
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
fn keep(record: &Record, channel: &Channel, lane: Lane) -> bool {
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
        let inner = &mut *record.inner.lock();
        let (client, object) = (call.client, call.object);
        retain(&mut inner.mappings, |mapping| {
            !mapping.goes_with(client, object)
        });
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
            glue.owned.end(channel);
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
    let mappings = &mut record.inner.lock().mappings;
    retain(mappings, |mapping| !mapping.is_gone_after(&change));
    if let Change::Added(mapping) = change {
        if wants && mappings.len() < MAPPINGS_MAX {
            // Without the entry a channel there stays native, and `unowned` counts it.
            let _ = mappings.push(mapping, GFP_KERNEL_ACCOUNT);
        }
    }
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
        glue.owned.end(channel);
    }
}

/// Ends all owned channels of a GPU that is being removed.
pub(crate) fn gpu_removed(glue: &Glue, id: u32) {
    let mut from = 0;
    loop {
        let record = glue.owned.files.lock().get(from).cloned();
        let Some(record) = record else { break };
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
            glue.owned.end(channel);
        }
        from = from.saturating_add(1);
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
