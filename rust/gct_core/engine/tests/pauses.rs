// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that owners pause under `compute.max` while they have channels with their tenant's ring.

mod subdevice;

use super::*;
use crate::engine::{Flush, Next, Pausing};
use crate::objects::ObjectKey;
use crate::rmapi::control::Control;
use crate::rmapi::Handle;
use crate::units::Ns;

const FEATURES: FeatureSet = FeatureSet::NONE
    .with(Feature::ChannelOwned)
    .with(Feature::Bandwidth)
    .with(Feature::Freeze);

const MS: u64 = 1_000_000;
const LIMIT: &str = "20ms 100ms";
const SUBDEVICE: u64 = 60;

/// A world in which time passes.
struct Timed {
    world: World,
    now: u64,
}

impl Timed {
    fn new() -> Self {
        let world = World::new(FEATURES);
        Self { world, now: 0 }
    }

    /// Opens the driver, and makes a channel through which it can be stopped.
    fn open(&mut self, proc: ProcKey) -> FileId {
        let file = self.world.open(proc, "");
        self.world.cuda(file);
        self.world.alloc(file, DEVICE, SUBDEVICE, 0x2080, None);
        file
    }

    fn write(&mut self, owner: Owner, text: &str) {
        let pool = self.world.pool(owner);
        assert_eq!(self.world.write(File::ComputeMax, pool, text), Ok(()));
    }

    /// Passes time. Returns what is due.
    fn pass(&mut self, ms: u64) -> Pausing {
        self.now += ms * MS;
        let pausing = self.world.store.state().pass_pauses(Ns(self.now));
        self.world.store.check();
        pausing
    }

    /// Sends what is dirty. Returns how many channels were stopped, and how many were let on.
    fn send(&mut self) -> [usize; 2] {
        let mut counts = [0, 0];
        loop {
            let next = self.world.store.state().next_control(&Flush::ALL);
            let Next::Send(control, in_flight) = next else {
                return counts;
            };
            let (stops, ..) = control.channel(0);
            counts[usize::from(!stops)] += control.channels();
            let mut state = self.world.store.state();
            state.control_done(&in_flight, &control, Ok(()));
        }
    }

    /// Passes time, and sends what follows.
    fn turn(&mut self, ms: u64) -> [usize; 2] {
        self.pass(ms);
        self.send()
    }

    fn due(&mut self) -> Option<u64> {
        self.pass(0).due.map(|due| due.get() / MS)
    }

    fn native(&mut self, owner: Owner) -> String {
        let pool = self.world.pool(owner);
        let stat = self.world.read(File::ComputeStat, pool).unwrap();
        let mut lines = stat.lines();
        let line = lines.find_map(|line| line.strip_prefix("native "));
        String::from(line.unwrap())
    }
}

fn handle(number: u64) -> Handle {
    Handle::try_from(number).unwrap()
}

fn other(number: u32) -> ProcKey {
    ProcKey {
        tgid: 600 + number,
        start_time_ns: 1,
    }
}

#[test]
fn a_channel_from_before_pauses_for_its_share() {
    let mut timed = Timed::new();
    let file = timed.open(APP);
    assert_eq!((timed.due(), timed.send()), (None, [0, 0]));
    timed.write(Owner::Proc(APP), LIMIT);
    assert!(timed.world.store.state().has_new_pauses());
    assert_eq!((timed.turn(1000), timed.due()), ([0, 0], Some(20)));
    for _ in 0..3 {
        assert_eq!((timed.turn(19), timed.turn(1)), ([0, 0], [1, 0]));
        // 2 ms until it was seen that it stood.
        timed.pass(2);
        assert_eq!((timed.due(), timed.send()), (Some(88), [0, 0]));
        assert_eq!((timed.turn(87), timed.turn(1)), ([0, 0], [0, 1]));
    }
    timed.turn(20);
    timed.world.free(file, CHANNEL, 0);
    assert_eq!((timed.due(), timed.send()), (None, [0, 0]));
}

/// Returns the owners that may pause.
fn pausing(timed: &mut Timed) -> Vec<Owner> {
    let state = timed.world.store.state();
    state.pausing().map(|(owner, _)| owner).collect()
}

