// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The core, and what has to follow when it changes.

use crate::authority::Identity;
use crate::budget::{Budget, Payer, FDS_PAGE, FDS_WATCH};
use crate::managed::Ranges;
use crate::process::{self, Process};
use crate::tenants::{ConnectionId, Given, Neighbour, Tenants};
use crate::tree::Tree;
use crate::trial::Trials;
use crate::{gpus, server::Options};
use gct_core::engine::Ticket;
use gct_core::error::Error;
use gct_core::gpu::GpuFacts;
use gct_core::host::Host;
use gct_core::ids::{FileId, GroupId, ProcKey};
use gct_core::mask::TpcMask;
use gct_core::rmapi::{self, Action, Call, Class};
use gct_core::state::Failure;
use gct_core::topology::Topology;
use gct_core::units::Bytes;
use gctd_ipc::message::Ioctl;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ioctls of one process that have not ended yet: one for each of its threads that is in one. The
/// oldest of more is given up.
const PENDING_MAX: usize = 1024;

/// After so long a GPU is asked about again that did not answer.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Events of this number and above are processes that ended.
pub(crate) const PROCESS_EVENTS: u64 = 1 << 62;

/// A process that reports its ioctls.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) connection: ConnectionId,
    pub(crate) key: ProcKey,
    pub(crate) file: FileId,
    pub(crate) managed: Ranges,
    payer: Payer,
    grants: BTreeMap<u32, Ticket>,
    last_grant: u32,
    entered: VecDeque<(Call, Ticket)>,
}

#[derive(Debug)]
struct Watch {
    key: ProcKey,
    _pidfd: OwnedFd,
    /// Who pays for its descriptor; `None` if an administrator made the process a member.
    payer: Option<Payer>,
}

/// Everything but the sockets.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) tables: Host,
    pub(crate) tree: Tree,
    pub(crate) tenants: Tenants,
    pub(crate) trials: Trials,
    pub(crate) budget: Budget,
    gpus: PathBuf,
    /// TPCs that the administrator named, for all GPUs.
    existing: Option<TpcMask>,
    /// GPUs of which the resource manager has told nothing yet, and when it is to be asked again.
    unasked: HashMap<u32, Instant>,
    /// When each member was put into its group by pid, in nanoseconds since boot.
    joined: HashMap<(u32, u64), u64>,
    epoll: Arc<OwnedFd>,
    watches: HashMap<u64, Watch>,
    /// The number of each process's watch.
    watched: HashMap<(u32, u64), u64>,
    last_watch: u64,
}

/// A descriptor of a process.
fn open(key: ProcKey) -> Result<OwnedFd, Error> {
    let pid = i32::try_from(key.tgid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(Error::NoProcess)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| match error {
        Errno::SRCH => Error::NoProcess,
        _ => Error::NoSpace,
    })?;
    // The pid may have been given to another meanwhile, whom the descriptor then names.
    match process::find(key.tgid).map(|process| process.key) == Some(key) {
        true => Ok(pidfd),
        false => Err(Error::NoProcess),
    }
}

/// Is a call the same that was entered? The resource manager may have chosen the handle.
fn same(entered: &Call, left: &Call) -> bool {
    let object = entered.object == left.object || entered.object == 0;
    object && (entered.client, entered.action) == (left.client, left.action)
}

fn hashed(key: ProcKey) -> (u32, u64) {
    (key.tgid, key.start_time_ns)
}

impl Daemon {
    pub(crate) fn new(
        options: &Options,
        fds: u64,
        epoll: Arc<OwnedFd>,
        seeds: [u64; 2],
    ) -> rustix::io::Result<Self> {
        let mut daemon = Self {
            tables: Host::new(seeds),
            tree: Tree::default(),
            tenants: Tenants::default(),
            trials: Trials::new()?,
            budget: Budget::new(fds),
            gpus: options.gpus.clone(),
            existing: options.existing,
            unasked: HashMap::new(),
            joined: HashMap::new(),
            epoll,
            watches: HashMap::new(),
            watched: HashMap::new(),
            last_watch: PROCESS_EVENTS,
        };
        daemon.find_gpus();
        Ok(daemon)
    }

    /// Learns of GPUs that came since the last time, as all do when the driver is loaded.
    fn find_gpus(&mut self) {
        for mut facts in gpus::find(&self.gpus) {
            let add = |tables: &mut Host| tables.state().gpu_add(&facts, gctd_ipc::ENFORCED);
            if self.tables.follow(add).is_some() {
                if let Some(uuid) = facts.uuid {
                    // It was added a line above.
                    let _ = self.tables.state().gpu_uuid(facts.rm_id, uuid);
                }
                self.unasked.insert(facts.rm_id, Instant::now());
            }
            self.ask_about(&mut facts);
        }
        self.settle();
    }

