// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A program that closes descriptors and forks, under the library with `fake_driver`. `guest.rs`
//! lists the expectations. A daemon shows it a part of the GPU's memory.

use core::ffi::{c_int, c_void, CStr};
use core::sync::atomic::{AtomicBool, Ordering};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The memory in MiB that the limit shows.
const LIMITED: u32 = 10 << 10;

/// Calls a function of the fake driver.
fn fake(name: &CStr) -> u32 {
    // SAFETY: looks a name up.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!at.is_null(), "{name:?} is not preloaded");
    // SAFETY: all of them have this form.
    let function = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> u32>(at) };
    function()
}

/// Opens the GPU, and checks that the limit is seen.
fn open() {
    assert_eq!(fake(c"fake_open_device"), 0);
    limited();
}

fn limited() {
    assert_eq!(fake(c"fake_memory_total"), LIMITED, "the limit is not seen");
}

/// Returns the sockets of this process, by number, with their names.
fn sockets() -> Vec<(RawFd, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap();
        // The directory itself is closed by the time it is looked at.
        let Ok(name) = std::fs::read_link(entry.path()) else {
            continue;
        };
        let name = name.into_os_string().into_string().unwrap();
        if name.starts_with("socket:") {
            let number = entry.file_name().into_string().unwrap();
            found.push((number.parse().unwrap(), name));
        }
    }
    found
}

