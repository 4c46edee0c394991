// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Descriptors that the daemon has sent and nobody has read take nothing from others.
//!
//! The kernel counts them for the daemon's user, and refuses that user's next ones beyond its
//! limit of open files. So the daemon of these tests has a user of its own, and no capability.

mod common;

use common::process::Process as Daemon;
use common::{as_user, connect_to, eventually_within, member_of, own, Tenant, DEVICE, TSG};
use gctd::testing::{alloc, Client};
use gctd_ipc::message::{Ioctl, Reply, Request};
use gctd_ipc::socket;
use gctd_ipc::versions::VERSIONS;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType,
};
use rustix::process::{getrlimit, kill_process, prlimit, Resource, Rlimit, Signal};
use std::fs;
use std::mem::MaybeUninit;
use std::sync::mpsc::{channel, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// The descriptors that a daemon may have open, and in flight.
const FDS: u64 = 1024;

/// Most connections of a process.
const CONNECTIONS: usize = 16;

/// Time for what takes the daemon a second.
const LATEST: Duration = Duration::from_secs(60);

const MEMORY: u32 = 0x5c00_0040;
const SECOND_DEVICE: u32 = 0x5c00_1002;
const SECOND_TSG: u32 = 0x5c00_1015;

/// Starts a daemon with two GPUs. Returns `None` unless this is root: only root can start one of
/// another user.
fn start(name: &str) -> Option<Daemon> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start a daemon as another user");
        return None;
    }
    Some(Daemon::with_descriptors(name, 2, Some(FDS)))
}

/// Sends a request.
fn send(socket: &OwnedFd, request: &Request) -> rustix::io::Result<()> {
    socket::send(socket.as_fd(), request, &[], SendFlags::empty())
}

/// Greets as a tenant. Returns the connection, or the daemon's refusal.
fn greet(daemon: &Daemon) -> Result<OwnedFd, Reply> {
    let socket = connect_to(&daemon.paths().tenants);
    let (versions, tenant) = (VERSIONS, true);
    match socket::greet(socket.as_fd(), &Request::Hello { versions, tenant }) {
        Ok(Reply::Hello { .. }) => Ok(socket),
        other => Err(other.unwrap()),
    }
}

/// Connects, and makes a channel group on the first GPU.
fn with_group(daemon: &Daemon, rm_client: u32) -> OwnedFd {
    let socket = greet(daemon).unwrap();
    for bytes in [
        alloc(0, 0, rm_client, 0x41),
        alloc(rm_client, rm_client, DEVICE, 0x80),
        alloc(rm_client, DEVICE, TSG, 0xa06c),
    ] {
        let (escape, hint) = (gct_core::rmapi::escape::ALLOC, Some(0));
        let ioctl = Ioctl {
            escape,
            bytes,
            hint,
        };
        let granted = None;
        send(&socket, &Request::Leave { ioctl, granted }).unwrap();
    }
    socket
}

/// Asks for the page of a channel group. Returns how many descriptors came with the answer.
fn ask(socket: &OwnedFd, client: u32) -> usize {
    let object = TSG;
    send(socket, &Request::OpenPage { client, object }).unwrap();
    socket::receive::<Reply>(socket.as_fd()).unwrap().1.len()
}

/// Connects, and gets a page on the first GPU.
fn with_page(daemon: &Daemon, rm_client: u32) -> OwnedFd {
    let socket = with_group(daemon, rm_client);
    assert_eq!(ask(&socket, rm_client), 3);
    send(&socket, &Request::PageMapped { minor: 0 }).unwrap();
    let mapped = socket::receive::<Reply>(socket.as_fd()).unwrap().0;
    assert_eq!(mapped, Reply::Done);
    socket
}

/// Waits until the daemon has closed a connection.
fn wait_for_hang_up(socket: &OwnedFd) {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    let (tv_sec, tv_nsec) = (60, 0);
    assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec, tv_nsec })), Ok(1));
}

/// Makes a tenant with a charge, in the group `web`.
fn victim(daemon: &Daemon) -> (Tenant, Client) {
    let client = member_of(daemon.client());
    let mut victim = Tenant::new(&daemon.paths().tenants);
    victim.cuda(0);
    assert!(victim.memory(MEMORY, 4096));
    let current = || client.read("web/0/gmem.current");
    eventually_within(LATEST, &Ok("4096\n".into()), current);
    (victim, client)
}

/// Asks for the page of a channel group on the second GPU. Returns whether it came.
fn has_second_page(tenant: &mut Tenant) -> bool {
    tenant.link.gpu_of(tenant.client, SECOND_TSG).is_some()
}

