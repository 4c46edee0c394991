// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests channels that were there before a limit, and that the driver shadows since.

use crate::gpus::{session, ENGINE};
use crate::launch::{Place, PROGRAMS};
use crate::limits::{path, set, FREEZE};
use crate::owned::{count, join, no_worker, workers, NAME};
use crate::owned_ends::session_in;
use crate::owned_launch::{disabled, MASK};
use crate::process::{Child, Parent};
use crate::submit::{queue, release};
use crate::tree::{self, eventually, Group};
use gct_ktap::{failed, same, During, Outcome, Stop, Test};
use rm_client::{numbers, Capture, Error, Memory, Queue, Session};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("shadowed_work_is_done", work),
    ("shadowed_work_in_a_space_of_uvm", work_uvm),
    ("shadowed_launches_have_the_mask", masked),
    ("shadowed_in_flight", in_flight),
    ("shadowed_many_channels", many),
    ("shadowed_memory_is_used_again", again),
    ("shadowed_not_what_shares_a_page", together),
    ("shadowed_by_a_child", forked),
    ("shadowed_while_channels_come_and_go", storm),
    ("shadowed_while_its_channel_is_made", during),
    ("shadowed_killed_at_every_step", killed),
    ("shadowed_hostile_registers_its_pages", registered),
];

/// Bytes of a ring.
const RING: u64 = 0x1000;

/// Runs `work` in a member of a group without limits, and writes a mask at each of its steps: the
/// first, all TPCs, the first again and so on.
fn member(work: impl FnOnce(&mut Parent) -> Outcome) -> Outcome {
    let group = Group::new(NAME)?;
    let mut child = join(&group, work)?;
    for mask in ["0-31", "all"].iter().cycle() {
        if child.next().is_err() {
            break;
        }
        set(NAME, MASK, mask)?;
    }
    child.finish()?;
    no_worker()
}

pub(crate) fn cuda_like() -> Result<Session, Stop> {
    Ok(session(0)?.with_rings_on_device())
}

/// Fails unless so many channels have their tenant's ring, of which so many are shadowed.
pub(crate) fn counts(native: u64, cooperative: u64) -> Outcome {
    let found = (count("native")?, count("cooperative")?);
    same("native, cooperative", found, (native, cooperative))
}

/// Waits until all channels of this process are its own again.
pub(crate) fn come_back(native: u64) -> Outcome {
    eventually("native, cooperative", &(native, 0), || {
        Ok((count("native")?, count("cooperative")?))
    })?;
    no_worker()
}

/// Each submission is executed once, before the mask, under it, and without it again.
fn work() -> Outcome {
    work_in(false)
}

/// The same where nvidia-uvm owns the page tables, as it does for libcuda.
fn work_uvm() -> Outcome {
    work_in(true)
}

fn work_in(uvm: bool) -> Outcome {
    member(|parent| {
        let session = session_in(uvm)?.with_rings_on_device();
        let mut queue = queue(&session)?;
        for number in 1..=600 {
            release(&mut queue, 0, number)?;
        }
        same("workers", workers()?, 0)?;
        counts(1, 0)?;
        for round in 1..=4 {
            parent.step()?;
            match round % 2 {
                1 => counts(1, 1)?,
                _ => come_back(1)?,
            }
            same("workers", workers()?, round as usize % 2)?;
            for number in 1..=600 {
                release(&mut queue, number, 1000 * round + number)?;
            }
        }
        Ok(())
    })
}

fn masked() -> Outcome {
    member(|parent| {
        let place = Place::new(cuda_like()?)?;
        let (_, texts, grids) = PROGRAMS[0];
        let capture = Capture::parse(texts)?;
        let mut channels = place.channels(&capture)?;
        for words in [[0; 8], disabled("0-31")?, [0; 8]] {
            let mark = place.recorder.mark()?;
            let launches = place.run_on(&mut channels, &capture, mark)?;
            let found: Vec<_> = launches.iter().map(|launch| launch.grid).collect();
            same("grids", &found[..], grids)?;
            same("mask", &launches[0].mask_words()[..], &words[..])?;
            parent.step()?;
        }
        Ok(())
    })
}

