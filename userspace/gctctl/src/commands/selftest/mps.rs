// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Takes a client from its MPS server before it is killed.
//!
//! A client that is killed while work of its runs ends its neighbours under the same server.
//! `terminate_client SERVER CLIENT` of NVIDIA's control program ends its contexts alone, and
//! returns when the server has done so. Then it is safe to kill the client (NVIDIA's documentation
//! of MPS, "Client Early Termination"). Both are pids as the control daemon sees them.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// NVIDIA's control program. It finds the daemon by the environment, as the client has.
pub(super) const CONTROL: &str = "nvidia-cuda-mps-control";

/// Most time for an answer. A daemon that hangs cannot end a client.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);

/// Takes a process from the server of which it is a client. Does nothing if it is none, or if there
/// is no daemon.
pub(super) fn drain(control: &Path, client: u32) {
    for server in numbers(control, "get_server_list") {
        let clients = numbers(control, &format!("get_client_list {server}"));
        if clients.contains(&client) {
            ask(control, &format!("terminate_client {server} {client}"));
        }
    }
}

/// Asks for pids, of which each has a line.
fn numbers(control: &Path, command: &str) -> Vec<u32> {
    let answer = ask(control, command);
    let lines = answer.lines();
    lines.filter_map(|line| line.trim().parse().ok()).collect()
}

/// Returns the answer to a command; an empty one without a daemon, or without an answer in time.
fn ask(control: &Path, command: &str) -> String {
    let child = Command::new(control)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else {
        return String::new();
    };
    if let Some(mut input) = child.stdin.take() {
        // Fails if there is no daemon, and the program has ended.
        let _ = writeln!(input, "{command}");
    }
    let since = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if since.elapsed() > ANSWER_WAIT {
            let _ = child.kill();
            let _ = child.wait();
            return String::new();
        }
        sleep(POLL);
    }
    let mut answer = String::new();
    // What was read before an error counts.
    let _ = child.stdout.map(|mut out| out.read_to_string(&mut answer));
    answer
}
