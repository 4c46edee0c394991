// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests what tenants without any right gain by what the driver does for owned channels with the
//! kernel's rights: nothing.

use crate::gpus::{session, ENGINE};
use crate::launch::recorder;
use crate::limits::set;
use crate::owned::{join, member, no_worker, NAME, OWNED};
use crate::owned_atoms::{copy, open};
use crate::owned_strict::STRICT;
use crate::owned_uvm::uvm_session;
use crate::process::Child;
use crate::submit::{queue, release};
use crate::tree::Group;
use gct_core::owned::REAL_ENTRIES;
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::{numbers, Client, Engine, Error, Gpu, Handle, Memory, Session};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("owned_hostile_names_the_drivers_objects", named),
    ("owned_hostile_positions_in_registers", written),
    ("owned_hostile_segments_in_registers", read),
    ("owned_hostile_asks_for_lent_names", || lent(Theft::Name)),
    ("owned_hostile_takes_lent_positions", || lent(Theft::Object)),
    ("owned_ring_keeps_no_former_entry", spent),
    ("owned_hostile_renames_a_context_share", share_renamed),
    ("owned_hostile_renames_a_channel_group", group_renamed),
];

const PAGE: u64 = 4096;

/// Gives up all rights, for good. The devices are everybody's.
fn become_nobody() -> Outcome {
    const NOBODY: libc::uid_t = 65534;
    for device in ["nvidiactl", "nvidia0"] {
        let path = PathBuf::from("/dev").join(device);
        if path.exists() {
            fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        }
    }
    // SAFETY: takes numbers. This process is this test's own.
    let outcome = unsafe {
        [
            libc::setresgid(NOBODY, NOBODY, NOBODY),
            libc::setresuid(NOBODY, NOBODY, NOBODY),
        ]
    };
    same("setresgid, setresuid", outcome, [0, 0])
}

/// Runs `work` as nobody, in a strict group whose channels are the driver's, with what the process
/// has prepared before it is a member.
fn as_nobody<T>(
    prepare: impl FnOnce() -> Result<T, Stop>,
    work: impl FnOnce(T) -> Outcome,
) -> Outcome {
    let group = Group::new(NAME)?;
    set(NAME, OWNED, "1")?;
    set(NAME, STRICT, "1")?;
    let mut child = Child::fork(|parent| {
        become_nobody()?;
        let prepared = prepare()?;
        parent.step()?;
        work(prepared)
    })?;
    child.at_step()?;
    group.add(child.pid())?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// A client with the GPU's registers, which a governed process may not allocate.
fn registers() -> Result<(Session, Handle), Stop> {
    let session = session(0)?;
    let gpu = session.gpu();
    let registers = gpu
        .client()
        .alloc_plain(gpu.device(), numbers::REGISTERS)
        .during("registers")?;
    Ok((session, registers))
}

/// Duplicates what the driver has allocated for owned channels: for one's own, by which the driver
/// opens its client, and for a neighbour's. The recorder names the objects.
fn named() -> Outcome {
    const OTHERS: &str = "rights";
    let [group, others] = [Group::new(NAME)?, Group::new(OTHERS)?];
    set(OTHERS, OWNED, "1")?;
    let recorder = recorder()?;
    let mark = recorder.mark()?;
    let mut attacker = member(&group, |parent| {
        become_nobody()?;
        let session = session(0)?;
        let mut own = queue(&session)?;
        release(&mut own, 0, 1)?;
        parent.step()?;
        let client = session.gpu().client();
        let mut named = 0;
        for event in recorder.since(mark)? {
            // The driver has a name of each tenant's address space.
            if event.kind != "duplicate" {
                continue;
            }
            named += 1;
            let taken = client.dup_of(session.gpu().device(), event.client, event.object);
            let refused = matches!(taken, Err(Error::Status(_)));
            same(&format!("{}: {taken:?}", event.line), refused, true)?;
        }
        println!("# named {named}");
        same("address spaces of two tenants", named >= 2, true)?;
        release(&mut own, 0, 2)
    })?;
    attacker.next()?;
    let mut neighbour = join(&others, |parent| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        parent.step()?;
        release(&mut queue, 0, 2)
    })?;
    neighbour.next()?;
    attacker.go()?;
    attacker.finish()?;
    neighbour.go()?;
    neighbour.finish()?;
    no_worker()
}

