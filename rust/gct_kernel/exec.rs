// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Start, stop, and what the core asked to be done outside its lock.
//!
//! Whoever wrote `control` sees directories made or removed when the write
//! returns. For everybody else a work item does it, so that neither a tenant's
//! ioctl nor its exit waits for a reader of the tree.

use crate::bindings;
use crate::state::Glue;
use crate::tree::Tree;
use gct_core::dirs::Effect;
use kernel::prelude::*;
use kernel::sync::{Arc, ArcBorrow};
use kernel::workqueue::{self, Work, WorkItem};

impl WorkItem for Glue {
    type Pointer = Arc<Glue>;

    fn run(glue: Arc<Glue>) {
        glue.grow_members_ahead();
        run(&glue, &mut glue.tree.lock());
    }
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
    let seeds = unsafe { [bindings::gct_helper_random(), bindings::gct_helper_random()] };
    Glue::new(tree, seeds)
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
