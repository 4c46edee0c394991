// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reports this process's allocations to the daemon, asks it for admission, and takes over the
//! limits and the neighbours.
//!
//! No launch passes here. A daemon that has gone may be restarting: the first allocation waits for
//! it. Without one the program has as much memory as it had.

use crate::forks::Mark;
use crate::locks::Lock;
use crate::neighbours::GpuPeers;
use crate::slices::Slices;
use crate::stats::STATS;
use crate::{optional, processors, rm, sys, worker};
use core::sync::atomic::{AtomicBool, Ordering};
use gct_core::mask::TpcMask;
use gct_core::policy::native::Native;
use gct_core::rmapi::control::Control;
use gct_core::rmapi::memory_info::MemoryView;
use gct_core::rmapi::{Action, Call, Class, Lookup, Overrides};
use gctd_ipc::board::Peer;
use gctd_ipc::environment::variable;
use gctd_ipc::greeting::Failure;
use gctd_ipc::message::Paged;
use gctd_ipc::page::Limits;
use gctd_ipc::paths::{SocketPaths, DIRECTORY_VARIABLE, SOCKET_VARIABLE};
use gctd_ipc::tenant::{Gpu, Link, ManagedCharge, Verdict};
use gctd_ipc::versions::{Versions, VERSIONS};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval of reports to the daemon while the process launches.
const REPORT: Duration = Duration::from_millis(100);
/// The interval of checks of the daemon while the process launches nothing.
const LOOK: Duration = Duration::from_secs(1);

/// The longest wait for a required daemon when a program starts, and for one that has gone.
const RESTART: Duration = Duration::from_millis(2_500);

/// The link of the process `pid`. A forked child must not use its parent's.
#[derive(Debug)]
struct Connected {
    pid: u32,
    /// Is seen in the memory of that process.
    mark: Mark,
    link: Link,
    slices: Slices,
    /// The GPUs on which the governor knows its peers, with the board generation of the last query
    /// for them.
    attached: Vec<(u32, u64)>,
    /// The versions of a daemon that the user was told of since the last one of this release.
    told: Option<Versions>,
    /// Which of the losses of a daemon an allocation has waited for in vain.
    given_up: u64,
}

static LINK: Lock<Option<Connected>> = Lock::new(None, || None);
static STARTED: AtomicBool = AtomicBool::new(false);

/// Calls `f` with the link of this process. The first call connects, and the first one after the
/// program has closed the link's socket connects again. Returns `None` in a child that shares the
/// memory of its parent, whose link this is, and in a signal handler below another call.
fn with<T>(f: impl FnOnce(&mut Connected) -> T) -> Option<T> {
    if LINK.is_mine() {
        return None;
    }
    let pid = std::process::id();
    let mut slot = LINK.lock();
    let parents = slot.as_ref().filter(|connected| connected.pid != pid);
    if parents.is_some_and(|connected| connected.mark.is_seen()) {
        return None;
    }
    if parents.is_some() || slot.is_none() {
        let link = match parents {
            Some(parents) => parents.link.of_child(),
            None => Link::from_environment().optional(optional::is_set()),
        };
        *slot = Some(Connected::new(pid, link));
    }
    let connected = slot.as_mut()?;
    if connected.link.is_cut() {
        connected.maintain();
    }
    Some(f(connected))
}

/// Makes the link usable in a forked child, which connects by itself when it uses the GPU.
///
/// # Safety
///
/// The process has one thread.
pub(crate) unsafe fn forked() {
    // SAFETY: passed on.
    unsafe { LINK.renew() };
    if let Some(connected) = LINK.try_lock().as_mut().and_then(|slot| slot.as_mut()) {
        connected.link.abandon();
    }
    STARTED.store(false, Ordering::SeqCst);
}

