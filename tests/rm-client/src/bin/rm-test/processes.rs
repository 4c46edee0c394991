// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests processes: fork, exec, death at any point, descriptors passed on.

use crate::gpus::{need_two, session, session_of, ENGINE};
use crate::process::{keep_over_exec, take_descriptor, Child, Parent};
use crate::tree::{expect, expect_gone};
use gct_ktap::{failed, During, Outcome, Stop, Test};
use rm_client::{Client, Control, Gpu, Session};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

pub(crate) const TESTS: &[Test] = &[
    ("exit", exit),
    ("kill_at_every_step", kill),
    ("fork_shares_the_file", fork_shares),
    ("fork_outlives_the_opener", fork_outlives),
    ("exec_closes", exec_closes),
    ("exec_keeps", exec_keeps),
    ("passed_descriptor_charges_the_opener", passed),
    ("other_process_has_its_own", own_directory),
    ("dup_by_another_process", dup_by_another),
    ("processes_20_on_two_gpus", many),
    ("processes_come_and_go", storm),
];

/// The file by which one process passes its handles to another.
const SHARED: &str = "/tmp/rm-test.handles";

/// Lets a process exit while it has objects.
fn exit() -> Outcome {
    let mut child = Child::fork(|parent| {
        let session = session(0)?;
        let group = session.group(ENGINE)?;
        session.channel(group, ENGINE)?;
        parent.step()?;
        // As with exit_group(2): nothing is freed first.
        std::mem::forget(session);
        Ok(())
    })?;
    child.at_step()?;
    expect(&child.pid().to_string(), 0, Some((1, 1)))?;
    child.go()?;
    child.finish()?;
    expect_gone(child.pid())
}

/// Performs everything that a client does, step by step.
fn life(parent: &mut Parent) -> Outcome {
    let control = Arc::new(Control::open()?);
    parent.step()?;
    let client = Client::new(control)?;
    parent.step()?;
    let gpu = Gpu::open(&client, 0)?;
    parent.step()?;
    let session = Session::new(gpu)?;
    parent.step()?;
    let group = session.group(ENGINE)?;
    parent.step()?;
    let channel = session.channel(group, ENGINE)?;
    parent.step()?;
    session.copy_object(channel, ENGINE)?;
    parent.step()?;
    session.work_token(channel, ENGINE)?;
    parent.step()?;
    session.schedule(group, true)?;
    parent.step()?;
    let mut queue = session.queue(group, ENGINE)?;
    parent.step()?;
    queue.submit_release(0, 1);
    parent.step()?;
    client.free(group)?;
    parent.step()
}

/// The steps of [`life`]. Each says whether it ends with channel groups and channels, and how many.
const STEPS: [Option<(u64, u64)>; 12] = [
    None,
    None,
    None,
    None,
    Some((1, 0)),
    Some((1, 1)),
    Some((1, 1)),
    Some((1, 1)),
    Some((1, 1)),
    Some((1, 2)),
    Some((1, 2)),
    None,
];

fn kill() -> Outcome {
    for (last, counts) in STEPS.iter().enumerate() {
        let mut child = Child::fork(life)?;
        child.at_step()?;
        for step in 1..=last {
            child.next().during(format!("step {step}"))?;
        }
        expect(&child.pid().to_string(), 0, *counts).during(format!("step {last}"))?;
        child.kill();
        expect_gone(child.pid()).during(format!("killed at step {last}"))?;
    }
    Ok(())
}

/// Checks that a child may use its parent's open files. The parent is charged.
fn fork_shares() -> Outcome {
    let mut child = Child::fork(|parent| {
        let session = session(0)?;
        let group = session.group(ENGINE)?;
        let mut grandchild = Child::fork(|parent| {
            session.group(ENGINE)?;
            parent.step()?;
            Ok(session.gpu().client().free(group)?)
        })?;
        grandchild.at_step()?;
        expect_gone(grandchild.pid())?;
        parent.step()?;
        grandchild.go()?;
        grandchild.finish()?;
        parent.step()
    })?;
    let pid = child.pid().to_string();
    child.at_step()?;
    expect(&pid, 0, Some((2, 0)))?;
    child.next()?;
    expect(&pid, 0, Some((1, 0)))?;
    child.go()?;
    child.finish()?;
    expect_gone(child.pid())
}

