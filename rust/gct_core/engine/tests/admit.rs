// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that memory is charged before it is allocated, and that launches are counted.

use super::*;
use crate::launches::{EffectiveTpcs, Launches};
use crate::memory::ROOT;
use crate::records::Payer;
use crate::rmapi::Call;

fn memory(object: u64) -> Call {
    let words = words(
        32,
        &[
            (0, CLIENT),
            (4, DEVICE),
            (8, object),
            (12, 0x40),
            (16, 0x1000),
        ],
    );
    rmapi::decode(escape::ALLOC, &words).unwrap().unwrap()
}

impl World {
    fn try_charge(&mut self, file: FileId, bytes: u64) -> Option<Ticket> {
        let ticket = self.store.retry(|store| {
            store
                .state()
                .call_try_charge(file, &memory(MEMORY + 1), Some(bytes))
        });
        self.store.check();
        ticket.unwrap()
    }

    fn try_charge_managed(&mut self, file: FileId, bytes: u64) -> Option<Ticket> {
        let gpu = self.gpu;
        let charge = |store: &mut Store| store.state().try_charge_managed(file, gpu, Bytes(bytes));
        let ticket = self.store.retry(charge);
        self.store.check();
        ticket.unwrap()
    }

    pub(super) fn current(&mut self, owner: Owner) -> String {
        let pool = self.pool(owner);
        self.read(File::GmemCurrent, pool).unwrap()
    }
}

/// Adds a process with 4096 bytes to a group. Each has a limit.
pub(super) fn limited(own: &str, of_group: &str) -> (World, FileId, GroupId) {
    let mut world = World::new(FeatureSet::all());
    let (group, file) = world.web();
    for (owner, limit) in [(Owner::Proc(APP), own), (Owner::Group(group), of_group)] {
        let pool = world.pool(owner);
        assert_eq!(world.write(File::GmemLimit, pool, limit), Ok(()));
    }
    (world, file, group)
}

#[test]
fn the_last_byte_fits_and_one_more_does_not() {
    for (own, of_group) in [("8192", "max"), ("max", "8192"), ("8192", "8192")] {
        let (mut world, file, group) = limited(own, of_group);
        assert_eq!(world.try_charge(file, 4097), None);
        assert_eq!(world.try_charge(file, u64::MAX), None);
        let ticket = world.try_charge(file, 4096).unwrap();
        assert_eq!(world.current(Owner::Group(group)), "8192\n");
        assert_eq!(
            world.try_charge(file, 1),
            None,
            "two cannot have the last of it"
        );
        let mut failed = memory(MEMORY + 1);
        failed.status = 0x51;
        let mut state = world.store.state();
        assert_eq!(state.call_leave(file, &failed, ticket, Some(4096)), Ok(()));
        assert_eq!(world.current(Owner::Group(group)), "4096\n");
        let pool = world.pool(Owner::Group(group));
        let events = world.read(File::GmemEvents, pool).unwrap();
        let expected = if of_group == "max" { 0 } else { 3 };
        assert_eq!(
            events,
            format!("limit {expected}\nevicted 0\nahead 0\npressure 0\n")
        );
    }
}

#[test]
fn granted_memory_is_charged_once() {
    let (mut world, file, group) = limited("max", "1M");
    let ticket = world.try_charge(file, 4096).unwrap();
    let call = memory(MEMORY + 1);
    world
        .store
        .retry(|store| store.state().call_leave(file, &call, ticket, Some(4096)))
        .unwrap();
    world.store.check();
    assert_eq!(world.current(Owner::Proc(APP)), "8192\n");
    world.free(file, MEMORY + 1, 0);
    assert_eq!(world.current(Owner::Group(group)), "4096\n");
    let ticket = world.try_charge(file, 4096).unwrap();
    world.store.state().uncharge_ticket(file, ticket);
    world.store.check();
    assert_eq!(world.current(Owner::Group(group)), "4096\n");
    world.store.state().file_close(file);
    world.store.check();
    assert_eq!(world.current(Owner::Group(group)), "0\n");
}

