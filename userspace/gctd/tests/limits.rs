// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Limits reach processes, allocations are charged, counters come back.

mod common;

use common::{eventually, member, own, own_directory, Tenant, DEVICE, TSG};
use gct_core::error::Error;
use gct_core::gpu_time::{GpuTime, Hold, Holds};
use gct_core::lane::limits::LaunchLimits;
use gct_core::mask::TpcMask;
use gct_core::policy::share::{DutyCycle, Level};
use gct_core::rmapi::escape;
use gct_core::submit::reason::Reason;
use gct_core::submit::stats::Counters;
use gct_core::topology::Topology;
use gct_core::units::{Ns, Weight};
use gct_core::unmanaged::Reason as Unmanaged;
use gctd::testing::{alloc, Daemon, TPCS};
use gctd_ipc::message::Ioctl;
use gctd_ipc::page::Limits;
use gctd_ipc::tenant::Verdict;

const MEMORY: u32 = 0x5c00_0040;

#[test]
fn a_directory_lives_as_long_as_its_channel_group() {
    let daemon = Daemon::new("appears", 2);
    let client = daemon.client();
    let pid = std::process::id().to_string();
    let mut tenant = Tenant::of(&daemon);
    let gpu = tenant.cuda(1);
    assert_eq!(gpu.minor, 1);
    assert_eq!(client.list(&pid), Ok(vec!["1/".into()]));
    let stat = client.read(&format!("{pid}/1/compute.stat")).unwrap();
    assert!(
        stat.starts_with("channel_groups 1\nchannels 1\nshared_channels 0\n"),
        "{stat}"
    );
    tenant.free(TSG);
    eventually(&Err(libc::ENOENT), || client.list(&pid));
    tenant.alloc(DEVICE, TSG, 0xa06c, None);
    eventually(&true, || client.list(&pid).is_ok());
    drop(tenant);
    eventually(&Err(libc::ENOENT), || client.list(&pid));
}

#[test]
fn limits_of_process_and_group_are_combined() {
    let daemon = Daemon::new("limits", 1);
    let client = member(&daemon);
    client.write("web/0/tpc.mask", "0-7").unwrap();
    let mut tenant = Tenant::of(&daemon);
    let gpu = tenant.cuda(0);
    // The effective mask keeps only existing TPCs: 0 to 3 and 9 onwards.
    let topology = Topology::apart(TpcMask::parse(TPCS.as_bytes()).unwrap());
    let with = |tpcs: u64| Limits {
        launches: LaunchLimits {
            tpcs: Some(TpcMask::from_words([tpcs, 0, 0, 0])),
            ..LaunchLimits::NONE
        },
        topology,
        binds_launches: true,
        ..Limits::NONE
    };
    assert_eq!(gpu.page.limits(), Some((1, with(0xf))));
    client.write(&own("tpc.mask"), "2-11").unwrap();
    assert_eq!(gpu.page.limits(), Some((2, with(0xc))));
    let written = daemon.write("web/0/compute.freeze", "1");
    let frozen = || gpu.page.limits().unwrap().1.launches.frozen;
    eventually(&true, frozen);
    assert!(
        !written.is_finished(),
        "the process must acknowledge the freeze"
    );
    tenant.link.ack(0, 3, None);
    written.join().unwrap().unwrap();
    assert!(frozen() && gpu.page.generation() == 3);
    client.write(&own("gmem.limit"), "1G").unwrap();
    assert_eq!(gpu.page.limits().unwrap().1.gmem_limit, 1 << 30);
    // A write that does not change the effective limits publishes nothing.
    client.write("web/0/gmem.limit", "2G").unwrap();
    assert_eq!(gpu.page.generation(), 4);
    assert_eq!(
        client.write("web/0/slip.power", "5"),
        Err(Error::Unsupported.errno())
    );
}

/// Both levels reach the process, so that a group's share is one for all of its members.
#[test]
fn shares_of_process_and_group_are_published_apart() {
    let daemon = Daemon::new("shares", 1);
    let client = member(&daemon);
    let features = client.read("gpus/0/features").unwrap();
    for word in ["compute.weight", "compute.max", "compute.stat"] {
        assert!(features.lines().any(|line| line == word), "{features}");
    }
    let mut tenant = Tenant::of(&daemon);
    let gpu = tenant.cuda(0);
    client.write("web/0/compute.weight", "300").unwrap();
    client.write("web/0/compute.max", "20000 100000").unwrap();
    client.write(&own("compute.weight"), "50").unwrap();
    client.write(&own("compute.max"), "1ms 50ms").unwrap();
    let level = |weight, quota, period| Level {
        weight: Some(Weight(weight)),
        max: Some(DutyCycle {
            quota: Ns(quota),
            period: Ns(period),
        }),
    };
    let share = gpu.page.limits().unwrap().1.launches.share;
    assert_eq!(share.owner, level(300, 20_000_000, 100_000_000));
    assert_eq!(share.own, level(50, 1_000_000, 50_000_000));
    let (index, user) = gpu.slot.unwrap();
    let slot = gpu.board.slot(index).filter(|slot| slot.user == user);
    assert_eq!(slot.unwrap().weight, Some(Weight(50)));
    for (file, text, error) in [
        ("compute.weight", "0", Error::Range),
        ("compute.weight", "10001", Error::Range),
        ("compute.weight", "much", Error::Syntax),
        ("compute.max", "20000", Error::Syntax),
        ("compute.max", "10 100000", Error::Range),
        ("compute.max", "200000 100000", Error::Range),
        ("compute.max", "100 999", Error::Range),
    ] {
        let written = client.write(&format!("web/0/{file}"), text);
        assert_eq!(written, Err(error.errno()), "{file} {text}");
    }
    assert_eq!(gpu.page.limits().unwrap().1.launches.share, share);
    client.write("web/0/compute.max", "max").unwrap();
    assert_eq!(gpu.page.limits().unwrap().1.launches.share.owner.max, None);
}

