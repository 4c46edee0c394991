// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Processes that fork, exec and die keep their group, their charges and nothing more.

mod common;

use common::{eventually, member, Tenant, TSG};
use gctd::testing::Daemon;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MEMORY: u32 = 0x5c00_0040;

/// Allocates 1 MiB and sleeps. It is the program of [`Process`], not a test.
#[test]
fn process() {
    let Some(path) = std::env::var_os("GCTD_TEST_TENANT") else {
        return;
    };
    let mut tenant = Tenant::new(path.as_ref());
    tenant.cuda(0).pulse.busy(5);
    assert!(tenant.memory(MEMORY, 1 << 20));
    if std::env::var_os("GCTD_TEST_EXEC").is_some() {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "process", "--nocapture"]);
        again.env_remove("GCTD_TEST_EXEC");
        panic!("{}", again.exec());
    }
    println!("ready");
    std::thread::sleep(std::time::Duration::from_secs(60));
}

/// A child process. Dropping it kills the child.
struct Process(Child);

impl Process {
    /// Runs the test `process` as a child, through a shell script.
    fn spawn(daemon: &Daemon, script: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let child = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(program)
            .args(["--exact", "process", "--nocapture"])
            .env("GCTD_TEST_TENANT", daemon.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns how many processes the tree shows.
fn processes(daemon: &Daemon) -> usize {
    let names = daemon.client().list("").unwrap();
    names
        .iter()
        .filter(|name| name.as_bytes()[0].is_ascii_digit())
        .count()
}

#[test]
fn children_forked_after_a_join_inherit_the_group() {
    let daemon = Daemon::new("children", 1);
    let client = daemon.client();
    client.write("control", "create web").unwrap();
    // The shell joins, then forks a child, which forks another.
    let mut shell = Process::spawn(&daemon, "read go; (\"$@\"; true); true");
    let older = Process::spawn(&daemon, "exec \"$@\"");
    eventually(&1, || processes(&daemon));
    client
        .write("web/group.procs", shell.0.id().to_string())
        .unwrap();
    drop(shell.0.stdin.take());
    eventually(&2, || processes(&daemon));
    let members = client.read("web/group.procs").unwrap();
    let members: Vec<u32> = members.lines().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(members.len(), 2, "{members:?}");
    assert!(members.contains(&shell.0.id()) && !members.contains(&older.0.id()));
    // The child appears before it allocates.
    let charged = || client.read("web/0/gmem.current");
    eventually(&Ok(format!("{}\n", 1 << 20)), charged);
    let child = members.iter().find(|pid| **pid != shell.0.id()).unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(*child).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually(&Ok("0\n".into()), || client.read("web/0/gmem.current"));
    eventually(&Ok(String::new()), || client.read("web/group.procs"));
    assert_eq!(client.write("control", "remove web"), Ok(()));
}

#[test]
fn exec_keeps_the_group_and_drops_the_charges() {
    let daemon = Daemon::new("exec", 1);
    let client = daemon.client();
    client.write("control", "create web").unwrap();
    client.write("web/0/gmem.limit", "1536K").unwrap();
    // The limit fits the memory of one program. The second could not allocate if the first were
    // still charged.
    let command = "read go; GCTD_TEST_EXEC=1 exec \"$@\"";
    let mut program = Process::spawn(&daemon, command);
    let pid = program.0.id();
    client.write("web/group.procs", pid.to_string()).unwrap();
    drop(program.0.stdin.take());
    let charged = || client.read("web/0/gmem.current").unwrap();
    eventually(&format!("{}\n", 1 << 20), charged);
    // The second program creates its RM client again.
    eventually(&Ok("limit 0\n".into()), || client.read("web/0/gmem.events"));
    eventually(&Ok(format!("{pid}\n")), || client.read("web/group.procs"));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(charged(), format!("{}\n", 1 << 20));
    assert_eq!(processes(&daemon), 1);
    assert_eq!(
        program.0.try_wait().unwrap(),
        None,
        "the second program runs"
    );
}

#[test]
fn processes_of_a_cgroup_belong_to_its_group() {
    let daemon = Daemon::new("cgroup", 1);
    let client = daemon.client();
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::")) else {
        eprintln!("skipped: this process is in no v2 cgroup");
        return;
    };
    client.write("control", "create web").unwrap();
    client.write("web/group.cgroup", path).unwrap();
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    let own = format!("{}\n", std::process::id());
    assert_eq!(client.read("web/group.procs"), Ok(own));
    client.write("web/group.cgroup", "none").unwrap();
    assert_eq!(client.read("web/group.procs"), Ok(String::new()));
}

#[test]
fn a_storm_of_kills_leaves_nothing() {
    let daemon = Daemon::new("storm", 1);
    let client = member(&daemon);
    for round in 0..4 {
        let crowd: Vec<Process> = (0..16)
            .map(|_| Process::spawn(&daemon, "exec \"$@\""))
            .collect();
        // Every other round kills them before they have connected.
        if round % 2 == 0 {
            eventually(&16, || processes(&daemon));
        }
        drop(crowd);
        eventually(&0, || processes(&daemon));
        assert_eq!(client.read("web/0/gmem.current"), Ok("0\n".into()));
        let own = format!("{}\n", std::process::id());
        eventually(&Ok(own), || client.read("web/group.procs"));
    }
    let events = client.read("events").unwrap();
    assert!(events.lines().all(|line| line.ends_with(" 0")), "{events}");
}

#[test]
fn the_reservation_of_a_killed_process_is_released() {
    let daemon = Daemon::new("killed", 1);
    let client = daemon.client();
    client.write("control", "create web").unwrap();
    client.write("web/0/tpc.quota", "3").unwrap();
    let mut other = Tenant::of(&daemon);
    let gpu = other.cuda(0);
    let mut shell = Process::spawn(&daemon, "read go; exec \"$@\"");
    let pid = shell.0.id();
    client.write("web/group.procs", pid.to_string()).unwrap();
    drop(shell.0.stdin.take());
    let reserved = || {
        let slots = gpu.board.slots();
        slots
            .map(|(_, slot)| slot.tpcs[0].count_ones())
            .sum::<u32>()
    };
    eventually(&3, reserved);
    shell.0.kill().unwrap();
    let killed = Instant::now();
    eventually(&(0, 1), || (reserved(), gpu.board.slots().count()));
    assert!(killed.elapsed() < Duration::from_millis(500));
    eventually(&Ok("0\n".into()), || client.read("web/0/gmem.current"));
}

#[test]
fn dependable_tpcs_need_no_page() {
    let daemon = Daemon::new("dependable", 2);
    let client = member(&daemon);
    let mut tenant = Tenant::of(&daemon);
    let count = |tenant: &mut Tenant, minor| {
        let words = tenant.link.dependable_tpcs(minor)?;
        Some(words.iter().map(|word| word.count_ones()).sum::<u32>())
    };
    let all = count(&mut tenant, 0).unwrap();
    client.write("web/0/tpc.mask", "0-31").unwrap();
    let masked = count(&mut tenant, 0).unwrap();
    assert!(
        (1..32).contains(&masked),
        "{masked} of 32 numbers, some without a TPC"
    );
    assert_eq!(
        count(&mut tenant, 1),
        Some(all),
        "each GPU has limits of its own"
    );
    assert_eq!(tenant.link.gpus().len(), 0, "the query creates no page");
    client.write("web/0/tpc.quota", "20").unwrap();
    assert_eq!(count(&mut tenant, 0), Some(masked), "a quota is no cap");
    client.write("web/0/tpc.steal", "0").unwrap();
    assert_eq!(
        count(&mut tenant, 0),
        Some(20),
        "but where it may not steal"
    );
    assert_eq!(count(&mut tenant, 7), None, "no such GPU");
    // TPCs that another owner has reserved are not dependable.
    tenant.cuda(0);
    assert_eq!(count(&mut tenant, 0), Some(20));
    client.write("web/0/tpc.steal", "1").unwrap();
    client.write("web/0/tpc.quota", "none").unwrap();
    let neighbour = Process::spawn(&daemon, "exec \"$@\"");
    client.write("control", "create other").unwrap();
    let pid = neighbour.0.id().to_string();
    client.write("other/group.procs", &*pid).unwrap();
    client.write("other/0/tpc.quota", "10").unwrap();
    let page = tenant.link.gpu_of(tenant.client, TSG).unwrap();
    eventually(&2, || page.board.slots().count());
    eventually(&Some(masked - 10), || count(&mut tenant, 0));
}

#[test]
fn the_members_of_a_group_share_its_time_slice() {
    let daemon = Daemon::new("slices", 1);
    let client = member(&daemon);
    assert_eq!(client.write("web/0/compute.timeslice", "800"), Ok(()));
    let mut own = Tenant::of(&daemon);
    let gpu = own.cuda(0);
    let slice = || gpu.page.limits().map(|(_, limits)| limits.timeslice_us);
    eventually(&Some(800), slice);
    let mate = Process::spawn(&daemon, "exec \"$@\"");
    eventually(&Some(400), slice);
    let told = || client.read("web/0/compute.stat").unwrap();
    eventually(&true, || told().contains("slice 400\nround 800\n"));
    drop(mate);
    eventually(&Some(800), slice);
}

#[test]
fn neighbours_see_each_other_on_the_board() {
    let daemon = Daemon::new("board", 1);
    let mut one = Tenant::of(&daemon);
    let first = one.cuda(0);
    assert!(one.link.peers(0).unwrap().is_empty());
    let other = Process::spawn(&daemon, "exec \"$@\"");
    eventually(&2, || first.board.slots().count());
    let slots = first.board.slots().map(|(index, slot)| (index, slot.user));
    let others: Vec<_> = slots.filter(|slot| Some(*slot) != first.slot).collect();
    let peers = one.link.peers(0).unwrap();
    let seen: Vec<_> = peers.iter().map(|peer| (peer.slot, peer.user)).collect();
    assert_eq!(seen, others);
    eventually(&Some(5), || peers[0].busy_since_ns());
    let generation = first.board.generation();
    drop(other);
    eventually(&1, || first.board.slots().count());
    assert!(first.board.generation() > generation);
    assert!(one.link.peers(0).unwrap().is_empty());
    assert!(one.link.peers(7).unwrap().is_empty());
}

/// A process cannot take the slots of others by connections, and one that executes another program
/// has a slot again.
#[test]
fn a_process_has_one_slot_which_its_last_connection_has() {
    let daemon = Daemon::new("one-slot", 1);
    let mut tenants: Vec<Tenant> = (0..3).map(|_| Tenant::of(&daemon)).collect();
    let gpus: Vec<_> = tenants.iter_mut().map(|tenant| tenant.cuda(0)).collect();
    let slots = || -> Vec<_> {
        let slots = gpus[0].board.slots();
        slots.map(|(index, slot)| (index, slot.user)).collect()
    };
    assert_eq!(slots(), [gpus[2].slot.unwrap()]);
    assert!(tenants[2].link.peers(0).unwrap().is_empty());
    let seen = tenants[0].link.peers(0).unwrap();
    assert_eq!((seen.len(), seen[0].slot), (1, gpus[2].slot.unwrap().0));
    // The board keeps the slot when an earlier connection ends.
    tenants.remove(0);
    assert!(tenants[1].link.peers(0).is_some());
    assert_eq!(slots(), [gpus[2].slot.unwrap()]);
    drop(tenants);
    eventually(&0, || slots().len());
}