/// RM rounds sizes up. What it rounds up beyond the limit is freed again.
#[test]
fn memory_that_outgrows_the_limit_is_found() {
    for (own, of_group) in [("8192", "max"), ("max", "8192")] {
        let (mut world, file, group) = limited(own, of_group);
        let entered = world
            .store
            .retry(|store| store.state().call_enter(file, &memory(MEMORY + 1)));
        let charge = world.try_charge(file, 1).unwrap();
        let ticket = entered.unwrap().with_charge(charge);
        let call = memory(MEMORY + 1);
        let mut state = world.store.state();
        for (made, outgrows) in [(None, false), (Some(4096), false), (Some(4097), true)] {
            assert_eq!(state.outgrows_limit(file, &call, ticket, made), outgrows);
        }
        let other = memory(MEMORY + 2);
        assert!(state.outgrows_limit(file, &other, Ticket::NONE, Some(4096)));
        let failed = Call { status: 1, ..call };
        assert!(!state.outgrows_limit(file, &failed, ticket, Some(u64::MAX)));
        assert_eq!(state.call_leave(file, &failed, ticket, None), Ok(()));
        world.store.check();
        assert_eq!(world.current(Owner::Group(group)), "4096\n");
        let pool = world.pool(Owner::Group(group));
        let events = world.read(File::GmemEvents, pool).unwrap();
        let expected = if of_group == "max" { 0 } else { 2 };
        assert_eq!(
            events,
            format!("limit {expected}\nevicted 0\nahead 0\npressure 0\n")
        );
    }
}

/// While the tables grow for an allocation that has returned, its charge stays. Otherwise another
/// ioctl could take what is left of the limit.
#[test]
fn a_charge_stays_while_tables_grow() {
    // With one of these numbers of objects there is no room for one more.
    let grown: u32 = (0..64).map(leave_beside).sum();
    assert!(grown > 0, "the call needs storage");
}

/// Leaves a call beside other objects. Returns how often the tables have grown for it.
fn leave_beside(objects: u64) -> u32 {
    let (mut world, file, group) = limited("max", "8192");
    for at in 0..objects {
        world.alloc(file, DEVICE, MEMORY + 2 + at, 0x2080, None);
    }
    let call = memory(MEMORY + 1);
    let ticket = world.try_charge(file, 4096).unwrap();
    let mut grown = 0;
    loop {
        let left = world
            .store
            .state()
            .call_leave(file, &call, ticket, Some(4096));
        let Err(Error::NeedSlots(need)) = left else {
            assert_eq!(left, Ok(()));
            break;
        };
        assert_eq!(world.current(Owner::Group(group)), "8192\n");
        world.store.grow(need);
        grown += 1;
    }
    assert_eq!(world.current(Owner::Group(group)), "8192\n");
    grown
}

#[test]
fn managed_and_device_memory_share_a_limit() {
    for (own, of_group) in [("8192", "max"), ("max", "8192")] {
        let (mut world, file, group) = limited(own, of_group);
        assert_eq!(world.try_charge_managed(file, 4097), None);
        assert_eq!(world.try_charge_managed(file, u64::MAX), None);
        let ticket = world.try_charge_managed(file, 4096).unwrap();
        for owner in [Owner::Proc(APP), Owner::Group(group)] {
            assert_eq!(world.current(owner), "8192\n");
            let pool = world.pool(owner);
            let stat = world.read(File::GmemStat, pool);
            assert_eq!(stat, Ok("pinned 4096\nuvm 4096\npage_tables 0\n".into()));
        }
        assert_eq!(world.try_charge_managed(file, 1), None);
        assert_eq!(world.try_charge(file, 1), None, "one limit for both");
        let pool = world.pool(Owner::Proc(APP));
        let events = world.read(File::GmemEvents, pool).unwrap();
        let expected = if own == "max" { 0 } else { 4 };
        assert_eq!(
            events,
            format!("limit {expected}\nevicted 0\nahead 0\npressure 0\n")
        );
        world.store.state().uncharge_ticket(file, ticket);
        world.store.state().uncharge_ticket(file, ticket);
        world.store.check();
        assert_eq!(world.current(Owner::Group(group)), "4096\n");
    }
}

