// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The way to the daemon: what this process allocates is asked for and told, and limits and
//! neighbours come back.
//!
//! Nothing here is on the path of a launch. Without a daemon everything is granted and goes on.

use crate::neighbours::Place;
use crate::slices::Slices;
use crate::stats::STATS;
use crate::{rm, startup, sys, worker};
use core::sync::atomic::{AtomicBool, Ordering};
use gct_core::mask::TpcMask;
use gct_core::rmapi::control::Control;
use gct_core::rmapi::{self, Action, Call, Class, Question, Undoes};
use gctd_ipc::board::Peer;
use gctd_ipc::message::Ioctl;
use gctd_ipc::paths::{SocketPaths, DIRECTORY_VARIABLE, SOCKET_VARIABLE};
use gctd_ipc::tenant::{self, Gpu, Link, ManagedCharge, Verdict};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How often the daemon is told what was launched while something is.
const REPORT: Duration = Duration::from_millis(100);
/// How often is looked after the daemon while nothing is launched.
const LOOK: Duration = Duration::from_secs(1);

/// How long a daemon that is required is waited for when a program starts.
const RESTART: Duration = Duration::from_millis(2_500);

/// The link of the process `pid`: a forked child must not speak for its parent.
#[derive(Debug)]
struct Connected {
    pid: u32,
    link: Link,
    slices: Slices,
    /// The GPUs on which the governor has a place, and the board's generation at which the
    /// neighbours were asked for.
    placed: Vec<(u32, u64)>,
}

static LINK: Mutex<Option<Connected>> = Mutex::new(None);
static STARTED: AtomicBool = AtomicBool::new(false);

/// Runs `f` with the link of this process, which is made at the first use.
fn with<T>(f: impl FnOnce(&mut Connected) -> T) -> Option<T> {
    let pid = std::process::id();
    let mut slot = match LINK.try_lock() {
        Ok(slot) => slot,
        Err(TryLockError::Poisoned(error)) => error.into_inner(),
        // In a forked child the holder may be a thread that does not exist there.
        Err(TryLockError::WouldBlock) if worker::forked_child() => return None,
        Err(TryLockError::WouldBlock) => LINK.lock().unwrap_or_else(PoisonError::into_inner),
    };
    if slot.as_ref().is_none_or(|connected| connected.pid != pid) {
        let mut link = Link::from_environment();
        link.maintain(sys::now_ns());
        *slot = Some(Connected {
            pid,
            link,
            slices: Slices::new(),
            placed: Vec::new(),
        });
    }
    slot.as_mut().map(f)
}

/// An ioctl that the daemon is told of, before it runs.
#[derive(Debug)]
pub(crate) enum Entered {
    /// It is none that matters.
    Nothing,
    /// It runs.
    Runs(Verdict),
    /// It must not run: its structure says why.
    Refused,
}

/// Tells the daemon of an ioctl, or asks it.
///
/// # Safety
///
/// `arg` is what the caller of `ioctl` passed for `request`.
pub(crate) unsafe fn before(request: u64, arg: u64) -> Entered {
    // SAFETY: passed on.
    let Some((escape, bytes)) = (unsafe { rm::structure(request, arg) }) else {
        return Entered::Nothing;
    };
    // Only what the tenant itself says can be known before.
    let size_of = |question| match question {
        // SAFETY: the tenant passes this address to the driver, which will read it.
        Question::Bytes(hint) => unsafe { word(hint) },
        _ => None,
    };
    let Some((ioctl, call)) = tenant::decode(escape, bytes, size_of) else {
        return Entered::Nothing;
    };
    let enter = |connected: &mut Connected| {
        if call.action == Action::Free {
            let Connected { link, slices, .. } = connected;
            slices.freed(call.client, call.object, link);
        }
        connected.link.enter(&ioctl, &call)
    };
    match with(enter) {
        Some(Verdict::Refused) => {
            // SAFETY: the structure is the caller's to be written, as the driver would.
            let bytes = unsafe { core::slice::from_raw_parts_mut(arg as *mut u8, bytes.len()) };
            rmapi::set_status(escape, bytes, rmapi::NO_MEMORY);
            Entered::Refused
        }
        Some(verdict) => Entered::Runs(verdict),
        None => Entered::Nothing,
    }
}

