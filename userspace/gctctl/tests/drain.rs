// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `gctctl drain` names the members of a group to an MPS daemon, and nobody else. A script stands
//! in for NVIDIA's control program; this process is the server.

mod common;

use common::Ran;
use gctd::testing::Daemon;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command};

const SCRIPT: &str = r#"#!/bin/sh
cd "$CUDA_MPS_PIPE_DIRECTORY"
while read -r command server client; do
    case $command in
    get_default_active_thread_percentage) echo 100.0 ;;
    get_server_list) cat server ;;
    get_client_list) cat clients ;;
    terminate_client) echo "$client" >>terminated; echo 0 ;;
    esac
done
"#;

/// A daemon of gctd, and the directory of one of MPS.
struct Bed {
    daemon: Daemon,
    pipe: PathBuf,
    clients: Vec<Child>,
}

impl Bed {
    fn new(test: &str) -> Self {
        let daemon = Daemon::new(test, 1);
        let pipe = daemon.directory.join("pipe");
        fs::create_dir(&pipe).unwrap();
        fs::write(pipe.join("program"), SCRIPT).unwrap();
        fs::set_permissions(pipe.join("program"), Permissions::from_mode(0o755)).unwrap();
        fs::write(pipe.join("control"), "").unwrap();
        fs::write(pipe.join("server"), std::process::id().to_string() + "\n").unwrap();
        Self {
            daemon,
            pipe,
            clients: Vec::new(),
        }
    }

    /// Starts a client, and returns its pid.
    fn client(&mut self) -> String {
        let client = Command::new("sleep").arg("600").spawn().unwrap();
        self.clients.push(client);
        let pids = self
            .clients
            .iter()
            .map(|client| format!("{}\n", client.id()));
        fs::write(self.pipe.join("clients"), pids.collect::<String>()).unwrap();
        self.clients.last().unwrap().id().to_string()
    }

    fn gctctl(&self, arguments: &[&str]) -> Ran {
        Ran::gctctl("--dir", &self.daemon.directory, arguments)
    }

    fn drain(&self, group: &str) -> Ran {
        let [pipe, program] = ["", "program"].map(|name| self.pipe.join(name));
        let [pipe, program] = [pipe, program].map(|path| path.to_str().unwrap().to_owned());
        self.gctctl(&["drain", "--pipe", &pipe, "--control", &program, group])
    }

    /// Returns the pids that the daemon was told since the last call.
    fn terminated(&self) -> Vec<String> {
        let file = self.pipe.join("terminated");
        let text = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(file);
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for client in &mut self.clients {
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}

#[test]
fn members_of_the_group_are_taken_from_their_server() {
    let mut bed = Bed::new("drain");
    let [member, neighbour, nobodys] = [(); 3].map(|()| bed.client());
    bed.gctctl(&["create", "web", "batch"]).exits(0);
    bed.gctctl(&["attach", "web", "--pid", &member]).exits(0);
    bed.gctctl(&["attach", "batch", "--pid", &neighbour])
        .exits(0);
    let said = bed.drain("web").exits(0).to_owned();
    assert_eq!(
        said,
        format!("web: process {member} is no client of MPS any more\n")
    );
    assert_eq!(bed.terminated(), [member.as_str()]);
    // Those whose cgroup is the group's are members, too, unless another group has them.
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap();
    let Some(cgroup) = cgroup.lines().find_map(|line| line.strip_prefix("0::")) else {
        return eprintln!("skipped in part: this system has no cgroup version 2");
    };
    bed.gctctl(&["create", "cgroup"]).exits(0);
    bed.gctctl(&["attach", "cgroup", "--cgroup", cgroup])
        .exits(0);
    bed.drain("cgroup").exits(0);
    assert_eq!(bed.terminated(), [nobodys]);
    // Who joins another group is that one's.
    bed.gctctl(&["attach", "batch", "--pid", &member]).exits(0);
    assert_eq!(bed.drain("web").exits(0), "");
    bed.drain("batch").exits(0);
    assert_eq!(bed.terminated(), [member, neighbour]);
}

/// A shell is attached, and its child of before is no member.
#[test]
fn a_child_of_before_its_parent_was_attached_is_left_alone() {
    let mut bed = Bed::new("drain-child");
    bed.client();
    let own = std::process::id().to_string();
    bed.gctctl(&["create", "web"]).exits(0);
    // Start times have the resolution of a clock tick.
    std::thread::sleep(std::time::Duration::from_millis(50));
    bed.gctctl(&["attach", "web", "--pid", &own]).exits(0);
    assert_eq!(bed.drain("web").exits(0), "");
    assert!(bed.terminated().is_empty());
}

#[test]
fn what_cannot_be_drained_is_said() {
    let mut bed = Bed::new("drain-says");
    let client = bed.client();
    bed.drain("web").exits(4);
    bed.gctctl(&["create", "web"]).exits(0);
    bed.gctctl(&["attach", "web", "--pid", &client]).exits(0);
    fs::write(bed.pipe.join("server"), "4194305\n").unwrap();
    let ran = bed.drain("web");
    ran.exits(1);
    assert!(
        ran.stderr
            .contains("web: server 4194305 is no process here"),
        "{}",
        ran.stderr
    );
    fs::remove_file(bed.pipe.join("control")).unwrap();
    let ran = bed.drain("web");
    ran.exits(4);
    assert!(
        ran.stderr.contains("There is no MPS daemon at"),
        "{}",
        ran.stderr
    );
    assert!(bed.terminated().is_empty());
}
