// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests tenants that lie: only their own account, limits and objects may change.

mod exports;
mod sharers;
mod shares;

use super::*;
use crate::engine::{Flush, Next};
use crate::rmapi::control::Control;
use crate::rmapi::Call;
use crate::units::Us;
use std::vec;

const NEIGHBOUR: ProcKey = ProcKey {
    tgid: 600,
    start_time_ns: 2,
};

/// Handle of the neighbour's client.
const THEIRS: u64 = 11;

/// `NV_ERR_INVALID_ARGUMENT`, for an ioctl on the wrong file.
const INVALID_ARGUMENT: u32 = 0x1f;

impl World {
    /// Allocates a client of the neighbour with a device, a channel group and memory.
    fn neighbour(&mut self) -> FileId {
        let file = self.open(NEIGHBOUR, "");
        for (parent, object, class, answer) in [
            (0, THEIRS, 0x41, None),
            (THEIRS, DEVICE, 0x80, Some(1)),
            (DEVICE, TSG, 0xa06c, None),
            (DEVICE, MEMORY, 0x40, Some(8192)),
        ] {
            let client = if class == 0x41 { 0 } else { THEIRS };
            let call = words(
                32,
                &[
                    (0, client),
                    (4, parent),
                    (8, object),
                    (12, class),
                    (16, 0x1000),
                ],
            );
            self.store.ioctl(file, escape::ALLOC, &call, answer);
        }
        file
    }

    /// Returns the charge of a process: the text of `compute.stat`, and its memory.
    fn account(&mut self, proc: ProcKey) -> [Result<String, Error>; 3] {
        let pool = self.pool(Owner::Proc(proc));
        [File::ComputeStat, File::GmemCurrent, File::GmemPeak].map(|file| self.read(file, pool))
    }

    /// Sends all controls, which RM accepts. Returns the time slices that were set.
    fn send_all(&mut self) -> Vec<u64> {
        let mut set = Vec::new();
        let anybody = Flush::ALL;
        while let Next::Send(mut control, in_flight) = self.store.state().next_control(&anybody) {
            match control.command {
                0xa06c_0104 => {
                    control = Control::set_timeslice(control.client, control.object, Us(9))
                }
                0xa06c_0103 => set.push(control.timeslice().get()),
                _ => {}
            }
            let mut state = self.store.state();
            state.control_done(&in_flight, &control, Ok(()));
            self.store.check();
        }
        set
    }

    /// Writes the time slice of the process.
    fn limit(&mut self, text: &str) -> Result<(), Error> {
        let pool = self.pool(Owner::Proc(APP));
        let mut state = self.store.state();
        state.write_prepare(File::ComputeTimeslice, pool, text.as_bytes())?;
        self.send_all();
        let outcome = self.store.state().write_commit();
        self.send_all();
        outcome
    }

    /// Runs an ioctl for which `rm_ioctl()` returns `result`, whatever its structure says.
    fn ioctl_with_result(
        &mut self,
        file: FileId,
        escape: u32,
        bytes: &[u8],
        result: u32,
    ) -> Result<(), Error> {
        let call = rmapi::decode(escape, bytes).unwrap().unwrap();
        let enter = |store: &mut Store| store.state().call_enter(file, &call);
        let ticket = self.store.retry(enter).unwrap();
        let call = call.returned(escape, bytes, result);
        let leave = |store: &mut Store| store.state().call_leave(file, &call, ticket, None);
        let outcome = self.store.retry(leave);
        self.store.check();
        outcome
    }
}

fn world_with_memory() -> (World, FileId, FileId) {
    let mut world = World::new(FeatureSet::NONE.with(Feature::GmemCharge));
    let own = world.open(APP, "");
    world.cuda(own);
    let theirs = world.neighbour();
    (world, own, theirs)
}

