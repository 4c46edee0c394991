// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Does what the core asked for, outside its lock; starts and stops the glue.
//!
//! A write of `control` returns after its directories are made or removed. In all other cases a
//! work item makes and removes them, so neither a tenant's ioctl nor its exit waits for a reader of
//! the tree.

use crate::bindings;
use crate::owned::{self, Sender};
use crate::rm::SystemPmGuard;
use crate::state::Glue;
use crate::tree::Tree;
use gct_core::dirs::Effect;
use gct_core::engine::{Flush, Next, Prepared};
use gct_core::error::Error;
use gct_core::ids::Scope;
use gct_core::iface::files::File;
use gct_core::units::Ns;
use kernel::prelude::*;
use kernel::sync::{Arc, ArcBorrow};
use kernel::workqueue::{self, Work, WorkItem};

impl WorkItem for Glue {
    type Pointer = Arc<Glue>;

    fn run(glue: Arc<Glue>) {
        glue.count_lost();
        glue.count_faults();
        run(&glue, &mut glue.tree.lock());
        owned::give_back(&glue);
        if glue.has_new_pauses() {
            pass_pauses(glue.as_arc_borrow());
        }
        if glue.has_controls() {
            let _pm = SystemPmGuard::patient();
            send_controls(&glue, &Flush::ALL, CONTROLS_PER_RUN);
            // What stands does not run until the next call. While controls are left, it comes in
            // its time: it looks at all processes of owners that wait.
            if glue.do_pauses_settle() && !glue.can_send() {
                pass_pauses(glue.as_arc_borrow());
            }
        }
        // Look after members and directories before sending more.
        if glue.can_send() {
            schedule_work(glue.as_arc_borrow());
        }
    }
}

/// Controls that the work item sends in one run, some ten milliseconds. Members and directories
/// wait for no more than this.
const CONTROLS_PER_RUN: usize = 64;

/// Sends the controls of a flush, `at_most` of them. Stops when the pending write is refused. The
/// caller is in an ioctl or has a [`SystemPmGuard`].
fn send_controls(glue: &Glue, flush: &Flush, at_most: usize) {
    let mut sender = Sender::default();
    for _ in 0..at_most {
        match glue.next_control(flush) {
            Next::Send(mut control, in_flight) => {
                let outcome = sender.send(&mut control);
                if glue.control_done(&in_flight, &control, outcome) && flush.ends_at_refusal() {
                    return;
                }
            }
            Next::Busy(wait) => glue.wait(&wait),
            Next::Nothing => return,
        }
    }
}

/// Sends all controls of a flush. The work item sends what became dirty meanwhile.
pub(crate) fn flush_controls(glue: ArcBorrow<'_, Glue>, flush: &Flush) {
    send_controls(&glue, flush, usize::MAX);
    if glue.can_send() {
        schedule_work(glue);
    }
}

/// Sends what is dirty after processes moved to other groups. If a signal comes while a suspension
/// is in progress, the work item sends it later.
pub(crate) fn send_after_move(glue: ArcBorrow<'_, Glue>) {
    if !glue.has_controls() {
        return;
    }
    match SystemPmGuard::interruptible() {
        Ok(_pm) => flush_all(glue),
        Err(_) => schedule_work(glue),
    }
}

/// Sends what is dirty of any process.
fn flush_all(glue: ArcBorrow<'_, Glue>) {
    if glue.has_controls() {
        flush_controls(glue, &glue.flush_of(None));
    }
}

/// Writes a file of the tree and sends what this makes dirty. A limit that the resource manager
/// enforces is stored after the resource manager has accepted all controls. If it refuses one, the
/// former limit is sent again to those that accepted the new one.
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
        flush_all(glue);
        return Ok(());
    };
    flush_controls(glue, &glue.flush_of(Some(owner)));
    let outcome = glue.locked(|state| state.write_commit());
    // If the write was refused, this restores the former limit.
    flush_controls(glue, &glue.flush_of(Some(owner)));
    outcome
}

/// Has owners pause, or go on, as time has passed. The work item sends what follows. Other than
/// the core's, the caller holds no lock.
pub(crate) fn pass_pauses(glue: ArcBorrow<'_, Glue>) {
    let concerns_owned = glue.locked(|state| {
        // Both under the lock: time does not go back, and the last one who asks for a call wins.
        // SAFETY: it has no preconditions.
        let now = unsafe { bindings::gct_helper_now() };
        let pausing = state.pass_pauses(Ns(now));
        if let Some(due) = pausing.due {
            // SAFETY: the lock is a mutex, so this is no interrupt.
            unsafe { bindings::gct_helper_pauses_in(due.get()) };
        }
        pausing.concerns_owned
    });
    if concerns_owned {
        owned::update(&glue);
    }
    if glue.can_send() {
        schedule_work(glue);
    }
}

/// Schedules the work item. Any context.
pub(crate) fn schedule_work(glue: ArcBorrow<'_, Glue>) {
    // If the item is queued already, it will see this change.
    let _ = workqueue::system_long().enqueue::<Arc<Glue>, 0>(glue.into());
}

/// Makes and removes directories until the tree shows the core's state, and frees pages without
/// entries.
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

/// Creates the glue and the root of the tree.
///
/// # Errors
///
/// ENOMEM.
pub(crate) fn start() -> Result<Arc<Glue>> {
    let tree = Tree::new()?;
    // SAFETY: it has no preconditions.
    let seed = unsafe { bindings::gct_helper_random() };
    Glue::new(tree, seed)
}

/// Removes the tree. When it returns, no file operation, tracepoint or work item of this module
/// runs. The caller has stopped the hooks.
pub(crate) fn stop(glue: Arc<Glue>) {
    let closed = glue.tree.lock().close();
    closed.remove();
    // Without a file of the driver nobody pauses or has channels, so nobody asks for a call again.
    // SAFETY: it sleeps, and the caller may.
    unsafe { bindings::gct_helper_shadows_cancel() };
    // SAFETY: as above.
    unsafe { bindings::gct_helper_pauses_cancel() };
    glue.uvm.evictors.drain();
    // No worker is left that would queue one.
    glue.owned.growing.drain();
    // No other caller can queue the work item now, but an item that runs may queue itself once
    // more. `flush_work` returns whether it had to wait.
    // SAFETY: the work item lives in `glue`, which this function owns a reference to.
    while unsafe { kernel::bindings::flush_work(Work::raw_get(&glue.work)) } {}
}
