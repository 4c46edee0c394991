// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests what many mappings of a tenant's cost itself and its neighbours, when they end.

use crate::gpus::session;
use crate::limits::set;
use crate::owned::{as_member, join, no_worker, OWNED};
use crate::owned_launch::MASK;
use crate::process::Child;
use crate::shadowed::{come_back, counts, cuda_like};
use crate::submit::{queue, release};
use crate::timing::undisturbed;
use crate::tree::Group;
use gct_ktap::{failed, same, Outcome, Stop, Test};
use rm_client::{Mapped, Mapping, Memory, Queue, Session};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::FromRawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("owned_mapped_hostile_maps_a_thousand_times", thousand),
    ("owned_mapped_hostile_unmaps_a_crowd", || undisturbed(crowd)),
    ("owned_mapped_hostile_dies_in_a_storm", storm),
    ("shadowed_hostile_maps_in_a_crowd", || undisturbed(shadowed)),
    ("shadowed_hostile_faults_meanwhile", faulted),
];

/// The name of the group of these tests.
const NAME: &str = "crowd";

/// Most mappings of one memory object.
const OF_MEMORY_MAX: usize = 1024;

/// Bytes that each of many mappings has.
const PAGE: usize = 0x1000;

/// Bytes of other mappings.
const BYTES: usize = 0x20_0000;

/// Bytes of a mapping whose pages are many.
const MANY: usize = 0x100_0000;

/// Processes that have the mappings of one.
const CHILDREN: usize = 128;

/// Mappings of a ring.
const PANES: usize = 60;

/// What is written to a ring, once for each time that its channel is shadowed.
const MARKS: Range<u64> = 0x1000..0x100a;

/// Bytes of the memory with a ring.
const RING: usize = 0x1_0000;

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
fn prepared(session: &Session, bytes: usize) -> Result<Mapped, Stop> {
    let gpu = session.gpu();
    let memory = gpu.alloc_memory(Memory::Device, bytes as u64)?;
    Ok(Mapped::new(gpu, memory, bytes)?)
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
        let other = prepared(&session, BYTES)?;
        let mapping = touched(&other)?;
        for name in &names {
            name.unmap(gpu.client())?;
        }
        let again = more()?;
        drop(again.map()?);
        same("other memory", mapping.u32(0).load(Ordering::SeqCst), 1)
    })
}

