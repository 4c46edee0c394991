// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Divides one window of a service beside a training into stretches, over which the rate of
//! requests changes (Tally's figure 6b).

use crate::dominance::ALONE;
use crate::goodput::{numbers, ranked};
use crate::report::Table;
use crate::scenes::Measured;

/// The name of the part.
pub(crate) const TRAFFIC: &str = "traffic";
/// The service and the training, those of Tally's figure.
pub(crate) const PAIR: (&str, &str) = ("bert", "bert");
/// Stretches of equal length, as many as [`crate::arrivals::DAY`] has rates.
pub(crate) const STRETCHES: usize = crate::arrivals::DAY.len();
/// The row of offered requests.
const OFFERED: &str = "offered";

/// Returns tables with a column for each stretch, which is when it begins: requests, p99, and the
/// steps of the training.
pub(crate) fn over_time(measured: &Measured<'_>) -> Vec<Table> {
    // CAST: stretches are few.
    let length = measured.window.seconds / STRETCHES as f64;
    let columns: Vec<String> = (0..STRETCHES)
        .map(|index| format!("{:.1} s", index as f64 * length))
        .collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let rate = measured.rates.of(measured.service);
    let mut arrivals = measured.window.times(rate);
    arrivals.retain(|time| *time >= 0.0);
    let times = numbers(&measured.answer["times_us"]);
    let parts = by_stretch(arrivals.iter().copied().zip(times), length);
    let title = |what: &str| format!("Over time, {}: {what}", measured.name);

    let mut tables = Vec::new();
    if measured.mechanism == ALONE {
        let offered = parts.iter().map(|part| vec![part.len() as f64 / length]);
        let mut table = Table::new(title("requests/s"), &columns);
        table.row(OFFERED, &offered.collect::<Vec<_>>());
        tables.push(table);
    }
    let mut latency = Table::new(title("p99 (us)"), &columns);
    let p99 = parts.into_iter().map(|mut part| {
        part.sort_by(f64::total_cmp);
        ranked(&part, 0.99).into_iter().collect()
    });
    latency.row(measured.mechanism, &p99.collect::<Vec<_>>());
    tables.push(latency);
    let alone = measured.rates.steps(PAIR.1);
    let Some(alone) = alone.filter(|_| !measured.trainings.is_empty()) else {
        return tables;
    };

    let ends = measured.trainings.iter().flat_map(|training| {
        let ends = numbers(&training["ends_us"]);
        ends.into_iter().map(|end| (end * 1e-6, end))
    });
    let kept = by_stretch(ends, length)
        .into_iter()
        .map(|part| vec![100.0 * part.len() as f64 / length / alone]);
    let mut steps = Table::new(title("steps of the training, of alone (%)"), &columns);
    steps.row(measured.mechanism, &kept.collect::<Vec<_>>());
    tables.push(steps);
    tables
}

/// Divides values by the stretch in which their moment lies. What comes later is left out.
fn by_stretch(values: impl Iterator<Item = (f64, f64)>, length: f64) -> Vec<Vec<f64>> {
    let mut parts = vec![Vec::new(); STRETCHES];
    for (moment, value) in values {
        // CAST: a moment beyond all stretches has none.
        if let Some(part) = parts.get_mut((moment / length) as usize) {
            part.push(value);
        }
    }
    parts
}
