// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Managed memory is charged on every GPU of its process.

mod common;

use common::{eventually, member, own, own_directory, Tenant, DEVICE, TSG};
use gct_core::rmapi::escape;
use gctd::testing::{alloc, Client, Daemon};

const MEMORY: u32 = 0x5c00_0040;
const MIB: u64 = 1 << 20;

/// Returns the charged, the pinned and the managed bytes of a directory.
fn charged(client: &Client, directory: &str) -> (u64, u64, u64) {
    let read = |file: &str| client.read(&format!("{directory}/{file}")).unwrap();
    let current = read("gmem.current").trim().parse().unwrap();
    let stat = read("gmem.stat");
    let stat: Vec<&str> = stat.split_ascii_whitespace().collect();
    let ["pinned", pinned, "uvm", uvm] = stat[..] else {
        panic!("{stat:?}");
    };
    (current, pinned.parse().unwrap(), uvm.parse().unwrap())
}

/// Checks that a tenant sees the tightest limit and the least that is left, at once after a write.
#[test]
fn a_tenant_sees_its_limit_and_what_is_left_of_it() {
    let daemon = Daemon::new("seen", 2);
    let client = member(&daemon);
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    let seen = |tenant: &mut Tenant| {
        let view = tenant.link.memory_view(tenant.client, DEVICE)?;
        Some((view.limit.get() / MIB, view.left.get() / MIB))
    };
    assert_eq!(seen(&mut tenant), None, "no limit");
    assert!(tenant.memory(MEMORY, 4 * MIB));
    tenant.charge_managed(2 * MIB).unwrap();
    client.write("web/0/gmem.limit", "20M").unwrap();
    assert_eq!(seen(&mut tenant), Some((20, 14)), "the group's");
    client.write(&own("gmem.limit"), "10M").unwrap();
    assert_eq!(seen(&mut tenant), Some((10, 4)), "the tighter one");
    client.write(&own("gmem.limit"), "6M").unwrap();
    assert_eq!(seen(&mut tenant), Some((6, 0)), "lowered");
    client.write(&own("gmem.limit"), "max").unwrap();
    client.write("web/1/gmem.limit", "1M").unwrap();
    assert_eq!(
        seen(&mut tenant),
        Some((20, 14)),
        "the other GPU's does not count"
    );
    tenant.free(MEMORY);
    assert_eq!(seen(&mut tenant), Some((20, 18)));
    // An object of nobody, and the client of another connection.
    assert_eq!(tenant.link.memory_view(tenant.client, 0x77), None);
    assert_eq!(tenant.link.memory_view(tenant.client + 1, DEVICE), None);
    client.write("web/0/gmem.limit", "max").unwrap();
    assert_eq!(seen(&mut tenant), None);
}

#[test]
fn one_limit_bounds_managed_and_other_memory() {
    let daemon = Daemon::new("managed", 1);
    let client = member(&daemon);
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    // The limit of the process, then that of the group.
    for limited in [own_directory(), "web/0".into()] {
        let limit = format!("{limited}/gmem.limit");
        client.write(&limit, "10M").unwrap();
        let first = tenant.charge_managed(6 * MIB).unwrap();
        assert_eq!(tenant.charge_managed(5 * MIB), None);
        assert!(!tenant.memory(MEMORY, 5 * MIB), "one limit for both");
        assert!(tenant.memory(MEMORY, 4 * MIB));
        assert_eq!(tenant.charge_managed(1), None);
        assert_eq!(tenant.charge_managed(u64::MAX), None);
        for directory in [own_directory(), "web/0".into()] {
            let all = (10 * MIB, 4 * MIB, 6 * MIB);
            assert_eq!(charged(&client, &directory), all, "{directory}");
        }
        let events = client.read(&format!("{limited}/gmem.events"));
        assert_eq!(events, Ok("limit 4\n".into()));
        tenant.free(MEMORY);
        tenant.link.uncharge_managed(first);
        let second = tenant.charge_managed(10 * MIB).unwrap();
        tenant.link.uncharge_managed(second);
        eventually(&(0, 0, 0), || charged(&client, "web/0"));
        client.write(&limit, "max").unwrap();
    }
    assert_eq!(
        client.read(&own("gmem.peak")),
        Ok(format!("{}\n", 10 * MIB))
    );
}

