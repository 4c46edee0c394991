// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Loads and unloads the driver while files of the tree are open.
//!
//! These tests run last: they end with the module unloaded.

use crate::sys::{self, errno, reap};
use crate::tree::{self, at, read, write, Group};
use crate::{device, members, rm};
use gct_core::iface::door::Operation;
use gct_ktap::{failed, holds, same, During, Outcome, Test};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("unload.refused_while_a_file_is_open", open_file),
    ("unload.refused_while_the_device_is_open", open_device),
    ("unload.open_directory", open_directory),
    ("unload.with_groups_and_members", with_groups),
    ("unload.with_open_driver", open_driver),
    ("unload.again_and_again", again),
    ("unload.leaves_nothing", leaves_nothing),
];

/// Tests for a machine without a GPU, where the driver's init fails after it has made the tree.
pub(crate) const WITHOUT_GPU: &[Test] = &[("unload.init_that_fails", init_that_fails)];

/// Duration of repeated loading and unloading.
const PATIENCE: Duration = Duration::from_secs(20);

static MODULE: OnceLock<PathBuf> = OnceLock::new();

/// Sets the path of the module.
pub(crate) fn set_module(path: &Path) {
    MODULE.get_or_init(|| path.to_owned());
}

/// Loads the driver and mounts debugfs, unless that is done.
pub(crate) fn load() -> io::Result<()> {
    if !tree::is_by_device()
        && !Path::new("/sys/kernel/debug/x86").exists()
        && fs::read_dir("/sys/kernel/debug")?.count() == 0
    {
        sys::mount("debugfs", "/sys/kernel/debug")?;
    }
    if Path::new("/sys/module/nvidia/initstate").exists() {
        return Ok(());
    }
    let path = MODULE.get().ok_or_else(|| io::Error::other("no module"))?;
    match sys::insmod(path, "") {
        Err(error) if errno(&error) == libc::EEXIST => Ok(()),
        other => other,
    }
}

fn unload() -> io::Result<()> {
    sys::rmmod("nvidia")
}

/// Checks that an open file of the tree holds the module, as everywhere in Linux, and still works.
/// After its close the module can be unloaded.
fn open_file() -> Outcome {
    tree::needs_debugfs()?;
    let mut version = File::open(at("version"))?;
    let found = unload().err().map(|error| errno(&error));
    same("unloading", found, Some(libc::EWOULDBLOCK))?;
    let mut text = String::new();
    version.read_to_string(&mut text).during("version")?;
    holds("it still reads", text.starts_with("gctgroup "))?;
    drop(version);
    unload().during("unload")?;
    holds("the tree is gone", tree::is_gone())?;
    load().during("load")
}

/// Checks that each of a thousand open devices holds the module and works. After the last close the
/// module can be unloaded.
fn open_device() -> Outcome {
    const COUNT: usize = 1000;
    sys::allow_files(COUNT + 100)?;
    let devices: io::Result<Vec<File>> = (0..COUNT).map(|_| device::open(true, true)).collect();
    let devices = devices.during("a thousand opens")?;
    let refused = || unload().err().map(|error| errno(&error));
    same("unloading", refused(), Some(libc::EWOULDBLOCK))?;
    for device in &devices {
        let text = device::ask(device, Operation::Read, "version", 64)?;
        holds("it still reads", text.starts_with("gctgroup "))?;
    }
    let mut devices = devices.into_iter();
    let last = devices.next();
    drop(devices);
    same("unloading", refused(), Some(libc::EWOULDBLOCK))?;
    drop(last);
    unload().during("unload")?;
    holds("the tree is gone", tree::is_gone())?;
    load().during("load")
}

/// Checks that an open directory does not hold the module: the directory empties under its reader.
fn open_directory() -> Outcome {
    tree::needs_debugfs()?;
    let _group = Group::new("u")?;
    let directories = [File::open(at(""))?, File::open(at("u"))?];
    unload().during("unload")?;
    holds("the tree is gone", tree::is_gone())?;
    drop(directories);
    load().during("load")
}

