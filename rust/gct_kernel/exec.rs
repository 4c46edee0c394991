// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Start, stop, and what the core asked to be done outside its lock.
//!
//! Whoever wrote `control` sees directories made or removed when the write
//! returns. For everybody else a work item does it, so that neither a tenant's
//! ioctl nor its exit waits for a reader of the tree.

use crate::bindings;
use crate::rm::{self, Awake};
use crate::state::Glue;
use crate::tree::Tree;
use gct_core::dirs::Effect;
use gct_core::engine::Begun;
use gct_core::error::Error;
use gct_core::ids::Scope;
use gct_core::iface::File;
use gct_core::limits;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::{Arc, ArcBorrow};
use kernel::workqueue::{self, Work, WorkItem};

impl WorkItem for Glue {
    type Pointer = Arc<Glue>;

    fn run(glue: Arc<Glue>) {
        glue.count_lost();
        glue.count_faults();
        run(&glue, &mut glue.tree.lock());
        if glue.has_controls() {
            let _awake = Awake::patient();
            send_controls(&glue, CONTROLS_MAX);
        }
    }
}

/// More controls than one object of each kind can need, twice.
const CONTROLS_MAX: usize = 4 * limits::OBJECTS_MAX;

/// Controls that a tenant's ioctl sends before it returns; the first are about what
/// it made itself. The rest is the work item's.
pub(crate) const CONTROLS_PER_IOCTL: usize = 8;

/// Sends controls until there is none, a write is refused, or so many were sent.
/// The GPUs may not be suspended meanwhile: see [`Awake`].
fn send_controls(glue: &Glue, at_most: usize) {
    for _ in 0..at_most {
        let _turn = glue.sending.lock();
        let Some(mut control) = glue.next_control() else {
            return;
        };
        let outcome = rm::send(&mut control);
        if !glue.control_done(&control, outcome) {
            return;
        }
    }
}

/// Waits until no control is under way that may name what the core has just
/// forgotten.
pub(crate) fn wait_for_control(glue: &Glue) {
    drop(glue.sending.lock());
}

/// Sends what a tenant's ioctl has made due, in the ioctl.
pub(crate) fn after_ioctl(glue: ArcBorrow<'_, Glue>) {
    if glue.has_controls() {
        send_controls(&glue, CONTROLS_PER_IOCTL);
        if glue.has_controls() {
            later(glue);
        }
    }
}

/// Sends what a write to the tree has made due. If a signal comes before the GPUs are
/// awake, the work item does.
pub(crate) fn after_write(glue: ArcBorrow<'_, Glue>) {
    if glue.has_controls() {
        match Awake::interruptible() {
            Ok(_awake) => send_controls(&glue, CONTROLS_MAX),
            Err(_) => later(glue),
        }
    }
}

/// Writes a limit: it is in force and stored when the resource manager took all that
/// it needs, or else as before.
pub(crate) fn write_limit(glue: &Glue, file: File, scope: Scope, text: &[u8]) -> Result<(), c_int> {
    let errno = |error: Error| error.errno().wrapping_neg();
    let _awake = Awake::interruptible()?;
    let _turn = glue.writing.lock();
    let begun = glue.with(|state, _| state.write_begin(file, scope, text));
    match begun.map_err(errno)? {
        Begun::Done => return Ok(()),
        Begun::Trial => send_controls(glue, CONTROLS_MAX),
    }
    let outcome = glue.with(|state, _| state.write_end());
    send_controls(glue, CONTROLS_MAX);
    outcome.map_err(errno)
}

/// Has the work item run soon. It may be called where sleeping is not allowed.
pub(crate) fn later(glue: ArcBorrow<'_, Glue>) {
    // An item that is queued already will see this change too.
    let _ = workqueue::system_long().enqueue::<Arc<Glue>, 0>(glue.into());
}

/// Makes and removes directories until the tree shows what the core wants.
pub(crate) fn run(glue: &Glue, tree: &mut Tree) {
    while let Some(effect) = glue.next_effect() {
        match effect {
            Effect::Add { path, scope, name } => {
                if tree.add(path, scope, name.as_str()).is_err() {
                    glue.out_of_memory();
                }
            }
            Effect::Remove { path } => tree.remove(path),
        }
    }
}

/// Makes the glue and the root of the tree.
pub(crate) fn start() -> Result<Arc<Glue>> {
    let tree = Tree::new()?;
    // SAFETY: has no preconditions.
    let seed = unsafe { bindings::gct_helper_random() };
    Glue::new(tree, seed)
}

/// Removes the tree and returns when no file operation, tracepoint or work item
/// of this module runs. There are no hooks any more.
pub(crate) fn stop(glue: Arc<Glue>) {
    let closed = glue.tree.lock().close();
    closed.remove();
    // Nobody is left who could queue it again.
    // SAFETY: the work item lives in `glue`, which is borrowed here.
    unsafe { kernel::bindings::flush_work(Work::raw_get(&glue.work)) };
}
