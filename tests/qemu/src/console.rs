// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Follows a machine's two serial ports: shows and logs what comes, counts test
//! results, and notices when the kernel reports a bug.

use crate::{ktap, report};
use anyhow::Context;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// By this line the machine's init says that the script has ended.
const EXIT_MARK: &str = "gct-vm: exit ";

/// After this line init repeats the kernel's log, up to the exit mark.
const LOG_MARK: &str = "gct-vm: kernel log";

/// The last of the kernel's messages that are the same in every run; up to it
/// they are only logged.
const BOOTED_MARK: &str = "Run /init as init process";

/// Lines of a bug report that are repeated at the end.
const REPORT_LINES: usize = 60;

/// How often to look whether a silent machine still runs.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Which of the ports a line came from.
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

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The script's exit status, if the machine lived to report it.
    pub(crate) status: Option<i32>,
    /// Test results.
    pub(crate) counts: ktap::Counts,
    /// The first lines of the kernel's bug reports.
    pub(crate) bugs: Vec<String>,
    /// The kernel's messages from the first bug on.
    pub(crate) report: Vec<String>,
    /// Whether time ran out first.
    pub(crate) timed_out: bool,
}

/// Both ports, listened to.
#[derive(Debug)]
pub(crate) struct Console {
    lines: Receiver<Line>,
    log: File,
    show_kernel: bool,
    booted: bool,
    in_log: bool,
}

impl Console {
    /// Listens on two sockets and keeps everything in a log as well.
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

    /// Follows the ports until both are closed, the time is over or, as
    /// `is_running` tells, the machine died without opening them.
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

    /// Takes a line of the second port: of the script, then of the kernel's
    /// log that init repeats, then init's last word.
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
        // The script's last line may lack its end.
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
    /// Notes a bug whose report the console has lost or cut.
    fn repeated_kernel_line(&mut self, text: &str) {
        if report::is_bug(text) && !self.bugs.iter().any(|bug| bug == text) {
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

/// Hands on the lines of one port until the machine closes it.
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
