// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executes channels from their rings.

use super::*;
use crate::abi::NvNotification;
use crate::host::execute::Progress;
use crate::regs::NV_VIRTUAL_FUNCTION_DOORBELL;
use crate::testing::{capture, Bench, TestChannel};
use gct_core::submit::gpfifo::{Control, Entry, Segment};
use gct_core::submit::method::incr;
use proptest::prelude::*;

/// Where the test puts its structures in video memory.
const RING: u64 = 0x1_0000;
const USERD: u64 = 0x2_0000;
const PUSHBUFFER: u64 = 0x3_0000;
const SEMAPHORE: u64 = 0x4_0000;
const NOTIFIER: u64 = 0x5_0000;
const ENTRIES: u32 = 16;

const CHANNEL: ObjectKey = ObjectKey {
    client: 1,
    handle: 0x50,
};
const SPACE: ObjectKey = ObjectKey {
    client: 1,
    handle: 0x20,
};
const ID: ChannelId = ChannelId {
    runlist: 1,
    channel: 9,
};

/// SEM_EXECUTE operations.
const ACQUIRE: u32 = 0;
const RELEASE: u32 = 1;

struct Machine {
    bench: Bench,
    host: Host,
}

impl Machine {
    /// Creates a machine with one channel on the first copy engine.
    fn new() -> Self {
        Self::with_engine(abi::NV2080_ENGINE_TYPE_COPY0)
    }

    /// Creates a machine with one channel on `engine`.
    fn with_engine(engine: u32) -> Self {
        let bench = Bench::new();
        let params = TestChannel {
            engine,
            number: ID.channel,
            space: SPACE.handle,
            ring: RING,
            userd: USERD,
            notifier: NOTIFIER,
            entries: ENTRIES,
        }
        .params(&bench);
        let mut host = Host::default();
        host.set_page_directory(SPACE, bench.space.root);
        host.alloc(
            &Objects::default(),
            CHANNEL,
            0x10,
            HOPPER_CHANNEL_GPFIFO_A,
            &params,
        )
        .unwrap();
        host.schedule(CHANNEL, true);
        Self { bench, host }
    }

    fn put_words(&mut self, offset: u64, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.bench
            .memory
            .write(PhysicalAddress::video(offset), &bytes)
            .unwrap();
    }

    fn word(&self, offset: u64) -> u32 {
        self.bench
            .memory
            .read_u32(PhysicalAddress::video(offset))
            .unwrap()
    }

    /// Fills ring entry `index` with a segment of `words`, each segment at its own address.
    fn submit(&mut self, index: u32, words: &[u32]) {
        self.submit_at(index, PUSHBUFFER + 0x1000 * u64::from(index), words);
    }

    fn submit_at(&mut self, index: u32, place: u64, words: &[u32]) {
        self.put_words(place, words);
        let segment = Segment {
            va: self.bench.va(place),
            words: words.len() as u32,
            subroutine: false,
            wait: false,
            conditional: false,
        };
        self.put_entry(index, Entry::Segment(segment).encode());
    }

    fn put_entry(&mut self, index: u32, entry: u64) {
        self.bench
            .memory
            .write_u64(PhysicalAddress::video(RING + 8 * u64::from(index)), entry)
            .unwrap();
    }

    fn ring(&mut self, put: u32) {
        self.put_words(USERD + 0x8c, &[put]);
        let id = self.host.channels.keys().next().copied().unwrap();
        let token = NV_VIRTUAL_FUNCTION_DOORBELL::default()
            .with(NV_VIRTUAL_FUNCTION_DOORBELL::VECTOR, id.channel)
            .with(NV_VIRTUAL_FUNCTION_DOORBELL::RUNLIST_ID, id.runlist);
        let rung = self
            .host
            .ring_doorbell(ChannelId::from_doorbell(token.raw()));
        assert_eq!(rung, Some(CHANNEL));
    }

    fn step(&mut self) -> Progress {
        self.host.step(&mut self.bench.work())
    }

    fn gp_get(&self) -> u32 {
        self.word(USERD + 0x88)
    }