#[test]
fn managed_memory_that_exists_is_charged_over_the_limit() {
    let (mut world, file, group) = limited("4096", "4096");
    let gpu = world.gpu;
    let add = |store: &mut Store| store.state().charge_managed(file, gpu, Bytes(1 << 20));
    let ticket = world.store.retry(add).unwrap();
    world.store.check();
    let pool = world.pool(Owner::Group(group));
    assert_eq!(world.current(Owner::Group(group)), "1052672\n");
    assert_eq!(
        world.read(File::GmemEvents, pool),
        Ok("limit 0\nevicted 0\nahead 0\npressure 0\n".into())
    );
    assert_eq!(
        world.try_charge_managed(file, 0),
        None,
        "it has too much already"
    );
    assert_eq!(world.store.state().gpu_remove(1), Ok(()));
    world.store.check();
    let gone = world.store.state().try_charge_managed(file, gpu, Bytes(1));
    assert_eq!(gone, Err(Error::Gone));
    world.store.state().uncharge_ticket(file, ticket);
    world.store.state().file_close(file);
    world.store.check();
    let gone = world.store.state().charge_managed(file, gpu, Bytes(1));
    assert_eq!(gone, Err(Error::Gone));
}

#[test]
fn managed_memory_that_grows_and_shrinks() {
    let (mut world, file, group) = limited("4096", "max");
    let gpu = world.gpu;
    assert_eq!(world.store.state().gpu_of_uuid(&[7; 16]), None);
    assert_eq!(world.store.state().gpu_uuid(1, [7; 16]), Ok(()));
    assert_eq!(world.store.state().gpu_of_uuid(&[7; 16]), Some(gpu));
    let other = world.group("other");
    let add = |store: &mut Store| store.state().charge_managed(file, gpu, Bytes(0));
    let ticket = world.store.retry(add).unwrap();
    let proc = world.pool(Owner::Proc(APP));
    for (bytes, peak) in [(6, 6), (6, 6), (2, 6), (0, 6), (4, 6), (8, 8)] {
        let bytes = bytes << 20;
        let set = |store: &mut Store| store.state().recharge_managed(file, ticket, Bytes(bytes));
        assert_eq!(world.store.retry(set), Ok(()));
        world.store.check();
        let sum = format!("{}\n", 4096 + bytes);
        assert_eq!(world.current(Owner::Proc(APP)), sum);
        assert_eq!(world.current(Owner::Group(group)), sum);
        let shown = world.read(File::GmemPeak, proc);
        assert_eq!(shown, Ok(format!("{}\n", 4096 + (peak << 20))));
    }
    assert_eq!(
        world.read(File::GmemEvents, proc),
        Ok("limit 0\nevicted 0\nahead 0\npressure 0\n".into())
    );
    // A limit refuses other memory, and the process takes the sum along.
    assert_eq!(world.try_charge(file, 1), None);
    let (from, to) = (Scope::Group(group), Scope::Group(other));
    assert_eq!(world.write(File::GroupCgroup, from, "/none"), Ok(()));
    assert_eq!(world.write(File::GroupCgroup, to, "/web"), Ok(()));
    world.store.check();
    assert_eq!(world.current(Owner::Group(group)), "0\n");
    assert_eq!(world.current(Owner::Group(other)), "8392704\n");
    world.store.state().uncharge_ticket(file, ticket);
    let gone = world.store.state().recharge_managed(file, ticket, Bytes(1));
    assert_eq!(gone, Err(Error::Gone));
    assert_eq!(world.current(Owner::Group(other)), "4096\n");
    world.store.check();
}

