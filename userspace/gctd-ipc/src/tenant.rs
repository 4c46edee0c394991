// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A process's connection to the daemon.
//!
//! Without a daemon everything goes on: allocations are granted, and the last limits stay in
//! force. When one comes back, [`Link::attend`] connects again and tells it what there is.

mod ledger;

use crate::board::{BoardReader, Peer, Pulse, SlotIndex};
use crate::message::{Ioctl, Managed, Reply, Request, MANAGED_MAX};
use crate::page::{MaskWords, Page};
use crate::paths::SocketPaths;
use crate::shared::Shared;
use crate::{socket, VERSION};
use gct_core::rmapi::{self, Action, Call, Class};
use ledger::Ledger;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, Result};
use rustix::net::SendFlags;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A daemon that does not answer in this time is treated as one that is not there.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Time between two attempts to connect, in nanoseconds.
const RETRY_NS: u64 = 1_000_000_000;
/// The same after a daemon that listened and did not answer, for which callers had to wait.
const RETRY_HUNG_NS: u64 = 60_000_000_000;

/// This process on one GPU.
#[derive(Debug)]
pub struct Gpu {
    /// The N of `/dev/nvidiaN`.
    pub minor: u32,
    /// Where it is on the board, and its number there; `None` when the board is full.
    pub slot: Option<(SlotIndex, u32)>,
    /// Its limits and counters.
    pub page: Shared<Page>,
    /// Whether it has work.
    pub pulse: Shared<Pulse>,
    /// Who else is there.
    pub board: BoardReader,
}

/// Whether memory may be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The daemon granted it under this number, and waits for [`Link::leave`].
    Granted(u32),
    /// It is over the limit.
    Refused,
    /// There was nothing or nobody to ask.
    NotAsked,
}

/// The connection.
#[derive(Debug)]
pub struct Link {
    path: PathBuf,
    socket: Option<OwnedFd>,
    retry_at_ns: u64,
    error: Option<Errno>,
    lost: u64,
    ledger: Ledger,
    /// Bytes of each range of managed memory that exists, by its number.
    managed: BTreeMap<u64, u64>,
    last_managed: u64,
    gpus: Vec<Arc<Gpu>>,
}

impl Link {
    /// A link to the tenants' socket that the environment names, or to the usual one; nothing is
    /// connected yet.
    pub fn from_environment() -> Self {
        Self::new(SocketPaths::from_environment().tenants)
    }

