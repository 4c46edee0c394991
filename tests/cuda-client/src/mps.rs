// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Clients of NVIDIA's own MPS daemon. Each program is one while the daemon runs.

use crate::group::{goes_through, passed, run, until, Group, Program};
use crate::limits::ALL;
use crate::recorded::{disabled, launches, masks};
use fakegpu_record::{Event, Recorder};
use gct_ktap::{failed, holds, same, Outcome, Stop, Test};
use rustix::mount::{mount, MountFlags};
use std::collections::BTreeSet;
use std::sync::Once;
use std::{fs, io};

pub(crate) const TESTS: &[Test] = &[
    ("mps.steps", without_limits),
    ("mps.masks", masks_of_clients),
    ("mps.memory", memory),
    ("mps.client_dies", client_dies),
    ("mps.client_drained", client_drained),
    ("mps.server_dies", server_dies),
];

/// Mounts where the daemon has its pipes what gct-device-plugin mounts there.
fn mount_pipe() -> io::Result<()> {
    const AT: &str = "/tmp/nvidia-mps";
    let flags =
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOSYMFOLLOW;
    fs::create_dir_all(AT)?;
    let size = c"mode=0755,size=4m,nr_inodes=4096";
    Ok(mount("tmpfs", AT, "tmpfs", flags, size)?)
}

/// The daemon, which starts a server with its first client. Both end on drop.
struct Daemon;

impl Daemon {
    fn start() -> Result<Self, Stop> {
        static PIPE: Once = Once::new();
        let mut mounted = Ok(());
        PIPE.call_once(|| mounted = mount_pipe());
        mounted?;
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

/// All steps pass in a client without limits, which is set up as `owned_mps_*` of rm-test play it:
/// below a name of the server's channel group are its context share and channels for compute.
fn without_limits() -> Outcome {
    let _daemon = Daemon::start()?;
    let recorder = Recorder::open(0)?;
    let mark = recorder.mark()?;
    let output = run(&goes_through(ALL))?;
    let events = recorder.since(mark)?;
    passed(output)?;
    let made = |name: &'static str| {
        let of_name = move |event: &&Event| event.kind == "alloc" && event.name == name;
        events.iter().filter(of_name)
    };
    let groups: BTreeSet<_> = made("KEPLER_CHANNEL_GROUP_A")
        .map(|group| (group.client, group.object))
        .collect();
    let names = events.iter().filter(|event| {
        event.kind == "duplicate" && groups.contains(&(event.source_client, event.source_object))
    });
    // nvidia-uvm has names of groups, too, and makes nothing below them.
    let below = names.map(|name| {
        let below = |class| {
            let parent =
                move |made: &&Event| (made.client, made.parent) == (name.client, name.object);
            made(class).filter(parent).count()
        };
        [
            below("FERMI_CONTEXT_SHARE_A"),
            below("HOPPER_CHANNEL_GPFIFO_A"),
        ]
    });
    let below: Vec<_> = below
        .filter(|below| below.iter().any(|count| *count > 0))
        .collect();
    same("context shares and channels", below, vec![[1, 2]])
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
    of_other.goes_on()
}

/// A client is charged for what it allocates, and its limit binds it alone.
fn memory() -> Outcome {
    let _daemon = Daemon::start()?;
    let other = Group::named("other", &[])?;
    let of_other = other.rounds()?;
    let group = Group::new(&[("gmem.limit", "700M")])?;
    let output = group.member("memory_info,large_memory,copies")?;
    let expected = "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY";
    same("refused", output.matches(expected).count(), 1)?;
    same("failed", output.matches("not ok").count(), 1)?;
    holds("counted", group.stat("gmem.events", "limit")? > 0)?;
    of_other.goes_on()
}

/// Has one of two clients killed, after `before`: it leaves no memory charged, and the other one
/// goes on.
fn killed_after(before: impl FnOnce(&Daemon, &Program) -> Outcome) -> Outcome {
    let daemon = Daemon::start()?;
    let one = Group::named("one", &[("tpc.mask", "0-31")])?;
    let other = Group::named("other", &[])?;
    let of_other = other.rounds()?;
    let of_one = one.rounds()?;
    let server = daemon.server()?;
    before(&daemon, &of_one)?;
    drop(of_one);
    until("nothing is charged", || Ok(one.memory()? == 0))?;
    of_other.goes_on()?;
    one.passes("launch")?;
    same("the server", daemon.server()?, server)
}

/// A client that is killed leaves no memory charged, and the others go on.
fn client_dies() -> Outcome {
    killed_after(|_, _| Ok(()))
}

/// A client that is taken from its server loses its context, is killed, and the others go on.
fn client_drained() -> Outcome {
    killed_after(|daemon, of_one| {
        let clients = daemon.asked(&format!("get_client_list {}", daemon.server()?))?;
        same("clients", clients.lines().count(), 2)?;
        let said = run("gctctl drain one 2>&1")?;
        let says = format!(
            "one: process {} is no client of MPS any more\n",
            of_one.pid()
        );
        same("gctctl says", said, says)?;
        until("the client fails", || Ok(of_one.count("not ok")? > 0))?;
        let text = of_one.text()?;
        holds(
            "CUDA's error",
            text.contains("CUDA_ERROR_MPS_CLIENT_TERMINATED"),
        )?;
        same(
            "gctctl finds nobody",
            run("gctctl drain one 2>&1")?,
            String::new(),
        )
    })
}

/// Clients of a server that is killed lose their contexts, and their groups serve the next.
fn server_dies() -> Outcome {
    let daemon = Daemon::start()?;
    let group = Group::new(&[("tpc.mask", "0-31")])?;
    let rounds = group.rounds()?;
    run(&format!("kill -9 {}", daemon.server()?))?;
    until("the client fails", || Ok(rounds.count("not ok")? > 0))?;
    let text = rounds.text()?;
    holds("CUDA's error", text.contains("CUDA_ERROR_MPS_RPC_FAILURE"))?;
    drop(rounds);
    until("nothing is charged", || Ok(group.memory()? == 0))?;
    let launches = launches(|| group.passes("launch"))?;
    same(
        "masks",
        masks(&launches),
        BTreeSet::from([disabled("0-31")?]),
    )
}
