// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sets the limits of tenants with owned channels, and counts their launches.

use super::{Limited, Record};
use crate::bindings;
use crate::state::Glue;
use gct_core::engine::{Progress, Terms};
use gct_core::ids::FileId;
use gct_core::iface::value::CpuList;
use kernel::sync::atomic::Relaxed;

/// Takes over what a write has changed. Chooses which calls the hooks pass, and sets the limits of
/// all tenants. Nothing is published under the former ones any more when this returns.
pub(crate) fn update(glue: &Glue) {
    // Of two writes, the later one's limits stay.
    let _updating = glue.owned.updating.lock();
    pass_calls(glue);
    each_limited(glue, |record, limited| {
        if let Some(terms) = terms(glue, record.file, limited.gpu) {
            limited.set(&terms);
        }
    });
    // What a tenant may do depends on the limits of others, too. A round that began before may use
    // the former ones.
    for gpu in glue.owned.live.lock().iter() {
        gpu.settle();
    }
}

/// Lets the hooks pass calls that map memory while a file has a record, which must not miss what
/// is unmapped, or some process is to have one. [`Owned::updating`] is held.
fn pass_calls(glue: &Glue) {
    let is_recording = glue.owned.records.load(Relaxed) > 0;
    let on = is_recording || glue.locked(|state| state.wants_records());
    // SAFETY: has no preconditions.
    unsafe { bindings::gct_helper_own(on) };
}

/// Follows up after a record has come or gone.
pub(super) fn records_changed(glue: &Glue) {
    let _updating = glue.owned.updating.lock();
    pass_calls(glue);
}

/// Has the workers run where `worker.cpus` of their GPUs says.
pub(crate) fn move_workers(glue: &Glue) {
    let _updating = glue.owned.updating.lock();
    for gpu in glue.owned.live.lock().iter() {
        gpu.run_on(&glue.locked(|state| state.worker_cpus(gpu.id)));
    }
}

/// Returns whether one of a list of processors is online.
pub(crate) fn is_online(cpus: &CpuList) -> bool {
    let list = cpus.as_bytes();
    // CAST: at most 127.
    let length = list.len() as u32;
    // SAFETY: the list has that length.
    unsafe { bindings::gct_helper_cpus_online(list.as_ptr(), length) != 0 }
}

/// Has the core show what a GPU's worker has cost.
pub(crate) fn report_cost(glue: &Glue, gpu: u32) {
    let live = glue.owned.live.lock();
    let cost = live
        .iter()
        .find(|live| live.id == gpu)
        .map(|live| live.cost());
    drop(live);
    glue.locked(|state| state.set_worker_cost(gpu, cost.unwrap_or_default()));
}

/// Returns the limits of a file's process on a GPU.
pub(super) fn terms(glue: &Glue, file: FileId, gpu: u32) -> Option<Terms> {
    glue.locked(|state| state.launch_terms(file, gpu))
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
    each_limited(glue, |record, limited| {
        let progress = limited.report();
        glue.locked(|state| state.progressed(record.file, limited.gpu, &progress));
    });
}

/// Has the core count the launches of a file that is about to be closed.
pub(crate) fn report_file(glue: &Glue, file: FileId) {
    if let Some(record) = glue.owned.record(file) {
        each_limited_of(&record, |limited| {
            // Its channels end.
            let progress = Progress {
                pending: 0,
                ..limited.report()
            };
            glue.locked(|state| state.progressed(file, limited.gpu, &progress));
        });
    }
}
