// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests `/dev/gctgroup`: its requests, and that it shows what debugfs shows.

use crate::device::{self, ask, bytes_of, open, put, send};
use crate::sys::{self, errno, Child};
use crate::tree::{self, at, repetitions, Group};
use gct_core::error::Error;
use gct_core::iface::door::{Operation, COMMAND, NO_ROOM, REQUEST_BYTES};
use gct_core::iface::files::{self, Mode};
use gct_ktap::{failed, holds, same, skipped, During, Outcome, Stop, Test};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("door.shows_what_debugfs_shows", same_as_debugfs),
    ("door.answers_where_debugfs_refuses", refused_by_debugfs),
    ("door.refuses_bad_requests", bad_requests),
    ("door.says_how_much_room_it_needs", room),
    ("door.refuses_bad_addresses", bad_addresses),
    ("door.takes_any_bytes", any_bytes),
    ("door.a_removed_group_is_not_found", removed_group),
    ("door.callers_that_die", deaths),
];

/// Returns the errno of an outcome, 0 for success.
pub(crate) fn code<T>(outcome: io::Result<T>) -> i32 {
    outcome.err().map_or(0, |error| errno(&error))
}

/// Reads a file of debugfs, or returns the errno.
fn in_debugfs(path: &str) -> Result<String, i32> {
    fs::read_to_string(at(path)).map_err(|error| errno(&error))
}

fn by_device(path: &str) -> Result<String, i32> {
    device::read(path).map_err(|error| errno(&error))
}

/// Compares directories, files, their texts and their errors below a path.
fn compare(path: &str) -> Result<usize, Stop> {
    let (dirs, files) = device::list(path).during(path)?;
    let shown = tree::entries_of(&at(path))?;
    same(path, (dirs.clone(), files.clone()), shown)?;
    let below = |name: &String| match path {
        "" => name.clone(),
        _ => format!("{path}/{name}"),
    };
    let mut count = files.len();
    for name in &files {
        let path = below(name);
        same(&path, by_device(&path), in_debugfs(&path))?;
        // None of these changes anything.
        for bad in ["", "no value", "\0", "99999999999999999999 1"] {
            let expected = code(tree::write_at(&at(&path), bad));
            let found = code(device::write(&path, bad.as_bytes()));
            same(&format!("{path}: {bad:?}"), found, expected)?;
            holds("it is refused", expected != 0)?;
        }
    }
    for name in &dirs {
        count += compare(&below(name))?;
    }
    Ok(count)
}

fn same_as_debugfs() -> Outcome {
    if OpenOptions::new().write(true).open(at("control")).is_err() {
        return Err(skipped("debugfs does not let files be written here"));
    }
    let group = Group::new("both")?;
    let count = compare("")?;
    println!("# {count} files compared");
    for (path, text) in limits(&group)? {
        let found = code(device::write(&path, text.as_bytes()));
        let read = in_debugfs(&path);
        match found {
            0 => same(&path, by_device(&path), read)?,
            refused => {
                let expected = code(tree::write_at(&at(&path), &text));
                same(&path, refused, expected)?;
            }
        }
    }
    compare("both").map(drop)?;
    group.remove().during("remove")
}

/// Returns each limit of a group with its default.
fn limits(group: &Group) -> Result<Vec<(String, String)>, Stop> {
    let mut all = Vec::new();
    for gpu in tree::directories("gpus")? {
        for entry in files::of(files::Place::Pool).filter(|entry| entry.mode == Mode::ReadWrite) {
            let path = group.file(&format!("{gpu}/{}", entry.name));
            all.push((path, entry.default.to_owned()));
        }
    }
    Ok(all)
}

/// Checks under lockdown, and without debugfs, that the tree is there all the same.
fn refused_by_debugfs() -> Outcome {
    let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    let is_locked = !lockdown.is_empty() && !lockdown.contains("[none]");
    if !is_locked && Path::new(tree::ROOT).exists() {
        return Err(skipped("debugfs is open to root here"));
    }
    let events = device::read("events")?;
    let group = Group::new("locked")?;
    let expected = if is_locked { libc::EPERM } else { libc::ENOENT };
    let mut paths = limits(&group)?;
    paths.push((group.file("group.cgroup"), "/pod7".into()));
    for (path, text) in paths {
        same(&path, code(fs::read_to_string(at(&path))), expected)?;
        same(&path, code(tree::write_at(&at(&path), &text)), expected)?;
        let unsupported = Error::Unsupported.errno();
        match code(device::write(&path, text.as_bytes())) {
            0 => same(&path, by_device(&path), Ok(format!("{text}\n")))?,
            refused => same(&path, refused, unsupported)?,
        }
    }
    same("what is counted", device::read("events")?, events)?;
    group.remove().during("remove")
}

