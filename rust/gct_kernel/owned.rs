// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Gives tenants' channels rings of the driver's, where `channel.owned` asks for it.
//!
//! An open file has at most one ioctl between [`enter`] and [`leave`]. What [`enter`] stores in the
//! file's [`Record`] is therefore for the [`leave`] of the same ioctl.

mod alloc;
mod client;
mod ear;
mod follow;
mod gpu;
mod kit;
mod lane;
mod lanes;
mod lent;
mod limited;
mod limits;
mod nodes;
mod shadow;
mod sheet;
mod tenant;
pub(crate) mod uvm;
mod view;

use crate::bindings;
use crate::queue::WorkQueue;
use crate::rm;
use crate::state::Glue;
use client::Refused;
use gct_core::ids::{FileId, ProcKey};
use gct_core::owned::maps::Space;
use gct_core::owned::shadow::Seen;
use gct_core::owned::uvm::UvmSpace;
use gct_core::rmapi::Handle;
use gpu::Gpu;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_mutex, Arc, Mutex};
use lane::Lane;
use lent::Lent;
use limited::Limited;
use shadow::{Past, Turn};
use tenant::Tenant;

pub(crate) use alloc::{enter, ring_memory};
pub(crate) use client::Sender;
pub(crate) use ear::mapped as cpu_mapped;
pub(crate) use follow::{leave, mapped, named, settled};
pub(crate) use gpu::round;
pub(crate) use lent::is_lent;
pub(crate) use limits::{is_online, move_workers, report, report_cost, report_file, update};
pub(crate) use shadow::{follow as shadow, give_back};

/// The records of open files, and the GPUs that have owned channels.
#[pin_data]
pub(crate) struct Owned {
    #[pin]
    files: Mutex<Files>,
    /// Number of records. While it is 0, the ioctls of all tenants take no lock here. While it is
    /// not, the hooks pass calls that map memory.
    records: Atomic<usize>,
    /// Held while a GPU is opened. No other lock of ours is held then.
    #[pin]
    gpus: Mutex<KVVec<Opened>>,
    /// The GPUs that are open. No call of the resource manager is made with the lock held.
    #[pin]
    live: Mutex<KVVec<Arc<Gpu>>>,
    /// Held while limits are taken over, and while it is chosen which calls the hooks pass. Nothing
    /// is allocated meanwhile.
    #[pin]
    updating: Mutex<()>,
    /// Whether a channel can be handed back to its tenant: 0 or 1.
    leaves: Atomic<u32>,
    /// Number of the next lane, or of the next channel that is seen.
    numbers: Atomic<u64>,
    lent: Arc<lent::Names>,
    /// Runs the work items that add room for nodes of graphs.
    pub(crate) growing: WorkQueue,
}

/// The records of files, in the order of their numbers.
struct Files(KVVec<Arc<Record>>);

impl Files {
    /// Returns where the record of a file is, or else where it belongs.
    fn position(&self, file: FileId) -> core::result::Result<usize, usize> {
        self.0
            .binary_search_by_key(&file.raw(), |record| record.file.raw())
    }

    fn get(&self, file: FileId) -> Option<&Arc<Record>> {
        self.position(file).ok().and_then(|at| self.0.get(at))
    }

    /// Adds the record of a file that has none. Returns how many there are if there is no room.
    fn add(&mut self, record: &Arc<Record>) -> Result<(), usize> {
        let at = self.position(record.file).unwrap_or_else(|at| at);
        let added = self.0.insert_within_capacity(at, record.clone());
        added.map_err(|_| self.0.len())
    }

    fn remove(&mut self, file: FileId) -> Option<Arc<Record>> {
        self.position(file)
            .ok()
            .and_then(|at| self.0.remove(at).ok())
    }

    /// Returns the first record behind a number.
    fn after(&self, last: Option<u64>) -> Option<&Arc<Record>> {
        let is_before = |record: &Arc<Record>| last.is_some_and(|last| record.file.raw() <= last);
        self.0.get(self.0.partition_point(is_before))
    }
}

/// An open GPU, and the number of channels that use it or are being allocated on it.
struct Opened {
    gpu: Arc<Gpu>,
    users: usize,
}

/// State of an open file whose process is, or was, to have owned channels or a member of a group.
/// All that the file maps for the GPU is recorded from then on: a channel that is owned later takes
/// its ring from there.
#[pin_data]
struct Record {
    file: FileId,
    tenant: Arc<Tenant>,
    /// Held while others than the tenant shadow channels from before a limit, or hand them back.
    #[pin]
    shadowing: Mutex<Turn>,
    /// Nothing is allocated while it is held: others look at the records of all files.
    #[pin]
    inner: Mutex<Inner>,
}

struct Inner {
    /// The tenant on each GPU where it had an owned channel.
    limited: KVVec<Arc<Limited>>,
    spaces: KVVec<Space>,
    uvm: KVVec<UvmSpace>,
    channels: KVVec<Channel>,
    past: Past,
    pending: Option<Pending>,
}

