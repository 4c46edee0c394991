// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that a tenant's memory cgroup pays for its entries in the core's tables.
//!
//! These tests run last, because objects that gctgroup could not follow are counted in `events`.

use crate::gpus::{me, session, ENGINE};
use crate::limits::{set, TIMESLICE};
use crate::process::{Child, Parent};
use crate::tree::{self, eventually, expect, Group};
use gct_ktap::{failed, holds, same, skipped, During, Outcome, Stop, Test};
use rm_client::{numbers, Client, Control, Error};
use std::fs;
use std::io;
use std::sync::Arc;

pub(crate) const TESTS: &[Test] = &[
    ("charged_and_given_back", given_back),
    (
        "charged_beyond_the_cgroup_is_refused_under_a_limit",
        refused,
    ),
    (WITHOUT_LIMITS, counted),
    ("charged_fork_without_a_page_is_killed_under_a_limit", forks),
];

/// The test of a tenant without any limit.
pub(crate) const WITHOUT_LIMITS: &str = "charged_beyond_the_cgroup_is_counted_without";

const MOUNT: &str = "/sys/fs/cgroup";

/// A memory cgroup, removed on drop.
pub(crate) struct Cgroup(String);

impl Cgroup {
    /// Creates a cgroup, and mounts cgroup v2 if needed. Skips if the kernel lacks memory cgroups.
    pub(crate) fn new(name: &str) -> Result<Self, Stop> {
        if fs::metadata(format!("{MOUNT}/cgroup.procs")).is_err() {
            fs::create_dir_all(MOUNT)?;
            mount(c"cgroup2", c"/sys/fs/cgroup").during("mount cgroup2")?;
        }
        fs::write(format!("{MOUNT}/cgroup.subtree_control"), "+memory")
            .map_err(|error| skipped(format!("no memory cgroups: {error}")))?;
        let made = Self(format!("{MOUNT}/{name}"));
        fs::create_dir_all(&made.0)?;
        Ok(made)
    }

    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }

    /// Moves this process into the cgroup.
    pub(crate) fn enter(&self) -> io::Result<()> {
        fs::write(self.file("cgroup.procs"), "0")
    }

    /// Returns the bytes of slab memory that are charged to the cgroup.
    fn slab(&self) -> Result<u64, Stop> {
        let stat = fs::read_to_string(self.file("memory.stat"))?;
        tree::value(&stat, "slab").ok_or_else(|| failed(format!("no slab in {stat:?}")))
    }

    /// Returns the bytes that are charged to the cgroup.
    pub(crate) fn current(&self) -> Result<u64, Stop> {
        let now = fs::read_to_string(self.file("memory.current"))?;
        now.trim().parse().map_err(|_| failed(now.clone()))
    }

    /// Returns how many of its processes were killed for lack of memory.
    pub(crate) fn killed(&self) -> Result<u64, Stop> {
        let events = fs::read_to_string(self.file("memory.events"))?;
        tree::value(&events, "oom_kill").ok_or_else(|| failed(format!("no kills in {events:?}")))
    }

    /// Limits the cgroup to the memory that it has now.
    pub(crate) fn stop_growth(&self) -> Outcome {
        // A little less, because the kernel has charged some pages in advance.
        let most = self.current()?.saturating_sub(64 << 10).to_string();
        Ok(fs::write(self.file("memory.max"), most)?)
    }

    /// Has its processes sleep whenever they grow.
    pub(crate) fn delay_growth(&self) -> Outcome {
        Ok(fs::write(self.file("memory.high"), "0")?)
    }

    /// Lets its processes grow without a delay.
    pub(crate) fn let_grow_at_once(&self) -> Outcome {
        Ok(fs::write(self.file("memory.high"), "max")?)
    }

    fn let_grow(&self) -> io::Result<()> {
        fs::write(self.file("memory.max"), "max")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Fails if a child is still in it. The test has failed in that case.
        let _ = fs::remove_dir(&self.0);
    }
}

