// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Groups, limits and members outlive a daemon that is killed.

mod common;

use common::process::Process as Daemon;
use common::{eventually_within, own, Tenant, TSG};
use gct_core::mask::TpcMask;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const MEMORY: u32 = 0x5c00_0040;
const KIB: u64 = 1024;
const LATEST: Duration = Duration::from_secs(60);

/// A process that waits. Dropping it kills it.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_daemon_leaves_its_groups_limits_and_members() {
    let mut daemon = Daemon::start("killed", 1);
    let client = daemon.client();
    let (stays, goes) = (Sleeper::start(), Sleeper::start());
    for (file, value) in [
        ("control", "create gone"),
        ("control", "create web"),
        ("control", "create other"),
        ("control", "remove gone"),
        ("web/0/gmem.limit", "1M"),
        ("web/0/tpc.mask", "0-3,9"),
        ("web/0/tpc.mask", "0-3"),
        ("web/0/compute.max", "20000 100000"),
        ("web/0/compute.timeslice", "800"),
        ("web/group.procs", "0"),
        ("other/group.cgroup", "/some/where"),
        ("other/0/tpc.quota", "7"),
        ("other/group.procs", &stays.pid()),
        ("other/group.procs", &goes.pid()),
    ] {
        client.write(file, value).unwrap();
    }
    let mut tenant = Tenant::new(&daemon.paths().tenants);
    let old = tenant.cuda(0);
    assert!(tenant.memory(MEMORY, 900 * KIB));
    client.write(&own("tpc.mask"), "0-1").unwrap();
    // Nobody answers for the process, so the write waits for a second.
    client.write("web/0/compute.freeze", "1").unwrap();
    assert!(!tenant.memory(MEMORY + 1, 200 * KIB));
    let files = [
        "web/0/gmem.limit",
        "web/0/tpc.mask",
        "web/0/compute.max",
        "web/0/compute.timeslice",
        "web/0/compute.freeze",
        "web/group.procs",
        "other/group.cgroup",
        "other/0/tpc.quota",
    ];
    let before = files.map(|file| client.read(file).unwrap());
    let is_bound = |limits: gctd_ipc::page::Limits| {
        limits.launches.tpcs == Some(TpcMask::first(2))
            && limits.launches.frozen
            && limits.timeslice_us == 800
    };
    daemon.kill();
    drop(goes);
    assert!(!tenant.maintain(), "no daemon runs");
    assert!(is_bound(old.page.limits().unwrap().1));
    // The second time from what the first has written anew.
    for _ in 0..2 {
        daemon.restart();
        let client = daemon.client();
        let names = client.list("").unwrap();
        let groups = names
            .iter()
            .filter(|name| ["web/", "other/", "gone/"].contains(&&***name));
        assert_eq!(groups.collect::<Vec<_>>(), ["other/", "web/"]);
        assert_eq!(files.map(|file| client.read(file).unwrap()), before);
        assert_eq!(
            client.read("other/group.procs"),
            Ok(format!("{}\n", stays.pid()))
        );
        assert!(tenant.maintain(), "connects to the new daemon");
        let new = tenant.link.gpu_of(tenant.client, TSG).unwrap();
        assert!(is_bound(new.page.limits().unwrap().1));
        assert_eq!(client.read(&own("tpc.mask")), Ok("0-1\n".into()));
        let current = || client.read("web/0/gmem.current");
        eventually_within(LATEST, &Ok(format!("{}\n", 900 * KIB)), current);
        assert!(!tenant.memory(MEMORY + 1, 200 * KIB));
        assert!(tenant.memory(MEMORY + 1, 100 * KIB));
        tenant.free(MEMORY + 1);
    }
    // What is changed now is kept, too, and who ends is no member.
    let client = daemon.client();
    client.write("web/0/tpc.mask", "0-7").unwrap();
    client.write("control", "create late").unwrap();
    drop(stays);
    let members = || client.read("other/group.procs");
    eventually_within(LATEST, &Ok(String::new()), members);
    client.write("control", "remove other").unwrap();
    daemon.restart();
    let client = daemon.client();
    assert_eq!(client.read("web/0/tpc.mask"), Ok("0-7\n".into()));
    assert!(client.list("late").is_ok() && client.list("other").is_err());
}