    /// Returns the values of SEM_ADDR_LO to SEM_EXECUTE for the semaphore.
    fn semaphore(&self, payload: u32, execute: u32) -> [u32; 6] {
        let va = self.bench.va(SEMAPHORE);
        [
            incr(0, 0x5c, 5),
            va as u32,
            (va >> 32) as u32,
            payload,
            0,
            execute,
        ]
    }
}

#[test]
fn a_release_executes_and_the_ring_advances() {
    let mut machine = Machine::new();
    machine.submit(0, &machine.semaphore(5, RELEASE));
    machine.ring(1);
    assert_eq!(machine.step(), Progress::Idle);
    assert_eq!(machine.word(SEMAPHORE), 5);
    assert_eq!(machine.gp_get(), 1);
    assert!(!machine.host.has_work());
}

#[test]
fn a_channel_fetches_from_the_ring_that_it_is_moved_to() {
    const OTHER: u64 = 0x6_0000;
    let mut machine = Machine::new();
    machine.submit(0, &machine.semaphore(5, RELEASE));
    machine.submit(1, &machine.semaphore(6, RELEASE));
    machine.ring(1);
    machine.step();
    let place = PUSHBUFFER + 0x8000;
    machine.put_words(place, &machine.semaphore(7, RELEASE));
    let entry = machine.bench.va(place) | 6 << 42;
    let second = PhysicalAddress::video(OTHER + 8);
    machine.bench.memory.write_u64(second, entry).unwrap();
    let ring = machine.bench.va(OTHER);
    machine.host.set_ring(CHANNEL, ring, ENTRIES);
    machine.ring(2);
    machine.step();
    assert_eq!((machine.word(SEMAPHORE), machine.gp_get()), (7, 2));
}

#[test]
fn an_acquire_polls_for_a_plain_store() {
    let mut machine = Machine::new();
    machine.submit(0, &machine.semaphore(7, ACQUIRE));
    machine.submit(1, &machine.semaphore(8, RELEASE));
    machine.ring(2);
    assert_eq!(machine.step(), Progress::Waiting);
    assert_eq!(machine.step(), Progress::Waiting);
    assert_eq!((machine.word(SEMAPHORE), machine.gp_get()), (0, 2));
    machine.put_words(SEMAPHORE, &[7]);
    assert_eq!(machine.step(), Progress::Idle);
    assert_eq!((machine.word(SEMAPHORE), machine.gp_get()), (8, 2));
}

/// GP_GET passes entries whose segments the GPU has not read. Whoever rewrites such a segment
/// changes what is executed.
#[test]
fn entries_are_fetched_ahead_and_their_segments_are_not() {
    let mut machine = Machine::new();
    machine.submit(0, &machine.semaphore(7, ACQUIRE));
    for index in 1..12 {
        machine.submit(index, &machine.semaphore(100 + index, RELEASE));
    }
    machine.ring(12);
    for _ in 0..2 {
        assert_eq!(machine.step(), Progress::Waiting);
    }
    // The one in progress, and eight more.
    assert_eq!(machine.gp_get(), 9);
    // Of the last entry that was fetched the segment counts, of the others the entries.
    for index in 8..12 {
        machine.put_entry(index, Entry::Control(Control::Nop).encode());
    }
    machine.put_words(PUSHBUFFER + 0x8000, &machine.semaphore(200, RELEASE));
    machine.put_words(SEMAPHORE, &[7]);
    assert_eq!(machine.step(), Progress::Idle);
    assert_eq!((machine.word(SEMAPHORE), machine.gp_get()), (200, 12));
}

#[test]
fn a_channel_off_the_runlist_stands_still() {
    let mut machine = Machine::new();
    machine.host.schedule(CHANNEL, false);
    machine.submit(0, &machine.semaphore(5, RELEASE));
    machine.ring(1);
    assert_eq!(machine.step(), Progress::Idle);
    assert_eq!(machine.word(SEMAPHORE), 0);
    machine.host.schedule(CHANNEL, true);
    assert_eq!(machine.step(), Progress::Idle);
    assert_eq!(machine.word(SEMAPHORE), 5);
}

#[test]
fn a_disabled_channel_stands_still() {
    let mut machine = Machine::new();
    machine.submit(0, &machine.semaphore(5, RELEASE));
    machine.host.disable(CHANNEL, false);
    machine.ring(1);
    assert_eq!(machine.step(), Progress::Idle);
    assert_eq!(machine.word(SEMAPHORE), 0);
    machine.host.enable(CHANNEL);
    assert!(machine.host.has_work());
    machine.step();
    assert_eq!(machine.word(SEMAPHORE), 5);
}

