// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Defines the actors of a schedule: threads of tenants, administrators, and the work item. A step
//! is what an actor does under the state's lock, or one call of RM.

use super::chance::Chance;
use super::rm::{Name, Rm};
use crate::engine::{Flush, InFlight, Next, Prepared, Ticket, Wait};
use crate::error::Error;
use crate::ids::{FileId, GpuId, GroupId, Owner, ProcKey, Scope};
use crate::iface::File;
use crate::rmapi::control::{Control, Status};
use crate::rmapi::{self, escape, Call, Handle};
use crate::testing::{words, Store};
use crate::units::Ns;
use std::collections::BTreeSet;
use std::vec::Vec;

/// An actor's action. A process is a number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    /// Creates an object: handle, parent, class.
    Alloc(usize, Handle, Handle, u32),
    Free(usize, Handle),
    /// Dups another process's object: handle, the other process, its handle.
    Dup(usize, Handle, usize, Handle),
    /// Schedules a channel, or the channels of a group.
    Schedule(usize, Handle),
    /// Enables a channel of a process: the caller, the process, the channel.
    Enable(usize, usize, Handle),
    /// Sets a time slice.
    Slice(usize, Handle, u64),
    /// RM loses an object.
    Lose(usize, Handle),
    /// RM loses an object, and gives its handle to another one.
    Replace(usize, Handle),
    /// The GPU is suspended and resumed, and RM has lost its state.
    Resume,
    /// Closes its file.
    Close(usize),
    /// Writes a limit of a process, or of the group.
    Write(Option<usize>, File, &'static str),
    /// Moves a process into the group, or out of it.
    Join(usize, bool),
    /// So many milliseconds pass, and owners pause or go on.
    Pass(u64),
}

/// The escape, the structure, and the process whose file it is.
struct Ioctl {
    op: Op,
    escape: u32,
    bytes: Vec<u8>,
    file: FileId,
    status: usize,
}

enum Stage {
    Ready,
    InRm(Ioctl, Ticket),
    Leave(Ioctl, Ticket),
    Closing(usize),
    Flush(Flush, Then),
    Sending(Flush, Then, Control, InFlight),
    Completing(Flush, Then, Control, InFlight, Result<(), Status>),
    EndWrite,
}

/// What follows a flush.
#[derive(Clone, Copy)]
enum Then {
    Nothing,
    EndWrite,
}

/// An actor.
pub(super) struct Actor {
    script: Vec<Op>,
    stage: Stage,
    wait: Option<Wait>,
    /// The process on whose file the actor runs ioctls.
    on: Option<usize>,
    /// The work item, which ends when it is not queued again.
    is_item: bool,
}

impl Actor {
    /// Runs a script.
    pub(super) fn new(script: &[Op]) -> Self {
        Self {
            script: script.iter().rev().copied().collect(),
            stage: Stage::Ready,
            wait: None,
            on: None,
            is_item: false,
        }
    }

    fn item() -> Self {
        Self {
            is_item: true,
            ..Self::new(&[])
        }
    }
}

pub(super) struct Schedule {
    pub(super) store: Store,
    pub(super) rm: Rm,
    pub(super) gpu: GpuId,
    pub(super) group: GroupId,
    pub(super) procs: Vec<(ProcKey, FileId)>,
    actors: Vec<Actor>,
    writing: bool,
    /// Whether the work item is queued.
    queued: bool,
    pub(super) chance: Chance,
    /// Objects that RM has lost.
    pub(super) lost: BTreeSet<Name>,
    /// Whether a channel was created in a channel group that others have aliases of.
    pub(super) shares: bool,
    /// Outcomes of the writes.
    pub(super) written: Vec<Result<(), Error>>,
    in_flight: Vec<(Name, Option<u64>)>,
    closed: Vec<usize>,
    last: usize,
    /// Number of interruptions that are left on a path.
    pub(super) switches: usize,
    now: Ns,
}

/// Returns the client of a process. All its objects are below it.
pub(super) const fn client(proc: usize) -> Handle {
    // CAST: a few processes.
    1000 * (proc as Handle + 1)
}

impl Schedule {
    pub(super) fn new(
        (store, gpu, group): (Store, GpuId, GroupId),
        procs: Vec<(ProcKey, FileId)>,
        mut actors: Vec<Actor>,
        chance: Chance,
    ) -> Self {
        actors.push(Actor::item());
        Self {
            store,
            rm: Rm::default(),
            gpu,
            group,
            procs,
            actors,
            writing: false,
            queued: false,
            chance,
            lost: BTreeSet::new(),
            shares: false,
            written: Vec::new(),
            in_flight: Vec::new(),
            closed: Vec::new(),
            last: 0,
            switches: 0,
            now: Ns(0),
        }
    }

