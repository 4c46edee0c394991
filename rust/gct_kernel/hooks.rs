// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the driver and the scheduler report, handed to the core.
//!
//! When the core refuses or memory is short, the core counts it in the tree's `events`
//! and the stock path goes on; but who is under a limit is refused with an error.

use crate::bindings::{gct_call, gct_gpu};
use crate::serve::Served;
use crate::state::{Forked, Glue};
use crate::{exec, process, rm, serve};
use gct_core::engine::{Imported, Passed, Ticket};
use gct_core::error::Error;
use gct_core::faults::Report;
use gct_core::features::{Feature, FeatureSet};
use gct_core::gpu::{Backend, GpuFacts, PciAddress, PciIds};
use gct_core::ids::{FileId, ProcKey};
use gct_core::rmapi::control::Status;
use gct_core::rmapi::{self, Action, Call, Class, Handle, Lookup, Share, Shared, Undoes};
use gct_core::state::{Failure, State};
use gct_core::text::Text;
use kernel::error::code::{ENFILE, ENOMEM};
use kernel::ffi::c_int;
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
        exec::schedule_work(*glue);
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

/// A GPU was resumed. Its limits are told again by the work item, which waits until the driver has resumed all.
pub(crate) fn gpu_resumed(glue: &ArcBorrow<'_, Glue>, gpu_id: u32) {
    let resumed = |state: &mut State<'_>| {
        state.gpu_resumed(gpu_id);
        Ok(())
    };
    count_refusal(glue, with(glue, resumed));
}

pub(crate) fn gpu_remove(glue: &ArcBorrow<'_, Glue>, gpu_id: u32) {
    count_refusal(glue, with(glue, |state| state.gpu_remove(gpu_id)));
}

/// The driver logs a line; the work item counts it if it tells of an error. Any context.
pub(crate) fn log_line(glue: &ArcBorrow<'_, Glue>, line: &[u8]) {
    if let Some(report) = Report::parse(line) {
        glue.reports.put(report);
        exec::schedule_work(*glue);
    }
}

/// The caller's process opened a file of the driver. `None` is a file that is not
/// followed.
///
/// # Errors
///
/// The errno with which the open fails: the process is under a limit, and cannot be
/// followed.
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

pub(crate) fn file_close(glue: &ArcBorrow<'_, Glue>, file: FileId) {
    let outcome = with(glue, |state| {
        let wait = state.wait_for(file);
        state.file_close(file);
        Ok(wait)
    });
    // A control may be in flight that names what the core has just forgotten.
    if let Some(wait) = count_refusal(glue, outcome).flatten() {
        glue.wait(&wait);
    }
    if glue.has_spare() {
        exec::schedule_work(*glue);
    }
}

/// The driver keeps memory that a client has exported, under a name in a client of its own.
pub(crate) fn memory_kept(
    glue: &ArcBorrow<'_, Glue>,
    into: FileId,
    gpu_id: u32,
    client: Handle,
    shared: &Shared,
    (keeper, kept): (Handle, Handle),
) {
    // What its owner has freed meanwhile the driver still has.
    let bytes = rm::memory_bytes(keeper, kept).unwrap_or(0);
    let outcome = with(glue, |state| {
        state.kept(client, shared, into, gpu_id, bytes)
    });
    count_refusal(glue, outcome);
}

/// Decodes an ioctl; `None` when there is nothing to follow.
fn decode(glue: &Glue, escape: u32, bytes: &[u8]) -> Option<Call> {
    rmapi::decode(escape, bytes)
        .inspect_err(|_| glue.count(Failure::Decode))
        .ok()
        .flatten()
}

