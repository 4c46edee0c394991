// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A program that runs under the library with `fake_driver`. `programs.rs` and `native.rs` list the
//! expectations.

mod ends;
mod limited;

use core::ffi::{c_int, c_void, CStr};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::process::exit;
use std::time::{Duration, Instant};

/// The handlers that ran, as bits or counts.
static RAN: AtomicU32 = AtomicU32::new(0);
/// The stack address of the last handler.
static STACK: AtomicUsize = AtomicUsize::new(0);

fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: looks a name up.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!at.is_null(), "{name:?} is not preloaded");
    at
}

/// Calls a function of the fake driver.
fn fake(name: &CStr) -> u32 {
    // SAFETY: all of them have this form.
    let function =
        unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> u32>(symbol(name)) };
    function()
}

fn open() {
    assert_eq!(fake(c"fake_open"), 0);
}

/// Launches, and waits until the GPU has seen the entry.
fn launch() {
    let put = fake(c"fake_launch");
    published(put);
}

/// Waits until the GPU has seen an entry.
fn published(put: u32) {
    let since = Instant::now();
    while fake(c"fake_put") != put || fake(c"fake_rung") != 0xa {
        assert!(since.elapsed() < Duration::from_secs(10), "not published");
        std::hint::spin_loop();
    }
    fake(c"fake_read");
}

/// Builds an action of the program.
fn action(handler: usize, flags: c_int, mask: &[c_int]) -> libc::sigaction {
    // SAFETY: all zero is valid.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    for signal in mask {
        // SAFETY: an initialised set.
        unsafe { libc::sigaddset(&mut action.sa_mask, *signal) };
    }
    action
}

/// Installs a handler. Returns the previous one.
fn install(signal: c_int, new: &libc::sigaction) -> libc::sigaction {
    let mut old = action(0, 0, &[]);
    // SAFETY: both live for the call.
    assert_eq!(unsafe { libc::sigaction(signal, new, &mut old) }, 0);
    old
}

fn installed() -> libc::sigaction {
    let mut old = action(0, 0, &[]);
    // SAFETY: asks only.
    unsafe { libc::sigaction(libc::SIGSEGV, core::ptr::null(), &mut old) };
    old
}

/// Reads an unmapped address.
fn crash() {
    // SAFETY: none: it faults, which is the point.
    unsafe { core::arch::asm!("mov eax, [16]", out("eax") _) };
}

extern "C" fn note(signal: c_int) {
    let local = 0u8;
    STACK.store(&raw const local as usize, Ordering::Relaxed);
    RAN.fetch_or(1 << signal, Ordering::Relaxed);
}

/// Exits with success if the fault is [`crash`]'s.
extern "C" fn end(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: as the kernel says.
    let at = unsafe { (*info).si_addr() } as usize;
    // SAFETY: async-signal-safe.
    unsafe { libc::_exit(if at == 16 { 0 } else { 9 }) };
}

/// Returns a function's address as `sigaction` takes it.
macro_rules! address {
    ($handler:expr) => {
        $handler as *const () as usize
    };
}

fn ended_well() -> libc::sigaction {
    action(address!(end), libc::SA_SIGINFO, &[])
}

/// Resets handlers in a child that shares this process's memory, as CPython's `subprocess` does.
fn child_resets() {
    extern "C" fn child(_: *mut c_void) -> c_int {
        install(libc::SIGSEGV, &action(libc::SIG_DFL, 0, &[]));
        i32::from(installed().sa_sigaction != libc::SIG_DFL)
    }
    open();
    launch();
    install(libc::SIGSEGV, &ended_well());
    let mut stack = vec![0u8; 1 << 16];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child has this stack, and this thread waits until it has ended.
    let status = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        let pid = libc::clone(child, top, flags, core::ptr::null_mut());
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        status
    };
    assert_eq!(status, 0, "the child sees its own");
    assert_eq!(installed().sa_sigaction, address!(end));
    launch();
    crash();
}

/// Changes handlers in a forked child and in its parent.
fn fork_resets() {
    open();
    install(libc::SIGSEGV, &ended_well());
    // SAFETY: the child calls async-signal-safe functions alone.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let old = install(libc::SIGSEGV, &action(libc::SIG_DFL, 0, &[]));
        let right = old.sa_sigaction == address!(end) && installed().sa_sigaction == libc::SIG_DFL;
        install(libc::SIGSEGV, &ended_well());
        if right {
            crash();
        }
        exit(1);
    }
    let mut status = 0;
    // SAFETY: a child of this process.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
    crash();
}

