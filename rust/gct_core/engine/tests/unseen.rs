// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which channels have registers that nobody saw.

use super::*;
use crate::engine::Progress;
use crate::gpu_time::GpuTime;
use crate::launches::{EffectiveTpcs, Launches};
use crate::rmapi::Handle;

/// The resource manager's number of the GPU.
const GPU_ID: u32 = 1;

/// What a process has done that ran words which nobody saw.
const UNSEEN: Progress = Progress {
    launches: Launches::ZERO,
    effective: EffectiveTpcs::Unknown,
    time: GpuTime::ZERO,
    pending: 0,
    unseen: true,
};

fn handle(number: u64) -> Handle {
    Handle::try_from(number).unwrap()
}

impl World {
    /// Allocates a channel of the driver's below an object.
    fn owned_below(&mut self, file: FileId, parent: u64, channel: u64) {
        self.alloc(file, parent, channel, 0xc86f, None);
        let mut state = self.store.state();
        state.owned_made(file, handle(CLIENT), handle(channel), true);
    }

    /// Returns how many unseen channels an owner has, and whether it is permissive.
    fn unseen(&mut self, owner: Owner) -> (u64, bool) {
        self.store.check();
        let pool = self.pool(owner);
        let stat = self.read(File::ComputeStat, pool).unwrap();
        let of = |key| {
            let mut lines = stat.lines();
            let value = lines.find_map(|line| line.strip_prefix(key));
            value.unwrap().trim().parse::<u64>().unwrap()
        };
        (of("unseen "), of("permissive ") == 1)
    }
}

/// A process in a group with a limit on launches, and what its file is.
fn limited() -> (World, GroupId, FileId) {
    let mut world = World::new(FeatureSet::all());
    let (web, file) = world.web();
    let pool = world.pool(Owner::Group(web));
    assert_eq!(world.write(File::TpcMask, pool, "0-3"), Ok(()));
    (world, web, file)
}

/// What a channel with its tenant's ring has left in its group's context stays as long as that.
#[test]
fn a_channel_group_remembers_channels_that_nobody_saw() {
    let (mut world, web, file) = limited();
    let owners = [Owner::Proc(APP), Owner::Group(web)];
    let is = |world: &mut World, expected| {
        assert_eq!(owners.map(|owner| world.unseen(owner)), [expected; 2]);
    };
    world.owned_below(file, TSG, CHANNEL + 1);
    is(&mut world, (0, true));
    world.free(file, CHANNEL, 0);
    is(&mut world, (1, true));
    // A channel of another channel group is as it was seen, and one of the same group is not.
    world.alloc(file, DEVICE, TSG + 1, 0xa06c, None);
    world.owned_below(file, TSG + 1, CHANNEL + 2);
    is(&mut world, (1, true));
    world.owned_below(file, TSG, CHANNEL + 3);
    is(&mut world, (2, true));
    for (channel, left) in [(CHANNEL + 1, (1, true)), (CHANNEL + 3, (0, false))] {
        world.free(file, channel, 0);
        is(&mut world, left);
    }
    world.owned_below(file, TSG, CHANNEL + 1);
    is(&mut world, (1, true));
    let other = world.group("other");
    world.store.state().member_moved(APP, Some(other)).unwrap();
    assert_eq!(world.unseen(owners[0]), (1, false), "no limit");
    assert_eq!(world.unseen(Owner::Group(other)), (1, false));
    assert_eq!(world.unseen(owners[1]), (0, false));
    world.store.state().member_moved(APP, None).unwrap();
    is(&mut world, (1, true));
    world.free(file, TSG, 0);
    is(&mut world, (0, false));
}

/// Words that ran in an owned channel before its process was strict count for its channel group,
/// and for a channel without one as long as it is there.
#[test]
fn owned_channels_that_ran_what_nobody_saw_are_remembered() {
    let (mut world, _, file) = limited();
    let proc = Owner::Proc(APP);
    world.free(file, TSG, 0);
    world.alloc(file, DEVICE, TSG, 0xa06c, None);
    world.owned_below(file, TSG, CHANNEL);
    world.owned_below(file, DEVICE, CHANNEL + 1);
    assert_eq!(world.unseen(proc), (0, false));
    for _ in 0..2 {
        world.store.state().progressed(file, GPU_ID, &UNSEEN);
        assert_eq!(world.unseen(proc), (2, true));
    }
    world.free(file, CHANNEL, 0);
    world.owned_below(file, TSG, CHANNEL);
    assert_eq!(world.unseen(proc), (2, true));
    world.free(file, CHANNEL + 1, 0);
    world.owned_below(file, DEVICE, CHANNEL + 1);
    assert_eq!(world.unseen(proc), (1, true));
    world.free(file, TSG, 0);
    assert_eq!(world.unseen(proc), (0, false));
}

/// Under `compute.max` alone a process pauses while it has a channel with its own ring. Without
/// one, launches that nobody saw are not counted.
#[test]
fn compute_max_is_evaded_by_registers_alone() {
    let mut world = World::new(FeatureSet::all());
    let (_, file) = world.web();
    let proc = Owner::Proc(APP);
    let pool = world.pool(proc);
    assert_eq!(world.write(File::ComputeMax, pool, "1000 2000"), Ok(()));
    world.owned_below(file, TSG, CHANNEL + 1);
    assert_eq!(world.unseen(proc), (0, false));
    world.free(file, CHANNEL, 0);
    assert_eq!(world.unseen(proc), (1, true));
}
