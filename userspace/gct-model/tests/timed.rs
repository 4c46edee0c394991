// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks grids that run as long as their user says.

mod common;

use common::{Qmd, Segment, CHANNEL, COPY, SCHEDULE};
use gct_model::{Config, GuestMemory, Machine, SparseMemory};

const QMD: u64 = 0x10_0000;
const SEMAPHORE: u64 = 0x30_0000;

#[test]
fn a_timed_grid_ends_when_finish_is_called() {
    let config = Config {
        timed: true,
        ..Config::default()
    };
    let mut machine = Machine::new(SparseMemory::new(1 << 12), config);
    let mut segment = Segment::default();
    let mut qmd = Qmd::grid(1, [10, 1, 1]);
    qmd.release(0, u32::try_from(SEMAPHORE).unwrap(), 7);
    machine.submit(CHANNEL, &segment.launch(QMD, &qmd, COPY).0);
    machine.run();
    assert_eq!(machine.running().collect::<Vec<_>>(), [0]);
    assert_eq!(machine.report().runs[0].ended, None);
    machine.memory().write_u32(SEMAPHORE, 1).unwrap();

    machine.finish(1);
    assert!(!machine.step(), "the end of another run was asked for");
    machine.finish(0);
    machine.run();
    assert_eq!(machine.running().count(), 0);
    assert!(machine.report().runs[0].ended.is_some());
    assert_eq!(machine.memory().read_u32(SEMAPHORE), Ok(7));
}

#[test]
fn no_more_grids_run_at_a_time_than_may() {
    let config = Config {
        timed: true,
        running_max: 2,
        ..Config::default()
    };
    let mut machine = Machine::new(SparseMemory::new(1 << 12), config);
    let qmd = Qmd::grid(1, [10, 1, 1]);
    for number in 0..3 {
        let mut segment = Segment::default();
        let place = QMD + 0x1000 * number;
        machine.submit(CHANNEL, &segment.launch(place, &qmd, SCHEDULE).0);
    }
    machine.run();
    assert_eq!(machine.running().collect::<Vec<_>>(), [0, 1]);
    machine.finish(0);
    machine.run();
    assert_eq!(machine.running().collect::<Vec<_>>(), [1, 2]);
}
