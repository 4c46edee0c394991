// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks the device sizes that programs see under this library, on every path to libcuda and
//! without one. The libcuda needs no GPU (`driver/libcuda.c`).

#![allow(clippy::disallowed_types, reason = "the test is not forked")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

type Answers = BTreeMap<String, i64>;

/// The programs and drivers, compiled once.
struct Bed {
    directory: PathBuf,
}

/// A driver: its directory, and how it is compiled.
const DRIVERS: [(&str, &[&str]); 3] =
    [("new", &[]), ("thunks", &["-DTHUNKS"]), ("old", &["-DOLD"])];

fn bed() -> &'static Bed {
    static BED: OnceLock<Bed> = OnceLock::new();
    BED.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("driver");
        let bed = Bed { directory };
        for (driver, options) in DRIVERS {
            let library = format!("{driver}/libcuda.so.1");
            let shared = ["-shared", "-fPIC", "-Wl,-Bsymbolic,-soname,libcuda.so.1"];
            let shared = [&shared, options].concat();
            bed.compile("libcuda.c", &library, &shared);
        }
        for (library, define) in [("libfirst.so", "-DFIRST"), ("libsecond.so", "-DSECOND")] {
            bed.compile("linked.c", library, &["-shared", "-fPIC", define]);
        }
        bed.compile("program.c", "program", &["-pthread", "-ldl"]);
        let link = [
            "-Lnew",
            "-L.",
            "-lfirst",
            "-lsecond",
            "-l:libcuda.so.1",
            "-ldl",
        ];
        bed.compile(
            "linked.c",
            "linked",
            &[&["-Wl,--no-as-needed"], &link[..]].concat(),
        );
        bed
    })
}

impl Bed {
    fn compile(&self, source: &str, to: &str, options: &[&str]) {
        let to = self.directory.join(to);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/driver")
            .join(source);
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut compile = Command::new(compiler);
        compile.args(["-w", "-O1", "-o"]).arg(&to).arg(source);
        let status = compile.args(options).current_dir(&self.directory).status();
        assert!(status.unwrap().success(), "{to:?}");
    }

    /// Runs a program with one of the drivers. It runs under the library if there are limits.
    fn run(&self, driver: &str, program: &[&str], limits: &[(&str, &str)]) -> Answers {
        let folders = [self.directory.join(driver), self.directory.clone()];
        let mut command = Command::new(self.directory.join(program[0]));
        command
            .args(&program[1..])
            .env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap())
            .env("GCTGROUP_SOCKET", self.directory.join("no daemon"));
        if !limits.is_empty() {
            command
                .env("LD_PRELOAD", library())
                .envs(limits.iter().copied());
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program:?}: {text}{errors}");
        assert_eq!(errors, "", "nothing is said that is not wrong");
        let lines = text.lines().map(|line| line.split_once(' ').unwrap());
        lines
            .map(|(key, value)| (key.into(), value.parse().unwrap()))
            .collect()
    }
}

/// Returns the library under test, which cargo has built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let beside = test.parent().unwrap().join("libgct_preload.so");
    assert!(beside.exists(), "{beside:?}");
    beside
}

/// A mask of 32 TPCs that exist and two that do not.
const HALF: &[(&str, &str)] = &[
    ("GCTGROUP_TPCS", "0-9,12-127"),
    ("GCTGROUP_TPC_MASK", "0-33"),
];
/// The library without limits.
const NONE: &[(&str, &str)] = &[("GCTGROUP_ATOMS", "0")];

fn expect(answers: &Answers, expected: &[(&str, i64)]) {
    let expected = expected.iter().map(|(key, value)| ((*key).into(), *value));
    assert_eq!(*answers, expected.collect());
}

#[test]
fn every_path_to_libcuda_hears_of_the_granted_sms() {
    let native = bed().run("new", &["program", "sizes"], &[]);
    assert_eq!(bed().run("new", &["program", "sizes"], NONE), native);
    for driver in ["new", "thunks"] {
        let answers = bed().run(driver, &["program", "sizes"], HALF);
        expect(
            &answers,
            &[
                ("dlsym", 64),
                ("lookup", 64),
                ("lookup-v1", 64),
                ("lookup-found", 64),
                ("other-attribute", 1039),
                ("no-device", 101),
                ("grid", 128),
                ("block", 1024),
                ("grid-flags", 128),
                ("clusters", 30),
                ("affinity", 64),
                ("blocks-per-sm", 2),
            ],
        );
    }
}

