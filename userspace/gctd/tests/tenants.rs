// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Processes that report ioctls, and what they are told.

mod common;

use common::{eventually, member, own, own_directory, Tenant, DEVICE, TSG};
use gct_core::error::Error;
use gct_core::mask::TpcMask;
use gct_core::rmapi::escape;
use gct_core::submit::stats::{Counters, Reason};
use gct_core::topology::Topology;
use gctd::testing::{alloc, Daemon, TPCS};
use gctd_ipc::message::Ioctl;
use gctd_ipc::page::Limits;
use gctd_ipc::tenant::Verdict;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MEMORY: u32 = 0x5c00_0040;

/// No quota.
const QUOTA_NONE: &str = "none";

#[test]
fn a_process_appears_with_its_channel_group_and_goes_with_it() {
    let daemon = Daemon::new("appears", 2);
    let client = daemon.client();
    let pid = std::process::id().to_string();
    let mut tenant = Tenant::of(&daemon);
    let gpu = tenant.cuda(1);
    assert_eq!(gpu.minor, 1);
    assert_eq!(client.list(&pid), Ok(vec!["1/".into()]));
    let stat = client.read(&format!("{pid}/1/compute.stat")).unwrap();
    assert!(stat.starts_with("channel_groups 1\nchannels 1\n"), "{stat}");
    tenant.free(TSG);
    eventually(&Err(libc::ENOENT), || client.list(&pid));
    tenant.alloc(DEVICE, TSG, 0xa06c, None);
    eventually(&true, || client.list(&pid).is_ok());
    drop(tenant);
    eventually(&Err(libc::ENOENT), || client.list(&pid));
}

#[test]
fn limits_of_process_and_group_arrive_as_one() {
    let daemon = Daemon::new("limits", 1);
    let client = member(&daemon);
    client.write("web/0/tpc.mask", "0-7").unwrap();
    let mut tenant = Tenant::of(&daemon);
    let gpu = tenant.cuda(0);
    // Of what is written, the TPCs that exist: 0 to 3, then 9.
    let topology = Topology::apart(TpcMask::parse(TPCS.as_bytes()).unwrap());
    let with = |tpcs: u64| Limits {
        tpcs: Some([tpcs, 0, 0, 0]),
        topology,
        ..Limits::NONE
    };
    assert_eq!(gpu.page.limits(), Some((1, with(0xf))));
    client.write(&own("tpc.mask"), "2-11").unwrap();
    assert_eq!(gpu.page.limits(), Some((2, with(0xc))));
    let written = daemon.write("web/0/compute.freeze", "1");
    let frozen = || gpu.page.limits().unwrap().1.frozen;
    eventually(&true, frozen);
    assert!(
        !written.is_finished(),
        "the process has to say that it stands still"
    );
    tenant.link.took(0, 3, None);
    written.join().unwrap().unwrap();
    assert!(frozen() && gpu.page.generation() == 3);
    client.write(&own("gmem.limit"), "1G").unwrap();
    assert_eq!(gpu.page.limits().unwrap().1.gmem_limit, 1 << 30);
    // What does not change what binds is not told.
    client.write("web/0/gmem.limit", "2G").unwrap();
    assert_eq!(gpu.page.generation(), 4);
    assert_eq!(
        client.write("web/0/compute.weight", "5"),
        Err(Error::Unsupported.errno())
    );
}

