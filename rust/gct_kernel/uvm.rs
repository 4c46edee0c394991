// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Charges managed memory, which nvidia-uvm.ko allocates in roots of 2 MiB.
//!
//! UVM reports under its spinlocks which address space holds a root. That goes to the ledger of the
//! GPU, below a spinlock of its own. What it adds up to is charged to the process later, where the
//! core's mutex can be taken: before UVM goes on with an allocation, before the resource manager
//! runs one, and before a file shows the sum.

use crate::hooks::count_refusal;
use crate::state::{Glue, Kv};
use core::ptr;
use gct_core::engine::Ticket;
use gct_core::error::Error;
use gct_core::ids::{FileId, GpuId};
use gct_core::memory::accounts::{Account, Accounts};
use gct_core::memory::{Ledger, Root, RootId, Slot, SlotId};
use gct_core::state::Failure;
use gct_core::tables::Memory;
use gct_core::units::Bytes;
use kernel::prelude::*;
use kernel::sync::{new_mutex, new_spinlock, Arc, Mutex, SpinLock};

/// Accounts of one GPU, as in gct.h. Account 0 is nobody's.
const ACCOUNTS: usize = crate::bindings::GCT_UVM_ACCOUNTS as usize;

/// An address space on a GPU.
#[derive(Clone, Copy)]
struct Space {
    file: FileId,
    ticket: Ticket,
}

/// A GPU that UVM uses.
#[pin_data]
pub(crate) struct Gpu {
    id: GpuId,
    #[pin]
    table: SpinLock<Table>,
}

struct Table {
    roots: KVVec<Root>,
    slots: KVVec<Slot>,
    all: KVVec<Account<Space>>,
}

impl Table {
    fn accounts(&mut self) -> Accounts<'_, Space> {
        Accounts::new(Ledger::new(&mut self.roots, &mut self.slots), &mut self.all)
    }
}

/// The GPUs that UVM uses.
#[pin_data]
pub(crate) struct Uvm {
    #[pin]
    gpus: Mutex<KVVec<Arc<Gpu>>>,
}

impl Uvm {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self { gpus <- new_mutex!(KVVec::new(), "gct::uvm") })
    }

    fn gpu(&self, number: usize) -> Option<Arc<Gpu>> {
        self.gpus.lock().get(number).cloned()
    }

    fn add(&self, gpu: Arc<Gpu>) -> Result {
        Ok(self.gpus.lock().push(gpu, GFP_KERNEL)?)
    }

    fn remove(&self, gpu: &Gpu) {
        let mut gpus = self.gpus.lock();
        let at = gpus.iter().position(|other| ptr::eq(&**other, gpu));
        // The caller holds another reference, so nothing is freed here.
        drop(at.and_then(|at| gpus.remove(at).ok()));
    }
}

/// Starts the account of a GPU with this many roots. Returns `None` if there is no such GPU, or no
/// memory; then managed memory on it is not charged.
pub(crate) fn gpu_add(glue: &Glue, uuid: &[u8; 16], roots: u32) -> Option<Arc<Gpu>> {
    let Some(id) = glue.locked(|state| state.gpu_of_uuid(uuid)) else {
        glue.count(Failure::Gpu);
        return None;
    };
    match new_gpu(glue, id, usize::try_from(roots).unwrap_or(0)) {
        Ok(gpu) => Some(gpu),
        Err(_) => {
            glue.out_of_memory();
            None
        }
    }
}

fn new_gpu(glue: &Glue, id: GpuId, roots: usize) -> Result<Arc<Gpu>> {
    let table = Table {
        roots: Kv::slots(roots)?,
        slots: Kv::slots(ACCOUNTS)?,
        all: Kv::slots(ACCOUNTS)?,
    };
    let gpu = Arc::pin_init(
        pin_init!(Gpu { id, table <- new_spinlock!(table, "gct::ledger") }),
        GFP_KERNEL,
    )?;
    glue.uvm.add(gpu.clone())?;
    Ok(gpu)
}

/// Forgets a GPU.
pub(crate) fn gpu_remove(glue: &Glue, gpu: &Gpu) {
    glue.uvm.remove(gpu);
}

/// Opens an account for an address space, which is a file to the core. Returns slot 0 if it cannot
/// be followed: then nobody is charged.
pub(crate) fn account_open(glue: &Glue, gpu: &Gpu, file: FileId) -> SlotId {
    let charged = glue.with(|state, _| state.charge_managed(file, gpu.id, Bytes(0)));
    let Some(ticket) = count_refusal(glue, charged) else {
        return SlotId(0);
    };
    let opened = gpu.table.lock().accounts().open(Space { file, ticket });
    opened.unwrap_or_else(|| {
        glue.locked(|state| state.uncharge_ticket(file, ticket));
        glue.count(Failure::Limit);
        SlotId(0)
    })
}

/// Closes an account. Nothing is charged to its process any more.
pub(crate) fn account_close(glue: &Glue, gpu: &Gpu, slot: SlotId) {
    glue.locked(|state| {
        let closed = gpu.table.lock().accounts().close(slot);
        if let Some(space) = closed {
            state.uncharge_ticket(space.file, space.ticket);
        }
    });
}

impl Gpu {
    /// Gives a root to an account. Must not sleep.
    pub(crate) fn take(&self, root: RootId, slot: SlotId) {
        self.table.lock().accounts().take(slot, root);
    }

    /// Makes a root free. Must not sleep.
    pub(crate) fn drop_root(&self, root: RootId) {
        self.table.lock().accounts().drop_root(root);
    }

    /// Returns the account that holds a root, or slot 0. Must not sleep.
    pub(crate) fn holder(&self, root: RootId) -> SlotId {
        let holder = self.table.lock().accounts().ledger().holder(root);
        holder.unwrap_or(SlotId(0))
    }

    /// Charges a process for what an account holds, if that has changed.
    pub(crate) fn settle(&self, glue: &Glue, slot: SlotId) {
        if !self.table.lock().accounts().is_stale(slot) {
            return;
        }
        // The sum is read under the core's mutex, so the last reader charges the last sum.
        let settled = glue.with(|state, _| {
            let report = self.table.lock().accounts().report(slot);
            let Some((Space { file, ticket }, bytes)) = report else {
                return Ok(());
            };
            match state.recharge_managed(file, ticket, bytes) {
                Ok(()) | Err(Error::Gone) => Ok(()),
                Err(error) => {
                    self.table.lock().accounts().changed(slot);
                    Err(error)
                }
            }
        });
        count_refusal(glue, settled);
    }
}

/// Charges all processes for the managed memory that they hold.
pub(crate) fn settle(glue: &Glue) {
    for number in 0..usize::MAX {
        let Some(gpu) = glue.uvm.gpu(number) else {
            break;
        };
        let mut from = SlotId(0);
        loop {
            let stale = gpu.table.lock().accounts().next_stale(from);
            let Some(slot) = stale else { break };
            gpu.settle(glue, slot);
            from = SlotId(slot.0.saturating_add(1));
        }
    }
}
