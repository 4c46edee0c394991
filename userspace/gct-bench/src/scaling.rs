// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures how the time of each model depends on its TPCs (LithOS, section 5.5), and what that
//! would save.
//!
//! ```text
//! T(k) = parallel / k + serial        least squares over 1 / k
//! ```

use crate::models::{serve, BUILD, PATIENCE, SERVICES};
use crate::report::{Report, Table};
use crate::stacking::across_gpcs;
use crate::Cli;
use anyhow::Result;
use gct_hw::daemon::Daemon;
use gct_hw::kit::{number, Kit};

/// Requests of a measurement.
const REQUESTS: usize = 10;
/// How much slower a model may become.
const SLIPS: [f64; 3] = [1.03, 1.10, 1.20];

pub(crate) fn run(kit: &Kit, cli: &Cli, tpcs: &[&str], report: &mut Report) -> Result<()> {
    let daemon = Daemon::start(kit, &tpcs.join(","))?;
    daemon.create("sized")?;
    let mut program = serve(kit, &daemon.group("sized", ""))?;
    program.ready()?;
    program.ask(&format!("build-services {}", SERVICES.join(" ")))?;
    program.answer(BUILD)?;
    let counts: Vec<usize> = [12, 25, 37, 50, 62, 75, 87, 100]
        .iter()
        .map(|percent| (tpcs.len() * percent / 100).max(1))
        .collect();
    let columns: Vec<String> = counts.iter().map(|count| format!("{count} TPCs")).collect();
    let spread = across_gpcs(tpcs);
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    for _ in 0..cli.repeat {
        for (order, tpcs) in [("GPC by GPC", tpcs), ("one of each GPC in turn", &spread)] {
            let mut times = vec![Vec::new(); SERVICES.len()];
            for count in &counts {
                let mask = tpcs.get(..*count).unwrap_or(tpcs);
                daemon.set("sized", "tpc.mask", &mask.join(","))?;
                for (service, times) in SERVICES.iter().zip(&mut times) {
                    program.ask(&format!("cost {service} {REQUESTS}"))?;
                    times.push(number(&program.answer(PATIENCE)?, "us")?);
                }
            }
            for (service, times) in SERVICES.iter().zip(&times) {
                let mut table = Table::new(format!("Time by TPCs in us, {order}"), &columns);
                table.row(
                    service,
                    &times.iter().map(|us| vec![*us]).collect::<Vec<_>>(),
                );
                report.add(table);
                report.add(fitted(service, order, &counts, times));
            }
        }
        report.write(&cli.out, "scaling")?;
    }
    Ok(())
}

/// Returns a row: the fit, and for each of [`SLIPS`] the part of TPC-time that fewer TPCs save.
fn fitted(name: &str, order: &str, counts: &[usize], times: &[f64]) -> Table {
    let points: Vec<(f64, f64)> = counts
        .iter()
        .zip(times)
        .map(|(k, us)| (1.0 / *k as f64, *us))
        .collect();
    let fit = Fit::of(&points);
    let most = counts.last().copied().unwrap_or(1) as f64;
    let whole = times.last().copied().unwrap_or(1.0);
    let columns = [
        "serial part on all TPCs",
        "R2",
        "saved at 3%",
        "saved at 10%",
        "saved at 20%",
    ];
    let mut values = vec![vec![fit.serial / whole], vec![fit.r2]];
    for slip in SLIPS {
        let spent = counts
            .iter()
            .zip(times)
            .filter(|(_, us)| **us <= slip * whole);
        let least = spent
            .map(|(k, us)| *k as f64 * us)
            .fold(most * whole, f64::min);
        values.push(vec![1.0 - least / (most * whole)]);
    }
    let title = "Fit of T(k) = parallel / k + serial, and TPC-time saved";
    let mut table = Table::new(format!("{title}, {order}"), &columns);
    table.row(name, &values);
    table
}

/// A line through points. `r2` is the part of the variance that the line explains, 1 without any.
struct Fit {
    serial: f64,
    r2: f64,
}

impl Fit {
    fn of(points: &[(f64, f64)]) -> Self {
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| {
            points.iter().map(of).sum::<f64>() / points.len() as f64
        };
        let (x, y) = (mean(&|p| p.0), mean(&|p| p.1));
        let xx = mean(&|p| (p.0 - x) * (p.0 - x));
        let xy = mean(&|p| (p.0 - x) * (p.1 - y));
        let yy = mean(&|p| (p.1 - y) * (p.1 - y));
        // Equal times are all serial. Equal numbers of TPCs say nothing about the parallel part.
        let slope = if xx > 0.0 { xy / xx } else { 0.0 };
        let left = yy - slope * xy;
        Self {
            serial: y - slope * x,
            r2: if yy > 0.0 { 1.0 - left / yy } else { 1.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_no_tpc_helps_is_serial() {
        let table = fitted("model", "in any order", &[1, 10, 50, 100], &[7.0; 4]);
        let values = &table.rows[0].values;
        assert_eq!(values[0], [1.0]);
        assert_eq!(values[1], [1.0]);
        assert_eq!(values[2], [0.99]);
    }

    #[test]
    fn one_number_of_tpcs_explains_no_difference() {
        let fit = Fit::of(&[(0.1, 5.0), (0.1, 7.0)]);
        assert_eq!((fit.serial, fit.r2), (6.0, 0.0));
    }

    #[test]
    fn a_model_of_the_law_is_fitted_and_saves_what_it_does_not_use() {
        let counts = [1, 10, 50, 100];
        let times = counts.map(|k| 1000.0 / k as f64 + 100.0);
        let table = fitted("model", "in any order", &counts, &times);
        let values = &table.rows[0].values;
        // 110 us on 100 TPCs, of which 100 are serial; 120 us on 50.
        assert_eq!(values[0], [0.9091]);
        assert_eq!(values[1], [1.0]);
        assert_eq!(values[2], [0.0]);
        assert_eq!(values[3], [0.4545]);
    }
}
