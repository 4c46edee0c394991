// SPDX-License-Identifier: GPL-2.0 OR MIT

use std::time::{Duration, Instant};

use gct_client::Target;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;

use super::draw::draw;
use super::snapshot::{Gpu, Snapshot, Use};
use super::state::{Action, State};

/// A group `web` with the process 12, a group `train`, and the process 99 of no group, on one GPU.
fn snapshot(at: Instant, second: u64) -> Snapshot {
    let pool = |name: &str| name.parse::<Target>().unwrap();
    let gpu = Gpu {
        name: "NVIDIA H200".into(),
        memory: Some(140 << 30),
        tpcs: Some(66),
    };
    let used = |memory: u64, counters: &[(&str, u64)]| Use {
        memory: Some(memory),
        counters: counters
            .iter()
            .map(|(key, each)| ((*key).to_owned(), 1000 + each * second))
            .collect(),
        ..Use::default()
    };
    let train = [
        ("usage_usec", 750_000),
        ("launches", 40),
        ("waited_usec", 200_000),
        ("held_usec.tpcs", 150_000),
        ("held_usec.weight", 50_000),
    ];
    let web = [
        ("usage_usec", 120_000),
        ("launches", 3000),
        ("waited_usec", 0),
    ];
    let uses = [
        (pool("train/0"), used(1 << 30, &train)),
        (
            pool("web/0"),
            Use {
                memory_limit: Some(Some(20 << 30)),
                tpcs: Some(Some(12)),
                ..used(3 << 29, &web)
            },
        ),
        (
            pool("12/0"),
            Use {
                program: "serve".into(),
                group: Some(pool("web/0")),
                ..used(3 << 29, &web)
            },
        ),
        (pool("99/0"), used(7 << 20, &[])),
    ];
    Snapshot {
        at,
        gpus: [(0, gpu)].into(),
        uses: uses.into(),
    }
}

fn state() -> State {
    let start = Instant::now();
    let mut state = State::new(snapshot(start, 0), Duration::from_secs(2));
    state.follow(snapshot(start + Duration::from_secs(1), 1));
    state
}

fn press(state: &mut State, code: KeyCode) -> Option<Action> {
    state.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_text(state: &mut State, text: &str) {
    for char in text.chars() {
        assert_eq!(press(state, KeyCode::Char(char)), None);
    }
}

/// Returns the lines of the screen, and the one with the selection's style.
fn screen(state: &State, width: u16, height: u16) -> (Vec<String>, Option<usize>) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state)).unwrap();
    let buffer = terminal.backend().buffer();
    let mut selected = None;
    let lines = (0..height).map(|y| {
        let cells = (0..width).map(|x| &buffer[(x, y)]);
        let style = buffer[(0, y)].style();
        if style
            .add_modifier
            .contains(ratatui::style::Modifier::REVERSED)
        {
            selected = Some(usize::from(y));
        }
        let line: String = cells.map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned()
    });
    (lines.collect(), selected)
}

fn names(state: &State) -> Vec<String> {
    state
        .rows
        .iter()
        .map(|row| row.target.to_string())
        .collect()
}

#[test]
fn a_screen_shows_owners_by_time_and_members_below_their_group() {
    let (lines, selected) = screen(&state(), 90, 9);
    let expected = [
        "gctctl top: 4 owners, by time, every 2.0 s",
        "GPU 0 NVIDIA H200  66 TPCs  memory 2.5G/140.0G  time 87.0%",
        "OWNER                            GPU TIME   TPCS  MEMORY  LIMIT   LAUNCH/S WAITS  FOR",
        "train                            0   75.0%  -     1.0G    -       40       20.0%  tpcs",
        "web                              0   12.0%  12    1.5G    20.0G   3000     0.0%",
        "  12 serve                       0   12.0%  -     1.5G    -       3000     0.0%",
        "99                               0   -      -     7.0M    -       -        -",
        "",
        "q quit  f freeze  s set  p processes  o order (n name, t time, m memory, l launches, w wai",
    ];
    assert_eq!(lines, expected);
    assert_eq!(selected, Some(3));
}

