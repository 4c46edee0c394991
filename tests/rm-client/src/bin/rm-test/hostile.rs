// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests tenants that lie to the driver: only their own account, limits and objects may change.

use crate::gpus::{me, need_two, session, session_of, ENGINE};
use crate::limits::{has_slice, path, set, FREEZE, TIMESLICE};
use crate::process::Child;
use crate::sent::{named, sent};
use crate::tree::{self, eventually, expect, expect_gone, usage, Usage};
use fakegpu_record::Recorder;
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::{
    forge, numbers, Client, Control, Error, Forgery, Gpu, Handle, Memory, Release, Session,
};
use std::fs;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;

pub(crate) const TESTS: &[Test] = &[
    ("hostile_forged_success_changes_nothing", forged_success),
    ("hostile_clients_of_the_driver", clients_of_driver),
    ("hostile_owner_is_the_registered_file", registered),
    ("hostile_device_without_parameters", bare_device),
    ("hostile_dup_charges_no_stranger", dup_to_stranger),
    ("hostile_parameters_are_those_that_rm_saw", raced_device),
    ("hostile_failure_that_has_happened", read_only),
    ("hostile_client_that_failed", client_read_only),
    ("hostile_free_of_a_space_takes_its_groups", freed_along),
    ("hostile_channel_without_a_group", channel_alone),
];

const MEGABYTE: u64 = 1 << 20;

/// The file by which the neighbour passes its handles.
const SHARED: &str = "/tmp/rm-test.neighbour";

/// A neighbour with a channel group, a channel and 64 MiB.
struct Neighbour {
    child: Child,
    client: Handle,
    device: Handle,
    group: Handle,
    memory: Handle,
}

impl Neighbour {
    fn new() -> Result<Self, Stop> {
        let mut child = Child::fork(|parent| {
            let session = session(0)?;
            let group = session.group(ENGINE)?;
            session.channel(group, ENGINE)?;
            let memory = session.gpu().alloc_memory(Memory::Device, 64 * MEGABYTE)?;
            let gpu = session.gpu();
            let handles = [gpu.client().handle(), gpu.device(), group, memory];
            fs::write(SHARED, handles.map(|handle| handle.to_string()).join(" "))?;
            parent.step()?;
            // Its objects are unchanged.
            session.group_number(group).during("GET_INFO")?;
            Ok(gpu.client().free(memory)?)
        })?;
        child.at_step()?;
        let text = fs::read_to_string(SHARED)?;
        let handles: Vec<Handle> = text
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        let &[client, device, group, memory] = handles.as_slice() else {
            return Err(failed(format!("the neighbour left {text}")));
        };
        expect(&child.pid().to_string(), 0, Some((1, 1)))?;
        Ok(Self {
            child,
            client,
            device,
            group,
            memory,
        })
    }

    fn usage(&self) -> Result<Option<Usage>, Stop> {
        usage(&self.child.pid().to_string(), 0)
    }

    /// Returns its peak of memory.
    fn peak(&self) -> Result<String, Stop> {
        Ok(tree::read(&path(
            &self.child.pid().to_string(),
            "gmem.peak",
        )?)?)
    }

    fn leave(mut self) -> Outcome {
        self.child.go()?;
        self.child.finish()?;
        expect_gone(self.child.pid())
    }
}

/// Checks that an ioctl that RM refuses on this file returns the structure as the tenant wrote it:
/// with `NV_OK`.
fn forged_success() -> Outcome {
    let neighbour = Neighbour::new()?;
    let session = session(0)?;
    let group = session.group(ENGINE)?;
    let memory = session.gpu().alloc_memory(Memory::Device, MEGABYTE)?;
    expect(&me(), 0, Some((1, 0)))?;
    let before = [usage(&me(), 0)?, neighbour.usage()?];

    let gpu = session.gpu();
    let own = [gpu.client().handle(), gpu.device(), group, memory];
    let theirs = [
        neighbour.client,
        neighbour.device,
        neighbour.group,
        neighbour.memory,
    ];
    let control = gpu.client().control_file().file();
    for [client, device, group, memory] in [own, theirs] {
        let calls = [
            (control, Forgery::AllocMemory(numbers::HOST_MEMORY), device),
            (
                control,
                Forgery::AllocMemory(numbers::DEVICE_MEMORY),
                memory,
            ),
            (control, Forgery::AllocMemory(numbers::HOST_MEMORY), group),
            (gpu.file(), Forgery::Alloc(numbers::HOST_MEMORY), device),
            (
                gpu.file(),
                Forgery::Alloc(numbers::CHANNEL_GROUP),
                0xdead_0001,
            ),
            (gpu.file(), Forgery::Free, memory),
            (gpu.file(), Forgery::Free, client),
            (gpu.file(), Forgery::Dup(memory), 0xdead_0002),
            (gpu.file(), Forgery::Schedule, group),
        ];
        for (file, forgery, object) in calls {
            let refused = forge(file, forgery, client, device, object)?;
            same(&format!("{forgery:?} is refused"), refused, true)?;
            let now = [usage(&me(), 0)?, neighbour.usage()?];
            same(&format!("accounts after {forgery:?}"), now, before)?;
        }
    }
    session.gpu().client().free_all()?;
    neighbour.leave()
}

