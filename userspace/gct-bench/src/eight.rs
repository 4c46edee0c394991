// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Judges many services beside one training as SGDRC (9.2) does.
//!
//! ```text
//! n     number of services
//! SLO   n * time of a request alone
//! ```
//!
//! SGDRC takes p99 of that time, which is longer than its median here.

use crate::goodput::{numbers, percent_within};
use crate::report::Table;
use crate::scenes::Measured;

/// The name of the part.
pub(crate) const EIGHT: &str = "eight";
/// The services: two instances of each of the four models with the shortest requests. Rare requests
/// of the others would need long windows. Each takes so much of the GPU's time alone.
pub(crate) const SERVICES: [&str; 8] = [
    "resnet50",
    "bert",
    "detector",
    "whisper",
    "resnet50-2",
    "bert-2",
    "detector-2",
    "whisper-2",
];
pub(crate) const LOAD: f64 = 0.06;
pub(crate) const TRAINING: &str = "resnet50";
/// Length of a window, as a multiple of other scenes'.
pub(crate) const LENGTH: f64 = 3.0;
/// The column of every service's values.
const ALL: &str = "all services";

/// Returns a table with a column for each service: its requests within the SLO.
pub(crate) fn within(measured: &Measured<'_>) -> Vec<Table> {
    let (name, _) = measured.service;
    // CAST: services are few.
    let slo = SERVICES.len() as f64 * 1e6 / measured.rates.of((name, 1.0));
    let times = numbers(&measured.answer["times_us"]);
    if times.is_empty() {
        return Vec::new();
    }
    let part = percent_within(&times, slo);
    let cell = |column: &&str| match *column == name || *column == ALL {
        true => vec![part],
        false => vec![],
    };
    let columns: Vec<&str> = SERVICES.into_iter().chain([ALL]).collect();
    let title = format!(
        "Eight services beside training {TRAINING}: requests within 8 times that of one alone (%)"
    );
    let mut table = Table::new(title, &columns);
    table.row(
        measured.mechanism,
        &columns.iter().map(cell).collect::<Vec<_>>(),
    );
    vec![table]
}