/// Groups disappear with the module. Their members live on, and fork and exit as before.
fn with_groups() -> Outcome {
    let children = [members::idle()?, members::idle()?];
    for (name, child) in ["u1", "u2"].iter().zip(&children) {
        let group = Group::new(name)?;
        group.add(child.0)?;
        write(&group.file("group.cgroup"), format!("/{name}"))?;
        std::mem::forget(group);
    }
    let unloaded = unload().during("unload");
    reap(children.into());
    unloaded?;
    load().during("load")?;
    let is_left = tree::exists("u1") || tree::exists("u2");
    same("groups are left", is_left, false)
}

fn open_driver() -> Outcome {
    let control = rm::open()?;
    let client = rm::alloc_client(&control)?;
    let found = unload().err().map(|error| errno(&error));
    same("unloading", found, Some(libc::EWOULDBLOCK))?;
    rm::free_client(&control, client)?;
    drop(control);
    unload().during("unload")?;
    load().during("load")
}

/// Processes read and write the tree while the module is loaded and unloaded.
fn again() -> Outcome {
    let noise: io::Result<Vec<sys::Child>> = (0..3)
        .map(|number| {
            sys::Child::fork(|| loop {
                let start = Instant::now();
                let _ = read("version");
                let _ = device::read("version");
                let _ = write("control", format!("create noise{number}"));
                let _ = read(&format!("noise{number}/group.procs"));
                let _ = write("control", format!("remove noise{number}"));
                let _ = rm::open();
                // Breaks without users of the module, long enough on slow kernels, too.
                std::thread::sleep(4 * start.elapsed());
            })
        })
        .collect();
    let noise = noise?;
    let unloads = unload_often();
    reap(noise);
    println!(
        "# unloaded {} times under readers",
        unloads.during("unloading")?
    );
    Ok(())
}

/// Unloads and loads a few times; at least once on a slow machine.
fn unload_often() -> io::Result<u32> {
    const OFTEN: u32 = 5;
    let mut unloads = 0;
    let start = Instant::now();
    while unloads < OFTEN && (unloads == 0 || start.elapsed() < PATIENCE) {
        match unload() {
            Ok(()) => {
                unloads += 1;
                load()?;
            }
            Err(error) if errno(&error) != libc::EWOULDBLOCK => return Err(error),
            Err(error) if start.elapsed() > 4 * PATIENCE => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_micros(300)),
        }
    }
    Ok(unloads)
}

/// Processes open files of the tree and the device while the driver's init fails, and use them
/// after the module is gone. Linux frees such a module although its files are open, so none may be
/// opened before init has succeeded.
fn init_that_fails() -> Outcome {
    /// The device exists for a fraction of a millisecond, and not every load is hit.
    const OFTEN: usize = 3;
    // The module is freed within this time. repetitions() tells the debug kernel apart.
    let hold = Duration::from_millis(if tree::repetitions(5) == 5 { 300 } else { 5000 });
    let open: [fn() -> io::Result<File>; 2] =
        [|| device::open(true, true), || File::open(at("version"))];
    let openers: io::Result<Vec<sys::Child>> = open
        .into_iter()
        .cycle()
        .take(6)
        .map(|open| {
            sys::Child::fork(move || loop {
                if let Ok(file) = open() {
                    std::thread::sleep(hold);
                    let _ = device::ask(&file, Operation::Read, "version", 64);
                    let _ = (&file).read(&mut [0; 64]);
                }
            })
        })
        .collect();
    let openers = openers?;
    let path = MODULE.get().ok_or_else(|| failed("no module"))?;
    for _ in 0..OFTEN {
        let found = sys::insmod(path, "").err().map(|error| errno(&error));
        same("loading", found, Some(libc::ENODEV))?;
        std::thread::sleep(hold + Duration::from_millis(100));
    }
    reap(openers);
    holds("the tree is gone", tree::is_gone())
}

fn leaves_nothing() -> Outcome {
    crate::tree::eventually("unload", || unload().is_ok())?;
    holds("the tree is gone", tree::is_gone())?;
    let found = unload().err().map(|error| errno(&error));
    same("unloading again", found, Some(libc::ENOENT))
}
