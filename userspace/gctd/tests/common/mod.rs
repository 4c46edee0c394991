// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A tenant that reports ioctls as the preload library does, and helpers of the tests.
#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod nvml;
pub(crate) mod process;

use gct_core::rmapi::escape;
use gctd::testing::{alloc, free, Client, Daemon};
use gctd_ipc::message::{Ioctl, Request};
use gctd_ipc::socket;
use gctd_ipc::tenant::{self, Gpu, Link, ManagedCharge, Verdict};
use gctd_ipc::versions::Versions;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::SendFlags;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Waits up to five seconds until `ask` returns the wanted value.
#[track_caller]
pub(crate) fn eventually<T: PartialEq + std::fmt::Debug>(wanted: &T, ask: impl FnMut() -> T) {
    eventually_within(Duration::from_secs(5), wanted, ask);
}

/// Waits up to a time until `ask` returns the wanted value.
#[track_caller]
pub(crate) fn eventually_within<T: PartialEq + std::fmt::Debug>(
    time: Duration,
    wanted: &T,
    mut ask: impl FnMut() -> T,
) {
    let started = Instant::now();
    loop {
        let found = ask();
        if found == *wanted {
            return;
        }
        assert!(
            started.elapsed() < time,
            "{found:?} does not become {wanted:?}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Copies a program that is about to run.
///
/// Another program copies it: what this one has open to write is open in every child that another
/// test is forking, too, and no program runs while somebody can write to it.
#[track_caller]
pub(crate) fn copy_program(from: &str, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status();
    assert!(copied.unwrap().success(), "{from} is not copied");
}

/// Runs a function in a thread of a user, and of the group with its number alone.
pub(crate) fn as_user<T: Send + 'static>(
    user: u32,
    run: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    std::thread::spawn(move || {
        let none = core::ptr::null::<libc::gid_t>();
        // SAFETY: changes the credentials of this thread only, and it runs nothing else.
        let changed = unsafe {
            libc::syscall(libc::SYS_setgroups, 0, none)
                + libc::syscall(libc::SYS_setresgid, user, user, user)
                + libc::syscall(libc::SYS_setresuid, user, user, user)
        };
        assert_eq!(changed, 0);
        run()
    })
}

pub(crate) const DEVICE: u32 = 0x5c00_0002;
pub(crate) const TSG: u32 = 0x5c00_0015;
const CHANNEL: u32 = 0x5c00_001c;

/// A tenant that makes the ioctls of libcuda.
pub(crate) struct Tenant {
    pub(crate) link: Link,
    pub(crate) client: u32,
    clock_ns: u64,
}

impl Tenant {
    pub(crate) fn of(daemon: &Daemon) -> Self {
        Self::new(&daemon.socket())
    }

    pub(crate) fn new(path: &Path) -> Self {
        let mut tenant = Self {
            link: Link::new(path),
            client: 0xc1d0_0019,
            clock_ns: 1,
        };
        tenant.maintain();
        tenant
    }

    /// Maintains the link, two seconds later by its clock.
    pub(crate) fn maintain(&mut self) -> bool {
        self.clock_ns += 2_000_000_000;
        self.link.maintain(self.clock_ns)
    }

    /// Makes an ioctl that the driver completes with `status`. Returns the daemon's verdict.
    pub(crate) fn ioctl(
        &mut self,
        number: u32,
        bytes: &[u8],
        hint: Option<u64>,
        status: u32,
    ) -> Verdict {
        let (ioctl, call) = tenant::decode(number, bytes, |_| hint).unwrap();
        let verdict = self.link.enter(&ioctl, &call);
        if verdict == Verdict::Refused {
            return verdict;
        }
        let mut after = bytes.to_vec();
        assert!(gct_core::rmapi::set_status(number, &mut after, status));
        let (ioctl, call): (Ioctl, _) = tenant::decode(number, &after, |_| hint).unwrap();
        self.link.leave(ioctl, &call, verdict);
        verdict
    }

    pub(crate) fn alloc(&mut self, parent: u32, object: u32, class: u32, hint: Option<u64>) {
        let client = self.client;
        self.ioctl(
            escape::ALLOC,
            &alloc(client, parent, object, class),
            hint,
            0,
        );
    }

    /// Allocates device memory. Returns whether it was granted.
    pub(crate) fn memory(&mut self, object: u32, bytes: u64) -> bool {
        let structure = alloc(self.client, DEVICE, object, 0x40);
        self.ioctl(escape::ALLOC, &structure, Some(bytes), 0) != Verdict::Refused
    }

    /// Charges managed memory. Returns its number if it was granted.
    pub(crate) fn charge_managed(&mut self, bytes: u64) -> Option<u64> {
        match self.link.charge_managed(bytes) {
            ManagedCharge::Granted(number) => Some(number),
            ManagedCharge::Refused => None,
        }
    }

    pub(crate) fn free(&mut self, object: u32) {
        let structure = free(self.client, object);
        self.ioctl(escape::FREE, &structure, None, 0);
    }

    /// Allocates a client, the GPU on a bus, a channel group and a channel.
    pub(crate) fn cuda(&mut self, bus: u64) -> Arc<Gpu> {
        self.try_cuda(bus).unwrap()
    }

    /// Does the same. Returns `None` if the daemon gives no page.
    pub(crate) fn try_cuda(&mut self, bus: u64) -> Option<Arc<Gpu>> {
        let client = self.client;
        let root = alloc(0, 0, client, 0x41);
        self.ioctl(escape::ALLOC, &root, None, 0);
        self.alloc(client, DEVICE, 0x80, Some(bus << 8));
        self.alloc(DEVICE, TSG, 0xa06c, None);
        self.alloc(TSG, CHANNEL, 0xc86f, None);
        self.link.gpu_of(client, TSG)
    }
}

/// Creates the group `web` with this process as member. Returns a client of the tree.
pub(crate) fn member(daemon: &Daemon) -> Client {
    member_of(daemon.client())
}

/// Does so by a client of the tree.
pub(crate) fn member_of(client: Client) -> Client {
    client.write("control", "create web").unwrap();
    client.write("web/group.procs", "0").unwrap();
    client
}

/// Returns this process's directory on the first GPU.
pub(crate) fn own_directory() -> String {
    format!("{}/0", std::process::id())
}

/// Returns a file in this process's directory on the first GPU.
pub(crate) fn own(file: &str) -> String {
    format!("{}/{file}", own_directory())
}

/// Connects to the tenants' socket.
pub(crate) fn connect(daemon: &Daemon) -> OwnedFd {
    connect_to(&daemon.socket())
}

/// Connects to a socket.
pub(crate) fn connect_to(path: &Path) -> OwnedFd {
    socket::connect(path, Duration::from_secs(20)).unwrap()
}

/// Greets a daemon.
pub(crate) fn hello(socket: &OwnedFd, versions: Versions, tenant: bool) {
    let hello = Request::Hello { versions, tenant };
    socket::send(socket.as_fd(), &hello, &[], SendFlags::empty()).unwrap();
}

/// Returns whether the daemon still replies.
pub(crate) fn lives(daemon: &Daemon) -> bool {
    daemon.client().read("version").is_ok()
}
