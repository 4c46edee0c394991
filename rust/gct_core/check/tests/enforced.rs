// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Carries out the controls in a model of RM, which may refuse some. After a flush, RM must have
//! what the limits want.

use super::*;
use crate::engine::{Flush, Next, Prepared};
use crate::plan::Update;
use crate::rmapi::control::{Control, Status};
use crate::round::{Round, SLICE_MIN};
use crate::units::Us;

/// State of the model of RM.
#[derive(Default)]
pub(super) struct Enforced {
    /// Time slice of a channel group now, and its original one.
    slices: BTreeMap<u64, [u64; 2]>,
    frozen: BTreeSet<RealKey>,
}

/// A channel group's time slice, and its process's share in the round.
#[derive(Clone, Copy)]
struct Sliced {
    /// `None` while a thread is freeing the channel group: no control can name it, but it counts.
    now: Option<u64>,
    share: u64,
}

/// Time slices by process, GPU and round.
type Rounds = BTreeMap<(ProcKey, u64, usize), Vec<Sliced>>;

/// Returns whether the sum is within the limit, apart from slices that cannot be shorter.
fn fits(slices: &[Sliced], whole: u64) -> bool {
    let longer = slices.iter().filter_map(|slice| slice.now);
    let longer = longer.filter(|now| *now > SLICE_MIN.get());
    longer.sum::<u64>() <= whole
}

/// Original time slice of a channel group.
const STOCK: [u64; 2] = [1024, 1024];

const REFUSED: Status = 0x1b;

const CLASS_OF: u32 = 0x0d02;

impl World {
    /// Sends the next control, which is refused with the status if there is one. Returns false when
    /// there is no control.
    pub(super) fn send(&mut self, refusal: Option<Status>) -> bool {
        let Next::Send(mut control, in_flight) = self.store.state().next_control(&Flush::ALL)
        else {
            return false;
        };
        self.store.check();
        let outcome = match (refusal, control.command) {
            // A refused object exists all the same.
            (Some(status), command) if command != CLASS_OF => Err(status),
            _ if matches!(in_flight.update, Update::CheckAlive(_)) => Ok(()),
            _ => self.obey(&mut control),
        };
        self.store
            .state()
            .control_done(&in_flight, &control, outcome);
        self.store.check();
        true
    }

    fn obey(&mut self, control: &mut Control) -> Result<(), Status> {
        let (client, object) = (control.client, control.object);
        let at = |client, handle| -> RealKey {
            let named = |key: &&RealKey| (key.1, key.2) == (client, handle);
            let key = self.real.keys().find(named).copied();
            key.unwrap_or_else(|| panic!("{client} {handle} is told of and gone"))
        };
        match control.command {
            0xa06c_0104 => {
                let thing = self.real[&at(client, object)].thing;
                let [now, own] = self.enforced.slices.get(&thing).copied().unwrap_or(STOCK);
                assert_eq!(now, own, "it is asked before it is changed");
                *control = Control::set_timeslice(client, object, Us(now));
            }
            0xa06c_0103 => {
                let thing = self.real[&at(client, object)].thing;
                let slice = self.enforced.slices.entry(thing).or_insert(STOCK);
                slice[0] = control.timeslice().get();
            }
            0x2080_110b => {
                match control.own_subdevice {
                    Some(gpu) => assert!(self.gpus.contains_key(&u64::from(gpu)), "{gpu}"),
                    None => assert_eq!(self.real[&at(client, object)].class, 0x2080),
                }
                for number in 0..control.channels() {
                    let (freeze, client, channel) = control.channel(number);
                    let key = at(client, channel);
                    assert_eq!(self.real[&key].class, 0xc86f);
                    match freeze {
                        true => self.enforced.frozen.insert(key),
                        false => self.enforced.frozen.remove(&key),
                    };
                }
            }
            CLASS_OF => {
                let [handle, _] = control.words();
                let class = self.real[&at(client, handle)].class;
                control.params()[8..12].copy_from_slice(&class.to_le_bytes());
            }
            other => panic!("{other:#x}"),
        }
        Ok(())
    }