#[test]
fn a_process_hears_on_which_tpcs_it_can_count_before_it_has_a_page() {
    let daemon = Daemon::new("dependable", 2);
    let client = member(&daemon);
    let mut tenant = Tenant::of(&daemon);
    let count = |tenant: &mut Tenant, minor| {
        let words = tenant.link.dependable(minor)?;
        Some(words.iter().map(|word| word.count_ones()).sum::<u32>())
    };
    let all = count(&mut tenant, 0).unwrap();
    client.write("web/0/tpc.mask", "0-31").unwrap();
    let masked = count(&mut tenant, 0).unwrap();
    assert!(
        (1..32).contains(&masked),
        "{masked} of 32 numbers, some without a TPC"
    );
    assert_eq!(count(&mut tenant, 1), Some(all), "each GPU its own");
    assert_eq!(tenant.link.gpus().len(), 0, "and no page is made for that");
    client.write("web/0/tpc.quota", "20").unwrap();
    assert_eq!(count(&mut tenant, 0), Some(20));
    assert_eq!(count(&mut tenant, 7), None, "no such GPU");
    // What another owner has reserved is its own; what this one has is not another's.
    tenant.cuda(0);
    assert_eq!(count(&mut tenant, 0), Some(20));
    client.write("web/0/tpc.quota", QUOTA_NONE).unwrap();
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
fn memory_over_the_limit_is_refused_and_what_is_freed_can_be_had_again() {
    let daemon = Daemon::new("memory", 1);
    let client = daemon.client();
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    client.write(&own("gmem.limit"), "10M").unwrap();
    assert!(tenant.memory(MEMORY, 6 << 20));
    assert!(!tenant.memory(MEMORY + 1, 6 << 20));
    assert!(tenant.memory(MEMORY + 1, 4 << 20));
    let current = || client.read(&own("gmem.current")).unwrap();
    assert_eq!(current(), format!("{}\n", 10 << 20));
    assert_eq!(client.read(&own("gmem.events")), Ok("limit 1\n".into()));
    let lower = client.write(&own("gmem.limit"), "9M");
    assert_eq!(lower, Err(Error::Busy.errno()));
    let limit = client.read(&own("gmem.limit"));
    assert_eq!(limit, Ok(format!("{}\n", 10 << 20)));
    tenant.free(MEMORY);
    eventually(&format!("{}\n", 4 << 20), current);
    assert!(tenant.memory(MEMORY, 6 << 20));
    // The driver had none, though it was granted.
    tenant.free(MEMORY);
    let structure = alloc(tenant.client, DEVICE, MEMORY, 0x40);
    tenant.ioctl(escape::ALLOC, &structure, Some(6 << 20), 0x51);
    eventually(&format!("{}\n", 4 << 20), current);
    assert_eq!(
        client.read(&own("gmem.peak")),
        Ok(format!("{}\n", 10 << 20))
    );
}

#[test]
fn a_client_that_is_freed_takes_what_it_had_with_it() {
    let daemon = Daemon::new("client", 1);
    let client = daemon.client();
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    assert!(tenant.memory(MEMORY, 6 << 20));
    tenant.free(tenant.client);
    let pid = std::process::id().to_string();
    eventually(&Err(libc::ENOENT), || client.list(&pid));
    let events = client.read("events").unwrap();
    assert!(events.lines().all(|line| line.ends_with(" 0")), "{events}");
}

#[test]
fn a_grant_ends_with_its_process() {
    let daemon = Daemon::new("grant", 1);
    let client = member(&daemon);
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    let structure = alloc(tenant.client, DEVICE, MEMORY, 0x40);
    let ioctl = Ioctl {
        escape: escape::ALLOC,
        bytes: structure.clone(),
        hint: Some(4096),
    };
    let call = gct_core::rmapi::decode(escape::ALLOC, &structure)
        .unwrap()
        .unwrap();
    assert!(matches!(
        tenant.link.enter(&ioctl, &call),
        Verdict::Granted(_)
    ));
    let current = || client.read("web/0/gmem.current").unwrap();
    assert_eq!(current(), "4096\n");
    drop(tenant);
    eventually(&"0\n".to_owned(), current);
}

#[test]
fn what_a_process_counts_is_shown_and_stays_with_its_group() {
    let daemon = Daemon::new("counts", 1);
    let client = member(&daemon);
    let mut tenant = Tenant::of(&daemon);
    let gpu = tenant.cuda(0);
    assert_eq!(
        client.read("web/0/tpc.effective"),
        Err(Error::Unknown.errno())
    );
    let mut counters = Counters::new();
    (counters.launches, counters.masked) = (7, 6);
    counters.keep(Reason::Queue);
    gpu.page.set_counters(&counters);
    gpu.page.set_effective(Some([3, 0, 0, 0]));
    let launches = "launches 7\nrewritten 6\nsplit 0\natoms 0\npassed 1\npassed.queue 1\n";
    for path in [own("compute.stat"), "web/0/compute.stat".into()] {
        let text = client.read(&path).unwrap();
        assert_eq!(text, format!("channel_groups 1\nchannels 1\n{launches}"));
    }
    assert_eq!(client.read(&own("tpc.effective")), Ok("0-1\n".into()));
    counters.launches = 9;
    gpu.page.set_counters(&counters);
    drop(tenant);
    let stat = || client.read("web/0/compute.stat").unwrap();
    let expected = launches.replace("launches 7", "launches 9");
    eventually(&format!("channel_groups 0\nchannels 0\n{expected}"), stat);
}

#[test]
fn a_fault_is_counted_for_its_owner_and_nobody_else() {
    let daemon = Daemon::new("faults", 1);
    let client = member(&daemon);
    client.write("control", "create other").unwrap();
    let mut tenant = Tenant::of(&daemon);
    let gpu = tenant.cuda(0);
    let faults = |path: &str| {
        let text = client.read(&format!("{path}/compute.events")).unwrap();
        let lines = text
            .lines()
            .filter(|line| line.starts_with("faults ") || line.starts_with("last_xid "));
        lines.collect::<Vec<_>>().join(", ")
    };
    let pid = own_directory();
    assert_eq!(faults(&pid), "faults 0, last_xid 0");
    gpu.page.fault(31);
    for owner in [&pid, "web/0"] {
        assert_eq!(faults(owner), "faults 1, last_xid 31");
    }
    // It ends before it is asked; what it tells cannot overflow.
    gpu.page.fault(43);
    drop(tenant);
    eventually(&"faults 2, last_xid 43".to_owned(), || faults("web/0"));
    assert_eq!(faults("other/0"), "faults 0, last_xid 0");
}

#[test]
fn what_was_reserved_for_a_killed_process_is_free_at_once() {
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
fn neighbours_see_each_others_work_and_reservations() {
    let daemon = Daemon::new("board", 1);
    let (mut one, mut two) = (Tenant::of(&daemon), Tenant::of(&daemon));
    let (first, second) = (one.cuda(0), two.cuda(0));
    assert_eq!(first.board.slots().count(), 2);
    let peers = one.link.peers(0).unwrap();
    let seen: Vec<_> = peers.iter().map(|peer| (peer.slot, peer.user)).collect();
    assert_eq!(seen, [second.slot.unwrap()]);
    assert_eq!(peers[0].busy_since_ns(), None);
    second.pulse.busy(5);
    assert_eq!(peers[0].busy_since_ns(), Some(5));
    let generation = first.board.generation();
    drop(two);
    eventually(&1, || first.board.slots().count());
    assert!(first.board.generation() > generation);
    assert!(one.link.peers(0).unwrap().is_empty());
    assert!(one.link.peers(7).unwrap().is_empty());
}

#[test]
fn a_daemon_that_comes_back_learns_what_there_is() {
    let mut daemon = Daemon::new("restart", 1);
    let mut tenant = Tenant::of(&daemon);
    let old = tenant.cuda(0);
    assert!(tenant.memory(MEMORY, 4096));
    assert!(tenant.memory(MEMORY + 1, 8192));
    tenant.free(MEMORY + 1);
    daemon.client().write(&own("tpc.mask"), "0-3").unwrap();
    daemon.stop();
    assert!(!tenant.attend(), "nobody is there");
    assert!(
        tenant.memory(MEMORY + 2, 1),
        "without a daemon all is granted"
    );
    let (_, limits) = old.page.limits().unwrap();
    assert_eq!(limits.tpcs, Some([15, 0, 0, 0]), "the last limits hold");
    daemon.restart();
    assert!(tenant.attend(), "another daemon");
    assert_eq!(tenant.link.lost(), 1);
    let client = daemon.client();
    assert_eq!(client.read(&own("gmem.current")), Ok("4097\n".into()));
    client.write(&own("tpc.mask"), "0-1").unwrap();
    let new = tenant.link.gpu_of(tenant.client, TSG).unwrap();
    assert_eq!(new.page.limits().unwrap().1.tpcs, Some([3, 0, 0, 0]));
}

#[test]
fn a_gpu_is_found_by_each_object_on_it() {
    let mut daemon = Daemon::new("each", 1);
    let mut tenant = Tenant::of(&daemon);
    let first = tenant.cuda(0);
    tenant.alloc(DEVICE, TSG + 1, 0xa06c, None);
    let client = tenant.client;
    let again = tenant.link.gpu_of(client, TSG + 1).unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &again));
    tenant.free(TSG);
    daemon.restart();
    assert!(tenant.attend() && tenant.link.gpus().is_empty());
    assert!(tenant.link.gpu_of(client, TSG).is_none());
    assert!(tenant.link.gpu_of(client, TSG + 1).is_some());
}

