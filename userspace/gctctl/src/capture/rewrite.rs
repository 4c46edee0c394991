// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rewrites a capture as the submission path would (`capture rewrite`).

use std::fs;

use gct_client::capture::Record;
use gct_core::submit::limits::SLOT_BYTES;
use gct_core::submit::mask::DisabledTpcs;
use gct_core::submit::reason::Reason;
use gct_core::submit::rewrite::{emit, room, Cut, EmitError, Order, Output, Placement};
use gct_core::submit::stats::Counters;
use serde_json::{json, Map, Value};

use super::{load, mask, Scanner, FAILURE, REFUSED};
use crate::cli::Rewrite;
use crate::outcome::{Failure, Outcome};

/// A rewritten entry.
struct Rewritten {
    record: Record,
    slots: u32,
    cuts: Vec<u32>,
    launches: usize,
}

pub(super) fn run(options: &Rewrite) -> Result<Outcome, Failure> {
    let records = load(&options.file)?;
    let mask = mask(&options.mask)?;
    let mut scanner = Scanner::new();
    let mut slot_va = options.qmd_base;
    let mut outcome = Outcome::default();
    let mut entries: Vec<Value> = Vec::new();
    let mut capture = String::new();
    for (at, record) in records.iter().enumerate() {
        let done = rewrite(record, mask.as_ref(), options.atoms, slot_va, &mut scanner)?;
        slot_va += u64::from(done.slots) * SLOT_BYTES;
        capture.push_str(&format!("{}\n", done.record));
        outcome.text.push_str(&format!(
            "entry {at}: {} words became {}, {} launches, {} QMD slots\n",
            record.words.len(),
            done.record.words.len(),
            done.launches,
            done.slots
        ));
        entries.push(json!({
            "words": record.words.len(),
            "words_rewritten": done.record.words.len(),
            "launches": done.launches,
            "slots": done.slots,
            "cuts": done.cuts,
        }));
    }
    let counters = &scanner.counters;
    outcome.text.push_str(&counters_text(counters));
    outcome.json = json!({ "entries": entries, "counters": counters_json(counters) });
    if let Some(path) = &options.out {
        fs::write(path, capture)
            .map_err(|error| Failure::new(FAILURE, format!("{}: {error}.", path.display())))?;
    }
    Ok(outcome)
}

fn rewrite(
    record: &Record,
    mask: Option<&DisabledTpcs>,
    atoms: u32,
    slot_va: u64,
    scanner: &mut Scanner,
) -> Result<Rewritten, Failure> {
    let (_, found) = scanner.scan(record);
    let orders = vec![
        Order {
            mask,
            atoms,
            ..Order::default()
        };
        found.len()
    ];
    let need = room(&record.words, &found, &orders, &Placement::Upload);
    let size = |need: u64| usize::try_from(need).unwrap_or(usize::MAX);
    let mut words = vec![0; size(need.words)];
    let mut cuts = vec![Cut::default(); size(need.cuts)];
    let output = Output {
        words: &mut words,
        slot_va,
        slots: u32::try_from(need.slots).unwrap_or(u32::MAX),
        placement: Placement::Upload,
        cuts: &mut cuts,
        done: None,
    };
    let emitted = emit(
        &record.words,
        &found,
        &orders,
        output,
        &mut scanner.counters,
    )
    .map_err(|error| Failure::new(REFUSED, refusal(error, slot_va)))?;
    words.truncate(size(u64::from(emitted.words)));
    cuts.truncate(size(u64::from(emitted.cuts)));
    Ok(Rewritten {
        record: Record {
            words,
            ..record.clone()
        },
        slots: emitted.slots,
        cuts: cuts.iter().map(|cut| cut.at).collect(),
        launches: found.iter().filter(|found| found.is_launch()).count(),
    })
}

fn refusal(error: EmitError, slot_va: u64) -> String {
    match error {
        EmitError::Room(need) => format!(
            "The output needs {} words and {} QMD slots.",
            need.words, need.slots
        ),
        EmitError::SlotAddress => {
            format!(
                "QMDs cannot be at {slot_va:#x}: it must be a multiple of 256 and end below 2^40."
            )
        }
        EmitError::DoneAddress => "Done words cannot be there.".to_owned(),
    }
}

fn kept(counters: &Counters) -> impl Iterator<Item = (&'static str, u64)> + '_ {
    Reason::ALL
        .iter()
        .map(|reason| (reason.name(), counters.kept(*reason)))
        .filter(|(_, count)| *count > 0)
}

fn counters_text(counters: &Counters) -> String {
    let mut text = format!(
        "{} launches, {} masked, {} split into {} atoms\n",
        counters.sums.launches, counters.sums.rewritten, counters.sums.split, counters.sums.atoms
    );
    for (name, count) in kept(counters) {
        text.push_str(&format!("left as it was, {name}: {count}\n"));
    }
    text
}

fn counters_json(counters: &Counters) -> Value {
    let kept: Map<String, Value> = kept(counters)
        .map(|(name, count)| (name.to_owned(), count.into()))
        .collect();
    json!({
        "launches": counters.sums.launches,
        "masked": counters.sums.rewritten,
        "overrode": counters.overrode,
        "split": counters.sums.split,
        "atoms": counters.sums.atoms,
        "kept": kept,
    })
}
