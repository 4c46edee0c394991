// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Pageable memory is charged by place, to its process and its group alone.

mod common;

use common::{eventually, member, own, Tenant};
use gctd::testing::{Client, Daemon};
use gctd_ipc::message::Paged;

const MIB: u64 = 1 << 20;
/// The PCI address of GPU 0.
const GPU: &str = "0000:00:00.0";

fn at(device: u64, host: u64) -> Paged {
    Paged {
        device: device * MIB,
        host: host * MIB,
    }
}

/// Returns what a directory is charged on the GPU and on the host.
fn charged(client: &Client, directory: &str) -> Paged {
    let read = |file: &str| client.read(&format!("{directory}/{file}")).unwrap();
    let bytes = |file: &str| read(file).trim().parse().unwrap();
    Paged {
        device: bytes("gmem.current"),
        host: bytes("hmem.current"),
    }
}

#[test]
fn both_limits_bind_and_the_room_is_told() {
    let daemon = Daemon::new("pageable", 1);
    let client = member(&daemon);
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    assert_eq!(tenant.link.pageable_on(GPU), None);
    client.write("web/0/gmem.pageable", "1").unwrap();
    assert_eq!(tenant.link.pageable_on(GPU), None, "nothing bounds it");
    client.write("web/0/gmem.limit", "10M").unwrap();
    client.write(&own("hmem.limit"), "4M").unwrap();
    assert_eq!(tenant.link.pageable_on(GPU), Some(0));
    for other in ["0000:01:00.0", "", "0000:00:00.0/../x"] {
        assert_eq!(tenant.link.pageable_on(other), None);
    }
    assert_eq!(tenant.link.pageable_room(0, 2 * MIB), Some(at(8, 4)));
    assert_eq!(tenant.link.repage(0, at(8, 4), 0, false), Ok(()));
    assert_eq!(charged(&client, "web/0"), at(8, 4));
    assert_eq!(tenant.link.repage(0, at(11, 4), 0, false), Err(at(10, 4)));
    assert_eq!(
        tenant.link.repage(0, at(9, 4), 2 * MIB, false),
        Err(at(8, 4))
    );
    assert_eq!(client.read("web/0/gmem.events"), Ok("limit 0\n".into()));
    assert_eq!(tenant.link.repage(0, at(8, 5), 0, true), Err(at(10, 4)));
    assert_eq!(client.read("web/0/gmem.events"), Ok("limit 1\n".into()));
    assert_eq!(tenant.link.paged(0), at(8, 4));
    assert_eq!(charged(&client, "web/0"), at(8, 4));
    assert!(client.write(&own("hmem.limit"), "3M").is_err());
    assert!(tenant.link.repage(7, at(1, 1), 0, false).is_err(), "no GPU");
    drop(tenant);
    eventually(&at(0, 0), || charged(&client, "web/0"));
}

/// A lower limit binds at once what can move, and is stored when enough has moved.
#[test]
fn a_lower_limit_waits_for_memory_that_moves() {
    let daemon = Daemon::new("pageable-lower", 1);
    let client = member(&daemon);
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    client.write("web/0/gmem.pageable", "1").unwrap();
    client.write("web/0/gmem.limit", "10M").unwrap();
    assert_eq!(tenant.link.repage(0, at(8, 0), 0, false), Ok(()));
    let writer = daemon.write("web/0/gmem.limit", "4M");
    eventually(&Some(4 * MIB), || {
        tenant.link.pageable_room(0, 0).map(|room| room.device)
    });
    assert_eq!(client.read("web/0/gmem.limit"), Ok("10485760\n".into()));
    let twice = client.write("web/0/gmem.limit", "2M");
    assert!(twice.is_err(), "one at a time");
    assert_eq!(tenant.link.repage(0, at(6, 2), 0, false), Ok(()));
    assert!(tenant.link.repage(0, at(7, 2), 0, false).is_err());
    assert!(!writer.is_finished());
    assert_eq!(tenant.link.repage(0, at(4, 4), 0, false), Ok(()));
    assert_eq!(writer.join().unwrap(), Ok(()));
    assert_eq!(client.read("web/0/gmem.limit"), Ok("4194304\n".into()));
    assert_eq!(charged(&client, "web/0"), at(4, 4));
}

