// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks each group's share of an engine, in model time.

use super::*;
use crate::abi;
use crate::gsp::objects::Objects;
use crate::host::{HOPPER_CHANNEL_GPFIFO_A, KEPLER_CHANNEL_GROUP_A};
use crate::memory::PhysicalAddress;
use crate::testing::{capture, Bench, TestChannel};
use gct_core::submit::gpfifo::{Entry, Segment};
use gct_core::submit::mask::DisabledTpcs;
use gct_core::submit::method::incr;
use gct_core::submit::rewrite::{in_place, Order};
use gct_core::submit::stats::Counters;
use gct_core::submit::tracker::{QmdCall, Tracker};
use proptest::prelude::*;

const CLIENT: u32 = 1;
const SPACE: u32 = 0x20;
const ENTRIES: u32 = 1024;
/// Where the segments and each channel's structures lie in video memory.
const OBJECT: u64 = 0x1000;
const LAUNCH: u64 = 0x2000;
const LOW: u64 = 0x4000;
const HIGH: u64 = 0x6000;
const CHANNELS: u64 = 0x10_0000;
const CHANNEL_BYTES: u64 = 0x1_0000;
/// Duration of the captured launch: 1000 blocks on 132 SMs in eight rounds of 10 us each, and 2 us.
const LAUNCH_NS: u64 = 82_000;
/// The time slice of a group without SET_TIMESLICE.
const SLICE_NS: u64 = 1_024_000;
const MS: u64 = 1_000_000;

fn key(handle: u32) -> ObjectKey {
    ObjectKey {
        client: CLIENT,
        handle,
    }
}

/// A GPU on which each group has one channel with launches.
struct Machine {
    bench: Bench,
    host: Host,
    objects: Objects,
}

impl Machine {
    fn new() -> Self {
        let mut machine = Self {
            bench: Bench::new(),
            host: Host::default(),
            objects: Objects::default(),
        };
        machine.bench.world.stop_clock();
        let root = machine.bench.space.root;
        machine.host.set_page_directory(key(SPACE), root);
        machine.put(OBJECT, &[incr(1, 0, 1), crate::compute::HOPPER_COMPUTE_A]);
        let segments = capture("one_launch");
        assert_eq!(segments.len(), 1);
        machine.put(LAUNCH, &segments[0]);
        machine
    }

    fn put(&mut self, offset: u64, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = PhysicalAddress::video(offset);
        self.bench.memory.write(at, &bytes).unwrap();
    }

    /// Adds a group to the runlist, with a channel that has `launches` launches to execute.
    fn busy_group(&mut self, number: u32, launches: u32) -> ObjectKey {
        let group = key(0x100 + number);
        self.objects.add(group, 0, KEPLER_CHANNEL_GROUP_A);
        self.busy_channel(group, number, LAUNCH, launches);
        group
    }

    /// Adds a channel to a group, and the group to the runlist. The channel has `launches` launches
    /// to execute, whose segment is at `segment`.
    fn busy_channel(&mut self, group: ObjectKey, number: u32, segment: u64, launches: u32) {
        let channel = key(0x200 + number);
        let place = CHANNELS + CHANNEL_BYTES * u64::from(number);
        let (ring, userd) = (place, place + 0x8000);
        let params = TestChannel {
            engine: abi::NV2080_ENGINE_TYPE_GR0,
            number,
            space: SPACE,
            ring,
            userd,
            notifier: place + 0x9000,
            entries: ENTRIES,
        }
        .params(&self.bench);
        let class = HOPPER_CHANNEL_GPFIFO_A;
        self.host
            .alloc(&self.objects, channel, group.handle, class, &params)
            .unwrap();
        self.host.schedule(group, true);
        let words = capture("one_launch")[0].len() as u32;
        for index in 0..=launches {
            let (place, words) = if index == 0 {
                (OBJECT, 2)
            } else {
                (segment, words)
            };
            let entry = Entry::Segment(Segment {
                va: self.bench.va(place),
                words,
                subroutine: false,
                wait: false,
                conditional: false,
            });
            let at = PhysicalAddress::video(ring + 8 * u64::from(index));
            self.bench.memory.write_u64(at, entry.encode()).unwrap();
        }
        self.put(userd + 0x8c, &[launches + 1]);
        let id = ChannelId {
            runlist: 0,
            channel: number,
        };
        assert_eq!(self.host.ring_doorbell(id), Some(channel));
    }

    /// Stores the launch with a mask at `place`.
    fn put_masked(&mut self, place: u64, kept: std::ops::Range<u16>) {
        let mask = DisabledTpcs::keep_only(128, kept).unwrap();
        let mut words = capture("one_launch").remove(0);
        let mut found = [QmdCall::default(); 8];
        let mut counters = Counters::new();
        let scanned = Tracker::new(0xc86f).scan(&words, &mut found, &mut counters);
        let order = Order {
            mask: Some(&mask),
            atoms: 1,
            ..Order::default()
        };
        let found = &found[..scanned.found];
        in_place(&mut words, found, &vec![order; found.len()], &mut counters);
        self.put(place, &words);
    }