    /// Writes a limit. One of the controls may be refused.
    pub(super) fn write_limit(&mut self, number: usize, a: u8, c: u8) {
        let pools: Vec<Scope> = {
            let state = self.store.state();
            let pools = state.pools.iter();
            let scopes = pools.map(|((owner, gpu), _)| Scope::Pool(*owner, *gpu));
            scopes.collect()
        };
        let Some(scope) = number.checked_rem(pools.len()).map(|at| pools[at]) else {
            return;
        };
        let (file, text) = match a % 4 {
            0 => (File::ComputeFreeze, "1"),
            1 => (File::ComputeFreeze, "0"),
            2 => (File::ComputeTimeslice, "default"),
            _ => (File::ComputeTimeslice, ["200", "3000"][usize::from(c % 2)]),
        };
        let before = self.shown(file, scope);
        let prepared = self
            .store
            .state()
            .write_prepare(file, scope, text.as_bytes());
        let Ok(Prepared::Pending) = prepared else {
            assert_eq!(prepared, Err(Error::Gone));
            return;
        };
        let refused_at = (c >= 128).then_some(c % 4);
        let mut refused = false;
        for step in 0.. {
            // The file shows the old limit until the write is committed.
            assert_eq!(self.shown(file, scope), before);
            let refusal = (Some(step) == refused_at).then_some(REFUSED);
            if !self.send(refusal) {
                break;
            }
            refused |= refusal.is_some();
            if self.store.state().write_is_refused() {
                break;
            }
        }
        let ended = self.store.state().write_commit();
        self.store.check();
        if ended.is_ok() {
            assert_eq!(self.shown(file, scope), Ok(format!("{text}\n")));
        } else {
            // The refused control may have been for another subject, so check this after a
            // refusal, too.
            let expected = match ended {
                // Channels of guests cannot be limited, unless their maker is.
                Err(Error::Unsupported) => self.has_guests(),
                Err(Error::Refused) => refused,
                _ => false,
            };
            assert!(expected, "{ended:?} of {file:?}, refused: {refused}");
            assert_eq!(self.shown(file, scope), before);
        }
        while self.send(None) {}
    }

    /// Marks all subjects again.
    fn tell_all_again(&mut self) {
        let mut state = self.store.state();
        let keys: Vec<_> = state.objects.iter().map(|(key, _)| *key).collect();
        for key in keys {
            state.mark_again(key);
        }
        while self.send(None) {}
    }

    fn shown(&mut self, file: File, scope: Scope) -> Result<String, Error> {
        let mut text = String::new();
        self.store.state().show(file, scope, &mut text)?;
        Ok(text)
    }

    fn control(&mut self, (file, client, object): RealKey, command: u32) {
        let words_of = [
            (0, u64::from(client)),
            (4, object.into()),
            (8, command.into()),
        ];
        let call = words(32, &words_of);
        self.store.ioctl(file, escape::CONTROL, &call, None);
    }

    /// Sets a time slice as a tenant.
    pub(super) fn tenant_sets_slice(&mut self, number: usize, slice: u64) {
        let Some((key, real)) = self.pick(number, Some(0xa06c)) else {
            return;
        };
        self.enforced.slices.insert(real.thing, [slice, slice]);
        self.control(key, 0xa06c_0103);
    }

    /// Starts the channels of a group as a tenant, whoever created them, or all channels of the
    /// process.
    pub(super) fn tenant_thaws(&mut self, number: usize, all: bool) {
        let Some((key, real)) = self.pick(number, Some(0xa06c)) else {
            return;
        };
        let proc = |file: FileId| self.proc_of(file);
        let names = self.things[&real.thing].names.clone();
        let runs = |channel: &RealKey| match all {
            true => proc(channel.0) == proc(key.0),
            false => names.iter().any(|name| self.is_below(*channel, *name)),
        };
        let mut frozen = self.enforced.frozen.clone();
        frozen.retain(|channel| !runs(channel));
        self.enforced.frozen = frozen;
        self.control(key, [0xa06c_0101, 0x0080_1705][usize::from(all)]);
    }

    fn proc_of(&self, file: FileId) -> Option<ProcKey> {
        let is_it = |(open, _): &&(FileId, ProcKey)| *open == file;
        self.open.iter().find(is_it).map(|of| of.1)
    }

    /// Returns the channels of other processes in the channel group of a channel.
    fn channels_beside(&self, channel: RealKey) -> Vec<RealKey> {
        let is_group = |(_, real): &(&RealKey, &Real)| real.class == 0xa06c;
        let groups = self.real.iter().filter(is_group);
        let above = groups.filter(|(name, _)| self.is_below(channel, **name));
        let names = above.flat_map(|(_, real)| self.things[&real.thing].names.clone());
        let names: Vec<RealKey> = names.collect();
        let is_beside = |(key, real): &(&RealKey, &Real)| {
            real.class == 0xc86f
                && self.proc_of(key.0) != self.proc_of(channel.0)
                && names.iter().any(|name| self.is_below(**key, *name))
        };
        self.real
            .iter()
            .filter(is_beside)
            .map(|(key, _)| *key)
            .collect()
    }

    fn has_guests(&self) -> bool {
        let channels = self.real.iter().filter(|(_, real)| real.class == 0xc86f);
        let is_guest = |key: &RealKey| {
            let groups = self
                .real
                .iter()
                .filter(|(name, real)| real.class == 0xa06c && self.is_below(*key, **name));
            let mut makers = groups.map(|(_, real)| self.things[&real.thing].charged);
            makers.any(|maker| self.proc_of(maker.0) != self.proc_of(key.0))
        };
        channels.map(|(key, _)| key).any(is_guest)
    }

    /// Returns whether a process that is not frozen has channels in the channel group.
    fn stops_others(&mut self, channel: RealKey) -> bool {
        self.channels_beside(channel).into_iter().any(|key| {
            let gpu = self.gpus.get(&self.real[&key].gpu).copied();
            let proc = self.proc_of(key.0).zip(gpu);
            proc.is_some_and(|(proc, gpu)| !self.store.state().effective(proc, gpu).freeze)
        })
    }

