// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shadows channels that were there before a limit.
//!
//! The GPU goes on to read the tenant's ring and USERD. The tenant gets other pages in their place,
//! which are the mailbox: from then on the worker alone writes the real ones. A tenant that keeps
//! another way to its memory is not bound, and harms nobody but itself.
//!
//! Whoever writes a limit shadows, while the tenant's ioctls, its death and the GPU's removal go
//! on. What is made before [`keep`] belongs to the writer. There the core is asked once more, with
//! the record locked: who takes the channel, its file or its GPU from the core looks for channels
//! in the record afterwards.
//!
//! When no limit binds the tenant any more, the worker brings the channel to where the tenant can
//! go on ([`Leave`](gct_core::lane::leave::Leave)), and the work item hands it back. Its record
//! stays locked meanwhile, so that nobody frees the channel or makes another one in its pages.

use super::alloc::attend;
use super::client::Refused;
use super::follow::keep;
use super::kit::{Home, Kit};
use super::lane::Lane;
use super::sheet::{Cover, Sheet};
use super::{add, end, retain, Channel, Gpu, Record};
use crate::rm::SystemPmGuard;
use crate::state::Glue;
use crate::{exec, ffi};
use core::mem;
use gct_core::engine::Shadowed;
use gct_core::ids::FileId;
use gct_core::owned::bells::CpuMapping;
use gct_core::owned::shadow::{Seen, CHANNELS_MAX, SHEETS_MAX};
use gct_core::owned::uvm;
use gct_core::rmapi::{Call, Handle};
use kernel::prelude::*;
use kernel::sync::atomic::Relaxed;
use kernel::sync::Arc;

/// What an open file has made that a later limit may replace.
pub(super) struct Past {
    /// Its channels, in the order in which they were made.
    channels: KVVec<Seen>,
    /// Its device memory, by client and handle, from before it was mapped.
    sheets: KVVec<([Handle; 2], Arc<Sheet>)>,
    /// Whether there is a channel of which it is not known where it lies: it may be anywhere.
    is_blind: bool,
}

impl Past {
    pub(super) const fn new() -> Self {
        Self {
            channels: KVVec::new(),
            sheets: KVVec::new(),
            is_blind: false,
        }
    }

    /// Returns the sheet of a memory object.
    pub(super) fn sheet(&self, named: [Handle; 2]) -> Option<&Arc<Sheet>> {
        let mut all = self.sheets.iter();
        all.find(|(of, _)| *of == named).map(|(_, sheet)| sheet)
    }

    /// Returns whether a new channel would stand still beside those that are shadowed.
    pub(super) fn stops(&self, seen: &Seen, served: &[Channel]) -> bool {
        seen.stands_still(&self.channels, |other| {
            let mut served = served.iter();
            served.any(|channel| channel.is_shadow && channel.is(other))
        })
    }

    /// Forgets what went with an object that was freed. `is_there` says which handles of a client
    /// are still there.
    pub(super) fn forget(&mut self, freed: [Handle; 2], is_there: impl Fn(Handle, Handle) -> bool) {
        if let Some(at) = self.sheets.iter().position(|(of, _)| *of == freed) {
            // Nothing goes with memory.
            return drop(self.sheets.remove(at));
        }
        retain(&mut self.channels, |seen| {
            is_there(seen.client, seen.channel)
        });
        let mut at = 0;
        while let Some(([client, memory], _)) = self.sheets.get(at) {
            match is_there(*client, *memory) {
                true => at = at.saturating_add(1),
                false => drop(self.sheets.remove(at)),
            }
        }
    }

    /// Returns the first channel behind a number.
    fn after(&self, last: Option<u64>) -> Option<Seen> {
        let mut all = self.channels.iter();
        all.find(|seen| last.is_none_or(|last| seen.number > last))
            .copied()
    }

    /// Returns the sheets of a channel's ring and USERD, if it can be shadowed.
    fn sheets_of(&self, seen: &Seen) -> Option<[Arc<Sheet>; 2]> {
        let can = !self.is_blind && seen.can_be_shadowed(&self.channels);
        let [ring, userd] = seen.pages().map(|pages| {
            let sheet = self.sheet([seen.client, pages.memory]);
            sheet.filter(|_| can).cloned()
        });
        Some([ring?, userd?])
    }
}

