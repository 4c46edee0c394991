// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints tables.

/// Rows below a headline. Each column is as wide as its widest cell.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with a headline.
    pub(crate) fn new(headline: &[&str]) -> Self {
        Self {
            rows: vec![headline.iter().map(|&cell| cell.to_owned()).collect()],
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl ToString>) {
        let cells = cells.into_iter().map(|cell| cell.to_string());
        self.rows.push(cells.collect());
    }

    /// Returns whether the table has no row below the headline.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// Returns the text, with a newline after each row. A cell of several lines continues in its
    /// column.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let lines = |cell: &str| cell.lines().map(str::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| lines(cell)).max().unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let height = row.iter().map(|cell| cell.lines().count()).max();
            for line in 0..height.unwrap_or(1).max(1) {
                let cells = row.iter().zip(&widths).map(|(cell, width)| {
                    let part = cell.lines().nth(line).unwrap_or("");
                    format!("{part:width$}")
                });
                let cells: Vec<String> = cells.collect();
                text.push_str(cells.join("  ").trim_end());
                text.push('\n');
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_continue_below() {
        let mut table = Table::new(&["A", "B", "C"]);
        table.row(["one", "1\n22", "x"]);
        assert_eq!(table.render(), "A    B   C\none  1   x\n     22\n");
    }
}
