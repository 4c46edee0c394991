// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that GPUs initialise, and that a client's device is on the GPU that it opened.

use crate::process::Child;
use crate::tree::{self, eventually, expect, expect_gone};
use gct_ktap::{failed, same, skipped, During, Outcome, Stop, Test};
use rm_client::{Client, Control, Engine, Gpu, Session};
use std::fs;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// Tests that run before any GPU is kept open.
pub(crate) const TESTS: &[Test] = &[
    ("gpus_listed", listed),
    ("gpus_opened_backwards", opened_backwards),
    ("gpus_kept_open", kept_open),
];

/// Tests that run at the end.
pub(crate) const LAST_TESTS: &[Test] = &[("nothing_was_lost", nothing_was_lost)];

/// The engine of tests for which it does not matter.
pub(crate) const ENGINE: Engine = Engine::Copy(2);

/// Opens a session with a new client on a GPU.
pub(crate) fn session(minor: u32) -> Result<Session, Stop> {
    let client = Client::open().during("client")?;
    session_of(&client, minor)
}

/// Opens a session of a client on a GPU.
pub(crate) fn session_of(client: &Client, minor: u32) -> Result<Session, Stop> {
    let gpu = Gpu::open(client, minor).during("GPU")?;
    Session::new(gpu).during("session")
}

/// Frees the subdevice of a session, so that its tenant has none.
pub(crate) fn free_subdevice(session: &Session) -> Outcome {
    let gpu = session.gpu();
    Ok(gpu.client().free(gpu.subdevice())?)
}

/// Returns this process's name in the tree.
pub(crate) fn me() -> String {
    process::id().to_string()
}

/// Skips unless there are two GPUs.
pub(crate) fn need_two() -> Outcome {
    match Control::open()?.gpus()?.len() {
        0 | 1 => Err(skipped("needs two GPUs")),
        _ => Ok(()),
    }
}

/// The driver's directory, where a GPU is taken from it and given to it.
const DRIVER: &str = "/sys/bus/pci/drivers/nvidia";

/// Allocations on GPUs that the driver was to let go, which the tree did not show any more.
static UNFOLLOWED: AtomicU64 = AtomicU64::new(0);

/// How often tests were refused a place in the tables that they had asked for on purpose.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Runs a test that asks for more places in the tables than there are.
pub(crate) fn refused(test: impl FnOnce() -> Outcome) -> Outcome {
    let before = tree::stat("events", "limit")?;
    test()?;
    let more = tree::stat("events", "limit")? - before;
    REFUSED.fetch_add(more, Ordering::Relaxed);
    Ok(())
}

/// How often tests named a client that is not that of their file.
static STRANGE: AtomicU64 = AtomicU64::new(0);

/// Runs a test that names a client by the file of another.
pub(crate) fn strange(test: impl FnOnce() -> Outcome) -> Outcome {
    let before = tree::stat("events", "client")?;
    test()?;
    let more = tree::stat("events", "client")? - before;
    STRANGE.fetch_add(more, Ordering::Relaxed);
    Ok(())
}

/// A GPU that is being taken from the driver, which waits for the GPU's open files.
pub(crate) struct Unbinding {
    address: String,
    writer: Child,
}

impl Unbinding {
    /// Has another process take the GPU from the driver. Drop it after the tenants of the GPU: it
    /// waits for them.
    pub(crate) fn begin(minor: u32) -> Result<Self, Stop> {
        let pci = format!("gpus/{}/pci", tree::index_of(minor)?);
        let address = tree::read(&pci)?.trim().to_owned();
        let writer = Child::fork(|_| Ok(fs::write(format!("{DRIVER}/unbind"), &address)?))?;
        Ok(Self { address, writer })
    }

    /// Waits until the driver has let the GPU go, and gives it back.
    pub(crate) fn undo(mut self) -> Outcome {
        self.writer.finish().during("unbind")?;
        let bound = Path::new(DRIVER).join(&self.address);
        same("bound", bound.exists(), false)?;
        eventually("GPUs", &1, shown)?;
        fs::write(format!("{DRIVER}/bind"), &self.address).during("bind")?;
        eventually("GPUs", &2, shown)?;
        UNFOLLOWED.store(tree::stat("events", "gpu")?, Ordering::Relaxed);
        Ok(())
    }
}

/// Returns how many GPUs the tree shows.
pub(crate) fn shown() -> Result<usize, Stop> {
    Ok(fs::read_dir(tree::at("gpus"))?.count())
}

/// Checks that the driver's list and the tree name the same GPUs.
fn listed() -> Outcome {
    let gpus = Control::open()?.gpus()?;
    if gpus.is_empty() {
        return Err(failed("the driver has no GPU"));
    }
    for (minor, _) in gpus {
        tree::index_of(minor)?;
    }
    Ok(())
}

/// Checks that RM numbers devices in the order in which they are opened, the tree by address.
fn opened_backwards() -> Outcome {
    need_two()?;
    let mut child = Child::fork(|parent| {
        let second = session(1)?;
        let first = session(0)?;
        for session in [&first, &second] {
            same("own GPU", session.gpu().is_the_one()?, true)?;
        }
        parent.step()?;
        second.group(ENGINE)?;
        parent.step()?;
        first.group(ENGINE)?;
        first.group(ENGINE)?;
        parent.step()
    })?;
    let pid = child.pid().to_string();
    child.at_step()?;
    expect(&pid, 0, None)?;
    child.next()?;
    expect(&pid, 1, Some((1, 0)))?;
    expect(&pid, 0, None)?;
    child.next()?;
    expect(&pid, 0, Some((2, 0)))?;
    expect(&pid, 1, Some((1, 0)))?;
    child.go()?;
    child.finish()?;
    expect_gone(child.pid())
}

/// Initialises every GPU and keeps it initialised, without a subdevice. An open GPU alone has no
/// directory.
fn kept_open() -> Outcome {
    static KEPT: OnceLock<Vec<Gpu>> = OnceLock::new();
    let client = Client::open()?;
    let mut kept = Vec::new();
    for (minor, _) in client.control_file().gpus()? {
        let gpu = Gpu::open(&client, minor).during("GPU")?;
        same("own GPU", gpu.is_the_one()?, true)?;
        let shown = tree::read(&format!("gpus/{}/uuid", tree::index_of(minor)?))?;
        let digits = shown.trim().trim_start_matches("GPU-").replace('-', "");
        let uuid = gpu.uuid()?.map(|byte| format!("{byte:02x}"));
        same("UUID", digits, uuid.concat())?;
        client.free(gpu.subdevice())?;
        kept.push(gpu);
    }
    let count = kept.len();
    same("kept once", KEPT.set(kept).is_ok(), true)?;
    println!("# {count} GPUs");
    same("directory", tree::at(&me()).exists(), false)
}

/// Checks that after all tests gctgroup has missed no event. What its rules forbade is what the
/// hostile tests asked for and count themselves.
fn nothing_was_lost() -> Outcome {
    let events = tree::read("events")?;
    let known = [
        ("gpu", &UNFOLLOWED),
        ("limit", &REFUSED),
        ("client", &STRANGE),
    ];
    let known = known.map(|(key, count)| format!("{key} {}", count.load(Ordering::Relaxed)));
    let mut lines = events.lines();
    let lost = lines.find(|line| {
        let expected = line.ends_with(" 0") || line.starts_with("forbidden ");
        !expected && !known.iter().any(|known| known == line)
    });
    same("events", lost, None)
}