#[test]
fn a_forged_status_changes_nothing() {
    let (mut world, own, _) = world_with_memory();
    let before = [world.account(APP), world.account(NEIGHBOUR)];
    let device = world.open(APP, "");
    // Each structure says `NV_OK`, but RM has refused the ioctl for its file.
    let forged = [
        (
            escape::ALLOC_MEMORY,
            56,
            vec![(0, CLIENT), (4, DEVICE), (8, MEMORY), (12, 0x3e)],
        ),
        (
            escape::ALLOC_MEMORY,
            56,
            vec![(0, THEIRS), (4, DEVICE), (8, MEMORY), (12, 0x3e)],
        ),
        (
            escape::ALLOC,
            32,
            vec![(0, CLIENT), (4, DEVICE), (8, DEVICE), (12, 0x3e)],
        ),
        (
            escape::ALLOC_OBJECT,
            20,
            vec![(0, CLIENT), (4, CLIENT), (8, DEVICE), (12, 0x80)],
        ),
        (escape::FREE, 16, vec![(0, CLIENT), (8, DEVICE)]),
        (escape::FREE, 16, vec![(0, THEIRS), (8, THEIRS)]),
    ];
    for (escape, size, fields) in forged {
        for file in [own, device] {
            let bytes = words(size, &fields);
            let outcome = world.ioctl_with_result(file, escape, &bytes, INVALID_ARGUMENT);
            assert_eq!(outcome, Ok(()), "{escape:#x}");
            let now = [world.account(APP), world.account(NEIGHBOUR)];
            assert_eq!(now, before, "{escape:#x}");
        }
    }
}

#[test]
fn a_client_is_known_through_its_own_file_alone() {
    let (mut world, own, _) = world_with_memory();
    let before = world.account(NEIGHBOUR);
    // RM would refuse each of them. Even if it did not, the neighbour would not pay.
    for (escape, size, fields) in [
        (
            escape::ALLOC,
            32,
            vec![(0, THEIRS), (4, DEVICE), (8, 70), (12, 0xa06c)],
        ),
        (
            escape::ALLOC,
            32,
            vec![(0, THEIRS), (4, DEVICE), (8, MEMORY), (12, 0x3e)],
        ),
        (escape::FREE, 16, vec![(0, THEIRS), (8, MEMORY)]),
        (escape::FREE, 16, vec![(0, THEIRS), (8, THEIRS)]),
        (
            escape::DUP_OBJECT,
            28,
            vec![
                (0, THEIRS),
                (4, DEVICE),
                (8, 70),
                (12, CLIENT),
                (16, MEMORY),
            ],
        ),
    ] {
        let bytes = words(size, &fields);
        let _ = world.ioctl_with_result(own, escape, &bytes, 0);
        assert_eq!(world.account(NEIGHBOUR), before, "{escape:#x}");
    }
    let events = world.read(File::Events, Scope::Root).unwrap();
    assert!(events.contains("client 2\n"), "{events}");
}

#[test]
fn a_handle_that_another_file_gets_next_is_that_files() {
    let (mut world, own, theirs) = world_with_memory();
    // The neighbour's client is freed, and another client gets its handle before that is recorded.
    let free = words(16, &[(0, THEIRS), (8, THEIRS)]);
    let call = rmapi::decode(escape::FREE, &free).unwrap().unwrap();
    let ticket = world.store.state().call_enter(theirs, &call).unwrap();
    let again = words(32, &[(8, THEIRS), (12, 0x41)]);
    world.store.ioctl(own, escape::ALLOC, &again, None);
    let leave = |store: &mut Store| store.state().call_leave(theirs, &call, ticket, None);
    world.store.retry(leave).unwrap();
    world.store.check();
    // As the source of a dup, the handle names the new client's object.
    let space = world.store.state().objects.space_of_any(11);
    assert!(space.is_some());
    assert_eq!(space, world.store.state().objects.space(own, 11));
    world.store.state().file_close(own);
    assert_eq!(world.store.state().objects.space_of_any(11), None);
}