/// Sends a request with one of its 32-bit fields changed, and returns the errno.
fn changed(device: &File, operation: Operation, at: usize, value: u32) -> i32 {
    let mut text = [0; 64];
    let mut bytes = bytes_of(operation, b"version", &mut text);
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    // SAFETY: the fields that are changed are no addresses. The kernel stores at most as many bytes
    // as `text` has.
    code(unsafe { send(device, &mut bytes) }.0)
}

fn bad_requests() -> Outcome {
    let device = open(true, true)?;
    for (at, value, expected) in [
        (0, 0, libc::EINVAL),
        (0, 2, libc::EINVAL),
        (4, 0, libc::EINVAL),
        (4, 4, libc::EINVAL),
        (24, 129, libc::ENOENT),
        (24, u32::MAX, libc::ENOENT),
        (32, 1, libc::EINVAL),
        (36, 1, libc::EINVAL),
    ] {
        let found = changed(&device, Operation::Read, at, value);
        same(&format!("{value} at {at}"), found, expected)?;
    }
    let mut bytes = [0u8; REQUEST_BYTES];
    for command in [0, COMMAND + 1, COMMAND ^ (1 << 16), COMMAND ^ (1 << 30)] {
        // SAFETY: the kernel does not know the command.
        let outcome = unsafe { sys::ioctl(&device, command.into(), &mut bytes) };
        same(
            &format!("command {command:#x}"),
            code(outcome),
            libc::ENOTTY,
        )?;
    }
    for path in [
        "",
        "gpus",
        "/version",
        "nobody/group.procs",
        "0",
        "../version",
    ] {
        let found = code(ask(&device, Operation::Read, path, 64));
        same(&format!("reading {path:?}"), found, libc::ENOENT)?;
        let found = code(put(&device, path, b"1"));
        same(&format!("writing {path:?}"), found, libc::ENOENT)?;
    }
    for path in ["version", "nobody", "/", "gpus/", "gpus/99"] {
        let found = code(ask(&device, Operation::List, path, 64));
        same(&format!("listing {path:?}"), found, libc::ENOENT)?;
    }
    same(
        "reading control",
        code(ask(&device, Operation::Read, "control", 64)),
        libc::EACCES,
    )?;
    same(
        "writing version",
        code(put(&device, "version", b"1")),
        libc::EACCES,
    )?;
    same(
        "a long write",
        code(put(&device, "control", &[b' '; 4097])),
        libc::EINVAL,
    )
}

fn room() -> Outcome {
    let device = open(true, false)?;
    let whole = ask(&device, Operation::Read, "events", 4096)?;
    for room in [0, 1, whole.len() - 1] {
        let mut text = vec![b'#'; room + 8];
        let mut bytes = bytes_of(Operation::Read, b"events", &mut text[..room]);
        // SAFETY: the request names `text`, which nobody else uses meanwhile.
        let (outcome, length) = unsafe { send(&device, &mut bytes) };
        same("errno", code(outcome), NO_ROOM)?;
        same("length", usize::try_from(length).ok(), Some(whole.len()))?;
        text.retain(|byte| *byte != b'#');
        same("what was copied", text, vec![])?;
    }
    let same_text = ask(&device, Operation::Read, "events", whole.len())?;
    same("with room that is just enough", same_text, whole.clone())?;
    let found = changed(&device, Operation::Read, 28, 64);
    same("a text that fits", found, 0)?;
    // More room than any file needs is not allocated. The version is shorter than the buffer.
    same(
        "all room",
        changed(&device, Operation::Read, 28, u32::MAX),
        0,
    )
}