/// Reports a call to the daemon before it runs, and asks for admission. Returns `None` without a
/// link.
pub(crate) fn before(ioctl: &rm::Ioctl, call: &Call) -> Option<Verdict> {
    // Only words that the program has written are known before the ioctl runs.
    let hint = match call.lookup() {
        Some(Lookup::Bytes(hint)) => ioctl.word(hint),
        _ => None,
    };
    let message = ioctl.message(hint, 0);
    let ask = || {
        with(|connected| {
            let Connected { link, slices, .. } = connected;
            if call.action == Action::Free {
                slices.freed(call.client, call.object, link);
            }
            (link.enter(&message, call), link.connected())
        })
    };
    let is_charged = matches!(
        call.action,
        Action::Alloc {
            class: Class::DeviceMemory,
            ..
        }
    );
    let (verdict, is_asked) = ask()?;
    if is_asked || !is_charged || !returns() {
        return Some(verdict);
    }
    ask().map(|(verdict, _)| verdict)
}

/// Looks at the link again and again until `look`, which is told since when, returns a value.
/// Returns `None` without a link.
fn wait_for<T>(mut look: impl FnMut(&mut Connected, Instant) -> Option<T>) -> Option<T> {
    let since = Instant::now();
    loop {
        if let Some(found) = with(|connected| look(connected, since))? {
            return Some(found);
        }
        std::thread::sleep(REPORT);
    }
}

/// Waits for a daemon that has gone, until it is there again or was awaited in vain. Returns
/// whether it is there again.
fn returns() -> bool {
    wait_for(|connected, since| connected.awaits(since.elapsed())).unwrap_or(false)
}

/// Reports the outcome of a call of [`before`] to the daemon. The ioctl has run on `fd` and
/// returned `ret`.
pub(crate) fn after(fd: i32, ioctl: &rm::Ioctl, call: &Call, verdict: Verdict, ret: i32) {
    let answer = |lookup| match lookup {
        Lookup::Bytes(hint) | Lookup::Engine(hint) => ioctl.word(hint),
        Lookup::GpuOfSubdevice => gpu_of(fd, call),
        // The subdevice's allocation answers this.
        Lookup::GpuOfInstance(_) => None,
    };
    let hint = call.lookup().filter(|_| call.succeeded()).and_then(answer);
    let message = ioctl.message(hint, ret);
    let grouped = with(|connected| {
        let Connected { link, slices, .. } = connected;
        link.leave(message, call, verdict);
        match call.action {
            _ if !call.succeeded() => false,
            Action::Alloc {
                class: Class::ChannelGroup,
                ..
            } => {
                slices.made(call, hint, fd, link);
                true
            }
            Action::Alloc {
                class: Class::Channel,
                ..
            } => {
                slices.channel(call, fd, link);
                false
            }
            Action::Alloc {
                class: Class::Subdevice,
                ..
            } => {
                slices.subdevice(call);
                false
            }
            Action::Control(
                Overrides::Schedule | Overrides::ScheduleAny | Overrides::Channels(_),
            ) => {
                slices.enabled(call.client, link);
                false
            }
            Action::Control(Overrides::Timeslice) => {
                slices.changed(call.client, call.object, link);
                false
            }
            _ => false,
        }
    });
    if grouped == Some(true) {
        look();
        if !STARTED.swap(true, Ordering::SeqCst) {
            // Without the thread the present limits stay and no launches are reported.
            processors::spawn("gct-link", look_after);
        }
    }
}

/// Returns whether a required daemon serves this program. A daemon is required if the environment
/// names one or the usual socket exists. This waits for one that is restarting, stopped for a
/// moment, or full. An empty name means that the program wants none.
pub(crate) fn required() -> Result<(), String> {
    let socket = SocketPaths::from_environment().tenants;
    let named = [SOCKET_VARIABLE, DIRECTORY_VARIABLE].map(variable);
    let is_unnamed = named.iter().all(Option::is_none) && !socket.exists();
    if is_unnamed || socket.as_os_str().is_empty() {
        return Ok(());
    }
    // The first look may find what `with` has just tried.
    let mut look: fn(&mut Link, u64) -> bool = Link::maintain;
    let served = wait_for(|connected, since| {
        let link = &mut connected.link;
        look(link, sys::now_ns());
        look = Link::attempt;
        if link.connected() {
            return Some(Ok(()));
        }
        let gives_up = since.elapsed() >= RESTART || optional::is_set();
        gives_up.then(|| Err(reason(&socket, link.failure())))
    });
    served.unwrap_or(Ok(()))
}

