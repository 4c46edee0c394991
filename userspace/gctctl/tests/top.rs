// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `gctctl top` on a terminal, with a daemon.

use gctd::testing::Daemon;
use gctd_ipc::message::{self, Reply, Request};
use gctd_ipc::paths::SocketPaths;
use gctd_ipc::socket;
use rustix::fd::AsFd;
use rustix::fs::{fcntl_getfl, fcntl_setfl, Mode, OFlags};
use rustix::net::{accept, SendFlags};
use rustix::pty::{grantpt, openpt, ptsname, unlockpt, OpenptFlags};
use rustix::termios::{tcgetattr, tcsetwinsize, Winsize};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Most time to wait for the screen or the tree.
const PATIENCE: Duration = Duration::from_secs(20);

/// gctctl top on a terminal of its own.
struct Terminal {
    child: Child,
    master: File,
    /// The other end, whose settings gctctl changes.
    slave: File,
    /// Everything that was written to the terminal.
    seen: String,
    /// Where in it the last text ended that a test waited for.
    looked: usize,
}

impl Terminal {
    fn new(daemon: &Daemon, arguments: &[&str]) -> Self {
        Self::of_directory(&daemon.directory, arguments)
    }

    fn of_directory(directory: &Path, arguments: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = File::from(rustix::fs::open(name, flags, Mode::empty()).unwrap());
        let size = Winsize {
            ws_row: 24,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&slave, size).unwrap();
        fcntl_setfl(&master, fcntl_getfl(&master).unwrap() | OFlags::NONBLOCK).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        let child = Command::new(env!("CARGO_BIN_EXE_gctctl"))
            .arg("--dir")
            .arg(directory)
            .arg("top")
            .args(arguments)
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        Self {
            child,
            master: master.into(),
            slave,
            seen: String::new(),
            looked: 0,
        }
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the terminal was sent a text after the one of the last call.
    fn shows(&mut self, text: &str) {
        let start = Instant::now();
        let end = loop {
            if let Some(at) = self.seen[self.looked..].find(text) {
                break self.looked + at + text.len();
            }
            assert!(start.elapsed() < PATIENCE, "no {text:?} in {:?}", self.seen);
            self.drain();
        };
        self.looked = end;
    }

    /// Takes a part of what the terminal was sent, or waits a little. Returns whether there was
    /// any.
    fn drain(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let read = self.master.read(&mut bytes);
        match read {
            Ok(count) => self.seen += &String::from_utf8_lossy(&bytes[..count]),
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
        read.is_ok()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn keys_change_the_tree_and_the_terminal_is_as_before() {
    let daemon = Daemon::new("top", 1);
    let admin = daemon.client();
    admin.write("control", "create web").unwrap();
    let mut terminal = Terminal::new(&daemon, &["--interval", "200ms"]);
    terminal.shows("web");
    terminal.press("f");
    eventually("f freezes", || {
        admin.read("web/0/compute.freeze") == Ok("1\n".into())
    });
    terminal.shows("frozen");
    terminal.press("f");
    eventually("f thaws", || {
        admin.read("web/0/compute.freeze") == Ok("0\n".into())
    });
    terminal.press("stpc.mask=0-3\r");
    eventually("s sets", || {
        admin.read("web/0/tpc.mask") == Ok("0-3\n".into())
    });
    terminal.press("stpc.mask=9999\r");
    terminal.shows("ERANGE");
    // A group that appears is shown, without a key.
    admin.write("control", "create train").unwrap();
    terminal.shows("train");
    let is_raw = |slave: &File| {
        let modes = tcgetattr(slave).unwrap().local_modes;
        !modes.contains(rustix::termios::LocalModes::ECHO)
    };
    assert!(is_raw(&terminal.slave));
    terminal.press("q");
    assert!(terminal.child.wait().unwrap().success());
    assert!(!is_raw(&terminal.slave));
    // It leaves the alternate screen.
    terminal.shows("\u{1b}[?1049l");
}

#[test]
fn a_daemon_that_goes_is_said_and_waited_for() {
    let mut daemon = Daemon::new("top-restart", 1);
    daemon.client().write("control", "create web").unwrap();
    let mut terminal = Terminal::new(&daemon, &["--interval", "200ms"]);
    terminal.shows("web");
    daemon.stop();
    terminal.shows("There is no gctgroup tree");
    daemon.restart();
    daemon.client().write("control", "create after").unwrap();
    terminal.shows("after");
    terminal.shows("q quit");
    terminal.press("\u{3}");
    assert!(terminal.child.wait().unwrap().success());
}

#[test]
fn without_a_terminal_it_says_what_else_there_is() {
    let daemon = Daemon::new("top-pipe", 1);
    let output = Command::new(env!("CARGO_BIN_EXE_gctctl"))
        .arg("--dir")
        .arg(&daemon.directory)
        .arg("top")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("gctctl stat --interval"), "{said}");
}

/// What `top` asked a daemon for, and what it wrote.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    requests: usize,
    /// Bytes of requests and replies.
    bytes: usize,
    /// Bytes to the terminal.
    shown: usize,
}

/// Starts a daemon with a hundred groups on a GPU.
fn hundred_groups(test: &str) -> Daemon {
    let daemon = Daemon::new(test, 1);
    let admin = daemon.client();
    for group in 0..100 {
        let name = format!("group{group}");
        admin.write("control", format!("create {name}")).unwrap();
    }
    daemon
}

/// Passes the requests of one client on to a daemon, until the client goes.
fn pass_on(listener: &impl AsFd, daemon: &Path) -> Cost {
    let client = accept(listener).unwrap();
    let server = socket::connect(daemon, PATIENCE).unwrap();
    let mut cost = Cost::default();
    let flags = SendFlags::empty();
    while let Ok((request, _)) = socket::receive::<Request>(client.as_fd()) {
        socket::send(server.as_fd(), &request, &[], flags).unwrap();
        let reply: Reply = socket::receive(server.as_fd()).unwrap().0;
        socket::send(client.as_fd(), &reply, &[], flags).unwrap();
        cost.requests += 1;
        cost.bytes += message::encode(&request).len() + message::encode(&reply).len();
    }
    cost
}

/// Returns what `top` costs that looks `looks` times after its first one, and ends.
fn cost(daemon: &Daemon, looks: usize) -> Cost {
    let directory: PathBuf = daemon.directory.join("counted");
    let _ = std::fs::remove_dir_all(&directory);
    let counted = SocketPaths::of(&directory).tenants;
    std::fs::create_dir_all(counted.parent().unwrap()).unwrap();
    let listener = socket::listen(&counted, Mode::RUSR | Mode::WUSR).unwrap();
    let behind = daemon.socket();
    let counter = thread::spawn(move || pass_on(&listener, &behind));
    let mut terminal = Terminal::of_directory(&directory, &["--interval", "1000s"]);
    terminal.shows("group");
    terminal.press(&format!("{}q", " ".repeat(looks)));
    let start = Instant::now();
    while terminal.child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < 10 * PATIENCE, "top does not end");
        terminal.drain();
    }
    while terminal.drain() {}
    let shown = terminal.seen.len();
    let counted = counter.join().unwrap();
    Cost { shown, ..counted }
}

