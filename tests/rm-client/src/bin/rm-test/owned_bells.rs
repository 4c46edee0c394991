// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that the worker of owned channels sleeps while tenants are idle, and hears them ring.

use crate::gpus::{need_two, session, session_of};
use crate::limits::set;
use crate::owned::{admit, as_member, join, member, no_worker, worker_status, NAME, OWNED};
use crate::process::Child;
use crate::submit::{queue, release};
use crate::timing::{few_are_late, undisturbed};
use crate::tree::{eventually, Group};
use gct_ktap::{failed, same, Outcome, Stop, Test};
use rm_client::{numbers, Client, Gpu, Mapping, Memory, Queue, Session};
use std::ptr;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("owned_bells_let_the_worker_sleep", sleeps),
    ("owned_bells_wake_the_worker", wakes),
    ("owned_bells_that_are_not_heard", unheard),
    ("owned_bells_of_the_busy_stay_mapped", busy),
    ("owned_bells_of_others_stay_mapped", mapped),
    (
        "owned_bells_of_members_without_channels_stay_mapped",
        unused,
    ),
    ("owned_bells_of_cut_mappings", cut),
    ("owned_bells_of_hostile_tenants", hostile),
    ("owned_bells_ring_while_a_worker_starts", starting),
];

/// Returns how often the worker has gone to sleep.
fn sleeps_of_worker() -> Result<u64, Stop> {
    worker_status("voluntary_ctxt_switches")?
        .parse()
        .map_err(failed)
}

/// Waits until the worker sleeps for long. One that looked each 2 ms would wake 200 times.
fn is_asleep() -> Outcome {
    eventually("few wake-ups", &true, || {
        let before = sleeps_of_worker()?;
        sleep(Duration::from_millis(400));
        Ok(sleeps_of_worker()? - before <= 2)
    })
}

/// Submits a release and returns how long its semaphore takes.
fn time(queue: &mut Queue, payload: u32) -> Result<Duration, Stop> {
    let start = Instant::now();
    release(queue, 0, payload)?;
    Ok(start.elapsed())
}

fn sleeps() -> Outcome {
    as_member(|_| {
        let session = session(0)?;
        let group = session.group(crate::gpus::ENGINE)?;
        // One that has never submitted, and one that has.
        let _unused = session.queue(group, crate::gpus::ENGINE)?;
        is_asleep()?;
        let mut queue = queue(&session)?;
        for number in 1..=10 {
            release(&mut queue, 0, number)?;
        }
        is_asleep()?;
        undisturbed(|| {
            let (before, start) = (sleeps_of_worker()?, Instant::now());
            sleep(Duration::from_secs(3));
            let count = sleeps_of_worker()? - before;
            let slept = start.elapsed().as_millis();
            println!("# {count} wake-ups in {slept} ms");
            let most = slept * 2 / 1000;
            same("at most two a second", u128::from(count) <= most, true)
        })
    })
}

/// A submission that the worker does not hear takes longer with a probability of three in four: the
/// worker looks once a second. One that is heard takes up to 0.1 s where the host shares its
/// processors out by quotas.
const UNHEARD: Duration = Duration::from_millis(250);

fn wakes() -> Outcome {
    as_member(|_| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        undisturbed(|| {
            let mut rounds = Vec::new();
            for round in 1..=10 {
                is_asleep()?;
                rounds.push(time(&mut queue, round)?);
            }
            few_are_late(&rounds, UNHEARD, 3)
        })
    })
}

/// Rings by a mapping that was made before the tenant had owned channels. The first submission
/// after a pause may wait for a second. Then the worker knows that it does not hear.
fn unheard() -> Outcome {
    let group = Group::new(NAME)?;
    set(NAME, OWNED, "1")?;
    let child = Child::fork(|parent| {
        let session = session(0)?;
        let earlier = session.gpu().doorbell(false)?;
        parent.step()?;
        let mut queue = queue(&session)?;
        let followed = queue.ring_by(earlier);
        is_asleep()?;
        println!("# first {} us", time(&mut queue, 1)?.as_micros());
        undisturbed(|| {
            let mut rounds = Vec::new();
            for round in 2..=9 {
                sleep(Duration::from_millis(300));
                rounds.push(time(&mut queue, round)?);
            }
            few_are_late(&rounds, UNHEARD, 2)
        })?;
        // It is heard again by the one that the worker knows.
        drop(queue.ring_by(followed));
        release(&mut queue, 0, 100)?;
        is_asleep()
    })?;
    admit(&group, child)
}

