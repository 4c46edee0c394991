// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Draws the screen of `top`.

use gct_client::Target;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState};
use ratatui::Frame;

use super::state::{Row as Owner, State};

const KEYS: &str =
    "q quit  f freeze  s set  p processes  o order (n name, t time, m memory, l launches, w waits)";
/// Headlines of the columns, and their widths.
const COLUMNS: [(&str, Constraint); 9] = [
    ("OWNER", Constraint::Min(16)),
    ("GPU", Constraint::Length(3)),
    ("TIME", Constraint::Length(6)),
    ("TPCS", Constraint::Length(5)),
    ("MEMORY", Constraint::Length(7)),
    ("LIMIT", Constraint::Length(7)),
    ("LAUNCH/S", Constraint::Length(8)),
    ("WAITS", Constraint::Length(6)),
    ("FOR", Constraint::Length(8)),
];

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let gpus = state.now.gpus.len().min(8);
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(u16::try_from(gpus + 1).unwrap_or(1)),
        Constraint::Min(2),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(heading(state)), head);
    let rows = state.rows.iter().map(|owner| {
        let style = match owner.is_frozen {
            true => Style::new().add_modifier(Modifier::DIM),
            false => Style::new(),
        };
        Row::new(cells(owner)).style(style)
    });
    let names = COLUMNS.map(|(name, _)| name);
    let table = Table::new(rows, COLUMNS.map(|(_, width)| width))
        .header(Row::new(names).style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selected = TableState::new().with_selected(state.selected());
    frame.render_stateful_widget(table, body, &mut selected);
    frame.render_widget(Paragraph::new(footing(state)), foot);
}

/// Returns the lines above the table: what is shown, and each GPU.
fn heading(state: &State) -> Vec<Line<'static>> {
    let owners = state.now.uses.len();
    let order = state.order.word();
    let interval = state.interval.as_millis();
    let first = format!(
        "gctctl top: {owners} owners, by {order}, every {}.{} s",
        interval / 1000,
        interval % 1000 / 100
    );
    let gpus = state.now.gpus.iter().map(|(index, gpu)| {
        let here = |owner: &&Owner| {
            !owner.is_member && matches!(&owner.target, Target::Pool(_, at) if at == index)
        };
        let memory: u64 = sum(state.rows.iter().filter(here).map(|owner| owner.memory));
        let time: u64 = sum(state.rows.iter().filter(here).map(|owner| owner.time));
        let total = gpu.memory.map_or_else(|| "?".to_owned(), bytes);
        let tpcs = gpu
            .tpcs
            .map_or(String::new(), |tpcs| format!("  {tpcs} TPCs"));
        Line::from(format!(
            "GPU {index} {}{tpcs}  memory {}/{total}  time {}",
            gpu.name,
            bytes(memory),
            percent(time)
        ))
    });
    std::iter::once(Line::from(first)).chain(gpus).collect()
}

fn footing(state: &State) -> String {
    match (&state.input, &state.lost) {
        (Some(input), _) => format!("FILE=VALUE: {input}_"),
        (None, Some(lost)) => lost.clone(),
        (None, None) if state.message.is_empty() => KEYS.to_owned(),
        (None, None) => state.message.clone(),
    }
}

fn sum(numbers: impl Iterator<Item = Option<u64>>) -> u64 {
    numbers.flatten().fold(0, u64::saturating_add)
}

fn cells(owner: &Owner) -> [String; COLUMNS.len()] {
    let or = |text: Option<String>, other: &str| text.unwrap_or_else(|| other.to_owned());
    let or_dash = |text| or(text, "-");
    let gpu = match &owner.target {
        Target::Pool(_, gpu) => gpu.to_string(),
        _ => String::new(),
    };
    let indent = if owner.is_member { "  " } else { "" };
    let reason = match (owner.is_frozen, &owner.reason) {
        (true, _) => "frozen".to_owned(),
        (false, reason) => reason.clone().unwrap_or_default(),
    };
    [
        format!("{indent}{}", owner.name),
        gpu,
        or_dash(owner.time.map(percent)),
        or_dash(
            owner
                .tpcs
                .map(|tpcs| or(tpcs.map(|tpcs| tpcs.to_string()), "all")),
        ),
        or_dash(owner.memory.map(bytes)),
        or_dash(owner.memory_limit.map(|limit| or(limit.map(bytes), "max"))),
        or_dash(owner.launches.map(|launches| launches.to_string())),
        or_dash(owner.waits.map(percent)),
        reason,
    ]
}

/// Formats thousandths.
fn percent(thousandths: u64) -> String {
    format!("{}.{}%", thousandths / 10, thousandths % 10)
}

/// Formats bytes with at most four digits.
fn bytes(count: u64) -> String {
    let mut unit = 0;
    let mut tenths = count.saturating_mul(10);
    while tenths >= 10240 && unit < 4 {
        tenths /= 1024;
        unit += 1;
    }
    let suffix = ["", "K", "M", "G", "T"][unit];
    match unit {
        0 => format!("{count}"),
        _ => format!("{}.{}{suffix}", tenths / 10, tenths % 10),
    }
}