    fn can_step(&mut self, at: usize) -> bool {
        let actor = &self.actors[at];
        if let Some(wait) = actor.wait {
            return self.store.state().is_over(&wait);
        }
        match (&actor.stage, actor.script.last()) {
            (Stage::Ready, None) => actor.is_item && self.queued,
            (Stage::Ready, Some(Op::Write(..))) => !self.writing,
            // A file is closed when no ioctl runs on it.
            (Stage::Ready, Some(Op::Close(proc))) => {
                !self.actors.iter().any(|actor| actor.on == Some(*proc))
            }
            _ => true,
        }
    }

    /// Returns whether no ioctl and no write is running, and the work item is not queued.
    pub(super) fn is_quiet(&self) -> bool {
        let ready = |actor: &Actor| matches!(actor.stage, Stage::Ready);
        self.actors.iter().all(ready) && !self.queued
    }

    /// Lets an actor take a step. Returns false when all are done.
    pub(super) fn step(&mut self) -> bool {
        let able: Vec<usize> = (0..self.actors.len())
            .filter(|at| self.can_step(*at))
            .collect();
        if able.is_empty() {
            let done =
                |actor: &Actor| matches!(actor.stage, Stage::Ready) && actor.script.is_empty();
            assert!(self.actors.iter().all(done), "everybody waits");
            return false;
        }
        let at = self.next_of(able);
        self.actors[at].wait = None;
        let stage = core::mem::replace(&mut self.actors[at].stage, Stage::Ready);
        let next = self.advance(at, stage);
        if matches!(next, Stage::Ready) {
            self.actors[at].on = None;
        }
        self.actors[at].stage = next;
        true
    }

    /// Chooses the actor of the next step. On a path it changes a few times only: few interruptions
    /// find most faults.
    fn next_of(&mut self, mut able: Vec<usize>) -> usize {
        let mine = able.iter().position(|at| *at == self.last);
        if let Some(mine) = mine {
            able.swap(0, mine);
        }
        let free = matches!(self.chance, Chance::Seed(_)) || mine.is_none();
        let choice = match free || self.switches > 0 {
            true => self.chance.below(able.len()),
            false => 0,
        };
        if choice > 0 && !free {
            self.switches -= 1;
        }
        self.last = able[choice];
        self.last
    }

    fn advance(&mut self, at: usize, stage: Stage) -> Stage {
        match stage {
            Stage::Ready if self.actors[at].is_item => {
                self.queued = false;
                Stage::Flush(Flush::ALL, Then::Nothing)
            }
            Stage::Ready => {
                let op = self.actors[at].script.pop().unwrap();
                self.begin(at, op)
            }
            Stage::InRm(mut ioctl, ticket) => {
                let status = self.call_rm(ioctl.op);
                let field = ioctl.status..ioctl.status + 4;
                ioctl.bytes[field].copy_from_slice(&status.to_le_bytes());
                Stage::Leave(ioctl, ticket)
            }
            Stage::Leave(ioctl, ticket) => self.leave(&ioctl, ticket),
            Stage::Closing(proc) => {
                self.rm.free((client(proc), client(proc)));
                Stage::Ready
            }
            Stage::Flush(flush, then) => self.go_on(at, flush, then),
            Stage::Sending(flush, then, mut control, in_flight) => {
                self.meets_no_stranger(&control);
                let outcome = self.rm.obey(&mut control, &mut self.chance);
                Stage::Completing(flush, then, control, in_flight, outcome)
            }
            Stage::Completing(flush, then, control, in_flight, outcome) => {
                let completion = self
                    .store
                    .state()
                    .control_done(&in_flight, &control, outcome);
                match completion.refused && flush.ends_at_refusal() {
                    true => self.flush_ends(then),
                    false => Stage::Flush(flush, then),
                }
            }
            Stage::EndWrite => {
                let ended = self.store.state().write_commit();
                self.written.push(ended);
                self.writing = false;
                let flush = self.store.state().flush_of(None);
                Stage::Flush(flush, Then::Nothing)
            }
        }
    }

    fn go_on(&mut self, at: usize, flush: Flush, then: Then) -> Stage {
        match self.store.state().next_control(&flush) {
            Next::Send(control, in_flight) => {
                for name in named(&control) {
                    let number = self.rm.names.get(&name).map(|thing| thing.number);
                    self.in_flight.retain(|(other, _)| *other != name);
                    self.in_flight.push((name, number));
                }
                Stage::Sending(flush, then, control, in_flight)
            }
            Next::Busy(wait) => {
                self.actors[at].wait = Some(wait);
                Stage::Flush(flush, then)
            }
            Next::Nothing => self.flush_ends(then),
        }
    }