    /// Executes what can be executed without advancing the clock.
    fn settle(&mut self) {
        while self.host.step(&mut self.bench.work()) == Progress::Busy {}
    }

    /// Advances the clock by `ns`, in pieces of `piece_ns`.
    fn pass(&mut self, ns: u64, piece_ns: u64) {
        self.settle();
        for _ in 0..ns / piece_ns {
            self.bench.world.pass(piece_ns);
            self.settle();
        }
    }

    /// Returns how many launches of a group have ended.
    fn ended(&self, group: ObjectKey) -> u64 {
        self.ended_on(key(group.handle + 0x100))
    }

    /// Returns how many launches of a channel have ended.
    fn ended_on(&self, channel: ObjectKey) -> u64 {
        let object = format!("\"object\":{},", channel.handle);
        let lines = self.bench.recorder.all();
        let launches = lines.iter().filter(|line| line.contains("\"launch\""));
        launches.filter(|line| line.contains(&object)).count() as u64
    }

    /// Asserts that a group has had the engine for `ns`.
    fn had(&self, group: ObjectKey, ns: u64) {
        assert_eq!(self.ended(group), ns / LAUNCH_NS, "launches of {group:x?}");
    }
}

#[test]
fn a_launch_takes_its_time() {
    let mut machine = Machine::new();
    let group = machine.busy_group(1, 1);
    machine.pass(LAUNCH_NS - 1000, 1000);
    assert_eq!(machine.ended(group), 0);
    machine.pass(2000, 1000);
    assert_eq!(machine.ended(group), 1);
    assert!(!machine.host.has_work());
}

/// Two channels of a group launch on all TPCs, on the same half of them, and on a half each. With
/// 66 SMs, 1000 blocks take 16 rounds instead of eight.
#[test]
fn launches_of_one_group_meet_on_their_tpcs_only() {
    for (first, second, took_ns) in [
        (LAUNCH, LAUNCH, 2 * LAUNCH_NS),
        (LOW, LOW, 2 * 162_000),
        (LOW, HIGH, 162_000),
    ] {
        let mut machine = Machine::new();
        // No TPC has the bits 26, 35, 44, 53 and 62.
        machine.put_masked(LOW, 0..34);
        machine.put_masked(HIGH, 34..71);
        let group = key(0x100);
        machine.objects.add(group, 0, KEPLER_CHANNEL_GROUP_A);
        machine.busy_channel(group, 1, first, 100);
        machine.busy_channel(group, 2, second, 100);
        machine.pass(10 * took_ns + took_ns / 2, 1000);
        let ended = [key(0x201), key(0x202)].map(|channel| machine.ended_on(channel));
        assert_eq!(ended, [10, 10], "{first:#x} and {second:#x}");
    }
}

/// Shares are exact however seldom the model is called.
#[test]
fn shares_follow_time_slices() {
    for piece_ns in [10_000, 700_000, 21 * MS] {
        let mut machine = Machine::new();
        let short = machine.busy_group(1, 1000);
        let long = machine.busy_group(2, 1000);
        machine.host.set_timeslice(short, 1000);
        machine.host.set_timeslice(long, 3000);
        // Ten rounds of 4 ms, and the start of the eleventh.
        machine.pass(42 * MS, piece_ns);
        machine.had(short, 11 * MS);
        machine.had(long, 31 * MS);
    }
}

#[test]
fn groups_without_a_time_slice_share_equally() {
    let mut machine = Machine::new();
    let groups = [1, 2, 3].map(|number| machine.busy_group(number, 1000));
    // Ten rounds of the default slice.
    machine.pass(3 * 10 * SLICE_NS, 1000);
    for group in groups {
        machine.had(group, 10 * SLICE_NS);
    }
}

#[test]
fn a_longer_time_slice_counts_from_the_next_one() {
    let mut machine = Machine::new();
    let (one, two) = (machine.busy_group(1, 1000), machine.busy_group(2, 1000));
    machine.host.set_timeslice(one, 1000);
    machine.host.set_timeslice(two, 1000);
    machine.pass(10 * MS, 1000);
    machine.had(one, 5 * MS);
    machine.host.set_timeslice(one, 9000);
    machine.pass(20 * MS, 1000);
    machine.had(one, 5 * MS + 18 * MS);
    machine.had(two, 5 * MS + 2 * MS);
}