/// An owned or shadowed channel. The worker has its lane.
struct Channel {
    client: Handle,
    channel: Handle,
    lane: u64,
    is_shadow: bool,
    gpu: Arc<Gpu>,
}

impl Channel {
    /// Returns whether this is a channel that was seen when it was allocated.
    fn is(&self, seen: &Seen) -> bool {
        (self.client, self.channel) == (seen.client, seen.channel)
    }
}

/// A channel that the resource manager is allocating, and where the tenant's parameters say that it
/// lies, if that is known.
struct Pending {
    seen: Option<Seen>,
    parts: Parts,
}

/// What a channel is made of.
enum Parts {
    /// Its tenant's ring. It need not be owned.
    Plain,
    /// Its tenant's ring, although it was to be owned.
    Native,
    /// A ring of the driver's. Its USERD is lent during the allocation.
    Owned {
        lane: KBox<Lane>,
        number: u64,
        gpu: Arc<Gpu>,
        lent: Lent,
    },
}

impl Owned {
    pub(crate) fn new() -> Result<impl PinInit<Self>> {
        let lent = lent::Names::new()?;
        let growing = WorkQueue::new(c"gct/nodes")?;
        Ok(pin_init!(Self {
            lent,
            growing,
            files <- new_mutex!(Files(KVVec::new()), "gct::owned_files"),
            records: Atomic::new(0),
            gpus <- new_mutex!(KVVec::new(), "gct::owned_gpus"),
            live <- new_mutex!(KVVec::new(), "gct::owned_live"),
            updating <- new_mutex!((), "gct::owned_updating"),
            leaves: Atomic::new(0),
            numbers: Atomic::new(0),
        }))
    }

    /// Returns the record of a file, if it has one.
    fn record(&self, file: FileId) -> Option<Arc<Record>> {
        // The file's own record was counted by an earlier ioctl of the file, which the driver has
        // ordered before this one.
        if self.records.load(Relaxed) == 0 {
            return None;
        }
        self.files.lock().get(file).cloned()
    }

    /// Returns whether a file has a record.
    pub(crate) fn has_record(&self, file: FileId) -> bool {
        self.record(file).is_some()
    }

    /// Returns the record of the next file after one, in the order of their numbers. Records may
    /// come and go between two calls.
    fn record_after(&self, last: Option<u64>) -> Option<Arc<Record>> {
        self.files.lock().after(last).cloned()
    }

    /// Returns the limits of a process on a GPU, if one of its files has owned channels there.
    fn limited_of(&self, proc: ProcKey, gpu: u32) -> Option<Arc<Limited>> {
        let mut last = None;
        while let Some(record) = self.record_after(last) {
            let inner = record.inner.lock();
            let known = inner.limited.iter().find(|known| known.is_of(proc, gpu));
            if let Some(known) = known {
                return Some(known.clone());
            }
            drop(inner);
            last = Some(record.file.raw());
        }
        None
    }

    /// Adds a user to a GPU. The first one opens it. Returns whether this one has.
    fn open(&self, id: u32) -> Result<(Arc<Gpu>, bool), Refused> {
        let mut gpus = self.gpus.lock();
        if let Some(opened) = gpus.iter_mut().find(|opened| opened.gpu.id == id) {
            opened.users = opened.users.checked_add(1).ok_or(Refused)?;
            return Ok((opened.gpu.clone(), false));
        }
        gpus.reserve(1, GFP_KERNEL)?;
        let gpu = Gpu::open(id)?;
        if self.live.lock().push(gpu.clone(), GFP_KERNEL).is_err() {
            gpu.stop();
            return Err(Refused);
        }
        let opened = Opened {
            gpu: gpu.clone(),
            users: 1,
        };
        gpus.push(opened, GFP_KERNEL)?;
        Ok((gpu, true))
    }

    /// Removes a user from a GPU. The last one ends the worker and the client.
    fn close(&self, gpu: Arc<Gpu>) {
        let mut gpus = self.gpus.lock();
        let at = gpus
            .iter()
            .position(|opened| Arc::ptr_eq(&opened.gpu, &gpu));
        let Some(opened) = at.and_then(|at| gpus.get_mut(at)) else {
            return;
        };
        opened.users = opened.users.saturating_sub(1);
        let is_last = opened.users == 0;
        if let Some(at) = at.filter(|_| is_last) {
            let last = gpus.remove(at).ok();
            let mut live = self.live.lock();
            let at = live.iter().position(|live| Arc::ptr_eq(live, &gpu));
            let closed = at.and_then(|at| live.remove(at).ok());
            drop((live, gpus, closed));
            gpu.stop();
            drop((last, gpu));
        }
    }
}