/// Forks while another thread installs handlers. Each child can install one.
fn fork_beside_a_change() {
    open();
    let handlers = [ended_well(), action(libc::SIG_DFL, 0, &[])];
    std::thread::spawn(move || loop {
        for handler in &handlers {
            install(libc::SIGSEGV, handler);
        }
    });
    for _ in 0..200 {
        // SAFETY: the child calls async-signal-safe functions alone.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            install(libc::SIGSEGV, &ended_well());
            crash();
        }
        ends_well(pid);
    }
    exit(0);
}

/// Waits at most 10 seconds for a child, which ends with success.
fn ends_well(pid: libc::pid_t) {
    let since = Instant::now();
    let mut status = 0;
    // SAFETY: a child of this process.
    let mut ended = || unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } != 0;
    while !ended() {
        if since.elapsed() > Duration::from_secs(10) {
            // SAFETY: as above. It may have blocked all signals that can be blocked.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            panic!("a child does not end");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status, 0);
}

/// Checks that signals in `sa_mask` wait until the handler returns.
fn mask() {
    extern "C" fn outer(_: c_int) {
        // SAFETY: async-signal-safe.
        unsafe { libc::raise(libc::SIGUSR1) };
        assert_eq!(RAN.load(Ordering::Relaxed), 0, "blocked meanwhile");
    }
    open();
    install(libc::SIGUSR1, &action(address!(note), 0, &[]));
    install(libc::SIGSEGV, &action(address!(outer), 0, &[libc::SIGUSR1]));
    // SAFETY: a signal to this thread.
    unsafe { libc::raise(libc::SIGSEGV) };
    assert_eq!(RAN.load(Ordering::Relaxed), 1 << libc::SIGUSR1);
    launch();
}

/// Checks `SA_RESETHAND`, as System V's `signal` uses it: the second signal ends the program.
fn once(system_v: bool) {
    open();
    type Signal = extern "C" fn(c_int, usize) -> usize;
    // SAFETY: the function of this name has this form.
    let sysv = unsafe { core::mem::transmute::<*mut c_void, Signal>(symbol(c"__sysv_signal")) };
    if system_v {
        assert_ne!(sysv(libc::SIGSEGV, address!(note)), libc::SIG_ERR);
    } else {
        install(
            libc::SIGSEGV,
            &action(address!(note), libc::SA_RESETHAND, &[]),
        );
    }
    // SAFETY: a signal to this thread.
    unsafe { libc::raise(libc::SIGSEGV) };
    assert_eq!(RAN.load(Ordering::Relaxed), 1 << libc::SIGSEGV);
    assert_eq!(installed().sa_sigaction, libc::SIG_DFL);
    launch();
    println!("once");
    // SAFETY: as above.
    unsafe { libc::raise(libc::SIGSEGV) };
}

/// Checks that only a handler with `SA_ONSTACK` runs on the alternate stack.
fn stacks() {
    open();
    let memory = vec![0u8; 1 << 17].leak();
    let stack = libc::stack_t {
        ss_sp: memory.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: memory.len(),
    };
    // SAFETY: the memory lives for ever.
    let ret = unsafe { libc::sigaltstack(&stack, core::ptr::null_mut()) };
    assert_eq!(ret, 0);
    for flags in [0, libc::SA_ONSTACK, 0] {
        install(libc::SIGSEGV, &action(address!(note), flags, &[]));
        // SAFETY: a signal to this thread.
        unsafe { libc::raise(libc::SIGSEGV) };
        let at = STACK.load(Ordering::Relaxed);
        let inside = at.wrapping_sub(memory.as_ptr() as usize) < memory.len();
        assert_eq!(inside, flags != 0, "{flags:#x}");
        launch();
        std::thread::sleep(Duration::from_millis(50));
        launch();
    }
}

/// Calls `rt_sigaction` past the library, as a runtime without libc does.
fn raw_action() {
    extern "C" fn theirs(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: as the kernel says.
        let at = unsafe { (*info).si_addr() } as usize;
        assert_eq!(at, 16, "not ours to see");
        RAN.fetch_add(1, Ordering::Relaxed);
        // Go passes foreign faults to the handler that it replaced.
        let f = OLD.load(Ordering::Relaxed);
        // SAFETY: a handler of this form, of the library's.
        let f: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
            unsafe { core::mem::transmute(f) };
        f(signal, info, context);
    }
    extern "C" fn first(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: async-signal-safe.
        unsafe {
            libc::_exit(if RAN.load(Ordering::Relaxed) == 1 {
                0
            } else {
                8
            })
        };
    }
    static OLD: AtomicUsize = AtomicUsize::new(0);
    /// The kernel's `struct sigaction` on x86-64.
    #[repr(C)]
    struct Kernel {
        handler: usize,
        flags: u64,
        restorer: usize,
        mask: u64,
    }
    install(
        libc::SIGSEGV,
        &action(address!(first), libc::SA_SIGINFO, &[]),
    );
    open();
    launch();
    // Doorbells fault from then on. Nothing but a periodic check finds the new handler.
    std::thread::sleep(Duration::from_millis(50));
    let mut old = Kernel {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    // SAFETY: the structures are the kernel's.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            libc::SIGSEGV,
            0usize,
            &raw mut old,
            8,
        );
        OLD.store(old.handler, Ordering::Relaxed);
        let new = Kernel {
            handler: address!(theirs),
            ..old
        };
        libc::syscall(
            libc::SYS_rt_sigaction,
            libc::SIGSEGV,
            &raw const new,
            0usize,
            8,
        );
    }
    // The library checks periodically.
    std::thread::sleep(Duration::from_millis(1500));
    launch();
    assert_eq!(installed().sa_sigaction, address!(theirs));
    crash();
}