#[test]
fn a_group_without_work_gives_its_time_away() {
    let mut machine = Machine::new();
    let (idle, busy) = (machine.busy_group(1, 1), machine.busy_group(2, 1000));
    machine.host.set_timeslice(idle, 100_000);
    machine.pass(20 * MS, 1000);
    assert_eq!(machine.ended(idle), 1);
    machine.had(busy, 20 * MS - LAUNCH_NS);
}

#[test]
fn a_shorter_time_slice_cuts_into_a_launch() {
    let mut machine = Machine::new();
    let (long, other) = (machine.busy_group(1, 1000), machine.busy_group(2, 1000));
    machine.host.set_timeslice(long, 100_000);
    machine.pass(MS, 1000);
    machine.host.set_timeslice(long, 10);
    machine.pass(10_000 + LAUNCH_NS, 1000);
    assert_eq!(machine.ended(other), 1);
}

#[test]
fn a_disabled_channel_stands_still_within_a_launch() {
    let mut machine = Machine::new();
    let (frozen, other) = (machine.busy_group(1, 1000), machine.busy_group(2, 1000));
    let channel = key(frozen.handle + 0x100);
    machine.pass(10 * SLICE_NS + LAUNCH_NS / 2, 1000);
    machine.host.disable(channel, false);
    // Scheduling does not thaw it.
    machine.host.schedule(frozen, true);
    machine.pass(10 * MS, 1000);
    machine.had(frozen, 5 * SLICE_NS + LAUNCH_NS / 2);
    machine.had(other, 5 * SLICE_NS + 10 * MS);
    // The frozen launch has kept its progress.
    machine.host.enable(channel);
    machine.host.disable(key(other.handle + 0x100), false);
    machine.pass(10 * LAUNCH_NS, 1000);
    machine.had(frozen, 5 * SLICE_NS + LAUNCH_NS / 2 + 10 * LAUNCH_NS);
}

/// Checks what was measured on an H200: GPFIFO_SCHEDULE with bEnable=0, and DISABLE_CHANNELS with
/// bOnlyDisableScheduling, leave running launches alone.
#[test]
fn off_the_runlist_nothing_new_begins() {
    for only_disabled in [false, true] {
        for preempted in [false, true] {
            let mut machine = Machine::new();
            let group = machine.busy_group(1, 1000);
            machine.pass(10 * LAUNCH_NS + LAUNCH_NS / 2, 1000);
            match only_disabled {
                true => machine.host.disable(key(group.handle + 0x100), true),
                false => machine.host.schedule(group, false),
            }
            if preempted {
                machine.host.preempt(group);
            }
            machine.pass(10 * LAUNCH_NS, 1000);
            assert_eq!(machine.ended(group), if preempted { 10 } else { 11 });
            machine.host.enable(key(group.handle + 0x100));
            machine.host.schedule(group, true);
            machine.pass(10 * LAUNCH_NS, 1000);
            assert_eq!(machine.ended(group), if preempted { 20 } else { 21 });
        }
    }
}

#[test]
fn preemption_ends_a_slice() {
    let mut machine = Machine::new();
    let (one, two) = (machine.busy_group(1, 1000), machine.busy_group(2, 1000));
    machine.host.set_timeslice(one, 100_000);
    machine.host.set_timeslice(two, 100_000);
    machine.pass(5 * MS, 1000);
    assert_eq!((machine.ended(one) > 0, machine.ended(two)), (true, 0));
    machine.host.preempt(one);
    machine.pass(5 * MS, 1000);
    machine.had(one, 5 * MS);
    machine.had(two, 5 * MS);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that after any order of scheduling, freezing, thawing and preempting, no group has
    /// more than the available time, and nothing hangs.
    #[test]
    fn any_scheduling(steps in prop::collection::vec((0u32..8, 0u32..4, any::<u32>(), 0u64..300), 1..40)) {
        let mut machine = Machine::new();
        let groups = [0, 1, 2].map(|number| machine.busy_group(number, 50));
        let mut passed_ns = 0;
        for (what, who, value, us) in steps {
            let group = groups.get(who as usize).copied().unwrap_or(key(9));
            let channel = key(group.handle + 0x100);
            match what {
                0 => machine.host.schedule(group, value % 2 == 0),
                1 => machine.host.schedule(channel, value % 2 == 0),
                2 => machine.host.disable(channel, value % 2 == 0),
                3 => machine.host.enable(channel),
                4 => machine.host.set_timeslice(group, u64::from(value)),
                5 => machine.host.preempt(group),
                6 => machine.host.stop(channel),
                _ => machine.host.set_timeslice(group, u64::from(value % 100)),
            }
            machine.pass(us * 1000, 1000 * us.max(1));
            passed_ns += us * 1000;
        }
        let ended: u64 = groups.iter().map(|group| machine.ended(*group)).sum();
        prop_assert!(ended * LAUNCH_NS <= passed_ns);
    }
}