/// Claims the driver's own clients and their objects by allocations that fail: their handles are
/// easily guessed. Here the recorder names them.
fn clients_of_driver() -> Outcome {
    let recorder = Recorder::open(usize::try_from(tree::index_of(0)?).map_err(failed)?)?;
    let mark = recorder.mark()?;
    let client = Client::open()?;
    // With an address space of UVM's, UVM makes channel groups of its own.
    let session = Session::with_uvm(Gpu::open(&client, 0)?).during("session")?;
    session.group(ENGINE)?;
    expect(&me(), 0, Some((1, 0)))?;
    let before = usage(&me(), 0)?;
    let control = client.control_file().file();
    let mut claimed = 0;
    for event in recorder.since(mark)? {
        let class = match event.name.as_str() {
            "KEPLER_CHANNEL_GROUP_A" => numbers::CHANNEL_GROUP,
            "NV01_MEMORY_LOCAL_USER" => numbers::DEVICE_MEMORY,
            _ => continue,
        };
        if event.kind != "alloc" || event.client == client.handle() {
            continue;
        }
        let claim = |forgery, parent, object| forge(control, forgery, event.client, parent, object);
        forge(
            control,
            Forgery::Unreadable(numbers::CLIENT),
            0,
            0,
            event.client,
        )?;
        claim(Forgery::Zeros(numbers::DEVICE), event.client, event.parent)?;
        claim(Forgery::Zeros(class), event.parent, event.object)?;
        claimed += 1;
        same(&event.line, usage(&me(), 0)?, before)?;
    }
    println!("# claimed {claimed}");
    same("something was claimed", claimed > 0, true)
}

/// Checks that a client allocated through a file that is registered with another file belongs to
/// the latter.
fn registered() -> Outcome {
    let owner = Arc::new(Control::open()?);
    let other = Control::open()?;
    other.register(&owner).during("REGISTER_FD")?;
    let other = Arc::new(other);
    let client = Client::new(other.clone()).during("client")?.through(owner);
    let session = session_of(&client, 0)?;
    let group = session.group(ENGINE)?;
    expect(&me(), 0, Some((1, 0)))?;
    // RM frees nothing with this file, and the tree keeps everything.
    drop(other);
    session.group_number(group).during("GET_INFO")?;
    same("usage", usage(&me(), 0)?.map(|usage| usage.groups), Some(1))?;
    set(&me(), TIMESLICE, "700")?;
    has_slice(&session, group, 700)?;
    drop((session, client));
    expect_gone(process::id())
}

/// Checks that a device without parameters is on the first GPU. Its descendants are charged and
/// limited there.
fn bare_device() -> Outcome {
    let client = Client::open()?;
    let gpu = Gpu::open_without_parameters(&client);
    if client.control_file().release() >= Release::R580 {
        // RM takes no device without parameters any more.
        let refused = matches!(gpu, Err(Error::Status(numbers::INVALID_ARGUMENT)));
        same("it is refused", refused, true)?;
        client.free_all()?;
        return expect_gone(process::id());
    }
    let gpu = gpu.during("ALLOC_OBJECT")?;
    let minor = gpu.minor();
    let session = Session::new(gpu).during("session")?;
    let group = session.group(ENGINE)?;
    expect(&me(), minor, Some((1, 0)))?;
    let file = format!("{}/{}/{TIMESLICE}", me(), tree::index_of(minor)?);
    tree::write(&file, "900")?;
    has_slice(&session, group, 900)?;
    let later = session.group(ENGINE)?;
    has_slice(&session, later, 450)?;
    client.free_all()?;
    expect_gone(process::id())
}

/// Checks that a device is on the GPU that RM has read, whatever another thread writes meanwhile.
fn raced_device() -> Outcome {
    const ROUNDS: usize = 40;
    need_two()?;
    // Initialising a GPU again takes half a second.
    let _kept = [session(0)?, session(1)?];
    let before = tree::read("events")?;
    let mut on = [0; 2];
    for _ in 0..ROUNDS {
        let client = Client::open()?;
        let (gpu, _files) = Gpu::open_raced(&client).during("device")?;
        let session = Session::new(gpu).during("session")?;
        session.group(ENGINE)?;
        eventually("directory", &true, || {
            Ok(usage(&me(), 0)?.is_some() != usage(&me(), 1)?.is_some())
        })?;
        let shown = u32::from(usage(&me(), 1)?.is_some());
        let real = session.gpu().real_minor()?;
        same("GPU", shown, real)?;
        on[usize::from(real == 1)] += 1;
        client.free_all()?;
        expect_gone(process::id())?;
    }
    println!("# raced to GPU 0 and 1: {on:?}");
    // The event counts a device that had to be moved.
    same("events", tree::read("events")?, before)
}

