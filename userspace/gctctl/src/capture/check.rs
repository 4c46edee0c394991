// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs a capture on the model of the launch hardware (`capture check`).

use gct_client::capture::Record;
use gct_core::submit::limits::QMD_VA_END;
use gct_core::submit::mask::DisabledTpcs;
use gct_model::{
    compare, Anomaly, ChannelId, Config, Effect, Expected, Kind, Machine, Mask, Order, Report, Run,
    Span, SparseMemory, Violation, Waiting,
};
use serde_json::{json, Value};

use super::{load, mask, FAILURE};
use crate::cli::Check;
use crate::outcome::{Failure, Outcome};

/// Most pages of 4 KiB that the model may write: 1 GiB.
const PAGES_MAX: usize = 1 << 18;
/// Random orders in which a rewrite is compared with its original.
const SEEDS: u64 = 32;

pub(super) fn run(options: &Check) -> Result<Outcome, Failure> {
    let records = load(&options.file)?;
    let report = execute(&records, options.order);
    let mut outcome = Outcome {
        text: text(&report),
        json: json(&report),
        failures: Vec::new(),
    };
    if let Some(original) = &options.original {
        let original = load(original)?;
        let asked = mask(&options.mask)?;
        let expected = Expected {
            slots: options.qmd_base..QMD_VA_END,
            mask: asked.as_ref().map(of_mask).unwrap_or_default(),
        };
        let differences = differences(&original, &records, &expected);
        outcome.json["differences"] = differences
            .iter()
            .map(|(order, violation)| json!({ "order": order, "what": violation.to_string() }))
            .collect();
        if differences.is_empty() {
            outcome
                .text
                .push_str(&format!("same as the original in {} orders\n", SEEDS + 2));
        }
        let failures = differences.iter().map(|(order, violation)| {
            Failure::new(FAILURE, format!("In order {order}: {violation}."))
        });
        outcome.failures.extend(failures);
    }
    Ok(outcome)
}

fn execute(records: &[Record], order: Order) -> Report {
    let config = Config {
        order,
        ..Config::default()
    };
    let mut machine = Machine::new(SparseMemory::new(PAGES_MAX), config);
    for record in records {
        machine.submit(ChannelId(record.channel), &record.words);
    }
    machine.run();
    machine.into_parts().0
}

fn of_mask(mask: &DisabledTpcs) -> Mask {
    Mask(*mask.words())
}

/// Returns the differences, each with the first order that shows it.
fn differences(
    original: &[Record],
    rewritten: &[Record],
    expected: &Expected,
) -> Vec<(String, Violation)> {
    let original = execute(original, Order::Eager);
    let mut differences: Vec<(String, Violation)> = Vec::new();
    let orders = [Order::Eager, Order::Late].into_iter();
    for order in orders.chain((0..SEEDS).map(Order::Random)) {
        for violation in compare(&original, &execute(rewritten, order), expected) {
            if differences.iter().all(|(_, known)| *known != violation) {
                differences.push((order_name(order), violation));
            }
        }
    }
    differences
}

fn order_name(order: Order) -> String {
    match order {
        Order::Eager => "eager".to_owned(),
        Order::Late => "late".to_owned(),
        Order::Random(seed) => seed.to_string(),
    }
}

fn kind_name(kind: Kind) -> String {
    let name = match kind {
        Kind::Queue => "QUEUE",
        Kind::Null => "GRID_NULL",
        Kind::Blocks => "GRID_CTA",
        Kind::Clusters => "GRID_GPC_CGA",
        Kind::Cooperative => "GRID_GPU_CGA",
        Kind::CooperativeClusters => "GRID_GPU_GPC_CGA",
        Kind::Unknown(value) => return format!("unknown {value}"),
    };
    name.to_owned()
}

fn mask_words(mask: &Mask) -> String {
    let used = mask
        .0
        .iter()
        .rposition(|word| *word != 0)
        .map_or(0, |last| last + 1);
    let words = mask.0.iter().take(used).map(|word| format!(" {word:08x}"));
    words.collect()
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for run in &report.runs {
        let blocks = run.blocks.iter().map(|blocks| format!(" {blocks}"));
        let blocks: String = blocks.collect();
        text.push_str(&format!(
            "{:6}-{:<6} channel {} ran {} at {:#x}: {} units{blocks}",
            run.started,
            run.ended
                .map_or_else(|| "?".to_owned(), |ended| ended.to_string()),
            run.channel.0,
            kind_name(run.kind),
            run.qmd,
            run.count(),
        ));
        match mask_words(&run.mask).as_str() {
            "" => text.push('\n'),
            words => text.push_str(&format!(" without TPCs{words}\n")),
        }
    }
    for effect in &report.effects {
        text.push_str(&format!("{:6}        {}\n", effect.at, effect.act));
    }
    for waiting in &report.waiting {
        text.push_str(&format!("waits: {}\n", waiting_text(waiting)));
    }
    for channel in &report.blocked {
        text.push_str(&format!("stuck: channel {}\n", channel.0));
    }
    for anomaly in &report.anomalies {
        text.push_str(&format!("unusual: {anomaly}\n"));
    }
    text
}

fn waiting_text(waiting: &Waiting) -> String {
    let mut text = format!("{:#x} for", waiting.qmd);
    if waiting.counter > 0 {
        text.push_str(&format!(" {} decrements", waiting.counter));
    }
    if waiting.scheduling {
        text.push_str(" a SCHEDULE");
    }
    if let Some(latch) = waiting.latch {
        text.push_str(&format!(" latch {latch:#x}"));
    }
    text
}

fn json(report: &Report) -> Value {
    json!({
        "runs": report.runs.iter().map(run_json).collect::<Vec<_>>(),
        "effects": report.effects.iter().map(effect_json).collect::<Vec<_>>(),
        "waiting": report.waiting.iter().map(|waiting| json!({
            "qmd": format!("{:#x}", waiting.qmd),
            "decrements": waiting.counter,
            "scheduling": waiting.scheduling,
            "latch": waiting.latch,
        })).collect::<Vec<_>>(),
        "stuck": report.blocked.iter().map(|channel| channel.0).collect::<Vec<_>>(),
        "unusual": report.anomalies.iter().map(Anomaly::to_string).collect::<Vec<_>>(),
    })
}

fn run_json(run: &Run) -> Value {
    let span = |span: Span| [span.start, span.end];
    let blocks = run
        .blocks
        .iter()
        .map(|blocks| json!({ "x": span(blocks.x), "y": span(blocks.y), "z": span(blocks.z) }));
    json!({
        "qmd": format!("{:#x}", run.qmd),
        "channel": run.channel.0,
        "kind": kind_name(run.kind),
        "program": format!("{:#x}", run.kernel.program),
        "grid": run.grid,
        "resume": run.resume,
        "units": run.count(),
        "blocks": blocks.collect::<Vec<_>>(),
        "disabled_tpcs": run.mask.0.map(|word| format!("{word:08x}")),
        "started": run.started,
        "ended": run.ended,
    })
}

fn effect_json(effect: &Effect) -> Value {
    json!({ "at": effect.at, "run": effect.by, "what": effect.act.to_string() })
}