/// Returns the page faults of this process.
pub(crate) fn faults() -> i64 {
    // SAFETY: `usage` is writable, and zeroes are valid.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage.ru_minflt + usage.ru_majflt
    }
}

/// A process that submits every 2 ms rings without page faults. The driver revokes a doorbell when
/// there was no work for 10 ms, which a busy host makes of some pauses.
fn busy() -> Outcome {
    const ROUNDS: u32 = 200;
    as_member(|_| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        let (mut before, mut pauses) = (0, 0);
        let mut last = Instant::now();
        for round in 1..=ROUNDS {
            if round == 10 {
                (before, pauses) = (faults(), 0);
            }
            sleep(Duration::from_millis(2));
            // The worker may have seen the end of the last one long before this process did.
            pauses += i64::from(last.elapsed() > Duration::from_millis(8));
            last = Instant::now();
            release(&mut queue, 0, round)?;
        }
        let count = faults() - before;
        println!("# {count} faults, {pauses} long pauses");
        same("faults", count <= pauses + 5, true)
    })
}

/// Fails unless a load from a doorbell's page faults, or does not, and the page is the GPU's: its
/// clock runs.
fn takes(page: &Mapping, a_fault: bool) -> Outcome {
    let clock = page.u32(usize::from(numbers::DOORBELL) - 16);
    faults();
    let before = faults();
    let start = clock.load(Ordering::SeqCst);
    // Revoked again before the load could be repeated, it faults twice.
    same("it faults", faults() > before, a_fault)?;
    eventually("the clock runs", &true, || {
        Ok(clock.load(Ordering::SeqCst) != start)
    })
}

/// While the worker sleeps, the doorbells of its tenants are not mapped, and those of others are.
fn mapped() -> Outcome {
    let native = session(0)?;
    let page = native.gpu().doorbell(false)?;
    takes(&page, false)?;
    let group = Group::new(NAME)?;
    let mut child = member(&group, |parent| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        let pages = [
            session.gpu().doorbell(false)?,
            session.gpu().doorbell(true)?,
        ];
        release(&mut queue, 0, 1)?;
        is_asleep()?;
        // Each is mapped again: its clock runs.
        pages.iter().try_for_each(|page| takes(page, true))?;
        parent.step()?;
        is_asleep()?;
        parent.step()
    })?;
    for _ in 0..2 {
        child.next()?;
        takes(&page, false)?;
    }
    child.go()?;
    child.finish()?;
    no_worker()
}

/// A member whose doorbell the driver knows, and that has no owned channel, rings without faults
/// while the worker of others sleeps. It is heard once it has one.
fn unused() -> Outcome {
    let group = Group::new(NAME)?;
    let mut other = member(&group, |parent| {
        let session = session(0)?;
        release(&mut queue(&session)?, 0, 1)?;
        is_asleep()?;
        parent.step()
    })?;
    let mut child = member(&group, |parent| {
        let session = session(0)?;
        let page = session.gpu().doorbell(false)?;
        parent.step()?;
        takes(&page, false)?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        is_asleep()?;
        takes(&page, true)?;
        session.gpu().client().free(queue.channel())?;
        // What was revoked is mapped again, and stays so.
        page.u32(0).load(Ordering::SeqCst);
        is_asleep()?;
        takes(&page, false)
    })?;
    child.next()?;
    other.next()?;
    child.go()?;
    child.finish()?;
    other.go()?;
    other.finish()?;
    no_worker()
}

/// What is left of a mapping that its tenant has cut works on when the driver has revoked it, and
/// memory that may be shadowed works, which mmap leaves unmapped.
fn cut() -> Outcome {
    as_member(|_| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        let mut page = session.gpu().doorbell(false)?;
        page.cut(0xf000);
        release(&mut queue, 0, 1)?;
        for _ in 0..2 {
            is_asleep()?;
            takes(&page, true)?;
        }
        let memory = session.gpu().alloc_memory(Memory::Device, 0x4000)?;
        let mut mapped = session.gpu().map_memory(Memory::Device, memory, 0x4000)?;
        mapped.cut(0x2000);
        mapped.u32(0x1000).store(7, Ordering::SeqCst);
        same("a word", mapped.u32(0x1000).load(Ordering::SeqCst), 7)
    })
}

