// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Records what tenants with owned channels, and those that may have some later, have made, mapped
//! and freed.

use super::lane::Lane;
use super::{add, end, is_owning, record_if_wanted, record_made, refill, retain, room_beside};
use super::{shadow, uvm, Channel, Inner, Parts, Pending, Record};
use crate::rm;
use crate::serve::Served;
use crate::state::Glue;
use gct_core::ids::FileId;
use gct_core::owned::maps::{Change, Mapping, Space, SPACES_MAX};
use gct_core::owned::shadow::Seen;
use gct_core::rmapi::{control, Action, Call, Class, Handle};
use kernel::prelude::*;
use kernel::sync::MutexGuard;

/// Hands a channel that an ioctl has allocated to its worker, or ends its parts. Returns whether
/// the channel is owned, if it was to be. The core learns that together with the channel: no other
/// thread finds an owned channel among the native ones.
pub(crate) fn settled(glue: &Glue, file: FileId, call: &Call) -> Option<bool> {
    let record = glue.owned.record(file);
    let record = record.filter(|_| call.allocates_channel())?;
    let Pending { seen, parts } = record.inner.lock().pending.take()?;
    if call.succeeded() {
        let channel = call.object;
        shadow::add_channel(&record, seen.map(|seen| Seen { channel, ..seen }));
    }
    let (mut lane, number, gpu, lent) = match parts {
        Parts::Owned {
            lane,
            number,
            gpu,
            lent,
        } => (lane, number, gpu, lent),
        Parts::Native => return call.succeeded().then_some(false),
        Parts::Plain => return None,
    };
    drop(lent);
    lane.is_channel([call.client, call.object]);
    let channel = Channel {
        client: call.client,
        channel: call.object,
        lane: number,
        is_shadow: false,
        gpu,
    };
    record.tenant.lane_begins();
    let succeeded = call.succeeded();
    let kept = keep(&record, channel, lane, |_, _| succeeded).map(drop);
    match kept {
        Ok(()) => Some(true),
        Err((channel, lane)) => {
            drop(lane);
            end(glue, &record, channel);
            None
        }
    }
}

/// Records what an ioctl has made or freed. `served` are its parameters. `takes_others` says that
/// what it freed may have taken objects along that are not below it.
pub(crate) fn leave(
    glue: &Glue,
    file: FileId,
    call: &Call,
    served: Option<&Served>,
    takes_others: bool,
) {
    if matches!(call.action, Action::Alloc { .. } | Action::Dup { .. }) && call.succeeded() {
        named(glue, file, call.client, call.object);
    }
    match call.action {
        Action::Alloc {
            class: Class::ChannelGroup | Class::ContextShare,
            ..
        } if call.succeeded() => space_known(glue, file, call, served),
        Action::Alloc {
            class: Class::DeviceMemory,
            ..
        } if call.succeeded() => {
            let record = is_owning().then(|| record_if_wanted(glue, file)).flatten();
            let Some(record) = record else { return };
            let gpu = glue.locked(|state| state.rm_gpu_of(file, call.client, call.object));
            if let Some(gpu) = gpu {
                shadow::add_memory(&record, call, gpu);
            }
        }
        Action::Alloc { .. } if call.succeeded() && call.allocates_channel() => {
            // A limit that came meanwhile has not found it.
            shadow::follow_file(glue, file);
        }
        Action::Free => freed(glue, file, call, takes_others),
        _ => {}
    }
}

/// Hands a lane to its worker, and its channel to the record, if `admits` says so with the record
/// locked. It may be asked again, since the tenant's memory may be at its limit: then room is
/// allocated without the lock. Returns the record, still locked.
///
/// # Errors
///
/// Both. The caller drops the lane without the lock.
pub(super) fn keep(
    record: &Record,
    channel: Channel,
    mut lane: KBox<Lane>,
    mut admits: impl FnMut(&Inner, &mut Lane) -> bool,
) -> Result<MutexGuard<'_, Inner>, (Channel, KBox<Lane>)> {
    loop {
        let mut inner = record.inner.lock();
        if !admits(&inner, &mut lane) {
            return Err((channel, lane));
        }
        let count = inner.channels.len();
        if count == inner.channels.capacity() {
            drop(inner);
            let Ok(mut room) = room_beside(count) else {
                return Err((channel, lane));
            };
            refill(&mut record.inner.lock().channels, &mut room);
            continue;
        }
        let limited = lane.limited.clone();
        match channel.gpu.add(&limited, lane) {
            Ok(()) => {
                // INVARIANT: there is room.
                let _ = inner.channels.push_within_capacity(channel);
                return Ok(inner);
            }
            Err((refused, lacking)) => {
                drop(inner);
                lane = refused;
                if channel.gpu.make_room(&limited, &lacking).is_err() {
                    return Err((channel, lane));
                }
            }
        }
    }
}