    fn flush_ends(&mut self, then: Then) -> Stage {
        if self.store.state().can_send() {
            self.queued = true;
        }
        match then {
            Then::EndWrite => Stage::EndWrite,
            Then::Nothing => Stage::Ready,
        }
    }

    /// Checks that a control's handles name the objects that they named when it was built, or none.
    /// A free must wait for the control.
    fn meets_no_stranger(&self, control: &Control) {
        for name in named(control) {
            let then = self.in_flight.iter().find(|(other, _)| *other == name);
            let now = self.rm.names.get(&name).map(|thing| thing.number);
            let then = then.and_then(|(_, number)| *number);
            if then.is_some() && !self.lost.contains(&name) {
                assert_eq!(now, then, "{name:?}");
            }
        }
    }

    fn begin(&mut self, at: usize, op: Op) -> Stage {
        let (owner, file, text) = match op {
            Op::Lose(proc, handle) | Op::Replace(proc, handle) => {
                self.lose(proc, handle, matches!(op, Op::Replace(..)));
                return Stage::Ready;
            }
            Op::Close(proc) => return self.close(at, proc),
            Op::Resume => {
                self.rm.forget();
                self.store.state().gpu_resumed(1);
                self.queued |= self.store.state().has_controls();
                return Stage::Ready;
            }
            Op::Pass(ms) => {
                self.now += Ns(ms) * 1_000_000;
                self.store.state().pass_pauses(self.now);
                self.queued |= self.store.state().has_controls();
                return Stage::Ready;
            }
            Op::Join(proc, joins) => {
                let group = joins.then_some(self.group);
                let moved = self.store.state().member_moved(self.procs[proc].0, group);
                assert_eq!(moved, Ok(()));
                let flush = self.store.state().flush_of(None);
                return Stage::Flush(flush, Then::Nothing);
            }
            Op::Write(proc, file, text) => {
                let owner = proc.map(|proc| Owner::Proc(self.procs[proc].0));
                (owner.unwrap_or(Owner::Group(self.group)), file, text)
            }
            _ => return self.enter(at, op),
        };
        let scope = Scope::Pool(owner, self.gpu);
        let prepared = self
            .store
            .state()
            .write_prepare(file, scope, text.as_bytes());
        if prepared == Ok(Prepared::Done) {
            let flush = self.store.state().flush_of(None);
            return Stage::Flush(flush, Then::Nothing);
        }
        if prepared != Ok(Prepared::Pending) {
            // The process has no channel group any more.
            assert_eq!(prepared, Err(Error::Gone));
            return Stage::Ready;
        }
        self.writing = true;
        let flush = self.store.state().flush_of(Some(owner));
        Stage::Flush(flush, Then::EndWrite)
    }

    fn lose(&mut self, proc: usize, handle: Handle, replaced: bool) {
        let name = (client(proc), handle);
        let gone = self.rm.lose(name);
        if replaced && !gone.is_empty() {
            // Its handle is freed, and given to an object of an untracked class.
            self.rm.free(name);
            self.rm.add(name, client(proc) + 1, 0x9999);
        }
        self.lost.extend(gone);
    }

    fn close(&mut self, at: usize, proc: usize) -> Stage {
        let file = self.procs[proc].1;
        self.closed.push(proc);
        self.actors[at].wait = self.store.state().wait_for(file);
        self.store.state().file_close(file);
        self.queued |= self.store.state().has_controls();
        Stage::Closing(proc)
    }

    fn enter(&mut self, at: usize, op: Op) -> Stage {
        let (proc, ioctl) = self.ioctl(op);
        if self.closed.contains(&proc) {
            return Stage::Ready;
        }
        self.actors[at].on = Some(proc);
        let call = decode(&ioctl);
        let refused = self.store.state().call_refused(ioctl.file, &call);
        if refused.is_some() {
            return Stage::Ready;
        }
        if let Op::Enable(_, whose, channel) = op {
            let params = enabling(whose, channel);
            if self
                .store
                .state()
                .channels_refused(ioctl.file, &params)
                .is_some()
            {
                return Stage::Ready;
            }
        }
        let ticket = self
            .store
            .retry(|store| store.state().call_enter(ioctl.file, &call));
        if matches!(op, Op::Free(..)) {
            self.actors[at].wait = self.store.state().wait_for(ioctl.file);
        }
        self.queued |= self.store.state().has_controls();
        Stage::InRm(ioctl, ticket.unwrap())
    }

