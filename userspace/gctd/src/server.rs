// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The socket: one thread serves all connections, and nobody can keep it waiting.

use crate::authority::Peer;
use crate::daemon::{Daemon, Session, PROCESS_EVENTS};
use crate::files::ErrorNumber;
use crate::trial::Answer;
use gct_core::error::Error;
use gct_core::limits::WRITE_LEN_MAX;
use gct_core::mask::TpcMask;
use gct_share::message::{Reply, Request, CHUNK_BYTES, MESSAGE_BYTES_MAX};
use gct_share::{socket, VERSION};
use rustix::event::{epoll, eventfd, EventfdFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{chmod, Mode};
use rustix::io::Errno;
use rustix::net::{acceptfrom_with, SendFlags, SocketFlags};
use rustix::process::{getrlimit, setrlimit, Resource};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Descriptors that a connection may need: itself, its process, and the pages of some GPUs.
const FDS_PER_CONNECTION: u64 = 16;

/// Messages of one connection that are handled before the others have their turn.
const MESSAGES_PER_TURN: usize = 64;

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const TIMER: u64 = 2;
const FIRST_CONNECTION: u64 = 3;

/// How a daemon is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub socket: PathBuf,
    /// Where the driver shows its GPUs.
    pub gpus: PathBuf,
    /// The bits of the hardware's mask that have a TPC, if that is known.
    pub existing: Option<TpcMask>,
}

/// A daemon that listens.
#[derive(Debug)]
pub struct Server {
    daemon: Arc<Mutex<Daemon>>,
    epoll: Arc<OwnedFd>,
    listener: OwnedFd,
    stop: Arc<OwnedFd>,
    path: PathBuf,
    connections: HashMap<u64, Connection>,
    connections_max: usize,
    last: u64,
    packet: Vec<u8>,
}

/// Ends a server from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<OwnedFd>);

impl Stopper {
    /// Has [`Server::run`] return.
    pub fn stop(&self) {
        // The counter overflows after 2^64 stops.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    peer: Peer,
    greeted: bool,
    session: Option<Session>,
    /// What remains of a text.
    text: Vec<u8>,
}

/// Locks the daemon; a thread that panicked while it had it left it as a lock would find it
/// in the core: each of its operations is whole.
pub(crate) fn lock(daemon: &Mutex<Daemon>) -> MutexGuard<'_, Daemon> {
    daemon.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    ///
    /// The kernel's; `AddrInUse` when another daemon listens there.
    pub fn bind(options: &Options) -> io::Result<Self> {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // Without it there is room for fewer.
        let _ = setrlimit(Resource::Nofile, limit);
        let fds = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);

        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let listener = listen(options)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        add(&epoll, listener.as_fd(), LISTENER)?;
        add(&epoll, stop.as_fd(), STOP)?;
        let daemon = Daemon::new(options, epoll.clone(), seeds()?)?;
        add(&epoll, daemon.trials.timer(), TIMER)?;
        Ok(Self {
            daemon: Arc::new(Mutex::new(daemon)),
            epoll,
            listener,
            stop,
            path: options.socket.clone(),
            connections: HashMap::new(),
            connections_max: usize::try_from(fds / FDS_PER_CONNECTION).unwrap_or(usize::MAX),
            last: FIRST_CONNECTION,
            packet: vec![0; MESSAGE_BYTES_MAX],
        })
    }

    /// What ends [`Server::run`].
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    pub(crate) fn daemon(&self) -> Arc<Mutex<Daemon>> {
        self.daemon.clone()
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    ///
    /// The kernel's, when it cannot be waited any more.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                None,
            ) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    STOP => {
                        // Whoever starts next finds no socket.
                        let _ = fs::remove_file(&self.path);
                        return Ok(());
                    }
                    TIMER => lock(&self.daemon).expire(),
                    event if event > PROCESS_EVENTS => self.process_ended(event),
                    connection => self.serve(connection),
                }
            }
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok((socket, _)) = acceptfrom_with(&self.listener, flags) else {
            return;
        };
        let Some(peer) = Peer::of(socket.as_fd()) else {
            return;
        };
        let of_user = self.connections.values().filter(|c| c.peer.uid == peer.uid);
        let share = self.connections_max / if peer.uid == 0 { 1 } else { 2 };
        if of_user.count() >= share || self.connections.len() >= self.connections_max {
            return;
        }
        self.last += 1;
        if add(&self.epoll, socket.as_fd(), self.last).is_ok() {
            let connection = Connection {
                socket,
                peer,
                greeted: false,
                session: None,
                text: Vec::new(),
            };
            self.connections.insert(self.last, connection);
        }
    }

    /// Handles what a connection has sent, and forgets it when it is gone or talks nonsense.
    fn serve(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        for _ in 0..MESSAGES_PER_TURN {
            let request = match socket::receive_now(connection.socket.as_fd(), &mut self.packet) {
                Ok(request) => request,
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => return self.close(id),
            };
            if connection.handle(id, request, &self.daemon).is_err() {
                return self.close(id);
            }
        }
    }

    fn close(&mut self, id: u64) {
        if let Some(session) = self.connections.remove(&id).and_then(|c| c.session) {
            lock(&self.daemon).bye(session);
        }
    }

    /// A process ended, though a child of its may still hold its socket.
    fn process_ended(&mut self, event: u64) {
        let Some(key) = lock(&self.daemon).ended(event) else {
            return;
        };
        let of = |c: &Connection| c.session.as_ref().is_some_and(|s| s.key == key);
        let gone = self.connections.iter().filter(|(_, c)| of(c));
        for id in gone.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.close(id);
        }
    }
}