/// Launches in a thread that blocks all signals, and in one that has unblocked them again.
fn blocked() {
    open();
    // SAFETY: all zero is valid.
    let mut all: libc::sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: initialised sets.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, core::ptr::null_mut());
    }
    launch();
    std::thread::sleep(Duration::from_millis(50));
    launch();
}

/// Reads `/proc` for the library's threads.
fn helpers(field: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let mut found = Vec::new();
    for task in tasks {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let get = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_default()
                .trim_matches([':', '\t', ' '])
                .to_owned()
        };
        if get("Name").starts_with("gct-") {
            found.push(get(field));
        }
    }
    found
}

/// Checks that the library's threads handle no signal of the program.
fn helpers_block() {
    open();
    launch();
    let masks = helpers("SigBlk");
    assert!(!masks.is_empty());
    for mask in masks {
        let mask = u64::from_str_radix(&mask, 16).unwrap();
        for signal in [
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGALRM,
            libc::SIGCHLD,
            libc::SIGUSR1,
            34,
        ] {
            assert!(mask & 1 << (signal - 1) != 0, "{mask:x}");
        }
        // The first two are glibc's own: a change of the user waits for every thread.
        assert_eq!(mask & (3 << 31), 0, "{mask:x}");
    }
}

/// Returns the processor time of the library's thread in nanoseconds.
fn worker_time() -> u64 {
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let read = |file| std::fs::read_to_string(task.as_ref().unwrap().path().join(file));
        if read("comm").unwrap() == "gct-worker\n" {
            let schedstat = read("schedstat").unwrap();
            return schedstat.split(' ').next().unwrap().parse().unwrap();
        }
    }
    panic!("there is no worker");
}

/// Loads libcuda, and launches through it as the CUDA runtime does.
fn cuda() -> impl Fn() {
    type Pointer = *mut c_void;
    type Launch = unsafe extern "C" fn(
        Pointer,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        Pointer,
        Pointer,
        Pointer,
    ) -> u32;
    // SAFETY: loads a library, and looks up a name that has this type in it.
    let launch: Launch = unsafe {
        let libcuda = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        assert!(!libcuda.is_null(), "no libcuda.so.1");
        let at = libc::dlsym(libcuda, c"cuLaunchKernel".as_ptr());
        assert!(!at.is_null(), "no cuLaunchKernel");
        core::mem::transmute(at)
    };
    move || {
        let at = |number: usize| number as Pointer;
        // SAFETY: `rings.c` uses nothing of this.
        let put = unsafe { launch(at(1), 2, 3, 4, 5, 6, 7, 8, at(9), at(10), at(11)) };
        assert_ne!(put, 0, "other arguments");
        published(put);
    }
}

/// Launches through libcuda, and then in the named way, too.
fn calls(more: &str) {
    open();
    let cuda = cuda();
    (0..1000).for_each(|_| cuda());
    match more {
        "ring" => (0..100).for_each(|_| launch()),
        "pause" => {
            std::thread::sleep(Duration::from_millis(100));
            launch();
        }
        _ => {}
    }
}

