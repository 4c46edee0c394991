// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints every entry, method and launch of a capture by name (`capture show`).

use std::collections::BTreeMap;
use std::path::Path;

use gct_client::capture::Record;
use gct_core::submit::method::{Burst, Opcode, PartialBurst, Refused, Walk};
use serde_json::{json, Value};

use super::{launches, load, names, Scanner};
use crate::outcome::{Failure, Outcome};

/// Most words of an upload in the text. JSON has all of them.
const UPLOAD_WORDS_SHOWN: usize = 8;

pub(super) fn run(file: &Path) -> Result<Outcome, Failure> {
    let records = load(file)?;
    let mut scanner = Scanner::new();
    let mut unfinished = BTreeMap::new();
    let mut outcome = Outcome::default();
    let mut entries: Vec<Value> = Vec::new();
    for (at, record) in records.iter().enumerate() {
        let (_, found) = scanner.scan(record);
        let partial = unfinished.get(&record.channel).copied().flatten();
        let (bursts, partial, refused) = bursts(&record.words, partial);
        unfinished.insert(record.channel, partial);
        let name = |subchannel, method| {
            let class = scanner.class_of(record.channel, subchannel);
            names::method(class, subchannel, method)
        };
        outcome.text.push_str(&headline(at, record));
        let methods: Vec<Method> = bursts
            .iter()
            .flat_map(|burst| methods(burst, &record.words, &name))
            .collect();
        methods
            .iter()
            .for_each(|method| outcome.text.push_str(&method.text()));
        if let Some(refused) = refused {
            let Refused { at, header, reason } = refused;
            let line = format!(
                "  {at:5}  header {header:#010x} is not understood: {}\n",
                reason.name()
            );
            outcome.text.push_str(&line);
        }
        for launch in &found {
            outcome
                .text
                .push_str(&launches::text(launch, &record.words));
        }
        entries.push(json!({
            "channel": record.channel,
            "class": format!("{:#x}", record.class),
            "tsg_engine": record.tsg_engine,
            "token": format!("{:#x}", record.token),
            "gpu_va": format!("{:#x}", record.gpu_va),
            "words": record.words.len(),
            "methods": methods.iter().map(Method::json).collect::<Vec<_>>(),
            "refused": refused.map(|refused| json!({
                "at": refused.at,
                "header": format!("{:#010x}", refused.header),
                "reason": refused.reason.name(),
            })),
            "launches": found.iter().map(|found| launches::json(found, &record.words)).collect::<Vec<_>>(),
        }));
    }
    outcome.json = json!({ "entries": entries });
    Ok(outcome)
}

fn headline(at: usize, record: &Record) -> String {
    format!(
        "entry {at}: channel {} class {:x} engine {} token {:#x}, {} words at {:#x}\n",
        record.channel,
        record.class,
        record.tsg_engine,
        record.token,
        record.words.len(),
        record.gpu_va
    )
}

fn bursts(
    words: &[u32],
    partial: Option<PartialBurst>,
) -> (Vec<Burst>, Option<PartialBurst>, Option<Refused>) {
    let mut walk = Walk::resume(words, partial);
    let mut bursts = Vec::new();
    let mut refused = None;
    for burst in walk.by_ref() {
        match burst {
            Ok(burst) => bursts.push(burst),
            Err(error) => refused = Some(error),
        }
    }
    (bursts, walk.partial(), refused)
}

/// A method with all words that were sent to it.
struct Method {
    at: u32,
    subchannel: u8,
    offset: u16,
    name: Option<&'static str>,
    data: Vec<u32>,
}

fn methods(
    burst: &Burst,
    words: &[u32],
    name: &impl Fn(u8, u16) -> Option<&'static str>,
) -> Vec<Method> {
    let method = |at, offset, data| Method {
        at,
        subchannel: burst.subchannel,
        offset,
        name: name(burst.subchannel, offset),
        data,
    };
    if burst.opcode == Opcode::Immediate {
        return vec![method(burst.at, burst.method, vec![burst.immediate.into()])];
    }
    let mut methods: Vec<Method> = Vec::new();
    for index in 0..burst.count {
        let at = burst.data + index;
        let word = usize::try_from(at)
            .ok()
            .and_then(|at| words.get(at))
            .copied();
        let offset = burst.method_of(index);
        match methods.last_mut() {
            Some(last) if last.offset == offset => last.data.extend(word),
            _ => methods.push(method(at, offset, word.into_iter().collect())),
        }
    }
    methods
}

impl Method {
    fn text(&self) -> String {
        let shown = self.data.iter().take(UPLOAD_WORDS_SHOWN);
        let shown: Vec<String> = shown.map(|word| format!("{word:#x}")).collect();
        let more = match self.data.len() {
            count if count > UPLOAD_WORDS_SHOWN => format!(" ... {count} words"),
            _ => String::new(),
        };
        format!(
            "  {:5}  {}  {:#06x} {:<34} {}{more}\n",
            self.at,
            self.subchannel,
            self.offset,
            self.name.unwrap_or("?"),
            shown.join(" ")
        )
    }

    fn json(&self) -> Value {
        json!({
            "at": self.at,
            "subchannel": self.subchannel,
            "method": format!("{:#06x}", self.offset),
            "name": self.name,
            "data": self.data,
        })
    }
}