/// Forgets the address spaces of a handle that names a new object. The former one may have gone
/// unseen, and the new one have another space: a duplicate or an import is not recorded.
pub(crate) fn named(glue: &Glue, file: FileId, client: Handle, object: Handle) {
    if let Some(record) = glue.owned.record(file) {
        let spaces = &mut record.inner.lock().spaces;
        retain(spaces, |space| !space.goes_with(client, object));
    }
}

/// Forgets the address spaces of channel groups and context shares that went with a freed object.
/// The ring of a channel would be mapped in the former space of a name that is given anew.
fn forget_spaces(glue: &Glue, record: &Record, call: &Call, takes_others: bool) {
    let is_there = |client, object| {
        let is_known = glue.locked(|state| state.has_object(record.file, client, object));
        is_known && !(takes_others && rm::class_of(client, object).is_err_and(control::is_gone))
    };
    let count = record.inner.lock().spaces.len();
    for at in (0..count).rev() {
        let space = record.inner.lock().spaces.get(at).copied();
        // The resource manager is asked without the lock.
        let goes = space.is_some_and(|space| {
            space.goes_with(call.client, call.object)
                || !is_there(space.client, space.object)
                || !is_there(space.client, space.space)
        });
        if goes {
            let spaces = &mut record.inner.lock().spaces;
            retain(spaces, |other| Some(*other) != space);
        }
    }
}

/// Records the address space of a new channel group or context share.
fn space_known(glue: &Glue, file: FileId, call: &Call, served: Option<&Served>) {
    let wants = is_owning() && glue.locked(|state| state.wants_record_of(file));
    let space = served.and_then(|served| call.space_in(served.bytes()));
    // 0 is the device's own, in which nothing is mapped for a channel.
    let (true, Some(space)) = (wants, space.filter(|space| *space != 0)) else {
        return;
    };
    let Ok(record) = record_made(glue, file) else {
        return;
    };
    if record.inner.lock().spaces.len() < SPACES_MAX {
        let space = Space {
            client: call.client,
            object: call.object,
            space,
        };
        // Without the entry a channel there stays native, and `unowned` counts it.
        let _ = add(&record, |inner| &mut inner.spaces, space);
    }
}

/// Drops the records of freed objects, and ends the lanes of channels that are gone.
fn freed(glue: &Glue, file: FileId, call: &Call, takes_others: bool) {
    let Some(record) = glue.owned.record(file) else {
        return;
    };
    if call.succeeded() {
        let (client, object) = (call.client, call.object);
        record.tenant.freed(client, object);
        uvm::freed(&record, client, object);
        forget_spaces(glue, &record, call, takes_others);
        let inner = &mut *record.inner.lock();
        let is_there = |client, object| glue.locked(|state| state.has_object(file, client, object));
        inner.past.forget([client, object], is_there);
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
            end(glue, &record, channel);
        }
    }
}

/// Returns a mapping that goes with what its memory is below, too.
pub(super) fn below_parent(glue: &Glue, file: FileId, mapping: Mapping) -> Mapping {
    let [client, memory] = mapping.of();
    let parent = glue.locked(|state| state.handle_above(file, client, memory));
    mapping.below(parent.unwrap_or(0))
}

/// Records what an ioctl has mapped for the GPU, or unmapped.
pub(crate) fn mapped(glue: &Glue, file: FileId, escape: u32, bytes: &[u8], result: u32) {
    let Some(change) = Change::decode(escape, bytes).filter(|_| result == 0) else {
        return;
    };
    let adds = matches!(change, Change::Added(_));
    let record = match adds {
        true => record_if_wanted(glue, file),
        false => glue.owned.record(file),
    };
    let Some(record) = record else { return };
    let change = match change {
        Change::Added(mapping) => Change::Added(below_parent(glue, file, mapping)),
        other => other,
    };
    record.tenant.changed(&change);
}
