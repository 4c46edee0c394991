// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that launches go whole, and are counted, while frames for their atoms are in use.

use crate::gpus::session;
use crate::launch::recorder;
use crate::limits::set;
use crate::owned::{count, no_worker};
use crate::owned_launch::{disabled, member, NAME};
use crate::owned_time::{launches, Tenant, MILLISECOND, PROGRAM_OF_ONE};
use crate::tree::{eventually, Group};
use gct_core::owned::FRAMES;
use gct_ktap::{same, Outcome, Test};
use rm_client::Grid;
use std::sync::atomic::Ordering;

pub(crate) const TESTS: &[Test] = &[("owned_crowded_launches_go_whole", whole)];

const LIST: &str = "0-31";
/// Blocks of a launch that is split.
const LONG: u32 = 4 * MILLISECOND;
/// Offsets in the tenant's memory: a descriptor, and the words that the launches release.
const DESCRIPTOR: u64 = 0x1000;
const RELEASES: usize = 0x9000;

/// Launches, waits for the end, and takes the release back. So a split launch keeps its frame.
/// Fails unless the launch is split or counted, and has its mask.
fn launch(tenant: &mut Tenant, number: usize, is_split: bool) -> Outcome {
    let recorder = recorder()?;
    let mark = recorder.mark()?;
    let (split, crowded) = (count("split")?, count("crowded")?);
    let offset = RELEASES + 16 * number;
    let grid = Grid {
        descriptor: tenant.address + DESCRIPTOR,
        program: PROGRAM_OF_ONE,
        size: [LONG, 1, 1],
        disabled: 0,
        release: Some((tenant.address + offset as u64, 1)),
    };
    tenant.launcher.submit(&grid.words());
    let release = tenant.words.u32(offset);
    eventually("the end", &1, || Ok(release.load(Ordering::Acquire)))?;
    release.store(0, Ordering::SeqCst);
    let more = u64::from(is_split);
    eventually("split", &(split + more), || count("split"))?;
    eventually("crowded", &(crowded + 1 - more), || count("crowded"))?;
    let found = launches(&recorder, mark, PROGRAM_OF_ONE)?;
    println!("# {} pieces", found.len());
    same("split", found.len() > 1, is_split)?;
    let mask = disabled(LIST)?;
    let masked = found.iter().all(|launch| launch.mask_words() == mask);
    same("mask", masked, true)
}

/// A tenant takes back the releases of its launches, so their frames stay in use. The next launch
/// goes whole, with its mask. One release more, and one frame is free.
fn whole() -> Outcome {
    let group = Group::new(NAME)?;
    // The driver learns the GPU's TPCs from its first client.
    drop(session(0)?);
    set(NAME, "atom.duration", "100")?;
    let mut child = member(&group, LIST, |_| {
        let mut tenant = Tenant::with(session(0)?, PROGRAM_OF_ONE)?;
        for number in 0..FRAMES {
            launch(&mut tenant, number, true)?;
        }
        launch(&mut tenant, FRAMES, false)?;
        tenant.words.u32(RELEASES).store(1, Ordering::SeqCst);
        launch(&mut tenant, FRAMES, true)
    })?;
    child.go()?;
    child.finish()?;
    no_worker()
}
