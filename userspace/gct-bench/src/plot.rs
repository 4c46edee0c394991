// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Draws the tables as pictures (SVG).

use crate::dominance::{achieved, ALONE, OURS, P99};
use crate::legend::{letters, wrapped, BREAK};
use crate::report::{Point, Report, Table};
use crate::summary::percent;
use crate::{atoms, sweep};
use anyhow::{anyhow, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Size of one panel, and height of the header, in pixels.
const PANEL: (u32, u32) = (360, 290);
const HEADER: u32 = 42;
/// Average width of a letter of the header in pixels, and height of a line.
const LETTER: u32 = 6;
const LINE: i32 = 14;
/// Limits of the axes. A p99 above this multiple of the loop alone, or a throughput below this
/// percentage, is drawn at the edge.
const LATEST: f64 = 50.0;
const LEAST_RATE: f64 = 40.0;
const FONT: &str = "sans-serif";
const THEIRS: RGBColor = RGBColor(120, 120, 120);
const MINE: RGBColor = RGBColor(0, 90, 180);

pub(crate) fn failed(error: impl Display) -> anyhow::Error {
    anyhow!("a plot: {error}")
}

/// Draws every table of the report.
pub(crate) fn write(report: &Report, folder: &Path) -> Result<()> {
    let mut by_blocks: BTreeMap<u64, Vec<(&Table, Point)>> = BTreeMap::new();
    for table in &report.tables {
        if let Some(point) = table.point {
            by_blocks
                .entry(point.blocks_us)
                .or_default()
                .push((table, point));
        }
    }
    for (blocks_us, mut tables) in by_blocks {
        tables.sort_by_key(|(_, point)| (point.poisson, std::cmp::Reverse(point.period_us)));
        let panels: Vec<(String, &Table)> = tables
            .iter()
            .map(|(table, point)| {
                let arrivals = if point.poisson { "random" } else { "periodic" };
                let load = sweep::CRITICAL_US * 100 / point.period_us.max(1);
                (
                    format!("blocks {blocks_us} us, load {load} %, {arrivals}"),
                    *table,
                )
            })
            .collect();
        let columns = panels.len().div_ceil(2);
        trade_offs(&panels, columns, &folder.join(format!("{blocks_us}us.svg")))?;
    }
    let torch: Vec<(String, &Table)> = report
        .tables
        .iter()
        .filter(|table| table.title.starts_with("PyTorch inference"))
        .map(|table| {
            let graph = table.title.contains("graph");
            (
                if graph {
                    "CUDA graph"
                } else {
                    "launch by launch"
                }
                .to_string(),
                table,
            )
        })
        .collect();
    trade_offs(&torch, 2, &folder.join("torch.svg"))?;
    let with = |word: &str| -> Vec<&Table> {
        let tables = report.tables.iter();
        tables.filter(|table| table.title.contains(word)).collect()
    };
    costs(&with(atoms::TITLE), &folder.join("atoms.svg"))?;
    silences(&with("fell silent"), &folder.join("silence.svg"))
}

fn panels(
    file: &Path,
    header: &str,
    count: usize,
    columns: usize,
    draw: impl Fn(usize, &Area<'_>) -> Result<()>,
) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let rows = count.div_ceil(columns.max(1));
    // CAST: some panels.
    let size = (PANEL.0 * columns as u32, HEADER + PANEL.1 * rows as u32);
    let root = SVGBackend::new(file, size).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let (above, below) = root.split_vertically(HEADER);
    let style = (FONT, 12).into_text_style(&above);
    // CAST: a few hundred.
    let lines = wrapped(header, (size.0 / LETTER) as usize);
    for (line, at) in lines.iter().zip((6..).step_by(LINE as usize)) {
        above.draw_text(line, &style, (8, at)).map_err(failed)?;
    }
    let areas = below.split_evenly((rows, columns));
    for (number, area) in areas.iter().enumerate().take(count) {
        draw(number, area)?;
    }
    root.present().map_err(failed)
}

/// Draws p99 against throughput, with a letter for each mechanism. Capitals are ours.
fn trade_offs(tables: &[(String, &Table)], columns: usize, file: &Path) -> Result<()> {
    let Some((_, first)) = tables.first() else {
        return Ok(());
    };
    let letters = letters(first);
    let legend: Vec<String> = letters
        .iter()
        .map(|(name, letter)| format!("{letter} {}", name.trim_start_matches(OURS)))
        .collect();
    panels(
        file,
        &legend.join(BREAK),
        tables.len(),
        columns,
        |number, area| {
            tables.get(number).map_or(Ok(()), |(title, table)| {
                trade_off(title, table, &letters, area)
            })
        },
    )
}

fn trade_off(
    title: &str,
    table: &Table,
    letters: &[(String, char)],
    area: &Area<'_>,
) -> Result<()> {
    let ways: Vec<(&str, f64, f64)> = achieved(table)
        .iter()
        .filter_map(|way| Some((way.name, way.p99.median, percent(table, way.rate.median)?)))
        .collect();
    let alone = table.get(ALONE).and_then(|row| row.spread(P99));
    let (least, _) = range(ways.iter().map(|way| way.1));
    let alone = alone.map_or(least, |p99| p99.median);
    let (left, right) = (least.min(alone) * 0.8, alone * LATEST);
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 13))
        .margin(6)
        .x_label_area_size(28)
        .y_label_area_size(38)
        .build_cartesian_2d((left..right * 1.2).log_scale(), LEAST_RATE - 2.0..103.0)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_desc("p99 (us)")
        .y_desc("best effort, % of MPS")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .x_labels(4)
        .y_labels(7)
        .label_style((FONT, 10))
        .draw()
        .map_err(failed)?;
    let line = LineSeries::new([(alone, LEAST_RATE), (alone, 103.0)], BLACK.mix(0.3));
    chart.draw_series(line).map_err(failed)?;
    for (name, p99, rate) in ways {
        let Some((_, letter)) = letters.iter().find(|(known, _)| known == name) else {
            continue;
        };
        let colour = match name.starts_with(OURS) {
            true => MINE,
            false => THEIRS,
        };
        let at = (p99.min(right), rate.max(LEAST_RATE));
        let style = (FONT, 11).into_font().color(&colour);
        let centre = Pos::new(HPos::Center, VPos::Center);
        let text = Text::new(letter.to_string(), at, style.pos(centre));
        chart.draw_series([text]).map_err(failed)?;
    }
    Ok(())
}

