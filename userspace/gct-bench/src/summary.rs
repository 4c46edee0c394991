// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Summarises each point in one line: p99 and throughput of each mechanism.

use crate::dominance::{self, ALONE, P99, PLAIN, RATE};
use crate::report::Table;

/// Formats `p99 (throughput as a percentage of plain MPS)` for each of `ways` in each of `tables`.
pub(crate) fn markdown(tables: &[&Table], mechanisms: &[&str]) -> String {
    by_mechanism(tables, mechanisms, dominance::name, cell)
}

/// Formats a line per table, and in it a `cell` per mechanism.
pub(crate) fn by_mechanism(
    tables: &[&Table],
    mechanisms: &[&str],
    name: impl Fn(&Table) -> String,
    cell: impl Fn(&Table, &str) -> Option<String>,
) -> String {
    let lines = "---|".repeat(mechanisms.len());
    let mut out = format!("| | {} |\n|---|{lines}\n", mechanisms.join(" | "));
    for table in tables {
        let cells = mechanisms.iter().map(|mechanism| cell(table, mechanism));
        let cells = cells.map(|cell| cell.unwrap_or_else(|| "-".into()));
        let cells: Vec<String> = cells.collect();
        out += &format!("| {} | {} |\n", name(table), cells.join(" | "));
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
}