    /// Asks the resource manager about a GPU of which it has told nothing, not too often. What needs to know the TPCs is not
    /// enforced without them.
    fn ask_about(&mut self, facts: &mut GpuFacts) {
        let due = self.unasked.get(&facts.rm_id).copied();
        if due.is_none_or(|due| due > Instant::now()) {
            return;
        }
        let told = gpus::ask(facts.minor);
        match told {
            Ok(Some(_)) => self.unasked.remove(&facts.rm_id),
            Ok(None) => self.unasked.insert(facts.rm_id, Instant::now() + ASK_AGAIN),
            // Nor will it ever.
            Err(_) => self.unasked.remove(&facts.rm_id),
        };
        let told = told.ok().flatten();
        if let Some(told) = &told {
            facts.set_architecture(told.chip.architecture);
            facts.memory_total = told.memory.map(Bytes);
        }
        let listed = self.existing.map(Topology::apart);
        let known = listed.or(told.and_then(|told| told.topology));
        facts.topology = known.unwrap_or(Topology::UNKNOWN);
        let features = match facts.topology.is_known() {
            true => gctd_ipc::ENFORCED,
            false => gctd_ipc::ENFORCED.without_tpcs(),
        };
        // It is there: it was added before.
        let _ = self.tables.state().gpu_learned(facts, features);
    }

    /// Makes directories and limits follow a change of the core.
    pub(crate) fn settle(&mut self) {
        while let Some(effect) = self.tables.state().next_effect() {
            self.tree.apply(effect);
        }
        self.publish(self.trials.are_on());
    }

    /// Tells the processes their limits; `trial` if one is on trial.
    pub(crate) fn publish(&mut self, trial: bool) {
        self.tenants.publish(&self.tables.state(), trial);
    }

    /// Takes what the processes counted.
    pub(crate) fn harvest(&mut self) {
        self.tenants.harvest(&mut self.tables.state());
    }

    /// Puts a process into a group; its children from now on will be in it too.
    pub(crate) fn join(&mut self, group: GroupId, pid: u32) -> Result<(), Error> {
        let key = process::find(pid).ok_or(Error::NoProcess)?.key;
        self.put(group, key)?;
        self.joined.insert(hashed(key), process::now_ns());
        self.tables.state().member_moved(key, Some(group))?;
        self.settle();
        Ok(())
    }

    fn put(&mut self, group: GroupId, key: ProcKey) -> Result<(), Error> {
        self.tables.state().group_check(group)?;
        if !self.is_watched(key) {
            self.watch(key, open(key)?, None)?;
        }
        self.add_member(group, key)
    }

    fn add_member(&mut self, group: GroupId, key: ProcKey) -> Result<(), Error> {
        self.tables
            .with(|tables| tables.members().put(key, group))
            .map(|_| ())
    }

    /// The group that a process has from the ancestor it was forked from, if that was a member
    /// by then. A start time says which tick of the clock; a child of the tick in which its
    /// parent joined counts as later.
    fn inherit(&mut self, process: &Process) -> Option<GroupId> {
        let mut child = *process;
        for _ in 0..process::ANCESTORS_MAX {
            if let Some(group) = self.tables.members().group_of(child.key) {
                return (child.key == process.key).then_some(group);
            }
            let parent = process::find(child.parent)?;
            if let Some(group) = self.tables.members().group_of(parent.key) {
                let joined = self.joined.get(&hashed(parent.key)).copied().unwrap_or(0);
                let born = child.key.start_time_ns.saturating_add(process::tick_ns());
                return (born >= joined).then_some(group);
            }
            child = parent;
        }
        None
    }

    /// A process connected and will report its ioctls.
    ///
    /// # Errors
    ///
    /// [`Error::NoProcess`] if it has ended, [`Error::NoSpace`] beyond a maximum.
    pub(crate) fn hello(
        &mut self,
        connection: ConnectionId,
        identity: &Identity,
        payer: &Payer,
    ) -> Result<Session, Error> {
        self.find_gpus();
        let key = identity.key;
        // Its parent may be another by now; it itself is not, as long as it lives.
        let process = process::find(key.tgid).filter(|process| process.key == key);
        let process = process.filter(|_| identity.lives());
        let process = process.ok_or(Error::NoProcess)?;
        if !self.is_watched(key) {
            if !self.budget.take(payer, FDS_WATCH) {
                return Err(Error::NoSpace);
            }
            let pidfd = identity.pidfd.try_clone().map_err(|_| Error::NoSpace);
            let watched = pidfd.and_then(|pidfd| self.watch(key, pidfd, Some(payer.clone())));
            if let Err(error) = watched {
                self.budget.give(payer, FDS_WATCH);
                return Err(error);
            }
        }
        let group = self.inherit(&process);
        if let Some(group) = group {
            self.joined.entry(hashed(key)).or_insert(key.start_time_ns);
            if self.add_member(group, key).is_err() {
                self.tables.state().count(Failure::Limit);
            }
        }
        let cgroup = process::cgroup(key.tgid);
        let open = |tables: &mut Host| tables.state().file_open(key, &cgroup, group);
        let file = self.tables.follow(open).ok_or(Error::NoSpace)?;
        Ok(Session {
            connection,
            key,
            file,
            managed: Ranges::default(),
            payer: payer.clone(),
            grants: BTreeMap::new(),
            last_grant: 0,
            entered: VecDeque::new(),
        })
    }

