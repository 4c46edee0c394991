// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The sockets: one thread serves all connections, and nobody can keep it waiting.

use crate::authority::{Door, Peer};
use crate::budget::Payer;
use crate::connection::{refuse, Connection};
use crate::daemon::{Daemon, PROCESS_EVENTS};
use crate::doors::Listeners;
use crate::process;
use gct_core::error::Error;
use gct_core::mask::TpcMask;
use gctd_ipc::message::MESSAGE_BYTES_MAX;
use gctd_ipc::socket;
use rustix::event::epoll::{self, EventFlags};
use rustix::event::{eventfd, EventfdFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{acceptfrom_with, SocketFlags};
use rustix::process::{getrlimit, setrlimit, Resource};
use rustix::time::{
    timerfd_create, timerfd_settime, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags,
    Timespec,
};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Messages of one connection that are handled before the others have their turn.
const MESSAGES_PER_TURN: usize = 64;

/// How long nobody is accepted once the kernel had no descriptor for one: who waits stays in the
/// backlog, which would wake the daemon for ever.
const ACCEPT_PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

const TENANTS: u64 = 0;
const ADMIN: u64 = 1;
const STOP: u64 = 2;
const TRIAL_TIMER: u64 = 3;
const ACCEPT_TIMER: u64 = 4;
const FIRST_CONNECTION: u64 = 5;

/// How a daemon is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where its sockets are.
    pub directory: PathBuf,
    /// Where the driver shows its GPUs.
    pub gpus: PathBuf,
    /// The TPCs that exist, if the driver is not to be asked.
    pub existing: Option<TpcMask>,
}

/// A daemon that listens.
#[derive(Debug)]
pub struct Server {
    daemon: Arc<Mutex<Daemon>>,
    epoll: Arc<OwnedFd>,
    listeners: Listeners,
    /// Runs out when somebody may be accepted again.
    accept_timer: OwnedFd,
    stop: Arc<OwnedFd>,
    connections: HashMap<u64, Connection>,
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
    /// The kernel's; `AddrInUse` when the directory has a daemon.
    pub fn bind(options: &Options) -> io::Result<Self> {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // Without it there is room for fewer.
        let _ = setrlimit(Resource::Nofile, limit);
        let fds = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);

        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let listeners = Listeners::open(&options.directory)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let accept_timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let daemon = Daemon::new(options, fds, epoll.clone(), seeds()?)?;
        for (fd, event) in [
            (listeners.tenants(), TENANTS),
            (listeners.admin(), ADMIN),
            (stop.as_fd(), STOP),
            (daemon.trials.timer(), TRIAL_TIMER),
            (accept_timer.as_fd(), ACCEPT_TIMER),
        ] {
            add(&epoll, fd, event)?;
        }
        Ok(Self {
            daemon: Arc::new(Mutex::new(daemon)),
            epoll,
            listeners,
            accept_timer,
            stop,
            connections: HashMap::new(),
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
                    TENANTS => self.accept(Door::Tenants),
                    ADMIN => self.accept(Door::Admin),
                    STOP => return Ok(()),
                    TRIAL_TIMER => lock(&self.daemon).expire(),
                    ACCEPT_TIMER => self.resume_accepting(),
                    event if event > PROCESS_EVENTS => self.process_ended(event),
                    connection => self.serve(connection),
                }
            }
        }
    }

    fn listener(&self, door: Door) -> BorrowedFd<'_> {
        match door {
            Door::Tenants => self.listeners.tenants(),
            Door::Admin => self.listeners.admin(),
        }
    }

    /// Accepts one connection, or says why not.
    fn accept(&mut self, door: Door) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match acceptfrom_with(self.listener(door), flags) {
            Ok((socket, _)) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(_) => return self.pause_accepting(),
        };
        let Some(peer) = Peer::of(socket.as_fd()) else {
            return;
        };
        let payer = match door {
            Door::Admin if !peer.writer.may_write() => return refuse(&socket, Error::Access),
            Door::Admin => Payer::ADMIN,
            Door::Tenants => {
                let cgroup = process::cgroup(peer.writer.pid);
                let key = peer.identity.as_ref().map(|identity| identity.key);
                Payer::tenant(peer.writer.uid, cgroup, key)
            }
        };
        if !lock(&self.daemon).budget.connect(&payer) {
            return refuse(&socket, Error::NoSpace);
        }
        self.last += 1;
        if add(&self.epoll, socket.as_fd(), self.last).is_err() {
            return lock(&self.daemon).budget.disconnect(&payer, 0);
        }
        let connection = Connection::new(socket, door, peer, payer);
        self.connections.insert(self.last, connection);
    }

    /// Lets those who connect wait for a while.
    fn pause_accepting(&self) {
        self.listen_for(EventFlags::empty());
        let once = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: ACCEPT_PAUSE,
        };
        // Its descriptor is a timer's and the time is one.
        let _ = timerfd_settime(&self.accept_timer, TimerfdTimerFlags::empty(), &once);
    }

    fn resume_accepting(&self) {
        // Whatever it counted, the time is over.
        let _ = rustix::io::read(&self.accept_timer, &mut [0; 8]);
        self.listen_for(EventFlags::IN);
    }

    fn listen_for(&self, events: EventFlags) {
        for (door, event) in [(Door::Tenants, TENANTS), (Door::Admin, ADMIN)] {
            let data = epoll::EventData::new_u64(event);
            // It was added, and changing it needs no memory.
            let _ = epoll::modify(&self.epoll, self.listener(door), data, events);
        }
    }

    /// Handles what a connection has sent, and forgets it when it is gone or talks nonsense.
    fn serve(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        for _ in 0..MESSAGES_PER_TURN {
            let request = match socket::receive_now(connection.socket(), &mut self.packet) {
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
        if let Some(connection) = self.connections.remove(&id) {
            connection.close(&mut lock(&self.daemon));
        }
    }

    /// A process ended, though a child of its may still hold its socket.
    fn process_ended(&mut self, event: u64) {
        let Some(key) = lock(&self.daemon).ended(event) else {
            return;
        };
        let gone = self.connections.iter().filter(|(_, c)| c.is_of(key));
        for id in gone.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.close(id);
        }
    }
}

fn add(epoll: &OwnedFd, fd: BorrowedFd<'_>, data: u64) -> rustix::io::Result<()> {
    let data = epoll::EventData::new_u64(data);
    epoll::add(epoll, fd, data, EventFlags::IN)
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
