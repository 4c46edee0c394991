// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests channels of other processes: named in a FIFO_DISABLE_CHANNELS, or in the same channel
//! group.

use super::*;
use crate::ids::GroupId;
use crate::rmapi::control::NOT_SUPPORTED;
use crate::rmapi::{INSUFFICIENT_PERMISSIONS, INSUFFICIENT_RESOURCES};

fn key(number: u32) -> ProcKey {
    ProcKey {
        tgid: 700 + number,
        start_time_ns: 1,
    }
}

/// Returns the client of a process. Its device, subdevice, channel group and channel have the next
/// handles.
fn client(number: u32) -> u64 {
    u64::from(1000 + 10 * number)
}

/// Processes that each have one channel in a channel group of their own.
struct Tenants {
    world: World,
    files: Vec<FileId>,
    group: GroupId,
}

impl Tenants {
    fn new(count: u32, in_group: u32) -> Self {
        let mut world = World::new(FeatureSet::all());
        let group = world.group("web");
        let mut files = Vec::new();
        for number in 0..count {
            let file = world.open(key(number), "");
            let top = client(number);
            for (object, parent, class, answer) in [
                (top, 0, 0x41, None),
                (top + 1, top, 0x80, Some(1)),
                (top + 2, top + 1, 0x2080, None),
                (top + 3, top + 1, 0xa06c, None),
                (top + 4, top + 3, 0xc86f, None),
            ] {
                let of = if class == 0x41 { 0 } else { top };
                let call = [(0, of), (4, parent), (8, object), (12, class), (16, 0x1000)];
                world
                    .store
                    .ioctl(file, escape::ALLOC, &words(32, &call), answer);
            }
            if number < in_group {
                let moved = world.store.state().member_moved(key(number), Some(group));
                assert_eq!(moved, Ok(()));
            }
            files.push(file);
        }
        Self {
            world,
            files,
            group,
        }
    }

    fn file(&self, number: u32) -> FileId {
        self.files[usize::try_from(number).unwrap()]
    }

    fn write(&mut self, owner: Owner, file: File, text: &str) -> Result<(), Error> {
        let pool = self.world.pool(owner);
        let prepared = self
            .world
            .store
            .state()
            .write_prepare(file, pool, text.as_bytes());
        prepared?;
        self.world.send_all();
        let outcome = self.world.store.state().write_commit();
        self.world.send_all();
        outcome
    }

    fn freeze(&mut self, owner: Owner, text: &str) -> Result<(), Error> {
        self.write(owner, File::ComputeFreeze, text)
    }

    /// Enables the channels of processes, as `by` does and RM accepts. Returns the flush.
    fn enable(&mut self, by: u32, of: core::ops::Range<u32>) -> Option<Flush> {
        let (file, params) = (self.file(by), list(of, false));
        let mut state = self.world.store.state();
        state.channels_told(file, &params);
        state.flush_of_file(file)
    }

    /// Dups the channel group of a process into the client of another.
    fn share(&mut self, of: u32, with: u32) {
        let (top, other) = (client(with), client(of));
        let call = [
            (0, top),
            (4, top + 1),
            (8, top + 5),
            (12, other),
            (16, other + 3),
        ];
        let file = self.file(with);
        self.world
            .store
            .ioctl(file, escape::DUP_OBJECT, &words(28, &call), None);
    }

    /// Creates a channel below that alias.
    fn make_guest(&mut self, number: u32) -> Result<(), u32> {
        let top = client(number);
        let call = [
            (0, top),
            (4, top + 5),
            (8, top + 6),
            (12, 0xc86f),
            (16, 0x1000),
        ];
        let bytes = words(32, &call);
        let call = rmapi::decode(escape::ALLOC, &bytes).unwrap().unwrap();
        let file = self.file(number);
        match self.world.store.state().call_refused(file, &call) {
            Some(status) => return Err(status),
            None => self.world.store.ioctl(file, escape::ALLOC, &bytes, None),
        }
        self.world.send_all();
        Ok(())
    }

    /// Returns which processes have a stopped channel.
    fn frozen(&mut self) -> Vec<u32> {
        let state = self.world.store.state();
        let frozen = state
            .objects
            .iter()
            .filter(|(_, object)| object.acked.run == crate::plan::Run::Frozen);
        let mut all: Vec<_> = frozen.map(|(key, _)| (key.handle - 1000) / 10).collect();
        all.sort_unstable();
        all
    }
}