/// Makes a device and a channel group on the second GPU.
fn second_gpu(tenant: &mut Tenant) {
    tenant.alloc(tenant.client, SECOND_DEVICE, 0x80, Some(1 << 8));
    tenant.alloc(SECOND_DEVICE, SECOND_TSG, 0xa06c, None);
}

#[test]
fn who_does_not_read_takes_no_descriptors_of_others() {
    let Some(daemon) = start("unread") else {
        return;
    };
    let attackers = (0..14).map(|n| with_page(&daemon, 0xc1d1_0000 + n));
    let attackers: Vec<_> = attackers.collect();
    // It has the slot of this process, so its pulse is in each answer to the others.
    let (mut victim, client) = victim(&daemon);
    for attacker in &attackers {
        // More than fit unread, and than the daemon may have in flight together.
        let ask = |_: &u32| send(attacker, &Request::Peers { minor: 0 }).is_ok();
        (0..400).take_while(ask).for_each(drop);
        wait_for_hang_up(attacker);
    }
    second_gpu(&mut victim);
    assert!(has_second_page(&mut victim));
    assert_eq!(victim.link.lost(), 0);
    assert_eq!(client.read("web/0/gmem.current"), Ok("4096\n".into()));
    assert_eq!(client.read(&own("gmem.current")), Ok("4096\n".into()));
    // What has not read stays a connection of its process.
    let others: Vec<_> = (attackers.len() + 1..CONNECTIONS)
        .map(|_| greet(&daemon).unwrap())
        .collect();
    let refused = greet(&daemon).unwrap_err();
    let errno = Errno::NOSPC.raw_os_error();
    assert_eq!(refused, Reply::Error { errno });
    // It is none once it has read, or is closed.
    let (read, closed) = attackers.split_at(7);
    for attacker in read {
        let (answer, fds) = socket::receive::<Reply>(attacker.as_fd()).unwrap();
        assert!(matches!(answer, Reply::Peers(slots) if slots.len() == 1));
        assert_eq!(fds.len(), 1);
    }
    let mut again = Vec::new();
    let mut more = || {
        again.extend(greet(&daemon));
        again.len()
    };
    eventually_within(LATEST, &read.len(), &mut more);
    assert_eq!(more(), read.len());
    let all = read.len() + closed.len();
    drop(attackers);
    eventually_within(LATEST, &all, &mut more);
    drop(others);
}

/// Checks that descriptors count until they are read, and no longer, whenever a peer has asked.
#[test]
fn what_was_read_counts_no_more() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can start a daemon as another user");
    }
    // Two connections with pages, and the descriptors of one answer, are a half of what a user may
    // have, or of what the first cgroups may, and a third in each further one.
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let cgroup = cgroups.lines().find_map(|line| line.strip_prefix("0::/"));
    let cgroup = cgroup.unwrap_or_default();
    let counted = match cgroup.starts_with("user.slice/") {
        true => 2,
        false => 8,
    };
    let parts = [2, 2, 3, 3, 3, 3, 3, 3].into_iter().take(counted);
    let room = cgroup
        .split('/')
        .zip(parts)
        .fold(14, |room, (_, of)| room * of);
    let daemon = Daemon::with_descriptors("read", 1, Some(192 + room));
    let look = || std::thread::sleep(Duration::from_millis(2500));
    let clients = [0xc1d1_0000, 0xc1d1_0001];
    let [one, other] = clients.map(|client| {
        let socket = with_group(&daemon, client);
        assert_eq!(ask(&socket, client), 3);
        look();
        socket
    });
    assert_eq!(ask(&one, clients[0]), 3);
    assert_eq!(
        ask(&other, clients[1]),
        0,
        "one answer is in flight, and there is room for no other"
    );
    look();
    assert_eq!(ask(&other, clients[1]), 3);
}

/// A peer sends its own socket along with a message that the daemon never reads, so that nobody
/// but the daemon has it, and leaves without having read its descriptors.
#[test]
fn who_leaves_its_socket_with_the_daemon_counts_no_more() {
    let Some(daemon) = start("own-socket") else {
        return;
    };
    let clients = (0xc1d1_0000..).take(CONNECTIONS);
    let attackers: Vec<_> = clients
        .map(|client| (with_group(&daemon, client), client))
        .collect();
    // All has been served.
    std::thread::sleep(Duration::from_millis(200));
    kill_process(daemon.pid(), Signal::STOP).unwrap();
    for (socket, client) in &attackers {
        let (client, object) = (*client, TSG);
        send(socket, &Request::OpenPage { client, object }).unwrap();
        // The second greeting ends the connection.
        let (versions, tenant) = (VERSIONS, true);
        send(socket, &Request::Hello { versions, tenant }).unwrap();
        net::send(socket, &[], SendFlags::empty()).unwrap();
        let fds = [socket.as_fd(); 2];
        socket::send(socket.as_fd(), &Request::More, &fds, SendFlags::empty()).unwrap();
    }
    drop(attackers);
    kill_process(daemon.pid(), Signal::CONT).unwrap();
    let mut again = Vec::new();
    let more = || {
        again.extend(greet(&daemon));
        again.len()
    };
    eventually_within(LATEST, &CONNECTIONS, more);
}