    fn is_watched(&self, key: ProcKey) -> bool {
        self.watched.contains_key(&hashed(key))
    }

    /// Wants to hear when a process ends.
    fn watch(&mut self, key: ProcKey, pidfd: OwnedFd, payer: Option<Payer>) -> Result<(), Error> {
        self.last_watch += 1;
        let data = epoll::EventData::new_u64(self.last_watch);
        epoll::add(&self.epoll, pidfd.as_fd(), data, epoll::EventFlags::IN)
            .map_err(|_| Error::NoSpace)?;
        let watch = Watch {
            key,
            _pidfd: pidfd,
            payer,
        };
        self.watches.insert(self.last_watch, watch);
        self.watched.insert(hashed(key), self.last_watch);
        Ok(())
    }

    /// A process ended: who it was.
    pub(crate) fn ended(&mut self, event: u64) -> Option<ProcKey> {
        // The descriptor is closed with the watch, and leaves epoll.
        let Watch { key, payer, .. } = self.watches.remove(&event)?;
        self.watched.remove(&hashed(key));
        if let Some(payer) = payer {
            self.budget.give(&payer, FDS_WATCH);
        }
        // Its group still gets what it counted last.
        self.harvest();
        self.joined.remove(&hashed(key));
        self.tables.members().on_exit(key);
        // A process without the driver open is unknown to the state, and that is no error.
        let _ = self.tables.state().member_moved(key, None);
        Some(key)
    }

    /// A connection is gone, and with it all that its process had. Returns how many pages it had.
    pub(crate) fn bye(&mut self, mut session: Session) -> u64 {
        let pages = self.tenants.gpus_of(session.connection).count();
        self.tenants
            .close(session.connection, &mut self.tables.state());
        self.all_managed_gone(&mut session);
        for ticket in session.grants.into_values() {
            self.tables.state().call_withdraw(session.file, ticket);
        }
        for (call, ticket) in session.entered {
            self.give_up(session.file, &call, ticket);
        }
        self.tables.state().file_close(session.file);
        self.settle();
        self.judge();
        u64::try_from(pages).unwrap_or(0)
    }

    /// How an ioctl went will not be told: what was about to be freed is taken for freed, and
    /// what was about to be made is not.
    fn give_up(&mut self, file: FileId, call: &Call, ticket: Ticket) {
        let status = match call.action {
            Action::Free => 0,
            _ => rmapi::NO_MEMORY,
        };
        let done = Call { status, ..*call };
        let leave = |tables: &mut Host| tables.state().call_leave(file, &done, ticket, None);
        self.tables.follow(leave);
    }

    /// Decodes what a process reports.
    fn decode(&mut self, ioctl: &Ioctl) -> Option<Call> {
        let call = rmapi::decode(ioctl.escape, &ioctl.bytes);
        if call.is_err() {
            self.tables.state().count(Failure::Decode);
        }
        call.ok().flatten()
    }

    /// Whether a call is about clients of the process's own.
    fn permits(&mut self, session: &Session, call: &Call) -> bool {
        let mut own = |client| self.tables.state().has_client(session.file, client);
        let permitted = match call.action {
            Action::Alloc {
                class: Class::Client,
                ..
            } => true,
            Action::Dup { source_client, .. } => own(call.client) && own(source_client),
            _ => own(call.client),
        };
        if !permitted {
            self.tables.state().count(Failure::Client);
        }
        permitted
    }

    /// The same of what is about to happen.
    fn decode_permitted(&mut self, session: &Session, ioctl: &Ioctl) -> Option<Call> {
        let call = self.decode(ioctl)?;
        self.permits(session, &call).then_some(call)
    }

    /// An object is about to be freed, or to get a second name.
    pub(crate) fn enter(&mut self, session: &mut Session, ioctl: &Ioctl) {
        let Some(call) = self.decode_permitted(session, ioctl) else {
            return;
        };
        let file = session.file;
        let enter = |tables: &mut Host| tables.state().call_enter(file, &call);
        let Some(ticket) = self.tables.follow(enter).filter(|t| *t != Ticket::NONE) else {
            return;
        };
        session.entered.push_back((call, ticket));
        if session.entered.len() > PENDING_MAX {
            if let Some((call, ticket)) = session.entered.pop_front() {
                self.give_up(file, &call, ticket);
            }
        }
    }

