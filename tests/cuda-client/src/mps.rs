// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Clients of NVIDIA's own MPS daemon. Each program is one while the daemon runs.

use crate::group::{goes_through, passed, run, until, Group};
use crate::limits::ALL;
use crate::recorded::{disabled, launches, masks};
use fakegpu_record::{Event, Recorder};
use gct_ktap::{failed, holds, same, Outcome, Stop, Test};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const TESTS: &[Test] = &[
    ("mps.steps", without_limits),
    ("mps.masks", masks_of_clients),
    ("mps.memory", memory),
    ("mps.client_dies", client_dies),
    ("mps.server_dies", server_dies),
];

/// The daemon, which starts a server with its first client. Both end on drop.
struct Daemon;

impl Daemon {
    fn start() -> Result<Self, Stop> {
        run("CUDA_MPS_LOG_DIRECTORY=/tmp/mps nvidia-cuda-mps-control -d")?;
        let daemon = Self;
        until("the daemon of MPS answers", || {
            Ok(daemon
                .asked("get_default_active_thread_percentage")?
                .contains("100"))
        })?;
        Ok(daemon)
    }

    /// Returns what the daemon answers to a command.
    fn asked(&self, command: &str) -> Result<String, Stop> {
        run(&format!("echo {command} | nvidia-cuda-mps-control 2>&1"))
    }

    /// Returns the pid of the server.
    fn server(&self) -> Result<u32, Stop> {
        let servers = self.asked("get_server_list")?;
        servers.trim().parse().map_err(|_| failed(servers))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let ended = self.asked("quit -t 1").and_then(|_| {
            until("the daemon of MPS is gone", || {
                Ok(run("pidof nvidia-cuda-mps-control nvidia-cuda-mps-server")?.is_empty())
            })
        });
        if let Err(why) = ended {
            println!("# the daemon of MPS does not end: {why:?}");
        }
    }
}

/// All steps pass in a client without limits. Its channels for compute are below a channel group of
/// the server's.
fn without_limits() -> Outcome {
    let _daemon = Daemon::start()?;
    let recorder = Recorder::open(0)?;
    let mark = recorder.mark()?;
    let output = run(&goes_through(ALL))?;
    for line in output.lines().filter(|line| !line.starts_with("KTAP")) {
        println!("# {line}");
    }
    let events = recorder.since(mark)?;
    for line in how_it_is_set_up(&events) {
        println!("# {line}");
    }
    println!(
        "# {}",
        run("cat /tmp/mps/server.log")?.replace('\n', "\n# ")
    );
    passed(output)
}

/// Lists what clients of the resource manager allocate of channels, and of whom they name objects.
fn how_it_is_set_up(events: &[Event]) -> Vec<String> {
    let mut lines: BTreeMap<String, u32> = BTreeMap::new();
    for event in events {
        let line = match event.kind.as_str() {
            "alloc"
                if ["CHANNEL", "CONTEXT_SHARE", "VASPACE"]
                    .iter()
                    .any(|part| event.name.contains(part)) =>
            {
                format!(
                    "{:x} allocates {} below {:x}",
                    event.client, event.name, event.parent
                )
            }
            "duplicate" => event.line.clone(),
            "control" if event.name.contains("PARTITION") => event.line.clone(),
            _ => continue,
        };
        *lines.entry(line).or_default() += 1;
    }
    lines
        .into_iter()
        .map(|(line, count)| format!("{count} {line}"))
        .collect()
}

/// Each launch of a client's has the mask of its group.
fn masks_of_clients() -> Outcome {
    let _daemon = Daemon::start()?;
    let one = Group::named("one", &[("tpc.mask", "0-31")])?;
    let other = Group::named("other", &[("tpc.mask", "32-63")])?;
    let of_other = other.rounds()?;
    let both = BTreeSet::from([disabled("0-31")?, disabled("32-63")?]);
    let launches = launches(|| {
        one.passes(ALL)?;
        of_other.has("# round", of_other.count("# round")? + 1)
    })?;
    same("masks", masks(&launches), both)?;
    holds("rewritten", one.stat("compute.stat", "rewritten")? > 0)?;
    holds("shared", other.stat("compute.stat", "shared_channels")? > 0)?;
    of_other.goes_on()
}

/// A client is charged for what it allocates, and its limit binds it alone.
fn memory() -> Outcome {
    let _daemon = Daemon::start()?;
    let other = Group::named("other", &[])?;
    let of_other = other.rounds()?;
    let group = Group::new(&[("gmem.limit", "700M")])?;
    println!("# the other: {} MiB", other.memory()? >> 20);
    let output = group.member("memory_info,large_memory,copies")?;
    println!("# {}", output.replace('\n', "\n# "));
    let expected = "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY";
    same("refused", output.matches(expected).count(), 1)?;
    same("failed", output.matches("not ok").count(), 1)?;
    holds("counted", group.stat("gmem.events", "limit")? > 0)?;
    of_other.goes_on()
}

/// A client that is killed leaves no memory charged, and the others go on.
fn client_dies() -> Outcome {
    let daemon = Daemon::start()?;
    let one = Group::named("one", &[("tpc.mask", "0-31")])?;
    let other = Group::named("other", &[])?;
    let of_other = other.rounds()?;
    let of_one = one.rounds()?;
    let server = daemon.server()?;
    drop(of_one);
    until("nothing is charged", || Ok(one.memory()? == 0))?;
    println!(
        "# {}",
        run("cat /tmp/mps/server.log | tail -5")?.replace('\n', "\n# ")
    );
    of_other.goes_on()?;
    one.passes("launch")?;
    same("the server", daemon.server()?, server)
}

/// Clients of a server that is killed lose their contexts, and their groups serve the next.
fn server_dies() -> Outcome {
    let daemon = Daemon::start()?;
    let group = Group::new(&[("tpc.mask", "0-31")])?;
    let rounds = group.rounds()?;
    run(&format!("kill -9 {}", daemon.server()?))?;
    until("the client fails", || Ok(rounds.count("not ok")? > 0))?;
    println!(
        "# {}",
        rounds
            .text()?
            .lines()
            .filter(|line| !line.contains("round "))
            .collect::<Vec<_>>()
            .join("\n# ")
    );
    drop(rounds);
    until("nothing is charged", || Ok(group.memory()? == 0))?;
    let launches = launches(|| group.passes("launch"))?;
    same(
        "masks",
        masks(&launches),
        BTreeSet::from([disabled("0-31")?]),
    )
}