#[test]
fn managed_memory_grows_within_limits_only() {
    const MIB: u64 = 1 << 20;
    for (own, of_group) in [("4M", "max"), ("max", "4M"), ("4M", "4M")] {
        let (mut world, file, group) = limited(own, of_group);
        let gpu = world.gpu;
        let add = |store: &mut Store| store.state().charge_managed(file, gpu, Bytes(0));
        let ticket = world.store.retry(add).unwrap();
        let grow = |world: &mut World, bytes| {
            let set = |store: &mut Store| {
                store
                    .state()
                    .try_recharge_managed(file, ticket, Bytes(bytes))
            };
            let over = world.store.retry(set);
            world.store.check();
            over
        };
        let over = match own {
            "max" => Owner::Group(group),
            _ => Owner::Proc(APP),
        };
        assert_eq!(grow(&mut world, 2 * MIB), Ok(None));
        // 4096 bytes are pinned.
        assert_eq!(grow(&mut world, 4 * MIB), Ok(Some(over)));
        assert_eq!(world.current(Owner::Group(group)), "2101248\n");
        assert_eq!(grow(&mut world, 4 * MIB - 4096), Ok(None));
        assert_eq!(grow(&mut world, 2 * MIB), Ok(None));
        let pool = world.pool(over);
        let none = Ok("limit 0\nevicted 0\nahead 0\npressure 0\n".into());
        assert_eq!(world.read(File::GmemEvents, pool), none, "no refusal");
        let state = world.store.state();
        assert!(state.may_give_way(over, file) && state.may_give_way(Owner::Proc(APP), file));
        world.store.state().evicted(file, gpu);
        for owner in [Owner::Proc(APP), Owner::Group(group)] {
            let pool = world.pool(owner);
            let one = Ok("limit 0\nevicted 1\nahead 0\npressure 0\n".into());
            assert_eq!(world.read(File::GmemEvents, pool), one);
        }
        world.store.state().uncharge_ticket(file, ticket);
        assert_eq!(grow(&mut world, 1), Err(Error::Gone));
    }
}

/// The driver asks who has to give way before it refuses an allocation.
#[test]
fn an_allocation_that_lacks_room() {
    let (mut world, file, group) = limited("8192", "12288");
    let gpu = world.gpu;
    let lacks = |world: &mut World, bytes| {
        let state = world.store.state();
        state.call_lacks_room(file, &memory(MEMORY + 1), Some(bytes))
    };
    assert_eq!(lacks(&mut world, 4096), None);
    let own = Some((Owner::Proc(APP), gpu, Bytes(4097)));
    assert_eq!(lacks(&mut world, 4097), own);
    let pool = world.pool(Owner::Proc(APP));
    assert_eq!(world.write(File::GmemLimit, pool, "max"), Ok(()));
    let of_group = Some((Owner::Group(group), gpu, Bytes(8193)));
    assert_eq!(lacks(&mut world, 8193), of_group);
    let none = Ok("limit 0\nevicted 0\nahead 0\npressure 0\n".into());
    assert_eq!(world.read(File::GmemEvents, pool), none);
    let free = Call {
        action: rmapi::Action::Free,
        ..memory(1)
    };
    let state = world.store.state();
    assert_eq!(state.call_lacks_room(file, &free, Some(1 << 40)), None);
}

/// Only memory of the owner that is over its limit gives way.
#[test]
fn strangers_do_not_give_way() {
    const OTHER: ProcKey = ProcKey {
        start_time_ns: 99,
        ..APP
    };
    let (mut world, file, group) = limited("max", "max");
    let other = world.group("other");
    let stranger = world.open(OTHER, "/other");
    let state = world.store.state();
    assert!(state.may_give_way(Owner::Group(group), file));
    for owner in [Owner::Group(other), Owner::Proc(OTHER)] {
        assert!(!state.may_give_way(owner, file));
    }
    assert!(!state.may_give_way(Owner::Group(group), stranger));
    assert!(!state.may_give_way(Owner::Proc(APP), stranger));
    assert_eq!(state.payer(file), Some(Payer::Group(group)));
    assert!(matches!(state.payer(stranger), Some(Payer::User(_))));
}

/// A full GPU spares who has a limit and is within all of its limits.
#[test]
fn who_is_within_a_limit_is_spared() {
    const ALL: [(&str, &str, bool); 5] = [
        ("max", "max", false),
        ("8M", "max", true),
        ("max", "8M", true),
        ("1M", "8M", false),
        ("8M", "1M", false),
    ];
    for (own, of_group, expected) in ALL {
        let (mut world, file, group) = limited(own, of_group);
        let gpu = world.gpu;
        let add = |store: &mut Store| store.state().charge_managed(file, gpu, Bytes(2 << 20));
        world.store.retry(add).unwrap();
        let spared = world.store.state().is_spared(file, gpu);
        assert_eq!(spared, expected, "{own} {of_group}");
        world.store.state().take_within_limit(file, gpu);
        for owner in [Owner::Proc(APP), Owner::Group(group)] {
            let pool = world.pool(owner);
            let one = Ok("limit 0\nevicted 0\nahead 0\npressure 1\n".into());
            assert_eq!(world.read(File::GmemEvents, pool), one);
        }
    }
}

