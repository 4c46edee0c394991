// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Follows a machine's two serial ports: prints and logs their output, counts test results, and
//! detects the kernel's bug reports.

use crate::{ktap, report};
use anyhow::Context;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// Init prints this mark when the script has ended.
const EXIT_MARK: &str = "gct-vm: exit ";

/// After this mark init repeats the kernel's log, up to the exit mark.
const LOG_MARK: &str = "gct-vm: kernel log";

/// Last kernel message of a normal boot. Messages before it are the same in every run; they are
/// logged but not shown.
const BOOTED_MARK: &str = "Run /init as init process";

/// Maximum number of lines of a bug report that are repeated at the end.
const REPORT_LINES: usize = 60;

/// Interval of checks whether a silent machine still runs.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// The port of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The kernel's console.
    Kernel,
    /// The script and its programs.
    Programs,
}

#[derive(Debug)]
struct Line {
    source: Source,
    text: String,
}

/// The result of following the ports.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The script's exit status, if the machine reported it.
    pub(crate) status: Option<i32>,
    /// Test results.
    pub(crate) counts: ktap::Counts,
    /// The first lines of the kernel's bug reports.
    pub(crate) bugs: Vec<String>,
    /// The kernel's messages from the first bug on.
    pub(crate) report: Vec<String>,
    /// Whether the time limit ended the run.
    pub(crate) timed_out: bool,
}

/// The two ports and their log.
#[derive(Debug)]
pub(crate) struct Console {
    lines: Receiver<Line>,
    log: File,
    show_kernel: bool,
    booted: bool,
    in_log: bool,
}

impl Console {
    /// Listens on two sockets, and opens the log.
    pub(crate) fn listen(
        kernel: &Path,
        programs: &Path,
        log: &Path,
        show_kernel: bool,
    ) -> anyhow::Result<Self> {
        let (sender, lines) = channel();
        for (path, source) in [(kernel, Source::Kernel), (programs, Source::Programs)] {
            let listener = UnixListener::bind(path)
                .with_context(|| format!("Cannot listen on {}", path.display()))?;
            let sender = sender.clone();
            thread::spawn(move || read_port(&listener, source, &sender));
        }
        let log = File::create(log).with_context(|| format!("Cannot create {}", log.display()))?;
        Ok(Self {
            lines,
            log,
            show_kernel,
            booted: false,
            in_log: false,
        })
    }

    /// Follows the ports until both are closed, time is over, or the machine died before it opened
    /// them. `is_running` detects the latter.
    pub(crate) fn follow(
        mut self,
        limit: Duration,
        mut is_running: impl FnMut() -> bool,
    ) -> anyhow::Result<Outcome> {
        let end = Instant::now() + limit;
        let mut parser = ktap::Parser::default();
        let mut outcome = Outcome::default();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = match self.lines.recv_timeout(left.min(LOOK_INTERVAL)) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {
                    if is_running() {
                        continue;
                    }
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {
                    outcome.timed_out = true;
                    break;
                }
            };
            match line.source {
                Source::Kernel => {
                    self.booted |= line.text.contains(BOOTED_MARK);
                    self.show("kernel| ", &line.text, self.show_kernel && self.booted)?;
                    outcome.kernel_line(line.text);
                }
                Source::Programs => self.programs_line(&line.text, &mut parser, &mut outcome)?,
            }
        }
        outcome.counts = parser.finish();
        Ok(outcome)
    }

    /// Handles a line of the second port: output of the script, then the kernel's log repeated by
    /// init, then init's exit mark.
    fn programs_line(
        &mut self,
        text: &str,
        parser: &mut ktap::Parser,
        outcome: &mut Outcome,
    ) -> anyhow::Result<()> {
        if let Some((_, status)) = text.split_once(EXIT_MARK) {
            outcome.status = status.parse().ok();
            return Ok(());
        }
        if self.in_log {
            self.show("  kmsg| ", text, false)?;
            outcome.repeated_kernel_line(text);
            return Ok(());
        }
        // The script's last line may lack a newline.
        let text = match text.split_once(LOG_MARK) {
            Some((rest, _)) => {
                self.in_log = true;
                rest
            }
            None => text,
        };
        if !(self.in_log && text.is_empty()) {
            parser.line(text);
            self.show("      | ", text, true)?;
        }
        Ok(())
    }

    fn show(&mut self, prefix: &str, text: &str, on_terminal: bool) -> anyhow::Result<()> {
        writeln!(self.log, "{prefix}{text}")?;
        if on_terminal {
            println!("{prefix}{text}");
        }
        Ok(())
    }
}

impl Outcome {
    /// Counts a bug whose report was lost or truncated on the console, or needs a whole line.
    fn repeated_kernel_line(&mut self, text: &str) {
        let bug = report::is_bug(text) || report::is_failed_assertion(text);
        if bug && !self.bugs.iter().any(|bug| bug == text) {
            self.bugs.push(text.to_owned());
        }
    }

    fn kernel_line(&mut self, text: String) {
        let bug = report::is_bug(&text);
        if (bug || !self.bugs.is_empty()) && self.report.len() < REPORT_LINES {
            self.report.push(text.clone());
        }
        if bug {
            self.bugs.push(text);
        }
    }
}

/// Sends the lines of one port to the channel until the machine closes the port.
fn read_port(listener: &UnixListener, source: Source, lines: &Sender<Line>) {
    let Ok((stream, _)) = listener.accept() else {
        return;
    };
    let mut reader = BufReader::new(stream);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match reader.read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end_matches(['\r', '\n']).to_owned();
        if lines.send(Line { source, text }).is_err() {
            return;
        }
    }
}
