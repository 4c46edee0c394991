// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Drives the copy engine by methods, as a channel does.

use super::*;
use crate::regs::GCT_COPIES;
use crate::testing::Bench;
use proptest::prelude::*;

/// LAUNCH_DMA: from physical to physical, one line.
const PHYSICAL: u32 = 1 | 1 << 12 | 1 << 13;
/// SET_REMAP_COMPONENTS of fills: constant B as elements of four bytes, and both constants.
const FOUR_BYTES_OF_B: u32 = 5 | 3 << 16;
const BOTH: u32 = 4 | 5 << 4 | 3 << 16 | 1 << 24;
const REMAP: u32 = 1 << 10;
const MULTI_LINE: u32 = 1 << 9;

struct Engine {
    bench: Bench,
    copy: CopyEngine,
}

impl Engine {
    fn new() -> Self {
        Self {
            bench: Bench::new(),
            copy: CopyEngine::default(),
        }
    }

    fn methods(&mut self, methods: &[(u16, u32)]) {
        for (method, data) in methods {
            self.copy.execute(Method {
                subchannel: 4,
                method: *method,
                data: *data,
            });
        }
    }

    /// Launches a copy and runs it to its end. Returns the number of turns.
    fn launch(&mut self, data: u32) -> Result<u32, Fault> {
        self.methods(&[(nvc8b5::LAUNCH_DMA, data)]);
        let space = self.bench.space;
        let mut turns = 1;
        while self.copy.advance(&mut self.bench.work(), space)? != Moved::All {
            turns += 1;
        }
        Ok(turns)
    }

    fn video(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.bench
            .memory
            .read(PhysicalAddress::video(offset), &mut data)
            .unwrap();
        data
    }
}

