// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares the tree with the table of files that generates it.
//!
//! ```text
//! gctgroup/ version control events        files::of(Place::Root)
//!   gpus/<n>/                             files::of(Place::Gpu)
//!   conform/                              files::of(Place::Group)
//!     <n>/                                files::of(Place::Pool)
//! ```
//!
//! A limit whose feature the GPU announces accepts and shows every value of its form, and refuses
//! other text. All other limits refuse every access, including reads, with EOPNOTSUPP.

use crate::sys::errno;
use crate::tree::{self, at, read, refuses, write, Group};
use gct_core::error::Error;
use gct_core::features::Feature;
use gct_core::iface::files::{self, Entry, Mode, Place};
use gct_core::iface::{parse, show, File};
use gct_ktap::{failed, holds, same, During, Outcome, Stop, Test};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub(crate) const TESTS: &[Test] = &[
    ("conformance.version", version),
    ("conformance.root", root),
    ("conformance.gpus", gpus),
    ("conformance.group", group),
    ("conformance.pools", pools),
    ("conformance.read_equals_write_back", write_back),
    ("conformance.limits_take_what_is_enforced", other_values),
    ("conformance.limits_refuse_bad_syntax", bad_syntax),
    ("conformance.names", names),
    ("conformance.remove_and_create_again", remove_and_create),
];

/// Checks that one directory has exactly the table's files, with the table's modes.
fn check_directory(path: &str, place: Place) -> Outcome {
    let found: BTreeSet<String> = tree::entries(path).during(path)?.1.into_iter().collect();
    let expected: BTreeSet<String> = files::of(place).map(|file| file.name.to_owned()).collect();
    same(&format!("files of {path}"), found, expected)?;
    for entry in files::of(place) {
        check_file(path, entry)?;
    }
    Ok(())
}

fn check_file(directory: &str, entry: &Entry) -> Outcome {
    // `join` omits the slash if there is no directory.
    let path = Path::new(directory).join(entry.name);
    let path = path.display().to_string();
    if !tree::is_by_device() {
        let mode = fs::metadata(at(&path)).during(&path)?.permissions().mode() & 0o7777;
        same(&format!("mode of {path}"), mode, entry.mode.bits().into())?;
    }
    check_access(&path, entry.mode)?;
    if entry.mode != Mode::Write {
        check_reading(&path, entry)?;
    }
    Ok(())
}

/// Checks that a file refuses forbidden accesses itself. Root passes permission bits.
fn check_access(path: &str, mode: Mode) -> Outcome {
    match mode {
        Mode::Read => refuses(path, "1", Error::Access),
        Mode::Write => {
            let found = read(path).err().map_or(0, |error| errno(&error));
            same(&format!("reading {path}"), found, Error::Access.errno())
        }
        Mode::ReadWrite => Ok(()),
    }
}

/// Checks that a file shows its default, or refuses with an error that the table lists.
fn check_reading(path: &str, entry: &Entry) -> Outcome {
    match read(path) {
        Ok(text) => {
            holds(
                &format!("{path} ends with a newline or is empty: {text:?}"),
                text.is_empty() || text.ends_with('\n'),
            )?;
            if entry.default.is_empty() {
                return Ok(());
            }
            same(
                &format!("default of {path}"),
                text.trim_end(),
                entry.default,
            )
        }
        Err(error) => holds(
            &format!("{path} answered {error}, which the table does not list"),
            entry
                .errors
                .iter()
                .any(|listed| listed.errno() == errno(&error)),
        ),
    }
}

fn version() -> Outcome {
    let text = read("version").during("version")?;
    let version = parse::version(text.as_bytes())
        .map_err(|error| failed(format!("{text:?} is {}", error.symbol())))?;
    same("abi", version.abi, gct_core::iface::ABI)
}

fn root() -> Outcome {
    check_directory("", Place::Root)?;
    let others: Vec<String> = tree::directories("")?;
    same("directories of an idle tree", others, vec!["gpus".into()])
}

/// What the driver enforces and counts on a GPU whose TPCs it has not read yet.
const FEATURES: &str = "\
gmem.current
gmem.limit
hmem.current
hmem.limit
compute.timeslice
compute.priority
compute.weight
compute.max
compute.freeze
compute.stat
compute.events
channel.owned
gmem.uvm
gmem.evict
channel.strict
gmem.low
gmem.page_tables
";

/// Checks that `gpus/` lists 0, 1, 2 .. without a gap, in the order of PCI addresses, and shows the
/// driver's data of each.
fn gpus() -> Outcome {
    let count = tree::gpus()?;
    let expected: BTreeSet<String> = (0..count).map(|index| index.to_string()).collect();
    let found: BTreeSet<String> = tree::directories("gpus")?.into_iter().collect();
    same("gpus/", found, expected)?;
    let in_proc = fs::read_dir("/proc/driver/nvidia/gpus")
        .during("/proc/driver/nvidia/gpus")?
        .count();
    same("GPUs of the driver and of the tree", count, in_proc)?;
    let mut before = String::new();
    for index in 0..count {
        check_directory(&format!("gpus/{index}"), Place::Gpu)?;
        let pci = read(&format!("gpus/{index}/pci"))?;
        holds(&format!("{pci:?} comes after {before:?}"), pci > before)?;
        let known = format!("/proc/driver/nvidia/gpus/{}", pci.trim_end());
        holds(&format!("{known} exists"), fs::metadata(&known).is_ok())?;
        same(
            "mode",
            read(&format!("gpus/{index}/mode"))?.as_str(),
            "kernel\n",
        )?;
        same(
            "features",
            read(&format!("gpus/{index}/features"))?.as_str(),
            FEATURES,
        )?;
        before = pci;
    }
    Ok(())
}

