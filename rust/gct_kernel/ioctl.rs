// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Has the core follow an ioctl of a tenant, before and after the resource manager runs it.
//!
//! ```text
//! ioctl_enter   decode, ask the core whether it may run, copy its parameters, charge memory,
//!               store it in gct_call
//! rm_ioctl()    the resource manager runs it
//! ioctl_leave   take it from gct_call, read what RM wrote back, update the core, send controls;
//!               free memory that is more than was charged and exceeds a limit
//! ```
//!
//! If the core need not follow an ioctl, `gct_call` stays empty and [`ioctl_leave`] returns at
//! once.

use crate::bindings::gct_call;
use crate::hooks::{count_refusal, with, WITH_TPCS};
use crate::serve::{self, Served};
use crate::state::Glue;
use crate::{exec, kept, memory_info, owned, rm, rules, uvm};
use gct_core::engine::{Flush, Imported, KeptNames, Ticket, Visited, Wait};
use gct_core::error::Error;
use gct_core::failures::Failure;
use gct_core::ids::FileId;
use gct_core::owned::Request;
use gct_core::rmapi::allow::{Asked, Rule};
use gct_core::rmapi::channel::ChannelMemory;
use gct_core::rmapi::control::Status;
use gct_core::rmapi::escape::MAP_MEMORY;
use gct_core::rmapi::{self, Action, Call, Class, Handle, Lookup, Overrides, Share, Shared};
use gct_core::state::State;
use kernel::sync::ArcBorrow;

/// An ioctl between [`ioctl_enter`] and [`ioctl_leave`].
#[derive(Clone, Copy)]
struct Entered {
    call: Call,
    ticket: Ticket,
    /// Whether freeing the object may free channels that are not below it.
    takes_channels: bool,
}

const _: () = assert!(size_of::<Entered>() <= size_of::<[u64; gct_call::ENTERED_WORDS]>());
const _: () = assert!(align_of::<Entered>() <= align_of::<u64>());

impl Entered {
    /// Stores it in `room`.
    fn put(self, room: &mut gct_call) {
        // SAFETY: by the asserts above, a value fits into `entered` and is aligned there. What it
        // overwrites are words.
        unsafe { room.entered.as_mut_ptr().cast::<Self>().write(self) };
        room.has_entered = 1;
    }

    /// Takes it out of `room`, if there is one.
    fn take(room: &mut gct_call) -> Option<Self> {
        if core::mem::take(&mut room.has_entered) == 0 {
            return None;
        }
        // SAFETY: `gct_ioctl_enter` clears `has_entered`, and only `put` sets it, after it has
        // written a value to `entered`. The driver does not touch or move a `gct_call` (gct.h).
        Some(unsafe { room.entered.as_ptr().cast::<Self>().read() })
    }
}

impl gct_call {
    /// Length of `entered`.
    const ENTERED_WORDS: usize = 16;

    /// Without an ioctl, and without served parameters.
    pub(crate) const EMPTY: Self = Self {
        has_entered: 0,
        entered: [0; Self::ENTERED_WORDS],
        served: [0; 8],
    };
}

/// Prepares for an ioctl that is about to run, and stores it in `room`, which is empty.
///
/// Returns whether the ioctl must not run. In that case its structure has got a status, and `room`
/// is empty.
pub(crate) fn ioctl_enter(
    glue: &ArcBorrow<'_, Glue>,
    file: Option<FileId>,
    escape: u32,
    bytes: &mut [u8],
    room: &mut gct_call,
) -> bool {
    if escape == MAP_MEMORY && file.is_some() && owned::is_owning() {
        serve::watch(room);
        return false;
    }
    if let Err(status) = rules::obey(glue, file, escape, bytes) {
        return rmapi::set_status(escape, bytes, status);
    }
    let decoded = rmapi::decode(escape, bytes).inspect_err(|_| glue.count(Failure::Decode));
    let Some(call) = decoded.ok().flatten().filter(Call::is_followed) else {
        return false;
    };
    let admitted = rules::leave_lent(glue, &call).and_then(|()| match file {
        Some(file) => admit(glue, file, &call, room),
        None => rules::admit_unfollowed(glue, &call),
    });
    match admitted {
        Ok(()) => false,
        Err(status) => rmapi::set_status(escape, bytes, status),
    }
}

