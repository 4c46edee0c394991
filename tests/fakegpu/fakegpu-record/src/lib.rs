// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads, from within the machine, what the driver did to a software GPU.
//!
//! The device shows its recorder in the last 64 KiB of BAR0 (`journal.rs` of fakegpu-core). A test
//! takes a [`mark`](Recorder::mark), does something, and checks the events
//! [`since`](Recorder::since):
//!
//! ```no_run
//! let recorder = fakegpu_record::Recorder::open(0)?;
//! let mark = recorder.mark()?;
//! std::fs::write("/sys/kernel/debug/gctgroup/web/0/compute.timeslice", "2ms")?;
//! let events = recorder.since(mark)?;
//! let sent: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
//! assert_eq!(sent, ["NVA06C_CTRL_CMD_SET_TIMESLICE"]);
//! # Ok::<(), std::io::Error>(())
//! ```

mod window;

use serde::Deserialize;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::iter::Sum;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use window::Window;

/// Where sysfs lists the machine's PCI devices.
const DEVICES: &str = "/sys/bus/pci/devices";

/// A recorded event. gctgroup-docs/fakegpu.md describes the kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Event {
    /// When it happened; a launch, when it ended.
    #[serde(default)]
    pub ns: u64,
    /// "control", "alloc", "free", "duplicate", "rpc", "doorbell", "launch" or "boot".
    pub kind: String,
    /// The C name of the control, class or call.
    #[serde(default)]
    pub name: String,
    /// The client.
    #[serde(default)]
    pub client: u32,
    /// The object.
    #[serde(default)]
    pub object: u32,
    /// The parent of an allocated object.
    #[serde(default)]
    pub parent: u32,
    /// The client of the object that a duplicate is of.
    #[serde(default)]
    pub source_client: u32,
    /// That object.
    #[serde(default)]
    pub source_object: u32,
    /// The C name of the object's class.
    #[serde(default)]
    pub class: String,
    /// The status that answered it.
    #[serde(default)]
    pub status: u32,
    /// Parameters in hexadecimal.
    #[serde(default)]
    pub params: String,
    /// When a launch began.
    #[serde(default)]
    pub began: u64,
    /// The address of a launch's program.
    #[serde(default)]
    pub program: u64,
    /// The grid of a launch, in blocks or clusters.
    #[serde(default)]
    pub grid: [u32; 3],
    /// The boxes of blocks of a launch that ran.
    #[serde(default)]
    pub blocks: Vec<String>,
    /// The place of a launch among those that wait, 0 first.
    #[serde(default)]
    pub group: u32,
    /// The disabled TPCs of a launch, in hexadecimal bytes.
    #[serde(default)]
    pub mask: String,
    /// The faults of a batch.
    #[serde(default)]
    pub faults: u32,
    /// The channels whose faults are in a batch.
    #[serde(default)]
    pub channels: u32,
    /// The whole line.
    #[serde(skip)]
    pub line: String,
}

impl Event {
    /// Parses a line of the recorder.
    ///
    /// # Errors
    ///
    /// If the line is malformed.
    pub fn parse(line: &str) -> io::Result<Self> {
        let event: Self = serde_json::from_str(line)?;
        Ok(Self {
            line: line.to_owned(),
            ..event
        })
    }

    /// Returns the little-endian number of `bytes` bytes at `offset` of the parameters.
    pub fn param(&self, offset: usize, bytes: usize) -> Option<u64> {
        let digits = self
            .params
            .get(2 * offset..2 * offset.checked_add(bytes)?)?;
        (0..bytes).rev().try_fold(0, |number: u64, at| {
            let byte = u64::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
            Some(number.checked_shl(8)? | byte)
        })
    }

    /// Returns the disabled TPCs of a launch, one bit each.
    pub fn mask_words(&self) -> Vec<u32> {
        let word = |at: usize| {
            let digits = self.mask.get(at..at + 8)?;
            u32::from_str_radix(digits, 16).ok().map(u32::swap_bytes)
        };
        (0..self.mask.len()).step_by(8).filter_map(word).collect()
    }
}

/// Copies in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// How many there were.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many were in progress while one of the other direction was, too.
    pub beside: u64,
    /// Bytes of those with 2 MiB or more.
    pub large: u64,
}

impl Copied {
    /// Returns what was copied since an earlier time.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            operations: self.operations - earlier.operations,
            bytes: self.bytes - earlier.bytes,
            beside: self.beside - earlier.beside,
            large: self.large - earlier.large,
        }
    }
}

impl Sum for Copied {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, copied| Self {
            operations: sum.operations + copied.operations,
            bytes: sum.bytes + copied.bytes,
            beside: sum.beside + copied.beside,
            large: sum.large + copied.large,
        })
    }
}

/// What one copy engine has moved since power-on. Fills are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// To the GPU's memory from the host's.
    pub to_gpu: Copied,
    /// To the host's memory from the GPU's.
    pub to_host: Copied,
    /// Within one of the two.
    pub within: Copied,
}

/// Copy engines of a software GPU.
pub const COPY_ENGINES: usize = 4;

/// The recorder of one GPU.
#[derive(Debug)]
pub struct Recorder {
    window: Window,
    /// BAR0. Its lock serialises readers: the window shows one line at a time.
    file: File,
}

