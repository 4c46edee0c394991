// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes input that no file accepts. Each write is refused whole and changes nothing.
//!
//! ```text
//! bad/ group.procs group.cgroup
//!   0/ gmem.limit ..
//! ```

use crate::tree::{self, at, read, refuses, write, Group};
use gct_core::error::Error;
use gct_core::iface::files::{self, Mode, Place};
use gct_ktap::{holds, same, During, Outcome, Test};
use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};

pub(crate) const TESTS: &[Test] = &[
    ("input.too_long", too_long),
    ("input.nul_and_binary", binary),
    ("input.many_lines", many_lines),
    ("input.in_parts", in_parts),
    ("input.bad_address", bad_address),
    ("input.pids", pids),
    ("input.cgroups", cgroups),
    ("input.small_reads", small_reads),
];

/// Returns every writable file, in a group that exists.
fn writable() -> Result<(Group, Vec<String>), gct_ktap::Stop> {
    let group = Group::new("bad")?;
    let mut paths = vec!["control".to_owned()];
    let of = |place| files::of(place).filter(|entry| entry.mode != Mode::Read);
    paths.extend(of(Place::Group).map(|entry| group.file(entry.name)));
    for gpu in tree::directories("gpus")? {
        paths.extend(of(Place::Pool).map(|entry| group.file(&format!("{gpu}/{}", entry.name))));
    }
    Ok((group, paths))
}

fn each_refuses(inputs: &[Vec<u8>]) -> Outcome {
    let (group, paths) = writable()?;
    for path in &paths {
        let before = read(path).ok();
        for input in inputs {
            refuses(path, input, Error::Syntax)?;
        }
        same(path, read(path).ok(), before)?;
    }
    group.remove().during("remove")
}

fn too_long() -> Outcome {
    let lengths = [1025, 4095, 4096, 4097, 65_536];
    let mut inputs: Vec<Vec<u8>> = lengths.iter().map(|length| vec![b'1'; *length]).collect();
    inputs.extend(lengths.iter().map(|length| vec![b' '; *length]));
    inputs.push([b"create ".to_vec(), vec![b'a'; 65_536]].concat());
    each_refuses(&inputs)
}

fn binary() -> Outcome {
    let every_byte: Vec<u8> = (0..=255).collect();
    each_refuses(&[
        vec![0],
        vec![0; 4096],
        b"1\0".to_vec(),
        b"\x001".to_vec(),
        b"create a\0b".to_vec(),
        every_byte,
        vec![0xff; 64],
        b"\xc3\x28".to_vec(),
        b"\x7fELF".to_vec(),
    ])
}

fn many_lines() -> Outcome {
    each_refuses(&[
        b"\n".to_vec(),
        b"\n\n\n".to_vec(),
        b"1\n2\n".to_vec(),
        b"max\nmax\n".to_vec(),
        b"create a\ncreate b\n".to_vec(),
        b"none\nnone\n".to_vec(),
        vec![b'\n'; 1000],
    ])
}

/// Checks that each `write` is parsed alone: two halves do not make a whole.
fn in_parts() -> Outcome {
    tree::needs_debugfs()?;
    let mut control = OpenOptions::new().write(true).open(at("control"))?;
    holds("half a command is refused", control.write(b"crea").is_err())?;
    holds("the other half too", control.write(b"te halves").is_err())?;
    holds("nothing was made", !at("halves").exists())?;
    // One descriptor serves several commands.
    for _ in 0..3 {
        control.write_all(b"create whole\n")?;
        holds("it was made", at("whole").exists())?;
        control.write_all(b"remove whole\n")?;
    }
    Ok(())
}

fn bad_address() -> Outcome {
    tree::needs_debugfs()?;
    let (_group, paths) = writable()?;
    for path in &paths {
        let file = OpenOptions::new().write(true).open(at(path))?;
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
        for address in [8usize, usize::MAX - 4095, 0xffff_8000_0000_0000] {
            // SAFETY: the kernel checks the address. The call accesses no memory of this process,
            // whatever the address.
            let result =
                unsafe { libc::write(descriptor, std::ptr::without_provenance(address), 16) };
            let error = std::io::Error::last_os_error();
            same(path, result, -1)?;
            same(path, error.raw_os_error(), Some(libc::EFAULT))?;
        }
    }
    Ok(())
}

fn pids() -> Outcome {
    let group = Group::new("bad")?;
    let procs = group.file("group.procs");
    for bad in ["-1", "x", "1 2", "1,2", "0x1", "+1", "1.0"] {
        refuses(&procs, bad, Error::Syntax)?;
    }
    for nobody in [
        "2147483647",
        "2147483648",
        "4294967297",
        "99999999999999999999",
    ] {
        refuses(&procs, nobody, Error::NoProcess)?;
    }
    same("members", group.pids()?, vec![])
}

fn cgroups() -> Outcome {
    let group = Group::new("bad")?;
    let file = group.file("group.cgroup");
    let long = format!("/{}", "c".repeat(511));
    for bad in ["relative", "", "/a\n/b", "/a\0", long.as_str()] {
        let before = read(&file)?;
        holds(&format!("{bad:?} is refused"), write(&file, bad).is_err())?;
        same("group.cgroup", read(&file)?, before)?;
    }
    write(&file, "/kubepods.slice/pod1")?;
    same(
        "group.cgroup",
        read(&file)?.as_str(),
        "/kubepods.slice/pod1\n",
    )?;
    let other = Group::new("other")?;
    refuses(
        &other.file("group.cgroup"),
        "/kubepods.slice/pod1",
        Error::Exists,
    )?;
    write(&file, "none")?;
    write(&other.file("group.cgroup"), "/kubepods.slice/pod1").during("it is free again")
}

/// Checks that a reader with a small buffer sees the same text as one with a large one.
fn small_reads() -> Outcome {
    tree::needs_debugfs()?;
    let (_group, paths) = writable()?;
    for path in paths.iter().filter(|path| *path != "control") {
        let Ok(whole) = read(path) else {
            continue;
        };
        let mut file = OpenOptions::new().read(true).open(at(path))?;
        let mut pieces = Vec::new();
        let mut byte = [0];
        while file.read(&mut byte)? == 1 {
            pieces.push(byte[0]);
        }
        same(
            path,
            String::from_utf8_lossy(&pieces).into_owned(),
            whole.clone(),
        )?;
        file.seek(SeekFrom::Start(0))?;
        let mut again = String::new();
        file.read_to_string(&mut again)?;
        same(path, again, whole)?;
    }
    Ok(())
}