/// Decides whether an ioctl on a followed file may run, and stores it in `room`.
///
/// # Errors
///
/// The status with which the ioctl is refused.
fn admit(glue: &Glue, file: FileId, call: &Call, room: &mut gct_call) -> Result<(), Status> {
    let (mut entered, wait) = enter(glue, file, call)?;
    let owns = owned::is_owning();
    let hint = match owns {
        true => call.params_of_owned(),
        false => call.params(),
    };
    let (mut request, mut bytes, mut memory) = (None, None, None);
    if let Some(hint) = hint {
        let most = owns.then(|| call.params_most()).unwrap_or(0);
        let params = serve::serve(room, &hint, most);
        request = params.and_then(|params| Request::decode(params).ok());
        bytes = params.and_then(|params| call.answer_in(params));
        memory = params.and_then(ChannelMemory::decode);
        let refused = params.and_then(|params| params_refused(glue, file, call, params));
        if let Some(status) = refused {
            drop(serve::taken(room));
            return Err(status);
        }
    }
    if call.allocates_channel() {
        let kept = kept::for_channel(glue, file, call, memory, request);
        let kept = kept
            .or_else(|error| not_prepared(glue, file, call, error).map(|()| KeptNames::default()));
        entered.ticket = entered.ticket.with_keeps(kept.map_err(|status| {
            drop(serve::taken(room));
            refused(glue, file, call, &entered, status)
        })?);
    }
    if let Err(status) = charge(glue, file, &mut entered, bytes) {
        drop(serve::taken(room));
        return Err(status);
    }
    // A control in flight may name what the ioctl frees.
    if let Some(wait) = wait {
        glue.wait(&wait);
    }
    if owns {
        if let Err(status) = owned::enter(glue, file, call, request, room) {
            drop(serve::taken(room));
            return Err(refused(glue, file, call, &entered, status));
        }
    }
    entered.put(room);
    Ok(())
}

/// Ends an ioctl for the core that does not run. Returns its status.
fn refused(glue: &Glue, file: FileId, call: &Call, entered: &Entered, status: Status) -> Status {
    let refused = Call { status, ..*call };
    let left = glue.with(|state, _| state.call_leave(file, &refused, entered.ticket, None));
    count_refusal(glue, left);
    status
}

/// Prepares the core for an ioctl. Also returns the control in flight that a free has to wait for.
///
/// # Errors
///
/// The status with which the ioctl is refused.
fn enter(glue: &Glue, file: FileId, call: &Call) -> Result<(Entered, Option<Wait>), Status> {
    let prepared = glue.with(|state, _| {
        if let Some(status) = state.call_refused(file, call) {
            return Ok(Err(status));
        }
        if state.is_crowded(file, call) {
            state.count(Failure::Limit);
            return Ok(Err(rmapi::INSUFFICIENT_RESOURCES));
        }
        // Ask first: `call_enter` hides what the ioctl frees.
        let takes_channels = state.takes_channels(file, call);
        let ticket = state.call_begin(file, call)?;
        Ok(Ok((ticket, takes_channels)))
    });
    let (mut ticket, takes_channels) = match prepared {
        Ok(prepared) => prepared?,
        Err(error) => {
            not_prepared(glue, file, call, error)?;
            (Ticket::NONE, Some(false))
        }
    };
    let wait = match call.action {
        Action::Free => hidden(glue, file, &mut ticket),
        _ => None,
    };
    let of_class = || rm::class_of(call.client, call.object).is_ok_and(Class::takes_channels);
    let entered = Entered {
        call: *call,
        ticket,
        takes_channels: takes_channels.unwrap_or_else(of_class),
    };
    Ok((entered, wait))
}

/// Hides what is left of the objects that an ioctl may free. Returns the control in flight that may
/// name one of them.
fn hidden(glue: &Glue, file: FileId, ticket: &mut Ticket) -> Option<Wait> {
    loop {
        // No control can name them once the last one is hidden.
        let step = |state: &mut State<'_>| match state.hides_more(ticket) {
            true => None,
            false => Some(state.wait_for(file)),
        };
        if let Some(wait) = glue.locked(step) {
            return wait;
        }
    }
}