#[test]
fn a_fault_stops_the_channel_and_is_notified() {
    let mut machine = Machine::new();
    machine.submit(0, &[incr(0, 0x5c, 5), 0, 0x1_0000, 1, 0, RELEASE]);
    machine.submit(1, &machine.semaphore(5, RELEASE));
    machine.ring(2);
    assert_eq!(machine.step(), Progress::Idle);
    let mut notification = vec![0; NvNotification::SIZE];
    machine
        .bench
        .memory
        .read(PhysicalAddress::video(NOTIFIER), &mut notification)
        .unwrap();
    assert_eq!(abi::get(&notification, NvNotification::status), Ok(0xffff));
    assert_eq!(abi::get(&notification, NvNotification::info32), Ok(31));
    assert_eq!(machine.word(SEMAPHORE), 0);
    machine.ring(2);
    assert!(!machine.host.has_work());
}

#[test]
fn the_ring_wraps_and_control_entries_count() {
    let mut machine = Machine::new();
    for round in 0..3 {
        for index in 0..ENTRIES {
            if index % 2 == 0 {
                machine.put_entry(index, Entry::Control(Control::Nop).encode());
            } else {
                machine.submit(index, &machine.semaphore(round * 100 + index, RELEASE));
            }
        }
        for put in [8, 0] {
            machine.ring(put);
            assert_eq!(machine.step(), Progress::Idle);
            assert_eq!(machine.gp_get(), put);
        }
        assert_eq!(machine.word(SEMAPHORE), round * 100 + 15);
    }
}

#[test]
fn a_put_outside_the_ring_is_ignored() {
    let mut machine = Machine::new();
    machine.ring(ENTRIES);
    assert_eq!(machine.step(), Progress::Idle);
    assert!(!machine.host.has_work());
}

#[test]
fn a_freed_channel_is_not_executed() {
    let mut machine = Machine::new();
    machine.submit(0, &machine.semaphore(5, RELEASE));
    machine.ring(1);
    machine.host.free(&BTreeSet::from([CHANNEL]));
    assert_eq!(machine.step(), Progress::Idle);
    assert_eq!(machine.host.ring_doorbell(ID), None);
    assert_eq!(machine.word(SEMAPHORE), 0);
}

#[test]
fn software_interrupts_go_to_the_engines_vector() {
    let mut machine = Machine::new();
    machine.submit(0, &[incr(0, 0x20, 1), 0]);
    machine.ring(1);
    machine.step();
    let leaf = crate::regs::NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF::OFFSET;
    let vector = machine.bench.chip.engines[1].vector_nonstall;
    assert_eq!(machine.bench.intr.read(leaf), Some(1 << vector));
}

/// Neither the host nor the compute engine writes to a read-only page: the channel faults.
#[test]
fn a_read_only_page_is_not_written() {
    let va = Bench::new().va_read_only(SEMAPHORE);
    let [low, high] = [va as u32, (va >> 32) as u32];
    let release = vec![incr(0, 0x5c, 5), low, high, 1, 0, RELEASE];
    let upload = [incr(1, 0x188, 2), high, low, incr(1, 0x180, 2), 4, 1];
    let data = [incr(1, 0x1b0, 1), 0x41, incr(1, 0x1b4, 1), 1];
    for words in [release, [&upload[..], &data].concat()] {
        let mut machine = Machine::with_engine(abi::NV2080_ENGINE_TYPE_GR0);
        machine.submit(0, &[incr(1, 0, 1), crate::compute::HOPPER_COMPUTE_A]);
        machine.submit(1, &words);
        machine.ring(2);
        while machine.step() == Progress::Busy {}
        let faults = &machine.bench.faults;
        assert_eq!(
            faults.iter().map(|fault| fault.va).collect::<Vec<_>>(),
            [va]
        );
        assert_eq!((machine.word(SEMAPHORE), machine.gp_get()), (0, 2));
    }
}

