// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs `gct-load` on a GPU under the library.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gctd_ipc::selftest::create_directory;

use crate::outcome::Failure;

const PROGRAM: &str = "gct-load";

/// Exit code of `gct-load` for work that the GPU did wrong. With any other it could not work.
const WRONG: i32 = 3;

/// The most bytes of a reason.
const REASON_MAX: usize = 300;

/// Why a run did not end well.
#[derive(Debug)]
pub(super) enum Failed {
    /// The GPU did the work wrong.
    Wrong(String),
    /// The work could not be done. That says nothing about masks and atoms: a GPU that others use
    /// may have no memory.
    NotDone(String),
    /// The work did not end in time. That says nothing either where others use the GPU.
    Late(String),
}

/// The programs of the test.
pub(super) struct Kit {
    library: PathBuf,
    program: PathBuf,
    /// The file for the library's counters.
    counters: PathBuf,
    /// Time after which a launch counts as one that never ends.
    patience: Duration,
}

/// The programs on a GPU.
pub(super) struct OnGpu<'a> {
    kit: &'a Kit,
    uuid: &'a str,
}

impl Kit {
    /// Finds `gct-load` beside the library. The counters are written into a directory of this user.
    pub(super) fn new(
        library: &Path,
        directory: &Path,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let program = library.with_file_name(PROGRAM);
        if !program.exists() {
            let message = format!(
                "There is no {}: name the library beside it with --preload.",
                program.display()
            );
            return Err(Failure::new(1, message));
        }
        create_directory(directory).map_err(|error| {
            Failure::new(
                7,
                format!("{} cannot be made: {error}.", directory.display()),
            )
        })?;
        Ok(Self {
            library: library.to_owned(),
            program,
            counters: directory.join(format!(".counters-{}", std::process::id())),
            patience,
        })
    }

    /// Returns the programs on a GPU.
    pub(super) fn on<'a>(&'a self, uuid: &'a str) -> OnGpu<'a> {
        OnGpu { kit: self, uuid }
    }
}

impl OnGpu<'_> {
    /// Runs a workload with variables of the library. Returns its line.
    ///
    /// # Errors
    ///
    /// Says whether the workload was done wrong, or was not done.
    pub(super) fn run(
        &self,
        variables: &[(&str, &str)],
        arguments: &str,
    ) -> Result<String, Failed> {
        let mut command = Command::new(&self.kit.program);
        let ours = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("GCTGROUP_");
        for (name, _) in std::env::vars_os().filter(|(name, _)| ours(name)) {
            command.env_remove(name);
        }
        command
            .args(arguments.split_whitespace())
            .env("LD_PRELOAD", &self.kit.library)
            .env("CUDA_VISIBLE_DEVICES", self.uuid)
            // Under MPS a program's SMs are numbered by its mask, so no client of it can tell TPCs
            // apart. Nothing is there, so the program is none.
            .env(
                "CUDA_MPS_PIPE_DIRECTORY",
                self.kit.counters.with_extension("no-mps"),
            )
            // No daemon: the limits are those of the environment.
            .env(gctd_ipc::paths::SOCKET_VARIABLE, "")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn();
        let child = child.map_err(|error| {
            let why = format!("{PROGRAM} cannot be started: {error}");
            Failed::NotDone(why)
        })?;
        wait(child, self.kit.patience)
    }

    /// Runs a workload as [`run`](Self::run) does. Returns the library's counters.
    pub(super) fn counters(
        &self,
        variables: &[(&str, &str)],
        arguments: &str,
    ) -> Result<BTreeMap<String, u64>, Failed> {
        let path = self.kit.counters.display().to_string();
        let ran = self.run(
            &[variables, &[("GCTGROUP_STATS", path.as_str())]].concat(),
            arguments,
        );
        let text = fs::read_to_string(&path);
        // It may not exist.
        let _ = fs::remove_file(&path);
        ran?;
        let text =
            text.map_err(|_| Failed::NotDone("the library has counted nothing".to_owned()))?;
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let counter = |(key, value): (&str, &str)| Some((key.to_owned(), value.parse().ok()?));
        Ok(lines.filter_map(counter).collect())
    }
}

/// Waits until a child ends. Returns its first line, or why it failed. Kills a child that does not
/// end, which also ends its work on the GPU.
fn wait(mut child: Child, patience: Duration) -> Result<String, Failed> {
    let since = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if since.elapsed() < patience => sleep(Duration::from_millis(10)),
            Ok(None) => {
                // Fails only if it has just ended.
                let _ = child.kill();
                let _ = child.wait();
                let why = format!("a launch did not end in {} s", patience.as_secs());
                return Err(Failed::Late(why));
            }
            Err(error) => return Err(Failed::NotDone(error.to_string())),
        }
    };
    match status.success() {
        true => Ok(first_bytes(child.stdout)),
        false => {
            let said = first_bytes(child.stderr);
            let last = said.lines().last().unwrap_or_default().trim();
            let last = last.strip_prefix(PROGRAM).unwrap_or(last);
            let last: String = last
                .trim_start_matches(": ")
                .chars()
                .take(REASON_MAX)
                .collect();
            let why = match last.is_empty() {
                true => format!("{PROGRAM} ended with {status}"),
                false => last,
            };
            match status.code() == Some(WRONG) {
                true => Err(Failed::Wrong(why)),
                false => Err(Failed::NotDone(why)),
            }
        }
    }
}

/// Reads what a child that has ended has left in a pipe.
fn first_bytes(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    // What was read before an error counts.
    let _ = pipe.map(|pipe| pipe.take(64 << 10).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).trim().to_owned()
}