/// Opens the GPU. Returns the descriptor that the library keeps.
fn kept() -> (RawFd, String) {
    assert_eq!(sockets(), [], "the program has none");
    open();
    let mut all = sockets();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Returns the number of the next descriptor.
fn next() -> RawFd {
    File::open("/dev/null").unwrap().as_raw_fd()
}

/// Closes all descriptors but the first three, as a daemon does.
fn close_all() {
    // SAFETY: nothing here uses a descriptor that it opened before.
    assert_eq!(unsafe { libc::close_range(3, u32::MAX, 0) }, 0);
}

/// Gives a descriptor the number `at`, in place of its own.
fn move_to<T: AsRawFd + FromRawFd>(file: T, at: RawFd) -> T {
    // SAFETY: a system call on a descriptor of this function's.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), at) }, at);
    // SAFETY: just made, and owned by nobody else.
    unsafe { T::from_raw_fd(at) }
}

/// Runs `f` in a child. Checks that it ends well.
fn in_child(f: impl FnOnce()) {
    // SAFETY: the child allocates, which glibc allows after a fork.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let f = std::panic::AssertUnwindSafe(f);
        let ended = std::panic::catch_unwind(f);
        // SAFETY: ends the child, and none of its parent's destructors run.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    ends_well(pid);
}

/// Waits at most 10 seconds for a child, which ends with success.
fn ends_well(pid: libc::pid_t) {
    let since = Instant::now();
    let mut status = 0;
    // SAFETY: a child of this process.
    let mut ended = || unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } != 0;
    while !ended() {
        if since.elapsed() > Duration::from_secs(10) {
            // SAFETY: as above.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            panic!("a child does not end");
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    assert_eq!(status, 0, "the child's status");
}

/// Checks that the library's descriptors have high numbers.
fn numbers() {
    let before = next();
    let (number, _) = kept();
    assert_eq!(next(), before + 1, "the GPU's node took one");
    assert!(number >= 64, "{number}");
}

/// Opens the GPU with hardly a descriptor left.
fn few() {
    let few = libc::rlimit {
        rlim_cur: 16,
        rlim_max: 16,
    };
    // SAFETY: the structure lives for the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &few) }, 0);
    kept();
}

/// Closes the library's descriptor, and puts a socket of the program in its place.
fn closes_all() {
    let (number, _) = kept();
    close_all();
    let (mine, mut peer) = UnixStream::pair().unwrap();
    let mut mine = move_to(mine, number);
    peer.write_all(b"mine").unwrap();
    open();
    limited();
    peer.set_nonblocking(true).unwrap();
    let mut text = [0; 64];
    let sent = peer.read(&mut text).map_err(|error| error.kind());
    assert_eq!(sent, Err(ErrorKind::WouldBlock), "the library sent this");
    let read = mine.read(&mut text).unwrap();
    assert_eq!(&text[..read], b"mine", "the library read the rest");
}

/// Closes all descriptors in a child, as a daemon does, and puts a file in the place of the
/// library's.
fn child_closes_all() {
    let (number, name) = kept();
    in_child(|| {
        close_all();
        let path = std::env::temp_dir().join(format!("gct-guest-{}", std::process::id()));
        let log = File::create_new(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let mut log = move_to(log, number);
        open();
        log.write_all(b"mine").unwrap();
        assert_eq!(log.metadata().unwrap().len(), 4);
    });
    assert_eq!(sockets(), [(number, name)]);
    limited();
}

/// Asks in a child, which has a connection of its own then.
fn child_connects() {
    let (number, name) = kept();
    in_child(|| {
        assert_eq!(sockets(), [], "the connection is its parent's");
        open();
        let own = sockets();
        assert_eq!(own.len(), 1, "{own:?}");
        assert_ne!(own[0].1, name, "the parent's");
    });
    assert_eq!(sockets(), [(number, name)]);
    limited();
}

/// Calls the driver in two threads without a pause, as a monitor does by NVML, while `f` runs.
fn beside_nvml(f: impl FnOnce()) {
    static ENDS: AtomicBool = AtomicBool::new(false);
    let threads = [false, true].map(|makes| {
        std::thread::spawn(move || {
            while !ENDS.load(Ordering::Relaxed) {
                match makes {
                    true => fake(c"fake_make_device"),
                    false => fake(c"fake_memory_total"),
                };
            }
        })
    });
    f();
    ENDS.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    open();
}

/// Forks beside threads that are in the library. Each child uses the GPU.
fn forks(times: u32) {
    open();
    beside_nvml(|| {
        for _ in 0..times {
            in_child(open);
        }
    });
}

/// Launches in a thread without a pause, and forks beside it. Each child asks as NVML does, which
/// is all that it can do with the GPU.
fn forks_with_channel(times: u32) {
    assert_eq!(fake(c"fake_open"), 0);
    std::thread::spawn(|| loop {
        let put = fake(c"fake_launch");
        while fake(c"fake_put") != put {
            std::thread::yield_now();
        }
        fake(c"fake_read");
    });
    for _ in 0..times {
        in_child(open);
    }
}

/// Asks in a child that shares this process's memory, as one of `vfork` does.
fn shares_memory() {
    extern "C" fn child(_: *mut c_void) -> c_int {
        fake(c"fake_memory_total");
        0
    }
    let kept = kept();
    let mut stack = vec![0u8; 1 << 20];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child has this stack, and this thread waits until it has ended.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        libc::clone(child, top, flags, core::ptr::null_mut())
    };
    ends_well(pid);
    limited();
    assert_eq!(sockets(), [kept], "the connection is the parent's");
}

/// Executes programs beside threads that are in the library. Each uses the GPU.
fn executes(times: u32) {
    open();
    let program = std::env::current_exe().unwrap();
    beside_nvml(|| {
        for _ in 0..times {
            let mut command = std::process::Command::new(&program);
            let status = command.arg("executed").status().unwrap();
            assert!(status.success(), "{status}");
        }
    });
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap();
    let times = arguments.next().map_or(1, |times| times.parse().unwrap());
    if name == "executed" {
        return open();
    }
    std::io::stdin().read_line(&mut String::new()).unwrap();
    match name.as_str() {
        "numbers" => numbers(),
        "few" => few(),
        "closes-all" => closes_all(),
        "child-closes-all" => child_closes_all(),
        "child-connects" => child_connects(),
        "forks" => forks(times),
        "forks-with-channel" => forks_with_channel(times),
        "shares-memory" => shares_memory(),
        "executes" => executes(times),
        _ => panic!("{name}?"),
    }
}
