// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `gctctl capture` decodes, rewrites and checks the captures of an H200.

mod common;

use std::path::{Path, PathBuf};

use common::{golden, FakeTree};

/// All but `graph_chains_first`, of which the model says that its effects depend on the order of
/// events already in the original.
const CAPTURES: [&str; 20] = [
    "cluster2",
    "cooperative",
    "dynamic_smem_64k",
    "graph4",
    "graph4_upload",
    "graph_chains",
    "graph_clusters",
    "graph_clusters_first",
    "graph_fork",
    "graph_fork_upload",
    "graph_single",
    "graph_single_first",
    "graph_tails",
    "graph_tails_upload",
    "grid3d",
    "memcpy_d2h_async",
    "one_launch",
    "pdl_pair",
    "three_launches_same_stream",
    "two_streams_event",
];

fn fixture(name: &str) -> String {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/captures");
    captures.join(format!("{name}.pbcap")).display().to_string()
}

/// Rewrites a capture to a file of `tree`. Returns its path and the output.
fn rewrite(tree: &FakeTree, name: &str, options: &[&str]) -> (PathBuf, String) {
    let out = tree.path(&format!("{name}.pbcap"));
    let shown = out.display().to_string();
    let file = fixture(name);
    let arguments = [&["capture", "rewrite", &file, "--out", &shown], options].concat();
    let said = tree.gctctl(&arguments).exits(0).to_owned();
    (out, said)
}

#[test]
fn show_decodes_entries_methods_launches_and_fields() {
    let tree = FakeTree::new("capture-show");
    let shown = tree.gctctl(&["capture", "show", &fixture("one_launch")]);
    golden("capture-one_launch.txt", shown.exits(0));
    let shown = tree.gctctl(&["capture", "show", &fixture("memcpy_d2h_async"), "--json"]);
    golden("capture-memcpy.json", shown.exits(0));
}

/// Returns the kinds of all launches of a capture with their grids in blocks.
fn launches(tree: &FakeTree, name: &str) -> Vec<(String, Vec<u64>)> {
    let shown = tree.gctctl(&["capture", "show", &fixture(name), "--json"]);
    let document: serde_json::Value = serde_json::from_str(shown.exits(0)).expect("JSON");
    let entries = document["entries"].as_array().expect("entries").iter();
    let found = entries.flat_map(|entry| entry["launches"].as_array().expect("launches"));
    let launches = found.filter(|found| found["launch"]["kind"] != "GRID_NULL");
    let grid = |launch: &serde_json::Value| {
        let grid = launch["launch"]["grid_in_blocks"].as_array();
        grid.map(|grid| grid.iter().filter_map(serde_json::Value::as_u64).collect())
    };
    launches
        .filter_map(|launch| Some((launch["launch"]["kind"].as_str()?.to_owned(), grid(launch)?)))
        .collect()
}

#[test]
fn show_finds_the_launches_that_the_readme_lists() {
    let tree = FakeTree::new("capture-launches");
    let grids = |width: &[u64]| -> Vec<(String, Vec<u64>)> {
        let grid = |width: &u64| ("GRID_CTA".to_owned(), vec![*width, 1, 1]);
        width.iter().map(grid).collect()
    };
    let one = |kind: &str, grid: [u64; 3]| vec![(kind.to_owned(), grid.to_vec())];
    assert_eq!(launches(&tree, "one_launch"), grids(&[1000]));
    assert_eq!(
        launches(&tree, "three_launches_same_stream"),
        grids(&[1001, 1002, 1003])
    );
    assert_eq!(launches(&tree, "two_streams_event"), grids(&[1100, 1101]));
    assert_eq!(launches(&tree, "grid3d"), one("GRID_CTA", [30, 20, 10]));
    assert_eq!(launches(&tree, "dynamic_smem_64k"), grids(&[1200]));
    assert_eq!(
        launches(&tree, "cluster2"),
        one("GRID_GPC_CGA", [1300, 1, 1])
    );
    assert_eq!(
        launches(&tree, "cooperative"),
        one("GRID_GPU_CGA", [132, 1, 1])
    );
    assert_eq!(launches(&tree, "pdl_pair"), grids(&[1400, 1401]));
    let mut graph = grids(&[103, 102, 101, 100]);
    graph.push(("GRID_CTA".to_owned(), vec![0, 0, 0]));
    assert_eq!(
        launches(&tree, "graph4_upload"),
        graph,
        "the head is empty and comes last"
    );
    assert_eq!(launches(&tree, "memcpy_d2h_async"), []);
}