/// A word that forked processes share: whether something is unmapped.
fn shared_word() -> Result<Mapping, Stop> {
    // SAFETY: the name is a string of C.
    let file = unsafe { libc::memfd_create(c"word".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: a new descriptor, which nobody else has.
    let file = unsafe { File::from_raw_fd(file) };
    file.set_len(PAGE as u64)?;
    Ok(Mapping::new(&file, PAGE)?)
}

/// Runs `work` with the word set.
fn during<T>(word: &Mapping, work: impl FnOnce() -> T) -> T {
    word.u32(0).store(1, Ordering::SeqCst);
    let result = work();
    word.u32(0).store(0, Ordering::SeqCst);
    result
}

/// Starts a neighbour, which faults on the GPU between two steps. It fails if one of its faults
/// took two fifths of the time for which the word was set: the copy of a ring takes less, and to
/// unmap all more.
fn neighbour(word: &Mapping) -> Result<Child, Stop> {
    let mut neighbour = Child::fork(|parent| {
        let session = session(0)?;
        let prepared = prepared(&session, PAGE)?;
        parent.step()?;
        let mut faults = Vec::new();
        parent.work(|| {
            let (before, begun) = (is_set(word), Instant::now());
            drop(touched(&prepared)?);
            if before || is_set(word) {
                faults.push(begun.elapsed());
            }
            Ok(())
        })?;
        let longest = faults.iter().max().copied().unwrap_or_default();
        let all: Duration = faults.iter().sum();
        let count = faults.len();
        println!("# {count} faults of the neighbour in {all:?}, {longest:?} for the longest");
        same("some faults", count > 1, true)?;
        same("a long fault", 5 * longest > 2 * all, false)
    })?;
    neighbour.at_step()?;
    Ok(neighbour)
}

fn is_set(word: &Mapping) -> bool {
    word.u32(0).load(Ordering::SeqCst) != 0
}

/// Starts processes that have the mappings of this one, and access them all.
fn processes(mappings: &[Mapping]) -> Result<Vec<Child>, Stop> {
    let mut all = Vec::new();
    for _ in 0..CHILDREN {
        all.push(Child::fork(|parent| {
            for mapping in mappings {
                mapping.u32(0).load(Ordering::SeqCst);
            }
            parent.step()
        })?);
    }
    for child in &mut all {
        child.at_step()?;
    }
    Ok(all)
}

/// Ends them.
fn end(mut processes: Vec<Child>) -> Outcome {
    processes.iter_mut().try_for_each(|child| {
        child.go()?;
        child.finish()
    })
}

/// A member frees memory that many of its processes have mapped. Meanwhile the faults of a
/// neighbour, of the same GPU, go on.
fn crowd() -> Outcome {
    let word = shared_word()?;
    let mut neighbour = neighbour(&word)?;
    let group = Group::new(NAME)?;
    set(NAME, OWNED, "1")?;
    let mut tenant = join(&group, |parent| {
        let session = session(0)?;
        let prepared = prepared(&session, MANY)?;
        let all = processes(&[touched(&prepared)?])?;
        parent.step()?;
        during(&word, || session.gpu().client().free(prepared.memory()))?;
        parent.step()?;
        end(all)
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

/// Maps the ring of a channel, often.
fn panes(session: &Session, queue: &Queue) -> Result<Vec<Mapping>, Stop> {
    let gpu = session.gpu();
    let map = |_| gpu.map_memory(Memory::Device, queue.memory(), RING);
    Ok((0..PANES).map(map).collect::<Result<_, _>>()?)
}

/// A channel whose ring many processes have mapped, often, is shadowed.
fn shadowed() -> Outcome {
    let word = shared_word()?;
    let mut neighbour = neighbour(&word)?;
    let group = Group::new(NAME)?;
    let mut tenant = join(&group, |parent| {
        let session = cuda_like()?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        let mappings = panes(&session, &queue)?;
        let all = processes(&mappings)?;
        parent.step()?;
        counts(1, 1)?;
        release(&mut queue, 0, 2)?;
        end(all)
    })?;
    tenant.next()?;
    neighbour.next()?;
    during(&word, || set(NAME, MASK, "0-31"))?;
    neighbour.go()?;
    neighbour.finish()?;
    tenant.go()?;
    tenant.finish()?;
    no_worker()
}

/// Processes that access a ring all the time while its channel is shadowed, again and again, see
/// what is there in place of it.
fn faulted() -> Outcome {
    const ENTRY: u32 = 300;
    const AT: usize = 300 * size_of::<u64>();
    let group = Group::new(NAME)?;
    let mut tenant = join(&group, |parent| {
        let session = cuda_like()?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        let mappings = panes(&session, &queue)?;
        let entry = |mapping: &Mapping| mapping.u64(AT).load(Ordering::SeqCst);
        let mut all = Vec::new();
        for _ in 0..4 {
            all.push(Child::fork(|parent| {
                for mark in MARKS {
                    parent.work(|| {
                        mappings.iter().map(entry).for_each(drop);
                        Ok(())
                    })?;
                    let found: Vec<_> = mappings.iter().map(entry).collect();
                    same("the ring", &found[..], &[mark; PANES][..])?;
                }
                parent.step()
            })?);
        }
        for mark in MARKS {
            all.iter_mut().try_for_each(Child::at_step)?;
            parent.step()?;
            counts(1, 1)?;
            queue.write_ring(ENTRY, mark);
            all.iter_mut().try_for_each(Child::go)?;
            parent.step()?;
            come_back(1)?;
        }
        all.iter_mut().try_for_each(Child::at_step)?;
        end(all)
    })?;
    for mask in MARKS.flat_map(|_| ["0-31", "all"]) {
        tenant.next()?;
        set(NAME, MASK, mask)?;
    }
    tenant.go()?;
    tenant.finish()?;
    no_worker()
}

/// Members that map, unmap and free in a storm are killed in it. What a neighbour has mapped stays,
/// and so does what it can map.
fn storm() -> Outcome {
    let neighbour = session(0)?;
    let prepared_before = prepared(&neighbour, BYTES)?;
    let mapping = touched(&prepared_before)?;
    let group = Group::new(NAME)?;
    set(NAME, OWNED, "1")?;
    for round in 0..10 {
        let mut tenant = join(&group, |parent| {
            let session = session(0)?;
            let kept = prepared(&session, BYTES)?;
            let others = touched(&kept)?;
            parent.step()?;
            for number in 0_u32.. {
                let one = prepared(&session, BYTES)?;
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
        drop(touched(&prepared(&neighbour, BYTES)?)?);
    }
    same("the word", mapping.u32(0).load(Ordering::SeqCst), 1)?;
    no_worker()
}