/// Has a channel's positions lie in the GPU's registers: the driver would write GP_GET there.
fn written() -> Outcome {
    /// A register that the software GPU keeps, and where GP_GET would be there.
    const REGISTER: usize = 0x11_83a0;
    const GET: u64 = 0x88;
    const ENTRIES: u32 = 1 << 17;
    let recorder = recorder()?;
    let before = recorder.register(REGISTER);
    as_nobody(registers, |(session, registers)| {
        let gpu = session.gpu();
        let bytes = u64::from(ENTRIES) * 8;
        let memory = gpu.alloc_memory(Memory::Host, bytes)?;
        let ring = (session.map_on_gpu(memory, bytes)?, ENTRIES);
        let group = session.group(ENGINE)?;
        // CAST: widening.
        let at = (registers, REGISTER as u64 - GET);
        let channel = session.channel_with(group, ENGINE, ring, at);
        if let Ok(channel) = channel {
            session.work_token(channel, ENGINE)?;
            session.schedule(group, true)?;
            thread::sleep(Duration::from_millis(500));
        }
        let refused = matches!(channel, Err(Error::Status(numbers::NOT_SUPPORTED)));
        same(&format!("refused: {channel:?}"), refused, true)
    })?;
    same("the register", recorder.register(REGISTER), before)
}

/// Submits a segment that lies where memory was mapped whose handle means the GPU's registers by
/// now. The driver would copy a register into it.
fn read() -> Outcome {
    const AT: u64 = 0x7_0000_0000;
    const BYTES: u64 = 16 << 20;
    /// `NV_PMC_BOOT_42`, which says what chip it is.
    const REGISTER: u64 = 0xa00;
    const NOTHING: u32 = 0xdead_beef;
    as_nobody(registers, |(early, registers)| {
        let client = Client::open()?;
        let stale = {
            let session = Session::new(Gpu::open(&client, 0)?)?;
            let memory = session.gpu().alloc_memory(Memory::Device, BYTES)?;
            session.map_on_gpu_at(memory, AT, BYTES)?;
            client.free(session.gpu().device())?;
            memory
        };
        let session = Session::new(Gpu::open(&client, 0)?)?;
        let next = client.new_handle();
        client.choose_next(stale);
        let taken = client.dup(session.gpu().device(), early.gpu().client(), registers);
        same("handle", taken.during("registers")?, stale)?;
        client.choose_next(next);
        let mut queue = queue(&session)?;
        release(&mut queue, 1, 7)?;
        queue.set_payload(0, NOTHING);
        queue.submit_release_of(0, AT + REGISTER);
        let start = Instant::now();
        while queue.payload(0) == NOTHING && start.elapsed() < Duration::from_secs(2) {
            thread::sleep(Duration::from_millis(1));
        }
        same("what was read", queue.payload(0), NOTHING)
    })
}

/// What is stolen of the driver's positions while they are lent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Theft {
    /// Their name.
    Name,
    /// The object, by another client or by an address space of nvidia-uvm.
    Object,
}

/// Asks for the names of device memory below the own device, and duplicates and maps what is told,
/// while channels are allocated.
fn lent(theft: Theft) -> Outcome {
    /// The number of device memory among the resource manager's own classes.
    const VIDEO_MEMORY: u32 = 0xed_948f;
    /// Where nothing is mapped.
    const MAPPINGS: u64 = 0x20_0000_0000;
    const CHANNELS: u32 = 40;
    let nothing = || Ok(());
    as_nobody(nothing, |()| {
        let session = uvm_session()?;
        let uvm = session.uvm().ok_or_else(|| failed("no UVM"))?;
        let other = Client::open()?;
        let thief = Gpu::open(&other, 0)?;
        let group = session.group(ENGINE)?;
        let gpu = session.gpu();
        let (client, device) = (gpu.client(), gpu.device());
        // Such memory of its own would be told first.
        client.free(session.positions())?;
        let positions = gpu.alloc_memory(Memory::Host, PAGE)?;
        let memory = gpu.alloc_memory(Memory::Host, PAGE)?;
        let ring = (session.map_on_gpu(memory, PAGE)?, REAL_ENTRIES);
        let [told, stolen] = [AtomicU32::new(0), AtomicU32::new(0)];
        let is_done = AtomicBool::new(false);
        let steal = || {
            while !is_done.load(Ordering::Relaxed) {
                let name: Handle = client.child_of(device, VIDEO_MEMORY).unwrap_or(0);
                if name != 0 {
                    let before = told.fetch_add(1, Ordering::Relaxed);
                    let at = MAPPINGS + u64::from(before) * PAGE;
                    let taken = [
                        other.dup(thief.device(), client, name).is_ok(),
                        uvm.map(gpu, name, at, PAGE).is_ok(),
                    ];
                    stolen.fetch_add(taken.map(u32::from).iter().sum(), Ordering::Relaxed);
                }
            }
        };
        let made = thread::scope(|scope| {
            scope.spawn(steal);
            scope.spawn(steal);
            let made = (0..CHANNELS).try_for_each(|_| {
                let channel = session.channel_with(group, ENGINE, ring, (positions, 0))?;
                client.free(channel)
            });
            is_done.store(true, Ordering::Relaxed);
            made
        });
        made.during("channels")?;
        match theft {
            Theft::Name => same("names that were told", told.into_inner(), 0),
            Theft::Object => same("objects that were stolen", stolen.into_inner(), 0),
        }
    })
}