/// Checks that `RTLD_DEEPBIND` does not lead past the library.
#[test]
fn a_libcuda_that_looks_for_its_own_functions_first_calls_the_library() {
    for (limits, library, sms) in [(&[][..], 0, 132), (NONE, 1, 132), (HALF, 1, 64)] {
        let answers = bed().run("new", &["program", "deepbind"], limits);
        let expected = [
            ("found", 1),
            ("library", library),
            ("sms", sms),
            ("absent", 1),
        ];
        expect(&answers, &expected);
    }
}

#[test]
fn a_program_that_is_linked_with_libcuda_hears_the_same() {
    let native = bed().run("new", &["linked"], &[]);
    let mut answers = bed().run("new", &["linked"], HALF);
    for path in ["linked", "default", "next", "self"] {
        assert_eq!(
            (native[path], answers.insert(path.into(), 132)),
            (132, Some(64)),
            "{path}"
        );
    }
    // `RTLD_NEXT` still resolves for the caller, and errors stay the same.
    assert_eq!((native["next-who"], native["managed-error"]), (2, 999));
    assert_eq!(answers, native);
}

#[test]
fn a_cooperative_launch_must_fit_onto_the_granted_sms() {
    let native = bed().run("new", &["program", "launches"], &[]);
    assert_eq!(bed().run("new", &["program", "launches"], NONE), native);
    assert_eq!((native["cooperative"], native["error"]), (264, 720));
    let answers = bed().run("new", &["program", "launches"], HALF);
    let granted = [
        ("cooperative", 128),
        ("cooperative-ptsz", 128),
        ("ex", 128),
        ("ex-ptsz", 128),
        ("node", 128),
    ];
    for (what, blocks) in granted {
        assert_eq!((native[what], answers[what]), (264, blocks), "{what}");
    }
    for what in [
        "error",
        "no-sm-holds-it",
        "ex-plain",
        "launched",
        "variants",
        "node-plain",
    ] {
        assert_eq!(answers[what], native[what], "{what}");
    }
}

#[test]
fn a_driver_before_cuda_12_is_understood() {
    let answers = bed().run("old", &["program", "launches"], HALF);
    assert_eq!(
        (answers["cooperative"], answers["cooperative-ptsz"]),
        (128, 128)
    );
    assert!(
        !answers.contains_key("ex"),
        "what the driver lacks, the program lacks"
    );
}

#[test]
fn a_program_may_ask_for_all_sms_and_gains_nothing() {
    let limits = [HALF, &[("GCTGROUP_SM_COUNT", "all")]].concat();
    let sizes = bed().run("new", &["program", "sizes"], &limits);
    assert_eq!(sizes, bed().run("new", &["program", "sizes"], &[]));
    let launches = bed().run("new", &["program", "launches"], &limits);
    assert_eq!(launches["cooperative"], 128);
}

#[test]
fn what_is_no_number_of_sms_stops_the_program() {
    let folder = bed().directory.join("new");
    let mut program = Command::new(bed().directory.join("program"));
    program.arg("sizes").env("LD_LIBRARY_PATH", folder);
    program
        .env("LD_PRELOAD", library())
        .env("GCTGROUP_SM_COUNT", "12");
    let output = program.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{errors}");
    let line = "gctgroup: GCTGROUP_SM_COUNT: '12' is not all or granted: the program is stopped";
    assert!(errors.starts_with(line), "{errors}");
}

#[test]
fn threads_that_ask_at_once_hear_the_same() {
    for _ in 0..20 {
        let answers = bed().run("new", &["program", "threads"], HALF);
        expect(&answers, &[("min", 64), ("max", 64)]);
    }
}

/// Each variant of a function is called with its own arguments, also one that is not known here.
/// A thread that waits can be cancelled.
#[test]
fn waits_are_those_of_libcuda() {
    let native = bed().run("new", &["program", "waits"], &[]);
    let mut answers = bed().run("new", &["program", "waits"], HALF);
    assert_eq!(answers.insert("ours".into(), 0), Some(11));
    assert_eq!(answers, native);
    let expected = [
        ("v1", 1),
        ("v2", 2),
        ("v3", 7),
        ("ours", 0),
        ("cancelled", 1),
    ];
    expect(&native, &expected);
}

#[test]
fn a_program_without_libcuda_sees_none() {
    let native = bed().run("new", &["program", "none"], &[]);
    expect(
        &native,
        &[
            ("found", 0),
            ("error", 1),
            ("self", 0),
            ("self-error", 1),
            ("libcuda", 0),
        ],
    );
    assert_eq!(bed().run("new", &["program", "none"], HALF), native);
}