/// Checks that a file whose opener has died lives on in a child, with the objects allocated through
/// it.
fn fork_outlives() -> Outcome {
    let mut child = Child::fork(|parent| {
        let session = session(0)?;
        session.group(ENGINE)?;
        // SAFETY: the process has one thread.
        match unsafe { libc::fork() } {
            -1 => Err(std::io::Error::last_os_error().into()),
            // The opener exits; the other process waits for its turn.
            0 => parent.step(),
            _ => Ok(()),
        }
    })?;
    child.at_step()?;
    child.finish()?;
    let pid = child.pid();
    expect(&pid.to_string(), 0, Some((1, 0))).during("after the opener's death")?;
    child.go()?;
    expect_gone(pid)
}

/// Runs `rm-test wait` in place of this process.
fn exec_wait() -> Stop {
    Command::new("/proc/self/exe").arg("wait").exec().into()
}

/// Files close on exec, as with libcuda.
fn exec_closes() -> Outcome {
    let mut child = Child::fork(|parent| {
        let session = session(0)?;
        session.group(ENGINE)?;
        parent.step()?;
        Err(exec_wait())
    })?;
    child.at_step()?;
    expect(&child.pid().to_string(), 0, Some((1, 0)))?;
    child.go()?;
    // The tests' standard input is empty, so the new program exits.
    child.finish()?;
    expect_gone(child.pid())
}

/// Checks that a file that stays open keeps its objects, under the same pid.
fn exec_keeps() -> Outcome {
    let mut child = Child::fork(|parent| {
        let session = session(0)?;
        session.group(ENGINE)?;
        keep_over_exec(session.gpu().client().control_file().file())?;
        parent.step()?;
        let mut command = Command::new("sleep");
        Err(command.arg("1000").exec().into())
    })?;
    let pid = child.pid().to_string();
    child.at_step()?;
    expect(&pid, 0, Some((1, 0)))?;
    child.go()?;
    let exec_done = || {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"))?;
        Ok(!name.starts_with("rm-test"))
    };
    crate::tree::eventually("exec", &true, exec_done)?;
    expect(&pid, 0, Some((1, 0))).during("after exec")?;
    child.kill();
    expect_gone(child.pid())
}

/// Checks that the process that opened a control file is charged, whichever process uses it.
fn passed() -> Outcome {
    let mut opener = Child::fork(|parent| {
        let control = Control::open()?;
        let copy = unsafe_dup(&control, 100)?;
        parent.step()?;
        drop(copy);
        parent.step()
    })?;
    opener.at_step()?;
    let taken = take_descriptor(opener.pid(), 100).during("pidfd_getfd")?;
    let mut user = Child::fork(|parent| {
        let control = Control::from_file(taken.try_clone()?)?;
        let client = Client::new(Arc::new(control))?;
        let session = session_of(&client, 0)?;
        session.group(ENGINE)?;
        parent.step()?;
        std::mem::forget(session);
        Ok(())
    })?;
    drop(taken);
    user.at_step()?;
    let pid = opener.pid().to_string();
    expect(&pid, 0, Some((1, 0)))?;
    expect_gone(user.pid())?;
    // The exit of the user does not close the file: the opener has it, too.
    user.go()?;
    user.finish()?;
    expect(&pid, 0, Some((1, 0))).during("after the user's end")?;
    opener.kill();
    expect_gone(opener.pid())
}

/// Duplicates a control file's descriptor to a number that others know.
fn unsafe_dup(control: &Control, number: i32) -> Result<impl Drop, Stop> {
    use std::os::fd::{FromRawFd, OwnedFd};
    // SAFETY: the arguments are numbers, and this process does not use the target number.
    match unsafe { libc::dup2(control.file().as_raw_fd(), number) } {
        -1 => Err(std::io::Error::last_os_error().into()),
        // SAFETY: the descriptor was just created, and nothing else owns it.
        copy => Ok(unsafe { OwnedFd::from_raw_fd(copy) }),
    }
}

/// Checks that a child that opens the driver itself is charged itself.
fn own_directory() -> Outcome {
    let hold = |parent: &mut Parent| {
        let session = session(0)?;
        session.group(ENGINE)?;
        parent.step()
    };
    let mut child = Child::fork(|parent| {
        let session = session(0)?;
        session.group(ENGINE)?;
        let mut grandchild = Child::fork(hold)?;
        grandchild.at_step()?;
        expect(&grandchild.pid().to_string(), 0, Some((1, 0)))?;
        parent.step()?;
        grandchild.go()?;
        grandchild.finish()?;
        expect_gone(grandchild.pid())?;
        parent.step()
    })?;
    child.at_step()?;
    let pid = child.pid().to_string();
    expect(&pid, 0, Some((1, 0)))?;
    child.next()?;
    expect(&pid, 0, Some((1, 0)))?;
    child.go()?;
    child.finish()?;
    expect_gone(child.pid())
}

