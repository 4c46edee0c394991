// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A daemon without a GPU, a client of its tree, and a process that reports ioctls as the preload
//! does.
#![allow(dead_code, reason = "each test program uses its own part")]

use gct_core::rmapi::escape;
use gct_share::link::{self, Gpu, Link, Verdict};
use gct_share::message::{Ioctl, Reply, Request};
use gct_share::{socket, VERSION};
use gctd::{Mount, Options, Server, Stopper};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::SendFlags;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What the driver says of one H200, number `n` on its own bus.
fn information(n: usize) -> String {
    format!(
        "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-00112233-4455-6677-8899-aabbccddeef{n}\n\
         Bus Location: \t 0000:0{n}:00.0\nDevice Minor: \t {n}\n"
    )
}

/// A running daemon; it stops with the value.
pub(crate) struct Daemon {
    pub(crate) directory: PathBuf,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// With so many GPUs.
    pub(crate) fn new(test: &str, gpus: usize) -> Self {
        let name = format!("gctd-{test}-{}", std::process::id());
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&directory);
        for n in 0..gpus {
            let gpu = directory.join(format!("gpus/0000:0{n}:00.0"));
            fs::create_dir_all(&gpu).unwrap();
            fs::write(gpu.join("information"), information(n)).unwrap();
        }
        let (stopper, thread) = serve(Self::options_in(&directory));
        Self {
            directory,
            stopper,
            thread: Some(thread),
        }
    }

    /// Stops this one and starts another that shows its tree in a directory; `None` where FUSE
    /// cannot.
    pub(crate) fn mounted(&mut self) -> Option<(PathBuf, Mount)> {
        self.stop();
        let directory = self.directory.join("tree");
        fs::create_dir_all(&directory).unwrap();
        let server = Server::bind(&self.options()).unwrap();
        let mount = Mount::new(&server, &directory);
        self.stopper = server.stopper();
        self.thread = Some(std::thread::spawn(move || server.run().unwrap()));
        match mount {
            Ok(mount) => Some((directory, mount)),
            Err(error) => {
                eprintln!("skipped: FUSE cannot mount here: {error}");
                None
            }
        }
    }

    fn options_in(directory: &Path) -> Options {
        Options {
            socket: directory.join("gctd.sock"),
            gpus: directory.join("gpus"),
            existing: None,
        }
    }

    pub(crate) fn options(&self) -> Options {
        Self::options_in(&self.directory)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.options().socket
    }

    pub(crate) fn stop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// A new one at the same place, which knows nothing.
    pub(crate) fn restart(&mut self) {
        self.stop();
        let (stopper, thread) = serve(self.options());
        self.stopper = stopper;
        self.thread = Some(thread);
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.socket())
    }

    pub(crate) fn tenant(&self) -> Tenant {
        Tenant::new(&self.socket())
    }
}

fn serve(options: Options) -> (Stopper, JoinHandle<()>) {
    let server = Server::bind(&options).unwrap();
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

/// Asks until the answer is as wanted, for five seconds at most.
#[track_caller]
pub(crate) fn eventually<T: PartialEq + std::fmt::Debug>(wanted: &T, mut ask: impl FnMut() -> T) {
    let started = Instant::now();
    loop {
        let found = ask();
        if found == *wanted {
            return;
        }
        assert!(
            started.elapsed() < Duration::from_secs(5),
            "{found:?} does not become {wanted:?}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A client of the tree. Errors are Linux numbers.
pub(crate) struct Client(OwnedFd);

impl Client {
    pub(crate) fn new(path: &Path) -> Self {
        let client = Self(socket::connect(path).unwrap());
        let hello = Request::Hello {
            version: VERSION,
            tenant: false,
        };
        assert_eq!(client.call(&hello), Reply::Hello { version: VERSION });
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

    pub(crate) fn read(&self, path: &str) -> Result<String, i32> {
        self.text(&Request::Read { path: path.into() })
    }

    pub(crate) fn list(&self, path: &str) -> Result<Vec<String>, i32> {
        let names = self.text(&Request::List { path: path.into() })?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) -> Result<(), i32> {
        let (path, bytes) = (path.into(), text.as_ref().to_vec());
        match self.call(&Request::Write { path, bytes }) {
            Reply::Done => Ok(()),
            Reply::Error { errno } => Err(errno),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) const DEVICE: u32 = 0x5c00_0002;
pub(crate) const TSG: u32 = 0x5c00_0015;
const CHANNEL: u32 = 0x5c00_001c;

/// A process that does what libcuda does, as far as the daemon hears of it.
pub(crate) struct Tenant {
    pub(crate) link: Link,
    pub(crate) client: u32,
    clock_ns: u64,
}

/// An `NVOS64_PARAMETERS`.
pub(crate) fn alloc(client: u32, parent: u32, object: u32, class: u32) -> Vec<u8> {
    let words = [client, parent, object, class, 0x1000, 0, 0, 0, 0, 0, 0, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// An `NVOS00_PARAMETERS`.
pub(crate) fn free(client: u32, object: u32) -> Vec<u8> {
    let words = [client, 0, object, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Tenant {
    pub(crate) fn new(path: &Path) -> Self {
        let mut tenant = Self {
            link: Link::new(path),
            client: 0xc1d0_0019,
            clock_ns: 1,
        };
        tenant.attend();
        tenant
    }

    /// Looks after the link, as if seconds had passed.
    pub(crate) fn attend(&mut self) -> bool {
        self.clock_ns += 2_000_000_000;
        self.link.attend(self.clock_ns)
    }

    /// One ioctl: what the daemon says, and what the driver would.
    pub(crate) fn ioctl(
        &mut self,
        number: u32,
        bytes: &[u8],
        hint: Option<u64>,
        status: u32,
    ) -> Verdict {
        let (ioctl, call) = link::decode(number, bytes, |_| hint).unwrap();
        let verdict = self.link.enter(&ioctl, &call);
        if verdict == Verdict::Refused {
            return verdict;
        }
        let mut after = bytes.to_vec();
        assert!(gct_core::rmapi::set_status(number, &mut after, status));
        let (ioctl, call): (Ioctl, _) = link::decode(number, &after, |_| hint).unwrap();
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

    /// Memory of so many bytes: whether it could be had.
    pub(crate) fn memory(&mut self, object: u32, bytes: u64) -> bool {
        let structure = alloc(self.client, DEVICE, object, 0x40);
        self.ioctl(escape::ALLOC, &structure, Some(bytes), 0) != Verdict::Refused
    }

    pub(crate) fn free(&mut self, object: u32) {
        let structure = free(self.client, object);
        self.ioctl(escape::FREE, &structure, None, 0);
    }

    /// A client, the GPU on bus `bus`, a channel group and a channel.
    pub(crate) fn cuda(&mut self, bus: u64) -> Arc<Gpu> {
        let client = self.client;
        let root = alloc(0, 0, client, 0x41);
        self.ioctl(escape::ALLOC, &root, None, 0);
        self.alloc(client, DEVICE, 0x80, Some(bus << 8));
        self.alloc(DEVICE, TSG, 0xa06c, None);
        self.alloc(TSG, CHANNEL, 0xc86f, None);
        self.link.gpu_of(client, TSG).unwrap()
    }
}

/// This process's id as a directory of the tree.
pub(crate) fn own(file: &str) -> String {
    format!("{}/0/{file}", std::process::id())
}