/// Returns the minimum and maximum of positive numbers.
fn range(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    let (least, most) = numbers.fold((f64::MAX, 0.0), |(a, b): (f64, f64), n| {
        (a.min(n), b.max(n))
    });
    if least > most {
        (1.0, 10.0)
    } else {
        (least.max(1e-3), most.max(least * 1.5))
    }
}

/// Draws the cost of parts against their length.
fn costs(tables: &[&Table], file: &Path) -> Result<()> {
    let head = "A kernel in parts: time by the length of a part";
    panels(file, head, tables.len(), 2, |number, area| {
        tables.get(number).map_or(Ok(()), |table| {
            let title = table.title.split(": ").nth(1).unwrap_or(&table.title);
            let us = |column: &String| column.strip_suffix(" us").and_then(|n| n.parse().ok());
            let lines: Vec<(String, Vec<(f64, f64)>)> = table
                .rows
                .iter()
                .map(|row| {
                    let at = table.columns.iter().enumerate();
                    let series = at.filter_map(|(n, c)| Some((us(c)?, row.spread(n)?.median)));
                    (row.name.clone(), series.collect::<Vec<_>>())
                })
                .filter(|(_, series)| !series.is_empty())
                .collect();
            let (least, most) = range(lines.iter().flatten_pairs().map(|(_, y)| y));
            let x = (4.0..1300.0).log_scale();
            let y = (least * 0.97..most * 1.3).log_scale();
            let mut chart = ChartBuilder::on(area)
                .caption(title, (FONT, 12))
                .margin(6)
                .x_label_area_size(28)
                .y_label_area_size(38)
                .build_cartesian_2d(x, y)
                .map_err(failed)?;
            chart
                .configure_mesh()
                .disable_mesh()
                .x_desc("length of a part (us)")
                .y_desc("time, ratio to whole")
                .label_style((FONT, 10))
                .draw()
                .map_err(failed)?;
            draw_lines(&mut chart, &lines, SeriesLabelPosition::UpperRight)
        })
    })
}

