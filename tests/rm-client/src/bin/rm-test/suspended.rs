// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that suspensions, writes of `gmem.limit` and the evictor wait for each other, and that
//! none is lost. Suspended are channels and nvidia-uvm, as by `/proc/driver/nvidia/suspend` at the
//! depth `uvm`; the software GPU cannot be powered down.

use crate::gmem::{current, events, number, LIMIT};
use crate::gpus::me;
use crate::interrupted::{begin, write_with_signals, writer, Owner, MANY};
use crate::limits::set;
use crate::managed::{session, shown, Range, ROOT, START};
use crate::process::{Child, Parent};
use crate::tree::eventually;
use gct_ktap::{holds, same, skipped, During, Outcome, Stop, Test};
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

pub(crate) const TESTS: &[Test] = &[
    ("managed_memory_of_a_limit_beside_a_suspension", lowered),
    ("managed_memory_ahead_beside_suspensions", ahead),
];

const SUSPEND: &str = "/proc/driver/nvidia/suspend";
const DEPTH: &str = "/proc/driver/nvidia/suspend_depth";

/// Returns whether the kernel checks the order of locks, those of NVIDIA's driver included.
pub(crate) fn has_lockdep() -> bool {
    Path::new("/proc/lockdep").exists()
}

/// A suspension, which ends when it is dropped.
struct Suspension;

impl Suspension {
    /// Waits until nobody is in the driver, and lets nobody in.
    fn begin() -> Result<Self, Stop> {
        // The driver keeps five locks until the resumption. Lockdep reports them at the return
        // from this write, and then switches itself off.
        if has_lockdep() {
            return Err(skipped("lockdep accepts no lock across a system call"));
        }
        fs::write(DEPTH, "uvm")?;
        fs::write(SUSPEND, "suspend")?;
        Ok(Self)
    }

    fn end(self) -> io::Result<()> {
        std::mem::forget(self);
        fs::write(SUSPEND, "resume")
    }
}

impl Drop for Suspension {
    fn drop(&mut self) {
        let _ = fs::write(SUSPEND, "resume");
    }
}

/// Forks a process that writes a limit of this one at its second step. No signal of many ends that
/// but with `EINTR`, before anything has changed.
fn waiter() -> Result<Child, Stop> {
    const EACH: Duration = Duration::from_millis(20);
    let owner = me();
    let mut child = Child::fork(move |parent: &mut Parent| {
        parent.step()?;
        let errno = write_with_signals(&owner, u64::MAX / 2, EACH)?;
        same("errno", errno, Some(libc::EINTR))?;
        parent.step()
    })?;
    child.at_step()?;
    Ok(child)
}

/// A suspension waits for a write of a lower limit, which holds then. Another write waits for the
/// end of the suspension, or a signal.
fn lowered() -> Outcome {
    let (mut writer, mut waiter) = (writer(None)?, waiter()?);
    let owner = Owner::new()?;
    begin(&mut writer)?;
    let at_once = events(&me(), "evicted")?;
    let suspension = Suspension::begin()?;
    println!("# {at_once} roots had left when it began");
    holds("it comes in time", at_once < MANY as u64 - 1)?;
    same("left", shown(&me())?, ROOT)?;
    let low = number(&me(), LIMIT)?;
    same("current", current(&me())?, low)?;
    writer.at_step().during("the end of the write")?;
    waiter.next().during("a write meanwhile")?;
    same("the limit", number(&me(), LIMIT)?, low)?;
    suspension.end()?;
    set(&me(), LIMIT, "max")?;
    owner.fill()?;
    owner.range.check(1)?;
    for mut child in [writer, waiter] {
        child.go()?;
        child.finish()?;
    }
    Ok(())
}

/// Roots that fit within the limit, and of the range that moves through it.
const FIT: usize = 32;
const RANGE: usize = 48;

/// Forks a process under a limit that moves more managed memory than that until it may go on.
fn mover() -> Result<Child, Stop> {
    let mut child = Child::fork(|parent: &mut Parent| {
        let session = session()?;
        let limit = current(&me())? + (FIT * ROOT) as u64;
        set(&me(), LIMIT, &limit.to_string())?;
        let range = Range::new(&session, START, RANGE * ROOT)?;
        range.write(1);
        let mut round = 1;
        parent.work(|| {
            range.migrate(&session)?;
            range.check(round).during(round)?;
            round += 1;
            range.write(round);
            Ok(())
        })?;
        holds("within its limit", current(&me())? <= limit)?;
        range.check(round)?;
        drop(range);
        same("unmapped", shown(&me())?, 0)?;
        parent.step()
    })?;
    child.at_step()?;
    Ok(child)
}

/// While GPUs are suspended the evictor works for nobody. Afterwards it goes on.
fn ahead() -> Outcome {
    const ROUNDS: usize = 6;
    let mut mover = mover()?;
    let name = mover.pid().to_string();
    let count = || events(&name, "ahead");
    for round in 0..ROUNDS {
        let before = count()?;
        eventually("evicted ahead", &true, || Ok(count()? > before + 2)).during(round)?;
        let suspension = Suspension::begin()?;
        let first = [count()?, events(&name, "evicted")?];
        std::thread::sleep(Duration::from_millis(50));
        same("suspended", [count()?, events(&name, "evicted")?], first)?;
        suspension.end()?;
    }
    mover.next().during("its end")?;
    mover.go()?;
    mover.finish()
}
