// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints launches as text and as JSON.

use gct_core::submit::launch::{Effects, Launch, Waits};
use gct_core::submit::qmd::{Instance, View};
use gct_core::submit::tracker::{QmdCall, Source};
use serde_json::{json, Map, Value};

use super::names;

fn hex(value: u64) -> String {
    format!("{value:#x}")
}

fn by([x, y, z]: [u32; 3]) -> String {
    format!("{x}x{y}x{z}")
}

/// Returns the fields of the QMD that are not zero.
fn fields(found: &QmdCall, words: &[u32]) -> Vec<Instance> {
    let version = found.version;
    let qmd = found.qmd(words);
    let view = qmd
        .zip(version)
        .and_then(|(qmd, version)| View::new(qmd, version));
    let fields = view.map(|view| view.fields().filter(|field| field.value != 0).collect());
    fields.unwrap_or_default()
}

fn field_name(instance: &Instance) -> String {
    match instance.field.count {
        1 => instance.field.name.to_owned(),
        _ => format!("{}({})", instance.field.name, instance.index),
    }
}

/// Returns a line for the call, one for the launch, and one for each effect and field.
pub(super) fn text(found: &QmdCall, words: &[u32]) -> String {
    let mut text = format!("  {} at {:#x}", names::source(found.source), found.qmd_va);
    if found.source != Source::Stored {
        text.push_str(&format!(" by {}", names::action(found.action)));
    }
    if let Some(reason) = found.reason {
        text.push_str(&format!(" (not understood: {})", reason.name()));
    }
    text.push('\n');
    let Some(launch) = found.launch(words) else {
        return text;
    };
    text.push_str(&format!(
        "    {} grid {} in blocks {} block {}, {} registers, {} bytes of shared memory, program {:#x}\n",
        launch.kind.name(),
        by(launch.grid),
        by(launch.grid_in_blocks()),
        by(launch.block),
        launch.registers,
        launch.shared_memory_bytes,
        launch.program,
    ));
    for line in effects_text(&launch.effects)
        .iter()
        .chain(&waits_text(&launch.waits))
    {
        text.push_str(&format!("    {line}\n"));
    }
    for instance in fields(found, words) {
        let name = field_name(&instance);
        text.push_str(&format!("      {name:<46} {:#x}\n", instance.value));
    }
    text
}

fn effects_text(effects: &Effects) -> Vec<String> {
    let releases = effects.releases.iter().flatten().map(|release| {
        let words = release.words;
        format!(
            "at the end releases {:#x} to {:#x}, {words} words",
            release.payload, release.va
        )
    });
    let dependents = effects.dependents.iter().flatten().map(|dependent| {
        let target = dependent
            .va
            .map_or_else(|| "an unknown QMD".to_owned(), hex);
        format!(
            "at the end {} on {target}",
            names::dependent_action(dependent.action)
        )
    });
    let latch = effects
        .arrive_latch
        .map(|id| format!("at the end arrives at latch {id:#x}"));
    let reference = effects
        .reference
        .map(|count| format!("changes reference count {}", count.id));
    let self_copy = effects
        .self_copy
        .then(|| "is armed anew at the end".to_owned());
    let pre_exit = effects
        .pre_exit
        .then(|| "may start dependents early".to_owned());
    releases
        .chain(dependents)
        .chain(latch)
        .chain(reference)
        .chain(self_copy)
        .chain(pre_exit)
        .collect()
}

fn waits_text(waits: &Waits) -> Vec<String> {
    let latch = waits.latch.map(|id| format!("waits for latch {id:#x}"));
    let pcas = waits
        .requires_pcas
        .then(|| "waits for a SCHEDULE".to_owned());
    let dependences = match waits.dependences {
        0 => None,
        count => Some(format!("waits for {count} decrements")),
    };
    latch.into_iter().chain(pcas).chain(dependences).collect()
}

/// Returns one launch as an object; unknown fields are null.
pub(super) fn json(found: &QmdCall, words: &[u32]) -> Value {
    let mut object = json!({
        "qmd": hex(found.qmd_va),
        "source": names::source(found.source),
        "action": (found.source != Source::Stored).then(|| names::action(found.action)),
        "not_understood": found.reason.map(|reason| reason.name()),
        "launch": found.launch(words).map(|launch| launch_json(&launch)),
    });
    let fields = fields(found, words);
    let fields = fields
        .iter()
        .map(|field| (field_name(field), field.value.into()));
    object["fields"] = fields.collect::<Map<String, Value>>().into();
    object
}

fn launch_json(launch: &Launch) -> Value {
    let (major, minor) = launch.version.number();
    json!({
        "version": format!("{major}.{minor}"),
        "kind": launch.kind.name(),
        "grid": launch.grid,
        "grid_in_blocks": launch.grid_in_blocks(),
        "resume": launch.resume,
        "block": launch.block,
        "cluster": launch.cluster,
        "registers": launch.registers,
        "shared_memory_bytes": launch.shared_memory_bytes,
        "program": hex(launch.program),
        "effects": effects_json(&launch.effects),
        "waits": {
            "latch": launch.waits.latch,
            "scheduling": launch.waits.requires_pcas,
            "dependences": launch.waits.dependences,
        },
    })
}

fn effects_json(effects: &Effects) -> Value {
    let releases = effects.releases.iter().flatten().map(|release| {
        json!({
            "address": hex(release.va),
            "payload": hex(release.payload),
            "words": release.words,
            "reduction": release.reduction,
        })
    });
    let dependents = effects.dependents.iter().flatten().map(|dependent| {
        json!({
            "qmd": dependent.va.map(hex),
            "action": names::dependent_action(dependent.action),
            "prefetch": dependent.prefetch,
        })
    });
    json!({
        "releases": releases.collect::<Vec<_>>(),
        "dependents": dependents.collect::<Vec<_>>(),
        "latch": effects.arrive_latch,
        "reference_count": effects.reference.map(|count| count.id),
        "self_copy": effects.self_copy,
        "pre_exit": effects.pre_exit,
    })
}
