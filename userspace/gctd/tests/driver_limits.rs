// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `gctd --driver-limits` with a library in place of NVML: which limits of cgroups the driver gets,
//! and when they end. No GPU is touched.

mod common;

use common::nvml::{until, Daemon, Library};
use common::Tenant;
use gctd::testing::Client;
use gctd_ipc::message::Paged;
use std::fs;

const OPTION: &[&str] = &["--driver-limits"];
/// The driver's word for no limit.
const MAX: u64 = u64::MAX;

fn cgroup(daemon: &Daemon, name: &str) {
    fs::create_dir_all(daemon.directory.join("cgroups/pods").join(name)).unwrap();
}

/// Returns the limits that were set, in order: cgroup, soft and hard limit.
fn limits(daemon: &Daemon) -> Vec<String> {
    let log = daemon.log().into_iter();
    log.filter_map(|call| call.strip_prefix("limit /").map(str::to_owned))
        .collect()
}

fn until_limits(daemon: &Daemon, wanted: &[String]) {
    until(|| limits(daemon).len() >= wanted.len());
    assert_eq!(limits(daemon), wanted);
}

fn announces(client: &Client) -> bool {
    let features = client.read("gpus/0/features").unwrap();
    features.lines().any(|word| word == "gmem.cgroup")
}

#[test]
fn a_cgroup_has_its_groups_limit_for_as_long_as_the_group_has_both() {
    let mut daemon = Daemon::new("follows", OPTION);
    for name in ["c1", "c2"] {
        cgroup(&daemon, name);
    }
    let client = daemon.client();
    assert!(announces(&client));
    let mut wanted = Vec::new();
    let mut expect = |daemon: &Daemon, limits: &[(&str, u64)]| {
        let lines = limits.iter().map(|(name, hard)| format!("{name} 0 {hard}"));
        wanted.extend(lines);
        until_limits(daemon, &wanted);
    };
    client.write("control", "create web").unwrap();
    client.write("web/0/gmem.limit", "1G").unwrap();
    client.write("web/group.cgroup", "/pods/c1").unwrap();
    expect(&daemon, &[("c1", 1 << 30)]);
    client.write("web/0/gmem.limit", "2G").unwrap();
    expect(&daemon, &[("c1", 2 << 30)]);
    client.write("web/group.cgroup", "/pods/c2").unwrap();
    expect(&daemon, &[("c1", MAX), ("c2", 2 << 30)]);
    client.write("web/0/gmem.limit", "max").unwrap();
    expect(&daemon, &[("c2", MAX)]);
    client.write("web/0/gmem.limit", "3G").unwrap();
    expect(&daemon, &[("c2", 3 << 30)]);
    // A daemon that ends leaves it, and the next one has the group.
    daemon.end();
    let mut next = Daemon::in_directory(daemon.directory.clone(), OPTION);
    expect(&next, &[("c2", 3 << 30)]);
    next.client().write("control", "remove web").unwrap();
    expect(&next, &[("c2", MAX)]);
    next.end();
}

#[test]
fn a_limit_that_waits_for_memory_reaches_the_driver_when_it_holds() {
    let mut daemon = Daemon::new("lower", OPTION);
    cgroup(&daemon, "c1");
    let client = common::member_of(daemon.client());
    let mut tenant = Tenant::new(&daemon.socket());
    tenant.cuda(0);
    client.write("web/group.cgroup", "/pods/c1").unwrap();
    client.write("web/0/gmem.pageable", "1").unwrap();
    client.write("web/0/gmem.limit", "10M").unwrap();
    let at = |device: u64, host: u64| Paged {
        device: device << 20,
        host: host << 20,
    };
    assert_eq!(tenant.link.repage(0, at(8, 0), 0, false), Ok(()));
    let other = daemon.client();
    let writer = std::thread::spawn(move || other.write("web/0/gmem.limit", "4M"));
    until(|| {
        tenant
            .link
            .pageable_room(0, 0)
            .is_some_and(|room| room.device == 4 << 20)
    });
    until_limits(&daemon, &["c1 0 10485760".to_owned()]);
    assert_eq!(tenant.link.repage(0, at(4, 4), 0, false), Ok(()));
    assert_eq!(writer.join().unwrap(), Ok(()));
    until_limits(
        &daemon,
        &["c1 0 10485760", "c1 0 4194304"].map(str::to_owned),
    );
    daemon.end();
}

#[test]
fn a_driver_that_refuses_is_named_and_the_library_still_bounds() {
    let mut daemon = Daemon::new("refuses", OPTION);
    cgroup(&daemon, "c1");
    fs::write(daemon.directory.join("fails"), "").unwrap();
    let client = daemon.client();
    client.write("control", "create web").unwrap();
    client.write("web/group.cgroup", "/pods/c1").unwrap();
    client.write("web/0/gmem.limit", "1G").unwrap();
    until_limits(&daemon, &["c1 0 1073741824".to_owned()]);
    assert_eq!(client.read("web/0/gmem.limit"), Ok("1073741824\n".into()));
    let text = daemon.end();
    let says = "cgroups/pods/c1 to 1073741824 bytes on 0000:00:00.0: NVML: ";
    assert!(text.contains(says), "{text}");
}

#[test]
fn without_the_option_or_the_function_nothing_is_announced_and_nothing_called() {
    let use_it = |daemon: &Daemon| {
        cgroup(daemon, "c1");
        let client = daemon.client();
        client.write("control", "create web").unwrap();
        client.write("web/group.cgroup", "/pods/c1").unwrap();
        client.write("web/0/gmem.limit", "1G").unwrap();
        assert!(!announces(&client));
    };
    let mut daemon = Daemon::new("without", &[]);
    use_it(&daemon);
    let text = daemon.end();
    assert!(!text.contains("limits no cgroups"), "{text}");
    for (name, library, says) in [
        (
            "old",
            Library::Old,
            "limits no cgroups: the driver is older than r615",
        ),
        ("bare", Library::Broken, "limits no cgroups: "),
    ] {
        let mut daemon = Daemon::with_library(name, OPTION, library);
        use_it(&daemon);
        let text = daemon.end();
        assert!(text.contains(says), "{text}");
        assert_eq!(limits(&daemon), [""; 0]);
    }
}