/// Launches and waits, as a program that computes in between. Prints the time of the program and of
/// the worker.
fn launches(sizes: &str) {
    open();
    launch();
    std::thread::sleep(Duration::from_millis(20));
    let (before, since) = (worker_time(), Instant::now());
    let mut waits = Vec::new();
    for _ in 0..sizes.parse().unwrap() {
        let began = Instant::now();
        launch();
        waits.push(began.elapsed());
        while began.elapsed() < Duration::from_micros(50) {
            std::hint::spin_loop();
        }
    }
    waits.sort();
    let worker = Duration::from_nanos(worker_time() - before);
    let (all, median) = (
        since.elapsed().as_micros(),
        waits[waits.len() / 2].as_micros(),
    );
    println!("{all} {} {median}", worker.as_micros());
}

/// Checks that the driver keeps the channels if no worker thread can be made.
fn no_threads() {
    open();
    for put in 1..=3 {
        assert_eq!((fake(c"fake_launch"), fake(c"fake_put")), (put, put));
    }
    assert_eq!(helpers("Name"), [""; 0]);
}

/// Checks that the worker does not inherit from the thread that made the first channel.
fn worker_is_normal() {
    let before = affinity(0);
    let thread = std::thread::spawn(|| {
        // SAFETY: plain structures that live for the calls.
        unsafe {
            let mut one: libc::cpu_set_t = core::mem::zeroed();
            let first = affinity(0).trailing_zeros() as usize;
            libc::CPU_SET(first, &mut one);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &one), 0);
            let priority: libc::sched_param = core::mem::zeroed();
            assert_eq!(libc::sched_setscheduler(0, libc::SCHED_BATCH, &priority), 0);
            assert_eq!(libc::sched_getscheduler(0), libc::SCHED_BATCH);
        }
        open();
    });
    thread.join().unwrap();
    launch();
    let worker = helpers("Pid")[0].parse().unwrap();
    assert_eq!(affinity(worker), before);
    // SAFETY: asks.
    let class = unsafe { libc::sched_getscheduler(worker) };
    assert_eq!(class, libc::SCHED_OTHER);
}

/// Returns the first 64 processors that a thread may use.
fn affinity(thread: c_int) -> u64 {
    let mut set = [0u64; 16];
    // SAFETY: the set lives for the call.
    unsafe { libc::sched_getaffinity(thread, size_of_val(&set), set.as_mut_ptr().cast()) };
    set[0]
}

/// Maps memory in the middle of each move, as another thread would.
fn others_map() {
    open();
    assert_eq!(fake(c"fake_others"), 2, "rings and doorbells were moved");
    launch();
}

/// Maps a second doorbell page while the first faults, and rings by the second.
fn second_doorbell() {
    open();
    launch();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(fake(c"fake_second"), 0);
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(50));
        let put = fake(c"fake_launch_second");
        let since = Instant::now();
        published(put);
        let wait = since.elapsed();
        assert!(wait < Duration::from_millis(200), "{wait:?}");
    }
}

/// Maps other memory over the rings.
fn map_over() {
    open();
    launch();
    assert_eq!(fake(c"fake_map_over"), 1);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(fake(c"fake_put"), 1, "what is there now is no ring");
}

/// Makes a channel group. Prints the memory that it sees, total and free, for each line that it
/// reads.
fn memory() {
    let mut lines = std::io::stdin().lines();
    lines.next();
    assert_eq!(fake(c"fake_open_device") + fake(c"fake_open_group"), 0);
    loop {
        println!(
            "{} {}",
            fake(c"fake_memory_total"),
            fake(c"fake_memory_free")
        );
        if lines.next().is_none() {
            return;
        }
    }
}

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    match name.as_str() {
        "child-resets" => child_resets(),
        "fork-resets" => fork_resets(),
        "fork-beside-a-change" => fork_beside_a_change(),
        "mask" => return mask(),
        "once" => once(false),
        "once-sysv" => once(true),
        "stacks" => return stacks(),
        "raw-action" => raw_action(),
        "blocked" => return blocked(),
        "launches" => return launches(&std::env::args().nth(2).unwrap()),
        "calls" => return calls(&std::env::args().nth(2).unwrap()),
        "no-threads" => return no_threads(),
        "worker-is-normal" => return worker_is_normal(),
        "others-map" => return others_map(),
        "map-over" => return map_over(),
        "second-doorbell" => return second_doorbell(),
        "helpers-block" => return helpers_block(),
        "memory" => return memory(),
        "limited" => return limited::run(),
        "ends" => return ends::run(&std::env::args().nth(2).unwrap()),
        _ => {}
    }
    eprintln!("{name}: not to be reached");
    exit(7);
}