/// Leaves in `room`, which is empty, what the ioctl's [`ioctl_leave`] needs. Returns whether the ioctl must
/// not run: then its structure says why, and nothing is left.
pub(crate) fn ioctl_enter(
    glue: &ArcBorrow<'_, Glue>,
    file: Option<FileId>,
    escape: u32,
    bytes: &mut [u8],
    room: &mut gct_call,
) -> bool {
    let Some(call) = decode(glue, escape, bytes) else {
        return false;
    };
    let Some(file) = file else {
        if let Ok(Some(status)) = glue.with(|state, _| Ok(state.control_of_unknown_refused(&call)))
        {
            return rmapi::set_status(escape, bytes, status);
        }
        // Opened when no limit bound it, and used by a process that is under one by now.
        return call.concerns_limits()
            && binds(glue, None)
            && rmapi::set_status(escape, bytes, rmapi::INSUFFICIENT_RESOURCES);
    };
    if let Ok(Some(status)) = glue.with(|state, _| Ok(state.call_refused(file, &call))) {
        return rmapi::set_status(escape, bytes, status);
    }
    let takes_channels = takes_channels(glue, file, &call);
    let entered = with(glue, |state| {
        let ticket = state.call_enter(file, &call)?;
        let frees = call.action == Action::Free;
        Ok((ticket, frees.then(|| state.wait_for(file)).flatten()))
    });
    let status = match entered {
        Ok(_) | Err(Error::Gone) => None,
        Err(Error::NoSpace) => Some(rmapi::INSUFFICIENT_RESOURCES),
        Err(_) => Some(rmapi::NO_MEMORY),
    };
    let status = status.filter(|_| binds(glue, Some(file)));
    // Without a limit the end of the ioctl tries again to follow what it made, and counts.
    let later = status.is_none() && matches!(call.action, Action::Alloc { .. } | Action::Share(..));
    let entered = match later {
        true => entered.ok(),
        false => count_refusal(glue, entered),
    };
    if let Some(status) = status {
        return rmapi::set_status(escape, bytes, status);
    }
    if let Some(hint) = call.params() {
        let params = serve::serve(room, &hint);
        if let Some(status) = params.and_then(|params| params_refused(glue, file, &call, params)) {
            drop(serve::taken(room));
            return rmapi::set_status(escape, bytes, status);
        }
    }
    let (ticket, wait) = entered.unwrap_or((Ticket::NONE, None));
    // A control may be in flight that names what is about to be freed.
    if let Some(wait) = wait {
        glue.wait(&wait);
    }
    room.word = ticket.taking_channels(takes_channels).words();
    false
}

/// Why an ioctl with these parameters must not run.
fn params_refused(glue: &Glue, file: FileId, call: &Call, params: &[u8]) -> Option<Status> {
    match call.action {
        Action::Control(Undoes::Channels(_)) => glue
            .with(|state, _| Ok(state.channels_refused(file, params)))
            .ok()?,
        _ => None,
    }
}

/// Is the opener of a file under a limit, or else the caller?
fn binds(glue: &Glue, file: Option<FileId>) -> bool {
    match file {
        Some(file) => glue.binds_file(file),
        None => {
            let mut buffer = process::CGROUP_BUFFER;
            let cgroup = process::cgroup(&mut buffer);
            glue.binds_opener(process::current(), cgroup)
        }
    }
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
    let written = served.as_ref().is_some_and(|served| served.is_written);
    let call = as_made(glue, file, call.with_result(result), result, written);
    let ticket = Ticket::from_words(room.word);
    let word = served
        .as_ref()
        .and_then(|served| rmapi::word(served.bytes()));
    let answer = call
        .lookup()
        .filter(|_| call.succeeded())
        .and_then(|lookup| look_up(glue, &call, &lookup, word));
    let outcome = with(glue, |state| {
        state.call_leave(file, &call, ticket, answer)?;
        if let (Action::Control(Undoes::Channels(_)), Some(served)) = (call.action, &served) {
            state.channels_told(file, served.bytes());
        }
        // Before anybody else has the lock: whose channels may run is kept for the last ioctl only.
        Ok(state.errand_of_file(file))
    });
    let errand = count_refusal(glue, outcome).flatten();
    if let (Action::Share(share, _), Some(served)) = (call.action, &served) {
        shared(glue, file, &call, share, served);
    }
    if let Action::Share(..) = call.action {
        let ended = with(glue, |state| {
            state.imports_end(file, ticket);
            Ok(())
        });
        count_refusal(glue, ended);
    }
    if ticket.takes_channels() && call.succeeded() {
        look_for_channels(glue, file, call.client);
    }
    for errand in [errand, glue.errand_of_file(file)].iter().flatten() {
        exec::run_errand(*glue, errand);
    }
    if call.action == Action::Free && glue.has_spare() {
        exec::schedule_work(*glue);
    }
}

/// May what a call is about to free take channels along that are not below it?
fn takes_channels(glue: &Glue, file: FileId, call: &Call) -> bool {
    match glue.with(|state, _| Ok(state.takes_channels(file, call))) {
        Ok(None) => rm::class_of(call.client, call.object).is_ok_and(Class::takes_channels),
        Ok(Some(takes)) => takes,
        Err(_) => false,
    }
}