/// A full GPU spares what an owner keeps by `gmem.low`, and nobody who has a root more.
#[test]
fn who_has_more_than_is_kept_gives_way() {
    // The limit of the group, its `gmem.low` and its process's. They have 4 MiB and 4 KiB.
    const ALL: [(&str, &str, &str, bool); 9] = [
        ("max", "8M", "max", true),
        ("max", "2101249", "max", true),
        ("max", "2101248", "max", false),
        ("max", "0", "max", false),
        ("8M", "2M", "max", false),
        ("8M", "3M", "max", true),
        ("8M", "max", "2M", false),
        ("8M", "2M", "8M", false),
        // More than the limit is no claim.
        ("1M", "8M", "8M", false),
    ];
    for (limit, of_group, own, expected) in ALL {
        let (mut world, file, group) = limited("max", limit);
        let gpu = world.gpu;
        let add = |store: &mut Store| store.state().charge_managed(file, gpu, ROOT * 2);
        world.store.retry(add).unwrap();
        for (owner, low) in [(Owner::Group(group), of_group), (Owner::Proc(APP), own)] {
            let pool = world.pool(owner);
            assert_eq!(world.write(File::GmemLow, pool, low), Ok(()));
        }
        let spared = world.store.state().is_spared(file, gpu);
        assert_eq!(spared, expected, "{limit} {of_group} {own}");
    }
}

/// A limit that is about to be lowered holds while memory is evicted, and is not shown.
#[test]
fn a_lower_limit_is_in_force_before_it_is_stored() {
    let (mut world, file, group) = limited("max", "8M");
    let ticket = world.try_charge_managed(file, 4 << 20).unwrap();
    let (owner, gpu) = (Owner::Group(group), world.gpu);
    let pool = world.pool(owner);
    let mut begin = |file, text: &str| {
        let begun = world.store.state().trial_begin(file, pool, text.as_bytes());
        (begun, world.read(File::GmemLimit, pool).unwrap())
    };
    let before: String = "8388608\n".into();
    for text in ["8M", "max", "9M", "5M", "x", ""] {
        assert_eq!(begin(File::GmemLimit, text), (None, before.clone()));
    }
    assert_eq!(begin(File::TpcQuota, "1"), (None, before.clone()));
    let trial = Some((owner, gpu));
    assert_eq!(begin(File::GmemLimit, "2M"), (trial, before.clone()));
    let exceeds = |world: &mut World, more| {
        let state = world.store.state();
        state.exceeds_limit_of(owner, gpu, Bytes(more))
    };
    assert!(exceeds(&mut world, 0));
    assert_eq!(world.try_charge(file, 1), None, "it holds for others, too");
    assert_eq!(world.write(File::GmemLimit, pool, "2M"), Err(Error::Busy));
    let evict = |store: &mut Store| {
        let state = &mut store.state();
        state.recharge_managed(file, ticket, Bytes((2 << 20) - 4096))
    };
    assert_eq!(world.store.retry(evict), Ok(()));
    assert!(!exceeds(&mut world, 0) && exceeds(&mut world, 1));
    assert_eq!(world.write(File::GmemLimit, pool, "2M"), Ok(()));
    world.store.state().trial_end((owner, gpu));
    assert!(exceeds(&mut world, 1));
    assert_eq!(world.write(File::GmemLimit, pool, "max"), Ok(()));
    assert!(!exceeds(&mut world, 1));
}