/// Records a channel, if it is known where it lies.
pub(super) fn add_channel(record: &Record, seen: Option<Seen>) {
    let has_place = record.inner.lock().past.channels.len() < CHANNELS_MAX;
    let seen = seen.filter(|_| has_place);
    let added = seen.is_some_and(|seen| add(record, |inner| &mut inner.past.channels, seen));
    record.inner.lock().past.is_blind |= !added;
}

/// Records new device memory on a GPU. Without it a channel there stays native.
pub(super) fn add_memory(record: &Record, call: &Call, gpu: u32) {
    let has_place = record.inner.lock().past.sheets.len() < SHEETS_MAX;
    if let (true, Ok(sheet)) = (has_place, Sheet::new(gpu)) {
        let named = ([call.client, call.object], sheet);
        let _ = add(record, |inner| &mut inner.past.sheets, named);
    }
}

/// Follows a mapping of a tenant's device memory by a file. Returns whether it is one.
pub(super) fn mapped(record: &Record, mapping: &CpuMapping, by: Option<FileId>) -> bool {
    let inner = record.inner.lock();
    let sheet = inner.past.sheet([mapping.client, mapping.object]).cloned();
    drop(inner);
    if let Some(sheet) = &sheet {
        sheet.follow(mapping, by);
    }
    sheet.is_some()
}

/// Shadows the native channels of all tenants that a limit binds now. The caller holds no lock of
/// ours.
pub(crate) fn follow(glue: &Glue) {
    if glue.owned.records.load(Relaxed) == 0 {
        return;
    }
    let Some(_awake) = SystemPmGuard::attempt() else {
        return;
    };
    let mut last = None;
    while let Some(record) = glue.owned.record_after(last) {
        follow_record(glue, &record);
        last = Some(record.file.raw());
    }
}

/// Does so for a file, in one of its ioctls. Nobody waits for it: the tenant's memory may be at its
/// limit.
pub(super) fn follow_file(glue: &Glue, file: FileId) {
    let Some(record) = glue.owned.record(file) else {
        return;
    };
    loop {
        *record.shadowing.lock() = Turn::Tenant;
        follow_channels(glue, &record);
        let turn = mem::replace(&mut *record.shadowing.lock(), Turn::Others);
        if turn != Turn::TenantAgain {
            break;
        }
    }
}

/// Who may shadow the channels of a file, and hand them back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Whoever has the lock.
    Others,
    /// The tenant, in its ioctl, without the lock.
    Tenant,
    /// The same, and others have passed it meanwhile: the tenant looks again.
    TenantAgain,
}

fn follow_record(glue: &Glue, record: &Record) {
    let mut turn = record.shadowing.lock();
    match *turn {
        Turn::Others => follow_channels(glue, record),
        Turn::Tenant | Turn::TenantAgain => *turn = Turn::TenantAgain,
    }
}

fn follow_channels(glue: &Glue, record: &Record) {
    let mut last = None;
    while let Some(seen) = next(record, last) {
        match shadows(glue, record.file, seen.client, seen.channel) {
            // Refused, it stays native. If the tenant keeps a lock, the work item of
            // `gct_helper_uvm_map` tries it again.
            Some(due) => _ = shadow(glue, record, &seen, due),
            None => wake(record, &seen),
        }
        last = Some(seen.number);
    }
}

/// Returns the record's first channel behind a number.
fn next(record: &Record, last: Option<u64>) -> Option<Seen> {
    record.inner.lock().past.after(last)
}

/// Wakes the worker of a shadowed channel, which finds that it can go back to its tenant.
fn wake(record: &Record, seen: &Seen) {
    let inner = record.inner.lock();
    let mut shadowed = inner.channels.iter().filter(|channel| channel.is_shadow);
    if let Some(channel) = shadowed.find(|channel| channel.is(seen)) {
        channel.gpu.wake();
    }
}

fn shadows(glue: &Glue, file: FileId, client: Handle, channel: Handle) -> Option<Shadowed> {
    glue.locked(|state| state.shadows(file, client, channel))
}

