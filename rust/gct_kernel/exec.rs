// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Start, stop, and what the core asked to be done outside its lock.
//!
//! Whoever wrote `control` sees directories made or removed when the write
//! returns. For everybody else a work item does it, so that neither a tenant's
//! ioctl nor its exit waits for a reader of the tree.

use crate::bindings;
use crate::rm::{self, SystemPmGuard};
use crate::state::Glue;
use crate::tree::Tree;
use gct_core::dirs::Effect;
use gct_core::engine::{Flush, Next, Prepared};
use gct_core::error::Error;
use gct_core::ids::Scope;
use gct_core::iface::files::File;
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
            let _pm = SystemPmGuard::patient();
            send_controls(&glue, &Flush::ALL, CONTROLS_PER_RUN);
        }
        // What is left takes its turn behind whatever else the item is queued for.
        if glue.can_send() {
            schedule_work(glue.as_arc_borrow());
        }
    }
}

/// Controls that the work item sends before it looks after members and directories again:
/// some ten milliseconds.
const CONTROLS_PER_RUN: usize = 64;

/// Sends the controls of a flush until there is none, a write is refused, or so many were
/// sent. The GPUs may not be suspended meanwhile: see [`SystemPmGuard`].
fn send_controls(glue: &Glue, flush: &Flush, at_most: usize) {
    for _ in 0..at_most {
        match glue.next_control(flush) {
            Next::Send(mut control, in_flight) => {
                let outcome = rm::send(&mut control);
                if glue.control_done(&in_flight, &control, outcome) && flush.ends_at_refusal() {
                    return;
                }
            }
            Next::Busy(wait) => glue.wait(&wait),
            Next::Nothing => return,
        }
    }
}

/// Sends all controls of a flush, as an ioctl does for what it has made dirty. The work item sends what became dirty
/// meanwhile, except for processes with a control in flight.
pub(crate) fn flush_controls(glue: ArcBorrow<'_, Glue>, flush: &Flush) {
    send_controls(&glue, flush, usize::MAX);
    if glue.can_send() {
        schedule_work(glue);
    }
}

/// Sends what was made due when processes came under other limits. If a signal comes before the
/// GPUs can be kept awake, the work item does it.
pub(crate) fn send_after_move(glue: ArcBorrow<'_, Glue>) {
    if !glue.has_controls() {
        return;
    }
    match SystemPmGuard::interruptible() {
        Ok(_pm) => send_everybodys(glue),
        Err(_) => schedule_work(glue),
    }
}

/// Sends what is due of any process.
fn send_everybodys(glue: ArcBorrow<'_, Glue>) {
    if glue.has_controls() {
        flush_controls(glue, &glue.flush_of(None));
    }
}

/// Writes a file of the tree and sends what this makes due. A limit that the resource manager
/// enforces is stored after it took all controls; if it refuses one, the former limit is restored.
///
/// # Errors
///
/// Those of [`State::write_prepare`] and [`State::write_commit`].
///
/// [`State::write_prepare`]: gct_core::state::State::write_prepare
/// [`State::write_commit`]: gct_core::state::State::write_commit
pub(crate) fn write(
    glue: ArcBorrow<'_, Glue>,
    _pm: &SystemPmGuard,
    file: File,
    scope: Scope,
    text: &[u8],
) -> Result<(), Error> {
    let _turn = glue.writing.lock();
    let prepared = glue.with(|state, _| state.write_prepare(file, scope, text))?;
    let (Prepared::Pending, Scope::Pool(owner, _)) = (prepared, scope) else {
        send_everybodys(glue);
        return Ok(());
    };
    flush_controls(glue, &glue.flush_of(Some(owner)));
    let outcome = glue.locked(|state| state.write_commit());
    // If it was refused, those who took the new limit are sent the former one.
    flush_controls(glue, &glue.flush_of(Some(owner)));
    outcome
}

/// Has the work item run soon. It may be called where sleeping is not allowed.
pub(crate) fn schedule_work(glue: ArcBorrow<'_, Glue>) {
    // An item that is queued already will see this change too.
    let _ = workqueue::system_long().enqueue::<Arc<Glue>, 0>(glue.into());
}

/// Makes and removes directories until the tree shows what the core wants, and frees the pages of what has gone.
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
    glue.shrink();
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
    // No other caller can queue the work item now, but an item that runs may queue itself once more.
    // `flush_work` returns whether it had to wait.
    // SAFETY: the work item lives in `glue`, which is borrowed here.
    while unsafe { kernel::bindings::flush_work(Work::raw_get(&glue.work)) } {}
}