#[test]
fn managed_memory_is_uncharged_with_its_process() {
    let daemon = Daemon::new("managed-death", 1);
    let client = member(&daemon);
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    assert!(tenant.charge_managed(MIB).is_some());
    assert_eq!(charged(&client, "web/0"), (MIB, 0, MIB));
    drop(tenant);
    eventually(&(0, 0, 0), || charged(&client, "web/0"));
}

#[test]
fn managed_memory_is_charged_on_every_gpu_with_a_page() {
    let daemon = Daemon::new("managed-gpus", 2);
    let client = member(&daemon);
    client.write("web/1/gmem.limit", "3M").unwrap();
    let mut tenant = Tenant::of(&daemon);
    // The process has no page yet.
    let early = tenant.charge_managed(MIB).unwrap();
    assert_eq!(charged(&client, "web/0"), (0, 0, 0));
    tenant.cuda(0);
    assert_eq!(charged(&client, "web/0"), (MIB, 0, MIB));
    let second = tenant.charge_managed(4 * MIB).unwrap();
    assert_eq!(charged(&client, "web/1"), (0, 0, 0));
    // Existing ranges are charged on the second GPU too, even beyond its limit.
    let (device, group) = (DEVICE + 100, TSG + 100);
    tenant.alloc(tenant.client, device, 0x80, Some(1 << 8));
    tenant.alloc(device, group, 0xa06c, None);
    tenant.link.gpu_of(tenant.client, group).unwrap();
    for gpu in ["web/0", "web/1"] {
        assert_eq!(charged(&client, gpu), (5 * MIB, 0, 5 * MIB));
    }
    // A range that one GPU refuses is charged on none.
    assert_eq!(tenant.charge_managed(1), None);
    assert_eq!(charged(&client, "web/0"), (5 * MIB, 0, 5 * MIB));
    assert_eq!(client.read("web/0/gmem.events"), Ok("limit 0\n".into()));
    assert_eq!(client.read("web/1/gmem.events"), Ok("limit 1\n".into()));
    tenant.link.uncharge_managed(second);
    tenant.link.uncharge_managed(early);
    for gpu in ["web/0", "web/1"] {
        eventually(&(0, 0, 0), || charged(&client, gpu));
    }
}

#[test]
fn a_new_daemon_learns_the_existing_ranges() {
    let mut daemon = Daemon::new("managed-restart", 1);
    let mut tenant = Tenant::of(&daemon);
    tenant.cuda(0);
    let [stays, goes, left] = [MIB, 2 * MIB, 4 * MIB].map(|bytes| tenant.charge_managed(bytes));
    tenant.link.uncharge_managed(goes.unwrap());
    daemon.stop();
    assert!(!tenant.maintain(), "nobody is there");
    tenant.link.uncharge_managed(left.unwrap());
    let without = tenant.charge_managed(1 << 40).unwrap();
    tenant.link.uncharge_managed(without);
    let without = tenant.charge_managed(8 * MIB).unwrap();
    daemon.restart();
    assert!(tenant.maintain());
    tenant.link.gpu_of(tenant.client, TSG).unwrap();
    let client = daemon.client();
    let own = own_directory();
    assert_eq!(charged(&client, &own), (9 * MIB, 0, 9 * MIB));
    client.write(&format!("{own}/gmem.limit"), "9M").unwrap();
    assert_eq!(tenant.charge_managed(1), None, "the new daemon limits it");
    tenant.link.uncharge_managed(without);
    tenant.link.uncharge_managed(stays.unwrap());
    eventually(&(0, 0, 0), || charged(&client, &own));
}

#[test]
fn ranges_older_than_the_daemon_are_charged_beyond_the_limit() {
    let mut daemon = Daemon::new("managed-early", 1);
    daemon.stop();
    let mut tenant = Tenant::new(&daemon.socket());
    let number = tenant.charge_managed(MIB).unwrap();
    let client = tenant.client;
    tenant.ioctl(escape::ALLOC, &alloc(0, 0, client, 0x41), None, 0);
    tenant.alloc(client, DEVICE, 0x80, Some(0));
    tenant.alloc(DEVICE, TSG, 0xa06c, None);
    daemon.restart();
    let tree = member(&daemon);
    tree.write("web/0/gmem.limit", "0").unwrap();
    tenant.maintain();
    tenant.link.gpu_of(client, TSG).unwrap();
    assert_eq!(charged(&tree, "web/0"), (MIB, 0, MIB));
    assert_eq!(tree.read("web/0/gmem.events"), Ok("limit 0\n".into()));
    tenant.link.uncharge_managed(number);
    eventually(&(0, 0, 0), || charged(&tree, "web/0"));
}