/// Checks that the driver's ring has no entry that the GPU has fetched: whoever could have the GPU
/// fetch it again would execute words that were scanned as something else, or not at all.
fn spent() -> Outcome {
    const WORDS: usize = REAL_ENTRIES as usize * 2;
    const TO: usize = 0x4000;
    let group = Group::new(NAME)?;
    let mut child = member(&group, |_| {
        let (mut tenant, ring) = open(session(0)?)?;
        for _ in 0..20 {
            tenant.launch(8);
            tenant.wait(0)?;
        }
        let to = tenant.address + TO as u64;
        // CAST: one page.
        copy(&mut tenant.launcher, ring, to, WORDS as u32 * 4)?;
        let words: Vec<u32> = (0..WORDS)
            .map(|at| tenant.words.u32(TO + 4 * at).load(Ordering::Acquire))
            .collect();
        let left = words.chunks(2).filter(|entry| entry != &[0, 0]).count();
        println!("# {left} entries");
        // The copy's own, and what was not seen to be fetched before it.
        same("few entries", left > 0 && left <= 8, true)
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// Fails unless a channel is refused whose name of an address space is another's by now: the driver
/// would map the ring there, and the GPU would fetch what its tenant has mapped at the ring's
/// address.
fn refused(channel: Result<Handle, Error>) -> Outcome {
    let refused = matches!(channel, Err(Error::Status(numbers::NOT_SUPPORTED)));
    same(&format!("refused: {channel:?}"), refused, true)
}

/// Duplicates an object of the own client, under a handle that was another's.
fn rename(session: &Session, parent: Handle, object: Handle, name: Handle) -> Outcome {
    let client = session.gpu().client();
    let next = client.new_handle();
    client.choose_next(name);
    let named = client.dup(parent, client, object).during("DUP")?;
    client.choose_next(next);
    same("handle", named, name)
}

/// Frees a channel group and the context share that is below it, and gives the share's name to one
/// of another address space.
fn share_renamed() -> Outcome {
    let nothing = || Ok(());
    as_nobody(nothing, |()| {
        let session = session(0)?;
        let other = session.another_space_of_rm()?;
        let ring = session.ring_memory()?;
        let former = session.group(Engine::Compute)?;
        let share = session.context_share(former)?;
        session.gpu().client().free(former)?;
        let group = session.group_in(other, Engine::Compute)?;
        let renamed = session.context_share_in(group, other)?;
        rename(&session, group, renamed, share)?;
        let channel = session.channel_at(group, share, Engine::Compute, ring);
        refused(channel.map(|(channel, _)| channel))
    })
}

/// Frees a device with all that is below it, and gives the name of its channel group to one of
/// another address space. The name of the former space is another's, too.
fn group_renamed() -> Outcome {
    let nothing = || Ok(());
    as_nobody(nothing, |()| {
        let client = Client::open()?;
        let (space, group) = {
            let session = Session::new(Gpu::open(&client, 0)?)?;
            let named = (session.space(), session.group(ENGINE)?);
            client.free(session.gpu().device())?;
            named
        };
        let session = Session::new(Gpu::open(&client, 0)?)?;
        let next = client.new_handle();
        client.choose_next(space);
        same("space", session.another_space_of_rm()?, space)?;
        client.choose_next(next);
        let ring = session.ring_memory()?;
        let renamed = session.group(ENGINE)?;
        rename(&session, session.gpu().device(), renamed, group)?;
        refused(session.channel_with_ring(group, ENGINE, ring))
    })
}
