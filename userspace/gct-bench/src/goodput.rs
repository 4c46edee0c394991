// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Judges services and their neighbours by what they get done in time.
//!
//! ```text
//! load       part of the GPU's time that the services take when they are alone
//! left       1 - load, what strict priority would leave the trainings
//! SLO        p99 of the service alone, under the same arrivals
//! in time    requests within the SLO, of all that arrive
//! goodput    load of each service * its requests in time + steps of the trainings, of one alone
//! ```

use crate::dominance::{ALONE, COLUMNS, P99};
use crate::report::{Report, Row, Table};
use anyhow::{Context, Result};
use serde_json::Value;

/// Columns of a service beside trainings. Older samples lack the last one.
pub(crate) const MEASURED: [&str; 5] = {
    let [p50, p95, p99, steps] = COLUMNS;
    [p50, p95, p99, steps, "requests within p99 alone (%)"]
};
/// Index of the column of requests within the SLO.
const IN_TIME: usize = 4;
/// Parts of the requests that took at most the time in the first columns.
const QUANTILES: [f64; 3] = [0.5, 0.95, 0.99];

/// Bounds of a part. They are equal where it was measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds {
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Bounds {
    /// Returns the bounds of the mean, or nothing without values.
    pub(crate) fn mean(all: &[Self]) -> Option<Self> {
        // CAST: rows are few.
        let share = 1.0 / all.len() as f64;
        let add = |sum: Self, each: &Self| sum.and(share, *each);
        (!all.is_empty()).then(|| all.iter().fold(Self::default(), add))
    }

    pub(crate) fn exactly(part: f64) -> Self {
        Self {
            least: part,
            most: part,
        }
    }

    /// Adds a `load` of which this part is done in time.
    pub(crate) fn and(self, load: f64, part: Self) -> Self {
        Self {
            least: self.least + load * part.least,
            most: self.most + load * part.most,
        }
    }

    /// Formats both bounds, or one if no digit tells them apart.
    fn formatted(self, format: impl Fn(f64) -> String) -> String {
        let (least, most) = (format(self.least), format(self.most));
        match least == most {
            true => most,
            false => format!("{least} to {most}"),
        }
    }

    pub(crate) fn percent(self) -> String {
        self.formatted(|part| format!("{:.0}", 100.0 * part)) + "%"
    }

    pub(crate) fn text(self) -> String {
        self.formatted(|part| format!("{part:.2}"))
    }
}

/// Returns which part of a row's requests was in time. Percentiles alone give bounds.
pub(crate) fn in_time(row: &Row, alone: &Row) -> Option<Bounds> {
    let measured = row.values.get(IN_TIME).filter(|values| !values.is_empty());
    if let Some(values) = measured {
        let exact = values
            .iter()
            .map(|percent| Bounds::exactly(percent / 100.0));
        return Bounds::mean(&exact.collect::<Vec<_>>());
    }
    let slos = alone.values.get(P99)?;
    let rounds = slos.iter().enumerate().filter_map(|(round, slo)| {
        let mut bounds = Bounds {
            least: 0.0,
            most: 1.0,
        };
        for (column, part) in QUANTILES.into_iter().enumerate() {
            if row.values.get(column)?.get(round)? <= slo {
                bounds.least = part;
            } else {
                bounds.most = bounds.most.min(part);
            }
        }
        Some(bounds)
    });
    Bounds::mean(&rounds.collect::<Vec<_>>())
}

/// Returns the load in the title of a service's table: `.. at 40%`.
pub(crate) fn load(title: &str) -> Option<f64> {
    let (_, rest) = title.rsplit_once(" at ")?;
    let (percent, _) = rest.split_once('%')?;
    Some(percent.parse::<f64>().ok()? / 100.0)
}

/// Returns how many windows of a mechanism a table of the report has.
pub(crate) fn rounds(report: &Report, title: &str, mechanism: &str) -> usize {
    let table = report.tables.iter().find(|table| table.title == title);
    let row = table.and_then(|table| table.get(mechanism));
    row.and_then(|row| row.values.first()).map_or(0, Vec::len)
}

