// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints what went wrong: refused allocations, faults, stalls, and what gctgroup could not follow
//! (`events`).

use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use gct_client::{Target, Tree};
use gct_core::iface::File;
use serde_json::{json, Value};

use super::counters::{self, Counters, Key};
use crate::cli::Events;
use crate::outcome::{Failure, Outcome};
use crate::table::Table;

/// The key that is a number of NVIDIA's, and counts nothing.
const XID: &str = "last_xid";

fn read(tree: &Tree) -> Result<Counters, Failure> {
    let pools = [File::GmemEvents, File::ComputeEvents];
    Ok(counters::read(tree, &[File::Events], &pools)?)
}

pub(crate) fn run(tree: &Tree, events: &Events, as_json: bool) -> Outcome {
    let outcome = match events.follow {
        true => follow(tree, events, as_json),
        false => read(tree).map(|counters| once(&counters)),
    };
    outcome.unwrap_or_else(Outcome::failed)
}

/// Lists the events so far.
fn once(counters: &Counters) -> Outcome {
    let mut table = Table::new(&["TARGET", "FILE", "EVENT", "COUNT"]);
    let mut list = Vec::new();
    let occurred = |(key, count): &(&Key, &u64)| **count > 0 && key.2 != XID;
    for ((target, file, key), count) in counters.iter().filter(occurred) {
        table.row([&target.to_string(), *file, key, &count.to_string()]);
        list.push(
            json!({ "target": target.to_string(), "file": file, "event": key, "count": count }),
        );
    }
    Outcome {
        text: match table.is_empty() {
            true => "no events\n".to_owned(),
            false => table.render(),
        },
        json: json!({ "events": list }),
        failures: Vec::new(),
    }
}

/// Prints each change, until nobody reads or the tree goes.
fn follow(tree: &Tree, events: &Events, as_json: bool) -> Result<Outcome, Failure> {
    let mut before = read(tree)?;
    loop {
        thread::sleep(events.interval);
        let now = read(tree)?;
        for event in changes(&before, &now) {
            let line = match as_json {
                true => format!("{}\n", event.json()),
                false => event.text(),
            };
            if !counters::print(&line)? {
                return Ok(Outcome::silent());
            }
        }
        before = now;
    }
}

/// An event that occurred since the last look.
struct Event<'a> {
    target: &'a Target,
    file: &'static str,
    key: &'a str,
    more: u64,
    count: u64,
    xid: Option<u64>,
}

impl Event<'_> {
    fn text(&self) -> String {
        let xid = self.xid.map(|xid| format!(", last Xid {xid}"));
        format!(
            "{} {} {} +{} ({}{})\n",
            self.target,
            self.file,
            self.key,
            self.more,
            self.count,
            xid.unwrap_or_default()
        )
    }

    fn json(&self) -> Value {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        json!({
            "time": since.map_or(0, |since| since.as_secs()),
            "target": self.target.to_string(),
            "file": self.file,
            "event": self.key,
            "more": self.more,
            "count": self.count,
            "last_xid": self.xid,
        })
    }
}

/// Returns what was counted between two looks. A new owner begins at 0.
fn changes<'a>(before: &Counters, now: &'a Counters) -> impl Iterator<Item = Event<'a>> {
    let changed = |(key, count): (&'a Key, &'a u64)| {
        let more = count.saturating_sub(before.get(key).copied().unwrap_or(0));
        let (target, file, name) = key;
        let xid = || now.get(&(target.clone(), *file, XID.to_owned())).copied();
        (more > 0 && name != XID).then(|| Event {
            target,
            file,
            key: name,
            more,
            count: *count,
            xid: (name == "faults").then(xid).flatten(),
        })
    };
    let found: Vec<Event<'a>> = now.iter().filter_map(changed).collect();
    found.into_iter()
}
