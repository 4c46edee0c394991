// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shows groups and processes on the whole terminal, and changes their limits (`top`).

mod draw;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use gct_client::{one_line, Target, Tree};
use gct_core::iface::{files, File, Place};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::DefaultTerminal;

use self::snapshot::Snapshot;
use self::state::{Action, State};
use crate::cli::Top;
use crate::outcome::{Failure, Outcome};

pub(crate) fn run(tree: &Tree, top: &Top, as_json: bool) -> Outcome {
    if as_json || !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let message = "top needs a terminal: use gctctl stat --interval 2s, which has --json.";
        return Outcome::failed(Failure::new(2, message));
    }
    // A tree that is not there is said without a screen.
    let first = match Snapshot::read(tree) {
        Ok(first) => first,
        Err(error) => return Outcome::failed(error),
    };
    let mut state = State::new(first, top.interval);
    let shown = ratatui::try_init().and_then(|mut terminal| {
        let shown = show(&mut terminal, tree, &mut state, top.interval);
        ratatui::try_restore().and(shown)
    });
    match shown {
        Ok(()) => Outcome::silent(),
        Err(error) => Outcome::failed(Failure::new(
            1,
            format!("The terminal cannot be used: {error}."),
        )),
    }
}

/// Shows the tree until the user quits.
fn show(
    terminal: &mut DefaultTerminal,
    tree: &Tree,
    state: &mut State,
    interval: Duration,
) -> io::Result<()> {
    let mut due = Instant::now() + interval;
    loop {
        terminal.draw(|frame| draw::draw(frame, state))?;
        let is_key = event::poll(due.saturating_duration_since(Instant::now()))?;
        let action = match is_key.then(event::read).transpose()? {
            Some(Event::Key(key)) if key.kind != KeyEventKind::Release => state.key(key),
            Some(_) => None,
            None => Some(Action::Look),
        };
        match action {
            None => continue,
            Some(Action::Quit) => return Ok(()),
            Some(Action::Look) => due = Instant::now() + interval,
            Some(Action::Set(target, file, value)) => {
                state.message = set(tree, &target, &file, &value).unwrap_or_else(|error| error);
            }
        }
        match Snapshot::read(tree) {
            Ok(found) => state.follow(found),
            // The last look stays: a daemon that restarts is back soon.
            Err(error) => state.lost = Some(one_line(&error)),
        }
    }
}

/// Sets a limit. Returns what is in force, or why it could not be set.
fn set(tree: &Tree, target: &Target, file: &str, value: &str) -> Result<String, String> {
    let entry =
        files::find(Place::Pool, file).ok_or_else(|| format!("There is no limit {file}."))?;
    let found = tree
        .set(target, entry, value)
        .map_err(|error| one_line(&error))?;
    let file = match entry.file {
        File::ComputeFreeze => "compute.freeze",
        _ => entry.name,
    };
    Ok(format!("{target} {file}={found}"))
}