/// Tells the daemon how an ioctl of [`before`] went.
///
/// # Safety
///
/// As for [`before`]; the ioctl has run on `fd` and returned `ret`.
pub(crate) unsafe fn after(entered: Entered, fd: i32, request: u64, arg: u64, ret: i32) {
    let Entered::Runs(verdict) = entered else {
        return;
    };
    // SAFETY: passed on.
    let Some((escape, bytes)) = (unsafe { rm::structure(request, arg) }) else {
        return;
    };
    let mut bytes = bytes.to_vec();
    if ret != 0 {
        // The driver did not get as far as a status.
        rmapi::set_status(escape, &mut bytes, rmapi::NO_MEMORY);
    }
    let Ok(Some(call)) = rmapi::decode(escape, &bytes) else {
        return;
    };
    let answer = |question| match question {
        // SAFETY: the driver has read this word.
        Question::Bytes(hint) | Question::Engine(hint) => unsafe { word(hint) },
        Question::GpuOfSubdevice => gpu_of(fd, &call),
        // The subdevice will tell.
        Question::GpuOfInstance(_) => None,
    };
    let hint = call
        .question()
        .filter(|_| call.succeeded())
        .and_then(answer);
    let ioctl = Ioctl {
        escape,
        bytes,
        hint,
    };
    let grouped = with(|connected| {
        let Connected { link, slices, .. } = connected;
        link.leave(ioctl, &call, verdict);
        match call.action {
            _ if !call.succeeded() => false,
            Action::Alloc {
                class: Class::ChannelGroup,
                ..
            } => {
                slices.made(&call, hint, fd, link);
                true
            }
            Action::Alloc {
                class: Class::Channel,
                ..
            } => {
                slices.channel(&call, fd, link);
                false
            }
            Action::Alloc {
                class: Class::Subdevice,
                ..
            } => {
                slices.subdevice(&call);
                false
            }
            Action::Control(Undoes::Schedule | Undoes::ScheduleAny | Undoes::Channels(_)) => {
                slices.enabled(call.client, link);
                false
            }
            Action::Control(Undoes::Timeslice) => {
                slices.changed(call.client, call.object, link);
                false
            }
            _ => false,
        }
    });
    if grouped == Some(true) {
        look();
        if !STARTED.swap(true, Ordering::SeqCst) {
            // Without the thread the limits of now stay, and nobody hears of launches.
            sys::spawn("gct-link", look_after);
        }
    }
}

/// Whether the daemon that the environment names is there, or the one whose usual socket exists. A daemon
/// that is being restarted is waited for.
pub(crate) fn required() -> Result<(), String> {
    let socket = SocketPaths::from_environment().tenants;
    let named = [SOCKET_VARIABLE, DIRECTORY_VARIABLE].map(std::env::var_os);
    if named.iter().all(Option::is_none) && !socket.exists() {
        return Ok(());
    }
    let since = Instant::now();
    loop {
        let attend = |connected: &mut Connected| {
            connected.link.maintain(sys::now_ns());
            connected
                .link
                .connected()
                .then_some(())
                .ok_or(connected.link.error())
        };
        let error = match with(attend) {
            None | Some(Ok(())) => return Ok(()),
            Some(Err(error)) => error,
        };
        if since.elapsed() >= RESTART || startup::optional() {
            let why = error.map_or("it does not answer".into(), |error| error.to_string());
            return Err(format!("no daemon at {}: {why}", socket.display()));
        }
        std::thread::sleep(REPORT);
    }
}

/// Charges managed memory before it is mapped. Returns `None` in a forked child without a link.
pub(crate) fn charge_managed(bytes: u64) -> Option<ManagedCharge> {
    with(|connected| connected.link.charge_managed(bytes))
}

/// The TPCs that this process can count on, as far as a daemon says.
pub(crate) fn dependable(minor: u32) -> Option<TpcMask> {
    let words = with(|connected| connected.link.dependable_tpcs(minor)).flatten()?;
    Some(TpcMask::from_words(words))
}