    /// A link to a socket; nothing is connected yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            socket: None,
            retry_at_ns: 0,
            error: None,
            lost: 0,
            ledger: Ledger::default(),
            managed: BTreeMap::new(),
            last_managed: 0,
            gpus: Vec::new(),
        }
    }

    /// How often a daemon was lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether there is a daemon, as far as is known.
    pub fn connected(&self) -> bool {
        self.socket.is_some()
    }

    /// Why the last attempt to connect has failed; [`Errno::PROTO`] for a daemon of another version.
    pub fn error(&self) -> Option<Errno> {
        self.error
    }

    /// This process on the GPUs where it has asked this daemon for a page.
    pub fn gpus(&self) -> &[Arc<Gpu>] {
        &self.gpus
    }

    /// Looks after the connection: notices that the daemon has gone, and connects to a new one,
    /// once a second at most. To be called now and then; `now_ns` is monotonic. Returns `true`
    /// when a daemon was found: it has given no page yet, and [`Link::gpu_of`] asks for one. The
    /// last limits are still in those of the daemon before.
    pub fn attend(&mut self, now_ns: u64) -> bool {
        if self.socket.as_ref().is_some_and(hung_up) {
            self.lose();
        }
        if self.socket.is_some() || now_ns < self.retry_at_ns {
            return false;
        }
        self.retry_at_ns = now_ns.saturating_add(RETRY_NS);
        let connected = self.connect();
        self.error = connected.err();
        if let Err(error) = connected {
            if error == Errno::AGAIN {
                self.retry_at_ns = now_ns.saturating_add(RETRY_HUNG_NS);
            }
            return false;
        }
        for ioctl in self.ledger.living() {
            if ioctl.escape == rmapi::escape::DUP_OBJECT {
                self.tell(&Request::Enter(ioctl.clone()));
            }
            self.tell(&Request::Leave {
                ioctl,
                granted: None,
            });
        }
        for (number, bytes) in self.managed.clone() {
            self.tell(&Request::Managed(Managed { number, bytes }));
        }
        self.gpus.clear();
        true
    }

    fn connect(&mut self) -> Result<()> {
        let socket = socket::connect(&self.path, ANSWER_MAX)?;
        let hello = Request::Hello {
            version: VERSION,
            tenant: true,
        };
        match socket::greet(socket.as_fd(), &hello)? {
            Reply::Hello { version: VERSION } => {
                self.socket = Some(socket);
                Ok(())
            }
            _ => Err(Errno::PROTO),
        }
    }

    fn lose(&mut self) {
        self.socket = None;
        self.lost += 1;
    }

    /// Sends a request that is not answered.
    fn tell(&mut self, request: &Request) {
        let Some(socket) = &self.socket else { return };
        if socket::send(socket.as_fd(), request, &[], SendFlags::empty()).is_err() {
            self.lose();
        }
    }

    fn call(&mut self, request: &Request) -> Option<(Reply, Vec<OwnedFd>)> {
        self.tell(request);
        let answer = socket::receive(self.socket.as_ref()?.as_fd());
        match answer {
            Ok(answer) => Some(answer),
            Err(_) => {
                self.lose();
                None
            }
        }
    }

    /// To be called before an ioctl that [`rmapi::decode`] understands: an object that goes
    /// loses its name with the daemon, and memory is asked for.
    pub fn enter(&mut self, ioctl: &Ioctl, call: &Call) -> Verdict {
        match call.action {
            Action::Free | Action::Dup { .. } => {
                self.tell(&Request::Enter(ioctl.clone()));
                Verdict::NotAsked
            }
            Action::Alloc {
                class: Class::DeviceMemory,
                ..
            } => match self.call(&Request::Ask(ioctl.clone())) {
                Some((Reply::Granted(number), _)) => Verdict::Granted(number),
                Some((Reply::Error { .. }, _)) => Verdict::Refused,
                Some(_) => {
                    self.lose();
                    Verdict::NotAsked
                }
                None => Verdict::NotAsked,
            },
            _ => Verdict::NotAsked,
        }
    }

    /// To be called after it has run, with what the driver wrote. `verdict` is what
    /// [`Link::enter`] returned.
    pub fn leave(&mut self, ioctl: Ioctl, call: &Call, verdict: Verdict) {
        let granted = match verdict {
            Verdict::Granted(number) => Some(number),
            _ => None,
        };
        // The daemon hears of a failure only if it waits to.
        let matters = call.succeeded() && rmapi_tracked(call);
        let entered = !matches!(call.action, Action::Alloc { .. });
        if matters || granted.is_some() || entered {
            self.tell(&Request::Leave {
                ioctl: ioctl.clone(),
                granted,
            });
        }
        if matters {
            self.ledger.learn(call, ioctl);
        }
    }

    /// To be called before managed memory is mapped: the number under which it counts until
    /// [`Link::managed_gone`], or `None` if it is over the limit.
    pub fn manage(&mut self, bytes: u64) -> Option<u64> {
        let number = self.last_managed.wrapping_add(1);
        self.last_managed = number;
        match self.call(&Request::Manage(Managed { number, bytes })) {
            Some((Reply::Error { .. }, _)) => return None,
            Some((Reply::Done, _)) | None => {}
            Some(_) => self.lose(),
        }
        if self.managed.len() < MANAGED_MAX {
            self.managed.insert(number, bytes);
        }
        Some(number)
    }

    /// Managed memory is gone, or could not be mapped.
    pub fn managed_gone(&mut self, number: u64) {
        self.managed.remove(&number);
        self.tell(&Request::ManagedGone { number });
    }

    /// This process on the GPU where an object of its lies, as a channel group does. `None`
    /// without a daemon, or when it knows no such object.
    pub fn gpu_of(&mut self, client: u32, object: u32) -> Option<Arc<Gpu>> {
        let (reply, fds) = self.call(&Request::Page { client, object })?;
        let Reply::Page { minor, slot } = reply else {
            return None;
        };
        if let Some(known) = self.gpus.iter().find(|known| known.minor == minor) {
            return Some(known.clone());
        }
        let Some(gpu) = open_pages(minor, slot, &fds) else {
            // The daemon gives them once.
            self.lose();
            return None;
        };
        let gpu = Arc::new(gpu);
        self.gpus.push(gpu.clone());
        self.call(&Request::Mapped { minor })?;
        Some(gpu)
    }

    /// Says that the limits of a page's generation are in force, or with which status the
    /// resource manager has refused one of them.
    pub fn took(&mut self, minor: u32, generation: u64, refused: Option<u32>) {
        self.tell(&Request::Took {
            minor,
            generation,
            refused,
        });
    }

    /// The TPCs of a GPU that this process can count on; `None` without a daemon, or when it does not
    /// know the GPU.
    pub fn dependable(&mut self, minor: u32) -> Option<MaskWords> {
        match self.call(&Request::Dependable { minor })? {
            (Reply::Dependable(words), _) => Some(words),
            _ => None,
        }
    }

    /// The neighbours on a GPU, to be asked for again when the board's generation has grown.
    /// `None` without a daemon.
    pub fn peers(&mut self, minor: u32) -> Option<Vec<Peer>> {
        let (reply, fds) = self.call(&Request::Peers { minor })?;
        let Reply::Peers(slots) = reply else {
            return None;
        };
        let peers = slots.into_iter().zip(fds).filter_map(|((slot, user), fd)| {
            let pulse = Shared::open_read_only(fd.as_fd()).ok()?;
            Some(Peer::new(slot, user, pulse))
        });
        Some(peers.collect())
    }
}