/// Says why the daemon at a socket does not serve this program.
fn reason(socket: &Path, failure: Option<Failure>) -> String {
    let socket = socket.display();
    match failure {
        Some(Failure::Versions(theirs)) => {
            let versions = format!("protocol {VERSIONS}, the daemon at {socket} {theirs}");
            format!("the library speaks {versions}: install the same release of both")
        }
        Some(Failure::Refused(errno)) => {
            format!("the daemon at {socket} refuses this program: {errno}")
        }
        Some(Failure::Absent(errno)) => format!("no daemon at {socket}: {errno}"),
        None => format!("no daemon at {socket}: it does not answer"),
    }
}

/// Returns whether this process has had a channel in another one's channel group, as a client of
/// MPS has.
pub(crate) fn shares_group() -> bool {
    with(|connected| connected.slices.shares_group().load(Ordering::Relaxed)).unwrap_or(false)
}

/// What the daemon has decided for new channels, on each GPU where this process has a page.
#[derive(Debug, Default)]
pub(crate) struct Decisions(Vec<(u32, Limits)>);

/// Returns what the daemon has decided for new channels.
pub(crate) fn decisions() -> Decisions {
    let decided = |gpu: &Arc<Gpu>| Some((gpu.minor, gpu.page.limits()?.1));
    let decided = with(|connected| connected.link.gpus().iter().filter_map(decided).collect());
    Decisions(decided.unwrap_or_default())
}

impl Decisions {
    /// Returns why a new channel on a GPU stays native. If its GPU is unknown, it does where new
    /// channels of each GPU do.
    pub(crate) fn native_on(&self, gpu: Option<u32>) -> Option<Native> {
        let mut there = self.on(gpu);
        let first = there.next()?.native;
        first.filter(|_| there.all(|limits| limits.native.is_some()))
    }

    /// Returns whether a limit binds the launches of this process on a GPU, or on any if the GPU is
    /// unknown.
    pub(crate) fn bind_launches_on(&self, gpu: Option<u32>) -> bool {
        self.on(gpu).any(|limits| limits.binds_launches)
    }