impl Connection {
    /// Answers one request. An error ends the connection.
    fn handle(
        &mut self,
        id: u64,
        request: Request,
        daemon: &Mutex<Daemon>,
    ) -> rustix::io::Result<()> {
        if self.greeted == matches!(request, Request::Hello { .. }) {
            return Err(Errno::PROTO);
        }
        let mut daemon = lock(daemon);
        match request {
            Request::Hello { version, tenant } => {
                if version != VERSION {
                    self.send(&Reply::Hello { version: VERSION }, &[])?;
                    return Err(Errno::PROTO);
                }
                self.greeted = true;
                if tenant {
                    self.session = daemon.hello(id, self.peer.pid);
                }
                self.send(&Reply::Hello { version: VERSION }, &[])
            }
            Request::List { path } => self.text(daemon.list(&path)),
            Request::Read { path } => self.text(daemon.read(&path)),
            Request::More => self.chunk(),
            Request::Write { path, bytes } => {
                // One byte over the maximum is enough for the parser to refuse it.
                let bytes = bytes.get(..WRITE_LEN_MAX + 1).unwrap_or(&bytes);
                let socket = self.socket.try_clone().map_err(|_| Errno::MFILE)?;
                let later = || -> Answer {
                    Box::new(move |outcome| {
                        // Who does not read its answers goes without.
                        let _ = send(&socket, &written(outcome), &[]);
                    })
                };
                match daemon.write(&path, bytes, self.peer, later) {
                    Some(outcome) => self.send(&written(outcome), &[]),
                    None => Ok(()),
                }
            }
            request => self.of_tenant(request, &mut daemon),
        }
    }