/// Returns parameters that name a channel of each process.
fn list(of: core::ops::Range<u32>, disable: bool) -> Vec<u8> {
    let mut control = Control::disable_channels(0, 0, disable);
    for number in of {
        let top = u32::try_from(client(number)).unwrap();
        assert!(control.add_channel(top, top + 4));
    }
    control.params().to_vec()
}

/// Only the channels of a guest are in a channel group of another process.
#[test]
fn channels_of_guests_are_counted() {
    let mut all = Tenants::new(2, 2);
    let shared = |all: &mut Tenants, owner| {
        let pool = all.world.pool(owner);
        let stat = all.world.read(File::ComputeStat, pool).unwrap();
        let mut lines = stat.lines();
        let value = lines.find_map(|line| line.strip_prefix("shared_channels "));
        value.unwrap().parse::<u32>().unwrap()
    };
    let owners = [key(0), key(1)].map(Owner::Proc);
    let group = Owner::Group(all.group);
    all.share(0, 1);
    assert_eq!(owners.map(|owner| shared(&mut all, owner)), [0, 0]);
    assert_eq!(all.make_guest(1), Ok(()));
    assert_eq!(owners.map(|owner| shared(&mut all, owner)), [0, 1]);
    assert_eq!(shared(&mut all, group), 1);
    // The count goes with the channel, whoever has the channel group meanwhile.
    let file = all.file(0);
    all.world.store.state().file_close(file);
    all.world.store.check();
    assert_eq!(shared(&mut all, group), 1);
    let file = all.file(1);
    all.world.free_in(file, client(1), client(1) + 6);
    all.world.store.check();
    assert_eq!(shared(&mut all, group), 0);
}

#[test]
fn a_foreign_process_neither_stops_nor_starts_governed_channels() {
    // Two processes in a group, and two without a group or limit.
    let mut all = Tenants::new(4, 2);
    let refused = |all: &mut Tenants, by, of, disable| {
        let file = all.file(by);
        all.world
            .store
            .state()
            .channels_refused(file, &list(of, disable))
    };
    for disable in [true, false] {
        let no = Some(INSUFFICIENT_PERMISSIONS);
        assert_eq!(refused(&mut all, 2, 0..1, disable), no, "a stranger");
        assert_eq!(
            refused(&mut all, 0, 2..3, disable),
            no,
            "whom a group holds"
        );
        assert_eq!(refused(&mut all, 0, 0..1, disable), None, "its own");
        assert_eq!(refused(&mut all, 0, 0..2, disable), None, "its group's");
        assert_eq!(refused(&mut all, 0, 0..3, disable), no, "one of many");
        assert_eq!(
            refused(&mut all, 2, 2..4, disable),
            None,
            "as without gctgroup"
        );
        // An untracked client, for example one of the driver.
        assert_eq!(refused(&mut all, 0, 40..41, disable), no);
        assert_eq!(refused(&mut all, 2, 40..41, disable), None);
    }
    all.freeze(Owner::Proc(key(3)), "1").unwrap();
    let no = Some(INSUFFICIENT_PERMISSIONS);
    assert_eq!(refused(&mut all, 2, 3..4, false), no, "a limit of its own");
}

#[test]
fn channels_enabled_by_another_process_are_stopped_again() {
    const COUNT: u32 = 20;
    let mut all = Tenants::new(COUNT, COUNT);
    all.freeze(Owner::Group(all.group), "1").unwrap();
    assert_eq!(all.frozen(), (0..COUNT).collect::<Vec<_>>());
    let flush = all.enable(0, 0..COUNT).unwrap();
    assert_eq!(all.frozen(), []);
    // Before the ioctl returns.
    let mut sent = 0;
    while let Next::Send(control, in_flight) = all.world.store.state().next_control(&flush) {
        all.world
            .store
            .state()
            .control_done(&in_flight, &control, Ok(()));
        sent += control.channels();
    }
    assert_eq!(sent, usize::try_from(COUNT).unwrap());
    assert_eq!(all.frozen(), (0..COUNT).collect::<Vec<_>>());
    assert_eq!(all.enable(0, 0..0), None);
}

#[test]
fn untracked_channels_are_not_started_under_a_limit() {
    let mut all = Tenants::new(1, 0);
    let file = all.file(0);
    // An untracked alias of its channel group, from before it had a limit.
    let call = [(0, client(0)), (4, client(0) + 9), (8, 0xa06c_0101)];
    let call = rmapi::decode(escape::CONTROL, &words(32, &call))
        .unwrap()
        .unwrap();
    assert_eq!(all.world.store.state().call_refused(file, &call), None);
    all.freeze(Owner::Proc(key(0)), "1").unwrap();
    let refused = all.world.store.state().call_refused(file, &call);
    assert_eq!(refused, Some(INSUFFICIENT_RESOURCES));
}