/// Executes a capture and returns the recorded launches.
fn launches(name: &str) -> Vec<String> {
    let mut machine = Machine::with_engine(abi::NV2080_ENGINE_TYPE_GR0);
    machine.submit(0, &[incr(1, 0, 1), crate::compute::HOPPER_COMPUTE_A]);
    let segments = capture(name);
    for (index, words) in (1..).zip(&segments) {
        // Further apart than the longest segment.
        machine.submit_at(index, PUSHBUFFER + 0x1_0000 * u64::from(index), words);
    }
    machine.ring(1 + segments.len() as u32);
    for _ in 0..1000 {
        match machine.step() {
            Progress::Busy => {}
            Progress::Running(ns) => machine.bench.world.pass(ns),
            Progress::Idle | Progress::Waiting => break,
        }
    }
    assert_eq!(
        machine.gp_get(),
        1 + segments.len() as u32,
        "not all was executed"
    );
    let recorded = machine.bench.recorder.all();
    recorded
        .into_iter()
        .filter(|line| line.contains("\"kind\":\"launch\""))
        .collect()
}

#[test]
fn a_captured_launch_runs_all_its_blocks() {
    let launches = launches("one_launch");
    assert_eq!(launches.len(), 1, "{launches:?}");
    assert!(
        launches[0].contains("\"grid\":[1000, 1, 1]"),
        "{launches:?}"
    );
    assert!(
        launches[0].contains("\"blocks\":[\"[0,1000)x[0,1)x[0,1)\"]"),
        "{launches:?}"
    );
}

/// Checks the launches of each capture against the captures' README: grids in launch order, in
/// blocks or clusters.
#[test]
fn every_capture_has_the_launches_of_its_readme() {
    let captures: [(&str, &[[u32; 3]]); 6] = [
        ("one_launch", &[[1000, 1, 1]]),
        ("grid3d", &[[30, 20, 10]]),
        ("dynamic_smem_64k", &[[1200, 1, 1]]),
        ("cluster2", &[[650, 1, 1]]),
        // One gang of 132 blocks.
        ("cooperative", &[[1, 1, 1]]),
        // A descriptor without blocks lies between them.
        ("pdl_pair", &[[1400, 1, 1], [0, 0, 0], [1401, 1, 1]]),
    ];
    for (name, grids) in captures {
        let launches = launches(name);
        let found = grids
            .iter()
            .zip(&launches)
            .all(|(grid, line)| line.contains(&format!("\"grid\":{grid:?}")));
        assert!(
            found && launches.len() == grids.len(),
            "{name}: {launches:#?}"
        );
    }
}

#[test]
fn captured_launches_run_in_their_order() {
    let launches = launches("three_launches_same_stream");
    let grids: Vec<bool> = [1001, 1002, 1003]
        .iter()
        .zip(&launches)
        .map(|(width, line)| line.contains(&format!("\"grid\":[{width}, 1, 1]")))
        .collect();
    assert_eq!(grids, [true; 3], "{launches:?}");
}

proptest! {
    /// Checks that any compute methods come to an end.
    #[test]
    fn any_compute_methods(methods in prop::collection::vec((0x40u16..0x800, any::<u32>()), 0..40)) {
        let mut machine = Machine::with_engine(abi::NV2080_ENGINE_TYPE_GR0);
        let mut words = vec![incr(1, 0, 1), crate::compute::HOPPER_COMPUTE_A];
        for (method, data) in methods {
            words.extend([incr(1, method * 4, 1), data]);
        }
        machine.submit(0, &words);
        machine.ring(1);
        for _ in 0..3 {
            machine.step();
        }
    }

    /// Checks that any rings and pushbuffers are executed in bounded turns.
    #[test]
    fn any_ring(entries in prop::collection::vec(any::<u64>(), 8), words in prop::collection::vec(any::<u32>(), 64), put in 0..ENTRIES) {
        let mut machine = Machine::new();
        machine.put_words(PUSHBUFFER, &words);
        let base = machine.bench.va(PUSHBUFFER);
        for (index, entry) in (0..).zip(entries) {
            // Half of the entries point at the pushbuffer, with a short length.
            let entry = if entry & 1 == 0 { base | (entry >> 58) << 42 } else { entry & !(0x1f_f000 << 42) };
            machine.put_entry(index, entry);
        }
        machine.ring(put);
        for _ in 0..3 {
            machine.step();
        }
    }
}
