// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Records what nvidia-uvm has mapped in the address spaces of tenants with owned channels.
//!
//! nvidia-uvm reports it by [`ffi`](crate::ffi). The caller of [`registered`] holds the control
//! file's `gct_lock`, so no ioctl of the file frees the address space meanwhile. The others hold
//! nothing, and find a record or none.

use super::follow::below_parent;
use super::{add, record_made, retain, Record};
use crate::bindings::{gct_uvm_mapping, gct_uvm_space};
use crate::rm;
use crate::state::Glue;
use gct_core::ids::FileId;
use gct_core::owned::maps::{Change, Mapping, Place};
use gct_core::owned::uvm::{self, UvmSpace, UVM_SPACES_MAX};
use gct_core::rmapi::{nv, Handle};
use gct_core::state::State;

/// Records that nvidia-uvm owns the page tables of an address space. Returns whether it has.
pub(crate) fn registered(glue: &Glue, file: FileId, space: &gct_uvm_space) -> bool {
    let wants =
        |state: &mut State<'_>| state.wants_record_of(file) && state.has_client(file, space.client);
    if !glue.locked(wants) {
        return false;
    }
    let Ok(record) = record_made(glue, file) else {
        return false;
    };
    let space = UvmSpace {
        uvm: space.number,
        client: space.client,
        space: space.object,
        uuid: space.uuid,
    };
    // Without the entry a channel there is not owned, and `unowned` counts it.
    let has_place = record.inner.lock().uvm.len() < UVM_SPACES_MAX;
    has_place && add(&record, |inner| &mut inner.uvm, space)
}

/// Records that nvidia-uvm has given address spaces back: that of a GPU, or all of its file.
pub(crate) fn gone(glue: &Glue, file: FileId, number: u64, uuid: Option<[u8; 16]>) {
    let Some(record) = glue.owned.record(file) else {
        return;
    };
    clear(&record, number, [0, u64::MAX], uuid);
    let all = &mut record.inner.lock().uvm;
    retain(all, |space| !space.is_gone(number, uuid));
}

/// Drops the records of address spaces that went with an object.
pub(super) fn freed(record: &Record, client: Handle, object: Handle) {
    let is_there = |client, space| rm::class_of(client, space) == Ok(nv::FERMI_VASPACE_A);
    let count = record.inner.lock().uvm.len();
    for at in (0..count).rev() {
        let space = record.inner.lock().uvm.get(at).copied();
        // The resource manager is asked without the lock.
        if space.is_some_and(|space| space.goes_with(client, object, is_there)) {
            let all = &mut record.inner.lock().uvm;
            retain(all, |other| Some(*other) != space);
        }
    }
}

/// Records memory that nvidia-uvm has mapped.
pub(crate) fn mapped(glue: &Glue, file: FileId, mapping: &gct_uvm_mapping) {
    let Some(record) = glue.owned.record(file) else {
        return;
    };
    // Others' handles may come to mean other memory, unseen here.
    if !glue.locked(|state| state.has_client(file, mapping.client)) {
        return;
    }
    let inner = record.inner.lock();
    let space = uvm::on_gpu(&inner.uvm, mapping.number, mapping.uuid).copied();
    drop(inner);
    let Some(space) = space else { return };
    let place = Place {
        memory: mapping.memory,
        offset: mapping.offset,
    };
    let bytes = [mapping.address, mapping.bytes];
    let added = Mapping::in_uvm((space.uvm, space.space), mapping.client, place, bytes);
    let added = below_parent(glue, file, added);
    record.tenant.changed(&Change::Added(added));
}

/// Records that nvidia-uvm has unmapped addresses: for a GPU, or for all.
pub(crate) fn unmapped(
    glue: &Glue,
    file: FileId,
    number: u64,
    range: [u64; 2],
    uuid: Option<[u8; 16]>,
) {
    if let Some(record) = glue.owned.record(file) {
        clear(&record, number, range, uuid);
    }
}

fn clear(record: &Record, number: u64, range: [u64; 2], uuid: Option<[u8; 16]>) {
    let change = uvm::cleared(&record.inner.lock().uvm, number, range, uuid);
    if let Some(change) = change {
        record.tenant.changed(&change);
    }
}