#[test]
fn a_rewrite_has_the_effects_of_its_original() {
    let tree = FakeTree::new("capture-rewrite");
    for name in CAPTURES {
        for (mask, atoms) in [
            ("all", "1"),
            ("all", "7"),
            ("0-31,40", "1"),
            ("64,83", "32"),
        ] {
            let options = ["--tpc-mask", mask, "--atoms", atoms];
            let (out, _) = rewrite(&tree, name, &options);
            let (out, file) = (out.display().to_string(), fixture(name));
            let check = [
                "capture",
                "check",
                &out,
                "--original",
                &file,
                "--tpc-mask",
                mask,
            ];
            let ran = tree.gctctl(&check);
            assert!(
                ran.exits(0).contains("same as the original"),
                "{name} {mask} {atoms}"
            );
            if (mask, atoms) == ("all", "1") {
                let text = |path: &str| std::fs::read_to_string(path).expect("a capture");
                assert_eq!(text(&out), text(&file), "{name}: nothing was asked for");
            }
        }
    }
}

#[test]
fn rewrite_counts_changed_and_unchanged_launches() {
    let tree = FakeTree::new("capture-count");
    let options = ["--tpc-mask", "0-5", "--atoms", "4", "--json"];
    let (_, said) = rewrite(&tree, "pdl_pair", &options);
    golden("capture-rewrite-pdl_pair.json", &said);
}

#[test]
fn check_reports_blocks_and_effects() {
    let tree = FakeTree::new("capture-check");
    let (out, _) = rewrite(&tree, "grid3d", &["--atoms", "3", "--tpc-mask", "3"]);
    let out = out.display().to_string();
    golden(
        "capture-check.txt",
        tree.gctctl(&["capture", "check", &out]).exits(0),
    );
    let ran = tree.gctctl(&["capture", "check", &out, "--order", "7", "--json"]);
    golden("capture-check.json", ran.exits(0));
}

#[test]
fn check_finds_a_rewrite_that_lost_a_launch() {
    let tree = FakeTree::new("capture-lost");
    let (out, _) = rewrite(&tree, "one_launch", &["--atoms", "4"]);
    let text = std::fs::read_to_string(&out).expect("the rewrite");
    // COPY schedules the last atom instead, so its RESUME has no effect.
    let (head, tail) = text
        .rsplit_once("200120b0 00000002")
        .expect("the last atom's PCAS");
    std::fs::write(&out, format!("{head}200120b0 0000000a{tail}")).expect("the rewrite");
    let (out, file) = (out.display().to_string(), fixture("one_launch"));
    let ran = tree.gctctl(&["capture", "check", &out, "--original", &file]);
    ran.exits(1);
    assert!(ran.stderr.contains("2 times"), "{}", ran.stderr);
}

#[test]
fn bad_input_is_refused_with_a_reason() {
    let tree = FakeTree::new("capture-bad");
    tree.write(
        "bad.pbcap",
        "gp ch=0 class=c86f tsg_engine=0 token=a gpu_va=0 words=2 : 0\n",
    );
    let bad = tree.path("bad.pbcap").display().to_string();
    let ran = tree.gctctl(&["capture", "show", &bad]);
    ran.exits(3);
    assert!(
        ran.stderr
            .contains("Line 1 of the capture says 2 words but has 1"),
        "{}",
        ran.stderr
    );
    tree.gctctl(&["capture", "show", "/nonexistent"]).exits(1);
    let file = fixture("one_launch");
    for (option, value, code) in [
        ("--tpc-mask", "128", 3),
        ("--tpc-mask", "x", 3),
        ("--qmd-base", "0x1000000010", 3),
        ("--qmd-base", "0xzz", 2),
    ] {
        let arguments = ["capture", "rewrite", &file, "--atoms", "2", option, value];
        tree.gctctl(&arguments).exits(code);
    }
}