/// Uncharges managed memory that was unmapped or could not be mapped.
pub(crate) fn uncharge_managed(number: u64) {
    with(|connected| connected.link.uncharge_managed(number));
}

impl Connected {
    /// Looks after the daemon, and says what is new.
    fn attend(&mut self) -> Vec<News> {
        let lost = self.link.lost();
        let renewed = self.link.maintain(sys::now_ns());
        STATS
            .daemons_lost
            .fetch_add(self.link.lost() - lost, Ordering::Relaxed);
        if renewed || (self.placed.is_empty() && self.link.connected()) {
            self.slices.renew(&mut self.link);
            self.placed.clear();
        }
        self.slices.follow(&mut self.link);
        let gpus = self.link.gpus().to_vec();
        gpus.iter().filter_map(|gpu| self.news(gpu)).collect()
    }

    /// Where the daemon rings, whatever GPU it is about, and how often it has. What was said
    /// before is followed.
    fn bell(&mut self) -> Option<(Arc<Gpu>, u32)> {
        let gpu = self.link.gpus().first()?.clone();
        // Before what it rang for is looked at.
        let rung = gpu.page.rings();
        self.slices.follow(&mut self.link);
        Some((gpu, rung))
    }

    /// What is new on a GPU.
    fn news(&mut self, gpu: &Arc<Gpu>) -> Option<News> {
        let generation = gpu.board.generation();
        let known = self.placed.iter_mut().find(|(of, _)| *of == gpu.minor);
        if known.as_ref().is_some_and(|(_, seen)| *seen == generation) {
            return None;
        }
        let peers = self.link.peers(gpu.minor)?;
        Some(match known {
            Some((_, seen)) => {
                *seen = generation;
                News::Peers(gpu.minor, peers)
            }
            None => {
                self.placed.push((gpu.minor, generation));
                News::Place(gpu.minor, Place::new(gpu.clone(), peers))
            }
        })
    }
}

/// What the daemon had to say of a GPU.
#[derive(Debug)]
enum News {
    /// It is another daemon, or another GPU.
    Place(u32, Place),
    /// The neighbours are others.
    Peers(u32, Vec<Peer>),
}

/// Reports what was launched and looks after the daemon, for as long as the process lives.
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
    }
}

/// Waits until the daemon rings, for `time` at most.
fn wait(time: Duration) {
    match with(Connected::bell).flatten() {
        Some((gpu, rung)) => gpu.page.wait(rung, time),
        None => std::thread::sleep(time),
    }
}

/// Hears what is new and reports what was launched; `false` in a forked child.
fn look() -> bool {
    let news = with(Connected::attend).unwrap_or_default();
    let Some(mut shared) = worker::lock() else {
        return false;
    };
    for news in news {
        match news {
            News::Place(gpu, place) => shared.governors.set_place(gpu, place),
            News::Peers(gpu, peers) => {
                let governor = shared.governors.of(gpu);
                if let Some(place) = governor.and_then(|governor| governor.place()) {
                    place.set_peers(peers);
                }
            }
        }
    }
    shared.report();
    true
}

/// A number of 4 or 8 bytes in this process's memory.
///
/// # Safety
///
/// The driver reads it there too.
unsafe fn word(hint: rmapi::Hint) -> Option<u64> {
    match hint.bytes {
        // SAFETY: by contract.
        4 => Some(u64::from(unsafe {
            (hint.address as *const u32).read_unaligned()
        })),
        // SAFETY: by contract.
        8 => Some(unsafe { (hint.address as *const u64).read_unaligned() }),
        _ => None,
    }
}

/// Asks the resource manager on which GPU a new subdevice is.
fn gpu_of(fd: i32, call: &Call) -> Option<u64> {
    let mut control = Control::gpu_of_subdevice(call.client, call.object);
    let status = rm::send(fd, &mut control);
    (status == Some(0)).then(|| u64::from(control.gpu()))
}

#[cfg(test)]
mod tests;
