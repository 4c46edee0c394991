// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `gctctl selftest` runs gct-load on each GPU, judges what it says, stores the result for gctd,
//! and doctor shows it. A script plays gct-load on a GPU.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use common::Ran;

const GPU: &str = "GPU-00112233-4455-6677-8899-aabbccddeeff";

/// The variables and arguments of a run of the script, with what it prints. `$counters` are those
/// of a library that masks and splits every launch.
const EXACT: &str = r#"
counters() {
	[ -n "$GCTGROUP_STATS" ] || return 0
	split=0
	[ -z "$GCTGROUP_ATOMS$GCTGROUP_ATOM_DURATION" ] || split=300
	printf 'unmanaged 0\nunreadable 0\nlaunches 400\nreplays 40\nrewritten 360\nsplit %s\npassed 0\n' $split >"$GCTGROUP_STATS"
}
case $* in
device*) echo '{"capability":[9,0],"sms":16}' ;;
tpcs*) echo '0-3,9-12' ;;
exact*) counters; echo '{}' ;;
esac
"#;

/// A machine with a GPU, and programs that a script plays.
struct Bed(PathBuf);

impl Bed {
    fn new(test: &str, script: &str) -> Self {
        let name = format!("selftest-{test}-{}", std::process::id());
        let bed = Self(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name));
        let _ = fs::remove_dir_all(&bed.0);
        let gpu = bed.0.join("nvidia/gpus/0000:04:00.0");
        fs::create_dir_all(&gpu).unwrap();
        let information =
            format!("Model: \t\t Simulated\nGPU UUID: \t {GPU}\nDevice Minor: \t 7\n");
        fs::write(gpu.join("information"), information).unwrap();
        let version =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release\n";
        fs::write(bed.0.join("nvidia/version"), version).unwrap();
        fs::write(bed.0.join("libgct_preload.so"), "").unwrap();
        bed.plays(script);
        bed
    }

    /// Replaces the script. What it runs for is in the file `runs`.
    fn plays(&self, script: &str) {
        let program = self.0.join("gct-load");
        let log = r#"echo "$* mask=$GCTGROUP_TPC_MASK tpcs=$GCTGROUP_TPCS gpu=$CUDA_VISIBLE_DEVICES socket=${GCTGROUP_SOCKET-unset} mps=$([ ! -e "${CUDA_MPS_PIPE_DIRECTORY-/}" ] || echo 1) try=$GCTGROUP_TRY_SPLITS atoms=$GCTGROUP_ATOMS$GCTGROUP_ATOM_DURATION" >>"${0%/*}/runs""#;
        let text = self.0.join("script");
        fs::write(&text, format!("#!/bin/sh\n{log}\n{script}\n")).unwrap();
        // A process that another test forks meanwhile has this one's open files. A program that is
        // open for writing cannot be started, so another process writes it.
        let copied = Command::new("install").arg(text).arg(&program).status();
        assert!(copied.unwrap().success());
        let _ = fs::remove_file(self.0.join("runs"));
    }

    fn runs(&self) -> String {
        fs::read_to_string(self.0.join("runs")).unwrap_or_default()
    }

    fn file(&self) -> PathBuf {
        self.0.join(format!("results/{GPU}.580.159.04"))
    }

    fn command(&self, arguments: &[&str]) -> Ran {
        let output = Command::new(env!("CARGO_BIN_EXE_gctctl"))
            .env("GCTGROUP_SELFTEST_DIR", self.0.join("results"))
            .env("GCTGROUP_ATOMS", "99")
            // A folder that is there, as that of an MPS daemon.
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.0)
            .args(arguments)
            .output();
        Ran::new(output.unwrap(), &self.0)
    }

    fn selftest(&self, more: &[&str]) -> Ran {
        let (gpus, library) = (self.0.join("nvidia/gpus"), self.0.join("libgct_preload.so"));
        let (gpus, library) = (gpus.display().to_string(), library.display().to_string());
        let options = ["selftest", "--gpus", &gpus, "--preload", &library];
        self.command(&[&options, more].concat())
    }

    /// Returns masks, atoms and TPCs of the stored result.
    fn result(&self) -> [String; 3] {
        let text = fs::read_to_string(self.file()).unwrap();
        ["masks ", "atoms ", "tpcs "].map(|key| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap().to_owned()
        })
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn an_exact_gpu_is_tested_once() {
    let bed = Bed::new("exact", EXACT);
    let ran = bed.selftest(&[]);
    assert!(ran.exits(0).contains(GPU), "{}{}", ran.stdout, ran.stderr);
    assert_eq!(bed.result(), ["exact", "exact", "0-3,9-12"]);
    let runs = bed.runs();
    let lines: Vec<&str> = runs.lines().collect();
    // The device, the TPCs, two masks, two ways to split. None asks a daemon, is a client of MPS or
    // keeps a variable.
    assert_eq!(lines.len(), 6, "{runs}");
    for line in &lines {
        assert!(line.contains(&format!("gpu={GPU} socket= mps= ")), "{line}");
    }
    assert!(lines[0].ends_with("atoms="), "{runs}");
    assert!(
        lines[1].contains("--bits 128") && lines[1].contains("tpcs=0-127"),
        "{runs}"
    );
    assert!(lines[2].contains("mask=0-3 tpcs=0-3,9-12"), "{runs}");
    assert!(lines[3].contains("mask=9-12"), "{runs}");
    assert!(
        lines[4].ends_with("atoms=8") && lines[5].ends_with("atoms=20us"),
        "{runs}"
    );
    // No other file stays.
    assert_eq!(fs::read_dir(bed.0.join("results")).unwrap().count(), 1);

    bed.plays("exit 9");
    bed.selftest(&[]).exits(0);
    assert_eq!(bed.runs(), "");
    let again = bed.selftest(&["--again"]);
    again.exits(1);
    assert!(
        again.stderr.contains("cannot be tested"),
        "{}",
        again.stderr
    );
    // What was found stays when nothing could be found.
    assert_eq!(bed.result()[0], "exact");
}

