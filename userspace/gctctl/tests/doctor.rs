// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `gctctl doctor` finds each problem of a machine and names its remedy.

mod common;

use std::fs;

use common::{golden, FakeTree, Ran};

/// Creates a machine without problems, in `system/` of the tree's directory.
fn machine(tree: &FakeTree) {
    for (path, text) in [
        ("proc/sys/kernel/osrelease", "7.2.12\n"),
        ("boot/config-7.2.12", "CONFIG_DEBUG_FS=y\nCONFIG_RUST=y\n"),
        (
            "sys/kernel/security/lockdown",
            "[none] integrity confidentiality\n",
        ),
        (
            "proc/modules",
            "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\n",
        ),
        ("sys/module/nvidia/version", "550.163.01\n"),
        ("proc/driver/nvidia/gpus/0000:01:00.0", ""),
    ] {
        let path = tree.path("system").join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
}

fn doctor(tree: &FakeTree, more: &[&str]) -> Ran {
    let system = tree.path("system").display().to_string();
    let arguments = [&["doctor", "--system-root", system.as_str()], more].concat();
    tree.gctctl(&arguments)
}

#[test]
fn a_machine_without_problems_passes() {
    let tree = FakeTree::new("well");
    machine(&tree);
    golden("doctor.txt", doctor(&tree, &[]).exits(0));
    golden("doctor.json", doctor(&tree, &["--json"]).exits(0));
}

/// Breaks the machine in each way. doctor must report the problem and its remedy.
#[test]
fn each_problem_is_found_and_has_a_remedy() {
    let cases: [(&str, &str, &str, &str); 7] = [
        (
            "boot/config-7.2.12",
            "CONFIG_DEBUG_FS=y\n",
            "lacks CONFIG_RUST=y",
            "Boot a kernel",
        ),
        (
            "sys/kernel/security/lockdown",
            "none [integrity]\n",
            "locked down",
            "Secure Boot",
        ),
        (
            "proc/modules",
            "",
            "nvidia is not loaded",
            "insmod nvidia.ko",
        ),
        (
            "proc/driver/nvidia/gpus/0000:02:00.0",
            "",
            "lists 2 GPUs and gctgroup 1",
            "report this",
        ),
        (
            "../version",
            "gctgroup 9.0.0 abi 9\n",
            "abi 9",
            "made for abi 3",
        ),
        (
            "../version",
            "something else\n",
            "which is invalid",
            "the gctctl of the release",
        ),
        ("../gpus/0", "gone", "no GPU", "lspci"),
    ];
    for (path, text, says, remedy) in cases {
        let tree = FakeTree::new("problem");
        machine(&tree);
        let path = tree.path("system").join(path);
        match text {
            "gone" => fs::remove_dir_all(path).expect("the directory"),
            _ => fs::write(path, text).expect("the file"),
        }
        let ran = doctor(&tree, &[]);
        assert!(ran.exits(1).contains(says), "{says}: {}", ran.stdout);
        assert!(ran.stdout.contains(remedy), "{remedy}: {}", ran.stdout);
        assert!(ran.stderr.contains("There is a problem"), "{}", ran.stderr);
    }
}

#[test]
fn notes_are_not_failures() {
    let tree = FakeTree::new("notes");
    machine(&tree);
    tree.write("events", "objects_lost 0\nmemory_failed 4\n");
    tree.write("system/proc/modules", "nvidia 1 1 - Live 0x0\n");
    let ran = doctor(&tree, &[]);
    assert!(ran.exits(0).contains("memory_failed 4"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("objects_lost"), "{}", ran.stdout);
    assert!(ran.stdout.contains("modprobe nvidia_uvm"), "{}", ran.stdout);
}

/// The node's nodes are here, its debugfs and device are not.
#[test]
fn in_a_container_of_the_kernel_mode_the_tree_is_outside() {
    let tree = FakeTree::new("pod");
    machine(&tree);
    fs::create_dir_all(tree.path("system/dev")).expect("a directory");
    tree.write("system/dev/nvidia0", "");
    fs::remove_dir_all(tree.path("system/boot")).expect("the directory");
    let inside = |mode: &str| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_gctctl"))
            .env("GCTGROUP_MODE", mode)
            .args(["--root", "/nonexistent/gctgroup", "doctor"])
            .arg("--system-root")
            .arg(tree.path("system"))
            .output();
        Ran::new(output.expect("gctctl runs"), tree.root())
    };
    let well = inside("kernel");
    for line in ["outside of this container", "There are nvidia0"] {
        assert!(well.exits(0).contains(line), "{line}: {}", well.stdout);
    }
    for of_node in ["debugfs", "boot", "nvidia.ko", "locked"] {
        assert!(!well.stdout.contains(of_node), "{of_node}: {}", well.stdout);
    }
    // Only a container that the plugin has made is one.
    let other = inside("user");
    assert!(other.exits(1).contains("nvidia.ko"), "{}", other.stdout);
    fs::remove_file(tree.path("system/dev/nvidia0")).expect("the node");
    let without = inside("kernel");
    assert!(
        without.exits(1).contains("enable_cdi"),
        "{}",
        without.stdout
    );
}

/// A pod of the exporter mounts the tree.
#[test]
fn in_a_container_with_the_tree_doctor_checks_it() {
    let tree = FakeTree::new("pod-tree");
    machine(&tree);
    fs::create_dir_all(tree.path("system/dev")).expect("a directory");
    tree.write("system/dev/nvidia0", "");
    tree.write("version", "gctgroup 9.0.0 abi 9\n");
    let system = tree.path("system").display().to_string();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_gctctl"))
        .env("GCTGROUP_MODE", "kernel")
        .arg("--root")
        .arg(tree.root())
        .args(["doctor", "--system-root", &system])
        .output();
    let ran = Ran::new(output.expect("gctctl runs"), tree.root());
    assert!(ran.exits(1).contains("made for abi 3"), "{}", ran.stdout);
}

#[test]
fn without_gctgroup_the_remedy_is_to_load_it() {
    let tree = FakeTree::new("without");
    machine(&tree);
    let system = tree.path("system").display().to_string();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_gctctl"))
        .args([
            "--root",
            "/nonexistent/gctgroup",
            "doctor",
            "--system-root",
            &system,
        ])
        .output();
    let ran = Ran::new(output.expect("gctctl runs"), tree.root());
    assert!(
        ran.exits(1).contains("load the patched nvidia.ko"),
        "{}",
        ran.stdout
    );
}