/// Charges the device memory that an ioctl is about to allocate: `bytes` of its parameters, or what
/// its structure says.
///
/// # Errors
///
/// The status with which the ioctl is refused. Then it has ended for the core.
fn charge(
    glue: &Glue,
    file: FileId,
    entered: &mut Entered,
    bytes: Option<u64>,
) -> Result<(), Status> {
    let call = &entered.call;
    if !call.allocates_memory() {
        return Ok(());
    }
    uvm::settle(glue);
    // Managed memory of the process, and of its group, gives way.
    for _ in 0..2 {
        let lacking = glue.locked(|state| state.call_lacks_room(file, call, bytes));
        let Some((owner, gpu, more)) = lacking else {
            break;
        };
        // No signal makes it fail but one that kills.
        uvm::make_room(glue, owner, gpu, more, uvm::is_killed);
    }
    let refused = match glue.with(|state, _| state.call_try_charge(file, call, bytes)) {
        Ok(Some(charge)) => {
            entered.ticket = entered.ticket.with_charge(charge);
            return Ok(());
        }
        Ok(None) => rmapi::NO_MEMORY,
        Err(error) => match not_prepared(glue, file, call, error) {
            Ok(()) => return Ok(()),
            Err(status) => status,
        },
    };
    Err(self::refused(glue, file, call, entered, refused))
}

/// Counts that the core could not prepare for an ioctl. Under a limit the ioctl is refused.
///
/// # Errors
///
/// The status with which the ioctl is refused.
fn not_prepared(glue: &Glue, file: FileId, call: &Call, error: Error) -> Result<(), Status> {
    let status = match error {
        Error::Gone => None,
        Error::NoSpace => Some(rmapi::INSUFFICIENT_RESOURCES),
        _ => Some(rmapi::NO_MEMORY),
    };
    let status = status.filter(|_| glue.binds_file(file));
    // Without a limit `ioctl_leave` tries again to follow what these make, and counts then.
    let again = matches!(call.action, Action::Alloc { .. } | Action::Share(..));
    if status.is_some() || !again {
        count_refusal(glue, Err::<(), _>(error));
    }
    status.map_or(Ok(()), Err)
}

/// Returns why an ioctl with these parameters must not run.
fn params_refused(glue: &Glue, file: FileId, call: &Call, params: &[u8]) -> Option<Status> {
    match call.action {
        Action::Control(Overrides::Channels(_)) => {
            glue.locked(|state| state.channels_refused(file, params))
        }
        Action::Control(Overrides::Mode(mode, _)) if !mode.allows(params) => {
            let asked = Asked {
                client: call.client,
                object: call.object,
                number: mode.command(),
                rule: Rule::Checked,
            };
            owned::is_owning().then(|| rules::forbid(glue, Some(file), &asked).err())?
        }
        Action::Alloc {
            class: Class::Debugger,
            ..
        } => {
            // RM takes 0 for the caller's own client.
            let debugged = rmapi::word(params).and_then(|word| Handle::try_from(word).ok());
            if let Some(client) = debugged.filter(|client| *client != 0) {
                glue.locked(|state| state.entangle(file, client));
            }
            None
        }
        _ => None,
    }
}

/// What the core has made of an ioctl that has run.
enum Left {
    /// It is recorded. There may be controls to send.
    Recorded(Option<Flush>),
    /// It has allocated more memory than was charged, and more than a limit allows.
    Outgrown,
}