/// An allocation that has failed may have made its object: then it has succeeded as far as we go.
fn as_made(glue: &Glue, file: FileId, call: Call, result: u32, written: bool) -> Call {
    let Action::Alloc { class, .. } = call.action else {
        return call;
    };
    if call.succeeded() || result != 0 {
        return call;
    }
    let may_be = glue.with(|state, _| Ok(state.may_be_made(file, &call, written)));
    if may_be != Ok(true) {
        return call;
    }
    let client = match class {
        Class::Client => call.object,
        _ => call.client,
    };
    match rm::class_of(client, call.object) {
        Ok(number) if Class::from_number(number) != class => call,
        // Another one may have been there, and be gone but for its handle.
        Ok(_) if !rm::is_gone(client, call.object, class) => Call { status: 0, ..call },
        _ => call,
    }
}

/// Takes out what the resource manager has freed along: channels and channel groups of a client that it has
/// no more.
fn look_for_channels(glue: &ArcBorrow<'_, Glue>, file: FileId, client: Handle) {
    let first = glue.with(|state, _| Ok(state.next_channel(file, client, 0)));
    let mut at = first.ok().flatten();
    while let Some(passed @ Passed { object, class }) = at {
        let gone = passed.is_channel() && rm::is_gone(client, object, class);
        let next = with(glue, |state| {
            Ok(match gone {
                true => state.vanished(file, client, object),
                false => state.next_channel(file, client, object),
            })
        });
        at = next.ok().flatten();
    }
}

/// Follows what a control has put into a file, or taken out.
fn shared(glue: &ArcBorrow<'_, Glue>, file: FileId, call: &Call, share: Share, served: &Served) {
    // Its parameters may not have been written back: then it has failed, and yet it has happened.
    if !call.succeeded() && !served.is_written {
        return;
    }
    for number in 0..u32::MAX {
        let Some(shared) = share.object(served.bytes(), number) else {
            break;
        };
        if share.exports() {
            let Some(into) = served.file else { break };
            let exported = with(glue, |state| {
                state.exported(file, call.client, &shared, into)
            });
            count_refusal(glue, exported);
        } else if let Some(imported) = imported(glue, file, call.client, shared.object) {
            let followed = with(glue, |state| {
                state.imported(file, call.client, &shared, served.file, &imported)
            });
            count_refusal(glue, followed);
        }
    }
}

/// What the resource manager says of an object that a client has just got; `None` if it has not, or it is
/// known already.
fn imported(glue: &Glue, file: FileId, client: Handle, object: Handle) -> Option<Imported> {
    let vacant = glue.with(|state, _| Ok(state.is_vacant(file, client, object)));
    (object != 0 && vacant == Ok(true)).then_some(())?;
    let class = Class::from_number(rm::class_of(client, object).ok()?);
    let bytes = match class {
        Class::DeviceMemory => rm::memory_bytes(client, object).unwrap_or(0),
        _ => 0,
    };
    Some(Imported { class, bytes })
}

/// Finds out what the ioctl's structure does not say. `word` is what the resource manager has read, and
/// perhaps written, where the lookup's hint points.
fn look_up(glue: &Glue, call: &Call, lookup: &Lookup, word: Option<u64>) -> Option<u64> {
    match lookup {
        Lookup::Bytes(_) => rm::memory_bytes(call.client, call.object).or(word),
        Lookup::Engine(_) => word,
        Lookup::GpuOfInstance(None) => rm::gpu_of_instance(glue, call.client, 0),
        Lookup::GpuOfInstance(Some(_)) => rm::gpu_of_instance(glue, call.client, word?),
        Lookup::GpuOfSubdevice => rm::gpu_of_subdevice(call.client, call.object),
    }
}

/// A process forked. Returns whether the child, which cannot run yet, may. Nothing here
/// may sleep.
pub(crate) fn fork(glue: &ArcBorrow<'_, Glue>, parent: ProcKey, child: ProcKey) -> bool {
    let forked = glue.forked(parent, child);
    if forked != Forked::Followed {
        // It is counted where sleeping is allowed.
        exec::schedule_work(*glue);
    }
    forked != Forked::MustNotRun
}