/// Draws throughput against time.
fn silences(tables: &[&Table], file: &Path) -> Result<()> {
    let head = "Best effort after a latency-critical loop fell silent";
    panels(file, head, tables.len(), 2, |number, area| {
        tables.get(number).map_or(Ok(()), |table| {
            let title = table
                .title
                .split(" after a loop of ")
                .nth(1)
                .unwrap_or_default();
            let title = title.split(" fell").next().unwrap_or_default();
            let at: Vec<f64> = table
                .columns
                .iter()
                .filter_map(|c| c.parse().ok())
                .collect();
            let lines: Vec<(String, Vec<(f64, f64)>)> = table
                .rows
                .iter()
                .map(|row| {
                    let rates = row.values.iter().filter_map(|v| v.first().copied());
                    let series = at.iter().map(|at| at / 1e3).zip(rates);
                    (row.name.clone(), series.collect())
                })
                .collect();
            let rates = lines.iter().flatten_pairs().map(|(_, y)| y);
            let least = rates.fold(100.0, f64::min);
            let mut chart = ChartBuilder::on(area)
                .caption(title, (FONT, 12))
                .margin(6)
                .x_label_area_size(28)
                .y_label_area_size(38)
                .build_cartesian_2d(-1.0..12.0, (least - 12.0).max(0.0)..104.0)
                .map_err(failed)?;
            chart
                .configure_mesh()
                .disable_mesh()
                .x_desc("since the silence began (ms)")
                .y_desc("best effort, % of alone")
                .label_style((FONT, 10))
                .draw()
                .map_err(failed)?;
            draw_lines(&mut chart, &lines, SeriesLabelPosition::LowerRight)
        })
    })
}

/// Iterates over all pairs of all series.
trait FlattenPairs<'a> {
    fn flatten_pairs(self) -> impl Iterator<Item = (f64, f64)> + 'a;
}

impl<'a, I: Iterator<Item = &'a (String, Vec<(f64, f64)>)> + 'a> FlattenPairs<'a> for I {
    fn flatten_pairs(self) -> impl Iterator<Item = (f64, f64)> + 'a {
        self.flat_map(|(_, series)| series.iter().copied())
    }
}

fn draw_lines<'a, 'b: 'a, X, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>,
    lines: &[(String, Vec<(f64, f64)>)],
    legend: SeriesLabelPosition,
) -> Result<()>
where
    X: plotters::coord::ranged1d::Ranged<ValueType = f64>,
    Y: plotters::coord::ranged1d::Ranged<ValueType = f64>,
{
    for (number, (name, series)) in lines.iter().enumerate() {
        let colour = Palette99::pick(number).to_rgba();
        chart
            .draw_series(LineSeries::new(series.iter().copied(), colour))
            .map_err(failed)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour));
    }
    chart
        .configure_series_labels()
        .position(legend)
        .background_style(WHITE.mix(0.7))
        .label_font((FONT, 9))
        .draw()
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dominance::COLUMNS;

    #[test]
    fn every_point_is_in_a_picture() {
        let folder = std::env::temp_dir().join(format!("gct-plot-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut report = Report::default();
        for poisson in [false, true] {
            let mut table = Table::new(format!("t {poisson}"), &COLUMNS);
            table.point = Some(Point {
                blocks_us: 25,
                period_us: 250,
                poisson,
            });
            let samples = |p99: f64, rate: &[f64]| [vec![], vec![], vec![p99], rate.to_vec()];
            table.row(ALONE, &samples(40.0, &[]));
            table.row("MPS", &samples(2300.0, &[400.0]));
            table.row("gct quota", &samples(44.0, &[390.0]));
            report.add(table);
        }
        write(&report, &folder).unwrap();
        let text = std::fs::read_to_string(folder.join("25us.svg")).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        assert!(text.contains("a MPS, A quota"), "{text}");
        for letter in ["\na\n", "\nA\n"] {
            assert_eq!(text.matches(letter).count(), 2, "{text}");
        }
        assert!(text.contains("load 10 %, random"));
        assert!(text.len() < 20_000, "{} bytes", text.len());
    }
}