fn counting(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

#[test]
fn bytes_move_across_pages() {
    let mut engine = Engine::new();
    let data = counting(10_000);
    engine
        .bench
        .memory
        .write(PhysicalAddress::video(0x1_0ffd), &data)
        .unwrap();
    engine.methods(&[
        (nvc8b5::OFFSET_IN_LOWER, 0x1_0ffd),
        (nvc8b5::OFFSET_OUT_LOWER, 0x5_0001),
        (nvc8b5::LINE_LENGTH_IN, 10_000),
    ]);
    engine.launch(PHYSICAL).unwrap();
    assert_eq!(engine.video(0x5_0001, 10_000), data);
    engine.launch(PHYSICAL).unwrap();
    // Two operations within video memory, of engine 0.
    let word = |index: u32| engine.bench.copies.read(GCT_COPIES::OFFSET + 4 * index);
    assert_eq!([16, 17, 18, 19].map(word), [2, 0, 20_000, 0].map(Some));
}

/// A copy ends when its time is over, and other channels go on meanwhile.
#[test]
fn a_copy_takes_its_time() {
    let mut engine = Engine::new();
    engine.bench.world.stop_clock();
    engine.bench.chip.copy_ns_per_kib = 1000;
    engine.methods(&[
        (nvc8b5::OFFSET_IN_LOWER, 0x1_0000),
        (nvc8b5::OFFSET_OUT_LOWER, 0x5_0000),
        (nvc8b5::LINE_LENGTH_IN, 4096),
        (nvc8b5::LAUNCH_DMA, PHYSICAL),
    ]);
    let space = engine.bench.space;
    let advance = |engine: &mut Engine| engine.copy.advance(&mut engine.bench.work(), space);
    assert_eq!(advance(&mut engine), Ok(Moved::Held));
    engine.bench.world.pass(3999);
    assert_eq!(advance(&mut engine), Ok(Moved::Held));
    engine.bench.world.pass(1);
    assert_eq!(advance(&mut engine), Ok(Moved::All));
}

#[test]
fn lines_have_pitches() {
    let mut engine = Engine::new();
    engine
        .bench
        .memory
        .write(PhysicalAddress::video(0x1000), &counting(64))
        .unwrap();
    engine.methods(&[
        (nvc8b5::OFFSET_IN_LOWER, 0x1000),
        (nvc8b5::OFFSET_OUT_LOWER, 0x2000),
        (nvc8b5::LINE_LENGTH_IN, 4),
        (nvc8b5::LINE_COUNT, 3),
        (nvc8b5::PITCH_IN, 16),
        (nvc8b5::PITCH_OUT, 8),
    ]);
    engine.launch(PHYSICAL | MULTI_LINE).unwrap();
    let out = engine.video(0x2000, 24);
    assert_eq!(
        out,
        [0, 1, 2, 3, 0, 0, 0, 0, 16, 17, 18, 19, 0, 0, 0, 0, 32, 33, 34, 35, 0, 0, 0, 0]
    );
}

#[test]
fn fills_take_their_length_in_elements() {
    let mut engine = Engine::new();
    engine.methods(&[
        (nvc8b5::SET_REMAP_CONST_A, 0x1111_1111),
        (nvc8b5::SET_REMAP_CONST_B, 0x0403_0201),
        (nvc8b5::SET_REMAP_COMPONENTS, FOUR_BYTES_OF_B),
        (nvc8b5::OFFSET_OUT_LOWER, 0x3000),
        (nvc8b5::LINE_LENGTH_IN, 2),
    ]);
    engine.launch(PHYSICAL | REMAP).unwrap();
    assert_eq!(
        engine.video(0x3000, 12),
        [1, 2, 3, 4, 1, 2, 3, 4, 0, 0, 0, 0]
    );
    engine.methods(&[(nvc8b5::SET_REMAP_COMPONENTS, BOTH)]);
    engine.launch(PHYSICAL | REMAP).unwrap();
    assert_eq!(
        engine.video(0x3008, 8),
        [0x11, 0x11, 0x11, 0x11, 1, 2, 3, 4]
    );
}

/// Checks UVM's fast scrubber: no remapping, length in bytes, but the constants count.
#[test]
fn a_scrub_writes_both_constants() {
    let mut engine = Engine::new();
    engine.methods(&[
        (nvc8b5::SET_REMAP_CONST_A, 0x0101_0101),
        (nvc8b5::SET_REMAP_CONST_B, 0x0202_0202),
        (nvc8b5::OFFSET_OUT_LOWER, 0x4000),
        (nvc8b5::LINE_LENGTH_IN, 16),
    ]);
    engine.launch(PHYSICAL | 1 << 23).unwrap();
    assert_eq!(
        engine.video(0x4000, 18),
        [1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0]
    );
}

#[test]
fn clearing_much_is_quick_and_frees_memory() {
    let mut engine = Engine::new();
    engine
        .bench
        .memory
        .write(PhysicalAddress::video(8 << 30), &[1; 100])
        .unwrap();
    engine.methods(&[
        (nvc8b5::SET_REMAP_COMPONENTS, BOTH),
        (nvc8b5::LINE_LENGTH_IN, 1 << 29),
    ]);
    for upper in 0..4 {
        engine.methods(&[(nvc8b5::OFFSET_OUT_UPPER, upper)]);
        assert_eq!(engine.launch(PHYSICAL | REMAP).unwrap(), 1);
    }
    assert_eq!(engine.video(8 << 30, 100), [0; 100]);
}

#[test]
fn much_work_is_done_in_turns() {
    let mut engine = Engine::new();
    engine.methods(&[
        (nvc8b5::OFFSET_OUT_LOWER, 0x100_0000),
        (nvc8b5::LINE_LENGTH_IN, 16 << 20),
    ]);
    assert!(engine.launch(PHYSICAL).unwrap() >= 16);
}

#[test]
fn the_end_releases_a_semaphore_and_interrupts() {
    let mut engine = Engine::new();
    let va = engine.bench.va(0x6000);
    engine.methods(&[
        (nvc8b5::SET_SEMAPHORE_A, (va >> 32) as u32),
        (nvc8b5::SET_SEMAPHORE_B, va as u32),
        (nvc8b5::SET_SEMAPHORE_PAYLOAD, 77),
    ]);
    engine.launch(2 << 3 | 1 << 5).unwrap();
    assert_eq!(engine.video(0x6000, 8), [77, 0, 0, 0, 0, 0, 0, 0]);
    assert_ne!(engine.video(0x6008, 8), [0; 8], "there is no timestamp");
    let vector = engine.bench.engine.vector_nonstall;
    let leaf = crate::regs::NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF::OFFSET;
    assert_eq!(engine.bench.intr.read(leaf), Some(1 << vector));
    // An increment that wraps at the payload.
    engine.launch(1 << 3 | 6 << 14 | 1 << 18 | 1 << 19).unwrap();
    assert_eq!(engine.video(0x6000, 4), [0; 4]);
}

#[test]
fn an_address_that_leads_nowhere_is_a_fault() {
    let mut engine = Engine::new();
    engine.methods(&[
        (nvc8b5::LINE_LENGTH_IN, 4),
        (nvc8b5::OFFSET_OUT_UPPER, 0x1_0000),
    ]);
    assert!(engine.launch(1).is_err());
    assert!(engine.launch(PHYSICAL).is_err());
    engine.methods(&[
        (nvc8b5::OFFSET_OUT_UPPER, 0),
        (nvc8b5::SET_SRC_PHYS_MODE, 3),
    ]);
    assert!(engine.launch(PHYSICAL).is_err(), "there is no peer");
}

/// Neither a copy nor a fill with zeros, which takes another path, writes to a read-only page.
#[test]
fn a_read_only_page_is_not_written() {
    let mut engine = Engine::new();
    let memory = &mut engine.bench.memory;
    memory
        .write(PhysicalAddress::video(0x6000), &[7; 16])
        .unwrap();
    let va = engine.bench.va_read_only(0x6000);
    engine.methods(&[
        (nvc8b5::SET_REMAP_COMPONENTS, BOTH),
        (nvc8b5::OFFSET_OUT_UPPER, (va >> 32) as u32),
        (nvc8b5::OFFSET_OUT_LOWER, va as u32),
        (nvc8b5::LINE_LENGTH_IN, 2),
    ]);
    for launch in [1, 1 | REMAP] {
        assert_eq!(engine.launch(launch), Err(Fault { va }));
    }
    assert_eq!(engine.video(0x6000, 16), [7; 16]);
}

proptest! {
    /// Checks that a turn ends, whatever the launch.
    #[test]
    fn any_launch(methods in prop::collection::vec((0u16..0x200, any::<u32>()), 0..40), launch in any::<u32>()) {
        let mut engine = Engine::new();
        for (method, data) in methods {
            engine.methods(&[(method * 4 + 0x100, data)]);
        }
        engine.methods(&[(nvc8b5::LAUNCH_DMA, launch)]);
        let space = engine.bench.space;
        for _ in 0..2 {
            let _ = engine.copy.advance(&mut engine.bench.work(), space);
        }
    }
}