/// A process can only add to its own time and its group's.
#[test]
fn times_reach_process_and_group_and_stay_with_the_group() {
    let daemon = Daemon::new("times", 1);
    let client = member(&daemon);
    let mut tenant = Tenant::of(&daemon);
    let gpu = tenant.cuda(0);
    let stat = |path: &str| client.read(path).unwrap();
    let has = |path: &str, line: &str| stat(path).lines().any(|found| found == line);
    assert!(has("web/0/compute.stat", "usage_usec 0"));
    let mut time = GpuTime::ZERO;
    time.use_time(Ns(7_000_000), 33, 66);
    let mut holds = Holds::default();
    holds.add(Hold::Max);
    time.wait(Ns(2_000_000), holds);
    gpu.page.set_time(&time, 3);
    for path in ["web/0/compute.stat".into(), own("compute.stat")] {
        for line in [
            "usage_usec 7000",
            "usage_tpc_usec 3500",
            "pending 3",
            "waited_usec 2000",
            "held_usec 2000",
            "held_usec.max 2000",
        ] {
            assert!(has(&path, line), "{line}: {}", stat(&path));
        }
        assert!(!stat(&path).contains("held_usec.weight"));
    }
    // What goes back counts for nothing.
    gpu.page.set_time(&GpuTime::ZERO, u64::MAX);
    assert!(has("web/0/compute.stat", "usage_usec 7000"));
    gpu.page.set_time(&time, 0);
    drop((gpu, tenant));
    eventually(&true, || has("web/0/compute.stat", "pending 0"));
    assert!(has("web/0/compute.stat", "usage_usec 14000"));
}

#[test]
fn allocations_are_charged_refused_and_uncharged() {
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
    // The daemon granted it, but the driver had none.
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
fn freeing_an_rm_client_frees_its_objects() {
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
fn a_grant_is_uncharged_with_its_process() {
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
fn counters_stay_with_the_group() {
    let daemon = Daemon::new("counts", 1);
    let client = member(&daemon);
    let mut tenant = Tenant::of(&daemon);
    let gpu = tenant.cuda(0);
    assert_eq!(
        client.read("web/0/tpc.effective"),
        Err(Error::Unknown.errno())
    );
    let mut counters = Counters::new();
    (counters.sums.launches, counters.sums.rewritten) = (7, 6);
    counters.keep(Reason::Queue);
    gpu.page.set_counters(&counters);
    let unmanaged = |reason: &Unmanaged| match reason {
        Unmanaged::UnusualLayout => 3,
        Unmanaged::MemoryOnly => 2,
        _ => 0,
    };
    gpu.page.set_unmanaged(Unmanaged::ALL.iter().map(unmanaged));
    gpu.page.set_effective(Some([3, 0, 0, 0]));
    let launches = "launches 7\nrewritten 6\nsplit 0\natoms 0\npredicted 0\nmispredicted 0\n\
                    slip_narrowed 0\nslip_refused 0\nslip_saved_usec 0\ncrowded 0\n\
                    passed 1\npassed.queue 1\n\
                    usage_usec 0\nusage_tpc_usec 0\npending 0\nwaited_usec 0\nheld_usec 0\n\
                    slice 0\nround 0\nunbound 0\nunmanaged 5\n\
                    unmanaged.unusual_layout 3\nunmanaged.memory_only 2\nungoverned 0\n";
    for path in [own("compute.stat"), "web/0/compute.stat".into()] {
        let text = client.read(&path).unwrap();
        assert_eq!(
            text,
            format!("channel_groups 1\nchannels 1\nshared_channels 0\n{launches}")
        );
    }
    assert_eq!(client.read(&own("tpc.effective")), Ok("0-1\n".into()));
    // A limit on memory asks nothing of launches; one on launches does, whoever has it.
    client.write("control", "create other").unwrap();
    client.write("other/0/gmem.limit", "1G").unwrap();
    let ungoverned = |path: &str| {
        let text = client.read(path).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("ungoverned "));
        line.unwrap().to_owned()
    };
    assert_eq!(ungoverned("web/0/compute.stat"), "0");
    client.write("other/0/compute.weight", "50").unwrap();
    for path in [own("compute.stat"), "web/0/compute.stat".into()] {
        assert_eq!(ungoverned(&path), "5");
    }
    assert_eq!(ungoverned("other/0/compute.stat"), "0");
    counters.sums.launches = 9;
    gpu.page.set_counters(&counters);
    drop(tenant);
    let stat = || client.read("web/0/compute.stat").unwrap();
    let counted = launches.split("unmanaged").next().unwrap();
    let expected = counted.replace("launches 7", "launches 9") + "unmanaged 0\nungoverned 0\n";
    eventually(
        &format!("channel_groups 0\nchannels 0\nshared_channels 0\n{expected}"),
        stat,
    );
}

#[test]
fn a_fault_is_counted_for_its_owner_only() {
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
    // The last counters are collected when the connection closes.
    gpu.page.fault(43);
    drop(tenant);
    eventually(&"faults 2, last_xid 43".to_owned(), || faults("web/0"));
    assert_eq!(faults("other/0"), "faults 0, last_xid 0");
}