    fn leave(&mut self, ioctl: &Ioctl, ticket: Ticket) -> Stage {
        let call = decode(ioctl);
        let left = self
            .store
            .retry(|store| store.state().call_leave(ioctl.file, &call, ticket, None));
        assert_eq!(left, Ok(()));
        let mut state = self.store.state();
        if let Op::Enable(_, whose, channel) = ioctl.op {
            let params = enabling(whose, channel);
            state.channels_told(ioctl.file, &params);
        }
        self.queued |= state.has_controls();
        match state.flush_of_file(ioctl.file) {
            Some(flush) => Stage::Flush(flush, Then::Nothing),
            None => Stage::Ready,
        }
    }

    fn ioctl(&self, op: Op) -> (usize, Ioctl) {
        let control = |proc, object: Handle, command: u64| {
            let words_of = [(0, client(proc).into()), (4, object.into()), (8, command)];
            (proc, escape::CONTROL, words(32, &words_of), 28)
        };
        let (proc, escape, bytes, status) = match op {
            Op::Alloc(proc, handle, parent, class) => {
                let set = [client(proc), parent, handle, class].map(u64::from);
                let set = [(0, set[0]), (4, set[1]), (8, set[2]), (12, set[3])];
                (proc, escape::ALLOC, words(32, &set), 28)
            }
            Op::Free(proc, handle) => {
                let set = [(0, client(proc).into()), (8, handle.into())];
                (proc, escape::FREE, words(16, &set), 12)
            }
            Op::Dup(proc, handle, other, source) => {
                let set = [
                    client(proc),
                    client(proc) + 1,
                    handle,
                    client(other),
                    source,
                ];
                let set = [0, 4, 8, 12, 16].into_iter().zip(set.map(u64::from));
                let set: Vec<(usize, u64)> = set.collect();
                (proc, escape::DUP_OBJECT, words(28, &set), 24)
            }
            Op::Schedule(proc, object) => {
                let of_group = self.rm.names.get(&(client(proc), object));
                let of_group = of_group.is_none_or(|thing| thing.class == 0xa06c);
                control(
                    proc,
                    object,
                    if of_group { 0xa06c_0101 } else { 0xa06f_0103 },
                )
            }
            Op::Enable(proc, ..) => control(proc, client(proc) + 2, 0x2080_110b),
            Op::Slice(proc, object, _) => control(proc, object, 0xa06c_0103),
            other => panic!("{other:?} is no ioctl"),
        };
        let file = self.procs[proc].1;
        let ioctl = Ioctl {
            op,
            escape,
            bytes,
            file,
            status,
        };
        (proc, ioctl)
    }

    fn call_rm(&mut self, op: Op) -> Status {
        match op {
            Op::Alloc(proc, handle, parent, class) => {
                let name = (client(proc), handle);
                let status = self.rm.alloc(name, parent, class);
                if status == 0 {
                    self.lost.remove(&name);
                    self.shares |= self.rm.is_shared((client(proc), parent));
                }
                status
            }
            Op::Free(proc, handle) => self.rm.free((client(proc), handle)),
            Op::Dup(proc, handle, other, source) => {
                let parent = client(proc) + 1;
                self.rm
                    .dup((client(proc), handle), parent, (client(other), source))
            }
            Op::Schedule(proc, object) | Op::Enable(_, proc, object) => {
                self.rm.let_run((client(proc), object), &mut self.chance)
            }
            Op::Slice(proc, object, us) => self.rm.set_slice((client(proc), object), us),
            other => panic!("{other:?} is no ioctl"),
        }
    }
}

/// Returns parameters that enable a channel of a process.
fn enabling(proc: usize, channel: Handle) -> Vec<u8> {
    let mut control = Control::disable_channels(0, 0, false);
    control.add_channel(client(proc), channel);
    control.params().to_vec()
}

fn decode(ioctl: &Ioctl) -> Call {
    rmapi::decode(ioctl.escape, &ioctl.bytes).unwrap().unwrap()
}

/// Returns the tenants' objects that a control names.
fn named(control: &Control) -> Vec<Name> {
    let channels = (0..control.channels_named()).map(|at| {
        let (_, client, channel) = control.channel(at);
        (client, channel)
    });
    let own = control.own_subdevice.is_some();
    let addressed = (!own).then_some((control.client, control.object));
    channels.chain(addressed).collect()
}