fn group() -> Outcome {
    let group = Group::new("conform")?;
    check_directory("conform", Place::Group)?;
    same(
        "directories of a group",
        tree::directories("conform")?.len(),
        tree::gpus()?,
    )?;
    same("members of a new group", group.pids()?, vec![])?;
    group.remove().during("remove")?;
    holds("the directory is gone", !tree::exists("conform"))
}

fn pools() -> Outcome {
    tree::a_gpu()?;
    let _group = Group::new("conform")?;
    for gpu in tree::directories("gpus")? {
        check_directory(&format!("conform/{gpu}"), Place::Pool)?;
    }
    Ok(())
}

/// Calls `check` for every limit of a group on the first GPU.
fn each_limit(check: impl Fn(&str, &Entry) -> Outcome) -> Outcome {
    let gpu = tree::a_gpu()?;
    let group = Group::new("conform")?;
    for entry in files::of(Place::Pool).filter(|entry| entry.mode == Mode::ReadWrite) {
        check(&group.file(&format!("{gpu}/{}", entry.name)), entry)?;
    }
    Ok(())
}

/// Reads a limit. Returns `None` if reading says that its feature is absent.
fn readable(path: &str) -> Result<Option<String>, Stop> {
    match read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if errno(&error) == Error::Unsupported.errno() => Ok(None),
        Err(error) => Err(failed(format!("{path}: {error}"))),
    }
}

fn write_back() -> Outcome {
    each_limit(|path, _| {
        let Some(text) = readable(path)? else {
            return Ok(());
        };
        write(path, &text).during(format!("{path}: write back {text:?}"))?;
        write(path, text.trim_end()).during(format!("{path}: write back without newline"))?;
        same(path, readable(path)?, Some(text))
    })?;
    let group = Group::new("conform")?;
    let path = group.file("group.cgroup");
    let text = read(&path)?;
    write(&path, &text).during(&path)?;
    same(&path, read(&path)?, text)
}

/// Values of many forms. The parser decides which ones a file takes. The test checks that the
/// kernel answers as the same parser does in user space.
const SAMPLES: &[&str] = &[
    "0",
    "1",
    "2",
    "7",
    "8",
    "19",
    "20",
    "50",
    "100",
    "1000",
    "10000",
    "10001",
    "1000000",
    "1000001",
    "max",
    "all",
    "off",
    "default",
    "none",
    "1K",
    "512M",
    "4G",
    "16E",
    "0-3",
    "0-31,40",
    "255",
    "256",
    "2ms",
    "1s",
    "1000 10000",
    "max 10000",
    "20 1000",
    "10 1000",
    "5000 1000",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "1.5",
    "0x10",
    "",
];

/// Checks that an enforced limit accepts and shows what the parser accepts. All others refuse
/// writes and reads.
fn other_values() -> Outcome {
    let features = read(&format!("gpus/{}/features", tree::a_gpu()?))?;
    each_limit(|path, entry| {
        let word = entry.feature.map(Feature::word);
        let enforced = word.is_some_and(|word| features.lines().any(|line| line == word));
        let mut before = readable(path)?;
        same(&format!("{path} is readable"), before.is_some(), enforced)?;
        for sample in SAMPLES {
            match parse::value(entry.format, sample.as_bytes()) {
                Err(error) => refuses(path, sample, error)?,
                Ok(value) => {
                    let mut text = String::new();
                    show::value(&value, &mut text).during("show")?;
                    if enforced {
                        write(path, sample).during(format!("{path}: {sample}"))?;
                        // A write resets a peak to the present charge, whatever the text.
                        if entry.file != File::GmemPeak {
                            before = Some(text);
                        }
                    } else {
                        refuses(path, sample, Error::Unsupported)?;
                    }
                }
            }
            same(path, readable(path)?, before.clone())?;
        }
        Ok(())
    })
}

fn bad_syntax() -> Outcome {
    each_limit(|path, _| {
        let before = readable(path)?;
        for bad in [
            "\n", " ", "8 8 8", "8\n8", "8\0", "\u{e9}", "max max", "maximum", "8,", "8;",
        ] {
            refuses(path, bad, Error::Syntax)?;
        }
        same(path, readable(path)?, before)
    })
}

fn names() -> Outcome {
    let long = "n".repeat(64);
    for good in ["a", "_", "a.b-c_d", "Z9", long.as_str()] {
        Group::new(good)?.remove().during(good)?;
    }
    let too_long = "n".repeat(65);
    for bad in [
        "",
        "1",
        "9a",
        ".",
        "..",
        "-a",
        "a/b",
        "../x",
        "a b",
        "\u{e9}",
        "gpus",
        "control",
        "version",
        "events",
        too_long.as_str(),
    ] {
        refuses("control", format!("create {bad}"), Error::Syntax)?;
    }
    let _group = Group::new("twice")?;
    refuses("control", "create twice", Error::Exists)?;
    refuses("control", "remove never", Error::NotFound)
}

fn remove_and_create() -> Outcome {
    for _ in 0..tree::repetitions(20) {
        Group::new("again")?.remove().during("remove")?;
    }
    holds("nothing is left", !tree::exists("again"))
}
