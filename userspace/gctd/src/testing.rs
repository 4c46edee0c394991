// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs a daemon without a GPU in a thread of a test, and a client of its tree.

use crate::gpus::Ask;
use crate::{Mount, Options, Server, Stopper};
use gct_core::mask::TpcMask;
use gct_core::units::Bytes;
use gctd_ipc::message::{Reply, Request};
use gctd_ipc::paths::SocketPaths;
use gctd_ipc::versions::VERSIONS;
use gctd_ipc::{driver, socket};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::SendFlags;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::thread::JoinHandleExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most time to wait for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// The 66 TPCs of an H200, which each GPU has.
pub const TPCS: &str = "0-3,9-16,18-25,27-34,36-43,45-52,54-71,75,78,81,83";

/// The memory of each GPU of a daemon [with memory](Daemon::with_memory).
pub const MEMORY: Bytes = Bytes(256 << 20);

/// Returns the driver's `information` file of H200 number `n`, on a bus of its own.
fn information(n: usize) -> String {
    format!(
        "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-00112233-4455-6677-8899-aabbccddeef{n}\n\
         Bus Location: \t 0000:0{n}:00.0\nDevice Minor: \t {n}\n"
    )
}

/// A running daemon. Dropping it stops the daemon.
#[derive(Debug)]
pub struct Daemon {
    /// Its directory, which is removed with it.
    pub directory: PathBuf,
    tpcs: Option<TpcMask>,
    memory: Option<Bytes>,
    ask: Ask,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts a daemon with at most ten GPUs. GPU N has the minor number N and is on PCI bus N.
    pub fn new(test: &str, gpus: usize) -> Self {
        let tpcs = TpcMask::parse(TPCS.as_bytes()).unwrap();
        Self::with_tpcs(test, gpus, tpcs)
    }

    /// Starts a daemon whose GPUs have [`MEMORY`]. That of others is unknown.
    pub fn with_memory(test: &str, gpus: usize) -> Self {
        let tpcs = TpcMask::parse(TPCS.as_bytes()).unwrap();
        Self::start(directory(test, gpus), Some(tpcs), Some(MEMORY))
    }

    /// Starts a daemon whose GPUs have these TPCs. An empty set means that they are unknown.
    pub fn with_tpcs(test: &str, gpus: usize, tpcs: TpcMask) -> Self {
        let directory = directory(test, gpus);
        Self::start(directory, Some(tpcs), None)
    }

    /// Starts a daemon with a GPU, the TPCs that the administrator names, and a file of a self-test
    /// under a name such as `GPU-...1.2`. The driver is version 1.2.
    pub fn with_selftest(test: &str, tpcs: Option<TpcMask>, file: &str, text: &str) -> Self {
        let directory = directory(test, 1);
        fs::write(directory.join("version"), "NVRM version: test 1.2 x\n").unwrap();
        let results = directory.join("selftest");
        fs::create_dir_all(&results).unwrap();
        fs::write(results.join(file), text).unwrap();
        Self::start(directory, tpcs, None)
    }

    /// Starts a daemon that asks about its GPUs in this way.
    pub fn with_ask(test: &str, gpus: usize, ask: Ask) -> Self {
        Self::start_asking(directory(test, gpus), None, None, ask)
    }

    fn start(directory: PathBuf, tpcs: Option<TpcMask>, memory: Option<Bytes>) -> Self {
        Self::start_asking(directory, tpcs, memory, driver::ask)
    }

    fn start_asking(
        directory: PathBuf,
        tpcs: Option<TpcMask>,
        memory: Option<Bytes>,
        ask: Ask,
    ) -> Self {
        let (stopper, thread) = serve(bind(&directory, tpcs, memory, ask));
        Self {
            directory,
            tpcs,
            memory,
            ask,
            stopper,
            thread: Some(thread),
        }
    }

    /// Restarts the daemon with its tree mounted on a directory. Returns `None` without FUSE.
    pub fn mounted(&mut self) -> Option<(PathBuf, Mount)> {
        self.stop();
        let directory = self.directory.join("tree");
        fs::create_dir_all(&directory).unwrap();
        let server = bind(&self.directory, self.tpcs, self.memory, self.ask);
        let mount = Mount::new(&server, &directory);
        self.resume(server);
        match mount {
            Ok(mount) => Some((directory, mount)),
            Err(error) => {
                eprintln!("skipped: FUSE cannot mount here: {error}");
                None
            }
        }
    }

    /// Returns the path of the tenants' socket.
    pub fn socket(&self) -> PathBuf {
        SocketPaths::of(&self.directory).tenants
    }

    /// Stops the daemon. Its directory stays.
    pub fn stop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// Returns how long the daemon has computed, whatever else the machine has to do.
    pub fn busy(&self) -> Duration {
        let thread = self.thread.as_ref().unwrap().as_pthread_t();
        let mut clock = 0;
        // SAFETY: the thread is not joined before `self` changes, and `clock` is writable.
        let found = unsafe { libc::pthread_getcpuclockid(thread, &mut clock) };
        // SAFETY: all zero is a valid `timespec`.
        let mut time: libc::timespec = unsafe { core::mem::zeroed() };
        // SAFETY: `time` is writable.
        let read = unsafe { libc::clock_gettime(clock, &mut time) };
        assert_eq!((found, read), (0, 0));
        let part = |part: i64| u64::try_from(part).unwrap();
        Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
    }

