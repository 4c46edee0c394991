// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs one machine, from its parts to the verdict.

use crate::console::{Console, Outcome};
use crate::gpus::{last_lines, Gpus};
use crate::initramfs::{self, GuestFile};
use crate::machine::{Machine, Serial};
use crate::paths::{self, BuildTree};
use anyhow::Context;
use clap::{Args, ValueEnum};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::time::{Duration, Instant};

/// Time limit for QEMU to exit after the machine powered off.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kernel {
    /// Built by gcc, boots in a second.
    Lean,
    /// With lockdep, KASAN and kmemleak.
    Debug,
    /// As lean, with what container runtimes and a kubelet need.
    Node,
    /// As lean, with lockdown.
    Lockdown,
}

impl Kernel {
    fn name(self) -> &'static str {
        match self {
            Self::Lean => "lean",
            Self::Debug => "debug",
            Self::Node => "node",
            Self::Lockdown => "lockdown",
        }
    }

    /// Returns the memory of the machine. Shadow memory and kmemleak's records need their share.
    fn default_memory_mib(self) -> u32 {
        match self {
            Self::Lean | Self::Lockdown => 1024,
            Self::Debug => 1536,
            Self::Node => 3072,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Kernel to boot.
    #[arg(long, value_enum, default_value = "lean")]
    kernel: Kernel,

    /// Version of NVIDIA's modules to put into /modules; none without it.
    #[arg(long, value_name = "VERSION")]
    nv: Option<String>,

    /// Which build of the modules.
    #[arg(long, value_name = "NAME", default_value = "patched")]
    variant: String,

    /// Number of GPUs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    gpus: u8,

    /// Files to put into the machine: HOST, which goes into /test, or HOST:GUEST.
    #[arg(long = "file", alias = "files", value_name = "FILE", num_args = 1.., value_parser = GuestFile::parse)]
    files: Vec<GuestFile>,

    /// Shell script to run in the machine.
    #[arg(long, value_name = "FILE", required_unless_present = "interactive")]
    script: Option<PathBuf>,

    /// After the script give a shell on the terminal.
    #[arg(long, conflicts_with = "ktap")]
    interactive: bool,

    /// The script's output is KTAP. Fail if it has no results.
    #[arg(long)]
    ktap: bool,

    /// Seconds until the machine is stopped.
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    timeout: u64,

    /// Guest memory in MiB.
    #[arg(long, value_name = "MIB")]
    memory: Option<u32>,

    /// Number of virtual processors.
    #[arg(long, value_name = "N", default_value_t = 2)]
    cpus: u8,

    /// Give the machine a network, in which 10.0.2.2 is the loopback of this process's. The kernel
    /// node alone has its driver.
    #[arg(long)]
    network: bool,

    /// Further parameters for the kernel's command line.
    #[arg(long, value_name = "WORDS", default_value = "")]
    append: String,

    /// Do not show the kernel's messages unless it reports a bug.
    #[arg(long)]
    quiet: bool,

    /// Append "PASSED FAILED" to this file.
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,

    /// Keep the console's log in this file.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Record what the driver does to the GPUs in this file, one line of JSON each.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// One more argument for every software GPU, as --gpu-arg=--refuse=...
    #[arg(long = "gpu-arg", value_name = "ARGUMENT", allow_hyphen_values = true)]
    gpu_arguments: Vec<String>,

    /// Build directory of the clone.
    #[arg(long, value_name = "DIR")]
    build: Option<PathBuf>,

    /// The software GPU to run.
    #[arg(long, value_name = "FILE")]
    fakegpu: Option<PathBuf>,
}

/// The verdict on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    TimedOut,
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Passed => Self::SUCCESS,
            Verdict::Failed => Self::from(1),
            Verdict::TimedOut => Self::from(3),
        }
    }
}