/// What nobody moves keeps the old limit, and others wait for nothing.
#[test]
fn a_lower_limit_fails_when_nothing_leaves() {
    let daemon = Daemon::new("pageable-stays", 1);
    let client = member(&daemon);
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    client.write("web/0/gmem.limit", "10M").unwrap();
    assert_eq!(tenant.link.repage(0, at(8, 0), 0, false), Ok(()));
    let busy = Err(rustix::io::Errno::BUSY.raw_os_error());
    assert_eq!(client.write("web/0/gmem.limit", "4M"), busy, "it is pinned");
    client.write("web/0/gmem.pageable", "1").unwrap();
    let writer = daemon.write("web/0/gmem.limit", "4M");
    eventually(&Some(4 * MIB), || {
        tenant.link.pageable_room(0, 0).map(|room| room.device)
    });
    client.write(&own("compute.weight"), "200").unwrap();
    assert_eq!(writer.join().unwrap(), busy);
    assert_eq!(client.read("web/0/gmem.limit"), Ok("10485760\n".into()));
    let grown = tenant.link.repage(0, at(10, 0), 0, false);
    assert_eq!(grown, Ok(()), "the trial is over");
}

/// Checks that a lie stays with whoever told it.
#[test]
fn a_liar_spoils_no_account() {
    let daemon = Daemon::new("pageable-lies", 1);
    let client = member(&daemon);
    let mut honest = Tenant::of(&daemon);
    honest.cuda(0);
    assert_eq!(honest.link.repage(0, at(2, 1), 0, false), Ok(()));
    let mut liar = Tenant::of(&daemon);
    let most = 1 << 44;
    for (device, host) in [(u64::MAX, u64::MAX), (most + 1, 0)] {
        let lie = Paged { device, host };
        assert!(liar.link.repage(0, lie, u64::MAX, true).is_err());
    }
    let last = liar.link.repage(
        0,
        Paged {
            device: 0,
            host: most,
        },
        0,
        true,
    );
    assert_eq!(last, Ok(()));
    assert_eq!(
        honest.link.repage(0, at(3, 1), 0, false),
        Ok(()),
        "no sum overflows"
    );
    assert_eq!(liar.link.repage(0, at(0, 0), 0, true), Ok(()));
    assert_eq!(charged(&client, "web/0"), at(3, 1));
    assert_eq!(honest.link.repage(0, at(3, 2), 0, false), Ok(()));
    assert_eq!(charged(&client, "web/0"), at(3, 2));
    drop(liar);
    assert_eq!(honest.link.repage(0, at(1, 0), 0, false), Ok(()));
    eventually(&at(1, 0), || charged(&client, "web/0"));
}

#[test]
fn a_new_daemon_hears_of_what_exists() {
    let mut daemon = Daemon::new("pageable-again", 1);
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    assert_eq!(tenant.link.repage(0, at(3, 2), 0, false), Ok(()));
    daemon.stop();
    assert_eq!(tenant.link.pageable_on(GPU), None);
    assert_eq!(tenant.link.pageable_room(0, 0), None);
    let grown = tenant.link.repage(0, at(4, 2), 0, false);
    assert_eq!(
        grown,
        Err(Paged {
            host: u64::MAX,
            ..at(3, 0)
        }),
        "no limit is known"
    );
    assert_eq!(tenant.link.repage(0, at(2, 5), 0, false), Ok(()));
    daemon.restart();
    let client = member(&daemon);
    assert!(tenant.maintain());
    tenant.cuda(0);
    eventually(&at(2, 5), || charged(&client, "web/0"));
}
