// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the driver and the scheduler report, handed to the core.
//!
//! Nothing here can fail the caller. When the core refuses or memory is short, the
//! core counts it in the tree's `events` and the stock path goes on.

use crate::bindings::{gct_call, gct_gpu};
use crate::state::{Forked, Glue};
use crate::{exec, process, rm, serve};
use gct_core::engine::Ticket;
use gct_core::error::Error;
use gct_core::faults::Report;
use gct_core::features::{Feature, FeatureSet};
use gct_core::gpu::{Backend, GpuFacts, PciAddress, PciIds};
use gct_core::ids::{FileId, ProcKey};
use gct_core::rmapi::{self, Action, Call, Question};
use gct_core::state::{Failure, State};
use gct_core::text::Text;
use kernel::sync::ArcBorrow;

/// What this backend measures and enforces: what the resource manager's controls can do.
const FEATURES: FeatureSet = FeatureSet::NONE
    .with(Feature::GmemCharge)
    .with(Feature::Timeslice)
    .with(Feature::Freeze)
    .with(Feature::Faults);

/// Runs `operation` under the core's mutex and has the tree and the resource manager
/// follow it.
fn with<T>(
    glue: &ArcBorrow<'_, Glue>,
    mut operation: impl FnMut(&mut State<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let (outcome, effects) = glue.with(|state, _| match operation(state) {
        Err(need @ Error::NeedSlots(_)) => Err(need),
        outcome => Ok((outcome, state.has_effects() || state.has_controls())),
    })?;
    if effects {
        exec::later(*glue);
    }
    outcome
}

/// Counts what the core refused. Storage that could not be had is counted already.
fn count_refusal<T>(glue: &Glue, outcome: Result<T, Error>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(Error::NoSpace) => {
            glue.count(Failure::Limit);
            None
        }
        Err(_) => None,
    }
}

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
    count_refusal(glue, with(glue, |state| state.gpu_add(&facts, FEATURES)));
}

pub(crate) fn gpu_uuid(glue: &ArcBorrow<'_, Glue>, gpu_id: u32, uuid: [u8; 16]) {
    count_refusal(glue, with(glue, |state| state.gpu_uuid(gpu_id, uuid)));
}

pub(crate) fn gpu_remove(glue: &ArcBorrow<'_, Glue>, gpu_id: u32) {
    count_refusal(glue, with(glue, |state| state.gpu_remove(gpu_id)));
}

/// The driver logs a line; the work item counts it if it tells of an error. Any context.
pub(crate) fn log_line(glue: &ArcBorrow<'_, Glue>, line: &[u8]) {
    if let Some(report) = Report::parse(line) {
        glue.reports.put(report);
        exec::later(*glue);
    }
}

/// The caller's process opened a file of the driver.
pub(crate) fn file_open(glue: &ArcBorrow<'_, Glue>) -> Option<FileId> {
    let own = process::current();
    let mut buffer = process::CGROUP_BUFFER;
    let cgroup = process::cgroup(&mut buffer);
    let outcome = glue.with(|state, members| {
        let group = members.with(|members| members.group_of(own));
        state.file_open(own, cgroup, group)
    });
    count_refusal(glue, outcome)
}

pub(crate) fn file_close(glue: &ArcBorrow<'_, Glue>, file: FileId) {
    let outcome = with(glue, |state| {
        state.file_close(file);
        Ok(state.is_sending())
    });
    if count_refusal(glue, outcome) == Some(true) {
        exec::wait_for_control(glue);
    }
}

/// Decodes an ioctl; `None` when there is nothing to follow.
fn decode(glue: &Glue, escape: u32, bytes: &[u8]) -> Option<Call> {
    rmapi::decode(escape, bytes)
        .inspect_err(|_| glue.count(Failure::Decode))
        .ok()
        .flatten()
}

/// Leaves in `room`, which is empty, what the ioctl's [`ioctl_leave`] needs.
pub(crate) fn ioctl_enter(
    glue: &ArcBorrow<'_, Glue>,
    file: FileId,
    escape: u32,
    bytes: &[u8],
    room: &mut gct_call,
) {
    let Some(call) = decode(glue, escape, bytes) else {
        return;
    };
    if let Some(hint) = call.question().and_then(|question| question.hint()) {
        serve::serve(room, &hint);
    }
    let entered = with(glue, |state| {
        let ticket = state.call_enter(file, &call)?;
        Ok((ticket, state.is_sending()))
    });
    let (ticket, sending) = count_refusal(glue, entered).unwrap_or((Ticket::NONE, false));
    if sending && call.action == Action::Free {
        exec::wait_for_control(glue);
    }
    room.word = ticket.words();
}

pub(crate) fn ioctl_leave(
    glue: &ArcBorrow<'_, Glue>,
    file: FileId,
    escape: u32,
    bytes: &[u8],
    room: &mut gct_call,
    result: u32,
) {
    let served = serve::taken(room);
    // What could not be decoded was counted when the ioctl began.
    let Ok(Some(call)) = rmapi::decode(escape, bytes) else {
        return;
    };
    let call = call.with_result(result);
    let ticket = Ticket::from_words(room.word);
    let word = served
        .as_ref()
        .and_then(|served| rmapi::word(served.bytes()));
    let told = call
        .question()
        .filter(|_| call.succeeded())
        .and_then(|question| answer(glue, &call, &question, word));
    let outcome = with(glue, |state| state.call_leave(file, &call, ticket, told));
    count_refusal(glue, outcome);
    exec::after_ioctl(*glue);
}

/// Finds out what the ioctl's structure does not say. `word` is what the resource manager has read, and
/// perhaps written, where the question's hint points.
fn answer(glue: &Glue, call: &Call, question: &Question, word: Option<u64>) -> Option<u64> {
    match question {
        Question::Bytes(_) => rm::memory_bytes(call.client, call.object).or(word),
        Question::GpuOfInstance(None) => rm::gpu_of_instance(glue, call.client, 0),
        Question::GpuOfInstance(Some(_)) => rm::gpu_of_instance(glue, call.client, word?),
        Question::GpuOfSubdevice => rm::gpu_of_subdevice(call.client, call.object),
    }
}

/// A process forked. Returns whether the child, which cannot run yet, may. Nothing here
/// may sleep.
pub(crate) fn fork(glue: &ArcBorrow<'_, Glue>, parent: ProcKey, child: ProcKey) -> bool {
    let forked = glue.forked(parent, child);
    if forked != Forked::Followed {
        // It is counted where sleeping is allowed.
        exec::later(*glue);
    }
    forked != Forked::MustNotRun
}