/// A daemon knows of clients what their processes say, and two may claim one.
#[test]
fn a_handle_that_another_file_claims_names_its_owners_objects_to_them() {
    let (mut world, _, theirs) = world_with_memory();
    let before = world.account(NEIGHBOUR);
    let liar = world.open(ProcKey { tgid: 601, ..APP }, "");
    // The neighbour may have an object with the second handle, of a class that nobody follows.
    const UNKNOWN: u64 = 90;
    for (client, parent, object, class, answer) in [
        (0, 0, THEIRS, 0x41, None),
        (THEIRS, THEIRS, DEVICE, 0x80, Some(1)),
        (THEIRS, DEVICE, MEMORY, 0x40, Some(1 << 30)),
        (THEIRS, DEVICE, UNKNOWN, 0x40, Some(1 << 30)),
    ] {
        let fields = [(0, client), (4, parent), (8, object), (12, class), (16, 1)];
        let call = words(32, &fields);
        world.store.ioctl(liar, escape::ALLOC, &call, answer);
    }
    for (alias, source) in [(70, MEMORY), (71, UNKNOWN)] {
        let fields = [
            (0, THEIRS),
            (4, DEVICE),
            (8, alias),
            (12, THEIRS),
            (16, source),
        ];
        let dup = words(28, &fields);
        world.store.ioctl(theirs, escape::DUP_OBJECT, &dup, None);
    }
    world.store.state().file_close(liar);
    world.store.check();
    assert_eq!(world.account(NEIGHBOUR), before);
    world.free_in(theirs, THEIRS, MEMORY);
    assert_eq!(world.account(NEIGHBOUR), before);
}

/// Lets the neighbour dup our memory while we free ours.
fn dup_race(world: &mut World, own: FileId, theirs: FileId, status: u64) {
    let dup = [
        (0, THEIRS),
        (4, DEVICE),
        (8, 70),
        (12, CLIENT),
        (16, MEMORY),
    ];
    let decode = |status| {
        let bytes = words(28, &[&dup[..], &[(24, status)]].concat());
        rmapi::decode(escape::DUP_OBJECT, &bytes).unwrap().unwrap()
    };
    let call: Call = decode(0);
    let enter = |store: &mut Store| store.state().call_enter(theirs, &call);
    let ticket = world.store.retry(enter).unwrap();
    world.free(own, MEMORY, 0);
    world.store.check();
    let call = decode(status);
    let leave = |store: &mut Store| store.state().call_leave(theirs, &call, ticket, None);
    world.store.retry(leave).unwrap();
    world.store.check();
}

#[test]
fn an_alias_is_charged_when_rm_has_created_it() {
    let (mut world, own, theirs) = world_with_memory();
    let before = world.account(NEIGHBOUR);
    dup_race(&mut world, own, theirs, 0x57);
    assert_eq!(world.account(NEIGHBOUR), before, "peak included");
    let [_, current, _] = world.account(APP);
    assert_eq!(current, Ok("0\n".into()));

    let (mut world, own, theirs) = world_with_memory();
    dup_race(&mut world, own, theirs, 0);
    let [_, current, peak] = world.account(NEIGHBOUR);
    assert_eq!(
        (current, peak),
        (Ok("12288\n".into()), Ok("12288\n".into()))
    );
    world.store.state().file_close(theirs);
    world.store.check();
    assert_eq!(world.account(NEIGHBOUR)[1], Err(Error::Gone));
}

