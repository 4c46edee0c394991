// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `gctctl apply` makes a daemon's tree what a file says: all of it, or nothing.

mod common;

use std::collections::BTreeMap;
use std::fs;

use common::Ran;
use gctd::testing::Daemon;

const FILE: &str = r#"
[group.web]
group.cgroup = "/kubepods/web"
gmem.limit = "1G"
tpc.quota = 20

[group.web.gpu.1]
gmem.limit = "2G"

[group.batch]
compute.freeze = true
tpc.quota = 0
"#;

/// A daemon with two GPUs, and a file for gctctl.
struct Bed(Daemon);

impl Bed {
    fn new(test: &str) -> Self {
        Self(Daemon::new(&format!("apply-{test}"), 2))
    }

    fn gctctl(&self, arguments: &[&str]) -> Ran {
        Ran::gctctl("--dir", &self.0.directory, arguments)
    }

    fn apply(&self, text: &str, options: &[&str]) -> Ran {
        let path = self.0.directory.join("groups.toml");
        fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        self.gctctl(&[&["apply", path.as_str()], options].concat())
    }

    /// Returns every setting of the tree.
    fn tree(&self) -> BTreeMap<String, String> {
        let client = self.0.client();
        let mut found = BTreeMap::new();
        let names = client.list("").unwrap();
        let dirs = names.iter().filter_map(|name| name.strip_suffix('/'));
        for name in dirs.filter(|name| *name != "gpus") {
            for place in [name.to_owned(), format!("{name}/0"), format!("{name}/1")] {
                for file in client.list(&place).unwrap() {
                    let path = format!("{place}/{file}");
                    if let Ok(text) = client.read(&path) {
                        found.insert(path, text);
                    }
                }
            }
        }
        found
    }
}

#[test]
fn a_file_becomes_groups_and_limits_and_a_second_time_nothing() {
    let bed = Bed::new("twice");
    let dry = bed.apply(FILE, &["--dry-run"]).exits(0).to_owned();
    assert_eq!(bed.tree().len(), 0);
    let ran = bed.apply(FILE, &[]);
    let plan = ran.exits(0);
    assert_eq!(
        dry,
        format!("{plan}nothing was changed: this was a dry run\n")
    );
    let lines: Vec<&str> = plan.lines().collect();
    for line in [
        "+ web",
        "~ web group.cgroup: none -> /kubepods/web",
        "~ web/0 gmem.limit: max -> 1073741824",
        "~ web/1 gmem.limit: max -> 2147483648",
        "~ batch/0 compute.freeze: 0 -> 1",
        "~ batch/1 tpc.quota: none -> 0",
    ] {
        assert!(lines.contains(&line), "{line}\n{plan}");
    }
    assert_eq!(lines.len(), 2 + 1 + 4 + 4, "{plan}");
    let tree = bed.tree();
    assert_eq!(tree["web/1/gmem.limit"], "2147483648\n");
    assert_eq!(tree["web/0/tpc.quota"], "20\n");
    let ran = bed.apply(FILE, &["--json"]);
    assert!(ran.exits(0).contains("\"changes\": []"), "{}", ran.stdout);
    assert_eq!(bed.apply(FILE, &[]).exits(0), "nothing to change\n");
    assert_eq!(bed.tree(), tree);
}

#[test]
fn what_the_file_does_not_name_stays_but_for_prune() {
    let bed = Bed::new("prune");
    bed.apply(FILE, &[]).exits(0);
    bed.gctctl(&["create", "other", "run-1-2"]).exits(0);
    bed.gctctl(&["set", "other", "tpc.quota=10"]).exits(0);
    let less = "[group.web]\ntpc.quota = 5\n";
    assert_eq!(
        bed.apply(less, &[]).exits(0),
        "~ web/0 tpc.quota: 20 -> 5\n~ web/1 tpc.quota: 20 -> 5\n"
    );
    let plan = bed.apply(less, &["--prune"]);
    assert_eq!(
        plan.exits(0),
        "~ web group.cgroup: /kubepods/web -> none\n~ web/0 gmem.limit: 1073741824 -> max\n\
         ~ web/1 gmem.limit: 2147483648 -> max\n- batch\n- other\n"
    );
    let left: Vec<String> = bed.tree().into_keys().collect();
    assert!(left
        .iter()
        .all(|path| path.starts_with("web/") || path.starts_with("run-1-2/")));
    assert_eq!(
        bed.apply(less, &["--prune"]).exits(0),
        "nothing to change\n"
    );
}

#[test]
fn prune_refuses_a_group_with_members_before_any_change() {
    let bed = Bed::new("members");
    let own = std::process::id().to_string();
    bed.gctctl(&["create", "busy"]).exits(0);
    bed.gctctl(&["attach", "busy", "--pid", &own]).exits(0);
    let before = bed.tree();
    let ran = bed.apply(FILE, &["--prune"]);
    assert_eq!(ran.exits(3), "");
    assert!(
        ran.stderr.contains("group busy: --prune cannot remove it"),
        "{}",
        ran.stderr
    );
    assert_eq!(bed.tree(), before);
}

#[test]
fn a_refused_value_undoes_everything() {
    let bed = Bed::new("undo");
    bed.apply(
        "[group.web]\ngmem.limit = '4G'\ntpc.quota = 30\n[group.old]\ntpc.quota = 7",
        &[],
    )
    .exits(0);
    let before = bed.tree();
    // Both fit their files. Together they exceed the 66 TPCs of a GPU.
    let file = "[group.new]\ngroup.cgroup = '/new'\n[group.web]\ngmem.limit = '5G'\n\
                tpc.quota = 40\n[group.zeta]\ntpc.quota = 40\n";
    let ran = bed.apply(file, &["--prune"]);
    assert_eq!(ran.exits(3), "");
    assert!(ran.stderr.contains("ENOSPC"), "{}", ran.stderr);
    assert!(ran.stderr.contains("Nothing was changed"), "{}", ran.stderr);
    assert_eq!(bed.tree(), before);
}

#[test]
fn changes_that_need_another_first_are_made_after_it() {
    let bed = Bed::new("order");
    let file = |a, b| format!("[group.a]\ntpc.quota = {a}\n[group.b]\ntpc.quota = {b}\n");
    bed.apply(&file(6, 60), &[]).exits(0);
    bed.apply(&file(60, 6), &[]).exits(0);
    bed.apply("[group.c]\ntpc.quota = 66\n", &["--prune"])
        .exits(0);
    let left: Vec<String> = bed.tree().into_keys().collect();
    assert!(left.iter().all(|path| path.starts_with("c/")), "{left:?}");
}

#[test]
fn a_wrong_file_changes_nothing_and_says_where() {
    let bed = Bed::new("wrong");
    for (text, code, says) in [
        ("[group.web\n", 3, "is not valid TOML"),
        (
            "[group.web]\ngmem.limits = 1\n",
            4,
            "group web: there is no setting gmem.limits",
        ),
        (
            "[group.web]\ntpc.mask = 'x'\n",
            3,
            "group web: tpc.mask does not accept",
        ),
        ("[group.web.gpu.7]\n", 4, "group web: there is no GPU 7"),
        (
            "[group.web]\nslip.power = 5\n",
            5,
            "web/0 does not support slip.power",
        ),
    ] {
        let ran = bed.apply(&format!("[group.first]\n{text}"), &[]);
        assert_eq!(ran.exits(code), "", "{text}");
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
        assert_eq!(bed.tree().len(), 0, "{text}");
    }
    bed.gctctl(&["apply", "/nowhere/x.toml"]).exits(1);
}
