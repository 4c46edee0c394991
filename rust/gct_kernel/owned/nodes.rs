// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Adds room for the nodes of CUDA graphs of a process on a GPU.
//!
//! ```text
//! turn of the tenant    there may be too few free slots for the next segment, which waits:
//!                       queue the work item of the process on the GPU
//! work item             no lock:  allocate a chunk, charged to the memory cgroup of the process
//!                       locked:   put it into the table of chunks, which was allocated at first
//! next round            the segment is read
//! ```
//!
//! Who is at a limit on its memory waits in the thread of its own work item, or is killed there as
//! where it asks itself. Neither the worker nor other tenants wait for it. Where the kernel has no
//! memory, or the process is gone, its room stays as it is.

use super::client::Refused;
use super::limited::Limited;
use crate::bindings;
use crate::ffi;
use core::ptr;
use gct_core::ids::ProcKey;
use gct_core::owned::{NODES_MAX, NODES_STEP};
use gct_core::submit::graph::{Slot, Table};
use gct_core::submit::qmd::v04_00;
use kernel::alloc::flags::__GFP_NOWARN;
use kernel::ffi::c_void;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::workqueue::WorkItem;

/// Items in chunks, which stay where they are when there are more.
pub(crate) struct Chunks<T>(KVVec<VVec<T>>);

impl<T> Chunks<T> {
    /// Takes the first chunk, and allocates the table for all.
    fn new(first: VVec<T>) -> Result<Self, Refused> {
        let mut chunks = KVVec::with_capacity(NODES_MAX / NODES_STEP, GFP_KERNEL_ACCOUNT)?;
        chunks.push_within_capacity(first).map_err(|_| Refused)?;
        Ok(Self(chunks))
    }

    fn is_full(&self) -> bool {
        self.0.len() >= NODES_MAX / NODES_STEP
    }
}

impl<T> Table<T> for Chunks<T> {
    fn count(&self) -> usize {
        self.0.len().saturating_mul(NODES_STEP)
    }

    fn at(&self, place: usize) -> Option<&T> {
        self.0.get(place / NODES_STEP)?.get(place % NODES_STEP)
    }

    fn at_mut(&mut self, place: usize) -> Option<&mut T> {
        self.0
            .get_mut(place / NODES_STEP)?
            .get_mut(place % NODES_STEP)
    }
}

type Descriptor = [u32; v04_00::WORDS];

/// Room for nodes, and for their words.
pub(super) struct Chunk {
    slots: VVec<Slot>,
    descriptors: VVec<Descriptor>,
}

impl Chunk {
    /// Allocates it. May wait for long.
    pub(super) fn new() -> Result<Self, Refused> {
        let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN;
        Ok(Self {
            slots: VVec::from_elem(Slot::EMPTY, NODES_STEP, flags)?,
            descriptors: VVec::from_elem([0; v04_00::WORDS], NODES_STEP, flags)?,
        })
    }

    /// Makes the first one a table.
    pub(super) fn table(self) -> Result<(Chunks<Slot>, Chunks<Descriptor>), Refused> {
        Ok((Chunks::new(self.slots)?, Chunks::new(self.descriptors)?))
    }

    /// Adds it to a table, whose bounds it keeps. Returns whether there is room for another one.
    pub(super) fn add(self, slots: &mut Chunks<Slot>, words: &mut Chunks<Descriptor>) -> bool {
        // INVARIANT: both tables have as many chunks, and nobody asks once they are full.
        let _ = slots.0.push_within_capacity(self.slots);
        let _ = words.0.push_within_capacity(self.descriptors);
        !slots.is_full()
    }

    /// Allocates it in the name of a process.
    fn charged_to(process: ProcKey) -> Result<Self, Refused> {
        let process = bindings::gct_process {
            tgid: process.tgid,
            reserved: 0,
            start_time_ns: process.start_time_ns,
        };
        let mut payer: *mut c_void = ptr::null_mut();
        // SAFETY: both are there for the call. The end follows in this thread.
        if !unsafe { bindings::gct_helper_pay_begin(&process, &mut payer) } {
            return Err(Refused);
        }
        let chunk = Self::new();
        // SAFETY: begun above.
        unsafe { bindings::gct_helper_pay_end(payer) };
        chunk
    }
}

/// Has room added soon. Any context.
pub(super) fn grow_soon(limited: &Arc<Limited>) {
    if let Some(glue) = ffi::glue() {
        glue.owned.growing.enqueue(limited.clone());
    }
}

impl WorkItem for Limited {
    type Pointer = Arc<Limited>;

    fn run(limited: Arc<Limited>) {
        if limited.lacks_nodes() {
            limited.grow_nodes(Chunk::charged_to(limited.proc));
        }
    }
}
