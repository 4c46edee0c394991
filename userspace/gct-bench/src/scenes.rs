// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures scenes of the papers: services and trainings that share the GPU, each a process, with
//! the models of [`crate::models`]. The list of scenes is in `list`; some are measured by
//! [`crate::variants`] and [`crate::slices`].

use crate::arrivals::Arrivals;
use crate::budget::Budget;
use crate::dominance::ALONE;
use crate::goodput::{filled, MEASURED};
use crate::mechanisms::{self, Mechanism, Pair, Servers};
use crate::models::{self, Models, Window, LONGER, PATIENCE};
use crate::report::{Report, Table};
use crate::torch::LEAD;
use crate::Cli;
use anyhow::{Context, Result};
use fastrand::Rng;
use gct_hw::kit::{moment_in, number, Kit, RunEnv};
use gct_hw::served::Served;
use std::collections::BTreeMap;

mod details;
mod list;
mod text;

pub(crate) use details::Measured;
pub(crate) use list::scenes;
pub(crate) use text::{in_time, markdown};

/// First word of the title of each table.
pub(crate) const TITLE: &str = "Scene ";
/// The part that measures batches and lengths of the training.
pub(crate) const SIZES: &str = "sizes";
/// Requests that measure the time of one.
const REQUESTS: usize = 50;

