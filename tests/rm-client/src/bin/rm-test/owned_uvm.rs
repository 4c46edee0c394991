// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests owned channels in address spaces whose page tables are UVM's, as libcuda's are.

use crate::gpus::ENGINE;
use crate::launch::recorder;
use crate::owned::{as_member, counts, dies, no_worker, rings, workers};
use crate::owned_launch;
use crate::submit::{queue, release};
use crate::tree::{eventually, Group};
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::{numbers, Client, Error, Gpu, Memory, Session, Uvm};

pub(crate) const TESTS: &[Test] = &[
    ("owned_uvm_work_is_done", work),
    ("owned_uvm_launches_have_the_mask", masked),
    ("owned_uvm_hostile_rewrites_its_launch", rewritten),
    ("owned_uvm_hostile_maps_over_the_ring", over),
    ("owned_uvm_hostile_unregisters_its_space", unregistered),
    ("owned_uvm_hostile_writes_to_the_ring", written),
    ("owned_uvm_hostile_closes_the_file", closed),
    ("owned_uvm_addresses_are_reserved", reserved),
    ("owned_uvm_handle_names_another_space", renamed),
    ("owned_uvm_space_registered_again", again),
    ("owned_uvm_40_channels", many),
    ("owned_uvm_killed_at_every_step", killed),
];

/// Bytes of a page.
const PAGE: u64 = 0x1000;

/// Opens a session in a space of UVM's.
pub(crate) fn uvm_session() -> Result<Session, Stop> {
    let client = Client::open()?;
    Session::with_uvm(Gpu::open(&client, 0)?).during("session")
}

fn uvm(session: &Session) -> Result<&Uvm, Stop> {
    session.uvm().ok_or_else(|| failed("no UVM"))
}

/// Fails unless a call was refused with a status.
fn refused<T>(what: &str, outcome: Result<T, Error>, status: u32) -> Outcome {
    let found = match outcome {
        Ok(_) => "nothing".to_owned(),
        Err(error) => error.to_string(),
    };
    same(what, found, Error::Status(status).to_string())
}

/// Submits more entries than both rings have. The channels' rings are the driver's.
fn work() -> Outcome {
    as_member(|_| {
        let recorder = recorder()?;
        let session = uvm_session()?;
        // Behind UVM's own channels.
        let mark = recorder.mark()?;
        let (mut one, mut two) = (queue(&session)?, queue(&session)?);
        counts(2, 0)?;
        for number in 1..=600 {
            release(&mut one, 0, number)?;
        }
        release(&mut two, 1, 7)?;
        let asked = [one.ring_address(), two.ring_address()];
        let rings = rings(&recorder, mark)?;
        same("rings", rings.len(), 2)?;
        same(
            "others",
            rings.iter().any(|ring| asked.contains(ring)),
            false,
        )
    })
}

fn masked() -> Outcome {
    owned_launch::masks(uvm_session)
}

fn rewritten() -> Outcome {
    owned_launch::rewrites(uvm_session)
}

/// Maps, unmaps and gives back where the driver's ring lies.
fn over() -> Outcome {
    as_member(|_| {
        let recorder = recorder()?;
        let session = uvm_session()?;
        let mark = recorder.mark()?;
        let mut queue = queue(&session)?;
        let ring = ring_since(&recorder, mark)?;
        let memory = session.gpu().alloc_memory(Memory::Host, PAGE)?;
        let uvm = uvm(&session)?;
        let gpu = session.gpu();
        for address in [ring, ring + PAGE, ring + 16 * PAGE] {
            let map = uvm.map(gpu, memory, address, PAGE);
            refused("reserve", map, numbers::ADDRESS_IN_USE)?;
            let map = uvm.map_reserved(gpu, memory, address, PAGE);
            refused("map", map, numbers::INVALID_ADDRESS)?;
            let unmap = uvm.unmap(address, PAGE);
            refused("unmap", unmap, numbers::INVALID_ADDRESS)?;
            for pages in 1..=80 {
                let free = uvm.free(address, pages * PAGE);
                refused("free", free, numbers::INVALID_ADDRESS)?;
            }
        }
        release(&mut queue, 1, 7)?;
        // The addresses are free again with the channel.
        session.gpu().client().free(queue.channel())?;
        uvm.map(gpu, memory, ring, PAGE).during("afterwards")
    })
}

/// Gives the space back while a channel runs in it.
fn unregistered() -> Outcome {
    as_member(|_| {
        let session = uvm_session()?;
        let mut queue = queue(&session)?;
        let uvm = uvm(&session)?;
        refused("space", uvm.unregister_space(), numbers::IN_USE)?;
        refused("GPU", uvm.unregister_gpu(), numbers::IN_USE)?;
        release(&mut queue, 1, 7)?;
        session.gpu().client().free(queue.channel())?;
        uvm.unregister_space().during("afterwards")
    })
}