#[test]
fn a_daemon_that_does_not_answer_is_left_alone() {
    let daemon = Daemon::new("hung", 0);
    let path = daemon.directory.join("hung.sock");
    let _hung = gctd_ipc::socket::listen(&path, rustix::fs::Mode::RWXU).unwrap();
    let started = std::time::Instant::now();
    let mut tenant = Tenant::new(&path);
    assert!(
        started.elapsed().as_millis() >= 900,
        "the answer was waited for"
    );
    let started = std::time::Instant::now();
    assert!(!tenant.attend() && !tenant.link.connected());
    assert!(tenant.memory(MEMORY, 1 << 40));
    assert!(started.elapsed().as_millis() < 900, "and then no more");
}

#[test]
fn a_stopped_daemon_whose_backlog_is_full_holds_nobody() {
    let daemon = Daemon::new("full", 0);
    let path = daemon.directory.join("full.sock");
    let listener = gctd_ipc::socket::listen(&path, rustix::fs::Mode::RWXU).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let connect = || gctd_ipc::socket::connect(&path, Duration::from_millis(50));
    let waiting: Vec<_> = std::iter::from_fn(|| connect().ok()).take(64).collect();
    assert!(waiting.len() < 64, "the backlog is full");
    let started = Instant::now();
    let mut tenant = Tenant::new(&path);
    assert!(!tenant.link.connected() && started.elapsed() < Duration::from_secs(3));
    let started = Instant::now();
    assert!(
        tenant.memory(MEMORY, 1 << 40),
        "what nobody can be asked is granted"
    );
    assert!(started.elapsed() < Duration::from_millis(900), "at once");
}