/// A directory for sockets and the initramfs, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        // A socket's path may have at most 107 bytes, so it cannot lie below the clone. A process
        // of another pid namespace may have the same number.
        let mut other = 0;
        loop {
            let name = format!("gct-vm.{}.{other}", process::id());
            let path = std::env::temp_dir().join(name);
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => other += 1,
                Err(error) => {
                    return Err(error).with_context(|| format!("Cannot create {}", path.display()));
                }
            }
        }
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover stays in the temporary directory.
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Runs a machine and judges it.
pub(crate) fn run(options: &Options) -> anyhow::Result<Verdict> {
    let build = BuildTree::find(options.build.as_deref())?;
    let (qemu, kernel) = (build.qemu()?, build.kernel(options.kernel.name())?);
    let scratch = Scratch::new()?;
    let initramfs = scratch.join("initramfs.cpio");
    initramfs::write(&initramfs, &guest_files(options, &build)?)?;
    let gpus = if options.gpus == 0 {
        Gpus::default()
    } else {
        let program = match &options.fakegpu {
            Some(program) => program.clone(),
            None => paths::default_fakegpu()?,
        };
        let record = new_record(options)?;
        Gpus::start(
            &program,
            options.gpus,
            &scratch.0,
            record,
            &options.gpu_arguments,
        )?
    };
    let messages = scratch.join("qemu.log");
    let mut machine = Machine {
        messages: &messages,
        qemu: &qemu,
        kernel: &kernel,
        initramfs: &initramfs,
        memory_mib: options
            .memory
            .unwrap_or_else(|| options.kernel.default_memory_mib()),
        processors: options.cpus,
        append: &options.append,
        network: options.network,
        gpus: gpus.sockets().collect(),
        serial: Serial::Terminal,
    };
    if options.interactive {
        let status = machine.start()?.wait_for(Duration::MAX)?;
        return Ok(match status {
            Some(status) if status.success() => Verdict::Passed,
            _ => Verdict::Failed,
        });
    }

    let (kernel_port, programs_port) = (scratch.join("kernel.sock"), scratch.join("programs.sock"));
    let log = match &options.log {
        Some(log) => log.clone(),
        None => scratch.join("console.log"),
    };
    let console = Console::listen(&kernel_port, &programs_port, &log, !options.quiet)?;
    machine.serial = Serial::Sockets {
        kernel: kernel_port,
        programs: programs_port,
    };
    let start = Instant::now();
    let mut qemu = machine.start()?;
    let outcome = console.follow(Duration::from_secs(options.timeout), || {
        matches!(qemu.wait_for(Duration::ZERO), Ok(None))
    })?;
    let limit = if outcome.timed_out {
        Duration::ZERO
    } else {
        POWER_OFF_LIMIT
    };
    let ended = qemu.wait_for(limit)?;
    if ended.is_none() {
        qemu.kill();
    }
    let problems = problems(options, &outcome, gpus.stop());
    if outcome.status.is_none() {
        let ended = ended.map_or("was killed here".into(), |status| status.to_string());
        println!("gct-vm: QEMU: {ended}");
        let said = fs::read_to_string(&messages).unwrap_or_default();
        for line in said.lines() {
            println!("gct-vm: QEMU said: {line}");
        }
        for line in last_lines(&log) {
            println!("gct-vm: log: {line}");
        }
    }
    conclude(options, &outcome, &problems, start.elapsed())
}

/// Returns the file for records, after deleting the one of an earlier run.
fn new_record(options: &Options) -> anyhow::Result<Option<&Path>> {
    if let Some(path) = &options.record {
        File::create(path).with_context(|| format!("Cannot create {}", path.display()))?;
    }
    Ok(options.record.as_deref())
}

/// Lists the script, the modules and the caller's files.
fn guest_files(options: &Options, build: &BuildTree) -> anyhow::Result<Vec<GuestFile>> {
    let (config, place) = build.kernel_config(options.kernel.name())?;
    let mut files = vec![GuestFile::new(config, place)];
    files.extend_from_slice(&options.files);
    if let Some(script) = &options.script {
        files.push(GuestFile::new(script, "/test/script"));
    }
    if let Some(version) = &options.nv {
        for name in ["nvidia.ko", "nvidia-uvm.ko"] {
            let module = build.module(version, options.kernel.name(), &options.variant, name)?;
            files.push(GuestFile::new(module, format!("/modules/{name}")));
        }
    }
    Ok(files)
}

/// Describes every problem other than a failed test.
fn problems(options: &Options, outcome: &Outcome, gpu_problems: Vec<String>) -> Vec<String> {
    let mut problems = gpu_problems;
    problems.extend(outcome.bugs.iter().map(|bug| format!("the kernel: {bug}")));
    let counts = &outcome.counts;
    match outcome.status {
        _ if outcome.timed_out => {
            problems.push(format!("stopped after {} seconds", options.timeout));
        }
        None => problems.push("the machine stopped before the script ended".into()),
        // A program that prints "not ok" also exits with a failure. Report it once.
        Some(status) if status != 0 && counts.failed == 0 => {
            problems.push(format!("the script ended with status {status}"));
        }
        Some(_) if options.ktap && counts.passed + counts.failed + counts.skipped == 0 => {
            problems.push("the script reported no test result".into());
        }
        Some(_) => {}
    }
    problems
}

/// Prints the result, and appends the counts to the results file.
fn conclude(
    options: &Options,
    outcome: &Outcome,
    problems: &[String],
    duration: Duration,
) -> anyhow::Result<Verdict> {
    if !outcome.report.is_empty() && options.quiet {
        for line in &outcome.report {
            println!("kernel| {line}");
        }
    }
    for problem in problems {
        println!("gct-vm: {problem}");
    }
    let counts = &outcome.counts;
    let failed = counts.failed + u32::try_from(problems.len()).unwrap_or(u32::MAX);
    // A script without KTAP counts as one test.
    let passed = counts.passed + u32::from(!options.ktap && counts.passed == 0 && failed == 0);
    println!(
        "gct-vm: {passed} passed, {failed} failed, {} skipped in {:.1} s ({} kernel, {})",
        counts.skipped,
        duration.as_secs_f32(),
        options.kernel.name(),
        options.nv.as_deref().map_or_else(
            || "no driver".to_owned(),
            |version| format!("driver {version} {}", options.variant)
        ),
    );
    if let Some(results) = &options.results {
        append(results, &format!("{passed} {failed}\n"))?;
    }
    Ok(match failed {
        0 => Verdict::Passed,
        _ if outcome.timed_out => Verdict::TimedOut,
        _ => Verdict::Failed,
    })
}

fn append(path: &Path, text: &str) -> anyhow::Result<()> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("Cannot write to {}", path.display()))
}
