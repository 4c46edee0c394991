// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests time slices between a daemon and a process whose driver is simulated.

use super::*;
use gct_core::rmapi::control::{Control, INVALID_CLIENT};
use gct_core::rmapi::escape;
use gctd::testing::{self, Daemon};
use gctd_ipc::tenant;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const CLIENT: Handle = 0xc1d0_0019;
const DEVICE: Handle = 0x5c00_0002;
const SUBDEVICE: Handle = 0x5c00_0003;

/// The simulated driver of the test's thread.
#[derive(Default)]
struct Driver {
    slices: BTreeMap<Handle, u64>,
    /// The channels that exist, and whether each runs.
    channels: BTreeMap<Handle, bool>,
    refuses: Option<Status>,
    sent: u32,
}

impl Driver {
    /// Enables or disables all named channels, or none if one does not exist.
    fn enable(&mut self, control: &mut Control) -> Result<(), Status> {
        let params = control.params().to_vec();
        let word = |at: usize| {
            let bytes = params.get(at..at + 4).unwrap();
            u32::from_le_bytes(bytes.try_into().unwrap())
        };
        let (disable, count) = (word(0) != 0, word(4) as usize);
        let named: Vec<Handle> = (0..count).map(|n| word(24 + 4 * 64 + 4 * n)).collect();
        assert!((0..count).all(|n| word(24 + 4 * n) == CLIENT));
        match self.refuses {
            Some(status) => return Err(status),
            None if named.iter().any(|c| !self.channels.contains_key(c)) => return Err(0x57),
            None => {}
        }
        for channel in named {
            self.channels.insert(channel, !disable);
        }
        Ok(())
    }
}

std::thread_local! {
    static DRIVER: RefCell<Driver> = RefCell::default();
}

fn driver<T>(f: impl FnOnce(&mut Driver) -> T) -> T {
    DRIVER.with(|driver| f(&mut driver.borrow_mut()))
}

fn played(fd: i32, control: &mut Control) -> Result<(), Status> {
    assert_eq!((fd, control.client), (7, CLIENT));
    driver(|driver| {
        driver.sent += 1;
        if control.command == 0x2080_110b {
            assert_eq!(control.object, SUBDEVICE);
            return driver.enable(control);
        }
        let slice = driver
            .slices
            .get_mut(&control.object)
            .ok_or(INVALID_CLIENT)?;
        if control.command == 0xa06c_0104 {
            control.params().copy_from_slice(&slice.to_le_bytes());
            return Ok(());
        }
        assert_eq!(control.command, 0xa06c_0103);
        match driver.refuses {
            Some(status) => Err(status),
            None => {
                *slice = control.timeslice().get();
                Ok(())
            }
        }
    })
}

/// A daemon with one GPU, and this process as its tenant.
struct Bed {
    daemon: Daemon,
    link: Link,
    slices: Slices,
}

fn alloc(parent: Handle, object: Handle, class: u32) -> Vec<u8> {
    testing::alloc(CLIENT, parent, object, class)
}

impl Bed {
    fn new(test: &str) -> Self {
        let daemon = Daemon::new(test, 1);
        let mut bed = Self {
            link: Link::new(daemon.socket()),
            daemon,
            slices: Slices {
                send: played,
                ..Slices::new()
            },
        };
        bed.link.maintain(1);
        let client = testing::alloc(0, 0, CLIENT, 0x41);
        bed.leave(&client, None);
        bed.leave(&alloc(CLIENT, DEVICE, 0x80), Some(0));
        let subdevice = bed.leave(&alloc(DEVICE, SUBDEVICE, 0x2080), Some(0));
        bed.slices.subdevice(&subdevice);
        bed
    }

    /// Runs an ioctl.
    fn leave(&mut self, bytes: &[u8], hint: Option<u64>) -> Call {
        let (ioctl, call) = tenant::decode(escape::ALLOC, bytes, |_| hint).unwrap();
        let verdict = self.link.enter(&ioctl, &call);
        self.link.leave(ioctl, &call, verdict);
        call
    }

    /// Makes a channel group for an engine of its own.
    fn group(&mut self, object: Handle) -> Call {
        self.group_on(object, 10 + u64::from(object))
    }

    /// Makes a channel group. The driver gives it 2048 us.
    fn group_on(&mut self, object: Handle, engine: u64) -> Call {
        driver(|driver| driver.slices.insert(object, 2048));
        let call = self.leave(&alloc(DEVICE, object, 0xa06c), Some(engine));
        self.slices.made(&call, Some(engine), 7, &mut self.link);
        call
    }

    /// Frees an object, as the program does.
    fn freed(&mut self, object: Handle) {
        self.slices.freed(CLIENT, object, &mut self.link);
    }

