// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Draws the tables of one file as one picture (SVG).
//!
//! ```text
//! tables whose columns are numbers       a panel each, a line for each row; else
//! tables of services beside trainings    a row each, a dot for each mechanism
//! ```

use crate::dominance::{ALONE, P99, RATE};
use crate::legend::wrapped;
use crate::plot::failed;
use crate::report::{Report, Table};
use crate::{models, scenes};
use anyhow::{ensure, Result};
use plotters::coord::types::RangedCoordf64;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

const FONT: &str = "sans-serif";
/// Width of the names of rows and of a panel of dots; height of a row, and of the title and axis of
/// a panel together, in pixels.
const NAMES: u32 = 330;
const DOTS: u32 = 330;
const ROW: u32 = 18;
const FRAME: u32 = 76;
/// Size of a panel of lines, and letters in a line of its title.
const PANEL: (u32, u32) = (420, 300);
const LETTERS: usize = 62;
/// Average width of a letter of the legend.
const LETTER: i32 = 7;
/// A panel of lines is logarithmic if its values differ by more than this factor.
const LINEAR: f64 = 30.0;

/// A linear or logarithmic axis. plotters sees the logarithms as a linear one.
#[derive(Clone, Copy)]
struct Axis {
    logarithmic: bool,
    least: f64,
    most: f64,
}

impl Axis {
    /// Makes room for all of `values`.
    fn of(values: impl Iterator<Item = f64>, logarithmic: bool) -> Self {
        let usable = values.filter(|value| !logarithmic || *value > 0.0);
        let (least, most) = usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), value| {
            (a.min(value), b.max(value))
        });
        let (least, most) = match (least <= most, logarithmic) {
            (false, _) => (1.0, 10.0),
            (true, false) => (least.min(0.0), most * 1.05),
            (true, true) => (least / 1.15, most * 1.15),
        };
        Self {
            logarithmic,
            least,
            most: most.max(least + f64::EPSILON),
        }
    }

    fn at(self, value: f64) -> f64 {
        match self.logarithmic {
            true => value.max(self.least).log10(),
            false => value,
        }
    }

    fn range(self) -> std::ops::Range<f64> {
        self.at(self.least)..self.at(self.most)
    }

    /// Formats the value at a place of the axis, with two digits.
    fn label(self, at: f64) -> String {
        let value = if self.logarithmic { 10f64.powf(at) } else { at };
        match value.abs() {
            v if v >= 10.0 => format!("{value:.0}"),
            v if v >= 1.0 => format!("{value:.1}"),
            _ => format!("{value:.2}"),
        }
    }
}

/// Draws a report as `file`.
pub(crate) fn write(report: &Report, file: &Path) -> Result<()> {
    let pairs: Vec<&Table> = report
        .tables
        .iter()
        .filter(|table| {
            [models::TITLE, scenes::TITLE]
                .iter()
                .any(|t| table.title.starts_with(t))
        })
        .collect();
    let series: Vec<&Table> = report.tables.iter().filter(|t| is_numeric(t)).collect();
    ensure!(
        !pairs.is_empty() || !series.is_empty(),
        "no table of services beside trainings, and none whose columns are numbers: \
         gct-bench --show draws the others"
    );
    // Pairs over time are both.
    match series.is_empty() {
        false => lines(&series, file),
        true => dots(&pairs, file),
    }
}

/// Returns whether each column is a number, with or without a unit.
fn is_numeric(table: &Table) -> bool {
    let number = |column: &String| {
        let word = column.split(' ').next().unwrap_or_default();
        word.parse::<f64>().is_ok()
    };
    !table.columns.is_empty() && table.columns.iter().all(number)
}

/// Returns the names of all rows, in the order of their first use.
fn names<'a>(tables: &[&'a Table]) -> Vec<&'a str> {
    let mut names = Vec::new();
    for row in tables.iter().flat_map(|table| &table.rows) {
        if !names.contains(&row.name.as_str()) && row.values.iter().any(|v| !v.is_empty()) {
            names.push(&row.name);
        }
    }
    names
}

fn colour(number: usize) -> RGBAColor {
    Palette99::pick(number).to_rgba()
}

/// Returns the places of a legend's names, in lines of at most `width` pixels, and its height.
fn placed(names: &[&str], width: u32) -> (Vec<(i32, i32)>, u32) {
    let (mut x, mut y) = (10, 16);
    let mut places = Vec::new();
    for name in names {
        // CAST: names are short, pictures some hundred pixels wide.
        let needed = 28 + LETTER * name.chars().count() as i32;
        if x > 10 && x + needed > width as i32 {
            (x, y) = (10, y + 18);
        }
        places.push((x, y));
        x += needed;
    }
    // CAST: as above.
    (places, y as u32 + 16)
}