    /// Answers a process that reports its ioctls.
    fn of_tenant(&mut self, request: Request, daemon: &mut Daemon) -> rustix::io::Result<()> {
        let Some(session) = &mut self.session else {
            return match request {
                Request::Enter(_)
                | Request::Leave { .. }
                | Request::Managed(_)
                | Request::ManagedGone { .. }
                | Request::Took { .. } => Ok(()),
                // What cannot be followed is granted.
                Request::Ask(_) => self.send(&Reply::Granted(0), &[]),
                Request::Manage(_) => self.send(&Reply::Done, &[]),
                _ => self.refuse(Error::NoProcess),
            };
        };
        let (reply, fds): (Reply, Vec<BorrowedFd<'_>>) = match request {
            Request::Enter(ioctl) => {
                daemon.enter(session, &ioctl);
                return Ok(());
            }
            Request::Leave { ioctl, granted } => {
                daemon.leave(session, &ioctl, granted);
                return Ok(());
            }
            Request::Took {
                minor,
                generation,
                refused,
            } => {
                daemon.took(session.connection, minor, generation, refused);
                return Ok(());
            }
            Request::Ask(ioctl) => match daemon.ask(session, &ioctl) {
                Ok(number) => (Reply::Granted(number), Vec::new()),
                Err(error) => return self.refuse(error),
            },
            Request::Managed(managed) => {
                daemon.managed_exists(session, managed);
                return Ok(());
            }
            Request::ManagedGone { number } => {
                daemon.managed_gone(session, number);
                return Ok(());
            }
            Request::Manage(managed) => match daemon.manage(session, managed) {
                Ok(()) => (Reply::Done, Vec::new()),
                Err(error) => return self.refuse(error),
            },
            Request::Page { client, object } => match daemon.page(session, client, object) {
                Ok(given) => {
                    let (minor, slot) = (given.minor, given.slot);
                    (Reply::Page { minor, slot }, given.fds.to_vec())
                }
                Err(error) => return self.refuse(error),
            },
            Request::Peers { minor } => {
                let (slots, fds) = daemon.neighbours(session, minor).into_iter().unzip();
                (Reply::Peers(slots), fds)
            }
            _ => return Err(Errno::PROTO),
        };
        self.send(&reply, &fds)
    }

    fn refuse(&self, error: Error) -> rustix::io::Result<()> {
        let errno = error.errno();
        self.send(&Reply::Error { errno }, &[])
    }

    fn text(&mut self, outcome: Result<String, i32>) -> rustix::io::Result<()> {
        match outcome {
            Ok(text) => {
                self.text = text.into_bytes();
                self.chunk()
            }
            Err(errno) => self.send(&Reply::Error { errno }, &[]),
        }
    }

    fn chunk(&mut self) -> rustix::io::Result<()> {
        let rest = self.text.split_off(self.text.len().min(CHUNK_BYTES));
        let bytes = core::mem::replace(&mut self.text, rest);
        let more = !self.text.is_empty();
        self.send(&Reply::Text { bytes, more }, &[])
    }

    /// Sends without waiting: who does not read its answers is dropped.
    fn send(&self, reply: &Reply, fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        send(&self.socket, reply, fds)
    }
}

/// Sends without waiting.
fn send(socket: &OwnedFd, reply: &Reply, fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    socket::send(socket.as_fd(), reply, fds, SendFlags::DONTWAIT)
}

/// How a write went.
fn written(outcome: Result<(), ErrorNumber>) -> Reply {
    match outcome {
        Ok(()) => Reply::Done,
        Err(errno) => Reply::Error { errno },
    }
}

fn add(epoll: &OwnedFd, fd: BorrowedFd<'_>, data: u64) -> rustix::io::Result<()> {
    let data = epoll::EventData::new_u64(data);
    epoll::add(epoll, fd, data, epoll::EventFlags::IN)
}

/// Listens for everybody. A socket that nobody listens on any more is replaced.
fn listen(options: &Options) -> io::Result<OwnedFd> {
    let path = &options.socket;
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let listener = match socket::listen(path) {
        Err(Errno::ADDRINUSE) if is_abandoned(path) => {
            fs::remove_file(path)?;
            socket::listen(path)?
        }
        other => other?,
    };
    // Who may do what is asked of each peer.
    chmod(path, Mode::from_raw_mode(0o666))?;
    Ok(listener)
}

/// Whether nobody listens at a socket any more.
fn is_abandoned(path: &Path) -> bool {
    socket::connect(path).is_err_and(|error| error == Errno::CONNREFUSED)
}

/// Random numbers that nobody else knows.
fn seeds() -> io::Result<[u64; 2]> {
    let mut bytes = [[0; 8]; 2];
    let mut random = fs::File::open("/dev/urandom")?;
    for seed in &mut bytes {
        io::Read::read_exact(&mut random, seed)?;
    }
    Ok(bytes.map(u64::from_ne_bytes))
}
