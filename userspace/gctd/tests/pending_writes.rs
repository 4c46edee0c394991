// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A write of a limit that processes enforce by RM controls waits for their acknowledgement.

mod common;

use common::{eventually, member, own, own_directory, Tenant, TSG};
use gct_core::error::Error;
use gctd::testing::{Client, Daemon};
use gctd_ipc::tenant::Gpu;
use std::sync::Arc;
use std::time::{Duration, Instant};

const FILE: &str = "compute.timeslice";

/// Waits for a time slice on a process's page, and acknowledges or refuses it.
#[track_caller]
fn ack(tenant: &mut Tenant, gpu: &Gpu, slice_us: u32, refused: Option<u32>) {
    let slice = || gpu.page.limits().map(|(_, limits)| limits.timeslice_us);
    eventually(&Some(slice_us), slice);
    let (generation, _) = gpu.page.limits().unwrap();
    tenant.link.ack(gpu.minor, generation, refused);
}

/// Starts a daemon, a client of its tree and a tenant.
fn setup(test: &str) -> (Daemon, Client, Tenant, Arc<Gpu>) {
    let daemon = Daemon::new(test, 1);
    let client = daemon.client();
    let mut tenant = Tenant::of(&daemon);
    let gpu = tenant.cuda(0);
    (daemon, client, tenant, gpu)
}

#[test]
fn a_write_returns_after_the_acknowledgement() {
    let (daemon, client, mut tenant, gpu) = setup("took");
    let rung = gpu.page.rings();
    let written = daemon.write(own(FILE), "50");
    eventually(&true, || gpu.page.rings() != rung);
    // Other requests are served meanwhile. An older generation acknowledges nothing.
    assert_eq!(client.write(&own("tpc.mask"), "0-3"), Ok(()));
    tenant.link.ack(0, 1, None);
    assert_eq!(client.read(&own(FILE)), Ok("default\n".into()));
    assert!(!written.is_finished());
    ack(&mut tenant, &gpu, 50, None);
    assert_eq!(written.join().unwrap(), Ok(()));
    assert_eq!(client.read(&own(FILE)), Ok("50\n".into()));
    let written = daemon.write(own(FILE), "default");
    ack(&mut tenant, &gpu, 0, None);
    assert_eq!(written.join().unwrap(), Ok(()));
}

#[test]
fn a_refusal_rolls_the_write_back() {
    let (daemon, client, mut tenant, gpu) = setup("refused");
    for (status, error) in [(0x56, Error::Unsupported), (0x1f, Error::Refused)] {
        let written = daemon.write(own(FILE), "50");
        ack(&mut tenant, &gpu, 50, Some(status));
        assert_eq!(written.join().unwrap(), Err(error.errno()));
        assert_eq!(client.read(&own(FILE)), Ok("default\n".into()));
        ack(&mut tenant, &gpu, 0, None);
    }
    assert!(client.read("events").unwrap().contains("control 0\n"));
    // Without a pending write, a refusal is only counted.
    let (generation, _) = gpu.page.limits().unwrap();
    tenant.link.ack(0, generation, Some(0x1f));
    let events = || client.read("events").unwrap().contains("control 1\n");
    eventually(&true, events);
}

/// Returns the line `unbound` of the `compute.stat` in a directory: the processes that the limits
/// do not bind.
fn unbound(client: &Client, directory: &str) -> Option<u64> {
    let stat = client.read(&format!("{directory}/compute.stat")).unwrap();
    let line = stat.lines().find_map(|line| line.strip_prefix("unbound "));
    line.map(|count| count.parse().unwrap())
}

/// Starts a daemon with two tenants in the group `web`.
fn pair(test: &str) -> (Daemon, Client, [(Tenant, Arc<Gpu>); 2]) {
    let daemon = Daemon::new(test, 1);
    let client = member(&daemon);
    let tenants = [(), ()].map(|()| {
        let mut tenant = Tenant::of(&daemon);
        let gpu = tenant.cuda(0);
        (tenant, gpu)
    });
    (daemon, client, tenants)
}

#[test]
fn a_silent_process_holds_up_a_write_for_a_second_and_once() {
    let (daemon, client, [(mut one, first), (mut two, second)]) = pair("silent");
    let path = || format!("web/0/{FILE}");
    assert_eq!(unbound(&client, "web/0"), Some(0));
    let started = Instant::now();
    let written = daemon.write(path(), "2ms");
    ack(&mut one, &first, 2000, None);
    eventually(&Some(1), || unbound(&client, "web/0"));
    assert!(!written.is_finished());
    assert_eq!(written.join().unwrap(), Ok(()), "the other cannot veto it");
    assert!(started.elapsed() > Duration::from_millis(900));
    assert_eq!(client.read(&path()), Ok("2000\n".into()));
    assert_eq!(unbound(&client, "web/0"), Some(1));
    // From now on nobody waits for it.
    let started = Instant::now();
    let written = daemon.write(path(), "3ms");
    ack(&mut one, &first, 3000, None);
    assert_eq!(written.join().unwrap(), Ok(()));
    assert!(started.elapsed() < Duration::from_millis(900));
    assert_eq!(unbound(&client, "web/0"), Some(1));
    // It still gets the limit, and writes wait for it again.
    ack(&mut two, &second, 3000, None);
    eventually(&Some(0), || unbound(&client, "web/0"));
    let written = daemon.write(path(), "default");
    ack(&mut one, &first, 0, None);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!written.is_finished());
    ack(&mut two, &second, 0, None);
    assert_eq!(written.join().unwrap(), Ok(()));
}