/// Begins a picture below a legend: a mark and a name for each series.
fn picture<'a>(file: &'a Path, names: &[&str], (width, height): (u32, u32)) -> Result<Area<'a>> {
    let (places, above) = placed(names, width);
    let root = SVGBackend::new(file, (width, above + height)).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let style = (FONT, 12).into_text_style(&root);
    for (number, (name, (x, y))) in names.iter().zip(places).enumerate() {
        let mark = Circle::new((x, y), 4, colour(number).filled());
        root.draw(&mark).map_err(failed)?;
        root.draw_text(name, &style, (x + 8, y - 6))
            .map_err(failed)?;
    }
    Ok(root.split_vertically(above).1)
}

/// Draws a row for each table: p99 of the service and steps of the training under each mechanism,
/// both relative to alone.
fn dots(tables: &[&Table], file: &Path) -> Result<()> {
    let mut mechanisms = names(tables);
    mechanisms.retain(|name| *name != ALONE);
    // CAST: tables are few.
    let size = (NAMES + 2 * DOTS, FRAME + ROW * tables.len() as u32);
    let root = picture(file, &mechanisms, size)?;
    let (left, right) = root.split_horizontally(NAMES + DOTS);
    let ratio = |table: &Table, name: &str, column: usize| {
        let (row, alone) = (table.get(name)?, table.get(ALONE)?);
        match column {
            P99 => row.ratio_by_round(alone, column),
            _ => Some(100.0 * row.ratio(alone, column)?),
        }
    };
    let panels = [
        (&left, P99, "p99 of the service, to alone", NAMES),
        (&right, RATE, "steps of the trainings, % of one alone", 10),
    ];
    for (area, column, title, labels) in panels {
        let all = tables.iter().flat_map(|table| {
            let of = move |name: &&str| ratio(table, name, column);
            mechanisms.iter().filter_map(of).collect::<Vec<_>>()
        });
        let axis = Axis::of(all, column == P99);
        let mut chart = rows(area, title, tables, axis, labels)?;
        for (number, name) in mechanisms.iter().enumerate() {
            let marks = tables.iter().enumerate().filter_map(|(at, table)| {
                let x = axis.at(ratio(table, name, column)?);
                Some(Circle::new((x, place(at)), 4, colour(number).filled()))
            });
            chart.draw_series(marks).map_err(failed)?;
        }
    }
    root.present().map_err(failed)
}

/// Returns the height of a row. The first is on top.
fn place(row: usize) -> f64 {
    // CAST: rows are few.
    -(row as f64)
}

/// Draws the frame of a panel with a row for each table.
fn rows<'a, 'b>(
    area: &Area<'b>,
    title: &str,
    tables: &'a [&'a Table],
    axis: Axis,
    labels: u32,
) -> Result<Chart<'a, 'b>> {
    let least = place(tables.len()) + 0.4;
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 13))
        .margin(8)
        .margin_right(24)
        .x_label_area_size(26)
        .y_label_area_size(labels)
        .build_cartesian_2d(axis.range(), least..0.6)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| axis.label(*x))
        .y_labels(0)
        .x_labels(6)
        .label_style((FONT, 10))
        .draw()
        .map_err(failed)?;
    let range = axis.range();
    if labels > 100 {
        let right = Pos::new(HPos::Right, VPos::Center);
        let style = (FONT, 11).into_font().color(&BLACK).pos(right);
        let names = tables.iter().enumerate().map(|(at, table)| {
            let name = [models::TITLE, scenes::TITLE]
                .iter()
                .fold(table.title.as_str(), |name, t| name.trim_start_matches(t));
            EmptyElement::at((range.start, place(at)))
                + Text::new(name.to_string(), (-8, 0), style.clone())
        });
        chart.draw_series(names).map_err(failed)?;
    }
    let grid = (0..tables.len()).map(|at| {
        PathElement::new(
            [(range.start, place(at)), (range.end, place(at))],
            BLACK.mix(0.1),
        )
    });
    chart.draw_series(grid).map_err(failed)?;
    Ok(chart)
}

/// Draws a panel for each table: its columns at equal distances, a line for each row.
fn lines(tables: &[&Table], file: &Path) -> Result<()> {
    let columns = tables.len().min(2);
    let rows = tables.len().div_ceil(columns.max(1));
    // CAST: tables are few.
    let size = (PANEL.0 * columns as u32, PANEL.1 * rows as u32);
    let names = names(tables);
    let root = picture(file, &names, size)?;
    let areas = root.split_evenly((rows, columns));
    for (table, area) in tables.iter().zip(&areas) {
        panel(table, &names, area)?;
    }
    root.present().map_err(failed)
}