    /// Makes a channel in a group.
    fn channel(&mut self, group: Handle, object: Handle) -> Call {
        driver(|driver| driver.channels.insert(object, true));
        let call = self.leave(&alloc(group, object, 0xc86f), None);
        self.slices.channel(&call, 7, &mut self.link);
        call
    }

    /// Writes the limit of this process while the process follows the daemon.
    fn write(&mut self, value: &'static str) -> Result<(), i32> {
        self.write_file("compute.timeslice", value)
    }

    fn freeze(&mut self, value: &'static str) -> Result<(), i32> {
        self.write_file("compute.freeze", value)
    }

    fn write_file(&mut self, name: &str, value: &'static str) -> Result<(), i32> {
        let file = format!("{}/0/{name}", std::process::id());
        let writing = self.daemon.write(file, value);
        let started = Instant::now();
        while !writing.is_finished() {
            self.slices.follow(&mut self.link);
            std::thread::sleep(Duration::from_millis(1));
            assert!(started.elapsed() < Duration::from_secs(10));
        }
        writing.join().unwrap()
    }
}

/// Returns whether each channel runs.
fn running() -> Vec<bool> {
    driver(|driver| driver.channels.values().copied().collect())
}

fn slices() -> Vec<u64> {
    driver(|driver| driver.slices.values().copied().collect())
}

#[test]
fn a_limit_reaches_every_group_and_its_own_comes_back() {
    let mut bed = Bed::new("reaches");
    bed.group(1);
    bed.group(2);
    assert_eq!(
        driver(|driver| driver.sent),
        0,
        "without a limit nothing is sent"
    );
    assert_eq!(bed.write("50"), Ok(()));
    assert_eq!(slices(), [50, 50]);
    bed.group(3);
    assert_eq!(slices(), [50, 50, 50], "a new one has it at once");
    let sent = driver(|driver| driver.sent);
    assert_eq!(bed.write("50"), Ok(()));
    assert_eq!(driver(|driver| driver.sent), sent, "nothing has changed");
    assert_eq!(bed.write("10ms"), Ok(()));
    assert_eq!(slices(), [10_000; 3]);
    assert_eq!(bed.write("default"), Ok(()));
    assert_eq!(slices(), [2048; 3]);
}

#[test]
fn channel_groups_of_one_engine_share_the_limit() {
    const GRAPHICS: u64 = 1;
    let mut bed = Bed::new("share");
    bed.group_on(1, GRAPHICS);
    bed.group_on(2, 11);
    assert_eq!(bed.write("600"), Ok(()));
    assert_eq!(slices(), [600, 600]);
    bed.group_on(3, GRAPHICS);
    assert_eq!(slices(), [300, 600, 300], "both have their part at once");
    bed.group_on(4, GRAPHICS);
    assert_eq!(slices(), [200, 600, 200, 200]);
    let stat = format!("{}/0/compute.stat", std::process::id());
    let told = bed.daemon.client().read(&stat).unwrap();
    assert!(told.contains("slice 200\nround 600\n"), "{told}");
    bed.freed(4);
    driver(|driver| driver.slices.remove(&4));
    assert_eq!(
        slices(),
        [200, 600, 200],
        "one fewer of three changes nothing"
    );
    bed.freed(3);
    driver(|driver| driver.slices.remove(&3));
    assert_eq!(slices(), [600, 600]);
    assert_eq!(bed.write("default"), Ok(()));
    assert_eq!(slices(), [2048, 2048]);
}

#[test]
fn a_refusal_is_the_writers_and_what_was_set_is_taken_back() {
    let mut bed = Bed::new("refusal");
    bed.group(1);
    assert_eq!(bed.write("300"), Ok(()));
    driver(|driver| driver.refuses = Some(0x1f));
    assert_eq!(
        bed.write("50"),
        Err(gct_core::error::Error::Refused.errno())
    );
    driver(|driver| driver.refuses = None);
    bed.slices.follow(&mut bed.link);
    assert_eq!(slices(), [300]);
}

#[test]
fn what_the_program_sets_itself_is_set_back_and_remembered() {
    let mut bed = Bed::new("itself");
    let group = bed.group(1);
    assert_eq!(bed.write("50"), Ok(()));
    driver(|driver| driver.slices.insert(1, 5000));
    bed.slices
        .changed(group.client, group.object, &mut bed.link);
    assert_eq!(slices(), [50]);
    assert_eq!(bed.write("default"), Ok(()));
    assert_eq!(slices(), [5000]);
}

#[test]
fn what_is_gone_is_not_spoken_of() {
    let mut bed = Bed::new("gone");
    bed.group(1);
    bed.group(2);
    bed.group(3);
    bed.freed(1);
    // The driver has lost one without an ioctl: its file was closed.
    driver(|driver| driver.slices.remove(&2));
    assert_eq!(bed.write("50"), Ok(()));
    assert_eq!(slices(), [2048, 50]);
    bed.freed(DEVICE);
    assert_eq!(
        bed.slices.groups.len(),
        0,
        "a device takes what is below it along"
    );
}