#[test]
fn a_small_terminal_is_drawn_too() {
    for (width, height) in [(1, 1), (3, 2), (20, 3), (300, 4)] {
        screen(&state(), width, height);
    }
}

#[test]
fn keys_sort_and_the_selection_stays_on_its_row() {
    let mut state = state();
    assert_eq!(names(&state), ["train/0", "web/0", "12/0", "99/0"]);
    press(&mut state, KeyCode::Down);
    assert_eq!(state.selected(), Some(1));
    for (key, first) in [
        ('m', "web/0"),
        ('t', "train/0"),
        ('l', "web/0"),
        ('w', "train/0"),
        ('n', "train/0"),
    ] {
        press(&mut state, KeyCode::Char(key));
        assert_eq!(names(&state)[0], first, "{key}");
        let selected = state.selected().unwrap();
        assert_eq!(names(&state)[selected], "web/0", "{key}");
    }
    press(&mut state, KeyCode::Char('p'));
    assert_eq!(names(&state), ["train/0", "web/0", "99/0"]);
}

#[test]
fn the_selection_moves_on_when_its_row_goes() {
    let mut state = state();
    let mut next = state.now.clone();
    let selected = state.rows[0].target.clone();
    next.uses.remove(&selected);
    state.follow(next);
    assert_eq!(state.selected(), Some(0));
    let mut none = state.now.clone();
    none.uses.clear();
    state.follow(none);
    assert_eq!(state.selected(), None);
    assert_eq!(press(&mut state, KeyCode::Char('f')), None);
    assert_eq!(press(&mut state, KeyCode::Down), None);
    screen(&state, 80, 10);
}

#[test]
fn f_freezes_and_thaws_the_selected_row() {
    let mut state = state();
    let freeze = |value: &str| {
        let target = "train/0".parse().unwrap();
        Some(Action::Set(target, "compute.freeze".into(), value.into()))
    };
    assert_eq!(press(&mut state, KeyCode::Char('f')), freeze("1"));
    let mut frozen = state.now.clone();
    let target: Target = "train/0".parse().unwrap();
    frozen.uses.get_mut(&target).unwrap().is_frozen = true;
    state.follow(frozen);
    let (lines, _) = screen(&state, 90, 9);
    assert!(
        lines.iter().any(|line| line.ends_with("frozen")),
        "{lines:?}"
    );
    press(&mut state, KeyCode::Char('n'));
    assert_eq!(press(&mut state, KeyCode::Char('f')), freeze("0"));
}

#[test]
fn a_limit_is_typed_and_set() {
    let mut state = state();
    type_text(&mut state, "stpc.quota = 20x");
    let (lines, _) = screen(&state, 90, 9);
    assert_eq!(lines[8], "FILE=VALUE: tpc.quota = 20x_");
    press(&mut state, KeyCode::Backspace);
    let target = "train/0".parse().unwrap();
    let wanted = Action::Set(target, "tpc.quota".into(), "20".into());
    assert_eq!(press(&mut state, KeyCode::Enter), Some(wanted));
    // Without a value nothing is set, and Esc leaves.
    type_text(&mut state, "sjunk");
    assert_eq!(press(&mut state, KeyCode::Enter), None);
    let (lines, _) = screen(&state, 90, 9);
    assert!(lines[8].contains("is not FILE=VALUE"), "{}", lines[8]);
    type_text(&mut state, "sq");
    assert_eq!(press(&mut state, KeyCode::Esc), None);
    assert_eq!(press(&mut state, KeyCode::Char('q')), Some(Action::Quit));
}

#[test]
fn a_daemon_that_starts_anew_makes_no_huge_rate() {
    let mut state = state();
    let before = state.now.at;
    state.follow(snapshot(before + Duration::from_secs(1), 0));
    assert_eq!(state.rows[0].time, Some(0));
}
