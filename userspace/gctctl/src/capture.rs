// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Decodes, rewrites and checks recorded submissions (`capture`).

mod check;
mod launches;
mod names;
mod rewrite;
mod show;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use gct_client::capture::{self, Record};
use gct_core::iface::parse;
use gct_core::iface::value::Format;
use gct_core::iface::Value;
use gct_core::submit::mask::DisabledTpcs;
use gct_core::submit::stats::Counters;
use gct_core::submit::tracker::{QmdCall, Scan, Tracker};

use crate::cli::{Capture, Mask};
use crate::outcome::{Failure, Outcome};

/// Exit codes of the capture commands.
const FAILURE: u8 = 1;
const REFUSED: u8 = 3;

pub(crate) fn run(capture: &Capture) -> Outcome {
    let done = match capture {
        Capture::Show { file } => show::run(file),
        Capture::Rewrite(rewrite) => rewrite::run(rewrite),
        Capture::Check(check) => check::run(check),
    };
    done.unwrap_or_else(Outcome::failed)
}

fn load(path: &Path) -> Result<Vec<Record>, Failure> {
    let bytes = fs::read(path)
        .map_err(|error| Failure::new(FAILURE, format!("{}: {error}.", path.display())))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Failure::new(REFUSED, format!("{}: It is not text.", path.display())))?;
    capture::parse(&text)
        .map_err(|error| Failure::new(REFUSED, format!("{}: {error}", path.display())))
}

/// Returns the mask that disables all TPCs except those of the list; `None` for `all`.
fn mask(options: &Mask) -> Result<Option<DisabledTpcs>, Failure> {
    let refused = |why: &str| {
        let list = &options.tpc_mask;
        Failure::new(
            REFUSED,
            format!("--tpc-mask {list} of {} bits: {why}.", options.tpcs),
        )
    };
    let value = parse::value(Format::TpcList, options.tpc_mask.as_bytes())
        .map_err(|error| refused(error.meaning()))?;
    let Value::TpcList(Some(list)) = value else {
        return Ok(None);
    };
    let kept = (0..options.tpcs).filter(|tpc| list.has(usize::from(*tpc)));
    if list
        .last()
        .is_none_or(|last| last >= usize::from(options.tpcs))
    {
        return Err(refused("the mask does not have all of these"));
    }
    DisabledTpcs::keep_only(options.tpcs, kept)
        .map(Some)
        .map_err(|_| refused("out of range"))
}

/// Finds the launches of segments. Each channel has its own state.
struct Scanner {
    trackers: BTreeMap<u32, Tracker>,
    counters: Counters,
}

impl Scanner {
    fn new() -> Self {
        Self {
            trackers: BTreeMap::new(),
            counters: Counters::new(),
        }
    }

    fn scan(&mut self, record: &Record) -> (Scan, Vec<QmdCall>) {
        let tracker = self
            .trackers
            .entry(record.channel)
            .or_insert_with(|| Tracker::new(record.class));
        // A call has at least two words, a stored QMD more.
        let mut found = vec![QmdCall::default(); record.words.len() / 2 + 1];
        let scan = tracker.scan(&record.words, &mut found, &mut self.counters);
        found.truncate(scan.found);
        (scan, found)
    }

    fn class_of(&self, channel: u32, subchannel: u8) -> u16 {
        self.trackers
            .get(&channel)
            .map_or(0, |tracker| tracker.class_of(subchannel))
    }
}
