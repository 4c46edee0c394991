// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Formats scenes as Markdown, relative to the programs alone.

use super::TITLE;
use crate::dominance::{ALONE, P99, RATE};
use crate::goodput::{self, Bounds};
use crate::report::Table;
use crate::summary;

/// Formats a line per table: for each mechanism p99 as a multiple of that alone, and the steps of
/// all trainings as a part of those of one alone.
pub(crate) fn markdown(tables: &[&Table]) -> String {
    let tables = &of_services(tables);
    let name = |table: &Table| table.title.replace(TITLE, "");
    summary::by_mechanism(tables, &names(tables), name, cell)
}

/// Leaves out the details of windows, which are no percentiles of a service.
fn of_services<'a>(tables: &[&'a Table]) -> Vec<&'a Table> {
    let all = tables.iter().copied();
    all.filter(|table| table.title.starts_with(TITLE)).collect()
}

fn names<'a>(tables: &[&'a Table]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for row in tables.iter().flat_map(|table| &table.rows) {
        if row.name != ALONE && !names.contains(&row.name.as_str()) {
            names.push(&row.name);
        }
    }
    names
}

/// Formats a line per scene: for each mechanism the steps of the trainings as a part of what the
/// services leave, the requests in time of each service, and the goodput of all together.
pub(crate) fn in_time(tables: &[&Table]) -> String {
    let tables = &of_services(tables);
    let groups = together(tables);
    let first: Vec<&Table> = groups
        .iter()
        .filter_map(|group| group.first())
        .copied()
        .collect();
    let of = |table: &Table| {
        let holds = |group: &&Vec<&Table>| group.first().is_some_and(|f| f.title == table.title);
        groups.iter().find(holds).map_or(&[][..], Vec::as_slice)
    };
    let name = |table: &Table| {
        let services = of(table).iter().map(|table| parts(table).1);
        let services = services.collect::<Vec<_>>().join(", ");
        format!("{}: {services}", parts(table).0.replace(TITLE, ""))
    };
    summary::by_mechanism(&first, &names(tables), name, |table, mechanism| {
        work(of(table), mechanism)
    })
}

/// Returns the scene of a table, and the service with its load.
fn parts(table: &Table) -> (&str, &str) {
    table.title.rsplit_once(": ").unwrap_or((&table.title, ""))
}

/// Groups the tables of services that run at the same time. A scene that is measured at many loads
/// has the same service in each of its tables.
fn together<'a>(tables: &[&'a Table]) -> Vec<Vec<&'a Table>> {
    let model = |table: &Table| parts(table).1.split(' ').next().map(str::to_string);
    let mut groups: Vec<Vec<&Table>> = Vec::new();
    for table in tables {
        let joins = |group: &&mut Vec<&Table>| {
            group
                .iter()
                .all(|other| parts(other).0 == parts(table).0 && model(other) != model(table))
        };
        match groups.last_mut().filter(joins) {
            Some(group) => group.push(table),
            None => groups.push(vec![table]),
        }
    }
    groups
}

/// Formats what the services and the trainings of one scene get done under a mechanism.
fn work(tables: &[&Table], mechanism: &str) -> Option<String> {
    let (mut load, mut steps, mut each) = (0.0, 0.0, Vec::new());
    let mut goodput = Bounds::default();
    for table in tables {
        let (row, alone) = (table.get(mechanism)?, table.get(ALONE)?);
        let (part, in_time) = (goodput::load(&table.title)?, goodput::in_time(row, alone)?);
        load += part;
        // The trainings are the same in each table of a scene.
        steps = row.ratio(alone, RATE)?;
        goodput = goodput.and(part, in_time);
        each.push(in_time.percent());
    }
    let goodput = goodput.and(1.0, Bounds::exactly(steps));
    // Services of half a load each leave nothing.
    let left = match load < 1.0 {
        true => format!("{:.0}%", 100.0 * steps / (1.0 - load)),
        false => "-".into(),
    };
    Some(format!("{left}; {}; {}", each.join(", "), goodput.text()))
}

fn cell(table: &Table, mechanism: &str) -> Option<String> {
    let (row, alone) = (table.get(mechanism)?, table.get(ALONE)?);
    let p99 = row.ratio_by_round(alone, P99)?;
    Some(format!(
        "{p99:.2} ({:.0}%)",
        100.0 * row.ratio(alone, RATE)?
    ))
}

#[cfg(test)]
mod tests {
    use super::super::scenes;
    use super::*;
    use crate::arrivals::Arrivals;

    #[test]
    fn services_of_one_scene_share_what_is_left() {
        let scenes = scenes("services", Arrivals::Bursty);
        let mut tables = [scenes[0].table(0), scenes[0].table(1)];
        for table in &mut tables {
            let row = |p99: f64, rate: f64| [vec![1.0], vec![2.0], vec![p99], vec![rate]];
            table.row(ALONE, &row(3.0, 10.0));
            table.row("MPS", &row(9.0, 8.0));
        }
        let details = Table::new("Over time, a scene: p99 (us)", &["from 0.0 s"]);
        let mut both: Vec<&Table> = tables.iter().collect();
        both.push(&details);
        let text = in_time(&both);
        let last = text.lines().last().unwrap();
        assert_eq!(
            last,
            "| bert and resnet50 beside training lora: bert at 40%, bursty, resnet50 at 20%, bursty \
             | 200%; 95 to 99%, 95 to 99%; 1.37 to 1.39 |"
        );
    }

    #[test]
    fn loads_of_one_pair_are_scenes_of_their_own() {
        let tables: Vec<Table> = scenes("load", Arrivals::Poisson)
            .iter()
            .map(|scene| scene.table(0))
            .collect();
        assert_eq!(together(&tables.iter().collect::<Vec<_>>()).len(), 5);
    }

    #[test]
    fn p99_is_compared_within_a_round() {
        let scene = &scenes("load", Arrivals::Poisson)[0];
        let mut table = scene.table(0);
        let row = |p99: &[f64], rate: &[f64]| [vec![], vec![], p99.to_vec(), rate.to_vec()];
        table.row(ALONE, &row(&[100.0, 300.0, 100.0], &[50.0]));
        table.row("MPS", &row(&[110.0, 330.0, 500.0], &[20.0, 30.0, 40.0]));
        let text = markdown(&[&table]);
        let last = text.lines().last();
        assert_eq!(
            last,
            Some("| beside training resnet50: bert at 10% | 1.10 (60%) |")
        );
    }
}