/// Services and trainings that share the GPU.
#[derive(Clone)]
pub(crate) struct Scene {
    /// First words of the title of each table.
    title: &'static str,
    name: String,
    /// Model of each service, and the share of the GPU's time that it takes when it is alone. With
    /// all of it a request follows the other.
    services: Vec<(&'static str, f64)>,
    trainings: Vec<&'static str>,
    arrivals: Arrivals,
    /// Length of a window as a multiple of that of other scenes, whatever the number of requests.
    length: Option<f64>,
    /// Makes tables of one service beside that of its percentiles.
    details: fn(&Measured<'_>) -> Vec<Table>,
}

impl Scene {
    /// Returns a scene whose requests arrive at random.
    fn new(
        name: impl ToString,
        services: &[(&'static str, f64)],
        trainings: &[&'static str],
    ) -> Self {
        Self {
            title: TITLE,
            name: name.to_string(),
            services: services.to_vec(),
            trainings: trainings.to_vec(),
            arrivals: Arrivals::Poisson,
            length: None,
            details: |_| Vec::new(),
        }
    }

    /// Makes windows `length` times as long, and further tables of each.
    fn detailed(mut self, length: f64, details: fn(&Measured<'_>) -> Vec<Table>) -> Self {
        self.length = Some(length);
        self.details = details;
        self
    }

    /// Returns the next window of a mechanism, with the arrivals of the service at `index`. It is
    /// as long for each service.
    pub(crate) fn window(
        &self,
        index: usize,
        cli: &Cli,
        mechanism: &str,
        rates: &Rates,
        report: &Report,
    ) -> Window {
        let each = self.services.iter().map(|service| rates.of(*service));
        let slowest = each.fold(f64::INFINITY, f64::min);
        let title = self.table(index).title;
        let mut window = Window::of(cli, report, &title, mechanism, (self.arrivals, slowest));
        // CAST: services are few.
        window.seed += 1000 * index as u64;
        if let Some(length) = self.length {
            window.seconds = length * LONGER * cli.seconds;
        }
        window
    }

    /// Titles its tables by other words, and makes further tables of each window.
    fn titled(mut self, title: &'static str, details: fn(&Measured<'_>) -> Vec<Table>) -> Self {
        self.title = title;
        self.details = details;
        self
    }

    /// Returns the model and the load of the service at `index`.
    #[cfg(test)]
    pub(crate) fn service(&self, index: usize) -> (&'static str, f64) {
        self.services[index]
    }

    /// Returns the scene without its trainings.
    pub(crate) fn of_services(&self) -> Self {
        Self {
            trainings: Vec::new(),
            ..self.clone()
        }
    }

    /// Returns what the program of a service is asked for a window.
    fn request(
        &self,
        (name, load): (&'static str, f64),
        priority: u8,
        window: &Window,
        rates: &Rates,
    ) -> String {
        if load >= 1.0 {
            return format!(
                "again {name} {} {} {priority}",
                window.seconds, window.start
            );
        }
        let requests = window.requests(rates.of((name, load)));
        format!("infer {name} {priority} {requests}")
    }

    /// Returns the table of the service at `index`.
    fn table(&self, index: usize) -> Table {
        let (service, load) = self.services.get(index).copied().unwrap_or_default();
        Table::new(
            format!(
                "{}{}: {service} at {:.0}%{}",
                self.title,
                self.name,
                load * 100.0,
                self.arrivals.title()
            ),
            &MEASURED,
        )
    }
}

/// What the models do alone on the GPU.
#[derive(Default)]
pub(crate) struct Rates {
    /// Requests per second of each service without pauses.
    services: BTreeMap<&'static str, f64>,
    /// Steps per second of each training.
    trainings: BTreeMap<&'static str, f64>,
}

impl Rates {
    /// Returns the requests per second at which a service takes `load` of the GPU's time.
    pub(crate) fn of(&self, (service, load): (&str, f64)) -> f64 {
        self.services.get(service).copied().unwrap_or(1.0) * load
    }

    /// Returns the rates of two services and a training.
    #[cfg(test)]
    pub(crate) fn made(services: [(&'static str, f64); 2], training: (&'static str, f64)) -> Self {
        Self {
            services: services.into(),
            trainings: [training].into(),
        }
    }

    /// Returns the steps per second of a training.
    pub(crate) fn steps(&self, training: &str) -> Option<f64> {
        self.trainings.get(training).copied()
    }
}

/// Measures each scene of a part under each mechanism.
pub(crate) fn run(
    kit: &Kit,
    cli: &Cli,
    part: &str,
    tpcs: &[&str],
    report: &mut Report,
) -> Result<()> {
    let scenes = scenes(part, cli.requests);
    let native = RunEnv::native();
    let mut programs = Programs::start(kit, &|_| native.clone(), &native, &scenes)?;
    let rates = programs.alone(cli, &scenes, report)?;
    let servers = Servers::start(kit, tpcs)?;
    let pairs = servers.pairs(tpcs, report, |mechanism| {
        mechanism.beside && cli.measures(&mechanism.name)
    })?;
    let (stock, others): (Vec<Pair>, Vec<Pair>) = pairs
        .into_iter()
        .partition(|pair| pair.critical == native && pair.best_effort == native);
    let mut budget = Budget::new(cli.limit_seconds);
    // The programs that ran alone have their models already.
    mechanisms::in_rounds_within(
        stock,
        (cli, &mut budget),
        part,
        report,
        |pair, random, report| programs.windows(cli, pair, (&scenes, &rates), random, report),
    )?;
    drop(programs);
    mechanisms::in_rounds_within(
        others,
        (cli, &mut budget),
        part,
        report,
        |pair, random, report| {
            let critical = |_: &str| pair.critical.clone();
            let mut programs = Programs::start(kit, &critical, &pair.best_effort, &scenes)?;
            programs.windows(cli, pair, (&scenes, &rates), random, report)
        },
    )
}

/// Measures the models alone on the GPU, natively: the services at the load of each scene.
pub(crate) fn alone(kit: &Kit, cli: &Cli, scenes: &[Scene], report: &mut Report) -> Result<Rates> {
    let native = RunEnv::native();
    Programs::start(kit, &|_| native.clone(), &native, scenes)?.alone(cli, scenes, report)
}

/// The processes of all scenes of a part: one for each service, as many for each training as any
/// scene has.
pub(crate) struct Programs {
    services: Vec<(&'static str, Served)>,
    trainings: Vec<(&'static str, Served)>,
}

impl Programs {
    /// Starts them: each service where `critical` says, the trainings in `best_effort`.
    pub(crate) fn start(
        kit: &Kit,
        critical: &dyn Fn(&str) -> RunEnv,
        best_effort: &RunEnv,
        scenes: &[Scene],
    ) -> Result<Self> {
        let mut services: Vec<&'static str> = Vec::new();
        let mut trainings: Vec<&'static str> = Vec::new();
        for scene in scenes {
            let names = scene.services.iter().map(|(name, _)| *name);
            more(&mut services, &names.collect::<Vec<_>>());
            more(&mut trainings, &scene.trainings);
        }
        let critical: Vec<RunEnv> = services.iter().map(|name| critical(name)).collect();
        let first = critical
            .iter()
            .zip(&services)
            .map(|(env, name)| Models::Services(env, std::slice::from_ref(name)));
        let rest = trainings
            .iter()
            .map(|name| Models::Trainings(best_effort, std::slice::from_ref(name)));
        let mut started =
            models::start_all(kit, &first.chain(rest).collect::<Vec<_>>())?.into_iter();
        Ok(Self {
            services: services.into_iter().zip(started.by_ref()).collect(),
            trainings: trainings.into_iter().zip(started).collect(),
        })
    }

    /// Returns the process that has a service.
    fn service(&mut self, name: &str) -> Result<&mut Served> {
        let found = self.services.iter_mut().find(|(known, _)| *known == name);
        let (_, service) = found.with_context(|| format!("no program has the model {name}"))?;
        Ok(service)
    }

    /// Measures the models alone: the services at the load of each scene.
    pub(crate) fn alone(
        &mut self,
        cli: &Cli,
        scenes: &[Scene],
        report: &mut Report,
    ) -> Result<Rates> {
        let mut rates = Rates::default();
        for (name, service) in &mut self.services {
            service.ask(&format!("cost {name} {REQUESTS}"))?;
            let us = number(&service.answer(PATIENCE)?, "us")?;
            report.note(format!("{name}: {us:.0} us a request"));
            rates.services.insert(name, 1e6 / us);
        }
        for (name, training) in &mut self.trainings {
            if !rates.trainings.contains_key(name) {
                let seconds = LONGER * cli.seconds;
                training.ask(&format!("train {name} {} {seconds}", moment_in(LEAD)))?;
                let steps = number(&training.answer(PATIENCE)?, "launches_per_second")?;
                rates.trainings.insert(name, steps);
            }
        }
        for _ in 0..cli.repeat {
            for scene in scenes {
                for (index, (name, load)) in scene.services.iter().enumerate() {
                    let window = scene.window(index, cli, ALONE, &rates, report);
                    let service = self.service(name)?;
                    service.ask(&scene.request((name, *load), 0, &window, &rates))?;
                    let line = service.answer(PATIENCE)?;
                    scene.detail(index, (ALONE, &window), (&line, &[]), &rates, report);
                    let steps = scene
                        .trainings
                        .first()
                        .and_then(|name| rates.trainings.get(name));
                    let steps = steps.copied().into_iter().collect();
                    report.add(filled(report, scene.table(index), ALONE, &line, steps)?);
                }
            }
        }
        Ok(rates)
    }

    /// Measures each scene under each mechanism of a pair, in random order.
    fn windows(
        &mut self,
        cli: &Cli,
        pair: &Pair,
        (scenes, rates): (&[Scene], &Rates),
        random: &mut Rng,
        report: &mut Report,
    ) -> Result<()> {
        let mut windows: Vec<(&Mechanism, &Scene)> = pair
            .mechanisms
            .iter()
            .flat_map(|mechanism| scenes.iter().map(move |scene| (mechanism, scene)))
            .collect();
        random.shuffle(&mut windows);
        for (mechanism, scene) in windows {
            if let Err(error) = self.window(cli, mechanism, scene, rates, report) {
                report.note(format!("{}, {}: {error:#}", scene.name, mechanism.name));
                self.settle()?;
            }
        }
        Ok(())
    }

    /// Waits until no program owes an answer.
    pub(crate) fn settle(&mut self) -> Result<()> {
        let mut all = self.services.iter_mut().chain(&mut self.trainings);
        all.try_for_each(|(_, program)| program.settle(PATIENCE))
    }

    /// Measures one scene under one mechanism.
    pub(crate) fn window(
        &mut self,
        cli: &Cli,
        mechanism: &Mechanism,
        scene: &Scene,
        rates: &Rates,
        report: &mut Report,
    ) -> Result<()> {
        let together = moment_in(LEAD);
        let mut windows = Vec::new();
        let mut seconds = 0.0;
        for (index, (name, load)) in scene.services.iter().enumerate() {
            let mut window = scene.window(index, cli, &mechanism.name, rates, report);
            window.start.clone_from(&together);
            let priority = mechanism.high_priority && !mechanism.without.contains(name);
            let priority = u8::from(priority);
            seconds = window.seconds;
            let request = scene.request((name, *load), priority, &window, rates);
            self.service(name)?.ask(&request)?;
            windows.push(window);
        }
        let mut left = scene.trainings.clone();
        let mut busy = Vec::new();
        for (name, training) in &mut self.trainings {
            if let Some(at) = left.iter().position(|wanted| wanted == name) {
                left.swap_remove(at);
                training.ask(&format!("train {name} {together} {seconds}"))?;
                busy.push(training);
            }
        }
        let mut trained = Vec::new();
        let mut steps = 0.0;
        for training in busy {
            let line = training.answer(PATIENCE)?;
            steps += number(&line, "launches_per_second")?;
            trained.push(line);
        }
        for ((index, (name, _)), window) in scene.services.iter().enumerate().zip(&windows) {
            let line = self.service(name)?.answer(PATIENCE)?;
            let mechanism = mechanism.name.as_str();
            scene.detail(index, (mechanism, window), (&line, &trained), rates, report);
            report.add(filled(
                report,
                scene.table(index),
                mechanism,
                &line,
                vec![steps],
            )?);
        }
        Ok(())
    }
}

/// Extends `names` until each of `wanted` is in it as often as in `wanted`.
fn more(names: &mut Vec<&'static str>, wanted: &[&'static str]) {
    for name in wanted {
        let count = |names: &[&str]| names.iter().filter(|known| *known == name).count();
        if count(names) < count(wanted) {
            names.push(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_as_many_as_a_scene_needs() {
        let mut names = Vec::new();
        more(&mut names, &["bert"]);
        more(&mut names, &["bert", "bert", "lora"]);
        more(&mut names, &["lora"]);
        assert_eq!(names, ["bert", "bert", "lora"]);
    }
}
