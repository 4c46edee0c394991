// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Logs one line per event, with the seconds since the start and the GPU's number.

use anyhow::Context;
use log::{LevelFilter, Log, Metadata, Record};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

struct Logger {
    start: Instant,
    slot_id: u8,
    out: Mutex<Box<dyn Write + Send>>,
}

/// Sends all logs to `file`, or to standard error.
pub(crate) fn install(slot_id: u8, file: Option<&Path>) -> anyhow::Result<()> {
    let out: Box<dyn Write + Send> = match file {
        Some(path) => Box::new(
            File::create(path).with_context(|| format!("Cannot write {}", path.display()))?,
        ),
        None => Box::new(std::io::stderr()),
    };
    log::set_boxed_logger(Box::new(Logger {
        start: Instant::now(),
        slot_id,
        out: Mutex::new(out),
    }))?;
    log::set_max_level(LevelFilter::Info);
    Ok(())
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= LevelFilter::Info
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let Ok(mut out) = self.out.lock() else {
            return;
        };
        let seconds = self.start.elapsed().as_millis();
        // A failure to write the log must not stop the device.
        let _ = writeln!(
            out,
            "[{}.{:03}] gpu{} {}: {}",
            seconds / 1000,
            seconds % 1000,
            self.slot_id,
            record.level().as_str().to_ascii_lowercase(),
            record.args()
        );
    }

    fn flush(&self) {
        if let Ok(mut out) = self.out.lock() {
            // As above.
            let _ = out.flush();
        }
    }
}
