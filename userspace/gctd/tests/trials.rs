// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Limits that processes take by controls of their own: a write waits for them.

mod common;

use common::{eventually, member, own, Tenant, TSG};
use gct_core::error::Error;
use gctd::testing::{Client, Daemon};
use gctd_ipc::tenant::Gpu;
use std::sync::Arc;
use std::time::{Duration, Instant};

const FILE: &str = "compute.timeslice";

/// Waits for a time slice on a process's page, and says that it was taken or refused.
#[track_caller]
fn answer(tenant: &mut Tenant, gpu: &Gpu, slice_us: u32, refused: Option<u32>) {
    let slice = || gpu.page.limits().map(|(_, limits)| limits.timeslice_us);
    eventually(&Some(slice_us), slice);
    let (generation, _) = gpu.page.limits().unwrap();
    tenant.link.took(gpu.minor, generation, refused);
}

/// A daemon, a client of its tree, a process.
fn setup(test: &str) -> (Daemon, Client, Tenant, Arc<Gpu>) {
    let daemon = Daemon::new(test, 1);
    let client = daemon.client();
    let mut tenant = Tenant::of(&daemon);
    let gpu = tenant.cuda(0);
    (daemon, client, tenant, gpu)
}

#[test]
fn a_write_returns_when_the_process_has_taken_it() {
    let (daemon, client, mut tenant, gpu) = setup("took");
    let rung = gpu.page.rung();
    let written = daemon.write(own(FILE), "50");
    eventually(&true, || gpu.page.rung() != rung);
    // Others are served meanwhile, and an older generation is no answer.
    assert_eq!(client.write(&own("tpc.mask"), "0-3"), Ok(()));
    tenant.link.took(0, 1, None);
    assert_eq!(client.read(&own(FILE)), Ok("default\n".into()));
    assert!(!written.is_finished());
    answer(&mut tenant, &gpu, 50, None);
    assert_eq!(written.join().unwrap(), Ok(()));
    assert_eq!(client.read(&own(FILE)), Ok("50\n".into()));
    let written = daemon.write(own(FILE), "default");
    answer(&mut tenant, &gpu, 0, None);
    assert_eq!(written.join().unwrap(), Ok(()));
}

#[test]
fn a_refusal_leaves_the_file_and_takes_the_limit_back() {
    let (daemon, client, mut tenant, gpu) = setup("refused");
    for (status, error) in [(0x56, Error::Unsupported), (0x1f, Error::Refused)] {
        let written = daemon.write(own(FILE), "50");
        answer(&mut tenant, &gpu, 50, Some(status));
        assert_eq!(written.join().unwrap(), Err(error.errno()));
        assert_eq!(client.read(&own(FILE)), Ok("default\n".into()));
        answer(&mut tenant, &gpu, 0, None);
    }
    assert!(client.read("events").unwrap().contains("control 0\n"));
    // When nobody is writing it is counted.
    let (generation, _) = gpu.page.limits().unwrap();
    tenant.link.took(0, generation, Some(0x1f));
    let events = || client.read("events").unwrap().contains("control 1\n");
    eventually(&true, events);
}

#[test]
fn who_does_not_answer_has_refused() {
    let (daemon, client, tenant, gpu) = setup("silent");
    let started = Instant::now();
    let second = daemon.write(own(FILE), "60");
    let errors = [daemon.write(own(FILE), "50"), second].map(|w| w.join().unwrap());
    // One after the other.
    assert!(started.elapsed() > Duration::from_millis(1900));
    assert_eq!(errors, [Err(Error::Refused.errno()); 2]);
    assert_eq!(client.read(&own(FILE)), Ok("default\n".into()));
    let (_, limits) = gpu.page.limits().unwrap();
    assert_eq!(limits.timeslice_us, 0);
    drop(tenant);
}

#[test]
fn nobody_is_waited_for_who_is_not_there() {
    let (daemon, client, tenant, gpu) = setup("nobody");
    client.write("control", "create web").unwrap();
    assert_eq!(client.write(&format!("web/0/{FILE}"), "50"), Ok(()));
    let written = daemon.write(own(FILE), "50");
    let slice = || gpu.page.limits().map(|(_, limits)| limits.timeslice_us);
    eventually(&Some(50), slice);
    let started = Instant::now();
    drop(tenant);
    // Its directory goes with it, before or after it is no longer waited for.
    let outcome = written.join().unwrap();
    assert!(
        [Ok(()), Err(Error::Gone.errno())].contains(&outcome),
        "{outcome:?}"
    );
    assert!(started.elapsed() < Duration::from_millis(900));
}

#[test]
fn the_members_of_a_group_are_waited_for() {
    let daemon = Daemon::new("members", 1);
    let client = member(&daemon);
    let mut one = Tenant::of(&daemon);
    let mut two = Tenant::of(&daemon);
    let (first, second) = (one.cuda(0), two.cuda(0));
    let written = daemon.write(format!("web/0/{FILE}"), "2ms");
    answer(&mut one, &first, 2000, None);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!written.is_finished(), "one has yet to take it");
    answer(&mut two, &second, 2000, None);
    assert_eq!(written.join().unwrap(), Ok(()));
    // A limit that binds tighter already changes nothing for the process.
    let written = client.write(&own(FILE), "5ms");
    assert_eq!(written, Ok(()));
    one.free(TSG);
}

#[test]
fn a_freeze_waits_for_the_process_and_a_refusal_takes_it_back() {
    let (daemon, client, mut tenant, gpu) = setup("freeze");
    let frozen = || gpu.page.limits().is_some_and(|(_, limits)| limits.frozen);
    for (refused, outcome) in [
        (Some(0x56), Err(Error::Unsupported.errno())),
        (None, Ok(())),
    ] {
        let written = daemon.write(own("compute.freeze"), "1");
        eventually(&true, frozen);
        assert!(!written.is_finished());
        let (generation, _) = gpu.page.limits().unwrap();
        tenant.link.took(0, generation, refused);
        assert_eq!(written.join().unwrap(), outcome);
        assert_eq!(frozen(), outcome.is_ok());
    }
    assert_eq!(client.read(&own("compute.freeze")), Ok("1\n".into()));
    let silent = client.write(&own("compute.freeze"), "0");
    assert_eq!(silent, Err(Error::Refused.errno()), "who does not answer");
    assert!(frozen(), "stays as it was");
}