impl Recorder {
    /// Opens the recorder of GPU `gpu`, counted by bus address.
    ///
    /// # Errors
    ///
    /// If there is no such GPU, or it is not the software one.
    pub fn open(gpu: usize) -> io::Result<Self> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no GPU {gpu}"));
        let device = gpus()?.into_iter().nth(gpu).ok_or_else(missing)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(device.join("resource0"))?;
        let window = Window::map(&file)?;
        Ok(Self { window, file })
    }

    /// Returns the number of events so far.
    ///
    /// # Errors
    ///
    /// None today.
    pub fn mark(&self) -> io::Result<u32> {
        Ok(self.window.count())
    }

    /// Returns a register of BAR0, which must be inside of it.
    pub fn register(&self, at: usize) -> u32 {
        self.window.register(at)
    }

    /// Returns all events from `mark` on.
    ///
    /// # Errors
    ///
    /// If there were more than the device keeps.
    pub fn since(&self, mark: u32) -> io::Result<Vec<Event>> {
        let lock = Lock::take(&self.file)?;
        let events = (mark..self.window.count())
            .map(|number| {
                let line = self.window.line(number).ok_or_else(|| {
                    io::Error::other(format!("event {number} is forgotten by the device"))
                })?;
                Event::parse(&line)
            })
            .collect();
        drop(lock);
        events
    }

    /// Returns what each copy engine has moved since power-on.
    ///
    /// # Errors
    ///
    /// If the lock cannot be taken.
    pub fn copies(&self) -> io::Result<[Copies; COPY_ENGINES]> {
        let lock = Lock::take(&self.file)?;
        let copied = |index| Copied {
            operations: self.window.copied(4 * index),
            bytes: self.window.copied(4 * index + 1),
            beside: self.window.copied(4 * index + 2),
            large: self.window.copied(4 * index + 3),
        };
        let copies = core::array::from_fn(|engine| Copies {
            to_gpu: copied(3 * engine),
            to_host: copied(3 * engine + 1),
            within: copied(3 * engine + 2),
        });
        drop(lock);
        Ok(copies)
    }

    /// Returns the launches that have ended from `mark` on, in the order of their ends.
    ///
    /// # Errors
    ///
    /// As [`since`](Self::since).
    pub fn launches_since(&self, mark: u32) -> io::Result<Vec<Event>> {
        let mut events = self.since(mark)?;
        events.retain(|event| event.kind == "launch");
        Ok(events)
    }

    /// Returns the controls from `mark` on.
    ///
    /// # Errors
    ///
    /// As [`since`](Self::since).
    pub fn controls_since(&self, mark: u32) -> io::Result<Vec<Event>> {
        let mut events = self.since(mark)?;
        events.retain(|event| event.kind == "control");
        Ok(events)
    }
}

/// Lists NVIDIA's GPUs by bus address.
fn gpus() -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(DEVICES)? {
        let device = entry?.path();
        let is = |file: &str, value: &str| {
            fs::read_to_string(device.join(file)).is_ok_and(|found| found.trim() == value)
        };
        if is("vendor", "0x10de") && is("class", "0x030200") {
            found.push(device);
        }
    }
    found.sort();
    Ok(found)
}

/// An advisory lock on a file, released on drop.
struct Lock<'a>(&'a File);

impl<'a> Lock<'a> {
    fn take(file: &'a File) -> io::Result<Self> {
        // SAFETY: the descriptor is open.
        match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } {
            0 => Ok(Self(file)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // SAFETY: the descriptor is open.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_has_its_parameters() {
        let line = "{\"ns\":99,\"kind\":\"control\",\"name\":\"NVA06C_CTRL_CMD_SET_TIMESLICE\",\
                    \"client\":7,\"object\":48,\"class\":\"KEPLER_CHANNEL_GROUP_A\",\"status\":0,\
                    \"params\":\"d204000000000000\"}";
        let event = Event::parse(line).unwrap();
        assert_eq!((event.client, event.object), (7, 48));
        assert_eq!(event.class, "KEPLER_CHANNEL_GROUP_A");
        assert_eq!(event.param(0, 8), Some(1234));
        assert_eq!(event.param(0, 2), Some(1234));
        assert_eq!(event.param(1, 8), None);
        assert_eq!(event.line, line);
    }

    #[test]
    fn a_launch_has_its_blocks_and_its_mask() {
        let line = "{\"ns\":99,\"kind\":\"launch\",\"client\":7,\"object\":48,\"began\":9,\
                    \"program\":4096,\"grid\":[8, 2, 1],\"blocks\":[\"[0,8)x[0,2)x[0,1)\"],\
                    \"mask\":\"0100008000000000\"}";
        let event = Event::parse(line).unwrap();
        assert_eq!((event.began, event.ns, event.program), (9, 99, 4096));
        assert_eq!(event.mask_words(), [0x8000_0001, 0]);
        assert_eq!(event.grid, [8, 2, 1]);
        assert_eq!(event.blocks, ["[0,8)x[0,2)x[0,1)"]);
    }

    #[test]
    fn other_lines_lack_some_keys() {
        let event = Event::parse("{\"ns\":0,\"kind\":\"boot\"}").unwrap();
        assert_eq!((event.kind.as_str(), event.object), ("boot", 0));
        assert!(Event::parse("{").is_err());
    }
}