/// Maps what the daemon gave for a GPU.
fn open_pages(minor: u32, slot: Option<(SlotIndex, u32)>, fds: &[OwnedFd]) -> Option<Gpu> {
    let [page, pulse, board] = fds else {
        return None;
    };
    Some(Gpu {
        minor,
        slot,
        page: Shared::open(page.as_fd()).ok()?,
        pulse: Shared::open(pulse.as_fd()).ok()?,
        board: BoardReader::new(Shared::open_read_only(board.as_fd()).ok()?),
    })
}

/// Whether the daemon keeps a mirror of what the call makes or frees.
fn rmapi_tracked(call: &Call) -> bool {
    match call.action {
        Action::Alloc { class, .. } => class.is_tracked(),
        Action::Free | Action::Dup { .. } => true,
        // The daemon sends no controls that a tenant's could undo.
        Action::Control(_) | Action::Share(..) => false,
    }
}

/// Decodes an ioctl of this process and answers the question that it leaves open.
///
/// `answer` reads so many bytes, 4 or 8, at an address of this process, or asks the
/// resource manager for its number of a GPU.
pub fn decode(
    escape: u32,
    bytes: &[u8],
    answer: impl FnOnce(rmapi::Question) -> Option<u64>,
) -> Option<(Ioctl, Call)> {
    let call = rmapi::decode(escape, bytes).ok()??;
    let ioctl = Ioctl {
        escape,
        bytes: bytes.to_vec(),
        hint: call.question().and_then(answer),
    };
    Some((ioctl, call))
}

fn hung_up(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match poll(&mut fds, Some(&now)) {
        Ok(1..) => fds.iter().any(|fd| !fd.revents().is_empty()),
        _ => false,
    }
}