fn mount(kind: &std::ffi::CStr, target: &std::ffi::CStr) -> io::Result<()> {
    // SAFETY: the three strings are NUL-terminated, and there is no data.
    let result = unsafe {
        libc::mount(
            kind.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            0,
            std::ptr::null(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Allocates clients. Each takes three entries of the core's largest table until the file is
/// closed.
fn fill(control: &Arc<Control>, clients: usize) -> Result<(), Error> {
    for _ in 0..clients {
        Client::new(Arc::clone(control))?;
    }
    Ok(())
}

/// Clients of a large tenant.
const CLIENTS: usize = 2000;

/// Their minimum charge: three entries each, of more than 128 bytes.
const BYTES: u64 = CLIENTS as u64 * 3 * 128;

/// Maximum charge that may remain of a tenant: pages in which other tenants have entries, and one
/// empty page of each table.
const REST: u64 = 128 << 10;

/// Checks that a tenant's cgroup is charged for the tenant's entries and uncharged when the tenant
/// has exited. Entries that others made before and after it stay valid.
fn given_back() -> Outcome {
    let cgroup = Cgroup::new("gct-charged")?;
    let before = session(0)?;
    before.group(ENGINE)?;
    let mut tenant = Child::fork(|parent| {
        cgroup.enter()?;
        let control = Arc::new(Control::open()?);
        fill(&control, 20)?;
        parent.step()?;
        fill(&control, CLIENTS)?;
        parent.step()
    })?;
    tenant.at_step()?;
    let least = cgroup.slab()?;
    tenant.next()?;
    let behind = session(0)?;
    behind.group(ENGINE)?;
    let charged = || cgroup.slab().map(|bytes| bytes.saturating_sub(least));
    eventually("charged", &true, || Ok(charged()? >= BYTES))?;
    println!("# {} bytes for {CLIENTS} clients", charged()?);
    tenant.go()?;
    tenant.finish()?;
    eventually("given back", &true, || Ok(charged()? <= REST))?;
    println!("# {} bytes are left", charged()?);
    before.group(ENGINE)?;
    drop(behind);
    expect(&me(), 0, Some((2, 0)))
}

/// Returns the number of failed allocations from `events`.
fn out_of_memory() -> Result<u64, Stop> {
    tree::stat("events", "memory")
}

/// Prepares a tenant that is about to fill its cgroup. The kernel must not kill it for that.
///
/// It keeps no memory of its own for its clients: it would wait for a page that its cgroup lacks.
fn full(cgroup: &Cgroup, parent: &mut Parent) -> Result<Arc<Control>, Stop> {
    cgroup.enter()?;
    fs::write("/proc/self/oom_score_adj", "-1000")?;
    parent.step()?;
    let control = Arc::new(Control::open()?);
    fill(&control, 50)?;
    parent.step()?;
    Ok(control)
}

/// Rounds after which such a tenant has needed another page.
const ROUNDS: usize = 60;
const CLIENTS_OF_ROUND: usize = 20;

/// Checks that under a limit, the driver returns `NV_ERR_NO_MEMORY`. Neighbours are not affected.
fn refused() -> Outcome {
    let cgroup = Cgroup::new("gct-refused")?;
    let group = Group::new("charged")?;
    let before = out_of_memory()?;
    let mut tenant = Child::fork(|parent| {
        let control = full(&cgroup, parent)?;
        let outcome = fill(&control, ROUNDS * CLIENTS_OF_ROUND);
        let refused = matches!(outcome, Err(Error::Status(numbers::NO_MEMORY)));
        parent.step()?;
        holds("refused with NV_ERR_NO_MEMORY", refused)?;
        // It continues when there is memory again.
        fill(&control, 2 * CLIENTS_OF_ROUND)?;
        parent.step()
    })?;
    tenant.at_step()?;
    group.add(tenant.pid())?;
    set("charged", TIMESLICE, "2000")?;
    tenant.next()?;
    cgroup.stop_growth()?;
    tenant.next()?;
    holds("counted", out_of_memory()? > before)?;
    // This process is a neighbour whose cgroup has memory.
    let counted = out_of_memory()?;
    fill(&Arc::new(Control::open()?), 10 * CLIENTS_OF_ROUND).during("a neighbour")?;
    same("of the neighbour", out_of_memory()?, counted)?;
    cgroup.let_grow()?;
    tenant.next()?;
    tenant.go()?;
    tenant.finish()
}

/// Checks that without a limit the tenant continues, and `events` counts what is not followed.
fn counted() -> Outcome {
    let cgroup = Cgroup::new("gct-counted")?;
    let before = out_of_memory()?;
    let mut tenant = Child::fork(|parent| {
        let control = full(&cgroup, parent)?;
        for _ in 0..ROUNDS {
            fill(&control, CLIENTS_OF_ROUND)?;
            parent.step()?;
        }
        Ok(())
    })?;
    tenant.at_step()?;
    tenant.next()?;
    cgroup.stop_growth()?;
    for _ in 0..ROUNDS {
        tenant.next()?;
        if out_of_memory()? > before {
            cgroup.let_grow()?;
            tenant.kill();
            return Ok(());
        }
    }
    Err(failed("the cgroup never had too little memory"))
}

const SLAB: &str = "/sys/kernel/debug/failslab";

/// While it exists, atomic allocations fail in the tasks that ask for it.
struct Failing(());

impl Failing {
    /// Enables the failures. Skips if the kernel lacks fault injection.
    fn new() -> Result<Self, Stop> {
        if fs::metadata(SLAB).is_err() {
            return Err(skipped("no fault injection in this kernel"));
        }
        for (file, value) in [
            ("task-filter", "Y"),
            ("ignore-gfp-wait", "Y"),
            ("verbose", "0"),
            ("interval", "1"),
            ("times", "-1"),
            ("probability", "100"),
        ] {
            fs::write(format!("{SLAB}/{file}"), value).during(file)?;
        }
        Ok(Self(()))
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        // If this fails, later tests fail.
        let _ = fs::write(format!("{SLAB}/probability"), "0");
        let _ = fs::write(format!("{SLAB}/task-filter"), "N");
    }
}

/// Forks more often than a page has pids, while page allocations fail. Returns the number of
/// children that were killed before they ran.
fn fork_without_pages() -> Result<usize, Stop> {
    // More pids than a page has, so at least one new page is needed.
    const CHILDREN: usize = 520;
    let mut killed = 0;
    fs::write("/proc/self/make-it-fail", "1")?;
    for _ in 0..CHILDREN {
        // SAFETY: the process has one thread, and the child only ends.
        let pid = match unsafe { libc::fork() } {
            -1 => return Err(io::Error::last_os_error().into()),
            // SAFETY: ends the child without the parent's destructors.
            0 => unsafe { libc::_exit(0) },
            pid => pid,
        };
        let mut status = 0;
        // SAFETY: `status` is writable.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        killed += usize::from(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL);
    }
    fs::write("/proc/self/make-it-fail", "0")?;
    Ok(killed)
}

/// Returns the number of forks that could not be followed, from `events`.
fn lost_forks() -> Result<u64, Stop> {
    tree::stat("events", "members")
}

/// Checks that a child without a page is killed before it runs if its group has a limit, and else
/// runs outside of its group. `events` counts both.
fn forks() -> Outcome {
    let group = Group::new("charged")?;
    for limited in [false, true] {
        if limited {
            set("charged", TIMESLICE, "2000")?;
        }
        let before = lost_forks()?;
        let mut leader = Child::fork(|parent| {
            parent.step()?;
            let killed = fork_without_pages()?;
            println!("# {killed} children were killed, under a limit: {limited}");
            holds("killed", (killed > 0) == limited)?;
            parent.step()
        })?;
        leader.at_step()?;
        group.add(leader.pid())?;
        let failing = Failing::new()?;
        leader.next()?;
        drop(failing);
        eventually("counted", &true, || Ok(lost_forks()? > before))?;
        leader.go()?;
        leader.finish()?;
    }
    Ok(())
}
