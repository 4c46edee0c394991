// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Takes clients from their MPS server, so that they can be killed.
//!
//! A client that is killed while the GPU works for it may end the other clients of its server
//! (gctgroup-docs/gctd.md, faults). NVIDIA's command `terminate_client` ends the contexts of one
//! client, and of no other. It takes a pid, so who has that pid is looked at again before each
//! command: the commands go to one control program, each after the answer to the one before.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use rustix::pty::{grantpt, openpt, ptsname, unlockpt, OpenptFlags};
use rustix::termios::{tcgetattr, tcsetattr, OptionalActions};

/// The program that asks a control daemon.
pub const CONTROL: &str = "nvidia-cuda-mps-control";
/// The variable that names a daemon's directory, and what it means where it is not set.
pub const PIPE: (&str, &str) = ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps");
/// A question that every version answers, and that changes nothing. The answer has a point, as no
/// line of another one has: it ends the answer to the command before.
pub const QUESTION: &str = "get_default_active_thread_percentage\n";

/// What a client that was taken from its server is answered with.
const DONE: &str = "0";
/// Most bytes of an answer. Containers can put a daemon of their own in the place of NVIDIA's.
const ANSWER_MAX: usize = 1 << 20;
const POLL: Duration = Duration::from_millis(5);

/// A control daemon, and the program that asks it.
#[derive(Clone, Debug)]
pub struct Control {
    /// `nvidia-cuda-mps-control`.
    pub program: PathBuf,
    /// The daemon's directory.
    pub pipe: PathBuf,
}

/// What became of clients that were to be taken from their server.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// The clients that were.
    pub clients: Vec<u32>,
    /// Why others were not, perhaps.
    pub failures: Vec<String>,
}

impl Control {
    /// Returns whether there is a daemon, or was one.
    pub fn exists(&self) -> bool {
        self.pipe.join("control").exists()
    }

    /// Takes clients from their servers until none is left, or until a time. `is_member` says who
    /// is to be taken; it is asked right before, about a process that lives then.
    pub fn drain(&self, until: Instant, is_member: impl FnMut(u32) -> bool) -> Drained {
        let mut drained = Drained::default();
        let done = Talk::start(self, until).and_then(|mut talk| {
            talk.drain(&mut drained, is_member)?;
            talk.end()
        });
        if let Err(error) = done {
            let (program, pipe) = (self.program.display(), self.pipe.display());
            drained
                .failures
                .push(format!("{program} of {pipe}: {error}"));
        }
        drained
    }
}

/// A control program that runs. Dropping it kills it.
struct Talk {
    child: Child,
    input: Option<ChildStdin>,
    /// The end of a terminal: to a pipe the program writes when it ends, and not before.
    output: File,
    /// What was read and not used.
    rest: Vec<u8>,
    until: Instant,
}

impl Talk {
    fn start(control: &Control, until: Instant) -> io::Result<Self> {
        let (output, theirs) = terminal()?;
        let mut child = Command::new(&control.program)
            .env(PIPE.0, &control.pipe)
            .stdin(Stdio::piped())
            .stdout(theirs.try_clone()?)
            .stderr(theirs)
            .spawn()?;
        Ok(Self {
            input: child.stdin.take(),
            child,
            output: output.into(),
            rest: Vec::new(),
            until,
        })
    }

