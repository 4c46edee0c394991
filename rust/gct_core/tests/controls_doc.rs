// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tables of `gctgroup-docs/controls.md` are those of the code.
//!
//! `GCT_BLESS=1 cargo test -p gct-core --test controls_doc` rewrites them.

use gct_core::rmapi::allow::{Rule, CLASSES, RANGES, TABLES};
use std::fmt::Write;
use std::path::Path;

const DOC: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../gctgroup-docs/controls.md"
);

fn rules() -> String {
    let mut table = String::from("| rule | | reason |\n|---|---|---|\n");
    for rule in Rule::ALL {
        let verdict = if rule.refuses() { "refused" } else { "allowed" };
        writeln!(table, "| {} | {verdict} | {} |", rule.name(), rule.reason()).unwrap();
    }
    table
}

fn classes() -> String {
    let mut table = String::from("| class | rule |\n|---|---|\n");
    for (class, rule) in CLASSES {
        writeln!(table, "| {class:#06x} | {} |", rule.name()).unwrap();
    }
    table
}

fn ranges() -> String {
    let mut table = String::from("| first | last | rule |\n|---|---|---|\n");
    for (first, last, rule) in RANGES {
        writeln!(table, "| {first:#010x} | {last:#010x} | {} |", rule.name()).unwrap();
    }
    table
}

fn controls() -> String {
    let mut table = String::from("| control | number | rule |\n|---|---|---|\n");
    for rows in TABLES {
        for ((number, rule), name) in rows.rules.iter().zip(rows.names) {
            writeln!(table, "| {name} | {number:#010x} | {} |", rule.name()).unwrap();
        }
    }
    table
}

/// Returns `text` with `table` between the marks of `name`.
fn with_table(text: &str, name: &str, table: &str) -> String {
    let (begin, end) = (
        format!("<!-- {name}: begin -->\n"),
        format!("<!-- {name}: end -->"),
    );
    let (head, rest) = text.split_once(&begin).expect("the mark of a table");
    let (_, tail) = rest.split_once(&end).expect("its end");
    format!("{head}{begin}{table}{end}{tail}")
}

#[test]
fn tables_are_those_of_the_code() {
    let text = std::fs::read_to_string(Path::new(DOC)).unwrap();
    let mut expected = text.clone();
    for (name, table) in [
        ("rules", rules()),
        ("classes", classes()),
        ("ranges", ranges()),
        ("controls", controls()),
    ] {
        expected = with_table(&expected, name, &table);
    }
    if std::env::var_os("GCT_BLESS").is_some() {
        std::fs::write(Path::new(DOC), &expected).unwrap();
    }
    assert!(
        text == expected,
        "controls.md differs from rmapi::allow; see the head of this test"
    );
}
