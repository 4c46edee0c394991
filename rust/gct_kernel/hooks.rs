// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Passes to the core what the driver and the scheduler report.
//!
//! If the core refuses or memory is short, the tree's `events` counts it and the stock path
//! continues. A process under a limit gets an error instead.

use crate::bindings::gct_gpu;
use crate::state::{Forked, Glue};
use crate::{exec, owned, process, rm};
use gct_core::costs::Costs;
use gct_core::error::Error;
use gct_core::failures::Failure;
use gct_core::faults::Report;
use gct_core::features::{Feature, FeatureSet};
use gct_core::gpu::{Backend, GpuFacts, PciAddress, PciIds};
use gct_core::ids::{FileId, ProcKey};
use gct_core::owned::can_own;
use gct_core::rmapi::{Handle, Shared};
use gct_core::state::State;
use gct_core::text::Text;
use gct_core::units::Bytes;
use kernel::error::code::{ENFILE, ENOMEM};
use kernel::ffi::c_int;
use kernel::sync::ArcBorrow;

/// What this backend measures and enforces: what controls of the resource manager can do.
const FEATURES: FeatureSet = FeatureSet::NONE
    .with(Feature::GmemCharge)
    .with(Feature::GmemLimit)
    .with(Feature::GmemLow)
    .with(Feature::GmemUvm)
    .with(Feature::GmemTables)
    .with(Feature::GmemEvict)
    .with(Feature::HmemCharge)
    .with(Feature::HmemLimit)
    .with(Feature::Timeslice)
    .with(Feature::Freeze)
    .with(Feature::Faults);

/// What the driver also does on GPUs whose channels it can own.
const WITH_CHANNELS: FeatureSet = FEATURES
    .with(Feature::ChannelOwned)
    .with(Feature::ChannelStrict)
    .with(Feature::Priority)
    .with(Feature::Weight)
    .with(Feature::Bandwidth)
    .with(Feature::Usage);

/// What it also does there once it knows the GPU's TPCs.
pub(crate) const WITH_TPCS: FeatureSet = FeatureSet::NONE
    .with(Feature::TpcQuota)
    .with(Feature::TpcMask)
    .with(Feature::TpcSteal)
    .with(Feature::AtomDuration)
    .with(Feature::SlipTpc);

/// Runs `operation` under the core's mutex, then schedules the work that it left: directories to
/// make or remove, controls to send.
pub(crate) fn with<T>(
    glue: &ArcBorrow<'_, Glue>,
    mut operation: impl FnMut(&mut State<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let (outcome, effects) = glue.with(|state, _| match operation(state) {
        Err(need @ Error::NeedSlots(_)) => Err(need),
        outcome => {
            let has_more = state.has_effects() || state.has_controls() || state.has_new_pauses();
            Ok((outcome, has_more))
        }
    })?;
    if effects {
        exec::schedule_work(*glue);
    }
    outcome
}

/// Counts what the core refused. [`Glue::with`] has counted missing memory already.
pub(crate) fn count_refusal<T>(glue: &Glue, outcome: Result<T, Error>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(Error::NoSpace) => {
            glue.count(Failure::Limit);
            None
        }
        Err(_) => None,
    }
}

/// Adds a GPU that the driver has probed.
pub(crate) fn gpu_add(glue: &ArcBorrow<'_, Glue>, gpu: &gct_gpu) {
    let pci = PciAddress {
        domain: gpu.domain,
        bus: gpu.bus,
        slot: gpu.slot,
        function: gpu.function,
    };
    let mut facts = GpuFacts::new(gpu.gpu_id, pci, Backend::Kernel);
    facts.minor = gpu.minor;
    facts.ids = PciIds {
        vendor: gpu.vendor,
        device: gpu.device,
        subsystem_vendor: gpu.subsystem_vendor,
        subsystem_device: gpu.subsystem_device,
    };
    facts.name = Text::from_untrusted(&gpu.name);
    facts.boot_42 = gpu.pmc_boot_42;
    // Measured for Hopper, and an estimate for others.
    facts.costs = Costs::HOPPER;
    let features = match can_own(&facts) {
        true => WITH_CHANNELS,
        false => FEATURES,
    };
    count_refusal(glue, with(glue, |state| state.gpu_add(&facts, features)));
}

/// Stores a GPU's UUID.
pub(crate) fn gpu_uuid(glue: &ArcBorrow<'_, Glue>, gpu_id: u32, uuid: [u8; 16]) {
    count_refusal(glue, with(glue, |state| state.gpu_uuid(gpu_id, uuid)));
}

