// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests what many mappings of a tenant's cost itself and its neighbours, when they end.

use crate::gpus::session;
use crate::limits::set;
use crate::owned::{as_member, join, no_worker, OWNED};
use crate::process::Child;
use crate::tree::Group;
use gct_ktap::{failed, same, Outcome, Stop, Test};
use rm_client::{Mapped, Mapping, Memory, Session};
use std::io;
use std::sync::atomic::Ordering;

pub(crate) const TESTS: &[Test] = &[
    ("owned_mapped_hostile_maps_a_thousand_times", thousand),
    ("owned_mapped_hostile_unmaps_a_crowd", crowd),
    ("owned_mapped_hostile_dies_in_a_storm", storm),
];

/// The name of the group of these tests.
const NAME: &str = "crowd";

/// Most mappings of one memory object.
const OF_MEMORY_MAX: usize = 1024;

/// Bytes that each of many mappings has.
const PAGE: usize = 0x1000;

/// Bytes of a mapping whose pages are many.
const BYTES: usize = 0x20_0000;

/// Processes that have such a mapping.
const CHILDREN: usize = 128;

/// Lets this process have so many files open.
fn open_files(count: u64) -> Outcome {
    let limit = libc::rlimit {
        rlim_cur: count,
        rlim_max: count,
    };
    // SAFETY: reads one structure.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().into()),
    }
}

/// Prepares to map new memory.
fn prepared(session: &Session) -> Result<Mapped, Stop> {
    let gpu = session.gpu();
    let memory = gpu.alloc_memory(Memory::Device, BYTES as u64)?;
    Ok(Mapped::new(gpu, memory, BYTES)?)
}

/// Maps it, and accesses it: that maps all of its pages.
fn touched(prepared: &Mapped) -> Result<Mapping, Stop> {
    let mapping = prepared.map()?;
    mapping.u32(0).store(1, Ordering::SeqCst);
    Ok(mapping)
}

/// A memory object has a most of mappings, until some are unmapped. Those whose files are closed
/// count.
fn thousand() -> Outcome {
    as_member(|_| {
        open_files(2 * OF_MEMORY_MAX as u64)?;
        let session = session(0)?;
        let gpu = session.gpu();
        let memory = gpu.alloc_memory(Memory::Device, BYTES as u64)?;
        let more = || Mapped::new(gpu, memory, PAGE);
        let mut all = Vec::new();
        for _ in 0..OF_MEMORY_MAX {
            all.push(more()?);
        }
        let is_refused = || more().is_err();
        same("refused", is_refused(), true)?;
        let names: Vec<_> = all.into_iter().map(Mapped::close).collect();
        same("refused when all are closed", is_refused(), true)?;
        let other = prepared(&session)?;
        let mapping = touched(&other)?;
        for name in &names {
            name.unmap(gpu.client())?;
        }
        let again = more()?;
        drop(again.map()?);
        same("other memory", mapping.u32(0).load(Ordering::SeqCst), 1)
    })
}

/// A member frees memory that many of its processes have mapped. Meanwhile the faults of a
/// neighbour, of the same GPU, go on.
fn crowd() -> Outcome {
    let mut neighbour = Child::fork(|parent| {
        let session = session(0)?;
        let prepared = prepared(&session)?;
        parent.step()?;
        let mut faults = 0;
        parent.work(|| {
            faults += 1;
            touched(&prepared).map(drop)
        })?;
        println!("# {faults} faults of the neighbour");
        same("faults of the neighbour", faults >= CHILDREN / 8, true)
    })?;
    neighbour.at_step()?;
    let group = Group::new(NAME)?;
    set(NAME, OWNED, "1")?;
    let mut tenant = join(&group, |parent| {
        let session = session(0)?;
        let prepared = prepared(&session)?;
        let mapping = touched(&prepared)?;
        let mut children = Vec::new();
        for _ in 0..CHILDREN {
            children.push(Child::fork(|parent| {
                mapping.u32(0).store(2, Ordering::SeqCst);
                parent.step()
            })?);
        }
        for child in &mut children {
            child.at_step()?;
        }
        parent.step()?;
        session.gpu().client().free(prepared.memory())?;
        parent.step()?;
        children.iter_mut().try_for_each(|child| {
            child.go()?;
            child.finish()
        })
    })?;
    tenant.next()?;
    neighbour.next()?;
    tenant.next()?;
    neighbour.go()?;
    neighbour.finish()?;
    tenant.go()?;
    tenant.finish()?;
    no_worker()
}

/// Members that map, unmap and free in a storm are killed in it. What a neighbour has mapped stays,
/// and so does what it can map.
fn storm() -> Outcome {
    let neighbour = session(0)?;
    let prepared_before = prepared(&neighbour)?;
    let mapping = touched(&prepared_before)?;
    let group = Group::new(NAME)?;
    set(NAME, OWNED, "1")?;
    for round in 0..10 {
        let mut tenant = join(&group, |parent| {
            let session = session(0)?;
            let kept = prepared(&session)?;
            let others = touched(&kept)?;
            parent.step()?;
            for number in 0_u32.. {
                let one = prepared(&session)?;
                let two = Mapped::new(session.gpu(), one.memory(), BYTES)?;
                let _mapped = (touched(&one)?, touched(&two)?);
                let client = session.gpu().client();
                match number % 3 {
                    0 => client.free(one.memory())?,
                    1 => two.close().unmap(client)?,
                    _ => client.free(0x7777)?,
                }
                others.u32(0).fetch_add(1, Ordering::SeqCst);
            }
            Err(failed("the storm ended"))
        })?;
        tenant.next()?;
        tenant.go()?;
        for _ in 0..=round {
            drop(touched(&prepared_before)?);
        }
        tenant.kill();
        drop(touched(&prepared(&neighbour)?)?);
    }
    same("the word", mapping.u32(0).load(Ordering::SeqCst), 1)?;
    no_worker()
}