#[test]
fn concurrent_dups_are_charged_once() {
    for statuses in [[0, 0], [0x57, 0], [0, 0x57], [0x57, 0x57]] {
        let (mut world, own, theirs) = world_with_memory();
        let decode = |object: u64, status: u64| {
            let fields = [
                (0, THEIRS),
                (4, DEVICE),
                (8, object),
                (12, CLIENT),
                (16, MEMORY),
                (24, status),
            ];
            let call = rmapi::decode(escape::DUP_OBJECT, &words(28, &fields));
            call.unwrap().unwrap()
        };
        let tickets = [70, 71].map(|object| {
            let call = decode(object, 0);
            let enter = |store: &mut Store| store.state().call_enter(theirs, &call);
            world.store.retry(enter).unwrap()
        });
        world.free(own, MEMORY, 0);
        for ((object, status), ticket) in [70, 71].into_iter().zip(statuses).zip(tickets) {
            let call = decode(object, status);
            let leave = |store: &mut Store| store.state().call_leave(theirs, &call, ticket, None);
            world.store.retry(leave).unwrap();
            world.store.check();
        }
        let made = statuses.contains(&0);
        let current = if made { "12288\n" } else { "8192\n" };
        assert_eq!(
            world.account(NEIGHBOUR)[1],
            Ok(current.into()),
            "{statuses:?}"
        );
        assert_eq!(world.account(APP)[1], Ok("0\n".into()));
    }
}

/// Checks that an override is seen while a free of the same tenant runs, and fails.
#[test]
fn a_failed_free_hides_no_override() {
    let features = FeatureSet::NONE
        .with(Feature::Freeze)
        .with(Feature::Timeslice);
    let mut world = World::new(features);
    let file = world.open(APP, "");
    world.cuda(file);
    world.alloc(file, DEVICE, 60, 0x2080, Some(1));
    assert_eq!(world.limit("300"), Ok(()));
    let pool = world.pool(Owner::Proc(APP));
    let prepared = world
        .store
        .state()
        .write_prepare(File::ComputeFreeze, pool, b"1");
    assert!(prepared.is_ok());
    world.send_all();
    assert_eq!(world.store.state().write_commit(), Ok(()));

    for (freed, status) in [(TSG, 0x1f), (CHANNEL, 0x1f), (CLIENT, 0x1f)] {
        let free = words(16, &[(0, CLIENT), (8, freed), (12, status)]);
        let call = rmapi::decode(escape::FREE, &free).unwrap().unwrap();
        let enter = |store: &mut Store| store.state().call_enter(file, &call);
        let ticket = world.store.retry(enter).unwrap();
        // It schedules the group and sets its time slice.
        for command in [0xa06c_0101, 0xa06c_0103] {
            let control = words(32, &[(0, CLIENT), (4, TSG), (8, command)]);
            world.store.ioctl(file, escape::CONTROL, &control, None);
        }
        let before = world.send_all().len();
        let left = world.store.state().call_leave(file, &call, ticket, None);
        assert_eq!(left, Ok(()));
        let mut told = Vec::new();
        let anybody = Flush::ALL;
        while let Next::Send(control, in_flight) = world.store.state().next_control(&anybody) {
            told.push(control.command);
            world
                .store
                .state()
                .control_done(&in_flight, &control, Ok(()));
        }
        let freezes = told
            .iter()
            .filter(|command| **command == 0x2080_110b)
            .count();
        assert_eq!(freezes, 1, "{freed}: {told:x?}");
        if freed != CHANNEL {
            assert_eq!((before, told.contains(&0xa06c_0103)), (0, true), "{freed}");
        }
        world.store.check();
    }
}

#[test]
fn a_device_without_parameters_is_on_the_first_gpu() {
    let mut world = World::new(FeatureSet::NONE);
    let file = world.open(APP, "");
    world.alloc(file, 0, CLIENT, 0x41, None);
    let device = words(20, &[(0, CLIENT), (4, CLIENT), (8, DEVICE), (12, 0x80)]);
    world
        .store
        .ioctl(file, escape::ALLOC_OBJECT, &device, Some(1));
    world.alloc(file, DEVICE, TSG, 0xa06c, None);
    let [stat, ..] = world.account(APP);
    assert_eq!(
        stat,
        Ok("channel_groups 1\nchannels 0\nshared_channels 0\n".into())
    );
}