/// Time passes for owners that may pause, and not for a thousand others.
#[test]
fn owners_that_do_not_pause_cost_nothing() {
    let mut timed = Timed::new();
    let file = timed.open(APP);
    for number in 1..40 {
        timed.open(other(number));
        // A limit alone is no reason, either.
        let state = timed.world.store.state();
        assert_eq!(state.pausing().count(), 0);
    }
    let group = timed.world.group("web");
    timed.write(Owner::Group(group), LIMIT);
    assert_eq!(pausing(&mut timed), []);
    timed.write(Owner::Proc(APP), LIMIT);
    timed.write(Owner::Proc(other(7)), LIMIT);
    assert_eq!(pausing(&mut timed).len(), 2);
    // A member's channels are its group's.
    let moved = timed.world.store.state().member_moved(APP, Some(group));
    assert_eq!((moved, pausing(&mut timed).len()), (Ok(()), 3));
    timed.pass(0);
    assert_eq!(pausing(&mut timed).len(), 3);
    // Without channels, or without a limit, they are looked at once more.
    timed.world.free(file, CHANNEL, 0);
    timed.write(Owner::Proc(other(7)), "max");
    timed.pass(1);
    assert_eq!(pausing(&mut timed), []);
    timed.write(Owner::Proc(other(8)), LIMIT);
    assert_eq!(timed.world.store.state().gpu_remove(1), Ok(()));
    assert_eq!((pausing(&mut timed), timed.due()), (Vec::new(), None));
}

/// A pause lasts as long as its channels took to stop asks for.
#[test]
fn a_pause_begins_when_the_last_channel_has_stopped() {
    let mut timed = Timed::new();
    timed.open(APP);
    timed.write(Owner::Proc(APP), LIMIT);
    timed.pass(0);
    timed.pass(20);
    let next = timed.world.store.state().next_control(&Flush::ALL);
    let Next::Send(control, in_flight) = next else {
        panic!("nothing is sent");
    };
    timed.pass(30);
    assert_eq!(timed.due(), Some(1), "the control is in flight");
    let mut state = timed.world.store.state();
    state.control_done(&in_flight, &control, Ok(()));
    timed.pass(0);
    assert_eq!(
        timed.due(),
        Some(200),
        "four times the 50 ms for which it ran"
    );
}

#[test]
fn a_write_ends_a_pause_at_once() {
    let mut timed = Timed::new();
    timed.open(APP);
    timed.write(Owner::Proc(APP), LIMIT);
    timed.pass(0);
    assert_eq!(timed.turn(20), [1, 0]);
    timed.write(Owner::Proc(APP), "max");
    assert_eq!((timed.send(), timed.due()), ([0, 1], None));
    // A frozen owner stays frozen.
    timed.write(Owner::Proc(APP), LIMIT);
    timed.pass(0);
    timed.turn(20);
    let pool = timed.world.pool(Owner::Proc(APP));
    let frozen = timed.world.write(File::ComputeFreeze, pool, "1");
    timed.write(Owner::Proc(APP), "max");
    assert_eq!((frozen, timed.send()), (Ok(()), [0, 0]));
}

#[test]
fn an_owner_without_channels_from_before_does_not_pause() {
    let mut timed = Timed::new();
    let file = timed.open(APP);
    let (client, channel) = (handle(CLIENT), handle(CHANNEL));
    let mut state = timed.world.store.state();
    state.owned_made(file, client, channel, true);
    // Once is enough.
    state.owned_made(file, client, channel, true);
    assert_eq!(timed.native(Owner::Proc(APP)), "0");
    timed.write(Owner::Proc(APP), LIMIT);
    timed.pass(0);
    assert_eq!((timed.turn(1000), timed.due()), ([0, 0], None));
    // The channel of the driver's pauses beside one of the tenant's.
    timed.world.alloc(file, TSG, CHANNEL + 1, 0xc86f, None);
    assert_eq!(timed.native(Owner::Proc(APP)), "1");
    assert!(timed.world.store.state().has_new_pauses());
    timed.pass(0);
    assert!(timed.pass(20).concerns_owned);
    let terms = timed.world.store.state().launch_terms(file, 1).unwrap();
    assert_eq!((timed.send(), terms.limits.frozen), ([2, 0], true));
    timed.world.free(file, CHANNEL + 1, 0);
    assert!(timed.world.store.state().has_new_pauses());
    assert!(timed.pass(0).concerns_owned);
    assert_eq!((timed.send(), timed.due()), ([0, 1], None));
}