#[test]
fn a_freeze_that_would_stop_a_sharer_is_refused() {
    let mut all = Tenants::new(3, 2);
    // The first creates the group in which the others are guests, as with MPS.
    for guest in 1..3 {
        all.share(0, guest);
        all.make_guest(guest).unwrap();
    }
    for number in 0..3 {
        let refused = all.freeze(Owner::Proc(key(number)), "1");
        assert_eq!(refused, Err(Error::Unsupported), "{number}");
        assert_eq!(all.frozen(), [], "{number}");
    }
    // Without the third process.
    assert_eq!(
        all.freeze(Owner::Group(all.group), "1"),
        Err(Error::Unsupported)
    );
    let moved = all
        .world
        .store
        .state()
        .member_moved(key(2), Some(all.group));
    assert_eq!(moved, Ok(()));
    all.freeze(Owner::Group(all.group), "1").unwrap();
    assert_eq!(all.frozen(), [0, 1, 1, 2, 2]);
}

#[test]
fn an_alias_without_channels_vetoes_no_freeze() {
    let mut all = Tenants::new(2, 0);
    all.share(0, 1);
    all.freeze(Owner::Proc(key(0)), "1").unwrap();
    assert_eq!(all.frozen(), [0]);
    // A later sharer must run, so the frozen process creates no channel that could not be stopped.
    all.make_guest(1).unwrap();
    assert_eq!(all.frozen(), [0]);
    let flush = all.enable(1, 0..1).unwrap();
    let Next::Send(control, in_flight) = all.world.store.state().next_control(&flush) else {
        panic!("nothing is sent");
    };
    all.world
        .store
        .state()
        .control_done(&in_flight, &control, Ok(()));
    assert_eq!(all.frozen(), [0]);
}

#[test]
fn a_frozen_guest_makes_no_channel_that_runs() {
    let mut all = Tenants::new(2, 0);
    all.share(0, 1);
    all.freeze(Owner::Proc(key(1)), "1").unwrap();
    assert_eq!(all.make_guest(1), Err(NOT_SUPPORTED));
    all.freeze(Owner::Proc(key(1)), "0").unwrap();
    all.make_guest(1).unwrap();
}

#[test]
fn a_guest_has_the_makers_time_slice() {
    let mut all = Tenants::new(2, 0);
    let slice = |all: &mut Tenants, number, text| {
        all.write(Owner::Proc(key(number)), File::ComputeTimeslice, text)
    };
    all.share(0, 1);
    slice(&mut all, 1, "500").unwrap();
    assert_eq!(all.make_guest(1), Err(NOT_SUPPORTED));
    slice(&mut all, 1, "default").unwrap();
    all.make_guest(1).unwrap();
    assert_eq!(slice(&mut all, 1, "500"), Err(Error::Unsupported));
    // The maker's limit is in force, and as tight.
    slice(&mut all, 0, "400").unwrap();
    slice(&mut all, 1, "500").unwrap();
    assert_eq!(slice(&mut all, 1, "300"), Err(Error::Unsupported));
}

/// Checks it because the sender of a control may be preempted for long.
#[test]
fn a_control_in_flight_blocks_no_other_process() {
    let mut all = Tenants::new(3, 3);
    let [first, second, third] = [0, 1, 2].map(|number| all.file(number));
    let pool = all.world.pool(Owner::Group(all.group));
    let mut state = all.world.store.state();
    let prepared = state.write_prepare(File::ComputeFreeze, pool, b"1");
    assert_eq!(prepared, Ok(crate::engine::Prepared::Pending));
    let flush_of = |state: &mut crate::state::State<'_>, number| {
        state.flush_of(Some(Owner::Proc(key(number))))
    };
    let flush = flush_of(&mut state, 0);
    let Next::Send(control, in_flight) = state.next_control(&flush) else {
        panic!("nothing is sent");
    };
    assert!(state.wait_for(first).is_some(), "a free of its own waits");
    assert_eq!(
        (state.wait_for(second), state.wait_for(third)),
        (None, None)
    );
    // An ioctl of another process, and the work item.
    let flush = flush_of(&mut state, 1);
    assert!(matches!(state.next_control(&flush), Next::Send(..)));
    assert!(matches!(state.next_control(&Flush::ALL), Next::Send(..)));
    assert_eq!(state.next_control(&Flush::ALL), Next::Nothing);
    state.control_done(&in_flight, &control, Ok(()));
    assert_eq!(state.wait_for(first), None);
}
