// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints what the daemon does on standard error, for people, for journald or for collectors of
//! JSON.
//!
//! A line is one event whatever a client wrote: texts of clients are printed as Rust's literals,
//! or as JSON's. A thread prints them, so that the daemon waits for no reader: what does not fit
//! in [`LINES_MAX`] lines is dropped.

use std::env;
use std::fmt;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{sync_channel, SyncSender};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

/// Most lines that wait for the thread.
const LINES_MAX: usize = 1024;
/// How often, and how many times, the end of the daemon looks whether all are printed.
const LOOK_EVERY: Duration = Duration::from_millis(10);
const LOOKS_MAX: u32 = 100;

/// Lines that are not printed yet.
static WAITING: AtomicUsize = AtomicUsize::new(0);
static QUEUE: OnceLock<SyncSender<Vec<u8>>> = OnceLock::new();

/// How an event becomes a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// `gctd: a message field=value`
    Text,
    /// The same behind the priority that journald takes from a line, such as `<6>`
    Journal,
    /// An object, with the time in UTC
    Json,
}

impl Format {
    /// Returns the format for where standard error leads.
    fn of_stderr() -> Self {
        match env::var_os("JOURNAL_STREAM") {
            Some(_) => Self::Journal,
            None => Self::Text,
        }
    }
}

/// Which events are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Verbosity {
    /// What ends the daemon
    Error,
    /// And what it could not do, and writes that it refused administrators
    Warn,
    /// And each write of the tree, with who wrote it
    Info,
    /// And programs that come and go, which they decide themselves
    Debug,
}

/// Prints events from now on. Signals that the caller has blocked do not reach the thread.
pub(crate) fn start(format: Option<Format>, verbosity: Verbosity) {
    let level = match verbosity {
        Verbosity::Error => Level::ERROR,
        Verbosity::Warn => Level::WARN,
        Verbosity::Info => Level::INFO,
        Verbosity::Debug => Level::DEBUG,
    };
    let (queue, lines) = sync_channel::<Vec<u8>>(LINES_MAX);
    // It is started once.
    let _ = QUEUE.set(queue);
    thread::spawn(move || {
        for line in lines {
            // Nobody can be told that standard error is closed.
            let _ = io::stderr().write_all(&line);
            WAITING.fetch_sub(1, Ordering::Relaxed);
        }
    });
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(Queue);
    let format = format.unwrap_or_else(Format::of_stderr);
    match format {
        Format::Json => subscriber.json().flatten_event(true).init(),
        Format::Text | Format::Journal => subscriber
            .event_format(Line {
                has_priority: format == Format::Journal,
            })
            .init(),
    }
}

/// Waits until all is printed, for a second at most.
pub(crate) fn finish() {
    for _ in 0..LOOKS_MAX {
        if WAITING.load(Ordering::Relaxed) == 0 {
            return;
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Passes lines to the thread.
struct Queue;

impl MakeWriter<'_> for Queue {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        Self
    }
}

impl io::Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(queue) = QUEUE.get() {
            WAITING.fetch_add(1, Ordering::Relaxed);
            if queue.try_send(line.to_vec()).is_err() {
                WAITING.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prints an event as one line of text.
struct Line {
    has_priority: bool,
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        if self.has_priority {
            write!(writer, "<{}>", priority(level))?;
        }
        write!(writer, "gctd: ")?;
        context
            .field_format()
            .format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Returns the number of syslog for a level.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}