/// Maps, unmaps, moves, protects and inherits doorbells, and rings them, as random numbers say.
fn harass(session: &Session, seed: u64) -> Outcome {
    let mut state = seed;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    for _ in 0..60 {
        let page = session.gpu().doorbell(random(2) == 1)?;
        let start = ptr::from_ref(page.u32(0)).cast_mut().cast::<libc::c_void>();
        for _ in 0..random(8) {
            let bell = page.u32(numbers::DOORBELL.into());
            match random(6) {
                // CAST: any token.
                0 | 1 => bell.store(random(1 << 20) as u32, Ordering::SeqCst),
                2 => sleep(Duration::from_millis(random(30))),
                // SAFETY: protects pages of the mapping, which nobody else uses.
                3 => unsafe {
                    libc::mprotect(start, 0x1000, libc::PROT_READ);
                    libc::mprotect(start, 0x1000, libc::PROT_READ | libc::PROT_WRITE);
                },
                // SAFETY: the child only stores and exits. A part of the mapping may be gone: then
                // a signal ends the child.
                4 => unsafe {
                    let child = libc::fork();
                    if child == 0 {
                        bell.store(0, Ordering::SeqCst);
                        libc::munmap(start.byte_add(0x8000), 0x8000);
                        libc::mremap(start, 0x8000, 0x4000, libc::MREMAP_MAYMOVE);
                        bell.store(1, Ordering::SeqCst);
                        libc::_exit(0)
                    }
                    libc::waitpid(child, ptr::null_mut(), 0);
                },
                // SAFETY: unmaps the last page of the mapping, which nobody uses.
                _ => unsafe {
                    libc::munmap(start.byte_add(0xf000), 0x1000);
                },
            }
        }
        if random(4) == 0 {
            // Its file stays open, so the bell does.
            std::mem::forget(page);
        }
    }
    Ok(())
}

/// Tenants that work on their doorbells make no neighbour wait: of the rounds of one that pauses
/// now and then, few take as long as one that the worker does not hear.
fn hostile() -> Outcome {
    let group = Group::new(NAME)?;
    let mut witness = member(&group, |parent| {
        let session = session(0)?;
        let mut queue = queue(&session)?;
        parent.step()?;
        undisturbed(|| {
            let mut rounds = Vec::new();
            for round in 1..=100 {
                rounds.push(time(&mut queue, round)?);
                sleep(Duration::from_millis(u64::from(round % 30)));
            }
            few_are_late(&rounds, UNHEARD, 5)
        })?;
        parent.step()?;
        is_asleep()?;
        parent.step()?;
        release(&mut queue, 0, 200)
    })?;
    witness.next()?;
    let mut all = Vec::new();
    for first in 1..=3 {
        let mut one = join(&group, |parent| {
            let session = session(0)?;
            let mut queue = queue(&session)?;
            release(&mut queue, 0, 1)?;
            let mut seeds = (first..).step_by(3);
            parent.work(|| seeds.next().map_or(Ok(()), |seed| harass(&session, seed)))?;
            release(&mut queue, 0, 2)
        })?;
        one.next()?;
        all.push(one);
    }
    witness.next()?;
    // One dies at its work, the others end.
    if let Some(mut one) = all.pop() {
        one.kill();
    }
    for one in &mut all {
        one.go()?;
        one.finish()?;
    }
    witness.next()?;
    witness.go()?;
    witness.finish()?;
    no_worker()
}

/// A tenant of one GPU rings on another one, whose worker starts and ends again and again.
fn starting() -> Outcome {
    need_two()?;
    let group = Group::new(NAME)?;
    let mut ringer = member(&group, |parent| {
        let client = Client::open()?;
        let one = session_of(&client, 0)?;
        let mut queue = queue(&one)?;
        release(&mut queue, 0, 1)?;
        let other = Gpu::open(&client, 1)?;
        // A doorbell that is mapped anew is an open bell.
        parent.work(|| {
            let page = other.doorbell(false)?;
            page.u32(0).load(Ordering::SeqCst);
            Ok(())
        })?;
        release(&mut queue, 0, 2)
    })?;
    ringer.next()?;
    let mut starter = join(&group, |_| {
        (0..20).try_for_each(|_| {
            let session = session(1)?;
            release(&mut queue(&session)?, 0, 1)
        })
    })?;
    starter.go()?;
    starter.finish()?;
    ringer.go()?;
    ringer.finish()?;
    no_worker()
}
