// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Collects results in tables, and writes them as Markdown and as JSON.

use anyhow::{Context, Result};
use gct_hw::kit::Spread;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// A point: a latency-critical loop beside a best-effort one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Point {
    /// Length of the best-effort blocks, in microseconds.
    pub(crate) blocks_us: u64,
    /// Time between latency-critical launches, in microseconds.
    pub(crate) period_us: u64,
    /// Whether they arrive by a Poisson process.
    pub(crate) poisson: bool,
}

/// One row: its name, and for each column the repeated measurements.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) values: Vec<Vec<f64>>,
}

impl Row {
    pub(crate) fn spread(&self, column: usize) -> Option<Spread> {
        Spread::of(self.values.get(column)?)
    }

    /// Returns the median of a column as a multiple of that of another row.
    pub(crate) fn ratio(&self, other: &Self, column: usize) -> Option<f64> {
        Some(self.spread(column)?.median / other.spread(column)?.median)
    }

    /// Returns the median of a column as a multiple of the other row's value of the same round.
    /// The arrivals of a round are the same for all rows.
    pub(crate) fn ratio_by_round(&self, other: &Self, column: usize) -> Option<f64> {
        let rounds = self
            .values
            .get(column)?
            .iter()
            .zip(other.values.get(column)?);
        let ratios: Vec<f64> = rounds.map(|(own, other)| own / other).collect();
        Some(Spread::of(&ratios)?.median)
    }
}

/// One table.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) point: Option<Point>,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(title: impl ToString, columns: &[&str]) -> Self {
        Self {
            title: title.to_string(),
            point: None,
            columns: columns.iter().map(ToString::to_string).collect(),
            rows: Vec::new(),
        }
    }

    /// Returns the number of windows of a column, the most of any row.
    pub(crate) fn rounds(&self, column: usize) -> usize {
        let of = |row: &Row| row.values.get(column).map_or(0, Vec::len);
        self.rows.iter().map(of).max().unwrap_or(0)
    }

    /// Returns the table of one window alone.
    pub(crate) fn of_round(&self, round: usize) -> Self {
        let value = |values: &Vec<f64>| values.get(round).copied().into_iter().collect();
        let rows = self.rows.iter().map(|row| Row {
            name: row.name.clone(),
            values: row.values.iter().map(value).collect(),
        });
        Self {
            title: self.title.clone(),
            point: self.point,
            columns: self.columns.clone(),
            rows: rows.collect(),
        }
    }

    /// Returns the row of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Adds measurements to a row, one list per column. An empty list is no value.
    pub(crate) fn row(&mut self, name: &str, columns: &[Vec<f64>]) {
        let at = match self.rows.iter().position(|row| row.name == name) {
            Some(at) => at,
            None => {
                self.rows.push(Row {
                    name: name.into(),
                    values: vec![Vec::new(); self.columns.len()],
                });
                self.rows.len() - 1
            }
        };
        let Some(row) = self.rows.get_mut(at) else {
            return;
        };
        for (values, more) in row.values.iter_mut().zip(columns) {
            values.extend(more.iter().copied().map(rounded));
        }
    }

    pub(crate) fn markdown(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "### {}\n", self.title)?;
        writeln!(out, "| | {} |", self.columns.join(" | "))?;
        writeln!(out, "|---|{}", "---|".repeat(self.columns.len()))?;
        for row in &self.rows {
            write!(out, "| {} |", row.name)?;
            for column in 0..self.columns.len() {
                match row.spread(column) {
                    Some(v) => write!(out, " {} ({}, {}) |", rounded(v.median), v.least, v.most)?,
                    None => write!(out, " - |")?,
                }
            }
            writeln!(out)?;
        }
        writeln!(out)
    }
}

/// Rounds to four digits, more than the precision of any measurement here.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// All tables of one run, or of several.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) machine: BTreeMap<String, String>,
    pub(crate) commands: Vec<String>,
    /// Measurements that failed, with the reasons.
    pub(crate) notes: Vec<String>,
    pub(crate) tables: Vec<Table>,
}

impl Report {
    pub(crate) fn new(machine: BTreeMap<String, String>) -> Self {
        let words: Vec<String> = std::env::args().skip(1).collect();
        Self {
            machine,
            commands: vec![format!("gct-bench {}", words.join(" "))],
            ..Self::default()
        }
    }

    /// Adds a note, once.
    pub(crate) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Adds the rows of a table to the report's rows of the same table.
    pub(crate) fn add(&mut self, table: Table) {
        match self.tables.iter_mut().find(|t| t.title == table.title) {
            Some(known) => {
                for row in &table.rows {
                    known.row(&row.name, &row.values);
                }
            }
            None => self.tables.push(table),
        }
    }

    /// Reads earlier reports and merges them.
    pub(crate) fn read(files: &[impl AsRef<Path>]) -> Result<Self> {
        let mut all = Self::default();
        for file in files {
            let file = file.as_ref();
            let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            let report: Self = serde_json::from_str(&text)?;
            all.machine.extend(report.machine);
            all.commands.extend(report.commands);
            report.notes.into_iter().for_each(|note| all.note(note));
            report.tables.into_iter().for_each(|table| all.add(table));
        }
        Ok(all)
    }

    /// Formats the tables. Each cell is a median with minimum and maximum.
    pub(crate) fn markdown(&self) -> String {
        let mut out = String::new();
        for (key, value) in &self.machine {
            // Writing to a `String` cannot fail.
            let _ = writeln!(out, "- {key}: {value}");
        }
        for command in &self.commands {
            let _ = writeln!(out, "- `{command}`");
        }
        for note in &self.notes {
            let _ = writeln!(out, "- {note}");
        }
        let _ = writeln!(out, "\nEach cell: median (least, most).\n");
        for table in &self.tables {
            let _ = table.markdown(&mut out);
        }
        out
    }

    /// Formats JSON with one line per table.
    fn json(&self) -> Result<String> {
        let mut out = serde_json::to_string(&Self {
            machine: self.machine.clone(),
            commands: self.commands.clone(),
            notes: self.notes.clone(),
            tables: Vec::new(),
        })?;
        let tables: Result<Vec<_>, _> = self.tables.iter().map(serde_json::to_string).collect();
        // The list of tables is empty and comes last.
        out.truncate(out.len() - "]}".len());
        write!(out, "\n{}\n]}}\n", tables?.join(",\n"))?;
        Ok(out)
    }

    /// Writes `NAME.json`.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> Result<()> {
        let file = folder.join(format!("{name}.json"));
        std::fs::write(&file, self.json()?).with_context(|| file.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(value: f64) -> Report {
        let mut report = Report::default();
        report.machine.insert("GPU".into(), "none".into());
        let mut table = Table::new("a table", &["first", "second"]);
        table.point = Some(Point {
            blocks_us: 25,
            period_us: 2500,
            poisson: true,
        });
        table.row("a row", &[vec![value], vec![]]);
        report.add(table);
        report
    }

    #[test]
    fn reports_of_several_runs_become_one() {
        let folder = std::env::temp_dir().join(format!("gct-report-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        report(1.000_04).write(&folder, "one").unwrap();
        report(3.0).write(&folder, "two").unwrap();
        let files = [folder.join("one.json"), folder.join("two.json")];
        let both = Report::read(&files).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(both.tables.len(), 1);
        assert!(both.tables[0].point.unwrap().poisson);
        assert!(both.markdown().contains("| a row | 2 (1, 3) | - |"));
    }
}
