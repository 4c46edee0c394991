// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that a process has one account for managed memory on a GPU, however many address spaces
//! it opens, that processes of one user leave accounts to others, and what becomes of faults where
//! no memory is left.

use crate::faults::{events as errors, shown as faulted, MMU_FAULT};
use crate::gmem::{current, LIMIT};
use crate::gpus::me;
use crate::launch::recorder;
use crate::limits::set;
use crate::managed::{session, shown, uvm, Range, PAGE, ROOT, START};
use crate::mixed::Seen;
use crate::process::{Child, Parent};
use crate::replayable::{pages, run, sum, toucher};
use crate::tree::{eventually, Group};
use gct_ktap::{failed, holds, same, During, Outcome, Stop, Test};
use rm_client::{numbers, Client, Error, Gpu, Memory, Session, Toucher, Uvm};
use std::sync::atomic::Ordering;

pub(crate) const TESTS: &[Test] = &[(
    "managed_memory_of_thousands_of_spaces_is_charged",
    of_many_spaces,
)];

/// Opens as many address spaces as a user has accounts and more, and moves memory of the last one
/// to the GPU before and after its process joins a group.
fn hoard(parent: &mut Parent) -> Outcome {
    const SPACES: usize = 2049;
    const ROOTS: usize = 8;
    parent.step()?;
    let session = session()?;
    let spaces = (0..SPACES).map(|_| Uvm::open(session.gpu()));
    let spaces: Vec<_> = spaces.collect::<Result<_, _>>()?;
    let last = spaces.last().ok_or_else(|| failed("no address space"))?;
    last.register_space(session.gpu(), session.another_space()?)?;
    let memory = last.managed(START, ROOTS * ROOT)?;
    let words = || (0..ROOTS * ROOT).step_by(PAGE);
    for page in words() {
        memory.u64(page).store(page as u64 + 1, Ordering::Relaxed);
    }
    parent.step()?;
    last.migrate(START, ROOTS * ROOT)?;
    parent.step()?;
    last.migrate(START, ROOTS * ROOT)?;
    parent.step()?;
    for page in words() {
        let word = memory.u64(page).load(Ordering::Relaxed);
        same("content", word, page as u64 + 1).during(page)?;
    }
    // The address spaces that are left still have the account.
    drop((memory, spaces));
    same("unmapped", shown(&me())?, 0)?;
    let range = Range::new(&session, START, ROOT)?;
    range.write(1);
    range.migrate(&session)?;
    same("of the first one", shown(&me())?, ROOT)
}

/// A process that has opened thousands of address spaces before a limit binds it is bound like any
/// other: what it has on the GPU leaves, and nothing comes beyond the limit.
fn of_many_spaces() -> Outcome {
    let group = Group::new("hoard")?;
    let mut child = Child::fork(hoard)?;
    child.at_step()?;
    child.next().during("address spaces")?;
    let pid = child.pid().to_string();
    let limit = current(&pid)? + 4 * ROOT as u64;
    child.next().during("without a limit")?;
    same("charged", shown(&pid)?, 8 * ROOT)?;
    set("hoard", LIMIT, &limit.to_string())?;
    group.add(child.pid())?;
    same("when it has joined", shown("hoard")?, 4 * ROOT)?;
    child.next().during("within the limit")?;
    same("of the group", shown("hoard")?, 4 * ROOT)?;
    holds("within the limit", current("hoard")? <= limit)?;
    child.go()?;
    child.finish()
}

/// Forks a process with an address space. Returns `None` if it has got no account.
fn with_account(session: &Session) -> Result<Option<Child>, Stop> {
    let mut child = Child::fork(|parent: &mut Parent| match Uvm::open(session.gpu()) {
        Ok(_space) => parent.step(),
        Err(Error::Status(numbers::INSUFFICIENT_RESOURCES)) => Ok(()),
        Err(other) => Err(other).during("address space"),
    })?;
    match child.at_step() {
        Ok(()) => Ok(Some(child)),
        Err(_) => child.finish().map(|()| None),
    }
}

