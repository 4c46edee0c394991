// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that a member's mapping of device memory ends with the memory: the aperture's addresses
//! go to the next mapping, a neighbour's.

use crate::gpus::session;
use crate::limits::set;
use crate::owned::{as_member, join, no_worker, OWNED};
use crate::process::{pipe, Child};
use crate::submit::{queue, release};
use crate::tree::Group;
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::{numbers, Error, Mapped, Mapping, Memory, Session};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

pub(crate) const TESTS: &[Test] = &[
    ("owned_mapped_hostile_keeps_a_neighbours", neighbours),
    ("owned_mapped_hostile_ends_its_memory", ends),
    ("owned_mapped_hostile_closes_its_client", closes),
    ("owned_mapped_hostile_maps_while_it_frees", races),
    ("owned_mapped_memory_beside_what_goes", beside),
    ("owned_mapped_memory_beside_a_closed_file", beside_closed),
    ("owned_mapped_hostile_has_addresses_alike", alike),
    ("owned_mapped_addresses_are_their_clients", renamed),
];

/// The name of the group of these tests.
const NAME: &str = "mapped";

const BYTES: usize = 0x20_0000;

/// Words of a neighbour's, and of a tenant's own.
const SECRET: u32 = 0x5ec4_e700;
const OWN: u32 = 1;