/// Kills many processes on both GPUs at once.
fn many() -> Outcome {
    const COUNT: u64 = 20;
    need_two()?;
    let mut children = Vec::new();
    for number in 0..COUNT {
        let groups = number % 3 + 1;
        children.push(Child::fork(move |parent| {
            let first = session(0)?;
            let second = session_of(first.gpu().client(), 1)?;
            for _ in 0..groups {
                first.group(ENGINE)?;
            }
            second.group(ENGINE)?;
            parent.step()
        })?);
    }
    for (number, child) in (0..COUNT).zip(&mut children) {
        child.at_step()?;
        let pid = child.pid().to_string();
        expect(&pid, 0, Some((number % 3 + 1, 0)))?;
        expect(&pid, 1, Some((1, 0)))?;
    }
    children.iter_mut().for_each(Child::kill);
    children
        .iter()
        .try_for_each(|child| expect_gone(child.pid()))
}

/// Lets many processes share one GPU at once, each with a channel group.
pub(crate) fn crowd(count: usize) -> Outcome {
    // Kept open, so that the GPU is initialised only once.
    let kept = session(0)?;
    let mut children = Vec::new();
    for _ in 0..count {
        let mut child = Child::fork(|parent| {
            let session = session(0)?;
            session.group(ENGINE)?;
            parent.step()
        })?;
        child.at_step()?;
        children.push(child);
    }
    for child in &children {
        expect(&child.pid().to_string(), 0, Some((1, 0)))?;
    }
    children.iter_mut().for_each(Child::kill);
    drop(kept);
    children
        .iter()
        .try_for_each(|child| expect_gone(child.pid()))
}

/// Checks that an object of another process that a process dups stays charged to the other, if the
/// driver allows the dup at all.
fn dup_by_another() -> Outcome {
    let mut owner = Child::fork(|parent| {
        let session = session(0)?;
        let group = session.group(ENGINE)?;
        std::fs::write(
            SHARED,
            format!("{} {group}", session.gpu().client().handle()),
        )?;
        parent.step()
    })?;
    owner.at_step()?;
    let mut other = Child::fork(|parent| {
        let session = session(0)?;
        let text = std::fs::read_to_string(SHARED)?;
        let mut numbers = text.split(' ').map(str::parse::<u32>);
        let (Some(Ok(client)), Some(Ok(group))) = (numbers.next(), numbers.next()) else {
            return Err(failed("no handles"));
        };
        let own = session.gpu().client();
        match own.dup_of(session.gpu().device(), client, group) {
            Ok(_) => println!("# the driver allows it"),
            Err(error) => println!("# the driver refuses it: {error}"),
        }
        parent.step()
    })?;
    other.at_step()?;
    expect(&owner.pid().to_string(), 0, Some((1, 0)))?;
    expect_gone(other.pid())?;
    other.kill();
    expect(&owner.pid().to_string(), 0, Some((1, 0)))?;
    owner.kill();
    expect_gone(owner.pid())
}

/// Allocates a channel group with a channel and frees it, for ever.
pub(crate) fn make_and_free(session: &Session) -> Outcome {
    loop {
        let group = session.group(ENGINE)?;
        session.channel(group, ENGINE)?;
        session.gpu().client().free(group)?;
    }
}

/// Processes are killed one after another, each at a different moment.
fn storm() -> Outcome {
    const COUNT: u64 = 40;
    /// Longer than the child needs on an idle machine.
    const LONGEST_MS: u64 = 60;
    for number in 0..COUNT {
        let mut child = Child::fork(|parent| {
            parent.step()?;
            make_and_free(&session(0)?)
        })?;
        child.at_step()?;
        child.go()?;
        let pause = LONGEST_MS * number / COUNT;
        std::thread::sleep(std::time::Duration::from_millis(pause));
        child.kill();
        expect_gone(child.pid()).map_err(|_| failed(format!("process {number} stays")))?;
    }
    Ok(())
}