/// Checks what a look costs, whatever the speed of this machine: what `top` asks for, and what it
/// draws while nothing changes. gctctl.md has the numbers.
#[test]
fn a_look_at_a_hundred_groups_costs_what_the_page_says() {
    const LOOKS: usize = 5;
    let daemon = hundred_groups("top-look");
    // The second look is the first with rates.
    let [few, many] = [2, 2 + LOOKS].map(|looks| cost(&daemon, looks));
    let each = |of: fn(Cost) -> usize| (of(many) - of(few)) / LOOKS;
    let [requests, bytes, shown] = [
        each(|cost| cost.requests),
        each(|cost| cost.bytes),
        each(|cost| cost.shown),
    ];
    println!("a look: {requests} requests, {bytes} bytes, {shown} bytes to the terminal");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../gctgroup-docs/gctctl.md");
    let page = std::fs::read_to_string(page).unwrap();
    let said = format!("{requests} requests, {} KiB", bytes.div_ceil(1024));
    assert!(page.contains(&said), "gctctl.md does not say {said:?}");
    assert!(shown <= 64, "{shown} bytes for nothing new");
}

/// Measures what `top` costs with a hundred groups: `cargo test --release -p gctctl --test top --
/// --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_with_a_hundred_groups() {
    const SECONDS: u64 = 20;
    let daemon = hundred_groups("top-cost");
    let mut terminal = Terminal::new(&daemon, &[]);
    terminal.shows("group");
    let ticks = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields = stat.rsplit(')').next().unwrap().split_ascii_whitespace();
        let times = fields.skip(11).take(2);
        times
            .map(|field| field.parse::<u64>().unwrap())
            .sum::<u64>()
    };
    let (top, own) = (terminal.child.id(), std::process::id());
    let before = (ticks(top), ticks(own));
    thread::sleep(Duration::from_secs(SECONDS));
    let used = (ticks(top) - before.0, ticks(own) - before.1);
    println!(
        "of a core: top {}.{:02}%, gctd {}.{:02}%",
        used.0 / SECONDS,
        used.0 % SECONDS * 100 / SECONDS,
        used.1 / SECONDS,
        used.1 % SECONDS * 100 / SECONDS
    );
}
