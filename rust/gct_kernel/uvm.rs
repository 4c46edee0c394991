// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Charges managed memory, which nvidia-uvm.ko allocates in roots of 2 MiB.
//!
//! UVM reports under its spinlocks whose account holds a root. That goes to the ledger of the
//! GPU, below a spinlock of its own. What it adds up to is charged to the process later, where the
//! core's mutex can be taken: before UVM goes on with an allocation, before the resource manager
//! runs one, and before a file shows the sum.
//!
//! A sum grows only by a root that was charged before: [`Gpu::reserve`]. Beyond a limit, memory of
//! the owner whose limit it is has to leave first. UVM evicts it for a thread of its own
//! (gct-pmm-evict.h), [`make_room`] has UVM evict for the others, and the
//! [`evictor`](crate::evictor) before anybody needs the room.

mod tables;

use crate::bindings;
use crate::hooks::count_refusal;
use crate::process;
use crate::queue::WorkQueue;
use crate::rm::{self, SystemPmGuard};
use crate::state::{Glue, Kv};
use core::ptr;
use gct_core::engine::{HostCharge, Shortage, Ticket};
use gct_core::error::Error;
use gct_core::failures::Failure;
use gct_core::ids::{FileId, GpuId, GroupId, Owner, ProcKey, Scope};
use gct_core::memory::accounts::{Account, Accounts, Victim};
use gct_core::memory::{Ledger, Root, RootId, Slot, SlotId};
use gct_core::records::Payer;
use gct_core::tables::Memory;
use gct_core::units::Bytes;
use kernel::ffi::c_int;
use kernel::prelude::*;
use kernel::sync::{new_mutex, new_spinlock, Arc, Mutex, SpinLock};
use kernel::workqueue::{impl_has_work, new_work, Work};

/// Accounts of one GPU, as in gct.h. Account 0 is nobody's.
const ACCOUNTS: usize = bindings::GCT_UVM_ACCOUNTS as usize;

/// The owner of an account: a process on a GPU.
#[derive(Clone, Copy)]
struct Holder {
    proc: ProcKey,
    /// The account's own.
    file: FileId,
    ticket: Ticket,
    /// Who paid for the account when it was opened.
    payer: Option<Payer>,
}

/// What came of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// A root is charged.
    Granted,
    /// A limit is in the way. The victim has to give up a root, if there is one.
    Refused(Option<Victim>),
}

/// A GPU that UVM uses.
#[pin_data]
pub(crate) struct Gpu {
    id: GpuId,
    uuid: [u8; 16],
    #[pin]
    table: SpinLock<Table>,
    /// Evicts ahead.
    #[pin]
    work: Work<Gpu>,
}

impl_has_work! {
    impl HasWork<Self> for Gpu { self.work }
}

struct Table {
    roots: KVVec<Root>,
    slots: KVVec<Slot>,
    all: KVVec<Account<Holder>>,
    /// The account that gave up a root last.
    hand: SlotId,
    /// Whether an account waits for the evictor that was not woken yet.
    wakes: bool,
}

impl Table {
    fn accounts(&mut self) -> Accounts<'_, Holder> {
        Accounts::new(Ledger::new(&mut self.roots, &mut self.slots), &mut self.all)
    }

    fn victim(&mut self, tried: u32, is_candidate: impl Fn(&Holder) -> bool) -> Option<Victim> {
        let mut hand = self.hand;
        let victim = self.accounts().victim(&mut hand, tried, is_candidate);
        self.hand = hand;
        victim
    }
}

/// The GPUs that UVM uses.
#[pin_data]
pub(crate) struct Uvm {
    #[pin]
    gpus: Mutex<KVVec<Arc<Gpu>>>,
    pub(crate) evictors: WorkQueue,
}

impl Uvm {
    pub(crate) fn new(evictors: WorkQueue) -> impl PinInit<Self> {
        pin_init!(Self { gpus <- new_mutex!(KVVec::new(), "gct::uvm"), evictors })
    }