fn panel(table: &Table, names: &[&str], area: &Area<'_>) -> Result<()> {
    let style = (FONT, 12).into_text_style(area);
    for (line, y) in wrapped(&table.title, LETTERS).iter().zip([6, 20]) {
        area.draw_text(line, &style, (10, y)).map_err(failed)?;
    }
    let (_, area) = area.split_vertically(34);
    let line = |name: &str| -> Vec<(usize, f64)> {
        let row = table.get(name);
        let at = 0..table.columns.len();
        at.filter_map(|at| Some((at, row?.spread(at)?.median)))
            .collect()
    };
    let lines: Vec<Vec<(usize, f64)>> = names.iter().map(|name| line(name)).collect();
    let values = || lines.iter().flatten().map(|(_, y)| *y);
    let positive = values().filter(|y| *y > 0.0);
    let least = positive.fold(f64::INFINITY, f64::min);
    let axis = Axis::of(values(), values().any(|y| y > LINEAR * least));
    // CAST: columns are few.
    let last = table.columns.len().saturating_sub(1) as f64;
    let mut chart = ChartBuilder::on(&area)
        .margin(8)
        .x_label_area_size(22)
        .y_label_area_size(38)
        .build_cartesian_2d(-0.1..last + 0.1, axis.range())
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .y_label_formatter(&|y| axis.label(*y))
        .x_labels(0)
        .label_style((FONT, 10))
        .draw()
        .map_err(failed)?;
    let below = Pos::new(HPos::Center, VPos::Top);
    let style = (FONT, 10).into_font().color(&BLACK).pos(below);
    let bottom = axis.range().start;
    let labels = table.columns.iter().enumerate().map(|(at, name)| {
        // CAST: as above.
        EmptyElement::at((at as f64, bottom)) + Text::new(name.clone(), (0, 6), style.clone())
    });
    chart.draw_series(labels).map_err(failed)?;
    for (number, points) in lines.iter().enumerate() {
        // CAST: as above.
        let points = points.iter().map(|(x, y)| (*x as f64, axis.at(*y)));
        let series = LineSeries::new(points, colour(number).stroke_width(2)).point_size(3);
        chart.draw_series(series).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dominance::COLUMNS;
    use crate::samples::{results, Samples};

    /// Draws a report, and returns the picture's text.
    fn drawn(name: &str, tables: Vec<Table>) -> Result<String> {
        let file = std::env::temp_dir().join(format!("gct-{name}-{}.svg", std::process::id()));
        let mut report = Report::default();
        tables.into_iter().for_each(|table| report.add(table));
        write(&report, &file)?;
        let text = std::fs::read_to_string(&file)?;
        std::fs::remove_file(file)?;
        Ok(text)
    }

    #[test]
    fn a_pair_has_a_row_and_a_mechanism_two_dots() {
        let mut table = Table::new("Service bert beside training lora", &COLUMNS);
        let row = |p99: f64, rate: f64| [vec![1.0], vec![1.0], vec![p99], vec![rate]];
        table.row(ALONE, &row(100.0, 50.0));
        table.row("MPS", &row(900.0, 40.0));
        let text = drawn("dots", vec![table]).unwrap();
        assert!(text.contains("\nbert beside training lora\n"), "{text}");
        // One in the legend.
        assert_eq!(text.matches("<circle").count(), 3, "{text}");
    }

    #[test]
    fn a_table_of_numbers_has_lines() {
        let mut table = Table::new("Rate", &["0 TPCs", "33 TPCs"]);
        table.row("stream", &[vec![1.0], vec![0.5]]);
        let text = drawn("lines", vec![table]).unwrap();
        for word in ["\n0 TPCs\n", "\n33 TPCs\n", "\nstream\n", "\nRate\n"] {
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn committed_pictures_are_those_of_their_samples() {
        let samples = Samples::take_out("pictures");
        for name in [
            "bandwidth-h200",
            "models-h100-6",
            "models-h100-load",
            "models-h100-services",
            "models-h100-tenants",
            "models-h200",
            "processor-h100",
        ] {
            let tables = samples.read(name).tables;
            let picture =
                std::fs::read_to_string(results().join(name).with_extension("svg")).unwrap();
            assert!(
                drawn(name, tables).unwrap() == picture,
                "gct-bench plot {name}.json draws another picture"
            );
        }
    }

    #[test]
    fn a_long_legend_is_wrapped() {
        let (places, height) = placed(&["first", "second", "third"], 160);
        assert_eq!(
            places.iter().map(|(_, y)| *y).collect::<Vec<_>>(),
            [16, 16, 34]
        );
        assert_eq!((places[2].0, height), (10, 50));
    }

    #[test]
    fn other_tables_are_refused() {
        let error = drawn("none", vec![Table::new("t", &["x"])]).unwrap_err();
        assert!(error.to_string().contains("--show"), "{error}");
    }

    #[test]
    fn an_axis_holds_all_values() {
        let axis = Axis::of([0.0, 2.0, 200.0].into_iter(), true);
        assert!(axis.range().start < 2f64.log10() && axis.range().end > 200f64.log10());
        assert_eq!(axis.label(1.0), "10");
        assert!(Axis::of(std::iter::empty(), false).least < 10.0);
    }
}
