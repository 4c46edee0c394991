// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `gctctl stat` and `gctctl events` watch a tree of plain files.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use common::FakeTree;

/// Creates the group web on two GPUs, with counters.
fn populated(test: &str) -> FakeTree {
    let tree = FakeTree::new(test);
    tree.group("web", &[0, 1]);
    tree.process(77, &[0]);
    tree.write("web/0/gmem.current", "4096\n");
    tree.write("web/0/compute.stat", "launches 1000\nsplit 7\natoms 70\n");
    tree.write("web/0/compute.events", "faults 1\nlast_xid 31\nstalled 0\n");
    tree.write("events", "limit 0\ndecode 2\n");
    tree
}

/// Replaces a file at once, as the kernel does: a reader never sees half of it.
fn replace(tree: &FakeTree, path: &str, text: &str) {
    tree.write("next", text);
    std::fs::rename(tree.path("next"), tree.path(path)).expect("a file of the tree");
}

/// A running gctctl. Dropping it ends it.
struct Running(Child);

impl Running {
    fn new(tree: &FakeTree, arguments: &[&str]) -> (Self, impl Iterator<Item = String>) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gctctl"))
            .arg("--root")
            .arg(tree.root())
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("gctctl runs");
        let lines = BufReader::new(child.stdout.take().expect("standard output")).lines();
        (Self(child), lines.map(|line| line.expect("a line")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn stat_prints_totals_of_all_or_of_one() {
    let tree = populated("stat");
    let ran = tree.gctctl(&["stat"]);
    let lines: Vec<&str> = ran.exits(0).lines().collect();
    assert_eq!(lines.len(), 4, "{}", ran.stdout);
    let cells: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(
        cells,
        ["web/0", "4096", "max", "1000", "7", "70", "all", "0"]
    );
    assert!(lines[2].starts_with("web/1 ") && lines[3].starts_with("77/0 "));
    assert_eq!(tree.gctctl(&["stat", "web"]).exits(0).lines().count(), 3);
    assert_eq!(tree.gctctl(&["stat", "web/1"]).exits(0).lines().count(), 2);
    let ran = tree.gctctl(&["stat", "web/0", "--json"]);
    assert!(
        ran.exits(0).contains("\"launches\": 1000"),
        "{}",
        ran.stdout
    );
    let ran = tree.gctctl(&["stat", "nobody"]);
    ran.exits(4);
    assert!(ran.stderr.contains("gctctl ls"), "{}", ran.stderr);
}

#[test]
fn stat_prints_the_rates_of_an_interval() {
    let tree = populated("rates");
    let (_running, lines) = Running::new(
        &tree,
        &[
            "stat",
            "web/0",
            "--interval",
            "1s",
            "--count",
            "2",
            "--json",
        ],
    );
    // Within the first interval. The second has nothing new.
    thread::sleep(Duration::from_millis(400));
    replace(
        &tree,
        "web/0/compute.stat",
        "launches 6000\nsplit 7\natoms 70\n",
    );
    let pages: Vec<String> = lines.collect();
    assert_eq!(pages.len(), 2, "{pages:?}");
    let rate = |page: &String| {
        let page: serde_json::Value = serde_json::from_str(page).expect("JSON");
        let stat = &page["stat"][0];
        assert_eq!(stat["split"], 0);
        stat["launches"].as_u64().expect("a number")
    };
    let first = rate(&pages[0]);
    assert!((2500..=5000).contains(&first), "{first}");
    assert_eq!(rate(&pages[1]), 0);
    tree.gctctl(&["stat", "--interval", "1ms"]).exits(2);
    tree.gctctl(&["stat", "--count", "1"]).exits(2);
}

#[test]
fn events_lists_what_occurred_and_follows_what_occurs() {
    let tree = populated("events");
    let ran = tree.gctctl(&["events"]);
    let rows: Vec<Vec<&str>> = ran
        .exits(0)
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows,
        [
            [".", "events", "decode", "2"],
            ["web/0", "compute.events", "faults", "1"]
        ]
    );
    let (_running, mut lines) = Running::new(&tree, &["events", "--follow", "--interval", "100ms"]);
    thread::sleep(Duration::from_millis(600));
    replace(
        &tree,
        "web/0/compute.events",
        "faults 3\nlast_xid 43\nstalled 0\n",
    );
    let line = lines.next();
    assert_eq!(
        line.as_deref(),
        Some("web/0 compute.events faults +2 (3, last Xid 43)")
    );
    // A new owner begins at 0, and one that goes is no failure.
    tree.group("new", &[0]);
    tree.write("new/0/gmem.events", "limit 5\n");
    assert_eq!(
        lines.next().as_deref(),
        Some("new/0 gmem.events limit +5 (5)")
    );
    std::fs::remove_dir_all(tree.path("web")).expect("the group");
    replace(&tree, "events", "limit 1\ndecode 2\n");
    assert_eq!(lines.next().as_deref(), Some(". events limit +1 (1)"));
    std::fs::remove_dir_all(tree.root()).expect("the tree");
    assert_eq!(lines.next(), None, "without a tree it ends");
}

#[test]
fn explain_says_what_happened_between_two_looks() {
    let tree = populated("explain");
    tree.write("web/0/compute.stat", "usage_usec 1000\nwaited_usec 0\n");
    let (_running, mut lines) = Running::new(&tree, &["explain", "web/0", "--interval", "1s"]);
    thread::sleep(Duration::from_millis(500));
    let grown = "usage_usec 101000\npending 1\nwaited_usec 900000\nheld_usec.max 900000\n";
    replace(&tree, "web/0/compute.stat", grown);
    assert_eq!(lines.next().as_deref(), Some("web/0:"));
    let all: Vec<String> = lines.collect();
    let has = |text: &str| all.iter().any(|line| line.contains(text));
    // The second look is a little later than after a second.
    assert!(has("9% on the GPU.") || has("10% on the GPU."), "{all:?}");
    assert!(has("because its duty cycle is used up"), "{all:?}");
    assert!(!has("because others"), "{all:?}");
}

#[test]
fn explain_needs_an_owner_with_a_gpu() {
    let tree = populated("explain-nobody");
    for target in ["nobody", "web/7", ".", "gpus/0"] {
        let ran = tree.gctctl(&["explain", target, "--interval", "100ms"]);
        ran.exits(4);
        assert!(ran.stderr.contains("gctctl ls"), "{target}: {}", ran.stderr);
    }
    let ran = tree.gctctl(&["explain", "77", "--interval", "100ms", "--json"]);
    assert!(
        ran.exits(0).contains("\"target\": \"77/0\""),
        "{}",
        ran.stdout
    );
}