/// Plays GPUs that do something wrong. Each result names it.
#[test]
fn what_is_wrong_is_not_exact() {
    for (test, from, to, masks, atoms) in [
        (
            "ignored",
            "tpcs*) echo '0-3,9-12'",
            "tpcs*) echo 'gct-load: a launch kept to TPC 0 used 16 of 16 SMs' >&2; exit 3",
            "failed: a launch kept to TPC 0 used 16 of 16 SMs",
            "failed: masks are not exact",
        ),
        (
            "blocks",
            "exact*)",
            "exact*) case $GCTGROUP_TPC_MASK in 9*) echo 'gct-load: some blocks' >&2; exit 3; esac;",
            "failed: some blocks",
            "failed: masks are not exact",
        ),
        (
            "uncovered",
            "replays 40",
            "replays 20",
            "failed: 380 of 400 launches had a mask, 0 submissions were not seen",
            "failed: masks are not exact",
        ),
        (
            "unseen",
            "unmanaged 0",
            "unmanaged 2",
            "failed: 400 of 400 launches had a mask, 2 submissions were not seen",
            "failed: masks are not exact",
        ),
        ("unsplit", "split=300", "split=3", "exact", "failed: 3 launches were split"),
        (
            "torn",
            "exact*)",
            "exact*) [ -z \"$GCTGROUP_ATOM_DURATION\" ] || { echo 'gct-load: torn' >&2; exit 3; };",
            "exact",
            "failed: torn",
        ),
    ] {
        assert!(EXACT.contains(from), "{test}");
        let bed = Bed::new(test, &EXACT.replace(from, to));
        let ran = bed.selftest(&[]);
        ran.exits(0);
        assert_eq!(bed.result()[..2], [masks, atoms], "{test}");
    }
}