/// Returns the record of a file. Makes it if the core wants one.
fn record_if_wanted(glue: &Glue, file: FileId) -> Option<Arc<Record>> {
    match glue.locked(|state| state.wants_record_of(file)) {
        true => record_made(glue, file).ok(),
        false => glue.owned.record(file),
    }
}

/// Returns the record of a file. Makes it if there is none. The hooks pass calls that map memory
/// when this returns.
fn record_made(glue: &Glue, file: FileId) -> Result<Arc<Record>, Refused> {
    if let Some(record) = glue.owned.record(file) {
        return Ok(record);
    }
    let tenant = Tenant::new()?;
    let record = Arc::pin_init(
        pin_init!(Record {
            file,
            tenant,
            shadowing <- new_mutex!(Turn::Others, "gct::owned_shadowing"),
            inner <- new_mutex!(Inner {
                limited: KVVec::new(),
                spaces: KVVec::new(),
                uvm: KVVec::new(),
                channels: KVVec::new(),
                past: Past::new(),
                pending: None,
            }, "gct::owned_file"),
        }),
        GFP_KERNEL_ACCOUNT,
    )
    .map_err(|_| Refused)?;
    // Nobody else makes it too: the caller holds the file's `gct_lock`. The tenant's memory may be
    // at its limit, and others need not wait for it.
    loop {
        let added = glue.owned.files.lock().add(&record);
        let Err(count) = added else { break };
        let mut room = room_beside(count)?;
        refill(&mut glue.owned.files.lock().0, &mut room);
    }
    glue.owned.records.fetch_add(1, Relaxed);
    // The switch may have gone meanwhile.
    limits::records_changed(glue);
    Ok(record)
}

/// Ends the lane of a channel that is gone or is about to be freed. The record has forgotten it.
fn end(glue: &Glue, record: &Record, channel: Channel) {
    drop(channel.gpu.take(channel.lane));
    let id = channel.gpu.id;
    let others = |other: &Channel| other.gpu.id == id;
    let is_last = !record.inner.lock().channels.iter().any(others);
    record.tenant.lane_ends(id, is_last);
    glue.owned.close(channel.gpu);
}

/// Returns whether some process is to have a record, or a file has one.
pub(crate) fn is_owning() -> bool {
    // SAFETY: one aligned load of a number that is 0 or 1.
    unsafe { core::ptr::addr_of!(bindings::gct_owning).read_volatile() != 0 }
}

/// Ends the channels of a file that is being closed. Frees each channel before its ring. No ioctl
/// uses the file's clients any more.
pub(crate) fn file_closed(glue: &Glue, file: FileId) {
    if glue.owned.records.load(Relaxed) == 0 {
        return;
    }
    let record = glue.owned.files.lock().remove(file);
    let Some(record) = record else { return };
    glue.owned.records.fetch_sub(1, Relaxed);
    loop {
        let channel = record.inner.lock().channels.pop();
        let Some(channel) = channel else { break };
        let _ = rm::free(channel.client, channel.channel);
        end(glue, &record, channel);
    }
    if !record.inner.lock().limited.is_empty() {
        // The work item may be handing a channel back. It calls the resource manager, which goes
        // with the driver.
        drop(record.shadowing.lock());
    }
    limits::records_changed(glue);
}

/// Ends all owned channels of a GPU that is being removed. Frees each channel before its ring, as
/// [`file_closed`] does. Its tenant may free it at the same time: then the handle names nothing, as
/// the tenant's file is still in that ioctl when its record forgets the channel.
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
            let _ = rm::free(channel.client, channel.channel);
            end(glue, &record, channel);
        }
        last = Some(record.file.raw());
    }
}

/// Adds an item to a list of a record. Returns whether there was memory.
fn add<T>(record: &Record, list: fn(&mut Inner) -> &mut KVVec<T>, mut item: T) -> bool {
    loop {
        let mut inner = record.inner.lock();
        let items = list(&mut inner);
        let Err(full) = items.push_within_capacity(item) else {
            return true;
        };
        item = full.0;
        let count = items.len();
        drop(inner);
        let Ok(mut room) = room_beside(count) else {
            return false;
        };
        refill(list(&mut record.inner.lock()), &mut room);
    }
}

/// Allocates room for so many items, and for a half more, so that items are seldom moved. It is
/// charged to the tenant that needs it. Others' items may come there, and stay when it has gone.
fn room_beside<T>(count: usize) -> Result<KVVec<T>, Refused> {
    let room = count.saturating_add(count / 2).saturating_add(1);
    Ok(KVVec::with_capacity(room, GFP_KERNEL_ACCOUNT)?)
}

/// Moves all items to other room, if it is larger, and swaps both. The caller drops what it gets
/// without its lock.
fn refill<T>(items: &mut KVVec<T>, room: &mut KVVec<T>) {
    if room.is_empty() && room.capacity() > items.capacity() {
        for item in items.drain_all() {
            // INVARIANT: there is room.
            let _ = room.push_within_capacity(item);
        }
        core::mem::swap(items, room);
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