fn shadow(glue: &Glue, record: &Record, seen: &Seen, due: Shadowed) -> Result<(), Refused> {
    let inner = record.inner.lock();
    let is_served = inner.channels.iter().any(|channel| channel.is(seen));
    let sheets = inner.past.sheets_of(seen).filter(|_| !is_served);
    let space = uvm::find(&inner.uvm, seen.client, seen.space).map_err(|_| Refused);
    let space = space.map(|space| space.copied());
    drop(inner);
    let (sheets, space) = (sheets.ok_or(Refused)?, space?);
    let home = space.as_ref().map_or(Home::Rm(seen.space), Home::Uvm);
    let (limited, gpu) = attend(glue, record, due.gpu, due.shares_group)?;
    let number = glue.owned.numbers.fetch_add(1, Relaxed);
    let made = || {
        let [ring, userd] = sheets;
        let [ring_pages, userd_pages] = seen.pages();
        let covers = [
            Cover::new(ring, &ring_pages)?,
            Cover::new(userd, &userd_pages)?,
        ];
        let kit = Kit::shadow(gpu.client.clone(), seen, &home, covers)?;
        let named = [seen.client, seen.space];
        let mut lane = Lane::new(
            number,
            named,
            kit,
            &seen.mailbox,
            record.tenant.clone(),
            limited,
        )?;
        lane.is_channel([seen.client, seen.channel]);
        Ok(lane)
    };
    match made() {
        Ok(lane) => hand_over(glue, record, seen, gpu, lane),
        Err(refused) => {
            glue.owned.close(gpu);
            Err(refused)
        }
    }
}

/// Lets the tenant have its other pages, and the worker the lane.
fn hand_over(
    glue: &Glue,
    record: &Record,
    seen: &Seen,
    gpu: Arc<Gpu>,
    lane: KBox<Lane>,
) -> Result<(), Refused> {
    let channel = Channel {
        client: seen.client,
        channel: seen.channel,
        lane: lane.number,
        is_shadow: true,
        gpu,
    };
    record.tenant.lane_begins();
    let gpu = channel.gpu.id;
    let mut is_turned = false;
    let kept = keep(record, channel, lane, |inner, lane| {
        let is_known = inner.past.channels.iter().any(|known| known == seen);
        let due = shadows(glue, record.file, seen.client, seen.channel).filter(|_| is_known);
        let is_due = due.is_some_and(|due| due.gpu == gpu);
        is_turned = is_due && (is_turned || lane.turn());
        is_turned
    });
    match kept {
        Ok(inner) => {
            glue.locked(|state| state.shadowed(record.file, seen.client, seen.channel));
            drop(inner);
            Ok(())
        }
        Err((channel, lane)) => {
            drop(lane);
            end(glue, record, channel);
            Err(Refused)
        }
    }
}

/// Has the work item call [`give_back`].
pub(super) fn give_back_soon() {
    if let Some(glue) = ffi::glue() {
        // Each round does so again until the work item has taken the channel.
        glue.owned.leaves.xchg(1, Relaxed);
        exec::schedule_work(glue.glue());
    }
}

/// Hands the channels that workers have prepared for it back to their tenants. The caller holds no
/// lock of ours.
pub(crate) fn give_back(glue: &Glue) {
    if glue.owned.leaves.xchg(0, Relaxed) == 0 {
        return;
    }
    let _awake = SystemPmGuard::patient();
    let mut last = None;
    while let Some(record) = glue.owned.record_after(last) {
        let mut at = 0;
        while give_back_next(glue, &record, &mut at) {}
        last = Some(record.file.raw());
    }
}

/// Hands back the first prepared channel of a record from `at` on, and moves `at` there. Returns
/// whether there was one.
fn give_back_next(glue: &Glue, record: &Record, at: &mut usize) -> bool {
    // Its pages can be covered again once its lane is gone.
    let turn = record.shadowing.lock();
    if *turn != Turn::Others {
        // The worker asks again.
        return false;
    }
    let mut inner = record.inner.lock();
    while let Some(channel) = inner.channels.get(*at) {
        let named = (record.file, channel.client, channel.channel);
        let is_bound = |(file, client, channel)| shadows(glue, file, client, channel).is_some();
        let goes = channel.is_shadow && !is_bound(named);
        let taken = goes.then(|| channel.gpu.take_kit(channel.lane)).flatten();
        if let Some((kit, token)) = taken {
            if kit.turn_back(token) {
                glue.locked(|state| state.unshadowed(named.0, named.1, named.2));
                let channel = inner.channels.remove(*at).ok();
                drop(inner);
                drop(kit);
                if let Some(channel) = channel {
                    end(glue, record, channel);
                }
                return true;
            }
            channel.gpu.stays(channel.lane);
        }
        *at = at.saturating_add(1);
    }
    false
}
