// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks a program whose memory is pageable, with a daemon, and with a libcuda that needs no GPU
//! (`pageable/libcuda.c`).

#![allow(clippy::disallowed_types, reason = "the test is not forked")]

use gctd::testing::{Client, Daemon};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

const MIB: u64 = 1 << 20;

/// Returns the directory of the driver and the program, which are compiled once.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pageable");
        std::fs::create_dir_all(&directory).unwrap();
        let shared = ["-shared", "-fPIC", "-Wl,-Bsymbolic,-soname,libcuda.so.1"];
        compile(&directory, "libcuda.c", "libcuda.so.1", &shared);
        compile(&directory, "program.c", "program", &["-ldl"]);
        directory
    })
}

fn compile(directory: &Path, source: &str, to: &str, options: &[&str]) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pageable");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut compile = Command::new(compiler);
    compile.args(["-w", "-O1", "-o"]).arg(directory.join(to));
    let status = compile.arg(sources.join(source)).args(options).status();
    assert!(status.unwrap().success(), "{source}");
}

/// A program in a group, which does what it is told.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn new(daemon: &Daemon, client: &Client) -> Self {
        Self::of("web", daemon, client)
    }

    /// Starts one in another group.
    fn of(group: &str, daemon: &Daemon, client: &Client) -> Self {
        let test = std::env::current_exe().unwrap();
        let library = test.parent().unwrap().join("libgct_preload.so");
        assert!(library.exists(), "{library:?}");
        let mut command = Command::new(built().join("program"));
        command
            .env("LD_PRELOAD", library)
            .env("LD_LIBRARY_PATH", built())
            .env("GCTGROUP_SOCKET", daemon.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let member = child.id().to_string();
        let members = format!("{group}/group.procs");
        client.write(&members, member).unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    fn does(&mut self, what: &str) -> String {
        writeln!(self.input, "{what}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().into()
    }

    /// Allocates so many MiB.
    fn alloc(&mut self, slot: u64, mib: u64) -> String {
        self.does(&format!("alloc {slot} {}", mib * MIB))
    }

    /// Returns whether the library's thread that moves memory exists.
    fn has_pager(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
        };
        tasks.map(name).any(|name| name.trim_end() == "gct-pager")
    }

    fn state(&mut self) -> String {
        self.does("state")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns `gmem.current` and `hmem.current` of the group in MiB.
fn charged(client: &Client) -> (u64, u64) {
    let read = |file: &str| client.read(&format!("web/0/{file}")).unwrap();
    let mib = |file: &str| read(file).trim().parse::<u64>().unwrap() / MIB;
    (mib("gmem.current"), mib("hmem.current"))
}

fn bed(test: &str, limits: &[(&str, &str)]) -> (Daemon, Client) {
    let daemon = Daemon::with_memory(test, 1);
    let client = daemon.client();
    client.write("control", "create web").unwrap();
    for (file, value) in limits {
        client.write(&format!("web/0/{file}"), value).unwrap();
    }
    (daemon, client)
}

const LIMITS: &[(&str, &str)] = &[
    ("gmem.pageable", "1"),
    ("gmem.limit", "96M"),
    ("hmem.limit", "100M"),
];

#[test]
fn memory_beyond_the_limit_is_on_the_host() {
    let (daemon, client) = bed("paged", LIMITS);
    let mut program = Program::new(&daemon, &client);
    assert_eq!(program.alloc(0, 48), "0");
    assert_eq!(program.state(), "resident 48 pinned 0 streams 0 intact 1");
    assert_eq!(program.alloc(1, 80), "0");
    // 32 MiB of the limit stay free for memory that cannot move.
    assert_eq!(program.state(), "resident 64 pinned 0 streams 0 intact 1");
    assert_eq!(charged(&client), (64, 64));
    assert_eq!(program.alloc(2, 37), "2", "a clean out of memory");
    assert_eq!(client.read("web/0/gmem.events"), Ok("limit 1\n".into()));
    for slot in [0, 1, 1] {
        assert_eq!(program.does(&format!("launch {slot}")), "0");
    }
    assert_eq!(program.does("free 1"), "0");
    assert_eq!(charged(&client), (48, 0));
    assert_eq!(
        program.does(&format!("pitch 3 {} 10", MIB - 100)),
        format!("{MIB} 0")
    );
    assert_eq!(charged(&client), (58, 0));
    assert_eq!(program.state(), "resident 58 pinned 0 streams 0 intact 1");
    drop(program);
    eventually(|| charged(&client) == (0, 0));
}

#[test]
fn small_memory_and_that_of_others_stays_where_it_is() {
    let (daemon, client) = bed("unpaged", LIMITS);
    let mut program = Program::new(&daemon, &client);
    assert_eq!(program.does("alloc 0 2097151"), "0");
    assert_eq!(program.does("alloc 1 0"), "1", "libcuda's own error");
    client.write("web/0/gmem.pageable", "0").unwrap();
    assert_eq!(program.alloc(2, 8), "0");
    assert_eq!(program.state(), "resident 0 pinned 2 streams 0 intact 1");
    assert!(!program.has_pager());
    assert_eq!(program.does("free 2"), "0");
    client.write("web/0/gmem.pageable", "1").unwrap();
    assert_eq!(program.alloc(2, 8), "0");
    assert_eq!(program.state(), "resident 8 pinned 1 streams 0 intact 1");
    assert_eq!(charged(&client), (8, 0));
    eventually(|| program.has_pager());
    client.write("web/0/gmem.pageable", "0").unwrap();
    assert_eq!(program.does("free 2"), "0");
    assert_eq!(charged(&client), (0, 0));
}

/// Checks that memory which cannot move is not refused while other memory can.
#[test]
fn pageable_memory_makes_room() {
    let (daemon, client) = bed("makes-room", LIMITS);
    let mut program = Program::new(&daemon, &client);
    assert_eq!(program.alloc(0, 64), "0");
    assert_eq!(program.does("fail 1"), "0");
    assert_eq!(program.does("alloc 1 4096"), "0");
    assert_eq!(program.state(), "resident 32 pinned 1 streams 0 intact 1");
    assert_eq!(charged(&client), (32, 32));
    assert_eq!(program.does("fail 9"), "0");
    assert_eq!(
        program.does("alloc 2 4096"),
        "2",
        "it fails although there is room"
    );
}

/// Checks that it is so for every function that allocates, also beside a capture.
#[test]
fn every_allocation_finds_room() {
    let (daemon, client) = bed("finds-room", LIMITS);
    let mut program = Program::new(&daemon, &client);
    for name in [
        "cuMemAllocManaged",
        "cuMemAllocAsync",
        "cuMemAllocAsync_ptsz",
        "cuMemAllocFromPoolAsync",
        "cuMemAllocFromPoolAsync_ptsz",
        "cuMemCreate",
        "cuArrayCreate_v2",
        "cuArray3DCreate_v2",
        "cuMipmappedArrayCreate",
    ] {
        assert_eq!(program.alloc(0, 64), "0");
        assert_eq!(program.does("capture 1"), "0");
        assert_eq!(program.does("fail 1"), "0");
        assert_eq!(program.does(&format!("make {name}")), "0", "{name}");
        assert_eq!(charged(&client), (32, 32), "{name}");
        assert_eq!(program.does("capture 0"), "0", "{name} spoils a capture");
        assert_eq!(program.does("free 0"), "0");
    }
}

/// Checks that a program whose daemon dies keeps its memory and frees it.
#[test]
fn memory_outlives_the_daemon() {
    let (mut daemon, client) = bed("outlives", LIMITS);
    let mut program = Program::new(&daemon, &client);
    assert_eq!(program.alloc(0, 80), "0");
    daemon.stop();
    assert_eq!(program.does("launch 0"), "0");
    assert_eq!(program.alloc(1, 8), "0");
    assert_eq!(program.state(), "resident 64 pinned 1 streams 0 intact 1");
    for slot in [0, 1] {
        assert_eq!(program.does(&format!("free {slot}")), "0");
    }
    assert_eq!(program.state(), "resident 0 pinned 0 streams 0 intact 1");
}

/// Checks that a lowered limit holds, whether the program launches or not, and beside a capture.
#[test]
fn a_lower_limit_evicts() {
    for launches in [true, false] {
        let (daemon, client) = bed(if launches { "lower" } else { "lower-idle" }, LIMITS);
        let mut program = Program::new(&daemon, &client);
        assert_eq!(program.alloc(0, 32), "0");
        assert_eq!(program.alloc(1, 32), "0");
        assert_eq!(charged(&client), (64, 0));
        assert_eq!(program.does("capture 1"), "0");
        let writer = daemon.write("web/0/gmem.limit", "48M");
        while launches && !writer.is_finished() {
            assert_eq!(program.does("launch 0"), "0");
        }
        assert_eq!(writer.join().unwrap(), Ok(()));
        // 32 MiB of the limit stay free.
        eventually(|| charged(&client) == (16, 48));
        assert_eq!(program.does("capture 0"), "0", "the capture goes on");
        assert_eq!(program.state(), "resident 16 pinned 0 streams 0 intact 1");
        assert_eq!(program.alloc(2, 16), "0");
        assert_eq!(charged(&client), (16, 64));
    }
}

/// Checks that memory beyond `gmem.low` leaves while another group needs some, and is back later.
#[test]
fn memory_beyond_what_is_kept_gives_way() {
    let limits = [LIMITS[0], ("gmem.limit", "160M"), ("gmem.low", "64M")];
    let (daemon, client) = bed("gives-way", &limits);
    client.write("control", "create other").unwrap();
    for (file, value) in [("gmem.pageable", "1"), ("gmem.limit", "240M")] {
        client.write(&format!("other/0/{file}"), value).unwrap();
    }
    let mut lesser = Program::new(&daemon, &client);
    assert_eq!(lesser.alloc(0, 64), "0");
    assert_eq!(lesser.alloc(1, 64), "0");
    assert_eq!(charged(&client), (128, 0));
    let mut other = Program::of("other", &daemon, &client);
    assert_eq!(other.alloc(0, 144), "0");
    // 248 MiB are divided, and 32 of what is allowed stay free.
    eventually(|| charged(&client).0 <= 248 - 144 - 32);
    assert_eq!(charged(&client).1, 128 - charged(&client).0);
    assert!(charged(&client).0 > 32, "{:?}", charged(&client));
    assert_eq!(other.does("free 0"), "0");
    eventually(|| charged(&client).0 == 128);
    assert!(lesser.state().ends_with("intact 1"));
}

/// Checks that memory returns when a limit is raised, though the program launches nothing, and
/// beside a capture.
#[test]
fn a_raised_limit_brings_memory_back() {
    let (daemon, client) = bed("raise", LIMITS);
    let mut program = Program::new(&daemon, &client);
    assert_eq!(program.alloc(0, 48), "0");
    assert_eq!(program.alloc(1, 80), "0");
    assert_eq!(charged(&client), (64, 64));
    assert_eq!(program.does("capture 1"), "0");
    client.write("web/0/gmem.limit", "160M").unwrap();
    eventually(|| charged(&client) == (128, 64));
    assert_eq!(program.does("capture 0"), "0", "the capture goes on");
    assert_eq!(program.state(), "resident 128 pinned 0 streams 0 intact 1");
}

/// Checks that memory of a context that ends is uncharged, and only that.
/// Of ten pieces four fit. Once a step is known, most launches find theirs on the GPU, and all
/// memory has its contents. Meanwhile the program allocates, frees and captures.
#[test]
fn pieces_come_before_the_launches_that_use_them() {
    let (daemon, client) = bed("ahead", LIMITS);
    client.write("web/0/hmem.limit", "200M").unwrap();
    let mut program = Program::new(&daemon, &client);
    assert_eq!(program.alloc(0, 160), "0");
    assert_eq!(charged(&client), (64, 96));
    let soon = |program: &mut Program| {
        eventually(|| program.does("step 0").parse::<u32>().unwrap() >= 8);
        assert!(charged(&client).0 <= 64);
    };
    soon(&mut program);
    assert_eq!(program.alloc(1, 32), "0");
    soon(&mut program);
    assert_eq!(program.does("free 1"), "0");
    assert_eq!(program.does("capture 1"), "0");
    for _ in 0..20 {
        program.does("step 0");
    }
    assert_eq!(program.does("capture 0"), "0", "nothing spoils it");
    soon(&mut program);
    assert!(program.state().ends_with("pinned 0 streams 0 intact 1"));
}

#[test]
fn memory_ends_with_its_context() {
    let (daemon, client) = bed("ends", LIMITS);
    let mut program = Program::new(&daemon, &client);
    assert_eq!(program.alloc(0, 16), "0");
    assert_eq!(program.does("context"), "0");
    assert_eq!(program.alloc(1, 64), "0");
    assert_eq!(charged(&client), (64, 16));
    assert_eq!(program.does("destroy"), "0");
    assert_eq!(charged(&client), (16, 0));
    for hold in ["retain", "retain", "release"] {
        assert_eq!(program.does(hold), "0");
        assert_eq!(charged(&client), (16, 0), "{hold}");
    }
    assert_eq!(program.does("context"), "0");
    assert_eq!(program.alloc(1, 48), "0");
    assert_eq!(program.does("release"), "0");
    assert_eq!(charged(&client), (48, 0));
    assert_eq!(program.does("destroy"), "0");
    assert_eq!(charged(&client), (0, 0));
    drop(program);

    let mut program = Program::new(&daemon, &client);
    assert_eq!(program.alloc(0, 80), "0");
    assert_eq!(program.does("reset"), "0");
    assert_eq!(charged(&client), (0, 0));
    assert_eq!(program.state(), "resident 0 pinned 0 streams 0 intact 1");
}

/// Checks that memory which is freed in a stream is uncharged, also beside a capture.
#[test]
fn memory_that_is_freed_in_a_stream_is_uncharged() {
    let (daemon, client) = bed("freed-async", LIMITS);
    let mut program = Program::new(&daemon, &client);
    assert_eq!(program.alloc(0, 80), "0");
    assert_eq!(program.alloc(1, 1), "0");
    assert_eq!(program.does("capture 1"), "0");
    assert_eq!(
        program.does("freeasync 0"),
        "0 1",
        "after the stream's work"
    );
    assert_eq!(program.does("freeasync 1"), "0 0", "libcuda's own memory");
    assert_eq!(program.does("capture 0"), "0", "the capture goes on");
    assert_eq!(charged(&client), (0, 0));
    assert_eq!(program.state(), "resident 0 pinned 0 streams 0 intact 1");
}

/// Checks that the library's thread enters no context that was destroyed.
#[test]
fn a_destroyed_context_is_not_used() {
    for end in ["destroy", "reset"] {
        let (daemon, client) = bed(end, LIMITS);
        let mut program = Program::new(&daemon, &client);
        let (stays, ends) = match end {
            "destroy" => (0, 1),
            _ => (1, 0),
        };
        // The context that ends is the last one that was used.
        assert_eq!(program.does("context"), "0");
        assert_eq!(program.does(&format!("enter {stays}")), "0");
        assert_eq!(program.alloc(0, 48), "0");
        assert_eq!(program.does(&format!("enter {ends}")), "0");
        assert_eq!(program.alloc(1, 16), "0");
        assert_eq!(program.does(end), "0");
        assert_eq!(charged(&client), (48, 0));
        // gctd waits five seconds for memory to leave. The thread looks each second.
        assert_eq!(client.write("web/0/gmem.limit", "40M"), Err(libc::EBUSY));
        assert_eq!(program.state(), "resident 48 pinned 0 streams 0 intact 1");
    }
}

/// Checks that a move which does not end holds up neither launches, nor a child, nor the exit.
#[test]
fn a_frozen_move_holds_up_nobody() {
    let (daemon, client) = bed("frozen", LIMITS);
    for thaws in [true, false] {
        let mut program = Program::new(&daemon, &client);
        assert_eq!(program.alloc(0, 64), "0");
        assert_eq!(program.does("freeze 1"), "0");
        let writer = daemon.write("web/0/gmem.limit", "48M");
        while !writer.is_finished() && program.does("waiting") == "0" {}
        assert_eq!(program.does("launch 0"), "0");
        assert_eq!(program.does("fork"), "0");
        if thaws {
            assert_eq!(program.does("freeze 0"), "0");
            eventually(|| charged(&client) == (16, 48));
        }
        assert_eq!(program.does("quit"), "");
        assert!(program.child.wait().unwrap().success());
        assert_eq!(writer.join().unwrap(), Ok(()));
        client.write("web/0/gmem.limit", "96M").unwrap();
    }
}

/// Waits up to a minute.
fn eventually(mut holds: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("it does not become so");
}