    /// Memory is asked for. The number of the grant, or why not.
    pub(crate) fn ask(&mut self, session: &mut Session, ioctl: &Ioctl) -> Result<u32, Error> {
        let file = session.file;
        let ticket = match self.decode_permitted(session, ioctl) {
            Some(call) => {
                let ask = |tables: &mut Host| tables.state().call_ask(file, &call, ioctl.hint);
                // What cannot be followed is granted.
                match self.tables.follow(ask) {
                    Some(None) => return Err(Error::NoSpace),
                    Some(Some(ticket)) => ticket,
                    None => Ticket::NONE,
                }
            }
            None => Ticket::NONE,
        };
        session.last_grant = session.last_grant.wrapping_add(1);
        session.grants.insert(session.last_grant, ticket);
        if session.grants.len() > PENDING_MAX {
            if let Some((_, ticket)) = session.grants.pop_first() {
                self.tables.state().call_withdraw(file, ticket);
            }
        }
        Ok(session.last_grant)
    }

    /// An ioctl has run. What was permitted when it was entered is so still: of a client that is freed the state knows no
    /// more.
    pub(crate) fn leave(&mut self, session: &mut Session, ioctl: &Ioctl, granted: Option<u32>) {
        let granted = granted.and_then(|number| session.grants.remove(&number));
        let granted = granted.unwrap_or(Ticket::NONE);
        let file = session.file;
        let call = self.decode(ioctl);
        let at = call.and_then(|call| session.entered.iter().position(|(c, _)| same(c, &call)));
        let entered = at.and_then(|at| session.entered.remove(at));
        let permitted = |call: &Call| entered.is_some() || self.permits(session, call);
        let call = call.filter(permitted);
        let ticket = match (entered, call.map(|call| call.action)) {
            (Some((_, ticket)), _) => ticket,
            (None, Some(Action::Alloc { .. })) => granted,
            _ => Ticket::NONE,
        };
        if ticket != granted {
            self.tables.state().call_withdraw(file, granted);
        }
        let Some(call) = call else { return };
        let hint = ioctl.hint;
        let leave = |tables: &mut Host| tables.state().call_leave(file, &call, ticket, hint);
        self.tables.follow(leave);
        if self.tables.state().has_effects() {
            self.settle();
        }
    }

    /// The page of a process on the GPU where an object of its lies. Its descriptors are given
    /// away once.
    pub(crate) fn page(
        &mut self,
        session: &mut Session,
        client: u32,
        object: u32,
    ) -> Result<Given<'_>, Error> {
        let state = self.tables.state();
        let gpu = state.gpu_of_object(session.file, client, object);
        let gpu = gpu.ok_or(Error::Gone)?;
        let minor = state.gpu_minor(gpu).ok_or(Error::Gone)?;
        let (connection, key) = (session.connection, session.key);
        let known = self.tenants.gpus_of(connection).any(|known| known == gpu);
        if !known {
            if !self.budget.take(&session.payer, FDS_PAGE) {
                return Err(Error::NoSpace);
            }
            if self.tenants.open(connection, key, gpu, minor).is_err() {
                self.budget.give(&session.payer, FDS_PAGE);
                return Err(Error::NoSpace);
            }
            self.managed_reaches(session, gpu);
            self.settle();
        }
        self.tenants
            .given(connection, gpu, known)
            .ok_or(Error::Gone)
    }

    /// A process has mapped the page and the pulse that it was given: from now on nobody else can
    /// write them, and its neighbours may have the pulse.
    pub(crate) fn mapped(&mut self, session: &Session, minor: u32) -> Result<(), Error> {
        let mapped = self.tenants.mapped(session.connection, minor);
        mapped.map_err(|_| Error::Access)?;
        self.settle();
        Ok(())
    }

    /// The TPCs that a process can count on on a GPU.
    pub(crate) fn dependable(&mut self, session: &Session, minor: u32) -> Result<TpcMask, Error> {
        let state = self.tables.state();
        let gpu = state.gpu_of_minor(minor).ok_or(Error::Gone)?;
        if !state.gpu_topology(gpu).is_known() {
            // Nothing is masked there.
            return Err(Error::Unsupported);
        }
        Ok(Tenants::dependable(&state, session.key, gpu))
    }

    /// The neighbours of a process on a GPU.
    pub(crate) fn neighbours(&self, session: &Session, minor: u32) -> Vec<Neighbour<'_>> {
        self.tenants.neighbours(session.connection, minor)
    }
}
