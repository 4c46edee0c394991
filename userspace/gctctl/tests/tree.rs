// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `gctctl` reads and writes a tree of plain files.

mod common;

use std::process::Command;

use common::{golden, FakeTree, Ran};

/// Creates GPUs 0 and 1, the group web with two processes on both, and process 4711 on GPU 0.
fn populated(test: &str) -> FakeTree {
    let tree = FakeTree::new(test);
    tree.gpu(1);
    tree.group("web", &[0, 1]);
    tree.write("web/group.procs", "4711\n4712\n");
    tree.write("web/group.cgroup", "/kubepods/web\n");
    tree.write("web/0/compute.stat", "usage_usec 1500\nlaunches 3\n");
    tree.write("web/0/compute.max", "20000 100000\n");
    tree.write("web/0/tpc.mask", "0-31,40\n");
    tree.process(4711, &[0]);
    tree
}

#[test]
fn ls_lists_gpus_groups_and_processes() {
    let tree = populated("ls");
    golden("ls.txt", tree.gctctl(&["ls"]).exits(0));
    golden("ls.json", tree.gctctl(&["ls", "--json"]).exits(0));
}

#[test]
fn show_prints_every_file_of_a_target() {
    let tree = populated("show");
    golden("show-web.txt", tree.gctctl(&["show", "web"]).exits(0));
    golden(
        "show-web.json",
        tree.gctctl(&["show", "web", "--json"]).exits(0),
    );
    golden(
        "show-gpu.json",
        tree.gctctl(&["show", "gpus/1", "--json"]).exits(0),
    );
    golden(
        "show-process.json",
        tree.gctctl(&["show", "4711", "--json"]).exits(0),
    );
}