#[test]
fn one_that_is_gone_before_it_has_the_limit_is_forgotten() {
    let mut bed = Bed::new("early");
    let path = format!("{}/0/compute.timeslice", std::process::id());
    let first = bed.group(1);
    assert_eq!(bed.write("50"), Ok(()));
    bed.freed(first.object);
    // The limits count as new when the next group is made, which another thread has freed again.
    bed.slices.taken.clear();
    let call = bed.leave(&alloc(DEVICE, 2, 0xa06c), None);
    bed.slices.made(&call, None, 7, &mut bed.link);
    assert_eq!(bed.slices.groups.len(), 0);
    assert_eq!(bed.daemon.client().read(&path), Ok("50\n".into()));
}

#[test]
fn a_client_of_mps_says_that_it_cannot() {
    let mut bed = Bed::new("mps");
    bed.group(1);
    let own = bed.channel(1, 2);
    assert_eq!(bed.write("50"), Ok(()));
    // A channel in a channel group that another process has made.
    let foreign = Call {
        parent: 77,
        object: 78,
        ..own
    };
    bed.slices.channel(&foreign, 7, &mut bed.link);
    let unsupported = Err(gct_core::error::Error::Unsupported.errno());
    assert_eq!(bed.write("300"), unsupported);
    assert_eq!(bed.freeze("1"), unsupported, "others would stand still");
    assert_eq!(running(), [true]);
    assert_eq!(bed.write("default"), Ok(()));
    assert_eq!(slices(), [2048]);
    bed.freed(78);
    assert_eq!(bed.write("300"), Ok(()));
}

#[test]
fn a_freeze_stops_every_channel_before_the_write_returns() {
    let mut bed = Bed::new("freeze");
    bed.group(1);
    bed.group(2);
    // More channels than one control can name.
    for object in 0..70 {
        bed.channel(1 + object % 2, 100 + object);
    }
    assert_eq!(bed.freeze("1"), Ok(()));
    assert_eq!(running(), [false; 70]);
    let sent = driver(|driver| driver.sent);
    assert_eq!(sent, 2);
    // A channel that the program makes or enables is stopped before the ioctl returns.
    bed.channel(2, 300);
    assert_eq!(running(), [false; 71]);
    driver(|driver| driver.channels.insert(100, true));
    bed.slices.enabled(CLIENT, &mut bed.link);
    assert_eq!(running(), [false; 71]);
    assert_eq!(bed.freeze("0"), Ok(()));
    assert_eq!(running(), [true; 71]);
    let sent = driver(|driver| driver.sent);
    assert_eq!(bed.write("50"), Ok(()));
    assert_eq!(running(), [true; 71], "another limit says nothing of them");
    assert_eq!(driver(|driver| driver.sent), sent + 4);
}

#[test]
fn a_channel_that_is_gone_vetoes_no_freeze() {
    let mut bed = Bed::new("freeze-gone");
    bed.group(1);
    for object in 100..103 {
        bed.channel(1, object);
    }
    driver(|driver| driver.channels.remove(&101));
    bed.slices.halts.freed(CLIENT, SUBDEVICE);
    let unsupported = Err(gct_core::error::Error::Unsupported.errno());
    assert_eq!(bed.freeze("1"), unsupported, "it takes a subdevice");
    let subdevice = bed.leave(&alloc(DEVICE, SUBDEVICE, 0x2080), Some(0));
    bed.slices.subdevice(&subdevice);
    assert_eq!(bed.freeze("1"), Ok(()));
    assert_eq!(running(), [false; 2]);
    bed.daemon.reboot();
    assert_eq!(running(), [false; 2], "frozen it stays without a daemon");
    assert!(bed.link.maintain(u64::MAX / 2));
    bed.slices.find_gpus(&mut bed.link);
    bed.slices.follow(&mut bed.link);
    assert_eq!(running(), [true; 2]);
}

#[test]
fn a_freeze_that_is_refused_is_taken_back() {
    let mut bed = Bed::new("freeze-refused");
    bed.group(1);
    bed.channel(1, 100);
    driver(|driver| driver.refuses = Some(0x1f));
    let refused = Err(gct_core::error::Error::Refused.errno());
    assert_eq!(bed.freeze("1"), refused);
    driver(|driver| driver.refuses = None);
    bed.slices.follow(&mut bed.link);
    let (_, limits) = bed.link.gpus()[0].page.limits().unwrap();
    assert!(!limits.launches.frozen);
    assert_eq!(running(), [true]);
}
