// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `gctctl` works on the sockets of the user-space mode's daemon.

mod common;

use common::Ran;
use gct_core::rmapi::escape;
use gct_core::unmanaged::Reason;
use gctd::testing::{self, Daemon};
use gctd_ipc::message::{Reply, Request};
use gctd_ipc::paths::SocketPaths;
use gctd_ipc::socket;
use gctd_ipc::tenant::{self, Gpu, Link};
use gctd_ipc::versions::{Versions, VERSIONS};
use rustix::fs::Mode;
use rustix::net::{accept, shutdown, SendFlags, Shutdown};
use std::fs;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// A daemon and a gctctl that uses it.
struct Bed(Daemon);

impl Bed {
    fn new(test: &str) -> Self {
        Self(Daemon::new(test, 1))
    }

    fn gctctl(&self, arguments: &[&str]) -> Ran {
        Ran::gctctl("--dir", &self.0.directory, arguments)
    }

    /// Runs a shell script with `gctctl run`. The library is invalid: the loader only warns.
    fn run(&self, options: &[&str], script: &str) -> Ran {
        let program = ["--preload", "/dev/null", "--", "sh", "-c", script];
        self.gctctl(&[&["run"], options, &program].concat())
    }
}

/// Connects this process as a program with a channel group on the GPU. Returns its page.
fn program(daemon: &Daemon) -> (Link, Arc<Gpu>) {
    let mut link = Link::new(daemon.socket());
    link.maintain(1);
    for ([client, parent, object, class], hint) in [
        ([0, 0, 1, 0x41], None),
        ([1, 1, 10, 0x80], Some(0)),
        ([1, 10, 20, 0xa06c], None),
    ] {
        let bytes = testing::alloc(client, parent, object, class);
        let (ioctl, call) = tenant::decode(escape::ALLOC, &bytes, |_| hint).unwrap();
        let verdict = link.enter(&ioctl, &call);
        link.leave(ioctl, &call, verdict);
    }
    let gpu = link.gpu_of(1, 20).unwrap();
    (link, gpu)
}

#[test]
fn a_limit_that_does_not_bind_running_programs_is_said() {
    let bed = Bed::new("unmanaged");
    let own = std::process::id().to_string();
    let (_link, gpu) = program(&bed.0);
    let set = |file: &str| {
        let ran = bed.gctctl(&["set", &own, file]);
        ran.exits(0);
        ran.stderr.contains("does not bind 3 channels")
    };
    assert!(!set("compute.weight=50"));
    gpu.page.set_unmanaged([3].into_iter());
    assert!(set("compute.weight=60"));
    assert!(!set("gmem.limit=1G"));
}

/// Three channels that were native when a neighbour's limit came use the GPU beside it.
#[test]
fn a_limit_names_the_neighbours_that_do_not_obey_it() {
    let bed = Bed::new("neighbours");
    let on = |arguments: &[&str]| bed.gctctl(arguments);
    let own = std::process::id().to_string();
    on(&["create", "web", "batch"]).exits(0);
    on(&["attach", "batch", "--pid", &own]).exits(0);
    let (_link, gpu) = program(&bed.0);
    let only = |wanted| move |reason: &Reason| if *reason == wanted { 3 } else { 0 };
    let memory_only = Reason::ALL.iter().map(only(Reason::MemoryOnly));
    gpu.page.set_unmanaged(memory_only);
    let said = |target: &str, value: &str| {
        let ran = on(&["set", target, value]);
        ran.exits(0);
        ran.stderr
    };
    let explained = || {
        let ran = on(&["explain", "web", "--interval", "100ms"]);
        ran.exits(0).to_owned()
    };
    let named = "3 channels of batch/0, which no limit on launches binds (memory_only)";
    assert_eq!(said("web", "gmem.limit=1G"), "");
    assert!(!explained().contains("batch"));
    assert_eq!(
        said("web", "tpc.quota=4"),
        format!("gctctl: web/0 tpc.quota: it does not hold against {named}.\n")
    );
    assert_eq!(said("web", "gmem.limit=2G"), "");
    assert!(explained().contains(&format!("do not hold against {named}.")));
    // A process of a group is no neighbour of that group.
    for target in ["batch", &own] {
        let said = said(target, "compute.weight=50");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("does not bind 3 channels"), "{said}");
    }
}