    /// Checks that RM has what the limits want after everything was sent.
    pub(super) fn compare_limits(&mut self) {
        // A hidden alias may be charged, and no control can name it.
        while !self.dups.is_empty() {
            self.dup_leave(false);
        }
        // An update that was refused without a pending write waits for the next event.
        self.tell_all_again();
        let procs: BTreeMap<FileId, ProcKey> = self.open.iter().copied().collect();
        let mut rounds: Rounds = BTreeMap::new();
        for (key, real) in self.real.clone() {
            let Some(gpu) = self.gpus.get(&real.gpu).copied() else {
                continue;
            };
            let reached = !self.is_being_freed(key);
            let limits = self.store.state().effective(procs[&key.0], gpu);
            let is_told = reached && real.class == 0xc86f;
            if is_told && !(limits.freeze && self.stops_others(key)) {
                let frozen = self.enforced.frozen.contains(&key);
                assert_eq!(frozen, limits.freeze, "{key:?}");
            }
            let charged = self.things[&real.thing].charged == key;
            if real.class == 0xa06c && charged {
                let [now, own] = *self.enforced.slices.entry(real.thing).or_insert(STOCK);
                match limits.timeslice {
                    Some(share) => {
                        let round = Round::of_engine(real.engine);
                        let had = rounds
                            .entry((procs[&key.0], real.gpu, round.index()))
                            .or_default();
                        had.push(Sliced {
                            now: reached.then_some(now),
                            share: share.get(),
                        });
                    }
                    None => assert!(!reached || now == own, "{key:?} has {now} of {own}"),
                }
            }
        }
        self.compare_rounds(&rounds);
    }

    /// Checks that all channel groups of an owner together have its time slice once per round, and
    /// that each has more than half of an equal part: the divisor is less than twice the count.
    fn compare_rounds(&mut self, rounds: &Rounds) {
        for (of, slices) in rounds {
            let share = slices[0].share;
            assert!(fits(slices, share), "{of:?} has more than {share}");
            let count = u64::try_from(slices.len()).unwrap();
            for now in slices.iter().filter_map(|slice| slice.now) {
                // A part is rounded down to whole microseconds.
                let most = 2 * count * (now + 1);
                assert!(most > share, "{of:?} has {now} of {share}, one of {count}");
            }
        }
        let by_rm_id: Vec<(u64, GpuId)> = self.gpus.iter().map(|(n, id)| (*n, *id)).collect();
        let groups: Vec<GroupId> = self.groups.iter().map(|(id, _)| *id).collect();
        for (group, (gpu, id), round) in groups.iter().flat_map(|group| {
            let each = by_rm_id.iter();
            each.flat_map(move |gpu| (0..Round::COUNT).map(move |round| (*group, *gpu, round)))
        }) {
            let state = self.store.state();
            let settings = state.settings(Owner::Group(group), id);
            let Some(whole) = settings.and_then(|settings| settings.timeslice) else {
                continue;
            };
            let others = rounds.iter().filter(|((proc, on, at), _)| {
                (*on, *at) == (gpu, round) && state.group_of(*proc) == Some(group)
            });
            let all: Vec<Sliced> = others.flat_map(|(_, slices)| slices.clone()).collect();
            assert!(fits(&all, whole.get()), "{group:?} has more than {whole:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(40), ..ProptestConfig::default() })]

    /// Returns sequences that begin with processes that have all kinds of limited objects.
    #[test]
    fn limits_hold(seed: u64, ops in prop::collection::vec((0u8..16, any::<u8>(), 0usize..64, any::<u8>()), 0..100)) {
        let mut world = World::new(seed);
        for n in 0..2 {
            world.gpu_add(n);
            world.group_create(u8::try_from(n).unwrap());
        }
        for n in 0..3 {
            world.open(n, "");
            world.client(usize::from(n), 0);
            world.alloc(usize::from(n), 0x80, u64::from(n % 2), 0);
            world.alloc(usize::from(n), 0x2080, 0, 0);
            for number in 0..6 {
                world.alloc(number, 0xa06c, 0, 0);
                world.alloc(number, 0xc86f, 0, 0);
            }
        }
        for (op, a, b, c) in ops {
            match op {
                0..=5 => world.write_limit(b, a, c),
                6 => world.alloc(b, 0xa06c, 0, 0),
                7 => world.alloc(b, 0xc86f, 0, 0),
                8 => world.dup(b, usize::from(a), true),
                9 => world.dup_leave(c % 4 == 0),
                10 => world.free_enter(b),
                11 => world.free_leave(c % 4 == 0),
                12 => world.join(a % 3, b % 2),
                13 => world.tenant_sets_slice(b, u64::from(a) + 1),
                14 => world.tenant_thaws(b, c % 2 == 0),
                _ => {
                    world.send((c % 4 == 0).then_some(REFUSED));
                }
            }
            world.store.check();
            world.compare();
        }
        world.compare_limits();
    }
}