    /// Returns whether this process has no page yet.
    pub(crate) fn are_unknown(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether this process is in no group of the daemon.
    pub(crate) fn is_stray(&self) -> bool {
        self.0.iter().any(|(_, limits)| limits.is_stray)
    }

    fn on(&self, gpu: Option<u32>) -> impl Iterator<Item = &Limits> {
        let there = move |of: u32| gpu.is_none_or(|gpu| gpu == of);
        let decided = self.0.iter().filter(move |(of, _)| there(*of));
        decided.map(|(_, limits)| limits)
    }
}

/// Charges managed memory before it is mapped. Returns `None` without a link.
pub(crate) fn charge_managed(bytes: u64) -> Option<ManagedCharge> {
    let ask = || {
        with(|Connected { link, .. }| {
            let charge = link.charge_managed(bytes);
            (charge, link.connected())
        })
    };
    let (charge, is_asked) = ask()?;
    if is_asked || !returns() {
        return Some(charge);
    }
    if let ManagedCharge::Granted(number) = charge {
        uncharge_managed(number);
    }
    ask().map(|(charge, _)| charge)
}

/// Returns the TPCs that this process can depend on, or `None` if no daemon says.
pub(crate) fn dependable(minor: u32) -> Option<TpcMask> {
    let words = with(|connected| connected.link.dependable_tpcs(minor)).flatten()?;
    Some(TpcMask::from_words(words))
}

/// Returns the memory that this process's limits show it of the GPU of an object. Returns `None`
/// without a limit.
pub(crate) fn memory_view(client: u32, object: u32) -> Option<MemoryView> {
    with(|connected| connected.link.memory_view(client, object)).flatten()
}

/// Returns the N of `/dev/nvidiaN` of a GPU, if memory that is allocated there is to be pageable.
pub(crate) fn pageable_on(bus_id: &str) -> Option<u32> {
    with(|connected| connected.link.pageable_on(bus_id)).flatten()
}

/// Returns the most that this process can be charged for pageable memory, and keeps `spare` bytes
/// of each `gmem.limit` free. Returns `None` without a daemon.
pub(crate) fn pageable_room(minor: u32, spare: u64) -> Option<Paged> {
    with(|connected| connected.link.pageable_room(minor, spare)).flatten()
}

/// Returns what this process is charged for pageable memory.
pub(crate) fn paged(minor: u32) -> Paged {
    with(|connected| connected.link.paged(minor)).unwrap_or_default()
}

/// Changes what this process is charged for pageable memory. Returns the most that it can be
/// charged for if that is less. `is_last`: an allocation fails then.
pub(crate) fn repage(minor: u32, paged: Paged, spare: u64, is_last: bool) -> Result<(), Paged> {
    let charged = with(|connected| connected.link.repage(minor, paged, spare, is_last));
    charged.unwrap_or(Err(Paged::default()))
}

/// Uncharges managed memory that was unmapped or could not be mapped.
pub(crate) fn uncharge_managed(number: u64) {
    with(|connected| connected.link.uncharge_managed(number));
}

impl Connected {
    /// Creates one of the process `pid`. Under a limit, the first allocation of a forked child
    /// waits for a daemon as for one that has gone.
    fn new(pid: u32, link: Link) -> Self {
        Self {
            pid,
            mark: Mark::new(),
            given_up: if link.is_bound() { u64::MAX } else { 0 },
            link,
            slices: Slices::new(),
            attached: Vec::new(),
            told: None,
        }
    }

    /// Maintains the connection. A new connection has new pages.
    fn maintain(&mut self) {
        self.maintain_by(Link::maintain);
    }

    /// Tries to connect to a daemon that has gone, as an allocation does which has waited for so
    /// long. Returns whether it is there again, or `None` while it is to be awaited further.
    fn awaits(&mut self, waited: Duration) -> Option<bool> {
        if self.link.lost() == self.given_up {
            return Some(false);
        }
        self.maintain_by(Link::attempt);
        if self.link.connected() {
            return Some(true);
        }
        let is_other = matches!(self.link.failure(), Some(Failure::Versions(_)));
        if waited < RESTART && !is_other {
            return None;
        }
        self.given_up = self.link.lost();
        if self.link.is_bound() {
            sys::say("gctgroup: no daemon: until there is one, gmem.limit grants no more memory\n");
        }
        Some(false)
    }

    fn maintain_by(&mut self, look: fn(&mut Link, u64) -> bool) {
        let lost = self.link.lost();
        let renewed = look(&mut self.link, sys::now_ns());
        STATS
            .daemons_lost
            .fetch_add(self.link.lost() - lost, Ordering::Relaxed);
        if renewed {
            self.attached.clear();
            self.told = None;
        }
    }

    /// Maintains the connection, takes over limits and returns what else has changed.
    fn attend(&mut self) -> Vec<News> {
        self.maintain();
        self.slices.find_gpus(&mut self.link);
        self.slices.follow(&mut self.link);
        let gpus = self.link.gpus().to_vec();
        gpus.iter().filter_map(|gpu| self.news(gpu)).collect()
    }

