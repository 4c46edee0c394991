// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that the driver cuts long copies of owned channels under `atom.duration`, exactly.

use crate::gpus::session;
use crate::launch::recorder;
use crate::limits::set;
use crate::owned::{count, join, no_worker, OWNED};
use crate::owned_atoms::{copying, ATOM};
use crate::owned_launch::NAME;
use crate::submit::{queue, release};
use crate::tree::{eventually, Group};
use fakegpu_record::{Copied, Recorder, COPY_ENGINES};
use gct_core::owned::FRAMES;
use gct_core::submit::method::incr;
use gct_ktap::{same, Outcome, Stop, Test};
use rm_client::Memory;
use std::sync::atomic::Ordering;

pub(crate) const TESTS: &[Test] = &[("owned_copies_are_cut_and_exact", cut)];

/// Bytes of a copy, and of the memory that it lies in twice.
const BYTES: u32 = (3 << 16) + 4;
const ROOM: u64 = 1 << 20;
/// Offsets in that memory.
const TO: u64 = 1 << 19;
/// Offsets in the tenant's own page: a segment, and the word that it releases.
const SEGMENT: usize = 0;
const RELEASE: usize = 0x800;

/// Returns what copy engines have moved within a memory so far.
fn within(recorder: &Recorder) -> Result<Copied, Stop> {
    let copies: [_; COPY_ENGINES] = recorder.copies().map_err(gct_ktap::failed)?;
    Ok(copies.iter().map(|engine| engine.within).sum())
}

/// Returns a word that differs from its neighbours and between two rounds.
fn pattern(at: u32, round: u32) -> u32 {
    at.wrapping_mul(0x9e37_79b9) ^ round
}

/// Copies more often than there are frames. Each copy has three pieces at least, since the first
/// two have 64 KiB each; further ones depend on the speed of the host.
fn cut() -> Outcome {
    let group = Group::new(NAME)?;
    drop(session(0)?);
    set(NAME, OWNED, "1")?;
    set(NAME, ATOM, "5")?;
    let mut child = join(&group, |_| {
        let recorder = recorder()?;
        let session = session(0)?;
        let mut queue = queue(&session)?;
        let gpu = session.gpu();
        let memory = gpu.alloc_memory(Memory::Device, ROOM)?;
        let address = session.map_on_gpu(memory, ROOM)?;
        // CAST: 1 MiB.
        let bytes = gpu.map_memory(Memory::Device, memory, ROOM as usize)?;
        let own = gpu.alloc_memory(Memory::Host, 0x1_0000)?;
        let own_address = session.map_on_gpu(own, 0x1_0000)?;
        let words = gpu.map_memory(Memory::Host, own, 0x1_0000)?;
        release(&mut queue, 0, 1)?;
        // CAST: a small number.
        for round in 1..=FRAMES as u32 + 2 {
            for at in (0..BYTES).step_by(4) {
                let source = bytes.u32(at as usize);
                source.store(pattern(at, round), Ordering::Relaxed);
            }
            let release_at = own_address + RELEASE as u64;
            // CAST: halves.
            let semaphore = [(release_at >> 32) as u32, release_at as u32, round];
            let mut segment = copying(address, address + TO, BYTES).to_vec();
            segment.push(incr(4, 0x240, 3));
            segment.extend(semaphore);
            segment.extend([incr(4, 0x300, 1), 0xc]);
            for (at, word) in segment.iter().enumerate() {
                words.u32(SEGMENT + 4 * at).store(*word, Ordering::Relaxed);
            }
            let before = within(&recorder)?;
            // CAST: a few words.
            queue.submit_segment(own_address + SEGMENT as u64, segment.len() as u32);
            eventually("the release", &round, || {
                Ok(words.u32(RELEASE).load(Ordering::Acquire))
            })?;
            let moved = within(&recorder)?.since(before);
            println!("# {} pieces", moved.operations);
            same("bytes", moved.bytes, BYTES.into())?;
            same("in pieces", moved.operations >= 3, true)?;
            // CAST: below 1 MiB.
            let arrived = |at: u32| bytes.u32(TO as usize + at as usize).load(Ordering::Relaxed);
            let wrong = (0..BYTES)
                .step_by(4)
                .filter(|at| arrived(*at) != pattern(*at, round));
            same("wrong words", wrong.count(), 0)?;
        }
        same("crowded", count("crowded")?, 0)
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}