#[test]
fn members_pause_with_their_group_and_for_themselves() {
    let mut timed = Timed::new();
    let group = timed.world.group("web");
    let procs = [APP, other(1)];
    for proc in procs {
        timed.open(proc);
        let mut state = timed.world.store.state();
        assert_eq!(state.member_moved(proc, Some(group)), Ok(()));
    }
    timed.open(other(2));
    assert_eq!(timed.native(Owner::Group(group)), "2");
    timed.write(Owner::Group(group), "50ms 100ms");
    timed.write(Owner::Proc(APP), LIMIT);
    timed.pass(0);
    assert_eq!((timed.turn(20), timed.turn(2)), ([1, 0], [0, 0]));
    // The group has run for 50 ms, with the pause of its member.
    assert_eq!(timed.turn(28), [1, 0]);
    // The member's turn begins, but its group pauses.
    assert_eq!((timed.turn(0), timed.turn(49)), ([0, 0], [0, 0]));
    assert_eq!(timed.turn(1), [0, 1]);
    assert_eq!(timed.turn(10), [0, 1], "after 88 ms");
    assert_eq!((timed.turn(19), timed.turn(1)), ([0, 0], [1, 0]));
    // Who leaves the group in its pause goes on, and who comes pauses.
    assert_eq!(timed.turn(20), [1, 0]);
    for (proc, to, sent) in [(other(1), None, [0, 1]), (other(2), Some(group), [1, 0])] {
        let moved = timed.world.store.state().member_moved(proc, to);
        assert_eq!((moved, timed.send()), (Ok(()), sent));
    }
}

/// The 30 ms that a member's turn has left begin when its group goes on.
#[test]
fn a_turn_lasts_while_the_group_runs() {
    let mut timed = Timed::new();
    let group = timed.world.group("web");
    timed.open(APP);
    let moved = timed.world.store.state().member_moved(APP, Some(group));
    assert_eq!(moved, Ok(()));
    timed.write(Owner::Group(group), "50ms 100ms");
    timed.write(Owner::Proc(APP), "80ms 100ms");
    timed.pass(0);
    assert_eq!((timed.turn(50), timed.turn(0)), ([1, 0], [0, 0]));
    assert_eq!((timed.turn(49), timed.turn(1)), ([0, 0], [0, 1]));
    assert_eq!((timed.turn(29), timed.turn(1)), ([0, 0], [1, 0]));
}

/// Channels in a channel group that strangers share run on.
#[test]
fn a_pause_stops_no_stranger() {
    let mut timed = Timed::new();
    let file = timed.open(APP);
    timed.write(Owner::Proc(APP), LIMIT);
    timed.pass(0);
    let guest = timed.world.open(other(1), "");
    let client = 1000;
    for (object, parent, class, answer) in
        [(client, 0, 0x41, None), (client + 1, client, 0x80, Some(1))]
    {
        let of = if class == 0x41 { 0 } else { client };
        let call = [(0, of), (4, parent), (8, object), (12, class), (16, 0x1000)];
        let store = &mut timed.world.store;
        store.ioctl(guest, escape::ALLOC, &words(32, &call), answer);
    }
    let dup = [
        (0, client),
        (4, client + 1),
        (8, client + 5),
        (12, CLIENT),
        (16, TSG),
    ];
    let store = &mut timed.world.store;
    store.ioctl(guest, escape::DUP_OBJECT, &words(28, &dup), None);
    assert_eq!(timed.turn(20), [1, 0], "the guest has no channel");
    timed.turn(1);
    timed.turn(1000);
    let channel = [
        (0, client),
        (4, client + 5),
        (8, client + 6),
        (12, 0xc86f),
        (16, 0x1000),
    ];
    let store = &mut timed.world.store;
    store.ioctl(guest, escape::ALLOC, &words(32, &channel), None);
    assert_eq!(timed.turn(20), [0, 0]);
    let state = timed.world.store.state();
    let key = state.key_of(file, handle(CLIENT), handle(CHANNEL)).unwrap();
    let runs = state.objects.get(ObjectKey { ..key }).unwrap().acked.run;
    assert_eq!(runs, crate::plan::Run::Runs);
}

#[test]
fn a_tenant_cannot_end_its_pause() {
    let mut timed = Timed::new();
    let file = timed.open(APP);
    timed.write(Owner::Proc(APP), LIMIT);
    timed.pass(0);
    let refused = |timed: &mut Timed, disables| {
        let mut control = Control::disable_channels(0, 0, disables);
        assert!(control.add_channel(handle(CLIENT), handle(CHANNEL)));
        let state = timed.world.store.state();
        state.channels_refused(file, control.params())
    };
    assert_eq!(refused(&mut timed, false), None);
    timed.turn(20);
    let denied = Some(rmapi::INSUFFICIENT_PERMISSIONS);
    assert_eq!(refused(&mut timed, false), denied);
    assert_eq!(refused(&mut timed, true), None);
    timed.write(Owner::Proc(APP), "max");
    assert_eq!(refused(&mut timed, false), None);
}

