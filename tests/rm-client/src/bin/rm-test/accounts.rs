// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Takes accounts of managed memory until there are no more, as a process under a limit. An address
//! space without an account would not be charged.

use crate::gmem::{current, number, LIMIT};
use crate::gpus::me;
use crate::limits::set;
use crate::managed::{session, shown, PAGE, ROOT, START};
use gct_ktap::{failed, holds, same, During, Outcome};
use rm_client::{numbers, Error, Uvm};
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
