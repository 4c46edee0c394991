// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Evicts managed memory of owners near their limits before their threads need the room
//! ([`policy::ahead`](gct_core::policy::ahead)).
//!
//! Each GPU has a work item in one queue. A reservation of a root queues it; nothing else does, so
//! without limits it never runs. It serves the accounts that wait in turn, a root each, so nobody
//! waits for all of another's. It gives up where a thread would wait: while GPUs are suspended, and
//! where nothing can leave. Then the threads evict for themselves, as without it.
//!
//! A GPU may go while its item runs. The item has a reference to what the glue knows of it, and
//! nvidia-uvm evicts nothing on a GPU that it has let go.

use crate::ffi;
use crate::queue::WorkQueue;
use crate::rm::{self, SystemPmGuard};
use crate::state::Glue;
use crate::uvm::Gpu;
use core::ptr;
use gct_core::memory::SlotId;
use kernel::sync::{Arc, ArcBorrow};
use kernel::workqueue::WorkItem;

/// Roots that one run of a work item evicts. Between runs the thread of the queue may be scheduled.
const ROOTS_PER_RUN: usize = 32;

/// Queues the work item of a GPU if an account waits there. May be called in any context.
pub(crate) fn wake(evictors: &WorkQueue, gpu: ArcBorrow<'_, Gpu>) {
    if gpu.take_waking() {
        evictors.enqueue::<Arc<Gpu>>(gpu.into());
    }
}

impl WorkItem for Gpu {
    type Pointer = Arc<Gpu>;

    fn run(gpu: Arc<Gpu>) {
        let Some(glue) = ffi::glue() else { return };
        let mut last = SlotId(0);
        for _ in 0..ROOTS_PER_RUN {
            if !evict_one(&glue, &gpu, &mut last) {
                return;
            }
        }
        gpu.wake_again();
        wake(&glue.uvm.evictors, gpu.as_arc_borrow());
    }
}

/// Evicts a root for the account whose turn it is after `last`. Returns false if nobody waits, or
/// GPUs are suspended.
fn evict_one(glue: &Glue, gpu: &Gpu, last: &mut SlotId) -> bool {
    let Some(_pm) = SystemPmGuard::attempt() else {
        return false;
    };
    let Some((slot, victim)) = gpu.next_ahead(glue, *last) else {
        return false;
    };
    *last = slot;
    let Some((victim, file)) = victim else {
        return true;
    };
    if rm::evict(gpu.uuid(), ptr::from_ref(gpu), victim, true) {
        glue.locked(|state| state.evicted_ahead(file, gpu.id()));
    } else {
        gpu.rest(slot);
    }
    true
}