/// Checks that an object is tracked even if its parameters cannot be written back.
fn read_only() -> Outcome {
    let session = session(0)?;
    let group = session.group(ENGINE)?;
    set(&me(), TIMESLICE, "600")?;
    let failed = session.group_read_only(ENGINE).during("group")?;
    // It exists, whatever the driver said. The two share the limit.
    has_slice(&session, failed, 300)?;
    expect(&me(), 0, Some((2, 0)))?;
    session.gpu().client().free(failed)?;
    session.gpu().client().free(group)?;
    expect_gone(process::id())
}

/// Checks that a client is tracked even if its handle cannot be written back, and so is what it
/// allocates.
fn client_read_only() -> Outcome {
    let client = Client::new_read_only(Arc::new(Control::open()?)).during("client")?;
    let session = session_of(&client, 0)?;
    let group = session.group(ENGINE)?;
    session.channel(group, ENGINE)?;
    expect(&me(), 0, Some((1, 1)))?;
    set(&me(), TIMESLICE, "600")?;
    has_slice(&session, group, 600)?;
    client.free_all()?;
    expect_gone(process::id())
}

/// Checks that RM frees objects that depend on an address space, although they are not its
/// descendants. The core must not keep them, or they would obstruct a limit.
fn freed_along() -> Outcome {
    let keeper = session(0)?;
    let kept = keeper.group(ENGINE)?;
    let session = session(0)?;
    let client = session.gpu().client();
    let group = session.group(ENGINE)?;
    session.channel(group, ENGINE)?;
    session.channel(group, ENGINE)?;
    expect(&me(), 0, Some((2, 2)))?;
    client.free(session.space()).during("free of the space")?;
    same(
        "the group is gone",
        session.group_number(group).is_err(),
        true,
    )?;
    expect(&me(), 0, Some((1, 0)))?;
    // The handle is in use until its owner frees it. Then it names an object without a time slice.
    client.free(group)?;
    client.choose_next(group);
    session.gpu().alloc_memory(Memory::Host, MEGABYTE)?;
    set(&me(), TIMESLICE, "800")?;
    has_slice(&keeper, kept, 800)
}

/// Checks that a channel directly below a device has its own channel group, and counts as both.
fn channel_alone() -> Outcome {
    let session = session(0)?;
    let channel = session.channel_alone(ENGINE).during("channel")?;
    expect(&me(), 0, Some((1, 1)))?;
    // No control sets the time slice of its group. It neither stops the write nor escapes it: it
    // stands still.
    for (value, stops) in [("500", true), ("default", false)] {
        let events = sent(|| set(&me(), TIMESLICE, value))?;
        let named = events.iter().map(named).collect::<Result<Vec<_>, _>>()?;
        let client = u64::from(session.gpu().client().handle());
        same(value, named, vec![(stops, vec![(client, channel.into())])])?;
    }
    set(&me(), FREEZE, "1")?;
    set(&me(), FREEZE, "0")?;
    session.gpu().client().free(channel)?;
    expect_gone(process::id())?;
    // Under a time slice no such channel can be allocated.
    let group = session.group(ENGINE)?;
    set(&me(), TIMESLICE, "500")?;
    match session.channel_alone(ENGINE) {
        Err(Error::Status(numbers::NOT_SUPPORTED)) => {}
        other => return Err(failed(format!("a channel under a limit: {other:?}"))),
    }
    set(&me(), TIMESLICE, "default")?;
    session.channel_alone(ENGINE)?;
    expect(&me(), 0, Some((2, 1)))?;
    session.gpu().client().free(group)?;
    Ok(session.gpu().client().free_all()?)
}

/// Checks that a dup into another owner's client is refused, even if its source is freed meanwhile:
/// the other owner never has the object.
fn dup_to_stranger() -> Outcome {
    const ROUNDS: usize = 200;
    let neighbour = Neighbour::new()?;
    let before = (neighbour.usage()?, neighbour.peak()?);
    let session = session(0)?;
    let client = session.gpu().client();
    // Through another file, whose ioctls do not wait for those of the first.
    let other = Control::open()?;
    let ended = AtomicBool::new(false);
    let memory = client.new_handle();
    let outcome: Outcome = thread::scope(|scope| {
        let dups = scope.spawn(|| -> Outcome {
            while !ended.load(Ordering::Relaxed) {
                client.dup_into(other.file(), neighbour.client, neighbour.device, memory)?;
            }
            Ok(())
        });
        let rounds = (0..ROUNDS).try_for_each(|_| -> Outcome {
            client.choose_next(memory);
            session.gpu().alloc_memory(Memory::Device, 128 * MEGABYTE)?;
            Ok(client.free(memory)?)
        });
        ended.store(true, Ordering::Relaxed);
        let dups = dups.join().map_err(|_| failed("a thread panicked"))?;
        rounds.and(dups)
    });
    outcome?;
    eventually("the neighbour", &before.0, || neighbour.usage())?;
    same("its peak", neighbour.peak()?, before.1)?;
    neighbour.leave()
}