/// Forks up to `count` processes with an address space each. Their user gets a quarter of all
/// accounts, and a group still gets one.
pub(crate) fn processes(count: usize) -> Outcome {
    /// A payer's part of 4095 accounts.
    const PART: usize = 1024;
    // It has an account.
    let session = session()?;
    let mut children = Vec::new();
    while let Some(child) = with_account(&session)? {
        children.push(child);
        holds("a process was refused", children.len() < count)?;
    }
    same("accounts", children.len() + 1, PART)?;
    let group = Group::new("other")?;
    let mut member = Child::fork(|parent: &mut Parent| {
        parent.step()?;
        let _space = Uvm::open(session.gpu())?;
        parent.step()
    })?;
    member.at_step()?;
    group.add(member.pid())?;
    member.next().during("another payer")?;
    drop(children.pop());
    let next = with_account(&session)?;
    holds("after one has gone", next.is_some())
}

/// Allocates all of the GPU's memory for the resource manager, which never evicts it.
fn fill(parent: &mut Parent) -> Outcome {
    let client = Client::open()?;
    let gpu = Gpu::open(&client, 0)?;
    parent.step()?;
    for bytes in [32 << 20, 2 << 20] {
        loop {
            match gpu.alloc_memory(Memory::Device, bytes) {
                Ok(_) => {}
                Err(Error::Status(numbers::NO_MEMORY)) => break,
                Err(other) => return Err(other).during(bytes),
            }
        }
    }
    parent.step()
}

/// Runs launches that fault until the parent calls. Their memory stays on the CPU, so none needs
/// any of the GPU's.
fn use_host(parent: &mut Parent) -> Outcome {
    const ROOTS: usize = 4;
    let mut toucher = toucher()?;
    parent.step()?;
    let mut seed = 0;
    parent.work(|| {
        seed += 1;
        let range = Range::new(toucher.session(), START, ROOTS * ROOT)?;
        uvm(toucher.session())?.prefer_cpu(START, ROOTS * ROOT)?;
        range.write(seed);
        let root = |root: usize| pages(START + root * ROOT, ROOT, None);
        run(&mut toucher, &[0, 1, 2, 3].map(root)).during(seed)?;
        let sums = (0..ROOTS).map(|root| toucher.sum(root));
        let sums = sums.fold(0, u64::wrapping_add);
        same("sums", sums, sum(seed, ROOTS * ROOT)).during(seed)
    })?;
    same("on the GPU", shown(&me())?, 0)?;
    same("errors", errors(&me())?, faulted(0, 0))
}

/// Opens a channel that has had managed memory on the GPU.
fn used() -> Result<Toucher, Stop> {
    let toucher = toucher()?;
    let range = Range::new(toucher.session(), START, ROOT)?;
    range.migrate(toucher.session())?;
    same("charged", shown(&me())?, ROOT)?;
    Ok(toucher)
}

/// On a GPU that is full of what cannot leave, the faults of a process without limits find no
/// memory. Each of its channels ends, and nobody else's with faults in the same batch.
pub(crate) fn alone() -> Outcome {
    const CHANNELS: usize = 6;
    let (mut hog, mut beside) = (Child::fork(fill)?, Child::fork(use_host)?);
    hog.at_step()?;
    beside.at_step()?;
    // None goes before the end: what the resource manager frees would be room.
    let touchers = (0..CHANNELS).map(|_| used());
    let mut touchers: Vec<_> = touchers.collect::<Result<_, _>>()?;
    hog.next().during("all of the GPU")?;
    beside.next()?;
    let mut seen = Seen::default();
    for (toucher, count) in touchers.iter_mut().zip(1..) {
        let range = Range::new(toucher.session(), START, ROOT)?;
        range.write(count.into());
        let (mark, before) = (recorder()?.mark()?, current(&me())?);
        toucher.start(&[pages(START, ROOT, Some(1))]);
        eventually("its error", &faulted(count, MMU_FAULT), || errors(&me()))?;
        same("ended", toucher.has_ended(), false)?;
        // A root was reserved, and there was none.
        eventually("charged", &before, || current(&me()))?;
        seen.count(mark, 2)?;
        range.check(count.into())?;
    }
    println!("# {seen:?}");
    beside.go()?;
    beside.finish().during("the neighbour")?;
    holds("in a batch with the neighbour's", seen.of_several > 0)?;
    hog.go()?;
    hog.finish()
}