/// Keeps more descriptors in flight than the daemon may have, as its user.
struct Flood {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Flood {
    fn start(user: u32) -> Self {
        let (stop, stopped) = channel();
        let (ready, is_ready) = channel();
        let thread = as_user(user, move || {
            let flags = SocketFlags::CLOEXEC;
            let family = AddressFamily::UNIX;
            let (one, _other) = net::socketpair(family, SocketType::DGRAM, flags, None).unwrap();
            let fds = [one.as_fd(); 250];
            for _ in 0..=FDS / 250 {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(250))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
                let (bytes, flags) = ([IoSlice::new(b"x")], SendFlags::DONTWAIT);
                net::sendmsg(&one, &bytes, &mut control, flags).unwrap();
            }
            ready.send(()).unwrap();
            let _ = stopped.recv();
        });
        is_ready.recv().unwrap();
        Self { stop, thread }
    }

    fn stop(self) {
        drop(self.stop);
        self.thread.join().unwrap();
    }
}

#[test]
fn an_answer_that_cannot_be_sent_is_counted_and_drops_nobody() {
    let Some(daemon) = start("flooded") else {
        return;
    };
    let most = getrlimit(Resource::Nofile).current;
    assert!(most.is_none_or(|most| most >= FDS), "{most:?}");
    let (mut victim, client) = victim(&daemon);
    second_gpu(&mut victim);
    let flood = Flood::start(daemon.user);
    let mut newcomer = Tenant::new(&daemon.paths().tenants);
    newcomer.client += 1;
    assert!(newcomer.try_cuda(0).is_none());
    for _ in 0..10 {
        assert!(!has_second_page(&mut victim));
    }
    for tenant in [&mut victim, &mut newcomer] {
        assert!(!tenant.maintain());
        assert!(tenant.link.connected() && tenant.link.lost() == 0);
    }
    assert_eq!(client.read("web/0/gmem.current"), Ok("4096\n".into()));
    let events = client.read("events").unwrap();
    assert!(events.contains("\nunanswered 11\n"), "{events}");
    // Not once for each.
    let told = || daemon.log().matches("could not be answered").count();
    eventually_within(LATEST, &1, told);
    flood.stop();
    // A program that another test starts just now may have the flood's sockets until it runs.
    eventually_within(LATEST, &true, || has_second_page(&mut victim));
    assert!(newcomer.link.gpu_of(newcomer.client, TSG).is_some());
    assert_eq!(victim.link.lost() + newcomer.link.lost(), 0);
    assert_eq!(told(), 1, "{}", daemon.log());
}

/// A process that the daemon cannot look at is not taken for one that has ended, or that is in no
/// group.
#[test]
fn a_daemon_without_descriptors_says_so() {
    let Some(daemon) = start("none-left") else {
        return;
    };
    let (mut victim, client) = victim(&daemon);
    let limit = |most: u64| {
        let (current, maximum) = (Some(most), Some(FDS));
        let (limit, pid) = (Rlimit { current, maximum }, daemon.pid());
        let set = move || {
            prlimit(Some(pid), Resource::Nofile, limit)
                .map(drop)
                .unwrap()
        };
        as_user(daemon.user, set).join().unwrap();
    };
    let open = fs::read_dir(format!("/proc/{}/fd", daemon.pid().as_raw_nonzero())).unwrap();
    let numbers = open.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let taken: Vec<u64> = numbers.map(|number| number.parse().unwrap()).collect();
    let free = |at| (0..).filter(|number| !taken.contains(number)).nth(at);
    let errno = Errno::NOSPC.raw_os_error();
    // One for the connection; one for the pidfd of its process.
    for (more, object) in [(1, MEMORY + 1), (2, MEMORY + 2)] {
        limit(free(more).unwrap());
        assert_eq!(greet(&daemon).unwrap_err(), Reply::Error { errno });
        assert!(victim.memory(object, 4096));
    }
    limit(FDS);
    assert!(greet(&daemon).is_ok());
    let current = format!("{}\n", 3 * 4096);
    eventually_within(LATEST, &Ok(current), || client.read("web/0/gmem.current"));
    assert_eq!(victim.link.lost(), 0);
}