#[test]
fn a_process_that_refuses_cannot_veto_a_write_that_others_take() {
    let (daemon, client, [(mut one, first), (mut two, second)]) = pair("veto");
    let written = daemon.write(format!("web/0/{FILE}"), "2ms");
    ack(&mut two, &second, 2000, Some(0x56));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!written.is_finished(), "the other has yet to answer");
    ack(&mut one, &first, 2000, None);
    assert_eq!(written.join().unwrap(), Ok(()));
    assert_eq!(client.read(&format!("web/0/{FILE}")), Ok("2000\n".into()));
    assert_eq!(unbound(&client, "web/0"), Some(1));
    assert!(client.read("events").unwrap().contains("control 1\n"));
    // An older generation does not change that, the next one that it takes does.
    two.link.ack(0, 1, None);
    let written = daemon.write(format!("web/0/{FILE}"), "3ms");
    eventually(&Some(2), || unbound(&client, "web/0"));
    ack(&mut two, &second, 3000, None);
    ack(&mut one, &first, 3000, None);
    assert_eq!(written.join().unwrap(), Ok(()));
    assert_eq!(unbound(&client, "web/0"), Some(0));
}

#[test]
fn writes_for_a_process_that_never_answers_take_a_second_together() {
    let (daemon, client, tenant, gpu) = setup("never");
    let started = Instant::now();
    let second = daemon.write(own(FILE), "60");
    let outcomes = [daemon.write(own(FILE), "50"), second].map(|w| w.join().unwrap());
    assert!(started.elapsed() < Duration::from_millis(1900));
    assert_eq!(outcomes, [Ok(()); 2]);
    assert_eq!(unbound(&client, &own_directory()), Some(1));
    let (_, limits) = gpu.page.limits().unwrap();
    let value = client.read(&own(FILE)).unwrap();
    assert_eq!(
        format!("{}\n", limits.timeslice_us),
        value,
        "it will get it"
    );
    drop(tenant);
}

#[test]
fn an_ended_process_is_not_waited_for() {
    let (daemon, client, tenant, gpu) = setup("nobody");
    client.write("control", "create web").unwrap();
    assert_eq!(client.write(&format!("web/0/{FILE}"), "50"), Ok(()));
    let written = daemon.write(own(FILE), "50");
    let slice = || gpu.page.limits().map(|(_, limits)| limits.timeslice_us);
    eventually(&Some(50), slice);
    let started = Instant::now();
    drop(tenant);
    // Its directory is removed with it, before or after the write completes.
    let outcome = written.join().unwrap();
    assert!(
        [Ok(()), Err(Error::Gone.errno())].contains(&outcome),
        "{outcome:?}"
    );
    assert!(started.elapsed() < Duration::from_millis(900));
}

#[test]
fn all_members_of_a_group_must_acknowledge() {
    let daemon = Daemon::new("members", 1);
    let client = member(&daemon);
    let mut one = Tenant::of(&daemon);
    let mut two = Tenant::of(&daemon);
    let (first, second) = (one.cuda(0), two.cuda(0));
    let written = daemon.write(format!("web/0/{FILE}"), "2ms");
    ack(&mut one, &first, 2000, None);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!written.is_finished(), "one has yet to acknowledge");
    ack(&mut two, &second, 2000, None);
    assert_eq!(written.join().unwrap(), Ok(()));
    // The group's limit is tighter, so the process has nothing to acknowledge.
    let written = client.write(&own(FILE), "5ms");
    assert_eq!(written, Ok(()));
    one.free(TSG);
}

#[test]
fn a_freeze_is_acknowledged_or_rolled_back() {
    let (daemon, client, mut tenant, gpu) = setup("freeze");
    let frozen = || {
        gpu.page
            .limits()
            .is_some_and(|(_, limits)| limits.launches.frozen)
    };
    for (refused, outcome) in [
        (Some(0x56), Err(Error::Unsupported.errno())),
        (None, Ok(())),
    ] {
        let written = daemon.write(own("compute.freeze"), "1");
        eventually(&true, frozen);
        assert!(!written.is_finished());
        let (generation, _) = gpu.page.limits().unwrap();
        tenant.link.ack(0, generation, refused);
        assert_eq!(written.join().unwrap(), outcome);
        assert_eq!(frozen(), outcome.is_ok());
    }
    assert_eq!(client.read(&own("compute.freeze")), Ok("1\n".into()));
    assert_eq!(client.write(&own("compute.freeze"), "0"), Ok(()));
    assert!(!frozen(), "it goes on as soon as it looks");
}
