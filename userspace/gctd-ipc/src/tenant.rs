// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Keeps a process connected to the daemon.
//!
//! Without a daemon, the last limits stay in force, and a process under `gmem.limit` has no more
//! memory than it had. [`Link::maintain`] connects to a new daemon and replays the living objects
//! to it.

mod granted;
mod replay;

use crate::board::{BoardReader, Peer, Pulse, SlotIndex};
use crate::descriptor::{Descriptor, Kept};
use crate::greeting::{Answer, Failure, Greeting};
use crate::message::{Ioctl, Managed, Paged, Reply, Request, MANAGED_MAX};
use crate::page::{MaskWords, Page};
use crate::paths::SocketPaths;
use crate::shared::Shared;
use crate::socket;
use crate::versions::VERSIONS;
use gct_core::rmapi::memory_info::MemoryView;
use gct_core::rmapi::{self, Action, Call, Class};
use gct_core::units::Bytes;
use granted::Granted;
use replay::ReplayLog;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A daemon that does not reply within this time counts as absent.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// Nanoseconds between two attempts to connect.
const RETRY_NS: u64 = 1_000_000_000;
/// Nanoseconds until the next attempt after a daemon had no room for a connection, since callers
/// had to wait, or speaks other versions. They double with each further one, up to the second
/// number.
const RETRY_LATE_NS: (u64, u64) = (3_000_000_000, 60_000_000_000);

/// The shared memory of this process on one GPU.
#[derive(Debug)]
pub struct Gpu {
    /// The N of `/dev/nvidiaN`.
    pub minor: u32,
    /// The process's slot on the board and the slot's user; `None` if the board is full.
    pub slot: Option<(SlotIndex, u32)>,
    /// Its page: limits and counters.
    pub page: Shared<Page>,
    /// Its pulse.
    pub pulse: Shared<Pulse>,
    /// The board of the GPU.
    pub board: BoardReader,
}

/// The daemon's decision on an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Granted under this number. [`Link::leave`] must report the outcome.
    Granted(u32),
    /// Refused: it exceeds a limit, or what a daemon that has gone had granted.
    Refused,
    /// Not asked: the ioctl is no allocation, or there is no daemon, whose last limits allow it.
    NotAsked,
}

/// The daemon's decision on a range of managed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagedCharge {
    /// Granted under this number, for [`Link::uncharge_managed`]; also without a daemon, whose last
    /// limits allow it.
    Granted(u64),
    /// Refused: it exceeds a limit, or what a daemon that has gone had granted.
    Refused,
}

/// A connection that outlives the daemon.
#[derive(Debug)]
pub struct Link {
    path: PathBuf,
    socket: Option<Kept>,
    /// The greeting that a daemon has not answered yet: it hangs, or is stopped.
    greeting: Option<Greeting<Kept>>,
    retry_at_ns: u64,
    /// Nanoseconds until the next attempt if the daemon has no room, or speaks other versions.
    retry_late_ns: u64,
    failure: Option<Failure>,
    lost: u64,
    is_optional: bool,
    /// What the last daemon had granted when it went.
    granted: Granted,
    objects: ReplayLog,
    /// The size of each existing range of managed memory, by its number.
    managed: BTreeMap<u64, u64>,
    last_managed: u64,
    /// The pageable memory on each GPU, by the N of `/dev/nvidiaN`.
    paged: BTreeMap<u32, Paged>,
    gpus: Vec<Arc<Gpu>>,
}

impl Link {
    /// Creates a link to the tenants' socket that the environment names, or to the default one. It
    /// is not connected yet.
    pub fn from_environment() -> Self {
        Self::new(SocketPaths::from_environment().tenants)
    }

