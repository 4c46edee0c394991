// SPDX-License-Identifier: GPL-2.0 OR MIT

//! CUDA IPC: memory and an event of one process in another one of another group.

use crate::driver::{cu, IpcHandle};
use crate::group::{until, Group, Program};
use crate::recorded::{disabled, launches, masks};
use crate::steps::{end_of_input, fill, function, short, Buffer, WORDS};
use gct_ktap::{holds, same, Outcome, Stop, Test};
use std::collections::BTreeSet;
use std::fs;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;

/// Where the owner leaves the handles.
const HANDLES: &str = "/tmp/ipc";
/// Bytes of the memory.
const SHARED: usize = 64 << 20;
/// What the owner stores, and what the user stores then.
const OWNERS: u32 = 8;
const USERS: u32 = 9;

/// Flags of an event without times that other processes may wait for.
const INTERPROCESS: u32 = 4 | 2;
/// The only flag of memory of others.
const LAZY_PEER_ACCESS: u32 = 1;

/// Step: shares memory with an event that says when it is filled, until input ends. The other has
/// stored its value then.
pub(crate) fn owner() -> Outcome {
    let (kernel, buffer) = (function(c"fill")?, Buffer::new(SHARED)?);
    let (mut memory, mut event, mut of_event) =
        (IpcHandle([0; 64]), null_mut(), IpcHandle([0; 64]));
    // SAFETY: each pointer is a place for what the function returns.
    unsafe {
        cu!(cuIpcGetMemHandle(&mut memory, buffer.0))?;
        cu!(cuEventCreate(&mut event, INTERPROCESS))?;
        cu!(cuIpcGetEventHandle(&mut of_event, event))?;
        fill(kernel, &buffer, OWNERS, null_mut())?;
        cu!(cuEventRecord(event, null_mut()))?;
    }
    fs::write(HANDLES, [memory.0, of_event.0].concat())?;
    println!("# shared");
    end_of_input()?;
    same("words", buffer.read()?, vec![USERS; WORDS]).map_err(short)
}

/// Step: waits for the event, reads the memory and stores a value there. Reads it again when input
/// has ended.
pub(crate) fn user() -> Outcome {
    let kernel = function(c"fill")?;
    let mut handles = [IpcHandle([0; 64]); 2];
    let read = fs::read(HANDLES)?;
    for (handle, bytes) in handles.iter_mut().zip(read.chunks_exact(64)) {
        handle.0.copy_from_slice(bytes);
    }
    let (mut at, mut event) = (0, null_mut());
    // SAFETY: each pointer is a place for what the function returns.
    unsafe {
        cu!(cuIpcOpenMemHandle_v2(&mut at, handles[0], LAZY_PEER_ACCESS))?;
        cu!(cuIpcOpenEventHandle(&mut event, handles[1]))?;
        cu!(cuStreamWaitEvent(null_mut(), event, 0))?;
    }
    let buffer = ManuallyDrop::new(Buffer(at));
    same("words", buffer.read()?, vec![OWNERS; WORDS]).map_err(short)?;
    fill(kernel, &buffer, USERS, null_mut())?;
    // SAFETY: nothing is passed.
    unsafe { cu!(cuCtxSynchronize())? };
    println!("# opened");
    end_of_input()?;
    same("words", buffer.read()?, vec![USERS; WORDS]).map_err(short)?;
    // SAFETY: nothing uses either any more.
    unsafe {
        cu!(cuEventDestroy_v2(event))?;
        cu!(cuIpcCloseMemHandle(at))
    }
}

/// Memory that outlives its maker stays charged to their group.
pub(crate) fn maker_of_group_dies() -> Outcome {
    let group = Group::named("sharers", &[])?;
    let owner = group.starts("ipc_owner")?;
    owner.has("# shared", 1)?;
    let one = group.memory()?;
    let user = group.starts("ipc_user")?;
    user.has("# opened", 1)?;
    let both = group.memory()?;
    drop(owner);
    until("the owner is gone", || Ok(group.memory()? < both))?;
    same("the user's", group.memory()?, both - one + SHARED as u64)?;
    user.passes()?;
    until("nothing is charged", || Ok(group.memory()? == 0))
}

pub(crate) const TESTS: &[Test] = &[
    ("ipc.is_charged_to_its_owner", charged),
    ("ipc.owner_dies", owner_dies),
    ("ipc.user_dies", user_dies),
];

/// Two groups, and a process of each: one shares memory, which the other has opened.
struct Both {
    owner: Program,
    user: Program,
    owners: Group,
    users: Group,
    /// What the owner's group had before.
    charged: u64,
}

impl Both {
    /// Starts both. A context and the memory exceed the limit of the user's group.
    fn start() -> Result<Self, Stop> {
        let owners = Group::named("owners", &[])?;
        let users = Group::named("users", &[("gmem.limit", "570M"), ("tpc.mask", "0-31")])?;
        let owner = owners.starts("ipc_owner")?;
        owner.has("# shared", 1)?;
        let charged = owners.memory()?;
        holds("the owner is charged", charged > SHARED as u64)?;
        let user = users.starts("ipc_user")?;
        user.has("# opened", 1)?;
        Ok(Self {
            owner,
            user,
            owners,
            users,
            charged,
        })
    }
}

/// Memory is charged to who made it, whoever opens it, and the limits of who uses it bind there.
fn charged() -> Outcome {
    let mut both = None;
    let launches = launches(|| {
        both = Some(Both::start()?);
        Ok(())
    })?;
    let both = both.ok_or_else(|| gct_ktap::failed("no processes"))?;
    same(
        "masks",
        masks(&launches),
        BTreeSet::from([vec![0; 8], disabled("0-31")?]),
    )?;
    same("the owner's", both.owners.memory()?, both.charged)?;
    holds(
        "the user's",
        both.users.memory()? + SHARED as u64 > 570 << 20,
    )?;
    both.user.passes()?;
    both.owner.passes()?;
    until("nothing is charged", || {
        Ok(both.owners.memory()? == 0 && both.users.memory()? == 0)
    })
}

/// Memory that outlives its maker is charged to who still has it, even beyond its limit.
fn owner_dies() -> Outcome {
    let both = Both::start()?;
    let before = both.users.memory()?;
    drop(both.owner);
    until("the owner is gone", || Ok(both.owners.memory()? == 0))?;
    same("the user's", both.users.memory()?, before + SHARED as u64)?;
    both.user.passes()?;
    until("nothing is charged", || Ok(both.users.memory()? == 0))
}

/// A user that dies takes nothing with it.
fn user_dies() -> Outcome {
    let both = Both::start()?;
    drop(both.user);
    until("the user is gone", || Ok(both.users.memory()? == 0))?;
    same("the owner's", both.owners.memory()?, both.charged)?;
    both.owner.passes()
}
