// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Where events go: a file, one line of JSON each, complete lines only.

use anyhow::Context;
use fakegpu_core::recorder::{Discard, Event, Recorder};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

struct Lines(Mutex<File>);

impl Recorder for Lines {
    fn record(&self, now_ns: u64, event: &Event<'_>) {
        let line = event.to_json(now_ns) + "\n";
        if let Ok(mut file) = self.0.lock() {
            // One write per line, so that a reader never sees half of one. A
            // full disk must not stop the device.
            let _ = file.write_all(line.as_bytes());
        }
    }
}

/// Records into `file`, or nowhere.
pub(crate) fn open(file: Option<&Path>) -> anyhow::Result<Arc<dyn Recorder>> {
    Ok(match file {
        Some(path) => {
            let file =
                File::create(path).with_context(|| format!("Cannot write {}", path.display()))?;
            Arc::new(Lines(Mutex::new(file)))
        }
        None => Arc::new(Discard),
    })
}