/// Reads a word, if it can be accessed.
fn peek(mapping: &Mapping) -> io::Result<Option<u32>> {
    let (mut read, write) = pipe()?;
    // SAFETY: what is there is read by the system call, which reports what cannot be accessed.
    let sent = unsafe {
        libc::write(
            write.as_raw_fd(),
            ptr::from_ref(mapping.u32(0)).cast(),
            size_of::<u32>(),
        )
    };
    let sent = match sent {
        -1 => Err(io::Error::last_os_error()),
        sent => Ok(sent),
    };
    let mut bytes = [0; size_of::<u32>()];
    match sent {
        Ok(_) => read
            .read_exact(&mut bytes)
            .map(|()| Some(u32::from_le_bytes(bytes))),
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a word as a debugger does, if it can be accessed.
fn pry(mapping: &Mapping) -> io::Result<Option<u32>> {
    let memory = File::open("/proc/self/mem")?;
    let mut bytes = [0; size_of::<u32>()];
    // CAST: an address of this process.
    let at = ptr::from_ref(mapping.u32(0)).addr() as u64;
    Ok(memory
        .read_exact_at(&mut bytes, at)
        .is_ok()
        .then(|| u32::from_le_bytes(bytes)))
}

/// Prepares to map new memory.
fn prepared(session: &Session) -> Result<Mapped, Stop> {
    let gpu = session.gpu();
    let memory = gpu.alloc_memory(Memory::Device, BYTES as u64)?;
    Ok(Mapped::new(gpu, memory, BYTES)?)
}

/// Prepares it, and maps it with a word of its tenant's.
fn mapped(session: &Session) -> Result<(Mapped, Mapping), Stop> {
    let mapped = prepared(session)?;
    let mapping = mapped.map()?;
    mapping.u32(0).store(OWN, Ordering::SeqCst);
    Ok((mapped, mapping))
}

/// Maps memory with secrets, where the aperture has room.
fn secrets(session: &Session) -> Result<Vec<(Mapped, Mapping)>, Stop> {
    let mut all = Vec::new();
    for _ in 0..4 {
        let (prepared, mapping) = mapped(session)?;
        mapping.u32(0).store(SECRET, Ordering::SeqCst);
        all.push((prepared, mapping));
    }
    Ok(all)
}

/// A member frees memory, and keeps its mapping. The parent has the next ones.
fn neighbours() -> Outcome {
    let group = Group::new(NAME)?;
    set(NAME, OWNED, "1")?;
    let mut tenant = join(&group, |parent| {
        let session = session(0)?;
        let (prepared, mapping) = mapped(&session)?;
        session.gpu().client().free(prepared.memory())?;
        parent.step()?;
        same("a word", format!("{:?}", peek(&mapping)?).as_str(), "None")
    })?;
    tenant.next()?;
    let session = session(0)?;
    let held = secrets(&session)?;
    tenant.go()?;
    tenant.finish()?;
    drop(held);
    no_worker()
}

/// A way in which memory, or its mapping, ends.
type Way = (&'static str, fn(&Session, &mut Mapped) -> Result<(), Error>);

const WAYS: &[Way] = &[
    ("free", |session, mapped| {
        session.gpu().client().free(mapped.memory())
    }),
    ("unmap", |session, mapped| {
        mapped.unmap(session.gpu().client())
    }),
    ("unmap by another address", |session, mapped| {
        mapped.rename(session.gpu().client(), 0x1000)?;
        mapped.unmap(session.gpu().client())
    }),
    ("free its device", |session, _| {
        session.gpu().client().free(session.gpu().device())
    }),
    ("free its client", |session, _| {
        session.gpu().client().free_all()
    }),
];

/// Members end memory in all ways, and keep mappings, those of children among them.
fn ends() -> Outcome {
    as_member(|_| {
        let others = session(0)?;
        for (name, end) in WAYS {
            let session = session(0)?;
            let (mut prepared, mapping) = mapped(&session)?;
            let untouched = prepared.map()?;
            let mut child = Child::fork(|parent| {
                parent.step()?;
                hidden("in a child", &mapping)
            })?;
            child.at_step()?;
            end(&session, &mut prepared).during(name)?;
            let held = secrets(&others)?;
            hidden(name, &mapping)?;
            hidden(name, &untouched)?;
            same(name, prepared.map().is_err(), true)?;
            child.go()?;
            child.finish()?;
            for (secret, _) in held {
                others.gpu().client().free(secret.memory())?;
            }
        }
        Ok(())
    })
}

/// Fails if anything can be read.
fn hidden(what: &str, mapping: &Mapping) -> Outcome {
    let seen = (peek(mapping)?, pry(mapping)?);
    same(what, format!("{seen:?}").as_str(), "(None, None)")
}

/// A member closes its client's file, and keeps the device file and a mapping.
fn closes() -> Outcome {
    as_member(|_| {
        let others = session(0)?;
        let session = session(0)?;
        let memory = session.gpu().alloc_memory(Memory::Device, BYTES as u64)?;
        let apart = Mapped::apart(session.gpu(), memory, BYTES)?;
        let mapping = apart.map()?;
        mapping.u32(0).store(OWN, Ordering::SeqCst);
        drop(session);
        let held = secrets(&others)?;
        hidden("after the close", &mapping)?;
        same("mapped again", apart.map().is_err(), true)?;
        drop(held);
        Ok(())
    })
}

/// Maps and reads memory in one thread while another frees it.
fn races() -> Outcome {
    as_member(|_| {
        let others = session(0)?;
        let session = session(0)?;
        let seen = AtomicU32::new(0);
        for _ in 0..40 {
            let prepared = prepared(&session)?;
            let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
            thread::scope(|scope| {
                let maps = scope.spawn(|| -> Outcome {
                    while !over.load(Ordering::SeqCst) {
                        let Ok(mapping) = prepared.map() else { break };
                        begun.store(true, Ordering::SeqCst);
                        if peek(&mapping)? == Some(SECRET) {
                            seen.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    Ok(())
                });
                while !begun.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                session.gpu().client().free(prepared.memory())?;
                let held = secrets(&others)?;
                over.store(true, Ordering::SeqCst);
                let outcome = maps.join().map_err(|_| failed("the thread"))?;
                for (secret, _) in held {
                    others.gpu().client().free(secret.memory())?;
                }
                outcome
            })?;
        }
        same("secrets that were read", seen.into_inner(), 0)
    })
}

/// Other memory of the client, and of its channels, stays mapped while some goes.
fn beside() -> Outcome {
    as_member(|_| {
        let session = session(0)?;
        let client = session.gpu().client();
        let (kept, mapping) = mapped(&session)?;
        let again = Mapped::new(session.gpu(), kept.memory(), BYTES)?;
        let second = again.map()?;
        let (gone, _) = mapped(&session)?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        client.free(gone.memory())?;
        same("beside other memory", peek(&mapping)?, Some(OWN))?;
        again.unmap(client)?;
        same("beside a second mapping", peek(&mapping)?, Some(OWN))?;
        // Where both have one address, as from 580 on, the last unmapping ends both.
        if again.address() != kept.address() {
            same("of the second", peek(&second)?, None)?;
        }
        client.free(queue.channel())?;
        same("beside a channel", peek(&mapping)?, Some(OWN))?;
        // What nobody has made may be freed.
        client.free(0x7777).during("free nothing")?;
        same("beside nothing", peek(&mapping)?, Some(OWN))?;
        kept.map().map(drop).during("map it again")?;
        kept.unmap(client)?;
        let held = secrets(&session)?;
        hidden("the first", &mapping)?;
        hidden("the second", &second)?;
        drop(held);
        Ok(())
    })
}

/// Closes the file of one of two mappings of the same memory, and has it unmapped then.
fn beside_closed() -> Outcome {
    as_member(|_| {
        let session = session(0)?;
        let client = session.gpu().client();
        let (kept, mapping) = mapped(&session)?;
        for _ in 0..3 {
            let closed = Mapped::new(session.gpu(), kept.memory(), BYTES)?.close();
            closed.unmap(client)?;
            same("beside what is closed", peek(&mapping)?, Some(OWN))?;
        }
        kept.unmap(client)?;
        hidden("the last one", &mapping)
    })
}

/// Gives one of three mappings of the same memory the others' address, and unmaps that as often as
/// it is there. After each time memory is mapped that is a neighbour's.
fn alike() -> Outcome {
    as_member(|_| {
        let others = session(0)?;
        let session = session(0)?;
        let client = session.gpu().client();
        let (mut one, first) = mapped(&session)?;
        let other = Mapped::new(session.gpu(), one.memory(), BYTES)?;
        let second = other.map()?;
        one.rename(client, other.address())?;
        let third = Mapped::new(session.gpu(), one.memory(), BYTES)?.map()?;
        let mut held = Vec::new();
        while one.unmap(client).is_ok() {
            held.push(secrets(&others)?);
            for mapping in [&first, &second, &third] {
                let seen = peek(mapping)?;
                same(
                    &format!("a secret in {seen:x?}"),
                    seen == Some(SECRET),
                    false,
                )?;
            }
        }
        same("unmapped", held.len() >= 2, true)
    })
}

/// Names the mapping of another client.
fn renamed() -> Outcome {
    as_member(|_| {
        let (victim, hostile) = (session(0)?, session(0)?);
        let (mut prepared, mapping) = mapped(&victim)?;
        let refused = prepared.rename(hostile.gpu().client(), 0x1000);
        let is_refused = matches!(
            refused,
            Err(Error::Status(numbers::INSUFFICIENT_PERMISSIONS))
        );
        same(&format!("refused: {refused:?}"), is_refused, true)?;
        prepared.unmap(victim.gpu().client())?;
        hidden("after it", &mapping)
    })
}
