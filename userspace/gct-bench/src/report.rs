// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tables of results, as Markdown and as JSON.

use anyhow::Result;
use gct_bench::kit::Spread;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// One row: what was run, and a spread for each column.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    values: Vec<Option<Spread>>,
}

/// One table.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(title: impl ToString, columns: &[&str]) -> Self {
        Self {
            title: title.to_string(),
            columns: columns.iter().map(ToString::to_string).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row of measurements, one list for each column; an empty list is no value.
    pub(crate) fn row(&mut self, name: impl ToString, columns: &[Vec<f64>]) {
        self.rows.push(Row {
            name: name.to_string(),
            values: columns.iter().map(|column| Spread::of(column)).collect(),
        });
    }

    fn markdown(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "### {}\n", self.title)?;
        writeln!(out, "| | {} |", self.columns.join(" | "))?;
        writeln!(out, "|---|{}", "---|".repeat(self.columns.len()))?;
        for row in &self.rows {
            write!(out, "| {} |", row.name)?;
            for value in &row.values {
                match value {
                    Some(v) => {
                        write!(out, " {:.4} ({:.4}, {:.4}) |", v.median, v.least, v.most)?;
                    }
                    None => write!(out, " - |")?,
                }
            }
            writeln!(out)?;
        }
        writeln!(out)
    }
}

/// All tables of one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    command: Vec<String>,
    tpcs: String,
    tables: Vec<Table>,
}

impl Report {
    pub(crate) fn new(tpcs: &[&str]) -> Self {
        Self {
            command: std::env::args().collect(),
            tpcs: tpcs.join(","),
            tables: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// The tables, each cell a median with least and most.
    pub(crate) fn markdown(&self) -> String {
        let mut out = format!(
            "Command: `{}`. Each cell: median (least, most).\n\n",
            self.command.join(" ")
        );
        for table in &self.tables {
            // Writing to a `String` cannot fail.
            let _ = table.markdown(&mut out);
        }
        out
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        std::fs::write(
            folder.join("bench.json"),
            serde_json::to_string_pretty(self)?,
        )?;
        std::fs::write(folder.join("bench.md"), self.markdown())?;
        Ok(())
    }
}