/// What the GPU has not read when the limit comes is executed, and what follows, behind it.
fn in_flight() -> Outcome {
    let group = Group::new(NAME)?;
    let mut child = join(&group, |parent| {
        let session = cuda_like()?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        parent.step()?;
        for number in 1..=40 {
            queue.submit_release(number, number);
        }
        parent.step()?;
        counts(1, 1)?;
        queue.submit_release(0, 2);
        same("in a freeze", queue.payload(40), 0)?;
        parent.step()?;
        queue.ring();
        eventually("the last", &2, || Ok(queue.payload(0)))?;
        for number in 1..=40 {
            same("payload", queue.payload(number), number)?;
        }
        for number in 3..=600 {
            release(&mut queue, 0, number)?;
        }
        Ok(())
    })?;
    child.next()?;
    set(NAME, FREEZE, "1")?;
    child.next()?;
    set(NAME, MASK, "0-31")?;
    child.next()?;
    set(NAME, FREEZE, "0")?;
    child.go()?;
    child.finish()?;
    no_worker()
}

fn many() -> Outcome {
    member(|parent| {
        let session = cuda_like()?;
        let mut queues = Vec::new();
        for _ in 0..3 {
            let group = session.group(ENGINE)?;
            for _ in 0..4 {
                queues.push(session.queue(group, ENGINE).during("queue")?);
            }
            session.schedule(group, true)?;
        }
        for round in 0..4 {
            for (queue, number) in queues.iter_mut().zip(1..) {
                queue.submit_release(0, 100 * round + number);
            }
            for (queue, number) in queues.iter().zip(1..) {
                eventually("payload", &(100 * round + number), || Ok(queue.payload(0)))?;
            }
            parent.step()?;
            match round % 2 {
                0 => counts(12, 12)?,
                _ => come_back(12)?,
            }
        }
        Ok(())
    })
}

/// All mappings of a shadowed channel's memory show the same pages. When it is freed, they show
/// what was written, and the memory serves for other channels.
fn again() -> Outcome {
    member(|parent| {
        let session = cuda_like()?;
        let mut old = queue(&session)?;
        release(&mut old, 0, 1)?;
        parent.step()?;
        counts(1, 1)?;
        old.write_ring(300, 0x1234_5678_9abc_def0);
        let gpu = session.gpu();
        let late = gpu.map_memory(Memory::Device, old.memory(), 0x1000)?;
        let found = late.u64(300 * 8).load(Ordering::Relaxed);
        same("the ring by a later mapping", found, 0x1234_5678_9abc_def0)?;
        gpu.client().free(old.channel())?;
        counts(0, 0)?;
        same("workers", workers()?, 0)?;
        same("the ring", old.read_ring(300), 0x1234_5678_9abc_def0)?;
        // Without limits.
        parent.step()?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 2)?;
        counts(1, 0)
    })
}

/// Channels whose positions lie in one page stay native, and work. A channel that would come to the
/// page of a shadowed one is refused.
fn together() -> Outcome {
    member(|parent| {
        let session = cuda_like()?.with_positions_together();
        let mut pair = [queue(&session)?, queue(&session)?];
        parent.step()?;
        counts(2, 0)?;
        same("workers", workers()?, 0)?;
        for queue in &mut pair {
            for number in 1..=20 {
                release(queue, 0, number)?;
            }
        }
        drop(pair);
        // Without limits.
        parent.step()?;
        let session = cuda_like()?.with_positions_together();
        let mut first = queue(&session)?;
        parent.step()?;
        counts(3, 1)?;
        let group = session.group(ENGINE)?;
        same("refused", session.queue(group, ENGINE).is_err(), true)?;
        release(&mut first, 0, 1)
    })
}

/// Both processes that a tenant's mappings belong to see the same pages.
fn forked() -> Outcome {
    member(|parent| {
        let session = cuda_like()?;
        let mut queue = queue(&session)?;
        release(&mut queue, 0, 1)?;
        let mut child = Child::fork(|parent| {
            parent.step()?;
            release(&mut queue, 0, 2)?;
            parent.step()?;
            release(&mut queue, 0, 3)
        })?;
        child.at_step()?;
        parent.step()?;
        child.next()?;
        same("the child's", queue.payload(0), 2)?;
        parent.step()?;
        come_back(1)?;
        child.go()?;
        child.finish()?;
        same("the child's last", queue.payload(0), 3)
    })
}