/// Fills a table of [`MEASURED`] with the next window of a mechanism: the latencies of a service's
/// answer, and the steps of its neighbours.
pub(crate) fn filled(
    report: &Report,
    mut table: Table,
    mechanism: &str,
    answer: &Value,
    steps: Vec<f64>,
) -> Result<Table> {
    let mut times = numbers(&answer["times_us"]);
    times.sort_by(f64::total_cmp);
    let mut values = Vec::new();
    for part in QUANTILES {
        values.push(vec![ranked(&times, part).context("no request arrived")?]);
    }
    values.push(steps);
    let known = report.tables.iter().find(|t| t.title == table.title);
    let alone = known.and_then(|known| known.get(ALONE));
    let round = rounds(report, &table.title, mechanism);
    let slo = alone.and_then(|alone| alone.values.get(P99)?.get(round));
    let slo = slo.filter(|_| mechanism != ALONE);
    values.push(
        slo.map(|slo| percent_within(&times, *slo))
            .into_iter()
            .collect(),
    );
    table.row(mechanism, &values);
    Ok(table)
}

/// Returns the numbers of a list, none of what is no list.
pub(crate) fn numbers(list: &Value) -> Vec<f64> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(Value::as_f64).collect()
}

/// Returns the time that this part of the sorted times does not exceed.
pub(crate) fn ranked(times: &[f64], part: f64) -> Option<f64> {
    // CAST: requests are few, and the part is below one.
    let at = (times.len().checked_sub(1)? as f64 * part) as usize;
    times.get(at).copied()
}

pub(crate) fn percent_within(times: &[f64], slo: f64) -> f64 {
    let count = times.iter().filter(|time| **time <= slo).count();
    // CAST: requests are few.
    100.0 * count as f64 / times.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn table(rows: &[(&str, [f64; 3])]) -> Table {
        let mut table = Table::new("t: bert at 40%", &COLUMNS);
        for (name, times) in rows {
            let times = times.map(|time| vec![time]);
            let [p50, p95, p99] = times;
            table.row(name, &[p50, p95, p99, vec![1.0]]);
        }
        table
    }

    #[test]
    fn percentiles_bound_what_was_in_time() {
        let table = table(&[
            (ALONE, [1.0, 2.0, 3.0]),
            ("a", [1.0, 2.0, 3.0]),
            ("b", [1.0, 2.0, 3.1]),
            ("c", [1.0, 3.1, 9.0]),
            ("d", [3.1, 4.0, 9.0]),
        ]);
        let bounds = |name| {
            let bounds = in_time(table.get(name).unwrap(), table.get(ALONE).unwrap());
            bounds.unwrap().percent()
        };
        assert_eq!(
            ["a", "b", "c", "d"].map(bounds),
            ["99 to 100%", "95 to 99%", "50 to 95%", "0 to 50%"]
        );
    }

    #[test]
    fn latencies_give_percentiles_and_the_requests_in_time() {
        let mut report = Report::default();
        let answer = |times: Vec<f64>| json!({ "times_us": times });
        let empty = || Table::new("t", &MEASURED);
        let hundred = answer((1..=101).rev().map(f64::from).collect());
        let alone = filled(&report, empty(), ALONE, &hundred, vec![7.0]).unwrap();
        let values = &alone.rows[0].values;
        assert_eq!(values[..4], [[51.0], [96.0], [100.0], [7.0]]);
        assert!(values[IN_TIME].is_empty());
        report.add(alone);
        let slower = answer(vec![50.0, 100.0, 101.0, 200.0]);
        report.add(filled(&report, empty(), "MPS", &slower, vec![5.0]).unwrap());
        let [alone, row] = [ALONE, "MPS"].map(|name| report.tables[0].get(name).unwrap());
        assert_eq!(row.values[IN_TIME], [50.0]);
        assert_eq!(in_time(row, alone).unwrap().percent(), "50%");
        // A second round has no window alone to compare with.
        let second = filled(&report, empty(), "MPS", &slower, vec![]).unwrap();
        assert!(second.rows[0].values[IN_TIME].is_empty());
        assert!(filled(&report, empty(), "MPS", &answer(vec![]), vec![]).is_err());
    }

    #[test]
    fn a_title_tells_the_load() {
        assert_eq!(load("Scene beside training lora: bert at 40%"), Some(0.4));
        assert_eq!(load("Service bert beside training lora"), None);
    }

    #[test]
    fn goodput_is_work_in_time() {
        let half = Bounds {
            least: 0.5,
            most: 1.0,
        };
        let training = Bounds::exactly(0.6);
        assert_eq!(training.and(0.4, half).text(), "0.80 to 1.00");
    }
}
