// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Holds what `top` shows and decides what a key does. It neither reads the tree nor draws.

use std::cmp::Reverse;
use std::time::Duration;

use gct_client::{Owner, Target};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::snapshot::Snapshot;

/// The columns by which rows can be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Name,
    Time,
    Memory,
    Launches,
    Waits,
}

impl Order {
    const ALL: [Self; 5] = [
        Self::Name,
        Self::Time,
        Self::Memory,
        Self::Launches,
        Self::Waits,
    ];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Time => "time",
            Self::Memory => "memory",
            Self::Launches => "launches",
            Self::Waits => "waits",
        }
    }

    fn next(self) -> Self {
        let index = Self::ALL.iter().position(|order| *order == self);
        Self::ALL[index.map_or(0, |index| (index + 1) % Self::ALL.len())]
    }
}

/// An owner on a GPU, as it is shown. `None` is what its GPU does not tell.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) target: Target,
    pub(super) name: String,
    /// Whether the row belongs to the group above it.
    pub(super) is_member: bool,
    /// Time on the GPU in thousandths of the interval.
    pub(super) time: Option<u64>,
    /// `Some(None)` is `all`.
    pub(super) tpcs: Option<Option<u32>>,
    pub(super) memory: Option<u64>,
    /// `Some(None)` is `max`.
    pub(super) memory_limit: Option<Option<u64>>,
    /// Launches per second.
    pub(super) launches: Option<u64>,
    /// Time with work held back, in thousandths of the interval.
    pub(super) waits: Option<u64>,
    pub(super) reason: Option<String>,
    pub(super) is_frozen: bool,
}

/// What a key asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    /// Look at the tree now.
    Look,
    /// Set a limit: directory, file, value.
    Set(Target, String, String),
}

/// Everything on the screen.
#[derive(Debug)]
pub(super) struct State {
    pub(super) now: Snapshot,
    before: Option<Snapshot>,
    pub(super) interval: Duration,
    pub(super) order: Order,
    pub(super) shows_processes: bool,
    pub(super) rows: Vec<Row>,
    /// Stays on its row when rows move.
    selected: Option<Target>,
    /// The limit that the user types.
    pub(super) input: Option<String>,
    pub(super) message: String,
    /// Why the last look failed.
    pub(super) lost: Option<String>,
}

impl State {
    pub(super) fn new(first: Snapshot, interval: Duration) -> Self {
        let mut state = Self {
            now: first,
            before: None,
            interval,
            order: Order::Time,
            shows_processes: true,
            rows: Vec::new(),
            selected: None,
            input: None,
            message: String::new(),
            lost: None,
        };
        state.arrange();
        state
    }

    /// Takes a further look at the tree.
    pub(super) fn follow(&mut self, next: Snapshot) {
        self.before = Some(std::mem::replace(&mut self.now, next));
        self.lost = None;
        self.arrange();
    }

    /// Returns the index of the selected row.
    pub(super) fn selected(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.rows.iter().position(|row| row.target == *selected)
    }

