// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Takes accounts of managed memory until there are no more. A process under a limit gets no
//! address space without one. Any other does, and is charged for nothing there; its faults must
//! hurt nobody.

use crate::faults::{events as errors, shown as faulted, MMU_FAULT};
use crate::gmem::{current, number, LIMIT};
use crate::gpus::me;
use crate::launch::recorder;
use crate::limits::set;
use crate::managed::{session, shown, uvm, Range, PAGE, ROOT, START};
use crate::mixed::Seen;
use crate::process::{Child, Parent};
use crate::replayable::{pages, run, sum, toucher};
use crate::tree::eventually;
use gct_ktap::{failed, holds, same, During, Outcome, Stop};
use rm_client::{numbers, Client, Error, Gpu, Memory, Toucher, Uvm};
use std::sync::atomic::Ordering;

/// Opens up to `count` address spaces of UVM. Some are refused, and those that are not are charged.
pub(crate) fn spaces(count: usize) -> Outcome {
    let session = session()?;
    let limit = current(&me())? + 4 * ROOT as u64;
    set(&me(), LIMIT, &limit.to_string())?;
    let mut all = Vec::new();
    let refused = loop {
        match Uvm::open(session.gpu()) {
            Ok(uvm) if all.len() < count => all.push(uvm),
            Ok(_) => break false,
            Err(Error::Status(numbers::INSUFFICIENT_RESOURCES)) => break true,
            Err(other) => Err(other).during(format!("address space {}", all.len()))?,
        }
    };
    eprintln!("# {} address spaces", all.len());
    holds("an address space was refused", refused)?;
    let last = all.last().ok_or_else(|| failed("no address space"))?;
    last.register_space(session.gpu(), session.another_space()?)?;
    let memory = last.managed(START, 8 * ROOT)?;
    for page in (0..8 * ROOT).step_by(PAGE) {
        memory.u64(page).store(page as u64 + 1, Ordering::Relaxed);
    }
    last.migrate(START, 8 * ROOT)?;
    same("on the GPU", shown(&me())?, 4 * ROOT)?;
    holds("within the limit", number(&me(), "gmem.peak")? <= limit)?;
    drop((memory, all.pop()));
    Uvm::open(session.gpu())
        .map(|_| ())
        .during("after one has gone")
}

/// A process's share of all 4095 accounts.
const SHARE: usize = 2048;

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

/// Opens a channel whose address space has no account.
fn uncharged() -> Result<Toucher, Stop> {
    let toucher = toucher()?;
    let range = Range::new(toucher.session(), START, ROOT)?;
    range.migrate(toucher.session())?;
    same("charged", shown(&me())?, 0)?;
    Ok(toucher)
}

/// On a GPU that is full of what cannot leave, the faults of a process without limits or account
/// find no memory. Each of its channels ends, and nobody else's with faults in the same batch.
pub(crate) fn alone() -> Outcome {
    const CHANNELS: usize = 6;
    let (mut hog, mut beside) = (Child::fork(fill)?, Child::fork(use_host)?);
    hog.at_step()?;
    beside.at_step()?;
    let session = session()?;
    let spaces = (0..SHARE).map(|_| Uvm::open(session.gpu()));
    let spaces: Vec<_> = spaces.collect::<Result<_, _>>()?;
    // None goes before the end: what the resource manager frees would be room.
    let mut touchers: Vec<_> = (0..CHANNELS)
        .map(|_| uncharged())
        .collect::<Result<_, _>>()?;
    hog.next().during("all of the GPU")?;
    beside.next()?;
    let mut seen = Seen::default();
    for (toucher, count) in touchers.iter_mut().zip(1..) {
        let range = Range::new(toucher.session(), START, ROOT)?;
        range.write(count.into());
        let mark = recorder()?.mark()?;
        toucher.start(&[pages(START, ROOT, Some(1))]);
        eventually("its error", &faulted(count, MMU_FAULT), || errors(&me()))?;
        same("ended", toucher.has_ended(), false)?;
        seen.count(mark, 2)?;
        range.check(count.into())?;
    }
    println!("# {seen:?}");
    beside.go()?;
    beside.finish().during("the neighbour")?;
    holds("in a batch with the neighbour's", seen.of_several > 0)?;
    drop(spaces);
    hog.go()?;
    hog.finish()
}
