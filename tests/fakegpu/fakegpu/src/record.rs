// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Appends events to a file, one complete line of JSON each.

use anyhow::Context;
use fakegpu_core::recorder::{Discard, Event, Recorder};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

struct Lines {
    gpu: u8,
    file: Mutex<File>,
}

impl Recorder for Lines {
    fn record(&self, now_ns: u64, event: &Event<'_>) {
        let json = event.to_json(now_ns);
        let fields = json.strip_prefix('{').unwrap_or(&json);
        let line = format!("{{\"gpu\":{},{fields}\n", self.gpu);
        if let Ok(mut file) = self.file.lock() {
            // One write per line: a reader never sees half a line, and the lines of several GPUs do
            // not mix. A full disk must not stop the device.
            let _ = file.write_all(line.as_bytes());
        }
    }
}

/// Opens a recorder that appends GPU `gpu`'s events to `file`, or discards them without a file.
pub(crate) fn open(file: Option<&Path>, gpu: u8) -> anyhow::Result<Arc<dyn Recorder>> {
    Ok(match file {
        Some(path) => {
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .with_context(|| format!("Cannot write {}", path.display()))?;
            Arc::new(Lines {
                gpu,
                file: Mutex::new(file),
            })
        }
        None => Arc::new(Discard),
    })
}