#[test]
fn all_processes_with_a_gpu_are_listed() {
    let bed = Bed::new("others");
    let root = bed.0.directory.join("system");
    let process = root.join("proc/4711");
    fs::create_dir_all(process.join("fd")).unwrap();
    std::os::unix::fs::symlink("/dev/nvidia0", process.join("fd/7")).unwrap();
    fs::write(process.join("comm"), "train\n").unwrap();
    let root = root.display().to_string();
    let ls = || {
        let listed = bed.gctctl(&["ls", "--all", "--system-root", &root]);
        listed.exits(0).to_owned()
    };
    assert!(ls().contains("4711               0            train\n"));
    // It is in the cgroup of a group: that is seen, and is a problem once the group has a limit.
    fs::write(process.join("cgroup"), "0::/web.slice/x\n").unwrap();
    bed.gctctl(&["create", "web"]).exits(0);
    bed.gctctl(&["attach", "web", "--cgroup", "/web.slice"])
        .exits(0);
    assert!(ls().contains("4711               0     web    train\n"));
    let problem = "The process 4711 (\"train\") has GPU 0 open and gctd does not know it, so no limit of web binds it.";
    let doctor = || bed.gctctl(&["doctor", "--system-root", &root]).stdout;
    assert!(!doctor().contains("4711"), "{}", doctor());
    bed.gctctl(&["set", "web", "gmem.limit=1G"]).exits(0);
    assert!(doctor().contains(problem), "{}", doctor());
    assert!(!bed.gctctl(&["ls"]).exits(0).contains("NOT KNOWN"));
}

#[test]
fn the_commands_work_as_on_a_directory() {
    let bed = Bed::new("commands");
    let on = |arguments: &[&str]| bed.gctctl(arguments);
    assert!(on(&["ls"]).exits(0).contains("NVIDIA H200"));
    assert_eq!(on(&["create", "web"]).exits(0), "created web\n");
    on(&["create", "web"]).exits(3);
    let set = on(&["set", "web", "tpc.mask=0-3", "gmem.limit=1G"]);
    assert_eq!(
        set.exits(0),
        "web/0 tpc.mask=0-3\nweb/0 gmem.limit=1073741824\n"
    );
    assert_eq!(on(&["get", "web/0", "tpc.mask"]).exits(0), "0-3\n");
    on(&["set", "web/0", "slip.power=5"]).exits(5);
    on(&["set", "web/0", "tpc.mask=9999"]).exits(3);
    on(&["get", "nobody/0", "tpc.mask"]).exits(4);
    let own = std::process::id().to_string();
    on(&["attach", "web", "--pid", &own]).exits(0);
    on(&["rm", "web"]).exits(3);
    let show = on(&["show", "web", "--json"]);
    assert!(show.exits(0).contains("\"gmem.limit\": 1073741824"));
    assert!(on(&["version"]).exits(0).contains("gctgroup 0.1.0 abi 3"));
    let doctor = on(&["doctor"]);
    assert!(
        doctor.stdout.contains("Groups can be created"),
        "{}",
        doctor.stdout
    );
    for of_kernel in ["lockdown", "insmod", "patch"] {
        let stdout = &doctor.stdout;
        assert!(!stdout.contains(of_kernel), "{of_kernel}: {stdout}");
    }
}

/// The driver prints question marks for a UUID until it has started the GPU. Chip and memory are
/// told by controls, which nobody answers here.
#[test]
fn ls_shows_what_the_driver_tells_later() {
    const UUID: &str = "00112233-4455-6677-8899-aabbccddeef0";
    let mut bed = Bed::new("later");
    let file = bed.0.directory.join("gpus/0000:00:00.0/information");
    let told = fs::read_to_string(&file).unwrap();
    let early = told.replace(UUID, "????????-????-????-????-????????????");
    assert_ne!(early, told);
    fs::write(&file, early).unwrap();
    bed.0.restart();
    let unknown = || -> Vec<String> {
        let ls = bed.gctctl(&["ls", "--json"]);
        let shown: serde_json::Value = serde_json::from_str(ls.exits(0)).unwrap();
        let gpu = shown["gpus"][0].as_object().unwrap();
        let files = gpu.iter().filter(|(_, value)| value.is_null());
        let of_control = ["architecture", "memory.total"];
        let files = files.filter(|(file, _)| !of_control.contains(&file.as_str()));
        files.map(|(file, _)| file.clone()).collect()
    };
    assert_eq!(unknown(), ["uuid"]);
    fs::write(&file, told).unwrap();
    // A program that starts makes the daemon look again.
    let tenant = socket::connect(&bed.0.socket(), Duration::from_secs(20)).unwrap();
    let hello = Request::Hello {
        versions: VERSIONS,
        tenant: true,
    };
    socket::send(tenant.as_fd(), &hello, &[], SendFlags::empty()).unwrap();
    let _: (Reply, _) = socket::receive(tenant.as_fd()).unwrap();
    assert_eq!(unknown(), [] as [&str; 0]);
}