/// Nothing stops the channels for ten seconds, then the pause begins all the same.
#[test]
fn a_tenant_that_never_settles_stands_for_it() {
    let mut timed = Timed::new();
    timed.open(APP);
    timed.write(Owner::Proc(APP), LIMIT);
    timed.pass(0);
    timed.pass(20);
    // Nothing is sent. After ten seconds the pause begins all the same.
    timed.pass(9999);
    assert_eq!(timed.due(), Some(1));
    timed.pass(1);
    assert_eq!(timed.due(), Some(4 * 10_020));
}

/// Members of a group under [`LIMIT`], each with a channel, whose controls take time.
struct Crowd {
    timed: Timed,
    members: Vec<Member>,
    /// For how long any of them has run.
    ran: u64,
}

struct Member {
    channel: ObjectKey,
    runs: bool,
    ran: u64,
    /// How often it was let on.
    turns: u32,
}

impl Crowd {
    fn new(count: u32) -> Self {
        let mut timed = Timed::new();
        let group = timed.world.group("web");
        let mut members = Vec::new();
        for number in 0..count {
            let file = timed.open(other(number));
            let mut state = timed.world.store.state();
            let moved = state.member_moved(other(number), Some(group));
            assert_eq!(moved, Ok(()));
            let channel = state.key_of(file, handle(CLIENT), handle(CHANNEL)).unwrap();
            members.push(Member {
                channel,
                runs: true,
                ran: 0,
                turns: 0,
            });
        }
        timed.write(Owner::Group(group), LIMIT);
        timed.pass(0);
        let ran = 0;
        Self {
            timed,
            members,
            ran,
        }
    }

    fn wait(&mut self, time: u64) {
        self.timed.now += time;
        self.ran += u64::from(self.members.iter().any(|member| member.runs)) * time;
        for member in self.members.iter_mut().filter(|member| member.runs) {
            member.ran += time;
        }
    }

    /// Sends all that is dirty, each control in so much time. The call that is due comes meanwhile.
    fn send(&mut self, control_ns: u64) {
        loop {
            let next = self.timed.world.store.state().next_control(&Flush::ALL);
            let Next::Send(control, in_flight) = next else {
                return;
            };
            self.wait(control_ns);
            self.timed.pass(0);
            let mut state = self.timed.world.store.state();
            state.control_done(&in_flight, &control, Ok(()));
            for member in &mut self.members {
                let acked = state.objects.get(member.channel).unwrap().acked;
                let runs = acked.run == crate::plan::Run::Runs;
                member.turns += u32::from(runs && !member.runs);
                member.runs = runs;
            }
        }
    }

    /// Does what is due as the glue does, and comes again when that is due, but late.
    fn pass(&mut self, control_ns: u64, late_ns: u64) {
        self.timed.pass(0);
        while self.timed.world.store.state().can_send() {
            self.send(control_ns);
            if self.timed.world.store.state().do_pauses_settle() {
                self.timed.pass(0);
            }
        }
        let due = self.timed.pass(0).due.unwrap();
        self.wait(due.get() + late_ns);
    }

    /// Returns how much of the time any of them ran, in percent.
    fn percent(&self) -> u64 {
        self.ran * 100 / self.timed.now
    }
}

/// Of sixteen members whose controls take most of a second each, every one has every turn, and all
/// together run for no more than their share.
#[test]
fn a_crowd_runs_in_turn_however_slow_its_controls_are() {
    for (control_ms, late_ms) in [(1, 0), (30, 300), (700, 5), (3000, 1000)] {
        let mut crowd = Crowd::new(16);
        for _ in 0..1000 {
            if crowd.members.iter().any(|member| member.turns > 5) {
                break;
            }
            crowd.pass(control_ms * MS, late_ms * MS);
        }
        let turns: Vec<_> = crowd.members.iter().map(|member| member.turns).collect();
        assert!(
            turns.iter().all(|turns| *turns >= 5),
            "{control_ms}: {turns:?}"
        );
        // The last turn has begun, and its pause has not.
        assert!(crowd.percent() <= 25, "{}", crowd.percent());
    }
}

/// An owner whose controls are fast has nearly all of its share, although the glue comes up to two
/// jiffies late.
#[test]
fn a_share_is_used() {
    for (count, least) in [(1, 18), (16, 18)] {
        let mut crowd = Crowd::new(count);
        for late in (0..8).cycle().take(200) {
            crowd.pass(MS / 10, late * MS);
        }
        let percent = crowd.percent();
        assert!((least..=20).contains(&percent), "{count}: {percent}%");
        let one = crowd.members[0].ran * 100 / crowd.timed.now;
        assert!(one >= least - 3, "{count}: one has {one}%");
    }
}