    /// Returns the GPU whose page carries the daemon's bell, for all GPUs, and the count of its
    /// rings. Follows all limits published before.
    fn bell(&mut self) -> Option<(Arc<Gpu>, u32)> {
        let gpu = self.link.gpus().first()?.clone();
        // Read the count before following: a later ring is not lost.
        let rung = gpu.page.rings();
        self.slices.follow(&mut self.link);
        Some((gpu, rung))
    }

    /// Returns what to tell the user after an upgrade: a new daemon speaks other versions. Returns
    /// it once for each daemon.
    fn other_release(&mut self) -> Option<String> {
        let failure = self.link.failure();
        let Some(Failure::Versions(theirs)) = failure else {
            return None;
        };
        // A program that has had no daemon was told when it started.
        if self.link.lost() == 0 || self.told.replace(theirs) == Some(theirs) {
            return None;
        }
        let why = reason(&SocketPaths::from_environment().tenants, failure);
        Some(format!(
            "{why}: until then the last limits stay, and gmem.limit grants no more memory"
        ))
    }

    /// Returns what has changed on a GPU.
    fn news(&mut self, gpu: &Arc<Gpu>) -> Option<News> {
        let generation = gpu.board.generation();
        let known = self.attached.iter_mut().find(|(of, _)| *of == gpu.minor);
        if known.as_ref().is_some_and(|(_, seen)| *seen == generation) {
            return None;
        }
        let peers = self.link.peers(gpu.minor)?;
        Some(match known {
            Some((_, seen)) => {
                *seen = generation;
                News::Peers(gpu.minor, (peers, generation))
            }
            None => {
                self.attached.push((gpu.minor, generation));
                News::Gpu(
                    gpu.minor,
                    Box::new(GpuPeers::new(
                        gpu.clone(),
                        (peers, generation),
                        self.slices.shares_group(),
                    )),
                )
            }
        })
    }
}

/// A change that the daemon has published for a GPU.
#[derive(Debug)]
enum News {
    /// The daemon is new, or the GPU is.
    Gpu(u32, Box<GpuPeers>),
    /// The peers have changed. They were read after the board had this generation.
    Peers(u32, (Vec<Peer>, u64)),
}

/// Reports launches and maintains the connection for as long as the process lives.
fn look_after() {
    let mut entries = 0;
    let mut waited = Duration::ZERO;
    loop {
        wait(REPORT.max(waited));
        let now = STATS.entries.load(Ordering::Relaxed);
        waited = if now == entries { LOOK } else { REPORT };
        entries = now;
        if !look() {
            return;
        }
        if let Some(why) = with(Connected::other_release).flatten() {
            sys::say(&format!("gctgroup: {why}\n"));
        }
    }
}

/// Waits until the daemon rings, for at most `time`.
fn wait(time: Duration) {
    match with(Connected::bell).flatten() {
        Some((gpu, rung)) => gpu.page.wait(rung, time),
        None => std::thread::sleep(time),
    }
}

/// Takes over changes and reports launches. Returns false in an inert child.
fn look() -> bool {
    let news = with(Connected::attend).unwrap_or_default();
    let Some(mut shared) = worker::lock() else {
        return false;
    };
    let has_news = !news.is_empty();
    for news in news {
        match news {
            News::Gpu(gpu, peers) => shared.governors.set_peers(gpu, *peers),
            News::Peers(gpu, peers) => {
                let governor = shared.governors.of(gpu);
                if let Some(known) = governor.and_then(|governor| governor.peers_mut()) {
                    known.set_peers(peers);
                }
            }
        }
    }
    if has_news {
        // A new neighbour may await the end of what is in flight.
        shared.publish();
    }
    shared.report();
    worker::wake_for(shared);
    true
}

/// Asks the resource manager for the GPU of a new subdevice.
fn gpu_of(fd: i32, call: &Call) -> Option<u64> {
    let mut control = Control::gpu_of_subdevice(call.client, call.object);
    rm::send(fd, &mut control).ok()?;
    Some(u64::from(control.gpu()))
}

#[cfg(test)]
mod tests;