#[test]
fn show_reports_unreadable_files_and_fails() {
    let tree = populated("show-bad");
    tree.write("web/0/compute.weight", "much\n");
    let ran = tree.gctctl(&["show", "web/0"]);
    assert!(ran.exits(1).contains("compute.priority"));
    assert!(
        ran.stderr.contains("web/0/compute.weight"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("EINVAL"), "{}", ran.stderr);
}

#[test]
fn get_prints_one_value_as_the_file_has_it() {
    let tree = populated("get");
    assert_eq!(
        tree.gctctl(&["get", "web/0", "tpc.mask"]).exits(0),
        "0-31,40\n"
    );
    golden(
        "get.json",
        tree.gctctl(&["get", "web/0", "compute.stat", "--json"])
            .exits(0),
    );
    tree.gctctl(&["get", "web/0", "tpc.nothing"]).exits(4);
    tree.gctctl(&["get", "web/7", "tpc.mask"]).exits(4);
    tree.gctctl(&["get", "nobody", "group.procs"]).exits(4);
    tree.gctctl(&["get", ".", "control"]).exits(3);
    assert_eq!(
        tree.gctctl(&["get", ".", "version"]).exits(0),
        "gctgroup 0.1.0 abi 3\n"
    );
}

#[test]
fn set_writes_the_canonical_form_and_reads_it_back() {
    let tree = populated("set");
    let ran = tree.gctctl(&[
        "set",
        "web/0",
        "gmem.limit=8G",
        "compute.timeslice=2ms",
        "--json",
    ]);
    golden("set.json", ran.exits(0));
    assert_eq!(tree.read("web/0/gmem.limit"), "8589934592\n");
    assert_eq!(tree.read("web/0/compute.timeslice"), "2000\n");
    assert_eq!(
        tree.read("web/1/gmem.limit"),
        "max\n",
        "only what was named"
    );
    tree.gctctl(&["set", "web", "compute.weight=200"]).exits(0);
    assert_eq!(tree.read("web/0/compute.weight"), "200\n");
    assert_eq!(
        tree.read("web/1/compute.weight"),
        "200\n",
        "a group means all of its GPUs"
    );
}

#[test]
fn set_checks_every_value_before_it_writes_any() {
    let tree = populated("set-bad");
    for (value, code) in [
        ("compute.weight=0", 3),
        ("compute.weight=many", 3),
        ("compute.timeslice=2", 3),
        ("gmem.current=1", 3),
        ("gmem.nothing=1", 4),
        ("compute.weight", 2),
    ] {
        let ran = tree.gctctl(&["set", "web/0", "compute.priority=3", value]);
        assert_eq!(ran.exits(code), "", "{value}");
        assert_eq!(tree.read("web/0/compute.priority"), "8\n", "{value}");
    }
    tree.gctctl(&["set", "gone/0", "compute.weight=1"]).exits(4);
    tree.gctctl(&["set", "a b", "compute.weight=1"]).exits(3);
}

#[test]
fn set_fails_if_another_value_is_in_force() {
    let tree = populated("set-other");
    let kernel = tree.kernel_file("web/0/compute.timeslice", |request| {
        assert_eq!(request, "3000\n");
        Some("2048\n".to_owned())
    });
    let ran = tree.gctctl(&["set", "web/0", "compute.timeslice=3ms", "compute.weight=5"]);
    kernel.join().expect("the fake kernel was asked");
    assert_eq!(
        ran.exits(6),
        "web/0 compute.weight=5\n",
        "the other is still written"
    );
    assert!(
        ran.stderr.contains("\"3000\" but now reads \"2048\""),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_refusal_of_the_kernel_names_its_errno() {
    let tree = populated("refused");
    let file = tree.path("web/0/compute.weight");
    std::fs::remove_file(&file).expect("the plain file");
    std::os::unix::fs::symlink("/dev/full", &file).expect("a link");
    let ran = tree.gctctl(&["set", "web/0", "compute.weight=5", "--json"]);
    golden("refused.json", ran.exits(3));
    assert!(
        ran.stderr.contains("because: ENOSPC: a maximum is reached"),
        "{}",
        ran.stderr
    );
}

#[test]
fn create_and_rm_wait_for_the_directory() {
    let tree = FakeTree::new("create");
    let directory = tree.path("web");
    let kernel = tree.kernel_file("control", move |request| {
        assert_eq!(request, "create web\n");
        std::fs::create_dir(directory).expect("the group");
        None
    });
    assert_eq!(tree.gctctl(&["create", "web"]).exits(0), "created web\n");
    kernel.join().expect("the fake kernel was asked");
    std::fs::remove_file(tree.path("control")).expect("the pipe");
    tree.write("control", "");
    let ran = tree.gctctl(&["rm", "web"]);
    ran.exits(6);
    assert!(
        ran.stderr.contains("the directory web stayed"),
        "{}",
        ran.stderr
    );
}

#[test]
fn create_refuses_bad_names_and_creates_the_others() {
    let tree = FakeTree::new("names");
    tree.group("there", &[]);
    let ran = tree.gctctl(&["create", "gpus", "1st", "there", "--json"]);
    golden("create.json", ran.exits(3));
    assert_eq!(tree.read("control"), "create there\n");
}

#[test]
fn attach_takes_pids_and_a_cgroup() {
    let tree = FakeTree::new("attach");
    tree.group("web", &[]);
    let own = std::process::id().to_string();
    tree.gctctl(&["attach", "web", "--pid", &own]).exits(0);
    let blank = tree.gctctl(&["attach", "web", "--cgroup", "/web.slice "]);
    blank.exits(2);
    assert!(
        blank.stderr.contains("blanks at its ends"),
        "{}",
        blank.stderr
    );
    assert_eq!(tree.read("web/group.procs"), format!("{own}\n"));
    tree.gctctl(&["attach", "web", "--cgroup", "/a/b"]).exits(0);
    assert_eq!(tree.read("web/group.cgroup"), "/a/b\n");
    tree.gctctl(&["attach", "web", "--cgroup", "a/b"]).exits(3);
    tree.gctctl(&["attach", "nobody", "--pid", &own]).exits(4);
    tree.gctctl(&["attach", "web"]).exits(2);
    let kernel = tree.kernel_file("web/group.procs", |_| Some("77\n".to_owned()));
    tree.gctctl(&["attach", "web", "--pid", &own]).exits(6);
    kernel.join().expect("the fake kernel was asked");
}

#[test]
fn version_compares_the_abi() {
    let tree = FakeTree::new("version");
    golden("version.json", tree.gctctl(&["version", "--json"]).exits(0));
    tree.write("version", "gctgroup 9.0.0 abi 9\n");
    tree.gctctl(&["version"]).exits(1);
    std::fs::remove_dir_all(tree.root()).expect("the tree");
    let ran = tree.gctctl(&["version"]);
    assert_eq!(ran.exits(7), "gctctl 0.1.0 abi 3\n");
    assert!(
        ran.stderr.contains("There is no gctgroup tree at ROOT"),
        "{}",
        ran.stderr
    );
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    let tree = FakeTree::new("generate");
    let commands = [
        "doctor", "ls", "show", "set", "apply", "run", "attach", "capture",
    ];
    for shell in ["bash", "zsh", "fish"] {
        let ran = tree.gctctl(&["completions", shell]);
        let text = ran.exits(0);
        assert!(
            commands.iter().all(|command| text.contains(command)),
            "{shell}"
        );
    }
    let directory = tree.path("man");
    std::fs::create_dir(&directory).expect("a directory");
    let directory = directory.display().to_string();
    tree.gctctl(&["man", &directory]).exits(0);
    for command in commands {
        let page = tree.read(&format!("man/gctctl-{command}.1"));
        assert!(page.contains(".TH"), "{command}");
    }
    assert!(tree.read("man/gctctl.1").contains("Exit codes"));
    let ran = tree.gctctl(&["man", "/nowhere/man"]);
    ran.exits(1);
    assert!(
        ran.stderr.contains("Name a directory that exists"),
        "{}",
        ran.stderr
    );
}

#[test]
fn help_names_the_exit_codes() {
    let output = Command::new(env!("CARGO_BIN_EXE_gctctl"))
        .arg("--help")
        .output();
    let ran = Ran::new(output.expect("gctctl runs"), "/nowhere".as_ref());
    let help = ran.exits(0);
    for code in 0..=7 {
        assert!(help.contains(&format!("\n  {code}  ")), "{help}");
    }
}

#[test]
fn a_limit_of_a_group_on_no_gpu_says_that_there_is_none() {
    let tree = FakeTree::new("no-gpu");
    tree.group("idle", &[]);
    let ran = tree.gctctl(&["set", "idle", "tpc.mask=0-3"]);
    ran.exits(4);
    assert!(ran.stderr.contains("idle is on no GPU"), "{}", ran.stderr);
    let ran = tree.gctctl(&["set", "idle", "no.such=1"]);
    ran.exits(4);
    assert!(ran.stderr.contains("has no file"), "{}", ran.stderr);
}
