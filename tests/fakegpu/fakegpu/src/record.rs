// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where events go: a file, one line of JSON each, complete lines only.

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
            // One write per line, so that a reader never sees half of one, and the
            // lines of several GPUs do not mix. A full disk must not stop the device.
            let _ = file.write_all(line.as_bytes());
        }
    }
}

/// Records what GPU `gpu` is asked at the end of `file`, or nowhere.
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