    fn gpu_by_id(&self, id: GpuId) -> Option<Arc<Gpu>> {
        let gpus = self.gpus.lock();
        let found = gpus.iter().find(|gpu| gpu.id == id);
        found.cloned()
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
pub(crate) fn gpu_add(glue: &Glue, uuid: [u8; 16], roots: u32) -> Option<Arc<Gpu>> {
    let Some(id) = glue.locked(|state| state.gpu_of_uuid(&uuid)) else {
        glue.count(Failure::Gpu);
        return None;
    };
    match new_gpu(glue, id, uuid, usize::try_from(roots).unwrap_or(0)) {
        Ok(gpu) => Some(gpu),
        Err(_) => {
            glue.out_of_memory();
            None
        }
    }
}

fn new_gpu(glue: &Glue, id: GpuId, uuid: [u8; 16], roots: usize) -> Result<Arc<Gpu>> {
    let table = Table {
        roots: Kv::slots(roots)?,
        slots: Kv::slots(ACCOUNTS)?,
        all: Kv::slots(ACCOUNTS)?,
        hand: SlotId(0),
        wakes: false,
    };
    let gpu = Arc::pin_init(
        pin_init!(Gpu {
            id,
            uuid,
            table <- new_spinlock!(table, "gct::ledger"),
            work <- new_work!("gct::evictor"),
        }),
        GFP_KERNEL,
    )?;
    glue.uvm.add(gpu.clone())?;
    Ok(gpu)
}

/// Forgets a GPU.
pub(crate) fn gpu_remove(glue: &Glue, gpu: &Gpu) {
    glue.uvm.remove(gpu);
}

/// Opens the account of an address space, which is a file to the core: that of its process. Returns
/// `None` if there is none. On a GPU whose memory is not charged it returns slot 0, nobody's, or
/// `None` if the process is under a limit. Without a file that is the current process.
pub(crate) fn account_open(glue: &Glue, gpu: Option<&Gpu>, file: Option<FileId>) -> Option<SlotId> {
    if let Some(gpu) = gpu {
        return account_of(glue, gpu, file?);
    }
    (!process::is_bound(glue, file)).then_some(SlotId(0))
}

fn account_of(glue: &Glue, gpu: &Gpu, space: FileId) -> Option<SlotId> {
    let opened = glue.with(|state, _| {
        let proc = state.opener(space).ok_or(Error::Gone)?;
        let joined = gpu.table.lock().accounts().join(|own| own.proc == proc);
        if let Some(slot) = joined {
            return Ok(slot);
        }
        let (file, ticket) = state.open_account(space, gpu.id)?;
        let holder = Holder {
            proc,
            file,
            ticket,
            payer: state.payer(file),
        };
        let is_same = |other: &Holder| other.payer == holder.payer;
        let opened = gpu.table.lock().accounts().open(holder, is_same);
        opened.ok_or_else(|| {
            state.close_managed(file, ticket);
            Error::NoSpace
        })
    });
    count_refusal(glue, opened)
}

/// Takes an address space out of its account. With the last, nothing is charged to its process any
/// more.
pub(crate) fn account_close(glue: &Glue, gpu: &Gpu, slot: SlotId) {
    glue.locked(|state| {
        let closed = gpu.table.lock().accounts().close(slot);
        if let Some(holder) = closed {
            state.close_managed(holder.file, holder.ticket);
        }
    });
}

/// Uncharges host memory that an eviction had taken.
pub(crate) fn uncharge_host(glue: &Glue, charge: HostCharge, bytes: Bytes) {
    glue.locked(|state| state.uncharge_host(charge, bytes));
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

    /// Records whether a root was used lately. Must not sleep.
    pub(crate) fn set_used(&self, root: RootId, used: bool) {
        self.table.lock().accounts().set_used(root, used);
    }

    /// Chooses a root that a victim gives up, if one can leave. Must not sleep.
    pub(crate) fn pick(
        &self,
        victim: Victim,
        can_leave: impl FnMut(RootId) -> bool,
    ) -> Option<RootId> {
        self.table.lock().accounts().pick(victim, can_leave)
    }

    /// Charges an account for a root that is about to be taken. Beyond a limit it names the victim
    /// after `tried` others, if the caller wants one.
    pub(crate) fn reserve(&self, glue: &Glue, slot: SlotId, tried: Option<u32>) -> Reserved {
        match self.try_reserve(glue, slot, None) {
            Reserved::Granted => Reserved::Granted,
            // What was freed may still be charged.
            Reserved::Refused(_) => {
                self.settle_all(glue);
                self.try_reserve(glue, slot, tried)
            }
        }
    }

    /// Charges an account for a root beyond any limit.
    pub(crate) fn reserve_anyway(&self, glue: &Glue, slot: SlotId) {
        let mut table = self.table.lock();
        if table.accounts().reserve(slot).is_some() {
            table.accounts().changed(slot);
            // The evictor repays it.
            table.accounts().entitle(slot, 1);
            table.wakes = true;
        }
        drop(table);
        self.settle(glue, slot);
    }

    fn try_reserve(&self, glue: &Glue, slot: SlotId, tried: Option<u32>) -> Reserved {
        let outcome = glue.with(|state, _| {
            let reserved = self.table.lock().accounts().reserve(slot);
            let Some((Holder { file, ticket, .. }, bytes)) = reserved else {
                // Nobody is charged.
                return Ok(Reserved::Granted);
            };
            let charged = state.try_recharge_managed(file, ticket, bytes);
            let over = match charged {
                Ok(None) => {
                    self.wait_if(slot, || state.is_low(file, self.id));
                    return Ok(Reserved::Granted);
                }
                Err(Error::Gone) => return Ok(Reserved::Granted),
                Ok(Some(over)) => Ok(over),
                Err(error) => Err(error),
            };
            let mut table = self.table.lock();
            table.accounts().cancel(slot);
            let over = over?;
            let credit = state.credit_ahead(over, self.id);
            table.accounts().entitle(slot, credit);
            table.wakes |= credit > 0;
            let gives_way = |holder: &Holder| state.may_give_way(over, holder.file);
            let victim = tried.and_then(|tried| table.victim(tried, gives_way));
            Ok(Reserved::Refused(victim))
        });
        match outcome {
            Ok(reserved) => reserved,
            Err(error) => self.reserve_uncharged(glue, slot, error),
        }
    }

    /// Reserves a root that cannot be charged, unless its owner is under a limit.
    fn reserve_uncharged(&self, glue: &Glue, slot: SlotId, error: Error) -> Reserved {
        count_refusal(glue, Err::<(), _>(error));
        let reserved = self.table.lock().accounts().reserve(slot);
        let Some((holder, _)) = reserved.filter(|(holder, _)| glue.binds_file(holder.file)) else {
            // It may be charged later.
            self.table.lock().accounts().changed(slot);
            return Reserved::Granted;
        };
        self.table.lock().accounts().cancel(slot);
        let is_own = |other: &Holder| other.file == holder.file;
        Reserved::Refused(self.table.lock().victim(0, is_own))
    }

    /// Has an account with credit wait for the evictor if `is_low`.
    fn wait_if(&self, slot: SlotId, is_low: impl FnOnce() -> bool) {
        let mut table = self.table.lock();
        if table.accounts().has_credit(slot) && is_low() {
            table.accounts().wait(slot);
            table.wakes = true;
        }
    }

    /// Returns whether the evictor has to wake, and was not woken yet.
    pub(crate) fn take_waking(&self) -> bool {
        core::mem::take(&mut self.table.lock().wakes)
    }

    /// Has the evictor wake once more.
    pub(crate) fn wake_again(&self) {
        self.table.lock().wakes = true;
    }

    /// Returns the next account that waits for the evictor, after `last`, and who gives up a root
    /// for it, with the victim's file. Takes the credit for that. Without a victim the account
    /// waits no more: it has room, or none can be made.
    pub(crate) fn next_ahead(
        &self,
        glue: &Glue,
        last: SlotId,
    ) -> Option<(SlotId, Option<(Victim, FileId)>)> {
        self.settle_all(glue);
        glue.locked(|state| {
            let mut table = self.table.lock();
            let slot = table.accounts().next_waiting(last)?;
            let owner = table.accounts().owner(slot);
            let over = owner.and_then(|holder| state.lacks_room_ahead(holder.file, self.id));
            let victim = over
                .and_then(|over| table.victim(0, |holder| state.may_give_way(over, holder.file)));
            let owner = victim.and_then(|victim| table.accounts().owner_of_victim(victim));
            let victim = victim.zip(owner.map(|holder| holder.file));
            match victim {
                Some(_) => table.accounts().spend(slot),
                None => table.accounts().rest(slot),
            }
            Some((slot, victim))
        })
    }

    /// Has an account wait no more for the evictor.
    pub(crate) fn rest(&self, slot: SlotId) {
        self.table.lock().accounts().rest(slot);
    }

    pub(crate) fn id(&self) -> GpuId {
        self.id
    }

    pub(crate) fn uuid(&self) -> &[u8; 16] {
        &self.uuid
    }

    /// Takes a charge back for which no root was taken. Must not sleep.
    pub(crate) fn cancel(&self, slot: SlotId) {
        self.table.lock().accounts().cancel(slot);
    }

    /// Counts a root that was evicted for a limit, and that has its holder still.
    pub(crate) fn evicted(&self, glue: &Glue, root: RootId) {
        let owner = self.table.lock().accounts().owner_of(root);
        if let Some(holder) = owner {
            glue.locked(|state| state.evicted(holder.file, self.id));
        }
    }

    /// Returns the account that gives up a root before one that a full GPU would take next, after
    /// `tried` others. Returns `None` if that root's owner is not spared, or nobody else can give
    /// way. Sleeps.
    pub(crate) fn instead(&self, glue: &Glue, root: RootId, tried: u32) -> Option<Victim> {
        let holder = self.table.lock().accounts().owner_of(root)?;
        // The roots that left before count for what an owner keeps.
        self.settle_all(glue);
        glue.locked(|state| {
            if !state.is_spared(holder.file, self.id) {
                return None;
            }
            let gives_way = |other: &Holder| !state.is_spared(other.file, self.id);
            let victim = self.table.lock().victim(tried, gives_way);
            if victim.is_none() {
                state.take_within_limit(holder.file, self.id);
            }
            victim
        })
    }

    /// Returns how long a shortage of an account lasts, after `failed` evictions.
    pub(crate) fn shortage(&self, glue: &Glue, slot: SlotId, failed: u32) -> Shortage {
        let holder = self.table.lock().accounts().owner(slot);
        holder.map_or(Shortage::Passing, |holder| {
            glue.locked(|state| state.shortage(holder.file, self.id, failed))
        })
    }

    /// Charges an account for host memory that an eviction of its pages takes. Returns `None` if a
    /// limit is in the way and the eviction is `for_owner`.
    pub(crate) fn charge_host(
        &self,
        glue: &Glue,
        slot: SlotId,
        bytes: Bytes,
        for_owner: bool,
    ) -> Option<HostCharge> {
        let outcome = glue.with(|state, _| {
            let holder = self.table.lock().accounts().owner(slot);
            match holder {
                Some(holder) => state.charge_host(holder.file, holder.ticket, bytes, for_owner),
                None => Ok(Some(HostCharge::NOBODY)),
            }
        });
        let is_refused = || {
            let holder = self.table.lock().accounts().owner(slot);
            for_owner && holder.is_some_and(|holder| glue.binds_file(holder.file))
        };
        match count_refusal(glue, outcome) {
            Some(charge) => charge,
            // It cannot be charged.
            None if is_refused() => None,
            None => Some(HostCharge::NOBODY),
        }
    }

    /// Charges all processes for what they hold here.
    fn settle_all(&self, glue: &Glue) {
        let mut from = SlotId(0);
        loop {
            let stale = self.table.lock().accounts().next_stale(from);
            let Some(slot) = stale else { break };
            self.settle(glue, slot);
            from = SlotId(slot.0.saturating_add(1));
        }
    }

    /// Charges a process for what an account holds, if that has changed.
    pub(crate) fn settle(&self, glue: &Glue, slot: SlotId) {
        if !self.table.lock().accounts().is_stale(slot) {
            return;
        }
        // The sum is read under the core's mutex, so the last reader charges the last sum.
        let settled = glue.with(|state, _| {
            let report = self.table.lock().accounts().report(slot);
            let Some((Holder { file, ticket, .. }, sums)) = report else {
                return Ok(());
            };
            let charged = state.recharge_managed(file, ticket, sums.charge);
            match charged.and_then(|()| state.record_tables(file, ticket, sums.tables)) {
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
        gpu.settle_all(glue);
    }
}

/// Evicts managed memory of an owner that is over its limit on a GPU, until `more` bytes fit,
/// nothing can leave, or `must_stop`. The caller has a [`SystemPmGuard`] or is in an ioctl, and
/// holds no lock of nvidia-uvm.
pub(crate) fn make_room(
    glue: &Glue,
    owner: Owner,
    id: GpuId,
    more: Bytes,
    must_stop: impl Fn() -> bool,
) {
    let Some(gpu) = glue.uvm.gpu_by_id(id) else {
        return;
    };
    let mut tried = 0;
    // The owner may take anew what others of its threads give up. That ends some time.
    let rounds = gpu.table.lock().roots.len();
    for _ in 0..rounds {
        gpu.settle_all(glue);
        let victim = glue.locked(|state| {
            let gives_way = |holder: &Holder| state.may_give_way(owner, holder.file);
            match state.exceeds_limit_of(owner, id, more) {
                true => gpu.table.lock().victim(tried, gives_way),
                false => None,
            }
        });
        let Some(victim) = victim else { break };
        if must_stop() {
            break;
        }
        tried = match rm::evict(&gpu.uuid, ptr::from_ref(&*gpu), victim, false) {
            true => 0,
            false => tried.saturating_add(1),
        };
    }
    gpu.settle_all(glue);
}

fn is_signalled() -> bool {
    current!().signal_pending()
}

/// Returns whether the current thread is to die.
pub(crate) fn is_killed() -> bool {
    // SAFETY: it has no preconditions.
    unsafe { bindings::gct_helper_is_killed() }
}

/// Evicts managed memory of a group's members that is over the group's limits, as after a process
/// has joined it. If a signal comes while a suspension is in progress, or nothing can leave, it
/// stays.
pub(crate) fn shrink_group(glue: &Glue, group: GroupId) {
    let Ok(_pm) = SystemPmGuard::interruptible() else {
        return;
    };
    for number in 0..usize::MAX {
        let Some(gpu) = glue.uvm.gpu(number) else {
            break;
        };
        make_room(glue, Owner::Group(group), gpu.id, Bytes(0), is_signalled);
    }
}

/// Writes a limit with `write`. If it is lower than what its owner is charged for, the owner's
/// managed memory is evicted first, while the lower limit is in force already. A signal ends that:
/// then `write` finds that too much is charged.
///
/// # Errors
///
/// EINTR if a signal comes while another write lowers the same limit.
pub(crate) fn write_limit<T>(
    glue: &Glue,
    _pm: &SystemPmGuard,
    scope: Scope,
    text: &[u8],
    write: impl FnOnce() -> T,
) -> Result<T, c_int> {
    settle(glue);
    let trial = glue.trial_begin(scope, text)?;
    if let Some((owner, gpu)) = trial {
        make_room(glue, owner, gpu, Bytes(0), is_signalled);
    }
    let outcome = write();
    if let Some(trial) = trial {
        glue.trial_end(trial);
    }
    Ok(outcome)
}