    /// Creates a link to a socket. It is not connected yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            socket: None,
            greeting: None,
            retry_at_ns: 0,
            retry_late_ns: RETRY_LATE_NS.0,
            failure: None,
            lost: 0,
            is_optional: false,
            granted: Granted::default(),
            objects: ReplayLog::default(),
            managed: BTreeMap::new(),
            last_managed: 0,
            paged: BTreeMap::new(),
            gpus: Vec::new(),
        }
    }

    /// Creates the link of a forked child of this process, under the same limits.
    pub fn of_child(&self) -> Self {
        Self {
            is_optional: self.is_optional,
            granted: Granted::nothing(self.is_bound()),
            ..Self::new(&self.path)
        }
    }

    /// Grants all memory while there is no daemon.
    #[must_use]
    pub fn optional(mut self, is_optional: bool) -> Self {
        self.is_optional = is_optional;
        self
    }

    /// Returns whether a limit binds the memory of this process while there is no daemon.
    pub fn is_bound(&self) -> bool {
        let is_bound = match self.gpus.is_empty() {
            // A new daemon has given no page yet.
            true => self.granted.is_bound(),
            false => self.gpus.iter().any(|gpu| {
                let limits = gpu.page.limits();
                // A daemon that is killed while it writes a page leaves none.
                limits.map_or(self.granted.is_bound(), |(_, limits)| {
                    limits.gmem_limit != u64::MAX
                })
            }),
        };
        is_bound && !self.is_optional
    }

    /// Returns how often a daemon was lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns whether the link was connected when it was last used.
    pub fn connected(&self) -> bool {
        self.socket.is_some()
    }

    /// Returns whether it has yet to connect for the first time, or the program has closed the
    /// socket. [`Link::maintain`] connects at once then.
    pub fn is_cut(&self) -> bool {
        match &self.socket {
            Some(socket) => socket.checked().is_err(),
            None => self.retry_at_ns == 0,
        }
    }

    /// Returns why the last attempt to connect failed.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Does what [`Link::maintain`] does, without waiting after an attempt that failed.
    pub fn attempt(&mut self, now_ns: u64) -> bool {
        self.retry_at_ns = now_ns;
        self.maintain(now_ns)
    }

    /// Returns the GPUs on which this process has a page of the current daemon.
    pub fn gpus(&self) -> &[Arc<Gpu>] {
        &self.gpus
    }

    /// Notices a lost daemon, and connects to a new one at most once a second. Returns `true` after
    /// a connect. Waits for the answer of a daemon once: it may come at any later call.
    ///
    /// The caller calls it periodically; `now_ns` is monotonic. After a connect there are no pages:
    /// [`Link::gpu_of`] asks for them. The pages of the old daemon keep its last limits.
    pub fn maintain(&mut self, now_ns: u64) -> bool {
        if self.socket.as_ref().is_some_and(hung_up) {
            self.lose();
        }
        if self.socket.is_some() {
            return false;
        }
        let connected = match self.greeting.take() {
            Some(greeting) if !greeting.is_answered() => {
                self.greeting = Some(greeting);
                return false;
            }
            Some(greeting) => self.hear(greeting),
            None if now_ns < self.retry_at_ns => return false,
            None => self.greet(),
        };
        self.failure = connected.as_ref().err().copied();
        if self.greeting.is_some() {
            self.retry_at_ns = now_ns.saturating_add(RETRY_NS);
            return false;
        }
        let is_late = matches!(
            self.failure,
            Some(Failure::Absent(Errno::AGAIN) | Failure::Versions(_))
        );
        let late = self.retry_late_ns;
        let (wait, next) = match is_late {
            true => (late, late.saturating_mul(2).min(RETRY_LATE_NS.1)),
            false => (RETRY_NS, RETRY_LATE_NS.0),
        };
        self.retry_at_ns = now_ns.saturating_add(wait);
        self.retry_late_ns = next;
        let Ok(socket) = connected else {
            return false;
        };
        self.socket = Some(socket);
        for ioctl in self.objects.living() {
            if ioctl.escape == rmapi::escape::DUP_OBJECT {
                self.notify(&Request::Enter(ioctl.clone()));
            }
            self.notify(&Request::Leave {
                ioctl,
                granted: None,
            });
        }
        for (number, bytes) in self.managed.clone() {
            self.notify(&Request::AddManaged(Managed { number, bytes }));
        }
        for (minor, paged) in self.paged.clone() {
            self.notify(&Request::AddPaged { minor, paged });
        }
        self.gpus.clear();
        true
    }

    /// Greets a daemon and waits for its answer.
    fn greet(&mut self) -> Result<Kept, Failure> {
        let greeting = Greeting::send(&self.path, REPLY_TIMEOUT, (VERSIONS, true), Kept::high)?;
        self.hear(greeting)
    }

    /// Returns the connection of a greeting, which stays if the daemon has not answered it.
    fn hear(&mut self, greeting: Greeting<Kept>) -> Result<Kept, Failure> {
        match greeting.receive(&self.path, REPLY_TIMEOUT, Kept::high)? {
            Answer::Serves(socket) => Ok(socket),
            Answer::Late(greeting) => {
                self.greeting = Some(greeting);
                Err(Failure::Absent(Errno::AGAIN))
            }
        }
    }

    /// Ends a connection that has failed. If the program has closed the socket, the daemon is still
    /// there.
    fn lose(&mut self) {
        let Some(socket) = self.socket.take() else {
            return;
        };
        match socket.checked() {
            Ok(_) => self.lost += 1,
            Err(_) => self.retry_at_ns = 0,
        }
        let is_bound = self.is_bound();
        self.granted = Granted::new(is_bound, &self.objects, self.managed_bytes());
    }

    /// Returns the managed memory that this process has.
    fn managed_bytes(&self) -> u64 {
        let ranges = self.managed.values();
        ranges.fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Closes this process's descriptor of the socket. The connection stays the parent's. A forked
    /// child calls it, where nothing may be allocated or freed.
    pub fn abandon(&mut self) {
        self.socket = None;
        self.greeting = None;
    }

    /// Sends a request without a reply.
    fn notify(&mut self, request: &Request) {
        let Some(socket) = &self.socket else { return };
        if socket::send(socket, request, &[], SendFlags::empty()).is_err() {
            self.lose();
        }
    }

    /// Sends a request and receives its reply. Returns `None` without a daemon.
    fn call(&mut self, request: &Request) -> Option<(Reply, Vec<Kept>)> {
        self.notify(request);
        let received = socket::receive(self.socket.as_ref()?);
        let kept = received.and_then(|(reply, fds)| {
            let fds: rustix::io::Result<Vec<Kept>> = fds.into_iter().map(Kept::here).collect();
            Ok((reply, fds?))
        });
        match kept {
            Ok(reply) => Some(reply),
            Err(_) => {
                self.lose();
                None
            }
        }
    }

    /// Announces an ioctl before it runs. A free or duplication is reported, an allocation of
    /// device memory is charged.
    pub fn enter(&mut self, ioctl: &Ioctl, call: &Call) -> Verdict {
        match call.action {
            Action::Free | Action::Dup { .. } => {
                self.notify(&Request::Enter(ioctl.clone()));
                Verdict::NotAsked
            }
            Action::Alloc {
                class: Class::DeviceMemory,
                ..
            } => match self.call(&Request::Charge(ioctl.clone())) {
                Some((Reply::Granted(number), _)) => Verdict::Granted(number),
                Some((Reply::Error { .. }, _)) => Verdict::Refused,
                Some(_) => {
                    self.lose();
                    self.decide(ioctl, call)
                }
                None => self.decide(ioctl, call),
            },
            _ => Verdict::NotAsked,
        }
    }

    /// Decides on an allocation of device memory without a daemon.
    fn decide(&self, ioctl: &Ioctl, call: &Call) -> Verdict {
        let device = (call.client, call.parent);
        let more = replay::memory(call, ioctl).unwrap_or(u64::MAX);
        let bytes = self.objects.memory_of(device).saturating_add(more);
        match self.granted.allows_device(device, bytes) {
            true => Verdict::NotAsked,
            false => Verdict::Refused,
        }
    }

    /// Reports an ioctl after it has run, with what the driver wrote. `verdict` is the result of
    /// [`Link::enter`].
    pub fn leave(&mut self, ioctl: Ioctl, call: &Call, verdict: Verdict) {
        let granted = match verdict {
            Verdict::Granted(number) => Some(number),
            _ => None,
        };
        // A failure is reported only if the daemon waits for the outcome.
        let matters = call.succeeded() && is_tracked(call);
        let entered = !matches!(call.action, Action::Alloc { .. });
        if matters || granted.is_some() || entered {
            self.notify(&Request::Leave {
                ioctl: ioctl.clone(),
                granted,
            });
        }
        if matters {
            self.objects.record(call, ioctl);
        }
    }

    /// Charges managed memory before it is mapped.
    pub fn charge_managed(&mut self, bytes: u64) -> ManagedCharge {
        let number = self.last_managed.wrapping_add(1);
        self.last_managed = number;
        match self.call(&Request::ChargeManaged(Managed { number, bytes })) {
            Some((Reply::Error { .. }, _)) => return ManagedCharge::Refused,
            Some((Reply::Done, _)) => {}
            other => {
                if other.is_some() {
                    self.lose();
                }
                let bytes = self.managed_bytes().saturating_add(bytes);
                if !self.granted.allows_managed(bytes) {
                    return ManagedCharge::Refused;
                }
            }
        }
        if self.managed.len() < MANAGED_MAX {
            self.managed.insert(number, bytes);
        }
        ManagedCharge::Granted(number)
    }

    /// Uncharges managed memory that was unmapped or could not be mapped.
    pub fn uncharge_managed(&mut self, number: u64) {
        // A loss that is noticed here records what there was before.
        self.notify(&Request::UnchargeManaged { number });
        self.managed.remove(&number);
    }

    /// Returns the N of `/dev/nvidiaN` of a GPU, by its PCI address, if memory that this process
    /// allocates there is to be pageable. It is not without a daemon.
    pub fn pageable_on(&mut self, bus_id: &str) -> Option<u32> {
        let bus_id = bus_id.into();
        match self.call(&Request::IsPageable { bus_id })? {
            (Reply::Pageable(minor), _) => minor,
            _ => None,
        }
    }

    /// Returns the most that this process can be charged for pageable memory on a GPU, if `spare`
    /// bytes of each `gmem.limit` stay free. Returns `None` without a daemon.
    pub fn pageable_room(&mut self, minor: u32, spare: u64) -> Option<Paged> {
        match self.call(&Request::PageableRoom { minor, spare })? {
            (Reply::Repaged(room), _) => room,
            _ => None,
        }
    }

    /// Returns what this process is charged for pageable memory on a GPU.
    pub fn paged(&self, minor: u32) -> Paged {
        self.paged.get(&minor).copied().unwrap_or_default()
    }

    /// Changes what this process is charged for pageable memory on a GPU, and keeps `spare` bytes
    /// of each `gmem.limit` free. Without a daemon the part on the GPU cannot grow, since the
    /// limits are unknown. `is_last`: an allocation is refused if this is.
    ///
    /// # Errors
    ///
    /// The most that it can be charged for. Nothing has changed.
    pub fn repage(
        &mut self,
        minor: u32,
        paged: Paged,
        spare: u64,
        is_last: bool,
    ) -> Result<(), Paged> {
        let request = Request::Repage {
            minor,
            paged,
            spare,
            is_last,
        };
        let was = self.paged(minor);
        match self.call(&request) {
            Some((Reply::Repaged(None), _)) => {}
            Some((Reply::Repaged(Some(room)), _)) => return Err(room),
            _ if paged.device > was.device => {
                return Err(Paged {
                    host: u64::MAX,
                    ..was
                })
            }
            _ => {}
        }
        self.paged.insert(minor, paged);
        Ok(())
    }

    /// Returns the GPU of an object, such as a channel group, and opens its pages at the first
    /// call. Returns `None` without a daemon, if the daemon does not know the object, or if either
    /// side cannot have the descriptors now. The caller asks again.
    pub fn gpu_of(&mut self, client: u32, object: u32) -> Option<Arc<Gpu>> {
        let (reply, fds) = self.call(&Request::OpenPage { client, object })?;
        let Reply::Page { minor, slot } = reply else {
            return None;
        };
        if let Some(known) = self.gpus.iter().find(|known| known.minor == minor) {
            return Some(known.clone());
        }
        let gpu = Arc::new(open_pages(minor, slot, &fds)?);
        drop(fds);
        self.gpus.push(gpu.clone());
        self.call(&Request::PageMapped { minor })?;
        Some(gpu)
    }

    /// Acknowledges a generation of the limits. `refused` is the status with which the resource
    /// manager refused one of them.
    pub fn ack(&mut self, minor: u32, generation: u64, refused: Option<u32>) {
        self.notify(&Request::Ack {
            minor,
            generation,
            refused,
        });
    }

    /// Returns the TPCs of a GPU that this process can count on; `None` without a daemon, or if it
    /// does not know the GPU.
    pub fn dependable_tpcs(&mut self, minor: u32) -> Option<MaskWords> {
        match self.call(&Request::DependableTpcs { minor })? {
            (Reply::DependableTpcs(words), _) => Some(words),
            _ => None,
        }
    }

    /// Returns the memory that this process's limits show it of the GPU of an object, or `None`
    /// without a limit or a daemon.
    pub fn memory_view(&mut self, client: u32, object: u32) -> Option<MemoryView> {
        match self.call(&Request::MemoryView { client, object })? {
            (Reply::MemoryView(view), _) => view.map(|view| MemoryView {
                limit: Bytes(view.limit),
                left: Bytes(view.left),
            }),
            _ => None,
        }
    }

    /// Returns the neighbours on a GPU; `None` without a daemon, or if either side cannot have the
    /// descriptors now. The caller asks again when the board's generation has grown.
    pub fn peers(&mut self, minor: u32) -> Option<Vec<Peer>> {
        let (reply, fds) = self.call(&Request::Peers { minor })?;
        let Reply::Peers(slots) = reply else {
            return None;
        };
        if fds.len() != slots.len() {
            return None;
        }
        let peers = slots.into_iter().zip(fds).filter_map(|((slot, user), fd)| {
            let pulse = Shared::open_read_only(fd.checked().ok()?).ok()?;
            Some(Peer::new(slot, user, pulse))
        });
        Some(peers.collect())
    }
}

