// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Formats the tables that no summary compares with a program alone, as they are.

use crate::report::{Row, Table};
use crate::{models, scenes};

/// Formats each of these tables under its title. A cell is a median, with the least and the most
/// where they differ.
pub(crate) fn markdown(tables: &[&Table]) -> String {
    let rest = tables.iter().filter(|table| !is_compared(table));
    let each = rest.map(|table| {
        let head = table.columns.join(" | ");
        let line = "---|".repeat(table.columns.len());
        let rows = table.rows.iter().map(|row| {
            let cells = (0..table.columns.len()).map(|column| cell(row, column));
            format!(
                "| {} | {} |\n",
                row.name,
                cells.collect::<Vec<_>>().join(" | ")
            )
        });
        let rows = rows.collect::<String>();
        format!("{}:\n\n| | {head} |\n|---|{line}\n{rows}", table.title)
    });
    each.collect::<Vec<_>>().join("\n")
}

/// Returns whether a summary of pairs, scenes or points has the table.
fn is_compared(table: &Table) -> bool {
    let compared = [models::TITLE, scenes::TITLE];
    table.point.is_some() || compared.iter().any(|title| table.title.starts_with(title))
}

fn cell(row: &Row, column: usize) -> String {
    let Some(spread) = row.spread(column) else {
        return "-".into();
    };
    let [median, least, most] = [spread.median, spread.least, spread.most].map(digits);
    match least == most {
        true => median,
        false => format!("{median} ({least} to {most})"),
    }
}

/// Formats a whole number as one, else three digits at least.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || size.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_shows_a_range_where_there_is_one() {
        let mut table = Table::new("Predictions", &["launches", "missed (%)", "none"]);
        table.row("bert", &[vec![1200.0], vec![0.5, 12.0], vec![]]);
        let scene = Table::new("Scene beside training lora: bert at 50%", &["p50 (us)"]);
        let text = markdown(&[&scene, &table]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "Predictions:",
                "",
                "| | launches | missed (%) | none |",
                "|---|---|---|---|",
                "| bert | 1200 | 6.25 (0.50 to 12) | - |",
            ]
        );
    }
}