#[test]
fn a_limit_is_not_lowered_below_what_is_charged() {
    let (mut world, file, group) = limited("max", "8192");
    assert!(world.try_charge_managed(file, 4096).is_some());
    for owner in [Owner::Proc(APP), Owner::Group(group)] {
        let pool = world.pool(owner);
        let before = world.read(File::GmemLimit, pool);
        for low in ["0", "8191"] {
            assert_eq!(world.write(File::GmemLimit, pool, low), Err(Error::Busy));
            assert_eq!(world.read(File::GmemLimit, pool), before);
        }
        assert_eq!(world.write(File::GmemLimit, pool, "8192"), Ok(()));
    }
    // A process brings its charge into a group with a lower limit. The limit may be raised.
    let small = world.group("small");
    let pool = world.pool(Owner::Group(small));
    assert_eq!(world.write(File::GmemLimit, pool, "100"), Ok(()));
    let moved = world.store.state().member_moved(APP, Some(small));
    assert_eq!(moved, Ok(()));
    world.store.check();
    assert_eq!(world.write(File::GmemLimit, pool, "99"), Err(Error::Busy));
    assert_eq!(world.write(File::GmemLimit, pool, "200"), Ok(()));
    assert_eq!(world.write(File::GmemLimit, pool, "max"), Ok(()));
}

#[test]
fn memory_of_unknown_size_is_granted() {
    let (mut world, file, _) = limited("4096", "4096");
    let foreign = Call {
        client: 99,
        ..memory(1)
    };
    let orphan = Call {
        parent: 99,
        ..memory(1)
    };
    let free = Call {
        action: rmapi::Action::Free,
        ..memory(1)
    };
    for call in [foreign, orphan, free] {
        let ticket = world.store.state().call_try_charge(file, &call, Some(1));
        assert_eq!(ticket, Ok(Some(Ticket::NONE)));
    }
}

#[test]
fn launches_are_summed_and_the_last_mask_is_shown() {
    let (mut world, file, group) = limited("max", "max");
    let mut more = Launches::ZERO;
    (more.launches, more.rewritten) = (3, 2);
    (more.narrowed, more.stalled, more.crowded) = (5, 1, 4);
    more.passed[0] = 1;
    let (gpu, mask) = (world.gpu, TpcMask::first(2));
    let pool = world.pool(Owner::Group(group));
    assert_eq!(world.read(File::TpcEffective, pool), Err(Error::Unknown));
    for _ in 0..2 {
        world
            .store
            .state()
            .launched(APP, gpu, &more, EffectiveTpcs::Mask(mask));
    }
    assert_eq!(world.read(File::TpcEffective, pool), Ok("0-1\n".into()));
    let text = world.read(File::ComputeStat, pool).unwrap();
    let counts = "launches 6\nrewritten 4\nsplit 0\natoms 0\npredicted 0\nmispredicted 0\n\
                  slip_narrowed 0\nslip_refused 0\nslip_saved_usec 0\ncrowded 8\n\
                  passed 2\npassed.old-form 2\n";
    assert!(text.contains(counts), "{text}");
    for line in text.lines() {
        assert!(parse::stat_line(line.as_bytes()).is_ok(), "{line}");
    }
    let events = world.read(File::ComputeEvents, pool).unwrap();
    assert!(
        events.contains("narrowed 10\nspared 0\nstalled 2\n"),
        "{events}"
    );
    world.store.state().file_close(file);
    let later = world.read(File::ComputeStat, pool).unwrap();
    assert!(
        later.contains("channels 0\nshared_channels 0\nowned 0\nunowned 0\nnative 0\ncooperative 0\nunseen 0\nforbidden 0\nlaunches 6\n"),
        "{later}"
    );
    assert_eq!(more.plus(&more).since(&more), more);
    assert_eq!(more.since(&more.plus(&more)), Launches::ZERO);
}

#[test]
fn a_file_names_its_own_clients_only() {
    let (mut world, file, group) = limited("max", "max");
    let (handle, gpu) = (u32::try_from(CLIENT).unwrap(), world.gpu);
    let tsg = u32::try_from(TSG).unwrap();
    let other = world.open(
        ProcKey {
            tgid: 501,
            start_time_ns: 1,
        },
        "",
    );
    let state = world.store.state();
    assert!(state.has_client(file, handle) && !state.has_client(other, handle));
    assert_eq!(state.gpu_of_object(file, handle, tsg), Some(gpu));
    assert_eq!(state.gpu_of_object(other, handle, tsg), None);
    assert_eq!(state.gpu_minor(gpu), Some(0));
    assert_eq!(state.group_of(APP), Some(group));
}
