// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Groups with limits, and programs that are their members.
//!
//! A member is a new process: a CUDA context is of no use after a fork, and the driver must know
//! the member before it opens a device.

use gct_ktap::{failed, holds, same, During, Outcome, Stop};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Where debugfs shows the tree of the patched driver. With the stock driver there is gctd's.
const ROOT: &str = "/sys/kernel/debug/gctgroup";
/// How long anything may take, under emulation beside other work, and on the debug kernel.
const PATIENCE: Duration = Duration::from_secs(600);

/// Returns whether the driver is the patched one.
fn patched() -> bool {
    Path::new(ROOT).exists()
}

/// Writes to a file of the tree: in one `write`, or by gctctl.
fn write(directory: &str, name: &str, text: &str) -> Outcome {
    let what = || format!("{directory}/{name} = {text}");
    if !patched() {
        return gctctl(&["set", directory, &format!("{name}={text}")]).map(drop);
    }
    let path = format!("{ROOT}/{directory}/{name}");
    let file = OpenOptions::new().write(true).open(path);
    let written = file.and_then(|mut file| file.write(text.as_bytes()));
    same("written", written.during(what())?, text.len())
}

/// Returns what a file of the tree shows.
pub(crate) fn read(directory: &str, name: &str) -> Result<String, Stop> {
    match patched() {
        true => fs::read_to_string(format!("{ROOT}/{directory}/{name}"))
            .during(format!("{directory}/{name}")),
        false => gctctl(&["get", directory, name]),
    }
}

/// Runs gctctl on gctd's tree. Returns what it prints.
fn gctctl(arguments: &[&str]) -> Result<String, Stop> {
    let mut gctctl = Command::new("gctctl");
    let output = gctctl.arg("--user").args(arguments).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr))),
    }
}