/// Plays runs that could not do their work. None says that masks or atoms are wrong, so nothing is
/// stored, and the next test is a whole one.
#[test]
fn what_could_not_run_is_no_result() {
    const NO_MEMORY: &str = "echo 'gct-load: DriverError(CUDA_ERROR_OUT_OF_MEMORY)' >&2; exit 1";
    for (test, from, to, why) in [
        (
            "tpcs",
            "tpcs*) echo '0-3,9-12'",
            &format!("tpcs*) {NO_MEMORY}"),
            "OUT_OF_MEMORY",
        ),
        (
            "memory",
            "exact*)",
            &format!("exact*) {NO_MEMORY};"),
            "OUT_OF_MEMORY",
        ),
        (
            "atoms-memory",
            "exact*)",
            &format!("exact*) [ -z \"$GCTGROUP_ATOM_DURATION\" ] || {{ {NO_MEMORY}; }};"),
            "OUT_OF_MEMORY",
        ),
        (
            "killed",
            "exact*)",
            &"exact*) kill -9 $$;".to_owned(),
            "cannot be tested",
        ),
        (
            "uncounted",
            "[ -n",
            &"false && [ -n".to_owned(),
            "has counted nothing",
        ),
    ] {
        assert!(EXACT.contains(from), "{test}");
        let bed = Bed::new(test, &EXACT.replace(from, to));
        let ran = bed.selftest(&[]);
        ran.exits(1);
        assert!(
            ran.stderr.contains("cannot be tested") && ran.stderr.contains(why),
            "{}",
            ran.stderr
        );
        assert!(!bed.file().exists(), "{test}");
        bed.plays(EXACT);
        bed.selftest(&[]).exits(0);
        assert_eq!(bed.result()[..2], ["exact", "exact"], "{test}");
    }
}

#[test]
fn a_gpu_of_another_kind_gets_the_bits_of_its_mask() {
    for (capability, bits) in [("[8,0]", "64"), ("[8,9]", "72"), ("[12,0]", "256")] {
        let bed = Bed::new("bits", &EXACT.replace("[9,0]", capability));
        bed.selftest(&[]).exits(0);
        let runs = bed.runs();
        assert!(runs.contains(&format!("--bits {bits} ")), "{runs}");
        let plain = runs.contains("exact --rounds 100 --plain");
        assert_eq!(plain, bits != "256", "{runs}");
    }
    let bed = Bed::new("volta", &EXACT.replace("[9,0]", "[7,0]"));
    assert!(bed.selftest(&[]).stderr.contains("7.0 is not known"));
    assert!(!bed.file().exists());
    let bed = Bed::new("mig", EXACT);
    fs::create_dir_all(bed.0.join("nvidia/capabilities/gpu7/mig/gi3")).unwrap();
    bed.selftest(&[]).exits(5);
    assert_eq!(bed.runs(), "");
}

/// Returns the runs on a chip of a capability that does as the script says, and the result.
fn tried(test: &str, capability: &str, from: &str, to: &str) -> (Vec<String>, [String; 3]) {
    assert!(EXACT.contains(from), "{test}");
    let script = EXACT.replace("[9,0]", capability).replace(from, to);
    let bed = Bed::new(test, &script);
    bed.selftest(&[]).exits(0);
    let runs = bed.runs().lines().map(str::to_owned).collect();
    (runs, bed.result())
}

/// Plays chips on which nobody has measured splits. They are tried by one launch at a time first,
/// and decided by what comes out. Hopper is not tried.
#[test]
fn a_chip_that_nobody_measured_is_tried_by_one_launch_at_a_time() {
    // Without a join nothing is submitted at once.
    for (capability, ways) in [("[8,0]", &["20us"][..]), ("[12,1]", &["8", "20us"])] {
        let (runs, result) = tried("tried", capability, "split=300", "split=300");
        assert_eq!(result, ["exact", "exact", "0-3,9-12"], "{capability}");
        let tried: Vec<&String> = runs.iter().filter(|run| run.contains("try=1")).collect();
        assert_eq!(tried.len(), 1 + ways.len(), "{runs:?}");
        // The first without a mask, after masks were found exact.
        let first = runs.iter().position(|run| run.contains("try=1"));
        assert_eq!(first, Some(4), "{runs:?}");
        let one_by_one = tried[0].contains("--one-by-one") && tried[0].contains("mask= ");
        assert!(one_by_one && tried[0].ends_with("atoms=20us"), "{runs:?}");
        for (run, way) in tried[1..].iter().zip(ways) {
            assert!(run.ends_with(&format!("try=1 atoms={way}")), "{runs:?}");
            assert!(
                run.contains("mask=0-3") && !run.contains("--one-by-one"),
                "{runs:?}"
            );
        }
    }
    let (runs, _) = tried("measured", "[9,0]", "split=300", "split=300");
    assert!(runs.iter().all(|run| run.contains("try= ")), "{runs:?}");
}