/// Not a test of its own: a process of its own for those below, which tells its pid and waits.
#[test]
fn process() {
    let Some(path) = std::env::var_os("GCTD_TEST_TENANT") else {
        return;
    };
    let mut tenant = Tenant::new(path.as_ref());
    tenant.cuda(0);
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

/// Ends with the value.
struct Process(Child);

impl Process {
    /// Runs the test above in a process of its own, by a shell that waits if `through` says so.
    fn spawn(daemon: &Daemon, through: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let child = Command::new("sh")
            .args(["-c", through, "sh"])
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

fn processes(daemon: &Daemon) -> usize {
    let names = daemon.client().list("").unwrap();
    names
        .iter()
        .filter(|name| name.as_bytes()[0].is_ascii_digit())
        .count()
}

#[test]
fn children_belong_where_their_parent_does_and_older_ones_do_not() {
    let daemon = Daemon::new("children", 1);
    let client = daemon.client();
    client.write("control", "create web").unwrap();
    // The shell joins, and then has a child that has a child.
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
    let charged = client.read("web/0/gmem.current");
    assert_eq!(charged, Ok(format!("{}\n", 1 << 20)));
    let child = members.iter().find(|pid| **pid != shell.0.id()).unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(*child).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually(&Ok("0\n".into()), || client.read("web/0/gmem.current"));
    eventually(&Ok(String::new()), || client.read("web/group.procs"));
    assert_eq!(client.write("control", "remove web"), Ok(()));
}

#[test]
fn a_program_that_execs_another_stays_where_it_is_and_is_charged_anew() {
    let daemon = Daemon::new("exec", 1);
    let client = daemon.client();
    client.write("control", "create web").unwrap();
    client.write("web/0/gmem.limit", "1536K").unwrap();
    // Were the memory of the first program still charged, the second could not have its own.
    let command = "read go; GCTD_TEST_EXEC=1 exec \"$@\"";
    let mut program = Process::spawn(&daemon, command);
    let pid = program.0.id();
    client.write("web/group.procs", pid.to_string()).unwrap();
    drop(program.0.stdin.take());
    let charged = || client.read("web/0/gmem.current").unwrap();
    eventually(&format!("{}\n", 1 << 20), charged);
    // The second makes its client anew.
    eventually(&Ok("limit 0\n".into()), || client.read("web/0/gmem.events"));
    eventually(&Ok(format!("{pid}\n")), || client.read("web/group.procs"));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(charged(), format!("{}\n", 1 << 20));
    assert_eq!(processes(&daemon), 1);
    assert_eq!(program.0.try_wait().unwrap(), None, "it is there");
}

#[test]
fn a_cgroup_takes_its_processes() {
    let daemon = Daemon::new("cgroup", 1);
    let client = daemon.client();
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::")) else {
        eprintln!("skipped: this process is in no cgroup of version 2");
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
        // Some are killed before they have said a word.
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