/// Updates the core after an ioctl, and sends the controls that this requires.
pub(crate) fn ioctl_leave(
    glue: &ArcBorrow<'_, Glue>,
    file: FileId,
    escape: u32,
    bytes: &mut [u8],
    room: &mut gct_call,
    result: u32,
) {
    if escape == MAP_MEMORY {
        let by = serve::found(room);
        return owned::cpu_mapped(glue, file, bytes, by, result);
    }
    let served = serve::taken(room);
    owned::mapped(glue, file, escape, bytes, result);
    memory_info::show(glue, file, escape, bytes, result);
    let Some(entered) = Entered::take(room) else {
        return;
    };
    let call = entered.call.returned(escape, bytes, result);
    let written = served.as_ref().is_some_and(|served| served.is_written);
    let mut call = as_made(glue, file, call, result, written);
    let answer = look_up(glue, &call, served.as_ref());
    let is_owned = owned::settled(glue, file, &call);
    if call.action == Action::Free {
        while glue.locked(|state| state.frees_more(file, &call, entered.ticket)) {}
    }
    let leave = |call: &Call, within_limit: bool| {
        with(glue, |state| {
            if within_limit && state.outgrows_limit(file, call, entered.ticket, answer) {
                return Ok(Left::Outgrown);
            }
            state.call_leave(file, call, entered.ticket, answer)?;
            if let Some(is_owned) = is_owned {
                state.owned_made(file, call.client, call.object, is_owned);
            }
            if let (Action::Control(Overrides::Channels(_)), Some(served)) = (call.action, &served)
            {
                state.channels_told(file, served.bytes());
            }
            // Under the same lock: the next ioctl overwrites whose channels this one let run.
            Ok(Left::Recorded(state.flush_of_file(file)))
        })
    };
    let mut left = leave(&call, true);
    let mut refused = Ok(());
    if matches!(left, Ok(Left::Outgrown)) {
        refused = take_back(&mut call, rmapi::NO_MEMORY);
        left = leave(&call, false);
    }
    if left.is_err() {
        glue.locked(|state| state.uncharge_ticket(file, entered.ticket));
    }
    refused = refused.and_then(|()| follow_unknown(glue, file, &mut call, entered.ticket));
    if let Err(status) = refused {
        rmapi::set_status(escape, bytes, status);
    }
    let flush = match count_refusal(glue, left) {
        Some(Left::Recorded(flush)) => flush,
        _ => None,
    };
    follow_others(glue, file, &call, &entered, served.as_ref());
    owned::leave(glue, file, &call, served.as_ref(), entered.takes_channels);
    if let Some(flush) = flush {
        exec::flush_controls(*glue, &flush);
    }
    if matches!(call.action, Action::Share(..) | Action::Free) {
        // `follow_others` may have found objects that need further controls.
        if let Some(flush) = glue.flush_of_file(file) {
            exec::flush_controls(*glue, &flush);
        }
    }
    if call.action == Action::Free && glue.has_spare() {
        exec::schedule_work(*glue);
    }
}

/// Follows an alias of an object that the core did not know when the ioctl began, because another
/// thread was allocating or freeing it. The alias is charged as an object of its own.
///
/// # Errors
///
/// The status with which the ioctl fails: the alias cannot be followed, and its process is under a
/// limit. It is freed.
fn follow_unknown(
    glue: &ArcBorrow<'_, Glue>,
    file: FileId,
    call: &mut Call,
    ticket: Ticket,
) -> Result<(), Status> {
    let is_alias = matches!(call.action, Action::Dup { .. });
    if !is_alias || ticket != Ticket::NONE || !call.succeeded() {
        return Ok(());
    }
    let Some(alias) = imported(glue, file, call.client, call.object) else {
        return Ok(());
    };
    let shared = Shared {
        index: 0,
        object: call.object,
        parent: call.parent,
    };
    let add = |state: &mut State<'_>| state.imported(file, call.client, &shared, None, &alias);
    let followed = count_refusal(glue, with(glue, add)).is_some();
    if followed || !glue.binds_file(file) {
        return Ok(());
    }
    take_back(call, rmapi::INSUFFICIENT_RESOURCES)
}

/// Frees what an ioctl has made, so that the ioctl fails after all. What cannot be freed stays, and
/// counts.
///
/// # Errors
///
/// `status`: it is freed.
fn take_back(call: &mut Call, status: Status) -> Result<(), Status> {
    if rm::free(call.client, call.object).is_err() {
        return Ok(());
    }
    call.status = status;
    Err(status)
}

/// Follows objects that an ioctl made or freed, but that its structure does not name.
fn follow_others(
    glue: &ArcBorrow<'_, Glue>,
    file: FileId,
    call: &Call,
    entered: &Entered,
    served: Option<&Served>,
) {
    match call.action {
        Action::Share(share, _) => {
            if let Some(served) = served {
                let other = served.file;
                glue.locked(|state| state.entangle_by_file(file, other, share.exports()));
                follow_shared(glue, file, call, share, served);
            }
            let end = |state: &mut State<'_>| {
                state.share_ends(file, entered.ticket);
                Ok(())
            };
            count_refusal(glue, with(glue, end));
        }
        Action::Free if entered.takes_channels && call.succeeded() => {
            forget_freed_channels(glue, file, call.client);
        }
        _ => {}
    }
}