fn bad_addresses() -> Outcome {
    let device = open(true, true)?;
    let mut text = [0u8; 64];
    for address in [8u64, 0x7fff_ffff_f000, 0xffff_8000_0000_0000, u64::MAX - 16] {
        for operation in [Operation::List, Operation::Read, Operation::Write] {
            let path: &[u8] = match operation {
                Operation::List => b"gpus",
                Operation::Read => b"version",
                Operation::Write => b"control",
            };
            for at in [8, 16] {
                let mut bytes = bytes_of(operation, path, &mut text);
                bytes[at..at + 8].copy_from_slice(&address.to_ne_bytes());
                // SAFETY: the kernel checks addresses, and no memory of this process is there.
                let found = code(unsafe { send(&device, &mut bytes) }.0);
                same(
                    &format!("{operation:?}, {address:#x} at {at}"),
                    found,
                    libc::EFAULT,
                )?;
            }
        }
        let pointer = std::ptr::without_provenance_mut::<[u8; REQUEST_BYTES]>(address as usize);
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&device);
        // SAFETY: as above.
        let result = unsafe { libc::ioctl(descriptor, COMMAND.into(), pointer) };
        let error = io::Error::last_os_error();
        same(
            "a request nowhere",
            (result, errno(&error)),
            (-1, libc::EFAULT),
        )?;
    }
    Ok(())
}

/// Sends paths and texts of random bytes. Each is refused, and nothing changes.
fn any_bytes() -> Outcome {
    let device = open(true, true)?;
    let before = device::list("")?;
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..repetitions(5000) {
        let mut bytes = [0u8; 160];
        for byte in &mut bytes {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *byte = random.to_le_bytes()[0];
        }
        let length = usize::from(bytes[0]) % bytes.len();
        let path = &bytes[..length];
        for operation in [Operation::List, Operation::Read, Operation::Write] {
            let mut text = [bytes[1]; 8];
            let mut request = bytes_of(operation, path, &mut text);
            // SAFETY: the request names `bytes` and `text`.
            let found = code(unsafe { send(&device, &mut request) }.0);
            let is_root = operation == Operation::List && path.is_empty();
            let refused = [libc::ENOENT, NO_ROOM];
            holds(
                "it is refused",
                refused.contains(&found) && (found == NO_ROOM) == is_root,
            )?;
        }
        let text = code(put(&device, "control", &bytes));
        same("a command of random bytes", text, libc::EINVAL)?;
    }
    same("the root", device::list("")?, before)
}

fn removed_group() -> Outcome {
    let device = open(true, true)?;
    let group = Group::new("r")?;
    put(&device, "r/group.cgroup", b"/r7").during("write")?;
    group.remove().during("remove while the device is open")?;
    for path in ["r/group.procs", "r/group.cgroup", "r/0/gmem.stat"] {
        same(
            path,
            code(ask(&device, Operation::Read, path, 64)),
            libc::ENOENT,
        )?;
        same(path, code(put(&device, path, b"0")), libc::ENOENT)?;
    }
    same(
        "the list",
        code(ask(&device, Operation::List, "r", 64)),
        libc::ENOENT,
    )?;
    let again = Group::new("r")?;
    let text = ask(&device, Operation::Read, "r/group.cgroup", 64)?;
    same("the new group", text.as_str(), "none\n")?;
    again.remove().during("remove")
}

/// Kills processes in the middle of requests. The tree works as before, and has no group of theirs
/// that could not be removed.
fn deaths() -> Outcome {
    const WORKERS: usize = 6;
    let events = device::read("events")?;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        let workers: io::Result<Vec<Child>> = (0..WORKERS)
            .map(|number| {
                Child::fork(move || loop {
                    let name = format!("dying{number}");
                    let _ = device::write("control", format!("create {name}").as_bytes());
                    let _ = device::write(&format!("{name}/group.procs"), b"0");
                    let _ = device::list("");
                    let _ = device::read(&format!("{name}/group.procs"));
                })
            })
            .collect();
        let workers = workers?;
        std::thread::sleep(Duration::from_millis(20));
        sys::reap(workers);
    }
    for number in 0..WORKERS {
        let remove = format!("remove dying{number}");
        match code(device::write("control", remove.as_bytes())) {
            0 | libc::ENOENT => {}
            other => return Err(failed(format!("{remove}: errno {other}"))),
        }
    }
    same("events", device::read("events")?, events)
}