/// Makes the work item send a resumed GPU's limits again. It waits until the driver has resumed all
/// GPUs.
pub(crate) fn gpu_resumed(glue: &ArcBorrow<'_, Glue>, gpu_id: u32) {
    let resumed = |state: &mut State<'_>| {
        state.gpu_resumed(gpu_id);
        Ok(())
    };
    count_refusal(glue, with(glue, resumed));
}

/// Removes a GPU.
pub(crate) fn gpu_remove(glue: &ArcBorrow<'_, Glue>, gpu_id: u32) {
    count_refusal(glue, with(glue, |state| state.gpu_remove(gpu_id)));
    owned::gpu_removed(glue, gpu_id);
}

/// Leaves a line that the driver logs for the work item, which counts the error in it. Any context.
pub(crate) fn log_line(glue: &ArcBorrow<'_, Glue>, line: &[u8]) {
    if let Some(report) = Report::parse(line) {
        glue.reports.put(report);
        exec::schedule_work(*glue);
    }
}

/// Follows a file of the driver that the current process opens. Returns `None` if it cannot be
/// followed.
///
/// # Errors
///
/// The errno with which the open fails: the file cannot be followed, and the process is under a
/// limit.
pub(crate) fn file_open(glue: &ArcBorrow<'_, Glue>) -> Result<Option<FileId>, c_int> {
    let (own, user) = (process::current(), process::user());
    let mut buffer = process::CGROUP_BUFFER;
    let cgroup = process::cgroup(&mut buffer);
    let outcome = glue.with(|state, members| {
        let group = members.with(|members| members.group_of(own));
        state.file_open_by(user, own, cgroup, group)
    });
    let errno = match outcome {
        Err(Error::NoSpace) => ENFILE.to_errno(),
        _ => ENOMEM.to_errno(),
    };
    let file = count_refusal(glue, outcome);
    match file.is_none() && glue.binds_opener(own, cgroup) {
        true => Err(errno),
        false => Ok(file),
    }
}

/// Forgets a file, and waits until no control names its objects.
pub(crate) fn file_close(glue: &ArcBorrow<'_, Glue>, file: FileId) {
    owned::report_file(glue, file);
    let reserves = glue.locked(|state| state.reserves(file));
    while glue.locked(|state| state.file_closes(file)) {}
    let outcome = with(glue, |state| {
        let wait = state.wait_for(file);
        state.file_close(file);
        Ok(wait)
    });
    // A control in flight may name objects that the core has just forgotten.
    if let Some(wait) = count_refusal(glue, outcome).flatten() {
        glue.wait(&wait);
    }
    owned::file_closed(glue, file);
    if reserves {
        owned::update(glue);
    }
    if glue.has_spare() {
        exec::schedule_work(*glue);
    }
}

/// Follows memory that the driver keeps for a dma-buf. Returns whether the driver may keep it: it
/// must not if it cannot be followed and its exporter is under a limit.
pub(crate) fn memory_kept(
    glue: &ArcBorrow<'_, Glue>,
    into: FileId,
    gpu_id: u32,
    client: Handle,
    shared: &Shared,
    bytes: u64,
) -> bool {
    if owned::is_lent(glue, client, shared.object) {
        return false;
    }
    let outcome = with(glue, |state| {
        state.kept(client, shared, into, gpu_id, bytes)
    });
    count_refusal(glue, outcome).is_some() || !glue.binds_file(into)
}

/// Charges memory of a dma-buf with its size, unless it is charged by another name. The driver
/// keeps it by the duplicate `kept` in its client `keeper`.
pub(crate) fn memory_size(
    glue: &Glue,
    into: FileId,
    shared: &Shared,
    (keeper, kept): (Handle, Handle),
) {
    if !glue.locked(|state| state.lacks_bytes(shared, into)) {
        return;
    }
    if let Some(bytes) = rm::memory_bytes(keeper, kept) {
        glue.locked(|state| state.kept_bytes(shared, into, Bytes(bytes)));
    }
}

/// Follows a fork. Returns whether the child, which does not run yet, may run. Must not sleep.
pub(crate) fn fork(glue: &ArcBorrow<'_, Glue>, parent: ProcKey, child: ProcKey) -> bool {
    let forked = glue.forked(parent, child);
    if forked != Forked::Followed {
        // The work item may sleep, so it counts.
        exec::schedule_work(*glue);
    }
    forked != Forked::MustNotRun
}