/// Returns the call as a success if an allocation failed but left its object behind.
fn as_made(glue: &Glue, file: FileId, call: Call, result: u32, written: bool) -> Call {
    let Action::Alloc { class, .. } = call.action else {
        return call;
    };
    if call.succeeded() || result != 0 {
        return call;
    }
    if !glue.locked(|state| state.may_be_made(file, &call, written)) {
        return call;
    }
    let client = match class {
        Class::Client => call.object,
        _ => call.client,
    };
    match rm::class_of(client, call.object) {
        Ok(number) if Class::from_number(number) != class => call,
        // The handle may be all that is left of an older object.
        Ok(_) if !rm::is_gone(client, call.object, class) => Call { status: 0, ..call },
        _ => call,
    }
}

/// Forgets those channels and channel groups of a client that the resource manager has freed.
fn forget_freed_channels(glue: &ArcBorrow<'_, Glue>, file: FileId, client: Handle) {
    let mut at = glue.locked(|state| state.next_channel(file, client, 0));
    while let Some(passed @ Visited { object, class }) = at {
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

/// Follows the objects that a control has exported to a file or imported from one.
fn follow_shared(
    glue: &ArcBorrow<'_, Glue>,
    file: FileId,
    call: &Call,
    share: Share,
    served: &Served,
) {
    // A control whose parameters cannot be written back fails after it has taken effect.
    if !call.succeeded() && !served.is_written {
        return;
    }
    for number in 0..u32::MAX {
        let Some(shared) = share.object(served.bytes(), number) else {
            break;
        };
        if share.exports() {
            follow_export(glue, file, call.client, &shared, served.file);
        } else if let Some(imported) = imported(glue, file, call.client, shared.object) {
            let followed = with(glue, |state| {
                state.imported(file, call.client, &shared, served.file, &imported)
            });
            count_refusal(glue, followed);
        }
    }
}

/// Follows an object that a control has exported to the file `into`; `None` is one that is not
/// followed. The resource manager keeps it in any case, so it is charged without a name if it gets
/// none.
fn follow_export(
    glue: &ArcBorrow<'_, Glue>,
    file: FileId,
    client: Handle,
    shared: &Shared,
    into: Option<FileId>,
) {
    let named = match into {
        Some(into) => with(glue, |state| state.exported(file, client, shared, into)),
        None => Err(Error::Gone),
    };
    if count_refusal(glue, named).is_none() {
        let charged = with(glue, |state| {
            state.exported_unnamed(file, client, shared, into)
        });
        count_refusal(glue, charged);
    }
}

/// Asks the resource manager about an object that a client may have imported. Returns `None` if
/// there is no such object or the core knows it.
fn imported(glue: &Glue, file: FileId, client: Handle, object: Handle) -> Option<Imported> {
    owned::named(glue, file, client, object);
    let vacant = glue.locked(|state| state.is_vacant(file, client, object));
    (object != 0 && vacant).then_some(())?;
    let class = Class::from_number(rm::class_of(client, object).ok()?);
    let bytes = match class {
        Class::DeviceMemory => rm::memory_bytes(client, object).unwrap_or(0),
        _ => 0,
    };
    Some(Imported { class, bytes })
}

/// Looks up what the ioctl's structure does not say about a new object. `served` are the parameters
/// that the lookup's hint points to, as the resource manager read or wrote them.
fn look_up(glue: &Glue, call: &Call, served: Option<&Served>) -> Option<u64> {
    let lookup = call.lookup().filter(|_| call.succeeded())?;
    let word = served.and_then(|served| call.answer_in(served.bytes()));
    match lookup {
        Lookup::Bytes(_) => rm::memory_bytes(call.client, call.object).or(word),
        Lookup::Engine(_) => word,
        Lookup::GpuOfInstance(None) => rm::gpu_of_instance(glue, call.client, 0),
        Lookup::GpuOfInstance(Some(_)) => rm::gpu_of_instance(glue, call.client, word?),
        Lookup::GpuOfSubdevice => {
            let gpu = rm::gpu_of_subdevice(call.client, call.object)?;
            learn_tpcs(glue, call, u32::try_from(gpu).ok()?);
            Some(gpu)
        }
    }
}

/// Asks a GPU's first subdevice for its TPCs.
fn learn_tpcs(glue: &Glue, call: &Call, gpu: u32) {
    if glue.locked(|state| state.lacks_tpcs(gpu)) {
        if let Some(topology) = rm::topology(call.client, call.object) {
            glue.locked(|state| state.gpu_has_tpcs(gpu, topology, WITH_TPCS));
        }
    }
}