/// Submits without a pause, and makes and frees channels, while limits come and go.
fn storm() -> Outcome {
    let group = Group::new(NAME)?;
    let mut child = join(&group, |parent| {
        let ends = AtomicBool::new(false);
        let session = cuda_like()?;
        let works = |work: &dyn Fn(u32) -> Outcome| -> Outcome {
            let mut number = 0;
            while !ends.load(Ordering::Relaxed) {
                number += 1;
                work(number)?;
            }
            Ok(())
        };
        let steady = |mut queue: Queue| -> Outcome {
            let mut number = 0;
            while !ends.load(Ordering::Relaxed) {
                number += 1;
                release(&mut queue, 0, number)?;
            }
            Ok(())
        };
        let brief = |_| -> Outcome {
            let session = cuda_like()?;
            let mut queue = queue(&session)?;
            release(&mut queue, 0, 1)?;
            session.gpu().client().free(queue.channel())?;
            Ok(())
        };
        let first = queue(&session)?;
        thread::scope(|scope| {
            let all = [
                scope.spawn(|| steady(first)),
                scope.spawn(|| works(&brief)),
                scope.spawn(|| works(&brief)),
            ];
            let outcome = parent.step();
            ends.store(true, Ordering::Relaxed);
            all.into_iter()
                .try_for_each(|one| one.join().unwrap_or_else(|_| Err(failed("a panic"))))
                .and(outcome)
        })
    })?;
    child.go()?;
    for mask in ["0-31", "all"].iter().cycle().take(30) {
        set(NAME, MASK, mask)?;
    }
    child.at_step()?;
    child.go()?;
    child.finish()?;
    no_worker()
}

/// Makes and frees channels until a mask is there. The last one may have been allocated while the
/// mask was written: before it was in force, and behind the search for channels from before.
fn during() -> Outcome {
    const ROUNDS: usize = 40;
    let group = Group::new(NAME)?;
    let mask = path(NAME, MASK)?;
    let mut child = join(&group, |parent| {
        let session = cuda_like()?;
        let client = session.gpu().client();
        let memory = session.gpu().alloc_memory(Memory::Device, RING)?;
        let ring = session.map_on_gpu(memory, RING)?;
        // The driver takes pages of memory that is mapped alone.
        let _ring = session.gpu().map_memory(Memory::Device, memory, 0x1000)?;
        let positions = session.positions();
        let _positions = session
            .gpu()
            .map_memory(Memory::Device, positions, 0x1000)?;
        let group = session.group(ENGINE)?;
        for round in 1..=ROUNDS {
            parent.step()?;
            let channel = loop {
                let channel = session.channel_with_ring(group, ENGINE, ring)?;
                if tree::read(&mask)?.trim() != "all" {
                    break channel;
                }
                client.free(channel)?;
            };
            parent.step()?;
            let found = (count("native")?, count("cooperative")?);
            same(&format!("round {round}"), found, (found.1, found.1))?;
            client.free(channel)?;
        }
        Ok(())
    })?;
    for round in 0..ROUNDS {
        child.next()?;
        set(NAME, MASK, "all")?;
        child.go()?;
        thread::sleep(Duration::from_millis(round as u64 % 8));
        set(NAME, MASK, "0-31")?;
        child.at_step()?;
    }
    child.go()?;
    child.finish()?;
    no_worker()
}

/// Kills a tenant at each step of the life of a channel that a limit finds.
fn killed() -> Outcome {
    const STEPS: u32 = 4;
    let group = Group::new(NAME)?;
    for last in 1..=STEPS {
        let mut child = join(&group, |parent| {
            let session = cuda_like()?;
            let group = session.group(ENGINE)?;
            let mut queue = session.queue(group, ENGINE)?;
            session.copy_object(queue.channel(), ENGINE)?;
            parent.step()?;
            session.schedule(group, true)?;
            for number in 0..400 {
                queue.submit_release(1, number);
            }
            parent.step()?;
            release(&mut queue, 0, 2)?;
            parent.step()?;
            session.gpu().client().free(queue.channel())?;
            parent.step()
        })?;
        for step in 1..=last {
            child.next().during(format!("step {step}"))?;
            if step == 2 {
                set(NAME, MASK, "0-31")?;
            }
        }
        child.kill();
        no_worker()?;
        set(NAME, MASK, "all")?;
    }
    Ok(())
}

/// Registers a page that the tenant sees in place of its ring as I/O memory. The driver does not
/// pin that, and the GPU could write to the page when it is the kernel's again. The administrator
/// may register such memory, and everybody where the driver has the key PeerMappingOverride.
fn registered() -> Outcome {
    member(|parent| {
        let session = cuda_like()?;
        let mut queue = queue(&session)?;
        for round in 0..2 {
            release(&mut queue, 0, 1 + round)?;
            counts(1, round.into())?;
            let taken = session.gpu().register_page(queue.mapping());
            let refused = matches!(taken, Err(Error::Status(numbers::INVALID_ADDRESS)));
            same(&format!("round {round}: {taken:?}"), refused, true)?;
            parent.step()?;
        }
        Ok(())
    })
}