    fn drain(
        &mut self,
        drained: &mut Drained,
        mut is_member: impl FnMut(u32) -> bool,
    ) -> io::Result<()> {
        // One that was taken may be listed on, and a new process may have its pid.
        let mut taken: HashMap<u32, OwnedFd> = HashMap::new();
        let mut foreign = None;
        loop {
            let mut is_new = false;
            for server in numbers(&self.ask("get_server_list")?) {
                if !has_own_pids(server) {
                    foreign = Some(server);
                    continue;
                }
                for client in numbers(&self.ask(&format!("get_client_list {server}"))?) {
                    if taken
                        .get(&client)
                        .is_some_and(|pidfd| !has_ended(pidfd.as_fd()))
                    {
                        continue;
                    }
                    let Some(pidfd) = open(client) else { continue };
                    if !is_member(client) || has_ended(pidfd.as_fd()) {
                        continue;
                    }
                    let answer = self.ask(&format!("terminate_client {server} {client}"))?;
                    if answer.last().is_some_and(|line| line == DONE) {
                        drained.clients.push(client);
                    } else if !has_ended(pidfd.as_fd()) {
                        let failure = format!("client {client}: {}", answer.join(", "));
                        drained.failures.push(failure);
                    }
                    taken.insert(client, pidfd);
                    is_new = true;
                }
            }
            if !is_new {
                break;
            }
        }
        drained.failures.extend(foreign.map(|server| {
            format!("server {server} is no process here: its clients have other pids, too")
        }));
        Ok(())
    }

    /// Returns the lines of an answer.
    fn ask(&mut self, command: &str) -> io::Result<Vec<String>> {
        let input = self.input.as_mut().ok_or(ErrorKind::BrokenPipe)?;
        let asked = input.write_all(format!("{command}\n{QUESTION}").as_bytes());
        let mut lines = Vec::new();
        let mut bytes = 0;
        loop {
            let line = match self.line() {
                Ok(line) => line,
                // What it says at its end is the reason.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof && !lines.is_empty() => {
                    return Err(io::Error::other(lines.join(", ")));
                }
                Err(error) => return Err(asked.err().unwrap_or(error)),
            };
            if line.contains('.') && line.parse::<f64>().is_ok() {
                return Ok(lines);
            }
            bytes += line.len();
            if bytes > ANSWER_MAX {
                return Err(io::Error::other(format!("{command}: no end of the answer")));
            }
            lines.push(line);
        }
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if self.rest.len() > ANSWER_MAX {
                return Err(ErrorKind::InvalidData.into());
            }
            let left = self.until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut fds = [PollFd::from_borrowed_fd(self.output.as_fd(), PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Err(rustix::io::Errno::INTR) => continue,
                Ok(0) => {
                    let said = "it did not answer in time";
                    return Err(io::Error::new(ErrorKind::TimedOut, said));
                }
                other => other?,
            };
            let mut buffer = [0; 4096];
            match self.output.read(&mut buffer) {
                // EIO: nobody has the other end.
                Ok(0) | Err(_) => {
                    let said = "it has ended";
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, said));
                }
                Ok(read) => self.rest.extend_from_slice(&buffer[..read]),
            }
        }
    }

    /// Lets the program end. Its status says nothing: it is 0 after a command that failed.
    fn end(&mut self) -> io::Result<()> {
        drop(self.input.take());
        while self.child.try_wait()?.is_none() && Instant::now() < self.until {
            thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns both ends of a terminal that changes nothing of what is written to it.
fn terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let own = openpt(flags)?;
    grantpt(&own)?;
    unlockpt(&own)?;
    let name = ptsname(&own, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let theirs = rustix::fs::open(name, flags, Mode::empty())?;
    let mut settings = tcgetattr(&theirs)?;
    settings.make_raw();
    tcsetattr(&theirs, OptionalActions::Now, &settings)?;
    Ok((own, theirs))
}

fn numbers(lines: &[String]) -> Vec<u32> {
    lines.iter().filter_map(|line| line.parse().ok()).collect()
}

/// Returns whether a server and its control daemon name processes as this program does.
fn has_own_pids(server: u32) -> bool {
    let namespaces = |process: &str| {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let pids = status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))?;
        Some(pids.split_ascii_whitespace().count())
    };
    let processes = ["self".to_owned(), server.to_string()];
    processes
        .iter()
        .all(|process| namespaces(process) == Some(1))
}

fn open(pid: u32) -> Option<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Returns whether the process of a pidfd has ended. One that cannot be asked counts as ended.
fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    !matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0))
}