/// Maps the descriptors that the daemon sent for a GPU.
fn open_pages(minor: u32, slot: Option<(SlotIndex, u32)>, fds: &[Kept]) -> Option<Gpu> {
    let [page, pulse, board] = fds else {
        return None;
    };
    Some(Gpu {
        minor,
        slot,
        page: Shared::open(page.checked().ok()?).ok()?,
        pulse: Shared::open(pulse.checked().ok()?).ok()?,
        board: BoardReader::new(Shared::open_read_only(board.checked().ok()?).ok()?),
    })
}

/// Returns whether the daemon tracks the object that a call makes or frees.
fn is_tracked(call: &Call) -> bool {
    match call.action {
        Action::Alloc { class, .. } => class.is_tracked(),
        Action::Free | Action::Dup { .. } => true,
        // The daemon sends no controls, so it need not know those of the tenant.
        Action::Control(_) | Action::Share(..) => false,
    }
}

/// Decodes an ioctl of this process, and answers the lookup that its structure needs.
///
/// `answer` reads 4 or 8 bytes at an address of this process, or asks the resource manager for a
/// GPU's id.
pub fn decode(
    escape: u32,
    bytes: &[u8],
    answer: impl FnOnce(rmapi::Lookup) -> Option<u64>,
) -> Option<(Ioctl, Call)> {
    let call = rmapi::decode(escape, bytes).ok()??;
    let ioctl = Ioctl {
        escape,
        bytes: bytes.to_vec(),
        hint: call.lookup().and_then(answer),
    };
    Some((ioctl, call))
}

/// Returns whether either side has closed a socket.
fn hung_up(socket: &Kept) -> bool {
    let Ok(fd) = socket.checked() else {
        return true;
    };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match poll(&mut fds, Some(&now)) {
        Ok(1..) => fds.iter().any(|fd| !fd.revents().is_empty()),
        _ => false,
    }
}
