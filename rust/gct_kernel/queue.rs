// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs work items that may wait for long in threads of their own.

use crate::bindings;
use core::ptr::NonNull;
use kernel::bindings::workqueue_struct;
use kernel::prelude::*;
use kernel::workqueue::{Queue, RawWorkItem};

/// A queue of work items. Each runs in one thread at a time, beside those of others.
pub(crate) struct WorkQueue(NonNull<workqueue_struct>);

// SAFETY: a work queue may be used by any thread.
unsafe impl Send for WorkQueue {}
// SAFETY: as above.
unsafe impl Sync for WorkQueue {}

impl WorkQueue {
    pub(crate) fn new(name: &'static CStr) -> Result<Self> {
        // SAFETY: the name ends with a NUL. It may sleep, as module init may.
        let queue = unsafe { bindings::gct_helper_queue_new(name.as_char_ptr()) };
        NonNull::new(queue).map(Self).ok_or(ENOMEM)
    }

    /// Queues a work item. If it is queued already, it will see what has changed. Any context.
    pub(crate) fn enqueue<W: RawWorkItem<0> + Send + 'static>(&self, item: W) {
        // SAFETY: the queue lives until this value is dropped.
        let queue = unsafe { Queue::from_raw(self.0.as_ptr()) };
        let _ = queue.enqueue::<W, 0>(item);
    }

    /// Waits until no work item runs. Nobody may queue one any more, but an item itself.
    pub(crate) fn drain(&self) {
        // SAFETY: the queue lives until this value is dropped. The caller may sleep.
        unsafe { bindings::gct_helper_queue_drain(self.0.as_ptr()) };
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once, and empty: `drain` was called, or nothing was queued.
        unsafe { bindings::gct_helper_queue_free(self.0.as_ptr()) };
    }
}