/// Plays chips that do something else with a launch in atoms. One launch decides, and masks stay.
#[test]
fn a_chip_that_splits_wrong_keeps_its_masks() {
    for (test, to, atoms) in [
        (
            "repeats",
            "exact*--one-by-one*) echo 'gct-load: some blocks ran twice' >&2; exit 3 ;;\nexact*)",
            "failed: some blocks ran twice",
        ),
        (
            "whole",
            "exact*--one-by-one*) printf 'split 0\\npassed.inline-qmd 2\\npassed.not-measured 40\\n' >$GCTGROUP_STATS ;;\nexact*)",
            "failed: 0 launches were split: 40 were not-measured",
        ),
    ] {
        let (runs, result) = tried(test, "[8,6]", "exact*)", to);
        assert_eq!(result, ["exact", atoms, "0-3,9-12"], "{test}");
        // Nothing else is tried.
        let tried = runs.iter().filter(|run| run.contains("try=1"));
        assert_eq!(tried.count(), 1, "{runs:?}");
    }
}

/// A launch in atoms that never ends is wrong where the same launch ends whole. Where that does not
/// end either, others keep the GPU busy, and nothing is known.
#[test]
fn a_launch_in_atoms_that_never_ends_decides() {
    let hangs = |test, others: &str| {
        let script = EXACT.replace("[9,0]", "[10,0]");
        let one = format!("exact*--one-by-one*) [ -z \"$GCTGROUP_TRY_SPLITS\" ] {others} exec sleep 100 ;;\nexact*)");
        let bed = Bed::new(test, &script.replace("exact*)", &one));
        let ran = bed.selftest(&["--patience", "1"]);
        (bed, ran)
    };
    let (bed, ran) = hangs("hangs", "||");
    ran.exits(0);
    let why = "failed: a launch in atoms did not end, and the same one ends whole";
    assert_eq!(bed.result(), ["exact", why, "0-3,9-12"]);
    let (bed, ran) = hangs("busy", "&& exec sleep 100;");
    ran.exits(1);
    assert!(ran.stderr.contains("cannot be tested"), "{}", ran.stderr);
    assert!(!bed.file().exists());
}

/// A daemon whose GPU has the result, and what doctor says of it.
#[test]
fn doctor_shows_the_result_and_a_damaged_file_is_tested_again() {
    let bed = Bed::new("doctor", EXACT);
    bed.selftest(&[]).exits(0);
    let daemon = gctd::testing::Daemon::new("doctor-selftest", 1);
    let uuid = "GPU-00112233-4455-6677-8899-aabbccddeef0";
    let result = bed.0.join(format!("results/{uuid}.580.159.04"));
    let write = |from: &str, to: &str| {
        let text = fs::read_to_string(bed.file()).unwrap();
        fs::write(&result, text.replace(GPU, uuid).replace(from, to)).unwrap();
    };
    let doctor = || {
        let (system, directory) = (bed.0.join("system"), &daemon.directory);
        fs::create_dir_all(system.join("proc/driver")).unwrap();
        let _ = std::os::unix::fs::symlink(bed.0.join("nvidia"), system.join("proc/driver/nvidia"));
        let (system, directory) = (
            system.display().to_string(),
            directory.display().to_string(),
        );
        bed.command(&["--dir", &directory, "doctor", "--system-root", &system])
            .stdout
    };
    assert!(
        doctor().contains("0: not tested with driver 580.159.04."),
        "{}",
        doctor()
    );
    write("", "");
    assert!(
        doctor().contains("masks: exact; atoms: exact."),
        "{}",
        doctor()
    );
    assert!(
        !doctor().contains("announces something else"),
        "{}",
        doctor()
    );
    // The daemon has started without the result.
    write("masks exact", "masks failed: it ignores them");
    assert!(
        doctor().contains("masks: failed: it ignores them"),
        "{}",
        doctor()
    );
    assert!(
        doctor().contains("announces something else"),
        "{}",
        doctor()
    );
    write("end\n", "");
    assert!(
        doctor().contains("cannot be used: it does not end"),
        "{}",
        doctor()
    );

    fs::write(bed.file(), "junk").unwrap();
    let ran = bed.selftest(&[]);
    ran.exits(0);
    assert!(ran.stderr.contains("checking again"), "{}", ran.stderr);
    assert_eq!(bed.result()[0], "exact");
}
