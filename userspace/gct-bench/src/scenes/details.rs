// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Hands each window of a scene to what makes further tables of it.

use super::{Rates, Scene};
use crate::models::Window;
use crate::report::Report;
use serde_json::Value;

/// One window of a service, and of its neighbours.
pub(crate) struct Measured<'a> {
    /// What the title of the service's table says of it.
    pub(crate) name: &'a str,
    pub(crate) mechanism: &'a str,
    pub(crate) window: &'a Window,
    pub(crate) service: (&'static str, f64),
    pub(crate) answer: &'a Value,
    pub(crate) trainings: &'a [Value],
    pub(crate) rates: &'a Rates,
}

impl Scene {
    /// Adds the further tables of the service at `index`.
    pub(crate) fn detail(
        &self,
        index: usize,
        (mechanism, window): (&str, &Window),
        (answer, trainings): (&Value, &[Value]),
        rates: &Rates,
        report: &mut Report,
    ) {
        let tables = (self.details)(&Measured {
            name: self.table(index).title.trim_start_matches(self.title),
            mechanism,
            window,
            service: self.services.get(index).copied().unwrap_or_default(),
            answer,
            trainings,
            rates,
        });
        tables.into_iter().for_each(|table| report.add(table));
    }
}

#[cfg(test)]
mod tests {
    use super::super::scenes;
    use super::*;
    use crate::arrivals::Arrivals;
    use crate::dominance::ALONE;
    use crate::eight::{EIGHT, SERVICES as EIGHT_SERVICES};
    use crate::traffic::{STRETCHES, TRAFFIC};
    use crate::Cli;
    use clap::Parser;
    use serde_json::json;

    /// Measures a window of the only service of a part's scene, alone and beside its trainings.
    fn measured(part: &str, rates: &Rates, training: &Value) -> (Report, usize) {
        let cli = Cli::parse_from(["gct-bench", "--seconds", "0.2"]);
        let scene = &scenes(part, Arrivals::Poisson)[0];
        let mut report = Report::default();
        let window = scene.window(0, &cli, ALONE, rates, &report);
        let times = window.times(rates.of(scene.services[0]));
        let count = times.iter().filter(|time| **time >= 0.0).count();
        let answer = json!({ "times_us": vec![70.0; count] });
        scene.detail(0, (ALONE, &window), (&answer, &[]), rates, &mut report);
        let trainings = [training.clone()];
        let both = (&answer, trainings.as_slice());
        scene.detail(0, ("MPS", &window), both, rates, &mut report);
        (report, count)
    }

    #[test]
    fn a_window_has_a_column_for_each_stretch() {
        let mut rates = Rates::default();
        rates.services.insert("bert", 800.0);
        rates.trainings.insert("bert", 20.0);
        // Eight seconds: steps a tenth of a second apart, then none in the last second.
        let ends: Vec<u32> = (0..70).map(|step| step * 100_000).collect();
        let (report, count) = measured(TRAFFIC, &rates, &json!({ "ends_us": ends }));
        let [offered, latency, steps] = report.tables.as_slice() else {
            panic!("{:?}", report.tables);
        };
        let offered = offered.get("offered").unwrap();
        assert_eq!(offered.values.len(), STRETCHES);
        let sum: f64 = offered.values.iter().flatten().sum();
        assert!((sum - count as f64).abs() < 2.0, "{sum} {count}");
        assert!(latency
            .get("MPS")
            .unwrap()
            .values
            .iter()
            .all(|p99| *p99 == [70.0]));
        let kept = &steps.get("MPS").unwrap().values;
        assert!(kept[..7].iter().all(|kept| *kept == [50.0]), "{kept:?}");
        assert_eq!(kept[7], [0.0]);
    }

    #[test]
    fn each_of_eight_services_has_a_column() {
        let mut rates = Rates::default();
        rates.services.insert(EIGHT_SERVICES[0], 1000.0);
        let (report, _) = measured(EIGHT, &rates, &json!({}));
        let [table] = report.tables.as_slice() else {
            panic!("{:?}", report.tables);
        };
        // Each request takes 70 us, and 8 times one alone is 8 ms.
        let row = &table.get("MPS").unwrap().values;
        assert_eq!((row[0].as_slice(), row[1].len()), ([100.0].as_slice(), 0));
        assert_eq!(row[8], [100.0]);
        assert_eq!(table.columns.len(), 9);
    }
}
