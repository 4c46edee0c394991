// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Accepts and serves all connections in one thread, which no client can block.

use crate::budget::Account;
use crate::connection::{refuse, Connection};
use crate::daemon::{Daemon, FIRST_WATCH};
use crate::listeners::Listeners;
use crate::notify;
use crate::options::Options;
use crate::peer::{has_gone, Endpoint, Peer};
use crate::process;
use crate::shared::SharedDaemon;
use crate::timer::Timer;
use crate::turns::Turns;
use crate::wire::Wire;
use gct_core::error::Error;
use gctd_ipc::message::{CHUNK_BYTES, MESSAGE_BYTES_MAX};
use gctd_ipc::socket;
use rustix::event::epoll::{self, EventFlags};
use rustix::event::{eventfd, EventfdFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{acceptfrom_with, SocketFlags};
use rustix::process::{getrlimit, setrlimit, Resource};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Most messages of one connection that are served in a [turn](crate::turns).
const MESSAGES_PER_TURN: usize = 2;

/// Most connections that are closed in a round because their peers have gone.
const GONE_PER_ROUND: usize = 64;

/// What a tenant may leave unread, in a buffer of the kernel's that is twice as large, for what it
/// adds to each reply. The kernel charges it to the daemon. It has room for the longest reply.
const UNREAD_BYTES: usize = CHUNK_BYTES;

/// Time without `accept` after the kernel had no descriptor for a connection. The connection stays
/// in the backlog, so epoll would report it in a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TENANTS: u64 = 0;
const ADMIN: u64 = 1;
const STOP: u64 = 2;
const ACK_TIMER: u64 = 3;
const ACCEPT_TIMER: u64 = 4;
const LOOKS_TIMER: u64 = 5;
const LOWERINGS_TIMER: u64 = 6;
const BALANCES_TIMER: u64 = 7;
const CLOCKS_TIMER: u64 = 8;
const CONNECTIONS_TIMER: u64 = 9;
const ANSWERS_TIMER: u64 = 10;
const WATCHDOG_TIMER: u64 = 11;
const PUBLISH_TIMER: u64 = 12;
const FIRST_CONNECTION: u64 = 13;

/// A connection is heard of once, until it has been served.
const ONCE: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

/// Time for the first message of a connection, which a client sends at once.
const GREETING_TIME: Duration = Duration::from_secs(5);

/// The interval of looks at connections that have not greeted, or not read descriptors.
const CONNECTIONS_LOOK: Duration = Duration::from_secs(1);

/// A listening daemon.
#[derive(Debug)]
pub struct Server {
    daemon: SharedDaemon,
    epoll: Arc<OwnedFd>,
    listeners: Listeners,
    /// Expires when connections may be accepted again.
    accept_timer: Timer,
    /// Expires again and again while `looks_due`.
    connections_timer: Timer,
    /// Whether a connection may not have greeted, or not read descriptors.
    looks_due: bool,
    /// Expires when systemd wants to hear from the daemon.
    watchdog_timer: Timer,
    stop: Arc<OwnedFd>,
    connections: HashMap<u64, Connection>,
    /// The connections of each process on the tenants' socket.
    processes: HashMap<(u32, u64), HashSet<u64>>,
    turns: Turns,
    /// What remains of connections that were closed before the peer had read its descriptors.
    unread: Vec<Wire>,
    last_id: u64,
    packet: Vec<u8>,
}

/// Stops a server from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<OwnedFd>);

impl Stopper {
    /// Makes [`Server::run`] return.
    pub fn stop(&self) {
        // Fails only if the counter would overflow, after 2^64 stops.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Server {
    /// Listens on both sockets, and raises the limit of descriptors to its maximum.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if the directory has a daemon, and those of the kernel.
    pub fn bind(options: &Options) -> io::Result<Self> {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // On failure the daemon serves fewer connections.
        let _ = setrlimit(Resource::Nofile, limit);
        let fds = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);

        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let listeners = Listeners::open(&options.directory)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let accept_timer = Timer::new()?;
        let connections_timer = Timer::new()?;
        let watchdog_timer = Timer::new()?;
        let daemon = Daemon::new(options, fds, epoll.clone(), seeds()?)?;
        for (fd, event) in [
            (listeners.tenants(), TENANTS),
            (listeners.admin(), ADMIN),
            (stop.as_fd(), STOP),
            (daemon.ack_timer(), ACK_TIMER),
            (daemon.looks_timer(), LOOKS_TIMER),
            (daemon.lowerings_timer(), LOWERINGS_TIMER),
            (daemon.balances_timer(), BALANCES_TIMER),
            (daemon.clocks_timer(), CLOCKS_TIMER),
            (daemon.answers_timer(), ANSWERS_TIMER),
            (daemon.publish_timer(), PUBLISH_TIMER),
            (accept_timer.as_fd(), ACCEPT_TIMER),
            (connections_timer.as_fd(), CONNECTIONS_TIMER),
            (watchdog_timer.as_fd(), WATCHDOG_TIMER),
        ] {
            add(&epoll, fd, event, EventFlags::IN)?;
        }
        Ok(Self {
            daemon: SharedDaemon::new(daemon),
            epoll,
            listeners,
            accept_timer,
            connections_timer,
            looks_due: false,
            watchdog_timer,
            stop,
            connections: HashMap::new(),
            processes: HashMap::new(),
            turns: Turns::default(),
            unread: Vec::new(),
            last_id: FIRST_CONNECTION,
            packet: vec![0; MESSAGE_BYTES_MAX],
        })
    }

    /// Returns a handle that stops [`Server::run`].
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }

    /// Returns the daemon, for FUSE.
    pub(crate) fn daemon(&self) -> SharedDaemon {
        self.daemon.clone()
    }

    /// Serves until a [`Stopper`] stops it.
    ///
    /// # Errors
    ///
    /// Those of `epoll_wait`.
    pub fn run(mut self) -> io::Result<()> {
        if let Some(interval) = notify::interval() {
            self.watchdog_timer.every(interval);
        }
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            // With somebody waiting, a look alone.
            let at_once = (self.turns.in_round() > 0).then(Timespec::default);
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                at_once.as_ref(),
            ) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            for event in &events {
                match event.data.u64() {
                    TENANTS => self.accept(Endpoint::Tenants),
                    ADMIN => self.accept(Endpoint::Admin),
                    STOP => {
                        self.daemon.lock().end_clocks();
                        return Ok(());
                    }
                    ACK_TIMER => self.daemon.lock().ack_timeout(),
                    LOOKS_TIMER => self.daemon.lock().look_at_requests(),
                    LOWERINGS_TIMER => self.daemon.lock().look_at_lowerings(),
                    BALANCES_TIMER => self.daemon.lock().look_at_memory(),
                    CLOCKS_TIMER => self.daemon.lock().look_at_clocks(),
                    ANSWERS_TIMER => self.daemon.lock().look_at_answers(),
                    ACCEPT_TIMER => self.resume_accepting(),
                    CONNECTIONS_TIMER => self.look_at_connections(),
                    WATCHDOG_TIMER if self.watchdog_timer.has_expired() => notify::serves(),
                    WATCHDOG_TIMER => {}
                    PUBLISH_TIMER => self.daemon.lock().has_rested(),
                    event if event > FIRST_WATCH => self.process_ended(event),
                    connection => self.wait(connection),
                }
            }
            for _ in 0..self.turns.in_round() {
                if let Some(connection) = self.turns.next() {
                    self.serve(connection);
                }
            }
            self.daemon.lock().publish_if_due();
        }
    }

    fn listener(&self, endpoint: Endpoint) -> BorrowedFd<'_> {
        match endpoint {
            Endpoint::Tenants => self.listeners.tenants(),
            Endpoint::Admin => self.listeners.admin(),
        }
    }

    /// Accepts one connection, or refuses it with a reason. Those whose peers have gone already are
    /// closed on the way, [`GONE_PER_ROUND`] at most: to look who they were would take longer.
    fn accept(&mut self, endpoint: Endpoint) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..GONE_PER_ROUND {
            match acceptfrom_with(self.listener(endpoint), flags) {
                Ok((socket, _)) if has_gone(socket.as_fd()) => {}
                Ok((socket, _)) => return self.serve_next(endpoint, socket),
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                Err(_) => return self.pause_accepting(),
            }
        }
    }

    fn serve_next(&mut self, endpoint: Endpoint, socket: OwnedFd) {
        let Some(peer) = Peer::of(socket.as_fd()) else {
            return;
        };
        let account = match self.admit(endpoint, &peer) {
            Ok(account) => account,
            Err(error) => return refuse(&socket, error),
        };
        if endpoint == Endpoint::Tenants {
            // Fails for no size.
            let _ = set_socket_send_buffer_size(&socket, UNREAD_BYTES);
        }
        self.last_id += 1;
        if add(&self.epoll, socket.as_fd(), self.last_id, ONCE).is_err() {
            return self.daemon.lock().budget.disconnect(&account);
        }
        if let Some(process) = account.process {
            self.processes
                .entry(process)
                .or_default()
                .insert(self.last_id);
        }
        let connection = Connection::new(Wire::new(socket, account), endpoint, peer);
        self.connections.insert(self.last_id, connection);
        self.look_soon();
    }

    /// Charges a new connection, and watches the process of a tenant's: it holds descriptors for
    /// as long as its process lives, and counts for that process.
    fn admit(&self, endpoint: Endpoint, peer: &Peer) -> Result<Account, Error> {
        let mut daemon = self.daemon.lock();
        if endpoint == Endpoint::Admin {
            if !peer.credentials.is_admin() {
                return Err(Error::Access);
            }
            let fits = daemon.budget.connect(&Account::ADMIN);
            return fits.then_some(Account::ADMIN).ok_or(Error::NoSpace);
        }
        let identity = peer.identity.as_ref().map_err(|error| *error)?;
        let cgroup = process::cgroup(peer.credentials.pid)?;
        if !identity.lives() {
            // The cgroup may be that of another process.
            return Err(Error::NoProcess);
        }
        let account = Account::tenant(peer.credentials.uid, &cgroup, identity.key);
        if !daemon.budget.connect(&account) {
            return Err(Error::NoSpace);
        }
        let watched = daemon.watch(identity, &account);
        if watched.is_err() {
            daemon.budget.disconnect(&account);
        }
        watched.map(|()| account)
    }

    /// Looks at connections from now on.
    fn look_soon(&mut self) {
        if !core::mem::replace(&mut self.looks_due, true) {
            self.connections_timer.every(CONNECTIONS_LOOK);
        }
    }

    /// Closes the connections that have not greeted in time, and uncharges descriptors that peers
    /// have read.
    fn look_at_connections(&mut self) {
        // Clears the event. Looks that were missed do not matter.
        let _ = self.connections_timer.has_expired();
        let mute = self.connections.iter().filter(|(_, c)| c.is_mute());
        let late = mute.filter(|(_, c)| c.age() >= GREETING_TIME);
        for id in late.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.close(id);
        }
        let mut daemon = self.daemon.lock();
        self.unread.retain_mut(|wire| !wire.end(&mut daemon.budget));
        let mut due = !self.unread.is_empty();
        for connection in self.connections.values_mut() {
            connection.settle(&mut daemon);
            due |= connection.is_mute() || connection.is_unsettled();
        }
        if !due {
            self.looks_due = false;
            self.connections_timer.stop();
        }
    }

    /// Stops accepting for [`ACCEPT_PAUSE`].
    fn pause_accepting(&self) {
        self.listen_for(EventFlags::empty());
        self.accept_timer.once(ACCEPT_PAUSE);
    }

    fn resume_accepting(&self) {
        // Clears the event. The count does not matter.
        let _ = self.accept_timer.has_expired();
        self.listen_for(EventFlags::IN);
    }

    fn listen_for(&self, events: EventFlags) {
        for (endpoint, event) in [(Endpoint::Tenants, TENANTS), (Endpoint::Admin, ADMIN)] {
            let data = epoll::EventData::new_u64(event);
            // Cannot fail: the socket was added, and the change needs no memory.
            let _ = epoll::modify(&self.epoll, self.listener(endpoint), data, events);
        }
    }

    /// Gives a connection that has sent something, or is gone, a turn.
    fn wait(&mut self, id: u64) {
        if let Some(connection) = self.connections.get(&id) {
            self.turns.wait(connection.account(), id);
        }
    }

    /// Serves messages of a connection in its turn. Closes it if the peer is gone or breaks the
    /// protocol.
    fn serve(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let mut has_more = true;
        for _ in 0..MESSAGES_PER_TURN {
            let request = match socket::receive_now(connection.socket(), &mut self.packet) {
                Ok(request) => request,
                Err(Errno::AGAIN | Errno::INTR) => {
                    has_more = false;
                    break;
                }
                Err(_) => return self.close(id),
            };
            if connection.handle(id, request, &self.daemon).is_err() {
                return self.close(id);
            }
        }
        if !has_more {
            let data = epoll::EventData::new_u64(id);
            // Cannot fail: the socket was added, and the change needs no memory.
            let _ = epoll::modify(&self.epoll, connection.socket(), data, ONCE);
        }
        if connection.is_unsettled() {
            self.look_soon();
        }
        if has_more {
            self.wait(id);
        }
    }

    fn close(&mut self, id: u64) {
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        if let Some(process) = connection.account().process {
            if let Some(ids) = self.processes.get_mut(&process) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.processes.remove(&process);
                }
            }
        }
        let rest = connection.close(&self.epoll, &mut self.daemon.lock());
        if let Some(rest) = rest {
            self.unread.push(rest);
            self.look_soon();
        }
    }

    /// Closes the connections of a process that ended. A child may still hold its socket.
    fn process_ended(&mut self, event: u64) {
        let Some(key) = self.daemon.lock().process_ended(event) else {
            return;
        };
        let process = (key.tgid, key.start_time_ns);
        for id in self.processes.remove(&process).into_iter().flatten() {
            if let Some(connection) = self.connections.get(&id) {
                connection.refuse_heir();
            }
            self.close(id);
        }
    }
}

fn add(
    epoll: &OwnedFd,
    fd: BorrowedFd<'_>,
    data: u64,
    events: EventFlags,
) -> rustix::io::Result<()> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(data), events)
}

/// Returns random seeds for the hash tables, so that tenants cannot choose colliding keys.
fn seeds() -> io::Result<[u64; 2]> {
    let mut bytes = [[0; 8]; 2];
    let mut random = fs::File::open("/dev/urandom")?;
    for seed in &mut bytes {
        io::Read::read_exact(&mut random, seed)?;
    }
    Ok(bytes.map(u64::from_ne_bytes))
}