/// Has the GPU write where the driver's ring lies.
fn written() -> Outcome {
    as_member(|_| {
        let recorder = recorder()?;
        let session = uvm_session()?;
        let mark = recorder.mark()?;
        let mut victim = queue(&session)?;
        let ring = ring_since(&recorder, mark)?;
        release(&mut victim, 0, 1)?;
        for page in [0, 1, 64] {
            let mut attacker = queue(&session)?;
            attacker.submit_release_at(ring + page * PAGE, 0xdead);
            attacker.submit_release(1, 1);
            for number in 2..=20 {
                release(&mut victim, 0, number)?;
            }
            same("the attacker's next", attacker.payload(1), 0)?;
        }
        Ok(())
    })
}

/// Closes UVM's files while a channel runs in their address space. UVM stops the channel. The
/// driver's memory there goes with the channel.
fn closed() -> Outcome {
    as_member(|_| {
        let (mut session, witness) = (uvm_session()?, uvm_session()?);
        let (mut queue, mut other) = (queue(&session)?, queue(&witness)?);
        release(&mut queue, 1, 7)?;
        session.close_uvm();
        for number in 1..=20 {
            queue.submit_release(0, number);
            release(&mut other, 0, number)?;
        }
        session.gpu().client().free(queue.channel())?;
        release(&mut other, 0, 21)
    })
}

/// The kernel gives the addresses of the driver's rings to no other mapping of the process.
fn reserved() -> Outcome {
    as_member(|_| {
        let recorder = recorder()?;
        let session = uvm_session()?;
        let mark = recorder.mark()?;
        let queue = queue(&session)?;
        let ring = ring_since(&recorder, mark)?;
        // CAST: an address of this process, and one page.
        let (ring, length) = (ring as usize, PAGE as usize);
        let taken = memory_at(ring, length)?;
        same("another address", taken == ring, false)?;
        same("the channel is there", queue.channel() != 0, true)
    })
}

/// Returns where the kernel maps memory of a process that asks for an address.
fn memory_at(address: usize, length: usize) -> Result<usize, Stop> {
    let hint = std::ptr::without_provenance_mut(address);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, which replaces nothing without MAP_FIXED.
    let start = unsafe { libc::mmap(hint, length, libc::PROT_NONE, flags, -1, 0) };
    match start == libc::MAP_FAILED {
        true => Err(std::io::Error::last_os_error().into()),
        false => Ok(start.addr()),
    }
}

/// Gives the handle of an address space of UVM's to another one. Its channels cannot be owned: the
/// driver's memory would be mapped in the former.
fn renamed() -> Outcome {
    let group = Group::new(owned_launch::NAME)?;
    let mut child = owned_launch::member(&group, "0-31", |_| {
        let session = uvm_session()?;
        let ring = session.ring_memory()?;
        let (space, client) = (session.space(), session.gpu().client());
        client.free(space)?;
        let later = client.new_handle();
        client.choose_next(space);
        same("handle", session.another_space()?, space)?;
        client.choose_next(later);
        let group = session.group(ENGINE)?;
        refused(
            "channel",
            session.queue(group, ENGINE),
            numbers::NOT_SUPPORTED,
        )?;
        same("the ring is mapped", ring != 0, true)
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// Gives a space back, and registers it again under its handle.
fn again() -> Outcome {
    as_member(|_| {
        let session = uvm_session()?;
        let uvm = uvm(&session)?;
        for round in 1..=3 {
            let mut queue = queue(&session)?;
            counts(round, 0)?;
            release(&mut queue, 0, 1)?;
            session.gpu().client().free(queue.channel())?;
            uvm.unregister_space().during("unregister")?;
            let space = session.space();
            uvm.register_space(session.gpu(), space)
                .during("register")?;
        }
        Ok(())
    })
}

/// Makes more channels than a window of addresses has room for.
fn many() -> Outcome {
    as_member(|_| {
        let session = uvm_session()?;
        let group = session.group(ENGINE)?;
        let mut queues = Vec::new();
        for _ in 0..40 {
            queues.push(session.queue(group, ENGINE).during("queue")?);
        }
        session.schedule(group, true)?;
        counts(40, 0)?;
        for (queue, payload) in queues.iter_mut().zip(1..) {
            queue.submit_release(0, payload);
        }
        for (queue, payload) in queues.iter().zip(1..) {
            eventually("payload", &payload, || Ok(queue.payload(0)))?;
        }
        same("workers", workers()?, 1)
    })
}

fn killed() -> Outcome {
    dies(uvm_session)
}

/// Returns the ring of the only channel that was allocated since a mark.
fn ring_since(recorder: &fakegpu_record::Recorder, mark: u32) -> Result<u64, Stop> {
    match rings(recorder, mark)?[..] {
        [ring] => Ok(ring),
        ref rings => Err(failed(format!("rings: {rings:x?}"))),
    }
}
