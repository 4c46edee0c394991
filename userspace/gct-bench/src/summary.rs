// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Summarises each point in one line: p99 and throughput of each mechanism.

use crate::dominance::{self, ALONE, P99, PLAIN, RATE};
use crate::report::Table;

/// Formats `p99 (throughput as a percentage of plain MPS)` for each of `ways` in each of `tables`.
pub(crate) fn markdown(tables: &[&Table], mechanisms: &[&str]) -> String {
    by_mechanism(tables, mechanisms, dominance::name, cell)
}

/// Columns that a page still shows side by side.
const WIDEST: usize = 8;

/// Formats a line per table, and in it a `cell` per mechanism. Many mechanisms have a line each,
/// and a cell per table.
pub(crate) fn by_mechanism(
    tables: &[&Table],
    mechanisms: &[&str],
    name: impl Fn(&Table) -> String,
    cell: impl Fn(&Table, &str) -> Option<String>,
) -> String {
    let cell =
        |table: &Table, mechanism: &str| cell(table, mechanism).unwrap_or_else(|| "-".into());
    let names = mechanisms.iter().map(ToString::to_string);
    if mechanisms.len() > WIDEST.max(tables.len()) {
        let lines = mechanisms.iter().map(|mechanism| {
            let cells = tables.iter().map(|table| cell(table, mechanism));
            (mechanism.to_string(), cells.collect())
        });
        return lined(tables.iter().map(|table| name(table)), lines);
    }
    let lines = tables.iter().map(|table| {
        let cells = mechanisms.iter().map(|mechanism| cell(table, mechanism));
        (name(table), cells.collect())
    });
    lined(names, lines)
}

/// Formats a table of named columns and lines.
fn lined(
    columns: impl Iterator<Item = String>,
    lines: impl Iterator<Item = (String, Vec<String>)>,
) -> String {
    let columns: Vec<String> = columns.collect();
    let rule = "---|".repeat(columns.len());
    let mut out = format!("| | {} |\n|---|{rule}\n", columns.join(" | "));
    for (name, cells) in lines {
        out += &format!("| {name} | {} |\n", cells.join(" | "));
    }
    out
}

/// Returns `rate` as a percentage of the best-effort throughput under plain MPS.
pub(crate) fn percent(table: &Table, rate: f64) -> Option<f64> {
    let plain = table.get(PLAIN)?.spread(RATE)?;
    Some(rate / plain.median * 100.0)
}

fn cell(table: &Table, mechanism: &str) -> Option<String> {
    let row = table.get(mechanism)?;
    let p99 = row.spread(P99)?.median;
    let p99 = if p99 < 100.0 {
        format!("{p99:.1}")
    } else {
        format!("{p99:.0}")
    };
    if mechanism == ALONE {
        return Some(p99);
    }
    let rate = percent(table, row.spread(RATE)?.median)?;
    Some(format!("{p99} ({rate:.1})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dominance::COLUMNS;

    #[test]
    fn throughput_is_relative_to_plain_mps() {
        let mut table = Table::new("point", &COLUMNS);
        let samples = |p99: f64, rate: &[f64]| [vec![], vec![], vec![p99], rate.to_vec()];
        table.row(ALONE, &samples(40.04, &[]));
        table.row(PLAIN, &samples(2310.4, &[400.0]));
        table.row("gct quota", &samples(44.0, &[388.0]));
        let text = markdown(&[&table], &[ALONE, PLAIN, "gct quota", "time slicing"]);
        let last = text.lines().last();
        assert_eq!(
            last,
            Some("| point | 40.0 | 2310 (100.0) | 44.0 (97.0) | - |")
        );
    }

    #[test]
    fn many_mechanisms_have_a_line_each() {
        let tables = ["a", "b"].map(|title| Table::new(title, &COLUMNS));
        let tables: Vec<&Table> = tables.iter().collect();
        let cell = |table: &Table, name: &str| Some(format!("{}{name}", table.title));
        let lines = |count: usize| {
            let names: Vec<String> = (0..count).map(|number| number.to_string()).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            by_mechanism(&tables, &names, |table| table.title.clone(), cell)
        };
        assert!(lines(WIDEST).ends_with("| b | b0 | b1 | b2 | b3 | b4 | b5 | b6 | b7 |\n"));
        let many = lines(WIDEST + 1);
        assert!(
            many.starts_with("| | a | b |\n|---|---|---|\n| 0 | a0 | b0 |\n"),
            "{many}"
        );
    }
}