#[test]
fn a_limit_follows_its_gpu_and_waits_for_it() {
    let mut daemon = Daemon::start("its-gpu", 2);
    let client = daemon.client();
    client.write("control", "create web").unwrap();
    client.write("web/0/gmem.limit", "1000000").unwrap();
    client.write("web/1/gmem.limit", "2000000").unwrap();
    fs::remove_dir_all(daemon.gpu(0)).unwrap();
    daemon.restart();
    let client = daemon.client();
    assert_eq!(client.read("web/0/gmem.limit"), Ok("2000000\n".into()));
    assert!(client.list("web/1").is_err());
    client.write("web/0/gmem.limit", "3000000").unwrap();
    daemon.add_gpu(0);
    // A program that connects makes the daemon look.
    let _tenant = Tenant::new(&daemon.paths().tenants);
    for _ in 0..2 {
        let client = daemon.client();
        assert_eq!(client.read("web/0/gmem.limit"), Ok("1000000\n".into()));
        assert_eq!(client.read("web/1/gmem.limit"), Ok("3000000\n".into()));
        daemon.restart();
    }
}

#[test]
fn what_is_not_of_this_boot_or_process_is_left_out() {
    let mut daemon = Daemon::start("other-boot", 1);
    let client = daemon.client();
    let sleeper = Sleeper::start();
    client.write("control", "create web").unwrap();
    client.write("web/0/tpc.quota", "7").unwrap();
    client.write("web/group.procs", sleeper.pid()).unwrap();
    daemon.kill();
    let kept = fs::read_to_string(daemon.kept()).unwrap();
    let pid = sleeper.pid();
    // The start time follows the pid.
    let reused = kept.replace(&format!(" {pid} "), &format!(" {pid} 1"));
    let torn = format!("{kept}set web 0000:00:00.0 tpc.quota 8");
    let newer = format!("{kept}unknown web 1\n");
    let other = kept.replacen("boot ", "boot 0", 1);
    let members = [&*kept, &torn, &newer].map(|text| (text, true, format!("{pid}\n")));
    let none = [
        (&*reused, true, String::new()),
        (&*other, false, String::new()),
    ];
    for (text, has_group, members) in members.into_iter().chain(none) {
        fs::write(daemon.kept(), text).unwrap();
        daemon.restart();
        let client = daemon.client();
        let quota = client.read("web/0/tpc.quota");
        assert_eq!(
            quota,
            if has_group {
                Ok("7\n".into())
            } else {
                Err(libc::ENOENT)
            }
        );
        assert_eq!(client.read("web/group.procs").unwrap_or_default(), members);
    }
}

/// Connects, and waits to be killed. It is the program of another test.
#[test]
fn program() {
    let Some(path) = std::env::var_os("GCTD_TEST_TENANT") else {
        return;
    };
    let _tenant = Tenant::new(path.as_ref());
    println!("pid {}", std::process::id());
    std::thread::sleep(Duration::from_secs(600));
}

/// A child of a member is a member, also when its parent has ended before the daemon.
#[test]
fn an_orphan_stays_a_member() {
    let mut daemon = Daemon::start("orphan", 1);
    let client = daemon.client();
    client.write("control", "create web").unwrap();
    let mut shell = Command::new("sh")
        .args(["-c", "read go; \"$@\" & wait", "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "program", "--nocapture"])
        .env("GCTD_TEST_TENANT", daemon.paths().tenants)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let parent = shell.id().to_string();
    client.write("web/group.procs", &*parent).unwrap();
    drop(shell.stdin.take());
    let said = BufReader::new(shell.stdout.take().unwrap()).lines();
    let pid = |line: std::io::Result<String>| Some(line.unwrap().split_once("pid ")?.1.to_owned());
    let child = said.into_iter().find_map(pid).unwrap();
    shell.kill().unwrap();
    shell.wait().unwrap();
    let orphan = format!("{child}\n");
    let members = || client.read("web/group.procs");
    eventually_within(LATEST, &Ok(orphan.clone()), members);
    daemon.restart();
    assert_eq!(daemon.client().read("web/group.procs"), Ok(orphan));
    let pid = rustix::process::Pid::from_raw(child.parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let client = daemon.client();
    eventually_within(LATEST, &Ok(String::new()), || {
        client.read("web/group.procs")
    });
}