    /// Starts a new daemon in the same directory. It takes over groups, limits and members.
    pub fn restart(&mut self) {
        self.stop();
        self.resume(bind(&self.directory, self.tpcs, self.memory, self.ask));
    }

    /// Starts a new daemon that has nothing to take over, as after a boot.
    pub fn reboot(&mut self) {
        self.stop();
        fs::remove_file(self.directory.join("kept")).unwrap();
        self.restart();
    }

    /// Writes a file of the tree in a thread, because a pending write blocks its writer.
    pub fn write(
        &self,
        path: impl Into<String>,
        text: &'static str,
    ) -> JoinHandle<Result<(), i32>> {
        let (client, path) = (self.client(), path.into());
        std::thread::spawn(move || client.write(&path, text))
    }

    fn resume(&mut self, server: Server) {
        let (stopper, thread) = serve(server);
        (self.stopper, self.thread) = (stopper, Some(thread));
    }

    /// Connects a client of the tree to the administrators' socket.
    pub fn client(&self) -> Client {
        Client::new(&SocketPaths::of(&self.directory).admin)
    }

    /// Connects a client of the tree to the tenants' socket.
    pub fn reader(&self) -> Client {
        Client::new(&self.socket())
    }
}

/// Creates a daemon's directory, and below it the driver's files of some GPUs.
fn directory(test: &str, gpus: usize) -> PathBuf {
    let name = format!("gctd-{test}-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&directory);
    for n in 0..gpus {
        let gpu = directory.join(format!("gpus/0000:0{n}:00.0"));
        fs::create_dir_all(&gpu).unwrap();
        fs::write(gpu.join("information"), information(n)).unwrap();
        // Whatever the umask: the daemon refuses a directory that a group can write to.
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    }
    directory
}

fn bind(directory: &Path, tpcs: Option<TpcMask>, memory: Option<Bytes>, ask: Ask) -> Server {
    let options = Options {
        directory: directory.to_owned(),
        gpus: directory.join("gpus"),
        selftests: directory.join("selftest"),
        tpcs,
        clocks: false,
        driver_limits: false,
        cgroups: directory.join("cgroups"),
        memory,
        ask,
    };
    // A child that another thread has forked holds the lock of a daemon that was stopped, until it
    // executes its program.
    for _ in 0..100 {
        match Server::bind(&options) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                std::thread::sleep(Duration::from_millis(20));
            }
            server => return server.unwrap(),
        }
    }
    Server::bind(&options).unwrap()
}

fn serve(server: Server) -> (Stopper, JoinHandle<()>) {
    let stopper = server.stopper();
    let thread = std::thread::spawn(move || server.run().unwrap());
    (stopper, thread)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Returns the reply to a greeting of this version.
pub fn greeted() -> Reply {
    let common = VERSIONS.common(VERSIONS);
    Reply::Hello {
        versions: common.unwrap(),
    }
}

/// A client of the tree. Its errors are errnos.
#[derive(Debug)]
pub struct Client(OwnedFd);

impl Client {
    /// Connects to a socket.
    pub fn new(path: &Path) -> Self {
        let client = Self(socket::connect(path, REPLY_TIMEOUT).unwrap());
        let hello = Request::Hello {
            versions: VERSIONS,
            tenant: false,
        };
        assert_eq!(client.call(&hello), greeted());
        client
    }

    fn call(&self, request: &Request) -> Reply {
        socket::send(self.0.as_fd(), request, &[], SendFlags::empty()).unwrap();
        socket::receive(self.0.as_fd()).unwrap().0
    }

    fn text(&self, request: &Request) -> Result<String, i32> {
        let mut all = Vec::new();
        let mut reply = self.call(request);
        loop {
            match reply {
                Reply::Text { bytes, more } => {
                    all.extend(bytes);
                    if !more {
                        return Ok(String::from_utf8(all).unwrap());
                    }
                    reply = self.call(&Request::More);
                }
                Reply::Error { errno } => return Err(errno),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Returns the text of a file.
    pub fn read(&self, path: &str) -> Result<String, i32> {
        self.text(&Request::Read { path: path.into() })
    }

    /// Returns the names in a directory.
    pub fn list(&self, path: &str) -> Result<Vec<String>, i32> {
        let names = self.text(&Request::List { path: path.into() })?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// Writes a file.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) -> Result<(), i32> {
        let (path, bytes) = (path.into(), text.as_ref().to_vec());
        match self.call(&Request::Write { path, bytes }) {
            Reply::Done => Ok(()),
            Reply::Error { errno } => Err(errno),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the `NVOS64_PARAMETERS` of an allocation that succeeded.
pub fn alloc(client: u32, parent: u32, object: u32, class: u32) -> Vec<u8> {
    let words = [client, parent, object, class, 0x1000, 0, 0, 0, 0, 0, 0, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the `NVOS00_PARAMETERS` of a free.
pub fn free(client: u32, object: u32) -> Vec<u8> {
    let words = [client, 0, object, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