#[test]
fn without_a_daemon_there_is_no_tree() {
    let output = Command::new(env!("CARGO_BIN_EXE_gctctl"))
        .args(["--user", "--dir", "/nowhere/s", "ls"])
        .output();
    let ran = Ran::new(output.unwrap(), "/nowhere".as_ref());
    ran.exits(7);
    assert!(
        ran.stderr
            .contains("There is no gctgroup tree at ROOT/s/tenants/gctd.sock"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_daemon_of_another_release_is_named() {
    let directory = std::env::temp_dir().join(format!("gctctl-release-{}", std::process::id()));
    let path = SocketPaths::of(&directory).tenants;
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let listener = socket::listen(&path, Mode::RWXU).unwrap();
    let accepting = listener.try_clone().unwrap();
    let daemon = std::thread::spawn(move || {
        while let Ok(client) = accept(&accepting) {
            let _: (Request, _) = socket::receive(client.as_fd()).unwrap();
            let versions = Versions::from(1000 << 16 | 1001);
            let hello = Reply::Hello { versions };
            socket::send(client.as_fd(), &hello, &[], SendFlags::empty()).unwrap();
        }
    });
    let ran = Ran::gctctl("--dir", &directory, &["ls"]);
    shutdown(&listener, Shutdown::Both).unwrap();
    daemon.join().unwrap();
    fs::remove_dir_all(&directory).unwrap();
    let wanted = format!("protocol {VERSIONS}, gctd 1000 to 1001: install the same release");
    assert!(ran.stderr.contains(&wanted), "{}", ran.stderr);
    assert_ne!(ran.code, Some(0));
}

#[test]
fn the_tenants_socket_alone_allows_reads_only() {
    let bed = Bed::new("tenants-socket");
    bed.gctctl(&["create", "web"]).exits(0);
    let inside = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_gctctl"))
            .env("GCTGROUP_DIR", "/nowhere")
            .env("GCTGROUP_SOCKET", bed.0.socket())
            .arg("--user")
            .args(arguments)
            .output();
        Ran::new(output.unwrap(), &bed.0.directory)
    };
    assert_eq!(inside(&["get", "web/0", "tpc.mask"]).exits(0), "all\n");
    for write in [&["create", "x"][..], &["set", "web/0", "tpc.mask=0-3"]] {
        let ran = inside(write);
        ran.exits(7);
        let why = "there is no administrators' socket at /nowhere/admin.sock";
        assert!(ran.stderr.contains(why), "{}", ran.stderr);
    }
    assert!(bed.gctctl(&["ls"]).exits(0).contains("web"));
}

/// Takes from a container what it needs, one thing after the other.
#[test]
fn in_a_container_doctor_finds_what_is_missing() {
    const LIBRARY: &str = "/usr/lib/gctgroup/libgct_preload.so";
    let bed = Bed::new("container");
    let system = bed.0.directory.join("system");
    for (path, text) in [
        ("proc/modules", "nvidia 1 1 - Live 0x0\n"),
        ("dev/nvidia0", ""),
        (&LIBRARY[1..], ""),
    ] {
        let path = system.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let doctor = |preload: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_gctctl"))
            .env("GCTGROUP_DIR", "/nowhere")
            .env("GCTGROUP_SOCKET", bed.0.socket())
            .env("LD_PRELOAD", preload)
            .args(["--user", "doctor", "--system-root"])
            .arg(&system)
            .output();
        Ran::new(output.unwrap(), &bed.0.directory)
    };
    let well = doctor(LIBRARY);
    for line in [LIBRARY, "There are nvidia0", "outside of this container"] {
        assert!(well.exits(0).contains(line), "{line}: {}", well.stdout);
    }
    // As the hook of gct-device-plugin leaves it.
    fs::create_dir(system.join("etc")).unwrap();
    fs::write(
        system.join("etc/ld.so.preload"),
        format!("/opt/own.so\n{LIBRARY}\n"),
    )
    .unwrap();
    assert!(doctor("/opt/other.so").exits(0).contains(LIBRARY));
    fs::write(
        system.join("etc/ld.so.preload"),
        format!("/opt/own.so # {LIBRARY}\n"),
    )
    .unwrap();
    assert!(doctor("").exits(1).contains("no limits"));
    fs::remove_file(system.join("etc/ld.so.preload")).unwrap();
    let unset = doctor("");
    assert!(unset.exits(1).contains("no limits"), "{}", unset.stdout);
    fs::remove_file(system.join(&LIBRARY[1..])).unwrap();
    let unmounted = doctor(LIBRARY);
    assert!(
        unmounted.exits(1).contains("not here"),
        "{}",
        unmounted.stdout
    );
    fs::remove_file(system.join("dev/nvidia0")).unwrap();
    let without = doctor(LIBRARY);
    assert!(
        without.exits(1).contains("enable_cdi"),
        "{}",
        without.stdout
    );
}

#[test]
fn a_program_runs_in_its_group_with_its_exit_status() {
    let bed = Bed::new("run");
    let limits = ["--group", "web", "--tpc", "0-3"];
    let ran = bed.run(&limits, "echo $$; echo $LD_PRELOAD; exit 42");
    let stdout = ran.exits(42);
    let (pid, rest) = stdout.split_once('\n').unwrap();
    assert_eq!(rest, "/dev/null\n");
    assert!(pid.parse::<u32>().is_ok(), "{stdout}");
    assert_eq!(bed.gctctl(&["get", "web/0", "tpc.mask"]).exits(0), "0-3\n");
    let members = format!(
        "{} --user get web group.procs; echo $$",
        env!("CARGO_BIN_EXE_gctctl")
    );
    let ran = bed.run(&["--group", "web"], &members);
    let (member, own) = ran.exits(0).split_once('\n').unwrap();
    assert_eq!(own.trim_end(), member);
    // What its caller preloads stays, behind the library.
    let preloads = format!(
        "LD_PRELOAD=/nowhere.so {} --dir {} run --preload /dev/null -- sh -c 'echo $LD_PRELOAD'",
        env!("CARGO_BIN_EXE_gctctl"),
        bed.0.directory.display()
    );
    let ran = bed.run(&["--group", "web"], &preloads);
    assert_eq!(ran.exits(0), "/dev/null:/nowhere.so\n");
    // A signal that kills the program is the status of gctctl.
    assert_eq!(bed.run(&[], "kill -9 $$").code, None);
    bed.run(&["--quota", "5"], "true")
        .exits(if quota_works() { 0 } else { 5 });
    bed.run(&["--tpc", "junk"], "true").exits(3);
}

#[test]
fn a_program_runs_under_every_limit() {
    let bed = Bed::new("limits");
    let limits = [
        "--group",
        "web",
        "--memory",
        "1G",
        "--priority",
        "3",
        "--slice",
        "2ms",
    ];
    let more = ["-o", "tpc.steal=0", "-o", "gmem.limit=2G"];
    bed.run(&[&limits[..], &more].concat(), "true").exits(0);
    for (file, value) in [
        ("gmem.limit", "2147483648"),
        ("compute.priority", "3"),
        ("compute.timeslice", "2000"),
        ("tpc.steal", "0"),
    ] {
        let ran = bed.gctctl(&["get", "web/0", file]);
        assert_eq!(ran.exits(0), format!("{value}\n"), "{file}");
    }
    bed.run(&["-o", "slip.power=5"], "true").exits(5);
    for (option, code) in [("tpc.steal", 2), ("tpc.steel=0", 4), ("tpc.steal=2", 3)] {
        let ran = bed.run(&["--group", "none", "-o", option], "echo runs");
        assert_eq!(ran.exits(code), "", "{option}");
    }
    bed.gctctl(&["get", "none", "group.procs"]).exits(4);
}

#[test]
fn a_program_may_see_all_sms() {
    let bed = Bed::new("sm-count");
    let sees = |options: &[&str]| bed.run(options, "echo sees $GCTGROUP_SM_COUNT");
    assert_eq!(sees(&["--sm-count", "all"]).exits(0), "sees all\n");
    assert_eq!(sees(&[]).exits(0), "sees\n");
    sees(&["--sm-count", "12"]).exits(2);
}

#[test]
fn a_program_is_told_its_group() {
    let bed = Bed::new("told");
    let told = bed.run(&["--group", "web"], "echo in $GCTGROUP_GROUP");
    assert_eq!(told.exits(0), "in web\n");
}

#[test]
fn without_its_limits_a_program_does_not_run() {
    let bed = Bed(Daemon::new("no-gpu", 0));
    bed.run(&[], "true").exits(0);
    let ran = bed.run(&["--tpc", "0-3"], "echo runs");
    assert_eq!(ran.exits(4), "");
    assert!(ran.stderr.contains("knows no GPU"), "{}", ran.stderr);
    let ls = bed.gctctl(&["ls"]);
    assert!(!ls.exits(0).contains("run-"), "{}", ls.stdout);
}

#[test]
fn with_optional_limits_a_program_runs_without_them() {
    let bed = Bed(Daemon::new("optional", 0));
    let limits = ["--optional", "--tpc", "0-3"];
    let ran = bed.run(&limits, "echo runs $GCTGROUP_OPTIONAL");
    assert_eq!(ran.exits(0), "runs 1\n");
    assert!(ran.stderr.contains("knows no GPU"), "{}", ran.stderr);
    let ran = bed.run(&["--optional"], "echo runs $GCTGROUP_OPTIONAL");
    assert_eq!(
        (ran.exits(0), ran.stderr.contains("gctctl")),
        ("runs 1\n", false)
    );
}

fn quota_works() -> bool {
    gctd_ipc::ENFORCED.has(gct_core::features::Feature::TpcQuota)
}

#[test]
fn groups_of_ended_programs_are_removed() {
    let bed = Bed::new("sweep");
    for _ in 0..3 {
        bed.run(&[], "true").exits(0);
    }
    let ls = bed.gctctl(&["ls"]);
    let left = ls.exits(0).lines().filter(|line| line.starts_with("run-"));
    assert_eq!(
        left.count(),
        1,
        "the last one has nobody after it: {}",
        ls.stdout
    );
}

#[test]
fn a_missing_library_is_reported() {
    let bed = Bed::new("library");
    let ran = bed.gctctl(&["run", "--preload", "/nowhere/x.so", "--", "true"]);
    ran.exits(1);
    assert!(
        ran.stderr.contains("There is no /nowhere/x.so"),
        "{}",
        ran.stderr
    );
    let ran = bed.gctctl(&["run", "--preload", "/dev/null", "--", "/nowhere/program"]);
    ran.exits(1);
    assert!(ran.stderr.contains("cannot be started"), "{}", ran.stderr);
}

/// A program in a pid namespace of its own, such as a container's, has a pid there that is another
/// process's here. With `/proc` of here, it finds its own pid of here.
#[test]
fn in_a_pid_namespace_the_program_itself_is_the_member() {
    let bed = Bed::new("namespace");
    let script = format!(
        "read pid rest </proc/self/stat; echo $$ $pid $({} --user get web group.procs)",
        env!("CARGO_BIN_EXE_gctctl")
    );
    let mut inside = Command::new("unshare");
    inside.args(["--user", "--map-root-user", "--pid", "--fork"]);
    inside.args([env!("CARGO_BIN_EXE_gctctl"), "--dir"]);
    inside.arg(&bed.0.directory);
    inside.args(["run", "--group", "web", "--preload", "/dev/null", "--"]);
    let output = inside.args(["sh", "-c", &script]).output().unwrap();
    let ran = Ran::new(output, &bed.0.directory);
    if ran.stderr.starts_with("unshare:") {
        eprintln!("skipped: no user namespaces here");
        return;
    }
    let pids: Vec<u32> = ran
        .exits(0)
        .split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect();
    let &[inner, outer, member] = &pids[..] else {
        panic!("{}", ran.stdout);
    };
    assert_eq!((inner, member), (1, outer), "{}", ran.stdout);
}

/// The group of an earlier program with this pid is left as it is: its limits are not for this one.
/// One that somebody else has made under the program's own name is refused.
#[test]
fn a_program_never_gets_the_group_of_an_earlier_one() {
    let bed = Bed::new("adopts");
    let gctctl = env!("CARGO_BIN_EXE_gctctl");
    let started = |name: &str| {
        // The pid of the shell becomes that of gctctl, and that of the program.
        let script = format!(
            r#"set -- $(cat /proc/$$/stat); group={name}; {gctctl} create $group >&2
            exec {gctctl} run --preload /dev/null -- sh -c \
                'echo "[$({gctctl} --user get $1 group.procs)]"' - $group"#
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]);
        let output = shell.env("GCTGROUP_DIR", &bed.0.directory).output();
        Ran::new(output.unwrap(), &bed.0.directory)
    };
    assert_eq!(started("run-$$").exits(0), "[]\n");
    let taken = started("run-$$-${22}");
    assert_eq!(taken.exits(3), "", "{}", taken.stderr);
}

/// A job starts its ranks at once, and none of them was first to make the group.
#[test]
fn programs_that_start_at_once_make_their_group_once() {
    let bed = Bed::new("at-once");
    for n in 0..10 {
        let group = format!("job{n}");
        std::thread::scope(|scope| {
            let run = || bed.run(&["--group", &group, "--quota", "4"], "exit 7");
            let ranks = [(); 8].map(|()| scope.spawn(run));
            for rank in ranks {
                rank.join().unwrap().exits(7);
            }
        });
    }
}
