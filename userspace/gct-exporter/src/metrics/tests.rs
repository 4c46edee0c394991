// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The table keeps the conventions. The page, the dashboard and the alerts are those of the table.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use gct_core::iface::files::{self, Mode};
use gct_core::iface::{keys, Place};
use serde_json::Value;

use super::*;

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn place(scope: Scope) -> Place {
    match scope {
        Scope::Tree => Place::Root,
        Scope::Gpu => Place::Gpu,
        Scope::Group => Place::Group,
        Scope::Pool => Place::Pool,
    }
}

#[test]
fn names_keep_the_conventions() {
    let mut names = BTreeSet::new();
    for family in families() {
        let name = family.sample_name();
        let formed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_');
        assert!(name.bytes().all(formed) && !name.contains("__"), "{name}");
        assert!(names.insert(name.clone()), "{name} occurs twice");
        // Base units only, and no suffix that has a meaning of its own.
        assert!(
            ["", "bytes", "seconds", "ratio"].contains(&family.metric.unit),
            "{name}"
        );
        let base = family.base();
        for suffix in ["_total", "_info", "_count", "_sum", "_bucket", "_created"] {
            assert!(!base.ends_with(suffix), "{name}");
        }
        let help = family.metric.help;
        assert!(
            help.ends_with('.') && !help.contains(['\\', '\n']),
            "{name}"
        );
        let labels = family.labels();
        let distinct: BTreeSet<_> = labels.iter().collect();
        assert_eq!(distinct.len(), labels.len(), "{name}");
    }
}

#[test]
fn every_metric_has_a_file_of_its_scope_with_its_keys() {
    for metric in all() {
        let Source::File(file, from) = metric.source else {
            continue;
        };
        let entry = files::entry(file);
        assert_eq!(entry.place, place(metric.scope), "{}", metric.name);
        assert_ne!(entry.mode, Mode::Write, "{}", metric.name);
        let has = |key: &str| keys::all().any(|k| k.file == file && k.key == key);
        match from {
            From::Key(key) => assert!(has(key), "{key}"),
            From::Keys(_, keys) => assert!(keys.iter().all(|key| has(key)), "{keys:?}"),
            From::Prefix(prefix, _) => assert!(has(prefix.trim_end_matches('.')), "{prefix}"),
            From::Value | From::Is(_) | From::Tpcs | From::Words(_) => {}
        }
    }
}

/// Checks that each file and key of the tree is exported, or is named here.
#[test]
fn every_number_of_the_tree_is_exported() {
    let sources: Vec<_> = all()
        .filter_map(|metric| match metric.source {
            Source::File(file, from) => Some((file, from)),
            Source::Own(..) => None,
        })
        .collect();
    for key in keys::all() {
        let is_it = |(file, from): &(File, From)| {
            *file == key.file
                && match from {
                    From::Key(name) => *name == key.key,
                    From::Keys(_, names) => names.contains(&key.key),
                    _ => false,
                }
        };
        assert!(sources.iter().any(is_it), "{:?} {}", key.file, key.key);
    }
    for entry in files::of(Place::Pool) {
        let exported = sources.iter().any(|(file, _)| *file == entry.file);
        assert!(exported, "{}", entry.name);
    }
}

fn table() -> String {
    let mut table = String::from(
        "| metric | type | unit | labels | from | meaning |\n|---|---|---|---|---|---|\n",
    );
    for family in families() {
        let metric = family.metric;
        // The row of a group stands for both.
        if family.owner == Some(OwnerKind::Process) {
            continue;
        }
        let name = family.sample_name();
        let (name, labels) = match metric.scope {
            Scope::Pool => (
                name.replacen("_group_", "_{group,process}_", 1),
                family
                    .labels()
                    .join(", ")
                    .replacen("group", "group or pid", 1),
            ),
            _ => (name, family.labels().join(", ")),
        };
        let from = match metric.source {
            Source::File(file, From::Key(key)) => format!("{}: {key}", files::entry(file).name),
            Source::File(file, From::Prefix(key, _)) => {
                format!("{}: {key}*", files::entry(file).name)
            }
            Source::File(file, _) => files::entry(file).name.to_owned(),
            Source::Own(Own::Tree, _) => "version".to_owned(),
            Source::Own(Own::Group, _) => "group.cgroup".to_owned(),
            Source::Own(Own::Gpu, labels) => labels.join(", "),
            Source::Own(..) => String::new(),
        };
        let word = metric.kind.word();
        let (unit, help) = (metric.unit, metric.help);
        writeln!(
            table,
            "| `{name}` | {word} | {unit} | {labels} | {from} | {help} |"
        )
        .unwrap();
    }
    table
}

/// Checks the page; `GCT_BLESS=1 cargo test -p gct-exporter page` rewrites it.
#[test]
fn the_table_of_the_page_is_that_of_the_code() {
    const BEGIN: &str = "<!-- metrics: begin -->\n";
    const END: &str = "<!-- metrics: end -->";
    let path = in_repository("gctgroup-docs/exporter.md");
    let page = fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(BEGIN).expect("the mark of the table");
    let (found, tail) = rest.split_once(END).expect("the mark of its end");
    let wanted = table();
    if std::env::var_os("GCT_BLESS").is_some() {
        fs::write(&path, format!("{head}{BEGIN}{wanted}{END}{tail}")).unwrap();
        return;
    }
    assert!(found == wanted, "exporter.md lacks this table:\n{wanted}");
}

/// Returns the metrics that an expression of PromQL names.
fn named(expression: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    expression
        .split(|c| !word(c))
        // A resource of the kubelet is a label's value.
        .filter(|word| word.starts_with("gctgroup_") && !word.starts_with("gctgroup_dev_"))
        .map(str::to_owned)
        .collect()
}

/// Returns the texts of all fields with this name.
fn fields<'a>(value: &'a Value, field: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(object) => {
            found.extend(object.get(field).and_then(Value::as_str));
            object
                .values()
                .for_each(|value| fields(value, field, found));
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, field, found)),
        _ => {}
    }
}

fn exist(expressions: &[&str]) {
    let names: BTreeSet<String> = families().iter().map(Family::sample_name).collect();
    for expression in expressions {
        let named = named(expression);
        assert!(!named.is_empty(), "{expression}");
        for name in named {
            assert!(names.contains(&name), "there is no {name}: {expression}");
        }
    }
}

#[test]
fn every_metric_of_the_dashboard_exists() {
    let path = in_repository("userspace/gct-exporter/dashboard.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut expressions = Vec::new();
    fields(&dashboard, "expr", &mut expressions);
    assert!(expressions.len() >= 10, "{}", expressions.len());
    fields(&dashboard["templating"], "query", &mut expressions);
    // The variable of the data source has a type, not an expression.
    expressions.retain(|text| *text != "prometheus");
    exist(&expressions);
}

#[test]
fn every_metric_of_the_alerts_exists() {
    let path = in_repository("userspace/gct-exporter/alerts.yml");
    let alerts = fs::read_to_string(path).unwrap();
    let expressions: Vec<&str> = alerts
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("expr: "))
        .collect();
    let rules = alerts.matches("- alert: ").count();
    assert!(rules >= 5 && expressions.len() == rules, "{rules} rules");
    // One is on metrics of kube-state-metrics.
    let own = expressions.iter().filter(|expr| !expr.contains("kube_"));
    exist(&own.copied().collect::<Vec<_>>());
}