/// Runs a command of the shell. Returns what it prints.
pub(crate) fn run(command: &str) -> Result<String, Stop> {
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", command]).stdin(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, holds: impl Fn() -> Result<bool, Stop>) -> Outcome {
    let start = Instant::now();
    while !holds()? {
        if start.elapsed() > PATIENCE {
            return Err(failed(format!("waited in vain: {what}")));
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Returns the command of a program that goes through the steps that a filter chooses.
pub(crate) fn goes_through(steps: &str) -> String {
    format!("cuda-client all '{steps}'")
}

/// Checks that steps ran, and that all passed.
pub(crate) fn passed(output: String) -> Outcome {
    if output.contains("\nok 1 ") && !output.contains("not ok") {
        return Ok(());
    }
    Err(failed(format!("{output}events:\n{}", read(".", "events")?)))
}

/// A group, removed on drop.
pub(crate) struct Group(&'static str);

impl Group {
    /// Makes a group with these limits of the first GPU.
    pub(crate) fn new(limits: &[(&str, &str)]) -> Result<Self, Stop> {
        Self::named("cuda", limits)
    }

    /// Makes a group of this name with these limits of the first GPU.
    pub(crate) fn named(name: &'static str, limits: &[(&str, &str)]) -> Result<Self, Stop> {
        // The driver learns what limits a GPU can have from the GPU's first client.
        static STARTED: OnceLock<bool> = OnceLock::new();
        let started = STARTED.get_or_init(|| run("nvidia-smi").is_ok());
        holds("nvidia-smi runs", *started)?;
        match patched() {
            true => write(".", "control", &format!("create {name}"))?,
            false => gctctl(&["create", name]).map(drop)?,
        }
        let group = Self(name);
        for (file, value) in limits {
            group.set(file, value)?;
        }
        Ok(group)
    }

    /// Writes a limit of the first GPU.
    pub(crate) fn set(&self, file: &str, value: &str) -> Outcome {
        write(&format!("{}/0", self.0), file, value)
    }

    /// Returns what a file of the first GPU shows.
    pub(crate) fn get(&self, file: &str) -> Result<String, Stop> {
        read(&format!("{}/0", self.0), file)
    }

    /// Returns the number of a key in `compute.stat` and the like.
    pub(crate) fn stat(&self, file: &str, key: &str) -> Result<u64, Stop> {
        let text = self.get(file)?;
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        let value = value.and_then(|value| value.parse().ok());
        value.ok_or_else(|| failed(format!("no {key} in {file}: {text}")))
    }

    /// Returns the group's memory in bytes.
    pub(crate) fn memory(&self) -> Result<u64, Stop> {
        self.get("gmem.current")?.trim().parse().map_err(failed)
    }

    /// Returns the pids of the members.
    pub(crate) fn members(&self) -> Result<Vec<u32>, Stop> {
        let text = read(self.0, "group.procs")?;
        let pids = text.split_whitespace().map(str::parse);
        pids.collect::<Result<_, _>>().map_err(failed)
    }

    /// Returns the command of a shell that joins the group and becomes a program.
    fn joins_and_becomes(&self, program: &str) -> String {
        let name = self.0;
        match patched() {
            true => format!("echo $$ >{ROOT}/{name}/group.procs && exec {program}"),
            // As the patched driver does, it shows the program all SMs.
            false => {
                format!("GCTGROUP_SM_COUNT=all exec gctctl --user run --group {name} -- {program}")
            }
        }
    }

    /// Runs a program as a new member. Returns what it prints.
    pub(crate) fn runs(&self, program: &str) -> Result<String, Stop> {
        run(&self.joins_and_becomes(program))
    }

    /// Runs the steps that a filter chooses in a new member. Returns what it prints.
    pub(crate) fn member(&self, steps: &str) -> Result<String, Stop> {
        self.runs(&goes_through(steps))
    }

    /// Runs steps in a new member. All of them must pass.
    pub(crate) fn passes(&self, steps: &str) -> Outcome {
        passed(self.member(steps)?)
    }

    /// Starts a member that works in rounds (`steps::rounds`), and returns it after the third.
    pub(crate) fn rounds(&self) -> Result<Program, Stop> {
        self.starts("rounds")?.works()
    }

    /// Starts a member that goes through steps, of which some wait for the end of its input.
    pub(crate) fn starts(&self, steps: &str) -> Result<Program, Stop> {
        Program::start(&self.joins_and_becomes(&goes_through(steps)))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let removed = match patched() {
            true => write(".", "control", &format!("remove {}", self.0)),
            false => gctctl(&["rm", self.0]).map(drop),
        };
        if let Err(why) = removed {
            println!("# {} stays: {why:?}", self.0);
        }
    }
}

/// A program whose input ends when it shall, killed on drop.
pub(crate) struct Program {
    child: Child,
    output: String,
}

impl Program {
    /// Starts a command of the shell.
    pub(crate) fn start(command: &str) -> Result<Self, Stop> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let output = format!("/tmp/program-{number}");
        let mut shell = Command::new("sh");
        shell.args(["-c", command]);
        shell.stdin(Stdio::piped()).stdout(File::create(&output)?);
        Ok(Self {
            child: shell.spawn()?,
            output,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn text(&self) -> Result<String, Stop> {
        Ok(fs::read_to_string(&self.output)?)
    }

    /// Returns how often it has printed a text.
    pub(crate) fn count(&self, text: &str) -> Result<usize, Stop> {
        self.text().map(|printed| printed.matches(text).count())
    }

    /// Waits until it has printed a text so often.
    pub(crate) fn has(&self, text: &str, times: usize) -> Outcome {
        let waited = until(text, || {
            let failed_early = self.count("not ok")? > 0;
            Ok(failed_early || self.count(text)? >= times)
        });
        match self.count(text)? >= times {
            true => waited,
            false => Err(failed(self.text()?)),
        }
    }

    /// Returns a program that works in rounds after its third.
    pub(crate) fn works(self) -> Result<Self, Stop> {
        self.has("# round", 3)?;
        Ok(self)
    }

    /// Checks that it makes another round (`steps::rounds`), and passes.
    pub(crate) fn goes_on(self) -> Outcome {
        let before = self.count("# round")?;
        self.has("# round", before + 1)?;
        self.passes()
    }

    /// Ends its input, and checks that it passes.
    pub(crate) fn passes(mut self) -> Outcome {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        passed(self.text()?)?;
        same("its status", status.success(), true)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A program that has ended needs no signal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