    /// Returns what a key asks for.
    pub(super) fn key(&mut self, key: KeyEvent) -> Option<Action> {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Some(Action::Quit);
        }
        if self.input.is_some() {
            return self.type_key(key.code);
        }
        self.message.clear();
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Some(Action::Quit),
            KeyCode::Char(' ') => return Some(Action::Look),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::PageUp => self.select(-10),
            KeyCode::PageDown => self.select(10),
            KeyCode::Char('o') => self.sort(self.order.next()),
            KeyCode::Char('n') => self.sort(Order::Name),
            KeyCode::Char('t') => self.sort(Order::Time),
            KeyCode::Char('m') => self.sort(Order::Memory),
            KeyCode::Char('l') => self.sort(Order::Launches),
            KeyCode::Char('w') => self.sort(Order::Waits),
            KeyCode::Char('p') => {
                self.shows_processes = !self.shows_processes;
                self.arrange();
            }
            KeyCode::Char('s') if self.row().is_some() => self.input = Some(String::new()),
            KeyCode::Char('f') => {
                let row = self.row()?;
                let value = if row.is_frozen { "0" } else { "1" };
                let target = row.target.clone();
                return Some(Action::Set(target, "compute.freeze".into(), value.into()));
            }
            _ => {}
        }
        None
    }

    /// Handles a key while the user types a limit.
    fn type_key(&mut self, code: KeyCode) -> Option<Action> {
        let input = self.input.as_mut()?;
        match code {
            KeyCode::Char(char) => input.push(char),
            KeyCode::Backspace => {
                input.pop();
            }
            KeyCode::Esc => self.input = None,
            KeyCode::Enter => {
                let text = self.input.take()?;
                let Some((file, value)) = text.split_once('=') else {
                    self.message = format!("{text:?} is not FILE=VALUE, such as tpc.quota=20.");
                    return None;
                };
                let target = self.row()?.target.clone();
                return Some(Action::Set(target, file.trim().into(), value.trim().into()));
            }
            _ => {}
        }
        None
    }

    fn row(&self) -> Option<&Row> {
        self.rows.get(self.selected()?)
    }

    fn select(&mut self, by: isize) {
        let last = self.rows.len().saturating_sub(1);
        let index = match self.selected() {
            Some(index) => index.saturating_add_signed(by).min(last),
            None => 0,
        };
        self.selected = self.rows.get(index).map(|row| row.target.clone());
    }

    fn sort(&mut self, order: Order) {
        self.order = order;
        self.arrange();
    }

    /// Makes the rows: groups and processes of no group in order, below each group its members.
    fn arrange(&mut self) {
        let mut all: Vec<(Row, Option<Target>)> = self.rows_of_tree();
        all.sort_by_key(|(row, _)| {
            let number = match self.order {
                Order::Name => None,
                Order::Time => row.time,
                Order::Memory => row.memory,
                Order::Launches => row.launches,
                Order::Waits => row.waits,
            };
            (Reverse(number), row.target.clone())
        });
        let (members, tops): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, group)| group.is_some());
        self.rows.clear();
        for (top, _) in tops {
            let target = top.target.clone();
            self.rows.push(top);
            if self.shows_processes {
                let own = members
                    .iter()
                    .filter(|(_, group)| group.as_ref() == Some(&target));
                self.rows.extend(own.map(|(row, _)| row.clone()));
            }
        }
        // The selected row may have gone.
        if self.selected().is_none() {
            self.selected = self.rows.first().map(|row| row.target.clone());
        }
    }

    /// Returns a row for each owner on a GPU, and the group's directory of those in a group.
    fn rows_of_tree(&self) -> Vec<(Row, Option<Target>)> {
        let elapsed = self.before.as_ref().map(|before| {
            let elapsed = self.now.at.duration_since(before.at).as_micros();
            u64::try_from(elapsed).unwrap_or(u64::MAX).max(1)
        });
        let uses = self.now.uses.iter().filter_map(|(target, found)| {
            let Target::Pool(owner, _) = target else {
                return None;
            };
            let before = self.before.as_ref().map(|before| before.uses.get(target));
            let before = before.flatten();
            let per = |key: &str, unit: u64| {
                let grown = found.grown(before, key)?;
                Some(grown.saturating_mul(unit) / elapsed?)
            };
            let group = found
                .group
                .clone()
                .filter(|group| self.now.uses.contains_key(group));
            let row = Row {
                target: target.clone(),
                name: match owner {
                    Owner::Group(name) => name.clone(),
                    Owner::Process(pid) => format!("{pid} {}", found.program),
                },
                is_member: group.is_some(),
                time: per("usage_usec", 1000),
                tpcs: found.tpcs,
                memory: found.memory,
                memory_limit: found.memory_limit,
                launches: per("launches", 1_000_000),
                waits: per("waited_usec", 1000),
                reason: found.reason(before).map(str::to_owned),
                is_frozen: found.is_frozen,
            };
            Some((row, group))
        });
        uses.collect()
    }
}
