// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the properties of a process from /proc.

use gct_core::error::Error;
use gct_core::ids::ProcKey;
use gctd_ipc::procfs::{stat_field, PARENT, START};
use std::fs::File;
use std::io::{self, ErrorKind, Read};

const NS_PER_SECOND: u64 = 1_000_000_000;

/// More than most files of processes have.
const READ_BYTES: usize = 4096;

/// A process and its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its pid and start time.
    pub(crate) key: ProcKey,
    /// Its parent's pid; 0 for none.
    pub(crate) parent: u32,
}

/// Returns the resolution of start times in /proc, in nanoseconds.
pub(crate) fn tick_ns() -> u64 {
    NS_PER_SECOND / rustix::param::clock_ticks_per_second().max(1)
}

/// Returns a process by the pid of its first thread, as peers and parents have it.
///
/// # Errors
///
/// [`Error::NoProcess`] if it has ended, [`Error::NoSpace`] if the daemon cannot look.
pub(crate) fn find(tgid: u32) -> Result<Process, Error> {
    let stat = read(&format!("/proc/{tgid}/stat"))?;
    let (parent, ticks) = parse(&stat).ok_or(Error::NoProcess)?;
    let start_time_ns = ticks.checked_mul(tick_ns()).ok_or(Error::NoProcess)?;
    Ok(Process {
        key: ProcKey {
            tgid,
            start_time_ns,
        },
        parent,
    })
}

/// Returns the process of a pid, which may be the pid of one of its threads.
///
/// # Errors
///
/// Those of [`find`].
pub(crate) fn of_thread(pid: u32) -> Result<Process, Error> {
    find(number(&read(&format!("/proc/{pid}/status"))?, "Tgid:", 0)?)
}

/// Reads a file of a process, at once in most cases: each connection causes some of these reads.
fn read(path: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::with_capacity(READ_BYTES);
    let read = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(|error| meaning(&error))
}

/// Returns whether a process has ended, or the daemon cannot look, such as for want of a
/// descriptor. A process that it cannot see must not lose its limits.
fn meaning(error: &io::Error) -> Error {
    match (error.kind(), error.raw_os_error()) {
        (ErrorKind::NotFound, _) | (_, Some(libc::ESRCH)) => Error::NoProcess,
        _ => Error::NoSpace,
    }
}

/// Returns a number in a line of a `status` file. The name of the process in it may be any bytes.
fn number(status: &[u8], line: &str, at: usize) -> Result<u32, Error> {
    let mut lines = status.split(|byte| *byte == b'\n');
    let line = lines.find_map(|found| found.strip_prefix(line.as_bytes()));
    let text = line.and_then(|line| std::str::from_utf8(line).ok());
    let word = text.and_then(|text| text.split_ascii_whitespace().nth(at));
    word.and_then(|word| word.parse().ok())
        .ok_or(Error::NoProcess)
}

/// Parses parent and start time from a `stat` file.
fn parse(stat: &[u8]) -> Option<(u32, u64)> {
    let parent = stat_field(stat, PARENT)?.parse().ok()?;
    let start = stat_field(stat, START)?.parse().ok()?;
    Some((parent, start))
}

/// Returns the effective uid of a process.
///
/// # Errors
///
/// Those of [`find`].
pub(crate) fn user(pid: u32) -> Result<u32, Error> {
    number(&read(&format!("/proc/{pid}/status"))?, "Uid:", 1)
}

/// Returns the cgroup v2 path of a process; empty if it has none.
///
/// # Errors
///
/// Those of [`find`].
pub(crate) fn cgroup(pid: u32) -> Result<Vec<u8>, Error> {
    let text = read(&format!("/proc/{pid}/cgroup"))?;
    let mut lines = text.split(|byte| *byte == b'\n');
    let path = lines.find_map(|line| line.strip_prefix(b"0::"));
    Ok(path.unwrap_or_default().to_vec())
}

/// Returns the time since boot in nanoseconds, on the clock of start times.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds * NS_PER_SECOND + nanoseconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_is_no_field() {
        let stat = b"42 (a) b) R 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1";
        assert_eq!(parse(stat), Some((7, 12345)));
        assert_eq!(parse(b"42 (a"), None);
        assert_eq!(parse(b"42 (a) R 7"), None);
    }

    #[test]
    fn this_process_is_found_by_each_of_its_threads() {
        let own = find(std::process::id()).unwrap();
        assert_eq!(own.key.tgid, std::process::id());
        assert!(own.key.start_time_ns <= now_ns());
        let thread = std::thread::spawn(|| {
            let tid = rustix::thread::gettid();
            of_thread(u32::try_from(tid.as_raw_nonzero().get()).unwrap())
        });
        assert_eq!(thread.join().unwrap(), Ok(own));
        assert_eq!(find(u32::MAX), Err(Error::NoProcess));
    }
}
